-- SPDX-License-Identifier: MIT
--- Export of products, convolutions, pooling, norms, attention and recurrent layers.
-- @module perilune.onnx.export.network
local T = require "perilune"

return function(Export)
  local ops, is_free = Export.ops, Export.is_free

  -- ---- products

  local function flipped(e, x) -- the last two dimensions in each other's place
    local perm = {}
    for d = 1, #x.shape do perm[d] = d - 1 end
    local n = #x.shape
    perm[n], perm[n - 1] = n - 2, n - 1
    return e:emit("Transpose", { x.name }, { perm = perm })
  end
  for _, name in ipairs { "matmul", "mm", "bmm", "mv", "dot" } do
    ops[name] = function(e, _, x, y) return e:emit("MatMul", { x.name, y.name }) end
  end
  function ops.matmul_t(e, node, x, y)
    return e:emit("MatMul", { node.attrs.ta and flipped(e, x) or x.name, node.attrs.tb and flipped(e, y) or y.name })
  end
  function ops.outer(e, _, x, y)
    return e:emit("Mul", { e:emit("Unsqueeze", { x.name, e:integers { 1 } }), y.name })
  end
  function ops.linear(e, _, x, w, b)
    if #w.shape == 1 then
      local y = e:emit("MatMul", { x.name, w.name })
      return b and e:emit("Add", { y, b.name }) or y
    end
    if #x.shape == 2 then return e:emit("Gemm", { x.name, w.name, b and b.name }, { transB = 1 }) end
    local y = e:emit("MatMul", { x.name, flipped(e, w) })
    return b and e:emit("Add", { y, b.name }) or y
  end
  local function added(e, node, input, product, d)
    local a, b = node.attrs.alpha or 1, node.attrs.beta or 1
    if a ~= 1 then product = e:emit("Mul", { product, e:number(a, d) }) end
    if b == 0 then return product end
    return e:emit("Add", { b == 1 and input.name or e:emit("Mul", { input.name, e:number(b, d) }), product })
  end
  for _, name in ipairs { "addmm", "addmv", "baddbmm" } do
    ops[name] = function(e, node, input, x, y)
      return added(e, node, input, e:emit("MatMul", { x.name, y.name }), node.dtypes[1])
    end
  end
  function ops.addr(e, node, input, x, y) return added(e, node, input, ops.outer(e, node, x, y), node.dtypes[1]) end

  -- ---- windows

  local function many(list, n)
    local out = {}
    if type(list) ~= "table" then list = { list } end
    for d = 1, n do out[d] = list[d] or list[1] end
    return out
  end
  -- Strides of pooling; none, or an empty list, are those of the kernel.
  local function strides_of(a)
    local list = a.stride
    if list == nil or type(list) == "table" and #list == 0 then return a.kernel_size end
    return list
  end
  local function both(list) -- padding in front, padding behind
    local out, n = {}, #list
    for d = 1, n do out[d], out[d + n] = list[d], list[d] end
    return out
  end
  -- Without a batch: one of one.
  local function batched(e, x, nd, f)
    if #x.shape == nd + 2 then return f(x.name) end
    return e:emit("Squeeze", { f(e:emit("Unsqueeze", { x.name, e:integers { 0 } })), e:integers { 0 } })
  end

  -- Paddings and ceil_mode of pooling. A last window that would begin behind the input and the padding in front is none
  -- of ours, while ONNX's shape inference counts it: there the padding behind says where the windows end.
  -- counted: the padding is part of means, so that more of it would be another mean.
  local function ends(e, node, x, nd, counted)
    local a = node.attrs
    local padding, kernel = many(a.padding, nd), many(a.kernel_size, nd)
    local pads = both(padding)
    if not a.ceil_mode then return pads, 0 end
    local stride, dilation, base = many(strides_of(a), nd), many(a.dilation or 1, nd), #x.shape - nd
    local dropped, longer = false, false
    for d = 1, nd do
      local reach = (kernel[d] - 1) * dilation[d] + 1
      if padding[d] > 0 or stride[d] > reach then e:fixed(node, x.shape[base + d], "size") end
      local n, m = x.shape[base + d], node.shapes[1][base + d]
      if not is_free(n) and not is_free(m) then
        local space = n + 2 * padding[d] - reach
        dropped = dropped or -(-space // stride[d]) + 1 ~= m
        local extra = math.max(0, (m - 1) * stride[d] - space)
        longer = longer or extra > 0
        pads[d + nd] = pads[d + nd] + extra
      end
    end
    if not dropped then return both(padding), 1 end
    if longer and counted then e:fail(node, "ceil_mode whose windows end in the padding is not supported") end
    for d = 1, nd do e:fixed(node, x.shape[base + d], "size") end
    return pads, 0
  end

  -- Maxima and, where they are wanted, their places: ours count in one plane, theirs in the whole tensor.
  local function with_places(e, node, x, nd, attributes)
    if not (e.wanted[node.outputs[2]] and node.attrs.return_indices) then
      return batched(e, x, nd, function(name) return e:emit("MaxPool", { name }, attributes) end)
    end
    local alone, plane = #x.shape == nd + 1, 1
    for d = #x.shape - nd + 1, #x.shape do
      e:fixed(node, { x.shape[d] }, "size")
      plane = plane * x.shape[d]
    end
    local name = alone and e:emit("Unsqueeze", { x.name, e:integers { 0 } }) or x.name
    local y, at = e:emit("MaxPool", { name }, attributes, 2)
    at = e:emit("Mod", { at, e:number(plane, "i64") })
    if alone then y, at = e:emit("Squeeze", { y, e:integers { 0 } }), e:emit("Squeeze", { at, e:integers { 0 } }) end
    local base = node.attrs.index_base or 1
    return y, base == 0 and at or e:emit("Add", { at, e:number(base, "i64") })
  end

  for nd = 1, 3 do
    ops[("conv%dd"):format(nd)] = function(e, node, x, w, b)
      local a = node.attrs
      return batched(e, x, nd, function(name)
        return e:emit("Conv", { name, w.name, b and b.name }, { strides = many(a.stride, nd),
          pads = both(many(a.padding, nd)), dilations = many(a.dilation, nd), group = a.groups or 1,
          kernel_shape = { table.unpack(w.shape, 3) } })
      end)
    end
    ops[("conv_transpose%dd"):format(nd)] = function(e, node, x, w, b)
      local a = node.attrs
      local strides, pads, more = many(a.stride, nd), both(many(a.padding, nd)), many(a.output_padding, nd)
      -- A stride or more behind: onnxruntime refuses it. Less padding behind is the same, and where there is none left,
      -- zeros that get the bias, too.
      local zeros
      for d = 1, nd do
        if more[d] >= strides[d] then
          local less = math.min(more[d], pads[d + nd])
          pads[d + nd], more[d] = pads[d + nd] - less, more[d] - less
          if more[d] > 0 then
            zeros = zeros or many(0, 2 * nd + 4)
            zeros[nd + 4 + d], more[d] = more[d], 0
          end
        end
      end
      return batched(e, x, nd, function(name)
        local y = e:emit("ConvTranspose", { name, w.name, not zeros and b and b.name }, { strides = strides,
          pads = pads, dilations = many(a.dilation, nd), group = a.groups or 1, output_padding = more,
          kernel_shape = { table.unpack(w.shape, 3) } })
        if not zeros then return y end
        y = e:emit("Pad", { y, e:integers(zeros) })
        local per = { b and b.shape[1] }
        for d = 1, nd do per[d + 1] = 1 end
        return b and e:emit("Add", { y, e:reshape(b.name, per) }) or y
      end)
    end
    ops[("max_pool%dd"):format(nd)] = function(e, node, x)
      local a = node.attrs
      local pads, up = ends(e, node, x, nd, false)
      return with_places(e, node, x, nd, { kernel_shape = many(a.kernel_size, nd),
        strides = many(strides_of(a), nd), pads = pads, dilations = many(a.dilation, nd), ceil_mode = up })
    end
    ops[("avg_pool%dd"):format(nd)] = function(e, node, x)
      local a = node.attrs
      for _, n in ipairs(many(a.dilation or 1, nd)) do if n ~= 1 then e:fail(node, "dilation is not supported") end end
      local kernel, count = many(a.kernel_size, nd), 1
      for _, n in ipairs(kernel) do count = count * n end
      local divisor = a.divisor_override
      local fixed = divisor and divisor ~= 0
      if fixed and a.ceil_mode then e:fail(node, "divisor_override with ceil_mode is not supported") end
      local counted = a.count_include_pad ~= false or fixed
      local pads, up = ends(e, node, x, nd, counted)
      local y = batched(e, x, nd, function(name)
        return e:emit("AveragePool", { name }, { kernel_shape = kernel, strides = many(strides_of(a), nd),
          pads = pads, ceil_mode = up, count_include_pad = counted and 1 or 0 })
      end)
      return fixed and e:emit("Mul", { y, e:number(count / divisor, node.dtypes[1]) }) or y
    end
    -- Parts that are not equal: one dim after the other, each part by itself.
    local function in_parts(e, x, dims, reduce)
      local name = x.name
      for _, d in ipairs(dims) do
        local parts, axis = {}, e:integers { d.axis }
        for i = 0, d.m - 1 do
          local from, to = i * d.n // d.m, -((-(i + 1) * d.n) // d.m)
          local part = e:emit("Slice", { name, e:integers { from }, e:integers { to }, axis })
          parts[i + 1] = e:emit(reduce, { part, axis }, { keepdims = 1 })
        end
        name = #parts == 1 and parts[1] or e:emit("Concat", parts, { axis = d.axis })
      end
      return name
    end
    local function adaptive(whole, op, reduce)
      return function(e, node, x)
        local out, kernel, ones, equal, dims = many(node.attrs.output_size, nd), {}, true, true, {}
        local base = #x.shape - nd
        for d = 1, nd do
          local n, m = x.shape[base + d], node.shapes[1][base + d]
          ones = ones and out[d] == 1
          if not ones then e:fixed(node, { n, m }, "size") end
          if not is_free(n) and not is_free(m) then
            if m == 0 then e:fail(node, "a result without elements is not supported") end
            kernel[d], dims[d] = n // m, { axis = base + d - 1, n = n, m = m }
            equal = equal and n % m == 0
          end
        end
        if op == "MaxPool" and e.wanted[node.outputs[2]] and node.attrs.return_indices then
          for d = 1, nd do
            kernel[d] = kernel[d] or e:fixed(node, { x.shape[base + d] }, "size")[1]
          end
          if not equal then e:fail(node, "places of maxima of parts that are not equal are not supported") end
          return with_places(e, node, x, nd, { kernel_shape = kernel, strides = kernel })
        end
        if not ones and not equal then return in_parts(e, x, dims, reduce) end
        return batched(e, x, nd, function(name)
          if ones then return e:emit(whole, { name }) end
          return e:emit(op, { name }, { kernel_shape = kernel, strides = kernel })
        end)
      end
    end
    ops[("adaptive_avg_pool%dd"):format(nd)] = adaptive("GlobalAveragePool", "AveragePool", "ReduceMean")
    ops[("adaptive_max_pool%dd"):format(nd)] = adaptive("GlobalMaxPool", "MaxPool", "ReduceMax")
  end

  -- Volumes are in ONNX since opset 20, which has other names for two modes.
  function ops.grid_sample(e, node, x, grid)
    local a, mode = node.attrs, node.attrs.mode
    if #x.shape == 5 then
      e.opset, mode = math.max(e.opset, 20), mode == "bilinear" and "linear" or mode
    end
    return e:emit("GridSample", { x.name, grid.name }, { mode = mode, padding_mode = a.padding_mode,
      align_corners = a.align_corners and 1 or 0 })
  end

  -- ---- norms

  local function ones(e, shape, v, d)
    for _, n in ipairs(shape) do
      if is_free(n) then
        return e:emit("ConstantOfShape", { e:integers(shape) }, { value = T.full({ 1 }, v, { dtype = d }) })
      end
    end
    return e:constant(T.full(shape, v, { dtype = d }))
  end
  function ops.batch_norm(e, node, x, mean, var, w, b)
    if node.attrs.training then
      e:fail(node, "it computes its statistics; call eval() on the module before it is exported")
    end
    local ch, d = { mean.shape[1] }, node.dtypes[1]
    return e:emit("BatchNormalization", { x.name, w and w.name or ones(e, ch, 1, d), b and b.name or ones(e, ch, 0, d),
      mean.name, var.name }, { epsilon = node.attrs.eps })
  end
  function ops.layer_norm(e, node, x, w, b)
    local shape, d = node.attrs.normalized_shape, node.dtypes[1]
    return e:emit("LayerNormalization", { x.name, w and w.name or ones(e, shape, 1, d), b and b.name },
      { axis = #x.shape - #shape, epsilon = node.attrs.eps })
  end
  local epsilon = { f64 = 2.220446049250313e-16, f32 = 1.1920928955078125e-07, f16 = 1.1920928955078125e-07,
    bf16 = 1.1920928955078125e-07 }
  function ops.rms_norm(e, node, x, w)
    local axes, d, n = {}, node.dtypes[1], #x.shape
    for k = 1, #node.attrs.normalized_shape do axes[k] = n - #node.attrs.normalized_shape + k - 1 end
    local square = e:emit("ReduceMean", { e:emit("Mul", { x.name, x.name }), e:integers(axes) }, { keepdims = 1 })
    local root = e:emit("Sqrt", { e:emit("Add", { square, e:number(node.attrs.eps or epsilon[d], d) }) })
    local y = e:emit("Div", { x.name, root })
    return w and e:emit("Mul", { y, w.name }) or y
  end
  function ops.group_norm(e, node, x, w, b)
    local groups, eps, d = node.attrs.num_groups, node.attrs.eps, node.dtypes[1]
    for _, n in ipairs(x.shape) do if n == 0 then return e:emit("Identity", { x.name }) end end
    -- instances of one channel a group
    local wide = e:emit("Reshape", { x.name, e:integers { x.shape[1], groups, -1 } })
    local y = e:emit("InstanceNormalization", { wide, ones(e, { groups }, 1, d), ones(e, { groups }, 0, d) },
      { epsilon = eps })
    y = e:reshape(y, x.shape)
    local per = { x.shape[2] }
    for k = 3, #x.shape do per[k - 1] = 1 end
    if w then y = e:emit("Mul", { y, e:reshape(w.name, per) }) end
    return b and e:emit("Add", { y, e:reshape(b.name, per) }) or y
  end

  -- ---- attention

  function ops.attention(e, node, q, k, v, mask)
    local a, d = node.attrs, node.dtypes[1]
    if a.dropout_p and a.dropout_p > 0 then ops.dropout(e, node) end
    local hq, hk = q.shape[#q.shape - 2], k.shape[#k.shape - 2]
    if #q.shape > 3 and not is_free(hq) and not is_free(hk) and hq ~= hk then
      e:fail(node, "grouped heads are not supported")
    end
    local scores = e:emit("Mul", { e:emit("MatMul", { q.name, flipped(e, k) }), e:number(a.scale, d) })
    if a.is_causal then
      local l, s = q.shape[#q.shape - 1], k.shape[#k.shape - 1]
      local all = e:emit("ConstantOfShape", { e:integers { l, s } }, { value = T.full({ 1 }, 1, { dtype = d }) })
      local seen = e:emit("Cast", { e:emit("Trilu", { all }, { upper = 0 }) }, { to = Export.kind "bool" })
      scores = e:emit("Where", { seen, scores, e:number(-math.huge, d) })
    end
    if mask then
      if mask.dtype == "bool" then
        scores = e:emit("Where", { mask.name, scores, e:number(-math.huge, d) })
      else
        scores = e:emit("Add", { scores, e:cast(mask, d) })
      end
    end
    local p = e:emit("Softmax", { scores }, { axis = -1 })
    if mask then -- who sees nothing gets zeros
      p = e:emit("Where", { e:emit("IsNaN", { p }), e:number(0, d), p })
    end
    return e:emit("MatMul", { p, v.name })
  end

  -- ---- recurrent layers

  -- Blocks of `hidden` rows in another order.
  local function blocks(e, name, hidden, order)
    local parts = {}
    for i, k in ipairs(order) do
      parts[i] = e:emit("Slice", { name, e:integers { (k - 1) * hidden }, e:integers { k * hidden }, e:integers { 0 } })
    end
    return e:emit("Concat", parts, { axis = 0 })
  end
  local function unsqueezed(e, name, axis) return e:emit("Unsqueeze", { name, e:integers { axis } }) end
  local function squeezed(e, name, axis) return e:emit("Squeeze", { name, e:integers { axis } }) end

  -- The states of all steps as our ops give them: the initial one first, or last where time runs backwards.
  local function with_initial(e, first, steps, reverse)
    local h = unsqueezed(e, first.name, 0)
    return e:emit("Concat", reverse and { steps, h } or { h, steps }, { axis = 0 })
  end

  -- Of all cells only the last is a result of ONNX: what selects it gets it.
  local function last_only(node, name, index)
    return { last = name, index = index, dtype = node.dtypes[2], shape = node.shapes[2] }
  end
  local plain_select = ops["select"]
  ops["select"] = function(e, node, x)
    if not x.last then return plain_select(e, node, x) end
    local at, want = node.attrs.index, x.index
    at, want = is_free(at) and at.value or at, is_free(want) and want.value or want
    if node.attrs.dim ~= 1 or at ~= want then e:fail(node, "cells of single steps are not supported") end
    return x.last
  end

  function ops.lstm_layer(e, node, x, h0, c0, wx, w, b)
    local hidden, reverse, d = h0.shape[#h0.shape], node.attrs.reverse, node.dtypes[1]
    local order = { 1, 4, 2, 3 } -- ours i f g o, theirs i o f c
    local bias = b and e:emit("Concat", { blocks(e, b.name, hidden, order),
      e:constant(T.zeros({ 4 * hidden }, { dtype = d })) }, { axis = 0 })
    local y, _, cell = e:emit("LSTM", { x.name, unsqueezed(e, blocks(e, wx.name, hidden, order), 0),
      unsqueezed(e, blocks(e, w.name, hidden, order), 0), bias and unsqueezed(e, bias, 0), false,
      unsqueezed(e, h0.name, 0), unsqueezed(e, c0.name, 0) }, { hidden_size = hidden,
      direction = reverse and "reverse" or "forward" }, 3)
    local steps = node.shapes[1][1]
    return with_initial(e, h0, squeezed(e, y, 1), reverse),
      last_only(node, squeezed(e, cell, 0), reverse and 1 or steps)
  end
  function ops.lstm_gates(e, _, a, c)
    local i, f, g, o = e:emit("Split", { a.name }, { axis = #a.shape - 1, num_outputs = 4 }, 4)
    local cell = e:emit("Add", { e:emit("Mul", { e:emit("Sigmoid", { f }), c.name }),
      e:emit("Mul", { e:emit("Sigmoid", { i }), e:emit("Tanh", { g }) }) })
    return e:emit("Mul", { e:emit("Sigmoid", { o }), e:emit("Tanh", { cell }) }), cell
  end
  -- Here the inputs' product is there already: W is the unit matrix, in their order of gates.
  local function unit(e, n, hidden, order, d)
    return unsqueezed(e, blocks(e, e:constant(T.eye(n, n, { dtype = d })), hidden, order), 0)
  end
  function ops.lstm_seq(e, node, gx, h0, c0, w)
    local hidden, reverse, d = h0.shape[#h0.shape], node.attrs.reverse, node.dtypes[1]
    local order = { 1, 4, 2, 3 }
    local y, _, cell = e:emit("LSTM", { gx.name, unit(e, 4 * hidden, hidden, order, d),
      unsqueezed(e, blocks(e, w.name, hidden, order), 0), false, false, unsqueezed(e, h0.name, 0),
      unsqueezed(e, c0.name, 0) }, { hidden_size = hidden, direction = reverse and "reverse" or "forward" }, 3)
    return with_initial(e, h0, squeezed(e, y, 1), reverse),
      last_only(node, squeezed(e, cell, 0), reverse and 1 or node.shapes[1][1])
  end
  function ops.gru_seq(e, node, gx, h0, w, b)
    local hidden, reverse, d = h0.shape[#h0.shape], node.attrs.reverse, node.dtypes[1]
    local order = { 2, 1, 3 } -- ours r z n, theirs z r h
    -- b is that of the new gate alone, which the reset gate meets; the others are in gx
    local bias = b and unsqueezed(e, e:emit("Concat", { e:constant(T.zeros({ 5 * hidden }, { dtype = d })), b.name },
      { axis = 0 }), 0)
    local y = e:emit("GRU", { gx.name, unit(e, 3 * hidden, hidden, order, d),
      unsqueezed(e, blocks(e, w.name, hidden, order), 0), bias, false, unsqueezed(e, h0.name, 0) },
      { hidden_size = hidden, linear_before_reset = 1, direction = reverse and "reverse" or "forward" })
    return with_initial(e, h0, squeezed(e, y, 1), reverse)
  end
  function ops.rnn_seq(e, node, gx, h0, w)
    local hidden, reverse, d = h0.shape[#h0.shape], node.attrs.reverse, node.dtypes[1]
    local y = e:emit("RNN", { gx.name, unsqueezed(e, e:constant(T.eye(hidden, hidden, { dtype = d })), 0),
      unsqueezed(e, w.name, 0), false, false, unsqueezed(e, h0.name, 0) }, { hidden_size = hidden,
      activations = { node.attrs.relu and "Relu" or "Tanh" }, direction = reverse and "reverse" or "forward" })
    return with_initial(e, h0, squeezed(e, y, 1), reverse)
  end
end
