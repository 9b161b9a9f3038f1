-- SPDX-License-Identifier: MIT
-- T.jit and tensors with a history that were computed outside: as arguments, captured, as views of what is written
-- between two calls. Gradients are those of the function as it is written.

local T = require "perilune"
local live = require "spec.support.live"

local function plain(f) return f end
local function list(t) return t and t:detach():reshape(-1):totable() end
local function leaf() return T.tensor({ 1, 2, 3, 4 }, { dtype = "f64" }):requires_grad_() end
local function filled(x) return T.full({ 4 }, x, { dtype = "f64" }) end

-- case(jit) → the gradient of its leaf. The function is called with other arguments, too.
local cases = {
  ["a product"] = function(jit)
    local w = leaf()
    local y = w * 2
    local f = jit(function(x) return (x * y):sum() end)
    local a, b = f(filled(3)), f(filled(4));
    (a + b):backward()
    return w.grad
  end,
  ["a view of a leaf, beside the leaf"] = function(jit)
    local w = leaf()
    local part = w[{ { 1, 2 } }]
    local f = jit(function(x) return (x[{ { 1, 2 } }] * part):sum() + w:sum() end)
    f(filled(3)):backward { retain_graph = true }
    f(filled(5)):backward()
    return w.grad
  end,
  ["the argument, too"] = function(jit)
    local w = leaf()
    local y = w:exp()
    local f = jit(function(x) return (x * y):sum() end)
    f(y):backward()
    return w.grad
  end,
  ["changed where nothing is recorded"] = function(jit)
    local w = leaf()
    local y = w * 3
    local f = jit(function(x)
      T.no_grad(function() y:mul_(2) end)
      return (x * y):sum()
    end)
    f(filled(3)):backward()
    return w.grad
  end,
  ["gradient of a gradient"] = function(jit)
    local w = leaf()
    local y = w * w
    local f = jit(function(x) return (x * y * y):sum() end)
    T.grad_of({ f(filled(3)) }, { w }, { create_graph = true })[1]:sum():backward()
    return w.grad
  end,
  ["a view whose base gets a history between two calls"] = function(jit)
    local w = leaf()
    local base = T.zeros(4, { dtype = "f64" })
    local y = base:view { 2, 2 }
    local f = jit(function(x) return (x:view { 2, 2 } * y):sum() end)
    for _ = 1, 3 do assert.is_false(f(filled(3)).requires_grad) end
    base:copy_(w)
    for _ = 1, 3 do f(filled(3)):backward { retain_graph = true } end
    return w.grad
  end,
  ["an argument whose base was written"] = function(jit)
    local w = leaf()
    local f = jit(function(x) return (x * x):sum() end)
    for _ = 1, 3 do assert.is_false(f(T.ones({ 1, 4 }, { dtype = "f64" })).requires_grad) end
    for _ = 1, 3 do
      local base = T.zeros(4, { dtype = "f64" })
      local view = base:unsqueeze(1)
      base:copy_(w)
      f(view):backward()
    end
    return w.grad
  end,
  ["one in a table"] = function(jit)
    local w = leaf()
    local base = T.ones(4, { dtype = "f64" })
    local views = { base:unsqueeze(1) }
    local f = jit(function(x) return (x[1] * 2):sum() end)
    for _ = 1, 3 do assert.is_false(f(views).requires_grad) end
    base:copy_(w)
    f(views):backward { retain_graph = true }
    f(views):backward()
    return w.grad
  end,
}

describe("T.jit and what was computed outside:", function()
  for name, case in pairs(cases) do
    it(name, function() assert.same(list(case(plain)), list(case(T.jit))) end)
  end

  it("its tape is freed by backward as the script's is", function()
    local y = leaf():exp()
    local f = T.jit(function(x) return (x * y):sum() end)
    f(filled(1)):backward()
    assert.error_matches(function() f(filled(1)):backward() end, "freed by an earlier backward")
  end)

  it("a backward inside of the function does not go on there", function()
    local w = leaf()
    local y = w:exp()
    local function step(x)
      local loss = (x * y):sum()
      loss:backward { retain_graph = true }
      return loss:detach()
    end
    assert.error_matches(function() T.jit(step)(filled(1)) end, "backward in a traced function reaches exp, which was "
      .. "computed before the trace began")
    assert.is_nil(w.grad)
    T.jit(step, { fallback = true })(filled(2))
    assert.same(list(y * 2), list(w.grad))
    assert.same(list(filled(3)), list(T.jit(function(x) -- nor need it
      return T.grad_of({ (x * y):sum() }, { y })[1]
    end)(filled(3))))
  end)

  it("a captured tensor that is written with the results goes when nobody has it any more", function()
    local function once(tracked)
      local w = leaf()
      local y = tracked and w * 1 or filled(0)
      local f = T.jit(function(x) return x * y * w end)
      y:copy_(f(filled(1)))
    end
    local function blocks()
      T.core.collect()
      T.debug.cache_clear()
      return (live.blocks(T))
    end
    for _, tracked in ipairs { false, true } do
      once(tracked)
      local before = blocks()
      for _ = 1, 3 do once(tracked) end
      assert.equal(before, blocks())
    end
  end)
end)
