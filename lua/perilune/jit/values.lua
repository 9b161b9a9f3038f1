-- SPDX-License-Identifier: MIT
--- Values that go into and come out of a traced function: tensors in plain tables, numbers, strings.
-- A result is kept as a table {[MARK] = k}: tensor k of the graph's outputs, {[MARK] = "argument", at = k}, or
-- {[MARK] = "captured", tensor = x}; with views = numbers of the nodes that take a view of that, recorded = does the
-- view have a history.
-- @module perilune.jit.values
local T = require "perilune"
local options = require "perilune.options"
local core = T.core
local is_tensor = core.is_tensor

local values = { MARK = {} }
local MARK, DEPTH = values.MARK, 16

local ADDRESSED = { table = true, ["function"] = true, userdata = true, thread = true }

local function is_plain(v) return type(v) == "table" and getmetatable(v) == nil end

local text_of_key = options.key_text

-- Its keys in an order that is the same for equal tables.
local function keys_of(t)
  local keys = {}
  for k in next, t do keys[#keys + 1] = k end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return text_of_key(a) < text_of_key(b)
  end)
  return keys
end

-- A string, a table or an object among arguments as a text that says what a trace depends on, sizes of tensors apart
-- if `sizes` is 1; tensors in it are appended to `list`, tables are noted in list.tables: one that comes again is told
-- by where it came first, as the function may compare. The rest is core.jit_key's.
local function text_of(v, list, depth, sizes)
  if type(v) == "string" then return ("%q"):format(v) end
  if not is_plain(v) or (depth or 0) >= DEPTH then return ("%s %p"):format(type(v), v) end -- its fields are guarded
  local met = list.tables
  if not met then
    met = { n = 0 }
    list.tables = met
  end
  if met[v] then return ("table %d"):format(met[v]) end
  met.n = met.n + 1
  met[v] = met.n
  local parts = { "{" }
  for _, k in ipairs(keys_of(v)) do
    local x = v[k]
    parts[#parts + 1] = type(k) == "string" and ("%q="):format(k) or text_of_key(k) .. "="
    parts[#parts + 1] = core.jit_key(list, function(value) return text_of(value, list, (depth or 0) + 1, sizes) end,
      sizes or false, x)
  end
  parts[#parts + 1] = "}"
  return table.concat(parts, " ")
end

-- The same structure with f(tensor) in place of tensors; one table where it has one.
local function map(v, f, depth, made)
  if is_tensor(v) then return f(v) end
  if not is_plain(v) or depth > DEPTH then return v end
  made = made or {}
  if made[v] then return made[v] end
  local out = {}
  made[v] = out
  for _, k in ipairs(keys_of(v)) do
    if is_tensor(k) then
      options.untraceable("a table among the arguments or results of the traced function has a tensor as a key, which "
        .. "would be another one in each run; pass it as a value")
    end
    out[k] = map(v[k], f, depth + 1, made)
  end
  return out
end

-- The objects among arguments that text_of tells by their address, in order. Plain tables it tells by what they hold,
-- so a trace need not keep those of the call that it was made in, nor the tensors in them.
local function objects(args)
  local out, met = { paths = {}, keys = {} }, {}
  local function look(v, path, depth)
    if is_tensor(v) or not ADDRESSED[type(v)] or met[v] then return end
    met[v] = true
    if is_plain(v) and depth < DEPTH then
      for _, k in ipairs(keys_of(v)) do
        if type(k) ~= "string" and type(k) ~= "number" then out.keys[k] = true end -- an address is in the text, too
        look(v[k], { path, k }, depth + 1)
      end
    else
      out[#out + 1], out.paths[#out + 1] = v, path
    end
  end
  for i = 1, args.n do look(args[i], "argument " .. i, 0) end
  return out
end

-- The traced function got copies of the plain tables among its arguments: what it writes there is an error, too.
local function written_argument(copy, given, real, path, depth, met)
  if met[given] and rawequal(met[given], copy) then return nil end
  if not is_plain(given) or depth > DEPTH then
    local v = real[copy]
    if v == nil then v = copy end -- false, too
    if not rawequal(v, given) then return path, given, copy end
    return nil
  end
  if not is_plain(copy) then return path, given, copy end
  met[given] = copy
  for k, v in next, given do
    local name, old, new = written_argument(copy[k], v, real, ("%s[%s]"):format(path, text_of_key(k)), depth + 1, met)
    if name then return name, old, new end
  end
  for k, v in next, copy do
    if given[k] == nil then return ("%s[%s]"):format(path, text_of_key(k)), nil, v end
  end
end

local function written_arguments(symbolic, args, real)
  local met = {}
  for i = 1, args.n do
    if is_plain(args[i]) then
      local name, old, new = written_argument(symbolic[i], args[i], real, "argument " .. i, 0, met)
      if name then return name, old, new end
    end
  end
end

-- What the function returned, with the tensors of this run: outputs, arguments, captured tensors, and views of them.
local function put(t, list, tensors)
  local made, copies = {}, {}
  local function tensor(v, at)
    if made[v] then return made[v] end
    local x = at == "argument" and tensors[v.at] or at == "captured" and v.tensor or list[at]
    if v.views then x = core.jit_views(t.ir, x, v.views, v.recorded) end
    made[v] = x
    return x
  end
  local function fill(v, depth)
    if type(v) ~= "table" then return v end
    local at = rawget(v, MARK)
    if at then return tensor(v, at) end
    if getmetatable(v) ~= nil or depth > DEPTH then return v end
    if copies[v] then return copies[v] end
    local out = {}
    copies[v] = out
    for k, x in next, v do out[k] = fill(x, depth + 1) end
    return out
  end
  return fill(t.results, 0)
end

values.is_plain, values.text_of, values.map, values.put = is_plain, text_of, map, put
values.written_arguments, values.objects = written_arguments, objects

return values
