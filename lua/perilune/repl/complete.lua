-- SPDX-License-Identifier: MIT
-- Completion: names, fields, methods after a colon, options in a call's table, words in option strings, file names in
-- other strings. Values are looked into raw (walk.lua); no code of the user's runs.
local T = require "perilune"
local lex = require "perilune.repl.lex"
local walk = require "perilune.repl.walk"
local options = require "perilune.options"

local Completer = {}
Completer.__index = Completer

local MAX_SHOWN = 300
local DTYPES = { "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool" }

-- A tensor that is not there yet: what x:exp() will be.
local TENSOR = {}

function Completer.new(env) return setmetatable({ env = env }, Completer) end

-- ---- what an expression is ------------------------------------------------------------------------------------

local CLOSERS = { [")"] = "(", ["]"] = "[", ["}"] = "{" }

-- The index of the token that opens what token i closes.
local function opener(tokens, i)
  local depth = 0
  for j = i, 1, -1 do
    local text = tokens[j].kind == "symbol" and tokens[j].text
    if CLOSERS[text] then depth = depth + 1 end
    if text == "(" or text == "[" or text == "{" then
      depth = depth - 1
      if depth == 0 then return j end
    end
  end
  return nil
end

-- The index of the first token of the expression with suffixes that ends at token i.
local function chain_start(tokens, i)
  while i and i >= 1 do
    local t, before = tokens[i], tokens[i - 1]
    if CLOSERS[t.text] and t.kind == "symbol" then
      local open = opener(tokens, i)
      local callee = open and tokens[open - 1]
      if callee and (callee.kind == "name" or callee.kind == "string" or CLOSERS[callee.text]) then
        i = open - 1
      else
        return open
      end
    elseif t.kind == "name" and before and (before.text == "." or before.text == ":") then
      i = i - 2
    elseif t.kind == "string" and before and (before.kind == "name" or CLOSERS[before.text]) then
      i = i - 1 -- f"text"
    else
      return i
    end
  end
  return nil
end

local ops
local function op_of(name)
  if not ops then
    ops = {}
    for _, op in ipairs(T.core.ops()) do ops[op.name] = op end
  end
  return ops[name] or (name and ops[name:match "^(.*)_$"])
end

local function is_class(v) return type(v) == "table" and rawget(v, "__perilune_module") == true end

-- What calling `callee`, reached under `name`, gives: TENSOR, a class for its instances, or nil.
local function result_of(callee, name)
  if is_class(callee) then return callee end
  local function is(f) return rawequal(callee, f) end -- the user's __eq must not run
  local method = T.core.metatable().methods[name]
  if name and op_of(name) and (is(TENSOR) or is(nil) or is(rawget(T, name)) or is(method)) then return TENSOR end
  if is(T.tensor) or is(T.rand) or is(T.randn) or is(T.arange) then return TENSOR end
  return nil
end

local function member(v, key)
  if rawequal(v, TENSOR) then
    local f = T.core.metatable().methods[key]
    return f ~= nil or op_of(key) ~= nil, f
  end
  return walk.get(v, key)
end

-- → found?, value of the expression of tokens from … to
function Completer:value(tokens, from, to)
  local t = tokens[from]
  if not t then return false end
  local found, value, name
  if t.kind == "name" then
    found, value = walk.get(self.env, t.text)
    name = t.text
  elseif t.kind == "string" then
    found, value = true, ""
  elseif t.text == "(" then
    local close = self:closer(tokens, from, to)
    if not close then return false end
    found, value = self:value(tokens, from + 1, close - 1)
    from = close
  end
  local i = from + 1
  while found and i <= to do
    local text = tokens[i].text
    if text == "." or text == ":" then
      name = tokens[i + 1] and tokens[i + 1].text
      found, value = member(value, name)
      i = i + 2
    elseif text == "[" then
      local close = self:closer(tokens, i, to)
      if not close then return false end
      local key = close == i + 2 and tokens[i + 1] or {}
      local exact = key.kind == "number" and math.tointeger(tonumber(key.text))
        or key.kind == "string" and key.text:match '^["\'](.*)["\']$'
      if type(value) == "userdata" or rawequal(value, TENSOR) then
        value = TENSOR
      elseif exact then
        found, value = walk.get(value, exact)
      else
        return false
      end
      i, name = close + 1, nil
    elseif text == "(" or text == "{" or tokens[i].kind == "string" then
      local close = tokens[i].kind == "string" and i or self:closer(tokens, i, to)
      if not close then return false end
      value = result_of(value, name)
      found, name, i = value ~= nil, nil, close + 1
    else
      return false
    end
  end
  return found, value
end

function Completer.closer(_, tokens, from, to)
  local depth = 0
  for i = from, to do
    local text = tokens[i].kind == "symbol" and tokens[i].text
    if text == "(" or text == "[" or text == "{" then depth = depth + 1 end
    if CLOSERS[text] then
      depth = depth - 1
      if depth == 0 then return i end
    end
  end
  return nil
end

-- ---- lists ----------------------------------------------------------------------------------------------------

local function members(v, after_colon)
  if not rawequal(v, TENSOR) then return walk.members(type(v) == "string" and string or v, after_colon) end
  local list = walk.members(T.core.metatable().methods, true)
  if not after_colon then
    for _, name in ipairs { "grad", "grad_fn", "is_leaf", "mT", "requires_grad" } do list[#list + 1] = name end
    table.sort(list)
  end
  return list
end

local function quote_of(t) return t.text:sub(1, 1) end

-- The names of the options in a signature such as "T.save(path, t, {metadata=, index_base=1})".
local function signature_options(text)
  local list = {}
  for group in text:gmatch "%b{}" do
    for name in group:gmatch "([%a_][%w_]*)%s*=" do list[#list + 1] = name end
  end
  return list
end

-- Option names of the function that is called under a name, nn.Linear or x:sum.
local function option_names(callee, path)
  local last = path:match "([%a_][%w_]*)$"
  local list, seen = {}, {}
  local function add(name)
    if not seen[name] then list[#list + 1] = name end
    seen[name] = true
  end
  local spec = options.specs[path:gsub("^T%.", "")] or (is_class(callee) and options.specs["nn." .. callee.__name])
  if spec then
    for _, name in ipairs(spec.names) do add(name) end
    return list
  end
  local settings = type(callee) == "table" and rawget(callee, "settings")
  if type(settings) == "table" then
    for _, s in ipairs(settings) do if type(s) == "table" and type(s[1]) == "string" then add(s[1]) end end
    return list
  end
  local entry = require("perilune.help.pages").all()[last]
  local op = not entry and op_of(last)
  if op then
    for _, a in ipairs(op.attrs) do add(a.name) end
    add "out"
  elseif entry then
    for _, name in ipairs(signature_options(entry.signature)) do add(name) end
  end
  return list, op
end

-- The call whose table of options token i is in: its value and its name as written, the table's first token.
function Completer:call_around(tokens, i)
  local depth = 0
  for j = i, 1, -1 do
    local text = tokens[j].kind == "symbol" and tokens[j].text
    if CLOSERS[text] then depth = depth + 1 end
    if text == "{" and depth == 0 then
      local k = j - 1
      if tokens[k] and (tokens[k].text == "(" or tokens[k].text == ",") then -- f(x, {
        local inner = 0
        while k >= 1 and not (inner == 0 and tokens[k].text == "(") do
          if CLOSERS[tokens[k].text] then inner = inner + 1 end
          if tokens[k].text == "(" or tokens[k].text == "{" or tokens[k].text == "[" then inner = inner - 1 end
          if inner < 0 then return nil end
          k = k - 1
        end
        k = k - 1
      end
      local t = tokens[k]
      if not t or t.kind ~= "name" then return nil end
      local from = chain_start(tokens, k)
      local words = {}
      for n = from, k do words[#words + 1] = tokens[n].text end
      local _, value = self:value(tokens, from, k)
      return value, table.concat(words), j
    end
    if text == "(" or text == "[" or text == "{" then depth = depth - 1 end
    if depth < 0 then return nil end
  end
  return nil
end

-- File names that begin with `partial`, as they would be written in a string.
local function file_names(partial, quote)
  local folder, rest = partial:match "^(.*/)([^/]*)$"
  local list = require("perilune.terminal").list(folder or ".")
  local out = {}
  for _, name in ipairs(list or {}) do
    if name:sub(1, #(rest or partial)) == (rest or partial) and (name:sub(1, 1) ~= "." or (rest or partial) ~= "") then
      local text = (folder or "") .. name
      text = text:gsub("[\\" .. quote .. "]", "\\%0"):gsub("%c", function(c) return ("\\x%02x"):format(c:byte()) end)
      if not utf8.len(text) then
        text = text:gsub("[\128-\255]", function(c) return ("\\x%02x"):format(c:byte()) end)
      end
      out[#out + 1] = text
    end
  end
  table.sort(out)
  return out
end

-- Words for the string of an option: dtype = "…", or the choices of an op's attribute.
function Completer:option_words(tokens, i)
  local key = tokens[i - 1] and tokens[i - 1].text == "=" and tokens[i - 2]
  if not key or key.kind ~= "name" then return nil end
  if key.text == "dtype" then return DTYPES end
  if key.text == "device" then return { "cpu" } end
  local callee, path = self:call_around(tokens, i - 1)
  local op = path and select(2, option_names(callee, path))
  for _, a in ipairs(op and op.attrs or {}) do
    if a.name == key.text and a.choices then
      local list = {}
      for word in a.choices:gmatch "[^|]+" do list[#list + 1] = word end
      return list
    end
  end
  return nil
end

local function starting(list, partial, suffix)
  local out = {}
  for _, name in ipairs(list) do
    if name:sub(1, #partial) == partial and (name:sub(1, 1) ~= "_" or partial ~= "") then
      out[#out + 1] = name .. (suffix or "")
    end
  end
  return out
end

function Completer:globals(tokens, partial)
  local list, seen = {}, {}
  local function add(name)
    if not seen[name] then list[#list + 1] = name end
    seen[name] = true
  end
  for _, name in ipairs(walk.members(self.env)) do add(name) end
  for word in pairs(lex.keywords) do add(word) end
  for i = 2, #tokens - 1 do -- what the text itself declares
    local before = tokens[i - 1].text
    if tokens[i].kind == "name" and (before == "local" or before == "function" or before == "," or before == "for"
      or before == "(") then add(tokens[i].text) end
  end
  table.sort(list)
  return starting(list, partial)
end

-- Text up to the cursor → the word there, its possible wholes, and what to add behind the only one.
function Completer:candidates(text)
  local tokens = lex.tokens(text)
  local last = tokens[#tokens]
  if last and last.kind == "comment" and last.open then return "", {} end
  if last and last.open then
    if not quote_of(last):find "[\"']" then return "", {} end
    local partial = last.text:sub(2)
    local words = self:option_words(tokens, #tokens)
    if words then return partial, starting(words, partial), quote_of(last) end
    return partial, file_names(partial, quote_of(last)), quote_of(last)
  end
  local partial, i = "", #tokens
  if last and last.to == #text and (last.kind == "name" or last.kind == "keyword") then
    partial, i = last.text, #tokens - 1
  end
  local before = tokens[i]
  if before and before.kind == "symbol" and (before.text == "." or before.text == ":") then
    local from = chain_start(tokens, i - 1)
    local found, value = self:value(tokens, from or i, i - 1)
    if not found or not from or value == nil then return partial, {} end
    return partial, starting(members(value, before.text == ":"), partial)
  end
  if before and (before.text == "{" or before.text == "," or before.text == ";") then
    local callee, path = self:call_around(tokens, i)
    local list = path and starting((option_names(callee, path)), partial, "=") or {}
    if #list > 0 then return partial, list end
  end
  if partial == "" and before and before.text ~= "?" then return "", {} end
  return partial, self:globals(tokens, partial)
end

local function common_start(list)
  local start = list[1]
  for _, word in ipairs(list) do
    local n = 0
    while n < #start and start:byte(n + 1) == word:byte(n + 1) do n = n + 1 end
    start = start:sub(1, n)
  end
  while #start > 0 and not utf8.len(start) do start = start:sub(1, -2) end
  return start
end

-- Text up to the cursor, of which the first `done` bytes are lines that stand already → as candidates, and for the
-- word of a command.
function Completer:at(text, done)
  local before = text:sub((done or 0) + 1)
  if not done and before:match "^%s*:%a*$" then
    local partial = before:match "%a*$"
    return partial, starting(require("perilune.repl.commands").names, partial), " "
  end
  before = before:gsub("^%s*%?", ""):gsub("^%s*:%a+%s", "")
  return self:candidates(text:sub(1, done or 0) .. before)
end

-- For the line editor: characters to remove, text to put, lines to show below (or nil).
function Completer:for_editor(pending, line, cursor, width)
  local partial, list, closing = self:at(pending .. line:sub(1, cursor), pending ~= "" and #pending or nil)
  return self.answer(partial, list, closing, width)
end

-- The name, as it would be asked for with ?, that the cursor behind byte `cursor` is in or touches; else that of the
-- function in whose call it is; nil where there is none.
function Completer:name_at(text, cursor)
  local tokens, i, there = lex.code(text), 0, false
  for k, t in ipairs(tokens) do
    local touches = t.kind == "name" and t.from <= cursor + 1 and t.to >= cursor
    if touches or (t.to <= cursor and not there) then i, there = k, touches end
  end
  if not there then -- the bracket around the cursor
    local depth = 0
    while i >= 1 do
      local mark = tokens[i].kind == "symbol" and tokens[i].text
      if CLOSERS[mark] then depth = depth + 1 end
      if mark == "(" or mark == "[" or mark == "{" then
        if depth == 0 and mark ~= "[" and tokens[i - 1] and tokens[i - 1].kind == "name" then break end
        depth = math.max(0, depth - 1)
      end
      i = i - 1
    end
    i = i - 1
    if i < 1 then return nil end
  end
  local words, from = { tokens[i].text }, i
  while tokens[from - 1] and (tokens[from - 1].text == "." or tokens[from - 1].text == ":") do
    local before = tokens[from - 2]
    if not before or before.kind ~= "name" then break end
    table.insert(words, 1, tokens[from - 1].text)
    table.insert(words, 1, before.text)
    from = from - 2
  end
  return table.concat(words)
end

function Completer.answer(partial, list, closing, width)
  if #list == 0 then return 0, nil, nil end
  if #list == 1 then
    local word = list[1]
    local suffix = closing and word:sub(-1) ~= "/" and closing or ""
    return 0, word:sub(#partial + 1) .. suffix, nil
  end
  local start = common_start(list)
  if #start > #partial then return 0, start:sub(#partial + 1), nil end
  local shown = table.move(list, 1, math.min(#list, MAX_SHOWN), 1, {})
  for i, word in ipairs(shown) do shown[i] = word:match "([^/]+/?)$" or word end
  local text = walk.columns(shown, width)
  if #list > MAX_SHOWN then text = text .. ("\n… %d more"):format(#list - MAX_SHOWN) end
  return 0, nil, text .. "\n"
end

-- For GNU readline: whole words in the place of what stands from byte `start` (from 0) on.
function Completer.for_readline(line, start)
  local partial, list, closing = Completer.new(_G):candidates(line)
  local kept = #line - #partial - start -- bytes of readline's word before ours
  local words = {}
  for i, word in ipairs(list) do
    if #list == 1 and closing and word:sub(-1) ~= "/" then word = word .. closing end
    words[i] = kept >= 0 and line:sub(start + 1, start + kept) .. word or word:sub(1 - kept)
  end
  return words
end

return Completer
