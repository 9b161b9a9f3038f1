-- SPDX-License-Identifier: MIT
--- Transposed convolutions: the adjoints of convolutions, which enlarge.
-- @module perilune.nn.conv_transpose
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local options = require "perilune.options"

local Parameter, fail = base.Parameter, options.fail
local per_dim, text = options.per_dim, options.list_text
local out = {}

--- nn.ConvTranspose1d(…) → module
-- The gradient of a convolution for its input, as a layer: size (n - 1) stride - 2 padding + dilation (kernel - 1) +
-- output_padding + 1. weight [in, out/groups, kernel].
-- Shapes: [N, in, L] → [N, out, L'] (or without N)
--   print(table.concat(nn.ConvTranspose1d(2, 3, 2, { stride = 2 })(T.ones(1, 2, 4)):shape(), " "))  --> 1 3 8

--- nn.ConvTranspose2d(…) → module
-- The gradient of a convolution for its input, as a layer: size (n - 1) stride - 2 padding + dilation (kernel - 1) +
-- output_padding + 1. weight [in, out/groups, kernel].
-- Shapes: [N, in, H, W] → [N, out, H, W'] (or without N)
--   print(table.concat(nn.ConvTranspose2d(2, 3, 2, { stride = 2 })(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 3 8 8

--- nn.ConvTranspose3d(…) → module
-- The gradient of a convolution for its input, as a layer: size (n - 1) stride - 2 padding + dilation (kernel - 1) +
-- output_padding + 1. weight [in, out/groups, kernel].
-- Shapes: [N, in, D, H, W] → [N, out, D, H, W'] (or without N)
--   print(table.concat(nn.ConvTranspose3d(2, 3, 2, { stride = 2 })(T.ones(1, 2, 4, 4, 4)):shape(), " "))
--   --> 1 3 8 8 8
for nd = 1, 3 do
  local name = ("ConvTranspose%dd"):format(nd)
  local who = "nn." .. name
  local apply = F[("conv_transpose%dd"):format(nd)]
  local C = base.class(name)
  local spec = options.spec(who, {
    { "in_channels", "count" }, { "out_channels", "count" }, { "kernel_size", "window" }, { "stride", "window", 1 },
    { "padding", "window", 0 }, { "output_padding", "ints", 0 }, { "groups", "count", 1 }, { "bias", "bool", true },
    { "dilation", "window", 1 }, { "padding_mode", { "zeros" }, "zeros" }, { "dtype", "string", optional = true } })

  function C:init(...)
    local a = options.read(spec, ...)
    if a.in_channels % a.groups ~= 0 or a.out_channels % a.groups ~= 0 then
      fail("%s: in_channels %d and out_channels %d must be multiples of groups %d", who, a.in_channels,
        a.out_channels, a.groups)
    end
    self.in_channels, self.out_channels, self.groups = a.in_channels, a.out_channels, a.groups
    self.kernel_size = per_dim(who, "kernel_size", a.kernel_size, nd, 1)
    self.stride = per_dim(who, "stride", a.stride, nd, 1)
    self.padding = per_dim(who, "padding", a.padding, nd, 0)
    self.output_padding = per_dim(who, "output_padding", a.output_padding, nd, 0)
    self.dilation = per_dim(who, "dilation", a.dilation, nd, 1)
    local shape = { a.in_channels, a.out_channels // a.groups, table.unpack(self.kernel_size) }
    self.weight = Parameter(T.empty(shape, { dtype = a.dtype }))
    if a.bias then self.bias = Parameter(T.empty({ a.out_channels }, { dtype = a.dtype })) end
    self:reset_parameters()
  end

  function C:reset_parameters()
    init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
    if self.bias then
      local fan_in = self.out_channels // self.groups
      for _, k in ipairs(self.kernel_size) do fan_in = fan_in * k end
      local bound = 1 / math.sqrt(fan_in)
      init.uniform_(self.bias, -bound, bound)
    end
  end

  local function at(v, d) return type(v) == "table" and v[d] or v end -- a script may assign one number for all dims

  -- What must be added behind so that the result has the sizes asked for.
  local function padding_for(self, x, size)
    local extra = {}
    for d = 1, nd do
      local least = (x:size(x:dim() - nd + d) - 1) * at(self.stride, d) - 2 * at(self.padding, d) +
        at(self.dilation, d) * (at(self.kernel_size, d) - 1) + 1
      extra[d] = size[#size - nd + d] - least
      local stride = at(self.stride, d)
      if extra[d] < 0 or extra[d] >= stride then
        fail("%s: output_size %d is not one of %d to %d", who, size[#size - nd + d], least, least + stride - 1)
      end
    end
    return extra
  end

  --- (x[, {output_size = sizes}])
  function C:forward(x, opts)
    local o = options.check(who, opts, { "output_size" })
    return apply(x, self.weight, self.bias, { stride = self.stride, padding = self.padding, groups = self.groups,
      output_padding = o.output_size and padding_for(self, x, o.output_size) or self.output_padding,
      dilation = self.dilation })
  end

  function C:extra_repr()
    local parts = { ("%d, %d, kernel_size=%s, stride=%s"):format(self.in_channels, self.out_channels,
      text(self.kernel_size), text(self.stride)) }
    for _, item in ipairs { { "padding", 0 }, { "output_padding", 0 }, { "dilation", 1 } } do
      local list = self[item[1]]
      local most = type(list) == "table" and math.max(table.unpack(list)) or list
      if most > item[2] then parts[#parts + 1] = item[1] .. "=" .. text(list) end
    end
    if self.groups > 1 then parts[#parts + 1] = "groups=" .. self.groups end
    if not self.bias then parts[#parts + 1] = "bias=false" end
    return table.concat(parts, ", ")
  end

  out[name] = C
end

return out
