-- SPDX-License-Identifier: MIT
--- One trace of a function for T.jit: runs it once with symbolic tensors and makes a program of what it did.
-- @module perilune.jit.trace
local T = require "perilune"
local options = require "perilune.options"
local guards = require "perilune.jit.guards"
local optimizers = require "perilune.jit.optimizers"
local values = require "perilune.jit.values"

local core, fail, describe = T.core, options.fail, options.describe
local map, MARK = values.map, values.MARK

local function wrong_write(self, name, old, new)
  fail("%s: the traced function changes %s (from %s to %s); a graph does not repeat that. Return the value and assign "
    .. "it outside, or keep it in a tensor and write that in place", self.name, name, describe(old), describe(new))
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
    if argument[x] and (x.is_leaf or not x.requires_grad) then return { [MARK] = "argument", at = argument[x] } end
    if marks[x] then return marks[x] end
    local list = t.grad and x.requires_grad and not core.jit_spent(x) and out or rest
    list[#list + 1] = x
    marks[x] = { [MARK] = #list }
    return marks[x]
  end, 0)
  local tracked = #out
  for _, x in ipairs(rest) do
    out[#out + 1] = x
    marks[x][MARK] = #out
  end
  return tree, out, tracked
end

--- trace(jit, args, its tensors) → the trace, or nil and the error object.
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
  local outer = optimizers.enter(t)
  local restore = no_lua_random()
  local res = table.pack(xpcall(self.f, function(e)
    if type(e) == "string" then return { e = e, trace = debug.traceback(e, 2) } end
    return { e = e }
  end, table.unpack(symbolic, 1, args.n)))
  optimizers.enter(outer)
  restore()
  if not res[1] then
    core.jit_abort(flow)
    return nil, res[2].e
  end
  local name, old, new = guards.changed(seen)
  if not name then name, old, new = values.written_arguments(symbolic, args, real) end
  if name then
    core.jit_abort(flow)
    wrong_write(self, name, old, new)
  end
  local out, tracked
  t.results, out, tracked = results_of(t, table.pack(table.unpack(res, 2, res.n)), inputs)
  t.nresults = res.n - 1
  local placed, why = pcall(optimizers.place, self, t, out)
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

return trace
