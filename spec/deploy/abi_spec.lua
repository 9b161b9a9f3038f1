-- SPDX-License-Identifier: MIT
-- libperilune.so and its header, engine/deploy/perilune_model.h: what is exported, from C (spec/link/model.c), from
-- Python's ctypes and from LuaJIT's FFI, with the bits of T.jit.

local T = require "perilune"
local term = require "spec.support.terminal"
local nn = T.nn
local root = os.getenv "PERILUNE_ROOT" or "."
local build = os.getenv "PERILUNE_BUILD" or root .. "/build"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local library = build .. "/lib/libperilune.so.1"
local program = build .. "/spec/link_model"
local SERVE = os.getenv "PERILUNE_LANES" == "long" and 10000 or 500

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end

local function output(command, ...)
  local pipe = assert(io.popen(command:format(...) .. " 2>&1"))
  local text = pipe:read "a"
  return text, pipe:close()
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

-- Inputs by spec/link/model.c's formula.
local function filled(shape, variant)
  local n, list = 1, {}
  for _, k in ipairs(shape) do n = n * k end
  for k = 0, n - 1 do list[k + 1] = ((7 * k + 3 * (variant or 0)) % 33 - 16) / 16 end
  return T.tensor(list):view(shape)
end

local function hash(tensors)
  local h = -3750763034362895579
  for _, t in ipairs(tensors) do
    local s = t:to_string()
    for i = 1, #s do h = (h ~ s:byte(i)) * 1099511628211 end
  end
  return ("%016x"):format(h)
end

describe("the C ABI", function()
  local dir = os.tmpname()
  os.remove(dir)
  assert(os.execute("mkdir " .. dir))
  local missing = not io.open(program) and "a build without tests"

  -- A net with convolutions, a fused tail, a view and two outputs.
  local function save_net(path)
    T.manual_seed(3)
    local net = nn.Sequential(nn.Conv2d(3, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
      nn.Flatten(), nn.Linear(8 * 4 * 4, 10)):eval()
    local f = T.jit(function(x)
      local y = net(x)
      return y, (y - y:mean(2, { keepdim = true })):softmax(2)
    end)
    local x = filled { 2, 3, 8, 8 }
    local a, b = T.no_grad(function() return f(x) end)
    assert(T.save_graph(path, f:graph()))
    return a, b
  end

  -- A net whose convolutions keep their weights in the library's order.
  local function save_kept(path)
    T.manual_seed(9)
    local net = nn.Sequential(nn.Conv2d(32, 64, 3, { padding = 1 }), nn.ReLU(), nn.Conv2d(64, 64, 1)):eval()
    local f = T.jit(function(x) return net(x) end)
    T.no_grad(function() return f(filled { 1, 32, 12, 12 }) end)
    assert(T.save_graph(path, f:graph()))
  end

  -- Products of bf16 of as many sizes as there are places of some sets in the library's table.
  local function save_halves(path)
    T.manual_seed(10)
    local net = nn.Sequential()
    for k = 1, 12 do net:append(nn.Linear(64 + 8 * k, 72 + 8 * k)) end
    net = net:eval():to "bf16"
    local f = T.jit(function(x) return net(x:to "bf16"):to "f32" end)
    T.no_grad(function() return f(filled { 64, 72 }) end)
    assert(T.save_graph(path, f:graph()))
  end

  local function save_step(path, name, options, drops)
    T.manual_seed(4)
    local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    local params = name == "Muon" and { net[1].weight, net[3].weight } or net:parameters()
    if drops then net:append(nn.Dropout(0.4)) end
    local opt = T.optim[name or "Adam"](params, options or { lr = 0.05 })
    local step = T.jit(function(x, y)
      local loss = nn.F.mse_loss(net(x), y)
      opt:zero_grad()
      loss:backward()
      opt:step()
      return loss
    end)
    local x, y = filled { 5, 4 }, filled { 5, 3 }
    step(x, y)
    assert(T.save_graph(path, step:graph()))
    return function() return step(x, y):item() end, opt, step
  end

  teardown(function() os.execute(("rm -r '%s'"):format(dir)) end)

  it("exports what the header declares, under its version, and nothing else", function()
    local header = read(root .. "/engine/deploy/perilune_model.h")
    local declared, listed = {}, {}
    for name in header:gmatch "PERILUNE_API [^\n;(]-(perilune_[%w_]+)%(" do declared[#declared + 1] = name end
    for name in read(root .. "/cmake/abi.map"):gmatch "\n    (perilune_[%w_]+);" do listed[#listed + 1] = name end
    table.sort(declared)
    table.sort(listed)
    assert.is_true(#declared >= 28)
    assert.same(declared, listed)
    if not io.open(library) then return pending "libperilune.so is not built" end
    local exported, other = {}, {}
    for line in output("nm -D --defined-only '%s'", library):gmatch "[^\n]+" do
      local name = line:match "^%x+ T (perilune_[%w_]+)@@PERILUNE_1[_%d]*$"
      if name then exported[#exported + 1] = name
      elseif not line:find " A PERILUNE_1[_%d]*$" and not sanitized then other[#other + 1] = line end
    end
    table.sort(exported)
    assert.same(listed, exported)
    assert.same({}, other)
  end)

  it("has a header that C and C++ take alone", function()
    for _, cc in ipairs { "cc -std=c99 -x c", "c++ -std=c++11 -x c++" } do
      if output("command -v %s", cc:match "^%S+") ~= "" then
        local text, ok = output("printf '#include <perilune_model.h>\\nint main(void) { return 0; }' | %s -Wall -Wextra"
          .. " -Wpedantic -Werror -fsyntax-only -I'%s/engine/deploy' -", cc, root)
        assert.is_true(ok, text)
      end
    end
  end)

  -- What a function may return: arguments, views of them and of what it computed, the same twice, weights, what lies as
  -- a transposed operand does; alone, before and behind an ordinary result, and behind what has a gradient.
  it("gives what the function returns, row-major, whatever that shares memory with", function()
    if missing then return pending(missing) end
    local weight = filled { 3, 5 }
    local tracked = filled({ 5 }):requires_grad_()
    local results = {
      argument = function(x) return x end,
      ["an argument's row"] = function(x) return x[2] end,
      ["a transposed argument"] = function(x) return x:t() end,
      ["a result's row"] = function(_, y) return y[2] end,
      ["a result's column"] = function(_, y) return y:select(2, 3) end,
      ["a transposed result"] = function(_, y) return y:t() end,
      ["a reshaped result"] = function(_, y) return y:view(-1) end,
      ["a piece of a result"] = function(_, y) return y:narrow(1, 2, 2) end,
      ["an expanded result"] = function(_, y) return y:sum(1):expand(4, 5) end,
      ["the same result"] = function(_, y) return y end,
      ["what lies as a transposed argument"] = function(x) return x:t():exp() end,
      ["what lies as a transposed result"] = function(_, y) return (y:t() + 1):sin() end,
      ["a mask that lies so"] = function(x) return x:t():gt(0):to "f32" end,
      ["halves that lie so"] = function(x) return x:t():to "f16":to "f32" end,
      ["a copy of a weight"] = function() return weight:clone() end,
      ["a transposed weight"] = function() return weight:t() end,
      ["what has a gradient"] = function(x) return x * tracked end,
      ["a view of what has a gradient"] = function(x) return (x * tracked):t() end,
    }
    local x, path = filled { 3, 5 }, dir .. "/results"
    for name, result in pairs(results) do
      for way, f in pairs {
        alone = function(v) return result(v, v:sum(1, { keepdim = true }) * v) end,
        before = function(v)
          local y = v:sum(1, { keepdim = true }) * v
          return result(v, y), y
        end,
        behind = function(v)
          local y = v:sum(1, { keepdim = true }) * v
          return y, result(v, y)
        end,
        twice = function(v)
          local r = result(v, v * 2)
          return v * 3, r, v * tracked, r
        end } do
        local what = name .. ", " .. way
        local jitted = T.jit(f)
        local want = table.pack(jitted(x))
        for i, t in ipairs(want) do want[i] = t:detach():contiguous() end
        assert.is_true(T.save_graph(path, jitted:graph()), what)
        local got = T.load_graph(path):run { x1 = x }
        assert.equal(want.n, #got, what)
        for i, t in ipairs(want) do assert.is_true(t:equal(got[i]:detach()), what) end
        local text, ok = output("'%s' run '%s'", program, path)
        assert.is_true(ok, text)
        assert.truthy(text:find(hash(want), 1, true), what)
      end
    end
    local f = T.jit(function(v) return v * 2, weight end)
    f(x)
    local ok, text = pcall(T.save_graph, path, f:graph())
    assert.is_false(ok)
    assert.truthy(text:find("return a copy, such as t:clone()", 1, true), text)
  end)

  it("runs a model with the bits of T.jit", function()
    if missing then return pending(missing) end
    local a, b = save_net(dir .. "/net")
    local text, ok = output("'%s' run '%s/net'", program, dir)
    assert.is_true(ok, text)
    assert.equal(([[
input 0 x1 f32[2,3,8,8]
output 0 1 f32[2,10]
output 1 2 f32[2,10]
arena yes, trains 0
bits %s
inside the same
first %s
]]):format(hash { a, b }, ("%.9g"):format(a[1][1]:item())), text)
  end)

  it("makes steps of a training as T.jit does", function()
    if missing then return pending(missing) end
    local step, opt = save_step(dir .. "/step")
    local want = {}
    for k = 1, 4 do
      if k == 3 then opt.param_groups[1].lr = 0.5 end
      want[k] = ("loss %.9g\n"):format(step())
    end
    local text, ok = output("'%s' step '%s/step' 4", program, dir)
    assert.is_true(ok, text)
    assert.equal(table.concat(want) .. "lr 0.5, step 5\n", text)
  end)

  -- Two steps a run, and a mean of the weights; lr is another one from the third run on, before the first of its steps.
  local function twice(name, options, seed)
    T.manual_seed(seed)
    local net = nn.Linear(4, 3)
    local opt, mean = T.optim[name]({ net.weight, name ~= "Muon" and net.bias or nil }, options),
      net.weight:detach():clone()
    local step = T.jit(function(x, y)
      local loss
      for _ = 1, 2 do
        loss = nn.F.mse_loss(net(x), y)
        opt:zero_grad()
        loss:backward()
        opt:step()
      end
      mean:mul_(0.5):add_(net.weight:detach() * 0.5)
      return loss:detach() + mean:sum()
    end)
    return step, opt, net
  end

  it("makes several steps a run, and reads a weight that is there twice, as T.jit does, which goes on", function()
    if missing then return pending(missing) end
    for _, c in ipairs { { "AdamW" }, { "SGD", { lr = 0.05, momentum = 0.9 } }, { "SGD", { lr = 0.05 } },
      { "NAdam", { momentum_decay = 0.1 } },
      { "ASGD", { lr = 0.1, lambd = 0.1, t0 = 3, alpha = 0.6 } }, { "Prodigy", { lr = 0.5, d0 = 0.01 } },
      { "AdamWScheduleFree", { warmup_steps = 7, r = 1, weight_lr_power = 1.5 } }, { "Adafactor", { lr = 0.3 } },
      { "SGDScheduleFree", { lr = 0.1, weight_decay = 0.1 } }, { "LAMB" }, { "Muon" } } do
      local name = c[1]
      local step, opt, net = twice(name, c[2] or { lr = 0.05 }, 4)
      local x, y = filled { 5, 4 }, filled { 5, 3 }
      step(x, y)
      assert(T.save_graph(dir .. "/twice", step:graph()))
      local want = {}
      for k = 1, 4 do
        if k == 3 then opt.param_groups[1].lr = 0.5 end
        want[k] = ("loss %.9g\n"):format(step(x, y):item())
      end
      local text, ok = output("'%s' step '%s/twice' 4 '%s/on'", program, dir, dir)
      assert.is_true(ok, text)
      assert.equal(table.concat(want) .. "lr 0.5, step 10\n", text, name)
      -- What C wrote is taken on by the same function with other weights, and by its optimizer.
      local other, its_opt, its_net = twice(name, c[2] or { lr = 0.05 }, 5)
      other(x, y)
      assert(other:graph():load_state(dir .. "/on"))
      assert.equal(0.5, its_opt.param_groups[1].lr)
      local function state_of(o)
        local state = o:state_dict()
        for _, group in ipairs(state.param_groups) do
          for _, s in ipairs { "k", "d", "d_max", "d_numerator", "weight_sum", "lr_max", "lr" } do
            state[#state + 1] = group[s]
          end
        end
        for _, one in ipairs(state.state) do
          for key, v in pairs(one) do one[key] = T.is_tensor(v) and v:contiguous():to_string() or v end
        end
        return state
      end
      assert.same(state_of(opt), state_of(its_opt), name)
      for _ = 1, 2 do
        local a, b = step(x, y), other(x, y)
        assert.equal(a:item(), b:item(), name)
        for key, t in pairs(net:state_dict()) do assert.is_true(t:equal(its_net:state_dict()[key]), name) end
      end
    end
  end)

  it("draws what T.jit draws behind the same seed", function()
    if missing then return pending(missing) end
    local step = save_step(dir .. "/step", "SGD", { lr = 0.1 }, true)
    T.manual_seed(7)
    local want = {}
    for k = 1, 4 do want[k] = ("loss %.9g\n"):format(step()) end
    for _ = 1, 2 do
      local text, ok = output("'%s' steps '%s/step' 4", program, dir)
      assert.is_true(ok, text)
      assert.equal(table.concat(want), (text:gsub("lr.*", "")))
    end
  end)

  it("says that there is no device, and runs on one that is there", function()
    if missing then return pending(missing) end
    save_net(dir .. "/net")
    local function on(plugin, device)
      return (output("PERILUNE_CUDA_PLUGIN='%s' '%s' on '%s/net' %s", plugin, program, dir, device))
    end
    local text = on("/nowhere/perilune_cuda.so", "cuda")
    assert.truthy(text:find "^11: cuda: .*plug%-in", text)
    assert.truthy(on("/nowhere/perilune_cuda.so", "abacus"):find("^1: there is no device 'abacus'"))
    assert.equal(on("/nowhere/perilune_cuda.so", "cpu"), on("", "cpu"))
    local emulated = build .. "/spec/cuda_emulated.so"
    local there = io.open(emulated)
    if not there or sanitized then return end
    there:close()
    local want, got = on("", "cpu"), on(emulated, "cuda")
    local list = {}
    for n in want:gmatch "[^\n]+" do list[#list + 1] = tonumber(n) end
    assert.equal(8, #list)
    local k = 0
    for n in got:gmatch "[^\n]+" do
      k = k + 1
      assert.is_true(math.abs(tonumber(n) - list[k]) < 1e-5, got)
    end
    assert.equal(8, k)
    assert.truthy(on(emulated, "cuda:99"):find("^11: there is no device 'cuda:99'"))
  end)

  -- Every optimizer that there is: its steps are Lua's, or it is refused by name.
  it("trains with the optimizers whose steps it can take", function()
    if missing then return pending(missing) end
    local taken, refused = {}, {}
    for _, c in ipairs { { "SGD" }, { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01 } },
      { "Adam", { lr = 0.01, amsgrad = true } }, { "AdamW" },
      { "RMSprop", { lr = 0.01, centered = true, momentum = 0.5 } }, { "Adagrad", { lr = 0.1, weight_decay = 0.1 } },
      { "Adadelta", { lr = 1 } }, { "Lion", { lr = 0.01, weight_decay = 0.1 } }, { "Rprop" },
      { "LAMB", { lr = 0.1, bias_correction = false } }, { "Adagrad", { lr = 0.1, lr_decay = 0.1 } }, { "LAMB" },
      { "Adamax" }, { "Adamax", { lr = 0.1, weight_decay = 0.1 } }, { "RAdam" },
      { "RAdam", { lr = 0.1, weight_decay = 0.1, decoupled_weight_decay = true, betas = { 0.8, 0.7 } } },
      { "NAdam" }, { "NAdam", { lr = 0.1, momentum_decay = 0.1, betas = { 0.8, 0.7 } } },
      { "ASGD" }, { "ASGD", { lr = 0.1, lambd = 0.1, t0 = 3, alpha = 0.6 } }, { "AdamWScheduleFree" },
      { "AdamWScheduleFree", { lr = 0.1, weight_decay = 0.1, warmup_steps = 4, r = 1, weight_lr_power = 1.5 } },
      { "SGDScheduleFree" }, { "SGDScheduleFree", { lr = 0.1, weight_decay = 0.1, maximize = true } }, { "Adafactor" },
      { "Adafactor", { lr = 0.3, beta2_decay = -0.5, d = 0.5, weight_decay = 0.1, eps = { 1e-4, 1e-2 } } },
      { "Prodigy" }, { "Prodigy", { lr = 0.5, d0 = 0.01, use_bias_correction = true, weight_decay = 0.1 } },
      { "Muon" }, { "Muon", { lr = 0.1, nesterov = false, ns_steps = 3 } }, { "SOAP" } } do
      local name = c[1] .. (c[2] and "+" or "")
      local made, step, opt = pcall(save_step, dir .. "/any", c[1], c[2] or { lr = 0.05 })
      local text, ok
      if made then text, ok = output("'%s' steps '%s/any' 2 '%s/any'", program, dir, dir) end
      if ok then
        for _ = 1, 3 do -- two steps a process, each of which goes on from the last one's file
          local want = ("loss %.9g\nloss %.9g\n"):format(step(), step())
          assert.equal(want, (text:gsub("lr.*", "")), name)
          text = output("'%s' steps '%s/any' 2 '%s/any'", program, dir, dir)
        end
        step()
        step()
        local want = ("loss %.9g\nloss %.9g\n"):format(step(), step()) -- and with another lr from then on
        for _, group in ipairs(opt.param_groups) do group.lr = 0.5 end
        want = want .. ("loss %.9g\nloss %.9g\n"):format(step(), step())
        assert.equal(want, (output("'%s' step '%s/any' 4", program, dir):gsub("lr.*", "")), name)
        taken[#taken + 1] = name
      else
        refused[#refused + 1] = name
        -- those that update after their graph has run leave it without an optimizer
        local said = not made or text:find "computed by Lua" or text:find "this model has no optimizer"
        assert.truthy(said, name .. ": " .. tostring(text))
      end
    end
    assert.same("SGD SGD+ Adam+ AdamW RMSprop+ Adagrad+ Adadelta+ Lion+ Rprop LAMB+ Adagrad+ LAMB Adamax Adamax+ RAdam "
      .. "RAdam+ NAdam NAdam+ ASGD ASGD+ AdamWScheduleFree AdamWScheduleFree+ SGDScheduleFree SGDScheduleFree+ "
      .. "Adafactor Adafactor+ Prodigy Prodigy+ Muon Muon+",
      table.concat(taken, " "))
    assert.equal(1, #refused)
  end)

  it("takes a schedule-free optimizer's weights to their averages and back", function()
    if missing then return pending(missing) end
    for _, name in ipairs { "AdamWScheduleFree", "SGDScheduleFree" } do
      local step, opt, f = save_step(dir .. "/free", name, { lr = 0.1 })
      local text, ok = output("'%s' averages '%s/free' '%s/averaged'", program, dir, dir)
      assert.is_true(ok, text)
      for _ = 1, 3 do
        step()
        opt:eval()
        opt:train()
      end
      opt:eval()
      local want, n = {}, 0
      for k, p in ipairs(opt.param_groups[1].params) do want[k] = ("%.9g"):format(p:detach():view(-1):get(1)) end
      for _, v in ipairs(want) do n = n + (text:find(" " .. v .. "\n", 1, true) and 1 or 0) end
      assert.equal(#want, n, text)
      opt:train()
      local loss = ("loss %.9g\n"):format(step())
      assert.truthy(text:find(loss, 1, true), text)
      step()
      assert(f:graph():load_state(dir .. "/averaged")) -- the function has the averages, as C had
      assert.is_false(opt:is_training())
      assert.error_matches(step, "call opt:train%(%) before gradients")
      opt:train()
      assert.equal(loss, ("loss %.9g\n"):format(step()))
      local said = output("'%s' step '%s/averaged' 1", program, dir)
      assert.truthy(said:find("at which no step begins; perilune_model_average(model, 0) goes back", 1, true), said)
    end
    -- Behind another optimizer, whose count a step that is refused leaves alone.
    local p, q = nn.Parameter(T.ones(3)), nn.Parameter(T.ones(3))
    local first, second = T.optim.Adam({ p }), T.optim.AdamWScheduleFree({ q })
    local step = T.jit(function(x)
      first:zero_grad()
      second:zero_grad()
      local loss = ((p + q) * x):square():sum()
      loss:backward()
      first:step()
      second:step()
      return loss
    end)
    step(T.ones(3))
    assert(T.save_graph(dir .. "/two", step:graph()))
    local text, ok = output("'%s' averages '%s/two' '%s/two'", program, dir, dir)
    assert.is_true(ok, text)
    save_step(dir .. "/free", "Adam")
    local said = output("'%s' averages '%s/free' '%s/averaged'", program, dir, dir)
    assert.truthy(said:find("keeps no averages; that of AdamWScheduleFree or SGDScheduleFree does", 1, true), said)
  end)

  it("counts the steps that were made where a run fails behind them, at whatever sizes", function()
    if missing then return pending(missing) end
    local function training()
      T.manual_seed(3)
      local p, norm = T.randn(3):requires_grad_(), nn.BatchNorm1d(3)
      local opt = T.optim.NAdam({ p }, { lr = 0.1 })
      return function(where)
        norm(T.ones(4, 3) * 2)
        p.grad = p:detach() * 2
        opt:step()
        p.grad = p:detach() * p:detach():index_select(1, where):mean()
        opt:step()
        return p:detach():sum()
      end, opt, p
    end
    local function places(n, first)
      local list = {}
      for i = 1, n do list[i] = i == 1 and first or 1 + (i - 1) % 3 end
      return T.tensor(list, { dtype = "i64" })
    end
    local step, opt, p = training()
    local jitted = T.jit((training()))
    for _, f in ipairs { step, jitted } do f(places(4, 1)) end
    assert(T.save_graph(dir .. "/failed", jitted:graph(), { dynamic = { x1 = { "n" } }, sizes = { n = { 1, 9 } } }))
    for _, n in ipairs { 4, 7 } do
      local script, optimizer, weight = step, opt, p
      if n ~= 4 then
        script, optimizer, weight = training()
        script(places(4, 1))
      end
      local want = {}
      for k = 1, 4 do
        local ok, sum = pcall(script, places(n, k == 2 and 99 or 1))
        want[k] = ("%s, step %d\n"):format(ok and ("%.9g"):format(sum:item()) or "failed",
          optimizer.state[weight].step)
      end
      local text, ok = output("'%s' failed '%s/failed' n %d", program, dir, n)
      assert.is_true(ok, text)
      assert.equal(table.concat(want), text)
    end
  end)

  it("saves what it trained, to be trained on", function()
    if missing then return pending(missing) end
    local step, opt = save_step(dir .. "/from")
    local function steps(n, path, to)
      local want = {}
      for k = 1, n do
        if k == 3 then opt.param_groups[1].lr = 0.5 end
        want[k] = ("loss %.9g\n"):format(step())
      end
      local text, ok = output("'%s' step '%s/%s' %d '%s/%s'", program, dir, path, n, dir, to)
      assert.is_true(ok, text)
      assert.equal(table.concat(want), (text:gsub("lr.*", "")))
    end
    steps(3, "from", "on")
    local before = read(dir .. "/from") .. read(dir .. "/from.safetensors")
    steps(2, "on", "on") -- over itself: the numbers that were set and the count of steps are in the file
    steps(1, "on", "last")
    local text = read(dir .. "/last")
    assert.truthy(text:find("step=7", 1, true), text)
    assert.truthy(text:find(" lr=0.5", 1, true), text)
    assert.equal(before, read(dir .. "/from") .. read(dir .. "/from.safetensors"))
    local g, message = T.load_graph(dir .. "/last")
    assert.truthy(g, message)
    -- A save that is cut between its two files: the tensors bring their text along.
    write(dir .. "/cut", read(dir .. "/on"))
    steps(1, "last", "on")
    write(dir .. "/cut.safetensors", read(dir .. "/on.safetensors"))
    steps(1, "cut", "done")
    assert.truthy(read(dir .. "/done"):find("step=9", 1, true))
    -- In a locale with another decimal point, if one can be made here.
    if os.execute(("localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' > '%s/log' 2>&1"):format(dir, dir)) then
      local said, ok = output("LOCPATH='%s' LC_ALL=de_DE.UTF-8 '%s' step '%s/done' 1 '%s/german'", dir, program, dir,
        dir)
      assert.is_true(ok, said)
      assert.truthy(said:find "loss %d+,%d", said)
      assert.truthy(read(dir .. "/german"):find(" lr=0.5 ", 1, true))
      assert(T.load_graph(dir .. "/german"))
      step()
      steps(1, "german", "last")
    end
    local said, ok = output("'%s' step '%s/on' 1 /no/such/folder/x", program, dir)
    assert.is_nil(ok)
    assert.truthy(said:find("save: /no/such/folder/x", 1, true), said)
  end)

  it("says what is wrong", function()
    if missing then return pending(missing) end
    save_net(dir .. "/net")
    local text, ok = output("'%s' wrong '%s/net'", program, dir)
    assert.is_true(ok, text)
    assert.truthy(text:find("perilune convert net.onnx net.graph", 1, true))
    assert.truthy(text:find("the model has 1 inputs, got 2", 1, true))
    T.manual_seed(1)
    local net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    local f = T.jit(function(x) return net(x) end)
    T.no_grad(function() return f(T.ones(2, 3)) end)
    assert(T.save_graph(dir .. "/drop", f:graph()))
    text, ok = output("'%s' run '%s/drop'", program, dir)
    assert.falsy(ok)
    assert.truthy(text:find("draws random numbers; put the net into evaluation mode", 1, true))
    local p = T.zeros(3):requires_grad_()
    local opt = T.optim.Adagrad({ p }, { lr = 0.1, lr_decay = 0.1 })
    local step = T.jit(function(x)
      opt:zero_grad()
      local loss = (p - x):square():sum()
      loss:backward()
      opt:step()
      return loss
    end)
    step(T.ones(3))
    assert(T.save_graph(dir .. "/adagrad", step:graph()))
    local body, changed = read(dir .. "/adagrad"):gsub("numbers=%b{}", "numbers={1.0}")
      :gsub('rule="adagrad"', 'rule="schedule_free_move"')
    assert.equal(1, changed)
    write(dir .. "/adagrad", body)
    text, ok = output("'%s' step '%s/adagrad' 1", program, dir)
    assert.falsy(ok)
    assert.truthy(text:find("this optimizer's numbers of a step are computed by Lua", 1, true))
  end)

  it("has an example that compiles and runs", function()
    if sanitized then return pending "a sanitizer's library needs its runtime" end
    local none = term.missing("plain", "cc")
    if none or not io.open(library) then return pending(none or "libperilune.so is not built") end
    T.manual_seed(1)
    local f = T.jit(nn.Linear(4, 2))
    local y = f(T.ones(3, 4)):detach()
    assert(T.save_graph(dir .. "/example", f:graph()))
    local text, ok = output("cc -std=c11 -Wall -Wextra -Werror -I'%s/engine/deploy' '%s/examples/embed/run_model.c' -o"
      .. " '%s/example.bin' '%s' -lpthread && LD_LIBRARY_PATH='%s/lib' '%s/example.bin' '%s/example'", root, root, dir,
      library, build, dir, dir)
    assert.is_true(ok, text)
    assert.equal(("input x1 f32[3,4]\noutput 1 f32[3,2]\n1: %.4f %.4f %.4f\nok\n"):format(y[1][1]:item(),
      y[1][2]:item(), y[2][1]:item()), text)
  end)

  it("takes the text that the tensors bring along where a save was cut between its two files", function()
    if missing then return pending(missing) end
    local path = dir .. "/cut"
    local function save(make)
      local g = T.graph()
      g:outputs { make(g:input("x", { 2 })) }
      assert(T.save_graph(path, g))
    end
    save(function(x) return x * T.full({ 2 }, 2.0) end)
    local old = read(path)
    save(function(x) return (x * T.full({ 2 }, 4.0)):exp() end)
    write(path, old)
    local text, ok = output("'%s' run '%s'", program, path)
    assert.is_true(ok, text)
    assert.equal(("%.9g"):format((filled { 2 } * 4):exp()[1]:item()), text:match "first (%S+)")
  end)

  it("serves many threads with the bits of one", function()
    if missing then return pending(missing) end
    save_net(dir .. "/net")
    local text, ok = output("'%s' serve '%s/net' 8 %d", program, dir, sanitized and SERVE // 10 or SERVE)
    assert.is_true(ok, text)
    assert.equal(("8 threads, %d runs each, 0 with other bits\n"):format(sanitized and SERVE // 10 or SERVE), text)
    for name, save in pairs { kept = save_kept, halves = save_halves } do
      save(("%s/%s"):format(dir, name))
      local runs = sanitized and SERVE // 20 or SERVE // 5
      text, ok = output("'%s' serve '%s/%s' 8 %d", program, dir, name, runs)
      assert.is_true(ok, text)
      assert.equal(("8 threads, %d runs each, 0 with other bits\n"):format(runs), text)
    end
  end)

  it("runs an ONNX file that was converted", function()
    if missing then return pending(missing) end
    local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)):eval()
    assert(T.onnx.save(dir .. "/net.onnx", net, T.rand(2, 1, 6, 6), { dynamic = { x = { "batch" } } }))
    local convert = require "perilune.command.convert"
    local x = filled { 3, 1, 6, 6 }
    local loaded = T.onnx.load(dir .. "/net.onnx")
    local f = T.jit(function(v) return loaded(v) end)
    local y = T.no_grad(function() return f(x) end)
    local printed, old = {}, print
    _G.print = function(...) printed[#printed + 1] = table.concat({ ... }, "\t") end -- luacheck: ignore
    local status = convert.run(dir .. "/net.onnx", dir .. "/net.graph", { size = { "batch=3" } })
    _G.print = old -- luacheck: ignore
    assert.equal(0, status)
    assert.truthy(printed[1]:find "a graph of %d+ lines, 1 input, 1 output")
    local text, ok = output("'%s' run '%s/net.graph'", program, dir)
    assert.is_true(ok, text)
    assert.truthy(text:find("input 0 x f32[3,1,6,6]", 1, true))
    assert.equal(hash { y }, text:match "bits (%x+)")
    assert.equal("--size is for .graph", convert.problem("a.npz", { size = { "n=1" } }))
  end)

  -- The same model through a foreign function interface: prints the output's elements as Lua's %.9g.
  local function same_elements(text, ok, y)
    assert.is_true(ok, text)
    local want = {}
    for _, v in ipairs(y:flatten():totable()) do want[#want + 1] = ("%.9g"):format(v) end
    assert.equal(table.concat(want, " ") .. "\n", text)
  end

  it("is called from Python by ctypes", function()
    if sanitized then return pending "a sanitizer's library is not for Python" end
    local none = term.missing("plain", "python3")
    if none or not io.open(library) then return pending(none or "libperilune.so is not built") end
    local a = save_net(dir .. "/net")
    write(dir .. "/t.py", ([[
import ctypes as c
L = c.CDLL(%q)
L.perilune_message.restype = c.c_char_p
def check(status):
    if status: raise RuntimeError(L.perilune_message().decode())
m, s = c.c_void_p(), c.c_void_p()
check(L.perilune_model_load(%q, None, c.byref(m)))
check(L.perilune_session_new(m, c.byref(s)))
n = 2 * 3 * 8 * 8
x = (c.c_float * n)(*[((7 * k) %% 33 - 16) / 16 for k in range(n)])
y, z = (c.c_float * 20)(), (c.c_float * 20)()
one, two = (c.c_void_p * 1)(c.addressof(x)), (c.c_void_p * 2)(c.addressof(y), c.addressof(z))
check(L.perilune_session_run(s, one, 1, two, 2))
print(" ".join("%%.9g" %% v for v in y))
assert L.perilune_session_run(s, None, 7, None, 2) == 2
assert L.perilune_message() == b"the model has 1 inputs, got 7"
L.perilune_session_release(s)
L.perilune_model_release(m)
]]):format(library, dir .. "/net"):gsub('"/', 'b"/', 2):gsub('CDLL%(b', "CDLL(", 1))
    local text, ok = output("python3 '%s/t.py'", dir)
    same_elements(text, ok, a)
  end)

  it("is called from LuaJIT by its FFI", function()
    if sanitized then return pending "a sanitizer's library is not for LuaJIT" end
    local none = term.missing("plain", "luajit")
    if none or not io.open(library) then return pending(none or "libperilune.so is not built") end
    local a = save_net(dir .. "/net")
    write(dir .. "/t.lua", ([[
local ffi = require "ffi"
local header = io.open(%q):read "*a"
-- the declarations: without comments, the preprocessor's lines, and what is for C++
header = header:gsub("/%%*.-%%*/", ""):gsub("#ifdef __cplusplus.-#endif", "")
header = header:gsub("\n#[^\n]*", "\n"):gsub("PERILUNE_API", "")
ffi.cdef(header)
local L = ffi.load(%q)
local function check(status)
  if status ~= 0 then error(ffi.string(L.perilune_message())) end
end
local m, s = ffi.new "perilune_model *[1]", ffi.new "perilune_session *[1]"
check(L.perilune_model_load(%q, nil, m))
check(L.perilune_session_new(m[0], s))
local n = 2 * 3 * 8 * 8
local x, y, z = ffi.new("float[?]", n), ffi.new "float[20]", ffi.new "float[20]"
for k = 0, n - 1 do x[k] = ((7 * k) %% 33 - 16) / 16 end
check(L.perilune_session_run(s[0], ffi.new("const void *[1]", { x }), 1, ffi.new("void *[2]", { y, z }), 2))
local out = {}
for k = 0, 19 do out[k + 1] = ("%%.9g"):format(y[k]) end
print(table.concat(out, " "))
L.perilune_session_release(s[0])
L.perilune_model_release(m[0])
]]):format(root .. "/engine/deploy/perilune_model.h", library, dir .. "/net"))
    local text, ok = output("luajit '%s/t.lua'", dir)
    same_elements(text, ok, a)
  end)
end)
