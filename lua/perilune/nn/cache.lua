-- SPDX-License-Identifier: MIT
--- What a decoder keeps of the places it has read: keys and values of every layer. @module perilune.nn.cache
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"

local is_module = require("perilune.nn.module").is_module
local fail, describe = options.fail, options.describe

--- nn.KVCache{block=256} → cache
-- Keys and values of the layers of a decoder, kept from call to call: memory for the places to come is there already
-- and grows by blocks (the first one from 64 places on, by doubling). cache:update(layer, k, v) puts k, v [B, H, n, D]
-- behind what the layer has and returns all of it, views; #cache is the number of places; cache:crop(n) forgets those
-- behind the first n, cache:reorder(rows) makes row i what row rows[i] was, cache:reset() forgets all. Nothing is
-- recorded for gradients.
--   local cache = nn.KVCache()
--   local k, v = cache:update(1, T.ones(1, 2, 3, 4), T.ones(1, 2, 3, 4))
--   k, v = cache:update(1, T.ones(1, 2, 1, 4), T.ones(1, 2, 1, 4))
--   print(#cache, table.concat(k:shape(), " "))  --> 4	1 2 4 4
local Cache = classes.new("KVCache", "cache")
local spec = options.spec("nn.KVCache", { { "block", "count", 256 } })

local function new(...)
  local a = options.read(spec, ...)
  return setmetatable({ block = a.block, layers = {} }, Cache)
end

local LEAST = 64 -- places that half a block has at least

-- For how many places there is to be room: whole blocks, but a half or a quarter of the first while that does.
local function capacity_for(block, need)
  if need > block then return (need + block - 1) // block * block end
  while block % 2 == 0 and block // 2 >= math.max(need, LEAST) do block = block // 2 end
  return block
end

-- Room for `need` places, what is there copied over.
local function grow(self, buffer, like, used, need)
  local capacity = capacity_for(self.block, need)
  local shape = like:shape()
  shape[3] = capacity
  local out = T.zeros(shape, { dtype = like:dtype(), device = like:device() })
  if used > 0 then out:narrow(3, 1, used):copy_(buffer:narrow(3, 1, used)) end
  return out
end

--- Behind what layer number `layer` has come k, v [B, H, n, D]; → all its keys and values.
function Cache:update(layer, k, v)
  if not (T.is_tensor(k) and T.is_tensor(v)) or k:dim() ~= 4 or v:dim() ~= 4 or k:size(3) ~= v:size(3) then
    fail("KVCache:update: keys and values [B, H, n, D] of the same n are wanted, got %s and %s", describe(k),
      describe(v))
  end
  if type(layer) ~= "string" then layer = options.kind("KVCache:update", "layer", "count", layer) end
  local at = self.layers[layer] or { n = 0 }
  for name, new_ in pairs { k = k, v = v } do
    local old = at[name]
    if old and (old:size(1) ~= new_:size(1) or old:size(2) ~= new_:size(2) or old:size(4) ~= new_:size(4)
      or old:dtype() ~= new_:dtype()) then
      fail("KVCache:update: layer %s has %s %s with room for %d places, got %s", layer,
        name == "k" and "keys" or "values", old:describe(), old:size(3), new_:describe())
    end
  end
  if k:size(1) ~= v:size(1) or k:size(2) ~= v:size(2) then
    fail("KVCache:update: keys %s and values %s differ in batch or heads", k:describe(), v:describe())
  end
  self.layers[layer] = at
  for i = #(self.ids or {}), at.n + 1, -1 do self.ids[i] = nil end -- other places come behind: see net:generate
  local used, n = at.n, k:size(3)
  local _ <close> = T.no_grad()
  if not at.k or used + n > at.k:size(3) then
    at.k, at.v = grow(self, at.k, k, used, used + n), grow(self, at.v, v, used, used + n)
  end
  if n > 0 then
    at.k:narrow(3, used + 1, n):copy_(k)
    at.v:narrow(3, used + 1, n):copy_(v)
  end
  at.n = used + n
  return at.k:narrow(3, 1, at.n), at.v:narrow(3, 1, at.n)
end

--- Memory for `need` places in all, for layer number `layer`, which has some already; zeros where nothing is.
function Cache:reserve(layer, need)
  local at = self.layers[layer]
  if need > at.k:size(3) then
    local _ <close> = T.no_grad()
    at.k, at.v = grow(self, at.k, at.k, at.n, need), grow(self, at.v, at.v, at.n, need)
    at.left = nil
  elseif at.left then -- what crop left behind the last place may be no number, which a mask does not hide
    local _ <close> = T.no_grad()
    local n = math.min(at.left, at.k:size(3)) - at.n
    for _, t in ipairs { at.k, at.v } do if n > 0 then t:narrow(3, at.n + 1, n):zero_() end end
    at.left = nil
  end
end

--- What layer number `layer` has: keys, values; nil before its first update.
function Cache:get(layer)
  local at = self.layers[layer]
  if at then return at.k:narrow(3, 1, at.n), at.v:narrow(3, 1, at.n) end
end

--- The number of places, of layer number `layer` or of the one that has most.
function Cache:length(layer)
  if layer then return self.layers[layer] and self.layers[layer].n or 0 end
  local most = 0
  for key, at in pairs(self.layers) do if type(key) == "number" then most = math.max(most, at.n) end end
  return most
end
Cache.__len = function(self) return self:length() end

--- Forgets the places behind the first n.
function Cache:crop(n)
  n = options.kind("KVCache:crop", "n", "size", n)
  for key, at in pairs(self.layers) do
    if type(key) == "number" and at.n > n then at.n, at.left = n, math.max(at.left or 0, at.n) end
  end
  return self
end

--- Row i becomes what row rows[i] was; rows i64 from 1.
function Cache:reorder(rows)
  self.ids = nil
  local _ <close> = T.no_grad()
  for _, at in pairs(self.layers) do
    if at.k then at.k, at.v = at.k:index_select(1, rows), at.v:index_select(1, rows) end
  end
  return self
end

--- Forgets everything.
function Cache:reset()
  self.layers, self.ids, self.reader, self.turned = {}, nil, nil, nil
  return self
end

function Cache:__tostring() return ("KVCache(%d places)"):format(self:length()) end

-- ---- whose keys and values they are ------------------------------------------------------------------------

-- Fields of modules that no key or value depends on.
local BESIDE = { config = true, generation_config = true, training = true, _model = true, _names = true, _known = true,
  _opts = true, _length = true }

-- All that a network's results depend on beside its input: tensors with their versions, settings, which adapters are
-- active, hooks, functions of a script's in place of forward. → text, and the objects that it names by their addresses
local function state_of(net)
  local parts, objects, seen = { tostring((T.core.autocast_dtype())) }, setmetatable({}, { __mode = "v" }), {}
  local n = 0
  local function name(v)
    n = n + 1
    objects[n] = v
    parts[#parts + 1] = ("%p"):format(v)
  end
  local function look(v)
    local kind = type(v)
    if kind == "table" then
      if seen[v] then return name(v) end
      seen[v] = true
      name(v)
      local made = type(rawget(v, "_computed")) == "table" and v._computed or BESIDE -- by each call, of what is here
      for key, field in next, v do
        if not BESIDE[key] and not made[key] then
          if type(key) == "string" or type(key) == "number" then parts[#parts + 1] = tostring(key) else look(key) end
          if not is_module(field) then look(field) end
        end
      end
    elseif T.is_tensor(v) then
      name(v)
      parts[#parts + 1] = tostring(v:version())
    elseif kind == "userdata" or kind == "function" or kind == "thread" then
      name(v)
    else
      parts[#parts + 1] = kind == "number" and ("%q"):format(v) or tostring(v)
    end
  end
  for _, m in ipairs(net:modules()) do look(m) end
  return table.concat(parts, " "), objects, n
end

--- Forgets what another network has read, or this one before it was trained, converted or given another adapter.
local function read_by(cache, net)
  local text, objects, n = state_of(net)
  local was, alive = cache.reader, 0
  for _ in next, was and was.objects or {} do alive = alive + 1 end
  -- an object that is gone may have left its address to another one
  if not was or was.text ~= text or alive ~= was.n then cache:reset() end
  cache.reader = { text = text, objects = objects, n = n }
end

--- The cache that an option gives; an error that names `who` where it is none.
local function cache_of(who, v)
  if v ~= nil and getmetatable(v) ~= Cache then fail("%s: cache must be a nn.KVCache, got %s", who, describe(v)) end
  return v
end

return { KVCache = new, cache_of = cache_of, read_by = read_by }
