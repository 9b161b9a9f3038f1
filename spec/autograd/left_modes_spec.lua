-- SPDX-License-Identifier: MIT
-- Functions that the engine calls, such as hooks and rules: what they leave open ends with them, and what they do is no
-- work of a checkpoint that runs around them.
local T = require "perilune"

local LEAVES = {
  function() T.set_grad_enabled(false) end,
  function() T.set_grad_enabled(true) end,
  function() T.autocast "bf16" end,
  function() T.set_grad_enabled(false) T.autocast "bf16" end,
  function() T.set_grad_enabled(false) error "on purpose" end,
}

-- Each calls `act` from within the engine.
local PLACES = {
  register_hook = function(act, x)
    local y = x * 2
    y:register_hook(act)
    y:sum():backward()
  end,
  ["a hook of a leaf"] = function(act, x)
    x:register_hook(act)
    ;(x * 2):sum():backward()
  end,
  ["a hook behind .grad"] = function(act, x)
    x:register_post_accumulate_grad_hook(act)
    ;(x * 2):sum():backward()
  end,
  ["a rule of T.custom"] = function(act, x)
    T.custom { name = "left", forward = function(_, v) return v * 2 end, backward = function(_, g)
      act()
      return g * 2
    end }(x):sum():backward()
  end,
  ["the callback of a key"] = function(act, x)
    local k = T.GradKey { name = "left" }
    k:attach(x, act)
    k:backward((x * 2):sum())
  end,
  unpack = function(act, x)
    local y
    do
      local _ <close> = T.saved_tensors { pack = function(t) return t end, unpack = function(t)
        act()
        return t
      end }
      y = (x * x):sum()
    end
    y:backward()
  end,
  pack = function(act, x)
    local _ <close> = T.saved_tensors { pack = function(t)
      act()
      return t
    end, unpack = function(t) return t end }
    return x * x
  end,
}

local function modes()
  return { T.is_grad_enabled(), T.is_autocast_enabled(), (T.ones(2):requires_grad_() * 2).requires_grad }
end

describe("no_grad and autocast that are left open end", function()
  for name, place in pairs(PLACES) do
    it("with " .. name, function()
      for i, leave in ipairs(LEAVES) do
        for _, around in ipairs { false, "coroutine", "kept" } do
          local function go()
            local was = modes()
            local ok, err = pcall(place, leave, T.ones(2, 2):requires_grad_())
            assert.is_true(ok or err:find "on purpose" ~= nil, err)
            assert.same(was, modes(), ("%s, %d"):format(around, i))
            coroutine.wrap(function() T.no_grad(function() return 1 end) end)()
            assert.same(was, modes(), ("%s, %d, later"):format(around, i))
          end
          if around == "coroutine" then coroutine.wrap(go)()
          elseif around == "kept" then coroutine.wrap(function()
            local _ <close> = T.enable_grad()
            go()
          end)()
          else go() end
          assert.same({ true, false, true }, modes())
        end
      end
    end)
  end
end)

describe("T.saved_tensors around a checkpoint", function()
  local square = T.custom { name = "square", forward = function(ctx, x)
    ctx:save(x)
    return x * x
  end, backward = function(ctx, g) return g * ctx:saved() * 2 end }
  local PACKS = {
    function(t) return t:clone() end, function(t) return (t * 1 + 0):clone() end,
    function(t) return { t:clone():mul_(2):div_(2), T.tensor { 1, 2 } * 2 } end,
    function(t) collectgarbage() return { t * 1 } end,
    function(t) return t:sum():item() > 1e9 and t:clone() or t end,
  }
  local FUNCTIONS = {
    function(a, w) return square(a) * w end,
    function(a, w) return square(square(a) * w):exp() * w end,
    function(a, w) return T.checkpoint(function(b) return square(b) * w end, a * w):sin() end,
    function(a, w) return a:matmul(w):tanh():matmul(w) end,
    function(a, w)
      local b = a * 1
      b[1]:mul_(2)
      return square(b) * w
    end,
    function(a, w)
      for _ = 1, 3 do a = (square(a):matmul(w) + a):tanh() end
      return a
    end,
  }
  it("may run operations in pack and unpack", function()
    for i, pack in ipairs(PACKS) do
      for k, f in ipairs(FUNCTIONS) do
        local function run(packed)
          T.manual_seed(k)
          local x, w = T.randn(3, 3):requires_grad_(), T.randn(3, 3):requires_grad_()
          if packed then
            local function unpack(t) return type(t) == "table" and t[1] * 1 or t end
            local _ <close> = T.saved_tensors { pack = pack, unpack = unpack }
            local ok, err = pcall(function() T.checkpoint(f, x, w):sum():backward() end)
            assert.is_true(ok, ("pack %d, function %d: %s"):format(i, k, tostring(err)))
          else f(x, w):sum():backward() end
          return T.cat { x.grad, w.grad }
        end
        assert.is_true(run(false):equal(run(true)), ("pack %d, function %d"):format(i, k))
      end
    end
  end)
end)

describe("inside a checkpoint", function()
  it(".grad of a tensor from outside cannot change, since it would twice", function()
    local x, a = T.ones(3):requires_grad_(), T.ones(3):requires_grad_()
    for _, act in ipairs {
      function() a.grad = nil end, function() a.grad = T.ones(3) end, function() a:backward(T.ones(3)) end,
      function() T.optim.SGD({ a }, { lr = 1 }):zero_grad() end, function(v) v.grad = nil end,
    } do
      a.grad, x.grad = T.ones(3), T.ones(3)
      local ok, err = pcall(T.checkpoint, function(v)
        act(v)
        return (v * 3):sin()
      end, x)
      assert.is_false(ok)
      assert.matches("grad: inside a checkpoint .* set or clear it outside", err)
      assert.equal(6, (a.grad + x.grad):sum():item())
    end
  end)

  it("may change of what is made there, and where nothing changes", function()
    local x, a = T.ones(3):requires_grad_(), T.ones(3):requires_grad_()
    T.checkpoint(function(v)
      local b = T.ones(3):requires_grad_()
      b.grad = T.ones(3)
      a.grad = nil
      return (v * b.grad):sin()
    end, x):sum():backward()
    assert.is_true(math.abs(3 * math.cos(1) - x.grad:sum():item()) < 1e-6)
  end)
end)
