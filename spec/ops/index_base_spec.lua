-- SPDX-License-Identifier: MIT
-- Positions count from index_base, 1 unless said otherwise: with 0 every op that takes or gives positions does the same
-- with all of them one less. From the ops' rows; what is no position stays.

local T = require "perilune"
local support = require "spec.ops.support"

-- Results that are positions, among those that are integers.
local gives = { argmax = { 1 }, argmin = { 1 }, max_dim = { 2 }, min_dim = { 2 }, median = { 2 }, mode = { 2 },
  kthvalue = { 2 }, topk = { 2 }, sort = { 2 }, argsort = { 1 }, cummax = { 2 }, cummin = { 2 }, max_pool1d = { 2 },
  max_pool2d = { 2 }, max_pool3d = { 2 }, adaptive_max_pool1d = { 2 }, adaptive_max_pool2d = { 2 },
  adaptive_max_pool3d = { 2 }, nonzero = { 1 }, searchsorted = { 1 }, bucketize = { 1 }, unique = { 2 },
  multinomial_alias_setup = { 1 } }
-- Not here: the labels of ctc_nll have lengths beside them, cache_write has positions that are counted, bincount counts
-- values, and what random ops draw is asked for in spec/ops/random_spec.lua.
local left_out = { ctc_nll = true, cache_write = true, bincount = true }
-- Ops that take integers which are no positions.
local values = { argmax = true, argmin = true, max_dim = true, min_dim = true, median = true, mode = true, topk = true,
  kthvalue = true, sort = true, argsort = true, cummax = true, cummin = true, unique = true, nonzero = true,
  searchsorted = true, bucketize = true }
-- Options that make an op give its positions.
local asked = { max_pool1d = "return_indices", max_pool2d = "return_indices", max_pool3d = "return_indices",
  adaptive_max_pool1d = "return_indices", adaptive_max_pool2d = "return_indices",
  adaptive_max_pool3d = "return_indices", unique = "return_inverse" }
local numbers = { "padding_idx", "ignore_index" }

local function is_options(v) return type(v) == "table" and #v == 0 end

-- args with positions counted from base.
local function counted(name, args, base)
  local last = args[args.n]
  local options = is_options(last) and last or {}
  local shift = base - (options.index_base or 1)
  local function moved(v) return v < 0 and v or v + shift end
  local list = support.map(args, function(t)
    if t:dtype() ~= "i64" or values[name] then return t end
    return T.where(t:lt(0), t, t + shift)
  end)
  local mine = is_options(last) and list[list.n] or {}
  if not is_options(last) then
    list.n = list.n + 1
    list[list.n] = mine
  end
  mine.index_base = base
  if asked[name] then mine[asked[name]] = true end
  for _, key in ipairs(numbers) do if mine[key] then mine[key] = moved(mine[key]) end end
  return list
end

describe("positions of", function()
  for _, info in ipairs(support.public()) do
    local has = false
    for _, a in ipairs(info.attrs) do has = has or a.name == "index_base" end
    if has and support.cases[info.name] and not info.flags.seeded and not left_out[info.name] then
      it(info.name, function()
        local f, compared, shifted = support.func(info.name), 0, 0
        for v, args in ipairs(support.arguments(info.name, true)) do
          local zero = support.results(f, counted(info.name, args, 0))
          local one = support.results(f, counted(info.name, args, 1))
          local positions = {}
          for _, k in ipairs(gives[info.name] or {}) do positions[k] = true end
          for k = 1, #zero do
            if support.is_tensor(zero[k]) then
              local what = ("%s, variant %d, result %d"):format(info.name, v, k)
              assert.same(zero[k]:shape(), one[k]:shape(), what)
              local want = zero[k]
              if positions[k] then
                assert.equal("i64", want:dtype(), what)
                want = want + 1
                shifted = shifted + want:numel()
              end
              local same = want:eq(one[k]):logical_or(want:ne(want))
              assert.is_true(same:all():item(), what)
              compared = compared + want:numel()
            end
          end
        end
        assert.is_true(compared > 0)
        assert.equal(gives[info.name] ~= nil, shifted > 0)
      end)
    end
  end
end)
