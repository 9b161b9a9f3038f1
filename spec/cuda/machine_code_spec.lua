-- SPDX-License-Identifier: MIT
-- What can be read of kernels without a GPU: none keeps operands in local memory, and hot ones move 16 bytes at a time.
-- Where the plug-in was compiled for one architecture and the toolkit has cuobjdump; else pending.

local code = require "spec.support.machine_code"
local build = os.getenv "PERILUNE_BUILD" or "build"

-- Kernels that may use local memory, and why.
local STACK = {
  ["ew_%a+I7EwFloatI.*Li3E"] = "slow ops take items one at a time: elementwise_slow.h",
  ["ew_%a+I5EwIntI[ah]E"] = "loops of integer powers and gcd over 16 bytes",
  ["4draw6Random"] = "sin and cos of large arguments",
  ["polygammas"] = "series of a length of its own",
  ["5plainIddd"] = "the plain product of f64, where cuBLASLt is missing",
}
-- Per object: kernels (patterns of mangled names) with the 16-byte loads and stores that they have at least.
local HOT = {}
for _, e in ipairs { { "f32", "f" }, { "f16", "7plc_f16" }, { "bf16", "8plc_bf16" } } do
  HOT[#HOT + 1] = { "elementwise/elementwise_" .. e[1], {
    { "ew_flatI7EwFloatI" .. e[2] .. "Li0E", 2, 1 },
    { "ew_flatI7EwFloatI" .. e[2] .. "Li1E", 2, 1 },
    { "ew_flatI7EwFloatI" .. e[2] .. "Li2E", 3, 1 },
    { "ew_stridedI7EwFloatI" .. e[2] .. "Li0E", 2, 1 },
  } }
end

-- nvcc 13.0 takes the stores of these apart, half by half.
HOT[#HOT + 1] = { "norm/softmax", { { "staged_rowsI8plc_bf16", 4, 0 }, { "staged_rows_bwdI8plc_bf16", 8, 0 } } }

local function objects()
  local list = {}
  local p = assert(io.popen(("ls '%s'/cuda/*/*.o 2>/dev/null"):format(build)))
  for path in p:lines() do list[#list + 1] = path end
  p:close()
  return list
end

-- The object of a kernel file; in a build for tests alone that of its folder's (cmake/Cuda.cmake).
local function object_of(name)
  local own = ("%s/cuda/%s.o"):format(build, name)
  local file = io.open(own)
  if not file then return ("%s/cuda/units/%s.o"):format(build, name:match "[^/]+") end
  file:close()
  return own
end

local tool, found = code.tool(), objects()

describe("machine code", function()
  if not tool or #found == 0 then
    pending(tool and "this build compiled no kernels for a GPU" or "no cuobjdump (PERILUNE_CUOBJDUMP names it)")
    return
  end

  it("of every kernel keeps its values in registers", function()
    local kernels, wrong, seen = 0, {}, {}
    for _, path in ipairs(found) do
      for name, r in pairs(code.resources(tool, path)) do
        kernels = kernels + 1
        local allowed = r.stack == 0
        for pattern in pairs(STACK) do
          if r.stack > 0 and name:find(pattern) then allowed, seen[pattern] = true, true end
        end
        if not allowed then wrong[#wrong + 1] = ("%s: %d bytes of stack"):format(name, r.stack) end
      end
    end
    assert.are.same({}, wrong)
    assert.is_true(kernels > 300, kernels .. " kernels")
    for pattern, why in pairs(STACK) do assert.truthy(seen[pattern], pattern .. " needs no stack any more: " .. why) end
  end)

  for _, file in ipairs(HOT) do
    it("of " .. file[1] .. " moves 16 bytes at a time", function()
      local object = object_of(file[1])
      local names = {}
      for name in pairs(code.resources(tool, object)) do
        for _, want in ipairs(file[2]) do
          if name:find(want[1]) then names[#names + 1] = name end
        end
      end
      local all = code.code(tool, object, names)
      for _, want in ipairs(file[2]) do
        local some = false
        for name, c in pairs(all) do
          if name:find(want[1]) then
            some = true
            local loads, stores = c.loads[128] or 0, c.stores[128] or 0
            assert.is_true(loads >= want[2], name .. " loads 16 bytes in " .. loads .. " places")
            assert.is_true(stores >= want[3], name .. " stores 16 bytes in " .. stores .. " places")
            assert.are.equal(0, c.spilled, name)
          end
        end
        assert.is_true(some, "no kernel is named " .. want[1])
      end
    end)
  end
end)
