-- SPDX-License-Identifier: MIT
-- ONNX files that T.onnx.save writes: read again they compute what was saved, for layers, models and free sizes. What
-- other programs make of them: spec/onnx/check.py, by hand.

local T = require "perilune"
local near = require "spec.support.near"
local cases = require "spec.onnx.cases"
local fails, nn = near.fails, T.nn

local path
before_each(function() path = os.tmpname() end)
after_each(function() os.remove(path) end)

local function compare(net, model, inputs)
  local want = cases.flat(T.no_grad(net, table.unpack(inputs)))
  local got = cases.flat(T.no_grad(model, table.unpack(inputs)))
  assert.equal(#want, #got)
  for i, y in ipairs(want) do
    assert.same(y:shape(), got[i]:shape())
    assert.equal(y:dtype(), got[i]:dtype())
    assert.is_true(T.allclose(y, got[i], { rtol = 1e-5, atol = 1e-5, equal_nan = true }), "result " .. i)
  end
end

describe("saved as ONNX and loaded", function()
  local layers, free = cases.layers(), cases.free()
  teardown(function()
    for _, list in ipairs { layers, free } do
      for _, c in ipairs(list) do for key in pairs(c) do c[key] = nil end end
    end
  end)

  for _, c in ipairs(layers) do
    it(c.name, function()
      local net = c.net:eval()
      assert(T.onnx.save(path, net, c.inputs))
      compare(net, assert(T.onnx.load(path)), c.inputs)
    end)
  end

  for _, c in ipairs(free) do
    it("with free sizes, " .. c.name, function()
      local net = c.net:eval()
      assert(T.onnx.save(path, net, c.inputs, { dynamic = c.dynamic }))
      local model = assert(T.onnx.load(path))
      compare(net, model, c.inputs)
      for _, other in ipairs(c.others) do compare(net, model, { other }) end
    end)
  end

  it("parameters keep their names, and what is loaded trains", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert(T.onnx.save(path, net, T.randn(5, 3), { input_names = { "rows" }, output_names = { "scores" },
      dynamic = { rows = { "n" } } }))
    local model = assert(T.onnx.load(path))
    local names = {}
    for name in model:named_parameters() do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "1.bias", "1.weight", "3.bias", "3.weight" }, names)
    assert.equal("rows", model.inputs[1].name)
    assert.equal("scores", model.outputs[1].name)
    assert.is_false(model.inputs[1].shape[1])
    model(T.randn(9, 3)):sum():backward()
    for _, p in ipairs(model:parameters()) do assert.is_truthy(p.grad) end
  end)

  it("of a source larger than its index the corner in front", function()
    local at = T.tensor({ { 1, 2, 3 }, { 3, 1, 2 } }, { dtype = "i64" })
    local inputs = { T.randn(3, 4), at, T.randn(4, 4) }
    for _, f in ipairs { function(x, i, v) return x:scatter(1, i, v) end, function(x, i, v)
      return x:scatter_add(1, i, v)
    end, function(x, i, v) return x:scatter_reduce(1, i, v, { reduce = "amax", include_self = false }) end } do
      assert(T.onnx.save(path, f, inputs))
      local file = assert(io.open(path, "rb"))
      assert.truthy(file:read("a"):find "Slice") -- ONNX takes sources of the index's shape alone
      file:close()
      compare(f, assert(T.onnx.load(path)), inputs)
    end
  end)

  it("log1p and expm1 to the last digits, also of what is nearly 0, huge or no number", function()
    local x = T.tensor { 0, 1e-30, -1e-9, 3e-7, -1e-4, 0.01, 0.3, -0.7, 5, 40, 1e9, 3e38, math.huge, 0 / 0, -0.9999999,
      -1 }
    assert(T.onnx.save(path, function(v) return v:log1p(), v:expm1() end, x))
    local model = assert(T.onnx.load(path))
    for _, dtype in ipairs { "f32", "f64" } do
      local v = x:to(dtype)
      local a, b = model(v)
      assert.is_true(a:allclose(v:log1p(), { rtol = 5e-7, atol = 0, equal_nan = true }))
      assert.is_true(b:allclose(v:expm1(), { rtol = 5e-7, atol = 0, equal_nan = true }))
    end
  end)
  it("functions with several inputs and results", function()
    local function f(a, b)
      local v, i = (a * 2 + b):max(2)
      return { v, i }, a:gt(b), T.where(a:gt(b), a, b), a[{ {}, { 2, 3 } }]:t(), T.cat({ a, b }, 1):sum { dim = 1 }
    end
    local inputs = { T.randn(2, 3), T.randn(2, 3) }
    assert(T.onnx.save(path, f, inputs))
    compare(f, assert(T.onnx.load(path)), inputs)
  end)
end)

describe("onnx.save", function()
  it("follows writes in place, and changes no input", function()
    local x = T.randn(4, 3)
    local was = x:clone()
    local function f(v) return v:add_(1) * 2, v:mul_(T.tensor { 1, 2, 3 }), v:fill_(4) end
    assert(T.onnx.save(path, f, x, { dynamic = { x = { "n" } } }))
    assert.is_true(x:equal(was))
    local model, other = assert(T.onnx.load(path)), T.randn(7, 3)
    for _, input in ipairs { x, other } do
      local got = table.pack(model(input))
      for i, y in ipairs { f(input:clone()) } do assert.is_true(y:allclose(got[i])) end
    end
  end)
end)

describe("onnx.save of types that operators of ONNX lack", function()
  local ops = { pow = function(x) return x ^ 2 end, neg = function(x) return -x end,
    relu = function(x) return x:relu() end, extremes = function(x) return x:max(), x:amin(1), (x:max(1)) end,
    sort = function(x) return (x:sort(1)) end, round = function(x) return x:round() end,
    sin = function(x) return x:sin() end }
  for name, f in pairs(ops) do
    it("computes in a wider one: " .. name, function()
      local floats = name == "round" or name == "sin" or name == "sort"
      for _, dtype in ipairs(floats and { "bf16" } or { "i8", "i16", "u8" }) do
        local x = T.tensor { 100, 7, 0, 3 }:to(dtype)
        assert(T.onnx.save(path, f, x))
        local model = assert(T.onnx.load(path))
        local got = table.pack(model(x))
        for i, y in ipairs { f(x) } do
          assert.equal(y:dtype(), got[i]:dtype())
          assert.is_true(y:equal(got[i]), dtype)
        end
        -- what ONNX has no such type for is between casts
        if name == "pow" then assert.truthy(tostring(model):find("Cast", 1, true)) end
      end
    end)
  end
end)

describe("onnx.save of types that operators of ONNX lack and no wider one holds", function()
  it("is refused, so that no file is written which nobody reads", function()
    fails("ONNX's AveragePool takes no i64", T.onnx.save, path, nn.AvgPool1d(2), T.ones({ 1, 1, 4 }, { dtype = "i64" }))
  end)
end)

describe("onnx.save refuses", function()
  it("what has no place in a file", function()
    fails("call eval() on the module before it is exported", T.onnx.save, path, nn.Dropout(0.5), T.ones(3))
    fails("it computes its statistics", T.onnx.save, path, nn.BatchNorm1d(3), T.randn(4, 3))
    fails("ONNX has nothing for it", T.onnx.save, path, function(x) return x:erfinv() end, T.zeros(3))
    fails("result 1 is 3.0", T.onnx.save, path, function() return 3.0 end, T.ones(2))
    assert.equal("", assert(io.open(path)):read "a") -- nothing was written
  end)

  it("sizes that ONNX cannot follow", function()
    local function by_size(x) return x:size(1) > 4 and x * 2 or x + 1 + x end
    fails("does something else for another size of 'n'", T.onnx.save, path, by_size, T.ones(3, 2),
      { dynamic = { x = { "n" } } })
    fails("depends on the size 'n'", T.onnx.save, path, function(x) return x * x:size(1) end, T.ones(3),
      { dynamic = { x = { "n" } } })
    -- two sizes of which fit a line that others do not
    for _, f in ipairs {
      function(x) return x:narrow(1, 1, math.min(x:size(1), 100)) * 2 end,
      function(x) return x:sum() * T.ones(math.max(x:size(1), 9)) end,
      function(x) return x:size(1) > 100 and x:sin() or x:cos() end,
    } do
      local ok, why = pcall(T.onnx.save, path, f, T.ones(3, 2), { dynamic = { x = { "n" } } })
      assert.is_false(ok)
      assert.truthy(why:find "depends on 'n' in a way that ONNX cannot follow" or why:find "something else", why)
    end
    local places = T.rand(10, 2) -- which ends where other sizes are tried
    assert(T.onnx.save(path, function(x) return x + places:narrow(1, 1, x:size(1)) end, T.ones(3, 2),
      { dynamic = { x = { "n" } } }))
    -- tensors that are made of sizes, and captured ones that are not
    fails("depends on the size 'n'", T.onnx.save, path, function(x) return x * T.tensor(x:size(1) + 0.0) end, T.ones(3),
      { dynamic = { x = { "n" } } })
    assert(T.onnx.save(path, function(x) return x * T.tensor { 2, 0 / 0 } end, T.ones(3, 2),
      { dynamic = { x = { "n" } } }))
    fails("dynamic must be a table", T.onnx.save, path, nn.ReLU(), T.ones(2), { dynamic = true })
    fails("give one of 2 or more", T.onnx.save, path, nn.ReLU(), T.ones(1, 2), { dynamic = { x = { "n" } } })
    fails("has no dimension 3", T.onnx.save, path, nn.ReLU(), T.ones(2), { dynamic = { x = { [3] = "n" } } })
    fails("unknown input 'q'", T.onnx.save, path, nn.ReLU(), T.ones(2), { dynamic = { q = { "n" } } })
  end)

  it("wrong arguments", function()
    fails("the path must be a string and comes first", T.onnx.save, 3, nn.ReLU(), T.ones(2))
    fails("a module or function is wanted", T.onnx.save, path, 3, T.ones(2))
    fails("inputs", T.onnx.save, path, nn.ReLU(), 3)
    fails("unknown option 'names'", T.onnx.save, path, nn.ReLU(), T.ones(2), { names = { "x" } })
    fails("2 input_names for 1", T.onnx.save, path, nn.ReLU(), T.ones(2), { input_names = { "a", "b" } })
    local ok, message = T.onnx.save("/nowhere/x.onnx", nn.ReLU(), T.ones(2))
    assert.is_nil(ok)
    assert.is_truthy(message:find "No such file")
  end)
end)
