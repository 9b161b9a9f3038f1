-- SPDX-License-Identifier: MIT
--- Attention as functions.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local attention, dropping = T.core.op.attention, T.core.op.attention_dropout
local region, cast = T.core.autocast_dtype, T.core.autocast_cast
local who = "scaled_dot_product_attention"

local function check(q, k, v, gqa)
  for i, x in ipairs { q, k, v } do
    if not T.is_tensor(x) or not x:is_floating_point() or x:dim() < 2 then
      fail("%s: argument #%d must be a floating tensor [..., length, width], got %s", who, i, describe(x))
    end
  end
  if q:size(-1) ~= k:size(-1) then
    fail("%s: queries %s and keys %s differ in width", who, describe(q), describe(k))
  end
  if k:size(-2) ~= v:size(-2) then
    fail("%s: keys %s and values %s differ in length", who, describe(k), describe(v))
  end
  if gqa and (q:dim() < 3 or k:dim() < 3 or q:size(-3) % k:size(-3) ~= 0) then
    fail("%s: %s query heads are no multiple of the key heads %s", who, describe(q), describe(k))
  end
end

-- The batch dimensions of all three, broadcast; false where they already agree and there is at least one.
local function common(q, k, v)
  local n = math.max(q:dim(), k:dim(), v:dim(), 3)
  local same, batch = q:dim() == n and k:dim() == n and v:dim() == n, {}
  for d = 1, n - 2 do
    batch[d] = 1
    for _, x in ipairs { q, k, v } do
      local at = d - (n - x:dim())
      local size = at >= 1 and x:size(at) or 1
      if size ~= batch[d] and size ~= 1 then
        if batch[d] ~= 1 then
          fail("%s: the batch sizes of %s, %s and %s do not broadcast", who, describe(q), describe(k), describe(v))
        end
        batch[d] = size
      end
    end
  end
  for d = 1, same and n - 2 or 0 do same = same and q:size(d) == batch[d] and k:size(d) == batch[d]
    and v:size(d) == batch[d] end
  return not same and batch
end

local function expanded(x, batch)
  local shape = { table.unpack(batch) }
  shape[#shape + 1], shape[#shape + 2] = x:size(-2), x:size(-1)
  return x:expand(shape)
end

-- Query heads in groups that share a key head: [..., H, g, L, E] with [..., H, 1, S, E], a view.
local function grouped(q, k, v, mask)
  local heads, times = k:size(-3), q:size(-3) // k:size(-3)
  if times == 1 then return q, k, v, mask, false end
  q = q:unflatten(-3, { heads, times })
  if mask and mask:dim() >= 3 then
    mask = mask:size(-3) == 1 and mask:unsqueeze(-4) or mask:unflatten(-3, { heads, times })
  end
  return q, k:unsqueeze(-3), v:unsqueeze(-3), mask, true
end

return function(F)
  -- softmax(q kᵀ · scale + mask) v (Vaswani et al. 2017): q [..., L, E], k [..., S, E], v [..., S, V] → [..., L, V].
  -- attn_mask [..., L, S]: booleans (false: not seen) or numbers that are added. A query that sees no key gives zeros.
  -- Options `attn_mask dropout_p=0 is_causal=false scale=1/√E enable_gqa=false` (fewer key heads than query heads).
  --- nn.F.scaled_dot_product_attention(q, k, v, {attn_mask=, dropout_p=0, is_causal=false, scale=}) → tensor
  -- softmax(q kᵀ scale + mask) v; true in a mask of bools: seen.
  --   local q = T.ones(1, 1, 2, 4)
  --   print(nn.F.scaled_dot_product_attention(q, q, q):sum():item())  --> 8.0
  function F.scaled_dot_product_attention(q, k, v, mask, opts)
    if mask ~= nil and not T.is_tensor(mask) and opts == nil then mask, opts = nil, mask end
    local o = options.check(who, opts, { "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa" })
    mask = mask or o.attn_mask
    local low = region()
    if low then q, k, v, mask = cast(q, low), cast(k, low), cast(v, low), mask and cast(mask, low) end
    check(q, k, v, o.enable_gqa)
    if mask and o.is_causal then fail("%s: attn_mask and is_causal exclude each other", who) end
    local two, groups = q:dim() == 2 and k:dim() == 2 and v:dim() == 2, false
    if o.enable_gqa then q, k, v, mask, groups = grouped(q, k, v, mask) end
    local batch = common(q, k, v)
    if batch then
      q, k, v = expanded(q, batch), expanded(k, batch), expanded(v, batch)
    end
    local drop = o.dropout_p or 0
    local y = (drop == 0 and attention or dropping)(q, k, v, mask, { scale = o.scale or 1 / math.sqrt(q:size(-1)),
      is_causal = o.is_causal or false, dropout_p = drop })
    if groups then return y:flatten(-4, -3) end
    return two and y:squeeze(1) or y
  end
end
