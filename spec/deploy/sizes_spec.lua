-- SPDX-License-Identifier: MIT
-- Free sizes of saved graphs: what T.save_graph(path, f, inputs, {dynamic=}) writes gives the function's bits at any
-- size between its bounds, through T.load_graph and the C ABI, and what no one text can say is refused.

local T = require "perilune"
local term = require "spec.support.terminal"
local sizes = require "perilune.graph.sizes"
local nn = T.nn
local root = os.getenv "PERILUNE_ROOT" or "."
local build = os.getenv "PERILUNE_BUILD" or root .. "/build"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local library = build .. "/lib/libperilune.so.1"
local program = build .. "/spec/link_model"

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

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end

-- Inputs by spec/link/model.c's formula.
local function filled(shape, dtype, variant)
  local n, list = 1, {}
  for _, k in ipairs(shape) do n = n * k end
  for k = 0, n - 1 do
    local v = (7 * k + 3 * (variant or 0)) % 33 - 16
    list[k + 1] = dtype == "i64" and (v + 16) % 2 or v / 16
  end
  return T.tensor(list, { dtype = dtype or "f32" }):view(shape)
end

local function hash(tensors)
  local h = -3750763034362895579
  for _, t in ipairs(tensors) do
    local s = t:to_string()
    for i = 1, #s do h = (h ~ s:byte(i)) * 1099511628211 end
  end
  return ("%016x"):format(h)
end

-- name → function → f, example inputs, options, list of { sizes by name, shapes }
local models = {}

function models.pictures()
  T.manual_seed(5)
  local net = nn.Sequential(nn.Conv2d(3, 8, 3, { stride = 2 }), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)):eval()
  local points = {}
  for _, b in ipairs { 1, 2, 64 } do
    for _, h in ipairs { 8, 15, 40 } do
      points[#points + 1] = { { batch = b, h = h, w = 3 * h // 2 }, { { b, 3, h, 3 * h // 2 } } }
    end
  end
  return function(x)
    local y = net(x):flatten(3):transpose(2, 3)
    return y:mean(2):softmax(2), y:reshape(-1, 8)
  end, { T.rand(2, 3, 16, 16) }, { dynamic = { x = { "batch", [3] = "h", [4] = "w" } },
    sizes = { batch = { 1, 64 }, h = { 8, 40 }, w = { 8, 64 } }, output_names = { "p", "q" } }, points
end

function models.text()
  local emb, places = nn.Embedding(20, 16), nn.Embedding(32, 16)
  local layer = nn.TransformerEncoderLayer(16, 2, 32, { batch_first = true }):eval()
  local points = {}
  for _, b in ipairs { 1, 3, 7 } do
    for _, n in ipairs { 1, 2, 17, 32 } do points[#points + 1] = { { batch = b, length = n }, { { b, n } } } end
  end
  return function(ids)
    local n = ids:size(2)
    return layer(emb(ids + 1) + places(T.arange(n)):unsqueeze(1)):mean(2)
  end, { T.ones({ 2, 5 }, { dtype = "i64" }) }, { dynamic = { x = { "batch", "length" } },
    sizes = { batch = { 1, 100 }, length = { 1, 32 } } }, points
end

function models.sequence()
  local lstm = nn.LSTM(4, 6):eval()
  return function(x) return (lstm(x)) end, { T.rand(5, 2, 4) }, { dynamic = { x = { "time", "batch" } },
    sizes = { time = { 1, 50 } } }, { { { time = 1, batch = 1 }, { { 1, 1, 4 } } },
    { { time = 50, batch = 3 }, { { 50, 3, 4 } } } }
end

-- Numbers, two inputs of one size, sums of sizes.
function models.numbers()
  return function(x, y)
    local n = x:size(1)
    return T.cat({ x, y, x }, 1):narrow(1, n, 2 * n + 1) * n + T.arange(n):sum(), x:outer(y):reshape(n * n)
  end, { T.rand(3), T.rand(3) }, { dynamic = { a = { "n" }, b = { "n" } }, sizes = { n = { 1, 1000 } },
    input_names = { "a", "b" } }, { { { n = 1 }, { { 1 }, { 1 } } }, { { n = 77 }, { { 77 }, { 77 } } } }
end

-- Of long rows an eager call finds elements without sorting them; which ones is a formula that no text has.
function models.order()
  return function(x) return x:quantile(0.3, 1), x:quantile(0.75, { dim = 1, interpolation = "nearest" }) end,
    { T.rand(5) }, { dynamic = { x = { "n" } } }, { { { n = 1 }, { { 1 } } }, { { n = 4096 }, { { 4096 } } } }
end

describe("free sizes of saved graphs", function()
  local dir = os.tmpname()
  os.remove(dir)
  assert(os.execute("mkdir " .. dir))
  local missing = not io.open(program) and "a build without tests"
  teardown(function() os.execute(("rm -r '%s'"):format(dir)) end)

  for name, make in pairs(models) do
    it("give the function's bits: " .. name, function()
      local f, inputs, options, points = make()
      local dtype = inputs[1]:dtype()
      local path = dir .. "/" .. name
      assert(T.save_graph(path, f, inputs, options))
      local calls, want = {}, {}
      for _, at in ipairs(points) do
        local xs, feed, set = {}, {}, {}
        for i, shape in ipairs(at[2]) do
          xs[i] = filled(shape, dtype)
          feed[options.input_names and options.input_names[i] or "x"] = xs[i]
        end
        local jitted = T.jit(function(...) return f(...) end)
        local ys = T.no_grad(function() return { jitted(table.unpack(xs)) } end)
        local got = assert(T.load_graph(path, { sizes = at[1] })):run(feed)
        for i, y in ipairs(ys) do
          local z = got[options.output_names and options.output_names[i] or i]
          assert.same(y:shape(), z:shape())
          assert.is_true((y - z):abs():amax():item() < 1e-5)
        end
        for key, v in pairs(at[1]) do set[#set + 1] = ("%s=%d"):format(key, v) end
        calls[#calls + 1] = "'" .. table.concat(set, ",") .. "'"
        want[#want + 1] = hash(ys)
      end
      if missing then return pending(missing) end
      for _ = 1, 2 do -- in turn, so that sizes are dropped and made again
        for i = 1, #points do
          calls[#calls + 1], want[#want + 1] = calls[i], want[i]
        end
      end
      local text, ok = output("'%s' free '%s' %s", program, path, table.concat(calls, " "))
      assert.is_true(ok, text)
      local bits = {}
      for b in text:gmatch ": bits (%x+)" do bits[#bits + 1] = b end
      assert.same(want, bits)
    end)
  end

  -- name → loss(...), parameters, inputs at a size, dynamic, sizes
  local trainings = {}
  function trainings.layers()
    local net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return function(x, y) return nn.F.mse_loss(net(x), y) + (net(x):softmax(2) * y):mean() end, net,
      function(n) return { { n, 4 }, { n, 3 } } end, { x1 = { "n" }, x2 = { "n" } }, { 2, 40 }, { 7, 3, 16, 2, 7, 40 }
  end
  function trainings.pictures()
    local net = nn.Sequential(nn.Conv2d(2, 4, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
      nn.Linear(4 * 9, 5))
    return function(x) return net(x):square():mean() end, net, function(n) return { { n, 2, 6, 6 } } end,
      { x1 = { "n" } }, { 1, 32 }, { 8, 8, 3, 1, 32 }
  end
  function trainings.texts()
    local embed, layer = nn.Embedding(6, 8), nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 12, dropout = 0 })
    local all = nn.ModuleList { embed, layer }
    return function(ids) return layer(embed(ids + 1)):square():mean() end, all,
      function(n) return { { 3, n }, dtype = "i64" } end, { x1 = { [2] = "n" } }, { 2, 24 }, { 9, 5, 24, 2 }
  end

  function trainings.sequences()
    local net, out = nn.LSTM(4, 6, { num_layers = 2, batch_first = true }), nn.Linear(6, 2)
    local all = nn.ModuleList { net, out }
    return function(x)
      local loss = out((net(x))):square():mean()
      return loss * (1 + 0 * x:detach():sum())
    end, all, function(n) return { { 3, n, 4 } } end, { x1 = { [2] = "n" } }, { 2, 20 }, { 6, 3, 20, 2, 6 }
  end

  it("have steps of training, which go on from size to size as T.jit's do", function()
    if missing then return pending(missing) end
    local path = os.tmpname()
    for name, make in pairs(trainings) do
      for kind, opts in pairs { AdamW = { lr = 0.01 }, NAdam = { lr = 0.01 }, SGD = { lr = 0.1, momentum = 0.9 } } do
        local function fresh(seed)
          T.manual_seed(seed)
          local loss_of, net, shapes, dynamic, bounds, list = make()
          local opt = T.optim[kind](net:parameters(), opts)
          return T.jit(function(...)
            opt:zero_grad()
            local loss = loss_of(...)
            loss:backward()
            opt:step()
            return loss
          end, { max_traces = 1 }), opt, net, shapes, dynamic, bounds, list
        end
        local function inputs(shapes, n, variant)
          local out = {}
          local all = shapes(n)
          for i, shape in ipairs(all) do out[i] = filled(shape, all.dtype, variant) end
          return table.unpack(out)
        end
        local step, opt, net, shapes, dynamic, bounds, list = fresh(3)
        step(inputs(shapes, list[1], 0))
        assert(T.save_graph(path, step:graph(), { dynamic = dynamic, sizes = { n = bounds } }))
        local want, sets = {}, {}
        for k, n in ipairs(list) do
          if k == 3 then
            opt.param_groups[1].lr = 0.5
            if kind == "SGD" then opt.param_groups[1].momentum = 0.5 end
          end
          want[k], sets[k] = ("loss %.9g\n"):format(step(inputs(shapes, n, k - 1)):item()), "n=" .. n
        end
        local at = assert(T.load_graph(path, { sizes = { n = list[2] } }))
        assert.same({ list[2], 1 }, { at:nodes()[1].shapes[1][dynamic.x1[2] and 2 or 1] or list[2], step.ntraces })
        local text, ok = output("'%s' steps_at '%s' '%s' %s n=99", program, path, path, table.concat(sets, " "))
        assert.is_true(ok, text)
        assert.equal(table.concat(want) .. ("n=99: the size 'n' is 99; the model was saved for %d to %d\n"):format(
          table.unpack(bounds)), text, name)
        local other, its_opt, its_net = fresh(4)
        if kind == "SGD" then its_opt.param_groups[1].momentum = 0.5 end
        other(inputs(shapes, list[3], 1))
        assert(other:graph():load_state(path))
        assert.equal(0.5, its_opt.param_groups[1].lr)
        for key, t in pairs(net:state_dict()) do assert.is_true(t:equal(its_net:state_dict()[key]), name) end
        assert.equal(step(inputs(shapes, list[2], 5)):item(), other(inputs(shapes, list[2], 5)):item())
      end
    end
    -- What a function makes of a size is its own.
    local p = nn.Parameter(T.ones(3))
    local opt = T.optim.SGD({ p }, { lr = 0.1 })
    local step = T.jit(function(x)
      opt:zero_grad();
      ((p * x):sum() / x:size(1)):backward()
      opt:step()
    end)
    step(T.ones(5, 3))
    local function refused(what, ...)
      local done, err = pcall(T.save_graph, path, step:graph(), ...)
      assert.is_false(done)
      assert.truthy(err:find(what, 1, true), err)
    end
    refused("the function is another one for other sizes", { dynamic = { x1 = { "n" } } })
    refused("unknown input 'x2'", { dynamic = { x2 = { "n" } } })
    refused("nothing may follow it but", T.ones(5, 3), { dynamic = { x1 = { "n" } } })
    refused("unknown", { input_names = { "x" } })
    os.remove(path)
    os.remove(path .. ".safetensors")
  end)

  it("are told by name, and set by name or by shapes", function()
    if missing then return pending(missing) end
    local f, inputs, options = models.pictures()
    assert(T.save_graph(dir .. "/p", f, inputs, options))
    local text, ok = output("'%s' free '%s/p' batch=3 0:2x3x9x8 0:2x3x9 0:2x4x9x9 0:2x3x41x9 1:2 batch=0 nothing=1",
      program, dir)
    assert.is_true(ok, text)
    local lines = {}
    for line in text:gmatch "[^\n]+" do lines[#lines + 1] = line:gsub("bits %x+", "bits") end
    assert.same({ "size batch 2 from 1 to 64", "size h 16 from 8 to 40", "size w 16 from 8 to 64",
      "input x: batch 3 h w",
      "output p: batch 8", "output q: ? 8", "output 0 p f32[3,8]", "output 1 q f32[27,8]", "batch=3: bits",
      "output 0 p f32[2,8]", "output 1 q f32[4,8]", "0:2x3x9x8: bits",
      "0:2x3x9: input 0 (x) has 4 dimensions, got 3", "0:2x4x9x9: size 1 of input 0 (x) is 3 in the model, got 4",
      "0:2x3x41x9: the size 'h' is 41; the model was saved for 8 to 40",
      "1:2: there is no input 1; there are 1, from 0",
      "batch=0: the size 'batch' is 0; the model was saved for 1 to 64",
      "nothing=1: perilune_session_set_size: the model has no free size 'nothing'" }, lines)
  end)

  it("serve many threads, each at sizes of its own, with the bits of one", function()
    if missing then return pending(missing) end
    local runs = os.getenv "PERILUNE_LANES" == "long" and 10000 or sanitized and 30 or 300
    for _, name in ipairs { "text", "pictures" } do
      local f, inputs, options = models[name]()
      assert(T.save_graph(dir .. "/s", f, inputs, options))
      local text, ok = output("'%s' serve '%s/s' 8 %d", program, dir, runs)
      assert.is_true(ok, text)
      assert.equal(("8 threads, %d runs each, 0 with other bits\n"):format(runs), text)
    end
  end)

  it("are set from Python by ctypes, and from LuaJIT", function()
    if sanitized then return pending "a sanitizer's library is not for Python" end
    if not io.open(library) then return pending "libperilune.so is not built" end
    local f, inputs, options = models.numbers()
    assert(T.save_graph(dir .. "/n", f, inputs, options))
    local want = {}
    for _, n in ipairs { 2, 5 } do
      local y = f(filled { n }, filled { n })
      local line = {}
      for _, v in ipairs(y:totable()) do line[#line + 1] = ("%.9g"):format(v) end
      want[#want + 1] = table.concat(line, " ")
    end
    want = table.concat(want, "\n") .. "\n"
    write(dir .. "/t.py", ([[
import ctypes as c
class Info(c.Structure):
    _fields_ = [("name", c.c_char_p), ("shape", c.POINTER(c.c_int64)), ("bytes", c.c_size_t), ("dtype", c.c_int32),
        ("ndim", c.c_int32)]
L = c.CDLL("%s")
L.perilune_message.restype = c.c_char_p
L.perilune_session_result.restype = c.c_void_p
def check(status):
    if status: raise RuntimeError(L.perilune_message().decode())
m, s, t = c.c_void_p(), c.c_void_p(), Info()
check(L.perilune_model_load(b"%s/n", None, c.byref(m)))
check(L.perilune_session_new(m, c.byref(s)))
for n in 2, 5:
    check(L.perilune_session_set_shape(s, 0, (c.c_int64 * 1)(n), 1))
    x = (c.c_float * n)(*[((7 * k) %% 33 - 16) / 16 for k in range(n)])
    check(L.perilune_session_run_inside(s, (c.c_void_p * 2)(c.addressof(x), c.addressof(x)), 2))
    check(L.perilune_session_output(s, 0, c.byref(t)))
    y = (c.c_float * t.shape[0]).from_address(L.perilune_session_result(s, 0))
    print(" ".join("%%.9g" %% v for v in y))
L.perilune_session_release(s)
L.perilune_model_release(m)
]]):format(library, dir))
    write(dir .. "/t.lua", ([[
local ffi = require "ffi"
local header = io.open("%s/engine/deploy/perilune_model.h"):read "*a"
header = header:gsub("/%%*.-%%*/", ""):gsub("#ifdef __cplusplus.-#endif", "")
header = header:gsub("\n#[^\n]*", "\n"):gsub("PERILUNE_API", "")
ffi.cdef(header)
local L = ffi.load("%s")
local function check(status) if status ~= 0 then error(ffi.string(L.perilune_message())) end end
local m, s, t = ffi.new "perilune_model *[1]", ffi.new "perilune_session *[1]", ffi.new "perilune_tensor_info[1]"
check(L.perilune_model_load("%s/n", nil, m))
check(L.perilune_session_new(m[0], s))
for _, n in ipairs { 2, 5 } do
  check(L.perilune_session_set_size(s[0], "n", n))
  check(L.perilune_session_output(s[0], 0, t))
  local count = tonumber(t[0].shape[0])
  local x, y, z = ffi.new("float[?]", n), ffi.new("float[?]", count), ffi.new("float[?]", n * n)
  for k = 0, n - 1 do x[k] = ((7 * k) %% 33 - 16) / 16 end
  check(L.perilune_session_run(s[0], ffi.new("const void *[2]", { x, x }), 2, ffi.new("void *[2]", { y, z }), 2))
  local out = {}
  for k = 0, count - 1 do out[k + 1] = ("%%.9g"):format(y[k]) end
  print(table.concat(out, " "))
end
L.perilune_session_release(s[0])
L.perilune_model_release(m[0])
]]):format(root, library, dir))
    for tool, file in pairs { python3 = "t.py", luajit = "t.lua" } do
      if not term.missing("plain", tool) then
        local text, ok = output("%s '%s/%s'", tool, dir, file)
        assert.is_true(ok, text)
        assert.equal(want, text)
      end
    end
  end)

  it("are told from each other, also many with few values", function()
    local random = math.random
    math.randomseed(28)
    for _ = 1, 12 do
      local k, inputs, options = random(2, 6), {}, { dynamic = {}, sizes = {}, input_names = {} }
      local parts = {}
      for i = 1, k do
        local name, size, least = "x" .. i, "s" .. i, random(1, 3)
        options.input_names[i], options.dynamic[name] = name, { size }
        options.sizes[size] = { least, least + random(0, 2) }
        inputs[i] = T.rand(random(least, options.sizes[size][2]), 2)
        parts[i] = { random(k), random(k), random(3) }
      end
      local function f(...)
        local xs, ys = { ... }, {}
        for i, x in ipairs(xs) do
          local other, n, m = xs[parts[i][1]], xs[parts[i][1]]:size(1), xs[parts[i][2]]:size(1)
          if parts[i][3] == 1 then ys[i] = x:unsqueeze(1):expand(n, -1, -1):reshape(n * x:size(1), 2) * m
          elseif parts[i][3] == 2 then ys[i] = T.cat({ x, other }, 1) + m
          else ys[i] = x:mm(other:t()) * n end
        end
        return table.unpack(ys)
      end
      assert(T.save_graph(dir .. "/many", f, inputs, options))
      for _ = 1, 6 do
        local at, feed, xs = {}, {}, {}
        for i = 1, k do
          local size = "s" .. i
          at[size] = random(table.unpack(options.sizes[size]))
          xs[i] = T.rand(at[size], 2)
          feed["x" .. i] = xs[i]
        end
        local got = assert(T.load_graph(dir .. "/many", { sizes = at })):run(feed)
        for i, want in ipairs { f(table.unpack(xs)) } do assert.is_true(want:equal(got[i])) end
      end
    end
    for n = 1, 16 do -- every value of each comes, and any two differ somewhere where one of them does not change
      local list = {}
      for k = 1, n do
        local least = random(1, 9)
        list[k] = { least = least, most = least + random(1, 9) ^ 2 // 1 | 0, size = least }
      end
      local points = sizes.points(list)
      for k = 1, n do
        local seen = {}
        for _, p in ipairs(points) do seen[p[k]] = true end
        assert.is_true(seen[list[k].least] and seen[list[k].most] and seen[list[k].most - 1])
        for j = 1, n do
          local alone = j == k
          for _, p in ipairs(points) do alone = alone or p[k] ~= points[1][k] and p[j] == points[1][j] end
          assert.is_true(alone, ("%d of %d is not told from %d"):format(k, n, j))
        end
      end
    end
  end)

  it("refuses what depends on them in a way that no formula says", function()
    local weight = T.rand(4, 4)
    local cases = {
      { "does something else", function(x) return x:size(1) > 5 and x:sin() or x:cos() end },
      { "depends on the free sizes in a way", function(x) return x:narrow(1, 1, math.min(x:size(1), 7)) end },
      { "depends on the free sizes in a way", function(x) return x * (1 / x:size(1)) end, "something else" },
      { "cannot say", function(x) return x:narrow(1, 1, (x:size(1) + 1) // 2) end },
      { "at n = 30: narrow", function(x) return x + weight:flatten():narrow(1, 1, x:size(1)) end },
      { "captures, a tensor", function(x)
        return x + T.core.jit_untraced(function() return T.arange(x:size(1)) end)
      end },
      { "makes or captures", function(x) return x:sum() * T.core.jit_untraced(T.full, {}, 1 / x:size(1)) end,
        "something else" },
    }
    for i, c in ipairs(cases) do
      local ok, why = pcall(T.save_graph, dir .. "/bad", c[2], T.rand(4), { dynamic = { x = { "n" } },
        sizes = { n = { 2, 30 } } })
      assert.is_false(ok, i)
      assert.is_truthy(why:find(c[1], 1, true) or c[3] and why:find(c[3], 1, true), ("case %d: %s"):format(i, why))
      assert.truthy(why:find("save_graph: ", 1, true))
    end
    assert.is_nil(io.open(dir .. "/bad"))
    for _, c in ipairs {
      { { dynamic = { y = { "n" } } }, "unknown input 'y'" },
      { { dynamic = { x = { [2] = "n" } } }, "'x' has no dimension 2" },
      { { dynamic = { x = { 3 } } }, "the name of a size must be text" },
      { { dynamic = { x = { "n" } }, sizes = { m = { 1, 2 } } }, "dynamic has no size 'm'" },
      { { dynamic = { x = { "n" } }, sizes = { n = { 3, 2 } } }, "'n' must be {least, most}" },
      { { dynamic = { x = { "n" } }, sizes = { n = { 5, 9 } } }, "'n' is 4 in the example, which is not from 5 to 9" },
    } do
      local ok, why = pcall(T.save_graph, dir .. "/bad", function(x) return x * 2 end, T.rand(4), c[1])
      assert.is_false(ok)
      assert.truthy(why:find(c[2], 1, true), why)
    end
  end)

  it("read expressions alike in C and in Lua, and refuse what is none", function()
    local f = function(x) return x * 2 end
    local path = dir .. "/e"
    assert(T.save_graph(path, f, T.rand(6), { dynamic = { x = { "n" } }, sizes = { n = { 1, 100 } } }))
    local text = read(path)
    assert.truthy(text:find("input 0 x f32 $1 fed", 1, true))
    local good = { ["$1"] = 6, ["2*$1"] = 12, ["-1*$1+10"] = 4, ["$1*$1*$1-6"] = 210, ["0*$1+3"] = 3 }
    local bad = { "$0", "$2", "$01", "$", "$1+", "$1+0", "$1+-1", "$1*", "*$1", "2$1", "--2*$1", "02*$1", "-0*$1",
      "$1+01", "1e1*$1", "$1*2", "$1*$1*$1*$1*$1", "9007199254740993*$1",
      "9007199254740992*$1", "$1-7", "@9.1", "@0.1", "$1 ", "$1.0", "@.1", "?" }
    local function try(e)
      write(path, (text:gsub("f32 %$1 fed", function() return "f32 " .. e .. " fed" end):gsub(":f32%[%$1%]", "")))
      local g, why = T.load_graph(path)
      local p, message, code = T.core.deploy_program(path, nil, nil, nil, { n = 6 })
      return g, why, p, message, code
    end
    for e, n in pairs(good) do
      local g, why, p, message = try(e)
      assert.truthy(g, why)
      assert.truthy(p, message)
      assert.same({ n }, p.inputs[1].shape)
      assert.equal(n, g:run { x = T.ones(n) }[1]:size(1))
      assert.equal(n, sizes.value(e, { 6 }, function() end))
    end
    for _, e in ipairs(bad) do
      local g, _, p, message, code = try(e)
      assert.is_nil(g, e)
      assert.is_nil(p, e)
      assert.equal("format", code, e .. message)
    end
    for _, line in ipairs { "size n 6 1", "size n 6 7 9", "size n 6 1 5", "size n 0 0 5", "size n 6 1 4294967296",
      "size n 6 1 100\nsize n 6 1 100" } do
      write(path, (text:gsub("size n 6 1 100", function() return line end)))
      assert.is_nil((T.load_graph(path)), line)
      local _, _, code = T.core.deploy_program(path, nil, nil, nil, { n = 6 })
      assert.equal("format", code, line)
    end
    -- a text that says another shape than the rule gives, at other sizes than the example's
    write(path, (text:gsub(":f32%[%$1%]", ":f32[6]")))
    assert.truthy(T.load_graph(path))
    local none, why = T.load_graph(path, { sizes = { n = 7 } })
    assert.is_nil(none)
    assert.truthy(why:find("mul gives f32[7], the line says f32[6]", 1, true), why)
    none, why = T.core.deploy_program(path, nil, nil, nil, { n = 7 })
    assert.is_nil(none)
    assert.truthy(why:find("mul gives f32[7], the line says f32[6]", 1, true), why)
  end)

  it("come from ONNX files, whose axes are free", function()
    if missing then return pending(missing) end
    local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)):eval()
    assert(T.onnx.save(dir .. "/net.onnx", net, T.rand(2, 1, 6, 6), { dynamic = { x = { "batch" } } }))
    local convert = require "perilune.command.convert"
    local said = assert(convert.graph(dir .. "/net.onnx", dir .. "/net.graph", { size = { "batch=1..9" } }))
    assert.truthy(said:find("free sizes: batch 1 to 9", 1, true))
    local loaded = T.onnx.load(dir .. "/net.onnx", { inference = true }):eval()
    for _, b in ipairs { 1, 9 } do
      local f = T.jit(function(x) return loaded(x) end)
      local y = T.no_grad(function() return f(filled { b, 1, 6, 6 }) end)
      local text, ok = output("'%s' free '%s/net.graph' batch=%d", program, dir, b)
      assert.is_true(ok, text)
      assert.equal(hash { y }, text:match "bits (%x+)")
    end
    local none, why = convert.graph(dir .. "/net.onnx", dir .. "/fixed.graph", { fixed = true })
    assert.is_nil(none)
    assert.truthy(why:find("give --size batch=N", 1, true))
    none, why = T.core.deploy_program(dir .. "/net.graph", nil, nil, nil, {})
    assert.is_nil(none)
    assert.truthy(why:find("leaves 'batch' free", 1, true))
    none, why = T.core.deploy_program(dir .. "/net.graph", nil, nil, nil, { batch = 3, other = 4 })
    assert.is_nil(none)
    assert.truthy(why:find("leaves no size of that name free", 1, true))
    local p = assert(T.core.deploy_program(dir .. "/net.graph", nil, nil, nil, { batch = 3 }))
    assert.same({ 3, 1, 6, 6 }, p.inputs[1].shape)
  end)
end)
