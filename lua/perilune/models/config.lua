-- SPDX-License-Identifier: MIT
--- What config.json says, in the names that transformers gives its fields: read with the defaults of an architecture,
-- in the style of version 4 (rope_theta, rope_scaling) or 5 (rope_parameters). @module perilune.models.config
local F = require "perilune.nn.functional"
local json = require "perilune.io.json"
local options = require "perilune.options"

local config = {}

--- Raises what load and the constructors turn into their own error: {message=, code=}.
function config.fault(fmt, ...)
  error({ message = fmt:format(...), code = "unsupported" }, 0)
end
local fault = config.fault

--- Fields that every config may have, whatever the architecture: {name, kind, default}; no default: nothing.
config.common = {
  { "vocab_size", "count" }, { "pad_token_id", "int" }, { "bos_token_id", "int" }, { "eos_token_id", "ints" },
  { "tie_word_embeddings", "bool", true }, { "initializer_range", "nonnegative", 0.02 }, { "num_labels", "count" },
  { "problem_type", { "regression", "single_label_classification", "multi_label_classification" } },
  { "id2label", "any" }, { "label2id", "any" },
}

--- Fields of a decoder with rotary places.
config.rotary = { { "rope_theta", "positive" }, { "rope_scaling", "any" }, { "rope_parameters", "any" },
  { "partial_rotary_factor", "positive" }, { "max_position_embeddings", "count", 2048 },
  { "original_max_position_embeddings", "count" } }

--- Several lists of fields as one; a later entry replaces an earlier one of its name.
function config.fields(...)
  local out, at = {}, {}
  for _, list in ipairs { ... } do
    for _, field in ipairs(list) do
      if not at[field[1]] then at[field[1]] = #out + 1 end
      out[at[field[1]]] = field
    end
  end
  return out
end

--- The settings of an architecture from what is given; false and null: nothing, whatever the default. With strict,
-- other names are errors.
function config.read(who, fields, given, strict)
  local c, known = {}, {}
  for i, field in ipairs(fields) do
    local name, kind = field[1], field[2]
    known[i] = name
    local v = given[name]
    if v == nil then v = field[3] end
    if v == json.null or v == false and kind ~= "bool" then v = nil end
    if type(kind) == "table" then -- one of these words
      local is = v == nil and field[3] == nil
      for _, word in ipairs(kind) do is = is or word == v end
      if not is then fault("%s: %s", who, options.unknown(name, tostring(v), kind)) end
    elseif v ~= nil and kind ~= "any" then
      local ok, got = pcall(options.kind, who, name, kind, json.is_array(v) and { table.unpack(v) } or v)
      if not ok then fault("%s", (tostring(got):gsub("^[^\n]-:%d+: ", ""))) end
      v = got
    end
    c[name] = v
  end
  if strict then
    for name in pairs(given) do
      local is = false
      for _, k in ipairs(known) do is = is or k == name end
      if not is then fault("%s: %s", who, options.unknown("option", name, known)) end
    end
  end
  local labels = c.id2label
  if not c.num_labels then
    c.num_labels = 2
    if type(labels) == "table" then
      c.num_labels = 0
      for _ in pairs(labels) do c.num_labels = c.num_labels + 1 end
    end
  end
  return c
end

--- Refuses a config that asks for what is not there: `allowed` maps names to the values that are.
function config.only(who, given, allowed)
  for name, values in pairs(allowed) do
    local v, fine = given[name], false
    if v == json.null then v = nil end
    for _, w in ipairs(values) do fine = fine or v == w end
    if v ~= nil and not fine then
      fault("%s: %s = %s is not supported%s", who, name, tostring(v),
        #values > 0 and (" (only %s)"):format(tostring(values[1])) or "")
    end
  end
end

local function tanh_gelu(x) return F.gelu(x, { approximate = "tanh" }) end
local activations = { silu = F.silu, swish = F.silu, gelu = F.gelu, gelu_python = F.gelu, relu = F.relu, tanh = F.tanh,
  sigmoid = F.sigmoid, relu6 = F.relu6, mish = F.mish, selu = F.selu, gelu_new = tanh_gelu,
    gelu_pytorch_tanh = tanh_gelu,
  gelu_fast = tanh_gelu, gelu_accurate = tanh_gelu, linear = function(x) return x end,
  leaky_relu = function(x) return F.leaky_relu(x, 0.01) end,
  relu2 = function(x) return F.relu(x):square() end,
  quick_gelu = function(x) return x * F.sigmoid(1.702 * x) end }

--- The function of a name in transformers.
function config.activation(who, name)
  local f = activations[name]
  if f then return f end
  local names = {}
  for known in pairs(activations) do names[#names + 1] = known end
  table.sort(names)
  fault("%s: %s", who, options.unknown("activation", tostring(name), names))
end

-- ---- rotary places -----------------------------------------------------------------------------------------

local function given(v)
  if v == nil or v == json.null or v == false then return nil end
  return v
end

--- The settings of nn.RotaryEmbedding for heads of head_dim from a config c and rope, its rope_parameters or
-- rope_scaling; defaults: theta and partial.
function config.rope(who, c, rope, head_dim, defaults)
  rope = given(rope) or {}
  if type(rope) ~= "table" then fault("%s: rope_scaling must be an object, got %s", who, tostring(rope)) end
  local function of(name) return given(rope[name]) end
  local kind = of "rope_type" or of "type" or "default"
  if kind == "su" or kind == "yarn" and defaults.yarn_is_longrope then kind = "longrope" end
  local part = of "partial_rotary_factor" or c.partial_rotary_factor or defaults.partial or 1
  if kind == "default" and not defaults.partial then part = 1 end -- as transformers does for most architectures
  if type(part) ~= "number" or not (part > 0 and part <= 1) then
    fault("%s: partial_rotary_factor must be a number above 0, 1 at most, got %s", who, tostring(part))
  end
  local most, old = c.max_position_embeddings, nil
  if kind == "llama3" or kind == "yarn" or kind == "longrope" then
    old = c.original_max_position_embeddings or of "original_max_position_embeddings" or most
  end
  local s = { dim = math.floor(head_dim * part), base = of "rope_theta" or c.rope_theta or defaults.theta or 10000.0,
    kind = kind, interleaved = defaults.interleaved, max_positions = most, original_max_positions = old,
    factor = of "factor", low_freq_factor = of "low_freq_factor", high_freq_factor = of "high_freq_factor",
    beta_fast = of "beta_fast", beta_slow = of "beta_slow", truncate = rope.truncate ~= false, mscale = of "mscale",
    mscale_all_dim = of "mscale_all_dim", attention_factor = of "attention_factor",
    short_factor = of "short_factor", long_factor = of "long_factor" }
  if (kind == "longrope" or kind == "yarn") and not s.factor then s.factor = most / old end
  for _, name in ipairs { "short_factor", "long_factor" } do
    if json.is_array(s[name]) then s[name] = { table.unpack(s[name]) } end
  end
  return s
end

--- rope_scaling where it says something, else rope_parameters, as in transformers.
function config.rope_of(c)
  local old = given(c.rope_scaling)
  if type(old) == "table" and next(old) == nil then old = nil end
  return old or given(c.rope_parameters)
end

--- Per layer whether it looks through the window: layer_types, or rule(i) where there are none. off: the config says
-- that its window does not count.
function config.windows(c, who, rule, off)
  local list, types, n = {}, given(c.layer_types), c.num_hidden_layers
  local window = not off and c.sliding_window
  if types and (type(types) ~= "table" or #types ~= n) then
    fault("%s: layer_types must be a list of %d words, one for each layer, got %s", who, n,
      type(types) == "table" and #types .. " of them" or tostring(types))
  end
  for i = 1, n do
    local slides
    if types then
      slides = types[i] == "sliding_attention"
      if not slides and types[i] ~= "full_attention" then
        fault("%s: %s", who, options.unknown("entry of layer_types", tostring(types[i]), { "full_attention",
          "sliding_attention" }))
      elseif slides and not window then
        fault("%s: entry %d of layer_types is sliding_attention, and %s", who, i,
          off and "use_sliding_window is false" or "there is no sliding_window")
      end
    else
      slides = rule(i)
    end
    list[i] = slides and window or false
  end
  return list
end

--- Refuses layer_types where an architecture takes no notice of them and they say otherwise than what it does: all of
-- its layers have the window, or, where there is none, see all.
function config.no_layer_types(who, given_, c)
  local window = c.sliding_window and c.use_sliding_window ~= false
  local types, all = given(given_.layer_types), window and "sliding_attention" or "full_attention"
  for i, word in ipairs(type(types) == "table" and types or {}) do
    if word ~= all then
      fault("%s: entry %d of layer_types is %s, which is not supported: all layers are %s here, as in transformers",
        who, i, tostring(word), all)
    end
  end
end

return config
