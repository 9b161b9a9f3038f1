-- SPDX-License-Identifier: MIT
-- The annotations of the Lua language server (LuaLS, "annotations"), as far as the definitions use them: reads a file
-- of definitions, its types as trees, and tells whether a value is of a type.

local M = {}

local BUILTIN = { any = true, number = true, integer = true, string = true, boolean = true, table = true,
  ["nil"] = true, ["function"] = true, userdata = true, thread = true }

-- ---- types: {"union", …} {"name", "perilune.Tensor"} {"list", t} {"text", s} {"number", n} {"table", k, v}
-- {"fun", params = {{name, type, optional}}, returns = {…}} ---------------------------------------------------------

local parse_union

local function skip(s, at) return s:match("^%s*()", at) end

local function parse_fun(s, at)
  local t = { "fun", params = {}, returns = {} }
  at = skip(s, at)
  while s:sub(at, at) ~= ")" do
    local name, optional, colon = s:match("^([%w_.]+)(%??)%s*()", at)
    if not name then error("a parameter is expected at: " .. s:sub(at), 0) end
    at = colon
    local kind = { "name", "any" }
    if s:sub(at, at) == ":" then kind, at = parse_union(s, at + 1) end
    t.params[#t.params + 1] = { name, kind, optional == "?" }
    at = skip(s, at)
    if s:sub(at, at) == "," then at = skip(s, at + 1) end
    if at > #s then error("a parenthesis is open: " .. s, 0) end
  end
  at = at + 1
  local behind = skip(s, at)
  if s:sub(behind, behind) == ":" then
    at = behind
    repeat
      local kind
      kind, at = parse_union(s, at + 1)
      t.returns[#t.returns + 1] = kind
      local comma = s:match("^%s*(),", at)
      at = comma or at
    until not comma
  end
  return t, at
end

local function parse_one(s, at)
  at = skip(s, at)
  local text, behind = s:match('^"([^"]*)"()', at)
  if text then return { "text", text }, behind end
  text, behind = s:match("^(%-?%d+)()", at)
  if text then return { "number", tonumber(text) }, behind end
  behind = s:match("^fun%(()", at)
  if behind then return parse_fun(s, behind) end
  behind = s:match("^table%s*<()", at)
  if behind then
    local key, value
    key, at = parse_union(s, behind)
    at = skip(s, at)
    if s:sub(at, at) ~= "," then error("a comma is expected: " .. s, 0) end
    value, at = parse_union(s, at + 1)
    at = skip(s, at)
    if s:sub(at, at) ~= ">" then error("> is expected: " .. s, 0) end
    return { "table", key, value }, at + 1
  end
  if s:sub(at, at) == "(" then
    local t
    t, at = parse_union(s, at + 1)
    at = skip(s, at)
    if s:sub(at, at) ~= ")" then error("a parenthesis is open: " .. s, 0) end
    return t, at + 1
  end
  local name, next_at = s:match("^([%a_][%w_.]*)()", at)
  if not name then error("a type is expected at: " .. s:sub(at), 0) end
  return { "name", name }, next_at
end

function parse_union(s, at)
  local union = { "union" }
  while true do
    local t
    t, at = parse_one(s, at)
    while true do
      if s:sub(at, at + 1) == "[]" then
        t, at = { "list", t }, at + 2
      elseif s:sub(at, at) == "?" then
        union[#union + 1], at = { "name", "nil" }, at + 1
      else
        break
      end
    end
    union[#union + 1] = t
    local bar = s:match("^%s*|()", at)
    if not bar then return #union == 2 and union[2] or union, at end
    at = bar
  end
end

--- The type that a text begins with → tree, what stands behind it.
function M.parse(text)
  local t, at = parse_union(text, 1)
  return t, text:sub(at)
end

--- f(name) for each name of a type.
function M.names(t, f)
  if t[1] == "name" then f(t[2]) end
  if t[1] == "union" or t[1] == "list" or t[1] == "table" then for i = 2, #t do M.names(t[i], f) end end
  for _, p in ipairs(t.params or {}) do M.names(p[2], f) end
  for _, r in ipairs(t.returns or {}) do M.names(r, f) end
end

-- ---- files ----------------------------------------------------------------------------------------------------------

--- {classes = name → {parents, fields = name → {type, optional}}, aliases = name → type, functions = list of {name,
-- params = {{name, type, optional}}, returns, overloads}, faults}
function M.read(text)
  local out = { classes = {}, aliases = {}, functions = {}, faults = {} }
  local pending, class, number = { params = {}, returns = {}, overloads = {} }, nil, 0
  local function fault(what) out.faults[#out.faults + 1] = ("line %d: %s"):format(number, what) end
  local function typed(s)
    local ok, t, rest = pcall(M.parse, s)
    if not ok then
      fault(t)
      return { "name", "any" }, ""
    end
    if rest ~= "" and not rest:find "^%s" and not rest:find "^,%s" then fault("behind a type: " .. rest) end
    return t, rest
  end
  local tags = {}
  function tags.class(s)
    local name, parents = s:match "^([%w_.]+)%s*:?%s*(.*)$"
    if not name then return fault "a class without a name" end
    if out.classes[name] then fault("the class " .. name .. " is there twice") end
    class = { parents = {}, fields = {} }
    for parent in parents:gmatch "[%w_.]+" do class.parents[#class.parents + 1] = parent end
    out.classes[name] = class
  end
  function tags.field(s)
    if not class then return fault "a field without a class" end
    local key, rest = s:match "^%[([%w_.|]+)%]%s+(.*)$"
    if key then
      class.index = class.index or {}
      class.index[#class.index + 1] = { M.parse(key), (typed(rest)) }
      return
    end
    local name, optional, kind = s:match "^([%a_][%w_]*)(%??)%s+(.*)$"
    if not name then return fault("a field that cannot be read: " .. s) end
    if class.fields[name] then fault("the field " .. name .. " is there twice") end
    class.fields[name] = { (typed(kind)), optional == "?" }
  end
  function tags.param(s)
    local name, optional, kind = s:match "^([%w_.]+)(%??)%s+(.*)$"
    if not name then return fault("a parameter that cannot be read: " .. s) end
    pending.params[#pending.params + 1] = { name, (typed(kind)), optional == "?" }
  end
  tags["return"] = function(s)
    repeat
      local t, rest = typed(s)
      pending.returns[#pending.returns + 1] = t
      s = rest:match "^%s*,%s*(.*)$"
    until not s
  end
  function tags.overload(s)
    local t = typed(s)
    if t[1] ~= "fun" then fault("an overload is no function: " .. s) end
    pending.overloads[#pending.overloads + 1] = t
  end
  function tags.alias(s)
    local name, kind = s:match "^([%w_.]+)%s+(.*)$"
    out.aliases[name or "?"] = typed(kind or "")
  end
  function tags.type(s) pending.type = typed(s) end -- of the field that is assigned below it
  function tags.operator() end
  function tags.meta() end
  for line in (text .. "\n"):gmatch "([^\n]*)\n" do
    number = number + 1
    local tag, rest = line:match "^%-%-%-@(%w+)%s*(.*)$"
    if tag then
      if tags[tag] then tags[tag](rest) else fault("an unknown annotation, " .. tag) end
    else
      local name, list = line:match "^function ([%w_.:]+)%(([^)]*)%) end$"
      if name then
        local i = 0
        for p in list:gmatch "[%w_.]+" do
          i = i + 1
          if pending.params[i] and pending.params[i][1] ~= p then
            fault(("%s: parameter %d is %s, its annotation says %s"):format(name, i, p, pending.params[i][1]))
          end
        end
        if #pending.params > 0 and #pending.params ~= i then fault(name .. ": parameters and annotations differ") end
        pending.name = name
        out.functions[#out.functions + 1] = pending
      end
      local holder, field = line:match "^([%a_]+)%.([%a_]+) = %l+$"
      if holder and pending.type then
        local fields = (out.classes["perilune." .. holder] or { fields = {} }).fields
        if fields[field] then fault("the field " .. field .. " is there twice") end
        fields[field] = { pending.type, false }
      end
      if not line:find "^%-%-%-" then
        pending, class = { params = {}, returns = {}, overloads = {} }, nil
      end
    end
  end
  local function known(t, where)
    M.names(t, function(name)
      if not BUILTIN[name] and not out.classes[name] and not out.aliases[name] then
        out.faults[#out.faults + 1] = ("%s: the type %s is not defined"):format(where, name)
      end
    end)
  end
  for name, c in pairs(out.classes) do
    for _, parent in ipairs(c.parents) do known({ "name", parent }, name) end
    for field, f in pairs(c.fields) do known(f[1], name .. "." .. field) end
    for _, f in ipairs(c.index or {}) do known(f[2], name) end
  end
  for name, t in pairs(out.aliases) do known(t, name) end
  for _, f in ipairs(out.functions) do
    for _, p in ipairs(f.params) do known(p[2], f.name .. ", " .. p[1]) end
    for _, r in ipairs(f.returns) do known(r, f.name) end
    for _, o in ipairs(f.overloads) do known(o, f.name) end
  end
  return out
end

-- ---- values ---------------------------------------------------------------------------------------------------------

local function callable(v)
  local meta = getmetatable(v)
  return type(v) == "function" or type(meta) == "table" and meta.__call ~= nil
end

--- Is v of type t? known: what M.read gave; is_tensor(v).
function M.fits(known, t, v, is_tensor)
  local kind = t[1]
  if kind == "union" then
    for i = 2, #t do if M.fits(known, t[i], v, is_tensor) then return true end end
    return false
  elseif kind == "text" or kind == "number" then
    return v == t[2]
  elseif kind == "fun" then
    return callable(v)
  elseif kind == "list" then
    if type(v) ~= "table" then return false end
    for i = 1, #v do if not M.fits(known, t[2], v[i], is_tensor) then return false end end
    return true
  elseif kind == "table" then
    if type(v) ~= "table" then return false end
    for key, x in next, v do
      if not M.fits(known, t[2], key, is_tensor) or not M.fits(known, t[3], x, is_tensor) then return false end
    end
    return true
  end
  local name = t[2]
  if name == "any" then return true end
  if name == "integer" or name == "perilune.int" then return type(v) == "number" and v == math.floor(v) end
  if name == "function" then return callable(v) end
  if name == "perilune.value" then return type(v) == "number" or type(v) == "boolean" end
  if name == "perilune.Argument" then return true end
  if name == "perilune.Tensor" then return is_tensor(v) end
  if BUILTIN[name] then return type(v) == name end
  if known.aliases[name] then return M.fits(known, known.aliases[name], v, is_tensor) end
  if is_tensor(v) then return false end
  if name:find "Options$" then
    local class = known.classes[name]
    if type(v) ~= "table" then return false end
    for key, x in next, v do
      local field = class.fields[key]
      local fine = field and M.fits(known, field[1], x, is_tensor)
      for _, f in ipairs(class.index or {}) do
        fine = fine or (M.fits(known, f[1], key, is_tensor) and M.fits(known, f[2], x, is_tensor))
      end
      if not fine then return false, key end
    end
    return true
  end
  return type(v) == "table" or type(v) == "userdata" or type(v) == "function"
end

--- A type as text.
function M.text(t)
  if t[1] == "union" then
    local out = {}
    for i = 2, #t do out[#out + 1] = M.text(t[i]) end
    return table.concat(out, "|")
  end
  if t[1] == "list" then return M.text(t[2]) .. "[]" end
  if t[1] == "table" then return ("table<%s, %s>"):format(M.text(t[2]), M.text(t[3])) end
  if t[1] == "text" then return ("%q"):format(t[2]) end
  if t[1] == "fun" then return "fun(…)" end
  return tostring(t[2])
end

return M
