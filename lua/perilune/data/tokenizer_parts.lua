-- SPDX-License-Identifier: MIT
--- Parts of the text of a tokenizer.json, for files of other kinds that become one: GGUF, tiktoken, sentencepiece.
-- @module perilune.data.tokenizer_parts
local M = {}

local MAX_TOKEN = 1024 -- bytes of a token that merges make

--- End a reading with a message: what is malformed, what is not supported. See guarded.
function M.stop(fmt, ...) error({ tokenizer = fmt:format(...), code = "format" }, 0) end
function M.unsupported(fmt, ...) error({ tokenizer = fmt:format(...), code = "unsupported" }, 0) end
local stop = M.stop

--- f(…), whose stops become nil, message, code.
function M.guarded(path, f, ...)
  local ok, a, b = pcall(f, ...)
  if ok then return a, b end
  if type(a) ~= "table" then error(a, 0) end
  if a.malformed then return nil, ("%s: malformed tokenizer: %s"):format(path, a.malformed), "format" end
  return nil, ("%s: %s%s"):format(path, a.code == "format" and "malformed tokenizer: " or "", a.tokenizer), a.code
end

--- A text of JSON.
function M.quote(s)
  if not utf8.len(s) then stop("the token %q is no UTF-8", s:sub(1, 40)) end
  return '"' .. s:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end
local quote = M.quote

--- "token":id, … of a list of tokens, ids from 0.
function M.vocab(tokens)
  local out, seen = {}, {}
  for i, text in ipairs(tokens) do
    if seen[text] then stop("tokens %d and %d are both %s", seen[text], i - 1, quote(text:sub(1, 40))) end
    seen[text] = i - 1
    out[i] = quote(text) .. ":" .. i - 1
  end
  return table.concat(out, ",")
end

function M.added(id, text, special, left, right)
  return ('{"id":%d,"content":%s,"single_word":false,"lstrip":%s,"rstrip":%s,"normalized":false,"special":%s}')
    :format(id, quote(text), left or false, right or false, special)
end

--- Merges of BPE where tokens have scores: two neighbours become a token, the one of the highest score first, the
-- leftmost of equal ones. All pairs of tokens that make a token, in this order, and the ranks of them.
-- score[i] of tokens[i]; nil: it is neither made nor a part.
function M.merges(tokens, score)
  local order, is = {}, {}
  for i, text in ipairs(tokens) do
    if score[i] then
      if score[i] ~= score[i] then stop("the score of token %d is no number", i - 1) end
      order[#order + 1], is[text] = i, true
    end
  end
  table.sort(order, function(a, b)
    if score[a] ~= score[b] then return score[a] > score[b] end
    return a < b
  end)
  local merges, ranks, n, rank, last = {}, {}, 0, 0, nil
  for _, i in ipairs(order) do
    local text = tokens[i]
    if #text > MAX_TOKEN then stop("token %d has %d bytes, more than %d", i - 1, #text, MAX_TOKEN) end
    if last ~= score[i] then rank, last = n, score[i] end
    local at = utf8.offset(text, 2)
    while at and at <= #text do
      local a, b = text:sub(1, at - 1), text:sub(at)
      if is[a] and is[b] then
        n = n + 1
        merges[n], ranks[n] = ("[%s,%s]"):format(quote(a), quote(b)), rank
      end
      at = utf8.offset(text, 2, at)
    end
  end
  return merges, ranks
end

--- o: fallback, unknown, whole
function M.bpe(vocab, merges, ranks, o)
  return ('{"type":"BPE","dropout":null,"unk_token":%s,"continuing_subword_prefix":null,"end_of_word_suffix":null,'
    .. '"fuse_unk":%s,"byte_fallback":%s,"ignore_merges":%s,"vocab":{%s},"merges":[%s]%s}'):format(
    o.unknown and quote(o.unknown) or "null", o.unknown ~= nil, o.fallback or false, o.whole or false, vocab,
    table.concat(merges, ","), ranks and (',"merge_ranks":[%s]'):format(table.concat(ranks, ",")) or "")
end

--- score[i] of tokens[i]; nil: no text becomes it; single: sums are f32.
function M.unigram(tokens, score, unknown, fallback, single)
  local list, seen, unmatched = {}, {}, {}
  for i, text in ipairs(tokens) do
    if seen[text] then stop("tokens %d and %d are both %s", seen[text], i - 1, quote(text:sub(1, 40))) end
    seen[text] = i - 1
    local v = score[i]
    if v and (v ~= v or v == math.huge or v == -math.huge) then stop("the score of token %d is no number", i - 1) end
    if not v then unmatched[#unmatched + 1] = i - 1 end
    list[i] = ("[%s,%.17g]"):format(quote(text), v or 0)
  end
  return ('{"type":"Unigram","unk_id":%s,"byte_fallback":%s,"single":%s,"vocab":[%s],"unmatched":[%s]}'):format(
    unknown or "null", fallback or false, single or false, table.concat(list, ","), table.concat(unmatched, ","))
end

--- A Sequence; key: "normalizers", "pretokenizers" or "decoders".
function M.sequence(key, list)
  return ('{"type":"Sequence","%s":[%s]}'):format(key, table.concat(list, ","))
end

function M.byte_level(regex)
  return ('{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":%s}'):format(regex or false)
end

--- Blanks become marks; pieces begin with one, unless tokens have them inside, too. What is before the text is the
-- normalizer's.
function M.metaspace(tokens)
  local inside = false
  for _, text in ipairs(tokens) do inside = inside or text:find("▁", 2, true) ~= nil end
  return ('{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":%s}'):format(not inside)
end

function M.sentencepiece_decoder(prefix)
  local list = { '{"type":"Replace","pattern":{"String":"▁"},"content":" "}', '{"type":"ByteFallback"}',
    '{"type":"Fuse"}' }
  if prefix then list[4] = '{"type":"Strip","content":" ","start":1,"stop":0}' end
  return M.sequence("decoders", list)
end

local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function base64(s)
  return (s:gsub("..?.?", function(c)
    local a, b, d = c:byte(1, 3)
    local v, out = a << 16 | (b or 0) << 8 | (d or 0), {}
    for i = 0, 3 do
      local k = v >> 18 - 6 * i & 63
      out[i + 1] = i > #c and "=" or alphabet:sub(k + 1, k + 1)
    end
    return table.concat(out)
  end))
end

--- charsmap: sentencepiece's table of characters, or nil; collapse: no blanks at the ends, one between words; prefix:
-- a mark before the text.
function M.sentencepiece_normalizer(charsmap, collapse, prefix)
  local list = {}
  if charsmap and #charsmap > 0 then
    list[1] = ('{"type":"Precompiled","precompiled_charsmap":"%s"}'):format(base64(charsmap))
  end
  if collapse then
    list[#list + 1] = '{"type":"Strip","strip_left":true,"strip_right":true}'
    list[#list + 1] = '{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}'
  end
  if prefix then list[#list + 1] = '{"type":"Prepend","prepend":"▁"}' end
  list[#list + 1] = '{"type":"Replace","pattern":{"String":" "},"content":"▁"}'
  return M.sequence("normalizers", list)
end

--- What is put around a text; first, last: {id=, text=} or nil; pairs: the second text has the type 1 and no first.
function M.template(first, last, pairs_)
  local tokens, seen = {}, {}
  local function part(t, kind)
    if not t then return nil end
    if not seen[t.id] then
      seen[t.id] = true
      tokens[#tokens + 1] = ('%s:{"id":%s,"ids":[%d],"tokens":[%s]}'):format(quote(t.text), quote(t.text), t.id,
        quote(t.text))
    end
    return ('{"SpecialToken":{"id":%s,"type_id":%d}}'):format(quote(t.text), kind)
  end
  local function text(name, kind) return ('{"Sequence":{"id":"%s","type_id":%d}}'):format(name, kind) end
  if not first and not last then return "null" end
  local second = pairs_ and 1 or 0
  local function list(...) -- of those that are there
    local out = {}
    for i = 1, select("#", ...) do out[#out + 1] = (select(i, ...)) end
    return table.concat(out, ",")
  end
  local one = list(part(first, 0), text("A", 0), part(last, 0))
  local two = list(one, not pairs_ and part(first, 0) or nil, text("B", second), part(last, second))
  return ('{"type":"TemplateProcessing","single":[%s],"pair":[%s],"special_tokens":{%s}}'):format(one, two,
    table.concat(tokens, ","))
end

--- The file. added: texts of added tokens; k: model, normalizer, pre_tokenizer, decoder.
function M.whole(added, k, post)
  return ('{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],"normalizer":%s,"pre_tokenizer":%s,'
    .. '"post_processor":%s,"decoder":%s,"model":%s}'):format(table.concat(added, ","), k.normalizer or "null",
    k.pre_tokenizer or "null", post or "null", k.decoder, k.model)
end

return M
