-- perilune: tensors, gradients and neural networks for Lua 5.4.
--   local T = require "perilune"
-- Nothing goes into _G. This file puts the parts together; each part is a file of its own beside it.
local loaded = require "perilune.loaded"
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
  "tensor", "from_string", "is_tensor", "default_dtype", "promote_types", "GradKey", "grad_keys", "custom",
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
  if not core.text then core.load_part "tensor.print" end
  return core.text(x)
end
core.seal() -- all metamethods are in place

do
  local environment = core.environment()
  if environment and next(environment) then
    for _, text in ipairs(require("perilune.environment").complaints(environment, core)) do
      io.stderr:write("perilune: ", text, "\n")
    end
  end
end

-- All other parts load at first use: `require "perilune"` stays quick. First the modules,
local lazy = {
  distributions = "perilune.distributions", distributed = "perilune.distributed",
  models = "perilune.models", nn = "perilune.nn", optim = "perilune.optim", data = "perilune.data",
  bar = "perilune.tools.bar",
  save = { "perilune.io", "save" }, load = { "perilune.io", "load" },
  GradScaler = "perilune.autograd.grad_scaler", Generator = "perilune.tensor.generator",
  load_idx = { "perilune.io", "load_idx" },
  load_npy = { "perilune.io.formats", "load_npy" }, save_npy = { "perilune.io.formats", "save_npy" },
  load_npz = { "perilune.io.formats", "load_npz" }, save_npz = { "perilune.io.formats", "save_npz" },
  load_t7 = { "perilune.io.t7", "load_t7" },
  load_pt = { "perilune.io.pt", "load_pt" }, open = { "perilune.io.open", "open" },
  load_gguf = { "perilune.io.gguf", "load_gguf" }, save_gguf = { "perilune.io.gguf", "save_gguf" },
  load_image = { "perilune.io.formats", "load_image" }, save_image = { "perilune.io.formats", "save_image" },
  quantize = { "perilune.nn.quantize", "quantize" },
  graph = { "perilune.graph", "graph" }, onnx = "perilune.onnx", save_graph = { "perilune.graph.file", "save" },
  load_graph = { "perilune.graph.file", "load" },
  jit = { "perilune.jit", "jit" }, compile = { "perilune.jit", "jit" },
  fit = "perilune.fit", early_stop = "perilune.fit.early_stop",
  snapshot = { "perilune.fit.snapshot", "snapshot" }, restore = { "perilune.fit.snapshot", "restore" },
  plot = "perilune.plot", metrics = "perilune.tools.metrics",
  profile = "perilune.tools.profile", timer = "perilune.tools.timer", cli = "perilune.tools.cli",
}
function core.lazy() -- after which all that is not in this table is loaded
  core.load_parts()
  return lazy
end
-- T.log(x) is the logarithm, T.log.csv(path), T.log.jsonl, T.log.tensorboard write figures of a run.
local logarithm = T.log
T.log = setmetatable({}, {
  __lazy = { csv = true, jsonl = true, tensorboard = true },
  __call = function(_, ...) return logarithm(...) end,
  __index = function(_, key) return require("perilune.log")[key] end,
})

-- then the parts: files that define several names of T and methods of tensors. Which file has a name is read from the
-- comments above its functions, "--- T.name(", when a name is asked for that is not there. Other names of functions
-- have no comment of their own: they are in the last two.
local parts = {
  "autograd.checkpoint", "autograd.forward_mode", "autograd.functional", "autograd.gradcheck", "autograd.grad_manager",
  "autograd.memory_limit", "autograd.saved_tensors", "autograd.vmap", "device.cuda", "help", "math.distance",
  "math.einsum", "math.fake_quantize", "math.special", "math.statistics", "tensor.conveniences", "tensor.print",
  "tensor.rearrange", "tensor.aliases", "linalg",
}
local beside = { ["linalg.decompositions"] = "linalg" } -- a file that a part loads
local methods, loading, part_of = core.metatable().methods, {}, nil
methods.index_put_ = nil -- takes its arguments in PyTorch's order in tensor/aliases.lua

local function read_heads(heads, file, part)
  local path = here .. file:gsub("%.", "/")
  local f = io.open(path .. ".lua") or io.open(path .. "/init.lua")
  if not f then return end
  local text, at = f:read "a", 1
  f:close()
  while true do
    local _, last = text:find("--- ", at, true)
    if not last then return end
    local name = text:match("^[Tx][.:]([%a_][%w_]*)[({ ]", last + 1)
    if name then heads[name] = part end
    at = last + 1
  end
end

local function copied(t)
  local copy = {}
  for key, value in next, t do copy[key] = value end
  return copy
end

-- f(…), of which a trace that runs sees nothing: files are read and values made once, whoever asked first.
local function outside(f, ...)
  if core.jit_tracing() then return core.jit_untraced(f, ...) end
  return f(...)
end

-- Runs a part. What the user has put under one of its names meanwhile stays.
local function load_part(part)
  if loading[part] then return end
  loading[part] = true
  local before = { copied(T), copied(methods) }
  local ok, message = pcall(require("perilune." .. part), T, core)
  for of, t in ipairs { T, methods } do
    local names, was = {}, before[of]
    for name, value in next, t do
      if was[name] == nil then
        names[#names + 1] = name
      elseif was[name] ~= value then
        rawset(t, name, was[name])
      end
    end
    seal(t, names)
    for _, name in ipairs(names) do -- T.linalg, T.special
      local space = rawget(t, name)
      if type(space) == "table" and getmetatable(space) == nil then seal(space, nil, name .. ".") end
    end
  end
  loading[part] = ok
  if not ok then error(message, 0) end
end
core.parts, core.load_part = parts, load_part
function core.load_parts() for _, part in ipairs(parts) do load_part(part) end end

-- The part with a comment for a name of T or of a method.
function core.part_of(key)
  if not part_of then
    local heads = { linalg = "linalg", special = "math.special", cuda = "device.cuda" }
    for _, part in ipairs(parts) do read_heads(heads, part, part) end
    for file, part in pairs(beside) do read_heads(heads, file, part) end
    part_of = heads -- whole or not at all: Ctrl-C may come meanwhile
  end
  return part_of[key]
end

-- What a part defines under a name in t, T or the methods; nil if none does.
local function from_parts(t, key)
  if type(key) ~= "string" then return nil end
  local part = core.part_of(key)
  if part then
    load_part(part)
    return rawget(t, key)
  end
  for n = #parts - 1, #parts do
    if loading[parts[n]] == nil then
      load_part(parts[n])
      if rawget(t, key) ~= nil then return rawget(t, key) end
    end
  end
  return nil
end

-- PyTorch's attributes of tensors that are calls here: `if x.ndim == 2` with a nil would be false, without a word.
local attributes = { ndim = "x:dim()", T = "x:t()", H = "x:t()", mH = "x.mT",
  data = "x:detach()", nbytes = "x:numel() * x:element_size()", itemsize = "x:element_size()",
  is_cpu = 'x:device() == "cpu"' }

setmetatable(methods, { __index = function(t, key) return outside(from_parts, t, key) end, __attributes = attributes,
  __lazy = function()
    core.load_parts()
    return {}
  end })

-- PyTorch's names of dtypes are their texts here: nil in their place would be the default dtype, without a word.
local dtypes = { float16 = "f16", float32 = "f32", float64 = "f64", int8 = "i8", int16 = "i16", int32 = "i32",
  int64 = "i64", uint8 = "u8", complex64 = false, complex128 = false, uint16 = false, uint32 = false, uint64 = false }

local function value_of(t, key)
  local where = lazy[key]
  if not where then
    if dtypes[key] == false then
      local options = require "perilune.options"
      options.fail("T.%s: there is no such dtype; there are f32 f64 f16 bf16 i8 i16 i32 i64 u8 bool",
        key)
    end
    return dtypes[key] or from_parts(t, key)
  end
  if type(where) == "string" then
    rawset(t, key, require(where))
  else
    rawset(t, key, require(where[1])[where[2]])
  end
  seal(t, { key })
  return rawget(t, key)
end

loaded.perilune, loaded["perilune.core"] = T, core
return setmetatable(T, {
  __lazy = core.lazy, -- what completion may offer before it is loaded
  __index = function(t, key) return outside(value_of, t, key) end,
  __pairs = function(t) -- sees everything
    core.load_parts()
    for key in next, lazy do if rawget(t, key) == nil then value_of(t, key) end end
    return next, t, nil
  end,
})
