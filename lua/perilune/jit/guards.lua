-- SPDX-License-Identifier: MIT
--- What a traced function could see besides its arguments: numbers, strings and booleans in upvalues, globals and
-- fields of tables reachable from there, and which tables, functions and tensors stand where. A trace holds as long as
-- all of it is the same.
--
-- A guard is one place {kind, object, snapshot, count, path}: a function's upvalues, the globals that it may name, or a
-- table's fields. Objects that know how to be traced (optimizers) have the field __jit = "opaque" in their metatable
-- and are not looked into, unless a function names what would read their settings. Tables are looked at however deep
-- they are and however many fields they have: what is left out could change without a word.
-- @module perilune.jit.guards
local core = require "perilune.core"
local loaded = require "perilune.loaded"
local options = require "perilune.options"
local reach = require "perilune.jit.reach"

local guards = {}

local getupvalue, getmetatable, type, next, rawequal = debug.getupvalue, getmetatable, type, next, rawequal
local math_type, metatable_of = math.type, debug.getmetatable

-- Where modules of perilune keep a table of options between calls: made of fields that are guarded themselves. So are
-- a module's computed parameters (_computed: weight_norm, spectral_norm): each call makes them anew. A field of that
-- name in a table of the script's is as any other.
local SCRATCH = "_opts"

-- What an optimizer keeps in a group for itself, where a function reads the group's settings or parameters.
local PRIVATE = setmetatable({}, { __index = function(_, k) return type(k) == "string" and k:byte() == 95 or nil end })

-- What a module's other fields tell already: the order of its members.
local KEPT = { _names = true, _known = true }

local function is_instance(t)
  return type(rawget(t, "_known")) == "table" and type(rawget(t, "_parameters")) == "table"
end

local here = debug.getinfo(1, "S").source:match("^@(.*)jit[/\\]guards%.lua$") or "?"

local function own_function(f)
  local info = debug.getinfo(f, "S")
  return info.what == "C" or info.source:sub(2, 1 + #here) == here
end

-- Functions, and what is called like one, that a function of perilune's or of C has around itself: T.vmap(f), T.grad(f)
-- and their like call f. So does a table whose metatable says __jit = "known": what T.fit's step knows, a network and a
-- loss.
local function scan_wrapped(f, path, visit)
  for i = 1, 255 do
    local name, value = getupvalue(f, i)
    if not name then return end
    local meta = type(value) == "table" and getmetatable(value)
    local calls = type(meta) == "table" and (rawget(meta, "__call") or rawget(meta, "__jit") == "known")
    if calls or type(value) == "function" then visit(value, path) end
  end
end

-- A class of perilune's modules with nothing of the script's in it. Classes of the script are looked at.
local function is_library_class(t)
  if rawget(t, "__perilune_module") ~= true then return false end
  for _, v in next, t do
    if type(v) == "function" and not own_function(v) then return false end
  end
  return true
end

-- Is it a module of a class of perilune's, or of one that the script made from such a class?
local function has_scratch(t)
  local nn = loaded["perilune.nn.module"]
  local class = nn and is_instance(t) and rawget(getmetatable(t), "__class")
  while type(class) == "table" and class ~= nn.Module do
    if is_library_class(class) then return true end
    class = rawget(class, "super")
  end
  return false
end

-- Lua's libraries and perilune itself do not change; what else was loaded with require is the script's.
local STANDARD = { string = true, table = true, math = true, io = true, os = true, coroutine = true, utf8 = true,
  debug = true, package = true, _G = true }
local function library_tables()
  local skip = { [_G] = true, [package] = true, [package.loaded] = true, [package.preload] = true }
  for name, m in pairs(package.loaded) do
    if type(m) == "table" and (STANDARD[name] or type(name) == "string" and name:find("^perilune%f[%W]")) then
      skip[m] = true
    end
  end
  for _, m in pairs(loaded) do if type(m) == "table" then skip[m] = true end end
  return skip
end

local function opaque(t)
  local meta = getmetatable(t)
  return type(meta) == "table" and rawget(meta, "__jit") == "opaque"
end

-- How a place is reached: a text, or {path of the table, key}, which becomes one only for a message: a list of a
-- million tables, each a field of the one before, has as many paths.
local SHOWN = 16
local function text_of(path)
  local keys, n = {}, 0
  while type(path) == "table" do
    n = n + 1
    keys[n] = path[2]
    path = path[1]
  end
  local parts = { path }
  for k = n, 1, -1 do
    local key = keys[k]
    if n > SHOWN and k == n - SHOWN // 2 then parts[#parts + 1] = ("…(%d levels)…"):format(n - SHOWN) end
    if n <= SHOWN or k > n - SHOWN // 2 or k <= SHOWN // 2 then
      local plain = type(key) == "string" and key:match("^[%a_][%w_]*$")
      parts[#parts + 1] = plain and "." .. key or ("[%s]"):format(type(key) == "string" and ("%q"):format(key)
        or options.key_text(key))
    end
  end
  return table.concat(parts)
end

local function field_name(path, key) return text_of { path, key } end

-- A table's field, through __index where that is a table; nothing is called.
local function field_of(env, name)
  for _ = 1, 8 do
    local v = rawget(env, name)
    if v ~= nil then return v end
    local meta = getmetatable(env)
    env = type(meta) == "table" and rawget(meta, "__index")
    if type(env) ~= "table" then return nil end
  end
end

-- Names of globals that f, or a function written inside of it, may use: the strings among its constants. In a dumped
-- function such a string follows the byte 4, if it is longer than 40 bytes 20, and its length plus one, with the high
-- bit set. Names of fields are among them; as globals they are nil, and remain so.
local function names_in(f)
  local code, names, seen = string.dump(f, true), {}, {}
  for at, size in code:gmatch("()[\4\20]([\x82-\xff])") do
    local name = code:sub(at + 2, at + size:byte() - 0x80)
    if name:match("^[%a_][%w_]*$") and not seen[name] then
      names[#names + 1], seen[name] = name, true
    end
  end
  return names
end

local function scan_globals(list, names, env, visit)
  if type(env) ~= "table" then return end
  local snapshot = {}
  for _, name in ipairs(names) do snapshot[name] = field_of(env, name) end
  list[#list + 1] = { "globals", env, snapshot, names }
  if not visit then return end -- only those that reach.lua tells
  for _, name in ipairs(names) do
    visit(snapshot[name], name, name == "_G") -- who names that may read any of its fields
  end
end

-- Who names one of these may read settings of optimizers, schedules or scalers, which are no guards otherwise.
local SETTINGS = { param_groups = true, get_last_lr = true, last_epoch = true, get_scale = true }

-- What f reads by constant keys: of each table on the way that field; all of what it uses otherwise.
local function scan_paths(list, f, paths, visit)
  for _, p in ipairs(paths) do
    local name, v = getupvalue(f, p.upvalue)
    local path, env = name, name == "_ENV"
    for i = 1, #p do
      local t, key, last = v, p[i], i == #p
      if type(t) ~= "table" then
        v = nil
        break
      end
      local global = env and i == 1
      if global then v = field_of(t, key) else v = rawget(t, key) end
      if not global and last then
        if opaque(t) or is_instance(t) or (v == nil and getmetatable(t) ~= nil) then
          visit(t, path)
        else
          list.part(t, key, path)
        end
      end
      path = global and key or { path, key }
    end
    if p.all and (#p > 0 or not env) then visit(v, path, env and #p == 1 and p[1] == "_G") end
  end
end

local function scan_function(list, f, path, visit)
  local snapshot, n, names = {}, 0, names_in(f)
  list.code[#list.code + 1] = f
  for _, name in ipairs(names) do
    list.reads_settings, list.names[name] = list.reads_settings or SETTINGS[name], true
  end
  for i = 1, 255 do
    local name, value = getupvalue(f, i)
    if not name then break end
    n = i
    if name ~= "_ENV" then snapshot[i] = value end
  end
  if n > 0 then list[#list + 1] = { "upvalues", f, snapshot, n, path } end
  local paths, whole = n > 0 and reach.of(f), {}
  for _, p in ipairs(paths or {}) do whole[p.upvalue] = whole[p.upvalue] or #p == 0 and p.all end
  for i = 1, n do
    local name, value = getupvalue(f, i)
    if name == "_ENV" then
      scan_globals(list, names, value, not (paths and not whole[i]) and visit or nil)
    elseif not paths then
      visit(value, name)
    end
  end
  if paths then scan_paths(list, f, paths, visit) end
end

-- visit nil: what its fields hold is not looked into.
local function scan_table(list, t, path, visit)
  local module, scratch = is_instance(t), has_scratch(t) and SCRATCH or nil
  local snapshot, n, computed = {}, 0, list.groups[t] and PRIVATE or nil
  for name, rule in next, module and type(rawget(t, "_computed")) == "table" and t._computed or {} do
    if type(rule) == "table" and rawget(rule, "compute") and rawget(rule, "handle") then -- not the script's own
      computed = computed or {}
      computed[name] = rawget(t, name)
    end
  end
  for k, v in next, t do
    if k ~= scratch and not (computed and computed[k] ~= nil) then
      snapshot[k] = v
      n = n + 1
    end
  end
  list[#list + 1] = { "fields", t, snapshot, n, path, computed, scratch = scratch }
  list.fields = list.fields + n
  if not visit then return end
  for k, v in next, snapshot do
    if (type(v) == "table" or type(v) == "function") and not (module and KEPT[k]) then
      visit(v, { path, k })
    end
  end
  local meta = getmetatable(t)
  if type(meta) ~= "table" then return end
  local index = rawget(meta, "__index")
  if type(index) == "table" or type(index) == "function" then visit(index, path) end
  for _, v in next, meta do
    if type(v) == "function" and not own_function(v) then -- the script's __call, __len and the like
      if module then loaded["perilune.nn.module"].before_call(t) end -- which changes __call
      visit(meta, { path, "metatable" })
      break
    end
  end
end

local function scan_settings(list, t, path)
  local snapshot, names = {}, list.names
  -- What each step moves (a schedule-free optimizer's weights, Prodigy's rate) counts for who names it.
  local moves = list.groups[t] and list.groups[t].moves or {}
  for k, v in next, t do
    if type(k) == "string" and k:find("^_[a-z]+$") and k ~= "_scale" then goto own end
    if moves[k] and not (list.any_key or names[k]) then goto own end
    if type(v) == "number" or type(v) == "boolean" or type(v) == "string" then snapshot[k] = v end
    if type(v) == "table" and k == "betas" then scan_settings(list, v, { path, "betas" }) end
    ::own::
  end
  list[#list + 1] = { "settings", t, snapshot, 0, path }
end

--- Everything that `f`, called with args (n of them; args.paths: how they are reached), can see → list of guards.
-- before: what was taken for the arguments themselves, where args are only the objects among them. settings: those of
-- optimizers count, though nobody names them; moving: what each step moves does, too.
function guards.take(f, args, n, before, settings, moving)
  local optimizers = loaded["perilune.optim.optimizer"]
  local list = { any_key = moving, fields = 0,
    groups = optimizers and optimizers.owners or {}, names = before and before.names or {},
    code = before and before.code or {} }
  local seen, skip, opaques = {}, library_tables(), {}
  local full, parts, order = {}, {}, {}
  function list.part(t, key, path) -- a field that is read of a table of which the rest is not
    if t ~= _G and skip[t] or is_library_class(t) then return end
    local part = parts[t]
    if not part then
      part = { path = path, has = {} }
      parts[t], order[#order + 1] = part, t
    end
    if not part.has[key] then
      part.has[key] = true
      part[#part + 1] = key
    end
  end
  local queue, last = {}, 0 -- three entries each: what, its path, whether library tables count; no recursion
  local function visit(v, path, all)
    local kind = type(v)
    if kind ~= "table" and kind ~= "function" or seen[v] then return end
    seen[v] = true
    queue[last + 1], queue[last + 2], queue[last + 3] = v, path, all or false
    last = last + 3
  end
  local function look(v, path, all)
    if type(v) == "function" then
      if own_function(v) then scan_wrapped(v, path, visit) else scan_function(list, v, path, visit) end
    elseif opaque(v) then -- of an optimizer, which tensors it updates; of a jitted function, that
      opaques[#opaques + 1] = { v, path }
      if getmetatable(v).__name == "jit" then visit(rawget(v, "root"), path) end
      for k, group in ipairs(rawget(v, "param_groups") or {}) do
        local at = { { path, "param_groups" }, k }
        list[#list + 1] = { "globals", group, { params = group.params }, { "params" }, at } -- another list may come
        scan_table(list, group.params, { at, "params" })
      end
      if rawget(v, "param_groups") then scan_table(list, v.param_groups, { path, "param_groups" }) end
    elseif (all or not skip[v]) and not is_library_class(v) then
      full[v] = true
      scan_table(list, v, path, visit)
    end
  end
  visit(f, "the function")
  for i = 1, n do visit(args[i], args.paths and args.paths[i] or "argument " .. i) end
  local at = 1
  while at < last do
    look(queue[at], queue[at + 1], queue[at + 2])
    queue[at], queue[at + 1], queue[at + 2] = nil, nil, nil
    at = at + 3
  end
  for _, t in ipairs(order) do
    if not full[t] then
      local part, snapshot = parts[t], {}
      local keys = table.move(part, 1, #part, 1, {})
      for _, key in ipairs(keys) do snapshot[key] = rawget(t, key) end
      list[#list + 1] = { "globals", t, snapshot, keys, part.path }
    end
  end
  list.part = nil
  local named = list.reads_settings
  if named then reach.note_texts(list, args, n) end
  for _, entry in ipairs((named or settings) and opaques or {}) do
    local object, path = entry[1], entry[2]
    local optimizer = rawget(object, "optimizer") or object
    if not named and optimizer ~= object then goto next end -- a schedule, of which no more is known than its rates
    if optimizer ~= object or not rawget(object, "param_groups") then scan_settings(list, object, path) end
    for k, group in ipairs(rawget(optimizer, "param_groups") or {}) do
      scan_settings(list, group, { { path, "param_groups" }, k })
    end
    ::next::
  end
  if before then list.names, list.code = nil, nil end
  for _, g in ipairs(list) do g.meta = type(g[2]) == "table" and metatable_of(g[2]) or nil end
  return list
end

-- Is it the same for a trace? 1 and 1.0 are not, nor 0.0 and -0.0; not a number is itself.
local function same(a, b)
  if not rawequal(a, b) then return a ~= a and b ~= b end
  return math_type(a) ~= "float" and math_type(a) == math_type(b)
    or math_type(b) == "float" and (a ~= 0 or 1 / a == 1 / b)
end

local function upvalues_differ(g)
  local f, snapshot = g[2], g[3]
  for i = 1, g[4] do
    local name, value = getupvalue(f, i)
    if not same(value, snapshot[i]) and name ~= "_ENV" then return name, snapshot[i], value end
  end
end

local function fields_differ(g)
  local snapshot, n, computed = g[3], 0, g[6]
  for k, v in next, g[2] do
    if same(snapshot[k], v) then
      n = n + 1
    elseif k ~= g.scratch and not (computed and computed[k] ~= nil) then
      return field_name(g[5], k), snapshot[k], v
    end
  end
  if n ~= g[4] then
    for k, v in next, snapshot do
      if rawget(g[2], k) == nil then return field_name(g[5], k), v, nil end
    end
  end
end

local function globals_differ(g)
  local env, snapshot, names = g[2], g[3], g[4]
  for i = 1, #names do
    local name = names[i]
    local value = field_of(env, name)
    if not same(value, snapshot[name]) then return g[5] and field_name(g[5], name) or name, snapshot[name], value end
  end
end

local function settings_differ(g)
  for k, v in next, g[3] do
    if not same(g[2][k], v) then return field_name(g[5], k), v, g[2][k] end
  end
end

-- The same as one list for core.jit_watch; computed fields and settings are left to Lua.
local KIND, WITH_SCRATCH = { upvalues = 0, fields = 1, globals = 2 }, 3
local function flatten(list)
  local flat, n = {}, 0
  local function put(v)
    n = n + 1
    flat[n] = v == nil and core.jit_nothing or v
  end
  list.rest = {}
  for _, g in ipairs(list) do
    local kind, object, snapshot, names = g[1], g[2], g[3], g[4]
    if g[6] or not KIND[kind] then
      list.rest[#list.rest + 1] = g
    elseif kind == "fields" then
      put(object) put(g.scratch and WITH_SCRATCH or KIND[kind]) put(names)
      for k in next, object do
        if snapshot[k] ~= nil then put(k) put(snapshot[k]) end
      end
    else
      local count = kind == "globals" and #names or names
      put(object) put(KIND[kind]) put(count)
      local skipped = 0
      for i = 1, count do
        if kind == "globals" then
          put(names[i]) put(snapshot[names[i]])
        elseif getupvalue(object, i) ~= "_ENV" then
          put(i) put(snapshot[i])
        else
          skipped = skipped + 1
        end
      end
      flat[n - 2 * (count - skipped)] = count - skipped
    end
  end
  list.watch = core.jit_watch(flat)
end

local differ = { upvalues = upvalues_differ, fields = fields_differ, globals = globals_differ,
  settings = settings_differ }

-- What a table is: its fields may come from there.
local function metatables_differ(list)
  for i = 1, #list do
    local g = list[i]
    local meta = type(g[2]) == "table" and metatable_of(g[2]) or nil
    if not rawequal(meta, g.meta) then
      return text_of { type(g[5]) == "nil" and "a table" or g[5], "metatable" }, g.meta, meta
    end
  end
end

--- The first place that is not as it was → its name, the old value, the new value; nil if all is the same.
function guards.changed(list)
  if not list.watch then
    local name, old, new = metatables_differ(list)
    if name then return name, old, new end
    flatten(list)
  end
  if core.jit_unchanged(list.watch) then
    local rest = list.rest
    for i = 1, #rest do
      local name, old, new = differ[rest[i][1]](rest[i])
      if name then return name, old, new end
    end
    return nil
  end
  for i = 1, #list do
    local g = list[i]
    local name, old, new
    name, old, new = differ[g[1]](g)
    if name then return name, old, new end
  end
  local name, old, new = metatables_differ(list)
  if name then return name, old, new end
  list.watch = nil -- the same in another order
end

--- What a traced function wrote before its trace failed is taken back, where it runs eagerly instead.
function guards.restore(list)
  for _, g in ipairs(list) do
    local kind, object, snapshot = g[1], g[2], g[3]
    if kind == "upvalues" then
      for i = 1, g[4] do
        if getupvalue(object, i) ~= "_ENV" then debug.setupvalue(object, i, snapshot[i]) end
      end
    elseif kind == "globals" then
      for _, name in ipairs(g[4]) do
        if not rawequal(field_of(object, name), snapshot[name]) then object[name] = snapshot[name] end
      end
    elseif kind == "fields" then
      for k in next, object do
        if snapshot[k] == nil and k ~= g.scratch and not (g[6] and g[6][k] ~= nil) then rawset(object, k, nil) end
      end
      for k, v in next, snapshot do rawset(object, k, v) end
    end
  end
end

--- After a trace: computed parameters are real tensors again.
function guards.put_back(list)
  for i = 1, #list do
    for name, value in next, list[i][6] or {} do rawset(list[i][2], name, value) end
  end
end

return guards
