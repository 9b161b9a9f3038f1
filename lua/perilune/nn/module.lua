-- SPDX-License-Identifier: MIT
--- Base of all networks: an object that is called like a function and knows its parameters, buffers and
-- children, in the order in which they were assigned.
-- @classmod Module
local T = require "perilune"
local options = require "perilune.options"
local rerun = require "perilune.autograd.checkpoint_state"

local classes = require "perilune.classes"
local loaded = require "perilune.loaded"

local fail, look, forms, init = options.fail, classes.look, classes.forms, classes.init
local is_one_object, same = T.core.is_one_object, T.core.same
local class_name = require("perilune.surface").class_name
local rawget, rawset, type, getmetatable, setmetatable = rawget, rawset, type, getmetatable, setmetatable

-- Tensors made by nn.Parameter. Weak: a parameter lives as long as something uses it.
local is_parameter = setmetatable({}, { __mode = "k" })

local base = { is_parameter = is_parameter } -- what the parts of modules share, filled below

--- nn.Module :: nn.class("Name") → class; class(…) → module
-- The base of all modules. Called like a function: forward. parameters(), named_parameters(), buffers(), modules(),
-- children(), state_dict{index_base=}, load_state_dict(sd, {strict=, index_base=}), train(), eval(), to(dtype or
-- device), to{dtype=, device=, memory_format="channels_last"}, half(), bfloat16(), freeze(), zero_grad(), apply(f),
-- clone(), get_parameter(path), get_submodule(path), register_buffer(name, t), register_parameter(name, p),
-- register_forward_hook(f), register_forward_pre_hook(f), register_full_backward_hook(f),
-- register_full_backward_pre_hook(f), summary(x).
--   local Double = nn.class("Double")
--   function Double:init(n) self.fc = nn.Linear(n, n) end
--   function Double:forward(x) return 2 * self.fc(x) end
--   print(Double(3))
--   --> Double(
--   -->   (fc): Linear(in_features=3, out_features=3, bias=true)
--   --> )
--   print(nn.Module.is_a == nil)  --> true
local Module = { __name = "Module" }
Module.__index = Module

--- nn.is_module(value) → boolean
-- Whether it is a module.
--   print(nn.is_module(nn.ReLU()), nn.is_module(3))  --> true	false
local function is_module(v)
  if type(v) ~= "table" then return false end
  local class = getmetatable(v)
  return type(class) == "table" and rawget(class, "__perilune_module") == true
end

local function note(self, key, kind)
  local names, known = rawget(self, "_names"), rawget(self, "_known")
  if not known then return end
  if not known[key] then names[#names + 1] = key end
  known[key] = kind or known[key] or true
end

-- A member by its name: parameters are in a table of their own, behind the instance, so that assigning to one
-- always passes __newindex.
local function member(self, key)
  local value = rawget(self, key)
  if value == nil then return self._parameters[key] end
  return value
end

local function forget(self, key)
  if self._buffers[key] then rawset(self, key, nil) end
  self._known[key], self._parameters[key], self._buffers[key] = nil, nil, nil
  for i, name in ipairs(self._names) do
    if name == key then return table.remove(self._names, i) and nil end
  end
end

-- ---- classes and instances ---------------------------------------------------------------------------

local function packed(n, ...)
  if n == 1 then return (...) end
  return { n = n, ... }
end

-- A list of several values, where hooks may give one; a table with names is one value.
local function is_several(v)
  return type(v) == "table" and getmetatable(v) == nil and (v.n ~= nil or rawlen(v) > 0 or next(v) == nil)
end

-- Steps over the hooks that were removed, also by one of them.
local function next_hook(list, i)
  repeat i = i + 1 until not (list[i] and list[i].removed)
  if list[i] then return i, list[i] end
end

-- The way of a call when hooks are there.
local function call_hooked(self, ...)
  local args = table.pack(...)
  for _, hook in next_hook, self._hooks.before, 0 do
    local new = hook.f(self, args)
    if new ~= nil then
      args = is_several(new) and table.pack(table.unpack(new, 1, new.n or #new)) or { new, n = 1 }
    end
  end
  local call = self._hooks.back and self:_gate_inputs(args)
  local function after(...)
    local n = select("#", ...)
    local out = packed(n, ...)
    local whole = n == 1 and type(out) == "table" and getmetatable(out) == nil -- a table is what forward returns
    for _, hook in next_hook, self._hooks.after, 0 do
      local new = hook.f(self, args, out)
      if new ~= nil then out = new end
    end
    if call then out = self:_gate_outputs(call, out, whole) end
    if not whole and is_several(out) then return table.unpack(out, 1, out.n or #out) end
    return out
  end
  look(self, self.forward, table.unpack(args, 1, args.n))
  return after(self:forward(table.unpack(args, 1, args.n)))
end

-- Its frame stays while forward runs (same): errors say from it in which module of a network they are.
function Module.__call(self, ...)
  if rerun.running then rerun.module(self) end
  if self._hooks then return same(call_hooked(self, ...)) end
  local f = self.forward
  local form = forms[f] -- false: a script's
  if form ~= false and not (form and form.n > 0 and is_one_object(...)) then look(self, f, ...) end
  return same(f(self, ...))
end

-- The modules that are being called, innermost first.
local function calling()
  local list, level = {}, 2
  while true do
    local info = debug.getinfo(level, "f")
    if not info then return list end
    if info.func == Module.__call then list[#list + 1] = select(2, debug.getlocal(level, 1)) end
    level = level + 1
  end
end

function Module.__newindex(self, key, value)
  if is_parameter[value] then
    self._parameters[key] = value
    return note(self, key, "parameter")
  end
  if self._known[key] == "parameter" then
    if value ~= nil then
      fail("%s: '%s' is a parameter; assign nn.Parameter(t) or nil, got %s; its values alone are changed by "
        .. "T.no_grad(function() m.%s:copy_(t) end)", class_name(self), tostring(key), options.describe(value),
        tostring(key))
    end
    self._parameters[key] = nil
    return
  end
  rawset(self, key, value)
  if type(value) ~= "table" then return end
  if is_module(value) then
    note(self, key)
  elseif getmetatable(value) == nil then
    base.got_table(self, value)
  end
end

-- An instance has a metatable of its own, in which its parameters stand before its class.
local function instance(class)
  local parameters, index = {}, class.__index
  local meta = {}
  for key, value in next, class do
    if type(key) == "string" and key:sub(1, 2) == "__" then meta[key] = value end
  end
  if type(index) == "table" then
    meta.__index = setmetatable(parameters, { __index = index })
  else
    meta.__index = function(self, key)
      local p = parameters[key]
      if p ~= nil then return p end
      return index(self, key)
    end
  end
  meta.__class = class
  base.arm(meta)
  return setmetatable({ training = true, _hooks = false, _names = {}, _known = {}, _buffers = {},
    _parameters = parameters }, meta)
end

-- An instance goes over to another class.
local function become(self, class)
  local meta, parameters = getmetatable(self), self._parameters
  local other = getmetatable(instance(class))
  for key in next, meta do meta[key] = nil end
  for key, value in next, other do meta[key] = value end
  local index = class.__index
  if type(index) == "table" then meta.__index = setmetatable(parameters, { __index = index }) end
end

-- A class of perilune's that is called with a tensor was meant to be an object: nn.ReLU for nn.ReLU().
local function refuse_tensor(class)
  local name, nn = rawget(class, "__name"), rawget(T, "nn")
  if not nn or not rawequal(rawget(nn, name), class) then return end
  fail("nn.%s is a class, and a tensor was given to make one; make the module first: local m = nn.%s(…), then m(x)",
    name, name)
end

local function construct(class, ...)
  if type((...)) == "userdata" then refuse_tensor(class) end
  local self = instance(class)
  init(self, ...)
  return self
end

-- Metamethods are looked up raw, so every class has its own copies.
local meta_names = { "__call", "__newindex", "__tostring", "__len", "__pairs" }

-- Constructors' names elsewhere.
local foreign = { __init__ = true, __init = true }

-- Makes a module class: define `:init(...)` and `:forward(...)`, then call the class to make instances.
-- @tparam string name shown by tostring
-- @param[opt=Module] parent a class to inherit from
--- nn.class(name, parent = nn.Module) → class
-- A class of modules: define init(self, …) and forward(self, …). Parameters, buffers and modules assigned to fields
-- register in that order.
--   local Scale = nn.class("Scale")
--   function Scale:init() self.factor = nn.Parameter(T.ones(1) * 3) end
--   function Scale:forward(x) return x * self.factor end
--   print(Scale()(T.ones(2)):detach())  --> {3., 3.}  -- f32[2] cpu
local function class(name, parent)
  if type(name) ~= "string" then
    fail("nn.class: the name must be a string, got %s", options.describe(name))
  end
  parent = parent or Module
  if type(parent) ~= "table" or rawget(parent, "__perilune_module") ~= true then
    fail("nn.class: the parent of %s must be a class made by nn.class, got %s", name,
      options.describe(parent))
  end
  local C = { __name = name, __perilune_module = true, super = parent }
  C.__index = C
  for _, meta in ipairs(meta_names) do C[meta] = rawget(parent, meta) end
  classes.class(setmetatable(C, { __index = parent, __call = construct, __name = "class" }), "net")
  local meta = getmetatable(C)
  local define = meta.__newindex
  function meta.__newindex(t, key, f)
    if foreign[key] and type(f) == "function" then
      fail("nn.class: %s.%s would never be called; the constructor is function %s:init(…) … end", name, key, name)
    end
    return define(t, key, f)
  end
  return C
end

Module.__perilune_module = true
classes.class(setmetatable(Module, { __call = construct, __name = "class" }), "net")

-- What was given where a module is wanted, for messages: a class is named, and how it becomes a module.
local function no_module(v)
  if type(v) == "table" and rawget(v, "__perilune_module") == true then
    local nn = rawget(T, "nn")
    local name = rawget(v, "__name")
    if nn and rawequal(rawget(nn, name), v) then name = "nn." .. name end
    return ("the class %s; call it: %s(…)"):format(name, name)
  end
  local text = options.describe(v)
  if type(v) == "function" then
    return text .. '; a function goes into the forward of a class (nn.class("Name")), an activation has a module, '
      .. "such as nn.ReLU()"
  end
  return text
end

--- Called by the constructor with its arguments. Children and parameters are assigned here.
function Module:init() end

--- The computation; override it.
function Module.forward(self, ...) -- luacheck: no unused
  local name, other = class_name(self), nil
  for _, key in ipairs { "call", "__call__", "Forward", "forwards", "foward", "predict" } do
    other = other or type(self[key]) == "function" and key or nil
  end
  fail("%s: no forward method; define function %s:forward(x) … end%s", name, name,
    other and (" (%s is never called)"):format(other) or "")
end

--- The class's name.
function Module:type() return getmetatable(self).__name end

-- ---- registration ------------------------------------------------------------------------------------

-- A leaf tensor that training changes: shares the storage of `t`, requires a gradient, and registers when
-- assigned to a field of a module.
-- @tparam Tensor t floating, any shape
-- @tparam[opt] table opts `requires_grad=true`
--- nn.Parameter(t, {requires_grad=true}) → tensor
-- A leaf that training changes: shares t's memory, and registers when assigned to a field of a module.
--   print(nn.Parameter(T.ones(1)).requires_grad)  --> true
local function Parameter(t, opts)
  options.check("nn.Parameter", opts, { "requires_grad" })
  if type(t) ~= "userdata" then fail("nn.Parameter: a tensor is wanted, got %s", options.describe(t)) end
  local p = t:detach()
  is_parameter[p] = true
  if not opts or opts.requires_grad ~= false then p:requires_grad_(true) end
  return p
end

--- Registers a tensor that belongs to the state but is not trained (nil: a name without value yet).
-- `persistent=false` keeps it out of state_dict; with `keep_dtype=true` its dtype stays when the module is converted.
function Module:register_buffer(name, tensor, opts)
  options.check("register_buffer", opts, { "persistent", "keep_dtype" })
  if type(name) ~= "string" then fail("register_buffer: the name must be a string") end
  if tensor ~= nil and type(tensor) ~= "userdata" then
    fail("register_buffer: '%s' must be a tensor or nil, got %s", name, options.describe(tensor))
  end
  if self._known[name] == "parameter" then fail("register_buffer: '%s' is a parameter", name) end
  self._buffers[name] = (opts and opts.persistent == false) and "transient" or "persistent"
  if opts and opts.keep_dtype then
    if not rawget(self, "_kept") then rawset(self, "_kept", {}) end
    self._kept[name] = true
  end
  rawset(self, name, tensor)
  note(self, name)
end

function Module:register_parameter(name, p)
  if p ~= nil and not is_parameter[p] then
    fail("register_parameter: '%s' must come from nn.Parameter", name)
  end
  if rawget(self, name) ~= nil then fail("register_parameter: '%s' is taken by another field", name) end
  self._parameters[name] = p
  note(self, name, "parameter")
end

function Module:register_module(name, m)
  if m ~= nil and not is_module(m) then fail("register_module: '%s' must be a module, got %s", name, no_module(m)) end
  rawset(self, name, m)
  note(self, name)
end
Module.add_module = Module.register_module

-- Names in order of assignment. A field that was overwritten (first a number, then a layer) never passed
-- __newindex as a module: those come last, sorted.
local function member_names(self)
  local late
  local known = self._known
  for key, value in next, self do
    if not known[key] and (is_parameter[value] or is_module(value)) then
      late = late or {}
      late[#late + 1] = key
    end
  end
  if late then
    table.sort(late, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(late) do note(self, key) end
  end
  return self._names
end

-- ---- walking -----------------------------------------------------------------------------------------

local function key_text(key, from)
  if math.type(key) == "integer" then return tostring(key - 1 + (from or 1)) end
  return tostring(key)
end

local function join(prefix, name) return prefix == "" and name or prefix .. "." .. name end

-- Calls visit(prefix, module) for every module once, parents first.
local function walk(self, prefix, from, seen, visit)
  if not is_module(self) then
    fail("a network is expected, got %s; call its methods with a colon: net:parameters(), net:train()",
      options.describe(self))
  end
  if seen[self] then return end
  seen[self] = true
  visit(prefix, self)
  for _, key in ipairs(member_names(self)) do
    local value = rawget(self, key)
    if is_module(value) then walk(value, join(prefix, key_text(key, from)), from, seen, visit) end
  end
end

-- Lists {name, value, module, key} of parameters ("parameter") or buffers ("buffer"), each once, or of both
-- with every name they have ("state"). A module's own come before its children's: parameters, then buffers.
local function collect(self, what, from)
  local list, seen = {}, {}
  local function add(prefix, m, kind)
    if rawget(m, "_lazy") then
      fail("%s%s has no parameters yet: they are made at its first call; call it once before",
        prefix == "" and "" or prefix .. ": ", class_name(m))
    end
    for _, key in ipairs(member_names(m)) do
      local value = member(m, key)
      local found = type(value) == "userdata" and
        (m._buffers[key] and "buffer" or is_parameter[value] and "parameter")
      if found == kind and (what == "state" and m._buffers[key] ~= "transient" or
        what ~= "state" and not seen[value]) then
        seen[value] = true
        list[#list + 1] = { join(prefix, key_text(key, from)), value, m, key }
      end
    end
  end
  local reached, tables = {}, {}
  walk(self, "", from, reached, function(prefix, m)
    if what ~= "buffer" then
      base.plain_tables(tables, prefix, m)
      add(prefix, m, "parameter")
    end
    if what ~= "parameter" then add(prefix, m, "buffer") end
  end)
  base.refuse_tables(reached, tables)
  return list
end

local function values(list)
  local out = {}
  for i, item in ipairs(list) do out[i] = item[2] end
  return out
end

local function iterate(list)
  local i = 0
  return function()
    i = i + 1
    local item = list[i]
    if item then return item[1], item[2] end
  end
end

--- List of all parameters, children's included, each once.
function Module:parameters() return values(collect(self, "parameter")) end
--- Iterator of name, parameter.
function Module:named_parameters() return iterate(collect(self, "parameter")) end
--- List of all buffers.
function Module:buffers() return values(collect(self, "buffer")) end
--- Iterator of name, buffer.
function Module:named_buffers() return iterate(collect(self, "buffer")) end

local function module_list(self, from)
  local list = {}
  walk(self, "", from or 1, {}, function(prefix, m) list[#list + 1] = { prefix, m } end)
  return list
end

--- List of this module and all below it, each once.
function Module:modules() return values(module_list(self)) end
--- Iterator of name, module; this module's own name is "".
function Module:named_modules() return iterate(module_list(self)) end

local function child_list(self)
  local list, seen = {}, {}
  for _, key in ipairs(member_names(self)) do
    local value = rawget(self, key)
    if is_module(value) and not seen[value] then
      seen[value] = true
      list[#list + 1] = { key_text(key), value }
    end
  end
  return list
end

--- List of direct children.
function Module:children() return values(child_list(self)) end
--- Iterator of name, child.
function Module:named_children() return iterate(child_list(self)) end

--- Calls f(module) for every module, children first.
function Module:apply(f)
  for _, child in ipairs(self:children()) do child:apply(f) end
  f(self)
  return self
end

--- The number of elements of all parameters, or of those that require a gradient.
function Module:num_parameters(opts)
  options.check("num_parameters", opts, { "trainable" })
  local n = 0
  for _, p in ipairs(self:parameters()) do
    if not (opts and opts.trainable) or p.requires_grad then n = n + p:numel() end
  end
  return n
end

-- ---- modes -------------------------------------------------------------------------------------------

--- Training mode for this module and all below (dropout drops, batch norm learns its statistics).
function Module:train(on)
  if on ~= nil and type(on) ~= "boolean" then
    fail("train: true, false or nothing is wanted, got %s; it switches modes, T.fit(net, { train = loader, optimizer = "
      .. "\"Adam\" }) trains", options.describe(on))
  end
  on = on ~= false
  local modes = loaded["perilune.optim.modes"]
  if modes then modes.check(self, on) end
  walk(self, "", 1, {}, function(_, m) rawset(m, "training", on) end)
  return self
end

--- Evaluation mode.
function Module:eval()
  if not is_module(self) then options.colon "net:eval()" end
  return self:train(false)
end

--- Switches the parameters' requires_grad.
function Module:requires_grad_(on)
  if on ~= nil then options.kind("requires_grad_", "on", "bool", on) end
  for _, p in ipairs(self:parameters()) do p:requires_grad_(on ~= false) end
  return self
end

--- Stops training of all parameters.
function Module:freeze() return self:requires_grad_(false) end

--- Zeros a gradient, which forgets what it was computed from: the next sum would have the old one's derivative, too.
function base.zero_grad(g)
  if g.requires_grad then g:detach_() end
  T.core.op.zero(g)
end

--- Forgets all gradients; with `set_to_none=false` fills them with zeros.
function Module:zero_grad(opts)
  if type(opts) == "boolean" then opts = { set_to_none = opts } end
  opts = options.check("zero_grad", opts, { "set_to_none" })
  if opts.set_to_none ~= nil and type(opts.set_to_none) ~= "boolean" then
    fail("zero_grad: set_to_none must be true or false, got %s", options.describe(opts.set_to_none))
  end
  for _, p in ipairs(self:parameters()) do
    if opts.set_to_none ~= false then
      p.grad = nil
    elseif p.grad then
      T.no_grad(base.zero_grad, p.grad)
    end
  end
end

-- "; in out: Linear(6, 2)", for messages of what runs inside a network.
function options.in_modules()
  local list = calling()
  local m, root = list[1], list[#list]
  if #list < 2 or m == root then return "" end
  for name, other in iterate(module_list(root)) do
    if other == m then
      local ok, extra = pcall(m.extra_repr, m)
      local leaf = ok and extra ~= "" and #m:children() == 0
      return ("; in %s: %s%s"):format(name, class_name(m), leaf and "(" .. extra .. ")" or "")
    end
  end
  return ""
end
T.core.in_modules(options.in_modules)

for key, value in next, { next_hook = next_hook, Module = Module, Parameter = Parameter, class = class,
  is_module = is_module, collect = collect, member_names = member_names, member = member, forget = forget, walk = walk,
  instance = instance, become = become, no_module = no_module,
  named_modules = function(self, from) return iterate(module_list(self, from)) end } do base[key] = value end
for _, part in ipairs { "state_dict", "print", "module.path", "module.convert", "module.hooks", "module.clone",
  "module.plain_tables" } do
  require("perilune.nn." .. part)(base)
end

return base
