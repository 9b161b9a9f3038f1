-- perilune: tensors, gradients and neural networks for Lua 5.4.
--   local T = require "perilune"
-- Nothing goes into _G. This file puts the parts together; each part is a file of its own beside it.
local core = require "perilune.core"

-- Errors blame the first frame outside this folder.
local here = debug.getinfo(1, "S").source:match("^@(.*)init%.lua$") or ""
core.set_home(here)

local T = { core = core, debug = core.debug, version = core.version }

-- Every public op under its name, then what is written in Lua on top. Those of T.linalg are in linalg/init.lua.
for name in pairs(core.op) do
  local inplace = name .. "_"
  if not name:find(".", 1, true) then T[name], T[inplace] = core[name], core[inplace] end
end
for _, name in ipairs {
  "tensor", "from_string", "is_tensor", "default_dtype", "promote_types", "grad_of", "GradKey", "grad_keys", "custom",
  "memory", "reset_peak_memory", "set_memory_budget", "empty_cache", "set_num_threads", "get_num_threads",
  "manual_seed", "get_rng_state", "set_rng_state",
} do T[name] = core[name] end
T.manual_seed = function(seed) core.manual_seed(seed) return T end
-- T.deterministic(on) → what holds from now on. The CPU's kernels give the same bits at any number of threads, so only
-- a GPU has something to switch.
T.deterministic = function(on)
  if on ~= nil and type(on) ~= "boolean" then
    local options = require "perilune.options"
    options.fail("deterministic: true or false is wanted, got %s", options.describe(on))
  end
  if not core.device.available() then return true end
  local was = core.device.setting("deterministic", on)
  if on == nil then return was end
  return on
end

for _, part in ipairs { "tensor.create", "tensor.methods", "autograd.gradient", "autograd.autocast" } do
  require("perilune." .. part)(T, core)
end

-- Pictures of tensors: x:imshow{…}, x:spark{…}.
for name, kind in pairs { imshow = "image", spark = "spark" } do
  T[name] = function(...) return require("perilune.plot")[kind](...) end
  core.metatable().methods[name] = T[name]
end

local surface = require "perilune.surface"
local seal = surface.seal
surface.limit(T, { "empty_cache", "get_num_threads", "get_rng_state", "grad_keys",
  "set_memory_budget bytes", "set_num_threads n", "set_rng_state state",
  "GradKey options" })
surface.limit(core.metatable().methods, { "is_contiguous x memory_format" })
seal(T) seal(core.metatable().methods)
core.speak(require("perilune.options").public, require("perilune.options").speaking)
core.metatable().__tostring = function(x)
  if not core.text then local _ = core.metatable().methods.tostring end -- tensor/print.lua, a part
  return core.text(x)
end
core.seal() -- all metamethods are in place

-- All other parts load at first use: `require "perilune"` stays quick. First the modules,
local lazy = {
  distributions = "perilune.distributions", distributed = "perilune.distributed",
  nn = "perilune.nn", optim = "perilune.optim", data = "perilune.data", bar = "perilune.tools.bar",
  save = { "perilune.io", "save" }, load = { "perilune.io", "load" },
  GradScaler = "perilune.autograd.grad_scaler", Generator = "perilune.tensor.generator",
  load_idx = { "perilune.io", "load_idx" },
  load_npy = { "perilune.io.formats", "load_npy" }, save_npy = { "perilune.io.formats", "save_npy" },
  load_npz = { "perilune.io.formats", "load_npz" }, load_t7 = { "perilune.io.t7", "load_t7" },
  load_image = { "perilune.io.formats", "load_image" }, save_image = { "perilune.io.formats", "save_image" },
  graph = { "perilune.graph", "graph" }, save_graph = { "perilune.graph.file", "save" },
  load_graph = { "perilune.graph.file", "load" },
  jit = { "perilune.jit", "jit" }, compile = { "perilune.jit", "jit" },
  fit = "perilune.fit", early_stop = "perilune.fit.early_stop",
  snapshot = { "perilune.fit.snapshot", "snapshot" }, restore = { "perilune.fit.snapshot", "restore" },
  plot = "perilune.plot", metrics = "perilune.tools.metrics",
  profile = "perilune.tools.profile", timer = "perilune.tools.timer", cli = "perilune.tools.cli",
}
core.lazy = lazy
-- T.log(x) is the logarithm, T.log.csv(path), T.log.jsonl, T.log.tensorboard write figures of a run.
local logarithm = T.log
T.log = setmetatable({}, {
  __lazy = { csv = true, jsonl = true, tensorboard = true },
  __call = function(_, ...) return logarithm(...) end,
  __index = function(_, key) return require("perilune.log")[key] end,
})

-- then the parts that define several names of T and methods of tensors.
local methods, lazy_methods, loading = core.metatable().methods, {}, {}
local parts = require "perilune.parts"
for part, names in pairs(parts) do
  for name in names[1]:gmatch "%S+" do lazy[name], T[name] = { part = part }, nil end
  for name in names[2]:gmatch "%S+" do lazy_methods[name], methods[name] = part, nil end
end

-- Runs a part. What the user has put under one of its names meanwhile stays.
local function load_part(part)
  if loading[part] then return end
  loading[part] = true
  local kept = {}
  for name in parts[part][1]:gmatch "%S+" do kept[name] = rawget(T, name) end
  local ok, message = pcall(require("perilune." .. part), T, core)
  for of, t in ipairs { T, methods } do
    local names = {}
    for name in parts[part][of]:gmatch "%S+" do names[#names + 1] = name end
    seal(t, names)
  end
  for name in parts[part][1]:gmatch "%S+" do -- T.linalg, T.special
    local space = rawget(T, name)
    if type(space) == "table" and getmetatable(space) == nil then seal(space, nil, name .. ".") end
  end
  for name, value in next, kept do rawset(T, name, value) end
  loading[part] = ok
  if not ok then error(message, 0) end
end
function core.load_parts() for part in pairs(parts) do load_part(part) end end

setmetatable(methods, {
  __lazy = lazy_methods,
  __index = function(t, key)
    local part = lazy_methods[key]
    if not part then return nil end
    load_part(part)
    return rawget(t, key)
  end,
})

local function value_of(t, key)
  local where = lazy[key]
  if not where then return nil end
  if type(where) == "string" then
    rawset(t, key, require(where))
  elseif where.part then
    load_part(where.part)
  else
    rawset(t, key, require(where[1])[where[2]])
  end
  seal(t, { key })
  return rawget(t, key)
end

return setmetatable(T, {
  __lazy = lazy, -- what completion may offer before it is loaded
  __index = value_of,
  __pairs = function(t) -- sees everything
    for key in next, lazy do if rawget(t, key) == nil then value_of(t, key) end end
    return next, t, nil
  end,
})
