-- SPDX-License-Identifier: MIT
--- T.GradScaler: scales losses so that gradients in f16 do not vanish, and leaves out steps whose gradients hold Inf
-- or NaN. Rules, defaults and state are those of torch.amp.GradScaler.
-- @classmod GradScaler
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local tracing = T.core.jit_tracing
local foreach_norm, foreach_scale = T.core.op.foreach_norm, T.core.op.foreach_scale_

--- T.GradScaler{init_scale=65536, growth_factor=2, backoff_factor=0.5, growth_interval=2000, enabled=true}
-- s:scale(loss):backward(), s:unscale_(opt), s:step(opt), s:update(): gradients in f16 that do not vanish.
--   local p = T.tensor({ 1.0, 2 }):requires_grad_()
--   local opt = T.optim.SGD({ p }, { lr = 0.1 })
--   local s = T.GradScaler { init_scale = 8 }
--   s:scale((p * 3):sum()):backward()
--   s:step(opt)
--   s:update()
--   print(p:get(1), s:get_scale())  --> 0.69999998807907	8.0
local Scaler = classes.new("GradScaler", "scaler")
Scaler.__jit = "opaque" -- knows how to be traced: perilune/jit/guards.lua

local settings = {
  init_scale = { 65536.0, "a finite number > 0", function(v) return v > 0 and v < math.huge end },
  growth_factor = { 2.0, "a number > 1", function(v) return v > 1 end },
  backoff_factor = { 0.5, "a number between 0 and 1", function(v) return v > 0 and v < 1 end },
  growth_interval = { 2000, "a positive integer", function(v) return options.integer(v) and v >= 1 end },
}
local names = { "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled" }

local function check(key, v)
  local s = settings[key]
  if type(v) ~= "number" or not s[3](v) then fail("GradScaler: %s must be %s, got %s", key, s[2], describe(v)) end
  return v
end

local function new(_, opts)
  local o = options.check("GradScaler", opts, names)
  if o.enabled ~= nil and type(o.enabled) ~= "boolean" then
    fail("GradScaler: enabled must be true or false, got %s", describe(o.enabled))
  end
  local self = setmetatable({ _enabled = o.enabled ~= false, _tracker = 0 }, Scaler)
  for key, s in pairs(settings) do
    local v = o[key]
    if v == nil then v = s[1] else check(key, v) end
    self["_" .. (key == "init_scale" and "scale" or key)] = v
  end
  self._scale = self._scale + 0.0
  self:_forget()
  return self
end

-- What is known of each optimizer since the last update: stage "ready", "unscaled" or "stepped"; found: Inf or NaN.
function Scaler:_forget() self._seen = setmetatable({}, { __mode = "k" }) end

local function times_zeroed(opt) return T.core.zeroed and T.core.zeroed[opt] end

local function record(self, opt)
  local r = self._seen[opt]
  if not r then
    r = { stage = "ready" }
    self._seen[opt] = r
  end
  if r.stage == "unscaled" and r.zeroed ~= times_zeroed(opt) then r.stage = "ready" end
  return r
end

-- An iteration that ended behind unscale_, by an error or Ctrl-C, and whose gradients are gone: those that come are
-- scaled, and the next step has to divide them.
local function forget_dropped(self)
  for opt, r in pairs(self._seen) do
    local any = r.stage ~= "unscaled"
    for _, group in ipairs(any and {} or opt.param_groups) do
      for _, p in ipairs(group.params) do any = any or p.grad ~= nil end
    end
    if not any then r.stage = "ready" end
  end
end

-- What graphs read at each run: the scale, and one over it.
local function held(self)
  if not self._held then
    require("perilune.jit").untraced(function()
      self._held = { scale = T.tensor(self._scale, { dtype = "f32", device = "cpu" }),
        inverse = T.tensor(1 / self._scale, { dtype = "f64", device = "cpu" }) }
    end)
  end
  return self._held
end

local function set_scale(self, v)
  self._scale = v
  if self._held then
    T.no_grad(function()
      self._held.scale:fill_(v)
      self._held.inverse:fill_(1 / v)
    end)
  end
end

--- x (a tensor, or a list of lists of them) times the scale; x itself when the scaler is off.
function Scaler:scale(x)
  if not self._enabled then return x end
  if next(self._seen) and not tracing() then forget_dropped(self) end
  if T.is_tensor(x) then
    if not tracing() then return x * self._scale end
    local d = x:dtype()
    if d == "f32" or d == "f64" then return x * held(self).scale end
    return (x:to("f32") * held(self).scale):to(d)
  end
  if type(x) ~= "table" then fail("GradScaler: scale wants a tensor or a list of tensors, got %s", describe(x)) end
  options.list("GradScaler", "what scale gets", x, "tensors")
  local out = {}
  for i = 1, #x do out[i] = self:scale(x[i]) end
  return out
end

local function is_bad(largest)
  local v = largest:item()
  return v ~= v or v == math.huge
end

-- Divides the gradients; returns whether one holds Inf or NaN (in a trace, the largest of them), nil if there is none.
local function unscale(self, opt)
  local grads = {}
  for _, group in ipairs(opt.param_groups) do
    T.core.check_whole("GradScaler", group.params)
    for _, p in ipairs(group.params) do
      local g = p.grad
      if g then
        if g:dtype() == "f16" then
          fail("GradScaler: parameters in f16 have f16 gradients, which cannot be unscaled; keep parameters in f32 and "
            .. "compute in T.autocast(\"f16\")")
        end
        grads[#grads + 1] = g
      end
    end
  end
  if #grads == 0 then return nil end
  local largest
  local inverse = tracing() and held(self).inverse or T.tensor(1 / self._scale, { dtype = "f64", device = "cpu" })
  for _, list in ipairs(T.core.device.groups(grads) or { grads }) do -- what is on one device
    local worst = foreach_norm(list, { p = math.huge })
    largest = largest and largest:maximum(worst:to(largest:device())) or worst
    list[#list + 1] = inverse
    T.no_grad(foreach_scale, list)
  end
  if tracing() then return largest end
  return is_bad(largest)
end

-- What was found in a trace is known when its graph has run, and to nobody outside of it; what was found outside, a
-- graph would repeat.
local function check_place(found)
  if found == nil or T.is_tensor(found) == tracing() then return end
  local refuse = tracing() and options.untraceable or fail
  refuse("GradScaler: unscale_, step and update of one iteration belong together: all in one traced function, or all "
    .. "outside of it")
end

local function check_optimizer(who, opt)
  if type(opt) ~= "table" or type(opt.param_groups) ~= "table" or type(opt.step) ~= "function" then
    fail("GradScaler: %s wants an optimizer, got %s", who, describe(opt))
  end
end

--- Divides the gradients of opt's parameters by the scale, in place: before clipping, say. Once between updates.
function Scaler:unscale_(opt)
  if not self._enabled then return end
  check_optimizer("unscale_", opt)
  local r = record(self, opt)
  if r.stage == "unscaled" then
    fail("GradScaler: unscale_ was called for this optimizer since the last update; once is enough")
  elseif r.stage == "stepped" then
    fail("GradScaler: unscale_ comes after step; it must come before")
  end
  local _ <close> = T.core.hold_interrupts() -- all are divided, and it is known
  r.found = unscale(self, opt)
  r.stage, r.zeroed = "unscaled", times_zeroed(opt)
end

--- Unscales unless that was done, then opt:step(…), left out when a gradient holds Inf or NaN. Returns what opt:step
-- returns, or nothing.
function Scaler:step(opt, ...)
  check_optimizer("step", opt)
  if not self._enabled then return opt:step(...) end
  for i = 1, select("#", ...) do
    if type((select(i, ...))) == "function" then
      fail("GradScaler: a closure for step is possible only when it is off")
    end
  end
  local r = record(self, opt)
  if r.stage == "stepped" then
    fail("GradScaler: step was called for this optimizer since the last update; call update() after each step")
  end
  if r.stage == "ready" then self:unscale_(opt) end
  check_place(r.found)
  if r.found == nil then fail("GradScaler: no parameter of this optimizer has a gradient; was the loss scaled?") end
  if tracing() then -- what to do is known when the graph has run: the update comes behind it
    r.stage = "stepped"
    for _, group in ipairs(opt.param_groups) do require("perilune.jit").defer(opt, group, r.found, is_bad) end
    return
  end
  if r.found then
    r.stage = "stepped"
    return
  end
  local out = table.pack(opt:step(...))
  r.stage = "stepped"
  return table.unpack(out, 1, out.n)
end

-- One iteration on; found: for each optimizer whether Inf or NaN was met, or its largest gradient.
local function move(self, ...)
  local found = false
  for _, r in ipairs { ... } do found = found or r == true or T.is_tensor(r) and is_bad(r) end
  if found then
    set_scale(self, self._scale * self._backoff_factor)
    self._tracker = 0
  else
    self._tracker = self._tracker + 1
    if self._tracker == self._growth_interval then
      local larger = self._scale * self._growth_factor
      if larger <= 0x1.fffffep127 then set_scale(self, larger) end -- PyTorch's scale is an f32
      self._tracker = 0
    end
  end
end

--- The scale for the next iteration: smaller after Inf or NaN, larger after growth_interval good ones in a row;
-- or the number (or one-element tensor) given.
function Scaler:update(new_scale)
  if not self._enabled then return end
  if new_scale ~= nil then
    local v = T.is_tensor(new_scale) and new_scale:numel() == 1 and new_scale:item() or new_scale
    set_scale(self, check("init_scale", v) + 0.0)
  else
    local found = {}
    for _, r in pairs(self._seen) do
      check_place(r.found)
      if r.found ~= nil then found[#found + 1] = r.found end
    end
    if #found == 0 then fail("GradScaler: update without a step or unscale_ before it") end
    if tracing() then
      require("perilune.jit").act(self, move, table.unpack(found))
    else
      move(self, table.unpack(found))
    end
  end
  self:_forget()
end

function Scaler:get_scale() return self._enabled and self._scale or 1.0 end
function Scaler:is_enabled() return self._enabled end
for _, key in ipairs { "growth_factor", "backoff_factor", "growth_interval" } do
  Scaler["get_" .. key] = function(self) return self["_" .. key] end
  Scaler["set_" .. key] = function(self, v) self["_" .. key] = check(key, v) end
end

local state_names = { "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker" }

--- Plain data for T.save; empty when the scaler is off.
function Scaler:state_dict()
  if not self._enabled then return {} end
  return { scale = self._scale, growth_factor = self._growth_factor, backoff_factor = self._backoff_factor,
    growth_interval = self._growth_interval, _growth_tracker = self._tracker }
end

function Scaler:load_state_dict(state)
  if not self._enabled then return end
  if type(state) ~= "table" then fail("GradScaler: load_state_dict wants a table, got %s", describe(state)) end
  if next(state) == nil then fail("GradScaler: this state is empty; it was saved by a scaler that was off") end
  options.check("GradScaler", state, state_names)
  for _, key in ipairs(state_names) do
    if type(state[key]) ~= "number" then
      fail("GradScaler: the state's %s must be a number, got %s", key, describe(state[key]))
    end
  end
  local tracker = options.integer(state._growth_tracker)
  if not tracker or tracker < 0 then
    fail("GradScaler: the state's _growth_tracker must be a non-negative integer, got %s",
      describe(state._growth_tracker))
  end
  check("init_scale", state.scale)
  for _, key in ipairs { "growth_factor", "backoff_factor", "growth_interval" } do check(key, state[key]) end
  set_scale(self, state.scale)
  self._growth_factor, self._backoff_factor = state.growth_factor, state.backoff_factor
  self._growth_interval, self._tracker = options.integer(state.growth_interval), tracker
end

function Scaler:__tostring()
  return ("GradScaler(scale=%g%s)"):format(self:get_scale(), self._enabled and "" or ", off")
end

return setmetatable(Scaler, { __call = new })
