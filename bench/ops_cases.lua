-- SPDX-License-Identifier: MIT
-- The cases of bench/ops.lua, layers here, the rest in ops_cases_tensors.lua and ops_cases_grid.lua: { name, inputs,
-- ours, PyTorch's expression; grad = forward and backward, setup = `ours` makes the call and the expression has its
-- setup before ";;" }. Inputs: `name kind sizes`, kinds as in ops_peer.py.

local here = debug.getinfo(1, "S").source:match("^@(.*)ops_cases%.lua$") or "./"

return function(T)
  local F = T.nn.F
  local all = {}
  local function case(name, inputs, ours, peers, more)
    local row = { name, inputs, ours, peers }
    for k, v in pairs(more or {}) do row[k] = v end
    all[#all + 1] = row
  end
  local function both(name, inputs, ours, peers)
    case(name, inputs, ours, peers)
    case(name .. " +bwd", inputs, ours, peers, { grad = true })
  end
  dofile(here .. "ops_cases_tensors.lua")(T, case, both)
  dofile(here .. "ops_cases_grid.lua")(T, case, both)
  dofile(here .. "ops_cases_shapes.lua")(T, case)
  local zero = { index_base = 0 }

  -- ---- pooling -------------------------------------------------------------------------------------
  both("max_pool2d k2", "x 32,64,28,28", function(x) return F.max_pool2d(x, 2) end, "F.max_pool2d(x, 2)")
  both("max_pool2d k3 s2 p1", "x 8,64,56,56", function(x)
    return F.max_pool2d(x, 3, { stride = 2, padding = 1 })
  end, "F.max_pool2d(x, 3, 2, 1)")
  both("max_pool2d k3 s1 p1", "x 8,64,28,28", function(x)
    return F.max_pool2d(x, 3, { stride = 1, padding = 1 })
  end, "F.max_pool2d(x, 3, 1, 1)")
  both("avg_pool2d k2", "x 32,64,28,28", function(x) return F.avg_pool2d(x, 2) end, "F.avg_pool2d(x, 2)")
  both("avg_pool2d k3 s2 p1", "x 8,64,56,56", function(x)
    return F.avg_pool2d(x, 3, { stride = 2, padding = 1 })
  end, "F.avg_pool2d(x, 3, 2, 1)")
  both("adaptive_avg_pool2d 7", "x 16,128,28,28", function(x) return F.adaptive_avg_pool2d(x, 7) end,
    "F.adaptive_avg_pool2d(x, 7)")
  both("adaptive_avg_pool2d 1", "x 16,256,14,14", function(x) return F.adaptive_avg_pool2d(x, 1) end,
    "F.adaptive_avg_pool2d(x, 1)")
  both("adaptive_max_pool2d 5", "x 16,64,28,28", function(x) return F.adaptive_max_pool2d(x, 5) end,
    "F.adaptive_max_pool2d(x, 5)")
  both("max_pool1d k3 s2", "x 32,64,512", function(x) return F.max_pool1d(x, 3, { stride = 2 }) end,
    "F.max_pool1d(x, 3, 2)")
  both("max_pool3d k2", "x 2,32,16,32,32", function(x) return F.max_pool3d(x, 2) end, "F.max_pool3d(x, 2)")
  both("avg_pool3d k2", "x 2,32,16,32,32", function(x) return F.avg_pool3d(x, 2) end, "F.avg_pool3d(x, 2)")
  case("max_pool2d k3 s2 bf16", "x bf16 8,64,56,56", function(x)
    return F.max_pool2d(x, 3, { stride = 2, padding = 1 })
  end, "F.max_pool2d(x, 3, 2, 1)")

  -- ---- convolution ---------------------------------------------------------------------------------
  local function conv(name, inputs, opts, peers, which)
    both(name, inputs, function(x, w) return F[which or "conv2d"](x, w, opts) end, peers)
  end
  conv("conv2d 1x1", "x 8,64,28,28; w 128,64,1,1", {}, "F.conv2d(x, w)")
  conv("conv2d 3x3", "x 8,64,28,28; w 64,64,3,3", { padding = 1 }, "F.conv2d(x, w, padding=1)")
  conv("conv2d 3x3 s2", "x 8,64,28,28; w 128,64,3,3", { stride = 2, padding = 1 },
    "F.conv2d(x, w, stride=2, padding=1)")
  conv("conv2d 5x5", "x 8,32,28,28; w 64,32,5,5", { padding = 2 }, "F.conv2d(x, w, padding=2)")
  conv("conv2d 7x7 s2", "x 2,3,224,224; w 64,3,7,7", { stride = 2, padding = 3 },
    "F.conv2d(x, w, stride=2, padding=3)")
  conv("conv2d depthwise", "x 8,128,28,28; w 128,1,3,3", { padding = 1, groups = 128 },
    "F.conv2d(x, w, padding=1, groups=128)")
  conv("conv2d groups 4", "x 8,64,28,28; w 64,16,3,3", { padding = 1, groups = 4 },
    "F.conv2d(x, w, padding=1, groups=4)")
  conv("conv2d dilated", "x 8,64,28,28; w 64,64,3,3", { padding = 2, dilation = 2 },
    "F.conv2d(x, w, padding=2, dilation=2)")
  conv("conv2d batch 1", "x 1,64,56,56; w 64,64,3,3", { padding = 1 }, "F.conv2d(x, w, padding=1)")
  conv("conv1d k3", "x 16,64,256; w 128,64,3", { padding = 1 }, "F.conv1d(x, w, padding=1)", "conv1d")
  conv("conv3d 3x3x3", "x 2,16,16,28,28; w 32,16,3,3,3", { padding = 1 }, "F.conv3d(x, w, padding=1)", "conv3d")
  conv("conv_transpose2d k4 s2", "x 8,64,14,14; w 64,32,4,4", { stride = 2, padding = 1 },
    "F.conv_transpose2d(x, w, stride=2, padding=1)", "conv_transpose2d")

  -- ---- resizing ------------------------------------------------------------------------------------
  both("interpolate nearest x2", "x 8,32,28,28", function(x)
    return F.interpolate(x, { scale_factor = 2, mode = "nearest" })
  end, "F.interpolate(x, scale_factor=2, mode='nearest')")
  both("interpolate bilinear x2", "x 8,32,28,28", function(x)
    return F.interpolate(x, { scale_factor = 2, mode = "bilinear" })
  end, "F.interpolate(x, scale_factor=2, mode='bilinear')")
  both("interpolate bicubic x2", "x 4,16,28,28", function(x)
    return F.interpolate(x, { scale_factor = 2, mode = "bicubic" })
  end, "F.interpolate(x, scale_factor=2, mode='bicubic')")
  both("pixel_shuffle", "x 8,64,28,28", function(x) return F.pixel_shuffle(x, 2) end, "F.pixel_shuffle(x, 2)")
  both("grid_sample", "x 4,16,32,32; g uniform 4,32,32,2", function(x, g)
    return F.grid_sample(x, g, { align_corners = false })
  end, "F.grid_sample(x, g, align_corners=False)")

  -- ---- normalization -------------------------------------------------------------------------------
  both("batch_norm train", "x 16,64,28,28; w 64; b 64", function(x, w, b)
    return (F.batch_norm(x, nil, nil, w, b, { training = true }))
  end, "F.batch_norm(x, None, None, w, b, True)")
  both("batch_norm eval", "x 16,64,28,28; w 64; m 64; v uniform 64", function(x, w, m, v)
    return (F.batch_norm(x, m:detach(), v:detach(), w, nil))
  end, "F.batch_norm(x, m.detach(), v.detach(), w)")
  both("batch_norm 1d", "x 256,512; w 512; b 512", function(x, w, b)
    return (F.batch_norm(x, nil, nil, w, b, { training = true }))
  end, "F.batch_norm(x, None, None, w, b, True)")
  both("group_norm 8", "x 16,64,28,28; w 64; b 64", function(x, w, b) return F.group_norm(x, 8, w, b) end,
    "F.group_norm(x, 8, w, b)")
  both("instance_norm", "x 16,64,28,28", function(x) return F.instance_norm(x) end, "F.instance_norm(x)")
  both("layer_norm 768", "x 1024,768; w 768; b 768", function(x, w, b) return F.layer_norm(x, { 768 }, w, b) end,
    "F.layer_norm(x, (768,), w, b)")
  both("layer_norm 64", "x 8192,64; w 64; b 64", function(x, w, b) return F.layer_norm(x, { 64 }, w, b) end,
    "F.layer_norm(x, (64,), w, b)")
  both("rms_norm 768", "x 1024,768; w 768", function(x, w) return F.rms_norm(x, { 768 }, w) end,
    "F.rms_norm(x, (768,), w)")
  both("normalize", "x 1024,512", function(x) return F.normalize(x, { dim = -1 }) end, "F.normalize(x, dim=-1)")

  -- ---- softmax -------------------------------------------------------------------------------------
  both("softmax dim -1", "x 1024,1000", function(x) return x:softmax(-1) end, "x.softmax(-1)")
  both("softmax dim 0", "x 1000,1024", function(x) return x:softmax(1) end, "x.softmax(0)")
  both("softmax dim 1 of 3", "x 16,256,256", function(x) return x:softmax(2) end, "x.softmax(1)")
  both("softmax rows of 10", "x 20000,10", function(x) return x:softmax(-1) end, "x.softmax(-1)")
  both("log_softmax", "x 1024,1000", function(x) return x:log_softmax(-1) end, "x.log_softmax(-1)")
  both("log_softmax channels", "x 8,20,64,64", function(x) return x:log_softmax(2) end, "x.log_softmax(1)")

  -- ---- reductions ----------------------------------------------------------------------------------
  local M3 = "x 64,128,128"
  for _, f in ipairs { "sum", "mean", "var", "amax", "logsumexp", "norm", "prod" } do
    for dim = 1, 3 do
      case(("%s dim %d"):format(f, dim - 1), M3, function(x) return x[f](x, { dim = dim }) end,
        ("x.%s(dim=%d)"):format(f, dim - 1))
    end
  end
  case("sum all", M3, function(x) return x:sum() end, "x.sum()")
  case("mean all", M3, function(x) return x:mean() end, "x.mean()")
  case("max all", M3, function(x) return x:max() end, "x.max()")
  case("norm all", M3, function(x) return x:norm() end, "x.norm()")
  case("std all", M3, function(x) return x:std() end, "x.std()")
  case("sum dims 0,2", M3, function(x) return x:sum { dim = { 1, 3 } } end, "x.sum((0, 2))")
  case("sum bf16", "x bf16 1024,1024", function(x) return x:sum(-1) end, "x.sum(-1)")
  case("sum i64", "x i64<100 1024,1024", function(x) return x:sum() end, "x.sum()")
  case("sum bool", "x bool 1024,1024", function(x) return x:sum() end, "x.sum()")
  case("sum transposed", "x 1024,1024", function(x) return x:t():sum(1) end, "x.t().sum(0)")
  for dim = 1, 3 do
    case(("argmax dim %d"):format(dim - 1), M3, function(x) return x:argmax(dim) end, ("x.argmax(%d)"):format(dim - 1))
    case(("max dim %d"):format(dim - 1), M3, function(x) return x:max(dim) end, ("x.max(%d)"):format(dim - 1))
  end
  case("argmax rows of 10", "x 20000,10", function(x) return x:argmax(-1) end, "x.argmax(-1)")
  for dim = 1, 2 do
    case(("any dim %d"):format(dim - 1), "x bool 1024,1024", function(x) return x:any(dim) end,
      ("x.any(%d)"):format(dim - 1))
    case(("cumsum dim %d"):format(dim - 1), "x 1024,1024", function(x) return x:cumsum(dim) end,
      ("x.cumsum(%d)"):format(dim - 1))
    case(("cumprod dim %d"):format(dim - 1), "x 1024,1024", function(x) return x:cumprod(dim) end,
      ("x.cumprod(%d)"):format(dim - 1))
  end
  case("cummax", "x 1024,1024", function(x) return x:cummax(2) end, "x.cummax(1)")
  case("logcumsumexp", "x 512,512", function(x) return x:logcumsumexp(2) end, "x.logcumsumexp(1)")
  case("count_nonzero", "x 1024,1024", function(x) return x:count_nonzero() end, "x.count_nonzero()")
  both("var rows", "x 1024,1024", function(x) return x:var(-1) end, "x.var(-1)")
  both("max rows", "x 1024,1024", function(x) return (x:max(-1)) end, "x.max(-1)[0]")
  both("cumsum rows", "x 1024,1024", function(x) return x:cumsum(-1) end, "x.cumsum(-1)")

  -- ---- attention, losses ---------------------------------------------------------------------------
  both("attention", "q 4,8,128,64; k 4,8,128,64; v 4,8,128,64", function(q, k, v)
    return F.scaled_dot_product_attention(q, k, v)
  end, "F.scaled_dot_product_attention(q, k, v)")
  both("attention causal", "q 2,8,256,64; k 2,8,256,64; v 2,8,256,64", function(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, { is_causal = true })
  end, "F.scaled_dot_product_attention(q, k, v, is_causal=True)")
  both("attention mask", "q 4,8,128,64; k 4,8,128,64; v 4,8,128,64; m bool 4,1,128,128", function(q, k, v, m)
    return F.scaled_dot_product_attention(q, k, v, m)
  end, "F.scaled_dot_product_attention(q, k, v, m)")
  case("attention one query", "q 4,8,1,64; k 4,8,512,64; v 4,8,512,64", function(q, k, v)
    return F.scaled_dot_product_attention(q, k, v)
  end, "F.scaled_dot_product_attention(q, k, v)")
  both("cross_entropy 1000", "x 512,1000; i i64<1000 512", function(x, i)
    return F.cross_entropy(x, i, zero)
  end, "F.cross_entropy(x, i)")
  both("cross_entropy channels", "x 4,20,64,64; i i64<20 4,64,64", function(x, i)
    return F.cross_entropy(x, i, zero)
  end, "F.cross_entropy(x, i)")
  both("nll_loss", "x 512,1000; i i64<1000 512", function(x, i) return F.nll_loss(x, i, zero) end, "F.nll_loss(x, i)")
  for _, f in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss" } do
    both(f, "x 1000,500; y 1000,500", function(x, y) return F[f](x, y) end, ("F.%s(x, y)"):format(f))
  end
  both("bce with logits", "x 1000,500; y uniform 1000,500", function(x, y)
    return F.binary_cross_entropy_with_logits(x, y:detach())
  end, "F.binary_cross_entropy_with_logits(x, y.detach())")
  both("kl_div", "x 1000,500; y uniform 1000,500", function(x, y)
    return F.kl_div(x, y:detach(), { reduction = "batchmean" })
  end, "F.kl_div(x, y.detach(), reduction='batchmean')")
  both("cosine_similarity", "x 1000,500; y 1000,500", function(x, y) return F.cosine_similarity(x, y) end,
    "F.cosine_similarity(x, y)")
  return all
end
