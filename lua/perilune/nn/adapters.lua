-- SPDX-License-Identifier: MIT
--- What nn.lora puts into layers: adapters by name, of which some are active, and parameters that an adapter has in
-- place of the network's. @module perilune.nn.adapters
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local linear = F.linear
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

-- y, what a layer gives for x, and what one of its adapters adds.
local function adapt(self, set, x, y)
  local a, b, length = self[set.A], self[set.B], set.dora and self[set.length]
  local z = x:to(a:dtype())
  if set.dropout > 0 and self.training then z = T.dropout(z, set.dropout) end
  local dropped = z
  z = linear(z, a) * set.scale -- of few columns
  if not length and y:dtype() == z:dtype() and y:numel() > 0 then -- y + z bᵀ without z bᵀ beside it
    y = T.addmm(y:reshape(-1, y:size(-1)), z:reshape(-1, z:size(-1)), b:t()):view(y:shape())
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

-- forward of a layer with adapters, in place of its class's.
local function forward(self, x)
  local y = getmetatable(self).__class.forward(self, x)
  for _, set in ipairs(self._lora.active) do y = adapt(self, set, x, y) end
  return y
end

-- An adapter for a layer, not active yet. _lora: { of = name → settings, active = list of settings }.
function M.attach(m, o, a, b, length, bias)
  local l = rawget(m, "_lora")
  if not l then
    l = { of = {}, active = {} }
    rawset(m, "_lora", l)
    rawset(m, "forward", forward)
  end
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
