-- SPDX-License-Identifier: MIT
-- For specs of T.jit that compare what a function gives as written and compiled.
local assert = require "luassert"
local T = require "perilune"

local M = {}

function M.raises(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(err))
end

-- Tensors as tables, so that results of both runs can be compared.
function M.plain(v)
  if T.is_tensor(v) then return { v:dtype(), table.concat(v:shape(), "x"), v:detach():totable() } end
  if type(v) ~= "table" then return v end
  local out = {}
  for k, x in pairs(v) do out[k] = M.plain(x) end
  return out
end

return M
