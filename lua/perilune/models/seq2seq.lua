-- SPDX-License-Identifier: MIT
--- What models with an encoder and a decoder share: the call, the loss, and making text. @module
-- perilune.models.seq2seq
local T = require "perilune"
local base = require "perilune.models.base"
local module = require "perilune.nn.module"
local options = require "perilune.options"

local KVCache = require("perilune.nn.cache").KVCache
local fail, describe = options.fail, options.describe

local M = {}

local State = {}
State.__index = State
function State:advance(rows, all)
  local ids = T.tensor(rows, { dtype = "i64", device = self.device })
  local logits = self.net:step(ids, self.memory, { mask = self.mask, cache = self.cache, last = all or 1 })
  return all and logits or logits:squeeze(2)
end
function State:reorder(rows)
  local at = T.tensor(rows, { dtype = "i64", device = self.device })
  self.cache:reorder(at)
  self.memory = self.memory:index_select(1, at)
  if self.mask then self.mask = self.mask:index_select(1, at) end
end
function State:crop(n) self.cache:crop(n) end
function State:length() return #self.cache end

-- Methods of such a model, which has encode(inputs, o) → memory, mask, hidden and decode(ids, memory, o) →
-- states, hidden; project(states) → logits; self._seq: who, start, pad.
local Seq2Seq = module.class("Seq2Seq", base.Pretrained)

--- Logits for ids behind what the cache has.
function Seq2Seq:step(ids, memory, o)
  local x = self:decode(ids, memory, o)
  if o.last then x = x:narrow(2, x:size(2) - o.last + 1, o.last) end
  return self:project(x)
end

--- The ids that a decoder begins with where no prompt is given: one row for each input.
function Seq2Seq:first_ids(o)
  local n, list = T.is_tensor(o.inputs) and o.inputs:dim() > 1 and o.inputs:size(1) or 1, {}
  local start = (self.generation_config or {}).decoder_start_token_id or self._seq.start
  if n == 1 then return { start } end
  for i = 1, n do list[i] = { start } end
  return list
end

function Seq2Seq:begin(rows, o)
  local who = self._seq.who
  if not T.is_tensor(o.inputs) then
    fail("generate: %s reads something before it writes: inputs must be a tensor, got %s", who, describe(o.inputs))
  end
  for _, row in ipairs(rows) do
    if #row ~= #rows[1] then fail("generate: prompts of a decoder with an encoder must have one length") end
  end
  if o.cache then fail("generate: cache is for decoders without an encoder") end
  local inputs = o.inputs
  if inputs:dim() == 1 then inputs = inputs:unsqueeze(1) end
  local memory, mask = self:encode(inputs, { attention_mask = o.inputs_mask })
  local n = memory:size(1)
  if #rows % n ~= 0 then fail("generate: %d prompts for %d inputs", #rows, n) end
  local times, device = #rows // n, memory:device()
  if times > 1 then
    memory = memory:repeat_interleave(times, 1)
    mask = mask and mask:repeat_interleave(times, 1)
  end
  return setmetatable({ net = self, memory = memory, mask = mask, cache = KVCache(), device = device, first = rows },
    State)
end

-- labels one place later, behind the start token; -100 becomes padding.
local function shifted(self, labels)
  local s, b = self._seq, labels:size(1)
  local start = T.full({ b, 1 }, s.start, { dtype = "i64", device = labels:device() })
  local ids = T.cat({ start, labels:long():narrow(2, 1, labels:size(2) - 1) }, 2)
  return ids:masked_fill(ids:eq(-100), s.pad)
end

local call = { "attention_mask", "decoder_input_ids", "labels", "hidden_states", "last", "decoder_attention_mask" }

--- (inputs, {decoder_input_ids= or labels=, attention_mask=, decoder_attention_mask=, hidden_states=, last=}) → logits
-- [B, L, vocab]; by name loss, encoder_last_hidden_state, encoder_hidden_states, decoder_hidden_states.
function Seq2Seq:forward(x, opts)
  local s = self._seq
  local o = base.options(s.who, opts, call)
  local ids, labels = o.decoder_input_ids, o.labels
  if ids == nil then
    if not T.is_tensor(labels) or labels:dim() ~= 2 then
      fail("%s: decoder_input_ids or labels [B, L] are missing", s.who)
    end
    ids = shifted(self, labels)
  end
  local memory, mask, encoder_hidden = self:encode(x, o)
  local rows = T.is_tensor(ids) and ids:dim() == 2 and ids:size(1) or 1
  if rows ~= memory:size(1) then fail("%s: %d texts to write for %d inputs", s.who, rows, memory:size(1)) end
  local states, hidden = self:decode(ids, memory, { mask = mask, hidden_states = o.hidden_states,
    padding = o.decoder_attention_mask })
  if o.last ~= nil and labels ~= nil then fail("%s: last and labels exclude each other", s.who) end
  local logits = self:project(base.last(s.who, states, o.last))
  local loss = labels ~= nil and base.cross_entropy(s.who, logits, labels) or nil
  return base.results(logits, { logits = logits, loss = loss, encoder_last_hidden_state = memory,
    encoder_hidden_states = encoder_hidden, decoder_hidden_states = hidden }, opts)
end

M.Seq2Seq = Seq2Seq

return M
