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
define("Upsample", {
  { "size", "window", optional = true }, { "scale_factor", "any", optional = true },
  { "mode", { "nearest", "linear", "bilinear", "bicubic", "trilinear" }, "nearest" },
  { "align_corners", "bool", optional = true }, { "recompute_scale_factor", "bool", optional = true } },
  function(x, o) return F.interpolate(x, o) end)
--- Upsample with mode nearest or bilinear.
define("UpsamplingNearest2d", { { "size", "window", optional = true }, { "scale_factor", "any", optional = true } },
  function(x, o) return F.interpolate(x, { size = o.size, scale_factor = o.scale_factor }) end)
define("UpsamplingBilinear2d", { { "size", "window", optional = true }, { "scale_factor", "any", optional = true } },
  function(x, o)
    return F.interpolate(x, { size = o.size, scale_factor = o.scale_factor, mode = "bilinear", align_corners = true })
  end)

define("PixelShuffle", { { "upscale_factor", "count" } }, function(x, o) return T.pixel_shuffle(x,
  o.upscale_factor) end)
define("PixelUnshuffle", { { "downscale_factor", "count" } },
  function(x, o) return T.pixel_unshuffle(x, o.downscale_factor) end)
define("ChannelShuffle", { { "groups", "count" } }, function(x, o) return T.channel_shuffle(x, o.groups) end)

local window = { { "kernel_size", "window" }, { "dilation", "window", 1 }, { "padding", "window", 0 }, { "stride",
  "ints", 1 } }
define("Unfold", window, function(x, o) return F.unfold(x, o) end)
define("Fold", { { "output_size", "window" }, table.unpack(window) }, function(x, o) return F.fold(x, o) end)

return out
