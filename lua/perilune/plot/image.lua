-- SPDX-License-Identifier: MIT
--- Tensors as pixels.
-- @module perilune.plot.image
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local M = {}

--- x as u8[H,W] or u8[H,W,C], contiguous. x: [H,W], [H,W,C] or [C,H,W] with C of 1, 3 or 4 (where both would do:
-- the former if H is more than 4); u8 as it is, bool, or numbers that go from `lo` (0) to `hi` (1, or 255 for
-- integers). NaN is 0.
function M.pixels(who, x, lo, hi)
  local T = require "perilune"
  if not T.is_tensor(x) then fail("%s: an image is a tensor, got %s", who, describe(x)) end
  local s = x:shape()
  local function channels(n) return n == 1 or n == 3 or n == 4 end
  if #s == 3 and channels(s[1]) and not (channels(s[3]) and s[1] > 4) then
    x = x:permute(2, 3, 1)
  elseif #s ~= 2 and not (#s == 3 and channels(s[3])) then
    fail("%s: an image is [H,W], [C,H,W] or [H,W,C] with 1, 3 or 4 channels, got %s", who, x:describe())
  end
  if x:numel() == 0 then fail("%s: %s has no pixels", who, x:describe()) end
  local _ <close> = T.no_grad()
  x = x:detach()
  if x:dim() == 3 and x:size(3) == 1 then x = x:select(3, 1) end
  if x:dtype() == "u8" and lo == nil and hi == nil then return x:contiguous() end
  lo = lo or 0
  hi = hi or (x:is_floating_point() or x:dtype() == "bool") and 1 or 255
  if hi <= lo then hi = lo + 1 end
  local v = (x:to("f32") - lo) * (255 / (hi - lo))
  v = T.where(v:isnan(), T.zeros_like(v), v)
  return v:round():clamp(0, 255):to("u8"):contiguous()
end

return M
