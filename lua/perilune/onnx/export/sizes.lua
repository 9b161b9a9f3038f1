-- SPDX-License-Identifier: MIT
--- Free sizes of what is exported. The function is traced at several sizes; the traces are one but for integers, and
-- each of these is the same in all, or factor · size + offset of a free size: of an input's dimension, or of one of a
-- value that was made before, which its node's own rule gives (behind a convolution with strides, a join). An attribute
-- that is neither is an error when it is used.
-- @module perilune.onnx.export.sizes
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local sizes = {}

-- factor · symbol + offset; its value is that of the first trace. A symbol: name; what it is, for messages; said, the
-- inputs' sizes that it depends on; vector, its value in each trace; places, { value =, dim = } or, of an input,
-- { input =, dim = }, where a size is it.
local Free = { __name = "free size" }
Free.__index = Free

function sizes.is_free(v) return getmetatable(v) == Free end
function sizes.free(symbol, factor, offset, value)
  return setmetatable({ symbol = symbol, factor = factor, offset = offset, value = value }, Free)
end

-- Whether two captured tensors are one, or have the same elements; NaN is NaN.
local function same_tensor(a, b)
  if a == b then return true end
  if a:dtype() ~= b:dtype() or #a:shape() ~= #b:shape() then return false end
  for d, n in ipairs(a:shape()) do if b:size(d) ~= n then return false end end
  b = b:to(a:device())
  return a:equal(b) or a:eq(b):logical_or(a:ne(a):logical_and(b:ne(b))):all():item()
end

-- The traces must be one function. name: the size that `second` has otherwise.
local function same_function(who, first, second, name)
  local n = #first.nodes
  if n ~= #second.nodes then
    fail("%s: the function does something else for another size of '%s' (%d nodes, %d)", who, name, n, #second.nodes)
  end
  for value, leaf in pairs(first.leaves) do
    local other = second.leaves[value]
    if not other or other.kind ~= leaf.kind or (leaf.kind == "number" and leaf.number ~= other.number
      and leaf.number == leaf.number) then
      fail("%s: a number in the function depends on the size '%s'", who, name)
    end
    if leaf.tensor and not same_tensor(leaf.tensor, other.tensor) then
      fail("%s: a tensor that the function makes or captures, %s, depends on the size '%s'", who, describe(leaf.tensor),
        name)
    end
  end
  for i, node in ipairs(first.nodes) do
    local other = second.nodes[i]
    if node.op ~= other.op or #node.inputs ~= #other.inputs then
      fail("%s: the function does something else for another size of '%s', at node %s", who, name, node.name)
    end
    for key, v in pairs(node.attrs) do
      if type(v) == "table" and #v ~= #other.attrs[key] then
        fail("%s: %s of node %s changes its length with '%s'", who, key, node.name, name)
      end
    end
  end
end

local function formula(symbol, vector)
  local factor
  for t, v in ipairs(vector) do
    local step = symbol.vector[t] - symbol.vector[1]
    if step ~= 0 and not factor then
      if (v - vector[1]) % step ~= 0 then return nil end
      factor = (v - vector[1]) // step
    elseif step == 0 and v ~= vector[1] or step ~= 0 and v - vector[1] ~= factor * step then
      return nil
    end
  end
  if not factor or factor == 0 then return nil end
  return sizes.free(symbol, factor, vector[1] - factor * symbol.vector[1], vector[1])
end

--- Puts free sizes into the nodes of the first of the traces. symbols: those of the inputs; names[t]: the size that
--- trace t has otherwise.
function sizes.find(who, symbols, traces, names)
  local first, known = traces[1], table.move(symbols, 1, #symbols, 1, {})
  for t = 2, #traces do same_function(who, first, traces[t], names[t]) end
  -- The number that get takes from a trace; place: of whose size it is.
  local function number(get, what, place)
    local vector, same, whole, told, said = {}, true, true, {}, {}
    for t, trace in ipairs(traces) do
      local v = get(trace)
      vector[t] = v
      whole = whole and math.type(v) == "integer"
      if v ~= vector[1] and (v == v or vector[1] == vector[1]) then
        same = false
        if not told[names[t]] then told[names[t]], said[#said + 1] = true, names[t] end
      end
    end
    if same then return vector[1] end
    table.sort(said)
    said = table.concat(said, "', '")
    if not whole then fail("%s: %s depends on '%s' in a way that ONNX cannot follow", who, what, said) end
    for _, symbol in ipairs(known) do
      local free = formula(symbol, vector)
      if free then
        if place and free.factor == 1 and free.offset == 0 then symbol.places[#symbol.places + 1] = place end
        return free
      end
    end
    local own = { name = place and place.name or what, what = what, said = said, vector = vector, places = { place } }
    if place then known[#known + 1] = own end
    return sizes.free(own, 1, 0, vector[1])
  end
  for i, node in ipairs(first.nodes) do
    for key, v in pairs(node.attrs) do
      local what = ("%s of node %s"):format(key, node.name)
      if type(v) == "table" then
        local list = {}
        for k = 1, #v do list[k] = number(function(t) return t.old[i].attrs[key][k] end, what) end
        node.attrs[key] = list
      else
        node.attrs[key] = number(function(t) return t.old[i].attrs[key] end, what)
      end
    end
    for k, shape in ipairs(node.shapes) do
      for d = 1, #shape do
        shape[d] = number(function(t) return t.old[i].shapes[k][d] end, ("a size of node %s"):format(node.name),
          { value = node.outputs[k], dim = d, name = ("%s_%d"):format(node.name, d) })
      end
    end
  end
end

-- Where a size can be read: a value that is there.
local function place_of(e, symbol)
  for _, place in ipairs(symbol.places) do
    local v = place.value and e.values[place.value]
    if place.input then return place.input, place.dim end
    if v and v.name and not v.last then return v.name, place.dim end
  end
end

function sizes.is_known(e, v) return not sizes.is_free(v) or v.symbol.dim ~= nil or place_of(e, v.symbol) ~= nil end

--- A free size as an i64 [1].
function sizes.emit(e, v)
  local s = v.symbol
  if not s.dim then
    local name, dim = place_of(e, s)
    if not name then fail("%s: %s depends on '%s' in a way that ONNX cannot follow", e.who, s.what, s.said) end
    s.dim = e:emit("Shape", { name }, { start = dim - 1, ["end"] = dim })
  end
  local out = s.dim
  if v.factor ~= 1 then out = e:emit("Mul", { out, e:integers { v.factor } }) end
  if v.offset ~= 0 then out = e:emit("Add", { out, e:integers { v.offset } }) end
  return out
end

return sizes
