-- SPDX-License-Identifier: MIT
-- One row per op of the registry: how it is called and what judges its values. A new op needs one row in a
-- file of
-- spec/ops/cases; spec/ops/coverage_spec.lua names the ops that lack one. Builders and the fields of a row:
-- spec/ops/rows.lua.

local R = {}
for _, file in ipairs { "elementwise", "reduce", "network", "shape", "create", "linalg" } do
  for name, row in pairs(require("spec.ops.cases." .. file)) do
    assert(not R[name], name)
    R[name] = row
  end
end
for name, more in pairs(require "spec.ops.cases.gradients") do assert(R[name], name).gradients = more end
return R
