-- SPDX-License-Identifier: MIT
--- The decoder that Llama and its relatives are: an embedding, layers of self-attention and feed-forward with norms
-- before them, a last norm, and heads on top. What differs is a table d of settings; see `Decoder:init`.
-- @module perilune.models.decoder
local T = require "perilune"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local chunked = require "perilune.nn.functional.linear_cross_entropy"
local attention = require "perilune.nn.grouped_attention"
local module = require "perilune.nn.module"
local options = require "perilune.options"
local step = require "perilune.models.step"

local Dropout = require("perilune.nn.dropout").Dropout
local Embedding = require("perilune.nn.embedding").Embedding
local caches = require "perilune.nn.cache"
local Linear = require("perilune.nn.linear").Linear
local ModuleList = require("perilune.nn.container").ModuleList
local Rotary = require("perilune.nn.rotary").RotaryEmbedding
local KVCache, cache_of, read_by = caches.KVCache, caches.cache_of, caches.read_by
local fail, describe = options.fail, options.describe

local M = {}

-- ---- parts -------------------------------------------------------------------------------------------------

-- Two layers with an activation between them, under the names that files have for them.
local MLP = module.class "MLP"
function MLP:init(width, hidden, act, up, down, make)
  make = make or Linear
  self[up], self[down] = make(width, hidden), make(hidden, width)
  rawset(self, "_act", act)
  rawset(self, "_up", up)
  rawset(self, "_down", down)
end
function MLP:forward(x) return self[self._down](self._act(self[self._up](x))) end
M.MLP = MLP

-- ---- one layer ---------------------------------------------------------------------------------------------

-- Norm and attention, norm and feed-forward, each added to x; `post`: a norm after both as well; `parallel`: both
-- read x, or one norm of it where the second has no name.
local Layer = module.class "DecoderLayer"

function Layer:init(d, i)
  local n = d.names
  self[n.attention] = d.attention(i)
  self[n.mlp] = d.mlp(i)
  self[n.attention_norm] = d.norm(d.width)
  if n.mlp_norm then self[n.mlp_norm] = d.norm(d.width) end
  if n.attention_post then self[n.attention_post], self[n.mlp_post] = d.norm(d.width), d.norm(d.width) end
  rawset(self, "_n", n)
  self.parallel, self.drop = d.parallel or false, d.dropout or 0
end

-- places: of how many the feed-forward layer keeps something at a time; nil: of all.
function Layer:forward(x, how, places)
  local n, p = self._n, self.training and self.drop or 0
  local function dropped(y) return p > 0 and T.dropout(y, p) or y end
  local function attend(rows)
    local seen = self[n.attention_norm](rows)
    local y = self[n.attention](seen, how)
    if n.attention_post then y = self[n.attention_post](y) end
    return rows + dropped(y), seen
  end
  if self.parallel then
    local y, seen = attend(x)
    return y + dropped((self[n.mlp](n.mlp_norm and self[n.mlp_norm](x) or seen)))
  end
  -- where memory is short its values are not there while the layers behind have their gradients taken
  x = places and T.checkpoint(function(rows) return (attend(rows)) end, x) or (attend(x))
  local function feed(rows)
    local z = (self[n.mlp](self[n.mlp_norm](rows)))
    return n.mlp_post and self[n.mlp_post](z) or z
  end
  local all = places and x:numel() // x:size(-1)
  if not all or all <= places then return x + dropped(feed(x)) end
  local parts = x:reshape(all, x:size(-1)):split(places, 1) -- every place by itself: some at a time
  for i, rows in ipairs(parts) do parts[i] = T.checkpoint(feed, rows) end
  return x + dropped(T.cat(parts, 1):view(x:shape()))
end

-- What layers of a network keep for backward may be so much of its weights (in blocks, of adapted ones: few bytes).
local SHARE = 20
-- Tensors of a feed-forward layer's inner width that it and its gradient have at a time; places that are worth a
-- product of their own.
local WIDE, FEW, FEW_ON_GPU = 8, 64, 512

-- How many layers keep one input and, where feed-forward layers are to be split, at how many places: as few layers as
-- keep little, or else so many that groups and the layers of one group keep least. set: what is given of both.
local function chosen(layers, mlp, x, set)
  local bytes, inner = 0, x:size(-1)
  for _, list in ipairs { layers:parameters(), layers:buffers() } do
    for _, t in ipairs(list) do bytes = bytes + t:numel() * t:element_size() end
  end
  for _, m in ipairs(layers[1][mlp]:modules()) do
    if math.type(m.out_features) == "integer" then inner = math.max(inner, m.out_features) end
  end
  local room, n, one, all = bytes // SHARE, #layers, x:numel() * x:element_size(), x:numel() // x:size(-1)
  local few, fits = x:is_cuda() and FEW_ON_GPU or FEW, room // (WIDE * inner * x:element_size())
  local places = set.places or fits < all and math.max(fits // few, 1) * few or nil
  local each = places and places < all and 2 or 1 -- inputs that a layer keeps of its own: of both its parts
  local function kept(every) return (-(-n // every) + each * every) * one end
  local every, best = 1, 1
  while kept(every) > room and every < n do
    every = every + 1
    if kept(every) < kept(best) then best = every end
  end
  return { every = set.every or kept(every) <= room and every or best, places = places }
end

-- Several layers; each is computed again in backward, as all of them are. One that splits its places has all that it
-- keeps inside of checkpoints of its own: it need not be computed as a whole once more for those.
local function run_group(layers, x, hows, places)
  local splits = places and x:numel() // x:size(-1) > places
  for i, layer in ipairs(layers) do
    local parts = splits and not layer.parallel
    x = parts and layer(x, hows[i], places) or T.checkpoint(layer, x, hows[i], places)
  end
  return x
end

-- ---- the stack ---------------------------------------------------------------------------------------------

local Decoder = module.class("Decoder", base.Pretrained)
Decoder.can_checkpoint = true

--- d: names of the children; vocab, width, layers; norm(width), attention(i), mlp(i) make the parts of layer i (from
-- 1); windows: how far each layer sees, or false; ropes: settings of rotary embeddings, rope_of(i): which of them
-- layer i has; places: rows of a learned table of places; scale: of embeddings; padding: the id whose row gets no
-- gradient; dropout, embed_dropout, parallel. headed: a head on top reads the options labels and last.
function Decoder:init(d, headed)
  local n = d.names
  self[n.embed] = Embedding(d.vocab, d.width, { index_base = 0, padding_idx = d.padding })
  if d.places then self[n.places] = Embedding(d.places, d.width, { index_base = 0 }) end
  local list = {}
  for i = 1, d.layers do list[i] = Layer(d, i) end
  self[n.layers] = ModuleList(list)
  self[n.norm] = d.norm(d.width)
  for i, s in ipairs(d.ropes or {}) do self["rotary" .. i] = Rotary(s) end
  self.drop = Dropout(d.embed_dropout or 0)
  rawset(self, "_d", { names = n, headed = headed, vocab = d.vocab, width = d.width, windows = d.windows or {},
    rope_of = d.rope_of, ropes = #(d.ropes or {}), scale = d.scale, places = d.places, who = d.who })
end

-- Places of the new tokens, i64 [B or 1, L], from 0: those of the real tokens so far.
local function positions(who, o, b, l, past, padding, device)
  local given = o.position_ids
  if given ~= nil then
    if not T.is_tensor(given) or given:is_floating_point() or given:dim() ~= 2 or given:size(2) ~= l
      or given:size(1) ~= 1 and given:size(1) ~= b then
      fail("%s: position_ids must be integers [%d, %d], got %s", who, b, l, describe(given))
    end
    return given
  end
  if padding then
    local at = padding:ne(0):long():cumsum(2) - 1
    return at:clamp { min = 0 }:narrow(2, past + 1, l)
  end
  return T.arange(past, past + l - 1, { device = device }):unsqueeze(1)
end

--- How a text of n places is turned (nn.RotaryEmbedding:stretch), by rotary embedding; nil where no length matters.
function Decoder:stretch(n)
  local out
  for i = 1, self._d.ropes do
    local v = self["rotary" .. i]:stretch(n)
    if v ~= nil then
      out = out or {}
      out[i] = v
    end
  end
  return out
end

local function as_stretch(a, b)
  for i, v in pairs(b or {}) do if not a or a[i] ~= v then return false end end
  return true
end

-- Keys in a cache stay as they were turned. Angles that grow with the text (dynamic) are those of the place that each
-- key was read at; those of the two lists of longrope do not go together.
local function check_turned(self, cache, past)
  local now, had = self:stretch(0), past > 0 and cache.turned or nil
  for i in pairs(now or {}) do
    local rope = self["rotary" .. i]
    now[i] = rope._for
    if had and had[i] ~= now[i] then
      if rope.kind == "longrope" then
        fail("%s: the cache has keys that were turned for texts of %s %d places, and this text is %s; cache:reset(), "
          .. "and give all of its ids", self._d.who, had[i] and "more than" or "up to",
          rope._settings.original_max_positions, now[i] and "longer" or "shorter")
      end
      now[i] = "several"
    end
  end
  cache.turned = now
end

local call = { "attention_mask", "position_ids", "labels", "cache", "hidden_states", "inputs_embeds", "last",
  "logits" }

-- Mixtral's, of which only the outermost module has the config.
local function no_noise(self)
  if self.training and ((self.config or {}).router_jitter_noise or 0) ~= 0 then
    fail("%s: router_jitter_noise of the config asks for noise before the router in training, which is not supported; "
      .. "net.config.router_jitter_noise = 0 leaves it out", self._d.who)
  end
end

--- (ids, {attention_mask=, position_ids=, cache=, hidden_states=, inputs_embeds=}) → [B, L, width]; with options,
-- further results by name.
function Decoder:forward(tokens, opts)
  local o, d = base.options(self._d.who, opts, call), self._d
  no_noise(self)
  local n, x = d.names, o.inputs_embeds
  if not d.headed then base.unread(d.who, o, "labels", "last", "logits") end
  if x == nil then
    tokens = base.ids(d.who, tokens, d.vocab)
    x = self[n.embed](tokens)
  else
    base.embeds(d.who, tokens, x, d.width)
  end
  cache_of(d.who, o.cache)
  local b, l, device = x:size(1), x:size(2), x:device()
  local past = o.cache and #o.cache or 0
  local whole = base.whole_mask(d.who, o.attention_mask, b, l, past + l)
  local padding = not whole and base.padding(d.who, o.attention_mask, b, past + l) or nil
  local at = positions(d.who, o, b, l, past, padding, device)
  if d.scale then x = x * d.scale end
  if d.places then
    -- a trace has no values, and the memory of a cache may be longer than the text: the table itself finds the rest
    if past + l > d.places and not T.core.jit_tracing() and at:max():item() >= d.places then
      fail("%s: %d places, and the text reaches place %d", d.who, d.places, at:max():item() + 1)
    end
    x = x + self[n.places](at)
  end
  x = self.drop(x)
  local turns, masks, hidden = {}, {}, o.hidden_states and { x } or nil
  for i = 1, d.ropes do turns[i] = table.pack(self["rotary" .. i](at)) end
  if o.cache then check_turned(self, o.cache, past) end
  local again = self.training and not o.cache and self.checkpointed
  if again and again.auto and #self[n.layers] > 0 then again = chosen(self[n.layers], n.mlp, x, again) end
  local every = again and not hidden and again.every or 1
  local group, hows
  for i, layer in ipairs(self[n.layers]) do
    local window = not whole and d.windows[i] or false
    if masks[window] == nil then
      local plain = not whole and l > 1 and past == 0 and not padding and not (window and window < l)
      masks[window] = { plain = plain, mask = whole or not plain and attention.mask { length = l, past = past,
        window = window or nil, padding = padding, device = device } or nil }
    end
    local m, r = masks[window], d.ropes > 0 and (d.rope_of and d.rope_of(i) or 1)
    local how = { mask = m.mask, is_causal = m.plain, rope = r and self["rotary" .. r] or nil,
      cos = r and turns[r][1] or nil, sin = r and turns[r][2] or nil, cache = o.cache, layer = i, window = window
        or nil }
    if every > 1 then
      if not group then group, hows = {}, {} end
      group[#group + 1], hows[#hows + 1] = layer, how
      if #group == every or i == #self[n.layers] then
        x = T.checkpoint(run_group, group, x, hows, again.places)
        group = nil
      end
    else
      x = again and T.checkpoint(layer, x, how, again.places) or layer(x, how)
    end
    if hidden then hidden[i + 1] = x end
  end
  x = self[n.norm](x)
  if hidden then hidden[#hidden] = x end
  return base.results(x, { last_hidden_state = x, hidden_states = hidden, cache = o.cache }, opts)
end
M.Decoder = Decoder

-- ---- heads -------------------------------------------------------------------------------------------------

-- Logits of the next token. d.names.root, d.names.head; d.tied, d.head_bias, d.cap: logits are cap · tanh(logits /
-- cap).
local Causal = module.class("CausalLM", base.Pretrained)
function Causal:init(d)
  self[d.names.root] = Decoder(d, true)
  self[d.names.head] = Linear(d.width, d.vocab, { bias = d.head_bias or false })
  if d.tied then base.tie(self[d.names.head], self[d.names.root][d.names.embed]) end
  rawset(self, "_d", d)
end

-- The loss alone: logits of some places at a time. Labels are shifted by one.
local function loss_of(self, x, labels)
  local d, head = self._d, self[self._d.names.head]
  local l, trained = x:size(2), false
  for _, p in ipairs(head:parameters()) do trained = trained or p.requires_grad and p:size(1) == d.vocab end
  local rows, classes = x:narrow(2, 1, l - 1):reshape(-1, d.width), labels:narrow(2, 2, l - 1):reshape(-1):long()
  local chunk, o = chunked.rows_of(d.vocab, trained, x:is_cuda()), { index_base = 0, ignore_index = -100 }
  local weight, bias = chunked.plain(head)
  if weight and not d.cap then return chunked.linear(rows, weight, bias, classes, o, chunk, true) end
  local apply = chunked.head(head, rows:size(1) > chunk)
  local function logits(some)
    local y = apply(some):float()
    return d.cap and (y / d.cap):tanh() * d.cap or y
  end
  return chunked.loss(logits, rows, classes, o, chunk)
end

--- (ids, opts) → logits [B, L, vocab], output with loss where labels are given (they are shifted by one),
-- hidden_states. last: the logits of so many last places alone. logits = false, with labels: nil in the place of
-- logits, which then never stand whole (nn.F.linear_cross_entropy).
function Causal:forward(tokens, opts)
  local o, d = opts or {}, self._d
  no_noise(self)
  local x, out = self[d.names.root](tokens, o)
  if o.last ~= nil and o.labels ~= nil then fail("%s: last and labels exclude each other", d.who) end
  if o.logits ~= nil and options.kind(d.who, "logits", "bool", o.logits) == false and o.labels == nil then
    fail("%s: logits = false leaves the loss alone, which wants labels", d.who)
  end
  local logits
  if o.logits ~= false then
    logits = self[d.names.head](base.last(d.who, x, o.last))
    if d.cap then logits = (logits / d.cap):tanh() * d.cap end
  end
  if o.labels ~= nil then
    local l = x:size(2)
    if (self.config or {}).output_router_logits then -- transformers adds the router's share to the loss then
      fail("%s: output_router_logits of the config asks for a loss of the router, which is not supported; "
        .. "net.config.output_router_logits = false leaves it out", d.who)
    end
    if not T.is_tensor(o.labels) or o.labels:dim() ~= 2 or o.labels:size(2) ~= l then
      fail("%s: labels must be integers %s, as ids, got %s", d.who, describe(tokens), describe(o.labels))
    end
    base.from_zero(d.who, o.labels)
    if logits then
      out.loss = base.cross_entropy(d.who, logits:narrow(2, 1, l - 1), o.labels:narrow(2, 2, l - 1))
    elseif o.labels:is_floating_point() or o.labels:size(1) ~= x:size(1) then
      fail("%s: labels must be integers [%d, %d], got %s", d.who, x:size(1), l, describe(o.labels))
    else
      out.loss = loss_of(self, x, o.labels)
    end
  end
  out.logits, out.last_hidden_state = logits, nil
  return base.results(logits, out, opts)
end

-- What making text needs of a decoder: its cache and the places of padding. first: the ids that come first.
local State = {}
State.__index = State

-- Where angles depend on the length: the rows with all that comes before them where the cache is of no use any more;
-- nil and logits where guesses are read one by one, as each has angles of its own.
local function stretched(self, rows, all)
  local root, has, new = self.net[self.net._d.names.root], #self.text[1], #rows[1]
  local head = new - (all or 1) + 1
  if head < new and not as_stretch(root:stretch(has + head), root:stretch(has + new)) then
    local list = { self:advance({ { table.unpack(rows[1], 1, head) } }, 1) }
    for i = head + 1, new do list[#list + 1] = self:advance({ { rows[1][i] } }, 1) end
    return nil, T.cat(list, 2)
  end
  for r, row in ipairs(rows) do table.move(row, 1, #row, has + 1, self.text[r]) end
  local kept = self.cache.turned
  for i, v in pairs(root:stretch(has + new)) do
    if type(v) == "boolean" and #self.cache > 0 and kept and kept[i] ~= v then
      self.cache:reset()
      return self.text
    end
  end
  return rows
end

--- Rows of ids of one length → logits [B, V] of what comes next; all: of the last `all` places, [B, all, V].
function State:advance(rows, all)
  if self.text then
    local made
    rows, made = stretched(self, rows, all)
    if made then return made end
  end
  if not all and not self.mask and #rows[1] == 1 and #self.cache > 0 then
    local logits = step.advance(self, rows)
    if logits then return logits end
  end
  local ids = T.tensor(rows, { dtype = "i64", device = self.device })
  local mask = self.mask
  if mask and #self.cache > 0 then
    mask = T.cat({ mask, T.ones({ ids:size(1), ids:size(2) }, { dtype = "i64", device = self.device }) }, 2)
    self.mask = mask
  end
  local logits = self.net(ids, { cache = self.cache, attention_mask = mask, last = all or 1 })
  return all and logits or logits:squeeze(2)
end
function State:reorder(rows)
  local at = T.tensor(rows, { dtype = "i64", device = self.device })
  self.cache:reorder(at)
  if self.text then
    local old = self.text
    self.text = {}
    for i, r in ipairs(rows) do self.text[i] = { table.unpack(old[r]) } end
  end
  if self.mask then self.mask = self.mask:index_select(1, at) end
end
function State:crop(n)
  self.cache:crop(n)
  for _, row in ipairs(self.text or {}) do for i = #row, n + 1, -1 do row[i] = nil end end
end
function State:length() return #self.cache end

--- Whether texts of several lengths that are read together would change one another, as angles depend on the length.
function Causal:apart() return self[self._d.names.root]:stretch(0) ~= nil end

-- Begins with prompts of several lengths: padded on the left. A cache that is given keeps what it has of the prompt.
function Causal:begin(rows, o)
  local most = 0
  for _, row in ipairs(rows) do most = math.max(most, #row) end
  local first, mask, padded = {}, {}, false
  for r, row in ipairs(rows) do
    first[r], mask[r] = {}, {}
    for i = 1, most - #row do first[r][i], mask[r][i], padded = o.pad or 0, 0, true end
    for _, id in ipairs(row) do table.insert(first[r], id) table.insert(mask[r], 1) end
  end
  local device = self[self._d.names.root][self._d.names.embed].weight:device()
  local cache = o.cache
  if cache then
    if #rows > 1 then fail("generate: cache goes with one prompt") end
    local wanted = self[self._d.names.root]:stretch(#rows[1])
    if not as_stretch(cache.turned, wanted) then cache:reset() end
    read_by(cache, self)
    local old, n = cache.ids or {}, 0
    while n < #rows[1] - 1 and n < #cache and old[n + 1] == rows[1][n + 1] do n = n + 1 end
    cache:crop(n)
    first = { { table.unpack(rows[1], n + 1) } }
  end
  local text
  if self:apart() then -- what the cache has
    text = {}
    for r, row in ipairs(rows) do text[r] = { table.unpack(row, 1, cache and #cache or 0) } end
  end
  return setmetatable({ net = self, cache = cache or KVCache(), device = device, first = first, text = text,
    mask = padded and T.tensor(mask, { dtype = "i64", device = device }) or nil }, State)
end

-- Logits of classes, read at the last token that is no padding.
local Sequence = module.class("SequenceClassifier", base.Pretrained)
function Sequence:init(d)
  self[d.names.root] = Decoder(d, true)
  self.score = Linear(d.width, d.num_labels, { bias = false })
  rawset(self, "_d", d)
end
function Sequence:forward(tokens, opts)
  no_noise(self)
  local o, d = opts or {}, self._d
  base.unread(d.who, o, "last", "logits")
  local x, out = self[d.names.root](tokens, o)
  local logits, b, l = self.score(x), x:size(1), x:size(2)
  local last = T.full({ b }, l, { dtype = "i64", device = x:device() })
  if d.pad and T.is_tensor(tokens) then
    local at = base.ids(d.who, tokens, d.vocab):ne(d.pad):long() * T.arange(l, { device = x:device() }):unsqueeze(1)
    last = (at:max(2)):clamp { min = 1 }
  elseif b > 1 then
    fail("%s: a batch needs pad_token_id in the config, to know where each text ends", d.who)
  end
  logits = logits:gather(2, last:reshape(b, 1, 1):expand(b, 1, logits:size(3))):squeeze(2)
  if o.labels ~= nil then out.loss = base.classification_loss(d.who, logits, o.labels, self.config) end
  out.logits, out.last_hidden_state = logits, nil
  return base.results(logits, out, opts)
end

-- Classes of tokens.
local Token = module.class("TokenClassifier", base.Pretrained)
function Token:init(d)
  self[d.names.root] = Decoder(d, true)
  self.dropout = Dropout(d.head_dropout or 0.1)
  self[d.names.token] = Linear(d.width, d.num_labels)
  rawset(self, "_d", d)
end
function Token:forward(tokens, opts)
  no_noise(self)
  local o, d = opts or {}, self._d
  base.unread(d.who, o, "last", "logits")
  local x, out = self[d.names.root](tokens, base.without(o, "labels"))
  local logits = self[d.names.token](self.dropout(x))
  if o.labels ~= nil then out.loss = base.cross_entropy(d.who, logits, o.labels) end
  out.logits, out.last_hidden_state = logits, nil
  return base.results(logits, out, opts)
end

-- A model without a head is the stack alone, its parameters without a prefix.
local heads = { ForCausalLM = Causal, ForSequenceClassification = Sequence, ForTokenClassification = Token,
  Model = Decoder }

--- The classes of a family: Name, "Llama", gives LlamaModel, LlamaForCausalLM, LlamaForSequenceClassification,
-- LlamaForTokenClassification; class_names has those that are called otherwise.
-- settings(c, who) → d.
function M.family(a)
  a.classes = {}
  local check, heeds = a.check, false
  for _, field in ipairs(a.fields) do heeds = heeds or field[1] == "layer_types" end
  function a.check(path, given, c)
    config.only(path, given, { is_causal = { true } })
    if not heeds then config.no_layer_types(path, given, c) end
    if check then check(path, given, c) end
  end
  for suffix, Head in pairs(heads) do
    local name = a.class_names and a.class_names[suffix] or a.name .. suffix
    local C = module.class(name, Head)
    a.classes[name] = function(c)
      local d = a.settings(c, name)
      d.who, d.pad, d.num_labels = name, c.pad_token_id, c.num_labels
      return base.initialize(C(d), c.initializer_range)
    end
  end
  a.default = a.class_names and a.class_names.ForCausalLM or a.name .. "ForCausalLM"
  return a
end

--- The names of the children in Llama's files.
function M.names(more)
  local n = { root = "model", embed = "embed_tokens", layers = "layers", norm = "norm", head = "lm_head",
    token = "score",
    attention = "self_attn", mlp = "mlp", attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm" }
  for key, v in pairs(more or {}) do n[key] = v or nil end
  return n
end

return M
