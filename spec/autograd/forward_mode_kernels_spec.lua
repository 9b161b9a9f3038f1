-- SPDX-License-Identifier: MIT
-- Ops whose kernel computes values and tangents in one pass (PlOp.with_tangent), on generated shapes, layouts, ties and
-- special numbers: values have the bits that they have outside of T.jvp, tangents are those of the general way (which a
-- limit of memory takes), of difference quotients in f64, and of reverse mode, the adjoint; batched, traced, nested.

local T = require "perilune"
local F = T.nn.F
local random = require "spec.support.random"

local function same_bits(what, got, want)
  assert.same(want:shape(), got:shape(), what)
  assert.is_true(got:isnan():equal(want:isnan()) and got:nan_to_num(0.25):equal(want:nan_to_num(0.25)), what)
end

local function near(what, got, want, tol)
  assert.same(want:shape(), got:shape(), what)
  if want:numel() == 0 then return end
  assert.is_true(got:isnan():equal(want:isnan()), what .. ": NaN elsewhere")
  local function plain(t) return t:nan_to_num(0, 1e30, -1e30) end
  local off, size = (plain(got) - plain(want)):abs():max():item(), plain(want):abs():max():item()
  assert.is_true(off <= tol * (1 + size), ("%s: off by %g of %g"):format(what, off, size))
end

-- f and its tangent by the ops one by one. Pairs of what was computed rather than given are what a limit works on.
local function general(f, x, v)
  local _ <close> = T.memory_limit "1 GB"
  return T.jvp(function(a) return f(a * 1) end, x, v)
end

local function quotient(f, x, v)
  local h = 1e-6
  return (f(x + v * h) - f(x - v * h)) / (2 * h)
end

-- Shapes that take every form of a reduction: rows, columns, both, several blocks, one element, none.
local shapes = { {}, { 1 }, { 7 }, { 0 }, { 5, 0 }, { 0, 4 }, { 3, 70 }, { 70, 3 }, { 9, 600 }, { 2, 3, 4 },
  { 3, 1, 5 }, { 4, 5, 2, 3 }, { 70000 }, { 2, 66000 }, { 300, 520 }, { 2, 200, 40 } }

local reductions = {
  norm = { function(x, d) return x:norm(2, d) end },
  norm_1 = { function(x, d) return x:norm(1, d) end, ties = true },
  norm_3 = { function(x, d) return x:norm(3, d) end },
  norm_inf = { function(x, d) return x:norm(1 / 0, d) end, ties = true, full = true },
  var = { function(x, d) return x:var(d) end },
  var_0 = { function(x, d) return x:var(d, { correction = 0, keepdim = true }) end },
  std = { function(x, d) return x:std(d) end },
  logsumexp = { function(x, d) return x:logsumexp(d) end },
  amax = { function(x, d) return x:amax(d) end, ties = true, full = true },
  amin = { function(x, d) return x:amin(d, { keepdim = true }) end, ties = true, full = true },
  max_all = { function(x) return T.max_all(x) end, ties = true, full = true, all = true },
  min_all = { function(x) return T.min_all(x) end, ties = true, full = true, all = true },
  prod = { function(x, d) return d and #d > 1 and x:flatten():prod() or x:prod(d) end, near_one = true },
}

local along = {
  softmax = function(x, d) return x:softmax(d) end,
  log_softmax = function(x, d) return x:log_softmax(d) end,
  -- over dim d and all behind it
  layer_norm = function(x, d)
    local dims = { table.unpack(x:shape(), d) }
    local w = T.ones(dims):to(x:dtype()):cumsum(-1):remainder(7) - 3
    return F.layer_norm(x, dims, { weight = w, bias = w * 2 })
  end,
  rms_norm = function(x, d) return F.rms_norm(x, { table.unpack(x:shape(), d) }) end,
}

-- Numbers and tangents of a shape: made once for all functions, for Lua takes longer to draw them than kernels to work
-- on them.
local made = {}
local function forget() made = {} end
local function kinds(shape, dtype, near_one)
  local key = dtype .. table.concat(shape, ",")
  if not made[key] then
    local n = 1
    for _, s in ipairs(shape) do n = n * s end
    local g = random.new(n + 7 * #shape)
    made[key] = { random.tensor(T, g:list(n, -2, 2), shape, dtype), random.tensor(T, g:list(n, -1, 1), shape, dtype) }
  end
  local x, v = made[key][1]:clone(), made[key][2]:clone()
  if near_one then x = x * 0.01 + 1 end
  return x, v
end

-- Lists of dims to reduce: all, each, and neighbours; nil: all.
local function choices(shape)
  local list = { false }
  for d = 1, #shape do list[#list + 1] = { d } end
  if #shape > 2 then
    list[#list + 1] = { 1, 2 }
    list[#list + 1] = { #shape - 1, #shape }
    list[#list + 1] = { 1, #shape }
  end
  return list
end

local function empty(shape, dims)
  for d, s in ipairs(shape) do
    local reduced = not dims
    for _, k in ipairs(dims or {}) do reduced = reduced or k == d end
    if reduced and s == 0 then return true end
  end
  return false
end

local function compare(what, f, x, v, dtype, smooth, loose)
  local tol = dtype == "f64" and 1e-10 or loose or 3e-5
  local value, t = T.jvp(f, x, v)
  same_bits(what .. ": value", value, f(x))
  local _, want = general(f, x:double(), v:double())
  near(what .. ": tangent", t, want:to(dtype), tol)
  if smooth and dtype == "f64" and x:numel() > 0 then near(what .. ": quotient", t, quotient(f, x, v), 2e-4) end
end

describe("values and tangents of reductions in one pass:", function()
  teardown(forget)
  for name, r in pairs(reductions) do
    it(name, function()
      for _, dtype in ipairs { "f32", "f64" } do
        for _, shape in ipairs(shapes) do
          local x, v = kinds(shape, dtype, r.near_one)
          for _, dims in ipairs(r.all and { false } or choices(shape)) do
            if not (r.full and empty(shape, dims)) then
              local function f(a) return r[1](a, dims or nil) end
              local what = ("%s of %s[%s] over %s"):format(name, dtype, table.concat(shape, ","),
                dims and table.concat(dims, ",") or "all")
              compare(what, f, x, v, dtype, not r.ties)
              if r.ties then compare(what .. ", ties", f, (x * 2):round(), v, dtype) end
              if dtype == "f64" then compare(what .. ", zeros", f, x * 0, v, dtype) end
              if dtype == "f32" and #shape == 2 and x:numel() > 0 then
                compare(what .. ", transposed", f, x:t():contiguous():t(), v, dtype, false, 1e-3) -- by other ops
                compare(what .. ", tangent transposed", f, x, v:t():contiguous():t(), dtype, false, 1e-3)
              end
            end
          end
        end
      end
    end)

    it(name .. " of NaN and infinite numbers", function()
      for _, dtype in ipairs { "f32", "f64" } do
        for _, shape in ipairs { { 6, 70 }, { 70, 6 }, { 70000 } } do
          -- of products 0 times infinity depends on the order
          for _, special in ipairs(r.near_one and { 0 / 0 } or { 0 / 0, 1 / 0, -1 / 0 }) do
            local x, v = kinds(shape, dtype, r.near_one)
            x:flatten()[5] = special
            x:flatten()[40] = special
            for _, dims in ipairs(r.all and { false } or choices(shape)) do
              local function f(a) return r[1](a, dims or nil) end
              local value, t = T.jvp(f, x, v)
              same_bits(name, value, f(x))
              local _, want = general(f, x:double(), v:double())
              near(name .. (" with %g"):format(special), t, want:to(dtype), dtype == "f64" and 1e-10 or 3e-5)
            end
          end
        end
      end
    end)

    it(name .. " batched, traced, nested, and beside reverse mode", function()
      local x, v = kinds({ 5, 12 }, "f64", r.near_one)
      for _, dims in ipairs(r.all and { false } or { false, { 1 }, { 2 } }) do
        local function f(a) return r[1](a, dims or nil) end
        local value, t = T.jvp(f, x, v)
        local batched = T.vmap(function(a, b) return T.jvp(f, a, b) end)
        near("vmap", select(2, batched(T.stack({ x, x * 1.5 }, 1), T.stack({ v, v }, 1)))[1], t, 1e-10)
        local tv, tt = T.jit(function(a, b) return T.jvp(f, a, b) end)(x, v)
        near("jit", tt, t, 1e-10)
        near("jit", tv, value, 1e-12)
        local w = random.tensor(T, random.new(5):list(value:numel(), -1, 1), value:shape(), "f64")
        local _, pull = T.vjp(f, x)
        near("adjoint", (w * t):sum(), (pull(w) * v):sum(), 1e-9)
        local function pushed(a) return (select(2, T.jvp(f, a, v)) * w):sum() end
        local function pulled(a) return select(2, T.jvp(T.grad(function(b) return (f(b) * w):sum() end), a, v)) end
        near("forward over reverse is reverse over forward", T.grad(pushed, x) or x * 0, pulled(x) or x * 0, 1e-8)
      end
    end)
  end
end)

describe("values and tangents along a dim in one pass:", function()
  teardown(forget)
  for name, op in pairs(along) do
    it(name, function()
      for _, dtype in ipairs { "f32", "f64" } do
        for _, shape in ipairs(shapes) do
          local x, v = kinds(shape, dtype)
          for d = name:find "_norm" and math.max(1, #shape) or 1, #shape do
            local function f(a) return op(a, d) end
            local what = ("%s of %s[%s] along %d"):format(name, dtype, table.concat(shape, ","), d)
            compare(what, f, x * 3, v, dtype, true)
            if x:numel() > 12 then
              local y = x:clone()
              y:flatten()[3], y:flatten()[9] = -1 / 0, 0 / 0
              compare(name .. " of special numbers", f, y, v, dtype)
            end
          end
        end
      end
    end)
  end
end)

describe("values and tangents of others in one pass:", function()
  teardown(forget)
  it("nll_loss", function()
    for _, dtype in ipairs { "f32", "f64" } do
      for _, shape in ipairs { { 7 }, { 6, 5 }, { 3, 4, 2, 3 }, { 300, 7 } } do
        local x, v = kinds(shape, dtype)
        local target = #shape == 1 and T.tensor(3, { dtype = "i64" })
          or T.randint(1, shape[2], #shape == 2 and { shape[1] } or { shape[1], shape[3], shape[4] })
        for _, reduction in ipairs { "none", "mean", "sum" } do
          for _, o in ipairs { {}, { weight = T.rand(shape[2] or 7, { dtype = dtype }) + 0.5 },
            { ignore_index = 2 } } do
            o.reduction = reduction
            compare("nll_loss", function(a) return F.nll_loss(a, target, o) end, x, v, dtype, true)
          end
        end
      end
    end
  end)

  it("max pooling", function()
    for _, dtype in ipairs { "f32", "f64" } do
      for _, o in ipairs { { 2 }, { 3, { stride = 2, padding = 1 } }, { 2, { stride = 1, dilation = 2 } },
        { 3, { stride = 2, ceil_mode = true } } } do
        for nd, shape in ipairs { { 2, 3, 12 }, { 2, 3, 9, 11 }, { 1, 2, 6, 7, 8 } } do
          local x, v = kinds(shape, dtype)
          local pool = F["max_pool" .. nd .. "d"]
          compare("max_pool", function(a) return (pool(a, o[1], o[2])) end, x, v, dtype, true)
          compare("max_pool of ties", function(a) return (pool(a, o[1], o[2])) end, (x * 2):round(), v, dtype)
          local odd = x:clone()
          odd:view(-1)[{ { 2, -1, 7 } }] = 0 / 0
          odd:view(-1)[{ { 1, -1, 3 } }] = -1 / 0
          same_bits("max_pool beside NaN", (T.jvp(function(a) return (pool(a, o[1], o[2])) end, odd, v)),
            (pool(odd, o[1], o[2])))
          local _, at = T["max_pool" .. nd .. "d"](x, { kernel_size = 2, return_indices = true })
          local y, t = T.jvp(function(a)
            local y, places = T["max_pool" .. nd .. "d"](a, { kernel_size = 2, return_indices = true })
            assert.is_true(places:equal(at))
            return y
          end, x, v)
          local width = v:numel() // (shape[1] * shape[2])
          near("max_pool with places", t:reshape(shape[1], shape[2], -1),
            v:view(shape[1], shape[2], width):gather(3, at:reshape(shape[1], shape[2], -1)), 0)
          near("max_pool with places", y:reshape(shape[1], shape[2], -1),
            x:view(shape[1], shape[2], width):gather(3, at:reshape(shape[1], shape[2], -1)), 0)
          compare("adaptive", function(a) return (F["adaptive_max_pool" .. nd .. "d"](a, 3)) end, x, v, dtype, true)
        end
      end
    end
  end)

  it("are what runs, no graph of tangents", function()
    local target = T.randint(1, 8, { 48 })
    local functions = { nll_loss = { function(a) return F.nll_loss(a, target) end, { 48, 8 } } }
    for name, r in pairs(reductions) do functions[name] = { r[1] } end
    functions.norm_3, functions.norm_inf = nil, nil
    for name, f in pairs(along) do functions[name] = { function(a) return f(a, 2) end } end
    for nd, shape in ipairs { { 6, 8, 8 }, { 2, 3, 8, 8 }, { 2, 3, 2, 4, 8 } } do
      functions["max_pool" .. nd .. "d"] = { function(a) return (F["max_pool" .. nd .. "d"](a, 2)) end, shape }
    end
    for name, f in pairs(functions) do
      local shape = f[2] or { 2, 3, 8, 8 }
      T.debug.cache_clear()
      T.jvp(f[1], T.rand(shape) + 0.5, T.randn(shape))
      assert.equal(0, T.debug.cache_stats("tangents").entries, name)
    end
  end)

  it("powers by a number", function()
    for _, dtype in ipairs { "f32", "f64" } do
      for _, shape in ipairs(shapes) do
        local x, v = kinds(shape, dtype)
        for _, e in ipairs { 0, 1, 2, 3, 4, -1, 0.5 } do
          local y = e % 1 ~= 0 and x:abs() or x
          compare("x^" .. e, function(a) return a ^ e end, y, v, dtype)
          compare("0^" .. e, function(a) return a ^ e end, x * 0, v, dtype)
        end
      end
    end
  end)
end)
