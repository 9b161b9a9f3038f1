-- SPDX-License-Identifier: MIT
-- Numbers beside f16 and bf16: arithmetic takes them as f32 and rounds its result once, comparisons take them as
-- elements, rounded. Generated over all pointwise ops that take a number beside a tensor; the reference is the op
-- itself in f32, rounded.

local T = require "perilune"

local NUMBERS = { 0.1, 10000, 1 / 3, 65520, 1e-8, -0.3, -7.7, 3 }
-- What they compare, choose or take apart is elements: the number is rounded first (which choosing cannot tell).
local AS_ELEMENTS = { eq = true, ne = true, lt = true, le = true, gt = true, ge = true, logical_and = true,
  logical_or = true, logical_xor = true, nextafter = true }
local CHOOSE = { maximum = true, minimum = true, fmax = true, fmin = true, copysign = true, clamp_tensor = true,
  where = true }
-- Only for whole numbers.
local WHOLE = { gcd = true, lcm = true, bitwise_and = true, bitwise_or = true, bitwise_xor = true,
  bitwise_left_shift = true, bitwise_right_shift = true, }
local ALPHA = { add_scaled = { alpha = 0.3 }, addcmul = { value = 0.3 }, addcdiv = { value = 0.3 } }

local function values(shape, dtype)
  T.manual_seed(3)
  local x = T.randn(shape) * 3
  if x:numel() > 12 then
    local special = T.tensor { 9984, -9984, 0, 1, 0.1, 1 / 3, 65504, math.huge, -math.huge, 0 / 0, 5 }
    local flat = x:flatten()
    flat:narrow(1, 2, 11):copy_(special)
    x = flat:view(shape)
  end
  return x:to(dtype)
end

local function same(a, b)
  if a:dtype() ~= b:dtype() or table.concat(a:shape(), ",") ~= table.concat(b:shape(), ",") then return false end
  if a:dtype() == "bool" then return a:equal(b) end
  local m, n = a:isnan(), b:isnan()
  return m:equal(n) and T.where(m, 0, a):equal(T.where(n, 0, b))
end

local ops = {}
for _, o in ipairs(T.core.ops()) do
  if o.flags.scalar and o.class == "pointwise" and #o.args > 1 and not WHOLE[o.name] and not o.flags.mutates
    and o.name ~= "masked_fill" and o.name ~= "copy" then ops[#ops + 1] = o end
end

-- Calls f(call, name): call(x, n) is the op with n at one place and tensors made of x at the others.
local function each_place(o, f)
  for at = 1, #o.args do
    if not (o.name == "where" and at == 1) and not (o.name == "clamp_tensor" and at == 1) then
      f(function(x, n, opts)
        local args = {}
        for k = 1, #o.args do args[k] = k == at and n or (o.name == "where" and k == 1) and x:gt(0) or x end
        if ALPHA[o.name] or opts then
          local all = {}
          for k, v in pairs(ALPHA[o.name] or {}) do all[k] = v end
          for k, v in pairs(opts or {}) do all[k] = v end
          args[#args + 1] = all
        end
        return T[o.name](table.unpack(args))
      end, ("%s, number at %d"):format(o.name, at), at)
    end
  end
end

local function rounded(n, dtype) return T.tensor(n):to(dtype):float():item() end
local function reference(o, call, x, n, dtype)
  if AS_ELEMENTS[o.name] then
    local y = call(x:float(), rounded(n, dtype))
    return y:dtype() == "bool" and y or nil
  end
  return call(x:float(), n):to(dtype)
end

local LAYOUTS = {
  function(d) return values({ 1 }, d) end,
  function(d) return values({ 15 }, d) end,
  function(d) return values({ 64, 3 }, d):t() end,
  function(d) return values({ 40, 30 }, d)[{ {}, { 1, 30, 2 } }] end,
  function(d) return values({ 20, 1 }, d):expand(20, 9) end,
  function(d) return values({ 40000 }, d) end,
}

describe("a number beside halves", function()
  it("finds the ops", function() assert.is_true(#ops > 30, #ops) end)

  for _, d in ipairs { "bf16", "f16" } do
    it("is f32 in arithmetic: " .. d, function()
      for _, o in ipairs(ops) do
        each_place(o, function(call, name)
          for _, layout in ipairs(LAYOUTS) do
            local x = layout(d)
            for _, n in ipairs(NUMBERS) do
              local want = reference(o, call, x, n, d)
              if want then
                local what = ("%s of %s, %s, %g"):format(name, d, table.concat(x:shape(), "x"), n)
                local got = call(x, n)
                assert(same(got, want), what)
                if got:dtype() == d then
                  local out = T.full(x:shape(), 7, { dtype = d })
                  call(x, n, { out = out })
                  assert(same(out, want), what .. ", out=")
                end
              end
            end
          end
        end)
      end
    end)

    it("is so in place: " .. d, function()
      for _, o in ipairs(ops) do
        local other = AS_ELEMENTS[o.name] or CHOOSE[o.name] or ALPHA[o.name]
        if o.flags.inplace and #o.args == 2 and not other then
          for _, n in ipairs(NUMBERS) do
            local x = values({ 40, 30 }, d)
            local want = T[o.name](x:float(), n):to(d)
            local y, z = x:clone(), x:t():clone():t()
            T[o.name .. "_"](y, n)
            T[o.name .. "_"](z, n)
            assert(same(y, want) and same(z, want), o.name .. "_ of " .. d)
          end
        end
      end
    end)

    it("and so is a 0-d tensor: " .. d, function()
      for _, o in ipairs(ops) do
        if not AS_ELEMENTS[o.name] then
          each_place(o, function(call, name)
            local x = values({ 40, 30 }, d)
            for _, n in ipairs(NUMBERS) do
              local want = call(x:float(), T.tensor(n)):to(d)
              assert(same(call(x, T.tensor(n)), want), name .. " of " .. d)
              assert(same(call(x, T.tensor(n, { dtype = "f64" })), want), name .. " of f64 and " .. d)
            end
          end)
        end
      end
    end)

    it("in T.jit, saved graphs and T.vmap as without: " .. d, function()
      local path = os.tmpname()
      for _, o in ipairs(ops) do
        each_place(o, function(call, name)
          local x = values({ 8, 40 }, d)
          local function f(a) return call(a, 0.1), call(a, 10000) end
          local want = { f(x) }
          local chain = T.jit(function(a)
            local p, q = f(a)
            return p, q, call(a, 1 / 3)
          end)
          for _ = 1, 2 do
            local p, q, r = chain(x)
            assert(same(p, want[1]) and same(q, want[2]) and same(r, call(x, 1 / 3)), "jit: " .. name .. " of " .. d)
          end
          local p, q = T.vmap(f)(x)
          assert(same(p, want[1]) and same(q, want[2]), "vmap: " .. name .. " of " .. d)
          local t = T.tensor { 0.1, 10000, 1 / 3, -0.3, 3, 1e-8, -7.7, 65520 }
          local many, rows = T.vmap(call)(x, t), {}
          for i = 1, 8 do rows[i] = call(x[i], t[i]) end
          assert(same(many, T.stack(rows)), "vmap over 0-d tensors: " .. name .. " of " .. d)
          local beside = T.vmap(function(a) return call(a, t[1]) end)(x)
          assert(same(beside, call(x, t[1])), "vmap beside a 0-d tensor: " .. name)
          local g = T.graph()
          g:outputs { f(g:input("x", { 8, 40 }, { dtype = d })) }
          assert(T.save_graph(path, g))
          local ys = assert(T.load_graph(path)):run { x = x }
          assert(same(ys[1], want[1]) and same(ys[2], want[2]), "saved graph: " .. name .. " of " .. d)
        end)
      end
      os.remove(path)
      os.remove(path .. ".safetensors")
    end)

    it("in T.jit beside what is not row-major: " .. d, function()
      local function check(o, call, f, name)
        local x = values({ 8, 40 }, d):t()
        for n, t in pairs { f32 = T.tensor(0.1), f64 = T.tensor(1 / 3, { dtype = "f64" }), i64 = T.tensor(3) } do
          if n ~= "i64" or not WHOLE[o.name] then
            local want = call(x, t)
            assert(same(f(x, t), want), ("%s of %s, %s"):format(name, d, n))
            assert(same(f(x:neg():neg(), t), want), ("%s of %s, %s, once more"):format(name, d, n))
          end
        end
      end
      for _, o in ipairs(ops) do
        if not AS_ELEMENTS[o.name] then
          each_place(o, function(call, name) check(o, call, T.jit(function(a, t) return call(a, t) end), name) end)
        end
      end
    end)

    it("and in gradients and tangents: " .. d, function()
      local eps = d == "f16" and 2.0 ^ -9 or 2.0 ^ -6
      for _, o in ipairs(ops) do
        if o.differentiable and not CHOOSE[o.name] and not AS_ELEMENTS[o.name] then
          each_place(o, function(call, name, at)
            if o.name:find("^gammainc") and at == 2 then return end -- no gradient for the tensor
            for _, n in ipairs { 0.1, 1 / 3, 2.7 } do
              T.manual_seed(5)
              local x = (T.rand({ 40 }) * 3 + 0.3):to(d)
              local v = T.randn({ 40 }):to(d)
              local function gradient(a, b)
                a = a:detach():requires_grad_()
                return T.grad_of(call(a, n), a, { grad_outputs = b })
              end
              local function near(got, want, how)
                assert.equal(d, got:dtype(), how .. name)
                local diff = (got:float() - want):abs()
                local most = (diff - want:abs() * eps):max():item()
                assert(most <= 3 * eps, ("%s of %s, %g: %s is off by %g"):format(name, d, n, how, most))
              end
              near(gradient(x, v), gradient(x:float(), v:float()), "gradient")
              local _, tangent = T.jvp(function(a) return call(a, n) end, x, v)
              local _, want = T.jvp(function(a) return call(a, n) end, x:float(), v:float())
              near(tangent, want, "tangent")
              local s, r = T.tensor(n):requires_grad_(), T.tensor(n):requires_grad_()
              if not (o.name:find("^gammainc") and at == 1) then
                local ds = T.grad_of(call(x, s):sum(), s)
                local dr = T.grad_of(call(x:float(), r):sum(), r)
                assert.equal("f32", ds:dtype())
                local off = math.abs(ds:item() - dr:item())
                assert(off <= 0.02 * math.abs(dr:item()) + 0.02, name .. ": gradient of a 0-d tensor")
              end
            end
          end)
        end
      end
    end)
  end

  it("with alpha as well, a number having no dtype of its own", function()
    for _, d in ipairs { "bf16", "f16", "f32", "f64", "i64" } do
      for _, name in ipairs { "add", "sub" } do
        local sign = name == "add" and 1 or -1
        for _, shape in ipairs { {}, { 6 } } do
          local x, n, alpha = T.full(shape, 5):to(d), d == "i64" and (1 << 53) + 1 or 0.1, d == "i64" and 1 or 3
          local wide = d == "i64" and "i64" or "f64"
          local want, turned = x:to(wide) + sign * alpha * n, n + x:to(wide) * (sign * alpha)
          local function check(got, to, how)
            assert.equal(d, got:dtype(), how)
            assert(got:equal(to:to(d)), ("%s of %s: %s for %s"):format(how, d, got, to))
          end
          check(T[name](x, n, { alpha = alpha }), want, name)
          check(x:clone()[name .. "_"](x:clone(), n, { alpha = alpha }), want, name .. "_")
          check(T[name](n, x, { alpha = alpha }), turned, name .. " of a number")
          check(T[name](x, n, { alpha = alpha, out = T.empty(shape, { dtype = d }) }), want, "out=")
          if #shape > 0 then
            check(T.vmap(function(a) return T[name](a, n, { alpha = alpha }) end)(x), want, "vmap of " .. name)
          end
        end
      end
    end
  end)
end)
