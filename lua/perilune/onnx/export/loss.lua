-- SPDX-License-Identifier: MIT
--- Export of losses.
-- @module perilune.onnx.export.loss
local writer = require "perilune.onnx.writer"

return function(Export)
  local ops = Export.ops

  local function reduced(e, node, y)
    local how = node.attrs.reduction or "mean"
    if how == "none" then return y end
    return e:emit(how == "sum" and "ReduceSum" or "ReduceMean", { y }, { keepdims = 0 })
  end
  local function minus(e, node, x, y) return e:emit("Sub", { e:cast(x, node.dtypes[1]), e:cast(y, node.dtypes[1]) }) end

  function ops.mse_loss(e, node, x, y)
    local d = minus(e, node, x, y)
    return reduced(e, node, e:emit("Mul", { d, d }))
  end
  function ops.l1_loss(e, node, x, y) return reduced(e, node, e:emit("Abs", { minus(e, node, x, y) })) end

  -- Quadratic below `at`, linear above: small |d|² and large |d| with factors such that they meet.
  local function bent(e, node, x, y, at, small, large)
    local t = node.dtypes[1]
    local d = e:emit("Abs", { minus(e, node, x, y) })
    local near = e:emit("Mul", { e:emit("Mul", { d, d }), e:number(small, t) })
    local far = e:emit("Mul", { e:emit("Sub", { d, e:number(at / 2, t) }), e:number(large, t) })
    return reduced(e, node, e:emit("Where", { e:emit("Less", { d, e:number(at, t) }), near, far }))
  end
  function ops.smooth_l1_loss(e, node, x, y)
    local beta = node.attrs.beta
    if beta == 0 then return ops.l1_loss(e, node, x, y) end
    return bent(e, node, x, y, beta, 0.5 / beta, 1)
  end
  function ops.huber_loss(e, node, x, y) return bent(e, node, x, y, node.attrs.delta, 0.5, node.attrs.delta) end

  local function weighed(e, node, y, weight)
    return reduced(e, node, weight and e:emit("Mul", { y, e:cast(weight, node.dtypes[1]) }) or y)
  end
  local function one_minus(e, x, t) return e:emit("Sub", { e:number(1, t), x }) end

  function ops.binary_cross_entropy_with_logits(e, node, x, y, weight, positive)
    local t = node.dtypes[1]
    local name, target = e:cast(x, t), e:cast(y, t)
    if not positive then -- softplus(x) - x y
      return weighed(e, node, e:emit("Sub", { e:emit("Softplus", { name }), e:emit("Mul", { name, target }) }), weight)
    end
    -- (1 - y) x + (1 + (p - 1) y) softplus(-x)
    local factor = e:emit("Mul", { e:emit("Sub", { e:cast(positive, t), e:number(1, t) }), target })
    local tail = e:emit("Softplus", { e:emit("Neg", { name }) })
    tail = e:emit("Mul", { e:emit("Add", { factor, e:number(1, t) }), tail })
    return weighed(e, node, e:emit("Add", { e:emit("Mul", { one_minus(e, target, t), name }), tail }), weight)
  end
  function ops.binary_cross_entropy(e, node, x, y, weight)
    local t = node.dtypes[1]
    local p, target = e:cast(x, t), e:cast(y, t)
    local function log(v) return e:emit("Max", { e:emit("Log", { v }), e:number(-100, t) }) end
    local sum = e:emit("Add", { e:emit("Mul", { target, log(p) }),
      e:emit("Mul", { one_minus(e, target, t), log(one_minus(e, p, t)) }) })
    return weighed(e, node, e:emit("Neg", { sum }), weight)
  end
  function ops.kl_div(e, node, x, y)
    local t, a = node.dtypes[1], node.attrs
    local name, target = e:cast(x, t), e:cast(y, t)
    local p = a.log_target and e:emit("Exp", { target }) or target
    local l = e:emit("Mul", { p, e:emit("Sub", { a.log_target and target or e:emit("Log", { target }), name }) })
    if not a.log_target then -- 0 log 0 = 0
      l = e:emit("Where", { e:emit("Equal", { target, e:number(0, t) }), e:number(0, t), l })
    end
    if a.reduction ~= "batchmean" then return reduced(e, node, l) end
    return e:emit("Div", { e:emit("ReduceSum", { l }, { keepdims = 0 }), e:number(x.shape[1] or 1, t) })
  end

  -- With classes along `axis`: what a loss has of all of them, by their weights.
  local function over_classes(e, t, axis, y, weight, x)
    if weight then
      local shape = {}
      for d = 1, #x.shape do shape[d] = d == axis + 1 and -1 or 1 end
      y = e:emit("Mul", { y, e:reshape(e:cast(weight, t), shape) })
    end
    return e:emit("Neg", { e:emit("ReduceSum", { y, e:integers { axis } }, { keepdims = 0 }) })
  end
  local function smoothed(e, node, x, axis)
    local smooth, n = node.attrs.label_smoothing or 0, x.shape[axis + 1]
    if smooth ~= 0 then e:fixed(node, { n }, "the number of classes") end
    return smooth, smooth ~= 0 and smooth / n or 0
  end

  -- By operators that any x has, where ONNX's own knows no smoothing, or asks for a batch.
  local function composed(e, node, x, target, weight, softmax)
    local a, t, axis = node.attrs, node.dtypes[1], #x.shape > 1 and 1 or 0
    local at, ignored = Export.from_zero(e, node, target), (a.ignore_index or -100) - (a.index_base or 1)
    local counts = e:emit("Not", { e:emit("Equal", { at, e:number(ignored, "i64") }) })
    at = e:emit("Where", { counts, at, e:number(0, "i64") })
    local y = e:cast(x, t)
    if softmax then y = e:emit("LogSoftmax", { y }, { axis = axis }) end
    local l = e:emit("GatherElements", { y, e:emit("Unsqueeze", { at, e:integers { axis } }) }, { axis = axis })
    l = e:emit("Neg", { e:emit("Squeeze", { l, e:integers { axis } }) })
    local w = weight and e:emit("Gather", { e:cast(weight, t), at }, { axis = 0 })
    if w then l = e:emit("Mul", { l, w }) end
    local smooth, each = 0, nil
    if softmax then smooth, each = smoothed(e, node, x, axis) end
    if smooth ~= 0 then
      local all = e:emit("Mul", { over_classes(e, t, axis, y, weight, x), e:number(each, t) })
      l = e:emit("Add", { e:emit("Mul", { l, e:number(1 - smooth, t) }), all })
    end
    l = e:emit("Where", { counts, l, e:number(0, t) })
    if a.reduction == "none" then return l end
    l = e:emit("ReduceSum", { l }, { keepdims = 0 })
    if a.reduction == "sum" then return l end
    local share = e:emit("Where", { counts, w or e:number(1, t), e:number(0, t) })
    return e:emit("Div", { l, e:emit("ReduceSum", { share }, { keepdims = 0 }) })
  end

  local function classes(op, softmax)
    return function(e, node, x, target, weight)
      local a = node.attrs
      if #x.shape < 2 or softmax and (a.label_smoothing or 0) ~= 0 then
        return composed(e, node, x, target, weight, softmax)
      end
      local base = a.index_base or 1
      return e:emit(op, { x.name, Export.from_zero(e, node, target), weight and weight.name },
        { reduction = a.reduction or "mean", ignore_index = (a.ignore_index or -100) - base })
    end
  end
  ops.cross_entropy = classes("SoftmaxCrossEntropyLoss", true)
  ops.nll_loss = classes("NegativeLogLikelihoodLoss", false)

  function ops.cross_entropy_linear(e, node, x, linear_weight, target, linear_bias, weight)
    local t, _ = node.dtypes[1], node.attrs.chunk -- how many rows are made at a time
    local function as_loss(v) return v and { name = e:cast(v, t), dtype = t, shape = v.shape } or v end
    local y = ops.linear(e, node, as_loss(x), as_loss(linear_weight), as_loss(linear_bias))
    y = { name = y, dtype = t, shape = { x.shape[1], linear_weight.shape[1] } }
    return ops.cross_entropy(e, node, y, target, as_loss(weight))
  end

  function ops.cross_entropy_prob(e, node, x, target, weight)
    local t, axis = node.dtypes[1], #x.shape > 1 and 1 or 0
    local smooth, each = smoothed(e, node, x, axis)
    local p = e:cast(target, t)
    if smooth ~= 0 then p = e:emit("Add", { e:emit("Mul", { p, e:number(1 - smooth, t) }), e:number(each, t) }) end
    local y = e:emit("Mul", { p, e:emit("LogSoftmax", { e:cast(x, t) }, { axis = axis }) })
    return reduced(e, node, over_classes(e, t, axis, y, weight, x))
  end

  -- ---- connectionist temporal classification --------------------------------------------------------------------

  local INF = math.huge
  -- log(exp a + exp b + …) of what may be 0, minus infinity.
  local function log_sum_exp(e, list)
    local m = #list > 1 and e:emit("Max", list) or list[1]
    local none = e:emit("Equal", { m, e:number(-INF, "f64") })
    local from, sum = e:emit("Where", { none, e:number(0, "f64"), m }), nil
    for _, x in ipairs(list) do
      local one = e:emit("Exp", { e:emit("Sub", { x, from }) })
      sum = sum and e:emit("Add", { sum, one }) or one
    end
    return e:emit("Add", { e:emit("Log", { sum }), from })
  end
  local function slice(e, x, axis, from, to)
    return e:emit("Slice", { x, e:integers { from }, e:integers { to }, e:integers { axis } })
  end
  local function column(e, x) return e:emit("Unsqueeze", { x, e:integers { 1 } }) end

  -- labels [N, L]: blanks and targets in turn; leaps [N, L]: where a label may come right after the one before the
  -- last.
  local function labels_of(e, node, targets, lengths, S)
    local blank = e:number(node.attrs.blank - node.attrs.index_base, "i64")
    local function filled(like) return e:emit("Add", { e:emit("Mul", { like, e:number(0, "i64") }), blank }) end
    local last = filled(lengths)
    if S == 0 then return last end
    local T = require "perilune"
    local places = e:constant(T.arange(S):unsqueeze(1), "places")
    local from_zero = Export.from_zero(e, node, targets)
    local t = e:emit("Where", { e:emit("LessOrEqual", { places, lengths }), from_zero, filled(from_zero) })
    local pairs_ = e:emit("Concat", { e:emit("Unsqueeze", { filled(t), e:integers { 2 } }),
      e:emit("Unsqueeze", { t, e:integers { 2 } }) }, { axis = 2 })
    local labels = e:emit("Concat", { e:reshape(pairs_, { targets.shape[1], 2 * S }), last }, { axis = 1 })
    local never = e:emit("Less", { t, t })
    local first = slice(e, never, 1, 0, 1)
    local others = e:emit("Not", { e:emit("Equal", { slice(e, t, 1, 1, S), slice(e, t, 1, 0, S - 1) }) })
    local leaps = e:emit("Concat", { first, others }, { axis = 1 })
    leaps = e:emit("Concat", { e:emit("Unsqueeze", { never, e:integers { 2 } }),
      e:emit("Unsqueeze", { leaps, e:integers { 2 } }) }, { axis = 2 })
    leaps = e:reshape(leaps, { targets.shape[1], 2 * S })
    return labels, e:emit("Concat", { leaps, first }, { axis = 1 })
  end

  -- One frame, as the body of a Scan: forward variables [N, L], the labels' log-probabilities, and whether the frame
  -- counts → forward variables.
  local function frame(e, S, leaps, outside)
    local a, p, alive, out = e:unique "alpha", e:unique "frame", e:unique "alive", e:unique "alpha_next"
    local L, all = 2 * S + 1, e.nodes
    e.types[a], e.types[p], e.types[alive] = "f64", "f64", "bool"
    e.nodes = {}
    local ways = { a }
    if S > 0 then
      ways[2] = e:emit("Concat", { outside, slice(e, a, 1, 0, L - 1) }, { axis = 1 })
      local far = e:emit("Concat", { outside, outside, slice(e, a, 1, 0, L - 2) }, { axis = 1 })
      ways[3] = e:emit("Where", { leaps, far, e:number(-INF, "f64") })
    end
    local now = e:emit("Add", { log_sum_exp(e, ways), p })
    e.nodes[#e.nodes + 1] = writer.node(e:unique "Where", "Where", { alive, now, a }, { out }, {})
    local body = writer.graph { name = "frame", nodes = e.nodes, initializers = {},
      inputs = { writer.value(a, "f64", { "sequences", L }), writer.value(p, "f64", { "sequences", L }),
        writer.value(alive, "bool", { "sequences", 1 }) },
      outputs = { writer.value(out, "f64", { "sequences", L }) } }
    e.nodes = all
    return { graph = body }
  end

  function ops.ctc_nll(e, node, x, targets, input_lengths, target_lengths)
    local S = e:fixed(node, { targets.shape[2] }, "the targets' length")[1]
    local T, N, L = x.shape[1], x.shape[2], 2 * S + 1
    local counts, frames = column(e, target_lengths.name), column(e, input_lengths.name)
    local labels, leaps = labels_of(e, node, targets, counts, S)
    local everywhere = e:emit("Expand", { e:emit("Unsqueeze", { labels, e:integers { 0 } }), e:integers { T, N, L } })
    local p = e:emit("GatherElements", { x.name, everywhere }, { axis = 2 })
    p = x.dtype == "f64" and p or e:emit("Cast", { p }, { to = writer.kinds.f64 })
    local times = e:emit("Range", { e:number(0, "i64"), e:number(T, "i64"), e:number(1, "i64") })
    local alive = e:emit("Less", { e:reshape(times, { -1, 1, 1 }), e:emit("Unsqueeze", { frames, e:integers { 0 } }) })
    -- Before the first frame the first label alone is there.
    local zero = e:emit("Mul", { e:emit("Cast", { counts }, { to = writer.kinds.f64 }), e:number(0, "f64") })
    local outside = e:emit("Add", { zero, e:number(-INF, "f64") })
    local begin = { zero }
    for l = 2, L do begin[l] = outside end
    local a = #begin > 1 and e:emit("Concat", begin, { axis = 1 }) or zero
    local ends = e:unique "alpha_last"
    e.types[ends] = "f64"
    e.nodes[#e.nodes + 1] = writer.node(e:unique "Scan", "Scan", { a, p, alive }, { ends },
      { body = frame(e, S, leaps, outside), num_scan_inputs = 2 })
    local last = e:emit("Mul", { counts, e:number(2, "i64") })
    local total = e:emit("GatherElements", { ends, last }, { axis = 1 })
    if S > 0 then
      local before = e:emit("Max", { e:emit("Sub", { last, e:number(1, "i64") }), e:number(0, "i64") })
      before = e:emit("GatherElements", { ends, before }, { axis = 1 })
      local some = e:emit("Greater", { counts, e:number(0, "i64") })
      total = log_sum_exp(e, { total, e:emit("Where", { some, before, e:number(-INF, "f64") }) })
    end
    local loss = e:emit("Neg", { e:emit("Squeeze", { total, e:integers { 1 } }) })
    return x.dtype == "f64" and loss or e:emit("Cast", { loss }, { to = writer.kinds[x.dtype] })
  end
end
