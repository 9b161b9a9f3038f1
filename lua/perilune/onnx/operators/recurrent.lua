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

-- What all three begin with: x [steps, n, inputs], states [directions, n, hidden], number of directions, hidden size.
-- gates: rows of W in units of the hidden size.
local function arrange(c, x, w, states, gates)
  local direction = c.a.direction or "forward"
  local directions = direction == "bidirectional" and 2 or 1
  if not ({ forward = 1, reverse = 1, bidirectional = 1 })[direction] then c:fail("direction '%s'", direction) end
  if c.a.layout == 1 then
    x = x:transpose(1, 2)
    for i = 1, states.n do states[i] = states[i] and states[i]:transpose(1, 2) end
  end
  local hidden = w:size(2) // gates
  if w:size(1) ~= directions or w:size(2) % gates ~= 0 or (c.a.hidden_size and c.a.hidden_size ~= hidden) then
    c:fail("W has the shape [%s] for %d directions", table.concat(w:shape(), ","), directions)
  end
  return x, direction, directions, hidden
end

-- … and end with: y [steps, directions, n, hidden], last states [directions, n, hidden], in the order asked for.
local function arranged(c, y, last)
  if c.a.layout == 1 then
    y = y:permute { 3, 1, 2, 4 }
    for i = 1, last.n do last[i] = last[i]:transpose(1, 2) end
  end
  return y, table.unpack(last, 1, last.n)
end

-- Does a layer of nn compute it, whatever the length? Functions are those of ONNX's defaults, or `others`.
local function is_plain(c, x, lengths, defaults, others)
  for i, name in ipairs(c.a.activations or {}) do
    local want = (others or defaults)[(i - 1) % #defaults + 1]
    if name:lower() ~= want:lower() then return false end
  end
  local dtype = x:dtype()
  return not (lengths or c.a.clip) and x:size(1) > 0 and x:size(2) > 0 and (dtype == "f32" or dtype == "f64")
end

-- f(x, states, weights, options) → y, states…: a layer of nn's. part(t): rows of gates in its order.
local function by_layer(c, x, w, r, b, states, gates, part, f)
  local direction, directions, hidden
  x, direction, directions, hidden = arrange(c, x, w, states, gates)
  local weights, given = {}, { n = states.n }
  for i = 1, states.n do given[i] = states[i] and states[i]:to(x:dtype()) end
  for d = 1, directions do
    local list = { w:select(1, d), r:select(1, d) }
    if b then
      local row = b:select(1, d)
      list[3], list[4] = row:narrow(1, 1, gates * hidden), row:narrow(1, gates * hidden + 1, gates * hidden)
    end
    for _, t in ipairs(list) do weights[#weights + 1] = part(t, hidden) end
  end
  local back = direction == "reverse"
  local o = { bias = b ~= nil, bidirectional = directions == 2 }
  local out = table.pack(f(back and x:flip(1) or x, given, weights, o))
  local y = back and out[1]:flip(1) or out[1]
  y = y:view(x:size(1), x:size(2), directions, hidden):permute { 1, 3, 2, 4 }
  return arranged(c, y, { n = states.n, table.unpack(out, 2, 1 + states.n) })
end

-- The others go step by step. step(t, x_t, states…) → states; states[1] is the output.
local function layer(c, x, w, lengths, states, gates, make_step)
  local direction, directions, hidden
  x, direction, directions, hidden = arrange(c, x, w, states, gates)
  local steps, n = x:size(1), x:size(2)
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
  for i = 1, states.n do last[i] = T.stack(last[i], 1) end
  last.n = states.n
  return arranged(c, T.stack(ys, 2), last)
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

local function same(t) return t end

op("RNN", ATTRIBUTES, function(c, x, w, r, b, lengths, h0)
  local hidden = w:size(2)
  for kind, name in pairs { tanh = "Tanh", relu = "Relu" } do
    if (c.a.activations or kind == "tanh") and is_plain(c, x, lengths, { "Tanh" }, { name }) then
      return by_layer(c, x, w, r, b, { h0, n = 1 }, 1, same, function(v, states, weights, o)
        o.nonlinearity = kind
        return F.rnn(v, states[1], weights, o)
      end)
    end
  end
  return layer(c, x, w, lengths, { h0, n = 1 }, 1, function(d, directions)
    local f, clip = functions(c, { "Tanh" }, directions)[d], clipper(c)
    local wd, rd = w:select(1, d), r:select(1, d)
    local wb, rb = biases(b, d, 1, hidden)
    local bias = wb and wb + rb
    return function(_, xt, h) return f(clip(F.linear(xt, wd, bias) + F.linear(h, rd))) end
  end)
end)

-- Gates in ONNX's order, by their numbers → in that of a layer of nn.
local function in_order(...)
  local order = { ... }
  return function(t, hidden)
    local parts = {}
    for i, k in ipairs(order) do parts[i] = t:narrow(1, (k - 1) * hidden + 1, hidden) end
    return T.cat(parts, 1)
  end
end

op("GRU", ATTRIBUTES .. "linear_before_reset:int", function(c, x, w, r, b, lengths, h0)
  local hidden = w:size(2) // 3
  if is_plain(c, x, lengths, { "Sigmoid", "Tanh" }) and (c.a.linear_before_reset or 0) ~= 0 then
    -- z, r, h → r, z, n
    return by_layer(c, x, w, r, b, { h0, n = 1 }, 3, in_order(2, 1, 3), function(v, states, weights, o)
      return F.gru(v, states[1], weights, o)
    end)
  end
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
  if is_plain(c, x, lengths, { "Sigmoid", "Tanh", "Tanh" }) and not peepholes and c.a.input_forget ~= 1 then
    -- i, o, f, c → i, f, g, o
    return by_layer(c, x, w, r, b, { h0, c0, n = 2 }, 4, in_order(1, 3, 4, 2), function(v, states, weights, o)
      local h, cell = states[1], states[2]
      local both = (h or cell) and { h or T.zeros_like(cell), cell or T.zeros_like(h) } or nil
      return F.lstm(v, both, weights, o)
    end)
  end
  return registry.lstm(c, x, w, b, lengths, h0, c0, peepholes, function(d, bias)
    local wd, rd = w:select(1, d), r:select(1, d)
    return function(xt, h) return F.linear(xt, wd, bias) + F.linear(h, rd) end
  end)
end)
