-- SPDX-License-Identifier: MIT
-- What T.help knows of functions that are no ops, continued from symbols.lua: taking tensors apart, statistics,
-- special functions, windows, random numbers, and other names of functions.
local options = require "perilune.options"
local signature = require "perilune.help.signature"

local S = {}
local sig = signature.of

S.tensor_split = { sig("tensor_split", "list of views"),
  "Pieces of nearly equal size, or, for a list of positions, pieces that begin at 1 and at each of them.", [[
print(T.arange(5):tensor_split(2)[1], T.arange(5):tensor_split({ 2 })[2])
--> {1, 2, 3}  -- i64[3] cpu	{2, 3, 4, 5}  -- i64[4] cpu]] }

S.hsplit = { sig("hsplit", "list of views"),
  "Equal pieces along dimension 2 (of a vector: 1), or pieces that begin at the positions given.", [[
print(T.arange(4):hsplit(2)[2])  --> {3, 4}  -- i64[2] cpu]] }

S.vsplit = { sig("vsplit", "list of views"),
  "Equal pieces along dimension 1, or pieces that begin at the positions given.", [[
print(T.eye(2):vsplit(2)[1])  --> {{1., 0.}}  -- f32[1,2] cpu]] }

S.dsplit = { sig("dsplit", "list of views"),
  "Equal pieces along dimension 3, or pieces that begin at the positions given.", [[
print(T.ones(1, 1, 4):dsplit(2)[1]:size(3))  --> 2]] }

S.atleast_3d = { sig("atleast_3d", "tensor"), "x with dimensions of size 1 added until there are three.", [[
print(table.concat(T.ones(2):atleast_3d():shape(), " "))  --> 1 2 1]] }

S.dstack = { sig("dstack", "tensor"), "Joined along dimension 3; tensors with fewer dimensions get them.", [[
print(T.dstack { T.tensor { 1, 2 }, T.tensor { 3, 4 } }[1])
--> {{1., 3.},
-->  {2., 4.}}  -- f32[2,2] cpu]] }

S.cartesian_prod = { sig("cartesian_prod", "tensor"),
  "All combinations of one element of each vector, one a row.", [[
print(T.cartesian_prod { T.arange(2), T.tensor({ 7, 8 }, { dtype = "i64" }) })
--> {{1, 7},
-->  {1, 8},
-->  {2, 7},
-->  {2, 8}}  -- i64[4,2] cpu]] }

S.combinations = { sig("combinations", "tensor"), "All choices of r elements of a vector in order, one a row.", [[
print(T.combinations(T.arange(3), 2))
--> {{1, 2},
-->  {1, 3},
-->  {2, 3}}  -- i64[3,2] cpu]] }

S.diagflat = { sig("diagflat", "tensor"), "A matrix with the flattened x on a diagonal.", [[
print(T.diagflat(T.tensor { 1, 2 }))
--> {{1., 0.},
-->  {0., 2.}}  -- f32[2,2] cpu]] }

S.vander = { sig("vander", "tensor"),
  [[Powers of a vector in columns, the highest first unless increasing; N of them, as many as x has elements by
default.]], [[
print(T.tensor { 2, 3 }:vander { N = 3 })
--> {{4., 2., 1.},
-->  {9., 3., 1.}}  -- f32[2,3] cpu]] }

S.broadcast_shapes = { "T.broadcast_shapes({2, 1}, {3}, …) → list", "The shape that shapes broadcast to.", [[
print(table.concat(T.broadcast_shapes({ 2, 1 }, { 3 }), " "))  --> 2 3]] }

S.as_tensor = { "T.as_tensor(value, {dtype=, device=}) → tensor",
  "The value itself if it is a tensor of that dtype, else a new one.", [[
local x = T.ones(2)
print(T.as_tensor(x) == x, T.as_tensor { 1, 2 })  --> true	{1., 2.}  -- f32[2] cpu]] }

S.asarray = { "T.asarray(value, {dtype=, device=}) → tensor", "Another name of T.as_tensor.", [[
print(T.asarray { 1, 2 })  --> {1., 2.}  -- f32[2] cpu]] }

S.scalar_tensor = { "T.scalar_tensor(number, {dtype=}) → 0-d tensor", "A tensor of one number.", [[
print(T.scalar_tensor(3))  --> 3.  -- f32[] cpu]] }

S.randint_like = { "T.randint_like(x, low, high, {dtype=}) → tensor",
  "Integers low … high, both included, of x's shape and dtype.", [[
print(T.randint_like(T.zeros(2), 5, 5))  --> {5., 5.}  -- f32[2] cpu]] }

S.select_scatter = { sig("select_scatter", "tensor"), "A copy of x in which x:select(dim, index) is src.", [[
print(T.zeros(2, 2):select_scatter(T.tensor { 1, 2 }, 1, 2))
--> {{0., 0.},
-->  {1., 2.}}  -- f32[2,2] cpu]] }

S.slice_scatter = { sig("slice_scatter", "tensor"),
  "A copy of x in which positions first, first + step, … up to last of dim are src.", [[
print(T.zeros(4):slice_scatter(T.tensor { 1, 2 }, 1, 2, 3))  --> {0., 1., 2., 0.}  -- f32[4] cpu]] }

S.diagonal_scatter = { sig("diagonal_scatter", "tensor"), "A copy of x with src on a diagonal.", [[
print(T.zeros(2, 2):diagonal_scatter(T.tensor { 1, 2 }))
--> {{1., 0.},
-->  {0., 2.}}  -- f32[2,2] cpu]] }

S.put = { sig("put", "tensor"), "A copy of x with source written, or added, at positions of the flattened x.", [[
print(T.zeros(2, 2):put(T.tensor({ 1, 4 }, { dtype = "i64" }), T.tensor { 5, 6 }))
--> {{5., 0.},
-->  {0., 6.}}  -- f32[2,2] cpu]] }

S.index_reduce = { sig("index_reduce", "tensor"),
  "x with the rows of src (along dim) reduced into the positions that index names: prod, mean, amax or amin.", [[
print(T.ones(2):index_reduce(1, T.tensor({ 1, 1 }, { dtype = "i64" }), T.tensor { 3, 5 }, "amax"))
--> {5., 1.}  -- f32[2] cpu]] }

S.unravel_index = { sig("unravel_index", "list of tensors"),
  "Positions of a flattened shape as one index a dimension.", [[
local places = T.unravel_index(T.tensor({ 5 }, { dtype = "i64" }), { 2, 3 })
print(places[1]:item(), places[2]:item())  --> 2	2]] }

S.msort = { sig("msort", "tensor"), "x sorted along dimension 1.", [[
print(T.tensor { 3, 1, 2 }:msort())  --> {1., 2., 3.}  -- f32[3] cpu]] }

S.unique_consecutive = { sig("unique_consecutive", "tensor[, inverse][, counts]"),
  [[x without repetitions of neighbours, of the flattened x or of slices along dim; on request also where each
went, and the lengths of the runs.]], [[
print(T.unique_consecutive(T.tensor { 1, 1, 2, 1 }, { return_counts = true }))
--> {1., 2., 1.}  -- f32[3] cpu	{2, 1, 1}  -- i64[3] cpu]] }

S.sum_to_size = { sig("sum_to_size", "tensor"),
  "The sum over the dimensions in which x is larger: what undoes broadcasting.", [[
print(T.ones(2, 3):sum_to_size { 2, 1 })
--> {{3.},
-->  {3.}}  -- f32[2,1] cpu]] }

S.cov = { sig("cov", "tensor"),
  [[The covariance matrix of variables in rows and observations in columns, divided by n - correction; fweights
counts observations, aweights weighs them.]], [[
print(T.cov(T.tensor { { 1, 2, 3 }, { 3, 2, 1 } }))
--> {{ 1., -1.},
-->  {-1.,  1.}}  -- f32[2,2] cpu]] }

S.corrcoef = { sig("corrcoef", "tensor"), "The correlation coefficients of variables in rows.", [[
print(T.corrcoef(T.tensor { { 1, 2, 3 }, { 3, 2, 1 } }))
--> {{ 1., -1.},
-->  {-1.,  1.}}  -- f32[2,2] cpu]] }

S.histc = { sig("histc", "tensor"),
  "How many elements are in each of equal bins from min to max (both 0: the extremes of x); others do not count.", [[
print(T.tensor { 1, 2, 2, 3 }:histc(3, 1, 4))  --> {1., 2., 1.}  -- f32[3] cpu]] }

S.histogram = { sig("histogram", "counts, edges"),
  [[As histc, with the edges of the bins; bins may be the edges themselves. range={low, high}; density=true
scales to area 1.]], [[
print(T.histogram(T.tensor { 1, 2, 2, 3 }, 2, { range = { 1, 3 } }))
--> {1., 3.}  -- f32[2] cpu	{1., 2., 3.}  -- f32[3] cpu]] }

S.quantile = { sig("quantile", "tensor"),
  [[The value that a share q of the elements does not exceed, of all or along dim; NaN if one is. q may be a
vector: then its dimension comes first.]], [[
print(T.tensor { 1, 2, 3, 4 }:quantile(0.5):item())  --> 2.5]] }

S.nanquantile = { sig("nanquantile", "tensor"), "As quantile, of the elements that are not NaN.", [[
print(T.tensor { 1, 0 / 0, 3 }:nanquantile(0.5):item())  --> 2.0]] }

S.nanmedian = { sig("nanmedian", "value, or values, indices along dim"),
  "The lower median of the elements that are not NaN.", [[
print(T.tensor { 1, 0 / 0, 3, 2 }:nanmedian():item())  --> 2.0]] }

S.renorm = { sig("renorm", "tensor"),
  "x with every slice along dim whose p-norm exceeds maxnorm scaled down to it.", [[
print(T.tensor { { 3, 4 }, { 0.3, 0.4 } }:renorm(2, 1, 1))
--> {{0.6000, 0.8000},
-->  {0.3000, 0.4000}}  -- f32[2,2] cpu]] }

S.pdist = { sig("pdist", "tensor"), "The distances of all pairs of rows of [N, M], N (N - 1)/2 numbers.", [[
print(T.pdist(T.tensor { { 0, 0 }, { 3, 4 }, { 3, 0 } }))  --> {5., 3., 4.}  -- f32[3] cpu]] }

S.trapezoid = { sig("trapezoid", "tensor"),
  "The integral of y over dim by the trapezoidal rule, at positions x or with the step dx.", [[
print(T.tensor { 0, 1, 2 }:trapezoid():item())  --> 2.0]] }

S.trapz = { "T.trapz(y, x?, {dx=1, dim=-1}) → tensor", "Another name of T.trapezoid.", [[
print(T.trapz(T.tensor { 0, 1, 2 }):item())  --> 2.0]] }

S.cumulative_trapezoid = { sig("cumulative_trapezoid", "tensor"),
  "The integrals of y up to each position by the trapezoidal rule.", [[
print(T.tensor { 0, 1, 2 }:cumulative_trapezoid())  --> {0.5000, 2.0000}  -- f32[2] cpu]] }

S.gradient = { sig("gradient", "list of tensors"),
  [[The derivatives of values on a grid, one tensor a dimension: second order inside, of edge_order at the ends.
spacing: a step, or one or the coordinates for each dimension.]], [[
print(T.gradient(T.tensor { 1, 4, 9, 16 })[1])  --> {3., 4., 6., 7.}  -- f32[4] cpu]] }

S.logaddexp2 = { sig("logaddexp2", "tensor"), "log2(2^x + 2^y) without overflow.", [[
print(T.logaddexp2(T.tensor { 1.0 }, T.tensor { 1.0 }))  --> {2.}  -- f32[1] cpu]] }

S.heaviside = { sig("heaviside", "tensor"), "0 below 0, 1 above, and values at 0.", [[
print(T.tensor { -2, 0, 2 }:heaviside(0.5))  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu]] }

S.float_power = { sig("float_power", "tensor"), "x^y in f64.", [[
print(T.float_power(T.arange(3), 2))  --> {1., 4., 9.}  -- f64[3] cpu]] }

S.ldexp = { sig("ldexp", "tensor"), "x 2^y.", [[
print(T.ldexp(T.tensor { 1, 3 }, 2))  --> { 4., 12.}  -- f32[2] cpu]] }

S.xlog1py = { sig("xlog1py", "tensor"), "x log(1 + y), and 0 where x is 0 (unless y is NaN).", [[
print(T.xlog1py(T.tensor { 0, 2 }, T.tensor { 5, 0 }))  --> {0., 0.}  -- f32[2] cpu]] }

S.isposinf = { sig("isposinf", "bool tensor"), "Whether each element is inf.", [[
print(T.tensor { 1, math.huge }:isposinf())  --> {false,  true}  -- bool[2] cpu]] }

S.isneginf = { sig("isneginf", "bool tensor"), "Whether each element is -inf.", [[
print(T.tensor { 1, -math.huge }:isneginf())  --> {false,  true}  -- bool[2] cpu]] }

S.isreal = { sig("isreal", "bool tensor"), "Whether each element is real: always.", [[
print(T.ones(2):isreal())  --> {true, true}  -- bool[2] cpu]] }

S.mvlgamma = { sig("mvlgamma", "tensor"),
  "The logarithm of the multivariate gamma function of dimension p, for x above (p - 1)/2.", [[
print(T.mvlgamma(T.tensor { 1.0 }, 1))  --> {0.}  -- f32[1] cpu]] }

S.entr = { sig("entr", "tensor"), "-x log x, 0 at 0 and -inf below.", [[
print(T.entr(T.tensor { 0, 1 }))  --> {-0., -0.}  -- f32[2] cpu]] }

S.ndtr = { sig("ndtr", "tensor"),
  "The distribution function of the standard normal distribution: the share below x.", [[
print(T.ndtr(T.tensor { 0.0, 1.96 }))  --> {0.5000, 0.9750}  -- f32[2] cpu]] }

S.log_ndtr = { sig("log_ndtr", "tensor"), "The logarithm of ndtr, exact also where that underflows.", [[
print(T.log_ndtr(T.tensor { 0.0, -40 }))  --> {-6.9315e-01, -8.0461e+02}  -- f32[2] cpu]] }

S.igamma = { "T.igamma(a, x) → tensor", "Another name of T.gammainc.", [[
print(T.igamma(T.tensor { 1.0 }, T.tensor { 0.0 }))  --> {0.}  -- f32[1] cpu]] }

S.igammac = { "T.igammac(a, x) → tensor", "Another name of T.gammaincc.", [[
print(T.igammac(T.tensor { 1.0 }, T.tensor { 0.0 }))  --> {1.}  -- f32[1] cpu]] }

S.hann_window = { sig("hann_window", "tensor"),
  "(1 - cos 2πt)/2, t from 0 to 1; periodic leaves the last point out.", [[
print(T.hann_window(4))  --> {0.0000, 0.5000, 1.0000, 0.5000}  -- f32[4] cpu]] }

S.hamming_window = { sig("hamming_window", "tensor"), "alpha - beta cos 2πt.", [[
print(T.hamming_window(4))  --> {0.0800, 0.5400, 1.0000, 0.5400}  -- f32[4] cpu]] }

S.blackman_window = { sig("blackman_window", "tensor"), "0.42 - 0.5 cos 2πt + 0.08 cos 4πt.", [[
print(T.blackman_window(4))  --> {-1.3878e-17,  3.4000e-01,  1.0000e+00,  3.4000e-01}  -- f32[4] cpu]] }

S.bartlett_window = { sig("bartlett_window", "tensor"), "The triangle from 0 to 1 and back.", [[
print(T.bartlett_window(4))  --> {0.0000, 0.5000, 1.0000, 0.5000}  -- f32[4] cpu]] }

S.kaiser_window = { sig("kaiser_window", "tensor"), "I0(beta sqrt(1 - (2t - 1)²)) / I0(beta).", [[
print(T.kaiser_window(4, { beta = 3 }))  --> {0.2049, 0.7269, 1.0000, 0.7269}  -- f32[4] cpu]] }

S.poisson = { sig("poisson", "tensor"),
  "Numbers from Poisson distributions with the given rates, one for each element.", [[
print(T.poisson(T.zeros(2)))  --> {0., 0.}  -- f32[2] cpu]] }

S.binomial = { sig("binomial", "tensor"),
  "How many of count trials succeed with probability prob, drawn for each element.", [[
print(T.binomial(T.tensor { 3, 5 }, T.tensor { 1.0, 0.0 }))  --> {3., 0.}  -- f32[2] cpu]] }

S.cholesky_solve = { sig("cholesky_solve", "tensor"),
  "X with A X = B, from the Cholesky factor L of A (upper=true: from its transpose).", [[
local A = T.tensor { { 4, 0 }, { 0, 9 } }
print(T.cholesky_solve(T.tensor { { 8 }, { 9 } }, T.linalg.cholesky(A)))
--> {{2.},
-->  {1.}}  -- f32[2,1] cpu]] }

S.cholesky_inverse = { sig("cholesky_inverse", "tensor"), "The inverse of A from its Cholesky factor L.", [[
print(T.cholesky_inverse(T.tensor { { 2, 0 }, { 0, 1 } }))
--> {{0.2500, 0.0000},
-->  {0.0000, 1.0000}}  -- f32[2,2] cpu]] }

S.logdet = { sig("logdet", "tensor"),
  "The logarithm of the determinant of square matrices; NaN where it is negative.", [[
print(T.logdet(T.eye(2) * math.exp(1)))  --> 2.0000  -- f32[] cpu]] }

S.chain_matmul = { "T.chain_matmul(A, B, C, …) → matrix",
  "The product in the order with the fewest multiplications; T.linalg.multi_dot takes a list.", [[
print(T.chain_matmul(T.ones(1, 2), T.ones(2, 3), T.ones(3, 1)):item())  --> 6.0]] }

S.numel = { "T.numel(x), x:numel() → number", "How many elements x has.", [[
print(T.numel(T.ones(2, 3)))  --> 6]] }

S.detach = { "T.detach(x), x:detach() → tensor", "x's values as a constant: same memory, no gradient.", [[
print(T.detach(T.ones(1):requires_grad_()).requires_grad)  --> false]] }

S.equal = { "T.equal(x, y), x:equal(y) → boolean", "Whether shapes and all values are equal.", [[
print(T.equal(T.ones(2), T.ones(2)))  --> true]] }

S.is_floating_point = { "T.is_floating_point(x), x:is_floating_point() → boolean",
  "Whether the dtype is f32, f64, f16 or bf16.", [[
print(T.is_floating_point(T.arange(2)))  --> false]] }

S.positive = { "T.positive(x) → x", "x itself.", [[
print(T.positive(T.ones(1)))  --> {1.}  -- f32[1] cpu]] }

S.get_default_dtype = { "T.get_default_dtype() → dtype", "The dtype of tensors made from floats.", [[
print(T.get_default_dtype())  --> f32]] }

S.get_default_device = { "T.get_default_device() → name", "Where tensors are made: \"cpu\" or \"cuda\".", [[
print(T.get_default_device())  --> cpu]] }

S.set_default_device = { "T.set_default_device(name)",
  "Makes tensors on this device from now on: \"cpu\", or \"cuda\" where there is a GPU.", [[
T.set_default_device("cpu")
print(T.zeros(1))  --> {0.}  -- f32[1] cpu]] }

S.set_default_dtype = { "T.set_default_dtype(dtype)", "Sets the dtype of tensors made from floats.", [[
T.set_default_dtype("f64")
print(T.ones(1):dtype())  --> f64
T.set_default_dtype("f32")]] }

S.result_type = { "T.result_type(x, y) → dtype",
  "The dtype of an op of both; numbers take part as in arithmetic.", [[
print(T.result_type(T.arange(2), 0.5))  --> f32]] }

S.is_signed = { sig("is_signed", "boolean"), "Whether the dtype has negative numbers.", [[
print(T.is_signed(T.ones(1, { dtype = "u8" })))  --> false]] }

S.is_nonzero = { sig("is_nonzero", "boolean"), "Whether the only element is not 0.", [[
print(T.is_nonzero(T.tensor { 3 }))  --> true]] }

S.is_same_size = { sig("is_same_size", "boolean"), "Whether both have the same sizes.", [[
print(T.is_same_size(T.ones(2), T.zeros(2)))  --> true]] }

S.frexp = { sig("frexp", "mantissa, exponent"),
  "x = m 2^e with 0.5 <= |m| < 1; zeros, infinities and NaN come back with e = 0.", [[
print(T.frexp(T.tensor { 8, -0.3 }))  --> { 0.5000, -0.6000}  -- f32[2] cpu	{ 4, -1}  -- i32[2] cpu]] }

S.lu_unpack = { sig("lu_unpack", "P, L, U"), "The factors from what T.linalg.lu_factor gave.", [[
local P, L, U = T.lu_unpack(T.linalg.lu_factor(T.tensor { { 1, 2 }, { 4, 4 } }))
print(P:matmul(L):matmul(U))
--> {{1., 2.},
-->  {4., 4.}}  -- f32[2,2] cpu]] }

S.svd_lowrank = { sig("svd_lowrank", "U, S, V"),
  "The largest q singular values and vectors, approximately, from a random sketch (Halko et al. 2011).", [[
local A = T.outer(T.tensor { 1, 2, 2 }, T.tensor { 3, 4 })
print((select(2, T.svd_lowrank(A, 1)):round()))  --> {15.}  -- f32[1] cpu]] }

S.pca_lowrank = { sig("pca_lowrank", "U, S, V"),
  "Principal components of rows of observations: svd_lowrank after taking the mean away.", [[
local A = T.tensor { { 1, 1 }, { 2, 2 }, { 3, 3 } }
print((select(2, T.pca_lowrank(A, 1)):round()))  --> {2.}  -- f32[1] cpu]] }

S.deg2rad_ = { "x:deg2rad_() → x", "Degrees become radians, in place.", [[
print(T.deg2rad_(T.tensor { 180 }))  --> {3.1416}  -- f32[1] cpu]] }

S.rad2deg_ = { "x:rad2deg_() → x", "Radians become degrees, in place.", [[
print(T.rad2deg_(T.tensor { 0 }))  --> {0.}  -- f32[1] cpu]] }

S.clamp_min_ = { "x:clamp_min_(lo) → x", "Nothing below lo, in place.", [[
print(T.clamp_min_(T.tensor { -1, 2 }, 0))  --> {0., 2.}  -- f32[2] cpu]] }

S.clamp_max_ = { "x:clamp_max_(hi) → x", "Nothing above hi, in place.", [[
print(T.clamp_max_(T.tensor { -1, 2 }, 0))  --> {-1.,  0.}  -- f32[2] cpu]] }

-- Other names. Those of ops share the op's page; the example says what they are.
for name, from in pairs(options.aliases) do
  S[name] = { ("T.%s(…), as T.%s"):format(name, from), ("Another name of T.%s."):format(from),
    ("print(T.%s == T.%s)  --> true"):format(name, from), same = from }
end
for _, name in ipairs { "asarray", "igamma", "igammac", "trapz" } do
  S[name].same = ({ asarray = "as_tensor", igamma = "gammainc", igammac = "gammaincc", trapz = "trapezoid" })[name]
end

return S
