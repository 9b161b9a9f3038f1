-- SPDX-License-Identifier: MIT
-- Optimizers with options, groups and schedules drawn at random: after eight steps rates and parameters are PyTorch's.
-- spec/fixtures/optim/random_optimizers.py wrote the cases; a parameter has no gradient in the fourth step.

local T = require "perilune"
local optim = T.optim

local path = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/optim/random_optimizers.lua"

local function wave(shape, k)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 0, n - 1 do list[i + 1] = ((i * 37 + k * 61 + 11) % 97 - 48) / 32 end
  return T.tensor(list, { dtype = "f64" }):view(shape)
end

local function run(case)
  local params, failed = {}, {}
  for j, shape in ipairs(case.shapes) do params[j] = wave(shape, j):requires_grad_() end
  local given = params
  if case.group then
    case.group.params = { params[2] }
    given = { { params = { params[1] } }, case.group }
  end
  local opt = optim[case.name](given, case.opts)
  local schedule = assert(load("local optim, opt = ... return " .. case.schedule))(optim, opt)
  for t, rates in ipairs(case.rates) do
    for j, p in ipairs(params) do
      p.grad = nil
      if not (j == 2 and t == 4) then p.grad = wave(case.shapes[j], 10 * (t - 1) + j + 2) end
    end
    opt:step()
    if schedule then schedule:step() end
    for k, rate in ipairs(rates) do
      local got = opt.param_groups[k].lr
      if math.abs(got - rate) > 1e-8 then failed[#failed + 1] = ("rate %g, not %g, at step %d"):format(got, rate, t) end
    end
  end
  local near = case.name == "Muon" and 2e-2 or 1e-7 -- Muon's products are in bf16 there
  for j, p in ipairs(params) do
    local far = (p:detach():view(-1) - T.tensor(case.after[j], { dtype = "f64" })):abs():max():item()
    if far >= near or far ~= far then failed[#failed + 1] = ("parameter %d is off by %g"):format(j, far) end
  end
  return table.concat(failed, "; ")
end

describe("optimizers with options drawn at random", function()
  it("step as PyTorch's", function()
    local failed, n = {}, 0
    for k, case in ipairs(dofile(path)) do
      local ok, why = pcall(run, case)
      if not ok or why ~= "" then failed[#failed + 1] = ("%d %s %s: %s"):format(k, case.name, case.schedule, why) end
      n = n + 1
    end
    assert.same({}, failed)
    assert.is_true(n >= 150)
  end)
end)
