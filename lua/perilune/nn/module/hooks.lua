-- SPDX-License-Identifier: MIT
--- Hooks of modules, forward and backward.
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"

local class_name = require("perilune.surface").class_name
local fail, rawset, type, setmetatable = options.fail, rawset, type, setmetatable

return function(base)
  local Module = base.Module

  local Handle = classes.new("hook", "handle")
  base.HookHandle = Handle
  --- Removes the hook.
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

  function Module:_gate_outputs(call, out, whole)
    local several = type(out) == "table" and getmetatable(out) == nil
    for _, t in next, whole and out or {} do
      if T.is_tensor(t) and t.requires_grad then
        fail("register_full_backward_hook: the forward of %s returns a table, of which such a hook has no gradients; "
          .. "return its tensors as several values", class_name(self))
      end
    end
    several = several and not whole
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
end
