-- SPDX-License-Identifier: MIT
-- Random programs for T.jit whose function reads what lies around it: tensors and numbers in upvalues and tables,
-- modules and their modes, optimizers, hooks, generators, settings, other jitted functions, aliases of all of these.
-- Between calls something of it changes, and calls come in many surroundings. Judge: the same program as written.

local T = require "perilune"
local random = require "spec.support.random"
local nn = T.nn

local M = {}

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line:match "^%s*(.-)%s*$" end
  return list
end

-- NUM and INT become numbers, X is the argument.
local BODY = lines [[
  y = y * a
  y = y + c
  y = y * b + a
  y = net(y)
  y = net(y)
  y = net2(y)
  y = y * k
  y = y + k
  if flag then y = y:tanh() end
  if flag then return y, a end
  y = y * cfg.scale
  y = y + cfg.list[1]
  for _, t in ipairs(cfg.list) do y = y * t end
  for n, t in pairs(cfg.named) do y = y + t * #n end
  y = helper(y)
  y = helper(y)
  y = obj:go(y)
  y = y * #cfg.list
  y = cfg.mode == 'x' and y:sin() or y:cos()
  buf:add_(y:detach():sum(1):float())
  buf:mul_(0.5)
  buf[1] = k2
  y = y + buf
  T.no_grad(function() buf:copy_(y:mean(1)) end)
  T.no_grad(function() a:mul_(0.9) end)
  T.no_grad(function() a[2] = 0.3 end)
  y = T.no_grad(function() return y * b end)
  y = T.checkpoint(function(z) return z:sin() * a end, y)
  y = T.checkpoint(function(z) return net(z) * k end, y)
  y = T.checkpoint(function(z) return F.dropout(z, 0.4) end, y)
  y = custom(y)
  y = custom2(y, a)
  y = y + T.rand_like(y)
  y = F.dropout(y, 0.5)
  y = y + T.randn(3, { generator = gen })
  y = F.dropout(y, 0.5, net.training)
  y = y + T.grad(function(z) return (z * a):square():sum() end, y:detach())
  y = y + T.grad(function(z) return (z * a):square():sum() end, y)
  y = y + T.jvp(function(z) return z * a:sin() end, y, T.ones_like(y))
  y = T.vmap(function(r) return r * a + k end)(y)
  y = T.autocast({ dtype = 'bf16' }, function() return y:float():matmul(m) end):float()
  y = inner(y)
  y = inner(y) + inner(y * 2)
  y = inner2(y)
  (y * a):square():sum():backward { retain_graph = true }
  do local l = (y * a):sum() if l.requires_grad then l:backward{ retain_graph = true } end end
  do opt:zero_grad() local l = (net(y:detach()) * a):square():mean() l:backward() opt:step() end
  do local l = net(y:detach()):square():mean() l:backward() opt:step() opt:zero_grad() end
  do local l = (net(y:detach()) * a):square():mean() l:backward() if flag then opt:step() opt:zero_grad() end end
  do local g = T.grad_of((y * a):sum(), a, {create_graph = flag, retain_graph=true}) y = y + g end
  y = y:detach()
  y = y + a:detach()
  do y = y * 1 y[1]:mul_(2) end
  do y = y * 1; local v = y:t(); v:add_(a:unsqueeze(2)) end
  do y = y * 1; local v = y:narrow(2,1,2); v:copy_(v:sin()) end
  x:mul_(0.5)
  x[1] = a:detach()
  y = y:to(cfg.dtype)
  y = y + T.ones(3)
  y = y + T.tensor { 1, 2.5, 3 }
  y = y * T.arange(1, 3)
  if a.grad then y = y + a.grad end
  a.grad = nil
  if a.grad then a.grad:zero_() end
  if a.requires_grad then y = y * 2 end
  if x.requires_grad then y = y * 3 end
  if T.is_grad_enabled() then y = y + 0.5 end
  if y.requires_grad then y = y * 1.5 end
  if a:dtype() == 'f32' then y = y - 1 end
  if net.training then y = y * 0.7 end
  if T.is_autocast_enabled() then y = y + 9 end
  if T.get_default_dtype() == 'f64' then y = y + 7 end
  if x:size(1) == 2 then y = y * 5 end
  if a == b then y = y * 6 end
  if x == a then y = y * 7 end
  y = y * (type(k) == 'number' and 2 or 3)
  if math.type(k) == 'integer' then y = y + 4 end
  if cfg.extra then y = y + cfg.extra end
  if y.requires_grad then y:register_hook(function(g) return g * k2 end) end
  if cfg.boom then error('boom') end
  pcall(function() return y:matmul(T.ones(7)) end)
  pcall(function() y = y * 2 error('in') end)
  do local co = coroutine.wrap(function(z) z = coroutine.yield(z * a) return z + 1 end) y = co(y) y = co(y) end
  T.set_grad_enabled(false) y = y * a T.set_grad_enabled(true)
  y = y:mul(a):add(select('#', ...))
  y = vararg(y, a, b)
  y = y * (cfg.get and cfg.get() or 1)
  y = nn.utils.functional_call(net, { ['1.weight'] = net2[1].weight * 2 }, y)
  net[1].weight.grad = nil
  cfg.last = y:detach()
  if cfg.last then y = y + cfg.last:mean() end
  do local s <close> = setmetatable({}, { __close = function() cfg.scope = 1 end }) y = y * 2 end
  y = T.where(y:gt(0), y, a)
  y = F.embedding(T.tensor({ 1, 2, 1 }, {dtype='i64'}):narrow(1, 1, 2), m * k):sum(1) + y
  y = y:float() y = (y:matmul(m)):double()
  y = y * ups()
  y = y * G_K
  y = y + (rawequal(a, c) and 1 or 0)
  y = y * a:clone():requires_grad_(false)
  y = y + c * c:version()
  y = y + a.shape[1]
  T.manual_seed(k2 > 0 and 3 or 4) y = y + T.rand(3)
  y = y + sched.last
  cfg.named.q = nil
  y = y + obj.w
  obj.n = (obj.n or 0) + 0 y = y * obj.n
  y = T.cat({y, y}, 1):narrow(1, 1, y:size(1))
  y = y * tied:weightsum()
  do local p, q = T.vjp(function(z) return z * a * k end, y) y = y + q(T.ones_like(y)) end
  y = y + (({[true] = 1, [false] = 2})[flag])
  y = y * string.len(cfg.mode)
  y = y + #tostring(k2)
]]
local RETURN = lines [[
  return y
  return y
  return y
  return { y = y, a = a }
  return y, a
  return x, y
  return a:view(3, 1), y
  return buf, y
  return c, y
  return { { y }, k }
  return y:sum()
  return y:t()
  return y[1]
  return y, x:t()
  return y, net[1].weight
  return y, flag
  return y, nil, 3
  return y:detach(), a:detach()
  return y, cfg.list
]]
local CHANGE = lines [[
  a = T.randn(3):requires_grad_()
  a = b
  a = c
  a:requires_grad_(false)
  if not a.requires_grad then a = a:detach() a:requires_grad_(true) end
  T.no_grad(function() a:mul_(1.5) end)
  a = a:detach():double():requires_grad_()
  a.grad = nil
  a = a:detach():clone()
  a = T.randn(1):requires_grad_()
  a = T.randn(6):requires_grad_():narrow(1, 2, 3)
  a = T.randn(6)[{ { 1, 6, 2 } }]
  b = T.randn(3)
  b:mul_(2)
  b = T.ones(1):expand(3)
  c = b:detach() * 3
  c = a * 3
  c = c:detach()
  c = (a * 2):sin()
  c = c * 2
  k = NUM
  k = 3
  k = 3.0
  k = T.tensor(2.0)
  k = T.tensor(NUM):requires_grad_()
  k = true and 2 or 1
  flag = not flag
  flag = nil
  cfg.scale = NUM
  cfg.scale = a
  cfg.list[1] = T.randn(3)
  cfg.list = { T.randn(3), NUM }
  table.insert(cfg.list, T.randn(3))
  table.remove(cfg.list)
  if #cfg.list == 0 then cfg.list[1] = b end
  cfg.named.z = T.randn(3)
  cfg.named.q = 1.5
  cfg.named = { u = b }
  cfg.mode = 'x'
  cfg.mode = 'yy'
  cfg.extra = NUM
  cfg.extra = b
  cfg.extra = nil
  cfg.boom = true
  cfg.boom = nil
  cfg.dtype = 'f64'
  cfg.dtype = 'f32'
  cfg.get = function() return NUM end
  do local u = NUM cfg.get = function() return u end end
  cfg = { scale = 2, list = { b }, named = {}, mode = 'x', dtype = 'f32' }
  net:eval()
  net:train()
  net[3]:eval()
  net[1].weight = nn.Parameter and nn.Parameter(T.randn(3, 3)) or T.randn(3, 3):requires_grad_()
  net[1].weight = net2[1].weight
  net:double()
  net:float()
  net[1]:requires_grad_(false)
  net:requires_grad_(true)
  net[3].p = 0.9
  net[3].p = 0.0
  net[2].momentum = 0.5
  net[2].eps = 0.1
  net[2].running_mean = T.randn(3)
  net[2].running_mean:fill_(0.25)
  nn.utils.weight_norm(net[1])
  nn.utils.remove_weight_norm(net[1])
  net:load_state_dict(sd)
  net = net:clone()
  net[1].forward = function(s, z) return z * s.weight:sum() end
  net[1].forward = nil
  net[1].bias = nil
  hook1 = net[1]:register_forward_hook(function(_, _, o) return o * NUM end)
  if hook1 then hook1:remove() hook1 = nil end
  hook2 = net:register_forward_pre_hook(function(_, z) return z * 2 end)
  if hook2 then hook2:remove() hook2 = nil end
  net[1].weight:register_hook(function(g) return g * NUM end)
  if a.requires_grad then ahook = a:register_hook(function(g) return g * NUM end) end
  if ahook then ahook:remove() ahook = nil end
  net2 = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
  net2[2] = nn.ReLU()
  net2[1], net = net[1], net
  opt.param_groups[1].lr = 0.5
  opt = optim.SGD(net:parameters(), { lr = 0.1 })
  opt = optim.Adam(net:parameters(), { lr = 0.1 })
  opt:add_param_group { params = { b:detach():clone():requires_grad_() }, lr = 0.3 }
  T.manual_seed(INT)
  gen = T.Generator():manual_seed(INT)
  T.set_default_dtype 'f64'
  T.set_default_dtype 'f32'
  T.set_grad_enabled(false)
  T.set_grad_enabled(true)
  helper = function(z) return z * NUM end
  helper = function(z) return z * a end
  helper = net2
  helper = nn.Tanh()
  helper = F.relu
  helper = function(z) return helper2(z) end
  helper2 = function(z) return z + NUM end
  function Cls:go(z) return z * NUM end
  obj.w = NUM
  obj.w = T.randn(3)
  obj.n = INT
  obj.go = function(_, z) return z end
  obj = setmetatable({ w = 2, n = 1 }, Cls)
  G_K = NUM
  buf:fill_(NUM)
  buf = T.ones(3)
  buf = T.zeros(6)[{ { 1, 3 } }]
  m = T.randn(3, 3)
  m = m:t()
  custom = mk(NUM)
  k2 = NUM
  inner = wrap(function(z) return z * a + NUM end)
  inner = wrap(net2)
  inner2 = inner
  ups = function() return a * k2 end
  sched.last = NUM
  T.no_grad(function() for _, p in ipairs(net:parameters()) do p:add_(0.1) end end)
  for _, p in ipairs(net:parameters()) do p.grad = nil end
  a.grad = T.ones_like(a)
  cfg.last = nil
  tied.net = net2
  tied.net = net
  vararg = function(z, ...) return z * select('#', ...) end
  collectgarbage()
  c:mul_(2)
  c:requires_grad_(c.requires_grad)
  net[2].training = not net[2].training
  net:zero_grad()
  net[4] = nn.Tanh()
  net:append(nn.Tanh())
  net[2].track_running_stats = false
]]
local ARGUMENT = lines [[
  T.randn(2, 3)
  T.randn(2, 3)
  T.randn(2, 3)
  T.randn(4, 3)
  T.randn(3, 2):t()
  T.randn(1, 3):expand(2, 3)
  T.randn(2, 3):double()
  T.randn(2, 3):requires_grad_()
  T.randn(2, 3):requires_grad_() * 2
  a:detach():expand(2, a:size(1)) + T.zeros(2,3)
  T.randn(4, 6)[{ { 1, 2 }, { 1, 3 } }]
  buf:view(1, 3)
  last
  last
  m
  b:view(1,3)
  net2[1].weight
  T.ones(2, 3):to('bf16')
  T.randn(3, 3)
  T.zeros(0, 3)
  T.randn(2, 3):half()
]]
local CALL = lines [[
  f(X)
  f(X)
  f(X)
  f(X)
  f(X)
  T.no_grad(function() return f(X) end)
  T.inference_mode(function() return f(X) end)
  T.autocast({ dtype = 'bf16' }, function() return f(X) end)
  T.checkpoint(function(z) return (f(z)) end, X)
  T.vmap(function(r) return (f(r:unsqueeze(1))) end)(X)
  T.grad(function(z) local o = f(z) return (T.is_tensor(o) and o or z):sum() end, X)
  T.jvp(function(z) return (f(z)) end, X, T.ones_like(X))
  (function() local co = coroutine.wrap(function() return f(X) end) return co() end)()
  f(X), f(X)
  f(X, X)
  f(X, b, 3)
  f(f(X))
  (function() local o = f(X) return (f(X)) end)()
  T.enable_grad(function() return f(X) end)
  T.vjp(function(z) return (f(z)) end, X)
]]
-- What is done with the results r.
local AFTER = lines [[
  back(r)
  back(r)
  back2(r)
  if T.is_tensor(r[1]) then T.no_grad(function() r[1]:mul_(2) end) end
  later = r
  if later then back(later) later = nil end
  last = T.is_tensor(r[1]) and r[1] or last
  last = T.is_tensor(r[1]) and r[1]:detach() or last
  r = nil collectgarbage()
  if a.grad then a.grad:mul_(2) end
]]

local PRELUDE = [[
local wrap, out, T, nn, optim, F, see, back, back2, env = ...
local _ENV = env
T.set_default_dtype 'f32'
T.set_grad_enabled(true)
T.manual_seed(11)
local a, b = T.randn(3):requires_grad_(), T.randn(3)
local c = a * 2
local k, k2, flag, m, buf = 1.5, 0.5, true, T.randn(3, 3), T.zeros(3)
local cfg = { scale = 2, list = { T.randn(3) }, named = { z = b }, mode = 'x', dtype = 'f32' }
local net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.3))
local net2 = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
local sd = net:state_dict()
for n, t in pairs(sd) do sd[n] = t:clone() end
local opt = optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
local gen = T.Generator():manual_seed(5)
local helper2 = function(z) return z - 1 end
local helper = function(z) return z * 0.7 end
local Cls = {} Cls.__index = Cls
function Cls:go(z) return z * self.w end
local obj = setmetatable({ w = 2, n = 1 }, Cls)
G_K = 1.25
local ups = function() return a * k2 end
local sched = { last = 1 }
local tied = { net = net } function tied:weightsum() return self.net[1].weight:sum() end
local vararg = function(z, p, q) return z * p + q end
local function mk(n)
  local function by(_, z) return z * n end
  return T.custom { name = "mk", forward = by, backward = by, jvp = by }
end
local custom = mk(1.25)
local custom2 = T.custom {
  name = "two",
  forward = function(ctx, z, w) ctx:save(z, w) return z * w end,
  backward = function(ctx, g) local z, w = ctx:saved() return g * w, (g * z):sum(1) end,
}
local hook1, hook2, ahook, later
local last = T.randn(2, 3)
local inner = wrap(function(z) return z * a + k end)
local inner2 = wrap(function(z) return net2(z) * cfg.scale end)
local r
local f
]]

local function program(g)
  local function pick(list) return list[g:int(1, #list)] end
  local function fill(s)
    return (s:gsub("NUM", function() return ("%.2f"):format(g:int(-150, 150) / 100 + 0.005) end)
      :gsub("INT", function() return tostring(g:int(1, 9)) end))
  end
  local p = { PRELUDE, "f = wrap(function(x, ...)\nlocal y = x\n" }
  local function put(...) p[#p + 1] = (...):format(select(2, ...)) end
  for _ = 1, g:int(1, 6) do p[#p + 1] = fill(pick(BODY)) .. "\n" end
  put("do %s end\nend)\n", pick(RETURN))
  for i = 1, g:int(3, 6) do
    put("out[%d] = {}\n", i)
    for _ = 1, i > 1 and g:int(0, 2) or 0 do put("see.try(%d, function() %s end)\n", i, fill(pick(CHANGE))) end
    put("do local X = %s\nT.manual_seed(%d)\n", g:int(1, 10) < 7 and ARGUMENT[1] or pick(ARGUMENT), i)
    put("r = see.call(%d, function() return %s end)\n", i, g:int(1, 2) == 1 and "f(X)" or pick(CALL))
    put("if r then see.try(%d, function() %s end) end end\n", i, g:int(1, 4) == 1 and "" or pick(AFTER))
    put("see.state(%d, { a = a, b = b, c = c, k = k, buf = buf, m = m, cfg = cfg, obj = obj, last = last,\n", i)
    put("  drawn = T.rand(1, { generator = gen }), draw = T.rand(1), net = net:named_parameters(),\n")
    put("  buffers = net:named_buffers(), net2 = net2:named_parameters() }, r)\n")
  end
  return table.concat(p)
end

-- What of v can be compared.
local function snap(v, depth, seen)
  if T.is_tensor(v) then
    local ok, values = pcall(function() return v:detach():to("f64"):contiguous():flatten():totable() end)
    if not ok then return "of a trace or a batch that has ended" end
    return { dtype = v:dtype(), shape = table.concat(v:shape(), "x"), tracked = v.requires_grad, values = values,
      grad = v.grad and snap(v.grad) or "nil" }
  elseif type(v) == "table" and depth < 4 and not seen[v] and not nn.is_module(v) then
    seen[v] = true
    local out = {}
    for key, x in pairs(v) do
      if type(x) ~= "function" then out[tostring(key)] = snap(x, depth + 1, seen) end
    end
    return out
  end
  return type(v) == "number" and v or type(v) == "string" and v or type(v) == "boolean" and v or type(v)
end

local function differs(p, q, path)
  if type(p) == "table" and type(q) == "table" then
    for key in pairs(p) do
      local d = differs(p[key], q[key], path .. "." .. tostring(key))
      if d then return d end
    end
    for key in pairs(q) do
      if p[key] == nil then return path .. "." .. tostring(key) .. ": nothing, compiled something" end
    end
  elseif type(p) == "number" and type(q) == "number" then
    local near = p == q or p ~= p and q ~= q or math.abs(p - q) <= 3e-4 * (1e-2 + math.abs(p) + math.abs(q))
    return not near and ("%s: %.7g, compiled %.7g"):format(path, p, q) or nil
  elseif p ~= q then
    return ("%s: %s, compiled %s"):format(path, tostring(p), tostring(q))
  end
end

-- f of all results that have a gradient, added up.
local function total(r, f)
  local sum
  local function add(v, depth)
    if T.is_tensor(v) then
      if v.requires_grad and v:numel() > 0 then
        local s = f(v:double()):sum()
        sum = sum and sum + s or s
      end
    elseif type(v) == "table" and depth < 2 then
      local keys = {}
      for key in pairs(v) do keys[#keys + 1] = key end
      table.sort(keys, function(p, q) return tostring(p) < tostring(q) end)
      for _, key in ipairs(keys) do add(v[key], depth + 1) end
    end
  end
  add(r, 0)
  return sum
end

local function back(r)
  local l = total(r, function(v) return v:square() end)
  if l then l:backward() end
end
local function back2(r)
  local l = total(r, function(v) return v end)
  if l then
    l:backward { retain_graph = true }
    l:backward()
  end
end

local function run(text, wrap)
  local out, see = {}, {}
  function see.try(i, f)
    out[i].tries = (out[i].tries or "") .. (pcall(f) and "+" or "-")
  end
  function see.call(i, f)
    local r = table.pack(pcall(f))
    T.set_grad_enabled(true)
    out[i].ok, out[i].err = r[1], not r[1] and tostring(r[2]) or nil
    return r[1] and { table.unpack(r, 2, r.n) } or nil
  end
  function see.state(i, state, r)
    local shared = {}
    for j, v in pairs(r or {}) do
      for _, name in ipairs { "a", "b", "c", "buf", "last", "m" } do
        local t = state[name]
        if T.is_tensor(v) and T.is_tensor(t) and v:numel() > 0 then
          if rawequal(v, t) then shared[#shared + 1] = j .. " is " .. name
          elseif v:shares_storage(t) then shared[#shared + 1] = j .. " in " .. name end
        end
      end
    end
    table.sort(shared)
    out[i].state, out[i].result, out[i].shared = snap(state, 0, {}), snap(r or {}, 0, {}), shared
  end
  local env = setmetatable({}, { __index = _G })
  local f = assert(load(text, "=program", "t", env))
  local ok, err = pcall(f, wrap, out, T, nn, T.optim, nn.F, see, back, back2, env)
  T.set_default_dtype "f32"
  T.set_grad_enabled(true)
  return out, not ok and tostring(err) or nil
end

-- Where the program goes on after an error, what went before it was done as written and not compiled.
local function is_over(want, got)
  return not want.ok or not got.ok or want.tries ~= got.tries
end

--- run(seed, options of T.jit) → nil or what differs; how many calls were compared, how many were refused
function M.run(seed, options)
  local text = program(random.new(seed))
  local want, broken = run(text, function(f) return f end)
  local got, broken_too = run(text, function(f) return T.jit(f, options) end)
  local calls, refused = 0, 0
  for i, w in ipairs(want) do
    local g = got[i]
    if not g then break end
    calls = calls + 1
    if w.ok and not g.ok then refused = refused + 1 end
    if is_over(w, g) then
      -- a program may do inside a graph what it may not do in a checkpoint, or for NaN
      if g.ok and not w.ok and not w.err:find "checkpoint" and not w.err:find "vmap" then
        return ("call %d: %s, compiled none\n%s"):format(i, w.err, text), calls, refused
      end
      return nil, calls, refused
    end
    local d = differs(w, g, "call " .. i)
    if d then return d .. "\n" .. text, calls, refused end
  end
  if broken and not broken_too then return broken .. ", compiled no error\n" .. text, calls, refused end
  return nil, calls, refused
end

return M
