-- SPDX-License-Identifier: MIT
-- Golden cases that perilune answers differently on purpose. Each row was reviewed: `op`, a Lua pattern on
-- the
-- case's id, optionally one on the failure's text, and why. They count as skipped, and the runner says when
-- one is no longer needed.

local rows = {
  {
    op = "arange", id = "/error/sign$",
    reason = "like Lua's for loop, arange is empty when the step leads away from the end",
  },
}

-- PyTorch refuses a number where it wants a tensor; here each operand of an elementwise op may be a number.
for _, op in ipairs {
  "atan2", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "eq", "fmax", "fmin", "fmod", "ge", "lt",
  "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "ne", "remainder", "xlogy",
} do
  for _, text in ipairs { "must be Tensor, not int", "invalid combination of arguments %- got %(int" } do
    rows[#rows + 1] = {
      op = op, id = "/error/oi%d+$", text = text, optional = true,
      reason = "a number may stand for any operand of an elementwise op",
    }
  end
end

return rows
