-- SPDX-License-Identifier: MIT
--- ResNet (He et al. 2015), basic and bottleneck. @module perilune.models.resnet
local base = require "perilune.models.base"
local config = require "perilune.models.config"
local encoder = require "perilune.models.encoder"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"

local fields = { { "num_channels", "count", 3 }, { "embedding_size", "count", 64 },
  { "hidden_sizes", "ints", { 256, 512, 1024, 2048 } }, { "depths", "ints", { 3, 4, 6, 3 } },
  { "layer_type", { "basic", "bottleneck" }, "bottleneck" }, { "hidden_act", "string", "relu" },
  { "downsample_in_first_stage", "bool", false }, { "downsample_in_bottleneck", "bool", false } }

-- Convolution, norm, activation if there is one.
local ConvLayer = module.class "ResNetConvLayer"
function ConvLayer:init(from, to, kernel, stride, act)
  self.convolution = nn.Conv2d(from, to, kernel, { stride = stride, padding = kernel // 2, bias = false })
  self.normalization = nn.BatchNorm2d(to)
  rawset(self, "_act", act or false)
end
function ConvLayer:forward(x)
  local y = self.normalization(self.convolution(x))
  return self._act and self._act(y) or y
end

-- hidden_act is what comes behind the sum; within a layer transformers has relu, whatever hidden_act says.
local relu = nn.F.relu
local Layer = module.class "ResNetLayer"
function Layer:init(c, from, to, stride)
  if from ~= to or stride ~= 1 then self.shortcut = ConvLayer(from, to, 1, stride) end
  if c.layer_type == "basic" then
    self.layer = nn.Sequential(ConvLayer(from, to, 3, stride, relu), ConvLayer(to, to, 3, 1))
  else
    local narrow, first = to // 4, c.downsample_in_bottleneck
    self.layer = nn.Sequential(ConvLayer(from, narrow, 1, first and stride or 1, relu),
      ConvLayer(narrow, narrow, 3, first and 1 or stride, relu), ConvLayer(narrow, to, 1, 1))
  end
  rawset(self, "_act", c.act)
end
function Layer:forward(x)
  return self._act(self.layer(x) + (self.shortcut and self.shortcut(x) or x))
end

local Stage = module.class "ResNetStage"
function Stage:init(c, from, to, stride, depth)
  local list = {}
  for i = 1, depth do list[i] = Layer(c, i == 1 and from or to, to, i == 1 and stride or 1) end
  self.layers = nn.Sequential(list)
end
function Stage:forward(x) return self.layers(x) end

local Model = module.class("ResNetModel", base.Pretrained)
function Model:init(c)
  self.embedder = encoder.group { "embedder", ConvLayer(c.num_channels, c.embedding_size, 7, 2, c.act) }
  local list, from = {}, c.embedding_size
  for i, to in ipairs(c.hidden_sizes) do
    list[i] = Stage(c, from, to, (i > 1 or c.downsample_in_first_stage) and 2 or 1, c.depths[i])
    from = to
  end
  self.encoder = encoder.group { "stages", nn.ModuleList(list) }
  self.channels = c.num_channels
  rawset(self, "_who", c.who)
end
function Model:forward(x, opts)
  local o = base.options(self._who, opts, { "hidden_states" })
  base.pixels(self._who, x, { self.channels })
  local first = nn.F.max_pool2d(self.embedder.embedder(x), 3, { stride = 2, padding = 1 })
  local y, hidden = encoder.run(self.encoder.stages, first, nil, o.hidden_states)
  local pooled = y:mean({ 3, 4 }, { keepdim = true })
  return base.results(y, { last_hidden_state = y, pooler_output = pooled, hidden_states = hidden }, opts)
end

local classes = {
  ResNetModel = Model,
  ResNetForImageClassification = encoder.text_head("ResNetForImageClassification", "resnet", Model, function(self, c)
    self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(c.hidden_sizes[#c.hidden_sizes], c.num_labels))
  end, function(self, _, out) return self.classifier(out.pooler_output) end),
}

--- T.models.ResNet{…} → module
-- ResNet, by default with a head for classes. layer_type: "basic" or "bottleneck". architecture:
-- ResNetForImageClassification or ResNetModel. net(pixels, {labels=, hidden_states=}) → logits [B, num_labels], with
-- options results by name; pixels [B, C, H, W], classes from 0.
--   local net = T.models.ResNet { embedding_size = 4, hidden_sizes = { 4, 8 }, depths = { 1, 1 }, layer_type = "basic",
--     num_labels = 3 }
--   print(table.concat((net:eval()(T.zeros(2, 3, 32, 32))):shape(), " "))  --> 2 3
return encoder.family({ model_type = "resnet", prefix = "resnet", default = "ResNetForImageClassification",
  fields = fields }, classes, function(c, who)
    c.hidden_sizes, c.depths = base.list(c.hidden_sizes), base.list(c.depths)
    if #c.hidden_sizes ~= #c.depths then
      config.fault("%s: hidden_sizes has %d entries and depths %d; one for each stage", who, #c.hidden_sizes, #c.depths)
    end
    c.act, c.who = config.activation(who, c.hidden_act), who
    return c
  end)
