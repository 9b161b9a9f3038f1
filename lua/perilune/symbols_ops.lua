-- SPDX-License-Identifier: MIT
-- Runnable examples of the ops, a to l: name → code, with what it prints behind `-->`. What else there is to say of an
-- op stands in its descriptor. spec/help_spec.lua runs them, and wants one for every op. m to z: symbols_ops2.lua.
local E = {}

E.abs = [[print(T.abs(T.tensor { -1, 0.5, 2 }))  --> {1.0000, 0.5000, 2.0000}  -- f32[3] cpu]]
E.acos = [[print(T.acos(T.tensor { 0.1, 0.5, 0.9 }))  --> {1.4706, 1.0472, 0.4510}  -- f32[3] cpu]]
E.acosh = [[print(T.acosh(T.tensor { 1.5, 2, 3 }))  --> {0.9624, 1.3170, 1.7627}  -- f32[3] cpu]]
E.adaptive_avg_pool1d = [[
print(T.adaptive_avg_pool1d(T.tensor { { { 1, 3, 2, 4 } } }, 2))  --> {{{2., 3.}}}  -- f32[1,1,2] cpu]]
E.adaptive_avg_pool2d = [[
print(T.adaptive_avg_pool2d(T.arange(16):float():view(1, 1, 4, 4), { 1, 2 }))
--> {{{{7.5000, 9.5000}}}}  -- f32[1,1,1,2] cpu]]
E.adaptive_avg_pool3d = [[
print(T.adaptive_avg_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), { 1, 1, 2 }))
--> {{{{{4., 5.}}}}}  -- f32[1,1,1,1,2] cpu]]
E.adaptive_max_pool1d = [[
print((T.adaptive_max_pool1d(T.tensor { { { 1, 3, 2, 4 } } }, 2)))  --> {{{3., 4.}}}  -- f32[1,1,2] cpu]]
E.adaptive_max_pool2d = [[
print((T.adaptive_max_pool2d(T.arange(16):float():view(1, 1, 4, 4), { 1, 2 })))
--> {{{{14., 16.}}}}  -- f32[1,1,1,2] cpu]]
E.adaptive_max_pool3d = [[
print((T.adaptive_max_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), { 1, 1, 2 })))
--> {{{{{7., 8.}}}}}  -- f32[1,1,1,1,2] cpu]]
E.add = [[print(T.add(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {4., 4., 4.}  -- f32[3] cpu]]
E.add_scaled = [[print(T.add_scaled(T.ones(2), T.tensor { 1, 2 }, 10))  --> {11., 21.}  -- f32[2] cpu]]
E.addbmm = [[print(T.addbmm(T.ones(1, 1), T.ones(2, 1, 3), T.ones(2, 3, 1)))  --> {{7.}}  -- f32[1,1] cpu]]
E.addcdiv = [[print(T.addcdiv(T.ones(2), T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> {1.3333, 1.5000}  -- f32[2] cpu]]
E.addcmul = [[print(T.addcmul(T.ones(2), T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> {4., 9.}  -- f32[2] cpu]]
E.addmm = [[
print(T.addmm(T.ones(2, 2), T.eye(2), T.eye(2)))
--> {{2., 1.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E.addmv = [[
print(T.addmv(T.ones(2), T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, T.ones(3)))
--> {10., 13.}  -- f32[2] cpu]]
E.addr = [[
print(T.addr(T.ones(2), T.tensor { 1, 2 }, T.tensor { 3, 4 }))
--> {{4., 5.},
-->  {7., 9.}}  -- f32[2,2] cpu]]
E.all = [[print(T.all(T.tensor { true, false }))  --> false  -- bool[] cpu]]
E.amax = [[print(T.amax(T.arange(3)))  --> 3  -- i64[] cpu]]
E.amin = [[print(T.amin(T.arange(3)))  --> 1  -- i64[] cpu]]
E.any = [[print(T.any(T.tensor { true, false }))  --> true  -- bool[] cpu]]
E.argmax = [[print(T.argmax(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 2))  --> {2, 3}  -- i64[2] cpu]]
E.argmin = [[print(T.argmin(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 2))  --> {1, 2}  -- i64[2] cpu]]
E.argsort = [[print(T.argsort(T.tensor { 3, 9, 5 }))  --> {1, 3, 2}  -- i64[3] cpu]]
E.as_strided = [[
print(T.as_strided(T.arange(4), { 2, 2 }, { 1, 2 }))
--> {{1, 3},
-->  {2, 4}}  -- i64[2,2] cpu]]
E.asin = [[print(T.asin(T.tensor { 0.1, 0.5, 0.9 }))  --> {0.1002, 0.5236, 1.1198}  -- f32[3] cpu]]
E.asinh = [[print(T.asinh(T.tensor { -1, 0.5, 2 }))  --> {-0.8814,  0.4812,  1.4436}  -- f32[3] cpu]]
E.atan = [[print(T.atan(T.tensor { -1, 0.5, 2 }))  --> {-0.7854,  0.4636,  1.1071}  -- f32[3] cpu]]
E.atan2 = [[print(T.atan2(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {0.3218, 0.7854, 1.2490}  -- f32[3] cpu]]
E.atanh = [[print(T.atanh(T.tensor { 0.1, 0.5, 0.9 }))  --> {0.1003, 0.5493, 1.4722}  -- f32[3] cpu]]
E.attention = [[
local q = T.eye(2):view(1, 2, 2)
print((T.attention(q, q, q, { scale = 1 })))
--> {{{0.7311, 0.2689},
-->   {0.2689, 0.7311}}}  -- f32[1,2,2] cpu]]
E.attention_dropout = [[
local q = T.eye(2):view(1, 2, 2)
print((T.attention_dropout(q, q, q, { scale = 1 })))
--> {{{0.7311, 0.2689},
-->   {0.2689, 0.7311}}}  -- f32[1,2,2] cpu]]
E.avg_pool1d = [[print(T.avg_pool1d(T.tensor { { { 1, 3, 2, 4 } } }, 2))  --> {{{2., 3.}}}  -- f32[1,1,2] cpu]]
E.avg_pool2d = [[
print(T.avg_pool2d(T.arange(16):float():view(1, 1, 4, 4), 2))
--> {{{{ 3.5000,  5.5000},
-->    {11.5000, 13.5000}}}}  -- f32[1,1,2,2] cpu]]
E.avg_pool3d = [[
print(T.avg_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2))
--> {{{{{4.5000}}}}}  -- f32[1,1,1,1,1] cpu]]
E.baddbmm = [[
print(T.baddbmm(T.ones(2, 1, 1), T.ones(2, 1, 3), T.ones(2, 3, 1)))
--> {{{4.}},
-->
-->  {{4.}}}  -- f32[2,1,1] cpu]]
E.batch_norm = [[
local x = T.tensor { { 1, 10 }, { 3, 30 } }
print((T.batch_norm(x, T.tensor { 1, 10 }, T.tensor { 4, 100 }, nil, nil, { eps = 0 })))
--> {{0., 0.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E.bernoulli = [[print(T.bernoulli(T.tensor { 0, 1 }))  --> {0., 1.}  -- f32[2] cpu]]
E.bilinear = [[
print(T.bilinear(T.ones(1, 2), T.ones(1, 3), T.ones(4, 2, 3)))  --> {{6., 6., 6., 6.}}  -- f32[1,4] cpu]]
E.binary_cross_entropy = [[
print(T.binary_cross_entropy(T.tensor { 0.9, 0.2 }, T.tensor { 1, 0 }))  --> 0.1643  -- f32[] cpu]]
E.binary_cross_entropy_with_logits = [[
print(T.binary_cross_entropy_with_logits(T.tensor { 2, -1 }, T.tensor { 1, 0 }))
--> 0.2201  -- f32[] cpu]]
E.bincount = [[print(T.bincount(T.tensor({ 1, 3, 3 }, { dtype = "i64" })))  --> {1, 0, 2}  -- i64[3] cpu]]
E.bitwise_and = [[
print(T.bitwise_and(T.arange(3), T.tensor({ 4, 2, 6 }, { dtype = "i64" })))  --> {0, 2, 2}  -- i64[3] cpu]]
E.bitwise_left_shift = [[
print(T.bitwise_left_shift(T.arange(3), T.tensor({ 4, 2, 6 }, { dtype = "i64" })))
--> { 16,   8, 192}  -- i64[3] cpu]]
E.bitwise_not = [[print(T.bitwise_not(T.arange(3)))  --> {-2, -3, -4}  -- i64[3] cpu]]
E.bitwise_or = [[
print(T.bitwise_or(T.arange(3), T.tensor({ 4, 2, 6 }, { dtype = "i64" })))  --> {5, 2, 7}  -- i64[3] cpu]]
E.bitwise_right_shift = [[
print(T.bitwise_right_shift(T.arange(3), T.tensor({ 4, 2, 6 }, { dtype = "i64" })))
--> {0, 0, 0}  -- i64[3] cpu]]
E.bitwise_xor = [[
print(T.bitwise_xor(T.arange(3), T.tensor({ 4, 2, 6 }, { dtype = "i64" })))  --> {5, 0, 5}  -- i64[3] cpu]]
E.bmm = [[
print(T.bmm(T.ones(2, 1, 3), T.ones(2, 3, 1)))
--> {{{3.}},
-->
-->  {{3.}}}  -- f32[2,1,1] cpu]]
E.broadcast_to = [[
print(T.broadcast_to(T.tensor { 1, 2 }, 2, 2))
--> {{1., 2.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E.bucketize = [[print(T.bucketize(T.tensor { 2, 6 }, T.tensor { 1, 3, 5 }))  --> {2, 4}  -- i64[2] cpu]]
E.cast = [[print(T.cast(T.tensor { 1.7, 2 }, "i64"))  --> {1, 2}  -- i64[2] cpu]]
E.cat = [[print(T.cat({ T.ones(2), T.zeros(1) }))  --> {1., 1., 0.}  -- f32[3] cpu]]
E.ceil = [[print(T.ceil(T.tensor { -1, 0.5, 2 }))  --> {-1.,  1.,  2.}  -- f32[3] cpu]]
E.celu = [[print(T.celu(T.tensor { -1, 0.5, 2 }))  --> {-0.6321,  0.5000,  2.0000}  -- f32[3] cpu]]
E.clamp = [[print(T.clamp(T.tensor { -1, 0.5, 2 }, 0, 1))  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu]]
E.clamp_tensor = [[
print(T.clamp_tensor(T.tensor { -1, 0.5, 2 }, T.zeros(3), T.ones(3)))
--> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu]]
E.clone = [[
local x = T.ones(2)
x:clone():zero_()
print(T.clone(x))
--> {1., 1.}  -- f32[2] cpu]]
E.contiguous = [[print(T.contiguous(T.ones(2, 3):t()):is_contiguous())  --> true]]
E.conv1d = [[
local x, w = T.tensor { { { 1, 2, 3, 4 } } }, T.tensor { { { 1, -1 } } }
print(T.conv1d(x, w))
--> {{{-1., -1., -1.}}}  -- f32[1,1,3] cpu]]
E.conv2d = [[
print(T.conv2d(T.ones(1, 1, 3, 3), T.ones(1, 1, 2, 2)))
--> {{{{4., 4.},
-->    {4., 4.}}}}  -- f32[1,1,2,2] cpu]]
E.conv3d = [[print(T.conv3d(T.ones(1, 1, 2, 2, 2), T.ones(1, 1, 2, 2, 2)))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]]
E.conv_transpose1d = [[
local x, w = T.tensor { { { 1, 2 } } }, T.tensor { { { 1, 10 } } }
print(T.conv_transpose1d(x, w))
--> {{{ 1., 12., 20.}}}  -- f32[1,1,3] cpu]]
E.conv_transpose2d = [[
print(T.conv_transpose2d(T.ones(1, 1, 2, 2), T.ones(1, 1, 2, 2)))
--> {{{{1., 2., 1.},
-->    {2., 4., 2.},
-->    {1., 2., 1.}}}}  -- f32[1,1,3,3] cpu]]
E.conv_transpose3d = [[
print(T.conv_transpose3d(T.ones(1, 1, 1, 1, 1), T.ones(1, 1, 1, 2, 2)))
--> {{{{{1., 1.},
-->     {1., 1.}}}}}  -- f32[1,1,1,2,2] cpu]]
E.copysign = [[print(T.copysign(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {1., 2., 3.}  -- f32[3] cpu]]
E.cos = [[print(T.cos(T.tensor { -1, 0.5, 2 }))  --> { 0.5403,  0.8776, -0.4161}  -- f32[3] cpu]]
E.cosh = [[print(T.cosh(T.tensor { -1, 0.5, 2 }))  --> {1.5431, 1.1276, 3.7622}  -- f32[3] cpu]]
E.count_nonzero = [[print(T.count_nonzero(T.tensor { 0, 5, 7 }))  --> 2  -- i64[] cpu]]
E.cross_entropy = [[
local scores = T.tensor { { 0, 2 }, { 3, 0 } }
print((T.cross_entropy(scores, T.tensor({ 2, 1 }, { dtype = "i64" }))))
--> 0.0878  -- f32[] cpu]]
E.cross_entropy_prob = [[
print(T.cross_entropy_prob(T.tensor { { 0, 2 } }, T.tensor { { 0.25, 0.75 } }))  --> 0.6269  -- f32[] cpu]]
E.ctc_nll = [[
local p = T.full({ 3, 1, 2 }, 0.5):log()
local function int(...) return T.tensor({ ... }, { dtype = "i64" }) end
print((T.ctc_nll(p, int(2):view(1, 1), int(3), int(1))))
--> {0.2877}  -- f32[1] cpu]]
E.cummax = [[print(T.cummax(T.tensor { 1, 3, 2 }, 1))  --> {1., 3., 3.}  -- f32[3] cpu	{1, 2, 2}  -- i64[3] cpu]]
E.cummin = [[print(T.cummin(T.tensor { 3, 1, 2 }, 1))  --> {3., 1., 1.}  -- f32[3] cpu	{1, 2, 2}  -- i64[3] cpu]]
E.cumprod = [[print(T.cumprod(T.tensor { 1, 2, 3 }, 1))  --> {1., 2., 6.}  -- f32[3] cpu]]
E.cumsum = [[print(T.cumsum(T.tensor { 1, 2, 3 }, 1))  --> {1., 3., 6.}  -- f32[3] cpu]]
E.diag = [[
print(T.diag(T.tensor { 1, 2 }))
--> {{1., 0.},
-->  {0., 2.}}  -- f32[2,2] cpu]]
E.diag_embed = [[
print(T.diag_embed(T.tensor { 1, 2 }))
--> {{1., 0.},
-->  {0., 2.}}  -- f32[2,2] cpu]]
E.diagonal = [[print(T.diagonal(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }))  --> {1., 2.}  -- f32[2] cpu]]
E.digamma = [[print(T.digamma(T.tensor { 0.5, 1, 2 }))  --> {-1.9635, -0.5772,  0.4228}  -- f32[3] cpu]]
E.div = [[print(T.div(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {0.3333, 1.0000, 3.0000}  -- f32[3] cpu]]
E.dot = [[print(T.dot(T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> 11.  -- f32[] cpu]]
E.dropout = [[print(T.dropout(T.ones(3), { p = 0 }))  --> {1., 1., 1.}  -- f32[3] cpu]]
E.elu = [[print(T.elu(T.tensor { -1, 0.5, 2 }))  --> {-0.6321,  0.5000,  2.0000}  -- f32[3] cpu]]
E.embedding = [[
local ids = T.tensor({ 2, 1, 2 }, { dtype = "i64" })
print(T.embedding(T.tensor { { 1, 2 }, { 3, 4 } }, ids))
--> {{3., 4.},
-->  {1., 2.},
-->  {3., 4.}}  -- f32[3,2] cpu]]
E.eq = [[print(T.eq(T.tensor { 1, 2, 3 }, 2))  --> {false,  true, false}  -- bool[3] cpu]]
E.erf = [[print(T.erf(T.tensor { -1, 0.5, 2 }))  --> {-0.8427,  0.5205,  0.9953}  -- f32[3] cpu]]
E.erfc = [[print(T.erfc(T.tensor { -1, 0.5, 2 }))  --> {1.8427, 0.4795, 0.0047}  -- f32[3] cpu]]
E.erfcx = [[print(T.erfcx(T.tensor { -1, 0.5, 2 }))  --> {5.0090, 0.6157, 0.2554}  -- f32[3] cpu]]
E.erfinv = [[print(T.erfinv(T.tensor { 0.1, 0.5, 0.9 }))  --> {0.0889, 0.4769, 1.1631}  -- f32[3] cpu]]
E.exp = [[print(T.exp(T.tensor { -1, 0.5, 2 }))  --> {0.3679, 1.6487, 7.3891}  -- f32[3] cpu]]
E.exp2 = [[print(T.exp2(T.tensor { -1, 0.5, 2 }))  --> {0.5000, 1.4142, 4.0000}  -- f32[3] cpu]]
E.expand = [[
print(T.expand(T.tensor { { 1 }, { 2 } }, 2, 3))
--> {{1., 1., 1.},
-->  {2., 2., 2.}}  -- f32[2,3] cpu]]
E.expand_as = [[
print(T.expand_as(T.tensor { 1, 2 }, T.zeros(2, 2)))
--> {{1., 2.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E.expm1 = [[print(T.expm1(T.tensor { -1, 0.5, 2 }))  --> {-0.6321,  0.6487,  6.3891}  -- f32[3] cpu]]
E.eye = [[
print(T.eye(2))
--> {{1., 0.},
-->  {0., 1.}}  -- f32[2,2] cpu]]
E.flatten = [[print(T.flatten(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }))  --> {1., 5., 3., 4., 2., 6.}  -- f32[6] cpu]]
E.flip = [[print(T.flip(T.arange(3), 1))  --> {3, 2, 1}  -- i64[3] cpu]]
E.floor = [[print(T.floor(T.tensor { -1, 0.5, 2 }))  --> {-1.,  0.,  2.}  -- f32[3] cpu]]
E.floor_divide = [[print(T.floor_divide(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {0., 1., 3.}  -- f32[3] cpu]]
E.fmax = [[print(T.fmax(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {3., 2., 3.}  -- f32[3] cpu]]
E.fmin = [[print(T.fmin(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {1., 2., 1.}  -- f32[3] cpu]]
E.fmod = [[print(T.fmod(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {1., 0., 0.}  -- f32[3] cpu]]
E.foreach_norm = [[print(T.foreach_norm({ T.ones(4), T.ones(9) }))  --> 3.6056  -- f32[] cpu]]
E.frac = [[print(T.frac(T.tensor { -1, 0.5, 2 }))  --> {0.0000, 0.5000, 0.0000}  -- f32[3] cpu]]
E.full = [[print(T.full({ 2 }, 7))  --> {7, 7}  -- i64[2] cpu]]
E.gammainc = [[
print(T.gammainc(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))
--> {0.9502, 0.5940, 0.0803}  -- f32[3] cpu]]
E.gammaincc = [[
print(T.gammaincc(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))
--> {0.0498, 0.4060, 0.9197}  -- f32[3] cpu]]
E.gather = [[
local i = T.tensor({ { 2 }, { 1 } }, { dtype = "i64" })
print(T.gather(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 2, i))
--> {{5.},
-->  {4.}}  -- f32[2,1] cpu]]
E.gcd = [[print(T.gcd(T.arange(3), T.tensor({ 4, 2, 6 }, { dtype = "i64" })))  --> {1, 2, 3}  -- i64[3] cpu]]
E.ge = [[print(T.ge(T.tensor { 1, 2, 3 }, 2))  --> {false,  true,  true}  -- bool[3] cpu]]
E.gelu = [[print(T.gelu(T.tensor { -1, 0.5, 2 }))  --> {-0.1587,  0.3457,  1.9545}  -- f32[3] cpu]]
E.group_norm = [[
print(T.group_norm(T.arange(8):float():view(1, 4, 2), { num_groups = 2 }))
--> {{{-1.3416, -0.4472},
-->   { 0.4472,  1.3416},
-->   {-1.3416, -0.4472},
-->   { 0.4472,  1.3416}}}  -- f32[1,4,2] cpu]]
E.gt = [[print(T.gt(T.tensor { 1, 2, 3 }, 2))  --> {false, false,  true}  -- bool[3] cpu]]
E.hardshrink = [[print(T.hardshrink(T.tensor { -1, 0.5, 2 }))  --> {-1.,  0.,  2.}  -- f32[3] cpu]]
E.hardsigmoid = [[print(T.hardsigmoid(T.tensor { -1, 0.5, 2 }))  --> {0.3333, 0.5833, 0.8333}  -- f32[3] cpu]]
E.hardswish = [[print(T.hardswish(T.tensor { -1, 0.5, 2 }))  --> {-0.3333,  0.2917,  1.6667}  -- f32[3] cpu]]
E.hardtanh = [[print(T.hardtanh(T.tensor { -1, 0.5, 2 }))  --> {-1.0000,  0.5000,  1.0000}  -- f32[3] cpu]]
E.huber_loss = [[print(T.huber_loss(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> 1.  -- f32[] cpu]]
E.hypot = [[print(T.hypot(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {3.1623, 2.8284, 3.1623}  -- f32[3] cpu]]
E.i0 = [[print(T.i0(T.tensor { -1, 0.5, 2 }))  --> {1.2661, 1.0635, 2.2796}  -- f32[3] cpu]]
E.i0e = [[print(T.i0e(T.tensor { -1, 0.5, 2 }))  --> {0.4658, 0.6450, 0.3085}  -- f32[3] cpu]]
E.i1 = [[print(T.i1(T.tensor { -1, 0.5, 2 }))  --> {-0.5652,  0.2579,  1.5906}  -- f32[3] cpu]]
E.i1e = [[print(T.i1e(T.tensor { -1, 0.5, 2 }))  --> {-0.2079,  0.1564,  0.2153}  -- f32[3] cpu]]
E.index = [[
print(T.index({ T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, T.tensor({ 2, 1 }, { dtype = "i64" }) }))
--> {{4., 2., 6.},
-->  {1., 5., 3.}}  -- f32[2,3] cpu]]
E.index_add = [[
local i = T.tensor({ 1, 1 }, { dtype = "i64" })
print(T.index_add(T.zeros(3), 1, i, T.tensor { 5, 6 }))
--> {11.,  0.,  0.}  -- f32[3] cpu]]
E.index_copy = [[
local i = T.tensor({ 3, 1 }, { dtype = "i64" })
print(T.index_copy(T.zeros(3), 1, i, T.tensor { 5, 6 }))
--> {6., 0., 5.}  -- f32[3] cpu]]
E.index_fill = [[
local i = T.tensor({ 3, 1 }, { dtype = "i64" })
print(T.index_fill(T.zeros(3), 1, i, 9))
--> {9., 0., 9.}  -- f32[3] cpu]]
E.index_put = [[
local i = T.tensor({ 1, 3 }, { dtype = "i64" })
print(T.index_put({ T.zeros(3), T.tensor { 7, 8 }, i }))
--> {7., 0., 8.}  -- f32[3] cpu]]
E.index_select = [[
local i = T.tensor({ 3, 1 }, { dtype = "i64" })
print(T.index_select(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 2, i))
--> {{3., 1.},
-->  {6., 4.}}  -- f32[2,2] cpu]]
E.inner = [[print(T.inner(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> 10.  -- f32[] cpu]]
E.isfinite = [[print(T.isfinite(T.tensor { 1, 1 / 0 }))  --> { true, false}  -- bool[2] cpu]]
E.isin = [[print(T.isin(T.tensor { 1, 2, 3 }, T.tensor { 2, 9 }))  --> {false,  true, false}  -- bool[3] cpu]]
E.isinf = [[print(T.isinf(T.tensor { 1, 1 / 0 }))  --> {false,  true}  -- bool[2] cpu]]
E.isnan = [[print(T.isnan(T.tensor { 1, 0 / 0 }))  --> {false,  true}  -- bool[2] cpu]]
E.kl_div = [[
local p, q = T.tensor { 0.5, 0.5 }, T.tensor { 0.9, 0.1 }
print(T.kl_div(q:log(), p))
--> 0.2554  -- f32[] cpu]]
E.kron = [[
print(T.kron(T.eye(2), T.tensor { 1, 2 }))
--> {{1., 2., 0., 0.},
-->  {0., 0., 1., 2.}}  -- f32[2,4] cpu]]
E.kthvalue = [[print(T.kthvalue(T.tensor { 3, 9, 5 }, 2))  --> 5.  -- f32[] cpu	3  -- i64[] cpu]]
E.l1_loss = [[print(T.l1_loss(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> 1.3333  -- f32[] cpu]]
E.layer_norm = [[
print(T.layer_norm(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, { normalized_shape = { 3 } }))
--> {{-1.2247,  1.2247,  0.0000},
-->  { 0.0000, -1.2247,  1.2247}}  -- f32[2,3] cpu]]
E.lcm = [[print(T.lcm(T.arange(3), T.tensor({ 4, 2, 6 }, { dtype = "i64" })))  --> {4, 2, 6}  -- i64[3] cpu]]
E.le = [[print(T.le(T.tensor { 1, 2, 3 }, 2))  --> { true,  true, false}  -- bool[3] cpu]]
E.leaky_relu = [[print(T.leaky_relu(T.tensor { -1, 0.5, 2 }))  --> {-0.0100,  0.5000,  2.0000}  -- f32[3] cpu]]
E.lerp = [[print(T.lerp(T.zeros(2), T.tensor { 10, 20 }, 0.5))  --> { 5., 10.}  -- f32[2] cpu]]
E.lgamma = [[print(T.lgamma(T.tensor { 0.5, 1, 2 }))  --> {0.5724, 0.0000, 0.0000}  -- f32[3] cpu]]
E.linear = [[print(T.linear(T.tensor { { 1, 2 } }, T.eye(2), T.tensor { 10, 20 }))  --> {{11., 22.}}  -- f32[1,2] cpu]]
E.linear_fill = [[print(T.linear_fill(3, 1, 0.5))  --> {1.0000, 1.5000, 2.0000}  -- f32[3] cpu]]
E.linspace = [[print(T.linspace(0, 1, 5))  --> {0.0000, 0.2500, 0.5000, 0.7500, 1.0000}  -- f32[5] cpu]]
E.log = [[print(T.log(T.tensor { 0.5, 1, 2 }))  --> {-0.6931,  0.0000,  0.6931}  -- f32[3] cpu]]
E.log10 = [[print(T.log10(T.tensor { 0.5, 1, 2 }))  --> {-0.3010,  0.0000,  0.3010}  -- f32[3] cpu]]
E.log1p = [[print(T.log1p(T.tensor { 0.5, 1, 2 }))  --> {0.4055, 0.6931, 1.0986}  -- f32[3] cpu]]
E.log2 = [[print(T.log2(T.tensor { 0.5, 1, 2 }))  --> {-1.,  0.,  1.}  -- f32[3] cpu]]
E.log_softmax = [[print(T.log_softmax(T.tensor { 1, 2, 3 }, -1))  --> {-2.4076, -1.4076, -0.4076}  -- f32[3] cpu]]
E.logaddexp = [[
print(T.logaddexp(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))
--> {3.1269, 2.6931, 3.1269}  -- f32[3] cpu]]
E.logcumsumexp = [[print(T.logcumsumexp(T.tensor { 1, 2, 3 }, 1))  --> {1.0000, 2.3133, 3.4076}  -- f32[3] cpu]]
E.logical_and = [[
print(T.logical_and(T.tensor { true, true }, T.tensor { true, false }))
--> { true, false}  -- bool[2] cpu]]
E.logical_not = [[print(T.logical_not(T.tensor { true, false }))  --> {false,  true}  -- bool[2] cpu]]
E.logical_or = [[
print(T.logical_or(T.tensor { true, false }, T.tensor { false, false }))
--> { true, false}  -- bool[2] cpu]]
E.logical_xor = [[
print(T.logical_xor(T.tensor { true, true }, T.tensor { true, false }))
--> {false,  true}  -- bool[2] cpu]]
E.logit = [[print(T.logit(T.tensor { 0.1, 0.5, 0.9 }))  --> {-2.1972,  0.0000,  2.1972}  -- f32[3] cpu]]
E.logsigmoid = [[print(T.logsigmoid(T.tensor { -1, 0.5, 2 }))  --> {-1.3133, -0.4741, -0.1269}  -- f32[3] cpu]]
E.logspace = [[print(T.logspace(0, 2, 3))  --> {  1.,  10., 100.}  -- f32[3] cpu]]
E.logsumexp = [[print(T.logsumexp(T.tensor { 1, 2, 3 }, 1))  --> 3.4076  -- f32[] cpu]]
E.lstm_gates = [[
local h = T.lstm_gates(T.zeros(1, 8), T.ones(1, 2))
print(h)
--> {{0.2311, 0.2311}}  -- f32[1,2] cpu]]
E.lstm_seq = [=[
local hs = T.lstm_seq(T.zeros(3, 1, 8), T.zeros(1, 2), T.ones(1, 2), T.zeros(8, 2))
print(hs:describe())
--> f32[4,1,2]]=]
E.lt = [[print(T.lt(T.tensor { 1, 2, 3 }, 2))  --> { true, false, false}  -- bool[3] cpu]]

for name, code in pairs(require "perilune.symbols_ops2") do E[name] = code end
return E
