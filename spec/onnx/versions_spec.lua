-- SPDX-License-Identifier: MIT
-- What ONNX's operators mean in each of their versions, at every axis, start, end and step there is, against their
-- definitions written out in plain Lua; and what T.onnx.save makes of dtypes and windows that ONNX has otherwise.

local T = require "perilune"
local nn, F = T.nn, T.nn.F
local writer = require "spec.onnx.writer"
local near = require("spec.support.near").near

local function load_bytes(bytes)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
  local m, message = T.onnx.load(path)
  os.remove(path)
  return m, message
end

-- One node with these inputs and attributes, run.
local function run(op, inputs, attributes, opset, outputs)
  local m = assert(load_bytes(writer.single(op, inputs, outputs or 1, attributes, opset)))
  return m(table.unpack(inputs))
end

local function product(shape, from, to)
  local n = 1
  for d = from, to do n = n * shape[d] end
  return n
end

describe("softmaxes by version", function()
  local wide = { Softmax = T.softmax, LogSoftmax = T.log_softmax, Hardmax = function(x, d)
    return F.one_hot(x:argmax(d), { num_classes = x:size(d) }):to "f32"
  end }
  for op, f in pairs(wide) do
    it(op .. ": rows of all dimensions behind the axis before 13, one dimension since", function()
      for _, shape in ipairs { { 4 }, { 3, 4 }, { 2, 3, 4 }, { 2, 1, 3, 2 } } do
        local x, rank = T.randn(table.unpack(shape)), #shape
        for _, opset in ipairs { 7, 11, 12, 13, 18 } do
          for axis = opset < 11 and 0 or -rank, rank - 1 do
            local d = axis < 0 and axis + rank or axis
            local want
            if opset < 13 then
              want = f(x:reshape(product(shape, 1, d), product(shape, d + 1, rank)), 2):reshape(shape)
            elseif op == "Hardmax" then
              want = f(x:transpose(d + 1, -1):reshape(-1, shape[d + 1]), 2)
                :reshape(x:transpose(d + 1, -1):shape()):transpose(d + 1, -1)
            else
              want = f(x, d + 1)
            end
            near(run(op, { x }, { axis = axis }, opset), want, 1e-6)
          end
          if opset < 13 and rank > 1 or opset >= 13 then
            near(run(op, { x }, { axis = opset < 13 and 1 or rank - 1 }, opset), run(op, { x }, nil, opset), 0)
          end
        end
      end
    end)
  end
  it("of nothing are nothing", function()
    for op in pairs(wide) do
      for _, opset in ipairs { 12, 13 } do
        assert.same({ 0, 3 }, run(op, { T.zeros(0, 3) }, { axis = 1 }, opset):shape())
        assert.same({ 3, 0 }, run(op, { T.zeros(3, 0) }, { axis = 1 }, opset):shape())
      end
    end
  end)
end)

describe("Slice", function()
  -- The definition: what starts or ends outside is moved to the nearest place from which a copy can begin or end.
  local function want(n, from, to, step)
    local list = {}
    if from < 0 then from = from + n end
    if to < 0 then to = to + n end
    if step > 0 then
      from, to = math.max(0, math.min(n, from)), math.max(0, math.min(n, to))
      for i = from, to - 1, step do list[#list + 1] = i end
    else
      from, to = math.max(0, math.min(n - 1, from)), math.max(-1, math.min(n - 1, to))
      for i = from, to + 1, step do list[#list + 1] = i end
    end
    return list
  end
  it("takes what the definition takes, at every start, end and step", function()
    for n = 1, 4 do
      local x, starts, ends = T.arange(n) - 1, {}, {}
      for _, at in ipairs { math.mininteger, -(1 << 31), (1 << 31) - 1, math.maxinteger } do
        starts[#starts + 1], ends[#ends + 1] = at, at
      end
      for at = -n - 2, n + 2 do starts[#starts + 1], ends[#ends + 1] = at, at end
      local m = assert(load_bytes(writer.model { nodes = { { "Slice", { "x", "s", "e", "a", "k" }, { "y" } } },
        inputs = { { "x", "f32" }, { "s", "i64" }, { "e", "i64" }, { "k", "i64" } }, outputs = { { "y", "f32" } },
        initializers = { a = T.tensor({ 0 }, { dtype = "i64" }) }, opset = 13 }))
      local function one(v) return T.tensor({ v }, { dtype = "i64" }) end
      for _, step in ipairs { 1, 2, 3, -1, -2, -3 } do
        for _, s in ipairs(starts) do
          for _, e in ipairs(ends) do
            local lists
            if math.abs(s) < 1 << 40 and math.abs(e) < 1 << 40 then
              lists = want(n, s, e, step)
            else -- the largest integers stand for the ends
              lists = want(n, math.max(-100, math.min(100, s)), math.max(-100, math.min(100, e)), step)
            end
            local got = m(x:to "f32", one(s), one(e), one(step)):totable()
            for i, v in ipairs(got) do got[i] = math.tointeger(v) end
            assert.same(lists, got, ("%d elements, %d to %d by %d"):format(n, s, e, step))
          end
        end
      end
    end
  end)
end)

describe("operators of integers", function()
  it("keep their type in every reduction", function()
    for _, dtype in ipairs { "i32", "i64" } do
      local x = T.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { dtype = dtype })
      for _, name in ipairs { "Sum", "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare" } do
        for _, opset in ipairs { 11, 13, 18 } do
          local y = run("Reduce" .. name, { x }, { keepdims = 0 }, opset)
          assert.equal(dtype, y:dtype(), name)
        end
      end
      assert.equal(3, run("ReduceLogSum", { x }, { keepdims = 0 }, 13):item()) -- log 21
      assert.equal(6, run("ReduceLogSumExp", { x }, { keepdims = 0 }, 13):item()) -- 6.46
    end
  end)
  it("add up in Gemm before they are rounded", function()
    local a = T.tensor({ { 3 } }, { dtype = "i32" })
    for beta = 1, 4 do
      for bias = -3, 3 do
        local y = run("Gemm", { a, a, T.tensor({ bias }, { dtype = "i32" }) }, { alpha = 0.5, beta = beta / 4 }, 13)
        local sum = 4.5 + beta / 4 * bias
        assert.equal(math.floor(sum), y:item())
      end
    end
  end)
end)

describe("results that versions and modes name", function()
  it("Attention gives products before the cap, behind it, behind the mask, or weights", function()
    local q, k = T.randn(1, 1, 2, 4), T.randn(1, 1, 3, 4)
    local mask, list = T.randn(2, 3), {}
    for mode = 0, 3 do
      list[mode] = select(4, run("Attention", { q, k, k, mask }, { softcap = 2.0, qk_matmul_output_mode = mode }, 23,
        4))
    end
    local raw = q:matmul(k:transpose(3, 4)) / 2
    near(list[0], raw, 1e-6)
    near(list[1], (raw / 2):tanh() * 2, 1e-6)
    near(list[2], (raw / 2):tanh() * 2 + mask, 1e-6)
    near(list[3], T.softmax((raw / 2):tanh() * 2 + mask, -1), 1e-6)
  end)
  it("Einsum keeps integers' type, and Dropout's mask is of x's before version 10", function()
    local x = T.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "i32" })
    local trace = run("Einsum", { x }, { equation = "ii" }, 13)
    assert.same({ "i32", 5 }, { trace:dtype(), trace:item() })
    for opset, dtype in pairs { [9] = "f32", [10] = "bool", [13] = "bool" } do
      assert.equal(dtype, select(2, run("Dropout", { T.ones(2) }, nil, opset, 2)):dtype())
    end
  end)
end)

describe("windows and sizes", function()
  it("a slope of each channel before version 7, which broadcasts as any other tensor since", function()
    local x, slope = -T.ones(2, 3, 3), T.tensor { 1, 2, 3 }
    near(run("PRelu", { x, slope }, nil, 6), x * slope:view(1, 3, 1), 0)
    near(run("PRelu", { x, slope }, nil, 7), x * slope, 0)
  end)

  it("numbers are quantized to numbers", function()
    local x, scale, zero = T.tensor(1.5), T.tensor(0.5), T.tensor(3, { dtype = "u8" })
    local q = run("QuantizeLinear", { x, scale, zero }, nil, 13)
    assert.same({}, q:shape())
    assert.equal(6, q:item())
    local y = run("DequantizeLinear", { q, scale, zero }, nil, 13)
    assert.same({}, y:shape())
    assert.equal(1.5, y:item())
    local a = T.tensor({ 4, 5 }, { dtype = "u8" })
    assert.same({}, run("QLinearMatMul", { a, scale, zero, a, scale, zero, scale, zero }, nil, 13):shape())
    local all, s = run("DynamicQuantizeLinear", { T.zeros(3) }, nil, 13, 3)
    assert.same({ 0, 0, 0 }, all:totable())
    assert.equal(1, s:item())
    local half = T.tensor({ 1.87 }, { dtype = "f16" }) -- a product in f32, not one rounded to f16
    local wide = run("DequantizeLinear", { T.tensor({ 13 }, { dtype = "u8" }), half }, { output_dtype = 1 }, 23)
    assert.equal(13 * half:item(), wide:item())
  end)

  it("what draws with a seed draws the same numbers each time", function()
    for op, given in pairs { Multinomial = { T.zeros(1, 9) }, Bernoulli = { T.full({ 9 }, 0.5) },
      RandomNormalLike = { T.zeros(9) }, Dropout = { T.ones(9), T.tensor(0.5), T.tensor(true) } } do
      local more = op == "Multinomial" and 9 or nil
      local function draw(seed) -- Dropout's is a whole number
        return run(op, given, { seed = op == "Dropout" and seed or seed + 0.0, sample_size = more }, 15)
      end
      near(draw(5), draw(5), 0)
      assert.is_false(draw(5):equal(draw(6)), op)
    end
    -- places that are dropped are others in each step of training, as in onnxruntime
    local given = { T.ones(20), T.tensor(0.5), T.tensor(true) }
    local net = assert(load_bytes(writer.single("Dropout", given, 1, { seed = 5 }, 15)))
    local first = net(table.unpack(given))
    assert.is_false(first:equal(net(table.unpack(given))))
  end)

  it("Resize of version 10 rounds up where it shrinks and down where it grows", function()
    for n = 1, 6 do
      for _, scale in ipairs { 0.5, 0.6, 0.75, 1.5, 2 } do
        local x, list = (T.arange(n) - 1):to("f32"):view(1, 1, n), {}
        local out = math.floor(n * scale)
        if out > 0 then
          for i = 0, out - 1 do
            list[i + 1] = math.min(n - 1, scale < 1 and math.ceil(i / scale) or math.floor(i / scale)) + 0.0
          end
          assert.same(list, run("Resize", { x, T.tensor { 1, 1, scale } }, nil, 10):reshape(-1):totable())
        end
      end
    end
  end)
  it("Resize computes sizes and places in f32: 10 * 0.7 is 7, and 1.5 / 0.6 - 0.5 is 2", function()
    local function resized(n, scale, mode, nearest)
      return run("Resize", { (T.arange(n) - 1):to("f32"):view(1, 1, n), T.zeros(0), T.tensor { 1, 1, scale } },
        { mode = "nearest", coordinate_transformation_mode = mode, nearest_mode = nearest }, 13):reshape(-1):totable()
    end
    assert.equal(7, #resized(10, 0.7, "half_pixel", "floor"))
    assert.same({ 0, 2, 3 }, resized(5, 0.6, "pytorch_half_pixel", "floor"))
  end)
  it("without padding, ceil_mode has a window that begins inside", function()
    local x = T.arange(5):to("f32"):view(1, 1, 5)
    for _, auto in ipairs { "VALID", "NOTSET" } do
      local y = run("MaxPool", { x }, { kernel_shape = { 2 }, strides = { 2 }, ceil_mode = 1, auto_pad = auto }, 13)
      assert.same({ 2.0, 4.0, 5.0 }, y:reshape(-1):totable())
    end
  end)
  it("AveragePool is the mean of its windows, one pool where the op has them", function()
    local pools = 0
    for n = 3, 6 do
      for kernel = 1, 3 do
        for stride = 1, 2 do
          for pads = 0, 8 do
            local before, after = pads % 3, pads // 3
            local o = { kernel_shape = { kernel }, strides = { stride }, pads = { before, after },
              count_include_pad = (n + kernel + stride) % 2 }
            local x, want, count = T.randn(1, 1, n), {}, (n + before + after - kernel) // stride + 1
            if before < kernel and after < kernel then
              for i = 0, count - 1 do
                local sum, inside = 0, 0
                for k = i * stride - before, i * stride - before + kernel - 1 do
                  if k >= 0 and k < n then sum, inside = sum + x[1][1][k + 1]:item(), inside + 1 end
                end
                want[i + 1] = sum / (o.count_include_pad == 1 and kernel or inside)
              end
              local m = assert(load_bytes(writer.single("AveragePool", { x }, 1, o, 13)))
              local f = T.jit(function(v) return T.no_grad(m, v) end)
              near(f(x), T.tensor(want):view(1, 1, count), 1e-6)
              local nodes = #f:graph():nodes()
              if before == after and 2 * before <= kernel then
                assert.equal(1, nodes)
                pools = pools + 1
              end
            end
          end
        end
      end
    end
    assert.is_true(pools > 20)
  end)
  it("LayerNormalization's mean and deviation are f32", function()
    local _, mean, deviation = run("LayerNormalization", { T.randn(2, 3):to "f64", T.ones(3):to "f64" }, nil, 17, 3)
    assert.same({ "f32", "f32" }, { mean:dtype(), deviation:dtype() })
  end)
end)

describe("an input that is left out", function()
  it("at the end is as one that is not named, where it is optional", function()
    local body = { nodes = { { "Identity", { "go" }, { "on" } }, { "Add", { "x", "x" }, { "y" } } },
      inputs = { { "i", "i64", {} }, { "go", "bool", {} } }, outputs = { { "on", "bool", {} }, { "y", "f32" } } }
    local m = assert(load_bytes(writer.model { nodes = { { "Loop", { "n", "" }, { "ys" }, { body = body } } },
      inputs = { { "x", "f32" } }, outputs = { { "ys", "f32" } },
      initializers = { n = T.tensor({ 3 }, { dtype = "i64" }) } }))
    assert.same({ 3, 2 }, m(T.ones(2)):shape())
  end)
  it("is missing, where it is not", function()
    for _, c in ipairs { { "Add", { "x", "" } }, { "Gemm", { "x", "" } }, { "Where", { "x", "x", "" } },
      { "Conv", { "", "x" } } } do
      local m, message = load_bytes(writer.model { nodes = { { c[1], c[2], { "y" } } }, inputs = { { "x", "f32" } },
        outputs = { { "y", "f32" } } })
      assert.is_nil(m)
      assert.truthy(message:find "is missing", message)
    end
  end)
end)

describe("what is saved", function()
  local function again(f, ...)
    local path, inputs = os.tmpname(), { ... }
    assert(T.onnx.save(path, f, inputs))
    local m = assert(T.onnx.load(path))
    os.remove(path)
    local want, got = f(...), m(...)
    assert.equal(want:dtype(), got:dtype())
    near(got, want, 1e-6)
    return m
  end
  it("compares bools as integers and has celu of every type", function()
    local a, b = T.tensor { true, false, true, false }, T.tensor { true, true, false, false }
    for _, op in ipairs { "lt", "le", "gt", "ge", "eq", "ne" } do again(function(x, y) return T[op](x, y) end, a, b) end
    for _, dtype in ipairs { "f32", "f64" } do
      for _, alpha in ipairs { 0.5, 1, 2 } do
        again(function(x) return F.celu(x, { alpha = alpha }) end, T.randn(20):to(dtype))
      end
    end
  end)
  it("has pooling's windows, whatever their sizes", function()
    local seen = 0
    for n = 3, 7 do
      for kernel = 1, 3 do
        for stride = 1, 4 do
          for padding = 0, kernel // 2 do
            local x = T.randn(1, 2, n)
            local o = { kernel_size = kernel, stride = stride, padding = padding, ceil_mode = true }
            local m = again(nn.MaxPool1d(o), x)
            local step = tostring(m)
            local last = (nn.MaxPool1d(o)(x):size(3) - 1) * stride
            -- ONNX's shape inference knows nothing of windows behind the input
            local theirs = -(-(n + 2 * padding - kernel) // stride) * stride
            assert.equal(last == theirs, step:find "ceil_mode=1" ~= nil, step)
            if last ~= theirs then seen = seen + 1 end
            o.count_include_pad = false
            again(nn.AvgPool1d(o), x)
          end
        end
      end
    end
    assert.is_true(seen > 5)
  end)
end)

-- The definition: of a bin the largest term, weight times pixel, of all samples; a sample outside is 0.
local function largest_term(image, box, o, i, j)
  local H, W, at = #image, #image[1], {}
  for k = 1, 4 do at[k] = box[k] * o.scale - (o.half and 0.5 or 0) end
  local x1, y1, x2, y2 = table.unpack(at)
  local w, h = x2 - x1, y2 - y1
  if not o.half then w, h = math.max(w, 1), math.max(h, 1) end
  local bh, bw = h / o.rows, w / o.columns
  local ny = o.ratio > 0 and o.ratio or math.ceil(bh)
  local nx = o.ratio > 0 and o.ratio or math.ceil(bw)
  local best
  for k = 0, ny - 1 do
    for l = 0, nx - 1 do
      local y, x, term = y1 + i * bh + (k + 0.5) * bh / ny, x1 + j * bw + (l + 0.5) * bw / nx, 0
      if y >= -1 and y <= H and x >= -1 and x <= W then
        y, x = math.max(0, math.min(H - 1, y)), math.max(0, math.min(W - 1, x))
        local r, c = math.floor(y), math.floor(x)
        local function pixel(a, b) return image[math.min(a, H - 1) + 1][math.min(b, W - 1) + 1] end
        local dy, dx = y - r, x - c
        term = math.max(pixel(r, c) * (1 - dy) * (1 - dx), pixel(r, c + 1) * (1 - dy) * dx,
          pixel(r + 1, c) * dy * (1 - dx), pixel(r + 1, c + 1) * dy * dx)
      end
      best = math.max(best or term, term)
    end
  end
  return best or 0
end

describe("RoiAlign", function()
  it("of mode max has the largest term of each bin", function()
    T.manual_seed(3)
    for n = 1, 24 do
      local o = { half = n % 2 == 0, scale = n % 3 == 0 and 0.5 or 1, rows = n % 3 + 1, columns = n % 2 + 1,
        ratio = n % 4 }
      local x = T.randn(2, 1, n % 5 + 2, n % 7 + 2)
      local boxes = T.rand(3, 4) * 6 - 1
      boxes = T.cat({ boxes:narrow(2, 1, 2), boxes:narrow(2, 1, 2) + boxes:narrow(2, 3, 2):abs() }, 2)
      local owner = T.tensor({ 0, 1, 0 }, { dtype = "i64" })
      local y = run("RoiAlign", { x, boxes, owner }, { mode = "max", output_height = o.rows, output_width = o.columns,
        sampling_ratio = o.ratio, spatial_scale = o.scale + 0.0,
        coordinate_transformation_mode = o.half and "half_pixel" or "output_half_pixel" }, 16)
      local images, list, want = x:squeeze(2):totable(), boxes:totable(), {}
      for r = 1, 3 do
        for i = 0, o.rows - 1 do
          for j = 0, o.columns - 1 do
            want[#want + 1] = largest_term(images[r == 2 and 2 or 1], list[r], o, i, j)
          end
        end
      end
      near(y, T.tensor(want):view(y:shape()), 1e-5)
    end
  end)
  it("compiles with a number of samples, and says so without", function()
    local x, boxes = T.randn(2, 3, 5, 5), T.tensor { { 2, 0, 0, 3, 3 }, { 1, 1, 1, 4, 2 } }
    for _, mode in ipairs { "mean", "max" } do
      local f = function(v, b) return F.roi_align(v, b, 2, { sampling_ratio = 2, mode = mode }) end
      near(T.jit(f)(x, boxes), f(x, boxes), 1e-6)
      for _, image in ipairs { 3, 0, -1 } do
        local ok, why = pcall(T.jit(f), x, T.tensor { { image, 0, 0, 1, 1 } })
        assert.is_false(ok)
        assert.truthy(why:find "index", why)
      end
    end
    local ok, why = pcall(T.jit(function(v, b) return F.roi_align(v, b, 2) end), x, boxes)
    assert.is_false(ok)
    assert.truthy(why:find("give sampling_ratio", 1, true), why)
  end)
end)
