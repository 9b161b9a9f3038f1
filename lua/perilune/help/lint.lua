-- SPDX-License-Identifier: MIT
--- What in a script goes well and means something else: `if x:gt(0):all() then` is always true, since only nil and
-- false are not; `x.dtype == "f32"` compares a function; `labels[i] == 3` a tensor with a number; `{bias = False}`
-- names a variable that nobody made. None of these can be an error when it runs, so the command looks at a script's
-- text before. It says nothing that is not sure: see help/kinds.lua.
-- @module perilune.help.lint
local M = {}

local kinds, text_of -- loaded when a script is read: no other loads perilune earlier than it asks for it

local LONGEST = 1 << 17 -- bytes of a script that is looked at, in a quarter of a second; longer ones hold data
local PYTHON = { True = "true", False = "false", None = "nil" }
local OPENS = { ["if"] = true, ["elseif"] = true, ["while"] = true, ["until"] = true, ["not"] = true }
local VALUE_BEFORE = { ["="] = true, [","] = true, ["("] = true, ["{"] = true }
local VALUE_BEHIND = { ["]"] = true, [")"] = true, ["}"] = true, [","] = true, [";"] = true }

-- A part of the text, for a message.
local function source(self, i, stop)
  local last = self.tokens[math.min(stop - 1, #self.tokens)] -- of a text that breaks off
  local text = self.text:sub(self.tokens[i].from, last.to):gsub("%s+", " ")
  return #text <= 40 and text or "it"
end

-- Does a name or bracket at i begin an expression with its calls and indices?
local function begins(self, i)
  local t, p = self.tokens[i], self.tokens[i - 1]
  local before = p and p.text
  if t.kind == "name" then
    return not (before == "." or before == ":" or before == "::" or before == "function" or before == "local"
      or before == "goto" or before == "for" or before == "#" or before == "-")
  end
  return t.text == "(" and not (p and (p.kind == "name" or p.kind == "string" or before == ")" or before == "]"
    or before == "}" or before == "function" or before == "#" or before == "-"))
end

-- Methods that give the tensor itself, or may: x:add_(1), x:to "f32" of what is f32.
local ITSELF = { to = true, cpu = true, cuda = true, contiguous = true, detach = true, type_as = true }
local function itself(last)
  return last[1] == "call" and last[2] and (ITSELF[last[2]] or last[2]:find "_$") and true
end

-- What a value at i … stop - 1 is compared with: → the kind of the other side ("new table": made there), whether by ==,
-- and whether that is no mere name; nil where it is not, or with nil.
local function compared(self, i, stop)
  local after, before = text_of(self, stop), text_of(self, i - 1)
  if after == "==" or after == "~=" then
    local o = self.tokens[stop + 1]
    if not o or o.text == "nil" then return nil end
    if o.text == "{" then return "new table", after == "==" end
    if o.text == "true" or o.text == "false" then return "boolean", after == "==" end
    local kind, at = kinds.expression(self, stop + 1)
    if kind == "tensor" and at > stop + 2 and itself(select(3, kinds.chain(self, stop + 1))) then kind = "mixed" end
    return kind, after == "==", at > stop + 2
  elseif before == "==" or before == "~=" then
    local o = self.tokens[i - 2]
    if not o then return nil end
    if o.text == "}" then return "new table", before == "==" end
    if o.kind == "number" or o.kind == "string" then return o.kind, before == "==" end
  end
end

-- Is it asked whether the value is true? In a and f(x) or b it is not: that is one of two values.
local function is_asked(self, i, stop)
  local before, after = text_of(self, i - 1), text_of(self, stop)
  local ends = after == "then" or after == "do"
  if OPENS[before] then return ends or after == "and" or after == "or" or before == "until" or before == "not" end
  return ends and (before == "and" or before == "or")
    or after == "and" and (before == nil or before == "=" or before == "(" or before == "return" or before == ","
      or before == "{")
end

-- Kinds that no function is of. Of what is unknown none can be told: act == T.relu is a question.
local ELSE = { number = true, string = true, boolean = true, ["new table"] = true, list = true, tensor = true }

-- What is to be said of the value that begins at i: a kind and a text; or nil.
local function judge(self, i)
  local kind, stop, last = kinds.chain(self, i)
  local other, same, made = compared(self, i, stop)
  local asked = not other and is_asked(self, i, stop)
  if kind == "beyond" and text_of(self, stop) ~= "=" and other ~= "nil" then
    return "beyond", ("%s is nil: a list counts from 1, and from its front alone; x:size(%s) is that of a tensor")
      :format(source(self, i, stop), last[2])
  end
  if not other and not asked then return nil end
  local fresh = last[1] == "call" or last[1] == "index" or last[1] == "brackets"
  local question = last[1] == "name" and self.uses[i] and self.uses[i].asked -- local ok = x:eq(y):all(), and no more
  local text, never = source(self, i, stop), same and "false" or "true"
  local truth = other and never or text_of(self, i - 1) == "not" and "false" or "true"
  if kind == "tensor" and asked and (fresh or question) then
    return "truth", ("%s is a tensor, and so true whatever it holds: %s:item() is its value"):format(text,
      text == "it" and "x" or text)
  elseif kind == "tensor" and (other == "number" or other == "string" or other == "boolean") then
    return "equal", ("%s is a tensor, which == never finds equal to a %s, so this is always %s: x:item() is the value "
      .. "of one, x:eq(v) compares elements"):format(text, other, never)
  elseif kind == "tensor" and other and other ~= "mixed" and not itself(last)
    and (fresh or made and other == "tensor") then
    return "equal", ("== asks whether two tensors are the same object, so this is always %s: a:eq(b) compares "
      .. "elements, T.equal(a, b) all, a:item() is the value of one"):format(never)
  elseif kind == "list" and other and fresh or other == "new table" and not self.equals then
    return "table", ("two tables are never equal, so this is always %s: sizes are compared one by one, x:size(1) == 2")
      :format(never)
  elseif kind == "method" and (ELSE[other] or other == "method" and made or not other
    and last[2]:find "^is_") then
    if other == "method" then truth = same and "true" or "false" end
    return "method", ("%s is a method, not called, so this is always %s: %s:%s()"):format(text, truth,
      source(self, i, stop - 2), last[2])
  elseif kind:find "^path:" and last[1] == "field" and (ELSE[other] or not other and last[2]:find "^is_")
    and type(kinds.path_value(kind:sub(6))) == "function" then
    return "function", ("%s is a function, not called, so this is always %s: %s()"):format(text, truth, text)
  end
end

-- print(x:shape(), "and", y:size()): print tells of a table where it is.
local function printed(self, i, list)
  local depth, at, k = 0, i + 2, i + 1
  while self.tokens[k] do
    local t = self.tokens[k]
    local mark = t.kind == "symbol" and t.text or ""
    depth = depth + (mark:find "^[({%[]$" and 1 or 0) - (mark:find "^[)}%]]$" and 1 or 0)
    if k > i + 1 and (depth == 0 or depth == 1 and mark == ",") then
      local kind, stop, last = "unknown", 0, nil
      if self.tokens[at] and (self.tokens[at].kind == "name" or text_of(self, at) == "(") then
        kind, stop, last = kinds.chain(self, at)
      end
      if kind == "list" and stop == k and (last[1] == "call" or last[1] == "name") then
        local text = source(self, at, stop)
        local nested = last[2] == "totable" or last[2] == "tolist"
        list[#list + 1] = { line = self.tokens[at].line, kind = "address", text = ("%s is a list, of which print tells "
          .. "its address: %s"):format(text, nested and "print(x) shows what a tensor holds"
          or ('table.concat(%s, ", ") is its text'):format(text)) }
      end
      at = k + 1
      if depth == 0 then return end
    end
    k = k + 1
  end
end

-- A global that nobody has assigned, as a value.
local function nothing(self, i)
  local t, before, behind = self.tokens[i], text_of(self, i - 1), self.tokens[i + 1]
  if self.uses[i] or self.defined[t.text] or rawget(self.env, t.text) ~= nil or not VALUE_BEFORE[before] then
    return nil
  end
  local value = not behind or VALUE_BEHIND[behind.text] or behind.kind ~= "symbol" and behind.kind ~= "string"
  if not value or behind and (behind.text == "and" or behind.text == "or") then return nil end
  if PYTHON[t.text] then
    return ("%s is no value of Lua's but a variable that holds nil: %s"):format(t.text, PYTHON[t.text])
  end
  return self.whole and ("the variable %s gets no value anywhere and is nil"):format(t.text) or nil
end

--- What in the text goes well and means something else: a list of {line=, kind=, text=}; kind: truth equal table method
-- function beyond address nothing. env: the globals it will see. Of text that the compiler took.
function M.check(text, env)
  if #text > LONGEST then return {} end
  text = text:gsub("^\xEF\xBB\xBF", ""):gsub("^#", "--") -- of #! for the system nothing is Lua
  kinds = require "perilune.help.kinds"
  text_of = kinds.text_of
  local self = kinds.read(text, env)
  self.equals = text:find("__eq", 1, true) ~= nil
  -- where other files may have assigned a global, none is missing for sure
  self.whole = not text:find "_ENV" and not text:find "_G" and not text:find "dofile" and not text:find "loadfile"
    and not text:find "%f[%w]load%f[%W]"
    and not text:gsub("require%s*%(?%s*[\"']perilune[%w_.]*[\"']", ""):find "require"
  local list = {}
  for i, t in ipairs(self.tokens) do
    if begins(self, i) then
      local kind, said = judge(self, i)
      if kind then list[#list + 1] = { line = t.line, kind = kind, text = said } end
    end
    if t.text == "print" and t.kind == "name" and not self.uses[i] and not self.defined.print and begins(self, i)
      and text_of(self, i + 1) == "(" then printed(self, i, list) end
    local missing = t.kind == "name" and nothing(self, i)
    if missing then list[#list + 1] = { line = t.line, kind = "nothing", text = missing } end
  end
  return list
end

--- Tells on standard error what check finds in a script's file. Called by the command before it runs one.
function M.tell(path)
  local rank = os.getenv "RANK"
  if os.getenv "PERILUNE_LINT" == "0" or rank and rank ~= "0" then return end
  local f = io.open(path)
  local text = f and f:read "a"
  if f then f:close() end
  if not text or not text:find "require[%s(]*[\"']perilune[\"']" then return end
  if text:find "package%.c?path" then return end -- it decides itself which perilune it gets
  for _, found in ipairs(M.check(text, _G)) do
    io.stderr:write(("warning: %s:%d: %s\n"):format(path, found.line, found.text))
  end
end

return M
