-- SPDX-License-Identifier: MIT
--- Export of losses.
-- @module perilune.onnx.export.loss
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

  function ops.cross_entropy_prob(e, node, x, target, weight)
    local t, axis = node.dtypes[1], #x.shape > 1 and 1 or 0
    local smooth, each = smoothed(e, node, x, axis)
    local p = e:cast(target, t)
    if smooth ~= 0 then p = e:emit("Add", { e:emit("Mul", { p, e:number(1 - smooth, t) }), e:number(each, t) }) end
    local y = e:emit("Mul", { p, e:emit("LogSoftmax", { e:cast(x, t) }, { axis = axis }) })
    return reduced(e, node, over_classes(e, t, axis, y, weight, x))
  end
end
