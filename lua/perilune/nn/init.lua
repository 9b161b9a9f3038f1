-- SPDX-License-Identifier: MIT
--- Networks: modules, losses, initializers, and the functions behind them.
-- @module perilune.nn
local base = require "perilune.nn.module"

local nn = {
  Module = base.Module, Parameter = base.Parameter, class = base.class, is_module = base.is_module,
  F = require "perilune.nn.functional.public", init = require "perilune.nn.initializers",
    utils = require "perilune.nn.utils",
}

nn.functional = nn.F

for _, part in ipairs { "container", "linear", "shape", "conv", "pool", "norm", "activation", "dropout",
  "embedding", "loss", "recurrent", "attention", "conv_transpose", "image", "distance", "padding", "parameters",
  "transformer", "lazy", "adaptive_softmax", "rotary", "gated_mlp", "quantized", "lora",
  "lora_files" } do
  for name, value in pairs(require("perilune.nn." .. part)) do nn[name] = value end
end
nn.KVCache = require("perilune.nn.cache").KVCache
nn.GroupedQueryAttention = require("perilune.nn.grouped_attention").GroupedQueryAttention

local surface = require "perilune.surface"
local seal = surface.seal
for name, f in next, require "perilune.nn.functional" do -- those that modules have looked up, too
  if rawget(nn.F, name) == nil then nn.F[name] = surface.one(name, f) end
end
seal(nn, nil, "nn.") seal(nn.init, nil, "nn.init.") seal(nn.utils)

-- Loaded with their first use: nn.parallel.DistributedDataParallel needs T.distributed.
local rooms = { parallel = "perilune.nn.parallel", quant = "perilune.nn.quant" }
return setmetatable(nn, { __index = function(t, key)
  if not rooms[key] then return nil end
  rawset(t, key, require(rooms[key]))
  return rawget(t, key)
end, __lazy = { parallel = true, quant = true } })
