-- SPDX-License-Identifier: MIT
--- What encoders in BERT's manner share: the layer, whose norms come after, and heads. @module perilune.models.encoder
local T = require "perilune"
local base = require "perilune.models.base"
local module = require "perilune.nn.module"
local nn = require "perilune.nn"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local M = {}

-- A module that only has children.
local Group = module.class "Group"
function Group:init(children)
  for _, item in ipairs(children) do self[item[1]] = item[2] end
end
--- Children by name, in order: {name, module} each.
function M.group(...) return Group { ... } end

-- Attention and feed-forward, each added to x and normed then. c: hidden_size, heads, hidden (of the feed-forward),
-- eps, act, dropout, attention_dropout.
local Layer = module.class "EncoderLayer"
function Layer:init(c)
  local function norm() return nn.LayerNorm(c.hidden_size, { eps = c.eps }) end
  self.attention = M.group({ "self", nn.GroupedQueryAttention(c.hidden_size, c.heads, { bias = true, out = false,
    dropout = c.attention_dropout, names = { q = "query", k = "key", v = "value" } }) },
    { "output", M.group({ "dense", nn.Linear(c.hidden_size, c.hidden_size) }, { "LayerNorm", norm() }) })
  self.intermediate = M.group { "dense", nn.Linear(c.hidden_size, c.hidden) }
  self.output = M.group({ "dense", nn.Linear(c.hidden, c.hidden_size) }, { "LayerNorm", norm() })
  self.drop = nn.Dropout(c.dropout)
  rawset(self, "_act", c.act)
end
function Layer:forward(x, mask)
  local a, o = self.attention, self.output
  local y = self.drop(a.output.dense(a.self(x, { mask = mask })))
  x = a.output.LayerNorm(x + y)
  return o.LayerNorm(x + self.drop(o.dense(self._act(self.intermediate.dense(x)))))
end
M.Layer = Layer

--- Runs layers over x [B, L, width]; → the last, and all of them with x first if wanted.
function M.run(layers, x, mask, all)
  local hidden = all and { x } or nil
  for i, layer in ipairs(layers) do
    x = layer(x, mask)
    if hidden then hidden[i + 1] = x end
  end
  return x, hidden
end

--- The mask of an encoder's attention from attention_mask [B, L], or as it is given, [B, 1, L, L].
function M.mask(who, given, b, l)
  local whole = base.whole_mask(who, given, b, l, l)
  if whole then return whole end
  local padding = base.padding(who, given, b, l)
  return padding and padding:ne(0):unsqueeze(2):unsqueeze(2) or nil
end

--- Ids of places or kinds [B or 1, L], checked against a table of n rows.
function M.rows(who, name, given, b, l, n)
  local fits = T.is_tensor(given) and given:dim() == 2 and given:size(2) == l and (given:size(1) == b
    or given:size(1) == 1)
  if not fits then fail("%s: %s must be integers [%d, %d], got %s", who, name, b, l, describe(given)) end
  return base.ids(who, given, n, name)
end

-- ---- heads -------------------------------------------------------------------------------------------------

--- Classes of tokens: dropout and classifier behind the model `root`.
function M.token_head(name, root, make)
  local C = module.class(name, base.Pretrained)
  function C:init(c)
    self[root] = make(c)
    self.dropout = nn.Dropout(c.head_dropout)
    self.classifier = nn.Linear(c.hidden_size, c.num_labels)
  end
  function C:forward(tokens, opts)
    local o = opts or {}
    local x, out = self[root](tokens, base.without(o, "labels"))
    local logits = self.classifier(self.dropout(x))
    if o.labels ~= nil then out.loss = base.cross_entropy(name, logits, o.labels) end
    out.logits, out.last_hidden_state = logits, nil
    return base.results(logits, out, opts)
  end
  return C
end

--- Where an answer starts and ends: logits [B, L, 2]; by name start_logits and end_logits [B, L].
function M.answer_head(name, root, make)
  local C = module.class(name, base.Pretrained)
  function C:init(c)
    self[root] = make(c)
    self.qa_outputs = nn.Linear(c.hidden_size, 2)
  end
  function C:forward(tokens, opts)
    local o = opts or {}
    local x, out = self[root](tokens, base.without(o, "start_positions", "end_positions"))
    local logits = self.qa_outputs(x)
    local from, to, l = logits:select(3, 1), logits:select(3, 2), logits:size(2)
    if (o.start_positions == nil) ~= (o.end_positions == nil) then
      fail("%s: start_positions and end_positions go together", name)
    elseif o.start_positions ~= nil then
      local function loss(scores, at) -- what lies beyond the text does not count
        return base.cross_entropy(name, scores, at:masked_fill(at:lt(0):logical_or(at:ge(l)), -100))
      end
      out.loss = (loss(from, o.start_positions) + loss(to, o.end_positions)) / 2
    end
    out.start_logits, out.end_logits, out.last_hidden_state = from, to, nil
    return base.results(logits, out, opts)
  end
  return C
end

--- Logits by head(self, x, out), whose children init(self, c) makes, and their loss: that of classes of texts, or
-- loss(self, logits, labels).
function M.text_head(name, root, make, init, head, loss)
  local C = module.class(name, base.Pretrained)
  function C:init(c)
    self[root] = make(c)
    init(self, c)
  end
  function C:forward(tokens, opts)
    local o = opts or {}
    local x, out = self[root](tokens, base.without(o, "labels"))
    local logits = head(self, x, out)
    if o.labels ~= nil then
      out.loss = loss and loss(self, logits, o.labels)
        or base.classification_loss(name, logits, o.labels, self.config)
    end
    out.logits, out.last_hidden_state, out.pooler_output = logits, nil, nil
    return base.results(logits, out, opts)
  end
  return C
end

--- The token behind a mask: logits over the vocabulary by predict(self, x); init(self, c) makes its children.
function M.masked_head(name, root, make, init, predict)
  return M.text_head(name, root, make, init, predict, function(_, logits, labels)
    return base.cross_entropy(name, logits, labels)
  end)
end

--- An architecture from its classes: name → class; each is made from the settings that settings(c, who) makes of a
-- config.
function M.family(a, classes, settings)
  a.classes = {}
  for name, C in pairs(classes) do
    a.classes[name] = function(c)
      return base.initialize(C(settings(c, name)), c.initializer_range)
    end
  end
  return a
end

return M
