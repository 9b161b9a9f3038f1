-- SPDX-License-Identifier: MIT
-- Strides where sizes of 0 and 1 leave them open: of views and copies they are PyTorch's (spec/golden/strides.lua), and
-- those that a compiled function gives are those of the function. Every op is asked for the latter, on operands that
-- lie in memory in several ways, and whether what is written into its results reaches its operands.

local T = require "perilune"
local support = require "spec.ops.support"
local root = os.getenv "PERILUNE_ROOT" or "."
local golden = dofile(root .. "/spec/golden/strides.lua")

local function strides(x) return table.concat(x:stride(), ",") end
local function on_device() return T.zeros(1):device() ~= "cpu" end

-- PyTorch's own differ: a pointwise result has other strides for sizes of 1 where images could be channels last; the
-- copy of an empty tensor whose strides are 0 is row-major, or has strides of 0 itself.
local POINTWISE = { ["x:neg()"] = true, ["x * x"] = true, ["x:eq(x)"] = true, ["T.where(x:eq(x), x, x)"] = true }
local function open_there(text, sizes)
  return POINTWISE[text] and #sizes == 4 or text:find ":clone" and math.min(table.unpack(sizes)) == 0
end

local function tensor(sizes, lie)
  local n = 1
  for d, s in ipairs(sizes) do n = n + (s - 1) * lie[d] end
  return T.zeros(math.max(n, 1)):as_strided(sizes, lie)
end

local calls = {}
for k, text in ipairs(golden.calls) do calls[k] = assert(load("local T, x = ... return " .. text)) end

-- The tensor in several orders of memory, with gaps, and with strides that sizes of 1 leave open.
local LIES = {
  function(x) return x end,
  function(x)
    local order = {}
    for d = 1, x:dim() do order[d] = x:dim() + 1 - d end
    return x:permute(order):contiguous():permute(order)
  end,
  function(x) return x:dim() == 0 and x or T.cat({ x, x }, -1):narrow(-1, 1, x:size(-1)) end,
  function(x)
    local lie = x:stride()
    for d, n in ipairs(x:shape()) do lie[d] = n == 1 and 77 or lie[d] end
    return x:dim() == 0 and x or x:as_strided(x:shape(), lie)
  end,
  function(x) return x:dim() > 1 and x:size(1) > 0 and x:narrow(1, 1, 1):expand_as(x) or x end,
}

describe("strides that sizes of 0 and 1 leave open", function()
  for k, text in ipairs(golden.calls) do
    it("of " .. text .. " are PyTorch's", function()
      if on_device() then return end
      local told = T.jit(function(x)
        local y = calls[k](T, x)
        return y, strides(y), y:is_contiguous()
      end, { max_traces = 1000 })
      local plain = T.jit(function(x) return (calls[k](T, x)) end, { max_traces = 1000 })
      for _, case in ipairs(golden) do
        local x = tensor(case[1], case[2])
        assert.equal(table.concat(case[2], ","), strides(x))
        local what = ("%s of sizes %s, strides %s"):format(text, table.concat(case[1], ","), strides(x))
        local want = table.concat(case[2 + k], ",")
        local y = calls[k](T, x)
        if open_there(text, case[1]) then want = strides(y) end
        assert.equal(want, strides(y), what)
        for _ = 1, 2 do
          local z, said, dense = told(x)
          assert.equal(want, strides(z), what .. ", compiled")
          assert.equal(want, said, what .. ", inside")
          assert.equal(y:is_contiguous(), dense, what .. ", inside")
          assert.equal(want, strides(plain(x)), what .. ", compiled, not asked inside")
        end
      end
    end)
  end
end)

-- Writes 7 into all results, and says what is in the operands then.
local function reached(results, operands)
  T.no_grad(function()
    for _, y in ipairs(results) do
      local repeats = false
      for d, n in ipairs(y:shape()) do repeats = repeats or n > 1 and y:stride(d) == 0 end
      if support.is_tensor(y) and not repeats then pcall(y.fill_, y, 1) end
    end
  end)
  local text = {}
  support.map(operands, function(x) text[#text + 1] = tostring(x) end)
  return table.concat(text, "\n")
end

describe("a compiled op", function()
  local asked = 0
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and not info.flags.mutates then
      it(info.name .. " gives the strides of the op, in the same memory", function()
        if on_device() then return end
        local f = support.raw(info.name)
        for number, args in ipairs { table.unpack(support.arguments(info.name), 1, 2) } do
          for lie, how in ipairs(LIES) do
            local changes = lie == 1
            support.map(args, function(x) changes = changes or strides(how(x)) ~= strides(x) end)
            local function run(g)
              T.manual_seed(1)
              local given = support.map(args, function(x) return how(x:clone()) end)
              local res = table.pack(pcall(g, table.unpack(given, 1, given.n)))
              if not res[1] then return nil end
              local list = {}
              support.map({ n = res.n - 1, table.unpack(res, 2, res.n) }, function(y) list[#list + 1] = y end)
              return list, given
            end
            local want, operands, got, others
            if changes then want, operands = run(f) end
            if want then got, others = run(T.jit(f)) end
            if want and got then
              local what = ("%s, case %d, layout %d"):format(info.name, number, lie)
              for i, y in ipairs(want) do
                assert.equal(strides(y), strides(got[i]), what)
                assert.equal(y:is_contiguous(), got[i]:is_contiguous(), what)
              end
              if not info.flags.seeded then
                assert.equal(reached(want, operands), reached(got, others), what .. ": written")
              end
              asked = asked + 1
            end
          end
        end
      end)
    end
  end
  it("is asked, whatever it is", function() assert.is_true(on_device() or asked > 700, asked .. " calls") end)

  it("x.mT is a view with the last two dims exchanged", function()
    local x = T.arange(24):view(2, 3, 4):double():requires_grad_()
    assert.is_true(x.mT:equal(x:transpose(-2, -1)) and x[1].mT:equal(x[1]:t()))
    local w = T.arange(24):view(2, 4, 3):double();
    (x.mT * w):sum():backward()
    assert.is_true(x.grad:equal(w.mT))
    assert.error_matches(function() return T.ones(3).mT end, "mT: a tensor of 2 or more dims is wanted, got f32%[3%]")
    x.grad = nil
    x:detach().mT:fill_(7)
    assert.is_true(x:eq(7):all():item())
  end)
end)

-- A view of other sizes is possible where the places of its elements, in row-major order, are sums of strides. Said by
-- the places themselves: of numbers that say where in memory they lie, all differences along a dimension are the same.
local function strides_by_places(places, sizes)
  local out, step = {}, 1
  for d = #sizes, 1, -1 do
    out[d] = sizes[d] > 1 and places[1 + step] - places[1] or 0
    step = step * sizes[d]
  end
  for i = 0, #places - 1 do
    local rest, want = i, places[1]
    for d = #sizes, 1, -1 do
      want, rest = want + rest % sizes[d] * out[d], rest // sizes[d]
    end
    if places[i + 1] ~= want then return nil end
  end
  return out
end

describe("a view", function()
  it("is taken where strides allow it, and refused elsewhere: reshape copies there", function()
    local random = require("spec.support.random").new(5)
    local function pick(n) return random:int(1, n) end
    local taken, refused = 0, 0
    for _ = 1, 300 do
      local sizes = {}
      for d = 1, pick(4) do sizes[d] = ({ 1, 2, 3, 4, 6 })[pick(5)] end
      local n = 1
      for _, size in ipairs(sizes) do n = n * size end
      local x = T.arange(0, 2 * n - 1, 1, { dtype = "i64" }):view(2 * n)
      x = (pick(3) == 1 and x:as_strided({ n }, { 2 }) or x:narrow(1, 1, n)):view(sizes)
      if pick(2) == 1 then x = x:transpose(pick(#sizes), pick(#sizes)) end
      if pick(3) == 1 then x = x:narrow(pick(#sizes), 1, 1) end
      if pick(4) == 1 then x = x:unsqueeze(1):expand(2, table.unpack(x:shape())) end
      local left, to = x:numel(), {}
      while left > 1 do -- a factorization, with ones in between
        local f = ({ 2, 3, 4, 6, 1, left })[pick(6)]
        if left % f == 0 then
          to[#to + 1], left = f, left // f
        end
      end
      if #to == 0 then to[1] = 1 end
      local places = x:contiguous():view(-1):totable()
      local wanted = strides_by_places(places, to)
      local ok, y = pcall(x.view, x, to)
      local z = x:reshape(to)
      local text = x:brief() .. " " .. strides(x) .. " as " .. table.concat(to, ",")
      assert.same(places, z:contiguous():view(-1):totable(), text)
      assert.same(to, z:shape(), text)
      assert.equal(wanted ~= nil, ok, text .. (ok and "" or ": " .. tostring(y)))
      assert.equal(ok, z:shares_storage(x), text)
      if ok then
        taken = taken + 1
        for d, stride in ipairs(y:stride()) do
          if to[d] > 1 then assert.equal(wanted[d], stride, text) end
        end
      else
        refused = refused + 1
        assert.truthy(y:find("needs a copy; use reshape, or contiguous() before", 1, true), y)
      end
    end
    assert.is_true(taken > 50 and refused > 50, taken .. " " .. refused)
  end)
end)
