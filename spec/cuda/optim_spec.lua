-- SPDX-License-Identifier: MIT
-- Optimizers on the device beside the CPU: every class, its states in every dtype, parameters of all layouts and sizes
-- at which launches change, halves; rules with sums; compiled and captured steps. Skipped without a device.

local T = require "perilune"
local optim, nn = T.optim, T.nn

local there = T.cuda.is_available()
local function device_it(name, f)
  if there then it(name, f) else pending(name .. ": no CUDA device") end
end

local function wave(shape, k, dtype)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return ((T.arange(0, n - 1):to("f64") * 37 + k * 61 + 11):remainder(97) - 47.5):div(32):to(dtype or "f32"):view(shape)
end

local shapes = { { 5 }, { 64, 80 }, { 2, 3, 4, 5 }, { 1 }, { 70, 70 }, { 0 }, { 17, 300 } }

-- Parameters after some steps, on the CPU.
local function stepped(name, opts, where, dtype, strided)
  local params = {}
  for j, shape in ipairs(shapes) do
    local x = wave(shape, j, dtype):to(where)
    if strided and #shape == 2 then x = x:t():contiguous():t() end
    if #shape == 4 then x = x:contiguous "channels_last" end
    params[j] = x:requires_grad_()
  end
  local opt = optim[name](params, opts)
  for t = 1, 3 do
    for j, p in ipairs(params) do
      p.grad = nil
      if not (j == 2 and t == 2) then p.grad = wave(shapes[j], 10 * t + j, dtype):to(where) + p:detach() * 0.5 end
    end
    opt:step()
  end
  local state = opt:state_dict()
  if opt.eval then opt:eval() end
  local out = {}
  for j, p in ipairs(params) do out[j] = p:detach():cpu():to("f64"):reshape(-1) end
  return out, state
end

local cases = {
  SGD = { lr = 0.05, momentum = 0.9 }, Adam = { lr = 0.01, weight_decay = 0.1 }, AdamW = { lr = 0.01, amsgrad = true },
  RMSprop = { lr = 0.01, momentum = 0.5 }, Adamax = { lr = 0.01 }, NAdam = { lr = 0.01 }, RAdam = { lr = 0.01 },
  Adagrad = { lr = 0.01 }, Adadelta = { lr = 0.5 }, ASGD = { lr = 0.01 }, Rprop = { lr = 0.01 }, Lion = { lr = 0.01 },
  LAMB = { lr = 0.01 }, AdamWScheduleFree = { lr = 0.01, weight_decay = 0.1 }, SGDScheduleFree = { lr = 0.1 },
  Prodigy = { d0 = 1e-3, weight_decay = 0.1 },
  Adafactor = { lr = 0.01, weight_decay = 0.1 }, Adam8bit = { lr = 0.01 }, AdamW8bit = { lr = 0.01 },
}

describe("optimizers on the device", function()
  -- One code more or less where a number is on a border, one unit of bf16 where rounding by chance is.
  local near = { f32 = 2e-5, f64 = 1e-10, bf16 = 0.03, f16 = 4e-3 }
  local states = { f32 = 2e-5, bf16 = 2e-3, i8 = 5e-3 }

  local function compare(name, opts, dtype, strided, bound)
    local want, got = stepped(name, opts, "cpu", dtype, strided), stepped(name, opts, "cuda", dtype, strided)
    for j, x in ipairs(want) do
      local far = x:numel() == 0 and 0 or (x - got[j]):abs():max():item()
      assert(far <= bound, ("%s, %s, parameter %d: off by %g"):format(name, dtype, j, far))
    end
  end

  for name, opts in pairs(cases) do
    device_it(name .. " steps as the CPU does", function()
      local coded = opts.state_dtype == "i8" or name:find "8bit"
      for dtype, bound in pairs(near) do
        compare(name, opts, dtype, false, coded and math.max(bound, states.i8) or bound)
      end
      compare(name, opts, "f32", true, coded and states.i8 or near.f32)
    end)
  end

  device_it("keep states in other dtypes as the CPU does", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "RMSprop", "Adamax", "NAdam", "RAdam", "Lion", "LAMB",
      "AdamWScheduleFree", "Prodigy" } do
      for dtype, bound in pairs(states) do
        local opts = {}
        for k, v in pairs(cases[name]) do opts[k] = v end
        opts.state_dtype = dtype
        if name == "Lion" then bound = 0.021 * 2 end -- a sign may turn
        compare(name, opts, "f32", false, bound)
        if dtype == "i8" then compare(name, opts, "f32", true, bound) end
        if dtype == "f32" then compare(name, opts, "bf16", false, near.bf16) end
      end
    end
  end)

  device_it("move their states between devices", function()
    local _, state = stepped("Adam", { lr = 0.01, state_dtype = "i8" }, "cpu")
    local p = wave({ 64, 80 }, 2):cuda():requires_grad_()
    local opt = optim.Adam({ p }, { lr = 0.01, state_dtype = "i8" })
    local second = state.state[2]
    opt:load_state_dict { state = { second }, param_groups = { { lr = 0.01, state_dtype = "i8", params = { 1 } } } }
    local there_now = opt:state_dict().state[1]
    assert.equal("cuda", there_now.exp_avg:device())
    assert.equal("i8", there_now.exp_avg:dtype())
    assert.equal("u8", there_now.exp_avg_sq:dtype())
    p.grad = wave({ 64, 80 }, 9):cuda()
    opt:step()
    assert.is_true(T.equal(second.exp_avg, second.exp_avg:clone()))
  end)

  device_it("are captured with LAMB's two passes and moments in 8 bits", function()
    for name, opts in pairs { LAMB = { lr = 1e-2 }, AdamW = { lr = 1e-2, state_dtype = "i8" },
      Adam = { lr = 1e-2, state_dtype = "bf16" } } do
      local function train(device, jit)
        T.manual_seed(3)
        local net = nn.Sequential(nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 4)):to(device)
        local opt = optim[name](net:parameters(), opts)
        local schedule = optim.lr_scheduler.StepLR(opt, { step_size = 2, gamma = 0.5 })
        local x, y = T.randn(5, 64):to(device), T.randint(1, 4, { 5 }):to(device)
        local function step(a, b)
          opt:zero_grad()
          local loss = nn.F.cross_entropy(net(a), b)
          loss:backward()
          opt:step()
          schedule:step()
          return loss
        end
        if jit then step = T.jit(step) end
        local out = {}
        for i = 1, 9 do out[i] = step(x, y):item() end
        return out, jit and select(3, T.core.jit_device_groups(step.last.program))
      end
      local want = train("cpu")
      local got, how = train("cuda", true)
      for i = 1, 9 do assert.near(want[i], got[i], 2e-3, name .. " run " .. i) end
      assert.equal("captured", how, name)
    end
  end)
end)
