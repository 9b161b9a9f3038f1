-- SPDX-License-Identifier: MIT
--- JSON (RFC 8259) as Lua values and back: configurations of models, lists of shards, adapters.
--
-- Objects become tables, arrays tables that are marked as such, so that an empty one stays an array; null is json.null
-- inside both. Integers stay integers where they fit 64 bits. Nothing in a text is run; depth is bounded.
-- @module perilune.io.json
local json = {}

local MAX_DEPTH = 200


--- What null reads as, and is written from.
json.null = setmetatable({}, { __tostring = function() return "null" end, __name = "json.null" })

local array = { __name = "json.array" }

--- Marks a list as an array, also where it is empty; → the list.
function json.array(list) return setmetatable(list, array) end
--- Whether a value is a table that was read from an array, or marked.
function json.is_array(v) return getmetatable(v) == array end

-- What a text becomes, where the caller does not say otherwise.
local plain_values = { null = json.null, depth = MAX_DEPTH, object = function() return {} end, set = rawset,
  list = json.array }

local plain = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function fault(s, at, what)
  local line = select(2, s:sub(1, at - 1):gsub("\n", "\n")) + 1
  error({ json = ("line %d: %s"):format(line, what) }, 0)
end

local function spaces(s, at) return s:match("^[ \t\r\n]*()", at) end

-- The string whose quote is at s[at] → text, the place behind it.
local function string_at(s, at)
  local parts, from = {}, at + 1
  while true do
    local stop = s:find('["\\%c]', from)
    if not stop then fault(s, at, "a string that does not end") end
    parts[#parts + 1] = s:sub(from, stop - 1)
    local c = s:sub(stop, stop)
    if c == '"' then return table.concat(parts), stop + 1 end
    if c ~= "\\" and c ~= "\127" then fault(s, stop, "a control character within a string") end
    if c == "\127" then
      parts[#parts + 1], from = c, stop + 1
    else
      local e = s:sub(stop + 1, stop + 1)
      if plain[e] then
        parts[#parts + 1], from = plain[e], stop + 2
      else
        local hex = s:match("^u(%x%x%x%x)", stop + 1)
        if not hex then fault(s, stop, "an escape that JSON does not have") end
        local code, next_at = tonumber(hex, 16), stop + 6
        local low = code >= 0xD800 and code < 0xDC00 and s:match("^\\u([dD][c-fC-F]%x%x)", next_at)
        if low then
          code = 0x10000 + (code - 0xD800) * 0x400 + tonumber(low, 16) - 0xDC00
          next_at = next_at + 6
        elseif code >= 0xD800 and code < 0xE000 then
          code = 0xFFFD -- half of a pair
        end
        parts[#parts + 1], from = utf8.char(code), next_at
      end
    end
  end
end

local function number_at(s, at)
  local text = s:match("^-?%d+%.?%d*[eE]?[+-]?%d*", at)
  if not text or not (text:find "^-?0$" or text:find "^-?[1-9]%d*$" or text:find "^-?0[.eE]"
    or text:find "^-?[1-9]%d*[.eE]") or text:find "%.[eE]" or text:find "[.eE+-]$" then
    fault(s, at, "a value is expected")
  end
  if text:find "[.eE]" then return tonumber(text), at + #text end -- a float, also -0.0
  return math.tointeger(text) or tonumber(text), at + #text
end

local words = { { "true", true }, { "false", false }, -- and three that Python writes
  { "NaN", 0 / 0 }, { "Infinity", math.huge }, { "-Infinity", -math.huge } }

local function value_at(s, at, depth, make)
  if depth > make.depth then fault(s, at, ("nested deeper than %d"):format(make.depth)) end
  at = spaces(s, at)
  local c = s:sub(at, at)
  if c == '"' then return string_at(s, at) end
  if c == "{" or c == "[" then
    local out, n, last = c == "[" and {} or make.object(), 0, c == "[" and "]" or "}"
    at = spaces(s, at + 1)
    if s:sub(at, at) == last then return c == "[" and make.list(out, 0) or out, at + 1 end
    while true do
      local key, v
      if c == "{" then
        if s:sub(at, at) ~= '"' then fault(s, at, "a name in quotes is expected") end
        key, at = string_at(s, at)
        at = spaces(s, at)
        if s:sub(at, at) ~= ":" then fault(s, at, "':' is expected") end
        at = at + 1
      else
        n = n + 1
        key = n
      end
      v, at = value_at(s, at, depth + 1, make)
      if c == "[" then out[key] = v else make.set(out, key, v) end
      at = spaces(s, at)
      local mark = s:sub(at, at)
      if mark == last then return c == "[" and make.list(out, n) or out, at + 1 end
      if mark ~= "," then fault(s, at, ("',' or '%s' is expected"):format(last)) end
      at = spaces(s, at + 1)
    end
  end
  if s:sub(at, at + 3) == "null" then return make.null, at + 4 end
  for _, word in ipairs(words) do
    if s:sub(at, at + #word[1] - 1) == word[1] then return word[2], at + #word[1] end
  end
  return number_at(s, at)
end

--- The value of a text; nil and what is wrong, with its line. make: what other values than these become: null,
-- object() → o, set(o, name, value), list(values, n) → list, depth: of brackets within brackets.
function json.decode(s, make)
  local ok, v = pcall(function()
    local _, wrong = utf8.len(s)
    if wrong then fault(s, wrong, "not UTF-8") end
    local v, at = value_at(s, s:sub(1, 3) == "\239\187\191" and 4 or 1, 1, make or plain_values)
    at = spaces(s, at)
    if at <= #s then fault(s, at, "something behind the value") end
    return v
  end)
  if ok then return v end
  if type(v) == "table" then return nil, v.json end
  error(v, 0)
end

--- The value in a file; nil, message, code ("io" or "format").
function json.read(path)
  local f, why = io.open(path, "rb")
  if not f then return nil, why, "io" end
  local text = f:read "a"
  f:close()
  if not text then return nil, path .. ": cannot be read", "io" end
  local v, what = json.decode(text)
  if v == nil then return nil, ("%s: no JSON: %s"):format(path, what), "format" end
  return v
end

local names = { ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r", ['"'] = '\\"', ["\\"] = "\\\\" }
local function quoted(s)
  return '"' .. s:gsub('[%c"\\]', function(c) return names[c] or c ~= "\127"
    and ("\\u%04x"):format(c:byte()) end) .. '"'
end

local function number_text(v)
  if math.type(v) == "integer" then return tostring(v) end
  if v ~= v then return "NaN" end
  if v == math.huge or v == -math.huge then return v > 0 and "Infinity" or "-Infinity" end
  for digits = 6, 17 do
    local text = ("%%.%dg"):format(digits):format(v)
    if tonumber(text) == v then return text:find "[.e]" and text or text .. ".0" end
  end
end

-- step: what a level is indented by; nil: everything in one line, what is no number is null, and what is no UTF-8 is
-- read as Latin-1, so that every reader of JSON takes it.
local function put(out, v, pad, step)
  local kind = type(v)
  if v == json.null then out[#out + 1] = "null"
  elseif kind == "string" then
    if not step and not utf8.len(v) then
      v = v:gsub("[\128-\255]", function(c) return utf8.char(c:byte()) end)
    end
    out[#out + 1] = quoted(v)
  elseif kind == "number" then out[#out + 1] = (step or v - v == 0) and number_text(v) or "null"
  elseif kind == "boolean" then out[#out + 1] = tostring(v)
  elseif kind == "table" then
    local list = json.is_array(v) or #v > 0
    local keys, inner = {}, step and "\n" .. pad .. step or ""
    if list then
      for i = 1, #v do keys[i] = i end
    else
      for key in pairs(v) do keys[#keys + 1] = key end
      table.sort(keys)
    end
    if #keys == 0 then out[#out + 1] = list and "[]" or "{}" return end
    out[#out + 1] = list and "[" or "{"
    for i, key in ipairs(keys) do
      out[#out + 1] = (i > 1 and "," or "") .. inner
      if not list then out[#out + 1] = quoted(key) .. (step and ": " or ":") end
      put(out, v[key], pad .. (step or ""), step)
    end
    out[#out + 1] = (step and "\n" .. pad or "") .. (list and "]" or "}")
  else
    error("json: a " .. kind .. " cannot be written", 0)
  end
end

--- A value as text, names sorted, two spaces a level.
function json.encode(v)
  local out = {}
  put(out, v, "", "  ")
  return table.concat(out)
end

--- A value as one line that every reader of JSON takes: NaN and infinities, which JSON lacks, become null.
function json.line(v)
  local out = {}
  put(out, v, "")
  return table.concat(out)
end

--- Writes a value into a file: whole or not at all; true, or nil, message, code ("io").
function json.write(path, v)
  local part = path .. ".part"
  local f, why = io.open(part, "wb")
  if not f then return nil, why, "io" end
  local ok, problem = f:write(json.encode(v), "\n")
  local closed, reason = f:close()
  if ok and closed then ok, problem = os.rename(part, path) end
  if ok and closed then return true end
  os.remove(part)
  return nil, ("%s: %s"):format(path, tostring(problem or reason)), "io"
end

return json
