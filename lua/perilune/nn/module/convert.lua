-- SPDX-License-Identifier: MIT
--- Modules on other devices, in other dtypes and memory formats: net:to, net:half, net:cuda ….
local T = require "perilune"
local options = require "perilune.options"

local fail, rawget, rawset, type = options.fail, rawget, rawset, type

return function(base)
  local Module, is_module, is_parameter = base.Module, base.is_module, base.is_parameter

  local FORMATS = { channels_last = 4, channels_last_3d = 5, contiguous = 0, preserve = 0 }
  local core = T.core

  -- The dtype, device and memory format that the arguments of net:to ask for.
  local function target(where, opts)
    local to
    if T.is_tensor(where) then
      to = { dtype = where:dtype(), device = where:device() }
    elseif type(where) == "string" then
      local device = where:match "^cpu" or where:match "^cuda"
      to = { [device and "device" or "dtype"] = where }
      if type(opts) == "string" and device then to.dtype, opts = opts, nil end -- net:to("cuda", "f16")
    elseif type(where) == "table" and getmetatable(where) == nil and opts == nil then
      to, opts = {}, where
    else
      fail("to: a dtype, a device, a tensor or a table of options is wanted, got %s",
        options.describe(type(where) == "table" and opts ~= nil and opts or where))
    end
    for key, v in pairs(options.check("to", opts, { "dtype", "device", "memory_format", "non_blocking" })) do
      to[key] = v
    end
    if to.memory_format ~= nil and not FORMATS[to.memory_format] then
      fail("to: a memory format is wanted, \"channels_last\", \"channels_last_3d\", \"contiguous\" or \"preserve\", "
        .. "got %s", options.describe(to.memory_format))
    end
    if to.dtype ~= nil then
      local dtype = type(to.dtype) == "string" and T.promote_types(to.dtype, to.dtype)
      if not dtype or not dtype:match "^b?f" then
        fail("to: a network is converted to floating dtypes, f32, f64, f16 or bf16, got %s", options.describe(to.dtype))
      end
    end
    return to
  end

  -- t's values as `to` asks, or t itself where nothing changes. Integers keep their dtype, and what is kept.
  local function converted(t, to, kept)
    local floating = t:is_floating_point() and not kept
    local dims = FORMATS[to.memory_format]
    local plain = t:detach()
    local new = plain:to { dtype = floating and to.dtype or nil, device = to.device, non_blocking = to.non_blocking,
      memory_format = floating and (dims == 0 or dims == t:dim()) and to.memory_format or nil }
    return rawequal(new, plain) and t or new
  end

  -- A parameter stays the same object, so that optimizers, tied modules and the script go on with it; its gradient goes
  -- along.
  local function convert_parameter(p, to)
    local new = converted(p, to)
    if rawequal(new, p) then return end
    local grad, torn = p.grad, core.torn { p }
    if grad then p.grad = nil end
    core.rebind(p, new)
    core.converted = (core.converted or 0) + 1 -- optimizers look at it
    if grad then
      local g = converted(grad, to)
      if not rawequal(g, grad) and not grad.grad_fn then core.rebind(grad, g) else grad = g end
      core.adopt_grad(p, grad)
      if torn then core.tear(p) end
    end
  end

  --- Moves or converts: a device name, a floating dtype (integer buffers keep theirs), a tensor (its dtype and device),
  -- or a table {dtype=, device=, memory_format=, non_blocking=}, whose format is for parameters and buffers of as many
  -- dims. Parameters stay the same objects, with their gradients, hooks and ties; the state of optimizers follows at
  -- their next step. Buffers are replaced.
  function Module:to(where, opts)
    if not is_module(self) then options.colon "net:to(device or dtype)" end
    local to, made = target(where, opts), {}
    for _, m in ipairs(self:modules()) do
      if rawget(m, "_lazy") then base.collect(m, "parameter") end -- raises: there is nothing to convert yet
    end
    for _, m in ipairs(self:modules()) do
      for _, key in ipairs(base.member_names(m)) do
        local old = base.member(m, key)
        if type(old) == "userdata" and made[old] == nil and (m._buffers[key] or is_parameter[old]) then
          made[old] = old
          local kept = rawget(m, "_kept")
          if is_parameter[old] then convert_parameter(old, to)
          else made[old] = converted(old, to, kept and kept[key]) end
        end
        local new = made[old]
        if new and not rawequal(new, old) then rawset(m, key, new) end -- a buffer
      end
    end
    return self
  end

  function Module:float() return self:to("f32") end
  function Module:double() return self:to("f64") end
  function Module:half() return self:to("f16") end
  function Module:bfloat16() return self:to("bf16") end
  function Module:cpu() return self:to("cpu") end
  function Module:cuda(index) return self:to(index and "cuda:" .. tostring(index) or "cuda") end
end
