-- SPDX-License-Identifier: MIT
--- Weights of a model that stay in blocks: layers become quantized ones. @module perilune.models.blocks
local base = require "perilune.nn.module"
local gguf = require "perilune.io.gguf"
local quantize = require "perilune.nn.quantize"

local M = {}

local function same(a, b)
  if #a ~= #b then return false end
  for i, n in ipairs(a) do if n ~= b[i] then return false end end
  return true
end

-- The layer that a tensor is the weight of, as nn.Linear and nn.Embedding have theirs; with or without the prefix of
-- the model below a head.
local function layer_of(layers, name, prefix)
  local path = name:match "^(.*)%.weight$"
  if not path then return nil end
  local m = layers[path]
  if not m and prefix then m = layers[prefix .. "." .. path] or layers[path:sub(#prefix + 2)] end
  return m
end

--- Puts quantized layers in the place of those whose weights are blocks, also of those that share them; blocks that are
-- of anything else, or of other sizes, become numbers. tensors and from are changed to the names that are there then.
-- rows: names of numbers that are [out, in] as blocks are, whatever the layer has.
function M.install(net, tensors, from, a, dtype, rows)
  local layers, users = {}, {}
  for name, m in base.named_modules(net, 0) do
    layers[name] = m
    local w = m._parameters.weight
    if w then
      users[w] = users[w] or {}
      table.insert(users[w], m)
    end
  end
  for name in pairs(rows or {}) do
    local m, t = layer_of(layers, name, a.prefix), tensors[name]
    if m and m.transposed and not gguf.is_blocks(t) then tensors[name] = t:t() end
  end
  local new, found, list = {}, {}, {}
  for name, v in pairs(tensors) do if gguf.is_blocks(v) then list[#list + 1] = name end end
  table.sort(list)
  for _, name in ipairs(list) do
    local v = tensors[name]
    local m = layer_of(layers, name, a.prefix)
    local w, made = m and m._parameters.weight, nil
    local shape = v:shape() -- [out, in]
    if m and m.transposed and #shape == 2 then shape = { shape[2], shape[1] } end
    if w and not found[w] and same(w:shape(), shape) then
      for _, user in ipairs(users[w]) do
        local other = quantize.replacement(user, v.blocks, v.format, nil, dtype)
        if other then new[user] = other end
        if user == m then made = other end
      end
    end
    if made then
      local key = name:gsub("weight$", made._key)
      tensors[name], found[w] = nil, true
      tensors[key], from[key] = v.blocks, from[name]
    else
      tensors[name] = m and m.transposed and v:numbers():t() or v:numbers()
    end
  end
  return quantize.replace(net, new)
end

return M
