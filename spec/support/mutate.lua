-- SPDX-License-Identifier: MIT
-- Fuzzing of file readers: damages good files by a seed and checks that the reader gives a value or nil, message,
-- code, raises nothing and leaves no memory behind. PERILUNE_FUZZ_FILES sets the number of damaged files per reader
-- (a long run is 100000), PERILUNE_FUZZ_SEED where to begin.

local T = require "perilune"
local live = require "spec.support.live"

local M = {}

local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_FILES") or 250
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1
M.COUNT, M.FIRST = COUNT, FIRST
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

-- One to four damages: a byte, a cut, a piece twice, a piece out, a telling word in place or between.
function M.damage(bytes, seed)
  local int = generator(seed)
  int(0, 1)
  for _ = 1, int(1, 4) do
    local n = #bytes
    local at, what = int(1, math.max(n, 1)), int(1, 7)
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
    else
      local word = WORDS[int(1, #WORDS)]
      bytes = bytes:sub(1, at - 1) .. word .. bytes:sub(what == 6 and at + #word or at)
    end
  end
  return bytes
end

-- ---- texts of lines and words ----------------------------------------------------------------------------------

local NUMBERS = { "0", "1", "2", "3", "-1", "-2", "16", "17", "64", "255", "256", "65536", "2147483647", "2147483648",
  "4294967296", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e300", "nan", "inf", "-inf",
  "0.5", "1.0", "00", "-" }

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

-- load(path) → value, or nil, message, code. good: list of the bytes of good files. opts: wrap(bytes) makes a file of
-- what is damaged; all_may_pass where every damage may leave a good file.
function M.fuzz(good, load, opts)
  opts = opts or {}
  local wrap = opts.wrap or function(bytes) return bytes end
  local path = os.tmpname()
  local problems, accepted = {}, 0
  local function one(seed)
    write(path, wrap(M.damage(good[seed % #good + 1], seed)))
    local ok, value, message, code = pcall(load, path)
    if not ok then return "raises " .. tostring(value) end
    if value ~= nil and value ~= false then
      accepted = accepted + 1
      return nil
    end
    if type(message) ~= "string" or not CODES[code] then
      return ("gives %s, %s, %s"):format(tostring(value), tostring(message), tostring(code))
    end
  end
  for i, bytes in ipairs(good) do
    write(path, wrap(bytes))
    assert(load(path), "good file " .. i)
  end
  local before = live.blocks(T)
  for seed = FIRST, FIRST + COUNT - 1 do
    local problem = one(seed)
    if problem then problems[#problems + 1] = ("file %d %s"):format(seed, problem) end
    if #problems > 5 then break end
  end
  local left = live.blocks(T) - before
  if left ~= 0 then problems[#problems + 1] = left .. " blocks are left" end
  os.remove(path)
  assert(opts.all_may_pass or accepted < COUNT, "no damaged file was refused")
  return table.concat(problems, "\n")
end

function M.read(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read("a")
  f:close()
  return s
end

return M
