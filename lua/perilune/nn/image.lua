-- SPDX-License-Identifier: MIT
--- Layers over images: Upsample, PixelShuffle, Fold, Unfold, instance and local response normalization, pooling
-- by powers. Each calls the function of nn.F with the same arguments.
-- @module perilune.nn.image
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local class, Parameter, fail, read = base.class, base.Parameter, options.fail, options.read
local out = {}

local function described(args, self)
  local parts = {}
  for _, arg in ipairs(args) do
    local v = self[arg[1]]
    if v ~= nil then
      if type(v) == "table" then v = "{" .. table.concat(v, ", ") .. "}" end
      parts[#parts + 1] = ("%s=%s"):format(arg[1], math.type(v) == "float" and ("%g"):format(v) or tostring(v))
    end
  end
  return table.concat(parts, ", ")
end

-- A module that keeps its arguments and calls apply(x, arguments).
local function define(name, args, apply)
  local C = class(name)
  local spec = options.spec("nn." .. name, args)
  function C:init(...)
    local a = read(spec, ...)
    for key, v in pairs(a) do self[key] = v end
    self._opts = a
  end
  function C:forward(x) return apply(x, self._opts) end
  function C:extra_repr() return described(args, self) end
  out[name] = C
  return C
end

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

define("LocalResponseNorm", { { "size", "count" }, { "alpha", "number", 1e-4 }, { "beta", "number", 0.75 },
  { "k", "number", 1.0 } }, function(x, o) return F.local_response_norm(x, o) end)

for nd = 1, 3 do
  local f = F[("lp_pool%dd"):format(nd)]
  define(("LPPool%dd"):format(nd), { { "norm_type", "number" }, { "kernel_size", "window" },
    { "stride", "window", optional = true }, { "ceil_mode", "bool", false } }, function(x, o) return f(x, o) end)
end

define("CosineSimilarity", { { "dim", "int", 2 }, { "eps", "nonnegative", 1e-8 } })
function out.CosineSimilarity:forward(x, y) return F.cosine_similarity(x, y, self._opts) end
define("PairwiseDistance", { { "p", "number", 2.0 }, { "eps", "nonnegative", 1e-6 }, { "keepdim", "bool", false } })
function out.PairwiseDistance:forward(x, y) return T.pairwise_distance(x, y, self._opts) end

-- ---- instance normalization --------------------------------------------------------------------------

--- Each channel of each sample normalized by itself (Ulyanov et al. 2016), [N, C, *]. With track_running_stats
-- evaluation uses running statistics.
for nd = 1, 3 do
  local name = ("InstanceNorm%dd"):format(nd)
  local who = "nn." .. name
  local C = class(name)
  local spec = options.spec(who, { { "num_features", "count" }, { "eps", "nonnegative", 1e-5 },
    { "momentum", "probability", 0.1 }, { "affine", "bool", false }, { "track_running_stats", "bool", false },
    { "dtype", "string", optional = true } })

  function C:init(...)
    local a = read(spec, ...)
    self.num_features, self.eps, self.momentum, self.affine = a.num_features, a.eps, a.momentum, a.affine
    self.track_running_stats = a.track_running_stats
    local opts = { dtype = a.dtype }
    if a.affine then
      self.weight = Parameter(T.ones({ a.num_features }, opts))
      self.bias = Parameter(T.zeros({ a.num_features }, opts))
    end
    if a.track_running_stats then
      self:register_buffer("running_mean", T.zeros({ a.num_features }, opts))
      self:register_buffer("running_var", T.ones({ a.num_features }, opts))
      self:register_buffer("num_batches_tracked", T.zeros({}, { dtype = "i64" }))
    end
  end

  function C:forward(x)
    local single = x:dim() == nd + 1
    if single then x = x:unsqueeze(1) end
    if x:dim() ~= nd + 2 or x:size(2) ~= self.num_features then
      fail("%s: %d channels with %d further dimensions are wanted, got %s", who, self.num_features, nd,
        options.describe(x))
    end
    local live = self.training or not self.track_running_stats
    if live and self.track_running_stats then self.num_batches_tracked:add_(1) end
    local y = F.instance_norm(x, { running_mean = self.running_mean, running_var = self.running_var,
      weight = self.weight, bias = self.bias, use_input_stats = live, momentum = self.momentum, eps = self.eps })
    return single and y:squeeze(1) or y
  end

  function C:extra_repr()
    return ("%d, eps=%g, momentum=%g, affine=%s, track_running_stats=%s"):format(self.num_features, self.eps,
      self.momentum, tostring(self.affine), tostring(self.track_running_stats))
  end

  out[name] = C
end

return out
