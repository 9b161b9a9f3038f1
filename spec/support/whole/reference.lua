-- SPDX-License-Identifier: MIT
-- A second implementation of tensors with gradients, written to be read: numbers in Lua lists, no memory that is
-- shared,
-- no pruning, nothing fused, nothing freed. It judges random programs (spec/support/whole/).
--
--   Vec      a list of numbers `v` and, for each key that tracks it, where it comes from: e[key] = {node, slot}
--   node     one recorded op: inputs (entries or nil), a rule vjp(gradients, wanted) → gradients, hooks of each output
--   Storage  numbers and a version
--   History  what a tensor and its views have in common: e of the whole, and a number that moves when it is replaced
--   Tensor   a storage, the places of its elements there, a shape, a history, and e as of some state of that history
--
-- In-place ops are made functional: a write computes a new Vec, puts it over the places of the whole, and everything
-- else
-- that is there is taken from the whole again when it is used next.

local M = {}
local R = {}
R.__index = R

local AMBIENT = { name = "ambient", level = 0 }
M.AMBIENT = AMBIENT

-- What the engine may answer instead of a result. `raise` is for what it must answer.
M.patterns = {
  modified = "modified in place",
  freed = "freed by an earlier backward",
  leaf = "leaf that requires a gradient",
  unseen = "taken where no gradients are recorded",
  expanded = "several of its elements share memory",
  untracked = "does not depend on a tensor that requires a gradient",
  unused = "was not used to compute the outputs",
  finalized = "finalized",
  computed = "reads a tensor that was computed outside of it and needs a gradient",
  hook = "does not require a gradient",
  checkpoint = "checkpoint",
  foreign = "is the result of a rule (or a view of one) in memory that is not its own",
  gaps = "was detached with gaps in memory",
  gaps_view = "it has gaps in memory, so take the view again",
  detached = "was detached and is written while gradients are recorded", -- in a traced body
  traced = "",
  part = "computes further results from this one", -- a hook on a result that a compiled function uses itself
}

function M.new()
  return setmetatable({ seq = 0, off = 0, keys = {}, log = {}, may = {}, muted = {} }, R)
end

local function raise(what, why) error({ must = what, why = why }, 0) end
function M.invalid(why) error({ invalid = why or true }, 0) end

-- The engine may refuse the statement that runs now, with this message.
function R:allow(what) self.may[what] = true end

-- ---- recording ----------------------------------------------------------------------------------------------------

local function recording(self, key)
  return self.off == 0 and not key.closed and (self.muted[key] or 0) == 0 and not (key == AMBIENT and self.ambient_off)
end

-- Values of an op's outputs → Vecs with one node for each key that records and tracks an input.
function R:record(name, ins, outs, vjp, saves)
  local keys = {}
  for i = 1, ins.n or #ins do
    if ins[i] then for key in pairs(ins[i].e) do if recording(self, key) then keys[key] = true end end end
  end
  local vecs = {}
  for o, v in ipairs(outs) do vecs[o] = { v = v, e = {} } end
  if self.inherited then -- made by a rule that reads what its node keeps
    saves = { table.unpack(saves or {}) }
    table.move(self.inherited, 1, #self.inherited, #saves + 1, saves)
  end
  for key in pairs(keys) do
    self.seq = self.seq + 1
    local node = { name = name, key = key, seq = self.seq, ins = {}, nin = ins.n or #ins, nout = #outs, vjp = vjp,
      hooks = {},
      saves = saves }
    for i = 1, node.nin do node.ins[i] = ins[i] and ins[i].e[key] or nil end
    for o = 1, #outs do vecs[o].e[key] = { node = node, slot = o } end
  end
  return table.unpack(vecs)
end

local function const(v) return { v = v, e = {} } end
M.const = const
local function fill(n, c)
  local v = {}
  for i = 1, n do v[i] = c end
  return const(v)
end
M.fill = fill

-- ---- ops on Vecs of equal length; every rule is made of them again
-- ----------------------------------------------------

-- out[i] = sum of c * a[j] over the terms {i, j, c}
function R:linear(a, n, terms, saves)
  local v = {}
  for i = 1, n do v[i] = 0.0 end
  for _, t in ipairs(terms) do v[t[1]] = v[t[1]] + t[3] * a.v[t[2]] end
  local m = #a.v
  return self:record("linear", { a }, { v }, function(g)
    local back = {}
    for k, t in ipairs(terms) do back[k] = { t[2], t[1], t[3] } end
    return { self:linear(g[1], m, back) }
  end, saves)
end

function R:gather(a, map, saves)
  local terms = {}
  for i, j in ipairs(map) do terms[i] = { i, j, 1 } end
  return self:linear(a, #map, terms, saves)
end

function R:scale(a, c)
  local terms = {}
  for i = 1, #a.v do terms[i] = { i, i, c } end
  return self:linear(a, #a.v, terms)
end

function R:add(a, b)
  local v = {}
  for i = 1, #a.v do v[i] = a.v[i] + b.v[i] end
  return self:record("add", { a, b }, { v }, function(g) return { g[1], g[1] } end)
end

function R:mul(a, b, saves)
  local v = {}
  for i = 1, #a.v do v[i] = a.v[i] * b.v[i] end
  return self:record("mul", { a, b }, { v }, function(g, want)
    return { want[1] and self:mul(g[1], b) or nil, want[2] and self:mul(g[1], a) or nil }
  end, saves)
end

-- f(x) elementwise; slope(self, x, y) → its derivative as a Vec
local functions = {}
M.functions = functions
function R:unary(name, a, saves)
  local f, v = functions[name], {}
  for i = 1, #a.v do v[i] = f.value(a.v[i]) end
  local y
  y = self:record(name, { a }, { v }, function(g) return { self:mul(g[1], f.slope(self, a, y)) } end, saves)
  return y
end

local exp, sin, cos = math.exp, math.sin, math.cos
local function tanh(x)
  if x > 20 then return 1.0 elseif x < -20 then return -1.0 end
  local a, b = exp(x), exp(-x)
  return (a - b) / (a + b)
end
functions.sin = { value = sin, slope = function(r, x) return r:unary("cos", x) end }
functions.cos = { value = cos, slope = function(r, x) return r:scale(r:unary("sin", x), -1) end }
functions.tanh = { value = tanh, slope = function(r, _, y)
  return r:add(fill(#y.v, 1.0), r:scale(r:mul(y, y), -1))
end }
functions.sigmoid = { value = function(x) return 1 / (1 + exp(-x)) end, slope = function(r, _, y)
  return r:add(y, r:scale(r:mul(y, y), -1))
end }
functions.square = { value = function(x) return x * x end, slope = function(r, x) return r:scale(x, 2) end }
functions.relu = { value = function(x) return x > 0 and x or (x ~= x and x or 0.0) end, slope = function(_, x)
  local v = {}
  for i, c in ipairs(x.v) do v[i] = c > 0 and 1.0 or 0.0 end
  return const(v)
end }
functions.reciprocal = { value = function(x) return 1 / x end, slope = function(r, _, y)
  return r:scale(r:mul(y, y), -1)
end }

-- ---- walks
-- -----------------------------------------------------------------------------------------------------------

local function mute(self, keys, by) for _, k in ipairs(keys) do self.muted[k] = (self.muted[k] or 0) + by end end

-- Was it freed, itself or with the call that it is a part of?
local function spent(node) return node.spent or node.call and node.call.spent end

-- One call is one node: what leads to a result that was not asked for is walked when another one of that call was.
function R:allow_mates(order, captures)
  local calls, leads = {}, {}
  for i = 1, captures.n do
    if captures[i] and captures[i].node.call then calls[captures[i].node.call] = true end
  end
  for k = #order, 1, -1 do -- oldest first
    local node = order[k]
    leads[node] = node.call and calls[node.call]
    for i = 1, node.nin do leads[node] = leads[node] or node.ins[i] and leads[node.ins[i].node] end
    for _, s in ipairs(leads[node] and node.saves or {}) do
      if s.storage.version ~= s.version then self:allow "modified" end
    end
  end
end

-- From the seeds {entry, Vec} back. captures: list of entries whose gradients are returned; then only nodes on a way
-- to one
-- of them are walked. opts: leaves (accumulate into .grad), retain, mute (list of keys that record nothing meanwhile).
function R:walk(seeds, captures, opts)
  local reached, order, wanted, onward, asked = {}, {}, nil, {}, {}
  local function reach(node)
    if reached[node] then return end
    reached[node] = true
    order[#order + 1] = node
    for i = 1, node.nin do if node.ins[i] then reach(node.ins[i].node) end end
  end
  for _, s in ipairs(seeds) do reach(s[1].node) end
  -- Is something asked for where this entry leads? Of a node's results each is on its own.
  local function leads(e) return not wanted or onward[e.node] or (asked[e.node] and asked[e.node][e.slot]) end
  if captures then
    wanted = {}
    for i = 1, captures.n do
      local c = captures[i]
      if c then
        asked[c.node] = asked[c.node] or {}
        asked[c.node][c.slot], wanted[c.node] = true, true
      end
    end
    table.sort(order, function(a, b) return a.seq < b.seq end)
    for _, node in ipairs(order) do
      for i = 1, node.nin do
        if node.ins[i] and leads(node.ins[i]) then onward[node], wanted[node] = true, true end
      end
    end
  end
  for i = 1, captures and captures.n or 0 do
    if captures[i] and spent(captures[i].node) then self:allow "freed" end
  end
  table.sort(order, function(a, b) return a.seq > b.seq end)
  local walked = {}
  if captures then self:allow_mates(order, captures) end
  for _, node in ipairs(order) do
    if spent(node) then self:allow "freed" end -- nobody knows any more where it leads
    if not wanted or wanted[node] then
      walked[#walked + 1] = node
      for _, s in ipairs(node.saves or {}) do if s.storage.version ~= s.version then self:allow "modified" end end
    end
  end
  local grads, results = {}, {}
  local function deliver(entry, g)
    local list = grads[entry.node]
    if not list then
      list = {}
      grads[entry.node] = list
    end
    list[entry.slot] = list[entry.slot] and self:add(list[entry.slot], g) or g
  end
  for _, s in ipairs(seeds) do if leads(s[1]) then deliver(s[1], s[2]) end end
  mute(self, opts.mute, 1)
  for _, node in ipairs(walked) do
    local list = grads[node]
    if list then
      for o = 1, node.nout do
        for _, hook in ipairs(node.hooks[o] or {}) do
          if list[o] then list[o] = hook(list[o]) or list[o] end
        end
        if captures and list[o] then
          for i = 1, captures.n do
            local c = captures[i]
            if c and c.node == node and c.slot == o then results[i] = list[o] end
          end
        end
      end
      if node.leaf then
        if opts.leaves and list[1] then
          node.grad = node.grad and self:add(node.grad, list[1]) or list[1]
        end
      elseif next(list) and (not captures or onward[node]) then
        local want = {}
        for i = 1, node.nin do want[i] = node.ins[i] ~= nil and leads(node.ins[i]) or false end
        local was = self.inherited
        self.inherited = node.saves
        local got = node.vjp(list, want)
        self.inherited = was
        for i = 1, node.nin do if want[i] and got[i] then deliver(node.ins[i], got[i]) end end
      end
    end
    if not opts.retain and not node.leaf and (not captures or onward[node]) then -- others only have what was asked for
      node.spent = true
      if node.call then node.call.spent = true end -- one call, one node: its other results are freed with it
    end
  end
  mute(self, opts.mute, -1)
  return results
end

function R:above(level)
  local list = { AMBIENT.level >= level and AMBIENT or nil }
  for _, k in ipairs(self.keys) do if k.level >= level then list[#list + 1] = k end end
  return list
end

-- ---- tensors
-- ----------------------------------------------------------------------------------------------------------

local function numel(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end
M.numel = numel

local function range(n)
  local map = {}
  for i = 1, n do map[i] = i end
  return map
end

local function copy(list) return { table.unpack(list) } end

-- The result of an op: memory of its own, the root of its history.
function R:tensor(vec, shape, plain)
  local n = #vec.v
  local storage = { values = copy(vec.v), version = 0, n = n }
  local history = { e = vec.e, gen = 0, where = range(n) }
  local t = { storage = storage, history = history, map = range(n), shape = copy(shape), e = vec.e, gen = 0,
    plain = plain ~= false }
  history.root = t
  return t
end

function R:leaf(values, shape, tracked)
  local t = self:tensor(const(copy(values)), shape)
  if tracked then
    self.seq = self.seq + 1
    local node = { name = "leaf", leaf = true, key = AMBIENT, seq = self.seq, ins = {}, nin = 0, nout = 1, hooks = {} }
    t.e[AMBIENT] = { node = node, slot = 1 }
    t.leaf = node
  end
  return t
end

-- Where the places of t are in its history's whole.
local function window(t)
  local map = {}
  for i, p in ipairs(t.map) do map[i] = t.history.where[p] end
  return map
end

-- Do the places of t leave gaps?
local function gaps(t)
  local low, high = math.huge, 0
  for _, p in ipairs(t.map) do low, high = math.min(low, p), math.max(high, p) end
  return high - low + 1 > #t.map
end
M.gaps = gaps

-- Brings t's entries up to date.
function R:current(t)
  local h = t.history
  if h.foreign and t.storage.version > 0 then self:allow "foreign" end
  if t.gen ~= h.gen then
    if t == h.root then
      t.e = h.e
    else
      if h.root.alias and gaps(h.root) then self:allow "gaps_view" end
      local was = self.off -- the history of values that were written is a fact, whether recording is on now or not
      self.off = 0
      local blank = {}
      for i = 1, h.root.n or #h.root.map do blank[i] = 0.0 end
      t.e = self:gather({ v = blank, e = h.e }, window(t)).e
      self.off = was
    end
    t.gen = h.gen
  end
  return t
end

local function values(t)
  local v = {}
  for i, p in ipairs(t.map) do v[i] = t.storage.values[p] end
  return v
end
M.values = values

-- t as an operand.
function R:read(t)
  self:current(t)
  return { v = values(t), e = t.e }
end

-- What an op keeps of these tensors for its gradient.
function R:saved(...)
  local list = {}
  for i = 1, select("#", ...) do
    local t = select(i, ...)
    if t then list[#list + 1] = { storage = t.storage, version = t.storage.version } end
  end
  return list
end

-- A view: element i of it is element pick[i] of t.
function R:view(t, pick, shape, plain)
  local vec = self:gather(self:read(t), pick)
  local map = {}
  for i, j in ipairs(pick) do map[i] = t.map[j] end
  return { storage = t.storage, history = t.history, map = map, shape = copy(shape), e = vec.e, gen = t.history.gen,
    plain = plain or false }
end

-- The same memory, another history, which is empty.
function R:detach(t)
  local where = {}
  for i, p in ipairs(t.map) do where[p] = i end
  local h = { e = {}, gen = 0, where = where }
  local c = { storage = t.storage, history = h, map = copy(t.map), shape = copy(t.shape), e = {}, gen = 0,
    plain = t.plain,
    alias = true }
  h.root = c
  return c
end

function R:tracked(t)
  self:current(t)
  return t.e[AMBIENT] ~= nil
end

local function overlaps(t)
  local seen = {}
  for _, p in ipairs(t.map) do
    if seen[p] then return true end
    seen[p] = true
  end
  return false
end
M.overlaps = overlaps

-- Before anything of a write to t with these operands is computed.
function R:check_write(t, other)
  if overlaps(t) then raise "expanded" end
  local any = false
  for _, x in ipairs { t, other } do
    self:current(x)
    for key in pairs(x.e) do any = any or recording(self, key) end
  end
  if any and (t.leaf or t.history.root.leaf) then raise "leaf" end
  if any and t.history.foreign then raise "foreign" end
  if t ~= t.history.root and not next(t.e) and t.history.e[AMBIENT] and recording(self, AMBIENT) then raise "unseen" end
end

-- t's elements := vec's.
function R:write(t, vec)
  for i, p in ipairs(t.map) do t.storage.values[p] = vec.v[i] end
  t.storage.version = t.storage.version + 1
  local recorded = next(vec.e) ~= nil
  for key in pairs(t.e) do recorded = recorded or recording(self, key) end
  if not recorded then return end
  local h = t.history
  h.gen = h.gen + 1
  if t == h.root then
    h.e, t.e, t.gen = vec.e, vec.e, h.gen
    return
  end
  local n, map, inside, keep, put = #h.root.map, window(t), {}, {}, {}
  for i, p in ipairs(map) do
    inside[p] = true
    put[i] = { p, i, 1 }
  end
  for i = 1, n do keep[i] = inside[i] and 0.0 or 1.0 end
  local blank = fill(n, 0.0)
  local rest = self:mul({ v = blank.v, e = h.e }, const(keep))
  h.e = self:add(rest, self:linear(vec, n, put)).e
  self:current(t)
end

-- ---- what programs ask for
-- ---------------------------------------------------------------------------------------------

-- The entry of t for a key, after bringing it up to date.
function R:entry(t, key)
  self:current(t)
  return t.e[key]
end

function R:hook(t, fn)
  local e = self:entry(t, AMBIENT)
  if not e then raise "hook" end
  if e.node.inside then self:allow "part" end
  local hooks = e.node.hooks
  hooks[e.slot] = hooks[e.slot] or {}
  table.insert(hooks[e.slot], fn)
end

local function seed_of(y, dy) return dy or fill(#y.map, 1.0) end

function R:backward(y, dy, opts)
  local e = self:entry(y, AMBIENT)
  if not e then raise "untracked" end
  self:walk({ { e, seed_of(y, dy) } }, nil, { leaves = true, retain = opts.retain or opts.create,
    mute = opts.create and {} or self:above(0) })
end

-- → list of Vecs, false where x was not reached
function R:grad_of(ys, xs, opts)
  local seeds, captures = {}, { n = #xs }
  for _, y in ipairs(ys) do
    local e = self:entry(y, AMBIENT)
    if e then seeds[#seeds + 1] = { e, seed_of(y) } elseif #ys == 1 then raise "untracked" end
  end
  for i, x in ipairs(xs) do
    captures[i] = self:entry(x, AMBIENT) or false
    if captures[i] and captures[i].node.inside then self:allow "part" end
  end
  local got = self:walk(seeds, captures, { retain = opts.retain or opts.create, mute = opts.create and {}
    or self:above(0) })
  local out = {}
  for i = 1, #xs do out[i] = got[i] or false end
  return out
end

function R:key(level)
  local top = 0
  for _, k in ipairs(self.keys) do if not k.closed and k.level > top then top = k.level end end
  local k = { name = "key", level = level or top + 1 }
  self.keys[#self.keys + 1] = k
  return k
end

-- An entry of its own for t: a node that passes what comes to whatever t was tracked by in this key.
function R:attach(key, t, fn)
  if key.closed then raise "finalized" end
  self:current(t)
  local e = t.e[key]
  if e and e.node.inside then self:allow "part" end
  if e and e.node.attached then -- again: both callbacks
    if fn then table.insert(e.node.hooks[1], fn) end
    return t
  end
  self.seq = self.seq + 1
  local node = { name = "attach", attached = true, key = key, seq = self.seq, ins = { e }, nin = 1, nout = 1,
    hooks = { { fn } }, vjp = function(g) return { g[1] } end }
  local mine = {}
  for k, x in pairs(t.e) do mine[k] = x end
  mine[key] = { node = node, slot = 1 }
  t.e = mine
  if t == t.history.root then t.history.e = mine end
  return t
end

function R:key_backward(key, ys, captures)
  if key.closed then raise "finalized" end
  local seeds = {}
  for _, y in ipairs(ys) do
    local e = self:entry(y, key)
    if e then seeds[#seeds + 1] = { e, seed_of(y) } end
  end
  local muted = self:above(key.level)
  key.closed = true
  for i, k in ipairs(self.keys) do if k == key then table.remove(self.keys, i) break end end
  return self:walk(seeds, captures, { mute = muted })
end

M.raise = raise
return M
