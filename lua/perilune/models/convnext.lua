-- SPDX-License-Identifier: MIT
--- ConvNeXt (Liu et al. 2022): stages of wide depthwise convolutions with the parts of a transformer around them.
-- @module perilune.models.convnext
local T = require "perilune"
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"

local fields = { { "num_channels", "count", 3 }, { "patch_size", "ints", 4 }, { "num_stages", "count" },
  { "hidden_sizes", "ints", { 96, 192, 384, 768 } }, { "depths", "ints", { 3, 3, 9, 3 } },
  { "hidden_act", "string", "gelu" }, { "layer_norm_eps", "nonnegative", 1e-12 },
  { "layer_scale_init_value", "nonnegative", 1e-6 }, { "drop_path_rate", "probability", 0.0 },
  { "image_size", "ints", 224 } }

-- A norm over channels where they come second.
local ChannelNorm = module.class("ChannelNorm", nn.LayerNorm)
function ChannelNorm:forward(x)
  return nn.LayerNorm.forward(self, x:permute { 1, 3, 4, 2 }):permute { 1, 4, 2, 3 }
end

local Layer = module.class "ConvNextLayer"
function Layer:init(c, width, drop)
  self.dwconv = nn.Conv2d(width, width, 7, { padding = 3, groups = width })
  self.layernorm = nn.LayerNorm(width, { eps = 1e-6 })
  self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
  if c.layer_scale_init_value > 0 then
    self.layer_scale_parameter = nn.Parameter(T.ones { width } * c.layer_scale_init_value)
  end
  self.drop = drop
  rawset(self, "_act", c.act)
end
function Layer:forward(x)
  local y = self.layernorm(self.dwconv(x):permute { 1, 3, 4, 2 })
  y = self.pwconv2(self._act(self.pwconv1(y)))
  if self.layer_scale_parameter then y = y * self.layer_scale_parameter end
  y = y:permute { 1, 4, 2, 3 }
  if self.training and self.drop > 0 then -- whole samples (Huang et al. 2016)
    y = y * T.dropout(T.ones({ x:size(1), 1, 1, 1 }, { dtype = x:dtype(), device = x:device() }), self.drop)
  end
  return x + y
end

local Stage = module.class "ConvNextStage"
function Stage:init(c, i, drops)
  local from, to = c.hidden_sizes[math.max(1, i - 1)], c.hidden_sizes[i]
  if i > 1 then
    self.downsampling_layer = nn.ModuleList { ChannelNorm(from, { eps = 1e-6 }), nn.Conv2d(from, to, 2, {
      stride = 2 }) }
  end
  local list = {}
  for k = 1, c.depths[i] do list[k] = Layer(c, to, drops[k]) end
  self.layers = nn.ModuleList(list)
end
function Stage:forward(x)
  for _, m in ipairs(self.downsampling_layer or {}) do x = m(x) end
  for _, m in ipairs(self.layers) do x = m(x) end
  return x
end

local Model = module.class("ConvNextModel", base.Pretrained)
function Model:init(c)
  local patch = base.pair(c.patch_size)
  self.embeddings = encoder.group({ "patch_embeddings", nn.Conv2d(c.num_channels, c.hidden_sizes[1], patch,
    { stride = patch }) }, { "layernorm", ChannelNorm(c.hidden_sizes[1], { eps = 1e-6 }) })
  local list, all, at = {}, 0, 0
  for _, n in ipairs(c.depths) do all = all + n end
  for i = 1, #c.depths do
    local drops = {}
    for k = 1, c.depths[i] do
      drops[k], at = all > 1 and c.drop_path_rate * at / (all - 1) or 0, at + 1
    end
    list[i] = Stage(c, i, drops)
  end
  self.encoder = encoder.group { "stages", nn.ModuleList(list) }
  self.layernorm = nn.LayerNorm(c.hidden_sizes[#c.hidden_sizes], { eps = c.layer_norm_eps })
  self.channels = c.num_channels
  rawset(self, "_who", c.who)
end
function Model:forward(x, opts)
  local o = base.options(self._who, opts, { "hidden_states" })
  base.pixels(self._who, x, { self.channels })
  local y, hidden = encoder.run(self.encoder.stages, self.embeddings.layernorm(self.embeddings.patch_embeddings(x)),
    nil,
    o.hidden_states)
  local pooled = self.layernorm(y:mean { 3, 4 })
  return base.results(y, { last_hidden_state = y, pooler_output = pooled, hidden_states = hidden }, opts)
end

local classes = {
  ConvNextModel = Model,
  ConvNextForImageClassification = encoder.text_head("ConvNextForImageClassification", "convnext", Model,
    function(self, c) self.classifier = nn.Linear(c.hidden_sizes[#c.hidden_sizes], c.num_labels) end,
    function(self, _, out) return self.classifier(out.pooler_output) end),
}

--- T.models.ConvNeXt{…} → module
-- ConvNeXt, by default with a head for classes. architecture: ConvNextForImageClassification or ConvNextModel.
-- net(pixels, {labels=, hidden_states=}) → logits [B, num_labels], with options results by name; pixels [B, C, H, W],
-- classes from 0.
--   local net = T.models.ConvNeXt { hidden_sizes = { 4, 8 }, depths = { 1, 1 }, num_labels = 3 }
--   print(table.concat((net(T.zeros(2, 3, 16, 16))):shape(), " "))  --> 2 3
return encoder.family({ model_type = "convnext", prefix = "convnext", default = "ConvNextForImageClassification",
  fields = fields }, classes, function(c, who)
    c.hidden_sizes, c.depths = base.list(c.hidden_sizes), base.list(c.depths)
    if #c.hidden_sizes ~= #c.depths or c.num_stages and c.num_stages ~= #c.depths then
      config.fault("%s: hidden_sizes has %d entries, depths %d%s; one for each stage", who, #c.hidden_sizes, #c.depths,
        c.num_stages and (", num_stages is %d"):format(c.num_stages) or "")
    end
    c.num_stages = #c.depths
    c.act, c.who = config.activation(who, c.hidden_act), who
    return c
  end)
