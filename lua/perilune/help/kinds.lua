-- SPDX-License-Identifier: MIT
-- Which names in a script stand for tensors, for parts of perilune, for loaders: followed through its text, from
-- `require "perilune"` through locals, calls of perilune's functions and methods, indices and arithmetic. What is
-- assigned in two kinds has none. For help/lint.lua.
-- Kinds: "tensor", "list" (of sizes), "beyond" (an entry that a list never has, s[0]), "method" (of a tensor, not
-- called), "path:nn.F" (a place in perilune), "loader", "number", "string", "table", "mixed", "unknown".
-- @module perilune.help.kinds
local lex = require "perilune.repl.lex"

local function set(text)
  local t = {}
  for word in text:gmatch "%S+" do t[word] = true end
  return t
end

-- Methods whose results are asked for truth; of a value of unknown kind, these tell that it is a tensor. all and any do
-- not: lists and queries of other libraries have them, and give a boolean.
local BOOLEAN = set [[eq ne gt ge lt le isnan isinf isfinite isneginf isposinf isclose logical_and logical_or
  logical_xor logical_not signbit isin greater less greater_equal less_equal not_equal]]
local LISTS = set "shape size stride totable tolist" -- methods of tensors that make a table
local FIELDS = set "grad grad_fn is_leaf requires_grad"
local ARITHMETIC = set "+ - * / // % ^"

-- ---- what perilune's functions give ----------------------------------------------------------------------------

local core = require "perilune.core"
local OTHER = { equal = true, allclose = true } -- ops of which calls make something else
local MADE = set "zeros ones rand randn randint full arange linspace eye tensor empty zeros_like ones_like"
local function is_op(name)
  if name == nil or OTHER[name] then return false end
  return (MADE[name] or core.op[name] or core.op[name:match "^(.*)_$" or name]) ~= nil
end

-- The kind of what the method of a tensor gives.
local function of_method(name, bare)
  if name == "size" or name == "stride" then return bare and "list" or "number" end
  if LISTS[name] then return "list" end
  if name == "item" or name == "get" or name == "numel" or name == "dim" then return "number" end
  if name == "dtype" or name == "device" then return "string" end
  return is_op(name) and "tensor" or "unknown"
end

-- ---- one pass over the text -------------------------------------------------------------------------------------

-- A reading of a text: tokens; uses: token → the variable that it names, {kind=, …}; defined: names that are assigned
-- and no locals.
local function text_of(self, i) return self.tokens[i] and self.tokens[i].text end

-- The place behind the brackets that open at i.
local function behind(self, i)
  local depth = 0
  for k = i, #self.tokens do
    local t = self.tokens[k]
    if t.kind == "symbol" then
      if t.text == "(" or t.text == "{" or t.text == "[" then depth = depth + 1 end
      if t.text == ")" or t.text == "}" or t.text == "]" then depth = depth - 1 end
      if depth == 0 then return k + 1 end
    end
  end
  return #self.tokens + 1
end

--- What is at a path of kind "path:…"; loads the part of perilune where it is.
local function path_value(path)
  local v = require "perilune"
  for key in path:gmatch "[^.]+" do
    if type(v) ~= "table" then return nil end
    local found, value = pcall(function() return v[key] end)
    v = found and value or nil
  end
  return v
end

local expression

-- A name with what follows it, f(x).y[1]:z(): → kind, the place behind it, {what the last step is, its name}.
local function chain(self, i)
  local tokens, t = self.tokens, self.tokens[i]
  local last, k = { "name", t.text }, i + 1
  local kind, var
  if t.text == "(" then
    k = behind(self, i)
    local inner, stop = expression(self, i + 1)
    kind = stop == k - 1 and inner or "unknown"
    last = { "brackets" }
  elseif t.kind == "name" then
    var = self.uses[i]
    kind = var and (var.kind or "unknown") or self.globals(t.text)
    if t.text == "require" and not var then
      local name = text_of(self, k) == "(" and k + 1 or k
      if text_of(self, name) and text_of(self, name):find "^[\"']perilune[\"']$" then
        return "path:", name == k and k + 1 or k + 3, { "call", "require" }
      end
    end
  else
    return ({ string = "string", number = "number" })[t.kind] or "unknown", k, { t.kind }
  end
  while tokens[k] do
    local mark, name = tokens[k].text, text_of(self, k + 1)
    if (mark == "." or mark == ":") and not name then break end -- the text breaks off
    local path = kind:match "^path:(.*)$"
    if mark == "." then
      if var and last[1] == "name" and not (FIELDS[name] or is_op(name) or self.method(name)) then var.other = true end
      if path then
        kind = "path:" .. (path == "" and name or path .. "." .. name)
      elseif kind == "tensor" then
        kind = not FIELDS[name] and self.method(name) and "method" or "unknown"
      else
        kind = "unknown"
      end
      last, k = { "field", name }, k + 2
    elseif mark == ":" then
      local from = k + 2
      local open = text_of(self, from)
      k = (open == "(" or open == "{") and behind(self, from) or from + 1
      if var and last[1] == "name" and self.method(name) and not self.shared[name] then var.tensor = true end
      if var and last[1] == "name" and not self.method(name) then var.other = true end
      local weak = kind == "unknown" and (BOOLEAN[name] or name == "shape" or name == "stride"
        or last[1] ~= "name" and last[1] ~= "string" and is_op(name) and name ~= "all" and name ~= "any")
        and not self.shared[name]
      if kind == "unknown" and var and last[1] == "name" and var.other then weak = false end
      local known = kind == "tensor" or weak
      kind = known and of_method(name, k - from == 2) or "unknown"
      if weak and LISTS[name] and k - from ~= 2 then kind = "unknown" end
      last = { "call", name }
    elseif mark == "[" then
      local long = tokens[k].kind == "string" -- f[[text]]
      local at = k + 1
      k = long and k + 1 or behind(self, k)
      local key = not long and tokens[at] -- x[name] may be a method
      local placed = key and (key.text == "{" or key.text == "-" or key.kind == "number" and k == at + 2
        or key.kind == "string" and key.text:find "%d" and k == at + 2
        or key.kind == "name" and expression(self, at) == "number")
      local nowhere = kind == "list" and (key and key.text == "0" and k == at + 2 or key and key.text == "-")
      kind = kind == "tensor" and placed and "tensor" or nowhere and "beyond" or "unknown"
      last = { "index", nowhere and key.text == "-" and "-1" or "1" }
    elseif mark == "(" or mark == "{" or tokens[k].kind == "string" then
      if mark == "(" and tokens[k].line ~= tokens[k - 1].line then break end
      if mark == "(" and (last[2] == "type" or last[2] == "is_tensor") then -- type(v) == "number": of several kinds
        for a = k + 1, behind(self, k) - 2 do
          if self.uses[a] then self.uses[a].other = true end
        end
      end
      k = tokens[k].kind == "string" and k + 1 or behind(self, k)
      kind = path and is_op(path:match "^nn%.F%.(.*)$" or path) and "tensor" or path == "data.DataLoader" and "loader"
        or "unknown"
      last = { "call", path }
    else
      break
    end
  end
  return kind, k, last
end

-- An expression: → kind, the place behind it. What holds operators of other kinds is unknown.
function expression(self, i)
  local t = self.tokens[i]
  if not t then return "unknown", i end
  if t.text == "function" or t.text == "{" or t.text == "not" then
    return t.text == "{" and "table" or "unknown", i, true
  end
  if t.text == "-" or t.text == "#" then
    local kind, k = expression(self, i + 1)
    return t.text == "-" and kind == "tensor" and kind or "unknown", k
  end
  local kind, k = "unknown", i + 1
  if t.kind == "name" or t.text == "(" or t.kind == "string" then kind, k = chain(self, i) end
  if t.kind == "number" then kind = "number" end
  local op = text_of(self, k)
  if op and ARITHMETIC[op] then
    local other, stop = expression(self, k + 1)
    if kind == "tensor" or other == "tensor" then return "tensor", stop end
    return kind == "number" and other == "number" and "number" or "unknown", stop
  end
  if op == ".." or op == "and" or op == "or" or op and op:find "^[<>=~]" and op ~= "=" then return "unknown", k end
  return kind, k
end

-- What a variable is, once more.
local function take(var, kind)
  if var.kind == nil then var.kind = kind elseif var.kind ~= kind then var.kind = "mixed" end
end

-- ---- scopes --------------------------------------------------------------------------------------------------------

-- What stands behind an expression and makes another of it.
local function goes_on(follows)
  return follows and (ARITHMETIC[follows] or follows == "and" or follows == "or" or follows == ".."
    or follows:find "^[<>~=]=?$" and follows ~= "=")
end

local function find(self, name)
  for k = #self.scopes, 1, -1 do
    if self.scopes[k][name] then return self.scopes[k][name] end
  end
end

local function declare(self, i, scope)
  local var = {}
  scope = scope or self.scopes[#self.scopes]
  scope[self.tokens[i].text] = var
  self.uses[i] = var
  return var
end

local function push(self, scope) self.scopes[#self.scopes + 1] = scope or {} end
local function pop(self)
  local scope = self.scopes[#self.scopes]
  if #self.scopes > 1 then self.scopes[#self.scopes] = nil end
  return scope
end

-- What the keywords do; each is given its place and returns where to go on.
local STATEMENTS = {}

STATEMENTS["function"] = function(self, i)
  local tokens, k, here = self.tokens, i + 1, text_of(self, i - 1) == "local"
  if here then declare(self, k).kind = "function" end
  if not here and tokens[k] and tokens[k].text ~= "(" then
    self.uses[k] = find(self, tokens[k].text)
    if not self.uses[k] then self.defined[tokens[k].text] = true end
  end
  while tokens[k] and text_of(self, k) ~= "(" do k = k + 1 end
  local scope = {}
  if text_of(self, k - 2) == ":" then scope.self = { other = true } end
  local stop = behind(self, k)
  for p = k + 1, stop - 2 do
    if tokens[p].kind == "name" then declare(self, p, scope) end
  end
  push(self, scope)
  return stop
end

STATEMENTS["for"] = function(self, i)
  local tokens, k, names = self.tokens, i + 1, {}
  while tokens[k] and tokens[k].text ~= "=" and tokens[k].text ~= "in" do
    if tokens[k].kind == "name" then names[#names + 1] = k end
    k = k + 1
  end
  self.loops[#self.loops + 1] = { names = names, from = k + 1, counts = text_of(self, k) == "=" }
  return k + 1
end

STATEMENTS["while"] = function(self, i)
  self.loops[#self.loops + 1] = false
  return i + 1
end

STATEMENTS["do"] = function(self, i)
  local loop, scope = table.remove(self.loops), {}
  local of_loader = loop and not loop.counts and expression(self, loop.from) == "loader"
  for n, k in ipairs(loop and loop.names or {}) do
    local var = declare(self, k, scope)
    var.batch = of_loader
    if loop.counts or n == 1 and text_of(self, loop.from) == "ipairs" then var.kind = "number" end
  end
  push(self, scope)
  return i + 1
end

STATEMENTS["then"] = function(self, i)
  push(self)
  return i + 1
end
STATEMENTS["repeat"] = STATEMENTS["then"]

STATEMENTS["else"] = function(self, i)
  pop(self)
  return STATEMENTS["then"](self, i)
end

STATEMENTS["end"] = function(self, i)
  pop(self)
  return i + 1
end
STATEMENTS["elseif"] = STATEMENTS["end"]

STATEMENTS["until"] = function(self, i) -- its condition sees what the block has
  local inner = pop(self)
  local scope = self.scopes[#self.scopes]
  for name, var in next, inner do scope[name] = scope[name] or var end
  return i + 1
end

local MOST = 300 -- tokens of a list of expressions that are looked at

-- Is what ends before `stop` a call such as x:eq(y)?
local function ends_in_question(self, stop)
  local depth, k = 0, stop - 1
  repeat
    local mark = text_of(self, k)
    depth = depth + (mark == ")" and 1 or 0) - (mark == "(" and 1 or 0)
    k = k - 1
  until depth <= 0 or k < stop - 50
  local name = text_of(self, k)
  return (BOOLEAN[name] or name == "all" or name == "any") and text_of(self, stop - 1) == ")"
end

-- The kinds of a list of n expressions from `at` on, and which of them ask something.
local function kinds_of(self, n, at)
  local tokens, kinds, truths, last = self.tokens, {}, {}, at
  -- of a script in one line not all of it, for each local
  while tokens[last] and tokens[last].line <= tokens[at].line + 3 and last < at + MOST do
    -- these names are not yet the new variables
    if tokens[last].kind == "name" then self.uses[last] = find(self, tokens[last].text) end
    last = last + 1
  end
  local from = at
  for k = 1, n do
    local kind, stop, open = expression(self, at)
    local follows = text_of(self, stop)
    kinds[k] = (not open and not goes_on(follows) or open and kind == "table") and kind or "unknown"
    truths[k] = kind == "tensor" and ends_in_question(self, stop)
    if open or follows ~= "," then break end
    at = stop + 1
  end
  for k = from, last - 1 do self.uses[k] = nil end
  return kinds, truths
end

STATEMENTS["local"] = function(self, i)
  local tokens, names, k = self.tokens, {}, i + 1
  if text_of(self, k) == "function" then return k end
  while tokens[k] and tokens[k].kind == "name" do
    names[#names + 1] = k
    k = k + 1
    if text_of(self, k) == "<" then k = k + 3 end
    if text_of(self, k) ~= "," then break end
    k = k + 1
  end
  local has = text_of(self, k) == "="
  local kinds, truths = {}, {}
  if has and tokens[k + 1] then kinds, truths = kinds_of(self, #names, k + 1) end
  for n, at in ipairs(names) do
    local var = declare(self, at)
    var.kind, var.asked = kinds[n] or has and "unknown" or nil, kinds[n] == "tensor" and truths[n]
  end
  return k
end

-- The last token of what may be assigned at i: a, b.c, d[1], f(x).y
local function target(self, i)
  local k = text_of(self, i) == "(" and behind(self, i) - 1 or i
  while true do
    local mark = text_of(self, k + 1)
    if mark == "." or mark == ":" then
      k = k + 2
    elseif mark == "[" or mark == "(" or mark == "{" then
      k = behind(self, k + 1) - 1
    elseif mark and self.tokens[k + 1].kind == "string" then
      k = k + 1
    else
      return k
    end
  end
end

-- A name that is read or assigned.
local function name(self, i)
  local mark, before, after = text_of(self, i), text_of(self, i - 1), text_of(self, i + 1)
  if before == "." or before == ":" or before == "goto" or before == "::" then return end
  if after == "=" and (before == "{" or before == ",") and self.inside[i] then return end -- a key
  self.uses[i] = find(self, mark)
  local k = i
  while text_of(self, k + 1) == "," and self.tokens[k + 2] and (self.tokens[k + 2].kind == "name"
    or text_of(self, k + 2) == "(") do
    k = target(self, k + 2) -- a, b.c, d[1] = …
  end
  if self.inside[i] or text_of(self, k + 1) ~= "=" or before == "=" then return end
  local var = self.uses[i]
  if not var then
    self.defined[mark] = true
    return
  end
  local kind = "unknown"
  if k == i and before ~= "," then
    local given, stop, open = expression(self, i + 2)
    local follows = text_of(self, stop)
    if not open and follows ~= "," and not goes_on(follows) then kind = given end
    if kind == "unknown" and text_of(self, i + 2) == mark then return end -- x = x:view(-1) tells nothing
  end
  self.later[#self.later + 1] = { var, kind }
end

local SUFFIX = set ". : [ ( {"

-- Is there == or ~= at i, and a number, string or boolean at k?
local function literal(self, i, k)
  local o = self.tokens[k]
  return (text_of(self, i) == "==" or text_of(self, i) == "~=") and o and (o.kind == "number" or o.kind == "string"
    or o.text == "true" or o.text == "false")
end

-- Goes through the text, with its scopes.
local function resolve(self)
  local i = 1
  while self.tokens[i] do
    local t = self.tokens[i]
    local statement = t.kind == "keyword" and STATEMENTS[t.text]
    if t.kind == "name" then name(self, i) end
    i = statement and math.max(statement(self, i), i + 1) or i + 1
  end
  for _, entry in ipairs(self.later) do take(entry[1], entry[2]) end
  for _ = 1, 2 do -- kinds by use: x:backward() is called, so x is a tensor
    for k, t in ipairs(self.tokens) do
      local before = text_of(self, k - 1)
      if t.kind == "name" and before ~= "." and before ~= ":" then chain(self, k) end
      -- a parameter that is compared with "none" or false may be that
      local var = self.uses[k]
      if var and (literal(self, k + 1, k + 2) and not SUFFIX[text_of(self, k - 1)]
        or literal(self, k - 1, k - 2) and not SUFFIX[text_of(self, k + 1)]) then var.literal = true end
    end
    for _, var in next, self.uses do
      if var.kind == nil and (var.tensor or var.batch) and not (var.other or var.literal) then var.kind = "tensor" end
      if var.kind == "tensor" and var.other then var.kind = "mixed" end
    end
  end
end

local OPENS, CLOSES = set "{ function do if repeat", set "} end until"

--- Reads a script's text. env: the globals that it will see.
local function read(text, env)
  local tokens, inside, open = lex.code(text), {}, {}
  local line, ends = 1, text:find("\n", 1, true)
  for i, t in ipairs(tokens) do
    while ends and ends < t.from do
      line, ends = line + 1, text:find("\n", ends + 1, true)
    end
    t.line = line
    local word = (t.kind == "symbol" or t.kind == "keyword") and t.text
    if OPENS[word] then
      open[#open + 1] = word
    elseif CLOSES[word] then
      open[#open] = nil
    end
    inside[i] = open[#open] == "{" -- of a table that is made; not of a function in it
  end
  local T = require "perilune"
  local methods, shared = core.metatable().methods, {} -- names that are no sign of a tensor
  for class in next, require("perilune.classes").all do
    for key in next, class do shared[key] = true end
  end
  for key in next, string do shared[key] = true end
  for key in text:gmatch "function%s+[%w_.]+[.:]([%w_]+)" do shared[key] = true end -- the script's own classes
  for key in text:gmatch "([%a_][%w_]*)%s*=%s*function" do shared[key] = true end
  local self = { text = text, tokens = tokens, inside = inside, uses = {}, defined = {}, scopes = { {} }, loops = {},
    later = {}, shared = shared, env = env }
  function self.method(key) return type(key) == "string" and rawget(methods, key) ~= nil end
  function self.globals(key)
    local v = rawget(env, key)
    return v == T and "path:" or core.is_tensor(v) and "tensor" or "unknown"
  end
  resolve(self)
  return self
end

return { read = read, text_of = text_of, chain = chain, expression = expression, path_value = path_value }
