-- SPDX-License-Identifier: MIT
--- The text of a template as tokens, with trim_blocks and lstrip_blocks on, as transformers sets them: the newline
-- behind a statement or comment goes, and the blanks between the beginning of a line and one.
-- @module perilune.jinja.lexer
local values = require "perilune.jinja.values"
local fail = values.fail

local operators = {}
for op in ("== != >= <= // ** + - * / % ~ < > = . , : | ( ) [ ] { }"):gmatch "%S+" do operators[op] = true end

local simple = { n = "\n", t = "\t", r = "\r", ["\\"] = "\\", ["'"] = "'", ['"'] = '"', a = "\a", b = "\b", f = "\f",
  v = "\v", ["\n"] = "" }

local function unescape(s)
  if not s:find("\\", 1, true) then return s end
  local out, i = {}, 1
  while i <= #s do
    local j = s:find("\\", i, true)
    out[#out + 1] = s:sub(i, (j or #s + 1) - 1)
    if not j then break end
    local c = s:sub(j + 1, j + 1)
    local width = c == "x" and 2 or c == "u" and 4 or c == "U" and 8
    local hex = width and s:match("^" .. ("%x"):rep(width), j + 2)
    if width and not hex then fail("TemplateSyntaxError: a truncated \\%s escape", c) end
    local octal = s:match("^[0-7][0-7]?[0-7]?", j + 1)
    if hex then
      local code = tonumber(hex, 16)
      if code > 0x10FFFF then fail("TemplateSyntaxError: \\%s%s is no character", c, hex) end
      out[#out + 1], i = utf8.char(code), j + 2 + width
    elseif octal then
      out[#out + 1], i = utf8.char(tonumber(octal, 8)), j + 1 + #octal
    else
      out[#out + 1], i = simple[c] or "\\" .. c, j + 2
    end
  end
  return table.concat(out)
end

local function number(text)
  local digits = text:gsub("_", "")
  if digits:find "^0[xXoObB]" then
    local base = ({ x = 16, o = 8, b = 2 })[digits:sub(2, 2):lower()]
    return tonumber(digits:sub(3), base) or fail("TemplateSyntaxError: the number %s", text)
  end
  if digits:find "^%d+$" then
    if digits:find "^0+[1-9]" then fail("TemplateSyntaxError: the number %s begins with 0", text) end
    local v = math.tointeger(tonumber(digits))
    if v and ("%d"):format(v) == (digits:gsub("^0+(%d)", "%1")) then return v end
    return { kind = "big", text = digits, value = tonumber(digits) + 0.0 }
  end
  return tonumber(digits) + 0.0
end

-- The tokens of the inside of a tag, from `at` to where it ends: appended to `list`; returns where it ends.
local function inside(s, at, close, list, line_at)
  local depth = 0
  while true do
    at = s:match("^%s*()", at)
    local line = line_at(at)
    if at > #s then fail("TemplateSyntaxError: unexpected 'end of template'") end
    if depth == 0 then
      local sign, after = s:match((close == "}}" and "^(%-?)" or "^([-+]?)") .. close .. "()", at)
      if sign then
        list[#list + 1] = { "end", line = line }
        return after, sign
      end
    end
    local word, after = s:match("^([%a_][%w_]*)()", at)
    local c = s:sub(at, at)
    if word then
      list[#list + 1] = { "name", word, line = line }
    elseif c:find "%d" then
      word = s:match("^0[xXoObB][%x_]+", at)
      if not word then
        word = s:match("^%d[%d_]*", at)
        local fraction = s:match("^%.%d[%d_]*", at + #word)
        word = word .. (fraction or "")
        word = word .. (s:match("^[eE][+-]?%d+", at + #word) or "")
      end
      after = at + #word
      list[#list + 1] = { "number", number(word), line = line }
    elseif c == "'" or c == '"' then
      local i = at + 1
      while true do
        i = s:find("[\\" .. c .. "]", i)
        if not i then fail("TemplateSyntaxError: a string without end") end
        if s:sub(i, i) == c then break end
        i = i + 2
      end
      list[#list + 1] = { "string", unescape(s:sub(at + 1, i - 1)), line = line }
      after = i + 1
    else
      local op = s:sub(at, at + 1)
      if not operators[op] then op = c end
      if not operators[op] then fail("TemplateSyntaxError: unexpected char %s", values.repr(c)) end
      if op == "(" or op == "[" or op == "{" then depth = depth + 1 end
      if op == ")" or op == "]" or op == "}" then
        if depth == 0 then fail("TemplateSyntaxError: unexpected '%s'", op) end
        depth = depth - 1
      end
      list[#list + 1] = { "op", op, line = line }
      after = at + #op
    end
    at = after
  end
end

--- Tokens: {"text", s}, {"print"} … {"end"}, {"block"} … {"end"}, each with its `line`; names, numbers, strings and
-- operators in between.
return function(source, state)
  local s = source:gsub("\r\n?", "\n")
  if s:sub(-1) == "\n" then s = s:sub(1, -2) end
  local list, at, counted, line = {}, 1, 1, 1
  local function line_at(i)
    for _ in s:sub(counted, i - 1):gmatch "\n" do line = line + 1 end
    if i > counted then counted = i end
    state.line = line
    return line
  end
  local starting, strip = true, false -- the text that comes begins a line; it loses its blanks
  while at <= #s do
    local tag = s:find("{[{%%#]", at)
    local text = s:sub(at, (tag or #s + 1) - 1)
    local kind = tag and s:sub(tag + 1, tag + 1)
    local sign = tag and s:match("^[-+]", tag + 2) or ""
    if strip then text = text:gsub("^%s+", "") end
    if sign == "-" then
      text = text:gsub("%s+$", "")
    elseif tag and kind ~= "{" and sign ~= "+" then
      local head, tail = text:match "^(.*\n)([^\n]*)$"
      if not head then head, tail = "", text end
      if (head ~= "" or starting) and not tail:find "%S" then text = head end
    end
    if text ~= "" then list[#list + 1] = { "text", text, line = line_at(at) } end
    if not tag then break end
    local inner = tag + 2 + #sign
    local after
    line_at(tag)
    if kind == "#" then
      local i = s:find("#}", inner, true)
      if not i then fail("TemplateSyntaxError: a comment without end") end
      sign = s:sub(i - 1, i - 1)
      if i == inner then sign = "" end
      after = i + 2
    elseif kind == "%" and s:find("^%s*raw%s*[-+]?%%}", inner) then
      local begin, open_sign, i = inner, s:match("^%s*raw%s*([-+]?)%%}()", inner)
      local from, close_sign, close, ending = s:match("(){%%([-+]?)%s*endraw%s*([-+]?)%%}()", i)
      if not from then
        state.line = line_at(begin)
        fail "TemplateSyntaxError: a raw block without end"
      end
      local raw = s:sub(i, from - 1)
      if open_sign == "-" then raw = raw:gsub("^%s+", "") elseif open_sign ~= "+" then raw = raw:gsub("^\n", "") end
      if close_sign == "-" then
        raw = raw:gsub("%s+$", "")
      elseif close_sign ~= "+" then
        local head, tail = raw:match "^(.*\n)([^\n]*)$"
        if head and not tail:find "%S" then raw = head end
      end
      if raw ~= "" then list[#list + 1] = { "text", raw, line = line_at(i) } end
      sign, after = close, ending
    else
      list[#list + 1] = { kind == "{" and "print" or "block", line = line_at(tag) }
      after, sign = inside(s, inner, kind == "{" and "}}" or "%%}", list, line_at)
    end
    strip, starting = sign == "-", false
    if kind ~= "{" and sign ~= "-" and sign ~= "+" and s:sub(after, after) == "\n" then
      after, starting = after + 1, true
    elseif sign == "-" then
      starting = s:match("^%s*()", after) > after and s:sub(after, s:match("^%s*()", after) - 1):sub(-1) == "\n"
    end
    at = after
  end
  list[#list + 1] = { "eof", line = line }
  return list
end
