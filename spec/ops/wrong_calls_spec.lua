-- SPDX-License-Identifier: MIT
-- Wrong calls of every op, generated from its descriptor: each is a Lua error, a string that begins with the
-- caller's file and line and then the op's name.

local T = require "perilune"
local support = require "spec.ops.support"

local HERE = debug.getinfo(1, "S").short_src

-- Each maker adds {text, args, says}: what is wrong, the arguments, words the message must contain.
local function basic(info, args, add)
  local with = function(i, v)
    local out = table.move(args, 1, args.n, 1, { n = args.n })
    out[i] = v
    return out
  end
  if #info.args > 0 then add("no arguments", { n = 0 }) end
  add("nil first", with(1, nil))
  add("text first", with(1, "tensor"))
  add("function first", with(1, print))
  if not info.flags.scalar then add("boolean first", with(1, true)) end
  add("a file first", with(1, io.stdout))
  add("a coroutine first", with(1, coroutine.create(print)))
  add("a table of text first", with(1, { "a", "b" }))
  local freed = T.ones(2)
  freed:free()
  add("a freed tensor first", with(1, freed))
  local more = table.move(args, 1, args.n, 1, { n = args.n + 9 })
  for i = args.n + 1, more.n do more[i] = 1.5 end
  add("too many arguments", more)
  more = table.move(args, 1, args.n, 1, { n = args.n + 1 })
  more[args.n + 1] = print
  add("a function last", more)
  for i = 2, args.n do
    if support.is_tensor(args[i]) then
      add("text as input " .. i, with(i, "x"))
      add("a function as input " .. i, with(i, print))
    end
  end
  return info
end

-- args with one more option.
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

local NAN, HUGE = 0 / 0, math.huge
local BAD = {
  dim = { 0, 99, -99, "one", 1.5, NAN, HUGE, true, math.maxinteger, math.mininteger },
  newdim = { 0, 99, -99, "one", 1.5, NAN, true },
  dims = { 0, { 0 }, 99, { 1, 1 }, "one", { "one" }, { 1.5 }, { NAN }, true },
  int = { "one", 1.5, NAN, HUGE, {}, print },
  ints = { "one", 1.5, { "one" }, { NAN }, print },
  index = { "one", 1.5, NAN, true },
  shape = { "one", { "one" }, { -7 }, { NAN }, { 1.5 }, { 1 << 62, 1 << 62 }, print },
  float = { "one", {}, true, print },
  scalar = { "one", {}, print },
  bool = { "yes", 1, {}, print },
  dtype = { "f31", 32, {}, print },
  enum = { "no such choice", 1, {}, print },
  index_base = { "one", {}, 1.5, print },
}

local function from_attributes(info, args, add)
  add("an unknown option", optioned(args, "no_such_option", 1), "no_such_option")
  for _, attr in ipairs(info.attrs) do
    if #attr.name > 3 then
      add("a misspelt option " .. attr.name, optioned(args, attr.name .. "x", 1), attr.name)
    end
    for _, v in ipairs(BAD[attr.type] or {}) do
      local shown = type(v) == "table" and "{" .. tostring(v[1]) .. "}" or tostring(v)
      add(attr.name .. " = " .. shown, optioned(args, attr.name, v))
    end
  end
end

describe("wrong calls of", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row then
      it(info.name, function()
        local f = support.raw(info.name)
        local calls = {}
        local function add(text, args, says) calls[#calls + 1] = { text, args, says } end
        local args = support.arguments(info.name)[1]
        basic(info, args, add)
        from_attributes(info, args, add)
        assert.is_true(#calls >= 10)
        local problems = {}
        for _, c in ipairs(calls) do
          local ok, err = pcall(function() f(table.unpack(c[2], 1, c[2].n)) end)
          local start = HERE:gsub("%p", "%%%0") .. ":%d+: " .. info.name
          if ok then
            problems[#problems + 1] = c[1] .. ": accepted"
          elseif type(err) ~= "string" then
            problems[#problems + 1] = c[1] .. ": the error is a " .. type(err)
          elseif not err:find("^" .. start) then
            problems[#problems + 1] = c[1] .. ": says '" .. err .. "'"
          elseif c[3] and not err:find(c[3], 1, true) then
            problems[#problems + 1] = c[1] .. ": '" .. err .. "' does not name " .. c[3]
          end
        end
        assert.equal("", table.concat(problems, "\n"))
      end)
    end
  end
end)

describe("misspelt names", function()
  it("are met with a suggestion", function()
    local ok, err = pcall(function() return T.ones(2, 2):sum { keepdims = true } end)
    assert.is_false(ok)
    assert.is_truthy(err:find("did you mean", 1, true), err)
    assert.is_truthy(err:find("keepdim", 1, true), err)
  end)

  it("zero as a dimension says that they start at 1", function()
    local ok, err = pcall(function() return T.ones(2, 2):sum(0) end)
    assert.is_false(ok)
    assert.is_truthy(err:find("start at 1", 1, true), err)
  end)
end)

-- What functions in Lua look at before the op does: a graph's text has no function.
describe("a node of a graph is refused by its op:", function()
  for _, case in ipairs {
    { "cat", {}, { dim = 1 }, "a list of 1 to 65536 tensors, not 0" },
    { "to_device", { { { 2 }, "f32" } }, { device = 99 }, "there is no device number 99" },
    { "to_device", { { { 2 }, "f32" } }, { device = -1 }, "there is no device number -1" },
    { "searchsorted", { { { 2 }, "f32" }, { { 2 }, "f32" } }, { side = "left", right = true }, "contradict" },
    { "bitwise_left_shift", { { { 2 }, "bool" }, { { 2 }, "bool" } }, {}, "bool is not for this" },
    { "index_select", { { {}, "f32" }, { { 3 }, "i64" } }, { dim = 1 }, "a 0-d tensor takes one index" },
    { "randint", {}, { low = 5, high = 2, shape = { 2 } }, "low 5 is above high 2" },
    { "randint_fill", { { { 2 }, "f32" } }, { low = 5, high = 2 }, "low 5 is above high 2" },
  } do
    local name, inputs, attrs, text = table.unpack(case)
    it(name .. ", " .. text, function()
      local graph, list = T.graph(), {}
      for i, input in ipairs(inputs) do list[i] = graph:input("x" .. i, input[1], { dtype = input[2] }) end
      local ok, err = pcall(T.core.graph_apply, graph.ir, name, list, attrs, 0, "node", 0)
      assert.is_false(ok)
      assert.truthy(tostring(err):find(text, 1, true), err)
    end)
  end
end)
