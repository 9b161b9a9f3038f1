-- SPDX-License-Identifier: MIT
-- Cases of bench/ops.lua (see ops_cases.lua) at sizes that no vector divides: narrow and odd matrices, dims in the
-- middle, few elements, whole numbers and masks, and what they look like transposed.

return function(T, case)
  local F = T.nn.F
  local zero = { index_base = 0 }
  local function one(name, inputs, ours, peers) case("odd: " .. name, inputs, ours, peers) end

  -- ---- reductions: narrow, short, in the middle --------------------------------------------------------------
  for _, f in ipairs { "sum", "mean", "amax", "norm", "var", "prod", "argmax", "logsumexp", "cumsum", "softmax" } do
    local takes_dim = f == "argmax" or f == "softmax" or f == "cumsum" or f == "prod"
    for _, size in ipairs { "1000,37", "37,1000", "20000,7", "7,20000", "40000,16", "33,65,17" } do
      local _, commas = size:gsub(",", "")
      for dim = 1, commas + 1 do
        one(("%s dim %d"):format(f, dim - 1), "x " .. size, function(x)
          return x[f](x, takes_dim and dim or { dim = dim })
        end, ("x.%s(%d)"):format(f, dim - 1))
      end
    end
    if f ~= "softmax" and f ~= "cumsum" then
      one(f .. " transposed", "x 1000,37", function(x)
        local y = x:t()
        return y[f](y, takes_dim and 1 or { dim = 1 })
      end, ("x.t().%s(0)"):format(f))
    end
  end
  for _, kind in ipairs { "i64<100", "i32<100", "u8<100", "bool" } do
    for _, f in ipairs { "sum", "amax", "any", "argmax" } do
      if not (kind == "bool" and f == "argmax") then
        for dim = 1, 2 do
          one(("%s %s dim %d"):format(f, kind:match "%w+", dim - 1), ("x %s 1000,999"):format(kind), function(x)
            return x[f](x, f == "argmax" and dim or { dim = dim })
          end, ("x.%s(%d)"):format(f, dim - 1))
        end
      end
    end
  end

  -- ---- moves -------------------------------------------------------------------------------------------------
  for _, kind in ipairs { "f32", "f64", "f16", "u8<9" } do
    local short = kind:match "%w+"
    for _, size in ipairs { "1000,37", "999,1001", "100000,3", "3,100000" } do
      one("transpose copy " .. short, ("x %s %s"):format(kind, size), function(x) return x:t():contiguous() end,
        "x.t().contiguous()")
    end
    one("permute copy " .. short, ("x %s 33,65,17"):format(kind), function(x)
      return x:permute(3, 1, 2):contiguous()
    end, "x.permute(2, 0, 1).contiguous()")
  end
  for _, kind in ipairs { "f32", "f64", "i64<9" } do
    local short = kind:match "%w+"
    for _, lay in ipairs { { "", "1000,999", function(x) return x end, "x" },
      { " transposed", "999,1000", function(x) return x:t() end, "x.t()" } } do
      local with = ("x %s %s; m bool 1000,999"):format(kind, lay[2])
      one("masked_fill " .. short .. lay[1], with, function(x, m) return lay[3](x):masked_fill(m, 1) end,
        lay[4] .. ".masked_fill(m, 1)")
      one("where " .. short .. lay[1], with .. ("; y %s 1000,999"):format(kind), function(x, m, y)
        return T.where(m, lay[3](x), y)
      end, "torch.where(m, " .. lay[4] .. ", y)")
      one("copy_ " .. short .. lay[1], ("x %s %s; y %s 1000,999"):format(kind, lay[2], kind), function(x, y)
        return y:copy_(lay[3](x))
      end, "y.copy_(" .. lay[4] .. ")")
    end
  end

  -- ---- pointwise: tiny, odd, whole numbers -------------------------------------------------------------------
  for _, size in ipairs { "1", "7", "33,7", "1000,37" } do
    for _, f in ipairs { "exp", "relu", "neg", "sqrt", "sigmoid" } do
      one(f, "x uniform " .. size, function(x) return x[f](x) end, ("x.%s()"):format(f))
    end
    one("add", ("x %s; y %s"):format(size, size), function(x, y) return x + y end, "x + y")
    one("add a number", "x " .. size, function(x) return x + 1.5 end, "x + 1.5")
    one("lt", ("x %s; y %s"):format(size, size), function(x, y) return x:lt(y) end, "x < y")
  end
  for _, kind in ipairs { "i64<100", "i32<100", "u8<100" } do
    local short, two = kind:match "%w+", ("x %s 1000,999; y %s 1000,999"):format(kind, kind)
    one("mul " .. short, two, function(x, y) return x * y end, "x * y")
    one("eq " .. short, two, function(x, y) return x:eq(y) end, "x == y")
    one("abs " .. short, two, function(x) return x:abs() end, "x.abs()")
    one("to f32 " .. short, two, function(x) return x:to "f32" end, "x.float()")
  end
  one("and", "x bool 1000,999; y bool 1000,999", function(x, y) return x:logical_and(y) end, "x.logical_and(y)")
  one("not", "x bool 1000,999", function(x) return x:logical_not() end, "x.logical_not()")
  one("bool to f32", "x bool 1000,999", function(x) return x:to "f32" end, "x.float()")
  one("add row", "x 1000,37; y 37", function(x, y) return x + y end, "x + y")
  one("add col", "x 1000,37; y 1000,1", function(x, y) return x + y end, "x + y")
  one("outer", "x 1000,1; y 1,999", function(x, y) return x * y end, "x * y")

  -- ---- indexing, order, products -----------------------------------------------------------------------------
  one("embedding", "w 1000,37; i i64<1000 5000", function(w, i) return F.embedding(i, w, zero) end, "F.embedding(i, w)")
  one("index_select cols", "x 1000,37; i i64<37 20", function(x, i)
    return x:index_select(i, { dim = 2, index_base = 0 })
  end, "x.index_select(1, i)")
  one("gather", "x 1000,37; i i64<37 1000,5", function(x, i) return x:gather(i, { dim = 2, index_base = 0 }) end,
    "x.gather(1, i)")
  one("sort rows", "x 1000,37", function(x) return x:sort() end, "x.sort()")
  one("topk 3", "x 1000,37", function(x) return x:topk(3) end, "x.topk(3)")
  one("cat cols", "x 1000,37; y 1000,5", function(x, y) return T.cat({ x, y }, 2) end, "torch.cat([x, y], 1)")
  one("flip", "x 1000,37", function(x) return x:flip(2) end, "x.flip(1)")
  one("matmul", "x 37,65; y 65,33", function(x, y) return x:matmul(y) end, "x @ y")
  one("matmul", "x 333,129; y 129,257", function(x, y) return x:matmul(y) end, "x @ y")
  one("matmul transposed", "x 129,333; y 257,129", function(x, y) return x:t():matmul(y:t()) end, "x.t() @ y.t()")
  one("bmm", "x 50,17,33; y 50,33,9", function(x, y) return x:matmul(y) end, "x @ y")
  one("linear f64", "x f64 65,333; w f64 129,333", function(x, w) return F.linear(x, w) end, "F.linear(x, w)")
  one("layer_norm", "x 1000,37; w 37; b 37", function(x, w, b) return F.layer_norm(x, { 37 }, w, b) end,
    "F.layer_norm(x, (37,), w, b)")
  one("cross_entropy", "x 1000,37; i i64<37 1000", function(x, i)
    return F.cross_entropy(x, i, zero)
  end, "F.cross_entropy(x, i)")
end
