-- SPDX-License-Identifier: MIT
-- Random programs made of functions that are called through something that must not change what they compute:
-- checkpoints, compiled functions, limits of memory, packed saved tensors, coroutines, mixed precision (of f64), rules
-- that differentiate the function, batches, threads, collections, in every nesting (around.lua). Judge: the same
-- program with plain calls in their place.

local T = require "perilune"
local random = require "spec.support.random"
local ways = require "spec.support.identities.around"
local statements = require "spec.support.identities.statements"
local nn, F = T.nn, T.nn.F
local stats = T.core.rematerialization
local AROUND, PURE, PAIRS = ways.around, ways.pure, ways.pairs
local AROUND_NAMES, PURE_NAMES, PAIR_NAMES = ways.around_names, ways.pure_names, ways.pair_names
local PURE_BODY, BODY, AFTER, CHANGE = statements.pure, statements.any, statements.after, statements.change
local ARGUMENT, PRELUDE = statements.argument, statements.prelude

local M = {}

-- ---- programs as trees --------------------------------------------------------------------------------------

-- A node is a text or { kind, id, forms, body = nodes, … }; `functions` are defined once, before the steps.
local function generate(g)
  local function pick(list) return list[g:int(1, #list)] end
  local function fill(s)
    return (s:gsub("NUM", function() return ("%.2f"):format(g:int(-150, 150) / 100 + 0.005) end)
      :gsub("INT", function() return tostring(g:int(1, 9)) end))
  end
  local program = { functions = {}, steps = {} }
  local id = 0
  local function block(n, depth, pure)
    local list = {}
    for _ = 1, n do
      local chance = g:int(1, 10)
      if depth > 0 and chance <= 3 then
        id = id + 1
        local inner_pure = pure or g:int(1, 10) <= 3
        local kind
        if inner_pure then kind = g:int(1, 2) == 1 and pick(PAIR_NAMES) or pick(PURE_NAMES)
        else kind = pick(AROUND_NAMES) end
        list[#list + 1] = { kind = kind, id = id, pure = inner_pure, form = g:int(1, 4) }
        list[#list].body = block(g:int(1, 3), depth - 1, inner_pure)
      else
        list[#list + 1] = fill(pick(pure and PURE_BODY or BODY))
      end
    end
    return list
  end
  -- functions that are made once and called in several steps
  for i = 1, g:int(0, 2) do
    id = id + 1
    program.functions[i] = { kind = pick(AROUND_NAMES), id = id, form = 0 }
    program.functions[i].body = block(g:int(1, 4), 2, false)
  end
  for i = 1, g:int(2, 3) do
    local step = { changes = {}, argument = pick(ARGUMENT), body = block(g:int(1, 4), 3, false) }
    step.after = fill(pick(AFTER))
    for j = 1, i > 1 and g:int(0, 2) or 0 do step.changes[j] = fill(pick(CHANGE)) end
    for _ = 1, #program.functions > 0 and g:int(0, 2) or 0 do
      local f = program.functions[g:int(1, #program.functions)]
      table.insert(step.body, g:int(1, #step.body), ("y = f%d(y)"):format(f.id))
    end
    program.steps[i] = step
  end
  return program
end

local function render(program)
  local out = { PRELUDE }
  local function put(...) out[#out + 1] = (...):format(select(2, ...)) end
  local body
  local function call(node)
    if node.pure then
      put("y = CALL(%d, %q, function(y, p, q)\n", node.id, node.kind)
      body(node.body)
      put("return y end)(y, %s)\n", node.inner and "p, q" or "a, b")
    elseif node.form == 2 then
      put("y = CALL(%d, %q, function(t) local y = t.y\n", node.id, node.kind)
      body(node.body)
      put("return { y = y } end)({ y = y, k = k }).y\n")
    elseif node.form == 3 then
      put("do local u, v = CALL(%d, %q, function(y, z)\n", node.id, node.kind)
      body(node.body)
      put("return y, z * y end)(y, a) y = u + v * 0.1 end\n")
    else
      put("y = CALL(%d, %q, function(y)\n", node.id, node.kind)
      body(node.body)
      put("return y end)(y)\n")
    end
  end
  function body(list, pure)
    for _, node in ipairs(list) do
      if type(node) == "string" then put("%s\n", node) else call(node) end
    end
  end
  local function mark(list, pure)
    for _, node in ipairs(list) do
      if type(node) == "table" then
        node.inner = pure
        mark(node.body, node.pure)
      end
    end
  end
  for _, f in ipairs(program.functions) do
    mark(f.body, false)
    put("local f%d = CALL(%d, %q, function(y)\n", f.id, f.id, f.kind)
    body(f.body)
    put("return y end)\n")
  end
  for i, step in ipairs(program.steps) do
    mark(step.body, false)
    put("RUN(%d, function()\n", i)
    for _, change in ipairs(step.changes) do put("%s\n", change) end
    put("local x = %s\nlocal y = x\n", step.argument)
    body(step.body)
    put("OUT(y)\n")
    if step.after ~= "" then put("%s\n", step.after) end
    put("last = y:detach() OUT(x, buf, T.rand(1), T.rand(1, { generator = gen }))\n")
    put("for _, t in ipairs { x, a, b, w, k, last } do\n")
    put("if T.is_tensor(t) and t.is_leaf then OUT(t.requires_grad, t.grad) end end\n")
    put("for _, m in ipairs { net, lin, bn } do for _, t in ipairs(m:parameters()) do OUT(t, t.grad) end\n")
    put("for _, t in ipairs(m:buffers()) do OUT(t) end end\n")
    put("end)\n")
  end
  return table.concat(out)
end

-- ---- running ------------------------------------------------------------------------------------------------

local function text_of(v)
  if not T.is_tensor(v) then return tostring(v) end
  local numbers = v:detach():to("f64"):contiguous():flatten():totable()
  return { v:dtype(), table.concat(v:shape(), "x"), v.requires_grad, numbers }
end

-- real: function(id, kind) → whether to put it around; way: what holds over the whole program
local function run(text, real, way)
  collectgarbage()
  local log, E = {}, {}
  -- some ways differ in whether what does not depend on anything has a history
  local tracked = T.zeros({}, { dtype = "f64" }):requires_grad_()
  local stopped
  function E.out(...)
    for i = 1, select("#", ...) do log[#log + 1] = text_of((select(i, ...))) end
  end
  function E.join(...)
    local all = {}
    for _, list in ipairs { ... } do for _, t in ipairs(list) do all[#all + 1] = t end end
    return all
  end
  function E.call(id, kind, f)
    if PAIRS[kind] then
      local g = PAIRS[kind][real(id, kind) and 1 or 2](f)
      return function(...) return g(...) + tracked end
    end
    if kind:find "^rule" then
      local g = real(id, kind) and PURE[kind](f) or f
      return function(...) return g(...) + tracked end
    end
    if not real(id, kind) then return f end
    return (AROUND[kind] or PURE[kind])(f)
  end
  function E.run(i, f)
    if stopped then return end
    local before = #log
    local ok, err = pcall(f)
    if not ok then
      stopped = { step = i, err = tostring(err) }
      for j = #log, before + 1, -1 do log[j] = nil end
    else
      log[#log + 1] = "step " .. i
    end
  end
  local f, wrong = load(text, "=program", "t")
  if not f then return nil, { err = wrong, step = 0 } end
  local limit
  if way == "limit" then
    limit = T.memory_limit(T.memory().live + (8 << 20))
    stats "always"
  elseif way == "tight" then
    limit = T.memory_limit(T.memory().live + (1 << 16))
  elseif way == "collect" then
    T.core.debug_collect "29"
  end
  local ok, err = pcall(f, E, T, nn, F)
  if limit then getmetatable(limit).__close(limit) end
  if way == "collect" then T.core.debug_collect "off" end
  T.set_grad_enabled(true)
  if not ok then return log, { err = "outside: " .. tostring(err), step = 0 } end
  return log, stopped
end

-- Rules give zeros for what they do not use.
local function zero(p, q)
  if p ~= "nil" then p, q = q, p end
  if p ~= "nil" or type(q) ~= "table" then return false end
  for _, v in ipairs(q[4]) do if v ~= 0 then return false end end
  return true
end

local function differs(p, q, lenient)
  if lenient and zero(p, q) then return end
  if type(p) ~= "table" or type(q) ~= "table" then
    if p == q then return end
    local function what(v) return type(v) == "table" and "a tensor" or v end
    return ("kind: %s, with it %s"):format(what(p), what(q))
  end
  for i = 1, lenient and 2 or 3 do
    if p[i] ~= q[i] then return ("%s: %s, with it %s"):format(i == 3 and "requires_grad" or "form", p[i], q[i]) end
  end
  local scale = 0
  for _, v in ipairs(p[4]) do if v == v and math.abs(v) < math.huge then scale = math.max(scale, math.abs(v)) end end
  for i, v in ipairs(p[4]) do
    local u = q[4][i]
    local near = v == u or v ~= v and u ~= u or math.abs(v - u) <= 1e-7 * scale + 1e-10
    if not near then return ("value: [%d]: %.10g, with it %.10g"):format(i, v, u) end
  end
end

-- What differs, if anything; `stopped`: where got ended early.
local function compare(want, got, stopped, lenient)
  for i, w in ipairs(want) do
    if got[i] == nil then return not stopped and ("missing: result %d"):format(i) or nil end
    local d = differs(w, got[i], lenient)
    if d then return ("result %d: %s"):format(i, d) end
  end
end

-- ---- made small ---------------------------------------------------------------------------------------------

-- Takes away what is not needed for `fails(program)`.
local function shrink(program, fails)
  local function all_lists()
    local lists = { program.functions, program.steps }
    local function add(list)
      lists[#lists + 1] = list
      for _, node in ipairs(list) do if type(node) == "table" then add(node.body) end end
    end
    for _, f in ipairs(program.functions) do add(f.body) end
    for _, s in ipairs(program.steps) do
      add(s.body)
      lists[#lists + 1] = s.changes
    end
    return lists
  end
  local again = true
  while again do
    again = false
    for _, list in ipairs(all_lists()) do
      for i = #list, 1, -1 do
        local gone = table.remove(list, i)
        if fails(program) then again = true
        else
          table.insert(list, i, gone)
          if type(gone) == "table" and gone.body and list ~= program.functions and list ~= program.steps then
            -- its body in its place
            table.remove(list, i)
            for j, inner in ipairs(gone.body) do table.insert(list, i + j - 1, inner) end
            if fails(program) then again = true
            else
              for _ = 1, #gone.body do table.remove(list, i) end
              table.insert(list, i, gone)
            end
          end
        end
      end
    end
    for _, s in ipairs(program.steps) do
      for key, plain in pairs { after = "", argument = ARGUMENT[1] } do
        local was = s[key]
        if was ~= plain then
          s[key] = plain
          if fails(program) then again = true else s[key] = was end
        end
      end
    end
  end
  return program
end

-- ---- ways ---------------------------------------------------------------------------------------------------

local function all() return true end
local function none() return false end

-- Which functions get something around them, and what holds over the whole program.
local function ways_of(seed)
  local function some(id) return ((id * 2654435761 + seed * 40503) >> 13) & 1 == 1 end
  local list = {
    { "all", all }, { "some", some }, { "limit, plain", none, "limit" }, { "limit, all", all, "limit" },
    { "limit, some", some, "limit" }, { "tight, plain", none, "tight" }, { "tight, some", some, "tight" },
    { "collections", all, "collect" },
  }
  return list
end

-- nil or what differs; whether it was refused, and with what words
local function check(text, way, want, stop)
  if not want then want, stop = run(text, none) end
  if not want then return "bad: " .. stop.err end
  local got, refused = run(text, way[2], way[3])
  -- a rule asks for all of a gradient
  local d = compare(want, got, refused, text:find '"rule' ~= nil or text:find '"v?m?a?p?_?grad' ~= nil)
  if d then return d end
  if refused and (not stop or refused.step < stop.step) then return nil, refused.err end
end

--- run(seed, how many ways) → nil or a text: what differs, and a small program that shows it; refusals, runs
-- Texts of refusals are added to `said`.
function M.run(seed, count, said)
  local program = generate(random.new(seed))
  local text = render(program)
  local want, stop = run(text, none)
  if not want then return "bad program: " .. stop.err .. "\n" .. text, 0, 0 end
  local list, refusals, runs = ways_of(seed), 0, 0
  for i = 0, count - 1 do
    local way = list[(seed + i) % #list + 1]
    local d, refused = check(text, way, want, stop)
    runs = runs + 1
    if refused then
      refusals = refusals + 1
      if said then said[#said + 1] = way[1] .. ": " .. refused end
    end
    if d then
      local kind = d:match "(%a+):"
      local small = shrink(program, function(p)
        local x = check(render(p), way)
        return x and x:match "(%a+):" == kind
      end)
      text = render(small):sub(#PRELUDE + 1):gsub("last = y:detach%(%).-end end\n", "")
      return ("program %d, %s: %s\n%s%s"):format(seed, way[1], d, text, check(render(small), way)), refusals, runs
    end
  end
  return nil, refusals, runs
end

return M
