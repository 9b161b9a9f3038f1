-- SPDX-License-Identifier: MIT
-- Runs the cases of one golden operator: values, gradients, second order, refusals.
-- Each case ends as "pass", "fail" with what is wrong, or "skip" with why.

local reader = require "spec.golden.reader"
local adapters = require "spec.golden.adapters"
local gauge = require "spec.golden.gauge"

local M = {}

-- ---- finding and calling our function -----------------------------------------------------------

local IN_F = { nn = true, loss = true, activation = true } -- families whose functions users find in nn.F

-- T.a.b for "a.b"; names of nn.F count too. nil if it does not exist.
local function lookup(T, name, family)
  if IN_F[family] and T.nn.F[name] then return T.nn.F[name] end
  local at = T
  for part in name:gmatch("[^.]+") do
    at = at and at[part]
  end
  if at == nil and T.nn and T.nn.F then at = T.nn.F[name] end
  return at
end

-- Per operator of a golden file: our function, its descriptor, and which arguments go by position.
function M.prepare(T, ops, file)
  local row = adapters.rows[file.op] or {}
  local name = row.name or file.op
  local fn = lookup(T, name, file.family)
  if fn == nil then return nil end
  local plan = { row = row, fn = fn, info = ops[name], file = file, dims = row.dims or adapters.DIMS }
  if row.pos then
    plan.pos = row.pos
  else
    local tensor = {}
    for _, case in ipairs(file.cases) do
      for k, v in pairs(case.args) do
        if type(v) == "table" and (v.input or type(v[1]) == "table" and v[1].input) then tensor[k] = true end
      end
    end
    plan.pos = {}
    for _, k in ipairs(file.signature) do
      if tensor[k] then plan.pos[#plan.pos + 1] = k end
    end
  end
  plan.is_pos = {}
  for _, k in ipairs(plan.pos) do plan.is_pos[k] = true end
  plan.takes_base = row.index
  if row.index and plan.info then
    plan.takes_base = false
    for _, attr in ipairs(plan.info.attrs) do
      if attr.name == "index_base" then plan.takes_base = true end
    end
  end
  return plan
end

-- Booleans that PyTorch takes for operands and numbers are written out here: no operand is a Lua boolean.
local OPERANDS = { other = true, exponent = true, input = true, self = true }
local NUMBERS = { alpha = true, value = true, beta = true }

local function convert(plan, key, v, tensors)
  if type(v) == "boolean" and NUMBERS[key] then return v and 1 or 0 end
  if type(v) == "boolean" and (OPERANDS[key] or plan.is_pos[key]) then return require "perilune".tensor(v) end
  if type(v) == "table" then
    if v.input then return tensors[v.input] end
    local out = {}
    for i, x in ipairs(v) do
      if type(x) == "table" and x.none then
        out[i] = tensors[1]:size(i - #v - 1) -- "as the input": only sizes of pooling say so
      else
        out[i] = convert(plan, key, x, tensors)
      end
    end
    return out
  end
  if plan.dims[key] then return adapters.up(v) end
  return v
end

-- Calls our function on a case's arguments. Returns a list of results. instead: another function; more: further
-- options.
local function invoke(T, plan, case, tensors, instead, more)
  local row, a = plan.row, {}
  local f = instead or plan.fn
  if more then
    local plain = f
    f = function(...)
      local args = table.pack(...)
      local last = args[args.n]
      local o = {}
      if type(last) == "table" and next(last) ~= nil and type(next(last)) == "string" then
        for k, v in pairs(last) do o[k] = v end
        args.n = args.n - 1
      end
      for k, v in pairs(more) do o[k] = v end
      args[args.n + 1] = o
      return plain(table.unpack(args, 1, args.n + 1))
    end
  end
  for k, v in pairs(case.args) do a[k] = convert(plan, k, v, tensors) end
  local got
  if row.call then
    got = table.pack(row.call(f, a, T, case))
  else
    local args, n, opts = {}, 0, nil
    for i, k in ipairs(plan.pos) do
      args[i] = a[k]
      if a[k] ~= nil then n = i end
    end
    for k, v in pairs(a) do
      if not plan.is_pos[k] then
        opts = opts or {}
        opts[row.rename and row.rename[k] or k] = v
      end
    end
    if plan.takes_base then
      opts = opts or {}
      opts.index_base = 0
    end
    if opts then
      n = n + 1
      args[n] = opts
    end
    got = table.pack(f(table.unpack(args, 1, n)))
  end
  if type(got[1]) == "table" then return got[1] end
  local results = {}
  for i = 1, got.n do
    if got[i] ~= nil then results[#results + 1] = got[i] end
  end
  return results
end

-- ---- judging ------------------------------------------------------------------------------------

local function build_inputs(T, file, case, track)
  local tensors = {}
  for i, ref in ipairs(case.inputs) do
    local t = reader.tensor(T, file, ref)
    if track and case.grads and case.grads[i] then t:requires_grad_() end
    tensors[i] = t
  end
  return tensors
end

local function check_outputs(plan, case, got)
  if #got ~= #case.outputs and not (case.values and #got > #case.outputs) then -- values: without indices
    return string.format("%d outputs, should be %d", #got, #case.outputs)
  end
  for i, ref in ipairs(case.outputs) do
    local is_index = plan.row.index and not plan.takes_base and ref.dtype == "i64" and i == #case.outputs
    local ok, why = reader.check(got[i], plan.file, ref, case.tol, "output " .. i, is_index and 1 or nil)
    if not ok then return why end
  end
end

M.inputs, M.call = build_inputs, invoke

-- Gradients of the case's outputs; the list of inputs asked for, their positions, and the gradients. turn(i, dy)
-- gives a factorization's output gradients our signs.
local function gradients(T, file, case, got, tensors, create, turn)
  local ys, dys, xs, at = {}, {}, {}, {}
  for i, ref in ipairs(case.grad_outputs) do
    if ref and got[i].requires_grad then -- else its gradient is zero
      ys[#ys + 1] = got[i]
      local dy = reader.tensor(T, file, ref)
      dys[#dys + 1] = turn and turn(i, dy) or dy
    end
  end
  for i, ref in ipairs(case.grads) do
    if ref then
      xs[#xs + 1] = tensors[i]
      at[#xs] = i
    end
  end
  if #ys == 0 then return xs, at, {} end
  local o = { grad_outputs = dys, allow_unused = true, create_graph = create or nil }
  return xs, at, table.pack(T.grad_of(ys, xs, o))
end

local function as_list(g)
  if type(g[1]) == "table" then return g[1] end
  return g
end

-- nil stands for a gradient of zeros.
local function check_grad(T, file, g, ref, like, tol, what)
  if g == nil then g = T.zeros(like:shape(), { dtype = like:dtype() }) end
  return reader.check(g, file, ref, tol, what)
end

local function symmetric(g)
  return g and gauge.symmetric(g)
end

local function check_gradients(T, plan, case, got, tensors, turn)
  local _, at, g = gradients(T, plan.file, case, got, tensors, false, turn)
  g = as_list(g)
  for k, i in ipairs(at) do
    if case.symgrad then g[k] = symmetric(g[k]) end
    local ok, why = check_grad(T, plan.file, g[k], case.grads[i], tensors[i], case.gtol, "gradient " .. i)
    if not ok then return why end
  end
end

local function check_hvp(T, plan, case)
  local file, hvp = plan.file, case.hvp
  local tensors = build_inputs(T, file, case, true)
  local got = invoke(T, plan, case, tensors)
  local xs, at, g = gradients(T, file, case, got, tensors, true)
  g = as_list(g)
  local ys, vs = {}, {}
  for k, i in ipairs(at) do
    if case.symgrad then g[k] = symmetric(g[k]) end
    if hvp.v[i] and g[k] and g[k].requires_grad then
      ys[#ys + 1] = g[k]
      vs[#vs + 1] = reader.tensor(T, file, hvp.v[i])
    end
  end
  local h = {}
  if #ys > 0 then h = as_list(table.pack(T.grad_of(ys, xs, { grad_outputs = vs, allow_unused = true }))) end
  for k, i in ipairs(at) do
    if hvp.hv[i] then
      if case.symgrad then h[k] = symmetric(h[k]) end
      local ok, why = check_grad(T, file, h[k], hvp.hv[i], tensors[i], hvp.tol, "second order " .. i)
      if not ok then return why end
    end
  end
end

-- Tangents of the outputs for those of the inputs, in forward mode: `out`, or `also`, where PyTorch's two modes
-- disagree. special: NaN of either says nothing.
local function check_jvp(T, plan, case)
  local file, jvp, xs, vs, at = plan.file, case.jvp, {}, {}, {}
  local tensors = build_inputs(T, file, case, false)
  for i, ref in ipairs(jvp.v) do
    if ref then
      at[#at + 1] = i
      xs[#at], vs[#at] = tensors[i], reader.tensor(T, file, ref)
    end
  end
  local function f(...)
    local now = table.move(tensors, 1, #tensors, 1, {})
    for k, x in ipairs { ... } do now[at[k]] = x end
    return invoke(T, plan, case, now)
  end
  local ys, tangents = T.jvp(f, xs, vs)
  for i, ref in ipairs(jvp.out) do
    if ref then
      local t = tangents[i]
      local function near(to)
        if jvp.special then
          local theirs = reader.tensor(T, file, to)
          t = T.where(t:isnan():logical_or(theirs:isnan()), theirs, t)
        end
        return check_grad(T, file, t, to, ys[i], jvp.tol, "tangent " .. i)
      end
      local ok, why = near(ref)
      if not ok and jvp.also then ok = near(jvp.also[i]) end
      if not ok then return why end
    end
  end
end

-- What a call gave, when the device is done: a bad index is noticed there when somebody waits.
local function settled(T, ...)
  if T.get_default_device() ~= "cpu" then T.cuda.synchronize() end
  return ...
end
function M.settle(T, f, ...) return pcall(function(...) return settled(T, f(...)) end, ...) end

local function run_refusal(T, plan, case)
  local made, tensors = pcall(build_inputs, T, plan.file, case)
  if not made then
    -- the tensor itself is refused: more dimensions than there may be
    assert(tostring(tensors):find("dimensions", 1, true), tensors)
    return "pass"
  end
  local ok, err = M.settle(T, invoke, T, plan, case, tensors)
  if ok then return "fail", "not refused: " .. tostring(case.why) end
  if type(err) ~= "string" or #err < 8 then return "fail", "refused without a text: " .. tostring(err) end
  return "pass"
end

-- Nothing but tangents (tangents.py), of what is no error here.
local function run_tangents(T, plan, case)
  if not pcall(invoke, T, plan, case, build_inputs(T, plan.file, case, false)) then
    return "skip", "refused without tangents"
  end
  local why = check_jvp(T, plan, case)
  return why and "fail" or "pass", why
end

local function run_values(T, plan, case)
  if not case.outputs then return run_tangents(T, plan, case) end
  local tensors = build_inputs(T, plan.file, case, true)
  local got = invoke(T, plan, case, tensors)
  local why, turn
  local comparable = true
  if case.gauge and #got == #case.outputs then
    why, comparable, turn = gauge.check(T, plan, case, table.move(got, 1, #got, 1, {}))
  else
    why = check_outputs(plan, case, got)
  end
  if not why and case.grads and comparable then why = check_gradients(T, plan, case, got, tensors, turn) end
  if not why and case.hvp then why = check_hvp(T, plan, case) end
  if not why and case.jvp and not case.gauge then why = check_jvp(T, plan, case) end
  if why then return "fail", why end
  return "pass"
end

-- One case: "pass", "fail" or "skip", and a text.
function M.run(T, plan, case)
  local ok, verdict, text = M.settle(T, case.error and run_refusal or run_values, T, plan, case)
  if not ok then return "fail", "raised: " .. tostring(verdict) end
  return verdict, text
end

return M
