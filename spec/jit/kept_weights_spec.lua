-- SPDX-License-Identifier: MIT
-- Weights that stay the same are put into a kernel's order once (kernels/kernel.h): whoever writes them, in whatever
-- way, is seen by the next run, and the bits are those without.

local T = require "perilune"
local nn = T.nn

-- Small enough a picture that blocked weights are kept, large enough that the library computes it.
local layers = {
  plain = function() return nn.Conv2d(64, 64, 3, { padding = 1 }), T.randn(1, 64, 14, 14) end,
  pointwise = function() return nn.Conv2d(128, 96, 1, { bias = false }), T.randn(2, 128, 14, 14) end,
  grouped = function() return nn.Conv2d(64, 128, 3, { groups = 4, stride = 2 }), T.randn(1, 64, 31, 31) end,
  along_one = function() return nn.Conv1d(96, 64, 5), T.randn(1, 96, 300) end,
  in_space = function() return nn.Conv3d(32, 32, 3), T.randn(1, 32, 8, 8, 8) end,
  uneven = function() return nn.Conv2d(70, 50, 3), T.randn(3, 70, 14, 14) end,
}

local writes = {
  { "in place", function(net) net.weight:mul_(1.5) end },
  { "a part", function(net) net.weight:narrow(1, 3, 1):fill_(0.25) end },
  { "through a view that was there before", function(_, view) view:add_(1) end },
  { "through detach", function(net) net.weight:detach():copy_(T.randn(net.weight:shape())) end },
  { "load_state_dict", function(net)
    local state = net:state_dict()
    for name, t in pairs(state) do state[name] = t * 0.5 end
    net:load_state_dict(state)
  end },
  { "as an output", function(net) T.mul(net.weight:detach(), 2, { out = net.weight:detach() }) end },
  { "another parameter", function(net) net.weight = nn.Parameter(T.randn(net.weight:shape())) end },
  { "an optimizer", function(net, _, x)
    local opt = T.optim.SGD(net:parameters(), { lr = 0.1 })
    T.enable_grad(function() net(x):sum():backward() end)
    opt:step()
  end },
}

describe("weights that kernels keep", function()
  for name, make in pairs(layers) do
    it("are the newest ones: " .. name:gsub("_", " "), function()
      T.manual_seed(6)
      local net, x = make()
      net:eval()
      local f = T.jit(function(v) return net(v):relu() end)
      local function check(what)
        for run = 1, 3 do -- the first sees them, the second keeps, the third uses what was kept
          local got, want = T.no_grad(function() return f(x), net(x):relu() end)
          assert.is_true(got:equal(want), ("%s, run %d"):format(what, run))
        end
      end
      check "as made"
      for _, write in ipairs(writes) do
        local view = net.weight:detach():view(-1)
        T.no_grad(function() write[2](net, view, x) end)
        check(write[1])
      end
    end)
  end

  it("are not those of a clone, nor of another function", function()
    T.manual_seed(7)
    local net, x = layers.plain()
    local other = net:clone()
    local f, g = T.jit(function(v) return net(v) end), T.jit(function(v) return other(v) end)
    T.no_grad(function()
      for _ = 1, 3 do assert.is_true(f(x):equal(g(x))) end
      other.weight:mul_(2)
      for _ = 1, 3 do
        assert.is_true(f(x):equal(net(x)))
        assert.is_true(g(x):equal(other(x)))
      end
    end)
  end)
end)
