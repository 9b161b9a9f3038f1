-- SPDX-License-Identifier: MIT
-- A small transformer that learns to sort: after six digits and a separator it writes the digits in order.
--   perilune run examples/gpt_nano.lua -- [--steps 800] [--seed 1] [--temperature 0.7] [--top-k 3] [--quick]
-- Ends with "ok" when 90 % of 500 sequences it has not been trained on come out sorted without a mistake
-- (--quick, 200 steps: when 80 % of their digits are right).
local T = require "perilune"
local nn, optim, F = T.nn, T.optim, T.nn.F

local options = T.cli {
  about = "Trains a small transformer to sort digits.",
  { "steps", type = "integer", min = 10, help = "training steps (800; 200 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "temperature", 0.7, "of the sampled sequences", min = 0.01 },
  { "top_k", 3, "a sample is one of the k likeliest digits", min = 1, max = 11 },
  { "quick", false, "a short run with a lower goal" },
}
local steps = options.steps or (options.quick and 200 or 800)
T.manual_seed(options.seed)

-- ---- model -------------------------------------------------------------------------------------------
local Block = nn.class("Block")

function Block:init(width, heads)
  self.heads = heads
  self.norm1 = nn.LayerNorm(width)
  self.qkv = nn.Linear(width, 3 * width)
  self.out = nn.Linear(width, width)
  self.norm2 = nn.LayerNorm(width)
  self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
end

-- f32[N, L, width], the same out; position i sees positions 1 … i
function Block:forward(x)
  local n, length, width = x:size(1), x:size(2), x:size(3)
  local q, k, v = table.unpack(self.qkv(self.norm1(x)):view(n, length, 3 * self.heads, -1):transpose(2, 3)
    :chunk(3, 2))
  local y = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
  x = x + self.out(y:transpose(2, 3):reshape(n, length, width))
  return x + self.mlp(self.norm2(x))
end

local GPT = nn.class("GPT")

function GPT:init(o)
  self.token = nn.Embedding(o.vocabulary, o.width)
  self.position = nn.Parameter(T.randn(o.length, o.width) * 0.02)
  self.blocks = nn.ModuleList {}
  for _ = 1, o.layers do self.blocks:append(Block(o.width, o.heads)) end
  self.norm = nn.LayerNorm(o.width)
  self.head = nn.Linear(o.width, o.vocabulary, { bias = false })
  self.head.weight = self.token.weight -- one matrix reads and writes tokens
end

-- i64[N, L] → f32[N, L, vocabulary]
function GPT:forward(ids)
  local x = self.token(ids) + self.position[{ { 1, ids:size(2) } }]
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.head(self.norm(x))
end

-- ---- task --------------------------------------------------------------------------------------------
local digits, separator = 6, 11 -- tokens 1 … 10 are the digits 0 … 9
local function problems(n)
  local given = T.randint(1, 10, { n, digits })
  local sorted = given:sort(-1)
  return T.cat({ given, T.full({ n, 1 }, separator, { dtype = "i64" }), sorted }, 2)
end

local net = GPT { vocabulary = 11, length = 2 * digits, width = 48, heads = 4, layers = 2 }
print(net)
print(("%d parameters"):format(net:num_parameters()))

-- Weight decay for matrices only.
local matrices, others = {}, {}
for _, p in ipairs(net:parameters()) do
  local group = p:dim() > 1 and matrices or others
  group[#group + 1] = p
end
local opt = optim.AdamW({ { params = matrices, weight_decay = 0.05 }, { params = others, weight_decay = 0.0 } },
  { lr = 3e-3, betas = { 0.9, 0.95 } })
local warm = steps // 10
local schedule = optim.lr_scheduler.LambdaLR(opt, function(step)
  if step < warm then return (step + 1) / warm end
  return 0.05 + 0.95 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2
end)

-- ---- training ----------------------------------------------------------------------------------------
for step = 1, steps do
  local ids = problems(64)
  local logits = net(ids[{ {}, { 1, -2 } }])
  -- Only what follows the separator can be known.
  local loss = F.cross_entropy(logits[{ {}, { digits + 1, -1 } }]:flatten(1, 2),
    ids[{ {}, { digits + 2, -1 } }]:flatten())
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_norm_(net:parameters(), 1)
  opt:step()
  schedule:step()
  if step % (steps // 10) == 0 then print(("step %4d: loss %.4f"):format(step, loss:item())) end
end

-- ---- test: written one digit after the other ------------------------------------------------------------
net:eval()
local ids = problems(500)

-- The next token of each sequence: the likeliest, or one of the k likeliest at random.
local function choose(logits, temperature, k)
  if not temperature then return logits:argmax(-1, { keepdim = true }) end
  local best, which = logits:topk(k, -1)
  return which:gather(2, (best / temperature):softmax(-1):multinomial(1))
end

local function write(start, temperature, k)
  local _ <close> = T.no_grad()
  for _ = 1, digits do start = T.cat({ start, choose(net(start)[{ {}, -1 }], temperature, k) }, 2) end
  return start
end

local written = write(ids[{ {}, { 1, digits + 1 } }])
local right = written:eq(ids)
local per_digit = right[{ {}, { digits + 2, -1 } }]:float():mean():item()
local whole = right:all(2):float():mean():item()
local function shown(row)
  local out = {}
  for i, v in ipairs(row:totable()) do out[i] = v == separator and "|" or tostring(v - 1) end
  return table.concat(out, " ")
end
for i = 1, 3 do print(shown(written[i])) end
print(("sampled, temperature %.2f:"):format(options.temperature))
local sampled = write(ids[{ { 1, 3 }, { 1, digits + 1 } }], options.temperature, options.top_k)
for i = 1, 3 do print(shown(sampled[i])) end
print(("%.2f %% of the digits, %.2f %% of the sequences are right"):format(100 * per_digit, 100 * whole))
if options.quick then
  assert(per_digit >= 0.8, "fewer than 80 % of the digits are right")
else
  assert(whole >= 0.9, "fewer than 90 % of the sequences are right")
end
print("ok")
