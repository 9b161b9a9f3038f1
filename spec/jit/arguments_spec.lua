-- SPDX-License-Identifier: MIT
-- Random programs about the arguments of jitted functions: one tensor twice, views of each other, of parameters and of
-- what was computed, in tables, beside numbers and strings that change; written in place, returned as they are and as
-- views, at changing numbers of threads. Values, gradients, shared memory and identity are those of the script, or it
-- is refused. PERILUNE_FUZZ_ARGUMENTS sets how many.
-- luacheck: no max line length

local T = require "perilune"
local random = require "spec.support.random"

local on_device = require "spec.support.device".mode ~= nil
local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_ARGUMENTS") or (on_device and 10 or 200)
local D = { dtype = "f64" }

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]*" do list[#list + 1] = line end
  return list
end

local BODY = lines [[u = u * x
u = u + y:sin()
u = u * o.scale
u = u + o.list[1] * (o.n or 1)
u = u * o.list[#o.list]
u = u + z.t
u = u * z.inner.w + z.inner.k
u = u + (o.flag and x or y)
u = u * w
u = u:matmul(w:t())
u = u + x:t():t()
u = u * x:view(-1):view(3, 3)
x:mul_(1.5)
y:add_(0.5)
x[1] = y[2]
z.t:add_(x * 0.1)
y:copy_(x)
u = u + y x:mul_(2)
z.t:view(-1):narrow(1, 1, 3):fill_(o.scale)
x:t():narrow(1, 1, 1):mul_(2)
do local v = x:narrow(1, 1, 2) v:add_(1) u = u + v:sum() end
u = u + o.list[1]:detach() * x
T.no_grad(function() x:mul_(0.5) end)
T.no_grad(function() w:mul_(0.9) end)
u = u:tanh()
u = T.where(x:gt(y), u, x)
if rawequal(x, y) then u = u * 2 end
if x == y then u = u + 2 end
if rawequal(z.t, x) then u = u * 1.5 end
if z.t == o.list[1] then u = u - 1 end
u = u * (({ [x] = 2 })[y] or 1)
if o.mode == "a" then u = u * 3 end
for k, v in pairs(z.inner) do u = u * (k == "w" and 2 or v) end
u = u * #o.list
u = u * (select("#", ...) + 1)
u = u + (... or 0)]]
local RET = lines [[u
u, x
u, x:t()
u, y:narrow(1, 1, 1)
{ u = u, z = z }
u, o.list[1]
x, y
u, z.t:view(9)
u, w:t()
u, x + 0]]
local ARG = lines [[R()
R():requires_grad_()
R():requires_grad_() * 2
R():t()
a
a:t()
a:view(3, 3)
base[{ { 1, 3 } }]
base[{ { 2, 4 } }]
base[{ { 1, 3 } }]:t()
w
w:detach()
h
h[{ { 1, 3 } }]
hb
T.randn(1, 3, D):expand(3, 3)
T.randn(3, 1, D):requires_grad_():expand(3, 3)]]
local AFTER = lines [[back()
back()
back()
back2()
grads()
]]
local PRELUDE = [[local T, wrap, snap, step, D = ...
T.manual_seed(3)
local function R() return T.randn(3, 3, D) end
local w, a, base = R():requires_grad_(), R(), T.randn(5, 3, D)
local hb = T.randn(5, 3, D):requires_grad_()
local h = hb * 2
local r, x, y, z, o
local function tot(fn) local s for _, v in ipairs { r[1], r[2] } do if T.is_tensor(v) and v.requires_grad then local q = fn(v):sum() s = s and s + q or q end
 if type(v) == "table" and not T.is_tensor(v) then for _, n in ipairs { "u" } do if v[n].requires_grad then local q = fn(v[n]):sum() s = s and s + q or q end end end end return s end
local function back() local l = tot(function(v) return v * v end) if l then l:backward() end end
local function back2() local l = tot(function(v) return v:sin() end) if l then l:backward { retain_graph = true } l:backward() end end
local function grads() local l = tot(function(v) return v:sin() end) if l then local xs = {} for _, t in ipairs { x, y, w, hb } do if t.requires_grad and t.is_leaf then xs[#xs + 1] = t end end
 if #xs > 0 then local gs = T.grad_of(l, xs, { create_graph = true, allow_unused = true }) for i = 1, #xs do snap(gs[i]) end end end end
local f = wrap(function(x, y, z, o, ...)
local u = x * 1
]]

local function program(g)
  local function pick(list) return list[g:int(1, #list)] end
  local p = { PRELUDE }
  local function put(...) p[#p + 1] = (...):format(select(2, ...)) end
  for _ = 1, g:int(1, 4) do put("%s\n", pick(BODY)) end
  put("do return %s end\nend)\n", pick(RET))
  for i = 1, g:int(3, 5) do
    local same = g:int(1, 4)
    put("step(%d, function()\nx = %s\n", i, pick(ARG))
    put("y = %s\n", same == 1 and "x" or same == 2 and "x:t()" or pick(ARG))
    put("z = { t = %s, inner = { w = R(), k = %s } }\n", g:int(1, 4) == 1 and "x" or pick(ARG), pick { "2", "1.5", "2.5" })
    put("o = { scale = %s, flag = %s, ", pick { "0.5", "1.5", "2", "-1.0" }, pick { "true", "false", "nil" })
    put("n = %s, mode = %q, ", pick { "nil", "2", "3", "2.0" }, pick { "a", "b" })
    put("list = { %s%s } }\n", pick { "R()", "y", "w", "x:view(9):view(3, 3)" }, pick { "", ", 0.5", ", R()", ", w" })
    if g:int(1, 5) == 1 then put("T.set_num_threads(%d)\n", g:int(1, 2)) end
    put("r = { f(x, y, z, o%s) }\nfor k = 1, 2 do snap(r[k]) end\n%s\n", pick { "", "", ", 2", ", R()" }, pick(AFTER))
    put("for _, t in ipairs { x, y, z.t, o.list, w, a, base, h } do snap(t) end\n")
    put("for _, t in ipairs { x, y, w, hb, z.t } do if t.is_leaf then snap(t.grad or 'nil') end end\n")
    put("for k = 1, 2 do if T.is_tensor(r[k]) then for _, t in ipairs { x, y, w, z.t } do\n")
    put("snap(r[k]:shares_storage(t)) snap(rawequal(r[k], t)) end end end\nend)\n")
    if g:int(1, 3) == 1 then put("w.grad = nil\n") end
  end
  return table.concat(p)
end

-- What the program saw, and at which step it ended early, if it did.
local function run(text, wrap)
  local log, stop = {}, nil
  local function snap(v, depth)
    if T.is_tensor(v) then
      local numbers = v:detach():to("f64"):contiguous():flatten():totable()
      log[#log + 1] = { v:dtype(), table.concat(v:shape(), "x"), v.requires_grad, numbers }
    elseif type(v) == "table" and depth < 3 then
      local keys = {}
      for k in pairs(v) do keys[#keys + 1] = k end
      table.sort(keys, function(p, q) return tostring(p) < tostring(q) end)
      for _, k in ipairs(keys) do snap(v[k], depth + 1) end
    else
      log[#log + 1] = tostring(v)
    end
  end
  local function step(i, f)
    if stop then return end
    local before = #log
    if pcall(f) then return end
    stop = i
    for k = #log, before + 1, -1 do log[k] = nil end
  end
  assert(load(text))(T, wrap, function(v) snap(v, 0) end, step, D)
  return log, stop
end

local function differs(v, u)
  if type(v) ~= type(u) then return "another kind of value" end
  if type(v) == "string" then return v ~= u and v .. ", compiled " .. u or nil end
  for k = 1, 3 do if v[k] ~= u[k] then return tostring(v[k]) .. ", compiled " .. tostring(u[k]) end end
  for k, n in ipairs(v[4]) do
    local m = u[4][k]
    local near = n == m or n ~= n and m ~= m or math.abs(n - m) <= 1e-8 * (math.abs(n) + 1)
    if not near then return n .. ", compiled " .. m end
  end
end

describe("arguments of jitted functions, drawn at random,", function()
  local threads = T.get_num_threads()
  after_each(function() T.set_num_threads(threads) end)

  it("are what they are in the script", function()
    local refused, compared = 0, 0
    for seed = 1, COUNT do
      local text = program(random.new(seed))
      local want, ended = run(text, function(f) return f end)
      for _, options in ipairs { { max_traces = 32 }, { max_traces = 32, mirror = "mirror" } } do
        local got, early = run(text, function(f) return T.jit(f, options) end)
        compared = compared + 1
        if early and (not ended or early < ended) then refused = refused + 1 end
        for i = 1, math.min(#want, #got) do
          local d = differs(want[i], got[i])
          assert.is_nil(d, ("program %d, value %d: %s\n%s"):format(seed, i, tostring(d), text))
        end
      end
    end
    assert.is_true(refused < 0.3 * compared, ("%d of %d were refused"):format(refused, compared))
  end)
end)
