-- SPDX-License-Identifier: MIT
--- T.jit: a Lua function becomes a graph at its first call, and the graph runs from then on.
--
-- The first call with arguments of some shapes runs the function once with symbolic tensors; every op, backward and the
-- optimizer's update included, becomes a node. Later calls run the graph while everything that the function could have
-- seen is as it was (guards.lua); otherwise it is traced again. What cannot be known while tracing is an error that
-- says so, never a frozen value.
-- @module perilune.jit
local T = require "perilune"
local options = require "perilune.options"
local guards = require "perilune.jit.guards"
local graphs = require "perilune.graph"

local core, fail, describe = T.core, options.fail, options.describe
local is_tensor = core.is_tensor

local MAX_TRACES = 8

local Jit = { __name = "jit" }

-- ---- values in and out -------------------------------------------------------------------------------

local function is_plain(v) return type(v) == "table" and getmetatable(v) == nil end

-- The call's arguments as a text that says what a trace depends on; tensors are appended to `list`.
local function key_of(v, list, parts, depth)
  local kind = type(v)
  if is_tensor(v) then
    list[#list + 1] = v
    local grad = v.requires_grad and (v.is_leaf and "g" or "h") or "" -- a leaf, or with a history
    parts[#parts + 1] = ("%s[%s]%s"):format(v:dtype(), table.concat(v:shape(), ","), grad)
  elseif kind == "number" then
    parts[#parts + 1] = ("%s:%s"):format(math.type(v), string.format(math.type(v) == "float" and "%a" or "%d", v))
  elseif kind == "string" then
    parts[#parts + 1] = ("%q"):format(v)
  elseif is_plain(v) and depth < 16 then
    local keys = {}
    for k in next, v do keys[#keys + 1] = k end
    table.sort(keys, function(a, b)
      if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
      return tostring(a) < tostring(b)
    end)
    parts[#parts + 1] = "{"
    for _, k in ipairs(keys) do
      parts[#parts + 1] = (type(k) == "string" and "%q=" or "%s="):format(type(k) == "string" and k or tostring(k))
      key_of(v[k], list, parts, depth + 1)
    end
    parts[#parts + 1] = "}"
  else
    parts[#parts + 1] = tostring(v) -- booleans and nil by value; objects by identity, their fields are guarded
  end
end

-- The same structure with f(tensor) in place of tensors.
local function map(v, f, depth)
  if is_tensor(v) then return f(v) end
  if not is_plain(v) or depth > 16 then return v end
  local out = {}
  local keys = {}
  for k in next, v do keys[#keys + 1] = k end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return tostring(a) < tostring(b)
  end)
  for _, k in ipairs(keys) do out[k] = map(v[k], f, depth + 1) end
  return out
end

-- ---- tracing -----------------------------------------------------------------------------------------

local current -- the trace that is being made: live attributes are noted here

--- For parts of perilune that act while a trace runs: f runs on real tensors.
local function untraced(f, ...)
  local token = core.jit_pause()
  local res = table.pack(pcall(f, ...))
  core.jit_resume(token)
  if not res[1] then error(res[2], 0) end
  return table.unpack(res, 2, res.n)
end

--- The newest node's attributes are options() from now on, asked before each run; move(±1) moves the counters that
-- options reads. holds() → may the node still be used?
local function live(options_of, move, holds)
  current.live[#current.live + 1] = { node = core.jit_node(), options = options_of, move = move, holds = holds }
end

--- An optimizer that computes with Lua numbers: its update of `group` runs after the graph, with the gradients that the
-- group's parameters have now. Nothing in the graph may read the parameters afterwards.
local function defer(optimizer, group)
  local d = { optimizer = optimizer, group = group, node = core.jit_node(), grads = {} }
  for i, p in ipairs(group.params) do
    local g = p.grad
    if g and core.is_symbolic(g) then d.grads[i] = g end
  end
  current.deferred[#current.deferred + 1] = d
end

-- Which outputs the deferred updates need, besides the gradients that stay in the leaves.
local function place_deferred(self, t, out)
  for _, d in ipairs(t.deferred) do
    d.at = {}
    for i, p in ipairs(d.group.params) do
      if core.jit_reads_after(t.flow, d.node, p) then
        fail("%s: a parameter is used after %s:step(); this optimizer updates after the graph has run. Make the step "
          .. "the last thing that the traced function does, or use SGD, Adam, AdamW or RMSprop", self.name,
          d.optimizer.name)
      end
      local g = d.grads[i]
      if g and not rawequal(p.grad, g) then
        out[#out + 1] = g
        d.at[i] = #out
      end
    end
    d.grads = nil
  end
end

local function run_deferred(t, list)
  for _, d in ipairs(t.deferred) do
    local kept = {}
    for i, at in next, d.at do
      local p = d.group.params[i]
      kept[i] = p.grad or false
      p.grad = list[at]
    end
    d.optimizer:update(d.group)
    for i, g in next, kept do d.group.params[i].grad = g or nil end
  end
end

local function wrong_write(self, name, old, new)
  fail("%s: the traced function changes %s (from %s to %s); a graph does not repeat that. Return the value and assign "
    .. "it outside, or keep it in a tensor and write that in place", self.name, name, describe(old), describe(new))
end

-- The traced function got copies of the plain tables among its arguments: what it writes there is an error, too.
local function written_argument(copy, given, real, path, depth)
  if not is_plain(given) or depth > 16 then
    local v = real[copy]
    if not rawequal(v == nil and copy or v, given) then return path, given, copy end
    return nil
  end
  if not is_plain(copy) then return path, given, copy end
  for k, v in next, given do
    local name, old, new = written_argument(copy[k], v, real, ("%s[%s]"):format(path, tostring(k)), depth + 1)
    if name then return name, old, new end
  end
  for k, v in next, copy do
    if given[k] == nil then return ("%s[%s]"):format(path, tostring(k)), nil, v end
  end
end

local function written_arguments(symbolic, args, real)
  for i = 1, args.n do
    if is_plain(args[i]) then
      local name, old, new = written_argument(symbolic[i], args[i], real, "argument " .. i, 0)
      if name then return name, old, new end
    end
  end
end

-- A graph would repeat one draw of Lua's generator for ever.
local function no_lua_random()
  local random = math.random
  rawset(math, "random", function()
    fail("math.random in a traced function: a graph would repeat this one number; draw with T.rand or T.randint, or "
      .. "pass the number as an argument")
  end)
  return function() rawset(math, "random", random) end
end

-- Which results are outputs of the graph: those with gradients first, how many; what is returned twice is one; an
-- argument is itself.
local function results_of(t, results, inputs)
  local out, rest, marks, argument = {}, {}, {}, {}
  for i, x in ipairs(inputs) do argument[x] = i end
  local tree = map(results, function(x)
    if not core.is_symbolic(x) then return x end
    if argument[x] and (x.is_leaf or not x.requires_grad) then return { [Jit] = "argument", at = argument[x] } end
    if marks[x] then return marks[x] end
    local list = t.grad and x.requires_grad and not core.jit_spent(x) and out or rest
    list[#list + 1] = x
    marks[x] = { [Jit] = #list }
    return marks[x]
  end, 0)
  local tracked = #out
  for _, x in ipairs(rest) do
    out[#out + 1] = x
    marks[x][Jit] = #out
  end
  return tree, out, tracked
end

local function trace(self, args, tensors)
  local flow = core.graph_new()
  local t = { flow = flow, live = {}, deferred = {}, grad = core.grad_enabled() }
  local n = 0
  local inputs, wanting, real = {}, {}, {}
  local symbolic = map(args, function(x)
    n = n + 1
    local s = core.graph_input(flow, "x" .. n, x:shape(), x:dtype(), false)
    if x.requires_grad then
      s:requires_grad_()
      wanting[#wanting + 1] = n
    end
    inputs[n], real[s] = s, x
    return s
  end, 0)
  assert(n == #tensors)
  local seen = guards.take(self.root, args, args.n)
  core.jit_enter(flow, self.opts.mirror)
  local outer = current
  current = t
  local restore = no_lua_random()
  local res = table.pack(xpcall(self.f, function(e)
    if type(e) == "string" then return { e = e, trace = debug.traceback(e, 2) } end
    return { e = e }
  end, table.unpack(symbolic, 1, args.n)))
  current = outer
  restore()
  if not res[1] then
    core.jit_abort(flow)
    return nil, res[2].e
  end
  local name, old, new = guards.changed(seen)
  if not name then name, old, new = written_arguments(symbolic, args, real) end
  if name then
    core.jit_abort(flow)
    wrong_write(self, name, old, new)
  end
  local out, tracked
  t.results, out, tracked = results_of(t, table.pack(table.unpack(res, 2, res.n)), inputs)
  t.nresults = res.n - 1
  local placed, why = pcall(place_deferred, self, t, out)
  if not placed then
    core.jit_abort(flow)
    return nil, why
  end
  t.inner = {} -- gradients that a backward inside gave to arguments
  for i = 1, n do
    local g = inputs[i].grad
    if g and core.is_symbolic(g) then
      out[#out + 1] = g
      t.inner[#t.inner + 1] = { input = i, output = #out }
      inputs[i].grad = nil
    end
  end
  t.program = core.jit_finish(flow, out)
  if tracked > 0 then
    local made, msg = pcall(core.jit_joint, t.program, wanting, self.name, tracked)
    if not made then return nil, msg end
  else
    core.jit_compile(t.program)
  end
  t.guards = guards.take(self.root, args, args.n) -- after it ran: what it made lazily is there now
  return t
end

-- ---- calls -------------------------------------------------------------------------------------------

local function put(results, list, tensors)
  local function fill(v, depth)
    if type(v) ~= "table" then return v end
    local i = rawget(v, Jit)
    if i then return i == "argument" and tensors[v.at] or list[i] end
    if getmetatable(v) ~= nil or depth > 16 then return v end
    local out = {}
    for k, x in next, v do out[k] = fill(x, depth + 1) end
    return out
  end
  return fill(results, 0)
end

local function run(self, t, tensors, args)
  if args and not core.jit_apart(t.program, tensors) then
    for _, l in ipairs(t.live) do
      if l.fresh then l.move(-1) end -- the script moves it again
      l.fresh = nil
    end
    return self.f(table.unpack(args, 1, args.n))
  end
  for i = 1, #t.live do
    local l = t.live[i]
    if not l.fresh then -- in the call that traced, the script itself has moved counters and given attributes
      l.move(1)
      core.jit_attrs(t.program, l.node, l.options())
    end
    l.fresh = nil
  end
  rawset(self, "runs", self.runs + 1)
  local list = core.jit_run(t.program, tensors)
  for _, g in ipairs(t.inner) do
    local x = tensors[g.input]
    if x.is_leaf then
      x.grad = x.grad and untraced(function() return x.grad + list[g.output] end) or list[g.output]
    else -- the walk goes on into the argument's own history
      x:backward(list[g.output])
    end
  end
  if #t.deferred > 0 then run_deferred(t, list) end
  if t.nresults == 1 then
    local first = t.results[1]
    if type(first) == "table" and list[rawget(first, Jit)] then return list[first[Jit]] end
  end
  return table.unpack(put(t.results, list, tensors), 1, t.nresults)
end

local function usable(t)
  for i = 1, #t.live do
    if not t.live[i].holds() then return false end
  end
  return core.jit_same(t.program)
end

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
  return self.f(...)
end

local function too_many(self, why)
  io.stderr:write(("perilune: %s was traced %d times and runs eagerly from now on; last, %s. Pass what changes as a "
    .. "tensor, or raise max_traces\n"):format(self.name, self.ntraces, why or "its arguments changed"))
  rawset(self, "eager", true)
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

local reads_values = "has no values"

function Jit.__call(self, ...)
  if self.eager or core.jit_tracing() then return self.f(...) end
  local args, tensors, parts = table.pack(...), {}, {}
  for i = 1, args.n do key_of(args[i], tensors, parts, 0) end
  parts[#parts + 1] = core.grad_enabled() and "grad" or "no grad"
  parts[#parts + 1] = T.get_autocast_dtype()
  parts[#parts + 1] = T.get_default_dtype()
  local key = table.concat(parts, " ")
  local t = find(self, key)
  if t then
    rawset(self, "last", t)
    if self.opts.check then return require("perilune.jit.check")(self, t, tensors, run, ...) end
    return run(self, t, tensors, args)
  end
  local why = reason(self, key)
  if self.ntraces >= self.opts.max_traces then
    too_many(self, why)
    return self.f(...)
  end
  local err
  local began = core.clock and core.clock() or os.clock()
  t, err = trace(self, args, tensors)
  if not t then
    if self.opts.fallback and type(err) == "string" and err:find(reads_values, 1, true) then return eager(self, ...) end
    error(err, 0)
  end
  rawset(self, "trace_seconds", (core.clock and core.clock() or os.clock()) - began)
  t.key = key
  rawset(self, "last", t)
  rawset(self, "ntraces", self.ntraces + 1)
  self.traces[key] = self.traces[key] or {}
  table.insert(self.traces[key], 1, t)
  for i = 1, #t.live do t.live[i].fresh = true end -- this call's counters moved while tracing
  if self.opts.check then return require("perilune.jit.check")(self, t, tensors, run, ...) end
  return run(self, t, tensors, args)
end

-- ---- looking -----------------------------------------------------------------------------------------

local function last(self, who)
  if not self.last then fail("jit: %s: the function was not traced yet; call it first", who) end
  return self.last
end

--- The newest trace as a graph (T.graph's object: print it, ask for its nodes).
function Jit:graph() return graphs.wrap(last(self, "graph").flow) end

--- The text of the newest trace.
function Jit:source() return core.graph_text(last(self, "source").flow) end

--- The memory plan of the newest trace.
function Jit:plan() return self:graph():plan() end

--- Per line of the script: ops, bytes made, floating point operations → list, printable.
function Jit:explain()
  local t = last(self, "explain")
  local rows, by_line = {}, {}
  for _, e in ipairs(core.jit_lines(t.program)) do
    local row = by_line[e.line]
    if not row then
      row = { line = e.line, ops = 0, bytes = 0, flops = 0, names = {} }
      by_line[e.line], rows[#rows + 1] = row, row
    end
    row.ops, row.bytes, row.flops = row.ops + 1, row.bytes + e.bytes, row.flops + e.flops
    row.names[e.op] = (row.names[e.op] or 0) + 1
  end
  return setmetatable(rows, { __tostring = function(list)
    local out = { ("%-32s %6s %12s %14s"):format("line", "ops", "bytes", "flops") }
    for _, r in ipairs(list) do
      out[#out + 1] = ("%-32s %6d %12d %14.0f"):format(r.line:sub(-32), r.ops, r.bytes, r.flops)
    end
    return table.concat(out, "\n")
  end })
end

--- Forgets all traces.
function Jit:reset()
  rawset(self, "traces", {})
  rawset(self, "ntraces", 0)
  rawset(self, "last", nil)
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

--- T.jit(f, {check=, fallback=, max_traces=, name=}) → what is called like f. f: a function or a module.
local function jit(f, opts)
  opts = options.check("jit", opts,
    { "check", "fallback", "max_traces", "name", "mirror", "budget", "seeded", "heavy" })
  if type(opts.mirror) == "function" then
    fail("jit: mirror must be \"none\", \"mirror\", \"mincut\" or \"auto\"; a function of a node is for graph:gradient")
  end
  local mirror = (opts.mirror or opts.budget) and graphs.mirror_options("jit", opts) or nil
  local callable = type(f) == "function"
  local meta = getmetatable(f)
  local module = type(f) == "table" and type(meta) == "table" and meta.__call and f or nil
  if not callable and not module then fail("jit: a function or a module expected, got %s", describe(f)) end
  local name = opts.name
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
    module = module, name = name, traces = {}, ntraces = 0, runs = 0,
    opts = { mirror = mirror, check = opts.check, fallback = opts.fallback, max_traces = max },
  }, Jit)
end

return { jit = jit, untraced = untraced, live = live, defer = defer, tracing = core.jit_tracing }
