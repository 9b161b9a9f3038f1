-- SPDX-License-Identifier: MIT
--- JSON for chat templates: reading keeps the order of keys, writing is that of Python's json.dumps.
-- @module perilune.jinja.json
local values = require "perilune.jinja.values"

local M = {}
local NONE, fail = values.NONE, values.fail

local function bad(at) fail("malformed JSON at byte %d", at) end

local escapes = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

local function read_string(s, at)
  local parts = {}
  local i = at + 1
  while true do
    local j = s:find('["\\%c]', i)
    if not j then bad(at) end
    parts[#parts + 1] = s:sub(i, j - 1)
    local c = s:sub(j, j)
    if c == '"' then return table.concat(parts), j + 1 end
    if c ~= "\\" then bad(j) end
    c = s:sub(j + 1, j + 1)
    if c == "u" then
      local code = tonumber(s:match("^%x%x%x%x", j + 2) or bad(j), 16)
      i = j + 6
      if code >= 0xD800 and code < 0xDC00 then
        local low = tonumber(s:match("^\\u([dD][c-fC-F]%x%x)", i) or bad(j), 16)
        code, i = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), i + 6
      end
      parts[#parts + 1] = utf8.char(code)
    else
      parts[#parts + 1] = escapes[c] or bad(j)
      i = j + 2
    end
  end
end

local words = { ["true"] = true, ["false"] = false, null = NONE }
local read

local function read_items(s, at, close, item)
  local i = s:match("^%s*()", at + 1)
  if s:sub(i, i) == close then return i + 1 end
  while true do
    i = s:match("^%s*()", item(i))
    local c = s:sub(i, i)
    if c == close then return i + 1 end
    if c ~= "," then bad(i) end
    i = s:match("^%s*()", i + 1)
  end
end

function read(s, at, depth)
  local c = s:sub(at, at)
  if depth > 64 then fail("JSON inside more than 64 brackets") end
  if c == '"' then return read_string(s, at) end
  if c == "[" then
    local list, n = {}, 0
    local i = read_items(s, at, "]", function(j)
      local v, k = read(s, j, depth + 1)
      n = n + 1
      list[n] = v
      return k
    end)
    return values.list(list, n), i
  end
  if c == "{" then
    local d = values.dict()
    local i = read_items(s, at, "}", function(j)
      if s:sub(j, j) ~= '"' then bad(j) end
      local key, k = read_string(s, j)
      k = s:match("^%s*:%s*()", k) or bad(k)
      local v
      v, k = read(s, k, depth + 1)
      values.dict_set(d, key, v)
      return k
    end)
    return d, i
  end
  local word, after = s:match("^(%a+)()", at)
  if word then
    if words[word] == nil then bad(at) end
    return words[word], after
  end
  local number
  number, after = s:match("^(%-?%d+%.?%d*[eE]?[+-]?%d*)()", at)
  local v = number and tonumber(number)
  if not v then bad(at) end
  return v, after
end

--- A value from JSON text.
function M.decode(s)
  local v, at = read(s, s:match "^%s*()", 0)
  if s:find("%S", at) then bad(at) end
  return v
end

local short = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b",
  ["\f"] = "\\f" }

local function quote(s, ascii)
  s = s:gsub('[%z\1-\31"\\]', function(c) return short[c] or ("\\u%04x"):format(c:byte()) end)
  if ascii then
    s = s:gsub("[\xC2-\xF4][\x80-\xBF]+", function(c)
      local ok, u = pcall(utf8.codepoint, c)
      if not ok then return c end
      if u < 0x10000 then return ("\\u%04x"):format(u) end
      u = u - 0x10000
      return ("\\u%04x\\u%04x"):format(0xD800 + (u >> 10), 0xDC00 + (u & 0x3FF))
    end)
  end
  return '"' .. s .. '"'
end

local function key_text(k)
  if type(k) == "string" then return k end
  if type(k) == "boolean" then return tostring(k) end
  return k == NONE and "null" or values.str(k)
end

local write

local function write_all(v, o, depth, open, close, item)
  if v.n == 0 then return open .. close end
  local parts = {}
  for i = 1, v.n do parts[i] = item(i) end
  if not o.indent then return open .. table.concat(parts, o.comma) .. close end
  local pad = "\n" .. o.indent:rep(depth + 1)
  return open .. pad .. table.concat(parts, o.comma .. pad) .. "\n" .. o.indent:rep(depth) .. close
end

function write(v, o, depth)
  if depth > 64 then fail("tojson: a value inside more than 64 others") end
  o.spend(1)
  local t = type(v)
  if t == "string" then
    o.spend(#v // 16)
    return quote(v, o.ascii)
  end
  if t == "boolean" then return tostring(v) end
  if t == "number" then
    local s = values.str(v)
    return s == "inf" and "Infinity" or s == "-inf" and "-Infinity" or s == "nan" and "NaN" or s
  end
  if v == NONE then return "null" end
  if v.kind == "list" or v.kind == "tuple" then
    return write_all(v, o, depth, "[", "]", function(i) return write(v[i], o, depth + 1) end)
  end
  if v.kind == "dict" then
    local keys = v.keys
    if o.sorted then
      keys = table.move(keys, 1, v.n, 1, {})
      table.sort(keys, function(a, b) return key_text(a) < key_text(b) end)
    end
    return write_all(v, o, depth, "{", "}", function(i)
      return quote(key_text(keys[i]), o.ascii) .. o.colon .. write(values.dict_get(v, keys[i]), o, depth + 1)
    end)
  end
  if v.kind == "big" then return v.text end
  fail("TypeError: Object of type %s is not JSON serializable", values.type_of(v))
end

--- JSON text of a value: `indent` a string or nil, `ascii`, `sorted`; spend(n) is called with the work done.
function M.encode(v, o)
  o.comma = o.comma or (o.indent and "," or ", ")
  o.colon = o.colon or ": "
  return write(v, o, 0)
end

return M
