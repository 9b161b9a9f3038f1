-- SPDX-License-Identifier: MIT
--- Optimizers inside of traced functions. Those with a fused kernel are nodes whose settings are asked before each run;
-- the others compute with Lua numbers and update behind the graph.
-- @module perilune.jit.optimizers
local T = require "perilune"
local options = require "perilune.options"

local core, fail = T.core, options.fail

local optimizers = {}

-- The trace that is being made notes live attributes and deferred updates: {live=, deferred=}.
local current

--- trace is the one that notes → the one before, for the next call.
function optimizers.enter(trace)
  local outer = current
  current = trace
  return outer
end

--- The newest node's attributes are options() from now on, asked before each run; move(±1) moves the counters that
-- options reads. holds() → may the node still be used?
function optimizers.live(options_of, move, holds)
  current.live[#current.live + 1] = { node = core.jit_node(), options = options_of, move = move, holds = holds }
end

--- An optimizer that computes with Lua numbers: its update of `group` runs after the graph, with the gradients that the
-- group's parameters have now. Nothing in the graph may read the parameters afterwards.
function optimizers.defer(optimizer, group)
  local d = { optimizer = optimizer, group = group, node = core.jit_node(), grads = {} }
  for i, p in ipairs(group.params) do
    local g = p.grad
    if g and core.is_symbolic(g) then d.grads[i] = g end
  end
  current.deferred[#current.deferred + 1] = d
end

--- Which outputs the deferred updates need, besides the gradients that stay in the leaves.
function optimizers.place(self, t, out)
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

--- The deferred updates; list holds the graph's outputs.
function optimizers.run(t, list)
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

return optimizers
