-- SPDX-License-Identifier: MIT
-- Random programs (spec/support/fuzz_jit.lua) as saved graphs: read again by T.load_graph, and built by perilune build,
-- they give the bits of the jitted function that was saved. PERILUNE_FUZZ_SAVED and PERILUNE_FUZZ_BUILD say how many.

local T = require "perilune"
local fuzz = require "spec.support.fuzz_jit"
local term = require "spec.support.terminal"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local SAVED, BUILT = tonumber(os.getenv "PERILUNE_FUZZ_SAVED" or 60), tonumber(os.getenv "PERILUNE_FUZZ_BUILD" or 3)
local q = term.quote

local function copies(list)
  local out = {}
  for i, x in ipairs(list) do out[i] = x:detach():clone() end
  return out
end

-- Program `seed`, run compiled without gradients and saved at `path` → its arguments, what it gave; nil: it fails.
local function saved(seed, path)
  local f, inputs = fuzz.program(seed)
  inputs = copies(inputs)
  local compiled = T.jit(function(...) return f(...) end)
  T.manual_seed(1)
  local got = table.pack(pcall(T.no_grad, compiled, table.unpack(copies(inputs))))
  if not got[1] then return nil end
  assert(T.save_graph(path, compiled:graph()))
  return inputs, { table.unpack(got, 2, got.n) }
end

local function bytes(list)
  local out = {}
  for i, x in ipairs(list) do out[i] = x:detach():contiguous():to_string() end
  return table.concat(out)
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

describe("random programs", function()
  it("that are saved give the same when they are read", function()
    local path, n = os.tmpname(), 0
    for seed = 1, SAVED do
      local inputs, want = saved(seed, path)
      if inputs then
        local g, feed = assert(T.load_graph(path)), {}
        for i, x in ipairs(inputs) do feed["x" .. i] = x end
        T.manual_seed(1)
        local got = T.no_grad(function() return g:run(feed) end)
        assert.equal(#want, #got)
        assert.is_true(bytes(want) == bytes(got), "program " .. seed)
        n = n + 1
      end
    end
    os.remove(path)
    os.remove(path .. ".safetensors")
    assert.is_true(n > SAVED // 2)
  end)

  local missing = sanitized and "a sanitizer's archives need its runtime" or term.missing("perilune", "cc")
  if missing or not term.there() then
    return it("are built", function() pending(missing or "there is no command") end)
  end
  local dir, remove = term.folder()
  teardown(function() remove() end)
  local function shell(...) return term.shell(("cd %s && "):format(q(dir)) .. string.format(...)) end

  it("that are built give the same", function()
    local n, seed = 0, 2
    while n < BUILT do
      seed = seed + 1
      local inputs, want = saved(seed, dir .. "/g")
      local text, status = "", 1
      if inputs then text, status = shell("%s build g -o app", q(term.command)) end
      if status == 0 then
        local files = {}
        for i in shell("./app --info"):gmatch "input x(%d+)" do
          write(dir .. "/x" .. i, bytes { inputs[tonumber(i)] })
          files[#files + 1] = "x" .. i
        end
        write(dir .. "/want", bytes(want))
        assert.same({ "", 0 }, { shell("./app --threads %d %s > got && cmp got want", seed % 2 + 1,
          table.concat(files, " ")) }, "program " .. seed)
        n = n + 1
      elseif inputs then
        assert.truthy(text:find "draws random numbers", text)
      end
    end
  end)
end)
