-- SPDX-License-Identifier: MIT
-- A small model that writes text, as a folder: random weights, a tokenizer trained here, a chat template.
local T = require "perilune"
local term = require "spec.support.terminal"

local M = {}

local TEMPLATE = "{{ '<s>' }}{% for m in messages %}{{ '<' + m.role + '>' + m.content + '</s>' }}{% endfor %}"
  .. "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"

--- The folder, a function that removes it, the network, the tokenizer. more: other settings of the network; chat =
-- false: no chat template.
function M.make(more, chat)
  local dir, remove = term.folder()
  local text = ("the quick brown fox jumps over the lazy dog. hällo wörld; one two three four five. "):rep(20)
  local tokenizer = assert(T.data.train_bpe { vocab_size = 320, text = text,
    special = { "<s>", "</s>", "<user>", "<assistant>", "<system>" } })
  assert(tokenizer:save(dir .. "/tokenizer.json"))
  term.write(dir .. "/tokenizer_config.json", ('{"bos_token":"<s>","eos_token":"</s>"%s}'):format(chat == false and ""
    or (',"chat_template":"%s"'):format(TEMPLATE)))
  local settings = { vocab_size = #tokenizer, hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
    num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 256, initializer_range = 0.4,
    bos_token_id = tokenizer:id("<s>", { index_base = 0 }), eos_token_id = tokenizer:id("</s>", { index_base = 0 }) }
  for key, v in pairs(more or {}) do settings[key] = v end
  T.manual_seed(11)
  local net = T.models.Llama(settings):eval()
  assert(T.models.save(net, dir))
  return dir, remove, assert(T.models.load(dir)), assert(T.models.tokenizer(dir))
end

--- What greedy generating gives as text, up to the end token.
function M.greedy(net, tokenizer, ids, n)
  local eos, out = tokenizer:id "</s>", {}
  for _, id in ipairs(net:generate(ids, { max_new_tokens = n, stop = { eos } }):totable()) do
    if id ~= eos then out[#out + 1] = id end
  end
  return tokenizer:decode(out)
end

return M
