-- SPDX-License-Identifier: MIT
--- Whether ids count from 0 or from 1: tensors that a tokenizer or net:generate has made remember it while they are as
-- they were made, so that who wants the other is told. What is computed from them does not remember.
-- @module perilune.data.id_base
local options = require "perilune.options"

local M, made = {}, setmetatable({}, { __mode = "k" })

--- Remembers that ids, a tensor or nil, count from `base`; → ids.
function M.mark(ids, base)
  if ids ~= nil then made[ids] = { base = base, version = ids:version() } end
  return ids
end

--- Raises where it is known that ids count from the other base than `want`.
function M.check(who, ids, want, fix)
  local known = made[ids]
  if known and known.base ~= want and known.version == ids:version() then
    options.fail("%s: these ids count from %d, and ids that count from %d are wanted: %s", who, known.base, want, fix)
  end
end

return M
