-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- layers over space: convolutions, pooling, normalization of channels: name → {signature, text, example, shapes=}.
-- Signatures are written from the declared arguments where there are any.
local signature = require "perilune.help.signature"

local S = {}
local module = signature.module

S["nn.Conv1d"] = { module("nn.Conv1d"),
  [[Cross-correlation with learned kernels. weight [out, in/groups, kernel], bias [out]; both uniform within
±1/√fan_in. padding: sizes, "same" or "valid".]], [[
print(table.concat(nn.Conv1d(2, 3, 3, { padding = 1 })(T.ones(1, 2, 4)):shape(), " "))  --> 1 3 4]],
  shapes = "[N, in, L] → [N, out, L'] (or without N)" }

S["nn.ConvTranspose1d"] = { module("nn.ConvTranspose1d"),
  [[The gradient of a convolution for its input, as a layer: size (n - 1) stride - 2 padding + dilation (kernel
- 1) + output_padding + 1. weight [in, out/groups, kernel].]], [[
print(table.concat(nn.ConvTranspose1d(2, 3, 2, { stride = 2 })(T.ones(1, 2, 4)):shape(), " "))  --> 1 3 8]],
  shapes = "[N, in, L] → [N, out, L'] (or without N)" }

S["nn.MaxPool1d"] = { module("nn.MaxPool1d"),
  "The largest value of each window; with return_indices also its place.", [[
print((nn.MaxPool1d(2)(T.arange(2):float():view(1, 1, 2))))  --> {{{2.}}}  -- f32[1,1,1] cpu]],
  shapes = "[N, C, L] → [N, C, L']" }

S["nn.AvgPool1d"] = { module("nn.AvgPool1d"), "The mean of each window.", [[
print(nn.AvgPool1d(2)(T.arange(2):float():view(1, 1, 2)))  --> {{{1.5000}}}  -- f32[1,1,1] cpu]],
  shapes = "[N, C, L] → [N, C, L']" }

S["nn.AdaptiveAvgPool1d"] = { module("nn.AdaptiveAvgPool1d"),
  "Means of windows cut so that the output has the given size.", [[
print(nn.AdaptiveAvgPool1d(1)(T.arange(2):float():view(1, 1, 2)))  --> {{{1.5000}}}  -- f32[1,1,1] cpu]],
  shapes = "[N, C, L] → [N, C, output_size]" }

S["nn.AdaptiveMaxPool1d"] = { module("nn.AdaptiveMaxPool1d"),
  "Largest values of windows cut so that the output has the given size.", [[
print((nn.AdaptiveMaxPool1d(1)(T.arange(2):float():view(1, 1, 2))))  --> {{{2.}}}  -- f32[1,1,1] cpu]],
  shapes = "[N, C, L] → [N, C, output_size]" }

S["nn.LPPool1d"] = { module("nn.LPPool1d"), "The p-norm of each window (norm_type p).", [[
print(nn.LPPool1d(1, 2)(T.ones(1, 1, 2)))  --> {{{2.}}}  -- f32[1,1,1] cpu]],
  shapes = "[N, C, L] → [N, C, L']" }

S["nn.MaxUnpool1d"] = { module("nn.MaxUnpool1d"),
  "Zeros with the values at the places that a max pooling gave.", [[
local y, where = nn.MaxPool1d(2, { return_indices = true })(T.arange(2):float():view(1, 1, 2))
print(nn.MaxUnpool1d(2)(y, where))  --> {{{0., 2.}}}  -- f32[1,1,2] cpu]],
  shapes = "[N, C, L], indices → [N, C, L']" }

S["nn.BatchNorm1d"] = { module("nn.BatchNorm1d"),
  [[Each channel minus its mean over its deviation, of the batch in training, of running statistics in
evaluation; then weight and bias. momentum=false keeps a plain average.]], [[
local norm = nn.BatchNorm1d(2)
print(table.concat(norm(T.ones(1, 2, 4)):shape(), " "))  --> 1 2 4
print(norm.running_mean)  --> {0.1000, 0.1000}  -- f32[2] cpu]],
  shapes = "[N, C, L] or [N, C] → the same" }

S["nn.InstanceNorm1d"] = { module("nn.InstanceNorm1d"),
  [[Each channel of each sample minus its mean over its deviation. Weight and bias with affine=true, running
statistics with track_running_stats=true.]], [[
print(table.concat(nn.InstanceNorm1d(2)(T.ones(1, 2, 4)):shape(), " "))  --> 1 2 4]],
  shapes = "[N, C, L] → the same" }

S["nn.LazyConv1d"] = { module("nn.LazyConv1d"), "A nn.Conv1d whose in_channels is found at the first call.", [[
local l = nn.LazyConv1d(3, 2)
l(T.ones(1, 2, 4))
print(l)  --> Conv1d(2, 3, kernel_size={2}, stride={1})]],
  shapes = "as nn.Conv1d" }

S["nn.LazyConvTranspose1d"] = { module("nn.LazyConvTranspose1d"),
  "A nn.ConvTranspose1d whose in_channels is found at the first call.", [[
local l = nn.LazyConvTranspose1d(3, 2)
l(T.ones(1, 2, 4))
print(l)  --> ConvTranspose1d(2, 3, kernel_size={2}, stride={1})]],
  shapes = "as nn.ConvTranspose1d" }

S["nn.LazyBatchNorm1d"] = { module("nn.LazyBatchNorm1d"),
  "A nn.BatchNorm1d whose num_features is found at the first call.", [[
local l = nn.LazyBatchNorm1d()
l(T.ones(1, 2, 4))
print(l:type(), l.num_features)  --> BatchNorm1d	2]],
  shapes = "as nn.BatchNorm1d" }

S["nn.LazyInstanceNorm1d"] = { module("nn.LazyInstanceNorm1d"),
  "A nn.InstanceNorm1d whose num_features is found at the first call.", [[
local l = nn.LazyInstanceNorm1d()
l(T.ones(1, 2, 4))
print(l:type(), l.num_features)  --> InstanceNorm1d	2]],
  shapes = "as nn.InstanceNorm1d" }

S["nn.Conv2d"] = { module("nn.Conv2d"),
  [[Cross-correlation with learned kernels. weight [out, in/groups, kernel], bias [out]; both uniform within
±1/√fan_in. padding: sizes, "same" or "valid".]], [[
print(table.concat(nn.Conv2d(2, 3, 3, { padding = 1 })(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 3 4 4]],
  shapes = "[N, in, H, W] → [N, out, H, W'] (or without N)" }

S["nn.ConvTranspose2d"] = { module("nn.ConvTranspose2d"),
  [[The gradient of a convolution for its input, as a layer: size (n - 1) stride - 2 padding + dilation (kernel
- 1) + output_padding + 1. weight [in, out/groups, kernel].]], [[
print(table.concat(nn.ConvTranspose2d(2, 3, 2, { stride = 2 })(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 3 8 8]],
  shapes = "[N, in, H, W] → [N, out, H, W'] (or without N)" }

S["nn.MaxPool2d"] = { module("nn.MaxPool2d"),
  "The largest value of each window; with return_indices also its place.", [[
print((nn.MaxPool2d(2)(T.arange(4):float():view(1, 1, 2, 2))))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu]],
  shapes = "[N, C, H, W] → [N, C, H, W']" }

S["nn.AvgPool2d"] = { module("nn.AvgPool2d"), "The mean of each window.", [[
print(nn.AvgPool2d(2)(T.arange(4):float():view(1, 1, 2, 2)))  --> {{{{2.5000}}}}  -- f32[1,1,1,1] cpu]],
  shapes = "[N, C, H, W] → [N, C, H, W']" }

S["nn.AdaptiveAvgPool2d"] = { module("nn.AdaptiveAvgPool2d"),
  "Means of windows cut so that the output has the given size.", [[
print(nn.AdaptiveAvgPool2d(1)(T.arange(4):float():view(1, 1, 2, 2)))  --> {{{{2.5000}}}}  -- f32[1,1,1,1] cpu]],
  shapes = "[N, C, H, W] → [N, C, output_size]" }

S["nn.AdaptiveMaxPool2d"] = { module("nn.AdaptiveMaxPool2d"),
  "Largest values of windows cut so that the output has the given size.", [[
print((nn.AdaptiveMaxPool2d(1)(T.arange(4):float():view(1, 1, 2, 2))))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu]],
  shapes = "[N, C, H, W] → [N, C, output_size]" }

S["nn.LPPool2d"] = { module("nn.LPPool2d"), "The p-norm of each window (norm_type p).", [[
print(nn.LPPool2d(1, 2)(T.ones(1, 1, 2, 2)))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu]],
  shapes = "[N, C, H, W] → [N, C, H, W']" }

S["nn.MaxUnpool2d"] = { module("nn.MaxUnpool2d"),
  "Zeros with the values at the places that a max pooling gave.", [[
local y, where = nn.MaxPool2d(2, { return_indices = true })(T.arange(4):float():view(1, 1, 2, 2))
print(nn.MaxUnpool2d(2)(y, where))
--> {{{{0., 0.},
-->    {0., 4.}}}}  -- f32[1,1,2,2] cpu]],
  shapes = "[N, C, H, W], indices → [N, C, H, W']" }

S["nn.FractionalMaxPool2d"] = { module("nn.FractionalMaxPool2d"),
  [[Maxima over windows at random places, as many as output_size or output_ratio say (Graham 2014). _random_samples
[N, C, 2] in [0, 1) decide in place of the generator.]], [[
print(table.concat(nn.FractionalMaxPool2d(2, { output_size = 3 })(T.ones(1, 2, 7, 8)):shape(), " "))  --> 1 2 3 3]],
  shapes = "[N, C, H, W] → [N, C, h, w]" }

S["nn.FractionalMaxPool3d"] = { module("nn.FractionalMaxPool3d"),
  [[Maxima over windows at random places, as many as output_size or output_ratio say (Graham 2014). _random_samples
[N, C, 3] in [0, 1) decide in place of the generator.]], [[
print(table.concat(nn.FractionalMaxPool3d(2, { output_ratio = 0.5 })(T.ones(1, 2, 4, 6, 8)):shape(), " "))
--> 1 2 2 3 4]],
  shapes = "[N, C, D, H, W] → [N, C, d, h, w]" }

S["nn.BatchNorm2d"] = { module("nn.BatchNorm2d"),
  [[Each channel minus its mean over its deviation, of the batch in training, of running statistics in
evaluation; then weight and bias. momentum=false keeps a plain average.]], [[
local norm = nn.BatchNorm2d(2)
print(table.concat(norm(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 2 4 4
print(norm.running_mean)  --> {0.1000, 0.1000}  -- f32[2] cpu]],
  shapes = "[N, C, H, W] → the same" }

S["nn.InstanceNorm2d"] = { module("nn.InstanceNorm2d"),
  [[Each channel of each sample minus its mean over its deviation. Weight and bias with affine=true, running
statistics with track_running_stats=true.]], [[
print(table.concat(nn.InstanceNorm2d(2)(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 2 4 4]],
  shapes = "[N, C, H, W] → the same" }

S["nn.LazyConv2d"] = { module("nn.LazyConv2d"), "A nn.Conv2d whose in_channels is found at the first call.", [[
local l = nn.LazyConv2d(3, 2)
l(T.ones(1, 2, 4, 4))
print(l)  --> Conv2d(2, 3, kernel_size={2, 2}, stride={1, 1})]],
  shapes = "as nn.Conv2d" }

S["nn.LazyConvTranspose2d"] = { module("nn.LazyConvTranspose2d"),
  "A nn.ConvTranspose2d whose in_channels is found at the first call.", [[
local l = nn.LazyConvTranspose2d(3, 2)
l(T.ones(1, 2, 4, 4))
print(l)  --> ConvTranspose2d(2, 3, kernel_size={2, 2}, stride={1, 1})]],
  shapes = "as nn.ConvTranspose2d" }

S["nn.LazyBatchNorm2d"] = { module("nn.LazyBatchNorm2d"),
  "A nn.BatchNorm2d whose num_features is found at the first call.", [[
local l = nn.LazyBatchNorm2d()
l(T.ones(1, 2, 4, 4))
print(l:type(), l.num_features)  --> BatchNorm2d	2]],
  shapes = "as nn.BatchNorm2d" }

S["nn.LazyInstanceNorm2d"] = { module("nn.LazyInstanceNorm2d"),
  "A nn.InstanceNorm2d whose num_features is found at the first call.", [[
local l = nn.LazyInstanceNorm2d()
l(T.ones(1, 2, 4, 4))
print(l:type(), l.num_features)  --> InstanceNorm2d	2]],
  shapes = "as nn.InstanceNorm2d" }

S["nn.Conv3d"] = { module("nn.Conv3d"),
  [[Cross-correlation with learned kernels. weight [out, in/groups, kernel], bias [out]; both uniform within
±1/√fan_in. padding: sizes, "same" or "valid".]], [[
print(table.concat(nn.Conv3d(2, 3, 3, { padding = 1 })(T.ones(1, 2, 4, 4, 4)):shape(), " "))  --> 1 3 4 4 4]],
  shapes = "[N, in, D, H, W] → [N, out, D, H, W'] (or without N)" }

S["nn.ConvTranspose3d"] = { module("nn.ConvTranspose3d"),
  [[The gradient of a convolution for its input, as a layer: size (n - 1) stride - 2 padding + dilation (kernel
- 1) + output_padding + 1. weight [in, out/groups, kernel].]], [[
print(table.concat(nn.ConvTranspose3d(2, 3, 2, { stride = 2 })(T.ones(1, 2, 4, 4, 4)):shape(), " "))
--> 1 3 8 8 8]],
  shapes = "[N, in, D, H, W] → [N, out, D, H, W'] (or without N)" }

S["nn.MaxPool3d"] = { module("nn.MaxPool3d"),
  "The largest value of each window; with return_indices also its place.", [[
print((nn.MaxPool3d(2)(T.arange(8):float():view(1, 1, 2, 2, 2))))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]],
  shapes = "[N, C, D, H, W] → [N, C, D, H, W']" }

S["nn.AvgPool3d"] = { module("nn.AvgPool3d"), "The mean of each window.", [[
print(nn.AvgPool3d(2)(T.arange(8):float():view(1, 1, 2, 2, 2)))  --> {{{{{4.5000}}}}}  -- f32[1,1,1,1,1] cpu]],
  shapes = "[N, C, D, H, W] → [N, C, D, H, W']" }

S["nn.AdaptiveAvgPool3d"] = { module("nn.AdaptiveAvgPool3d"),
  "Means of windows cut so that the output has the given size.", [[
print(nn.AdaptiveAvgPool3d(1)(T.arange(8):float():view(1, 1, 2, 2, 2)))
--> {{{{{4.5000}}}}}  -- f32[1,1,1,1,1] cpu]],
  shapes = "[N, C, D, H, W] → [N, C, output_size]" }

S["nn.AdaptiveMaxPool3d"] = { module("nn.AdaptiveMaxPool3d"),
  "Largest values of windows cut so that the output has the given size.", [[
print((nn.AdaptiveMaxPool3d(1)(T.arange(8):float():view(1, 1, 2, 2, 2))))
--> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]],
  shapes = "[N, C, D, H, W] → [N, C, output_size]" }

S["nn.LPPool3d"] = { module("nn.LPPool3d"), "The p-norm of each window (norm_type p).", [[
print(nn.LPPool3d(1, 2)(T.ones(1, 1, 2, 2, 2)))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu]],
  shapes = "[N, C, D, H, W] → [N, C, D, H, W']" }

S["nn.MaxUnpool3d"] = { module("nn.MaxUnpool3d"),
  "Zeros with the values at the places that a max pooling gave.", [[
local y, where = nn.MaxPool3d(2, { return_indices = true })(T.arange(8):float():view(1, 1, 2, 2, 2))
print(nn.MaxUnpool3d(2)(y, where))
--> {{{{{0., 0.},
-->     {0., 0.}},
-->
-->    {{0., 0.},
-->     {0., 8.}}}}}  -- f32[1,1,2,2,2] cpu]],
  shapes = "[N, C, D, H, W], indices → [N, C, D, H, W']" }

S["nn.BatchNorm3d"] = { module("nn.BatchNorm3d"),
  [[Each channel minus its mean over its deviation, of the batch in training, of running statistics in
evaluation; then weight and bias. momentum=false keeps a plain average.]], [[
local norm = nn.BatchNorm3d(2)
print(table.concat(norm(T.ones(1, 2, 4, 4, 4)):shape(), " "))  --> 1 2 4 4 4
print(norm.running_mean)  --> {0.1000, 0.1000}  -- f32[2] cpu]],
  shapes = "[N, C, D, H, W] → the same" }

S["nn.InstanceNorm3d"] = { module("nn.InstanceNorm3d"),
  [[Each channel of each sample minus its mean over its deviation. Weight and bias with affine=true, running
statistics with track_running_stats=true.]], [[
print(table.concat(nn.InstanceNorm3d(2)(T.ones(1, 2, 4, 4, 4)):shape(), " "))  --> 1 2 4 4 4]],
  shapes = "[N, C, D, H, W] → the same" }

S["nn.LazyConv3d"] = { module("nn.LazyConv3d"), "A nn.Conv3d whose in_channels is found at the first call.", [[
local l = nn.LazyConv3d(3, 2)
l(T.ones(1, 2, 4, 4, 4))
print(l)  --> Conv3d(2, 3, kernel_size={2, 2, 2}, stride={1, 1, 1})]],
  shapes = "as nn.Conv3d" }

S["nn.LazyConvTranspose3d"] = { module("nn.LazyConvTranspose3d"),
  "A nn.ConvTranspose3d whose in_channels is found at the first call.", [[
local l = nn.LazyConvTranspose3d(3, 2)
l(T.ones(1, 2, 4, 4, 4))
print(l)  --> ConvTranspose3d(2, 3, kernel_size={2, 2, 2}, stride={1, 1, 1})]],
  shapes = "as nn.ConvTranspose3d" }

S["nn.LazyBatchNorm3d"] = { module("nn.LazyBatchNorm3d"),
  "A nn.BatchNorm3d whose num_features is found at the first call.", [[
local l = nn.LazyBatchNorm3d()
l(T.ones(1, 2, 4, 4, 4))
print(l:type(), l.num_features)  --> BatchNorm3d	2]],
  shapes = "as nn.BatchNorm3d" }

S["nn.LazyInstanceNorm3d"] = { module("nn.LazyInstanceNorm3d"),
  "A nn.InstanceNorm3d whose num_features is found at the first call.", [[
local l = nn.LazyInstanceNorm3d()
l(T.ones(1, 2, 4, 4, 4))
print(l:type(), l.num_features)  --> InstanceNorm3d	2]],
  shapes = "as nn.InstanceNorm3d" }

return S
