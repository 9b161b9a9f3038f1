-- SPDX-License-Identifier: MIT
-- Optimizers go on from PyTorch's states: spec/fixtures/optim/pytorch_states.py wrote what it has after five steps, and
-- after five more. Counts are 0-d tensors there, or none.

local T = require "perilune"

local path = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/optim/pytorch_states.pt"

local function wave(p, k)
  local list = {}
  for i = 0, p:numel() - 1 do list[i + 1] = ((i * 37 + k * 61 + 11) % 97 - 48) / 32 end
  return T.tensor(list, { dtype = "f64", device = p:device() }):view(p:shape())
end

local function groups(params) return { { params = { params[1] } }, { params = { table.unpack(params, 2) } } } end

local function go_on(opt, params)
  for t = 5, 9 do
    for j, p in ipairs(params) do p.grad = wave(p, 10 * t + j + 2) end
    opt:step()
  end
end

local function off(params, want)
  local far = 0
  for j, p in ipairs(params) do far = math.max(far, (p:detach() - want[j]):abs():max():item()) end
  return far
end

describe("optimizers of PyTorch", function()
  it("go on here, and from a file of ours", function()
    local failed, n, file = {}, 0, os.tmpname()
    for k, case in ipairs(assert(T.load_pt(path)).optimizers) do
      local function fresh()
        local params = {}
        for j, p in ipairs(case.before) do params[j] = p:clone():requires_grad_() end
        return params, T.optim[case.name](groups(params), { lr = 0.7 })
      end
      local near = case.name == "Muon" and 2e-2 or 1e-7 -- its products are in bf16 there; f32 numbers of others
      local params, opt = fresh()
      opt:load_state_dict(case.state)
      assert(T.save(file, opt:state_dict()))
      go_on(opt, params)
      local far = off(params, case.after)
      if far >= near or far ~= far then failed[#failed + 1] = ("%d %s is off by %g"):format(k, case.name, far) end
      local others, second = fresh()
      second:load_state_dict(assert(T.load(file)))
      go_on(second, others)
      far = off(others, params)
      if far ~= 0 then failed[#failed + 1] = ("%d %s from a file: %g"):format(k, case.name, far) end
      n = n + 1
    end
    os.remove(file)
    assert.same({}, failed)
    assert.equal(16, n)
  end)

  it("of which LBFGS has lists of vectors, under names of its own", function()
    local a = T.tensor({ { 4, 1, 0 }, { 1, 3, 1 }, { 0, 1, 2 } }, { dtype = "f64" })
    local function made(x)
      local p = x:clone():requires_grad_()
      local opt = T.optim.LBFGS({ p }, { lr = 0.5, max_iter = 3, history_size = 4 })
      return p, opt, function()
        opt:step(function()
          opt:zero_grad()
          local loss = p:dot(a:mv(p)) + p:exp():sum()
          loss:backward()
          return loss
        end)
      end
    end
    local p, opt, step = made(T.tensor({ 1, -2, 3 }, { dtype = "f64" }))
    for _ = 1, 3 do step() end
    local ours = opt:state_dict()
    local s, theirs = ours.state[1], { old_dirs = {}, old_stps = {}, ro = {} }
    for i = 1, s.dirs:size(1) do
      theirs.old_dirs[i], theirs.old_stps[i], theirs.ro[i] = s.dirs[i], s.steps[i], s.rho[i]
    end
    theirs.n_iter, theirs.func_evals, theirs.d, theirs.t = s.n_iter, s.func_evals, s.d, s.t
    theirs.prev_flat_grad, theirs.prev_loss, theirs.H_diag = s.last_grad, s.last_loss, s.scale
    local q, other, go = made(p:detach())
    other:load_state_dict { state = { [0] = theirs }, param_groups = ours.param_groups }
    for _ = 1, 2 do
      step()
      go()
    end
    assert.is_true(p:equal(q))
    other:load_state_dict { state = {}, param_groups = ours.param_groups } -- one that has made no step
  end)

  it("have schedules that go on here, and from a file of ours", function()
    local failed, n, file = {}, 0, os.tmpname()
    for _, case in ipairs(assert(T.load_pt(path)).schedules) do
      local function fresh(state, of_opt)
        local params = { T.ones(1):requires_grad_(), T.ones(1):requires_grad_() }
        local opt = T.optim.SGD({ { params = { params[1] } }, { params = { params[2] }, lr = 0.2 } },
          { lr = 0.1, momentum = 0.9 })
        local schedule = assert(load("local S, opt = ... return " .. case.text))(T.optim.lr_scheduler, opt)
        opt:load_state_dict(of_opt)
        schedule:load_state_dict(state)
        return schedule, opt
      end
      local schedule, opt = fresh(case.state, case.optimizer)
      assert(T.save(file, { state = schedule:state_dict(), optimizer = opt:state_dict() }))
      local back = assert(T.load(file))
      for pass = 1, 2 do
        if pass == 2 then schedule, opt = fresh(back.state, back.optimizer) end
        for t, rates in ipairs(case.rates) do
          schedule:step(case.text:find "Plateau" and 4.0 or nil)
          local got = {}
          for _, group in ipairs(opt.param_groups) do
            got[#got + 1] = group.lr
            got[#got + 1] = group.momentum
          end
          for k, want in ipairs(rates) do
            if math.abs(got[k] - want) >= 1e-12 then
              failed[#failed + 1] = ("%s: %g, not %g, at step %d of pass %d"):format(case.text, got[k], want, t, pass)
            end
          end
        end
      end
      n = n + 1
    end
    os.remove(file)
    assert.same({}, failed)
    assert.equal(16, n)
  end)
end)
