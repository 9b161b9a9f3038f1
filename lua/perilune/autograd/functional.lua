-- Gradients of functions: grad, value_and_grad, vjp, jacobian, hessian; jvp and the like are in forward_mode.lua.
-- Arguments and results are tensors, tables of them (nested at will), and anything else, which passes through. Every
-- call has a key of its own, so calls nest and an outer program sees the inner one.
local options = require "perilune.options"
local tree = require "perilune.tree"

return function(T, core)
  local GradKey = core.GradKey
  local pack, unpack = table.pack, table.unpack
  local fail = options.fail
  local _ = T.vmap -- brings core.pull_batch
  local floating, map, leaves, beside = tree.floating, tree.map, tree.leaves, tree.beside
  local check_function = tree.check_function

  local S = require "perilune.autograd.function_arguments" (T)
  local call, attach, gradients = S.call, S.attach, S.gradients
  local unflatten, strip, scalar = S.unflatten, S.strip, S.scalar

  local function value_and_grad(who, f, like_zero, ...)
    local key <close> = GradKey {}
    local args = pack(...)
    local xs, wrapped = attach(key, args)
    local y = scalar(who, call(f, unpack(wrapped, 1, args.n)))
    return strip(y, key), unflatten(args, core.key_gradients(key, { y }, nil, xs), like_zero)
  end

  -- T.name(f) is a function; T.name(f, x, …) calls it at once.
  local traced = options.mode
  local function transform(who, compute)
    local function run(...)
      if traced.method then return traced.method(compute, ...) end
      return compute(...)
    end
    return function(f, ...)
      check_function(who, f)
      if select("#", ...) > 0 then return run(f, ...) end
      return function(...) return run(f, ...) end
    end
  end

  -- T.value_and_grad(f)(x, …) → f's value, then a gradient for every argument, nil where f does not depend on it.
  --- T.value_and_grad(f) → function, T.value_and_grad(f, x, …) → value, gradients
  -- As T.grad, with the function's value in front.
  --   local value, g = T.value_and_grad(function(x) return (x * x):sum() end)(T.tensor { 1, 2 })
  --   print(value:item(), g)  --> 5.0	{2., 4.}  -- f32[2] cpu
  T.value_and_grad = transform("value_and_grad", function(f, ...)
    local y, g = value_and_grad("value_and_grad", f, false, ...)
    return y, unpack(g, 1, g.n)
  end)

  --- T.grad(f) → function, T.grad(f, x, …) → gradients
  -- The gradient of a function that returns a scalar, for every argument, in the argument's structure (tensors, tables
  -- of them); nil where it does not depend on it. Nests to any depth.
  --   print(T.grad(T.grad(function(x) return x ^ 3 end))(T.tensor(2.0)))  --> 12.  -- f32[] cpu
  T.grad = transform("grad", function(f, ...)
    local _, g = value_and_grad("grad", f, false, ...)
    return unpack(g, 1, g.n)
  end)

  --- T.vjp(f, x, …) → y, vjp_fn
  -- vjp_fn(dy) → dyᵀ J for every argument, as often as wanted; dy has y's structure, nil counts as zero.
  --   local y, vjp_fn = T.vjp(function(x) return x * x end, T.tensor { 1, 2 })
  --   print(vjp_fn(T.tensor { 1, 10 }))  --> { 2., 40.}  -- f32[2] cpu
  T.vjp = function(f, ...)
    check_function("vjp", f)
    local y, back = core.vjp(f, ...)
    return y, back
  end

  -- The same; a third result is the key, for who can say when it is over. Until then jitted functions run as written.
  core.vjp = function(f, ...)
    local key = GradKey {}
    local args = pack(...)
    local xs, wrapped = attach(key, args)
    local y = S.one("vjp", call(f, unpack(wrapped, 1, args.n)))
    local ys = leaves(y)
    local like = map(y, function(t) return t:detach() end, true)
    local zero = map(args, function(t) return t:detach() end)
    zero.n = args.n
    core.key_rest(key) -- it waits for its walks; traces and other keys need not look out for it
    return strip(y, key), function(dy)
      if dy == nil then
        if not floating(y) or y:numel() ~= 1 then
          fail("vjp: the gradient of the result, %s, is missing", options.describe(y))
        end
        dy = T.ones_like(like)
      end
      local dys, n = beside("vjp", "the gradient of the result", like, dy)
      local g = unflatten(zero, gradients(key, ys, dys, xs, n), true)
      return unpack(g, 1, g.n)
    end, key
  end

  -- ---- whole matrices ------------------------------------------------------------------------------------

  local function total(list)
    local n = 0
    for _, t in ipairs(list) do n = n + t:numel() end
    return n
  end

  -- Rows from … from+count-1 of the unit matrix, each in the shape of `like`.
  local function unit_rows(like, from, count)
    local n = like:numel()
    local rows = T.zeros({ count, n }, { dtype = like:dtype(), device = like:device() })
    rows:diagonal(from - 1):fill_(1)
    return rows:view(count, unpack(like:shape()))
  end

  -- How many passes go at once: their gradients of all leaves together stay below 32 M elements.
  local at_once
  local function chunk_of(n, elements)
    return math.max(1, math.min(n, at_once or (1 << 25) // math.max(1, elements)))
  end

  -- T.debug.jacobian_chunk(n) → what it was: jacobian and hessian take n passes at once; nil: as many as fit.
  core.debug.jacobian_chunk = function(n)
    local was = at_once
    if n ~= nil and (math.type(n) ~= "integer" or n < 1) then
      fail("jacobian_chunk: a whole number from 1 on, or nil, expected, got %s", options.describe(n))
    end
    at_once = n
    return was
  end

  -- J[t, xs] by rows: for every element of `t` the gradients for xs, through `key`. A list beside xs of
  -- [elements of t, elements of x], false where nothing arrives.
  local function pull_rows(key, t, like, xs)
    local parts, n = {}, like:numel()
    for j = 1, #xs do parts[j] = {} end
    local step = chunk_of(n, total(xs) + n)
    for from = 1, n, step do
      local count = math.min(step, n - from + 1)
      local got = core.pull_batch(key, count, { t }, { unit_rows(like, from, count) }, xs)
      for j, x in ipairs(xs) do
        local g = got[j]
        if g then parts[j][#parts[j] + 1] = g:reshape(count, x:numel()) end
      end
    end
    for j = 1, #xs do
      local p = parts[j]
      parts[j] = #p == 1 and p[1]:contiguous() or #p > 1 and T.cat(p, 1)
    end
    return parts
  end

  -- The last argument of T.jacobian and T.hessian if that is a table of options: {mode = "forward" or "reverse"} and
  -- nothing else. Another text there is an error, since it is more likely a slip than an argument of f; so is a table
  -- for which f has no parameter.
  local function take_mode(who, f, ...)
    local args = pack(...)
    local last = args[args.n]
    local takes = type(f) == "function" and args.n > 0 and debug.getinfo(f, "u")
    if takes and not takes.isvararg and args.n > takes.nparams and tree.is_tree(last) then
      options.check(who, last, { "mode" })
    end
    if not tree.is_tree(last) or type(last.mode) ~= "string" or next(last, next(last)) ~= nil then return nil, args end
    if last.mode ~= "forward" and last.mode ~= "reverse" then
      fail('%s: mode must be "forward" or "reverse", got %s', who, options.describe(last.mode))
    end
    args[args.n], args.n = nil, args.n - 1
    return last.mode, args
  end

  -- As transform, for functions with such options.
  local function transform_mode(who, run)
    return function(f, ...)
      check_function(who, f)
      local mode, args = take_mode(who, f, ...)
      if args.n > 0 then return run(mode, f, unpack(args, 1, args.n)) end
      return function(...) return run(mode, f, ...) end
    end
  end

  -- Tangents of the results ys for rows from … from+count-1 of the unit matrix over all elements of the arguments,
  -- many at once: every[i] is [count, elements of y i], or nil. The values themselves are computed once.
  local function push_rows(f, args, like, from, count)
    local level <close> = core.batch_open(count, "same")
    local key <close> = core.forward_key()
    local before = 0
    local y = S.one("jacobian", call(f, unpack(S.wrap(args, function(t, j)
      local n = like[j]:numel()
      local first, last = math.max(from, before + 1), math.min(from + count - 1, before + n)
      if first <= last then
        local rows = T.zeros({ count, n }, { dtype = t:dtype(), device = t:device() })
        rows:narrow(1, first - from + 1, last - first + 1):diagonal(first - before - 1):fill_(1)
        core.forward_attach(key, t, core.batch_wrap(level, rows:view(count, unpack(like[j]:shape()))))
      end
      before = before + n
      return t
    end), 1, args.n)))
    local every = {}
    for i, t in ipairs(leaves(y)) do
      local v = core.tangent(key, t)
      if v then
        v = core.batch_unwrap(level, core.grad_mode() and v or v:detach())
        every[i] = v:reshape(count, t:numel())
      end
    end
    return map(y, function(t) return t:detach() end, true), every
  end

  -- The same as matrices below by tangents, one for each element of the arguments.
  local function forward_matrices(f, args)
    local xs, m, shapes, parts = leaves { unpack(args, 1, args.n) }, {}, { x = {}, y = {} }, {}
    local n, from, y, ys = total(xs), 1, nil, nil
    while from <= n or not ys do
      local count = math.min(chunk_of(n, n + (ys and total(ys) or 1 << 16)), n - from + 1)
      local every
      y, every = push_rows(f, args, xs, from, count)
      ys = leaves(y)
      for i, t in ipairs(ys) do
        parts[i] = parts[i] or {}
        table.insert(parts[i], every[i] or T.zeros({ count, t:numel() }, { dtype = t:dtype(), device = t:device() }))
      end
      from = from + count
    end
    for j, t in ipairs(xs) do shapes.x[j] = t:shape() end
    for i, t in ipairs(ys) do
      local rows, before = #parts[i] == 1 and parts[i][1] or T.cat(parts[i], 1), 0
      m[i], shapes.y[i] = {}, t:shape()
      for j, x in ipairs(xs) do
        m[i][j] = rows:narrow(1, before + 1, x:numel()):t():contiguous()
        before = before + x:numel()
      end
    end
    return m, y, shapes
  end

  -- Matrices [ny, nx] for every pair of leaves: m[y][x]. Many backward passes at once, one for each element of the
  -- results, or, where the results are the larger side, for each element of the arguments.
  local function matrices(mode, f, args)
    if mode == "forward" then return forward_matrices(f, args) end
    local outer <close> = GradKey {}
    local inner <close> = GradKey {}
    local xs, wrapped = attach(inner, args)
    local y = S.one("jacobian", call(f, unpack(wrapped, 1, args.n)))
    local ys, m = leaves(y), {}
    local shapes = { y = {}, x = {} }
    for i, t in ipairs(ys) do m[i], shapes.y[i] = {}, t:shape() end
    for j, t in ipairs(xs) do shapes.x[j] = t:shape() end
    local function zeros(i, j)
      return T.zeros({ ys[i]:numel(), xs[j]:numel() }, { dtype = xs[j]:dtype(), device = xs[j]:device() })
    end
    if mode ~= "reverse" and total(ys) > 2 * total(xs) then
      local us = {}
      for i, t in ipairs(ys) do us[i] = outer:attach(T.zeros_like(t:detach())) end
      local gs = call(core.key_gradients, inner, ys, us, xs)
      for j, x in ipairs(xs) do
        local columns = gs[j] and pull_rows(outer, gs[j], x:detach(), us) or {}
        for i = 1, #ys do m[i][j] = columns[i] and columns[i]:t():contiguous() or zeros(i, j) end
      end
    else
      for i, t in ipairs(ys) do
        local rows = pull_rows(inner, t, t:detach(), xs)
        for j = 1, #xs do m[i][j] = rows[j] or zeros(i, j) end
      end
    end
    return m, y, shapes
  end

  -- T.jacobian(f)(x, …) → for every argument the structure of f's result, holding that of the argument, of tensors
  -- [shape of the result's, shape of the argument's].
  local function jacobian(mode, f, ...)
    local args = pack(...)
    if #leaves(args) == 0 then
      fail("jacobian: no argument is or holds a floating tensor, got %s", options.describe(args[1]))
    end
    local m, y, shapes = matrices(mode, f, args)
    local out, before = {}, 0
    for a = 1, args.n do
      local i, count = 0, #leaves(args[a])
      out[a] = map(y, function(t)
        if not floating(t) then return nil end
        i = i + 1
        local j, row = before, i
        return map(args[a], function(x)
          if not floating(x) then return nil end
          j = j + 1
          local shape = { unpack(shapes.y[row]) }
          return m[row][j]:reshape(table.move(shapes.x[j], 1, #shapes.x[j], #shape + 1, shape))
        end)
      end)
      before = before + count
    end
    return unpack(out, 1, args.n)
  end

  --- T.jacobian(f, {mode=}?) → function, T.jacobian(f, x, …, {mode=}?) → tensors
  -- For every argument a tensor [shape of the result, shape of the argument], in their structures. mode="reverse": a
  -- backward pass for each element of the result; "forward": a tangent for each element of the arguments, which keeps
  -- nothing; many at once either way. Left out: whatever side is the smaller, by backward passes.
  --   print(T.jacobian(function(x) return x * x end)(T.tensor { 1, 2 }))
  --   --> {{2., 0.},
  --   -->  {0., 4.}}  -- f32[2,2] cpu
  T.jacobian = transform_mode("jacobian", jacobian)

  --- T.hessian(f, {mode=}?) → function, T.hessian(f, x, …, {mode=}?) → tensor, or H[i][j] for several arguments
  -- Second derivatives of a scalar function. mode="forward": tangents of the gradient; else backward passes of it.
  --   print(T.hessian(function(x) return (x * x):sum() end)(T.tensor { 1, 2 }))
  --   --> {{2., 0.},
  --   -->  {0., 2.}}  -- f32[2,2] cpu
  T.hessian = transform_mode("hessian", function(mode, f, ...)
    local n = select("#", ...)
    local function gradient(...)
      local _, g = value_and_grad("hessian", f, true, ...)
      g.n = nil
      if n == 1 then return g[1] end
      return g
    end
    if n == 1 then return (jacobian(mode, gradient, ...)) end
    local columns, h = pack(jacobian(mode, gradient, ...)), {}
    for i = 1, n do
      h[i] = {}
      for j = 1, n do h[i][j] = columns[j][i] end
    end
    return h
  end)
end
