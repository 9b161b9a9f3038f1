-- SPDX-License-Identifier: MIT
-- Gradients of every differentiable op against difference quotients in f64: for each variant of its row, with
-- contiguous, transposed and stride-0 inputs.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"
local brief = require "spec.support.device".mode ~= nil -- spec/cuda/ops_spec has the other variants and layouts there

describe("the gradient of", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded and not row.skip_grad then
      it(info.name, function()
        local f = support.func(info.name)
        for i, args in ipairs(support.arguments(info.name, not brief)) do
          local g, flat = support.spread(f, args)
          if args.more and not args.defined then
            local ok, why = gradcheck.along(T, g, flat, args.which or row.which)
            assert.is_true(ok, string.format("variant %d: %s", i, tostring(why)))
          end
          for _, kind in ipairs(args.more and {} or { "plain", "transposed", "expand" }) do
            local first, odd = kind == "plain", row.one_layout or (row.ties or row.regular) and kind == "expand"
            if first and not (brief and i > 1) or not (first or brief or odd) then
              local ok, why = gradcheck.check(T, g, flat, {
                which = row.which, rtol = row.gtol, atol = row.gtol,
                relayout = kind ~= "plain" and function(t) return random.layout(T, t, kind) end or nil,
              })
              assert.is_true(ok, string.format("variant %d, %s: %s", i, kind, tostring(why)))
            end
          end
        end
      end)
    end
  end
end)

describe("the gradient in place of", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and info.flags.inplace and T[info.name .. "_"] then
      it(info.name .. "_", function()
        local args = support.arguments(info.name)[1]
        local in_place = T[info.name .. "_"]
        local g, flat = support.spread(function(x, ...)
          if type(x) ~= "table" then return in_place(x * 1, ...) end
          return in_place({ x[1] * 1, table.unpack(x, 2) }, ...)
        end, args)
        local ok, why = gradcheck.check(T, g, flat, { which = row.which, rtol = row.gtol, atol = row.gtol })
        assert.is_true(ok, why)
      end)
    end
  end
end)

describe("integer inputs to", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable then
      it(info.name .. " leave a result or a text", function()
        local f = support.func(info.name)
        for _, dtype in ipairs { "i64", "u8", "bool", "f16", "bf16", "f32" } do
          local args = support.map(support.arguments(info.name)[1], function(t)
            return t:dtype() == "f64" and t:to(dtype) or t
          end)
          local ok, err = pcall(f, table.unpack(args, 1, args.n))
          if not ok then assert.is_string(err) end
        end
      end)
    end
  end
end)
