-- SPDX-License-Identifier: MIT
-- Ctrl-C behind instruction n of the library, where functions and blocks change what holds for all that follows, and
-- put it back: recording, mixed precision, batches, keys, a module's parameters. Afterwards everything must be as it
-- was. For the prompt, which takes one Ctrl-C a line:
--   try, finish = dofile "…/interrupt_scopes.lua" (every)
-- then lines of try(), each with one interruption `every` instructions behind the last, till all have been; and
-- finish(), which prints counts.

local T = require "perilune"
local nn = T.nn
local each = dofile(debug.getinfo(1, "S").source:match "^@(.*/)" .. "interrupt_each.lua")

return function(every)
  T.manual_seed(7)
  local net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()):eval()
  local x, others = T.randn(3, 4), {}
  for name, p in net:named_parameters() do others[name] = p:detach() * 2 end
  local manager = T.GradManager():attach(net:parameters())
  local square = T.jit(function(v) return v * v end)

  local function program()
    nn.utils.functional_call(net, others, x)
    T.no_grad(net, x)
    do
      local _ <close> = T.no_grad()
      net(x)
    end
    T.autocast("bf16", net, x)
    do
      local _ <close> = T.autocast "bf16"
      local _ <close> = T.set_grad_enabled(false)
      net(x)
    end
    T.vmap(T.grad(function(v) return net(v:unsqueeze(1)):sum() end))(x)
    T.jvp(function(v) return net(v) end, x, x)
    do
      local _ <close> = manager:record()
      net(x)
    end
    do
      local _ <close> = T.memory_limit "1 GB"
      local _ <close> = T.saved_tensors { pack = function(t) return t end, unpack = function(t) return t end }
      net(x)
    end
    T.checkpoint(net, x):sum():backward()
    T.optim.swa_utils.update_bn(coroutine.wrap(function() coroutine.yield(x) end), net)
  end

  -- What holds now, and what the network says.
  local function state()
    local out = {}
    for _, p in ipairs(net:parameters()) do p.grad = nil end
    for _, m in ipairs(net:modules()) do out[#out + 1] = tostring(m.training) .. tostring(m.momentum) end
    net[2].running_mean:zero_()
    net[2].running_var:fill_(1)
    local y = net(x)
    y:sum():backward()
    for name, p in net:named_parameters() do
      out[#out + 1] = ("%s %.17g %.17g"):format(name, p:detach():sum():item(), p.grad:sum():item())
      p.grad = nil
    end
    out[#out + 1] = ("%s %s %s %s"):format(y:dtype(), T.is_grad_enabled(), T.get_autocast_dtype(), T.memory_limit())
    out[#out + 1] = tostring(square(x):sum():item())
    manager:record(function() return net(x) end)
    T.rand(2) -- no batch is open
    return table.concat(out, "\n")
  end
  local want = state()
  program()
  assert(state() == want)

  return each(every, "share/perilune/", nil, program, function()
    local got = state()
    if got ~= want then return got end
  end)
end
