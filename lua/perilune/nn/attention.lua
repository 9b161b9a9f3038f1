-- SPDX-License-Identifier: MIT
--- Attention layers: MultiheadAttention, and the Transformer's blocks. Parameter names and initializers are
-- PyTorch's. @module perilune.nn.attention
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local options = require "perilune.options"
local surface = require "perilune.surface"

local Linear = require("perilune.nn.linear").Linear
local LayerNorm = require("perilune.nn.norm").LayerNorm
local Dropout = require("perilune.nn.dropout").Dropout
local ModuleList = require("perilune.nn.container").ModuleList

local class, Parameter, fail, read = base.class, base.Parameter, options.fail, options.read
local out = {}

-- ---- MultiheadAttention ------------------------------------------------------------------------------

-- Several heads of attention with learned projections (Vaswani et al. 2017). Queries [L, N, E], keys [S, N, kdim],
-- values [S, N, vdim] (`batch_first`: [N, L, E]; or without N). State: in_proj_weight [3E, E] (or q_, k_,
-- v_proj_weight), in_proj_bias, out_proj.weight, out_proj.bias.
--- nn.MultiheadAttention(…) → module
-- Several heads of attention with learned projections (Vaswani et al. 2017); batch_first: [N, L, E]. Options of the
-- call: attn_mask, key_padding_mask (true: not seen), is_causal, need_weights, cache. add_bias_kv appends a learned
-- key and value to all others (bias_k, bias_v [1, 1, E]), add_zero_attn one of zeros; every query sees both.
-- Shapes: query [L, N, E], key [S, N, E], value [S, N, E] → [L, N, E], weights
--   local attend = nn.MultiheadAttention(8, 2)
--   local x = T.ones(5, 1, 8)
--   print(table.concat((attend(x, x, x)):shape(), " "))  --> 5 1 8
local MHA = class "MultiheadAttention"
local mha_spec = options.spec("nn.MultiheadAttention", {
  { "embed_dim", "count" }, { "num_heads", "count" }, { "dropout", "probability", 0.0 }, { "bias", "bool", true },
  { "kdim", "count", optional = true }, { "vdim", "count", optional = true }, { "batch_first", "bool", false },
  { "add_bias_kv", "bool", false }, { "add_zero_attn", "bool", false }, { "dtype", "string", optional = true } })

function MHA:init(...)
  local a = read(mha_spec, ...)
  local E = a.embed_dim
  if E % a.num_heads ~= 0 then
    fail("nn.MultiheadAttention: embed_dim %d must be a multiple of num_heads %d", E, a.num_heads)
  end
  self.embed_dim, self.num_heads, self.dropout, self.batch_first = E, a.num_heads, a.dropout, a.batch_first
  self.kdim, self.vdim = a.kdim or E, a.vdim or E
  local opts = { dtype = a.dtype }
  if self.kdim == E and self.vdim == E then
    self.in_proj_weight = Parameter(T.empty({ 3 * E, E }, opts))
    init.xavier_uniform_(self.in_proj_weight)
  else
    for _, item in ipairs { { "q", E }, { "k", self.kdim }, { "v", self.vdim } } do
      local p = Parameter(T.empty({ E, item[2] }, opts))
      self[item[1] .. "_proj_weight"] = p
      init.xavier_uniform_(p)
    end
  end
  if a.add_bias_kv then
    self.bias_k, self.bias_v = Parameter(T.empty({ 1, 1, E }, opts)), Parameter(T.empty({ 1, 1, E }, opts))
    init.xavier_normal_(self.bias_k)
    init.xavier_normal_(self.bias_v)
  end
  self.add_zero_attn = a.add_zero_attn
  if a.bias then self.in_proj_bias = Parameter(T.zeros({ 3 * E }, opts)) end
  self.out_proj = Linear(E, E, { bias = a.bias, dtype = a.dtype })
  if a.bias then init.zeros_(self.out_proj.bias) end
end

-- The three projections; one product where all three inputs are the same tensor.
local function projected(self, q, k, v)
  local E, w, b = self.embed_dim, self.in_proj_weight, self.in_proj_bias
  if w and q == k and k == v then
    local all = F.linear(q, w, b)
    return table.unpack(all:split(E, all:dim()))
  end
  local ws = w and w:split(E, 1) or { self.q_proj_weight, self.k_proj_weight, self.v_proj_weight }
  local bs = b and b:split(E, 1) or {}
  return F.linear(q, ws[1], bs[1]), F.linear(k, ws[2], bs[2]), F.linear(v, ws[3], bs[3])
end

-- Masks become numbers that are added to scores; true means "not seen" here, as in PyTorch's layer.
local function added(mask, dtype)
  if mask:dtype() ~= "bool" then return mask end
  return T.zeros(mask:shape(), { dtype = dtype, device = mask:device() }):masked_fill(mask, -math.huge)
end

-- The keys or values [N, H, S, D] and what the module appends to them.
local function appended(self, x, learned)
  local n, h, d = x:size(1), x:size(2), x:size(4)
  local list = { x }
  if learned then list[#list + 1] = learned:reshape(1, h, 1, d):expand(n, h, 1, d) end
  if self.add_zero_attn then list[#list + 1] = x:new_zeros { n, h, 1, d } end
  return #list > 1 and T.cat(list, 3) or x
end

-- The mask over `more` further keys, which every query sees.
local function widened(mask, more)
  return mask and more > 0 and F.pad(mask, { 0, more }) or mask
end

local function check_mask(name, mask, fits, wanted, ...)
  if not T.is_tensor(mask) or mask:dtype() ~= "bool" and not mask:is_floating_point() then
    fail("MultiheadAttention: %s must be bool or floating, got %s", name, options.describe(mask))
  end
  if not fits then
    fail("MultiheadAttention: %s must be %s, got %s", name, wanted:format(...), options.describe(mask))
  end
end

local function shaped(mask, ...)
  local want = { ... }
  if mask:dim() ~= #want then return false end
  for d, size in ipairs(want) do if mask:size(d) ~= size then return false end end
  return true
end

-- Sizes are compared before anything is reshaped: [S, N] has as many elements as [N, S], and other places.
local function combined_mask(self, q, o, n, l, s)
  local mask, pad = o.attn_mask or nil, o.key_padding_mask or nil -- false: none
  if mask ~= nil then
    local heads = n * self.num_heads
    check_mask("attn_mask", mask, not T.is_tensor(mask) or mask:dim() ~= 3 or shaped(mask, heads, l, s),
      "[%d, %d] or [%d, %d, %d]", l, s, heads, l, s)
    mask = added(mask, q:dtype())
    if mask:dim() == 3 then mask = mask:reshape(n, self.num_heads, l, s) end
  end
  if o.is_causal then
    if mask and l > s then
      fail("MultiheadAttention: is_causal with an attn_mask needs a key for each of %d queries, got %d", l, s)
    end
    local causal = added(T.gt(T.arange(s):unsqueeze(1), (T.arange(l) + (s - l)):unsqueeze(2)):to(q:device()), q:dtype())
    mask = mask and mask + causal or causal
  end
  if pad ~= nil then
    check_mask("key_padding_mask", pad, not T.is_tensor(pad) or shaped(pad, n, s) or n == 1 and shaped(pad, s),
      "[%d, %d]", n, s)
    pad = added(pad, q:dtype()):reshape(n, 1, 1, s)
    mask = mask and mask + pad or pad
  end
  return mask
end

local mha_options = { "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal", "cache" }

--- (query, key, value, opts) → output, weights [N, L, S] (nil unless need_weights; [N, H, L, S] with
-- average_attn_weights=false). Boolean masks say what is NOT seen: `attn_mask` [L, S] or [N·H, L, S],
-- `key_padding_mask` [N, S]. `is_causal` holds beside a mask that is given. `cache`: a table that keeps keys and
-- values, so that each call passes new places only.
local function attention(self, q, k, v, opts)
  local o = options.check("MultiheadAttention", opts, mha_options)
  k, v = k or q, v or k or q
  local single = q:dim() == 2
  local same_k, same_v = k == q, v == k
  local function batched(x)
    if single then return x:unsqueeze(1) end
    return self.batch_first and x or x:transpose(1, 2)
  end
  q = batched(q)
  k = same_k and q or batched(k)
  v = same_v and k or batched(v)
  local H, n, l = self.num_heads, q:size(1), q:size(2)
  local pq, pk, pv = projected(self, q, k, v)
  local function heads(x) return x:reshape(n, x:size(2), H, -1):transpose(2, 3) end
  pq, pk, pv = heads(pq), heads(pk), heads(pv)
  if o.cache and o.cache.k then pk, pv = T.cat({ o.cache.k, pk }, 3), T.cat({ o.cache.v, pv }, 3) end
  local kept_k, kept_v, s = pk, pv, pk:size(3)
  pk, pv = appended(self, pk, self.bias_k), appended(self, pv, self.bias_v)
  local more = pk:size(3) - s
  local drop = self.training and self.dropout or 0.0
  local y, share
  if o.need_weights then
    local score = (pq * (1 / math.sqrt(pq:size(4)))):matmul(pk:transpose(3, 4))
    local mask = widened(combined_mask(self, pq, o, n, l, s), more)
    if mask then score = score + mask end
    share = score:softmax(-1)
    y = (drop > 0 and T.dropout(share, drop) or share):matmul(pv)
    if o.average_attn_weights ~= false then share = share:mean(2) end
    if single then share = share:squeeze(1) end
  else
    local only_causal = o.is_causal and not o.attn_mask and not o.key_padding_mask and l == s and more == 0
    local mask = not only_causal and widened(combined_mask(self, pq, o, n, l, s), more) or nil
    y = F.scaled_dot_product_attention(pq, pk, pv, { attn_mask = mask, is_causal = only_causal or false,
      dropout_p = drop })
  end
  y = self.out_proj(y:transpose(2, 3):reshape(n, l, self.embed_dim))
  if single then y = y:squeeze(1) elseif not self.batch_first then y = y:transpose(1, 2) end
  if o.cache then o.cache.k, o.cache.v = kept_k, kept_v end -- a call that fails leaves it as it was
  return y, share
end

function MHA:forward(q, k, v, opts)
  local mode = options.mode -- a cache is written
  if mode.method and not (opts and opts.cache) then return mode.method(attention, self, q, k, v, opts) end
  return attention(self, q, k, v, opts)
end

function MHA:extra_repr()
  return ("embed_dim=%d, num_heads=%d%s"):format(self.embed_dim, self.num_heads,
    self.batch_first and ", batch_first=true" or "")
end
out.MultiheadAttention = MHA

-- ---- Transformer blocks ------------------------------------------------------------------------------

local layer_args = {
  { "d_model", "count" }, { "nhead", "count" }, { "dim_feedforward", "count", 2048 },
  { "dropout", "probability", 0.1 }, { "activation", "any", "relu" }, { "layer_norm_eps", "nonnegative", 1e-5 },
  { "batch_first", "bool", false }, { "norm_first", "bool", false }, { "bias", "bool", true },
  { "dtype", "string", optional = true },
}

local function activation_of(who, v)
  if v == "relu" or v == "gelu" then return F[v] end
  if type(v) == "function" or base.is_module(v) then return v end
  fail("%s: activation must be \"relu\", \"gelu\" or a function, got %s", who, options.describe(v))
end

-- The parts that both kinds of layers have, in PyTorch's order of registration.
local function build(self, who, a, cross)
  local function layer()
    return MHA(a.d_model, a.nhead, { dropout = a.dropout, bias = a.bias, batch_first = a.batch_first, dtype = a.dtype })
  end
  self.norm_first = a.norm_first
  self.self_attn = layer()
  if cross then self.multihead_attn = layer() end
  self.linear1 = Linear(a.d_model, a.dim_feedforward, { bias = a.bias, dtype = a.dtype })
  self.dropout = Dropout(a.dropout)
  self.linear2 = Linear(a.dim_feedforward, a.d_model, { bias = a.bias, dtype = a.dtype })
  local n = cross and 3 or 2
  for i = 1, n do
    self["norm" .. i] = LayerNorm(a.d_model, { eps = a.layer_norm_eps, bias = a.bias, dtype = a.dtype })
  end
  for i = 1, n do self["dropout" .. i] = Dropout(a.dropout) end
  self.activation = activation_of(who, a.activation) -- a module is a child, with parameters and a mode
end

local function feed(self, x)
  local f = self.activation
  if type(f) == "string" then f = activation_of(surface.class_name(self), f) end
  return self.linear2(self.dropout(f(self.linear1(x))))
end

--- nn.TransformerEncoderLayer(…) → module
-- x + attention, then x + feed-forward, each normalized after it, or before with norm_first. Options of the call:
-- src_mask, src_key_padding_mask, is_causal, cache.
-- Shapes: [L, N, E] → the same
--   print(table.concat(nn.TransformerEncoderLayer(8, 2, 16)(T.ones(5, 1, 8)):shape(), " "))  --> 5 1 8
local Encoder = class "TransformerEncoderLayer"
local encoder_spec = options.spec("nn.TransformerEncoderLayer", layer_args)
function Encoder:init(...) build(self, "nn.TransformerEncoderLayer", read(encoder_spec, ...), false) end

--- (src, {src_mask=, src_key_padding_mask=, is_causal=, cache=})
function Encoder:forward(x, opts)
  local o = options.check("TransformerEncoderLayer", opts, { "src_mask", "src_key_padding_mask", "is_causal", "cache" })
  local how = { attn_mask = o.src_mask, key_padding_mask = o.src_key_padding_mask, is_causal = o.is_causal,
    cache = o.cache }
  local function attend(z) return self.dropout1((self.self_attn(z, z, z, how))) end
  if self.norm_first then
    x = x + attend(self.norm1(x))
    return x + self.dropout2(feed(self, self.norm2(x)))
  end
  x = self.norm1(x + attend(x))
  return self.norm2(x + self.dropout2(feed(self, x)))
end
out.TransformerEncoderLayer = Encoder

--- nn.TransformerDecoderLayer(…) → module
-- As the encoder's layer, with attention to a memory in the middle.
-- Shapes: tgt [L, N, E], memory [S, N, E] → [L, N, E]
--   print(table.concat(nn.TransformerDecoderLayer(8, 2, 16)(T.ones(3, 1, 8), T.ones(5, 1, 8)):shape(), " "))
--   --> 3 1 8
local Decoder = class "TransformerDecoderLayer"
local decoder_spec = options.spec("nn.TransformerDecoderLayer", layer_args)
function Decoder:init(...) build(self, "nn.TransformerDecoderLayer", read(decoder_spec, ...), true) end

local decoder_options = { "tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask", "tgt_is_causal",
  "memory_is_causal" }

--- (tgt, memory, opts)
function Decoder:forward(x, memory, opts)
  local o = options.check("TransformerDecoderLayer", opts, decoder_options)
  local own = { attn_mask = o.tgt_mask, key_padding_mask = o.tgt_key_padding_mask, is_causal = o.tgt_is_causal }
  local across = { attn_mask = o.memory_mask, key_padding_mask = o.memory_key_padding_mask,
    is_causal = o.memory_is_causal }
  local function attend(z) return self.dropout1((self.self_attn(z, z, z, own))) end
  local function look(z) return self.dropout2((self.multihead_attn(z, memory, memory, across))) end
  if self.norm_first then
    x = x + attend(self.norm1(x))
    x = x + look(self.norm2(x))
    return x + self.dropout3(feed(self, self.norm3(x)))
  end
  x = self.norm1(x + attend(x))
  x = self.norm2(x + look(x))
  return self.norm3(x + self.dropout3(feed(self, x)))
end
out.TransformerDecoderLayer = Decoder

--- nn.TransformerDecoder(…) → module
-- num_layers copies of a layer, then an optional norm. Called as net(tgt, memory, {tgt_mask=, memory_mask=,
-- tgt_key_padding_mask=, memory_key_padding_mask=, tgt_is_causal=, memory_is_causal=}).
-- Shapes: tgt [L, N, E], memory [S, N, E] → [L, N, E]
--   local net = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2)
--   print(table.concat(net(T.ones(3, 1, 8), T.ones(5, 1, 8)):shape(), " "))  --> 3 1 8

--- nn.TransformerEncoder(…) → module
-- num_layers copies of a layer, then an optional norm. Called as net(src, {mask=, src_key_padding_mask=, is_causal=,
-- cache=}); cache: a table, in which each layer has one of its own.
-- Shapes: [L, N, E] → the same
--   print(table.concat(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)(T.ones(5, 1, 8)):shape(), " "))
--   --> 5 1 8
for name, Layer in pairs { TransformerEncoder = Encoder, TransformerDecoder = Decoder } do
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "layer", "any" }, { "num_layers", "count" },
    { "norm", "any", optional = true } })
  function C:init(...)
    local a = read(spec, ...)
    if a.norm ~= nil and not base.is_module(a.norm) then
      fail("nn.%s: norm must be a module, got %s", name, base.no_module(a.norm))
    end
    if (getmetatable(a.layer) or {}).__class ~= Layer then
      fail("nn.%s: the first argument must be a nn.%sLayer", name, name)
    end
    local list = {}
    for i = 1, a.num_layers do list[i] = a.layer:clone() end -- dtype, device, mode, parts: whatever it has become
    self.layers = ModuleList(list)
    if a.norm then self.norm = a.norm end
  end
  function C:forward(x, opts, ...)
    if name == "TransformerEncoder" and opts ~= nil then -- the stack's mask is src_mask of its layers
      if type(opts) == "userdata" then opts = { mask = opts } end
      if type(opts) == "table" and opts.mask ~= nil then
        local own = {}
        for key, v in pairs(opts) do own[key == "mask" and "src_mask" or key] = v end
        opts = own
      end
    end
    local caches, made, own = type(opts) == "table" and opts.cache, {}, opts
    for i, layer in ipairs(self.layers) do
      if caches then -- in a table of its own each, which counts once all layers have been called
        own = {}
        for key, v in pairs(opts) do own[key] = v end
        made[i] = { k = caches[i] and caches[i].k, v = caches[i] and caches[i].v }
        own.cache = made[i]
      end
      x = layer(x, own, ...)
    end
    for i = 1, #made do caches[i] = made[i] end
    return self.norm and self.norm(x) or x
  end
  out[name] = C
end

return out
