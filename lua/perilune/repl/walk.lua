-- SPDX-License-Identifier: MIT
-- Looks into values without running anything of the user's: tables raw, metatables as long as __index is a table,
-- tensors by their table of methods, perilune's own tables that load parts at first use.
local M = {}

local MAX_CHAIN, MAX_MEMBERS = 20, 5000
local TENSOR_FIELDS = { "grad", "grad_fn", "is_leaf", "mT", "requires_grad" }

local function meta_of(v)
  local meta = debug.getmetatable(v)
  return type(meta) == "table" and meta or nil
end

-- What stands behind v for lookups: a table, or nil.
local function behind(v)
  local meta = meta_of(v)
  if not meta then return nil end
  if type(v) == "userdata" and rawget(meta, "__name") == "tensor" then return rawget(meta, "methods") end
  local index = rawget(meta, "__index")
  if type(index) == "table" then return index end
  if rawget(meta, "__perilune_module") ~= true then return nil end
  return rawget(meta, "__class") or meta -- a network: its class is behind it
end

local home = debug.getinfo(1, "S").source:gsub("repl/walk%.lua$", "")

-- perilune's own lazy tables say in their metatable what they would load. Their __index may run: it is none of the
-- user's.
local function lazy_names(v)
  local meta = meta_of(v)
  local lazy, index = meta and rawget(meta, "__lazy"), meta and rawget(meta, "__index")
  if not lazy or type(index) ~= "function" or debug.getinfo(index, "S").source:sub(1, #home) ~= home then return nil end
  return type(lazy) == "function" and lazy() or lazy
end

-- Is key a member of v? Its value; also true for a tensor's field, whose value is not read.
function M.get(v, key)
  if type(v) == "userdata" then
    for _, name in ipairs(TENSOR_FIELDS) do
      if name == key and behind(v) then return true, nil end
    end
  end
  for _ = 1, MAX_CHAIN do
    if type(v) == "table" then
      local value = rawget(v, key)
      if value ~= nil then return true, value end
      local lazy = lazy_names(v)
      if lazy and rawget(lazy, key) then return true, v[key] end
    end
    v = behind(v)
    if v == nil then return false end
  end
  return false
end

-- Sorted names that v has. only_callable: for what follows a colon.
function M.members(v, only_callable)
  local seen, list = {}, {}
  local function add(key, value)
    if type(key) ~= "string" or seen[key] or not key:find "^[%a_][%w_]*$" or #list >= MAX_MEMBERS then return end
    seen[key] = true
    if only_callable and type(value) ~= "function" then
      local meta = meta_of(value)
      if not (meta and rawget(meta, "__call")) then return end
    end
    list[#list + 1] = key
  end
  if type(v) == "userdata" and behind(v) and not only_callable then
    for _, name in ipairs(TENSOR_FIELDS) do add(name) end
  end
  for _ = 1, MAX_CHAIN do
    if type(v) == "table" then
      for key, value in next, v do add(key, value) end
      local lazy = lazy_names(v)
      for key in next, lazy or {} do add(key, function() end) end
    end
    v = behind(v)
    if v == nil then break end
  end
  table.sort(list)
  return list
end

-- The value of a path, "T.nn.Linear" or "x:sum", in an environment. → found?, value
function M.resolve(path, env)
  local first, rest = path:match "^([%a_][%w_]*)(.*)$"
  if not first then return false end
  local found, value = M.get(env, first)
  if not found then return false end
  while rest ~= "" do
    local key, more = rest:match "^%s*[.:]%s*([%a_][%w_]*)(.*)$"
    if not key then return false end
    found, value = M.get(value, key)
    if not found then return false end
    rest = more
  end
  return true, value
end

-- Text whose lines are cut at blanks to fit `width`; what goes on is indented.
function M.wrapped(text, width)
  local out = {}
  for line in (text .. "\n"):gmatch "([^\n]*)\n" do
    local indent = line:match "^ *" .. "    "
    while (utf8.len(line) or #line) > width do
      local head = utf8.len(line) and line:sub(1, utf8.offset(line, width + 1) - 1) or line:sub(1, width)
      local cut = head:match "^(.*%S) +%S*$"
      if not cut or #cut <= #indent then break end
      out[#out + 1] = cut
      line = indent .. line:sub(#cut + 1):match "^ *(.*)$"
    end
    out[#out + 1] = line
  end
  return table.concat(out, "\n")
end

-- Words in columns, lines of at most `width`.
function M.columns(words, width)
  local longest = 0
  for _, word in ipairs(words) do longest = math.max(longest, utf8.len(word) or #word) end
  local per_line = math.max(1, (width + 1) // (longest + 2))
  local rows = math.ceil(#words / per_line)
  local lines = {}
  for r = 1, rows do
    local line = {}
    for i = r, #words, rows do
      local word = words[i]
      line[#line + 1] = i + rows <= #words and word .. (" "):rep(longest + 2 - (utf8.len(word) or #word)) or word
    end
    lines[r] = table.concat(line)
  end
  return table.concat(lines, "\n")
end

return M
