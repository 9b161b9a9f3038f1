-- SPDX-License-Identifier: MIT
-- A backward that fails in its middle, and a script that catches the error and goes on: leaves without a gradient have
-- none again, and a sum that the backward has changed is refused by whoever would use it, until it is set or written.
-- Random tapes, every hook as the place of the failure.

local T = require "perilune"
local nn, optim = T.nn, T.optim

local function leaves(n)
  local list = {}
  for i = 1, n do list[i] = T.randn(3):requires_grad_() end
  return list
end

-- A chain that takes in one leaf after the other, some twice; raises in the hook of its at-th value.
local function loss(list, order, at)
  local x = T.ones(3)
  for k, i in ipairs(order) do
    x = k % 2 == 0 and x * list[i] or x + list[i]:sin()
    if k == at then x:register_hook(function() error("in hook " .. k) end) end
  end
  return x:sum()
end

local function bits(list)
  local out = {}
  for i, p in ipairs(list) do out[i] = p.grad and p.grad:to_string() or false end
  return out
end

local ways = {
  backward = function(list, order, at) loss(list, order, at):backward() end,
  ["retain_graph"] = function(list, order, at) loss(list, order, at):backward { retain_graph = true } end,
  inputs = function(list, order, at) loss(list, order, at):backward { inputs = list } end,
  limit = function(list, order, at)
    local _ <close> = T.memory_limit "1 GB"
    loss(list, order, at):backward()
  end,
  inside = function(list, order, at) -- of another backward, which fails by it
    local y, inner = T.ones(1):requires_grad_() * 1, loss(list, order, at)
    y:register_hook(function() inner:backward() end)
    y:sum():backward()
  end,
  manager = function(list, order, at)
    local n = 0
    local gm = T.GradManager():attach(list, function()
      n = n + 1
      if at and n == #list - 1 then error("in callback " .. n) end
    end)
    local _ <close> = gm:record()
    gm:backward(loss(list, order))
  end,
}

describe("a backward that fails", function()
  it("leaves no gradient that is a part of one, or says so", function()
    local refused, whole = 0, 0
    for name, way in pairs(ways) do
      for at = 1, 7 do
        T.manual_seed(at)
        local list = leaves(4)
        local order = { 1, 2, 3, 4, at % 4 + 1, 2, 1 }
        local opt = optim.SGD(list, { lr = 0.1 })
        local text = ("%s, hook %d"):format(name, at)

        assert.is_false(pcall(way, list, order, at), text)
        assert.same({ false, false, false, false }, bits(list), text)

        way(list, order)
        local before = bits(list)
        local values = {}
        for i, p in ipairs(list) do values[i] = p:detach():to_string() end
        assert.is_false(pcall(way, list, order, at), text)
        local changed
        for i, b in ipairs(bits(list)) do changed = changed or b ~= before[i] end
        if changed then
          refused = refused + 1
          for who, use in pairs { step = function() opt:step() end, clip_grad_norm_ = function()
            nn.utils.clip_grad_norm_(list, 1)
          end, clip_grad_value_ = function() nn.utils.clip_grad_value_(list, 1) end, GradScaler = function()
            T.GradScaler():unscale_(opt)
          end } do
            local ok, why = pcall(use)
            assert.is_false(ok, text .. ", " .. who)
            assert.truthy(why:find("a part of a backward that failed", 1, true), why)
          end
          way(list, order) -- what is added makes the sum no better
          assert.is_false(pcall(opt.step, opt), text)
        else
          whole = whole + 1
          opt:step()
          for i, p in ipairs(list) do
            T.no_grad(function() p:copy_(T.from_string(values[i], "f32", { 3 })) end)
          end
        end
        for i, p in ipairs(list) do assert.equal(values[i], p:detach():to_string(), text) end

        opt:zero_grad { set_to_none = at % 2 == 0 } -- and all is well
        way(list, order)
        assert.same(before, bits(list), text)
        opt:step()
      end
    end
    assert.is_true(refused > 5 and whole > 0, ("%d refused, %d whole"):format(refused, whole))
  end)

  it("keeps what a backward inside of it has added, and what a hook has set", function()
    local p, q = T.ones(2):requires_grad_(), T.ones(2):requires_grad_()
    local inner = (q * 3):sum()
    p:register_post_accumulate_grad_hook(function(x)
      inner:backward()
      x.grad = T.full({ 2 }, 7.0)
    end)
    local y = q * 2
    y:register_hook(function() error "late" end)
    local z = y * 1 + p -- p's gradient is there before y's
    assert.is_false(pcall(function() z:sum():backward() end))
    assert.same({ 3, 3 }, q.grad:totable())
    assert.same({ 7, 7 }, p.grad:totable())
    optim.SGD({ p, q }, { lr = 0.1 }):step()
  end)

  it("is seen in a jitted step, too", function()
    local list, order = leaves(3), { 1, 2, 3 }
    local opt = optim.SGD(list, { lr = 0.1 })
    local step = T.jit(function() opt:step() end)
    for _ = 1, 3 do
      opt:zero_grad()
      loss(list, order):backward()
      step()
    end
    assert.is_false(pcall(ways.backward, list, order, 1))
    assert.is_false((pcall(step)))
    opt:zero_grad()
    loss(list, order):backward()
    step()
  end)
end)
