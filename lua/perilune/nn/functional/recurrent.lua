-- SPDX-License-Identifier: MIT
--- Recurrent networks as functions: cells (one step) and layers (whole sequences, stacked, in both directions).
-- Weights come as {w_ih, w_hh[, b_ih, b_hh]} for each layer, forward then reverse. Gates are one below the other in
-- w_ih [G·H, in] and w_hh [G·H, H]: LSTM i, f, g, o (Hochreiter & Schmidhuber 1997; Gers et al. 2000),
-- GRU r, z, n (Cho et al. 2014, with the reset gate after the product, or before it as in the paper). An LSTM with
-- projections (Sak et al. 2014) has w_hr [P, H] behind these: h = w_hr (o tanh c); one with peepholes (Gers,
-- Schraudolph & Schmidhuber 2002) w_peephole [3 H], through which the gates i, f, o see the cell, as its last.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"
local rnn = require "perilune.nn.packed_sequence"

local fail, describe = options.fail, options.describe
local core = T.core
local op = core.op
local linear, slice, tanh, sigmoid, relu = op.linear, op.slice, op.tanh, op.sigmoid, op.relu
local lstm_gates, lstm_seq, lstm_layer = op.lstm_gates, op.lstm_seq, op.lstm_layer
local gru_seq, rnn_seq = op.gru_seq, op.rnn_seq
local fused = { f32 = true, f64 = true }

-- gx: the input's part of the gates [N, G·H]; state: h, or {h, c}. Returns h and the new state.
local steps, gates = {}, { tanh = 1, relu = 1, lstm = 4, gru = 3, gru_reset_first = 3 }

function steps.tanh(gx, h, w_hh, b_hh)
  h = tanh(gx + linear(h, w_hh, b_hh))
  return h, h
end

function steps.relu(gx, h, w_hh, b_hh)
  h = relu(gx + linear(h, w_hh, b_hh))
  return h, h
end

--- nn.F.lstm(x, state, weights, {…}) → y, state
-- What nn.LSTM computes, from its weights in order.
--   -- nn.LSTM calls it
--   local net = nn.LSTM(2, 3)
--   print(nn.F.lstm ~= nil, net(T.ones(4, 1, 2)):size(3))  --> true	3
function steps.lstm(gx, state, w_hh, b_hh, w_hr, w_peephole)
  local h, c = state[1], state[2]
  local a = gx + linear(h, w_hh, b_hh)
  if w_peephole then
    local n = c:size(2)
    local function sees(k, cell) return slice(a, 2, k * n + 1, n), slice(w_peephole, 1, k * n + 1, n) * cell end
    local ai, pi = sees(0, c)
    local af, pf = sees(1, c)
    c = sigmoid(af + pf) * c + sigmoid(ai + pi) * tanh(slice(a, 2, 2 * n + 1, n))
    h = sigmoid(slice(a, 2, 3 * n + 1, n) + slice(w_peephole, 1, 2 * n + 1, n) * c) * tanh(c)
  elseif fused[a:dtype()] and a:dtype() == c:dtype() then
    h, c = lstm_gates(a, c)
  else
    local n = c:size(2)
    local i, f = sigmoid(slice(a, 2, 1, n)), sigmoid(slice(a, 2, n + 1, n))
    local g, o = tanh(slice(a, 2, 2 * n + 1, n)), sigmoid(slice(a, 2, 3 * n + 1, n))
    c = f * c + i * g
    h = o * tanh(c)
  end
  if w_hr then h = linear(h, w_hr) end
  return h, { h, c }
end

--- nn.F.gru(x, state, weights, {…}) → y, state
-- What nn.GRU computes, from its weights in order.
--   -- nn.GRU calls it
--   local net = nn.GRU(2, 3)
--   print(nn.F.gru ~= nil, net(T.ones(4, 1, 2)):size(3))  --> true	3
function steps.gru(gx, h, w_hh, b_hh)
  local n = h:size(2)
  local gh = linear(h, w_hh, b_hh)
  local rz = sigmoid(slice(gx, 2, 1, 2 * n) + slice(gh, 2, 1, 2 * n))
  local r, z = slice(rz, 2, 1, n), slice(rz, 2, n + 1, n)
  local new = tanh(slice(gx, 2, 2 * n + 1, n) + r * slice(gh, 2, 2 * n + 1, n))
  h = new + z * (h - new)
  return h, h
end

-- The same with the reset gate before the product, as Cho et al. wrote it (ONNX: linear_before_reset = 0).
function steps.gru_reset_first(gx, h, w_hh, b_hh)
  local n = h:size(2)
  local function part(t, from, count) return t and slice(t, 1, from, count) end
  local rz = sigmoid(slice(gx, 2, 1, 2 * n) + linear(h, part(w_hh, 1, 2 * n), part(b_hh, 1, 2 * n)))
  local r, z = slice(rz, 2, 1, n), slice(rz, 2, n + 1, n)
  local inner = linear(r * h, part(w_hh, 2 * n + 1, n), part(b_hh, 2 * n + 1, n))
  local new = tanh(slice(gx, 2, 2 * n + 1, n) + inner)
  h = new + z * (h - new)
  return h, h
end

-- ---- checks ------------------------------------------------------------------------------------------

local function shape_is(who, what, t, ...)
  if not T.is_tensor(t) then fail("%s: %s must be a tensor, got %s", who, what, describe(t)) end
  local want = { ... }
  local ok = t:dim() == #want
  for d = 1, ok and #want or 0 do ok = ok and t:size(d) == want[d] end
  if not ok then fail("%s: %s is %s, should be [%s]", who, what, describe(t), table.concat(want, ",")) end
end

local function check_weights(who, kind, inputs, hidden, w)
  local rows, states = gates[kind] * hidden, hidden
  if w.hr then
    states = w.hr:size(1)
    shape_is(who, "w_hr", w.hr, states, hidden)
  end
  shape_is(who, "w_ih", w[1], rows, inputs)
  shape_is(who, "w_hh", w[2], rows, states)
  if w[3] ~= nil then shape_is(who, "b_ih", w[3], rows) end
  if w[4] ~= nil then shape_is(who, "b_hh", w[4], rows) end
  if w.peephole ~= nil then shape_is(who, "w_peephole", w.peephole, 3 * hidden) end
end

-- ---- cells -------------------------------------------------------------------------------------------

local function cell(who, kind, x, h, c, w)
  if not T.is_tensor(x) or x:dim() < 1 or x:dim() > 2 then
    fail("%s: input [N, in] or [in] is wanted, got %s", who, describe(x))
  end
  if not T.is_tensor(w[2]) or w[2]:dim() ~= 2 then fail("%s: w_hh must be a matrix", who) end
  local hidden, single = w[2]:size(2), x:dim() == 1
  if single then
    x, h, c = x:unsqueeze(1), h and h:unsqueeze(1), c and c:unsqueeze(1)
  end
  local n = x:size(1)
  check_weights(who, kind, x:size(2), hidden, w)
  h = h or T.zeros({ n, hidden }, { dtype = x:dtype(), device = x:device() })
  shape_is(who, "the hidden state", h, n, hidden)
  if kind == "lstm" then
    c = c or T.zeros({ n, hidden }, { dtype = x:dtype(), device = x:device() })
    shape_is(who, "the cell state", c, n, hidden)
    h = { h, c }
  end
  local y, state = steps[kind](linear(x, w[1], w[3]), h, w[2], w[4], nil, w.peephole)
  c = kind == "lstm" and state[2] or nil
  if single then y, c = y:squeeze(1), c and c:squeeze(1) end
  return y, c
end

-- ---- steps of a sequence ---------------------------------------------------------------------------------

-- x[1] … x[n] along the first dimension. Backward stacks the gradients once, where a select each would make an
-- array of x's size each.
local MOST = 50 -- a rule of one's own has at most 56 outputs
local apart = T.custom {
  name = "unbind",
  forward = function(ctx, x)
    ctx.shape, ctx.dtype, ctx.device = x:shape(), x:dtype(), x:device()
    return table.unpack(x:unbind(1))
  end,
  backward = function(ctx, ...)
    local list, zero = { ... }, nil
    for i = 1, ctx.shape[1] do
      if list[i] == nil then
        zero = zero or T.zeros({ table.unpack(ctx.shape, 2) }, { dtype = ctx.dtype, device = ctx.device })
        list[i] = zero
      end
    end
    return T.stack(list, 1)
  end,
}

local function unbound(x)
  if not x.requires_grad or core.jit_tracing() then return x:unbind(1) end -- a graph joins gradients of slices itself
  local n = x:size(1)
  if n <= MOST then return { apart(x) } end
  local out = {}
  for _, part in ipairs(x:split(MOST, 1)) do
    for _, row in ipairs { apart(part) } do out[#out + 1] = row end
  end
  return out
end

-- ---- layers ------------------------------------------------------------------------------------------

-- Whether the op over a whole sequence takes these: one dtype that it knows, or what T.autocast makes f32.
local function one_dtype(...)
  local region, first = core.autocast_dtype(), nil
  for _, x in ipairs { ... } do
    local d = x:dtype()
    if region and d ~= "f64" then d = "f32" end
    first = first or d
    if d ~= first or not fused[d] then return false end
  end
  return true
end

-- The biases of a layer, as the ops over a sequence want them: those that are only ever added together in one, and
-- of a GRU the one within the reset.
local function biases(kind, x, state, w)
  local b_ih, b_hh = w[3], w[4]
  if kind ~= "gru" then
    if b_ih and b_hh then return b_ih + b_hh, nil end
    return b_ih, b_hh
  end
  if not one_dtype(x, state, w[1], w[2]) then return b_ih, b_hh end
  local n = w[2]:size(2)
  if not (b_ih and b_hh) then return b_ih, b_hh, T.zeros({ n }, { dtype = w[2]:dtype(), device = w[2]:device() }) end
  local outer = T.cat({ b_hh:narrow(1, 1, 2 * n), T.zeros({ n }, { dtype = b_hh:dtype(), device = b_hh:device() }) }, 1)
  return b_ih + outer, b_hh, b_hh:narrow(1, 2 * n + 1, n)
end

-- The states [S + 1, N, H] and cells of the op over a whole sequence, or nil where none takes these.
local function whole(kind, x, state, w, b_ih, inner, reverse)
  local w_hh, opts = w[2], { reverse = reverse }
  if w.hr or w.peephole or kind == "gru_reset_first" then return nil end
  if kind == "lstm" and b_ih and not core.autocast_dtype() and x:device() == "cpu"
    and one_dtype(x, state[1], state[2], w[1], w_hh, b_ih) then
    return lstm_layer(x, state[1], state[2], w[1], w_hh, b_ih, opts)
  end
  if kind == "gru" and not inner then return nil end
  local gx = linear(x, w[1], b_ih)
  if kind == "lstm" then
    if one_dtype(gx, state[1], state[2], w_hh) then return lstm_seq(gx, state[1], state[2], w_hh, opts) end
  elseif kind == "gru" then
    return gru_seq(gx, state, w_hh, inner, opts)
  elseif one_dtype(gx, state, w_hh) then
    opts.relu = kind == "relu"
    return rnn_seq(gx, state, w_hh, opts)
  end
  return nil, nil, gx
end

-- One layer in one direction over x [S, N, in]: outputs [S, N, H], the last state, and of an LSTM all cells [S, N, H]
-- if `cells`.
local function run(kind, x, state, w, reverse, cells)
  local length = x:size(1)
  local b_ih, b_hh, inner = biases(kind, x, state, w)
  local hs, cs, gx = whole(kind, x, state, w, b_ih, inner, reverse)
  local first, last = reverse and 1 or 2, reverse and 1 or length + 1
  if hs then
    local h = hs:select(1, last)
    if kind ~= "lstm" then return hs:narrow(1, first, length), h end
    return hs:narrow(1, first, length), { h, cs:select(1, last) }, cells and cs:narrow(1, first, length)
  end
  local step, out, all = steps[kind], {}, {}
  local parts = unbound(gx or linear(x, w[1], b_ih)) -- the whole sequence at once
  for k = 1, length do
    local t = reverse and length + 1 - k or k
    out[t], state = step(parts[t], state, w[2], b_hh, w.hr, w.peephole)
    if cells and kind == "lstm" then all[t] = state[2] end
  end
  return T.stack(out, 1), state, #all > 0 and T.stack(all, 1) or nil
end

-- The k-th state of the stack, from [L, N, H] tensors.
local function state_at(kind, hx, cx, k)
  local h = hx:select(1, k)
  return kind == "lstm" and { h, cx:select(1, k) } or h
end

-- ---- sequences of different lengths ---------------------------------------------------------------------

-- The row of x [S, N, H] at step at[n] (from 0) of sequence n, for all n: [N, H].
local function at_steps(x, at)
  local n, h = x:size(2), x:size(3)
  return T.gather(x, at:view(1, n, 1):expand(1, n, h), { dim = 1, index_base = 0 }):squeeze(1)
end

-- Where step t of sequence n comes from when each is turned round within its length; what is behind stays.
local function turned(length, S)
  local t = T.arange(0, S - 1):long():unsqueeze(2):to(length:device())
  local n = length:unsqueeze(1)
  return T.where(t:lt(n), n - 1 - t, t)
end

local function turn(x, order)
  local S, n, h = x:size(1), x:size(2), x:size(3)
  return T.gather(x, order:unsqueeze(3):expand(S, n, h), { dim = 1, index_base = 0 })
end

-- `run` over sequences of those lengths (a tensor [N]): what comes behind an end has no influence on what comes
-- before, so only the last states are to be found; backwards each sequence is turned round before and after.
local function run_lengths(kind, x, state, w, reverse, lengths)
  local order = reverse and turned(lengths, x:size(1))
  local y, _, cs = run(kind, order and turn(x, order) or x, state, w, false, true)
  local ends = lengths - 1
  local last = at_steps(y, ends)
  if kind == "lstm" then last = { last, at_steps(cs, ends) } end
  return order and turn(y, order) or y, last
end

local names = { "num_layers", "bias", "batch_first", "bidirectional", "dropout", "training" }

-- ---- by a library ------------------------------------------------------------------------------------------

-- Parts of a row, [layers · directions, N, width] each.
local function parted(row, from, k, n, width) return row:narrow(1, from, k * n * width):view(k, n, width) end

-- The layers from .. from + count - 1 by the library; s: what by_library knows. y, h_n, c_n, or nil.
local function layers_by_library(s, from, count, input)
  local matrices, vectors, both = {}, {}, s.both
  local first, k = (from - 1) * both + 1, count * both
  for at = first, first + k - 1 do
    for j = 1, s.per do
      local list = s.bias and (j == 3 or j == 4) and vectors or matrices
      list[#list + 1] = s.weights[(at - 1) * s.per + j]:reshape(-1)
    end
  end
  table.move(vectors, 1, #vectors, #matrices + 1, matrices)
  local states = { s.h0:narrow(1, first, k):reshape(-1), s.c0 and s.c0:narrow(1, first, k):reshape(-1) }
  local y, last = core.recurrent(input:to(s.dtype), T.cat(states, 1):to(s.dtype), T.cat(matrices, 1):to(s.dtype),
    s.lengths, s.kind, s.hidden, s.proj, count, both == 2, s.bias)
  if not y then return nil end
  if s.region then y, last = y:to "f32", last:to "f32" end -- as our own ops give there
  return y, parted(last, 1, k, s.n, s.out), s.c0 and parted(last, k * s.n * s.out + 1, k, s.n, s.hidden)
end

-- All layers at once, where a library of x's device computes such nets (cuDNN): outputs, h_n, c_n; nil where none does.
-- While training with dropout each layer is a call of its own: what dropout draws is the same on every device.
local function by_library(kind, x, h0, c0, weights, o, lengths)
  if x:device() == "cpu" or o.peepholes or kind == "gru_reset_first" then return nil end
  local depth, both = o.num_layers or 1, o.bidirectional and 2 or 1
  local out, hidden = h0:size(3), weights[1]:size(1) // gates[kind]
  local s = { kind = kind, h0 = h0, c0 = c0, weights = weights, lengths = lengths, both = both, bias = o.bias ~= false,
    per = #weights // (depth * both), n = x:size(2), out = out, hidden = hidden, proj = out ~= hidden and out or 0,
    dtype = x:dtype() }
  s.region = s.dtype ~= "f64" and core.autocast_dtype()
  s.dtype = s.region or s.dtype
  local function fits(t) return not t or t:dtype() == x:dtype() or s.region and t:dtype() ~= "f64" end
  for _, w in ipairs(weights) do
    if not fits(w) then return nil end
  end
  local function taken(inputs, count)
    return core.recurrent_takes(inputs, s.dtype, kind, hidden, s.proj, count, both == 2, s.bias)
  end
  local drop = o.training and (o.dropout or 0) > 0 and depth > 1
  if not fits(h0) or not fits(c0) or not taken(x, drop and 1 or depth) then return nil end
  if not drop then return layers_by_library(s, 1, depth, x) end
  if s.proj > 0 or not taken(x:new_zeros { 1, 1, both * out }, 1) then return nil end
  local hs, cs = {}, {}
  for l = 1, depth do
    x, hs[l], cs[l] = layers_by_library(s, l, 1, x)
    if l < depth then x = T.dropout(x, o.dropout) end
  end
  return x, T.cat(hs, 1), c0 and T.cat(cs, 1)
end

-- The weights of one layer and direction out of the list of all.
local function weights_of(weights, k, per, o)
  local w, from, plain = {}, (k - 1) * per, o.bias == false and 2 or 4
  for j = 1, plain do w[j] = weights[from + j] end
  if (o.proj_size or 0) > 0 then w.hr = weights[from + plain + 1] end
  if o.peepholes then w.peephole = weights[from + per] end
  return w
end

-- All layers over x [S, N, in]; hx, cx: [layers · directions, N, ·]. Returns outputs, h_n[, c_n].
local function stack(who, kind, x, hx, cx, weights, o, lengths)
  local depth, both = o.num_layers or 1, o.bidirectional and 2 or 1
  local per = (o.bias == false and 2 or 4) + ((o.proj_size or 0) > 0 and 1 or 0) + (o.peepholes and 1 or 0)
  if type(weights) ~= "table" or #weights ~= depth * both * per then
    fail("%s: %d weights are wanted, got %s", who, depth * both * per, type(weights) == "table" and #weights or
      describe(weights))
  end
  local n, states = x:size(2), weights[2]:size(2)
  local hidden = (o.proj_size or 0) > 0 and weights[1]:size(1) // gates[kind] or states
  local function zeros(size) return T.zeros({ depth * both, n, size }, { dtype = x:dtype(), device = x:device() }) end
  local h0 = hx or zeros(states)
  shape_is(who, "the hidden state", h0, depth * both, n, states)
  if kind == "lstm" then
    cx = cx or (not hx and states == hidden and h0) or zeros(hidden)
    shape_is(who, "the cell state", cx, depth * both, n, hidden)
  end
  local inputs, parts = x:size(3), {}
  for k = 1, depth * both do
    parts[k] = weights_of(weights, k, per, o)
    check_weights(who, kind, inputs, hidden, parts[k])
    if k % both == 0 then inputs = both * states end
  end
  local whole_y, whole_h, whole_c = by_library(kind, x, h0, cx, weights, o, lengths)
  if whole_y then return whole_y, whole_h, whole_c end
  local last, last_c = {}, {}
  for l = 1, depth do
    local outs = {}
    for d = 1, both do
      local k = (l - 1) * both + d
      local w = parts[k]
      local y, state
      if lengths then
        y, state = run_lengths(kind, x, state_at(kind, h0, cx, k), w, d == 2, lengths)
      else
        y, state = run(kind, x, state_at(kind, h0, cx, k), w, d == 2)
      end
      outs[d] = y
      if kind == "lstm" then last[k], last_c[k] = state[1], state[2] else last[k] = state end
    end
    x = both == 2 and T.cat(outs, 3) or outs[1]
    if l < depth and o.training and (o.dropout or 0) > 0 then x = T.dropout(x, o.dropout) end
  end
  return x, T.stack(last, 1), kind == "lstm" and T.stack(last_c, 1) or nil
end

-- The same for a packed sequence: its states come and go in the order of the caller's batch.
local function packed_layers(who, kind, packed, hx, cx, weights, o)
  local x, lengths = packed:padded()
  local function ordered(t, order)
    if not t or not order then return t end
    if not T.is_tensor(t) or t:dim() ~= 3 or t:size(2) ~= order:numel() then
      fail("%s: states [layers, %d, H] are wanted, got %s", who, order:numel(), describe(t))
    end
    return T.index_select(t, order, { dim = 2 })
  end
  local there, back = packed.sorted_indices, packed.unsorted_indices
  local y, h_n, c_n = stack(who, kind, x, ordered(hx, there), ordered(cx, there), weights, o, lengths)
  return packed:with(y), ordered(h_n, back), ordered(c_n, back)
end

-- Returns outputs, h_n[, c_n].
local function layers(who, kind, x, hx, cx, weights, o)
  if rnn.is_packed(x) then return packed_layers(who, kind, x, hx, cx, weights, o) end
  if not T.is_tensor(x) or x:dim() < 2 or x:dim() > 3 then
    fail("%s: input [S, N, in], [S, in], with batch_first [N, S, in], or a packed sequence is wanted, got %s", who,
      describe(x))
  end
  local single = x:dim() == 2
  if single then
    x, hx, cx = x:unsqueeze(2), hx and hx:unsqueeze(2), cx and cx:unsqueeze(2)
  elseif o.batch_first then
    x = x:transpose(1, 2)
  end
  if x:size(1) == 0 then fail("%s: the sequence is empty", who) end
  local y, h_n, c_n = stack(who, kind, x, hx, cx, weights, o)
  if single then return y:squeeze(2), h_n:squeeze(2), c_n and c_n:squeeze(2) end
  return o.batch_first and y:transpose(1, 2) or y, h_n, c_n
end

return function(F)

  --- nn.F.gru_cell(x, state, w_ih, w_hh, b_ih, b_hh, {linear_before_reset=true}) → state
  -- One step, as nn.GRUCell.
  --   -- nn.GRUCell calls it
  --   local cell = nn.GRUCell(2, 3)
  --   print(nn.F.gru_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3

  --- nn.F.rnn_relu_cell(x, state, w_ih, w_hh, b_ih, b_hh) → state
  -- One step, as nn.RNNCell.
  --   -- nn.RNNCell calls it
  --   local cell = nn.RNNCell(2, 3)
  --   print(nn.F.rnn_relu_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3

  --- nn.F.rnn_tanh_cell(x, state, w_ih, w_hh, b_ih, b_hh) → state
  -- One step, as nn.RNNCell.
  --   -- nn.RNNCell calls it
  --   local cell = nn.RNNCell(2, 3)
  --   print(nn.F.rnn_tanh_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3
  for name, kind in pairs { rnn_tanh_cell = "tanh", rnn_relu_cell = "relu" } do
    --- One step: (x [N, in], h [N, H], w_ih, w_hh, b_ih, b_hh) → h. h nil: zeros.
    F[name] = function(x, h, w_ih, w_hh, b_ih, b_hh)
      return (cell(name, kind, x, h, nil, { w_ih, w_hh, b_ih, b_hh }))
    end
  end
  function F.gru_cell(x, h, w_ih, w_hh, b_ih, b_hh, linear_before_reset)
    local kind = linear_before_reset == false and "gru_reset_first" or "gru"
    return (cell("gru_cell", kind, x, h, nil, { w_ih, w_hh, b_ih, b_hh }))
  end

  --- nn.F.lstm_cell(x, state, w_ih, w_hh, b_ih, b_hh, {w_peephole=}) → state
  -- One step, as nn.LSTMCell.
  --   -- nn.LSTMCell calls it
  --   local cell = nn.LSTMCell(2, 3)
  --   print(nn.F.lstm_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3
  function F.lstm_cell(x, state, w_ih, w_hh, b_ih, b_hh, w_peephole)
    if state ~= nil and type(state) ~= "table" then
      fail("lstm_cell: the state must be {h, c}, got %s", describe(state))
    end
    local w = { w_ih, w_hh, b_ih, b_hh, peephole = w_peephole }
    return cell("lstm_cell", "lstm", x, state and state[1], state and state[2], w)
  end

  -- Layers: (x, h_0, weights, opts) → y, h_n. x [S, N, in] (batch_first: [N, S, in]; or [S, in]), h_0 and h_n
  -- [layers · directions, N, H], y [S, N, directions · H]; x may be a packed sequence (nn.utils.rnn), then y is one.
  -- Options `nonlinearity="tanh"` (rnn), `num_layers=1 bias=true batch_first=false bidirectional=false dropout=0
  -- training=false`.
  --- nn.F.rnn(x, state, weights, {…}) → y, state
  -- What nn.RNN computes, from its weights in order.
  --   -- nn.RNN calls it
  --   local net = nn.RNN(2, 3)
  --   print(nn.F.rnn ~= nil, net(T.ones(4, 1, 2)):size(3))  --> true	3
  function F.rnn(x, hx, weights, opts)
    local o = options.check("rnn", opts, { "nonlinearity", table.unpack(names) })
    local kind = o.nonlinearity or "tanh"
    if kind ~= "tanh" and kind ~= "relu" then
      fail("rnn: %s", options.unknown("nonlinearity", kind, { "tanh", "relu" }))
    end
    return layers("rnn", kind, x, hx, nil, weights, o)
  end
  function F.gru(x, hx, weights, opts)
    local o = options.check("gru", opts, { "linear_before_reset", table.unpack(names) })
    return layers("gru", o.linear_before_reset == false and "gru_reset_first" or "gru", x, hx, nil, weights, o)
  end
  --- The same with {h_0, c_0} (or nil) → y, h_n, c_n. Options `proj_size`, `peepholes`: each layer has w_hr, w_peephole
  -- behind its biases.
  function F.lstm(x, state, weights, opts)
    if state ~= nil and type(state) ~= "table" then fail("lstm: the state must be {h, c}, got %s", describe(state)) end
    return layers("lstm", "lstm", x, state and state[1], state and state[2], weights, options.check("lstm", opts,
      { "proj_size", "peepholes", table.unpack(names) }))
  end
end
