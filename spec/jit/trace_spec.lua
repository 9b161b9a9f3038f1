-- SPDX-License-Identifier: MIT
-- T.jit: traced functions give what the script gives, bit for bit; what cannot be traced is an error that says so.
local T = require "perilune"
local nn, optim = T.nn, T.optim

local function raises(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(err))
end

-- Loss, parameters and gradients of some training steps, with or without jit.
local function train(jit, kind, opts, steps, change)
  T.manual_seed(3)
  local net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 5))
  local opt = optim[kind](net:parameters(), opts)
  local function step(x, y)
    opt:zero_grad()
    local loss = nn.F.cross_entropy(net(x), y)
    loss:backward()
    opt:step()
    return loss
  end
  local run = jit and T.jit(step, jit) or step
  local out = {}
  for i = 1, steps do
    local x, y = T.randn(8, 12), T.randint(1, 5, { 8 })
    if change then change(i, opt, net) end
    out[#out + 1] = run(x, y):detach():clone()
  end
  for _, p in ipairs(net:parameters()) do
    out[#out + 1] = p:detach():clone()
    out[#out + 1] = p.grad
  end
  for _, b in ipairs(net:buffers()) do out[#out + 1] = b:clone() end
  return out, run
end

local function same(a, b)
  assert.equal(#a, #b)
  for i = 1, #a do assert.is_true(a[i]:equal(b[i]), "tensor " .. i) end
end

describe("T.jit", function()
  it("runs a function as a graph: same bits, one trace per rank and dtype", function()
    local f = T.jit(function(x, y) return T.tanh(x * y + x), x:sum(1) end)
    for _, shape in ipairs { { 3, 4 }, { 3, 4 }, { 700, 90 }, { 1 }, { 0, 3 } } do
      local x, y = T.randn(shape), T.randn(shape)
      local a, b = f(x, y)
      assert.is_true(a:equal(T.tanh(x * y + x)))
      assert.is_true(b:equal(x:sum(1)))
    end
    assert.equal(2, f.ntraces) -- other sizes are no reason
    assert.equal(5, f.runs)
  end)

  it("T1: whole training steps equal eager ones bit for bit, with every optimizer", function()
    for kind, opts in pairs {
      SGD = { lr = 0.1, momentum = 0.9, nesterov = true }, Adam = { lr = 0.01 }, AdamW = { lr = 0.01, amsgrad = true },
      RMSprop = { lr = 0.01, momentum = 0.5, centered = true }, Lion = { lr = 0.01 }, NAdam = { lr = 0.01 },
    } do
      local eager = train(nil, kind, opts, 4)
      local traced, f = train({}, kind, opts, 4)
      same(eager, traced)
      assert.equal(1, f.ntraces, kind)
    end
  end)

  it("T1: three steps inside of one traced function", function()
    local function run(jit)
      T.manual_seed(1)
      local net = nn.Linear(4, 2)
      local opt = optim.Adam(net:parameters(), { lr = 0.1 })
      local function steps(x)
        local losses = {}
        for i = 1, 3 do
          opt:zero_grad()
          local loss = net(x):pow(2):mean()
          loss:backward()
          opt:step()
          losses[i] = loss
        end
        return losses
      end
      local f = jit and T.jit(steps) or steps
      local x, out = T.ones(3, 4), {}
      for _ = 1, 2 do
        for _, l in ipairs(f(x)) do out[#out + 1] = l:detach() end
      end
      out[#out + 1] = net.weight:detach()
      return out
    end
    same(run(false), run(true))
  end)

  it("T2: a changed upvalue or field is traced again, and right", function()
    local k, box = 2, { scale = 10, list = { 1, 2 } }
    local f = T.jit(function(x) return x * k + box.scale + box.list[2] end)
    local x = T.ones(2)
    assert.equal(14, f(x):get(1))
    k = 3
    assert.equal(15, f(x):get(1))
    box.scale = 20
    assert.equal(25, f(x):get(1))
    box.list[2] = 5
    assert.equal(28, f(x):get(1))
    box.list[3] = 7 -- a new field, which it does not read
    assert.equal(28, f(x):get(1))
    k, box.scale, box.list[2], box.list[3] = 2, 10, 2, nil
    assert.equal(14, f(x):get(1))
    assert.equal(4, f.ntraces) -- the last one was known
  end)

  it("T2: train and eval of a module, and a replaced tensor, are noticed", function()
    local net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    local f = T.jit(net)
    local x = T.ones(4, 3)
    f(x)
    net:eval()
    assert.is_true(f(x):equal(net(x)))
    assert.is_true(f.training == false)
    local w = T.ones(2)
    local g = T.jit(function(t) return t + w end)
    assert.equal(2, g(T.ones(2)):get(1))
    w = T.full({ 2 }, 5.0)
    assert.equal(6, g(T.ones(2)):get(1))
    w:fill_(7) -- the same tensor: read at each run
    assert.equal(8, g(T.ones(2)):get(1))
    assert.equal(2, g.ntraces)
  end)

  it("T3: an error inside a trace is the same object, and the next call works", function()
    local bad, e = true, { code = 7 }
    local f = T.jit(function(x)
      if bad then error(e) end
      return x + 1
    end)
    local ok, err = pcall(f, T.ones(2))
    assert.is_false(ok)
    assert.equal(e, err)
    bad = false
    assert.equal(2, f(T.ones(2)):get(1))
    assert.equal(5, (T.ones(2) * 5):get(1)) -- no trace is left open
  end)

  it("T4: learning rates and schedules are seen without a new trace", function()
    local function change(i, opt) opt.param_groups[1].lr = 0.1 / i end
    local eager = train(nil, "Adam", { lr = 0.1 }, 5, change)
    local traced, f = train({}, "Adam", { lr = 0.1 }, 5, change)
    same(eager, traced)
    assert.equal(1, f.ntraces)
  end)

  it("check=true compares every call with the script", function()
    for _, kind in ipairs { "Adam", "Lion" } do
      local eager = train(nil, kind, { lr = 0.02 }, 4)
      local checked = train({ check = true }, kind, { lr = 0.02 }, 4)
      same(eager, checked)
    end
    local hidden = ("123456789"):gmatch("%d") -- other numbers each time, where no guard can look
    local f = T.jit(function(x) return x * tonumber(hidden()) end, { check = true })
    raises("results%[1%] %(made by mul_1 at .-trace_spec.lua:%d+%) differs at %[1%]: [%d.e+-]+ in the graph, "
      .. "[%d.e+-]+ in the script; first, mul_1 at .-trace_spec.lua:%d+: operand 2 is 1.0 in the graph, 3.0 in the "
      .. "script now", f, T.ones(2))
    local other = ("123456789"):gmatch("%d")
    local g = T.jit(function(x)
      return x:exp():sum(other() == "1" and 1 or 2)
    end, { check = true })
    raises("sum_1 at .-trace_spec.lua:%d+ has other options in the graph", g, T.tensor { { 1, 2 }, { 3, 4 } })
    raises("fresh.* is a call of mul in the graph, of add in the script now", T.jit((function()
      local turn = ("abbabbabbabb"):gmatch(".")
      return function(x) return turn() == "a" and x * 3 or x + 3 end
    end)(), { check = true, name = "fresh" }), T.ones(2))
  end)

  it("results are differentiable, through parameters and arguments", function()
    local function run(jit)
      T.manual_seed(2)
      local net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
      local f = jit and T.jit(net) or net
      local opt = optim.SGD(net:parameters(), { lr = 0.1 })
      local out = {}
      local x = T.randn(5, 2, 6, 6):requires_grad_()
      for _ = 1, 3 do
        opt:zero_grad()
        x.grad = nil
        local loss = f(x):pow(2):sum()
        loss:backward()
        opt:step()
        out[#out + 1], out[#out + 2] = loss:detach(), x.grad
      end
      return out
    end
    same(run(false), run(true))
    local f = T.jit(function(x) return (x * x):sum() end)
    local x = T.ones(3):requires_grad_()
    local y = f(x)
    x:detach():fill_(2)
    raises("its argument 1, .* was modified in place afterwards", function() y:backward() end)
  end)

  it("a backward inside gives gradients to arguments, as eager does", function()
    local x = T.ones(3):requires_grad_()
    local f = T.jit(function(t)
      local y = (t * t):sum()
      y:backward()
      return y
    end)
    f(x)
    assert.is_true(x.grad:equal(T.full({ 3 }, 2.0)))
    f(x)
    assert.is_true(x.grad:equal(T.full({ 3 }, 4.0)))
  end)

  it("gradients that are not reset accumulate", function()
    local function run(jit)
      T.manual_seed(1)
      local net = nn.Linear(3, 2)
      local function acc(x) net(x):sum():backward() end
      local f = jit and T.jit(acc) or acc
      for _ = 1, 4 do f(T.ones(2, 3)) end
      if jit then assert.equal(2, f.ntraces) end -- without and with a gradient before
      return { net.weight.grad, net.bias.grad }
    end
    same(run(false), run(true))
  end)

  it("draws from the same random stream as eager", function()
    local f = T.jit(function(x) return nn.F.dropout(x, 0.5), T.randn(3), T.randperm(5) end)
    local x = T.ones(40)
    f(x)
    T.manual_seed(9)
    local a, b, c = f(x)
    T.manual_seed(9)
    assert.is_true(a:equal(nn.F.dropout(x, 0.5)))
    assert.is_true(b:equal(T.randn(3)))
    assert.is_true(c:equal(T.randperm(5)))
  end)

  it("tables go in and out; tensors that are written are written", function()
    local state = T.zeros(2)
    local f = T.jit(function(t)
      state:add_(t.x)
      return { sum = state:sum(), list = { t.y * 2, "text", 3 } }
    end)
    for i = 1, 3 do
      local r = f { x = T.ones(2), y = T.ones(1) }
      assert.equal(2 * i, r.sum:item())
      assert.equal(2, r.list[1]:item())
      assert.same({ "text", 3 }, { r.list[2], r.list[3] })
    end
    assert.is_true(state:equal(T.full({ 2 }, 3.0)))
  end)

  it("reading values in a trace is an error that says what to do; fallback runs eagerly", function()
    local function f(x)
      if x:sum():item() > 0 then return x end
      return -x
    end
    raises("item: f32%[%] is symbolic: it has no values.*return it, and decide outside", T.jit(f), T.ones(2))
    raises("is symbolic", T.jit(function(x) return x:sum() < 3 end), T.ones(2))
    raises("is symbolic", T.jit(function(x) return x:totable() end), T.ones(2))
    raises("nonzero: its result's shape depends on the values", T.jit(function(x) return x:nonzero() end), T.ones(2))
    local g = T.jit(f, { fallback = true })
    assert.equal(1, g(T.ones(2)):get(1))
    assert.equal(1, g(T.full({ 2 }, -1.0)):get(1))
  end)

  it("what the traced function changes is an error that names it", function()
    local n, t = 0, { count = 0 }
    raises("the traced function changes n %(from 0 to 1%)", T.jit(function(x) n = n + 1 return x end), T.ones(1))
    raises("changes t%.count", T.jit(function(x) t.count = t.count + 1 return x end), T.ones(1))
  end)

  it("an optimizer that steps outside of the graph must step last", function()
    local net = nn.Linear(2, 2)
    local opt = optim.SOAP(net:parameters(), { lr = 0.1 })
    local f = T.jit(function(x)
      net(x):sum():backward()
      opt:step()
      return net(x)
    end)
    raises("a parameter is used after SOAP:step", f, T.ones(1, 2))
    assert.is_nil(net.weight.grad) -- nothing symbolic stays behind
  end)

  it("too many traces end in eager runs with one warning that names the cause", function()
    local k, text = 0, nil
    local f = T.jit(function(x) return x + k end, { max_traces = 3, name = "adder" })
    local stderr = io.stderr
    rawset(io, "stderr", { write = function(_, s) text = (text or "") .. s end })
    for i = 1, 6 do
      k = i
      assert.equal(1 + i, f(T.ones(1)):item())
    end
    rawset(io, "stderr", stderr)
    assert.matches("adder was traced 3 times and runs eagerly from now on; last, k changed from 3 to 4", text)
    assert.equal(1, select(2, text:gsub("perilune:", "")))
  end)

  it("shows itself: source, explain, graph", function()
    local f = T.jit(function(x)
      local y = x * 2
      return y:exp()
    end)
    raises("was not traced yet", f.source, f)
    f(T.ones(2, 2))
    assert.matches("mul%(%%%d+, 2%)", f:source())
    local rows = f:explain()
    assert.equal(2, #rows)
    assert.matches("trace_spec.lua:%d+", rows[1].line)
    assert.matches("exp", tostring(f:graph()))
    assert.matches("1 traces, 1 runs", tostring(f))
  end)

  it("wrong calls are clear", function()
    raises("jit: a function or a module expected, got", T.jit, 5)
    raises("unknown option 'chek'.*check", T.jit, print, { chek = true })
    raises("max_traces must be a whole number", T.jit, print, { max_traces = 0 })
  end)

  it("memory is back at the baseline afterwards", function()
    collectgarbage() collectgarbage()
    local live = T.memory().live
    do
      local f = T.jit(function(x) return (x * x + 1):sum() end)
      for i = 1, 4 do f(T.ones(i, 1000)) end
    end
    collectgarbage() collectgarbage()
    assert.equal(live, T.memory().live)
  end)
end)
