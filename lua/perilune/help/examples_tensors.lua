-- SPDX-License-Identifier: MIT
-- Examples of ops, continued from examples.lua: shapes, indexing, new tensors, steps, factorizations.
local E = {}

E.view = [[
print(T.arange(4):view(2, 2))
--> {{1, 2},
-->  {3, 4}}  -- i64[2,2] cpu]]
E.reshape = [[
print(T.arange(6):reshape(2, -1))
--> {{1, 2, 3},
-->  {4, 5, 6}}  -- i64[2,3] cpu]]
E.flatten = [[print(T.ones(2, 3, 4):flatten(2):size(2))  --> 12]]
E.unflatten = [[
print(T.arange(6):unflatten(1, { 2, 3 }))
--> {{1, 2, 3},
-->  {4, 5, 6}}  -- i64[2,3] cpu]]
E.transpose = [[
print(T.tensor { { 1, 2 }, { 3, 4 } }:transpose(1, 2))
--> {{1., 3.},
-->  {2., 4.}}  -- f32[2,2] cpu]]
E.t = [[
print(T.tensor { { 1, 2, 3 } }:t())
--> {{1.},
-->  {2.},
-->  {3.}}  -- f32[3,1] cpu]]
E.permute = [[print(table.concat(T.ones(2, 3, 4):permute(3, 1, 2):shape(), " "))  --> 4 2 3]]
E.movedim = [[print(table.concat(T.ones(2, 3, 4):movedim(1, 3):shape(), " "))  --> 3 4 2]]
E.squeeze = [[print(T.ones(1, 2, 1):squeeze())  --> {1., 1.}  -- f32[2] cpu]]
E.unsqueeze = [[print(T.tensor { 1, 2 }:unsqueeze(1))  --> {{1., 2.}}  -- f32[1,2] cpu]]
E.expand = [[
print(T.tensor { { 1 }, { 2 } }:expand(2, 3))
--> {{1., 1., 1.},
-->  {2., 2., 2.}}  -- f32[2,3] cpu]]
E.expand_as = [[
print(T.tensor { 1, 2 }:expand_as(T.ones(2, 2)))
--> {{1., 2.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E.broadcast_to = [[
print(T.tensor { 1, 2 }:broadcast_to(2, 2))
--> {{1., 2.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E.contiguous = [[
print(T.ones(2, 3):t():contiguous():is_contiguous())  --> true
local x = T.zeros(2, 3, 4, 5):contiguous("channels_last")
print(x:is_contiguous("channels_last"), x:stride(2))  --> true	1]]
E.clone = [[
local x = T.ones(2)
local y = x:clone()
y:zero_()
print(x, y)  --> {1., 1.}  -- f32[2] cpu	{0., 0.}  -- f32[2] cpu]]
E.narrow = [[print(T.arange(5):narrow(1, 2, 3))  --> {2, 3, 4}  -- i64[3] cpu]]
E.select = [[print(T.tensor { { 1, 2 }, { 3, 4 } }:select(1, 2))  --> {3., 4.}  -- f32[2] cpu]]
E.slice = [[print(T.arange(6):slice(1, 2, 2, 3))  --> {2, 5}  -- i64[2] cpu]]
E.unfold = [[
print(T.arange(4):unfold(1, 2, 1))
--> {{1, 2},
-->  {2, 3},
-->  {3, 4}}  -- i64[3,2] cpu]]
E.diagonal = [[print(T.tensor { { 1, 2 }, { 3, 4 } }:diagonal())  --> {1., 4.}  -- f32[2] cpu]]
E.as_strided = [[
print(T.arange(4):as_strided({ 2, 2 }, { 1, 2 }))
--> {{1, 3},
-->  {2, 4}}  -- i64[2,2] cpu]]
E.tril = [[
print(T.ones(2, 2):tril())
--> {{1., 0.},
-->  {1., 1.}}  -- f32[2,2] cpu]]
E.triu = [[
print(T.ones(2, 2):triu())
--> {{1., 1.},
-->  {0., 1.}}  -- f32[2,2] cpu]]
E.diag = [[
print(T.diag(T.tensor { 1, 2 }))
--> {{1., 0.},
-->  {0., 2.}}  -- f32[2,2] cpu]]
E.diag_embed = [[
print(T.tensor { 1, 2 }:diag_embed())
--> {{1., 0.},
-->  {0., 2.}}  -- f32[2,2] cpu]]
E.trace = [[print(T.tensor { { 1, 2 }, { 3, 4 } }:trace())  --> 5.  -- f32[] cpu]]
E.flip = [[print(T.tensor { 1, 2, 3 }:flip(1))  --> {3., 2., 1.}  -- f32[3] cpu]]
E.roll = [[print(T.tensor { 1, 2, 3 }:roll(1))  --> {3., 1., 2.}  -- f32[3] cpu]]
E.cat = [[
print(T.cat({ T.ones(1, 2), T.zeros(1, 2) }, 1))
--> {{1., 1.},
-->  {0., 0.}}  -- f32[2,2] cpu]]
E.stack = [[
print(T.stack({ T.tensor { 1, 2 }, T.tensor { 3, 4 } }, 2))
--> {{1., 3.},
-->  {2., 4.}}  -- f32[2,2] cpu]]
E.tile = [[print(T.tensor { 1, 2 }:tile(2))  --> {1., 2., 1., 2.}  -- f32[4] cpu]]
E.repeat_interleave = [[print(T.tensor { 1, 2 }:repeat_interleave(2))  --> {1., 1., 2., 2.}  -- f32[4] cpu]]
E.repeat_each = [[
print(T.repeat_each(T.tensor { 1, 2 }, T.tensor({ 2, 1 }, { dtype = "i64" }), { dim = 1 }))
--> {1., 1., 2.}  -- f32[3] cpu]]
E.pad = [[
print(T.tensor { 1, 2 }:pad({ 1, 2 }))  --> {0., 1., 2., 0., 0.}  -- f32[5] cpu
print(T.tensor { 1, 2, 3 }:pad({ 1, 1 }, { mode = "circular" }))  --> {3., 1., 2., 3., 1.}  -- f32[5] cpu]]
E.gather = [[
print(T.tensor { { 1, 2 }, { 3, 4 } }:gather(2, T.tensor({ { 2 }, { 1 } }, { dtype = "i64" })))
--> {{2.},
-->  {3.}}  -- f32[2,1] cpu]]
E.take_along_dim = [[
local x = T.tensor { { 3, 1 }, { 2, 4 } }
print(x:take_along_dim(x:argsort(2), 2))
--> {{1., 3.},
-->  {2., 4.}}  -- f32[2,2] cpu]]
E.index_select = [[
print(T.tensor { 10, 20, 30 }:index_select(1, T.tensor({ 3, 1 }, { dtype = "i64" })))  --> {30., 10.}  -- f32[2] cpu]]
E.take = [[
print(T.tensor { { 1, 2 }, { 3, 4 } }:take(T.tensor({ 1, 4 }, { dtype = "i64" })))  --> {1., 4.}  -- f32[2] cpu]]
E.embedding = [[
local table_of_vectors = T.tensor { { 1, 1 }, { 2, 2 } }
print(T.embedding(table_of_vectors, T.tensor({ 2, 1 }, { dtype = "i64" })))
--> {{2., 2.},
-->  {1., 1.}}  -- f32[2,2] cpu]]
E.one_hot = [[
print(T.one_hot(T.tensor({ 1, 3 }, { dtype = "i64" })))
--> {{1, 0, 0},
-->  {0, 0, 1}}  -- i64[2,3] cpu]]
E.index = [[
print(T.tensor { { 1, 2 }, { 3, 4 } }[T.tensor({ 2, 1 }, { dtype = "i64" })])
--> {{3., 4.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E.index_put = [[
local x = T.zeros(3)
print(T.index_put({ x, T.tensor { 5, 6 }, T.tensor({ 1, 3 }, { dtype = "i64" }) }))  --> {5., 0., 6.}  -- f32[3] cpu
x[T.tensor({ 2 }, { dtype = "i64" })] = 7 -- the usual way
print(x)  --> {0., 7., 0.}  -- f32[3] cpu]]
E.masked_fill = [[
local x = T.tensor { 1, -2, 3 }
print(x:masked_fill(x:lt(0), 0))  --> {1., 0., 3.}  -- f32[3] cpu]]
E.masked_select = [[
local x = T.tensor { 1, -2, 3 }
print(x:masked_select(x:gt(0)))  --> {1., 3.}  -- f32[2] cpu]]
E.masked_scatter = [[
print(T.zeros(3):masked_scatter(T.tensor({ true, false, true }), T.tensor { 5, 6 }))  --> {5., 0., 6.}  -- f32[3] cpu]]
E.nonzero = [[
print(T.tensor { 0, 5, 0, 7 }:nonzero())
--> {{2},
-->  {4}}  -- i64[2,1] cpu]]
E.scatter = [[
print(T.zeros(3):scatter(1, T.tensor({ 3, 1 }, { dtype = "i64" }), T.tensor { 5, 6 }))
--> {6., 0., 5.}  -- f32[3] cpu]]
E.scatter_add = [[
print(T.zeros(2):scatter_add(1, T.tensor({ 1, 1, 2 }, { dtype = "i64" }), T.ones(3)))  --> {2., 1.}  -- f32[2] cpu]]
E.scatter_reduce = [[
local index = T.tensor({ 1, 1, 2 }, { dtype = "i64" })
print(T.zeros(2):scatter_reduce(1, index, T.tensor { 3, 5, 4 }, "amax"))  --> {5., 4.}  -- f32[2] cpu]]
E.index_add = [[
print(T.zeros(2):index_add(1, T.tensor({ 1, 1 }, { dtype = "i64" }), T.tensor { 3, 4 }))  --> {7., 0.}  -- f32[2] cpu]]
E.index_copy = [[
print(T.zeros(3):index_copy(1, T.tensor({ 3, 1 }, { dtype = "i64" }), T.tensor { 5, 6 }))
--> {6., 0., 5.}  -- f32[3] cpu]]
E.index_fill = [[
print(T.zeros(3):index_fill(1, T.tensor({ 2 }, { dtype = "i64" }), 9))  --> {0., 9., 0.}  -- f32[3] cpu]]
E.searchsorted = [[
print(T.searchsorted(T.tensor { 1, 3, 5 }, T.tensor { 0, 3, 9 }))  --> {1, 2, 4}  -- i64[3] cpu]]
E.bucketize = [[print(T.bucketize(T.tensor { 0, 2, 9 }, T.tensor { 1, 5 }))  --> {1, 2, 3}  -- i64[3] cpu]]
E.bincount = [[print(T.bincount(T.tensor({ 1, 3, 3 }, { dtype = "i64" })))  --> {1, 0, 2}  -- i64[3] cpu]]
E.isin = [[
print(T.isin(T.arange(3), T.tensor({ 1, 3 }, { dtype = "i64" })))  --> { true, false,  true}  -- bool[3] cpu]]
E.unique = [[
print(T.unique(T.tensor { 3, 1, 3 }, { return_counts = true }))  --> {1., 3.}  -- f32[2] cpu	{1, 2}  -- i64[2] cpu]]
E.zeros = [[
print(T.zeros(2, 2))
--> {{0., 0.},
-->  {0., 0.}}  -- f32[2,2] cpu]]
E.ones = [[print(T.ones({ 2 }, { dtype = "i64" }))  --> {1, 1}  -- i64[2] cpu]]
E.full = [[print(T.full({ 2 }, 7))  --> {7, 7}  -- i64[2] cpu]]
E.eye = [[
print(T.eye(2))
--> {{1., 0.},
-->  {0., 1.}}  -- f32[2,2] cpu]]
E.linear_fill = [[print(T.linear_fill(3, 1, 0.5))  --> {1.0000, 1.5000, 2.0000}  -- f32[3] cpu]]
E.linspace = [[print(T.linspace(0, 1, 5))  --> {0.0000, 0.2500, 0.5000, 0.7500, 1.0000}  -- f32[5] cpu]]
E.logspace = [[print(T.logspace(0, 2, 3))  --> {  1.,  10., 100.}  -- f32[3] cpu]]
E.fill = [[
local x = T.zeros(2)
x:fill_(7)
print(x)  --> {7., 7.}  -- f32[2] cpu]]
E.zero = [[
local x = T.ones(2)
x:zero_()
print(x)  --> {0., 0.}  -- f32[2] cpu]]
E.copy = [[
local x = T.zeros(2)
x:copy_(T.tensor { 1, 2 })
print(x)  --> {1., 2.}  -- f32[2] cpu]]
E.uniform = [[
local x = T.uniform(2, 3, { 100 })
print(x:ge(2):all():item(), x:lt(3):all():item())  --> true	true]]
E.normal = [[
T.manual_seed(1)
print(math.abs(T.normal(5, 0.1, { 1000 }):mean():item() - 5) < 0.05)  --> true]]
E.randint = [[
local x = T.randint(1, 6, { 100 })
print(x:min():item() >= 1, x:max():item() <= 6, x:dtype())  --> true	true	i64]]
E.randperm = [[print((T.randperm(4):sort()))  --> {1, 2, 3, 4}  -- i64[4] cpu]]
E.bernoulli = [[print(T.bernoulli(T.tensor { 0, 1 }))  --> {0., 1.}  -- f32[2] cpu]]
E.multinomial = [[print(T.multinomial(T.tensor { 0, 1, 0 }, 1))  --> {2}  -- i64[1] cpu]]
E.dropout = [[print(T.dropout(T.ones(2), 0))  --> {1., 1.}  -- f32[2] cpu]]
E.uniform_fill = [[
local x = T.zeros(2)
x:uniform_(3, 3)
print(x)  --> {3., 3.}  -- f32[2] cpu
T.uniform_fill_(x, 4, 4)
print(x)  --> {4., 4.}  -- f32[2] cpu]]
E.normal_fill = [[
local x = T.zeros(2)
x:normal_(3, 0)
print(x)  --> {3., 3.}  -- f32[2] cpu
T.normal_fill_(x, 4, 0)
print(x)  --> {4., 4.}  -- f32[2] cpu]]
E.exponential_fill = [[
local x = T.zeros(2)
T.exponential_fill_(x, 2)
print(x:gt(0):all():item())  --> true]]
E.randint_fill = [[
local x = T.zeros(2)
T.randint_fill_(x, 5, 5)
print(x)  --> {5., 5.}  -- f32[2] cpu]]
E.bernoulli_fill = [[
local x = T.zeros(2)
T.bernoulli_fill_(x, 1)
print(x)  --> {1., 1.}  -- f32[2] cpu]]
E.sgd_step = [[
local p, grad = T.tensor { 1 }, T.tensor { 2 }
T.core.op.sgd_step({ p, grad }, { k = 2, lr = 0.1 }) -- what optim.SGD calls
print(p)  --> {0.8000}  -- f32[1] cpu]]
E.adam_step = [[
local p, grad, m, v = T.tensor { 1 }, T.tensor { 2 }, T.zeros(1), T.zeros(1)
T.core.op.adam_step({ p, grad, m, v }, { k = 4, lr = 0.1, step = 1 }) -- what optim.Adam calls
print(p)  --> {0.9000}  -- f32[1] cpu]]
E.rmsprop_step = [[
local p, grad, v = T.tensor { 1 }, T.tensor { 2 }, T.zeros(1)
T.core.op.rmsprop_step({ p, grad, v }, { k = 3, lr = 0.1 }) -- what optim.RMSprop calls
print(p)  --> {5.9605e-08}  -- f32[1] cpu]]
E.foreach_norm = [[print(T.foreach_norm { T.tensor { 3 }, T.tensor { 4 } })  --> 5.  -- f32[] cpu]]
E.foreach_scale_ = [[
local a, b = T.ones(1), T.ones(2)
T.core.op.foreach_scale_ { a, b, T.tensor(0.5) } -- the last one is the factor
print(a, b)  --> {0.5000}  -- f32[1] cpu	{0.5000, 0.5000}  -- f32[2] cpu]]
E.foreach_zero_ = [[
local a = T.ones(2)
T.core.op.foreach_zero_ { a }
print(a)  --> {0., 0.}  -- f32[2] cpu]]
E["linalg.inv"] = [[
print(T.linalg.inv(T.tensor { { 2, 0 }, { 0, 4 } }))
--> {{0.5000, 0.0000},
-->  {0.0000, 0.2500}}  -- f32[2,2] cpu]]
E["linalg.solve"] = [[
print(T.linalg.solve(T.tensor { { 2, 0 }, { 0, 4 } }, T.tensor { 2, 8 }))  --> {1., 2.}  -- f32[2] cpu]]
E["linalg.solve_triangular"] = [[
print(T.linalg.solve_triangular(T.tensor { { 1, 0 }, { 1, 1 } }, T.tensor { { 1 }, { 3 } }, { upper = false }))
--> {{1.},
-->  {2.}}  -- f32[2,1] cpu]]
E["linalg.det"] = [[print(T.linalg.det(T.tensor { { 1, 2 }, { 3, 4 } }))  --> -2.  -- f32[] cpu]]
E["linalg.slogdet"] = [[
print(T.linalg.slogdet(T.tensor { { 0, 1 }, { 1, 0 } }))  --> -1.  -- f32[] cpu	0.  -- f32[] cpu]]
E["linalg.cholesky"] = [[
print(T.linalg.cholesky(T.tensor { { 4, 2 }, { 2, 5 } }))
--> {{2., 0.},
-->  {1., 2.}}  -- f32[2,2] cpu]]
E["linalg.qr"] = [[
local Q, R = T.linalg.qr(T.tensor { { 3, 1 }, { 4, 2 } })
print(T.allclose(Q:matmul(R), T.tensor { { 3, 1 }, { 4, 2 } }, { atol = 1e-5 }))  --> true]]
E["linalg.svd"] = [[
local U, S, Vh = T.linalg.svd(T.tensor { { 0, 2 }, { 1, 0 } })
print(S, (U * S):matmul(Vh):round())
--> {2., 1.}  -- f32[2] cpu	{{0., 2.},
-->  {1., 0.}}  -- f32[2,2] cpu]]
E["linalg.svdvals"] = [[print(T.linalg.svdvals(T.tensor { { 0, 2 }, { 1, 0 } }))  --> {2., 1.}  -- f32[2] cpu]]
E["linalg.eigh"] = [[
local w, V = T.linalg.eigh(T.tensor { { 2, 0 }, { 0, 1 } })
print(w, V:abs())
--> {1., 2.}  -- f32[2] cpu	{{0., 1.},
-->  {1., 0.}}  -- f32[2,2] cpu]]
E["linalg.eigvalsh"] = [[print(T.linalg.eigvalsh(T.tensor { { 2, 1 }, { 1, 2 } }))  --> {1., 3.}  -- f32[2] cpu]]
E["linalg.pinv"] = [[print(T.linalg.pinv(T.tensor { { 2 }, { 0 } }))  --> {{0.5000, 0.0000}}  -- f32[1,2] cpu]]
E["linalg.lu_factor"] = [[
local LU, pivots = T.linalg.lu_factor(T.tensor { { 1, 2 }, { 4, 4 } })
print(LU, pivots)
--> {{4.0000, 4.0000},
-->  {0.2500, 1.0000}}  -- f32[2,2] cpu	{2, 2}  -- i64[2] cpu]]
E["linalg.eig"] = [[
local re, im = T.linalg.eig(T.tensor { { 0, -1 }, { 1, 0 } })
print(re, im)  --> {0., 0.}  -- f32[2] cpu	{ 1., -1.}  -- f32[2] cpu]]
E.matrix_exp = [[
print(T.matrix_exp(T.zeros(2, 2)))
--> {{1., 0.},
-->  {0., 1.}}  -- f32[2,2] cpu]]

return E
