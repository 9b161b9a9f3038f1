-- SPDX-License-Identifier: MIT
-- What every op's shape rule answers, beside what it answered when last looked at (spec/fixtures/shape_rules.lua).
-- From each call of an op's row follow some hundred others, each with one thing changed: a tensor's size, rank or
-- dtype, a missing input, a number in an option. An outcome is the dtypes and shapes of the results, or that it is an
-- error; the words of errors belong to other specs. So a limit that moved by one, a check that went and a size that
-- changed all fail here.
--   PERILUNE_SHAPE_RULES=print  prints all outcomes, for a diff of before and after
--   PERILUNE_SHAPE_RULES=write  writes the fixture: after a change that is meant, or for a new op

local T = require "perilune"
local support = require "spec.ops.support"
local root = os.getenv "PERILUNE_ROOT" or "."
local path = root .. "/spec/fixtures/shape_rules.lua"
local mode = os.getenv "PERILUNE_SHAPE_RULES"

local function described(t)
  if type(t) ~= "userdata" then return math.type(t) or type(t) end
  return t:dtype() .. "[" .. table.concat(t:shape(), ",") .. "]"
end

-- Ones: they are valid as indices, as sizes and in most domains.
local function like(t, shape, dtype) return T.ones(shape or t:shape(), { dtype = dtype or t:dtype() }) end

-- What can stand in a tensor's place.
local function others(t, add)
  local shape, n = t:shape(), #t:shape()
  local function with(k, size)
    local s = table.move(shape, 1, n, 1, {})
    s[k] = size
    return s
  end
  for k = 1, n do
    for _, size in ipairs { shape[k] + 1, shape[k] + 2, shape[k] - 1, 0, 1, 2 * shape[k] } do
      if size >= 0 and size ~= shape[k] then add(like(t, with(k, size))) end
    end
    local less = table.move(shape, 1, n, 1, {})
    table.remove(less, k)
    add(like(t, less))
  end
  for k = 1, n - 1 do -- two sizes in each other's place
    local s = with(k, shape[k + 1])
    s[k + 1] = shape[k]
    add(like(t, s))
  end
  local last = with(n + 1, 3)
  add(like(t, last))
  add(like(t, { 2, table.unpack(shape) }))
  add(like(t, { 1, 1, table.unpack(shape) }))
  add(like(t, {}))
  add(like(t, { 5 }))
  add(like(t, { 3, 3 }))
  add(like(t, { 1, 1, 1, 1, 1, 1, 1, 1 }))
  for _, dtype in ipairs { "f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool" } do
    if dtype ~= t:dtype() then add(like(t, nil, dtype)) end
  end
end

local NUMBERS = { -100, -9, -3, -2, -1, 0, 1, 2, 3, 4, 7, 8, 9, 100, 101, -0.5, 0.5, 0.999, 1.5, 1e-3, 0 / 0,
  math.huge, -math.huge }
local WHOLE = { -100, -9, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 64, 99, 100, 101 }
local LISTS = { {}, { 1 }, { 2 }, { -1 }, { 0 }, { 1, 2 }, { 2, 1 }, { 1, 1 }, { 2, 2 }, { 3, 3 }, { 2, 3 }, { 0, 1 },
  { -2, -1 }, { 1, 2, 3 },
  { 3, 1, 2 }, { 2, 2, 2 }, { 1, 2, 3, 4 }, { 1, 1, 1, 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1, 1, 1, 1, 1 } }
local VALUES = {
  dim = WHOLE, newdim = WHOLE, int = WHOLE, index = WHOLE, float = NUMBERS, scalar = NUMBERS, bool = { true, false },
  dims = LISTS, ints = LISTS, shape = LISTS, dtype = { "f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool" },
}

-- What can stand in the place of a value that is no tensor.
local function values(v, add)
  if type(v) == "number" then
    for _, x in ipairs(NUMBERS) do add(x) end
    for d = -2, 2 do add(v + d) end
  elseif type(v) == "boolean" then
    add(not v)
  elseif type(v) == "table" and #v > 0 and type(v[1]) == "number" then
    for _, x in ipairs(LISTS) do add(x) end
    for k = 1, #v do
      for d = -2, 2 do
        local c = table.move(v, 1, #v, 1, {})
        c[k] = c[k] + d
        add(c)
      end
    end
    add { table.unpack(v, 2) }
    add { 1, table.unpack(v) }
  elseif type(v) == "table" and #v > 0 and type(v[1]) == "userdata" then
    for k, t in ipairs(v) do
      local c = table.move(v, 1, #v, 1, {})
      others(t, function(x)
        c[k] = x
        add(table.move(c, 1, #c, 1, {}))
      end)
    end
    add { table.unpack(v, 2) }
    add { v[1], table.unpack(v) }
  end
end

-- All calls that follow from one: each is a list with n.
local function calls(info, args)
  local list = {}
  local function with(i, v)
    local c = table.move(args, 1, args.n, 1, { n = math.max(args.n, i) })
    c[i] = v
    list[#list + 1] = c
  end
  list[1] = args
  for i = 1, args.n do
    local v = args[i]
    local function put(x) with(i, x) end
    if type(v) == "userdata" then
      others(v, put)
      with(i, nil)
    else
      values(v, put)
    end
  end
  local last = args[args.n]
  local at = type(last) == "table" and #last == 0 and args.n or args.n + 1
  for _, attr in ipairs(info.attrs) do
    for _, v in ipairs(VALUES[attr.type] or {}) do
      local o = {}
      if at == args.n then for k, x in pairs(last) do o[k] = x end end
      o[attr.name] = v
      with(at, o)
      if #info.args == 1 and type(args[1]) == "userdata" then -- and for another rank
        local c = list[#list]
        local d = table.move(c, 1, c.n, 1, { n = c.n })
        d[1] = like(args[1], #args[1]:shape() == 3 and { 2, 3 } or { 2, 3, 4 })
        list[#list + 1] = d
      end
    end
  end
  return list
end

local function shown(c)
  local out = {}
  for i = 1, c.n do
    local v = c[i]
    if type(v) == "table" then
      local parts = {}
      for k, x in pairs(v) do parts[#parts + 1] = tostring(k) .. "=" .. (type(x) == "userdata" and described(x)
        or tostring(x)) end
      table.sort(parts)
      v = "{" .. table.concat(parts, " ") .. "}"
    end
    out[i] = type(v) == "userdata" and described(v) or tostring(v)
  end
  return table.concat(out, ", ")
end

-- 32-bit FNV-1a.
local function hash(text)
  local h = 2166136261
  for i = 1, #text do h = ((h ~ text:byte(i)) * 16777619) & 0xffffffff end
  return ("%08x"):format(h)
end

local function outcomes(info)
  local f, parts, count = support.func(info.name), {}, 0
  for i, args in ipairs(support.arguments(info.name)) do
    local lines = {}
    for _, c in ipairs(calls(info, args)) do
      local got = table.pack(pcall(f, table.unpack(c, 1, c.n)))
      local text = "error"
      if got[1] then
        local results = type(got[2]) == "table" and got[2] or table.move(got, 2, got.n, 1, { n = got.n - 1 })
        for k = 1, results.n or #results do results[k] = described(results[k]) end
        text = table.concat(results, " ")
      end
      lines[#lines + 1] = text
      if mode == "print" then print(info.name .. "(" .. shown(c) .. ") -> " .. text) end
    end
    count = count + #lines
    parts[i] = hash(table.concat(lines, "\n"))
  end
  return count .. " " .. table.concat(parts, " ")
end

-- Ops whose outcome depends on what is outside: files, devices.
local outside = { to_device = true }
local names = {}
for _, info in ipairs(support.public()) do
  if support.cases[info.name] and not outside[info.name] then names[#names + 1] = info end
end
table.sort(names, function(a, b) return a.name < b.name end)

if mode == "write" then
  local f = assert(io.open(path, "w"))
  f:write "-- SPDX-License-Identifier: MIT\n"
  f:write "-- What the shape rule of each op answered: calls, and a hash for each of its row's variants. Written by\n"
  f:write "-- PERILUNE_SHAPE_RULES=write busted spec/ops/shape_rules_spec.lua\nreturn {\n"
  for _, info in ipairs(names) do f:write(("  [%q] = %q,\n"):format(info.name, outcomes(info))) end
  f:write "}\n"
  f:close()
end

describe("the shape rule of", function()
  local known = dofile(path)
  for _, info in ipairs(names) do
    it(info.name .. " answers as it did", function()
      if not known[info.name] and info.class == "pointwise" then return end -- has the rule of all
      assert.equal(known[info.name], outcomes(info), "the shapes, dtypes or refusals of " .. info.name
        .. " have changed, or its row in spec/ops/cases has: PERILUNE_SHAPE_RULES=print shows them all; "
        .. "where the change is meant, PERILUNE_SHAPE_RULES=write")
    end)
  end

  it("is known for no op that is gone", function()
    local there = {}
    for _, info in ipairs(names) do there[info.name] = true end
    for name in pairs(known) do assert.is_true(there[name], name) end
  end)
end)
