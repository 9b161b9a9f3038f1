-- SPDX-License-Identifier: MIT
-- What is built when: `all` holds what users run and nothing of the tests, `tests` holds both; a test that needs a
-- program has it built first, or fails; a plug-in that is no part of the build is not where the engine opens it.
local term = require "spec.support.terminal"
local q = term.quote

local root = os.getenv "PERILUNE_ROOT" or "."
local build = os.getenv "PERILUNE_BUILD" or root .. "/build"

local function ok(command)
  local text, status = term.shell(command)
  assert.equal(0, status, command .. "\n" .. text)
  return text
end

describe("setup", function()
  it("refuses words it does not know, and builds nothing then", function()
    for _, words in ipairs { "build --cude", "build --cuda now", "test --cuda", "help me", "biuld", "--cuda" } do
      local text, status = term.shell(("cd %s && timeout 120 ./setup %s"):format(q(root), words))
      assert.equal(2, status, words)
      assert.equal(1, text:find "usage: ./setup COMMAND", words .. "\n" .. text)
    end
    assert.truthy(ok(("cd %s && ./setup help"):format(q(root))):find("build --cuda", 1, true))
  end)

  it("configures by presets that are there, into the folders that it builds", function()
    local presets = require "perilune.io.json".decode(term.read(root .. "/CMakePresets.json"))
    local known = {}
    for _, p in ipairs(presets.configurePresets) do known[p.name] = p end
    local function inherited(p, key) -- a value of a preset or of those that it inherits
      while p do
        local v = key == "binaryDir" and p[key] or (p.cacheVariables or {})[key]
        if v then return v end
        p = known[p.inherits]
      end
    end
    local setup, n = term.read(root .. "/setup"), 0
    for folder, preset in setup:gmatch "\n%s*compile (build%S*) (%l+) %l" do
      local p = assert(known[preset], "setup configures the preset " .. preset)
      assert.equal("${sourceDir}/" .. folder, (inherited(p, "binaryDir"):gsub("%${presetName}", preset)))
      n = n + 1
    end
    assert.is_true(n >= 8, n .. " builds")
    for preset in setup:gmatch "%-%-preset (%l+)" do assert.is_truthy(known[preset], preset) end
    -- the demo is built where the compiler may warn of what it does not where it optimizes; the release is not
    local demo = setup:match "\n  demo%)(.-)\n    ;;"
    assert.equal("quick", demo:match "compile build (%l+) all")
    assert.equal("ON", inherited(known.quick, "PL_QUICK"))
    assert.equal("OFF", inherited(known.quick, "PL_WERROR"))
    assert.equal("OFF", inherited(known.release, "PL_QUICK"))
    assert.equal("ON", inherited(known.release, "PL_WERROR"))
    assert.equal(inherited(known.release, "CMAKE_BUILD_TYPE"), inherited(known.quick, "CMAKE_BUILD_TYPE"))
    -- each that is not hidden can be built and tested by its name
    for _, list in ipairs { presets.buildPresets, presets.testPresets } do
      local names = {}
      for _, p in ipairs(list) do
        assert.is_truthy(known[p.configurePreset], p.name)
        names[p.configurePreset] = true
      end
      for name, p in pairs(known) do
        if not p.hidden then assert.is_true(names[name], "no build or test preset of " .. name) end
      end
    end
  end)

  it("and the other scripts of the shell pass shellcheck", function()
    local missing = term.missing "shellcheck"
    if missing then return pending(missing) end
    ok(("cd %s && shellcheck setup .ci/run bench/*.sh cmake/*.sh"):format(q(root)))
  end)
end)

describe("the build", function()
  local missing = term.missing("plain", "ninja")
  for _, name in ipairs { "build.ninja", "CTestTestfile.cmake" } do
    local f = io.open(build .. "/" .. name)
    if f then f:close() else missing = missing or ("%s has no %s"):format(build, name) end
  end
  if missing then
    return it("is one with tests", function() pending(missing) end)
  end

  it("makes nothing of the tests, unless they are asked for", function()
    local function outputs(target) -- the files that commands write
      local set = {}
      for line in ok(("ninja -C %s -t commands %s"):format(q(build), target)):gmatch "[^\n]+" do
        local file = line:match "%-o ([^%s]+)" or line:match "qc ([^%s]+)"
        if file then set[file:gsub("^" .. build:gsub("%p", "%%%0") .. "/", "")] = true end
      end
      return set
    end
    local all, tests = outputs "all", outputs "tests"
    for file in pairs(all) do
      assert.is_nil(file:find "^spec/", file)
      assert.is_nil(file:find("emulated", 1, true), file)
      assert.is_true(tests[file], file .. " is not built for the tests")
    end
    assert.is_true(all["bin/perilune"])
    assert.is_true(tests["spec/pty"])
    assert.is_true(tests["spec/link_train"])
    local asked = term.read(build .. "/CMakeCache.txt"):match "\nPERILUNE_CUDA:%u+=(%u+)"
    if asked == "OFF" then assert.is_nil(all["lib/perilune/perilune_cuda.so"]) end
    if asked == "ON" then assert.is_true(all["lib/perilune/perilune_cuda.so"]) end
    assert.is_nil(tests["lib/perilune/perilune_cuda.so"] and tests["spec/perilune_cuda.so"])
  end)

  it("is brought up to date before a test that needs a program of it", function()
    local text = term.read(build .. "/CTestTestfile.cmake")
    local made, n = {}, 0
    for target, command, settings in text:gmatch '\nadd_test%(%[=%[build/([%w_]+)%]=%] ([^\n]*)%)\n([^\n]*)' do
      assert.truthy(command:find(('"--build" "%s" "--target" "%s"'):format(build, target), 1, true), command)
      assert.truthy(settings:find(('FIXTURES_SETUP "built/%s"'):format(target), 1, true), settings)
      made["built/" .. target] = true
    end
    for name, command, settings in text:gmatch '\nadd_test%(%[=%[([^%]]+)%]=%] ([^\n]*)%)\n([^\n]*)' do
      command = command:gsub('^"[^"]*bash" "[^"]*/limit%.sh" "%d+" ', "")
      local run = command:match(('"(%s/spec/[^"]*)"'):format(build:gsub("%p", "%%%0")))
      if not name:find "^build/" and (run and command:find('"' .. run, 1, true) == 1 or
          settings:find("PERILUNE_CUDA_PLUGIN=", 1, true)) then
        local needs = settings:match 'FIXTURES_REQUIRED "([^"]+)"'
        assert.truthy(needs, name .. " may run with a program that is old, or without one")
        for need in needs:gmatch "[^;]+" do assert.is_true(made[need], name .. ": " .. need) end
        n = n + 1
      end
    end
    assert.is_true(n >= 3, "tests that run programs: " .. n)
    assert.truthy(text:match '%[=%[spec/command/repl%]=%][^\n]*\n[^\n]*FIXTURES_REQUIRED "[^"]*built/pty')
    assert.truthy(text:match '%[=%[spec/docs/embedding%]=%][^\n]*\n[^\n]*FIXTURES_REQUIRED "[^"]*built/link_embed')
  end)

  it("stops a test that computes for ever, by its processor time", function()
    local form = "cd %s && env -u PERILUNE_LANES bash cmake/limit.sh %d %s -e %s"
    local command = term.command:match "^%S+$" and q(term.command) or "lua5.4"
    local _, status = term.shell(form:format(q(root), 1, command, q "while true do end"))
    assert.equal(128 + 24, status) -- SIGXCPU
    assert.equal("ok\n", (term.shell(form:format(q(root), 9, command, q "print 'ok'"))))
  end)

  it("fails specs of the device that was named and is not there", function()
    local busted = term.read(build .. "/CMakeCache.txt"):match "\nPL_BUSTED:FILEPATH=([^\n]*)"
    if not busted or busted:find "NOTFOUND" then return pending "the build found no busted" end
    local form = "cd %s && PERILUNE_CUDA_PLUGIN=/nowhere/device.so %s run %s -- spec/cuda/user_spec.lua"
    local text, status = term.shell(form:format(q(root), q(term.command), q(busted)))
    assert.not_equal(0, status, text)
    assert.truthy(text:find("no /nowhere/device.so", 1, true), text)
  end)

  it("is configured where busted is not, as on a bare system", function()
    local dir, remove = term.folder()
    ok(("cmake -S %s -B %s -G Ninja -DPERILUNE_CUDA=OFF -DPL_BUSTED= 2>&1"):format(q(root), q(dir)))
    remove()
  end)

  it("takes away a plug-in that it will not build again", function()
    local dir, remove = term.folder()
    ok(("mkdir -p %s/lib/perilune && echo old > %s/lib/perilune/perilune_cuda.so"):format(q(dir), q(dir)))
    local form = "cmake -S %s -B %s -G Ninja -DCMAKE_BUILD_TYPE=Release -DPERILUNE_CUDA=OFF -DPL_TESTS=OFF"
    ok(form:format(q(root), q(dir)))
    assert.is_nil(io.open(dir .. "/lib/perilune/perilune_cuda.so"))
    assert.equal("", ok(("ninja -C %s -t commands all | grep -E 'nvcc|/spec/' || true"):format(q(dir))))
    remove()
  end)
end)
