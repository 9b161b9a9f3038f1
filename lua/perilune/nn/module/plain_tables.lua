-- SPDX-License-Identifier: MIT
--- Modules and parameters in plain tables: self.layers = { nn.Linear(2, 3) } registers nothing, so training would leave
-- them as they are, and a saved network lack them. Who lists parameters is refused, and so is the first call.
--
-- An instance has a metatable of its own; its __call is `first` until a call has looked at the network, then the
-- class's. So later calls cost nothing, and no field of a module tells of it (T.jit, clone and pairs see fields).
local options = require "perilune.options"

local fail = options.fail
local getinfo, getlocal, getmetatable, rawequal, rawget = debug.getinfo, debug.getlocal, getmetatable, rawequal, rawget
local math_type, next, type = math.type, next, type
local class_name = require("perilune.surface").class_name

local own_fields = { _names = true, _known = true, _buffers = true, _kept = true, _parameters = true, _hooks = true }

-- Tables in a table are looked into as well, as deep as lists of lists of layers.
local DEEP = 3

return function(base)
  local Module, is_module, is_parameter = base.Module, base.is_module, base.is_parameter

  local function registered(reached, p)
    for m in next, reached do
      for _, key in ipairs(base.member_names(m)) do
        if rawequal(base.member(m, key), p) then return true end
      end
    end
    return false
  end

  -- reached: the modules of the network. Those, and their parameters, may be in a table, too.
  local function refuse(reached, prefix, m, path, t, depth)
    for k, value in next, t do
      local parameter = is_parameter[value]
      if parameter and not registered(reached, value) or is_module(value) and not reached[value] then
        local field = (prefix == "" and class_name(m) or prefix .. " (" .. class_name(m) .. ")") .. "." .. path
        local instead = parameter and "nn.ParameterList" or math_type(k) and "nn.ModuleList" or "nn.ModuleDict"
        fail("%s is a plain table, so the %s in it do not register and would be neither trained nor saved; wrap it: "
          .. "%s(…); to leave them out on purpose keep the table in a local variable", field,
          parameter and "parameters" or "modules", instead)
      end
      if type(value) == "table" and depth < DEEP and getmetatable(value) == nil then
        local inside = path .. (type(k) == "number" and ("[%s]"):format(k) or "." .. options.key_text(k))
        refuse(reached, prefix, m, inside, value, depth + 1)
      end
    end
  end

  -- Adds the plain tables in m's fields to a list of {prefix, m, field, table}.
  function base.plain_tables(list, prefix, m)
    for key, value in next, m do
      if type(value) == "table" and not own_fields[key] and getmetatable(value) == nil then
        list[#list + 1] = { prefix, m, options.key_text(key), value }
      end
    end
  end

  -- Raises where one of them has what is not among the modules reached.
  function base.refuse_tables(reached, list)
    for _, t in ipairs(list) do refuse(reached, t[1], t[2], t[3], t[4], 1) end
  end

  local function look(root)
    local reached, tables = {}, {}
    base.walk(root, "", 1, reached, function(prefix, m) base.plain_tables(tables, prefix, m) end)
    base.refuse_tables(reached, tables)
    for m in next, reached do
      local meta = getmetatable(m)
      if meta.__call == base.first then meta.__call = Module.__call end
    end
    return reached
  end

  -- The outermost module that is being called.
  local function outermost()
    local root
    for level = 3, math.huge do
      local info = getinfo(level, "f")
      if not info then return root end
      if info.func == Module.__call then root = select(2, getlocal(level, 1)) end
    end
  end

  -- A module's first call. What is a part of the network that is being called may be in tables there.
  function base.first(self, ...)
    local root = outermost()
    if not (root and is_module(root) and look(root)[self]) then look(self) end
    return Module.__call(self, ...)
  end

  --- What m's first call does besides.
  function base.before_call(m)
    if getmetatable(m).__call == base.first then look(m) end
  end

  local function holds(t, depth)
    for _, value in next, t do
      if is_parameter[value] or is_module(value) then return true end
      if type(value) == "table" and depth < DEEP and getmetatable(value) == nil and holds(value, depth + 1) then
        return true
      end
    end
    return false
  end

  -- A field that m has got: a table with modules in it is looked at by the next call.
  function base.got_table(m, t)
    local meta = getmetatable(m)
    if meta.__call == Module.__call and holds(t, 1) then meta.__call = base.first end
  end

  base.arm = function(meta)
    if rawget(meta, "__call") == Module.__call then meta.__call = base.first end
  end
end
