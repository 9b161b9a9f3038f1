-- SPDX-License-Identifier: MIT
--- What traced functions do beside their graph: optimizers, schedules, scalers. Optimizers with a fused kernel are
-- nodes whose settings are asked before each run; the others compute with Lua numbers and update behind the graph.
-- Schedules and scalers act in their turn: between the settings that are asked before and after them, or behind the
-- graph, if they need a tensor's value or their optimizer updates there.
-- @module perilune.jit.optimizers
local T = require "perilune"
local loaded = require "perilune.loaded"
local options = require "perilune.options"

local core = T.core

local optimizers = {}

-- The trace that is being made notes live attributes and deferred updates: {live=, deferred=}.
local current

--- trace is the one that notes → the one before, for the next call.
function optimizers.enter(trace)
  local outer = current
  current = trace
  return outer
end

-- What Lua does at each run beside the graph, by name: who saves the graph alone would lose it.
local function beside(name)
  local list = current.beside or {}
  current.beside = list
  for _, known in ipairs(list) do
    if known == name then return end
  end
  list[#list + 1] = name
end

--- Something that the script makes once, at its first call: f runs on real tensors. What the trace has seen so far is
-- stale; it is made again.
function optimizers.settle(f, ...)
  current.stale = true
  return require("perilune.jit").untraced(f, ...)
end

--- The script has looked at settings of optimizers in ways that its code does not tell: the trace is made again, as
-- what they were before it counts, too.
function optimizers.reads_settings()
  if not current.reads_settings then current.reads_settings, current.stale = true, true end
end

--- The attributes of the newest node that writes are options() from now on, asked before each run; move(±1) moves the
-- counters that options reads, keep() notes what they are, for move(-1) to go back to. holds() → may the node still be
-- used? saved: of files: {of=, at=}: nodes that are alike in both are steps of one optimizer over the same parameters;
-- load(attrs): the counters are those of a node with these attributes; fixed: how many of its numbers are settings;
-- own_step: options() tells the node's own step, not the optimizer's last.
function optimizers.live(options_of, move, holds, keep, saved)
  current.live[#current.live + 1] = { node = core.jit_node(true), options = options_of, move = move, holds = holds,
    keep = keep, fresh = true, saved = saved }
end

--- What an optimizer moves at each step, also where none of its parameters is stepped: move(±1), keep() and holds(), as
-- above. group: the one that has no node in this step.
function optimizers.move(move, keep, holds, group)
  holds = holds or function() return true end
  current.live[#current.live + 1] = { move = move, holds = holds, keep = keep, fresh = true, group = group }
end

-- What a schedule or scaler may change: its own fields and those of its parts, and its optimizer's settings
-- → a function that puts all back.
local function remember(object)
  if object._settle then object:_settle() end
  local saved, whole = {}, {}
  local function visit(t, depth)
    if saved[t] or depth > 6 then return end
    local copy = {}
    saved[t], whole[t] = copy, true
    for k, v in next, t do
      copy[k] = v
      if type(v) == "table" and k ~= "optimizer" then visit(v, depth + 1) end
    end
  end
  visit(object, 0)
  local held = {} -- of a scaler: tensors that the graph reads
  local function untraced(f) require("perilune.jit").untraced(T.no_grad, f) end
  if object._held then
    untraced(function()
      for _, x in next, object._held do held[x] = x:clone() end
    end)
  end
  for _, group in ipairs(object.optimizer and object.optimizer.param_groups or {}) do
    local copy = {}
    for k, v in next, group do
      if k ~= "params" and not k:find("^_") then
        copy[k] = v
        if type(v) == "table" then visit(v, 0) end
      end
    end
    saved[group] = copy
  end
  return function()
    for t, copy in next, saved do
      for k in next, whole[t] and t or {} do
        if copy[k] == nil then t[k] = nil end
      end
      for k, v in next, copy do t[k] = v end
    end
    if next(held) then
      untraced(function()
        for x, was in next, held do x:copy_(was) end
      end)
    end
  end
end

--- A schedule or scaler acts: step(object, …) now and at each run. Symbolic tensors among the arguments are real ones
-- then.
function optimizers.act(object, step, ...)
  local args, given, late = table.pack(...), {}, false
  beside((getmetatable(object) or {}).__name or "a schedule")
  for i = 1, args.n do
    if core.is_tensor(args[i]) and core.is_symbolic(args[i]) then given[i], late = args[i], true end
  end
  for _, d in ipairs(current.deferred) do
    late = late or d.optimizer ~= nil and rawequal(d.optimizer, object.optimizer)
  end
  if late then
    current.deferred[#current.deferred + 1] = { tensors = given, keep = function() return remember(object) end,
      act = function(values)
        for i, v in next, values do args[i] = v end
        step(object, table.unpack(args, 1, args.n))
        for i in next, values do args[i] = nil end
      end }
    return
  end
  local undo = remember(object)
  step(object, table.unpack(args, 1, args.n))
  current.live[#current.live + 1] = {
    keep = function() undo = remember(object) end,
    move = function(by) if by > 0 then step(object, table.unpack(args, 1, args.n)) else undo() end end,
    holds = function() return true end,
    fresh = true,
    acts = true,
  }
end

--- An optimizer that computes with Lua numbers: its update of `group` runs after the graph, with the gradients that the
-- group's parameters have now. Nothing in the graph may read the parameters afterwards. unless(value): told the value
-- of `tensor` then, says whether to leave the update out.
function optimizers.defer(optimizer, group, tensor, unless)
  beside("optim." .. optimizer.name)
  local d = { optimizer = optimizer, group = group, node = core.jit_node(), grads = {}, tensors = { tensor },
    unless = unless }
  T.no_grad(function()
    for i, p in ipairs(group.params) do
      local g = p.grad
      if g then d.grads[i] = { now = g:clone(), value = core.jit_value(current.ir, g) } end
    end
  end)
  current.deferred[#current.deferred + 1] = d
end

--- What an optimizer does behind each run of the graph, without a part in what it computes: f().
function optimizers.behind(f)
  current.deferred[#current.deferred + 1] = { tensors = {}, keep = function() return f end, act = f }
end

local function place_update(self, t, d, out)
  for i, p in ipairs(d.group.params) do
    if core.jit_reads_after(t.ir, d.node, p) then
      if d.unless then
        options.untraceable("%s: a parameter is used after GradScaler:step() of %s, which updates after the graph "
          .. "has run, since it may take no step at all. Make it and update() the last that the traced function does",
          self.name, d.optimizer.name)
      end
      options.untraceable("%s: a parameter is used after %s:step(); this optimizer updates after the graph has run. "
        .. "Make the step the last thing that the traced function does, or use another optimizer, such as AdamW",
        self.name, d.optimizer.name)
    end
    local g, last = d.grads[i], p.grad
    if g and not (last and core.jit_value(t.ir, last) == g.value) then -- it was cleared or written afterwards
      out[#out + 1] = g.now
      d.at[i] = #out
    end
  end
  d.grads = nil
end

--- Which outputs the deferred updates need, besides the gradients that stay in the leaves.
function optimizers.place(self, t, out)
  for _, d in ipairs(t.deferred) do
    d.at, d.values_at = {}, {}
    if d.group then place_update(self, t, d, out) end
    for i, tensor in next, d.tensors do
      out[#out + 1] = tensor
      d.values_at[i] = #out
    end
    d.tensors = nil
  end
end

-- Gradients that the script has given way to those of the step, and come back whatever becomes of it.
local Lent = { __close = function(kept)
  for p, g in next, kept do
    if g then core.adopt_grad(p, g) else p.grad = nil end
  end
end }

-- One step of an optimizer: the groups of `steps`, with the gradients of the graph's outputs in list.
local function update(steps, list)
  local groups, kept <close> = {}, setmetatable({}, Lent)
  for k, d in ipairs(steps) do
    groups[k] = d.group
    for i, at in next, d.at do
      local p = d.group.params[i]
      kept[p] = p.grad or false
      core.adopt_grad(p, list[at])
    end
  end
  steps[1].optimizer:_update(groups)
end

-- The deferred updates from number k on that are of one step of their optimizer → them, the number behind them.
local function step_from(t, k)
  local first, steps, seen = t.deferred[k], {}, {}
  while true do
    local d = t.deferred[k]
    if not d or d.act or d.optimizer ~= first.optimizer or seen[d.group] then return steps, k end
    steps[#steps + 1], seen[d.group], k = d, true, k + 1
  end
end

--- The deferred updates; list holds the graph's outputs.
function optimizers.run(t, list)
  local _ <close> = core.hold_interrupts() -- groups of an optimizer move together
  local k = 1
  while k <= #t.deferred do
    local d, values = t.deferred[k], {}
    for i, at in next, d.values_at do values[i] = list[at] end
    if d.act then
      d.act(values)
      k = k + 1
    else
      local steps, behind = step_from(t, k)
      if not d.unless or not d.unless(values[1]) then update(steps, list) end
      k = behind
    end
  end
end

-- Who steps in a trace: optimizers whose steps are nodes, and those that update behind the graph.
local function who_steps(t)
  local nodes, behind, seen, base = {}, {}, {}, loaded["perilune.optim.optimizer"]
  for _, d in ipairs(t.deferred) do
    local o = d.optimizer
    if o and not seen[o] then behind[#behind + 1], seen[o] = o, true end
  end
  for _, l in ipairs(t.live) do
    local o = l.saved and base.owners[l.saved.of]
    if o and not seen[o] then nodes[#nodes + 1], seen[o] = o, true end
  end
  t.steppers = { nodes = nodes, behind = behind }
  return t.steppers
end

-- Settings of all groups of whom the run steps, before anything moves.
local function check_groups(t)
  local who = t.steppers or who_steps(t)
  local nodes, behind = who.nodes, who.behind
  for i = 1, #nodes do nodes[i]:_check() end
  for i = 1, #behind do behind[i]:_begin() end
end

--- First states that were made for steps which never came, of a run that failed, go.
function optimizers.forget(t)
  local who = t.steppers or who_steps(t)
  for _, list in next, who do
    for _, o in ipairs(list) do o:_forget_made() end
  end
end

local function move_all(t, moved)
  check_groups(t)
  for i = 1, #t.live do
    local l = t.live[i]
    if not l.fresh then
      if l.keep then l.keep() end
      l.move(1)
      moved[i] = true
      if l.node then core.jit_attrs(t.program, l.node, l.options()) end
    else
      l.fresh, moved[i] = nil, true
    end
  end
end

--- Before each run: counters move, settings are asked, schedules step. In the call that traced, the script did it. All
-- of them, or, where a setting is refused, none.
function optimizers.before(t)
  if #t.live == 0 and #t.deferred == 0 then return end
  local moved = {}
  local ok, err = pcall(move_all, t, moved)
  if ok then return end
  for i = #t.live, 1, -1 do
    local l = t.live[i]
    if moved[i] or l.fresh then l.move(-1) end
    l.fresh = nil
  end
  optimizers.forget(t)
  error(err, 0)
end

--- What was moved while tracing (fresh) is taken back if the call ends before its run: by Ctrl-C, say. For a
-- variable to be closed; `t` is the trace, once there is one.
optimizers.Unless = {
  __close = function(self)
    if not self.t then return end
    optimizers.undo(self.t)
    optimizers.forget(self.t)
  end,
}

-- Behind the node that is entry `at` of t.live: groups of the same step that have no node. A step goes through its
-- optimizer's groups in their order. Behind those schedules and scalers, of this optimizer or of one that stepped
-- before: no node tells when they moved, so they do with the step in front of them → the last entry of the step.
local function step_to(t, at)
  local group = t.live[at].saved and t.live[at].saved.of
  local owners = group and loaded["perilune.optim.optimizer"].owners
  local owner = group and owners[group]
  while group do
    local g = t.live[at + 1] and t.live[at + 1].group
    if not g or owners[g] ~= owner or g._at <= group._at then break end
    group, at = g, at + 1
  end
  while t.live[at + 1] and t.live[at + 1].acts do at = at + 1 end
  return at
end

--- Takes back what the script did while it was traced, as it will do it again. all: also what `before` did, as the
-- trace or the run failed: of a run that had made steps by then, what is behind the last of them. ran(node): had that
-- node run? Without it the program of the trace is asked.
function optimizers.undo(t, all, ran)
  local made = 0
  for i = all and #t.live or 0, 1, -1 do
    local node = t.live[i].node
    if node and (ran and ran(node) or not ran and t.program and core.jit_ran(t.program, node)) then
      made = step_to(t, i)
      break
    end
  end
  for i = #t.live, 1, -1 do
    local l = t.live[i]
    if i > made and (l.fresh or all) then l.move(-1) end
    l.fresh = nil
  end
end

-- A node that steps what its optimizer no longer has, or would step otherwise, is of no use.
local function check_live(who, t)
  for _, l in ipairs(t.live) do
    if not l.holds() then
      options.fail("%s: since the graph was made its optimizer changed (a state was loaded, a setting switched on or "
        .. "off, a parameter left out of a step); call the function again and take its graph", who)
    end
  end
end

--- g:run of a jitted function's own graph is a call of it: what counts in Lua moves along.
function optimizers.run_graph(g, plan, inputs)
  if g.beside then
    options.fail("run: %s %s beside the graph, which alone would lack that; call the function",
      table.concat(g.beside, ", "), #g.beside == 1 and "steps" or "step")
  end
  local t = g.traced
  check_live("run", t)
  optimizers.before(t)
  local _ <close> = setmetatable({}, { __close = function(_, failed)
    if failed then optimizers.undo(t, true, function(node) return core.graph_ran(plan, t.ir, node) end) end
  end })
  local list = core.graph_run(plan, inputs)
  for _, d in ipairs(t.deferred) do d.act {} end -- what is not beside the graph
  return list
end

-- How many steps of the same optimizer over the same parameters the function makes.
local function steps_of(t, nodes, l)
  local n, own = 0, nodes[l.node]
  for _, other in ipairs(t.live) do
    local s, node = other.saved, nodes[other.node or 0]
    local same = s and rawequal(s.of, l.saved.of) and s.at == l.saved.at
    if same and node.op == own.op and node.attrs.rule == own.attrs.rule then n = n + 1 end
  end
  return n
end

--- What is saved are the numbers of the graph's last run, with weights and states as they are: of one moment? Settings
-- are those that the next step would have.
function optimizers.settle_saved(g)
  local t, nodes = g.traced, nil
  check_live("save_graph", t)
  for _, l in ipairs(t.live) do
    if l.node then
      nodes = nodes or g:nodes()
      local has, now = nodes[l.node].attrs, l.options()
      local behind, before = core.graph_steps_beside(g.ir, l.node)
      if l.saved and has.k ~= 2 and behind + before + 1 ~= steps_of(t, nodes, l) then
        options.fail("save_graph: two optimizers of one kind step the same parameters in this function, and a file "
          .. "could not tell them apart")
      end
      if l.saved and l.saved.own_step then behind = 0 end -- else options() has the optimizer's newest
      if now.step and has.step ~= now.step - behind and has.k ~= 2 then -- without states all steps are alike
        options.fail("save_graph: the graph was run last in step %s of its optimizer, which has made %s; call the "
          .. "function once more, and save then", tostring(has.step + behind), tostring(now.step))
      end
      now.step = has.step
      if l.keep then now.numbers = has.numbers end -- what is carried behind them is of the last step
      core.jit_attrs(t.program, l.node, now)
    end
  end
end

return optimizers
