-- SPDX-License-Identifier: MIT
--- New tokens after a prompt: the best one each time, drawn ones, beams, or a small model's guesses checked by a
-- large one. A model takes part by model:begin(rows) → state; state:advance(rows of new ids) → logits [B, V] of
-- what comes next; state:reorder(rows), state:crop(n). @module perilune.models.generate
local T = require "perilune"
local base = require "perilune.models.base"
local id_base = require "perilune.data.id_base"
local cache_of = require("perilune.nn.cache").cache_of
local evaluating = require "perilune.nn.evaluating"
local generation_config = require "perilune.models.generation_config"
local options = require "perilune.options"
local processors = require "perilune.models.processors"

local fail, describe = options.fail, options.describe
local M = {}

-- ---- what is asked for -------------------------------------------------------------------------------------

local function list_of(who, ids)
  if T.is_tensor(ids) then
    if ids:is_floating_point() or ids:dtype() == "bool" or ids:dim() ~= 1 then
      fail("%s: ids must be integers [L], got %s", who, describe(ids))
    end
    base.from_zero(who, ids)
    return ids:numel() == 0 and {} or ids:totable()
  end
  if type(ids) == "string" then
    fail("%s: the prompt must be a list of ids, got %s; T.data.tokenizer(folder, { index_base = 0 }):encode(text) "
      .. "makes them", who, describe(ids))
  elseif type(ids) == "table" and ids.input_ids then
    fail("%s: the prompt must be a list of ids, got what a tokenizer gives; its ids are .input_ids", who)
  end
  options.list(who, "the prompt", ids, "ids")
  local out = {}
  for i = 1, #ids do
    local id = ids[i]
    out[i] = options.kind(who, "an id of the prompt", "size", id)
  end
  return out
end

-- Which ids [B, L] are no padding where no mask says it, as transformers has it (of prompts; what an encoder reads is
-- all real there): those that are not pad_token_id, unless that ends a text, too. nil: all are real. config: a
-- generation_config.json's table.
local function real_ones(ids, config)
  local pad, ends = config.pad_token_id, config.eos_token_id
  if math.type(pad) ~= "integer" then return nil end
  for _, id in ipairs(type(ends) == "table" and ends or { ends }) do if id == pad then return nil end end
  local real = ids:ne(pad)
  return not real:all():item() and real or nil
end

-- Prompts as lists of ids, and whether there was one alone.
local function prompts(who, ids, mask, config)
  local rows, alone = {}, false
  if T.is_tensor(ids) and ids:dim() == 2 then
    if ids:is_floating_point() or ids:dtype() == "bool" then
      fail("%s: ids must be integers, got %s", who, describe(ids))
    end
    base.from_zero(who, ids)
    if mask ~= nil and (not T.is_tensor(mask) or mask:dim() ~= 2 or mask:size(1) ~= ids:size(1)
      or mask:size(2) ~= ids:size(2)) then
      fail("%s: attention_mask must be as ids, %s, got %s", who, describe(ids), describe(mask))
    end
    local real = mask
    if real == nil then real = real_ones(ids, config) end
    real = real and real:ne(0):long():totable()
    for r, row in ipairs(ids:totable()) do
      rows[r] = {}
      for i, id in ipairs(row) do if not real or real[r][i] == 1 then table.insert(rows[r], id) end end
    end
  elseif type(ids) == "table" and getmetatable(ids) == nil and (type(ids[1]) == "table" or T.is_tensor(ids[1])) then
    for r, row in ipairs(ids) do rows[r] = list_of(who, row) end
  else
    rows[1], alone = list_of(who, ids), true
  end
  if mask ~= nil and not (T.is_tensor(ids) and ids:dim() == 2) then
    fail("%s: attention_mask goes with ids [B, L]; lists of several lengths need none", who)
  end
  if #rows == 0 then fail("%s: no prompt", who) end
  for r, row in ipairs(rows) do if #row == 0 then fail("%s: prompt %d is empty", who, r) end end
  return rows, alone
end

-- Sequences of ids that end a text: a number, a list of numbers (each ends it), or lists (each as a whole).
local function stops(who, given, eos)
  if given == false then return {}, {} end
  local list, ends = {}, {}
  local function add(v)
    if type(v) == "table" then
      local word = {}
      for i, id in ipairs(v) do word[i] = options.kind(who, "stop", "size", id) end
      if #word == 0 then fail("%s: an empty list in stop", who) end
      list[#list + 1] = word
    else
      list[#list + 1] = { options.kind(who, "stop", "size", v) }
    end
  end
  if given == nil then given = eos end
  if type(given) == "table" then for _, v in ipairs(given) do add(v) end elseif given ~= nil then add(given) end
  for _, word in ipairs(list) do if #word == 1 then ends[#ends + 1] = word[1] end end
  return list, ends
end

-- The id or ids that a config names, but for those of no token of the table, which never come (-1 for none). vocab:
-- the rows of the table, nil where it is not known.
local function tokens_of(given, vocab)
  local list = {}
  for _, id in ipairs(type(given) == "table" and given or { given }) do
    if math.type(id) == "integer" and id >= 0 and id < (vocab or math.huge) then list[#list + 1] = id end
  end
  return list
end

-- Whether a list ends with one of the words.
local function ended(list, words, from)
  for _, word in ipairs(words) do
    local n, same = #word, #list - from >= #word
    for k = 1, same and n or 0 do same = same and list[#list - n + k] == word[k] end
    if same then return true end
  end
  return false
end

local call = { "max_new_tokens", "min_new_tokens", "do_sample", "stop", "seed", "generator", "on_token", "num_beams",
  "length_penalty", "early_stopping", "attention_mask", "assistant", "draft", "cache", "inputs", "inputs_mask",
    "scores", "batch", "generation_config",
  table.unpack(processors.names) }
M.call = call

-- Whether the options ask for drawn tokens.
local function drawn(o)
  if o.do_sample ~= nil then return o.do_sample end
  for _, name in ipairs { "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff" } do
    if o[name] ~= nil then return true end
  end
  return false
end

-- Options that only do something beside another one are errors without it.
local function companions(who, net, o)
  local function needs(name, ok, what)
    if o[name] ~= nil and not ok then fail("%s: %s does nothing %s", who, name, what) end
  end
  local beams, greedy = o.num_beams > 1, o.num_beams == 1 and not o.assistant
  needs("draft", o.assistant, "without an assistant")
  needs("length_penalty", beams, "without num_beams")
  needs("early_stopping", beams, "without num_beams")
  needs("on_token", not beams, "with num_beams, whose texts are known at the end")
  needs("scores", greedy, "with num_beams or an assistant")
  needs("batch", greedy and not o.cache, "with beams, an assistant or a cache")
  needs("seed", o.generator == nil, "beside generator")
  needs("seed", drawn(o) or o.do_sample == false, "where the best token is taken each time; do_sample = true draws")
  needs("inputs", net.first_ids, "where no encoder reads it; the prompt comes first")
  needs("inputs_mask", net.first_ids, "where no encoder reads it; attention_mask goes with the prompt")
end

-- ---- choosing ----------------------------------------------------------------------------------------------

-- Rows of logits → ids, from 0.
local function best(logits, state)
  if state and state.logits and rawequal(logits, state.logits) then return state.chosen end
  return logits:argmax(-1, { index_base = 0 }):totable()
end

-- The same where options may have removed every token.
local function best_left(logits)
  if logits:amax(-1):eq(-math.huge):any():item() then fail("generate: the options remove every token") end
  return best(logits)
end

-- One number drawn for each row, by a uniform number u and the running sum of its shares; on the CPU, so that a seed
-- means the same on every device.
local function draw(logits, generator)
  local share = logits:cpu():double():softmax(-1)
  if share:isnan():any():item() then
    fail("generate: no token can be drawn: logits are NaN, or the options remove every token")
  end
  local sum = share:cumsum(-1)
  local u = T.rand(logits:size(1), 1, { generator = generator, dtype = "f64", device = "cpu" })
  u = u * sum:narrow(2, sum:size(2), 1)
  local at = sum:le(u):long():sum(-1)
  local last = share:gt(0):long() * T.arange(share:size(2), { device = "cpu" }):unsqueeze(1)
  return T.minimum(at, (last:max(-1)) - 1):totable()
end

local function loop(net, rows, o, list, generator)
  local state = o.batch and o.batch:begin(rows) or net:begin(rows, o)
  local _ <close> = o.batch and state or nil -- its row is free, however this ends
  local n, out, done, left = #rows, {}, {}, #rows
  local all = {}
  for r, row in ipairs(rows) do all[r], out[r] = { table.unpack(row) }, {} end
  local next_ids, scores = state.first, {}
  for step = 1, o.max_new_tokens do
    local logits = state:advance(next_ids)
    local shaped = logits
    if #list > 0 then shaped = processors.apply(list, logits:float(), all, o) end
    local ids = o.sample and draw(shaped, generator) or #list > 0 and best_left(shaped) or best(shaped, state)
    if o.scores then scores[step] = rawequal(logits, state.logits) and logits:clone() or logits end
    next_ids = {}
    for r = 1, n do
      local id = done[r] and o.pad or ids[r]
      next_ids[r] = { id }
      if not done[r] then
        table.insert(out[r], id)
        table.insert(all[r], id)
        local more = not o.on_token or o.on_token(id, r) ~= false
        if not more or ended(out[r], o.words, 0) then done[r], left = true, left - 1 end
      else
        table.insert(all[r], id)
      end
    end
    if left == 0 then break end
  end
  if o.cache then o.cache.ids = { table.unpack(all[1], 1, #o.cache) } end
  return out, scores
end

-- ---- guesses of a small model ------------------------------------------------------------------------------

-- Greedy: the assistant makes up to `draft` tokens, the model looks at all of them at once and keeps those that it
-- would have chosen itself, and one of its own (Leviathan et al. 2022).
local function assisted(net, row, o)
  local state, small = net:begin({ row }, o), o.assistant:begin({ row }, {})
  local out, text, has = {}, { table.unpack(row) }, 0 -- has: what the assistant has read of the text
  local pending = state.first[1]
  while #out < o.max_new_tokens do
    local guesses, feed = {}, { table.unpack(text, has + 1) }
    local most = math.min(o.draft, o.max_new_tokens - #out - 1)
    for i = 1, most do
      guesses[i] = best(small:advance { feed })[1]
      feed = { guesses[i] }
    end
    local read = { table.unpack(pending) }
    for _, g in ipairs(guesses) do read[#read + 1] = g end
    local logits = state:advance({ read }, #guesses + 1) -- [1, guesses + 1, V]
    local own = logits:squeeze(1):argmax(-1, { index_base = 0 }):totable()
    local stop = false
    for i = 1, #guesses + 1 do
      local id = own[i]
      out[#out + 1] = id
      if o.on_token and o.on_token(id, 1) == false or ended(out, o.words, 0) or #out >= o.max_new_tokens then
        stop = true
      end
      if stop or guesses[i] ~= id then break end
    end
    if stop then break end
    local n = #row + #out - 1 -- places that both may keep
    state:crop(n)
    small:crop(math.min(n, small:length()))
    pending, has = { out[#out] }, small:length()
    text = { table.unpack(row) }
    for _, id in ipairs(out) do text[#text + 1] = id end
  end
  if o.cache then
    state:crop(math.min(#o.cache, #row + #out - 1))
    text = { table.unpack(row) }
    for _, id in ipairs(out) do text[#text + 1] = id end
    o.cache.ids = { table.unpack(text, 1, #o.cache) }
  end
  return out
end

-- Rows one after the other where they would change one another.
local function each_alone(make, rows, o)
  local out = {}
  if o.scores then fail("generate: scores of prompts of several lengths are not supported here, as the angles of this "
    .. "network depend on the length; give the prompts one by one") end
  for r, row in ipairs(rows) do
    local own = setmetatable({}, { __index = o })
    own.lengths = { #row }
    if o.on_token then own.on_token = function(id) return o.on_token(id, r) end end
    out[r] = make({ row }, own)[1]
  end
  return out
end

-- ---- the function ------------------------------------------------------------------------------------------

--- net:generate(ids, opts): see T.models.generate.
function M.run(net, ids, opts)
  local who = "generate"
  local o = {}
  for key, v in pairs(options.check(who, opts, call)) do o[key] = v end
  if not net.begin then fail("%s: %s makes no text; a model with a head for the next token is wanted", who,
    net:type()) end
  if ids == nil and net.first_ids then ids = net:first_ids(o) end
  local rows, alone = prompts(who, ids, o.attention_mask, net.generation_config or {})
  if o.generation_config ~= nil and options.kind(who, "generation_config", "bool", o.generation_config) then
    local longest = 0
    for _, row in ipairs(rows) do longest = math.max(longest, #row) end
    generation_config.merge(who, o, net.generation_config or {}, longest)
  end
  local function number(name, kind, default)
    if o[name] == nil then o[name] = default else o[name] = options.kind(who, name, kind, o[name]) end
  end
  for _, name in ipairs { "do_sample", "scores" } do
    if o[name] ~= nil then o[name] = options.kind(who, name, "bool", o[name]) end
  end
  if o.early_stopping ~= nil and o.early_stopping ~= "never" and type(o.early_stopping) ~= "boolean" then
    fail("%s: early_stopping must be true, false or 'never', got %s", who, describe(o.early_stopping))
  end
  number("max_new_tokens", "count", 64)
  number("num_beams", "count", 1)
  companions(who, net, o)
  number("draft", "count", 5)
  number("length_penalty", "number", 1.0)
  if o.min_new_tokens ~= nil then o.min_length = 1 end -- which it stands for
  number("min_new_tokens", "size", 0)
  if o.min_new_tokens > o.max_new_tokens then
    fail("%s: min_new_tokens is %d, more than max_new_tokens, %d", who, o.min_new_tokens, o.max_new_tokens)
  end
  cache_of(who, o.cache)
  if o.assistant ~= nil and not (type(o.assistant) == "table" and o.assistant.begin) then
    fail("%s: assistant must be a network of T.models that makes text, got %s", who, describe(o.assistant))
  end
  if o.on_token ~= nil then options.kind(who, "on_token", "callable", o.on_token) end
  local defaults = net.generation_config or {}
  local vocab = (net.config or {}).vocab_size
  local words, ends = stops(who, o.stop, tokens_of(defaults.eos_token_id, vocab))
  o.words, o.eos = words, tokens_of(ends, vocab)
  o.pad = tokens_of(defaults.pad_token_id, vocab)[1] or o.eos[1] or 0
  o.new, o.lengths = o.min_new_tokens, {}
  for r, row in ipairs(rows) do o.lengths[r] = #row end
  for option, name in pairs { suppress = "suppress_tokens", begin_suppress = "begin_suppress_tokens" } do
    if o[option] == nil and type(defaults[name]) == "table" then o[option] = tokens_of(defaults[name], vocab) end
  end
  local list = processors.chosen(who, o)
  o.sample = drawn(o)
  local generator = o.generator or o.seed ~= nil and T.Generator(options.kind(who, "seed", "int", o.seed)) or nil
  if o.sample and (o.num_beams > 1 or o.assistant) then
    fail("%s: beams and an assistant go with the best token each time, not with drawn ones", who)
  end
  if o.assistant and (not alone or #list > 0 or o.num_beams > 1) then
    fail("%s: an assistant goes with one prompt, without beams and without changes of the logits", who)
  end
  local result = table.pack(pcall(evaluating, net, function()
    if o.assistant then return { (assisted(net, rows[1], o)) } end
    local function make(some, own)
      if o.num_beams > 1 then return require("perilune.models.beams").run(net, some, own, list) end
      return loop(net, some, own, list, generator)
    end
    local several = false
    for _, row in ipairs(rows) do several = several or #row ~= #rows[1] end
    if several and net.apart and net:apart() then return each_alone(make, rows, o) end
    return make(rows, o)
  end))
  if not result[1] then
    if o.cache then o.cache:reset() end
    error(result[2], 0)
  end
  local out = {}
  for r, row in ipairs(result[2]) do out[r] = id_base.mark(T.tensor(row, { dtype = "i64" }), 0) end
  local more = o.scores and T.stack(result[3], 2) or nil
  if alone then out, more = out[1], more and more:select(1, 1) end
  if more == nil then return out end -- no second result, not nil: prints and calls show what there is
  return out, more
end

return M
