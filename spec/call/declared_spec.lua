-- SPDX-License-Identifier: MIT
-- Wrong calls of everything that declares its arguments (lua/perilune/options.lua): functions made of ops, modules,
-- schedules. For each argument values of other kinds, freed tensors, misspelt and unknown names, too many: each is
-- an error at the caller's line that begins with the function's name.

local T = require "perilune"
local options = require "perilune.options"
-- What loads late declares itself then.
local _ = { T.nn.Linear, T.optim.SGD, T.optim.swa_utils, T.optim.compat, T.distributions }

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

-- What carries the name: nn.X, T.x, T.linalg.x, lr_scheduler.X …; extra arguments that come before the declared ones.
local function resolve(who)
  local space, name = who:match("^([%w_.]+)%.([%w_]+)$")
  local spaces = { nn = T.nn, ["nn.F"] = T.nn.F, linalg = T.linalg, lr_scheduler = T.optim.lr_scheduler,
    ["optim.swa_utils"] = T.optim.swa_utils, distributions = T.distributions, prune = T.nn.utils.prune,
    parametrize = T.nn.utils.parametrize, parametrizations = T.nn.utils.parametrizations }
  if space == "lr_scheduler" then
    local opt = T.optim.SGD({ T.ones(1):requires_grad_() }, { lr = 1 })
    return name ~= "ChainedScheduler" and spaces[space][name], { opt }
  end
  if space then return spaces[space] and spaces[space][name], {} end
  return T[who] or T.core.metatable().methods[who] or T.nn.utils[who], {}
end

-- A value of each kind.
local function right(kind)
  if type(kind) == "table" then return kind[1] end
  local freely = { tensor = T.ones(3, 3), operand = T.ones(3, 3), tensors = { T.ones(3), T.ones(3) }, any = 1,
    string = "f32", func = print, bool = true, padding = 1,
    sequence = T.ones(3, 3), state = {}, callable = print }
  if freely[kind] ~= nil then return freely[kind] end
  return (kind == "momentum" or kind:find "probability") and 0.5 or 2
end

local function wrong(kind)
  local gone = T.ones(2)
  gone:free()
  if type(kind) == "table" then return { "no such word", 7, print, true } end
  local list = {
    tensor = { "x", 3, true, print, io.stdout, gone }, operand = { "x", true, print, io.stdout, gone },
    tensors = { "x", 3, { "x" }, { gone }, {}, { T.ones(2), a = 1 } },
    int = { "x", 1.5, 0 / 0, math.huge, true, print, 2 ^ 70 },
    ints = { "x", 1.5, { 1.5 }, { "x" }, { 1, a = 2 }, true, print }, size = { -1, 1.5, "x", 0 / 0, true },
    count = { 0, -1, 1.5, "x", 0 / 0, true }, number = { "x", true, print, gone }, bool = { 1, "x", print },
    window = { "x", 1.5, { 1.5 }, {}, { 1, a = 2 }, true }, numbers = { "x", {}, { "x" }, { 1, a = 2 }, true },
    lengths = { "x", 1.5, { 1.5 }, true, gone }, positive = { 0, -1, 0 / 0, "x", math.huge, true },
    sequence = { "x", 3, {}, gone }, state = { "x", 3, { 1, 2 }, { h = 1 }, gone },
    nonnegative = { -1, 0 / 0, "x", math.huge, true }, nonnegative_or_inf = { -1, 0 / 0, "x", true },
    inner_probability = { 0, 1, 0 / 0, "x", true },
    momentum = { -0.1, 1.1, 0 / 0, "x", true },
    probability = { -0.1, 1.1, 0 / 0, "x", true }, string = { 3, true, print },
    callable = { 3, "x", gone, true }, func = { 3, "x", gone },
    padding = { "sam", 1.5, true, print }, any = {},
  }
  return assert(list[kind], "a new kind: " .. kind)
end

-- {what, arguments}, all wrong.
local function calls_of(spec)
  local calls = {}
  local function add(what, args) calls[#calls + 1] = { what, args } end
  local function named(key, v)
    local o = {}
    for _, arg in ipairs(spec.args) do
      if arg[3] == nil and not arg.optional then o[arg[1]] = right(arg[2]) end
    end
    o[key] = v
    return o
  end
  for _, arg in ipairs(spec.args) do
    for _, v in ipairs(wrong(arg[2])) do
      local shown = type(v) == "userdata" and "userdata" or tostring(v)
      add(("%s = %s"):format(arg[1], shown), { named(arg[1], v) })
    end
    if #arg[1] > 3 then add("misspelt " .. arg[1], { named(arg[1] .. "x", 1) }) end
    if arg[3] == nil and not arg.optional then
      local o = named(arg[1], nil)
      o[arg[1]] = nil
      if next(o) then add("without " .. arg[1], { o }) end
    end
  end
  add("an unknown option", { named("no_such_option", 1) })
  local many = {}
  for i, arg in ipairs(spec.args) do many[i] = right(arg[2]) end
  for _ = 1, 3 do many[#many + 1] = 1.5 end
  add("too many", many)
  return calls
end

describe("wrong calls of", function()
  local names = {}
  for who in pairs(options.specs) do names[#names + 1] = who end
  table.sort(names)

  for _, who in ipairs(names) do
    it(who, function()
      local f, before = resolve(who)
      if who:find("ChainedScheduler", 1, true) then return end -- takes its list as it is
      assert.is_truthy(f, "what declares itself as " .. who .. "?")
      local problems = {}
      local start = "^" .. HERE .. ":%d+: " .. options.specs[who].who:gsub("%p", "%%%0")
      for _, c in ipairs(calls_of(options.specs[who])) do
        local args = { table.unpack(before) }
        for _, v in ipairs(c[2]) do args[#args + 1] = v end
        local ok, err = pcall(function()
          local x = f(table.unpack(args))
          return x
        end)
        if ok then
          problems[#problems + 1] = c[1] .. ": accepted"
        elseif type(err) ~= "string" or not err:find(start) then
          problems[#problems + 1] = c[1] .. ": says " .. tostring(err)
        end
      end
      assert.equal("", table.concat(problems, "\n"))
    end)
  end

  -- Optimizers check their settings themselves.
  for name, C in pairs(T.optim) do
    if type(C) == "table" and rawget(C, "settings") then
      it("optim." .. name, function()
        local p = T.ones(2):requires_grad_()
        local calls = { { p, 3 }, { {}, {} }, { 3 }, { { p, p } }, { { p * 1 } }, { { p }, { no_such_option = 1 } } }
        for _, s in ipairs(C.settings) do
          for _, v in ipairs { "no such word", print, 0 / 0 } do
            calls[#calls + 1] = { { p }, { lr = s[1] ~= "lr" and 0.1 or nil, [s[1]] = v } }
          end
          calls[#calls + 1] = { { p }, { lr = 0.1, [s[1] .. "x"] = 1 } }
        end
        for k, c in ipairs(calls) do
          local ok, err = pcall(function()
            local opt = C(c[1], c[2])
            return opt
          end)
          assert.is_false(ok, "call " .. k)
          assert.truthy(tostring(err):find("^" .. HERE .. ":%d+: optim%." .. name), tostring(err))
        end
        assert.is_true(#calls >= 10)
      end)
    end
  end

  -- f({3, 2}) is what PyTorch reads it as; it must not spread over two arguments without a word.
  it("none: a table of numbers that is the whole call is the list that the first argument takes", function()
    local n = 0
    for who, spec in pairs(options.specs) do
      local kind = spec.args[1] and spec.args[1][2]
      if kind == "window" or kind == "ints" or kind == "numbers" or kind == "lengths" then
        local ok, got = pcall(options.read, spec, { 3, 2 })
        if ok then
          assert.same({ 3, 2 }, got[spec.args[1][1]], who)
        else
          assert.truthy(tostring(got):find " is missing", who .. ": " .. tostring(got))
        end
        n = n + 1
      end
    end
    assert.is_true(n >= 20, n)
    assert.same({ 3, 2 }, T.nn.MaxPool2d({ 3, 2 }).kernel_size)
    assert.same({ 3, 2 }, T.optim.lr_scheduler.MultiStepLR(T.optim.SGD({ T.ones(1):requires_grad_() }, { lr = 1 }),
      { 3, 2 }).milestones)
  end)

  it("them are many", function() assert.is_true(#names >= 150, #names .. " declarations") end)
end)
