-- SPDX-License-Identifier: MIT
-- What an op gives does not depend on who keeps its results: recorded for a gradient, not recorded, where hidden
-- results need not be made (PlOp.spare), and in T.jit the bits are the same.

local T = require "perilune"
local support = require "spec.ops.support"

local function flat(v)
  return v:numel() == 0 and {} or v:detach():reshape(-1):totable()
end

local function same(want, got, what)
  for i = 1, math.max(want.n or #want, got.n or #got) do
    local a, b = want[i], got[i]
    assert(support.is_tensor(a) == support.is_tensor(b), what .. ": results")
    if support.is_tensor(a) then
      assert.same(a:shape(), b:shape(), what)
      assert.equal(a:dtype(), b:dtype(), what)
      a, b = flat(a), flat(b)
      for k = 1, #a do
        if a[k] ~= b[k] and (a[k] == a[k] or b[k] == b[k]) then
          error(("%s: result %d, element %d is %s, recorded %s"):format(what, i, k, tostring(b[k]), tostring(a[k])), 0)
        end
      end
    end
  end
end

local function call(f, args)
  T.manual_seed(7)
  return support.results(f, args)
end

describe("recorded or not", function()
  for _, info in ipairs(support.public()) do
    local name = info.name
    if support.cases[name] and not info.flags.mutates then
      it(name .. " gives the same", function()
        local f, ran = support.func(name), false
        for k, args in ipairs(support.arguments(name)) do
          for _, d in ipairs { "f64", "f32" } do
            args = support.map(args, function(t) return t:is_floating_point() and t:to(d) or t end)
            local function tracked() -- results may be views of the arguments
              return support.map(args, function(t) return t:is_floating_point() and t:clone():requires_grad_() or t end)
            end
            local fine, want = pcall(call, f, tracked())
            if fine then
              ran = true
              local what = ("%s, %s, call %d"):format(name, d, k)
              same(want, call(f, args), what)
              same(want, T.no_grad(call, f, tracked()), what .. " in no_grad")
              local flags = info.flags
              if k == 1 and d == "f32" and not flags.seeded then
                local ok, got = pcall(call, T.jit(f), args)
                if ok then same(want, got, what .. " in T.jit") end
              end
            end
          end
        end
        assert.is_true(ran)
      end)
    end
  end
end)
