-- SPDX-License-Identifier: MIT
-- Golden files that are not single operators: optimizers, learning-rate schedules, gradient clipping, result
-- dtypes, printing. Each runner calls verdict(id, "pass" | "fail" | "skip", text) once per case.

local reader = require "spec.golden.reader"

local M = {}

-- ---- optimizers ---------------------------------------------------------------------------------

-- The k-th slice (1-based) of a ref whose first dimension counts steps, as a ref of its own.
local function slice(ref, k)
  local shape = table.move(ref.shape, 2, #ref.shape, 1, {})
  local bytes = reader.numel(shape) * reader.size[ref.dtype]
  return { dtype = ref.dtype, shape = shape, offset = ref.offset + (k - 1) * bytes }
end

-- Trains the case's problem with closures, for optimizers that evaluate several times a step.
local function train_optim(T, file, case, make)
  local params, data = {}, {}
  for i, ref in ipairs(case.params) do params[i] = reader.tensor(T, file, ref):requires_grad_() end
  for i, ref in ipairs(case.data) do data[i] = reader.tensor(T, file, ref) end
  local opt = make(params, case.args)
  local function loss()
    if case.problem == "quadratic" then
      local x = params[1]
      return 0.5 * x:dot(data[1]:mv(x)) - data[2]:dot(x)
    end
    local hidden = T.linear(data[1], params[1], params[2]):tanh()
    return T.mse_loss(T.linear(hidden, params[3], params[4]), data[2])
  end
  for step = 1, case.steps do
    opt:step(function()
      opt:zero_grad()
      local l = loss()
      l:backward()
      return l
    end)
    for i, p in ipairs(params) do
      local what = string.format("step %d, parameter %d", step, i)
      local fine, why = reader.check(p:detach(), file, slice(case.param_history[i], step + 1), case.tol, what)
      if not fine then return "fail", why end
    end
  end
  return "pass"
end

local function run_optim(T, file, case, make)
  local params = {}
  for i, ref in ipairs(case.params) do params[i] = reader.tensor(T, file, ref):requires_grad_() end
  local ok, opt = pcall(make, params, case.args)
  if not ok then
    if tostring(opt):find("unknown option", 1, true) then
      return "skip", "an option that is not there yet: " .. tostring(opt):match("unknown option ?'?([%w_]+)")
    end
    return "fail", tostring(opt)
  end
  for step = 1, case.steps do
    for i, p in ipairs(params) do p.grad = reader.tensor(T, file, slice(case.grad_history[i], step)) end
    opt:step()
    for i, p in ipairs(params) do
      local what = string.format("step %d, parameter %d", step, i)
      local fine, why = reader.check(p:detach(), file, slice(case.param_history[i], step + 1), case.tol, what)
      if not fine then return "fail", why end
    end
  end
  return "pass"
end

function M.optim(T, file, verdict)
  local name = file.op:match("^optim%.(.+)$")
  local make = T.optim and T.optim[name]
  for _, case in ipairs(file.cases) do
    if not make then
      verdict(case.id, "skip", "not there yet")
    else
      local ok, v, why = pcall(case.grad_history and run_optim or train_optim, T, file, case, make)
      if ok then verdict(case.id, v, why) else verdict(case.id, "fail", "raised: " .. tostring(v)) end
    end
  end
end

-- ---- schedules ----------------------------------------------------------------------------------

local function near(x, y, tol)
  return math.abs(x - y) <= tol[2] + tol[1] * math.abs(y)
end

local function run_schedule(T, case, make)
  local p = T.zeros(1):requires_grad_()
  local opt = T.optim.SGD({ p }, { lr = case.base_lr, momentum = case.base_momentum })
  local schedule = make(opt, case.args)
  for k = 1, #case.lrs do
    if k > 1 then
      p.grad = T.zeros(1)
      opt:step()
      schedule:step(case.metrics and case.metrics[k - 1])
    end
    local group = opt.param_groups[1]
    if not near(group.lr, case.lrs[k], case.tol) then
      return "fail", string.format("rate %d is %s, should be %s", k, group.lr, case.lrs[k])
    end
    if case.momenta and not near(group.momentum, case.momenta[k], case.tol) then
      return "fail", string.format("momentum %d is %s, should be %s", k, group.momentum, case.momenta[k])
    end
  end
  return "pass"
end

function M.schedule(T, file, verdict)
  local name = file.op:match("^lr_scheduler%.(.+)$")
  local make = T.optim and T.optim.lr_scheduler and T.optim.lr_scheduler[name]
  for _, case in ipairs(file.cases) do
    if not make then
      verdict(case.id, "skip", "not there yet")
    else
      local ok, v, why = pcall(run_schedule, T, case, make)
      if ok then verdict(case.id, v, why) else verdict(case.id, "fail", "raised: " .. tostring(v)) end
    end
  end
end

-- ---- gradient clipping --------------------------------------------------------------------------

function M.clip(T, file, verdict)
  local by_norm = file.op == "clip_grad_norm"
  local fn = T.nn and T.nn.utils and T.nn.utils[file.op .. "_"]
  for _, case in ipairs(file.cases) do
    if not fn then
      verdict(case.id, "skip", "not there yet")
    else
      local ok, why = pcall(function()
        local params, a = {}, case.args
        for i, g in ipairs(a.grads) do
          local grad = reader.tensor(T, file, case.inputs[g.input])
          params[i] = T.zeros(grad:shape(), { dtype = grad:dtype() }):requires_grad_()
          params[i].grad = grad
        end
        local got = {}
        if by_norm then
          local total = fn(params, a.max_norm, a.norm_type and { norm_type = a.norm_type } or nil)
          if type(total) == "number" then total = T.tensor(total, { dtype = case.outputs[1].dtype }) end
          got[1] = total
        else
          fn(params, a.clip_value)
        end
        for _, p in ipairs(params) do got[#got + 1] = p.grad end
        for i, ref in ipairs(case.outputs) do
          local fine, text = reader.check(got[i], file, ref, case.tol, "output " .. i)
          if not fine then error(text, 0) end
        end
      end)
      verdict(case.id, ok and "pass" or "fail", not ok and tostring(why) or nil)
    end
  end
end

-- ---- result dtypes ------------------------------------------------------------------------------

local SCALAR = { bool = require "perilune".tensor(true), int = 2, float = 2.5 } -- no operand is a Lua boolean

function M.promotion(T, file, verdict)
  local function one(dtype) return T.ones(1, { dtype = dtype }) end
  local function zero(dtype) return T.ones({}, { dtype = dtype }) end
  local function judge(id, want, f)
    local ok, r = pcall(f)
    if want == false then
      verdict(id, ok and "fail" or "pass", ok and "not refused" or nil)
    elseif not ok then
      verdict(id, "fail", "raised: " .. tostring(r))
    else
      local got = r:dtype()
      local text = got ~= want and "dtype " .. got .. ", should be " .. want or nil
      verdict(id, text and "fail" or "pass", text)
    end
  end

  local pair = {
    tensor_tensor = { one, one }, tensor_zerodim = { one, zero }, zerodim_zerodim = { zero, zero },
  }
  for group, make in pairs(pair) do
    for a, row in pairs(file[group]) do
      for b, want in pairs(row) do
        judge(group .. "/" .. a .. "/" .. b, want, function() return T.mul(make[1](a), make[2](b)) end)
      end
    end
  end
  for group, make in pairs { tensor_scalar = one, zerodim_scalar = zero } do
    for a, row in pairs(file[group]) do
      for kind, want in pairs(row) do
        local id = group .. "/" .. a .. "/" .. kind
        judge(id, want, function() return T.mul(make(a), SCALAR[kind]) end)
      end
    end
  end

  local function named(group, op, id, want, f)
    local fn = T[op] or T.nn.F[op]
    if not fn then
      verdict(group .. "/" .. op .. "/" .. id, "skip", "not there yet")
    else
      judge(group .. "/" .. op .. "/" .. id, want, function() return f(fn) end)
    end
  end
  for op, row in pairs(file.unary) do
    local dim = op:find("^cum") and 1 or nil
    for a, want in pairs(row) do named("unary", op, a, want, function(fn) return fn(one(a), dim) end) end
  end
  for op, rows in pairs(file.binary) do
    for a, row in pairs(rows) do
      for b, want in pairs(row) do
        named("binary", op, a .. "/" .. b, want, function(fn) return fn(one(a), one(b)) end)
      end
    end
  end
  for op, rows in pairs(file.binary_scalar) do
    for a, row in pairs(rows) do
      for kind, want in pairs(row) do
        named("binary_scalar", op, a .. "/" .. kind, want, function(fn) return fn(one(a), SCALAR[kind]) end)
      end
    end
  end
  for a, row in pairs(file["where"]) do
    for b, want in pairs(row) do
      judge("where/" .. a .. "/" .. b, want, function() return T.where(one("bool"), one(a), one(b)) end)
    end
  end
  for a, row in pairs(file.cat) do
    for b, want in pairs(row) do
      judge("cat/" .. a .. "/" .. b, want, function() return T.cat { one(a), one(b) } end)
    end
  end
  for a, row in pairs(file.can_cast) do
    for b, want in pairs(row) do
      local got = T.can_cast(a, b)
      verdict("can_cast/" .. a .. "/" .. b, got == want and "pass" or "fail", "says " .. tostring(got))
    end
  end
end

-- ---- printing -----------------------------------------------------------------------------------

-- Their text with our brackets and words, without "tensor(", dtype and, if it has several lines, indents.
local function adapted(text)
  local s = text:gsub("^tensor%(", ""):gsub("%)$", "")
  s = s:gsub(",%s*size=%b()", ""):gsub(",%s*dtype=[%w_.]+", "")
  s = s:gsub("%[", "{"):gsub("%]", "}"):gsub("True", "true"):gsub("False", "false")
  return s
end

local function squeezed(s)
  return (s:gsub("%s+", " "):gsub("{ ", "{"):gsub(" }", "}"))
end

function M.print(T, file, verdict)
  for _, case in ipairs(file.cases) do
    local ok, got = pcall(function() return tostring(reader.tensor(T, file, case.input)) end)
    if not ok then
      verdict(case.id, "fail", "raised: " .. tostring(got))
    else
      local body = got:gsub("%s*%-%-[^\n]*$", "")
      local want = adapted(case.text)
      local same = body == want
      if want:find("\n", 1, true) then same = squeezed(body) == squeezed(want) end
      local text = not same and "printed " .. body .. ", should be " .. want or nil
      verdict(case.id, same and "pass" or "fail", text)
    end
  end
end

return M
