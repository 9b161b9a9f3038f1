-- SPDX-License-Identifier: MIT
-- Values of every op with a naive reference; the same bits in every layout; in-place forms; empty and 0-d
-- inputs.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local near = require "spec.support.near"
local oracle = require "spec.support.oracle"

local function row_of(info)
  return support.cases[info.name]
end

describe("values of", function()
  for _, info in ipairs(support.public()) do
    local row = row_of(info)
    if row and row.ref then
      it(info.name, function()
        local f = support.func(info.name)
        for i, args in ipairs(support.arguments(info.name)) do
          local want = row.ref(table.unpack(support.to_oracle(args), 1, args.n))
          local got = support.results(f, args)[1]
          assert.same(want.shape, got:shape(), "shape, variant " .. i)
          near.near(got, want.data, row.tol or 1e-9)
        end
      end)
    end
  end
end)

describe("whole numbers give what floats give in", function()
  local count = 0
  for _, info in ipairs(support.public()) do
    local row = row_of(info)
    if row and not info.flags.seeded then
      it(info.name, function()
        local f = support.func(info.name)
        local function whole(args, dtype)
          return support.map(args, function(t)
            if not t:is_floating_point() then return t end
            return (t * 3):round():to(dtype)
          end)
        end
        local calls = support.arguments(info.name)
        for _, o in ipairs { { alpha = 3 }, { beta = 2 }, { alpha = 3, beta = 2 } } do -- factors of products
          local args = table.move(calls[1], 1, calls[1].n, 1, { n = calls[1].n + 1 })
          args[args.n] = o
          if type(args[args.n - 1]) == "userdata" then calls[#calls + 1] = args end
        end
        for i, args in ipairs(calls) do
          local given, fraction = false, false -- of a factor's fraction only the whole part counts
          support.map(args, function(t) given = given or t:is_floating_point() end)
          local o = args[args.n]
          for _, v in pairs(type(o) == "table" and o or {}) do
            fraction = fraction or type(v) == "number" and v % 1 ~= 0
          end
          local fine, floats = pcall(support.results, f, whole(args, "f64"))
          local ok, ints = pcall(support.results, f, whole(args, "i64"))
          for k = 1, given and not fraction and fine and ok and #floats or 0 do
            local a, b = floats[k], ints[k]
            if support.is_tensor(a) and support.is_tensor(b) and b:dtype() == "i64" and a:dtype() == "f64"
              and a:isfinite():all():item() and T.equal(a, a:round()) then
              count = count + 1
              assert.same(a:shape(), b:shape(), "variant " .. i)
              assert.is_true(T.equal(a, b:to("f64")), ("variant %d, result %d"):format(i, k))
            end
          end
        end
      end)
    end
  end
  it("more than 200 results", function() assert.is_true(count > 200, count .. " results") end)
end)

-- A library on a GPU chooses its way by strides: sums in another order.
local TOLERANCE = { f64 = 1e-12, f32 = 1e-4, f16 = 2e-2, bf16 = 1e-1 }
local function alike(info, a, b)
  if os.getenv "PERILUNE_TEST_DEVICE" and info.class == "heavy" and TOLERANCE[a:dtype()] then
    assert.equal(a:dtype(), b:dtype())
    assert.same(a:shape(), b:shape())
    near.near(a, b, TOLERANCE[a:dtype()])
  else near.same_bits(a, b) end
end

describe("layouts of", function()
  for _, info in ipairs(support.public()) do
    local row = row_of(info)
    if row and not info.flags.seeded and not row.one_layout then
      it(info.name, function()
        local f = support.func(info.name)
        for _, args in ipairs(support.arguments(info.name)) do
          for _, kind in ipairs(random.LAYOUTS) do
            local same = row.regular and kind == "expand"
            local other = support.map(args, function(t) return not same and random.layout(T, t, kind) or t end)
            local plain = support.map(other, function(t) return t:contiguous() end)
            local a, b = support.results(f, plain), support.results(f, other)
            assert.equal(#a, #b)
            for i = 1, #a do
              if support.is_tensor(a[i]) then alike(info, a[i], b[i]) end
            end
          end
        end
      end)
    end
  end
end)

describe("in place", function()
  for _, info in ipairs(support.public()) do
    local row = row_of(info)
    if row and info.flags.inplace and info.nin > 0 then
      it(info.name .. "_", function()
        local args = support.arguments(info.name)[1]
        local want = support.results(support.func(info.name), args)[1]
        local copy = table.move(args, 1, args.n, 1, {})
        copy[1] = args[1]:clone()
        local method = copy[1][info.name .. "_"]
        assert.is_function(method)
        if want:dtype() == copy[1]:dtype() then
          local got = method(table.unpack(copy, 1, args.n))
          assert.equal(copy[1], got)
          near.same_bits(got, want)
        else
          -- a result of another kind (a comparison) is cast to the tensor's dtype, or refused with a text
          local ok, err = pcall(method, table.unpack(copy, 1, args.n))
          if ok then near.near(copy[1], oracle.from(want).data) else assert.is_string(err) end
        end
      end)
    end
  end
end)

describe("empty and 0-d inputs of", function()
  for _, info in ipairs(support.public()) do
    if row_of(info) then
      it(info.name, function()
        local f = support.func(info.name)
        for _, args in ipairs(support.arguments(info.name)) do
          for _, shape in ipairs { { 0 }, {}, { 0, 3 }, { 2, 0 }, { 1, 0, 4, 4 } } do
            for mask = 1, 3 do -- the first input, the others, all
              local k = 0
              local odd = support.map(args, function(t)
                k = k + 1
                local change = mask == 3 or (mask == 1) == (k == 1)
                return change and T.zeros(shape, { dtype = t:dtype() }) or t
              end)
              local ok, err = pcall(f, table.unpack(odd, 1, odd.n))
              if not ok then assert.is_string(err) end
            end
          end
        end
      end)
    end
  end
end)
