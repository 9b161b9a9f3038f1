-- SPDX-License-Identifier: MIT
-- A process in which system calls on files fail (faults.c), at every call of every writer and reader: with EIO, ENOSPC,
-- an interruption, or half of the bytes, once and from there on. A writer leaves the old file or the new one, nothing
-- beside it and no descriptor open; a reader gives what is there or says what failed; after an interruption and with
-- short transfers both come through. Arguments: a folder, how many elements. Prints what went wrong, then counts.

local T = require "perilune"
local folder, size = arg[1], tonumber(arg[2])

local tried, failed, calls, finds = 0, 0, 0, 0
local function find(fmt, ...)
  finds = finds + 1
  print(fmt:format(...))
end

local function bytes(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local s = f:read "a"
  f:close()
  return s
end

local function shell(command)
  local p = assert(io.popen(command))
  local s = p:read "a"
  p:close()
  return s
end
local function descriptors() return #T.core.list_folder "/proc/self/fd" end

-- f with faults: its results, how many calls it made and how many failed.
local function under(kind, n, count, f, ...)
  os.getenv(("faults %s %d %d"):format(kind, n, count))
  local r = table.pack(pcall(f, ...))
  local made, fell = (os.getenv "faults ?"):match "(%d+) (%d+)"
  os.getenv "faults OFF"
  tried, failed = tried + 1, failed + tonumber(fell)
  return r, tonumber(made), tonumber(fell)
end

local FORMATS = require "spec.support.writers"(size)

local KINDS = { { "EIO", 1 }, { "EIO", 0 }, { "ENOSPC", 1 }, { "ENOSPC", 0 }, { "EINTR", 1 }, { "SHORT", 1 },
  { "SHORT", 0 } }

local function said(name, what, r)
  if r[1] and r[2] == nil and type(r[3]) == "string" and (r[4] == "io" or r[4] == "format") then return end
  find("%s: %s gives %s, %s, %s, %s", name, what, tostring(r[1]), tostring(r[2]), tostring(r[3]), tostring(r[4]))
end

for _, format in ipairs(FORMATS) do
  local name, file, write, read = table.unpack(format, 1, 4)
  local path = folder .. "/" .. file
  local versions = {}
  for k = 1, write and 2 or 0 do
    assert(write(path, k))
    versions[k] = bytes(path)
  end
  if not write and not bytes(path) then
    local fixtures = (os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/" .. (format.from or "")
    local from = assert(bytes(fixtures .. file:gsub("^x.csv$", "")) or
      "a,b\n1,2\n3,4\n")
    local f = assert(io.open(path, "wb"))
    f:write(from)
    f:close()
  end
  local reads = read and (read(path) or select(3, read(path)) ~= "unsupported")
  local before = descriptors()
  for _, kind in ipairs(KINDS) do
    local what, count = kind[1], kind[2]
    local must = what == "EINTR" or what == "SHORT"
    for n = 0, 100000 do
      if not write then break end
      local k = n % 2 + 1
      local was = bytes(path)
      local r, made, fell = under(what, n, count, write, path, k)
      local now, where = bytes(path), ("%s at call %d%s"):format(what, n, count == 0 and " and on" or "")
      local good = r[1] and r[2] == true
      if good and now ~= versions[k] and not format.loose then
        find("%s: %s reports success, the file is another", name, where)
      end
      if not good then said(name, "writing with " .. where, r) end
      if read and reads and not read(path) then find("%s: %s leaves what cannot be read", name, where) end
      if not format.loose and now ~= was and now ~= versions[k] then
        find("%s: %s leaves %d bytes", name, where, #(now or ""))
      end
      if must and not good then find("%s: %s is not come through: %s", name, where, tostring(r[3] or r[2])) end
      local left = shell(("ls '%s' | grep -F 'tmp-'"):format(folder))
      if left ~= "" then
        find("%s: %s leaves %s", name, where, left)
        os.execute(("rm -f '%s'/*.tmp-*"):format(folder))
      end
      if fell == 0 then
        calls = math.max(calls, made)
        break
      end
    end
    for n = 0, 100000 do
      if not reads then break end
      local r, made, fell = under(what, n, count, read, path)
      local where = ("%s at call %d%s"):format(what, n, count == 0 and " and on" or "")
      local good = r[1] and r[2]
      if r[1] and r[2] == false then find("%s: reading with %s gives what is not there", name, where) end
      if not good then said(name, "reading with " .. where, r) end
      if must and not good then find("%s: %s is not come through: %s", name, where, tostring(r[3] or r[2])) end
      if fell == 0 then
        calls = math.max(calls, made)
        break
      end
    end
  end
  collectgarbage()
  local open = descriptors()
  if open > before then find("%s: %d descriptors are left open", name, open - before) end
  if reads and not read(path) then find("%s: what is there cannot be read in the end", name) end
end
print(("%d runs, up to %d calls each, %d calls failed, %d finds"):format(tried, calls, failed, finds))
