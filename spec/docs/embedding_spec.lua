-- SPDX-License-Identifier: MIT
-- The C programs of docs/tutorial/embedding.md: the one with Lua is compiled and run here, the other is
-- spec/link/embed.c.

local docs = require "spec.support.docs"
local term = require "spec.support.terminal"
local root = os.getenv("PERILUNE_ROOT") or "."
local build = os.getenv("PERILUNE_BUILD") or root .. "/build"

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("a")
  f:close()
  return text
end

-- What a command prints, and whether it succeeded.
local function output(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("a")
  return text, pipe:close()
end

describe("docs/tutorial/embedding.md", function()
  local programs, printed = {}, {}
  for _, block in ipairs(docs.blocks(root .. "/docs/tutorial/embedding.md")) do
    if block.lang == "c" then programs[#programs + 1] = block.code end
    if block.lang == "text" then printed[#printed + 1] = block.code end
  end

  it("has the program that the link test runs, and its output", function()
    local source = read(root .. "/spec/link/embed.c")
    assert.equal(source:sub(source:find("#include", 1, true), -1), programs[2])
    local path = build .. "/spec/link_embed"
    if not io.open(build .. "/CTestTestfile.cmake") then return pending(build .. " is a build without tests") end
    local text, ok = output(("'%s'"):format(path))
    assert.is_true(ok, text)
    assert.equal(printed[2], text)
  end)

  it("has a host of Lua that compiles and works", function()
    local missing = term.missing("plain", "cc", "pkg-config")
    if missing then return pending(missing) end
    local flags, found = output("pkg-config --cflags --libs lua5.4")
    if not found then return pending "pkg-config knows no lua5.4" end
    local name = os.tmpname()
    local f = assert(io.open(name .. ".c", "w"))
    f:write(programs[1])
    f:close()
    local text, ok = output(("cc -std=c11 -Wall -Wextra -Werror '%s.c' -o '%s' %s"):format(name, name,
      flags:gsub("%s+$", "")))
    assert.is_true(ok, text)
    text, ok = output(("LUA_PATH='%s/lua/?.lua;%s/lua/?/init.lua' LUA_CPATH='%s/lib/?.so' '%s'"):format(root, root,
      build, name))
    os.remove(name)
    os.remove(name .. ".c")
    assert.is_true(ok, text)
    assert.equal(printed[1], text)
  end)
end)

describe("examples/embed/adam.c", function()
  it("compiles against the C library alone, and learns", function()
    local missing = term.missing("plain", "cc")
    if missing then return pending(missing) end
    local pc = io.open(build .. "/perilune.pc")
    if not pc then return pending(build .. " is a build without the C library") end
    local libs = pc:read("a"):match "\nLibs: %-L%S+ %-lperilune_engine %-lperilune_kernels ([^\n]*)"
    pc:close()
    local name = os.tmpname()
    local form = "cc -std=c11 -Wall -Wextra -Werror -I '%s/include' -I '%s' '%s/examples/embed/adam.c' -o '%s' "
      .. "'%s/lib/libperilune_engine.a' '%s/lib/libperilune_kernels.a' %s"
    local text, ok = output(form:format(build, root, root, name, build, build, libs))
    assert.is_true(ok, text)
    text, ok = output(("'%s'"):format(name))
    os.remove(name)
    assert.is_true(ok, text)
    local step = "step %d+, loss [%d.]+\n"
    assert.truthy(text:find("^" .. step:rep(4) .. "largest error [%d.]+\nok\n$"), text)
  end)
end)
