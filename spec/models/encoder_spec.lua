-- SPDX-License-Identifier: MIT
-- Encoders, vision models and models with an encoder and a decoder, made from options: read again as they were written,
-- padding changes nothing, heads and losses, text made with a cache, wrong calls.

local T = require "perilune"
local json = require "perilune.io.json"
local near = require "spec.support.near"
local folder = require "spec.support.folder"
local function fails(f, part) return near.fails(part, f) end

local function ids(list) return T.tensor(list, { dtype = "i64" }) end
local function same(a, b, tol)
  assert.same(a:shape(), b:shape())
  local d = (a:detach() - b:detach()):abs():max():item()
  assert.is_true(d <= (tol or 1e-4), "differs by " .. d)
end

local bert = { vocab_size = 32, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
  num_attention_heads = 4,
  max_position_embeddings = 20, initializer_range = 0.3 }
local distil = { vocab_size = 32, dim = 16, hidden_dim = 24, n_layers = 2, n_heads = 4, max_position_embeddings = 20,
  initializer_range = 0.3 }
local settings = {
  BERT = bert, RoBERTa = bert, DistilBERT = distil,
  T5 = { vocab_size = 32, d_model = 16, d_kv = 4, d_ff = 24, num_layers = 2, num_heads = 4, initializer_range = 0.3,
    relative_attention_num_buckets = 8, relative_attention_max_distance = 12, feed_forward_proj = "gated-gelu" },
  Whisper = { vocab_size = 32, d_model = 16, num_mel_bins = 8, encoder_layers = 1, decoder_layers = 2,
    encoder_attention_heads = 2, decoder_attention_heads = 4, encoder_ffn_dim = 24, decoder_ffn_dim = 24,
    max_source_positions = 6, max_target_positions = 24, decoder_start_token_id = 1, pad_token_id = 0,
    bos_token_id = 1, eos_token_id = 2, initializer_range = 0.3 },
  ViT = { image_size = 8, patch_size = { 4, 2 }, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
    num_attention_heads = 4, num_labels = 3, initializer_range = 0.3 },
  CLIP = { projection_dim = 8, text_config = { vocab_size = 32, hidden_size = 16, intermediate_size = 24,
    num_hidden_layers = 2, num_attention_heads = 4, eos_token_id = 31, max_position_embeddings = 20 }, vision_config = {
    hidden_size = 12, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 4, image_size = 8,
    patch_size = 4 } },
  ConvNeXt = { hidden_sizes = { 6, 8 }, depths = { 1, 2 }, num_labels = 3, layer_scale_init_value = 0.5 },
  ResNet = { embedding_size = 6, hidden_sizes = { 8, 12 }, depths = { 1, 2 }, num_labels = 3 },
}
local names = {}
for name in pairs(settings) do names[#names + 1] = name end
table.sort(names)

local function with(name, more)
  local o = {}
  for key, v in pairs(settings[name]) do o[key] = v end
  for key, v in pairs(more or {}) do o[key] = v end
  return o
end
local function made(name, more)
  T.manual_seed(4)
  return T.models[name](with(name, more)):eval()
end

local text = { { 5, 9, 30, 14, 7, 6, 2, 31 } }
-- An input of each, and the options of a call that has a loss.
local function input(name)
  T.manual_seed(8)
  local picture = T.randn(2, 3, 8, 8)
  if name == "ViT" then return picture, { labels = ids { 2, 0 } } end
  if name == "ConvNeXt" or name == "ResNet" then return T.randn(2, 3, 32, 32), { labels = ids { 2, 0 } } end
  if name == "CLIP" then return ids { text[1], text[1] }, { pixel_values = picture, loss = true } end
  if name == "Whisper" then return T.randn(1, 8, 12), { labels = ids(text) } end
  return ids(text), { labels = ids(text) }
end

describe("a model of T.models", function()
  for _, name in ipairs(names) do
    it(name .. " is read again as it was written, and trains", function()
      local net = made(name)
      folder(function(dir)
        assert(T.models.save(net, dir))
        local again = assert(T.models.load(dir))
        local x, o = input(name)
        local y, out = net(x, o)
        local z, other = again(x, o)
        assert.is_true(y:equal(z))
        assert.equal(out.loss:item(), other.loss:item())
        local opt = T.optim.AdamW(again:train():parameters(), { lr = 0.003 })
        local before = again:parameters()[#again:parameters()]:clone()
        for _, p in ipairs(again:modules()) do -- the same each time
          if p.p then p.p = 0 end
          if p.dropout and type(p.dropout) == "number" then p.dropout = 0 end
        end
        local function loss() return select(2, again(x, o)).loss end
        local first = loss()
        first:backward()
        opt:step()
        assert.is_true(loss():item() < first:item())
        assert.is_false(before:equal(again:parameters()[#again:parameters()]))
      end)
    end)
  end

  for _, name in ipairs { "BERT", "RoBERTa", "DistilBERT" } do
    it(name .. " does not see padding", function()
      local net = made(name)
      local pad = name == "RoBERTa" and 1 or 0
      local short, long = { 5, 9, 30, 14 }, { 5, 9, 30, 14, pad, pad, pad }
      local y = net(ids { long, { 5, 9, 30, 14, 7, 6, 3 } }, { attention_mask = ids { { 1, 1, 1, 1, 0, 0, 0 },
        { 1, 1, 1, 1, 1, 1, 1 } } })
      same(y:narrow(1, 1, 1):narrow(2, 1, 4), (net(ids { short })))
      same(y:narrow(1, 2, 1), (net(ids { { 5, 9, 30, 14, 7, 6, 3 } })))
    end)

    it(name .. " has its other heads", function()
      local prefix = ({ BERT = "Bert", RoBERTa = "Roberta", DistilBERT = "DistilBert" })[name]
      local function head(class, more)
        more = more or {}
        more.architecture = prefix .. class
        return made(name, more)
      end
      assert.same({ 1, 8, 16 }, head("Model")(ids(text)):shape())
      assert.same({ 1, 5 }, head("ForSequenceClassification", { num_labels = 5 })(ids(text)):shape())
      local y, out = head("ForTokenClassification", { num_labels = 4 })(ids(text), { labels = ids { { 0, 1, 2, 3, -100,
        0, 0, 0 } } })
      assert.same({ 1, 8, 4 }, y:shape())
      assert.is_true(out.loss:item() > 0)
      y, out = head("ForQuestionAnswering")(ids { text[1], text[1] }, { start_positions = ids { 2, 3 },
        end_positions = ids { 9, 4 } }) -- an end beyond the text does not count
      assert.same({ 2, 8, 2 }, y:shape())
      local from, to = out.start_logits:log_softmax(-1):totable(), out.end_logits:log_softmax(-1):totable()
      near.near(out.loss, -((from[1][3] + from[2][4]) / 2 + to[2][5]) / 2, 1e-5)
      local number = head("ForSequenceClassification", { num_labels = 1 })
      y, out = number(ids(text), { labels = T.tensor { 2 } })
      near.near(out.loss, (y:item() - 2) ^ 2, 1e-4)
      local many = head("ForSequenceClassification", { num_labels = 3 })
      y, out = many(ids(text), { labels = T.tensor { { 1, 0, 1 } } })
      near.near(out.loss, T.nn.F.binary_cross_entropy_with_logits(y, T.tensor { { 1, 0, 1 } }):item(), 1e-5)
    end)
  end

  it("BERT takes kinds of sentence and places, and says what it does not take", function()
    local net = made "BERT"
    local kinds = ids { { 0, 0, 0, 0, 1, 1, 1, 1 } }
    assert.is_false(net(ids(text)):equal((net(ids(text), { token_type_ids = kinds }))))
    same(net(ids(text)), (net(ids(text), { position_ids = ids { { 0, 1, 2, 3, 4, 5, 6, 7 } } })))
    fails(function() net(ids(text), { token_type_ids = kinds + 1 }) end, "token_type_ids must be from 0 to 1")
    fails(function() net(ids { T.ones(21):long():totable() }) end, "position_ids must be from 0 to 19")
    fails(function() net(ids { { 32 } }) end, "ids must be from 0 to 31")
    fails(function() net:generate { 1, 2 } end, "BertForMaskedLM makes no text")
    local x = T.ones(1, 8, net.config.hidden_size)
    fails(function() net(ids(text), { inputs_embeds = x }) end, "one of them must be nil")
    fails(function() net(nil, { inputs_embeds = x:narrow(3, 1, 2) }) end, "inputs_embeds must be [B, L, ")
    local classes = made("BERT", { architecture = "BertForSequenceClassification" })
    fails(function() classes(ids(text), { labels = { 0 } }) end, "labels must be a tensor, got a table")
    fails(function() made("BERT", { problem_type = "regresion" }) end, "did you mean 'regression'")
    local answers = made("BERT", { architecture = "BertForQuestionAnswering" })
    fails(function() answers(ids(text), { start_positions = ids { 0 } }) end, "go together")
    fails(function() T.models.CLIP { text_config = { vocab_sise = 4 } } end, "did you mean 'vocab_size'")
    fails(function() T.models.BERT { hidden_size = 15, num_attention_heads = 4 } end, "must be a multiple of num_heads")
  end)

  it("ResNet has relu within its layers, whatever stands behind them", function()
    local net = made("ResNet", { hidden_act = "gelu" })
    local layer = net.resnet.encoder.stages[1].layers[1]
    local x = T.randn(1, 6, 4, 4)
    local a, b, c = layer.layer[1], layer.layer[2], layer.layer[3]
    local function conv(m, y) return m.normalization(m.convolution(y)) end
    local y = conv(c, conv(b, conv(a, x):relu()):relu())
    same(layer(x), T.nn.F.gelu(y + conv(layer.shortcut, x)))
  end)

  it("pictures of another size are refused", function()
    fails(function() made "ViT"(T.ones(1, 3, 9, 8)) end, "pixels must be floating [B, 3, 8, 8]")
    fails(function() made "ResNet"(T.ones(1, 1, 32, 32)) end, "pixels must be floating [B, 3, H, W]")
    fails(function() made("CLIP")(ids(text)) end, "pixel_values [B, C, H, W] are missing")
    fails(function() T.models.ResNet(with("ResNet", { layer_type = "wide" })) end, "unknown layer_type 'wide'")
    fails(function() T.models.ConvNeXt { hidden_sizes = { 4 }, depths = { 1, 1 } } end, "one for each stage")
  end)

  it("pictures are made as a file says, or it is refused", function()
    local function look(c) return T.models.image_processor(c) end
    local grey = T.full({ 8, 8, 3 }, 128, { dtype = "u8" })
    local function value(kind, more)
      local c = { image_processor_type = kind .. "ImageProcessor", do_resize = false, do_center_crop = false }
      for key, v in pairs(more or {}) do c[key] = v end
      return look(c)(grey)
    end
    local x = 128 / 255
    assert.is_true(math.abs(value("CLIP")[{ 1, 1, 1, 1 }]:item() - (x - 0.48145466) / 0.26862954) < 1e-5)
    assert.is_true(math.abs(value("ViT", { image_mean = 0.25, image_std = 2 })[{ 1, 3, 1, 1 }]:item()
      - (x - 0.25) / 2) < 1e-5)
    assert.same({ 1, 3, 4, 6 }, value("ConvNext", { do_center_crop = true, crop_size = { height = 4, width = 6 } })
      :shape())
    for part, more in pairs { ["image_mean must be a number, or 3 of them"] = { image_mean = { 1, 2 } },
      ["do_pad = true"] = { do_pad = true }, ["shortest_edge alone"] = { do_resize = true, size = { shortest_edge = 4,
        longest_edge = 6 } }, ["unknown setting 'sise'"] = { sise = 4 } } do
      fails(function() value("CLIP", more) end, part)
    end
  end)

  it("CLIP's halves stand alone", function()
    local net = made "CLIP"
    local texts = ids { { 5, 6, 31, 0 }, { 7, 31, 31, 9 } }
    local _, out = net(texts, { pixel_values = T.randn(2, 3, 8, 8) })
    local v = net:text_features(texts)
    same(out.text_embeds, v / v:square():sum(-1, { keepdim = true }):sqrt())
    same(v:narrow(1, 2, 1), net:text_features(ids { { 7, 31 } })) -- what comes behind the end does not count
    folder(function(dir)
      assert(T.models.save(net, dir))
      local half = assert(T.models.load(dir, { architecture = "CLIPTextModelWithProjection" }))
      same(half(texts), v)
    end)
  end)

  it("refuses layers that the config does not have, also of parts that other classes lack", function()
    for name, fewer in pairs { T5 = function(c) c.num_decoder_layers = 1 end,
      CLIP = function(c) c.text_config.num_hidden_layers = 1 end } do
      folder(function(dir)
        assert(T.models.save(made(name), dir))
        local c = assert(json.read(dir .. "/config.json"))
        fewer(c)
        assert(json.write(dir .. "/config.json", c))
        local none, why = T.models.load(dir)
        assert.is_nil(none)
        assert.truthy(why:find("tensors are not of this model", 1, true), why)
      end)
    end
  end)
end)

describe("a model with an encoder and a decoder", function()
  local function source(name) return name == "T5" and ids { { 9, 8, 7, 6, 1 } } or T.randn(1, 8, 12) end
  local function greedy(net, x, first, n)
    local list = { table.unpack(first) }
    for _ = 1, n do
      local y = net(x, { decoder_input_ids = ids { list }, last = 1 })
      list[#list + 1] = y:argmax(-1, { index_base = 0 }):item()
    end
    return { table.unpack(list, #first + 1) }
  end

  for _, name in ipairs { "T5", "Whisper" } do
    it(name .. " makes the same text with a cache as without", function()
      local net, x = made(name), source(name)
      T.no_grad(function()
        local start = name == "T5" and 0 or 1
        local want = greedy(net, x, { start }, 10)
        assert.same(want, net:generate(nil, { inputs = x, max_new_tokens = 10, stop = false }):totable())
        assert.same(greedy(net, x, { start, 4, 5 }, 6),
          net:generate({ start, 4, 5 }, { inputs = x, max_new_tokens = 6, stop = false }):totable())
        local one = net:generate(nil, { inputs = x, max_new_tokens = 6, stop = false, num_beams = 3 }):totable()
        local both = T.cat({ x, x }, 1)
        local two = net:generate(nil, { inputs = both, max_new_tokens = 6, stop = false, num_beams = 3 })
        assert.same(one, two[1]:totable())
        assert.same(one, two[2]:totable())
      end)
    end)
  end

  it("T5 does not see padding of its source", function()
    local net = made "T5"
    local y = net(ids { { 9, 8, 7, 0, 0 } }, { attention_mask = ids { { 1, 1, 1, 0, 0 } },
      decoder_input_ids = ids(text) })
    same(y, (net(ids { { 9, 8, 7 } }, { decoder_input_ids = ids(text) })))
    local o = { inputs = ids { { 9, 8, 7, 0, 0 } }, inputs_mask = ids { { 1, 1, 1, 0, 0 } }, max_new_tokens = 5,
      stop = false }
    assert.same(net:generate(nil, { inputs = ids { { 9, 8, 7 } }, max_new_tokens = 5, stop = false }):totable(),
      net:generate(nil, o):totable())
  end)

  it("T5 takes dense_act_fn and is_gated_act of a config before feed_forward_proj", function()
    local small = { vocab_size = 32, d_model = 16, d_kv = 4, d_ff = 24, num_layers = 1, num_heads = 4,
      initializer_range = 0.3 }
    local function net(more, from)
      local o = {}
      for key, v in pairs(small) do o[key] = v end
      for key, v in pairs(more) do o[key] = v end
      local n = T.models.T5(o):eval()
      if from then n:load_state_dict(from:state_dict()) end
      return n
    end
    local x = ids { { 5, 6, 7, 1 } }
    for gated, mark in pairs { [true] = "gated-", [false] = "" } do
      for _, act in ipairs { "relu", "silu", "gelu", "gelu_new", "tanh" } do
        for _, said in ipairs { "relu", "gated-gelu" } do
          local a = net { feed_forward_proj = said, dense_act_fn = act, is_gated_act = gated }
          -- gated-gelu is gelu_new, while dense_act_fn = "gelu" is gelu itself
          if not (gated and act == "gelu") then
            same(a(x, { decoder_input_ids = x }), net({ feed_forward_proj = mark .. act }, a)(x,
              { decoder_input_ids = x }), 1e-6)
          end
        end
      end
    end
    folder(function(dir)
      assert(T.models.save(net {}, dir))
      local c = assert(json.read(dir .. "/config.json"))
      c.is_encoder_decoder = false
      assert(json.write(dir .. "/config.json", c))
      local none, why = T.models.load(dir)
      assert.is_nil(none)
      assert.truthy(why:find("is_encoder_decoder = false is not supported", 1, true), why)
    end)
  end)

  it("T5 shifts labels behind its start token, and ignores -100", function()
    local net = made "T5"
    local _, a = net(ids(text), { labels = ids { { 4, 5, -100 } } })
    local logits = net(ids(text), { decoder_input_ids = ids { { 0, 4, 5 } } })
    near.near(a.loss, T.cross_entropy(logits:narrow(2, 1, 2):reshape(2, 32), ids { 4, 5 }, { index_base = 0 }):item(),
      1e-5)
  end)

  it("Whisper leaves out what its settings suppress", function()
    local net, x = made "Whisper", source "Whisper"
    local o = { inputs = x, max_new_tokens = 4, stop = false }
    local free = net:generate(nil, o):totable()
    net.generation_config.begin_suppress_tokens = { free[1] }
    assert.not_equal(free[1], net:generate(nil, o):totable()[1])
    net.generation_config.suppress_tokens = { free[1], free[2] }
    for _, id in ipairs(net:generate(nil, o):totable()) do assert.is_true(id ~= free[1] and id ~= free[2]) end
  end)

  it("says what is missing", function()
    local net = made "T5"
    fails(function() net(ids(text)) end, "decoder_input_ids or labels")
    fails(function() net:generate { 0 } end, "reads something before it writes")
    fails(function() net(ids { text[1], text[1] }, { decoder_input_ids = ids { { 0 } } }) end, "1 texts to write for 2")
    assert.equal(1, net:generate(nil, { inputs = ids(text[1]), max_new_tokens = 2 }):dim()) -- one input, one text
    fails(function() made "Whisper"(T.ones(1, 8, 5), { labels = ids(text) }) end, "features must be [B, 8, 12]")
    fails(function() made "Whisper"(T.ones(1, 8, 12), { decoder_input_ids = T.ones(1, 25):long() }) end, "24 places")
  end)
end)

describe("T.models.log_mel", function()
  it("puts a tone into its band, silence at the floor", function()
    local function tone(hz) return (T.arange(0, 15999, {
      dtype = "f64" }) * (2 * math.pi * hz / 16000)):sin():float() end
    local low, high = T.models.log_mel(tone(300), { seconds = 1 }), T.models.log_mel(tone(3000), { seconds = 1 })
    assert.same({ 1, 80, 100 }, low:shape())
    local a = low:select(3, 50):argmax():item()
    local b = high:select(3, 50):argmax():item()
    assert.is_true(a < 15 and b > 40, a .. " " .. b)
    near.near(T.models.log_mel(T.zeros(100), { seconds = 1 }), -1.5)
    fails(function() T.models.log_mel(ids(text)) end, "the wave must be floating")
  end)
end)
