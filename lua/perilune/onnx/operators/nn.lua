-- SPDX-License-Identifier: MIT
--- ONNX operators of networks: products, norms, losses, attention.
-- @module perilune.onnx.operators.nn
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op, axis_of, beside, is_float = registry.op, registry.axis, registry.beside, registry.is_float
local F = T.nn.F

-- ---- products ------------------------------------------------------------------------------------------------------

op("MatMul", "", function(_, a, b) return a:matmul(beside(a, b)) end)

op("Gemm", "alpha:float beta:float transA:int transB:int broadcast:int", function(c, a, b, bias)
  local alpha, beta = c.a.alpha or 1.0, c.a.beta or 1.0
  if is_float(a) and alpha == 1.0 and beta == 1.0 and c.a.transA ~= 1 and c.a.transB == 1
    and (not bias or (bias:dim() == 1 and bias:size(1) == b:size(1))) then
    return F.linear(a, b, bias)
  end
  if c.a.transA == 1 then a = a:t() end
  if c.a.transB == 1 then b = b:t() end
  local y, dtype = a:matmul(b), a:dtype()
  if not is_float(a) and (alpha ~= 1.0 or beta ~= 1.0) then -- the sum is rounded, not each of its parts
    y = y:to "f64" * alpha
    return (bias and y + bias:to "f64" * beta or y):to(dtype)
  end
  if alpha ~= 1.0 then y = y * alpha end
  if not bias then return y end
  return y + (beta == 1.0 and bias or bias * beta)
end)

op("Einsum", "equation:string", function(c, ...)
  local equation = (c.a.equation or c:fail "equation is missing"):gsub("%s", "")
  local upper = equation:match "%u" -- both cases are letters of their own
  if upper then
    local taken, map = {}, {}
    for l in equation:gmatch "%l" do taken[l] = true end
    equation = equation:gsub("%u", function(u)
      if not map[u] then
        for l in ("abcdefghijklmnopqrstuvwxyz"):gmatch "." do
          if not taken[l] then
            map[u], taken[l] = l, true
            break
          end
        end
      end
      return map[u] or c:fail "more than 26 letters"
    end)
  end
  return T.einsum(equation, ...):to((...):dtype()) -- sums of integers are wider
end)

-- ---- norms ---------------------------------------------------------------------------------------------------------

op("BatchNormalization", "epsilon:float momentum:float training_mode:int spatial:int is_test:int consumed_inputs:ints",
  function(c, x, scale, bias, mean, var)
    local eps = c.a.epsilon or 1e-5
    if c.a.spatial == 0 then c:fail "spatial 0 is not supported" end
    if c.a.training_mode ~= 1 then
      return F.batch_norm(x, mean, var, scale, bias, { training = false, eps = eps })
    end
    local momentum, dims, n = c.a.momentum or 0.9, { 1 }, x:size(1)
    for d = 3, x:dim() do
      dims[#dims + 1] = d
      n = n * x:size(d)
    end
    if n == 0 then c:fail "training with an empty batch" end
    local y = F.batch_norm(x, nil, nil, scale, bias, { training = true, eps = eps })
    local now, spread = T.mean(x, dims), T.var(x, dims, { correction = 0 })
    return y, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum)
  end, { constants = { 4, 5 } })

op("InstanceNormalization", "epsilon:float consumed_inputs:ints", function(c, x, scale, bias)
  return F.instance_norm(x, { weight = scale, bias = bias, eps = c.a.epsilon or 1e-5 })
end)

op("LayerNormalization", "axis:int epsilon:float stash_type:int", function(c, x, scale, bias)
  local dim, shape, dims = axis_of(c, c.a.axis or -1, x:dim()), {}, {}
  for d = dim, x:dim() do
    shape[#shape + 1] = x:size(d)
    dims[#dims + 1] = d
  end
  local eps = c.a.epsilon or 1e-5
  local function spread(w)
    if not w then return nil end
    if w:dim() == #shape then
      local same = true
      for d, n in ipairs(shape) do same = same and w:size(d) == n end
      if same then return w end
    end
    return w:expand(shape):contiguous()
  end
  local y = F.layer_norm(x, shape, { weight = spread(scale), bias = spread(bias), eps = eps })
  if c.outputs < 2 then return y end
  local wide = x:dtype() == "f64" and x or x:to("f32") -- stash_type 1
  local mean = T.mean(wide, dims, { keepdim = true }):to "f32"
  return y, mean, (T.var(wide, dims, { correction = 0, keepdim = true }) + eps):rsqrt():to "f32"
end)

op("RMSNormalization", "axis:int epsilon:float stash_type:int", function(c, x, scale)
  local dim, dims = axis_of(c, c.a.axis or -1, x:dim()), {}
  for d = dim, x:dim() do dims[#dims + 1] = d end
  local wide = x:dtype() == "f64" and x or x:to("f32")
  local y = wide * (T.mean(wide:square(), dims, { keepdim = true }) + (c.a.epsilon or 1e-5)):rsqrt()
  return y:to(x:dtype()) * scale
end)

op("GroupNormalization", "epsilon:float num_groups:int stash_type:int", function(c, x, scale, bias)
  local groups = c.a.num_groups or c:fail "num_groups is missing"
  if c.opset < 21 then -- one number for each group
    local each = x:size(2) // groups
    scale, bias = scale:repeat_interleave(each), bias:repeat_interleave(each)
  end
  return F.group_norm(x, groups, scale, bias, { eps = c.a.epsilon or 1e-5 })
end)

op("LRN", "size:int alpha:float beta:float bias:float", function(c, x)
  local n = c.a.size or c:fail "size is missing"
  local alpha, beta, bias = c.a.alpha or 1e-4, c.a.beta or 0.75, c.a.bias or 1.0
  local before = (n - 1) // 2
  local pads = {}
  for i = 1, 2 * (x:dim() - 2) do pads[i] = 0 end
  pads[#pads + 1], pads[#pads + 2] = before, n - 1 - before
  local sums = F.pad(x:square(), pads):unfold(2, n, 1):sum(-1)
  return x / (sums * (alpha / n) + bias) ^ beta
end)

op("LpNormalization", "axis:int p:int", function(c, x)
  local dim = axis_of(c, c.a.axis or -1, x:dim())
  local norm = (c.a.p or 2) == 1 and x:abs():sum(dim, { keepdim = true })
    or x:square():sum(dim, { keepdim = true }):sqrt()
  return T.where(norm:eq(0), T.zeros_like(x), x / norm)
end)

op("MeanVarianceNormalization", "axes:ints", function(c, x)
  local dims = registry.axes(c, c.a.axes or { 0, 2, 3 }, x:dim())
  local centered = x - x:mean(dims, { keepdim = true })
  return centered / (centered:square():mean(dims, { keepdim = true }):sqrt() + 1e-9)
end)

-- Node → the generator that its seed began, which goes on from run to run: training wants other places each time.
local generators = setmetatable({}, { __mode = "k" })

op("Dropout", "ratio:float seed:int is_test:int consumed_inputs:ints", function(c, x, ratio, training)
  local on = training and registry.number(c, training, "training_mode")
  local p = ratio and registry.number(c, ratio, "ratio") or c.a.ratio or 0.5
  if not on or on == 0 or p == 0 then
    if c.outputs < 2 then return x end
    return x, T.ones(x:shape(), { dtype = c.opset < 10 and x:dtype() or "bool", device = x:device() })
  end
  local node = c.node
  generators[node] = generators[node] or registry.generator(c)
  local keep = T.rand(x:shape(), { dtype = x:dtype(), device = x:device(), generator = generators[node] }):ge(p)
  return x * keep:to(x:dtype()) / (1 - p), keep
end, { constants = { 2 }, random = true })

-- ---- losses --------------------------------------------------------------------------------------------------------

-- Log-probabilities [N, C, *] and classes [N, *].
local function nll(c, logp, target, weight)
  local ignore, how = c.a.ignore_index, c.a.reduction or "mean"
  local at = target:to("i64")
  local seen = ignore and at:ne(ignore)
  if seen then at = T.where(seen, at, T.zeros_like(at)) end
  local loss = -logp:gather(2, at:unsqueeze(2), { index_base = 0 }):squeeze(2)
  local w = weight and weight:index_select(1, at:reshape(-1), { index_base = 0 }):reshape(at:shape())
  if seen then w = (w or T.ones_like(loss)) * seen:to(loss:dtype()) end
  if w then loss = loss * w end
  if how == "none" then return loss end
  if how == "sum" then return loss:sum() end
  if how ~= "mean" then c:fail("reduction '%s'", how) end
  return w and loss:sum() / w:sum() or loss:mean()
end
op("NegativeLogLikelihoodLoss", "ignore_index:int reduction:string", nll, { constants = { 3 } })
op("SoftmaxCrossEntropyLoss", "ignore_index:int reduction:string", function(c, x, target, weight)
  local logp = T.log_softmax(x, 2)
  return nll(c, logp, target, weight), logp
end, { constants = { 3 } })

-- ---- attention -----------------------------------------------------------------------------------------------------

op("RotaryEmbedding", "interleaved:int num_heads:int rotary_embedding_dim:int", function(c, x, cos, sin, ids)
  local flat, heads = x:dim() == 3, c.a.num_heads
  if flat then
    if not heads or heads < 1 then c:fail "num_heads is wanted for three dimensions" end
    x = x:reshape(x:size(1), x:size(2), heads, x:size(3) // heads)
  else
    x = x:transpose(2, 3) -- [batch, sequence, heads, size]
  end
  local part = (c.a.rotary_embedding_dim or 0) > 0 and c.a.rotary_embedding_dim or x:size(4)
  local rest = part < x:size(4) and x:narrow(4, part + 1, x:size(4) - part)
  local y, half = x:narrow(4, 1, part), part // 2
  if ids then
    local at, shape = ids:to("i64"), ids:shape()
    local function take(t)
      return t:index_select(1, at:reshape(-1), { index_base = 0 }):reshape(shape[1], shape[2], t:size(2))
    end
    cos, sin = take(cos), take(sin)
  end
  cos, sin = cos:narrow(-1, 1, half):unsqueeze(3), sin:narrow(-1, 1, half):unsqueeze(3)
  local a, b
  if c.a.interleaved == 1 then
    local pairs_ = y:reshape(y:size(1), y:size(2), y:size(3), half, 2)
    a, b = pairs_:select(5, 1), pairs_:select(5, 2)
  else
    a, b = y:narrow(4, 1, half), y:narrow(4, half + 1, half)
  end
  local re, im = a * cos - b * sin, a * sin + b * cos
  if c.a.interleaved == 1 then
    y = T.stack({ re, im }, 5):reshape(y:shape())
  else
    y = T.cat({ re, im }, 4)
  end
  if rest then y = T.cat({ y, rest }, 4) end
  if flat then return y:reshape(y:size(1), y:size(2), y:size(3) * y:size(4)) end
  return y:transpose(2, 3)
end, { constants = { 2, 3 } })

-- What each query may look at, as a mask of bools [.., l, s] (true: hidden) or nil.
local function hidden_from(c, q, l, s, past, lengths)
  local left, right = c.a.left_window_size or -1, c.a.right_window_size or -1
  local causal = c.a.is_causal == 1
  local far = lengths and lengths:to("i64"):reshape(-1, 1, 1, 1)
  local out
  local function hide(mask) out = out and T.logical_or(out, mask) or mask end
  if causal or left >= 0 or right >= 0 then
    local at = registry.count(l, q:device()):unsqueeze(2)
    at = past and at + past or far and at + (far - l) or at -- of a query among the keys
    local ahead = registry.count(s, q:device()) - at
    if causal then hide(ahead:gt(0)) end
    if left >= 0 then hide(ahead:lt(-left)) end
    if right >= 0 then hide(ahead:gt(right)) end
  end
  if far then hide(registry.count(s, q:device()):ge(far)) end
  return out
end

op("Attention", "is_causal:int kv_num_heads:int q_num_heads:int qk_matmul_output_mode:int scale:float softcap:float "
  .. "softmax_precision:int left_window_size:int right_window_size:int",
  function(c, q, k, v, mask, past_k, past_v, lengths)
    local flat = q:dim() == 3
    if flat then
      local hq = c.a.q_num_heads or c:fail "q_num_heads is missing"
      local hk = c.a.kv_num_heads or c:fail "kv_num_heads is missing"
      local function split(t, heads)
        return t:reshape(t:size(1), t:size(2), heads, t:size(3) // heads):transpose(2, 3)
      end
      q, k, v = split(q, hq), split(k, hk), split(v, hk)
    end
    if (past_k == nil) ~= (past_v == nil) then c:fail "past_key and past_value belong together" end
    if past_k then
      k, v = T.cat({ past_k, k }, 3), T.cat({ past_v, v }, 3)
    end
    local present_k, present_v, group = k, v, q:size(2) // k:size(2)
    if q:size(2) % k:size(2) ~= 0 then c:fail("%d heads of queries and %d of keys", q:size(2), k:size(2)) end
    if group > 1 then
      k, v = k:repeat_interleave(group, 2), v:repeat_interleave(group, 2)
    end
    local l, s, mode = q:size(3), k:size(3), c.a.qk_matmul_output_mode or 0
    local root = c.a.scale and math.sqrt(c.a.scale) or q:size(4) ^ -0.25
    local scores = (q * root):matmul((k * root):transpose(3, 4))
    local seen = mode == 0 and scores
    if c.a.softcap and c.a.softcap > 0 then scores = (scores / c.a.softcap):tanh() * c.a.softcap end
    if mode == 1 then seen = scores end
    local hidden = hidden_from(c, q, l, s, past_k and past_k:size(3), lengths)
    if mask then
      local short = s - mask:size(-1)
      if short > 0 then -- what the mask does not reach is hidden
        mask = mask:dtype() == "bool" and F.pad(mask:to("u8"), { 0, short }):to("bool")
          or F.pad(mask, { 0, short }, { value = -math.huge })
      end
      local out = mask:dtype() == "bool" and mask:logical_not() or mask:eq(-math.huge)
      hidden = hidden and T.logical_or(hidden, out) or out
      if mask:dtype() ~= "bool" then scores = scores + mask end
    end
    if hidden then
      scores = T.where(hidden, T.full({ 1 }, -math.huge, { dtype = scores:dtype(), device = scores:device() }), scores)
    end
    if mode == 2 then seen = scores end
    local wide = c.a.softmax_precision == 1 and "f32" or c.a.softmax_precision == 11 and "f64"
    local p = T.softmax(wide and scores:to(wide) or scores, -1):to(q:dtype())
    if hidden then -- who sees nothing gets zeros
      p = T.where(hidden:all(-1, { keepdim = true }), T.zeros({ 1 }, { dtype = p:dtype(), device = p:device() }), p)
    end
    local y = p:matmul(v)
    if flat then y = y:transpose(2, 3):reshape(y:size(1), l, y:size(2) * y:size(4)) end
    return y, present_k, present_v, seen or p
  end)
op("SwiGLU", "alpha:float", function(c, a, b) return a * (a * (c.a.alpha or 1.0)):sigmoid() * b end)
