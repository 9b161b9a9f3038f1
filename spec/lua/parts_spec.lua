-- SPDX-License-Identifier: MIT
-- What loads at first use: every name that a part defines has a comment by which it is found, `require "perilune"`
-- loads no part, and what a script puts under such a name stays.

local T = require "perilune"
local term = require "spec.support.terminal"

local function keys(t)
  local list = {}
  for key in next, t do list[#list + 1] = key end
  table.sort(list)
  return list
end

describe("parts that load at first use", function()
  for n, part in ipairs(T.core.parts) do
    it(part .. " has a comment for each name that it defines", function()
      local methods = setmetatable({}, { __index = T.core.metatable().methods })
      local core = setmetatable({ metatable = function() return { methods = methods } end,
        on_custom_batched = function() end }, { __index = T.core })
      local mine = setmetatable({}, { __index = T })
      require("perilune." .. part)(mine, core)
      local names = keys(mine)
      table.move(keys(methods), 1, #keys(methods), #names + 1, names)
      assert.is_true(#names > 0)
      local lost = {}
      for _, name in ipairs(names) do
        local found = T.core.part_of(name)
        local other = found == nil and n > #T.core.parts - 2 -- another name of a function
        if found ~= part and not other then lost[#lost + 1] = name .. " in " .. tostring(found) end
      end
      assert.same({}, lost)
    end)
  end

  it("are all there for pairs", function()
    local seen = {}
    for name, value in pairs(T) do seen[name] = value end
    for name in pairs(T.core.lazy()) do assert.truthy(seen[name], name) end
    assert.is_nil(T.no_such_thing)
    assert.is_nil(T.zeros(1).no_such_thing)
  end)

  -- without variables that perilune reads: there is a part that says what is wrong with them
  local bare = [[unset $(env | sed -n 's/^\(PERILUNE_[A-Z_]*\)=.*/\1/p'); ]]
  local function fresh(code)
    local text, status = term.shell(bare .. term.quote(term.command) .. " -e " .. term.quote(code))
    assert.equal(0, status, text)
    return text
  end
  if not term.there() then return end

  it("are found in a traced function, too, which reads no files", function()
    assert.equal("6.0", (fresh [[
      local T = require "perilune"
      print(T.jit(function(a) return T.einsum("i,i->", a, a) end)(T.tensor { 1, 1, 2 }):item())
    ]]):match "%S+")
  end)

  it("are not loaded before", function()
    assert.equal("core loaded tensor.create autograd.gradient init tensor.methods options autograd.autocast "
      .. "surface define ", (fresh [[
      local T = require "perilune"
      T.zeros(2, 3):sum()
      local known = { "loaded", "tensor.create", "autograd.gradient", "init", "tensor.methods", "options",
        "autograd.autocast", "surface", "define" }
      local n = 0
      for name in pairs(package.loaded) do if name:find "^perilune" then n = n + 1 end end
      assert(n == #known + 1, n)
      io.write "core "
      for _, name in ipairs(known) do
        assert(package.loaded["perilune." .. name] or name == "init" and package.loaded.perilune, name)
        io.write(name, " ")
      end]]))
  end)

  it("are not what takes the time: no public function is asked for the names of its parameters before", function()
    assert.equal("0", (fresh [[
      local n, getinfo, getlocal = 0, debug.getinfo, debug.getlocal
      debug.getlocal = function(...) n = n + 1 return getlocal(...) end
      debug.getinfo = function(f, ...)
        if type(f) == "function" then n = n + 1 else f = f + 1 end -- a level, of which this is one
        local info = getinfo(f, ...)
        return info
      end
      local T = require "perilune"
      local before = n
      local ok, message = pcall(T.can_cast, "f32", "f64", { no = 1 })
      assert(not ok and message:find("at most 2 arguments (from, to): unknown option 'no'", 1, true), message)
      assert(n > before) -- the message has them
      io.write(before)]]))
  end)

  it("and all other files are loaded once, whoever empties package.loaded", function()
    assert.equal("true\ttrue\t12\t2.0\t3.0\n", fresh [[
      local T = require "perilune"
      local nn = T.nn
      local function empty()
        for name in pairs(package.loaded) do if name:find "^perilune" then package.loaded[name] = nil end end
      end
      empty()
      local net = T.models.Llama { vocab_size = 64, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 1,
        num_attention_heads = 4 }
      local path, n = os.tmpname(), 0
      os.remove(path)
      empty()
      assert(T.models.save(net, path .. ".gguf"))
      for _ in pairs(T.load(path .. ".gguf")) do n = n + 1 end
      os.remove(path .. ".gguf")
      empty()
      local own = { k = 2 }
      local f = T.jit(function(x) return x * own.k end)
      local first = f(T.ones(1)):item()
      empty()
      own.k = 3
      print(require "perilune" == T, require "perilune.nn" == nn, n, first, f(T.ones(1)):item())]])
  end)

  it("leave what a script has put under their names", function()
    assert.equal("mine\t{1., 1.}  -- f32[2] cpu\tnil\n", fresh [[
      local T = require "perilune"
      function T.clip() return "mine" end
      local y = T.zeros(2):clip(1, 2)
      T.vmap = nil
      local _ = T.jvp
      local first = T.argwhere
      T.argwhere = nil
      print(T.clip(), y, first and T.argwhere)]])
  end)
end)
