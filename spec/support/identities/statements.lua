-- SPDX-License-Identifier: MIT
-- Statements of random programs; see programs.lua.

-- luacheck: no max line length

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line:match "^%s*(.-)%s*$" end
  return list
end

-- ---- statements ---------------------------------------------------------------------------------------------

-- y is [4, 9]; NUM and INT become numbers, ROW a row, COL a column.
local PURE_BODY = lines [[
  y = y * p
  y = y + q
  y = (y * p):tanh()
  y = y:sin() * q
  y = y:softmax(2) + y
  y = y * y:mean(2, true)
  y = y - y:logsumexp(2, { keepdim = true })
  y = y:square() * 0.3 + p
  y = y / (1 + y:square():sum(2, true))
  y = F.layer_norm(y, { 9 }) * p
  y = F.gelu(y) + q
  y = T.where(y:gt(0), y * p, q + y * 0)
  y = y:cumsum(2) * 0.3
  y = y:flip(2)
  y = y:roll(1, 2)
  y = y:matmul(p:unsqueeze(2):mul(q:unsqueeze(1))) * 0.2
  y = y * NUM + NUM
  y = y:clamp { min = -0.8, max = 0.9 } + y * 0.1
  y = T.cat({ y:narrow(2, 1, 4), y:narrow(2, 5, 5):cos() }, 2)
  do local v = y * 1 v:narrow(2, 2, 3):mul_(p:narrow(1, 1, 3)) y = v end
  do local v = y * 1 v:add_(q) v:mul_(v) y = v:tanh() end
  do local v = y:clone() v:select(2, 3):copy_(y:select(2, 4) * 2) y = v end
  do local v = T.zeros_like(y) v:add_(y) y = v * q end
  y = y:masked_fill(y:lt(-0.5), NUM)
  y = y:sort(2) * p
  y = y:gather(2, y:argsort(2))
  y = T.lerp(y, y * q, 0.3)
  y = y:norm { dim = 2, keepdim = true } * p + y
  y = y:expm1():clamp { max = 3 }
  y = y * p:exp():sum()
  y = y + y:detach() * q
]]

local BODY = lines [[
  y = y * a
  y = y + c
  y = y * b + a
  y = net(y)
  y = net(y)
  y = lin(y):tanh()
  y = F.linear(y, w)
  y = y:matmul(w) * 0.3
  y = y * k
  y = (y + k):sin()
  y = y:tanh()
  y = y:square() * 0.5
  y = y:softmax(2) * 3
  y = y - y:mean(1, true)
  y = F.layer_norm(y, { 9 }, b)
  y = F.dropout(y, 0.4)
  y = F.dropout(y, 0.4)
  y = y + T.rand_like(y)
  y = y + T.randn(9, { generator = gen, dtype = 'f64' }) * a
  y = T.bernoulli(y:sigmoid():detach()) * y + y
  y = drop(y)
  y = bn(y)
  buf:add_(y:detach():sum(1))
  buf:mul_(0.5)
  y = y + buf
  y = y * buf:clone()
  T.no_grad(function() buf:copy_(y:mean(1)) end)
  buf[3] = k
  y = y * 1; y[2]:mul_(2)
  y = y * 1; y:add_(a)
  y = y * a; y:mul_(y)
  y = y * 1; do local v = y:t() v:narrow(1, 2, 3):copy_(y:t():narrow(1, 4, 3) * 2) end
  y = y * 1; do local v = y:narrow(2, 1, 4) local u = v:narrow(1, 2, 2) u:mul_(b:narrow(1, 1, 4)) y = y + v:sum() end
  y = y * 1; do local d = y:detach() y = y + d * b end
  do local z = y * a z:relu_() y = y + z end
  do local p, q = table.unpack(T.chunk(y * 1, 2, 1)) p:mul_(q) y = T.cat({ p, q }, 1) end
  y:mul_(0.5)
  y[1] = a
  y:add_(0.1)
  y = y:detach()
  y = y + y:detach() * a
  y = T.no_grad(function() return y * b end) + y
  if flag then y = y:tanh() else y = y * b end
  if y.requires_grad then y = y * 1 y:register_hook(function(g) return g * k end) end
  if y.requires_grad then y = y * 1 y:register_hook(function(g) return g:clamp { min = -1, max = 1 } end) end
  y = y + T.grad(function(z) return (z * a):square():sum() end)(y:detach())
  y = y + T.grad(function(z) return (z * a):sin():sum() end)(y)
  do local _, t = T.jvp(function(z) return z * a:sin() end, y, T.ones_like(y)) y = y + t end
  y = T.vmap(function(r) return r * a + k end)(y)
  y = T.vmap(function(r) return lin(r) end)(y):tanh()
  y = custom(y)
  y = custom2(y, a)
  y = dirty(y * 1)
  y = nn.utils.functional_call(lin, { weight = w * 2, bias = a }, y):tanh()
  y = T.where(y:gt(0), y, a)
  y = F.embedding(T.tensor({ 1, 2, 4, 1 }, { dtype = 'i64' }), w) + y
  y = y[{ {}, { 1, 9 } }]
  y = T.stack({ y, y * b }, 1):sum(1)
  y = y + (y:unsqueeze(2):matmul(w)):squeeze(2) * 0.1
  y = F.scaled_dot_product_attention(y:unsqueeze(1), y:unsqueeze(1) * a, y:unsqueeze(1)):squeeze(1)
  y = F.conv1d(y:unsqueeze(2), w:unsqueeze(2):narrow(1, 1, 1):narrow(3, 1, 3), nil, { padding = 1 }):squeeze(2)
  y = y * T.tensor({ 1.5 }, { dtype = 'f64' })
  y = T.checkpoint_name(y * 1.1, 'kept')
  y = y:cumsum(1):sin()
  y = y * y:max():detach()
  y = y * cfg.scale
  for _, t in ipairs(cfg.list) do y = y * t end
  y = y + w:diagonal()
  y = y * T.bernoulli(T.full({ 9 }, 0.5, { dtype = 'f64' }))
  y = (y:float() * 1):double()
  y = y:contiguous():t():contiguous():t()
]]

-- At the end of a step.
local AFTER = lines [[
  y:square():sum():backward()
  y:square():sum():backward()
  y:sum():backward()
  if y.requires_grad then y:sum():backward { retain_graph = true } y:square():sum():backward() end
  if y.requires_grad then local l = (y * y):mean() l:backward { retain_graph = true } l:backward() end
  if y.requires_grad then later = y:sin():sum() end
  if later then later:backward() later = nil end
  if y.requires_grad then local g = T.grad_of(y:sin():sum(), a, { create_graph = true, allow_unused = true }) OUT(g) if g and g.requires_grad then (g * g):sum():backward() end end
  if y.requires_grad then local g = T.grad_of(y:square():sum(), { a, b, w }, { allow_unused = true, retain_graph = true }) for i = 1, 3 do OUT(g[i]) end y:sum():backward() end
  opt:zero_grad() if y.requires_grad then y:square():mean():backward() end opt:step()
  if y.requires_grad then y:square():mean():backward() opt:step() end
  if y.requires_grad then y:register_hook(function(g) OUT(g) end) y:sin():sum():backward() end
  if y.requires_grad then local v = y * 2 y = v v:retain_grad() v:square():sum():backward() OUT(v.grad) end
  if y.requires_grad then later = y end
  if later then later:square():sum():backward { retain_graph = true } end
  if y.requires_grad then T.no_grad(function() a:mul_(0.9) end) y:sum():backward() end
  if y.requires_grad then T.no_grad(function() buf:mul_(0.9) end) y:sum():backward() end
  if y.requires_grad then y:sum():backward { inputs = { a, w } } end
  if y.requires_grad then x:mul_(2) y:square():sum():backward() end
  if y.requires_grad then T.manual_seed(INT) y:square():sum():backward() OUT(T.rand(1)) end
]]

local CHANGE = lines [[
  a = T.randn(9, { dtype = 'f64' }):requires_grad_()
  T.no_grad(function() a:mul_(1.1) end)
  T.no_grad(function() w:mul_(0.9) end)
  a.grad = nil
  if a.grad then a.grad:zero_() end
  c = a * 3
  c = c:detach()
  c = (a * 2):sin()
  k = NUM
  k = T.tensor(NUM, { dtype = 'f64' }):requires_grad_()
  flag = not flag
  net:eval()
  net:train()
  drop.p = 0.2
  buf = T.zeros(9, { dtype = 'f64' })
  buf:fill_(NUM)
  cfg.scale = NUM
  cfg.scale = a
  cfg.list[1] = T.randn(9, { dtype = 'f64' })
  cfg.list[2] = b
  w = T.randn(9, 9, { dtype = 'f64' }):requires_grad_()
  w = w:detach():requires_grad_()
  b:requires_grad_(not b.requires_grad)
  T.manual_seed(INT)
  gen:manual_seed(INT)
  collectgarbage()
  lin.weight:requires_grad_(not lin.weight.requires_grad)
  lin.weight:register_hook(function(g) return g * NUM end)
  a:register_hook(function(g) return g * NUM end)
  for _, p in ipairs(net:parameters()) do p.grad = nil end
]]

local ARGUMENT = lines [[
  T.randn(4, 9, { dtype = 'f64' })
  T.randn(4, 9, { dtype = 'f64' })
  T.randn(4, 9, { dtype = 'f64' }):requires_grad_()
  T.randn(4, 9, { dtype = 'f64' }):requires_grad_() * 2
  T.randn(9, 4, { dtype = 'f64' }):t()
  T.randn(9, 4, { dtype = 'f64' }):requires_grad_():t()
  T.randn(1, 9, { dtype = 'f64' }):expand(4, 9)
  a:expand(4, 9)
  w:narrow(1, 2, 4)
  (w * 2):narrow(1, 2, 4)
  T.randn(8, 18, { dtype = 'f64' })[{ { 1, 8, 2 }, { 1, 9 } }]
  last
]]

local PRELUDE = [[
local E, T, nn, F = ...
local OUT, CALL, RUN = E.out, E.call, E.run
T.manual_seed(11)
local D = { dtype = 'f64' }
local a, b, w = T.randn(9, D):requires_grad_(), T.randn(9, D):requires_grad_(), T.randn(9, 9, D):requires_grad_()
local c, k, flag, buf = a * 2, 1.5, true, T.zeros(9, D)
local cfg = { scale = 2, list = { T.randn(9, D) } }
local lin = nn.Linear(9, 9):double()
local bn, drop = nn.BatchNorm1d(9):double(), nn.Dropout(0.3)
local net = nn.Sequential(nn.Linear(9, 9):double(), nn.BatchNorm1d(9):double(), nn.Dropout(0.3), nn.Tanh())
local gen = T.Generator():manual_seed(5)
local opt = T.optim.SGD(E.join(net:parameters(), lin:parameters(), bn:parameters()), { lr = 0.05, momentum = 0.9 })
local later
local last = T.randn(4, 9, D)
local custom = T.custom { name = 'mk', forward = function(_, z) return z * 1.25 end,
  backward = function(_, g) return g * 1.25 end, jvp = function(_, t) return t * 1.25 end }
local custom2 = T.custom { name = 'two', forward = function(ctx, z, v) ctx:save(z, v) return z * v end,
  backward = function(ctx, g) local z, v = ctx:saved() return g * v, (g * z):sum(1) end }
local dirty = T.custom { name = 'dirty', forward = function(ctx, z) z:mul_(3) ctx:mark_dirty(z) return z end,
  backward = function(_, g) return g * 3 end }
]]

return { pure = PURE_BODY, any = BODY, after = AFTER, change = CHANGE, argument = ARGUMENT, prelude = PRELUDE }
