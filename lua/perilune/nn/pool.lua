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
  function C:forward(x) return F[op](x, simple.current(self, spec.names)) end
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

--- nn.AdaptiveAvgPool1d(…) → module
-- Means of windows cut so that the output has the given size.
-- Shapes: [N, C, L] → [N, C, output_size]
--   print(nn.AdaptiveAvgPool1d(1)(T.arange(2):float():view(1, 1, 2)))  --> {{{1.5000}}}  -- f32[1,1,1] cpu

--- nn.AdaptiveAvgPool2d(…) → module
-- Means of windows cut so that the output has the given size.
-- Shapes: [N, C, H, W] → [N, C, output_size]
--   print(nn.AdaptiveAvgPool2d(1)(T.arange(4):float():view(1, 1, 2, 2)))  --> {{{{2.5000}}}}  -- f32[1,1,1,1] cpu

--- nn.AdaptiveAvgPool3d(…) → module
-- Means of windows cut so that the output has the given size.
-- Shapes: [N, C, D, H, W] → [N, C, output_size]
--   print(nn.AdaptiveAvgPool3d(1)(T.arange(8):float():view(1, 1, 2, 2, 2)))
--   --> {{{{{4.5000}}}}}  -- f32[1,1,1,1,1] cpu

--- nn.AvgPool1d(…) → module
-- The mean of each window.
-- Shapes: [N, C, L] → [N, C, L']
--   print(nn.AvgPool1d(2)(T.arange(2):float():view(1, 1, 2)))  --> {{{1.5000}}}  -- f32[1,1,1] cpu

--- nn.AvgPool2d(…) → module
-- The mean of each window.
-- Shapes: [N, C, H, W] → [N, C, H, W']
--   print(nn.AvgPool2d(2)(T.arange(4):float():view(1, 1, 2, 2)))  --> {{{{2.5000}}}}  -- f32[1,1,1,1] cpu

--- nn.AvgPool3d(…) → module
-- The mean of each window.
-- Shapes: [N, C, D, H, W] → [N, C, D, H, W']
--   print(nn.AvgPool3d(2)(T.arange(8):float():view(1, 1, 2, 2, 2)))  --> {{{{{4.5000}}}}}  -- f32[1,1,1,1,1] cpu

--- nn.MaxPool1d(…) → module
-- The largest value of each window; with return_indices also its place.
-- Shapes: [N, C, L] → [N, C, L']
--   print((nn.MaxPool1d(2)(T.arange(2):float():view(1, 1, 2))))  --> {{{2.}}}  -- f32[1,1,1] cpu

--- nn.MaxPool2d(…) → module
-- The largest value of each window; with return_indices also its place.
-- Shapes: [N, C, H, W] → [N, C, H, W']
--   print((nn.MaxPool2d(2)(T.arange(4):float():view(1, 1, 2, 2))))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu

--- nn.MaxPool3d(…) → module
-- The largest value of each window; with return_indices also its place.
-- Shapes: [N, C, D, H, W] → [N, C, D, H, W']
--   print((nn.MaxPool3d(2)(T.arange(8):float():view(1, 1, 2, 2, 2))))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu
for nd = 1, 3 do
  -- Largest value in each window. `{3, 2}` as the only argument means kernel 3, stride 2.
  define(("MaxPool%dd"):format(nd), ("max_pool%dd"):format(nd), {
    { "kernel_size", "window" }, { "stride", "window", optional = true }, { "padding", "window", 0 },
    { "dilation", "window", 1 }, { "return_indices", "bool", false }, { "ceil_mode", "bool", false } })
  -- Mean of each window.
  local args = { { "kernel_size", "window" }, { "stride", "window", optional = true }, { "padding", "window", 0 },
    { "ceil_mode", "bool", false }, { "count_include_pad", "bool", true } }
  if nd > 1 then args[6] = { "divisor_override", "count", optional = true } end
  args[#args + 1] = { "dilation", "window", 1 }
  define(("AvgPool%dd"):format(nd), ("avg_pool%dd"):format(nd), args)
  -- Windows cut so that the output has the given size.
  define(("AdaptiveAvgPool%dd"):format(nd), ("adaptive_avg_pool%dd"):format(nd), { { "output_size",
    "window" } },
    { list_first = true })
end

--- nn.AdaptiveMaxPool1d(…) → module
-- Largest values of windows cut so that the output has the given size.
-- Shapes: [N, C, L] → [N, C, output_size]
--   print((nn.AdaptiveMaxPool1d(1)(T.arange(2):float():view(1, 1, 2))))  --> {{{2.}}}  -- f32[1,1,1] cpu

--- nn.AdaptiveMaxPool2d(…) → module
-- Largest values of windows cut so that the output has the given size.
-- Shapes: [N, C, H, W] → [N, C, output_size]
--   print((nn.AdaptiveMaxPool2d(1)(T.arange(4):float():view(1, 1, 2, 2))))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu

--- nn.AdaptiveMaxPool3d(…) → module
-- Largest values of windows cut so that the output has the given size.
-- Shapes: [N, C, D, H, W] → [N, C, output_size]
--   print((nn.AdaptiveMaxPool3d(1)(T.arange(8):float():view(1, 1, 2, 2, 2))))
--   --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu
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
  function C:forward(x) return F[op](x, simple.current(self, spec.names)) end
  function C:extra_repr()
    local size = self.output_size
    return "output_size=" .. (type(size) == "table" and "{" .. table.concat(size, ", ") .. "}" or tostring(size))
  end
  out[name] = C
end

--- nn.MaxUnpool1d(…) → module
-- Zeros with the values at the places that a max pooling gave.
-- Shapes: [N, C, L], indices → [N, C, L']
--   local y, where = nn.MaxPool1d(2, { return_indices = true })(T.arange(2):float():view(1, 1, 2))
--   print(nn.MaxUnpool1d(2)(y, where))  --> {{{0., 2.}}}  -- f32[1,1,2] cpu

--- nn.MaxUnpool2d(…) → module
-- Zeros with the values at the places that a max pooling gave.
-- Shapes: [N, C, H, W], indices → [N, C, H, W']
--   local y, where = nn.MaxPool2d(2, { return_indices = true })(T.arange(4):float():view(1, 1, 2, 2))
--   print(nn.MaxUnpool2d(2)(y, where))
--   --> {{{{0., 0.},
--   -->    {0., 4.}}}}  -- f32[1,1,2,2] cpu

--- nn.MaxUnpool3d(…) → module
-- Zeros with the values at the places that a max pooling gave.
-- Shapes: [N, C, D, H, W], indices → [N, C, D, H, W']
--   local y, where = nn.MaxPool3d(2, { return_indices = true })(T.arange(8):float():view(1, 1, 2, 2, 2))
--   print(nn.MaxUnpool3d(2)(y, where))
--   --> {{{{{0., 0.},
--   -->     {0., 0.}},
--   -->
--   -->    {{0., 0.},
--   -->     {0., 8.}}}}}  -- f32[1,1,2,2,2] cpu
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

--- nn.LPPool1d(…) → module
-- The p-norm of each window (norm_type p).
-- Shapes: [N, C, L] → [N, C, L']
--   print(nn.LPPool1d(1, 2)(T.ones(1, 1, 2)))  --> {{{2.}}}  -- f32[1,1,1] cpu

--- nn.LPPool2d(…) → module
-- The p-norm of each window (norm_type p).
-- Shapes: [N, C, H, W] → [N, C, H, W']
--   print(nn.LPPool2d(1, 2)(T.ones(1, 1, 2, 2)))  --> {{{{4.}}}}  -- f32[1,1,1,1] cpu

--- nn.LPPool3d(…) → module
-- The p-norm of each window (norm_type p).
-- Shapes: [N, C, D, H, W] → [N, C, D, H, W']
--   print(nn.LPPool3d(1, 2)(T.ones(1, 1, 2, 2, 2)))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu
for nd = 1, 3 do
  local f = F[("lp_pool%dd"):format(nd)]
  local name = ("LPPool%dd"):format(nd)
  out[name] = simple.class(name, { { "norm_type", "number" }, { "kernel_size", "window" },
    { "stride", "window", optional = true }, { "ceil_mode", "bool", false }, { "padding", "window", 0 },
    { "dilation", "window", 1 } }, function(x, o) return f(x, o) end)
end

--- nn.FractionalMaxPool2d(…) → module
-- Maxima over windows at random places, as many as output_size or output_ratio say (Graham 2014). _random_samples [N,
-- C, 2] in [0, 1) decide in place of the generator.
-- Shapes: [N, C, H, W] → [N, C, h, w]
--   print(table.concat(nn.FractionalMaxPool2d(2, { output_size = 3 })(T.ones(1, 2, 7, 8)):shape(), " "))  --> 1 2 3 3

--- nn.FractionalMaxPool3d(…) → module
-- Maxima over windows at random places, as many as output_size or output_ratio say (Graham 2014). _random_samples [N,
-- C, 3] in [0, 1) decide in place of the generator.
-- Shapes: [N, C, D, H, W] → [N, C, d, h, w]
--   print(table.concat(nn.FractionalMaxPool3d(2, { output_ratio = 0.5 })(T.ones(1, 2, 4, 6, 8)):shape(), " "))
--   --> 1 2 2 3 4
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
    self.return_indices, self._random_samples, self._opts = a.return_indices, a._random_samples, {}
  end
  local names = { "output_size", "output_ratio", "return_indices", "_random_samples" }
  function C:forward(x) return F[f](x, self.kernel_size, simple.current(self, names)) end
  out[name] = C
end

return out
