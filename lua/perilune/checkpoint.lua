-- SPDX-License-Identifier: MIT
-- T.checkpoint: a function whose intermediate values are dropped after forward and computed again in backward. The
-- engine (engine/grad/checkpoint.h) drops them, runs the function again and compares what it does; here its arguments
-- are taken apart and put together again. See docs/design/checkpointing.md.
local options = require "perilune.options"
local rerun = require "perilune.rerun"
local tree = require "perilune.tree"

return function(T, core)
  local pack, unpack = table.pack, table.unpack
  local fail, map, leaves = options.fail, tree.map, tree.leaves

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

  -- In a graph the nodes that f makes are computed again in its backward half, but for its results.
  local function run_as_nodes(mark, f, ...)
    local results = pack(pcall(f, ...))
    core.graph_mark(mark, ...)
    if not results[1] then error(results[2], 0) end
    for i = 2, results.n do core.graph_pin(results[i]) end
    return unpack(results, 2, results.n)
  end

  T.checkpoint = function(f, ...)
    tree.check_function("checkpoint", f)
    local mark = core.graph_mark(2, ...)
    if mark then return run_as_nodes(mark, f, ...) end
    local tensors, form = take_apart(pack(...))
    local record, outer = rerun.enter()
    local results

    local function again(stand_ins)
      local args = put_together(form, stand_ins)
      local out = rerun.under(record, f, unpack(args, 1, args.n))
      local now = text(leaves({ unpack(out, 1, out.n) }))
      if results and now ~= results then
        fail("checkpoint: the function returned %s in forward, and %s when it was run again", results, now)
      end
    end

    local out = pack(pcall(core.checkpoint, f, again, tensors, ...))
    rerun.leave(outer)
    if not out[1] then error(out[2], 0) end
    results = text(leaves({ unpack(out, 2, out.n) }))
    return unpack(out, 2, out.n)
  end
end
