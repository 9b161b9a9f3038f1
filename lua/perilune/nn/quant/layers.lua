-- SPDX-License-Identifier: MIT
--- Layers between a network of floats and one of 8-bit integers: prepared ones, which compute with floats, watch the
-- range of their inputs and may round as the integers will; and those that compute with integers.
-- @module perilune.nn.quant.layers
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local observers = require "perilune.nn.quant.observers"
local options = require "perilune.options"

local fail = options.fail
local rawget, rawset = rawget, rawset

local M = {}

local CONV = { "in_channels", "out_channels", "groups", "kernel_size", "stride", "dilation", "padding", "padding_mode" }
local LINEAR = { "in_features", "out_features" }

local function copy_fields(from, to, names)
  for _, name in ipairs(names) do rawset(to, name, rawget(from, name)) end
end

-- ---- prepared ------------------------------------------------------------------------------------------------

-- A layer that is to become an integer one. Its own parameters are those of the layer that it stands for; bn: a batch
-- norm behind it; relu: whether one is behind that. rounds: input and weight are rounded; else it computes as before,
-- and input_quant sees the input.
local Prepared = base.class "PreparedLayer"

function Prepared:init(layer, o)
  local conv = layer:type() == "Conv2d"
  self.kind = conv and "conv" or "linear"
  copy_fields(layer, self, conv and CONV or LINEAR)
  self.weight = layer.weight
  if layer.bias then self.bias = layer.bias end
  if o.bn then self.bn = o.bn end
  self.relu, self.rounds = o.relu or false, o.rounds
  self.input_quant = observers.FakeQuantize { observer = o.observer() }:to(self.weight:device())
  self.input_quant:enable_fake_quant(o.rounds)
end

-- Scales of a weight's channels, as they are now: whole numbers from -128 to 127, symmetric.
local function scales_of(w)
  return (w:detach():flatten(2):abs():amax(2):float() / 127.5):clamp { min = 2.0 ^ -23 }
end

local function rounded(w)
  local scale = scales_of(w)
  return T.fake_quantize_per_channel_affine(w, scale, T.zeros_like(scale), 1, -128, 127)
end

local function product(self, x, w, b)
  if self.kind == "linear" then return F.linear(x, w, b) end
  local around = T.nn.Conv2d._around(self)
  if around then x = F.pad(x, around, { mode = self.padding_mode }) end
  return T.nn.F.conv2d(x, w, b, { stride = self.stride, padding = around and 0 or self.padding, dilation =
    self.dilation, groups = self.groups })
end

-- What the batch norm, with its running statistics, multiplies and adds.
local function folded(bn)
  local by = (bn.running_var + bn.eps):rsqrt()
  if bn.weight then by = by * bn.weight end
  local plus = -bn.running_mean * by
  if bn.bias then plus = plus + bn.bias end
  return by, plus
end

function Prepared:forward(x)
  local bn, y = self.bn
  x = self.input_quant(x)
  if not self.rounds then
    y = product(self, x, self.weight, self.bias)
    if bn then y = bn(y) end
  elseif bn then -- the weight is rounded as it will be with bn in it; bn itself still sees what it is used to
    local by = folded(bn)
    by = T.where(by:eq(0), T.ones_like(by), by) -- a channel that bn makes constant; 0 / 0 would be NaN
    local w = rounded(self.weight * by:view(-1, 1, 1, 1))
    y = product(self, x, w) / by:view(1, -1, 1, 1)
    if self.bias then y = y + self.bias:view(1, -1, 1, 1) end
    y = bn(y)
  else
    y = product(self, x, rounded(self.weight), self.bias)
  end
  return self.relu and y:relu() or y
end

function Prepared:extra_repr()
  return ("%s, %d, %d%s%s"):format(self.kind, self.in_features or self.in_channels, self.out_features
    or self.out_channels, self.bn and ", bn=true" or "", self.relu and ", relu=true" or "")
end
M.Prepared = Prepared

-- ---- integers ------------------------------------------------------------------------------------------------

local KEEP = { keep_dtype = true } -- what integers stand for is f32, whatever the network around is converted to

-- y, f32, in the dtype of x where that is a floating one.
local function like(y, x)
  return x:is_floating_point() and x:dtype() ~= "f32" and y:to(x:dtype()) or y
end

local function buffers(self, outs, weight)
  self:register_buffer("weight", weight)
  self:register_buffer("scale", T.ones { outs }, KEEP)
  self:register_buffer("input_scale", T.ones {}, KEEP)
  self:register_buffer("input_zero_point", T.zeros({}, { dtype = "i32" }))
  self:register_buffer("bias", T.zeros { outs }, KEEP)
end

--- nn.quant.Int8Conv2d(…) → module
-- nn.Conv2d that computes with whole numbers of 8 bits (T.int8_conv2d): x is rounded with input_scale and
-- input_zero_point, weight i8 stands for weight times scale of its channel; bias and scales are f32, whatever the
-- network is converted to, results have x's dtype and are not below 0 with relu. nn.quant.convert makes them; a new
-- one is zeros.
-- Shapes: [N, in, H, W] → [N, out, H', W'] (or without N)
--   local c = nn.quant.Int8Conv2d(2, 3, 3, { padding = 1 })
--   print(c.weight:dtype(), table.concat(c(T.ones(1, 2, 4, 4)):shape(), " "))  --> i8	1 3 4 4
local Int8Conv2d = base.class "Int8Conv2d"
local conv_spec = options.spec("nn.quant.Int8Conv2d", { { "in_channels", "count" }, { "out_channels", "count" },
  { "kernel_size", "window" }, { "stride", "window", 1 }, { "padding", "padding", 0 }, { "dilation", "window", 1 },
  { "groups", "count", 1 }, { "padding_mode", { "zeros", "reflect", "replicate", "circular" }, "zeros" },
  { "relu", "bool", false } })

function Int8Conv2d:init(...)
  local a = options.read(conv_spec, ...)
  local relu = a.relu
  a.relu, a.bias = nil, false
  local floats = T.nn.Conv2d(a) -- which checks them
  copy_fields(floats, self, CONV)
  self.relu = relu
  buffers(self, a.out_channels, T.zeros(floats.weight:shape(), { dtype = "i8" }))
end

-- Of the fields as they are now: what F.pad puts around, or nil, and the options of the op.
local function window(self)
  local padding, around = self.padding, T.nn.Conv2d._around(self)
  if not around and padding == "same" then
    -- more behind than before, as F.conv2d has it; 0 is a whole number, so padding may come first
    around = {}
    local function at(v, d) return type(v) == "table" and v[d] or v end
    for d = 2, 1, -1 do
      if at(self.stride, d) ~= 1 then fail("Int8Conv2d: padding 'same' needs stride 1") end
      local all = at(self.dilation, d) * (at(self.kernel_size, d) - 1)
      around[#around + 1], around[#around + 2] = all // 2, all - all // 2
    end
  end
  if around or padding == "valid" then padding = 0 end
  return around, { stride = self.stride, padding = padding, dilation = self.dilation, groups = self.groups,
    relu = self.relu }
end

function Int8Conv2d:forward(x)
  local single = x:dim() == 3
  if single then x = x:unsqueeze(1) end
  local around, opts = window(self)
  if around then x = F.pad(x, around, self.padding_mode ~= "zeros" and { mode = self.padding_mode } or nil) end
  local y = T.int8_conv2d(x:float(), self.weight, self.scale, self.input_scale, self.input_zero_point, self.bias, opts)
  y = like(y, x)
  return single and y:squeeze(1) or y
end

function Int8Conv2d:extra_repr()
  return ("%d, %d, kernel_size={%s}%s"):format(self.in_channels, self.out_channels,
    table.concat(self.kernel_size, ", "), self.relu and ", relu=true" or "")
end
M.Int8Conv2d = Int8Conv2d

--- nn.quant.Int8Linear(…) → module
-- nn.Linear that computes with whole numbers of 8 bits (T.int_mm), as nn.quant.Int8Conv2d does.
-- Shapes: [*, in_features] → [*, out_features]
--   local l = nn.quant.Int8Linear(3, 2, { relu = true })
--   print(l)  --> Int8Linear(in_features=3, out_features=2, relu=true)
local Int8Linear = base.class "Int8Linear"
local linear_spec = options.spec("nn.quant.Int8Linear", { { "in_features", "count" }, { "out_features", "count" },
  { "relu", "bool", false } })

function Int8Linear:init(...)
  local a = options.read(linear_spec, ...)
  if a.in_features > 65536 then
    fail("nn.quant.Int8Linear: sums of %d terms do not fit 32 bits; 65536 at most", a.in_features)
  end
  self.in_features, self.out_features, self.relu = a.in_features, a.out_features, a.relu
  buffers(self, a.out_features, T.zeros({ a.out_features, a.in_features }, { dtype = "i8" }))
end

function Int8Linear:forward(x)
  local n = self.in_features
  if x:size(-1) ~= n then
    fail("Int8Linear: the last size of the input must be %d, got %s", n, options.describe(x))
  end
  local shape, zero = x:shape(), self.input_zero_point
  shape[#shape] = self.out_features
  local q = ((x:float():reshape(-1, n) * self.input_scale:reciprocal()):round() + zero):clamp(-128, 127)
  q = q:nan_to_num(-128):to("i8") -- as T.int8_conv2d takes NaN
  local sums = T.int_mm(q, self.weight:t()) - self.weight:to("i32"):sum(2) * zero
  local y = sums:to("f32") * (self.scale * self.input_scale) + self.bias
  if self.relu then y = y:relu() end
  return like(y, x):view(shape)
end

function Int8Linear:extra_repr()
  return ("in_features=%d, out_features=%d%s"):format(self.in_features, self.out_features,
    self.relu and ", relu=true" or "")
end
M.Int8Linear = Int8Linear

--- The integer layer of a prepared one. blank: its numbers come from elsewhere.
function M.convert(p, name, blank)
  local new
  if p.kind == "conv" then
    new = Int8Conv2d(p.in_channels, p.out_channels, { kernel_size = p.kernel_size, stride = p.stride,
      padding = p.padding, dilation = p.dilation, groups = p.groups, padding_mode = p.padding_mode, relu = p.relu })
  else
    new = Int8Linear(p.in_features, p.out_features, { relu = p.relu })
  end
  new:to(p.weight:device())
  new:train(p.training)
  if blank then return new end
  T.no_grad(function()
    local w, b = p.weight:float(), p.bias and p.bias:float()
    if p.bn then
      local by, plus = folded(p.bn)
      w = w * by:view(-1, 1, 1, 1)
      b = b and b * by + plus or plus
    end
    if not T.isfinite(w:sum()):item() then fail("nn.quant.convert: the weight of %s is not finite", name) end
    local scale = scales_of(w)
    local wide = { -1 }
    for d = 2, w:dim() do wide[d] = 1 end
    new.weight:copy_((w * scale:reciprocal():view(wide)):round():clamp(-128, 127))
    new.scale:copy_(scale)
    local input = p.input_quant.observer
    observers.check_range(input, "nn.quant.convert", name)
    if T.maximum(-input.min_val, input.max_val):le(0):all():item() then
      fail("nn.quant.convert: nothing but zeros has gone through %s, which is no range to round its input in; give "
        .. "other data, or name it in skip", name)
    end
    local input_scale, zero = input:calculate_qparams()
    if p.rounds then input_scale, zero = p.input_quant.scale, p.input_quant.zero_point end
    new.input_scale:copy_(input_scale)
    new.input_zero_point:copy_(zero)
    if b then new.bias:copy_(b) end
  end)
  return new
end

return M
