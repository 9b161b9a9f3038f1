-- SPDX-License-Identifier: MIT
-- ONNX files: what they compute beside onnxruntime's and PyTorch's results (where ../shared/models is), how loaded
-- models train, compile and move, and what is refused.

local T = require "perilune"
local writer = require "spec.onnx.writer"
local near = require "spec.support.near"
local fails = near.fails

local shared = (os.getenv "PERILUNE_ROOT" or ".") .. "/../shared/models/onnx/"
local present = io.open(shared .. "index.lua")
if present then present:close() end

local function load_bytes(bytes)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
  local m, message, code = T.onnx.load(path)
  os.remove(path)
  return m, message, code
end
local function model(g) return assert(load_bytes(writer.model(g))) end

-- Is a within rtol, atol of b, element by element? NaN equals NaN. → nil or what is wrong
local function differs(a, b, rtol, atol)
  if type(a) ~= "userdata" then return "no tensor" end
  if a:dim() == 0 and b:numel() == 1 then b = b:reshape {} end -- the files have no 0-d tensors
  if table.concat(a:shape(), ",") ~= table.concat(b:shape(), ",") then
    return ("[%s], [%s] is wanted"):format(table.concat(a:shape(), ","), table.concat(b:shape(), ","))
  end
  if a:dtype() ~= b:dtype() then return a:dtype() .. ", " .. b:dtype() .. " is wanted" end
  if a:numel() == 0 then return nil end
  local x, y = a:detach():to("f64"), b:to("f64")
  local d = (x - y):abs()
  local bad = T.logical_and(x:ne(y), d:le(y:abs() * rtol + atol):logical_not())
  bad = T.logical_and(bad, T.logical_and(x:isnan(), y:isnan()):logical_not())
  return bad:any():item() and ("off by %g"):format(d:amax():item()) or nil
end

local function result(m, name)
  for i, o in ipairs(m.outputs) do if o.name == name then return i end end
end

-- Where onnxruntime does what ONNX does not say: it takes no notice of a region along dimensions that keep their size,
-- and of NaN in some reductions.
local apart = { resize_crop = true, lookup_nan = true }

describe("ONNX files written by others", function()
  if not present then
    pending "skipped: there is no ../shared/models/onnx"
    return
  end
  local index = dofile(shared .. "index.lua")

  it("says what is no file with the code that all readers have", function()
    local m, message, code = T.onnx.load "/no/such/model.onnx"
    assert.is_nil(m)
    assert.same({ "onnx.load: /no/such/model.onnx: No such file or directory", "io" }, { message, code })
    local ok, why, kind = T.onnx.save("/no/such/model.onnx", T.relu, T.ones(1))
    assert.is_nil(ok)
    assert.truthy(why:find "No such file or directory")
    assert.equal("io", kind)
  end)

  it("single operators", function()
    local data, wrong, count = T.load(shared .. "ops.safetensors", { map_location = T.get_default_device() }), {}, 0
    for _, o in ipairs(index.ops) do
      local m, message = T.onnx.load(shared .. "ops/" .. o.name .. ".onnx")
      local inputs = {}
      for _, name in ipairs(o.inputs) do inputs[name] = data[o.name .. "/in/" .. name] end
      local got = m and table.pack(pcall(m, next(inputs) and inputs or nil)) or { false, message }
      if not got[1] then
        wrong[#wrong + 1] = o.name .. ": " .. tostring(got[2])
      elseif not apart[o.name] then
        for _, name in ipairs(o.outputs) do
          local want = data[o.name .. "/out/" .. name]
          local why = want and differs(got[result(m, name) + 1], want, 1e-4, 1e-5)
          count = count + 1
          if why then wrong[#wrong + 1] = o.name .. ": " .. why end
        end
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
    assert.is_true(count > 200)
  end)

  for _, part in ipairs { "networks", "by_hand" } do
    for _, o in ipairs(index[part]) do
      it(part .. ": " .. o.file, function()
        local data = T.load(shared .. o.file:gsub("%.onnx$", ".safetensors"), { map_location = T.get_default_device() })
        local m = assert(T.onnx.load(shared .. o.file))
        local compiled = part == "networks" and T.jit(m)
        for call = 1, o.calls do
          local inputs, list = {}, {}
          for i, name in ipairs(o.inputs) do
            inputs[name] = data[call .. ".in." .. name]
            list[i] = inputs[name]
          end
          local got = table.pack(m(inputs))
          local again = compiled and table.pack(compiled(table.unpack(list)))
          for _, name in ipairs(o.outputs) do
            local want = data[call .. ".out." .. name]
            local tol = o.tol and o.tol[call .. ".out." .. name] or { 1e-4, 1e-5 }
            local k = result(m, name)
            assert.is_nil(want and differs(got[k], want, tol[1], tol[2]), name)
            if again then assert.is_nil(differs(again[k], got[k], 1e-5, 1e-6), name) end
          end
        end
        if part ~= "networks" then return end
        local list = {}
        for i, name in ipairs(o.inputs) do list[i] = data["1.in." .. name] end
        m(table.unpack(list)):square():sum():backward()
        assert.is_true(#m:parameters() > 0)
        for name, p in m:named_parameters() do assert.is_truthy(p.grad, name) end
      end)
    end
  end

  it("refuses what is broken", function()
    local cases = dofile(shared .. "external/cases.lua")
    local good = assert(T.onnx.load(shared .. "external/" .. cases.good))
    local data = T.load(shared .. "external/good.safetensors", { map_location = T.get_default_device() })
    assert.is_nil(differs(good(data["1.in.x"]), data["1.out.y"], 1e-4, 1e-5))
    for _, c in ipairs(cases.refuse) do
      local m, message, code = T.onnx.load(shared .. "external/" .. c.file)
      assert.is_nil(m, c.file .. ": " .. c.why)
      assert.is_true(type(message) == "string" and #message > 20 and code ~= nil, c.file)
    end
  end)
end)

-- ---- what models are

local function two_layers()
  T.manual_seed(3)
  return model { nodes = { { "MatMul", { "x", "w" }, { "a" } }, { "Add", { "a", "b" }, { "c" } },
    { "Mul", { "c", "gain" }, { "d" } }, { "Relu", { "d" }, { "y" } } },
    inputs = { { "x", "f32", { "n", 3 } } }, outputs = { { "y", "f32", { "n", 2 } } },
    initializers = { w = T.randn(3, 2), b = T.ones(2), gain = T.tensor(0.5) } }
end

describe("a loaded model", function()
  it("lists what it takes and gives, and prints its nodes", function()
    local m = two_layers()
    assert.same({ { name = "x", dtype = "f32", shape = { false, 3 }, optional = false } }, m.inputs)
    assert.same({ { name = "y", dtype = "f32", shape = { false, 2 } } }, m.outputs)
    assert.equal(17, m.opset)
    assert.is_truthy(tostring(m):find("Relu(d) → y", 1, true))
  end)

  it("has floating initializers with dimensions as parameters, numbers as buffers", function()
    local m, names = two_layers(), {}
    for name in m:named_parameters() do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "b", "w" }, names)
    assert.same({ 3, 2 }, m.w:shape())
    assert.equal(0.5, m.gain:item())
  end)

  it("takes its inputs in order or by name, and is exact about them", function()
    local m, x = two_layers(), T.ones(4, 3)
    assert.is_true(m(x):equal(m { x = x }))
    fails("input 'x' is missing", m)
    fails("unknown input 'z'", m, { z = x })
    fails("2 inputs were given; the model has 1: x", m, x, x)
    fails("must be f32 (float in the file), got i64", m, T.arange(3):view(1, 3))
    fails("'x' has 2 elements in dimension 2, it must have 3", m, T.ones(4, 2))
    fails("'x' must have 2 dimensions, got [3]", m, T.ones(3))
    fails("input 'x' must be a tensor", m, 3)
    fails("input 'x' must be a tensor, got a table", m, { T.ones(2) })
  end)

  it("trains, and a clone trains apart from it", function()
    local m = two_layers()
    local c, x = m:clone(), T.ones(4, 3)
    local before = m(x):detach()
    local opt = T.optim.SGD(c:parameters(), { lr = 0.1 })
    local first, last
    for _ = 1, 5 do
      local loss = (c(x) - 1):square():sum()
      opt:zero_grad()
      loss:backward()
      opt:step()
      first, last = first or loss:item(), loss:item()
    end
    assert.is_true(last < first)
    assert.is_true(m(x):equal(before))
    assert.is_false(c(x):equal(before))
  end)

  it("computes in the dtype it is moved to, in T.jit, T.vmap and T.grad", function()
    local m = two_layers()
    local x = T.randn(4, 3)
    local want = m(x):detach()
    assert.is_true(T.allclose(T.jit(m)(x), want))
    local one = T.vmap(function(row) return m(row:unsqueeze(1)):squeeze(1) end)(x)
    assert.is_true(T.allclose(one, want, { atol = 1e-6 }))
    m:to("f64")
    assert.equal("f64", m(x:double()):dtype())
    assert.is_true(T.gradcheck(function(v) return m(v) end, { T.randn({ 2, 3 }, { dtype = "f64" }):requires_grad_() }))
  end)

  it("is saved and loaded as a state_dict", function()
    local a, b = two_layers(), two_layers()
    T.no_grad(function() b.w:zero_() end)
    b:load_state_dict(a:state_dict())
    assert.is_true(b(T.ones(1, 3)):equal(a(T.ones(1, 3))))
  end)

  it("knows shapes while it is traced, and says so where a value is wanted", function()
    local m = model { nodes = { { "Shape", { "x" }, { "s" } }, { "Gather", { "s", "zero" }, { "n" } },
      { "Concat", { "n", "minus" }, { "to" }, { axis = 0 } }, { "Reshape", { "x", "to" }, { "y" } } },
      inputs = { { "x", "f32", { "a", "b", "c" } } }, outputs = { { "y", "f32" } },
      initializers = { zero = T.zeros({ 1 }, { dtype = "i64" }), minus = T.tensor({ -1 }, { dtype = "i64" }) } }
    assert.same({ 2, 12 }, T.jit(m)(T.ones(2, 3, 4)):shape())
    local by_value = model { nodes = { { "Reshape", { "x", "s" }, { "y" } } },
      inputs = { { "x", "f32" }, { "s", "i64" } }, outputs = { { "y", "f32" } } }
    local s = T.tensor({ 3, 2 }, { dtype = "i64" })
    assert.same({ 3, 2 }, by_value(T.ones(6), s):shape())
    fails("shape depends on values of the inputs", T.jit(by_value), T.ones(6), s)
  end)

  it("Clip has the same slopes at bounds that calls give, whether traced, tracked or neither", function()
    local m = model { nodes = { { "Clip", { "x", "low", "high" }, { "y" } } },
      inputs = { { "x", "f32" }, { "low", "f32" }, { "high", "f32" } }, outputs = { { "y", "f32" } } }
    local function slopes(f, wants, alone)
      local x = T.tensor { -2, -1, 0, 1, 2 }:requires_grad_()
      local low, high = T.tensor(-1.0), T.tensor(1.0)
      if wants then low:requires_grad_() end
      if alone then f(x):sum():backward() else f(x, low, high):sum():backward() end
      return x.grad:totable()
    end
    local want = slopes(m, true)
    assert.same({ 0, 0.5, 1, 0.5, 0 }, want)
    assert.same(want, slopes(m))
    assert.same(want, slopes(T.jit(m)))
    assert.same(want, slopes(T.jit(m), true))
    local x, low, high = T.tensor { -2, 0, 2 }, T.tensor(-1.0), T.tensor(1.0)
    local _, tangent = T.jvp(function(b) return m(x, b, high) end, low, T.tensor(1.0))
    assert.same({ 1, 0, 0 }, tangent:totable())
    local many = T.vmap(function(b) return m(x, b, high) end)(T.tensor { -1, -0.5 })
    assert.same({ { -1, 0, 1 }, { -0.5, 0, 1 } }, many:totable())
    local own = model { nodes = { { "Clip", { "x", "low", "high" }, { "y" } } }, inputs = { { "x", "f32" } },
      outputs = { { "y", "f32" } }, initializers = { low = T.tensor(-1.0), high = T.tensor(1.0) } }
    assert.same({ 0, 0, 1, 0, 0 }, slopes(own, false, true)) -- as clamp with numbers
    assert.same({ 0, 0, 1, 0, 0 }, slopes(T.jit(own), false, true))
  end)

  it("keeps names of weights that modules need otherwise", function()
    local m = model { nodes = { { "Add", { "x", "forward" }, { "a" } }, { "Add", { "a", "_names" }, { "y" } } },
      inputs = { { "x", "f32" } }, outputs = { { "y", "f32" } },
      initializers = { forward = T.ones(2), _names = T.ones(2) } }
    assert.same({ 3, 3 }, m(T.ones(2)):totable())
    assert.equal(2, #m:parameters())
  end)
end)

describe("operators", function()
  local function run(op, inputs, attributes, opset)
    return assert(load_bytes(writer.single(op, inputs, 1, attributes, opset)))(table.unpack(inputs))
  end
  local function ints(list) return T.tensor(list, { dtype = "i64" }) end

  it("follow the opset of the model", function()
    local x = T.randn(2, 3, 4)
    assert.is_true(T.allclose(run("Softmax", { x }, {}, 13), x:softmax(-1)))
    assert.is_true(T.allclose(run("Softmax", { x }, {}, 11), x:view(2, 12):softmax(2):view(2, 3, 4)))
    assert.same({ 2, 1, 4 }, run("ReduceSum", { x }, { axes = { 1 } }, 11):shape())
    assert.same({ 2, 1, 4 }, run("ReduceSum", { x, ints { 1 } }, {}, 13):shape())
  end)

  it("divide and count as ONNX does", function()
    local a, b = T.tensor({ -7, 7 }, { dtype = "i32" }), T.tensor({ 2, 2 }, { dtype = "i32" })
    assert.same({ -3, 3 }, run("Div", { a, b }):totable())
    assert.same({ { 1, 0 } }, run("Gather", { T.eye(2), ints { -2 } }):totable())
    fails("index 5", run, "GatherND", { T.eye(2), ints { { 5 } } })
    fails("index value 2 at position [1] is out of range", run, "Gather", { T.eye(2), ints { 2 } })
  end)

  it("say which node fails", function()
    fails("onnx: Reshape 'y1': [4] cannot become", run, "Reshape", { T.ones(4), ints { 3, -1 } })
    fails("in the ONNX node MatMul 'y1'", run, "MatMul", { T.ones(2, 3), T.ones(2, 3) })
    fails("onnx: Unsqueeze 'y1': axis 9", run, "Unsqueeze", { T.ones(2), ints { 9 } })
  end)

  it("run loops and branches", function()
    local body = { nodes = { { "Add", { "v", "step" }, { "w" } }, { "Identity", { "go" }, { "more" } },
      { "Identity", { "w" }, { "row" } } },
      inputs = { { "i", "i64", {} }, { "go", "bool", {} }, { "v", "f32", { 2 } } },
      outputs = { { "more", "bool", {} }, { "w", "f32", { 2 } }, { "row", "f32", { 2 } } } }
    local m = model { nodes = { { "Loop", { "n", "", "x" }, { "last", "rows" }, { body = body } } },
      inputs = { { "x", "f32", { 2 } }, { "n", "i64", {} } }, outputs = { { "last" }, { "rows" } },
      initializers = { step = T.ones(2) } }
    local last, rows = m(T.zeros(2), ints(3))
    assert.same({ 3, 3 }, last:totable())
    assert.same({ { 1, 1 }, { 2, 2 }, { 3, 3 } }, rows:totable())
    last:sum():backward()
    assert.same({ 3, 3 }, m.step.grad:totable())
    last, rows = m(T.zeros(2), ints(0))
    assert.same({ 0, 0 }, last:totable())
    assert.same({ 0, 2 }, rows:shape())
  end)

  it("keep unsigned integers in wider types, and their limits", function()
    local ops = { { "Add", function(a, b) return a + b end }, { "Sub", function(a, b) return a - b end },
      { "Mul", function(a, b) return a * b end }, { "BitwiseNot", function(a) return ~a end },
      { "BitShift", function(a, b) return a << b end, { direction = "LEFT" } } }
    for _, kind in ipairs { { "u16", "i32", 4, 16 }, { "u32", "i64", 12, 32 } } do
      local name, dtype, number, bits = table.unpack(kind)
      local mask = (1 << bits) - 1
      for k, row in ipairs(ops) do
        for _, follow in ipairs(ops) do -- what wrapped is read again
          local inputs = { { "a", "b" }, { "y", "b" } }
          for i, o in ipairs { row, follow } do if o[1] == "BitwiseNot" then inputs[i][2] = nil end end
          for _, shape in ipairs { {}, { 2 } } do
            local from = k % 2 == 0 -- inputs of the type, or casts to it
            local nodes = { { row[1], inputs[1], { "y" }, row[3] }, { follow[1], inputs[2], { "z" }, follow[3] },
              { "Cast", { "z" }, { "out" }, { to = 7 } } }
            if not from then
              table.insert(nodes, 1, { "Cast", { "x" }, { "a" }, { to = number } })
              table.insert(nodes, 2, { "Cast", { "w" }, { "b" }, { to = number } })
            end
            local kind_in = from and name or "i64"
            local m = model { opset = 18, nodes = nodes, outputs = { { "out", "i64", shape } },
              inputs = { { from and "a" or "x", kind_in, shape }, { from and "b" or "w", kind_in, shape } } }
            local a, b = { 3, mask - 4 }, { 5, 2 }
            local want = {}
            for i = 1, 2 do want[i] = follow[2](row[2](a[i], b[i]) & mask, b[i]) & mask end
            local function given(list)
              return T.tensor(list, { dtype = from and dtype or "i64" }):narrow(1, 1, shape[1] or 1):reshape(shape)
            end
            if not shape[1] then want = want[1] end
            local what = ("%s %s %s %d"):format(name, row[1], follow[1], #shape)
            local x, w = given(a), given(b)
            local got = m(x, w)
            assert.same(want, shape[1] and got:totable() or got:item(), what)
            if not from then
              got = T.jit(m)(x, w)
              assert.same(want, shape[1] and got:totable() or got:item(), what .. ", traced")
            end
          end
        end
      end
    end
  end)
end)

describe("refused:", function()
  local good = writer.model { nodes = { { "Relu", { "x" }, { "y" } } }, inputs = { { "x", "f32" } },
    outputs = { { "y", "f32" } } }
  local function refused(pattern, bytes)
    local m, message, code = load_bytes(bytes)
    assert.is_nil(m)
    assert.is_truthy(message:find(pattern), message)
    assert.equal("format", code)
  end
  local function nodes(list, more)
    local g = { nodes = list, inputs = { { "x", "f32" } }, outputs = { { "y", "f32" } } }
    for k, v in pairs(more or {}) do g[k] = v end
    return writer.model(g)
  end

  it("files cut at any byte", function()
    for n = 0, #good - 1 do
      local m = load_bytes(good:sub(1, n))
      if m then assert.is_true(pcall(m, T.ones(2))) end -- an end between fields
    end
    assert.same({ 1, 1 }, load_bytes(good)(T.ones(2)):totable())
  end)

  it("attributes, operators, opsets and domains that are not known", function()
    refused("attribute 'slope'", nodes { { "Relu", { "x" }, { "y" }, { slope = 1.0 } } })
    refused("attribute 'alpha' is int, it must be float", nodes { { "Elu", { "x" }, { "y" }, { alpha = 1 } } })
    refused("operator Relux of domain 'ai.onnx', opset 17", nodes { { "Relux", { "x" }, { "y" } } })
    refused("domain 'my'", nodes { { "Relu", { "x" }, { "y" }, domain = "my" } })
    refused("opset 99", nodes({ { "Relu", { "x" }, { "y" } } }, { opset = 99 }))
    refused("2 inputs", nodes { { "Relu", { "x", "x" }, { "y" } } })
    refused("perilune does not support it", nodes { { "StringNormalizer", { "x" }, { "y" } } })
  end)

  it("names that nothing makes, or that are made twice", function()
    refused("'q', which nothing makes", nodes { { "Relu", { "q" }, { "y" } } })
    refused("not in order, or form a cycle", nodes { { "Relu", { "b" }, { "y" } }, { "Relu", { "x" }, { "b" } } })
    refused("'y' is made twice", nodes { { "Relu", { "x" }, { "y" } }, { "Abs", { "x" }, { "y" } } })
    refused("output 'y' is made by no node", nodes { { "Relu", { "x" }, { "z" } } })
  end)

  it("what is no path or no file", function()
    fails("path must be a string", T.onnx.load, 3)
    local m, message = T.onnx.load "/nowhere/model.onnx"
    assert.is_nil(m)
    assert.is_truthy(message:find "No such file")
  end)
end)
