-- SPDX-License-Identifier: MIT
-- Short assertions about tensors for specs: near(t, {…}, tol), shape, and errors with their text.

local oracle = require "spec.support.oracle"

local M = {}

local function flatten(v, out)
  for _, x in ipairs(v) do
    if type(x) == "table" then flatten(x, out) else out[#out + 1] = x end
  end
  return out
end

-- Raises unless tensor t holds the numbers of `want`: a tensor, a (nested) list, or one number for all
-- elements.
function M.near(t, want, tol)
  if type(t) ~= "userdata" then error("not a tensor: " .. tostring(t), 2) end
  local a = oracle.from(t).data
  local b
  if type(want) == "userdata" then
    b = oracle.from(want).data
  elseif type(want) == "table" then
    b = flatten(want, {})
  else
    b = {}
    for i = 1, #a do b[i] = want end
  end
  if #a ~= #b then error(string.format("%d elements, should be %d", #a, #b), 2) end
  tol = tol or 1e-6
  for i = 1, #b do
    local x, y = a[i], b[i]
    local close = x == y or (x ~= x and y ~= y) or math.abs(x - y) <= tol * math.max(1, math.abs(y))
    if not close then
      error(string.format("element %d is %.9g, should be %.9g", i, x, y), 2)
    end
  end
end

-- Raises unless the tensors have the same bytes, dtype and shape.
function M.same_bits(a, b)
  if a:dtype() ~= b:dtype() or table.concat(a:shape(), ",") ~= table.concat(b:shape(), ",") then
    error("dtype or shape differ", 2)
  end
  if a:to_string() ~= b:to_string() then error("bits differ", 2) end
end

-- Calls f(...), which must raise a text that contains `part` (plain); returns the text.
function M.fails(part, f, ...)
  local ok, err = pcall(f, ...)
  if ok then error("no error raised, should say: " .. part, 2) end
  if not tostring(err):find(part, 1, true) then
    error(string.format("the error is '%s', should say '%s'", tostring(err), part), 2)
  end
  return err
end

return M
