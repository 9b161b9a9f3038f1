-- SPDX-License-Identifier: MIT
--- JSON for chat templates: reading keeps the order of keys, writing is that of Python's json.dumps.
-- @module perilune.jinja.json
local text_values = require "perilune.io.json"
local values = require "perilune.jinja.values"

local M = {}
local NONE, fail = values.NONE, values.fail

local making = { null = NONE, object = values.dict, set = values.dict_set, list = values.list, depth = 64 }

--- A value from JSON text.
function M.decode(s)
  local v, what = text_values.decode(s, making)
  if v == nil then fail("malformed JSON: %s", what) end
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
