-- SPDX-License-Identifier: MIT
--- Where a name is that somebody looked for in the wrong place: `find("functional_call")` → its path below T.
-- For scripts that stop with "attempt to call a nil value", and for T.help. Knows what PyTorch calls differently.
-- @module perilune.help.elsewhere
local M = {}

-- Names of PyTorch's world that have no counterpart of nearly the same name.
local others = {
  ChainDataset = "T.data.IterableDataset", Grayscale = "T.data.transforms.gray", Sampler = "T.data.RandomSampler",
  SparseAdam = "T.optim.Adam", SubsetRandomSampler = "T.data.Subset",
  SummaryWriter = "T.log.tensorboard", WeightedRandomSampler = "T.data.WeightedSampler", deepcopy = "net:clone()",
  from_numpy = "T.load_npy",
  item_size = "x:element_size()", jacfwd = "T.jacobian", jacrev = "T.jacobian", make_grid = "T.save_image",
  manual_seed_all = "T.manual_seed",
  memory_allocated = "T.memory", numpy = "x:totable()", safe_open = "T.load", save_file = "T.save",
  load_file = "T.load", resize_ = "x = x:reshape(…)", squeeze_ = "x = x:squeeze()", t_ = "x = x:t()",
  transpose_ = "x = x:transpose(…)", unsqueeze_ = "x = x:unsqueeze(…)", tqdm = "T.bar", trange = "T.bar",
}

local function plain(name) return (name:gsub("_", ""):lower()) end

local index -- plain name → list of paths
local function load()
  local core = require "perilune.core"
  index = {}
  local function add(last, path)
    local list = index[plain(last)] or {}
    index[plain(last)] = list
    list[#list + 1] = path
  end
  for name in pairs(require("perilune.help.pages").all()) do add(name:match "[^.]+$", "T." .. name) end
  for _, op in ipairs(core.ops()) do
    if not op.flags.internal then add(op.name:match "[^.]+$", "T." .. op.name) end
  end
  for _, list in pairs(index) do
    table.sort(list, function(a, b) if #a ~= #b then return #a < #b end return a < b end)
  end
end

--- The path of what is called `name`, but for capitals and underscores, or nil.
function M.find(name)
  if others[name] then return others[name] end
  if not index then load() end
  local list = index[plain(name)] or {}
  for _, path in ipairs(list) do if path:match "[^.]+$" == name then return path end end
  return list[1]
end

--- A message with a place to look at, where it says that something called is nil.
function M.told(message)
  local kind, name = message:match "attempt to call a nil value %((%a+) '([%a_][%w_]*)'%)$"
  local path = (kind == "field" or kind == "method" or kind == "global") and #name > 2 and M.find(name)
  return path and ("%s; is %s meant?"):format(message, path) or message
end

return M
