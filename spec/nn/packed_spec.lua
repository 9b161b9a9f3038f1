-- SPDX-License-Identifier: MIT
-- nn.utils.rnn: padded and packed batches, and recurrent layers over packed ones against each sequence alone: values,
-- last states, gradients, every kind of layer; LSTM with projections against its steps.

local T = require "perilune"
local nn, rnn = T.nn, T.nn.utils.rnn
local fails = require("spec.support.near").fails

local function near(got, want, what)
  assert.same(want:shape(), got:shape(), what)
  local far = (got:detach():double() - want:detach():double()):abs():max():item()
  assert.is_true(far <= 1e-9, ("%s is off by %g"):format(what, far))
end

-- The layer over sequences one by one, states {h[, c]} [layers, N, H]: outputs, last states.
local function alone(net, list, states)
  local ys, last = {}, {}
  for i, x in ipairs(list) do
    local given = {}
    for k, s in ipairs(states) do given[k] = s:narrow(2, i, 1) end
    local y, state = net(x:unsqueeze(2), #given == 2 and given or given[1])
    ys[i] = y:squeeze(2)
    state = type(state) == "table" and state or { state }
    for k, s in ipairs(state) do
      last[k] = last[k] or {}
      last[k][i] = s
    end
  end
  for k, s in ipairs(last) do last[k] = T.cat(s, 2) end
  return ys, last
end

local function together(net, list, states, sorted)
  local y, state = net(rnn.pack_sequence(list, { enforce_sorted = sorted }), #states == 2 and states or states[1])
  assert.is_true(rnn.is_packed(y))
  return rnn.unpack_sequence(y), type(state) == "table" and state or { state }
end

local kinds = {
  { "RNN", {} }, { "RNN", { nonlinearity = "relu", num_layers = 2, bidirectional = true } },
  { "GRU", { num_layers = 2, bidirectional = true } }, { "GRU", { bias = false } },
  { "LSTM", { num_layers = 2, bidirectional = true } }, { "LSTM", { bias = false } },
  { "LSTM", { num_layers = 2, bidirectional = true, proj_size = 3 } },
}

describe("recurrent layers over packed batches", function()
  for _, c in ipairs(kinds) do
    local name, opts = c[1], c[2]
    local label = ("nn.%s %s"):format(name, opts.proj_size and "with projections" or opts.num_layers or "")
    it("give what each sequence gives alone: " .. label, function()
      T.manual_seed(3)
      opts.dtype = "f64"
      local net = nn[name](4, 5, opts)
      local depth = (opts.num_layers or 1) * (opts.bidirectional and 2 or 1)
      for _, lengths in ipairs { { 3, 5, 1, 5 }, { 6, 4, 4 }, { 2 } } do
        local sorted = lengths[1] == 6
        local function inputs()
          T.manual_seed(4)
          local list, states = {}, {}
          for i, n in ipairs(lengths) do list[i] = T.randn(n, 4, { dtype = "f64" }):requires_grad_() end
          states[1] = T.randn(depth, #lengths, opts.proj_size or 5, { dtype = "f64" }):requires_grad_()
          if name == "LSTM" then states[2] = T.randn(depth, #lengths, 5, { dtype = "f64" }):requires_grad_() end
          return list, states
        end
        local function gradients(f)
          local list, states = inputs()
          local ys, last = f(net, list, states, sorted)
          local loss = 0
          for i, y in ipairs(ys) do loss = loss + (y * i):sin():sum() end
          for i, s in ipairs(last) do loss = loss + (s * (i + 1)):cos():sum() end
          local all = { table.unpack(list) }
          for _, t in ipairs(states) do all[#all + 1] = t end
          for _, p in ipairs(net:parameters()) do all[#all + 1] = p end
          return ys, last, T.grad_of(loss, all)
        end
        local ys, last, grads = gradients(together)
        local ys1, last1, grads1 = gradients(alone)
        for i, y in ipairs(ys1) do near(ys[i], y, "output " .. i) end
        for i, s in ipairs(last1) do near(last[i], s, "state " .. i) end
        for i, g in ipairs(grads1) do near(grads[i], g, "gradient " .. i) end
      end
    end)
  end

  it("take bf16 and states left out", function()
    local net = nn.LSTM(3, 4, { dtype = "bf16", bidirectional = true })
    local packed = rnn.pack_sequence({ T.ones(2, 3):to("bf16"), T.ones(4, 3):to("bf16") }, { enforce_sorted = false })
    local y, state = net(packed)
    assert.equal("bf16", y.data:dtype())
    assert.same({ 2, 2, 4 }, state[2]:shape())
  end)

  it("with projections are the steps, and name what does not fit", function()
    local net = nn.LSTM(3, 5, { proj_size = 2, dtype = "f64" })
    local x = T.randn(4, 2, 3, { dtype = "f64" })
    local y, state = net(x)
    local h, c = T.zeros({ 2, 2 }, { dtype = "f64" }), T.zeros({ 2, 5 }, { dtype = "f64" })
    for t = 1, 4 do
      local a = nn.F.linear(x:select(1, t), net.weight_ih_l0, net.bias_ih_l0)
        + nn.F.linear(h, net.weight_hh_l0, net.bias_hh_l0)
      local i, f, g, o = a:narrow(2, 1, 5):sigmoid(), a:narrow(2, 6, 5):sigmoid(), a:narrow(2, 11, 5):tanh(),
        a:narrow(2, 16, 5):sigmoid()
      c = f * c + i * g
      h = (o * c:tanh()):matmul(net.weight_hr_l0:t())
      near(y:select(1, t), h, "step " .. t)
    end
    near(state[2][1], c, "cell")
    assert.equal("LSTM(3, 5, proj_size=2)", tostring(net))
    fails("proj_size must be less than hidden_size, got 5 and 5", nn.LSTM, 3, 5, { proj_size = 5 })
    fails("proj_size", nn.GRU, 3, 5, { proj_size = 2 })
    fails("the hidden state is", function() net(x, { T.zeros(1, 2, 5, { dtype = "f64" }), c:unsqueeze(1) }) end)
  end)
end)

describe("packed batches", function()
  it("come back as they were, with anything behind", function()
    local list = { T.randn(2, 3), T.randn(5, 3), T.randn(1, 3) }
    local packed = rnn.pack_sequence(list, { enforce_sorted = false })
    assert.same({ 3, 2, 1, 1, 1 }, packed.batch_sizes:totable())
    assert.same({ 2, 1, 3 }, packed.sorted_indices:totable())
    assert.same({ 8, 3 }, packed.data:shape())
    local x, lengths = rnn.pad_packed_sequence(packed, { padding_value = 7, total_length = 6, batch_first = true })
    assert.same({ 3, 6, 3 }, x:shape())
    assert.same({ 2, 5, 1 }, lengths:totable())
    assert.is_true(x:select(1, 3):narrow(1, 2, 5):eq(7):all():item())
    assert.is_true(x:select(1, 2):narrow(1, 1, 5):equal(list[2]))
    for i, one in ipairs(rnn.unpack_sequence(packed)) do assert.is_true(one:equal(list[i])) end
    assert.equal("f64", packed:to("f64").data:dtype())
    assert.truthy(tostring(packed):find("3 sequences of up to 5 steps", 1, true))
    -- longer than its longest sequence, a batch without further dimensions
    local wide = T.tensor { { 1, 2 }, { 3, 9 }, { 9, 9 } }
    local flat = rnn.pack_padded_sequence(wide, T.tensor({ 2, 1 }, { dtype = "i64" }))
    assert.same({ 1, 2, 3 }, flat.data:totable())
    assert.same({ 2, 2 }, (rnn.pad_packed_sequence(flat)):shape())
  end)

  it("say what is wrong", function()
    fails("lengths must fall, but #2 is 3 after 2", rnn.pack_padded_sequence, T.ones(3, 2, 1), { 2, 3 })
    fails("length #1 is 4, should be a whole number in 1..3", rnn.pack_padded_sequence, T.ones(3, 2, 1), { 4, 3 })
    fails("length #2 is 0", rnn.pack_padded_sequence, T.ones(3, 2, 1), { 3, 0 })
    fails("length #1 is 1.5", rnn.pack_padded_sequence, T.ones(3, 1), { 1.5 })
    fails("2 lengths are wanted, got 1", rnn.pack_padded_sequence, T.ones(3, 2), { 3 })
    fails("is wanted, got 3", rnn.pack_padded_sequence, 3, { 3 })
    fails("is empty", rnn.pack_padded_sequence, T.ones(3, 0, 1), {})
    fails("a packed sequence is wanted", rnn.pad_packed_sequence, T.ones(2))
    fails("total_length must be a whole number of at least 2", rnn.pad_packed_sequence,
      rnn.pack_sequence { T.ones(2) }, { total_length = 1 })
    fails("a list of tensors is wanted", rnn.pack_sequence, {})
    fails("padding_side", rnn.pad_sequence, { T.ones(1) }, { padding_side = "up" })
    fails("a tensor [N] is wanted", rnn.invert_permutation, 3)
    fails("states [layers, 2, H] are wanted", function()
      nn.RNN(1, 1)(rnn.pack_sequence({ T.ones(1, 1), T.ones(2, 1) }, { enforce_sorted = false }), T.ones(1, 3, 1))
    end)
  end)
end)
