-- SPDX-License-Identifier: MIT
--- nn.utils.rnn: sequences of different lengths. Padded: [S, N, *] with something behind each end. Packed: the rows of
-- all sequences that have a step k, for each step, the longest sequence first; recurrent layers take and give these.
-- @module perilune.nn.utils.rnn
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local rnn = {}

-- ---- packed sequences ------------------------------------------------------------------------------------

local Packed = classes.new("PackedSequence", "packed")

--- nn.utils.rnn.is_packed(x) → boolean
-- Whether x is a packed batch.
--   print(nn.utils.rnn.is_packed(T.ones(1)))  --> false
function rnn.is_packed(x) return type(x) == "table" and getmetatable(x) == Packed end

local function i64(list, device) return T.tensor(list, { dtype = "i64", device = device }) end

-- data [Σ lengths, *]; lengths: a list, falling. Which rows of data are step t of sequence n is the same for all that
-- come from one packing: `place` [S · N] counts from 1 and is one more than there are rows where there is none.
local function new(data, lengths, sorted, unsorted, batch_sizes, place)
  return setmetatable({ data = data, batch_sizes = batch_sizes, sorted_indices = sorted, unsorted_indices = unsorted,
    _lengths = lengths, _place = place }, Packed)
end

-- batch_sizes, the padded place of each row, and `place`, for falling lengths.
local function plan(lengths)
  local S, N = lengths[1], #lengths
  local sizes, rows, place, n = {}, {}, {}, N
  for t = 1, S do
    while lengths[n] < t do n = n - 1 end
    sizes[t] = n
    for k = 1, n do
      rows[#rows + 1] = (t - 1) * N + k
      place[(t - 1) * N + k] = #rows
    end
  end
  for at = 1, S * N do place[at] = place[at] or #rows + 1 end
  return sizes, rows, place
end

--- The sequences as [S, N, *] in the order in which they were packed, zeros behind their ends, and their lengths.
function Packed:padded(value)
  local shape, lengths = self.data:shape(), self._lengths
  local data = self.data
  local behind = T.full({ 1, table.unpack(shape, 2) }, value or 0, { dtype = data:dtype(), device = data:device() })
  local rows = T.cat({ data, behind }, 1):index_select(1, self._place)
  return rows:view(lengths[1], #lengths, table.unpack(shape, 2)), i64(lengths, "cpu")
end

--- Another packed sequence with the same lengths, from y [S, N, *] in the same order.
function Packed:with(y)
  local data = y:reshape(y:size(1) * y:size(2), table.unpack(y:shape(), 3))
  return new(data:index_select(1, self._rows), self._lengths, self.sorted_indices, self.unsorted_indices,
    self.batch_sizes, self._place):_keep(self._rows)
end

function Packed:_keep(rows)
  self._rows = rows
  return self
end

--- The same with data of another dtype or device.
function Packed:to(...)
  local data = self.data:to(...)
  local function there(t) return t and t:to { device = data:device() } end
  return new(data, self._lengths, there(self.sorted_indices), there(self.unsorted_indices), self.batch_sizes,
    there(self._place)):_keep(there(self._rows))
end

function Packed:__tostring()
  return ("PackedSequence(data=%s, %d sequences of up to %d steps)"):format(describe(self.data), #self._lengths,
    self._lengths[1])
end

-- ---- lengths -----------------------------------------------------------------------------------------------

local function lengths_of(who, lengths, n, longest)
  if T.is_tensor(lengths) then
    if lengths:dim() ~= 1 then fail("%s: lengths [N] are wanted, got %s", who, describe(lengths)) end
    if T.core.is_symbolic(lengths) then
      options.untraceable("%s: the lengths decide what is computed, and %s has no values while T.jit traces; give a "
        .. "list of numbers, n:totable()", who, describe(lengths))
    end
    lengths = lengths:totable()
  end
  if type(lengths) == "table" then options.list(who, "the lengths", lengths, "integers") end
  if type(lengths) ~= "table" or #lengths ~= n then
    fail("%s: %d lengths are wanted, got %s", who, n, type(lengths) == "table" and #lengths or describe(lengths))
  end
  local out = {}
  for i, v in ipairs(lengths) do
    out[i] = options.integer(v)
    if not out[i] or out[i] < 1 or out[i] > longest then
      fail("%s: length #%d is %s, should be a whole number in 1..%d", who, i, tostring(v), longest)
    end
  end
  return out
end

--- nn.utils.rnn.invert_permutation(permutation) → tensor
-- The permutation that undoes one; numbers from 1.
--   print(nn.utils.rnn.invert_permutation(T.tensor({ 2, 3, 1 }, { dtype = "i64" })))  --> {3, 1, 2}  -- i64[3] cpu
function rnn.invert_permutation(permutation)
  if permutation == nil then return nil end
  if not T.is_tensor(permutation) or permutation:dim() ~= 1 then
    fail("invert_permutation: a tensor [N] is wanted, got %s", describe(permutation))
  end
  return permutation:argsort()
end

local function batch_second(who, x, batch_first, least)
  if not T.is_tensor(x) or x:dim() < least then
    fail("%s: [S, N, *], or with batch_first [N, S, *], is wanted, got %s", who, describe(x))
  end
  return batch_first and x:transpose(1, 2) or x
end

--- nn.utils.rnn.pack_padded_sequence(x, lengths, {batch_first=false, enforce_sorted=true}) → packed
-- A batch x [S, N, *] of sequences with those lengths, packed for nn.RNN, nn.GRU and nn.LSTM, whose last states are
-- then each sequence's own. Lengths must fall unless enforce_sorted is false. Fields data [Σ lengths, *], batch_sizes,
-- sorted_indices, unsorted_indices.
--   local x = T.tensor { { 1, 4 }, { 2, 0 }, { 3, 0 } }:unsqueeze(3) -- two sequences, of three steps and of one
--   local packed = nn.utils.rnn.pack_padded_sequence(x, { 3, 1 })
--   print(packed.data:flatten(), packed.batch_sizes)  --> {1., 4., 2., 3.}  -- f32[4] cpu	{2, 1, 1}  -- i64[3] cpu
--   local y, h = nn.GRU(1, 5)(packed)
--   print(table.concat(y.data:shape(), " "), table.concat(h:shape(), " "))  --> 4 5	1 2 5
function rnn.pack_padded_sequence(x, lengths, opts)
  local who = "pack_padded_sequence"
  local o = options.check(who, opts, { "batch_first", "enforce_sorted" })
  x = batch_second(who, x, o.batch_first, 2)
  local n = x:size(2)
  if n == 0 then fail("%s: the batch %s is empty", who, describe(x)) end
  lengths = lengths_of(who, lengths, n, x:size(1))
  local order, sorted, unsorted = {}, nil, nil
  for i = 1, n do order[i] = i end
  if o.enforce_sorted == false then
    table.sort(order, function(a, b) return lengths[a] > lengths[b] or lengths[a] == lengths[b] and a < b end)
    sorted = i64(order, x:device())
    unsorted = rnn.invert_permutation(sorted)
    x = x:index_select(2, sorted)
  end
  local falling = {}
  for i = 1, n do
    falling[i] = lengths[order[i]]
    if i > 1 and falling[i] > falling[i - 1] then
      fail("%s: lengths must fall, but #%d is %d after %d; give { enforce_sorted = false }", who, i, falling[i],
        falling[i - 1])
    end
  end
  local sizes, rows, place = plan(falling)
  -- places of x, which may be longer than the longest sequence: step t begins at (t - 1) N there, too
  local flat = x:reshape(x:size(1) * n, table.unpack(x:shape(), 3))
  rows = i64(rows, x:device())
  place = i64(place, x:device())
  return new(flat:index_select(1, rows), falling, sorted, unsorted, i64(sizes, "cpu"), place):_keep(rows)
end

--- nn.utils.rnn.pad_packed_sequence(packed, {batch_first=false, padding_value=0, total_length=}) → x, lengths
-- A packed batch padded again, in the order before packing, and the lengths.
--   local packed = nn.utils.rnn.pack_sequence({ T.ones(1), T.ones(2) * 2 }, { enforce_sorted = false })
--   local x, lengths = nn.utils.rnn.pad_packed_sequence(packed, { batch_first = true, padding_value = -1 })
--   print(x, lengths)
--   --> {{ 1., -1.},
--   -->  { 2.,  2.}}  -- f32[2,2] cpu	{1, 2}  -- i64[2] cpu
function rnn.pad_packed_sequence(packed, opts)
  local who = "pad_packed_sequence"
  if not rnn.is_packed(packed) then fail("%s: a packed sequence is wanted, got %s", who, describe(packed)) end
  local o = options.check(who, opts, { "batch_first", "padding_value", "total_length" })
  local x, lengths = packed:padded(o.padding_value)
  local S = x:size(1)
  if o.total_length then
    if not options.integer(o.total_length) or o.total_length < S then
      fail("%s: total_length must be a whole number of at least %d, the longest sequence, got %s", who, S,
        tostring(o.total_length))
    end
    local more = { o.total_length - S, table.unpack(x:shape(), 2) }
    x = T.cat({ x, T.full(more, o.padding_value or 0, { dtype = x:dtype(), device = x:device() }) }, 1)
  end
  if packed.unsorted_indices then
    x = x:index_select(2, packed.unsorted_indices)
    lengths = lengths:index_select(1, packed.unsorted_indices:cpu())
  end
  return o.batch_first and x:transpose(1, 2) or x, lengths
end

-- ---- lists of sequences ------------------------------------------------------------------------------------

local function check_list(who, list)
  if type(list) ~= "table" or #list == 0 then
    fail("%s: a list of tensors is wanted, got %s", who, type(list) == "table" and "none" or describe(list))
  end
  options.list(who, "the sequences", list, "tensors")
  for i, t in ipairs(list) do
    if not T.is_tensor(t) or t:dim() < 1 then
      fail("%s: entry %d must be a tensor [length, *], got %s", who, i, describe(t))
    end
  end
end

--- nn.utils.pad_sequence({x, …}, {batch_first=false, padding_value=0, padding_side="right"}) → [longest, N, *]
-- Sequences [l_i, *] of different lengths in one tensor.
--   print(nn.utils.pad_sequence({ T.ones(1), T.ones(2) }, { batch_first = true }))
--   --> {{1., 0.},
--   -->  {1., 1.}}  -- f32[2,2] cpu

--- nn.utils.rnn.pad_sequence({x, …}, {batch_first=false, padding_value=0, padding_side="right"}) → [longest, N, *]
-- Sequences [l_i, *] of different lengths in one tensor; nn.utils.pad_sequence is the same.
--   print(nn.utils.rnn.pad_sequence({ T.ones(1), T.ones(2) }, { batch_first = true, padding_side = "left" }))
--   --> {{0., 1.},
--   -->  {1., 1.}}  -- f32[2,2] cpu
function rnn.pad_sequence(list, opts)
  local who = "pad_sequence"
  check_list(who, list)
  local o = options.check(who, opts, { "batch_first", "padding_value", "padding_side" })
  local side = o.padding_side or "right"
  if side ~= "right" and side ~= "left" then
    fail("%s: %s", who, options.unknown("padding_side", side, { "right", "left" }))
  end
  local longest, parts = 0, {}
  for _, t in ipairs(list) do longest = math.max(longest, t:size(1)) end
  for i, t in ipairs(list) do
    local shape = t:shape()
    shape[1] = longest - shape[1]
    local behind = T.full(shape, o.padding_value or 0, { dtype = t:dtype(), device = t:device() })
    parts[i] = shape[1] == 0 and t or T.cat(side == "right" and { t, behind } or { behind, t }, 1)
  end
  return T.stack(parts, o.batch_first and 1 or 2)
end

--- nn.utils.rnn.unpad_sequence(x, lengths, {batch_first=false}) → list
-- The sequences again, from their lengths; nn.utils.unpad_sequence is the same.
--   print(nn.utils.rnn.unpad_sequence(T.ones(2, 2), { 1, 2 })[1])  --> {1.}  -- f32[1] cpu

--- nn.utils.unpad_sequence(x, lengths, {batch_first=false}) → list
-- The sequences again, from their lengths.
--   print(nn.utils.unpad_sequence(T.ones(2, 2), { 1, 2 })[1])  --> {1.}  -- f32[1] cpu
function rnn.unpad_sequence(x, lengths, opts)
  local who = "unpad_sequence"
  local o = options.check(who, opts, { "batch_first" })
  x = batch_second(who, x, o.batch_first, 2)
  local out = {}
  for i, n in ipairs(lengths_of(who, lengths, x:size(2), x:size(1))) do out[i] = x:select(2, i):narrow(1, 1, n) end
  return out
end

--- nn.utils.rnn.pack_sequence({x, …}, {enforce_sorted=true}) → packed
-- Packs a list of sequences [l_i, *], the longest first unless enforce_sorted is false.
--   print(nn.utils.rnn.pack_sequence { T.ones(2), T.ones(1) * 5 }.data)  --> {1., 5., 1.}  -- f32[3] cpu
function rnn.pack_sequence(list, opts)
  local who = "pack_sequence"
  check_list(who, list)
  local o = options.check(who, opts, { "enforce_sorted" })
  local lengths = {}
  for i, t in ipairs(list) do lengths[i] = t:size(1) end
  return rnn.pack_padded_sequence(rnn.pad_sequence(list), lengths, { enforce_sorted = o.enforce_sorted })
end

--- nn.utils.rnn.unpack_sequence(packed) → list
-- The sequences of a packed batch, in the order before packing.
--   print(nn.utils.rnn.unpack_sequence(nn.utils.rnn.pack_sequence { T.ones(2), T.ones(1) * 5 })[2])
--   --> {5.}  -- f32[1] cpu
function rnn.unpack_sequence(packed)
  if not rnn.is_packed(packed) then fail("unpack_sequence: a packed sequence is wanted, got %s", describe(packed)) end
  return rnn.unpad_sequence(rnn.pad_packed_sequence(packed))
end

return rnn
