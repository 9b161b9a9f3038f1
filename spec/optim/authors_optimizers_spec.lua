-- SPDX-License-Identifier: MIT
-- Optimizers that PyTorch has not, against their authors' packages and others in wide use: options, groups, a rate that
-- changes half way, a parameter that once has no gradient. spec/fixtures/optim/
-- authors_optimizers.py wrote the trajectories.

local T = require "perilune"
local optim = T.optim

local path = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/optim/authors_optimizers.lua"
local STEPS = 24

local function wave(shape, k, dtype)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 0, n - 1 do list[i + 1] = ((i * 37 + k * 61 + 11) % 97 - 48) / 32 end
  return T.tensor(list, { dtype = dtype }):view(shape)
end

local function copy(t)
  local out = {}
  for k, v in pairs(t) do out[k] = v end
  return out
end

-- How far the parameters are from the case's, at step t.
local function off(case, params, at)
  local most = 0
  for j, p in ipairs(params) do
    local want = T.tensor(case.after[at][j], { dtype = "f64" })
    local got = p:detach():to("f64"):reshape(-1)
    if case.sample then got = got[{ { 1, -1, case.sample } }] end
    local far = (got - want):abs():max():item()
    if far ~= far then return math.huge end
    most = math.max(most, far)
  end
  return most
end

-- turn: after how many steps the state goes to a file's table and a fresh optimizer, or nil.
local function run(case, turn)
  local params = {}
  for j, shape in ipairs(case.shapes) do params[j] = wave(shape, j, case.dtype):requires_grad_() end
  local function make()
    local given = params
    if case.group then
      local second = copy(case.group)
      second.params = { params[2] }
      given = { { params = { params[1] } }, second }
    end
    return optim[case.name](given, copy(case.opts))
  end
  local opt, found = make(), {}
  for t = 0, STEPS - 1 do
    if t == STEPS // 2 then
      for _, group in ipairs(opt.param_groups) do group.lr = group.lr * 0.5 end
    end
    if t == turn then
      local saved = opt:state_dict()
      opt = make()
      opt:load_state_dict(saved)
    end
    for j, p in ipairs(params) do
      p.grad = nil
      if not (case.skip and j == 2 and t == 6) then
        p.grad = wave(case.shapes[j], 10 * t + j + 2, case.dtype) + p:detach() * 0.5
      end
    end
    opt:step()
    if t == 1 or t == STEPS - 1 then
      found[#found + 1] = off(case, params, t == 1 and 1 or 3)
    elseif t == 7 then
      if opt.eval then opt:eval() end
      found[#found + 1] = off(case, params, 2)
      if opt.train then opt:train() end
    end
  end
  return found, params, opt
end

describe("optimizers of others' packages", function()
  local cases = dofile(path)

  it("step as theirs", function()
    local seen = {}
    for k, case in ipairs(cases) do
      local found, _, opt = run(case)
      -- A code on a border may be the next one here, as divisions are rounded in another order: a part of one step.
      -- SOAP's QR is in f32 there.
      local near = case.dtype == "f32" and 0.1 * case.opts.lr or case.name == "SOAP" and 2e-6 or 1e-7
      for i, far in ipairs(found) do
        assert(far <= near, ("case %d, %s, comparison %d: off by %g"):format(k, case.name, i, far))
      end
      if case.d then
        local d = opt.param_groups[1].d
        assert(math.abs(d / case.d - 1) < 1e-9, ("case %d: d is %g, not %g"):format(k, d, case.d))
      end
      seen[case.name] = (seen[case.name] or 0) + 1
    end
    for _, name in ipairs { "LAMB", "AdamWScheduleFree", "SGDScheduleFree", "Prodigy", "SOAP", "Adam8bit",
      "AdamW8bit" } do
      assert.is_true((seen[name] or 0) >= 3, name)
    end
  end)

  it("go on from a state with the same bits", function()
    for k, case in ipairs(cases) do
      local _, want = run(case)
      local _, got = run(case, 9)
      for j, p in ipairs(got) do
        assert(p:detach():equal(want[j]:detach()), ("case %d, %s"):format(k, case.name))
      end
    end
  end)
end)
