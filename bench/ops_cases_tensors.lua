-- SPDX-License-Identifier: MIT
-- Cases of bench/ops.lua (see ops_cases.lua): order, indexing, moves, casts, products, elementwise, random numbers,
-- linear algebra, optimizers.

return function(T, case, both)
  local F, optim = T.nn.F, T.optim
  local zero = { index_base = 0 }

  -- ---- order ---------------------------------------------------------------------------------------
  case("sort rows", "x 1000,1000", function(x) return x:sort() end, "x.sort()")
  case("sort dim 0", "x 1000,1000", function(x) return x:sort(1) end, "x.sort(0)")
  case("sort 1e6", "x 1000000", function(x) return x:sort() end, "x.sort()")
  case("sort i64 1e6", "x i64<1000000 1000000", function(x) return x:sort() end, "x.sort()")
  case("argsort rows", "x 1000,1000", function(x) return x:argsort() end, "x.argsort()")
  case("topk 5 of 1000", "x 1000,1000", function(x) return x:topk(5) end, "x.topk(5)")
  case("topk 50 of 32000", "x 16,32000", function(x) return x:topk(50) end, "x.topk(50)")
  case("median rows", "x 1000,1000", function(x) return x:median(-1) end, "x.median(-1)")
  case("kthvalue", "x 1000,1000", function(x) return x:kthvalue(100) end, "x.kthvalue(100)")
  case("quantile", "x 100000", function(x) return x:quantile(0.9) end, "x.quantile(0.9)")
  case("unique", "x i64<1000 100000", function(x) return T.unique(x) end, "torch.unique(x)")
  case("unique inverse", "x i64<1000 100000", function(x) return T.unique(x, { return_inverse = true }) end,
    "torch.unique(x, return_inverse=True)")
  case("searchsorted", "s uniform 10000; x uniform 100000", function(s, x)
    s = s:sort()
    return function() local _ = T.searchsorted(s, x) end
  end, "s = s.sort()[0] ;; torch.searchsorted(s, x)", { setup = true })
  case("bincount", "x i64<1000 1000000", function(x) return T.bincount(x, zero) end, "torch.bincount(x)")
  case("histc", "x uniform 1000000", function(x) return x:histc(100, 0, 1) end, "x.histc(100, 0, 1)")
  case("isin", "x i64<10000 100000; y i64<10000 100", function(x, y) return T.isin(x, y) end, "torch.isin(x, y)")
  case("nonzero", "x bool 1000,1000", function(x) return x:nonzero() end, "x.nonzero()")
  both("masked_select", "x 1000,1000; m bool 1000,1000", function(x, m) return x:masked_select(m) end,
    "x.masked_select(m)")
  both("masked_fill", "x 1000,1000; m bool 1000,1000", function(x, m) return x:masked_fill(m, 0) end,
    "x.masked_fill(m, 0)")
  both("where", "x 1000,1000; y 1000,1000; m bool 1000,1000", function(x, y, m) return T.where(m, x, y) end,
    "torch.where(m, x, y)")

  -- ---- indexing ------------------------------------------------------------------------------------
  both("gather dim 1", "x 1000,1000; i i64<1000 1000,500", function(x, i)
    return x:gather(i, { dim = 2, index_base = 0 })
  end, "x.gather(1, i)")
  both("gather dim 0", "x 1000,1000; i i64<1000 500,1000", function(x, i)
    return x:gather(i, { dim = 1, index_base = 0 })
  end, "x.gather(0, i)")
  both("gather one of row", "x 1024,1000; i i64<1000 1024,1", function(x, i)
    return x:gather(i, { dim = 2, index_base = 0 })
  end, "x.gather(1, i)")
  both("take_along_dim", "x 1000,1000; i i64<1000 1000,500", function(x, i)
    return x:take_along_dim(i, { dim = 2, index_base = 0 })
  end, "x.take_along_dim(i, 1)")
  both("scatter", "x 1000,1000; i i64<1000 1000,500; y 1000,500", function(x, i, y)
    return x:scatter(i, y, { dim = 2, index_base = 0 })
  end, "x.scatter(1, i, y)")
  both("scatter_add", "x 1000,1000; i i64<1000 1000,500; y 1000,500", function(x, i, y)
    return x:scatter_add(i, y, { dim = 2, index_base = 0 })
  end, "x.scatter_add(1, i, y)")
  both("scatter_add rows", "x 1000,64; i i64<1000 10000,1; y 10000,64", function(x, i, y)
    return x:scatter_add(i:expand(10000, 64), y, { dim = 1, index_base = 0 })
  end, "x.scatter_add(0, i.expand(10000, 64), y)")
  both("index_select rows", "x 10000,128; i i64<10000 5000", function(x, i)
    return x:index_select(i, { dim = 1, index_base = 0 })
  end, "x.index_select(0, i)")
  both("index_select cols", "x 1000,1000; i i64<1000 500", function(x, i)
    return x:index_select(i, { dim = 2, index_base = 0 })
  end, "x.index_select(1, i)")
  case("index rows", "x 10000,128; i i64<9999 5000", function(x, i)
    i = i + 1
    return function() local _ = x[i] end
  end, "i = i + 1 ;; x[i]", { setup = true })
  both("index_add", "x 1000,128; i i64<1000 5000; y 5000,128", function(x, i, y)
    return x:index_add(i, y, { dim = 1, index_base = 0 })
  end, "x.index_add(0, i, y)")
  both("embedding", "w 30000,256; i i64<30000 32,128", function(w, i)
    return F.embedding(i, w, zero)
  end, "F.embedding(i, w)")
  both("embedding small", "w 100,64; i i64<100 64,128", function(w, i)
    return F.embedding(i, w, zero)
  end, "F.embedding(i, w)")
  case("one_hot", "i i64<100 10000", function(i) return T.one_hot(i, { num_classes = 100, index_base = 0 }) end,
    "F.one_hot(i, 100)")

  -- ---- joining, moving -----------------------------------------------------------------------------
  both("cat rows", "x 500,1000; y 500,1000", function(x, y) return T.cat({ x, y }, 1) end, "torch.cat([x, y], 0)")
  both("cat cols", "x 1000,500; y 1000,500", function(x, y) return T.cat({ x, y }, 2) end, "torch.cat([x, y], 1)")
  both("cat channels", "x 16,32,28,28; y 16,32,28,28", function(x, y) return T.cat({ x, y }, 2) end,
    "torch.cat([x, y], 1)")
  both("stack last", "x 1000,500; y 1000,500", function(x, y) return T.stack({ x, y }, -1) end,
    "torch.stack([x, y], -1)")
  case("clone", "x 1000,1000", function(x) return x:clone() end, "x.clone()")
  case("transpose copy", "x 1000,1000", function(x) return x:t():contiguous() end, "x.t().contiguous()")
  case("transpose copy f16", "x f16 1000,1000", function(x) return x:t():contiguous() end, "x.t().contiguous()")
  case("permute NCHW to NHWC", "x 16,64,28,28", function(x) return x:permute(1, 3, 4, 2):contiguous() end,
    "x.permute(0, 2, 3, 1).contiguous()")
  case("permute NHWC to NCHW", "x 16,28,28,64", function(x) return x:permute(1, 4, 2, 3):contiguous() end,
    "x.permute(0, 3, 1, 2).contiguous()")
  case("permute heads", "x 8,256,8,64", function(x) return x:permute(1, 3, 2, 4):contiguous() end,
    "x.permute(0, 2, 1, 3).contiguous()")
  case("slice copy", "x 1000,1000", function(x) return x:narrow(2, 101, 500):contiguous() end,
    "x.narrow(1, 100, 500).contiguous()")
  case("strided copy", "x 1000,2000", function(x) return x:unflatten(2, { 1000, 2 }):select(3, 1):contiguous() end,
    "x[:, ::2].contiguous()")
  case("flip rows", "x 1000,1000", function(x) return x:flip(1) end, "x.flip(0)")
  case("flip cols", "x 1000,1000", function(x) return x:flip(2) end, "x.flip(1)")
  case("roll", "x 1000,1000", function(x) return x:roll(3, 2) end, "x.roll(3, 1)")
  case("tril", "x 1000,1000", function(x) return x:tril() end, "x.tril()")
  case("repeat", "x 100,1000", function(x) return x:tile { 10, 1 } end, "x.repeat(10, 1)")
  case("repeat cols", "x 1000,100", function(x) return x:tile { 1, 10 } end, "x.repeat(1, 10)")
  case("repeat_interleave", "x 1000,100", function(x) return x:repeat_interleave(10, 2) end,
    "x.repeat_interleave(10, 1)")
  case("expand copy rows", "x 1000", function(x) return x:expand(1000, 1000):contiguous() end,
    "x.expand(1000, 1000).contiguous()")
  case("expand copy cols", "x 1000,1", function(x) return x:expand(1000, 1000):contiguous() end,
    "x.expand(1000, 1000).contiguous()")
  both("pad constant", "x 16,64,28,28", function(x) return F.pad(x, { 1, 1, 1, 1 }) end, "F.pad(x, (1, 1, 1, 1))")
  both("pad reflect", "x 16,64,28,28", function(x) return F.pad(x, { 1, 1, 1, 1 }, { mode = "reflect" }) end,
    "F.pad(x, (1, 1, 1, 1), mode='reflect')")
  both("unfold k3", "x 8,16,28,28", function(x) return F.unfold(x, 3, { padding = 1 }) end,
    "F.unfold(x, 3, padding=1)")
  case("diag_embed", "x 64,128", function(x) return x:diag_embed() end, "x.diag_embed()")

  -- ---- casts ---------------------------------------------------------------------------------------
  for _, pair in ipairs { "f32 f64", "f64 f32", "f32 f16", "f16 f32", "f32 bf16", "bf16 f32", "f32 i64", "f32 i32",
    "u8 f32", "i64 f32", "i32 i64", "i64 i32", "bool f32", "f32 bool", "bf16 f16", "f32 u8" } do
    local from, to = pair:match("(%w+) (%w+)")
    local kind = (from:find("^i") or from == "u8") and from .. "<100" or from
    local peers = { f32 = "float32", f64 = "float64", f16 = "float16", bf16 = "bfloat16", i64 = "int64", i32 = "int32",
      u8 = "uint8", bool = "bool" }
    case(("cast %s to %s"):format(from, to), ("x %s 1000,1000"):format(kind), function(x) return x:to(to) end,
      ("x.to(torch.%s)"):format(peers[to]))
  end
  case("cast transposed f32 to f64", "x 1000,1000", function(x) return x:t():to("f64") end,
    "x.t().to(torch.float64)")

  -- ---- products ------------------------------------------------------------------------------------
  local function mm(name, inputs) both(name, inputs, function(x, y) return x:matmul(y) end, "x @ y") end
  mm("matmul 4x4", "x 4,4; y 4,4")
  mm("matmul 64", "x 64,64; y 64,64")
  mm("matmul 512", "x 512,512; y 512,512")
  mm("matmul f64 256", "x f64 256,256; y f64 256,256")
  mm("matmul bf16 512", "x bf16 512,512; y bf16 512,512")
  mm("matmul thin inner 10000x8x64", "x 10000,8; y 8,64")
  mm("matmul thin out 10000x64x4", "x 10000,64; y 64,4")
  mm("matmul long inner 16x20000x16", "x 16,20000; y 20000,16")
  mm("matmul few rows 4x1024x1024", "x 4,1024; y 1024,1024")
  mm("bmm 256x32x32x32", "x 256,32,32; y 256,32,32")
  mm("bmm 4096x4x4x4", "x 4096,4,4; y 4096,4,4")
  mm("bmm 96x128x64x128", "x 96,128,64; y 96,64,128")
  mm("bmm broadcast right", "x 32,128,64; y 64,64")
  mm("mv 1024", "x 1024,1024; y 1024")
  mm("vm 1024", "x 1024; y 1024,1024")
  mm("dot 1e6", "x 1000000; y 1000000")
  case("matmul x yT", "x 512,256; y 512,256", function(x, y) return x:matmul(y:t()) end, "x @ y.t()")
  case("matmul xT y", "x 256,512; y 256,512", function(x, y) return x:t():matmul(y) end, "x.t() @ y")
  case("matmul i64 128", "x i64<10 128,128; y i64<10 128,128", function(x, y) return x:matmul(y) end, "x @ y")
  both("outer 1000", "x 1000; y 1000", function(x, y) return T.outer(x, y) end, "torch.outer(x, y)")
  both("linear 256x512x512", "x 256,512; w 512,512; b 512", function(x, w, b) return F.linear(x, w, b) end,
    "F.linear(x, w, b)")
  both("einsum bhid,bhjd", "x 4,8,128,32; y 4,8,128,32", function(x, y)
    return T.einsum("bhid,bhjd->bhij", x, y)
  end, "torch.einsum('bhid,bhjd->bhij', x, y)")
  case("einsum bij,j", "x 64,128,128; y 128", function(x, y) return T.einsum("bij,j->bi", x, y) end,
    "torch.einsum('bij,j->bi', x, y)")
  case("cdist", "x 500,64; y 500,64", function(x, y) return T.cdist(x, y) end, "torch.cdist(x, y)")

  -- ---- elementwise ---------------------------------------------------------------------------------
  for _, f in ipairs { "exp", "log", "sin", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "abs", "neg", "floor", "round",
    "reciprocal", "log1p", "expm1", "atan", "square", "sign", "isnan", "lgamma", "tan", "asin", "digamma", "erfinv" } do
    local kind = (f == "log" or f == "sqrt" or f == "rsqrt" or f == "asin" or f == "erfinv") and "uniform " or ""
    case(f, ("x %s1000,1000"):format(kind), function(x) return x[f](x) end, ("x.%s()"):format(f))
  end
  for _, f in ipairs { "relu", "gelu", "silu", "softplus", "elu", "leaky_relu", "hardswish", "mish" } do
    both(f, "x 1000,1000", function(x) return F[f](x) end, ("F.%s(x)"):format(f))
  end
  case("exp bf16", "x bf16 1000,1000", function(x) return x:exp() end, "x.exp()")
  case("exp transposed", "x 1000,1000", function(x) return x:t():exp() end, "x.t().exp()")
  case("clamp", "x 1000,1000", function(x) return x:clamp(-1, 1) end, "x.clamp(-1, 1)")
  case("pow 3", "x 1000,1000", function(x) return x ^ 3 end, "x ** 3")
  case("pow 2.5", "x uniform 1000,1000", function(x) return x ^ 2.5 end, "x ** 2.5")
  case("pow tensor", "x uniform 1000,1000; y 1000,1000", function(x, y) return x ^ y end, "x ** y")
  local sides = { same = "1000,1000", row = "1000", col = "1000,1", scalar = "1" }
  for _, side in ipairs { "same", "row", "col", "scalar" } do
    case("add " .. side, "x 1000,1000; y " .. sides[side], function(x, y) return x + y end, "x + y")
  end
  both("mul row", "x 1000,1000; y 1000", function(x, y) return x * y end, "x * y")
  both("mul col", "x 1000,1000; y 1000,1", function(x, y) return x * y end, "x * y")
  both("mul channels", "x 16,64,28,28; y 64,1,1", function(x, y) return x * y end, "x * y")
  case("add transposed", "x 1000,1000; y 1000,1000", function(x, y) return x + y:t() end, "x + y.t()")
  case("add strided", "x 1000,2000; y 1000,1000", function(x, y)
    return x:unflatten(2, { 1000, 2 }):select(3, 1) + y
  end, "x[:, ::2] + y")
  case("add small rows", "x 100000,3; y 3", function(x, y) return x + y end, "x + y")
  case("add bf16", "x bf16 1000,1000; y bf16 1000,1000", function(x, y) return x + y end, "x + y")
  case("add f16", "x f16 1000,1000; y f16 1000,1000", function(x, y) return x + y end, "x + y")
  case("add f32 f64", "x 1000,1000; y f64 1000,1000", function(x, y) return x + y end, "x + y")
  case("add i64", "x i64<100 1000,1000; y i64<100 1000,1000", function(x, y) return x + y end, "x + y")
  case("mul i64", "x i64<100 1000,1000; y i64<100 1000,1000", function(x, y) return x * y end, "x * y")
  case("add i32", "x i32<100 1000,1000; y i32<100 1000,1000", function(x, y) return x + y end, "x + y")
  case("add u8", "x u8<100 1000,1000; y u8<100 1000,1000", function(x, y) return x + y end, "x + y")
  case("floor_divide i64", "x i64<100 1000,1000; y i64<9 1000,1000", function(x, y)
    return x:floor_divide(y + 1)
  end, "x // (y + 1)")
  case("remainder i64", "x i64<100 1000,1000", function(x) return x % 7 end, "x % 7")
  case("remainder", "x 1000,1000; y uniform 1000,1000", function(x, y) return x % y end, "x % y")
  case("bitwise_and i64", "x i64<100 1000,1000; y i64<100 1000,1000", function(x, y) return x & y end, "x & y")
  case("eq", "x 1000,1000; y 1000,1000", function(x, y) return x:eq(y) end, "x == y")
  case("gt number", "x 1000,1000", function(x) return x:gt(0) end, "x > 0")
  case("eq i64", "x i64<100 1000,1000; y i64<100 1000,1000", function(x, y) return x:eq(y) end, "x == y")
  case("gt bf16", "x bf16 1000,1000", function(x) return x:gt(0) end, "x > 0")
  case("logical_and", "x bool 1000,1000; y bool 1000,1000", function(x, y) return x:logical_and(y) end,
    "x.logical_and(y)")
  case("logical_not", "x bool 1000,1000", function(x) return x:logical_not() end, "x.logical_not()")
  case("all bool", "x bool 1000,1000", function(x) return x:logical_or(true):all() end,
    "x.logical_or(torch.tensor(True)).all()")
  case("maximum", "x 1000,1000; y 1000,1000", function(x, y) return x:maximum(y) end, "x.maximum(y)")
  case("lerp", "x 1000,1000; y 1000,1000", function(x, y) return x:lerp(y, 0.3) end, "x.lerp(y, 0.3)")
  case("addcmul", "x 1000,1000; y 1000,1000; z 1000,1000", function(x, y, z) return x:addcmul(y, z) end,
    "x.addcmul(y, z)")
  case("atan2", "x 1000,1000; y 1000,1000", function(x, y) return T.atan2(x, y) end, "torch.atan2(x, y)")
  case("add_ in place", "x 1000,1000; y 1000,1000", function(x, y) return x:add_(y, 1e-9) end, "x.add_(y, alpha=1e-9)")
  case("zero_", "x 1000,1000", function(x) return x:zero_() end, "x.zero_()")
  case("add of 1", "x 1; y 1", function(x, y) return x + y end, "x + y")
  case("add of 1000", "x 1000; y 1000", function(x, y) return x + y end, "x + y")

  -- ---- random --------------------------------------------------------------------------------------
  case("randn 1e6", "x 1", function() return T.randn(1000, 1000) end, "torch.randn(1000, 1000)")
  case("rand 1e6", "x 1", function() return T.rand(1000, 1000) end, "torch.rand(1000, 1000)")
  case("randint 1e6", "x 1", function() return T.randint(0, 9, { 1000000 }) end, "torch.randint(0, 10, (1000000,))")
  case("randperm 1e5", "x 1", function() return T.randperm(100000) end, "torch.randperm(100000)")
  case("bernoulli", "x uniform 1000,1000", function(x) return x:bernoulli() end, "x.bernoulli()")
  both("dropout", "x 1000,1000", function(x) return F.dropout(x, 0.1) end, "F.dropout(x, 0.1)")
  case("multinomial", "x uniform 64,1000", function(x) return x:multinomial(1) end, "x.multinomial(1)")
  case("multinomial replace", "x uniform 1000", function(x) return x:multinomial(10000, { replacement = true }) end,
    "x.multinomial(10000, replacement=True)")
  case("exponential_", "x 1000,1000", function(x) return x:exponential_() end, "x.exponential_()")

  -- ---- linear algebra ------------------------------------------------------------------------------
  for _, n in ipairs { 8, 200 } do
    local s = ("a spd %d,%d"):format(n, n)
    for _, f in ipairs { "inv", "cholesky", "qr", "svd", "eigh", "det" } do
      case(("%s %d"):format(f, n), s, function(a) return T.linalg[f](a) end, ("torch.linalg.%s(a)"):format(f))
    end
    case(("solve %d"):format(n), ("%s; b %d,10"):format(s, n), function(a, b) return T.linalg.solve(a, b) end,
      "torch.linalg.solve(a, b)")
  end
  case("inv 500x4x4", "a spd 500,4,4", function(a) return T.linalg.inv(a) end, "torch.linalg.inv(a)")
  case("cholesky 500x4x4", "a spd 500,4,4", function(a) return T.linalg.cholesky(a) end, "torch.linalg.cholesky(a)")
  case("svd 500x4x4", "a spd 500,4,4", function(a) return T.linalg.svd(a) end, "torch.linalg.svd(a)")

  -- ---- optimizers, gradients ------------------------------------------------------------------------
  local function params(x, y)
    x, y = x:requires_grad_(), y:requires_grad_()
    x.grad, y.grad = T.rand(table.unpack(x:shape())), T.rand(table.unpack(y:shape()))
    return { x, y }
  end
  local given = "x.requires_grad_(); y.requires_grad_(); x.grad = torch.rand_like(x); y.grad = torch.rand_like(y)"
  local function step(name, opts, peers)
    case(name .. " step", "x 1000,500; y 500", function(x, y)
      local o = optim[name](params(x, y), opts)
      return function() o:step() end
    end, ("%s; o = torch.optim.%s ;; o.step()"):format(given, peers), { setup = true })
  end
  step("SGD", { lr = 1e-9 }, "SGD([x, y], 1e-9)")
  step("SGD", { lr = 1e-9, momentum = 0.9 }, "SGD([x, y], 1e-9, momentum=0.9)")
  for _, f in ipairs { "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax", "Rprop" } do
    step(f, { lr = 1e-9 }, ("%s([x, y], 1e-9)"):format(f))
  end
  case("clip_grad_norm_", "x 1000,500; y 500", function(x, y)
    local list = params(x, y)
    return function() T.nn.utils.clip_grad_norm_(list, 1) end
  end, given .. " ;; torch.nn.utils.clip_grad_norm_([x, y], 1.0)", { setup = true })
  case("clip_grad_value_", "x 1000,500; y 500", function(x, y)
    local list = params(x, y)
    return function() T.nn.utils.clip_grad_value_(list, 0.1) end
  end, given .. " ;; torch.nn.utils.clip_grad_value_([x, y], 0.1)", { setup = true })
end
