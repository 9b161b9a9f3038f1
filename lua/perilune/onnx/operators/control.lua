-- SPDX-License-Identifier: MIT
--- ONNX's control flow, sequences and optional values. Sequences are lists with n; an absent optional value is nil.
-- @module perilune.onnx.operators.control
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op, ints, number = registry.op, registry.ints, registry.number

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

-- The body, over `steps` steps. states: of the first one, n of them; of(k, i): element i of scan input k of m.
-- → states after the last one, the list of each scan output's elements.
local function scan(c, states, n, m, of, steps)
  local outs, scans = #c.a.body.outputs - n, {}
  states = table.move(states, 1, n, 1, {})
  for k = 1, outs do scans[k] = {} end
  for i = 1, steps do
    local given = table.move(states, 1, n, 1, {})
    for k = 1, m do given[n + k] = of(k, i) end
    local out = table.pack(c.run(c.a.body, table.unpack(given, 1, n + m)))
    for k = 1, n do states[k] = out[k] end
    for k = 1, outs do scans[k][i] = out[n + k] end
  end
  return states, scans
end

-- Version 8: sequences (the second dimension) of a batch (the first one), each of its own length; what is behind it in
-- scan outputs is zeros. Their elements stand in the order of the steps.
local function scan_batch(c, lengths, ...)
  local args, m = table.pack(...), c.a.num_scan_inputs or c:fail "num_scan_inputs is missing"
  local n = args.n - m
  if m < 1 or n < 0 then c:fail("%d scan inputs of %d", m, args.n) end
  for k = 1, args.n do
    local x = args[k]
    if x:dim() < (k > n and 2 or 1) or x:size(1) ~= args[n + 1]:size(1)
      or k > n and x:size(2) ~= args[n + 1]:size(2) then
      c:fail "its inputs have other batches or steps than the first scan input"
    end
  end
  local batch, most = args[n + 1]:size(1), args[n + 1]:size(2)
  lengths = ints(c, lengths, "sequence_lens")
  if lengths and #lengths ~= batch then c:fail("%d sequence_lens for a batch of %d", #lengths, batch) end
  if batch == 0 or most == 0 then c:fail "no steps" end
  local all = {}
  for k = 1, #c.a.body.outputs do all[k] = {} end
  for b = 1, batch do
    local steps = lengths and lengths[b] or most
    if steps < 1 or steps > most then c:fail("%d steps of %d", steps, most) end
    local states = {}
    for k = 1, n do states[k] = args[k]:select(1, b) end
    local scans
    states, scans = scan(c, states, n, m, function(k, i)
      local back = c.a.directions and c.a.directions[k] == 1
      if back and steps < most then c:fail "of sequences that are shorter, backwards, is not supported" end
      return args[n + k]:select(1, b):select(1, back and steps - i + 1 or i)
    end, steps)
    for k = 1, n do all[k][b] = states[k] end
    for k, list in ipairs(scans) do
      for i = steps + 1, most do list[i] = T.zeros_like(list[1]) end
      all[n + k][b] = T.stack(list, 1)
    end
  end
  for k, list in ipairs(all) do all[k] = T.stack(list, 1) end
  return table.unpack(all)
end

op("Scan", "body:graph num_scan_inputs:int scan_input_axes:ints scan_input_directions:ints scan_output_axes:ints "
  .. "scan_output_directions:ints directions:ints", function(c, ...)
  if c.opset < 9 then return scan_batch(c, ...) end
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
  local states, scans = scan(c, args, n, m, function(k, i)
    local back = c.a.scan_input_directions and c.a.scan_input_directions[k] == 1
    return args[n + k]:select(axes[k], back and steps - i + 1 or i)
  end, steps)
  for k, list in ipairs(scans) do
    if steps == 0 then c:fail "no steps" end
    if c.a.scan_output_directions and c.a.scan_output_directions[k] == 1 then
      for i = 1, steps // 2 do list[i], list[steps - i + 1] = list[steps - i + 1], list[i] end
    end
    local axis = c.a.scan_output_axes and c.a.scan_output_axes[k] or 0
    states[n + k] = T.stack(list, registry.axis(c, axis, list[1]:dim() + 1))
  end
  return table.unpack(states, 1, n + #scans)
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
