-- SPDX-License-Identifier: MIT
-- What every op's shape rule answers, beside what it answered when last looked at (spec/fixtures/shape_rules/, a file
-- for each family of engine/ops/ops.def).
-- From each call of an op's row follow some hundred others, each with one thing changed: a tensor's size, rank or
-- dtype, a missing input, a number in an option. An outcome is the dtypes and shapes of the results, or that it is an
-- error; the words of errors belong to other specs. So a limit that moved by one, a check that went and a size that
-- changed all fail here. Ops that only gradients and saved graphs name are asked in a graph, from calls that stood in
-- gradients when the fixture was written.
--   PERILUNE_SHAPE_RULES=print  prints all outcomes, for a diff of before and after
--   PERILUNE_SHAPE_RULES=write  writes the fixtures: after a change that is meant, or for a new op

local T = require "perilune"
local support = require "spec.ops.support"
local hostile = require "spec.support.hostile"
local root = os.getenv "PERILUNE_ROOT" or "."
local folder = root .. "/spec/fixtures/shape_rules/"
local mode = os.getenv "PERILUNE_SHAPE_RULES"

local function described(t)
  if type(t) ~= "userdata" then return math.type(t) or type(t) end
  return t:dtype() .. "[" .. table.concat(t:shape(), ",") .. "]"
end

-- Ones: they are valid as indices, as sizes and in most domains.
local function like(t, shape, dtype) return T.ones(shape or t:shape(), { dtype = dtype or t:dtype() }) end

local function ones(rank)
  local shape = {}
  for k = 1, rank do shape[k] = 1 end
  return shape
end

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
  for rank = 15, 16 do add(like(t, ones(rank))) end -- the greatest
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

-- Shapes that two tensors have in turn: what broadcasts, what has lost a dimension or all, what is empty.
local PAIRS = { {}, { 1 }, { 3 }, { 0 }, { 1, 3 }, { 3, 1 }, { 3, 3 }, { 2, 3 }, { 2, 1, 3 }, { 2, 3, 3 } }

-- Some values of an option.
local FEW = { float = { 0.5, 2, -1 }, dims = { {}, { 1 }, { 1, 2 } }, ints = { {}, { 1 }, { 2, 2 } },
  bool = { true, false }, shape = { { 1 }, { 3, 2 } }, dtype = { "f64", "i64", "f16" }, index_base = { 0, 1 } }
FEW.scalar = FEW.float
local function few(attr)
  if not attr.choices then return FEW[attr.type] or { 1, 2, -1, 0 } end
  local words = {}
  for word in attr.choices:gmatch "[^|]+" do words[#words + 1] = word end
  return words
end

-- Calls with what a row leaves out: each optional input, of another input's shape or not, and options two at a time.
local function fuller(info, args, add)
  local inputs, options = {}, {}
  for i = 1, args.n do
    local v = args[i]
    if type(v) == "userdata" then
      inputs[i] = v
    elseif i == args.n and type(v) == "table" and #v == 0 then
      options = v
    elseif v ~= nil then
      return
    end
  end
  local function call(i, x, key, a, other, b)
    local c, o = { n = info.nin + 1 }, {}
    for k = 1, info.nin do c[k] = inputs[k] end
    for k, v in pairs(options) do o[k] = v end
    if i then c[i] = x end
    if key then o[key], o[other] = a, b end
    c[info.nin + 1] = o
    add(c)
  end
  for i = 1, info.nin do
    for k = 1, inputs[i] and 0 or info.nin do
      for _, dtype in ipairs(inputs[k] and { inputs[k]:dtype(), "i64" } or {}) do
        local x = like(inputs[k], nil, dtype)
        call(i, x)
        others(x, function(y) call(i, y) end)
      end
    end
  end
  for k, one in ipairs(info.nin > 0 and info.attrs or {}) do
    for j = k + 1, #info.attrs do
      local two = info.attrs[j]
      for _, a in ipairs(few(one)) do
        for _, b in ipairs(few(two)) do call(nil, nil, one.name, a, two.name, b) end
      end
    end
  end
end

-- All calls that follow from one: each is a list with n; from an op's first one, more.
local function calls(info, args, first)
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
  if first then fuller(info, args, function(c) list[#list + 1] = c end) end
  local places = {}
  for i = 1, args.n do if type(args[i]) == "userdata" then places[#places + 1] = i end end
  for _, dtype in ipairs(#places > 1 and VALUES.dtype or {}) do -- all in one dtype
    local c = table.move(args, 1, args.n, 1, { n = args.n })
    for _, i in ipairs(places) do c[i] = like(args[i], nil, dtype) end
    list[#list + 1] = c
  end
  for k = 1, first and math.min(#places - 1, 2) or 0 do
    for _, one in ipairs(PAIRS) do
      for _, two in ipairs(PAIRS) do
        local c = table.move(args, 1, args.n, 1, { n = args.n })
        c[places[k]], c[places[k + 1]] = like(args[places[k]], one), like(args[places[k + 1]], two)
        list[#list + 1] = c
      end
    end
  end
  local last = args[args.n]
  local at = type(last) == "table" and #last == 0 and args.n or args.n + 1
  for k, attr in ipairs(info.attrs) do
    for _, v in ipairs(VALUES[attr.type] or {}) do
      local o = {}
      if at == args.n then for key, x in pairs(last) do o[key] = x end end
      o[attr.name] = v
      with(at, o)
      local place = info.nin >= 0 and info.nin + k -- what came by position makes room: x:view(2, 3) has two of shape
      while place and place < at do
        list[#list][place] = nil
        local several = attr.type == "shape" or attr.type == "dims" and k == #info.attrs
        place = several and type(args[place + 1]) == "number" and place + 1
      end
      if #info.args == 1 and type(args[1]) == "userdata" then -- and for other ranks, the least and the greatest
        local c = list[#list]
        local function of(shape)
          local d = table.move(c, 1, c.n, 1, { n = c.n })
          d[1] = like(args[1], shape)
          if #shape == 0 and attr.name ~= "dim" and o.dim then -- the only one that there may be
            d[at] = {}
            for key, x in pairs(o) do d[at][key] = x end
            d[at].dim = 1
          end
          list[#list + 1] = d
        end
        of(#args[1]:shape() == 3 and { 2, 3 } or { 2, 3, 4 })
        if attr.type ~= "float" and attr.type ~= "scalar" then
          for _, rank in ipairs { 0, #args[1]:shape(), 15, 16 } do of(ones(rank)) end
        end
        if attr.type == "dtype" then -- and from whole numbers
          local e = table.move(c, 1, c.n, 1, { n = c.n })
          e[1] = like(args[1], nil, "i64")
          list[#list + 1] = e
        end
      end
    end
  end
  return list
end

local function shown_value(v)
  if type(v) == "userdata" then return described(v) end
  if type(v) ~= "table" then return tostring(v) end
  local parts = {}
  for k, x in pairs(v) do parts[#parts + 1] = tostring(k) .. "=" .. shown_value(x) end
  table.sort(parts)
  return "{" .. table.concat(parts, " ") .. "}"
end
local function shown(c)
  local out = {}
  for i = 1, c.n do out[i] = shown_value(c[i]) end
  return table.concat(out, ", ")
end

-- 32-bit FNV-1a.
local function hash(text)
  local h = 2166136261
  for i = 1, #text do h = ((h ~ text:byte(i)) * 16777619) & 0xffffffff end
  return ("%08x"):format(h)
end

-- A list of "variant:outcome": which sizes and numbers a call of the row has, and what all that follow from it gave.
local function outcomes(info)
  local f, parts, seen = support.func(info.name), {}, {}
  for i, args in ipairs(support.arguments(info.name, true)) do
    local lines = {}
    for _, c in ipairs(calls(info, args, i == 1)) do
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
    local key = hash((i == 1 and "first " or "") .. shown(args)):sub(1, 5)
    if not seen[key] then parts[#parts + 1] = key .. ":" .. hash(table.concat(lines, "\n")) end
    seen[key] = true
  end
  return parts
end

-- ---- ops inside of gradients

local function text_of(inputs)
  local out = {}
  for i, x in ipairs(inputs) do out[i] = x and x.dtype .. "[" .. table.concat(x.shape, ",") .. "]" or "-" end
  return table.concat(out, " ")
end

local function inputs_of(text)
  local list = {}
  for word in text:gmatch "%S+" do list[#list + 1] = hostile.input(word) end
  return list
end

-- Applies f to all that follow from one call: its inputs and attributes, one thing changed.
local function inner_calls(info, inputs, attrs, f)
  f(inputs, attrs)
  local function input(i, x)
    local c = table.move(inputs, 1, #inputs, 1, {})
    c[i] = x
    f(c, attrs)
  end
  for i, x in ipairs(inputs) do
    if x then
      local shape, n = x.shape, #x.shape
      local function with(k, size)
        local s = table.move(shape, 1, n, 1, {})
        s[k] = size
        return s
      end
      local shapes = { {}, { 5 }, { 3, 3 }, with(n + 1, 1), with(n + 1, 3), { 1, table.unpack(shape) } }
      for k = 1, n do
        for _, size in ipairs { shape[k] + 1, shape[k] - 1, 0, 1, 2 * shape[k] } do
          if size >= 0 then shapes[#shapes + 1] = with(k, size) end
        end
        local less = table.move(shape, 1, n, 1, {})
        table.remove(less, k)
        shapes[#shapes + 1] = less
        if k < n then
          local turned = with(k, shape[k + 1])
          turned[k + 1] = shape[k]
          shapes[#shapes + 1] = turned
        end
      end
      for _, s in ipairs(shapes) do input(i, { dtype = x.dtype, shape = s }) end
      for _, dtype in ipairs { "f64", "f32", "f16", "i64", "i32", "u8", "bool" } do
        input(i, { dtype = dtype, shape = shape })
      end
      input(i, false)
    else
      input(i, inputs[1])
    end
  end
  f({ table.unpack(inputs, 1, #inputs - 1) }, attrs)
  f({ inputs[1], table.unpack(inputs) }, attrs)
  for _, attr in ipairs(info.attrs) do
    local v = attrs[attr.name]
    local list = { false }
    local function add(x) list[#list + 1] = x end
    if v ~= nil then values(v, add) end
    for _, x in ipairs(VALUES[attr.type] or {}) do add(x) end
    for _, x in ipairs(list) do
      local o = {}
      for k, y in pairs(attrs) do o[k] = y end
      if x == false and type(v) ~= "boolean" then x = nil end
      o[attr.name] = x
      f(inputs, o)
    end
  end
end

local function inner_outcomes(info, text, attrs)
  local lines = {}
  inner_calls(info, inputs_of(text), attrs, function(inputs, a)
    local graph, list = T.graph(), {}
    for i, x in ipairs(inputs) do
      list[i] = x and graph:input("x" .. i, x.shape, { dtype = x.dtype })
    end
    local ok, got = pcall(T.core.graph_apply, graph.ir, info.name, list, a, 0, "node", 0)
    if ok then for k, t in ipairs(got) do got[k] = t and described(t) or "-" end end
    local outcome = ok and table.concat(got, " ") or "error"
    lines[#lines + 1] = outcome
    if mode == "print" then print(("%s(%s) %s -> %s"):format(info.name, text_of(inputs), hostile.text(a), outcome)) end
  end)
  return #lines .. " " .. hash(table.concat(lines, "\n"))
end

-- Calls that differ in which inputs there are, their ranks, the dims and choices in attributes: six of an op at most.
local function real_calls()
  local all = {}
  for op, listed in pairs(hostile.real_calls(1000, true)) do
    local seen = {}
    all[op] = {}
    for _, c in ipairs(listed) do
      local key, names = {}, {}
      for i, x in ipairs(c.inputs) do key[i] = x and #x.shape or "-" end
      for k in pairs(c.attrs) do names[#names + 1] = k end
      table.sort(names)
      for _, k in ipairs(names) do
        local v = c.attrs[k]
        if math.type(v) ~= "float" then key[#key + 1] = type(v) == "table" and #v or tostring(v) end
      end
      local sparse = hostile.text(c.inputs):find "0,0" -- nothing but empty tensors says little
      key = table.concat(key, " ")
      if not seen[key] and not sparse and #all[op] < 6 then
        seen[key] = true
        table.insert(all[op], c)
      end
    end
  end
  return all
end

local function literal(v)
  if type(v) == "string" then return ("%q"):format(v) end
  if type(v) ~= "table" then return math.type(v) == "float" and ("%q"):format(v) or tostring(v) end
  local parts, names = {}, {}
  for _, x in ipairs(v) do parts[#parts + 1] = literal(x) end
  for k in pairs(v) do if type(k) == "string" then names[#names + 1] = k end end
  table.sort(names)
  for _, k in ipairs(names) do parts[#parts + 1] = k .. "=" .. literal(v[k]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- ---- what was answered

-- Ops whose outcome depends on what is outside (files, devices, a device's libraries), and those that no graph holds
-- because their rule reads sizes from a tensor; and what passes alone make (spec/graph/passes_spec.lua).
local outside = { conv_tail = true, to_device = true, recurrent = true, expand_to = true, reshape_to = true,
  zeros_of = true }
local names, inner = {}, {}
for _, info in ipairs(support.public()) do
  if support.cases[info.name] and not outside[info.name] then names[#names + 1] = info end
end
for _, info in ipairs(T.core.ops()) do
  if info.flags.internal and not outside[info.name] then inner[#inner + 1] = info end
end
for _, list in ipairs { names, inner } do table.sort(list, function(a, b) return a.name < b.name end) end

-- The families, by the headings of the list of all ops: op → its family's word, and the words.
local family, families = {}, {}
do
  local word
  for line in io.lines(root .. "/engine/ops/ops.def") do
    local heading, op = line:match "^/%* (%a[%a ]*)[,(]", line:match "^OP%(([%w_]+)%)"
    if heading and not line:find "^/%* Every op" then
      word = heading:gsub(" and .*", ""):gsub("%s+$", ""):gsub(" ", "_")
      if not family[word] then families[#families + 1] = word end
      family[word] = true
    elseif op then family[op:gsub("^linalg_", "linalg.")] = word end
  end
end
-- An op's line, or lines of at most six variants.
local function literal_lines(name, parts)
  local out = {}
  for i = 1, #parts, 6 do out[#out + 1] = ("%q"):format(table.concat(parts, " ", i, math.min(i + 5, #parts))) end
  return ("  [%q] = %s,\n"):format(name, table.concat(out, '\n    .. " " .. '))
end
-- What is known: by op, hashes; and by op inside of gradients, calls with their outcomes.
local function read()
  local all = { inside = {} }
  for _, word in ipairs(families) do
    local part = loadfile(folder .. word .. ".lua")
    part = part and part() or {} -- a new family has no file yet
    for op, listed in pairs(part.inside or {}) do all.inside[op] = listed end
    part.inside = nil
    for op, hashes in pairs(part) do all[op] = hashes end
  end
  return all
end
local known = read()

if mode == "write" then
  os.execute("mkdir -p '" .. folder .. "'")
  local real
  for _, word in ipairs(families) do
    local f = assert(io.open(folder .. word .. ".lua", "w"))
    f:write "-- SPDX-License-Identifier: MIT\n"
    f:write "-- What the shape rule of each op answered: a hash for each of its row's variants. Written by\n"
    f:write "-- PERILUNE_SHAPE_RULES=write busted spec/ops/shape_rules_spec.lua\nreturn {\n"
    for _, info in ipairs(names) do
      if family[info.name] == word then f:write(literal_lines(info.name, outcomes(info))) end
    end
    f:write "  -- ops inside of gradients: inputs, attributes, what was answered\n  inside = {\n"
    for _, info in ipairs(inner) do
      if family[info.name] == word then
        f:write(("    [%q] = {\n"):format(info.name))
        local list = {}
        for i, call in ipairs(known.inside[info.name] or {}) do list[i] = { call[1], call[2] } end
        if not known.inside[info.name] then
          real = real or real_calls()
          for i, c in ipairs(real[info.name] or {}) do list[i] = { text_of(c.inputs), c.attrs } end
        end
        for _, c in ipairs(list) do
          f:write(("      { %q, %s, %q },\n"):format(c[1], literal(c[2]), inner_outcomes(info, c[1], c[2])))
        end
        f:write "    },\n"
      end
    end
    f:write "  },\n}\n"
    f:close()
  end
  known = read()
end

describe("the shape rule of", function()
  local meant = " have changed: PERILUNE_SHAPE_RULES=print shows them all; where the change is meant, "
    .. "PERILUNE_SHAPE_RULES=write"
  for _, info in ipairs(names) do
    it(info.name .. " answers as it did", function()
      if not known[info.name] and info.class == "pointwise" then return end -- new, with the rule of all of these
      local want, count = {}, 0
      for key, outcome in (known[info.name] or ""):gmatch "(%x+):(%x+)" do want[key] = outcome end
      for _, part in ipairs(outcomes(info)) do
        local key, outcome = part:match "(%x+):(%x+)"
        if want[key] then -- variants that came later are not known
          count = count + 1
          assert.equal(want[key], outcome, "the shapes, dtypes or refusals of " .. info.name .. meant)
        end
      end
      assert.is_true(count > 0, info.name .. " is new, or all of its row in spec/ops/cases: PERILUNE_SHAPE_RULES=write")
    end)
  end
  for _, info in ipairs(inner) do
    it(info.name .. " answers as it did", function()
      if not known.inside[info.name] and info.class == "pointwise" then return end
      for _, call in ipairs(assert(known.inside[info.name], info.name .. " is new: PERILUNE_SHAPE_RULES=write")) do
        assert.equal(call[3], inner_outcomes(info, call[1], call[2]), "the shapes, dtypes or refusals of " .. info.name
          .. meant)
      end
    end)
  end

  it("is known for no op that is gone", function()
    local there = {}
    for _, info in ipairs(names) do there[info.name] = true end
    for _, info in ipairs(inner) do there[info.name] = true end
    for name in pairs(known) do assert.is_true(name == "inside" or there[name], name) end
    for name in pairs(known.inside) do assert.is_true(there[name], name) end
  end)
end)
