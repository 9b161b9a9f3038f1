-- SPDX-License-Identifier: MIT
--- What all models share: their class, what they return, losses, and how they are called. @module perilune.models.base
local F = require "perilune.nn.functional"
local T = require "perilune"
local id_base = require "perilune.data.id_base"
local module = require "perilune.nn.module"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local base = {}

--- The class of all models. net.config are the settings, in transformers' names; net:generate where text can be made.
local Pretrained = module.class "Pretrained"
base.Pretrained = Pretrained

local output = { __name = "ModelOutput" }
function output.__tostring(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  return ("ModelOutput(%s)"):format(table.concat(names, ", "))
end
--- A table of results that hooks and the like leave whole.
function base.output(t) return setmetatable(t, output) end

--- The last `last` places of x [B, L, …], an option of heads; x where it is nil.
function base.last(who, x, last)
  if last == nil then return x end
  last = options.kind(who, "last", "count", last)
  if last > x:size(2) then fail("%s: last is %d, and there are %d places", who, last, x:size(2)) end
  return x:narrow(2, x:size(2) - last + 1, last)
end

--- Refuses options that other heads of the family read, and this one does not.
function base.unread(who, o, ...)
  for _, name in ipairs { ... } do
    if type(o) == "table" and o[name] ~= nil then fail("%s: %s is for other heads, this one does not read it", who,
      name) end
  end
end

--- What a model returns: its main result, and, where the call has a table of options, all results by name.
function base.results(main, out, opts)
  if opts == nil then return main end
  return main, base.output(out)
end

--- Whether the elements of a tensor can be looked at: not while a graph is traced, nor inside vmap.
function base.readable(t) return not T.core.jit_tracing() and not T.core.is_batched(t) end

--- Raises where it is known that ids count from 1.
function base.from_zero(who, ids)
  id_base.check(who, ids, 0, "open the tokenizer with { index_base = 0 }, or subtract 1")
end

--- The options of a call, checked: see options.check; those that are yes or no are so.
function base.options(who, opts, names)
  local o = options.check(who, opts, names)
  for _, name in ipairs { "hidden_states", "loss" } do
    if o[name] ~= nil then options.kind(who, name, "bool", o[name]) end
  end
  return o
end

--- ids, integers [B, L] (or [L], as a batch of one), checked against a table of n rows.
function base.ids(who, ids, n, name)
  if not T.is_tensor(ids) or ids:is_floating_point() or ids:dtype() == "bool" or ids:dim() < 1 or ids:dim() > 2 then
    fail("%s: %s must be integers [B, L], got %s", who, name or "ids", describe(ids))
  end
  base.from_zero(who, ids)
  if ids:dim() == 1 then ids = ids:unsqueeze(1) end
  if base.readable(ids) and ids:numel() > 0 then
    local low, high = ids:min():item(), ids:max():item()
    if low < 0 or high >= n then
      fail("%s: %s must be from 0 to %d, the %d of the table; got %d", who, name or "ids", n - 1, n,
        low < 0 and low or high)
    end
  end
  return ids
end

--- inputs_embeds, given in place of ids: [B, L, width].
function base.embeds(who, tokens, x, width)
  if not T.is_tensor(x) or x:dim() ~= 3 or x:size(3) ~= width then
    fail("%s: inputs_embeds must be [B, L, %d], got %s", who, width, describe(x))
  end
  if tokens ~= nil then fail("%s: ids and inputs_embeds were given; one of them must be nil", who) end
  return x
end

--- The mask [B, S] of an option, 0 where nothing is; nil where nothing is hidden.
function base.padding(who, mask, b, s)
  if mask == nil then return nil end
  if not T.is_tensor(mask) or mask:dim() ~= 2 or mask:size(1) ~= b or mask:size(2) ~= s then
    fail("%s: attention_mask must be [%d, %d], 1 where a token is, got %s", who, b, s, describe(mask))
  end
  if base.readable(mask) and mask:ne(0):all():item() then return nil end
  return mask
end

--- A mask of 4 dimensions in the option's place, [B or 1, heads or 1, L, S]: bools, true where a query sees a key, or
-- numbers that are added to the scores. It is the whole truth then: nothing is hidden beside what it hides. nil where
-- the option has 2 dimensions, or none.
function base.whole_mask(who, mask, b, l, s)
  if not T.is_tensor(mask) or mask:dim() ~= 4 then return nil end
  local n = mask:size(1)
  if n ~= 1 and n ~= b or mask:size(3) ~= l or mask:size(4) ~= s
    or mask:dtype() ~= "bool" and not mask:is_floating_point() then
    fail("%s: an attention_mask of 4 dimensions must be bools (true: seen), or numbers that are added to the scores, "
      .. "[%d or 1, heads or 1, %d, %d], got %s", who, b, l, s, describe(mask))
  end
  return mask
end

--- The mean of -log p over all labels but -100; logits [..., C], labels [...], classes from 0.
function base.cross_entropy(who, logits, labels)
  local n, want = logits:size(-1), logits:shape()
  want[#want] = nil
  local fits = T.is_tensor(labels) and not labels:is_floating_point() and labels:dim() == #want
  for d = 1, fits and #want or 0 do fits = fits and labels:size(d) == want[d] end
  if not fits then
    fail("%s: labels must be integers [%s], got %s", who, table.concat(want, ", "), describe(labels))
  end
  base.from_zero(who, labels)
  return F.cross_entropy(logits:reshape(-1, n):float(), labels:reshape(-1):long(), { index_base = 0,
    ignore_index = -100 })
end

--- The loss of sequence classification by the config's problem_type: cross entropy, one number, or several yes and no.
function base.classification_loss(who, logits, labels, c)
  if not T.is_tensor(labels) then fail("%s: labels must be a tensor, got %s", who, describe(labels)) end
  local kind = c.problem_type or c.num_labels == 1 and "regression"
    or labels:is_floating_point() and "multi_label_classification" or "single_label_classification"
  if kind == "regression" then
    if labels:numel() ~= logits:squeeze(-1):numel() then
      fail("%s: labels must have %d numbers, one for each, got %s", who, logits:squeeze(-1):numel(), describe(labels))
    end
    return F.mse_loss(logits:squeeze(-1):float(), labels:reshape(logits:squeeze(-1):shape()):float())
  elseif kind == "multi_label_classification" then
    return F.binary_cross_entropy_with_logits(logits:float(), labels:float())
  end
  return base.cross_entropy(who, logits, labels)
end

--- The options of a call but for some names, for the model below a head.
function base.without(o, ...)
  local out = {}
  for key, v in pairs(o) do out[key] = v end
  for _, name in ipairs { ... } do out[name] = nil end
  return out
end

--- A size as {height, width}; a list as it is, one number as a list of one.
function base.pair(v) return type(v) == "table" and { v[1], v[2] or v[1] } or { v, v } end
function base.list(v) return type(v) == "table" and v or { v } end

--- Raises unless x are pictures [B, C, H, W] of size {C, H, W}, or of {C} channels.
function base.pixels(who, x, size)
  local fits = T.is_tensor(x) and x:dim() == 4 and x:is_floating_point()
  for d, n in ipairs(size) do fits = fits and x:size(d + 1) == n end
  if not fits then
    fail("%s: pixels must be floating [B, %s], got %s", who,
      #size == 1 and size[1] .. ", H, W" or table.concat(size, ", "), describe(x))
  end
end

--- Makes a parameter of one module that of another, too.
function base.tie(to, from) to.weight = from.weight end

--- Draws all weights as transformers does: normal with a deviation for matrices, 0 for biases; norms stay.
function base.initialize(net, std)
  if require("perilune.nn.init_state").off then return net end
  local _ <close> = T.no_grad()
  for name, p in net:named_parameters() do
    if p:dim() >= 2 then p:normal_(0, std)
    elseif name:find "bias$" then p:fill_(0) end
  end
  return net
end

--- Layers of decoders are computed again in backward in place of keeping what they need: less memory for a third more
-- time. For training; on=false: no more. A table: every, so many layers keep one input, and are computed once more;
-- places, feed-forward layers keep what so many places need at a time, and are computed once more, but for layers that
-- have attention and feed-forward side by side (GPT-NeoX, Phi), which are as without; auto=true chooses what is not
-- given of both, so that layers' inputs, and what a feed-forward layer keeps, are a twentieth of the
-- weights where that can be: for weights of few bits.
function Pretrained:gradient_checkpointing(on)
  local some, set = false, { every = 1 }
  if type(on) == "table" then
    local who = "gradient_checkpointing"
    local o = options.check(who, on, { "every", "places", "auto" })
    set.auto = o.auto ~= nil and options.kind(who, "auto", "bool", o.auto)
    if set.auto then set.every = nil end
    if o.every ~= nil then set.every = options.kind(who, "every", "count", o.every) end
    if o.places ~= nil then set.places = options.kind(who, "places", "count", o.places) end
  end
  for _, m in ipairs(self:modules()) do
    if m.can_checkpoint then
      m.checkpointed, some = on ~= false and set, true
    end
  end
  if not some then fail("gradient_checkpointing: %s has no layers that can be computed again", self:type()) end
  return self
end

--- New tokens after a prompt: see perilune.models.generate.
function Pretrained:generate(ids, opts) return require("perilune.models.generate").run(self, ids, opts) end

return base
