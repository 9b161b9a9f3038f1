-- SPDX-License-Identifier: MIT
-- What scripts switch for all calls that follow, and a jitted function that was called before: after each switch it
-- gives what the function as written gives, bit by bit, dtype and device included, and again when it is put back.
-- Switches are those of T.set_… and of T.cuda; a new one has to say here what it is.

local T = require "perilune"
local nn, F = T.nn, T.nn.F

local gpu = T.core.device.available()

-- name → { values, set, get }; false: no call of an op depends on it
local SWITCHES = {
  set_float32_matmul_precision = { { "highest", "high", "medium" }, T.set_float32_matmul_precision,
    T.get_float32_matmul_precision },
  set_default_dtype = { { "f32", "f64", "f16" }, T.set_default_dtype, T.default_dtype },
  set_default_device = { gpu and { "cpu", "cuda" } or { "cpu" }, T.set_default_device, T.get_default_device },
  set_grad_enabled = { { true, false }, T.set_grad_enabled, function() return true end },
  set_num_threads = { { 1, 2 }, T.set_num_threads, T.get_num_threads },
  deterministic = { { true, false }, T.deterministic, T.deterministic },
  set_memory_budget = false, set_printoptions = false, set_rng_state = false,
}
for _, name in ipairs { "allow_tf32", "cudnn", "benchmark", "deterministic" } do
  local f = T.cuda[name]
  SWITCHES["cuda." .. name] = { gpu and { false, true } or {}, f, f }
end

-- What is called: name → a function that makes { f, arguments… }
local CASES = {}
function CASES.products()
  local w, b = T.randn(96, 96), T.randn(96)
  return { function(x) return F.gelu(F.linear(x, w, b)), x:matmul(w:t()) end, T.randn(64, 96) }
end
function CASES.convolution()
  local net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)):eval()
  return { function(x) return net(x) end, T.randn(2, 3, 9, 9) }
end
for _, kind in ipairs { "LSTM", "GRU", "RNN" } do
  CASES[kind] = function()
    local net = nn[kind](7, 5)
    return { function(x) return (net(x)) end, T.randn(4, 3, 7) }
  end
end
function CASES.attention()
  return { function(q, k, v) return F.scaled_dot_product_attention(q, k, v, { is_causal = true }) end,
    T.randn(2, 2, 8, 16), T.randn(2, 2, 8, 16), T.randn(2, 2, 8, 16) }
end
function CASES.made()
  return { function(x) return T.ones(3) * 0.5, T.full({ 2 }, 1 / 3), T.arange(3):div(7), x:sum() end, T.randn(3, 3) }
end
function CASES.gradients()
  local w = T.randn(40, 40)
  return { function(x)
    local leaf = w:detach():requires_grad_()
    local y = x:matmul(leaf):tanh():sum()
    return y.requires_grad and T.grad_of(y, leaf) or y
  end, T.randn(30, 40) }
end
function CASES.dropout()
  return { function(x) return F.dropout(x, 0.5, true):matmul(x:t()) end, T.randn(64, 64) }
end

local function told(t) return ("%s %s %s"):format(t:dtype(), t:device(), t:detach():cpu():contiguous():to_string()) end

local function results(f, args)
  T.manual_seed(11)
  local out = table.pack(f(table.unpack(args)))
  for i = 1, out.n do out[i] = told(out[i]) end
  return out
end

describe("a jitted function follows", function()
  it("every switch there is", function()
    local unknown = {}
    for name in pairs(T) do
      if type(name) == "string" and name:find "^set_" and SWITCHES[name] == nil then unknown[#unknown + 1] = name end
    end
    assert.same({}, unknown)
  end)

  for name, switch in pairs(SWITCHES) do
    if switch and #switch[1] > 1 then
      it(name, function()
        local before = switch[3]()
        for case, make in pairs(CASES) do
          T.manual_seed(5)
          local args = make()
          local f = table.remove(args, 1)
          local jitted = T.jit(f)
          for round = 1, 2 do
            for _, value in ipairs(switch[1]) do
              switch[2](value)
              local ok, why = pcall(function()
                local want = results(f, args)
                for call = 1, 5 do -- captured, too
                  assert.same(want, results(jitted, args),
                    ("%s, call %d of round %d at %s"):format(case, call, round, tostring(value)))
                end
              end)
              if not ok then
                switch[2](before)
                error(why, 0)
              end
            end
          end
          switch[2](before)
        end
      end)
    end
  end
end)

describe("a traced function may not leave", function()
  -- What the script would find changed after each call of it, and after a run of the graph would not.
  local left = { set_grad_enabled = { true, false }, anomaly = { false, true }, memory_limit = { nil, 1 << 30 } }
  local set = { anomaly = T.core.anomaly, memory_limit = T.core.memory_limit }
  for name, switch in pairs(SWITCHES) do
    local works = gpu or name ~= "deterministic"
    if switch and #switch[1] > 1 and works and not left[name] then left[name], set[name] = switch[1], switch[2] end
  end
  for name, values in pairs(left) do
    it(name .. " changed", function()
      local change = set[name] or SWITCHES[name][2]
      change(values[1])
      local ok, message = pcall(T.jit(function(x)
        change(values[2])
        return x * 2
      end), T.ones(1))
      change(values[1])
      assert.is_false(ok)
      assert.truthy(message:find("for what comes after it; a graph does not repeat that", 1, true), message)
      -- set back inside, it is the function's own affair
      assert.equal(2, T.jit(function(x)
        change(values[2])
        change(values[1])
        return x * 2
      end)(T.ones(1)):item())
    end)
  end
end)

describe("what is computed while a plan is made", function()
  local function product() return T.full({ 1, 1 }, 1.001):matmul(T.full({ 1, 1 }, 1.003)) end

  it("is in the dtypes that the function chose, whatever region the call is in", function()
    local function f(x) return T.autocast("bf16", { enabled = false }, product) + x end
    local want = T.autocast("bf16", f, T.zeros(1))
    assert.equal(want:to_string(), T.autocast("bf16", T.jit(f), T.zeros(1)):to_string())
  end)

  it("is no operation of the checkpoint that the first call is in", function()
    local x = T.ones(3):requires_grad_()
    T.checkpoint(T.jit(function(y) return y * product() * (T.full({ 1 }, 2.0) + 1) end), x):sum():backward()
    assert.is_true(x.grad:allclose(T.full({ 3 }, 3 * 1.001 * 1.003)))
  end)
end)
