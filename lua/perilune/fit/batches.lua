-- SPDX-License-Identifier: MIT
--- Where the batches of T.fit come from: a DataLoader, or anything that gives them again and again; and how to return
-- to a batch in the middle of a pass.
-- @module perilune.fit.batches
local T = require "perilune"
local core = require "perilune.core"
local DataLoader = require "perilune.data.loader"
local options = require "perilune.options"
local sampler = require "perilune.data.sampler"

local fail, describe = options.fail, options.describe
local M = {}

local function method(v, name)
  if type(v) ~= "table" then return nil end
  local meta = getmetatable(v)
  local f = rawget(v, name)
  if f == nil and type(meta) == "table" and type(meta.__index) == "table" then f = meta.__index[name] end
  return type(f) == "function" and f or nil
end

local function kind_of(source)
  if method(source, "iter") then return "loader" end
  if type(source) == "function" then return "function" end
  if type(source) == "table" and getmetatable(source) == nil and type(source[1]) == "table" then return "list" end
  local meta = getmetatable(source)
  if type(meta) == "table" and meta.__call then return "callable" end
end

--- Refuses what gives no batches, before anything is trained.
function M.check(a)
  for _, name in ipairs { "train", "valid" } do
    local source = a[name]
    if source ~= nil and not kind_of(source) then
      local hint = type(source) == "table" and
        "; a dataset needs a loader: T.data.DataLoader(ds, {batch_size = 64})" or ""
      if type(source) == "table" and getmetatable(source) == nil and type(source[1]) == "userdata" then -- { x, y }
        hint = ("; one batch is { { x, y } }, and many are T.data.DataLoader(T.data.TensorDataset(x, y), "
          .. "{ batch_size = 64 })")
      end
      fail("fit: %s must be a DataLoader, a list of batches, or a function that returns an iterator; got %s%s", name,
        describe(source), hint)
    end
  end
end

--- How many batches a pass has, or nil.
function M.count(source)
  if type(source) == "function" then return nil end
  local ok, n = core.attempt(function() return #source end)
  return ok and n or nil
end

-- A function that returns batch after batch.
local function open(source)
  local kind = kind_of(source)
  if kind == "loader" then return source:iter() end
  if kind == "function" then
    local f, s, c = source()
    if type(f) ~= "function" and not (getmetatable(f) or {}).__call then
      fail("fit: the function that gives the batches must return an iterator, got %s", describe(f))
    end
    source = f
    local function keep(first, ...)
      c = first
      return first, ...
    end
    return function() return keep(source(s, c)) end
  end
  if kind == "list" then
    local i = 0
    return function()
      i = i + 1
      if source[i] then return table.unpack(source[i]) end
    end
  end
  local c
  local function keep(first, ...)
    c = first
    return first, ...
  end
  return function() return keep(source(nil, c)) end
end

--- What decides a loader's next order beside its count of passes: where its sampler and a generator of its own are.
function M.order_of(source)
  if getmetatable(source) ~= DataLoader then return nil end
  local order = source.batch_sampler or source.sampler
  return { sampler = order and sampler.state(order) or nil,
    generator = source.generator and source.generator:get_state() or nil }
end

--- Sets that; nil: it was not noted.
function M.set_order(source, state)
  if state == nil or getmetatable(source) ~= DataLoader then return end
  local order = source.batch_sampler or source.sampler
  if state.sampler and order then sampler.load_state(order, state.sampler) end
  if state.generator and source.generator then source.generator:set_state(state.generator) end
end

--- A new pass. Notes where random numbers and the loader stand before it: the way to find a batch again.
function M.pass(run, which)
  local source = run.options[which]
  if which == "train" then
    run.pass_start = { rng = T.get_rng_state(), epoch = type(source) == "table" and source.epoch or nil,
      order = M.order_of(source) }
  end
  return open(source)
end

--- The pass that began at `start`, its first n batches behind it: the same batches follow as did then.
function M.continue(run, start, n)
  local source = run.options.train
  if start.epoch ~= nil and type(source) == "table" then source.epoch = start.epoch end
  M.set_order(source, start.order)
  T.set_rng_state(start.rng)
  run.pass_start = start
  local next_batch = open(source)
  for i = 1, n do
    if next_batch() == nil then
      fail("fit: the checkpoint was made after batch %d of an epoch, now an epoch has %d", n, i - 1)
    end
  end
  return next_batch
end

return M
