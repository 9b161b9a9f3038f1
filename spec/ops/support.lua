-- SPDX-License-Identifier: MIT
-- What the specs of this folder share: the registry, calling an op from its row, arguments as flat lists.

local T = require "perilune"
local random = require "spec.support.random"
local oracle = require "spec.support.oracle"
local cases = require "spec.ops.cases"

local M = { cases = cases }

-- The descriptors of ops that have a function of their own in Lua, in registry order.
function M.public()
  local list = {}
  for _, info in ipairs(T.core.ops()) do
    if not info.flags.internal then list[#list + 1] = info end
  end
  return list
end

local registry = {}
for _, info in ipairs(T.core.ops()) do registry[info.name] = info end

-- What users call: T.name, or T.name_ for an op that works in place.
function M.raw(name)
  local row = cases[name]
  local own = registry[name] and registry[name].flags.mutates and T[name .. "_"]
  return row.call and row.call(T) or own or T[name] or T.core.op[name]
end

-- The same as a function of its arguments: an op that works in place gets copies.
function M.func(name)
  local f = M.raw(name)
  if not registry[name].flags.mutates then return f end
  return function(x, ...)
    if type(x) ~= "table" then return f(x:clone(), ...) end
    local copy = {}
    for i, t in ipairs(x) do copy[i] = t:clone() end
    f(copy, ...)
    return table.unpack(copy)
  end
end

-- All argument lists of a row, made from the same seed each time; for its gradient there are more.
function M.arguments(name, gradients)
  local row = cases[name]
  local g = random.new(11)
  local out = { table.pack(row.args(g)) }
  for _, f in ipairs(row.more or {}) do out[#out + 1] = table.pack(f(g)) end
  for _, f in ipairs(gradients and row.gradients or {}) do
    out[#out + 1] = table.pack((type(f) == "table" and f[1] or f)(g))
    out[#out].more = true
    if type(f) == "table" then out[#out].which, out[#out].defined = f.which, f.defined end
  end
  return out
end

function M.is_tensor(v)
  return type(v) == "userdata"
end

-- Applies f to every tensor among args, also inside lists and option tables; keeps the rest.
function M.map(args, f)
  local function go(v)
    if type(v) == "userdata" then return f(v) end
    if type(v) ~= "table" then return v end
    local out = {}
    for k, x in pairs(v) do out[k] = go(x) end
    return out
  end
  local out = { n = args.n }
  for i = 1, args.n do out[i] = go(args[i]) end
  return out
end

-- f and args such that every floating tensor is an argument of its own (lists are taken apart).
function M.spread(f, args)
  local flat, n = {}, 0
  M.map(args, function(t)
    n = n + 1
    flat[n] = t
    return t
  end)
  local order = {}
  for i, t in ipairs(flat) do order[t] = i end
  return function(...)
    local now = { ... }
    local real = M.map(args, function(t) return now[order[t]] end)
    return f(table.unpack(real, 1, real.n))
  end, flat
end

-- The results of a call as a list.
function M.results(f, args)
  local got = table.pack(f(table.unpack(args, 1, args.n)))
  if type(got[1]) == "table" then return got[1] end
  return got
end

function M.to_oracle(args)
  return M.map(args, function(t) return oracle.from(t) end)
end

return M
