-- perilune: tensors, gradients and neural networks for Lua 5.4.
--   local T = require "perilune"
-- Nothing goes into _G. This file puts the parts together; each part is a file of its own beside it.
local core = require "perilune.core"

-- Errors blame the first frame outside this folder.
local here = debug.getinfo(1, "S").source:match("^@(.*)init%.lua$") or ""
core.set_home(here)

local T = { core = core, debug = core.debug, version = core.version }

-- Every public op under its name, then what is written in Lua on top.
for _, op in ipairs(core.ops()) do
  if not op.flags.internal and core[op.name] then T[op.name] = core[op.name] end
  local inplace = op.name .. "_"
  if core[inplace] then T[inplace] = core[inplace] end
end
for _, name in ipairs {
  "tensor", "from_string", "is_tensor", "default_dtype", "promote_types", "grad_of", "GradKey", "grad_keys", "custom",
  "memory", "reset_peak_memory", "set_memory_budget", "empty_cache", "set_num_threads", "get_num_threads",
  "manual_seed", "get_rng_state", "set_rng_state",
} do T[name] = core[name] end
T.manual_seed = function(seed) core.manual_seed(seed) return T end
-- T.deterministic(on) → true. Every kernel gives the same bits at any number of threads, so there is nothing to switch;
-- it is here for scripts that ask.
T.deterministic = function() return true end

for _, part in ipairs {
  "create", "ops", "einsum", "linalg", "distance", "gradient", "vmap", "functional", "gradcheck", "manager",
  "composites", "linalg_more", "aliases", "arrange", "statistics", "special", "print", "help",
} do
  require("perilune." .. part)(T, core)
end

-- Pictures of tensors: x:imshow{…}, x:spark{…}.
for name, kind in pairs { imshow = "image", spark = "spark" } do
  T[name] = function(...) return require("perilune.plot")[kind](...) end
  core.metatable().methods[name] = T[name]
end

require("perilune.autocast")(T, core)
core.seal() -- all metamethods are in place

-- The larger parts load at first use: `require "perilune"` stays quick.
local lazy = {
  nn = "perilune.nn", optim = "perilune.optim", data = "perilune.data", bar = "perilune.bar",
  save = { "perilune.io", "save" }, load = { "perilune.io", "load" },
  GradScaler = "perilune.scaler",
  load_idx = { "perilune.io", "load_idx" },
  load_npy = { "perilune.files", "load_npy" }, save_npy = { "perilune.files", "save_npy" },
  load_npz = { "perilune.files", "load_npz" }, load_t7 = { "perilune.t7", "load_t7" },
  load_image = { "perilune.files", "load_image" }, save_image = { "perilune.files", "save_image" },
  graph = { "perilune.graph", "graph" }, save_graph = { "perilune.graph_io", "save" },
  load_graph = { "perilune.graph_io", "load" },
  jit = { "perilune.jit", "jit" }, compile = { "perilune.jit", "jit" },
  fit = "perilune.fit", early_stop = "perilune.fit.early_stop",
  snapshot = { "perilune.fit.snapshot", "snapshot" }, restore = { "perilune.fit.snapshot", "restore" },
  plot = "perilune.plot", metrics = "perilune.metrics",
  profile = "perilune.profile", timer = "perilune.timer", cli = "perilune.cli",
}
core.lazy = lazy
-- T.log(x) is the logarithm, T.log.csv(path), T.log.jsonl, T.log.tensorboard write figures of a run.
local logarithm = T.log
T.log = setmetatable({}, {
  __lazy = { csv = true, jsonl = true, tensorboard = true },
  __call = function(_, ...) return logarithm(...) end,
  __index = function(_, key) return require("perilune.log")[key] end,
})
return setmetatable(T, {
  __lazy = lazy, -- what completion may offer before it is loaded
  __index = function(t, key)
    local where = lazy[key]
    if not where then return nil end
    local value
    if type(where) == "table" then
      value = require(where[1])[where[2]]
    else
      value = require(where)
    end
    rawset(t, key, value)
    return value
  end,
})
