-- SPDX-License-Identifier: MIT
-- Element types of ONNX that have no dtype here: floats of 4 and 8 bits, integers of 2, 4 and 16 bits. Rounding is
-- judged by a search through all numbers of a type, which are written down by their bits.

local T = require "perilune"
local writer = require "spec.onnx.writer"
local fails = require("spec.support.near").fails

local KINDS = writer.KINDS

local function model(g)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(writer.model(g))
  f:close()
  local m, message = T.onnx.load(path)
  os.remove(path)
  return assert(m, message)
end

-- Exponent bits, digits, bias, how NaN and infinity are written: "fn": all ones are NaN, "uz": -0 is NaN, "ieee".
local floats = { float8e4m3fn = { 4, 3, 7, "fn" }, float8e4m3fnuz = { 4, 3, 8, "uz" },
  float8e5m2 = { 5, 2, 15, "ieee" },
  float8e5m2fnuz = { 5, 2, 16, "uz" }, float4e2m1 = { 2, 1, 1, "none" } }

-- The number of a code: sign, exponent, digits.
local function value(kind, code)
  local exponent_bits, digits, bias, special = table.unpack(floats[kind])
  local sign = code >> (exponent_bits + digits)
  local e, d = (code >> digits) & ((1 << exponent_bits) - 1), code & ((1 << digits) - 1)
  if special == "uz" and sign == 1 and e == 0 and d == 0 then return nil end
  local top = e == (1 << exponent_bits) - 1
  if special == "fn" and top and d == (1 << digits) - 1 or special == "ieee" and top then return nil end
  local v = e == 0 and d * 2.0 ^ (1 - bias - digits) or (1 + d * 2.0 ^ -digits) * 2.0 ^ (e - bias)
  return sign == 1 and -v or v
end

-- The numbers of a type that are not negative, by their codes: neighbours have codes of different parity.
local function numbers(kind)
  local list, bits = {}, floats[kind][1] + floats[kind][2]
  for code = 0, (1 << bits) - 1 do list[#list + 1] = value(kind, code) end
  return list
end

local function nearest(list, x)
  local a, best, at = math.abs(x), math.huge, nil
  for i, v in ipairs(list) do
    local d = math.abs(v - a)
    if d < best or d == best and i % 2 == 1 then best, at = d, i end -- codes count from 0: odd places are even codes
  end
  return x < 0 and -list[at] or list[at]
end

local function cast(kind, x, attributes, opset)
  attributes.to = KINDS[kind]
  return model { nodes = { { "Cast", { "x" }, { "q" }, attributes }, { "Cast", { "q" }, { "y" }, { to = 1 } } },
    inputs = { { "x", "f32", { #x } } }, outputs = { { "y", "f32" } }, opset = opset or 23 } (T.tensor(x)):totable()
end

describe("floats of 4 and 8 bits", function()
  for kind, about in pairs(floats) do
    it(kind .. ": casts give the nearest number, of two the even one", function()
      local list, xs = numbers(kind), {}
      math.randomseed(about[3])
      local largest = list[#list]
      for i = 1, #list - 1 do xs[#xs + 1] = (list[i] + list[i + 1]) / 2 * (i % 3 == 0 and -1 or 1) end
      for _ = 1, 60 do xs[#xs + 1] = (math.random() - 0.5) * 2.0 ^ math.random(-18, 8) end
      for i, got in ipairs(cast(kind, xs, {})) do
        local x = math.abs(xs[i]) > largest and (xs[i] < 0 and -largest or largest) or xs[i]
        assert.equal(nearest(list, x), got, ("of %.9g"):format(xs[i]))
      end
    end)
    it(kind .. ": what is beyond the largest number", function()
      local list = numbers(kind)
      local largest = list[#list]
      local xs = { 1e6, -1e6, math.huge, -math.huge, largest * 1.01 }
      assert.same({ largest, -largest, largest, -largest, largest }, cast(kind, xs, {}))
      local y = cast(kind, xs, { saturate = 0 })
      if kind == "float4e2m1" then -- it has neither infinities nor NaN
        assert.same({ largest, -largest, largest, -largest, largest }, y)
        return
      end
      for i = 1, 4 do
        if about[4] == "ieee" then
          assert.equal(i % 2 == 1 and math.huge or -math.huge, y[i])
        else
          assert.is_true(y[i] ~= y[i])
        end
      end
      assert.equal(largest, y[5])
      local nan = cast(kind, { 0 / 0 }, {})[1]
      assert.is_true(nan ~= nan)
    end)
    it(kind .. ": bytes of the file are its numbers, and quantization rounds to them", function()
      local bits = 1 + about[1] + about[2]
      local bytes, n = {}, 1 << bits
      for code = 0, n - 1 do
        if bits == 8 then
          bytes[#bytes + 1] = string.char(code)
        elseif code % 2 == 1 then
          bytes[#bytes + 1] = string.char((code - 1) | code << 4)
        end
      end
      local g = { nodes = { { "DequantizeLinear", { "w", "s" }, { "y" } },
        { "QuantizeLinear", { "x", "s" }, { "q" }, { output_dtype = KINDS[kind] } },
        { "DequantizeLinear", { "q", "s" }, { "z" } } },
        inputs = { { "x", "f32", { 3 } } }, outputs = { { "y", "f32" }, { "z", "f32" } }, opset = 23,
        initializers = { w = { kind, { n }, table.concat(bytes) }, s = T.tensor(2.0) } }
      local list = numbers(kind)
      local y, z = model(g)(T.tensor { 0.7, -5.5, 1e9 })
      for code, got in ipairs(y:totable()) do
        local want = value(kind, code - 1)
        if want then
          assert.equal(2 * want, got)
        else
          assert.is_true(got ~= got or math.abs(got) == math.huge)
        end
      end
      assert.same({ 2 * nearest(list, 0.35), 2 * nearest(list, -2.75), 2 * list[#list] }, z:totable())
    end)
  end

  it("powers of two: up, down, to the nearest", function()
    local xs = { 1, 1.4, 1.5, 3, 1e-45, 0, -6, 1.7e38, 2.0 ^ 127 * 1.9 }
    local least = 2.0 ^ -127
    for mode, want in pairs { up = { 1, 2, 2, 4, least, least, 8, 2.0 ^ 127, 2.0 ^ 127 },
      down = { 1, 1, 1, 2, least, least, 4, 2.0 ^ 126, 2.0 ^ 127 },
      nearest = { 1, 1, 2, 4, least, least, 8, 2.0 ^ 127, 2.0 ^ 127 } } do
      assert.same(want, cast("float8e8m0", xs, { round_mode = mode }, 25))
    end
    local inf = cast("float8e8m0", { math.huge }, {}, 25)[1]
    assert.is_true(inf ~= inf)
    fails("round_mode 'odd'", function() cast("float8e8m0", xs, { round_mode = "odd" }, 25) end)
  end)

  it("an input that is no number of its type is refused", function()
    local m = model { nodes = { { "Cast", { "x" }, { "y" }, { to = 1 } } },
      inputs = { { "x", "float8e4m3fn", { 2 } } }, outputs = { { "y", "f32" } }, opset = 23 }
    assert.same({ 448, -0.875 }, m(T.tensor { 448, -0.875 }):totable())
    fails("is float8e4m3fn in the file, which does not have all of these values", m, T.tensor { 448, 0.3 })
  end)
end)

describe("integers of 2 to 16 bits", function()
  it("casts keep the lowest bits, views and copies of the module keep the type", function()
    for kind, want in pairs { int4 = { -8, 7, -1, 0, -7 }, uint4 = { 8, 7, 15, 0, 9 }, int2 = { 0, -1, -1, 0, 1 },
      uint2 = { 0, 3, 3, 0, 1 } } do
      local m = model { nodes = { { "Cast", { "x" }, { "q" }, { to = KINDS[kind] } },
        { "Reshape", { "q", "to" }, { "r" } }, { "QuantizeLinear", { "big", "s", "z" }, { "p" } },
        { "Cast", { "r" }, { "y" }, { to = 7 } },
        { "Cast", { "p" }, { "limit" }, { to = 7 } } },
        inputs = { { "x", "f32", { 5 } }, { "big", "f32", { 1 } } },
        outputs = { { "y", "i64" }, { "limit", "i64" } }, opset = 25,
        initializers = { to = T.tensor({ 5, 1 }, { dtype = "i64" }), s = T.tensor(1.0), z = { kind, {}, "\0" } } }
      local y, limit = m:clone()(T.tensor { 8, 7, 15.9, 0, 25 }, T.tensor { 1000 })
      assert.same(want, y:reshape(-1):totable())
      assert.same({ ({ int4 = 7, uint4 = 15, int2 = 1, uint2 = 3 })[kind] }, limit:totable())
    end
  end)

  -- A cast to the dtype that the values are kept in anyway gave the tensor itself, label and all: it went on wrapping.
  it("what a cast makes of them is theirs no more", function()
    for _, last in ipairs { { "Cast", { "x" }, { "y" }, { to = 6 } }, { "CastLike", { "x", "like" }, { "y" } } } do
      local m = model { nodes = { last, { "Mul", { "y", "y" }, { "z" } } }, inputs = { { "x", "u16", { 2 } } },
        outputs = { { "z", "i32" } }, opset = 21, initializers = { like = T.tensor({ 1 }, { dtype = "i32" }) } }
      assert.same({ 90000, 16 }, m(T.tensor({ 300, 4 }, { dtype = "i32" })):totable())
    end
    local m = model { nodes = { { "Mul", { "x", "x" }, { "z" } } }, inputs = { { "x", "u16", { 2 } } },
      outputs = { { "z", "u16" } }, opset = 21 }
    assert.same({ 90000 - 65536, 16 }, m(T.tensor({ 300, 4 }, { dtype = "i32" })):totable())
    fails("is uint16 in the file", m, T.tensor({ 70000, 4 }, { dtype = "i32" }))
  end)
end)

describe("attributes of quantization", function()
  it("DequantizeLinear's output_dtype, QuantizeLinear's precision", function()
    local q, s = T.tensor({ 1, 2 }, { dtype = "i8" }), T.tensor({ 0.1 })
    local y = model { nodes = { { "DequantizeLinear", { "q", "s" }, { "y" }, { output_dtype = 10 } } },
      inputs = { { "q", "i8", { 2 } } }, outputs = { { "y", "f16" } }, opset = 23, initializers = { s = s } } (q)
    assert.equal("f16", y:dtype())
    assert.same((T.tensor { 1, 2 } * 0.1):to("f16"):totable(), y:totable())
    -- 105 / 0.1: in bf16 the scale is 0.1001, and 1049 has not enough digits
    for precision, want in pairs { [1] = 1050, [16] = 1048 } do
      local p = model { nodes = { { "QuantizeLinear", { "x", "s" }, { "y" }, { precision = precision,
        output_dtype = 5 } } },
        inputs = { { "x", "f32", { 1 } } }, outputs = { { "y", "i16" } }, opset = 23, initializers = { s = s } }
      assert.same({ want }, p(T.tensor { 105.0 }):totable())
    end
    local m = model { nodes = { { "QuantizeLinear", { "x", "s", "z" }, { "y" }, { output_dtype = 3 } } },
      inputs = { { "x", "f32", { 1 } } }, outputs = { { "y", "u8" } }, opset = 23,
      initializers = { s = s, z = T.tensor({ 3 }, { dtype = "u8" }) } }
    fails("output_dtype i8, and a zero point of type u8", m, T.tensor { 1.0 })
  end)
end)

describe("Scan of version 8", function()
  it("runs over the sequences of a batch, each as long as it says", function()
    local function scan(lengths, directions)
      return model { nodes = { { "Scan", { lengths and "n" or "", "h", "x" }, { "last", "all" },
        { num_scan_inputs = 1, directions = directions, body = { nodes = { { "Add", { "a", "b" }, { "c" } },
          { "Identity", { "c" }, { "d" } } }, inputs = { { "a", "f32", { 1 } }, { "b", "f32", { 1 } } },
          outputs = { { "c", "f32" }, { "d", "f32" } } } } } },
        inputs = { { "h", "f32", { 2, 1 } }, { "x", "f32", { 2, 3, 1 } } },
        outputs = { { "last", "f32" }, { "all", "f32" } },
        opset = 8, initializers = { n = lengths and T.tensor(lengths, { dtype = "i64" }) } }
    end
    local h, x = T.tensor { { 10 }, { 20 } }, T.tensor { { { 1 }, { 2 }, { 3 } }, { { 4 }, { 5 }, { 6 } } }
    local last, all = scan()(h, x)
    assert.same({ { 16 }, { 35 } }, last:totable())
    assert.same({ { { 11 }, { 13 }, { 16 } }, { { 24 }, { 29 }, { 35 } } }, all:totable())
    last, all = scan(nil, { 1 })(h, x)
    assert.same({ { 16 }, { 35 } }, last:totable())
    assert.same({ { { 13 }, { 15 }, { 16 } }, { { 26 }, { 31 }, { 35 } } }, all:totable())
    last, all = scan { 3, 1 } (h, x)
    assert.same({ { 16 }, { 24 } }, last:totable())
    assert.same({ { { 11 }, { 13 }, { 16 } }, { { 24 }, { 0 }, { 0 } } }, all:totable())
    fails("4 steps of 3", scan { 4, 1 }, h, x)
    fails("shorter, backwards", scan({ 3, 1 }, { 1 }), h, x)
  end)
end)
