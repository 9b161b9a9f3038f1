-- SPDX-License-Identifier: MIT
-- The short programs of examples/ end in "ok", and notice a wrong number.

local T = require "perilune"
local root = os.getenv("PERILUNE_ROOT") or "."

-- Runs a program with print going into a list; with `spoil`, dofile's table goes through it.
local function run(name, spoil, args)
  local path, printed = root .. "/examples/" .. name, {}
  local env = setmetatable({
    arg = args or {},
    print = function(text) printed[#printed + 1] = tostring(text) end,
    dofile = function(file)
      local t = dofile(file)
      if spoil then spoil(t) end
      return t
    end,
  }, { __index = _G })
  local ok, message = pcall(assert(loadfile(path, "t", env)))
  return ok, message, printed
end

describe("examples/", function()
  for name, values in pairs { ["maml.lua"] = 19, ["wgan_gp.lua"] = 16 } do
    it(name .. " gives PyTorch's numbers", function()
      local ok, message, printed = run(name)
      assert.is_true(ok, message)
      assert.equal("ok", printed[#printed])
      assert.equal(values .. " values as PyTorch's", printed[#printed - 1])
    end)

    it(name .. " stops at a number that is off by 1e-5", function()
      local ok, message = run(name, function(t)
        local one = t[name:match("^(%w+_?%w*)%.lua$")].grads[3].data
        local largest = 1
        for i, v in ipairs(one) do if math.abs(v) > math.abs(one[largest]) then largest = i end end
        one[largest] = one[largest] * (1 + 1e-5)
      end)
      assert.is_false(ok)
      assert.truthy(tostring(message):find("gradient 3 differs from PyTorch", 1, true))
    end)
  end

  -- Those that train check what they reached themselves; the ones with images need Debian's package of them.
  for name, images in pairs { char_lstm = false, gpt_nano = false, lenet = true, vae = true } do
    it(name .. ".lua --quick reaches its goal", function()
      if images and not T.data.fashion_mnist { split = "test" } then
        return pending("Fashion-MNIST is not installed")
      end
      local ok, message, printed = run(name .. ".lua", nil, { "--quick" })
      assert.is_true(ok, message)
      assert.equal("ok", printed[#printed])
    end)

    it(name .. ".lua refuses unknown arguments", function()
      local ok, message = run(name .. ".lua", nil, { "--quack" })
      assert.is_false(ok)
      assert.truthy(tostring(message):find("unknown argument --quack; allowed:", 1, true))
    end)
  end
end)
