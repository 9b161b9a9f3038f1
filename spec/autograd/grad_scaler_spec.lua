-- SPDX-License-Identifier: MIT
-- T.GradScaler: scaled losses, unscaled gradients, steps that are left out, states.

local T = require "perilune"
local fixture = require "spec.fixtures.mixed_precision"
local near = require "spec.support.near"
local nn = T.nn
local fails = near.fails

describe("T.GradScaler", function()
  local function sgd()
    local p = nn.Parameter(T.tensor { 1.0, -2.0 })
    return p, T.optim.SGD({ p }, { lr = 0.1 })
  end

  it("goes PyTorch's way", function()
    local p, opt = sgd()
    local s = T.GradScaler(fixture.scaler.options)
    for i, row in ipairs(fixture.scaler.steps) do
      opt:zero_grad()
      s:scale((p * p):sum() * row[1]):backward()
      s:step(opt)
      s:update()
      near.near(p, { row[2], row[3] }, 1e-6)
      assert.equal(row[4], s:get_scale(), "scale after step " .. i)
      assert.equal(row[5], s:state_dict()._growth_tracker)
    end
  end)

  it("unscales once, before clipping", function()
    local p, opt = sgd()
    local s = T.GradScaler { init_scale = 16 }
    s:scale((p * 3):sum()):backward()
    near.near(p.grad, { 48, 48 })
    s:unscale_(opt)
    near.near(p.grad, { 3, 3 })
    fails("once is enough", function() s:unscale_(opt) end)
    nn.utils.clip_grad_value_({ p }, 1.0)
    s:step(opt)
    near.near(p, { 0.9, -2.1 })
    fails("call update", function() s:step(opt) end)
    fails("must come before", function() s:unscale_(opt) end)
    s:update()
    assert.equal(16.0, s:get_scale())
    local run = T.jit(function() s:scale((p * 3):sum()):backward() end)
    for turn = 1, 3 do -- the first two end behind unscale_, by an error
      opt:zero_grad { set_to_none = turn ~= 2 }
      run()
      if turn < 3 then s:unscale_(opt) else s:step(opt) end
    end
    near.near(p, { 0.6, -2.4 })
  end)

  it("saves and takes up its state", function()
    local a = T.GradScaler { init_scale = 8, growth_interval = 5 }
    local p, opt = sgd()
    a:scale(p:sum()):backward()
    a:step(opt)
    a:update()
    local b = T.GradScaler()
    assert.equal(65536.0, b:get_scale())
    b:load_state_dict(a:state_dict())
    assert.same(a:state_dict(), b:state_dict())
    assert.equal(1, b:state_dict()._growth_tracker)
    b:update(4)
    assert.equal(4.0, b:get_scale())
    fails("empty", function() b:load_state_dict {} end)
    fails("growth_factor must be a number", function() b:load_state_dict { scale = 1 } end)
  end)

  it("does nothing when it is off", function()
    local p, opt = sgd()
    local s = T.GradScaler { enabled = false }
    local loss = p:sum()
    assert.equal(loss, s:scale(loss))
    loss:backward()
    s:unscale_(opt)
    s:step(opt)
    s:update()
    near.near(p, { 0.9, -2.1 })
    assert.equal(1.0, s:get_scale())
    assert.same({}, s:state_dict())
    assert.is_false(s:is_enabled())
  end)

  it("refuses misuse", function()
    local p, opt = sgd()
    local s = T.GradScaler()
    fails("update without a step", function() s:update() end)
    fails("no parameter of this optimizer has a gradient", function() s:step(opt) end)
    fails("wants an optimizer", function() s:step(3) end)
    fails("wants a tensor", function() s:scale("x") end)
    fails("closure", function() s:step(opt, function() end) end)
    fails("growth_factor must be a number > 1", function() T.GradScaler { growth_factor = 1 } end)
    fails("unknown option 'scale'", function() T.GradScaler { scale = 1 } end)
    local h = nn.Parameter(T.ones({ 2 }, { dtype = "f16" }))
    local narrow = T.optim.SGD({ h }, { lr = 0.1 })
    s:scale(h:sum()):backward()
    fails("f16 gradients", function() s:unscale_(narrow) end)
    assert.same({ p * 65536 == nil, 65536.0 }, { false, s:scale({ T.ones(1) })[1]:item() })
  end)
end)
