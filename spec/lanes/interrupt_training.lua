-- SPDX-License-Identifier: MIT
-- A training that Ctrl-C meets at random instants: after each, the weights and the optimizer's state must be those
-- before a step or those after it, never some of each. For the prompt, which takes one Ctrl-C a line:
--   try, finish = dofile "…/interrupt_training.lua" (optimizer, steps, seed)
-- then lines of try(), each of which trains until the signal that it asked for comes, and finish(), which prints
-- counts.

local T = require "perilune"

return function(name, steps, seed)
  local optimizer, jitted = name:gsub("^jit%-", "")

  local function build()
    T.manual_seed(7)
    local layers = {}
    for i = 1, 12 do layers[2 * i - 1], layers[2 * i] = T.nn.Linear(48, 48), T.nn.Tanh() end
    local net = T.nn.Sequential(table.unpack(layers))
    local opt = T.optim[optimizer](net:parameters(), { lr = 1e-3 })
    local x, y = T.randn(32, 48), T.randn(32, 48)
    local function step()
      opt:zero_grad()
      T.nn.F.mse_loss(net(x), y):backward()
      opt:step()
    end
    return net, opt, jitted > 0 and T.jit(step) or step
  end

  -- All numbers of weights and of the optimizer's state but zeros, as which a state begins.
  local function state(net, opt)
    local parts = {}
    local function walk(v)
      if T.is_tensor(v) then
        local sum = (v:detach():to "f64" * 3.7):sin():sum():item()
        if sum ~= 0 then parts[#parts + 1] = ("%.17g"):format(sum) end
      elseif type(v) == "table" then
        local keys = {}
        for k in pairs(v) do keys[#keys + 1] = k end
        table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
        for _, k in ipairs(keys) do walk(v[k]) end
      elseif type(v) == "number" and v ~= 0 then
        parts[#parts + 1] = ("%.17g"):format(v)
      end
    end
    for _, p in ipairs(net:parameters()) do walk(p) end
    walk(opt:state_dict())
    return table.concat(parts, " ")
  end

  local want = {}
  do
    local net, opt, step = build()
    want[0] = state(net, opt)
    for i = 1, steps do
      step()
      want[i] = state(net, opt)
    end
  end

  local net, opt, step = build()
  local done, interrupted, after, torn = 0, 0, 0, 0
  local deaf = false -- a signal did not come: nobody waits for those behind it

  -- The sender waits for a file, removes it, waits a little and sends one signal. It lives as long as this process.
  local pid = assert(tonumber(io.open("/proc/self/stat"):read "a":match "^%d+"))
  local token = os.tmpname()
  os.remove(token)
  os.execute(([[( i=0; while kill -0 %d; do
    if [ -e '%s' ]; then rm -f '%s'; i=$((i+1)); sleep 0.0$(( (i * %d + 7919) %% 97 )); kill -INT %d;
    else sleep 0.01; fi; done ) >/dev/null 2>&1 &]]):format(pid, token, token, seed, pid))

  -- What an interruption left: the state of which step?
  local function look()
    local now = state(net, opt)
    if now == want[done + 1] then
      done, after = done + 1, after + 1
    elseif now ~= (want[done] or want[0]) then
      torn = torn + 1
      local function words(text)
        local list = {}
        for w in text:gmatch "%S+" do list[#list + 1] = w end
        return list
      end
      local a, b, c, old, new, other = words(want[done] or ""), words(want[done + 1] or ""), words(now), 0, 0, 0
      for i = 1, #c do
        if c[i] == a[i] then old = old + 1 elseif c[i] == b[i] then new = new + 1 else other = other + 1 end
      end
      print(("step %d is torn: %d numbers as before, %d as after, %d others (%d)"):format(done + 1, old, new, other,
        #a))
    end
    if done >= steps or torn > 0 then -- begin again
      net, opt, step = build()
      done = 0
    end
  end

  local function try()
    if deaf then return end
    if interrupted > 0 then look() end
    interrupted = interrupted + 1
    assert(io.open(token, "w")):close()
    local till = os.time() + 60
    while os.time() < till do
      if done >= steps then
        net, opt, step = build()
        done = 0
      end
      step()
      done = done + 1
    end
    deaf = true
    print(("signal %d did not come within a minute"):format(interrupted))
  end

  local function finish()
    look()
    os.remove(token)
    print(("%s: %d interruptions, %d of them with a step done, %d finds"):format(name, interrupted, after, torn))
  end
  return try, finish
end
