-- SPDX-License-Identifier: MIT
-- Cases of bench/ops.lua (see ops_cases.lua) that are drawn from grids: the same operations in each dtype, layout and
-- size, and the backward pass of elementwise functions and reductions.

return function(T, case, both)
  local F = T.nn.F

  -- How x of 1000 × 1000 elements lies: the input's sizes, what is made of it here, and there.
  local layouts = {
    { "contiguous", "1000,1000", function(x) return x end, "%s" },
    { "transposed", "1000,1000", function(x) return x:t() end, "%s.t()" },
    { "strided", "1000,2000", function(x) return x:unflatten(2, { 1000, 2 }):select(3, 1) end, "%s[:, ::2]" },
    { "rows of wider", "1000,1200", function(x) return x:narrow(2, 101, 1000) end, "%s[:, 100:1100]" },
    { "expanded", "1000,1", function(x) return x:expand(1000, 1000) end, "%s.expand(1000, 1000)" },
  }
  local floats = { "f32", "f64", "bf16", "f16" }

  local function positive(f) return f == "log" or f == "sqrt" or f == "rsqrt" end

  -- ---- elementwise functions ---------------------------------------------------------------------------
  for _, f in ipairs { "exp", "tanh", "sigmoid", "neg", "abs", "sqrt" } do
    for _, kind in ipairs(floats) do
      for k = 1, 3 do
        local lay = layouts[k]
        case(("%s %s %s"):format(f, kind, lay[1]), ("x %s %s"):format(kind, lay[2]), function(x)
          local y = lay[3](x)
          return y[f](y)
        end, ("%s.%s()"):format(lay[4]:format "x", f))
      end
      case(("%s %s of 100"):format(f, kind), ("x %s 100"):format(kind), function(x) return x[f](x) end,
        ("x.%s()"):format(f))
    end
  end
  for _, f in ipairs { "exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "abs", "square",
    "reciprocal", "log1p", "expm1", "atan", "asinh" } do
    case(f .. " +bwd", ("x %s1000,1000"):format(positive(f) and "uniform " or ""), function(x) return x[f](x) end,
      ("x.%s()"):format(f), { grad = true })
  end

  -- ---- hidden elements, as scores under a mask ------------------------------------------------------------
  for _, kind in ipairs { "f32", "f64" } do
    for _, row in ipairs { { "exp", "x:exp()", "x.exp()" }, { "sigmoid", "x:sigmoid()", "x.sigmoid()" },
      { "softmax rows", "x:softmax(-1)", "x.softmax(-1)" }, { "softmax columns", "x:softmax(1)", "x.softmax(0)" } } do
      local call = assert(load("local x = ... return " .. row[2]))
      case(("%s %s half hidden"):format(row[1], kind), ("x %s 500,1000; m bool 500,1000"):format(kind), function(x, m)
        x = x:masked_fill(m, -math.huge)
        return function() local _ = call(x) end
      end, "x = x.masked_fill(m, -float('inf')) ;; " .. row[3], { setup = true })
    end
  end

  -- ---- two operands --------------------------------------------------------------------------------------
  local pairs_of = {
    add = { function(x, y) return x + y end, "%s + %s" }, mul = { function(x, y) return x * y end, "%s * %s" },
    maximum = { function(x, y) return x:maximum(y) end, "torch.maximum(%s, %s)" },
  }
  for _, f in ipairs { "add", "mul", "maximum" } do
    local ours, peers = table.unpack(pairs_of[f])
    for _, kind in ipairs { "f32", "f64", "bf16", "f16", "i64<100", "i32<100" } do
      for _, lay in ipairs(layouts) do
        case(("%s %s %s"):format(f, kind:match "%w+", lay[1]), ("x %s 1000,1000; y %s %s"):format(kind, kind, lay[2]),
          function(x, y) return ours(x, lay[3](y)) end, peers:format("x", lay[4]:format "y"))
      end
      case(("%s %s of 100"):format(f, kind:match "%w+"), ("x %s 100; y %s 100"):format(kind, kind), ours,
        peers:format("x", "y"))
    end
  end

  -- ---- reductions ------------------------------------------------------------------------------------------
  for _, f in ipairs { "sum", "mean", "amax", "norm", "var" } do
    for _, kind in ipairs(floats) do
      for k = 1, 2 do
        local lay = layouts[k]
        for dim = 1, 2 do
          case(("%s %s %s dim %d"):format(f, kind, lay[1], dim - 1), ("x %s %s"):format(kind, lay[2]), function(x)
            local y = lay[3](x)
            return y[f](y, { dim = dim })
          end, ("%s.%s(dim=%d)"):format(lay[4]:format "x", f, dim - 1))
        end
      end
    end
    both(f .. " rows", "x 1000,1000", function(x) return x[f](x, { dim = 2 }) end, ("x.%s(dim=1)"):format(f))
  end

  -- ---- rows in other dtypes ----------------------------------------------------------------------------------
  for _, kind in ipairs { "f64", "bf16", "f16" } do
    both("softmax " .. kind, ("x %s 512,1000"):format(kind), function(x) return x:softmax(-1) end, "x.softmax(-1)")
    both("log_softmax " .. kind, ("x %s 512,1000"):format(kind), function(x) return x:log_softmax(-1) end,
      "x.log_softmax(-1)")
    both("layer_norm 768 " .. kind, ("x %s 512,768; w %s 768; b %s 768"):format(kind, kind, kind), function(x, w, b)
      return F.layer_norm(x, { 768 }, w, b)
    end, "F.layer_norm(x, (768,), w, b)")
    both("gelu " .. kind, ("x %s 1000,1000"):format(kind), function(x) return F.gelu(x) end, "F.gelu(x)")
    both("attention " .. kind, ("q %s 2,8,128,64; k %s 2,8,128,64; v %s 2,8,128,64"):format(kind, kind, kind),
      function(q, k, v) return F.scaled_dot_product_attention(q, k, v) end,
      "F.scaled_dot_product_attention(q, k, v)")
  end

  -- ---- products ------------------------------------------------------------------------------------------------
  for _, kind in ipairs(floats) do
    for _, rows in ipairs { 1, 4, 16, 64 } do
      case(("linear %dx1024x2048 %s"):format(rows, kind), ("x %s %d,1024; w %s 2048,1024"):format(kind, rows, kind),
        function(x, w) return F.linear(x, w) end, "F.linear(x, w)")
      case(("matmul %dx1024x2048 %s"):format(rows, kind), ("x %s %d,1024; w %s 1024,2048"):format(kind, rows, kind),
        function(x, w) return x:matmul(w) end, "x @ w")
    end
    case("bmm 64x64x64x64 " .. kind, ("x %s 64,64,64; y %s 64,64,64"):format(kind, kind),
      function(x, y) return x:matmul(y) end, "x @ y")
  end
  case("int_mm 512", "x i8<100 512,512; y i8<100 512,512", function(x, y) return T.int_mm(x, y) end,
    "torch._int_mm(x, y)")
end
