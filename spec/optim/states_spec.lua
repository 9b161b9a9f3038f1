-- SPDX-License-Identifier: MIT
-- state_dtype: states of optimizers in bf16, rounded by chance, and in 8 bits, block by block. The codes against a
-- table made as in the paper, means that keep moving, sizes, layouts, threads, files, refusals.

local T = require "perilune"
local child = require "spec.support.child"
local near = require "spec.support.near"
local optim, nn = T.optim, T.nn
local fails = near.fails

local function wave(n, k)
  return ((T.arange(0, n - 1):to("f64") * 37 + k * 61 + 11):remainder(97) - 47.5):div(32):to "f32"
end

-- Dettmers' dynamic map: seven decades, cut evenly, the upper ones finer; the centres of the parts, 0 and 1.
local function code_book(signed)
  local out = { 0.0, 1.0 }
  for i = 0, 6 do
    local parts = signed and 2 ^ i or 2 ^ (i + 1)
    for k = 0, parts - 1 do
      local low, high = 0.1 + 0.9 * k / parts, 0.1 + 0.9 * (k + 1) / parts
      out[#out + 1] = 10.0 ^ (i - 6) * (low + high) / 2
      if signed then out[#out + 1] = -out[#out] end
    end
  end
  table.sort(out)
  return out
end

-- The nearest entry of the book, by halving.
local function nearest(book, v)
  local lo, hi = 1, #book
  while hi - lo > 1 do
    local mid = (lo + hi) // 2
    if book[mid] <= v then lo = mid else hi = mid end
  end
  return v - book[lo] < book[hi] - v and book[lo] or book[hi]
end

-- What a program prints is the same at each processor level, of those that there are.
local function alike(text)
  local want = child("PERILUNE_ISA=v2", text)
  assert.is_true(#want > 100000)
  for _, level in ipairs { "v3", "v4" } do assert.is_true(want == child("PERILUNE_ISA=" .. level, text), level) end
end

describe("a step of Adam", function()
  -- v2 divides by the root of 1 - beta2^t, levels with fused multiplication make the quotient without a division.
  it("has the same bits at each processor level", function()
    alike [[
      local T = require "perilune"
      for _, dtype in ipairs { "f32", "f64" } do
        for _, beta2 in ipairs { 0.999, 0.95, 0.0, 1 - 2.0 ^ -20, 1 - 2.0 ^ -53 } do
          local n, given = 3000, {}
          local p = T.zeros(n, { dtype = dtype }):requires_grad_()
          local opt = T.optim.AdamW({ p }, { lr = 0.01, betas = { 0.9, beta2 }, amsgrad = beta2 == 0.95 })
          for step = 1, 4 do
            for i = 1, n do
              given[i] = (i * 7919 % 3001 - 1500.5) / 1501.5 * 2.0 ^ -(i * step % (dtype == "f32" and 150 or 1070))
            end
            given[5], given[6], given[7], given[8] = 0, 1 / 0, 0 / 0, dtype == "f32" and 3e38 or 1e308
            p.grad = T.tensor(given, { dtype = dtype })
            opt:step()
          end
          local v = p:detach():tolist()
          for i, x in ipairs(v) do v[i] = x == x and ("%a"):format(x) or "nan" end
          print(table.concat(v, " "))
        end
      end]]
  end)
end)

describe("a state in 8 bits", function()
  -- SGD's buffer takes the first gradient as it is, and moves the parameter by what it takes: lr = 1, so the second
  -- step with a gradient of 0 and momentum 1 shows what was kept.
  it("keeps the nearest of its codes", function()
    T.manual_seed(5)
    for _, n in ipairs { 4096, 5000, 4096 + 255 } do
      for kind = 1, 3 do
        local g = T.randn(n)
        if kind == 2 then g = g * T.pow(10.0, T.rand(n) * -8) end -- all decades, and below
        if kind == 3 then g = wave(n, 3) end
        local p = T.zeros(n):requires_grad_()
        local opt = optim.SGD({ p }, { lr = 1.0, momentum = 1.0, state_dtype = "i8" })
        p.grad = g
        opt:step()
        p:detach():fill_(0)
        p.grad = T.zeros(n)
        opt:step()
        local got, given, book = (-p:detach()):tolist(), g:tolist(), code_book(true)
        assert.equal(256, #book)
        for first = 1, n, 256 do
          local most = 0
          for i = first, math.min(n, first + 255) do most = math.max(most, math.abs(given[i])) end
          for i = first, math.min(n, first + 255) do
            local want = nearest(book, given[i] / most) * most
            local best, now = math.abs(want - given[i]), math.abs(got[i] - given[i])
            assert(now <= best * (1 + 1e-3) + 1e-6 * most,
              ("element %d of %d: %g became %g, not %g"):format(i, n, given[i], got[i], want))
          end
        end
      end
    end
  end)

  it("without a sign has twice as many", function()
    local n = 8192
    local g = T.rand(n) * T.pow(10.0, T.rand(n) * -3)
    local p = T.zeros(n):requires_grad_()
    -- v = g^2 after a step with alpha = 0; the next step keeps it (alpha = 1) and moves by 1 / sqrt(v)
    local opt = optim.RMSprop({ p }, { lr = 1.0, alpha = 0.0, eps = 0.0, state_dtype = "i8" })
    p.grad = g
    opt:step()
    assert.equal("u8", opt:state_dict().state[1].square_avg:dtype())
    opt.param_groups[1].alpha = 1.0
    p:detach():fill_(0)
    p.grad = T.ones(n)
    opt:step()
    local got, given, book = (-p:detach()):tolist(), (g * g):tolist(), code_book(false)
    assert.equal(256, #book)
    for first = 1, n, 256 do
      local most = 0
      for i = first, first + 255 do most = math.max(most, given[i]) end
      for i = first, first + 255 do
        local want, kept = nearest(book, given[i] / most) * most, 1 / got[i] ^ 2
        assert(math.abs(kept - given[i]) <= math.abs(want - given[i]) * (1 + 1e-3) + 1e-5 * given[i],
          ("element %d: %g became %g, not %g"):format(i, given[i], kept, want))
      end
    end
  end)

  it("takes a byte an element and a sixty-fourth, and f32 where a parameter is small", function()
    local big, small = T.ones(1000, 100):requires_grad_(), T.ones(50):requires_grad_()
    local opt = optim.AdamW8bit({ big, small })
    big.grad, small.grad = T.ones(1000, 100), T.ones(50)
    opt:step()
    local state = opt:state_dict().state
    assert.same({ 391, 260 }, state[1].exp_avg:shape())
    assert.equal("i8", state[1].exp_avg:dtype())
    assert.equal("u8", state[1].exp_avg_sq:dtype())
    assert.equal("f32", state[2].exp_avg:dtype())
  end)

  -- Levels that have tables in registers, and those that compute: rows that end early, all decades, what is not finite.
  it("has the same codes and values at each processor level", function()
    local text = [[
      local T = require "perilune"
      for _, n in ipairs { 4096, 4097, 4103, 4351 } do
        local p = T.zeros(n):requires_grad_()
        local opt = T.optim.AdamW8bit({ p }, { lr = 0.5 })
        for step = 1, 3 do
          local given = {}
          for i = 1, n do given[i] = (i * 37 % 97 - 48.5) / 48.5 * 2.0 ^ -(i * step % 31) end
          p.grad = T.tensor(given):to "f32"
          p.grad[{ { 257, 512 } }]:mul_(1e-30)
          p.grad[{ { 600, 600 } }]:fill_(step == 2 and 0 / 0 or 1)
          p.grad[{ { 900, 900 } }]:fill_(step == 3 and 1 / 0 or -1)
          opt:step()
        end
        local state = opt:state_dict().state[1]
        local function row(v)
          for i, x in ipairs(v) do v[i] = x == x and ("%a"):format(x) or "nan" end
          return table.concat(v, " ")
        end
        print(row(p:detach():tolist()))
        for _, name in ipairs { "exp_avg", "exp_avg_sq" } do print(row(state[name]:flatten():tolist())) end
      end]]
    alike(text)
  end)

  it("is refused by a parameter of another size with as many rows of codes", function()
    for _, class in ipairs { "Adam8bit", "AdamW8bit" } do
      local function with(n)
        local p = T.ones(n):requires_grad_()
        local opt = optim[class]({ p })
        p.grad = T.ones(n)
        opt:step()
        return opt
      end
      local saved = with(4097):state_dict()
      assert.has_error(function() with(4200):load_state_dict(saved) end,
        "optim." .. class .. ":load_state_dict: the states of parameter 1 are of 4097 elements in 8 bits, the "
          .. "parameter has 4200")
      local again = with(4097)
      again:load_state_dict(saved)
      assert.is_true(again:state_dict().state[1].exp_avg:equal(saved.state[1].exp_avg))
      saved.state[1].elements = nil -- as older versions wrote it
      again:load_state_dict(saved)
      assert.equal(4097, again:state_dict().state[1].elements)
    end
  end)

  it("says when it is not a number any more, by all that shares its block", function()
    local p = T.zeros(4096):requires_grad_()
    local opt = optim.Adam8bit({ p }, { lr = 0.1 })
    p.grad = T.ones(4096)
    p.grad[{ { 300, 300 } }]:fill_(0 / 0)
    opt:step()
    p.grad = T.ones(4096)
    opt:step()
    local nan = p:detach():isnan()
    assert.equal(256, nan:sum():item())
    assert.is_true(nan:to("i64")[{ { 257, 512 } }]:sum():item() == 256)
  end)
end)

describe("a state in bf16", function()
  -- Rows of a wider matrix go element by element, contiguous parameters through loops of their own: the same bits.
  it("has the bits that any layout has, at any place in the list, with infinities and NaN", function()
    local settings = { { optim.AdamW, {} }, { optim.Adam, { weight_decay = 0.1 } }, { optim.Adam, {} },
      { optim.Lion, {} },
      { optim.Lion, { weight_decay = 0.1, maximize = true } } }
    for k, one in ipairs(settings) do
      one[2].state_dtype = "bf16"
      local whole, rows = {}, {}
      for i, shape in ipairs { { 3, 7 }, { 2, 32 }, { 5, 33 }, { 130, 137 }, { 64, 8 } } do
        local x = T.randn(shape)
        whole[i] = x:clone():requires_grad_()
        rows[i] = T.cat({ x, x }, 2):narrow(2, 1, shape[2]):requires_grad_()
        assert.is_false(rows[i]:is_contiguous())
      end
      local a, b = one[1](whole, one[2]), one[1](rows, one[2])
      for step = 1, 3 do
        for i, p in ipairs(whole) do
          local g = T.randn(p:shape())
          if step == 2 and i > 2 then
            for at, v in ipairs { 0 / 0, 1 / 0, -1 / 0 } do g:view(-1)[at * 29] = v end
          end
          p.grad, rows[i].grad = g, g:clone()
        end
        a:step()
        b:step()
      end
      for i, p in ipairs(whole) do
        local function same(x, y) return x:eq(y):logical_or(T.isnan(x):logical_and(T.isnan(y))):all():item() end
        assert.is_true(same(p, rows[i]), k .. " " .. i)
        for key, state in pairs(a.state[p]) do
          if T.is_tensor(state) then assert.is_true(same(state, b.state[rows[i]][key]), k .. key .. i) end
        end
      end
    end
  end)

  it("keeps moving where a step is less than half a unit", function()
    -- v falls by 0.1 % a step; to the nearest of 8 bits it would stay where it began for ever.
    local n = 4096
    local p = T.zeros(n):requires_grad_()
    local opt = optim.Adam({ p }, { lr = 0.0, betas = { 0.9, 0.999 }, state_dtype = "bf16" })
    p.grad = T.full({ n }, 8.0)
    for _ = 1, 2 do opt:step() end
    local first = opt:state_dict().state[1].exp_avg_sq:to("f64"):mean():item()
    p.grad = T.zeros(n)
    for _ = 1, 2000 do opt:step() end
    local last = opt:state_dict().state[1].exp_avg_sq:to("f64")
    assert.near(0.999 ^ 2000, last:mean():item() / first, 0.01)
    assert.is_true(last:std():item() > 0)
  end)

  it("rounds up as often as it should", function()
    local n, x = 100000, 1 + 3 / 1024 -- of 128 parts between 1 and 2: 0.375 of the way
    local p = T.zeros(n):requires_grad_()
    local opt = optim.SGD({ p }, { lr = 0.0, momentum = 0.5, state_dtype = "bf16" })
    p.grad = T.full({ n }, x)
    opt:step()
    local kept = opt:state_dict().state[1].momentum_buffer:to "f64"
    assert.near(x, kept:mean():item(), 4 * 0.0078 * 0.5 / math.sqrt(n))
    assert.near(0.375, kept:gt(1):to("f64"):mean():item(), 0.01)
  end)
end)

local names = { "SGD", "Adam", "AdamW", "RMSprop", "Adamax", "NAdam", "RAdam", "Lion", "LAMB", "AdamWScheduleFree",
  "Prodigy" }

local function options(name, dtype)
  local o = { state_dtype = dtype }
  if name ~= "Prodigy" then o.lr = 0.01 else o.d0 = 1e-3 end
  if name == "SGD" or name == "RMSprop" then o.momentum = 0.9 end
  return o
end

-- How the parameters are laid out must not matter: `strided` stores a matrix by columns.
local function stepped(name, dtype, strided, steps, break_at)
  local shapes, params = { { 64, 100 }, { 7 }, { 5001 } }, {}
  for j, shape in ipairs(shapes) do
    local x = wave(#shape == 2 and 6400 or shape[1], j):view(shape)
    if strided and #shape == 2 then x = x:t():contiguous():t() end
    params[j] = x:requires_grad_()
  end
  local opt = optim[name](params, options(name, dtype))
  for t = 1, steps or 4 do
    if t == break_at then
      local path = os.tmpname()
      assert(T.save(path, opt:state_dict()))
      opt = optim[name](params, options(name, nil))
      opt:load_state_dict((assert(T.load(path))))
      os.remove(path)
      assert.equal(dtype, opt.param_groups[1].state_dtype)
    end
    for j, p in ipairs(params) do
      p.grad = wave(p:numel(), 10 * t + j):view(shapes[j]) + p:detach() * 0.5
    end
    opt:step()
  end
  for j, p in ipairs(params) do params[j] = p:detach():contiguous() end
  return params, opt
end

describe("states in fewer bits", function()
  for _, name in ipairs(names) do
    it("of " .. name .. " are near those in f32, alike in every layout and on all threads, and go on from a file",
      function()
        local plain = stepped(name, false)
        local before = T.get_num_threads()
        for dtype, bound in pairs { f32 = 0, bf16 = 4e-3, i8 = 1e-2 } do
          local got = stepped(name, dtype)
          local bound_here = name == "Lion" and dtype ~= "f32" and 0.081 or name == "SGD" and 2 * bound or bound
          for j, p in ipairs(got) do
            local far = (p - plain[j]):abs():max():item()
            assert(far <= bound_here, ("%s, parameter %d: off by %g"):format(dtype, j, far))
          end
          for n = 1, 4 do
            T.set_num_threads(n)
            for j, p in ipairs(stepped(name, dtype, n % 2 == 0)) do near.same_bits(p, got[j]) end
          end
          T.set_num_threads(before)
          for j, p in ipairs(stepped(name, dtype, false, 4, 3)) do near.same_bits(p, got[j]) end
        end
      end)
  end

  it("of half-precision parameters may have more", function()
    local p = T.ones({ 100 }, { dtype = "bf16" }):requires_grad_()
    local opt = optim.AdamW({ p }, { state_dtype = "f32" })
    p.grad = T.ones({ 100 }, { dtype = "bf16" })
    opt:step()
    assert.equal("f32", opt:state_dict().state[1].exp_avg_sq:dtype())
  end)

  it("stay what they are when the net changes its dtype", function()
    local net = nn.Linear(100, 100)
    local opt = optim.AdamW(net:parameters(), { state_dtype = "i8" })
    local function step()
      net(T.ones({ 1, 100 }, { dtype = net.weight:dtype() })):sum():backward()
      opt:step()
      opt:zero_grad()
    end
    step()
    net:to "bf16"
    step()
    assert.equal("i8", opt:state_dict().state[1].exp_avg:dtype())
    assert.equal("f32", opt:state_dict().state[2].exp_avg:dtype())
  end)

  it("are what a loaded state says, also one that says nothing", function()
    local p = T.ones(5000):requires_grad_()
    local old = optim.AdamW({ p })
    p.grad = T.ones(5000)
    old:step()
    local saved = old:state_dict()
    saved.param_groups[1].state_dtype = nil -- of another program
    local opt = optim.AdamW8bit { p }
    opt:load_state_dict(saved)
    assert.is_false(opt.param_groups[1].state_dtype)
    opt:step()
    assert.equal("f32", opt:state_dict().state[1].exp_avg:dtype())
  end)

  it("are in the dtype of the parameters that load them, of all optimizers", function()
    local function made(make, dtype)
      local p = T.nn.Parameter(T.linspace(-1, 1, 64):reshape(8, 8):to(dtype))
      local opt = make { p }
      p.grad = T.linspace(1, 2, 64):reshape(8, 8):to(dtype)
      opt:step()
      return opt, p
    end
    local function dtypes(opt)
      local list = {}
      for key, v in pairs(opt:state_dict().state[1] or {}) do list[key] = T.is_tensor(v) and v:dtype() or nil end
      return list
    end
    local count = 0
    for name, make in pairs(optim) do
      if type(make) == "table" and make.settings and name ~= "LBFGS" then
        count = count + 1
        for _, from in ipairs { "f64", "f32", "bf16" } do
          local saved = made(make, from):state_dict()
          for _, to in ipairs { "f64", "f32", "bf16" } do
            local opt, p = made(make, to)
            local want = dtypes(opt)
            opt:load_state_dict(saved)
            assert.same(want, dtypes(opt), name .. " from " .. from .. " to " .. to)
            p.grad = T.ones(8, 8, { dtype = to })
            opt:step()
          end
        end
      end
    end
    assert.is_true(count > 20)
  end)

  it("are refused where they cannot be", function()
    local p = T.ones(5000):requires_grad_()
    fails([[state_dtype must be "f32", "bf16", "i8" or false, got "f16"]], optim.AdamW, { p }, { state_dtype = "f16" })
    fails([[state_dtype must be "f32", "bf16" or false, got "i8"]], optim.Adagrad, { p }, { state_dtype = "i8" })
    fails("unknown option 'state_dtype'", optim.Rprop, { p }, { state_dtype = "bf16" })
    fails("centered needs", optim.RMSprop, { p }, { centered = true, state_dtype = "bf16" })
    local opt = optim.AdamW8bit { p }
    p.grad = T.ones(5000)
    opt:step()
    local saved = opt:state_dict()
    local q = T.ones(6000):requires_grad_()
    fails("of 5000 elements in 8 bits, the parameter has 6000", function()
      optim.AdamW8bit({ q }):load_state_dict(saved)
    end)
    local step = T.core.op.adam_step
    local wrong = T.zeros({ 19, 260 }, { dtype = "i8" })
    fails("a state in 8 bits, is i8[19,260], but its parameter f32[5000] needs a contiguous [20, 260]", step,
      { p:detach(), p.grad, wrong, T.zeros(5000) }, { k = 4, step = 1 })
    fails("adam_step", step, { p:detach(), wrong, T.zeros(5000), T.zeros(5000) }, { k = 4, step = 1 })
  end)
end)
