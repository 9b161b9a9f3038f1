-- SPDX-License-Identifier: MIT
--- Layers whose number of inputs is known only at the first call: LazyLinear, LazyConv, LazyConvTranspose,
-- LazyBatchNorm, LazyInstanceNorm. At that call, or when a state is loaded, they become the plain layer.
-- @module perilune.nn.lazy
local base = require "perilune.nn.module"
local options = require "perilune.options"

local fail = options.fail
local core = require("perilune").core
local tracing, on_device = core.jit_tracing, core.device.with
local out = {}

-- plain class, the argument that is found out, where a tensor has it: of the input (dimension counted from the
-- channels on) and of a state (name, dimension)
--- nn.LazyBatchNorm1d(…) → module
-- A nn.BatchNorm1d whose num_features is found at the first call.
-- Shapes: as nn.BatchNorm1d
--   local l = nn.LazyBatchNorm1d()
--   l(T.ones(1, 2, 4))
--   print(l:type(), l.num_features)  --> BatchNorm1d	2

--- nn.LazyBatchNorm2d(…) → module
-- A nn.BatchNorm2d whose num_features is found at the first call.
-- Shapes: as nn.BatchNorm2d
--   local l = nn.LazyBatchNorm2d()
--   l(T.ones(1, 2, 4, 4))
--   print(l:type(), l.num_features)  --> BatchNorm2d	2

--- nn.LazyBatchNorm3d(…) → module
-- A nn.BatchNorm3d whose num_features is found at the first call.
-- Shapes: as nn.BatchNorm3d
--   local l = nn.LazyBatchNorm3d()
--   l(T.ones(1, 2, 4, 4, 4))
--   print(l:type(), l.num_features)  --> BatchNorm3d	2

--- nn.LazyConv1d(…) → module
-- A nn.Conv1d whose in_channels is found at the first call.
-- Shapes: as nn.Conv1d
--   local l = nn.LazyConv1d(3, 2)
--   l(T.ones(1, 2, 4))
--   print(l)  --> Conv1d(2, 3, kernel_size={2}, stride={1})

--- nn.LazyConv2d(…) → module
-- A nn.Conv2d whose in_channels is found at the first call.
-- Shapes: as nn.Conv2d
--   local l = nn.LazyConv2d(3, 2)
--   l(T.ones(1, 2, 4, 4))
--   print(l)  --> Conv2d(2, 3, kernel_size={2, 2}, stride={1, 1})

--- nn.LazyConv3d(…) → module
-- A nn.Conv3d whose in_channels is found at the first call.
-- Shapes: as nn.Conv3d
--   local l = nn.LazyConv3d(3, 2)
--   l(T.ones(1, 2, 4, 4, 4))
--   print(l)  --> Conv3d(2, 3, kernel_size={2, 2, 2}, stride={1, 1, 1})

--- nn.LazyConvTranspose1d(…) → module
-- A nn.ConvTranspose1d whose in_channels is found at the first call.
-- Shapes: as nn.ConvTranspose1d
--   local l = nn.LazyConvTranspose1d(3, 2)
--   l(T.ones(1, 2, 4))
--   print(l)  --> ConvTranspose1d(2, 3, kernel_size={2}, stride={1})

--- nn.LazyConvTranspose2d(…) → module
-- A nn.ConvTranspose2d whose in_channels is found at the first call.
-- Shapes: as nn.ConvTranspose2d
--   local l = nn.LazyConvTranspose2d(3, 2)
--   l(T.ones(1, 2, 4, 4))
--   print(l)  --> ConvTranspose2d(2, 3, kernel_size={2, 2}, stride={1, 1})

--- nn.LazyConvTranspose3d(…) → module
-- A nn.ConvTranspose3d whose in_channels is found at the first call.
-- Shapes: as nn.ConvTranspose3d
--   local l = nn.LazyConvTranspose3d(3, 2)
--   l(T.ones(1, 2, 4, 4, 4))
--   print(l)  --> ConvTranspose3d(2, 3, kernel_size={2, 2, 2}, stride={1, 1, 1})

--- nn.LazyInstanceNorm1d(…) → module
-- A nn.InstanceNorm1d whose num_features is found at the first call.
-- Shapes: as nn.InstanceNorm1d
--   local l = nn.LazyInstanceNorm1d()
--   l(T.ones(1, 2, 4))
--   print(l:type(), l.num_features)  --> InstanceNorm1d	2

--- nn.LazyInstanceNorm2d(…) → module
-- A nn.InstanceNorm2d whose num_features is found at the first call.
-- Shapes: as nn.InstanceNorm2d
--   local l = nn.LazyInstanceNorm2d()
--   l(T.ones(1, 2, 4, 4))
--   print(l:type(), l.num_features)  --> InstanceNorm2d	2

--- nn.LazyInstanceNorm3d(…) → module
-- A nn.InstanceNorm3d whose num_features is found at the first call.
-- Shapes: as nn.InstanceNorm3d
--   local l = nn.LazyInstanceNorm3d()
--   l(T.ones(1, 2, 4, 4, 4))
--   print(l:type(), l.num_features)  --> InstanceNorm3d	2

--- nn.LazyLinear(…) → module
-- A nn.Linear whose in_features is found at the first call.
-- Shapes: as nn.Linear
--   local l = nn.LazyLinear(2)
--   l(T.ones(4, 3))
--   print(l)  --> Linear(in_features=3, out_features=2, bias=true)
local function define(Plain, plain, argument, at_input, at_state)
  local name, who = "Lazy" .. plain, "nn.Lazy" .. plain
  local known = options.specs["nn." .. plain]
  local args = {}
  for _, arg in ipairs(known.args) do if arg[1] ~= argument then args[#args + 1] = arg end end
  local spec = options.spec(who, args)
  local C = base.class(name, Plain)

  function C:init(...) rawset(self, "_lazy", options.read(spec, ...)) end

  -- Becomes Plain with n inputs, its parameters on the device of the first.
  local function materialize(self, n, device)
    local a = { [argument] = n }
    for key, v in pairs(self._lazy) do a[key] = v end
    local made = on_device(device, function() return Plain(a) end) -- where these inputs do not fit it stays what it is
    rawset(self, "_lazy", nil)
    base.become(self, Plain)
    for key, value in next, made do
      local own = rawget(self, key)
      if own and (key == "_parameters" or key == "_known" or key == "_buffers" or key == "_kept") then
        for member, v in next, value do own[member] = v end
      elseif key == "_names" then
        table.move(value, 1, #value, #self._names + 1, self._names)
      elseif key ~= "_hooks" and key ~= "training" then
        rawset(self, key, value)
      end
    end
  end
  function C:forward(x, ...)
    if type(x) ~= "userdata" then fail("%s: a tensor is wanted, got %s", name, options.describe(x)) end
    local n = at_input(x)
    if not n then fail("%s: %s has no dimension of channels", name, options.describe(x)) end
    if tracing() then
      require("perilune.jit").settle(materialize, self, n, x:device())
    else
      materialize(self, n, x:device())
    end
    return Plain.forward(self, x, ...)
  end
  -- From the tensors of a state below prefix; false if they are not there.
  function C:materialize(sd, prefix)
    for _, place in ipairs(at_state(self._lazy)) do
      local t = sd[prefix .. place[1]]
      if type(t) == "userdata" and t:dim() >= place[2] then
        local device = t:device() == "cpu" and core.device.default() or t:device()
        materialize(self, t:size(place[2]) * (place[3] or 1), device)
        return true
      end
    end
    return false
  end
  function C:extra_repr() return "not called yet" end
  out[name] = C
end

local linear = require "perilune.nn.linear"
define(linear.Linear, "Linear", "in_features", function(x) return x:dim() > 0 and x:size(-1) end,
  function() return { { "weight", 2 } } end)

local norm = require "perilune.nn.norm"
for nd = 1, 3 do
  -- channels come before nd spatial dimensions, the batch may be missing
  local function channels(x)
    local d = x:dim() - nd
    return (d == 1 or d == 2) and x:size(d) or nil
  end
  define(require("perilune.nn.conv")[("Conv%dd"):format(nd)], ("Conv%dd"):format(nd), "in_channels", channels,
    function(a) return { { "weight", 2, a.groups } } end)
  define(require("perilune.nn.conv_transpose")[("ConvTranspose%dd"):format(nd)], ("ConvTranspose%dd"):format(nd),
    "in_channels", channels, function() return { { "weight", 1 } } end)
  local function second(x) return x:dim() >= 2 and x:size(2) or nil end
  local function own() return { { "weight", 1 }, { "running_mean", 1 } } end
  define(norm[("BatchNorm%dd"):format(nd)], ("BatchNorm%dd"):format(nd), "num_features", second, own)
  define(norm[("InstanceNorm%dd"):format(nd)], ("InstanceNorm%dd"):format(nd), "num_features",
    function(x) return x:dim() == nd + 2 and x:size(2) or x:dim() == nd + 1 and x:size(1) or nil end, own)
end

return out
