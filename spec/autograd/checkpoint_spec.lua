-- SPDX-License-Identifier: MIT
-- T.checkpoint and nn.checkpointed: the program that runs is the plain one, bit for bit, or it is refused by name.
local T = require "perilune"
local live = require "spec.support.live"
local nn = T.nn
local F = nn.F
local f64 = { dtype = "f64" }

local function leaf(...) return T.tensor({ ... }, f64):requires_grad_() end

local function fails(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert(not ok, "no error raised, should say: " .. pattern)
  assert(tostring(message):find(pattern), "should say: " .. pattern .. "\nsays: " .. tostring(message))
  return tostring(message)
end

local function same_bits(a, b, what)
  assert(a and b or a == b, (what or "") .. ": one of both is nil")
  if a and not (a:dtype() == b:dtype() and a:equal(b)) then
    error(("%s: %s is not %s"):format(what or "bits differ", tostring(a), tostring(b)), 2)
  end
end

local function plain(f, ...) return f(...) end

-- make() → a program and the list of its leaves. The program gets `through`, T.checkpoint or plain, and returns a
-- scalar.
local function compare(make)
  local function run(through)
    T.manual_seed(11)
    local program, leaves = make()
    local loss = program(through)
    T.randn(3) -- the generator has moved when the function runs again
    local state = T.get_rng_state()
    loss:backward()
    assert.equal(state, T.get_rng_state())
    local out = { loss:detach() }
    for i, w in ipairs(leaves) do out[i + 1] = w.grad or false end
    return out, leaves
  end
  local want, others = run(plain)
  local got, leaves = run(T.checkpoint)
  for i = 1, #want do same_bits(got[i] or nil, want[i] or nil, i == 1 and "loss" or "gradient " .. i - 1) end
  for i, w in ipairs(leaves) do same_bits(w:detach(), others[i]:detach(), "leaf " .. i) end
end

describe("a checkpoint in place", function()
  it("changes its argument once, and finds it again as it was", function()
    local x = leaf(3)
    local h = x * 1
    T.checkpoint(function(a)
      a:mul_(2)
      return a * a + a
    end, h):sum():backward()
    assert.equal(26, x.grad:item())
    assert.equal(6, h:item())
    assert.equal(1, h:version())
  end)

  it("gives the bits of the plain program", function()
    compare(function()
      local x, w = T.randn({ 4, 3 }, f64):requires_grad_(), T.randn({ 3 }, f64):requires_grad_()
      return function(through)
        local h = x * 2
        local y = through(function(a)
          a:mul_(w):sin_()
          a[2] = a[1] + 1
          return a:exp() * w, a
        end, h)
        return (y + h):sum()
      end, { x, w }
    end)
    compare(function() -- through views of what it gets
      local x = T.randn({ 4, 3 }, f64):requires_grad_()
      return function(through)
        local h = x * 2
        local y = through(function(a, b)
          b:mul_(3)
          a[3]:add_(b)
          return (a * a):sum()
        end, h, h[1])
        return y + (h * h):sum()
      end, { x }
    end)
  end)

  it("may take gradients of a tape outside, over which the backward goes that runs it again", function()
    for _, around in ipairs { T.checkpoint, plain } do
      compare(function()
        local x, w = T.randn({ 4, 3 }, f64):requires_grad_(), T.randn({ 3, 3 }, f64):requires_grad_()
        return function(through)
          local e = (around == plain and plain or through)(function(a) return a:mm(w):tanh() end, x):square():sum()
          local z = through(function()
            return T.grad_of(e, x, { create_graph = true }):pow(2) * e
          end)
          return z:sum() + e
        end, { x, w }
      end)
    end
  end)

  it("may stand first in a module", function()
    for _, make in ipairs {
      function() return nn.LeakyReLU(0.1, { inplace = true }) end,
      function() return nn.ReLU { inplace = true } end,
      function() return nn.Dropout { p = 0.5, inplace = true } end,
    } do
      compare(function()
        local net = nn.Sequential(make(), nn.Linear(3, 4), make(), nn.Linear(4, 2))
        local x = T.randn(5, 3):requires_grad_()
        local parameters = net:parameters()
        parameters[#parameters + 1] = x
        return function(through) return through(net, x * 2):square():sum() end, parameters
      end)
    end
  end)

  it("leaves what was changed later alone", function()
    local x = leaf(1, 2)
    local buffer = T.zeros({ 2 }, f64)
    local function f(a)
      T.no_grad(function() buffer:add_(a) end)
      return (a * buffer:clone()):exp()
    end
    local y = T.checkpoint(f, x) -- buffer 1 2
    local z = T.checkpoint(f, x) -- buffer 2 4
    buffer:add_(10);
    (y + z):sum():backward()
    same_bits(buffer, T.tensor({ 12, 14 }, f64))
    assert.equal(3, buffer:version())
    local e = math.exp
    local want = T.tensor({ e(1) + 2 * e(2), 2 * e(4) + 4 * e(8) }, f64)
    assert.is_true(x.grad:allclose(want, { rtol = 1e-12 }))
  end)

  it("refuses a new history for a tensor that is no argument", function()
    local x, h = leaf(1, 2), T.zeros({ 2 }, f64)
    fails("add_?: inside a checkpoint f64%[2%], a tensor from outside that is no argument.*pass it to", function()
      T.checkpoint(function(a)
        h:add_(a)
        return h * a
      end, x)
    end)
    same_bits(h, T.zeros({ 2 }, f64))
  end)

  it("lets its results be changed", function()
    compare(function()
      local x = T.randn({ 4 }, f64):requires_grad_()
      return function(through)
        local y = through(function(a) return a:sin() * a end, x)
        y:mul_(3)
        y[2] = 1
        return (y * y):sum()
      end, { x }
    end)
  end)
end)

describe("a checkpoint refuses, by name,", function()
  local function changed(what, pattern)
    local x, w = leaf(1, 2), leaf(3, 4)
    local c = T.tensor({ 5, 6 }, f64)
    local h = x * 1
    local y = T.checkpoint(function(a) return (a * w * c):exp() end, h)
    T.no_grad(function() ({ h = h, w = w, c = c })[what]:add_(1) end)
    fails(pattern, function() y:sum():backward() end)
    return h, w, c
  end
  it("a parameter, a buffer, an argument that has changed since", function()
    changed("w", "checkpoint: f64%[2%], which the function's mul reads, was modified in place after")
    changed("c", "checkpoint: f64%[2%], which the function's mul reads, was modified in place after")
    changed("h", "checkpoint: its argument 1, f64%[2%], which the function's mul reads, was modified in place after")
  end)

  it("what a field of a module has become", function()
    local net = nn.Linear(2, 2)
    local x = T.randn(1, 2):requires_grad_()
    local y = T.checkpoint(function(a) return net(a):exp() end, x)
    net.weight = nn.Parameter(net.weight:detach():clone())
    fails("linear reads f32%[2,2%], a tensor from outside that it did not read", function() y:sum():backward() end)
  end)

  -- f(a, turn) does something else in the second turn.
  local function second(pattern, f)
    local x, turn = leaf(1, 2), 0
    local y = T.checkpoint(function(a)
      turn = turn + 1
      return f(a, turn)
    end, x)
    if type(y) == "table" then y = y[1] end
    live.collect()
    local bytes = T.memory().live
    fails(pattern, function() y:sum():backward() end)
    assert.equal(2, turn)
    live.collect()
    assert.is_true(T.memory().live <= bytes)
    T.checkpoint(function(a) return a:exp() end, x):sum():backward() -- and works on
    same_bits(x.grad, x:exp():detach())
  end
  it("other operations", function()
    second("operation 1 is cos of f64%[2%], and there was sin", function(a, turn)
      return (turn == 1 and a:sin() or a:cos()):exp()
    end)
    second("ended before it had computed what backward of", function(a, turn)
      return turn == 1 and a:sin():exp() or a:sin()
    end)
  end)
  it("other numbers and options", function()
    second("mul of f64%[2%], and there it was called with other", function(a, turn) return (a * turn):exp() end)
    second("there it was called with other", function(a, turn)
      return (a * T.tensor({ turn, turn }, f64)):exp()
    end)
    second("there it was called with other", function(a, turn) return a:sin():reshape(turn, -1):exp() end)
  end)
  -- Where random numbers begin is the same again, so what they are made into has to be compared as well.
  it("other settings of whatever draws random numbers", function()
    local function noise(shape, fill) return function(a, v) return (a * fill(T.zeros(shape, f64), v)):exp() end end
    local ways = {
      dropout = function(a, v) return T.dropout(a, v / 4):exp() end,
      attention_dropout = function(a, v)
        local q = a:view(1, 1, 2, 1)
        return nn.F.scaled_dot_product_attention(q, q, q, { dropout_p = v / 4 }):exp()
      end,
      uniform = function(a, v) return nn.F.rrelu(-a, v / 4, 0.9, true):exp() end,
      normal = function(a, v) return (a * T.normal(0, v, { 2 })):exp() end,
      randint = function(a, v) return (a * T.randint(1, 5 * v, { 2 })):exp() end,
      randperm = function(a, v) return (a * T.randperm(2 * v):narrow(1, 1, 2)):exp() end,
      bernoulli = function(a, v) return (a * T.bernoulli(T.zeros({ 2 }, f64), v / 4)):exp() end,
      multinomial = function(a, v) return (a * T.multinomial(T.ones(4), 2 * v):narrow(1, 1, 2)):exp() end,
      uniform_fill = noise({ 2 }, function(t, v) return t:uniform_(0, v) end),
      normal_fill = noise({ 2 }, function(t, v) return t:normal_(0, v) end),
      exponential_fill = noise({ 2 }, function(t, v) return t:exponential_(v) end),
      randint_fill = noise({ 2 }, function(t, v) return t:random_(1, 9 * v) end),
      bernoulli_fill = noise({ 2 }, function(t, v) return t:bernoulli_(v / 4) end),
    }
    for _, op in ipairs(T.core.ops()) do
      if op.flags.seeded and #op.attrs > 0 then
        assert.truthy(ways[op.name], op.name .. " has no entry here")
        second("there it was called with other", ways[op.name])
      end
    end
    -- a compiled function whose trace is another one
    local by = 1
    local f, d = T.jit(function(a) return (a * by):sin() end), nn.Dropout(0.5)
    local g = T.jit(function(a) return d(a):sin() end)
    for turn = 1, 2 do -- traces have memory of their own
      by, d.p = turn, turn / 4
      for _, h in ipairs { f, g } do T.checkpoint(h, leaf(1, 2)):exp():sum():backward() end
    end
    second("there it was called with other", function(a, turn)
      by = turn
      return f(a):exp()
    end)
    second("there it was called with other", function(a, turn)
      d.p = turn / 4
      return g(a):exp()
    end)
  end)
  it("other tensors", function()
    local one, two = T.ones({ 2 }, f64), T.ones({ 2 }, f64)
    second("mul reads f64%[2%], a tensor from outside", function(a, turn)
      return (a * (turn == 1 and one or two)):exp()
    end)
    second("there it was called with other", function(a, turn)
      local b, c = a:sin(), a:sin()
      return (turn == 1 and b * c or c * b):exp()
    end)
    local kept
    second("from outside", function(a)
      kept = kept or a:sin()
      return (kept * 2):exp()
    end)
  end)
  it("another number or shape of results", function()
    second("returned f64%[2%] in forward, and f64%[2%], f64%[2%] when", function(a, turn)
      local b = a:exp()
      return turn == 1 and b or { b, b }
    end)
  end)
  it("a write that forward did not do", function()
    local out = T.zeros({ 2 }, f64)
    second("add reads f64%[2%], a tensor from outside that it did not read in forward", function(a, turn)
      if turn == 2 then out:add_(1) end
      return a:exp()
    end)
    same_bits(out, T.zeros({ 2 }, f64))
  end)

  it("a backward inside of it that needs what it drops", function()
    local x = leaf(1, 2)
    fails("whose function is running; inside of it use T.grad", function()
      T.checkpoint(function(a)
        local y = a:sin():exp()
        return T.grad_of(y:sum(), a, { create_graph = true })
      end, x)
    end)
  end)

  it("yields", function()
    local co = coroutine.wrap(function()
      T.checkpoint(function(a)
        coroutine.yield()
        return a * 2
      end, leaf(1))
    end)
    fails("yield", co)
    T.checkpoint(function(a) return a:exp() end, leaf(1)):sum():backward()
  end)
end)

describe("a checkpoint draws the numbers of forward", function()
  it("from the default generator and from others", function()
    local before, after
    compare(function()
      local g, other = T.Generator(3), T.Generator(4)
      local x = T.randn({ 6 }, f64):requires_grad_()
      T.rand({ 5 }, { generator = g })
      return function(through)
        local y = through(function(a)
          local b = (a * T.rand({ 6 }, { dtype = "f64", generator = g })):exp()
          b = F.dropout(b, 0.5, true) * other:run(T.rand, { 6 }, f64)
          return (b * T.rand({ 6 }, { dtype = "f64", generator = g })):sin()
        end, x)
        T.rand({ 2 }, { generator = g })
        before, after = g:get_state(), function() return g:get_state() end
        return y:sum()
      end, { x }
    end)
    assert.equal(before, after())
  end)

  it("where the function seeds them itself", function()
    compare(function()
      local g = T.Generator(3)
      local x = T.randn({ 6 }, f64):requires_grad_()
      return function(through)
        local y = through(function(a)
          g:manual_seed(g:initial_seed() + 1)
          return (a * T.rand({ 6 }, { dtype = "f64", generator = g })):exp()
        end, x)
        g:manual_seed(100)
        return y:sum()
      end, { x }
    end)
  end)

  it("also where nobody has seeded it before", function()
    local program = [[
      local T = require "perilune"
      local x = T.ones(100):requires_grad_()
      local y = T.checkpoint(function(a) return T.nn.F.dropout(a:exp(), 0.5, true):exp() end, x)
      y:sum():backward()
      local kept = y:gt(1)
      io.write(x.grad:gt(0):equal(kept) and x.grad:ne(0):equal(kept) and "same" or "other", " masks")
    ]]
    local name = os.tmpname()
    local file = assert(io.open(name, "w"))
    file:write(program)
    file:close()
    local exe = (os.getenv("PERILUNE_BUILD") or "build") .. "/bin/perilune"
    local pipe = assert(io.popen(("'%s' run '%s' 2>&1"):format(exe, name)))
    local said = pipe:read("a")
    pipe:close()
    os.remove(name)
    assert.equal("same masks", said)
  end)

  it("and refuses those of Lua", function()
    local x = leaf(1, 2)
    local y = T.checkpoint(function(a) return (a * math.random()):exp() end, x)
    fails("random numbers must be drawn from T", function() y:sum():backward() end)
  end)
end)

describe("a checkpoint runs its function again under the modes of forward:", function()
  it("running statistics are updated once", function()
    for _, momentum in ipairs { 0.1, false } do
      local function run(through)
        T.manual_seed(3)
        local bn = nn.BatchNorm1d(3, { momentum = momentum })
        local net = nn.Sequential(nn.Linear(3, 3), bn, nn.Tanh())
        local x = T.randn(6, 3):requires_grad_()
        local y = through(net, through(net, x)) -- the second finds what the first has left
        local z = through(net, x)
        net:eval();
        (y + z):square():sum():backward()
        local out = { x.grad, bn.running_mean, bn.running_var, bn.num_batches_tracked }
        for i, p in ipairs(net:parameters()) do out[4 + i] = p.grad end
        return out
      end
      local want, got = run(plain), run(T.checkpoint)
      assert.equal(3, got[4]:item())
      for i = 1, #want do same_bits(got[i], want[i], tostring(i)) end
    end
  end)

  it("training and evaluation", function()
    compare(function()
      local net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))
      local x = T.randn(3, 4)
      return function(through)
        local y = through(net, x):square():sum()
        net:eval()
        return y
      end, net:parameters()
    end)
  end)

  it("no_grad, the default dtype, the precision of products", function()
    compare(function()
      local x = T.randn({ 4 }):requires_grad_()
      return function(through)
        T.set_default_dtype("f64")
        T.set_float32_matmul_precision("medium")
        local y = through(function(a)
          assert.equal("medium", T.get_float32_matmul_precision())
          local fixed = T.no_grad(function() return a:exp() end)
          return (a * T.ones(4) * fixed):sin()
        end, x)
        T.set_default_dtype("f32")
        T.set_float32_matmul_precision("highest")
        return y:sum()
      end, { x }
    end)
    assert.equal("highest", T.get_float32_matmul_precision())
  end)

  it("mixed precision, with casts that others use as well", function()
    compare(function()
      local w, v = T.randn(4, 4):requires_grad_(), T.randn(4, 4):requires_grad_()
      local x = T.randn(3, 4):requires_grad_()
      return function(through)
        return T.autocast("bf16", function()
          local h = F.linear(x, w)
          h = through(function(a, b) return F.linear(F.linear(a, w):tanh(), b):tanh() end, h, v)
          h = through(function(a) return F.linear(F.linear(a, v):tanh(), w):tanh() end, h)
          return F.linear(h, v):float():sum()
        end)
      end, { w, v, x }
    end)
  end)

  it("explicit keys", function()
    local w = leaf(2)
    local function run(through)
      local x, seen = leaf(1, 2), {}
      local key = T.GradKey { ambient = false }
      key:attach(x, function(_, g) seen[#seen + 1] = g end)
      key:attach(w, function(_, g) seen[#seen + 1] = g end)
      local y = through(function(a)
        local b = a * 2
        b:mul_(w)
        return b:sin() * w
      end, x)
      key:backward(y:sum())
      return seen
    end
    local want, got = run(plain), run(T.checkpoint)
    assert.equal(2, #got)
    for i = 1, 2 do same_bits(got[i], want[i]) end
  end)
end)

describe("a checkpoint is the plain program", function()
  it("where a weight is used inside and outside", function()
    for seed = 1, 5 do
      compare(function()
        T.manual_seed(seed)
        local w, x = T.randn(8, 8):requires_grad_(), T.randn(4, 8):requires_grad_()
        return function(through)
          local h = (x * 3):mm(w):tanh()
          h = through(function(a) return (a:mm(w) + a * w[1]):tanh() + x end, h)
          h = h:mm(w)
          h = through(function(a, b) return a:mm(b):tanh() * x end, h, w)
          return (h:mm(w) * x):sum()
        end, { w, x }
      end)
    end
  end)

  it("with tensors that were computed outside of it", function()
    compare(function()
      local w, x = T.randn({ 3 }, f64):requires_grad_(), T.randn({ 3 }, f64):requires_grad_()
      return function(through)
        local h = w:exp()
        return through(function(a) return (a * h):sin() * h end, x):sum() + h:sum()
      end, { w, x }
    end)
  end)

  it("with arguments, views of them and other values as results", function()
    compare(function()
      local x = T.randn({ 4, 3 }, f64):requires_grad_()
      return function(through)
        local a, b, c, d, e = through(function(p, q, n, flag)
          assert.equal("word", q.word)
          return p, p[2], flag and (p * n):exp(), nil, { q.x:t(), "text", q.x:sin() }
        end, x * 1, { x = x * 2, word = "word" }, 3, true)
        assert.is_nil(d)
        assert.equal("text", e[2])
        return a:sum() + b:sum() + c:sum() + e[1]:square():sum() + e[3]:sum()
      end, { x }
    end)
  end)

  it("where only some of its results are used, one after the other", function()
    local x, w = leaf(1, 2), leaf(3, 4)
    local function f(a) return (a * w):sin(), (a + w):exp(), a:cos() end
    local function run(through, which)
      x.grad, w.grad = nil, nil
      local y = { through(f, x) }
      for _, i in ipairs(which) do y[i]:sum():backward { retain_graph = true } end
      return { x.grad, w.grad or false }
    end
    for _, which in ipairs { { 1 }, { 2 }, { 3 }, { 2, 1 }, { 1, 3, 2 }, { 1, 1, 2 } } do
      local want, got = run(plain, which), run(T.checkpoint, which)
      for i = 1, 2 do same_bits(got[i] or nil, want[i] or nil) end
    end
    local y, z = T.checkpoint(f, x)
    x.grad, w.grad = nil, nil
    y:sum():backward() -- without retain_graph: the other half is still there
    z:sum():backward()
    local got = { x.grad, w.grad }
    x.grad, w.grad = nil, nil
    y, z = f(x)
    y:sum():backward()
    z:sum():backward()
    same_bits(got[1], x.grad)
    same_bits(got[2], w.grad)
    fails("freed by an earlier backward", function() y:sum():backward() end)
  end)

  it("to the second order and under transforms", function()
    local w = leaf(0.5, 1.5)
    local function f(a) return ((a * w):sin() * a):exp() end
    local function ck(a) return T.checkpoint(f, a) end
    local x = T.tensor({ 0.3, 0.7 }, f64)
    same_bits(T.grad(function(a) return ck(a):sum() end)(x), (T.grad(function(a) return f(a):sum() end)(x)))
    same_bits(T.jacobian(ck)(x), (T.jacobian(f)(x)))
    same_bits(T.hessian(function(a) return ck(a):sum() end)(x), (T.hessian(function(a) return f(a):sum() end)(x)))
    same_bits((select(2, T.jvp(ck, x, T.ones({ 2 }, f64)))), (select(2, T.jvp(f, x, T.ones({ 2 }, f64)))))
    same_bits((T.vmap(ck)(T.stack { x, x * 2 })):detach(), T.vmap(f)(T.stack { x, x * 2 }):detach())
    local function penalty(g)
      local a = x:clone():requires_grad_()
      w.grad = nil
      local d = T.grad_of(g(a):sum(), a, { create_graph = true });
      ((d * d):sum() + g(a):sum()):backward()
      return a.grad, w.grad
    end
    local a1, w1 = penalty(f)
    local a2, w2 = penalty(ck)
    same_bits(a2, a1)
    same_bits(w2, w1)
    assert(T.gradgradcheck(ck, { x }))
    local function nested(b) -- runs again twice, and so do the inner ones
      return T.checkpoint(function(a) return (ck(ck(a):sin()) * a):exp():tanh() end, b)
    end
    local a3, w3 = penalty(function(a) return (f(f(a):sin()) * a):exp():tanh() end)
    local a4, w4 = penalty(nested)
    same_bits(a4, a3)
    same_bits(w4, w3)
  end)

  it("with gradients taken inside, nested checkpoints and vmap", function()
    compare(function()
      local x, w = T.randn({ 3 }, f64):requires_grad_(), T.randn({ 3 }, f64):requires_grad_()
      local function inner(a) return T.checkpoint(function(b) return (b * w):sin() * b end, a):exp() end
      return function(through)
        return through(function(a)
          local g = T.grad(function(b) return (inner(b) * b):sum() end)(a)
          local v = T.vmap(function(s) return (s * a):sin() end)(T.stack { a, w })
          return inner(g * a):sum() + v:sum()
        end, x)
      end, { x, w }
    end)
  end)

  it("for layers of every kind, with dropout, states and weights that are computed", function()
    local function ids() return T.tensor({ { 1, 2 }, { 3, 1 } }, { dtype = "i64" }) end
    for _, make in ipairs {
      function() return nn.TransformerEncoderLayer(16, 4), T.randn(2, 5, 16) end,
      function() return nn.MultiheadAttention(16, 4), T.randn(5, 2, 16) end,
      function() return nn.LSTM(8, 8, { num_layers = 2, dropout = 0.3 }), T.randn(5, 2, 8) end,
      function() return nn.GRU(8, 8), T.randn(5, 2, 8) end,
      function()
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU { inplace = true }, nn.MaxPool2d(2)),
          T.randn(2, 3, 10, 10)
      end,
      function() return nn.Sequential(nn.Embedding(10, 4, { max_norm = 0.5 }), nn.Linear(4, 4)), ids() end,
      function() return nn.utils.weight_norm(nn.Linear(4, 4)), T.randn(3, 4) end,
      function() return nn.Sequential(nn.GroupNorm(2, 4), nn.RReLU()), T.randn(3, 4, 5) end,
    } do
      compare(function()
        local net, x = make()
        return function(through)
          local y = through(net, x)
          return y:square():sum()
        end, net:parameters()
      end)
    end
  end)

  it("under a limit of memory and with saved tensors packed", function()
    local function make()
      local bn = nn.BatchNorm1d(16)
      local net = nn.Sequential(nn.Linear(16, 16), bn, nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 16))
      local x = T.randn(64, 16):requires_grad_()
      local leaves = net:parameters()
      leaves[#leaves + 1] = x
      return function(through)
        local h = through(net, x * 2)
        h = through(function(a)
          a:mul_(T.tensor { 2 })
          return net(a):exp()
        end, h)
        return (h:log() + through(net, h)):square():sum()
      end, leaves
    end
    do
      local limit <close> = T.memory_limit(1 << 30)
      T.core.rematerialization("always") -- all that can be made again goes before every op
      compare(make)
      assert.is_truthy(limit)
    end
    local packed = 0
    local hooks <close> = T.saved_tensors { pack = function(t)
      packed = packed + 1
      return t:clone()
    end, unpack = function(t) return t end }
    compare(make)
    assert.is_true(packed > 0 and hooks ~= nil)
  end)

  it("with compiled functions inside", function()
    local w = T.randn(3, 3):requires_grad_()
    local step = T.jit(function(a) return (a:mm(w)):tanh() * a end)
    compare(function()
      w.grad = nil
      local x = T.randn(3, 3):requires_grad_()
      return function(through)
        return through(function(a) return step(step(a:sin()) * 2):exp() end, x):sum()
      end, { x, w }
    end)
    local x = T.randn(3, 3):requires_grad_()
    local y = T.checkpoint(function(a) return step(a):exp() end, x)
    T.no_grad(function() w:mul_(2) end)
    fails("which the function's compiled graph reads, was modified", function() y:sum():backward() end)
  end)

  it("with custom rules and hooks inside", function()
    local square = T.custom { name = "square_of", forward = function(ctx, a)
      ctx:save(a)
      ctx.twice = 2
      return a * a
    end, backward = function(ctx, g) return g * ctx:saved() * ctx.twice end }
    local hooks = 0
    compare(function()
      local x = T.randn({ 3 }, f64):requires_grad_()
      return function(through)
        return through(function(a)
          local b = a:sin()
          b:register_hook(function(g)
            hooks = hooks + 1
            return g * 2
          end)
          return square(square(b):exp()):exp() * b
        end, x):sum()
      end, { x }
    end)
    assert.equal(2, hooks)
  end)

  it("for arguments that are freed or replaced afterwards", function()
    local x = leaf(1, 2)
    local list = { x * 2, x * 3 }
    local y = T.checkpoint(function(l) return (l[1] * l[2]):exp() end, list)
    list[1]:free()
    list[1], list[2] = nil, nil
    y:sum():backward()
    local got = x.grad
    x.grad = nil;
    ((x * 2) * (x * 3)):exp():sum():backward()
    same_bits(got, x.grad)
  end)

  it("where ops fail on the way, for want of memory too", function()
    compare(function()
      local x = T.randn({ 300 }, f64):requires_grad_()
      return function(through)
        return through(function(a)
          local b = a:sin()
          assert.is_false((pcall(function() return b:mm(b) end)))
          assert.is_false((pcall(function() return b:add_(T.ones(7)) end)))
          local c = b:exp():tanh()
          return (c * b):exp()
        end, x):sum()
      end, { x }
    end)
    local x = T.randn({ 300 }, f64):requires_grad_()
    local function f(a) return (a:sin():exp() * a):tanh():exp() end
    f(x):sum():backward()
    local want = x.grad
    for at = 1, 40 do -- an allocation fails, the collector runs, the op is called again
      for _, save in ipairs { {}, { "exp", "tanh" } } do
        x.grad = nil
        T.core.fail_at(at)
        local ok, y = pcall(T.checkpoint, { f, save = save }, x)
        T.core.fail_at(-1)
        if ok then
          y:sum():backward()
          same_bits(x.grad, want, "allocation " .. at)
        end
      end
    end
  end)

  it("and no node of its own", function()
    local x = leaf(1, 2)
    assert.is_false(T.checkpoint(function(a) return a * 3 end, T.ones(2)).requires_grad)
    T.no_grad(function() assert.is_false(T.checkpoint(function(a) return a * 3 end, x).requires_grad) end)
    assert.is_nil(T.checkpoint(function() end, x))
    local ran = 0
    T.checkpoint(function(a)
      ran = ran + 1
      return a + a:sum()
    end, x):sum():backward()
    assert.equal(1, ran) -- nothing was dropped: nothing runs again
  end)
end)

describe("the memory of a checkpoint", function()
  local kilo = 8 * 1000
  local function deep(a)
    for _ = 1, 20 do a = a:sin() end
    return a
  end
  local function held(f)
    local y
    live.blocks(T) -- lets go of functions of checkpoints that are no more
    local _, bytes = live.left_by(T, function() y = f() end)
    return bytes, y
  end

  it("is that of the arguments", function()
    local x = T.randn({ 1000 }, f64):requires_grad_()
    assert.is_true(held(function() return deep(x) end) > 20 * kilo)
    assert.is_true(held(function() return T.checkpoint(deep, x) end) < 3 * kilo)
    assert.is_true(held(function() -- a chain: what stands between them
      local y = x
      for _ = 1, 5 do y = T.checkpoint(deep, y) end
      return y
    end) < 10 * kilo)
  end)

  it("is what rules of T.custom and compiled functions save, too", function()
    local x = T.randn({ 1000 }, f64):requires_grad_()
    local sine = T.custom { name = "sine", forward = function(ctx, a)
      ctx:save(a)
      ctx.kept, ctx.n = a:cos(), 2 -- fields are the script's own
      return a:sin()
    end, backward = function(ctx, g)
      local a = ctx:saved()
      assert.equal(2, ctx.n)
      return g * ctx.kept + (a - a)
    end }
    local step = T.jit(function(a) return (a:sin():exp():sin():exp()) end)
    local function f(a) return step(sine(sine(step(sine(a))))) end
    local function run(through)
      local bytes, y = held(function() return through(f, x) end)
      y:sum():backward()
      local g = x.grad
      x.grad = nil
      return bytes, g, y:detach()
    end
    run(plain)
    local bytes, g, y = run(plain)
    local less, h, z = run(T.checkpoint)
    assert.is_true(bytes > 8 * kilo, bytes)
    assert.is_true(less < 2.5 * kilo, less)
    same_bits(h, g)
    same_bits(z, y)
  end)

  it("peaks in backward at one of a chain", function()
    local x = T.randn({ 100000 }, f64):requires_grad_()
    local function peak(through)
      live.collect()
      T.reset_peak_memory()
      local before, y = T.memory().live, x
      for _ = 1, 10 do
        y = through(deep, y)
        live.collect()
      end
      y:sum():backward()
      x.grad = nil
      return (T.memory().peak - before) / (100 * kilo)
    end
    local most, least = peak(plain), peak(T.checkpoint)
    assert.is_true(most > 200, most)
    assert.is_true(least < 75, least)
  end)

  -- Run again, the outer function meets inner ones that in forward were nothing: what they write is a value of the
  -- outer function's own, from outside for them, and known by its number to the outer one.
  it("nested, writes what the outer function made: every kind of write, value and place", function()
    local MADE = {
      ["a result"] = function(x) return x:tanh() + 1 end,
      ["a clone"] = function(x) return x:clone() end,
      ["an argument"] = function(x) return x end,
      ["data"] = function() return T.tensor { 1, 2, 3, 4 } end,
      ["data that was read"] = function(x)
        local k = T.tensor { 1, 2, 3, 4 }
        return k, x * k
      end,
    }
    local SHOWN = { function(g) return g end, function(g) return g:view(2, 2):t() end,
      function(g) return g[{ { 2, 4 } }] end }
    local WRITES = {
      mul_ = function(h) h:mul_(2) end,
      add_ = function(h) h:add_(h:detach()) end,
      zero_ = function(h) h:zero_() end,
      assigned = function(h) h[1] = 0.5 end,
      copy_ = function(h) h:copy_(h * 3 + 1) end,
    }
    local tried, right = 0, 0
    for made, make in pairs(MADE) do
      for at, show in ipairs(SHOWN) do
        for name, write in pairs(WRITES) do
          for after = 0, 3 do
            local function run(C)
              local start = T.tensor({ 0.1, -0.4, 0.7, 1.2 }, { requires_grad = true })
              local x = start * 1
              local y = C(function(v)
                local g, more = make(v)
                local function inner(h, u)
                  write(h)
                  return (h:sum() + u):cos()
                end
                local z = C(inner, show(g), v * 2)
                if after & 1 > 0 then z = z * C(inner, show(g), z) end
                if after & 2 > 0 then g:add_(1) end
                return z * g:exp() + (more or 0)
              end, x)
              y:sum():backward()
              return start.grad
            end
            local fine, want = pcall(run, function(f, ...) return f(...) end)
            local also, got = pcall(run, T.checkpoint)
            local what = ("%s, view %d, %s, %d"):format(made, at, name, after)
            tried = tried + 1
            if fine then
              right = right + 1
              assert(also, what .. ": " .. tostring(got))
              assert(T.equal(want, got), what)
            else
              assert(not also, what .. " is refused without a checkpoint: " .. tostring(want))
            end
          end
        end
      end
    end
    assert.is_true(right > tried / 2, right .. " of " .. tried)
  end)

  it("nested, peaks at what the innermost one needs", function()
    local x = T.randn({ 100000 }, f64):requires_grad_()
    local function outer(inner)
      return function(a)
        for _ = 1, 4 do
          a = inner(deep, a)
          live.collect()
        end
        return a
      end
    end
    local function peak(inner)
      live.collect()
      T.reset_peak_memory()
      local before = T.memory().live
      T.checkpoint(outer(inner), x):sum():backward()
      x.grad = nil
      return (T.memory().peak - before) / (100 * kilo)
    end
    local one, two = peak(plain), peak(T.checkpoint)
    assert.is_true(one > 80, one)
    assert.is_true(two < 60, two)
  end)

  it("is released by backward, also where losses stay in a list", function()
    local x = T.randn({ 1000 }, f64):requires_grad_()
    local buffer = T.zeros({ 1000 }, f64)
    local function step()
      local loss = T.checkpoint(function(a)
        buffer:add_(1)
        return deep(a * buffer)
      end, x * 2):sum()
      loss:backward()
      x.grad = nil
      return loss
    end
    step()
    local losses = {}
    local bytes = held(function() for i = 1, 10 do losses[i] = step() end end)
    assert.equal(10, #losses)
    assert.is_true(bytes < 10 * 1000, bytes) -- ten numbers with what is left of their history
  end)

  it("is given back after each walk, if there may be others", function()
    local x = T.randn({ 1000 }, f64):requires_grad_()
    local y = T.checkpoint(deep, x)
    local bytes = held(function()
      y:sum():backward { retain_graph = true }
      x.grad = nil
    end)
    assert.is_true(bytes < kilo, bytes)
    y:sum():backward()
  end)

  it("is given back without a backward, and after errors", function()
    local x = T.randn({ 100 }, f64):requires_grad_()
    live.flat(T, function()
      local _ = T.checkpoint(deep, x)
    end)
    local turn = 0
    local function second(a)
      turn = turn + 1
      if turn % 2 == 0 then error({ code = 7 }) end
      return a:sin():exp()
    end
    local generator = T.Generator(1)
    live.flat(T, function()
      turn = 0
      local y = T.checkpoint(function(a)
        T.rand({ 1 }, { generator = generator })
        return second(a)
      end, x)
      generator:manual_seed(5)
      local state, rng, net = generator:get_state(), T.get_rng_state(), T.is_grad_enabled()
      local ok, why = pcall(function() y:sum():backward() end)
      assert.is_false(ok)
      assert.equal(7, why.code)
      assert.equal(state, generator:get_state())
      assert.equal(rng, T.get_rng_state())
      assert.equal(net, T.is_grad_enabled())
      T.checkpoint(deep, x):sum():backward()
      x.grad = nil
    end)
    live.flat(T, function() -- in forward
      assert.is_false((pcall(T.checkpoint, function(a)
        local _ = a:sin():exp()
        error("no")
      end, x)))
      T.checkpoint(deep, x):sum():backward()
      x.grad = nil
    end)
  end)
end)

describe("what a checkpoint is asked to save", function()
  local mlp = { "linear", "gelu", "tanh", "dropout" }
  local function make(options)
    return function()
      local net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8), nn.Tanh())
      local x = T.randn(5, 8):requires_grad_()
      local leaves = net:parameters()
      leaves[#leaves + 1] = x
      return function(through)
        local own = table.move({ net }, 1, 1, 1, {})
        for k, v in pairs(options) do own[k] = v end
        return through(through == T.checkpoint and own or net, x):square():sum()
      end, leaves
    end
  end

  it("changes no bit", function()
    for _, name in ipairs(mlp) do
      compare(make { save = { name } })
      compare(make { policy = function(op) return op ~= name and "save" or "recompute" end })
    end
    compare(make { save = mlp })
    compare(make { save = "heavy" })
    compare(make { save = {}, names = { "nothing" } })
  end)

  it("is not computed again", function()
    local net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh()), T.randn(5, 8)
    local function flops(opts)
      opts[1] = net
      local y = T.checkpoint(opts, x):square():sum()
      local p = T.profile(function() y:backward() end)
      local sum = 0
      for _, row in ipairs(p:rows()) do
        if row.key:find("^linear") then sum = sum + (row.flops or 0) end
      end
      return sum
    end
    local all, none = flops {}, flops { save = { "linear" } }
    assert.is_true(all > 0)
    assert.equal(0, none)
  end)

  it("costs its own memory and no more", function()
    local kilo = 8 * 1000
    local x = T.randn({ 1000 }, f64):requires_grad_()
    local function f(a) return a:sin():exp():sin():tanh():sin() end
    local function held(through, ...)
      local y
      local args = { ... }
      local _, bytes = live.left_by(T, function() y = through(table.unpack(args)) end)
      assert.equal(1000, y:numel())
      return bytes / kilo
    end
    local function within(low, high, got) assert(low <= got and got < high, got) end
    within(3, 3.5, held(f, x))
    within(1, 1.5, held(T.checkpoint, f, x))
    within(2, 2.5, held(T.checkpoint, { f, save = { "exp" } }, x))
    within(3, 3.5, held(T.checkpoint, { f, save = { "sin" } }, x)) -- the last one is what is returned
    within(5, 6, held(T.checkpoint, { f, policy = function() return "save" end }, x))
    local function named(a)
      local b = T.checkpoint_name(a:sin():exp(), "b")
      return T.checkpoint_name(b:sin():view(10, 100), "c"):tanh():sin():view(1000)
    end
    within(1, 1.5, held(T.checkpoint, { named, names = {} }, x))
    within(2, 2.5, held(T.checkpoint, { named, names = { "b" } }, x))
    within(3, 3.5, held(T.checkpoint, { named, names = { "b", "c" } }, x))
  end)

  it("runs nothing again where all is saved", function()
    local runs, x = 0, leaf(1, 2)
    local y = T.checkpoint({ function(a)
      runs = runs + 1
      return a:sin():exp():tanh()
    end, policy = function() return "save" end }, x)
    y:sum():backward()
    assert.equal(1, runs)
  end)

  it("may be named", function()
    compare(function()
      local x, w = T.randn({ 3, 3 }, f64):requires_grad_(), T.randn({ 3, 3 }, f64):requires_grad_()
      return function(through)
        local function f(a)
          local b = T.checkpoint_name((a:mm(w)):tanh(), "attention")
          local c = T.checkpoint_name(b:view(9) * 2, "rest")
          local d = T.checkpoint_name(a, "argument")
          d = T.checkpoint_name(d[1], "view") * c:sum()
          return T.checkpoint_name(c:exp(), "rest"):sum() + d:exp():sum()
        end
        if through == plain then return f(x) end
        return T.checkpoint({ f, names = { "attention", "rest", "argument", "view" } }, x)
      end, { x, w }
    end)
    local x = leaf(1)
    assert.equal(x, T.checkpoint_name(x, "no checkpoint around"))
  end)

  it("is copied before it is overwritten", function()
    for _, save in ipairs { { "sin" }, { "mul" }, { "sin", "mul", "exp" } } do
      for _, retain in ipairs { false, true } do
        compare(function()
          local x, w = T.randn({ 3 }, f64):requires_grad_(), T.randn({ 3 }, f64):requires_grad_()
          return function(through)
            local function f(a)
              local b = a:sin()
              local c = b:exp()
              T.no_grad(function() b:detach():mul_(0) end) -- nobody has saved b
              local d = c * w
              d[1] = 2
              return T.checkpoint_name(d, "d") + c
            end
            local y = through == plain and f(x) or T.checkpoint({ f, save = save, names = { "d" } }, x)
            if retain then y:sum():backward { retain_graph = true } end
            y:add_(1)
            return y:square():sum()
          end, { x, w }
        end)
      end
    end
  end)

  it("lies in memory as it did, also where the function writes over it", function()
    local x = T.randn({ 3, 4, 2, 2 }, { dtype = "f64" })
    local lies = { function(a) return a end, function(a) return a:transpose(1, 2) end,
      function(a) return a:permute(1, 3, 4, 2) end, function(a) return a:select(4, 1):transpose(1, 3) end }
    for i, lie in ipairs(lies) do
      local function f(a)
        local b = lie(a)
        local c, d = b * 2, b:sin()
        c:mul_(b)
        d:add_(c):tanh_()
        return (c * d):sum()
      end
      local want = x:clone():requires_grad_()
      f(want):backward()
      for every = 1, 5 do
        for first = 0, every - 1 do
          local calls, got = 0, x:clone():requires_grad_()
          T.checkpoint({ f, policy = function()
            calls = calls + 1
            return calls % every == first and "save" or "recompute"
          end }, got):backward()
          assert.is_true(got.grad:equal(want.grad), ("layout %d, %d of %d"):format(i, first, every))
        end
      end
    end
  end)

  it("is what a policy says, which may not be anything", function()
    local x, seen = leaf(1, 2), {}
    T.checkpoint({ function(a) return (a * 2):sin():sum() end, policy = function(op, info)
      seen[#seen + 1] = ("%s %s %d %s"):format(op, info.dtypes[1], info.bytes, table.concat(info.shapes[1], ","))
      assert.equal(op, info.op)
      assert.is_false(info.heavy)
      local _ = T.ones(3) * 2 -- no work of the function
      return "recompute"
    end }, x):backward()
    assert.same({ "mul f64 16 2", "sin f64 16 2", "sum f64 8 " }, seen)
    local function f(a) return a:sin():exp() end
    fails('policy must return "save" or "recompute", got nil for sin', T.checkpoint, { f, policy = function() end }, x)
    fails("no idea", T.checkpoint, { f, policy = function() error("no idea") end }, x)
    fails("there is no op 'sinn'; did you mean", T.checkpoint, { f, save = { "sinn" } }, x)
    fails("unknown option 'saves'", T.checkpoint, { f, saves = { "sin" } }, x)
    fails("give save or policy, not both", T.checkpoint, { f, save = { "sin" }, policy = f }, x)
    fails("policy is a function", T.checkpoint, { f, policy = 1 }, x)
    fails("names is a list of names", T.checkpoint, { f, names = { a = true } }, x)
    fails("a function expected", T.checkpoint, { save = { "sin" } }, x)
    fails("nn.checkpointed: save: there is no op", nn.checkpointed, nn.Linear(2, 2), { save = { "nothing at all" } })
    fails("a tensor expected", T.checkpoint_name, 1, "a")
    fails("a name expected", T.checkpoint_name, x, 1)
    T.checkpoint(f, x):sum():backward()
  end)

  it("is of every segment of a Sequential", function()
    local function net()
      local s = nn.Sequential()
      for _ = 1, 6 do s:append(nn.Linear(16, 16), nn.Tanh()) end
      return s:append(nn.Dropout(0.5))
    end
    for n = 1, 13, 4 do
      compare(function()
        local m, x = net(), T.randn(4, 16)
        return function(through)
          if through == T.checkpoint then m = nn.checkpointed(m, { segments = n, save = n > 1 and "heavy" or nil }) end
          return m(x):square():sum()
        end, m:parameters()
      end)
    end
    assert.equal(12, #nn.checkpointed(net(), { segments = 2, save = "heavy" }):parameters())
    local m, x = net(), T.randn(500, 16)
    local function held(o)
      local y
      local _, bytes = live.left_by(T, function() y = nn.checkpointed(m, o)(x) end)
      assert.equal(500, y:size(1))
      return bytes / (500 * 16 * 4)
    end
    local one, four = held {}, held { segments = 4 }
    assert.is_true(one < 1.5 and four > 3.9 and four < 4.5, ("%g %g"):format(one, four))
    fails("segments are of an nn.Sequential", nn.checkpointed, nn.Linear(2, 2), { segments = 1 })
    fails("segments must be from 1 to 13", nn.checkpointed, m, { segments = 14 })
    m:register_forward_hook(function() end)
    fails("hooks of a module that is cut", nn.checkpointed(m, { segments = 2 }), x)
  end)

  it("holds for modules, nested functions and graphs", function()
    compare(function()
      local a, b = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
      local x = T.randn(3, 4):requires_grad_()
      local leaves = a:parameters()
      for _, p in ipairs(b:parameters()) do leaves[#leaves + 1] = p end
      leaves[#leaves + 1] = x
      return function(through)
        if through == plain then return (b(a(x)) * a(x)):sum() end
        local ca = nn.checkpointed(a, { save = "heavy" })
        return T.checkpoint({ function(q)
          return (T.checkpoint({ b, policy = function() return "save" end }, ca(q)) * ca(q)):sum()
        end, save = { "tanh" } }, x)
      end, leaves
    end)
    local function again(options)
      local net = nn.checkpointed(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()), options)
      local step, names = T.jit(net), {}
      step(T.randn(3, 4):requires_grad_()):sum():backward()
      for _, node in ipairs(select(2, step:plan()):list()) do
        if node.mirror then names[#names + 1] = node.op end
      end
      return table.concat(names, " ")
    end
    assert.is_truthy(again():find("linear"))
    assert.is_truthy(again({ save = { "linear" } }):find("tanh"))
    assert.is_nil(again({ save = { "linear" } }):find("linear"))
    assert.equal("", again({ policy = function() return "save" end }))
  end)
end)
