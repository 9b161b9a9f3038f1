-- SPDX-License-Identifier: MIT
--- One more token as a compiled program: it reads and writes the memory of the cache as it is, at a place that a tensor
-- says, so that one program serves until the cache grows, and no tensor is made. @module perilune.models.step
local Mixture = require("perilune.nn.gated_mlp").MixtureOfExperts
local T = require "perilune"
local core = require "perilune.core"
local KVCache = require("perilune.nn.cache").KVCache

local rawget, rawset = rawget, rawset

local M = {}

-- A program costs as much as some dozens of tokens: so many are made before there is one.
local EAGER = 8

-- net → its program, false where there cannot be one.
local programs = setmetatable({}, { __mode = "k" })

-- What a trace would not do as a call does: windows count from the last place, experts would all be computed, hooks
-- run once.
function M.fits(net)
  local d = net._d
  for _, window in pairs(d.windows or {}) do if window then return false end end
  for _, m in ipairs(net:modules()) do
    if m._hooks or getmetatable(m).__class == Mixture or rawget(m, "_by_length") then return false end
  end
  return true
end

-- A cache whose layers have all of their memory as keys and values; what is behind `place` is hidden by a mask.
-- place: one for all rows, or one for each.
function M.whole(ks, vs, place)
  local cache = KVCache()
  cache.layers[1] = { n = ks[1]:size(3) - 1 }
  rawset(cache, "update", function(_, layer, k, v)
    T.cache_write_(ks[layer], k, place, { index_base = 0 })
    T.cache_write_(vs[layer], v, place, { index_base = 0 })
    return ks[layer], vs[layer]
  end)
  return cache
end

--- {k1, k2 …}, {v1, v2 …} of k1, v1, k2, v2 …: T.jit keeps tables among the arguments of its first call, and with them
-- their tensors, but no tensor that is an argument itself.
function M.apart(...)
  local ks, vs = {}, {}
  for i = 1, select("#", ...), 2 do ks[#ks + 1], vs[#vs + 1] = (select(i, ...)), (select(i + 1, ...)) end
  return ks, vs
end

--- The inverse: one list.
function M.beside(ks, vs)
  local list = {}
  for i, k in ipairs(ks) do list[2 * i - 1], list[2 * i] = k, vs[i] end
  return list
end

local function program(net)
  return T.jit(function(ids, place, logits, best, ...)
    local ks, vs = M.apart(...)
    local room = ks[1]:size(3)
    local seen = T.arange(0, room - 1, { device = ids:device() }):unsqueeze(1):le(place)
    seen = seen:long():expand(ids:size(1), room)
    local y = net(ids, { cache = M.whole(ks, vs, place), attention_mask = seen, position_ids = place:unsqueeze(1),
      last = 1 })
    logits:copy_(y:squeeze(2))
    best:copy_(logits:argmax(-1, { index_base = 0 }))
  end, { name = "generate", max_traces = 64 })
end

-- The memory of all layers, with room for one place more; nil where it is not as a program needs it.
local function memory(cache, n)
  local ks, vs = {}, {}
  for i, at in ipairs(cache.layers) do
    if at.n ~= n then return nil end
    cache:reserve(i, n + 1)
    ks[i], vs[i] = at.k, at.v
  end
  for key in pairs(cache.layers) do if not ks[key] then return nil end end
  return ks, vs
end

--- Logits [B, V] of what comes after one id each, in a tensor that the next call writes again; nil where there is no
-- program. state.chosen: the best ids.
function M.advance(state, rows)
  local net, cache = state.net, state.cache
  local f = programs[net]
  if f == false or state.device ~= "cpu" or T.core.autocast_dtype() then return nil end
  if not state.steps then state.steps, state.fits = 0, M.fits(net) end
  state.steps = state.steps + 1
  if not state.fits or not f and state.steps <= EAGER then return nil end
  if not f then
    f = program(net)
    programs[net] = f
  end
  local n, b = #cache, #rows
  if net._d.places and n >= net._d.places then return nil end -- which is an error
  local ks, vs = memory(cache, n)
  if not ks or #ks == 0 then return nil end
  if not state.ids or state.ids:size(1) ~= b then
    local vocab = net._d.vocab
    local function zeros(shape, dtype) return T.zeros(shape, { dtype = dtype, device = "cpu" }) end
    state.ids, state.place = zeros({ b, 1 }, "i64"), zeros({ 1 }, "i64")
    state.logits, state.best = zeros({ b, vocab }, ks[1]:dtype()), zeros({ b }, "i64")
  end
  for r, row in ipairs(rows) do state.ids:set(r, 1, row[1]) end
  state.place:set(1, n)
  local before = f.ntraces
  local ok, why = core.attempt(f, state.ids, state.place, state.logits, state.best, table.unpack(M.beside(ks, vs)))
  if not ok then
    if f.ntraces > before or f.runs > 0 then error(why, 0) end
    programs[net] = false -- what cannot be traced
    return nil
  end
  for _, at in ipairs(cache.layers) do at.n = n + 1 end
  for i = #(cache.ids or {}), n + 1, -1 do cache.ids[i] = nil end
  state.chosen = state.best:totable()
  return state.logits
end

return M
