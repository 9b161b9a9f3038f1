-- SPDX-License-Identifier: MIT
-- T.jit and what a function sees besides its tensors, and leaves behind: whatever it is, the compiled function gives
-- what the script gives, or an error says why not.
local T = require "perilune"
local nn, optim = T.nn, T.optim

local compiled = require "spec.support.compiled"
local plain, raises = compiled.plain, compiled.raises

-- run(wrap) → a list; the same with f as written and compiled.
local function same(name, run, opts)
  local function with(wrap)
    T.manual_seed(1)
    return plain(run(wrap))
  end
  assert.same(with(function(f) return f end), with(function(f) return T.jit(f, opts) end), name)
end

-- Calls f(x) for i = 1 … 4 after change(i).
local function calls(wrap, f, change)
  local g, out = wrap(f), {}
  for i = 1, 4 do
    change(i)
    out[i] = g(T.ones(2))
  end
  return out
end

describe("T.jit sees", function()
  it("objects among arguments by identity, whatever their name", function()
    same("modules", function(wrap)
      local a, b, out = nn.Linear(2, 2), nn.Linear(2, 2), {}
      local f = wrap(function(net, x) return net(x) end)
      for i = 1, 4 do out[i] = f(i % 2 == 0 and a or b, T.ones(1, 2)) end
      return out
    end)
    same("in tables", function(wrap)
      local f, out = wrap(function(s) return s.net(s.x) end), {}
      for i = 1, 3 do out[i] = f { net = nn.Linear(2, 2), x = T.ones(1, 2) } end
      return out
    end)
    same("named alike", function(wrap)
      local meta = { __tostring = function() return "object" end, __call = function(s, x) return x * s.k end }
      local f, out = wrap(function(o, x) return o(x) end), {}
      for i = 1, 4 do out[i] = f(setmetatable({ k = i }, meta), T.ones(1)) end
      return out
    end)
  end)

  it("metamethods, modules of the script, fields of _G, long names", function()
    for _, name in ipairs { "__call", "__len", "__add", "__unm" } do
      same(name, function(wrap)
        local k = 1
        local object = setmetatable({}, { [name] = function() return k end })
        local use = { __call = function() return object() end, __len = function() return #object end,
          __add = function() return object + 1 end, __unm = function() return -object end }
        local get = use[name]
        return calls(wrap, function(x) return x * get() end, function(i) k = i end)
      end)
    end
    same("module", function(wrap)
      local hidden = 1
      package.loaded["spec.settings"] = { k = 1, get = function() return hidden end }
      local settings = require "spec.settings"
      local out = calls(wrap, function(x) return x * settings.k + settings.get() end, function(i)
        settings.k, hidden = i, i // 2
      end)
      package.loaded["spec.settings"] = nil
      return out
    end)
    local long = ("a_long_name_"):rep(6)
    for _, text in ipairs { "_G['K']", "_G.K", long } do
      same(text, function(wrap)
        local env = setmetatable({ K = 0 }, { __index = _G })
        env._G = env
        local f = assert(load("return function(x) return x * " .. text .. " end", "globals", "t", env))()
        return calls(wrap, f, function(i) env.K, env[long] = i, i end)
      end)
    end
  end)

  it("fields of tables of any size and depth, and calls of functions that are there", function()
    local big, deep, chain = {}, {}, {}
    for i = 1, 6000 do big[i] = i end
    big.scale = { k = 1 }
    local inner = deep
    for _ = 1, 40 do
      inner.next = {}
      inner = inner.next
    end
    inner.k = 1
    local link = chain
    for _ = 1, 3000 do
      link.next = {}
      link = link.next
    end
    link.k = 1
    local function last(t)
      while t.next do t = t.next end
      return t
    end
    local many = function(x) return x * big[5000] + big.scale.k end
    local far = function(x) return x * last(deep).k end
    local farther = function(x) return x * last(chain).k end
    same("one of many", function(wrap)
      return calls(wrap, many, function(i) big[5000] = i end)
    end)
    same("behind many", function(wrap)
      return calls(wrap, many, function(i) big.scale.k = i end)
    end)
    same("one more, one less", function(wrap)
      return calls(wrap, function(x) return x * #big end, function(i) big[6000 + i % 2] = i % 2 == 1 and 1 or nil end)
    end)
    same("deep down", function(wrap)
      return calls(wrap, far, function(i) inner.k = i end)
    end)
    same("at the end of a list", function(wrap)
      return calls(wrap, farther, function(i) link.k = i end)
    end)
    same("a list that ends sooner", function(wrap)
      return calls(wrap, farther, function(i) link.next = i > 2 and { k = 7 } or nil end)
    end)
    same("in upvalues of a function deep down", function(wrap)
      local k = 1
      inner.get = function() return k end
      return calls(wrap, function(x) return x * last(deep).get() end, function(i) k = i end)
    end)
    raises("changes deep%.next%.next.*%(%d+ levels%).*%.next%.k", T.jit(function(x)
      last(deep).k = 99
      return x
    end), T.ones(1))
    raises("changes big%[4999%]", T.jit(function(x)
      big[4999] = 0
      return x
    end), T.ones(1))
  end)

  it("fields of the script's tables and modules that are called as perilune's own are", function()
    local names, root = {}, os.getenv "PERILUNE_ROOT" or "."
    local pipe = assert(io.popen("grep -rhoE '\\b_[a-z_]*[a-z]\\b' '" .. root .. "/lua/perilune'"))
    for name in pipe:lines() do names[name] = true end
    pipe:close()
    local made, Net, x = nn.Identity(), nn.class("Net"), T.ones(2)
    for name in next, names do if rawget(made, name) ~= nil then names[name] = nil end end -- those are taken
    assert.is_true(names._opts and names._computed and names._steps)
    for name in next, names do
      local object = { [name] = { k = 1, weight = 1 } }
      local net = Net()
      net[name], net.weight = { k = 1, weight = 1 }, 1
      function Net.forward(m, v) return v * m[name].k * m.weight end
      for _, f in ipairs { function(v) for _, t in next, object do v = v * t.k end return v end,
        function(v) return net(v) end } do
        local g = T.jit(f)
        g(x)
        object[name].k, net[name].k, net.weight = 2, 3, 2
        assert.same(f(x):totable(), g(x):totable(), name)
        object[name], net[name] = { k = 5 }, { k = 6 }
        assert.same(f(x):totable(), g(x):totable(), name)
      end
    end
  end)

  it("what it reads of large tables, by whatever way, and only that", function()
    local function table_of()
      local t = { k = 1, on = true, list = {}, sub = { k = 1, sub = { k = 1 } }, get = function(s) return s.k end }
      for i = 1, 1000 do t.list[i] = { w = 1 } end
      t.tail = t.list
      return t
    end
    local cfg, other
    local ways = {
      field = function(x) return x * cfg.sub.sub.k end,
      item = function(x) return x * cfg.list[7].w end,
      computed = function(x) return x * cfg.list[x:size(1) + 5].w end,
      loop = function(x)
        local s = 0
        for _, t in ipairs(cfg.list) do s = s + t.w end
        return x * s
      end,
      counted = function(x)
        local s = 0
        for i = 1, #cfg.list do s = s + cfg.list[i].w end
        return x * s
      end,
      iterated = function(x)
        local s = 0
        for _, t in next, cfg.list do s = s + t.w end
        return x * s
      end,
      either = function(x)
        local t = cfg.on and cfg.sub or other.sub
        return x * t.k
      end,
      closure = function(x)
        local t = cfg.sub
        local function get() return t.sub.k end
        return x * get()
      end,
      swapped = function(x)
        local t = other.sub
        local function swap() t = cfg.sub end
        swap()
        return x * t.sub.k
      end,
      passed = function(x)
        local function get(t) return t.list[7].w end
        return x * get(cfg)
      end,
      method = function(x) return x * cfg:get() end,
      walked = function(x)
        local t = cfg
        while t.sub do t = t.sub end
        return x * t.k
      end,
      kept = function(x)
        local box = { cfg.sub }
        return x * box[1].sub.k
      end,
      unpacked = function(x) return x * (table.unpack(cfg.list, 7, 7)).w end,
      coroutine_ = function(x)
        return x * coroutine.wrap(function() return cfg.list[7].w end)()
      end,
      missing = function(x) return x * (cfg.absent and 5 or cfg.k) end,
      chosen = function(x)
        if cfg.on then return x * cfg.k end
        return x * other.k
      end,
      global = load("return function(x) return x * JIT_SEEN.sub.sub.k end", "=spec", "t", _G)(),
      by_G = load("return function(x) return x * _G.JIT_SEEN.list[7].w end", "=spec", "t", _G)(),
      in_E = load("local e = _ENV return function(x) return x * e.JIT_SEEN.list[7].w end", "=spec", "t", _G)(),
    }
    local changes = {
      function() cfg.sub.sub.k = 2 end, function() cfg.list[7].w = 3 end, function() cfg.sub.k = 4 end,
      function() cfg.on = false end, function() other.sub.k = 5 end, function() cfg.k = 6 end,
      function() cfg.absent = true end, function() cfg.list[7] = { w = 8 } end, function() cfg.sub = { k = 9 } end,
      function() cfg.list[1001] = { w = 2 } end, function() other.k = 10 end,
      function() cfg.get = function() return 11 end end,
      function() setmetatable(cfg, { __index = { absent = false } }) end,
    }
    for name, f in pairs(ways) do
      same(name, function(wrap)
        cfg, other = table_of(), table_of()
        rawset(_G, "JIT_SEEN", cfg)
        cfg.sub.sub.k, other.sub.k = 1, 2
        local g, out = wrap(f), {}
        for i = 1, #changes do
          out[#out + 1] = g(T.ones(2))
          if not (name == "walked" and i == 9) then changes[i]() end
          rawset(_G, "JIT_SEEN", cfg)
          if not cfg.sub.sub then cfg.sub.sub = { k = 12 } end
          out[#out + 1] = g(T.ones(2))
        end
        return out
      end, { max_traces = 100 })
      rawset(_G, "JIT_SEEN", nil)
    end
    -- what it does not read is no guard
    cfg = table_of()
    local f = T.jit(function(x) return x * cfg.sub.k + cfg.list[7].w end)
    f(T.ones(2))
    cfg.list[8].w, cfg.list[9], cfg.more, cfg.sub.sub.k = 77, nil, {}, 5
    f(T.ones(2))
    assert.equal(1, f.ntraces)
    assert.is_true(f.last.guards.fields < 10)
    raises("changes cfg%.k", T.jit(function(x)
      cfg.k = 99
      return x
    end), T.ones(1))
    cfg.k = 1
    local chain = {}
    local inner = chain
    for _ = 1, 12 do
      inner.next = {}
      inner = inner.next
    end
    same("a chain", function(wrap)
      return calls(wrap, function(x)
        local t = chain
        while t.next do t = t.next end
        return x * t.k
      end, function(i) inner.k = i end)
    end)
    raises("changes cfg%.list%[3%]%.w", T.jit(function(x)
      cfg.list[3].w = 99
      return x
    end), T.ones(1))
  end)

  it("numbers as they are: 2 is not 2.0, 0.0 not -0.0, and not a number is itself", function()
    same("numbers", function(wrap)
      local k = 2
      local f = wrap(function(x) return x * k end)
      local out = { f(T.tensor({ 1, 2 }, { dtype = "i64" })) }
      k = 2.0
      out[2] = f(T.tensor({ 1, 2 }, { dtype = "i64" }))
      for _, zero in ipairs { 0.0, -0.0 } do
        k = zero
        out[#out + 1] = 1 / f(T.ones(1)):item()
      end
      return out
    end)
    local nan = 0 / 0
    local f = T.jit(function(x) return x * nan end)
    for _ = 1, 3 do f(T.ones(1)) end
    assert.equal(1, f.ntraces)
  end)

  it("gradients of built-in ops that are replaced", function()
    same("rules", function(wrap)
      local p, out = T.ones(2):requires_grad_(), {}
      local f = wrap(function(x)
        p.grad = nil;
        (p * x):relu():sum():backward()
      end)
      for i = 1, 6 do
        if i == 3 then T.override_gradient("relu", function(_, g) return g * 7 end) end
        if i == 5 then T.override_gradient("relu", nil) end
        f(T.ones(2))
        out[i] = p.grad
      end
      return out
    end)
  end)

  it("coroutines and files from outside: errors", function()
    local generator = coroutine.wrap(function()
      for i = 1, 9 do coroutine.yield(i) end
    end)
    raises("a coroutine from outside is resumed in a traced function", T.jit(function(x) return x * generator() end),
      T.ones(1))
    local thread = coroutine.create(function() return 1 end)
    raises("a coroutine from outside", T.jit(function(x) return x * select(2, coroutine.resume(thread)) end), T.ones(1))
    assert.equal(1, generator())
    local f = T.jit(function(x)
      coroutine.yield(x)
      return x * 2
    end)
    local ok, err = coroutine.resume(coroutine.create(function() f(T.ones(1)) end))
    assert.is_false(ok)
    assert.matches("coroutine.yield in a traced function would leave the trace open", err)
    assert.is_false(T.core.jit_tracing())
    local file = assert(io.tmpfile())
    raises("file.read in a traced function", T.jit(function(x) return x * (file:read("n") or 1) end), T.ones(1))
    same("coroutines inside", function(wrap)
      local g, out = wrap(function(x)
        local each = coroutine.wrap(function()
          for i = 1, 3 do coroutine.yield(x * i) end
        end)
        return each() + each() * each()
      end), {}
      for i = 1, 3 do out[i] = g(T.ones(2) * i) end
      return out
    end)
  end)

  it("what cannot be traced: with fallback it runs as written, and what the trace wrote is taken back", function()
    local n, list = 0, {}
    local functions = {
      function(x) return x[x:gt(0)] end,
      function(x) return x:nonzero() end,
      function(x) return T.where(x:gt(0), x, x * 0 + #tostring(math.random())) end,
      function(x)
        n = n + 1
        list[#list + 1] = n
        return x * n
      end,
      function(x) return x * (x:sum():item() > 0 and 2 or 3) end,
    }
    for i, f in ipairs(functions) do
      local g = T.jit(f, { fallback = true })
      T.manual_seed(1)
      local want = plain(f(T.ones(2)))
      n, list = 0, {}
      assert.same(want, plain(g(T.ones(2))), "function " .. i)
      assert.is_true(g.eager)
    end
    n, list = 0, {}
    T.jit(functions[4], { fallback = true })(T.ones(2))
    assert.same({ 1, { 1 } }, { n, list })
    local mine = {}
    local g = T.jit(function() error(mine) end, { fallback = true })
    local ok, err = pcall(g, T.ones(1))
    assert.is_true(not ok and rawequal(err, mine) and not g.eager)
  end)

  it("globals change: numbers, tables, functions, also through other functions", function()
    local env = setmetatable({ T = T, K = 2, CFG = { k = 10 } }, { __index = _G })
    local f = T.jit(assert(load([[
      function G(x) return x * K end
      return function(x) return G(x) + CFG.k end
    ]], "globals", "t", env))())
    local x = T.ones(1)
    assert.equal(12, f(x):item())
    env.K = 3
    assert.equal(13, f(x):item())
    env.CFG.k = 20
    assert.equal(23, f(x):item())
    env.G = function(t) return t * 100 end
    assert.equal(120, f(x):item())
    assert.equal(120, f(x):item())
    assert.equal(4, f.ntraces)
    local g = T.jit(assert(load("return function(x) COUNT = (COUNT or 0) + 1 return x end", "write", "t", env))())
    raises("the traced function changes COUNT %(from nil to 1%)", g, x)
  end)

  it("what would change, and does not freeze it: random numbers, seeds, values of tensors, tables", function()
    local w, random = T.ones(1), math.random
    local kept = { random = math.random }
    for _, f in ipairs { function(x) return x * math.random() end, function(x) return x * random() end,
      function(x) return x * kept.random() end, function(x) return T.where(x:gt(0), x, random()) end,
      function(x) return coroutine.wrap(function() return x * random() end)() end } do
      raises("math.random in a traced function: a graph would repeat this one value; draw with T.rand", T.jit(f), w)
    end
    raises("os.clock in a traced function", T.jit(function(x) return x * os.clock() end), w)
    assert.is_nil(debug.gethook())
    raises("manual_seed: a traced function cannot seed", T.jit(function(x) T.manual_seed(1) return x end), w)
    raises("item: f32%[1%] is read while a function is traced", T.jit(function(x) return x * w:item() end), w)
    raises("changes argument 1%[h%] %(from nil to", T.jit(function(s, x) s.h = x * 2 return x end), {}, w)
    assert.equal(2, T.jit(function(x) return x * 2 end)(w):item())
    local f = T.jit(function(s) return (s[1] or T.zeros(1)) * 3 end)
    assert.same({ 3, 0 }, { f { w }:item(), f { ["1"] = w }:item() })
    local zeros = T.jit(function(x) return T.zeros(2), x * 2 end)
    zeros(w)
    T.set_default_dtype("f64")
    local made = zeros(w)
    T.set_default_dtype("f32")
    assert.equal("f64", made:dtype())
  end)

  it("an optimizer whose state was loaded, whose settings were switched or that got a group is noticed", function()
    local function run(wrap)
      T.manual_seed(1)
      local net, more = nn.Linear(2, 2), nn.Linear(2, 1)
      local opt = T.optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
      local f = wrap(function(x)
        opt:zero_grad()
        local loss = more(net(x)):pow(2):sum()
        loss:backward()
        opt:step()
        return loss
      end)
      local out, saved = {}, nil
      for i = 1, 8 do
        if i == 3 then saved = opt:state_dict() end
        if i == 5 then opt:load_state_dict(saved) end
        if i == 6 then opt.param_groups[1].momentum = 0 end
        if i == 7 then opt:add_param_group { params = more:parameters(), lr = 0.01 } end
        out[i] = f(T.ones(1, 2)):item()
      end
      return { out, net.weight:detach():totable(), more.weight:detach():totable() }
    end
    assert.same(run(function(f) return f end), run(T.jit))
  end)

  it("settings of an optimizer that are switched to and fro find the step that was compiled for them", function()
    local nets = { "SGD", "Adam", "AdamW", "RMSprop", "Adamax", "NAdam", "RAdam", "Adagrad", "ASGD", "Rprop", "Lion" }
    local switches = { momentum = { 0, 0.9 }, amsgrad = { false, true }, centered = { false, true },
      maximize = { false, true }, weight_decay = { 0, 0.1 }, decoupled_weight_decay = { false, true } }
    for _, name in ipairs(nets) do
      for key, values in pairs(switches) do
        local function run(wrap)
          local p = T.linspace(-1, 1, 20):requires_grad_()
          local opt = T.optim[name]({ p }, { lr = 0.01 })
          local group = opt.param_groups[1]
          if group[key] == nil then return {} end
          if key == "decoupled_weight_decay" then group.weight_decay = 0.1 end
          local f = wrap(function()
            local loss = (p - 0.3):pow(2):sum()
            opt:zero_grad()
            loss:backward()
            opt:step()
          end)
          for i = 1, 9 do
            group[key] = values[i % 3 == 0 and 2 or 1]
            f()
          end
          return { p:detach() }
        end
        local want, got = run(function(f) return f end)[1], run(T.jit)[1]
        assert.is_true(not want or T.allclose(got, want, { rtol = 1e-5, atol = 1e-6 }), name .. " " .. key)
      end
    end
  end)

  it("what is frozen or unfrozen later is noticed", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1]:requires_grad_(false)
    local f = T.jit(net)
    f(T.ones(1, 2)):sum():backward()
    assert.is_nil(net[1].weight.grad)
    net[1]:requires_grad_(true)
    f(T.ones(1, 2)):sum():backward()
    assert.is_true(net[1].weight.grad ~= nil)
  end)

  it("a setting of an optimizer that the function reads is a guard; loaders and input are errors", function()
    local net = nn.Linear(2, 1)
    local opt = T.optim.Adam(net:parameters(), { lr = 0.5 })
    local s = T.optim.lr_scheduler.StepLR(opt, 1)
    local f = T.jit(function(x) return x * opt.param_groups[1].lr * opt.param_groups[1].betas[1] end)
    local g = T.jit(function(x) return x * s:get_last_lr()[1] end)
    local h = T.jit(function(x)
      opt:zero_grad()
      net(x):sum():backward()
      opt:step()
    end)
    local one = T.ones(1)
    for i, lr in ipairs { 0.5, 0.5, 0.25, 2.0 } do
      opt.param_groups[1].lr = lr
      opt.param_groups[1].betas[1] = i == 4 and 0.5 or 0.75
      h(T.ones(1, 2))
      assert.equal(lr * (i == 4 and 0.5 or 0.75), f(one):item())
      assert.equal(lr, g(one):item())
    end
    assert.same({ 3, 3, 1 }, { f.ntraces, g.ntraces, h.ntraces })
    local loader = T.data.DataLoader(T.data.TensorDataset(T.ones(4, 2)), { batch_size = 2 })
    raises("a loop over it in a traced function would read one pass for ever", T.jit(function(x)
      for b in loader do x = x + b:sum() end
      return x
    end), one)
    raises("io.read in a traced function", T.jit(function(x) return x * (io.read("n") or 1) end), one)
  end)
end)

describe("T.jit leaves behind", function()
  for _, none in ipairs { true, false } do
    for _, kind in ipairs { "SGD", "Adam", "Adagrad", "Rprop" } do
      it(("gradients of several calls in one update, set to none: %s, %s"):format(none, kind), function()
        same("backward and step by a flag", function(wrap)
          local net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
          local opt = optim[kind](net:parameters(), { lr = 0.01 })
          local f = wrap(function(x, last)
            local loss = net(x):pow(2):sum()
            loss:backward()
            if last then
              nn.utils.clip_grad_norm_(net:parameters(), 1)
              opt:step()
              opt:zero_grad(none)
            end
            return loss
          end)
          local out = {}
          for i = 1, 6 do
            out[#out + 1] = f(T.randn(3, 2), i % 3 == 0)
            local g = net[1].weight.grad
            out[#out + 1] = g and g:clone() or "none"
          end
          out[#out + 1] = net[1].weight
          return out
        end)
        same("step alone", function(wrap)
          local net = nn.Linear(2, 1)
          local opt = optim[kind](net:parameters(), { lr = 0.01 })
          local f = wrap(function()
            opt:step()
            opt:zero_grad(none)
          end)
          local out = {}
          for i = 1, 6 do
            net(T.randn(3, 2)):pow(2):sum():backward()
            if i % 2 == 0 then f() end
            out[#out + 1] = net.weight.grad and net.weight.grad:clone() or "none"
          end
          out[#out + 1] = net.weight
          return out
        end)
      end)
    end
  end

  it("the same with a scaler", function()
    same("scaler", function(wrap)
      local net = nn.Linear(4, 1)
      local opt = optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
      local scaler = T.GradScaler { init_scale = 1024, growth_interval = 2 }
      local f = wrap(function(x, last)
        local loss = net(x):pow(2):mean()
        scaler:scale(loss):backward()
        if last then
          scaler:unscale_(opt)
          scaler:step(opt)
          scaler:update()
          opt:zero_grad()
        end
        return loss
      end)
      local out = {}
      for i = 1, 6 do out[i] = f(T.randn(4, 4) * (i == 4 and 1e30 or 1), i % 2 == 0) end
      out[7], out[8] = net.weight, scaler:get_scale()
      return out
    end)
  end)

  it("gradients of arguments as the script does: cleared, read, accumulated, asked for", function()
    same("a step over a list of parameters", function(wrap)
      local p, out = { T.randn(3, 2):requires_grad_(), T.randn(3):requires_grad_() }, {}
      local f = wrap(function(list, x)
        for _, q in ipairs(list) do q.grad = nil end
        local loss = (x:matmul(list[1]):sum(-1) * list[2]:sum()):pow(2):sum()
        loss:backward()
        T.no_grad(function()
          for _, q in ipairs(list) do q:sub_(q.grad * 0.01) end
        end)
        return loss
      end)
      for _ = 1, 4 do
        out[#out + 1] = f(p, T.randn(4, 3))
        for _, q in ipairs(p) do
          out[#out + 1] = q.grad
          out[#out + 1] = q:detach():clone()
        end
      end
      return out
    end)
    same("accumulated", function(wrap)
      local x, out = T.ones(3):requires_grad_(), {}
      local f = wrap(function(t)
        (t * t):sum():backward()
        return t.grad * 2
      end)
      for i = 1, 4 do
        out[#out + 1] = f(x)
        out[#out + 1] = x.grad:clone()
        if i == 2 then x.grad = nil end
      end
      return out
    end)
    for _, captured in ipairs { true, false } do
      same("asked for", function(wrap)
        local p, out = T.ones(3):requires_grad_(), {}
        local f = wrap(function(t)
          local q = captured and p or t
          return (q.grad and q * 2 or q * 3):detach()
        end)
        for i = 1, 4 do
          out[i] = f(p)
          if i == 2 then p.grad = T.ones(3) end
        end
        return out
      end)
    end
  end)

  it("gradients that it reads, sets and swaps", function()
    same("read, not written", function(wrap)
      local p, out = T.ones(3):requires_grad_(), {}
      local f = wrap(function(x) return p.grad * x end)
      for i = 1, 3 do
        p.grad = T.ones(3) * i
        out[i] = f(T.ones(3))
      end
      return out
    end)
    same("set", function(wrap)
      local p, out = T.ones(3):requires_grad_(), {}
      local f = wrap(function(x) p.grad = x * 2 end)
      for i = 1, 3 do
        f(T.ones(3) * i)
        out[i] = p.grad
      end
      return out
    end)
    same("swapped", function(wrap)
      local p, q, out = T.ones(2):requires_grad_(), T.ones(2):requires_grad_(), {}
      p.grad, q.grad = T.ones(2), T.ones(2) * 2
      local f = wrap(function() p.grad, q.grad = q.grad, p.grad end)
      for _ = 1, 3 do
        f()
        out[#out + 1], out[#out + 2] = p.grad:clone(), q.grad:clone()
      end
      return out
    end)
    local p, boom = T.ones(2):requires_grad_(), true
    p.grad = T.ones(2) * 5
    local f = T.jit(function(x)
      (p * x):sum():backward()
      local g = p.grad:clone()
      p.grad = nil
      if boom then error("later") end
      return g
    end)
    raises("later", f, T.ones(2))
    assert.same({ 5, 5 }, p.grad:totable())
    boom = false
    assert.same({ 6, 6 }, f(T.ones(2)):totable())
    assert.is_nil(p.grad)
  end)

  it("check=true puts arguments that are written, and their gradients, back in between", function()
    same("written", function(wrap)
      local x, out = T.ones(3, 2), {}
      local f = wrap(function(t)
        t:add_(1)
        t[2]:mul_(2)
        return t:sum()
      end)
      for i = 1, 3 do out[2 * i - 1], out[2 * i] = f(x), x:clone() end
      return out
    end, { check = true })
    same("gradients", function(wrap)
      local x, out = T.ones(3):requires_grad_(), {}
      local f = wrap(function(t)
        (t * t):sum():backward()
        T.no_grad(function() t:sub_(t.grad * 0.1) end)
      end)
      for i = 1, 3 do
        f(x)
        out[2 * i - 1], out[2 * i] = x:detach():clone(), x.grad:clone()
      end
      return out
    end, { check = true })
    same("a scaler that moves", function(wrap)
      local net = nn.Linear(4, 1)
      local opt = optim.Adam(net:parameters(), { lr = 0.1 })
      local scaler = T.GradScaler { init_scale = 1024, growth_interval = 2 }
      local f = wrap(function(x)
        opt:zero_grad()
        local loss = T.autocast("f16", function() return net(x):pow(2):mean() end)
        scaler:scale(loss):backward()
        scaler:step(opt)
        scaler:update()
        return loss
      end)
      local out = {}
      for i = 1, 6 do out[i] = tostring(f(T.randn(4, 4) * (i == 4 and 1e6 or 1)):item()) end
      out[7], out[8] = net.weight, scaler:get_scale()
      return out
    end, { check = true })
  end)

  it("no history in tensors from outside: errors", function()
    local p, total = T.ones(3):requires_grad_(), T.zeros(1)
    raises("add_: f32%[1%] comes from outside of the traced function", T.jit(function(x) total:add_((p * x):sum()) end),
      T.ones(3))
    assert.is_false((total + 1).requires_grad)
    local marked = T.custom { name = "doubled", forward = function(ctx, x)
      ctx:mark_dirty(x)
      return x:mul_(2)
    end, backward = function(_, g) return g * 2 end }
    raises("mul_: f32%[3%] is an argument of the traced function", T.jit(function(x) return x:mul_(2):sum() end), p * 1)
    local function write(x) return marked(x):sum() end
    raises("doubled: f32%[3%] is an argument of the traced function", T.jit(write), p * 1)
    raises("writes argument tensor 1 in place with a value that has a gradient",
      T.jit(function(x) return x:mul_(p) end), T.ones(3))
    raises("changes whether argument tensor 1 requires a gradient", T.jit(function(x)
      x:requires_grad_();
      (x * x):sum():backward()
    end), T.ones(3))
  end)
end)
