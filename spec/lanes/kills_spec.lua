-- SPDX-License-Identifier: MIT
-- kill -9: of each writer at every system call that it makes (libfaults.so, spec/support/programs/faults.c) and at
-- random instants, and of T.fit, which goes on with the same bits. PERILUNE_LANES=long: 200 and more of each.

local T = require "perilune"
local folder = require "spec.support.folder"

local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."
local long = os.getenv "PERILUNE_LANES" == "long"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local faults = build .. "/spec/libfaults.so"
local command = ("'%s/bin/perilune' run %s/spec/support/"):format(build, root)

local function bytes(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local s = f:read "a"
  f:close()
  return s
end

-- Runs the command and kills it after so many seconds; the shell's own message about that goes nowhere.
local function killed(line, seconds)
  os.execute(("{ %s & p=$!; sleep %.3f; kill -9 $p; wait $p; } >/dev/null 2>&1"):format(line, seconds))
end

local there = io.open(faults)
if there then there:close() end

describe("kill -9", function()
  if not there or sanitized then
    pending "libfaults.so is not built, or a sanitizer is"
    return
  end

  it("leaves each writer's old file or the new one", function()
    local size, at_calls, at_random = long and 200000 or 300, 0, 0
    folder(function(dir)
      for k, format in ipairs(require "spec.support.writers"(size)) do
        local name, file, write, read = table.unpack(format, 1, 4)
        local path = dir .. "/" .. file
        local line = ("%skill_writer.lua -- %d '%s' %d "):format(command, k, path, size)
        if write then
          assert(write(path, 2))
          local new = bytes(path)
          assert(write(path, 1))
          local old = bytes(path)
          local function whole(where)
            local now = bytes(path)
            if not format.loose then assert.is_true(now == old or now == new, name .. where) end
            if read then
              local ok, why = read(path)
              assert.is_true(ok == true, name .. where .. ": " .. tostring(why))
            end
          end
          for call = 0, 200 do
            os.remove(path .. ".finished")
            os.execute(("LD_PRELOAD='%s' PERILUNE_FAULTS='%s' %s %d >/dev/null 2>&1"):format(faults, dir, line, call))
            whole(" at call " .. call)
            at_calls = at_calls + 1
            if bytes(path .. ".finished") then
              at_calls = at_calls - 1
              break
            end
            assert(write(path, 1))
          end
          for n = 1, long and 200 or 1 do
            killed(line .. "loop", 0.03 + 0.12 * math.random())
            whole(" at random instant " .. n)
            at_random = at_random + 1
          end
        end
      end
    end)
    io.stderr:write(("%d kills of writers at system calls, %d at random instants\n"):format(at_calls, at_random))
    assert.is_true(at_calls > 40)
  end)

  it("of T.fit: the run that goes on ends with the same bits", function()
    local kills, chains, most = 0, 0, long and 200 or 3
    folder(function(dir)
      for jit = 0, long and 1 or 0 do
        local line = ("%skill_fit.lua -- '%s/fit' '%s/finished' %d"):format(command, dir, dir, jit)
        local finished = dir .. "/finished"
        local function fresh() os.execute(("rm -f '%s'/fit* '%s'"):format(dir, finished)) end
        fresh()
        assert(os.execute(line))
        local want = bytes(finished)
        local before = kills
        repeat
          fresh()
          chains = chains + 1
          local n = 0
          repeat
            killed(line, (0.04 + 0.1 * math.random()) * (1 + n / 10)) -- longer each time: also a slow machine arrives
            n = n + 1
          until bytes(finished) or n == 100
          if not bytes(finished) or n == 100 then assert(os.execute(line)) else n = n - 1 end
          kills = kills + n
          assert.is_true(bytes(finished) == want, ("chain %d, %d kills: the weights differ"):format(chains, n))
        until kills - before >= most
      end
    end)
    io.stderr:write(("%d kills of T.fit in %d chains, the same bits each\n"):format(kills, chains))
  end)
end)

describe("a format", function()
  it("comes back from its writer", function() -- the lane above relies on it
    folder(function(dir)
      for _, format in ipairs(require "spec.support.writers"(10)) do
        local path = dir .. "/" .. format[2]
        if format[3] and format[4] then
          assert(format[3](path, 1))
          assert.is_true(format[4](path) == true or format.loose, format[1])
        end
      end
    end)
    assert.is_true(T.ones(1):item() == 1)
  end)
end)
