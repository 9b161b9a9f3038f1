-- SPDX-License-Identifier: MIT
-- Views, shapes, joining, indexing. Rows of spec/ops/cases.lua; their fields: spec/ops/rows.lua.

local rows = require "spec.ops.rows"
local oracle = require "spec.support.oracle"

local golden, rand, ints, bools = rows.golden, rows.rand, rows.ints, rows.bools

local R = {}

-- ---- shapes -------------------------------------------------------------------------------------

local function same_data(shape)
  return function(x) return { shape = shape, data = x.data } end
end
R.view = { one_layout = true, args = function(g) return rand(g, { 3, 4 }), { 2, -1 } end,
  ref = same_data { 2, 6 } }
R.reshape = { args = function(g) return rand(g, { 3, 4 }), { 2, -1 } end, ref = same_data { 2, 6 } }
R.flatten = { args = function(g) return rand(g, { 2, 3, 2 }), { start_dim = 2 } end,
  ref = same_data { 2, 6 } }
R.unflatten = { args = function(g) return rand(g, { 2, 6 }), { dim = 2, sizes = { 3, -1 } } end,
  ref = same_data { 2, 3, 2 } }
R.squeeze = { args = function(g) return rand(g, { 3, 1, 4 }), { dim = 2 } end, ref = same_data { 3, 4 } }
R.unsqueeze = { args = function(g) return rand(g, { 3, 4 }), { dim = 2 } end, ref = same_data { 3, 1, 4 } }
R.contiguous = { args = function(g) return rand(g, { 3, 4 }) end, ref = same_data { 3, 4 } }
R.clone = { args = function(g) return rand(g, { 3, 4 }) end, ref = same_data { 3, 4 } }
R.transpose = { args = function(g) return rand(g, { 3, 4 }), 1, 2 end,
  ref = function(x) return oracle.pick(x, { 4, 3 }, function(i) return { i[2], i[1] } end) end }
R.permute = { args = function(g) return rand(g, { 2, 3, 4 }), { 3, 1, 2 } end,
  ref = function(x) return oracle.pick(x, { 4, 2, 3 }, function(i) return { i[2], i[3], i[1] } end) end }
R.expand = { args = function(g) return rand(g, { 3, 1 }), { 2, 3, 4 } end,
  ref = function(x) return oracle.pick(x, { 2, 3, 4 }, function(i) return { i[2], 1 } end) end }
R.narrow = { args = function(g) return rand(g, { 3, 5 }), 2, 2, 3 end,
  ref = function(x) return oracle.pick(x, { 3, 3 }, function(i) return { i[1], i[2] + 1 } end) end }
R.select = { args = function(g) return rand(g, { 3, 4 }), 2, -1 end,
  ref = function(x) return oracle.pick(x, { 3 }, function(i) return { i[1], 4 } end) end }
R.flip = { args = function(g) return rand(g, { 3, 4 }), { 2 } end,
  ref = function(x) return oracle.pick(x, { 3, 4 }, function(i) return { i[1], 5 - i[2] } end) end }
R.tile = { args = function(g) return rand(g, { 2, 3 }), { 2, 2 } end,
  ref = function(x)
    return oracle.pick(x, { 4, 6 }, function(i) return { (i[1] - 1) % 2 + 1, (i[2] - 1) % 3 + 1 } end)
  end }
R.roll = { args = function(g) return rand(g, { 3, 4 }), { shifts = 1, dims = 2 } end,
  ref = function(x) return oracle.pick(x, { 3, 4 }, function(i) return { i[1], (i[2] - 2) % 4 + 1 } end) end }
R.diagonal = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x) return oracle.pick(x, { 3 }, function(i) return { i[1], i[1] } end) end }
R.triu = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x)
    for k = 1, 12 do if (k - 1) // 4 > (k - 1) % 4 then x.data[k] = 0.0 end end
    return x
  end }
R.tril = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x)
    for k = 1, 12 do if (k - 1) // 4 < (k - 1) % 4 then x.data[k] = 0.0 end end
    return x
  end }
R.t = { args = function(g) return rand(g, { 3, 4 }) end, ref = R.transpose.ref }
R.broadcast_to = { args = function(g) return rand(g, { 3, 1 }), { 2, 3, 4 } end, ref = R.expand.ref }
R.expand_as = { args = function(g) return rand(g, { 3, 1 }), ints(g, { 2, 3, 4 }, 1, 2) end,
  ref = R.expand.ref }
R.slice = { args = function(g) return rand(g, { 3, 5 }), { dim = 2, start = 2, length = 2, step = 2 } end,
  ref = function(x) return oracle.pick(x, { 3, 2 }, function(i) return { i[1], 2 * i[2] } end) end }
R.trace = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x) return { shape = {}, data = { x.data[1] + x.data[6] + x.data[11] } } end }
R.sum_to = { args = function(g) return rand(g, { 2, 3, 4 }), { shape = { 3, 1 } } end,
  ref = function(x)
    local y = oracle.reduce(oracle.sum_list)(x, { 1, 3 })
    return { shape = { 3, 1 }, data = y.data }
  end }
R.movedim = golden(function(g) return rand(g, { 2, 3, 4 }), 1, 3 end)
R.as_strided = golden(function(g) return rand(g, { 12 }), { 2, 3 }, { 3, 1 } end, { one_layout = true })
R.pad = golden(function(g) return rand(g, { 3, 4 }), { pad = { 1, 2 } } end)
R.unfold = golden(function(g) return rand(g, { 3, 5 }), 2, 3, 1 end)
R.repeat_interleave = golden(function(g) return rand(g, { 3, 4 }), 2 end)
R.diag_embed = golden(function(g) return rand(g, { 3, 4 }) end)
R.diag = golden(function(g) return rand(g, { 3, 4 }) end)
R.repeat_each = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 3 }, 0, 2), { dim = 1 } end,
  { golden = "repeat_interleave" })

-- ---- joining and indexing -----------------------------------------------------------------------

R.cat = { args = function(g) return { rand(g, { 2, 3 }), rand(g, { 1, 3 }) } end,
  ref = function(l)
    local data = table.move(l[1].data, 1, 6, 1, {})
    return { shape = { 3, 3 }, data = table.move(l[2].data, 1, 3, 7, data) }
  end }
R.stack = { args = function(g) return { rand(g, { 2, 3 }), rand(g, { 2, 3 }) } end,
  ref = function(l)
    local data = table.move(l[1].data, 1, 6, 1, {})
    return { shape = { 2, 2, 3 }, data = table.move(l[2].data, 1, 6, 7, data) }
  end }
R.gather = { args = function(g) return rand(g, { 3, 4 }), { dim = 2, index = ints(g, { 3, 2 }, 1, 4) } end,
  golden = true }
R.index_select = golden(function(g) return rand(g, { 3, 4 }), { dim = 1, index = ints(g, { 4 }, 1, 3) } end)
R.cache_write = {
  args = function(g) return rand(g, { 2, 2, 4, 3 }), rand(g, { 2, 2, 2, 3 }), ints(g, { 1 }, 2, 2) end,
  more = { function(g) return rand(g, { 3, 2, 5, 2 }), rand(g, { 3, 2, 2, 2 }), ints(g, { 3 }, 1, 4) end },
  ref = function(cache, src, at)
    local B, H, S, D = table.unpack(cache.shape)
    local n, out = src.shape[3], { shape = { B, H, S, D }, data = { table.unpack(cache.data) } }
    for h = 0, B * H - 1 do
      local place = at.data[#at.data > 1 and h // H + 1 or 1] - 1
      for k = 1, n * D do out.data[(h * S + place) * D + k] = src.data[h * n * D + k] end
    end
    return out
  end,
}
R.masked_fill = {
  args = function(g) return rand(g, { 3, 4 }), bools(g, { 4 }), 7 end,
  more = { function(g) return rand(g, { 3, 4 }), bools(g, { 3, 1 }), rand(g, {}) end },
  ref = oracle.pointwise(function(x, m, v) return m ~= 0 and v or x end),
}
R.take = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 5 }, 1, 12) end)
R.take_along_dim = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 3, 2 }, 1, 4), { dim = 2 } end)
R.one_hot = golden(function(g) return ints(g, { 4 }, 1, 3), { num_classes = 3 } end)
R.index = { args = function(g) return { rand(g, { 3, 4 }), ints(g, { 2 }, 1, 3) } end,
  ref = function(l)
    return oracle.pick(l[1], { 2, 4 }, function(i) return { l[2].data[i[1]], i[2] } end)
  end }
R.index_put = golden(function(g) return { rand(g, { 3, 4 }), rand(g, { 2, 4 }), ints(g, { 2 }, 1, 3) },
  { accumulate = true } end)
R.masked_select = golden(function(g) return rand(g, { 3, 4 }), bools(g, { 3, 4 }) end)
R.masked_scatter = golden(function(g) return rand(g, { 3, 4 }), bools(g, { 3, 4 }), rand(g, { 12 }) end)
R.nonzero = golden(function(g) return bools(g, { 3, 4 }) end)
-- positions without repeats along dimension 2, so that the last write is no matter of order
local function columns() return function(g) return rows.permutations(g, 3, 4) end end
R.scatter = golden(function(g) return rand(g, { 3, 4 }), columns()(g), rand(g, { 3, 4 }), { dim = 2 } end)
R.scatter_add = golden(function(g)
  return rand(g, { 3, 4 }), ints(g, { 3, 4 }, 1, 4), rand(g, { 3, 4 }), { dim = 2 }
end)
R.scatter_reduce = golden(function(g)
  return rand(g, { 3, 4 }, 0.5, 2), ints(g, { 3, 4 }, 1, 4), rand(g, { 3, 4 }, 0.5, 2),
    { dim = 2, reduce = "mean" }
end)
R.index_add = golden(function(g)
  return rand(g, { 3, 4 }), ints(g, { 2 }, 1, 3), rand(g, { 2, 4 }), { dim = 1 }
end, { more = { function(g) return rand(g, {}), ints(g, { 1 }, 1, 1), rand(g, {}), { dim = 1 } end } })
R.index_copy = golden(function(g)
  return rand(g, { 3, 4 }), rows.permutations(g, 1, 3):view(3), rand(g, { 3, 4 }), { dim = 1 }
end, { more = { function(g) return rand(g, {}), ints(g, { 1 }, 1, 1), rand(g, {}), { dim = 1 } end } })
R.index_fill = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 2 }, 1, 3), 0.5, { dim = 1 } end,
  { more = { function(g) return rand(g, { 3, 4 }), ints(g, { 2 }, 1, 3), rand(g, {}), { dim = 1 } end } })
R.searchsorted = golden(function(g) return rand(g, { 5 }):sort(), rand(g, { 3 }) end)
R.bucketize = golden(function(g) return rand(g, { 3 }), (rand(g, { 5 }):sort()) end)
R.bincount = golden(function(g) return ints(g, { 6 }, 1, 4) end)
R.isin = golden(function(g) return ints(g, { 6 }, 1, 4), ints(g, { 3 }, 1, 4) end)
R.unique = golden(function(g) return ints(g, { 6 }, 1, 4) end)

return R
