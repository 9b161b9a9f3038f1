-- SPDX-License-Identifier: MIT
-- Names of dtypes: PyTorch's are texts under T, and what is no dtype here is an error, not the default dtype.

local T = require "perilune"
local fails = require "spec.support.near".fails

describe("names of dtypes", function()
  it("as PyTorch has them", function()
    for name, dtype in pairs { float16 = "f16", float32 = "f32", float64 = "f64", int8 = "i8", int16 = "i16",
      int32 = "i32", int64 = "i64", uint8 = "u8" } do
      assert.equal(dtype, T[name])
      assert.equal(dtype, T.zeros({ 2 }, { dtype = T[name] }):dtype())
      assert.equal(dtype, T.ones(2):to(T[name]):dtype())
    end
  end)

  it("that there are none of", function()
    for _, name in ipairs { "complex64", "complex128", "uint16", "uint32", "uint64" } do
      fails("T." .. name .. ": there is no such dtype", function() return T[name] end)
    end
  end)

  it("of methods say that a text is wanted", function()
    fails('dtype must be a string such as "f32"', T.zeros, { 1 }, { dtype = T.float })
  end)
end)
