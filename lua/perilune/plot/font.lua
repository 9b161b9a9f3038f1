-- SPDX-License-Identifier: MIT
--- Letters of 5 × 8 dots for pictures made of pixels. A digit of base 32 a row; the eighth row is below the line.
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
}

--- Calls dot(column, row), from 0, for every dot of a character; others are boxes.
function M.dots(char, dot)
  local glyph = rows[char] or "vhhhhhv"
  for y = 1, #glyph do
    local bits = tonumber(glyph:sub(y, y), 32)
    for x = 0, 4 do
      if bits >> (4 - x) & 1 == 1 then dot(x, y - 1) end
    end
  end
end

return M
