-- SPDX-License-Identifier: MIT
-- Classifies lines of text with BERT: is a line Lua, C or English? The texts are those of this checkout.
--   perilune run examples/bert_classify.lua -- [--model FOLDER] [--epochs 8] [--seed 1] [--quick]
-- Without --model it is a small BERT with random weights, and its words are learned from the lines; with it, the
-- folder's weights get a new head. Ends with "ok" when 90 % of lines it has not seen are right (--quick: 80 %).
local T = require "perilune"
local optim = T.optim

local options = T.cli {
  about = "Learns to tell Lua, C and English apart with BERT.",
  { "model", type = "string", help = "a folder with config.json, weights and tokenizer (a small random model)" },
  { "epochs", type = "integer", min = 1, help = "passes over the lines (8; 5 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "fewer lines, a lower goal" },
}
local epochs = options.epochs or (options.quick and 5 or 8)
local per_class = options.quick and 600 or 2500
T.manual_seed(options.seed)

-- ---- lines ---------------------------------------------------------------------------------------------
local root = debug.getinfo(1, "S").source:match "^@(.*)examples/[^/]*$" or "./"
local classes = {
  { name = "Lua", files = { "lua/perilune/nn/module.lua", "lua/perilune/nn/norm.lua", "lua/perilune/options.lua",
    "lua/perilune/data/loader.lua", "lua/perilune/models/decoder.lua", "lua/perilune/nn/recurrent.lua",
    "lua/perilune/fit/init.lua", "lua/perilune/models/generate.lua", "lua/perilune/nn/attention.lua" } },
  { name = "C", files = { "engine/ops/nn/conv.c", "engine/ops/nn/loss.c", "engine/call/call.c", "engine/grad/record.c",
    "kernels/cpu/conv/pool.c", "engine/tensor/alloc.c", "engine/io/safetensors_header.c", "engine/ops/nn/attention.c",
    "kernels/cpu/gemm/int_mm.c" } },
  { name = "English", files = { "README.md", "CONTRIBUTING.md", "docs/cookbook.md", "docs/from-pytorch.md",
    "docs/design/jit.md", "docs/design/graph.md", "docs/design/models.md", "docs/design/threads.md", "CHANGELOG.md" } },
}

local texts, labels = {}, {}
for k, class in ipairs(classes) do
  local list, seen = {}, {}
  for _, name in ipairs(class.files) do
    local code = false
    for line in io.lines(root .. name) do
      if line:find "^```" then code = not code end
      line = line:match "^%s*(.-)%s*$"
      local prose = class.name ~= "English" or not (code or line:find "^[#|`<!]")
      if prose and #line >= 20 and #line <= 160 and not seen[line] and utf8.len(line) then
        seen[line] = true
        list[#list + 1] = line
      end
    end
  end
  local order = T.randperm(#list):totable()
  local n = math.min(#list, per_class)
  for i = 1, n do texts[#texts + 1], labels[#labels + 1] = list[order[i]], k - 1 end -- a model's classes count from 0
  print(("%-7s %d lines, such as: %s"):format(class.name, n, texts[#texts]))
end

-- ---- model and tokens ----------------------------------------------------------------------------------
local net, tokenizer
local names = {}
for k, class in ipairs(classes) do names[tostring(k - 1)] = class.name end
local head = { architecture = "BertForSequenceClassification", num_labels = #classes }
if options.model then
  net, tokenizer = assert(T.models.load(options.model, head)), assert(T.models.tokenizer(options.model))
else
  local path = os.tmpname()
  assert(T.data.train_bpe { 600, text = table.concat(texts, "\n"), special = { "<pad>", "<cls>" } }:save(path))
  tokenizer = assert(T.models.tokenizer(path))
  os.remove(path)
  net = T.models.BERT { architecture = head.architecture, num_labels = #classes, vocab_size = #tokenizer,
    hidden_size = 64, intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4,
    max_position_embeddings = 48, pad_token_id = 0, id2label = names }
end

-- One line: [CLS] first, which the head reads; padding behind, which the mask hides.
local LENGTH = 48
local cls = not options.model and tokenizer:id "<cls>"
local ids, mask = T.zeros({ #texts, LENGTH }, { dtype = "i64" }), T.zeros({ #texts, LENGTH }, { dtype = "i64" })
for i, line in ipairs(texts) do
  local t = tokenizer:encode(line)
  if cls then t = T.cat { T.tensor({ cls }, { dtype = "i64" }), t } end
  local n = math.min(t:numel(), LENGTH)
  ids[{ i, { 1, n } }] = t:narrow(1, 1, n)
  mask[{ i, { 1, n } }] = 1
end

-- ---- training ------------------------------------------------------------------------------------------
local order = T.randperm(#texts)
local y = T.tensor(labels, { dtype = "i64" })
ids, mask, y = ids:index_select(1, order), mask:index_select(1, order), y:index_select(1, order)
local held = #texts // 5
local many = #texts - held
local opt = optim.AdamW(net:parameters(), { lr = options.model and 5e-5 or 1e-3, weight_decay = 0.01 })
local batch = 32
local schedule = optim.lr_scheduler.OneCycleLR(opt, { max_lr = options.model and 5e-5 or 1e-3, total_steps = epochs
  * (many // batch) })

local function right_of()
  net:eval()
  local right = 0
  T.no_grad(function()
    for i = many + 1, #texts, 100 do
      local n = math.min(100, #texts - i + 1)
      local logits = net(ids:narrow(1, i, n), { attention_mask = mask:narrow(1, i, n) })
      right = right + (logits:argmax(-1) - 1):eq(y:narrow(1, i, n)):sum():item()
    end
  end)
  net:train()
  return right / held
end

net:train()
local reached
for epoch = 1, epochs do
  local rows, sum = T.randperm(many), 0
  for step = 1, many // batch do
    local at = rows:narrow(1, (step - 1) * batch + 1, batch)
    local _, out = net(ids:index_select(1, at), { attention_mask = mask:index_select(1, at),
      labels = y:index_select(1, at) })
    opt:zero_grad()
    out.loss:backward()
    opt:step()
    schedule:step()
    sum = sum + out.loss:item()
  end
  reached = right_of()
  print(("epoch %d: loss %.3f, %.1f %% of %d lines it has not seen"):format(epoch, sum / (many // batch), 100 * reached,
    held))
end

assert(reached >= (options.quick and 0.8 or 0.9), "the goal was missed")
print("ok")
