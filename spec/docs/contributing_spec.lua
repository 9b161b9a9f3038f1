-- SPDX-License-Identifier: MIT
-- Follows "Add an op in five minutes" of CONTRIBUTING.md to the letter: applies its code blocks to a copy of
-- the tree, builds the copy, runs its example, and lets the specs of ops judge the new op there. The copy is built as
-- ./setup demo builds, so that a demo that cannot be built is seen, too: the preset `quick`, and without the libraries
-- that setup does not install for it.
--   <!-- edit: FILE after: TEXT -->   the block goes below the one line that starts with TEXT; before: above
--   <!-- with the new op -->          the block is run with the new build

local docs = require "spec.support.docs"

local root = os.getenv("PERILUNE_ROOT") or "."
local build = os.getenv("PERILUNE_BUILD") or root .. "/build"

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- Runs a command; true, or false and what it printed.
local function shell(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("a")
  local ok = pipe:close()
  return ok == true, text
end

local function must(command)
  local ok, text = shell(command)
  assert(ok, command .. "\n" .. text:sub(-4000))
  return text
end

local function write(path, text)
  local f = assert(io.open(path, "w"))
  f:write(text)
  assert(f:close())
end

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("a")
  f:close()
  return text
end

-- A value of the cache of the build that runs this spec, so that the copy is built alike.
local function cached(name)
  for line in io.lines(build .. "/CMakeCache.txt") do
    local value = line:match("^" .. name .. ":%w+=(.*)$")
    if value and not value:find("NOTFOUND$") then return value end
  end
end

-- Puts the block's lines below ("after") or above ("before") the only line of the file that starts with text.
local function apply(tree, block)
  local file, where, text = block.mark:match("^edit: (%S+) (%l+): (.*)$")
  assert(where == "after" or where == "before", "cannot read the mark " .. block.mark)
  local lines, at = {}, nil
  for line in io.lines(tree .. "/" .. file) do
    lines[#lines + 1] = line
    if line:sub(1, #text) == text then
      assert(not at, file .. " has two lines that start with " .. text)
      at = #lines
    end
  end
  assert(at, file .. " has no line that starts with " .. text)
  table.insert(lines, where == "after" and at + 1 or at, (block.code:gsub("\n$", "")))
  write(tree .. "/" .. file, table.concat(lines, "\n") .. "\n")
end

-- Why the spec cannot run here, or nil.
local function obstacle()
  if (os.getenv("PERILUNE_SANITIZE") or "") ~= "" then return "a sanitizer build need not build again" end
  if not shell("cmake --version") then return "cmake is missing" end
  if not shell("ninja --version") then return "ninja is missing" end
  if not shell("test -r " .. quote(build .. "/CMakeCache.txt")) then return "no CMake build in " .. build end
end

-- Copies what the build needs.
local function copy_tree(tree)
  must(("mkdir -p %s && cd %s && cp -r CMakeLists.txt CMakePresets.json .busted cmake kernels engine bindings lua spec "
    .. "examples %s")
    :format(quote(tree), quote(root), quote(tree)))
end

-- The value of a variable of setup: packages.
local function packages(name)
  local list = {}
  local text = read(root .. "/setup"):match('\n' .. name .. '="([^"]*)"')
  for word in assert(text, "setup has no " .. name):gmatch "[^%s$]+" do list[word] = true end
  return list
end

-- Debian's packages of libraries and the options that use them; false: no option has to do with it.
local library = { ["libdnnl-dev"] = "ONEDNN", ["libjansson-dev"] = "JANSSON", ["libspng-dev"] = "SPNG",
  ["libturbojpeg0-dev"] = "TURBOJPEG", ["libpcre2-dev"] = "PCRE2", ["libutf8proc-dev"] = "UTF8PROC",
  ["libmicrohttpd-dev"] = "MICROHTTPD", ["libzmq3-dev"] = "ZMQ", quick_packages = false }

-- As ./setup demo, but without optimization: it is to be built quickly, not to run quickly. Warnings that only the
-- optimizer gives are none of its errors (the preset says so, see spec/cmake/build_spec.lua).
local function compile(tree)
  local flags = { "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O0", "-DPL_TESTS=OFF", "-DPERILUNE_CUDA=OFF" }
  local quick = packages "quick_packages"
  for _, list in ipairs { "build_packages", "optional_build_packages" } do
    for name in pairs(packages(list)) do
      if not quick[name] then
        assert(library[name] ~= nil, "setup installs " .. name .. ": which option uses it?")
        if library[name] then flags[#flags + 1] = ("-DPL_WITH_%s=OFF"):format(library[name]) end
      end
    end
  end
  for _, name in ipairs { "CMAKE_C_COMPILER", "PL_LUA_INCLUDE", "PL_LUA_LIBRARY" } do
    local value = cached(name)
    if value then flags[#flags + 1] = quote(("-D%s=%s"):format(name, value)) end
  end
  must(("cd %s && cmake --preset quick %s"):format(quote(tree), table.concat(flags, " ")))
  must(("cmake --build %s/build -j 2"):format(quote(tree)))
end

-- Environment in which programs see the copy and nothing of the tree that runs this spec.
local function inside(tree, command)
  local q = quote(tree)
  local vars = "PERILUNE_ROOT=@ PERILUNE_BUILD=@/build LUA_CPATH_5_4=@/build/lib/?.so';;' "
    .. "LUA_PATH_5_4=@/lua/?.lua';'@/lua/?/init.lua';'@/?.lua';;' "
  return "cd " .. q .. " && env " .. vars:gsub("@", function() return q end) .. command
end

local blocks = docs.blocks(root .. "/CONTRIBUTING.md")

describe("CONTRIBUTING.md", function()
  local tree

  setup(function()
    tree = os.tmpname()
    os.remove(tree)
  end)
  teardown(function()
    if tree and tree:find("^/tmp/") then os.execute("rm -rf " .. quote(tree)) end
  end)

  it("adds an op that works and passes its specs", function()
    local reason = obstacle()
    if reason then
      print("skipped: " .. reason)
      return pending(reason)
    end
    copy_tree(tree)
    local edits, tried, files, touched = 0, 0, {}, 0
    for _, block in ipairs(blocks) do
      if block.mark and block.mark:find("^edit:") then
        apply(tree, block)
        edits = edits + 1
        local file = block.mark:match "^edit: (%S+)"
        if not files[file] then touched = touched + 1 end
        files[file] = true
      end
    end
    assert.equal(5, edits, "blocks that edit a file")
    assert.is_true(touched <= 6, touched .. " files for one op")
    compile(tree)

    for i, block in ipairs(blocks) do
      if block.mark == "with the new op" then
        local script = ("%s/block%d.lua"):format(tree, i)
        write(script, block.code)
        local text = must(inside(tree, quote(tree .. "/build/bin/perilune") .. " run " .. quote(script)))
        local expected = docs.expected(block.code)
        assert.is_true(#expected >= 3)
        assert.equal(table.concat(expected, "\n"), text:sub(1, #table.concat(expected, "\n")))
        assert.truthy(text:find("T.cube(x)", 1, true), "T.help does not know the op")
        tried = tried + 1
      end
    end
    assert.equal(1, tried)

    -- a wrong call is refused with the op's name at the caller's line
    local _, refused = shell(inside(tree, quote(tree .. "/build/bin/perilune")
      .. [[ -e 'local T = require "perilune" T.cube("x")']]))
    assert.truthy(refused:find("(command line):1: cube: argument x (#1) must be a tensor", 1, true), refused)

    local runner = (cached("PL_LUA_COMMAND") or "lua5.4") .. " " .. (cached("PL_BUSTED") or "busted")
    local report = must(inside(tree, runner .. " --filter=cube -o TAP spec/ops/values_spec.lua "
      .. "spec/ops/forward_spec.lua spec/ops/gradients_spec.lua spec/ops/wrong_calls_spec.lua"))
    local passed = select(2, report:gsub("%f[^\n\0]ok %d", ""))
    assert.is_nil(report:find("%f[^\n\0]not ok"), report)
    assert.is_true(passed >= 10, report)
  end)

  it("is built there as ./setup demo builds, and the demo trains", function()
    if obstacle() then return pending(obstacle()) end
    local cache = read(tree .. "/build/CMakeCache.txt")
    assert.truthy(cache:find("PL_QUICK:[A-Z]+=ON"))
    assert.truthy(cache:find("PL_WITH_ONEDNN:[A-Z]+=OFF"))
    if not require "perilune".data.fashion_mnist { split = "test" } then
      return pending "Fashion-MNIST is not installed"
    end
    local text = must(inside(tree, "build/bin/perilune run examples/fashion_mnist.lua -- --quick"))
    assert.equal("\nok\n", text:sub(-4), text)
  end)
end)
