-- SPDX-License-Identifier: MIT
--- Attention as functions.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local attention = T.core.op.attention
local region, cast = T.core.autocast_dtype, T.core.autocast_cast

-- What is not allowed, [L, S]: keys after the query's own place.
local function future(l, s)
  return T.gt(T.arange(s):unsqueeze(1), T.arange(l):unsqueeze(2))
end

local function check(q, k, v, gqa)
  local who = "scaled_dot_product_attention"
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

-- Without mask and dropout the engine's op keeps no scores. nil where it does not apply.
local function fused(q, k, v, o)
  local nd = q:dim()
  if q:dtype() ~= "f32" or k:dtype() ~= "f32" or v:dtype() ~= "f32" or nd < 3 or k:dim() ~= nd or v:dim() ~= nd or
    k:size(-2) == 0 then
    return nil
  end
  local out = q:shape()
  for d = 1, nd - 2 do
    if k:size(d) ~= out[d] or v:size(d) ~= out[d] then return nil end
  end
  out[nd] = v:size(-1)
  local function batched(x)
    if nd == 3 then return x end
    return x:flatten(1, nd - 2)
  end
  local y = attention(batched(q), batched(k), batched(v),
    { scale = o.scale or 1 / math.sqrt(q:size(-1)), is_causal = o.is_causal or false })
  return nd == 3 and y or y:view(out)
end

return function(F)
  --- softmax(q kᵀ · scale + mask) v (Vaswani et al. 2017): q [..., L, E], k [..., S, E], v [..., S, V] → [..., L, V].
  -- attn_mask [..., L, S]: booleans (false: not seen) or numbers that are added. A query that sees no key gives zeros.
  -- Options `attn_mask dropout_p=0 is_causal=false scale=1/√E enable_gqa=false` (fewer key heads than query heads).
  function F.scaled_dot_product_attention(q, k, v, mask, opts)
    if mask ~= nil and not T.is_tensor(mask) and opts == nil then mask, opts = nil, mask end
    local o = options.check("scaled_dot_product_attention", opts,
      { "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa" })
    mask = mask or o.attn_mask
    local low = region()
    if low then q, k, v, mask = cast(q, low), cast(k, low), cast(v, low), mask and cast(mask, low) end
    check(q, k, v, o.enable_gqa)
    if mask and o.is_causal then fail("scaled_dot_product_attention: attn_mask and is_causal exclude each other") end
    if o.enable_gqa then
      local times = q:size(-3) // k:size(-3)
      if times > 1 then
        k, v = k:repeat_interleave(times, { dim = -3 }), v:repeat_interleave(times, { dim = -3 })
      end
    end
    local plain = not mask and (o.dropout_p or 0) == 0 and fused(q, k, v, o)
    if plain then return plain end
    -- narrow floats are added up in f32
    local dtype = q:dtype()
    local narrow = dtype == "f16" or dtype == "bf16"
    if narrow then
      q, k, v = q:float(), k:float(), v:float()
      if mask and mask:dtype() == dtype then mask = mask:float() end
    end
    local score = (q * (o.scale or 1 / math.sqrt(q:size(-1)))):matmul(k:transpose(-2, -1))
    local hidden
    if o.is_causal then
      hidden = future(q:size(-2), k:size(-2))
    elseif mask and mask:dtype() == "bool" then
      hidden = mask:logical_not()
    elseif mask then
      score = score + mask
    end
    if hidden then score = score:masked_fill(hidden, -math.huge) end
    local share = score:softmax(-1)
    -- causal rows always see themselves; rows of other masks may see nothing
    if hidden and not o.is_causal then share = share:masked_fill(hidden, 0) end
    if o.dropout_p and o.dropout_p > 0 then share = T.dropout(share, o.dropout_p) end
    local y = share:matmul(v)
    return narrow and y:to(dtype) or y
  end
end
