-- SPDX-License-Identifier: MIT
-- Models loaded to be run alone: batch norms in the convolutions before them, and where they may not be. Files that
-- are read piece by piece.

local T = require "perilune"
local writer = require "spec.onnx.writer"

local function load_bytes(bytes, opts)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
  local m, message = T.onnx.load(path, opts)
  os.remove(path)
  return m, message
end

local function norms(m)
  local _, n = tostring(m):gsub("BatchNormalization%(", "")
  return n
end

describe("T.onnx.load{inference = true}", function()
  local function stats(n)
    return T.rand(n) + 0.5, T.randn(n), T.randn(n), T.rand(n) + 0.5
  end
  local function conv_norm(change)
    local g1, b1, m1, v1 = stats(4)
    local g = { inputs = { { "x", "f32" } }, outputs = { { "y", "f32" } },
      initializers = { w = T.randn(4, 2, 3, 3), b = T.randn(4), g = g1, s = b1, m = m1, v = v1 },
      nodes = { { "Conv", { "x", "w" }, { "c" }, { pads = { 1, 1, 1, 1 } } },
        { "BatchNormalization", { "c", "g", "s", "m", "v" }, { "n" }, { epsilon = 1e-3 } },
        { "Relu", { "n" }, { "y" } } } }
    change(g)
    return writer.model(g)
  end
  -- What is done to the model, the norms that are left.
  local cases = {
    plain = { function() end, 0 },
    with_bias = { function(g) g.nodes[1][2] = { "x", "w", "b" } end, 0 },
    grouped = { function(g)
      g.nodes[1][4].group = 2
      g.initializers.w = T.randn(4, 1, 3, 3)
    end, 0 },
    in_one_dimension = { function(g)
      g.initializers.w, g.nodes[1][4].pads = T.randn(4, 6, 3), { 1, 1 }
      table.insert(g.nodes, 1, { "Reshape", { "x", "shape" }, { "flat" } })
      g.initializers.shape, g.nodes[2][2][1] = T.tensor({ 2, 6, 12 }, { dtype = "i64" }), "flat"
    end, 0 },
    twice_with_shared_statistics = { function(g)
      g.initializers.w2 = T.randn(4, 4, 1, 1)
      g.nodes[3][3] = { "z" }
      g.nodes[4] = { "Conv", { "z", "w2" }, { "c2" } }
      g.nodes[5] = { "BatchNormalization", { "c2", "g", "s", "m", "v" }, { "y" } }
    end, 0 },
    statistics_behind_identity = { function(g)
      table.insert(g.nodes, 1, { "Identity", { "s" }, { "s2" } })
      table.insert(g.nodes, 2, { "Identity", { "s2" }, { "s3" } })
      g.nodes[4][2][3] = "s3"
    end, 0 },
    identity_as_output = { function(g)
      table.insert(g.nodes, 1, { "Identity", { "g" }, { "copy" } })
      g.nodes[3][2][2] = "copy"
      g.outputs[2] = { "copy", "f32" }
    end, 0 },
    the_convolution_is_read_again = { function(g) g.outputs[2] = { "c", "f32" } end, 1 },
    weights_are_read_again = { function(g)
      g.nodes[4] = { "Conv", { "x", "w" }, { "z" } }
      g.outputs[2] = { "z", "f32" }
    end, 1 },
    the_bias_is_read_again = { function(g)
      g.nodes[1][2], g.outputs[2] = { "x", "w", "b" }, { "bb", "f32" }
      g.nodes[4] = { "Abs", { "b" }, { "bb" } }
    end, 1 },
    a_call_may_give_the_weights = { function(g) g.inputs[2] = { "w", "f32" } end, 1 },
    statistics_are_computed = { function(g)
      table.insert(g.nodes, 1, { "Abs", { "m" }, { "m2" } })
      g.nodes[3][2][4] = "m2"
    end, 1 },
    in_training = { function(g)
      g.nodes[2][4].training_mode = 1
    end, 1 },
    behind_something_else = { function(g)
      g.nodes[2][2][1], g.nodes[3] = "r", { "Relu", { "n" }, { "y" } }
      table.insert(g.nodes, 2, { "Relu", { "c" }, { "r" } })
    end, 1 },
    of_old_opsets = { function(g) g.opset = 8 end, 1 },
  }
  for name, case in pairs(cases) do
    it("with batch norms: " .. name:gsub("_", " "), function()
      T.manual_seed(3)
      local bytes = conv_norm(case[1])
      local plain, folded = assert(load_bytes(bytes)), assert(load_bytes(bytes, { inference = true }))
      assert.equal(case[2], norms(folded))
      assert.is_true(norms(plain) > 0)
      local x = T.randn(2, 2, 6, 6)
      local a, b = table.pack(plain(x)), table.pack(folded(x))
      for i = 1, a.n do
        assert.same(a[i]:shape(), b[i]:shape())
        assert.is_true((a[i] - b[i]):abs():amax():item() < 1e-5 * a[i]:abs():amax():item() + 1e-6)
      end
      for key in folded:named_parameters() do -- what nothing reads is gone
        assert.is_falsy(case[2] == 0 and (key == "m" or key == "v"))
      end
    end)
  end

  it("is an option among no others", function()
    local ok, message = pcall(T.onnx.load, "x.onnx", { inferenc = true })
    assert.is_false(ok)
    assert.truthy(message:find("inferenc", 1, true))
  end)
end)

describe("an ONNX file", function()
  it("gives the same weights wherever pieces of it begin and end", function()
    T.manual_seed(4)
    for _, n in ipairs { 1, 1000, 1024, 1025, 16383, 16384, 70000 } do
      local w, i = T.randn(n), T.randint(-5, 5, n % 97 + 1):to "i64"
      local m = assert(load_bytes(writer.model {
        nodes = { { "Mul", { "x", "w" }, { "y" } }, { "Identity", { "i" }, { "j" } } },
        inputs = { { "x", "f32" } }, outputs = { { "y", "f32" }, { "j", "i64" } },
        initializers = { w = w, i = i, a = T.rand(3000):to "f16", b = T.rand(5000):gt(0.5) } }))
      local y, j = m(T.ones(1))
      assert.is_true(y:equal(w))
      assert.is_true(j:equal(i))
    end
  end)
end)
