-- SPDX-License-Identifier: MIT
-- perilune peek FILE: what is in a file of tensors or events, with statistics.
local files = require "perilune.command.files"
local show = require "perilune.repl.show"

local MAX_META = 200 -- characters of a metadata value that are shown

local function bytes(n)
  if n < 1000 then return ("%d B"):format(n) end
  for _, unit in ipairs { "kB", "MB", "GB" } do
    n = n / 1000
    if n < 1000 or unit == "GB" then return ("%.1f %s"):format(n, unit) end
  end
end

local SIZES = { f64 = 8, i64 = 8, f32 = 4, i32 = 4, f16 = 2, bf16 = 2, i16 = 2, i8 = 1, u8 = 1, bool = 1 }

local function print_tensors(file, with_statistics)
  local total, elements, widest = 0, 0, 0
  for _, name in ipairs(file.names) do widest = math.max(widest, utf8.len(show.printable(name))) end
  widest = math.min(widest, 60)
  local rows = {}
  for _, name in ipairs(file.names) do
    local dtype, shape, stored, size = file.describe(name)
    local n = 1
    for _, k in ipairs(shape) do n = n * k end
    total, elements = total + (size or n * (SIZES[dtype] or 0)), elements + n
    if stored and stored:lower() == dtype then stored = nil end
    rows[#rows + 1] = { name, ("%s[%s]"):format(stored or dtype, table.concat(shape, ",")), stored }
  end
  print(("%s, %d tensor%s, %d elements, %s"):format(file.kind, #rows, #rows == 1 and "" or "s", elements, bytes(total)))
  for _, row in ipairs(rows) do
    local name, what = show.printable(row[1]), row[2]
    if with_statistics then
      local t, message = file.read(row[1])
      if not t then return nil, message end
      what = (row[3] and row[3] .. " as " or "") .. t:brief()
    end
    print(("  %s%s  %s"):format(name, (" "):rep(widest - utf8.len(name)), what))
  end
  local keys = {}
  for key in pairs(file.meta) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local value = files.text(file.meta[key])
    if #value > MAX_META then value = ("%s … %d bytes"):format(value:sub(1, MAX_META), #value) end
    print(("  metadata %s: %s"):format(show.printable(key), show.printable(value)))
  end
  for _, what in ipairs(file.left_out or {}) do print("  not read: " .. show.printable(what)) end
  return true
end

local function day(time) return time and os.date("!%Y-%m-%d %H:%M:%S UTC", time // 1 | 0) or "?" end

local function print_events(path)
  local sum, message = require("perilune.command.events").summary(path)
  if not sum then return nil, message end
  print(("events, %d records, %s to %s"):format(sum.events, day(sum.first), day(sum.last)))
  for _, e in ipairs(sum.tags) do
    local line = ("  %s: %s, %d value%s, steps %d to %d"):format(show.printable(e.tag), e.kind, e.n,
      e.n == 1 and "" or "s", e.first_step, e.last_step)
    if e.last then line = ("%s, %.6g … %.6g, last %.6g"):format(line, e.min, e.max, e.last) end
    print(line)
  end
  if sum.fault then return nil, ("%s: %s after %d records"):format(path, sum.fault, sum.events) end
  return true
end

-- paths: list; with_statistics: read the elements too. → exit status
return function(paths, with_statistics)
  local status = 0
  for _, path in ipairs(paths) do
    local file, message = files.open(path)
    local ok
    if #paths > 1 and file then print(path) end
    if file and file.kind == "events" then
      ok, message = print_events(path)
    elseif file then
      ok, message = print_tensors(file, with_statistics)
    end
    if not ok then
      io.stderr:write("perilune peek: ", show.printable(message), "\n")
      status = 1
    end
  end
  return status
end
