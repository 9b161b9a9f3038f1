-- SPDX-License-Identifier: MIT
--- What optimizers remember of parameters: zeros to begin with, in the dtype that is asked for, and state dicts.
-- @module perilune.optim.states
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local core = T.core
local M = {}

-- Second moments and the like have no sign: in 8 bits all codes are for what is not negative.
local unsigned = { exp_avg_sq = true, max_exp_avg_sq = true, square_avg = true, exp_inf = true }
local ROW, BLOCK = 260, 256 -- a row of codes, kernels/optim_states.h
local FEWEST = 4096 -- elements of a parameter whose states are kept in 8 bits

-- The shape of a state in 8 bits of n elements.
local function coded_shape(n) return { (n + BLOCK - 1) // BLOCK, ROW } end
-- Is v such a state? Its last row may be of any number of elements, so state_dict says how many there are.
local function is_coded(v, n)
  return core.is_tensor(v) and not v:is_floating_point() and v:dim() == 2 and v:size(1) == coded_shape(n)[1]
    and v:size(2) == ROW
end

-- A state of zeros, in the group's state_dtype or that of the parameter.
function M.zeros(p, group, column)
  local dtype = group and group.state_dtype
  if not dtype then return T.zeros_like(p) end
  if dtype ~= "i8" then return T.zeros_like(p, { dtype = dtype }) end
  if p:numel() < FEWEST then return T.zeros_like(p, { dtype = p:dtype() == "f64" and "f64" or "f32" }) end
  return T.zeros(coded_shape(p:numel()), { dtype = unsigned[column] and "u8" or "i8", device = p:device() })
end

local function plain(group)
  local out = {}
  for key, v in pairs(group) do
    if key ~= "params" and key:sub(1, 1) ~= "_" then
      out[key] = type(v) == "table" and { table.unpack(v) } or v
    end
  end
  return out
end

-- What PyTorch keeps in 0-d tensors, also of parameters that are 0-d themselves.
local counters = { step = true, mu_product = true, eta = true, mu = true }
local function number_of(key, v)
  return counters[key] and core.is_tensor(v) and v:numel() == 1 and v:item() or v
end

-- How many steps a state is of. PyTorch counts none where its formula asks only for the first (SGD, Muon): what is kept
-- was left by one.
local function steps_of(s)
  local count = options.integer(number_of("step", s.step))
  if count or s.step ~= nil then return count or 0 end
  for _, v in pairs(s) do if core.is_tensor(v) then return 1 end end
  return 0
end

-- What a state is kept in, of a parameter that may have another dtype than the one that it was saved with.
local function dtype_for(v, p, state_dtype)
  if not v:is_floating_point() or state_dtype and state_dtype ~= "i8" then return v:dtype() end
  if state_dtype then return p:dtype() == "f64" and "f64" or "f32" end -- too small for 8 bits
  return p:dtype()
end

-- ---- opt.state[p] ---------------------------------------------------------------------------------------------------

-- A graph has no counts: it would have those of the call that was traced for ever.
local function not_traced(what)
  if core.jit_tracing() then
    options.untraceable("%s: counts of steps would stay those of the call that was traced; read them outside of T.jit",
      what)
  end
end

-- What group has of its parameter i, as it is when it is read: step, and the tensors and numbers by name.
local function fields_of(group, i)
  local out = {}
  for key, v in pairs(group._state[i] or {}) do out[key] = v end
  out.step = group._steps[i]
  return out
end

local function view(self, group, i)
  return setmetatable({}, {
    __index = function(_, key)
      local v = fields_of(group, i)[key]
      if type(v) == "number" then not_traced("opt.state[p]." .. tostring(key)) end
      return v
    end,
    __pairs = function()
      not_traced "opt.state[p]"
      return next, fields_of(group, i)
    end,
    __newindex = function(_, key)
      fail("opt.state[p].%s: a state is written in place, or by opt:load_state_dict(state) of optim.%s", tostring(key),
        self.name)
    end,
  })
end

--- What a parameter's steps have left: opt.state[p].exp_avg, .step.
function M.by_parameter(self)
  return setmetatable({}, {
    __index = function(_, p)
      if self.own_state then
        fail("opt.state: optim.%s has one state for all parameters; opt:state_dict() has it", self.name)
      end
      self:_settle()
      for _, group in ipairs(self.param_groups) do
        for i, own in ipairs(group.params) do if rawequal(own, p) then return view(self, group, i) end end
      end
      fail("opt.state: a parameter of optim.%s is wanted, got %s", self.name, describe(p))
    end,
    __newindex = function()
      fail("opt.state: a state is written in place, or by opt:load_state_dict(state) of optim.%s", self.name)
    end,
    __pairs = function() fail("opt.state: for _, p in ipairs(group.params) do … opt.state[p] … end goes over it") end,
  })
end

-- Is a state one that the optimizer can go on from? What it lacked would begin at zero in the midst of the steps.
local function check_columns(who, number, state, remembers)
  for _, key in ipairs(remembers or {}) do
    if not core.is_tensor(state[key]) then
      local has = {}
      for name, v in pairs(state) do if core.is_tensor(v) then has[#has + 1] = name end end
      table.sort(has)
      fail("%s: the state of parameter %d has no %s; it has %s", who, number, key,
        #has > 0 and table.concat(has, ", ") or "no tensors")
    end
  end
end

--- The methods state_dict and load_state_dict of Optimizer; checked: its check of settings.
-- taken(setting, value): is it what a script may set between steps?
function M.methods(Optimizer, checked, taken)
  --- Settings and state as plain tables and tensors (shared, not copied): what T.save takes.
  -- Parameters are numbered from 1 over all groups.
  function Optimizer:state_dict()
    not_traced "opt:state_dict()"
    self:_settle()
    local out, n = { state = {}, param_groups = {} }, 0
    for k, group in ipairs(self.param_groups) do
      local g = plain(group)
      g.params = {}
      for i = 1, #group.params do
        n = n + 1
        g.params[i] = n
        if group._steps[i] then
          local s = { step = group._steps[i] }
          local elements = group.params[i]:numel()
          for key, v in pairs(group._state[i]) do
            s[key] = v
            if is_coded(v, elements) then s.elements = elements end
          end
          out.state[n] = s
        end
      end
      out.param_groups[k] = g
    end
    return out
  end

  --- Takes over what state_dict returned, here or of the same optimizer of PyTorch (T.load_pt); tensors are copied, in
  -- the dtypes of the parameters. The groups must have as many parameters.
  function Optimizer:load_state_dict(sd)
    local who = "optim." .. self.name .. ":load_state_dict"
    if type(sd) ~= "table" or type(sd.state) ~= "table" or type(sd.param_groups) ~= "table" then
      fail("%s: a table with state and param_groups is wanted, got %s", who, describe(sd))
    end
    if #sd.param_groups ~= #self.param_groups then
      fail("%s: the state has %d groups, the optimizer %d", who, #sd.param_groups, #self.param_groups)
    end
    self:_settle()
    local fresh = {}
    local _ <close> = T.no_grad()
    for k, group in ipairs(self.param_groups) do
      local g = sd.param_groups[k]
      if type(g) ~= "table" or type(g.params) ~= "table" or #g.params ~= #group.params then
        fail("%s: group %d has %d parameters in the state, %d here", who, k,
          type(g) == "table" and type(g.params) == "table" and #g.params or 0, #group.params)
      end
      local given = plain(g)
      for key in pairs(given) do if self.defaults[key] == nil then given[key] = nil end end
      if self.defaults.state_dtype ~= nil and given.state_dtype == nil then given.state_dtype = false end
      local free = {} -- what a script or a schedule may have set beyond what constructors take
      for _, s in ipairs(self.settings) do
        local key, v = s[1], given[s[1]]
        if v ~= nil and s[3](v) ~= true and taken(s, v) then free[key], given[key] = v, nil end
      end
      local f = { settings = checked(self, who, given, self.defaults), steps = {}, state = {} }
      for key, v in pairs(free) do f.settings[key] = v end
      f.settings.initial_lr = type(g.initial_lr) == "number" and g.initial_lr or nil
      for i, number in ipairs(g.params) do
        local s = sd.state[number]
        if s then
          f.steps[i], f.state[i] = steps_of(s), {}
          local elements = group.params[i]:numel()
          if s.elements ~= nil and s.elements ~= elements then
            fail("%s: the states of parameter %d are of %s elements in 8 bits, the parameter has %d", who, number,
              tostring(s.elements), elements)
          end
          for key, v in pairs(s) do
            v = number_of(key, v)
            if type(v) == "userdata" then
              if not self.own_shapes and not is_coded(v, elements) and v:numel() ~= elements then
                fail("%s: %s of parameter %d has %d elements, the parameter %d", who, key, number, v:numel(), elements)
              end
              f.state[i][key] = v:detach():to { device = group.params[i]:device(), copy = true,
                dtype = dtype_for(v, group.params[i], f.settings.state_dtype) }
            elseif type(v) == "number" and key ~= "step" and key ~= "elements" then
              f.state[i][key] = v
            end
          end
          check_columns(who, number, f.state[i], self.remembers)
        end
      end
      fresh[k] = f
    end
    local _ <close> = core.hold_interrupts()
    for k, group in ipairs(self.param_groups) do
      for key, v in pairs(fresh[k].settings) do group[key] = v end
      group._steps, group._state = fresh[k].steps, fresh[k].state
      group._lists, group._full, group._columns, group._seen = nil, nil, nil, nil -- what is made of them
    end
  end
end

return M
