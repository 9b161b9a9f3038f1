-- SPDX-License-Identifier: MIT
-- Tensors that share memory: a detached alias never has a history again, a view has the history of what it was taken
-- from as long as it lives, whatever else was dropped and whatever is switched off meanwhile.

local T = require "perilune"

local function close(a, b)
  assert.is_true((a - b):abs():max():item() < 1e-5, tostring(a) .. " is not " .. tostring(b))
end

describe("a detached alias", function()
  it("stays without history when its base is written", function()
    local w = T.tensor { 2 }:requires_grad_()
    local h = w * 2
    local c = h:detach()
    h:mul_(10)
    assert.is_false(c.requires_grad)
    local loss = (c * w):sum()
    loss:backward()
    close(w.grad, T.tensor { 40 })
    assert.is_false(c.requires_grad)
  end)

  it("gives the numbers of the memory as it is, as a constant", function()
    local w = T.tensor { 1 }:requires_grad_()
    local h = w * 2
    local c = h:detach()
    h:mul_(10)
    local loss = (c * w):sum()
    loss:backward()
    close(w.grad, T.tensor { 20 })
  end)

  it("has views that stay without history, too", function()
    local w = T.ones(3):requires_grad_()
    local h = w * 2
    local part = h:detach()[{ { 1, 2 } }]
    h[1] = w[2] * 5
    assert.is_false(part.requires_grad)
    assert.is_false((part * 2).requires_grad)
  end)

  it("begins a family of its own: its views follow what is written through it", function()
    local w = T.tensor { 3, 4 }:requires_grad_()
    local h = w * 2
    local c = h:detach()
    local first = c[1]
    c:mul_(w)
    assert.is_true(first.requires_grad)
    first:backward()
    close(w.grad, T.tensor { 6, 0 })
    assert.is_true(h.requires_grad)
  end)

  it("is the same in T.grad, with keys and in jitted functions", function()
    local function f(w)
      local h = w * 2
      local c = h:detach()
      h:mul_(10)
      return (c * w + h):sum()
    end
    local x = T.tensor { 1, 2 }
    close(T.grad(f)(x), T.tensor { 40, 60 })
    local key = T.GradKey()
    local got
    key:attach(x, function(_, g) got = g end)
    key:backward(f(x))
    close(got, T.tensor { 40, 60 })
    local w = T.tensor { 1, 2 }:requires_grad_()
    local jf = T.jit(f)
    for _ = 1, 2 do
      w.grad = nil
      jf(w):backward()
      close(w.grad, T.tensor { 40, 60 })
    end
  end)

  it("that was taken with gaps is refused where its history could not be followed", function()
    local w = T.ones(2):requires_grad_()
    local c = T.zeros(2, 2)[{ {}, 1 }]:detach()
    local ok, message = pcall(function() c[1] = w[1] end)
    assert.is_false(ok)
    assert.matches("gaps in memory", message)
    assert.equal(0, c:sum():item())
  end)
end)

describe("a view", function()
  it("holds what its history needs when the base is gone", function()
    for _ = 1, 20 do
      local w = T.tensor { 1, 2, 3, 4 }:requires_grad_()
      local a, b = table.unpack((w * 2):chunk(2, -1))
      collectgarbage()
      a:sigmoid_()
      collectgarbage()
      local y = (a * b:tanh()):sum()
      y:backward()
      local w2 = T.tensor { 1, 2, 3, 4 }:requires_grad_()
      local h = w2 * 2
      local z = (h[{ { 1, 2 } }]:sigmoid() * h[{ { 3, 4 } }]:tanh()):sum()
      z:backward()
      close(w.grad, w2.grad)
    end
  end)

  it("of a transposed tensor without gaps follows writes as well", function()
    local w = T.tensor { { 1, 2 }, { 3, 4 } }:requires_grad_()
    local c = T.zeros(2, 2):t():detach()
    local row = c[2]
    c[1] = w[1] * 3
    row:copy_(w[2])
    local y = (c * c):sum()
    y:backward()
    close(w.grad, T.tensor { { 18, 36 }, { 6, 8 } })
  end)

  it("taken up again inside no_grad keeps its history", function()
    local w = T.tensor { 1, 2 }:requires_grad_()
    local h = w * 2
    local v = h[1]
    h:mul_(5)
    T.no_grad(function() assert.is_true((v * 1):item() == 10) end)
    v:backward()
    close(w.grad, T.tensor { 10, 0 })
  end)

  it("written inside no_grad keeps its history", function()
    local w = T.tensor { 1, 2 }:requires_grad_()
    local h = w * 2
    local v = h[1]
    T.no_grad(function() v:mul_(3) end)
    local y = (h + v):sum()
    y:backward()
    close(w.grad, T.tensor { 6, 2 })
  end)

  it("is held by no node: a chain of writes and reads is freed without a collection of cycles", function()
    local live = require "spec.support.live"
    live.flat(T, function()
      local w = T.ones(100):requires_grad_()
      local base = T.zeros(4, 100)
      for i = 1, 4 do
        local row = base[i]
        row:copy_(w * i)
        base = base * row:exp()
        base[i] = row * 2
      end
    end)
  end)
end)

describe("a view that was taken in T.no_grad", function()
  local function pair()
    local w = T.tensor({ 1, 2, 3, 4 }, { dtype = "f64" }):requires_grad_()
    local h = w * 2
    return w, h, T.no_grad(function() return h:view(2, 2) end)
  end
  it("is not written outside of it", function()
    local w, h, v = pair()
    local taken = "is a view that was taken where no gradients are recorded, of f64%[4%], which requires a gradient"
    assert.error_matches(function() v:mul_(2) end, taken)
    assert.error_matches(function() v:zero_() end, taken)
    assert.error_matches(function() v[1] = 0 end, taken)
    assert.error_matches(function() T.jit(function(x)
      local y = x * 1
      local z = T.no_grad(function() return y:view(2, 2) end)
      z:mul_(2)
      return y
    end)(w) end, "is a view that was taken where no gradients are recorded")
    assert.same({ 2, 4, 6, 8 }, h:detach():totable())
    T.no_grad(function() v:mul_(2) end)
    h:sum():backward()
    assert.same({ 2, 2, 2, 2 }, w.grad:totable())
  end)
  it("nor with what has a history", function()
    local _, h, v = pair()
    local u = T.tensor({ 5, 6 }, { dtype = "f64" }):requires_grad_()
    assert.error_matches(function() v[1]:copy_(u) end, "where no gradients are recorded")
    h:view(2, 2)[1]:copy_(u)
    h:sum():backward()
    assert.same({ 1, 1 }, u.grad:totable())
  end)
  it("is as the others once its base was written", function()
    local w, h, v = pair()
    h:mul_(2)
    v:mul_(2)
    h:sum():backward()
    assert.same({ 8, 8, 8, 8 }, w.grad:totable())
  end)
end)
