-- SPDX-License-Identifier: MIT
--- T.jit with check=true: every call runs the script itself and the graph, from the same state and random numbers, and
-- compares results, gradients and every tensor written, bit for bit. Of a difference it says which op came about in
-- another way, and which of its operands.
local T = require "perilune"
local optimizers = require "perilune.jit.optimizers"
local trace = require "perilune.jit.trace"
local options = require "perilune.options"

local core, fail = T.core, options.fail

-- First element in which a and b differ → its indices and both values; NaN equals NaN.
local function difference(a, b)
  if a:equal(b) then return nil end
  local x, y = a:detach():flatten():totable(), b:detach():flatten():totable()
  if type(x) ~= "table" then x, y = { x }, { y } end
  for i = 1, #x do
    if x[i] ~= y[i] and (x[i] == x[i] or y[i] == y[i]) then
      local shape, at, rest = a:shape(), {}, i - 1
      for d = #shape, 1, -1 do
        at[d] = rest % shape[d] + 1
        rest = rest // shape[d]
      end
      return table.concat(at, ","), x[i], y[i]
    end
  end
end

local function tensors_of(v, list, path)
  if core.is_tensor(v) then
    list[#list + 1] = { path, v }
  elseif type(v) == "table" and getmetatable(v) == nil then
    local keys = {}
    for k in pairs(v) do keys[#keys + 1] = k end
    table.sort(keys, function(a, b) return options.key_text(a) < options.key_text(b) end)
    for _, k in ipairs(keys) do tensors_of(v[k], list, ("%s[%s]"):format(path, options.key_text(k))) end
  end
  return list
end

-- How results came about: the script's line and op of the graph's output k.
local function origin(t, k)
  local made = core.jit_origin(t.program, k)
  return made and (" (made by %s)"):format(made) or ""
end

local function compare(self, t, what, graph, script, k)
  if graph:dtype() ~= script:dtype() or table.concat(graph:shape(), ",") ~= table.concat(script:shape(), ",") then
    fail("%s: check: %s%s is %s in the graph, %s in the script", self.name, what, k and origin(t, k) or "",
      options.describe(graph), options.describe(script))
  end
  local at, a, b = difference(graph, script)
  if at then
    fail("%s: check: %s%s differs at [%s]: %.9g in the graph, %.9g in the script", self.name, what,
      k and origin(t, k) or "", at, a, b)
  end
end

local function copied(v)
  if core.is_tensor(v) then return v:detach():clone() end
  if type(v) ~= "table" then return v end
  local out = {}
  for k, x in pairs(v) do out[k] = copied(x) end
  return out
end

-- Updates that run behind the graph write, too.
local function deferred(t, written)
  local states, undo = {}, {}
  for _, d in ipairs(t.deferred) do
    if d.act then
      undo[#undo + 1] = d.keep()
    else
      for _, p in ipairs(d.group.params) do written[#written + 1] = p end
      states[d.optimizer] = states[d.optimizer] or copied(d.optimizer:state_dict())
    end
  end
  return states, undo
end

local function compare_all(self, t, written, after, leaves, script_grads, graph, script)
  for i, w in ipairs(written) do
    compare(self, t, ("tensor %d that is written, %s,"):format(i, options.describe(w)), w, after[i])
  end
  for i, p in ipairs(leaves) do
    local a, b = p.grad, script_grads[i]
    if (a == nil) ~= (b == false) then
      fail("%s: check: the gradient of parameter %d, %s, is %s in the graph, %s in the script", self.name, i,
        options.describe(p), options.describe(a), options.describe(b or nil))
    end
    if a then compare(self, t, ("the gradient of parameter %d, %s,"):format(i, options.describe(p)), a, b) end
  end
  local x = tensors_of({ table.unpack(graph, 1, graph.n) }, {}, "results")
  local y = tensors_of({ table.unpack(script, 1, script.n) }, {}, "results")
  if #x ~= #y then fail("%s: check: %d tensors come from the graph, %d from the script", self.name, #x, #y) end
  for k = 1, #x do compare(self, t, x[k][1], x[k][2], y[k][2], k) end
end

-- Where the graph and what the script does now part: found by tracing once more.
local function first_difference(self, t, args, tensors)
  local ok, other = core.attempt(trace.trace, self, args, tensors)
  if not ok or not other then return "" end
  optimizers.undo(other, true)
  local text = core.jit_differ(t.ir, other.ir)
  return text and "; first, " .. text or ""
end

return function(self, t, tensors, run, ...)
  local written = core.jit_writes(t.program)
  for _, at in ipairs(core.jit_writes_inputs(t.program)) do written[#written + 1] = tensors[at] end
  local states, undo = deferred(t, written)
  local before, grads, rng = {}, {}, T.get_rng_state()
  for i, w in ipairs(written) do before[i] = w:detach():clone() end
  local leaves = core.jit_leaves(t.program)
  for _, g in ipairs(t.inner) do
    if tensors[g.input].is_leaf then leaves[#leaves + 1] = tensors[g.input] end
  end
  local torn = {}
  for i, p in ipairs(leaves) do grads[i], torn[i] = p.grad or false, core.torn { p } or false end
  -- The script goes first: its side effects are the ones that count. While tracing, counters moved once already.
  optimizers.undo(t)
  for _, l in ipairs(t.live) do
    if l.keep then l.keep() end
  end
  local script = table.pack(self.f(...))
  local after, script_grads, rng_after = {}, {}, T.get_rng_state()
  for i, w in ipairs(written) do after[i] = w:detach():clone() end
  for i, p in ipairs(leaves) do script_grads[i] = p.grad or false end
  T.no_grad(function()
    for i, w in ipairs(written) do w:detach():copy_(before[i]) end
  end)
  for i, p in ipairs(leaves) do
    if grads[i] then core.adopt_grad(p, grads[i]) else p.grad = nil end
    if torn[i] then core.tear(p) end
  end
  T.set_rng_state(rng)
  for optimizer, state in pairs(states) do
    local lr = {}
    for k, group in ipairs(optimizer.param_groups) do lr[k] = group.lr end
    optimizer:load_state_dict(state)
    for k, group in ipairs(optimizer.param_groups) do group.lr = lr[k] end
  end
  for i = #undo, 1, -1 do undo[i]() end
  optimizers.undo(t, true, function() return false end) -- of this call nothing has
  local graph = table.pack(run(self, t, tensors))
  local ok, err = pcall(compare_all, self, t, written, after, leaves, script_grads, graph, script)
  if not ok then error(err .. first_difference(self, t, table.pack(...), tensors), 0) end
  T.set_rng_state(rng_after)
  return table.unpack(graph, 1, graph.n)
end
