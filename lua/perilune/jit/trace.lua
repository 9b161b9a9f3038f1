-- SPDX-License-Identifier: MIT
--- One trace of a function for T.jit: runs it once with symbolic tensors and makes a program of what it did.
-- @module perilune.jit.trace
local T = require "perilune"
local options = require "perilune.options"
local graphs = require "perilune.graph"
local again = require "perilune.jit.again"
local guards = require "perilune.jit.guards"
local optimizers = require "perilune.jit.optimizers"
local values = require "perilune.jit.values"

local core, untraceable, describe = T.core, options.untraceable, options.describe
local map, MARK = values.map, values.MARK

local function wrong_write(self, name, old, new)
  untraceable("%s: the traced function changes %s (from %s to %s); a graph does not repeat that. Return the value "
    .. "and assign it outside, or keep it in a tensor and write that in place", self.name, name, describe(old),
    describe(new))
end

-- Results by the memory that they look at: views are taken again after each run, of an argument, of a captured tensor
-- or of an output, so that they share its memory as the script's do. What is returned twice is one; an argument is
-- itself.
-- → the results with marks in place of tensors, the graph's outputs (those with gradients first), how many have, and
-- the graph's values that the results are, one by one: what a saved graph gives.
local function results_of(t, results, inputs, shown)
  local marks, roots, order, argument, given = {}, {}, {}, {}, {}
  for i, x in ipairs(inputs) do argument[x] = i end
  for x, i in pairs(shown) do argument[x] = i end
  local tree = map(results, function(x)
    if not core.is_symbolic(x) then
      given.strange = true
      core.jit_give(t.ir, x)
      return x
    end
    given[#given + 1] = core.graph_value(x, true)
    if x.requires_grad and not argument[x] then
      if x.is_leaf then
        untraceable("the traced function returns a leaf that it has made, which would be none; make the leaf outside, "
          .. "or call requires_grad_() on the result")
      elseif not t.grad then
        untraceable("the traced function turns gradients on (T.enable_grad, T.set_grad_enabled) where they are off "
          .. "around it, and a result has one, which a graph would lose; call it outside of T.no_grad")
      end
    end
    if argument[x] and (x.is_leaf or not x.requires_grad) then return { [MARK] = "argument", at = argument[x] } end
    if marks[x] then return marks[x] end
    local kind, what, views, all = core.jit_root(t.ir, x)
    local mark
    if kind == "argument" then
      mark = { [MARK] = kind, at = what, views = views, recorded = x.requires_grad }
    elseif kind == "captured" then
      mark = { [MARK] = kind, tensor = what, views = views, recorded = x.requires_grad }
      t.holds_real = true
    else
      local number = core.graph_value(what)
      local root = roots[number]
      if not root then
        root = { tensor = what, marks = {} }
        roots[number], order[#order + 1] = root, root
      end
      if t.grad and x.requires_grad then
        root[core.jit_spent(t.ir, x) and "spent" or "tracked"] = true
      end
      mark = { views = views, recorded = x.requires_grad }
      root.marks[#root.marks + 1] = mark
      root.shown = all and x -- as pointwise results of transposed arguments are
    end
    marks[x] = mark
    return mark
  end, 0)
  for _, root in ipairs(order) do
    if #root.marks == 1 and root.shown then root.tensor, root.marks[1].views = root.shown, nil end
  end
  local out, ends = {}, {}
  for kind, want in ipairs { "tracked", "spent", "neither" } do
    for _, root in ipairs(order) do
      if (root.tracked and "tracked" or root.spent and "spent" or "neither") == want then
        out[#out + 1] = root.tensor
        for _, mark in ipairs(root.marks) do mark[MARK] = #out end
      end
    end
    ends[kind] = #out
  end
  return tree, out, ends[1], ends[2], given
end

-- Symbolic tensors in place of the arguments' tensors, and what is to be known of them. The .grad of one is an input
-- behind it: grads[k] is its number.
local function symbolic_arguments(ir, args)
  local a = { inputs = {}, wanting = {}, wants = {}, real = {}, grads = {}, shown = {} }
  local function input(x, name)
    local s = core.graph_input(ir, name, x:shape(), x:dtype(), false, x:device(), x)
    a.inputs[#a.inputs + 1], a.real[s] = s, x
    return s
  end
  local n, first, number = 0, {}, {} -- first[x]: its symbolic tensor, which is input number[that]
  a.symbolic = map(args, function(x)
    n = n + 1
    local s = input(x, "x" .. n)
    local g = x.requires_grad and x.is_leaf and x.grad
    if first[x] then -- one object for the script, so one here; its input is read by nobody
      if g then input(g, "x" .. n .. ".grad") end
      return first[x]
    end
    first[x], number[s] = s, #a.inputs
    local repeated = not x.requires_grad and core.jit_repeated(x)
    if repeated then -- inputs are dense: so that such a dim has no say in how results lie, here as outside
      local one = s
      for _, d in ipairs(repeated) do one = one:narrow(d, 1, 1) end
      s = one:expand(s:shape())
      a.real[s], a.shown[s], first[x] = x, #a.inputs, s
    end
    if x.requires_grad then
      local k = #a.inputs
      s:requires_grad_()
      a.wanting[#a.wanting + 1], a.wants[k] = k, true
      if g then -- an argument, too, perhaps
        local own = input(g, "x" .. n .. ".grad")
        number[own] = #a.inputs
        if not (first[g] and number[first[g]]) then first[g] = own end -- one that repeats elements is none
        s.grad = first[g]
        a.grads[k] = number[first[g]]
      end
    end
    return s
  end, 0)
  a.objects = values.objects(args) -- a key may name them, so they must not be others later
  return a
end

-- What the function did to the .grad of arguments: a new one, or none. → list of {input=, output=, nil: none}; the
-- numbers of arguments that were written with what a backward of the function went through, and of those that were
-- detached then.
local function inner_gradients(t, a, out)
  local list, spent, detached = {}, {}, {}
  for x, k in pairs(a.shown) do
    if x.requires_grad or x.grad then
      untraceable("the traced function changes whether argument tensor %d requires a gradient, or gives it one; do it "
        .. "outside, or pass a clone of what is expanded", k)
    end
  end
  for k, x in ipairs(a.inputs) do
    local g, had = x.grad, a.grads[k]
    if (x.requires_grad and x.is_leaf) ~= (a.wants[k] or false) then
      untraceable("the traced function changes whether argument tensor %d requires a gradient; call requires_grad_() "
        .. "outside", k)
    end
    if t.grad and x.requires_grad and not x.is_leaf then
      if not select(2, core.jit_spent(t.ir, x)) then
        untraceable("the traced function writes argument tensor %d in place with a value that has a gradient, which a "
          .. "graph would lose; use the out-of-place form, and return the result", k)
      end
      spent[#spent + 1] = k
    elseif core.jit_detached(x) then
      detached[#detached + 1] = k
    end
    local kind, at, views
    if had and g then kind, at, views = core.jit_root(t.ir, g) end
    if had and not g then
      list[#list + 1] = { input = k }
    elseif g and not (kind == "argument" and at == had and not views) then
      out[#out + 1] = g
      list[#list + 1] = { input = k, output = #out }
    end
  end
  return list, spent, detached
end

-- Recomputation by a predicate, or with nodes pinned or forced by name: known when all nodes are.
local function choose(self, ir)
  local given, o = self.opts.by_node, {}
  for k, v in pairs(given) do o[k] = v end
  if type(given.mirror) == "function" then
    o.mirror = function(node) return node.stage == 0 and given.mirror(node) end
  end
  core.jit_mirror(ir, graphs.mirror_options("jit", o, graphs.wrap(ir)))
end

-- Hooks of tensors that run inside are a part of what is traced: what they can see is guarded, what they change is an
-- error.
local running
core.jit_on_hook(function(hook)
  local hooks = running and running.hooks
  if not hooks or hooks[hook] then return end
  hooks[hook] = true
  hooks[#hooks + 1] = { hook, guards.take(hook, {}, 0) }
end)

local function settle_hooks(self, t, objects)
  for _, h in ipairs(t.hooks) do
    local name, old, new = guards.changed(h[2])
    if name then wrong_write(self, name, old, new) end
    objects[#objects + 1] = h[1]
  end
end

-- What holds for the script behind the function as well, and what it is called. A graph leaves it as it is.
local settings = { { "whether operations are recorded", core.grad_mode }, { "T.autocast", T.is_autocast_enabled },
  { "the default dtype", T.default_dtype }, { "the default device", core.device.default },
  { "the number of threads", T.get_num_threads }, { "T.anomaly", core.anomaly },
  { "T.memory_limit", function() return (core.memory_limit()) end },
  { "the precision of f32 products", core.matmul_precision } }
-- Of a GPU; as they are at first where none is in use yet.
for name, at_first in pairs { deterministic = true, cudnn = true, benchmark = false } do
  settings[#settings + 1] = { "T.cuda." .. name, function()
    if not core.device.is_open() then return at_first end
    return (core.device.setting(name))
  end }
end

local function settings_now()
  local now = {}
  for k, s in ipairs(settings) do now[k] = s[2]() end
  return now
end

local function same_settings(self, before)
  local now = settings_now()
  for k, s in ipairs(settings) do
    if now[k] ~= before[k] then
      untraceable("%s: the traced function changes %s (from %s to %s) for what comes after it; a graph does not "
        .. "repeat that. Do it outside, or in a scope that ends inside", self.name, s[1], describe(before[k]),
        describe(now[k]))
    end
  end
end

-- The traced function has returned: its results become outputs, and the trace is over.
local function finish(self, t, a, args, seen, results)
  local name, old, new = guards.changed(seen)
  if not name then name, old, new = values.written_arguments(a.symbolic, args, a.real) end
  if name then wrong_write(self, name, old, new) end
  same_settings(self, t.settings)
  settle_hooks(self, t, a.objects)
  local out, tracked, spent, given, written, detached
  t.results, out, tracked, spent, given = results_of(t, results, a.inputs, a.shown)
  t.nresults, t.arguments = results.n, #a.inputs
  local nroots = #out
  optimizers.place(self, t, out)
  t.inner, written, detached = inner_gradients(t, a, out)
  for i = nroots + 1, #out do given[#given + 1] = core.graph_value(out[i], true) end
  t.given = given
  t.program, t.wanting, t.tracked = core.jit_finish(t.ir, out), a.wanting, tracked
  core.jit_spend(t.program, self.name, tracked, spent, written, detached)
  for _, x in ipairs(a.inputs) do -- only now: in the trace it would be the function that did it
    if x.grad then x.grad = nil end
  end
end

-- Plans it. So many results, t.tracked, have gradients.
local function compile(self, t)
  if self.opts.by_node then choose(self, t.ir) end
  if t.tracked > 0 then
    core.jit_joint(t.program, t.wanting, self.name, t.tracked)
  else
    core.jit_compile(t.program)
  end
end

-- One attempt of trace, below. t.stale: what the function has said since makes it void; another is to be made.
local function attempt(self, args, tensors, unless)
  local ir = core.graph_new(self.opts.unsafe_math)
  local t = { ir = ir, live = {}, deferred = {}, again = {}, hooks = {}, grad = core.grad_mode(),
    reads_settings = self.reads_settings }
  if unless then unless.t = t end
  local a = symbolic_arguments(ir, args)
  assert(#a.inputs == #tensors)
  t.objects = a.objects
  local seen = guards.take(self.root, args, args.n, nil, self.reads_settings)
  core.part_of "" -- a name that is asked for first in the traced function is found without reading files there
  core.jit_enter(ir, self.opts.mirror, a.inputs)
  core.jit_refused(false)
  t.settings = settings_now()
  local outer, outside = optimizers.enter(t), again.enter(t)
  running = t
  local res = table.pack(core.interruptible(self.f, table.unpack(a.symbolic, 1, args.n)))
  running = nil
  optimizers.enter(outer)
  again.enter(outside)
  guards.put_back(seen)
  self.reads_settings = t.reads_settings
  local ok, err = res[1], res[2]
  if ok and t.stale then
    core.jit_abort(ir)
    optimizers.undo(t, true)
    return t
  end
  if ok then
    ok, err = pcall(finish, self, t, a, args, seen, table.pack(table.unpack(res, 2, res.n)))
    if ok then ok, err = core.interruptible(compile, self, t) end
  end
  if not ok then
    local refused = core.jit_refused()
    core.jit_abort(ir)
    optimizers.undo(t, true) -- nothing has run
    optimizers.forget(t)
    return nil, err, seen, refused
  end
  -- After it ran: what it made lazily is there now.
  t.guards = guards.take(self.root, a.objects, #a.objects, seen, t.reads_settings, t.reads_settings)
  return t
end

--- trace(jit, args, its tensors, { t = it once there is one }) → the trace, or nil, the error object, what the function
-- could see before, and whether it is one that a graph cannot stand for while the script itself can still run. Ctrl-C
-- stops the function and the planner, and waits for the rest: what a trace opens is closed.
local function trace(self, args, tensors, unless)
  local _ <close> = core.hold_interrupts()
  while true do
    local t, err, seen, refused = attempt(self, args, tensors, unless)
    if not (t and t.stale) then return t, err, seen, refused end
  end
end

--- The program of a trace and its graph for tensors of other sizes, not planned; or nil, why there is none.
local function replayed(t, tensors)
  return core.jit_replay(t.program, tensors, again.repeater(t.again), t.holds_real)
end

--- resize(jit, a trace, tensors of other sizes) → the trace that there would be for them, planned; or nil, why that is
-- another one or cannot be known. The function is not run (docs/design/symbolic-sizes.md).
local function resize(self, t, tensors)
  local program, ir = replayed(t, tensors)
  if not program then return nil, ir end
  local other = {}
  for k, v in next, t do other[k] = v end
  other.program, other.ir, other.quick, other.quick_call = program, ir, nil, nil
  compile(self, other)
  return other
end

return { trace = trace, resize = resize, again = replayed }
