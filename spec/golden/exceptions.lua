-- SPDX-License-Identifier: MIT
-- Golden cases that perilune answers differently on purpose. Each row was reviewed: `op`, a Lua pattern on
-- the case's id, optionally one on the failure's text, and why. They count as skipped, and the runner says
-- when one is no longer needed.

local rows = {
  {
    op = "arange", id = "/error/sign$",
    reason = "like Lua's for loop, arange is empty when the step leads away from the end",
  },
  {
    op = "lerp", id = "/error/int$",
    reason = "integers are promoted to the default float, as everywhere else",
  },
  {
    op = "pow", id = "/bool/scalar/True", text = "are bool; convert one",
    reason = "bool to the power of bool is refused with advice to convert",
  },
  {
    op = "promotion", id = "^binary_scalar/pow/bool/bool$", text = "are bool; convert one",
    reason = "bool to the power of bool is refused with advice to convert",
  },
}

-- -3 beside u8: PyTorch makes it 253 without a word.
for op, text in pairs {
  ge = "element", gt = "element", lt = "element", bitwise_left_shift = "%-3 does not fit into u8",
  bitwise_right_shift = "%-3 does not fit into u8", div = "%-3 does not fit into u8",
  remainder = "%-3 does not fit into u8",
} do
  rows[#rows + 1] = {
    op = op, id = "/u8/scalar/%-3", text = text,
    reason = "a number that the dtype does not hold is compared as it is, or refused",
  }
end

-- PyTorch divides the product by the element, which is NaN where both are infinite or NaN.
rows[#rows + 1] = {
  op = "prod", id = "/edge/%d", text = "gradient 1: element 1 is .*should be %-?nan",
  reason = "the gradient is the product of the other elements",
}

-- PyTorch's joint ops take the mean from the variance's recurrence, which an infinity makes NaN.
for _, op in ipairs { "std_mean", "var_mean" } do
  rows[#rows + 1] = {
    op = op, id = "/edge/%d", text = "output 2: element 1 is %-?inf",
    reason = "the mean of values with one infinity is that infinity, as T.mean says",
  }
end

-- PyTorch refuses a number where it wants a tensor; here each operand of an elementwise op may be a number.
for _, op in ipairs {
  "atan2", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "eq", "fmax", "fmin", "fmod", "ge", "lt",
  "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "ne", "remainder", "xlogy",
} do
  for _, text in ipairs { "must be Tensor, not int", "invalid combination of arguments %- got %(int" } do
    rows[#rows + 1] = {
      op = op, id = "/error/oi%d+$", text = text, optional = true,
      reason = "a number may stand for any operand of an elementwise op",
    }
  end
end

-- ---- op_database.py ------------------------------------------------------------------------------------------------

-- One row: `op`, patterns on the case's id and on the failure's text, why.
local function database(op, id, text, reason)
  rows[#rows + 1] = { op = op, id = id, text = text, reason = reason, optional = true }
end
for d = 1, 3 do
  for _, variant in ipairs { "", "@grad" } do
    for _, text in ipairs { "gradient 1", "tangent 1", "second order" } do
      database("max_unpool" .. d .. "d" .. variant, "/", text, "what another value was written over has no slope")
    end
  end
end
for _, op in ipairs { "cholesky_inverse", "cholesky_solve" } do
  database(op, "/f%d+/", "gradient", "the half of a factor that is not read has no gradient")
  database(op, "/f%d+/", "tangent", "the half of a factor that is not read has no tangent")
  database(op, "/f%d+/", "second order", "the half of a factor that is not read has no gradient")
end
for _, op in ipairs { "kthvalue", "topk", "mode" } do
  database(op, "/", "output 2", "which index stands for equal values is open")
end
for _, op in ipairs { "linalg.svd", "linalg.eigh" } do
  database(op, "/", ": element %d+ is ", "vectors are defined but for their signs")
end
database("scaled_dot_product_attention", "/00[3478]$", "element", "dropout: random numbers are each one's own")
database("scaled_dot_product_attention", "/0%d%d$", "element", "dropout: random numbers are each one's own")
database("cov", "/f64/", "element", "weights of f32 are summed in f64; PyTorch sums them in f32")
database("matrix_exp", "/f32/", "element", "nearer to what f64 gives: 2e-8 of the largest element, PyTorch 5e-7")
database("logcumsumexp", "/f32/", "gradient", "nearer to what f64 gives than PyTorch's: 2e-7 where that is off by 2e-3")
database("logcumsumexp", "/f64/", "second order", "PyTorch's derivative is NaN where a number is given here")
for _, op in ipairs { "linalg.norm", "linalg.norm@subgradients_at_zero" } do
  database(op, "/f64/", "should be %-?nan", "at 0 the subgradient 0 has derivatives 0; PyTorch divides by the norm")
end
database("arange", "/error/", "sign", "like Lua's for loop, arange is empty when the step leads away from the end")
database("arange", "/007$", "boolean", "a boolean is no number")
database("rsub", "/", "unknown option 'alpha'", "rsub has no alpha: write y - alpha * x")
database("topk", "/", "unknown option 'dtype'", "indices are i64")
database("grid_sample", "/", "bicubic takes", "bicubic sampling is for pictures; PyTorch's newest takes volumes")
for _, text in ipairs { "are wanted, got", "must be class numbers" } do
  database("linear_cross_entropy", "/", text, "rows and class numbers; other shapes and shares of classes are refused")
end
database("sum_to_size", "/", "shape is missing", "sizes are given, {} too")
for _, op in ipairs { "clamp_max", "clamp_min" } do
  database(op, "/error/", "not refused", "a number may stand for any operand of an elementwise op")
end
for _, op in ipairs { "linspace", "logspace" } do
  for _, variant in ipairs { "", "@tensor_overload" } do
    database(op .. variant, "/error/", "not refused", "integer-valued floats count as integers")
  end
end

-- ---- op_database.py --autocast --------------------------------------------------------------------------------------

for _, variant in ipairs { "reflect", "replicate", "replicate_negative" } do
  database("pad@" .. variant, "/b?f16/", "dtype b?f16, should be f32", "copies keep their dtype")
end
for d = 1, 3 do
  for _, variant in ipairs { "", "@grad" } do
    database("max_unpool" .. d .. "d" .. variant, "/b?f16/", "dtype b?f16, should be f32",
      "what only copies keeps its dtype")
  end
end
database("max_pool3d", "/b?f16/", "dtype f32, should be", "f32 with indices, too; PyTorch's is without them alone")
database("matrix_exp", "/b?f16/", "convert it first", "PyTorch's of halves is wrong (e is -1e30); refused")
database("bilinear", "/f32/", "element", "f32 throughout; PyTorch's has factors of bf16 on the way to f32")
for _, op in ipairs { "addbmm", "conv_transpose2d", "conv_transpose3d" } do
  database(op, "/", "element", "sums are rounded once, and are nearer to those of f64 than PyTorch's")
end
database("div@trunc_rounding", "/bf16/", "element", "what f64 gives; PyTorch rounds the quotient before it is cut")

-- ---- special_values.py ---------------------------------------------------------------------------------------------

for _, op in ipairs { "fmod", "remainder" } do
  database(op, "/", "should be %-?nan", "exact where x / y overflows, as C's fmod; PyTorch's vectors give NaN")
end
for _, op in ipairs { "pow", "float_power" } do
  database(op, "/number/%-?0%.5$", "element", "C's pow, and PyTorch's with a tensor; it takes a root here")
end
for _, op in ipairs { "i0", "i1" } do
  database(op, "/", "should be %-?nan", "infinite at infinity; PyTorch's series gives NaN")
end
for _, op in ipairs { "mean", "var", "std" } do
  database(op, "/f?b?f?%d+/", "should be %-?inf", "sums are wider than f32: the largest numbers have a mean")
end
database("gelu", "/", "should be inf", "x itself where the error function is 1")
database("digamma", "/slope/", "element", "poles are infinite; PyTorch's sine of a multiple of pi is not 0")
database("lgamma", "/slope/", "second order", "poles are infinite; PyTorch's sine of a multiple of pi is not 0")
database("sinc", "/", "element", "exact zeros at integers, and a second derivative at 0")
database("ndtr", "/", "element", "by erfc: digits below 1e-16, where PyTorch has 0")
database("tanhshrink", "/b?f16/", "element", "x - tanh x is rounded once")
database("logaddexp", "/", "element", "f32 to its last digits where the sum is near 0")
database("logaddexp2", "/", "element", "f32 and f64 to their last digits where the sum is near 0")
database("ldexp", "/", "element", "x 2^y where the dtype has no 2^y; PyTorch multiplies by that")
database("lcm", "/", "element", "where the multiple overflows, its magnitude wraps")
for _, op in ipairs { "add", "sub", "floor_divide", "remainder", "fmod", "pow" } do
  database(op, "/bf16/number/10000", "element", "the number as it is; PyTorch rounds it to bf16 first")
end
for _, op in ipairs { "acosh", "erfcx", "gelu" } do
  database(op, "/", "should be %-?nan", "has a limit at infinity; PyTorch multiplies 0 by it")
end
database("softsign", "/", "element", "integers are converted before they are added to: no wrap")
database("entr", "/slope/", "element", "below 0, where the function is -inf, it has no slope")
for _, op in ipairs { "celu", "elu", "selu", "hardswish" } do
  database(op, "/slope/nan$", "gradient", "NaN has the slope NaN")
end
for _, op in ipairs { "hardshrink", "hardtanh", "relu6", "softshrink" } do
  database(op, "/slope/nan$", "gradient", "NaN is in no range: slope 0")
end
database("softplus", "/slope/20", "second order", "below and at the threshold the formula holds")

-- ---- tangents.py ----------------------------------------------------------------------------------------------------

-- Rows of several ops: of tangents alone, by the name of the twist.
local function tangents(ops, id, reason, text)
  for op in ops:gmatch "%S+" do database(op, id, text or "tangent", reason) end
end
tangents("kthvalue topk mode", "/", "which of equal elements is meant is open")
tangents("quantile nanquantile", "/expanded$", "which of equal elements is meant is open")
tangents("quantile nanquantile mode", "/nan$", "what is NaN by definition has no slope")
tangents("linalg.svdvals linalg.eigvalsh linalg.matrix_norm pdist", "/%a+$",
  "which basis of equal singular values, and which of equal distances, is open")
tangents("linalg.qr linalg.cond pinverse", "/%-?%a+$", "singular: there is no derivative, NaN or not")
tangents("logdet linalg.slogdet linalg.eig", "/expanded$", "singular: refused by name", "is singular")
tangents("linalg.householder_product ormqr", "/", "as difference quotients; PyTorch's divides by 0 where a factor is 1")
tangents("nextafter", "/", "moves as its first argument does, also beside an equal one; PyTorch's does not")
tangents("prelu", "/", "the slope at 0 is the weight, as in PyTorch's backward; its tangents take 1 there")
tangents("scatter_reduce@prod", "/zeros$",
  "as difference quotients: the product of the others; PyTorch's forward mode gives 0")
tangents("logcumsumexp", "/", "as difference quotients; PyTorch's forward mode loses digits and is 0 or NaN at 0")
tangents("digamma", "/ties$", "poles are infinite; PyTorch's sine of a multiple of pi is not 0")
tangents("std std@unbiased std_mean std_mean@unbiased linalg.norm@subgradients_at_zero", "/expanded$",
  "at 0 the subgradient 0; PyTorch divides by 0")
tangents("var var@unbiased var_mean var_mean@unbiased", "/empty$",
  "the variance of nothing is NaN, and so is its tangent")
tangents("kl_div", "/empty$", "along no direction nothing changes; PyTorch's mean of nothing is NaN")
tangents("pixel_unshuffle", "/empty$", "PyTorch's tangent of nothing has the argument's shape")
tangents("hardshrink softshrink hardtanh relu6", "/nan$", "NaN is in no range: slope 0")
tangents("hinge_embedding_loss margin_ranking_loss", "/nan$", "NaN is in no range: slope 0")
tangents("pow tan binary_cross_entropy gaussian_nll_loss", "/f16/",
  "between argument and tangent are numbers that f16 does not have")
tangents("normalize rms_norm pairwise_distance", "/b?f16/",
  "what is added to 0, 1e-12 or epsilon, depends on the dtype")
tangents("conv3d", "/f16/", "each of the two products is rounded before they are added up")

return rows
