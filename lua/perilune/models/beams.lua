-- SPDX-License-Identifier: MIT
--- Beam search: the num_beams best texts at once; a text's score is the sum of its tokens' log p over its length to the
-- power of length_penalty. @module perilune.models.beams
local T = require "perilune"
local processors = require "perilune.models.processors"

local M = {}

-- A text that a row of the batch may have: {ids, score, beam}.
local function extended(list, id)
  local out = { table.unpack(list) }
  out[#out + 1] = id
  return out
end

local function ends_with(list, words)
  for _, word in ipairs(words) do
    local n, same = #word, #list >= #word
    for k = 1, same and n or 0 do same = same and list[#list - n + k] == word[k] end
    if same then return true end
  end
  return false
end

-- Takes one step of a prompt's beams. b: beams, done (finished texts), open; totals: values and ids of the best.
local function step(b, values, ids, o, vocab, length, last)
  local live, n = {}, o.num_beams
  for rank, total in ipairs(values) do
    local from, id = ids[rank] // vocab + 1, ids[rank] % vocab
    local text = extended(b.beams[from].ids, id)
    local over = ends_with(text, o.words)
    if (over or last) and rank <= n and not (o.early_stopping == true and #b.done >= n) then
      table.insert(b.done, { ids = text, score = total / length ^ o.length_penalty })
    end
    if not over and #live < n then live[#live + 1] = { ids = text, score = total, from = from } end
  end
  table.sort(b.done, function(x, y) return x.score > y.score end)
  for i = #b.done, n + 1, -1 do b.done[i] = nil end
  b.beams = live
  local best_length = o.early_stopping == "never" and o.length_penalty > 0 and o.max_new_tokens or length
  local hope = live[1] and live[1].score / best_length ^ o.length_penalty or -math.huge
  local full = #b.done >= n
  b.open = not last and #live > 0 and not (full and (o.early_stopping == true or hope <= b.done[n].score))
end

--- The best text for each row of prompts.
function M.run(net, rows, o, list)
  local n, batch = o.num_beams, #rows
  local wide = {}
  for _, row in ipairs(rows) do for _ = 1, n do wide[#wide + 1] = row end end
  local state = net:begin(wide, o)
  local items, feed = {}, state.first
  for r = 1, batch do
    items[r] = { beams = {}, done = {}, open = true }
    for k = 1, n do items[r].beams[k] = { ids = {}, score = k == 1 and 0.0 or -1e9 } end
  end
  local keep = math.max(2, 1 + #o.words) * n
  for length = 1, o.max_new_tokens do
    local lp = state:advance(feed):float():log_softmax(-1)
    local vocab = lp:size(2)
    if #list > 0 then
      local all = {}
      for r = 1, batch do
        for k = 1, n do
          local text = { table.unpack(rows[r]) }
          for _, id in ipairs((items[r].beams[k] or items[r].beams[1] or { ids = {} }).ids) do text[#text + 1] = id end
          all[#all + 1] = text
        end
      end
      lp = processors.apply(list, lp, all, o)
    end
    local start = {}
    for r = 1, batch do
      for k = 1, n do
        local beam = items[r].beams[k]
        start[#start + 1] = beam and beam.score or -1e9
      end
    end
    local total = lp + T.tensor(start, { dtype = "f32" }):to(lp:device()):unsqueeze(2)
    local values, ids = total:view(batch, n * vocab):topk(math.min(keep, n * vocab), -1, { index_base = 0 })
    values, ids = values:totable(), ids:totable()
    local order, any = {}, false
    feed = {}
    for r = 1, batch do
      local b = items[r]
      if b.open then step(b, values[r], ids[r], o, vocab, length, length == o.max_new_tokens) end
      any = any or b.open
      for k = 1, n do
        local beam = b.open and b.beams[k] or nil
        order[#order + 1] = (r - 1) * n + (beam and beam.from or k)
        feed[#feed + 1] = { beam and beam.ids[#beam.ids] or o.pad }
      end
    end
    if not any then break end
    state:reorder(order)
  end
  local out = {}
  for r = 1, batch do
    local b = items[r]
    out[r] = (b.done[1] or b.beams[1]).ids
  end
  return out
end

return M
