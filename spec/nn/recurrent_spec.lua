-- SPDX-License-Identifier: MIT
-- LSTM, GRU and plain layers over a whole sequence as one op against their steps one by one: values, two orders of
-- gradients, directions, dtypes, threads.

local T = require "perilune"
local gradcheck = require "spec.support.gradcheck"
local near = require "spec.support.near"
local nn, F = T.nn, T.nn.F
local fails = near.fails

local function same(got, want, tol)
  assert.same(want:shape(), got:shape())
  local d = (got:detach():double() - want:detach():double()):abs():max():item()
  local size = math.max(1, want:detach():double():abs():max():item())
  assert.is_true(d <= tol * size, ("differs by %g of %g"):format(d, size))
end

local function f64(...) return T.randn({ ... }, { dtype = "f64" }) end

-- What f makes of leaves with the values of `list`: its results, the gradients of the sum of results times dys, and
-- those of a function of these gradients (zeros where it is flat).
local function two_orders(f, list, dys)
  local x = {}
  for i, t in ipairs(list) do x[i] = t:clone():requires_grad_() end
  local ys, y, z = { f(table.unpack(x)) }, 0, 0
  for i, dy in ipairs(dys) do y = y + (ys[i] * dy):sum() end
  local out = table.move(ys, 1, #ys, 1, {})
  local g = T.grad_of({ y }, x, { create_graph = true })
  for i, t in ipairs(g) do
    z = z + (t * t * (i / 2)):sum() + t:sin():sum()
    out[#out + 1] = t
  end
  local second = T.grad_of({ z }, x, { allow_unused = true })
  for i, t in ipairs(x) do out[#out + 1] = second[i] or T.zeros_like(t) end
  return out
end

-- `count` results of the same.
local function same_orders(count, got, want)
  assert.equal(count, #got)
  for i, w in ipairs(want) do same(got[i], w, 1e-9) end
end

-- hs and cs, step by step.
local function steps(gx, h, c, w, reverse)
  local S, hs, cs = gx:size(1), { h }, { c }
  for k = 1, S do
    local a = gx:select(1, reverse and S + 1 - k or k) + h:matmul(w:t())
    local n = c:size(2)
    local i, f = a:narrow(2, 1, n):sigmoid(), a:narrow(2, n + 1, n):sigmoid()
    local g, o = a:narrow(2, 2 * n + 1, n):tanh(), a:narrow(2, 3 * n + 1, n):sigmoid()
    c = f * c + i * g
    h = o * c:tanh()
    table.insert(hs, reverse and 1 or k + 1, h)
    table.insert(cs, reverse and 1 or k + 1, c)
  end
  return T.stack(hs, 1), T.stack(cs, 1)
end

describe("lstm_seq", function()
  it("is the steps one by one, with two orders of gradients", function()
    for _, c in ipairs { { 1, 1, 1 }, { 4, 3, 2 }, { 7, 30, 5 }, { 3, 2, 40 } } do
      for _, reverse in ipairs { false, true } do
        local S, N, H = table.unpack(c)
        local list = { f64(S, N, 4 * H), f64(N, H), f64(N, H), f64(4 * H, H) }
        local dh, dc = f64(S + 1, N, H), f64(S + 1, N, H)
        for _, dys in ipairs { { dh }, { dh, dc } } do
          same_orders(10, two_orders(function(gx, h, cell, w)
            return T.lstm_seq(gx, h, cell, w, { reverse = reverse })
          end, list, dys), two_orders(function(gx, h, cell, w) return steps(gx, h, cell, w, reverse) end, list, dys))
        end
      end
    end
  end)

  it("takes the inputs' product with it as lstm_layer, with two orders of gradients", function()
    for _, c in ipairs { { 1, 1, 1, 1 }, { 4, 3, 2, 5 }, { 6, 30, 37, 3 }, { 3, 2, 5, 33 } } do
      for _, reverse in ipairs { false, true } do
        local S, N, I, H = table.unpack(c)
        local list = { f64(S, N, I), f64(N, H), f64(N, H), f64(4 * H, I), f64(4 * H, H), f64(4 * H) }
        local dh, dc = f64(S + 1, N, H), f64(S + 1, N, H)
        same_orders(14, two_orders(function(x, h, cell, wx, w, b)
          return T.lstm_layer(x, h, cell, wx, w, b, { reverse = reverse })
        end, list, { dh, dc }), two_orders(function(x, h, cell, wx, w, b)
          return steps(x:matmul(wx:t()) + b, h, cell, w, reverse)
        end, list, { dh, dc }))
      end
    end
  end)

  it("is what nn.LSTM runs, in f32 as in f64", function()
    T.manual_seed(2)
    local wide = T.nn.LSTM(5, 7, { num_layers = 2, bidirectional = true, dtype = "f64" })
    local narrow = T.nn.LSTM(5, 7, { num_layers = 2, bidirectional = true })
    for i, p in ipairs(narrow:parameters()) do T.no_grad(p.copy_, p, wide:parameters()[i]) end
    local x = f64(6, 3, 5)
    local y, state = wide(x)
    local y32, state32 = narrow(x:float())
    same(y32, y, 1e-5)
    same(state32[1], state[1], 1e-5)
    same(state32[2], state[2], 1e-5);
    (y:square():sum() + state[1]:sum() + state[2]:sin():sum()):backward();
    (y32:square():sum() + state32[1]:sum() + state32[2]:sin():sum()):backward()
    for i, p in ipairs(narrow:parameters()) do same(p.grad, wide:parameters()[i].grad, 1e-4) end
  end)

  it("has the same bits with any number of threads", function()
    local before, want = T.get_num_threads(), nil
    local list = { T.randn(9, 61, 4 * 37), T.randn(61, 37), T.randn(61, 37), T.randn(4 * 37, 37) }
    for threads = 1, 3 do
      T.set_num_threads(threads)
      local x = {}
      for i, t in ipairs(list) do x[i] = t:clone():requires_grad_() end
      local hs = T.lstm_seq(x[1], x[2], x[3], x[4])
      local got = { hs, table.unpack(T.grad_of({ hs:square():sum() }, x)) }
      got[#got + 1] = T.lstm_layer(list[1], list[2], list[3], T.ones(148, 148) / 148, list[4], T.ones(148))
      want = want or got
      for i, w in ipairs(want) do assert.is_true(got[i]:equal(w)) end
    end
    T.set_num_threads(before)
  end)

  it("computes in f32 under autocast", function()
    local net = T.nn.LSTM(5, 7)
    local x = T.randn(4, 2, 5)
    local y = T.autocast("bf16", function() return (net(x)) end)
    assert.equal("f32", y:dtype())
    same(y, (net(x)), 0.02)
    y:sum():backward()
    for _, p in ipairs(net:parameters()) do assert.equal("f32", p.grad:dtype()) end
  end)

  it("takes empty batches, and says what does not fit", function()
    local hs = T.lstm_seq(T.zeros(3, 0, 8), T.zeros(0, 2), T.zeros(0, 2), T.zeros(8, 2))
    assert.same({ 4, 0, 2 }, hs:shape())
    fails("h0 is f32[2,3], should be f32[2,2]", function()
      T.lstm_seq(T.zeros(3, 2, 8), T.zeros(2, 3), T.zeros(2, 2), T.zeros(8, 2))
    end)
    assert.is_truthy(F.lstm)
  end)
end)

-- hs, step by step.
local function gru_steps(gx, h, w, b, reverse)
  local S, hs, n = gx:size(1), { h }, h:size(2)
  for k = 1, S do
    local x = gx:select(1, reverse and S + 1 - k or k)
    local a = h:matmul(w:t())
    local r = (x:narrow(2, 1, n) + a:narrow(2, 1, n)):sigmoid()
    local z = (x:narrow(2, n + 1, n) + a:narrow(2, n + 1, n)):sigmoid()
    local new = (x:narrow(2, 2 * n + 1, n) + r * (a:narrow(2, 2 * n + 1, n) + b)):tanh()
    h = new + z * (h - new)
    table.insert(hs, reverse and 1 or k + 1, h)
  end
  return T.stack(hs, 1)
end

describe("gru_seq", function()
  it("is the steps one by one, with two orders of gradients", function()
    for _, c in ipairs { { 1, 1, 1 }, { 4, 3, 2 }, { 7, 30, 5 }, { 3, 2, 40 } } do
      for _, reverse in ipairs { false, true } do
        local S, N, H = table.unpack(c)
        local list, dh = { f64(S, N, 3 * H), f64(N, H), f64(3 * H, H), f64(H) }, f64(S + 1, N, H)
        same_orders(9, two_orders(function(gx, h, w, b) return T.gru_seq(gx, h, w, b, { reverse = reverse }) end, list,
          { dh }), two_orders(function(gx, h, w, b) return gru_steps(gx, h, w, b, reverse) end, list, { dh }))
      end
    end
  end)

  it("is what nn.GRU runs, with biases and without, in f32 as in f64", function()
    for _, bias in ipairs { true, false } do
      local wide = T.nn.GRU(5, 7, { num_layers = 2, bidirectional = true, bias = bias, dtype = "f64" })
      local narrow = T.nn.GRU(5, 7, { num_layers = 2, bidirectional = true, bias = bias })
      for i, p in ipairs(narrow:parameters()) do T.no_grad(p.copy_, p, wide:parameters()[i]) end
      local cell = T.nn.GRUCell(5, 7, { bias = bias, dtype = "f64" })
      local one = T.nn.GRU(5, 7, { bias = bias, dtype = "f64" })
      for i, p in ipairs(one:parameters()) do T.no_grad(p.copy_, p, cell:parameters()[i]) end
      local x = f64(6, 3, 5)
      local y, state = wide(x)
      local y32, state32 = narrow(x:float())
      same(y32, y, 1e-5)
      same(state32, state, 1e-5);
      (y:square():sum() + state:sin():sum()):backward();
      (y32:square():sum() + state32:sin():sum()):backward()
      for i, p in ipairs(narrow:parameters()) do same(p.grad, wide:parameters()[i].grad, 1e-4) end
      local h
      for t = 1, 6 do h = cell(x:select(1, t), h) end
      same(one(x):select(1, 6), h, 1e-12)
      h:sum():backward()
      one(x):select(1, 6):sum():backward()
      for i, p in ipairs(one:parameters()) do same(p.grad, cell:parameters()[i].grad, 1e-12) end
    end
  end)

  it("has the same bits with any number of threads", function()
    local before, want = T.get_num_threads(), nil
    local list = { T.randn(9, 61, 3 * 37), T.randn(61, 37), T.randn(3 * 37, 37), T.randn(37) }
    for threads = 1, 3 do
      T.set_num_threads(threads)
      local x = {}
      for i, t in ipairs(list) do x[i] = t:clone():requires_grad_() end
      local hs = T.gru_seq(x[1], x[2], x[3], x[4])
      local got = { hs, table.unpack(T.grad_of({ hs:square():sum() }, x)) }
      want = want or got
      for i, w in ipairs(want) do assert.is_true(got[i]:equal(w)) end
    end
    T.set_num_threads(before)
  end)
end)

describe("rnn_seq", function()
  it("is the steps one by one, with two orders of gradients, in both directions", function()
    for _, relu in ipairs { false, true } do
      for _, c in ipairs { { 1, 1, 1 }, { 4, 3, 2 }, { 6, 30, 40 } } do
        for _, reverse in ipairs { false, true } do
          local S, N, H = table.unpack(c)
          local list, dh = { f64(S, N, H), f64(N, H), f64(H, H) * 0.3 }, f64(S + 1, N, H)
          same_orders(7, two_orders(function(gx, h, w)
            return T.rnn_seq(gx, h, w, { reverse = reverse, relu = relu })
          end, list, { dh }), two_orders(function(gx, h, w)
            local hs = { h }
            for k = 1, S do
              local a = gx:select(1, reverse and S + 1 - k or k) + h:matmul(w:t())
              h = relu and a:relu() or a:tanh()
              table.insert(hs, reverse and 1 or k + 1, h)
            end
            return T.stack(hs, 1)
          end, list, { dh }))
        end
      end
    end
  end)

  it("is what nn.RNN runs: its cell gives the same", function()
    for _, kind in ipairs { "tanh", "relu" } do
      local net = T.nn.RNN(5, 7, { nonlinearity = kind, dtype = "f64" })
      local cell = T.nn.RNNCell(5, 7, { nonlinearity = kind, dtype = "f64" })
      for i, p in ipairs(net:parameters()) do T.no_grad(p.copy_, p, cell:parameters()[i]) end
      local x, h = f64(6, 3, 5), nil
      for t = 1, 6 do h = cell(x:select(1, t), h) end
      local y, last = net(x)
      same(y:select(1, 6), h, 1e-12)
      same(last:select(1, 1), h, 1e-12)
      h:square():sum():backward()
      last:square():sum():backward()
      for i, p in ipairs(net:parameters()) do same(p.grad, cell:parameters()[i].grad, 1e-12) end
    end
  end)
end)

describe("a recurrent layer", function()
  before_each(function() T.manual_seed(11) end)

  local function far(a, b) return (a - b):abs():max():item() end

  it("goes over more steps than a rule has outputs, with the gradient of cells in a row", function()
    local lstm = nn.LSTM(2, 3, { dtype = "f64" })
    local x = f64(121, 1, 2):requires_grad_()
    local w = lstm:weights()
    local h, c, sum = T.zeros({ 1, 3 }, { dtype = "f64" }), T.zeros({ 1, 3 }, { dtype = "f64" }), 0
    for t = 1, 121 do
      h, c = F.lstm_cell(x:select(1, t), { h, c }, w[1], w[2], w[3], w[4])
      sum = sum + h:sum() * t
    end
    sum:backward()
    local want, want_w = x.grad:clone(), w[2].grad:clone()
    x.grad = nil
    lstm:zero_grad()
    local y, state = lstm(x);
    (y * T.arange(1, 121):double():view(121, 1, 1)):sum():backward()
    same(x.grad, want, 1e-9)
    same(w[2].grad, want_w, 1e-8)
    same(state[1]:squeeze(1), h, 1e-12)
    same(state[2]:squeeze(1), c, 1e-12)
  end)
  it("takes its state up again", function()
    for _, name in ipairs { "RNN", "GRU", "LSTM" } do
      local net = nn[name](2, 3, { num_layers = 2, dtype = "f64" })
      local x = f64(6, 2, 2)
      local whole = net(x)
      local first, state = net(x:narrow(1, 1, 4))
      local second = net(x:narrow(1, 5, 2), state)
      same(T.cat({ first, second }, 1), whole, 1e-10)
    end
  end)
  it("has exact gradients", function()
    local w = { f64(12, 2), f64(12, 3), f64(12), f64(12) }
    local function f(x, h, c, a, b) return F.lstm(x, { h, c }, { a, b, w[3], w[4] }) end
    assert(gradcheck.check(T, f, { f64(3, 2, 2), f64(1, 2, 3), f64(1, 2, 3), w[1], w[2] }, {}))
  end)
  it("drops between layers while training only", function()
    local net = nn.GRU(2, 4, { num_layers = 2, dropout = 0.5 })
    local x = T.randn(3, 2, 2)
    assert.is_true(far((net(x)), (net(x))) > 0)
    net:eval()
    assert.equal(0, far((net(x)), (net(x))))
  end)
  it("says what does not fit", function()
    local net = nn.LSTM(2, 3)
    fails("5 features, input_size is 2", function() net(T.randn(4, 1, 5)) end)
    fails("the hidden state is", function() net(T.randn(4, 1, 2), { T.zeros(1, 2, 3), T.zeros(1, 2, 3) }) end)
    fails("the state must be {h, c}", function() net(T.randn(4, 1, 2), T.zeros(1, 1, 3)) end)
    fails("the sequence is empty", function() net(T.zeros(0, 1, 2)) end)
  end)
end)
