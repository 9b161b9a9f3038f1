-- SPDX-License-Identifier: MIT
-- Whether ops record belongs to the coroutine: a scope that one opened and left, by yielding or for good, is not that
-- of who resumed it.

local T = require "perilune"
local in_child = require "spec.support.child"

local function records() return (T.ones(2):requires_grad_() * 2).requires_grad end

-- What may be opened, each with what tells that it is open.
local function keyed(f)
  local x = T.ones(2)
  local key <close> = T.GradKey { ambient = true }
  key:attach(x)
  return T.enable_grad(f, x)
end
local packed
local KINDS = {
  no_grad = { open = function() return T.no_grad() end, seen = function() return not T.is_grad_enabled() end },
  autocast = { open = function() return T.autocast "bf16" end, seen = T.is_autocast_enabled },
  saved = {
    open = function()
      return T.saved_tensors { pack = function(t) packed = true return t end, unpack = function(t) return t end }
    end,
    seen = function()
      packed = false
      keyed(function(x) return x * x end)
      return packed
    end,
  },
  record = {
    open = function() return T.GradManager():attach(T.ones(2)):record() end,
    seen = function() return not T.enable_grad(records) end,
  },
  vmap = { -- as T.vmap(f, {randomness = "different"}) has while f runs
    open = function() return T.core.batch_open(3, "different") end,
    seen = function() return T.core.is_batched(T.rand(2)) end,
  },
}
local NAMES = { "no_grad", "autocast", "saved", "record", "vmap" }

describe("scopes of coroutines in any order", function()
  local function check(open, where)
    for _, name in ipairs(NAMES) do
      if KINDS[name].seen() ~= ((open[name] or 0) > 0) then
        error(("%s: %s is%s open"):format(where, name, (open[name] or 0) > 0 and " not" or ""), 0)
      end
    end
  end

  -- A coroutine that opens, closes and yields at random, `around` being open where it is resumed.
  local function worker(draw, around, depth)
    return coroutine.create(function()
      local open = setmetatable({}, { __index = around })
      local function block(level)
        for _ = 1, draw(4) do
          check(open, "in a coroutine")
          local what = draw(8)
          if what <= 3 then coroutine.yield()
          elseif what <= 6 and level < 4 then
            local name = NAMES[draw(#NAMES)]
            do
              local _ <close> = KINDS[name].open()
              open[name] = (open[name] or 0) + 1
              block(level + 1)
            end
            open[name] = open[name] - 1
          elseif what == 7 and level > 0 and draw(3) == 1 then error "on purpose"
          elseif depth < 2 then
            local seen = {}
            for _, name in ipairs(NAMES) do seen[name] = open[name] end
            local child = worker(draw, seen, depth + 1)
            for _ = 1, draw(6) do
              if coroutine.status(child) == "suspended" then
                local ok, why = coroutine.resume(child)
                if not ok and not tostring(why):find "on purpose" then error(why, 0) end
                check(open, "beside its child")
              end
            end
            if draw(2) == 1 then coroutine.close(child) end
            check(open, "after its child")
          end
        end
      end
      block(0)
    end)
  end

  for _, outer in ipairs { "none", "no_grad", "autocast", "saved", "record", "vmap" } do
    it("are theirs, with " .. outer .. " around all", function()
      local around = KINDS[outer] and { [outer] = 1 } or {}
      local _ <close> = KINDS[outer] and KINDS[outer].open() or nil
      local state = 7
      local function draw(n)
        state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
        return (state >> 33) % n + 1
      end
      for round = 1, 20 do
        local all = {}
        for i = 1, 4 do all[i] = worker(draw, around, 0) end
        for _ = 1, 40 do
          local co = all[draw(4)]
          if coroutine.status(co) == "suspended" then
            if draw(20) == 1 then coroutine.close(co)
            else
              local ok, why = coroutine.resume(co)
              if not ok and not tostring(why):find "on purpose" then error("round " .. round .. ": " .. why, 0) end
            end
          elseif draw(2) == 1 then coroutine.close(co) end
          check(around, "outside, round " .. round)
        end
        all = nil -- luacheck: ignore 311
        if round % 10 == 0 then collectgarbage() end
      end
      collectgarbage()
      check(around, "after all")
    end)
  end
end)

describe("functions that yield", function()
  local x
  before_each(function() x = T.linspace(-1, 2, 12):reshape(3, 4) end)
  after_each(function() x = nil end)
  local function pause() if coroutine.isyieldable() then coroutine.yield() end end
  local function f(v)
    pause()
    local a = (v * 2):sin()
    pause()
    return a * v + a:sum()
  end
  local function total(v) return f(v):square():sum() end
  local CALLS = {
    grad = function() return T.grad(total)(x) end,
    vjp = function()
      local y, pull = T.vjp(f, x)
      pause()
      return (pull(y))
    end,
    jvp = function() return select(2, T.jvp(f, x, x)) end,
    vmap = function() return T.vmap(f)(x) end,
    ["vmap of grad"] = function() return T.vmap(T.grad(total))(x) end,
    ["grad of vmap"] = function() return T.grad(function(v) return T.vmap(f)(v):square():sum() end)(x) end,
    jacobian = function() return T.jacobian(f, x:select(1, 1)) end,
  }
  local names = {}
  for name in pairs(CALLS) do names[#names + 1] = name end
  table.sort(names)

  it("give in turns what they give alone", function()
    local want = {}
    for _, name in ipairs(names) do
      local alone = coroutine.wrap(function() return "done", CALLS[name]() end)
      local state, y
      repeat state, y = alone() until state == "done"
      want[name] = y
    end
    for first = 1, #names do
      for second = 1, #names do
        local running = {}
        for i, name in ipairs { names[first], names[second], names[(first + second) % #names + 1] } do
          running[i] = { name = name, co = coroutine.create(CALLS[name]) }
        end
        local turn = first
        while #running > 0 do
          turn = turn * 5 + second + 1
          local at = turn % #running + 1
          turn = turn % 1009
          local r = running[at]
          local ok, y = coroutine.resume(r.co)
          assert(ok, y)
          if coroutine.status(r.co) == "dead" then
            table.remove(running, at)
            assert(y:allclose(want[r.name]), r.name)
          end
          assert(not T.core.is_batched(T.rand(2)))
        end
      end
    end
  end)
end)

describe("T.no_grad in a coroutine", function()
  after_each(function()
    assert.is_true(T.is_grad_enabled())
    assert.is_true(records())
    collectgarbage()
  end)

  it("that is abandoned inside stays there", function()
    local co = coroutine.wrap(function()
      local _ <close> = T.no_grad()
      assert.is_false(records())
      coroutine.yield(1)
    end)
    assert.equal(1, co())
    assert.is_true(T.is_grad_enabled())
    assert.is_true(records())
    co = nil -- luacheck: ignore 311
    collectgarbage()
    collectgarbage()
    assert.is_true(records())
  end)

  it("as a function, too, with arguments and results through yields", function()
    local seen = {}
    local co = coroutine.wrap(function()
      local r = T.no_grad(function(a)
        seen[#seen + 1] = records()
        local b = coroutine.yield(a)
        seen[#seen + 1] = records()
        return b
      end, 3)
      seen[#seen + 1] = records()
      return r
    end)
    assert.equal(3, co())
    assert.is_true(records())
    assert.equal(4, co(4))
    assert.same({ false, false, true }, seen)
  end)

  it("goes on where it was, whoever ran meanwhile", function()
    local log = {}
    local function worker(name, on)
      return coroutine.wrap(function()
        local _ <close> = on and T.enable_grad() or T.no_grad()
        for _ = 1, 3 do
          log[#log + 1] = name .. tostring(records())
          coroutine.yield()
        end
      end)
    end
    local a, b = worker("a", false), worker("b", true)
    for _ = 1, 3 do
      a()
      assert.is_true(records())
      b()
      T.no_grad(function()
        assert.is_false(records())
        assert.is_false(T.is_grad_enabled())
      end)
    end
    a() b()
    assert.equal("afalse btrue afalse btrue afalse btrue", table.concat(log, " "))
  end)

  it("is what those that it resumes begin with", function()
    local inner = {}
    local co = coroutine.wrap(function()
      local _ <close> = T.no_grad()
      local child = coroutine.wrap(function()
        inner[1] = records()
        T.enable_grad(function() inner[2] = records() end)
        inner[3] = records()
        coroutine.yield()
        inner[4] = records()
      end)
      child()
      inner[5] = records()
      coroutine.yield(child)
    end)
    local child = co()
    assert.is_true(records())
    child() -- resumed from here now: it has no scope of its own
    assert.same({ false, true, false, true, false }, inner)
  end)

  it("of the main thread holds for what it resumes", function()
    local co = coroutine.wrap(function()
      coroutine.yield(records())
      T.enable_grad(function() coroutine.yield(records()) end)
      coroutine.yield(records())
    end)
    T.no_grad(function()
      assert.is_false(co())
      assert.is_true(co())
      assert.is_false(records())
      assert.is_false(co())
    end)
  end)

  it("that ends by an error is over", function()
    local co = coroutine.create(function()
      local _ <close> = T.no_grad()
      error "stop"
    end)
    assert.is_false((coroutine.resume(co)))
    coroutine.close(co)
    assert.is_true(records())
    local co2 = coroutine.create(function()
      local _ <close> = T.no_grad()
      coroutine.yield()
    end)
    coroutine.resume(co2)
    coroutine.close(co2)
    assert.is_true(records())
  end)

  it("costs nobody a gradient: a generator of batches", function()
    local function batches()
      return coroutine.wrap(function()
        local _ <close> = T.no_grad()
        for i = 1, 4 do coroutine.yield(T.full({ 2 }, i + 0.0) * 1) end
      end)
    end
    local w = T.ones(2):requires_grad_()
    for x in batches() do
      (w * x):sum():backward()
      if x:get(1) == 3 then break end
    end
    assert.same({ 6, 6 }, w.grad:totable())
  end)

  it("thousands of them are collected", function()
    for _ = 1, 3000 do
      local co = coroutine.wrap(function()
        local _ <close> = T.no_grad()
        coroutine.yield()
      end)
      co()
    end
    collectgarbage()
    assert.is_true(records())
  end)

  it("have no part in which trace of a jitted function runs", function()
    local text, fine = in_child("", [[
      local w = T.ones(3):requires_grad_()
      local f = T.jit(function(x) return (x * w):sum() end)
      local x = T.ones(3)
      f(x)
      f(x)
      for _ = 1, 5 do
        local co = coroutine.wrap(function()
          local _ <close> = T.no_grad()
          f(x)
          f(x)
          coroutine.yield()
        end)
        co()
        w.grad = nil
        f(x):backward() -- the first thing that happens here since
        io.write(table.concat(w.grad:totable(), " "), "\n")
      end]])
    assert.is_true(fine, text)
    assert.equal(("1.0 1.0 1.0\n"):rep(5), text)
  end)
end)

describe("T.autocast in a coroutine", function()
  local function product() return (T.ones(2, 2):matmul(T.ones(2, 2))):dtype() end

  after_each(function()
    assert.is_false(T.is_autocast_enabled())
    assert.equal("f32", product())
    collectgarbage()
  end)

  it("that is abandoned inside stays there", function()
    local co = coroutine.wrap(function()
      local _ <close> = T.autocast("bf16")
      assert.equal("bf16", product())
      coroutine.yield(1)
    end)
    assert.equal(1, co())
    assert.is_false(T.is_autocast_enabled())
    assert.equal("f32", product())
    co = nil -- luacheck: ignore 311
    collectgarbage()
  end)

  it("goes on where it was, and its casts of leaves are let go of when nobody is inside", function()
    local w = T.ones(2, 2):requires_grad_()
    local co = coroutine.wrap(function()
      local _ <close> = T.autocast("bf16")
      for _ = 1, 2 do coroutine.yield(T.ones(2, 2):matmul(w):dtype()) end
      return product()
    end)
    assert.equal("bf16", co())
    assert.equal("f32", T.ones(2, 2):matmul(w):dtype())
    local held = setmetatable({ w }, { __mode = "v" })
    assert.equal("bf16", co())
    assert.equal("f32", product())
    assert.equal("bf16", co())
    assert.equal("f32", product())
    co, w = nil, nil -- luacheck: ignore 311
    collectgarbage()
    collectgarbage()
    assert.is_nil(held[1])
  end)

  it("has the region of who resumed it, and keeps T.no_grad apart from it", function()
    local seen = {}
    T.autocast("bf16", function()
      local co = coroutine.wrap(function()
        seen[1] = product()
        local _ <close> = T.no_grad()
        seen[2] = product()
        coroutine.yield()
        local _ <close> = T.autocast("bf16", { enabled = false })
        seen[4] = product()
        coroutine.yield()
      end)
      co()
      seen[3] = tostring(T.is_grad_enabled())
      co()
      seen[5] = product()
    end)
    assert.same({ "bf16", "bf16", "true", "f32", "bf16" }, seen)
  end)
end)

describe("the first scope that a coroutine opens", function()
  it("inside of what has modes of its own leaves those of the main thread alone", function()
    local text, fine = in_child("", [[
      local w = T.ones(2):requires_grad_()
      local c = T.custom {
        name = "c",
        forward = function(_, x) return T.no_grad(function() return x * 2 end) end,
        backward = function(_, g) return g * 2 end,
      }
      local function modes() return tostring(T.is_grad_enabled()) .. " " .. tostring(T.is_autocast_enabled()) end
      coroutine.wrap(function() c(w) coroutine.yield() end)()
      print(modes(), (w * 2).requires_grad)
      local _ <close> = T.autocast "bf16"
      c(w)
      coroutine.wrap(function() c(w) print(modes()) coroutine.yield() end)()
      print(modes())]])
    assert.equal("true false\ttrue\ntrue true\ntrue true\n", text)
    assert.is_truthy(fine)
    text = in_child("", [[
      local _ <close> = T.autocast "bf16"
      local w = T.ones(2):requires_grad_()
      w:register_hook(function() local _ <close> = T.no_grad() end)
      coroutine.wrap(function() (w * 2):sum():backward() coroutine.yield() end)()
      print(T.is_grad_enabled(), T.is_autocast_enabled())]])
    assert.equal("true\ttrue\n", text)
  end)

  -- In a process of its own each, since there is one first scope. `act` is called from within the engine.
  local PLACES = {
    hook = "local y = x * 2 y:register_hook(act) y:sum():backward()",
    post_hook = "x:register_post_accumulate_grad_hook(act); (x * 2):sum():backward()",
    key = "local k = T.GradKey {} k:attach(x, act) k:backward((x * 2):sum())",
    rule = [[T.custom { name = "r", forward = function(_, v) return v * 2 end,
      backward = function(_, g) act() return g * 2 end }(x):sum():backward()]],
    rule_forward = [[T.custom { name = "r", forward = function(_, v) act() return v * 2 end,
      backward = function(_, g) return g * 2 end }(x):sum():backward()]],
    rule_pulled = [[local r = T.custom { name = "r", forward = function(_, v) return v * 2 end,
      backward = function(_, g) act() return g * 2 end } select(2, T.vjp(r, x))(x)]],
    rule_jvp = [[local r = T.custom { name = "r", forward = function(_, v) return v * 2 end,
      backward = function(_, g) return g * 2 end, jvp = function(_, t) act() return t * 2 end } T.jvp(r, x, x)]],
    pack = "T.saved_tensors({ pack = function(t) act() return t end, unpack = function(t) return t end }, T.mul, x, x)",
    unpack = [[T.saved_tensors({ pack = function(t) return t end, unpack = function(t) act() return t end },
      T.mul, x, x):sum():backward()]],
    again = "T.checkpoint(function(v) again(act) return v:sin():cos() end, x):sum():backward()",
    again_elsewhere = [[local y = T.autocast("f16", function()
      return T.no_grad(function() return T.enable_grad(function()
        return T.checkpoint(function(v) again(act) return v:matmul(v):sin() end, x) end) end) end)
      y:float():sum():backward()]],
    again_rule = [[local r = T.custom { name = "r", forward = function(_, v) again(act) return v * 2 end,
      backward = function(_, g) return g * 2 end }
      local y = T.autocast("f16", function() return T.checkpoint(function(v) return r(v:matmul(v)):sin() end, x) end)
      y:float():sum():backward()]],
  }
  local MODES = { plain = "", autocast = "local _ <close> = T.autocast 'bf16'" }
  local SCOPES = { no_grad = "T.no_grad()", autocast = "T.autocast 'bf16'" }
  for name, place in pairs(PLACES) do
    it("leaves all modes alone where the engine calls it: " .. name, function()
      for mode, open in pairs(MODES) do
        for kind, scope in pairs(SCOPES) do
          local text = in_child("", ([[
            local runs = 0
            local function modes()
              if runs == 2 then return T.is_grad_enabled(), T.is_autocast_enabled() end -- a second run
              local x = T.ones(2, 2):requires_grad_()
              return T.is_grad_enabled(), T.is_autocast_enabled(), (x * 2).requires_grad, x:matmul(x):dtype()
            end
            local function seen(...)
              local list = { ... }
              for i, v in ipairs(list) do list[i] = tostring(v) end
              return table.concat(list, " ")
            end
            local function act()
              local was = seen(modes())
              coroutine.wrap(function() local _ <close> = %s coroutine.yield() end)()
              local inside = coroutine.wrap(function() return seen(modes()) end)()
              if seen(modes()) ~= was or inside ~= was then print("inside: " .. was, seen(modes()), inside) end
            end
            local function again(f)
              runs = runs + 1
              if runs == 2 then f() end
            end
            local x = T.ones(2, 2):requires_grad_()
            %s
            local was = seen(modes())
            do %s end
            print(runs)
            runs = 0
            local after = seen(modes())
            local later = coroutine.wrap(function() return seen(modes()) end)()
            if after ~= was or later ~= was then print("after: " .. was, after, later) end
            print "done"]]):format(scope, open, place))
          assert.equal(place:find "again" and "2\ndone\n" or "0\ndone\n", text, mode .. ", " .. kind)
        end
      end
    end)
  end
end)
