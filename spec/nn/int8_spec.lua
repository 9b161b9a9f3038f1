-- SPDX-License-Identifier: MIT
-- Networks of 8-bit integers: observers, rounding in training, conversion, and digits that are told apart as before.

local T = require "perilune"
local near = require "spec.support.near"
local root = os.getenv "PERILUNE_ROOT" or "."
local nn = T.nn
local quant = nn.quant
local function fails(f, part) return near.fails(part, f) end

local function close(a, b, tol)
  local gap = (a:double() - b:double()):abs():max():item()
  assert.is_true(gap <= tol * (1 + b:abs():max():item()), "differs by " .. gap)
end

describe("T.int8_conv2d", function()
  -- The integers of the definition, in f64, where their sums are exact.
  local function definition(x, w, scale, x_scale, x_zero, bias, o)
    local q = ((x * x_scale:reciprocal()):round() + x_zero):clamp(-128, 127) - x_zero
    local y = T.conv2d(q:double(), w:double(), nil, { stride = o.stride, padding = o.padding, dilation = o.dilation,
      groups = o.groups })
    y = y * (x_scale:double() * scale:double()):view(1, -1, 1, 1)
    if bias then y = y + bias:double():view(1, -1, 1, 1) end
    return o.relu and y:relu() or y
  end

  it("is its definition for random windows, groups, strides, zero points", function()
    T.manual_seed(1)
    math.randomseed(1)
    local r = math.random
    for _ = 1, 200 do
      local groups = ({ 1, 1, 2, 3 })[r(4)]
      local c, o, wide = groups * r(5), groups * r(9), r(5, 40)
      local w = T.randint(-128, 127, { o, c // groups, r(3), r(3) }):to "i8"
      local opts = { stride = { r(3), r(3) }, padding = { r(0, 2), r(0, 2) }, dilation = { r(2), r(2) },
        groups = groups, relu = r(2) == 1 }
      local x = T.randn(r(3), c, r(5, 20), wide) * 2
      local scale, x_scale = T.rand(o) * 0.01, T.tensor { 0.004 * r(1, 8) }
      local zero = T.tensor({ r(-128, 127) }, { dtype = "i32" })
      local bias = r(2) == 1 and T.randn(o) or nil
      local want = definition(x, w, scale, x_scale, zero, bias, opts)
      close(T.int8_conv2d(x, w, scale, x_scale, zero, bias, opts), want, 1e-6)
    end
  end)

  it("cuts what is too large, and takes NaN as the least", function()
    local w, one = T.ones({ 1, 1, 1, 1 }, { dtype = "i8" }), T.ones(1)
    local x = T.tensor { { { { math.huge, -math.huge, 0 / 0, 1e30, -1e30, 0.5, 1.5, 126.6, -128.5 } } } }
    for _, zero in ipairs { 0, 5, -128, 127 } do
      local y = T.int8_conv2d(x, w, one, one, T.tensor({ zero }, { dtype = "i32" })):flatten():totable()
      local function q(v) return math.max(-128, math.min(127, v + zero)) - zero end
      assert.same({ q(1000), q(-1000), q(-1000), q(1000), q(-1000), q(0), q(2), q(127), q(-128) }, y)
    end
  end)

  it("refuses what does not fit", function()
    local w, one, zero = T.ones({ 2, 1, 3, 3 }, { dtype = "i8" }), T.ones(1), T.zeros({ 1 }, { dtype = "i32" })
    local x, scale = T.ones(1, 1, 5, 5), T.ones(2)
    fails(function() T.int8_conv2d(x:double(), w, scale, one, zero) end, "f32")
    fails(function() T.int8_conv2d(x, w:float(), scale, one, zero) end, "i8")
    fails(function() T.int8_conv2d(x, w, T.ones(3), one, zero) end, "scale")
    fails(function() T.int8_conv2d(x, w, scale, T.ones(2), zero) end, "one number")
    fails(function() T.int8_conv2d(x, w, scale, T.zeros(1), zero) end, "must be positive")
    fails(function() T.int8_conv2d(x, w, scale, one, zero + 128) end, "-128 to 127")
    fails(function() T.int8_conv2d(T.ones(1, 2, 5, 5), w, scale, one, zero) end, "channels")
    fails(function() T.int8_conv2d(T.ones(1, 1, 2, 5), w, scale, one, zero) end, "smaller than the window")
    local dot = T.ones({ 1, 1, 1, 1 }, { dtype = "i8" })
    for _, p in ipairs { 2147483647, 2147483646, 2147483645, 1518500248, 1 << 30 } do -- products beyond 64 bits
      fails(function() T.int8_conv2d(x, dot, one, one, zero, nil, { padding = p, stride = 2147483647 }) end, "memory")
    end
    local long = T.ones({ 1, 65537, 1, 1 }, { dtype = "i8" })
    fails(function() T.int8_conv2d(T.ones(1, 65537, 1, 1), long, one, one, zero) end, "65536")
  end)
end)

describe("observers", function()
  it("tell scales and zero points as PyTorch's formulas do", function()
    local x = T.tensor { { -1.5, 0.2, 3 }, { 0.1, 0.4, 0.9 } }
    local o = quant.MinMaxObserver { dtype = "u8" }
    assert.is_true(rawequal(o(x), x))
    local scale, zero = o:calculate_qparams()
    near.near(scale, 4.5 / 255)
    assert.equal(85, zero:item())
    o = quant.MinMaxObserver {}
    o(x)
    assert.equal(-43, select(2, o:calculate_qparams()):item())
    o = quant.MinMaxObserver { symmetric = true, dim = 1 }
    o(x)
    o(x * 2)
    scale, zero = o:calculate_qparams()
    near.near(scale, { 6 / 127.5, 1.8 / 127.5 })
    assert.same({ 0, 0 }, zero:totable())
    o = quant.MinMaxObserver { symmetric = true, dtype = "u8" }
    o(x)
    assert.equal(128, select(2, o:calculate_qparams()):item())
    o = quant.MovingAverageMinMaxObserver { averaging_constant = 0.25 }
    o(x)
    o(x * 5)
    near.near(o.max_val, 3 + 0.25 * 12)
    near.near(o.min_val, -1.5 - 0.25 * 6)
    -- a range that does not hold 0 is widened to it
    o = quant.MinMaxObserver {}
    o(T.tensor { 2, 4 })
    scale, zero = o:calculate_qparams()
    near.near(scale, 4 / 255)
    assert.equal(-128, zero:item())
    fails(function() quant.MinMaxObserver {}:calculate_qparams() end, "no data has been seen")
    fails(function() quant.MinMaxObserver { quant_min = 5, quant_max = 5 } end, "quant_min")
    fails(function() quant.MinMaxObserver { dtype = "i8", quant_max = 200 } end, "quant_max 200")
  end)

  it("count everything in bins, whatever the order in which ranges come", function()
    T.manual_seed(2)
    local o, all = quant.HistogramObserver { bins = 64 }, {}
    for i, by in ipairs { 0.1, 5, 0.3, 40, 1 } do
      all[i] = T.randn(1000) * by + i
      o(all[i])
    end
    assert.equal(5000, o.histogram:sum():item())
    local low, high = o.range:get(1), o.range:get(2)
    -- as if the range had been known from the beginning, but for numbers on the edges of bins
    local at_once = T.cat(all):double():histc { bins = 64, min = low, max = high }
    assert.is_true((at_once - o.histogram):abs():sum():item() <= 4)
    o = quant.HistogramObserver {}
    o(T.zeros(5))
    o(T.ones(5))
    assert.equal(10, o.histogram:sum():item())
    fails(function() o(T.tensor { 1 / 0 }) end, "not finite")
  end)

  it("cut where the error is smallest, or at a percentile", function()
    T.manual_seed(3)
    local x = T.cat { T.randn(100000), T.tensor { 60, -60 } }
    local function lost(o)
      o(x)
      local scale, zero = o:calculate_qparams()
      local y = T.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127)
      return (y - x):square():mean():item(), scale:item()
    end
    local all = lost(quant.MinMaxObserver {})
    local best, scale = lost(quant.HistogramObserver {})
    assert.is_true(best < 0.85 * all, ("%g of %g"):format(best, all))
    -- no range around 0 loses much less
    for share = 0.02, 1, 0.02 do
      local s = 120 * share / 255
      local y = T.fake_quantize_per_tensor_affine(x, s, 0, -128, 127)
      assert.is_true((y - x):square():mean():item() > 0.9 * best, ("%g is better than %g"):format(s, scale))
    end
    local _, cut = lost(quant.HistogramObserver { bins = 8192, percentile = 99.9 })
    near.near(T.tensor { cut * 255 / 2 }, 3.29, 0.03) -- of a normal distribution
  end)
end)

describe("ranges that nothing can be rounded with", function()
  -- Each observer, over all of an input and over each place along a dim, with what has no range at every position.
  local kinds = { "MinMaxObserver", "MovingAverageMinMaxObserver", "HistogramObserver" }
  local function each(f)
    for _, kind in ipairs(kinds) do
      f(kind, function() return quant[kind] {} end)
      if kind ~= "HistogramObserver" then f(kind, function() return quant[kind] { dim = 1 } end) end
    end
  end

  it("stay so, whatever comes before and behind", function()
    each(function(kind, make)
      for _, bad in ipairs(kind ~= "HistogramObserver" and { 0 / 0, math.huge, -math.huge } or {}) do
        for at = 1, 3 do
          local o = make()
          for k = 1, 3 do o(T.tensor { { 1, k == at and bad or k, 3 }, { 1, 2, 3 } }) end
          fails(function() o:calculate_qparams() end, "not finite")
        end
      end
    end)
  end)

  it("are refused: not finite, or of nothing", function()
    each(function(_, make)
      for _, bad in ipairs { 0 / 0, math.huge, -math.huge } do
        for at = 1, 3 do
          local x, o = { 1, -2, 3 }, make()
          x[at] = bad
          fails(function()
            o(T.tensor { x, { 1, 2, 3 } })
            o:calculate_qparams()
          end, "not finite")
        end
      end
      local o = make()
      o(T.zeros(3, 0))
      fails(function() o:calculate_qparams() end, "no data has been seen")
    end)
    for _, bad in ipairs { 0 / 0, math.huge } do
      for _, train in ipairs { true, false } do
        local net = quant.prepare(nn.Sequential(nn.Linear(2, 1)), { train = train, observer = "minmax" })
        net(T.tensor { { 1, bad } })
        fails(function() quant.convert(net) end, "went through 1 is not finite")
      end
      fails(function()
        T.quantize(nn.Sequential(nn.Linear(2, 1)), { method = "static", observer = "minmax",
          calibration = T.tensor { { 1, bad } } })
      end, "not finite")
    end
  end)

  it("are refused for a layer that saw zeros alone", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.Threshold(1e9, 0), nn.Linear(2, 1))
    for _, observer in ipairs { "minmax", "histogram", "percentile" } do
      fails(function()
        T.quantize(net:clone(), { method = "static", observer = observer, calibration = T.randn(9, 2) })
      end, "nothing but zeros has gone through 3")
    end
    T.quantize(net, { method = "static", calibration = T.randn(9, 2), skip = "3" })
  end)

  it("are not known where only empty inputs went through, and then those of what follows", function()
    each(function(kind, make)
      local fq = quant.FakeQuantize { observer = make() }
      if not fq.observer.dim then
        fq(T.zeros(0, 2))
        assert.is_true(fq:eval()(T.ones(3)):isnan():all():item(), kind)
        fq:train()
      end
      local x = T.tensor { { 1, 2 }, { -3, 0.5 } }
      fq(x)
      close(fq:eval()(x), x, 0.02)
    end)
  end)

  it("are not stretched over other numbers of places", function()
    for i = 1, 2 do
      for _, pair in ipairs { { 3, 1 }, { 1, 3 }, { 2, 3 } } do
        local o = quant[kinds[i]] { dim = 2 }
        o(T.randn(4, pair[1]))
        fails(function() o(T.randn(4, pair[2])) end, ("has had %d places"):format(pair[1]))
      end
      fails(function() quant[kinds[i]] { dim = 3 }(T.randn(4, 2)) end, "dim 3")
    end
  end)

  it("are refused as numbers of fake_quantize_per_tensor_affine", function()
    local x = T.ones(2)
    for _, scale in ipairs { 0, -0.1, 0 / 0, math.huge } do
      fails(function() T.fake_quantize_per_tensor_affine(x, scale, 0, -8, 7) end, "scale must be above 0")
      if scale <= 0 then -- a tensor that is not finite is not known yet
        local list = T.tensor { 1, scale }
        fails(function() T.fake_quantize_per_tensor_affine(x, T.tensor(scale), 0, -8, 7) end, "scale must be above 0")
        fails(function() T.fake_quantize_per_channel_affine(x, list, T.zeros(2), 1, -8, 7) end, "scale must be above 0")
      end
    end
    for _, zero in ipairs { -9, 8, 0.5, 0 / 0 } do
      fails(function() T.fake_quantize_per_tensor_affine(x, 1, zero, -8, 7) end, "zero_point must be a whole number")
      fails(function() T.fake_quantize_per_tensor_affine(x, 1, T.tensor(zero), -8, 7) end, "zero_point must be whole")
      fails(function() T.fake_quantize_per_channel_affine(x, T.ones(2), T.tensor { 0, zero }, 1, -8, 7) end,
        "zero_point must be whole")
    end
    local f = T.jit(function(scale, zero) return T.fake_quantize_per_tensor_affine(x, scale, zero, -8, 7) end)
    assert.same({ 1, 1 }, f(T.tensor(1.0), T.tensor(0.0)):totable())
    for _, bad in ipairs { { -1, 0 }, { 0, 0 }, { 1, -9 }, { 1, 0.5 } } do -- a graph has no values to refuse
      assert.is_true(f(T.tensor(bad[1] + 0.0), T.tensor(bad[2] + 0.0)):isnan():all():item())
    end
  end)

  it("leave NaN to linear layers as to convolutions: the least", function()
    local l, c = quant.Int8Linear(1, 1), quant.Int8Conv2d(1, 1, 1)
    for _, zero in ipairs { 0, 5, -128, 127 } do
      for _, m in ipairs { l, c } do
        m.weight:fill_(1)
        m.input_zero_point:fill_(zero)
      end
      local x = T.tensor { 0 / 0, math.huge, -math.huge, 1e30, -1e30, 0.5, 1.5, 126.6, -128.5 }
      assert.same(c(x:view(1, 1, 1, -1)):flatten():totable(), l(x:view(-1, 1)):flatten():totable())
    end
  end)
end)

describe("the state of observers", function()
  it("goes into new ones, also where each place along a dim has a range", function()
    T.manual_seed(20)
    for _, kind in ipairs { "MinMaxObserver", "MovingAverageMinMaxObserver", "HistogramObserver" } do
      for dim = 0, kind ~= "HistogramObserver" and 2 or 0 do
        local function new() return quant.FakeQuantize { observer = quant[kind] { dim = dim > 0 and dim or nil } } end
        local a, x = new(), T.randn(4, 6)
        a(x)
        for _, b in ipairs { new(), a:clone() } do
          b:load_state_dict(a:state_dict())
          assert.is_true(b:eval()(x):equal(a:eval()(x)))
          b:train()(2 * x) -- it goes on
          a:train()
        end
        local path = os.tmpname() .. ".safetensors"
        assert(T.save(path, a:state_dict()))
        local c = new()
        c:load_state_dict(assert(T.load(path)))
        os.remove(path)
        assert.is_true(c:eval()(x):equal(a:eval()(x)))
        if dim > 0 then
          for _, key in ipairs { "scale", "zero_point", "observer.min_val", "observer.max_val" } do
            local bad, b = a:state_dict(), new()
            bad[key] = T.ones(3)
            fails(function() b:load_state_dict(bad) end, key)
            assert.equal(0, b.scale:numel()) -- nothing was changed
          end
          fails(function() quant.FakeQuantize():load_state_dict(a:state_dict()) end, "scale")
        end
      end
    end
  end)
end)

describe("networks of 8 bits in another dtype", function()
  it("keep their scales, take that dtype and give it", function()
    T.manual_seed(21)
    local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 8),
      nn.Sigmoid(), nn.Linear(8, 3)):eval()
    local x = T.randn(20, 1, 8, 8)
    local q = T.quantize(net:clone(), { method = "static", calibration = x, skip = { "3", "7" } })
    local want = q(x)
    for dtype, gap in pairs { bf16 = 0.03, f16 = 4e-3, f32 = 0, f64 = 1e-6 } do
      for _, n in ipairs { q:clone():to(dtype), q:clone():to(dtype):to("f32"):to(dtype) } do
        local y = n(x:to(dtype))
        assert.equal(dtype, y:dtype())
        close(y, want, gap)
        assert.is_true(n[1].scale:equal(q[1].scale) and n[5].bias:equal(q[5].bias))
      end
      local p = quant.prepare(net:clone():train(), { train = true }):to(dtype)
      assert.equal(dtype, p(x:to(dtype)):dtype())
      assert.equal("f32", p[1].input_quant.scale:dtype())
      quant.convert(p)
    end
    assert.equal("f32", q(x):dtype())
    local l = quant.Int8Linear(2, 2)
    assert.equal("f32", l(T.ones({ 2 }, { dtype = "i32" })):dtype())
  end)
end)

describe("nn.quant.FakeQuantize", function()
  it("watches while it trains, rounds always, and lets gradients through", function()
    local fq = quant.FakeQuantize { observer = quant.MinMaxObserver {} }
    local x = T.tensor({ -1, 0.3, 1.55 }):requires_grad_()
    fq(x)
    local scale = fq.scale:item()
    near.near(T.tensor { scale }, 2.55 / 255)
    fq:eval()
    local y = fq(x * 2) -- cut at 1.55
    near.near(y, { -1, 0.6, 1.55 }, 1e-6)
    y:sum():backward()
    near.near(x.grad, { 0, 2, 0 })
    assert.equal(scale, fq.scale:item())
    assert.is_true(rawequal(fq:enable_fake_quant(false)(x), x))
    fq:train():enable_observer(false)
    fq(x * 9)
    assert.equal(scale, fq.scale:item())
    fails(function() quant.FakeQuantize { observer = nn.ReLU() } end, "observer must be one of")
    -- before anything was seen nothing is known
    assert.is_true(quant.FakeQuantize():eval()(T.ones(2)):isnan():all():item())
  end)
end)

local function small()
  return nn.Sequential(nn.Conv2d(1, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3,
    { padding = "same", bias = false, groups = 2 }), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10), nn.ReLU(),
    nn.Linear(10, 3))
end

-- Its own forward, a ReLU that is used twice, a sum of two ways.
local function residual()
  local Net = nn.class "Net"
  function Net:init()
    self.first, self.bn1 = nn.Conv2d(1, 6, 3, { padding = 1 }), nn.BatchNorm2d(6)
    self.second, self.bn2 = nn.Conv2d(6, 6, 3, { padding = 1, bias = false }), nn.BatchNorm2d(6)
    self.relu, self.last, self.out = nn.ReLU(), nn.ReLU(), nn.Linear(6, 3)
  end
  function Net:forward(x)
    local y = self.relu(self.bn1(self.first(x)))
    y = self.relu(self.bn2(self.second(y)) + y)
    return self.out(self.last(y:mean { 3, 4 }))
  end
  return Net()
end

local function used(net) -- batch norms that have seen something
  for _ = 1, 5 do net(T.randn(20, 1, 8, 8) * 2 + 1) end
  return net:eval()
end

describe("integers after training", function()
  it("stay near the network of floats, with batch norms and ReLUs inside", function()
    T.manual_seed(4)
    local net, x = used(small()), T.randn(30, 1, 8, 8)
    local want = net(x)
    for _, observer in ipairs { "minmax", "moving_average", "histogram", "percentile" } do
      local q, names = T.quantize(net:clone(), { method = "static", calibration = { T.randn(200, 1, 8, 8), T.randn(9, 1,
        8, 8) }, observer = observer })
      assert.same({ "1", "4", "7", "9" }, names)
      assert.same({ "Int8Conv2d", "Identity", "Identity", "Int8Conv2d", "Identity", "Flatten", "Int8Linear", "Identity",
        "Int8Linear" }, (function()
        local list = {}
        for i, m in ipairs(q:children()) do list[i] = m:type() end
        return list
      end)())
      assert.is_true((q(x) - want):norm():item() < 0.04 * want:norm():item())
      assert.is_true(q(x[1]:unsqueeze(1)):equal(q(x[1]:unsqueeze(1))))
      close(T.jit(function(v) return q(v) end)(x), q(x), 1e-6)
      assert.is_false(q.training)
      assert.equal(0, #q:parameters())
    end
  end)

  it("follow calls where there is no Sequential", function()
    T.manual_seed(5)
    local net, x = used(residual()), T.randn(30, 1, 8, 8)
    local want = net(x)
    local q = T.quantize(net, { method = "static", calibration = x })
    assert.is_true((q(x) - want):norm():item() < 0.03 * want:norm():item())
    assert.is_false(q.first.relu) -- that ReLU is used twice
    assert.equal("Identity", q.bn1:type())
    assert.equal("Identity", q.bn2:type())
    assert.equal("ReLU", q.relu:type())
  end)

  it("are refused where something else reads what lies between", function()
    local Net = nn.class "Net"
    function Net:init() self.conv, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) end
    function Net:forward(x)
      local y = self.conv(x)
      return self.bn(y) + y
    end
    T.manual_seed(6)
    local net = Net()
    net(T.randn(20, 1, 8, 8) * 3)
    local x, calls = T.randn(5, 1, 8, 8), 0
    local want, was = net:eval()(x), tostring(net)
    fails(function() T.quantize(net, { method = "static", calibration = x }) end, "elsewhere")
    fails(function() quant.prepare(net, { inputs = x }) end, "elsewhere")
    fails(function()
      T.quantize(net, { method = "static", calibration = x, skip = "bn", forward = function(m, v)
        calls = calls + 1
        return calls > 1 and error "no more" or m(v)
      end })
    end, "no more")
    assert.equal(was, tostring(net)) -- the network is what it was
    assert.is_true(net(x):equal(want))
  end)

  it("leave modules alone that are at more than one place", function()
    T.manual_seed(12)
    math.randomseed(12)
    local r, x = math.random, T.randn(6, 1, 8, 8)
    local fused = 0
    for _ = 1, 40 do
      local pool = {}
      local function pick(kind, make) -- a new one, or one that is somewhere
        pool[kind] = pool[kind] or {}
        local list = pool[kind]
        if #list > 0 and r(3) == 1 then return list[r(#list)] end
        list[#list + 1] = make()
        return list[#list]
      end
      local function conv() return pick("conv", function() return nn.Conv2d(1, 1, 3, { padding = 1 }) end) end
      local function bn() return pick("bn", function() return used(nn.BatchNorm2d(1)) end) end
      local function relu() return pick("relu", nn.ReLU) end
      local net = nn.Sequential()
      for _ = 1, r(3) do
        local part = nn.Sequential()
        for _ = 1, r(6) do part:append(({ conv, bn, relu })[r(3)]()) end
        net:append(part)
      end
      net:append(conv())
      net:eval()
      local want = net(x)
      local p = quant.prepare(net, { train = false }):eval()
      close(p(x), want, 1e-4)
      for _, m in ipairs(p:modules()) do
        if m:type() == "PreparedLayer" and (m.bn or m.relu) then fused = fused + 1 end
      end
    end
    assert.is_true(fused > 5)
  end)

  it("take the layers that are meant, and refuse other options", function()
    local x = T.randn(9, 1, 8, 8)
    local q, names = T.quantize(small(), { method = "static", calibration = x, skip = { "1", "9" } })
    assert.same({ "4", "7" }, names)
    assert.equal("Conv2d", q[1]:type())
    assert.is_true(q.training and q[4].training)
    fails(function() T.quantize(small(), { method = "static" }) end, "calibration is missing")
    fails(function() T.quantize(small(), { method = "static", calibration = x, bits = 8 }) end, "bits is for method")
    fails(function() T.quantize(small(), { method = "static", calibration = x, observer = "mean" }) end, "observer")
    fails(function() T.quantize(nn.Sequential(nn.ReLU()), { method = "static", calibration = x }) end, "no layer")
    fails(function() quant.convert(small()) end, "no prepared layers")
    fails(function() quant.convert((quant.prepare(small()))) end, "no data has gone through 1")
    fails(function() quant.prepare(small(), { quick = true }) end, "quick")
  end)

  it("compute with settings that are assigned", function()
    T.manual_seed(9)
    for key, v in pairs { stride = 2, dilation = 2, padding = 2, padding_mode = "circular", relu = true } do
      for _, prepared in ipairs { true, false } do
        local function made(o)
          local net, x = nn.Sequential(nn.Conv2d(2, 3, 3, o)), T.randn(2, 2, 7, 8)
          return quant.prepare(net, { train = false, observer = "minmax" }), x
        end
        T.manual_seed(9)
        local net, x = made { padding = 1 }
        net(x)
        if not prepared then quant.convert(net) end
        local y, m = net(x), net[1]
        m[key] = v
        local o = { stride = m.stride, dilation = m.dilation, padding = m.padding, padding_mode = m.padding_mode }
        T.manual_seed(9)
        local other = made(o)
        other(x)
        if not prepared then quant.convert(other) end
        other[1].relu = m.relu
        local got, want = net(x), other(x)
        assert.same(want:shape(), got:shape(), key)
        close(got, want, 1e-4)
        assert.is_false(y:shape()[3] == got:shape()[3] and y:equal(got), key)
      end
    end
  end)

  it("save and load", function()
    T.manual_seed(7)
    local x, path = T.randn(20, 1, 8, 8), os.tmpname() .. ".safetensors"
    local q = T.quantize(used(small()), { method = "static", calibration = x })
    assert(T.save(path, q:state_dict()))
    local back = quant.convert(quant.prepare(small(), { train = false }), { state = assert(T.load(path)) })
    assert.is_true(back:eval()(x):equal(q(x)))
    os.remove(path)
    local c = quant.Int8Conv2d(2, 3, { kernel_size = { 3, 1 }, padding = "same", padding_mode = "reflect" })
    assert.same({ 1, 3, 5, 6 }, c(T.ones(1, 2, 5, 6)):shape())
    assert.same({ 3, 5, 6 }, c(T.ones(2, 5, 6)):shape())
  end)
end)

describe("training with rounding", function()
  it("stands channels that a batch norm makes constant", function()
    local net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    T.no_grad(function() net[2].weight:copy_(T.tensor { 0, 1, -2 }) end)
    local x = T.randn(9, 1, 8, 8)
    quant.prepare(net)
    net(x):square():sum():backward()
    assert.is_true(net[1].weight.grad:isfinite():all():item())
    local want = net:eval()(x):detach()
    assert.equal(0, want:select(2, 1):abs():sum():item())
    close(quant.convert(net)(x), want, 1e-5)
  end)

  it("ends in integers that compute what it computed", function()
    T.manual_seed(8)
    for _, make in ipairs { small, residual } do
      local x = T.randn(40, 1, 8, 8)
      local y = (x:flatten(2):mean(2) * 20):round():long():clamp(-1, 1) + 2
      local net = quant.prepare(used(make()):train(), { inputs = x })
      local opt = T.optim.Adam(net:parameters(), { lr = 1e-2 })
      local first, last
      for _ = 1, 60 do
        local loss = nn.F.cross_entropy(net(x), y)
        opt:zero_grad()
        loss:backward()
        opt:step()
        first, last = first or loss:item(), loss:item()
      end
      assert.is_true(last < 0.8 * first, ("%g of %g"):format(last, first))
      local want = net:eval()(x):detach()
      close(quant.convert(net)(x), want, 1e-5)
    end
  end)
end)

it("training with rounding is traced like any other", function()
  T.manual_seed(10)
  local x, y = T.randn(20, 1, 8, 8), T.randint(1, 3, { 20 })
  local function trained(wrap)
    T.manual_seed(11)
    local net = quant.prepare(small())
    local opt = T.optim.SGD(net:parameters(), { lr = 0.05 })
    local step = wrap(function(v, w)
      local loss = nn.F.cross_entropy(net(v), w)
      opt:zero_grad()
      loss:backward()
      opt:step()
      return loss
    end)
    for _ = 1, 4 do step(x, y) end
    return net:eval()
  end
  local plain, traced = trained(function(f) return f end), trained(T.jit)
  close(traced[1].input_quant.scale, plain[1].input_quant.scale, 1e-6)
  close(traced(x), plain(x), 1e-4)
  close(quant.convert(traced)(x), plain(x), 1e-4)
end)

-- A tutorial in small: the digits of ../shared/data, a network of floats, and integers in its place.
describe("on digits", function()
  it("integers lose at most half a percent, and training with rounding as little", function()
    local digits = T.data.mnist { split = "test", root = root .. "/../shared/data/mnist" }
    if not digits then return pending "no digits in ../shared/data/mnist" end
    T.manual_seed(9)
    local x, y = digits.images, digits.labels
    local train = { x:narrow(1, 1, 8000), y:narrow(1, 1, 8000) }
    local test = { x:narrow(1, 8001, 2000), y:narrow(1, 8001, 2000) }
    local net = nn.Sequential(nn.Conv2d(1, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3, { padding = 1 }), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
      nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10))
    local function learn(n, epochs, lr)
      local opt = T.optim.Adam(n:train():parameters(), { lr = lr })
      for _ = 1, epochs do
        local order = T.randperm(8000)
        for i = 1, 8000, 100 do
          local rows = order:narrow(1, i, 100)
          local loss = nn.F.cross_entropy(n(train[1]:index_select(1, rows)), train[2]:index_select(1, rows))
          opt:zero_grad()
          loss:backward()
          opt:step()
        end
      end
      return n:eval()
    end
    local function accuracy(n)
      return T.no_grad(function() return n(test[1]):argmax(2):eq(test[2]):float():mean():item() end)
    end
    learn(net, 2, 2e-3)
    local floats = accuracy(net)
    assert.is_true(floats > 0.96, "learned little: " .. floats)
    local integers = T.quantize(net:clone(), { method = "static", calibration = train[1]:narrow(1, 1, 500) })
    local after = accuracy(integers)
    assert.is_true(after >= floats - 0.005, ("%g of %g"):format(after, floats))
    local aware = quant.prepare(net:clone():train())
    learn(aware, 1, 2e-4)
    local rounded = accuracy(aware)
    local converted = accuracy(quant.convert(aware))
    assert.is_true(math.abs(converted - rounded) <= 0.001, ("%g, %g"):format(converted, rounded))
    assert.is_true(converted >= floats - 0.005, ("%g of %g"):format(converted, floats))
  end)
end)
