-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- layers: name → {signature, text, example, shapes=}.
-- Signatures are written from the declared arguments where there are any.
local signature = require "perilune.help.signature"

local S = {}
local module = signature.module

S["nn.Linear"] = { module("nn.Linear"),
  "y = x Wᵀ + b on the last dimension. weight [out, in], bias [out]; both start uniform within ±1/√in.", [[
local l = nn.Linear(3, 2)
print(l)  --> Linear(in_features=3, out_features=2, bias=true)
print(table.concat(l(T.ones(4, 3)):shape(), " "))  --> 4 2]],
  shapes = "[*, in_features] → [*, out_features]" }

S["nn.Bilinear"] = { module("nn.Bilinear"), "y_k = x1ᵀ W_k x2 + b_k. weight [out, in1, in2], bias [out].", [[
print(table.concat(nn.Bilinear(2, 3, 4)(T.ones(5, 2), T.ones(5, 3)):shape(), " "))  --> 5 4]],
  shapes = "[*, in1], [*, in2] → [*, out]" }

S["nn.Identity"] = { module("nn.Identity"), "Returns its arguments.", [[
print(nn.Identity()(T.ones(2)))  --> {1., 1.}  -- f32[2] cpu]],
  shapes = "x → x" }

S["nn.Flatten"] = { module("nn.Flatten"), "Joins the dimensions start_dim … end_dim into one.", [[
print(table.concat(nn.Flatten()(T.ones(2, 3, 4)):shape(), " "))  --> 2 12]],
  shapes = "[N, *] → [N, product]" }

S["nn.Unflatten"] = { module("nn.Unflatten"), "Splits a dimension into sizes; one of them may be -1.", [[
print(table.concat(nn.Unflatten(2, { 3, -1 })(T.ones(2, 6)):shape(), " "))  --> 2 3 2]],
  shapes = "[*, n, *] → [*, sizes, *]" }

S["nn.Dropout1d"] = { module("nn.Dropout1d"),
  "In training zeros whole channels with probability p and scales the others by 1/(1 - p).", [[
print(nn.Dropout1d(0.5):eval()(T.ones(1, 1, 2)):sum():item())  --> 2.0]],
  shapes = "[N, C, L] → the same" }

S["nn.Dropout2d"] = { module("nn.Dropout2d"),
  "In training zeros whole channels with probability p and scales the others by 1/(1 - p).", [[
print(nn.Dropout2d(0.5):eval()(T.ones(1, 1, 2, 2)):sum():item())  --> 4.0]],
  shapes = "[N, C, H, W] → the same" }

S["nn.Dropout3d"] = { module("nn.Dropout3d"),
  "In training zeros whole channels with probability p and scales the others by 1/(1 - p).", [[
print(nn.Dropout3d(0.5):eval()(T.ones(1, 1, 2, 2, 2)):sum():item())  --> 8.0]],
  shapes = "[N, C, D, H, W] → the same" }

S["nn.LazyLinear"] = { module("nn.LazyLinear"), "A nn.Linear whose in_features is found at the first call.", [[
local l = nn.LazyLinear(2)
l(T.ones(4, 3))
print(l)  --> Linear(in_features=3, out_features=2, bias=true)]],
  shapes = "as nn.Linear" }

S["nn.LayerNorm"] = { module("nn.LayerNorm"),
  "(x - mean) / √(var + eps) over the last dimensions, then weight and bias (Ba et al. 2016).", [[
print(nn.LayerNorm(3)(T.tensor { 1, 2, 3 }):detach())  --> {-1.2247,  0.0000,  1.2247}  -- f32[3] cpu]],
  shapes = "[*, normalized_shape] → the same" }

S["nn.RMSNorm"] = { module("nn.RMSNorm"),
  "x / √(mean x² + eps) over the last dimensions, then weight (Zhang & Sennrich 2019).", [[
print(nn.RMSNorm(2)(T.tensor { 3, 4 }):detach())  --> {0.8485, 1.1314}  -- f32[2] cpu]],
  shapes = "[*, normalized_shape] → the same" }

S["nn.GroupNorm"] = { module("nn.GroupNorm"),
  "Groups of channels of each sample minus their mean over their deviation (Wu & He 2018).", [[
print(table.concat(nn.GroupNorm(2, 4)(T.ones(1, 4, 3)):shape(), " "))  --> 1 4 3]],
  shapes = "[N, C, *] → the same" }

S["nn.LocalResponseNorm"] = { module("nn.LocalResponseNorm"),
  "x / (k + alpha mean of squares over size neighbouring channels)^beta (Krizhevsky et al. 2012).", [[
print(table.concat(nn.LocalResponseNorm(3)(T.ones(1, 4, 2)):shape(), " "))  --> 1 4 2]],
  shapes = "[N, C, *] → the same" }

S["nn.Embedding"] = { module("nn.Embedding"),
  [[Rows of a table by number, from 1 (index_base=0: from 0). weight [num_embeddings, embedding_dim], normal;
the row padding_idx starts as zeros and gets no gradient.]], [[
print(table.concat(nn.Embedding(10, 4)(T.tensor({ 1, 7 }, { dtype = "i64" })):shape(), " "))  --> 2 4]],
  shapes = "ids [*] → [*, embedding_dim]" }

S["nn.EmbeddingBag"] = { module("nn.EmbeddingBag"),
  "Sums, means or maxima of rows of a table over bags of ids; padding_idx does not count.", [[
local bag = nn.EmbeddingBag(10, 4, { mode = "sum" })
local ids = T.tensor({ 1, 2, 7 }, { dtype = "i64" })
print(table.concat(bag(ids, T.tensor({ 1, 3 }, { dtype = "i64" })):shape(), " "))  --> 2 4]],
  shapes = "ids [B, N], or [n] with offsets [B] → [B, embedding_dim]" }

S["nn.Dropout"] = { module("nn.Dropout"),
  "In training zeros each element with probability p and scales the others by 1/(1 - p).", [[
print(nn.Dropout(0.5):eval()(T.ones(2, 2)):sum():item())  --> 4.0]],
  shapes = "[*] → the same" }

S["nn.AlphaDropout"] = { module("nn.AlphaDropout"),
  "Dropout that keeps mean and variance of SELU's outputs (Klambauer et al. 2017).", [[
print(nn.AlphaDropout(0.5):eval()(T.ones(2, 2)):sum():item())  --> 4.0]],
  shapes = "[*] → the same" }

S["nn.FeatureAlphaDropout"] = { module("nn.FeatureAlphaDropout"), "AlphaDropout of whole channels.", [[
print(nn.FeatureAlphaDropout(0.5):eval()(T.ones(2, 2)):sum():item())  --> 4.0]],
  shapes = "[*] → the same" }

S["nn.ReLU"] = { module("nn.ReLU"), "max(0, x).", [[
print(nn.ReLU()(T.tensor { -1, 2 }))  --> {0., 2.}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.ReLU6"] = { module("nn.ReLU6"), "min(max(0, x), 6).", [[
print(nn.ReLU6()(T.tensor { -1, 9 }))  --> {0., 6.}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Sigmoid"] = { module("nn.Sigmoid"), "1 / (1 + e^-x).", [[
print(nn.Sigmoid()(T.tensor { 0, 2 }))  --> {0.5000, 0.8808}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Tanh"] = { module("nn.Tanh"), "tanh x.", [[
print(nn.Tanh()(T.tensor { 0, 1 }))  --> {0.0000, 0.7616}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.SiLU"] = { module("nn.SiLU"), "x / (1 + e^-x).", [[
print(nn.SiLU()(T.tensor { -1, 1 }))  --> {-0.2689,  0.7311}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Mish"] = { module("nn.Mish"), "x tanh(softplus(x)).", [[
print(nn.Mish()(T.tensor { -1, 1 }))  --> {-0.3034,  0.8651}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.SELU"] = { module("nn.SELU"),
  "scale (x, or alpha (e^x - 1) below 0), with constants that keep mean 0 and variance 1.", [[
print(nn.SELU()(T.tensor { -1, 1 }))  --> {-1.1113,  1.0507}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Softsign"] = { module("nn.Softsign"), "x / (1 + |x|).", [[
print(nn.Softsign()(T.tensor { -1, 3 }))  --> {-0.5000,  0.7500}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Tanhshrink"] = { module("nn.Tanhshrink"), "x - tanh x.", [[
print(nn.Tanhshrink()(T.tensor { -1, 1 }))  --> {-0.2384,  0.2384}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Hardswish"] = { module("nn.Hardswish"), "x min(max(0, x + 3), 6) / 6.", [[
print(nn.Hardswish()(T.tensor { -4, 1, 4 }))  --> {-0.0000,  0.6667,  4.0000}  -- f32[3] cpu]],
  shapes = "[*] → the same" }

S["nn.Hardsigmoid"] = { module("nn.Hardsigmoid"), "min(max(0, x + 3), 6) / 6.", [[
print(nn.Hardsigmoid()(T.tensor { -4, 0, 4 }))  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu]],
  shapes = "[*] → the same" }

S["nn.LogSigmoid"] = { module("nn.LogSigmoid"), "log(1 / (1 + e^-x)).", [[
print(nn.LogSigmoid()(T.tensor { -1, 1 }))  --> {-1.3133, -0.3133}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.GELU"] = { module("nn.GELU"),
  "x Φ(x), Φ the normal distribution function; approximate=\"tanh\" for the cheaper form.", [[
print(nn.GELU()(T.tensor { -1, 1 }))  --> {-0.1587,  0.8413}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.ELU"] = { module("nn.ELU"), "x, or alpha (e^x - 1) below 0.", [[
print(nn.ELU()(T.tensor { -1, 1 }))  --> {-0.6321,  1.0000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.CELU"] = { module("nn.CELU"), "x, or alpha (e^(x/alpha) - 1) below 0.", [[
print(nn.CELU(2)(T.tensor { -1, 1 }))  --> {-0.7869,  1.0000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.LeakyReLU"] = { module("nn.LeakyReLU"), "x, or negative_slope x below 0.", [[
print(nn.LeakyReLU(0.1)(T.tensor { -1, 1 }))  --> {-0.1000,  1.0000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Hardtanh"] = { module("nn.Hardtanh"), "x limited to min_val … max_val.", [[
print(nn.Hardtanh()(T.tensor { -3, 0.5 }))  --> {-1.0000,  0.5000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Hardshrink"] = { module("nn.Hardshrink"), "x, or 0 within ±lambd.", [[
print(nn.Hardshrink()(T.tensor { 0.2, 1 }))  --> {0., 1.}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Softshrink"] = { module("nn.Softshrink"), "x moved towards 0 by lambd.", [[
print(nn.Softshrink()(T.tensor { 0.2, 1 }))  --> {0.0000, 0.5000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Softplus"] = { module("nn.Softplus"),
  "log(1 + e^(beta x)) / beta; x itself where beta x is above threshold.", [[
print(nn.Softplus()(T.tensor { 0, 30 }))  --> { 0.6931, 30.0000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Threshold"] = { module("nn.Threshold"), "x, or value where x is at most threshold.", [[
print(nn.Threshold(0.5, 0)(T.tensor { 0.2, 1 }))  --> {0., 1.}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.RReLU"] = { module("nn.RReLU"),
  "x, or a x below 0, a uniform in lower … upper for each element in training, their mean in evaluation.", [[
print(nn.RReLU():eval()(T.tensor { -1, 1 }))  --> {-0.2292,  1.0000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.PReLU"] = { module("nn.PReLU"), "x, or weight x below 0; one learned slope, or one a channel.", [[
print(nn.PReLU()(T.tensor { -1, 1 }):detach())  --> {-0.2500,  1.0000}  -- f32[2] cpu]],
  shapes = "[N, C, *] → the same" }

S["nn.Softmax"] = { module("nn.Softmax"), "e^x over its sum along dim.", [[
print(nn.Softmax()(T.tensor { 0, 0 }))  --> {0.5000, 0.5000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.LogSoftmax"] = { module("nn.LogSoftmax"), "The logarithm of softmax along dim.", [[
print(nn.LogSoftmax()(T.tensor { 0, 0 }))  --> {-0.6931, -0.6931}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Softmin"] = { module("nn.Softmin"), "softmax of -x.", [[
print(nn.Softmin()(T.tensor { 0, 0 }))  --> {0.5000, 0.5000}  -- f32[2] cpu]],
  shapes = "[*] → the same" }

S["nn.Softmax2d"] = { module("nn.Softmax2d"), "softmax over the channels.", [[
print(nn.Softmax2d()(T.zeros(2, 1, 1)):flatten())  --> {0.5000, 0.5000}  -- f32[2] cpu]],
  shapes = "[N, C, H, W] → the same" }

S["nn.GLU"] = { module("nn.GLU"), "a · sigmoid(b) of the halves a, b along dim.", [[
print(nn.GLU()(T.tensor { 2, 0 }))  --> {1.}  -- f32[1] cpu]],
  shapes = "[*, 2n] → [*, n]" }

S["nn.CosineSimilarity"] = { module("nn.CosineSimilarity"), "x·y / (‖x‖ ‖y‖) along dim.", [[
print(nn.CosineSimilarity()(T.tensor { { 1, 0 } }, T.tensor { { 1, 1 } }))  --> {0.7071}  -- f32[1] cpu]],
  shapes = "[*], [*] → [*] without dim" }

S["nn.PairwiseDistance"] = { module("nn.PairwiseDistance"),
  "The p-norm of x - y + eps over the last dimension.", [[
print(nn.PairwiseDistance()(T.zeros(1, 2), T.tensor { { 3, 4 } }))  --> {5.0000}  -- f32[1] cpu]],
  shapes = "[N, D], [N, D] → [N]" }

S["nn.RNN"] = { module("nn.RNN"),
  [[Layers of RNN cells over a sequence, num_layers deep, bidirectional on request. State: weight_ih_l0,
weight_hh_l0, bias_ih_l0, bias_hh_l0 …, as in PyTorch. x may be a packed batch of nn.utils.rnn.]], [[
local net = nn.RNN(3, 4)
local y = net(T.ones(5, 2, 3))
print(table.concat(y:shape(), " "))  --> 5 2 4]],
  shapes = "x [L, N, in] (or [L, in]; batch_first: [N, L, in]), state → y [L, N, hidden], state" }

S["nn.RNNCell"] = { module("nn.RNNCell"), "One step of a RNN.", [[
local h = nn.RNNCell(3, 4)(T.ones(2, 3))
print(table.concat(h:shape(), " "))  --> 2 4]],
  shapes = "x [N, in], state → state" }

S["nn.LSTM"] = { module("nn.LSTM"),
  [[Layers of LSTM cells over a sequence, num_layers deep, bidirectional on request. State: weight_ih_l0,
weight_hh_l0, bias_ih_l0, bias_hh_l0 …, as in PyTorch. x may be a packed batch of nn.utils.rnn.
proj_size=P: the state h is weight_hr_l0 (o tanh c), with P entries (Sak et al. 2014).]], [[
local net = nn.LSTM(3, 4)
local y = net(T.ones(5, 2, 3))
print(table.concat(y:shape(), " "))  --> 5 2 4]],
  shapes = "x [L, N, in] (or [L, in]; batch_first: [N, L, in]), state → y [L, N, hidden], state" }

S["nn.LSTMCell"] = { module("nn.LSTMCell"), "One step of a LSTM.", [[
local h = nn.LSTMCell(3, 4)(T.ones(2, 3))
print(table.concat(h:shape(), " "))  --> 2 4]],
  shapes = "x [N, in], state → state" }

S["nn.GRU"] = { module("nn.GRU"),
  [[Layers of GRU cells over a sequence, num_layers deep, bidirectional on request. State: weight_ih_l0,
weight_hh_l0, bias_ih_l0, bias_hh_l0 …, as in PyTorch. x may be a packed batch of nn.utils.rnn.]], [[
local net = nn.GRU(3, 4)
local y = net(T.ones(5, 2, 3))
print(table.concat(y:shape(), " "))  --> 5 2 4]],
  shapes = "x [L, N, in] (or [L, in]; batch_first: [N, L, in]), state → y [L, N, hidden], state" }

S["nn.GRUCell"] = { module("nn.GRUCell"), "One step of a GRU.", [[
local h = nn.GRUCell(3, 4)(T.ones(2, 3))
print(table.concat(h:shape(), " "))  --> 2 4]],
  shapes = "x [N, in], state → state" }

S["nn.MultiheadAttention"] = { module("nn.MultiheadAttention"),
  [[Several heads of attention with learned projections (Vaswani et al. 2017); batch_first: [N, L, E]. Options
of the call: attn_mask, key_padding_mask (true: not seen), is_causal, need_weights, cache.]], [[
local attend = nn.MultiheadAttention(8, 2)
local x = T.ones(5, 1, 8)
print(table.concat((attend(x, x, x)):shape(), " "))  --> 5 1 8]],
  shapes = "query [L, N, E], key [S, N, E], value [S, N, E] → [L, N, E], weights" }

S["nn.TransformerEncoderLayer"] = { module("nn.TransformerEncoderLayer"),
  [[x + attention, then x + feed-forward, each normalized after it, or before with norm_first. Options of the
call: src_mask, src_key_padding_mask, is_causal, cache.]], [[
print(table.concat(nn.TransformerEncoderLayer(8, 2, 16)(T.ones(5, 1, 8)):shape(), " "))  --> 5 1 8]],
  shapes = "[L, N, E] → the same" }

S["nn.TransformerDecoderLayer"] = { module("nn.TransformerDecoderLayer"),
  "As the encoder's layer, with attention to a memory in the middle.", [[
print(table.concat(nn.TransformerDecoderLayer(8, 2, 16)(T.ones(3, 1, 8), T.ones(5, 1, 8)):shape(), " "))
--> 3 1 8]],
  shapes = "tgt [L, N, E], memory [S, N, E] → [L, N, E]" }

S["nn.TransformerEncoder"] = { module("nn.TransformerEncoder"),
  "num_layers copies of a layer, then an optional norm.", [[
print(table.concat(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)(T.ones(5, 1, 8)):shape(), " "))
--> 5 1 8]],
  shapes = "[L, N, E] → the same" }

S["nn.TransformerDecoder"] = { module("nn.TransformerDecoder"),
  "num_layers copies of a layer, then an optional norm.", [[
local net = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2)
print(table.concat(net(T.ones(3, 1, 8), T.ones(5, 1, 8)):shape(), " "))  --> 3 1 8]],
  shapes = "tgt [L, N, E], memory [S, N, E] → [L, N, E]" }

S["nn.Transformer"] = { module("nn.Transformer"),
  [[An encoder and a decoder. Options of the call: src_mask, tgt_mask, memory_mask, …_key_padding_mask,
…_is_causal.]], [[
local net = nn.Transformer { d_model = 8, nhead = 2, num_encoder_layers = 1, num_decoder_layers = 1,
  dim_feedforward = 16 }
print(table.concat(net(T.ones(5, 1, 8), T.ones(3, 1, 8)):shape(), " "))  --> 3 1 8]],
  shapes = "src [S, N, E], tgt [L, N, E] → [L, N, E]" }

S["nn.Upsample"] = { module("nn.Upsample"),
  "Resizes to size, or by scale_factor: mode \"nearest\", \"linear\", \"bilinear\", \"bicubic\", \"trilinear\".", [[
print(nn.Upsample { scale_factor = 2 }(T.tensor { { { 1, 2 } } }))  --> {{{1., 1., 2., 2.}}}  -- f32[1,1,4] cpu]],
  shapes = "[N, C, *] → [N, C, size]" }

S["nn.UpsamplingNearest2d"] = { module("nn.UpsamplingNearest2d"), "Resizes by repeating pixels.", [[
print(nn.UpsamplingNearest2d { scale_factor = 2 }(T.tensor { { { { 1, 2 } } } }))
--> {{{{1., 1., 2., 2.},
-->    {1., 1., 2., 2.}}}}  -- f32[1,1,2,4] cpu]],
  shapes = "[N, C, H, W] → [N, C, H', W']" }

S["nn.UpsamplingBilinear2d"] = { module("nn.UpsamplingBilinear2d"), "Resizes linearly between corners.", [[
print(nn.UpsamplingBilinear2d { size = { 1, 3 } }(T.tensor { { { { 1, 3 } } } }))
--> {{{{1., 2., 3.}}}}  -- f32[1,1,1,3] cpu]],
  shapes = "[N, C, H, W] → [N, C, H', W']" }

S["nn.PixelShuffle"] = { module("nn.PixelShuffle"), "Channels become pixels.", [[
print(table.concat(nn.PixelShuffle(2)(T.ones(1, 4, 3, 3)):shape(), " "))  --> 1 1 6 6]],
  shapes = "[*, C r², H, W] → [*, C, H r, W r]" }

S["nn.PixelUnshuffle"] = { module("nn.PixelUnshuffle"), "Pixels become channels.", [[
print(table.concat(nn.PixelUnshuffle(2)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 4 2 2]],
  shapes = "[*, C, H r, W r] → [*, C r², H, W]" }

S["nn.ChannelShuffle"] = { module("nn.ChannelShuffle"), "Interleaves the channels of groups.", [[
print(nn.ChannelShuffle(2)(T.arange(4):view(1, 4, 1)):flatten())  --> {1, 3, 2, 4}  -- i64[4] cpu]],
  shapes = "[N, C, *] → the same" }

S["nn.Fold"] = { module("nn.Fold"), "Adds sliding blocks back into an image.", [[
print(nn.Fold({ 2, 2 }, { 2, 2 })(T.arange(4):float():view(1, 4, 1)))
--> {{{{1., 2.},
-->    {3., 4.}}}}  -- f32[1,1,2,2] cpu]],
  shapes = "[N, C k, L] → [N, C, H, W]" }

S["nn.Unfold"] = { module("nn.Unfold"), "Sliding blocks as columns.", [[
print(nn.Unfold(2)(T.arange(4):float():view(1, 1, 2, 2)))
--> {{{1.},
-->   {2.},
-->   {3.},
-->   {4.}}}  -- f32[1,4,1] cpu]],
  shapes = "[N, C, H, W] → [N, C k, L]" }

S["nn.checkpointed"] = { "nn.checkpointed(module, {save=, names=, policy=, segments=}) → module",
  [[Computes what the module does and keeps only its arguments: backward computes the module again, with the same random
numbers and modes, adds the same gradients; running statistics are updated once. Memory for time: T.checkpoint, whose
options it takes. segments = n cuts an nn.Sequential into n pieces, each of which keeps its own arguments.]], [[
local block = nn.checkpointed(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
block(T.ones(1, 4)):sum():backward()
print(#block:parameters(), block:parameters()[1].grad:shape()[1])  --> 2	4]] }
S["nn.Sequential"] = { "nn.Sequential(a, b, …) or nn.Sequential{a, b, …} → module",
  [[Calls its modules in turn, each on what the one before returned. net[1], #net, append, insert, extend, pop;
children are named "1", "2", ….]], [[
local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
print(#net, net[2])  --> 3	ReLU()
print(table.concat(net(T.ones(4, 2)):shape(), " "))  --> 4 1]],
  shapes = "what the first takes → what the last returns" }

S["nn.ModuleList"] = { "nn.ModuleList{a, b, …} → module",
  "A list of modules that registers them and computes nothing. append, insert, extend, pop, #list, list[i].", [[
local list = nn.ModuleList { nn.Linear(1, 1), nn.ReLU() }
print(#list, list[2])  --> 2	ReLU()]] }

S["nn.ModuleDict"] = { "nn.ModuleDict{name = module, …} → module",
  "Modules by name: d.name, d:get(name), d:set(name, m), d:keys().", [[
print(nn.ModuleDict { act = nn.ReLU() }.act)  --> ReLU()]] }

S["nn.ParameterList"] = { "nn.ParameterList{tensor, …} → module",
  "Parameters by number; tensors become parameters. append, #list, list[i].", [[
local list = nn.ParameterList { T.ones(2), T.zeros(3) }
print(#list, list[2].requires_grad)  --> 2	true]] }

S["nn.ParameterDict"] = { "nn.ParameterDict{name = tensor, …} → module",
  "Parameters by name: d.name, d:get(name), d:set(name, t), d:keys().", [[
print(nn.ParameterDict { scale = T.ones(1) }.scale)  --> {1.}  -- f32[1] cpu requires_grad]] }

S["nn.Module"] = { "nn.class(\"Name\") → class; class(…) → module",
  [[The base of all modules. Called like a function: forward. parameters(), named_parameters(), buffers(),
modules(), children(), state_dict{index_base=}, load_state_dict(sd, {strict=, index_base=}), train(),
eval(), to(dtype or device), to{dtype=, device=, memory_format="channels_last"}, half(), bfloat16(),
freeze(), zero_grad(), apply(f), clone(),
get_parameter(path), get_submodule(path), register_buffer(name, t), register_parameter(name, p),
register_forward_hook(f), register_forward_pre_hook(f), register_full_backward_hook(f),
register_full_backward_pre_hook(f), summary(x).]], [[
local Double = nn.class("Double")
function Double:init(n) self.fc = nn.Linear(n, n) end
function Double:forward(x) return 2 * self.fc(x) end
print(Double(3))
--> Double(
-->   (fc): Linear(in_features=3, out_features=3, bias=true)
--> )
print(nn.Module.is_a == nil)  --> true]] }

S["nn.class"] = { "nn.class(name, parent = nn.Module) → class",
  [[A class of modules: define init(self, …) and forward(self, …). Parameters, buffers and modules assigned to
fields register in that order.]], [[
local Scale = nn.class("Scale")
function Scale:init() self.factor = nn.Parameter(T.ones(1) * 3) end
function Scale:forward(x) return x * self.factor end
print(Scale()(T.ones(2)):detach())  --> {3., 3.}  -- f32[2] cpu]] }

S["nn.Parameter"] = { "nn.Parameter(t, {requires_grad=true}) → tensor",
  "A leaf that training changes: shares t's memory, and registers when assigned to a field of a module.", [[
print(nn.Parameter(T.ones(1)).requires_grad)  --> true]] }

S["nn.is_module"] = { "nn.is_module(value) → boolean", "Whether it is a module.", [[
print(nn.is_module(nn.ReLU()), nn.is_module(3))  --> true	false]] }

return S
