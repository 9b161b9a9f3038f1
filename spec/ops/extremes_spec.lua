-- SPDX-License-Identifier: MIT
-- Extreme arguments of every op, generated from its descriptor: attributes of 0, -1, 2^40, NaN and infinity, empty
-- and 0-d tensors, other dtypes, values that are not finite, freed tensors. Each call returns, or raises a text with
-- the caller's line and the op's name; memory is bounded, so a huge size is refused and not tried.

local T = require "perilune"
local support = require "spec.ops.support"

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")
local NAN, HUGE, BIG = 0 / 0, math.huge, 1 << 40

local numbers = { 0, -1, 1, BIG, -BIG, NAN, HUGE, -HUGE, math.maxinteger, math.mininteger, 0.5, 1e300, -0.0 }
local lists = { {}, { 0 }, { -1 }, { BIG }, { BIG, BIG, BIG }, { 1, 1 }, { -1, -1 }, { NAN }, { HUGE } }
local by_type = {
  int = { numbers }, index = { numbers }, float = { numbers }, scalar = { numbers }, dim = { numbers },
  newdim = { numbers }, index_base = { numbers }, dims = { numbers, lists }, ints = { numbers, lists },
  shape = { numbers, lists }, bool = { { true, false } }, enum = {}, dtype = { { "f16", "bool", "i8", "f64" } },
}

-- What may stand where a tensor stood.
local function others(t)
  local list = {}
  local function add(text, make)
    local ok, x = pcall(make)
    if ok then list[#list + 1] = { text, x } end
  end
  local shape = t:shape()
  add("0-d", function() return T.zeros({}, { dtype = t:dtype() }) end)
  add("empty", function() return T.zeros({ 0 }, { dtype = t:dtype() }) end)
  for d = 1, #shape do
    add("size 0 in dim " .. d, function()
      local s = { table.unpack(shape) }
      s[d] = 0
      return T.zeros(s, { dtype = t:dtype() })
    end)
  end
  add("five dims more", function() return t:reshape { 1, 1, 1, 1, 1, table.unpack(shape) } end)
  for _, dtype in ipairs { "f16", "i64", "u8", "bool" } do add(dtype, function() return t:to(dtype) end) end
  if t:is_floating_point() then
    for _, v in ipairs { NAN, HUGE, -HUGE, 1e300 } do
      add("full of " .. v, function() return T.full(shape, v, { dtype = t:dtype() }) end)
    end
  else
    for _, v in ipairs { 0, -1, BIG } do
      add("full of " .. v, function() return T.full(shape, v, { dtype = t:dtype() }) end)
    end
  end
  add("freed", function()
    local x = t:clone()
    x:free()
    return x
  end)
  return list
end

local function optioned(args, key, value)
  local out = table.move(args, 1, args.n, 1, { n = args.n })
  local last = out[out.n]
  if type(last) == "table" and type(next(last)) == "string" then
    local o = {}
    for k, v in pairs(last) do o[k] = v end
    o[key] = value
    out[out.n] = o
  else
    out.n = out.n + 1
    out[out.n] = { [key] = value }
  end
  return out
end

-- All calls of an op as {what, arguments}.
local function calls_of(info)
  local calls = {}
  for _, args in ipairs(support.arguments(info.name)) do
    for _, attr in ipairs(info.attrs) do
      for _, values in ipairs(by_type[attr.type] or {}) do
        for _, v in ipairs(values) do
          local shown = tostring(type(v) == "table" and v[1] or v)
          calls[#calls + 1] = { attr.name .. " = " .. shown, optioned(args, attr.name, v) }
        end
      end
    end
    for i = 1, args.n do
      if support.is_tensor(args[i]) then
        for _, other in ipairs(others(args[i])) do
          local now = table.move(args, 1, args.n, 1, { n = args.n })
          now[i] = other[2]
          calls[#calls + 1] = { ("input %d %s"):format(i, other[1]), now }
        end
      elseif type(args[i]) == "table" and support.is_tensor(args[i][1]) then
        for k, t in ipairs(args[i]) do
          for _, other in ipairs(others(t)) do
            local now = table.move(args, 1, args.n, 1, { n = args.n })
            now[i] = table.move(args[i], 1, #args[i], 1, {})
            now[i][k] = other[2]
            calls[#calls + 1] = { ("entry %d %s"):format(k, other[1]), now }
          end
        end
      end
    end
  end
  return calls
end

describe("extreme arguments of", function()
  local live
  setup(function() live = T.memory().live end)

  for _, info in ipairs(support.public()) do
    if support.cases[info.name] then
      it(info.name, function()
        local f, problems, count = support.raw(info.name), {}, 0
        local start = "^" .. HERE .. ":%d+: " .. info.name:gsub("%p", "%%%0")
        T.set_memory_budget(live + (1 << 28))
        for _, c in ipairs(calls_of(info)) do
          count = count + 1
          local ok, err = pcall(function() f(table.unpack(c[2], 1, c[2].n)) end)
          if not ok and (type(err) ~= "string" or not err:find(start)) then
            problems[#problems + 1] = c[1] .. ": says " .. tostring(err)
          end
        end
        T.set_memory_budget(nil)
        assert.equal("", table.concat(problems, "\n"))
        assert.is_true(count >= 8 or info.nin == 0, count .. " calls")
      end)
    end
  end
end)
