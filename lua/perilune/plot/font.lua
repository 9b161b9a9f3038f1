-- SPDX-License-Identifier: MIT
--- Letters for pictures made of pixels: 5 × 8 dots, between whose neighbours a pen of one dot draws. A digit of base 32
-- a row; the eighth row is below the line. Latin-1, Greek, and signs of units and comparisons.
-- @module perilune.plot.font
local M = { width = 5, height = 8 }

local rows = {
  ["0"] = "ehjlphe", ["1"] = "4c4444e", ["2"] = "eh1248v", ["3"] = "v2421he", ["4"] = "26aiv22", ["5"] = "vgu11he",
  ["6"] = "68guhhe", ["7"] = "v124888", ["8"] = "ehhehhe", ["9"] = "ehhf12c",
  A = "ehhvhhh", B = "uhhuhhu", C = "ehggghe", D = "sihhhis", E = "vggugg" .. "v", F = "vgguggg", G = "ehgnhhf",
  H = "hhhvhhh", I = "e44444e", J = "72222ic", K = "hikokih", L = "ggggggv", M = "hrllhhh", N = "hhpljhh",
  O = "ehhhhhe", P = "uhhuggg", Q = "ehhhlid", R = "uhhukih", S = "fgge11u", T = "v444444", U = "hhhhhhe",
  V = "hhhhha4", W = "hhhllla", X = "hha4ahh", Y = "hhha444", Z = "v1248gv",
  a = "00e1fhf", b = "ggmphhu", c = "00egghe", d = "11djhhf", e = "00ehvge", f = "698s888", g = "00fhhf1e",
  h = "ggmphhh", i = "40c444e", j = "206222ic", k = "ggikoki", l = "c44444e", m = "00qllhh", n = "00mphhh",
  o = "00ehhhe", p = "00uhhugg", q = "00djhf11", r = "00mpggg", s = "00ege1u", t = "88s8896", u = "00hhhjd",
  v = "00hhha4", w = "00hhlla", x = "00ha4ah", y = "00hhhf1e", z = "00v248v",
  [" "] = "0000000", ["."] = "00000cc", [","] = "0000c48", [":"] = "0cc0cc0", [";"] = "0cc0c48", ["!"] = "4444004",
  ["?"] = "eh12404", ["-"] = "000v000", ["+"] = "044v440", ["*"] = "04lel40", ["/"] = "01248g0", ["\\"] = "0g84210",
  ["="] = "00v0v00", ["<"] = "248g842", [">"] = "8421248", ["("] = "2488842", [")"] = "8422248", ["["] = "e88888e",
  ["]"] = "e22222e", ["{"] = "2448442", ["}"] = "8442448", ["_"] = "0000000v", ["%"] = "op248j3", ["#"] = "aavavaa",
  ["&"] = "cik8lid", ["'"] = "4480000", ['"'] = "aaa0000", ["@"] = "eh1dlle", ["|"] = "4444444", ["~"] = "008l200",
  ["^"] = "4ah0000", ["$"] = "4fke5u4", ["`"] = "8420000", ["…"] = "00000l0",
  -- Greek
  ["α"] = "009liid", ["β"] = "0ehuhugg", ["γ"] = "00hha444", ["δ"] = "68ehhhe", ["ε"] = "00egcge", ["ζ"] = "u48gge16",
  ["η"] = "00mphhh1", ["θ"] = "ciiuiic", ["ι"] = "00c4446", ["κ"] = "00ikoki", ["λ"] = "844aahh", ["μ"] = "00hhhjtg",
  ["ν"] = "00hhha4", ["ξ"] = "egegge16", ["ο"] = "00ehhhe", ["π"] = "00vaaaj", ["ρ"] = "00ehhugg", ["σ"] = "00fihhe",
  ["ς"] = "00eggc24", ["τ"] = "00v4442", ["υ"] = "00hhhhe", ["φ"] = "04ellle4", ["χ"] = "00ha4ah", ["ψ"] = "04lllle4",
  ["ω"] = "00ahlla", ["Γ"] = "vgggggg", ["Δ"] = "44aahhv", ["Θ"] = "ehhvhhe", ["Λ"] = "44aahhh", ["Ξ"] = "v00e00v",
  ["Π"] = "vhhhhhh", ["Σ"] = "vg848gv", ["Φ"] = "4ellle4", ["Ψ"] = "lllle44", ["Ω"] = "ehhhhar",
  -- Latin-1 without accents, and signs
  ["ß"] = "ehiihhm", ["æ"] = "00q5fkf", ["Æ"] = "fkkukkn", ["ø"] = "01ejlpeg", ["Ø"] = "ejjlppe", ["ð"] = "a42fhhe",
  ["Ð"] = "sihphis", ["þ"] = "ggmphhug", ["Þ"] = "guhhugg", ["°"] = "ciic000", ["±"] = "44v440v", ["×"] = "0ha4ah0",
  ["÷"] = "040v040", ["¹"] = "4c44e00", ["²"] = "ci48u00", ["³"] = "s2c2s00", ["·"] = "0004000", ["£"] = "698s88v",
  ["€"] = "78u8u87", ["¥"] = "hhav4v4", ["¢"] = "04fkkf4", ["§"] = "egehe1e", ["¶"] = "fttd555", ["¡"] = "4044444",
  ["¿"] = "4048ghe", ["«"] = "005aka5", ["»"] = "00ka5ak", ["–"] = "000v000", ["—"] = "000v000", ["’"] = "4480000",
  ["→"] = "042v240", ["←"] = "048v840", ["∞"] = "000ala0", ["≤"] = "248420e", ["≥"] = "842480e", ["≈"] = "08l208l2",
  ["≠"] = "01v4vg0", ["√"] = "7444kc4", ["∑"] = "vg848gv", ["∂"] = "611fhhe", ["∇"] = "vhhaa44", ["¬"] = "000v100",
}
rows["µ"] = rows["μ"] -- the sign of micro
for greek, latin in ("ΑAΒBΕEΖZΗHΙIΚKΜMΝNΟOΡPΤTΥYΧX"):gmatch "([\xc2-\xdf][\x80-\xbf])(%a)" do
  rows[greek] = rows[latin]
end

-- Accents: column, row of their dots above a small letter; over capitals they are higher.
local accents = {
  ["`"] = { 1, -1, 2, 0 }, ["'"] = { 3, -1, 2, 0 }, ["^"] = { 1, 0, 2, -1, 3, 0 },
  ["~"] = { 0, 0, 1, -1, 2, -0.5, 3, 0, 4, -1 },
  [":"] = { 1, -0.5, 3, -0.5 }, ["*"] = { 2, -2, 1, -1, 3, -1, 2, 0 }, [","] = { 2, 7, 1, 8 },
}
local composed = {}
local pattern = "([\xc2-\xdf][\x80-\xbf])([\xc2-\xdf]?[\x80-\xff%a])(%p)"
for char, base, accent in ([[ÀA` ÁA' ÂA^ ÃA~ ÄA: ÅA* ÇC, ÈE` ÉE' ÊE^ ËE: ÌI` ÍI' ÎI^ ÏI: ÑN~ ÒO` ÓO' ÔO^ ÕO~ ÖO:
  ÙU` ÚU' ÛU^ ÜU: ÝY' àa` áa' âa^ ãa~ äa: åa* çc, èe` ée' êe^ ëe: ìi` íi' îi^ ïi: ñn~ òo` óo' ôo^ õo~ öo:
  ùu` úu' ûu^ üu: ýy' ÿy: άα' έε' ήη' ίι' όο' ύυ' ώω']]):gmatch(pattern) do
  composed[char] = { base, accent }
end

-- Dots of a character: list of column, row, from 0; and how many numbers of it are the letter's, without accents.
local function dots(char)
  local made = composed[char]
  local glyph, list = rows[made and made[1] or char] or "vhhhhhv", {}
  if made and made[1] == "i" then glyph = "00c444e" end -- without its own dot
  for y = 1, #glyph do
    local bits = tonumber(glyph:sub(y, y), 32)
    for x = 0, 4 do
      if bits >> (4 - x) & 1 == 1 then list[#list + 1], list[#list + 2] = x, y - 1 end
    end
  end
  local lift = made and made[1]:find "%u" and made[2] ~= "," and -1.5 or 0
  local own = #list
  for i, v in ipairs(made and accents[made[2]] or {}) do list[#list + 1] = i % 2 == 0 and v + lift or v end
  return list, own
end

-- Are two dots joined? Neighbours in a row or column are; on a diagonal where no dot beside both joins them already.
local function joined(at, x, y, u, v)
  if x == u or y == v then return true end
  return not (at[x .. "," .. v] or at[u .. "," .. y])
end

local known = {}

--- The strokes of a character: list of {x1, y1, x2, y2} in dots, a point where both ends are the same; others are
-- boxes.
function M.strokes(char)
  if known[char] then return known[char] end
  local list, own = dots(char)
  local at, out = {}, {}
  for i = 1, #list, 2 do at[list[i] .. "," .. list[i + 1]] = true end
  for i = 1, #list, 2 do
    local x, y, alone = list[i], list[i + 1], true
    for k = 1, #list, 2 do
      local u, v = list[k], list[k + 1]
      local near = k ~= i and (i <= own) == (k <= own) and math.abs(u - x) <= 1 and math.abs(v - y) <= 1
        and joined(at, x, y, u, v)
      if near then
        alone = false
        if k > i then out[#out + 1] = { x, y, u, v } end
      end
    end
    if alone then out[#out + 1] = { x, y, x, y } end
  end
  known[char] = out
  return out
end

return M
