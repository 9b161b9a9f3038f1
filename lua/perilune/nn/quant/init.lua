-- SPDX-License-Identifier: MIT
--- nn.quant: networks of 8-bit integers, by training with rounding or by data alone (T.quantize, method "static").
-- @module perilune.nn.quant
local surface = require "perilune.surface"

local quant = {}
for _, part in ipairs { "observers", "layers" } do
  for name, value in pairs(require("perilune.nn.quant." .. part)) do
    if type(value) == "table" and name ~= "Prepared" then quant[name] = value end
  end
end
local prepare = require "perilune.nn.quant.prepare"
quant.prepare, quant.convert = prepare.prepare, prepare.convert

return surface.seal(quant, nil, "nn.quant.")
