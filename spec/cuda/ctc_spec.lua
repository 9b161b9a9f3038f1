-- SPDX-License-Identifier: MIT
-- CTC on the device against the CPU: what cuDNN computes (f32, the first class blank) and what our own kernels must.
-- The device is a GPU with cuDNN, or the emulation, whose cuDNN is written from the documented formulas, stops at what
-- the library does not allow and can be told to err (spec/cuda/emulate/cudnn_ctc.cpp).

local T = require "perilune"
local nn = require "perilune.nn"
local F = nn.F

local ok, why = T.core.device.available()
local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"
local build, root = os.getenv "PERILUNE_BUILD" or "build", os.getenv "PERILUNE_ROOT" or "."

local function i64(list) return T.tensor(list, { dtype = "i64" }) end

-- Loss of every sequence and the gradient for `x`, each sequence weighted by its number.
local function values(x, targets, frames, letters, o, device)
  local leaf = x:detach():clone():to(device)
  leaf.requires_grad = true
  local all = { reduction = "none" }
  for k, v in pairs(o or {}) do all[k] = v end
  local loss = F.ctc_loss(leaf, targets:to(device), frames:to(device), letters:to(device), all)
  local weights = T.arange(1, loss:size(1)):to(x:dtype()):to(device)
  local g = T.grad_of((loss * weights):sum(), { leaf })[1]
  return loss:detach():cpu(), g:cpu()
end

-- cuDNN adds up logarithms in f32, of frames that it normalized: sums have the digits of such costs, and a gradient is
-- e to the power of them, times the sequence's weight.
local function digits(x, loss)
  local cost = T.where(loss:isfinite(), loss, 0):abs():max():item() + x:size(1) * math.log(x:size(3))
  return 2e-5 + 4 * loss:size(1) * cost * 2.0 ^ -24
end

local function same(name, tolerance, got, want)
  if T.equal(got:isfinite(), want:isfinite()) then
    local fine = want:isfinite()
    got, want = got:masked_fill(~fine, 0), want:masked_fill(~fine, 0)
    local far = ((got - want):abs() - tolerance * (want:abs() + 1)):max():item()
    if far <= 0 then return end
    error(("%s: %g too far"):format(name, far), 2)
  end
  error(name .. ": not the same numbers are finite", 2)
end

local function compare(name, x, targets, frames, letters, o)
  local loss, grad = values(x, targets, frames, letters, o or {}, "cpu")
  local tolerance = x:dtype() == "f64" and 1e-9 or digits(x, loss)
  local dev_loss, dev_grad = values(x, targets, frames, letters, o or {}, "cuda")
  same(name .. ": loss", tolerance, dev_loss, loss)
  same(name .. ": gradient", tolerance, dev_grad, grad)
  return dev_loss
end

describe("CTC on the device", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end

  local function batch(steps, n, classes, longest, seed)
    T.manual_seed(seed or 1)
    return T.randn(steps, n, classes), T.randint(2, classes, { n, math.max(longest, 1) }):long()
  end

  it("follows the CPU over lengths, for inputs that add up to 1 and such that do not", function()
    local x, targets = batch(12, 5, 6, 5)
    local frames, letters = i64 { 12, 9, 11, 12, 7 }, i64 { 5, 1, 4, 3, 2 }
    compare("normalized", x:log_softmax(3), targets, frames, letters)
    compare("not normalized", x, targets, frames, letters)
    compare("far from it", x * 5 + 3, targets, frames, letters)
    compare("one class beside blank", x:narrow(3, 1, 2), T.full({ 5, 2 }, 2):long(), i64 { 12, 9, 5, 3, 4 },
      i64 { 2, 1, 2, 2, 1 })
    compare("one sequence", x:narrow(2, 1, 1), targets:narrow(1, 1, 1), i64 { 12 }, i64 { 5 })
    local long, texts = batch(150, 3, 30, 40, 7)
    compare("many frames", long, texts, i64 { 150, 120, 133 }, i64 { 40, 33, 17 })
  end)

  it("gives repeated letters, empty texts, too few and no frames the CPU's numbers", function()
    local x = batch(8, 7, 5, 4):log_softmax(3)
    local targets = i64 { { 2, 2, 3, 3 }, { 4, 4, 4, 4 }, { 2, 3, 2, 3 }, { 5, 5, 2, 2 }, { 2, 3, 4, 5 },
      { 3, 3, 3, 3 }, { 2, 2, 2, 2 } }
    local frames, letters = i64 { 8, 8, 4, 3, 0, 5, 6 }, i64 { 4, 4, 4, 4, 0, 0, 4 }
    for _, zero in ipairs { false, true } do
      local loss = compare("zero_infinity " .. tostring(zero), x, targets, frames, letters, { zero_infinity = zero })
      assert.equal(zero and 0 or math.huge, loss[4]:item())
    end
    compare("no letters at all", x, targets:narrow(2, 1, 1), frames, i64 { 0, 0, 0, 0, 0, 0, 0 })
    compare("blanks among the letters", x, i64 { { 2, 1 }, { 1, 3 }, { 2, 3 }, { 2, 2 }, { 1, 1 }, { 3, 4 }, { 5, 5 } },
      i64 { 8, 8, 8, 8, 8, 8, 8 }, i64 { 2, 2, 2, 2, 2, 2, 2 })
  end)

  it("takes impossible letters, other blanks, many letters and f64", function()
    local x, targets = batch(12, 4, 6, 4, 3)
    local frames, letters = i64 { 12, 9, 11, 12 }, i64 { 4, 1, 3, 2 }
    local holes = x:log_softmax(3)
    holes[{ {}, 2, 3 }] = -math.huge
    holes[{ 5, 1, {} }] = -math.huge
    compare("probabilities of 0", holes, targets, frames, letters)
    compare("another blank", x:log_softmax(3), (targets - 1), frames, letters, { blank = 6 })
    compare("from 0", x:log_softmax(3), targets - 1, frames, letters, { index_base = 0, blank = 0 })
    compare("f64", x:double():log_softmax(3), targets, frames, letters)
    compare("f64, not normalized", x:double(), targets, frames, letters)
    local long, texts = batch(300, 2, 4, 260, 9)
    compare("many letters", long, texts, i64 { 300, 290 }, i64 { 200, 255 })
  end)

  it("refuses letters and lengths out of range", function()
    local x = T.randn(6, 2, 4):cuda()
    local function loss(targets, frames, letters)
      local function there(v) return i64(v):cuda() end
      return function() T.ctc_nll(x, there(targets), there(frames), there(letters), { blank = 1 }):cpu() end
    end
    assert.has_error(loss({ { 2, 5 }, { 2, 3 } }, { 6, 6 }, { 2, 2 }))
    assert.has_error(loss({ { 2, 3 }, { 2, 3 } }, { 6, 7 }, { 2, 2 }))
    assert.has_error(loss({ { 2, 3 }, { 2, 3 } }, { 6, 6 }, { 2, 3 }))
  end)

  it("goes back over what was computed before cuDNN was switched off, or on", function()
    local x, targets = batch(9, 4, 5, 3, 5)
    local frames, letters = i64 { 9, 8, 9, 2 }, i64 { 3, 2, 1, 3 }
    local _, want = values(x, targets, frames, letters, {}, "cpu")
    for _, first in ipairs { true, false } do
      local was = T.cuda.cudnn(first)
      local leaf = x:cuda()
      leaf.requires_grad = true
      local loss = F.ctc_loss(leaf, targets:cuda(), frames:cuda(), letters:cuda(), { reduction = "none" })
      T.cuda.cudnn(not first)
      local total = (loss * T.arange(1, 4):to("f32"):cuda()):sum()
      for _ = 1, 2 do same("back", 2e-5, T.grad_of(total, { leaf }, { retain_graph = true })[1]:cpu(), want) end
      T.cuda.cudnn(was == nil or was)
      T.cuda.cudnn(true)
    end
  end)

  it("repeats its bits, and is the same in a captured graph", function()
    local x, targets = batch(20, 3, 6, 5, 8)
    local frames, letters = i64({ 20, 15, 18 }):cuda(), i64({ 5, 3, 4 }):cuda()
    local there, labels = x:cuda(), targets:cuda()
    local function step(a)
      local function f(v) return F.ctc_loss(v:log_softmax(3), labels, frames, letters) end
      return T.grad(f)(a)
    end
    local want = step(there)
    assert.is_true(T.equal(want, step(there)))
    local jitted = T.jit(step)
    for _ = 1, 5 do same("jitted", 1e-6, jitted(there):cpu(), want:cpu()) end
  end)

  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device, whose cuDNN can err")
    return
  end

  -- What a program prints in a process of its own, whose cuDNN is such.
  local function prints(how, text)
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write [[
local T = require "perilune"
local F = require("perilune.nn").F
T.manual_seed(2)
local x, targets = T.randn(6, 7, 4), T.randint(2, 4, { 7, 2 }):long()
local function i64(v) return T.full({ 7 }, v):long() end
local function difference(o, dtype)
  local all = { reduction = "none" }
  for k, v in pairs(o or {}) do all[k] = v end
  local function loss(d)
    return F.ctc_loss(x:to(dtype or "f32"):to(d), targets:to(d), i64(6):to(d), i64(2):to(d), all):cpu()
  end
  print(("%.3f"):format((loss("cuda") - loss("cpu")):max():item()))
end
]]
    f:write(text)
    f:close()
    local command = "cd '%s' && PERILUNE_EMULATE=open,%s '%s/bin/perilune' run %s 2>&1"
    local p = assert(io.popen(command:format(root, how, build, path)))
    local out = p:read "a"
    local fine = p:close()
    os.remove(path)
    assert.is_true(fine, out)
    return out
  end

  it("is cuDNN's where it can be", function()
    assert.equal("5.000\n0.000\n0.000\n0.000\n5.000\n", prints("cudnn-ctc=3", [[
difference {}
difference({}, "f64")
difference { blank = 4 }
T.cuda.cudnn(false)
difference {}
T.cuda.cudnn(true)
difference {}
]]))
  end)

  for _, bad in ipairs { "cudnn-ctc=0", "cudnn-ctc=1", "cudnn-ctc=2", "no-cudnn", "old-cudnn" } do
    it("is right with " .. bad, function() assert.equal("0.000\n", prints(bad, "difference {}")) end)
  end
end)
