-- SPDX-License-Identifier: MIT
-- perilune run spec/support/huge.lua -- GIB CASE...: tensors past 2^31 elements, for spec/lanes/huge_spec.lua.
-- A case is "op NAME", one of the registry, computed for so many copies of its row (spec/ops/cases/) that its largest
-- tensor passes 2^31 elements, or a name of spec/support/huge_cases.lua. Prints a line for each: what it was, fine,
-- refused (an error of perilune's, with its text) or wrong, and seconds.

-- luacheck: ignore 311 (a tensor is let go before the next one is made)

local T = require "perilune"
local support = require "spec.ops.support"
local named = require "spec.support.huge_cases"

local M = {}

local PAST = 1 << 31
local TAIL = 64 -- the last copies, all of them past 2^31 elements, have other values

local function is_floating(t) return type(t) == "userdata" and t:is_floating_point() end

-- args with floating tensors in `dtype`, as function of a list of them.
local function spread(info, args, dtype)
  local f, flat = support.spread(support.func(info.name), args)
  local k -- which of them is repeated
  for i, t in ipairs(flat) do
    if is_floating(t) then
      flat[i] = t:to(dtype)
      if not k and t:numel() > 0 then k = i end
    end
  end
  return function(...)
    local got = table.pack(f(...))
    if type(got[1]) == "table" then got = got[1] end
    local list = {}
    for i = 1, got.n or #got do if type(got[i]) == "userdata" then list[#list + 1] = got[i] end end
    return list
  end, flat, k
end

-- Is every row of y, of y's rows from .. to, near want?
local function rows_are(what, y, want)
  local lo, hi
  if y:dtype() == "bool" then lo, hi = y:all(1), y:any(1)
  else lo, hi = y:amin(1), y:amax(1) end
  for _, got in ipairs { lo, hi } do
    local a, b = got:double(), want:double()
    local tol = want:is_floating_point() and 0.02 or 0
    local same = (a - b):abs():le(b:abs() * tol + tol / 4)
    same = same:logical_or(a:eq(b)):logical_or(a:isnan():logical_and(b:isnan()))
    if not same:all():item() then
      error(("wrong: %s: %s, not %s"):format(what, table.concat(got:reshape(-1):tolist(), " "):sub(1, 200),
        table.concat(want:reshape(-1):tolist(), " "):sub(1, 200)), 0)
    end
  end
end

-- One call of the op with one tensor in so many copies. materialized: they are in memory; else one that is repeated.
local function copies(info, args, dtype, materialized)
  local f, flat, k = spread(info, args, dtype)
  if not k then return "no floating tensor" end
  local a = flat[k]
  local b = not materialized and a or dtype == "i8" and a + 1 or a * 0.9
  local function with(t, g)
    local now = { table.unpack(flat) }
    now[k] = t
    return g(table.unpack(now))
  end
  local want_a, want_b = with(a, f), with(b, f)
  local per = a:numel()
  for i, y in ipairs(want_a) do
    per = math.max(per, y:numel())
    local shape = table.concat(y:shape(), ",")
    if shape ~= table.concat(want_b[i]:shape(), ",") then return "its shape depends on values" end
  end
  if per == 0 then return "empty" end
  local dims = {}
  for i = 1, #flat do dims[i] = i == k and 1 or false end
  local mapped = T.vmap(f, { in_dims = dims })
  -- one element after the other would take for ever: seen in a few copies
  local clock = os.clock()
  with(a:unsqueeze(1):expand(64, table.unpack(a:shape())), mapped)
  clock = os.clock()
  with(a:unsqueeze(1):expand(64, table.unpack(a:shape())), mapped)
  local few = os.clock() - clock
  clock = os.clock()
  with(a:unsqueeze(1):expand(4096, table.unpack(a:shape())), mapped)
  local many = os.clock() - clock
  if many > 20 * few and many * (PAST / per / 4096) > 60 then return "slow" end
  local R = PAST // per + 1 + TAIL
  local x
  if materialized then
    x = T.empty({ R, table.unpack(a:shape()) }, { dtype = dtype })
    x:copy_(a)
    x:narrow(1, R - TAIL + 1, TAIL):copy_(b)
  else
    x = a:unsqueeze(1):expand(R, table.unpack(a:shape()))
  end
  local got = with(x, mapped)
  x = nil
  for i, y in ipairs(got) do
    if y:size(1) ~= R then error(("wrong: result %d has size %d"):format(i, y:size(1)), 0) end
    rows_are("the copies", y:narrow(1, 1, R - TAIL), want_a[i])
    rows_are("the last copies", y:narrow(1, R - TAIL + 1, TAIL), want_b[i])
  end
  return "fine"
end

local gib = tonumber(arg[1])

local function of_op(name)
  local info
  for _, i in ipairs(T.core.ops()) do if i.name == name then info = i end end
  local args = support.arguments(name)[1]
  local said
  local ways = { { "f16", true }, { "f32", false }, { "f16", false }, { "i8", true }, { "i8", false } }
  if gib < 9 then ways = { ways[4], ways[5], ways[3] } end -- half the memory, and fewer ops that take them
  for _, way in ipairs(ways) do
    local ok, got = pcall(copies, info, args, way[1], way[2])
    collectgarbage() collectgarbage()
    T.empty_cache()
    if ok and got ~= "slow" then return ("%s, %s%s"):format(got, way[1], way[2] and "" or ", input expanded") end
    if not ok and tostring(got):find("^wrong") then error(got, 0) end
    said = said or ok and got or "refused: " .. tostring(got):match "[^\n]*"
  end
  return said
end

T.set_memory_budget(math.floor(gib * (1 << 30)))
for i = 2, #arg do
  local name = arg[i]
  local start = os.time()
  io.write(name, "\t")
  io.flush()
  T.manual_seed(1)
  local op = name:match "^op (.*)"
  local ok, got = pcall(op and of_op or named[name], op)
  got = ok and (got or "fine") or tostring(got):match "[^\n]*"
  if not ok and got:find("out of memory", 1, true) then got = "refused: " .. got
  elseif not ok then got = "wrong: " .. got:gsub("wrong: ", "") end
  io.write(got, "\t", os.time() - start, "\n")
  io.flush()
  collectgarbage() collectgarbage()
  T.empty_cache()
end
return M
