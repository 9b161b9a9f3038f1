-- Gradient switches and rules on top of the engine: no_grad, enable_grad, override_gradient, scopes,
-- and the options of backward. Gradients of functions: functional.lua.
local options = require "perilune.options"
local getinfo = debug.getinfo

return function(T, core)
  local enter, leave = core.grad_enter, core.grad_leave -- of the running coroutine: bindings/autograd/grad_mode.c
  local retained = setmetatable({}, { __mode = "k" })

  -- A backward that failed after it had added to some gradients (an error in a hook, Ctrl-C, memory that is out) left
  -- sums that are not what the script believes, until they are set or written.
  function core.check_whole(who, params)
    local i = core.torn(params)
    if i then
      options.fail("%s: .grad of parameter %d, %s, has a part of a backward that failed, on top of what it had; call "
        .. "zero_grad(), or set .grad", who, i, params[i]:describe())
    end
  end

  -- Restores the switch however the block is left. Where recording was turned off is noted, for backward's message
  -- and for this one: T.no_grad() on a line of its own, which nothing ends.
  local since = setmetatable({}, { __mode = "k" }) -- open scopes
  local latest = 0
  local function place(at) return at and ("%s:%d"):format(at.short_src, at.currentline) or "?" end
  local scope = { __name = "scope" }
  scope.__close = core.held(function(self)
    if self.was ~= nil then leave(self.was) end
    self.was, since[self] = nil, nil
  end)
  function scope:__tostring()
    local what = self.on and "recording is on" or "recording is off"
    return self.was == nil and "a scope that has ended"
      or ("%s until this scope is closed: local _ <close> = T.%s()"):format(what, self.on and "enable_grad"
        or "no_grad")
  end
  local block = { __name = "scope", __close = scope.__close, __tostring = scope.__tostring }
  function block:__gc()
    if self.was == nil or not self.main then return end
    io.stderr:write(("warning: %s: the scope of T.%s() was thrown away, so recording stays %s; write "
      .. "local _ <close> = T.%s(), or T.%s(function() … end)\n"):format(place(self.at), self.name,
      self.on and "on" or "off", self.name, self.name))
  end

  -- The line that turned recording off, if a scope that is open did: for the message of backward.
  core.recording_off(function()
    local found
    for s in next, since do
      if not s.on and (not found or s.number > found.number) then found = s end
    end
    return found and place(found.at) or nil
  end)

  local function opened(on, name, meta)
    local _, main = coroutine.running()
    latest = latest + 1
    -- it is called by tail calls: level 2 is the script
    local s = setmetatable({ on = on, name = name, at = getinfo(2, "Sl"), main = main, number = latest }, meta)
    since[s] = true
    return core.open(s, enter, on)
  end

  local function switch(on)
    return function(f, ...)
      if f == nil then
        if select("#", ...) > 0 then options.fail("%s: the function is nil", on and "enable_grad" or "no_grad") end
        return opened(on, on and "enable_grad" or "no_grad", block)
      end
      if type(f) ~= "function" and not (getmetatable(f) or {}).__call then
        local name = on and "enable_grad" or "no_grad"
        options.fail("%s: a function or nothing expected, got %s", name, options.describe(f))
      end
      return core.around(enter, on, leave, f, ...)
    end
  end

  T.backward = core.backward

  --- T.no_grad :: local _ <close> = T.no_grad(), or T.no_grad(f, …) → what f returns
  -- Nothing is recorded until the end of the block, or inside f.
  --   local w = T.ones(2):requires_grad_()
  --   print(T.no_grad(function() return (w * 2).requires_grad end))  --> false
  T.no_grad = switch(false)

  --- T.enable_grad :: local _ <close> = T.enable_grad(), or T.enable_grad(f, …)
  -- Records also inside T.no_grad.
  --   local _ <close> = T.no_grad()
  --   print(T.enable_grad(T.is_grad_enabled))  --> true
  T.enable_grad = switch(true)

  --- T.inference_mode(…)
  -- Another name of T.no_grad.
  --   local _ <close> = T.inference_mode()
  --   print(T.is_grad_enabled())  --> false
  T.inference_mode = T.no_grad

  --- T.set_grad_enabled(on) → scope
  -- Turns recording on or off; the scope restores what was.
  --   do
  --     local _ <close> = T.set_grad_enabled(false)
  --     print(T.is_grad_enabled())  --> false
  --   end
  --   print(T.is_grad_enabled())    --> true
  T.set_grad_enabled = function(on)
    if type(on) ~= "boolean" then options.fail("set_grad_enabled: true or false expected, got %s", type(on)) end
    return opened(on, "set_grad_enabled", scope)
  end

  --- T.is_grad_enabled() → boolean
  -- Whether ops are recorded: not inside T.no_grad, nor in rules and hooks of a backward without create_graph.
  --   print(T.is_grad_enabled())  --> true
  T.is_grad_enabled = function() return core.records() end

  --- T.override_gradient("op", function(ctx, g…) … end or nil) → the rule replaced, or nil
  -- Replaces the gradient of a built-in op; ctx.inputs and ctx.outputs list the call's tensors. nil restores.
  --   T.override_gradient("relu", function(ctx, g) return g * 5 end)
  --   print(T.grad(function(x) return x:relu():sum() end)(T.tensor { 1, -1 }))  --> {5., 5.}  -- f32[2] cpu
  --   T.override_gradient("relu", nil)
  T.override_gradient = function(name, rule)
    local raw = core.op[name]
    if not raw then options.fail("override_gradient: there is no op '%s'", tostring(name)) end
    if rule ~= nil and type(rule) ~= "function" then
      options.fail("override_gradient: the rule must be a function(ctx, g) or nil, got %s", type(rule))
    end
    local call = rule and core.custom {
      name = name,
      forward = function(ctx, ...)
        local inputs, n = {}, 0
        for i = 1, select("#", ...) do
          local v = select(i, ...)
          if core.is_tensor(v) then n = n + 1 inputs[n] = v end
        end
        local out = table.pack(raw(...))
        ctx:save(table.unpack(inputs, 1, n))
        ctx.inputs, ctx.outputs = inputs, { table.unpack(out, 1, out.n) }
        return table.unpack(out, 1, out.n)
      end,
      backward = function(ctx, ...)
        ctx:saved() -- checks that no input was overwritten
        return rule(ctx, ...)
      end,
    }
    -- x:op_(…) and out=: the result is copied; the rule sees x as it was.
    local function write(inplace, ...)
      local args = table.pack(...)
      local target = inplace and args[1] or args[args.n].out
      if inplace then
        local before = target:clone()
        for i = 1, args.n do if rawequal(args[i], target) then args[i] = before end end
      else
        local opts = {}
        for k, v in pairs(args[args.n]) do if k ~= "out" then opts[k] = v end end
        args[args.n] = opts
      end
      return target:copy_(call(table.unpack(args, 1, args.n)))
    end
    return core.override_raw(name, rule, call, write)
  end

  -- x:requires_grad_(on = true) → x
  local requires_grad = core.metatable().methods.requires_grad_
  core.metatable().methods.requires_grad_ = function(x, on)
    if on ~= nil and type(on) ~= "boolean" then
      options.fail("requires_grad_: true or false is wanted, got %s", options.describe(on))
    end
    return requires_grad(x, on)
  end

  -- T.memory(device), T.reset_peak_memory(device): nil is the CPU
  for _, name in ipairs { "memory", "reset_peak_memory" } do
    local raw = core[name]
    T[name] = function(device)
      if device ~= nil and type(device) ~= "string" then
        options.fail("%s: the name of a device is wanted, got %s", name, options.describe(device))
      end
      return raw(device)
    end
  end

  -- x:retain_grad() → x: backward leaves the gradient of a computed tensor in its .grad, too.
  core.metatable().methods.retain_grad = function(x)
    if not core.is_tensor(x) then options.fail("retain_grad: a tensor expected, got %s", type(x)) end
    if x.is_leaf then
      if not x.requires_grad then options.fail("retain_grad: %s does not require a gradient", x:describe()) end
      return x
    end
    if retained[x] then return x end
    retained[x] = true
    local weak = setmetatable({ x }, { __mode = "v" }) -- its history keeps the hook: no cycle through it
    core.register_retained_hook(x, function(g)
      if weak[1] then core.grad_add(weak[1], g) end
    end)
    return x
  end

  -- local s <close> = T.scope(): frees tensors registered with s:add(t) when the block is left. The class is made with
  -- the first one: not when perilune loads.
  local Scope
  local function scope_class()
    local C = require("perilune.classes").new("scope", "s")
    function C:add(t) self[#self + 1] = t return t end
    function C.__close(self)
      for i = #self, 1, -1 do
        if not core.is_freed(self[i]) then self[i]:free() end
        self[i] = nil
      end
    end
    return C
  end

  --- T.scope :: local s <close> = T.scope()
  -- s:add(t) → t: frees the tensor's memory at the end of the block.
  --   local t
  --   do
  --     local s <close> = T.scope()
  --     t = s:add(T.zeros(1000))
  --   end
  --   print(t:is_freed())  --> true
  T.scope = function()
    Scope = Scope or scope_class()
    return setmetatable({}, Scope)
  end
end
