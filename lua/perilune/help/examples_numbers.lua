-- SPDX-License-Identifier: MIT
-- Examples of ops, continued from examples.lua: numbers, activations, reductions.
local E = {}

E.add = [[
print(T.tensor { 1, 2 } + T.tensor { 10, 20 })  --> {11., 22.}  -- f32[2] cpu
print(T.tensor { 1, 2 }:add(3))  --> {4., 5.}  -- f32[2] cpu]]
E.sub = [[
print(T.tensor { 1, 2 } - T.tensor { 10, 20 })  --> { -9., -18.}  -- f32[2] cpu
print(T.tensor { 5 }:sub(3))  --> {2.}  -- f32[1] cpu]]
E.mul = [[
print(T.tensor { 1, 2 } * T.tensor { 10, 20 })  --> {10., 40.}  -- f32[2] cpu
print(T.tensor { 2 }:mul(3))  --> {6.}  -- f32[1] cpu]]
E.div = [[
print(T.tensor { 1, 2 } / T.tensor { 10, 20 })  --> {0.1000, 0.1000}  -- f32[2] cpu
print(T.tensor { 1 }:div(4))  --> {0.2500}  -- f32[1] cpu]]
E.add_scaled = [[
print(T.add_scaled(T.tensor { 1, 2 }, T.tensor { 10, 20 }, { alpha = 0.1 }))  --> {2., 4.}  -- f32[2] cpu]]
E.floor_divide = [[
print(T.tensor { 7, -7 } // 2)  --> { 3., -4.}  -- f32[2] cpu
print(T.tensor { 7 }:floor_divide(2))  --> {3.}  -- f32[1] cpu]]
E.trunc_divide = [[print(T.tensor { 7, -7 }:trunc_divide(2))  --> { 3., -3.}  -- f32[2] cpu]]
E.fmod = [[print(T.tensor { 7, -7 }:fmod(3))  --> { 1., -1.}  -- f32[2] cpu]]
E.remainder = [[
print(T.tensor { 7, -7 } % 3)  --> {1., 2.}  -- f32[2] cpu
print(T.tensor { 7 }:remainder(4))  --> {3.}  -- f32[1] cpu]]
E.pow = [[
print(T.tensor { 1, 2, 3 } ^ 2)  --> {1., 4., 9.}  -- f32[3] cpu
print(T.tensor { 2 }:pow(3))  --> {8.}  -- f32[1] cpu]]
E.neg = [[
print(-T.tensor { 1, -2 })  --> {-1.,  2.}  -- f32[2] cpu
print(T.tensor { 1 }:neg())  --> {-1.}  -- f32[1] cpu]]
E.abs = [[print(T.tensor { -1.5, 2 }:abs())  --> {1.5000, 2.0000}  -- f32[2] cpu]]
E.sign = [[print(T.tensor { -3, 0, 2 }:sign())  --> {-1.,  0.,  1.}  -- f32[3] cpu]]
E.square = [[print(T.tensor { 1, 2, 3 }:square())  --> {1., 4., 9.}  -- f32[3] cpu]]
E.sqrt = [[print(T.tensor { 4, 9 }:sqrt())  --> {2., 3.}  -- f32[2] cpu]]
E.rsqrt = [[print(T.tensor { 4, 16 }:rsqrt())  --> {0.5000, 0.2500}  -- f32[2] cpu]]
E.reciprocal = [[print(T.tensor { 2, 4 }:reciprocal())  --> {0.5000, 0.2500}  -- f32[2] cpu]]
E.exp = [[print(T.tensor { 0, 1 }:exp())  --> {1.0000, 2.7183}  -- f32[2] cpu]]
E.exp2 = [[print(T.tensor { 0, 3 }:exp2())  --> {1., 8.}  -- f32[2] cpu]]
E.expm1 = [[print(T.tensor { 0, 1 }:expm1())  --> {0.0000, 1.7183}  -- f32[2] cpu]]
E.log = [[print(T.tensor { 1, 10 }:log())  --> {0.0000, 2.3026}  -- f32[2] cpu]]
E.log2 = [[print(T.tensor { 1, 8 }:log2())  --> {0., 3.}  -- f32[2] cpu]]
E.log10 = [[print(T.tensor { 1, 1000 }:log10())  --> {0., 3.}  -- f32[2] cpu]]
E.log1p = [[print(T.tensor { 0, 1 }:log1p())  --> {0.0000, 0.6931}  -- f32[2] cpu]]
E.sin = [[print(T.tensor { 0, math.pi / 2 }:sin())  --> {0., 1.}  -- f32[2] cpu]]
E.cos = [[print(T.tensor { 0, math.pi }:cos())  --> { 1., -1.}  -- f32[2] cpu]]
E.tan = [[print(T.tensor { 0, math.pi / 4 }:tan())  --> {0., 1.}  -- f32[2] cpu]]
E.sinc = [[print(T.tensor { 0, 0.5, 1.5 }:sinc())  --> { 1.0000,  0.6366, -0.2122}  -- f32[3] cpu]]
E.asin = [[print(T.tensor { 0, 1 }:asin())  --> {0.0000, 1.5708}  -- f32[2] cpu]]
E.acos = [[print(T.tensor { 1, 0 }:acos())  --> {0.0000, 1.5708}  -- f32[2] cpu]]
E.atan = [[print(T.tensor { 0, 1 }:atan())  --> {0.0000, 0.7854}  -- f32[2] cpu]]
E.sinh = [[print(T.tensor { 0, 1 }:sinh())  --> {0.0000, 1.1752}  -- f32[2] cpu]]
E.cosh = [[print(T.tensor { 0, 1 }:cosh())  --> {1.0000, 1.5431}  -- f32[2] cpu]]
E.tanh = [[print(T.tensor { 0, 1 }:tanh())  --> {0.0000, 0.7616}  -- f32[2] cpu]]
E.asinh = [[print(T.tensor { 0, 1 }:asinh())  --> {0.0000, 0.8814}  -- f32[2] cpu]]
E.acosh = [[print(T.tensor { 1, 2 }:acosh())  --> {0.0000, 1.3170}  -- f32[2] cpu]]
E.atanh = [[print(T.tensor { 0, 0.5 }:atanh())  --> {0.0000, 0.5493}  -- f32[2] cpu]]
E.atan2 = [[print(T.atan2(T.tensor { 1, -1 }, T.tensor { 1, -1 }))  --> { 0.7854, -2.3562}  -- f32[2] cpu]]
E.hypot = [[print(T.hypot(T.tensor { 3, 5 }, T.tensor { 4, 12 }))  --> { 5., 13.}  -- f32[2] cpu]]
E.sigmoid = [[print(T.tensor { -2, 0, 2 }:sigmoid())  --> {0.1192, 0.5000, 0.8808}  -- f32[3] cpu]]
E.logit = [[print(T.tensor { 0.5, 0.9 }:logit())  --> {0.0000, 2.1972}  -- f32[2] cpu]]
E.erf = [[print(T.tensor { 0, 1 }:erf())  --> {0.0000, 0.8427}  -- f32[2] cpu]]
E.erfc = [[print(T.tensor { 0, 1 }:erfc())  --> {1.0000, 0.1573}  -- f32[2] cpu]]
E.erfinv = [[print(T.tensor { 0, 0.5 }:erfinv())  --> {0.0000, 0.4769}  -- f32[2] cpu]]
E.lgamma = [[print(T.tensor { 1, 5 }:lgamma())  --> {0.0000, 3.1781}  -- f32[2] cpu]]
E.digamma = [[print(T.tensor { 1, 2 }:digamma())  --> {-0.5772,  0.4228}  -- f32[2] cpu]]
E.polygamma = [[print(T.tensor { 1, 2 }:polygamma(1))  --> {1.6449, 0.6449}  -- f32[2] cpu]]
E.i0 = [[print(T.tensor { 0, 1 }:i0())  --> {1.0000, 1.2661}  -- f32[2] cpu]]
E.i0e = [[print(T.tensor { 0, 100 }:i0e())  --> {1.0000, 0.0399}  -- f32[2] cpu]]
E.i1 = [[print(T.tensor { 0, 1 }:i1())  --> {0.0000, 0.5652}  -- f32[2] cpu]]
E.i1e = [[print(T.tensor { 0, 100 }:i1e())  --> {0.0000, 0.0397}  -- f32[2] cpu]]
E.erfcx = [[print(T.tensor { 0, 50 }:erfcx())  --> {1.0000, 0.0113}  -- f32[2] cpu]]
E.ndtri = [[print(T.tensor { 0.5, 0.975 }:ndtri())  --> {0.0000, 1.9600}  -- f32[2] cpu]]
E.gammainc = [[print(T.gammainc(T.tensor { 1, 2 }, T.tensor { 1, 2 }))  --> {0.6321, 0.5940}  -- f32[2] cpu]]
E.gammaincc = [[print(T.gammaincc(T.tensor { 1, 2 }, T.tensor { 1, 2 }))  --> {0.3679, 0.4060}  -- f32[2] cpu]]
E.gcd = [[print(T.gcd(T.tensor({ 12, 18 }, { dtype = "i64" }), 8))  --> {4, 2}  -- i64[2] cpu]]
E.lcm = [[print(T.lcm(T.tensor({ 4, 6 }, { dtype = "i64" }), 10))  --> {20, 30}  -- i64[2] cpu]]
E.nextafter = [[print(T.tensor(1.0):nextafter(T.tensor(2.0)):item() > 1)  --> true]]
E.floor = [[print(T.tensor { -1.5, 1.5 }:floor())  --> {-2.,  1.}  -- f32[2] cpu]]
E.ceil = [[print(T.tensor { -1.5, 1.5 }:ceil())  --> {-1.,  2.}  -- f32[2] cpu]]
E.trunc = [[print(T.tensor { -1.5, 1.5 }:trunc())  --> {-1.,  1.}  -- f32[2] cpu]]
E.round = [[
print(T.tensor { 0.5, 1.5, 2.4 }:round())  --> {0., 2., 2.}  -- f32[3] cpu
print(T.tensor { 3.14159 }:round(2))  --> {3.1400}  -- f32[1] cpu]]
E.frac = [[print(T.tensor { -1.5, 1.25 }:frac())  --> {-0.5000,  0.2500}  -- f32[2] cpu]]
E.maximum = [[print(T.maximum(T.tensor { 1, 5 }, T.tensor { 3, 2 }))  --> {3., 5.}  -- f32[2] cpu]]
E.minimum = [[print(T.minimum(T.tensor { 1, 5 }, T.tensor { 3, 2 }))  --> {1., 2.}  -- f32[2] cpu]]
E.fmax = [[print(T.fmax(T.tensor { 1, 0 / 0 }, T.tensor { 3, 2 }))  --> {3., 2.}  -- f32[2] cpu]]
E.fmin = [[print(T.fmin(T.tensor { 1, 0 / 0 }, T.tensor { 3, 2 }))  --> {1., 2.}  -- f32[2] cpu]]
E.clamp = [[
print(T.tensor { -2, 0.5, 9 }:clamp(0, 1))  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu
print(T.tensor { -2, 9 }:clamp { min = 0 })  --> {0., 9.}  -- f32[2] cpu]]
E.clamp_tensor = [[
print(T.clamp_tensor(T.tensor { -2, 0.5, 9 }, T.zeros(3), T.tensor { 1, 2, 3 }))
--> {0.0000, 0.5000, 3.0000}  -- f32[3] cpu]]
E.lerp = [[print(T.lerp(T.tensor { 0, 10 }, T.tensor { 1, 20 }, 0.5))  --> { 0.5000, 15.0000}  -- f32[2] cpu]]
E.addcmul = [[
print(T.addcmul(T.tensor { 1 }, T.tensor { 2 }, T.tensor { 3 }, { value = 10 }))  --> {61.}  -- f32[1] cpu]]
E.addcdiv = [[
print(T.addcdiv(T.tensor { 1 }, T.tensor { 6 }, T.tensor { 3 }, { value = 10 }))  --> {21.}  -- f32[1] cpu]]
E.copysign = [[print(T.copysign(T.tensor { 1, 2 }, T.tensor { -1, 1 }))  --> {-1.,  2.}  -- f32[2] cpu]]
E.logaddexp = [[
print(T.logaddexp(T.tensor { 0, 100 }, T.tensor { 0, 100 }))  --> {  0.6931, 100.6931}  -- f32[2] cpu]]
E.xlogy = [[print(T.xlogy(T.tensor { 0, 2 }, T.tensor { 0, 1 }))  --> {0., 0.}  -- f32[2] cpu]]
E.nan_to_num = [[
print(T.tensor { 0 / 0, math.huge, 1 }:nan_to_num(0, { posinf = 9 }))  --> {0., 9., 1.}  -- f32[3] cpu]]
E.where = [[
local x = T.tensor { -1, 2 }
print(T.where(x:gt(0), x, 0))  --> {0., 2.}  -- f32[2] cpu]]
E.cast = [[print(T.tensor { 1.9, -1.9 }:cast("i64"))  --> { 1, -1}  -- i64[2] cpu]]
E.eq = [[print(T.tensor { 1, 2 }:eq(2))  --> {false,  true}  -- bool[2] cpu]]
E.ne = [[print(T.tensor { 1, 2 }:ne(2))  --> { true, false}  -- bool[2] cpu]]
E.lt = [[print(T.tensor { 1, 2 }:lt(2))  --> { true, false}  -- bool[2] cpu]]
E.le = [[print(T.tensor { 1, 2 }:le(2))  --> {true, true}  -- bool[2] cpu]]
E.gt = [[print(T.tensor { 1, 2 }:gt(1))  --> {false,  true}  -- bool[2] cpu]]
E.ge = [[print(T.tensor { 1, 2 }:ge(2))  --> {false,  true}  -- bool[2] cpu]]
E.logical_and = [[print(T.logical_and(T.tensor { 1, 0 }, T.tensor { 1, 1 }))  --> { true, false}  -- bool[2] cpu]]
E.logical_or = [[print(T.logical_or(T.tensor { 0, 0 }, T.tensor { 1, 0 }))  --> { true, false}  -- bool[2] cpu]]
E.logical_xor = [[print(T.logical_xor(T.tensor { 1, 0 }, T.tensor { 1, 1 }))  --> {false,  true}  -- bool[2] cpu]]
E.logical_not = [[print(T.tensor { 1, 0 }:logical_not())  --> {false,  true}  -- bool[2] cpu]]
E.isnan = [[print(T.tensor { 1, 0 / 0 }:isnan())  --> {false,  true}  -- bool[2] cpu]]
E.isinf = [[print(T.tensor { 1, -math.huge }:isinf())  --> {false,  true}  -- bool[2] cpu]]
E.isfinite = [[print(T.tensor { 1, math.huge }:isfinite())  --> { true, false}  -- bool[2] cpu]]
E.signbit = [[print(T.tensor { -1, 1 }:signbit())  --> { true, false}  -- bool[2] cpu]]
E.bitwise_and = [[print(T.arange(4) & 1)  --> {1, 0, 1, 0}  -- i64[4] cpu]]
E.bitwise_or = [[print(T.arange(3) | 4)  --> {5, 6, 7}  -- i64[3] cpu]]
E.bitwise_xor = [[print(T.arange(3) ~ 1)  --> {0, 3, 2}  -- i64[3] cpu]]
E.bitwise_not = [[print(~T.tensor({ true, false }))  --> {false,  true}  -- bool[2] cpu]]
E.bitwise_left_shift = [[print(T.arange(3) << 2)  --> { 4,  8, 12}  -- i64[3] cpu]]
E.bitwise_right_shift = [[print(T.tensor({ 8, 9 }, { dtype = "i64" }) >> 1)  --> {4, 4}  -- i64[2] cpu]]
E.relu = [[print(T.tensor { -1, 2 }:relu())  --> {0., 2.}  -- f32[2] cpu]]
E.relu6 = [[print(T.tensor { -1, 2, 9 }:relu6())  --> {0., 2., 6.}  -- f32[3] cpu]]
E.leaky_relu = [[print(T.tensor { -1, 2 }:leaky_relu(0.1))  --> {-0.1000,  2.0000}  -- f32[2] cpu]]
E.hardtanh = [[print(T.tensor { -3, 0.5, 3 }:hardtanh())  --> {-1.0000,  0.5000,  1.0000}  -- f32[3] cpu]]
E.hardsigmoid = [[print(T.tensor { -4, 0, 4 }:hardsigmoid())  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu]]
E.hardswish = [[print(T.tensor { -4, 1, 4 }:hardswish())  --> {-0.0000,  0.6667,  4.0000}  -- f32[3] cpu]]
E.hardshrink = [[print(T.tensor { -1, 0.2, 1 }:hardshrink())  --> {-1.,  0.,  1.}  -- f32[3] cpu]]
E.softshrink = [[print(T.tensor { -1, 0.2, 1 }:softshrink())  --> {-0.5000,  0.0000,  0.5000}  -- f32[3] cpu]]
E.threshold = [[print(T.tensor { -1, 0.2, 1 }:threshold(0.5, 0))  --> {0., 0., 1.}  -- f32[3] cpu]]
E.silu = [[print(T.tensor { -1, 0, 1 }:silu())  --> {-0.2689,  0.0000,  0.7311}  -- f32[3] cpu]]
E.gelu = [[
print(T.tensor { -1, 0, 1 }:gelu())  --> {-0.1587,  0.0000,  0.8413}  -- f32[3] cpu
print(T.tensor { 1 }:gelu { approximate = "tanh" })  --> {0.8412}  -- f32[1] cpu]]
E.softplus = [[print(T.tensor { -1, 0, 1 }:softplus())  --> {0.3133, 0.6931, 1.3133}  -- f32[3] cpu]]
E.elu = [[print(T.tensor { -1, 1 }:elu())  --> {-0.6321,  1.0000}  -- f32[2] cpu]]
E.selu = [[print(T.tensor { -1, 1 }:selu())  --> {-1.1113,  1.0507}  -- f32[2] cpu]]
E.celu = [[print(T.tensor { -1, 1 }:celu(2))  --> {-0.7869,  1.0000}  -- f32[2] cpu]]
E.mish = [[print(T.tensor { -1, 1 }:mish())  --> {-0.3034,  0.8651}  -- f32[2] cpu]]
E.logsigmoid = [[print(T.tensor { -1, 1 }:logsigmoid())  --> {-1.3133, -0.3133}  -- f32[2] cpu]]
E.softsign = [[print(T.tensor { -1, 3 }:softsign())  --> {-0.5000,  0.7500}  -- f32[2] cpu]]
E.tanhshrink = [[print(T.tensor { -1, 1 }:tanhshrink())  --> {-0.2384,  0.2384}  -- f32[2] cpu]]
E.prelu_core = [[print(T.prelu_core(T.tensor { -2, 3 }, T.tensor { 0.5 }))  --> {-1.,  3.}  -- f32[2] cpu]]
E.sum = [[
local x = T.tensor { { 1, 2 }, { 3, 4 } }
print(x:sum())  --> 10.  -- f32[] cpu
print(x:sum(1), x:sum(-1, { keepdim = true }))
--> {4., 6.}  -- f32[2] cpu	{{3.},
-->  {7.}}  -- f32[2,1] cpu]]
E.mean = [[
local x = T.tensor { { 1, 2 }, { 3, 4 } }
print(x:mean(), x:mean(1))  --> 2.5000  -- f32[] cpu	{2., 3.}  -- f32[2] cpu]]
E.prod = [[print(T.tensor { 2, 3, 4 }:prod())  --> 24.  -- f32[] cpu]]
E.nansum = [[print(T.tensor { 1, 0 / 0, 2 }:nansum())  --> 3.  -- f32[] cpu]]
E.sum_to = [[print(T.sum_to(T.ones(2, 3), nil, { shape = { 1, 3 } }))  --> {{2., 2., 2.}}  -- f32[1,3] cpu]]
E.amax = [[print(T.tensor { { 1, 5 }, { 7, 2 } }:amax(1))  --> {7., 5.}  -- f32[2] cpu]]
E.amin = [[print(T.tensor { { 1, 5 }, { 7, 2 } }:amin(1))  --> {1., 2.}  -- f32[2] cpu]]
E.max_all = [[print(T.max_all(T.tensor { 1, 5, 2 }))  --> 5.  -- f32[] cpu]]
E.min_all = [[print(T.min_all(T.tensor { 4, 1, 2 }))  --> 1.  -- f32[] cpu]]
E.any = [[print(T.tensor({ false, true }):any())  --> true  -- bool[] cpu]]
E.all = [[print(T.tensor({ false, true }):all())  --> false  -- bool[] cpu]]
E.count_nonzero = [[print(T.tensor { 0, 3, 4 }:count_nonzero())  --> 2  -- i64[] cpu]]
E.logsumexp = [[print(T.tensor { 1, 2, 3 }:logsumexp())  --> 3.4076  -- f32[] cpu]]
E.norm = [[print(T.tensor { 3, 4 }:norm(), T.tensor { 3, -4 }:norm(1))  --> 5.  -- f32[] cpu	7.  -- f32[] cpu]]
E.var = [[print(T.tensor { 1, 2, 3, 4 }:var())  --> 1.6667  -- f32[] cpu]]
E.std = [[print(T.tensor { 1, 2, 3 }:std())  --> 1.  -- f32[] cpu]]
E.argmax = [[
print(T.tensor { 1, 5, 2 }:argmax())  --> 2  -- i64[] cpu
print(T.tensor { { 1, 5 }, { 7, 2 } }:argmax(2))  --> {2, 1}  -- i64[2] cpu]]
E.argmin = [[print(T.tensor { 4, 1, 2 }:argmin())  --> 2  -- i64[] cpu]]
E.max_dim = [[
print(T.max_dim(T.tensor { { 1, 5 }, { 7, 2 } }, 2))  --> {5., 7.}  -- f32[2] cpu	{2, 1}  -- i64[2] cpu]]
E.min_dim = [[
print(T.min_dim(T.tensor { { 1, 5 }, { 7, 2 } }, 2))  --> {1., 2.}  -- f32[2] cpu	{1, 2}  -- i64[2] cpu]]
E.median = [[
print(T.tensor { 3, 1, 2 }:median())  --> 2.  -- f32[] cpu
print(T.tensor { { 3, 1, 2 } }:median(2))  --> {2.}  -- f32[1] cpu	{3}  -- i64[1] cpu]]
E.mode = [[print(T.tensor { 1, 2, 2, 3 }:mode())  --> 2.  -- f32[] cpu	3  -- i64[] cpu]]
E.kthvalue = [[print(T.tensor { 4, 1, 3 }:kthvalue(2))  --> 3.  -- f32[] cpu	3  -- i64[] cpu]]
E.topk = [[print(T.tensor { 4, 1, 3 }:topk(2))  --> {4., 3.}  -- f32[2] cpu	{1, 3}  -- i64[2] cpu]]
E.sort = [[
print(T.tensor { 3, 1, 2 }:sort())  --> {1., 2., 3.}  -- f32[3] cpu	{2, 3, 1}  -- i64[3] cpu
print((T.tensor { 3, 1, 2 }:sort { descending = true }))  --> {3., 2., 1.}  -- f32[3] cpu]]
E.argsort = [[print(T.tensor { 3, 1, 2 }:argsort())  --> {2, 3, 1}  -- i64[3] cpu]]
E.cumsum = [[print(T.tensor { 1, 2, 3 }:cumsum(1))  --> {1., 3., 6.}  -- f32[3] cpu]]
E.cumprod = [[print(T.tensor { 1, 2, 3 }:cumprod(1))  --> {1., 2., 6.}  -- f32[3] cpu]]
E.cummax = [[print(T.tensor { 1, 3, 2 }:cummax(1))  --> {1., 3., 3.}  -- f32[3] cpu	{1, 2, 2}  -- i64[3] cpu]]
E.cummin = [[print(T.tensor { 3, 1, 2 }:cummin(1))  --> {3., 1., 1.}  -- f32[3] cpu	{1, 2, 2}  -- i64[3] cpu]]
E.logcumsumexp = [[print(T.tensor { 0, 0, 0 }:logcumsumexp(1))  --> {0.0000, 0.6931, 1.0986}  -- f32[3] cpu]]

return E
