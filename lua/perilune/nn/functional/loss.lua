-- SPDX-License-Identifier: MIT
--- Losses made of other ops: over pairs, triplets, likelihoods, classes and labels; CTC; cosine_similarity.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"
local values = require "perilune.values"

local fail, describe = options.fail, options.describe
local core = T.core

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

  -- ---- elementwise ------------------------------------------------------------------------------------------

  -- [N, 1] beside [N] would be compared as [N, N]: hardly what is meant, and it shows in nothing but the results. Told
  -- once for each function, on standard error.
  local told = {}
  for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss" } do
    local loss = T[name]
    F[name] = function(x, y, ...)
      -- (in a trace sizes are not looked at: they may be others later)
      if not told[name] and not core.jit_tracing() and core.is_tensor(x) and core.is_tensor(y) and (x:dim() ~= y:dim()
        or x:numel() ~= y:numel()) then
        local ok, shape = pcall(T.broadcast_shapes, x:shape(), y:shape())
        if ok and y:numel() > 1 then
          told[name] = true
          io.stderr:write(("warning: %s: %s and the target %s are compared as [%s]; give them one shape\n"):format(
            options.here(name), x:describe(), y:describe(), table.concat(shape, ",")))
        end
      end
      return loss(x, y, ...)
    end
  end

  -- ---- pairs and triplets ------------------------------------------------------------------------------

  --- nn.F.cosine_similarity(x, y, {dim=2, eps=1e-8}) → tensor
  -- x·y / max(‖x‖ ‖y‖, eps) along dim.
  --   print(nn.F.cosine_similarity(T.tensor { { 1, 0 } }, T.tensor { { 1, 1 } }))  --> {0.7071}  -- f32[1] cpu
  function F.cosine_similarity(x, y, opts)
    opts = options.check("cosine_similarity", opts, { "dim", "eps" })
    local dim, eps = opts.dim or 2, opts.eps or 1e-8
    if table.concat(x:shape(), ",") ~= table.concat(y:shape(), ",") then
      local shape = T.no_grad(function() return (x + y):shape() end)
      x, y = x:expand(shape), y:expand(shape)
    end
    -- The norm, and below eps that number with the norm's own slope, as in PyTorch: small vectors keep a gradient that
    -- turns them.
    local function length(v)
      local n = v:norm { dim = dim, keepdim = true }
      return n + (n:clamp { min = eps } - n):detach()
    end
    return (x / length(x) * (y / length(y))):sum(dim)
  end

  --- nn.F.margin_ranking_loss(x1, x2, y, {margin=0, reduction="mean"}) → tensor
  -- max(0, -y (x1 - x2) + margin).
  --   print(nn.F.margin_ranking_loss(T.tensor { 1 }, T.tensor { 3 }, T.tensor { 1 }))  --> 2.  -- f32[] cpu
  function F.margin_ranking_loss(x1, x2, y, opts)
    opts = options.check("margin_ranking_loss", opts, { "margin", "reduction" })
    return reduced("margin_ranking_loss", ((x2 - x1) * y + (opts.margin or 0)):relu(), opts.reduction)
  end

  --- nn.F.soft_margin_loss(x, y, {reduction="mean"}) → tensor
  -- log(1 + e^(-y x)), y -1 or 1.
  --   print(nn.F.soft_margin_loss(T.tensor { 1 }, T.tensor { 1 }))  --> 0.3133  -- f32[] cpu
  function F.soft_margin_loss(x, y, opts)
    opts = options.check("soft_margin_loss", opts, { "reduction" })
    return reduced("soft_margin_loss", -T.logsigmoid(y * x), opts.reduction)
  end

  --- nn.F.cosine_embedding_loss(x1, x2, y, {margin=0, reduction="mean"}) → tensor
  -- 1 - cos(x1, x2) where y is 1, max(0, cos - margin) where it is -1.
  --   print(nn.F.cosine_embedding_loss(T.tensor { { 1, 0 } }, T.tensor { { 0, 1 } }, T.tensor { 1 }))
  --   --> 1.  -- f32[] cpu
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

  --- nn.F.hinge_embedding_loss(x, y, {margin=1, reduction="mean"}) → tensor
  -- x where y is 1, max(0, margin - x) where it is -1.
  --   print(nn.F.hinge_embedding_loss(T.tensor { 0.5 }, T.tensor { -1 }))  --> 0.5000  -- f32[] cpu
  function F.hinge_embedding_loss(x, y, opts)
    tensors("hinge_embedding_loss", x, y)
    local o = read("hinge_embedding_loss", opts, { "margin", "reduction" })
    local far = ((o.margin or 1.0) - x):relu()
    local loss = T.where(y:ne(1), far, T.zeros_like(far)) + T.where(y:ne(-1), x, T.zeros_like(x))
    return reduced("hinge_embedding_loss", loss, o.reduction)
  end

  -- max(0, d(anchor, positive) - d(anchor, negative) + margin); d: pairwise_distance. With swap the negative's
  -- distance is the smaller of those to anchor and positive (Balntas et al. 2016).
  --- nn.F.triplet_margin_loss(anchor, positive, negative, {margin=1, p=2, eps=1e-6, swap=false, reduction="mean"}) →
  --   tensor
  -- max(0, d(a, p) - d(a, n) + margin).
  --   print(nn.F.triplet_margin_loss(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))  --> 0.  -- f32[] cpu
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

  --- nn.F.triplet_margin_with_distance_loss(anchor, positive, negative, {distance_function=, margin=1, swap=false,
  --   reduction="mean"}) → tensor
  -- triplet_margin_loss with a distance of one's own.
  --   print(nn.F.triplet_margin_with_distance_loss(T.zeros(1, 2), T.zeros(1, 2), T.tensor { { 3, 4 } }))
  --   --> 0.  -- f32[] cpu
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

  -- Gaussian: ½ (log v + (x - y)²/v), v = max(var, eps); eps does not stop the gradient to var. `full` adds ½
  -- log 2π. var has the input's shape, or lacks its last dimension, or has size 1 where the input has more.
  --- nn.F.gaussian_nll_loss(x, y, var, {full=false, eps=1e-6, reduction="mean"}) → tensor
  -- (log v + (x - y)²/v)/2 with v = max(var, eps); var may be a number.
  --   print(nn.F.gaussian_nll_loss(T.tensor { 0.0 }, T.tensor { 2.0 }, T.tensor { 1.0 }))  --> 2.  -- f32[] cpu
  function F.gaussian_nll_loss(x, y, var, opts)
    local who = "gaussian_nll_loss"
    if type(var) == "number" and T.is_tensor(x) then var = x:detach():new_full({}, var):expand(x:shape()) end
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
    if values.some(var, function(t) return t:lt(0) end) then fail("%s: var has negative entries", who) end
    local eps = o.eps or 1e-6
    local v = T.no_grad(function() return T.where(var:lt(eps), eps - var, 0) end) + var -- infinite ones stay
    local loss = (v:log() + (x - y):square() / v) * 0.5
    if o.full then loss = loss + 0.5 * math.log(2 * math.pi) end
    return reduced(who, loss, o.reduction)
  end

  -- Poisson: exp(x) - y x, or with log_input=false x - y log(x + eps); `full` adds Stirling's term for y > 1.
  --- nn.F.poisson_nll_loss(x, y, {log_input=true, full=false, eps=1e-8, reduction="mean"}) → tensor
  -- e^x - y x, or x - y log(x + eps) without log_input.
  --   print(nn.F.poisson_nll_loss(T.tensor { 0 }, T.tensor { 1 }))  --> 1.  -- f32[] cpu
  function F.poisson_nll_loss(x, y, opts)
    local who = "poisson_nll_loss"
    tensors(who, x, y)
    local o = read(who, opts, { "log_input", "full", "eps", "reduction" })
    local loss
    if o.log_input ~= false then loss = x:exp() - y * x else loss = x - y * (x + (o.eps or 1e-8)):log() end
    if o.full then
      local few = y:le(1)
      local n = T.where(few, 1, y) -- no logarithm of 0, whose slope is infinite, behind the mask
      loss = loss + (n * n:log() - n + 0.5 * (n * (2 * math.pi)):log()):masked_fill(few, 0)
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

  -- (1/C) Σ_{j≠y} w_y max(0, margin - x_y + x_j)^p; x [N, C] or [C], y class numbers. Options
  -- `p=1 margin=1 weight reduction index_base=1`.
  --- nn.F.multi_margin_loss(x, y, {p=1, margin=1, weight=, reduction="mean"}) → tensor
  -- The mean over other classes of max(0, margin - x[y] + x[i])^p.
  --   print(nn.F.multi_margin_loss(T.tensor { { 1, 0.5 } }, T.tensor({ 1 }, { dtype = "i64" })))
  --   --> 0.2500  -- f32[] cpu
  function F.multi_margin_loss(x, y, weight, opts)
    local who = "multi_margin_loss"
    if opts == nil and not T.is_tensor(weight) then weight, opts = nil, weight end
    tensors(who, x, y)
    local o = read(who, opts, { "p", "margin", "weight", "reduction", "index_base" })
    weight = options.once(who, "weight", weight, o)
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
    local other = T.one_hot(y:reshape(n), { num_classes = c, index_base = base.index_base }):eq(0)
    local z = T.where(other, margin - own + r, 0):relu() -- its own is left out before: infinite, it would be inf - inf
    if p == 2 then z = z * z end
    if weight then
      z = z * T.index_select(weight, y:reshape(n), { dim = 1, index_base = base.index_base }):unsqueeze(2)
    end
    local loss = z:sum(-1) / c
    if single and o.reduction == "none" then loss = loss:reshape(y:shape()) end
    return reduced(who, loss, o.reduction)
  end

  -- (1/C) Σ over labels j of the row, Σ over classes i that are none: max(0, 1 - x_j + x_i). y [N, C] or [C]
  -- lists the labels, up to the first entry below index_base.
  --- nn.F.multilabel_margin_loss(x, y, {reduction="mean"}) → tensor
  -- The hinge between each of a sample's classes and each of the others.
  --   print(nn.F.multilabel_margin_loss(T.tensor { { 1, 0.5 } }, T.tensor({ { 1, 0 } }, { dtype = "i64" })))
  --   --> 0.2500  -- f32[] cpu
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
    local valid = t:lt(base):to("i64"):cumsum(2):eq(0):to("i64") -- up to the first that is no class
    local at = T.where(valid:bool(), t, T.full_like(t, base))
    local label = (T.one_hot(at, { num_classes = c, index_base = base }) * valid:unsqueeze(3)):amax(2)
    local own = T.gather(r, at, { dim = 2, index_base = base })
    local pairs_ = valid:unsqueeze(3) * (1 - label):unsqueeze(2)
    local z = (1 - own:unsqueeze(3) + r:unsqueeze(2)):relu() * pairs_:to(r:dtype())
    local loss = z:sum { dim = { 2, 3 } } / c
    if single then loss = loss:reshape {} end
    return reduced(who, loss, o.reduction)
  end

  --- nn.F.multilabel_soft_margin_loss(x, y, weight, {reduction="mean"}) → tensor
  -- The mean over classes of binary cross-entropy with logits.
  --   print(nn.F.multilabel_soft_margin_loss(T.tensor { { 0, 2 } }, T.tensor { { 1, 1 } }))  --> 0.4100  -- f32[] cpu
  function F.multilabel_soft_margin_loss(x, y, weight, opts)
    local who = "multilabel_soft_margin_loss"
    tensors(who, x, y)
    if weight ~= nil and not T.is_tensor(weight) then weight, opts = nil, weight end
    local o = read(who, opts, { "weight", "reduction" })
    weight = options.once(who, "weight", weight, o)
    local loss = -(y * T.logsigmoid(x) + (1 - y) * T.logsigmoid(-x))
    if weight then loss = loss * weight end
    return reduced(who, loss:dim() > 0 and loss:mean(-1) or loss, o.reduction)
  end

  -- Targets as i64 [N, S]: given so, or one after the other in one list with lengths: a tensor [N] or numbers.
  local function target_rows(who, targets, lengths)
    if targets:dim() == 2 then return targets:long():contiguous() end
    if targets:dim() ~= 1 then
      fail("%s: targets [N,S] or all in one list are wanted, got %s", who, describe(targets))
    end
    if T.is_tensor(lengths) and (T.core.is_symbolic(lengths) or T.core.jit_tracing()) then
      options.untraceable("%s: target lengths say where each sequence of the one list begins, and %s has no values "
        .. "while T.jit traces; give a list of numbers, n:totable(), or targets [N,S]", who, describe(lengths))
    end
    local each, total, most = T.is_tensor(lengths) and lengths:reshape(-1):totable() or lengths, 0, 0
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

  -- Connectionist temporal classification (Graves et al. 2006): log_probs [T, N, C] (log_softmax over the
  -- classes; or [T, C]), targets [N, S] or in one list, lengths [N] (tensors or lists). "mean" divides each
  -- loss by its target's length first. Options `blank` (the first class) `reduction zero_infinity=false
  -- index_base=1`.
  --- nn.F.ctc_loss(log_probs, targets, input_lengths, target_lengths, {blank=, reduction="mean",
  --   zero_infinity=false}) → tensor
  -- -log of the probability of all alignments of targets with log_probs [T, N, C] (Graves et al. 2006).
  --   local i64 = { dtype = "i64" }
  --   local logs = T.zeros(2, 1, 2):log_softmax(-1)
  --   print(nn.F.ctc_loss(logs, T.tensor({ { 2 } }, i64), T.tensor({ 2 }, i64), T.tensor({ 1 }, i64), { blank = 1 }))
  --   --> 0.2877  -- f32[] cpu
  function F.ctc_loss(log_probs, targets, input_lengths, target_lengths, opts)
    local who = "ctc_loss"
    tensors(who, log_probs, targets)
    local o = read(who, opts, { "blank", "reduction", "zero_infinity", "index_base" })
    local base = o.index_base or 1
    local function lengths(v) return (T.is_tensor(v) and v or T.tensor(v, { dtype = "i64" })):long():reshape(-1) end
    if type(input_lengths) == "number" then input_lengths = { input_lengths } end
    local given = type(target_lengths) == "number" and { target_lengths } or target_lengths
    input_lengths, target_lengths = lengths(input_lengths), lengths(given)
    local single = log_probs:dim() == 2
    if single then
      log_probs = log_probs:unsqueeze(2)
      if targets:dim() == 1 then targets = targets:unsqueeze(1) end
    end
    local dtype = log_probs:dtype()
    if dtype == "f16" or dtype == "bf16" then log_probs = log_probs:float() end
    local loss = T.ctc_nll(log_probs, target_rows(who, targets, given), input_lengths, target_lengths,
      { blank = o.blank or base, index_base = base })
    if o.zero_infinity then loss = loss:masked_fill(loss:isinf(), 0) end
    if o.reduction == nil or o.reduction == "mean" then
      loss = loss / target_lengths:clamp({ min = 1 }):to(loss:dtype())
    end
    if single and o.reduction == "none" then loss = loss:squeeze(1) end
    return reduced(who, loss, o.reduction):to(dtype)
  end
end
