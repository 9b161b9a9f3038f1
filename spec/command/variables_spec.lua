-- SPDX-License-Identifier: MIT
-- Variables of the environment: those that the sources read are all known; what is none, or has a value that is not
-- heeded, is told once.

local T = require "perilune"
local environment = require "perilune.environment"
local term = require "spec.support.terminal"
local root = os.getenv("PERILUNE_ROOT") or "."

local function told(settings, code)
  if not term.there() then return nil end
  return (term.shell(("env %s %s -e %s"):format(settings, term.command, term.quote(code or "require 'perilune'"))))
end

local function names_in(folders)
  local form = "cd '%s' && grep -rhoE 'getenv *\\(?\"PERILUNE_[A-Z0-9_]+\"' %s"
  local p = assert(io.popen(form:format(root, table.concat(folders, " "))))
  local names = {}
  for name in p:read("a"):gmatch '"([^"]+)"' do names[name] = true end
  p:close()
  return names
end

describe("PERILUNE_ variables", function()
  it("of the sources are all known", function()
    local read = names_in { "kernels", "engine", "bindings", "lua" }
    assert.truthy(read.PERILUNE_ISA)
    for name in pairs(read) do assert.truthy(environment.variables[name], name) end
    for name in pairs(environment.variables) do assert.truthy(read[name], name) end
  end)

  it("of the specs are known, too", function()
    for name in pairs(names_in { "spec", "bench", "examples" }) do
      assert.same({}, environment.variables[name] and {} or environment.complaints({ [name] = "1" }, T.core))
    end
  end)

  it("names passes that there are", function()
    local g = T.graph()
    local x = g:input("x", { 2 })
    g:outputs { x + 1 }
    local passes, n = g:plan().passes, 0
    for _, name in ipairs(environment.passes) do assert.truthy(passes[name] or name == "fuse", name) end
    for _ in pairs(passes) do n = n + 1 end
    assert.equal(n + 1, #environment.passes)
  end)

  local WRONG = {
    { "PERILUNE_ISA", "typo", "has no effect: unknown value 'typo'" },
    { "PERILUNE_ISA", "V3", "did you mean 'v3'" },
    { "PERILUNE_PASSES", "-fuze", "did you mean '-fuse'" },
    { "PERILUNE_PASSES", "fuse", "did you mean '-fuse'" },
    { "PERILUNE_CUDA_SYNC", "yes", "1 or 0 expected" },
    { "PERILUNE_CUDA_GRAPHS", "off", "1 or 0 expected" },
    { "PERILUNE_CUDA_QUIET", "true", "1 or 0 expected" },
    { "PERILUNE_DISTRIBUTED_DEBUG", "maybe", "OFF expected" },
    { "PERILUNE_CUDA_PLUGIN", "/nowhere.so", "there is no such file" },
    { "PERILUNE_MPI_PLUGIN", "/nowhere.so", "there is no such file" },
    { "PERILUNE_IAS", "v3", "did you mean 'PERILUNE_ISA'" },
    { "PERILUNE_THREADS", "3", "unknown variable" },
  }
  for _, row in ipairs(WRONG) do
    it(("%s=%s is told"):format(row[1], row[2]), function()
      local list = environment.complaints({ [row[1]] = row[2], PERILUNE_DATA = "anything" }, T.core)
      assert.equal(1, #list)
      assert.truthy(list[1]:find(row[1], 1, true), list[1])
      assert.truthy(list[1]:find(row[3], 1, true), list[1])
    end)
  end

  it("are told once, on the error stream, and nothing is said of right ones", function()
    local text = told("PERILUNE_ISA=typo PERILUNE_NOISE=1", "require 'perilune' print(1)")
    if not text then return pending(term.missing "perilune") end
    local _, n = text:gsub("has no effect", "")
    assert.equal(2, n, text)
    local level = T.core.isa()
    text = told(("PERILUNE_ISA=%s PERILUNE_PASSES=-fuse,-cse PERILUNE_CUDA_SYNC=0 PERILUNE_COLLECT=off")
      :format(level:find "^v" and level or ""))
    assert.equal("", text)
  end)
end)
