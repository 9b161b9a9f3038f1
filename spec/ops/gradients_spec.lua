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

-- A rule leaves out what nobody asks for: what it then gives must be what it gives among all.
describe("what one input and one result have of the gradient of", function()
  local function close(a, b)
    if not a or not b then -- nothing is zero
      return (a or b) == nil or (a or b):abs():sum():item() == 0
    end
    return (a - b):abs():max():item() <= 1e-9 * (1 + b:abs():max():item())
  end
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded and not row.skip_grad and not brief then
      it(info.name, function()
        local f = support.func(info.name)
        for i, args in ipairs(support.arguments(info.name, true)) do
          local g, flat = support.spread(f, args)
          local which, list = args.which or row.which, {}
          for k, t in ipairs(flat) do
            if gradcheck.is_floating(t) and (not which or which[k]) and t:numel() > 0 then list[#list + 1] = k end
          end
          -- gradients for the inputs in `wanted`, from result number `from` or all
          local function gradients(wanted, from)
            local now, xs, ys, dys = table.move(flat, 1, #flat, 1, {}), {}, {}, {}
            for _, k in ipairs(wanted) do
              now[k] = flat[k]:detach():clone():requires_grad_()
              xs[#xs + 1] = now[k]
            end
            local got = support.results(g, table.pack(table.unpack(now, 1, #flat)))
            local count = 0
            for k = 1, got.n or #got do
              local y = got[k]
              if T.is_tensor(y) and y.requires_grad then
                count = count + 1
                if not from or from == count then
                  ys[#ys + 1] = y
                  dys[#dys + 1] = (T.arange(1, y:numel()):to(y:dtype()) * 0.7):sin():reshape(y:shape()) + 1
                end
              end
            end
            if #ys == 0 then return {}, count end
            local ds = table.pack(T.grad_of(ys, xs, { grad_outputs = dys, allow_unused = true }))
            return type(ds[1]) == "table" and ds[1] or ds, count
          end
          local every, results = gradients(list)
          for n, k in ipairs(results > 0 and list or {}) do -- one of zeros is one, too
            local unused = (info.name == "baddbmm" or info.name == "addbmm") and k == 1 -- beta may be 0
            assert.is_true(every[n] == nil or gradcheck.alike(every[n], flat[k]), ("variant %d: input %d"):format(i, k))
            assert.is_true(every[n] ~= nil or unused, ("variant %d: input %d has no gradient"):format(i, k))
          end
          if #list > 1 then
            for n, k in ipairs(list) do
              local one = gradients { k }
              assert.is_true(close(one[1], every[n]), ("variant %d: input %d alone"):format(i, k))
            end
          end
          if results > 1 then
            local sums = {}
            for r = 1, results do
              local part = gradients(list, r)
              for n = 1, #list do
                if part[n] then sums[n] = sums[n] and sums[n] + part[n] or part[n] end
              end
            end
            for n = 1, #list do
              assert.is_true(close(sums[n], every[n]), ("variant %d: results one by one, input %d"):format(i, list[n]))
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
