-- SPDX-License-Identifier: MIT
--- Pooling over 1, 2 or 3 spatial dimensions.
-- @module perilune.nn.pool
local F = require "perilune.nn.functional"
local base = require "perilune.nn.module"
local options = require "perilune.options"

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

return out
