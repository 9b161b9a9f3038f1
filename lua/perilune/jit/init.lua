-- SPDX-License-Identifier: MIT
--- T.jit: a Lua function becomes a graph at its first call, and the graph runs from then on.
--
-- The first call with arguments of some kind runs the function once with symbolic tensors; every op, backward and the
-- optimizer's update included, becomes a node. Later calls run the graph while everything that the function could have
-- seen is as it was (guards.lua); otherwise it is traced again. What cannot be known while tracing is an error that
-- says so, never a frozen value.
-- @module perilune.jit
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"
local guards = require "perilune.jit.guards"
local graphs = require "perilune.graph"
local optimizers = require "perilune.jit.optimizers"
local trace = require "perilune.jit.trace"
local values = require "perilune.jit.values"

local core, fail, describe = T.core, options.fail, options.describe
local text_of, put, MARK = values.text_of, values.put, values.MARK

local MAX_TRACES, MAX_SIZES = 8, 64 -- functions traced, and plans for further sizes that are kept

local Jit = classes.class({ __name = "jit" }, "j")

--- For parts of perilune that act while a trace runs: f runs on real tensors.
local untraced = core.jit_untraced

local function undo(t)
  optimizers.undo(t, true)
  optimizers.forget(t)
end

-- ---- calls -------------------------------------------------------------------------------------------

local function run(self, t, tensors)
  rawset(self, "runs", self.runs + 1)
  local list = core.jit_run(t.program, tensors, undo, t, optimizers.before)
  for _, g in ipairs(t.inner) do
    local x = tensors[g.input]
    if x.is_leaf then
      core.adopt_grad(x, list[g.output])
    else -- the walk goes on into the argument's own history
      x:backward(list[g.output])
    end
  end
  if #t.deferred > 0 then optimizers.run(t, list) end
  if t.nresults == 1 then
    local first = t.results[1]
    if type(first) == "table" and list[rawget(first, MARK)] and not first.views then return list[first[MARK]] end
  end
  return table.unpack(put(t, list, tensors), 1, t.nresults)
end

-- A call that the trace t is for. Where arguments lie in memory as its graph does not know, or a failed backward left a
-- part of a gradient in them, the script runs.
local function run_or_written(self, t, tensors, args)
  if not core.jit_apart(t.program, tensors) or core.torn(tensors) then
    optimizers.undo(t) -- the script moves it again
    optimizers.forget(t)
    return self.f(table.unpack(args, 1, args.n))
  end
  if self.opts.check then return require("perilune.jit.check")(self, t, tensors, run, table.unpack(args, 1, args.n)) end
  return run(self, t, tensors)
end

local function holds(t)
  for i = 1, #t.live do
    if not t.live[i].holds() then return false end
  end
  return true
end

local function usable(t) return holds(t) and core.jit_same(t.program) end

-- Why no trace fits: what changed since the last one.
local function reason(self, key)
  local last = self.last
  if not last then return nil end
  if last.key ~= key then return ("the arguments were %s and are %s"):format(last.key, key) end
  local name, old, new = guards.changed(last.guards)
  if name then return ("%s changed from %s to %s"):format(name, describe(old), describe(new)) end
  return "the .grad fields that it reads, what requires a gradient, or an optimizer's state are others"
end

local function eager(self, ...)
  rawset(self, "eager", true)
  rawset(self, "_quick", nil)
  return self.f(...)
end

local function too_many(self, why)
  io.stderr:write(("perilune: %s was traced %d times and runs eagerly from now on; last, %s. Pass what changes as a "
    .. "tensor, or raise max_traces\n"):format(self.name, self.ntraces, why or "its arguments changed"))
  rawset(self, "eager", true)
  rawset(self, "_quick", nil)
end

-- Nothing of numbers and strings in a usual call's key: two or three tensors.
local function find(self, key)
  local list = self.traces[key]
  if not list then return nil end
  for i = 1, #list do
    local t = list[i]
    if usable(t) and not guards.changed(t.guards) then return t end
  end
end

local function kind_of(v, list) return text_of(v, list, 0, 1) end

local function drop_quick(self, t)
  local list = rawget(self, "_quick")
  for i = list and t.quick_call and #list or 0, 1, -1 do
    if list[i] == t.quick_call then table.remove(list, i) end
  end
end

local function keep(self, key, t)
  t.key = key
  self.traces[key] = self.traces[key] or {}
  table.insert(self.traces[key], 1, t)
end

-- A plan more for other sizes; of too many the one that came first goes.
local function keep_size(self, key, t)
  local sizes = self.sizes
  keep(self, key, t)
  sizes[#sizes + 1] = t
  if #sizes <= MAX_SIZES then return end
  local first = table.remove(sizes, 1)
  local list = self.traces[first.key]
  for i = #list, 1, -1 do
    if list[i] == first then table.remove(list, i) end
  end
  if #list == 0 then self.traces[first.key] = nil end
  drop_quick(self, first)
end

-- Which of the tensors, each with its .grad behind it, are one object, as a part of a key: the function may compare.
local function repeats(tensors)
  local first, text
  for i = 1, #tensors do
    local x = tensors[i]
    first = first or {}
    if first[x] then text = ("%s %d=%d"):format(text or "", i, first[x]) else first[x] = i end
  end
  return text or ""
end

-- A trace for these arguments made of one for other sizes, without the function; nil: there is none.
local function find_resized(self, key, same, tensors, ...)
  local roots = self.kinds[core.jit_key({}, kind_of, 2, ...) .. same]
  if not roots then return nil end
  for i = 1, #roots do
    local root = roots[i]
    if not core.jit_fixed(root.program) and usable(root) and not guards.changed(root.guards) then
      local t, why = trace.resize(self, root, tensors)
      if t then
        keep_size(self, key, t)
        return t
      end
      root.why = why
    end
  end
end

-- Where guards cost more than most functions that are worth a graph.
local MANY_FIELDS = 10000
local function tell_cost(self, t)
  if self.told or t.guards.fields <= MANY_FIELDS then return end
  rawset(self, "told", true)
  io.stderr:write(("perilune: %s can reach %d fields of tables, and each call compares all of them; keep what it does "
    .. "not use out of its reach, or pass what it uses as arguments\n"):format(self.name, t.guards.fields))
end

-- Settings of optimizers are asked, counters move; false: the trace does not fit their state.
local function ready(t)
  if not holds(t) then return false end
  optimizers.before(t)
  return true
end

-- Which argument tensor `at` of a call is; nil: there are others, in tables or .grads, that count, too.
local function position_of(args, tensors, at)
  local n, position = 0, nil
  for i = 1, args.n do
    if core.is_tensor(args[i]) then
      n = n + 1
      if n == at then position = i end
    end
  end
  return n == #tensors and position or nil
end

-- Calls like this one need no Lua from now on (bindings/jit/fast_call.c), where all that is asked is which tensors and
-- numbers come in, and what goes out is outputs, arguments and constants.
local function make_quick(self, t, args, tensors)
  local g = t.guards
  if self.opts.check or #t.deferred > 0 or #t.inner > 0 or not g.watch or #g.rest > 0 or t.quick == g.watch then
    return
  end
  t.quick = g.watch
  local results, constants = {}, {}
  for i = 1, t.nresults do
    local r = t.results[i]
    local at = type(r) == "table" and not r.views and rawget(r, MARK)
    if type(at) == "number" then
      results[i] = at
    elseif at == "argument" then
      local position = position_of(args, tensors, r.at)
      if not position then return end
      results[i] = -position
    elseif type(r) ~= "table" and not core.is_tensor(r) then
      results[i], constants[i] = 0, r
    else
      return
    end
  end
  local live = #t.live > 0
  local o = self.opts -- in less memory, with other sums, or gradients outside (other last bits), only the graph runs
  local written = not (live or o.mirror or o.by_node or o.unsafe_math or t.tracked > 0) and self.f or nil
  local q = core.jit_quick(t.program, g.watch, live and ready or nil, live and undo or nil, t, constants, results,
    written, table.unpack(args, 1, args.n))
  if not q then return end
  local list = rawget(self, "_quick")
  if not list then
    list = {}
    rawset(self, "_quick", list)
  end
  drop_quick(self, t)
  t.quick_call = q
  table.insert(list, 1, q)
end

local function slow_call(self, ...)
  if self.eager or core.jit_as_written() then return self.f(...) end
  local args, tensors = table.pack(...), {}
  local key = core.jit_key(tensors, text_of, true, ...)
  local same = repeats(tensors)
  key = key .. same
  local t = find(self, key) or find_resized(self, key, same, tensors, ...)
  if t then
    rawset(self, "last", t)
    make_quick(self, t, args, tensors)
    return run_or_written(self, t, tensors, args)
  end
  local why = reason(self, key)
  if self.ntraces >= self.opts.max_traces then
    too_many(self, why)
    return self.f(...)
  end
  local err, seen, refused
  local began = core.clock and core.clock() or os.clock()
  do
    local unless <close> = setmetatable({}, optimizers.Unless)
    t, err, seen, refused = trace.trace(self, args, tensors, unless)
    if t then
      rawset(self, "trace_seconds", (core.clock and core.clock() or os.clock()) - began)
      rawset(self, "last", t)
      rawset(self, "ntraces", self.ntraces + 1)
      tell_cost(self, t)
      keep(self, key, t)
      local kind = core.jit_key({}, kind_of, 2, ...) .. same
      self.kinds[kind] = self.kinds[kind] or {}
      table.insert(self.kinds[kind], 1, t)
    end
    unless.t = nil
  end
  if not t then
    if not self.opts.fallback or not refused then error(err, 0) end
    guards.restore(seen)
    return eager(self, ...)
  end
  return run_or_written(self, t, tensors, args)
end

Jit.__call = core.jit_callable(slow_call)

-- ---- the object --------------------------------------------------------------------------------------

require "perilune.jit.look"(Jit)

--- Forgets all traces.
function Jit:reset()
  rawset(self, "traces", {})
  rawset(self, "kinds", {})
  rawset(self, "sizes", {})
  rawset(self, "ntraces", 0)
  rawset(self, "last", false)
  rawset(self, "_quick", nil)
  rawset(self, "eager", false)
end

-- A jitted module has the module's fields and methods.
function Jit.__index(self, key)
  local own = rawget(Jit, key)
  if own ~= nil then return own end
  local module = rawget(self, "module")
  local value = module and module[key]
  if type(value) ~= "function" then return value end
  return function(first, ...)
    if rawequal(first, self) then return value(module, ...) end
    return value(first, ...)
  end
end
function Jit.__newindex(self, key, value)
  local module = rawget(self, "module")
  if module then module[key] = value else rawset(self, key, value) end
end
function Jit.__tostring(self)
  return ("jit(%s): %d traces, %d runs%s"):format(self.name, self.ntraces, self.runs, self.eager and ", eager" or "")
end
Jit.__jit = "opaque"

--- T.compile(f, options) → what is called like f
-- The same as T.jit.
--   local f = T.compile(function(x, y) return (x * y + x):tanh() end)
--   print(f(T.zeros(2), T.ones(2)))  --> {0., 0.}  -- f32[2] cpu

--- T.jit(f, {check=, fallback=, max_traces=, name=, mirror=, budget=, …}) → what is called like f
-- f, a function or a module, becomes a graph at its first call: planned memory, fused pointwise ops, no Lua between.
-- Whole training steps work. Other sizes (a last batch, a cache that grows) are planned anew without running f, unless
-- f looked at a size that changed: then, and when what is around it changes, f is traced again. What cannot be known
-- while tracing is an error, or with fallback=true runs eagerly. check=true compares every call with the script.
-- mirror="auto" | "mincut" | "mirror" computes cheap tensors again in backward, in less memory; mirror=function(node),
-- pin= and force={names} choose by node, heavy=true, seeded=true, budget={bytes=} or {fraction=} as in g:gradient.
-- unsafe_math=true allows what holds for real numbers only, so sums are rounded otherwise. j:source() j:graph()
-- j:plan(), j:explain(): ops, bytes and seconds per line of the script; j:reset(). Inside of T.vmap, T.vjp and their
-- like f runs as it is written.
--   local f = T.jit(function(x, y) return (x * y + x):tanh() end)
--   print(f(T.zeros(2), T.ones(2)))  --> {0., 0.}  -- f32[2] cpu
local function jit(f, opts)
  opts = options.check("jit", opts,
    { "check", "fallback", "max_traces", "name", "mirror", "budget", "seeded", "heavy", "pin", "force",
      "unsafe_math" })
  local by_node = type(opts.mirror) == "function" or opts.pin ~= nil or opts.force ~= nil
  local some = opts.mirror or opts.budget or opts.heavy or opts.seeded
  local mirror = some and not by_node and graphs.mirror_options("jit", opts) or nil
  local callable = type(f) == "function"
  local meta = getmetatable(f)
  local module = type(f) == "table" and type(meta) == "table" and meta.__call and f or nil
  if not callable and not module then fail("jit: a function or a module expected, got %s", describe(f)) end
  local name = opts.name and options.kind("jit", "name", "string", opts.name)
  if not name then
    local info = callable and debug.getinfo(f, "S")
    name = info and ("function at %s:%d"):format(info.short_src, info.linedefined) or "module"
  end
  local max = opts.max_traces == nil and MAX_TRACES or options.integer(opts.max_traces)
  if not max or max < 1 then
    fail("jit: max_traces must be a whole number of at least 1, got %s", describe(opts.max_traces))
  end
  return setmetatable({
    f = callable and f or function(...) return module(...) end, root = f,
    module = module, name = name, traces = {}, kinds = {}, sizes = {}, ntraces = 0,
    runs = 0, eager = false, last = false, told = false,
    opts = { mirror = mirror, by_node = by_node and opts or nil, check = opts.check, fallback = opts.fallback,
      max_traces = max, unsafe_math = opts.unsafe_math },
  }, Jit)
end

return { jit = jit, untraced = untraced, live = optimizers.live, move = optimizers.move,
  behind = optimizers.behind, defer = optimizers.defer,
  act = optimizers.act, reads_settings = optimizers.reads_settings,
  settle = optimizers.settle, tracing = core.jit_tracing }
