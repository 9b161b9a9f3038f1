-- SPDX-License-Identifier: MIT
-- Random programs (spec/support/fuzz_jit.lua) that T.onnx.save writes with rows and columns free: read again, they give
-- what the program gives, at three sizes. PERILUNE_FUZZ_ONNX says how many programs are tried.

local T = require "perilune"
local fuzz = require "spec.support.fuzz_jit"
local TRIED = tonumber(os.getenv "PERILUNE_FUZZ_ONNX" or 100)

local function copies(list)
  local out = {}
  for i, x in ipairs(list) do out[i] = x:detach():clone() end
  return out
end
local function results(f, inputs)
  return T.no_grad(function() return table.pack(f(table.unpack(copies(inputs)))) end)
end

-- Is b what a is, up to rounding?
local function like(a, b)
  if a:dtype() ~= b:dtype() or table.concat(a:shape(), ",") ~= table.concat(b:shape(), ",") then return false end
  local x, y = a:to "f64", b:to "f64"
  local near = (x - y):abs():le(x:abs() * 1e-4 + 1e-4)
  return near:logical_or(x:eq(y)):logical_or(x:ne(x):logical_and(y:ne(y))):all():item()
end

-- Why a program may not be saved: each is said by name.
local refusals = { "it draws random numbers", "depends on", "not supported", "does something else" }

describe("random programs as ONNX files", function()
  it("give the same when they are read, at any size", function()
    local path, saved, compared = os.tmpname(), 0, 0
    for seed = 1, TRIED do
      local f, inputs = fuzz.program(seed)
      inputs = copies(inputs)
      local R, C = inputs[1]:size(1), inputs[1]:size(2)
      if inputs[1]:dtype() == "f32" and R > 1 and C > 1 and R ~= C then
        local names, dynamic = {}, {}
        for i, x in ipairs(inputs) do
          names[i] = "x" .. i
          local free = {}
          for d = 1, x:dim() do free[d] = x:size(d) == R and "R" or x:size(d) == C and "C" or nil end
          dynamic[names[i]] = next(free) and free or nil
        end
        local ok, why = pcall(T.onnx.save, path, f, copies(inputs), { input_names = names, dynamic = dynamic })
        if ok then
          saved = saved + 1
          local m = assert(T.onnx.load(path))
          T.manual_seed(seed)
          for _, more in ipairs { { 0, 0 }, { 3, 1 }, { 1, 9 } } do
            local list = {}
            for i, x in ipairs(inputs) do
              local shape = x:shape()
              for d, n in ipairs(shape) do shape[d] = n == R and R + more[1] or n == C and C + more[2] or n end
              list[i] = T.randn(shape)
            end
            local want, got = results(f, list), results(m, list)
            for i = 1, want.n do
              assert.is_true(like(want[i], got[i]), ("program %d, result %d"):format(seed, i))
              compared = compared + 1
            end
          end
        else
          local said = false
          for _, part in ipairs(refusals) do said = said or tostring(why):find(part, 1, true) ~= nil end
          assert.is_true(said, tostring(why))
        end
      end
    end
    os.remove(path)
    assert.is_true(saved > TRIED // 5 and compared > 3 * saved)
  end)
end)
