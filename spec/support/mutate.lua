-- SPDX-License-Identifier: MIT
-- Damage for file readers, made from a seed alone: bytes, integer fields, words of texts, pieces of other good files.
-- `fuzz` gives a reader (spec/support/readers.lua) damaged files and checks that each ends in a value or nil, message,
-- code, raises nothing, takes no more memory than the file justifies, comes back soon, and leaves nothing behind.

local T = require "perilune"
local live = require "spec.support.live"

local M = {}

local CODES = { io = true, format = true, unsupported = true }

-- A generator of its own: busted's and the user's random state stay as they are.
local function generator(seed)
  local state = seed * 2654435769 + 1
  return function(lo, hi)
    state = state ~ (state << 13)
    state = state ~ (state >> 7)
    state = state ~ (state << 17)
    return lo + math.tointeger((state >> 1) % (hi - lo + 1))
  end
end

local WORDS = { "\0\0\0\0", "\255\255\255\255", "\255\255\255\127", "\0\0\0\128", "\1\0\0\0", "\0\0\0\1",
  "\255\255\255\255\255\255\255\127", "-1", "999999999999", "1e308", "nan", "\"", "{", "}", "[", "]", ",", "\n", "\0",
  "\255\216\255", "\\u0000", "\240\159\152\128", "\237\160\128" }

local NUMBERS = { "0", "1", "2", "3", "-1", "-2", "16", "17", "64", "255", "256", "65536", "2147483647", "2147483648",
  "4294967296", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e300", "nan", "inf", "-inf",
  "0.5", "1.0", "00", "-" }

-- An integer of 1, 2, 4 or 8 bytes in either order gets a value at an edge, or one that the file's size suggests.
local function change_field(bytes, at, int)
  local width, n = 1 << int(0, 3), #bytes
  if at + width - 1 > n then return bytes end
  local form = (int(0, 1) == 0 and "<I" or ">I") .. width
  local v, top = string.unpack(form, bytes, at), 1 << (8 * width - 1)
  local choices = { 0, 1, v + 1, v - 1, v << 1, v >> 1, -v, ~v, top - 1, top, top + 1, -1, n, n - at,
    n - at - width, n + 1, 1 << int(0, 8 * width - 1), v ~ 1 << int(0, 8 * width - 1) }
  v = choices[int(1, #choices)]
  if width < 8 then v = v & ((1 << 8 * width) - 1) end
  return bytes:sub(1, at - 1) .. string.pack(form, v) .. bytes:sub(at + width)
end

-- A word or number: another one in its place, none, or twice with what follows it.
local function change_token(bytes, at, int)
  local from, to = bytes:find("[%w_.+-]+", at)
  if not from then return bytes end
  to = math.min(to, from + 64)
  local what = int(1, 4)
  local new
  if what == 1 then
    new = NUMBERS[int(1, #NUMBERS)]
  elseif what == 2 then
    new = bytes:match("[%w_.+-]+", int(1, #bytes)) or ""
  elseif what == 3 then
    new = (bytes:sub(from, to):gsub("^%-?%d+$", function(s)
      local v = math.tointeger(tonumber(s))
      return v and tostring(v + int(-2, 2))
    end))
  else
    local stop = math.min(#bytes, to + int(0, 40))
    return bytes:sub(1, stop) .. bytes:sub(from)
  end
  return bytes:sub(1, from - 1) .. new .. bytes:sub(to + 1)
end

-- One to four damages: a byte, a bit, a cut, a piece twice, a piece out, a telling word in place or between, an integer
-- field, a word, a piece of another good file. good: where that is from.
function M.damage(bytes, seed, good)
  local int = generator(seed)
  int(0, 1)
  for _ = 1, int(1, 4) do
    local n = #bytes
    local at, what = int(1, math.max(n, 1)), int(1, 12)
    if int(1, 3) == 1 then at = math.min(at, int(1, 64)) end -- headers lie at the beginning
    local stop = math.min(n, at + int(0, 1 << int(0, 8)))
    if what == 1 then
      bytes = bytes:sub(1, at - 1) .. string.char(int(0, 255)) .. bytes:sub(at + 1)
    elseif what == 2 then
      bytes = bytes:sub(1, at - 1) .. string.char((bytes:byte(at) or 0) ~ (1 << int(0, 7))) .. bytes:sub(at + 1)
    elseif what == 3 then
      bytes = bytes:sub(1, at)
    elseif what == 4 then
      bytes = bytes:sub(1, stop) .. bytes:sub(at)
    elseif what == 5 then
      bytes = bytes:sub(1, at - 1) .. bytes:sub(stop)
    elseif what <= 7 then
      local word = WORDS[int(1, #WORDS)]
      bytes = bytes:sub(1, at - 1) .. word .. bytes:sub(what == 6 and at + #word or at)
    elseif what <= 9 then
      bytes = change_field(bytes, at, int)
    elseif what <= 11 then
      bytes = change_token(bytes, at, int)
    else
      local other = good and good[int(1, #good)] or bytes
      local from = int(1, math.max(#other, 1))
      bytes = bytes:sub(1, at - 1) .. other:sub(from, from + (stop - at)) .. bytes:sub(int(1, 2) == 1 and stop or at)
    end
  end
  return bytes
end

-- ---- texts of lines and words ----------------------------------------------------------------------------------

local function split(text)
  local words = {}
  for word in text:gmatch("[%w_%.%%]*[^%w_%.%%]+") do words[#words + 1] = word end
  return words
end

local function lines_of(text)
  local lines = {}
  for line in text:gmatch("[^\n]*\n") do lines[#lines + 1] = line end
  return lines
end

local function change_words(int, line, other)
  local words, what = split(line), int(1, 9)
  if #words == 0 then return line end
  local at = int(1, #words)
  if what == 1 then
    table.remove(words, at)
  elseif what == 2 then
    local k = int(1, #words)
    words[at], words[k] = words[k], words[at]
  elseif what == 3 then
    words[at] = (words[at]:gsub("^[%w_%.%%]+", NUMBERS[int(1, #NUMBERS)]))
  elseif what == 4 then
    table.insert(words, at, words[int(1, #words)])
  elseif what == 5 then
    local more = split(other)
    if #more > 0 then words[at] = more[int(1, #more)] end
  else -- a number becomes one near it
    words[at] = words[at]:gsub("^%-?%d+", function(n)
      local v = math.tointeger(tonumber(n))
      return v and tostring(v + int(-2, 2))
    end)
  end
  return table.concat(words)
end

--- A text of lines with one to four damages: words and numbers of a line, lines out, twice, in another order, or from
-- another good text; now and then damaged as bytes are.
function M.damage_text(good, seed)
  local int = generator(seed)
  int(0, 1)
  local text, other = good[int(1, #good)], lines_of(good[int(1, #good)])
  if int(1, 16) == 1 then return M.damage(text, seed) end
  local lines = lines_of(text)
  for _ = 1, math.max(1, int(-4, 3)) do
    local at, what = int(1, math.max(#lines, 1)), int(1, 24)
    if #lines == 0 then break end
    if what == 1 then
      table.remove(lines, at)
    elseif what == 2 then
      table.insert(lines, int(1, #lines + 1), lines[at])
    elseif what == 3 then
      local k = int(1, #lines)
      lines[at], lines[k] = lines[k], lines[at]
    elseif what == 4 then
      lines[at] = other[int(1, #other)]
    else
      lines[at] = change_words(int, lines[at], other[int(1, #other)])
      if lines[at]:sub(-1) ~= "\n" then lines[at] = lines[at] .. "\n" end
    end
  end
  return table.concat(lines)
end

local function write(path, bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end

-- Where files come and go a million times: in memory, if there is such a folder.
local function scratch(name)
  for _, folder in ipairs { "/dev/shm", os.getenv "TMPDIR" or "/tmp" } do
    local path = ("%s/damaged-%s-%s"):format(folder, name, os.tmpname():match "[^/]*$")
    os.remove("/tmp/" .. path:match "damaged%-.-%-(lua_%w+)$")
    local f = io.open(path, "wb")
    if f then
      f:close()
      return path
    end
  end
end

local ROOM, SLOW = 1 << 20, 10

-- One file: nil, or what is wrong; and whether it was taken.
local function judge(reader, path, bytes)
  write(path, bytes)
  local before, began = collectgarbage "count", os.clock()
  T.core.set_memory_budget(T.memory().live + #bytes + ROOM + (reader.room or 0))
  local ok, value, message, code = pcall(reader.load, path)
  T.core.set_memory_budget()
  if os.clock() - began > SLOW then return ("takes %.0f s"):format(os.clock() - began) end
  -- a value in Lua is some dozens of bytes, and may be one in the file
  local grown = (collectgarbage "count" - before) * 1024
  if grown > 100 * #bytes + 4 * ROOM + (reader.room or 0) then return ("takes %d bytes of Lua"):format(grown) end
  if not ok then return "raises " .. tostring(value) end
  if value ~= nil and value ~= false then return nil, true end
  if type(message) ~= "string" or not CODES[code] then
    return ("gives %s, %s, %s"):format(tostring(value), tostring(message), tostring(code))
  end
  return nil, false
end

--- reader: { name=, good= list of the bytes of good files, load=function(path) → value, or nil, message, code } and
-- maybe: kept= list of bytes of bad files, damage=function(seed, k) → bytes in damage's place (k: which good file),
-- wrap=function(bytes) that makes a file of what is damaged, room= bytes that it may take beyond the file's size,
-- all_may_pass where every damage may leave a good file, after=function(path), slow= true. → problems as text ("" if
-- none), how many were taken, how many refused
function M.fuzz(reader, first, count)
  local good, wrap = reader.good, reader.wrap or function(bytes) return bytes end
  local path = scratch(reader.name:gsub("%W", "_"))
  local problems, taken, tried = {}, 0, 0
  for i, bytes in ipairs(good) do
    local problem, fine = judge(reader, path, wrap(bytes))
    assert(fine, ("%s: good file %d %s"):format(reader.name, i, problem or "is refused"))
  end
  for i, bytes in ipairs(reader.kept or {}) do
    local problem, fine = judge(reader, path, bytes)
    if problem or fine then problems[#problems + 1] = ("kept file %d %s"):format(i, problem or "is taken") end
  end
  local before = live.blocks(T)
  for seed = first, first + count - 1 do
    local k = seed % #good + 1
    local bytes = reader.damage and reader.damage(seed, k) or wrap(M.damage(good[k], seed, good))
    local problem, fine = judge(reader, path, bytes)
    tried = tried + 1
    if problem then
      problems[#problems + 1] = ("file %d %s"):format(seed, problem)
      local keep = os.getenv "PERILUNE_FUZZ_KEEP"
      if keep then write(("%s/%s-%d"):format(keep, reader.name:gsub("%W", "_"), seed), bytes) end
    end
    taken = taken + (fine and 1 or 0)
    if #problems > 5 then break end
  end
  local left = live.blocks(T) - before
  if left ~= 0 then problems[#problems + 1] = left .. " blocks are left" end
  os.remove(path)
  if reader.after then reader.after(path) end
  assert(reader.all_may_pass or taken < tried, "no damaged file was refused")
  return table.concat(problems, "\n"), taken, tried - taken
end

function M.read(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read("a")
  f:close()
  return s
end

return M
