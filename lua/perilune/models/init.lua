-- SPDX-License-Identifier: MIT
--- T.models: networks that people have, read from the folders of transformers and written as such, or made from
-- options.
-- Ids of tokens, classes and places are the files' own and count from 0, as do the numbers in names of parameters
-- (net:state_dict{index_base = 0}); dimensions and everything else count from 1. @module perilune.models
local T = require "perilune"
local core = require "perilune.core"
local config = require "perilune.models.config"
local json = require "perilune.io.json"
local module = require "perilune.nn.module"
local options = require "perilune.options"
local weights = require "perilune.models.weights"

local fail, describe = options.fail, options.describe
local models = {}

-- Files of architectures: name in T.models → file; model_type → file.
local files = { Llama = "llama", Mistral = "mistral", Qwen2 = "qwen2", Qwen3 = "qwen3", Gemma = "gemma",
  Gemma2 = "gemma2",
  Gemma3 = "gemma3", Phi3 = "phi3", Phi = "phi", GPTNeoX = "gpt_neox", Mixtral = "mixtral", Qwen3Moe = "qwen3_moe",
  Olmoe = "olmoe", GPT2 = "gpt2", BERT = "bert", RoBERTa = "roberta", DistilBERT = "distilbert", ViT = "vit",
  CLIP = "clip", ConvNeXt = "convnext", ResNet = "resnet", T5 = "t5", Whisper = "whisper" }
local types = { gemma3_text = "gemma3", clip_text_model = "clip", clip_vision_model = "clip" }
for _, file in pairs(files) do types[file] = types[file] or file end

local function sorted(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function architecture(file) return require("perilune.models." .. file) end

-- pcall for what refuses: f(…), or nil, message, code.
local function guarded(f, ...)
  local done = table.pack(pcall(f, ...))
  if done[1] then return table.unpack(done, 2, done.n) end
  local why = done[2]
  if type(why) == "table" and why.message then return nil, why.message, why.code end
  error(why, 0)
end

-- What nn's constructors refuse is what the config is refused for.
local function built(a, class, c)
  local ok, net = core.attempt(a.classes[class], c)
  if ok then return net end
  if type(net) == "table" then error(net, 0) end
  config.fault("%s: %s", class, (tostring(net):gsub("^[^\n]-:%d+: ", "")))
end

local function finish(net, a, class, c, given, generation)
  rawset(net, "config", c)
  rawset(net, "_model", { architecture = a, class = class, given = given })
  rawset(net, "generation_config", generation or {})
  return net
end

-- ---- from options ------------------------------------------------------------------------------------------

local function make(name, file, given)
  given = given == nil and {} or given
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("models.%s: a table of settings is wanted, got %s", name, describe(given))
  end
  local a, settings, class = architecture(file), {}, given.architecture
  for key, v in pairs(given) do if key ~= "architecture" then settings[key] = v end end
  class = class or a.default
  if not a.classes[class] then
    fail("models.%s: %s", name, options.unknown("architecture", class, sorted(a.classes)))
  end
  local net, why = guarded(function()
    local c = config.read("models." .. name, config.fields(config.common, a.fields), settings, true)
    for key, list in pairs(a.nested or {}) do
      local part = settings[key]
      if type(part) == "table" then config.read(("models.%s: %s"):format(name, key), list, part, true) end
    end
    if a.check then a.check(class, settings, c) end
    return finish(built(a, class, c), a, class, c, nil, { eos_token_id = c.eos_token_id, pad_token_id = c.pad_token_id,
      bos_token_id = c.bos_token_id })
  end)
  if not net then fail("%s", why) end
  return net
end

-- ---- from folders ------------------------------------------------------------------------------------------

local function read_json(path, optional)
  local v, why, code = json.read(path)
  if v == nil then
    if optional and code == "io" then return nil end
    error({ message = why, code = code }, 0)
  end
  if type(v) ~= "table" or json.is_array(v) then error({ message = path .. ": an object is wanted", code = "format" },
    0) end
  return v
end

local function class_of(path, given, a, wanted)
  local list = given.architectures
  local class = wanted or type(list) == "table" and list[1] or a.default
  if not a.classes[class] then
    config.fault("%s: %s", path, options.unknown("architecture", tostring(class), sorted(a.classes)))
  end
  return class
end

-- Sizes that no tensor has: how far a text may go, how far a layer sees, and the like.
local free = {}
for name in ([[max_position_embeddings original_max_position_embeddings sliding_window max_window_layers
  sliding_window_pattern relative_attention_max_distance decoder_sparse_step]]):gmatch "%S+" do
  free[name] = true
end

-- Sizes in a config are sizes of tensors, or numbers of parts that have tensors of their own. One that is larger than
-- all that the files hold would only be made to be refused, and who wrote it may mean to fill the memory.
local function check_sizes(path, fields, c, tensors, nested)
  local parts, elements = 0, 0
  for _, t in pairs(tensors) do parts, elements = parts + 1, elements + t:numel() end
  local function look(list, values)
    for _, field in ipairs(list) do
      local name, kind, v = field[1], field[2], values[field[1]]
      local most = (name:find "layers?$" or name == "depths") and parts or elements
      for _, n in ipairs(type(v) == "table" and v or { v }) do
        if (kind == "count" or kind == "size" or kind == "ints") and not free[name] and not name:find "_token_id$"
          and type(n) == "number" and n > most then
          config.fault("%s: %s = %s, and the files hold %d tensors of %d elements", path, name, tostring(n), parts,
            elements)
        end
      end
    end
  end
  look(fields, c)
  for name, list in pairs(nested or {}) do if type(c[name]) == "table" then look(list, c[name]) end end
end

-- What a folder or a GGUF file has: config, tensors, the file of each, settings of generation, and where the config is.
local function source(dir, o)
  if dir:find "%.gguf$" then
    local read = require("perilune.models.gguf").read
    local given, tensors, from, generation = read(dir, not o.dequantize, o.mmap ~= false)
    return given, tensors, from, generation, dir
  end
  local path = dir .. "/config.json"
  if not core.list_folder(dir) then
    local head, why, code = core.file_head(dir)
    error({ message = head and dir .. ": a folder with config.json and weights, or a .gguf file, is wanted; "
      .. (dir:find "%.onnx$" and "T.onnx.load" or "T.load") .. " reads this file"
      or why .. " (models are not downloaded: a folder is wanted)",
      code = head and "unsupported" or code }, 0)
  end
  local given = read_json(path)
  if types[given.model_type] then -- else there is no use in reading them
    local tensors, from = weights.read(dir, o.mmap ~= false)
    return given, tensors, from, read_json(dir .. "/generation_config.json", true), path
  end
  return given, nil, nil, nil, path
end

local function load(dir, o)
  local given, tensors, from, generation, path = source(dir, o)
  local kind = given.model_type
  local file = types[kind]
  if not file then config.fault("%s: %s", path, options.unknown("model_type", tostring(kind), sorted(types))) end
  local a = architecture(file)
  local packed = given.quantization_config
  if packed == json.null then packed = nil end
  if packed then
    packed = require("perilune.io.packed_weights").unpack(path, packed, tensors, from, o.dequantize)
    local more = {}
    for key, v in pairs(given) do if key ~= "quantization_config" then more[key] = v end end
    given = more -- it is no longer so
  end
  local stored = given
  if a.alias then -- other names of fields, which win where a config has both, as in transformers
    given = {}
    for key, v in pairs(stored) do given[key] = v end
    for other, key in pairs(a.alias) do
      if stored[other] ~= nil then given[key], given[other] = stored[other], nil end
    end
  end
  local part = a.parts and a.parts[kind]
  if part then -- the config of one part alone, as it stands in that of the whole
    given = { [part] = given, projection_dim = given.projection_dim, architectures = given.architectures,
      initializer_range = given.initializer_range, num_labels = given.num_labels }
  end
  local class = class_of(path, given, a, o.architecture)
  if o.num_labels then
    if not class:find "Classification" then
      config.fault("%s: num_labels is for classes, and %s has none; architecture= names another head", path, class)
    end
    local more = {}
    for key, v in pairs(given) do more[key] = v end
    more.num_labels, more.id2label, more.label2id = o.num_labels, nil, nil
    given = more
  end
  local fields = config.fields(config.common, a.fields)
  local c = config.read(path, fields, given)
  if a.check then a.check(path, given, c) end
  local alone = generation == nil -- a generation_config.json counts as it is, also where it has no end
  generation = generation or {}
  for _, name in ipairs { "eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id" } do
    if alone then generation[name] = c[name] end
  end
  for key, v in pairs(generation) do if v == json.null then generation[key] = nil end end
  if generation.decoder_start_token_id == nil then
    generation.decoder_start_token_id = generation.bos_token_id or c.decoder_start_token_id
  end
  check_sizes(path, fields, c, tensors, a.nested)
  if a.look then a.look(c, tensors) end
  local state = require "perilune.nn.init_state"
  local stays = o.architecture ~= nil -- a new head is drawn
  state.off = not stays
  local ok, net = pcall(built, a, class, c)
  state.off = false
  if not ok then error(net, 0) end
  local dtype = o.dtype or "f32"
  if dtype == "file" then dtype = nil end
  if packed or dir:find "%.gguf$" then
    net = require("perilune.models.blocks").install(net, tensors, from, a, dtype, packed)
  end
  local heads = a.head_names or { "^lm_head", "^score", "^classifier", "^cls%.", "^qa_outputs", "^pre_classifier",
    "^vocab_", "^pooler", "%.pooler" }
  local function fresh(name)
    for _, pattern in ipairs(heads) do if name:find(pattern) then return true end end
    return false
  end
  local new = weights.fill(net, dir, tensors, from, a, dtype, stays and fresh or nil)
  local where = o.device or T.get_default_device() -- as everything that is made
  if where ~= "cpu" then net:to(where) end
  return finish(net:eval(), a, class, c, o.num_labels and given or stored, generation), new
end

local dtype_names = { f32 = "float32", f64 = "float64", f16 = "float16", bf16 = "bfloat16" }

-- The options with dtype= in perilune's name, where it is in the long one of configs.
local function with_short_dtype(o)
  local given = {}
  for key, v in pairs(o) do given[key] = v end
  for short, long in pairs(dtype_names) do if o.dtype == long then given.dtype = short end end
  return given
end

--- T.models.load(dir, {architecture=, num_labels=, dtype="f32", device=, dequantize=false, mmap=true}) →
--   module, list; or nil, why
-- The network of a folder as transformers writes them: config.json, generation_config.json, model.safetensors or
-- pytorch_model.bin, or their shards; or of a GGUF file of architecture llama, qwen2, qwen3, gemma, gemma2, gemma3,
-- phi3 or gpt2. Quantized weights, there or in folders that GPTQ or AWQ (version gemm) packed, stay so, in
-- nn.QuantizedLinear and nn.QuantizedEmbedding, and are not trained: nn.lora puts adapters beside them. Those of GPTQ
-- and AWQ become blocks of the same numbers (Q4_0, Q5_0, Q8_0) where groups are whole blocks of 32 inputs in order,
-- else numbers. dequantize: all become numbers, parameters as others. A network
-- is in evaluation mode and trains like any other: net:train(), net:parameters(). architecture, "BertModel" or
-- "BertForSequenceClassification", takes another class of the same family; parameters of a head that the files lack
-- are then drawn, and named in the second result. device: where it shall be; without it the default device, as for
-- all that is made. dtype: "f32", "bf16", "f16", "f64", or "file", as stored. Weights on the CPU whose dtype stays are
-- parts of the file, as T.load has it, unless mmap is false. Ids count from 0: T.data.tokenizer(dir, {index_base = 0})
-- makes them. What is wrong with a folder is told in one message that names the file and the tensor; nothing is half
-- loaded.
--   local dir = os.tmpname()
--   os.remove(dir)
--   print((T.models.load(dir)))  --> nil
function models.load(dir, opts)
  if type(dir) ~= "string" then fail("models.load: the folder must be a string, got %s", describe(dir)) end
  local o = with_short_dtype(options.check("models.load", opts, { "architecture", "num_labels", "dtype", "device",
    "dequantize", "mmap" }))
  if o.dtype ~= nil and o.dtype ~= "file" and not dtype_names[o.dtype] then
    fail("models.load: %s", options.unknown("dtype", tostring(o.dtype), { "f32", "bf16", "f16", "f64", "file" }))
  end
  if o.device ~= nil then T.empty({ 0 }, { device = o.device }) end -- raises where there is no such device
  if o.dequantize ~= nil then options.kind("models.load", "dequantize", "bool", o.dequantize) end
  if o.mmap ~= nil then options.kind("models.load", "mmap", "bool", o.mmap) end
  if o.num_labels ~= nil then options.kind("models.load", "num_labels", "count", o.num_labels) end
  return guarded(load, (dir:gsub("(.)/+$", "%1")), o)
end

-- ---- to folders --------------------------------------------------------------------------------------------


-- config.json of a network: what was read, or the settings that it was made from.
local function to_json(net, dtype)
  local m, out = net._model, {}
  if m.given then
    for key, v in pairs(m.given) do out[key] = v end
  else
    for _, field in ipairs(config.fields(config.common, m.architecture.fields)) do
      local v = net.config[field[1]]
      if v == nil and field[3] ~= nil then v = json.null end
      if type(v) == "table" and #v > 0 then v = json.array { table.unpack(v) } end
      out[field[1]] = v
    end
    out.num_labels = nil
    if net.config.num_labels ~= 2 or net.config.id2label then
      out.id2label, out.label2id = {}, {}
      for i = 0, net.config.num_labels - 1 do
        local label = net.config.id2label and net.config.id2label[tostring(i)] or "LABEL_" .. i
        out.id2label[tostring(i)], out.label2id[label] = label, i
      end
    end
    out.model_type = m.architecture.model_type
  end
  if out.tie_word_embeddings ~= nil or not net.config.tie_word_embeddings then
    out.tie_word_embeddings = net.config.tie_word_embeddings
  end
  for _, name in ipairs(m.architecture.settled or {}) do out[name] = net.config[name] end -- what follows from others
  out.architectures = json.array { m.class }
  out.torch_dtype, out.dtype = dtype_names[dtype], nil
  return out
end

-- A network as a GGUF file.
-- Name → the first name that has the same tensor.
local function shared(net)
  local first, out = {}, {}
  for _, item in ipairs(module.collect(net, "state", 0)) do
    first[item[2]] = first[item[2]] or item[1]
    out[item[1]] = first[item[2]]
  end
  return out
end

-- A network that is read shares what its config says, so one that shares other tensors, as its head got a weight of its
-- own or lost it, would be another one. config.tie_word_embeddings becomes what net is; other ties are refused.
local function settle_ties(net)
  local m, state, own = net._model, require "perilune.nn.init_state", shared(net)
  local function differs(tied)
    local c = setmetatable({ tie_word_embeddings = tied }, { __index = net.config })
    local was = state.off
    state.off = true -- nothing is drawn
    local ok, other = pcall(built, m.architecture, m.class, c)
    state.off = was
    if not ok then error(other, 0) end
    local by_own, by_other = {}, {} -- the first name met with a tensor, of each network
    for name, first in pairs(shared(other)) do
      local mine = own[name]
      if mine then
        local a, b = by_own[mine] or name, by_other[first] or name
        if a ~= b then return name, a ~= name and a or b end
        by_own[mine], by_other[first] = a, b
      end
    end
  end
  local now = net.config.tie_word_embeddings
  local name, first = differs(now)
  if not name then return end
  if type(now) == "boolean" and not differs(not now) then
    net.config.tie_word_embeddings = not now
    return
  end
  config.fault("models.save: '%s' and '%s' %s, which a %s does not say in its config", name, first,
    own[name] == own[first] and "are one tensor" or "are two tensors", m.class)
end

local function save_gguf(net, path, o)
  local gguf = require "perilune.io.gguf"
  local list, all = {}, weights.to_save(net, net._model.architecture, o.dtype, function(layer)
    if rawget(layer, "input_scale") then
      error({ code = "unsupported", message = path .. ": GGUF files have no input_scale, which layers quantized by "
        .. "\"awq\" may have; T.quantize(net, {method = \"awq\", fold = \"only\", …}) makes none" }, 0)
    end
    return gguf.blocks(layer.weight, layer.format, { layer.weight:size(1), layer.in_features or layer.embedding_dim })
  end)
  for _, name in ipairs(sorted(all)) do list[#list + 1] = { name, all[name] } end
  return require("perilune.models.gguf").write(path, net, list, o.type, o.tokenizer)
end

--- T.models.save(net, dir, {dtype=, type=, tokenizer=}) → true; or nil and a message
-- Writes a network of T.models into a folder that is there, as transformers reads it: config.json,
-- generation_config.json, model.safetensors under the names of its files. dtype: of the weights there; without it
-- that of the parameters. Quantized weights become numbers there, f32 without dtype. Where dir ends in ".gguf" it is a
-- GGUF file of a LlamaForCausalLM, MistralForCausalLM without a window, Qwen2ForCausalLM, Qwen3ForCausalLM,
-- GemmaForCausalLM, also Gemma2 and Gemma3, Phi3ForCausalLM or GPT2LMHeadModel: quantized weights keep their
-- blocks, other matrices become type ("Q8_0", "F16" …, as in T.save_gguf), norms f32; tokenizer, a byte-level BPE or
-- one of sentencepiece (BPE, Unigram), goes into the file with its chat template. In folders tokenizer becomes
-- tokenizer.json.
--   local net = T.models.Llama { vocab_size = 8, hidden_size = 4, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2 }
--   print((T.models.save(net, "/nowhere")))  --> nil
function models.save(net, dir, opts)
  local o = with_short_dtype(options.check("models.save", opts, { "dtype", "type", "tokenizer" }))
  local m = type(net) == "table" and rawget(net, "_model")
  if not m then fail("models.save: a network of T.models is wanted, got %s", describe(net)) end
  if type(dir) ~= "string" then fail("models.save: the folder must be a string, got %s", describe(dir)) end
  if o.dtype ~= nil and not dtype_names[o.dtype] then
    fail("models.save: %s", options.unknown("dtype", tostring(o.dtype), sorted(dtype_names)))
  end
  if o.tokenizer ~= nil and (type(o.tokenizer) ~= "table" or type(o.tokenizer.json) ~= "string") then
    fail("models.save: tokenizer must be one that T.models.tokenizer or T.data.tokenizer opened, got %s",
      describe(o.tokenizer))
  end
  for name, part in net:named_modules() do
    if rawget(part, "_lora") then
      fail("models.save: %s has an adapter; nn.merge_lora(net) first, or nn.save_lora(net, dir) for the adapters", name)
    end
    if T.nn.utils.parametrize.is_parametrized(part) then -- by names that no reader knows
      fail("models.save: %s has a weight that is computed; nn.utils.parametrize.remove_parametrizations first", name)
    end
  end
  local settled, why_not, kind = guarded(function()
    settle_ties(net)
    return true
  end)
  if not settled then return nil, why_not, kind end
  if dir:find "%.gguf$" then return guarded(save_gguf, net, dir, o) end
  if o.type ~= nil then fail "models.save: type is for GGUF files; give a path that ends in .gguf" end
  local adapter = dir .. "/adapter_config.json"
  if core.file_head(adapter) then -- made for other weights than these, or in these already
    return nil, ("%s: there is an adapter in this folder, which readers put beside its weights; save into another one, "
      .. "or remove the adapter's files"):format(adapter), "unsupported"
  end
  local tensors = weights.to_save(net, m.architecture, o.dtype)
  local _, first = next(tensors)
  local ok, why, code = T.save(dir .. "/model.safetensors", tensors, { metadata = { format = "pt" } })
  if not ok then return nil, why .. (core.list_folder(dir) and "" or "; make the folder first"), code end
  local texts = { ["config.json"] = to_json(net, o.dtype or first:dtype()) }
  if o.tokenizer then
    ok, why, code = o.tokenizer:save(dir .. "/tokenizer.json")
    if not ok then return nil, why, code end
  end
  -- also an empty one where text is made: without the file the ends of config.json would count
  if net.begin or next(net.generation_config) ~= nil then texts["generation_config.json"] = net.generation_config end
  for name, v in pairs(texts) do
    ok, why, code = json.write(dir .. "/" .. name, v)
    if not ok then return nil, why, code end
  end
  return true
end

--- T.models.generate(net, ids, opts) → ids, or a list of them
-- The same as net:generate(ids, opts): new tokens after a prompt, i64 [n] for ids [L] or a list of numbers, a list of
-- such for ids [B, L] (padded: attention_mask; without it pad_token_id of generation_config.json is padding there,
-- unless it is an end, too) or a list of prompts of any lengths. The best token each time, or a
-- drawn one where one of temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff or do_sample is
-- given (seed or generator). Options: max_new_tokens=64, min_new_tokens, stop (an id, a list of ids, or of lists of
-- them; by default the eos_token_id of generation_config.json, of which the suppressed tokens count too, or, where
-- there is no such file, of config.json; false: none),
-- generation_config=true (what that file says of choosing tokens counts where the call says nothing, as transformers
-- has it: do_sample, temperature, top_k, which is 50 where tokens are drawn, beams, penalties, lengths; without it how
-- tokens are chosen stands in the call alone), on_token(id, row) (false ends that
-- text), repetition_penalty, no_repeat_ngram_size, bad_words, suppress (ids that never come; begin_suppress: not as
-- the first new one), min_length (ids of the prompt among them; min_new_tokens stands for it), forced_bos (the id
-- behind a prompt of one), forced_eos (the last one that max_new_tokens leaves room for, or a list of which one),
-- num_beams, length_penalty=1, early_stopping, scores=true (second result: the logits that each token was chosen by),
-- cache (a nn.KVCache; what it has of the prompt is not read again), assistant (a small net that guesses draft=5 tokens
-- at a time; the result stays that of the large one), inputs (what an encoder reads).
--   local net = T.models.Llama { vocab_size = 8, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
--     num_attention_heads = 2 }
--   print(T.models.generate(net, { 1, 2, 3 }, { max_new_tokens = 4, stop = false }):numel())  --> 4
function models.generate(net, ids, opts)
  if type(net) ~= "table" or not rawget(net, "_model") then
    fail("models.generate: a network of T.models is wanted, got %s", describe(net))
  end
  return net:generate(ids, opts)
end

for name, file in pairs(files) do
  models[name] = function(settings) return make(name, file, settings) end
end
models.process = require("perilune.models.processors").process
models.image_processor = require("perilune.models.images").image_processor
function models.log_mel(...) return require("perilune.models.whisper").log_mel(...) end

--- T.models.tokenizer(path) → tokenizer; or nil, a message, code
-- The tokenizer of a model's folder, of a GGUF file, or a tokenizer file, whose ids count from 0 as the networks' do:
-- T.data.tokenizer(path, {index_base = 0}).
--   print((T.models.tokenizer("/nowhere")))  --> nil
function models.tokenizer(path, ...)
  if type(path) ~= "string" then fail("models.tokenizer: the path must be a string, got %s", describe(path)) end
  if select("#", ...) > 0 then fail "models.tokenizer: takes the path alone; T.data.tokenizer has options" end
  return T.data.tokenizer(path, { index_base = 0 })
end

require("perilune.surface").seal(models, nil, "models.")

return models
