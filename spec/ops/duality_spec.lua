-- SPDX-License-Identifier: MIT
-- Forward mode against reverse mode, of every differentiable op in every variant of its row, of the functions made of
-- ops, and of modules with random options: spec/ops/duality.lua says what is compared.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local duality = require "spec.ops.duality"

local root = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/"

-- Facts about ops that narrow what is compared (duality.check).
local FACTS = {
  view = { dense = true }, as_strided = { dense = true },
  cast = { exact = 1e-6 }, -- f64 to f32
  mode = { kinks = true },
  norm = { tol = 3e-3 },   -- close to a norm of 0
}

-- Directions in which a symmetric matrix stays one.
local function symmetric(xs, g)
  local out = {}
  for i, x in ipairs(xs) do
    local v = random.tensor(T, g:list(x:numel(), -1, 1), x:shape(), "f64")
    out[i] = (v + v:transpose(-1, -2)) / 2
  end
  return out
end

describe("forward and reverse mode agree about", function()
  local count = 0
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable then
      it(info.name, function()
        local f = support.func(info.name)
        for i, args in ipairs(support.arguments(info.name, true)) do
          local g, flat = support.spread(f, args)
          local c = { which = args.which or row.which, seeded = info.flags.seeded, dense = row.one_layout,
            untraced = i > 2 }
          for k, v in pairs(FACTS[info.name] or {}) do c[k] = v end
          if row.skip_grad and row.skip_grad:find "symmetric" then c.directions = symmetric end
          if duality.check(info.name .. ", variant " .. i, g, flat, c) then count = count + 1 end
        end
      end)
    end
  end

  it("more than 800 calls", function() assert.is_true(count > 800, count .. " calls") end)
end)

-- What differs from its difference quotients by definition: gradients that are only right for what was symmetric or
-- normalized before, rows and statistics that have none, equal elements of which one is taken, roots and signs of 0,
-- singular matrices.
local DEFINED = {
  ctc_nll = true, embedding = true, batch_norm = true, kthvalue = true, median = true, mode = true, topk = true,
  pow = true, copysign = true, ["linalg.cholesky"] = true, ["linalg.pivoted_cholesky"] = true, ["linalg.eigh"] = true,
  ["linalg.eigvalsh"] = true, ["linalg.qr"] = true, ["linalg.lu_factor"] = true,
}

describe("derivatives are those of difference quotients where there are zeros:", function()
  local count = 0
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded and not DEFINED[info.name] then
      it(info.name, function()
        for i, args in ipairs(support.arguments(info.name, true)) do
          local g, flat = support.spread(support.func(info.name), args)
          for every = 2, 3 do
            local c = { which = args.which or row.which, first = every - 1, every = every }
            if duality.at_zeros(info.name .. ", variant " .. i, g, flat, c) then count = count + 1 end
          end
        end
      end)
    end
  end

  it("in more than 800 calls", function() assert.is_true(count > 800, count .. " calls") end)
end)

describe("forward and reverse mode agree about functions made of ops:", function()
  local function read(name)
    local cases = {}
    local where = { map_location = T.get_default_device() }
    for key, t in pairs(assert(T.load(root .. name .. ".safetensors", where))) do
      local case, kind, k = key:match("^(.+)/(%a+)/(%d+)$")
      local c = cases[case] or { ["in"] = {}, grad = {} }
      cases[case] = c
      if c[kind] then c[kind][math.tointeger(tonumber(k))] = t end
    end
    return cases
  end
  -- Where an input is beside a kink, or so large or close to singular that differences say nothing.
  local ODD = {
    { "T.special.i0e", { kinks = true } }, { "T.special.i1", { kinks = true } }, { "T.special.ndtri", { orders = 1 } },
    { "T.cholesky_solve", { kinks = true } }, { "deform_conv2d", { kinks = true } }, { "frexp", { kinks = true } },
  }

  for _, name in ipairs { "functions", "operators" } do
    local cases
    for _, item in ipairs(dofile(root .. name .. ".lua")) do
      it(item[1] .. " " .. item[2], function()
        cases = cases or read(name)
        local case = cases[item[1]]
        local which, names = {}, {}
        for i in ipairs(case["in"]) do names[i], which[i] = "x" .. i, case.grad[i] ~= nil end
        if next(case.grad) == nil then return end
        local c = { which = which, tol = 1e-3 }
        for _, odd in ipairs(ODD) do
          if item[2]:find(odd[1], 1, true) then for k, v in pairs(odd[2]) do c[k] = v end end
        end
        local code = ("local %s = ...\nreturn %s"):format(table.concat(names, ", "), item[2])
        local f = assert(load(code, "=spec/" .. item[2], "t", setmetatable({ T = T }, { __index = _G })))
        duality.check(item[2], f, case["in"], c)
      end)
    end
    teardown(function() cases = nil end)
  end
end)

describe("forward and reverse mode agree about modules with options drawn at random", function()
  local function read()
    local by_case = {}
    local where = { map_location = T.get_default_device() }
    for key, t in pairs(assert(T.load(root .. "random_modules.safetensors", where))) do
      local case, kind, name = key:match "^(c%d+)%.(%a+)%.?(.*)$"
      if t:dtype() == "i8" then t = t:double() / 16 elseif t:is_floating_point() then t = t:double() end
      by_case[case] = by_case[case] or { ["in"] = {}, st = {} }
      if kind == "W" then by_case[case].W = t
      elseif by_case[case][kind] then by_case[case][kind][math.tointeger(name) or name] = t end
    end
    return by_case
  end

  -- The module as a function of its inputs and parameters; buffers are what they were, in each call.
  local function run(case, d)
    local m = assert(load("local nn, W = ... return " .. case.text))(T.nn, d.W):double()
    if next(d.st) then m:load_state_dict(d.st, { index_base = 0 }) end
    m:train(case.train)
    local names, args, count = {}, table.move(d["in"], 1, #d["in"], 1, {}), #d["in"]
    for name, p in m:named_parameters() do names[#names + 1], args[#args + 1] = name, p:detach() end
    local state = {}
    for name, t in pairs(m:state_dict()) do state[name] = t:detach():clone() end
    local function f(...)
      local given, list, at = { ... }, {}, 0
      local function take()
        at = at + 1
        return given[at]
      end
      for i, n in ipairs(case.nest) do
        list[i] = n == 0 and take() or {}
        for j = 1, n do list[i][j] = take() end
      end
      if case.kind == "attention" then list[#list + 1] = { need_weights = true } end
      local own = {}
      for i, name in ipairs(names) do own[name] = given[count + i] end
      for name, t in pairs(state) do own[name] = own[name] or t:clone() end
      return T.nn.utils.functional_call(m, own, table.unpack(list))
    end
    -- A row of padding, and rows divided by how often they occur, have gradients by definition, no derivatives.
    local defined = case.text:find "padding_idx" or case.text:find "scale_grad_by_freq"
    local orders = defined and 0 or case.text:find "LSTM" and 1 or case.text:find "CrossEntropyLoss" and 2 or 3
    duality.check(case.text, f, args, { kinks = true, orders = orders })
  end

  it("in more than 200 of them", function()
    local failed, n, data = {}, 0, read()
    for _, case in ipairs(dofile(root .. "random_modules.lua")) do
      local ok, why = pcall(run, case, data[case.id])
      if not ok then failed[#failed + 1] = case.text .. (case.train and " train: " or " eval: ") .. tostring(why) end
      n = n + 1
    end
    assert.same({}, failed)
    assert.is_true(n > 200, n .. " modules")
  end)
end)
