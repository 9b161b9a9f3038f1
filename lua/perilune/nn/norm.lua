-- SPDX-License-Identifier: MIT
--- Normalization layers.
-- @module perilune.nn.norm
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local simple = require "perilune.nn.simple"

local class, Parameter, fail, read = base.class, base.Parameter, options.fail, options.read
local layer_norm, rms_norm = T.layer_norm, T.rms_norm
local settings = { "normalized_shape", "eps" }
local out = {}

local text = options.list_text

-- ---- over the last dimensions --------------------------------------------------------------------------

--- nn.LayerNorm(…) → module
-- (x - mean) / √(var + eps) over the last dimensions, then weight and bias (Ba et al. 2016).
-- Shapes: [*, normalized_shape] → the same
--   print(nn.LayerNorm(3)(T.tensor { 1, 2, 3 }):detach())  --> {-1.2247,  0.0000,  1.2247}  -- f32[3] cpu
local LayerNorm = class "LayerNorm"
local layer_spec = options.spec("nn.LayerNorm", {
  { "normalized_shape", "ints" }, { "eps", "nonnegative", 1e-5 }, { "elementwise_affine", "bool", true },
  { "bias", "bool", true }, { "dtype", "string", optional = true } }, { list_first = true })

local function shape_list(who, v)
  local list = type(v) == "table" and v or { v }
  if #list == 0 then fail("%s: normalized_shape is empty", who) end
  return list
end

function LayerNorm:init(...)
  local a = read(layer_spec, ...)
  self.normalized_shape = shape_list("nn.LayerNorm", a.normalized_shape)
  self.eps, self.elementwise_affine = a.eps, a.elementwise_affine
  self._opts = { normalized_shape = self.normalized_shape, eps = a.eps }
  if a.elementwise_affine then
    self.weight = Parameter(T.ones(self.normalized_shape, { dtype = a.dtype }))
    if a.bias then self.bias = Parameter(T.zeros(self.normalized_shape, { dtype = a.dtype })) end
  end
end

function LayerNorm:forward(x)
  return (layer_norm(x, self.weight, self.bias, simple.current(self, settings)))
end

function LayerNorm:extra_repr()
  return ("%s, eps=%g, elementwise_affine=%s"):format(text(self.normalized_shape), self.eps,
    tostring(self.elementwise_affine))
end

--- nn.RMSNorm(…) → module
-- x / √(mean x² + eps) over the last dimensions, then weight (Zhang & Sennrich 2019); times 1 + weight, which then
-- starts as zeros, with unit_offset.
-- Shapes: [*, normalized_shape] → the same
--   print(nn.RMSNorm(2)(T.tensor { 3, 4 }):detach())  --> {0.8485, 1.1314}  -- f32[2] cpu
local RMSNorm = class "RMSNorm"
local rms_spec = options.spec("nn.RMSNorm", {
  { "normalized_shape", "ints" }, { "eps", "nonnegative", optional = true },
  { "elementwise_affine", "bool", true }, { "dtype", "string", optional = true },
  { "unit_offset", "bool", false } }, { list_first = true })

function RMSNorm:init(...)
  local a = read(rms_spec, ...)
  self.normalized_shape = shape_list("nn.RMSNorm", a.normalized_shape)
  self.eps, self.elementwise_affine = a.eps, a.elementwise_affine
  self._opts = { normalized_shape = self.normalized_shape, eps = a.eps }
  self.unit_offset = a.unit_offset
  if a.elementwise_affine then
    local start = a.unit_offset and T.zeros or T.ones
    self.weight = Parameter(start(self.normalized_shape, { dtype = a.dtype }))
  elseif a.unit_offset then
    fail "nn.RMSNorm: unit_offset is of the weight, and elementwise_affine=false has none"
  end
end

function RMSNorm:forward(x)
  local weight = self.weight
  return (rms_norm(x, self.unit_offset and weight + 1 or weight, simple.current(self, settings)))
end

function RMSNorm:extra_repr()
  return ("%s, eps=%s, elementwise_affine=%s%s"):format(text(self.normalized_shape), self.eps or "nil",
    tostring(self.elementwise_affine), self.unit_offset and ", unit_offset=true" or "")
end

-- ---- over batch and space ------------------------------------------------------------------------------

-- What the norms over batch and space have of options `a`: a weight and a bias, running statistics.
local function set_up_channels(self, a)
  self.num_features, self.eps, self.momentum = a.num_features, a.eps, a.momentum
  self.affine, self.track_running_stats = a.affine, a.track_running_stats
  local opts = { dtype = a.dtype }
  if a.affine then
    self.weight = Parameter(T.ones({ a.num_features }, opts))
    if a.bias then self.bias = Parameter(T.zeros({ a.num_features }, opts)) end
  end
  if a.track_running_stats then
    self:register_buffer("running_mean", T.zeros({ a.num_features }, opts))
    self:register_buffer("running_var", T.ones({ a.num_features }, opts))
    self:register_buffer("num_batches_tracked", T.zeros({}, { dtype = "i64" }))
  end
end

-- `ranks` is the set of input ranks that the class takes; across: does it take statistics of several processes?
local function batch_norm(name, ranks, wanted, across)
  local who = "nn." .. name
  local C = class(name)
  local args = { { "num_features", "count" }, { "eps", "nonnegative", 1e-5 }, { "momentum", "momentum", 0.1 },
    { "affine", "bool", true }, { "track_running_stats", "bool", true }, { "dtype", "string", optional = true },
    { "bias", "bool", true } }
  if across then args[#args + 1] = { "process_group", "any", optional = true } end
  local spec = options.spec(who, args)

  function C:init(...)
    local a = read(spec, ...)
    set_up_channels(self, a)
    if across then across(self, a.process_group) end
  end

  function C:forward(x)
    if not ranks[x:dim()] then
      fail("%s: the input must be %s, got %d-d", who, wanted, x:dim())
    end
    if x:size(2) ~= self.num_features then
      fail("%s: the input has %d features in dimension 2, the layer %d", who, x:size(2), self.num_features)
    end
    local momentum = self.momentum
    local follows = self.training and self.track_running_stats and self.num_batches_tracked ~= nil
    if across and self.training and self:_across_ranks() then
      if follows then self.num_batches_tracked:add_(1) end
      return self:_joined(x)
    end
    if follows and not momentum then
      local mode = options.mode
      if mode.method then return mode.method(self.averaged, self, x) end -- looks at sizes
      return self:averaged(x)
    end
    -- Where track_running_stats was switched off later, the statistics that there are stay, and evaluation takes them.
    local mean, var = self.running_mean, self.running_var
    local own = self.training or mean == nil and var == nil
    if self.training and not self.track_running_stats then mean, var = nil, nil end
    local y = F.batch_norm(x, mean, var, self.weight, self.bias, own, momentum or 0.0, self.eps)
    if follows then self.num_batches_tracked:add_(1) end -- a batch that failed is none
    return y
  end

  -- momentum=false: each batch's statistics weigh as much as all before it; the share is a tensor, so that a traced
  -- function computes it anew.
  function C:averaged(x)
    local y, mean, var = T.batch_norm(x, nil, nil, self.weight, self.bias, { training = true, eps = self.eps })
    T.no_grad(function()
      local count, to_mean, to_var = self.num_batches_tracked, nil, nil
      if x:numel() > 0 then -- all that may be out of memory, before anything moves
        local n, share = x:numel() // x:size(2), (count + 1):to(mean:dtype()):reciprocal()
        to_mean = (mean - self.running_mean) * share
        to_var = (var * (n / (n - 1)) - self.running_var) * share
      end
      local _ <close> = T.core.hold_interrupts()
      if to_mean then
        self.running_mean:add_(to_mean)
        self.running_var:add_(to_var)
      end
      count:add_(1)
    end)
    return y
  end

  function C:extra_repr()
    return ("%d, eps=%g, momentum=%s, affine=%s, track_running_stats=%s"):format(self.num_features, self.eps,
      tostring(self.momentum), tostring(self.affine), tostring(self.track_running_stats))
  end

  out[name] = C
end

--- nn.BatchNorm1d(…) → module
-- Each channel minus its mean over its deviation, of the batch in training, of running statistics in evaluation; then
-- weight and bias. momentum=false keeps a plain average.
-- Shapes: [N, C, L] or [N, C] → the same
--   local norm = nn.BatchNorm1d(2)
--   print(table.concat(norm(T.ones(1, 2, 4)):shape(), " "))  --> 1 2 4
--   print(norm.running_mean)  --> {0.1000, 0.1000}  -- f32[2] cpu
batch_norm("BatchNorm1d", { [2] = true, [3] = true }, "[N, C] or [N, C, L]")

--- nn.BatchNorm2d(…) → module
-- Each channel minus its mean over its deviation, of the batch in training, of running statistics in evaluation; then
-- weight and bias. momentum=false keeps a plain average.
-- Shapes: [N, C, H, W] → the same
--   local norm = nn.BatchNorm2d(2)
--   print(table.concat(norm(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 2 4 4
--   print(norm.running_mean)  --> {0.1000, 0.1000}  -- f32[2] cpu
batch_norm("BatchNorm2d", { [4] = true }, "[N, C, H, W]")

--- nn.BatchNorm3d(…) → module
-- Each channel minus its mean over its deviation, of the batch in training, of running statistics in evaluation; then
-- weight and bias. momentum=false keeps a plain average.
-- Shapes: [N, C, D, H, W] → the same
--   local norm = nn.BatchNorm3d(2)
--   print(table.concat(norm(T.ones(1, 2, 4, 4, 4)):shape(), " "))  --> 1 2 4 4 4
--   print(norm.running_mean)  --> {0.1000, 0.1000}  -- f32[2] cpu
batch_norm("BatchNorm3d", { [5] = true }, "[N, C, D, H, W]")

--- nn.SyncBatchNorm(…, {process_group=}) → module
-- nn.BatchNorm1d, 2d or 3d whose batch, in training, is that of all processes of T.distributed: as one process on the
-- joined batch, whatever the ranks' shares. Every rank makes the same calls; the gradients of what they have in common
-- need DistributedDataParallel. Without several processes it is batch norm. process_group: one of its own, from
-- T.distributed.new_group. In a function that T.jit traces several processes are refused.
-- Shapes: [N, C, *] → the same
--   local net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
--   print(net[2])  --> SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=true, track_running_stats=true)
batch_norm("SyncBatchNorm", { [2] = true, [3] = true, [4] = true, [5] = true }, "[N, C, *]",
  function(self, group) self:_set_up_ranks(group) end)
require "perilune.nn.parallel.sync_batch_norm"(out)

--- nn.GroupNorm(…) → module
-- Groups of channels of each sample minus their mean over their deviation (Wu & He 2018).
-- Shapes: [N, C, *] → the same
--   print(table.concat(nn.GroupNorm(2, 4)(T.ones(1, 4, 3)):shape(), " "))  --> 1 4 3
local GroupNorm = class "GroupNorm"
local group_spec = options.spec("nn.GroupNorm", {
  { "num_groups", "count" }, { "num_channels", "count" }, { "eps", "nonnegative", 1e-5 },
  { "affine", "bool", true }, { "dtype", "string", optional = true }, { "bias", "bool", true } })

function GroupNorm:init(...)
  local a = read(group_spec, ...)
  if a.num_channels % a.num_groups ~= 0 then
    fail("nn.GroupNorm: num_channels %d must be a multiple of num_groups %d", a.num_channels, a.num_groups)
  end
  self.num_groups, self.num_channels, self.eps, self.affine = a.num_groups, a.num_channels, a.eps, a.affine
  if a.affine then
    self.weight = Parameter(T.ones({ a.num_channels }, { dtype = a.dtype }))
    if a.bias then self.bias = Parameter(T.zeros({ a.num_channels }, { dtype = a.dtype })) end
  end
end

function GroupNorm:forward(x) return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps) end

function GroupNorm:extra_repr()
  return ("%d, %d, eps=%g, affine=%s"):format(self.num_groups, self.num_channels, self.eps,
    tostring(self.affine))
end

out.LayerNorm, out.RMSNorm, out.GroupNorm = LayerNorm, RMSNorm, GroupNorm
-- ---- channels: local response, instances ----------------------------------------------------------------

--- nn.LocalResponseNorm(…) → module
-- x / (k + alpha mean of squares over size neighbouring channels)^beta (Krizhevsky et al. 2012).
-- Shapes: [N, C, *] → the same
--   print(table.concat(nn.LocalResponseNorm(3)(T.ones(1, 4, 2)):shape(), " "))  --> 1 4 2
out.LocalResponseNorm = simple.class("LocalResponseNorm", { { "size", "count" }, { "alpha", "number", 1e-4 },
  { "beta", "number", 0.75 }, { "k", "number", 1.0 } }, function(x, o) return F.local_response_norm(x, o) end)

--- nn.InstanceNorm1d(…) → module
-- Each channel of each sample minus its mean over its deviation. Weight and bias with affine=true, running statistics
-- with track_running_stats=true.
-- Shapes: [N, C, L] → the same
--   print(table.concat(nn.InstanceNorm1d(2)(T.ones(1, 2, 4)):shape(), " "))  --> 1 2 4

--- nn.InstanceNorm2d(…) → module
-- Each channel of each sample minus its mean over its deviation. Weight and bias with affine=true, running statistics
-- with track_running_stats=true.
-- Shapes: [N, C, H, W] → the same
--   print(table.concat(nn.InstanceNorm2d(2)(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 2 4 4

--- nn.InstanceNorm3d(…) → module
-- Each channel of each sample minus its mean over its deviation. Weight and bias with affine=true, running statistics
-- with track_running_stats=true.
-- Shapes: [N, C, D, H, W] → the same
--   print(table.concat(nn.InstanceNorm3d(2)(T.ones(1, 2, 4, 4, 4)):shape(), " "))  --> 1 2 4 4 4
for nd = 1, 3 do
  local name = ("InstanceNorm%dd"):format(nd)
  local who = "nn." .. name
  local C = class(name)
  local spec = options.spec(who, { { "num_features", "count" }, { "eps", "nonnegative", 1e-5 },
    { "momentum", "probability", 0.1 }, { "affine", "bool", false }, { "track_running_stats", "bool", false },
    { "dtype", "string", optional = true }, { "bias", "bool", true } })

  function C:init(...) set_up_channels(self, read(spec, ...)) end

  function C:forward(x)
    local single = x:dim() == nd + 1
    if single then x = x:unsqueeze(1) end
    if x:dim() ~= nd + 2 or x:size(2) ~= self.num_features then
      fail("%s: %d channels with %d further dimensions are wanted, got %s", who, self.num_features, nd,
        options.describe(x))
    end
    local live = self.training or not self.track_running_stats
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
