-- SPDX-License-Identifier: MIT
-- Small ONNX files for specs: graphs from Lua tables. M.model{ nodes, inputs, outputs, initializers, opset } → bytes.

local proto = require "perilune.log.proto"
local M = {}

local KINDS = { f32 = 1, u8 = 2, i8 = 3, i16 = 5, i32 = 6, i64 = 7, bool = 9, f16 = 10, f64 = 11,
  u16 = 4, u32 = 12, u64 = 13, float8e4m3fn = 17, float8e4m3fnuz = 18, float8e5m2 = 19, float8e5m2fnuz = 20, uint4 = 21,
  int4 = 22, float4e2m1 = 23, float8e8m0 = 24, uint2 = 25, int2 = 26 }
M.KINDS = KINDS

-- t: a tensor, or { kind, sizes, bytes }.
function M.tensor(name, t)
  local parts = {}
  if type(t) == "table" then
    for _, n in ipairs(t[2]) do parts[#parts + 1] = proto.int(1, n) end
    return table.concat(parts) .. proto.int(2, KINDS[t[1]]) .. proto.bytes(8, name) .. proto.bytes(9, t[3])
  end
  for _, n in ipairs(t:shape()) do parts[#parts + 1] = proto.int(1, n) end
  parts[#parts + 1] = proto.int(2, KINDS[t:dtype()])
  parts[#parts + 1] = proto.bytes(8, name)
  parts[#parts + 1] = proto.bytes(9, t:detach():contiguous():to_string())
  return table.concat(parts)
end

local function attribute(name, v)
  local parts = { proto.bytes(1, name) }
  local function add(kind, ...)
    for _, s in ipairs { ... } do parts[#parts + 1] = s end
    parts[#parts + 1] = proto.int(20, kind)
  end
  if math.type(v) == "integer" then add(2, proto.int(3, v))
  elseif type(v) == "number" then add(1, proto.float(2, v))
  elseif type(v) == "string" then add(3, proto.bytes(4, v))
  elseif type(v) == "userdata" then add(4, proto.bytes(5, M.tensor("", v)))
  elseif v.nodes then add(5, proto.bytes(6, M.graph(v)))
  elseif math.type(v[1]) == "float" then
    for _, x in ipairs(v) do parts[#parts + 1] = proto.float(7, x) end
    add(6)
  else
    for _, x in ipairs(v) do parts[#parts + 1] = proto.int(8, x) end
    add(7)
  end
  return table.concat(parts)
end

-- { "Op", { inputs }, { outputs }, { attribute = value }, domain = }
local function node(n)
  local parts = {}
  for _, name in ipairs(n[2]) do parts[#parts + 1] = proto.bytes(1, name) end
  for _, name in ipairs(n[3]) do parts[#parts + 1] = proto.bytes(2, name) end
  parts[#parts + 1] = proto.bytes(4, n[1])
  for name, v in pairs(n[4] or {}) do parts[#parts + 1] = proto.bytes(5, attribute(name, v)) end
  if n.domain then parts[#parts + 1] = proto.bytes(7, n.domain) end
  return table.concat(parts)
end

-- { "name", "f32", { 2, "n" } }: a size that is text is free
local function value(v)
  local dims = {}
  for _, n in ipairs(v[3] or {}) do
    dims[#dims + 1] = proto.bytes(1, type(n) == "string" and proto.bytes(2, n) or proto.int(1, n))
  end
  local kind = proto.int(1, KINDS[v[2] or "f32"]) .. (v[3] and proto.bytes(2, table.concat(dims)) or "")
  return proto.bytes(1, v[1]) .. proto.bytes(2, proto.bytes(1, kind))
end

function M.graph(g)
  local parts = {}
  for _, n in ipairs(g.nodes) do parts[#parts + 1] = proto.bytes(1, node(n)) end
  parts[#parts + 1] = proto.bytes(2, g.name or "g")
  for _, name in ipairs(g.names or {}) do
    parts[#parts + 1] = proto.bytes(5, M.tensor(name, g.initializers[name]))
  end
  for _, v in ipairs(g.inputs or {}) do parts[#parts + 1] = proto.bytes(11, value(v)) end
  for _, v in ipairs(g.outputs) do parts[#parts + 1] = proto.bytes(12, value(v)) end
  return table.concat(parts)
end

function M.model(g)
  local names = {}
  for name in pairs(g.initializers or {}) do names[#names + 1] = name end
  table.sort(names)
  g.names = names
  local opsets = proto.bytes(8, proto.bytes(1, "") .. proto.int(2, g.opset or 17))
  if g.domain then opsets = opsets .. proto.bytes(8, proto.bytes(1, g.domain) .. proto.int(2, 1)) end
  return proto.int(1, 8) .. proto.bytes(7, M.graph(g)) .. opsets .. (g.more or "")
end

-- A model of one node with these inputs; those that are false are left out.
function M.single(op, inputs, outputs, attributes, opset, domain)
  local names, values, outs = {}, {}, {}
  for i, t in ipairs(inputs) do
    names[i] = t and "x" .. i or ""
    if t then values[#values + 1] = { names[i], t:dtype() } end
  end
  for i = 1, outputs do outs[i] = { "y" .. i, false } end
  local made = {}
  for i, o in ipairs(outs) do made[i] = o[1] end
  return M.model { nodes = { { op, names, made, attributes, domain = domain } }, domain = domain, inputs = values,
    outputs = (function()
      for _, o in ipairs(outs) do o[2] = "f32" end
      return outs
    end)(), opset = opset }
end

return M
