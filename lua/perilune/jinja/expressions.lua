-- SPDX-License-Identifier: MIT
--- The parser of templates, and their expressions as closures: functions of a frame that return a value. Statements are
-- in compile.lua. A frame is {vars, run}: vars a table whose metatable leads to the outer scope, run what one rendering
-- counts.
-- @module perilune.jinja.expressions
local ops = require "perilune.jinja.operators"
local values = require "perilune.jinja.values"

local NONE, fail, truth = values.NONE, values.fail, values.truth
local MAX_DEPTH = 64 -- of the source: brackets and blocks inside each other
local Parser = {}
Parser.__index = Parser

-- ---- tokens -------------------------------------------------------------------------------------------------------

function Parser:peek(kind, text)
  local t = self.tokens[self.at]
  return t[1] == kind and (text == nil or t[2] == text)
end

function Parser:take(kind, text)
  if not self:peek(kind, text) then return nil end
  local t = self.tokens[self.at]
  self.at = self.at + 1
  self.state.line = t.line
  return t
end

function Parser:unexpected(wanted)
  local t = self.tokens[self.at]
  self.state.line = t.line
  local got = t[1] == "end" and "end of the tag" or t[1] == "eof" and "end of template" or tostring(t[2] or t[1])
  fail("TemplateSyntaxError: %s is wanted, got '%s'", wanted, got)
end

function Parser:want(kind, text) return self:take(kind, text) or self:unexpected(text or kind) end

function Parser:deeper(f, ...)
  self.depth = self.depth + 1
  if self.depth > MAX_DEPTH then fail("TemplateSyntaxError: more than %d levels inside each other", MAX_DEPTH) end
  local r = f(self, ...)
  self.depth = self.depth - 1
  return r
end

-- ---- expressions --------------------------------------------------------------------------------------------------

local constants = { ["true"] = true, ["false"] = false, none = NONE, True = true, False = false, None = NONE }

local function constant(v) return function() return v end end

local function variable(name)
  return function(f)
    local v = f.vars[name]
    if v == nil then return values.undefined(("'%s' is undefined"):format(name)) end
    return v
  end
end

-- f(args…, names=…) as a function of a frame that gives the list of arguments and the table of named ones.
function Parser:arguments()
  local items, stars, names, doubles = {}, {}, {}, {}
  while not self:take("op", ")") do
    if #items + #names + #doubles > 0 then
      self:want("op", ",")
      if self:take("op", ")") then break end
    end
    if self:take("op", "*") then
      items[#items + 1] = self:expression()
      stars[#items] = true
    elseif self:take("op", "**") then
      doubles[#doubles + 1] = self:expression()
    elseif self:peek("name") and self.tokens[self.at + 1][1] == "op" and self.tokens[self.at + 1][2] == "=" then
      local name = self:take("name")[2]
      self.at = self.at + 1
      names[#names + 1] = { name, self:expression() }
    else
      items[#items + 1] = self:expression()
    end
  end
  return function(f)
    local args, n, named = {}, 0, {}
    for i, e in ipairs(items) do
      local v = e(f)
      if stars[i] then
        local all, count = values.items(v)
        for k = 1, count do args[n + k] = all[k] end
        n = n + count
      else
        n = n + 1
        args[n] = v
      end
    end
    local order = {}
    local function name(k, v)
      if named[k] == nil then order[#order + 1] = k end
      named[k] = v
    end
    for _, p in ipairs(names) do name(p[1], p[2](f)) end
    for _, e in ipairs(doubles) do
      local d = e(f)
      if not values.is_dict(d) then fail "TypeError: argument after ** must be a mapping" end
      for _, k in ipairs(d.keys) do name(k, values.dict_get(d, k)) end
    end
    args.n = n
    return args, named, order
  end
end

function Parser:tuple(close, first)
  local items = { first }
  while self:take("op", ",") do
    if close and self:peek("op", close) then break end
    if not close and (self:peek "end" or self:peek("op", "=") or self:peek("name", "in")) then break end
    items[#items + 1] = self:expression()
  end
  return function(f)
    local t = {}
    for i, e in ipairs(items) do t[i] = e(f) end
    return values.tuple(t, #items)
  end
end

function Parser:dict()
  local keys, items = {}, {}
  while not self:take("op", "}") do
    if #keys > 0 then
      self:want("op", ",")
      if self:take("op", "}") then break end
    end
    keys[#keys + 1] = self:expression()
    self:want("op", ":")
    items[#keys] = self:expression()
  end
  return function(f)
    local d = values.dict()
    for i, k in ipairs(keys) do values.dict_set(d, k(f), items[i](f)) end
    return d
  end
end

function Parser:primary()
  local t = self:take "name"
  if t then
    if constants[t[2]] ~= nil then return constant(constants[t[2]]) end
    if self.named then self.named[t[2]] = true end
    return variable(t[2])
  end
  t = self:take "number"
  if t then return constant(t[2]) end
  t = self:take "string"
  if t then
    local s = t[2]
    while self:peek "string" do s = s .. self:take("string")[2] end
    return constant(s)
  end
  if self:take("op", "(") then
    if self:take("op", ")") then return constant(values.tuple {}) end
    local e = self:expression()
    if self:peek("op", ",") then e = self:tuple(")", e) end
    self:want("op", ")")
    return e
  end
  if self:take("op", "[") then
    if self:take("op", "]") then return function() return values.list {} end end
    local e = self:tuple("]", self:expression())
    self:want("op", "]")
    return function(f)
      local list = e(f)
      list.kind = "list"
      return list
    end
  end
  if self:take("op", "{") then return self:dict() end
  self:unexpected "an expression"
end

function Parser:subscript()
  local parts, slice = {}, false
  for i = 1, 3 do
    if not self:peek("op", ":") and not self:peek("op", "]") then parts[i] = self:expression() end
    if not self:take("op", ":") then break end
    slice = true
  end
  if not slice and self:peek("op", ",") then parts[1] = self:tuple("]", parts[1]) end
  self:want("op", "]")
  if not slice and not parts[1] then self:unexpected "an expression" end
  if not slice then return nil, parts[1] end
  return function(f)
    local v = {}
    for i = 1, 3 do v[i] = parts[i] and parts[i](f) or nil end
    return v
  end
end

function Parser:call(e)
  local arguments, line = self:arguments(), self.state.line
  return function(f)
    local callee = e(f)
    f.run.line = line
    return ops.call(f.run, callee, arguments(f))
  end
end

function Parser:postfix(e)
  while true do
    if self:take("op", ".") then
      local t = self:take "name" or self:take "number" or self:unexpected "a name"
      local name, inner = t[2], e
      if t[1] == "number" then
        e = function(f) return ops.item(inner(f), name) end
      else
        e = function(f) return ops.attribute(inner(f), name) end
      end
    elseif self:take("op", "[") then
      local inner = e
      local slice, index = self:subscript()
      if slice then
        e = function(f) return ops.slice(f.run, inner(f), slice(f)) end
      else
        e = function(f) return ops.item(inner(f), index(f)) end
      end
    elseif self:take("op", "(") then
      e = self:call(e)
    else
      return e
    end
  end
end

function Parser:filter(e)
  local name, line = self:want("name")[2], self.state.line
  while self:take("op", ".") do name = name .. "." .. self:want("name")[2] end
  local run = self.filters[name]
  if not run then fail("TemplateAssertionError: No filter named '%s'.", name) end
  local arguments = self:take("op", "(") and self:arguments()
  return function(f)
    local v = e(f)
    f.run.line = line
    f.run.spend(1)
    values.spend_on(v)
    if not arguments then return run(f.run, v, { n = 0 }, {}) end
    return run(f.run, v, arguments(f))
  end
end

local no_argument = { ["else"] = true, ["or"] = true, ["and"] = true, ["is"] = true } -- as in Jinja: not "if"

function Parser:test(e)
  local negated = self:take("name", "not") and true or false
  local name = self:want("name")[2]
  while self:take("op", ".") do name = name .. "." .. self:want("name")[2] end
  local run = self.tests[name]
  if not run then fail("TemplateAssertionError: No test named '%s'.", name) end
  local arguments
  if self:take("op", "(") then
    arguments = self:arguments()
  else
    local t = self.tokens[self.at]
    if t[1] == "string" or t[1] == "number" or t[1] == "name" and not no_argument[t[2]]
      or t[1] == "op" and (t[2] == "[" or t[2] == "{") then
      local one = self:postfix(self:primary())
      arguments = function(f) return { n = 1, one(f) }, {} end
    end
  end
  return function(f)
    local v = e(f)
    f.run.spend(1)
    local result
    if arguments then result = run(f.run, v, arguments(f)) else result = run(f.run, v, { n = 0 }, {}) end
    return truth(result) ~= negated
  end
end

function Parser:unary(without_filters)
  local e
  if self:take("op", "-") then
    local inner = self:deeper(self.unary, true)
    e = function(f) return ops.negative(inner(f)) end
  elseif self:take("op", "+") then
    local inner = self:deeper(self.unary, true)
    e = function(f) return ops.positive(inner(f)) end
  else
    e = self:primary()
  end
  e = self:postfix(e)
  while not without_filters do
    if self:take("op", "|") then
      e = self:filter(e)
    elseif self:take("name", "is") then
      e = self:test(e)
    elseif self:take("op", "(") then
      e = self:call(e)
    else
      break
    end
  end
  return e
end

-- Binary operators, from the weakest to the strongest.
local levels = { { "+", "-" }, { "~" }, { "*", "/", "//", "%" }, { "**" } }

function Parser:binary(level)
  if level > #levels then return self:unary() end
  local e = self:binary(level + 1)
  while true do
    local op
    for _, o in ipairs(levels[level]) do
      if self:take("op", o) then
        op = o
        break
      end
    end
    if not op then return e end
    local left, right, run, line = e, self:binary(level + 1), ops.binary[op], self.state.line
    e = function(f)
      local a, b = left(f), right(f)
      f.run.line = line
      return run(f.run, a, b)
    end
  end
end

function Parser:comparison()
  local e, tests = self:binary(1), {}
  while true do
    local name
    for _, op in ipairs { "==", "!=", "<=", ">=", "<", ">" } do
      if self:take("op", op) then name = op end
      if name then break end
    end
    if not name and self:take("name", "in") then name = "in" end
    local next_token = self.tokens[self.at + 1]
    if not name and self:peek("name", "not") and next_token[1] == "name" and next_token[2] == "in" then
      self.at = self.at + 2
      name = "not in"
    end
    if not name then break end
    tests[#tests + 1] = { ops.compare[name], self:binary(1) }
  end
  if #tests == 0 then return e end
  return function(f)
    local a = e(f)
    for _, t in ipairs(tests) do
      local b = t[2](f)
      if not t[1](a, b) then return false end
      a = b
    end
    return true
  end
end

function Parser:negation()
  if not self:take("name", "not") then return self:comparison() end
  local e = self:deeper(self.negation)
  return function(f) return not truth(e(f)) end
end

function Parser:conjunction()
  local e = self:negation()
  while self:take("name", "and") do
    local left, right = e, self:negation()
    e = function(f)
      local v = left(f)
      if not truth(v) then return v end
      return right(f)
    end
  end
  return e
end

function Parser:disjunction()
  local e = self:conjunction()
  while self:take("name", "or") do
    local left, right = e, self:conjunction()
    e = function(f)
      local v = left(f)
      if truth(v) then return v end
      return right(f)
    end
  end
  return e
end

function Parser:conditional()
  local e = self:disjunction()
  while self:take("name", "if") do
    local yes, test = e, self:disjunction()
    local no = self:take("name", "else") and self:deeper(self.conditional)
    e = function(f)
      if truth(test(f)) then return yes(f) end
      if no then return no(f) end
      return values.undefined "the inline if-expression evaluated to false and no else section was defined."
    end
  end
  return e
end

function Parser:expression() return self:deeper(self.conditional) end

function Parser:expressions()
  local e = self:expression()
  if self:peek("op", ",") then return self:tuple(nil, e) end
  return e
end

-- What if, elif and in of a for stand before: no "a if b else c" here.
function Parser:condition()
  local e = self:disjunction()
  if self:peek("op", ",") then return self:tuple(nil, e) end
  return e
end

return { Parser = Parser, constants = constants, constant = constant, variable = variable }
