-- SPDX-License-Identifier: MIT
--- Low-rank adapters (Hu et al. 2021): a layer y = W x is trained as y = W x + alpha/rank B A x with A and B alone, and
-- DoRA, which trains the length of W's rows as well (Liu et al. 2024). Files are PEFT's. @module perilune.nn.lora
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local json = require "perilune.io.json"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local linear = F.linear
local Parameter, rawget, rawset = base.Parameter, rawget, rawset

local M = {}

local KEYS = { "lora_A", "lora_B", "lora_magnitude_vector" }

-- Where adapters go unless it is said: queries and values, by the names that they have.
local usual = { "q_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value", "query", "value", "q_lin", "v_lin", "q",
  "v" }

local function is_layer(m)
  return math.type(m.in_features) == "integer" and math.type(m.out_features) == "integer"
end

-- [out, in], whichever way round the layer has it.
local function matrix(m)
  local w = m.weight
  if not T.is_tensor(w) or not w:is_floating_point() then return nil end
  return m.transposed and w:t() or w
end

local function lengths(m) -- of the rows of W + scale B A
  local w = matrix(m)
  return (w:detach():to(m.lora_A:dtype()) + m.lora_B:matmul(m.lora_A):detach() * m._lora.scale):square():sum(2):sqrt()
end

-- forward of a layer with an adapter, in place of its class's.
local function forward(self, x)
  local l, a, b = self._lora, self.lora_A, self.lora_B
  local y = getmetatable(self).__class.forward(self, x)
  local z = x:to(a:dtype())
  if l.dropout > 0 and self.training then z = T.dropout(z, l.dropout) end
  local dropped = z
  z = linear(z, a) * l.scale -- of few columns
  if not self.lora_magnitude_vector and y:dtype() == z:dtype() and y:numel() > 0 then -- y + z bᵀ without z bᵀ beside it
    return T.addmm(y:reshape(-1, y:size(-1)), z:reshape(-1, z:size(-1)), b:t()):view(y:shape())
  end
  z = linear(z, b)
  if self.lora_magnitude_vector then
    local ratio = self.lora_magnitude_vector / lengths(self)
    local plain = y
    if l.dropout > 0 and self.training then -- what was dropped of B A x is dropped of W x as well
      plain = linear(dropped, matrix(self):to(a:dtype()))
    elseif self.bias then
      plain = y - self.bias
    end
    return y + ((ratio - 1) * plain:to(a:dtype()) + ratio * z):to(y:dtype())
  end
  return y + z:to(y:dtype())
end

local function attach(m, o, a, b, magnitude)
  rawset(m, "_lora", { rank = o.rank, alpha = o.alpha, scale = o.alpha / (o.rslora and math.sqrt(o.rank) or o.rank),
    dropout = o.dropout, rslora = o.rslora, dora = o.dora })
  m.lora_A, m.lora_B = Parameter(a), Parameter(b)
  if o.dora then m.lora_magnitude_vector = Parameter(magnitude or T.no_grad(lengths, m)) end
  rawset(m, "forward", forward)
end

local function detach(m)
  for _, key in ipairs(KEYS) do
    if m._parameters[key] then base.forget(m, key) end
  end
  rawset(m, "_lora", nil)
  rawset(m, "forward", nil)
end

-- { name from 0, layer } of all layers with an adapter.
local function adapted(net)
  local list = {}
  for name, m in base.named_modules(net, 0) do if rawget(m, "_lora") then list[#list + 1] = { name, m } end end
  return list
end

local function network(who, net)
  if not base.is_module(net) then fail("%s: a network is wanted, got %s", who, describe(net)) end
end

local function ends(name, word) return name == word or name:sub(-#word - 1) == "." .. word end

-- Whether a layer is meant: f(name, layer).
local function chooser(who, target)
  local own = target ~= nil
  if not own then target = usual end
  if target == "all-linear" then
    return function(name) return not (ends(name, "lm_head") or ends(name, "embed_out") or ends(name, "proj_out")
      or ends(name, "score") or ends(name, "classifier") or ends(name, "qa_outputs")) end
  end
  if type(target) == "function" then return target end
  if type(target) == "string" then target = { target } end
  options.list(who, "target", target, "names")
  for _, word in ipairs(target) do
    if type(word) ~= "string" then fail("%s: target must be names of layers, got %s", who, describe(word)) end
  end
  local met = {}
  return function(name)
    local found = false
    for _, word in ipairs(target) do
      if ends(name, word) then met[word], found = true, true end
    end
    return found
  end, function()
    for _, word in ipairs(target) do
      if own and not met[word] then fail("%s: no layer is named by '%s', an entry of target", who, word) end
    end
  end
end

--- nn.lora(net, {rank=8, alpha=16, target=, dropout=0, rslora=false, dora=false}) → net, names of the layers
-- Freezes net and puts an adapter beside each layer that target names: y = W x + alpha/rank B A x, A [rank, in]
-- random, B [out, rank] zeros, parameters lora_A and lora_B of the layer (Hu et al. 2021). target: ends of names, or
-- one, "all-linear", all but heads, or f(name, layer); by default queries and values. rslora: alpha/√rank. dora:
-- lengths of rows are trained, too (lora_magnitude_vector). Layers may be of any kind that has in_features and
-- out_features, also with weights that cannot be trained. nn.merge_lora, nn.save_lora, nn.load_lora.
--   local net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
--   nn.lora(net, { rank = 2, target = "all-linear" })
--   print(net:num_parameters { trainable = true })  --> 24
function M.lora(net, opts)
  network("nn.lora", net)
  local o = options.check("nn.lora", opts, { "rank", "alpha", "target", "dropout", "rslora", "dora" })
  local function of(name, kind, default)
    if o[name] == nil then return default end
    return options.kind("nn.lora", name, kind, o[name])
  end
  local set = { rank = of("rank", "count", 8), alpha = of("alpha", "positive", 16), dropout = of("dropout",
    "probability", 0.0), rslora = of("rslora", "bool", false), dora = of("dora", "bool", false) }
  local list, wanted, all_met = {}, chooser("nn.lora", o.target)
  for name, m in base.named_modules(net, 0) do
    if is_layer(m) and wanted(name, m) then
      if rawget(m, "_lora") then fail("nn.lora: %s has an adapter already; nn.merge_lora(net) first", name) end
      if set.dora and not matrix(m) then fail("nn.lora: dora needs a floating weight, which %s has not", name) end
      list[#list + 1] = { name, m }
    end
  end
  if #list == 0 then fail("nn.lora: no layer is named by target") end
  if all_met then all_met() end
  net:freeze()
  local names = {}
  for i, item in ipairs(list) do
    local m = item[2]
    local like = m.bias or m.weight
    local at = { device = T.is_tensor(like) and like:device() or nil }
    if T.is_tensor(like) and like:dtype() == "f64" then at.dtype = "f64" end
    local a = init.kaiming_uniform_(T.empty({ set.rank, m.in_features }, at), { a = math.sqrt(5) })
    attach(m, set, a, T.zeros({ m.out_features, set.rank }, at))
    names[i] = item[1]
  end
  return net, names
end

--- nn.merge_lora(net) → net
-- Adds what the adapters have learned to the weights and takes the adapters away.
--   local net = nn.lora(nn.Sequential(nn.Linear(4, 3)), { target = "all-linear" })
--   print(#nn.merge_lora(net):parameters())  --> 2
function M.merge_lora(net)
  network("nn.merge_lora", net)
  local list = adapted(net)
  for _, item in ipairs(list) do
    if not matrix(item[2]) then
      fail("nn.merge_lora: the weight of %s is not floating; keep the adapter apart, or load the network with "
        .. "dequantize = true", item[1])
    end
  end
  local merged, of = {}, {} -- weight → the layer whose adapter goes into it
  for _, item in ipairs(list) do
    local weight = item[2]._parameters.weight
    if weight and not merged[weight] then merged[weight], of[item[2]] = item[1], true end
  end
  for name, m in base.named_modules(net, 0) do
    for _, p in pairs(m._parameters) do
      if merged[p] and not of[m] then
        fail("nn.merge_lora: the weight of %s is that of %s as well, which would change with it; keep the adapter "
          .. "apart, or give %s a weight of its own", merged[p], name, merged[p])
      end
    end
  end
  local _ <close> = T.no_grad()
  for _, item in ipairs(list) do
    local m = item[2]
    local w, l = matrix(m), m._lora
    local new = w:to(m.lora_A:dtype()) + m.lora_B:matmul(m.lora_A) * l.scale
    if m.lora_magnitude_vector then new = new * (m.lora_magnitude_vector / lengths(m)):unsqueeze(2) end
    w:copy_(new)
    detach(m)
  end
  return net
end

-- ---- files -------------------------------------------------------------------------------------------------

local PREFIX = "base_model.model."

--- nn.save_lora(net, dir) → true; or nil and a message
-- Writes the adapters of net into a folder that is there, as PEFT does: adapter_config.json, adapter_model.safetensors.
-- Other parameters that were trained beside them, a new head, are in the file, too.
--   local net = nn.lora(nn.Sequential(nn.Linear(4, 3)), { target = "all-linear" })
--   print((nn.save_lora(net, "/nowhere")))  --> nil
function M.save_lora(net, dir)
  network("nn.save_lora", net)
  if type(dir) ~= "string" then fail("nn.save_lora: the folder must be a string, got %s", describe(dir)) end
  local list = adapted(net)
  if #list == 0 then fail("nn.save_lora: the network has no adapters; nn.lora(net, {…}) makes them") end
  local tensors, targets, seen, first, transposed = {}, json.array {}, {}, list[1][2]._lora, false
  local ranks, alphas, own = {}, {}, {}
  -- PEFT makes an adapter for every layer whose name ends in a target.
  local function all_of(word)
    for name, m in base.named_modules(net, 0) do
      if is_layer(m) and ends(name, word) and not rawget(m, "_lora") then return false end
    end
    return true
  end
  for _, item in ipairs(list) do
    local name, m = item[1], item[2]
    local short, l = name:match "[^.]+$", m._lora
    if l.rslora ~= first.rslora or l.dora ~= first.dora then
      fail("nn.save_lora: %s and %s have adapters of different kinds", list[1][1], name)
    end
    for _, key in ipairs(KEYS) do
      local p = m._parameters[key]
      if p then
        own[p] = true
        tensors[PREFIX .. name .. "." .. key .. (key == "lora_magnitude_vector" and "" or ".weight")] = p:detach()
      end
    end
    local target = short and all_of(short) and short or name
    if short and not seen[target] then
      seen[target] = true
      targets[#targets + 1] = target
    end
    local pattern = name -- which stands for names that end in it, too
    for _, other in ipairs(list) do
      if other[1] ~= name and ends(other[1], name) then pattern = "^" .. name end
    end
    if l.rank ~= first.rank then ranks[pattern] = l.rank end
    if l.alpha ~= first.alpha then alphas[pattern] = l.alpha end
    transposed = transposed or m.transposed == true
  end
  table.sort(targets)
  local kept = json.array {}
  for _, item in ipairs(base.collect(net, "parameter", 0)) do
    if item[2].requires_grad and not own[item[2]] then
      tensors[PREFIX .. item[1]] = item[2]:detach()
      local module_name = item[1]:match "([^.]+)%.[^.]+$" or item[1]
      if kept[#kept] ~= module_name then kept[#kept + 1] = module_name end
    end
  end
  local c = { peft_type = "LORA", task_type = json.null, r = first.rank, lora_alpha = first.alpha,
    lora_dropout = first.dropout + 0.0, bias = "none", fan_in_fan_out = transposed, target_modules = targets,
    use_rslora = first.rslora, use_dora = first.dora, inference_mode = true, base_model_name_or_path = json.null,
    rank_pattern = ranks, alpha_pattern = alphas, modules_to_save = #kept > 0 and kept or json.null }
  local ok, why, code = T.save(dir .. "/adapter_model.safetensors", tensors, { metadata = { format = "pt" } })
  if not ok then return nil, why .. (T.core.list_folder(dir) and "" or "; make the folder first"), code end
  return json.write(dir .. "/adapter_config.json", c)
end

local function fault(code, fmt, ...) error({ message = fmt:format(...), code = code }, 0) end

-- What a pattern of PEFT's gives for a name. Keys are expressions of Python there, matched at the end of names behind a
-- point, and the first in the file wins: here they are names, whole ones behind ^, and no two may differ.
local function pattern_of(path, field, patterns, name, default)
  local v, by = default, nil
  for key, value in pairs(type(patterns) == "table" and patterns or {}) do
    if type(key) == "string" then
      local whole = key:match "^%^(.*)$"
      local plain = (whole or key):gsub("%$$", ""):gsub("\\%.", ".")
      if plain:find "[%^%$%*%+%?%[%]%(%)%{%}|\\]" then
        fault("unsupported", "%s: the key '%s' of %s is an expression; names of layers are supported", path, key, field)
      end
      if plain == name or (not whole and ends(name, plain)) then
        if by and v ~= value then
          fault("unsupported", "%s: the keys '%s' and '%s' of %s both stand for '%s'", path, by, key, field, name)
        end
        v, by = value, key
      end
    end
  end
  return v
end

-- Kinds of adapters that compute otherwise, by the field that asks for them.
local others = { "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias",
  "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora", "use_qalora" }
-- Beginnings that leave the network's weights as they are; others take from them what the adapter has.
local plain_starts = { gaussian = true, eva = true, orthogonal = true }

local function check_kind(path, c)
  for _, field in ipairs(others) do
    local v = c[field]
    if v ~= nil and v ~= false and v ~= json.null and not (type(v) == "table" and next(v) == nil) then
      fault("unsupported", "%s: %s is not supported", path, field)
    end
  end
  local start = c.init_lora_weights
  if type(start) == "string" and not plain_starts[start] then
    fault("unsupported", "%s: init_lora_weights = '%s' changes the network's own weights; save the adapter converted "
      .. "(path_initial_model_for_weight_conversion)", path, start)
  end
end

local function dims(t) return "[" .. table.concat(t:shape(), ", ") .. "]" end

-- Everything that a folder says, checked against net: list of { layer, settings, A, B, magnitude }, other parameters.
local function plan(net, dir)
  local path = dir .. "/adapter_config.json"
  local c, why, code = json.read(path)
  if not c then fault(code, "%s", why) end
  if type(c) ~= "table" or c.peft_type ~= "LORA" then
    fault("unsupported", "%s: peft_type must be LORA, got %s", path, tostring(type(c) == "table" and c.peft_type))
  end
  check_kind(path, c)
  local file = dir .. "/adapter_model.safetensors"
  local tensors, message, kind = T.load(file)
  if not tensors then fault(kind, "%s", message) end
  local layers, own = {}, {}
  for name, m in base.named_modules(net, 0) do layers[name] = m end
  for _, item in ipairs(base.collect(net, "parameter", 0)) do own[item[1]] = item end
  local found, rest, names = {}, {}, {}
  for name, t in pairs(tensors) do
    local short = name:gsub("^base_model%.model%.", "")
    local at, key = short:match "^(.*)%.(lora_[AB])%.weight$"
    if not at then at = short:match "^(.*)%.lora_magnitude_vector" key = at and "lora_magnitude_vector" end
    local plain = short:gsub("%.modules_to_save%.", "."):gsub("%.base_layer%.", ".")
    if at then
      if not layers[at] or not is_layer(layers[at]) then
        fault("format", "%s: '%s' is for the layer '%s', which the network does not have", file, name, at)
      end
      if rawget(layers[at], "_lora") then fault("format", "%s has an adapter already; nn.merge_lora(net) first", at) end
      if not found[at] then
        found[at] = {}
        names[#names + 1] = at
      end
      found[at][key] = t
    elseif own[plain] and not short:find "lora_" then
      if dims(t) ~= dims(own[plain][2]) then
        fault("format", "%s: '%s' is %s, expected %s", file, name, dims(t), dims(own[plain][2]))
      end
      rest[#rest + 1] = { own[plain], t }
    else
      fault("format", "%s: nothing in the network is what '%s' is for", file, name)
    end
  end
  if #names == 0 then fault("format", "%s: no adapters", file) end
  table.sort(names)
  local list = {}
  for i, name in ipairs(names) do
    local m, f = layers[name], found[name]
    local rank = pattern_of(path, "rank_pattern", c.rank_pattern, name, c.r)
    local alpha = pattern_of(path, "alpha_pattern", c.alpha_pattern, name, c.lora_alpha)
    if type(rank) ~= "number" or type(alpha) ~= "number" then fault("format", "%s: r and lora_alpha must be numbers",
      path) end
    rank = math.tointeger(rank)
    for key, want in pairs { lora_A = { rank, m.in_features }, lora_B = { m.out_features, rank },
      lora_magnitude_vector = c.use_dora == true and { m.out_features } or nil } do
      local text = "[" .. table.concat(want, ", ") .. "]"
      if not f[key] then fault("format", "%s: '%s' has no %s", file, name, key) end
      if dims(f[key]) ~= text then
        fault("format", "%s: %s of '%s' is %s, expected %s", file, key, name, dims(f[key]), text)
      end
    end
    list[i] = { m, { rank = rank, alpha = alpha, dropout = type(c.lora_dropout) == "number" and c.lora_dropout or 0,
      rslora = c.use_rslora == true, dora = c.use_dora == true }, f.lora_A, f.lora_B, f.lora_magnitude_vector }
  end
  return list, rest, names
end

--- nn.load_lora(net, dir) → net, names of the layers; or nil and a message
-- Freezes net and puts the adapters of a folder beside its layers, as PEFT writes them (LoRA, rsLoRA, DoRA, ranks by
-- layer; other parameters in the file take the place of the network's and are trained, too). Nothing is changed where
-- something does not fit.
--   print((nn.load_lora(nn.Linear(2, 2), "/nowhere")))  --> nil
function M.load_lora(net, dir)
  network("nn.load_lora", net)
  if type(dir) ~= "string" then fail("nn.load_lora: the folder must be a string, got %s", describe(dir)) end
  local ok, list, rest, names = pcall(plan, net, dir)
  if not ok then
    if type(list) == "table" and list.message then return nil, list.message, list.code end
    error(list, 0)
  end
  net:freeze()
  for _, item in ipairs(list) do
    local m, set = item[1], item[2]
    local like = m.bias or m.weight
    local where, dtype = T.is_tensor(like) and like:device() or "cpu", "f32"
    if T.is_tensor(like) and like:dtype() == "f64" then dtype = "f64" end
    local function moved(t) return t and t:to(dtype):to(where) end
    attach(m, set, moved(item[3]), moved(item[4]), moved(item[5]))
  end
  T.no_grad(function()
    for _, item in ipairs(rest) do
      item[1][2]:copy_(item[2])
      item[1][2]:requires_grad_(true)
    end
  end)
  return net, names
end

return M
