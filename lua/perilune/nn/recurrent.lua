-- SPDX-License-Identifier: MIT
--- Recurrent layers: RNN, LSTM, GRU, and their cells. Parameters are named and initialized as in PyTorch:
-- weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse …, all uniform within ±1/√hidden_size.
-- @module perilune.nn.recurrent
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local options = require "perilune.options"

local class, Parameter, current = base.class, base.Parameter, require("perilune.nn.simple").current
local settings = { "num_layers", "bias", "batch_first", "dropout", "bidirectional", "nonlinearity", "proj_size",
  "peepholes", "linear_before_reset", "training" }
local out = {}

local function reset(self)
  local bound = self.hidden_size > 0 and 1 / math.sqrt(self.hidden_size) or 0.0
  for _, p in ipairs(self:parameters()) do init.uniform_(p, -bound, bound) end
end

-- ---- layers ------------------------------------------------------------------------------------------

-- extra: an argument after num_layers; further ones come behind all that layers share.
local function layer(name, gates, extra, ...)
  local C = class(name)
  local args = {
    { "input_size", "size" }, { "hidden_size", "count" }, { "num_layers", "count", 1 } }
  if extra then args[4] = extra end
  for _, a in ipairs { { "bias", "bool", true }, { "batch_first", "bool", false }, { "dropout", "probability", 0.0 },
    { "bidirectional", "bool", false } } do args[#args + 1] = a end
  for _, a in ipairs { ... } do args[#args + 1] = a end
  args[#args + 1] = { "dtype", "string", optional = true }
  local spec = options.spec("nn." .. name, args)

  function C:init(...)
    local a = options.read(spec, ...)
    self.input_size, self.hidden_size, self.num_layers = a.input_size, a.hidden_size, a.num_layers
    self.bias, self.batch_first, self.dropout, self.bidirectional = a.bias, a.batch_first, a.dropout, a.bidirectional
    self.nonlinearity, self.peepholes, self.linear_before_reset = a.nonlinearity, a.peepholes, a.linear_before_reset
    local states = a.hidden_size
    if (a.proj_size or 0) < 0 then options.fail("nn.%s: proj_size must be at least 0, got %d", name, a.proj_size) end
    if (a.proj_size or 0) > 0 then
      if a.proj_size >= a.hidden_size then
        options.fail("nn.%s: proj_size must be less than hidden_size, got %d and %d", name, a.proj_size, a.hidden_size)
      end
      self.proj_size, states = a.proj_size, a.proj_size
    end
    self._opts = { num_layers = a.num_layers, bias = a.bias, batch_first = a.batch_first, dropout = a.dropout,
      bidirectional = a.bidirectional, nonlinearity = a.nonlinearity, proj_size = self.proj_size,
      peepholes = a.peepholes, linear_before_reset = a.linear_before_reset }
    self._order = {}
    local rows, both = gates * a.hidden_size, a.bidirectional and 2 or 1
    local function add(key, ...)
      self._order[#self._order + 1] = key
      self[key] = Parameter(T.empty({ ... }, { dtype = a.dtype }))
    end
    for l = 0, a.num_layers - 1 do
      local inputs = l == 0 and a.input_size or both * states
      for d = 1, both do
        local suffix = ("_l%d%s"):format(l, d == 2 and "_reverse" or "")
        add("weight_ih" .. suffix, rows, inputs)
        add("weight_hh" .. suffix, rows, states)
        if a.bias then
          add("bias_ih" .. suffix, rows)
          add("bias_hh" .. suffix, rows)
        end
        if self.proj_size then add("weight_hr" .. suffix, states, a.hidden_size) end
        if a.peepholes then add("weight_peephole" .. suffix, 3 * a.hidden_size) end
      end
    end
    self:reset_parameters()
  end

  C.reset_parameters = reset

  -- Here, where the network's own words are known.
  function C:checked(x)
    if type(x) == "userdata" and x:dim() > 0 and x:size(-1) ~= self.input_size then
      options.fail("nn.%s: the input %s has %d features, input_size is %d", name, x:describe(), x:size(-1),
        self.input_size)
    end
    return x
  end

  function C:weights()
    local list = {}
    for i, key in ipairs(self._order) do list[i] = self[key] end
    return list
  end

  function C:extra_repr()
    local text = ("%d, %d"):format(self.input_size, self.hidden_size)
    if self.proj_size then text = text .. (", proj_size=%d"):format(self.proj_size) end
    if self.num_layers ~= 1 then text = text .. (", num_layers=%d"):format(self.num_layers) end
    if not self.bias then text = text .. ", bias=false" end
    if self.batch_first then text = text .. ", batch_first=true" end
    if self.dropout > 0 then text = text .. (", dropout=%g"):format(self.dropout) end
    if self.bidirectional then text = text .. ", bidirectional=true" end
    if self.peepholes then text = text .. ", peepholes=true" end
    if self.linear_before_reset == false then text = text .. ", linear_before_reset=false" end
    return text
  end

  out[name] = C
  return C
end

-- h = tanh(W_ih x + b_ih + W_hh h + b_hh) (or relu) over sequences [S, N, input_size]; `batch_first`: [N, S, *].
-- `rnn(x[, h_0])` → outputs [S, N, D·H], h_n [layers·D, N, H]; D is 2 if bidirectional. Dropout acts between
-- layers. x may be a packed sequence (nn.utils.rnn); then so are the outputs.
--- nn.RNN(…) → module
-- Layers of RNN cells over a sequence, num_layers deep, bidirectional on request. State: weight_ih_l0, weight_hh_l0,
-- bias_ih_l0, bias_hh_l0 …, as in PyTorch. x may be a packed batch of nn.utils.rnn.
-- Shapes: x [L, N, in] (or [L, in]; batch_first: [N, L, in]), h → y [L, N, hidden], h [layers, N, hidden]
--   local net = nn.RNN(3, 4)
--   local y = net(T.ones(5, 2, 3))
--   print(table.concat(y:shape(), " "))  --> 5 2 4
local RNN = layer("RNN", 1, { "nonlinearity", { "tanh", "relu" }, "tanh" })
function RNN:forward(x, h)
  return F.rnn(self:checked(x), h, self:weights(), current(self, settings))
end

-- The same with GRU cells (Cho et al. 2014).
--- nn.GRU(…) → module
-- Layers of GRU cells over a sequence, num_layers deep, bidirectional on request. State: weight_ih_l0, weight_hh_l0,
-- bias_ih_l0, bias_hh_l0 …, as in PyTorch. x may be a packed batch of nn.utils.rnn. linear_before_reset=false: the
-- reset gate acts on the state, before the product, as Cho et al. (2014) wrote it.
-- Shapes: x [L, N, in] (or [L, in]; batch_first: [N, L, in]), h → y [L, N, hidden], h [layers, N, hidden]
--   local net = nn.GRU(3, 4)
--   local y = net(T.ones(5, 2, 3))
--   print(table.concat(y:shape(), " "))  --> 5 2 4
local GRU = layer("GRU", 3, nil, { "linear_before_reset", "bool", true })
function GRU:forward(x, h)
  return F.gru(self:checked(x), h, self:weights(), current(self, settings))
end

--- nn.LSTM(…) → module
-- Layers of LSTM cells over a sequence, num_layers deep, bidirectional on request. State: weight_ih_l0, weight_hh_l0,
-- bias_ih_l0, bias_hh_l0 …, as in PyTorch. x may be a packed batch of nn.utils.rnn. proj_size=P: the state h is
-- weight_hr_l0 (o tanh c), with P entries (Sak et al. 2014). peepholes=true: the gates i, f, o also see the cell,
-- multiplied by weight_peephole_l0 [3 hidden] (Gers, Schraudolph & Schmidhuber 2002).
-- Shapes: x [L, N, in] (or [L, in]; batch_first: [N, L, in]), {h, c} → y [L, N, hidden], {h, c} of [layers, N, hidden]
--   local net = nn.LSTM(3, 4)
--   local y, state = net(T.ones(5, 2, 3)) -- then net(x, state) goes on; state[1] is h, state[2] c
--   print(table.concat(y:shape(), " "), table.concat(state[1]:shape(), " "))  --> 5 2 4	1 2 4
local LSTM = layer("LSTM", 4, nil, { "proj_size", "int", 0 }, { "peepholes", "bool", false })
function LSTM:forward(x, state)
  if state ~= nil then options.kind("nn.LSTM", "the state", "state", state) end
  local y, h, c = F.lstm(self:checked(x), state, self:weights(), current(self, settings))
  return y, { h, c }
end

-- ---- cells -------------------------------------------------------------------------------------------

local function cell_class(name, gates, extra)
  local C = class(name)
  local args = { { "input_size", "size" }, { "hidden_size", "count" }, { "bias", "bool", true } }
  if extra then args[4] = extra end
  args[#args + 1] = { "dtype", "string", optional = true }
  local spec = options.spec("nn." .. name, args)

  function C:init(...)
    local a = options.read(spec, ...)
    self.input_size, self.hidden_size, self.nonlinearity = a.input_size, a.hidden_size, a.nonlinearity
    local rows, opts = gates * a.hidden_size, { dtype = a.dtype }
    self.weight_ih = Parameter(T.empty({ rows, a.input_size }, opts))
    self.weight_hh = Parameter(T.empty({ rows, a.hidden_size }, opts))
    if a.bias then
      self.bias_ih = Parameter(T.empty({ rows }, opts))
      self.bias_hh = Parameter(T.empty({ rows }, opts))
    end
    if a.peepholes then self.weight_peephole = Parameter(T.empty({ 3 * a.hidden_size }, opts)) end
    self.linear_before_reset = a.linear_before_reset
    self:reset_parameters()
  end

  C.reset_parameters = reset

  function C:extra_repr()
    return ("%d, %d%s%s%s"):format(self.input_size, self.hidden_size, self.bias_ih and "" or ", bias=false",
      self.weight_peephole and ", peepholes=true" or "",
      self.linear_before_reset == false and ", linear_before_reset=false" or "")
  end

  out[name] = C
  return C
end

--- nn.RNNCell(…) → module
-- One step of a RNN.
-- Shapes: x [N, in], state → state
--   local h = nn.RNNCell(3, 4)(T.ones(2, 3))
--   print(table.concat(h:shape(), " "))  --> 2 4
local RNNCell = cell_class("RNNCell", 1, { "nonlinearity", { "tanh", "relu" }, "tanh" })
function RNNCell:forward(x, h)
  return F["rnn_" .. self.nonlinearity .. "_cell"](x, h, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
end

--- nn.GRUCell(…) → module
-- One step of a GRU. linear_before_reset=false: the reset gate acts on the state, before the product.
-- Shapes: x [N, in], state → state
--   local h = nn.GRUCell(3, 4)(T.ones(2, 3))
--   print(table.concat(h:shape(), " "))  --> 2 4
local GRUCell = cell_class("GRUCell", 3, { "linear_before_reset", "bool", true })
function GRUCell:forward(x, h)
  return F.gru_cell(x, h, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, self.linear_before_reset)
end

--- nn.LSTMCell(…) → module
-- One step of a LSTM. peepholes=true: the gates also see the cell, multiplied by weight_peephole [3 hidden].
-- Shapes: x [N, in], state → state
--   local h = nn.LSTMCell(3, 4)(T.ones(2, 3))
--   print(table.concat(h:shape(), " "))  --> 2 4
local LSTMCell = cell_class("LSTMCell", 4, { "peepholes", "bool", false })
function LSTMCell:forward(x, state)
  if state ~= nil then options.kind("nn.LSTMCell", "the state", "state", state) end
  return F.lstm_cell(x, state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, self.weight_peephole)
end

return out
