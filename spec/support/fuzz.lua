-- SPDX-License-Identifier: MIT
-- Random programs over all ops: plausible and implausible calls in random order, views, in-place writes,
-- indexing, hooks, backward. A program may fail in any way but these: the process dies, an error is not text
-- with the place of the call, or memory stays behind. Grown from the descriptors and from the rows of
-- spec/ops/cases, whose arguments are varied one by one.

local T = require "perilune"
local random = require "spec.support.random"
local support = require "spec.ops.support"
local cases = require "spec.ops.cases"

local M = {}

local DTYPES = { "f32", "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "i64", "u8", "bool" }
local SIZES = { 0, 1, 1, 2, 3, 3, 4, 5, 7 }
local NAN, HUGE = 0 / 0, math.huge
local NUMBERS = { 0, 1, -1, 2, 3, 0.5, -1.5, 2.0, NAN, HUGE, -HUGE, 1e30, -1e-30, math.maxinteger, math.mininteger,
  1 << 31, 1 << 40, 255, 256 }
local BUDGET = 64 << 20 -- enough for every sensible call, and "tile by 2^20" ends soon

local function pick(g, list) return list[g:int(1, #list)] end
local function chance(g, p) return g:number(0, 1) < p end

-- ---- values -------------------------------------------------------------------------------------------

local function shape_of(g, env)
  if chance(g, 0.5) and env.shape then
    local s = { table.unpack(env.shape) }
    if chance(g, 0.3) and #s > 0 then s[g:int(1, #s)] = 1 end
    if chance(g, 0.2) then table.remove(s, 1) end
    return s
  end
  local s = {}
  for d = 1, g:int(0, 4) do s[d] = pick(g, SIZES) end
  return s
end

local function element(g, dtype)
  if dtype == "bool" then return g:int(0, 1) == 1 end
  if dtype:match "^[iu]" then
    if chance(g, 0.05) then return g:int(-128, 255) end
    return g:int(-1, 5)
  end
  if chance(g, 0.04) then return pick(g, NUMBERS) end
  return g:number(-2, 2)
end

local function fresh(g, env)
  local shape, dtype = shape_of(g, env), pick(g, DTYPES)
  local n, list = 1, {}
  for _, d in ipairs(shape) do n = n * d end
  local wide = (dtype == "f16" or dtype == "bf16") and "f32" or dtype
  for i = 1, n do
    local v = element(g, dtype)
    if math.type(v) == "float" and wide:match "^[iu]" then v = 1 end
    if math.type(v) == "integer" and wide:match "^f" then v = v + 0.0 end
    if wide == "u8" then v = v & 255 elseif wide == "i8" then v = (v & 127) - (v & 128) end
    list[i] = v
  end
  local t = random.tensor(T, list, shape, wide)
  if wide ~= dtype then t = t:to(dtype) end
  local kind = pick(g, random.LAYOUTS)
  t = random.layout(T, t, kind) or t
  if chance(g, 0.25) and t:is_floating_point() then t = t:detach():requires_grad_() end
  return t
end

local function junk(g, env)
  local k = g:int(1, 16)
  if k <= 4 then return pick(g, NUMBERS) end
  if k == 5 then return "sum" end
  if k == 6 then return {} end
  if k == 7 then return { g:int(-2, 5), g:int(-2, 5) } end
  if k == 8 then return env.freed end
  if k == 9 then return print end
  if k == 10 then return true end
  if k == 11 then return { dim = g:int(-3, 3) } end
  if k == 12 then return { pick(g, NUMBERS) } end
  if k == 13 then return { { 1 }, "x" } end
  if k == 14 then return pick(g, DTYPES) end
  if k == 15 then return { dtype = pick(g, DTYPES) } end
  return nil
end

local function tensor(g, env)
  if chance(g, 0.6) and #env.vars > 0 then return pick(g, env.vars) end
  local t = fresh(g, env)
  env.vars[#env.vars + 1] = t
  return t
end

-- ---- arguments from a descriptor --------------------------------------------------------------------------

local ATTR = {
  int = function(g) return g:int(-1, 4) end,
  float = function(g) return chance(g, 0.8) and g:number(-1, 3) or pick(g, NUMBERS) end,
  bool = function(g) return chance(g, 0.5) end,
  scalar = function(g) return chance(g, 0.7) and g:int(-2, 3) or pick(g, NUMBERS) end,
  dim = function(g) return g:int(-3, 4) end,
  newdim = function(g) return g:int(-3, 4) end,
  dims = function(g)
    local l = {}
    for i = 1, g:int(0, 3) do l[i] = g:int(-2, 4) end
    return l
  end,
  index = function(g) return g:int(-2, 5) end,
  ints = function(g)
    if chance(g, 0.4) then return g:int(-1, 4) end
    local l = {}
    for i = 1, g:int(0, 4) do l[i] = g:int(-1, 4) end
    return l
  end,
  shape = shape_of,
  floats = function(g) return { g:number(-1, 1), g:number(-1, 1) } end,
  dtype = function(g) return pick(g, DTYPES) end,
  enum = function(g, _, a)
    local l = {}
    for w in a.choices:gmatch "[^|]+" do l[#l + 1] = w end
    return pick(g, l)
  end,
  index_base = function(g) return g:int(-1, 2) end,
}

local function operand(g, env, info)
  if chance(g, 0.04) then return junk(g, env) end
  if info.flags.scalar and chance(g, 0.2) then return pick(g, NUMBERS) end
  return tensor(g, env)
end

local function from_descriptor(g, env, info)
  local args = { n = 0 }
  local function push(v)
    args.n = args.n + 1
    args[args.n] = v
  end
  if info.nin < 0 then
    local list = {}
    for i = 1, g:int(0, 4) do list[i] = operand(g, env, info) end
    push(list)
  else
    for i = 1, info.nin do
      if not (i > info.nin - info.nopt and chance(g, 0.5)) then push(operand(g, env, info)) end
    end
  end
  local options = chance(g, 0.5) and {} or nil
  for _, a in ipairs(info.attrs) do
    if not (a.optional or a.default ~= nil) or chance(g, 0.5) then
      local v
      if chance(g, 0.06) then v = junk(g, env) else v = ATTR[a.type](g, env, a) end
      if options then options[a.name] = v else push(v) end
    elseif not options then
      push(nil)
    end
  end
  if chance(g, 0.05) and #env.vars > 0 then
    options = options or {}
    options.out = pick(g, env.vars)
  end
  if options then push(options) end
  return args
end

-- ---- arguments from a row, varied ---------------------------------------------------------------------------

local function vary_tensor(g, env, t)
  local k = g:int(1, 12)
  if k == 1 then return t:to(pick(g, DTYPES)) end
  if k == 2 then return random.layout(T, t, pick(g, random.LAYOUTS)) or t end
  if k == 3 and t:dim() > 0 then return t:narrow(1, 1, 0) end
  if k == 4 and t:dim() > 0 then return t:narrow(-1, 1, math.min(1, t:size(-1))) end
  if k == 5 then return t:unsqueeze(1) end
  if k == 6 and t:dim() > 0 then return t:select(1, 1) end
  if k == 7 then return t:flatten() end
  if k == 8 then return tensor(g, env) end
  if k == 9 and t:is_floating_point() then return t:clone():requires_grad_() end
  if k == 10 and t:is_floating_point() then return t * pick(g, { NAN, HUGE, 0, 1e30 }) end
  if k == 11 then return junk(g, env) end
  return T.tensor(g:int(0, 3))
end

local function vary(g, env, v)
  if T.is_tensor(v) then
    local ok, t = pcall(vary_tensor, g, env, v)
    return ok and t or v
  end
  if math.type(v) == "integer" and chance(g, 0.7) then return v + g:int(-2, 2) end
  if type(v) == "number" and chance(g, 0.5) then return pick(g, NUMBERS) end
  if type(v) == "table" and chance(g, 0.8) then
    local out, keys = {}, {}
    for k, x in pairs(v) do
      out[k] = x
      keys[#keys + 1] = k
    end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    if #keys == 0 then return out end
    local k = pick(g, keys)
    out[k] = vary(g, env, out[k])
    return out
  end
  return junk(g, env)
end

local function from_row(g, env, name)
  local all = support.arguments(name)
  local args = pick(g, all)
  for i = 1, args.n do
    if T.is_tensor(args[i]) and args[i]:is_floating_point() and chance(g, 0.2) then
      args[i] = args[i]:detach():requires_grad_()
    end
  end
  for _ = 1, g:int(0, 2) do
    if args.n > 0 then
      local i = g:int(1, args.n)
      args[i] = vary(g, env, args[i])
    end
  end
  return args
end

-- ---- steps --------------------------------------------------------------------------------------------------

-- What a call may not answer. Returns the problem.
local function fault(err)
  if type(err) ~= "string" then return "the error is a " .. type(err) end
  if not err:find "^[^:]*:%d+: " then return "no place: " .. err end
  if err:find "^[^:]*/perilune/[^:]*lua:%d+: " then return "blames perilune's own file: " .. err end
  if err:find "attempt to %l+ a" or err:find "bad argument #" then return "not said by perilune: " .. err end
  return nil
end

local function keep(env, ...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if T.is_tensor(v) then
      if #env.vars >= 10 then table.remove(env.vars, 1) end
      env.vars[#env.vars + 1] = v
    end
  end
end

local function attempt(env, what, f, args)
  env.trace[#env.trace + 1] = { what, args }
  local got = table.pack(pcall(function() return f(table.unpack(args, 1, args.n)) end))
  if got[1] then
    keep(env, table.unpack(got, 2, got.n))
  else
    local problem = fault(got[2])
    if problem then env.problems[#env.problems + 1] = what .. ": " .. problem end
  end
end

local infos = support.public()

local function call_op(g, env)
  local info = pick(g, infos)
  local name = info.name
  local f = T.core.op[name]
  local way = g:int(1, 4)
  if way == 1 then f = T[name] or f end
  if way == 2 then f = T[name .. "_"] or f end
  if cases[name] and chance(g, 0.6) then
    if way ~= 2 then f = support.raw(name) end
    return attempt(env, name, f, from_row(g, env, name))
  end
  attempt(env, name, f, from_descriptor(g, env, info))
end

local function position(g)
  local k = g:int(1, 8)
  if k <= 3 then return g:int(-2, 4) end
  if k == 4 then return {} end
  if k == 5 then return { g:int(-2, 3), g:int(-2, 4) } end
  if k == 6 then return { g:int(-2, 3), g:int(-2, 4), g:int(-1, 3) } end
  if k == 7 then return T.tensor({ g:int(-1, 4), g:int(1, 3) }, { dtype = "i64" }) end
  return T.tensor { true, false, true }
end

local function key(g, env)
  local k = g:int(1, 6)
  if k == 1 then return g:int(-2, 5) end
  if k == 2 then return pick(g, { ":", "1, :", "..., 1", "1:2, :", "-1", "::2", "2:1", ", ", "1:", "0", "1,1,1,1" }) end
  if k == 3 then return tensor(g, env) end
  local l = {}
  for i = 1, g:int(0, 3) do l[i] = position(g) end
  return l
end

local function index_get(g, env)
  attempt(env, "get", function(x, k) return x[k] end, { tensor(g, env), key(g, env), n = 2 })
end

local function index_set(g, env)
  local v = chance(g, 0.5) and pick(g, NUMBERS) or tensor(g, env)
  attempt(env, "set", function(x, k, y) x[k] = y end, { tensor(g, env), key(g, env), v, n = 3 })
end

local LOOKS = { "item", "totable", "to_string", "shape", "stride", "size", "equal", "get", "is_contiguous", "detach",
  "storage_offset", "version", "clone", "contiguous", "brief", "describe", "requires_grad_", "numel", "dim", "dtype" }
local function look(g, env)
  local m = pick(g, LOOKS)
  local args = { tensor(g, env), n = 1 }
  for i = 2, g:int(1, 4) do
    args[i] = chance(g, 0.7) and g:int(-1, 4) or tensor(g, env)
    args.n = i
  end
  attempt(env, m, T.core.metatable().methods[m], args)
end

local function operator(g, env)
  local a, b = tensor(g, env), chance(g, 0.3) and pick(g, NUMBERS) or tensor(g, env)
  local f = pick(g, {
    function(x, y) return x + y end, function(x, y) return y - x end, function(x, y) return x * y end,
    function(x, y) return y / x end, function(x, y) return x // y end, function(x, y) return x % y end,
    function(x, y) return x ^ y end, function(x) return -x end, function(x, y) return x & y end,
    function(x) return ~x end, function(x, y) return x << y end, function(x) return #x end,
    function(x, y) return x < y end, function(x, y) return x == y end, function(x, y) return x .. tostring(y) end,
  })
  attempt(env, "operator", f, { a, b, n = 2 })
end

local function hook(g, env)
  local other = tensor(g, env)
  local f = pick(g, {
    function(d) return d * 2 end, function() return other end, function(d) d:free() end,
    function() return 1 end, function(d) return d:sum() end, function() other:detach_() end,
  })
  env.hooked = true
  attempt(env, "register_hook", function(x) return x:register_hook(f) end, { tensor(g, env), n = 1 })
end

local double = T.custom { name = "double", forward = function(ctx, x, k)
  ctx:save(x)
  ctx.k = k
  return x * 2
end, backward = function(ctx, d)
  local x = ctx:saved()
  if ctx.k == 1 then return x end
  return d * 2
end }

local function custom(g, env)
  env.hooked = true
  attempt(env, "custom", double, { tensor(g, env), g:int(0, 1), n = 2 })
end

-- A tensor with a history, if a few tries find one.
local function recorded(g, env)
  for _ = 1, 8 do
    local t = tensor(g, env)
    if not t:is_freed() and t.requires_grad and not t.is_leaf then return t end
  end
  return tensor(g, env)
end

local function backward(g, env)
  local y = recorded(g, env)
  local create = chance(g, 0.2) and not env.hooked
  local options = { create_graph = create, retain_graph = chance(g, 0.3) or nil }
  if chance(g, 0.3) then
    attempt(env, "grad_of", function(a, b)
      return T.grad_of({ a:sum() }, { b }, { create_graph = create, allow_unused = true })
    end, { y, tensor(g, env), n = 2 })
  elseif chance(g, 0.2) then
    attempt(env, "backward", function(a, d) a:backward(d, options) end, { y, tensor(g, env), n = 2 })
  else
    attempt(env, "backward", function(a) a:sum():backward(options) end, { y, n = 1 })
  end
end

local function by_key(g, env)
  env.hooked = true
  local x = tensor(g, env)
  attempt(env, "GradKey", function(a, b)
    local k <close> = T.GradKey {}
    k:attach(a, function(_, d) return d * 1 end)
    k:attach(b)
    k:backward({ a * b, a }, nil)
  end, { x, tensor(g, env), n = 2 })
end

local function in_place(g, env)
  local quiet = chance(g, 0.5)
  attempt(env, "in place", function(x, y)
    local _ <close> = quiet and T.no_grad() or nil
    return x:mul_(y)
  end, { tensor(g, env), tensor(g, env), n = 2 })
end

local function free(g, env)
  attempt(env, "free", function(x) x:free() end, { tensor(g, env), n = 1 })
end

local STEPS = { { 55, call_op }, { 6, index_get }, { 5, index_set }, { 6, look }, { 8, operator }, { 2, hook },
  { 2, custom }, { 8, backward }, { 2, by_key }, { 4, in_place }, { 2, free } }

local function step(g, env)
  local at = g:int(1, 100)
  for _, s in ipairs(STEPS) do
    at = at - s[1]
    if at <= 0 then return s[2](g, env) end
  end
end

-- ---- programs -------------------------------------------------------------------------------------------------

local function words(v)
  if T.is_tensor(v) then return v:describe() end
  if type(v) ~= "table" then return tostring(v) end
  local l = {}
  for k, x in pairs(v) do l[#l + 1] = (math.type(k) and "" or k .. "=") .. words(x) end
  return "{" .. table.concat(l, ",") .. "}"
end

-- What a program did, one call a line.
function M.text(trace)
  local lines = {}
  for _, c in ipairs(trace) do
    local args = {}
    for i = 1, c[2].n do args[i] = words(c[2][i]) end
    lines[#lines + 1] = c[1] .. "(" .. table.concat(args, ", ") .. ")"
  end
  return table.concat(lines, "\n")
end

-- Runs program number `seed`; returns a list of problems and, where asked for, the trace. tell(line) hears of every
-- call before it is made.
function M.run(seed, tell)
  local g = random.new(seed)
  local env = { vars = {}, trace = {}, problems = {}, freed = T.ones(2) }
  env.freed:free()
  if tell then
    setmetatable(env.trace, { __newindex = function(t, k, c)
      tell(M.text { c })
      rawset(t, k, c)
    end })
  end
  T.manual_seed(seed)
  T.set_memory_budget(BUDGET)
  env.shape = shape_of(g, env)
  for _ = 1, g:int(3, 10) do
    local ok, err = pcall(step, g, env)
    -- building an argument may fail for lack of memory
    if not ok and not tostring(err):find("memory", 1, true) then
      env.problems[#env.problems + 1] = "step: " .. tostring(err)
    end
  end
  T.set_memory_budget(nil)
  if not T.core.grad_enabled() then
    env.problems[#env.problems + 1] = "recording is left off"
    T.core.grad_enabled(true)
  end
  return env.problems, env.trace
end

return M
