-- SPDX-License-Identifier: MIT
-- Tokens of Lua text that need not be complete: for completion, for the `;` that silences, for the locals that the
-- prompt keeps, for the names in an error's line.
local M = {}

local KEYWORDS = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true
  until while]]):gmatch "%a+" do KEYWORDS[word] = true end
M.keywords = KEYWORDS

-- The end of a quoted string that begins at `at`, and whether it is still open.
local function quoted(text, at)
  local quote, i = text:sub(at, at), at + 1
  while i <= #text do
    local c = text:sub(i, i)
    if c == "\\" then -- \z takes the blanks and lines behind it, a line's end may have two bytes
      i = text:match("^z%s*()", i + 1) or text:match("^\r\n()", i + 1) or i + 2
    elseif c == quote then
      return i, false
    elseif c == "\n" then
      return i - 1, false -- a fault of the text; what follows is code again
    else
      i = i + 1
    end
  end
  return #text, true
end

local function long(text, at)
  local level = text:match("^%[(=*)%[", at)
  if not level then return nil end
  local _, stop = text:find("]" .. level .. "]", at + #level + 2, true)
  return stop or #text, not stop
end

local SYMBOLS = { "^%.%.%.", "^%.%.", "^==", "^~=", "^<=", "^>=", "^//", "^::", "^<<", "^>>" }

-- kind, last position, open?
local function token_at(text, at)
  local c = text:sub(at, at)
  local word = text:match("^[%a_][%w_]*", at)
  if word then return KEYWORDS[word] and "keyword" or "name", at + #word - 1 end
  if text:find("^%-%-", at) then
    local stop, open = long(text, at + 2)
    if stop then return "comment", stop, open end
    stop = text:find("\n", at, true)
    return "comment", stop and stop - 1 or #text, not stop
  end
  if c == '"' or c == "'" then return "string", quoted(text, at) end
  if c == "[" then
    local stop, open = long(text, at)
    if stop then return "string", stop, open end
  end
  local number = text:match("^0[xX][%x.]*[pP][+-]?%d+", at) or text:match("^0[xX][%x.]*", at)
    or text:match("^%d[%d.]*[eE][+-]?%d+", at)
    or text:match("^%d[%d.]*", at) or text:match("^%.%d+", at)
  if number then return "number", at + #number - 1 end
  for _, pattern in ipairs(SYMBOLS) do
    local _, stop = text:find(pattern, at)
    if stop then return "symbol", stop end
  end
  return "symbol", at
end

-- List of {kind=, text=, from=, to=, open=}; kind: name keyword number string comment symbol. Open strings and comments
-- reach to the end of the text.
function M.tokens(text)
  local list, at = {}, 1
  while true do
    at = text:find("%S", at)
    if not at then return list end
    local kind, to, open = token_at(text, at)
    to = math.min(to, #text)
    list[#list + 1] = { kind = kind, text = text:sub(at, to), from = at, to = to, open = open or nil }
    at = to + 1
  end
end

-- Without comments.
function M.code(text)
  local list = {}
  for _, t in ipairs(M.tokens(text)) do
    if t.kind ~= "comment" then list[#list + 1] = t end
  end
  return list
end

local OPENS = { ["do"] = 1, ["then"] = 1, ["repeat"] = 1, ["function"] = 1, ["{"] = 1, ["("] = 1, ["["] = 1 }
local CLOSES = { ["end"] = 1, ["until"] = 1, ["elseif"] = 1, ["else"] = 0, ["}"] = 1, [")"] = 1, ["]"] = 1 }

M.opens, M.closes = OPENS, CLOSES

-- How many blanks the line behind this text begins with: two more than its last line where that opens a block, two less
-- where something but its first word closes one; none inside a string or comment.
function M.indent(text)
  local tokens = M.tokens(text)
  local last = tokens[#tokens]
  if not last or last.open and (last.kind == "string" or last.text:find "^%-%-%[") then return 0 end
  local from = #text - #text:match "[^\n]*$" + 1
  local line, depth = text:sub(from), 0
  local first = true
  for _, t in ipairs(tokens) do
    if t.from >= from and t.kind ~= "comment" then
      local mark = (t.kind == "keyword" or t.kind == "symbol") and t.text
      depth = depth + (OPENS[mark] or 0)
      if first and mark == "else" then depth = depth + 1 end
      if not first then depth = depth - (CLOSES[mark] or 0) end
      first = first and CLOSES[mark] ~= nil and mark ~= "else"
    end
  end
  local step = depth > 0 and 2 or depth < 0 and -2 or 0
  return math.max(0, #line:match "^ *" + step)
end

-- The names that `local` declares outside every block of the text, in order, without those marked <close>.
function M.top_locals(text)
  local tokens, names, depth = M.code(text), {}, 0
  local i = 1
  while i <= #tokens do
    local t = tokens[i]
    local kind = t.kind
    if kind == "keyword" or kind == "symbol" then
      depth = depth + (OPENS[t.text] or 0) - (CLOSES[t.text] or 0)
    end
    if depth == 0 and kind == "keyword" and t.text == "local" then
      local after = tokens[i + 1]
      if after and after.text == "function" then
        names[#names + 1] = tokens[i + 2] and tokens[i + 2].text
      else
        local j = i + 1
        while tokens[j] and tokens[j].kind == "name" do
          local attribute = tokens[j + 1] and tokens[j + 1].text == "<" and tokens[j + 2]
          if not attribute or attribute.text ~= "close" then names[#names + 1] = tokens[j].text end
          j = j + (attribute and 4 or 1)
          if not tokens[j] or tokens[j].text ~= "," then break end
          j = j + 1
        end
        i = j - 1
      end
    end
    i = i + 1
  end
  return names
end

return M
