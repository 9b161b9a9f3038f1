-- SPDX-License-Identifier: MIT
--- ONNX operators of signals, and random numbers. Fourier transforms are products with matrices of sines and cosines,
-- whose angles are reduced exactly before they are taken.
-- @module perilune.onnx.operators.signal
local T = require "perilune"
local narrow = require "perilune.onnx.narrow"
local registry = require "perilune.onnx.operators.registry"
local schema = require "perilune.onnx.schema"

local op, number, beside = registry.op, registry.number, registry.beside
local pi = math.pi

local function dtype_of(c, n, default)
  local kind = n and schema.types[n]
  if n and (not kind or not kind[2] or narrow.kinds[kind[1]]) then
    c:fail("elements of type %s", kind and kind[1] or n)
  end
  return kind and kind[2] or default
end

-- cos and sin of 2 pi j k / n for j < rows, k < n, as [rows, n].
local function waves(n, rows, dtype, device)
  local cos, sin = {}, {}
  for j = 0, rows - 1 do
    for k = 0, n - 1 do
      local angle = 2 * pi * (j * k % n) / n
      cos[#cos + 1], sin[#sin + 1] = math.cos(angle), math.sin(angle)
    end
  end
  return registry.tensor(cos, dtype, device, { rows, n }), registry.tensor(sin, dtype, device, { rows, n })
end

-- The transform of [..., n, 1 or 2], its axis last but one, of length n.
local function transform(c, x, n, inverse, onesided)
  if n > 8192 then c:fail("a transform of %d elements; 8192 at most are supported", n) end
  local rows = onesided and n // 2 + 1 or n
  local cos, sin = waves(n, rows, x:dtype(), x:device())
  local re, im = x:select(-1, 1), x:size(-1) == 2 and x:select(-1, 2) or nil
  local sign = inverse and -1 or 1
  local function times(t, m) return t:matmul(m:t()) end
  local a, b = times(re, cos), times(re, sin) * -sign
  if im then
    a, b = a + times(im, sin) * sign, b + times(im, cos)
  end
  if inverse then
    a, b = a / n, b / n
  end
  return T.stack({ a, b }, -1)
end

-- n real numbers from the first n // 2 + 1 entries of their transform, whose others are mirrored and conjugate.
local function real_inverse(c, x, n)
  local half, dim = n // 2 + 1, x:dim() - 1
  local have = x:size(dim)
  if have < half then x = T.nn.F.pad(x, { 0, 0, 0, half - have }) elseif have > half then x = x:narrow(dim, 1, half) end
  if n > half then
    local back = x:narrow(dim, 2, n - half):flip(dim)
    x = T.cat({ x, T.stack({ back:select(-1, 1), -back:select(-1, 2) }, -1) }, dim)
  end
  return transform(c, x, n, true):narrow(-1, 1, 1)
end

op("DFT", "axis:int inverse:int onesided:int", function(c, x, length, axis)
  local a = axis and number(c, axis, "axis") or c.a.axis or (c.opset >= 20 and -2 or 1)
  local dim, last, inverse, onesided = registry.axis(c, a, x:dim()), x:dim(), c.a.inverse == 1, c.a.onesided == 1
  if dim == last then c:fail "the last axis holds real and imaginary parts" end
  local y, have = x:transpose(dim, last - 1), x:size(dim)
  local n = length and number(c, length, "dft_length") or (inverse and onesided and 2 * (have - 1) or have)
  if n < 1 then c:fail("a transform of %d elements", n) end
  if inverse and onesided then return real_inverse(c, y, n):transpose(dim, last - 1) end
  if n > have then
    y = T.nn.F.pad(y, { 0, 0, 0, n - have })
  elseif n < have then
    y = y:narrow(last - 1, 1, n)
  end
  return transform(c, y, n, inverse, onesided):transpose(dim, last - 1)
end)

op("STFT", "onesided:int", function(c, signal, step, window, length)
  step = number(c, step, "frame_step")
  local n = length and number(c, length, "frame_length") or window and window:numel()
    or c:fail "neither a window nor a frame_length"
  if signal:dim() == 2 then signal = signal:unsqueeze(3) end
  local frames = signal:unfold(2, n, step) -- [batch, frames, 1 or 2, n]
  if window then frames = frames * beside(signal, window) end
  return transform(c, frames:transpose(3, 4), n, false, c.a.onesided ~= 0)
end)

for name, terms in pairs { HannWindow = { 0.5, 0.5 }, HammingWindow = { 25 / 46, 21 / 46 },
  BlackmanWindow = { 0.42, 0.5, 0.08 } } do
  op(name, "output_datatype:int periodic:int", function(c, size)
    local n, list = number(c, size, "size"), {}
    local span = c.a.periodic == 0 and n - 1 or n
    for i = 0, n - 1 do
      local v = 0.0
      for k, t in ipairs(terms) do v = v + (k % 2 == 1 and t or -t) * math.cos(2 * pi * (k - 1) * i / span) end
      list[i + 1] = v
    end
    return registry.tensor(list, dtype_of(c, c.a.output_datatype, "f32"))
  end)
end

op("MelWeightMatrix", "output_datatype:int", function(c, bins, length, rate, low, high)
  bins, length = number(c, bins, "num_mel_bins"), number(c, length, "dft_length")
  rate, low, high = number(c, rate, "sample_rate"), number(c, low, "the lower edge"), number(c, high, "the upper edge")
  local spectrum = length // 2 + 1
  local function mel(f) return 2595 * math.log(1 + f / 700, 10) end
  local from, to, at = mel(low), mel(high), {}
  for i = 0, bins + 1 do
    local hertz = 700 * (10 ^ ((from + i * (to - from) / (bins + 2)) / 2595) - 1)
    at[i + 1] = (length + 1) * hertz // rate // 1 | 0
  end
  local list = {}
  for i = 1, spectrum * bins do list[i] = 0.0 end
  for b = 1, bins do
    local left, center, right = at[b], at[b + 1], at[b + 2]
    local function put(j, v) if j >= 0 and j < spectrum then list[j * bins + b] = v end end
    if center == left then
      put(center, 1.0)
    else
      for j = left, center do put(j, (j - left) / (center - left)) end
    end
    if right > center then for j = center, right - 1 do put(j, (right - j) / (right - center)) end end
  end
  return registry.tensor(list, dtype_of(c, c.a.output_datatype, "f32"), nil, { spectrum, bins })
end)

-- ---- random numbers ------------------------------------------------------------------------------------------------

local generator = registry.generator
for name, how in pairs { RandomNormal = "normal", RandomUniform = "uniform" } do
  local function draw(c, shape, dtype, device)
    local o = { dtype = dtype, generator = generator(c), device = device }
    if how == "normal" then return T.randn(shape, o) * (c.a.scale or 1.0) + (c.a.mean or 0.0) end
    local low, high = c.a.low or 0.0, c.a.high or 1.0
    return T.rand(shape, o) * (high - low) + low
  end
  local extra = how == "normal" and " mean:float scale:float" or " low:float high:float"
  op(name, "dtype:int seed:float shape:ints" .. extra, function(c)
    return draw(c, c.a.shape or c:fail "shape is missing", dtype_of(c, c.a.dtype, "f32"))
  end, { random = true })
  op(name .. "Like", "dtype:int seed:float" .. extra, function(c, x)
    return draw(c, x:shape(), dtype_of(c, c.a.dtype, x:dtype()), x:device())
  end, { random = true })
end
op("Bernoulli", "dtype:int seed:float", function(c, p)
  local drawn = T.rand(p:shape(), { generator = generator(c), device = p:device() })
  return drawn:lt(p):to(dtype_of(c, c.a.dtype, p:dtype()))
end, { random = true })
op("Multinomial", "dtype:int sample_size:int seed:float", function(c, x)
  local at = T.multinomial(T.softmax(x, -1), c.a.sample_size or 1, true,
    { index_base = 0, generator = generator(c) })
  return at:to(dtype_of(c, c.a.dtype, "i32"))
end, { random = true })
