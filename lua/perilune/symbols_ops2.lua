-- SPDX-License-Identifier: MIT
-- Runnable examples of the ops, m to z; see symbols_ops.lua.
local E = {}

E.masked_fill = [[
local x = T.tensor { 1, -2, 3 }
print(T.masked_fill(x, x:lt(0), 0))
--> {1., 0., 3.}  -- f32[3] cpu]]
E.masked_scatter = [[
local x = T.tensor { 1, -2, -3 }
print(T.masked_scatter(x, x:lt(0), T.tensor { 10, 20 }))
--> { 1., 10., 20.}  -- f32[3] cpu]]
E.masked_select = [[
local x = T.tensor { 1, -2, 3 }
print(T.masked_select(x, x:gt(0)))
--> {1., 3.}  -- f32[2] cpu]]
E.matmul = [[
local x = T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
print(T.matmul(x, x:t()))
--> {{35., 32.},
-->  {32., 56.}}  -- f32[2,2] cpu]]
E.matrix_exp = [[
print(T.matrix_exp(T.zeros(2, 2)))
--> {{1., 0.},
-->  {0., 1.}}  -- f32[2,2] cpu]]
E.max_all = [[print(T.max_all(T.arange(3)))  --> 3  -- i64[] cpu]]
E.max_dim = [[
print(T.max_dim(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 2))
--> {5., 6.}  -- f32[2] cpu	{2, 3}  -- i64[2] cpu]]
E.max_pool1d = [[print((T.max_pool1d(T.tensor { { { 1, 3, 2, 4 } } }, 2)))  --> {{{3., 4.}}}  -- f32[1,1,2] cpu]]
E.max_pool2d = [[
print((T.max_pool2d(T.arange(16):float():view(1, 1, 4, 4), 2)))
--> {{{{ 6.,  8.},
-->    {14., 16.}}}}  -- f32[1,1,2,2] cpu]]
E.max_pool3d = [[
print((T.max_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2)))
--> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]]
E.maximum = [[print(T.maximum(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {3., 2., 3.}  -- f32[3] cpu]]
E.mean = [[print(T.mean(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 2))  --> {3., 4.}  -- f32[2] cpu]]
E.median = [[print(T.median(T.tensor { 3, 1, 2 }))  --> 2.  -- f32[] cpu]]
E.min_all = [[print(T.min_all(T.arange(3)))  --> 1  -- i64[] cpu]]
E.min_dim = [[
print(T.min_dim(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 2))
--> {1., 2.}  -- f32[2] cpu	{1, 2}  -- i64[2] cpu]]
E.minimum = [[print(T.minimum(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {1., 2., 1.}  -- f32[3] cpu]]
E.mish = [[print(T.mish(T.tensor { -1, 0.5, 2 }))  --> {-0.3034,  0.3752,  1.9440}  -- f32[3] cpu]]
E.mm = [[
local x = T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
print(T.mm(x, x:t()))
--> {{35., 32.},
-->  {32., 56.}}  -- f32[2,2] cpu]]
E.mode = [[print(T.mode(T.tensor { 3, 1, 3 }))  --> 3.  -- f32[] cpu	3  -- i64[] cpu]]
E.movedim = [=[
print(T.movedim(T.zeros(2, 3, 4), 1, 3):describe())  --> f32[3,4,2]]=]
E.mse_loss = [[print(T.mse_loss(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> 2.6667  -- f32[] cpu]]
E.mul = [[print(T.mul(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {3., 4., 3.}  -- f32[3] cpu]]
E.multinomial = [[print(T.multinomial(T.tensor { 0, 1, 0 }, 1))  --> {2}  -- i64[1] cpu]]
E.mv = [[print(T.mv(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, T.ones(3)))  --> { 9., 12.}  -- f32[2] cpu]]
E.nan_to_num = [[print(T.nan_to_num(T.tensor { 1, 0 / 0 }))  --> {1., 0.}  -- f32[2] cpu]]
E.nansum = [[print(T.nansum(T.tensor { 1, 0 / 0, 2 }))  --> 3.  -- f32[] cpu]]
E.narrow = [[print(T.narrow(T.arange(5), 1, 2, 3))  --> {2, 3, 4}  -- i64[3] cpu]]
E.ndtri = [[print(T.ndtri(T.tensor { 0.1, 0.5, 0.9 }))  --> {-1.2816,  0.0000,  1.2816}  -- f32[3] cpu]]
E.ne = [[print(T.ne(T.tensor { 1, 2, 3 }, 2))  --> { true, false,  true}  -- bool[3] cpu]]
E.neg = [[print(T.neg(T.tensor { -1, 0.5, 2 }))  --> { 1.0000, -0.5000, -2.0000}  -- f32[3] cpu]]
E.nextafter = [[print(T.nextafter(T.ones(1), T.zeros(1)):lt(1))  --> {true}  -- bool[1] cpu]]
E.nll_loss = [[
local log_p = T.tensor { { 0.1, 0.9 }, { 0.6, 0.4 } }:log()
print(T.nll_loss(log_p, T.tensor({ 2, 1 }, { dtype = "i64" })))
--> 0.3081  -- f32[] cpu]]
E.nonzero = [[
print(T.nonzero(T.tensor { 0, 5, 7 }))
--> {{2},
-->  {3}}  -- i64[2,1] cpu]]
E.norm = [[print(T.norm(T.tensor { 3, 4 }))  --> 5.  -- f32[] cpu]]
E.normal = [[print(T.normal(5, 0, { 3 }))  --> {5., 5., 5.}  -- f32[3] cpu]]
E.one_hot = [[
print(T.one_hot(T.tensor({ 2, 1 }, { dtype = "i64" }), 3))
--> {{0, 1, 0},
-->  {1, 0, 0}}  -- i64[2,3] cpu]]
E.ones = [[print(T.ones(2, { dtype = "i64" }))  --> {1, 1}  -- i64[2] cpu]]
E.outer = [[
print(T.outer(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))
--> {{3., 2., 1.},
-->  {6., 4., 2.},
-->  {9., 6., 3.}}  -- f32[3,3] cpu]]
E.pad = [[print(T.pad(T.tensor { 1, 2 }, { 1, 2 }))  --> {0., 1., 2., 0., 0.}  -- f32[5] cpu]]
E.permute = [=[
print(T.permute(T.zeros(2, 3, 4), 3, 1, 2):describe())  --> f32[4,2,3]]=]
E.polygamma = [[print(T.polygamma(T.tensor { 1, 2 }, 1))  --> {1.6449, 0.6449}  -- f32[2] cpu]]
E.pow = [[print(T.pow(T.tensor { 1, 2, 3 }, 2))  --> {1., 4., 9.}  -- f32[3] cpu]]
E.prelu_core = [[
print(T.prelu_core(T.tensor { { -2, 2 } }, T.tensor { 0.25, 0.25 }))
--> {{-0.5000,  2.0000}}  -- f32[1,2] cpu]]
E.prod = [[print(T.prod(T.arange(3)))  --> 6  -- i64[] cpu]]
E.randint = [[print(T.randint(1, 6, { 100 }):le(6):all())  --> true  -- bool[] cpu]]
E.randperm = [[print(T.randperm(5):sort())  --> {1, 2, 3, 4, 5}  -- i64[5] cpu	{3, 5, 4, 2, 1}  -- i64[5] cpu]]
E.reciprocal = [[print(T.reciprocal(T.tensor { -1, 0.5, 2 }))  --> {-1.0000,  2.0000,  0.5000}  -- f32[3] cpu]]
E.relu = [[print(T.relu(T.tensor { -1, 0.5, 2 }))  --> {0.0000, 0.5000, 2.0000}  -- f32[3] cpu]]
E.relu6 = [[print(T.relu6(T.tensor { -1, 0.5, 2 }))  --> {0.0000, 0.5000, 2.0000}  -- f32[3] cpu]]
E.remainder = [[print(T.remainder(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {1., 0., 0.}  -- f32[3] cpu]]
E.repeat_each = [[
print(T.repeat_each(T.tensor { 7, 8 }, T.tensor({ 2, 1 }, { dtype = "i64" })))
--> {7., 7., 8.}  -- f32[3] cpu]]
E.repeat_interleave = [[print(T.repeat_interleave(T.arange(2), 2))  --> {1, 1, 2, 2}  -- i64[4] cpu]]
E.reshape = [[
print(T.reshape(T.arange(6), 2, -1))
--> {{1, 2, 3},
-->  {4, 5, 6}}  -- i64[2,3] cpu]]
E.rms_norm = [[
print(T.rms_norm(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, { normalized_shape = { 3 } }))
--> {{0.2928, 1.4639, 0.8783},
-->  {0.9258, 0.4629, 1.3887}}  -- f32[2,3] cpu]]
E.roll = [[print(T.roll(T.arange(4), 1, 1))  --> {4, 1, 2, 3}  -- i64[4] cpu]]
E.round = [[print(T.round(T.tensor { -1, 0.5, 2 }))  --> {-1.,  0.,  2.}  -- f32[3] cpu]]
E.rsqrt = [[print(T.rsqrt(T.tensor { 0.5, 1, 2 }))  --> {1.4142, 1.0000, 0.7071}  -- f32[3] cpu]]
E.scatter = [[
local i = T.tensor({ 3, 1 }, { dtype = "i64" })
print(T.scatter(T.zeros(3), 1, i, T.tensor { 5, 6 }))
--> {6., 0., 5.}  -- f32[3] cpu]]
E.scatter_add = [[
local i = T.tensor({ 1, 1 }, { dtype = "i64" })
print(T.scatter_add(T.zeros(3), 1, i, T.tensor { 5, 6 }))
--> {11.,  0.,  0.}  -- f32[3] cpu]]
E.scatter_reduce = [[
local i = T.tensor({ 1, 1 }, { dtype = "i64" })
print(T.scatter_reduce(T.zeros(3), 1, i, T.tensor { 5, 6 }, "amax"))
--> {6., 0., 0.}  -- f32[3] cpu]]
E.searchsorted = [[print(T.searchsorted(T.tensor { 1, 3, 5 }, T.tensor { 2, 6 }))  --> {2, 4}  -- i64[2] cpu]]
E.select = [[print(T.select(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 1, 2))  --> {4., 2., 6.}  -- f32[3] cpu]]
E.selu = [[print(T.selu(T.tensor { -1, 0.5, 2 }))  --> {-1.1113,  0.5254,  2.1014}  -- f32[3] cpu]]
E.sigmoid = [[print(T.sigmoid(T.tensor { -1, 0.5, 2 }))  --> {0.2689, 0.6225, 0.8808}  -- f32[3] cpu]]
E.sign = [[print(T.sign(T.tensor { -1, 0.5, 2 }))  --> {-1.,  1.,  1.}  -- f32[3] cpu]]
E.signbit = [[print(T.signbit(T.tensor { -1, 0.5, 2 }))  --> { true, false, false}  -- bool[3] cpu]]
E.silu = [[print(T.silu(T.tensor { -1, 0.5, 2 }))  --> {-0.2689,  0.3112,  1.7616}  -- f32[3] cpu]]
E.sin = [[print(T.sin(T.tensor { -1, 0.5, 2 }))  --> {-0.8415,  0.4794,  0.9093}  -- f32[3] cpu]]
E.sinc = [[print(T.sinc(T.tensor { -1, 0.5, 2 }))  --> { 3.8982e-17,  6.3662e-01, -3.8982e-17}  -- f32[3] cpu]]
E.sinh = [[print(T.sinh(T.tensor { -1, 0.5, 2 }))  --> {-1.1752,  0.5211,  3.6269}  -- f32[3] cpu]]
E.slice = [[print(T.slice(T.arange(9), 1, 1, 3, 4))  --> {1, 5, 9}  -- i64[3] cpu]]
E.smooth_l1_loss = [[print(T.smooth_l1_loss(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> 1.  -- f32[] cpu]]
E.softmax = [[print(T.softmax(T.tensor { 1, 2, 3 }, -1))  --> {0.0900, 0.2447, 0.6652}  -- f32[3] cpu]]
E.softplus = [[print(T.softplus(T.tensor { -1, 0.5, 2 }))  --> {0.3133, 0.9741, 2.1269}  -- f32[3] cpu]]
E.softshrink = [[print(T.softshrink(T.tensor { -1, 0.5, 2 }))  --> {-0.5000,  0.0000,  1.5000}  -- f32[3] cpu]]
E.softsign = [[print(T.softsign(T.tensor { -1, 0.5, 2 }))  --> {-0.5000,  0.3333,  0.6667}  -- f32[3] cpu]]
E.sort = [[print(T.sort(T.tensor { 3, 9, 5 }))  --> {3., 5., 9.}  -- f32[3] cpu	{1, 3, 2}  -- i64[3] cpu]]
E.sqrt = [[print(T.sqrt(T.tensor { 0.5, 1, 2 }))  --> {0.7071, 1.0000, 1.4142}  -- f32[3] cpu]]
E.square = [[print(T.square(T.tensor { -1, 0.5, 2 }))  --> {1.0000, 0.2500, 4.0000}  -- f32[3] cpu]]
E.squeeze = [=[
print(T.squeeze(T.zeros(1, 3, 1)):describe())  --> f32[3]]=]
E.stack = [[
print(T.stack({ T.ones(2), T.zeros(2) }))
--> {{1., 1.},
-->  {0., 0.}}  -- f32[2,2] cpu]]
E.std = [[print(T.std(T.tensor { 1, 2, 3, 4 }))  --> 1.2910  -- f32[] cpu]]
E.sub = [[print(T.sub(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {-2.,  0.,  2.}  -- f32[3] cpu]]
E.sum = [[print(T.sum(T.arange(3)))  --> 6  -- i64[] cpu]]
E.sum_to = [[print(T.sum_to(T.ones(2, 3), { 1, 3 }))  --> {{2., 2., 2.}}  -- f32[1,3] cpu]]
E.t = [[
print(T.t(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }))
--> {{1., 4.},
-->  {5., 2.},
-->  {3., 6.}}  -- f32[3,2] cpu]]
E.take = [[
print(T.take(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, T.tensor({ 1, 6 }, { dtype = "i64" })))
--> {1., 6.}  -- f32[2] cpu]]
E.take_along_dim = [[
local x = T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
print(T.take_along_dim(x, x:argsort(2), 2))
--> {{1., 3., 5.},
-->  {2., 4., 6.}}  -- f32[2,3] cpu]]
E.tan = [[print(T.tan(T.tensor { -1, 0.5, 2 }))  --> {-1.5574,  0.5463, -2.1850}  -- f32[3] cpu]]
E.tanh = [[print(T.tanh(T.tensor { -1, 0.5, 2 }))  --> {-0.7616,  0.4621,  0.9640}  -- f32[3] cpu]]
E.tanhshrink = [[print(T.tanhshrink(T.tensor { -1, 0.5, 2 }))  --> {-0.2384,  0.0379,  1.0360}  -- f32[3] cpu]]
E.threshold = [[print(T.threshold(T.tensor { -1, 0.5, 2 }, 1, 0))  --> {0., 0., 2.}  -- f32[3] cpu]]
E.tile = [[print(T.tile(T.arange(2), 2))  --> {1, 2, 1, 2}  -- i64[4] cpu]]
E.topk = [[print(T.topk(T.tensor { 3, 9, 5 }, 2))  --> {9., 5.}  -- f32[2] cpu	{2, 3}  -- i64[2] cpu]]
E.trace = [[print(T.trace(T.eye(3)))  --> 3.  -- f32[] cpu]]
E.transpose = [[
print(T.transpose(T.tensor { { 1, 5, 3 }, { 4, 2, 6 } }, 1, 2))
--> {{1., 4.},
-->  {5., 2.},
-->  {3., 6.}}  -- f32[3,2] cpu]]
E.tril = [[
print(T.tril(T.ones(2, 2)))
--> {{1., 0.},
-->  {1., 1.}}  -- f32[2,2] cpu]]
E.triu = [[
print(T.triu(T.ones(2, 2)))
--> {{1., 1.},
-->  {0., 1.}}  -- f32[2,2] cpu]]
E.trunc = [[print(T.trunc(T.tensor { -1, 0.5, 2 }))  --> {-1.,  0.,  2.}  -- f32[3] cpu]]
E.trunc_divide = [[print(T.trunc_divide(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {0., 1., 3.}  -- f32[3] cpu]]
E.unflatten = [[
print(T.unflatten(T.arange(6), 1, { 2, 3 }))
--> {{1, 2, 3},
-->  {4, 5, 6}}  -- i64[2,3] cpu]]
E.unfold = [[
print(T.unfold(T.arange(5), 1, 3, 2))
--> {{1, 2, 3},
-->  {3, 4, 5}}  -- i64[2,3] cpu]]
E.uniform = [[print(T.uniform(2, 3, { 100 }):ge(2):all())  --> true  -- bool[] cpu]]
E.unique = [[print(T.unique(T.tensor { 3, 1, 3 }))  --> {1., 3.}  -- f32[2] cpu]]
E.unsqueeze = [[print(T.unsqueeze(T.arange(2), 1))  --> {{1, 2}}  -- i64[1,2] cpu]]
E.var = [[print(T.var(T.tensor { 1, 2, 3, 4 }))  --> 1.6667  -- f32[] cpu]]
E.view = [[
print(T.view(T.arange(4), 2, 2))
--> {{1, 2},
-->  {3, 4}}  -- i64[2,2] cpu]]
E.where = [[
local x = T.tensor { -1, 2 }
print(T.where(x:gt(0), x, 10))
--> {10.,  2.}  -- f32[2] cpu]]
E.xlogy = [[print(T.xlogy(T.tensor { 1, 2, 3 }, T.tensor { 3, 2, 1 }))  --> {1.0986, 1.3863, 0.0000}  -- f32[3] cpu]]
E.zeros = [[
print(T.zeros(2, 3))
--> {{0., 0., 0.},
-->  {0., 0., 0.}}  -- f32[2,3] cpu]]

return E
