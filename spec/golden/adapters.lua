-- SPDX-License-Identifier: MIT
-- How each golden operator (PyTorch's names, 0-based) is called in perilune. Without a row, operator `op` is
-- T.op or T.nn.F.op: tensors by position in the signature's order, everything else by name in one option
-- table, dimensions moved from 0-based to 1-based. A row may say:
--   name     our function, dotted ("linalg.inv")
--   index    index VALUES go in or come out: {index_base=0} is passed
--   pos      names passed by position (default: those that are tensors in any case)
--   rename   their names of options -> ours
--   dims     names of arguments that are dimensions (default: DIMS)
--   drop     option names that mean nothing here (value -> nil)
--   call     function(fn, a, T, case) -> results, a = converted arguments by name

local A = {}

-- Names of arguments that count dimensions from 0.
A.DIMS = {
  dim = true, dims = true, dim0 = true, dim1 = true, dim2 = true, start_dim = true, end_dim = true,
  dimension = true, source = true, destination = true,
}

-- 0-based position or dimension -> 1-based; negatives count from the end in both.
local function up(v)
  if math.type(v) == "integer" and v >= 0 then return v + 1 end
  return v
end
A.up = up

-- An options table of the named arguments, nil if none was given.
local function options(a, ...)
  local o
  for _, k in ipairs { ... } do
    if a[k] ~= nil then
      o = o or {}
      o[k] = a[k]
    end
  end
  return o
end

-- Calls with trailing options only if there are any.
local function with(fn, o, ...)
  if o == nil then return fn(...) end
  local args = table.pack(...)
  args[args.n + 1] = o
  return fn(table.unpack(args, 1, args.n + 1))
end

local R = {}
A.rows = R

local function index(...)
  for _, op in ipairs { ... } do
    R[op] = R[op] or {}
    R[op].index = true
  end
end

-- ---- arithmetic with options ----------------------------------------------------------------------

-- PyTorch's old spelling of correction.
local function moments(fn, a)
  if a.unbiased ~= nil then a.correction = a.unbiased and 1 or 0 end
  return with(fn, options(a, "dim", "correction", "keepdim"), a.input)
end
for _, op in ipairs { "std", "var", "std_mean", "var_mean" } do R[op] = { call = moments } end
R.cov = {
  call = function(fn, a) return with(fn, options(a, "correction", "fweights", "aweights"), a.input) end,
}

R.div = {
  call = function(fn, a, T)
    if a.rounding_mode == "floor" then return T.floor_divide(a.input, a.other) end
    if a.rounding_mode == "trunc" then return T.trunc_divide(a.input, a.other) end
    if a.rounding_mode then return with(fn, options(a, "rounding_mode"), a.input, a.other) end
    return fn(a.input, a.other)
  end,
}
R.clamp = {
  call = function(fn, a) return fn(a.input, a.min, a.max) end,
}

-- ---- shapes -------------------------------------------------------------------------------------

R["repeat"] = { name = "tile", rename = { repeats = "dims" }, dims = {} }
R.tile = { dims = {} }
R.broadcast_to = { rename = { size = "shape" } }
R.expand = { rename = { size = "sizes" } }
R.view = { rename = { size = "shape" } }
R.unfold = { rename = { dimension = "dim" } }
R.stack = { newdim = true }
R.narrow = {
  call = function(fn, a)
    local start = type(a.start) == "userdata" and a.start:item() or a.start
    return fn(a.input, a.dim, up(start), a.length)
  end,
}
R.select = {
  call = function(fn, a) return fn(a.input, a.dim, up(a.index)) end,
}
R.split = {
  call = function(fn, a)
    local size = a.split_size_or_sections or a.split_size or a.split_sizes
    return with(fn, options(a, "dim"), a.input or a.tensor, size)
  end,
}
R.split_with_sizes = { name = "split", call = R.split.call }
for _, op in ipairs { "tensor_split", "hsplit", "vsplit", "dsplit" } do
  R[op] = {
    call = function(fn, a)
      local at = a.sections or a.indices or a.indices_or_sections or a.tensor_indices_or_sections
      if type(at) == "userdata" then at = at:dim() == 0 and at:item() or at:totable() end
      if type(at) == "table" then -- the first of each part, where ours is counted from 1
        local from = {}
        for i, v in ipairs(at) do from[i] = up(v) end
        at = from
      end
      return with(fn, options(a, "dim"), a.input, at)
    end,
  }
end
R.select_scatter = {
  call = function(fn, a) return fn(a.input, a.src, a.dim, up(a.index)) end,
}
R.slice_scatter = {
  call = function(fn, a)
    local n = a.input:size(a.dim or 1)
    local function at(v) return math.min(math.max(v < 0 and v + n or v, 0), n) end
    return fn(a.input, a.src,
      { dim = a.dim, first = at(a.start or 0) + 1, last = at(a["end"] or n), step = a.step or 1 })
  end,
}
R.slice = {
  call = function(_, a)
    local n, step = a.input:size(a.dim or 1), a.step or 1
    local function at(v) return math.min(math.max(v < 0 and v + n or v, 0), n) end
    local first, last = at(a.start or 0), at(a["end"] or n)
    local key = {}
    for d = 1, a.input:dim() do key[d] = d == (a.dim or 1) and { first + 1, last, step } or {} end
    return a.input[key]
  end,
}
R.sum_to_size = {
  call = function(fn, a) return fn(a.input, a.size or {}) end,
}
R.where = {
  call = function(fn, a) return fn(a.condition, a.input, a.other) end,
}
for _, op in ipairs { "new_full", "new_ones", "new_zeros" } do
  R[op] = {
    call = function(_, a)
      if op == "new_full" then return with(a.input[op], options(a, "dtype"), a.input, a.size, a.fill_value) end
      return with(a.input[op], options(a, "dtype"), a.input, a.size)
    end,
  }
end
R.full_like = {
  call = function(fn, a) return with(fn, options(a, "dtype"), a.input, a.fill_value) end,
}
for _, op in ipairs { "ones", "zeros" } do
  R[op] = { call = function(fn, a) return with(fn, options(a, "dtype"), a.size) end }
end
R.constant_pad_nd = {
  name = "pad", call = function(fn, a) return with(fn, options(a, "value"), a.input, a.pad) end,
}
R.as_strided = { rename = { storage_offset = "offset" } }
R.tensordot = {
  dims = {},
  call = function(fn, a)
    local dims = a.dims
    if type(dims) == "table" then
      dims = { {}, {} }
      for k, list in ipairs(a.dims) do
        for i, d in ipairs(list) do dims[k][i] = up(d) end
      end
    end
    return fn(a.a or a.input, a.b, dims)
  end,
}
R.chunk = {
  call = function(fn, a) return with(fn, options(a, "dim"), a.input, a.chunks) end,
}
R.rot90 = {
  call = function(fn, a) return fn(a.input, a.k, a.dims) end,
}
R.diff = {
  call = function(fn, a) return fn(a.input, options(a, "n", "dim", "prepend", "append")) end,
}
R.repeat_interleave = { -- of counts alone: positions
  call = function(fn, a, T)
    if a.input == nil then return fn(T.arange(a.repeats:numel()) - 1, a.repeats) end
    return with(fn, options(a, "dim"), a.input, a.repeats)
  end,
}
R.einsum = {
  call = function(fn, a) return fn(a.equation, table.unpack(a.operands or a.tensors)) end,
}
R.meshgrid = {
  call = function(fn, a) return with(fn, options(a, "indexing"), a.tensors) end,
}
R.pixel_shuffle = { pos = { "input", "upscale_factor" } }
R.pixel_unshuffle = { pos = { "input", "downscale_factor" } }

-- ---- values and indices -------------------------------------------------------------------------

index("argmax", "argmin", "argsort", "sort", "topk", "kthvalue", "median", "mode", "cummax", "cummin", "max",
  "min", "gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy",
  "index_fill", "index_put", "take", "take_along_dim", "nonzero", "searchsorted", "bucketize", "one_hot",
  "embedding", "cross_entropy", "linear_cross_entropy",
  "nll_loss", "multi_margin_loss", "multilabel_margin_loss", "bincount",
  "nanmedian", "unique_consecutive", "argwhere", "unravel_index", "max_unpool1d", "max_unpool2d", "max_unpool3d",
  "embedding_bag", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
  "adaptive_max_pool3d", "unique", "tril_indices", "triu_indices", "ctc_loss")

-- Of two tensors they are maximum and minimum.
for _, name in ipairs { "max", "min" } do
  R[name].call = function(fn, a)
    if a.other then return fn(a.input, a.other) end
    if a.dim == nil then return fn(a.input) end
    return fn(a.input, { dim = a.dim, keepdim = a.keepdim, index_base = 0 })
  end
end

R.nonzero.call = function(fn, a)
  if not a.as_tuple then return fn(a.input, { index_base = 0 }) end
  local x = a.input:dim() == 0 and a.input:reshape(1) or a.input -- theirs gives one list for 0-d
  return fn(x, { index_base = 0 }):unbind(2)
end
R.index_put.call = function(fn, a)
  local list = { a.input, a.values }
  for _, i in ipairs(a.indices) do list[#list + 1] = i end
  local o = options(a, "accumulate") or {}
  o.index_base = 0
  return fn(list, o)
end
R.scatter.call = function(fn, a, T)
  local o = { dim = a.dim, index_base = 0 }
  if a.reduce == "add" then
    local src = a.src
    if type(src) == "number" then src = T.full(a.index:shape(), src, { dtype = a.input:dtype() }) end
    return T.scatter_add(a.input, a.index, src, o)
  end
  return fn(a.input, a.index, a.src == nil and a.value or a.src, o)
end
R.searchsorted.call = function(fn, a)
  local o = options(a, "out_int32", "right", "sorter") or {}
  if a.side then
    if a.side == "left" and a.right then error("searchsorted: side and right disagree") end
    o.right = a.side == "right"
  end
  o.index_base = 0
  return fn(a.sorted_sequence, a.input, o)
end

R.embedding.name = "nn.F.embedding"
R.embedding.pos = { "input", "weight" }
R.embedding_bag.pos = { "input", "weight", "offsets" }
R.put = {
  call = function(fn, a) -- no position counts from the end
    local at = a.input:numel() > 0 and a.index:remainder(a.input:numel()) or a.index
    return fn(a.input, at, a.source, { accumulate = a.accumulate, index_base = 0 })
  end,
}
R.index_reduce = {
  call = function(fn, a)
    local o = { include_self = a.include_self, index_base = 0 }
    return fn(a.input, a.dim, a.index, a.source, a.reduce, o)
  end,
}

-- ---- networks -------------------------------------------------------------------------------------

R.norm = {
  call = function(fn, a)
    if a.p == "fro" then a.p = 2 end
    return with(fn, options(a, "p", "dim", "keepdim", "dtype"), a.input)
  end,
}
R.layer_norm = {
  call = function(fn, a) return fn(a.input, a.normalized_shape, a.weight, a.bias, a.eps) end,
}
R.rms_norm = {
  call = function(fn, a) return fn(a.input, a.normalized_shape, a.weight, a.eps) end,
}
R.group_norm = {
  call = function(fn, a) return fn(a.input, a.num_groups, a.weight, a.bias, a.eps) end,
}
R.batch_norm = {
  -- theirs returns the statistics after the update, ours updates them in place
  call = function(fn, a, _, case)
    local mean, var = a.running_mean, a.running_var
    local y = fn(a.input, mean, var, a.weight, a.bias, a.training, a.momentum, a.eps)
    if a.training and mean and case.outputs and #case.outputs == 3 then return y, mean, var end
    return y
  end,
}
R.instance_norm = {
  -- theirs returns the statistics after the update, ours updates them in place
  call = function(fn, a, _, case)
    local x = a.input
    a.input = nil
    local y = fn(x, a)
    if a.use_input_stats and a.running_mean and #case.outputs == 3 then return y, a.running_mean, a.running_var end
    return y
  end,
}
R.cross_entropy.call = function(fn, a)
  local o = options(a, "weight", "ignore_index", "reduction", "label_smoothing") or {}
  if not a.target:is_floating_point() then o.index_base = 0 end
  return fn(a.input, a.target, o)
end

R.ctc_loss = { name = "nn.F.ctc_loss", index = true }
R["nn.fold"] = { name = "nn.F.fold" }
R["nn.unfold"] = { name = "nn.F.unfold" }

-- ---- recurrent ----------------------------------------------------------------------------------

local stack = { "num_layers", "bias", "batch_first", "bidirectional", "nonlinearity" }
for _, name in ipairs { "rnn", "gru", "lstm" } do
  R[name] = {
    name = "nn.F." .. name,
    call = function(fn, a)
      local state = a.hx
      if name == "lstm" and a.hx then state = { a.hx, a.cx } end
      return fn(a.input, state, a.weights, options(a, table.unpack(stack)))
    end,
  }
end
R.lstm_cell = {
  name = "nn.F.lstm_cell",
  call = function(fn, a) return fn(a.input, a.hx and { a.hx, a.cx }, a.w_ih, a.w_hh, a.b_ih, a.b_hh) end,
}
for _, name in ipairs { "rnn_tanh_cell", "rnn_relu_cell", "gru_cell" } do
  R[name] = {
    name = "nn.F." .. name,
    call = function(fn, a) return fn(a.input, a.hx, a.w_ih, a.w_hh, a.b_ih, a.b_hh) end,
  }
end

R["linalg.pinv"] = {
  call = function(fn, a, T)
    local rtol = a.rtol
    if type(rtol) == "number" then rtol = T.tensor(rtol, { dtype = "f64" }) end
    if rtol then
      local batch = a.A:shape()
      batch[#batch], batch[#batch - 1] = nil, nil
      rtol = rtol:to("f64"):expand(batch)
    end
    return fn(a.A, rtol)
  end,
}
local pinv = R["linalg.pinv"].call
R["linalg.pinv"].call = function(fn, a, T)
  a.A = a.A or a.input
  return pinv(fn, a, T)
end
R["linalg.lstsq"] = {
  call = function(fn, a) return (with(fn, options(a, "rcond"), a.input, a.b)) end,
}
R["linalg.lu_solve"] = {
  call = function(fn, a) return with(fn, options(a, "adjoint", "left"), a.LU, a.pivots, a.B) end,
}
R.lu_solve = {
  name = "linalg.lu_solve", call = function(fn, a) return fn(a.LU_data, a.LU_pivots, a.input) end,
}
R["linalg.multi_dot"] = { pos = { "tensors" } }
R["linalg.matrix_power"] = {
  call = function(fn, a) return fn(a.A or a.input, a.n) end,
}

-- ---- creation -----------------------------------------------------------------------------------

R.arange = {
  -- theirs ends before `end`, ours includes it: stop half a step after the last value
  call = function(fn, a, T)
    local from, step = a.start or 0, a.step or 1
    local to = a["end"]
    local o = options(a, "dtype")
    local n = math.ceil((to - from) / step)
    if n ~= n or n < 0 or step == 0 then return with(fn, o, from, to, step) end -- theirs refuses
    if n == 0 then return with(fn, o, from, from - step, step) end
    local whole = math.type(from) == "integer" and math.type(step) == "integer" and math.type(to) == "integer"
    if not whole and not o then o = { dtype = "f32" } end
    local last = from + (n - (whole and 1 or 0.5)) * step
    return with(fn, o, from, last, step)
  end,
}
R.eye = {
  call = function(fn, a) return with(fn, options(a, "dtype"), a.n, a.m or a.n) end,
}
R.full = {
  call = function(fn, a) return with(fn, options(a, "dtype"), a.size, a.fill_value) end,
}
for _, op in ipairs { "linspace", "logspace" } do
  R[op] = {
    call = function(fn, a)
      local function number(v) return type(v) == "userdata" and v:item() or v end
      return with(fn, options(a, "dtype", "base"), number(a.start), number(a["end"]), a.steps)
    end,
  }
end
R.to = {
  call = function(_, a) return a.input:to(a.dtype) end,
}

return A
