-- SPDX-License-Identifier: MIT
--- Attention as decoders have it: heads that share keys and values, rotary places, windows, caps on scores, a cache;
-- and the masks that go with it. @module perilune.nn.grouped_attention
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local cache_of = require("perilune.nn.cache").cache_of
local Linear = require("perilune.nn.linear").Linear
local fail, describe = options.fail, options.describe

local M = {}

-- ---- the product -------------------------------------------------------------------------------------------

-- softmax(cap(q kᵀ scale) + mask) v with the scores written out, for what the op has no form of.
local function capped(q, k, v, o)
  local b, h, l, d = table.unpack(q:shape())
  local heads = k:size(2)
  local times = h // heads
  if times > 1 then q = q:reshape(b, heads, times * l, d) end
  local score = q:matmul(k:transpose(3, 4)) * (o.scale / o.softcap)
  score = score:tanh() * o.softcap
  if times > 1 then score = score:reshape(b, h, l, -1) end
  local none -- which queries see nothing, of a mask of numbers
  if o.mask then
    if o.mask:dtype() == "bool" then
      score = score:masked_fill(o.mask:logical_not(), -1e30)
    else
      none = o.mask:eq(-math.huge):all(-1, { keepdim = true })
      score = score + o.mask:masked_fill(none, 0)
    end
  end
  local share = score:softmax(-1)
  -- a row that sees nothing gives zeros, as in the op
  if o.mask then share = share:masked_fill(none or o.mask:logical_not(), 0) end
  if o.dropout_p > 0 then share = T.dropout(share, o.dropout_p) end
  if times > 1 then share = share:reshape(b, heads, times * l, -1) end
  local y = share:matmul(v)
  return times > 1 and y:reshape(b, h, l, v:size(4)) or y
end

--- q [B, H, L, D], k and v [B, Hk, S, D], H a multiple of Hk → [B, L, H D]; o: mask, is_causal, scale, softcap,
-- dropout_p.
function M.attend(q, k, v, o)
  local y
  if o.softcap then
    local mask = o.mask
    if mask and o.is_causal then fail "GroupedQueryAttention: mask and is_causal exclude each other" end
    if o.is_causal then mask = M.mask { length = q:size(3), past = k:size(3) - q:size(3), device = q:device() } end
    y = capped(q, k, v, { mask = mask, scale = o.scale, softcap = o.softcap, dropout_p = o.dropout_p or 0 })
  else
    y = F.scaled_dot_product_attention(q, k, v, { attn_mask = o.mask, is_causal = o.is_causal or false, scale = o.scale,
      dropout_p = o.dropout_p or 0, enable_gqa = q:size(2) ~= k:size(2) })
  end
  return y:transpose(2, 3):flatten(3, 4)
end

-- ---- masks -------------------------------------------------------------------------------------------------

--- What queries past + 1 … past + length see of keys 1 … past + length: bools [B or 1, 1, length, past + length],
-- true where seen. `window`: at most so many keys, the query's own place the last; `padding` [B, past + length], 0 at
-- places that nobody sees; `causal=false`: also what comes behind. nil where all is seen.
function M.mask(o)
  local l, past = o.length, o.past or 0
  local s, seen = past + l, nil
  if o.causal ~= false and (l > 1 or o.window and o.window < s) then
    local key = T.arange(s, { device = o.device }):unsqueeze(1)
    local query = T.arange(past + 1, s, { device = o.device }):unsqueeze(2)
    seen = key:le(query)
    if o.window and o.window < s then seen = seen:logical_and(key:gt(query - o.window)) end
    seen = seen:unsqueeze(1):unsqueeze(1)
  end
  if o.padding then
    local real = o.padding:ne(0):unsqueeze(2):unsqueeze(2)
    seen = seen and seen:logical_and(real) or real
  end
  return seen
end

-- ---- the layer ---------------------------------------------------------------------------------------------

--- nn.GroupedQueryAttention(…) → module
-- Self-attention whose query heads share fewer key heads (Ainslie et al. 2023). Children q_proj, k_proj, v_proj,
-- o_proj, or qkv_proj in their place with fused: "blocks", all queries, then all keys, then all values; "heads",
-- those of each head in turn. qk_norm: makes a norm for the width it is called with, once for queries and once for
-- keys (q_norm, k_norm), over each head, or over all heads at once with norm_all. softcap: scores s become softcap ·
-- tanh(s / softcap). Options of the call: mask (bools [B, 1, L, S], true: seen, or numbers that are added),
-- is_causal, rope (a nn.RotaryEmbedding), cos, sin, cache (a nn.KVCache), layer (its number there), window (keys that
-- a query may see, its own the last; a mask that is given has it already), memory [B, S, memory_dim], of which keys and
-- values are made in place of x; with a cache once. out=false: no last product.
-- Shapes: [B, L, embed_dim] → the same
--   local attend = nn.GroupedQueryAttention(8, 4, { num_kv_heads = 2 })
--   print(attend.k_proj)  --> Linear(in_features=8, out_features=4, bias=false)
--   print(table.concat(attend(T.ones(1, 3, 8), { is_causal = true }):shape(), " "))  --> 1 3 8
local Attention = base.class "GroupedQueryAttention"
local spec = options.spec("nn.GroupedQueryAttention", {
  { "embed_dim", "count" }, { "num_heads", "count" }, { "num_kv_heads", "count", optional = true },
  { "head_dim", "count", optional = true }, { "bias", "bool", false }, { "key_bias", "bool", optional = true },
  { "out_bias", "bool", optional = true }, { "memory_dim", "count", optional = true },
  { "scale", "number", optional = true }, { "softcap", "positive", optional = true },
  { "dropout", "probability", 0.0 }, { "fused", { "none", "blocks", "heads" }, "none" },
  { "qk_norm", "callable", optional = true }, { "norm_all", "bool", false },
  { "clip", "positive", optional = true }, { "out", "bool", true }, { "linear", "callable", optional = true },
  { "names", "any", optional = true } })

function Attention:init(...)
  local a = options.read(spec, ...)
  local h, hk = a.num_heads, a.num_kv_heads or a.num_heads
  if h % hk ~= 0 then
    fail("nn.GroupedQueryAttention: num_heads %d must be a multiple of num_kv_heads %d", h, hk)
  end
  if not a.head_dim and a.embed_dim % h ~= 0 then
    fail("nn.GroupedQueryAttention: embed_dim %d must be a multiple of num_heads %d, or head_dim be given",
      a.embed_dim, h)
  end
  if a.fused == "heads" and h ~= hk then
    fail("nn.GroupedQueryAttention: fused = \"heads\" needs as many key heads as query heads, %d, got %d", h, hk)
  end
  local d = a.head_dim or a.embed_dim // h
  local linear = a.linear or function(from, to, bias) return Linear(from, to, { bias = bias }) end
  local names = options.check("nn.GroupedQueryAttention: names", a.names,
    { "q", "k", "v", "qkv", "out", "q_norm", "k_norm" })
  local out_bias = a.out_bias
  if out_bias == nil then out_bias = a.bias end
  self.embed_dim, self.num_heads, self.num_kv_heads, self.head_dim = a.embed_dim, h, hk, d
  self.scale, self.softcap, self.dropout, self.clip = a.scale or 1 / math.sqrt(d), a.softcap, a.dropout, a.clip
  self.fused, self.norm_all = a.fused, a.norm_all
  local function put(part, default, m)
    local key = names[part] or default
    self[key] = m
    rawset(self, "_" .. part, key)
  end
  if a.fused == "none" then
    put("q", "q_proj", linear(a.embed_dim, h * d, a.bias))
    local key_bias, from = a.bias, a.memory_dim or a.embed_dim
    if a.key_bias ~= nil then key_bias = a.key_bias end
    put("k", "k_proj", linear(from, hk * d, key_bias))
    put("v", "v_proj", linear(from, hk * d, a.bias))
  else
    put("qkv", "qkv_proj", linear(a.embed_dim, (h + 2 * hk) * d, a.bias))
  end
  if a.out then put("out", "o_proj", linear(h * d, a.embed_dim, out_bias)) end
  if a.qk_norm then
    put("q_norm", "q_norm", a.qk_norm(a.norm_all and h * d or d))
    put("k_norm", "k_norm", a.qk_norm(a.norm_all and hk * d or d))
  end
end

-- y [B, L, heads · D], a projection, as [B, L, heads, D]: with its norm, nil for values, and limited.
local function split(self, y, heads, norm)
  if norm and self.norm_all then y = norm(y) end
  if self.clip then y = y:clamp(-self.clip, self.clip) end
  y = y:unflatten(3, { heads, self.head_dim })
  return norm and not self.norm_all and norm(y) or y
end

local function norms(self)
  if self._q_norm then return self[self._q_norm], self[self._k_norm] end
end

-- Keys and values [B, H, S, D] of what another stack has made, kept in the cache from the first call on.
local function remembered(self, o)
  local k, v
  if o.cache then k, v = o.cache:get(o.layer) end
  if k then return k, v end
  local _, k_norm = norms(self)
  k = split(self, self[self._k](o.memory), self.num_kv_heads, k_norm):transpose(2, 3)
  v = split(self, self[self._v](o.memory), self.num_kv_heads):transpose(2, 3)
  if o.cache then k, v = o.cache:update(o.layer, k, v) end
  return k, v
end

-- Queries, keys, values, each [B, L, heads, D].
local function projected(self, x)
  local b, l, d = x:size(1), x:size(2), self.head_dim
  local h, hk = self.num_heads, self.num_kv_heads
  local q, k, v
  if self.fused == "heads" then
    local all = self[self._qkv](x):view(b, l, h, 3 * d)
    q, k, v = all:narrow(4, 1, d), all:narrow(4, d + 1, d), all:narrow(4, 2 * d + 1, d)
    if not self.clip and not self._q_norm then return q, k, v end
    q, k, v = q:flatten(3, 4), k:flatten(3, 4), v:flatten(3, 4)
  elseif self.fused == "blocks" then
    local all = self[self._qkv](x)
    q, k, v = all:narrow(3, 1, h * d), all:narrow(3, h * d + 1, hk * d), all:narrow(3, (h + hk) * d + 1, hk * d)
  else
    q, k, v = self[self._q](x), self[self._k](x), self[self._v](x)
  end
  local q_norm, k_norm = norms(self)
  return split(self, q, h, q_norm), split(self, k, hk, k_norm), split(self, v, hk)
end

local call = { "mask", "is_causal", "rope", "cos", "sin", "cache", "layer", "window", "memory" }

local call_kinds = { cos = "tensor", sin = "tensor", window = "count" }

--- (x, {mask=, is_causal=, rope=, cos=, sin=, cache=, layer=, window=, memory=})
function Attention:forward(x, opts)
  local o = options.check("GroupedQueryAttention", opts, call)
  for name, kind in pairs(call_kinds) do
    if o[name] ~= nil then options.kind("GroupedQueryAttention", name, kind, o[name]) end
  end
  if o.layer ~= nil and type(o.layer) ~= "string" then -- models name a memory's place by a word
    options.kind("GroupedQueryAttention", "layer", "count", o.layer)
  end
  if (o.cos or o.sin) and not o.rope then fail "GroupedQueryAttention: cos and sin are for rope, which is missing" end
  if not T.is_tensor(x) or x:dim() ~= 3 or x:size(3) ~= self.embed_dim then
    fail("GroupedQueryAttention: the input must be [B, L, %d], got %s", self.embed_dim, describe(x))
  end
  if o.memory then
    if self.fused ~= "none" then fail "GroupedQueryAttention: memory goes with projections that are not fused" end
    for _, name in ipairs { "is_causal", "rope", "window" } do -- there is one order of places only
      if o[name] then fail("GroupedQueryAttention: %s does not go with memory", name) end
    end
    cache_of("GroupedQueryAttention", o.cache)
    local q = split(self, self[self._q](x), self.num_heads, (norms(self))):transpose(2, 3)
    local k, v = remembered(self, o)
    local y = M.attend(q, k, v, { mask = o.mask, scale = self.scale, softcap = self.softcap,
      dropout_p = self.training and self.dropout or 0 })
    return self._out and self[self._out](y) or y
  end
  local q, k, v = projected(self, x)
  q, k, v = q:transpose(2, 3), k:transpose(2, 3), v:transpose(2, 3)
  if o.rope then q, k = o.rope:rotate(q, o.cos, o.sin), o.rope:rotate(k, o.cos, o.sin) end
  local mask, causal, cache = o.mask, o.is_causal, cache_of("GroupedQueryAttention", o.cache)
  local l = q:size(3)
  local s = l + (cache and cache:length(o.layer or 1) or 0)
  if not mask and causal and (s > l or o.window and o.window < s) then -- the op's queries are the first, not the last
    causal, mask = false, M.mask { length = l, past = s - l, window = o.window, device = q:device() }
  elseif not mask and o.window and o.window < s and l > 1 then
    fail "GroupedQueryAttention: window goes with is_causal = true, or with a mask that has it"
  end
  if cache then
    k, v = cache:update(o.layer or 1, k, v)
    if o.window and s > o.window + l - 1 then -- what no query sees need not be read
      local n = o.window + l - 1
      k, v = k:narrow(3, s - n + 1, n), v:narrow(3, s - n + 1, n)
      if mask and mask:size(4) == s then mask = mask:narrow(4, s - n + 1, n) end
    end
  end
  local y = M.attend(q, k, v, { mask = mask, is_causal = causal, scale = self.scale,
    softcap = self.softcap, dropout_p = self.training and self.dropout or 0 })
  return self._out and self[self._out](y) or y
end

function Attention:extra_repr()
  return ("%d, heads=%d, kv_heads=%d, head_dim=%d"):format(self.embed_dim, self.num_heads, self.num_kv_heads,
    self.head_dim)
end

M.GroupedQueryAttention = Attention

return M
