-- SPDX-License-Identifier: MIT
-- Runs random programs (generate.lua) on the engine and on the reference, compares, and makes the ones that differ
-- small.

local T = require "perilune"
local K = require "spec.support.whole.kinds"
local random = require "spec.support.random"
local ref = require "spec.support.whole.reference"

local M = {}
local P = {}

function P.line(s) return K[s.k].text(s, P) end

-- ---- on the reference ----------------------------------------------------------------------------------------------

-- One draws from the default generator, the other from one of the script's.
local function draw(shape, generator)
  local v = T.rand(shape, { dtype = "f64", generator = generator }):flatten():totable()
  return type(v) == "table" and v or { v }
end
local function flat(t) return t:detach():reshape(-1):totable() end

local function fresh(seed)
  local r = ref.new()
  local generator = T.Generator()
  generator:manual_seed(seed + 1)
  r.vars, r.captured, r.draw = {}, {}, draw
  function r.draw_own(shape) return draw(shape, generator) end
  T.manual_seed(seed)
  return r
end
M.fresh = fresh

-- Runs statement s of r's program. → what it may answer instead, and what it must, or nil and why it makes no sense
function M.step(r, s, at)
  r.may, r.at = {}, at
  local off, muted = r.off, r.muted
  r.muted = {}
  r.given = nil
  local ok, err = pcall(K.exec, r, s)
  r.muted = muted
  if ok then return r.may end
  r.off = off
  if type(err) ~= "table" then error(err, 0) end
  if err.invalid then return nil, err.invalid end
  return r.may, err.must
end

-- → list of what each statement may and must answer, final state; nil and why if the program makes no sense
function M.judge(program)
  local r, list = fresh(program.seed), {}
  for i, s in ipairs(program.list) do
    local may, must = M.step(r, s, i)
    if not may then return nil, must end
    if must and (s.body or s.k == "jit") then return nil, "an error inside" end
    list[i] = { may = may, must = must }
  end
  local out = { log = r.log, values = {}, grads = {}, tracked = {}, loose = r.loose }
  for id, t in pairs(r.vars) do
    if t.storage then
      out.tracked[id] = r:tracked(t)
      out.values[id] = ref.values(t)
      if t.leaf then out.grads[id] = t.leaf.grad and t.leaf.grad.v or false end
    end
  end
  return list, out
end

-- ---- as a script
-- ------------------------------------------------------------------------------------------------------

local prelude = [[
local function N(shape, values, tracked)
  local t = T.tensor(values, { dtype = "f64" }):view(shape):clone()
  return tracked and t:requires_grad_() or t
end
local C = {}
C.cube = T.custom { name = "cube", forward = function(ctx, a)
  ctx:save(a)
  return a * a * a
end, backward = function(ctx, g)
  local a = ctx:saved()
  return g * a * a * 3
end }
C.half = T.custom { name = "half", forward = function(_, a) return a:sin() end, backward = function(_,
  g) return g * 0.5 end }
C.pair = T.custom { name = "pair", forward = function(ctx, a, b)
  ctx:save(a, b)
  return a * b, a + b
end, backward = function(ctx, g, h)
  local a, b = ctx:saved()
  local x, y
  if g then x, y = g * b, g * a end
  if h then x, y = x and x + h or h, y and y + h or h end
  return x, y
end }
C.turn = T.custom { name = "turn", forward = function(_, a) return (a * 2):transpose(1, 2) end,
  backward = function(_, g) return g:transpose(1, 2) * 2 end }
C.first = T.custom { name = "first", forward = function(_, a, b) return a - b end,
  backward = function(_, g) return g * 2, nil end }
]]

local function seed_all(C, seed)
  T.manual_seed(seed)
  C.generator = C.generator or T.Generator()
  C.generator:manual_seed(seed + 1)
end

local N, C = load("local T = ...\n" .. prelude .. "return N, C", "=prelude")(T)

function M.generator() return C.generator end

local function declared(program)
  local own, seen = {}, {}
  local function add(s)
    for _, id in ipairs(s.o or {}) do
      if not seen[id] then
        seen[id] = true
        own[#own + 1] = id
      end
    end
    for _, c in ipairs(s.calls or {}) do add(c) end
    if s.k == "nograd" then for _, x in ipairs(s.body) do add(x) end end
  end
  for _, s in ipairs(program.list) do add(s) end
  return own
end

-- The program as a function body. judged: where it must raise. marks: S(n) before each statement.
local function text(program, judged, marks, pressure)
  local own = declared(program)
  local lines = { #own > 0 and "local " .. K.vars(own) or nil }
  for i, s in ipairs(program.list) do
    local line = P.line(s)
    if judged and judged[i].must then line = ("X(%d, function()\n%s\nend)"):format(i, line) end
    if pressure and i % pressure == 0 then line = line .. " G()" end
    lines[#lines + 1] = marks and ("S(%d) "):format(i) .. line or line
  end
  return table.concat(lines, "\n"), own
end

-- What a reader gets: runs by itself and prints what the reference says differently, next to it.
function M.script(program, note)
  local body, own = text(program, M.judge(program) or nil)
  local out = { "local T = require \"perilune\"", prelude, "T.manual_seed(" .. program.seed .. ")",
    "C.generator = T.Generator() C.generator:manual_seed(" .. program.seed + 1 .. ")",
    "local function L(id, g) print(\"hook \" .. id, g:detach()) end",
    "local function X(n, f) print(\"statement \" .. n .. \" must fail:\", pcall(f)) end", "local _ = N, C, L, X", body }
  for _, id in ipairs(own) do
    out[#out + 1] = ("if %s then print(\"%s\", %s) end"):format(K.var(id), K.var(id), K.var(id))
  end
  for _, s in ipairs(program.list) do
    if s.k == "leaf" and s.tracked then
      out[#out + 1] = ("if v%d then print(\"v%d.grad\", v%d.grad) end"):format(s.o[1], s.o[1], s.o[1])
    end
  end
  if note then out[#out + 1] = "-- " .. note:gsub("\n", "\n-- ") end
  return table.concat(out, "\n")
end

-- ---- on the engine -------------------------------------------------------------------------------------------------

-- → what it gave: log, values, tracked, grads, at which statement it stopped and why, the generator's next number
local function execute(program, judged, pressure)
  local body, own = text(program, judged, true, pressure)
  local lines = { body }
  for _, id in ipairs(own) do lines[#lines + 1] = ("O(%d, v%d)"):format(id, id) end
  local chunk = assert(load("local T, N, C, L, S, X, O, G = ...\n" .. table.concat(lines, "\n"), "=program"))
  local out = { log = {}, values = {}, grads = {}, tracked = {} }
  local at
  local function L(id, g) out.log[#out.log + 1] = { at = at, id = id, v = flat(g) } end
  local function S(n) at = n end
  local function X(n, f)
    local ok, err = pcall(f)
    local want = judged[n].must
    if ok then out.missing = ("statement %d must fail (%s), and does not"):format(n, want)
    elseif not tostring(err):find(ref.patterns[want], 1, true) then
      out.missing = ("statement %d must fail (%s): %s"):format(n, want, err)
    end
  end
  local function O(id, t)
    if T.is_tensor(t) then
      out.values[id], out.tracked[id] = flat(t), t.requires_grad
      if t.is_leaf and t.requires_grad then out.grads[id] = t.grad and flat(t.grad) or false end
    end
  end
  T.core.collect() -- a key that an earlier program left behind would keep jitted functions from their graphs
  seed_all(C, program.seed)
  local ok, err = pcall(chunk, T, N, C, L, S, X, O, collectgarbage)
  T.core.grad_enabled(true)
  if not ok then out.at, out.err = at, tostring(err) end
  out.next, out.next_own = T.rand(1):item(), draw({ 1 }, C.generator)[1]
  return out
end

-- ---- comparison ----------------------------------------------------------------------------------------------------

local function near(a, b)
  if #a ~= #b then return false end
  local scale = 1
  for i = 1, #b do if b[i] == b[i] and math.abs(b[i]) < math.huge then scale = math.max(scale, math.abs(b[i])) end end
  for i = 1, #a do
    local x, y = a[i], b[i]
    if not (x == y or (x ~= x and y ~= y) or math.abs(x - y) <= 1e-8 * scale) then return false end
  end
  return true
end

-- None is as good as zeros.
local function same_gradient(a, b)
  if a and b then return near(a, b) end
  for _, x in ipairs(a or b or {}) do if x ~= 0 then return false end end
  return true
end

local function list(v)
  if not v then return tostring(v) end
  local l = {}
  for i, x in ipairs(v) do l[i] = ("%.6g"):format(x) end
  return "{" .. table.concat(l, ", ") .. "}"
end

local function sorted(log)
  local l = { table.unpack(log) }
  table.sort(l, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.id < b.id
  end)
  return l
end

-- Without the calls that get zeros: where a function is run again or was traced, none may be zeros.
local function not_zero(log)
  local l = {}
  for _, x in ipairs(log) do
    local zeros = true
    for _, c in ipairs(x.v) do zeros = zeros and c == 0 end
    if not zeros then l[#l + 1] = x end
  end
  return l
end

-- Answers that a program may give instead of a result.
local function accepted(may, err)
  for what in pairs(may) do if err:find(ref.patterns[what], 1, true) then return true end end
  return false
end

local function differs(judged, want, got, same_errors)
  if got.missing then return got.missing end
  local stop = got.at
  if stop and not accepted(judged[stop].may, got.err) then return ("statement %d: %s"):format(stop, got.err) end
  local a, b = sorted(want.log), sorted(got.log)
  if want.loose then a, b = not_zero(a), not_zero(b) end
  local k = 1
  for _, x in ipairs(a) do
    if stop and x.at >= stop then break end
    local y = b[k]
    if not y or y.at ~= x.at or y.id ~= x.id then
      return ("statement %d: hook %d is not called, or not as often; it gets %s"):format(x.at, x.id, list(x.v))
    end
    if not near(y.v, x.v) then
      return ("statement %d: hook %d gets %s, right is %s"):format(x.at, x.id, list(y.v), list(x.v))
    end
    k = k + 1
  end
  if not stop and b[k] then return ("statement %d: hook %d is called with %s"):format(b[k].at, b[k].id,
    list(b[k].v)) end
  if stop or same_errors then return nil end
  for id, v in pairs(want.values) do
    local w = got.values[id]
    if not w then return ("v%d is nil, right is %s"):format(id, list(v)) end
    if not near(w, v) then return ("v%d is %s, right is %s"):format(id, list(w), list(v)) end
    if got.tracked[id] ~= want.tracked[id] and not (want.loose and got.tracked[id]) then
      return ("v%d.requires_grad is %s"):format(id, got.tracked[id]) end
  end
  for id in pairs(got.values) do if not want.values[id] and not (want.loose and same_gradient(got.values[id],
    nil)) then
    return ("v%d is %s, right is nil"):format(id, list(got.values[id]))
  end end
  for id, v in pairs(want.grads) do
    local w = got.grads[id]
    if not same_gradient(w, v) then
      return ("v%d.grad is %s, right is %s"):format(id, list(w), list(v))
    end
  end
end

-- Two runs of the engine: the same bits.
local function identical(a, b, how)
  how = how or "with collections"
  if a.at ~= b.at or a.err ~= b.err then
    return ("as it is: %s, %s: %s"):format(a.err or "no error", how, b.err or "no error")
  end
  if a.next ~= b.next or a.next_own ~= b.next_own then return how .. " a generator ends elsewhere" end
  local function equal(x, y)
    if not x or not y then return x == y end
    for i = 1, math.max(#x, #y) do if not (x[i] == y[i] or (x[i] ~= x[i] and y[i] ~= y[i])) then return false end end
    return true
  end
  for k, x in ipairs(a.log) do
    local y = b.log[k]
    if not y or y.id ~= x.id or y.at ~= x.at or not equal(x.v, y.v) then
      return ("%s hook %d differs"):format(how, x.id) end
  end
  for id, v in pairs(a.values) do if not equal(b.values[id], v) then
    return ("%s v%d differs"):format(how, id) end end
  for id, v in pairs(a.grads) do if not equal(b.grads[id], v) then
    return ("%s v%d.grad differs"):format(how, id) end end
end

-- ---- ways
-- ------------------------------------------------------------------------------------------------------------

local ways = {}

function ways.eager(program, judged, want)
  local got = execute(program, judged)
  local problem = differs(judged, want, got)
  if problem then return problem end
  local r = fresh(program.seed) -- the reference draws as often as the program
  for i, s in ipairs(program.list) do M.step(r, s, i) end
  if not got.at and T.rand(1):item() ~= got.next then return "the generator ends elsewhere" end
  if not got.at and r.draw_own({ 1 })[1] ~= got.next_own then
    return "the script's generator ends elsewhere"
  end
end

-- With a collection of the young after each statement.
function ways.pressure(program, judged)
  local plain, pressed = execute(program, judged), execute(program, judged, 1)
  return identical(plain, pressed)
end

-- Checkpoints are nothing but calls: the same bits. What one of both refuses is compared with nothing.
function ways.called(program, judged)
  local plain, checkpoint = execute(program, judged), T.checkpoint
  T.checkpoint = function(f, ...) return f(...) end
  local ok, called = pcall(execute, program, judged)
  T.checkpoint = checkpoint
  if not ok then error(called, 0) end
  if plain.at or called.at then return nil end
  return identical(plain, called, "without checkpoints")
end

-- With full collections at every n-th point where the bindings or Lua may collect.
local function at_points(setting)
  return function(program, judged)
    local plain = execute(program, judged)
    T.core.debug_collect(setting)
    local ok, pressed = pcall(execute, program, judged)
    T.core.debug_collect "off"
    if not ok then return tostring(pressed) end
    return identical(plain, pressed)
  end
end
ways.points = at_points "1"
ways.objects = at_points "alloc:3"

-- The whole program as a traced function, called three times on copies of its leaves.
-- What a trace may refuse where the program as written is right.
local refusals = { "was detached and is written while gradients are recorded",
  "a nil value", "got nil" } -- a gradient that is known to be zeros is none
-- In a trace a checkpoint's function is part of the program: its results are not tracked for nothing, and what it
-- keeps is kept at once.
local loose_refusals = { ref.patterns.untracked, ref.patterns.hook, ref.patterns.modified }
local function traced(options)
  return function(program, judged, want)
    for i = 1, #program.list do if judged[i].must or next(judged[i].may) then return nil end end
    local lines, inputs, params = {}, {}, {}
    for _, s in ipairs(program.list) do
      if s.k == "leaf" then
        params[#params + 1] = "a" .. #params + 1
        lines[#lines + 1] = ("v%d = a%d:clone()%s"):format(s.o[1], #params, s.tracked and ":requires_grad_()" or "")
        inputs[#inputs + 1] = random.tensor(T, s.values, s.shape)
      elseif s.k ~= "collect" and s.k ~= "drop" then
        lines[#lines + 1] = P.line(s)
      end
    end
    local ids, outs = {}, {}
    for id in pairs(want.values) do ids[#ids + 1] = id end
    table.sort(ids)
    for i, id in ipairs(ids) do outs[i] = ("v%d:detach():clone()"):format(id) end
    for _, id in ipairs(ids) do
      if want.grads[id] then outs[#outs + 1] = ("v%d.grad"):format(id) end
    end
    if #outs == 0 or #outs > 60 then return nil end
    if table.concat(lines):find("C.generator", 1, true) then return nil end -- traces do not draw from it
    local source = ("local T, C, L = ...\nreturn function(%s)\nlocal %s\n%s\nreturn %s\nend"):format(
      table.concat(params, ", "), K.vars(declared(program)), table.concat(lines, "\n"), table.concat(outs, ", "))
    local f = T.jit(assert(load(source, "=program"))(T, C, function() end), options)
    for round = 1, 3 do
      T.manual_seed(program.seed)
      local got = table.pack(pcall(f, table.unpack(inputs)))
      T.core.grad_enabled(true)
      if not got[1] then
        for _, pattern in ipairs(want.loose and loose_refusals or {}) do
          if tostring(got[2]):find(pattern, 1, true) then return nil end
        end
        for _, pattern in ipairs(refusals) do if tostring(got[2]):find(pattern, 1, true) then return nil end end
        return ("traced, call %d: %s"):format(round, got[2])
      end
      local k = 2
      for _, id in ipairs(ids) do
        if not near(flat(got[k]), want.values[id]) then
          return ("traced, call %d: v%d is %s, right is %s"):format(round, id, list(flat(got[k])),
            list(want.values[id]))
        end
        k = k + 1
      end
      for _, id in ipairs(ids) do
        if want.grads[id] then
          if not same_gradient(got[k] and flat(got[k]), want.grads[id]) then
            return ("traced, call %d: v%d.grad is %s, right is %s"):format(round, id, got[k] and list(flat(got[k]))
              or "nil",
              list(want.grads[id]))
          end
          k = k + 1
        end
      end
    end
  end
end
ways.traced = traced {}
ways.traced_mirror = traced { mirror = "mirror" }
ways.traced_mincut = traced { mirror = "mincut", heavy = true }

M.ways = ways

-- Runs the program in one way → what is wrong, or nil.
function M.check(program, way)
  local judged, want = M.judge(program)
  if not judged then return nil, want end
  return ways[way](program, judged, want)
end

-- ---- making it small
-- -------------------------------------------------------------------------------------------------

-- The same program without the statements from i to i + n - 1.
local function cut(program, i, n)
  local l = {}
  for k, s in ipairs(program.list) do if k < i or k >= i + n then l[#l + 1] = s end end
  return { seed = program.seed, list = l }
end

-- A statement with a shorter body, or one call less.
local function inner(program, i)
  local s, out = program.list[i], {}
  local function with(change)
    local c = {}
    for k, v in pairs(s) do c[k] = v end
    for k, v in pairs(change) do c[k] = v end
    local l = { table.unpack(program.list) }
    l[i] = c
    out[#out + 1] = { seed = program.seed, list = l }
  end
  for _, field in ipairs { "body", "calls" } do
    for k = 1, s[field] and #s[field] or 0 do
      local l = { table.unpack(s[field]) }
      table.remove(l, k)
      if #l > 0 or field == "body" then with { [field] = l } end
    end
  end
  if s.options then with { options = false } end
  return out
end

local function kind_of(problem)
  return problem:gsub("v%d+", "v"):gsub("statement %d+", "statement"):gsub("hook %d+", "hook"):gsub("[-%d.e+inf]+",
    "#"):sub(1, 40)
end

-- The smallest program found that fails in the same way.
function M.minimize(program, way, problem)
  local kind = kind_of(problem)
  local function still(p)
    local ok, got = pcall(M.check, p, way)
    return ok and got and kind_of(got) == kind and got
  end
  local again = true
  while again do
    again = false
    local size = math.max(1, #program.list // 2)
    while size >= 1 do
      local i = 1
      while i <= #program.list do
        local smaller = cut(program, i, size)
        local got = #smaller.list > 0 and still(smaller)
        if got then
          program, problem, again = smaller, got, true
        else
          i = i + size
        end
      end
      size = size // 2
    end
    for i = 1, #program.list do
      for _, smaller in ipairs(inner(program, i)) do
        local got = still(smaller)
        if got then
          program, problem, again = smaller, got, true
          break
        end
      end
    end
  end
  return program, problem
end

M.execute, M.text = execute, text
return M
