-- SPDX-License-Identifier: MIT
--- What a jitted function tells about itself: graph, source, plan, explain.
-- @module perilune.jit.look
local T = require "perilune"
local options = require "perilune.options"
local graphs = require "perilune.graph"

local core, fail = T.core, options.fail

return function(Jit)
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
end
