-- SPDX-License-Identifier: MIT
-- nn.utils.prune: which elements go, what training, states, jit and clones make of it.
local T = require "perilune"
local nn, optim = T.nn, T.optim
local prune = nn.utils.prune
local fails = require("spec.support.near").fails

local function layer()
  local l = nn.Linear(4, 3)
  T.no_grad(function() l.weight:copy_((T.arange(12):float() - 6.5):view(3, 4)) end)
  return l
end

describe("nn.utils.prune", function()
  it("takes the smallest of what is left, elements, slices, and over several parameters", function()
    local l = prune.l1_unstructured(layer(), "weight", 0.25) -- 5, 6, 7 and 8 have sizes 1.5, 0.5, 0.5 and 1.5
    assert.equal(3, l.weight:eq(0):sum():item())
    prune.l1_unstructured(l, "weight", 3) -- and 3 of the other 9
    assert.same({ 0, 0, 0, 0 }, { l.weight:get(2, 2), l.weight:get(2, 1), l.weight:get(2, 3), l.weight:get(2, 4) })
    prune.ln_structured(l, "weight", 0.5, { n = 1, dim = 1 }) -- halves to even: 1 of the 2 rows that are left
    assert.same({ true, true, false }, (l.weight:eq(0):all(2):totable()))
    prune.ln_structured(l, "weight", 1, { dim = -1 })
    assert.equal(2, l.weight:ne(0):sum():item())
    local a, b = layer(), layer()
    T.no_grad(function() b.weight:mul_(100) end)
    prune.global_unstructured({ { a, "weight" }, { b, "weight" } }, 0.5)
    assert.is_true(a.weight:eq(0):sum():item() >= 11 and b.weight:eq(0):sum():item() <= 1)
    T.manual_seed(1)
    assert.equal(6, prune.random_unstructured(layer(), "weight", 0.5).weight:eq(0):sum():item())
    assert.equal(2, prune.random_structured(layer(), "weight", 2, { dim = 2 }).weight:eq(0):all(1):sum():item())
  end)

  it("holds them at 0 in training, with the optimizer that was there, compiled and as written", function()
    local weights = {}
    for _, wrap in ipairs { function(f) return f end, T.jit } do
      T.manual_seed(2)
      local l = layer()
      local p, opt = l.weight, optim.SGD(l:parameters(), { lr = 0.1, momentum = 0.9 })
      prune.l1_unstructured(l, "weight", 0.5)
      assert.is_true(rawequal(p, l.weight_orig) and prune.is_pruned(nn.Sequential(l)))
      local step = wrap(function(x)
        opt:zero_grad()
        local loss = l(x):square():mean()
        loss:backward()
        opt:step()
        return loss
      end)
      for _ = 1, 3 do step(T.randn(5, 4)) end
      local copy = l:clone()
      copy:load_state_dict(l:state_dict())
      local x = T.randn(2, 4)
      assert.is_true(copy(x):equal(l(x)))
      assert.equal(6, l.weight:eq(0):sum():item())
      prune.remove(l, "weight")
      assert.is_true(rawequal(p, l.weight) and copy(x):equal(l(x)) and not prune.is_pruned(l))
      assert.is_nil(l:state_dict().weight_mask)
      weights[#weights + 1] = l.weight:detach()
    end
    assert.is_true(weights[1]:equal(weights[2]))
  end)

  it("says what does not fit", function()
    fails("amount is 13, and there are 12", function() prune.l1_unstructured(layer(), "weight", 13) end)
    fails("a share from 0.0 to 1.0", function() prune.l1_unstructured(layer(), "weight", 1.5) end)
    fails("must have two dims or more", function() prune.ln_structured(layer(), "bias", 1) end)
    fails("'weight' of Linear is not pruned", function() prune.remove(layer(), "weight") end)
    fails("Linear has no parameter 'w'", function() prune.identity(layer(), "w") end)
    fails("a mask", function() prune.custom_from_mask(layer(), "weight", T.ones(4)) end)
    fails("entry 1 must be", function() prune.global_unstructured({ layer() }, 0.5) end)
  end)
end)
