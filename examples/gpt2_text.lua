-- SPDX-License-Identifier: MIT
-- Fine-tunes a GPT-2 on a text, and writes on from its beginnings.
--   perilune run examples/gpt2_text.lua -- [--text FILE] [--model FOLDER] [--lora] [--steps 300] [--quick]
-- Without --model it is a small one with random weights, and tokens are learned from the text; with it both are those
-- of a folder of transformers. Without --text the documents of this checkout are read. Ends with "ok" when the loss on
-- what it has not seen fell by 25 % (--lora: at all).
local T = require "perilune"
local nn, optim = T.nn, T.optim

local options = T.cli {
  about = "Fine-tunes a GPT-2 on a text.",
  { "text", type = "string", help = "the file to learn (the documents of this checkout)" },
  { "model", type = "string", help = "a folder with config.json, weights and tokenizer (a small random model)" },
  { "lora", false, "train adapters of rank 8 alone" },
  { "steps", type = "integer", min = 10, help = "training steps (300; 100 with --quick)" },
  { "length", 64, "tokens of a sample", min = 8 },
  { "prompt", "The ", "what is written on" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a short run on a part of the text" },
}
local steps = options.steps or (options.quick and 100 or 300)
T.manual_seed(options.seed)

-- ---- text ----------------------------------------------------------------------------------------------
local function read(path)
  local file = assert(io.open(path, "rb"))
  local all = file:read "a"
  file:close()
  return all
end

local text
if options.text then
  text = read(options.text)
else
  local root = debug.getinfo(1, "S").source:match "^@(.*)examples/[^/]*$" or "./"
  local parts = {}
  for _, name in ipairs { "README", "CONTRIBUTING", "docs/cookbook", "docs/from-pytorch" } do
    parts[#parts + 1] = read(root .. name .. ".md")
  end
  text = table.concat(parts, "\n")
end
if options.quick then text = text:sub(1, 150000) end

-- ---- model and tokens ----------------------------------------------------------------------------------
local net, tokenizer
if options.model then
  net, tokenizer = assert(T.models.load(options.model)), assert(T.models.tokenizer(options.model))
else
  local path = os.tmpname()
  assert(T.data.train_bpe { 600, text = text, special = { "<|endoftext|>" } }:save(path))
  tokenizer = assert(T.models.tokenizer(path)) -- whose ids count from 0, as a model's do
  os.remove(path)
  net = T.models.GPT2 { vocab_size = #tokenizer, n_positions = options.length, n_embd = 96, n_layer = 2, n_head = 4,
    resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
end
if options.lora then nn.lora(net, { rank = 8, target = "all-linear" }) end
print(("%d of %d parameters are trained"):format(net:num_parameters { trainable = true }, net:num_parameters()))

local ids = tokenizer:encode(text)
local rows = ids:numel() // options.length
ids = ids:narrow(1, 1, rows * options.length):view(rows, options.length)
local held = math.max(1, rows // 10)
local train, test = ids:narrow(1, 1, rows - held), ids:narrow(1, rows - held + 1, held)
print(("%d tokens, %.1f bytes each"):format(ids:numel(), #text / ids:numel()))

-- ---- training ------------------------------------------------------------------------------------------
local function loss_on(batch)
  -- without the logits as a whole: the loss takes some places at a time
  return select(2, net(batch, { labels = batch, logits = false })).loss
end
local function tested()
  net:eval()
  local sum = 0
  T.no_grad(function()
    for i = 1, held, 16 do
      local n = math.min(16, held - i + 1)
      sum = sum + loss_on(test:narrow(1, i, n)):item() * n
    end
  end)
  net:train()
  return sum / held
end

local trained = {}
for _, p in ipairs(net:parameters()) do if p.requires_grad then trained[#trained + 1] = p end end
local opt = optim.AdamW(trained, { lr = options.lora and 5e-3 or 3e-3, weight_decay = 0.01 })
local schedule = optim.lr_scheduler.CosineAnnealingLR(opt, steps)
local before = tested()
print(("before: loss %.3f"):format(before))
for step = 1, steps do
  local batch = train:index_select(1, T.randint(1, train:size(1), { 16 }))
  local loss = loss_on(batch)
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_norm_(trained, 1)
  opt:step()
  schedule:step()
  if step % (steps // 5) == 0 then print(("step %4d: loss %.3f"):format(step, loss:item())) end
end
local after = tested()
print(("after: loss %.3f"):format(after))

-- ---- writing -------------------------------------------------------------------------------------------
net:eval()
local prompt = tokenizer:encode(options.prompt)
local new = net:generate(prompt, { max_new_tokens = options.length - prompt:numel(), temperature = 0.8, top_p = 0.95,
  seed = options.seed, stop = false })
print(options.prompt .. tokenizer:decode(new))
assert(after < (options.lora and 1 or 0.75) * before, "the goal was missed")
print("ok")
