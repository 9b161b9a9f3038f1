-- SPDX-License-Identifier: MIT
--- Pooling over 1, 2 or 3 spatial dimensions.
-- @module perilune.nn.pool
local F = require "perilune.nn.functional"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local simple = require "perilune.nn.simple"

local class, fail, read = base.class, options.fail, options.read
local out = {}

local function text(v)
  return type(v) == "table" and "{" .. table.concat(v, ", ") .. "}" or tostring(v)
end

-- A class whose arguments go unchanged to the function of nn.F.
local function define(name, op, args, settings)
  local C = base.class(name)
  local spec = options.spec("nn." .. name, args, settings)
  function C:init(...)
    local a = options.read(spec, ...)
    if settings and type(a.output_size) == "table" and #a.output_size == 1 then
      a.output_size = a.output_size[1]
    end
    if args[2] and args[2][1] == "stride" and a.stride == nil then a.stride = a.kernel_size end
    for key, v in pairs(a) do self[key] = v end
    self._opts = a
  end
  function C:forward(x) return F[op](x, self._opts) end
  function C:extra_repr()
    local parts = {}
    for _, arg in ipairs(args) do
      local v = self[arg[1]]
      if v ~= nil and v ~= arg[3] then parts[#parts + 1] = ("%s=%s"):format(arg[1], text(v)) end
    end
    return table.concat(parts, ", ")
  end
  out[name] = C
end

for nd = 1, 3 do
  -- Largest value in each window. `{3, 2}` as the only argument means kernel 3, stride 2.
  define(("MaxPool%dd"):format(nd), ("max_pool%dd"):format(nd), {
    { "kernel_size", "window" }, { "stride", "window", optional = true }, { "padding", "window", 0 },
    { "dilation", "window", 1 }, { "return_indices", "bool", false }, { "ceil_mode", "bool", false } })
  -- Mean of each window.
  local args = { { "kernel_size", "window" }, { "stride", "window", optional = true }, { "padding", "window", 0 },
    { "ceil_mode", "bool", false }, { "count_include_pad", "bool", true } }
  if nd > 1 then args[6] = { "divisor_override", "count", optional = true } end
  define(("AvgPool%dd"):format(nd), ("avg_pool%dd"):format(nd), args)
  -- Windows cut so that the output has the given size.
  define(("AdaptiveAvgPool%dd"):format(nd), ("adaptive_avg_pool%dd"):format(nd), { { "output_size",
    "window" } },
    { list_first = true })
end

for nd = 1, 3 do
  -- Windows cut so that the output has the given size: the largest value of each.
  local name, op = ("AdaptiveMaxPool%dd"):format(nd), ("adaptive_max_pool%dd"):format(nd)
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "output_size", "window" }, { "return_indices", "bool", false } },
    { list_first = true })
  function C:init(...)
    local a = options.read(spec, ...)
    if type(a.output_size) == "table" and #a.output_size == 1 then a.output_size = a.output_size[1] end
    self.output_size, self.return_indices, self._opts = a.output_size, a.return_indices, a
  end
  function C:forward(x) return F[op](x, self._opts) end
  function C:extra_repr()
    local size = self.output_size
    return "output_size=" .. (type(size) == "table" and "{" .. table.concat(size, ", ") .. "}" or tostring(size))
  end
  out[name] = C
end

for nd = 1, 3 do
  local name, f = ("MaxUnpool%dd"):format(nd), ("max_unpool%dd"):format(nd)
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "kernel_size", "window" }, { "stride", "window", optional = true },
    { "padding", "window", 0 }, { "index_base", "int", 1 } })
  function C:init(...)
    local a = read(spec, ...)
    self.kernel_size, self.stride, self.padding, self.index_base = a.kernel_size, a.stride, a.padding, a.index_base
  end
  --- (x, indices of a max pooling, {output_size=})
  function C:forward(x, indices, opts)
    local o = options.check(name, opts, { "output_size" })
    return F[f](x, indices, self.kernel_size, { stride = self.stride, padding = self.padding,
      output_size = o.output_size, index_base = self.index_base })
  end
  out[name] = C
end

for nd = 1, 3 do
  local f = F[("lp_pool%dd"):format(nd)]
  local name = ("LPPool%dd"):format(nd)
  out[name] = simple.class(name, { { "norm_type", "number" }, { "kernel_size", "window" },
    { "stride", "window", optional = true }, { "ceil_mode", "bool", false } }, function(x, o) return f(x, o) end)
end

-- Windows whose places are drawn at random (Graham 2014).
for nd = 2, 3 do
  local name, f = ("FractionalMaxPool%dd"):format(nd), ("fractional_max_pool%dd"):format(nd)
  local C = class(name)
  local args = options.spec("nn." .. name, { { "kernel_size", "window" }, { "output_size", "window", optional = true },
    { "output_ratio", "any", optional = true }, { "return_indices", "bool", false },
    { "_random_samples", "tensor", optional = true } })
  function C:init(...)
    local a = options.read(args, ...)
    if (a.output_size == nil) == (a.output_ratio == nil) then
      fail("nn.%s: either output_size or output_ratio must be given", name)
    end
    self.kernel_size, self.output_size, self.output_ratio = a.kernel_size, a.output_size, a.output_ratio
    self._opts = { output_size = a.output_size, output_ratio = a.output_ratio, return_indices = a.return_indices,
      _random_samples = a._random_samples }
  end
  function C:forward(x) return F[f](x, self.kernel_size, self._opts) end
  out[name] = C
end

return out
