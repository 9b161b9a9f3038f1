-- SPDX-License-Identifier: MIT
-- What functions have around them (docs/design/jit.md, symbolic-sizes.md): a closure that a traced function hands to
-- T.vmap, T.grad and their like is run again for other sizes, so what it keeps and reads there must not change a
-- number; and a function that another one stands for is guarded like one that is called itself.

local T = require "perilune"

local function same(want, got, what)
  assert.equal(type(want), type(got), what)
  if not T.is_tensor(want) then return assert.equal(want, got, what) end
  assert.same(want:shape(), got:shape(), what)
  assert.is_true(want:numel() == 0 or want:eq(got):all():item(), what)
end

-- f and T.jit(f), one call of each a step: before(step) → arguments
local function compare(what, f, steps, before)
  local j = T.jit(f, { max_traces = 30 })
  for step = 1, steps do
    local args = table.pack(before(step))
    local want, got = table.pack(f(table.unpack(args))), table.pack(j(table.unpack(args)))
    assert.equal(want.n, got.n, what)
    for i = 1, want.n do same(want[i], got[i], ("%s, step %d, result %d"):format(what, step, i)) end
  end
  return j
end

-- Each runs a closure of one tensor, x or rows of it, and gives a tensor of x's shape.
local runs = {
  vmap = function(x, g) return T.vmap(g)(x) end,
  ["vmap in pieces"] = function(x, g) return T.vmap(g, { chunk_size = 2 })(x) end,
  grad = function(x, g) return (T.grad(function(r) return g(r):sum() end, x)) end,
  ["value and grad"] = function(x, g) return select(2, T.value_and_grad(function(r) return g(r):sum() end, x)) end,
  ["vmap of grad"] = function(x, g) return T.vmap(T.grad(function(r) return g(r):sum() end))(x) end,
  checkpoint = function(x, g) return T.checkpoint(g, x) end,
  ["checkpoint that saves"] = function(x, g) return T.checkpoint({ g, save = { "mul" } }, x) end,
  autocast = function(x, g) return T.autocast("bf16", g, x) end,
  ["no grad"] = function(x, g) return T.no_grad(g, x) end,
  itself = function(x, g) return g(x) end,
}

-- Each lets something pass between a closure and what is around it other than by arguments and results.
local leaks = {
  ["sets a local"] = function(x, run)
    local n
    local y = run(x, function(r) n = r:size(1) return r * 2 end)
    return y * n
  end,
  ["sets a field"] = function(x, run)
    local seen = {}
    local y = run(x, function(r) seen.n = r:numel() return r * 2 end)
    return y * seen.n
  end,
  ["fills a list"] = function(x, run)
    local list = {}
    local y = run(x, function(r) list[#list + 1] = r:size(-1) list[#list + 1] = #r return r * 2 end)
    return y * list[#list]
  end,
  ["sets by another function"] = function(x, run)
    local n = 1
    local function set(v) n = v end
    local y = run(x, function(r) set(r:size(1)) return r * 2 end)
    return y * n
  end,
  ["sets by a metamethod"] = function(x, run)
    local n = 1
    local seen = setmetatable({}, { __newindex = function(_, _, v) n = v end })
    local y = run(x, function(r) seen.n = r:size(1) return r * 2 end)
    return y * n
  end,
  ["sets a metatable"] = function(x, run)
    local o = {}
    local y = run(x, function(r) setmetatable(o, { __index = { n = r:size(1) } }) return r * 2 end)
    return y * o.n
  end,
  ["reads a local that changes"] = function(x, run)
    local k = 2
    local function g(r) return r * k end
    local y = run(x, g)
    k = 3
    return y, run(x, g)
  end,
  ["reads a field that changes"] = function(x, run)
    local by = { k = 2 }
    local y = run(x, function(r) return r * by.k end)
    by.k = 3
    return y
  end,
  ["counts calls"] = function(x, run)
    local k = 0
    local function g(r) k = k + 1 return r * k end
    return run(x, g), run(x, g)
  end,
  ["resumes a coroutine"] = function(x, run)
    local co = coroutine.wrap(function() for i = 1, 100 do coroutine.yield(i) end end)
    return run(x, function(r) return r * co() end)
  end,
  ["looks at another tensor"] = function(x, run)
    local z = x * 2
    return run(x, function(r) return r * z:size(1) * #z * z:numel() end)
  end,
  ["reads another tensor"] = function(x, run)
    local z = x:mean()
    return run(x, function(r) return r * z end)
  end,
}

describe("a closure that is run again for other sizes", function()
  it("leaves and finds around it what it would", function()
    for how, run in pairs(runs) do
      for what, leak in pairs(leaks) do
        compare(what .. ", " .. how, function(x) return leak(x, run) end, 6,
          function(step) return T.randn(({ 4, 6, 3, 2, 4, 1 })[step], 3) end)
      end
    end
  end)

  it("is no reason for another trace where it keeps nothing", function()
    for how, run in pairs(runs) do
      local w = T.randn(3)
      local function f(x) return run(x, function(r) return r * w + 1 end) end
      local j = compare(how, f, 4, function(step) return T.randn(step + 2, 3) end)
      assert.equal(how == "vmap in pieces" and 2 or 1, j.ntraces, how) -- of more rows there are more pieces
    end
  end)
end)

-- Each makes of a closure another function, which calls it.
local stand = {
  vmap = function(g) return T.vmap(g) end,
  grad = function(g) return T.grad(function(x) return g(x):sum() end) end,
  value_and_grad = function(g) return T.value_and_grad(function(x) return g(x):sum() end) end,
  ["vmap of grad"] = function(g) return T.vmap(T.grad(function(x) return g(x):sum() end)) end,
  jacrev = T.jacrev and function(g) return T.jacrev(g) end,
  jit = function(g) return T.jit(g) end,
  ["vmap of jit"] = function(g) return T.vmap(T.jit(g)) end,
  ["jit of vmap"] = function(g) return T.jit(T.vmap(g)) end,
  ["an object"] = function(g) return T.vmap(setmetatable({}, { __call = function(_, x) return g(x) end })) end,
}

describe("a function that another one stands for", function()
  it("is guarded", function()
    for how, make in pairs(stand) do
      local k, by, list = 2, { far = { k = 1 } }, { 1 }
      local f = make(function(x) return x * k * by.far.k * #list end)
      for _, compiled in ipairs { f, function(x) return f(x) end } do
        k, by.far.k, list[2] = 2, 1, nil
        local j = T.jit(compiled, { max_traces = 30 })
        for step = 1, 8 do
          if step == 2 then k = 3 elseif step == 4 then by.far.k = 5 elseif step == 6 then list[2] = 7 end
          local x = T.randn(step % 3 + 2, 3)
          same((f(x)), (j(x)), ("%s, step %d"):format(how, step))
        end
      end
    end
  end)

  it("is of the class that it is of now", function()
    local function class(k)
      local C = { k = k }
      C.__index, C.__call, C.__len = C, function(_, x) return x * k end, function() return k end
      return C
    end
    local reads = {
      ["a field"] = function(x, o) return x * o.k end,
      ["a field, by another function"] = function(x, o) return x * (function(t) return t.k end)(o) end,
      ["a call"] = function(x, o) return o(x) end,
      ["a length"] = function(x, o) return x * #o end,
      ["itself"] = function(x, o) return x * getmetatable(o).k end,
    }
    for what, read in pairs(reads) do
      local o = setmetatable({}, class(1))
      local around = T.jit(function(x) return read(x, o) end, { max_traces = 30 })
      local given = T.jit(read, { max_traces = 30 })
      for step = 1, 6 do
        if step % 2 == 0 then setmetatable(o, class(step)) end
        local x = T.randn(step % 3 + 2)
        same(read(x, o), around(x), what .. " " .. step)
        same(read(x, o), given(x, o), what .. " " .. step)
      end
    end
  end)

  it("is a module in training or not", function()
    local net = T.nn.Sequential(T.nn.Linear(3, 3), T.nn.Dropout(0.5))
    local each = T.vmap(net, { randomness = "different" })
    local j = T.jit(each)
    for step = 1, 6 do
      if step % 2 == 0 then net:eval() else net:train() end
      local x = T.randn(step // 2 + 2, 3)
      T.manual_seed(3)
      local want = each(x)
      T.manual_seed(3)
      same(want:detach(), j(x):detach(), "step " .. step)
    end
  end)
end)

describe("a parameter that is frozen meanwhile", function()
  it("gets no gradient, whether it had one or not, and whatever the size", function()
    local function make()
      T.manual_seed(2)
      local a, b = T.nn.Linear(3, 3), T.nn.Linear(3, 2)
      return a, function(x)
        a:zero_grad()
        b:zero_grad()
        local loss = b(a(x):tanh()):sum()
        loss:backward()
        return loss:detach(), a.weight.grad or 0, a.bias.grad or 0, b.weight.grad:clone()
      end
    end
    local plain, f = make()
    local traced, g = make()
    local j = T.jit(g, { max_traces = 30 })
    for step = 1, 12 do
      for _, net in ipairs { plain, traced } do
        net.weight:requires_grad_(step % 3 ~= 0)
        net.bias:requires_grad_(step % 4 > 1)
      end
      local x = T.randn(step % 5 + 1, 3)
      local want, got = table.pack(f(x)), table.pack(j(x))
      for i = 1, want.n do same(want[i], got[i], ("step %d, result %d"):format(step, i)) end
    end
    assert.is_true(j.ntraces <= 4)
  end)
end)

describe("a range that holds nothing", function()
  it("is out of range where it is as written", function()
    local function f(x) return x[{ { 6, 5 } }]:sum() end
    local j = T.jit(f, { max_traces = 20 })
    for _, n in ipairs { 5, 7, 4, 3, 5, 6 } do
      local x = T.ones(n, 2)
      assert.equal((pcall(f, x)), (pcall(j, x)), n)
    end
  end)
end)
