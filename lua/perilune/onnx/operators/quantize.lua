-- SPDX-License-Identifier: MIT
--- ONNX operators on quantized tensors: x ≈ scale (q - zero point), for the tensor, along an axis, or in blocks.
-- Products of 8-bit integers are summed exactly, in i32.
-- @module perilune.onnx.operators.quantize
local T = require "perilune"
local narrow = require "perilune.onnx.narrow"
local registry = require "perilune.onnx.operators.registry"
local schema = require "perilune.onnx.schema"

local op, beside = registry.op, registry.beside

local LIMITS = { u8 = { low = 0, high = 255 }, i8 = { low = -128, high = 127 }, i16 = { low = -32768, high = 32767 },
  i32 = { low = -(1 << 31), high = (1 << 31) - 1 } }
local label = narrow.label

-- A scale or zero point in the shape in which it meets x: one number, along an axis, or a block each.
local function along(c, x, t)
  if t == nil or t:numel() == 1 then return t and t:reshape(x:dim() == 0 and {} or { 1 }) end
  local dim = registry.axis(c, c.a.axis or 1, x:dim())
  local block = c.a.block_size or 0
  if block > 0 then
    local wide = t:repeat_interleave(block, dim)
    if wide:size(dim) < x:size(dim) then c:fail("blocks of %d along %d elements", block, x:size(dim)) end
    return wide:narrow(dim, 1, x:size(dim))
  end
  if t:dim() ~= 1 or t:size(1) ~= x:size(dim) then
    c:fail("%d scales along an axis of %d elements", t:numel(), x:size(dim))
  end
  local shape = {}
  for d = 1, x:dim() do shape[d] = d == dim and x:size(dim) or 1 end
  return t:reshape(shape)
end

-- Rounds to even, saturates, and remembers what the type was.
local function saturated(c, y, dtype, name)
  local limits = name and narrow.kinds[name] or LIMITS[dtype]
  if not limits or not limits.low then c:fail("quantized elements of type %s are not supported", name or dtype) end
  local q = y:clamp({ min = limits.low, max = limits.high }):to(dtype)
  return name and narrow.mark(q, name, { y }) or q
end

-- f64 where f32 would not hold the sum exactly
local function quantize(c, x, scale, zero, dtype, name)
  if narrow.is_float(name) then -- the zero point is 0
    local fail = function(...) c:fail(...) end
    return narrow.mark(narrow.round(x / scale, name, c.a.saturate ~= 0, "up", fail), name)
  end
  local y = (x / scale):round()
  if zero then y = y:to("f64") + zero:to("f64") end
  return saturated(c, y, dtype, name)
end

-- The dtype that an attribute names, and its label; nil without it. floating: it must be of floats.
local function named(c, attribute, floating)
  local number = c.a[attribute] or 0
  if number == 0 then return nil end
  local kind = schema.types[number]
  local dtype = kind and kind[2]
  local float = dtype == "f32" or dtype == "f64" or dtype == "f16" or dtype == "bf16"
  if not dtype or floating and (not float or narrow.kinds[kind[1]]) then
    c:fail("%s %s is not supported", attribute, kind and kind[1] or number)
  end
  return dtype, narrow.kinds[kind[1]] and kind[1]
end

op("QuantizeLinear", "axis:int block_size:int output_dtype:int precision:int saturate:int", function(c, x, scale, zero)
  local dtype, name = named(c, "output_dtype")
  if zero then
    if dtype and (dtype ~= zero:dtype() or name ~= label[zero]) then
      c:fail("output_dtype %s, and a zero point of type %s", name or dtype, label[zero] or zero:dtype())
    end
    dtype, name = zero:dtype(), label[zero]
  end
  local precision = named(c, "precision", true)
  local wide = registry.is_float(x) and x or x:to(scale:dtype())
  scale, zero = along(c, x, beside(x, scale)), along(c, x, beside(x, zero))
  if precision then wide, scale = wide:to(precision), scale:to(precision) end
  return quantize(c, wide, scale, zero, dtype or "u8", name)
end, { constants = { 2, 3 } })

op("DequantizeLinear", "axis:int block_size:int output_dtype:int", function(c, x, scale, zero)
  local wanted, y = named(c, "output_dtype", true), x
  if not narrow.is_float(label[x]) then
    y = x:to("i32")
    if zero then y = y - along(c, x, beside(x, zero)):to("i32") end
  end
  local own = scale:dtype()
  if wanted and wanted ~= own then scale = scale:to "f32" end -- rounded once
  return (y:to(scale:dtype()) * along(c, x, beside(x, scale))):to(wanted or own)
end, { constants = { 2, 3 } })

op("DynamicQuantizeLinear", "", function(c, x)
  local zero = T.zeros({}, { dtype = x:dtype(), device = x:device() })
  local low, high = T.minimum(x:amin(), zero), T.maximum(x:amax(), zero)
  local scale = (high - low) / 255
  local safe = T.where(scale:eq(0), T.ones_like(scale), scale) -- of zeros alone
  local point = (-low / safe):round():clamp({ min = 0, max = 255 }):to("u8")
  return quantize(c, x, safe, point, "u8"), safe, point
end)

-- a - its zero point, in i32. A zero point for each row of a, or column of b.
local function centered(c, x, zero, row)
  if narrow.is_float(label[x]) then c:fail("elements of type %s are not supported", label[x]) end
  local y = x:to("i32")
  if not zero then return y end
  zero = beside(x, zero):to("i32")
  if zero:dim() == 1 and zero:numel() > 1 and row then zero = zero:unsqueeze(2) end
  return y - zero
end

registry.quantized = { quantize = quantize, centered = centered }

op("MatMulInteger", "", function(c, a, b, az, bz)
  return centered(c, a, az, true):matmul(centered(c, b, bz)):to("i32")
end)

-- One scale, or one for each row of a or column of b.
local function spread(scale, row)
  if scale:dim() == 1 and scale:numel() > 1 and row then return scale:unsqueeze(2) end
  return scale:numel() == 1 and scale:reshape {} or scale
end

op("QLinearMatMul", "", function(c, a, as, az, b, bs, bz, ys, yz)
  local sums = centered(c, a, az, true):matmul(centered(c, b, bz))
  local factor = spread(as, true):to("f64") * spread(bs):to("f64") / spread(ys, true):to("f64")
  local y = (sums:to("f64") * factor):round() + spread(yz, true):to("f64")
  return saturated(c, y, yz:dtype(), label[yz])
end, { constants = { 2, 3, 5, 6, 7, 8 } })

local WINDOW = "auto_pad:string dilations:ints group:int kernel_shape:ints pads:ints strides:ints"

-- Sums of products of integers below 2^24 each are exact in f64.
local function conv(c, x, xz, w, wz)
  local xc, wc = centered(c, x, xz):to("f64"), w:to("i32")
  if wz then
    wz = beside(w, wz):to("i32")
    if wz:numel() > 1 then
      local shape = { wz:numel() }
      for d = 2, w:dim() do shape[d] = 1 end
      wz = wz:reshape(shape)
    end
    wc = wc - wz
  end
  return registry.conv(c, xc, wc:to("f64"))
end
op("ConvInteger", WINDOW, function(c, x, w, xz, wz) return conv(c, x, xz, w, wz):to("i32") end)
op("QLinearConv", WINDOW, function(c, x, xs, xz, w, ws, wz, ys, yz, bias)
  local sums, shape = conv(c, x, xz, w, wz), { 1, w:size(1) }
  for d = 3, x:dim() do shape[d] = 1 end
  if bias then sums = sums + bias:to("f64"):reshape(shape) end
  local factor = xs:to("f64") * ws:to("f64") / ys:to("f64")
  if factor:numel() > 1 then factor = factor:reshape(shape) end
  return saturated(c, (sums * factor):round() + yz:to("f64"), yz:dtype(), label[yz])
end, { constants = { 2, 3, 5, 6, 7, 8 } })
