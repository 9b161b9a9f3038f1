-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- nn.F, beyond the ops that it holds: name → {signature, text, example, shapes=}.
local S = {}

S["nn.F.affine_grid"] = { "nn.F.affine_grid(theta, {N, C, H, W}, {align_corners=false}) → [N, H, W, 2]",
  "The grid for grid_sample of affine maps theta [N, 2, 3]; one dimension more in 3-d.", [[
print(nn.F.affine_grid(T.tensor { { { 1, 0, 0 }, { 0, 1, 0 } } }, { 1, 1, 1, 2 }):flatten())
--> {-0.5000,  0.0000,  0.5000,  0.0000}  -- f32[4] cpu]] }

S["nn.F.alpha_dropout"] = { "nn.F.alpha_dropout(x, p=0.5, training=false) → tensor",
  "Dropout that keeps mean and variance of SELU's outputs.", [[
print(nn.F.alpha_dropout(T.ones(2), 0.5, false))  --> {1., 1.}  -- f32[2] cpu]] }

S["nn.F.feature_alpha_dropout"] = { "nn.F.feature_alpha_dropout(x, p=0.5, training=false) → tensor",
  "alpha_dropout of whole channels of [N, C, *].", [[
print(nn.F.feature_alpha_dropout(T.ones(1, 2), 0.5, false))  --> {{1., 1.}}  -- f32[1,2] cpu]] }

S["nn.F.cosine_embedding_loss"] = { "nn.F.cosine_embedding_loss(x1, x2, y, {margin=0, reduction=\"mean\"}) → tensor",
  "1 - cos(x1, x2) where y is 1, max(0, cos - margin) where it is -1.", [[
print(nn.F.cosine_embedding_loss(T.tensor { { 1, 0 } }, T.tensor { { 0, 1 } }, T.tensor { 1 }))
--> 1.  -- f32[] cpu]] }

S["nn.F.cosine_similarity"] = { "nn.F.cosine_similarity(x, y, {dim=2, eps=1e-8}) → tensor",
  "x·y / max(‖x‖ ‖y‖, eps) along dim.", [[
print(nn.F.cosine_similarity(T.tensor { { 1, 0 } }, T.tensor { { 1, 1 } }))  --> {0.7071}  -- f32[1] cpu]] }

S["nn.F.ctc_loss"] = { [[nn.F.ctc_loss(log_probs, targets, input_lengths, target_lengths, {blank=, reduction="mean",
  zero_infinity=false}) → tensor]],
  "-log of the probability of all alignments of targets with log_probs [T, N, C] (Graves et al. 2006).", [[
local i64 = { dtype = "i64" }
local log_probs = T.zeros(2, 1, 2):log_softmax(-1)
print(nn.F.ctc_loss(log_probs, T.tensor({ { 2 } }, i64), T.tensor({ 2 }, i64), T.tensor({ 1 }, i64), { blank = 1 }))
--> 0.2877  -- f32[] cpu]] }

S["nn.F.embedding_bag"] = {
  [=[nn.F.embedding_bag(ids, weight, offsets, {mode="mean", per_sample_weights=, padding_idx=,
  include_last_offset=false, index_base=1}) → [B, D]]=],
  "Sums, means or maxima of rows of weight over bags of ids [B, N], or [n] cut at offsets.", [[
print(nn.F.embedding_bag(T.tensor({ { 1, 2 } }, { dtype = "i64" }), T.tensor { { 1 }, { 3 } }))
--> {{2.}}  -- f32[1,1] cpu]] }

S["nn.F.fold"] = { "nn.F.fold(x, {output_size=, kernel_size=, dilation=1, padding=0, stride=1}) → [N, C, H, W]",
  "Adds sliding blocks [N, C k, L] back into images.", [[
print(nn.F.fold(T.ones(1, 4, 1), { output_size = 2, kernel_size = 2 }))
--> {{{{1., 1.},
-->    {1., 1.}}}}  -- f32[1,1,2,2] cpu]] }

S["nn.F.gaussian_nll_loss"] = {
  "nn.F.gaussian_nll_loss(x, y, var, {full=false, eps=1e-6, reduction=\"mean\"}) → tensor",
  "(log v + (x - y)²/v)/2 with v = max(var, eps).", [[
print(nn.F.gaussian_nll_loss(T.tensor { 0.0 }, T.tensor { 2.0 }, T.tensor { 1.0 }))  --> 2.  -- f32[] cpu]] }

S["nn.F.glu"] = { "nn.F.glu(x, dim=-1) → tensor", "a · sigmoid(b) of the halves a, b of x along dim.", [[
print(nn.F.glu(T.tensor { 2, 0 }))  --> {1.}  -- f32[1] cpu]] }

S["nn.F.grid_sample"] = {
  "nn.F.grid_sample(x, grid, {mode=\"bilinear\", padding_mode=\"zeros\", align_corners=false}) → [N, C, h, w]",
  "x [N, C, H, W] read at places grid [N, h, w, 2] in [-1, 1] (Jaderberg et al. 2015).", [[
print(nn.F.grid_sample(T.ones(1, 1, 2, 2), T.zeros(1, 1, 1, 2)))  --> {{{{1.}}}}  -- f32[1,1,1,1] cpu]] }

S["nn.F.gumbel_softmax"] = { "nn.F.gumbel_softmax(logits, {tau=1, hard=false, dim=-1}) → tensor",
  "A random draw with the probabilities softmax(logits) that has a gradient; hard: one-hot forward.", [[
print(nn.F.gumbel_softmax(T.tensor { 0, 100 }, { hard = true }))  --> {0., 1.}  -- f32[2] cpu]] }

S["nn.F.hinge_embedding_loss"] = { "nn.F.hinge_embedding_loss(x, y, {margin=1, reduction=\"mean\"}) → tensor",
  "x where y is 1, max(0, margin - x) where it is -1.", [[
print(nn.F.hinge_embedding_loss(T.tensor { 0.5 }, T.tensor { -1 }))  --> 0.5000  -- f32[] cpu]] }

S["nn.F.instance_norm"] = {
  [[nn.F.instance_norm(x, {running_mean=, running_var=, weight=, bias=, use_input_stats=true,
  momentum=0.1, eps=1e-5}) → tensor]],
  "Each channel of each sample minus its mean over its deviation.", [[
print(nn.F.instance_norm(T.tensor { { { 1, 3 } } }))  --> {{{-1.0000,  1.0000}}}  -- f32[1,1,2] cpu]] }

S["nn.F.interpolate"] = {
  "nn.F.interpolate(x, {size=, scale_factor=, mode=\"nearest\", align_corners=false, antialias=false}) → tensor",
  [[x [N, C, *] resized; modes nearest, nearest-exact, linear, bilinear, bicubic, trilinear, area. antialias: bilinear
and bicubic look at every pixel when they shrink.]], [[
print(nn.F.interpolate(T.tensor { { { 1, 3 } } }, { size = 3, mode = "linear", align_corners = true }))
--> {{{1., 2., 3.}}}  -- f32[1,1,3] cpu]] }

S["nn.F.upsample"] = { "nn.F.upsample(x, {size=, scale_factor=, mode=\"nearest\"}) → tensor",
  "Another name of nn.F.interpolate.", [[
print(nn.F.upsample(T.tensor { { { 1, 3 } } }, { scale_factor = 2 }))
--> {{{1., 1., 3., 3.}}}  -- f32[1,1,4] cpu]] }

S["nn.F.local_response_norm"] = { "nn.F.local_response_norm(x, size, {alpha=1e-4, beta=0.75, k=1}) → tensor",
  "x / (k + alpha mean of squares over neighbouring channels)^beta.", [[
print(nn.F.local_response_norm(T.ones(1, 1, 1), 1, { alpha = 3, beta = 1 }))
--> {{{0.2500}}}  -- f32[1,1,1] cpu]] }

S["nn.F.margin_ranking_loss"] = { "nn.F.margin_ranking_loss(x1, x2, y, {margin=0, reduction=\"mean\"}) → tensor",
  "max(0, -y (x1 - x2) + margin).", [[
print(nn.F.margin_ranking_loss(T.tensor { 1 }, T.tensor { 3 }, T.tensor { 1 }))  --> 2.  -- f32[] cpu]] }

S["nn.F.multi_margin_loss"] = { "nn.F.multi_margin_loss(x, y, {p=1, margin=1, weight=, reduction=\"mean\"}) → tensor",
  "The mean over other classes of max(0, margin - x[y] + x[i])^p.", [[
print(nn.F.multi_margin_loss(T.tensor { { 1, 0.5 } }, T.tensor({ 1 }, { dtype = "i64" })))
--> 0.2500  -- f32[] cpu]] }

S["nn.F.multilabel_margin_loss"] = { "nn.F.multilabel_margin_loss(x, y, {reduction=\"mean\"}) → tensor",
  "The hinge between each of a sample's classes and each of the others.", [[
print(nn.F.multilabel_margin_loss(T.tensor { { 1, 0.5 } }, T.tensor({ { 1, 0 } }, { dtype = "i64" })))
--> 0.2500  -- f32[] cpu]] }

S["nn.F.multilabel_soft_margin_loss"] = {
  "nn.F.multilabel_soft_margin_loss(x, y, weight, {reduction=\"mean\"}) → tensor",
  "The mean over classes of binary cross-entropy with logits.", [[
print(nn.F.multilabel_soft_margin_loss(T.tensor { { 0, 2 } }, T.tensor { { 1, 1 } }))  --> 0.4100  -- f32[] cpu]] }

S["nn.F.normalize"] = { "nn.F.normalize(x, {p=2, dim=2, eps=1e-12}) → tensor",
  "x / max(‖x‖_p, eps) along dim.", [[
print(nn.F.normalize(T.tensor { { 3, 4 } }))  --> {{0.6000, 0.8000}}  -- f32[1,2] cpu]] }

S["nn.F.poisson_nll_loss"] = {
  "nn.F.poisson_nll_loss(x, y, {log_input=true, full=false, eps=1e-8, reduction=\"mean\"}) → tensor",
  "e^x - y x, or x - y log(x + eps) without log_input.", [[
print(nn.F.poisson_nll_loss(T.tensor { 0 }, T.tensor { 1 }))  --> 1.  -- f32[] cpu]] }

S["nn.F.prelu"] = { "nn.F.prelu(x, weight) → tensor", "x, or weight x below 0; one weight, or one a channel.", [[
print(nn.F.prelu(T.tensor { -2, 3 }, T.tensor { 0.5 }))  --> {-1.,  3.}  -- f32[2] cpu]] }

S["nn.F.rrelu"] = { "nn.F.rrelu(x, lower=1/8, upper=1/3, training=false) → tensor",
  "x, or a x below 0, a uniform in lower … upper in training, else their mean.", [[
print(nn.F.rrelu(T.tensor { -1, 1 }, 0.2, 0.4))  --> {-0.3000,  1.0000}  -- f32[2] cpu]] }

S["nn.F.scaled_dot_product_attention"] = {
  [[nn.F.scaled_dot_product_attention(q, k, v, {attn_mask=, dropout_p=0, is_causal=false,
  scale=}) → tensor]],
  "softmax(q kᵀ scale + mask) v; true in a mask of bools: seen.", [[
local q = T.ones(1, 1, 2, 4)
print(nn.F.scaled_dot_product_attention(q, q, q):sum():item())  --> 8.0]] }

S["nn.F.soft_margin_loss"] = { "nn.F.soft_margin_loss(x, y, {reduction=\"mean\"}) → tensor",
  "log(1 + e^(-y x)), y -1 or 1.", [[
print(nn.F.soft_margin_loss(T.tensor { 1 }, T.tensor { 1 }))  --> 0.3133  -- f32[] cpu]] }

S["nn.F.softmin"] = { "nn.F.softmin(x, dim=-1) → tensor", "softmax of -x.", [[
print(nn.F.softmin(T.tensor { 0, 0 }))  --> {0.5000, 0.5000}  -- f32[2] cpu]] }

S["nn.F.triplet_margin_loss"] = {
  [[nn.F.triplet_margin_loss(anchor, positive, negative, {margin=1, p=2, eps=1e-6, swap=false,
  reduction="mean"}) → tensor]],
  "max(0, d(a, p) - d(a, n) + margin).", [[
print(nn.F.triplet_margin_loss(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))  --> 0.  -- f32[] cpu]] }

S["nn.F.triplet_margin_with_distance_loss"] = {
  [[nn.F.triplet_margin_with_distance_loss(anchor, positive, negative, {distance_function=, margin=1,
  swap=false, reduction="mean"}) → tensor]],
  "triplet_margin_loss with a distance of one's own.", [[
print(nn.F.triplet_margin_with_distance_loss(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))
--> 0.  -- f32[] cpu]] }

S["nn.F.rnn"] = { "nn.F.rnn(x, state, weights, {…}) → y, state",
  "What nn.RNN computes, from its weights in order.", [[
-- nn.RNN calls it
local net = nn.RNN(2, 3)
print(nn.F.rnn ~= nil, net(T.ones(4, 1, 2)):size(3))  --> true	3]] }

S["nn.F.lstm"] = { "nn.F.lstm(x, state, weights, {…}) → y, state",
  "What nn.LSTM computes, from its weights in order.", [[
-- nn.LSTM calls it
local net = nn.LSTM(2, 3)
print(nn.F.lstm ~= nil, net(T.ones(4, 1, 2)):size(3))  --> true	3]] }

S["nn.F.gru"] = { "nn.F.gru(x, state, weights, {…}) → y, state",
  "What nn.GRU computes, from its weights in order.", [[
-- nn.GRU calls it
local net = nn.GRU(2, 3)
print(nn.F.gru ~= nil, net(T.ones(4, 1, 2)):size(3))  --> true	3]] }

S["nn.F.lstm_cell"] = { "nn.F.lstm_cell(x, state, w_ih, w_hh, b_ih, b_hh) → state",
  "One step, as nn.LSTMCell.", [[
-- nn.LSTMCell calls it
local cell = nn.LSTMCell(2, 3)
print(nn.F.lstm_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3]] }

S["nn.F.gru_cell"] = { "nn.F.gru_cell(x, state, w_ih, w_hh, b_ih, b_hh) → state", "One step, as nn.GRUCell.", [[
-- nn.GRUCell calls it
local cell = nn.GRUCell(2, 3)
print(nn.F.gru_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3]] }

S["nn.F.rnn_tanh_cell"] = { "nn.F.rnn_tanh_cell(x, state, w_ih, w_hh, b_ih, b_hh) → state",
  "One step, as nn.RNNCell.", [[
-- nn.RNNCell calls it
local cell = nn.RNNCell(2, 3)
print(nn.F.rnn_tanh_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3]] }

S["nn.F.rnn_relu_cell"] = { "nn.F.rnn_relu_cell(x, state, w_ih, w_hh, b_ih, b_hh) → state",
  "One step, as nn.RNNCell.", [[
-- nn.RNNCell calls it
local cell = nn.RNNCell(2, 3)
print(nn.F.rnn_relu_cell ~= nil, (cell(T.ones(1, 2))):size(2))  --> true	3]] }

S["nn.F.dropout1d"] = { "nn.F.dropout1d(x, p=0.5, training=true) → tensor",
  "Zeros whole channels with probability p and scales the others by 1/(1 - p).", [[
print(nn.F.dropout1d(T.ones(1, 1, 2), 0.5, false):sum():item())  --> 2.0]] }

S["nn.F.lp_pool1d"] = { "nn.F.lp_pool1d(x, norm_type, kernel_size, {stride=, ceil_mode=false}) → tensor",
  "The p-norm of each window.", [[
print(nn.F.lp_pool1d(T.ones(1, 1, 2), 1, 2))  --> {{{2.}}}  -- f32[1,1,1] cpu]] }

S["nn.F.max_unpool1d"] = {
  [[nn.F.max_unpool1d(x, indices, kernel_size, {stride=, padding=0, output_size=, index_base=1}) → tensor]],
  "Zeros with the values of x at the places that max_pool gave as indices.", [[
local y, where = T.max_pool1d(T.arange(2):float():view(1, 1, 2), 2, { return_indices = true })
print(nn.F.max_unpool1d(y, where, 2))  --> {{{0., 2.}}}  -- f32[1,1,2] cpu]] }

S["nn.F.max_pool1d_with_indices"] = {
  [[nn.F.max_pool1d_with_indices(x, kernel_size, {stride=, padding=0, dilation=1, ceil_mode=false,
  index_base=1}) → values, indices]],
  "The largest value of each window and its place.", [[
local y, where = nn.F.max_pool1d_with_indices(T.arange(2):float():view(1, 1, 2), 2)
print(y:item(), where:item())  --> 2.0	2]] }

S["nn.F.adaptive_max_pool1d_with_indices"] = {
  "nn.F.adaptive_max_pool1d_with_indices(x, output_size, {index_base=1}) → values, indices",
  "Largest values of windows cut for the output's size, and their places.", [[
local y, where = nn.F.adaptive_max_pool1d_with_indices(T.arange(2):float():view(1, 1, 2), 1)
print(y:item(), where:item())  --> 2.0	2]] }

S["nn.F.dropout2d"] = { "nn.F.dropout2d(x, p=0.5, training=true) → tensor",
  "Zeros whole channels with probability p and scales the others by 1/(1 - p).", [[
print(nn.F.dropout2d(T.ones(1, 1, 2, 2), 0.5, false):sum():item())  --> 4.0]] }

S["nn.F.lp_pool2d"] = { "nn.F.lp_pool2d(x, norm_type, kernel_size, {stride=, ceil_mode=false}) → tensor",
  "The p-norm of each window.", [[
print(nn.F.lp_pool2d(T.ones(1, 1, 2, 2), 1, 2))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu]] }

S["nn.F.max_unpool2d"] = {
  [[nn.F.max_unpool2d(x, indices, kernel_size, {stride=, padding=0, output_size=, index_base=1}) → tensor]],
  "Zeros with the values of x at the places that max_pool gave as indices.", [[
local y, where = T.max_pool2d(T.arange(4):float():view(1, 1, 2, 2), 2, { return_indices = true })
print(nn.F.max_unpool2d(y, where, 2))
--> {{{{0., 0.},
-->    {0., 4.}}}}  -- f32[1,1,2,2] cpu]] }

S["nn.F.fractional_max_pool2d"] = {
  [=[nn.F.fractional_max_pool2d(x, kernel_size, {output_size=, output_ratio=, return_indices=false, index_base=1,
  _random_samples=}) → tensor[, indices]]=],
  "Maxima over windows at random places (Graham 2014).", [[
print(nn.F.fractional_max_pool2d(T.ones(1, 5, 5), 2, { output_size = 2 }))
--> {{{1., 1.},
-->   {1., 1.}}}  -- f32[1,2,2] cpu]] }

S["nn.F.fractional_max_pool3d"] = {
  [=[nn.F.fractional_max_pool3d(x, kernel_size, {output_size=, output_ratio=, return_indices=false, index_base=1,
  _random_samples=}) → tensor[, indices]]=],
  "Maxima over windows at random places (Graham 2014).", [[
print(table.concat(nn.F.fractional_max_pool3d(T.ones(1, 5, 5, 5), 2, { output_size = { 2, 3, 4 } }):shape(), " "))
--> 1 2 3 4]] }

S["nn.F.max_pool2d_with_indices"] = {
  [[nn.F.max_pool2d_with_indices(x, kernel_size, {stride=, padding=0, dilation=1, ceil_mode=false,
  index_base=1}) → values, indices]],
  "The largest value of each window and its place.", [[
local y, where = nn.F.max_pool2d_with_indices(T.arange(4):float():view(1, 1, 2, 2), 2)
print(y:item(), where:item())  --> 4.0	4]] }

S["nn.F.adaptive_max_pool2d_with_indices"] = {
  "nn.F.adaptive_max_pool2d_with_indices(x, output_size, {index_base=1}) → values, indices",
  "Largest values of windows cut for the output's size, and their places.", [[
local y, where = nn.F.adaptive_max_pool2d_with_indices(T.arange(4):float():view(1, 1, 2, 2), 1)
print(y:item(), where:item())  --> 4.0	4]] }

S["nn.F.dropout3d"] = { "nn.F.dropout3d(x, p=0.5, training=true) → tensor",
  "Zeros whole channels with probability p and scales the others by 1/(1 - p).", [[
print(nn.F.dropout3d(T.ones(1, 1, 2, 2, 2), 0.5, false):sum():item())  --> 8.0]] }

S["nn.F.lp_pool3d"] = { "nn.F.lp_pool3d(x, norm_type, kernel_size, {stride=, ceil_mode=false}) → tensor",
  "The p-norm of each window.", [[
print(nn.F.lp_pool3d(T.ones(1, 1, 2, 2, 2), 1, 2))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]] }

S["nn.F.max_unpool3d"] = {
  [[nn.F.max_unpool3d(x, indices, kernel_size, {stride=, padding=0, output_size=, index_base=1}) → tensor]],
  "Zeros with the values of x at the places that max_pool gave as indices.", [[
local y, where = T.max_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2, { return_indices = true })
print(nn.F.max_unpool3d(y, where, 2))
--> {{{{{0., 0.},
-->     {0., 0.}},
-->
-->    {{0., 0.},
-->     {0., 8.}}}}}  -- f32[1,1,2,2,2] cpu]] }

S["nn.F.max_pool3d_with_indices"] = {
  [[nn.F.max_pool3d_with_indices(x, kernel_size, {stride=, padding=0, dilation=1, ceil_mode=false,
  index_base=1}) → values, indices]],
  "The largest value of each window and its place.", [[
local y, where = nn.F.max_pool3d_with_indices(T.arange(8):float():view(1, 1, 2, 2, 2), 2)
print(y:item(), where:item())  --> 8.0	8]] }

S["nn.F.adaptive_max_pool3d_with_indices"] = {
  "nn.F.adaptive_max_pool3d_with_indices(x, output_size, {index_base=1}) → values, indices",
  "Largest values of windows cut for the output's size, and their places.", [[
local y, where = nn.F.adaptive_max_pool3d_with_indices(T.arange(8):float():view(1, 1, 2, 2, 2), 1)
print(y:item(), where:item())  --> 8.0	8]] }

return S
