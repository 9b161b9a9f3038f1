-- SPDX-License-Identifier: MIT
-- Learns a text character by character with a two-layer LSTM, then writes some of its own.
--   perilune run examples/char_lstm.lua -- [FILE] [--steps 600] [--seed 1] [--length 200] [--quick]
-- Without FILE the text is $PERILUNE_DATA/text.txt where that exists, else the short one below. Ends with "ok"
-- when the mean loss of the last 20 steps is below 70 % of that of the first 20 (--quick, 120 steps: the same).
local T = require "perilune"
local nn, optim = T.nn, T.optim

local short_text = ([[
The moon was low, the tide was high,
the boats went out without a cry.
The tide was low, the moon was high,
the boats came home before the sky
had turned from grey to blue, and then
the moon went down, and home went men.
]]):rep(20)

-- ---- arguments ---------------------------------------------------------------------------------------
local options = T.cli {
  about = "Learns a text character by character, then writes some of its own.", rest = "FILE",
  { "steps", type = "integer", min = 40, help = "training steps (600; 120 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "length", 200, "characters to write", min = 0 },
  { "quick", false, "a short run" },
}
options.steps = options.steps or (options.quick and 120 or 600)
options.path = options.rest[1]

-- ---- text --------------------------------------------------------------------------------------------
local function read(path, must)
  local file, message = io.open(path, "rb")
  if not file then return must and error(message, 0) or nil end
  local text = file:read("a")
  file:close()
  return text
end

local folder = os.getenv("PERILUNE_DATA")
local text = options.path and read(options.path, true) or folder and read(folder .. "/text.txt") or short_text
if #text < 200 then error("the text is too short: it needs 200 bytes", 0) end

-- Characters are bytes; each that occurs has a number from 1.
local number, byte = {}, {}
do
  local seen = {}
  for i = 1, #text do seen[text:byte(i)] = true end
  for b = 0, 255 do
    if seen[b] then
      byte[#byte + 1] = b
      number[b] = #byte
    end
  end
end
local function encode(s)
  local ids = {}
  for i = 1, #s do ids[i] = number[s:byte(i)] end
  return T.tensor(ids, { dtype = "i64" })
end
local ids = encode(text)
print(("%d characters, %d different ones"):format(#text, #byte))

-- ---- network -----------------------------------------------------------------------------------------
local CharLSTM = nn.class("CharLSTM")

function CharLSTM:init(characters, width)
  self.embedding = nn.Embedding(characters, 32)
  self.lstm = nn.LSTM(32, width, { num_layers = 2, batch_first = true })
  self.head = nn.Linear(width, characters)
end

-- i64[N, L] → f32[N, L, characters], and the state {h, c} to go on from
function CharLSTM:forward(x, state)
  local y
  y, state = self.lstm(self.embedding(x), state)
  return self.head(y), state
end

T.manual_seed(options.seed)
local net = CharLSTM(#byte, 128)
print(net)
local opt = optim.Adam(net:parameters(), { lr = 5e-3 })

-- ---- training ----------------------------------------------------------------------------------------
local batch, window = 16, 64
local losses = {}
for step = 1, options.steps do
  local rows = T.randint(1, #text - window, { batch, 1 }) + (T.arange(window + 1) - 1)
  local sample = ids[rows]
  local logits = net(sample[{ {}, { 1, window } }])
  local loss = nn.F.cross_entropy(logits:flatten(1, 2), sample[{ {}, { 2, -1 } }]:flatten())
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_norm_(net:parameters(), 1)
  opt:step()
  losses[step] = loss:item()
  if step % 20 == 0 then print(("step %4d: loss %.3f"):format(step, losses[step])) end
end

-- ---- sampling ----------------------------------------------------------------------------------------
local function write(start, length, temperature)
  local _ <close> = T.no_grad()
  net:eval()
  local out, state = { start }, nil
  local logits
  logits, state = net(encode(start):unsqueeze(1), state)
  for _ = 1, length do
    local next_id = T.multinomial((logits[{ 1, -1 }] / temperature):softmax(), 1)
    out[#out + 1] = string.char(byte[next_id:item()])
    logits, state = net(next_id:view(1, 1), state)
  end
  net:train()
  return table.concat(out)
end
print(write(text:sub(1, 8), options.length, 0.7))

local function mean(from, to)
  local total = 0
  for i = from, to do total = total + losses[i] end
  return total / (to - from + 1)
end
local first, last = mean(1, 20), mean(options.steps - 19, options.steps)
print(("mean loss: first 20 steps %.3f, last 20 steps %.3f"):format(first, last))
assert(last < 0.7 * first, "the loss did not fall below 70 %")
print("ok")
