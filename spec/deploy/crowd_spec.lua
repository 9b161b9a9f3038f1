-- SPDX-License-Identifier: MIT
-- Many threads and many models of the C ABI in one process (spec/link/crowd.c): runs, loads, steps of training and
-- mistakes beside each other, with the bits of a thread alone. With ./setup tsan no two may meet in memory.

local T = require "perilune"
local term = require "spec.support.terminal"
local nn = T.nn
local build = os.getenv "PERILUNE_BUILD" or (os.getenv "PERILUNE_ROOT" or ".") .. "/build"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local program = build .. "/spec/link_crowd"
local RUNS = os.getenv "PERILUNE_LANES" == "long" and 10000 or sanitized and 10 or 60

-- name → function → f, inputs, options of T.save_graph
local models = {}

function models.pictures()
  local function block(n)
    local inner = nn.Sequential(nn.Conv2d(n, n, 3, { padding = 1 }), nn.BatchNorm2d(n), nn.ReLU(),
      nn.Conv2d(n, n, 3, { padding = 1 }), nn.BatchNorm2d(n))
    local b = nn.Sequential(inner)
    function b.forward(_, x) return (inner(x) + x):relu() end
    return b
  end
  local net = nn.Sequential(nn.Conv2d(3, 32, 3, { stride = 2, padding = 1 }), nn.BatchNorm2d(32), nn.ReLU(), block(32),
    nn.Conv2d(32, 48, 1), nn.GroupNorm(4, 48), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(48, 10)):eval()
  return function(x) return net(x) end, { T.rand(2, 3, 20, 20) }
end

-- One token behind a memory of keys and values, which come in and go out.
function models.decode()
  local emb, qkv, out, head = nn.Embedding(40, 32), nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 40)
  return function(id, keys, values)
    local x = emb(id + 1)
    local q, k, v = table.unpack(qkv(nn.F.rms_norm(x, { 32 })):chunk(3, -1))
    keys = T.cat({ keys, k:view(1, 4, 1, 8) }, 3)
    values = T.cat({ values, v:view(1, 4, 1, 8) }, 3)
    local y = nn.F.scaled_dot_product_attention(q:view(1, 4, 1, 8), keys, values):reshape(1, 1, 32)
    return head(x + out(y)):argmax(-1), keys, values
  end, { T.ones({ 1, 1 }, { dtype = "i64" }), T.rand(1, 4, 5, 8), T.rand(1, 4, 5, 8) },
    { dynamic = { id = {}, keys = { [3] = "past" }, values = { [3] = "past" } }, sizes = { past = { 1, 40 } },
      input_names = { "id", "keys", "values" } }
end

function models.text()
  local emb = nn.Embedding(20, 16)
  local layer = nn.TransformerEncoderLayer(16, 2, 32, { batch_first = true }):eval()
  return function(ids) return layer(emb(ids + 1)):mean(2) end, { T.ones({ 2, 5 }, { dtype = "i64" }) },
    { dynamic = { x = { "batch", "length" } }, sizes = { batch = { 1, 8 }, length = { 1, 16 } } }
end

function models.quantized()
  local net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)):eval()
  T.quantize(net, { bits = 4, group = 32 })
  return function(x) return net(x) end, { T.rand(3, 64) }
end

function models.integers()
  local net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 8))
  local prepared = nn.quant.prepare(net, { train = false })
  prepared(T.rand(4, 3, 8, 8))
  local int8 = nn.quant.convert(prepared:eval())
  return function(x) return int8(x) end, { T.rand(2, 3, 8, 8) }
end

function models.sequence()
  local lstm, gru = nn.LSTM(8, 16), nn.GRU(16, 8)
  return function(x) return (gru((lstm(x)))) end, { T.rand(6, 2, 8) },
    { dynamic = { x = { "time", "batch" } }, sizes = { time = { 1, 20 } } }
end

function models.halves()
  local net = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64)):eval():to "bf16"
  return function(x) return net(x:to "bf16"):to "f32", (x:to "f16" * 2):softmax(-1):to "f32" end, { T.rand(32, 64) }
end

-- Factorizations, sorting, sums along columns.
function models.numbers()
  return function(x)
    local a = x:matmul(x:t()) + T.eye(24)
    local sorted, at = x:sort(2)
    return T.linalg.solve(a, x), T.linalg.svdvals(x), T.linalg.cholesky(a), sorted, at, x:cumsum(1), x:std(1),
      x:topk(3, 2), T.linalg.eigvalsh(a), x:unfold(2, 4, 2):exp():sum(-1)
  end, { T.rand(24, 20) }
end

local function training(net, make, x, y, loss_of)
  local opt = make(net:parameters())
  local step = T.jit(function(a, b)
    local loss = (loss_of or nn.F.mse_loss)(net(a), b)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss
  end)
  step(x, y)
  return step:graph()
end

local trainings = {
  pictures = function()
    return training(nn.Sequential(nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Flatten(), nn.Dropout(0.3), nn.Linear(16 * 16, 4)), function(p) return T.optim.AdamW(p, { lr = 0.01 }) end,
      T.rand(4, 3, 8, 8), T.rand(4, 4))
  end,
  text = function()
    local net = nn.Sequential(nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 2, 32, { batch_first = true }),
      nn.Linear(16, 4))
    local f = nn.Sequential(net)
    function f.forward(_, ids) return net(ids + 1) end
    return training(f, function(p) return T.optim.SGD(p, { lr = 0.1, momentum = 0.9 }) end,
      T.ones({ 2, 5 }, { dtype = "i64" }), T.rand(2, 5, 4))
  end,
}

describe("many threads of the C ABI", function()
  it("see the bits of one, beside loads, steps and mistakes", function()
    if not io.open(program) then return pending "a build without tests" end
    local dir, remove = term.folder()
    finally(remove)
    T.manual_seed(7)
    local run, steps = {}, {}
    for name, make in pairs(models) do
      local f, inputs, options = make()
      local path = dir .. "/" .. name
      if options then assert(T.save_graph(path, f, inputs, options))
      else
        local jitted = T.jit(f)
        T.no_grad(function() return jitted(table.unpack(inputs)) end)
        assert(T.save_graph(path, jitted:graph()))
      end
      run[#run + 1] = path
    end
    for name, make in pairs(trainings) do
      steps[#steps + 1] = dir .. "/step_" .. name
      assert(T.save_graph(steps[#steps], make()))
    end
    local pipe = assert(io.popen(("'%s' %d %s steps %s 2>&1"):format(program, RUNS, table.concat(run, " "),
      table.concat(steps, " "))))
    local text = pipe:read "a"
    assert.is_true(pipe:close(), text)
    assert.equal(("%d models, %d runs each in 8 threads, 0 wrong\n"):format(#run + #steps, RUNS), text)
  end)
end)
