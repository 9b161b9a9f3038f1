-- SPDX-License-Identifier: MIT
-- Calls on tensors past 2^31 elements whose results a formula knows: what spec/support/huge.lua runs beside the ops of
-- the registry. A wrong result is an error. At most 9 GB each.

-- luacheck: ignore 311 (a tensor is let go before the next one is made)

local T = require "perilune"
local F = T.nn.F

local N = (1 << 31) + 4099
local M = {}

local function same(got, want, what)
  if got ~= want then error(("wrong: %s is %s, not %s"):format(what or "it", got, want), 2) end
end
local function list(t, ...)
  local got, want = t:reshape(-1):tolist(), { ... }
  for i = 1, math.max(#got, #want) do same(got[i], want[i], "element " .. i) end
end

-- N elements 0 … 250 again and again: neither 2^31 nor 2^32 is a multiple of 251, so a place that wrapped shows.
local P = 251
local function wave()
  local rows = N // P + 1
  local x = T.empty({ rows, P }, { dtype = "u8" })
  x:copy_(T.arange(0, P - 1):to("u8"))
  return x:view(rows * P):narrow(1, 1, N)
end
local function at(i) return (i - 1) % P end -- what wave() has at i
-- Does y have f(place) at these places, which lie around 2^31 and at both ends?
local places = { 1, 2, 250, 252, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 31) + 2, N - 1, N }
local function look(y, f, what)
  for _, i in ipairs(places) do same(y:get(i), f(i), ("%s, element %d"):format(what or "result", i)) end
end
-- Zeros with ones at places.
local function marks(dtype)
  local x = T.zeros(N, { dtype = dtype or "u8" })
  for _, i in ipairs(places) do x:narrow(1, i, 1):fill_(1) end
  return x
end

-- ---- reductions, scans, searches -----------------------------------------------------------------------------------

local whole, rest = N // P, N % P
local total = whole * (P * (P - 1) // 2) + rest * (rest - 1) // 2

function M.sums()
  local x = wave()
  same(x:sum():item(), total, "sum")
  same(x:count_nonzero():item(), N - whole - (rest > 0 and 1 or 0), "count_nonzero")
  same(x:max():item(), 250, "max")
  same(x:min():item(), 0, "min")
  same(x:to("bool"):any():item(), true, "any")
  same(x:to("bool"):all():item(), false, "all")
  same(x:eq(7):sum():item(), whole + (rest >= 8 and 1 or 0), "sum of a bool")
end
function M.expanded_sums() -- floats, one element N times
  for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
    local x = T.full({ 1 }, 0.5, { dtype = dtype }):expand(N)
    if dtype == "f64" then same(x:sum():item(), N / 2, "sum of " .. dtype) end
    same(x:mean():item(), 0.5, "mean of " .. dtype)
    same(x:amax():item(), 0.5, "amax of " .. dtype)
  end
  local x = T.full({ 1 }, 3.0):expand(N)
  same(x:var():item(), 0.0, "var")
  same(x:to("f32"):prod():item(), math.huge, "prod")
  same(math.abs(x:norm():item() / (3 * N ^ 0.5) - 1) < 1e-5, true, "norm")
  same(math.abs(x:logsumexp(1):item() - (3 + math.log(N))) < 1e-4, true, "logsumexp")
end
function M.places_of_extremes()
  local x = T.zeros(N, { dtype = "u8" })
  x:narrow(1, N - 2, 1):fill_(9)
  same(x:argmax():item(), N - 2, "argmax")
  local v, i = x:max(1)
  same(v:item(), 9, "max") same(i:item(), N - 2, "its place")
  x:fill_(7)
  x:narrow(1, (1 << 31) + 5, 1):fill_(1)
  same(x:argmin():item(), (1 << 31) + 5, "argmin")
end
function M.nonzero()
  list(marks("bool"):nonzero(), table.unpack(places))
end
function M.masked_select()
  local x = wave()
  list(x:masked_select(marks("bool")), table.unpack((function()
    local w = {}
    for k, i in ipairs(places) do w[k] = at(i) end
    return w
  end)()))
end
function M.scans()
  local x = T.zeros(N, { dtype = "u8" })
  for _, i in ipairs(places) do x:narrow(1, i, 1):fill_(1) end
  local y = x:cumsum(1, { dtype = "u8" })
  x = nil
  for k, i in ipairs(places) do same(y:get(i), k, "cumsum at " .. i) end
end
function M.halves_scanned()
  local x = T.zeros({ 2, N // 2 + 1 }, { dtype = "bf16" })
  x:select(2, 3):fill_(1)
  local y = x:cumsum(2)
  same(y:get(2, N // 2 + 1), 1.0, "cumsum")
  same(y:get(2, 2), 0.0, "cumsum in front")
end
function M.topk()
  local x = T.zeros(N, { dtype = "u8" })
  x:narrow(1, N, 1):fill_(5)
  x:narrow(1, (1 << 31) + 7, 1):fill_(4)
  local v, i = x:topk(2)
  list(v, 5, 4)
  list(i, N, (1 << 31) + 7)
end
function M.sort_rows() -- rows of four
  local x = T.empty({ N // 4, 4 }, { dtype = "u8" })
  x:copy_(T.tensor({ 3, 1, 4, 2 }, { dtype = "u8" }))
  x:select(1, N // 4):copy_(T.tensor({ 9, 8, 7, 6 }, { dtype = "u8" }))
  local y = x:topk(1, { dim = 2, largest = true })
  same(y:get(N // 4, 1), 9, "the last row's largest")
  same(y:get(N // 4 - 1, 1), 4, "the one before")
  same(y:to("f32"):min():item(), 4.0, "the smallest of the largest")
end
function M.searchsorted()
  local x = T.zeros(N, { dtype = "u8" })
  x:narrow(1, (1 << 31) + 3, N - (1 << 31) - 2):fill_(2)
  list(T.searchsorted(x, T.tensor({ 0, 1, 2, 3 }, { dtype = "u8" }), { right = true }), (1 << 31) + 3,
    (1 << 31) + 3, N + 1, N + 1)
end
function M.bincount()
  local x = wave()
  local c = x:bincount()
  same(c:size(1), P, "bins")
  same(c:sum():item(), N, "all")
  same(c:get(1), whole + (rest > 0 and 1 or 0), "zeros")
end
function M.unique()
  local u = wave():unique()
  same(u:numel(), P, "values")
end

-- ---- copies, views, joins ------------------------------------------------------------------------------------------

function M.copies()
  local x = wave()
  look(x, at, "the source")
  look(x:clone(), at, "clone")
  look(x:to("i8"), function(i) return at(i) > 127 and at(i) - 256 or at(i) end, "to i8")
end
function M.flip()
  look(wave():flip(1), function(i) return at(N + 1 - i) end, "flip")
end
function M.roll()
  look(wave():roll(5), function(i) return at((i - 6) % N + 1) end, "roll")
end
function M.cat()
  local x = wave()
  local y = T.cat { x:narrow(1, 1, 1 << 31), x:narrow(1, 1, 4099) }
  look(y, function(i) return i <= 1 << 31 and at(i) or at(i - (1 << 31)) end, "cat")
end
function M.transposed()
  local rows = N // P
  local x = wave():narrow(1, 1, rows * P):view(rows, P)
  local y = x:t():contiguous()
  for _, r in ipairs { 1, 2, rows // 2, rows - 1, rows } do
    for _, c in ipairs { 1, 2, P } do same(y:get(c, r), c - 1, ("row %d, column %d"):format(r, c)) end
  end
  same(y:select(1, P):to("f32"):min():item(), 250.0, "the last row")
end
function M.repeated()
  local y = T.arange(0, P - 1):to("u8"):tile(N // P + 1)
  look(y, at, "tile")
end
function M.padded()
  local y = F.pad(T.ones({ 2, 3 }, { dtype = "u8" }), { 0, N // 2 })
  same(y:size(2), N // 2 + 3, "size")
  same(y:to("bool"):count_nonzero():item(), 6, "ones")
  list(y:select(1, 2):narrow(1, 1, 4), 1, 1, 1, 0)
end
function M.triangle()
  local n = 46347 -- n^2 > 2^31
  local x = T.ones({ n, n }, { dtype = "u8" })
  local y = x:tril()
  x = nil
  same(y:sum():item(), n * (n + 1) // 2, "sum of tril")
  same(y:diagonal():sum():item(), n, "its diagonal")
  same(T.eye(n, { dtype = "u8" }):sum():item(), n, "eye")
end
function M.filled()
  local x = T.full({ N }, 3, { dtype = "u8" })
  same(x:sum():item(), 3 * N, "full")
  x:masked_fill_(marks("bool"), 0)
  same(x:sum():item(), 3 * (N - #places), "masked_fill_")
end
function M.where()
  local y = T.where(marks("bool"), T.tensor(5, { dtype = "u8" }), T.tensor(2, { dtype = "u8" }))
  same(y:sum():item(), 2 * N + 3 * #places, "where")
end
function M.pointwise()
  local x = wave()
  local y = x:bitwise_xor(x:narrow(1, N, 1))
  local last = at(N)
  look(y, function(i) return at(i) ~ last end, "xor")
  x:add_(1)
  look(x, function(i) return at(i) + 1 end, "add_")
end
function M.jitted()
  local f = T.jit(function(x) return (x * 2 + 1):clamp(0, 100) end)
  local x = T.zeros({ N }, { dtype = "f16" })
  x:narrow(1, N - 3, 4):copy_(T.tensor { 1, 2, 3, 400 })
  local y = f(x)
  x = nil
  list(y:narrow(1, N - 4, 5), 1.0, 3.0, 5.0, 7.0, 100.0)
  same(y:narrow(1, 1, N - 4):amax():item(), 1.0, "the others")
end
function M.expand_into() -- a copy whose source has strides 0
  local y = T.zeros({ N // 3, 3 }, { dtype = "u8" }):copy_(T.tensor({ { 1, 2, 3 } }, { dtype = "u8" }))
  list(y:select(1, N // 3), 1, 2, 3)
  same(y:sum():item(), N // 3 * 6, "sum")
end
function M.strided()
  local x = wave()
  local y = x:as_strided({ 4 }, { (1 << 29) + 11 }, 3)
  for k = 1, 4 do same(y:contiguous():get(k), at((k - 1) * ((1 << 29) + 11) + 4), "element " .. k) end
end

-- ---- indices -------------------------------------------------------------------------------------------------------

local function indices() return T.tensor(places, { dtype = "i64" }) end
local function wanted()
  local w = {}
  for k, i in ipairs(places) do w[k] = at(i) end
  return table.unpack(w)
end
function M.gathered()
  local x, i = wave(), indices()
  list(x:index_select(1, i), wanted())
  list(x:gather(1, i), wanted())
  list(x:take(i), wanted())
  list(x[{ i }], wanted())
  list(T.nn.F.embedding(i, x:view(N, 1):to("f16"):expand(N, 1)):to("i64"), wanted())
end
function M.scattered()
  local i, ones = indices(), T.ones({ #places }, { dtype = "u8" })
  for name, f in pairs {
    scatter_ = function(x) x:scatter_(1, i, ones) end,
    scatter_add_ = function(x) x:scatter_add_(1, i, ones) end,
    index_add_ = function(x) x:index_add_(1, i, ones) end,
    index_copy_ = function(x) x:index_copy_(1, i, ones) end,
    index_fill_ = function(x) x:index_fill_(1, i, 1) end,
    index_put_ = function(x) x:index_put_({ i }, ones) end,
    assignment = function(x) x[{ i }] = 1 end,
  } do
    local x = T.zeros(N, { dtype = "u8" })
    f(x)
    same(x:sum():item(), #places, name .. ", sum")
    list(x:index_select(1, i), table.unpack(ones:tolist()))
  end
end
function M.rows_of_a_table() -- an embedding of more than 2^31 elements
  local rows = N // 127
  local w = T.zeros({ rows, 127 }, { dtype = "f16" })
  w:select(1, rows):fill_(3)
  w:select(1, rows - 1):fill_(2)
  local y = F.embedding(T.tensor({ rows, 1, rows - 1 }, { dtype = "i64" }), w)
  list(y:select(2, 127), 3.0, 0.0, 2.0)
end

-- ---- products, convolutions, pools, norms, losses ------------------------------------------------------------------

function M.product_long()
  local n = N // 64
  local a = T.zeros({ n, 64 }, { dtype = "bf16" })
  a:select(1, n):fill_(1)
  local y = a:matmul(T.ones({ 64, 1 }, { dtype = "bf16" }))
  same(y:get(n, 1), 64.0, "the last")
  same(y:sum():item(), 64.0, "all")
end
function M.product_of_one()
  local y = T.ones({ 46349, 1 }, { dtype = "bf16" }):matmul(T.ones({ 1, 46349 }, { dtype = "bf16" }))
  same(y:amin():item(), 1.0, "the smallest")
  same(y:amax():item(), 1.0, "the largest")
end
function M.integer_product()
  local n = N // 8
  local a = T.zeros({ n, 8 }, { dtype = "i8" })
  a:select(1, n):fill_(2)
  local y = T.int_mm(a, T.ones({ 8, 1 }, { dtype = "i8" }))
  same(y:get(n, 1), 16, "the last")
  same(y:sum():item(), 16, "all")
end
-- Of f32 there is room for the input alone: steps are wide.
function M.convolution()
  local x = T.zeros { 1, 1, N }
  x:narrow(3, N - 4095, 3):fill_(1)
  local y = F.conv1d(x:narrow(3, 4, N - 3), T.ones { 1, 1, 16 }, nil, { stride = 4096 })
  same(y:get(1, 1, y:numel()), 3.0, "the last")
  same(y:sum():item(), 3.0, "all")
end
function M.convolution_of_a_batch()
  local n = N // 16
  local x = T.zeros { n, 2, 8 }
  x:select(1, n):fill_(1)
  local y = F.conv1d(x, T.ones { 1, 2, 8 })
  same(y:get(n, 1, 1), 16.0, "the last")
  same(y:sum():item(), 16.0, "all")
end
function M.pools()
  local x = T.zeros { 1, 1, N }
  x:narrow(3, N - 6, 7):fill_(1)
  local y, i = F.max_pool1d(x:narrow(3, 4, N - 3), 4096, { stride = 4096, return_indices = true })
  same(y:get(1, 1, y:numel()), 1.0, "max_pool1d")
  same(i:get(1, 1, y:numel()), N - 3 - 6, "its place")
  same(F.avg_pool1d(x:narrow(3, 4, N - 3), 4096, { stride = 4096 }):sum():item(), 7 / 4096, "avg_pool1d")
  same(F.adaptive_max_pool1d(x, 1):item(), 1.0, "adaptive_max_pool1d")
  same(math.abs(F.adaptive_avg_pool1d(x, 1):item() / (7 / N) - 1) < 1e-5, true, "adaptive_avg_pool1d")
end
function M.plane() -- an image of more than 2^31 points
  local h, w = 46344, 46352
  local x = T.zeros { 1, 1, h, w }
  x:narrow(3, h - 1, 2):narrow(4, w - 1, 2):fill_(2)
  local y, i = F.max_pool2d(x, 8, { return_indices = true })
  same(y:get(1, 1, h // 8, w // 8), 2.0, "max_pool2d")
  same(i:get(1, 1, h // 8, w // 8), (h - 2) * w + w - 1, "its place")
  same(y:sum():item(), 2.0, "all")
end
function M.norms()
  local n = N // 64
  local x = T.empty({ n, 64 }, { dtype = "bf16" }):copy_(T.tensor({ 1, -1 }):tile(32))
  x:select(1, n):fill_(2)
  local y = F.softmax(x, 2)
  same(y:get(n, 64), 1 / 64, "softmax, the last row")
  y = nil
  collectgarbage() collectgarbage()
  y = F.layer_norm(x, { 64 }, { eps = 0.25 })
  same(y:get(n - 1, 64), T.tensor(-1 / 1.25 ^ 0.5):to("bf16"):item(), "layer_norm, a row")
  same(y:get(n, 64), 0.0, "layer_norm, the last row")
end
function M.loss()
  local n = N // 64
  local x = T.zeros({ n, 64 }, { dtype = "bf16" })
  local y = F.cross_entropy(x, T.ones({ 1 }, { dtype = "i64" }):expand(n), { reduction = "sum" })
  same(math.abs(y:item() / (n * math.log(64)) - 1) < 0.01, true, "cross_entropy")
end
function M.random()
  local x = T.empty({ N }, { dtype = "u8" }):random_(0, 1)
  local s = x:sum():item()
  same(math.abs(s / N - 0.5) < 1e-3, true, "random_")
  same(math.abs(x:narrow(1, (1 << 31) + 1, N - (1 << 31)):sum():item() / (N - (1 << 31)) - 0.5) < 0.1, true, "its end")
  x = nil
  collectgarbage() collectgarbage()
  x = T.rand({ N }, { dtype = "bf16" })
  same(math.abs(x:mean():item() - 0.5) < 1e-2, true, "rand")
  same(x:narrow(1, (1 << 31) + 1, 4096):var():item() > 0.05, true, "rand, its end")
end
function M.gradients()
  local x = T.zeros({ N // 4, 4 }, { dtype = "bf16" }):requires_grad_()
  local y = x:narrow(1, N // 4 - 1, 2) * 3
  y:sum():backward()
  same(x.grad:get(N // 4, 4), 3.0, "the last")
  same(x.grad:get(N // 4 - 2, 4), 0.0, "the one before")
end

-- ---- files ---------------------------------------------------------------------------------------------------------

function M.files() -- Linux reads and writes less than 2^31 bytes a call
  local path = os.tmpname()
  for name, way in pairs {
    safetensors = { function(x) return T.save(path, { x = x }) end, function() return T.load(path).x end },
    npy = { function(x) return T.save_npy(path, x) end, function() return T.load_npy(path) end },
  } do
    local ok, message = pcall(function()
      local x = wave()
      assert(way[1](x))
      x = nil
      collectgarbage()
      local y = assert(way[2]())
      same(y:numel(), N, name .. ", size")
      look(y, at, name)
      same(y:sum():item(), total, name .. ", sum")
    end)
    os.remove(path)
    if not ok then error(message, 0) end
  end
end

return M
