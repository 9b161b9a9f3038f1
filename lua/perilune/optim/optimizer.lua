-- SPDX-License-Identifier: MIT
--- Base of the optimizers: parameter groups, state, zero_grad, state_dict.
--
-- A group is a table with the settings (lr, …) as plain fields, free to be changed between steps, and
-- `params`. What an optimizer remembers of a parameter is in per-group arrays beside it, so one step is one
-- pass over plain tables and one call of the engine.
-- @classmod Optimizer
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"
local surface = require "perilune.surface"
local members = require "perilune.optim.members"
local modes = require "perilune.optim.modes"
local looks = require "perilune.optim.settings"
local states = require "perilune.optim.states"

local fail, describe = options.fail, options.describe
local check_settings, is_numbers = looks.check_group, looks.is_numbers
local core = T.core
local zero, zeros = core.op.zero, states.zeros
local tracing = core.jit_tracing
local pack, unpack = table.pack, table.unpack
local zeroed = setmetatable({}, { __mode = "k" }) -- how often the script has dropped its gradients, for T.GradScaler
core.zeroed = zeroed

-- State is made of real tensors, also while a traced function runs.
local function real(f, ...)
  if tracing() then return require("perilune.jit").untraced(f, ...) end
  return f(...)
end

--- optim.Optimizer :: optim.X(params or groups, {lr=, …}) → optimizer
-- What all optimizers have: step(closure?), zero_grad{set_to_none=true}, param_groups (tables with the settings as
-- fields), add_param_group{params=, …}, state_dict(), load_state_dict(sd). opt.state[p] has what the steps of a
-- parameter have left: .step, .exp_avg and so on, the tensors themselves.
--   local a, b = nn.Parameter(T.ones(1)), nn.Parameter(T.ones(1))
--   local opt = optim.SGD({ { params = { a } }, { params = { b }, lr = 0.5 } }, { lr = 0.1 })
--   print(opt.param_groups[1].lr, opt.param_groups[2].lr, getmetatable(opt) ~= optim.Optimizer)  --> 0.1	0.5	true
local Optimizer = classes.new("Optimizer", "opt")
-- Whose is a group? T.jit leaves out what optimizers keep there to themselves.
local owners = setmetatable({}, { __mode = "k" })

-- Where neither an optimizer nor its class has a field of that name.
local all_settings = {}
getmetatable(Optimizer).__index = function(_, key)
  if all_settings[key] then fail("optim: %s is a setting of each group: opt.param_groups[1].%s", key, key) end
end

-- What a list has beside its entries would be dropped: optim.SGD{p, lr = 0.1}.
local function check_list(who, list, what)
  local key = options.stray(list)
  if key ~= nil then
    fail("%s: the list of %s has the key %s; settings come in a table behind it", who, what, describe(key))
  end
end

local function check_params(who, list, seen)
  if type(list) == "userdata" then list = { list } end
  if type(list) ~= "table" then
    fail("%s: a list of parameters or of groups is wanted, got %s", who, describe(list))
  end
  if type(list.parameters) == "function" then
    fail("%s: a list of parameters or of groups is wanted, got a module; pass net:parameters()", who)
  end
  local out = {}
  for i, p in ipairs(list) do
    if type(p) ~= "userdata" then fail("%s: parameter %d must be a tensor, got %s", who, i, describe(p)) end
    if not p.is_leaf then fail("%s: parameter %d is a result of ops, not a leaf", who, i) end
    if seen[p] then fail("%s: parameter %d appears twice", who, i) end
    seen[p] = true
    out[i] = p
  end
  if #out == 0 then
    local name, first = next(list)
    if type(name) == "string" and type(first) == "userdata" then
      fail("%s: a list is wanted, got a table with names such as '%s'; net:parameters() is one", who, name)
    end
    fail("%s: the list of parameters is empty%s", who, type(next(list)) == "string"
      and ("; it comes first, options behind it: %s(net:parameters(), { … })"):format(who)
      or "; a network has those of the modules that are assigned to its fields: self.fc = nn.Linear(…)")
  end
  check_list(who, list, "parameters")
  return out
end

-- A new optimizer class. `settings` is a list of {name, default, check}; check(v) returns true or what is
-- wanted.
local function class(name, settings)
  local known = {}
  local C = setmetatable({ name = name, settings = settings }, {
    __index = Optimizer,
    __call = function(C, ...) return C.new(C, ...) end,
  })
  C.__index = C
  classes.class(C, "opt", "update")
  C.__tostring = Optimizer.__tostring
  for _, s in ipairs(settings) do known[s[1]], all_settings[s[1]] = true, true end
  function C.__newindex(self, key, value)
    if known[key] then
      fail("optim.%s: %s is a setting of each group: for _, group in ipairs(opt.param_groups) do group.%s = … end",
        name, key, key)
    end
    rawset(self, key, value)
  end
  C.__name = name
  C.__jit = "opaque" -- knows how to be traced: perilune/jit/guards.lua
  return C
end

local function setting_names(class_)
  local names = {}
  for i, s in ipairs(class_.settings) do names[i] = s[1] end
  return names
end

local function checked(self, who, given, fallback, extra)
  local names = setting_names(self)
  local allowed = { table.unpack(names) }
  for _, x in ipairs(extra or {}) do allowed[#allowed + 1] = x end
  given = options.check(who, given, allowed)
  local out = {}
  for _, s in ipairs(self.settings) do
    local key, default, check = s[1], s[2], s[3]
    local v = given[key]
    if v == nil then v = fallback[key] end
    if v == nil then v = default end
    if v == nil then fail("%s: %s is missing", who, key) end
    local ok = check(v)
    if ok ~= true then fail("%s: %s must be %s, got %s", who, key, ok, describe(v)) end
    out[key] = type(v) == "table" and { table.unpack(v) } or v
  end
  return out
end

-- A step that failed holds on to no gradients: what is kept of the lists for the next is made again.
local Failed = { __close = function(of, err)
  if err == nil then return end
  for _, group in ipairs(of[1].param_groups) do group._lists, group._counts, group._full = nil, nil, nil end
end }

--- @tparam table params a list of parameters, or of groups `{params={…}, lr=…, …}`
-- @tparam[opt] table opts settings for all groups that do not say otherwise
function Optimizer.new(C, params, opts, ...)
  local who = "optim." .. C.name
  if select("#", ...) > 0 then surface.too_many(who, { "params", "options" }, params, opts, ...) end
  local self = setmetatable({ param_groups = {}, _converted = core.converted }, C)
  rawset(self, "state", states.by_parameter(self))
  rawset(self, "_failed", setmetatable({ self }, Failed))
  self.defaults = checked(C, who, opts, {})
  if type(params) == "table" and type(params[1]) == "table" and getmetatable(params[1]) == nil then
    check_list(who, params, "groups")
    for _, group in ipairs(params) do self:add_param_group(group) end
  else
    self:add_param_group { params = params }
  end
  return self
end

-- For subclasses: refuses a group that would be one of theirs.
function Optimizer:_admit(group) -- luacheck: ignore
end

--- Adds `{params={…}, lr=…, …}`; settings that it lacks come from the constructor.
function Optimizer:add_param_group(group)
  local who = "optim." .. self.name
  if type(group) ~= "table" or group.params == nil then
    fail("%s: a group needs the field params: { { params = net:parameters() }, … }", who)
  end
  self:_settle()
  local g = checked(self, who, group, self.defaults, { "params", "initial_lr" })
  g.initial_lr = group.initial_lr -- what schedules start from (lr_scheduler.lua)
  local seen, own = {}, {} -- groups may have been taken out since
  for _, known in ipairs(self.param_groups) do
    for _, p in ipairs(known.params) do seen[p] = true end
  end
  g.params = check_params(who, group.params, setmetatable(own, { __index = seen }))
  self:_admit(g) -- what is refused leaves nothing behind
  for p in next, own do modes.owners[p] = nil end -- what another optimizer left is this one's; one with modes says so
  g._steps, g._state, g._class = {}, {}, getmetatable(self)
  members.of(g)
  owners[g] = self
  self.param_groups[#self.param_groups + 1] = g
end

--- Forgets the gradients; with `set_to_none=false` fills them with zeros.
function Optimizer:zero_grad(opts)
  if type(self) ~= "table" then options.colon "opt:zero_grad()" end
  if not tracing() then zeroed[self] = (zeroed[self] or 0) + 1 end
  if opts ~= nil then
    if type(opts) == "boolean" then opts = { set_to_none = opts } end
    options.check("zero_grad", opts, { "set_to_none" })
    if opts.set_to_none == false then
      local _ <close> = T.no_grad()
      for _, group in ipairs(self.param_groups) do
        for _, p in ipairs(group.params) do
          local g = p.grad
          if g then
            if g.requires_grad then g:detach_() end -- of backward{create_graph=true}
            zero(g)
          end
        end
      end
      return
    end
  end
  local groups = self.param_groups
  for k = 1, #groups do
    local params = groups[k].params
    for i = 1, #params do params[i].grad = nil end
  end
end

-- After net:to some parameters have another dtype or device: what the optimizer remembers of them goes there, too.
local function follow(self)
  for _, group in ipairs(self.param_groups) do
    local state = {}
    for i, p in ipairs(group.params) do
      local old, device = group._state[i], p:device()
      local new = old
      for key, v in pairs(old or {}) do
        -- A state of another dtype than the parameter had was asked for.
        local own = type(v) == "userdata" and (group.state_dtype or not v:is_floating_point())
        local dtype = own and v:dtype() or p:dtype()
        if type(v) == "userdata" and (v:dtype() ~= dtype or v:device() ~= device) then
          if new == old then
            new = {}
            for k, kept in pairs(old) do new[k] = kept end
          end
          new[key] = real(v.to, v, { dtype = dtype, device = device })
        end
      end
      state[i] = new
    end
    group._state, group._lists, group._full = state, nil, nil
  end
  self._converted = core.converted
end

-- Are the settings of all groups fine?
function Optimizer:_check()
  local groups = self.param_groups
  for k = 1, #groups do check_settings(groups[k]) end
end

-- What comes before anything moves, also where updates run behind a jitted function's graph.
function Optimizer:_begin()
  self:_settle()
  self:_check()
  if core.converted ~= self._converted then follow(self) end
end

-- First states that a step made which failed then, or never came: they may be copies of parameters that are others by
-- now. A trace that has them is of no use any more.
local function forget_made(self)
  for _, group in ipairs(self.param_groups) do
    local kept
    for i in pairs(group._state) do
      if not group._steps[i] then
        kept = kept or table.move(group._state, 1, #group.params, 1, {})
        kept[i] = nil
      end
    end
    if kept then group._state, group._lists, group._full = kept, nil, nil end
  end
end
Optimizer._forget_made = forget_made

-- For subclasses: the first states of a group's parameters are made, without a step. → what update takes of it.
function Optimizer:_ready(group) -- luacheck: ignore
end

-- The step of these groups, all of self's or those that step behind a jitted function's graph. _begin was called.
function Optimizer:_update(groups)
  if self._moving then forget_made(self) end
  rawset(self, "_moving", true)
  local _ <close> = core.hold_interrupts() -- weights, states and counts of all groups move together
  local _ <close> = self._failed
  if #groups == 1 then
    self:update(groups[1])
  else
    local ready -- what may fail, does before the first of them moves
    for k = 1, #groups do
      if not groups[k]._full then
        ready = ready or {}
        ready[k] = pack(self:_ready(groups[k]))
      end
    end
    for k = 1, #groups do
      local r = ready and ready[k]
      if r then self:update(groups[k], unpack(r, 1, r.n)) else self:update(groups[k]) end
    end
  end
  rawset(self, "_moving", nil)
end

--- One update of every parameter that has a gradient. A closure computes the loss again and returns it.
function Optimizer:step(closure)
  if type(self) ~= "table" then options.colon "opt:step()" end
  local loss
  if closure ~= nil and type(closure) ~= "function" and not (getmetatable(closure) or {}).__call then
    fail("optim.%s:step: a function that computes the loss, or nothing, is wanted, got %s", self.name,
      describe(closure))
  end
  if closure then
    local _ <close> = T.enable_grad()
    loss = closure()
  end
  self:_begin()
  local groups = self.param_groups
  for k = 1, #groups do core.check_whole("optim." .. self.name .. ":step", groups[k].params) end
  self:_update(groups)
  return loss
end

-- A first state that is a copy is made when the function is traced, before anything of it runs.
local function check_unwritten(p, group)
  if not tracing() or not core.jit_written(p) then return end
  options.untraceable("optim.%s: its first states are copies of parameters, and the traced function writes one, %s, "
    .. "before its first step; take that step outside", group._class.name, describe(p))
end

-- The tensors of one engine call, by parameter: param, grad, then what `columns` names. Parameters whose
-- count of steps or device differs cannot share a call, so there is a list for each; almost always one.
-- make(p, group) returns the state of a parameter at its first step, a table by column name. The counts move when the
-- update has been made (call): one that fails is no step. lists.at[k]: whose parameters are in list k, nil for all.
-- carry: a number in the state; parameters that differ in it are in lists of their own, too.
local function gather(group, columns, make, carry)
  local params, steps, state = group.params, group._steps, group._state
  local width = 2 + #columns
  if group._columns ~= columns then -- a setting such as amsgrad was switched between steps
    group._columns, group._lists, group._full = columns, nil, nil
  end
  local lists, counts, n = group._lists, group._counts, 0
  if not lists then
    lists, counts = {}, {}
    group._lists, group._counts = lists, counts
  end
  -- The common case first: everybody has a gradient and the same count; the list of last time is reused.
  local list, at = lists[1], 0
  local first = steps[1] or 0
  if list and group._full then
    local i = 1
    while i <= #params do
      local grad = params[i].grad
      if not grad or steps[i] ~= first then break end
      list[at + 2] = grad
      at = at + width
      i = i + 1
    end
    if i > #params then
      counts[1] = first + 1
      return lists, counts, 1
    end
  end
  lists, counts = { at = {} }, {}
  group._lists, group._counts = lists, counts
  local by_kind, missing = {}, false
  for i = 1, #params do
    local p = params[i]
    local grad = p.grad
    if grad then
      local count = (steps[i] or 0) + 1
      local s = state[i]
      if not s then
        if group._class.copies then check_unwritten(p, group) end
        s = real(make, p, group)
        state[i] = s
      end
      local kind = p:device() .. count .. (carry and " " .. tostring(s[carry]) or "")
      local k = by_kind[kind]
      if not k then
        n = n + 1
        k, by_kind[kind], lists[n], counts[n], lists.at[n] = n, n, {}, count, {}
      end
      local l, at_k = lists[k], lists.at[k]
      local top = #l
      at_k[#at_k + 1] = i
      l[top + 1], l[top + 2] = p, grad
      for j, column in ipairs(columns) do
        s[column] = s[column] or real(zeros, p, group, column)
        l[top + 2 + j] = s[column]
      end
    else
      missing = true
    end
  end
  group._full = n == 1 and not missing
  if group._full then lists.at[1] = nil end
  return lists, counts, n
end

-- op(lists[which], settings(group, o, count)): one engine call for the parameters in that list, all at step `count`.
-- In a trace the call becomes a node that asks for its settings, and moves the counts, before each run. more: of what
-- else settings() reads: moved(±1, step) moves it, to where it was when keep() was called last; level() → are the
-- parameters alike in it? carried: names of the group's numbers that are no settings, but move. load(attrs) sets it
-- to what a saved node says of its last step; fixed: how many of the rule's numbers do not move (nil: all).
local nothing_more = {}
local function call(op, group, lists, which, width, o, count, settings, more)
  local list = lists[which]
  op(list, settings(group, o, count))
  local whose = lists.at and lists.at[which]
  for i = 1, whose and #whose or #group.params do group._steps[whose and whose[i] or i] = count end
  if not tracing() then return end
  more = more or nothing_more
  local moved, level, carried = more.moved, more.level, more.carried
  local at, own = {}, {}
  for k = 1, #list, width do
    for i, p in ipairs(group.params) do
      if rawequal(p, list[k]) then at[#at + 1] = i end
    end
  end
  -- The node is right while the state lives in the same tensors, no setting was switched on or off and its parameters
  -- are still at one step: one without a gradient for a while, which was not stepped then, is behind the others.
  local state, switches = group._state, {}
  for key, v in pairs(group) do
    local moves = key:sub(1, 1) == "_" or carried and carried[key]
    if not moves and (type(v) == "boolean" or type(v) == "number") then switches[key] = v ~= 0 and v ~= false end
  end
  require("perilune.jit").live(function() return settings(group, own, group._steps[at[1]]) end, function(by)
    local steps = group._steps
    if moved and by < 0 then moved(by, steps[at[1]]) end
    local now = (steps[at[1]] or 0) + by -- all are alike: holds, below
    if now == 0 then now = nil end
    for k = 1, #at do steps[at[k]] = now end
    if moved and by > 0 then moved(by, steps[at[1]]) end
  end, function()
    for key, on in next, switches do
      if on ~= (group[key] ~= 0 and group[key] ~= false) then return false end
    end
    local steps = group._steps
    local first = steps[at[1]]
    for k = 2, #at do
      if steps[at[k]] ~= first then return false end
    end
    return rawequal(group._state, state) and (not level or level())
  end, more.keep, {
    of = group, at = table.concat(at, ","), fixed = more.fixed,
    load = function(attrs)
      group.lr, group.weight_decay = attrs.lr, group.weight_decay and attrs.weight_decay
      for k = 1, #at do group._steps[at[k]] = attrs.step end
      if more.load then more.load(attrs) end
    end,
  })
end

-- Gradients stay alive through the lists until the next step; let them go with the step instead.
local function forget_grads(group, width)
  local list = group._lists[1]
  if group._full then
    for at = 2, #list, width do list[at] = false end
  else
    group._lists, group._counts = nil, nil
  end
end

function Optimizer:__tostring()
  if tracing() then require("perilune.jit").reads_settings() end
  local lines = { self.name .. " (" }
  for k, group in ipairs(self.param_groups) do
    lines[#lines + 1] = ("  group %d: %d parameters"):format(k, #group.params)
    for _, s in ipairs(self.settings) do
      local v = group[s[1]]
      if type(v) == "table" then
        local texts = {}
        for i, x in ipairs(v) do texts[i] = tostring(x) end
        v = "{" .. table.concat(texts, ", ") .. "}"
      end
      lines[#lines + 1] = ("    %s: %s"):format(s[1], tostring(v))
    end
  end
  return table.concat(lines, "\n") .. "\n)"
end

function Optimizer:_settle() members.settle(self, check_params, owners) end
states.methods(Optimizer, checked, function(s, v) -- what steps take
  return type(v) == "number" and v == v and (type(s[2]) == "number" or s[3](1) == true) or is_numbers(v, s[2])
end)

return {
  Optimizer = Optimizer, class = class, gather = gather, call = call, forget_grads = forget_grads,
  check_params = check_params, check = looks.check, settings = looks.common, owners = owners, real = real,
  check_settings = check_settings,
}
