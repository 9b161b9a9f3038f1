-- SPDX-License-Identifier: MIT
-- Calls of a jitted function that are like an earlier one go without Lua; here they meet what might be different after
-- all.
local T = require "perilune"
local nn, optim = T.nn, T.optim

local compiled = require "spec.support.compiled"
local plain, raises = compiled.plain, compiled.raises

local function same(name, run, traces)
  local made
  local function with(wrap)
    T.manual_seed(1)
    return plain(run(wrap))
  end
  local want = with(function(f) return f end)
  local got = with(function(f)
    made = T.jit(f, { max_traces = 20 })
    return made
  end)
  assert.same(want, got, name)
  if traces then assert.equal(traces, made.ntraces, name) end
  return made
end

describe("a call of a jitted function", function()
  it("gives outputs, arguments and constants in their places", function()
    local f = same("mixed", function(wrap)
      local g, a, b, out = wrap(function(x, y)
        local z = x + y
        return z, y, "c", nil, x, z, 3
      end), T.ones(2), T.zeros(2), {}
      for i = 1, 6 do
        local y = i % 2 == 0 and a or b
        local r = table.pack(g(a, y))
        out[i] = { r, rawequal(r[2], y), rawequal(r[5], a), rawequal(r[1], r[6]) }
      end
      return out
    end, 2) -- one where both arguments are the same tensor
    assert.equal(6, f.runs)
    same("nothing", function(wrap)
      local count = T.zeros(1)
      local g, out = wrap(function(x) count:add_(x:sum()) end), {}
      for i = 1, 4 do out[i] = select("#", g(T.ones(2))) end
      out[5] = count
      return out
    end, 1)
    same("a table", function(wrap)
      local g, out = wrap(function(x) return { x * 2, name = "n" } end), {}
      for i = 1, 4 do out[i] = g(T.ones(2) * i) end
      return out
    end, 1)
  end)

  it("looks at types, shapes, dtypes and numbers", function()
    same("numbers", function(wrap)
      local f, out = wrap(function(x, k, flag) return flag and x * (k or 7) or x end), {}
      for _ = 1, 3 do
        for _, k in ipairs { 1, 1.0, 2, -0.0, 0.0, 0 / 0 } do out[#out + 1] = tostring(f(T.ones(1), k, true):item()) end
        out[#out + 1] = f(T.tensor({ 3 }, { dtype = "i64" }), 1.0, true)
        out[#out + 1] = f(T.ones(1), nil, true)
        out[#out + 1] = f(T.ones(1), nil, nil)
        out[#out + 1] = f(T.ones(1))
      end
      return out
    end)
    same("shapes", function(wrap)
      local f, out = wrap(function(x) return x:sum(-1) end), {}
      for _ = 1, 3 do
        for _, shape in ipairs { { 2, 3 }, { 3, 2 }, { 6 }, { 0, 3 } } do
          out[#out + 1] = f(T.ones(shape))
          out[#out + 1] = f(T.ones(shape, { dtype = "f64" }))
        end
      end
      return out
    end, 4)
    local f = T.jit(function(x) return x + 1 end)
    for _ = 1, 3 do f(T.ones(2)) end
    raises("add", f, "text")
    raises("nil value", f)
    assert.same({ 2, 2 }, f(T.ones(2)):totable())
  end)

  it("looks at modes: gradients, autocast, the default dtype", function()
    same("modes", function(wrap)
      local w, out = T.ones(2, 2):requires_grad_(), {}
      local f = wrap(function(x) return x:matmul(w) + T.zeros(2) end)
      for i = 1, 6 do
        local x = T.ones(2, 2) * i
        out[#out + 1] = f(x)
        out[#out + 1] = f(x).requires_grad
        out[#out + 1] = T.no_grad(f, x).requires_grad
        out[#out + 1] = T.autocast("bf16", function() return f(x):dtype() end)
        T.set_default_dtype("f64")
        out[#out + 1] = f(x):dtype()
        T.set_default_dtype("f32")
      end
      return out
    end)
  end)

  it("sees what changes between calls: upvalues, fields, order of fields, gradients, frozen parameters", function()
    same("state", function(wrap)
      local k, box, net, out = 1, { a = 1, b = 2 }, nn.Linear(2, 2), {}
      local f = wrap(function(x)
        local s = 0
        for _, v in pairs(box) do s = s + v end
        return (net(x) * k + s):sum()
      end)
      for i = 1, 12 do
        if i == 3 then k = 2 end
        if i == 5 then box.a = 5 end
        if i == 7 then
          box.a = nil
          box.a = 5
        end
        if i == 9 then net.weight:requires_grad_(false) end
        if i == 11 then net.weight = nn.Parameter(T.ones(2, 2)) end
        local y = f(T.ones(1, 2))
        y:backward()
        out[#out + 1] = y
        out[#out + 1] = net.bias.grad:clone()
      end
      return out
    end)
    same("shared memory", function(wrap)
      local f, out = wrap(function(x, y)
        x:add_(1)
        return y * 2
      end), {}
      for i = 1, 8 do
        local a, m = T.ones(2), T.ones(2, 3)
        out[#out + 1] = f(a, i % 2 == 0 and a or T.ones(2))
        out[#out + 1] = f(i % 3 == 0 and m:t() or T.ones(3, 2), T.ones(1))
        out[#out + 1], out[#out + 2] = a, m
      end
      return out
    end)
  end)

  it("moves schedules and counters of optimizers, and takes them back where a run fails", function()
    local function train(wrap)
      T.manual_seed(2)
      local net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
      local opt = optim.Adam(net:parameters(), { lr = 0.1 })
      local schedule = optim.lr_scheduler.StepLR(opt, 2)
      local f = wrap(function(ids)
        opt:zero_grad()
        local loss = net(ids):pow(2):mean()
        loss:backward()
        opt:step()
        schedule:step()
        return loss
      end)
      local good, bad, out = T.tensor({ 1, 5 }, { dtype = "i64" }), T.tensor({ 1, 6 }, { dtype = "i64" }), {}
      for i = 1, 9 do
        if i % 4 == 0 then raises("embedding", f, bad) end
        out[#out + 1] = f(good)
        out[#out + 1] = opt.param_groups[1].lr
      end
      out[#out + 1] = net[2].weight
      return plain(out), f
    end
    local want = train(function(f) return f end)
    local got, f = train(T.jit)
    assert.same(want, got)
    assert.equal(1, f.ntraces)
  end)

  it("is the function as written inside of vmap, T.grad, jvp, hvp and explicit keys", function()
    for name, transform in pairs {
      vmap = function(f) return T.vmap(f)(T.randn(4, 3)) end,
      grad = function(f) return T.grad(f)(T.randn(3)) end,
      both = function(f) return T.vmap(T.grad(f))(T.randn(4, 3)) end,
      jvp = function(f) return { T.jvp(f, T.randn(3), T.ones(3)) } end,
      hvp = function(f) return { T.hvp(f, T.randn(3), T.ones(3)) } end,
      jacobian = function(f) return T.jacobian(f, T.randn(3)) end,
    } do
      same(name, function(wrap)
        local w = T.ones(3) * 2
        local f, out = wrap(function(x) return (x * x * x * w):sum() end), {}
        for _ = 1, 3 do
          out[#out + 1] = f(T.ones(3))
          out[#out + 1] = transform(f)
        end
        return out
      end, 1)
    end
  end)

  it("keeps nothing", function()
    local f = T.jit(function(x, y) return x + y, x * y end)
    local x, y = T.ones(100), T.ones(100)
    for _ = 1, 10 do f(x, y) end
    collectgarbage()
    collectgarbage()
    local before = T.memory().live
    for _ = 1, 2000 do f(x, y) end
    collectgarbage()
    collectgarbage()
    assert.equal(before, T.memory().live)
  end)
end)
