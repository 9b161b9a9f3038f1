-- SPDX-License-Identifier: MIT
-- Gradients have the dtype of the input they belong to and the numbers that they have in f64; and they are the same
-- whether
-- one input is tracked or all are. For every differentiable op, each call of its row, and gradients of gradients too.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"
local oracle = require "spec.support.oracle"

-- What f gives for a list of tensors, and the gradients of its weighted sum for those at the positions: first and
-- second
-- order. nil where f refuses such dtypes. Weights are those of the first call, in state.
local function gradients(f, flat, at, state)
  local args, xs = table.move(flat, 1, #flat, 1, {}), {}
  for k, i in ipairs(at) do
    xs[k] = flat[i]:detach():clone():requires_grad_()
    args[i] = xs[k]
  end
  local got = table.pack(pcall(f, table.unpack(args, 1, #flat)))
  if not got[1] then return nil, got[2] end
  got = table.move(got, 2, got.n, 1, { n = got.n - 1 })
  if type(got[1]) == "table" then got = got[1] end
  local ys, ws = {}, {}
  for i = 1, got.n or #got do
    local y = got[i]
    if type(y) == "userdata" and gradcheck.is_floating(y) and y.requires_grad then
      local n = #ys + 1
      state.w[n] = state.w[n] or random.tensor(T, state.g:list(y:numel(), 0.5, 1.5), y:shape(), "f64")
      ys[n], ws[n] = y, state.w[n]:to(y:dtype())
    end
  end
  if #ys == 0 then return {}, {}, xs end
  local first = T.grad_of(ys, xs, { grad_outputs = ws, allow_unused = true, create_graph = state.second })
  local second = {}
  if state.second then
    local sum
    for k = 1, #xs do
      if first[k] and first[k].requires_grad then
        state.v[at[k]] = state.v[at[k]] or random.tensor(T, state.g:list(xs[k]:numel(), 0.5, 1.5), xs[k]:shape(), "f64")
        local part = (first[k]:to "f64" * state.v[at[k]]):sum()
        sum = sum and sum + part or part
      end
    end
    if sum then second = T.grad_of({ sum }, xs, { allow_unused = true }) end
  end
  return first, second, xs
end

-- Are two lists of numbers equal within a tolerance of their largest?
local function close(a, b, tolerance)
  local x, y, most, worst = oracle.from(a).data, oracle.from(b).data, 1.0, 0.0
  if #x ~= #y then return false, "sizes" end
  for i = 1, #x do
    local both = x[i] ~= x[i] and y[i] ~= y[i] or x[i] == y[i]
    if not both then worst = math.max(worst, x[i] - y[i] == x[i] - y[i] and math.abs(x[i] - y[i]) or math.huge) end
    if y[i] == y[i] and math.abs(y[i]) < math.huge then most = math.max(most, math.abs(y[i])) end
  end
  return worst <= tolerance * most, worst
end

-- The positions that are tracked.
local function positions(flat, which)
  local at = {}
  for i, t in ipairs(flat) do
    if gradcheck.is_floating(t) and (not which or which[i]) then at[#at + 1] = i end
  end
  return at
end

-- Ops that choose among values, which rounding to another dtype may make equal or reorder; and where the second
-- derivative
-- of rounded numbers has no digits left.
local TOLERANCE = { ["linalg.pinv"] = 0.1, ["linalg.svd"] = 0.1, ["linalg.svdvals"] = 0.05, ["linalg.qr"] = 0.05,
  ndtri = 0.02 }
local ONCE = { ctc_nll = true }

for _, info in ipairs(support.public()) do
  local row = support.cases[info.name]
  if row and info.differentiable and not info.flags.seeded and not row.skip_grad then
    describe("the gradient of " .. info.name, function()
      local f = support.func(info.name)
      local function each(check)
        for variant, args in ipairs(support.arguments(info.name, true)) do
          local g, flat = support.spread(f, args)
          local at = positions(flat, args.which or row.which)
          if #at > 0 then
            local function state() return { g = random.new(5), w = {}, v = {}, second = not ONCE[info.name] } end
            check(g, flat, at, state, "variant " .. variant)
          end
        end
      end

      it("has the dtype of its input, and the same numbers", function()
        each(function(g, flat, at, state, text)
          -- inputs that f32 holds exactly, so that all dtypes compute the same
          for _, i in ipairs(at) do flat[i] = flat[i]:to "f32":to "f64" end
          local s = state()
          local first, second = gradients(g, flat, at, s)
          assert(first, second)
          local sets = { {} }
          for _, i in ipairs(at) do sets[1][i] = "f32" end
          if #at > 1 then for _, i in ipairs(at) do sets[#sets + 1] = { [i] = "f32" } end end
          for _, set in ipairs(sets) do
            local others = table.move(flat, 1, #flat, 1, {})
            local name = {}
            for i, dtype in pairs(set) do
              others[i] = flat[i]:to(dtype)
              name[#name + 1] = i .. " in " .. dtype
            end
            local one, two, xs = gradients(g, others, at, s)
            if one then
              for k, x in ipairs(xs) do
                for order, both in ipairs { { one[k], first[k] }, { two[k], second[k] } } do
                  local where = ("%s, order %d, input %d, %s"):format(text, order, at[k], table.concat(name, ", "))
                  if order == 1 then assert.equal(both[2] == nil, both[1] == nil, where
                    .. ": one is tracked, the other is not") end
                  if both[1] and both[2] then
                    assert.equal(x:dtype(), both[1]:dtype(), where)
                    local ok, why = close(both[1], both[2], TOLERANCE[info.name] or 5e-3)
                    assert.is_true(ok, where .. ": " .. tostring(why))
                  end
                end
              end
            end
          end
        end)
      end)

      it("is the same for one input as for all", function()
        each(function(g, flat, at, state, text)
          if #at < 2 then return end
          local s = state()
          s.second = false
          local all = gradients(g, flat, at, s)
          for k, i in ipairs(at) do
            local one = gradients(g, flat, { i }, s)
            local where = ("%s, input %d"):format(text, i)
            if one[1] == nil then -- the result does not depend on it
              if all[k] then assert.equal(0, all[k]:abs():sum():item(), where) end
            else
              assert.is_truthy(all[k], where)
              assert.same(all[k]:shape(), one[1]:shape(), where)
              assert.is_true(close(one[1], all[k], 1e-12), where)
            end
          end
        end)
      end)
    end)
  end
end

describe("a flat function", function()
  for _, name in ipairs { "sign", "floor", "ceil", "trunc", "round", "floor_divide", "trunc_divide" } do
    it(name .. " has a gradient of zeros for each input, not none", function()
      local x = T.tensor({ 1.25, -2.5, 3.5 }, { dtype = "f64" }):requires_grad_()
      local w = T.tensor({ 2.0 }, { dtype = "f64" }):requires_grad_()
      local two = name:find "divide" ~= nil
      local y = two and T[name](x, w) or T[name](x)
      assert.is_true(y.requires_grad)
      y:sum():backward()
      assert.same({ 0, 0, 0 }, x.grad:tolist())
      if two then assert.same({ 0 }, w.grad:tolist()) end
    end)
  end
end)
