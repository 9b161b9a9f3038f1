-- SPDX-License-Identifier: MIT
--- Layers over images: Upsample, PixelShuffle, ChannelShuffle, Fold, Unfold. Each calls the function of nn.F with the
-- same arguments.
-- @module perilune.nn.image
local F = require "perilune.nn.functional"
local T = require "perilune"
local simple = require "perilune.nn.simple"

local out = {}
local function define(name, args, apply) out[name] = simple.class(name, args, apply) end

-- A number or a list of numbers, for scale_factor.
--- nn.Upsample(…) → module
-- Resizes to size, or by scale_factor: mode "nearest", "nearest-exact", "linear", "bilinear", "bicubic",
-- "trilinear".
-- Shapes: [N, C, *] → [N, C, size]
--   print(nn.Upsample { scale_factor = 2 }(T.tensor { { { 1, 2 } } }))  --> {{{1., 1., 2., 2.}}}  -- f32[1,1,4] cpu
define("Upsample", {
  { "size", "window", optional = true }, { "scale_factor", "any", optional = true },
  { "mode", { "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear" }, "nearest" },
  { "align_corners", "bool", optional = true }, { "recompute_scale_factor", "bool", optional = true } },
  function(x, o) return F.interpolate(x, o) end)
-- Upsample with mode nearest or bilinear.
--- nn.UpsamplingNearest2d(…) → module
-- Resizes by repeating pixels.
-- Shapes: [N, C, H, W] → [N, C, H', W']
--   print(nn.UpsamplingNearest2d { scale_factor = 2 }(T.tensor { { { { 1, 2 } } } }))
--   --> {{{{1., 1., 2., 2.},
--   -->    {1., 1., 2., 2.}}}}  -- f32[1,1,2,4] cpu
define("UpsamplingNearest2d", { { "size", "window", optional = true }, { "scale_factor", "any", optional = true } },
  function(x, o) return F.interpolate(x, { size = o.size, scale_factor = o.scale_factor }) end)

--- nn.UpsamplingBilinear2d(…) → module
-- Resizes linearly between corners.
-- Shapes: [N, C, H, W] → [N, C, H', W']
--   print(nn.UpsamplingBilinear2d { size = { 1, 3 } }(T.tensor { { { { 1, 3 } } } }))
--   --> {{{{1., 2., 3.}}}}  -- f32[1,1,1,3] cpu
define("UpsamplingBilinear2d", { { "size", "window", optional = true }, { "scale_factor", "any", optional = true } },
  function(x, o)
    return F.interpolate(x, { size = o.size, scale_factor = o.scale_factor, mode = "bilinear", align_corners = true })
  end)

--- nn.PixelShuffle(…) → module
-- Channels become pixels.
-- Shapes: [*, C r², H, W] → [*, C, H r, W r]
--   print(table.concat(nn.PixelShuffle(2)(T.ones(1, 4, 3, 3)):shape(), " "))  --> 1 1 6 6
define("PixelShuffle", { { "upscale_factor", "count" } }, function(x, o) return T.pixel_shuffle(x,
  o.upscale_factor) end)

--- nn.PixelUnshuffle(…) → module
-- Pixels become channels.
-- Shapes: [*, C, H r, W r] → [*, C r², H, W]
--   print(table.concat(nn.PixelUnshuffle(2)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 4 2 2
define("PixelUnshuffle", { { "downscale_factor", "count" } },
  function(x, o) return T.pixel_unshuffle(x, o.downscale_factor) end)

--- nn.ChannelShuffle(…) → module
-- Interleaves the channels of groups.
-- Shapes: [N, C, *] → the same
--   print(nn.ChannelShuffle(2)(T.arange(4):view(1, 4, 1)):flatten())  --> {1, 3, 2, 4}  -- i64[4] cpu
define("ChannelShuffle", { { "groups", "count" } }, function(x, o) return T.channel_shuffle(x, o.groups) end)

local window = { { "kernel_size", "window" }, { "dilation", "window", 1 }, { "padding", "window", 0 }, { "stride",
  "ints", 1 } }

--- nn.Unfold(…) → module
-- Sliding blocks as columns.
-- Shapes: [N, C, H, W] → [N, C k, L]
--   print(nn.Unfold(2)(T.arange(4):float():view(1, 1, 2, 2)))
--   --> {{{1.},
--   -->   {2.},
--   -->   {3.},
--   -->   {4.}}}  -- f32[1,4,1] cpu
define("Unfold", window, function(x, o) return F.unfold(x, o) end)

--- nn.Fold(…) → module
-- Adds sliding blocks back into an image.
-- Shapes: [N, C k, L] → [N, C, H, W]
--   print(nn.Fold({ 2, 2 }, { 2, 2 })(T.arange(4):float():view(1, 4, 1)))
--   --> {{{{1., 2.},
--   -->    {3., 4.}}}}  -- f32[1,1,2,2] cpu
define("Fold", { { "output_size", "window" }, table.unpack(window) }, function(x, o) return F.fold(x, o) end)

return out
