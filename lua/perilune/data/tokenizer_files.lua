-- SPDX-License-Identifier: MIT
--- Vocabularies in older files as the text of a tokenizer.json: vocab.txt (WordPiece, BERT's), vocab.json with
-- merges.txt (byte-level BPE, GPT-2's).
-- @module perilune.data.tokenizer_files
local M = {}

local function quote(s)
  return '"' .. s:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

local function added_token(id, text)
  return ('{"id":%d,"content":%s,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}')
    :format(id, quote(text))
end

local bert_special = { ["[PAD]"] = true, ["[UNK]"] = true, ["[CLS]"] = true, ["[SEP]"] = true, ["[MASK]"] = true }

--- vocab.txt, a token a line, ids from 0 in order; lower: as do_lower_case of tokenizer_config.json.
-- @treturn string; or nil, message, code
function M.wordpiece(text, name, lower)
  local vocab, added, ids, n = {}, {}, {}, 0
  if not utf8.len(text) then return nil, name .. ": malformed vocabulary: it is no UTF-8", "format" end
  for line in text:gmatch "[^\n]*" do
    local token = line:gsub("%s+$", "")
    if ids[token] == nil and (token ~= "" or n > 0) then
      ids[token] = n
      if token ~= "" then
        vocab[#vocab + 1] = quote(token) .. ":" .. n
        if bert_special[token] then added[#added + 1] = added_token(n, token) end
      end
    end
    n = n + 1
  end
  for _, token in ipairs { "[UNK]", "[CLS]", "[SEP]" } do
    if not ids[token] then return nil, ("%s: malformed vocabulary: there is no %s"):format(name, token), "format" end
  end
  local cls, sep = ids["[CLS]"], ids["[SEP]"]
  return ([[{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],"normalizer":{"type":"BertNormalizer",
    "clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":%s},
    "pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["[SEP]",%d],
    "cls":["[CLS]",%d]},"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece",
    "unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{%s}}}]])
    :format(table.concat(added, ","), tostring(lower), sep, cls, table.concat(vocab, ","))
end

--- vocab.json and the lines of merges.txt.
-- @treturn string; or nil, message, code
function M.byte_level(vocab, merges, name)
  local list = {}
  for line in merges:gmatch "[^\r\n]+" do
    if not (#list == 0 and line:find "^#version") then
      local a, b = line:match "^(%S+) (%S+)%s*$"
      if not a then return nil, ("%s: malformed merges: %q"):format(name, line:sub(1, 40)), "format" end
      list[#list + 1] = ("[%s,%s]"):format(quote(a), quote(b))
    end
  end
  local bytes = '{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}'
  local end_token = vocab:match '"<|endoftext|>"%s*:%s*(%d+)'
  return ('{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],"normalizer":null,"pre_tokenizer":%s,'
    .. '"post_processor":%s,"decoder":%s,"model":{"type":"BPE","vocab":%s,"merges":[%s]}}'):format(
    end_token and added_token(math.tointeger(tonumber(end_token)), "<|endoftext|>") or "", bytes,
    '{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true}', bytes, vocab,
    table.concat(list, ","))
end

return M
