-- SPDX-License-Identifier: MIT
--- Modules that do nothing but keep their arguments and call a function with them.
-- @module perilune.nn.simple
local base = require "perilune.nn.module"
local options = require "perilune.options"

local M = {}

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

--- What a module gives its function as options, self._opts, as its fields are now: scripts assign to those of layers
-- that they have, `net.conv1.stride = {1, 1}`. names: of the fields.
function M.current(self, names)
  local o = rawget(self, "_opts")
  if not o then -- of a subclass of the script's with an init of its own
    o = {}
    rawset(self, "_opts", o)
  end
  for i = 1, #names do
    local name = names[i]
    o[name] = self[name]
  end
  return o
end

--- The class `name`, whose instances keep their arguments and call apply(x, arguments).
function M.class(name, args, apply)
  local C = base.class(name)
  local spec = options.spec("nn." .. name, args)
  function C:init(...)
    local a = options.read(spec, ...)
    for key, v in pairs(a) do self[key] = v end
    self._opts = a
  end
  function C:forward(x) return apply(x, M.current(self, spec.names)) end
  function C:extra_repr() return described(args, self) end
  return C
end

return M
