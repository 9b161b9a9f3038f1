-- SPDX-License-Identifier: MIT
--- Variables of the environment that perilune reads, all of them, and what they may say. A name or a value that is
-- none is told once a process (init.lua), and goes on as if it were not there. The man page has those with a text.
-- @module perilune.environment
local options = require "perilune.options"

local M = {}

local function one_of(...)
  local values = { ... }
  return function(v)
    for _, known in ipairs(values) do
      if v == known then return true end
    end
    return false, options.unknown("value", v, values)
  end
end

local function switch(v) return v == "" or v == "0" or v == "1", "1 or 0 expected" end

local function any() return true end
local function byte(v) return v == "" or tonumber(v) ~= nil, "a byte expected, 0 to 255" end

local function level(v, core)
  if v == "" then return true end
  local ok, why = one_of("v2", "v3", "v4")(v)
  if not ok then return ok, why end
  return core.isa() == v, ("not here; the kernels' level is %s"):format(core.isa())
end

M.passes = { "fold", "identities", "slices", "table", "layout", "cse", "losses", "tails", "blocks", "dce", "spare",
  "order", "late", "fuse" }

local function passes(v)
  local names = {}
  for i, name in ipairs(M.passes) do names[i] = "-" .. name end
  for word in v:gmatch "[^, ]+" do
    local ok, why = one_of(table.unpack(names))(word)
    if not ok then return ok, why end
  end
  return true
end

local function debug_level(v)
  for _, known in ipairs { "", "0", "1", "OFF", "INFO", "DETAIL" } do
    if v:upper() == known then return true end
  end
  return false, "1, 0, INFO, DETAIL or OFF expected"
end

local function file(v)
  local f = v ~= "" and io.open(v, "rb")
  if f then f:close() end
  return v == "" or f ~= nil and f ~= false, "there is no such file"
end

-- { may this be its value → or false and why not; what it is for }
M.variables = {
  PERILUNE_ISA = { level, "Pins the processor level of the kernels: v2, v3 or v4." },
  PERILUNE_LIBRARIES = { function(v) return one_of("", "none")(v) end,
    "none: oneDNN and OpenBLAS stay closed, all is computed by perilune's own code." },
  PERILUNE_LINT = { switch, "0: perilune run says nothing of what in a script is always true, false or nil." },
  PERILUNE_DATA = { any, "Where datasets are looked for." },
  PERILUNE_API_KEY = { any, "The key that perilune serve wants." },
  PERILUNE_PASSES = { passes, "Passes over graphs that are left out: -fuse,-cse." },
  PERILUNE_CACHE_DIR = { any, "Where machine code for GPUs is kept; empty: nowhere." },
  PERILUNE_CUDA_SYNC = { switch, "1: waits after each kernel, so that errors name the op." },
  PERILUNE_CUDA_GRAPHS = { switch, "0: compiled functions are not captured." },
  PERILUNE_CUDA_QUIET = { switch, "1: does not tell which ops have no kernel for GPUs." },
  PERILUNE_CUDA_PLUGIN = { file, "The plug-in for GPUs." },
  PERILUNE_MPI_PLUGIN = { file, "The plug-in for groups of processes." },
  PERILUNE_DISTRIBUTED_DEBUG = { debug_level, "1: ranks compare what they are about to do." },
  PERILUNE_COLLECT = { any }, -- bindings/collector/collect_forced.c, which judges it itself
  PERILUNE_POISON = { byte }, -- engine/tensor/alloc.c
}

-- Those of the specs and of the build, which say their meaning where they are read.
M.others = {
  "BUILD", "CUDA", "CUOBJDUMP", "COLLECTOR", "EMULATE", "FAULTS", "GENERATE_CASES", "HOSTILE", "INDEX",
  "JUPYTER_PYTHON", "LANES", "MODELS", "MPI", "ONNX_CASES", "ONNX_KEEP", "PATIENCE", "PEFT_CASES", "PEFT_OUT", "ROOT",
  "SANITIZE", "SHAPE_RULES", "SLOW", "SPEC_ONLY", "TEST_DEVICE", "TRANSFORMERS_CASES", "TYPES",
}

local function is_other(name)
  for _, other in ipairs(M.others) do
    if name == "PERILUNE_" .. other then return true end
  end
  return name:find "^PERILUNE_FUZZ" ~= nil or name:find "^PERILUNE_HOSTILE_" ~= nil
end

--- What is wrong with variables {name = value} → list of sentences, in the order of the names.
function M.complaints(variables, core)
  local names, known, list = {}, {}, {}
  for name in pairs(variables) do names[#names + 1] = name end
  for name in pairs(M.variables) do known[#known + 1] = name end
  table.sort(names)
  table.sort(known)
  for _, name in ipairs(names) do
    local row, v = M.variables[name], variables[name]
    if row then
      local ok, why = row[1](v, core)
      if not ok then list[#list + 1] = ("%s=%s has no effect: %s"):format(name, v, why) end
    elseif not is_other(name) then
      list[#list + 1] = ("%s has no effect: %s"):format(name, options.unknown("variable", name, known))
    end
  end
  return list
end

return M
