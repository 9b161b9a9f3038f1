-- SPDX-License-Identifier: MIT
--- Cross entropy of a linear layer's outputs, which never stand whole: one op that takes rows in chunks. For any other
-- head of a network each chunk is a checkpoint, so that backward computes its outputs again.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

-- Outputs of a chunk: 8 MB of f32, which stay in caches; on a GPU, which smaller ones would not fill, 256 MB.
local FEW, FEW_ON_GPU = 1 << 21, 1 << 26
-- The gradient for a weight is added up from a term for each chunk, as large as the weight: these should be few.
local ROWS_OF_TRAINED = 512

-- Rows of a chunk: on a GPU whole tiles of a product.
local function rows_of(classes, trained, on_gpu)
  local n = math.max((on_gpu and FEW_ON_GPU or FEW) // math.max(classes, 1), 64)
  if trained then n = math.max(n, ROWS_OF_TRAINED) end
  return on_gpu and n // 64 * 64 or n
end

-- A weight of halves that several chunks read gets a gradient from each, which would be added up in halves, rounded
-- each time. So what they read is told to come from a number of f32, expanded to the weight's shape, which needs no
-- memory and has the weight's gradient: terms add up there, in f32, and the sum is rounded once.
local carrier = T.custom { name = "carrier", forward = function(ctx, w)
  ctx.dtype = w:dtype()
  return T.zeros({}, { device = w:device() }):expand(w:shape())
end, backward = function(ctx, g)
  return g:to(ctx.dtype)
end, jvp = function(_, v) return v:float() end }
local carried = T.custom { name = "carried", forward = function(ctx, c, w)
  ctx.dtype = w:dtype()
  return w:view(w:shape())
end, backward = function(_, g)
  return g:float(), nil
end, jvp = function(ctx, v) return v:to(ctx.dtype) end }

-- Has the weight a gradient that several chunks would add up in halves?
local function rounds(w, many)
  local d = w and w:dtype()
  return w and many and w.requires_grad and (d == "f16" or d == "bf16") and not T.core.autocast_dtype()
end

-- → a function that gives the weight to a chunk; many: of several. A graph whose gradient is taken outside of it has
-- no rules of T.custom: there it is an f32 copy, and each chunk has what that is in halves.
local function shared(w, many)
  if not rounds(w, many) then return function() return w end end
  if T.core.jit_tracing() then
    local wide, d = w:float(), w:dtype()
    return function() return wide:to(d) end
  end
  local c, values = carrier(w), w:detach()
  return function() return carried(c, values) end
end

local M = { rows_of = rows_of }

--- The weight and bias of a head that is x wᵀ + b and nothing else; nil: it is not.
function M.plain(head)
  local plain = getmetatable(head).__class == T.nn.Linear and not rawget(head, "_lora") and not rawget(head, "_hooks")
  if plain and head._parameters.weight then return head.weight, head.bias end
end

--- A module as a function of the rows of a chunk; its weights' gradients are added up as `shared` says. many: of
-- several chunks.
function M.head(module, many)
  local given = {}
  for name, p in module:named_parameters() do
    if rounds(p, many) then given[name] = shared(p, many) end
  end
  if next(given) == nil then return module end
  return function(rows)
    local now = {}
    for name, get in pairs(given) do now[name] = get() end
    return T.nn.utils.functional_call(module, now, rows)
  end
end

-- The sum, over the rows of x [N, K] that count, of the losses of head(rows) → [n, C].
-- o: of cross_entropy, and chunk. → losses: one number, or with reduction "none" [N]; and the dtype that these should
-- have in the end, if they are f32 though head's results are halves: a sum of halves would be rounded at each chunk,
-- and of f16 be infinite from 65520 on.
function M.chunked(head, x, target, o, chunk)
  local none = o.reduction == "none"
  local each = { reduction = none and "none" or "sum", ignore_index = o.ignore_index, index_base = o.index_base,
    label_smoothing = o.label_smoothing }
  local narrow
  local function loss(rows, classes)
    local y, weight = head(rows), o.weight
    local dtype = y:dtype()
    if (dtype == "f16" or dtype == "bf16") and not T.core.autocast_dtype() then
      narrow, y, weight = dtype, y:to "f32", weight and weight:to "f32"
    end
    return T.cross_entropy(y, classes, weight, each)
  end
  if x:size(1) <= chunk then
    local all = loss(x, target)
    return all, narrow
  end
  local xs, ts, out = x:split(chunk, 1), target:split(chunk, 1), {}
  for i, rows in ipairs(xs) do
    out[i] = T.checkpoint(loss, rows, ts[i])
    if i > 1 and not none then out[1] = out[1] + out[i] end
  end
  return none and T.cat(out, 1) or out[1], narrow
end

-- What the mean divides by: rows that count, each by its class's weight, which is a constant, as in cross_entropy.
local function amount(target, o, dtype)
  local counts = target:ne(o.ignore_index or -100)
  if not o.weight then return counts:to(dtype):sum() end
  local base = o.index_base or 1
  local class = target:masked_fill(counts:logical_not(), base)
  return T.index_select(o.weight:detach():to(dtype), class, { dim = 1, index_base = base }):mul(counts:to(dtype)):sum()
end

--- The same as a mean, a sum, or of each row, as o.reduction says. rows: how many are a chunk (nil: as many as fit);
-- trained: whether head has weights that are.
function M.loss(head, x, target, o, rows, classes, trained)
  local sum, narrow = M.chunked(head, x, target, o, rows or rows_of(classes, trained, x:is_cuda()))
  if o.reduction ~= "none" and o.reduction ~= "sum" then sum = sum / amount(target, o, sum:dtype()) end
  return narrow and sum:to(narrow) or sum
end

--- The same where the head is linear, in one op. Under autocast x has the region's dtype, and so do w and b in the
-- products; their gradients are f32. wide: the loss of halves stays f32.
function M.linear(x, w, b, target, o, rows, wide)
  local low, dtype = T.core.autocast_dtype(), x:dtype()
  local function lowered(t, all)
    local d = t and t:dtype()
    local other = (d == "f32" and all) or (d == "f16" or d == "bf16") and d ~= low
    return low and other and t:to(low) or t
  end
  x, w, b = lowered(x, true), lowered(w), lowered(b)
  local none, halves = o.reduction == "none", not low and not wide and (dtype == "f16" or dtype == "bf16")
  rows = rows or rows_of(w:size(1), w.requires_grad or b ~= nil and b.requires_grad, x:is_cuda())
  local settings = { reduction = none and "none" or "sum", ignore_index = o.ignore_index, index_base = o.index_base,
    label_smoothing = o.label_smoothing, chunk = rows }
  local loss = options.renamed("linear_cross_entropy",
    pcall(T.cross_entropy_linear, x, w, target, b, o.weight, settings))
  if not none and o.reduction ~= "sum" then loss = loss / amount(target, o, loss:dtype()) end
  return halves and loss:to(dtype) or loss
end

function M.install(F)
  --- nn.F.linear_cross_entropy(x, linear_weight, target, {linear_bias=, weight=, reduction="mean", ignore_index=-100,
  --   label_smoothing=0, index_base=1, chunk=}) → tensor
  -- cross_entropy(linear(x, linear_weight, linear_bias), target), without ever having all outputs: chunk rows at a time
  -- (as many as give 8 MB, on a GPU 256 MB, or at least 512 where linear_weight is trained) are computed in forward,
  -- and again in backward; in a jitted step with its backward once. The memory is that of one chunk's outputs in place
  -- of [N, C]; gradients are those of the composition, of any order.
  -- Shapes: x [*, K], linear_weight [C, K], target [*] (class numbers), linear_bias [C], weight [C] → [] or [*]
  --   local x, w = T.tensor { { 1, 0 }, { 0, 1 } }, T.tensor { { 2, 0 }, { 0, 2 } }
  --   print(nn.F.linear_cross_entropy(x, w, T.arange(2)))  --> 0.1269  -- f32[] cpu
  function F.linear_cross_entropy(x, linear_weight, target, opts)
    local who = "linear_cross_entropy"
    local o = options.check(who, opts, { "linear_bias", "weight", "reduction", "ignore_index", "label_smoothing",
      "index_base", "chunk" })
    local w, b = linear_weight, o.linear_bias
    for _, t in ipairs { { "x", x }, { "linear_weight", w }, { "target", target } } do
      if not T.is_tensor(t[2]) then fail("%s: %s must be a tensor, got %s", who, t[1], describe(t[2])) end
    end
    if w:dim() ~= 2 or x:dim() < 1 or x:size(-1) ~= w:size(2) then
      fail("%s: x [*, K] with linear_weight [C, K] are wanted, got %s, %s", who, describe(x), describe(w))
    end
    local shape = x:shape()
    shape[#shape] = nil
    local fits = target:dim() == #shape and not target:is_floating_point() and target:dtype() ~= "bool"
    for d, n in ipairs(shape) do fits = fits and target:size(d) == n end
    if not fits then
      fail("%s: target must be class numbers [%s], as the rows of x, got %s", who, table.concat(shape, ", "),
        describe(target))
    end
    if o.chunk ~= nil then options.kind(who, "chunk", "count", o.chunk) end
    local loss = M.linear(x:reshape(-1, w:size(2)), w, b, target:reshape(-1), o, o.chunk)
    return o.reduction == "none" and loss:reshape(shape) or loss
  end
end

return M
