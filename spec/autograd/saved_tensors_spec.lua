-- SPDX-License-Identifier: MIT
-- T.saved_tensors: what backward keeps passes through pack and unpack, or is moved elsewhere.
local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local fails = near.fails

local function clone(t) return t:clone() end
local function same(x) return x end

-- A net with native rules, graph rules, precomputed values, several outputs, and second derivatives.
local function net(x, w)
  local h = (x:matmul(w) * w[1]):tanh():softmax(2)
  local v, i = h:max(2)
  return (h:sqrt() * v:unsqueeze(2)):sum() + (h:exp() / (h + 1)):sum() + i:to("f32"):sum()
end

local function gradients(create)
  local x = T.manual_seed(3).randn(4, 5):requires_grad_()
  local w = T.randn(5, 5):requires_grad_()
  local g = T.grad_of({ net(x, w) }, { x, w }, { create_graph = create })
  if create then g = T.grad_of({ (g[1] * g[1]):sum() + g[2]:sin():sum() }, { x, w }) end
  return g
end

local function equal(a, b) for i = 1, #a do assert.is_true(a[i]:equal(b[i])) end end

describe("T.saved_tensors", function()
  it("gives the same bits, to second order, and packs as often as it discards", function()
    for _, create in ipairs { false, true } do
      local want, packed = gradients(create), 0
      live.flat(T, function()
        local got = T.saved_tensors({
          pack = function(t) packed = packed + 1 return { copy = t:clone(), at = packed } end,
          unpack = function(p) return p.copy end,
        }, gradients, create)
        equal(want, got)
      end)
      assert.is_true(packed > 10)
    end
  end)

  it("unpacks again with retain_graph, and the tape that is dropped leaves nothing", function()
    live.flat(T, function()
      local x, n = T.rand(3):requires_grad_(), 0
      local y
      do
        local _ <close> = T.saved_tensors { pack = clone, unpack = function(t) n = n + 1 return t end }
        y = (x * x):sum()
      end
      y:backward { retain_graph = true }
      y:backward()
      assert.equal(4, n)
      assert.is_true(x.grad:equal(x:detach() * 4))
      fails("retain_graph=true", y.backward, y)
      T.saved_tensors({ pack = clone, unpack = same }, function() return (x * x):sum() end)
    end)
  end)

  it("only what is recorded inside passes, through the innermost pair", function()
    local log = {}
    local function pair(name)
      return { pack = function(t) log[#log + 1] = name return t end, unpack = same }
    end
    local x = T.rand(2):requires_grad_()
    local a = x * x
    do
      local outer <close> = T.saved_tensors(pair "outer")
      a = a * a
      do
        local inner <close> = T.saved_tensors(pair "inner")
        a = a * a
        assert.is_truthy(inner)
      end
      a = a:exp()
      assert.is_truthy(outer)
    end
    a = a * a
    a:sum():backward()
    assert.equal("outer outer inner inner outer", table.concat(log, " "))
  end)

  it("closes in any order, twice too", function()
    local n = 0
    local function count() return { pack = function(t) n = n + 1 return t end, unpack = same } end
    local x = T.rand(2):requires_grad_()
    do
      local a <close> = T.saved_tensors(count())
      local b <close> = T.saved_tensors(count())
      getmetatable(a).__close(a)
      local _ = x:exp()
      assert.equal(1, n)
      assert.is_truthy(b)
    end
    local _ = x:exp()
    assert.equal(1, n)
  end)

  it("gives pack the parameter itself, so that it can be told", function()
    local w, x = T.rand(2, 2):requires_grad_(), T.rand(2, 2)
    local seen
    T.saved_tensors({ pack = function(t) if rawequal(t, w) then seen = true end return t end, unpack = same },
      function() x:matmul(w):sum():backward() end)
    assert.is_nil(seen) -- matmul keeps x for w's gradient
    T.saved_tensors({ pack = function(t) if rawequal(t, w) then seen = true end return t end, unpack = same },
      function() x:requires_grad_():matmul(w):sum():backward() end)
    assert.is_true(seen)
  end)

  it("checks what unpack returns, naming the op", function()
    local x = T.rand(3):requires_grad_()
    local function back(unpack)
      local y = T.saved_tensors({ pack = clone, unpack = unpack }, function() return (x * x):sum() end)
      return pcall(y.backward, y)
    end
    local function text(unpack) local ok, e = back(unpack) assert.is_false(ok) return e end
    assert.matches("backward of mul: unpack returned f32%[2%] on %a+ for a saved f32%[3%] on %a+",
      text(function() return T.ones(2) end))
    assert.matches("backward of mul: unpack returned f64%[3%] on %a+ for a saved f32%[3%] on %a+",
      text(function() return T.ones({ 3 }, { dtype = "f64" }) end))
    assert.matches("unpack must return a tensor, got nil", text(function() end))
    local thrown = {}
    local ok, e = back(function() error(thrown) end)
    assert.is_false(ok)
    assert.is_true(rawequal(e, thrown))
    assert.is_true(back(same))
  end)

  it("an error in pack is the op's error, and leaves nothing", function()
    local thrown = {}
    live.flat(T, function()
      local x = T.rand(3):requires_grad_()
      local s <close> = T.saved_tensors { pack = function() error(thrown) end, unpack = same }
      local ok, e = pcall(T.mul, x, x)
      assert.is_false(ok)
      assert.is_true(rawequal(e, thrown))
      assert.is_truthy(s)
    end)
    fails("pack returned nil", T.saved_tensors, { pack = function() end, unpack = same },
      function() return T.rand(2):requires_grad_():exp() end)
    fails("pack changed the tensor it was given", T.saved_tensors,
      { pack = function(t) return T.no_grad(function() return t:add_(1) end) end, unpack = same },
      function() return T.rand(2):requires_grad_():exp() end)
  end)

  it("checks the version of a tensor that pack returned", function()
    local x = T.rand(3):requires_grad_()
    local y, z = T.saved_tensors({ pack = same, unpack = same }, function()
      local h = x * 2
      return h, (h * h):sum()
    end)
    T.no_grad(function() y:add_(1) end)
    fails("was modified in place afterwards", z.backward, z)
  end)

  it("passes what ctx:save keeps, and checks it", function()
    local cube = T.custom { name = "cube", forward = function(ctx, x) ctx:save(x, nil, x * x) return x * x * x end,
      backward = function(ctx, g)
        local x, none, sq = ctx:saved()
        assert.is_nil(none)
        assert.is_true((x * x):equal(sq))
        return g * x * x * 3
      end }
    local n, thrown = 0, {}
    live.flat(T, function()
      local x = T.tensor { 1, 2 }:requires_grad_()
      T.saved_tensors({ pack = function(t) n = n + 1 return t:tolist() end, unpack = T.tensor },
        function() cube(x):sum():backward() end)
      assert.is_true(x.grad:equal(T.tensor { 3, 12 }))
      local g = T.saved_tensors({ pack = clone, unpack = same }, function()
        local g = T.grad_of({ cube(x):sum() }, { x }, { create_graph = true })[1]
        return T.grad_of({ g:sum() }, { x })[1]
      end)
      assert.is_true(g:equal(T.tensor { 6, 12 }))
      local y = T.saved_tensors({ pack = clone, unpack = function() error(thrown) end }, cube, x)
      local ok, e = pcall(y.backward, y, T.ones(2))
      assert.is_false(ok)
      assert.is_true(rawequal(e, thrown))
    end)
    assert.equal(4, n)
  end)

  it("works in coroutines and is itself not recorded or packed", function()
    local x, n = T.rand(2):requires_grad_(), 0
    local s <close> = T.saved_tensors {
      pack = function(t) n = n + 1 local u = T.enable_grad(function() return x:exp() end) return t + (u - u) end,
      unpack = same }
    local y = coroutine.wrap(function() return x:sin() end)()
    y:sum():backward()
    assert.equal(1, n)
    assert.is_true(x.grad:equal(x:detach():cos()))
    assert.is_truthy(s)
  end)

  it("moves large tensors to a file, with the same bits, and leaves no file behind", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
    local function train(options, fail)
      local x, w = T.manual_seed(1).randn(64, 64):requires_grad_(), T.randn(64, 64):requires_grad_()
      local function run()
        local h = x
        for _ = 1, 6 do h = (h:matmul(w) * 0.1):tanh() * h:t():cos() end
        if fail then error("stop") end
        h:sum():backward { retain_graph = true }
        h:sum():backward()
        return { x.grad, w.grad }
      end
      if not options then return run() end
      return T.saved_tensors(options, run)
    end
    local want = train()
    local options = { offload = "disk", folder = folder, min_bytes = 4096 }
    live.flat(T, function() equal(want, train(options)) end)
    live.flat(T, function() assert.is_false((pcall(train, options, true))) end)
    local list = io.popen("ls -A " .. folder)
    assert.equal("", list:read "a")
    list:close()
    assert(os.execute("rmdir " .. folder))
    fails("cannot create a file for saved tensors", T.saved_tensors, { offload = "disk", folder = folder })
  end)

  it("frees the memory of what went to a file", function()
    local function held(options)
      local x = T.rand(1 << 16):requires_grad_()
      local function forward()
        local h = x
        for _ = 1, 8 do h = h:sin() end
        return h:sum()
      end
      live.collect()
      local before = T.memory().live
      local y = options and T.saved_tensors(options, forward) or forward()
      live.collect()
      return T.memory().live - before, y
    end
    local kept = held()
    local moved = held { offload = "disk", min_bytes = 1 << 16 }
    assert.is_true(kept >= 7 * (1 << 18))
    assert.is_true(moved < 1 << 16)
    assert.is_true(held { offload = "disk", min_bytes = 1 << 20 } >= 7 * (1 << 18)) -- below the bound: stays
    assert.is_true(held { offload = "host", min_bytes = 0 } >= 7 * (1 << 18))       -- it is there already
  end)

  it("refuses wrong calls", function()
    local f = T.saved_tensors
    fails("a table {pack=, unpack=} or {offload=} expected, got nil", f)
    fails("pack must be a function, got nil", f, {})
    fails("unpack must be a function", f, { pack = same, unpack = 1 })
    fails('offload must be "host" or "disk"', f, { offload = "gpu" })
    fails("not both", f, { offload = "host", pack = same })
    fails("min_bytes", f, { offload = "disk", min_bytes = -1 })
    fails("min_bytes", f, { offload = "disk", min_bytes = 1.5 })
    fails("goes with offload", f, { pack = same, unpack = same, folder = "/tmp" })
    fails("folder is the path", f, { offload = "host", folder = "/tmp" })
    fails("a function or nothing expected", f, { pack = same, unpack = same }, 3)
    fails("pak", f, { pak = same })
    local x = T.rand(1):requires_grad_()
    local log = 0
    fails("boom", f, { pack = function(t) log = log + 1 return t end, unpack = same }, function() error("boom") end)
    local _ = x * x
    assert.equal(0, log)
  end)
end)
