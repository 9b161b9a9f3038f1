-- SPDX-License-Identifier: MIT
--- Limited-memory BFGS (Liu & Nocedal 1989), with a line search for the strong Wolfe conditions (Nocedal & Wright 2006,
-- algorithms 3.5 and 3.6). `opt:step(closure)`: the closure zeroes the gradients, computes the loss, calls backward and
-- returns the loss; it runs several times a step.
-- @classmod LBFGS
local T = require "perilune"
local base = require "perilune.optim.optimizer"
local members = require "perilune.optim.members"
local options = require "perilune.options"

local fail = options.fail
local abs, max, min, sqrt = math.abs, math.max, math.min, math.sqrt
local check = base.check

local function count(v) return math.type(v) == "integer" and v >= 1 or "a positive integer" end
local function evaluations(v) return v == false or count(v) == true or "a positive integer or false" end
local function search(v) return v == false or v == "strong_wolfe" or "\"strong_wolfe\" or false" end

-- `lr=1 max_iter=20 max_eval=1.25·max_iter tolerance_grad=1e-7 tolerance_change=1e-9 history_size=100
-- line_search_fn=false` ("strong_wolfe"), `maximize=false`. One parameter group only.
--- optim.LBFGS(…) → optimizer
-- Limited-memory BFGS (Liu & Nocedal 1989); step(closure) runs the closure several times.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.LBFGS({ p }, { lr = 1 })
--   opt:step(function()
--     opt:zero_grad()
--     local loss = (p * p):sum()
--     loss:backward()
--     return loss
--   end)
--   print(p:detach():abs():max():item() < 1e-3)  --> true
local LBFGS = base.class("LBFGS", {
  { "lr", 1.0, check.nonnegative }, { "max_iter", 20, count }, { "max_eval", false, evaluations },
  { "tolerance_grad", 1e-7, check.nonnegative }, { "tolerance_change", 1e-9, check.nonnegative },
  { "history_size", 100, count }, { "line_search_fn", false, search }, { "maximize", false, check.bool },
})

local function nothing() return { n_iter = 0, func_evals = 0, dirs = {}, steps = {}, rho = {} } end

function LBFGS:add_param_group(group)
  if #self.param_groups > 0 then fail("optim.LBFGS: only one group of parameters") end
  base.Optimizer.add_param_group(self, group)
  self._memory = nothing()
end

-- ---- parameters as one vector ------------------------------------------------------------------------

local function gradient(params)
  local parts = {}
  for i, p in ipairs(params) do
    parts[i] = (p.grad or T.zeros(p:shape(), { dtype = p:dtype(), device = p:device() })):reshape(-1)
  end
  return T.cat(parts, 1)
end

-- p ← p + t d. Memory is asked for once, before the first of them moves.
local function move(params, d, t)
  local at, way = 1, d * t
  for _, p in ipairs(params) do
    local n = p:numel()
    if n > 0 then p:add_(way:narrow(1, at, n):view(p:shape())) end
    at = at + n
  end
end

local function dot(a, b) return a:dot(b):item() end
-- optim.compat stops where sums, not maxima, are small.
local function absolute_sum(v) return v:numel() > 0 and v:abs():sum():item() or 0.0 end
local function largest(v) return v:numel() > 0 and v:abs():max():item() or 0.0 end

-- ---- line search -------------------------------------------------------------------------------------

-- The minimum of the cubic through two points with slopes (Nocedal & Wright, eq. 3.59), kept within bounds.
local function cubic_minimum(a, b, low, high)
  if not low then low, high = min(a.t, b.t), max(a.t, b.t) end
  local d1 = a.slope + b.slope - 3 * (a.f - b.f) / (a.t - b.t)
  local square = d1 * d1 - a.slope * b.slope
  if square < 0 or square ~= square then return (low + high) / 2 end
  local d2 = sqrt(square)
  if a.t > b.t then a, b = b, a end
  local t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
  return min(max(t, low), high)
end

local C1, C2 = 1e-4, 0.9

-- A step that decreases enough and flattens enough, or the best of `most` steps after the first. at(t) evaluates a
-- step: { t, f, g, slope }.
-- Returns the point and the number of evaluations.
local function strong_wolfe(at, start, t, d_size, tolerance, most)
  local before, now = start, at(t)
  local tries, evals, low, high = 0, 1, nil, nil
  local function too_high(p) return p.f > start.f + C1 * p.t * start.slope end
  local function flat(p) return abs(p.slope) <= -C2 * start.slope end
  -- grow the step until the minimum is between two points
  while tries < most do
    if too_high(now) or (tries > 1 and now.f >= before.f) then
      low, high = before, now
      break
    end
    if flat(now) then return now, evals end
    if now.slope >= 0 then
      low, high = before, now
      break
    end
    t = cubic_minimum(before, now, now.t + 0.01 * (now.t - before.t), now.t * 10)
    before, now = now, at(t)
    evals, tries = evals + 1, tries + 1
  end
  if not low then low, high = start, now end
  if low.f > high.f then low, high = high, low end
  -- then narrow it
  local stuck = false
  while tries < most do
    local left, right = min(low.t, high.t), max(low.t, high.t)
    if (right - left) * d_size < tolerance then break end
    t = cubic_minimum(low, high)
    local margin = 0.1 * (right - left)
    if min(right - t, t - left) < margin then
      if stuck or t >= right or t <= left then
        t = abs(t - right) < abs(t - left) and right - margin or left + margin
        stuck = false
      else
        stuck = true
      end
    else
      stuck = false
    end
    now = at(t)
    evals, tries = evals + 1, tries + 1
    if too_high(now) or now.f >= low.f then
      high = now
      if low.f > high.f then low, high = high, low end
    else
      if flat(now) then return now, evals end
      if now.slope * (high.t - low.t) >= 0 then high = low end
      low = now
    end
  end
  return low, evals
end

-- ---- one step ----------------------------------------------------------------------------------------

-- Takes in the last move and gives the next direction: the two loops over the history.
local function direction(m, g, history)
  if m.n_iter == 1 then
    m.scale = 1.0
    return -g
  end
  local y, s = g - m.last_grad, m.d * m.t
  local ys = dot(y, s)
  if ys > 1e-10 then
    if #m.dirs == history then
      table.remove(m.dirs, 1)
      table.remove(m.steps, 1)
      table.remove(m.rho, 1)
    end
    local n = #m.dirs + 1
    m.dirs[n], m.steps[n], m.rho[n] = y, s, 1 / ys
    m.scale = ys / dot(y, y)
  end
  local q, alpha = -g, {}
  for i = #m.dirs, 1, -1 do
    alpha[i] = dot(m.steps[i], q) * m.rho[i]
    q = q - m.dirs[i] * alpha[i]
  end
  q = q * m.scale
  for i = 1, #m.dirs do
    q = q + m.steps[i] * (alpha[i] - dot(m.dirs[i], q) * m.rho[i])
  end
  return q
end

-- What is remembered is of all parameters together, and of no others. After net:to it goes where they are.
local function follow(self)
  local group = self.param_groups[1]
  self:_settle()
  if not members.same(group) then
    base.check_params("optim.LBFGS", group.params, {})
    members.of(group)
    self._memory = nothing()
  end
  if T.core.converted == self._converted then return end
  local p = group.params[1]
  local to = { dtype = p:dtype(), device = p:device() }
  local function visit(t)
    for key, v in pairs(t) do
      if type(v) == "userdata" then t[key] = v:to(to) elseif type(v) == "table" then visit(v) end
    end
  end
  visit(self._memory)
  self._converted = T.core.converted
end

-- Where an iteration ends with an error, of the closure or of Ctrl-C, before the parameters have moved, they are where
-- it began, not at a point that the search tried, and the memory knows nothing of it: else the next step took the way
-- to that point for the one that it remembers.
local function go_back(params, to)
  for i, p in ipairs(params) do p:copy_(to[i]) end
end

local Iteration = { __close = T.core.held(function(self, err)
  if err == nil or self.moved then return end
  if self.here then go_back(self.params, self.here) end
  for key in pairs(self.m) do self.m[key] = nil end
  for key, v in pairs(self.before) do self.m[key] = v end
end) }

local function begin(m, params, searches)
  local before, here = {}, searches and {} or nil
  for key, v in pairs(m) do before[key] = type(v) == "table" and table.move(v, 1, #v, 1, {}) or v end
  for i, p in ipairs(here and params or {}) do here[i] = p:clone() end
  return setmetatable({ m = m, before = before, params = params, here = here }, Iteration)
end

local complete = T.core.held(function(iteration)
  local m = iteration.m
  move(iteration.params, m.d, m.t)
  iteration.moved = true
end)

--- Up to max_iter iterations; returns the loss before the first.
function LBFGS:step(closure)
  if type(self) ~= "table" then options.colon "opt:step(closure)" end
  local meta = getmetatable(closure)
  if type(closure) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("optim.LBFGS:step: a closure that computes the loss is needed")
  end
  if T.core.jit_tracing() then
    options.untraceable("optim.LBFGS:step in a traced function: how often it computes the loss depends on the loss, "
      .. "which has no values while it is traced; jit the closure, and call opt:step(closure) outside")
  end
  follow(self)
  local group, m = self.param_groups[1], self._memory
  local params, o = group.params, group
  base.check_settings(group)
  local most = o.max_eval or o.max_iter * 5 // 4
  local _ <close> = T.no_grad()

  local function evaluate()
    local loss
    do
      local _ <close> = T.enable_grad()
      loss = closure()
    end
    T.core.check_whole("optim.LBFGS:step", params)
    m.func_evals = m.func_evals + 1
    local value, g = type(loss) == "number" and loss or loss:item(), gradient(params)
    if o.maximize then value, g = -value, -g end
    return loss, value, g
  end

  local first, loss, g = evaluate()
  local evals = 1
  local size = self._sums and absolute_sum or largest
  if size(g) <= o.tolerance_grad then return first end

  for n = 1, o.max_iter do
    local iteration <close> = begin(m, params, self._search or o.line_search_fn)
    m.n_iter = m.n_iter + 1
    m.d = direction(m, g, o.history_size)
    m.last_grad, m.last_loss = g, loss
    m.t = m.n_iter == 1 and min(1.0, 1 / g:abs():sum():item()) * o.lr or o.lr
    local slope = dot(g, m.d)
    if slope > -o.tolerance_change then break end
    if self._search then -- of optim.compat: it moves the parameters itself
      local used
      loss, g, m.t, used = self._search(m.t, m.d, loss, g, slope)
      evals = evals + used
      iteration.moved = true
    elseif o.line_search_fn then
      local function at(t)
        move(params, m.d, t)
        local _, f, grad = evaluate()
        go_back(params, iteration.here)
        return { t = t, f = f, g = grad, slope = dot(grad, m.d) }
      end
      local point, used = strong_wolfe(at, { t = 0.0, f = loss, g = g, slope = slope }, m.t, largest(m.d),
        o.tolerance_change, most - evals) -- as PyTorch's, it keeps to max_eval
      loss, g, m.t = point.f, point.g, point.t
      evals = evals + used
      complete(iteration)
    else
      complete(iteration)
      if n < o.max_iter then
        local _
        _, loss, g = evaluate()
        evals = evals + 1
      end
    end
    if n == o.max_iter or evals >= most or size(g) <= o.tolerance_grad then break end
    if size(m.d * m.t) <= o.tolerance_change or abs(loss - m.last_loss) < o.tolerance_change then break end
  end
  return first
end

-- ---- state -------------------------------------------------------------------------------------------

LBFGS.own_state = true -- of all parameters together

--- Settings, and the memory as state[1].
function LBFGS:state_dict()
  follow(self)
  local out = base.Optimizer.state_dict(self)
  local m, s = self._memory, {}
  for key, v in pairs(m) do
    if type(v) ~= "table" then s[key] = v end
  end
  if #m.dirs > 0 then
    s.dirs, s.steps = T.stack(m.dirs, 1), T.stack(m.steps, 1)
    s.rho = T.tensor(m.rho, { dtype = "f64" })
  end
  out.state[1] = s
  return out
end

-- The memory as PyTorch's optimizer keeps it, by the names here; before its first step there is none.
local function from_pytorch(sd)
  local s = sd.state[0]
  if type(s) ~= "table" then return next(sd.state) == nil and { n_iter = 0, func_evals = 0 } or nil end
  local out = { n_iter = s.n_iter, func_evals = s.func_evals, d = s.d, t = s.t, last_grad = s.prev_flat_grad,
    last_loss = s.prev_loss, scale = s.H_diag }
  if type(s.old_dirs) == "table" and #s.old_dirs > 0 then
    out.dirs, out.steps, out.rho = T.stack(s.old_dirs, 1), T.stack(s.old_stps, 1), T.stack(s.ro, 1):to("f64")
  end
  for key, v in pairs(out) do
    if type(v) == "userdata" and v:numel() == 1 and key ~= "rho" and v:dim() == 0 then out[key] = v:item() end
  end
  return out
end

--- Takes over what state_dict returned, here or of PyTorch's LBFGS.
function LBFGS:load_state_dict(sd)
  local s = type(sd) == "table" and type(sd.state) == "table" and type(sd.param_groups) == "table"
    and (sd.state[1] or from_pytorch(sd))
  if type(s) ~= "table" then fail("optim.LBFGS:load_state_dict: a table with state and param_groups is wanted") end
  local m, n = nothing(), 0
  local params = self.param_groups[1].params
  for _, p in ipairs(params) do n = n + p:numel() end
  local to = { device = params[1]:device(), dtype = params[1]:dtype(), copy = true }
  local function taken(v)
    if v:numel() ~= n then
      fail("optim.LBFGS:load_state_dict: the state is of %d elements, the parameters have %d", v:numel(), n)
    end
    return v:detach():to(to)
  end
  for key, v in pairs(s) do
    if key ~= "dirs" and key ~= "steps" and key ~= "rho" then
      m[key] = type(v) == "userdata" and taken(v) or v
    end
  end
  if s.dirs then
    for i = 1, s.dirs:size(1) do
      m.dirs[i], m.steps[i], m.rho[i] = taken(s.dirs:select(1, i)), taken(s.steps:select(1, i)), s.rho:get(i)
    end
  end
  base.Optimizer.load_state_dict(self, { state = {}, param_groups = sd.param_groups })
  members.of(self.param_groups[1])
  self._memory = m
end

return LBFGS
