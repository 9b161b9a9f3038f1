-- SPDX-License-Identifier: MIT
-- How the prompt shows values: tensors with a dim summary, tables as what one would type, in the terminal's width.
-- Without colours the text is plain.
local M = {}

local COLOURS = { dim = "\27[2m", red = "\27[31m", green = "\27[32m", blue = "\27[34m", cyan = "\27[36m",
  bold = "\27[1m", magenta = "\27[35m" }
local MAX_ITEMS, MAX_DEPTH, MAX_STRING = 50, 4, 2000

-- style: {colour = boolean, width = columns}
function M.paint(style, colour, text)
  if not style.colour or text == "" then return text end
  return COLOURS[colour] .. text .. "\27[0m"
end
local paint = M.paint

local BY_KIND = { keyword = "magenta", string = "green", number = "cyan", comment = "dim" }

-- Lua text in colours, from byte `from` on.
function M.code(text, from)
  local out, at = {}, from
  for _, t in ipairs(require("perilune.repl.lex").tokens(text)) do
    local colour = COLOURS[BY_KIND[t.kind]]
    if colour and t.to >= at then
      local start = math.max(t.from, at)
      out[#out + 1] = text:sub(at, start - 1) .. colour .. text:sub(start, t.to) .. "\27[0m"
      at = t.to + 1
    end
  end
  return table.concat(out) .. text:sub(at)
end

-- Columns that a text takes: its characters, without colours.
local function columns(text)
  text = text:gsub("\27%[%d*m", "")
  return utf8.len(text) or #text
end

-- Bytes that a terminal would act on, in the notation of Lua.
local function printable(text)
  text = text:gsub("[%c\127]", function(c)
    if c == "\n" or c == "\t" then return c end
    return ("\\x%02x"):format(c:byte())
  end)
  if utf8.len(text) then return text end
  return (text:gsub("[\128-\255]", function(c) return ("\\x%02x"):format(c:byte()) end))
end
M.printable = printable

local ESCAPES = { ["\n"] = "\\n", ["\t"] = "\\t", ['"'] = '\\"', ["\\"] = "\\\\" }
local function quoted(s)
  local cut = #s > MAX_STRING and s:sub(1, MAX_STRING) or s
  local text = '"' .. printable((cut:gsub('[\n\t"\\]', ESCAPES))) .. '"'
  return cut == s and text or ("%s … %d bytes"):format(text, #s)
end

local function is_tensor(v)
  local meta = debug.getmetatable(v)
  return type(v) == "userdata" and type(meta) == "table" and rawget(meta, "__name") == "tensor"
end
M.is_tensor = is_tensor

local function tensor(v, style)
  local text = tostring(v)
  local body, note = text:match("^(.*)(%-%- [^\n]*)$")
  if not body then return text end
  if style.colour then
    body = body:gsub("%f[%w-]%-?nan%f[%W]", function(w) return paint(style, "red", w) end)
      :gsub("%f[%w-]%-?inf%f[%W]", function(w) return paint(style, "red", w) end)
  end
  return body .. paint(style, "dim", note)
end

-- What a value says of itself. Pictures of our own (T.plot, x:imshow) are coloured; nobody else may send the terminal
-- anything.
local home = debug.getinfo(1, "S").source:gsub("repl/show%.lua$", "")
local function own_text(v, meta)
  local text = tostring(v)
  local f = type(meta) == "table" and rawget(meta, "__tostring")
  if type(f) ~= "function" or debug.getinfo(f, "S").source:sub(1, #home) ~= home then return printable(text) end
  local out, at = {}, 1
  for from, colour, to in text:gmatch "()(\27%[[%d;]*m)()" do
    out[#out + 1], out[#out + 2] = printable(text:sub(at, from - 1)), colour
    at = to
  end
  return table.concat(out) .. printable(text:sub(at))
end

local show

-- The sequence 1 … n of a table, then its other keys in a stable order.
local function keys_of(t)
  local n, rest = 0, {}
  while rawget(t, n + 1) ~= nil do n = n + 1 end
  for k in next, t do
    if not (math.type(k) == "integer" and k >= 1 and k <= n) then rest[#rest + 1] = k end
  end
  table.sort(rest, function(a, b)
    local ta, tb = type(a), type(b)
    if ta ~= tb then return ta < tb end
    if ta == "number" or ta == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return n, rest
end

local KEYWORDS = require("perilune.repl.lex").keywords
local function key_text(k, style, state)
  if type(k) == "string" then
    if k:find "^[%a_][%w_]*$" and not KEYWORDS[k] then return paint(style, "blue", k) end
    return "[" .. quoted(k) .. "]"
  end
  return "[" .. show(k, style, state, 0, MAX_DEPTH) .. "]"
end

-- `at`: the column where the table begins.
local function plain_table(t, style, state, at, depth)
  if state.seen[t] then return paint(style, "dim", "{… itself}") end
  if next(t) == nil then return "{}" end
  if depth >= MAX_DEPTH then return paint(style, "dim", "{…}") end
  state.seen[t] = true
  local n, rest = keys_of(t)
  local items, left = {}, 0
  local function add(key, v)
    if #items >= MAX_ITEMS then left = left + 1 return end
    items[#items + 1] = (key and key .. " = " or "") .. show(v, style, state, at + 2, depth + 1)
  end
  for i = 1, n do add(nil, rawget(t, i)) end
  for _, k in ipairs(rest) do
    add(#items < MAX_ITEMS and key_text(k, style, state) or "", rawget(t, k))
  end
  if left > 0 then items[#items + 1] = paint(style, "dim", ("… %d more"):format(left)) end
  state.seen[t] = nil
  local total, broken = at + 4, false
  for _, item in ipairs(items) do
    total = total + columns(item) + 2
    broken = broken or item:find("\n", 1, true) ~= nil
  end
  if total <= style.width and not broken then return "{ " .. table.concat(items, ", ") .. " }" end
  local pad = (" "):rep(at + 2)
  return "{\n" .. pad .. table.concat(items, ",\n" .. pad) .. "\n" .. (" "):rep(at) .. "}"
end

-- An object that has no text of its own, by what it holds that a line has room for: run {epoch = 3, step = 30}.
local function object(v, name, style)
  local keys = {}
  for key, value in next, v do
    local kind = type(value)
    if type(key) == "string" and key:find "^%a" and (kind == "number" or kind == "boolean" or kind == "string"
        and #value <= 30) then
      keys[#keys + 1] = key
    end
  end
  table.sort(keys)
  local more = #keys > 8
  for i, key in ipairs(keys) do keys[i] = i <= 8 and key .. " = " .. show(rawget(v, key), style, {}, 0, 0) or nil end
  return ("%s {%s%s}"):format(name, table.concat(keys, ", "), more and ", …" or "")
end

show = function(v, style, state, at, depth)
  local kind = type(v)
  if kind == "string" then return paint(style, "green", quoted(v)) end
  if kind == "number" or kind == "boolean" or kind == "nil" then return paint(style, "cyan", tostring(v)) end
  if is_tensor(v) then return not v:is_freed() and v:numel() <= 8 and v:dim() <= 1 and tensor(v, style) or v:brief() end
  local meta = debug.getmetatable(v)
  if kind == "table" and not (type(meta) == "table" and rawget(meta, "__tostring")) then
    if type(meta) == "table" and rawget(meta, "__index") ~= nil and type(rawget(meta, "__name")) == "string" then
      return object(v, rawget(meta, "__name"), style)
    end
    return plain_table(v, style, state, at, depth)
  end
  return own_text(v, meta)
end

local SPACES = { "nn", "nn.F", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "data", "data.transforms",
  "linalg",
  "special", "metrics", "distributions", "distributed", "cuda", "core" }

-- perilune's own functions, classes and tables of them in one line: what they are called, and how.
local function own(v, style)
  local T = require "perilune"
  if rawequal(v, T) then
    return ("T: perilune %s. T. and Tab lists its names; ?T.softmax tells about one"):format(T.version)
  end
  local kind = type(v)
  local class = kind == "table" and (rawget(v, "__perilune_module") ~= nil or type(rawget(v, "settings")) == "table")
  if kind ~= "function" and not class then
    for _, path in ipairs(kind == "table" and SPACES or {}) do
      local space = T
      for key in path:gmatch "[^.]+" do space = type(space) == "table" and rawget(space, key) or nil end
      if rawequal(space, v) then
        local name = (path:find "^nn" or path:find "^optim") and path or "T." .. path
        return ("%s: %s. and Tab lists its names; ?%s.NAME tells about one"):format(name, name, name)
      end
    end
    return nil
  end
  local ok, page = pcall(require("perilune.repl.about").value, v, 1000)
  local head = ok and page:match "^[^\n]*"
  if not head or not head:find "[(:]" then return nil end
  return paint(style, "dim", class and "class " or "function ") .. head
end

-- One value at the prompt. A string is quoted, unless it is a text of several lines.
function M.value(v, style)
  if type(v) == "string" then
    if not v:find "\n" then return show(v, style, { seen = {} }, 0, 0) end
    return style.colour and printable(v) or v
  end
  if type(v) == "function" or type(v) == "table" then
    local text = own(v, style)
    if text then return text end
  end
  if is_tensor(v) then return tensor(v, style) end
  return show(v, style, { seen = {} }, 0, 0)
end

-- All values of an input: on one line where each is.
function M.values(list, n, style)
  local out, lines = {}, false
  for i = 1, n do
    out[i] = M.value(list[i], style)
    lines = lines or out[i]:find("\n", 1, true) ~= nil
  end
  return table.concat(out, lines and "\n" or "\t")
end

-- A value in a few words, without a look at a tensor's elements: "f32[2,3] cpu", "table", "3".
function M.brief(v)
  local kind = type(v)
  if is_tensor(v) then
    return v:is_freed() and "a freed tensor" or v:describe() .. " " .. v:device()
  elseif kind == "string" then
    return #v > 40 and quoted(v:sub(1, 37)) .. "…" or quoted(v)
  elseif kind == "number" or kind == "boolean" or kind == "nil" then
    return tostring(v)
  end
  local meta = debug.getmetatable(v)
  local name = type(meta) == "table" and rawget(meta, "__name")
  if type(name) == "string" then return name end
  if kind == "table" then
    local n = 0
    for _ in next, v do n = n + 1 end
    return ("table of %d"):format(n)
  end
  return kind
end

return M
