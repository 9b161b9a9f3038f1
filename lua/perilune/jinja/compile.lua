-- SPDX-License-Identifier: MIT
--- Templates as closures: statements are functions of a frame that write, and may return "break" or "continue". The
-- parser and expressions are in expressions.lua.
-- @module perilune.jinja.compile
local expressions = require "perilune.jinja.expressions"
local lex = require "perilune.jinja.lexer"
local ops = require "perilune.jinja.operators"
local values = require "perilune.jinja.values"

local Parser, constants = expressions.Parser, expressions.constants
local constant, variable = expressions.constant, expressions.variable
local NONE, fail, truth = values.NONE, values.fail, values.truth

-- ---- statements ---------------------------------------------------------------------------------------------------

local function scope(f)
  return { vars = setmetatable({}, { __index = f.vars }), run = f.run }
end

-- What body writes, as a string.
local function captured(f, body)
  local run = f.run
  local out, n = run.out, run.n
  run.out, run.n = {}, 0
  local signal = body(f)
  local text = table.concat(run.out, "", 1, run.n)
  run.out, run.n = out, n
  return text, signal
end

-- The targets of an assignment: a function that assigns a value to them.
function Parser:target()
  local names = {}
  local parens = self:take("op", "(")
  repeat
    local name = self:want("name")[2]
    if constants[name] ~= nil then fail("TemplateSyntaxError: can't assign to '%s'", name) end
    names[#names + 1] = name
    local more = self:take("op", ",")
  until not more or not self:peek "name"
  if parens then self:want("op", ")") end
  local tuple = parens or #names > 1 or self.tokens[self.at - 1][2] == ","
  if not tuple then
    return function(f, v) f.vars[names[1]] = v end, names
  end
  return function(f, v)
    local all, n = values.items(v)
    if n ~= #names then fail("ValueError: %d names for %d values", #names, n) end
    for i, name in ipairs(names) do f.vars[name] = all[i] end
  end, names
end

local statements = {}

-- The statements until one of the names comes, which is taken; returns a function of a frame and the name.
function Parser:body(...)
  local ends = {}
  for _, name in ipairs { ... } do ends[name] = true end
  local list, ending = {}, nil
  while true do
    local t = self.tokens[self.at]
    self.state.line = t.line
    if t[1] == "eof" then
      if next(ends) then
        fail("TemplateSyntaxError: Unexpected end of template, '%s' is wanted", table.concat({ ... }, "' or '"))
      end
      break
    elseif t[1] == "text" then
      self.at = self.at + 1
      local text = t[2]
      list[#list + 1] = function(f) f.run.write(text) end
    elseif t[1] == "print" then
      self.at = self.at + 1
      local line, e = t.line, self:expressions()
      self:want "end"
      list[#list + 1] = function(f)
        f.run.line = line
        f.run.write(values.str(e(f)))
      end
    else
      self.at = self.at + 1
      local name = self:want("name")[2]
      if ends[name] then
        ending = name
        break
      end
      local make = statements[name]
      if not make then fail("TemplateSyntaxError: Encountered unknown tag '%s'.", name) end
      list[#list + 1] = self:deeper(make)
    end
  end
  return function(f)
    for i = 1, #list do
      f.run.spend(1)
      local signal = list[i](f)
      if signal then return signal end
    end
  end, ending
end

statements["if"] = function(self)
  local tests, bodies, name = {}, {}, nil
  repeat
    tests[#tests + 1] = name == "else" and constant(true) or self:condition()
    self:want "end"
    if name == "else" then
      bodies[#bodies + 1], name = self:body "endif"
    else
      bodies[#bodies + 1], name = self:body("elif", "else", "endif")
    end
  until name == "endif"
  self:want "end"
  return function(f)
    for i, test in ipairs(tests) do
      if truth(test(f)) then return bodies[i](f) end
    end
  end
end

local function loop_attributes(loop, items, n, i)
  loop.index, loop.index0, loop.revindex, loop.revindex0 = i, i - 1, n - i + 1, n - i
  loop.first, loop.last, loop.length = i == 1, i == n, n
  loop.previtem = i > 1 and items[i - 1] or nil
  loop.nextitem = i < n and items[i + 1] or nil
  if i > 1 and items[i - 1] == false then loop.previtem = false end
  if i < n and items[i + 1] == false then loop.nextitem = false end
end

local function new_loop(depth, again)
  local attributes, seen = { depth = depth, depth0 = depth - 1 }, nil
  attributes.cycle = values.callable("cycle", function(_, args)
    if args.n == 0 then fail "TypeError: no items for cycling given" end
    return args[attributes.index0 % args.n + 1]
  end)
  attributes.changed = values.callable("changed", function(_, args)
    local now = values.tuple(args)
    if seen and values.equal(seen, now) then return false end
    seen = now
    return true
  end)
  return { kind = "loop", attributes = attributes, call = again }
end

statements["for"] = function(self)
  local assign = self:target()
  self:want("name", "in")
  local source = self:condition()
  local test = self:take("name", "if") and self:expression()
  local recursive = self:take("name", "recursive")
  self:want "end"
  local body, name = self:body("else", "endfor")
  local otherwise
  if name == "else" then
    self:want "end"
    otherwise = self:body "endfor"
  end
  self:want "end"
  local function iterate(f, v, depth)
    local items, n = values.items(v)
    if test then
      local kept = {}
      for i = 1, n do
        local inner = scope(f)
        assign(inner, items[i])
        f.run.spend(1)
        if truth(test(inner)) then kept[#kept + 1] = items[i] end
      end
      items, n = kept, #kept
    end
    local loop = new_loop(depth, recursive and function(run, args)
      return run.deeper(function()
        return (captured(f, function() return iterate(f, args[1] == nil and NONE or args[1], depth + 1) end))
      end)
    end)
    local finished = false -- as in Jinja, a round that break or continue leaves is none to `else`
    for i = 1, n do
      f.run.spend(1)
      local inner = scope(f)
      loop_attributes(loop.attributes, items, n, i)
      inner.vars.loop = loop
      assign(inner, items[i])
      local signal = body(inner)
      if signal == "break" then break end
      finished = finished or not signal
    end
    if not finished and otherwise then return otherwise(scope(f)) end
  end
  return function(f) return iterate(f, source(f), 1) end
end

statements["break"] = function(self)
  self:want "end"
  return function() return "break" end
end
statements["continue"] = function(self)
  self:want "end"
  return function() return "continue" end
end

function statements.set(self)
  local t, dot = self.tokens[self.at], self.tokens[self.at + 1]
  if t[1] == "name" and dot[1] == "op" and dot[2] == "." then
    self.at = self.at + 2
    local field = self:want("name")[2]
    self:want("op", "=")
    local e = self:expressions()
    self:want "end"
    local get = variable(t[2])
    return function(f)
      local ns = get(f)
      if type(ns) ~= "table" or ns.kind ~= "namespace" then
        fail "TemplateRuntimeError: cannot assign attribute on non-namespace object"
      end
      values.dict_set(ns, field, e(f))
    end
  end
  local assign = self:target()
  if self:take("op", "=") then
    local e = self:expressions()
    self:want "end"
    return function(f) assign(f, e(f)) end
  end
  local filter
  local held
  if self:peek("op", "|") then
    filter = function(f) return held[f.run] end
    held = setmetatable({}, { __mode = "k" })
    while self:take("op", "|") do filter = self:filter(filter) end
  end
  self:want "end"
  local body = self:body "endset"
  self:want "end"
  return function(f)
    local text, signal = captured(scope(f), body)
    if signal then return signal end -- break and continue leave the block, and what was in it
    if filter then
      held[f.run] = text
      text = filter(f)
      held[f.run] = nil
    end
    assign(f, text)
  end
end

-- The parameters of a macro: names and default values.
function Parser:parameters()
  local names, defaults = {}, {}
  while not self:take("op", ")") do
    if #names > 0 then self:want("op", ",") end
    names[#names + 1] = self:want("name")[2]
    if self:take("op", "=") then defaults[#names] = self:expression() end
  end
  return names, defaults
end

-- The body of a macro, and which of varargs, kwargs and caller it names: what it does not name it does not take.
function Parser:macro_body(close)
  local outer = self.named
  self.named = {}
  local body, named = self:body(close), self.named
  self.named = outer
  for k in pairs(named) do if outer then outer[k] = true end end
  return body, named
end

local function macro(name, names, defaults, body, uses)
  local known = {}
  for _, n in ipairs(names) do known[n] = true end
  local function check(args, named, order)
    if args.n > #names and not uses.varargs then
      fail("TypeError: macro %s takes not more than %d argument(s)", values.repr(name), #names)
    end
    for _, k in ipairs(order or {}) do
      if not known[k] and not uses.kwargs and k ~= "caller" then
        fail("TypeError: macro %s takes no keyword argument %s", values.repr(name), values.repr(k))
      end
    end
    if named and named.caller ~= nil and not uses.caller and not known.caller then
      fail("TypeError: macro %s does not call its caller", values.repr(name))
    end
  end
  return function(f)
    return values.callable(name, function(run, args, named, order)
      check(args, named, order)
      return run.deeper(function()
        local inner = scope { vars = f.vars, run = run }
        local rest, extra = {}, values.dict()
        for i, n in ipairs(names) do
          local v = args[i]
          if i > args.n then v = named and named[n] end
          if v == nil then
            if defaults[i] then
              v = defaults[i](inner)
            else
              v = values.undefined(("parameter '%s' was not provided"):format(n))
            end
          end
          inner.vars[n] = v
        end
        for i = #names + 1, args.n do rest[#rest + 1] = args[i] end
        for _, k in ipairs(order or {}) do
          if not known[k] and k ~= "caller" then values.dict_set(extra, k, named[k]) end
        end
        inner.vars.varargs, inner.vars.kwargs = values.tuple(rest), extra
        if named and named.caller then inner.vars.caller = named.caller end
        return (captured(inner, body))
      end)
    end)
  end
end

function statements.macro(self)
  local name = self:want("name")[2]
  self:want("op", "(")
  local names, defaults = self:parameters()
  self:want "end"
  local body, uses = self:macro_body "endmacro"
  self:want "end"
  local make = macro(name, names, defaults, body, uses)
  return function(f) f.vars[name] = make(f) end
end

function statements.call(self)
  local names, defaults = {}, {}
  if self:take("op", "(") then names, defaults = self:parameters() end
  local callee = self:primary()
  while not self:peek("op", "(") do
    local before = self.at
    if self:take("op", ".") then
      local inner, name = callee, self:want("name")[2]
      callee = function(f) return ops.attribute(inner(f), name) end
    end
    if self.at == before then self:unexpected "(" end
  end
  self:want("op", "(")
  local arguments = self:arguments()
  self:want "end"
  local make = macro("caller", names, defaults, self:macro_body "endcall")
  self:want "end"
  return function(f)
    local args, named, order = arguments(f)
    named.caller = make(f)
    f.run.write(values.str(ops.call(f.run, callee(f), args, named, order)))
  end
end

function statements.filter(self)
  local held = setmetatable({}, { __mode = "k" })
  local e = self:filter(function(f) return held[f.run] end)
  while self:take("op", "|") do e = self:filter(e) end
  self:want "end"
  local body = self:body "endfilter"
  self:want "end"
  return function(f)
    local text, signal = captured(scope(f), body)
    if signal then return signal end
    held[f.run] = text
    f.run.write(values.str(e(f)))
    held[f.run] = nil
  end
end

statements["with"] = function(self)
  local names, items = {}, {}
  while not self:peek "end" do
    if #names > 0 then self:want("op", ",") end
    names[#names + 1] = self:target()
    self:want("op", "=")
    items[#names] = self:expression()
  end
  self:want "end"
  local body = self:body "endwith"
  self:want "end"
  return function(f)
    local inner = scope(f)
    for i, assign in ipairs(names) do assign(inner, items[i](f)) end
    return body(inner)
  end
end

-- What the assistant has said, which training wants marked; rendered as it is.
function statements.generation(self)
  self:want "end"
  local body = self:body "endgeneration"
  self:want "end"
  return function(f) return body(scope(f)) end
end

for _, name in ipairs { "include", "import", "from", "extends", "block" } do
  statements[name] = function()
    fail("'%s' is not supported: a chat template is one text", name)
  end
end

--- Compiles; state.line follows what is read. Returns a function of a frame.
return function(source, state, filters, tests)
  local p = setmetatable({ tokens = lex(source, state), at = 1, state = state, depth = 0, filters = filters,
    tests = tests }, Parser)
  return (p:body())
end
