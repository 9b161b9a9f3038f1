-- SPDX-License-Identifier: MIT
-- One trace for all sizes (docs/design/symbolic-sizes.md): the same results as written, and no second trace where the
-- function does not look at what has changed; where it does look, another trace and never another number.

local T = require "perilune"
local fuzz = require "spec.support.fuzz_jit"

local nn, F = T.nn, T.nn.F
local on_device = require "spec.support.device".mode ~= nil -- where the emulation takes its time

local function same(want, got, what)
  if not T.is_tensor(want) then return assert.equal(want, got, what) end
  assert.equal(want:dtype(), got:dtype(), what)
  assert.same(want:shape(), got:shape(), what)
  if want:numel() == 0 then return end
  local nan = want:ne(want):logical_and(got:ne(got))
  assert.is_true(want:eq(got):logical_or(nan):all():item(), what)
end

-- Why there is more than one trace.
local function reasons(f)
  local out = {}
  for _, list in pairs(f.kinds) do
    for _, t in ipairs(list) do
      local name = require("perilune.jit.guards").changed(t.guards)
      out[#out + 1] = T.core.jit_fixed(t.program) or t.why or name and name .. " changed" or "?"
    end
  end
  return table.concat(out, "; ")
end

-- make() → a function of inputs(n), as written and compiled, with n = each of `sizes` → the compiled one.
local function compare(what, make, inputs, sizes, traces, options)
  T.manual_seed(5)
  local plain = make()
  T.manual_seed(5)
  local compiled = T.jit(make(), options)
  for _, n in ipairs(sizes) do
    local args = table.pack(inputs(n))
    T.manual_seed(9)
    local want = table.pack(plain(table.unpack(args, 1, args.n)))
    T.manual_seed(9)
    local got = table.pack(compiled(table.unpack(args, 1, args.n)))
    assert.equal(want.n, got.n, what)
    for i = 1, want.n do same(want[i], got[i], ("%s, size %d, result %d"):format(what, n, i)) end
  end
  if traces then assert.equal(traces, compiled.ntraces, what .. ": " .. reasons(compiled)) end
  return compiled
end

describe("a trace for other sizes", function()
  it("is none: last batches of a training step, optimizer included", function()
    for _, name in ipairs { "SGD", "AdamW", "RMSprop", "Muon" } do
      local weights = {}
      compare(name, function()
        local net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 3))
        local params = net:parameters()
        if name == "Muon" then params = { net[1].weight, net[5].weight } end
        local opt = T.optim[name](params, { lr = 0.05 })
        weights[#weights + 1] = net[1].weight
        return function(x, y)
          net:zero_grad()
          local loss = F.cross_entropy(net(x), y)
          loss:backward()
          opt:step()
          return loss:detach(), net[5].weight.grad:clone()
        end
      end, function(n) return T.randn(n, 6), T.randint(1, 3, { n }) end, { 32, 32, 7, 32, 5, 7, 2, 32 }, 1)
      same(weights[1]:detach(), weights[2]:detach(), name)
    end
  end)

  it("is none for gradients that are taken outside", function()
    compare("outside", function()
      local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
      return function(x) return net(x):mean() end
    end, function(n) return T.randn(n, 4) end, { 5, 3, 9, 5 }, 1)
    local w = T.randn(4, 4):requires_grad_()
    local f = T.jit(function(x) return (x:matmul(w):softmax(2) * x):sum(1) end)
    for _, n in ipairs { 4, 6, 3, 4 } do
      local x, grads = T.randn(n, 4):requires_grad_(), {}
      for k, g in ipairs { f, function(y) return (y:matmul(w):softmax(2) * y):sum(1) end } do
        x.grad, w.grad = nil, nil
        g(x):sum():backward()
        grads[k] = { x.grad, w.grad }
      end
      for i = 1, 2 do assert.is_true((grads[1][i] - grads[2][i]):abs():max():item() < 1e-5) end
    end
    assert.equal(1, f.ntraces)
  end)

  it("is none in less memory, with views, writes in place and random numbers", function()
    for _, options in ipairs { {}, { mirror = "mirror" }, { mirror = "mincut", heavy = true }, { mirror = true } } do
      compare("mirror", function()
        local w = T.randn(5, 5):requires_grad_()
        return function(x)
          w.grad = nil
          local y = x:matmul(w)
          y[{ {}, 2 }] = y[{ {}, 1 }] * 2
          y:add_(F.dropout(y, 0.2)):tanh_()
          local z = F.dropout(y, 0.5) * y:t():contiguous():t()
          z[1]:mul_(0.5)
          z:sum():backward()
          return z:detach(), w.grad:clone(), y[{ { 1, 2 }, {} }]:detach(), x[2]
        end
      end, function(n) return T.randn(n, 5) end, { 6, 3, 8, 6, 4 }, 1, options)
    end
  end)

  it("is none where a cache grows", function()
    compare("decode", function()
      local wq, wk, wv = T.randn(8, 8), T.randn(8, 8), T.randn(8, 8)
      return function(x, keys, values)
        keys = T.cat({ keys, x:matmul(wk) }, 2)
        values = T.cat({ values, x:matmul(wv) }, 2)
        local scores = x:matmul(wq):matmul(keys:transpose(2, 3)) * 0.3
        return scores:softmax(3):matmul(values), keys, values
      end
    end, function(n) return T.randn(2, 1, 8), T.randn(2, n, 8), T.randn(2, n, 8) end,
      { 3, 4, 5, 6, 7, 30, 31, 2 }, 1)
  end)

  it("keeps as many plans as it may, and all traces", function()
    local f = T.jit(function(x) return x * 2 + 1 end)
    local most = on_device and 90 or 300
    for n = 1, most do assert.is_true(f(T.ones(n)):equal(T.ones(n) * 3)) end
    for n = most, 1, -7 do assert.is_true(f(T.ones(n)):equal(T.ones(n) * 3)) end
    assert.equal(1, f.ntraces)
    local kept = 0
    for _ in pairs(f.traces) do kept = kept + 1 end
    assert.is_true(kept <= 65, kept)
    f:reset()
    f(T.ones(4))
    assert.equal(1, f.ntraces)
  end)
end)

-- ---- what is written in Lua and looks at sizes: it is called again as a whole -------------------------------------

local function rows(n) return T.randn(n, 8) end
local function images(n) return T.randn(n, 4, 8, 8) end
local function texts(n) return T.randn(n, 3, 8) end -- [length, batch, width]
local function attending(options)
  local attend = nn.MultiheadAttention(8, 2, options)
  return setmetatable({ zero_grad = function() attend:zero_grad() end }, { __call = function(_, x, y)
    return (attend(x, y, y, { is_causal = options.causal }))
  end })
end

local modules = {
  BatchNorm1d = { function() return nn.BatchNorm1d(8) end, rows },
  BatchNorm2d = { function() return nn.BatchNorm2d(4) end, images },
  ["BatchNorm, plain average"] = { function() return nn.BatchNorm1d(8, { momentum = false }) end, rows },
  InstanceNorm2d = { function() return nn.InstanceNorm2d(4) end, images },
  GroupNorm = { function() return nn.GroupNorm(2, 4) end, images },
  Conv2d = { function() return nn.Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(2), nn.Flatten()) end, images },
  ["Conv2d, width"] = { function() return nn.Conv2d(4, 6, 3) end, function(n) return T.randn(2, 4, n + 4, 7) end },
  ConvTranspose2d = { function() return nn.ConvTranspose2d(4, 6, 3) end, images },
  Upsample = { function() return nn.Upsample { scale_factor = 2 } end, images },
  AdaptiveAvgPool2d = { function() return nn.AdaptiveAvgPool2d(2) end, images },
  PReLU = { function() return nn.PReLU() end, rows },
  RMSNorm = { function() return nn.RMSNorm(8) end, rows },
  Bilinear = { function() return nn.Bilinear(8, 8, 3) end, function(n) return rows(n), rows(n) end },
  Embedding = { function() return nn.Embedding(9, 4) end, function(n) return T.randint(1, 9, { n, 2 }) end },
  LSTM = { function() return nn.LSTM(8, 6, { num_layers = 2, bidirectional = true }) end, texts },
  ["LSTM, batch"] = { function() return nn.LSTM(8, 6, { batch_first = true }) end, texts },
  ["LSTM in half"] = { function() return nn.LSTM(8, 6):to "bf16" end,
    function(n) return T.randn(4, n, 8):to "bf16" end },
  GRU = { function() return nn.GRU(8, 6) end, texts },
  RNN = { function() return nn.RNN(8, 6) end, texts },
  LSTMCell = { function() return nn.LSTMCell(8, 6) end, rows },
  GRUCell = { function() return nn.GRUCell(8, 6) end, rows },
  ["attention, queries"] = { function() return attending { batch_first = true } end,
    function(n) return T.randn(2, n, 8), T.randn(2, 5, 8) end },
  ["attention, keys"] = { function() return attending { batch_first = true } end,
    function(n) return T.randn(2, 5, 8), T.randn(2, n, 8) end },
  TransformerEncoderLayer = { function() return nn.TransformerEncoderLayer(8, 2, 16, { dropout = 0.0 }) end, texts },
  TransformerDecoderLayer = { function() return nn.TransformerDecoderLayer(8, 2, 16, { dropout = 0.0 }) end,
    function(n) return texts(n), texts(n + 1) end },
}

describe("modules of several sizes", function()
  it("are traced once, with their gradients", function()
    for what, case in pairs(modules) do
      compare(what, function()
        local m = case[1]()
        return function(...)
          m:zero_grad()
          local xs = { ... }
          for i, x in ipairs(xs) do
            if x:is_floating_point() then xs[i] = x:detach():requires_grad_() end
          end
          local y = m(table.unpack(xs))
          local loss = (y * y):sum()
          if loss.requires_grad then loss:backward() end
          return y:detach(), xs[1].grad or 0
        end
      end, case[2], on_device and { 6, 3, 6 } or { 6, 3, 2, 9, 6, 4 }, 1)
    end
  end)

  it("and losses, and what is made like another tensor", function()
    for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cosine_similarity", "kl_div",
      "gaussian_nll_loss", "binary_cross_entropy_with_logits", "hinge_embedding_loss", "poisson_nll_loss" } do
      compare(name, function()
        return function(x, y)
          x = x:detach():requires_grad_()
          local loss = name == "gaussian_nll_loss" and F[name](x, y, y * y + 1) or F[name](x, y)
          loss:sum():backward()
          return loss:detach(), x.grad
        end
      end, function(n) return T.randn(n, 8), T.rand(n, 8) end, { 6, 3, 2, 9 }, 1)
    end
    compare("like", function()
      return function(x) return T.rand_like(x) + T.zeros_like(x) + T.full_like(x, 2), T.einsum("bi,bj->ij", x, x) end
    end, rows, { 6, 3, 2, 9 }, 1)
  end)

  it("count their lengths in no trace: a thousand", function()
    local net = nn.LSTM(3, 4)
    local f = T.jit(function(x) return (net(x)) end)
    local last = on_device and 40 or 1001
    for n = 2, last do
      local x = T.randn(n, 1, 3)
      local y = f(x)
      if n % 97 == 0 then assert.is_true(y:equal((net(x)))) end
    end
    assert.equal(1, f.ntraces)
    assert.equal(last - 1, f.runs)
  end)

  it("and caches of keys that grow, a place a step", function()
    compare("decode", function()
      local wq, wkv = nn.Linear(8, 8), nn.Linear(8, 16)
      return function(x, keys, values)
        local k, v = table.unpack(wkv(x):split(8, 3))
        local function heads(t) return t:unflatten(3, { 2, 4 }):transpose(2, 3) end
        keys, values = T.cat({ keys, heads(k) }, 3), T.cat({ values, heads(v) }, 3)
        return F.scaled_dot_product_attention(heads(wq(x)), keys, values):transpose(2, 3):flatten(3), keys, values
      end
    end, function(n) return T.randn(2, 1, 8), T.randn(2, 2, n, 4), T.randn(2, 2, n, 4) end,
      { 2, 3, 4, 5, 6, 7, 8, 9, 10, 31, 2 }, 1)
  end)

  it("and T.vmap, T.grad and T.autocast", function()
    compare("vmap", function()
      return T.vmap(function(x) return (x:softmax(1) * x):sum() end)
    end, rows, { 6, 3, 2, 9 }, 1)
    compare("grad", function()
      local w = T.randn(8, 2)
      return function(x) return T.value_and_grad(function(y) return y:matmul(w):tanh():sum() end, x) end
    end, rows, { 6, 3, 2, 9 }, 1)
    compare("autocast", function()
      local net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
      return function(x)
        net:zero_grad()
        local loss = T.autocast("bf16", function() return net(x) end):float():sum()
        loss:backward()
        return loss:detach(), net[1].weight.grad:clone()
      end
    end, rows, { 6, 3, 2, 9 }, 1)
    compare("a tensor from around", function()
      return function(x)
        local shift = x:mean(1)
        return T.vmap(function(r) return r - shift end)(x)
      end
    end, rows, { 6, 3, 2, 9 })
  end)
end)

-- Functions that do something else for another size, each with how many traces that takes at most.
local looking = {
  size = function(x) return x:size(1) > 4 and x * 2 or x * 3 end,
  shape = function(x) return x:shape()[1] > 4 and x * 2 or x * 3 end,
  length = function(x) return #x > 4 and x * 2 or x * 3 end,
  numel = function(x) return x / x:numel() end,
  text = function(x) return #tostring(x:describe()) > 8 and x * 2 or x * 3 end,
  stride = function(x) return x:t():stride(1) == 1 and x:t():stride(2) > 3 and x * 2 or x end,
  ["what is behind the end"] = function(x)
    local ok, row = pcall(function() return x[5] end)
    return ok and row and x * 2 or ok and x * 3 or x * 4
  end,
  ["from the end"] = function(x) return x[-1] * 2 end,
  ["range from the end"] = function(x) return x[{ { 2, -1 } }] * 2 end,
  loop = function(x) local y = x[1] for i, r in ipairs(x) do y = y + r * i end return y end,
  failure = function(x) return pcall(function() return x:select(1, 5) end) and x * 2 or x * 3 end,
  ["failure of an index"] = function(x) return pcall(function() return x[{ 5 }] end) and x * 2 or x * 3 end,
  ["failure of a product"] = function(x) return pcall(T.matmul, x, T.ones(3, 5)) and x * 2 or x * 3 end,
  ["sizes as a tensor"] = function(x) return x * T.shape_of(x)[1] end,
  layout = function(x) return x:t():is_contiguous() and x * 2 or x * 3 end,
  chunks = function(x) return #x:chunk(4, 1), x:split(2, 1)[1] end,
  padded = function(x) return F.pad(x, { 0, 0, 0, 8 - x:size(1) }) end,
  ["a method as a function"] = function(x) local size = x.size return size(x, 1) > 4 and x * 2 or x * 3 end,
  ["in a coroutine"] = function(x)
    return coroutine.wrap(function() return x:size(1) > 4 and x * 2 or x * 3 end)()
  end,
}

describe("a function that looks at sizes", function()
  it("gives what it gives as written", function()
    for what, f in pairs(looking) do
      if T.shape_of or what ~= "sizes as a tensor" then
        compare(what, function() return f end, function(n) return T.randn(n, 3) end, { 4, 6, 3, 5, 2, 7, 4, 1 }, nil,
          { max_traces = 20 })
      end
    end
  end)

  it("is traced once for sizes that it does not look at", function()
    local f = compare("columns", function() return function(x) return x / x:size(2) end end,
      function(n) return T.randn(n, 3) end, { 4, 6, 3, 2 }, 1)
    f(T.ones(4, 5))
    assert.equal(2, f.ntraces)
    f(T.ones(9, 5))
    f(T.ones(9, 3))
    assert.equal(2, f.ntraces)
  end)

  it("sees equal sizes become others, and one become many", function()
    compare("broadcast", function()
      return function(x, y)
        local a, b = x:detach():requires_grad_(), y:detach():requires_grad_()
        local z = a * b
        z:sum():backward()
        return z:detach(), a.grad, b.grad
      end
    end, function(n) return T.randn(n > 9 and 1 or n, 3), T.randn(n == 5 and 1 or n, 3) end,
      { 4, 6, 10, 5, 1, 11, 4 }, nil, { max_traces = 20 })
    local f = T.jit(function(x, y) return x + y end)
    f(T.ones(3), T.ones(3))
    assert.has_error(function() f(T.ones(4), T.ones(3)) end)
    same(T.ones(5) * 2, f(T.ones(5), T.ones(5)))
  end)

  it("counts what changed around it as before", function()
    local scale = 2
    local f = T.jit(function(x) return x * scale end)
    for round = 1, 3 do
      scale = round
      for n = 2, 5 do same(T.ones(n) * round, f(T.ones(n))) end
    end
    assert.equal(3, f.ntraces)
    local count = 0
    local hooked = T.jit(function(x)
      local y = x:detach():requires_grad_()
      y:register_hook(function(g) count = count + g:dim() return g * 2 end)
      y:sum():backward()
      return y.grad
    end, { fallback = true })
    for n = 2, 4 do same(T.ones(n) * 2, hooked(T.ones(n))) end
  end)
end)

-- What a function gives that is no tensor, as a text.
local function told(v, depth)
  if T.is_tensor(v) then return "a tensor" end
  if type(v) ~= "table" then return type(v) == "function" and "a function" or tostring(v):gsub("0x%x+", "") end
  local parts = {}
  for k, x in pairs(v) do parts[#parts + 1] = tostring(k) .. "=" .. (depth > 0 and told(x, depth - 1) or "…") end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end

describe("each method of tensors", function()
  it("tells of sizes what a trace of their own would have told", function()
    local methods, names = T.core.metatable().methods, {}
    local apart = { free = true, share_memory = true, share_memory_ = true, print = true }
    for name, f in next, methods do
      if type(f) == "function" and not apart[name] and name:sub(1, 1) ~= "_" then names[#names + 1] = name end
    end
    table.sort(names)
    assert.is_true(#names > 200)
    for at = 1, #names, on_device and 7 or 1 do
      local name = names[at]
      local function probe(x)
        local first
        local r = table.pack(pcall(x[name], x * 1))
        for i = 2, r.n do
          if r[1] and T.is_tensor(r[i]) then first = first or r[i] end
          r[i] = told(r[i], 2)
        end
        return table.concat(r[1] and r or { "fails" }, " ", r[1] and 2 or 1), first or x * 2
      end
      local f = T.jit(probe)
      for _, n in ipairs { 4, 6, 3, 4 } do
        local x = T.arange(n * 3):reshape(n, 3):float() / 20
        T.manual_seed(1)
        local got = table.pack(pcall(f, x))
        T.manual_seed(1)
        local want = table.pack(pcall(T.jit(probe), x))
        assert.equal(want[1], got[1], name)
        if want[1] then
          assert.equal(want[2], got[2], name)
          same(want[3], got[3], name)
        end
      end
    end
  end)
end)

describe("random programs for several sizes", function()
  local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_JIT") or (on_device and 20 or 100)
  local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1

  it("give the bits that they give as written", function()
    local found, sizes, traces = {}, 0, 0
    for seed = FIRST + 300000, FIRST + 300000 + COUNT - 1 do
      local ok, wrong, n, traced = pcall(fuzz.run_sizes, seed)
      if not ok or wrong then
        found[#found + 1] = ok and wrong or ("program %d: %s"):format(seed, wrong)
      else
        sizes, traces = sizes + n, traces + traced
      end
      if #found > 10 then break end
    end
    assert.equal("", table.concat(found, "\n"))
    assert.is_true(traces < sizes, "nothing was made for other sizes")
  end)
end)
