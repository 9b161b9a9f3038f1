-- SPDX-License-Identifier: MIT
-- T.linalg: the engine's ops of that name, with what is made of them here: vectors and broadcasting for systems,
-- norms, powers, products of several matrices. Matrices are the last two dims, all before them a batch.
local options = require "perilune.options"

return function(T, core)
  local op, is_tensor = core.op, core.is_tensor
  local fail = options.fail
  local L = {}
  T.linalg = L

  -- Ops of the registry named "linalg.x" are found as T.linalg.x alone.
  for full, f in pairs(op) do
    local name = full:match "^linalg%.(.+)$"
    if name then L[name] = f end
  end

  -- The sizes of a usable tensor, or nil: what else it is, the op itself says better.
  local function sizes(x)
    if not is_tensor(x) then return nil end
    local ok, s = pcall(x.shape, x)
    return ok and s or nil
  end
  local function need(fn, name, x, least)
    if not is_tensor(x) then fail("%s: %s must be a tensor, got %s", fn, name, options.describe(x)) end
    local s = sizes(x)
    if not s then fail("%s: %s was freed", fn, name) end
    if #s < least then
      fail("%s: %s must have at least %d dim%s, got %s", fn, name, least, least == 1 and "" or "s", x:describe())
    end
    return s
  end

  -- a and b with their leading dims (all but the last `inner`) broadcast against each other.
  local function batched(fn, a, b, inner)
    local s, t = a:shape(), b:shape()
    local n = math.max(#s, #t) - inner
    local sa, sb, same = {}, {}, #s == #t
    for d = 1, n do
      local x, y = s[d - n + #s - inner] or 1, t[d - n + #t - inner] or 1
      if x ~= y and x ~= 1 and y ~= 1 then
        fail("%s: the sizes of %s and %s do not broadcast", fn, a:describe(), b:describe())
      end
      same = same and x == y
      sa[d] = x == 1 and y or x
      sb[d] = sa[d]
    end
    if same then return a, b end
    for k = inner - 1, 0, -1 do
      sa[#sa + 1] = s[#s - k]
      sb[#sb + 1] = t[#t - k]
    end
    return op.expand(a, sa), op.expand(b, sb)
  end

  -- ---- systems --------------------------------------------------------------------------------------

  -- B is a vector, or a batch of them, if it has one dim or A's shape without the last one.
  local function is_vector(a, b)
    if #b == 1 then return true end
    if #b ~= #a - 1 then return false end
    for d = 1, #b do
      if a[d] ~= b[d] then return false end
    end
    return true
  end

  -- T.linalg.solve(A, B, {left = true})
  local solve = op["linalg.solve"]
  L.solve = function(A, B, opts, ...)
    local a, b = sizes(A), sizes(B)
    if not a or not b or #a < 2 or #b < 1 or select("#", ...) > 0 then return solve(A, B, opts, ...) end
    local vector = is_vector(a, b)
    local left = opts
    if type(opts) == "table" and not is_tensor(opts) then left = opts.left end
    if vector then
      if left == false then fail("linalg.solve: B must be a matrix with left=false, got %s", B:describe()) end
      B = B:unsqueeze(-1)
    end
    A, B = batched("linalg.solve", A, B, 2)
    local X = solve(A, B, opts)
    return vector and X:squeeze(-1) or X
  end

  -- T.linalg.solve_triangular(A, B, {upper =, left = true, unitriangular = false})
  local solve_triangular = op["linalg.solve_triangular"]
  L.solve_triangular = function(A, B, ...)
    local a, b = sizes(A), sizes(B)
    if a and b and #a >= 2 and #b >= 2 then A, B = batched("linalg.solve_triangular", A, B, 2) end
    return solve_triangular(A, B, ...)
  end

  -- T.linalg.qr(A, mode = "reduced"): Q, R; in mode "r" nil and R
  local qr = op["linalg.qr"]
  L.qr = function(A, opts, ...)
    local Q, R = qr(A, opts, ...)
    local mode = opts
    if type(opts) == "table" then mode = opts.mode end
    if mode == "r" then return nil, R end
    return Q, R
  end

  -- T.linalg.pinv(A, rtol, atol) or pinv(A, {rtol =, atol =, hermitian =}); numbers, or tensors that broadcast
  -- against the batch. hermitian promises a symmetric A, which changes nothing here.
  local pinv = op["linalg.pinv"]
  L.pinv = function(A, rtol, atol, opts, ...)
    local s = need("linalg.pinv", "A", A, 2)
    if select("#", ...) > 0 then fail("linalg.pinv: too many arguments") end
    if type(rtol) == "table" and atol == nil and opts == nil then rtol, opts = nil, rtol end
    if type(atol) == "table" and opts == nil then atol, opts = nil, atol end
    local o = options.check("linalg.pinv", opts, { "rtol", "atol", "hermitian" })
    local batch = { table.unpack(s, 1, #s - 2) }
    local function tolerance(name, v)
      if v == nil then return nil end
      if not is_tensor(v) and type(v) ~= "number" then
        fail("linalg.pinv: %s must be a number or a tensor, got %s", name, options.describe(v))
      end
      local t = is_tensor(v) and v:detach():to("f64") or T.tensor(v, { dtype = "f64", device = A:device() })
      return op.expand(t, batch)
    end
    rtol, atol = options.once("linalg.pinv", "rtol", rtol, o), options.once("linalg.pinv", "atol", atol, o)
    return pinv(A, tolerance("rtol", rtol), tolerance("atol", atol))
  end

  -- ---- products --------------------------------------------------------------------------------------

  --- T.linalg.matrix_power(A, n) → tensor
  -- The n-fold product, of the inverse for n < 0.
  --   print(T.linalg.matrix_power(T.tensor { { 1, 1 }, { 0, 1 } }, 5))
  --   --> {{1., 5.},
  --   -->  {0., 1.}}  -- f32[2,2] cpu
  L.matrix_power = function(A, n, ...)
    local s = need("linalg.matrix_power", "A", A, 2)
    if s[#s] ~= s[#s - 1] then fail("linalg.matrix_power: A must be square matrices, got %s", A:describe()) end
    if math.type(n) ~= "integer" then fail("linalg.matrix_power: n must be an integer, got %s", options.describe(n)) end
    if select("#", ...) > 0 then fail("linalg.matrix_power: too many arguments") end
    if n == math.mininteger then fail("linalg.matrix_power: n is too small") end
    if n == 0 then -- 0 · A: it depends on A, with a gradient of zeros
      local eye = core.device.with(A:device(), T.eye, s[#s], s[#s], { dtype = A:dtype() })
      return op.where(T.zeros(s, { dtype = "bool", device = A:device() }), A, eye)
    end
    if n < 0 then A, n = L.inv(A), -n end
    local y
    while true do
      if n % 2 == 1 then y = y and op.matmul(y, A) or A end
      n = n // 2
      if n == 0 then break end
      A = op.matmul(A, A)
    end
    return y == A and y:clone() or y
  end

  -- T.linalg.multi_dot{A, B, C, …}: the product in the order with the fewest multiplications (dynamic programming
  -- over the places of the outermost product). The first may be a row vector, the last a column.
  --- T.linalg.multi_dot{A, B, …} → tensor
  -- The product in the order with the fewest multiplications.
  --   print(T.linalg.multi_dot { T.ones(1, 2), T.ones(2, 3), T.ones(3, 1) })  --> {{6.}}  -- f32[1,1] cpu
  L.multi_dot = function(list, ...)
    local fn = "linalg.multi_dot"
    if type(list) ~= "table" or is_tensor(list) or #list < 2 then
      fail("%s: a list of at least two tensors expected", fn)
    end
    if select("#", ...) > 0 then fail("%s: too many arguments", fn) end
    options.list(fn, "the matrices", list, "tensors")
    local n, m, p = #list, {}, {}
    for i, x in ipairs(list) do
      local s = need(fn, "tensor " .. i, x, 1)
      if #s > 2 or #s == 1 and i > 1 and i < n then
        fail("%s: tensor %d must be a matrix, got %s", fn, i, x:describe())
      end
      m[i] = #s == 2 and x or i == 1 and x:unsqueeze(1) or x:unsqueeze(2)
      local r, c = m[i]:size(1), m[i]:size(2)
      if i > 1 and r ~= p[i - 1] then
        fail("%s: tensors %d and %d do not fit: %s and %s", fn, i - 1, i, list[i - 1]:describe(), x:describe())
      end
      p[i - 1], p[i] = r, c
    end
    local cost, cut = {}, {}
    for i = 1, n do cost[i], cut[i] = { [i] = 0 }, {} end
    for length = 2, n do
      for i = 1, n - length + 1 do
        local j = i + length - 1
        cost[i][j] = math.huge
        for k = i, j - 1 do
          local c = cost[i][k] + cost[k + 1][j] + p[i - 1] * p[k] * p[j]
          if c < cost[i][j] then cost[i][j], cut[i][j] = c, k end
        end
      end
    end
    local function product(i, j)
      if i == j then return m[i] end
      return op.matmul(product(i, cut[i][j]), product(cut[i][j] + 1, j))
    end
    local y = product(1, n)
    if list[n]:dim() == 1 then y = y:squeeze(2) end
    if list[1]:dim() == 1 then y = y:squeeze(1) end
    return y
  end

  --- T.linalg.cross(x, y, {dim=-1}) → tensor
  -- The vector product over a dimension of size 3.
  --   print(T.linalg.cross(T.tensor { 1, 0, 0 }, T.tensor { 0, 1, 0 }))  --> {0., 0., 1.}  -- f32[3] cpu
  L.cross = function(x, y, dim, ...)
    local fn = "linalg.cross"
    need(fn, "x", x, 1)
    need(fn, "y", y, 1)
    if select("#", ...) > 0 then fail("%s: too many arguments", fn) end
    if type(dim) == "table" then dim = options.check(fn, dim, { "dim" }).dim end
    dim = dim or -1
    if math.type(dim) ~= "integer" then fail("%s: dim must be an integer, got %s", fn, options.describe(dim)) end
    if x:dim() ~= y:dim() then fail("%s: %s and %s must have as many dims", fn, x:describe(), y:describe()) end
    if x:size(dim) ~= 3 or y:size(dim) ~= 3 then
      fail("%s: dim %d must have size 3, got %s and %s", fn, dim, x:describe(), y:describe())
    end
    x, y = batched(fn, x, y, 0)
    local function turned(t, k) return op.roll(t, { -k }, { dim }) end
    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)
  end

  -- ---- norms -------------------------------------------------------------------------------------------

  -- (x, ord, dim, {keepdim =, dtype =}) or (x, {ord =, dim =, keepdim =, dtype =}) → x in its dtype, ord, dims, keepdim
  local function norm_args(fn, x, ord, dim, opts, ...)
    need(fn, "x", x, 0)
    if select("#", ...) > 0 then fail("%s: too many arguments", fn) end
    if type(ord) == "table" and dim == nil and opts == nil then ord, opts = nil, ord end
    if type(dim) == "table" and opts == nil and #dim == 0 and next(dim) then dim, opts = nil, dim end
    local o = options.check(fn, opts, { "ord", "dim", "keepdim", "dtype" })
    ord, dim = options.once(fn, "ord", ord, o), options.once(fn, "dim", dim, o)
    if type(dim) == "number" then dim = { dim } end
    if dim ~= nil and type(dim) ~= "table" then
      fail("%s: dim must be an integer or a list, got %s", fn, options.describe(dim))
    end
    if o.keepdim ~= nil and type(o.keepdim) ~= "boolean" then
      fail("%s: keepdim must be a boolean, got %s", fn, options.describe(o.keepdim))
    end
    if o.dtype then x = x:to(o.dtype) end
    if not x:is_floating_point() then
      fail("%s: x must be floating, got %s; convert it first: x:to(\"f32\")", fn, x:describe())
    end
    return x, ord, dim, o.keepdim or false
  end

  local function vector_norm(fn, x, ord, dim, keepdim)
    if ord == nil then ord = 2 end
    if type(ord) ~= "number" then
      fail("%s: ord of a vector norm must be a number, got %s", fn, options.describe(ord))
    end
    return op.norm(x, { p = ord, dim = dim, keepdim = keepdim })
  end

  -- f(x, d1, d2) leaves two dims of size 1, dropped unless keepdim.
  local function over(x, d1, d2, keepdim, f)
    local y = f(x)
    return keepdim and y or op.squeeze(y, { d1, d2 })
  end

  -- The largest of norms over dim d, 0 where there are none.
  local function largest(x, d, keepdim)
    return (x:size(d) == 0 and op.sum or op.amax)(x, { dim = { d }, keepdim = keepdim })
  end

  local function smallest(fn, x, d, keepdim)
    if x:size(d) == 0 then fail("%s: a matrix without entries has no least singular value, row or column", fn) end
    return op.amin(x, { dim = { d }, keepdim = keepdim })
  end

  local function matrix_norm(fn, x, ord, dim, keepdim)
    if ord == nil then ord = "fro" end
    dim = dim or { -2, -1 }
    if #dim ~= 2 then fail("%s: a matrix norm is over two dims, got %d", fn, #dim) end
    local n = x:dim()
    local at = {}
    for i, d in ipairs(dim) do
      if math.type(d) ~= "integer" or d == 0 or d > n or d < -n then
        fail("%s: dim %s of %s does not exist; dims are numbered from 1", fn, tostring(d), x:describe())
      end
      at[i] = d < 0 and d + n + 1 or d
    end
    local r, c = at[1], at[2]
    if r == c then fail("%s: the two dims must differ", fn) end
    if ord == "fro" then return op.norm(x, { p = 2, dim = { r, c }, keepdim = keepdim }) end
    if ord == 1 or ord == -1 or ord == math.huge or ord == -math.huge then
      local sum_over, pick_over = r, c
      if ord == math.huge or ord == -math.huge then sum_over, pick_over = c, r end
      return over(x, r, c, keepdim, function(t)
        local sums = op.sum(op.abs(t), { dim = { sum_over }, keepdim = true })
        return ord > 0 and largest(sums, pick_over, true) or smallest(fn, sums, pick_over, true)
      end)
    end
    if ord ~= "nuc" and ord ~= 2 and ord ~= -2 then
      fail("%s: ord of a matrix norm is \"fro\", \"nuc\", 1, -1, 2, -2, inf or -inf, got %s", fn, options.describe(ord))
    end
    local order = {}
    for d = 1, n do
      if d ~= r and d ~= c then order[#order + 1] = d end
    end
    order[n - 1], order[n] = r, c
    local s = L.svdvals(op.permute(x, order))
    local y = ord == "nuc" and op.sum(s, { dim = { -1 } }) or ord == 2 and largest(s, -1, false)
      or smallest(fn, s, -1, false)
    if not keepdim then return y end
    return y:unsqueeze(math.min(r, c)):unsqueeze(math.max(r, c))
  end

  --- T.linalg.vector_norm(x, ord=2, dim=all, {keepdim=, dtype=}) → tensor
  -- The ord-norm over dims.
  --   print(T.linalg.vector_norm(T.tensor { 3, -4 }, 1))  --> 7.  -- f32[] cpu
  L.vector_norm = function(...)
    return (vector_norm("linalg.vector_norm", norm_args("linalg.vector_norm", ...))) -- no tail call: errors look for it
  end

  --- T.linalg.matrix_norm(A, ord="fro", dim={-2, -1}, {keepdim=, dtype=}) → tensor
  -- "fro", "nuc", 1, -1, 2, -2, inf or -inf norms of matrices.
  --   print(T.linalg.matrix_norm(T.tensor { { 3, 0 }, { 0, 4 } }))  --> 5.  -- f32[] cpu
  L.matrix_norm = function(A, ...)
    need("linalg.matrix_norm", "A", A, 2)
    return matrix_norm("linalg.matrix_norm", norm_args("linalg.matrix_norm", A, ...))
  end

  --- T.linalg.norm(x, ord, dim, {keepdim=, dtype=}) → tensor
  -- A matrix norm for two dims, a vector norm for one; without ord the 2-norm of all elements.
  --   print(T.linalg.norm(T.tensor { 3, 4 }))  --> 5.  -- f32[] cpu
  L.norm = function(...)
    local fn = "linalg.norm"
    local x, ord, dim, keepdim = norm_args(fn, ...)
    if ord == nil then return vector_norm(fn, x, 2, dim, keepdim) end
    if dim == nil then
      if x:dim() ~= 1 and x:dim() ~= 2 then
        fail("%s: with ord but without dim, x must be a vector or a matrix, got %s", fn, x:describe())
      end
      if x:dim() == 2 then dim = { 1, 2 } end
    end
    if dim and #dim == 2 then return matrix_norm(fn, x, ord, dim, keepdim) end
    if dim and #dim ~= 1 then fail("%s: with ord, dim is one dim or two, got %d", fn, #dim) end
    return vector_norm(fn, x, ord, dim, keepdim)
  end

  require "perilune.linalg.decompositions"(T, core)
end
