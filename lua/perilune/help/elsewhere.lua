-- SPDX-License-Identifier: MIT
--- Where a name is that somebody looked for in the wrong place, or wrote a little differently:
-- `find("functional_call")` → its path below T. Knows what PyTorch calls differently.
-- @module perilune.help.elsewhere
local options = require "perilune.options"

local M = {}

-- Names of PyTorch's world that have no counterpart of nearly the same name.
local others = {
  ChainDataset = "T.data.IterableDataset", Grayscale = "T.data.transforms.gray", Sampler = "T.data.RandomSampler",
  SparseAdam = "T.optim.Adam", SubsetRandomSampler = "T.data.Subset",
  SummaryWriter = "T.log.tensorboard", deepcopy = "net:clone()",
  from_numpy = "T.load_npy",
  item_size = "x:element_size()", jacfwd = "T.jacobian", jacrev = "T.jacobian", make_grid = "T.save_image",
  manual_seed_all = "T.manual_seed", seed = "T.manual_seed",
  memory_allocated = "T.memory", numpy = "x:totable()", safe_open = "T.open", save_file = "T.save",
  load_file = "T.load", resize_ = "x = x:reshape(…)", squeeze_ = "x = x:squeeze()", t_ = "x = x:t()",
  transpose_ = "x = x:transpose(…)", unsqueeze_ = "x = x:unsqueeze(…)", tqdm = "T.bar", trange = "T.bar",
  float32 = "x:float()", float64 = "x:double()", int64 = "x:long()", astype = "x:to(dtype)",
  -- of transformers, tokenizers, safetensors, peft, onnx and gguf
  from_pretrained = "T.models.load", pipeline = "T.models.load", transformers = "T.models.load",
  huggingface = "T.models.load", load_model = "T.models.load", save_pretrained = "T.models.save",
  AutoTokenizer = "T.models.tokenizer", PreTrainedTokenizerFast = "T.data.tokenizer",
  apply_chat_template = "T.data.tokenizer", chat_template = "T.data.tokenizer",
  AutoImageProcessor = "T.models.image_processor", AutoProcessor = "T.models.image_processor",
  LoraConfig = "T.nn.lora", get_peft_model = "T.nn.lora", peft = "T.nn.lora", PeftModel = "T.nn.load_lora",
  merge_and_unload = "T.nn.merge_lora", safetensors = "T.load", load_safetensors = "T.load",
  save_safetensors = "T.save", gguf = "T.load_gguf", GGUFReader = "T.load_gguf", load_onnx = "T.onnx.load",
  bce_with_logits = "T.nn.F.binary_cross_entropy_with_logits", bce = "T.nn.F.binary_cross_entropy", Function =
    "T.custom", add_scalar = "log:scalar", repeat_ = "x:tile(…)",
  DDP = "T.nn.parallel.DistributedDataParallel", DataParallel = "T.nn.parallel.DistributedDataParallel",
  get_ema_multi_avg_fn = "T.optim.swa_utils.get_ema_avg_fn", get_swa_multi_avg_fn =
    "T.optim.swa_utils.get_swa_avg_fn",
  ["plot.bar"] = "T.plot", ["plot.line"] = "T.plot", ["plot.plot"] = "T.plot",
  ["plot.imshow"] = "T.imshow",
  ["utils.data"] = "T.data", ["utils.tensorboard"] = "T.log.tensorboard", ["func.vmap"] = "T.vmap",
  ["autograd.grad"] = "T.grad_of", ["autograd.backward"] = "T.backward",
  InferenceSession = "T.onnx.load", export = "T.onnx.save", export_onnx = "T.onnx.save", save_onnx = "T.onnx.save",
}

local function plain(name) return (name:gsub("_", ""):lower()) end

local index, spaces -- plain last name → list of paths; space ("nn.", "" for T) → list of names
local function load()
  local core = require "perilune.core"
  index, spaces = {}, { x = {} }
  local function add(path)
    local space, last = path:match "^(.*%.)([^.]+)$"
    space, last = space or "", last or path
    local list = index[plain(last)] or {}
    index[plain(last)] = list
    list[#list + 1] = path
    spaces[space] = spaces[space] or {}
    table.insert(spaces[space], last)
  end
  for name in pairs(require("perilune.help.pages").all()) do add(name) end
  for _, op in ipairs(core.ops()) do
    if not op.flags.internal then add(op.name) end
  end
  for name in pairs(core.metatable().methods) do table.insert(spaces.x, name) end
  for _, list in pairs(spaces) do table.sort(list) end
end

-- What is shown for a path: nn.Linear, optim.Adam, T.relu.
local function shown(path) return "T." .. path end

-- torch7's and the like come last.
local function rank(path, name, space)
  local own, last = path:match "^(.*%.)[^.]+$" or "", path:match "[^.]+$"
  return (own == space and 0 or 8) + (path:find "compat" and 4 or 0) + (last == name and 0 or 2)
end

--- The path of what another library calls exactly so, or nil.
function M.other(name) return others[name] or name:find "^AutoModel" and "T.models.load" or nil end

--- The path of what is called `name` but for capitals and underscores, or nil: first in `space` ("nn.", "" for T,
-- "x" for a tensor's methods), then anywhere. Never what was asked for itself.
function M.find(name, space)
  if M.other(name) then return M.other(name) end
  if not index then load() end
  local best, least
  for _, path in ipairs(index[plain(name)] or {}) do
    if not (space and path == space .. name) then
      local r = rank(path, name, space)
      if not least or r < least or r == least and (#path < #best or #path == #best and path < best) then
        best, least = path, r
      end
    end
  end
  return best and shown(best)
end

--- The one of the names that is meant by `name`; of a name of one or two letters only one that differs in capitals.
function M.nearest(name, names)
  local near = options.nearest(name, names)
  if near and #name <= 2 and near:lower() ~= name:lower() then return nil end
  return near
end

--- The name of a method, of tensors or of one of perilune's classes, that is meant by `name`, of what nobody knows.
function M.method(name)
  if not index then load() end
  local core, names, seen = require "perilune.core", {}, {}
  local function add(key)
    if not seen[key] and not key:find "^_" then
      seen[key] = true
      names[#names + 1] = key
    end
  end
  for _, key in ipairs(spaces.x) do add(key) end
  for _, key in ipairs(spaces[""]) do -- of which tensors have most as methods, some loaded at first use
    if core.part_of(key) then add(key) end
  end
  for class in next, require("perilune.classes").all do
    for key, f in next, class do
      if type(key) == "string" and type(f) == "function" then add(key) end
    end
  end
  if seen[name] then return nil end
  table.sort(names)
  return M.nearest(name, names)
end

-- What other libraries are called where they are used.
local ROOTS = { torch = true, np = true, numpy = true, jnp = true, tf = true, mx = true }

--- The path that is meant by one with a mistake, "optim.adam", "nn.Conv2D", "optim.Adm", "x:sumn"; or nil.
function M.meant(path)
  if not index then load() end
  path = path:gsub("^T[.:]", "")
  local root, rest = path:match "^(%a+)%.(.+)$"
  if ROOTS[root] then
    path = rest:gsub("^nn%.functional%.", "nn.F.")
    for _, known in ipairs(index[plain(path:match "[^.:]+$")] or {}) do
      if known == path then return shown(path) end
    end
  end
  if others[path] then return others[path] end
  local space, mark, name = path:match "^(.-)([.:])([^.:]+)$"
  if not name then name, space, mark = path, "", "" end
  local own = mark == ":" and "x" or space == "" and "" or space .. "."
  if not spaces[own] then
    local near = M.nearest(space, (function()
      local list = {}
      for key in pairs(spaces) do if key ~= "" and key ~= "x" then list[#list + 1] = key:sub(1, -2) end end
      table.sort(list)
      return list
    end)())
    own = near and near .. "." or ""
  end
  local found = M.find(name, own)
  local near = M.nearest(name, spaces[own] or {})
  if near and plain(near) == plain(name) and own ~= "x" then return shown(own .. near) end
  if found and found:sub(1, 2) == "T." then return found end
  if near then return own == "x" and "x:" .. near or shown(own .. near) end
  local all = {}
  for _, list in pairs(index) do for _, p in ipairs(list) do all[#all + 1] = p:match "[^.]+$" end end
  table.sort(all)
  near = space == "" and M.nearest(name, all)
  return near and M.find(near) or found
end

return M
