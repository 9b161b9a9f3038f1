-- SPDX-License-Identifier: MIT
-- Recurrent layers of ONNX files: what a layer of nn computes is one node, at any length, and is what the steps give
-- that a limit beyond all numbers (clip) asks for.

local T = require "perilune"
local writer = require "spec.onnx.writer"
local near = require("spec.support.near").near

local GATES = { LSTM = 4, GRU = 3, RNN = 1 }

local function load(op, weights, attributes, names)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  local outputs = op == "LSTM" and { "y", "h", "c" } or { "y", "h" }
  local inputs, list = {}, {}
  for i, name in ipairs(outputs) do list[i] = { name, "f32" } end
  for i, name in ipairs(names) do inputs[i] = (name == "x" or weights[name]) and name or "" end
  f:write(writer.model { nodes = { { op, inputs, outputs, attributes } }, initializers = weights,
    inputs = { { "x", "f32", { "a", "b", 3 } } }, outputs = list, opset = 14 })
  f:close()
  local m = assert(T.onnx.load(path))
  os.remove(path)
  return m
end

describe("recurrent layers", function()
  local path = os.tmpname()
  teardown(function()
    os.remove(path)
    os.remove(path .. ".safetensors")
  end)
  local seen = 0
  for op, gates in pairs(GATES) do
    for _, direction in ipairs { "forward", "reverse", "bidirectional" } do
      it(("%s, %s: the same at once and by steps, with free sizes"):format(op, direction), function()
        T.manual_seed(11)
        local d, hidden = direction == "bidirectional" and 2 or 1, 4
        for variant = 0, 7 do
          local bias, states, layout = variant % 2 == 1, variant // 2 % 2 == 1, variant // 4
          -- given states fix the number of examples
          local w = { W = T.randn(d, gates * hidden, 3), R = T.randn(d, gates * hidden, hidden) * 0.5,
            B = bias and T.randn(d, 2 * gates * hidden) or nil }
          local shape = layout == 1 and { 2, d, hidden } or { d, 2, hidden }
          if states then w.H = T.randn(shape) end
          if op == "LSTM" and variant % 3 > 0 and states then w.C = T.randn(shape) end
          local o = { hidden_size = hidden, direction = direction, layout = layout }
          if op == "GRU" then o.linear_before_reset = 1 end
          local names = { "x", "W", "R", "B", "", "H", "C" }
          while not w[names[#names]] do names[#names] = nil end
          local m = load(op, w, o, names)
          o.clip = 1e30
          local steps = load(op, w, o, names)
          local function input(length, n)
            return layout == 1 and T.randn(n, length, 3) or T.randn(length, n, 3)
          end
          for _, length in ipairs { 1, 5 } do
            local x = input(length, 2)
            local got, want = table.pack(m(x)), table.pack(steps(x))
            assert.equal(op == "LSTM" and 3 or 2, got.n)
            for i = 1, got.n do near(got[i]:contiguous(), want[i]:contiguous(), 1e-5) end
          end
          if variant % 3 ~= 1 then goto next end
          local time, batch = layout == 1 and 2 or 1, layout == 1 and 1 or 2
          local named = { [time] = "time", [batch] = not states and "batch" or nil }
          assert(T.save_graph(path, function(x) return m(x) end, { input(4, 2) }, { input_names = { "x" },
            output_names = op == "LSTM" and { "y", "h", "c" } or { "y", "h" }, dynamic = { x = named },
            sizes = { time = { 1, 9 }, batch = not states and { 1, 3 } or nil } }))
          for _, length in ipairs { 1, 6, 9 } do
            local n = states and 2 or length % 3 + 1
            local x = input(length, n)
            local g = assert(T.load_graph(path, { sizes = { time = length, batch = not states and n or nil } }))
            local got, want = g:run { x = x }, table.pack(m(x))
            for i, name in ipairs { "y", "h", "c" } do
              if got[name] then
                near(got[name]:contiguous(), want[i]:contiguous(), 1e-6)
                seen = seen + 1
              end
            end
          end
          ::next::
        end
      end)
    end
  end
  it("were compared", function() assert.is_true(seen > 150) end)

  it("of other functions, limits and lengths go by steps, whose number a saved graph fixes", function()
    local m = load("GRU", { W = T.randn(1, 12, 3), R = T.randn(1, 12, 4) }, { hidden_size = 4 }, { "x", "W", "R" })
    local ok, why = pcall(T.save_graph, path, function(x) return (m(x)) end, { T.randn(4, 2, 3) },
      { dynamic = { x = { "time" } }, sizes = { time = { 1, 9 } } })
    assert.is_false(ok)
    assert.truthy(why:find("does something else", 1, true), why)
  end)
end)
