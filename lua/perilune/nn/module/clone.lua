-- SPDX-License-Identifier: MIT
--- net:clone().
local T = require "perilune"

local rawget, rawset, type, next, setmetatable = rawget, rawset, type, next, setmetatable

return function(base)
  local Module, is_module, is_parameter = base.Module, base.is_module, base.is_parameter

  local function copied(v, seen)
    local kind = type(v)
    if kind ~= "table" and kind ~= "userdata" then return v end
    if seen[v] ~= nil then return seen[v] end
    if kind == "userdata" then
      if not T.is_tensor(v) then return v end
      local t = v:detach():clone()
      if is_parameter[v] then t = base.Parameter(t, { requires_grad = v.requires_grad })
      elseif v.requires_grad and v.is_leaf then t:requires_grad_() end
      seen[v] = t
      return t
    end
    local new
    if is_module(v) then
      new = base.instance(getmetatable(v).__class)
    elseif getmetatable(v) == nil or getmetatable(v) == base.HookHandle or getmetatable(v).__copied then
      new = setmetatable({}, getmetatable(v))
    else
      return v -- objects of other kinds are shared
    end
    seen[v] = new
    for key, value in next, v do
      if not (is_module(v) and key == "_parameters") then rawset(new, key, copied(value, seen)) end
    end
    if is_module(v) then
      for key, p in next, v._parameters do new._parameters[key] = copied(p, seen) end
      local parametrized = rawget(getmetatable(v), "__parametrized")
      if parametrized then parametrized(new) end
    end
    return new
  end

  --- A module of its own with the same values: parameters, buffers and children are copied, hooks kept. What is
  -- shared inside stays shared inside.
  function Module:clone() return copied(self, {}) end
end
