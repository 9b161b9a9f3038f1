-- SPDX-License-Identifier: MIT
-- What forward mode costs: value and tangent together (T.jvp) against the value alone, and, for comparison, double vjp
-- (T.linearize and one push), the gradient, H v, and H v as the tangent of the gradient.
--   perilune run bench/forward.lua -- [--threads N] [--only NAME] [--size N] [--calls MODE N]
-- --size: reductions, scans, rows and elementwise ops take N x N floats (1024); arguments and tangents of 256 are in
-- the second-level cache.
-- A JSON object a line; times are medians of samples taken in turns. --calls runs one mode N times and measures
-- nothing, for counting instructions: the difference of two counts is that of the calls between.

local here = debug.getinfo(1, "S").source:match("^@(.*)forward%.lua$") or "./"
local timing = dofile(here .. "timing.lua")
local T = require "perilune"
local nn, F = T.nn, T.nn.F

local o = { threads = 1, size = 1024 }
do
  local i = 1
  while arg[i] do
    if arg[i] == "--threads" or arg[i] == "--size" then
      o[arg[i]:sub(3)] = math.tointeger(tonumber(arg[i + 1])) or error(arg[i] .. " wants a whole number", 0)
      i = i + 1
    elseif arg[i] == "--only" then
      o.only, i = arg[i + 1], i + 1
    elseif arg[i] == "--calls" then
      o.mode, o.calls, i = arg[i + 1], math.tointeger(tonumber(arg[i + 2])), i + 2
    elseif arg[i] ~= "--" then
      error("unknown option " .. arg[i], 0)
    end
    i = i + 1
  end
end
T.set_num_threads(o.threads)
T.manual_seed(1)

-- ---- functions of one tensor -----------------------------------------------------------------------------------

local function freeze(net)
  for _, p in ipairs(net:parameters()) do p:requires_grad_(false) end
  return function(x) return net(x) end
end

local work = {
  { "mlp", function()
    local net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(), nn.LayerNorm(512),
      nn.Linear(512, 10))
    return freeze(net), T.randn(64, 256)
  end },
  { "conv", function()
    local net = nn.Sequential(nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3, { padding = 1 }), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return freeze(net), T.randn(8, 3, 32, 32)
  end },
  { "transformer", function()
    return freeze(nn.TransformerEncoderLayer(128, 4, 256, { dropout = 0.0, batch_first = true })), T.randn(4, 64, 128)
  end },
  { "elementwise", function()
    return function(x) return (x:sin() * x:exp() + x:tanh()):sigmoid():log() * 2 - x:sqrt() end, T.rand(1 << 18) + 0.5
  end },
  { "elementwise_small", function()
    return function(x) return (x:sin() * x:exp() + x:tanh()):sigmoid():log() * 2 - x:sqrt() end, T.rand(16) + 0.5
  end },
  { "loss", function()
    local y = T.randint(1, 100, { 256 })
    return function(x) return F.cross_entropy(x, y) end, T.randn(256, 100)
  end },
}

-- Reductions, scans, rows and elementwise ops on o.size x o.size floats: name, how the function is made, and whether
-- its argument is near 1.
for _, r in ipairs {
  { "mse", function(y) return function(x) return F.mse_loss(x, y) end end },
  { "huber", function(y) return function(x) return F.huber_loss(x, y) end end },
  { "l1", function(y) return function(x) return F.l1_loss(x, y) end end },
  { "smooth_l1", function(y) return function(x) return F.smooth_l1_loss(x, y) end end },
  { "bce_logits", function(y) return function(x) return F.binary_cross_entropy_with_logits(x, y:sigmoid()) end end },
  { "nll", function()
    local y = T.randint(1, o.size, { o.size })
    return function(x) return F.nll_loss(x, y) end
  end },
  { "sum", function() return function(x) return x:sum() end end },
  { "mean_rows", function() return function(x) return x:mean(2) end end },
  { "cumsum", function() return function(x) return x:cumsum(2) end end },
  { "norm", function() return function(x) return x:norm() end end },
  { "norm_rows", function() return function(x) return x:norm(2, 2) end end },
  { "norm_columns", function() return function(x) return x:norm(2, 1) end end },
  { "norm1", function() return function(x) return x:norm(1) end end },
  { "norm3_rows", function() return function(x) return x:norm(3, 2) end end },
  { "var", function() return function(x) return x:var() end end },
  { "var_rows", function() return function(x) return x:var(2) end end },
  { "std_rows", function() return function(x) return x:std(2) end end },
  { "std_columns", function() return function(x) return x:std(1) end end },
  { "amax", function() return function(x) return x:amax() end end },
  { "amax_rows", function() return function(x) return x:amax(2) end end },
  { "amax_columns", function() return function(x) return x:amax(1) end end },
  { "prod", function() return function(x) return x:prod() end end, true },
  { "prod_rows", function() return function(x) return x:prod(2) end end, true },
  { "prod_columns", function() return function(x) return x:prod(1) end end, true },
  { "softmax", function() return function(x) return x:softmax(2) end end },
  { "softmax_columns", function() return function(x) return x:softmax(1) end end },
  { "log_softmax", function() return function(x) return x:log_softmax(2) end end },
  { "log_softmax_columns", function() return function(x) return x:log_softmax(1) end end },
  { "logsumexp", function() return function(x) return x:logsumexp() end end },
  { "logsumexp_rows", function() return function(x) return x:logsumexp(2) end end },
  { "logsumexp_columns", function() return function(x) return x:logsumexp(1) end end },
  { "layer_norm", function() return function(x) return F.layer_norm(x, { o.size }) end end },
  { "max_pool", function() return function(x) return F.max_pool2d(x:view(4, 16, o.size // 8, o.size // 8), 2) end end },
  { "square", function() return function(x) return x ^ 2 end end },
  { "cube", function() return function(x) return x ^ 3 end end },
  { "power", function() return function(x) return x:abs() ^ 1.7 end end },
} do
  work[#work + 1] = { r[1], function()
    local x = T.randn(o.size, o.size)
    return r[2](T.randn(o.size, o.size)), r[3] and x * 0.01 + 1 or x
  end, { "forward", "jvp" } }
end

local function modes(f, x)
  local v = T.randn(x:shape())
  local function scalar(a) return (f(a) ^ 2):sum() end
  return {
    forward = function() return f(x) end,
    jvp = function() return T.jvp(f, x, v) end,
    double_vjp = function() return select(2, T.linearize(f, x))(v) end,
    gradient = function() return T.grad(scalar, x) end,
    hvp = function() return T.hvp(scalar, x, v) end,
    hvp_forward = function() return T.jvp(T.grad(scalar), x, v) end,
  }
end

local all = { "forward", "jvp", "double_vjp", "gradient", "hvp", "hvp_forward" }

local function measure(name, f, x, names)
  local run, samples, count = modes(f, x), {}, {}
  for _, mode in ipairs(names) do
    samples[mode] = {}
    for _ = 1, 3 do run[mode]() end
    local n, took = 1, 0
    while took < timing.SAMPLE_S do
      local start = os.clock()
      for _ = 1, n do run[mode]() end
      n, took = n * 2, os.clock() - start
    end
    count[mode] = n // 2
  end
  for _ = 1, 15 do
    for _, mode in ipairs(names) do
      local start = os.clock()
      for _ = 1, count[mode] do run[mode]() end
      table.insert(samples[mode], (os.clock() - start) / count[mode])
    end
  end
  local m = {}
  for _, mode in ipairs(names) do m[mode] = timing.median(samples[mode]) end
  local line = { ('{"workload":"%s","threads":%d,"forward_us":%.1f'):format(name, o.threads, m.forward * 1e6) }
  for _, mode in ipairs(names) do
    if mode ~= "forward" then line[#line + 1] = ('"%s":%.2f'):format(mode, m[mode] / m.forward) end
  end
  print(table.concat(line, ",") .. "}")
end

for _, w in ipairs(work) do
  if not o.only or o.only == w[1] then
    local f, x = w[2]()
    if o.calls then
      local run = modes(f, x)[o.mode] or error("no mode " .. tostring(o.mode), 0)
      for _ = 1, o.calls do run() end
    else
      measure(w[1], f, x, w[3] or all)
    end
  end
end
