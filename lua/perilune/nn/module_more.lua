-- SPDX-License-Identifier: MIT
--- More methods of Module: members by path, other dtypes and devices, hooks, copies.
local T = require "perilune"
local options = require "perilune.options"
local class_name = require("perilune.surface").class_name

local fail, rawget, rawset, type, next, setmetatable = options.fail, rawget, rawset, type, next, setmetatable

return function(base)
  local Module, is_module, is_parameter = base.Module, base.is_module, base.is_parameter

  -- ---- by path ---------------------------------------------------------------------------------------

  local function child(m, key)
    local n = key:match("^%d+$") and math.tointeger(tonumber(key))
    return rawget(m, key) or n and rawget(m, n) or nil
  end
  local function walk(who, self, path)
    if type(path) ~= "string" then fail("%s: a path is a string, got %s", who, options.describe(path)) end
    local m = self
    for key in path:gmatch("[^.]+") do
      local at = child(m, key)
      if not is_module(at) then fail("%s: '%s' has no module '%s'", who, class_name(m), key) end
      m = at
    end
    return m
  end
  local function member(who, self, path, wanted)
    local owner, key = path:match("^(.*)%.([^.]+)$")
    local m = walk(who, self, owner or "")
    key = key or path
    local n = key:match("^%d+$") and math.tointeger(tonumber(key))
    local v = base.member(m, key) or n and base.member(m, n)
    if not v or not wanted(m, key, v) then fail("%s: '%s' has no '%s'", who, class_name(m), key) end
    return v
  end

  --- The module at "encoder.layers.1"; "" is this one.
  function Module:get_submodule(path) return walk("get_submodule", self, path) end
  --- The parameter at "layers.1.weight".
  function Module:get_parameter(path)
    return member("get_parameter", self, path, function(_, _, v) return is_parameter[v] end)
  end
  --- The buffer at "norm.running_mean".
  function Module:get_buffer(path)
    return member("get_buffer", self, path, function(m, key) return m._buffers[key] end)
  end
  --- Puts a module at a path whose owner exists.
  function Module:set_submodule(path, m)
    if type(path) ~= "string" or path == "" then
      fail("set_submodule: a path is wanted, got %s", options.describe(path))
    end
    if not is_module(m) then fail("set_submodule: a module is wanted, got %s", options.describe(m)) end
    local owner, key = path:match("^(.*)%.([^.]+)$")
    local at = walk("set_submodule", self, owner or "")
    key = key or path
    at:register_module(key:match("^%d+$") and math.tointeger(tonumber(key)) or key, m)
  end

  -- ---- dtypes and devices ------------------------------------------------------------------------------

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

  -- t's values as `to` asks, or t itself where nothing changes. Integers keep their dtype.
  local function converted(t, to)
    local floating = t:is_floating_point()
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
    local grad = p.grad
    if grad then p.grad = nil end
    core.rebind(p, new)
    core.converted = (core.converted or 0) + 1 -- optimizers look at it
    if grad then
      local g = converted(grad, to)
      if not rawequal(g, grad) and not grad.grad_fn then core.rebind(grad, g) else grad = g end
      core.adopt_grad(p, grad)
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
          if is_parameter[old] then convert_parameter(old, to) else made[old] = converted(old, to) end
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

  -- ---- hooks -------------------------------------------------------------------------------------------

  local Handle = {}
  Handle.__index = Handle
  --- Takes the hook away again.
  function Handle:remove()
    local kept = {} -- another list: a call may be going through the old one
    for _, hook in ipairs(self.hooks[self.which]) do
      if hook ~= self.hook then kept[#kept + 1] = hook end
    end
    self.hook.removed, self.hooks[self.which] = true, kept
  end

  local function add_hook(self, which, f, who)
    if type(f) ~= "function" then fail("%s: a function is wanted, got %s", who, options.describe(f)) end
    if not self._hooks then rawset(self, "_hooks", { before = {}, after = {} }) end
    local hook, hooks = { f = f }, self._hooks
    hooks[which] = { table.unpack(hooks[which] or {}) } -- those registered meanwhile wait for the next call
    table.insert(hooks[which], hook)
    return setmetatable({ hook = hook, hooks = hooks, which = which }, Handle)
  end

  --- f(module, args, output) after each call; what it returns (unless nil) replaces the output. Several
  -- outputs arrive as a list. Returns a handle with :remove().
  function Module:register_forward_hook(f) return add_hook(self, "after", f, "register_forward_hook") end
  --- f(module, args) before each call; a value or list that it returns replaces the arguments.
  function Module:register_forward_pre_hook(f)
    return add_hook(self, "before", f, "register_forward_pre_hook")
  end

  -- Backward hooks see gradients where these two gates stand: one behind a module's inputs, one before its outputs. A
  -- gate is the identity; `call` holds what one call of the module is to remember until backward.
  local function list_of(...) return { n = select("#", ...), ... } end

  local function run_hooks(call, grad_input)
    for _, hook in base.next_hook, call.module._hooks.back or {}, 0 do
      local new = hook.f(call.module, grad_input, call.grad_output)
      if new ~= nil then
        if type(new) ~= "table" then new = { new } end
        new.n = grad_input.n
        grad_input = new
      end
    end
    return grad_input
  end

  local function same(_, _, ...)
    local out = list_of(...)
    for i = 1, out.n do out[i] = out[i]:view(out[i]:shape()) end
    return table.unpack(out, 1, out.n)
  end

  local behind_inputs = T.custom {
    name = "backward_hook",
    forward = function(ctx, call, ...)
      ctx.call = call
      return same(ctx, call, ...)
    end,
    backward = function(ctx, ...)
      local call, given, grad_input = ctx.call, list_of(...), { n = ctx.call.nargs }
      for k, i in ipairs(call.places) do grad_input[i] = given[k] end
      grad_input = run_hooks(call, grad_input)
      for k, i in ipairs(call.places) do given[k] = grad_input[i] end
      return table.unpack(given, 1, given.n)
    end,
  }

  local before_outputs = T.custom {
    name = "backward_hook",
    forward = function(ctx, call, ...)
      ctx.call = call
      return same(ctx, call, ...)
    end,
    backward = function(ctx, ...)
      local call, grads, k = ctx.call, { n = ctx.call.nout }, 0
      for i = 1, call.nout do
        if call.tensors[i] then
          k = k + 1
          grads[i] = (select(k, ...))
        end
      end
      for _, hook in base.next_hook, call.module._hooks.pre_back or {}, 0 do
        local new = hook.f(call.module, grads)
        if new ~= nil then
          grads = type(new) == "table" and new or { new }
          grads.n = call.nout
        end
      end
      call.grad_output = grads
      if #call.places == 0 then run_hooks(call, { n = call.nargs }) end
      local given, n = {}, 0
      for i = 1, call.nout do
        if call.tensors[i] then
          n = n + 1
          given[n] = grads[i]
        end
      end
      return table.unpack(given, 1, n)
    end,
  }

  -- Replaces the tensors among the arguments that need a gradient.
  function Module:_gate_inputs(args)
    local call = { module = self, places = {}, nargs = args.n }
    local list = {}
    for i = 1, args.n do
      if T.is_tensor(args[i]) and args[i].requires_grad then
        call.places[#call.places + 1] = i
        list[#list + 1] = args[i]
      end
    end
    if #list > 0 then
      for k, t in ipairs { behind_inputs(call, table.unpack(list)) } do args[call.places[k]] = t end
    end
    return call
  end

  function Module:_gate_outputs(call, out)
    local several = type(out) == "table" and getmetatable(out) == nil
    local results, list = several and out or { out, n = 1 }, {}
    call.nout, call.tensors = results.n or #results, {}
    for i = 1, call.nout do
      if T.is_tensor(results[i]) and results[i].requires_grad then
        call.tensors[i] = true
        list[#list + 1] = results[i]
      end
    end
    if #list == 0 then return out end
    local made, k = { before_outputs(call, table.unpack(list)) }, 0
    local new = { n = call.nout }
    for i = 1, call.nout do
      if call.tensors[i] then k = k + 1 end
      new[i] = call.tensors[i] and made[k] or results[i]
    end
    return several and new or new[1]
  end

  --- f(module, grad_input, grad_output) in each backward pass through a call of the module: lists of the gradients of
  -- its arguments and results, nil where there is none. A list that it returns replaces grad_input. Without arguments
  -- that need a gradient it is called, too. Returns a handle with :remove().
  function Module:register_full_backward_hook(f) return add_hook(self, "back", f, "register_full_backward_hook") end
  --- f(module, grad_output) before the backward pass of a call; a list that it returns replaces grad_output.
  function Module:register_full_backward_pre_hook(f)
    local handle = add_hook(self, "pre_back", f, "register_full_backward_pre_hook")
    self._hooks.back = self._hooks.back or {}
    return handle
  end

  -- ---- copies ----------------------------------------------------------------------------------------------

  local function copied(v, seen)
    local kind = type(v)
    if kind ~= "table" and kind ~= "userdata" then return v end
    if seen[v] ~= nil then return seen[v] end
    if kind == "userdata" then
      if not T.is_tensor(v) then return v end
      local t = v:detach():clone()
      if is_parameter[v] then t = base.Parameter(t, { requires_grad = v.requires_grad }) end
      seen[v] = t
      return t
    end
    local new
    if is_module(v) then
      new = base.instance(getmetatable(v).__class)
    elseif getmetatable(v) == nil or getmetatable(v) == Handle then
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
    end
    return new
  end

  --- A module of its own with the same values: parameters, buffers and children are copied, hooks kept. What is
  -- shared inside stays shared inside.
  function Module:clone() return copied(self, {}) end
end
