-- SPDX-License-Identifier: MIT
--- Convolutions over 1, 2 or 3 spatial dimensions.
-- @module perilune.nn.conv
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local options = require "perilune.options"

local class, Parameter, fail = base.class, base.Parameter, options.fail
local per_dim = options.per_dim
local out = {}

local function listed(v) return type(v) == "table" and v or { v } end
local function text(v) return options.list_text(listed(v)) end
local function only(v, n)
  for _, one in ipairs(listed(v)) do if one ~= n then return false end end
  return true
end

--- nn.Conv1d(…) → module
-- Cross-correlation with learned kernels. weight [out, in/groups, kernel], bias [out]; both uniform within ±1/√fan_in.
-- padding: sizes, "same" or "valid", of what padding_mode says.
-- Shapes: [N, in, L] → [N, out, L'] (or without N)
--   print(table.concat(nn.Conv1d(2, 3, 3, { padding = 1 })(T.ones(1, 2, 4)):shape(), " "))  --> 1 3 4

--- nn.Conv2d(…) → module
-- Cross-correlation with learned kernels. weight [out, in/groups, kernel], bias [out]; both uniform within ±1/√fan_in.
-- padding: sizes, "same" or "valid", of what padding_mode says.
-- Shapes: [N, in, H, W] → [N, out, H, W'] (or without N)
--   print(table.concat(nn.Conv2d(2, 3, 3, { padding = 1 })(T.ones(1, 2, 4, 4)):shape(), " "))  --> 1 3 4 4

--- nn.Conv3d(…) → module
-- Cross-correlation with learned kernels. weight [out, in/groups, kernel], bias [out]; both uniform within ±1/√fan_in.
-- padding: sizes, "same" or "valid", of what padding_mode says.
-- Shapes: [N, in, D, H, W] → [N, out, D, H, W'] (or without N)
--   print(table.concat(nn.Conv3d(2, 3, 3, { padding = 1 })(T.ones(1, 2, 4, 4, 4)):shape(), " "))  --> 1 3 4 4 4
local function define(nd)
  local name = ("Conv%dd"):format(nd)
  local who = "nn." .. name
  local conv = F[("conv%dd"):format(nd)]
  local C = class(name)

  local spec = options.spec(who, {
    { "in_channels", "count" }, { "out_channels", "count" }, { "kernel_size", "window" }, { "stride", "window",
      1 },
    { "padding", "padding", 0 }, { "dilation", "window", 1 }, { "groups", "count", 1 }, { "bias", "bool",
      true },
    { "padding_mode", { "zeros", "reflect", "replicate", "circular" }, "zeros" },
    { "dtype", "string", optional = true } })

  -- What F.pad puts around x where the padding is no zeros: {before, after} for each dim, the last one first.
  local function at(v, d) return type(v) == "table" and v[d] or v end
  function C:_around()
    if self.padding_mode == "zeros" or self.padding == "valid" then return nil end
    local list, any = {}, false
    for d = nd, 1, -1 do
      local all = self.padding == "same" and at(self.dilation, d) * (at(self.kernel_size, d) - 1)
        or 2 * at(self.padding, d)
      list[#list + 1] = all // 2
      list[#list + 1] = all - all // 2
      any = any or all > 0
    end
    return any and list or nil
  end

  function C:init(...)
    local a = options.read(spec, ...)
    if a.in_channels % a.groups ~= 0 or a.out_channels % a.groups ~= 0 then
      fail("%s: in_channels %d and out_channels %d must be multiples of groups %d", who, a.in_channels,
        a.out_channels, a.groups)
    end
    self.in_channels, self.out_channels, self.groups = a.in_channels, a.out_channels, a.groups
    self.kernel_size = per_dim(who, "kernel_size", a.kernel_size, nd, 1)
    self.stride = per_dim(who, "stride", a.stride, nd, 1)
    self.dilation = per_dim(who, "dilation", a.dilation, nd, 1)
    if type(a.padding) == "string" then
      self.padding = a.padding
      if a.padding == "same" then
        for d = 1, nd do
          if self.stride[d] ~= 1 then fail("%s: padding 'same' needs stride 1", who) end
        end
      end
    else
      self.padding = per_dim(who, "padding", a.padding, nd, 0)
    end
    self.padding_mode = a.padding_mode
    self._opts = {}
    local shape = { a.out_channels, a.in_channels // a.groups, table.unpack(self.kernel_size) }
    self.weight = Parameter(T.empty(shape, { dtype = a.dtype }))
    if a.bias then self.bias = Parameter(T.empty({ a.out_channels }, { dtype = a.dtype })) end
    self:reset_parameters()
  end

  function C:reset_parameters()
    init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
    if self.bias then
      local fan_in = self.in_channels // self.groups
      for _, k in ipairs(self.kernel_size) do fan_in = fan_in * k end
      local bound = 1 / math.sqrt(fan_in)
      init.uniform_(self.bias, -bound, bound)
    end
  end

  function C:forward(x)
    local o, around = self._opts, self:_around() -- of the fields as they are now
    if around then x = F.pad(x, around, { mode = self.padding_mode }) end
    o.stride, o.padding, o.dilation, o.groups = self.stride, around and 0 or self.padding, self.dilation, self.groups
    return conv(x, self.weight, self.bias, o)
  end

  function C:extra_repr()
    local parts = { ("%d, %d, kernel_size=%s, stride=%s"):format(self.in_channels, self.out_channels,
      text(self.kernel_size), text(self.stride)) }
    local function add(fmt, ...) parts[#parts + 1] = fmt:format(...) end
    if type(self.padding) == "string" then
      add("padding=%s", self.padding)
    elseif not only(self.padding, 0) then
      add("padding=%s", text(self.padding))
    end
    if not only(self.dilation, 1) then add("dilation=%s", text(self.dilation)) end
    if self.groups > 1 then add("groups=%d", self.groups) end
    if not self.bias then add("bias=false") end
    if self.padding_mode ~= "zeros" then add("padding_mode=%s", self.padding_mode) end
    return table.concat(parts, ", ")
  end

  out[name] = C
end

--- [N, in, L] (or [in, L]) → [N, out, L']; weight [out, in/groups, k], bias [out].
define(1)
--- [N, in, H, W] (or [in, H, W]) → [N, out, H', W']; weight [out, in/groups, kh, kw].
define(2)
--- [N, in, D, H, W] → [N, out, D', H', W'].
define(3)

return out
