-- SPDX-License-Identifier: MIT
--- What a jitted function tells about itself: graph, source, plan, explain.
-- @module perilune.jit.look
local T = require "perilune"
local options = require "perilune.options"
local graphs = require "perilune.graph"
local trace = require "perilune.jit.trace"

local core, fail = T.core, options.fail

return function(Jit)
  local function last(self, who)
    if not self.last then fail("jit: %s: the function was not traced yet; call it first", who) end
    return self.last
  end

  --- The newest trace as a graph (T.graph's object: print it, ask for its nodes). Its outputs are what the plan makes:
  -- of results that share memory, the whole, once. T.save_graph saves it with the results as the function gives them.
  function Jit:graph()
    local t = last(self, "graph")
    local g = graphs.wrap(t.ir)
    g.given, g.beside, g.trains = t.given, t.beside, true
    if #t.live > 0 then g.traced = t end -- its optimizers count in Lua
    g.arguments = t.arguments
    -- The graph for arguments of other sizes; or nil, why there is none.
    function g.at_sizes(tensors)
      local fixed = core.jit_fixed(t.program)
      if fixed then return nil, fixed end
      local program, ir = trace.again(t, tensors)
      if not program then return nil, ir end
      local nodes, at = g:nodes(), graphs.wrap(ir)
      for _, l in ipairs(t.live) do
        if l.node then core.jit_attrs(program, l.node, nodes[l.node].attrs) end
      end
      at.given, at.trains = t.given, true
      return at
    end
    return g
  end

  --- The text of the newest trace.
  function Jit:source() return core.graph_text(last(self, "source").ir) end

  -- What the halves of a program did on a device, if they ran there: {groups=, operations=, capture="captured", or why
  -- not}.
  local function on_device(program)
    local g, n, how, bg, bn, bhow = core.jit_device_groups(program)
    return g and { groups = g, operations = n, capture = how },
      bg and { groups = bg, operations = bn, capture = bhow }
  end

  --- The plan that the newest trace runs; where its results have gradients, the backward half's, too. After runs on a
  -- device, plan.device = {groups=, operations=, capture=}: how many kernels were made for neighbouring operations, how
  -- many of these there are, and "captured", or why not.
  function Jit:plan()
    local t = last(self, "plan")
    local graph, forward, backward = self:graph(), core.jit_plans(t.program)
    if not forward then return graph:plan() end -- which says what is missing
    local plan = graphs.plan_of(graph, forward)
    local there, there_backward = on_device(t.program)
    plan.device = there
    if not backward then return plan end
    local second = graphs.plan_of(graph, backward)
    second.device = there_backward
    return plan, second
  end

  local function number(v)
    local units, u = { "", "k", "M", "G", "T" }, 1
    while v >= 1000 and u < #units do v, u = v / 1000, u + 1 end
    return (u == 1 and "%d " or v < 10 and "%.2f %s" or v < 100 and "%.1f %s" or "%.0f %s"):format(v, units[u])
  end

  local function show(rows)
    local all = 0
    for _, r in ipairs(rows) do all = all + r.seconds end
    local out = { ("%-32s %6s %8s %8s %9s %5s  %s"):format("line", "ops", "bytes", "flops", "us", "%", "most time in") }
    for _, r in ipairs(rows) do
      local line = r.backward and r.line .. " (backward)" or r.line
      out[#out + 1] = ("%-32s %6d %8s %8s %9.1f %5.1f  %s"):format(line:sub(-32), r.ops, number(r.bytes),
        number(r.flops), 1e6 * r.seconds, all > 0 and 100 * r.seconds / all or 0, r.most)
    end
    if rows.again.ops > 0 then
      out[#out + 1] = ("%d ops of it are computed again for backward: %.1f us, %.1f %%"):format(rows.again.ops,
        1e6 * rows.again.seconds, all > 0 and 100 * rows.again.seconds / all or 0)
    end
    for _, d in ipairs(rows.device) do
      out[#out + 1] = ("on the device%s: %d operations in %d kernels made for them; %s"):format(
        d.backward and ", backward" or "", d.operations, d.groups, d.capture)
    end
    return table.concat(out, "\n")
  end

  --- Per line of the script, as it runs: ops, bytes that get memory, floating point operations, seconds (the least of
  -- the first three runs) → list of {line=, backward=, ops=, bytes=, flops=, seconds=, names={op → how many}, most=},
  -- printable; its field again = {ops=, seconds=} is what was recomputed for backward, its field device a list of
  -- what the halves did on a device, as in plan(): there lines have no seconds.
  function Jit:explain()
    local rows, by_line = { again = { ops = 0, seconds = 0 } }, {}
    for _, e in ipairs(core.jit_lines(last(self, "explain").program)) do
      local key = e.line .. (e.backward and "'" or "")
      local row = by_line[key]
      if not row then
        row = { line = e.line, backward = e.backward, ops = 0, bytes = 0, flops = 0, seconds = 0, names = {},
          took = {} }
        by_line[key], rows[#rows + 1] = row, row
      end
      row.ops, row.bytes, row.flops = row.ops + 1, row.bytes + e.bytes, row.flops + e.flops
      row.seconds = row.seconds + e.seconds
      if e.again then
        rows.again.ops, rows.again.seconds = rows.again.ops + 1, rows.again.seconds + e.seconds
      end
      row.names[e.op] = (row.names[e.op] or 0) + 1
      row.took[e.op] = (row.took[e.op] or 0) + e.seconds
    end
    for _, row in ipairs(rows) do
      for op, seconds in pairs(row.took) do
        local most = row.most and row.took[row.most] or -1
        if seconds > most or seconds == most and op < row.most then row.most = op end
      end
      row.took = nil
    end
    local there, backward = on_device(self.last.program)
    rows.device = { there, backward }
    if backward then backward.backward = true end
    return setmetatable(rows, { __tostring = show })
  end
end
