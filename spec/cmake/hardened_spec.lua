-- SPDX-License-Identifier: MIT
-- What is built is hardened: tables of the linker read-only once the program has started (RELRO, BIND_NOW), canaries on
-- the stack, checked library calls, no executable stack, and a command at an address of the system's choice. None of it
-- names a folder of the machine that built it.

local root = os.getenv("PERILUNE_ROOT") or "."
local build = os.getenv("PERILUNE_BUILD") or root .. "/build"
local sanitized = (os.getenv("PERILUNE_SANITIZE") or "") ~= ""

local function output(command)
  local pipe = assert(io.popen(command .. " 2>/dev/null"))
  local text = pipe:read "a"
  return pipe:close() and text or nil
end

local readelf = output "command -v readelf"
local cache = assert(io.open(build .. "/CMakeCache.txt")):read "a"
local optimized = not sanitized and not cache:find "CMAKE_BUILD_TYPE:%w+=Debug"

local objects = {}
for name in (output(("ls '%s'/bin/perilune '%s'/lib/perilune/*.so"):format(build, build)) or ""):gmatch "[^\n]+" do
  if not name:find("cuda", 1, true) then objects[#objects + 1] = name end -- nvcc links that one
end

describe("what is built", function()
  if not readelf then
    pending "readelf is not there (binutils)"
    return
  end

  it("is hardened", function()
    assert.is_true(#objects >= 3)
    for _, object in ipairs(objects) do
      local head = assert(output(("readelf -Wld '%s'"):format(object)))
      assert.truthy(head:find("GNU_RELRO", 1, true), object .. ": no RELRO")
      assert.truthy(head:find("BIND_NOW", 1, true) or head:find("Flags:[^\n]*NOW"), object .. ": not bound at start")
      local stack = head:match "GNU_STACK%s+%S+%s+%S+%s+%S+%s+%S+%s+%S+%s+(%a+)"
      assert.equal("RW", stack, object .. ": the stack is executable")
      if object:find "/bin/perilune$" then
        assert.truthy(head:find("Position-Independent", 1, true) or head:find("Flags:[^\n]*PIE"), object .. ": no PIE")
      end
      local names = assert(output(("readelf -Ws --dyn-syms '%s'"):format(object)))
      if not sanitized then assert.truthy(names:find("__stack_chk_fail", 1, true), object .. ": no canaries") end
      if optimized and (object:find "engine%.so$" or object:find "/perilune$") then
        assert.truthy(names:find "__%l+_chk", object .. ": library calls are not checked")
      end
    end
  end)

  it("names no folder of its build", function()
    if sanitized then return end -- run paths and reports name them
    for _, object in ipairs(objects) do
      local f = assert(io.open(object, "rb"))
      local bytes = f:read "a"
      f:close()
      assert.is_nil(bytes:find(root .. "/engine", 1, true), object)
      assert.is_nil(bytes:find(root .. "/kernels", 1, true), object)
      assert.is_nil(bytes:find(build .. "/CMakeFiles", 1, true), object)
    end
  end)
end)
