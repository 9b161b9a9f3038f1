-- SPDX-License-Identifier: MIT
-- Memory that runs out in the middle of a call, on the CPU and on a device, while tensors that nobody can reach hold
-- some: they are let go and the call goes on, with the same bits. Nothing else collects here.

local T = require "perilune"
local near = require "spec.support.near"
local nn = T.nn

local ROWS, COLUMNS = 256, 1024 -- a megabyte
local places = { cpu = {
  live = function() return T.memory().live end,
  limit = function(bytes) T.set_memory_budget(bytes) end,
} }
if T.core.device.available() then
  places.cuda = {
    live = T.cuda.memory_allocated,
    limit = function(bytes) T.cuda.set_memory_limit(bytes) end,
  }
end

-- name → a function that prepares, and returns what is called: its results are compared
local CASES = {}
local function chain(x)
  for _ = 1, 6 do x = (x * 1.25):sin() * x end
  return x
end
function CASES.backward(device)
  local x = T.randn({ ROWS, COLUMNS }, { device = device }):requires_grad_()
  local loss = chain(x):sum()
  return function()
    loss:backward()
    return x.grad
  end
end
CASES["second derivatives"] = function(device)
  local x = T.randn({ ROWS, COLUMNS }, { device = device }):requires_grad_()
  local g = T.grad_of(chain(x):sum(), x, { create_graph = true })
  local loss = g:square():sum()
  return function() return T.grad_of(loss, x) end
end
CASES["backward through hooks and rules"] = function(device)
  local square = T.custom { name = "square", forward = function(ctx, x)
    ctx:save(x)
    return x * x
  end, backward = function(ctx, g) return ctx:saved() * g * 2 end }
  local x = T.randn({ ROWS, COLUMNS }, { device = device }):requires_grad_()
  local y = square(x)
  y:register_hook(function(g) return g * 2 end)
  local loss = square(y:cos()):sum()
  return function() return T.grad_of(loss, x) end
end
CASES["backward of a checkpoint"] = function(device)
  local x = T.randn({ ROWS, COLUMNS }, { device = device }):requires_grad_()
  local loss = T.checkpoint(chain, x):sum()
  return function() return T.grad_of(loss, x) end
end
CASES["values and tangents"] = function(device)
  local x, v = T.randn({ ROWS, COLUMNS }, { device = device }), T.ones({ ROWS, COLUMNS }, { device = device })
  return function() return T.jvp(chain, x, v) end
end
CASES["a jitted function"] = function(device)
  local x = T.randn({ ROWS, COLUMNS }, { device = device })
  local f = T.jit(function(a) return chain(a):sum(1), chain(a):cumsum(1) end)
  for _ = 1, 2 do f(x) end
  return function() return f(x) end
end
CASES["gradients of a jitted function"] = function(device)
  local x = T.randn({ ROWS, COLUMNS }, { device = device }):requires_grad_()
  local f = T.jit(function(a) return chain(a):cumsum(1):square():mean() end)
  T.grad_of(f(x), x)
  local loss = f(x)
  return function() return T.grad_of(loss, x) end
end
CASES["a step of an optimizer"] = function(device)
  local net = nn.Linear(512, 512):to(device)
  -- no product: the workspace of its library would be in use, too
  local loss = net.weight:square():sum() + net.bias:square():sum()
  loss:backward()
  local opt = T.optim.AdamW(net:parameters(), { lr = 0.01 })
  return function()
    opt:step()
    return net.weight:detach():clone()
  end
end
CASES["one op"] = function(device)
  local x = T.randn({ ROWS, COLUMNS }, { device = device })
  return function() return x:sort(2), x + 1, x:exp_(), x * x end
end

describe("memory that runs out", function()
  local function run(device, make, tight)
    T.manual_seed(3)
    local place, call = places[device], make(device)
    local seen = setmetatable({}, { __mode = "k" })
    if tight then
      collectgarbage()
      T.empty_cache()
      if device == "cuda" then T.cuda.empty_cache() end -- no block idles, which needs no memory
      T.core.debug_collect "stop"
      for _ = 1, 24 do seen[T.zeros({ ROWS, COLUMNS }, { device = device })] = true end
      place.limit(place.live())
    end
    local out = table.pack(pcall(call))
    place.limit(nil)
    T.core.debug_collect "off"
    assert(out[1], out[2])
    if tight then assert.is_nil(next(seen), "nothing was collected: there was room") end
    for i = 2, out.n do out[i] = out[i]:detach():cpu() end
    return out
  end

  for device in pairs(places) do
    for name, make in pairs(CASES) do
      it(("on %s: %s"):format(device, name), function()
        local want, got = run(device, make), run(device, make, true)
        assert.equal(want.n, got.n)
        for i = 2, want.n do near.same_bits(want[i], got[i]) end
      end)
    end
  end
end)
