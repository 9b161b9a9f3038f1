-- SPDX-License-Identifier: MIT
--- Files of adapters, as PEFT writes them. @module perilune.nn.lora_files
local T = require "perilune"
local adapters = require "perilune.nn.adapters"
local base = require "perilune.nn.module"
local json = require "perilune.io.json"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local adapted, ends, is_layer, network = adapters.adapted, adapters.ends, adapters.is_layer, adapters.network
local KINDS, FILES = adapters.KINDS, adapters.FILES
local rawget = rawget

local M = {}

local PREFIX = "base_model.model."
local ROWS = ".token_adapter." .. adapters.DELTA

local function folder(who, dir)
  if type(dir) ~= "string" then fail("%s: the folder must be a string, got %s", who, describe(dir)) end
end

-- The adapter that is meant: the name that is given, or the only one that is active, or that there is.
local function chosen(net, name)
  local list, known, active = adapters.names_of(net)
  if #list == 0 then fail "nn.save_lora: the network has no adapters; nn.lora(net, {…}) makes them" end
  if name ~= nil then
    if not known[name] then
      fail("nn.save_lora: there is no adapter %s; there are '%s'", describe(name), table.concat(list, "', '"))
    end
    return name
  end
  local on = {}
  for _, one in ipairs(list) do if active[one] then on[#on + 1] = one end end
  if #on == 0 then on = list end
  if #on > 1 then fail("nn.save_lora: which adapter, name = '%s'?", table.concat(on, "' or '")) end
  return on[1]
end

-- What else was trained goes into the file with an adapter: its own parameters, and those of the network that require
-- gradients and are no adapter's. → { name, tensor } …; modules that are trained as a whole; "none", "all" or
-- "lora_only", which biases are trained by themselves; whether such modules share a parameter
local function others_of(net, name)
  local out, wholes, adapter = {}, {}, {}
  local bias, tied, whole_of = "none", false, {}
  for _, item in ipairs(adapted(net)) do
    for _, set in pairs(item[2]._lora.of) do
      for kind in pairs(KINDS) do adapter[item[2]._parameters[set[kind]] or 0] = true end
    end
    for _, set in pairs(item[2]._lora.rows_of) do adapter[item[2]._parameters[set.delta]] = true end
  end
  for at, m in base.named_modules(net, 0) do
    local o, layer = rawget(m, "_lora_own"), rawget(m, "_lora") and m._lora.of[name]
    local own, how = o and o.of[name] or {}, o and o.how[name] or {}
    local prefix = at == "" and "" or at .. "."
    if layer then prefix = prefix .. "base_layer." end
    local function add(key, p, kind)
      out[#out + 1] = { prefix .. key, p:detach() }
      if kind == adapters.BIAS then
        if bias ~= "all" then bias = layer and "lora_only" or "all" end
      elseif kind ~= adapters.FROZEN and not layer then
        local whole = kind == "" and key or kind
        wholes[whole] = true
        tied = tied or whole_of[p] ~= nil and whole_of[p] ~= whole
        whole_of[p] = whole
      end
    end
    local free, others = {}, 0 -- what is trained although no adapter asked for it, and what rests beside it
    for _, key in ipairs(base.member_names(m)) do
      local p = m._parameters[key]
      if p and own[key] then add(key, own[key], how[key])
      elseif p and not adapter[p] and not (o and o.base[key]) then
        if p.requires_grad then free[#free + 1] = key else others = others + 1 end
      end
    end
    if #free == 1 and free[1] == "bias" and (layer or others > 0) then add("bias", m.bias, adapters.BIAS)
    elseif #free > 0 then
      for _, key in ipairs(base.member_names(m)) do -- PEFT has all of a module, or none
        local p = m._parameters[key]
        if p and not adapter[p] and not own[key] then add(key, p, at) end
      end
    end
  end
  local list = {}
  for whole in pairs(wholes) do list[#list + 1] = whole end
  table.sort(list)
  return out, list, bias, tied
end

--- nn.save_lora(net, dir, {name=}) → true; or nil and a message
-- Writes an adapter of net into a folder that is there, as PEFT does: adapter_config.json, adapter_model.safetensors.
-- Which one needs not be said if one is active, or there is one. Other parameters that were trained beside it, a new
-- head, are in the file, too.
--   local net = nn.lora(nn.Sequential(nn.Linear(4, 3)), { target = "all-linear" })
--   print((nn.save_lora(net, "/nowhere")))  --> nil
function M.save_lora(net, dir, opts)
  network("nn.save_lora", net)
  folder("nn.save_lora", dir)
  local name = chosen(net, options.check("nn.save_lora", opts, { "name" }).name)
  local list = {}
  local rows, deltas = {}, {}
  for _, item in ipairs(adapted(net)) do
    local set, own = item[2]._lora.of[name], item[2]._lora.rows_of[name]
    if set then list[#list + 1] = { item[1], item[2], set } end
    if own and own.owner then
      rows[item[1]] = json.array { table.unpack(own.rows) }
      deltas[PREFIX .. item[1] .. ROWS] = item[2]._parameters[own.delta]:detach()
    end
  end
  local tensors, targets, seen, first, transposed = {}, json.array {}, {}, list[1][3], false
  local ranks, alphas = {}, {}
  -- PEFT makes an adapter for every module whose name ends in a target, or says that it is of no such kind.
  local function all_of(word)
    for at, m in base.named_modules(net, 0) do
      if ends(at, word) and not (rawget(m, "_lora") and m._lora.of[name]) then return false end
    end
    return true
  end
  for _, item in ipairs(list) do
    local at, m, l = item[1], item[2], item[3]
    local short = at:match "[^.]+$"
    if l.rslora ~= first.rslora or l.dora ~= first.dora or l.lora_bias ~= first.lora_bias then
      fail("nn.save_lora: %s and %s have adapters of different kinds", list[1][1], at)
    end
    for kind, word in pairs(FILES) do
      local p = m._parameters[l[kind]]
      if p then tensors[PREFIX .. at .. "." .. word] = p:detach() end
    end
    local target = short and all_of(short) and short or at
    if short and not seen[target] then
      seen[target] = true
      targets[#targets + 1] = target
    end
    local pattern = at -- which stands for names that end in it, too
    for _, other in ipairs(list) do
      if other[1] ~= at and ends(other[1], at) then pattern = "^" .. at end
    end
    if l.rank ~= first.rank then ranks[pattern] = l.rank end
    if l.alpha ~= first.alpha then alphas[pattern] = l.alpha end
    transposed = transposed or m.transposed == true
  end
  table.sort(targets)
  local others, kept, bias, tied = others_of(net, name)
  for key, t in pairs(deltas) do tensors[key] = t end
  for _, item in ipairs(others) do tensors[PREFIX .. item[1]] = item[2] end
  local c = { peft_type = "LORA", task_type = json.null, r = first.rank, lora_alpha = first.alpha,
    lora_dropout = first.dropout + 0.0, bias = bias, fan_in_fan_out = transposed, target_modules = targets,
    use_rslora = first.rslora, use_dora = first.dora, lora_bias = first.lora_bias,
    inference_mode = true, base_model_name_or_path = json.null,
    rank_pattern = ranks, alpha_pattern = alphas, modules_to_save = #kept > 0 and json.array(kept) or json.null,
    ensure_weight_tying = tied or nil, trainable_token_indices = next(rows) and rows or json.null }
  local ok, why, code = T.save(dir .. "/adapter_model.safetensors", tensors, { metadata = { format = "pt" } })
  if not ok then return nil, why .. (T.core.list_folder(dir) and "" or "; make the folder first"), code end
  return json.write(dir .. "/adapter_config.json", c)
end

local function fault(code, fmt, ...) error({ message = fmt:format(...), code = code }, 0) end

-- What a pattern of PEFT's gives for a name. Keys are expressions of Python for the end of a name behind a point;
-- the first in the file wins: tables have no order, so no two that fit may differ. Without PCRE2 keys are names.
local function pattern_of(path, field, patterns, name, default)
  local v, by = default, nil
  for key, value in pairs(type(patterns) == "table" and patterns or {}) do
    if type(key) == "string" then
      local who = ("%s: the key '%s' of %s"):format(path, key, field)
      local found, why, code = T.core.expression_found(who, "^(.*\\.)?(" .. key .. ")$", name)
      if found == nil then
        local whole = key:match "^%^(.*)$"
        local plain = (whole or key):gsub("%$$", ""):gsub("\\%.", ".")
        if code ~= "unsupported" or plain:find "[%^%$%*%+%?%[%]%(%)%{%}|\\]" then fault(code, "%s", why) end
        found = plain == name or (not whole and ends(name, plain))
      end
      if found then
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
local others = { "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication",
  "monteclora_config", "target_parameters", "use_bdlora", "use_qalora" }
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

-- The module that is trained as a whole and has a parameter of this name.
local function whole_of(c, plain)
  local words = c.modules_to_save
  for _, word in ipairs(type(words) == "table" and words or {}) do
    local at = ""
    for part in plain:gmatch "[^.]+" do
      at = at == "" and part or at .. "." .. part
      if type(word) == "string" and word ~= "" and at:sub(-#word) == word then return at end -- as PEFT has it
    end
  end
  return nil
end

-- Other parameters of a file → list of { modules and their keys that have it, tensor, how, the network's }. Files have
-- more than what is trained: embeddings beside an adapted head. rest: list of { { module, key, parameter, name },
-- tensor, name, whether it is a base layer's }.
local function kinds_of(net, c, rest, adapted_names)
  local out, owners, by = {}, adapters.owners(net), {}
  table.sort(rest, function(a, b) return a[3] < b[3] end)
  for _, item in ipairs(rest) do
    local m, key, p, at = table.unpack(item[1])
    local t, whole, layer = item[2], whole_of(c, item[3]), adapted_names[at] ~= nil
    local how = not item[4] and whole or adapters.FROZEN
    if how == adapters.FROZEN and key == "bias" and (c.bias == "all" or c.bias == "lora_only" and layer) then
      how = adapters.BIAS
    end
    if how ~= adapters.FROZEN or not t:to(p:dtype()):equal(p:detach():to "cpu") then
      local group = how == whole and c.ensure_weight_tying ~= true and whole or "the network"
      by[group] = by[group] or {}
      local met = by[group][p]
      if met and met[2]:equal(t) then
        table.insert(met[1], { m, key })
        if how == whole then met[3] = how end
      else
        met = { { { m, key } }, t, how, p }
        out[#out + 1] = met
        by[group][p] = by[group][p] or met
      end
    end
  end
  for group, list in pairs(by) do -- who shares it has it, too
    for p, met in pairs(list) do
      for _, owner in ipairs(owners[p]) do
        if group == "the network" or owner[3] == group or owner[3]:sub(1, #group + 1) == group .. "." then
          local has = false
          for _, item in ipairs(out) do
            for _, one in ipairs(item[1]) do has = has or one[1] == owner[1] and one[2] == owner[2] end
          end
          if not has then table.insert(met[1], { owner[1], owner[2] }) end
        end
      end
    end
  end
  return out
end

-- Rows of tables that a file has, { name, module, tensor } …, by what its config says of them → groups with delta.
local function rows_of(net, path, c, file, found, adapter)
  local given, entries, by = c.trainable_token_indices, {}, {}
  local function raise(fmt, ...) fault("format", "%s: trainable_token_indices: " .. fmt, path, ...) end
  if type(given) ~= "table" or given == json.null then
    if #found > 0 then raise("is missing, and '%s' has rows", found[1][1]) end
    return {}
  end
  local plain = type(next(given)) ~= "string"
  table.sort(found, function(a, b) return a[1] < b[1] end)
  for _, item in ipairs(found) do
    local at, m, t = table.unpack(item)
    local rows, why = plain and given or nil, nil
    for word, list in pairs(plain and {} or given) do -- PEFT takes any end of a name
      if type(word) == "string" and at:sub(-#word) == word then
        if why then raise("'%s' and '%s' both stand for '%s'", why, word, at) end
        rows, why = list, word
      end
    end
    if type(rows) ~= "table" then raise("no ids for '%s'", at) end
    if dims(t) ~= ("[%d, %d]"):format(#rows, m.embedding_dim or m.in_features) then
      fault("format", "%s: the rows of '%s' are %s, expected [%d, %d]", file, at, dims(t), #rows,
        m.embedding_dim or m.in_features)
    end
    if rawget(m, "_lora") and m._lora.rows_of[adapter] then
      fault("format", "%s has rows of an adapter already, '%s'; give this one another name", at, adapter)
    end
    entries[#entries + 1], by[m] = { at, m, rows }, t
  end
  for word in pairs(plain and {} or given) do
    local met = false
    for at, m in base.named_modules(net, 0) do
      if type(word) == "string" and at:sub(-#word) == word and (adapters.is_table(m) or is_layer(m)) then met = true end
    end
    if not met then raise("nothing in the network is what '%s' is for", tostring(word)) end
  end
  if #entries == 0 then raise("'%s' has no rows", file) end
  local skipped = {}
  for at, m in base.named_modules(net, 0) do skipped[m] = whole_of(c, at) ~= nil end
  local groups = adapters.groups(net, entries, raise, skipped)
  for _, group in ipairs(groups) do
    group.delta = by[group.owner[2]]
    for _, m in ipairs(group.members) do
      if by[m] and not by[m]:equal(group.delta) then raise("'%s' has two of one row", file) end
    end
  end
  return groups
end

-- Everything that a folder says, checked against net: list of { layer, settings, A, B, magnitude }, other parameters.
local function plan(net, dir, adapter)
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
  for name, m in base.named_modules(net, 0) do
    layers[name] = m
    for key in pairs(m._parameters) do
      own[name == "" and key or name .. "." .. key] = { m, key, adapters.plain(m, key), name }
    end
  end
  local found, rest, names, tables = {}, {}, {}, {}
  for name, t in pairs(tensors) do
    local short = name:gsub("^base_model%.model%.", "")
    local at, key = short:match "^(.*)%.(lora_[AB])%.weight$"
    if not at then at = short:match "^(.*)%.lora_magnitude_vector" key = at and "lora_magnitude_vector" end
    if not at then at = short:match "^(.*)%.lora_B%.bias$" key = at and "lora_bias" end
    local resting = short:find "%.original_module%." ~= nil -- the network's, beside a copy that is trained
    local plain = short:gsub("%.modules_to_save%.default%.", "."):gsub("%.modules_to_save%.", ".")
      :gsub("%.token_adapter%.", "."):gsub("%.base_layer%.", "."):gsub("%.original_module%.", ".")
    local part = short:sub(-#ROWS) == ROWS and short:sub(1, -#ROWS - 1)
    if part then
      local m = layers[part]
      if not m or not (adapters.is_table(m) or is_layer(m)) then
        fault("format", "%s: '%s' is for the table '%s', which the network does not have", file, name, part)
      end
      tables[#tables + 1] = { part, m, t }
    elseif at then
      if not layers[at] or not is_layer(layers[at]) then
        fault("format", "%s: '%s' is for the layer '%s', which the network does not have", file, name, at)
      end
      if rawget(layers[at], "_lora") and layers[at]._lora.of[adapter] then
        fault("format", "%s has an adapter already, '%s'; give this one another name, or nn.merge_lora(net) first", at,
          adapter)
      end
      if not found[at] then
        found[at] = {}
        names[#names + 1] = at
      end
      found[at][key] = t
    elseif own[plain] and not short:find "lora_" then
      if dims(t) ~= dims(own[plain][3]) then
        fault("format", "%s: '%s' is %s, expected %s", file, name, dims(t), dims(own[plain][3]))
      end
      local p = own[plain][3]
      if not resting then
        rest[#rest + 1] = { own[plain], t, plain, short:find "%.base_layer%." ~= nil }
      elseif not t:to(p:dtype()):equal(p:detach():to "cpu") then
        fault("format", "%s: '%s' is another than the network has", file, name)
      end
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
      lora_magnitude_vector = c.use_dora == true and { m.out_features } or nil,
      lora_bias = c.lora_bias == true and { m.out_features } or nil } do
      local text = "[" .. table.concat(want, ", ") .. "]"
      if not f[key] then fault("format", "%s: '%s' has no %s", file, name, key) end
      if dims(f[key]) ~= text then
        fault("format", "%s: %s of '%s' is %s, expected %s", file, key, name, dims(f[key]), text)
      end
    end
    if f.lora_magnitude_vector and c.use_dora ~= true then
      fault("format", "%s: '%s' has a lora_magnitude_vector, and use_dora of the config is not true", file, name)
    end
    if c.use_dora == true and not adapters.has_rows(m) then
      fault("unsupported", "%s: use_dora needs the numbers of a weight, which '%s' has not", path, name)
    end
    if f.lora_bias and c.lora_bias ~= true then
      fault("format", "%s: '%s' has a bias, and lora_bias of the config is not true", file, name)
    end
    local dropout = type(c.lora_dropout) == "number" and c.lora_dropout or 0
    list[i] = { m, { name = adapter, rank = rank, alpha = alpha, dropout = dropout,
      rslora = c.use_rslora == true, dora = c.use_dora == true, lora_bias = c.lora_bias == true }, f.lora_A, f.lora_B,
      f.lora_magnitude_vector, f.lora_bias }
  end
  local groups = rows_of(net, path, c, file, tables, adapter)
  for _, group in ipairs(c.use_dora == true and groups or {}) do
    for _, m in ipairs(group.members) do
      for _, name in ipairs(names) do
        if layers[name] == m then
          fault("unsupported", "%s: use_dora of '%s' goes not with trainable_token_indices of it", path, name)
        end
      end
    end
  end
  return list, kinds_of(net, c, rest, found), names, groups
end

--- nn.load_lora(net, dir, {name="default"}) → net, names of the layers; or nil and a message
-- Freezes net and puts the adapter of a folder beside its layers, as PEFT writes it (LoRA, rsLoRA, DoRA, ranks by
-- layer, trainable_token_indices); it is active then, others that there are by other names rest. Other parameters in
-- the file, a head, take the place of the network's while it is active, and are trained, too; a head that shares its
-- weight with the embedding has one of its own then. Nothing is changed where something does not fit.
--   print((nn.load_lora(nn.Linear(2, 2), "/nowhere")))  --> nil
function M.load_lora(net, dir, opts)
  network("nn.load_lora", net)
  folder("nn.load_lora", dir)
  local adapter = adapters.checked_name("nn.load_lora", options.check("nn.load_lora", opts, { "name" }).name)
  local ok, list, rest, names, groups = pcall(plan, net, dir, adapter)
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
    adapters.attach(m, set, moved(item[3]), moved(item[4]), moved(item[5]), moved(item[6]))
  end
  for _, group in ipairs(groups) do
    local wide = T.is_tensor(group.owner[2].weight) and group.owner[2].weight:dtype() == "f64"
    adapters.attach_rows(group, adapter, group.delta:to(wide and "f64" or "f32"))
  end
  for _, item in ipairs(rest) do
    local p = item[4]
    local own = base.Parameter(item[2]:to { dtype = p:dtype(), device = p:device(), copy = true })
    for _, at in ipairs(item[1]) do adapters.own(at[1], adapter, at[2], own, item[3]) end
  end
  adapters.activate(net, { adapter })
  return net, names
end

return M
