-- SPDX-License-Identifier: MIT
-- T.checkpoint: a function whose intermediate values are dropped after forward and computed again in backward. The
-- engine (engine/grad/checkpoint.h) drops them, runs the function again and compares what it does; here its arguments
-- are taken apart and put together again. See docs/design/checkpointing.md.
local options = require "perilune.options"
local rerun = require "perilune.autograd.checkpoint_state"
local tree = require "perilune.tree"

return function(T, core)
  local pack, unpack = table.pack, table.unpack
  local fail, map, leaves, describe = options.fail, tree.map, tree.leaves, options.describe

  -- ---- arguments ------------------------------------------------------------------------------------------

  -- In an argument's structure: the tensor of that number.
  local Place = { __name = "place" }

  local function take_apart(args)
    local tensors, form = {}, { n = args.n }
    for i = 1, args.n do
      form[i] = map(args[i], function(t)
        tensors[#tensors + 1] = t
        return setmetatable({ #tensors }, Place)
      end, true)
    end
    return tensors, form
  end

  local function put_together(v, tensors)
    if getmetatable(v) == Place then return tensors[v[1]] end
    if not tree.is_tree(v) then return v end
    local out = {}
    for k, x in pairs(v) do out[k] = put_together(x, tensors) end
    return out
  end

  local function text(list)
    local names = {}
    for i, t in ipairs(list) do names[i] = t:describe() end
    return #names == 0 and "no tensor" or table.concat(names, ", ")
  end

  -- ---- what is kept ----------------------------------------------------------------------------------------

  local class -- of every op, by name
  local function classes()
    if not class then
      class = {}
      for _, op in ipairs(core.ops()) do class[op.name] = op.class end
    end
    return class
  end

  local function check_op(who, name)
    if classes()[name] then return end
    local all = {}
    for known in pairs(class) do all[#all + 1] = known end
    table.sort(all)
    local near = options.nearest(name, all)
    fail("%s: save: there is no op '%s'%s", who, name, near and (("; did you mean '%s'?"):format(near)) or "")
  end

  local answers = { save = true, recompute = false }
  local function asked(who, policy)
    return function(op, info)
      local answer = policy(op, info)
      local yes = answers[answer]
      if yes == nil then
        fail("%s: the policy must return \"save\" or \"recompute\", got %s for %s", who, describe(answer), op)
      end
      return yes
    end
  end

  local function set_of(who, what, list)
    if type(list) == "string" then list = { list } end
    if not tree.is_tree(list) then fail("%s: %s is a list of names, got %s", who, what, describe(list)) end
    local set = {}
    for k, name in pairs(list) do
      if math.type(k) ~= "integer" or type(name) ~= "string" then
        fail("%s: %s is a list of names, got an entry %s = %s", who, what, tostring(k), describe(name))
      end
      set[name] = true
    end
    return set
  end

  -- The options as what is asked about each op (a set, a function or nil) and the set of names of values (or nil).
  local function settings(who, opts)
    local policy, save, names = opts.policy, opts.save, opts.names
    if policy ~= nil and save ~= nil then fail("%s: give save or policy, not both", who) end
    if policy ~= nil and type(policy) ~= "function" then
      fail("%s: policy is a function(op, info), got %s", who, describe(policy))
    end
    local keep = policy and asked(who, policy)
    if save ~= nil then
      keep = set_of(who, "save", save)
      if keep.heavy then -- as where graphs are planned: products, convolutions, attention
        keep.heavy = nil
        for name, kind in pairs(classes()) do if kind == "heavy" then keep[name] = true end end
      end
      for name in pairs(keep) do check_op(who, name) end
    end
    return keep, names ~= nil and set_of(who, "names", names) or nil
  end
  core.checkpoint_settings = settings

  local wanted -- names of values that the running function keeps

  --- T.checkpoint_name(x, name) → x
  -- Names a value that a function under T.checkpoint or nn.checkpointed computes. It is kept if that was given names
  -- with this one among them, and then not computed again in backward. x must be what an op has returned, or a view of
  -- that; anything else, and a name that nobody wants, changes nothing.
  --   local w = T.ones(4, 4):requires_grad_()
  --   local function f(x) return T.checkpoint_name(x:mm(w), "product"):tanh():exp() end
  --   T.checkpoint({ f, names = { "product" } }, T.ones(2, 4)):sum():backward()
  --   print(w.grad:shape()[1])  --> 4
  T.checkpoint_name = function(x, name)
    if not core.is_tensor(x) then fail("checkpoint_name: a tensor expected, got %s", describe(x)) end
    if type(name) ~= "string" then fail("checkpoint_name: a name expected, got %s", describe(name)) end
    if wanted and wanted[name] then
      core.checkpoint_keep(x)
      core.graph_pin(x)
    end
    return x
  end

  -- f(…) while the names are those; inside of a function that keeps all it is asked for nothing changes.
  local function want(names)
    local outer = wanted
    wanted = names
    return outer
  end
  local function naming(names, f, ...) return core.around(want, names, want, f, ...) end

  -- ---- running ---------------------------------------------------------------------------------------------

  -- In a graph the nodes that f makes are computed again in its backward half, but for its results and what is kept.
  local function run_as_nodes(mark, first, keep, names, f, ...)
    local results = pack(pcall(naming, names, f, ...))
    core.graph_mark(mark, ...)
    if not results[1] then error(results[2], 0) end
    for i = 2, results.n do core.graph_pin(results[i]) end
    if type(keep) == "table" then
      core.graph_pin_since(first, function(op) return keep[op] end, ...)
    elseif keep then
      core.graph_pin_since(first, keep, ...)
    end
    return unpack(results, 2, results.n)
  end

  local function run(f, keep, names, ...)
    local mark, first = core.graph_mark(2, ...)
    if mark then return run_as_nodes(mark, first, keep, names, f, ...) end
    local tensors, form = take_apart(pack(...))
    local outer = rerun.running
    local record = rerun.record(outer)
    local results

    local function again(stand_ins)
      local args = put_together(form, stand_ins)
      local out = rerun.under(record, naming, names, f, unpack(args, 1, args.n))
      local now = text(leaves({ unpack(out, 1, out.n) }))
      if results and now ~= results then
        fail("checkpoint: the function returned %s in forward, and %s when it was run again", results, now)
      end
    end

    local around = outer and wanted or names -- inside another one that runs for the first time this one is nothing
    local out = pack(core.around(rerun.run_with, record, rerun.leave,
      core.checkpoint, naming, again, tensors, keep, names ~= nil, around, f, ...))
    results = text(leaves({ unpack(out, 1, out.n) }))
    return unpack(out, 1, out.n)
  end
  core.run_checkpoint = run

  --- T.checkpoint(f, x, …), or T.checkpoint({f, save=, names=, policy=}, x, …) → what f(x, …) returns
  -- The values that f computes on its way are dropped; backward runs f again where it needs them, with the same random
  -- numbers and modes. Gradients have the bits of f(x, …) alone. What f changes in place is changed once. Where f would
  -- not do the same again, because a tensor it reads was changed or for any other reason, backward says so. Inside of
  -- T.vmap f runs as it is and keeps all. With f in a table, results of some ops are kept and not computed again: save
  -- lists names of ops ("heavy": all products, convolutions, attention), names those of T.checkpoint_name, policy(op,
  -- info) returns "save" or "recompute"; info has shapes, dtypes, bytes, flops, heavy.
  --   local x = T.tensor { 2 }:requires_grad_()
  --   T.checkpoint(function(a) return (a * a):relu() end, x):backward()
  --   print(x.grad)  --> {4.}  -- f32[1] cpu
  --   local layer = T.nn.Linear(8, 8)
  --   T.checkpoint({ function(a) return layer(a):tanh() end, save = { "linear" } }, T.ones(2, 8)):sum():backward()
  local traced = options.mode
  T.checkpoint = function(f, ...)
    if not tree.is_tree(f) then
      tree.check_function("checkpoint", f)
      if traced.method then return traced.method(run, f, nil, nil, ...) end
      return run(f, nil, nil, ...)
    end
    local own = {}
    for k, v in pairs(f) do if k ~= 1 then own[k] = v end end
    options.check("checkpoint", own, { "save", "names", "policy" })
    tree.check_function("checkpoint", f[1])
    local keep, names = settings("checkpoint", own)
    if traced.method then return traced.method(run, f[1], keep, names, ...) end
    return run(f[1], keep, names, ...)
  end
end
