-- SPDX-License-Identifier: MIT
-- Examples of ops, continued from examples.lua: normalization, losses, products, convolutions.
local E = {}

E.softmax = [[print(T.tensor { 1, 2, 3 }:softmax())  --> {0.0900, 0.2447, 0.6652}  -- f32[3] cpu]]
E.log_softmax = [[print(T.tensor { 1, 2, 3 }:log_softmax())  --> {-2.4076, -1.4076, -0.4076}  -- f32[3] cpu]]
E.layer_norm = [[
print((T.layer_norm(T.tensor { { 1, 2, 3 } }, { normalized_shape = { 3 } })))
--> {{-1.2247,  0.0000,  1.2247}}  -- f32[1,3] cpu]]
E.rms_norm = [[
print((T.rms_norm(T.tensor { { 3, 4 } }, { normalized_shape = { 2 } })))  --> {{0.8485, 1.1314}}  -- f32[1,2] cpu]]
E.group_norm = [[
print((T.group_norm(T.arange(4):float():view(1, 4), nil, nil, { num_groups = 2 })))
--> {{-1.0000,  1.0000, -1.0000,  1.0000}}  -- f32[1,4] cpu]]
E.batch_norm = [[
print((T.batch_norm(T.tensor { { 1 }, { 3 } }, nil, nil, nil, nil, { training = true })))
--> {{-1.0000},
-->  { 1.0000}}  -- f32[2,1] cpu]]
E.running_update = [[
local mean = T.zeros(1)
T.running_update_(mean, T.ones(1), { momentum = 0.1 })
print(mean)  --> {0.1000}  -- f32[1] cpu]]
E.cross_entropy = [[
local target = T.tensor({ 1 }, { dtype = "i64" })
print(T.cross_entropy(T.tensor { { 2, 0 } }, target))  --> 0.1269  -- f32[] cpu]]
E.cross_entropy_prob = [[
print(T.cross_entropy_prob(T.tensor { { 1, 2 } }, T.tensor { { 0.5, 0.5 } }))  --> 0.8133  -- f32[] cpu]]
E.nll_loss = [[
local target = T.tensor({ 2 }, { dtype = "i64" })
print(T.nll_loss(T.tensor { { 1, 2 } }:log_softmax(), target))  --> 0.3133  -- f32[] cpu]]
E.mse_loss = [[print(T.mse_loss(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 2.  -- f32[] cpu]]
E.l1_loss = [[print(T.l1_loss(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 1.  -- f32[] cpu]]
E.smooth_l1_loss = [[
print(T.smooth_l1_loss(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }, { reduction = "none" }))
--> {0.1250, 2.5000}  -- f32[2] cpu]]
E.huber_loss = [[
print(T.huber_loss(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }, { reduction = "none" }))
--> {0.1250, 2.5000}  -- f32[2] cpu]]
E.binary_cross_entropy = [[
print(T.binary_cross_entropy(T.tensor { 0.5, 0.9 }, T.tensor { 1, 1 }))  --> 0.3993  -- f32[] cpu]]
E.binary_cross_entropy_with_logits = [[
print(T.binary_cross_entropy_with_logits(T.tensor { 0, 2 }, T.tensor { 1, 1 }))  --> 0.4100  -- f32[] cpu]]
E.kl_div = [[
local p = T.tensor { 0.5, 0.5 }
print(T.kl_div(p:log(), T.tensor { 0.9, 0.1 }, { reduction = "sum" }))  --> 0.3681  -- f32[] cpu]]
E.lstm_gates = [[
local h, c = T.lstm_gates(T.zeros(1, 4), T.ones(1, 1))
print(h, c)  --> {{0.2311}}  -- f32[1,1] cpu	{{0.5000}}  -- f32[1,1] cpu]]
E.lstm_seq = [[
local hs, cs = T.lstm_seq(T.zeros(2, 1, 4), T.zeros(1, 1), T.ones(1, 1), T.zeros(4, 1))
print(hs:flatten(), cs:flatten())
--> {0.0000, 0.2311, 0.1225}  -- f32[3] cpu	{1.0000, 0.5000, 0.2500}  -- f32[3] cpu]]
E.lstm_layer = [[
local hs = T.lstm_layer(T.ones(2, 1, 1), T.zeros(1, 1), T.ones(1, 1), T.zeros(4, 1), T.zeros(4, 1), T.zeros(4))
print(hs:flatten())  --> {0.0000, 0.2311, 0.1225}  -- f32[3] cpu]]
E.gru_seq = [[
local hs = T.gru_seq(T.zeros(2, 1, 3), T.ones(1, 1), T.zeros(3, 1), T.zeros(1))
print(hs:flatten())  --> {1.0000, 0.5000, 0.2500}  -- f32[3] cpu]]
E.rnn_seq = [[
local hs = T.rnn_seq(T.ones(2, 1, 1), T.zeros(1, 1), T.ones(1, 1), { relu = true })
print(hs:flatten())  --> {0., 1., 2.}  -- f32[3] cpu]]
E.ctc_nll = [[
local log_probs = T.zeros(2, 1, 2):log_softmax(-1) -- two steps, one sample, blank and one letter
local i64 = { dtype = "i64" }
print((T.ctc_nll(log_probs, T.tensor({ { 2 } }, i64), T.tensor({ 2 }, i64), T.tensor({ 1 }, i64), { blank = 1 })))
--> {0.2877}  -- f32[1] cpu]]
E.attention = [[
local q = T.ones(1, 2, 4)
print((T.attention(q, q, T.tensor { { { 1 }, { 3 } } }:expand(1, 2, 4), { scale = 0.5 })))
--> {{{2., 2., 2., 2.},
-->   {2., 2., 2., 2.}}}  -- f32[1,2,4] cpu]]
E.attention_dropout = [[
local q = T.ones(1, 2, 4)
print((T.attention_dropout(q, q, q, nil, { scale = 0.5, dropout_p = 0.0 })):flatten())
--> {1., 1., 1., 1., 1., 1., 1., 1.}  -- f32[8] cpu]]
E.matmul = [[
local a = T.tensor { { 1, 2 }, { 3, 4 } }
print(a:matmul(a))
--> {{ 7., 10.},
-->  {15., 22.}}  -- f32[2,2] cpu
print(a:matmul(T.tensor { 1, 1 }))  --> {3., 7.}  -- f32[2] cpu]]
E.mm = [[
print(T.eye(2):mm(T.tensor { { 1, 2 }, { 3, 4 } }))
--> {{1., 2.},
-->  {3., 4.}}  -- f32[2,2] cpu]]
E.bmm = [[print(T.bmm(T.ones(2, 1, 3), T.ones(2, 3, 1)):flatten())  --> {3., 3.}  -- f32[2] cpu]]
E.mv = [[print(T.tensor { { 1, 2 }, { 3, 4 } }:mv(T.tensor { 1, 1 }))  --> {3., 7.}  -- f32[2] cpu]]
E.dot = [[print(T.dot(T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> 11.  -- f32[] cpu]]
E.outer = [[
print(T.outer(T.tensor { 1, 2 }, T.tensor { 3, 4 }))
--> {{3., 4.},
-->  {6., 8.}}  -- f32[2,2] cpu]]
E.linear = [[
print(T.linear(T.tensor { 1, 2 }, T.tensor { { 1, 0 }, { 1, 1 } }, T.tensor { 10, 20 }))
--> {11., 23.}  -- f32[2] cpu]]
E.addmm = [[
print(T.addmm(T.zeros(2, 2), T.eye(2), T.eye(2), { alpha = 3 }))
--> {{3., 0.},
-->  {0., 3.}}  -- f32[2,2] cpu]]
E.addmv = [[print(T.addmv(T.tensor { 1, 1 }, T.eye(2), T.tensor { 2, 3 }))  --> {3., 4.}  -- f32[2] cpu]]
E.addr = [[
print(T.addr(T.zeros(2, 2), T.tensor { 1, 2 }, T.tensor { 3, 4 }))
--> {{3., 4.},
-->  {6., 8.}}  -- f32[2,2] cpu]]
E.addbmm = [[print(T.addbmm(T.zeros(1, 1), T.ones(2, 1, 3), T.ones(2, 3, 1)))  --> {{6.}}  -- f32[1,1] cpu]]
E.baddbmm = [[
print(T.baddbmm(T.ones(1, 1, 1), T.ones(1, 1, 3), T.ones(1, 3, 1)))  --> {{{4.}}}  -- f32[1,1,1] cpu]]
E.inner = [[print(T.inner(T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> 11.  -- f32[] cpu]]
E.kron = [[
print(T.kron(T.eye(2), T.tensor { { 1, 2 } }))
--> {{1., 2., 0., 0.},
-->  {0., 0., 1., 2.}}  -- f32[2,4] cpu]]
E.bilinear = [[
print(T.bilinear(T.tensor { { 1, 2 } }, T.tensor { { 3 } }, T.ones(1, 2, 1)))  --> {{9.}}  -- f32[1,1] cpu]]
E.conv1d = [[
print(T.conv1d(T.tensor { { { 1, 2, 3, 4 } } }, T.tensor { { { 1, 1 } } }))  --> {{{3., 5., 7.}}}  -- f32[1,1,3] cpu]]
E.conv2d = [[
local image = T.ones(1, 1, 3, 3)
print(T.conv2d(image, T.ones(1, 1, 2, 2)))
--> {{{{4., 4.},
-->    {4., 4.}}}}  -- f32[1,1,2,2] cpu
print(T.conv2d(image, T.ones(1, 1, 3, 3), { padding = 1 }):shape()[4])  --> 3]]
E.conv3d = [[
print(T.conv3d(T.ones(1, 1, 2, 2, 2), T.ones(1, 1, 2, 2, 2)))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]]
E.conv_transpose1d = [[
print(T.conv_transpose1d(T.tensor { { { 1, 2 } } }, T.tensor { { { 1, 10 } } }, { stride = 2 }))
--> {{{ 1., 10.,  2., 20.}}}  -- f32[1,1,4] cpu]]
E.conv_transpose2d = [[
print(T.conv_transpose2d(T.ones(1, 1, 2, 2), T.ones(1, 1, 2, 2)))
--> {{{{1., 2., 1.},
-->    {2., 4., 2.},
-->    {1., 2., 1.}}}}  -- f32[1,1,3,3] cpu]]
E.conv_transpose3d = [[
print(T.conv_transpose3d(T.ones(1, 1, 1, 1, 1), T.ones(1, 1, 1, 2, 2)))
--> {{{{{1., 1.},
-->     {1., 1.}}}}}  -- f32[1,1,1,2,2] cpu]]
E.max_pool1d = [[print((T.max_pool1d(T.tensor { { 1, 3, 2, 4 } }, 2)))  --> {{3., 4.}}  -- f32[1,2] cpu]]
E.max_pool2d = [[
local x = T.arange(16):float():view(1, 1, 4, 4)
print((T.max_pool2d(x, 2)))
--> {{{{ 6.,  8.},
-->    {14., 16.}}}}  -- f32[1,1,2,2] cpu]]
E.max_pool3d = [[
print((T.max_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2)))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]]
E.avg_pool1d = [[print(T.avg_pool1d(T.tensor { { 1, 3, 2, 4 } }, 2))  --> {{2., 3.}}  -- f32[1,2] cpu]]
E.avg_pool2d = [[
local x = T.arange(16):float():view(1, 1, 4, 4)
print(T.avg_pool2d(x, 2))
--> {{{{ 3.5000,  5.5000},
-->    {11.5000, 13.5000}}}}  -- f32[1,1,2,2] cpu]]
E.avg_pool3d = [[
print(T.avg_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2))  --> {{{{{4.5000}}}}}  -- f32[1,1,1,1,1] cpu]]
E.adaptive_max_pool1d = [[
print((T.adaptive_max_pool1d(T.tensor { { 1, 3, 2, 4, 0 } }, 2)))  --> {{3., 4.}}  -- f32[1,2] cpu]]
E.adaptive_max_pool2d = [[
print((T.adaptive_max_pool2d(T.arange(9):float():view(1, 3, 3), 1)))  --> {{{9.}}}  -- f32[1,1,1] cpu]]
E.adaptive_max_pool3d = [[
print((T.adaptive_max_pool3d(T.arange(8):float():view(1, 2, 2, 2), 1)))  --> {{{{8.}}}}  -- f32[1,1,1,1] cpu]]
E.adaptive_avg_pool1d = [[
print(T.adaptive_avg_pool1d(T.tensor { { 1, 3, 2, 4 } }, 2))  --> {{2., 3.}}  -- f32[1,2] cpu]]
E.adaptive_avg_pool2d = [[
print(T.adaptive_avg_pool2d(T.arange(9):float():view(1, 3, 3), 1))  --> {{{5.}}}  -- f32[1,1,1] cpu]]
E.adaptive_avg_pool3d = [[
print(T.adaptive_avg_pool3d(T.arange(8):float():view(1, 2, 2, 2), 1))  --> {{{{4.5000}}}}  -- f32[1,1,1,1] cpu]]

return E
