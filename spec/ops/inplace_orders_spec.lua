-- SPDX-License-Identifier: MIT
-- Derivatives of third order through every op in place, in all mixtures of forward and reverse mode, against the form
-- that returns a new tensor: on a tensor of its own, and on a view. What an op of the tangent has saved of
-- the op's result must keep the history that moves on to the tensor written into.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"

local function reverse(f)
  return function(x)
    return (T.grad(function(y) return f(y):sum() end, x)) or T.zeros_like(x)
  end
end
local function forward(f, v)
  return function(x)
    local _, d = T.jvp(f, { x }, { v })
    return d or T.zeros_like(x)
  end
end

-- Orders 1 to 3: "RFF" is a Jacobian-vector product, of which a gradient is taken, of which another one.
local WORDS = {}
for _, a in ipairs { "R", "F" } do
  WORDS[#WORDS + 1] = a
  for _, b in ipairs { "R", "F" } do
    WORDS[#WORDS + 1] = a .. b
    for _, c in ipairs { "R", "F" } do WORDS[#WORDS + 1] = a .. b .. c end
  end
end

local function derivative(word, f, x, v)
  local g = f
  for c in word:gmatch "." do g = c == "R" and reverse(g) or forward(g, v) end
  return g(x)
end

local function size(t) return t:numel() > 0 and t:abs():max():item() or 0 end

-- The floating result as a function of the first floating input; nil where there is none.
local function single(f, flat, k)
  return function(x)
    local now = table.move(flat, 1, #flat, 1, {})
    now[k] = x
    local y = f(table.unpack(now, 1, #flat))
    y = type(y) == "table" and y[1] or y
    return y * y
  end
end

local FORMS = {
  ["in place"] = function(op, x, ...) return op(x * 1, ...) end,
  ["in place on a view"] = function(op, x, ...)
    local base = T.cat({ x:reshape(-1) * 1, x:reshape(-1):sin() }, 1)
    op(base:narrow(1, 1, x:numel()):view(x:shape()), ...)
    return base
  end,
}

describe("derivatives to the third order of", function()
  local count = 0
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    local op = T[info.name .. "_"]
    if row and info.differentiable and info.flags.inplace and not info.flags.seeded and op and not row.skip_grad then
      it(info.name .. "_", function()
        local args = support.arguments(info.name)[1]
        local f, flat = support.spread(support.func(info.name), args)
        local g = random.new(19)
        for k, t in ipairs(flat) do
          if gradcheck.is_floating(t) and t:numel() > 0 and t:numel() < 200 then
            local x = t:double()
            flat[k] = x
            local v = random.tensor(T, g:list(x:numel(), -1, 1), x:shape(), "f64")
            for form, how in pairs(FORMS) do
              local function call(x0, ...)
                if type(x0) ~= "table" then return how(op, x0, ...) end
                local rest = table.pack(...)
                return how(function(y, ...) return op({ y, table.unpack(x0, 2) }, ...) end, x0[1],
                  table.unpack(rest, 1, rest.n))
              end
              local inside = single(support.spread(call, args), flat, k)
              local plain = single(f, flat, k)
              local whole = plain
              if form == "in place on a view" then
                whole = function(z)
                  local first = k == 1 and z or flat[1]
                  local rest = first:reshape(-1):sin()
                  return T.cat({ plain(z):reshape(-1), (rest * rest):to(plain(z):dtype()) }, 1)
                end
              end
              local same, y, z = pcall(function() return inside(x), whole(x) end)
              if same and y:numel() == z:numel() then -- which the form in place takes: its result has the input's shape
                for _, word in ipairs(WORDS) do
                  local want, got = derivative(word, whole, x, v), derivative(word, inside, x, v)
                  local scale = 1 + size(want)
                  assert(scale ~= scale or size(got:reshape(-1) - want:reshape(-1)) <= 1e-9 * scale,
                    ("%s_ %s, input %d, %s: off by %g of %g"):format(info.name, form, k, word,
                      size(got:reshape(-1) - want:reshape(-1)), scale))
                  count = count + 1
                end
              end
            end
            break
          end
        end
      end)
    end
  end

  it("more than 2500 derivatives are compared", function() assert.is_true(count > 2500, count .. " derivatives") end)
end)
