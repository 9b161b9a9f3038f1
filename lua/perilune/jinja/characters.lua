-- SPDX-License-Identifier: MIT
--- Characters of templates as Python has them: cases, kinds, and which of them repr writes as they are. Categories and
-- cases of one character are the build's tables; what they lack, cases of several characters and letters that other
-- categories have, is here (Unicode's SpecialCasing, Other_Lowercase, Other_Uppercase, Numeric_Type).
-- @module perilune.jinja.characters
local core = require "perilune.core"

local M = {}

local function ranges(list)
  return function(code)
    for i = 1, #list, 2 do if code >= list[i] and code <= list[i + 1] then return true end end
    return false
  end
end

local upper_of = {
  [0xDF] = "SS", [0x149] = "\u{2BC}N", [0x1F0] = "J\u{30C}", [0x390] = "\u{399}\u{308}\u{301}",
  [0x3B0] = "\u{3A5}\u{308}\u{301}", [0x587] = "\u{535}\u{552}", [0x1E96] = "H\u{331}", [0x1E97] = "T\u{308}",
  [0x1E98] = "W\u{30A}", [0x1E99] = "Y\u{30A}", [0x1E9A] = "A\u{2BE}", [0x1F50] = "\u{3A5}\u{313}",
  [0x1F52] = "\u{3A5}\u{313}\u{300}", [0x1F54] = "\u{3A5}\u{313}\u{301}", [0x1F56] = "\u{3A5}\u{313}\u{342}",
  [0x1F80] = "\u{1F08}\u{399}", [0x1F81] = "\u{1F09}\u{399}", [0x1F82] = "\u{1F0A}\u{399}",
  [0x1F83] = "\u{1F0B}\u{399}", [0x1F84] = "\u{1F0C}\u{399}", [0x1F85] = "\u{1F0D}\u{399}",
  [0x1F86] = "\u{1F0E}\u{399}", [0x1F87] = "\u{1F0F}\u{399}", [0x1F88] = "\u{1F08}\u{399}",
  [0x1F89] = "\u{1F09}\u{399}", [0x1F8A] = "\u{1F0A}\u{399}", [0x1F8B] = "\u{1F0B}\u{399}",
  [0x1F8C] = "\u{1F0C}\u{399}", [0x1F8D] = "\u{1F0D}\u{399}", [0x1F8E] = "\u{1F0E}\u{399}",
  [0x1F8F] = "\u{1F0F}\u{399}", [0x1F90] = "\u{1F28}\u{399}", [0x1F91] = "\u{1F29}\u{399}",
  [0x1F92] = "\u{1F2A}\u{399}", [0x1F93] = "\u{1F2B}\u{399}", [0x1F94] = "\u{1F2C}\u{399}",
  [0x1F95] = "\u{1F2D}\u{399}", [0x1F96] = "\u{1F2E}\u{399}", [0x1F97] = "\u{1F2F}\u{399}",
  [0x1F98] = "\u{1F28}\u{399}", [0x1F99] = "\u{1F29}\u{399}", [0x1F9A] = "\u{1F2A}\u{399}",
  [0x1F9B] = "\u{1F2B}\u{399}", [0x1F9C] = "\u{1F2C}\u{399}", [0x1F9D] = "\u{1F2D}\u{399}",
  [0x1F9E] = "\u{1F2E}\u{399}", [0x1F9F] = "\u{1F2F}\u{399}", [0x1FA0] = "\u{1F68}\u{399}",
  [0x1FA1] = "\u{1F69}\u{399}", [0x1FA2] = "\u{1F6A}\u{399}", [0x1FA3] = "\u{1F6B}\u{399}",
  [0x1FA4] = "\u{1F6C}\u{399}", [0x1FA5] = "\u{1F6D}\u{399}", [0x1FA6] = "\u{1F6E}\u{399}",
  [0x1FA7] = "\u{1F6F}\u{399}", [0x1FA8] = "\u{1F68}\u{399}", [0x1FA9] = "\u{1F69}\u{399}",
  [0x1FAA] = "\u{1F6A}\u{399}", [0x1FAB] = "\u{1F6B}\u{399}", [0x1FAC] = "\u{1F6C}\u{399}",
  [0x1FAD] = "\u{1F6D}\u{399}", [0x1FAE] = "\u{1F6E}\u{399}", [0x1FAF] = "\u{1F6F}\u{399}",
  [0x1FB2] = "\u{1FBA}\u{399}", [0x1FB3] = "\u{391}\u{399}", [0x1FB4] = "\u{386}\u{399}", [0x1FB6] = "\u{391}\u{342}",
  [0x1FB7] = "\u{391}\u{342}\u{399}", [0x1FBC] = "\u{391}\u{399}", [0x1FC2] = "\u{1FCA}\u{399}",
  [0x1FC3] = "\u{397}\u{399}", [0x1FC4] = "\u{389}\u{399}", [0x1FC6] = "\u{397}\u{342}",
  [0x1FC7] = "\u{397}\u{342}\u{399}", [0x1FCC] = "\u{397}\u{399}", [0x1FD2] = "\u{399}\u{308}\u{300}",
  [0x1FD3] = "\u{399}\u{308}\u{301}", [0x1FD6] = "\u{399}\u{342}", [0x1FD7] = "\u{399}\u{308}\u{342}",
  [0x1FE2] = "\u{3A5}\u{308}\u{300}", [0x1FE3] = "\u{3A5}\u{308}\u{301}", [0x1FE4] = "\u{3A1}\u{313}",
  [0x1FE6] = "\u{3A5}\u{342}", [0x1FE7] = "\u{3A5}\u{308}\u{342}", [0x1FF2] = "\u{1FFA}\u{399}",
  [0x1FF3] = "\u{3A9}\u{399}", [0x1FF4] = "\u{38F}\u{399}", [0x1FF6] = "\u{3A9}\u{342}",
  [0x1FF7] = "\u{3A9}\u{342}\u{399}", [0x1FFC] = "\u{3A9}\u{399}", [0xFB00] = "FF", [0xFB01] = "FI", [0xFB02] = "FL",
  [0xFB03] = "FFI", [0xFB04] = "FFL", [0xFB05] = "ST", [0xFB06] = "ST", [0xFB13] = "\u{544}\u{546}",
  [0xFB14] = "\u{544}\u{535}", [0xFB15] = "\u{544}\u{53B}", [0xFB16] = "\u{54E}\u{546}", [0xFB17] = "\u{544}\u{53D}",
}
local title_of = {
  [0xDF] = "Ss", [0x149] = "\u{2BC}N", [0x1F0] = "J\u{30C}", [0x390] = "\u{399}\u{308}\u{301}",
  [0x3B0] = "\u{3A5}\u{308}\u{301}", [0x587] = "\u{535}\u{582}", [0x1E96] = "H\u{331}", [0x1E97] = "T\u{308}",
  [0x1E98] = "W\u{30A}", [0x1E99] = "Y\u{30A}", [0x1E9A] = "A\u{2BE}", [0x1F50] = "\u{3A5}\u{313}",
  [0x1F52] = "\u{3A5}\u{313}\u{300}", [0x1F54] = "\u{3A5}\u{313}\u{301}", [0x1F56] = "\u{3A5}\u{313}\u{342}",
  [0x1FB2] = "\u{1FBA}\u{345}", [0x1FB4] = "\u{386}\u{345}", [0x1FB6] = "\u{391}\u{342}",
  [0x1FB7] = "\u{391}\u{342}\u{345}", [0x1FC2] = "\u{1FCA}\u{345}", [0x1FC4] = "\u{389}\u{345}",
  [0x1FC6] = "\u{397}\u{342}", [0x1FC7] = "\u{397}\u{342}\u{345}", [0x1FD2] = "\u{399}\u{308}\u{300}",
  [0x1FD3] = "\u{399}\u{308}\u{301}", [0x1FD6] = "\u{399}\u{342}", [0x1FD7] = "\u{399}\u{308}\u{342}",
  [0x1FE2] = "\u{3A5}\u{308}\u{300}", [0x1FE3] = "\u{3A5}\u{308}\u{301}", [0x1FE4] = "\u{3A1}\u{313}",
  [0x1FE6] = "\u{3A5}\u{342}", [0x1FE7] = "\u{3A5}\u{308}\u{342}", [0x1FF2] = "\u{1FFA}\u{345}",
  [0x1FF4] = "\u{38F}\u{345}", [0x1FF6] = "\u{3A9}\u{342}", [0x1FF7] = "\u{3A9}\u{342}\u{345}", [0xFB00] = "Ff",
  [0xFB01] = "Fi", [0xFB02] = "Fl", [0xFB03] = "Ffi", [0xFB04] = "Ffl", [0xFB05] = "St", [0xFB06] = "St",
  [0xFB13] = "\u{544}\u{576}", [0xFB14] = "\u{544}\u{565}", [0xFB15] = "\u{544}\u{56B}", [0xFB16] = "\u{54E}\u{576}",
  [0xFB17] = "\u{544}\u{56D}",
}
local other_lower = ranges {
  0xAA, 0xAA, 0xBA, 0xBA, 0x2B0, 0x2B8, 0x2C0, 0x2C1, 0x2E0, 0x2E4, 0x345, 0x345, 0x37A, 0x37A, 0x1D2C, 0x1D6A,
  0x1D78, 0x1D78, 0x1D9B, 0x1DBF, 0x2071, 0x2071, 0x207F, 0x207F, 0x2090, 0x209C, 0x2170, 0x217F, 0x24D0, 0x24E9,
  0x2C7C, 0x2C7D, 0xA69C, 0xA69D, 0xA770, 0xA770, 0xA7F8, 0xA7F9, 0xAB5C, 0xAB5F, 0x10780, 0x10780, 0x10783, 0x10785,
  0x10787, 0x107B0, 0x107B2, 0x107BA,
}
local other_upper = ranges {
  0x2160, 0x216F, 0x24B6, 0x24CF, 0x1F130, 0x1F149, 0x1F150, 0x1F169, 0x1F170, 0x1F189,
}
local other_digit = ranges {
  0xB2, 0xB3, 0xB9, 0xB9, 0x1369, 0x1371, 0x19DA, 0x19DA, 0x2070, 0x2070, 0x2074, 0x2079, 0x2080, 0x2089,
  0x2460, 0x2468, 0x2474, 0x247C, 0x2488, 0x2490, 0x24EA, 0x24EA, 0x24F5, 0x24FD, 0x24FF, 0x24FF, 0x2776, 0x277E,
  0x2780, 0x2788, 0x278A, 0x2792, 0x10A40, 0x10A43, 0x10E60, 0x10E68, 0x11052, 0x1105A, 0x1F100, 0x1F10A,
}
local other_number = ranges {
  0x3405, 0x3405, 0x3483, 0x3483, 0x382A, 0x382A, 0x3B4D, 0x3B4D, 0x4E00, 0x4E00, 0x4E03, 0x4E03, 0x4E07, 0x4E07,
  0x4E09, 0x4E09, 0x4E5D, 0x4E5D, 0x4E8C, 0x4E8C, 0x4E94, 0x4E94, 0x4E96, 0x4E96, 0x4EBF, 0x4EC0, 0x4EDF, 0x4EDF,
  0x4EE8, 0x4EE8, 0x4F0D, 0x4F0D, 0x4F70, 0x4F70, 0x5104, 0x5104, 0x5146, 0x5146, 0x5169, 0x5169, 0x516B, 0x516B,
  0x516D, 0x516D, 0x5341, 0x5341, 0x5343, 0x5345, 0x534C, 0x534C, 0x53C1, 0x53C4, 0x56DB, 0x56DB, 0x58F1, 0x58F1,
  0x58F9, 0x58F9, 0x5E7A, 0x5E7A, 0x5EFE, 0x5EFF, 0x5F0C, 0x5F0E, 0x5F10, 0x5F10, 0x62FE, 0x62FE, 0x634C, 0x634C,
  0x67D2, 0x67D2, 0x6F06, 0x6F06, 0x7396, 0x7396, 0x767E, 0x767E, 0x8086, 0x8086, 0x842C, 0x842C, 0x8CAE, 0x8CAE,
  0x8CB3, 0x8CB3, 0x8D30, 0x8D30, 0x9621, 0x9621, 0x9646, 0x9646, 0x964C, 0x964C, 0x9678, 0x9678, 0x96F6, 0x96F6,
}

local known, count = {}, 0
local MOST = 4096 -- that are remembered: texts of strangers may have all there are

--- What is known of a character (a byte that is no UTF-8 counts as one): code, category, lower, upper, title as texts.
local function of(c)
  local f = known[c]
  if f then return f end
  local code = utf8.len(c) == 1 and utf8.codepoint(c) or -1
  local category, low, high, title = core.character(code)
  local function text(k) return code >= 0 and utf8.char(k) or c end
  f = { code = code, category = category, lower = text(low), upper = upper_of[code] or text(high),
    title = title_of[code] or text(title) }
  if code == 0x130 then f.lower = "i\u{307}" end
  f.is_lower = category == "Ll" or other_lower(code)
  f.is_upper = category == "Lu" or other_upper(code)
  f.cased = f.is_lower or f.is_upper or category == "Lt"
  f.decimal = category == "Nd"
  f.digit = f.decimal or other_digit(code)
  f.number = category:sub(1, 1) == "N" or other_number(code)
  f.letter = category:sub(1, 1) == "L"
  f.alphanumeric = f.letter or f.number
  f.printable = c == " " or not category:find "^[CZ]"
  if count == MOST then known, count = {}, 0 end
  known[c], count = f, count + 1
  return f
end
M.of = of

local function pattern(s) return utf8.len(s) and utf8.charpattern or "." end

-- Is the sigma at byte `at` the last letter of a word? Marks, points and apostrophes between do not count.
local function is_final(s, at)
  local function skipped(c) return of(c).category:find "^M" or c:find "^['.:^`]$" or of(c).category:find "^[CL][fm]$"
    or c == "\u{AD}" or c == "\u{B7}" or c == "\u{2019}" end
  local before = false
  for c in s:sub(1, at - 1):gmatch(utf8.charpattern) do if not skipped(c) then before = of(c).cased end end
  if not before then return false end
  for c in s:sub(at + 2):gmatch(utf8.charpattern) do if not skipped(c) then return not of(c).cased end end
  return true
end

local function lower_at(s, c, at)
  if c == "\u{3A3}" then return is_final(s, at) and "\u{3C2}" or "\u{3C3}" end
  return of(c).lower
end

local function mapped(s, f)
  local out, n = {}, 0
  for at, c in s:gmatch("()(" .. pattern(s) .. ")") do
    n = n + 1
    out[n] = f(c, at)
  end
  return table.concat(out)
end

--- Python's str.upper, lower, title, capitalize, swapcase, casefold.
function M.upper(s)
  if not s:find "[\x80-\xFF]" then return s:upper() end
  return mapped(s, function(c) return of(c).upper end)
end
function M.lower(s)
  if not s:find "[\x80-\xFF]" then return s:lower() end
  return mapped(s, function(c, at) return lower_at(s, c, at) end)
end
function M.title(s)
  local inside = false
  return mapped(s, function(c, at)
    local y = inside and lower_at(s, c, at) or of(c).title
    inside = of(c).cased
    return y
  end)
end
function M.capitalize(s)
  return mapped(s, function(c, at) return at == 1 and of(c).title or lower_at(s, c, at) end)
end
function M.swapcase(s)
  return mapped(s, function(c, at)
    local f = of(c)
    return f.is_upper and lower_at(s, c, at) or f.is_lower and f.upper or c
  end)
end
function M.casefold(s)
  return mapped(s, function(c)
    local code = of(c).code
    if code == 0x131 or code >= 0x13A0 and code <= 0x13F5 then return c end -- no I; Cherokee's are the capitals
    if code >= 0x13F8 and code <= 0x13FD or code >= 0xAB70 and code <= 0xABBF then return of(c).upper end
    if code == 0x1E9E then return "ss" end
    return (of(c).upper:gsub(utf8.charpattern, function(u) return of(u).lower end))
  end)
end

--- Whether all characters of a text that has some are so.
function M.all(s, what)
  for c in s:gmatch(pattern(s)) do if not of(c)[what] then return false end end
  return s ~= ""
end
-- Whether those that have cases are so, and there are some.
local function all_cased(s, what)
  local some = false
  for c in s:gmatch(pattern(s)) do
    local f = of(c)
    if f.cased and not f[what] then return false end
    some = some or f.cased
  end
  return some
end
function M.is_upper(s) return all_cased(s, "is_upper") end
function M.is_lower(s) return all_cased(s, "is_lower") end
function M.is_title(s)
  local inside, some = false, false
  for c in s:gmatch(pattern(s)) do
    local f = of(c)
    if f.is_lower and not inside or (f.is_upper or f.category == "Lt") and inside then return false end
    inside = f.cased
    some = some or inside
  end
  return some
end

return M
