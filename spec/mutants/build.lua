-- SPDX-License-Identifier: MIT
-- Builds the engine with all mutants of engine/ops in it: build.all(root, build, folder) returns their list. What does
-- not compile (a switch where C wants a constant) is found by the compiler's messages and dropped.
local mutate = require "spec.mutants.mutate"
local M = {}

local function run(command)
  local p = assert(io.popen(command .. " 2>&1"))
  local text = p:read "a"
  return p:close() and true or false, text
end
local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end
local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

-- The commands that made the build folder's objects: file → command without -o and the file.
local function commands(root, build)
  local out = {}
  for entry in read(build .. "/compile_commands.json"):gmatch "{(.-)}" do
    local file, command = entry:match '"file": "(.-)"', entry:match '"command": "(.-)",?\n'
    if file and command then
      command = command:gsub('\\"', '"'):gsub("\\\\", "\\")
      out[file:sub(#root + 2)] = command:gsub(" %-o %S+", ""):gsub(" %-c %S+", ""):gsub("%S*ccache ", "")
    end
  end
  return out
end

-- Compiles one mutated file until it has no errors; returns its mutants.
local function compile(job)
  local dead, tries = {}, 0
  while true do
    tries = tries + 1
    local text, mutants = mutate.file(job.text, job.file, job.first, dead)
    text = mutate.header .. "#line 1\n" .. text
    write(job.out, text)
    local fine, said = run(job.check)
    if fine then
      local alive = {}
      for _, m in ipairs(mutants) do if not m.dead then alive[#alive + 1] = m end end
      return alive, mutants
    end
    -- each error line loses the mutants that begin on it, the smallest ones first
    local lines, lost = {}, 0
    for line in said:gmatch ":(%d+):%d+: error" do lines[tonumber(line)] = true end
    for _, m in ipairs(mutants) do
      local covers = lines[m.line]
      if covers and not m.dead and (tries > 3 or m.kind ~= "emit") then
        dead[m.key] = true
        lost = lost + 1
      end
    end
    if lost == 0 and tries > 4 or tries > 12 then error(job.file .. " does not compile:\n" .. said:sub(1, 3000)) end
  end
end

function M.all(root, build, folder, wanted)
  assert(run(("mkdir -p '%s/engine/ops' '%s/lib/perilune'"):format(folder, folder)))
  local known = commands(root, build)
  local files = {}
  for file in pairs(known) do
    if file:find "^engine/ops/.*%.c$" and not file:find "op_table" and (not wanted
      or file:find(wanted)) then files[#files + 1] = file end
  end
  table.sort(files)
  local mutants, objects, first = {}, {}, 1
  -- a variable whose first value a mutant leaves out has a pattern, not what is on the stack by chance
  local pattern = " -ftrivial-auto-var-init=pattern"
  if not run("echo 'int f;' | cc -x c -fsyntax-only" .. pattern .. " -") then pattern = "" end
  for _, file in ipairs(files) do
    local out = folder .. "/" .. file
    run(("mkdir -p '%s'"):format(out:match "(.*)/"))
    local flags = " -w -Werror=implicit-function-declaration -O1 -U_FORTIFY_SOURCE%s -I'%s'"
    local base = known[file] .. flags:format(pattern, root)
    local object = out:gsub("%.c$", ".o")
    local alive, every = compile { text = read(root .. "/" .. file), file = file, first = first, out = out,
      check = base .. (" -fsyntax-only '%s'"):format(out) }
    first = first + #every
    for _, m in ipairs(alive) do mutants[#mutants + 1] = m end
    objects[#objects + 1] = { object = object, command = base .. (" -c '%s' -o '%s'"):format(out, object),
      file = file, dropped = #every - #alive }
  end
  local script = {}
  for _, o in ipairs(objects) do script[#script + 1] = o.command end
  write(folder .. "/commands", table.concat(script, "\n") .. "\n")
  local fine, said = run(("xargs -P 2 -d '\\n' -n 1 sh -c < '%s/commands'"):format(folder))
  assert(fine, said)
  -- the link of engine.so with these objects first: the archive's of the same names are then not taken
  local _, link = run(("ninja -C '%s' -t commands lib/perilune/engine.so | tail -1"):format(build))
  local names = {}
  for _, o in ipairs(objects) do names[#names + 1] = "'" .. o.object .. "'" end
  link = link:gsub(" %-o lib/perilune/engine%.so ", (" -o '%s/lib/perilune/engine.so' %s "):format(folder,
    table.concat(names, " ")), 1):gsub(" %-s ", " ", 1)
  fine, said = run(("cd '%s' && %s"):format(build, link))
  assert(fine, said)
  for _, module in ipairs { "core.so", "terminal.so" } do
    assert(run(("cp '%s/lib/perilune/%s' '%s/lib/perilune/'"):format(build, module, folder)))
  end
  local include = known["bindings/core/error.c"]:match "%-isystem%s+(%S*lua%S*)" or "/usr/include/lua5.4"
  fine, said = run(("cc -shared -fPIC -O2 -I'%s' '%s/spec/mutants/runtime.c' -o '%s/lib/mutants.so'"):format(include,
    root, folder))
  assert(fine, said)
  return mutants, objects
end

return M
