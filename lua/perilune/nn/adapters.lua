-- SPDX-License-Identifier: MIT
--- What nn.lora puts into layers: adapters by name, of which some are active, and parameters that an adapter has in
-- place of the network's. @module perilune.nn.adapters
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local linear, is_batched = F.linear, T.core.is_batched
local Parameter, rawget, rawset = base.Parameter, rawget, rawset

local M = {}

-- The parameters of an adapter, by the field of its settings that has their names. Those of "default" have PEFT's
-- plain ones.
local KINDS = { A = "lora_A", B = "lora_B", length = "lora_magnitude_vector", bias = "lora_bias" }
local function key_of(kind, name) return name == "default" and KINDS[kind] or KINDS[kind] .. "_" .. name end

M.KINDS = KINDS
-- Their names in PEFT's files.
M.FILES = { A = "lora_A.weight", B = "lora_B.weight", length = "lora_magnitude_vector", bias = "lora_B.bias" }

-- Does a name end in that of a part?
function M.ends(name, word) return name == word or name:sub(-#word - 1) == "." .. word end

function M.is_layer(m)
  return math.type(m.in_features) == "integer" and math.type(m.out_features) == "integer"
end

-- [out, in], whichever way round the layer has it.
local function matrix(m)
  local w = m.weight
  if not T.is_tensor(w) or not w:is_floating_point() then return nil end
  return m.transposed and w:t() or w
end
M.matrix = matrix

-- Has a layer rows whose lengths can be known?
function M.has_rows(m) return matrix(m) ~= nil or type(m.numbers) == "function" end

local ROWS = 512 -- that are numbers at a time where the weight is blocks

local function lengths(m, set) -- of the rows of W + scale B A; they have no gradient
  local w, a, b = matrix(m), m[set.A]:detach(), m[set.B]:detach()
  if w then return (w:detach():to(a:dtype()) + b:matmul(a) * set.scale):square():sum(2):sqrt() end
  local parts, rows = {}, m.out_features
  for from = 1, rows, ROWS do
    local n = math.min(ROWS, rows - from + 1)
    local part = m:numbers(a:dtype(), from, n) + b:narrow(1, from, n):matmul(a) * set.scale
    parts[#parts + 1] = part:square():sum(2):sqrt()
  end
  return T.cat(parts, 1)
end

M.lengths = lengths

-- y, what a layer gives for x, and what one of its adapters adds. own: y is a matrix that nobody else has, and is
-- written where that saves another one.
local function adapt(self, set, x, y, own)
  local a, b, length = self[set.A], self[set.B], set.dora and self[set.length]
  local z = x:to(a:dtype())
  if set.dropout > 0 and self.training then z = T.dropout(z, set.dropout) end
  local dropped = z
  z = linear(z, a) * set.scale -- of few columns
  if not length and y:dtype() == z:dtype() and y:numel() > 0 then -- y + z bᵀ without z bᵀ beside it
    if own and not is_batched(z) and not is_batched(b) then -- in T.vmap y may be the same for all
      y = y:addmm_(z, b:t())
    else
      y = T.addmm(y:reshape(-1, y:size(-1)), z:reshape(-1, z:size(-1)), b:t()):view(y:shape())
    end
    return set.lora_bias and y + self[set.bias] * set.scale or y
  end
  z = linear(z, b)
  if set.lora_bias then z = z + self[set.bias] * set.scale end
  if length then
    local ratio = length / lengths(self, set)
    local plain = y
    if set.dropout > 0 and self.training then -- what was dropped of B A x is dropped of W x as well
      local w = matrix(self)
      if w then
        plain = linear(dropped, w:to(a:dtype()))
      else
        plain = getmetatable(self).__class.forward(self, dropped)
        if self.bias then plain = plain - self.bias end
      end
    elseif self.bias then
      plain = y - self.bias
    end
    return y + ((ratio - 1) * plain:to(a:dtype()) + ratio * z):to(y:dtype())
  end
  return y + z:to(y:dtype())
end

-- A table of vectors looked up by number.
local function is_table(m)
  return math.type(m.num_embeddings) == "integer" and math.type(m.embedding_dim) == "integer" and m.mode == nil
end
M.is_table = is_table

-- What a table or a head gives where some rows of its weight are others: y is what it gives without.
local function with_rows(self, set, x, y)
  local rows = self[set.delta]:to(y:dtype())
  if not is_table(self) then
    local own, index = linear(x, rows), self[set.index]
    if self.bias then own = own + self.bias:index_select(1, index):to(y:dtype()) end
    return T.index_copy(y, index, own, { dim = -1 })
  end
  local at = T.embedding(self[set.places], x, { index_base = self.index_base }) -- 0: not one of them
  local all = T.cat({ T.zeros({ 1, rows:size(2) }, { dtype = rows:dtype(), device = rows:device() }), rows }, 1)
  local own = F.embedding(at:squeeze(-1), all, { index_base = 0, padding_idx = 0, max_norm = self.max_norm,
    norm_type = self.max_norm and self.norm_type or nil, scale_grad_by_freq = self.scale_grad_by_freq or nil })
  if set.padded then own = T.where(x:eq(self.padding_idx):unsqueeze(-1), own:detach(), own) end
  return T.where(at:ne(0), own, y)
end

-- forward of a layer with adapters, in place of its class's.
local function forward(self, x)
  local class, l = getmetatable(self).__class, self._lora
  local name = class.__name -- of classes whose results are theirs alone
  local own = (name == "Linear" or name == "QuantizedLinear") and rawequal(T.nn[name], class) and T.is_tensor(x)
    and x:dim() > 1 and x:size(-1) > 0 and not T.core.jit_tracing() and not T.core.autocast_dtype()
  local rows = own and x:dim() > 2 and x:reshape(-1, x:size(-1)) or x
  local y = class.forward(self, rows)
  for _, set in ipairs(l.rows) do y = with_rows(self, set, rows, y) end
  for _, set in ipairs(l.active) do y = adapt(self, set, rows, y, own) end
  if rawequal(rows, x) then return y end
  local shape = x:shape()
  shape[#shape] = y:size(-1)
  return y:view(shape)
end

-- What a layer has of its adapters. _lora: { of = name → settings, active = list of settings }, and the same of rows
-- that are trained: { rows_of, rows }.
local function adapters_of(m)
  local l = rawget(m, "_lora")
  if not l then
    l = { of = {}, active = {}, rows_of = {}, rows = {} }
    rawset(m, "_lora", l)
    rawset(m, "forward", forward)
  end
  return l
end

-- An adapter for a layer, not active yet.
function M.attach(m, o, a, b, length, bias)
  local l = adapters_of(m)
  local set = { name = o.name, rank = o.rank, alpha = o.alpha, dropout = o.dropout, rslora = o.rslora, dora = o.dora,
    lora_bias = o.lora_bias, scale = o.alpha / (o.rslora and math.sqrt(o.rank) or o.rank) }
  for kind in pairs(KINDS) do set[kind] = key_of(kind, o.name) end
  l.of[o.name] = set
  m[set.A], m[set.B] = Parameter(a), Parameter(b)
  if o.lora_bias then
    m[set.bias] = Parameter(bias or T.zeros({ m.out_features }, { dtype = b:dtype(), device = b:device() }))
  end
  if o.dora then m[set.length] = Parameter(length or T.no_grad(lengths, m, set)) end
end

function M.detach(m)
  for _, set in pairs(m._lora.of) do
    for kind in pairs(KINDS) do
      if m._parameters[set[kind]] then base.forget(m, set[kind]) end
    end
  end
  for _, set in pairs(m._lora.rows_of) do
    for _, key in ipairs { set.delta, set.index, set.places } do base.forget(m, key) end
  end
  rawset(m, "_lora", nil)
  rawset(m, "forward", nil)
end

-- { name from 0, layer } of all layers with adapters.
function M.adapted(net)
  local list = {}
  for name, m in base.named_modules(net, 0) do if rawget(m, "_lora") then list[#list + 1] = { name, m } end end
  return list
end

-- No plain table, as what rests in it is on purpose no parameter of the module.
local Own = { __copied = true }

-- An adapter's own parameter in place of the network's while it is active. how: the name of the module that is trained
-- as a whole (modules_to_save of PEFT), or M.BIAS, which is trained by itself, or M.FROZEN, which is not trained.
-- _lora_own: { base = key → the network's, of = name → key → parameter, how = name → key → how }.
M.BIAS, M.FROZEN = {}, {}
function M.own(m, name, key, parameter, how)
  local o = rawget(m, "_lora_own")
  if not o then
    o = setmetatable({ base = {}, of = {}, how = {} }, Own)
    rawset(m, "_lora_own", o)
  end
  o.base[key] = o.base[key] or m._parameters[key]
  o.of[name], o.how[name] = o.of[name] or {}, o.how[name] or {}
  o.of[name][key], o.how[name][key] = parameter, how
end

-- The network's own parameter of a module, also while an adapter has another in its place.
function M.plain(m, key)
  local o = rawget(m, "_lora_own")
  return o and o.base[key] or m._parameters[key]
end

-- Parameter of the network → list of { module, key, name of the module }: more than one where it is shared.
function M.owners(net)
  local out = {}
  for at, m in base.named_modules(net, 0) do
    for key in pairs(m._parameters) do
      local p = M.plain(m, key)
      out[p] = out[p] or {}
      table.insert(out[p], { m, key, at })
    end
  end
  return out
end

-- ---- rows that are trained --------------------------------------------------------------------------------

-- trainable_token_indices of PEFT: an adapter has some rows of a table's weight, the parameter trainable_tokens_delta
-- [n, width], which stand in the place of the weight's. Who shares the weight of a table, a head, has them as well.
local DELTA = "trainable_tokens_delta"
M.DELTA = DELTA

-- The names that tables of tokens have, where a network has other tables, too.
local inputs = { embed_tokens = true, wte = true, word_embeddings = true, shared = true, embed_in = true,
  token_embedding = true, tok_embeddings = true }

local function weight_of(m) return m._parameters.weight and M.plain(m, "weight") or m.weight end

-- The table of a network's tokens and its name; nil and the names of those that it could be.
function M.tokens_of(net)
  local tables, named = {}, {}
  for at, m in base.named_modules(net, 0) do
    if is_table(m) then
      local list = inputs[at:match "[^.]*$"] and named or tables
      list[#list + 1] = { at, m }
    end
  end
  local list = #named > 0 and named or tables
  local names, weight = {}, list[1] and weight_of(list[1][2])
  for i, item in ipairs(list) do
    names[i] = item[1]
    if weight_of(item[2]) ~= weight then weight = nil end
  end
  if not weight then return nil, names end
  return list[1][2], list[1][1]
end

-- Who gets which rows: list of { name, module, rows from 0 } → list of { rows, owner = { name, module }, members =
-- list of modules }. raise(format, …) says what does not fit; skipped: modules with a weight for this adapter alone.
function M.groups(net, entries, raise, skipped)
  local out, of = {}, {}
  for _, item in ipairs(entries) do
    local at, m, rows = table.unpack(item)
    local n, met = m.num_embeddings or m.out_features, {}
    for _, row in ipairs(rows) do
      if math.type(row) ~= "integer" or row < 0 or row >= n then
        raise("%s has %d rows, and no row %s", at, n, math.type(row) == "integer" and row or describe(row))
      end
      if met[row] then raise("row %d of %s is named twice", row, at) end
      met[row] = true
    end
    if #rows == 0 then raise("no rows of %s are named", at) end
    local key, group = table.concat(rows, " "), nil
    for _, other in ipairs(out) do
      if other.key == key and weight_of(other.owner[2]) == weight_of(m) then group = other end
    end
    if of[m] and of[m].key ~= key then raise("%s is named twice, with other rows", at) end
    if not group then
      group = { key = key, rows = rows, members = {}, owner = { at, m } }
      out[#out + 1] = group
    elseif is_table(m) and not is_table(group.owner[2]) then
      group.owner = { at, m }
    end
    if not of[m] then table.insert(group.members, m) end
    of[m] = group
  end
  for _, group in ipairs(out) do
    for _, m in base.named_modules(net, 0) do
      if is_table(group.owner[2]) and not of[m] and not skipped[m] and (is_table(m) or M.is_layer(m))
        and weight_of(m) == weight_of(group.owner[2]) then
        table.insert(group.members, m)
        of[m] = group
      end
    end
  end
  return out
end

-- The rows of a weight, as numbers that are trained.
local function values(m, rows)
  local w, parts = matrix(m), {}
  if w then
    local at = {}
    for i, row in ipairs(rows) do at[i] = row + 1 end
    local picked = w:detach():index_select(1, T.tensor(at, { dtype = "i64", device = w:device() }))
    return w:dtype() == "f64" and picked or picked:to "f32"
  end
  for i, row in ipairs(rows) do parts[i] = m:numbers("f32", row + 1, 1) end
  return T.cat(parts, 1)
end

-- Rows of an adapter for all that share them; delta: their numbers, or nil: the weight's.
function M.attach_rows(group, name, delta)
  local owner = group.owner[2]
  local device, at = owner.weight:device(), {}
  delta = Parameter((delta or T.no_grad(values, owner, group.rows)):to(device))
  for i, row in ipairs(group.rows) do at[i] = row + 1 end
  local index = T.tensor(at, { dtype = "i64", device = device })
  for _, m in ipairs(group.members) do
    local function key(word) return name == "default" and word or word .. "_" .. name end
    local set = { name = name, rows = group.rows, owner = m == owner, delta = key(DELTA),
      index = key "trainable_token_rows", places = key "trainable_token_places" }
    adapters_of(m).rows_of[name] = set
    m[set.delta] = delta
    m:register_buffer(set.index, index, { persistent = false })
    if is_table(m) then
      local places = T.zeros({ m.num_embeddings, 1 }, { dtype = "i64", device = device })
      places:index_copy_(1, index, T.arange(1, #at):long():to(device):unsqueeze(2))
      m:register_buffer(set.places, places, { persistent = false })
      local row = rawget(m, "_padding_row")
      for _, r in ipairs(group.rows) do set.padded = set.padded or row == r + 1 end
    end
  end
end

-- Each of these layers has these adapters of its own, and no others, active.
function M.activate(net, names)
  local wanted = {}
  for _, name in ipairs(names) do wanted[name] = true end
  for _, m in base.named_modules(net, 0) do
    local l, o = rawget(m, "_lora"), rawget(m, "_lora_own")
    if l then
      local active = {}
      for _, name in ipairs(names) do active[#active + 1] = l.of[name] end
      l.active = active
      l.rows = {}
      for _, name in ipairs(names) do l.rows[#l.rows + 1] = l.rows_of[name] end
      for name, set in pairs(l.rows_of) do m._parameters[set.delta]:requires_grad_(wanted[name] == true) end
      for name, set in pairs(l.of) do
        for kind in pairs(KINDS) do
          local p = m._parameters[set[kind]]
          if p then p:requires_grad_(wanted[name] == true) end
        end
      end
    end
    for key, plain in pairs(o and o.base or {}) do
      local now, new, how = m._parameters[key], plain, nil
      for _, name in ipairs(names) do
        local own = o.of[name] and o.of[name][key]
        if own then new, how = own, o.how[name][key] end
      end
      if now ~= new then
        if new:device() ~= now:device() or new:dtype() ~= now:dtype() then -- after net:to
          T.core.rebind(new, new:detach():to { device = now:device(), dtype = now:dtype() })
        end
        m[key] = new
      end
      if new ~= plain then new:requires_grad_(how ~= M.FROZEN) end
    end
  end
end

-- The names of all adapters of net, in order, and those that are active.
function M.names_of(net)
  local known, active, list = {}, {}, {}
  for _, item in ipairs(M.adapted(net)) do
    for name in pairs(item[2]._lora.of) do
      if not known[name] then
        known[name] = true
        list[#list + 1] = name
      end
    end
    for _, set in ipairs(item[2]._lora.active) do active[set.name] = true end
  end
  table.sort(list)
  return list, known, active
end

function M.network(who, net)
  if not base.is_module(net) then fail("%s: a network is wanted, got %s", who, describe(net)) end
end

function M.checked_name(who, name)
  if name == nil then return "default" end
  if type(name) ~= "string" or not name:find "^[%w_]+$" then
    fail("%s: name must be letters, digits and _, got %s", who, describe(name))
  end
  return name
end

return M
