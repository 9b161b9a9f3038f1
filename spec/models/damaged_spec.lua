-- SPDX-License-Identifier: MIT
-- Folders of models with anything in their config: T.models.load returns a network, or nil, a message and a code; it
-- never raises, and never takes what it cannot have read.

local T = require "perilune"
local json = require "perilune.io.json"

local rounds = tonumber(os.getenv "PERILUNE_FUZZ_MODELS") or 60

local tiny = {
  Llama = { vocab_size = 16, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    rope_scaling = { rope_type = "llama3", factor = 2.0, low_freq_factor = 1.0, high_freq_factor = 4.0,
      original_max_position_embeddings = 16 } },
  Gemma3 = { vocab_size = 16, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 2, num_attention_heads = 2,
    num_key_value_heads = 1, head_dim = 4, query_pre_attn_scalar = 4, sliding_window = 4 },
  Phi3 = { vocab_size = 16, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    pad_token_id = 0, original_max_position_embeddings = 8, max_position_embeddings = 16, rope_scaling = {
      rope_type = "longrope", short_factor = { 1.0, 1.0 }, long_factor = { 1.0, 2.0 } } },
  Mixtral = { vocab_size = 16, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    num_key_value_heads = 1, num_local_experts = 2 },
  GPT2 = { vocab_size = 16, n_embd = 8, n_layer = 1, n_head = 2, n_positions = 8 },
  BERT = { vocab_size = 16, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    max_position_embeddings = 8 },
  T5 = { vocab_size = 16, d_model = 8, d_kv = 4, d_ff = 8, num_layers = 1, num_heads = 2 },
  Whisper = { vocab_size = 16, d_model = 8, num_mel_bins = 4, encoder_layers = 1, decoder_layers = 1,
    encoder_attention_heads = 2, decoder_attention_heads = 2, encoder_ffn_dim = 8, decoder_ffn_dim = 8,
    max_source_positions = 4, max_target_positions = 8, decoder_start_token_id = 1, pad_token_id = 0 },
  ViT = { image_size = 8, patch_size = 4, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
    num_attention_heads = 2 },
  CLIP = { projection_dim = 4, text_config = { vocab_size = 16, hidden_size = 8, intermediate_size = 8,
    num_hidden_layers = 1, num_attention_heads = 2, eos_token_id = 7 }, vision_config = { hidden_size = 8,
    intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2, image_size = 8, patch_size = 4 } },
  ConvNeXt = { hidden_sizes = { 4, 8 }, depths = { 1, 1 } },
  ResNet = { embedding_size = 4, hidden_sizes = { 4, 8 }, depths = { 1, 1 }, layer_type = "basic" },
}
local names = {}
for name in pairs(tiny) do names[#names + 1] = name end
table.sort(names)

local odd = { 0, -1, 1, 2, 3, 7, 1e9, 2 ^ 40, 2 ^ 62, 0.5, -0.0, 1e308, "x", "", "gelu", true, false, json.null, {},
  json.array {}, json.array { 1 }, json.array { -1, "a" }, json.array { 1, 2, 3, 4, 5, 6 }, { rope_type = "yarn" },
  { rope_type = "dynamic", factor = 1 }, { type = 3 }, { a = { b = {} } }, { full_attention = 3 },
  { hidden_size = 3 } }

-- A copy with something else at a random place.
local function damaged(v, pick)
  local keys, out = {}, json.is_array(v) and json.array {} or {}
  for key, x in pairs(v) do
    keys[#keys + 1] = key
    out[key] = x
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  if #keys == 0 then return out end
  local key = keys[pick(#keys)]
  if type(out[key]) == "table" and out[key] ~= json.null and pick(2) == 1 then
    out[key] = damaged(out[key], pick)
  elseif pick(8) == 1 and not json.is_array(v) then
    out[key] = nil
  else
    out[key] = odd[pick(#odd)]
  end
  return out
end

describe("T.models.load of damaged configs", function()
  for _, name in ipairs(names) do
    it(name .. " loads or says why not", function()
      local dir = os.tmpname()
      os.remove(dir)
      assert(os.execute('mkdir "' .. dir .. '"'))
      T.manual_seed(1)
      assert(T.models.save(T.models[name](tiny[name]), dir))
      local good = assert(json.read(dir .. "/config.json"))
      local seed = 12345
      local function pick(n)
        seed = (seed * 1103515245 + 12345) % 2147483648
        return seed // 65536 % n + 1
      end
      local loaded = 0
      for _ = 1, rounds do
        local c = damaged(good, pick)
        assert(json.write(dir .. "/config.json", c))
        local ok, net, why, code = pcall(T.models.load, dir)
        if not ok or not net and (type(why) ~= "string" or type(code) ~= "string") then
          os.execute('rm -r "' .. dir .. '"')
          error(("%s\n%s"):format(ok and "no message" or tostring(net), json.encode(c)))
        end
        loaded = loaded + (net and 1 or 0)
        net = nil -- luacheck: ignore
        if loaded % 20 == 19 then collectgarbage() end
      end
      os.execute('rm -r "' .. dir .. '"')
      assert.is_true(loaded > 0 and loaded < rounds, loaded .. " were loaded")
    end)
  end
end)

describe("GGUF models with anything in them", function()
  -- One of every way to have weights: in blocks, with and without a head of its own, numbers beside.
  local function made(path, format, width, tied)
    local tensors = { ["token_embd.weight"] = T.randn(16, width), ["output_norm.weight"] = T.ones(width),
      ["blk.0.attn_norm.weight"] = T.ones(width), ["blk.0.ffn_norm.weight"] = T.ones(width) }
    for _, name in ipairs { "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down" } do
      tensors["blk.0." .. name .. ".weight"] = T.randn(width, width) * 0.1
    end
    if not tied then tensors["output.weight"] = T.randn(16, width) end
    local kinds, keys = {}, { block_count = 1, context_length = 64, embedding_length = width,
      feed_forward_length = width, ["attention.head_count"] = 2, ["attention.head_count_kv"] = 2,
      ["attention.layer_norm_rms_epsilon"] = 1e-5 }
    local metadata = { ["general.architecture"] = "llama" }
    for key, v in pairs(keys) do metadata["llama." .. key] = v end
    kinds["llama.attention.layer_norm_rms_epsilon"] = "f32"
    assert(T.save_gguf(path, tensors, { metadata = metadata, kinds = kinds, type = format }))
    local f = assert(io.open(path, "rb"))
    local bytes = f:read "a"
    f:close()
    return bytes
  end

  it("are refused, or run: any bits of blocks are numbers, and sizes are those of the layers", function()
    local path = os.tmpname() .. ".gguf"
    local state = 88172645463325252
    local function int(lo, hi)
      state = state ~ (state << 13)
      state = state ~ (state >> 7)
      state = state ~ (state << 17)
      return lo + math.tointeger((state >> 1) % (hi - lo + 1))
    end
    T.manual_seed(3)
    local ran, refused = 0, 0
    for _, kind in ipairs { { "Q4_0", 32 }, { "Q8_0", 32, true }, { "Q5_1", 32 }, { "Q4_K", 256 },
      { "Q6_K", 256, true } } do
      local good = made(path, kind[1], kind[2], kind[3])
      for round = 1, rounds do
        local bytes = good
        for _ = 1, round == 1 and 0 or int(1, 5) do
          local at = int(1, int(0, 2) == 0 and #bytes or math.min(#bytes, 1400))
          bytes = bytes:sub(1, at - 1) .. string.char(int(0, 255)) .. bytes:sub(at + 1)
        end
        if round > 1 and int(1, 20) == 1 then bytes = bytes:sub(1, int(1, #bytes)) end
        local f = assert(io.open(path, "wb"))
        f:write(bytes)
        f:close()
        local net, why, code = T.models.load(path)
        assert.is_true(net ~= nil or type(why) == "string" and type(code) == "string")
        if net then
          local ok, message = pcall(net.generate, net, { 1, 2 }, { max_new_tokens = 12, stop = false })
          assert.is_true(ok or type(message) == "string", message)
          ran = ran + (ok and 1 or 0)
        else
          refused = refused + 1
        end
        assert.is_true(round > 1 or net ~= nil, why)
      end
    end
    os.remove(path)
    assert.is_true(ran >= rounds // 2 and refused > 0, ("%d ran, %d were refused"):format(ran, refused))
  end)
end)
