-- SPDX-License-Identifier: MIT
--- ViT (Dosovitskiy et al. 2020): a picture as a row of patches, read by a transformer with norms before its parts.
-- @module perilune.models.vit
local T = require "perilune"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"

local fields = { { "hidden_size", "count", 768 }, { "num_hidden_layers", "count", 12 },
  { "num_attention_heads", "count", 12 }, { "intermediate_size", "count", 3072 }, { "hidden_act", "string", "gelu" },
  { "hidden_dropout_prob", "probability", 0.0 }, { "attention_probs_dropout_prob", "probability", 0.0 },
  { "layer_norm_eps", "nonnegative", 1e-12 }, { "image_size", "ints", 224 }, { "patch_size", "ints", 16 },
  { "num_channels", "count", 3 }, { "qkv_bias", "bool", true }, { "pooler_output_size", "count" },
  { "pooler_act", "string", "tanh" } }

local Embeddings = module.class "ViTEmbeddings"
function Embeddings:init(c)
  local size, patch = base.pair(c.image_size), base.pair(c.patch_size)
  local n = (size[1] // patch[1]) * (size[2] // patch[2])
  self.cls_token = nn.Parameter(T.zeros { 1, 1, c.hidden_size })
  self.position_embeddings = nn.Parameter(nn.init.zeros_(T.empty { 1, n + 1, c.hidden_size }))
  self.patch_embeddings = encoder.group { "projection", nn.Conv2d(c.num_channels, c.hidden_size, patch,
    { stride = patch }) }
  self.dropout = nn.Dropout(c.hidden_dropout_prob)
  rawset(self, "_size", { c.num_channels, size[1], size[2] })
end
function Embeddings:forward(x, who)
  base.pixels(who, x, self._size)
  local patches = self.patch_embeddings.projection(x):flatten(3):transpose(2, 3)
  local first = self.cls_token:expand(x:size(1), 1, patches:size(3))
  return self.dropout(T.cat({ first, patches }, 2) + self.position_embeddings)
end

local Layer = module.class "ViTLayer"
function Layer:init(c)
  local width = c.hidden_size
  self.attention = encoder.group({ "attention", nn.GroupedQueryAttention(width, c.num_attention_heads,
    { bias = c.qkv_bias, out = false, dropout = c.attention_probs_dropout_prob,
      names = { q = "query", k = "key", v = "value" } }) },
    { "output", encoder.group { "dense", nn.Linear(width, width) } })
  self.intermediate = encoder.group { "dense", nn.Linear(width, c.intermediate_size) }
  self.output = encoder.group { "dense", nn.Linear(c.intermediate_size, width) }
  self.layernorm_before = nn.LayerNorm(width, { eps = c.layer_norm_eps })
  self.layernorm_after = nn.LayerNorm(width, { eps = c.layer_norm_eps })
  self.drop = nn.Dropout(c.hidden_dropout_prob)
  rawset(self, "_act", c.act)
end
function Layer:forward(x)
  local a = self.attention
  x = x + self.drop(a.output.dense(a.attention(self.layernorm_before(x))))
  return x + self.drop(self.output.dense(self._act(self.intermediate.dense(self.layernorm_after(x)))))
end

local function model(pooled)
  local C = module.class("ViTModel", base.Pretrained)
  function C:init(c)
    self.embeddings = Embeddings(c)
    local list = {}
    for i = 1, c.num_hidden_layers do list[i] = Layer(c) end
    self.encoder = encoder.group { "layer", nn.ModuleList(list) }
    self.layernorm = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
    if pooled then
      self.pooler = encoder.group { "dense", nn.Linear(c.hidden_size, c.pooler_output_size or c.hidden_size) }
    end
    rawset(self, "_who", c.who)
    rawset(self, "_pool", config.activation(c.who, c.pooler_act))
  end
  function C:forward(x, opts)
    local o = base.options(self._who, opts, { "hidden_states" })
    local y, hidden = encoder.run(self.encoder.layer, self.embeddings(x, self._who), nil, o.hidden_states)
    y = self.layernorm(y)
    local first = pooled and self._pool(self.pooler.dense(y:select(2, 1))) or nil
    return base.results(y, { last_hidden_state = y, pooler_output = first, hidden_states = hidden }, opts)
  end
  return C
end

local classes = {
  ViTModel = model(true),
  ViTForImageClassification = encoder.text_head("ViTForImageClassification", "vit", model(false), function(self, c)
    self.classifier = nn.Linear(c.hidden_size, c.num_labels)
  end, function(self, x) return self.classifier(x:select(2, 1)) end),
}

--- T.models.ViT{…} → module
-- ViT, by default with a head for classes. architecture: ViTForImageClassification or ViTModel. net(pixels, {labels=,
-- hidden_states=}) → logits [B, num_labels], with options results by name; pixels [B, C, H, W], classes from 0.
--   local net = T.models.ViT { image_size = 8, patch_size = 4, hidden_size = 8, intermediate_size = 8,
--     num_hidden_layers = 1, num_attention_heads = 2, num_labels = 3 }
--   print(table.concat((net(T.zeros(2, 3, 8, 8))):shape(), " "))  --> 2 3
return encoder.family({ model_type = "vit", prefix = "vit", default = "ViTForImageClassification", fields = fields,
  ignore = { "mask_token$", "pooler%." } }, classes, function(c, who)
    c.act, c.who = config.activation(who, c.hidden_act), who
    return c
  end)
