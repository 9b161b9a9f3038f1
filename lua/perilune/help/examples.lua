-- SPDX-License-Identifier: MIT
-- An example of every op, for T.help and the reference: op → code. What it prints stands behind `-->`; docs_spec runs
-- them all.
local E = {}
for _, part in ipairs { "numbers", "networks", "tensors" } do
  for name, code in pairs(require("perilune.help.examples_" .. part)) do E[name] = code end
end
return E
