-- SPDX-License-Identifier: MIT
-- Modules with options drawn at random against PyTorch: outputs, gradients of inputs and parameters, and buffers after
-- two calls, as they are written and under T.jit. spec/fixtures/random_modules.py wrote the cases.

local T = require "perilune"
local nn = T.nn

local fixtures = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/random_modules."

-- What is kept in i8 counts sixteenths.
local function read()
  local by_case = {}
  for key, t in pairs(assert(T.load(fixtures .. "safetensors", { map_location = T.get_default_device() }))) do
    local case, kind, name = key:match "^(c%d+)%.(%a+)%.?(.*)$"
    if t:dtype() == "i8" then t = t:double() / 16 elseif t:is_floating_point() then t = t:double() end
    by_case[case] = by_case[case] or { ["in"] = {}, st = {}, out = {}, gi = {}, gp = {}, after = {} }
    if kind == "W" then by_case[case].W = t else by_case[case][kind][math.tointeger(name) or name] = t end
  end
  return by_case
end

-- What outputs are multiplied with before their sum, as random_modules.py has it.
local function weight(y)
  local n = y:numel()
  if n == 0 then return y end
  return (((T.arange(0, n - 1) * 7 + 3) % 11 - 5):double() / 4):view(y:shape())
end

local function flat(list, out)
  for i = 1, list.n or #list do
    local v = list[i]
    if type(v) == "table" then flat(v, out) elseif v ~= nil then out[#out + 1] = v end
  end
  return out
end

local function compare(failed, what, got, want)
  if not got then
    failed[#failed + 1] = what .. " is missing"
  elseif table.concat(got:shape(), ",") ~= table.concat(want:shape(), ",") then
    failed[#failed + 1] = what .. " is " .. got:describe() .. ", should be " .. want:describe()
  elseif not T.allclose(got:detach():double(), want, { rtol = 1e-6, atol = 1e-6, equal_nan = true }) then
    failed[#failed + 1] = ("%s is off by %g"):format(what, (got:detach():double() - want):abs():max():item())
  end
end

local function inputs(case, d)
  local list, leaves, at = {}, {}, 0
  local function leaf()
    at = at + 1
    local t = d["in"][at]
    if t:is_floating_point() then t = t:clone():requires_grad_() end
    leaves[at] = t
    return t
  end
  for i, n in ipairs(case.nest) do
    list[i] = n == 0 and leaf() or {}
    for j = 1, n do list[i][j] = leaf() end
  end
  if case.kind == "attention" then list[#list + 1] = { need_weights = true } end
  return list, leaves
end

local function run(case, d, jit)
  local failed = {}
  local m = assert(load("local nn, W = ... return " .. case.text))(nn, d.W):double()
  if next(d.st) then m:load_state_dict(d.st, { index_base = 0 }) end
  m:train(case.train)
  -- what is computed is what the fields say, which scripts assign to
  for key in pairs(not jit and rawget(m, "_opts") or {}) do m._opts[key] = nil end
  local args, leaves = inputs(case, d)
  local f = jit and T.jit(function(...) return m(...) end) or m
  if case.twice then f(table.unpack(args)) end
  local out = flat(table.pack(f(table.unpack(args))), {})
  local total = 0
  for i = 1, case.nout do
    compare(failed, "output " .. i, out[i], d.out[i])
    if out[i] and out[i].requires_grad then total = total + (out[i] * weight(out[i])):sum() end
  end
  if total ~= 0 then total:backward() end
  for i, want in pairs(d.gi) do compare(failed, "gradient of input " .. i, leaves[i].grad, want) end
  local parameters = {}
  for name, p in m:named_parameters() do parameters[name] = p end
  for name, want in pairs(d.gp) do
    compare(failed, "gradient of " .. name, parameters[name] and parameters[name].grad, want)
  end
  local state = m:state_dict()
  for name, want in pairs(d.after) do compare(failed, name .. " afterwards", state[name], want) end
  return failed
end

-- What a graph refuses, so that jit is not asked: a gradient from outside through a rule of T.custom.
local function as_written_only(case) return case.text:find "scale_grad_by_freq" end

describe("modules with options drawn at random", function()
  for _, jit in ipairs { false, true } do
    it("give PyTorch's outputs and gradients" .. (jit and " under T.jit" or ""), function()
      local cases, data = dofile(fixtures .. "lua"), read()
      local failed, n = {}, 0
      for _, case in ipairs(cases) do
        if not (jit and as_written_only(case)) then
          local ok, why = pcall(run, case, data[case.id], jit)
          why = ok and table.concat(why, "; ") or tostring(why)
          if why ~= "" then failed[#failed + 1] = case.text .. (case.train and " train: " or " eval: ") .. why end
          n = n + 1
        end
      end
      assert.same({}, failed)
      assert.is_true(n >= 200)
    end)
  end
end)
