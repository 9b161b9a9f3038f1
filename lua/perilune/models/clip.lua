-- SPDX-License-Identifier: MIT
--- CLIP (Radford et al. 2021): texts and pictures in one space. @module perilune.models.clip
local T = require "perilune"
local attention = require "perilune.nn.grouped_attention"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local decoder = require "perilune.models.decoder"
local encoder = require "perilune.models.encoder"
local json = require "perilune.io.json"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

local shared = { { "hidden_act", "string", "quick_gelu" }, { "layer_norm_eps", "nonnegative", 1e-5 },
  { "attention_dropout", "probability", 0.0 }, { "num_hidden_layers", "count", 12 }, { "initializer_range",
    "nonnegative", 0.02 } }
local text_fields = config.fields(shared, { { "vocab_size", "count", 49408 }, { "hidden_size", "count", 512 },
  { "intermediate_size", "count", 2048 }, { "num_attention_heads", "count", 8 },
  { "max_position_embeddings", "count", 77 }, { "eos_token_id", "int", 49407 }, { "pad_token_id", "int", 1 } })
local vision_fields = config.fields(shared, { { "hidden_size", "count", 768 }, { "intermediate_size", "count", 3072 },
  { "num_attention_heads", "count", 12 }, { "num_channels", "count", 3 }, { "image_size", "ints", 224 },
  { "patch_size", "ints", 32 } })
local fields = { { "text_config", "any" }, { "vision_config", "any" }, { "text_config_dict", "any" },
  { "vision_config_dict", "any" }, { "projection_dim", "count", 512 }, { "logit_scale_init_value", "number", 2.6592 } }

local Layer = module.class "CLIPLayer"
function Layer:init(c)
  self.self_attn = nn.GroupedQueryAttention(c.hidden_size, c.num_attention_heads, { bias = true,
    dropout = c.attention_dropout, names = { out = "out_proj" } })
  self.layer_norm1 = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
  self.mlp = decoder.MLP(c.hidden_size, c.intermediate_size, c.act, "fc1", "fc2")
  self.layer_norm2 = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
end
function Layer:forward(x, how)
  x = x + self.self_attn(self.layer_norm1(x), how)
  return x + self.mlp(self.layer_norm2(x))
end

local function layers(c)
  local list = {}
  for i = 1, c.num_hidden_layers do list[i] = Layer(c) end
  return encoder.group { "layers", nn.ModuleList(list) }
end

-- A text at its end token: the first one, or, where the config says 2, the largest id.
local Text = module.class "CLIPText"
function Text:init(c)
  self.embeddings = encoder.group(
    { "token_embedding", nn.Embedding(c.vocab_size, c.hidden_size, { index_base = 0 }) },
    { "position_embedding", nn.Embedding(c.max_position_embeddings, c.hidden_size, { index_base = 0 }) })
  self.encoder = layers(c)
  self.final_layer_norm = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
  self.eos = c.eos_token_id
end
function Text:forward(tokens, o, who)
  local e = self.embeddings
  local ids = base.ids(who, tokens, e.token_embedding.num_embeddings)
  local b, l, most = ids:size(1), ids:size(2), e.position_embedding.num_embeddings
  if l > most then fail("%s: %d places, and a text has %d tokens", who, most, l) end
  local x = e.token_embedding(ids)
    + e.position_embedding(T.arange(0, l - 1, { device = ids:device() }):unsqueeze(1))
  local whole = base.whole_mask(who, o.attention_mask, b, l, l)
  local padding = not whole and base.padding(who, o.attention_mask, b, l) or nil
  local mask = whole or padding and attention.mask { length = l, padding = padding, device = ids:device() } or nil
  local hidden
  x, hidden = encoder.run(self.encoder.layers, x, { mask = mask, is_causal = not mask }, o.hidden_states)
  x = self.final_layer_norm(x)
  local at = (self.eos == 2 and ids or ids:eq(self.eos):long()):argmax(-1)
  return x:gather(2, at:reshape(b, 1, 1):expand(b, 1, x:size(3))):squeeze(2), x, hidden
end

-- A picture at the place of its class.
local Vision = module.class "CLIPVision"
function Vision:init(c)
  local size, patch = base.pair(c.image_size), base.pair(c.patch_size)
  local n = (size[1] // patch[1]) * (size[2] // patch[2])
  self.embeddings = encoder.group({ "patch_embedding", nn.Conv2d(c.num_channels, c.hidden_size, patch,
    { stride = patch, bias = false }) },
    { "position_embedding", nn.Embedding(n + 1, c.hidden_size, { index_base = 0 }) })
  self.embeddings.class_embedding = nn.Parameter(nn.init.normal_(T.empty { c.hidden_size }))
  self.pre_layrnorm = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
  self.encoder = layers(c)
  self.post_layernorm = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
  rawset(self, "_size", { c.num_channels, size[1], size[2] })
end
function Vision:forward(pixels, o, who)
  base.pixels(who, pixels, self._size)
  local e = self.embeddings
  local patches = e.patch_embedding(pixels):flatten(3):transpose(2, 3)
  local first = e.class_embedding:expand(pixels:size(1), 1, patches:size(3))
  local first_states = self.pre_layrnorm(T.cat({ first, patches }, 2) + e.position_embedding.weight)
  local x, hidden = encoder.run(self.encoder.layers, first_states, nil, o.hidden_states)
  return self.post_layernorm(x:select(2, 1)), x, hidden
end

local function unit(x) return x / x:square():sum(-1, { keepdim = true }):sqrt() end

local Model = module.class("CLIPModel", base.Pretrained)
function Model:init(c)
  self.logit_scale = nn.Parameter(T.tensor(c.logit_scale_init_value))
  self.text_model, self.vision_model = Text(c.text), Vision(c.vision)
  self.visual_projection = nn.Linear(c.vision.hidden_size, c.projection_dim, { bias = false })
  self.text_projection = nn.Linear(c.text.hidden_size, c.projection_dim, { bias = false })
end

--- Texts [B, L] as vectors [B, projection_dim], not yet of length 1.
function Model:text_features(ids, opts)
  local o = base.options("text_features", opts, { "attention_mask" })
  return self.text_projection((self.text_model(ids, o, "CLIPModel")))
end

--- Pictures [B, C, H, W] as vectors [B, projection_dim], not yet of length 1.
function Model:image_features(pixels)
  return self.visual_projection((self.vision_model(pixels, {}, "CLIPModel")))
end

--- (ids, {pixel_values=, attention_mask=, loss=}) → logits per image [images, texts]; by name logits_per_text,
-- text_embeds, image_embeds, loss (text i belongs to image i).
function Model:forward(tokens, opts)
  local o = base.options("CLIPModel", opts, { "pixel_values", "attention_mask", "loss" })
  if not T.is_tensor(o.pixel_values) then
    fail("CLIPModel: pixel_values [B, C, H, W] are missing, got %s; texts alone: net:text_features(ids)",
      describe(o.pixel_values))
  end
  local text = unit(self:text_features(tokens, { attention_mask = o.attention_mask }))
  local image = unit(self:image_features(o.pixel_values))
  local per_text = text:matmul(image:t()) * self.logit_scale:exp()
  local out = { logits_per_image = per_text:t(), logits_per_text = per_text, text_embeds = text, image_embeds = image }
  if o.loss then
    local own = T.arange(0, per_text:size(1) - 1, { device = per_text:device() })
    out.loss = (base.cross_entropy("CLIPModel", per_text, own) + base.cross_entropy("CLIPModel", per_text:t(), own)) / 2
  end
  return base.results(out.logits_per_image, out, opts)
end

-- One of the two alone, with its projection.
local function half(name, part, projection)
  local C = module.class(name, base.Pretrained)
  function C:init(c)
    local own = c[part == "text_model" and "text" or "vision"]
    self[part] = part == "text_model" and Text(own) or Vision(own)
    if projection then self[projection] = nn.Linear(own.hidden_size, c.projection_dim, { bias = false }) end
  end
  function C:forward(input, opts)
    local o = base.options(name, opts, { "attention_mask", "hidden_states" })
    local pooled, x, hidden = self[part](input, o, name)
    local y = projection and self[projection](pooled) or x
    return base.results(y, { last_hidden_state = x, pooler_output = pooled, hidden_states = hidden,
      [part == "text_model" and "text_embeds" or "image_embeds"] = projection and y or nil }, opts)
  end
  return C
end

local classes = { CLIPModel = Model,
  CLIPTextModel = half("CLIPTextModel", "text_model"), CLIPVisionModel = half("CLIPVisionModel", "vision_model"),
  CLIPTextModelWithProjection = half("CLIPTextModelWithProjection", "text_model", "text_projection"),
  CLIPVisionModelWithProjection = half("CLIPVisionModelWithProjection", "vision_model", "visual_projection") }

-- Settings of a part: its table, and what the older table beside it says otherwise.
local function part_of(who, name, own, given, older)
  local all = {}
  for _, t in ipairs { given or {}, older or {} } do
    if type(t) ~= "table" then config.fault("%s: %s must be an object", who, name) end
    if t ~= json.null then for key, v in pairs(t) do all[key] = v end end
  end
  local c = config.read(who .. ": " .. name, own, all)
  c.act = config.activation(who, c.hidden_act)
  return c
end

--- T.models.CLIP{…} → module
-- CLIP. Settings: text_config and vision_config, tables, and projection_dim. architecture: CLIPModel, CLIPTextModel,
-- CLIPVisionModel, CLIPTextModelWithProjection, CLIPVisionModelWithProjection. net(ids, {pixel_values=,
-- attention_mask=, loss=}) → logits [images, texts], with results by name; net:text_features(ids),
-- net:image_features(pixels).
--   local net = T.models.CLIP { projection_dim = 4, text_config = { vocab_size = 8, hidden_size = 8,
--     intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2, eos_token_id = 7 }, vision_config = {
--     hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2, image_size = 8,
--     patch_size = 4 } }
--   local texts = T.tensor({ { 1, 5, 7 }, { 1, 2, 7 } }, { dtype = "i64" })
--   print(table.concat((net(texts, { pixel_values = T.zeros(3, 3, 8, 8) })):shape(), " "))  --> 3 2
return encoder.family({ model_type = "clip", prefix = { "text_model", "vision_model" }, default = "CLIPModel",
  fields = fields,
  ignore = { "position_ids$", "^text_model%.", "^text_projection%.", "^vision_model%.", "^visual_", "^logit_scale$" },
  nested = { text_config = text_fields, text_config_dict = text_fields, vision_config = vision_fields,
    vision_config_dict = vision_fields }, parts = { clip_text_model = "text_config",
    clip_vision_model = "vision_config" } }, classes,
  function(c, who)
    c.text = part_of(who, "text_config", text_fields, c.text_config, c.text_config_dict)
    c.vision = part_of(who, "vision_config", vision_fields, c.vision_config, c.vision_config_dict)
    c.who = who
    return c
  end)
