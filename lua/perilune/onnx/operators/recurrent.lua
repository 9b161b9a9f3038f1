-- SPDX-License-Identifier: MIT
--- ONNX's RNN, GRU and LSTM, with any activations, clipping, peepholes and lengths, step by step; what perilune's own
-- layers compute goes to them.
-- @module perilune.onnx.operators.recurrent
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op, beside = registry.op, registry.beside
local F = T.nn.F

-- Activations by name, with ONNX's defaults for alpha and beta.
local activations = {
  Relu = function() return T.relu end,
  Tanh = function() return T.tanh end,
  Sigmoid = function() return T.sigmoid end,
  Softsign = function() return T.softsign end,
  Softplus = function() return F.softplus end,
  LeakyRelu = function(a) return function(x) return F.leaky_relu(x, a or 0.01) end end,
  ThresholdedRelu = function(a) return function(x) return T.where(x:gt(a or 1.0), x, T.zeros_like(x)) end end,
  Elu = function(a) return function(x) return F.elu(x, a or 1.0) end end,
  Affine = function(a, b) return function(x) return x * (a or 1.0) + (b or 0.0) end end,
  ScaledTanh = function(a, b) return function(x) return (x * (b or 1.0)):tanh() * (a or 1.0) end end,
  HardSigmoid = function(a, b) return function(x)
    return (x * (a or 0.2) + (b or 0.5)):clamp({ min = 0, max = 1 })
  end end,
}
local by_lower = {}
for name, f in pairs(activations) do by_lower[name:lower()] = f end
local takes_alpha = { leakyrelu = true, thresholdedrelu = true, elu = true, affine = true, scaledtanh = true,
  hardsigmoid = true }
local takes_beta = { affine = true, scaledtanh = true, hardsigmoid = true }

-- The functions of each direction; alphas and betas go to those that take them, in order.
local function functions(c, defaults, directions)
  local names, alpha, beta, out = c.a.activations, 0, 0, {}
  if names and #names ~= #defaults * directions then
    c:fail("%d activations; %d are wanted", #names, #defaults * directions)
  end
  for i = 1, #defaults * directions do
    local name = (names and names[i] or defaults[(i - 1) % #defaults + 1]):lower()
    local make = by_lower[name] or c:fail("activation '%s'", names and names[i] or name)
    local a, b
    if takes_alpha[name] and c.a.activation_alpha then
      alpha = alpha + 1
      a = c.a.activation_alpha[alpha]
    end
    if takes_beta[name] and c.a.activation_beta then
      beta = beta + 1
      b = c.a.activation_beta[beta]
    end
    out[i] = make(a, b)
  end
  return out
end

local ATTRIBUTES = "activation_alpha:floats activation_beta:floats activations:strings clip:float direction:string "
  .. "hidden_size:int layout:int output_sequence:int "

-- What all three do around their cell: directions, layout, lengths, initial states.
-- step(t, x_t, states…) → states; states[1] is the output. gates: rows of W in units of the hidden size.
local function layer(c, x, w, lengths, states, gates, make_step)
  local direction = c.a.direction or "forward"
  local directions = direction == "bidirectional" and 2 or 1
  if not ({ forward = 1, reverse = 1, bidirectional = 1 })[direction] then c:fail("direction '%s'", direction) end
  local batch_first = c.a.layout == 1
  if batch_first then
    x = x:transpose(1, 2)
    for i = 1, states.n do states[i] = states[i] and states[i]:transpose(1, 2) end
  end
  local steps, n = x:size(1), x:size(2)
  local hidden = w:size(2) // gates
  if w:size(1) ~= directions or w:size(2) % gates ~= 0 or (c.a.hidden_size and c.a.hidden_size ~= hidden) then
    c:fail("W has the shape [%s] for %d directions", table.concat(w:shape(), ","), directions)
  end
  local late = lengths and beside(x, lengths):to("i64"):reshape(-1, 1)
  local ys, last = {}, {}
  for d = 1, directions do
    local step, back = make_step(d, directions), direction == "reverse" or d == 2
    local s = {}
    for i = 1, states.n do
      s[i] = states[i] and states[i]:select(1, d):to(x:dtype())
        or T.zeros({ n, hidden }, { dtype = x:dtype(), device = x:device() })
    end
    local out = {}
    for k = 1, steps do
      local t = back and steps - k + 1 or k
      local new = { step(t, x:select(1, t), table.unpack(s, 1, states.n)) }
      if late then -- past its end an example keeps its state and gives zeros
        local inside = late:ge(t)
        for i = 1, states.n do new[i] = T.where(inside, new[i], s[i]) end
        out[t] = T.where(inside, new[1], T.zeros_like(new[1]))
      else
        out[t] = new[1]
      end
      s = new
    end
    ys[d] = #out > 0 and T.stack(out, 1) or T.zeros({ 0, n, hidden }, { dtype = x:dtype(), device = x:device() })
    for i = 1, states.n do
      last[i] = last[i] or {}
      last[i][d] = s[i]
    end
  end
  local y = T.stack(ys, 2) -- [steps, directions, n, hidden]
  if batch_first then y = y:permute { 3, 1, 2, 4 } end
  for i = 1, states.n do
    last[i] = T.stack(last[i], batch_first and 2 or 1)
  end
  return y, table.unpack(last, 1, states.n)
end

local function clipper(c)
  local clip = c.a.clip
  if not clip then return function(x) return x end end
  return function(x) return x:clamp({ min = -clip, max = clip }) end
end

-- The two halves of B for a direction, each for all gates; nil without B.
local function biases(b, d, gates, hidden)
  if not b then return nil end
  local row = b:select(1, d)
  return row:narrow(1, 1, gates * hidden), row:narrow(1, gates * hidden + 1, gates * hidden)
end

op("RNN", ATTRIBUTES, function(c, x, w, r, b, lengths, h0)
  local hidden = w:size(2)
  return layer(c, x, w, lengths, { h0, n = 1 }, 1, function(d, directions)
    local f, clip = functions(c, { "Tanh" }, directions)[d], clipper(c)
    local wd, rd = w:select(1, d), r:select(1, d)
    local wb, rb = biases(b, d, 1, hidden)
    local bias = wb and wb + rb
    return function(_, xt, h) return f(clip(F.linear(xt, wd, bias) + F.linear(h, rd))) end
  end)
end)

op("GRU", ATTRIBUTES .. "linear_before_reset:int", function(c, x, w, r, b, lengths, h0)
  local hidden = w:size(2) // 3
  return layer(c, x, w, lengths, { h0, n = 1 }, 3, function(d, directions)
    local fs, clip = functions(c, { "Sigmoid", "Tanh" }, directions), clipper(c)
    local f, g = fs[2 * d - 1], fs[2 * d]
    local wd, rd = w:select(1, d), r:select(1, d)
    local wb, rb = biases(b, d, 3, hidden)
    local function part(t, k) return t and t:narrow(1, (k - 1) * hidden + 1, hidden) end
    local r_gates, r_new = rd:narrow(1, 1, 2 * hidden), part(rd, 3)
    return function(_, xt, h) -- gates in the order z, r, h
      local gx = F.linear(xt, wd, wb)
      local gh = F.linear(h, r_gates, rb and rb:narrow(1, 1, 2 * hidden))
      local z = f(clip(gx:narrow(2, 1, hidden) + gh:narrow(2, 1, hidden)))
      local reset = f(clip(gx:narrow(2, hidden + 1, hidden) + gh:narrow(2, hidden + 1, hidden)))
      local new = gx:narrow(2, 2 * hidden + 1, hidden)
      if c.a.linear_before_reset and c.a.linear_before_reset ~= 0 then
        new = new + reset * F.linear(h, r_new, part(rb, 3))
      else
        new = new + F.linear(reset * h, r_new, part(rb, 3))
      end
      new = g(clip(new))
      return (1 - z) * new + z * h
    end
  end)
end)

-- Rows of gates in ONNX's order i, o, f, c → those of nn.LSTM: i, f, g, o.
local function reorder(t, hidden)
  local function part(k) return t:narrow(1, (k - 1) * hidden + 1, hidden) end
  return T.cat({ part(1), part(3), part(4), part(2) }, 1)
end

-- An LSTM with all that ONNX's may have. gates_of(d, bias or nil) → f(x_t, h, t) → [n, 4 hidden]. Of w only the shape
-- is read.
function registry.lstm(c, x, w, b, lengths, h0, c0, peepholes, gates_of)
  local hidden = w:size(2) // 4
  return layer(c, x, w, lengths, { h0, c0, n = 2 }, 4, function(d, directions)
    local fs, clip = functions(c, { "Sigmoid", "Tanh", "Tanh" }, directions), clipper(c)
    local f, g, h_of = fs[3 * d - 2], fs[3 * d - 1], fs[3 * d]
    local wb, rb = biases(b, d, 4, hidden)
    local gates = gates_of(d, wb and wb + rb)
    local p = peepholes and peepholes:select(1, d)
    local function peep(k, cell) return p and p:narrow(1, (k - 1) * hidden + 1, hidden) * cell or 0.0 end
    return function(t, xt, h, cell) -- gates in the order i, o, f, c; peepholes i, o, f
      local a = gates(xt, h, t)
      local function gate(k) return a:narrow(2, (k - 1) * hidden + 1, hidden) end
      local i = f(clip(gate(1) + peep(1, cell)))
      local forget = c.a.input_forget == 1 and 1 - i or f(clip(gate(3) + peep(3, cell)))
      local new = forget * cell + i * g(clip(gate(4)))
      local o = f(clip(gate(2) + peep(2, new)))
      return o * h_of(new), new
    end
  end)
end

op("LSTM", ATTRIBUTES .. "input_forget:int", function(c, x, w, r, b, lengths, h0, c0, peepholes)
  local hidden = w:size(2) // 4
  local plain = not (lengths or peepholes or c.a.activations or c.a.clip or c.a.input_forget == 1)
  if plain and x:size(1) > 0 and x:size(2) > 0 and registry.is_float(x) then
    return layer(c, x, w, nil, { h0, c0, n = 2 }, 4, function(d)
      local wd, rd = reorder(w:select(1, d), hidden), reorder(r:select(1, d), hidden)
      local wb, rb = biases(b, d, 4, hidden)
      local bias = wb and reorder(wb + rb, hidden)
      return function(_, xt, h, cell)
        local gates = F.linear(xt, wd, bias) + F.linear(h, rd)
        return T.core.op.lstm_gates(gates, cell)
      end
    end)
  end
  return registry.lstm(c, x, w, b, lengths, h0, c0, peepholes, function(d, bias)
    local wd, rd = w:select(1, d), r:select(1, d)
    return function(xt, h) return F.linear(xt, wd, bias) + F.linear(h, rd) end
  end)
end)
