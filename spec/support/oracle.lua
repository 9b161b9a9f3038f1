-- SPDX-License-Identifier: MIT
-- Naive reference operators on {shape=, data=}: flat row-major Lua lists. Slow, obvious, and the judge of
-- the fast
-- ones. Dimensions and index values are 1-based.

local reader = require "spec.golden.reader"

local M = {}

local function numel(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

-- The values of tensor t.
function M.from(t)
  local shape = t:shape()
  return { shape = shape, data = reader.decode(t:to_string(), t:dtype(), numel(shape)), dtype = t:dtype() }
end

local function strides_of(shape)
  local s, at = {}, 1
  for d = #shape, 1, -1 do
    s[d] = at
    at = at * shape[d]
  end
  return s
end

-- Calls f(k, index) for every position k (1-based, row-major) of shape.
local function each(shape, f)
  local idx, n = {}, numel(shape)
  for d = 1, #shape do idx[d] = 1 end
  for k = 1, n do
    f(k, idx)
    for d = #shape, 1, -1 do
      idx[d] = idx[d] + 1
      if idx[d] <= shape[d] then break end
      idx[d] = 1
    end
  end
end
M.each = each

local function at(a, idx)
  local k, s = 1, strides_of(a.shape)
  for d = 1, #a.shape do k = k + (idx[d] - 1) * s[d] end
  return a.data[k]
end

-- The shape that shapes a and b broadcast to.
local function broadcast_shape(a, b)
  local out, n = {}, math.max(#a, #b)
  for i = 1, n do
    local x, y = a[#a - n + i] or 1, b[#b - n + i] or 1
    if x ~= y and x ~= 1 and y ~= 1 then error("shapes do not broadcast") end
    out[i] = x == 1 and y or x
  end
  return out
end

-- f applied to the broadcast elements of the arguments (numbers count as 0-d).
function M.pointwise(f)
  return function(...)
    local args = { ... }
    local shape = {}
    for i, a in ipairs(args) do
      if type(a) ~= "table" then args[i] = { shape = {}, data = { a } } end
      shape = broadcast_shape(shape, args[i].shape)
    end
    local data = {}
    each(shape, function(k, idx)
      local v = {}
      for i, a in ipairs(args) do
        local own, off = {}, #shape - #a.shape
        for d = 1, #a.shape do own[d] = a.shape[d] == 1 and 1 or idx[off + d] end
        v[i] = at(a, own)
      end
      data[k] = f(table.unpack(v))
    end)
    return { shape = shape, data = data }
  end
end

local function positive(d, n)
  return d < 0 and d + n + 1 or d
end

-- f(list of the elements along dims, in order) for every remaining position. dims nil: all.
function M.reduce(f)
  return function(a, dims, keepdim)
    local n, gone = #a.shape, {}
    if type(dims) == "number" then dims = { dims } end
    if dims == nil or #dims == 0 then
      for d = 1, n do gone[d] = true end
    else
      for _, d in ipairs(dims) do gone[positive(d, n)] = true end
    end
    local kept, shape = {}, {}
    for d = 1, n do
      kept[d] = gone[d] and 1 or a.shape[d]
      if not gone[d] then shape[#shape + 1] = a.shape[d] elseif keepdim then shape[#shape + 1] = 1 end
    end
    local s, groups = strides_of(kept), {}
    for k = 1, numel(kept) do groups[k] = {} end
    each(a.shape, function(k, idx)
      local g = 1
      for d = 1, n do
        if not gone[d] then g = g + (idx[d] - 1) * s[d] end
      end
      table.insert(groups[g], a.data[k])
    end)
    local data = {}
    for k = 1, numel(kept) do data[k] = f(groups[k]) end
    return { shape = shape, data = data }
  end
end

-- f(list along dim) -> list of the same length, for every line along dim.
function M.lines(f)
  return function(a, dim)
    dim = positive(dim or -1, #a.shape)
    if #a.shape == 0 then return { shape = {}, data = f(a.data) } end
    local s, data = strides_of(a.shape), {}
    each(a.shape, function(k, idx)
      if idx[dim] ~= 1 then return end
      local line = {}
      for i = 1, a.shape[dim] do line[i] = a.data[k + (i - 1) * s[dim]] end
      local got = f(line)
      for i = 1, a.shape[dim] do data[k + (i - 1) * s[dim]] = got[i] end
    end)
    return { shape = a.shape, data = data }
  end
end

function M.sum_list(l)
  local s = 0.0
  for _, v in ipairs(l) do s = s + v end
  return s
end

function M.log_softmax_list(l)
  local m, s, out = -math.huge, 0.0, {}
  for _, v in ipairs(l) do m = math.max(m, v) end
  for _, v in ipairs(l) do s = s + math.exp(v - m) end
  for i, v in ipairs(l) do out[i] = v - m - math.log(s) end
  return out
end

function M.softmax_list(l)
  local out = M.log_softmax_list(l)
  for i, v in ipairs(out) do out[i] = math.exp(v) end
  return out
end

M.softmax, M.log_softmax = M.lines(M.softmax_list), M.lines(M.log_softmax_list)

-- Elements of `a` picked by source(index of the result) -> index into a.
function M.pick(a, shape, source)
  local data = {}
  each(shape, function(k, idx) data[k] = at(a, source(idx)) end)
  return { shape = shape, data = data }
end

-- Matrix product of ranks 2 and more with broadcast leading dimensions.
function M.matmul(a, b)
  local na, nb = #a.shape, #b.shape
  local n, m, p = a.shape[na - 1], a.shape[na], b.shape[nb]
  local lead = broadcast_shape(table.move(a.shape, 1, na - 2, 1, {}), table.move(b.shape, 1, nb - 2, 1, {}))
  local shape = table.move(lead, 1, #lead, 1, {})
  shape[#shape + 1], shape[#shape + 2] = n, p
  local data = {}
  local function own(x, idx, i, j)
    local out, r = {}, #x.shape - 2
    for d = 1, r do out[d] = x.shape[d] == 1 and 1 or idx[#lead - r + d] end
    out[r + 1], out[r + 2] = i, j
    return out
  end
  each(shape, function(k, idx)
    local s = 0.0
    for c = 1, m do
      s = s + at(a, own(a, idx, idx[#shape - 1], c)) * at(b, own(b, idx, c, idx[#shape]))
    end
    data[k] = s
  end)
  return { shape = shape, data = data }
end

-- x[N,C,H,W] * w[O,C/groups,kh,kw] + bias; o = {stride, padding, dilation, groups}, each a number.
function M.conv2d(x, w, bias, o)
  o = o or {}
  local st, pad, dil, groups = o.stride or 1, o.padding or 0, o.dilation or 1, o.groups or 1
  local N, C, H, W = table.unpack(x.shape)
  local O, cg, kh, kw = table.unpack(w.shape)
  local oh = (H + 2 * pad - dil * (kh - 1) - 1) // st + 1
  local ow = (W + 2 * pad - dil * (kw - 1) - 1) // st + 1
  local shape, data = { N, O, oh, ow }, {}
  assert(C == cg * groups)
  each(shape, function(k, idx)
    local n, oc, y, z = table.unpack(idx)
    local first = (oc - 1) // (O // groups) * cg
    local s = bias and bias.data[oc] or 0.0
    for c = 1, cg do
      for i = 1, kh do
        for j = 1, kw do
          local yy, zz = (y - 1) * st - pad + (i - 1) * dil + 1, (z - 1) * st - pad + (j - 1) * dil + 1
          if yy >= 1 and yy <= H and zz >= 1 and zz <= W then
            s = s + at(x, { n, first + c, yy, zz }) * at(w, { oc, c, i, j })
          end
        end
      end
    end
    data[k] = s
  end)
  return { shape = shape, data = data }
end

function M.max_pool2d(x, size, stride, pad)
  stride, pad = stride or size, pad or 0
  local N, C, H, W = table.unpack(x.shape)
  local shape = { N, C, (H + 2 * pad - size) // stride + 1, (W + 2 * pad - size) // stride + 1 }
  local data = {}
  each(shape, function(k, idx)
    local best = -math.huge
    for i = 1, size do
      for j = 1, size do
        local y, z = (idx[3] - 1) * stride - pad + i, (idx[4] - 1) * stride - pad + j
        if y >= 1 and y <= H and z >= 1 and z <= W then
          best = math.max(best, at(x, { idx[1], idx[2], y, z }))
        end
      end
    end
    data[k] = best
  end)
  return { shape = shape, data = data }
end

-- Normalizes the last dimension, then scales and shifts.
function M.layer_norm(x, weight, bias, eps)
  local norm = M.lines(function(l)
    local m = M.sum_list(l) / #l
    local v = 0.0
    for _, e in ipairs(l) do v = v + (e - m) ^ 2 end
    local out = {}
    for i, e in ipairs(l) do
      out[i] = (e - m) / math.sqrt(v / #l + (eps or 1e-5)) * (weight and weight.data[i] or 1)
        + (bias and bias.data[i] or 0)
    end
    return out
  end)
  return norm(x, -1)
end

-- Mean over rows of -log softmax(x)[target].
function M.cross_entropy(x, target)
  local l, s, C = M.log_softmax(x, -1), 0.0, x.shape[2]
  for i, t in ipairs(target.data) do s = s - l.data[(i - 1) * C + t] end
  return { shape = {}, data = { s / #target.data } }
end

return M
