-- SPDX-License-Identifier: MIT
-- Rounding to what few bits can hold, with a gradient that passes straight through: fake_quantize_per_tensor_affine,
-- fake_quantize_per_channel_affine (Jacob et al. 2018).
local options = require "perilune.options"
local values = require "perilune.values"

return function(T, core)
  local fail = options.fail
  local define = require "perilune.define"(T, core)

  -- (clamp(round(x / scale) + zero, lo, hi) - zero) scale; dx = dy where nothing was cut. Scale and zero are tensors.
  local rule = T.custom {
    name = "fake_quantize",
    forward = function(ctx, x, scale, zero, lo, hi)
      local q = (x * scale:reciprocal()):round() + zero
      ctx:save(q:ge(lo):logical_and(q:le(hi)))
      return (q:clamp(lo, hi) - zero) * scale
    end,
    backward = function(ctx, g) return g * ctx:saved(), nil, nil end,
  }

  local function limits(who, lo, hi)
    if lo >= hi then fail("%s: quant_min %d must be below quant_max %d", who, lo, hi) end
    return lo, hi
  end

  -- A scale of NaN is one that nobody knows yet, an infinite one of data that are not finite: nn.quant.FakeQuantize has
  -- such, and nn.quant.convert refuses them.
  local wrong = {
    scale = function(v) return v:le(0) end,
    zero_point = function(v, lo, hi)
      local outside = v:ge(lo):logical_and(v:le(hi)):logical_not()
      return v:is_floating_point() and outside:logical_or(v:ne(v:floor())) or outside
    end,
  }

  local function run(who, x, scale, zero, lo, hi)
    if not x:is_floating_point() then fail("%s: a floating tensor is wanted, got %s", who, x:describe()) end
    local kind = x:dtype()
    local wide = kind == "f64" and "f64" or "f32"
    local function number(v, name)
      if not core.is_tensor(v) then
        if name == "scale" and not (v > 0 and v < math.huge) then
          fail("%s: scale must be above 0 and finite, got %s", who, v)
        elseif name == "zero_point" and not (v >= lo and v <= hi and v == math.floor(v)) then
          fail("%s: zero_point must be a whole number from quant_min %d to quant_max %d, got %s", who, lo, hi, v)
        end
        return T.tensor(v, { dtype = wide, device = x:device() })
      end
      if v.requires_grad then fail("%s: %s gets no gradient; give %s:detach()", who, name, name) end
      -- A device would have to be waited for, and a graph has no values yet: what is wrong gives NaN there.
      if v:is_cuda() or core.is_symbolic(v) then
        return T.where(wrong[name](v, lo, hi), T.full_like(v, 0 / 0, { dtype = wide }), v:to(wide))
      end
      if values.some(v, function(t) return wrong[name](t, lo, hi) end) then
        fail("%s: %s must be %s, got %s", who, name, name == "scale" and "above 0"
          or ("whole numbers from quant_min %d to quant_max %d"):format(lo, hi), core.readable(v):brief())
      end
      return v:to(wide)
    end
    local y = rule(x:to(wide), number(scale, "scale"), number(zero, "zero_point"), lo, hi)
    return kind == wide and y or y:to(kind)
  end

  --- T.fake_quantize_per_tensor_affine(…) → tensor
  -- What is left of x when it is rounded to whole numbers q = round(x / scale) + zero_point from quant_min to
  -- quant_max: (q - zero_point) scale. The gradient passes through where q was within the limits, and is 0 elsewhere.
  -- PyTorch's numbers.
  -- Shapes: x [*], scale and zero_point one number each → [*]
  --   print(T.fake_quantize_per_tensor_affine(T.tensor { 0.24, 0.26, 9 }, 0.5, 0, -8, 7))
  --   --> {0.0000, 0.5000, 3.5000}  -- f32[3] cpu
  define("fake_quantize_per_tensor_affine", { { "x", "tensor" }, { "scale", "operand" }, { "zero_point", "operand" },
    { "quant_min", "int" }, { "quant_max", "int" } }, function(a)
    local who = "fake_quantize_per_tensor_affine"
    for _, name in ipairs { "scale", "zero_point" } do
      local v = a[name]
      if core.is_tensor(v) then
        if v:numel() ~= 1 then fail("%s: %s must be one number, got %s", who, name, v:describe()) end
        a[name] = v:reshape {}
      end
    end
    return run(who, a.x, a.scale, a.zero_point, limits(who, a.quant_min, a.quant_max))
  end)

  --- T.fake_quantize_per_channel_affine(…) → tensor
  -- T.fake_quantize_per_tensor_affine with a scale and zero_point for each place along dim.
  -- Shapes: x [*], scale [n], zero_point [n] with n the size of dim → [*]
  --   local x, scale = T.tensor { { 0.3, 0.6 }, { 3, 6 } }, T.tensor { 0.5, 5 }
  --   print(T.fake_quantize_per_channel_affine(x, scale, T.zeros(2), 1, -8, 7))
  --   --> {{0.5000, 0.5000},
  --   -->  {5.0000, 5.0000}}  -- f32[2,2] cpu
  define("fake_quantize_per_channel_affine", { { "x", "tensor" }, { "scale", "tensor" }, { "zero_point", "tensor" },
    { "dim", "int" }, { "quant_min", "int" }, { "quant_max", "int" } }, function(a)
    local who, x, dim, shape = "fake_quantize_per_channel_affine", a.x, a.dim, {}
    if dim < 0 then dim = dim + x:dim() + 1 end
    if dim < 1 or dim > x:dim() then fail("%s: dim %d is out of range for %s", who, a.dim, x:describe()) end
    for d = 1, x:dim() do shape[d] = d == dim and x:size(d) or 1 end
    for _, name in ipairs { "scale", "zero_point" } do
      local v = a[name]
      if v:dim() ~= 1 or v:size(1) ~= x:size(dim) then
        fail("%s: %s must be [%d], one number for each place along dim %d of %s, got %s", who, name, x:size(dim), a.dim,
          x:describe(), v:describe())
      end
      a[name] = v:reshape(shape)
    end
    return run(who, x, a.scale, a.zero_point, limits(who, a.quant_min, a.quant_max))
  end)
end
