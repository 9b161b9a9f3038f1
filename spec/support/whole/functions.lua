-- SPDX-License-Identifier: MIT
-- Statements of random programs with a body: blocks, checkpoints, traced functions, vmap, gradients of functions.
local ref = require "spec.support.whole.reference"

return function(K)
  local common = K.common
  local vars, tensor, set, follows, selected, invalid, const = common.vars, common.tensor, common.set,
    common.follows, common.selected,
    ref.invalid, ref.const

  -- ---- blocks and functions
  -- -------------------------------------------------------------------------------------------------

  local function run_body(r, list) for _, s in ipairs(list) do K.exec(r, s) end end

  -- The lines of a body that has variables of its own.
  local function body_text(P, s, returns)
    local own, seen = {}, {}
    for _, id in ipairs(s.params or {}) do seen[id] = true end
    for _, x in ipairs(s.body) do
      for _, id in ipairs(x.o or {}) do
        if not seen[id] then
          seen[id] = true
          own[#own + 1] = id
        end
      end
    end
    local lines = {}
    if #own > 0 then lines[1] = "  local " .. vars(own) end
    for _, x in ipairs(s.body) do
      for line in P.line(x):gmatch "[^\n]+" do lines[#lines + 1] = "  " .. line end
    end
    if returns then lines[#lines + 1] = "  return " .. vars(returns) end
    return table.concat(lines, "\n")
  end

  K.nograd = {
    text = function(s, P) return ("T.no_grad(function()\n%s\nend)"):format(body_text(P, { body = s.body,
      params = s.o })) end,
    run = function(r, s)
      r.off = r.off + 1
      run_body(r, s.body)
      r.off = r.off - 1
    end,
  }

  -- Calls the body with the parameters bound to these; leaves nothing of its own behind. → the tensors it returns
  local function run_call(r, s, args)
    local before = {}
    for id in pairs(r.vars) do before[id] = true end
    for i, id in ipairs(s.params) do r.vars[id] = args[i] end
    run_body(r, s.body)
    local out = {}
    for i, id in ipairs(s.returns) do out[i] = tensor(r, id) end
    for id in pairs(r.vars) do if not before[id] then r.vars[id] = nil end end
    return out
  end

  -- Results that share memory with nothing that goes in or stays outside, as tensors of their own, which come of one
  -- call: to walk back from one reaches all arguments.
  local function own(r, args, out)
    local seen, list, ins, call = {}, {}, {}, {}
    for i, t in ipairs(args) do
      seen[t.storage] = true
      ins[i + 1] = r:read(t)
    end
    for i, t in ipairs(out) do
      if seen[t.storage] or t ~= t.history.root or t.leaf or ref.overlaps(t) then
        invalid "a result that shares memory"
      end
      seen[t.storage] = true
      local x = r:read(t)
      ins[1] = x
      local y = next(x.e) and r:record("result", ins, { x.v }, function(g) return { g[1] } end) or const(x.v)
      for _, e in pairs(y.e) do e.node.call = call end
      list[i] = r:tensor(y, t.shape, t.plain)
    end
    return list
  end

  -- Marks results of one call that others of it were computed from: what passes between them is seen by nobody
  -- outside of a graph, and by everybody where the function runs as written.
  local function mark_inside(out, results)
    local nodes, reached = {}, {}
    for i, t in ipairs(out) do for _, e in pairs(t.e) do nodes[e.node] = i end end
    local function go(node, from)
      if reached[node] == from then return end
      reached[node] = from
      for i = 1, node.nin do
        local to = node.ins[i] and node.ins[i].node
        if to then
          if nodes[to] and nodes[to] ~= from then
            for _, e in pairs(results[nodes[to]].e) do e.node.inside = true end
          end
          go(to, from)
        end
      end
    end
    for i, t in ipairs(out) do for _, e in pairs(t.e) do go(e.node, i) end end
  end

  -- Runs f, during which a write to the memory of these tensors may be refused with that message.
  local function guarded(r, tensors, what, f)
    local was = r.given
    r.given = {}
    for k, v in pairs(was or {}) do r.given[k] = v end
    for _, t in ipairs(tensors) do r.given[t.storage] = what end
    local out = f()
    r.given = was
    return out
  end

  -- A function that is run again, or whose graph keeps what it likes: backward may refuse when any of these was
  -- changed.
  local function keeps(r, since, out, kept, call)
    local seen = {}
    local function go(node)
      if seen[node] or node.seq <= since then return end
      seen[node] = true
      node.saves = node.saves or {}
      node.call = node.call or call
      for _, x in ipairs(kept) do table.insert(node.saves, x) end
      for i = 1, node.nin do if node.ins[i] then go(node.ins[i].node) end end
    end
    for _, t in ipairs(out) do for _, e in pairs(t.e) do go(e.node) end end
  end

  local function args_of(r, s)
    local args = {}
    for i, id in ipairs(s.a) do args[i] = tensor(r, id) end
    for _, id in ipairs(s.uses or {}) do
      local t = tensor(r, id)
      if s.k == "checkpoint" and not t.leaf and follows(r, t) then invalid "computed outside" end
      r.captured[id] = true
    end
    for _, id in ipairs(s.writes or {}) do r.captured[id] = true end
    return args
  end

  local function with_outside(r, s, args)
    local all = { table.unpack(args) }
    for _, id in ipairs(s.uses or {}) do all[#all + 1] = tensor(r, id) end
    return all
  end

  K.checkpoint = {
    text = function(s, P)
      return ("%s = T.checkpoint(function(%s)\n%s\nend, %s)"):format(vars(s.o), vars(s.params), body_text(P, s,
        s.returns),
        vars(s.a))
    end,
    run = function(r, s)
      local args, since = args_of(r, s), r.seq
      local all = with_outside(r, s, args)
      local out = guarded(r, all, "checkpoint", function() return run_call(r, s, args) end)
      own(r, all, out) -- only to see that it makes sense: the results are the plain program's
      keeps(r, since, out, r:saved(table.unpack(all)), {})
      for i, id in ipairs(s.o) do set(r, id, out[i]) end
    end,
  }

  K.jit = { -- s.calls: list of { o =, a = }
    text = function(s, P)
      local lines = { ("do\nlocal f = T.jit(function(%s)\n%s\nend%s)"):format(vars(s.params), body_text(P, s,
        s.returns),
        s.options and ", " .. s.options or "") }
      for _, c in ipairs(s.calls) do lines[#lines + 1] = ("%s = f(%s)"):format(vars(c.o), vars(c.a)) end
      return table.concat(lines, "\n") .. "\nend"
    end,
    run = function(r, s)
      for _, c in ipairs(s.calls) do
        local args, since = args_of(r, { k = s.k, a = c.a, uses = s.uses }), r.seq
        local all = with_outside(r, s, args)
        r.loose = true
        local outer = r.tracing
        r.tracing = true
        local inner = guarded(r, all, "traced", function() return run_call(r, s, args) end)
        r.tracing = outer
        local out = own(r, all, inner)
        mark_inside(inner, out)
        for _, t in ipairs(out) do all[#all + 1] = t end
        keeps(r, since, out, r:saved(table.unpack(all)))
        for i, id in ipairs(c.o) do set(r, id, out[i]) end
      end
    end,
  }

  -- Rows of the arguments, one by one; results are stacked.
  K.vmap = {
    text = function(s, P)
      return ("%s = T.vmap(function(%s)\n%s\nend)(%s)"):format(vars(s.o), vars(s.params), body_text(P, s, s.returns),
        vars(s.a))
    end,
    run = function(r, s)
      local args, since = args_of(r, s), r.seq
      local n
      for _, t in ipairs(args) do
        if #t.shape == 0 or (n and t.shape[1] ~= n) then invalid "no rows" end
        n = t.shape[1]
      end
      local lists = {}
      for i = 1, n do
        local rows = {}
        for k, t in ipairs(args) do
          local p, shape = selected(t.shape, 1, i)
          rows[k] = r:tensor(r:gather(r:read(t), p), shape, false)
          rows[k].frozen = true
        end
        lists[i] = run_call(r, s, rows)
        own(r, rows, lists[i]) -- only to see that it makes sense
      end
      for o, id in ipairs(s.o) do
        local sum, one = nil, lists[1][o]
        local m = #one.map
        for i = 1, n do
          local terms = {}
          for k = 1, m do terms[k] = { (i - 1) * m + k, k, 1 } end
          local part = r:linear(r:read(lists[i][o]), n * m, terms)
          sum = sum and r:add(sum, part) or part
        end
        set(r, id, r:tensor(sum, { n, table.unpack(one.shape) }, false))
      end
      local out, all = {}, with_outside(r, s, args)
      for i, id in ipairs(s.o) do
        out[i] = r.vars[id]
        all[#all + 1] = out[i]
      end
      keeps(r, since, out, r:saved(table.unpack(all)))
    end,
  }

  -- Gradients of a function by all its arguments.
  K.tgrad = {
    text = function(s, P)
      return ("%s = T.grad(function(%s)\n%s\nend, %s)"):format(vars(s.o), vars(s.params), body_text(P, s, s.returns),
        vars(s.a))
    end,
    run = function(r, s)
      local args, since = args_of(r, s), r.seq
      local key, xs, captures = r:key(), {}, { n = #args }
      for i, t in ipairs(args) do
        local x = r:tensor(r:scale(r:read(t), 1), t.shape, t.plain)
        x.frozen = true
        xs[i] = r:attach(key, x)
        captures[i] = x.e[key]
      end
      local out = run_call(r, s, xs)
      if #out ~= 1 or #out[1].map ~= 1 or #out[1].shape > 0 then invalid "no single number" end
      local got = r:key_backward(key, out, captures)
      local list = {}
      for i, id in ipairs(s.o) do
        if not got[i] then invalid "unused" end
        list[i] = r:tensor(r:scale(got[i], 1), args[i].shape, false)
        list[i].frozen = true
        set(r, id, list[i])
      end
      keeps(r, since, list, r:saved(table.unpack(with_outside(r, s, args))))
    end,
  }
end
