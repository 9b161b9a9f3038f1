-- SPDX-License-Identifier: MIT
-- Backward hooks of modules: what they see, what they may change, when they run.

local T = require "perilune"
local nn = T.nn
local fails = require("spec.support.near").fails

local function layer()
  local l = nn.Linear(2, 3)
  T.no_grad(function()
    l.weight:copy_(T.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } })
    l.bias:fill_(0)
  end)
  return l
end

describe("full backward hooks", function()
  it("see the gradients of arguments and results, and may replace the former", function()
    local l, seen = layer(), {}
    local handle = l:register_full_backward_hook(function(m, grad_input, grad_output)
      assert.equal(l, m)
      seen[#seen + 1] = { grad_input[1]:totable(), grad_output[1]:totable() }
      return { grad_input[1] * 10 }
    end)
    local x = T.ones(1, 2):requires_grad_()
    l(x):sum():backward()
    assert.same({ { { { 9, 12 } }, { { 1, 1, 1 } } } }, seen)
    assert.same({ { 90, 120 } }, x.grad:totable())
    assert.same({ 1, 1, 1 }, l.bias.grad:totable())
    handle:remove()
    x.grad = nil
    l(x):sum():backward()
    assert.same({ { 9, 12 } }, x.grad:totable())
    assert.equal(1, #seen)
  end)

  it("before the pass may replace the gradients of results", function()
    local l, order = layer(), {}
    l:register_full_backward_pre_hook(function(_, grad_output)
      order[#order + 1] = "pre"
      return { grad_output[1] * 2 }
    end)
    l:register_full_backward_hook(function(_, _, grad_output)
      order[#order + 1] = "post"
      assert.same({ { 2, 2, 2 } }, grad_output[1]:totable())
    end)
    local x = T.ones(1, 2):requires_grad_()
    l(x):sum():backward()
    assert.same({ { 18, 24 } }, x.grad:totable())
    assert.same({ 2, 2, 2 }, l.bias.grad:totable())
    assert.same({ "pre", "post" }, order)
  end)

  it("run for inputs without gradients, once a call, and not without recording", function()
    local l, n = layer(), 0
    l:register_full_backward_hook(function(_, grad_input, grad_output)
      n = n + 1
      assert.is_nil(grad_input[1])
      assert.same({ 1, 3 }, grad_output[1]:shape())
    end)
    l(T.ones(1, 2)):sum():backward();
    (l(T.ones(1, 2)) + l(T.ones(1, 2))):sum():backward()
    assert.equal(3, n)
    T.no_grad(function() l(T.ones(1, 2)) end)
    assert.equal(3, n)
  end)

  it("know several arguments and results, some of them unused", function()
    local net, seen = nn.Bilinear(2, 3, 4), nil
    net:register_full_backward_hook(function(_, grad_input) seen = grad_input end)
    local b = T.randn(5, 3):requires_grad_()
    net(T.randn(5, 2), b):sum():backward()
    assert.equal(2, seen.n)
    assert.is_nil(seen[1])
    assert.is_true(seen[2]:allclose(b.grad))
    local Two = nn.class("Two")
    function Two:forward(x) return x * 2, x * 3 end
    local two, given = Two(), nil
    two:register_full_backward_hook(function(_, _, grad_output) given = grad_output end)
    local x = T.ones(2):requires_grad_()
    local _, y = two(x)
    y:sum():backward()
    assert.equal(2, given.n)
    assert.is_true(given[1] == nil or given[1]:eq(0):all():item())
    assert.same({ 1, 1 }, given[2]:totable())
    assert.same({ 3, 3 }, x.grad:totable())
  end)

  it("leave gradients of gradients as they are, and forward hooks", function()
    local l, order = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), {}
    local x = T.randn(1, 2):requires_grad_()
    local function second()
      local g = T.grad_of(l(x):square():sum(), x, { create_graph = true })
      return T.grad_of(g:square():sum(), x)
    end
    local want = second()
    l:register_full_backward_hook(function() order[#order + 1] = "back" end)
    l:register_forward_hook(function() order[#order + 1] = "forward" end)
    assert.is_true(second():allclose(want))
    assert.equal("forward", order[1])
    assert.equal("back", order[2])
  end)

  it("a table that forward returns goes through hooks as it is", function()
    local One, seen = nn.class("One"), {}
    function One:forward(x, opts) return { loss = x * (opts and opts.k or 1), x } end
    local net, x = One(), T.ones(1)
    local a = net:register_forward_hook(function(_, _, out) seen[#seen + 1] = out end)
    local b = net:register_forward_pre_hook(function(_, args) seen[#seen + 1] = args.n end)
    local out = net(x, { k = 3 })
    assert.equal(out, seen[2])
    assert.equal(2, seen[1])
    assert.equal(3, out.loss:item())
    assert.equal(x, out[1])
    a:remove()
    b:remove()
    net:register_forward_hook(function(_, _, o) return { loss = o.loss * 2 } end)
    assert.equal(2, net(x).loss:item())
    net:register_full_backward_hook(function() end)
    fails("forward of One returns a table", function() net(T.ones(1):requires_grad_()) end)
  end)

  it("must be functions", function()
    fails("a function is wanted", function() layer():register_full_backward_hook(3) end)
    fails("a function is wanted", function() layer():register_full_backward_pre_hook() end)
  end)
end)

describe("a call of a module", function()
  it("leaves lists that hooks return as they are", function()
    local l, list = layer(), { T.ones(1, 2) }
    l:register_forward_pre_hook(function() return list end)
    l(T.zeros(1, 2))
    assert.is_nil(list.n)
  end)

  it("that is refused changes nothing: layers that are not made yet, running statistics", function()
    local lazy, ran = nn.LazyConv2d(6, 3, { groups = 3 }), 0
    lazy:eval():register_forward_hook(function() ran = ran + 1 end)
    fails("multiples of groups 3", lazy, T.ones(1, 4, 5, 5))
    lazy(T.ones(1, 3, 5, 5))
    assert.same({ "Conv2d", false, 1, 2 }, { lazy:type(), lazy.training, ran, #lazy:parameters() })
    local mean = T.zeros(2)
    fails("weight is f32[3]", nn.F.instance_norm, T.randn(1, 2, 4), { running_mean = mean, weight = T.ones(3) })
    for _, var in ipairs { T.ones(3), T.ones(2, 1), T.ones(2, { dtype = "i64" }) } do
      fails("must be floating tensors of 2 channels", nn.F.batch_norm, T.randn(4, 2), mean, var, nil, nil, true)
      fails("must be floating tensors of 2 channels", nn.F.instance_norm, T.randn(2, 2, 4),
        { running_mean = mean, running_var = var })
    end
    assert.same({ 0, 0 }, mean:totable())
  end)

  it("of EmbeddingBag computes what its fields say", function()
    local bag, ids = nn.EmbeddingBag(4, 2), T.tensor({ { 1, 2 } }, { dtype = "i64" })
    local mean = bag(ids)
    bag.mode = "sum"
    assert.is_true(T.allclose(bag(ids), mean * 2))
    bag.index_base = 0
    assert.is_true(T.allclose(bag(ids - 1), mean * 2))
  end)

  it("does not pass over entries of windows", function()
    fails("stride must be one integer or 2, got 3", nn.F.unfold, T.ones(1, 1, 4, 4), { 2, 2 }, { stride = { 1, 1, 5 } })
  end)
end)
