-- SPDX-License-Identifier: MIT
--- What all operators of ONNX share: their table, how they read axes, sizes and numbers.
-- @module perilune.onnx.operators.registry
local T = require "perilune"
local options = require "perilune.options"
local sizes = require "perilune.graph.sizes"

local registry = {}

--- Name → { f =, attributes = {name = kind}, constants = {positions}, random = bool }.
-- f(c, inputs…) → outputs…; a missing optional input is nil. c.a: attributes by name; c.opset: the version that the
-- model asks for; c.outputs: how many are wanted; c.fixed[i]: input i is the model's own and no call gives another;
-- c:fail(fmt, …). constants: inputs that are never trained.
registry.ops = {}
--- The same for other domains: registry.domains["com.microsoft"]; their entries have arity = {as in arity.lua}.
registry.domains = { [""] = registry.ops }

--- Defines an operator. attributes: "axis:int alpha:float"; kinds are those of schema.attribute_kinds.
function registry.op(names, attributes, f, extra)
  local domain, known = extra and extra.domain or "", {}
  registry.domains[domain] = registry.domains[domain] or {}
  for name, kind in attributes:gmatch "([%w_]+):(%w+)" do known[name] = kind end
  local constants = {}
  for _, k in ipairs(extra and extra.constants or {}) do constants[k] = true end
  for name in names:gmatch "%w+" do
    registry.domains[domain][name] = { f = f, attributes = known, constants = constants,
      random = extra and extra.random, inputs = extra and extra.inputs, arity = extra and extra.arity }
  end
end

--- The same behaviour without attributes: f(inputs…).
function registry.plain(names, f) registry.op(names, "", function(_, ...) return f(...) end) end

--- An axis from 0, or from the end if negative → from 1.
function registry.axis(c, axis, rank)
  local d = axis < 0 and axis + rank or axis
  if d < 0 or d >= rank then c:fail("axis %d of a tensor of %d dimensions", axis, rank) end
  return d + 1
end

function registry.axes(c, list, rank)
  local out, seen = {}, {}
  for i, axis in ipairs(list) do
    out[i] = registry.axis(c, axis, rank)
    if seen[out[i]] then c:fail("axis %d twice", axis) end
    seen[out[i]] = true
  end
  return out
end

--- The integers of a 0-d or 1-d input as a list. While a function is traced they must not depend on its inputs.
function registry.ints(c, x, what)
  if x == nil then return nil end
  if type(x) ~= "userdata" then c:fail("%s must be a tensor", what) end
  if T.core.is_symbolic(x) then
    options.untraceable("onnx: %s '%s': %s depends on values of the inputs, which a traced function has not; run the "
      .. "model as it is", c.node.op_type, c.node.name or "", what)
  end
  if x:dim() > 1 then c:fail("%s must have one dimension, not %d", what, x:dim()) end
  local list = T.core.jit_untraced(function() return x:detach():to("cpu"):reshape(-1):totable() end)
  for i, v in ipairs(list) do
    list[i] = math.tointeger(v) or c:fail("%s has %s, integers are wanted", what, tostring(v))
  end
  return list
end

--- One number of a tensor with one element.
function registry.number(c, x, what)
  if x == nil then return nil end
  if T.core.is_symbolic(x) then
    options.untraceable("onnx: %s '%s': %s depends on values of the inputs, which a traced function has not; run the "
      .. "model as it is", c.node.op_type, c.node.name or "", what)
  end
  if x:numel() ~= 1 then c:fail("%s must have one element, not %d", what, x:numel()) end
  return T.core.jit_untraced(function() return x:detach():to("cpu"):reshape(-1)[1]:item() end)
end

--- With a seed a node draws the same numbers each time, from a generator of its own; else from the default one.
function registry.generator(c) return c.a.seed and T.Generator(math.floor(c.a.seed)) or nil end

--- A list as a tensor of integers; it belongs to no trace.
function registry.tensor(list, dtype, device, shape)
  return T.core.jit_untraced(function()
    local t = #list == 0 and T.zeros({ 0 }, { dtype = dtype }) or T.tensor(list, { dtype = dtype })
    if shape then t = t:view(shape) end
    return device and device ~= "cpu" and t:to(device) or t
  end)
end

--- 0 … n - 1, which belongs to no trace, unless n may be another one (perilune.graph.sizes).
function registry.count(n, device)
  if sizes.tracing and T.core.jit_tracing() then return (T.arange(n) - 1):to(device) end
  return T.core.jit_untraced(function() return (T.arange(n) - 1):to(device) end)
end

--- The other tensor where x is: constants of a model stay on the CPU when the model moves.
function registry.beside(x, other)
  if other ~= nil and other:device() ~= x:device() then return other:to(x:device()) end
  return other
end

function registry.is_float(x)
  local d = x:dtype()
  return d == "f32" or d == "f64" or d == "f16" or d == "bf16"
end

return registry
