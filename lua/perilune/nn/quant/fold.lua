-- SPDX-License-Identifier: MIT
--- Factors of a layer's input that go into what makes that input, so that nothing of them is left: a norm's weight, or
-- the rows of a linear layer (of values before the projection behind attention, of the gated half before a down
-- projection).
--
-- Nobody knows what a module's `forward` does with a tensor, so it is tried. Rows of the candidate are multiplied by
-- powers of two: the layers' input must change by those, each channel by that of one row, and when the columns of the
-- layers are divided by them, too, all results must be what they were. Powers of two change no bit of a mantissa, so
-- what is compared is equal, whatever the dtype, or the fold is wrong: a nonlinear function between, or another reader.
-- What is nonlinear for large values alone, as a clamp that the data does not reach, is found by larger powers.
-- @module perilune.nn.quant.fold
local T = require "perilune"
local codes = require "perilune.nn.quant.codes"

local rawget, rawequal = rawget, rawequal
local function matrix(l) return l.transposed and l.weight:t() or l.weight end -- W [out, in]

local M = {}

local function kind_of(m)
  local class, nn = getmetatable(m).__class, T.nn
  if rawget(m, "_lora") then return nil end -- what an adapter adds is not divided, and of a new one nothing is seen yet
  if class == nn.LayerNorm or class == nn.RMSNorm then return m.weight and m.weight:dim() == 1 and "norm" or nil end
  if class == nn.Linear or rawget(class, "linear") then return "linear" end
  if class == nn.QuantizedLinear then return codes.format(m.format) and "blocks" or nil end
end

--- Whether factors can go into a module's results at all.
function M.takes(m) return kind_of(m) ~= nil end

local function rows(m, kind) return kind == "norm" and m.weight:numel() or m.out_features end

-- Its results times `by`, f64 [rows], for good: → what they were multiplied by in truth, and how to go back; nil
-- where it cannot be.
local function multiply(m, kind, by)
  local w = m.weight
  local old, bias = w:detach():clone(), m.bias and m.bias:detach():clone()
  local function back()
    if kind == "blocks" then m[m._key] = old else w:copy_(old) end
    if bias then m.bias:copy_(bias) end
  end
  if kind == "blocks" then
    local new = codes.multiply_rows(codes.format(m.format), w, by)
    if not new then return nil end
    m[m._key] = new
  elseif kind == "norm" then
    local shift = m.unit_offset and 1 or 0
    local was = old:double() + shift
    w:copy_(was * by - shift)
    local now = w:detach():double() + shift -- rounded to the dtype of the weight
    by = T.where(was:eq(0):logical_or(now:eq(0)), by, now / was)
  else
    w:copy_(old:double() * (m.transposed and by or by:unsqueeze(2)))
  end
  if bias then m.bias:copy_(bias:double() * by) end
  return by, back
end

-- Powers of two that look like noise for the last `own` of n rows: 1/2, 1, 2, 4 by the place.
local function probe(n, own)
  local list = {}
  for i = 1, n do list[i] = i <= n - own and 1 or 2.0 ^ ((i * 2654435761 >> 13) % 4 - 1) end
  return list
end

-- How many of a module's n rows, the last ones, might make K channels: all; or of one that makes several things at once
-- a half, or what is behind as many keys and K queries.
local function windows(n, k)
  if n <= k then return { n } end
  return { n - k, (n - k) // 2 }
end

local function each_divisor(n, f)
  for d = 1, n do if n % d == 0 and f(d) then return true end end
end

-- Which row makes which channel: list of K places, for what `found` says of each channel (nil: nothing) and rows of
-- `by`, the last `own` of which are heads that K / own channels read.
local function places(found, k, by, own)
  local from, r, source = #by - own, k // own, nil
  local function fits(at)
    local list = {}
    for c = 1, k do
      local row = at(c)
      if found[c] and math.abs(found[c] - by[row]) > 0.02 * by[row] then return false end
      list[c] = row
    end
    source = list
    return true
  end
  each_divisor(own, function(d) -- where r is 1 it is one head
    return fits(function(c) return from + (c - 1) // (r * d) * d + (c - 1) % d + 1 end)
  end)
  return source
end

local function tensors_of(v, into)
  into = into or {}
  if T.is_tensor(v) then
    if v:is_floating_point() then into[#into + 1] = v:detach() end
  elseif type(v) == "table" and getmetatable(v) == nil then
    local keys = {}
    for key in pairs(v) do keys[#keys + 1] = key end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(keys) do tensors_of(v[key], into) end
  end
  return into
end

-- Whether two lists of results are one, but for a share of the largest number.
local function same(a, b, share)
  if #a ~= #b or #a == 0 then return false end
  for i, t in ipairs(a) do
    local o = b[i]
    if t:numel() ~= o:numel() then return false end
    if t:numel() > 0 then
      local most = t:abs():amax():item()
      local gap = (t - o):abs():amax():item()
      if gap ~= gap or gap > (share or 1e-5) * most then return false end
    end
  end
  return true
end

-- f() with the modules' weights in other hands; afterwards all are as before, whatever happens.
local function trying(f)
  local function begin(undo) return undo end
  local function finish(undo)
    for i = #undo, 1, -1 do undo[i]() end
  end
  local undo = {}
  return (T.core.around(begin, undo, finish, f, function(back) undo[#undo + 1] = back end))
end

--- Into which of some modules, the most recent first, factors of the input of `layers` (nn.Linear) can go: the module
-- and for every channel the row of it that makes it. look() calls what is around once: → sums of |input|, f64 [K],
-- results.
function M.find(layers, before, look)
  if #before == 0 then return nil end
  local k = layers[1].in_features
  local sums, results = look()
  local base = tensors_of(results)
  if #base == 0 then return nil end
  local before_sums = sums:totable()
  local far = layers[1].weight:dtype() == "f16" and 2.0 ^ 3 or 2.0 ^ 12
  -- Whether the last `own` of n rows of m make the channels, and nothing else: the row of each. times: of the powers.
  local function try(m, kind, n, own, times)
    return trying(function(keep)
      local list = probe(n, own)
      for i = n - own + 1, n do list[i] = list[i] * times end
      local by, back = multiply(m, kind, T.tensor(list, { dtype = "f64", device = m.weight:device() }))
      if not by then return nil end
      keep(back)
      local changed, other = look()
      if same(base, tensors_of(other)) then return nil end -- nothing can be seen of it
      local found = changed:totable()
      for c = 1, k do found[c] = before_sums[c] > 0 and found[c] / before_sums[c] or nil end
      local from = places(found, k, list, own)
      if not from then return nil end
      local columns = {}
      for c = 1, k do columns[c] = 1 / list[from[c]] end
      for _, l in ipairs(layers) do
        local w = matrix(l)
        local old = w:detach():clone()
        keep(function() w:copy_(old) end)
        w:copy_(old * T.tensor(columns, { dtype = w:dtype(), device = w:device() }))
      end
      local _, after = look()
      return same(base, tensors_of(after)) and from or nil
    end)
  end
  for _, m in ipairs(before) do
    local kind = kind_of(m)
    local n = kind and rows(m, kind) or 0
    for _, own in ipairs(windows(n, k)) do
      local source = own > 0 and k % own == 0 and (own == n or kind ~= "norm") and try(m, kind, n, own, 1)
      if source and try(m, kind, n, own, kind == "blocks" and 2.0 ^ 5 or far) then return m, source end
    end
  end
end

--- Puts 1 / s into module m, s f64 [K] being the same for all channels of one row; layers are to be multiplied by s.
-- → what the input was divided by in truth, f64 [K], and a function that takes it back; nil where m cannot take it: the
-- results would be others, as where something between is linear for numbers of some size alone.
function M.put(layers, m, source, s, look)
  local kind = kind_of(m)
  local index = T.tensor(source, { dtype = "i64", device = s:device() })
  local by = T.ones({ rows(m, kind) }, { dtype = "f64", device = s:device() })
  by = by:index_copy(1, index, s:reciprocal())
  local _, results = look()
  local truly, back = multiply(m, kind, by)
  if not truly then return nil end
  truly = truly:index_select(1, index):reciprocal()
  local ok, good = pcall(trying, function(keep)
    for _, l in ipairs(layers) do
      local w = matrix(l)
      local old = w:detach():clone()
      keep(function() w:copy_(old) end)
      w:copy_(old:double() * truly)
    end
    local _, after = look()
    return same(tensors_of(results), tensors_of(after), 0.01)
  end)
  if ok and good then return truly, back end
  back()
  if not ok then error(good, 0) end
end

--- Means of size, f64 [K], over channels that one row makes.
function M.pooled(size, source)
  local index = T.tensor(source, { dtype = "i64", device = size:device() })
  local n = index:amax():item()
  local sum = T.zeros({ n }, { dtype = "f64", device = size:device() }):index_add(1, index, size)
  local count = T.zeros({ n }, { dtype = "f64", device = size:device() }):index_add(1, index, T.ones_like(size))
  return (sum / count:clamp { min = 1 }):index_select(1, index)
end

--- Of modules that were called before x was seen what `candidates` asks: list of {module, did it make x, or might x be
-- made of its result}. recent: { {module, its result} … }, in the order of calls, none of which is kept.
function M.noted(recent, x)
  local list, width = {}, x:size(-1)
  for i, item in ipairs(recent) do
    local y = item[2]
    list[i] = { item[1], rawequal(y, x),
      T.is_tensor(y) and y:dim() > 0 and (y:size(-1) >= width or y:size(-1) > 0 and width % y:size(-1) == 0) }
  end
  return list
end

--- Those of noted modules that results can be told apart from, the most recent first: the one that made x alone, if it
-- is known; else those with enough rows.
function M.candidates(noted, of_one_place)
  local list = {}
  for i = #noted, 1, -1 do
    local m = noted[i][1]
    if noted[i][2] then return of_one_place(m) and { m } or {} end
    if #list < 6 and of_one_place(m) and noted[i][3] then list[#list + 1] = m end
  end
  return list
end

return M
