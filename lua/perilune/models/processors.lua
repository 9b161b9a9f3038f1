-- SPDX-License-Identifier: MIT
--- What is done to the logits of the next token before it is chosen. Each function takes logits [B, V], the ids so far
-- (B lists) and the option's value; removed tokens are -inf. They run in the order of `order`, which is transformers'.
-- @module perilune.models.processors
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local M, by = {}, {}

local function removed(logits, mask) return logits:masked_fill(mask, -math.huge) end
local function index(list, like)
  local n = like:size(-1)
  for _, id in ipairs(list) do
    if id >= n then fail("generate: there is no token %d, only those from 0 to %d", id, n - 1) end
  end
  return T.tensor(list, { dtype = "i64", device = like:device() })
end

-- Seen tokens: logits divided by it where positive, multiplied where negative (Keskar et al. 2019).
function by.repetition_penalty(logits, ids, penalty)
  local seen = T.zeros(logits:shape(), { dtype = "bool", device = logits:device() })
  for row, list in ipairs(ids) do
    if #list > 0 then seen:select(1, row):index_fill_(1, index(list, logits), 1, { index_base = 0 }) end
  end
  return T.where(seen, T.where(logits:lt(0), logits * penalty, logits / penalty), logits)
end

-- No n tokens in a row come twice (Paulus et al. 2017).
function by.no_repeat_ngram_size(logits, ids, n)
  local out = logits:clone()
  for row, list in ipairs(ids) do
    local banned, last = {}, #list
    for i = 1, last - n + 1 do
      local same = true
      for k = 0, n - 2 do same = same and list[i + k] == list[last - n + 2 + k] end
      if same then banned[#banned + 1] = list[i + n - 1] end
    end
    if #banned > 0 then out:select(1, row):index_fill_(1, index(banned, logits), -math.huge, { index_base = 0 }) end
  end
  return out
end

-- Sequences of ids that never come.
-- The end of a text is no word that could be banned.
function by.bad_words(logits, ids, all, o)
  local out, words = logits:clone(), {}
  for _, word in ipairs(all) do
    local ends = false
    for _, id in ipairs(#word == 1 and o and o.eos or {}) do ends = ends or id == word[1] end
    if not ends then words[#words + 1] = word end
  end
  for row, list in ipairs(ids) do
    local banned = {}
    for _, word in ipairs(words) do
      local n, same = #word, #word - 1 <= #list
      for k = 1, same and n - 1 or 0 do same = same and list[#list - n + 1 + k] == word[k] end
      if same then banned[#banned + 1] = word[n] end
    end
    if #banned > 0 then out:select(1, row):index_fill_(1, index(banned, logits), -math.huge, { index_base = 0 }) end
  end
  return out
end

-- The number of ids in the prompt of row `row` of n: beams of a prompt are rows side by side.
local function prompt_of(o, row, n) return o.lengths and o.lengths[(row - 1) // (n // #o.lengths) + 1] or 0 end

-- No end before so many ids are there, those of the prompt among them; o.new: so many new ones.
function by.min_length(logits, ids, n, o)
  if not o.eos or #o.eos == 0 then return logits end
  local out
  for row, list in ipairs(ids) do
    if #list < math.max(n, (o.new or 0) > 0 and prompt_of(o, row, #ids) + o.new or 0) then
      out = out or logits:clone()
      out:select(1, row):index_fill_(1, index(o.eos, logits), -math.huge, { index_base = 0 })
    end
  end
  return out or logits
end

-- Rows where `here(list, row)` holds have these tokens alone, all of them as good.
local function forced(logits, ids, tokens, here)
  local out
  for row, list in ipairs(ids) do
    if here(list, row) then
      out = out or logits:clone()
      out:select(1, row):fill_(-math.huge):index_fill_(1, index(tokens, logits), 0, { index_base = 0 })
    end
  end
  return out or logits
end

-- Such a token behind a prompt of one.
function by.forced_bos(logits, ids, token)
  return forced(logits, ids, { token }, function(list) return #list == 1 end)
end

-- One of these tokens where there is room for no further one.
function by.forced_eos(logits, ids, tokens, o)
  return forced(logits, ids, tokens, function(list, row)
    return o.max_new_tokens and #list - prompt_of(o, row, #ids) == o.max_new_tokens - 1
  end)
end

-- No such tokens, and none of these as the first new one.
function by.suppress(logits, _, list)
  local out = logits:clone()
  out:index_fill_(2, index(list, logits), -math.huge, { index_base = 0 })
  return out
end

-- As the first new one, or the second where the first is forced.
function by.begin_suppress(logits, ids, list, o)
  local out
  for row, text in ipairs(ids) do
    local n = o.lengths and prompt_of(o, row, #ids) or #text
    if o.forced_bos and n <= 1 then n = n + 1 end
    if #text == n then
      out = out or logits:clone()
      out:select(1, row):index_fill_(1, index(list, logits), -math.huge, { index_base = 0 })
    end
  end
  return out or logits
end

function by.temperature(logits, _, t) return logits / t end

function by.top_k(logits, _, k)
  local n = logits:size(2)
  if k >= n then return logits end
  local best = logits:topk(k, -1)
  return removed(logits, logits:lt(best:narrow(2, k, 1)))
end

-- The mask over sorted places as one over tokens.
local function unsorted(mask, order) return T.zeros_like(mask):scatter(2, order, mask) end

-- The fewest tokens whose shares add up to p (Holtzman et al. 2019).
function by.top_p(logits, _, p)
  local sorted, order = logits:sort(-1)
  local gone = sorted:softmax(-1):cumsum(-1):le(1 - p)
  gone:narrow(2, gone:size(2), 1):fill_(0)
  return removed(logits, unsorted(gone, order))
end

-- Tokens at least p times as likely as the best one.
function by.min_p(logits, _, p)
  local share = logits:softmax(-1)
  return removed(logits, share:lt((share:max(-1, { keepdim = true })) * p))
end

-- Tokens whose surprise is nearest to what is expected, until their shares add up to p (Meister et al. 2022).
function by.typical_p(logits, _, p)
  local lp = logits:log_softmax(-1)
  local share = lp:exp()
  local expected = -(lp * share):nansum(-1, { keepdim = true })
  local sorted, order = (-lp - expected):abs():sort(-1)
  local cumulative = logits:gather(2, order):softmax(-1):cumsum(-1)
  local last = cumulative:lt(p):long():sum(-1, { keepdim = true }):clamp { max = logits:size(2) - 1 } + 1
  local gone = sorted:gt(sorted:gather(2, last))
  gone:narrow(2, 1, 1):fill_(0)
  return removed(logits, unsorted(gone, order))
end

local function but_best(logits, gone)
  local best = logits:max(-1, { keepdim = true })
  return removed(logits, gone:logical_and(logits:lt(best)))
end

function by.epsilon_cutoff(logits, _, e) return but_best(logits, logits:softmax(-1):lt(e)) end

-- The cutoff is lower where little is certain (Hewitt et al. 2022).
function by.eta_cutoff(logits, _, e)
  local lp = logits:log_softmax(-1)
  local share = lp:exp()
  local entropy = -(lp * share):nansum(-1, { keepdim = true })
  local eta = T.minimum(T.tensor(e):to(logits:dtype()), math.sqrt(e) * (-entropy):exp())
  return but_best(logits, share:lt(eta))
end

local order = { "repetition_penalty", "no_repeat_ngram_size", "bad_words", "min_length", "forced_bos", "forced_eos",
  "suppress", "begin_suppress", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff" }

-- Option → check(v) and what it must be; what does nothing is left out.
local kinds = {
  repetition_penalty = { "positive", 1 }, no_repeat_ngram_size = { "size", 0 }, temperature = { "positive", 1 },
  top_k = { "size", 0 }, top_p = { "probability", 1 }, min_p = { "probability", 0 }, typical_p = { "probability", 1 },
  epsilon_cutoff = { "probability", 0 }, eta_cutoff = { "probability", 0 }, min_length = { "size", 0 },
  forced_bos = { "size" }, forced_eos = { "ints" }, suppress = { "ints" }, begin_suppress = { "ints" },
  bad_words = { "any" },
}
--- The options that there are.
M.names = {}
for i, name in ipairs(order) do M.names[i] = name end
table.sort(M.names)

-- Lists of lists of ids.
local function words(who, v)
  options.list(who, "bad_words", v, "lists of ids")
  local out = {}
  for i, word in ipairs(v) do
    if type(word) ~= "table" then word = { word } end
    if #word == 0 then fail("%s: entry %d of bad_words is empty", who, i) end
    for _, id in ipairs(word) do options.kind(who, "bad_words", "size", id) end
    out[i] = word
  end
  return out
end

--- The options among o that do something, checked: a list of {function, value}.
function M.chosen(who, o)
  local list = {}
  for _, name in ipairs(order) do
    local v = o[name]
    if v ~= nil and v ~= false then
      v = name == "bad_words" and words(who, v) or options.kind(who, name, kinds[name][1], v)
      if type(v) == "number" and kinds[name][1] == "ints" then v = { v } end
      if v ~= kinds[name][2] and not (type(v) == "table" and #v == 0) then list[#list + 1] = { by[name], v, name } end
    end
  end
  return list
end

--- Runs them. o: eos (ids of ends), lengths (of the prompts), new (least new tokens), max_new_tokens, forced_bos.
function M.apply(list, logits, ids, o)
  for _, p in ipairs(list) do logits = p[1](logits, ids, p[2], o) end
  return logits
end

--- T.models.process(logits, ids, {temperature=, top_k=, top_p=, min_p=, typical_p=, epsilon_cutoff=, eta_cutoff=,
--   repetition_penalty=, no_repeat_ngram_size=, bad_words=, min_length=, forced_bos=, suppress=, begin_suppress=,
--   eos=}) → logits
-- What net:generate does to the logits of the next token: removed tokens are -inf. ids [B, L] or nil: the text so far.
-- Shapes: logits [B, V] → the same
--   print(T.models.process(T.tensor { { 1, 3, 2 } }, nil, { top_k = 2 }))
--   --> {{-inf, 3., 2.}}  -- f32[1,3] cpu
function M.process(logits, ids, opts)
  local allowed = { "eos" }
  for _, name in ipairs(M.names) do if name ~= "forced_eos" then allowed[#allowed + 1] = name end end
  local o = options.check("models.process", opts, allowed)
  if not T.is_tensor(logits) or logits:dim() ~= 2 or not logits:is_floating_point() then
    fail("models.process: logits must be [B, V], got %s", describe(logits))
  end
  if ids ~= nil and (not T.is_tensor(ids) or ids:dim() ~= 2 or ids:size(1) ~= logits:size(1)
    or ids:is_floating_point()) then
    fail("models.process: ids must be integers [%d, L], got %s", logits:size(1), describe(ids))
  end
  local lists = ids and ids:totable() or {}
  if not ids then for i = 1, logits:size(1) do lists[i] = {} end end
  local eos = o.eos
  if type(eos) == "number" then eos = { eos } end
  return M.apply(M.chosen("models.process", o), logits, lists, { eos = eos, forced_bos = o.forced_bos })
end

return M
