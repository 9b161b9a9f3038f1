-- SPDX-License-Identifier: MIT
-- Text classification: which language is a line written in, Lua, C or English? The texts are the sources and documents
-- of this checkout. Learns byte-level BPE tokens first, then a convolutional network over them (Kim 2014).
--   perilune run examples/text_bpe.lua -- [--epochs 6] [--vocabulary 1000] [--seed 1] [--quick]
-- Ends with "ok" when 95 % of lines it has not seen are right (--quick, fewer lines, four epochs: 85 %).
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data

local options = T.cli {
  about = "Learns to tell Lua, C and English apart.",
  { "epochs", type = "integer", min = 1, help = "passes over the lines (6; 4 with --quick)" },
  { "vocabulary", 1000, "tokens", min = 300 },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "fewer lines, a lower goal" },
}
local epochs = options.epochs or (options.quick and 4 or 6)
local per_class = options.quick and 1000 or 4000
T.manual_seed(options.seed)
math.randomseed(options.seed)

-- ---- lines ---------------------------------------------------------------------------------------------
local root = debug.getinfo(1, "S").source:match("^@(.*)examples/[^/]*$") or "./"
local classes = {
  { name = "Lua", find = "lua spec examples", suffix = "lua" },
  { name = "C", find = "engine kernels bindings", suffix = "c" },
  { name = "English", find = "docs README.md CONTRIBUTING.md bench", suffix = "md" },
}

-- Lines of all files of a class, each once, in random order; of Markdown only what is prose.
local function lines_of(class)
  local find = ("cd '%s' && find %s -name '*.%s' | LC_ALL=C sort"):format(root == "" and "." or root, class.find,
    class.suffix)
  local list, seen, files = {}, {}, assert(io.popen(find))
  for path in files:lines() do
    local code = false
    for line in io.lines(root .. path) do
      if line:find("^```") then code = not code end
      line = line:match("^%s*(.-)%s*$")
      local prose = class.suffix ~= "md" or not (code or line:find("^[#|`<!-]"))
      if prose and #line >= 20 and #line <= 120 and not seen[line] and utf8.len(line) then
        seen[line] = true
        list[#list + 1] = line
      end
    end
  end
  files:close()
  for i = #list, 2, -1 do
    local k = math.random(i)
    list[i], list[k] = list[k], list[i]
  end
  return table.move(list, 1, math.min(#list, per_class), 1, {})
end

local texts, labels = {}, {}
for k, class in ipairs(classes) do
  local lines = lines_of(class)
  print(("%-7s %d lines, such as: %s"):format(class.name, #lines, lines[1]))
  for _, line in ipairs(lines) do texts[#texts + 1], labels[#labels + 1] = line, k end
end

-- ---- tokens --------------------------------------------------------------------------------------------
local tokenizer = assert(data.train_bpe { options.vocabulary, text = table.concat(texts, "\n"), special = { "<pad>" } })
local PAD, LENGTH = tokenizer:id("<pad>"), 48
local ids, used = T.full({ #texts, LENGTH }, PAD), 0
for i, line in ipairs(texts) do
  local t = tokenizer:encode(line)
  local n = math.min(#t, LENGTH)
  ids[{ i, { 1, n } }] = t:narrow(1, 1, n)
  used = used + #t
end
local bytes = #table.concat(texts)
print(("%d tokens learned; a token stands for %.1f bytes"):format(#tokenizer, bytes / used))
assert(tokenizer:decode(tokenizer:encode(texts[1])) == texts[1], "the tokens do not give the text back")

-- ---- network -------------------------------------------------------------------------------------------
local TextNet = nn.class("TextNet")

function TextNet:init(vocabulary, width, count)
  self.token = nn.Embedding(vocabulary, width)
  self.conv = nn.Conv1d(width, 128, 3, { padding = 1 })
  self.drop = nn.Dropout(0.3)
  self.head = nn.Linear(128, count)
end

-- i64[N, L] → f32[N, classes]; the largest answer of each filter, wherever it is in the line
function TextNet:forward(tokens)
  local x = self.conv(self.token(tokens):transpose(2, 3)):relu()
  return self.head(self.drop((x:max(3))))
end

local set = data.TensorDataset(ids, T.tensor(labels, { dtype = "i64" }))
local train, test = table.unpack(data.random_split(set, { 0.8, 0.2 }, { seed = options.seed }))
local net = TextNet(#tokenizer, 48, #classes)
print(net:summary(ids[{ { 1, 2 } }]))
local opt = optim.AdamW(net:parameters(), { lr = 3e-3 })
local confusion = T.metrics.confusion_matrix { classes = #classes }
local history = T.fit(net, {
  train = data.DataLoader(train, { batch_size = 64, shuffle = true }),
  valid = data.DataLoader(test, { batch_size = 256 }),
  epochs = epochs, optimizer = opt, metrics = "accuracy",
  scheduler = optim.lr_scheduler.CosineAnnealingLR(opt, epochs),
})

net:eval()
T.no_grad(function()
  for x, y in data.DataLoader(test, { batch_size = 256 }) do confusion:update(net(x), y) end
  local names = {}
  for k, class in ipairs(classes) do names[k] = class.name end
  print(confusion:plot { names = names })
end)
local reached = history[#history].valid_accuracy
print(("%.2f %% of %d lines it has not seen"):format(100 * reached, #test))
assert(reached >= (options.quick and 0.85 or 0.95), "the goal was missed")
print("ok")
