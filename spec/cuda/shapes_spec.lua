-- SPDX-License-Identifier: MIT
-- Device kernels at sizes where they change their way of working: short and long rows, parts of rows, many rows, ties,
-- NaN, unaligned views. The rows of spec/ops/cases are too small for that. Compared with the CPU.

local T = require "perilune"
local ok, why = T.core.device.available()

local function same(what, got, want, tol)
  assert.equal(want:dtype(), got:dtype(), what)
  assert.same(want:shape(), got:shape(), what)
  assert.equal("cuda", got:device(), what)
  got = got:cpu()
  if not want:is_floating_point() then
    assert.is_true(T.equal(got, want), what)
    return
  end
  local a, b = got:to("f64"), want:to("f64")
  local fine = T.isclose(a, b, { rtol = tol, atol = tol, equal_nan = true })
  assert.is_true(fine:all():item(), ("%s: off by %g"):format(what, (a - b):abs():nan_to_num(0):max():item()))
end

-- f(tensors…) -> results; all compared.
local function check(what, tol, f, ...)
  local args = { ... }
  local there = {}
  for i, a in ipairs(args) do there[i] = a:cuda() end
  local want, got = table.pack(f(table.unpack(args))), table.pack(f(table.unpack(there)))
  assert.equal(want.n, got.n, what)
  for i = 1, want.n do same(what .. ", result " .. i, got[i], want[i], tol) end
end

-- Of a list of them the first and the last where each launch runs twice: no order of threads is a dtype's own.
local function dtypes(list)
  return os.getenv "PERILUNE_EMULATE" == "twice" and { list[1], list[#list] } or list
end

local tolerance = { f32 = 2e-5, f64 = 1e-10, f16 = 4e-3, bf16 = 3e-2 }

-- What f gives and the gradients of a weighted sum of it.
local function with_gradients(f)
  return function(...)
    local leaves = {}
    for i, a in ipairs { ... } do leaves[i] = a:detach():requires_grad_() end
    local y = f(table.unpack(leaves))
    local w = T.linspace(0.5, 1.5, y:numel()):to(y:dtype()):view(y:shape())
    if y:device() == "cuda" then w = w:cuda() end
    (y * w):sum():backward()
    local out = { y:detach() }
    for _, a in ipairs(leaves) do out[#out + 1] = a.grad end
    return table.unpack(out)
  end
end

describe("device kernels of all sizes", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end
  before_each(function() T.manual_seed(3) end)

  it("batch_norm: parts of channels, short channels, channels side by side, packs and tails", function()
    local shapes = { { 4, 3, 7, 9 }, { 2, 5, 16, 16 }, { 70, 40 }, { 600, 33 }, { 3, 2, 130, 50 },
      { 2, 70, 8 }, { 9, 2, 3 } }
    for _, shape in ipairs(shapes) do
      for _, dtype in ipairs(dtypes { "f32", "f64", "bf16", "f16" }) do
        local x = (T.randn(shape) * 3 + 100):to(dtype)
        local w, b = T.rand(shape[2]):to(dtype), T.rand(shape[2]):to(dtype)
        if dtype == "f32" or dtype == "f64" then
          check("batch_norm " .. table.concat(shape, "x") .. " " .. dtype, tolerance[dtype] * 50,
            with_gradients(function(...)
              local p = { ... }
              return (T.batch_norm(p[1], nil, nil, p[2], p[3], true))
            end), x, w, b)
        else
          check("batch_norm " .. table.concat(shape, "x") .. " " .. dtype, 0.1, function(a, c, d)
            return (T.batch_norm(a, nil, nil, c, d, true))
          end, x, w, b)
        end
      end
    end
  end)

  it("batch_norm of a view that begins between packs", function()
    local base = T.randn(4 * 3 * 64 + 1)
    check("unaligned", 1e-4, with_gradients(function(a)
      return (T.batch_norm(a[{ { 2, a:numel() } }]:view(4, 3, 64), nil, nil, nil, nil, true))
    end), base)
  end)

  it("rows of softmax and norms: a warp's, in registers, in shared memory, read again", function()
    for _, n in ipairs { 5, 129, 1000, 1025, 4096, 4104, 4097, 13000 } do
      for _, dtype in ipairs(dtypes { "f32", "bf16", "f64" }) do
        local x = (T.randn(3, n) * 2 + 5):to(dtype)
        local w, b = T.rand(n):to(dtype), T.rand(n):to(dtype)
        local tol = tolerance[dtype] * 10
        local of = (" of %d %s"):format(n, dtype)
        check("softmax" .. of, tol, with_gradients(function(a) return a:softmax(-1) end), x)
        check("log_softmax" .. of, tol, with_gradients(function(a) return a:log_softmax(-1) end), x)
        local function norm(a, c, d) return T.nn.F.layer_norm(a, { n }, c, d) end
        check("layer_norm" .. of, tol, with_gradients(norm), x, w, b)
        check("rms_norm" .. of, tol, with_gradients(function(a, c) return T.nn.F.rms_norm(a, { n }, c) end), x, w)
      end
    end
    local base = T.randn(3 * 8200 + 1) -- begins between packs
    check("softmax, unaligned", 1e-5, function(a) return a[{ { 2, -1 } }]:view(3, 8200):softmax(-1) end, base)
  end)

  it("gradients of norms over many rows: x and weights in one pass", function()
    for _, case in ipairs { { 4096, 130, "f32" }, { 4113, 132, "bf16" }, { 4096, 1028, "f32" } } do
      local rows, n, dtype = table.unpack(case)
      local x, dy = T.randn(rows, n):add(1):to(dtype), T.randn(rows, n):to(dtype)
      local w, b = T.rand(n):to(dtype), T.rand(n):to(dtype)
      local function gradients(kind, here, with_x)
        local a, c, d = x:to(here):clone(), w:to(here):clone():requires_grad_(), b:to(here):clone():requires_grad_()
        if with_x then a:requires_grad_() end
        local y = kind == "layer" and T.nn.F.layer_norm(a, { n }, c, d) or T.nn.F.rms_norm(a, { n }, c)
        y:backward(dy:to(here))
        return { a.grad or false, c.grad, d.grad }
      end
      for _, kind in ipairs { "layer", n < 1000 and "rms" or nil } do
        local what = ("%s norm of %d x %d %s, gradient"):format(kind, rows, n, dtype)
        local want, got = gradients(kind, "cpu", true), gradients(kind, "cuda", true)
        local apart = gradients(kind, "cuda", false)
        for i = 1, #want do
          same(what .. i, got[i], want[i], dtype == "f32" and 1e-3 or 0.1)
          assert.is_true(i == 1 or got[i]:equal(apart[i]), what .. i .. ": other numbers where x has no gradient")
        end
      end
    end
  end)

  it("lists: whole chunks, parts of them, views between packs, strided ones, what shares memory", function()
    local op = T.core.op
    for _, dtype in ipairs(dtypes { "f32", "f64", "f16", "bf16" }) do
      local base = T.randn(4096 * 3 + 40):to(dtype)
      local function list(a)
        return { a[{ { 1, 4096 * 2 } }], a[{ { 2, 4097 } }], a[{ { 3, 40 } }], a[{ { 1, 12000 } }]:view(100, 120):t(),
          a[{ { 5, 5 } }], a[{ { 1, 0 } }] }
      end
      for _, p in ipairs { 2, 1, 3, 0, math.huge, -math.huge } do
        check(("norm %g %s"):format(p, dtype), tolerance[dtype], function(a)
          return op.foreach_norm(list(a), { p = p })
        end, base)
      end
      local bad = base:clone()
      bad[7] = 0 / 0
      check("norm of NaN " .. dtype, 0, function(a)
        return op.foreach_norm(list(a), { p = 2 }), op.foreach_norm(list(a), { p = math.huge })
      end, bad)
      check("factor " .. dtype, 0, function(a) -- parts that overlap are scaled one after the other
        local mine = a:clone()
        local all = list(mine)
        all[#all + 1] = T.tensor(0.5, { dtype = dtype }):to(a:device())
        op.foreach_scale_(all)
        return mine
      end, base)
      check("zeros " .. dtype, 0, function(a)
        local mine = a:clone()
        op.foreach_zero_(list(mine[{ { 1, 12288 } }]))
        return mine
      end, base)
    end
    local one = T.randn(5000)
    local whole = op.foreach_norm({ one[{ { 1, 4096 } }]:cuda() }, { p = 2 })
    local apart = op.foreach_norm({ one:roll(1, 1):cuda()[{ { 2, 4097 } }] }, { p = 2 }) -- the same bits at any address
    assert.is_true(whole:equal(apart))
  end)

  it("sums: rows, columns, all, of every stride, whatever is added", function()
    for _, dtype in ipairs(dtypes { "f32", "bf16", "f64", "i64" }) do
      local x = dtype == "i64" and T.randint(-9, 9, { 70, 515 }) or T.randn(70, 515):to(dtype)
      local tol = dtype == "bf16" and 2e-2 or 1e-4
      for _, how in ipairs { function(a) return a end, function(a) return a:t() end,
        function(a) return a[{ {}, { 2, -2, 3 } }] end, function(a) return a:view(7, 10, 515):transpose(1, 2) end,
        function(a) return a[3]:unsqueeze(1):expand(9, 515) end } do
        check("sum", tol, function(a) return how(a):sum() end, x)
        check("sum of rows", tol, function(a) return how(a):sum(-1) end, x)
        check("sum of columns", tol, function(a) return how(a):sum(1) end, x)
        check("amax", tol, function(a) return how(a):amax(1), how(a):amax(-1), how(a):amin() end, x)
        if dtype ~= "i64" then
          check("mean", tol, function(a) return how(a):mean(-1), how(a):var(1), how(a):norm() end, x)
          check("logsumexp", tol, function(a) return how(a):logsumexp(-1) end, x)
        end
      end
    end
    -- neighbours in packs: whole ones, planes, views between
    for _, dtype in ipairs(dtypes { "f32", "bf16", "f16", "f64" }) do
      local x, tol = T.randn(333, 528):to(dtype), dtype:find "16" and 3e-2 or 1e-4
      check("columns in packs, " .. dtype, tol, function(a)
        local part, between = a[{ {}, { 9, 520 } }], a[{ {}, { 2, 513 } }]
        return a:sum(1), a:view(9, 37, 528):sum(2), a:mean(1), part:sum(1), between:sum(1)
      end, x)
    end
    local long = T.randn(50002)
    check("a long sum", 1e-3, function(a) return a:sum(), a:view(2, -1):sum(-1), a:view(-1, 2):sum(1) end, long)
  end)

  it("copies that turn dims: whole squares and parts of them, planes, every size of element", function()
    for _, dtype in ipairs { "u8", "bf16", "f32", "f64" } do
      for _, shape in ipairs { { 64, 96 }, { 33, 41 }, { 8, 200 }, { 7, 200 } } do
        local x = T.arange(1, shape[1] * shape[2] * 3):to(dtype):view(3, shape[1], shape[2])
        local of = ("%s of %dx%d"):format(dtype, shape[1], shape[2])
        check("transpose " .. of, 0, function(a) return a[1]:t():contiguous(), a:transpose(2, 3):contiguous() end, x)
        check("permute " .. of, 0, function(a)
          return a:permute(3, 1, 2):contiguous(), a:permute(2, 3, 1):contiguous()
        end, x)
        check("a part " .. of, 0, function(a)
          return a[{ {}, { 2, -1 }, { 2, -1 } }]:transpose(2, 3):contiguous()
        end, x)
        check("into a part " .. of, 0, function(a)
          local y = T.zeros(3, shape[2] + 2, shape[1] + 1, { dtype = dtype, device = a:device() })
          y[{ {}, { 2, -2 }, { 2, -1 } }]:copy_(a:transpose(2, 3))
          return y
        end, x)
      end
    end
    local images = T.randn(2, 9, 12, 11)
    check("channels last", 0, function(a)
      return (a:to { memory_format = "channels_last" } * 1):contiguous()
    end, images)
  end)

  it("group_norm", function()
    for _, shape in ipairs { { 2, 6, 5, 5 }, { 1, 4, 100, 90 }, { 3, 8 }, { 40, 12, 2 } } do
      for _, dtype in ipairs(dtypes { "f32", "f64" }) do
        check("group_norm " .. table.concat(shape, "x") .. " " .. dtype, tolerance[dtype] * 50,
          with_gradients(function(a, w, b)
          return (T.group_norm(a, w, b, { num_groups = 2 }))
        end), T.randn(shape):to(dtype), T.rand(shape[2]):to(dtype), T.rand(shape[2]):to(dtype))
      end
    end
  end)

  it("scans: many rows, long rows, rows in chunks", function()
    for _, case in ipairs { { { 4500, 2 }, 1 }, { { 2, 4500 }, 2 }, { { 5, 70, 3 }, 2 }, { { 300, 8 }, 2 },
      { { 2, 33, 4100 }, 2 } } do
      local shape, dim = case[1], case[2]
      local name = table.concat(shape, "x")
      local x = T.randn(shape)
      check("cumsum " .. name, 1e-4, with_gradients(function(a) return a:cumsum(dim) end), x)
      if x:numel() > 20000 then break end
      check("logcumsumexp " .. name, 1e-4, function(a) return a:logcumsumexp(dim) end, x)
      check("cumprod " .. name, 1e-3, function(a) return a:cumprod(dim) end, x * 0.01 + 1)
      check("integers " .. name, 0, function(a) return a:cumsum(dim), a:cumprod(dim) end, T.randint(-5, 5, shape))
      local ties = T.randint(-50, 50, shape):to("f32")
      check("cummax " .. name, 0, function(a) return a:cummax(dim) end, ties)
      check("cummin " .. name, 0, function(a) return a:cummin(dim) end, ties)
      check("cummin of i64 " .. name, 0, function(a) return a:cummin(dim) end, T.randint(-50, 50, shape))
    end
    local x = T.randn(9000)
    x[5000] = 0 / 0
    check("cummax with NaN", 0, function(a) return a:cummax(1) end, x)
  end)

  it("argmax and its kind: a thread, a warp, a block, several blocks a row; ties and NaN", function()
    for _, case in ipairs { { { 100, 7 }, 2 }, { { 100, 300 }, 2 }, { { 3, 5000 }, 2 },
      { { 40000 }, 1 }, { { 2, 17000 }, 1 },
      { { 2000, 5 }, 1 } } do
      local shape, dim = case[1], case[2]
      local x = T.randint(-1000, 1000, shape)
      for _, dtype in ipairs(dtypes { "f32", "i64", "u8" }) do
        check("max " .. table.concat(shape, "x") .. dtype, 0, function(a)
          local v, i = a:max(dim)
          local w, j = a:min(dim)
          return v, i, w, j, a:argmax(dim), a:argmin()
        end, x:to(dtype))
      end
      local y = x:to("f64")
      y:view(-1)[y:numel() // 2] = 0 / 0
      check("NaN", 0, function(a) return a:argmax(dim), a:argmin() end, y)
    end
    local ends = T.tensor({ 1, math.maxinteger, math.mininteger }, { dtype = "i64" })
    check("extremes of i64", 0, function(a) return a:argmax(), a:argmin() end, ends)
  end)

  it("sort and its kind: in shared memory, by radix, by selection", function()
    for _, case in ipairs { { { 5, 3 }, 2 }, { { 40, 100 }, 2 }, { { 2048 }, 1 }, { { 2, 5000 }, 2 },
      { { 9, 2100 }, 2 },
      { { 2500, 2 }, 1 } } do
      local shape, dim = case[1], case[2]
      local n = shape[dim]
      local x = T.randint(-200, 200, shape)
      -- radix passes take most of the time in the emulation: every width of keys once
      local wide = { [5000] = { "f32", "u8" }, [2100] = { "u8" }, [2500] = { "i64" } }
      for _, dtype in ipairs(wide[n] or { "f64", "bf16", "i16" }) do
        check("sort " .. table.concat(shape, "x") .. dtype, 0, function(a)
          local v, i = a:sort(dim)
          local w, j = a:sort(dim, true)
          return v, i, w, j, a:argsort(dim)
        end, x:to(dtype))
        check("topk " .. table.concat(shape, "x") .. dtype, 0, function(a)
          local k = math.min(n, 40)
          local v, i = a:topk(k, dim)
          local w, j = a:topk(k, dim, false)
          local q, r = a:kthvalue((n + 2) // 3, dim)
          local m, o = a:mode(dim)
          local s, t = a:median(dim)
          return v, i, w, j, q, r, m, o, s, t
        end, x:to(dtype))
      end
      local y = T.randn(shape)
      y:view(-1)[7] = 0 / 0
      check("NaN " .. table.concat(shape, "x"), 0, function(a)
        local v, i = a:sort(dim)
        local w, j = a:median(dim)
        local s, t = a:topk(2, dim)
        return v, i, w, j, s, t
      end, y)
    end
    check("gradient", 1e-5, with_gradients(function(a) return (a:topk(30, 2)) end), T.randn(9, 2100))
  end)

  it("pooling", function()
    local x = T.randn(2, 2, 11, 13)
    for _, dtype in ipairs(dtypes { "f32", "f64" }) do
      local a = x:to(dtype)
      check("max", 1e-6, with_gradients(function(v) return T.max_pool2d(v, 3, 2, 1) end), a)
      check("max, dilated", 1e-6, with_gradients(function(v)
        return T.max_pool2d(v, { 2, 3 }, { 1, 2 }, { 1, 1 }, { 3, 2 })
      end), a)
      check("average", 1e-5, with_gradients(function(v) return T.avg_pool2d(v, 3, 2, 1) end), a)
      check("adaptive", 1e-5, with_gradients(function(v) return T.adaptive_avg_pool2d(v, { 5, 7 }) end), a)
      check("adaptive max", 1e-6, with_gradients(function(v) return T.adaptive_max_pool2d(v, { 5, 23 }) end), a)
      check("whole planes", 1e-5, with_gradients(function(v) return T.adaptive_avg_pool2d(v, { 1, 1 }) end), a)
    end
    check("integers", 0, function(v) return T.max_pool2d(v, 2), T.avg_pool2d(v, 2) end,
      T.randint(-9, 9, { 2, 3, 6, 6 }))
  end)

  it("pooling of images channels last, whole packs of channels and others", function()
    for _, dtype in ipairs(dtypes { "f32", "f64", "f16", "bf16" }) do
      for _, channels in ipairs { 16, 12 } do
        local x = T.randn(2, channels, 9, 11):to(dtype)
        local function run(device)
          local z = x:clone():to(device)
          if device == "cuda" then z = z:to { memory_format = "channels_last" } end
          z = z:detach():requires_grad_()
          local y, at = T.nn.F.max_pool2d(z, 3, { stride = 2, padding = 1, return_indices = true })
          y:backward(T.arange(y:numel()):reshape(y:shape()):to(dtype):to(device))
          return { y:to("cpu"), at:to("cpu"), z.grad:to("cpu") }
        end
        local here, there = run("cpu"), run("cuda")
        for i = 1, 3 do assert.is_true(T.equal(here[i], there[i]), ("%s %d %d"):format(dtype, channels, i)) end
      end
    end
  end)

  it("joins, repeats, pads and their gradients", function()
    for _, dtype in ipairs(dtypes { "f32", "f64", "bf16" }) do
      local tol = tolerance[dtype] * 10
      local a, b = T.randn(3, 16, 5):to(dtype), T.randn(3, 7, 5):to(dtype)
      check("cat", tol, with_gradients(function(x, y) return T.cat({ x, y, x }, 2) end), a, b)
      check("cat along the last", tol, with_gradients(function(x)
        return T.cat({ x, x:transpose(1, 2):transpose(1, 2) }, 3)
      end), a)
      check("stack", tol, with_gradients(function(x) return T.stack({ x, x * 2 }, 3) end), a)
      check("tile", tol, with_gradients(function(x) return x:tile(2, 1, 3) end), a)
      check("repeat_interleave", tol, with_gradients(function(x) return x:repeat_interleave(3, 2) end), a)
      check("flip, roll", tol, with_gradients(function(x)
        return x:flip(1, 3):roll({ 4, -7 }, { 2, 3 }) + x:roll(9)
      end), a)
      for _, mode in ipairs { "reflect", "replicate", "circular" } do
        check(mode, tol, with_gradients(function(x) return T.pad(x:view(3, 1, 16, 5), { 3, 2, 7, 15 }, mode) end), a)
      end
      for _, pads in ipairs { { -5, 3 }, { 9, -7 }, { 5, -5 }, { -4, 5, 17, -16 } } do
        check("replicate where all is cropped", tol, with_gradients(function(x)
          return T.pad(x:view(3, 1, 16, 5), pads, "replicate")
        end), a)
      end
      check("constant", tol, with_gradients(function(x) return T.pad(x, { 1, -2, -3, 4 }, "constant", 0.5) end), a)
      check("triangles", tol, with_gradients(function(x) return x:tril(1) + x:triu(-3) end), a)
      check("windows that overlap", tol, with_gradients(function(x) return x:unfold(2, 5, 2) end), a)
      check("strided windows that overlap", tol, with_gradients(function(x)
        return x:view(-1):as_strided({ 40, 9, 2 }, { 3, 2, 0 }, 4)
      end), a)
    end
    check("bytes", 0, function(x)
      return T.cat({ x, x }, 1), x:flip(2), T.pad(x, { 2, 1 }, "constant", 3)
    end,
      T.randint(0, 200, { 33, 31 }):to("u8"))
  end)

  it("counting and searching", function()
    local x = T.randint(1, 60, { 5000 })
    check("bincount", 0, function(a) return T.bincount(a) end, x)
    check("bincount of few", 1e-4, function(a, w) return T.bincount(a, w) end, x, T.rand(5000))
    check("bincount of many", 1e-9, function(a, w) return T.bincount(a, w, { minlength = 3000 }) end, x,
      T.rand(5000):to("f64"))
    local y = T.randint(-30, 30, { 5000 }):to("f32")
    y[17], y[4000] = 0 / 0, 0 / 0
    check("unique", 0, function(a) return T.unique(a, { return_inverse = true, return_counts = true }) end, y)
    check("unique slices", 0, function(a)
      return T.unique(a, { dim = 2, return_inverse = true, return_counts = true })
    end, T.randint(0, 3, { 2, 300, 2 }))
    check("isin", 0, function(a, b) return T.isin(a, b), T.isin(a, b, { invert = true }) end, y, T.arange(20):to("f32"))
    local sorted = (T.randn(4, 1000):sort(2))
    check("searchsorted", 0, function(s, v)
      return T.searchsorted(s, v), T.searchsorted(s, v, nil, true)
    end, sorted, T.randn(4, 77))
  end)

  it("functions of one operand over more than a round of the grid, whole packs and tails", function()
    for _, dtype in ipairs(dtypes { "f32", "bf16", "f64" }) do
      for _, n in ipairs { 65536, 65544, 140003 } do
        local x = T.linspace(-3, 3, n):to(dtype)
        check(("gelu of %d %s"):format(n, dtype), tolerance[dtype], function(a)
          return T.nn.F.gelu(a), a:relu(), -a, a[{ { 2, -1 } }]:tanh()
        end, x)
      end
    end
  end)

  it("rows that meet: none, some, more than are read at a time, in the order of the index", function()
    local ids = { 3, 5, 3, 9 }
    for _, n in ipairs { 7, 8, 9, 16, 40 } do
      for _ = 1, n do ids[#ids + 1] = 10 + n end
      ids[#ids + 1] = n
    end
    local index = T.tensor(ids, { dtype = "i64" })
    for _, dtype in ipairs(dtypes { "f32", "f64", "bf16", "i64" }) do
      local dy = dtype == "i64" and T.randint(-9, 9, { #ids, 5 }) or T.randn(#ids, 5):to(dtype)
      check("index_add " .. dtype, dtype == "bf16" and 3e-2 or 0, function(a)
        local there = index:to(a:device())
        return T.zeros(60, 5, { dtype = dtype, device = a:device() }):index_add(1, there, a),
          T.zeros(60, 5, { dtype = dtype, device = a:device() }):index_copy(1, there, a)
      end, dy)
    end
    for _, n in ipairs { 8, 5, 1 } do -- rows of whole packs and of none, tables that begin between packs
      for _, dtype in ipairs(dtypes { "f32", "bf16", "f64", "u8" }) do
        local table = T.arange(0, 61 * n - 1):remainder(97):to(dtype)
        check(("rows of %d %s"):format(n, dtype), 0, function(t)
          local there = index:to(t:device())
          local whole, between = t:view(61, n), t[{ { n + 1, 61 * n } }]:view(60, n)
          return T.nn.F.embedding(there, whole), between:index_select(1, there), whole:t():index_select(2, there),
            whole:take(there), whole[there]
        end, table)
      end
    end
    check("embedding", 1e-5, function(w)
      local leaf = w:clone():requires_grad_()
      T.nn.F.embedding(index:to(w:device()), leaf):sum():backward()
      return leaf.grad
    end, T.randn(60, 5))
  end)

  it("losses", function()
    for _, dtype in ipairs(dtypes { "f32", "f64" }) do
      local tol = tolerance[dtype] * 10
      local x, y = T.rand(70, 130):to(dtype), T.rand(70, 130):to(dtype)
      for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "kl_div",
        "binary_cross_entropy_with_logits" } do
        for _, reduction in ipairs { "mean", "sum", "none" } do
          check(name .. reduction, tol, with_gradients(function(a, b)
            return T[name](a, b, { reduction = reduction })
          end), x, y)
        end
      end
    end
  end)

  it("cross entropy: threads of a row, packs and tails, weights, smoothing, ignored targets", function()
    local shapes = { { 9, 5 }, { 300, 64 }, { 7, 301 }, { 5, 3000 }, { 3, 2501 }, { 2, 12, 2100 }, { 2, 11, 3 } }
    for _, shape in ipairs(shapes) do
      local classes = shape[2]
      local sizes = { shape[1], shape[3] }
      local target = T.randint(1, classes, sizes)
      target:view(-1)[2] = -100
      local weight = T.rand(classes) + 0.5
      for _, dtype in ipairs(dtypes { "f32", "f64", "bf16" }) do
        local tol = dtype == "bf16" and 0.1 or tolerance[dtype] * 20
        local x, w = (T.randn(shape) * 4):to(dtype), weight:to(dtype)
        local kinds = { {}, { reduction = "sum", label_smoothing = 0.1 },
          { reduction = "none", label_smoothing = 0.2 } }
        for _, options in ipairs(kinds) do
          check("cross entropy " .. table.concat(shape, "x") .. dtype, tol, with_gradients(function(a)
            local on = a:device() == "cuda"
            return T.cross_entropy(a, on and target:cuda() or target, on and w:cuda() or w, options)
          end), x)
        end
        check("nll", tol, with_gradients(function(a)
          local on = a:device() == "cuda"
          return T.nll_loss(a, on and target:cuda() or target, on and w:cuda() or w)
        end), x)
      end
    end
  end)

  it("ctc_loss: letters that repeat, sequences of all lengths", function()
    local frames, letters = T.tensor({ 40, 7, 0, 33 }, { dtype = "i64" }), T.tensor({ 17, 3, 0, 20 }, { dtype = "i64" })
    local target = T.randint(2, 5, { 4, 20 })
    for _, dtype in ipairs(dtypes { "f32", "f64" }) do
      check("ctc " .. dtype, tolerance[dtype] * 20, with_gradients(function(x)
        local function there(a) return x:device() == "cuda" and a:cuda() or a end
        return (T.ctc_nll(x:log_softmax(3), there(target), there(frames), there(letters)))
      end), T.randn(40, 4, 9):to(dtype))
    end
    check("polygamma", 1e-9, function(x) return T.polygamma(x, 0), T.polygamma(x, 1), T.polygamma(x, 4) end,
      T.linspace(-3.3, 9, 50):to("f64"))
  end)

  it("choosing: permutations alone in a block and in rounds, draws with and without replacement", function()
    local function on(device, f)
      T.manual_seed(9)
      return T.core.device.with(device, f)
    end
    for _, n in ipairs { 0, 1, 2, 77, 4096, 4097, 6001 } do
      local function permutation() return T.randperm(n) end
      same("randperm " .. n, on("cuda", permutation), on("cpu", permutation))
    end
    for _, k in ipairs { 1, 5, 33, 2500 } do
      local w = T.rand(3, k, { dtype = "f64" }) + 0.01
      if k > 4 then w[{ {}, { 2, 3 } }] = 0 end
      for _, dtype in ipairs { "f64", "f32", "bf16" } do
        for _, again in ipairs { true, false } do
          local n = again and 40 or math.max(1, k // 3)
          local function draw(x) return x:to(dtype):multinomial(n, again) end
          local there, here = on("cuda", function() return draw(w:cuda()) end), on("cpu", function() return draw(w) end)
          same(("multinomial of %d %s, again: %s"):format(k, dtype, again), there, here)
        end
      end
    end
    for text, bad in pairs {
      ["a weight is not a finite number"] = T.tensor { 1, -1, 2 },
      ["all weights are zero"] = T.zeros(3),
      ["2 samples without replacement from 1 positive weights"] = T.tensor { 0, 1, 0 },
    } do
      local fine, message = pcall(function() return bad:cuda():multinomial(2):cpu() end)
      assert.is_false(fine)
      assert.truthy(tostring(message):find("multinomial: " .. text, 1, true), message)
    end
  end)

  it("positions of what is set: in one tile, in many, none, all, of views", function()
    local function positions(m)
      local x = T.arange(m:numel()):view(m:shape())
      if m:device() == "cuda" then x = x:cuda() end
      return m:nonzero(), x:masked_select(m), x[m]
    end
    local some = T.rand(70, 150):lt(0.3)
    check("some", 0, positions, some)
    check("turned", 0, function(m) return positions(m:t()) end, some)
    check("every other", 0, function(m) return positions(m[{ {}, { 1, 149, 2 } }]) end, some)
    check("few of many", 0, positions, T.rand(300001):lt(1e-4))
    check("all", 0, positions, T.ones(4097):gt(0))
    check("none", 0, positions, T.ones(4097):lt(0))
    check("put back", 0, function(m)
      local y = T.zeros(70, 150, { device = m:device() })
      return y:masked_scatter(m, T.arange(70 * 150, { device = m:device() }):float())
    end, some)
  end)

  it("one row in more pieces than a block has threads", function()
    local x = T.randint(-3, 3, { 4096 * 256 + 5000 })
    check("cumsum", 0, function(a) return a:cumsum(1) end, x)
    check("sum", 0, function(a) return a:sum(), a:float():amax(), a:float():sum() end, x)
  end)

  it("convolutions take a bias that is not contiguous, and round once", function()
    local x, w, b = T.randn(2, 3, 6, 5), T.randn(4, 3, 3, 3), T.randn(4, 2)
    local function f(a, k, c) return (T.nn.F.conv2d(a, k, c:select(2, 2), { padding = 1 })) end
    check("f32", 1e-5, f, x, w, b)
    local want = f(x:bfloat16():double(), w:bfloat16():double(), b:bfloat16():double())
    local got = f(x:bfloat16():cuda(), w:bfloat16():cuda(), b:bfloat16():cuda()):cpu():double()
    assert.is_true(((got - want):abs() - want:abs() * 2.0 ^ -8):amax():item() < 1e-4)
  end)

  it("index values out of range", function()
    local bad = T.tensor({ 1, 2, 9 }, { dtype = "i64" }):cuda()
    local fine, message = pcall(function()
      local r = T.searchsorted(T.tensor { 1, 2, 3 }:cuda(), T.tensor { 2 }:cuda(), bad)
      return r:cpu()
    end)
    assert.is_false(fine)
    assert.truthy(tostring(message):find("searchsorted", 1, true) and tostring(message):find("9", 1, true), message)
    fine, message = pcall(function() return T.cross_entropy(T.randn(3, 4):cuda(), bad):item() end)
    assert.is_false(fine)
    assert.truthy(tostring(message):find("cross_entropy", 1, true) and tostring(message):find("9", 1, true), message)
    assert.equal(3, T.ones(3):cuda():sum():item()) -- the device goes on
  end)
end)
