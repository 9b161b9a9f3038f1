-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- losses as modules, and padding layers: name → {signature, text, example, shapes=}.
-- Signatures are written from the declared arguments where there are any.
local signature = require "perilune.help.signature"

local S = {}
local module = signature.module

S["nn.CrossEntropyLoss"] = { module("nn.CrossEntropyLoss"),
  "-log softmax(x)[target], the mean over the batch; weight: one number a class.", [[
print(nn.CrossEntropyLoss()(T.tensor { { 2, 0 } }, T.tensor({ 1 }, { dtype = "i64" })))
--> 0.1269  -- f32[] cpu]],
  shapes = "logits [N, C, *], classes [N, *] or probabilities [N, C, *] → 0-d" }

S["nn.NLLLoss"] = { module("nn.NLLLoss"), "-x[target], the mean over the batch.", [[
print(nn.NLLLoss()(T.tensor { { -0.5, -1 } }, T.tensor({ 1 }, { dtype = "i64" })))  --> 0.5000  -- f32[] cpu]],
  shapes = "log-probabilities [N, C, *], classes [N, *] → 0-d" }

S["nn.MSELoss"] = { module("nn.MSELoss"), "(x - y)²; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.MSELoss()(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 2.  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.L1Loss"] = { module("nn.L1Loss"), "|x - y|; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.L1Loss()(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 1.  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.SmoothL1Loss"] = { module("nn.SmoothL1Loss"),
  [[(x - y)²/(2 beta) within beta of each other, |x - y| - beta/2 farther away; reduction "mean", "sum" or
"none".]], [[
print(nn.SmoothL1Loss()(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }))  --> 1.3125  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.HuberLoss"] = { module("nn.HuberLoss"),
  [[(x - y)²/2 within delta of each other, delta (|x - y| - delta/2) farther away; reduction "mean", "sum" or
"none".]], [[
print(nn.HuberLoss()(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }))  --> 1.3125  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.BCELoss"] = { module("nn.BCELoss"),
  "-y log x - (1 - y) log(1 - x) of probabilities x; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.BCELoss()(T.tensor { 0.5, 0.9 }, T.tensor { 1, 1 }))  --> 0.3993  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.BCEWithLogitsLoss"] = { module("nn.BCEWithLogitsLoss"),
  "BCELoss of sigmoid(x), computed without loss of digits; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.BCEWithLogitsLoss()(T.tensor { 0, 2 }, T.tensor { 1, 1 }))  --> 0.4100  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.KLDivLoss"] = { module("nn.KLDivLoss"),
  "y (log y - x) for logarithms x; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.KLDivLoss()(T.tensor { -0.7, -0.7 }, T.tensor { 0.5, 0.5 }))  --> 0.0034  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.HingeEmbeddingLoss"] = { module("nn.HingeEmbeddingLoss"),
  "x where y is 1, max(0, margin - x) where it is -1; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.HingeEmbeddingLoss()(T.tensor { 0.5, 0.5 }, T.tensor { 1, -1 }))  --> 0.5000  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.SoftMarginLoss"] = { module("nn.SoftMarginLoss"),
  "log(1 + e^(-y x)), y -1 or 1; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.SoftMarginLoss()(T.tensor { 1, 1 }, T.tensor { 1, -1 }))  --> 0.8133  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.PoissonNLLLoss"] = { module("nn.PoissonNLLLoss"), "e^x - y x; reduction \"mean\", \"sum\" or \"none\".", [[
print(nn.PoissonNLLLoss()(T.tensor { 0, 1 }, T.tensor { 1, 2 }))  --> 0.8591  -- f32[] cpu]],
  shapes = "[*], [*] → 0-d" }

S["nn.CosineEmbeddingLoss"] = { module("nn.CosineEmbeddingLoss"),
  "1 - cos where y is 1, max(0, cos - margin) where it is -1.", [[
print(nn.CosineEmbeddingLoss()(T.tensor { { 1, 0 } }, T.tensor { { 1, 0 } }, T.tensor { -1 }))
--> 1.  -- f32[] cpu]],
  shapes = "[N, D], [N, D], [N] → 0-d" }

S["nn.MarginRankingLoss"] = { module("nn.MarginRankingLoss"), "max(0, -y (x1 - x2) + margin).", [[
print(nn.MarginRankingLoss()(T.tensor { 1 }, T.tensor { 3 }, T.tensor { 1 }))  --> 2.  -- f32[] cpu]],
  shapes = "[N], [N], [N] → 0-d" }

S["nn.TripletMarginLoss"] = { module("nn.TripletMarginLoss"),
  "max(0, d(a, p) - d(a, n) + margin), d the p-norm distance.", [[
print(nn.TripletMarginLoss()(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))  --> 0.  -- f32[] cpu]],
  shapes = "anchor, positive, negative [N, D] → 0-d" }

S["nn.TripletMarginWithDistanceLoss"] = { module("nn.TripletMarginWithDistanceLoss"),
  "TripletMarginLoss with a distance of one's own.", [[
print(nn.TripletMarginWithDistanceLoss()(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))
--> 0.  -- f32[] cpu]],
  shapes = "anchor, positive, negative [N, D] → 0-d" }

S["nn.GaussianNLLLoss"] = { module("nn.GaussianNLLLoss"), "(log v + (x - y)²/v)/2; full adds log(2π)/2.", [[
print(nn.GaussianNLLLoss()(T.tensor { 0.0 }, T.tensor { 2.0 }, T.tensor { 1.0 }))  --> 2.  -- f32[] cpu]],
  shapes = "mean, target, variance [N, *] → 0-d" }

S["nn.MultiMarginLoss"] = { module("nn.MultiMarginLoss"),
  "The mean over other classes of max(0, margin - x[y] + x[i])^p.", [[
print(nn.MultiMarginLoss()(T.tensor { { 1, 0.5 } }, T.tensor({ 1 }, { dtype = "i64" })))
--> 0.2500  -- f32[] cpu]],
  shapes = "[N, C], classes [N] → 0-d" }

S["nn.MultiLabelMarginLoss"] = { module("nn.MultiLabelMarginLoss"),
  [[The hinge between each of a sample's classes and each of the others; a list of classes ends with one below
the first.]], [[
print(nn.MultiLabelMarginLoss()(T.tensor { { 1, 0.5 } }, T.tensor({ { 1, 0 } }, { dtype = "i64" })))
--> 0.2500  -- f32[] cpu]],
  shapes = "[N, C], classes [N, C] → 0-d" }

S["nn.MultiLabelSoftMarginLoss"] = { module("nn.MultiLabelSoftMarginLoss"),
  "The mean over classes of BCEWithLogitsLoss.", [[
print(nn.MultiLabelSoftMarginLoss()(T.tensor { { 0, 2 } }, T.tensor { { 1, 1 } }))  --> 0.4100  -- f32[] cpu]],
  shapes = "[N, C], [N, C] of 0 and 1 → 0-d" }

S["nn.CTCLoss"] = { module("nn.CTCLoss"),
  "-log of the probability of all alignments of the target (Graves et al. 2006).", [[
local i64 = { dtype = "i64" }
local log_probs = T.zeros(2, 1, 2):log_softmax(-1)
print(nn.CTCLoss { blank = 1 }(log_probs, T.tensor({ { 2 } }, i64), T.tensor({ 2 }, i64), T.tensor({ 1 }, i64)))
--> 0.2877  -- f32[] cpu]],
  shapes = "log_probs [T, N, C], targets [N, S], input_lengths [N], target_lengths [N] → 0-d" }

S["nn.AdaptiveLogSoftmaxWithLoss"] = { module("nn.AdaptiveLogSoftmaxWithLoss"),
  [[A softmax over many classes of which most are rare (Grave et al. 2017): common ones first, cutoffs between clusters,
whose matrices get smaller by div_value. Called with x and targets; log_prob(x), predict(x).]], [[
local m = nn.AdaptiveLogSoftmaxWithLoss(8, 100, { 10, 50 })
local logs, loss = m(T.ones(3, 8), T.tensor({ 1, 20, 100 }, { dtype = "i64" }))
print(logs:size(1), loss:dim(), table.concat(m:log_prob(T.ones(3, 8)):shape(), " "))  --> 3	0	3 100]],
  shapes = "x [N, in], target [N] → log probabilities [N], loss" }

S["nn.ZeroPad1d"] = { module("nn.ZeroPad1d"),
  "Adds zeros around. padding: one number, or before and after for each dimension, the last dimension first.", [[
print(nn.ZeroPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{0., 1., 2., 3., 0.}}  -- f32[1,5] cpu]],
  shapes = "[*, L] → [*, L']" }

S["nn.ConstantPad1d"] = { module("nn.ConstantPad1d"),
  "Adds a number around. padding: one number, or before and after for each dimension, the last dimension first.", [[
print(nn.ConstantPad1d({ 1, 1 }, 7)(T.tensor { { 1, 2, 3 } }))  --> {{7., 1., 2., 3., 7.}}  -- f32[1,5] cpu]],
  shapes = "[*, L] → [*, L']" }

S["nn.ReflectionPad1d"] = { module("nn.ReflectionPad1d"),
  [[Adds the values mirrored at the border around. padding: one number, or before and after for each dimension,
the last dimension first.]], [[
print(nn.ReflectionPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{2., 1., 2., 3., 2.}}  -- f32[1,5] cpu]],
  shapes = "[*, L] → [*, L']" }

S["nn.ReplicationPad1d"] = { module("nn.ReplicationPad1d"),
  [[Adds the border's values around. padding: one number, or before and after for each dimension, the last
dimension first.]], [[
print(nn.ReplicationPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{1., 1., 2., 3., 3.}}  -- f32[1,5] cpu]],
  shapes = "[*, L] → [*, L']" }

S["nn.CircularPad1d"] = { module("nn.CircularPad1d"),
  [[Adds the values from the other side around. padding: one number, or before and after for each dimension, the
last dimension first.]], [[
print(nn.CircularPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{3., 1., 2., 3., 1.}}  -- f32[1,5] cpu]],
  shapes = "[*, L] → [*, L']" }

S["nn.ZeroPad2d"] = { module("nn.ZeroPad2d"),
  "Adds zeros around. padding: one number, or before and after for each dimension, the last dimension first.", [[
print(table.concat(nn.ZeroPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6]],
  shapes = "[*, H, W] → [*, H, W']" }

S["nn.ConstantPad2d"] = { module("nn.ConstantPad2d"),
  "Adds a number around. padding: one number, or before and after for each dimension, the last dimension first.", [[
print(table.concat(nn.ConstantPad2d(1, 7)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6]],
  shapes = "[*, H, W] → [*, H, W']" }

S["nn.ReflectionPad2d"] = { module("nn.ReflectionPad2d"),
  [[Adds the values mirrored at the border around. padding: one number, or before and after for each dimension,
the last dimension first.]], [[
print(table.concat(nn.ReflectionPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6]],
  shapes = "[*, H, W] → [*, H, W']" }

S["nn.ReplicationPad2d"] = { module("nn.ReplicationPad2d"),
  [[Adds the border's values around. padding: one number, or before and after for each dimension, the last
dimension first.]], [[
print(table.concat(nn.ReplicationPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6]],
  shapes = "[*, H, W] → [*, H, W']" }

S["nn.CircularPad2d"] = { module("nn.CircularPad2d"),
  [[Adds the values from the other side around. padding: one number, or before and after for each dimension, the
last dimension first.]], [[
print(table.concat(nn.CircularPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6]],
  shapes = "[*, H, W] → [*, H, W']" }

S["nn.ZeroPad3d"] = { module("nn.ZeroPad3d"),
  "Adds zeros around. padding: one number, or before and after for each dimension, the last dimension first.", [[
print(table.concat(nn.ZeroPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6]],
  shapes = "[*, D, H, W] → [*, D, H, W']" }

S["nn.ConstantPad3d"] = { module("nn.ConstantPad3d"),
  "Adds a number around. padding: one number, or before and after for each dimension, the last dimension first.", [[
print(table.concat(nn.ConstantPad3d(1, 7)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6]],
  shapes = "[*, D, H, W] → [*, D, H, W']" }

S["nn.ReflectionPad3d"] = { module("nn.ReflectionPad3d"),
  [[Adds the values mirrored at the border around. padding: one number, or before and after for each dimension,
the last dimension first.]], [[
print(table.concat(nn.ReflectionPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6]],
  shapes = "[*, D, H, W] → [*, D, H, W']" }

S["nn.ReplicationPad3d"] = { module("nn.ReplicationPad3d"),
  [[Adds the border's values around. padding: one number, or before and after for each dimension, the last
dimension first.]], [[
print(table.concat(nn.ReplicationPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6]],
  shapes = "[*, D, H, W] → [*, D, H, W']" }

S["nn.CircularPad3d"] = { module("nn.CircularPad3d"),
  [[Adds the values from the other side around. padding: one number, or before and after for each dimension, the
last dimension first.]], [[
print(table.concat(nn.CircularPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6]],
  shapes = "[*, D, H, W] → [*, D, H, W']" }

return S
