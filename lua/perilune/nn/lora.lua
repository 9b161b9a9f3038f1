-- SPDX-License-Identifier: MIT
--- Low-rank adapters (Hu et al. 2021): a layer y = W x is trained as y = W x + alpha/rank B A x with A and B alone, and
-- DoRA, which trains the length of W's rows as well (Liu et al. 2024). Files: lora_files.lua. @module perilune.nn.lora
local T = require "perilune"
local adapters = require "perilune.nn.adapters"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local adapted, ends, is_layer, matrix, network = adapters.adapted, adapters.ends, adapters.is_layer, adapters.matrix,
  adapters.network
local rawget, rawset = rawget, rawset

local M = {}

-- Where adapters go unless it is said: queries and values, by the names that they have.
local usual = { "q_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value", "query", "value", "q_lin", "v_lin", "q",
  "v" }

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

-- module → { name of its parameter = name of the whole }, of all modules that end so and what is in them.
local function whole_modules(who, net, wanted)
  if type(wanted) == "string" then wanted = { wanted } end
  options.list(who, "modules_to_save", wanted, "names")
  local out = {}
  for _, word in ipairs(wanted) do
    local found = false
    for name, m in base.named_modules(net, 0) do
      if type(word) == "string" and ends(name, word) then
        found = true
        for _, part in base.named_modules(m, 0) do
          out[part] = out[part] or {}
          for key, p in pairs(part._parameters) do
            if p:is_floating_point() and not key:find "^lora_" and not key:find("^" .. adapters.DELTA) then
              out[part][key] = out[part][key] or name
            end
          end
        end
      end
    end
    if not found then fail("%s: no module is named by %s, an entry of modules_to_save", who, describe(word)) end
  end
  return out
end

-- Parameters for an adapter alone in the place of the network's: those of modules that are trained as a whole, and
-- biases. What is shared within one of them stays shared.
local function own_parameters(net, name, saved, bias, layers)
  local made, owners = {}, adapters.owners(net)
  local function add(m, key, how, group)
    local p = adapters.plain(m, key)
    made[group] = made[group] or {}
    made[group][p] = made[group][p] or base.Parameter(p:detach():clone())
    adapters.own(m, name, key, made[group][p], how)
  end
  for m, keys in pairs(saved) do for key, whole in pairs(keys) do add(m, key, whole, whole) end end
  local function bias_of(m)
    local p = m._parameters.bias and adapters.plain(m, "bias")
    if not p or not p:is_floating_point() or saved[m] then return end
    for _, owner in ipairs(owners[p]) do
      if not saved[owner[1]] then add(owner[1], owner[2], adapters.BIAS, owners) end
    end
  end
  if bias == "lora_only" then for _, item in ipairs(layers) do bias_of(item[2]) end end
  if bias == "all" then for _, m in base.named_modules(net, 0) do bias_of(m) end end
end

-- trainable_token_indices: ids of the network's table of tokens, or names → ids → what adapters.groups gives.
local function token_groups(who, net, given, saved, name)
  local function raise(fmt, ...) fail("%s: trainable_token_indices: " .. fmt, who, ...) end
  if type(given) ~= "table" or next(given) == nil then raise("ids or { name = ids } are wanted, got %s",
    describe(given)) end
  local input, at = adapters.tokens_of(net)
  local words = {}
  if type(next(given)) == "string" then
    for word in pairs(given) do
      if type(word) ~= "string" then raise("names are wanted beside names, got %s", describe(word)) end
      words[#words + 1] = word
    end
    table.sort(words)
  elseif not input then
    raise(#at == 0 and "the network has no table of vectors" or "which table, { ['%s'] = ids }?",
      table.concat(at, "'] = ids } or { ['"))
  end
  local entries = {}
  local function add(part, m, ids)
    options.list(who, "trainable_token_indices", ids, "ids")
    if saved[m] then raise("all of %s is trained already, by modules_to_save", part) end
    local first, rows = m.index_base or input and input.index_base or 1, {}
    for i, id in ipairs(ids) do
      rows[i] = math.type(id) == "integer" and id - first or id
      if math.type(id) == "integer" and (rows[i] < 0 or rows[i] >= (m.num_embeddings or m.out_features)) then
        raise("%d is not in %d..%d, the ids of %s", id, first, first + (m.num_embeddings or m.out_features) - 1, part)
      end
    end
    entries[#entries + 1] = { part, m, rows }
  end
  if #words == 0 then add(at, input, given) end
  for _, word in ipairs(words) do
    local found = false
    for part, m in base.named_modules(net, 0) do
      if ends(part, word) and (adapters.is_table(m) or is_layer(m)) then
        add(part, m, given[word])
        found = true
      end
    end
    if not found then raise("no table and no linear layer is named by '%s'", word) end
  end
  local groups = adapters.groups(net, entries, raise, saved)
  for _, group in ipairs(groups) do
    for _, m in ipairs(group.members) do
      if rawget(m, "_lora") and m._lora.rows_of[name] then
        raise("%s has rows of an adapter already, '%s'; give the new one another name", group.owner[1], name)
      end
    end
  end
  return groups
end

--- nn.lora(net, {rank=8, alpha=16, target=, dropout=0, rslora=false, dora=false, name=, modules_to_save=,
--   bias="none", lora_bias=false, trainable_token_indices=}) → net, names
-- Freezes net and puts an adapter beside each layer that target names: y = W x + alpha/rank B A x, A [rank, in]
-- random, B [out, rank] zeros, parameters lora_A and lora_B of the layer (Hu et al. 2021). target: ends of names, or
-- one, "all-linear", all but heads, or f(name, layer); by default queries and values. rslora: alpha/√rank. dora:
-- lengths of rows are trained, too (lora_magnitude_vector). Layers may be of any kind that has in_features and
-- out_features, also with weights that cannot be trained. A network may have several adapters by names, whose
-- parameters are lora_A_NAME …; the newest is active, nn.set_adapter chooses. modules_to_save: ends of names of modules
-- that are trained as a whole, a copy for this adapter, and have no adapters within. bias: "all" are trained, too,
-- copies for this adapter, or those of its layers, "lora_only". lora_bias: B has a bias, the parameter
-- lora_bias, too. trainable_token_indices: ids, or { name = ids }, of the table of tokens (nn.Embedding; heads that
-- share its weight, too), whose vectors are trained and no others: trainable_tokens_delta [n, width]. nn.merge_lora,
-- nn.save_lora, nn.load_lora.
--   local net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
--   nn.lora(net, { rank = 2, target = "all-linear" })
--   print(net:num_parameters { trainable = true })  --> 24
function M.lora(net, opts)
  network("nn.lora", net)
  local o = options.check("nn.lora", opts, { "rank", "alpha", "target", "dropout", "rslora", "dora",
    "name", "modules_to_save", "bias", "lora_bias", "trainable_token_indices" })
  local function of(name, kind, default)
    if o[name] == nil then return default end
    return options.kind("nn.lora", name, kind, o[name])
  end
  local set = { rank = of("rank", "count", 8), alpha = of("alpha", "positive", 16), dropout = of("dropout",
    "probability", 0.0), rslora = of("rslora", "bool", false), dora = of("dora", "bool", false),
    lora_bias = of("lora_bias", "bool", false) }
  if set.dora and set.lora_bias then fail "nn.lora: lora_bias and dora exclude each other" end
  set.name = adapters.checked_name("nn.lora", o.name)
  local bias = o.bias == nil and "none" or o.bias
  if bias ~= "none" and bias ~= "all" and bias ~= "lora_only" then
    fail("nn.lora: %s", options.unknown("bias", tostring(bias), { "none", "all", "lora_only" }))
  end
  local list, wanted, all_met = {}, chooser("nn.lora", o.target)
  local saved = o.modules_to_save and whole_modules("nn.lora", net, o.modules_to_save) or {}
  for name, m in base.named_modules(net, 0) do
    if is_layer(m) and wanted(name, m) and not saved[m] then
      if rawget(m, "_lora") and m._lora.of[set.name] then
        fail("nn.lora: %s has an adapter already, '%s'; give the new one another name, or nn.merge_lora(net) first",
          name, set.name)
      end
      if set.dora and not adapters.has_rows(m) then
        fail("nn.lora: dora needs the numbers of a weight, which %s has not", name)
      end
      list[#list + 1] = { name, m }
    end
  end
  if #list == 0 then
    fail("nn.lora: no layer is named by target%s; target = \"all-linear\" takes every linear layer but heads",
      o.target == nil and ", which is of queries and values" or "")
  end
  if all_met then all_met() end
  local groups = o.trainable_token_indices == nil and {}
    or token_groups("nn.lora", net, o.trainable_token_indices, saved, set.name)
  for _, item in ipairs(set.dora and list or {}) do
    for _, group in ipairs(groups) do
      for _, m in ipairs(group.members) do
        if m == item[2] then fail("nn.lora: dora of %s goes not with rows of it that are trained", item[1]) end
      end
    end
  end
  net:freeze()
  local names = {}
  for i, item in ipairs(list) do
    local m = item[2]
    local like = m.bias or m.weight
    local at = { device = T.is_tensor(like) and like:device() or nil }
    if T.is_tensor(like) and like:dtype() == "f64" then at.dtype = "f64" end
    local a = init.kaiming_uniform_(T.empty({ set.rank, m.in_features }, at), { a = math.sqrt(5) })
    adapters.attach(m, set, a, T.zeros({ m.out_features, set.rank }, at))
    names[i] = item[1]
  end
  for _, group in ipairs(groups) do adapters.attach_rows(group, set.name) end
  own_parameters(net, set.name, saved, bias, list)
  adapters.activate(net, { set.name })
  return net, names
end

--- nn.set_adapter(net, which) → net
-- Which adapters of net take part, and are trained: a name, a list (parts are added; none of them DoRA), or false:
-- none, net computes as without. Those that do not take part keep what they have learned.
--   local net = nn.lora(nn.Sequential(nn.Linear(4, 3)), { target = "all-linear", name = "formal" })
--   nn.lora(net, { target = "all-linear", name = "short", rank = 2 }) -- is active from here on
--   nn.set_adapter(net, "formal")
--   print(net:num_parameters { trainable = true })  --> 56
--   nn.set_adapter(net, false)
--   print(net:num_parameters { trainable = true })  --> 0
function M.set_adapter(net, which)
  network("nn.set_adapter", net)
  local names = which
  if which == false then names = {} end
  if type(which) == "string" then names = { which } end
  options.list("nn.set_adapter", "the adapters", names, "names")
  local list, known = adapters.names_of(net)
  if #list == 0 then fail "nn.set_adapter: the network has no adapters; nn.lora(net, {…}) makes them" end
  local met = {}
  for _, name in ipairs(names) do
    if not known[name] then
      fail("nn.set_adapter: there is no adapter %s; there are '%s'", describe(name), table.concat(list, "', '"))
    end
    if met[name] then fail("nn.set_adapter: '%s' is named twice", name) end
    met[name] = true
  end
  for at, m in base.named_modules(net, 0) do
    local l, o, owner = rawget(m, "_lora"), rawget(m, "_lora_own"), nil
    for _, name in ipairs(#names > 1 and names or {}) do
      if l and l.of[name] and l.of[name].dora then
        fail("nn.set_adapter: '%s' of %s is DoRA, which is active alone or not at all", name, at)
      end
      if o and o.of[name] or l and l.rows_of[name] then
        if owner then fail("nn.set_adapter: both '%s' and '%s' have a %s of their own", owner, name, at) end
        owner = name
      end
    end
  end
  adapters.activate(net, names)
  return net
end

--- nn.merge_lora(net) → net
-- Adds what the active adapters have learned to the weights and takes all adapters away.
--   local net = nn.lora(nn.Sequential(nn.Linear(4, 3)), { target = "all-linear" })
--   print(#nn.merge_lora(net):parameters())  --> 2
function M.merge_lora(net)
  network("nn.merge_lora", net)
  local list = adapted(net)
  for _, item in ipairs(list) do
    if #item[2]._lora.active + #item[2]._lora.rows > 0 and not matrix(item[2]) then
      fail("nn.merge_lora: the weight of %s is not floating; keep the adapter apart, or load the network with "
        .. "dequantize = true", item[1])
    end
    if #item[2]._lora.active + #item[2]._lora.rows > 0 and not base.is_parameter[item[2].weight] then
      fail("nn.merge_lora: the weight of %s is computed of others, which would not have the adapter; make it a plain "
        .. "one before (nn.utils.parametrize.remove_parametrizations)", item[1])
    end
  end
  local replaced = {} -- weight → the parameter with other rows of it
  for _, item in ipairs(list) do
    local m, rows = item[2], item[2]._lora.rows[1]
    if rows then replaced[m.weight] = replaced[m.weight] or m[rows.delta] end
  end
  for name, m in base.named_modules(net, 0) do
    for key, p in pairs(m._parameters) do
      local rows = rawget(m, "_lora") and m._lora.rows[1]
      if replaced[p] and (key ~= "weight" or not rows or m[rows.delta] ~= replaced[p]) then
        fail("nn.merge_lora: rows of a weight were trained that %s shares and has not; keep the adapter apart", name)
      end
    end
  end
  local merged, of = {}, {} -- weight → the layer whose adapter goes into it
  for _, item in ipairs(list) do
    for _, set in ipairs(item[2]._lora.active) do
      if set.lora_bias and not item[2].bias then
        fail("nn.merge_lora: the adapter '%s' has a bias, for which %s has no place; keep it apart", set.name, item[1])
      end
    end
    local weight = item[2]._parameters.weight
    if weight and #item[2]._lora.active > 0 and not merged[weight] then merged[weight], of[item[2]] = item[1], true end
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
    local m, set = item[2], item[2]._lora.rows[1]
    if set and replaced[m.weight] then
      matrix(m):index_copy_(1, m[set.index], m[set.delta]:to(m.weight:dtype()))
      replaced[m.weight] = nil
    end
  end
  for _, item in ipairs(list) do
    local m = item[2]
    local w, new = matrix(m), nil
    for _, set in ipairs(m._lora.active) do
      local a = m[set.A]
      new = (new or w):to(a:dtype()) + m[set.B]:matmul(a) * set.scale
      if set.dora then new = new * (m[set.length] / adapters.lengths(m, set)):unsqueeze(2) end
    end
    if new then w:copy_(new) end
    for _, set in ipairs(m._lora.active) do if set.lora_bias then m.bias:add_(m[set.bias] * set.scale) end end
    adapters.detach(m)
  end
  for _, m in base.named_modules(net, 0) do rawset(m, "_lora_own", nil) end
  return net
end

return M
