-- SPDX-License-Identifier: MIT
-- T.graph: whole programs as data. Tensors of a graph are ordinary tensors without values: every op and method works
-- on them and adds a node. See docs/design/graph.md.
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"

local core, fail, describe = T.core, options.fail, options.describe

local Graph = classes.new("Graph", "g")

local function check(who, g)
  if type(g) ~= "table" or getmetatable(g) ~= Graph then
    fail("graph: %s is a method of a graph; write g:%s(…)", who, who)
  end
  return g
end

local function check_options(who, opts, allowed)
  if opts == nil then return {} end
  if type(opts) ~= "table" then fail("%s: options must be a table, got %s", who, describe(opts)) end
  for key in pairs(opts) do
    if type(key) ~= "string" or not (" " .. allowed .. " "):find(" " .. key .. " ", 1, true) then
      fail("%s: unknown option '%s'%s; allowed: %s", who, tostring(key), core.did_you_mean(tostring(key), allowed),
        allowed)
    end
  end
  return opts
end

-- A tensor or a list of tensors → list, and whether it was one.
local function listed(who, what, v)
  if core.is_tensor(v) then return { v }, true end
  if type(v) ~= "table" then fail("%s: %s must be a tensor or a list of tensors, got %s", who, what, describe(v)) end
  return v, false
end

-- The largest index of a list that may have holes. Raises: keys that are no index.
local function length(who, what, list)
  local n = 0
  for k in pairs(list) do
    if math.type(k) ~= "integer" or k < 1 then fail("%s: %s: there is no entry %s", who, what, tostring(k)) end
    if k > n then n = k end
  end
  return n
end

-- As listed, of tensors only and without holes.
local function tensor_list(who, what, v)
  local list, one = listed(who, what, v)
  for i = 1, one and 1 or length(who, what, list) do
    if not core.is_tensor(list[i]) then
      fail("%s: %s: entry %d must be a tensor, got %s", who, what, i, describe(list[i]))
    end
  end
  return list, one
end

-- The out-gradients of n outputs for the engine: a tensor or false (ones) each. nil: ones for all.
local function out_gradients(dys, n)
  if dys == nil then return nil end
  local list = listed("gradient", "out_grads", dys)
  local given, full = core.is_tensor(dys) and 1 or length("gradient", "out_grads", list), {}
  if given ~= n then
    fail("gradient: %d outputs, but %d out_grads; leave them out for ones everywhere, or write false where ones are "
      .. "meant", n, given)
  end
  for i = 1, n do
    local dy = list[i]
    if dy and not core.is_tensor(dy) then
      fail("gradient: out_grads: entry %d must be a tensor, or false for ones, got %s", i, describe(dy))
    end
    full[i] = dy or false
  end
  return full
end

local function flag(who, opts, key)
  local v = opts[key]
  if v ~= nil and type(v) ~= "boolean" then fail("%s: %s must be true or false, got %s", who, key, describe(v)) end
  return v
end

-- unsafe_math: passes may use identities of real numbers that floating point does not keep (x + 0 = x, x / x = 1,
-- log(exp a + exp b) = logaddexp(a, b)).
--- T.graph{unsafe_math=false} → graph
-- A program as data. g:input(name, shape) makes tensors without values: every op on them adds a node. g:gradient(ys,
-- xs), g:outputs{…}, g:run{name = tensor}; print(g) shows it. Options of gradient: out_grads={…} one for each of ys
-- (all left out: ones), allow_unused, aggregate, copy, copy_op="clone", zero_ops={"zeros"}, and what may be computed
-- again: mirror="auto" | "mincut" | "mirror" | function(node), budget={bytes=} or {fraction=}, pin, force, seeded,
-- heavy. g:after(t, first): t's node runs after that of first, though it reads nothing of it.
--   local g = T.graph()
--   local x = g:input("x", { 3 })
--   local z = x:sin()
--   local y = g:after((x * x):sum(), z)
--   g:outputs { g:gradient({ y }, x, { out_grads = { g:input("dy", {}) }, mirror = "auto" }) }
--   print(g:run({ x = T.tensor { 1, 2, 3 }, dy = T.tensor(1.0) })[1])  --> {2., 4., 6.}  -- f32[3] cpu
local function graph(opts)
  opts = check_options("graph", opts, "unsafe_math")
  return setmetatable({ ir = core.graph_new(flag("graph", opts, "unsafe_math")), names = {}, keys = {} }, Graph)
end

--- g:input(name, shape, {dtype=, leaf=, device=}) → symbolic tensor, fed at each run. A leaf (a parameter) costs
-- nothing to keep, since somebody keeps it anyway. device: where it will be, by default the default device.
function Graph:input(name, shape, opts)
  check("input", self)
  opts = check_options("input", opts, "dtype leaf device")
  if type(name) ~= "string" or name == "" then fail("input: the name must be a string, got %s", describe(name)) end
  if self.names[name] then fail("input: there is an input named '%s' already", name) end
  local t = core.graph_input(self.ir, name, shape, opts.dtype, flag("input", opts, "leaf"), opts.device)
  self.names[name] = #core.graph_inputs(self.ir)
  return t
end

--- g:trace(f, …) → what f returns. While f runs, ops on real tensors alone (sums of two parameters, T.zeros) become
-- nodes, too; outside of it they are computed at once, and the graph only sees their results.
function Graph:trace(f, ...)
  check("trace", self)
  if type(f) ~= "function" then fail("trace: a function expected, got %s", describe(f)) end
  return core.graph_trace(self.ir, f, ...)
end

--- g:name(tensor, name) → tensor: the node that computes it is called so in texts, predicates and plans.
function Graph:name(t, name)
  check("name", self)
  if not core.is_symbolic(t) then fail("name: a symbolic tensor expected, got %s", describe(t)) end
  local _, node = core.graph_value(t)
  if not node then fail("name: an input has its name already") end
  core.graph_name(self.ir, node, name)
  return t
end

-- The node that computes a tensor, or the one that is called so.
local function node_of(g, what, t)
  if type(t) == "string" then
    for _, node in ipairs(g:nodes()) do
      if node.name == t then return node.index end
    end
    fail("after: %s: there is no node '%s'", what, t)
  end
  if not core.is_symbolic(t) then
    fail("after: %s must be a tensor of the graph or the name of a node, got %s", what, describe(t))
  end
  return core.graph_maker(g.ir, t) or fail("after: %s is an input or a view of one; nothing computes it", what)
end

--- g:after(t, first, …) → t: the node that computes t runs after those that compute first, …, though it reads
-- nothing of them. Tensors or names of nodes; what comes first was made first. They run whenever t does, whatever
-- passes do, and a copy of t's node that backward computes again waits for them, too.
function Graph:after(t, ...)
  check("after", self)
  local node, n = node_of(self, "the first argument", t), select("#", ...)
  if n == 0 then fail("after: what must run first? g:after(t, first, …)") end
  local list = {}
  for i = 1, n do list[i] = node_of(self, ("argument %d"):format(i + 1), (select(i, ...))) end
  for _, first in ipairs(list) do core.graph_after(self.ir, node, first) end
  return t
end

--- g:outputs{y, dw, …} or g:outputs{loss=y, …}: what run returns, under the same keys.
function Graph:outputs(list)
  check("outputs", self)
  local tensors, keys = {}, {}
  for k, t in pairs(listed("outputs", "outputs", list)) do
    if type(k) ~= "number" then keys[#keys + 1] = k end
    if not core.is_tensor(t) then fail("outputs: '%s' must be a tensor, got %s", tostring(k), describe(t)) end
  end
  table.sort(keys)
  local all = listed("outputs", "outputs", list)
  local order = {}
  for i, t in ipairs(all) do tensors[#tensors + 1], order[#order + 1] = t, i end
  for _, k in ipairs(keys) do tensors[#tensors + 1], order[#order + 1] = all[k], k end
  if #tensors == 0 then fail("outputs: at least one tensor is wanted") end
  core.graph_outputs(self.ir, tensors)
  self.keys = order
  return self
end

local policies = { none = 0, mirror = 1, mincut = 2, auto = 3 }

-- The node behind a view, among all nodes.
local function behind(nodes, node)
  while node.view do
    local by
    for i = 1, node.index - 1 do
      for _, v in ipairs(nodes[i].outputs) do by = by or (v == node.inputs[1] and nodes[i]) end
    end
    if not by then return nil end
    node = by
  end
  return node.index
end

-- Marks nodes in choice: of a tensor its node, of a name all nodes so called, of views what they show.
local function mark(g, nodes, what, list, choice, value)
  if core.is_tensor(list) or type(list) == "string" then list = { list } end
  if type(list) ~= "table" then
    fail("gradient: %s must be a list of tensors and names, got %s", what, describe(list))
  end
  local marked = {}
  for i, entry in ipairs(list) do
    local hit = false
    local function set(node)
      if node then choice[node], marked[node], hit = value, true, true end
    end
    if core.is_symbolic(entry) then
      set(core.graph_maker(g.ir, entry))
    elseif type(entry) == "string" then
      for _, node in ipairs(nodes) do
        if node.name == entry then set(behind(nodes, node)) end
      end
    else
      fail("gradient: %s: entry %d must be a tensor of the graph or a name, got %s", what, i, describe(entry))
    end
    if not hit then fail("gradient: %s: entry %d, %s, is no node of the graph", what, i, tostring(entry)) end
  end
  return marked
end

-- The options of g:gradient that say what may be computed again, for the engine.
local function mirror_options(who, opts, g)
  local mirror, budget = opts.mirror, opts.budget
  if mirror == nil then mirror = budget and "auto" or "none" end
  if mirror == true then mirror = "auto" end
  if budget and mirror == "none" then
    fail('%s: a budget needs a policy that computes something again, not mirror="none"', who)
  end
  local raw = { seeded = opts.seeded, heavy = opts.heavy, choice = {} }
  local nodes = (type(mirror) == "function" or opts.pin or opts.force) and g:nodes() or {}
  for i = 1, #nodes do raw.choice[i] = 0 end
  if type(mirror) == "function" then
    for i, node in ipairs(nodes) do raw.choice[i] = (not node.view and mirror(node)) and 1 or -1 end
    raw.policy, raw.listed = policies.mirror, true
  elseif type(mirror) == "string" and policies[mirror] then
    raw.policy = policies[mirror]
  else
    fail('%s: mirror must be "none", "mirror", "mincut", "auto" or a function of a node, got %s', who,
      type(mirror) == "string" and '"' .. mirror .. '"' or describe(mirror))
  end
  local pinned = opts.pin and mark(g, nodes, "pin", opts.pin, raw.choice, -1) or {}
  for node in pairs(opts.force and mark(g, nodes, "force", opts.force, raw.choice, 2) or {}) do
    if pinned[node] then fail("%s: pin and force both name %s", who, nodes[node].name) end
  end
  if (opts.heavy or opts.seeded) and opts.mirror == nil and not budget and not opts.force then
    fail("%s: %s=true says what else may be computed again; it needs mirror= or budget=", who,
      opts.heavy and "heavy" or "seeded")
  end
  if budget ~= nil then
    budget = check_options(who .. ": budget", budget, "fraction bytes")
    raw.fraction, raw.bytes = budget.fraction, budget.bytes
    if raw.fraction and (type(raw.fraction) ~= "number" or not (raw.fraction >= 0 and raw.fraction <= 1)) then
      fail("%s: budget.fraction must be a number from 0 to 1, got %s", who, tostring(raw.fraction))
    end
    if raw.bytes and (type(raw.bytes) ~= "number" or not (raw.bytes >= 0 and raw.bytes < 2 ^ 63)) then
      fail("%s: budget.bytes must be a number of bytes, got %s", who, tostring(raw.bytes))
    end
    if (raw.fraction == nil) == (raw.bytes == nil) then fail("%s: a budget has either bytes or fraction", who) end
  end
  return raw
end

--- g:gradient(ys, xs, {out_grads=, copy=, allow_unused=, aggregate=, mirror=, …}) → gradients of xs, a tensor or a
-- list as xs was. out_grads: one for each of ys, nil or false where ones are meant; without it all are ones. copy: two
-- xs with one gradient get two tensors, the second made by op copy_op="clone". zero_ops={"zeros"}: ops whose results
-- count as zeros; they drop out of sums, and a node without a gradient passes zeros on, made by the first of them,
-- where only such arrive.
function Graph:gradient(ys, xs, opts)
  check("gradient", self)
  opts = check_options("gradient", opts, "out_grads copy copy_op zero_ops allow_unused aggregate mirror budget "
    .. "pin force seeded heavy")
  ys = tensor_list("gradient", "the outputs", ys)
  local one
  xs, one = tensor_list("gradient", "the inputs", xs)
  local dys = out_gradients(opts.out_grads, #ys)
  if opts.aggregate ~= nil and type(opts.aggregate) ~= "function" then
    fail("gradient: aggregate must be a function of a list of tensors, got %s", describe(opts.aggregate))
  end
  local raw = mirror_options("gradient", opts, self)
  raw.copy, raw.allow_unused, raw.copy_op, raw.zero_ops = opts.copy, opts.allow_unused, opts.copy_op, opts.zero_ops
  if raw.zero_ops ~= nil and type(raw.zero_ops) ~= "table" then
    fail("gradient: zero_ops must be a list of names of ops, got %s", describe(raw.zero_ops))
  end
  if raw.zero_ops then length("gradient", "zero_ops", raw.zero_ops) end
  if raw.copy_op ~= nil then
    if raw.copy == false then fail("gradient: copy_op says what makes copies, copy=false that none are made") end
    raw.copy = true
  end
  local res = core.graph_gradient(self.ir, ys, xs, dys, raw, opts.aggregate)
  for i = 1, #xs do res[i] = res[i] or nil end
  if one then return res[1] end
  return res
end

-- The plan of the graph as it is now.
local function compiled(g)
  local edition = core.graph_edition(g.ir)
  if g.edition ~= edition then g.compiled, g.edition = core.graph_compile(g.ir), edition end
  return g.compiled
end

local Plan = classes.new("Plan", "plan")

-- What the plan behind a handle did to graph g.
local function plan_of(g, handle)
  local plan = core.plan_figures(handle)
  local by_index = plan.stage
  plan.handle, plan.text = handle, core.plan_text(handle)
  plan.stage = setmetatable({}, { __index = function(_, node)
    if core.is_symbolic(node) then node = select(2, core.graph_value(node)) end
    if type(node) == "table" then node = node.index end
    if type(node) == "string" then
      for _, other in ipairs(g:nodes()) do
        if other.name == node then return by_index[other.index] end
      end
    end
    return by_index[node]
  end })
  return setmetatable(plan, Plan)
end

--- g:plan() → what will run and where it is: stash_bytes recomputed peak_bytes arena_bytes lower_bound_bytes
-- leaf_bytes output_bytes nodes flops extra_flops policy passes groups, stage[tensor, name or number of a node], text;
-- after a run measured_bytes and workspace_bytes, what the executor counted.
function Graph:plan() return plan_of(check("plan", self), compiled(self)) end

require "perilune.graph.plan"(Plan, core)

-- The shapes of what nodes compute, by value.
local function shapes_of(g)
  local edition, known = core.graph_edition(g.ir), rawget(g, "computed")
  if known and known.edition == edition then return known end
  known = { edition = edition }
  for _, node in ipairs(core.graph_nodes(g.ir)) do
    for j, v in ipairs(node.outputs) do known[v] = node.shapes[j] end
  end
  g.computed = known
  return known
end

-- Does a result of that shape fill the tensor once? More dimensions of one in front do no harm.
local function fits(t, shape)
  local own = t:shape()
  local more = #own - #shape
  for i, size in ipairs(own) do
    if size ~= (i > more and shape[i - more] or 1) then return false end
  end
  return more >= 0
end

-- A larger tensor would be filled with copies. list: the outputs, after the run; before it, what nodes compute is
-- known, and leaves are not.
local function check_shapes(g, out, list)
  local values, shapes = core.graph_output_values(g.ir), list and {} or shapes_of(g)
  for i, k in ipairs(g.keys) do
    local shape = list and list[i]:shape() or shapes[values[i]]
    if out[k] and shape and not fits(out[k], shape) then
      fail("run: out: '%s' is %s, the output [%s]", tostring(k), describe(out[k]), table.concat(shape, ","))
    end
  end
end

--- g:run({x=…, …}, {out=, add=}) → outputs under the keys given to outputs. out: tensors to write into; add: add to
-- them instead. Optimizers in the graph of a jitted function, also one that was loaded, count their steps on.
function Graph:run(feed, opts)
  check("run", self)
  opts = check_options("run", opts, "out add")
  feed = feed or {}
  if type(feed) ~= "table" then fail("run: the inputs must be a table {name = tensor}, got %s", describe(feed)) end
  if #self.keys == 0 then fail("run: the graph has no outputs; call g:outputs{…} first") end
  local inputs = {}
  for name in pairs(feed) do
    if not self.names[name] then fail("run: the graph has no input '%s'", tostring(name)) end
  end
  for name, slot in pairs(self.names) do
    if feed[name] == nil then fail("run: input %s is missing", name) end
    inputs[slot] = feed[name]
  end
  local out = opts.out
  if out ~= nil and type(out) ~= "table" then fail("run: out must be a table of tensors, got %s", describe(out)) end
  if flag("run", opts, "add") and not out then fail("run: add needs out, the tensors to add to") end
  for k, t in pairs(out or {}) do
    local known = false
    for _, key in ipairs(self.keys) do known = known or key == k end
    if not known then fail("run: out: the graph has no output '%s'", tostring(k)) end
    if not core.is_tensor(t) then fail("run: out: '%s' must be a tensor, got %s", tostring(k), describe(t)) end
  end
  if out then check_shapes(self, out) end
  local res, list = {}
  if self.beside or self.traced then
    list = require("perilune.jit.optimizers").run_graph(self, compiled(self), inputs)
  else
    list = core.graph_run(compiled(self), inputs, self.trains)
  end
  if out then check_shapes(self, out, list) end
  for i, k in ipairs(self.keys) do
    local given = out and out[k]
    if given and opts.add then
      T.no_grad(function() given:add_(list[i]) end)
    elseif given then
      T.no_grad(function() given:copy_(list[i]) end)
    end
    res[k] = given or list[i]
  end
  return res
end

--- g:load_state(path) → true, or nil, message, code
-- Of a jitted function's graph, step:graph(): takes on what another run of it came to, from a file that
-- perilune_model_save or T.save_graph wrote: weights and buffers, the optimizers' states and counts of steps, their
-- lr and weight_decay. The script goes on from there, compiled or not, with the bits of the run that goes on
-- elsewhere. The function has to be the one that was saved, called once with arguments of these shapes, with
-- optimizers of the same other settings; else nothing is changed. Generators of random numbers and schedules are not
-- in the file.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Adam({ p }, { lr = 0.1 })
--   local step = T.jit(function(x)
--     opt:zero_grad();
--     (p * x):square():sum():backward()
--     opt:step()
--   end)
--   local path, x = os.tmpname(), T.ones(2)
--   step(x)
--   T.save_graph(path, step:graph())
--   local g = T.load_graph(path)
--   for _ = 1, 5 do g:run { x1 = x } end -- somewhere else, perhaps by C
--   T.save_graph(path, g)
--   print(step:graph():load_state(path), opt:state_dict().state[1].step)  --> true	6
--   os.remove(path .. ".safetensors")
function Graph:load_state(path)
  check("load_state", self)
  return require("perilune.graph.state").load(self, path)
end

--- The graph as text, one line a node.
function Graph:text() return core.graph_text(check("text", self).ir) end
Graph.__tostring = Graph.text

--- The graph in Graphviz' language.
function Graph:dot() return core.graph_dot(check("dot", self).ir) end

--- g:nodes() → list of {name op attrs shapes dtypes bytes flops inputs outputs stage index}.
function Graph:nodes() return core.graph_nodes(check("nodes", self).ir) end

--- Raises if the graph breaks a rule that every graph keeps: a bug of perilune.
function Graph:verify() return core.graph_verify(check("verify", self).ir) end

-- The object for a graph that was traced.
local function wrap(ir)
  local g = setmetatable({ ir = ir, names = {}, shapes = {}, keys = {} }, Graph)
  for slot, name in ipairs(core.graph_inputs(ir)) do
    local own, k = name, 1
    while g.names[own] do own, k = ("%s_%d"):format(name, k + 1), k + 1 end -- gradients that it reads are called grad
    g.names[own] = slot
  end
  for i in ipairs(core.graph_output_values(ir)) do g.keys[i] = i end
  return g
end

return { graph = graph, wrap = wrap, plan_of = plan_of, mirror_options = mirror_options }
