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
  -- T.cli reads the global arg, and ends the program at a wrong one
  local old, exit, stderr, said = rawget(_G, "arg"), os.exit, io.stderr, {}
  rawset(_G, "arg", env.arg)
  os.exit = function(status) error("exit " .. tostring(status), 0) end -- luacheck: ignore 122
  io.stderr = { write = function(_, ...) said[#said + 1] = table.concat { ... } end, -- luacheck: ignore 122
    flush = function() end }
  local ok, message = pcall(assert(loadfile(path, "t", env)))
  rawset(_G, "arg", old)
  os.exit, io.stderr = exit, stderr -- luacheck: ignore 122
  return ok, message, printed, table.concat(said)
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
  for name, images in pairs { char_lstm = false, gpt_nano = false, gan = false, cartpole = false,
    custom_gradient = false, server = false, lenet = true, resnet18 = true, vae = true, fashion_mnist = true,
    data_parallel = true, text_bpe = false, gpt2_text = false, bert_classify = false, clip_search = false,
    whisper_tones = false } do
    it(name .. ".lua --quick reaches its goal", function()
      local learn = T.data.train_bpe
      local reads = name == "text_bpe" or name == "gpt2_text" or name == "bert_classify"
      if reads and not (learn and learn { 300, text = "a a" }) then
        return pending("built without tokenizers")
      end
      if images and not T.data.fashion_mnist { split = "test" } then
        return pending("Fashion-MNIST is not installed")
      end
      local ok, message, printed = run(name .. ".lua", nil, { "--quick" })
      assert.is_true(ok, message)
      assert.equal("ok", printed[#printed])
    end)

    it(name .. ".lua refuses unknown arguments", function()
      local ok, message, _, said = run(name .. ".lua", nil, { "--quack" })
      assert.is_false(ok)
      assert.equal("exit 2", message)
      assert.truthy(said:find("unknown option --quack; did you mean --quick?", 1, true), said)
    end)
  end
end)
