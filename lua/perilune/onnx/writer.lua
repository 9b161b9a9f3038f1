-- SPDX-License-Identifier: MIT
--- ONNX messages as bytes: what schema.lua reads, written.
-- @module perilune.onnx.writer
local core = require "perilune.core"
local proto = require "perilune.log.proto"

local writer = {}

--- dtype → number of the element type.
writer.kinds = { f32 = 1, u8 = 2, i8 = 3, i16 = 5, i32 = 6, i64 = 7, bool = 9, f16 = 10, f64 = 11, bf16 = 16 }

local int, bytes, concat = proto.int, proto.bytes, table.concat

--- A TensorProto of t's elements.
function writer.tensor(name, t)
  local parts = {}
  for _, n in ipairs(t:shape()) do parts[#parts + 1] = int(1, n) end
  parts[#parts + 1] = int(2, writer.kinds[t:dtype()])
  parts[#parts + 1] = bytes(8, name)
  parts[#parts + 1] = bytes(9, t:detach():to("cpu"):contiguous():to_string())
  return concat(parts)
end

-- Integers, floats, text, tensors, graphs, { graph = a message }, and lists of integers, floats or text.
local function attribute(name, v)
  local parts, kind = { bytes(1, name) }
  local function add(s) parts[#parts + 1] = s end
  if math.type(v) == "integer" then
    kind = 2
    add(int(3, v))
  elseif type(v) == "number" then
    kind = 1
    add(proto.float(2, v))
  elseif type(v) == "string" then
    kind = 3
    add(bytes(4, v))
  elseif core.is_tensor(v) then
    kind = 4
    add(bytes(5, writer.tensor("", v)))
  elseif v.graph then
    kind = 5
    add(bytes(6, v.graph))
  elseif type(v[1]) == "string" then
    kind = 8
    for _, x in ipairs(v) do add(bytes(9, x)) end
  elseif math.type(v[1]) == "float" then
    kind = 6
    for _, x in ipairs(v) do add(proto.float(7, x)) end
  else
    kind = 7
    for _, x in ipairs(v) do add(int(8, x)) end
  end
  add(int(20, kind))
  return concat(parts)
end

local function sorted(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys)
  return keys
end

--- A NodeProto: op, names of inputs ("" where one is left out) and outputs, attributes by name.
function writer.node(name, op, inputs, outputs, attributes)
  local parts = {}
  for _, x in ipairs(inputs) do parts[#parts + 1] = bytes(1, x) end
  for _, x in ipairs(outputs) do parts[#parts + 1] = bytes(2, x) end
  parts[#parts + 1] = bytes(3, name)
  parts[#parts + 1] = bytes(4, op)
  for _, key in ipairs(sorted(attributes)) do parts[#parts + 1] = bytes(5, attribute(key, attributes[key])) end
  return concat(parts)
end

--- A ValueInfoProto; sizes that are text are free and share their name's size.
function writer.value(name, dtype, shape)
  local dims = {}
  for d, n in ipairs(shape) do
    dims[d] = bytes(1, type(n) == "string" and bytes(2, n) or int(1, n))
  end
  local kind = int(1, writer.kinds[dtype]) .. bytes(2, concat(dims))
  return bytes(1, name) .. bytes(2, bytes(1, kind))
end

--- A GraphProto: lists of messages.
function writer.graph(g)
  local parts = {}
  local function all(field, list) for _, s in ipairs(list) do parts[#parts + 1] = bytes(field, s) end end
  all(1, g.nodes)
  parts[#parts + 1] = bytes(2, g.name)
  all(5, g.initializers)
  all(11, g.inputs)
  all(12, g.outputs)
  return concat(parts)
end

--- The file: a graph, and the opset.
function writer.model(g)
  return int(1, g.ir_version) .. bytes(2, "perilune") .. bytes(3, g.version) .. bytes(7, writer.graph(g))
    .. bytes(8, bytes(1, "") .. int(2, g.opset))
end

return writer
