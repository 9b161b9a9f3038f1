-- SPDX-License-Identifier: MIT
-- Networks of T.models on a device: the same logits, gradients and texts as on the CPU.

local T = require "perilune"

local tiny = { vocab_size = 32, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
  num_attention_heads = 4,
  num_key_value_heads = 2, pad_token_id = 0, initializer_range = 0.3 }
local makers = {
  Llama = function() return T.models.Llama(tiny) end,
  Gemma2 = function()
    local o = { head_dim = 8, query_pre_attn_scalar = 8, sliding_window = 4 }
    for key, v in pairs(tiny) do o[key] = v end
    return T.models.Gemma2(o)
  end,
  GPT2 = function()
    return T.models.GPT2 { vocab_size = 32, n_embd = 16, n_layer = 2, n_head = 4, n_positions = 64,
      initializer_range = 0.3,
      resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0, eos_token_id = 2 }
  end,
  Mixtral = function()
    local o = { num_local_experts = 3 }
    for key, v in pairs(tiny) do o[key] = v end
    return T.models.Mixtral(o)
  end,
  T5 = function()
    return T.models.T5 { vocab_size = 32, d_model = 16, d_kv = 4, d_ff = 24, num_layers = 2, num_heads = 4,
      initializer_range = 0.3, dropout_rate = 0 }
  end,
}
local names = {}
for name in pairs(makers) do names[#names + 1] = name end
table.sort(names)

local function near(a, b)
  local d, most = (a:cpu():detach() - b:detach()):abs():max():item(), b:detach():abs():max():item()
  assert.is_true(d <= 1e-4 * math.max(1, most), ("differs by %g of %g"):format(d, most))
end

describe("T.models on a device", function()
  if not T.cuda.is_available() then return it("computes as on the CPU", function() pending("no device") end) end

  for _, name in ipairs(names) do
    it(name .. " computes, trains and writes as on the CPU", function()
      T.manual_seed(7)
      local cpu = makers[name]()
      local gpu = cpu:clone():to "cuda"
      local ids = T.tensor({ { 3, 9, 27, 14, 5, 30 }, { 0, 0, 8, 21, 4, 11 } }, { dtype = "i64" })
      local mask = ids:ne(0):long()
      local labels = ids:masked_fill(ids:eq(0), -100)
      local y, out = cpu(ids, { attention_mask = mask, labels = labels })
      local z, other = gpu(ids:to "cuda", { attention_mask = mask:to "cuda", labels = labels:to "cuda" })
      near(z, y)
      out.loss:backward()
      other.loss:backward()
      local list = gpu:parameters()
      for i, p in ipairs(cpu:parameters()) do near(list[i].grad, p.grad) end
      local source = name == "T5" and ids:narrow(1, 1, 1) or nil
      for _, o in ipairs { {}, { num_beams = 3 }, { temperature = 0.9, top_k = 12, top_p = 0.9,
        repetition_penalty = 1.2,
        no_repeat_ngram_size = 2, bad_words = { { 3 } }, seed = 1 } } do
        o.max_new_tokens, o.stop, o.inputs = 5, false, source
        local prompt = { 3, 9, 27 }
        local want = cpu:generate(prompt, o)
        o.inputs = source and source:to "cuda"
        assert.same(want:totable(), gpu:generate(prompt, o):totable())
      end
      if name ~= "T5" then
        local o = { max_new_tokens = 4, stop = false }
        assert.same(cpu:generate({ { 3, 9 }, { 4 } }, o)[2]:totable(), gpu:generate({ { 3, 9 }, { 4 } },
          o)[2]:totable())
      end
    end)
  end
end)
