-- SPDX-License-Identifier: MIT
--- More of nn.F: losses over pairs, triplets and labels, and normalizations and pooling made of other ops.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local running_update = T.core.op.running_update

return function(F)
  local function tensors(who, ...)
    for i = 1, select("#", ...) do
      local x = select(i, ...)
      if not T.is_tensor(x) then fail("%s: argument #%d must be a tensor, got %s", who, i, describe(x)) end
    end
  end

  local words = { "mean", "sum", "none" }
  local function reduced(who, loss, reduction)
    if reduction == nil or reduction == "mean" then return loss:mean() end
    if reduction == "sum" then return loss:sum() end
    if reduction == "none" then return loss end
    fail("%s: %s", who, options.unknown("reduction", reduction, words))
  end
  -- An unknown reduction is refused before anything else is looked at.
  local function read(who, opts, names)
    local o = options.check(who, opts, names)
    local r = o.reduction
    if r ~= nil and r ~= "mean" and r ~= "sum" and r ~= "none" then
      fail("%s: %s", who, options.unknown("reduction", r, words))
    end
    return o
  end

  -- ---- pairs and triplets ------------------------------------------------------------------------------

  --- 1 - cos(x1, x2) where y is 1, max(0, cos - margin) where it is -1; rows of [N, D] or one row [D].
  function F.cosine_embedding_loss(x1, x2, y, opts)
    local who = "cosine_embedding_loss"
    tensors(who, x1, x2, y)
    local o = read(who, opts, { "margin", "reduction" })
    if not (y:dim() == 1 and x1:dim() == 2 and x2:dim() == 2) and
      not (y:dim() == 0 and x1:dim() == 1 and x2:dim() == 1) then
      fail("%s: rows [N,D], [N,D] with targets [N] are wanted, got %s, %s, %s", who, describe(x1), describe(x2),
        describe(y))
    end
    local eps = 1e-12
    local dot = (x1 * x2):sum(-1)
    local cos = dot / (((x1 * x1):sum(-1) + eps) * ((x2 * x2):sum(-1) + eps)):sqrt()
    local away = (cos - (o.margin or 0.0)):relu()
    local zero = T.zeros_like(cos)
    local loss = T.where(y:eq(1), 1 - cos, zero) + T.where(y:eq(-1), away, zero)
    return reduced(who, loss, o.reduction)
  end

  --- x where y is 1, max(0, margin - x) where it is -1.
  function F.hinge_embedding_loss(x, y, opts)
    tensors("hinge_embedding_loss", x, y)
    local o = read("hinge_embedding_loss", opts, { "margin", "reduction" })
    local far = ((o.margin or 1.0) - x):relu()
    local loss = T.where(y:ne(1), far, T.zeros_like(far)) + T.where(y:ne(-1), x, T.zeros_like(x))
    return reduced("hinge_embedding_loss", loss, o.reduction)
  end

  --- max(0, d(anchor, positive) - d(anchor, negative) + margin); d: pairwise_distance. With swap the negative's
  -- distance is the smaller of those to anchor and positive (Balntas et al. 2016).
  function F.triplet_margin_loss(anchor, positive, negative, opts)
    local who = "triplet_margin_loss"
    tensors(who, anchor, positive, negative)
    local o = read(who, opts, { "margin", "p", "eps", "swap", "reduction" })
    local nd = anchor:dim()
    if positive:dim() ~= nd or negative:dim() ~= nd then
      fail("%s: anchor, positive and negative have different numbers of dimensions: %d, %d and %d", who, nd,
        positive:dim(), negative:dim())
    end
    local how = { p = o.p, eps = o.eps }
    local near, far = T.pairwise_distance(anchor, positive, how), T.pairwise_distance(anchor, negative, how)
    if o.swap then far = T.minimum(far, T.pairwise_distance(positive, negative, how)) end
    return reduced(who, ((o.margin or 1.0) + near - far):relu(), o.reduction)
  end

  --- triplet_margin_loss with a distance of one's own: options `distance_function margin=1 swap=false reduction`.
  function F.triplet_margin_with_distance_loss(anchor, positive, negative, opts)
    local who = "triplet_margin_with_distance_loss"
    tensors(who, anchor, positive, negative)
    local o = read(who, opts, { "distance_function", "margin", "swap", "reduction" })
    local d = o.distance_function or T.pairwise_distance
    local near, far = d(anchor, positive), d(anchor, negative)
    if o.swap then far = T.minimum(far, d(positive, negative)) end
    return reduced(who, ((o.margin or 1.0) + near - far):relu(), o.reduction)
  end

  -- ---- likelihoods -------------------------------------------------------------------------------------

  --- Gaussian: ½ (log v + (x - y)²/v), v = max(var, eps); eps does not stop the gradient to var. `full` adds ½
  -- log 2π. var has the input's shape, or lacks its last dimension, or has size 1 where the input has more.
  function F.gaussian_nll_loss(x, y, var, opts)
    local who = "gaussian_nll_loss"
    tensors(who, x, y, var)
    local o = read(who, opts, { "full", "eps", "reduction" })
    local xs, vs = x:shape(), var:shape()
    local lacks, fits = #vs == #xs - 1, #vs == #xs
    for d = 1, #vs do
      if vs[d] ~= xs[d] then
        lacks = false
        fits = fits and vs[d] == 1
      end
    end
    if lacks and not (#vs == 0 and #xs == 0) then
      var = var:unsqueeze(-1)
    elseif not fits then
      fail("%s: var is %s, which does not fit the input %s", who, describe(var), describe(x))
    end
    local known = not T.core.is_symbolic(var) -- a graph has no values to look at
    if known and T.no_grad(function() return var:lt(0):any():item() end) then
      fail("%s: var has negative entries", who)
    end
    local eps = o.eps or 1e-6
    local v = T.no_grad(function() return var:clamp { min = eps } - var end) + var
    local loss = (v:log() + (x - y):square() / v) * 0.5
    if o.full then loss = loss + 0.5 * math.log(2 * math.pi) end
    return reduced(who, loss, o.reduction)
  end

  --- Poisson: exp(x) - y x, or with log_input=false x - y log(x + eps); `full` adds Stirling's term for y > 1.
  function F.poisson_nll_loss(x, y, opts)
    local who = "poisson_nll_loss"
    tensors(who, x, y)
    local o = read(who, opts, { "log_input", "full", "eps", "reduction" })
    local loss
    if o.log_input ~= false then loss = x:exp() - y * x else loss = x - y * (x + (o.eps or 1e-8)):log() end
    if o.full then
      local s = y * y:log() - y + 0.5 * (y * (2 * math.pi)):log()
      loss = loss + s:masked_fill(y:le(1), 0)
    end
    return reduced(who, loss, o.reduction)
  end

  -- ---- classes and labels ------------------------------------------------------------------------------

  local function integers(who, t)
    local d = t:dtype()
    if d:sub(1, 1) == "f" or d == "bf16" or d == "bool" then
      fail("%s: targets are class numbers (i64), got %s", who, describe(t))
    end
  end

  -- x as [N, C], whether it was one row
  local function rows(who, x)
    if x:dim() > 2 or (x:dim() > 0 and x:size(-1) == 0) then
      fail("%s: scores [N,C] or [C] with C > 0 are wanted, got %s", who, describe(x))
    end
    if x:dim() == 2 then return x, false end
    return x:reshape(1, x:numel()), true
  end

  --- (1/C) Σ_{j≠y} w_y max(0, margin - x_y + x_j)^p; x [N, C] or [C], y class numbers. Options
  -- `p=1 margin=1 weight reduction index_base=1`.
  function F.multi_margin_loss(x, y, weight, opts)
    local who = "multi_margin_loss"
    if opts == nil and not T.is_tensor(weight) then weight, opts = nil, weight end
    tensors(who, x, y)
    local o = read(who, opts, { "p", "margin", "weight", "reduction", "index_base" })
    weight = weight or o.weight
    if weight ~= nil then tensors(who, x, y, weight) end
    local p, margin = o.p or 1, o.margin or 1.0
    if p ~= 1 and p ~= 2 then fail("%s: p must be 1 or 2, got %s", who, describe(p)) end
    local r, single = rows(who, x)
    local n, c = r:size(1), r:size(2)
    if y:numel() ~= n or y:dim() > 1 then fail("%s: targets %s do not fit %s", who, describe(y), describe(x)) end
    if weight and (weight:dim() ~= 1 or weight:size(1) ~= c) then
      fail("%s: weight must have one entry for each of %d classes, got %s", who, c, describe(weight))
    end
    integers(who, y)
    local base = { index_base = o.index_base or 1 }
    local at = y:reshape(n, 1)
    local own = T.gather(r, at, { dim = 2, index_base = base.index_base })
    local z = (margin - own + r):relu()
    if p == 2 then z = z * z end
    if weight then
      z = z * T.index_select(weight, y:reshape(n), { dim = 1, index_base = base.index_base }):unsqueeze(2)
    end
    local other = T.one_hot(y:reshape(n), { num_classes = c, index_base = base.index_base }):eq(0):to(z:dtype())
    local loss = (z * other):sum(-1) / c
    if single and o.reduction == "none" then loss = loss:reshape(y:shape()) end
    return reduced(who, loss, o.reduction)
  end

  --- (1/C) Σ over labels j of the row, Σ over classes i that are none: max(0, 1 - x_j + x_i). y [N, C] or [C]
  -- lists the labels, up to the first entry below index_base.
  function F.multilabel_margin_loss(x, y, opts)
    local who = "multilabel_margin_loss"
    tensors(who, x, y)
    local o = read(who, opts, { "reduction", "index_base" })
    local r, single = rows(who, x)
    local same = y:dim() == x:dim()
    for d = 1, same and x:dim() or 0 do same = same and x:size(d) == y:size(d) end
    if not same then fail("%s: targets %s do not have the shape of %s", who, describe(y), describe(x)) end
    integers(who, y)
    local c, base = r:size(2), o.index_base or 1
    local t = y:reshape(r:shape())
    local valid = t:ge(base):to("i64"):cumprod(2)
    local at = T.where(valid:bool(), t, T.full_like(t, base))
    local label = (T.one_hot(at, { num_classes = c, index_base = base }) * valid:unsqueeze(3)):amax(2)
    local own = T.gather(r, at, { dim = 2, index_base = base })
    local pairs_ = valid:unsqueeze(3) * (1 - label):unsqueeze(2)
    local z = (1 - own:unsqueeze(3) + r:unsqueeze(2)):relu() * pairs_:to(r:dtype())
    local loss = z:sum { dim = { 2, 3 } } / c
    if single then loss = loss:reshape {} end
    return reduced(who, loss, o.reduction)
  end

  --- The mean over classes of -w (y log σ(x) + (1 - y) log σ(-x)). Also (x, y, weight, opts).
  function F.multilabel_soft_margin_loss(x, y, weight, opts)
    local who = "multilabel_soft_margin_loss"
    tensors(who, x, y)
    if weight ~= nil and not T.is_tensor(weight) then weight, opts = nil, weight end
    local o = read(who, opts, { "weight", "reduction" })
    weight = weight or o.weight
    local loss = -(y * T.logsigmoid(x) + (1 - y) * T.logsigmoid(-x))
    if weight then loss = loss * weight end
    return reduced(who, loss:dim() > 0 and loss:mean(-1) or loss, o.reduction)
  end

  -- Targets as i64 [N, S]: given so, or one after the other in one list with lengths [N].
  local function target_rows(who, targets, lengths)
    if targets:dim() == 2 then return targets:long():contiguous() end
    if targets:dim() ~= 1 then
      fail("%s: targets [N,S] or all in one list are wanted, got %s", who, describe(targets))
    end
    local each, total, most = lengths:totable(), 0, 0
    for _, n in ipairs(each) do
      if n < 0 then fail("%s: target length %d is negative", who, n) end
      total, most = total + n, math.max(most, n)
    end
    if total ~= targets:numel() then
      fail("%s: target lengths add up to %d, but there are %d targets", who, total, targets:numel())
    end
    local out, at = {}, 1
    for i, n in ipairs(each) do
      out[i] = targets:long():narrow(1, at <= total and at or 1, n):pad { 0, most - n }
      at = at + n
    end
    return T.stack(out, 1)
  end

  --- Connectionist temporal classification (Graves et al. 2006): log_probs [T, N, C] (log_softmax over the
  -- classes; or [T, C]), targets [N, S] or in one list, lengths [N] (tensors or lists). "mean" divides each
  -- loss by its target's length first. Options `blank` (the first class) `reduction zero_infinity=false
  -- index_base=1`.
  function F.ctc_loss(log_probs, targets, input_lengths, target_lengths, opts)
    local who = "ctc_loss"
    tensors(who, log_probs, targets)
    local o = read(who, opts, { "blank", "reduction", "zero_infinity", "index_base" })
    local base = o.index_base or 1
    local function lengths(v)
      if type(v) == "number" then v = { v } end
      return (T.is_tensor(v) and v or T.tensor(v, { dtype = "i64" })):long():reshape(-1)
    end
    input_lengths, target_lengths = lengths(input_lengths), lengths(target_lengths)
    local single = log_probs:dim() == 2
    if single then
      log_probs = log_probs:unsqueeze(2)
      if targets:dim() == 1 then targets = targets:unsqueeze(1) end
    end
    local dtype = log_probs:dtype()
    if dtype == "f16" or dtype == "bf16" then log_probs = log_probs:float() end
    local loss = T.ctc_nll(log_probs, target_rows(who, targets, target_lengths), input_lengths, target_lengths,
      { blank = o.blank or base, index_base = base })
    if o.zero_infinity then loss = loss:masked_fill(loss:isinf(), 0) end
    if o.reduction == nil or o.reduction == "mean" then
      loss = loss / target_lengths:clamp({ min = 1 }):to(loss:dtype())
    end
    if single and o.reduction == "none" then loss = loss:squeeze(1) end
    return reduced(who, loss, o.reduction):to(dtype)
  end

  -- ---- normalization -----------------------------------------------------------------------------------

  --- x / (k + alpha · mean of x² over `size` neighbouring channels)^beta (Krizhevsky et al. 2012); x [N, C, *].
  function F.local_response_norm(x, size, opts)
    local who = "local_response_norm"
    tensors(who, x)
    if type(size) == "table" then size, opts = nil, size end
    local o = options.check(who, opts, { "size", "alpha", "beta", "k" })
    size = options.integer(size or o.size)
    if not size or size < 1 then fail("%s: size must be a positive integer", who) end
    if x:dim() < 3 then fail("%s: needs at least three dimensions, got %s", who, describe(x)) end
    if x:numel() == 0 then return x end
    local s = x:shape()
    local sq = (x * x):reshape(s[1], 1, s[2], -1):pad { 0, 0, size // 2, (size - 1) // 2 }
    local near = T.avg_pool2d(sq, { kernel_size = { size, 1 }, stride = { 1, 1 } }):reshape(s)
    return x / (near * (o.alpha or 1e-4) + (o.k or 1.0)) ^ (o.beta or 0.75)
  end

  -- Statistics of instances: the running ones move towards the mean over the batch.
  local function instance_statistics(x, mean, var, momentum)
    local _ <close> = T.no_grad()
    local n, c = x:size(1), x:size(2)
    local flat = x:detach():reshape(n, c, -1)
    if mean then running_update(mean, flat:mean(3):mean(1), { momentum = momentum }) end
    if var then running_update(var, flat:var(3):mean(1), { momentum = momentum }) end
  end

  --- Each channel of each sample normalized by its own mean and variance (Ulyanov et al. 2016), x [N, C, *];
  -- `use_input_stats=false`: by the running statistics. Options `running_mean running_var weight bias
  -- use_input_stats=true momentum=0.1 eps=1e-5`.
  function F.instance_norm(x, opts)
    local who = "instance_norm"
    tensors(who, x)
    local o = options.check(who, opts, { "running_mean", "running_var", "weight", "bias", "use_input_stats",
      "momentum", "eps" })
    if x:dim() < 2 then fail("%s: x [N, C, *] is wanted, got %s", who, describe(x)) end
    if o.use_input_stats == false then
      if not (o.running_mean and o.running_var) then fail("%s: running statistics are missing", who) end
      return F.batch_norm(x, o.running_mean, o.running_var, o.weight, o.bias, false, 0.0, o.eps)
    end
    local per = x:size(1) * x:size(2)
    if x:numel() > 0 and x:numel() == per then
      fail("%s: more than one value a channel is needed, got %s", who, describe(x))
    end
    if o.running_mean or o.running_var then
      instance_statistics(x, o.running_mean, o.running_var, o.momentum or 0.1)
    end
    return F.group_norm(x, x:size(2), o.weight, o.bias, o.eps)
  end

  -- ---- sampling ----------------------------------------------------------------------------------------

  --- Softmax of (x + Gumbel noise)/tau along dim (Jang et al. 2017). `hard`: one-hot forward, with the soft one's
  -- gradient. Options `tau=1 hard=false dim=-1`.
  function F.gumbel_softmax(x, opts)
    tensors("gumbel_softmax", x)
    if type(opts) == "number" then opts = { tau = opts } end
    local o = options.check("gumbel_softmax", opts, { "tau", "hard", "dim" })
    local tau, dim = o.tau or 1, o.dim or -1
    if type(tau) ~= "number" or tau ~= tau or tau <= 0 then
      fail("gumbel_softmax: tau must be a positive number, got %s", describe(tau))
    end
    -- -log E has a Gumbel distribution if E has an exponential one
    local noise = -T.empty_like(x):exponential_():log()
    local soft = T.softmax((x + noise) / tau, dim)
    if not o.hard then return soft end
    local where = soft:detach():argmax(dim, { keepdim = true })
    local one = T.scatter(T.zeros_like(soft:detach()), dim, where, 1)
    return one - soft:detach() + soft
  end

  -- ---- pooling by powers -------------------------------------------------------------------------------

  for nd = 1, 3 do
    local who, avg = ("lp_pool%dd"):format(nd), T[("avg_pool%dd"):format(nd)]
    --- (Σ over the window of x^p)^(1/p). Options `norm_type kernel_size stride ceil_mode=false`.
    F[who] = function(x, ...)
      tensors(who, x)
      local a = { ... }
      local o = type(a[#a]) == "table" and a[#a][1] == nil and table.remove(a) or {}
      options.check(who, o, { "norm_type", "kernel_size", "stride", "ceil_mode" })
      local p, kernel, stride = o.norm_type or a[1], o.kernel_size or a[2], o.stride or a[3]
      if type(p) ~= "number" or p == 0 then fail("%s: norm_type must be a number, not 0", who) end
      if kernel == nil then fail("%s: kernel_size is missing", who) end
      local count = 1
      for d = 1, nd do count = count * (type(kernel) == "table" and (kernel[d] or kernel[1]) or kernel) end
      local y = avg(x ^ p, { kernel_size = kernel, stride = stride, ceil_mode = o.ceil_mode or false })
      return ((y:sign() * y:abs():relu()) * count) ^ (1 / p)
    end
  end
end
