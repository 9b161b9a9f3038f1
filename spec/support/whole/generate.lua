-- SPDX-License-Identifier: MIT
-- Makes random programs. Each statement is run on the reference as it is made, so that the next one knows what is
-- there.

local K = require "spec.support.whole.kinds"
local random = require "spec.support.random"
local ref = require "spec.support.whole.reference"
local run = require "spec.support.whole.run"

local M = {}
local SHAPES = { { 2 }, { 3 }, { 4 }, { 2, 2 }, { 2, 3 }, { 3, 2 }, { 2, 3 }, { 2, 1, 3 }, { 4, 2 }, { 1 }, {},
  { 6 }, { 2, 2, 2 } }
local LARGEST, MOST = 40, 12

local CHANGES = { "mul_number", "add_number", "sin", "neg", "fill", "tanh" } -- writes that read one tensor at most

local G = {}
G.__index = G

function G:int(lo, hi) return self.g:int(lo, hi) end
function G:chance(p) return self.g:number(0, 1) < p end
function G:pick(list) return list[self.g:int(1, #list)] end
function G:new_var()
  self.count = self.count + 1
  return self.count
end
function G:number() return math.floor(self.g:number(-2, 2) * 100) / 100 + 0.005 end

-- Variables in scope that hold tensors and pass the test; newer ones more often.
function G:some(test)
  local l = {}
  for _, id in ipairs(self.scope) do
    local t = self.r.vars[id]
    if t and t.storage and (not test or test(t, id)) then l[#l + 1] = id end
  end
  if #l == 0 then return nil end
  return l[self:int(self:chance(0.5) and 1 or math.max(1, #l - 3), #l)]
end

local function tensor_of(self, id) return self.r.vars[id] end

-- Another tensor whose shape can be made that of t.
function G:partner(t, test)
  return self:some(function(x)
    local s = K.broadcast_shape(x.shape, t.shape)
    return s and K.same(s, t.shape) and (not test or test(x))
  end)
end

local make = {}

function make.leaf(self)
  local shape = self:pick(SHAPES)
  return { k = "leaf", o = { self:new_var() }, shape = shape, values = self.g:list(ref.numel(shape), -1.5, 1.5),
    tracked = self:chance(0.6) }
end

function make.rand(self)
  return { k = "rand", o = { self:new_var() }, shape = self:pick(SHAPES), own = self.made and self:chance(0.4) or nil }
end

function make.unary(self)
  return { k = "unary", o = { self:new_var() }, a = { self:some() },
    f = self:pick { "sin", "tanh", "sigmoid", "cos", "neg", "square", "relu" } }
end

function make.binary(self)
  local a = self:some()
  local b = self:partner(tensor_of(self, a))
  if self:chance(0.2) then a, b = b, a end
  local f = self:pick { "add", "sub", "mul", "mul", "mul" }
  return { k = "binary", o = { self:new_var() }, a = { a, b }, f = f,
    alpha = f ~= "mul" and self:chance(0.2) and self:number() or nil }
end

function make.number(self)
  return { k = "number", o = { self:new_var() }, a = { (self:some()) }, f = self:pick { "mul", "mul", "add", "rsub" },
    c = self:number() }
end

function make.clone(self) return { k = "clone", o = { self:new_var() }, a = { (self:some()) } } end

function make.reduce(self)
  local a = self:some(function(t) return #t.shape > 0 end)
  if not a then return nil end
  local d = self:chance(0.4) and self:int(1, #tensor_of(self, a).shape) or nil
  return { k = "reduce", o = { self:new_var() }, a = { a }, f = self:pick { "sum", "mean" }, dim = d }
end

function make.join(self)
  local a = self:some(function(t) return #t.map <= MOST // 2 end)
  if not a then return nil end
  local x = tensor_of(self, a)
  local b = self:some(function(t) return K.same(t.shape, x.shape) end)
  return { k = "join", o = { self:new_var() }, a = { a, b }, f = #x.shape > 0 and self:pick { "cat", "stack" }
    or "stack" }
end

function make.rows(self)
  local a = self:some(function(t) return #t.shape > 0 and #t.map <= 6 end)
  if not a then return nil end
  local index, n = {}, tensor_of(self, a).shape[1]
  for i = 1, self:int(1, 3) do index[i] = self:int(1, n) end
  return { k = "rows", o = { self:new_var() }, a = { a }, index = index }
end

-- What picks a window of t: fields of a view statement.
function G:window(t)
  local n = t.shape[1]
  local how = self:pick { "index", "slice", "slice", "select", "narrow" }
  if how == "index" then return { how = how, i = self:int(1, n) } end
  if how == "select" then
    local d = self:int(1, #t.shape)
    return { how = how, dim = d, i = self:int(1, t.shape[d]) }
  elseif how == "narrow" then
    local d = self:int(1, #t.shape)
    local from = self:int(1, t.shape[d])
    return { how = how, dim = d, i = from, n = self:int(1, t.shape[d] - from + 1) }
  end
  local w = { how = "slice", i = self:int(1, n) }
  w.n = self:int(1, n - w.i + 1)
  w.key = ("{ %d, %d }"):format(w.i, w.i + w.n - 1)
  if #t.shape >= 2 and self:chance(0.5) then
    w.i2 = self:int(1, t.shape[2])
    w.n2 = self:int(1, t.shape[2] - w.i2 + 1)
    w.key = w.key .. (", { %d, %d }"):format(w.i2, w.i2 + w.n2 - 1)
  end
  return w
end

function make.view(self)
  if self.r.off > 0 then return nil end
  local a = self:some(function(t) return #t.shape > 0 end)
  if not a then return nil end
  local t = tensor_of(self, a)
  local s = { k = "view", o = { self:new_var() }, a = { a } }
  local what = self:int(1, 10)
  if what <= 4 then
    for k, v in pairs(self:window(t)) do s[k] = v end
  elseif what == 5 and #t.shape >= 2 then
    s.how = self:pick { "transpose", #t.shape == 2 and "diagonal" or "transpose" }
  elseif what == 6 and t.plain then
    s.how, s.shape = "view", self:chance(0.5) and { #t.map } or { 1, #t.map }
  elseif what == 7 then
    s.how = "expand"
    s.shape = { 2, table.unpack(t.shape) }
    if #t.map * 2 > MOST then return nil end
  elseif what <= 10 then
    local d = self:int(1, #t.shape)
    s.how, s.dim = self:pick { "chunk", "split", "unbind", "unsqueeze" }, d
    if s.how ~= "unsqueeze" then
      local size = t.shape[d]
      local count = size
      if s.how == "chunk" then
        s.n = math.min(size, 2)
        count = s.n
      elseif s.how == "split" then
        s.n = self:int(1, size)
        count = (size + s.n - 1) // s.n
      end
      for i = 2, math.min(count, 3) do s.o[i] = self:new_var() end
    end
  end
  return s.how and s or nil
end

function make.detach(self) return { k = "detach", o = { self:new_var() }, a = { (self:some()) } } end

-- Statements that are to follow the one being made, if they make sense then.
function G:wish(s) if self.made then self.wishes[#self.wishes + 1] = s end end

local function writable(t) return not t.frozen end

-- A checkpoint in another one does not write to its arguments: where the outer function made them, backward may refuse
-- to run it again although it should not.
local function lent(self, t)
  if self.deep < 2 then return false end
  for _, x in pairs(self.outside) do if x.storage == t.storage then return true end end
  return false
end

function make.write(self)
  local risky = self:chance(0.08) -- leaves, expanded ones: refused
  local a = self:some(function(t)
    return writable(t) and not lent(self, t)
      and (risky or (not ref.overlaps(t) and not ((t.leaf or t.history.root.leaf or t.history.foreign)
      and self.r.off == 0)))
  end)
  if not a then return nil end
  local t = tensor_of(self, a)
  local names = {}
  for name in pairs(K.writes) do names[#names + 1] = name end
  table.sort(names)
  local f = self:pick(names)
  local s = { k = "write", a = { a }, f = f, c = self:number() }
  if K.writes[f].two then
    s.a[2] = self:chance(0.1) and a or self:partner(t)
    if f == "add" and self:chance(0.3) then s.alpha = self:number() end
  end
  return s
end

function make.assign(self)
  local a = self:some(function(t)
    return writable(t) and not lent(self, t)
      and #t.shape > 0 and not ref.overlaps(t) and not ((t.leaf or t.history.root.leaf
      or t.history.foreign) and self.r.off == 0)
  end)
  if not a then return nil end
  local t = tensor_of(self, a)
  local w
  repeat w = self:window(t) until w.how == "index" or w.how == "slice"
  local s = { k = "assign", a = { a }, c = self:number() }
  for k, v in pairs(w) do s[k] = v end
  if self:chance(0.7) then
    local _, shape = K.views[w.how].pick(w, t.shape)
    s.a[2] = self:partner { shape = shape }
  end
  return s
end

function make.drop(self)
  local id = self:some(function(_, id) return not self.r.captured[id] and not self.fixed[id] end)
  return id and { k = "drop", a = { id } }
end
function make.collect(self) return { k = "collect", full = self:chance(0.05) } end

-- ---- bodies
-- -----------------------------------------------------------------------------------------------------------

local BODY = { { 5, "unary" }, { 5, "binary" }, { 3, "number" }, { 3, "reduce" }, { 4, "view" }, { 4, "write" }, { 2,
  "assign" },
  { 1, "detach" }, { 1, "clone" }, { 1, "join" }, { 1, "rows" }, { 1, "leaf" }, { 1, "custom" }, { 1, "nograd" },
  { 1, "checkpoint" } }
local NOGRAD = { { 6, "write" }, { 3, "assign" }, { 1, "unary" }, { 1, "binary" }, { 1, "rand" }, { 2, "view" } }

local function weigh(list)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x[1] end
  return { list = list, sum = sum }
end

function G:kind(weights)
  local at = self.g:number(0, weights.sum)
  for _, x in ipairs(weights.list) do
    at = at - x[1]
    if at < 0 then return x[2] end
  end
  return weights.list[#weights.list][2]
end

local sound

-- Makes up to n statements in the present scope and runs them; gives up on what makes no sense.
function G:statements(weights, n, without)
  local list = {}
  for _ = 1, n do
    local kind = self:kind(weights)
    if not (without and without[kind]) then
      local s = make[kind](self)
      local scope = #self.scope
      if s then
        if not self.made then -- in a body: what makes no sense there spoils all of it
          if not sound(self, s) then return nil end
        end
        list[#list + 1] = s
        for i = #self.scope, scope + 1, -1 do self.scope[i] = nil end
        for _, id in ipairs(s.o or {}) do self.scope[#self.scope + 1] = id end
      end
    end
  end
  return list
end

local function bounded(x) return x > -LARGEST and x < LARGEST end -- no NaN

local function small(r, s)
  for _, id in ipairs(s.o or {}) do
    local t = r.vars[id]
    if t and t.storage then
      if #t.map > MOST then return false end
      for _, x in ipairs(ref.values(t)) do if not bounded(x) then return false end end
    end
  end
  local t = s.a and s.a[1] and r.vars[s.a[1]]
  if t and t.storage then for _, x in ipairs(t.storage.values) do if not bounded(x) then
    return false end end end
  return true
end

-- Runs s inside of a body that is being made.
sound = function(self, s)
  local ok, err = pcall(K.exec, self.r, s)
  if ok then return small(self.r, s) end
  if type(err) ~= "table" then error(err, 0) end
  return false
end

-- A body over the parameters that are bound; → list of statements and what it returns
function G:body(params, n, returns, without)
  local scope, made, fixed = self.scope, self.made, self.fixed
  self.scope, self.made, self.fixed = { table.unpack(params) }, false, self.fixed
  local list = self:statements(self.body_weights, n, without)
  local out
  if list then
    out = returns(self)
  end
  self.scope, self.made, self.fixed = scope, made, fixed
  return list, out
end

local function bind(self, args)
  local params = {}
  for i, t in ipairs(args) do
    params[i] = self:new_var()
    self.r.vars[params[i]] = t
  end
  return params
end

local function results(n)
  return function(self)
    local out, seen = {}, {}
    for _ = 1, n do
      local id = self:some(function(t, id)
        return t == t.history.root and not t.leaf and not t.frozen and not t.attached and not seen[t.storage]
          and not self.outside[id]
      end)
      if id then
        out[#out + 1] = id
        seen[self.r.vars[id].storage] = true
      end
    end
    return #out > 0 and out or nil
  end
end

local function new_vars(self, n)
  local o = {}
  for i = 1, n do o[i] = self:new_var() end
  return o
end

-- A function of some tensors: fields of a statement. how: "call", "rows", "alias"
-- A view that may be written, and another tensor of its memory.
local function family(self)
  local v = self:some(function(t)
    local root = t.history.root
    return t ~= root and not (t.frozen or ref.overlaps(t) or root.leaf or t.history.foreign)
  end)
  local h = v and tensor_of(self, v).history
  local other = v and self:some(function(t, id) return id ~= v and t.history == h and not ref.overlaps(t) end)
  if not other then return nil end
  return self:chance(0.5) and { v, other } or { other, v }
end

-- related: the arguments often share their memory
local function functional(self, n, make_args, count, without, related)
  without = without or {}
  without.leaf = true
  local a = related and self:chance(0.4) and family(self) or {}
  for i = #a + 1, n do a[i] = self:some(function(t) return #t.map > 0 end) end
  if #a == 0 then return nil end
  local args = make_args(a)
  if not args then return nil end
  self.outside = {}
  local params = bind(self, args)
  for i, id in ipairs(params) do self.outside[id] = args[i] end
  local list, out = self:body(params, self:int(1, 5), results(count), without)
  if not list or not out then return nil end
  return { a = a, params = params, body = list, returns = out, o = new_vars(self, #out) }
end

local function themselves(self) return function(a)
  local l = {}
  for i, id in ipairs(a) do l[i] = self.r.vars[id] end
  return l
end end

-- A leaf, or any tensor, that the body reads although it is no argument.
local function use(self, s, computed)
  if not s or not self:chance(0.4) then return s end
  local id = self:some(function(t) return computed or t.leaf ~= nil end)
  local y = self.r.vars[s.returns[1]]
  local t = id and self.r.vars[id]
  local shape = t and y and K.broadcast_shape(t.shape, y.shape)
  if not shape or not K.same(shape, y.shape) then return s end
  local v = self:new_var()
  s.body[#s.body + 1] = { k = "binary", o = { v }, a = { s.returns[1], id }, f = "mul" }
  s.returns[1] = v
  s.uses = { id }
  return s
end

-- A tensor outside that no gradient follows and the body writes, as counters of calls and running statistics are: once.
-- It is read, too, perhaps.
local function count(self, s)
  local id = self:some(function(t, id)
    if t ~= t.history.root or t.frozen or self.r:tracked(t) or ref.overlaps(t) then return false end
    for _, a in ipairs(s.a) do if self.r.vars[a].storage == t.storage then return false end end
    for _, a in ipairs(s.uses or {}) do if self.r.vars[a].storage == t.storage then return false end end
    return id ~= nil
  end)
  if not id then return end
  s.writes = { id }
  local write = { k = "nograd", o = {}, body = { { k = "write", a = { id },
    f = self:pick { "add_number", "mul_number" }, c = self:pick { 1, 0.5, -2 } } } }
  local t, y = self.r.vars[id], self.r.vars[s.returns[1]]
  local shape = y and K.broadcast_shape(t.shape, y.shape)
  if self:chance(0.5) and shape and K.same(shape, y.shape) then
    local v = self:new_var()
    s.body[#s.body + 1] = { k = "binary", o = { v }, a = { s.returns[1], id }, f = "mul" }
    s.returns[1] = v
  end
  table.insert(s.body, self:int(1, #s.body + 1), write)
end

-- Something that the function has read is changed between forward and backward: what it captures, an argument, or what
-- shares an argument's memory. And what it captures is used outside, too.
local function meanwhile(self, s)
  local id = s.uses and self:chance(0.6) and s.uses[1] or s.a[self:int(1, #s.a)]
  local t = tensor_of(self, id)
  if not t then return end
  if not self:chance(0.5) then
    local v = self:new_var()
    self:wish { k = "unary", o = { v }, a = { id }, f = self:pick { "sin", "tanh", "square" } }
    if K.same(t.shape, tensor_of(self, s.a[1]).shape) then
      self:wish { k = "backward", a = { v }, retain = true }
    end
  end
  if self:chance(0.7) then
    local other = self:chance(0.5) and self:some(function(x) return x.storage == t.storage end) or id
    local write = { k = "write", a = { other }, f = self:pick(CHANGES), c = self:number() }
    self:wish(self:chance(0.7) and { k = "nograd", o = {}, body = { write } } or write)
  end
  self:wish { k = "backward", a = { s.o[1] }, retain = self:chance(0.3) or nil }
end

-- The first result becomes its product with the sum of argument k, which shows what a write to another one did to it.
local function see(self, s, k)
  local sum, v = s.params[k], self:new_var()
  if #tensor_of(self, s.a[k]).shape > 0 then
    sum = self:new_var()
    s.body[#s.body + 1] = { k = "reduce", o = { sum }, a = { s.params[k] }, f = "mean" }
  end
  s.body[#s.body + 1] = { k = "binary", o = { v }, a = { s.returns[1], sum }, f = "mul" }
  s.returns[1] = v
end

function make.checkpoint(self)
  if self.deep > 1 then return nil end
  self.deep = self.deep + 1
  local s = functional(self, self:int(1, 2), themselves(self), self:int(1, 2), { checkpoint = self.deep > 1 }, true)
  self.deep = self.deep - 1
  if s and self:chance(0.25) then -- a draw
    local y = self.r.vars[s.returns[1]]
    local d, v = self:new_var(), self:new_var()
    if y then
      table.insert(s.body, { k = "rand", o = { d }, shape = y.shape, own = self:chance(0.5) or nil })
      table.insert(s.body, { k = "binary", o = { v }, a = { s.returns[1], d }, f = "mul" })
      s.returns[1] = v
    end
  end
  s = use(self, s)
  if not s then return nil end
  s.k = "checkpoint"
  if self.deep == 0 and self:chance(0.25) then count(self, s) end
  if self.deep == 0 and self:chance(0.4) then meanwhile(self, s) end
  local both = #s.a == 2 and tensor_of(self, s.a[1]).history == tensor_of(self, s.a[2]).history
  if self.deep == 0 and self:chance(both and 0.9 or 0.4) then -- an argument is changed inside, perhaps after the call
    local k = self:int(1, #s.a)
    local t = tensor_of(self, s.a[k])
    local h = t and t.history
    if t and not (t.frozen or ref.overlaps(t) or t.leaf or h.root.leaf or h.foreign) then
      table.insert(s.body, self:chance(0.7) and 1 or #s.body + 1,
        { k = "write", a = { s.params[k] }, f = self:pick(CHANGES), c = self:number() })
      if #s.a > 1 and self:chance(0.7) then see(self, s, 3 - k) end
      local after = { k = "write", a = { s.a[k] }, f = self:pick(CHANGES), c = self:number() }
      if self:chance(0.6) then self:wish(after) end
      self:wish { k = "backward", a = { s.returns and s.o[1] }, retain = self:chance(0.3) or nil }
    end
  end
  return s
end

function make.jit(self)
  local s = use(self, functional(self, self:int(1, 2), themselves(self), self:int(1, 2), { custom = true,
    checkpoint = true }), true)
  if not s then return nil end
  s.k, s.calls = "jit", {}
  s.options = self:pick { false, false, "{ mirror = \"mirror\" }", "{ mirror = \"mincut\" }",
    "{ mirror = \"auto\", heavy = true }" }
  for c = 1, self:int(1, 3) do
    local a = {}
    for i, id in ipairs(s.a) do
      local shape = self.r.vars[id].shape
      a[i] = c == 1 and id or self:some(function(t) return K.same(t.shape, shape) end)
    end
    s.calls[c] = { a = a, o = c == 1 and s.o or new_vars(self, #s.returns) }
  end
  s.o = {}
  for _, c in ipairs(s.calls) do for _, id in ipairs(c.o) do s.o[#s.o + 1] = id end end
  s.a = s.calls[1].a
  return s
end

function make.vmap(self)
  local n
  local s = functional(self, self:int(1, 2), function(a)
    local l = {}
    for i, id in ipairs(a) do
      local t = self.r.vars[id]
      if #t.shape == 0 or (n and n ~= t.shape[1]) then return nil end
      n = t.shape[1]
      local shape = { table.unpack(t.shape, 2) }
      local v, m = {}, ref.numel(shape)
      for k = 1, m do v[k] = ref.values(t)[k] end
      l[i] = self.r:leaf(v, shape)
      l[i].leaf, l[i].frozen, l[i].plain = nil, true, false
    end
    return l
  end, 1, { nograd = true, checkpoint = true, leaf = true, detach = true, custom = true })
  if s then s.k = "vmap" end
  return s
end

function make.tgrad(self)
  if self.deep > 0 then return nil end
  self.deep = self.deep + 1
  local s = functional(self, self:int(1, 2), function(a)
    local l = {}
    for i, id in ipairs(a) do
      local t = self.r.vars[id]
      l[i] = self.r:tensor(self.r:scale(self.r:read(t), 1), t.shape, t.plain)
      l[i].frozen = true
    end
    return l
  end, 1, { nograd = true, detach = true })
  self.deep = self.deep - 1
  if not s then return nil end
  local sum = self:new_var()
  local y = self.r.vars[s.returns[1]]
  if not y then return nil end
  if #y.shape > 0 then
    s.body[#s.body + 1] = { k = "reduce", o = { sum }, a = { s.returns[1] }, f = "sum" }
    s.returns[1] = sum
  end
  s.k, s.o = "tgrad", new_vars(self, #s.a)
  return s
end

function make.nograd(self)
  if self.r.off > 0 then return nil end
  local scope, made = self.scope, self.made
  self.r.off, self.made = 1, false
  self.scope = { table.unpack(scope) }
  local list = self:statements(weigh(NOGRAD), self:int(1, 3))
  self.scope, self.made, self.r.off = scope, made, 0
  if not list or #list == 0 then return nil end
  local o = {}
  for _, s in ipairs(list) do for _, id in ipairs(s.o or {}) do o[#o + 1] = id end end
  return { k = "nograd", body = list, o = o }
end

function make.custom(self)
  local a = self:some()
  local t = tensor_of(self, a)
  local f = self:pick { "cube", "half", "pair", "first", table.unpack(#t.shape > 1 and { "turn", "turn" } or {}) }
  local s = { k = "custom", f = f, a = { a }, o = { self:new_var() } }
  if f == "pair" or f == "first" then
    s.a[2] = self:some(function(x) return K.same(x.shape, t.shape) end)
    if f == "pair" then s.o[2] = self:new_var() end
  end
  return s
end

-- ---- gradients
-- ------------------------------------------------------------------------------------------------------------

local function tracked(self) return function(t) return self.r:tracked(t) end end

function make.hook(self)
  local a = self:some(tracked(self))
  self.hooks = self.hooks + 1
  local t = a and tensor_of(self, a)
  if t and t ~= t.history.root and self:chance(0.5) then -- a view: used, overwritten behind its back, used again
    local sibling = self:some(function(x) return x.history == t.history and writable(x) and not ref.overlaps(x) end)
    local y = self:new_var()
    self:wish { k = "unary", o = { y }, a = { a }, f = self:pick { "sin", "tanh", "square" } }
    if sibling then self:wish { k = "write", a = { sibling }, f = self:pick(CHANGES), c = self:number() } end
    self:wish { k = "unary", o = { self:new_var() }, a = { a }, f = "neg" }
    self:wish { k = "backward", a = { y }, retain = true }
  end
  return a and { k = "hook", a = { a }, id = self.hooks, f = self:pick { "look", "look", "scale", "shift", "sin",
    "zero" } }
end

local function is_scalar(self, id) return #tensor_of(self, id).shape == 0 end

function make.backward(self)
  local a = self:some(function(t) return self.r:tracked(t) and not t.leaf end)
  if not a then return nil end
  local s = { k = "backward", a = { a }, scalar = is_scalar(self, a), retain = self:chance(0.5) or nil }
  if self:chance(0.25) then
    local x = self:some(function(t) return t.leaf ~= nil end)
    s.into = x and { x } or nil
  end
  return s
end

function make.gradof(self)
  local a = self:some(function(t) return self.r:tracked(t) and not t.leaf end)
  if not a then return nil end
  local xs = {}
  for i = 1, self:int(1, 2) do xs[i] = self:some(function(t, id) return self.r:tracked(t) and id ~= a end) end
  if #xs == 0 then return nil end
  return { k = "gradof", a = { a }, xs = xs, o = new_vars(self, #xs), scalar = is_scalar(self, a), unused = true,
    retain = self:chance(0.5) or nil, create = self:chance(0.3) or nil }
end

function make.cleargrad(self)
  local a = self:some(function(t) return t.leaf ~= nil end)
  return a and { k = "cleargrad", a = { a } }
end
function make.readgrad(self)
  local a = self:some(function(t) return t.leaf ~= nil and t.leaf.grad end)
  return a and { k = "readgrad", a = { a }, o = { self:new_var() } }
end

function G:some_key()
  local l = {}
  for _, id in ipairs(self.scope) do
    local k = self.r.vars[id]
    if k and k.level and not k.closed then l[#l + 1] = id end
  end
  return #l > 0 and self:pick(l) or nil
end
function make.key(self) return { k = "key", o = { self:new_var() } } end
function make.attach(self)
  local k = self:some_key()
  local a = k and self:some(function(t) return t == t.history.root end)
  self.hooks = self.hooks + 1
  return a and { k = "attach", a = { k, a }, id = self.hooks }
end
function make.keyback(self)
  local id = self:some_key()
  if not id then return nil end
  local k = self.r.vars[id]
  local a = self:some(function(t) return self.r:entry(t, k) ~= nil end)
  return a and { k = "keyback", a = { id, a } }
end

-- ---- programs
-- ----------------------------------------------------------------------------------------------------------

local BASE = { { 5, "unary" }, { 6, "binary" }, { 3, "number" }, { 2, "reduce" }, { 9, "view" }, { 8, "write" }, { 4,
  "assign" },
  { 3, "detach" }, { 1, "clone" }, { 1, "join" }, { 1, "rows" }, { 1, "leaf" }, { 6, "drop" }, { 4, "collect" }, { 4,
    "hook" },
  { 2, "backward" }, { 2, "gradof" }, { 1, "cleargrad" }, { 1, "readgrad" }, { 1, "nograd" } }
local flavours = {
  weigh(BASE),
  weigh { { 40, "base" }, { 8, "custom" }, { 6, "checkpoint" }, { 1, "rand" } },
  weigh { { 40, "base" }, { 4, "key" }, { 6, "attach" }, { 6, "keyback" }, { 2, "custom" } },
  weigh { { 40, "base" }, { 5, "jit" }, { 3, "vmap" }, { 4, "tgrad" }, { 2, "checkpoint" } },
}
local base = weigh(BASE)

-- Program number `seed`.
function M.program(seed)
  local g = random.new(seed)
  for _ = 1, 3 do g:number() end
  local self = setmetatable({ g = g, count = 0, hooks = 0, deep = 0, outside = {}, fixed = {}, scope = {}, made = true,
    wishes = {}, body_weights = weigh(BODY) }, G)
  local program = { seed = seed, list = {} }
  local function replay()
    self.r = run.fresh(seed)
    for i, s in ipairs(program.list) do run.step(self.r, s, i) end
  end
  replay()
  local flavour = flavours[g:int(1, #flavours)]
  local function try(s, risk) -- risk: how often what may be refused is taken all the same
    if not s then return end
    local risky = self:chance(risk or 0.06)
    local may, must = run.step(self.r, s, #program.list + 1)
    local ok = may ~= nil and small(self.r, s)
    if ok and must and s.body then ok = false end
    if ok and next(may) and not risky then ok = false end
    if not ok then return replay() end
    program.list[#program.list + 1] = s
    for _, id in ipairs(s.o or {}) do self.scope[#self.scope + 1] = id end
    return true
  end
  local function attempt(kind)
    local before = #self.scope
    local done, s = pcall(make[kind], self)
    if not done then
      if type(s) ~= "table" then error(s, 0) end
      s = nil
    end
    self.r.off, self.deep, self.made = 0, 0, true
    for i = #self.scope, before + 1, -1 do self.scope[i] = nil end
    if s and (s.body or not done) then replay() end
    local wishes = self.wishes
    self.wishes = {}
    if not s then return replay() end
    if not try(s) then return end
    for _, w in ipairs(wishes) do
      local t = w.k == "backward" and tensor_of(self, w.a[1])
      if t then w.scalar = #t.shape == 0 end
      try(w, 0.5)
    end
  end
  try(make.leaf(self))
  program.list[1].tracked = true
  replay()
  try(make.leaf(self))
  for _ = 1, g:int(4, 22) do
    local kind = self:kind(flavour)
    if kind == "base" then kind = self:kind(base) end
    if self:some() or kind == "leaf" then attempt(kind) else attempt "leaf" end
  end
  for _ = 1, g:int(1, 2) do
    if self:some(function(t) return self.r:tracked(t) and not t.leaf end) then attempt "backward" end
  end
  return program
end

return M
