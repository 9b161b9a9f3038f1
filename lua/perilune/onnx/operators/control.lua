-- SPDX-License-Identifier: MIT
--- ONNX's control flow, sequences and optional values. Sequences are lists with n; an absent optional value is nil.
-- @module perilune.onnx.operators.control
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op, number = registry.op, registry.number

local function truth(c, x, what)
  local v = number(c, x, what)
  return v == true or (type(v) == "number" and v ~= 0)
end

op("If", "then_branch:graph else_branch:graph", function(c, condition)
  local branch = truth(c, condition, "the condition") and c.a.then_branch or c.a.else_branch
  return c.run(branch)
end)

op("Loop", "body:graph", function(c, most, go, ...)
  local limit = most and number(c, most, "the trip count") or math.huge
  local on = go == nil or truth(c, go, "the condition")
  local n = select("#", ...)
  local carried, scans, count = table.pack(...), {}, c.outputs - n
  local made = #c.a.body.outputs - 1 - n
  for k = 1, made do scans[k] = {} end
  local i = 0
  while on and i < limit do
    local out = table.pack(c.run(c.a.body, registry.tensor({ i }, "i64", nil, {}),
      registry.tensor({ true }, "bool", nil, {}), table.unpack(carried, 1, n)))
    on = out[1] == nil or truth(c, out[1], "the condition of the body")
    for k = 1, n do carried[k] = out[k + 1] end
    for k = 1, made do scans[k][i + 1] = out[1 + n + k] end
    i = i + 1
  end
  for k = 1, math.max(count, 0) do
    if i > 0 then
      carried[n + k] = T.stack(scans[k], 1)
    else -- the element's shape is what the body declares
      local value = c.a.body.output_types[1 + n + k] or {}
      local shape = { 0 }
      for d, size in ipairs(value.shape or {}) do shape[d + 1] = size or 0 end
      carried[n + k] = T.zeros(shape, { dtype = value.dtype or "f32" })
    end
  end
  return table.unpack(carried, 1, n + math.max(count, 0))
end)

op("Scan", "body:graph num_scan_inputs:int scan_input_axes:ints scan_input_directions:ints scan_output_axes:ints "
  .. "scan_output_directions:ints directions:ints", function(c, ...)
  if c.opset < 9 then c:fail "Scan before version 9 is not supported" end
  local args = table.pack(...)
  local m = c.a.num_scan_inputs or c:fail "num_scan_inputs is missing"
  local n = args.n - m
  local steps, axes = nil, {}
  for k = 1, m do
    local x = args[n + k]
    axes[k] = registry.axis(c, c.a.scan_input_axes and c.a.scan_input_axes[k] or 0, x:dim())
    if steps and x:size(axes[k]) ~= steps then c:fail("%d and %d steps", steps, x:size(axes[k])) end
    steps = x:size(axes[k])
  end
  if m < 1 or n < 0 then c:fail("%d scan inputs of %d", m, args.n) end
  local outs = #c.a.body.outputs - n
  local states, scans = table.move(args, 1, n, 1, {}), {}
  for k = 1, outs do scans[k] = {} end
  for i = 1, steps do
    local given = table.move(states, 1, n, 1, {})
    for k = 1, m do
      local back = c.a.scan_input_directions and c.a.scan_input_directions[k] == 1
      given[n + k] = args[n + k]:select(axes[k], back and steps - i + 1 or i)
    end
    local out = table.pack(c.run(c.a.body, table.unpack(given, 1, n + m)))
    for k = 1, n do states[k] = out[k] end
    for k = 1, outs do
      local back = c.a.scan_output_directions and c.a.scan_output_directions[k] == 1
      scans[k][back and steps - i + 1 or i] = out[n + k]
    end
  end
  for k = 1, outs do
    if steps == 0 then c:fail "no steps" end
    local axis = c.a.scan_output_axes and c.a.scan_output_axes[k] or 0
    states[n + k] = T.stack(scans[k], registry.axis(c, axis, scans[k][1]:dim() + 1))
  end
  return table.unpack(states, 1, n + outs)
end)

-- ---- sequences -----------------------------------------------------------------------------------------------------

local function sequence(list)
  list.n = list.n or #list
  return list
end
local function check(c, s)
  if type(s) ~= "table" then c:fail "a sequence is wanted" end
  return s
end
-- last: the greatest position; those from the end count back from the sequence's own number of elements.
local function position(c, s, at, last, default)
  local k = at and number(c, at, "the position") or default
  if k < 0 then k = k + s.n end
  if k < 0 or k > last then c:fail("position %d of a sequence of %d", k, s.n) end
  return k + 1
end

op("SequenceConstruct", "", function(_, ...) return sequence(table.pack(...)) end)
op("SequenceEmpty", "dtype:int", function() return sequence {} end)
op("SequenceLength", "", function(c, s) return registry.tensor({ check(c, s).n }, "i64", nil, {}) end)
op("SequenceAt", "", function(c, s, at) return check(c, s)[position(c, s, at, s.n - 1)] end)
op("SequenceInsert", "", function(c, s, x, at)
  local list = table.move(check(c, s), 1, s.n, 1, {})
  table.insert(list, position(c, s, at, s.n, s.n), x)
  return sequence(list)
end)
op("SequenceErase", "", function(c, s, at)
  local list = table.move(check(c, s), 1, s.n, 1, {})
  table.remove(list, position(c, s, at, s.n - 1, -1))
  return sequence(list)
end)
op("ConcatFromSequence", "axis:int new_axis:int", function(c, s)
  local list = table.move(check(c, s), 1, s.n, 1, {})
  if #list == 0 then c:fail "an empty sequence" end
  local axis = c.a.axis or c:fail "axis is missing"
  if c.a.new_axis == 1 then return T.stack(list, registry.axis(c, axis, list[1]:dim() + 1)) end
  return T.cat(list, registry.axis(c, axis, list[1]:dim()))
end)
op("SplitToSequence", "axis:int keepdims:int", function(c, x, split)
  local dim, list, at = registry.axis(c, c.a.axis or 0, x:dim()), {}, 1
  local n, sizes = x:size(dim), {}
  if not split then
    for i = 1, n do sizes[i] = 1 end
  elseif split:dim() == 0 then
    local each = number(c, split, "split")
    if each < 1 then c:fail("parts of %d", each) end
    for first = 1, n, each do sizes[#sizes + 1] = math.min(each, n - first + 1) end
  else
    sizes = registry.ints(c, split, "split")
  end
  for i, size in ipairs(sizes) do
    if size < 0 or at + size - 1 > n then c:fail("parts [%s] of %d elements", table.concat(sizes, ","), n) end
    list[i] = x:narrow(dim, at, size)
    if not split and c.a.keepdims == 0 then list[i] = list[i]:squeeze(dim) end
    at = at + size
  end
  if at ~= n + 1 then c:fail("parts [%s] of %d elements", table.concat(sizes, ","), n) end
  return sequence(list)
end)
op("SequenceMap", "body:graph", function(c, s, ...)
  local more, results = table.pack(...), {}
  for k = 1, c.outputs do results[k] = { n = check(c, s).n } end
  for i = 1, s.n do
    local given = { s[i] }
    for k = 1, more.n do given[k + 1] = type(more[k]) == "table" and more[k][i] or more[k] end
    local out = table.pack(c.run(c.a.body, table.unpack(given, 1, more.n + 1)))
    for k = 1, c.outputs do results[k][i] = out[k] end
  end
  return table.unpack(results)
end)

-- ---- optional values -----------------------------------------------------------------------------------------------

op("Optional", "type:type", function(_, x) return x end)
op("OptionalHasElement", "", function(_, x) return registry.tensor({ x ~= nil }, "bool", nil, {}) end)
op("OptionalGetElement", "", function(c, x)
  if x == nil then c:fail "the optional value is absent" end
  return x
end)
