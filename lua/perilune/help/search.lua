-- SPDX-License-Identifier: MIT
--- Finds pages by words, "learning rate", "how do I clip gradients": words of names count most, then what the field
-- calls a thing, then the first sentence, then the rest; rare words count more than everyday ones, and their endings
-- do not. docs/make/html.lua writes the same fields and the same steps for the reference's pages in a browser.
-- @module perilune.help.search
local M = {}

-- ---- words ------------------------------------------------------------------------------------------------------

local STOP = {}
for word in ("a an the of to in for with how do i is are my and or on by from it its at as what can that this be "
  .. "use get make"):gmatch "%S+" do STOP[word] = true end
M.STOP = STOP

-- Endings that go, in this order, from words of at least `least` letters; what takes their place.
M.ENDINGS = { { "ies", "y", 5 }, { "izations?", "iz", 8 }, { "izers?", "iz", 7 }, { "iz[ei][dn]?g?s?", "iz", 6 },
  { "ations?", "at", 8 }, { "ments?", "", 8 }, { "ings?", "", 6 }, { "ers?", "", 6 }, { "ed", "", 5 }, { "s", "", 4 },
  { "e", "", 4 } }

--- A word without its ending: clipping, clipped, clips → clip.
function M.stem(word)
  for _, rule in ipairs(M.ENDINGS) do
    if #word >= rule[3] then
      local base = word:gsub(rule[1] .. "$", rule[2])
      if base ~= word and base ~= "" and not (rule[1] == "s" and word:find "ss$") then
        word = base
        break
      end
    end
  end
  return (word:gsub("([b-df-hj-np-rtv-z])%1$", "%1"):gsub("e$", ""))
end

--- The stems of a text, in order, without everyday words.
function M.words(text)
  local list = {}
  for word in text:lower():gmatch "[%w\128-\255]+" do
    if not STOP[word] then list[#list + 1] = M.stem(word) end
  end
  return list
end

--- The words of a name: "nn.BatchNorm1d" → batch norm 1d batchnorm1d; spaces such as nn only where they say something.
function M.name_words(name)
  local space, last = name:match "^(.*)%.([^.]+)$"
  space, last = space or "", last or name
  local spelled = last:gsub("(%l)(%u)", "%1 %2"):gsub("(%a)(%d)", "%1 %2"):gsub("_", " ")
  local list = M.words(spelled)
  local own = #list
  list[#list + 1] = (last:gsub("_", ""):lower())
  for _, word in ipairs(M.words(space:gsub("_", " "))) do
    if #word > 2 then list[#list + 1] = word end
  end
  return list, own
end

-- ---- what the field calls it ------------------------------------------------------------------------------------

-- Words of names that stand for others.
M.MEANS = { lr = "learning rate", grad = "gradient", conv = "convolution convolutional", norm = "normalization", bce =
  "binary cross entropy", mse = "mean squared error", mae = "mean absolute error", l1 = "absolute error", nll =
  "negative log likelihood", kl = "kullback leibler divergence", std = "standard deviation", var = "variance", rnn =
  "recurrent network", lstm = "recurrent network", gru = "recurrent network", cat = "concatenate join", svd =
  "singular value decomposition", eig = "eigenvalue", eigh = "eigenvalue", eigvals = "eigenvalue", eigvalsh =
  "eigenvalue", det = "determinant", inv = "inverse", matmul = "matrix multiplication product", sgd =
  "stochastic gradient descent", randn = "normal gaussian random numbers", rand = "uniform random numbers", argmax =
  "index maximum", argmin = "index minimum", cumsum = "cumulative running sum", maxpool = "max pooling", avgpool =
  "average pooling", avg = "average", attn = "attention", multihead = "multi head", csv = "table file", png =
  "picture image file", jpeg = "picture image file", init = "weight initialization", eval = "evaluation", cuda = "gpu",
  transforms = "augmentation augment" }

local means = {} -- by stems, as names have them
for word, text in pairs(M.MEANS) do means[M.stem(word)] = text end

-- Pages that are looked for under words that they need not contain. Keys are names as pages have them.
M.CALLED = {
  ["T.autocast"] = "mixed precision amp half precision training", ["T.GradScaler"] = "mixed precision amp loss scaling",
  ["T.early_stop"] = "early stopping patience", ["T.fit"] = "train network model training loop gradient accumulation",
  ["T.save"] = "save model weights checkpoint write tensors", ["T.load"] = "load model weights checkpoint read tensors",
  ["T.models.load"] = "load model pretrained", ["T.models.save"] = "save model pretrained",
  ["T.snapshot"] = "save training state checkpoint resume", ["T.restore"] = "resume training checkpoint",
  ["nn.utils.clip_grad_norm_"] = "gradient clipping clip gradients exploding",
  ["nn.utils.clip_grad_value_"] = "gradient clipping clip gradients",
  ["T.manual_seed"] = "random seed reproducible", ["T.jit"] = "compile", ["T.compile"] = "compile",
  ["T.no_grad"] = "turn off gradients inference", ["T.inference_mode"] = "inference without gradients",
  ["T.data.DataLoader"] = "batches minibatch shuffle workers", ["T.data.random_split"] = "train test validation split",
  ["T.data.WeightedSampler"] = "imbalanced classes class weights oversampling",
  ["T.custom"] = "custom autograd function own gradient", ["T.grad"] = "derivative of a function",
  ["T.hessian"] = "second derivative", ["T.checkpoint"] = "gradient checkpointing recompute less memory",
  ["T.requires_grad_"] = "freeze parameters layers", ["T.cross_entropy"] = "label smoothing classification loss",
  ["nn.CrossEntropyLoss"] = "classification loss class weights", ["T.mse_loss"] = "mean squared error regression loss",
  ["nn.MSELoss"] = "regression loss", ["optim.AdamW"] = "weight decay", ["T.cdist"] = "pairwise euclidean distance",
  ["T.linalg.solve"] = "linear system equations", ["T.linalg.lstsq"] = "least squares linear regression",
  ["T.cat"] = "join stack concatenate", ["T.masked_select"] = "boolean mask filter", ["T.bar"] = "progress bar",
  ["T.memory_limit"] = "out of memory limit", ["T.quantize"] = "quantize model int8 int4 4 bit",
  ["T.onnx.save"] = "export onnx", ["nn.lora"] = "fine tune tuning adapter peft", ["T.to"] =
    "move to gpu device convert",
  ["T.cuda.is_available"] = "gpu", ["T.cuda.memory_allocated"] = "gpu memory",
  ["optim.swa_utils.AveragedModel"] = "exponential moving average ema weights",
  ["T.data.transforms.normalize"] = "normalize images", ["nn.parallel.DistributedDataParallel"] =
    "several processes data parallel ddp", ["T.distributed.init_process_group"] = "several processes",
  ["nn.init.xavier_uniform_"] = "weight initialization glorot", ["nn.init.kaiming_normal_"] =
    "weight initialization he", ["T.metrics.auc"] = "roc curve", ["T.topk"] = "top k largest",
  ["T.item"] = "number of a tensor python scalar", ["T.detach"] = "stop gradient", ["nn.Linear"] =
    "dense fully connected",
  ["T.scaled_dot_product_attention"] = "flash attention", ["nn.MultiheadAttention"] = "self attention",
  ["nn.TransformerEncoder"] = "transformer encoder", ["T.log.csv"] = "log metrics", ["T.profile"] = "profiler time",
  ["T.models.generate"] = "generate text sampling", ["nn.Sequential"] = "stack layers network",
  ["optim.lr_scheduler.LinearLR"] = "warmup", ["optim.lr_scheduler.OneCycleLR"] = "warmup", ["T.vmap"] =
    "vectorize batch per sample", ["T.cuda.device_count"] = "number of gpus",
  ["T.permute"] = "reorder dimensions", ["T.view"] = "reshape", ["T.one_hot"] = "one hot encoding",
}

-- ---- the index --------------------------------------------------------------------------------------------------

--- What is searched of an entry, each a text of stems: name, called, about (its first sentence), rest.
function M.fields(e)
  local seen = {}
  local function text(words)
    local out = {}
    for _, word in ipairs(words) do
      if not seen[word] then
        seen[word] = true
        out[#out + 1] = word
      end
    end
    return table.concat(out, " ")
  end
  local names, own = M.name_words(e.name)
  local called = { M.CALLED[e.name] or "" }
  for _, word in ipairs(names) do called[#called + 1] = means[word] or "" end
  local first = (e.text or ""):gsub("%s+", " "):match "^(.-[.;:])%s" or e.text or ""
  local rest = { e.text or "", e.signature or "" }
  for _, line in ipairs(e.arguments or {}) do rest[#rest + 1] = line end
  return { text(names), text(M.words(table.concat(called, " "))), text(M.words(first)),
    text(M.words(table.concat(rest, " "))), own }
end

-- What a word is worth by where it is: in the name, at the beginning of a word of the name, under what it is called, in
-- the first sentence, in the rest. docs/make/html.lua has the same numbers from here.
M.WORTH = { name = 8, begins = 4, called = 7, about = 4, rest = 1, whole = 40, starts = 10, own = 6, stale = 3 }

local built
local function index()
  if built then return built end
  built = { entries = {}, df = {} }
  for _, page in ipairs(require("perilune.help.reference").pages()) do
    for _, e in ipairs(page.entries) do
      local fields, entry = M.fields(e), { name = e.name, text = e.text, own = nil, where = {} }
      entry.own, entry.names = fields[5], {}
      for k, kind in ipairs { "name", "called", "about", "rest" } do
        for word in fields[k]:gmatch "%S+" do
          if kind == "name" then entry.names[#entry.names + 1] = word end
          entry.where[word] = kind
          built.df[word] = (built.df[word] or 0) + 1
        end
      end
      built.entries[#built.entries + 1] = entry
    end
  end
  return built
end

local function score(entry, words, joined, df, n)
  local total, found, named = 0, 0, 0
  for _, word in ipairs(words) do
    local kind = entry.where[word]
    local worth = kind and M.WORTH[kind] or 0
    if kind == "name" then named = named + 1 end
    if worth < M.WORTH.begins and #word > 2 then
      for _, name in ipairs(entry.names) do
        if name:sub(1, #word) == word then worth = M.WORTH.begins end
      end
    end
    if worth > 0 then found = found + 1 end
    total = total + worth * math.log(1 + n / (1 + (df[word] or 0)))
  end
  if found == 0 then return 0 end
  local last = entry.name:match "[^.]+$":gsub("_", ""):lower()
  local bonus = last == joined and M.WORTH.whole or last:sub(1, #joined) == joined and M.WORTH.starts or 0
  local stale = (entry.name:find "%.compat%." or entry.name:find "_$" and named < #words or entry.name:find "_step$"
    or entry.name:find "_bwd$") and M.WORTH.stale or 0
  local own = M.WORTH.own * math.min(named, entry.own) / math.max(entry.own, 1)
  return total * (found / #words) ^ 2 + bonus + own - stale
end

--- Has what fits best all of the words?
function M.covers(text)
  local first = M.find(text, 1)[1]
  for _, word in ipairs(M.words(text)) do
    local there = first and first.where[word] ~= nil
    for _, name in ipairs(first and first.names or {}) do there = there or name:sub(1, #word) == word end
    if not there then return false end
  end
  return first ~= nil
end

--- The entries that fit words best: a list of {name=, text=}, at most `most`.
function M.find(text, most)
  local words, list = M.words(text), {}
  if #words == 0 then return list end
  local joined = text:lower():gsub("[^%w]", "")
  local all = index()
  for _, entry in ipairs(all.entries) do
    local s = score(entry, words, joined, all.df, #all.entries)
    if s > 0 then list[#list + 1] = { s, entry } end
  end
  table.sort(list, function(a, b)
    if a[1] ~= b[1] then return a[1] > b[1] end
    if #a[2].name ~= #b[2].name then return #a[2].name < #b[2].name end
    return a[2].name < b[2].name
  end)
  local out = {}
  for i = 1, math.min(most, #list) do out[i] = list[i][2] end
  return out
end

--- The entries that fit words best, as lines of name and first sentence; nil where there is none.
function M.lines(text, most)
  local list, widest, out = M.find(text, most), 0, {}
  for _, e in ipairs(list) do widest = math.max(widest, #e.name) end
  for i, e in ipairs(list) do
    out[i] = ("  %-" .. widest .. "s  %s"):format(e.name, require("perilune.help.reference").sentence(e.text or "",
      math.max(30, 116 - widest)))
  end
  return #out > 0 and table.concat(out, "\n") or nil
end

return M
