-- Gradients of functions: grad, value_and_grad, vjp, jvp, hvp, jacobian, hessian, checkpoint, gradcheck,
-- gradgradcheck, and anomaly. Arguments and results are tensors, tables of them (nested at will), and anything else, which passes
-- through. Every call has a key of its own, so calls nest and an outer program sees the inner one.
local options = require "perilune.options"

return function(T, core)
  local is_tensor, GradKey = core.is_tensor, core.GradKey
  local pack, unpack = table.pack, table.unpack
  local fail = options.fail

  local function check_function(who, f)
    local meta = getmetatable(f)
    if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
      fail("%s: a function expected, got %s", who, type(f))
    end
    return f
  end
  local function floating(t) return is_tensor(t) and t:is_floating_point() end

  -- ---- nested tables -----------------------------------------------------------------------------------

  -- Keys in a fixed order: 1 … n, then the rest by their text.
  local function keys(t)
    local list, rest = {}, {}
    for i = 1, #t do list[i] = i end
    for k in pairs(t) do
      if not (math.type(k) == "integer" and k >= 1 and k <= #t) then rest[#rest + 1] = k end
    end
    table.sort(rest, function(a, b) return tostring(a) < tostring(b) end)
    return table.move(rest, 1, #rest, #list + 1, list)
  end
  local function is_tree(v) return type(v) == "table" and getmetatable(v) == nil end

  -- The same structure with f(tensor) for every tensor; other values stay if `keep`.
  local function map(v, f, keep, depth)
    if is_tensor(v) then return f(v) end
    if not is_tree(v) then
      if keep then return v end
      return nil
    end
    depth = depth or 0
    if depth > 100 then fail("tables of tensors are nested more than 100 deep; is one inside itself?") end
    local out = {}
    for _, k in ipairs(keys(v)) do out[k] = map(v[k], f, keep, depth + 1) end
    return out
  end

  local function leaves(v)
    local list = {}
    map(v, function(t) if floating(t) then list[#list + 1] = t end end)
    return list
  end

  -- Leaves of `v` beside those of `like`, which must have the structure; nil where `v` has none.
  local function beside(who, what, like, v)
    local list, n = {}, 0
    local function walk(a, b)
      if is_tensor(a) then
        if not floating(a) then return end
        n = n + 1
        if b == nil then return end
        if not is_tensor(b) then fail("%s: %s must be a tensor like %s, got %s", who, what, a:describe(), type(b)) end
        if not a:is_same_size(b) or a:dtype() ~= b:dtype() then
          fail("%s: %s is %s, but must be like %s", who, what, b:describe(), a:describe())
        end
        list[n] = b
      elseif is_tree(a) and b ~= nil then
        if not is_tree(b) then
          fail("%s: %s must be a table like the other, got %s", who, what, options.describe(b))
        end
        for _, k in ipairs(keys(a)) do walk(a[k], b[k]) end
      elseif is_tree(a) then
        n = n + #leaves(a)
      end
    end
    walk(like, v)
    return list, n
  end

  -- ---- through one key ------------------------------------------------------------------------------------

  -- Arguments as aliases attached to the key, and the list of those aliases.
  local function attach(key, args)
    local xs, wrapped = {}, { n = args.n }
    for i = 1, args.n do
      wrapped[i] = map(args[i], function(t)
        if not floating(t) then return t end
        local x = key:attach(core.alias(t))
        xs[#xs + 1] = x
        return x
      end, true)
    end
    return xs, wrapped
  end

  -- Gradients of the ys[i] that have a dys[i] (all: dys nil), a list beside xs with false for none.
  local function pull(key, ys, dys, xs, n)
    local some, given = {}, dys and {}
    for i = 1, n or #ys do
      if ys[i] and (not dys or dys[i]) then
        some[#some + 1] = ys[i]
        if dys then given[#given + 1] = dys[i] end
      end
    end
    return core.pull(key, some, given, xs)
  end

  -- A list beside the floating leaves of args, in their structure: one value for each argument.
  local function unflatten(args, list, like_zero)
    local n, out = 0, { n = args.n }
    for i = 1, args.n do
      out[i] = map(args[i], function(t)
        if not floating(t) then return nil end
        n = n + 1
        if list[n] then return list[n]:contiguous() end
        return like_zero and T.zeros_like(t) or nil
      end)
    end
    return out
  end

  -- Without what the key recorded: what the caller gets.
  local function strip(y, key) return map(y, function(t) return core.alias(t, key) end, true) end

  local function scalar(who, y)
    if not floating(y) or y:numel() ~= 1 then
      fail("%s: the function must return a scalar tensor, got %s", who, is_tensor(y) and y:describe() or type(y))
    end
    return y
  end

  local function value_and_grad(who, f, like_zero, ...)
    local key <close> = GradKey {}
    local args = pack(...)
    local xs, wrapped = attach(key, args)
    local y = scalar(who, f(unpack(wrapped, 1, args.n)))
    return strip(y, key), unflatten(args, core.pull(key, { y }, nil, xs), like_zero)
  end

  -- T.name(f) is a function; T.name(f, x, …) calls it at once.
  local function transform(who, run)
    return function(f, ...)
      check_function(who, f)
      if select("#", ...) > 0 then return run(f, ...) end
      return function(...) return run(f, ...) end
    end
  end

  -- T.value_and_grad(f)(x, …) → f's value, then a gradient for every argument (nil where f does not depend on it).
  T.value_and_grad = transform("value_and_grad", function(f, ...)
    local y, g = value_and_grad("value_and_grad", f, false, ...)
    return y, unpack(g, 1, g.n)
  end)

  -- T.grad(f)(x, …) → gradients of a scalar function.
  T.grad = transform("grad", function(f, ...)
    local _, g = value_and_grad("grad", f, false, ...)
    return unpack(g, 1, g.n)
  end)

  -- T.vjp(f, x, …) → y, pull: pull(dy) → dyᵀJ for every argument, as often as wanted. dy has y's structure, nil is zero.
  T.vjp = function(f, ...)
    check_function("vjp", f)
    local key = GradKey {}
    local args = pack(...)
    local xs, wrapped = attach(key, args)
    local y = f(unpack(wrapped, 1, args.n))
    local ys = leaves(y)
    local like = map(y, function(t) return t:detach() end, true)
    local zero = map(args, function(t) return t:detach() end)
    zero.n = args.n
    return strip(y, key), function(dy)
      local dys, n = beside("vjp", "the gradient of the result", like, dy)
      local g = unflatten(zero, pull(key, ys, dys, xs, n), true)
      return unpack(g, 1, g.n)
    end
  end

  local function list_of(who, primals)
    if is_tensor(primals) then return { n = 1, primals } end
    if not is_tree(primals) then
      fail("%s: a tensor or the list of arguments expected, got %s", who, options.describe(primals))
    end
    return pack(unpack(primals))
  end

  -- The results of f and their derivative as a linear function of u, recorded by `outer`: double vjp.
  local function linear(f, args, outer, inner)
    local xs, wrapped = attach(inner, args)
    local y = f(unpack(wrapped, 1, args.n))
    local ys, us = leaves(y), {}
    for i, t in ipairs(ys) do us[i] = outer:attach(T.zeros_like(t:detach())) end
    return y, us, core.pull(inner, ys, us, xs), xs, ys
  end

  -- T.jvp(f, x, v) → y, J v; T.jvp(f, {x1, x2, …}, {v1, v2, …}) for several arguments.
  T.jvp = function(f, primals, tangents)
    check_function("jvp", f)
    local args = list_of("jvp", primals)
    local vs, n = beside("jvp", "the tangent", { unpack(args, 1, args.n) }, is_tensor(tangents) and { tangents } or tangents)
    local outer <close> = GradKey {}
    local inner <close> = GradKey {}
    local y, us, gs = linear(f, args, outer, inner)
    local jv = pull(outer, gs, vs, us, n)
    local i = 0
    local tangent = map(y, function(t)
      if not floating(t) then return nil end
      i = i + 1
      return jv[i] and jv[i]:contiguous() or T.zeros_like(t:detach())
    end)
    return map(strip(y, inner), function(t) return core.alias(t, outer) end, true), tangent
  end

  -- T.hvp(f, x, v) → y, H v of a scalar function; lists for several arguments, as for jvp.
  T.hvp = function(f, primals, v)
    check_function("hvp", f)
    local args = list_of("hvp", primals)
    local vs, n = beside("hvp", "the vector", { unpack(args, 1, args.n) }, is_tensor(v) and { v } or v)
    local outer <close> = GradKey {}
    local xs, wrapped = attach(outer, args)
    local y, gs
    do
      local inner <close> = GradKey {}
      local own, again = attach(inner, wrapped)
      y = scalar("hvp", f(unpack(again, 1, args.n)))
      gs = core.pull(inner, { y }, nil, own)
    end
    local hv = unflatten(args, pull(outer, gs, vs, xs, n), true)
    y = core.alias(y, outer)
    if is_tensor(primals) then return y, hv[1] end
    hv.n = nil
    return y, hv
  end

  -- ---- whole matrices --------------------------------------------------------------------------------------------

  local function one_hot(like, i)
    local v = T.zeros({ like:numel() }, { dtype = like:dtype() })
    v:set(i, 1)
    return v:view(like:shape())
  end

  local function total(list)
    local n = 0
    for _, t in ipairs(list) do n = n + t:numel() end
    return n
  end

  -- Matrices [ny, nx] for every pair of leaves: m[y][x]. A pass for each element of the results, or, where the
  -- results are the larger side, for each element of the arguments.
  local function matrices(f, args)
    local outer <close> = GradKey {}
    local inner <close> = GradKey {}
    local xs, wrapped = attach(inner, args)
    local y = f(unpack(wrapped, 1, args.n))
    local ys, m = leaves(y), {}
    local shapes = { y = {}, x = {} }
    for i, t in ipairs(ys) do m[i], shapes.y[i] = {}, t:shape() end
    for j, t in ipairs(xs) do shapes.x[j] = t:shape() end
    local function zeros(i, j)
      return T.zeros({ ys[i]:numel(), xs[j]:numel() }, { dtype = xs[j]:dtype() })
    end
    if total(ys) > 2 * total(xs) then
      local us = {}
      for i, t in ipairs(ys) do us[i] = outer:attach(T.zeros_like(t:detach())) end
      local gs = core.pull(inner, ys, us, xs)
      for j, x in ipairs(xs) do
        local columns = {}
        for i = 1, #ys do columns[i] = {} end
        for e = 1, gs[j] and x:numel() or 0 do
          local jv = core.pull(outer, { gs[j] }, { one_hot(x:detach(), e) }, us)
          for i = 1, #ys do
            columns[i][e] = jv[i] and jv[i]:reshape(-1) or T.zeros({ ys[i]:numel() }, { dtype = ys[i]:dtype() })
          end
        end
        for i = 1, #ys do m[i][j] = columns[i][1] and T.stack(columns[i], 2) or zeros(i, j) end
      end
    else
      for i, t in ipairs(ys) do
        local rows = {}
        for j = 1, #xs do rows[j] = {} end
        for e = 1, t:numel() do
          local g = core.pull(inner, { t }, { one_hot(t:detach(), e) }, xs)
          for j, x in ipairs(xs) do
            rows[j][e] = g[j] and g[j]:reshape(-1) or T.zeros({ x:numel() }, { dtype = x:dtype() })
          end
        end
        for j = 1, #xs do m[i][j] = rows[j][1] and T.stack(rows[j], 1) or zeros(i, j) end
      end
    end
    return m, y, shapes, xs, ys
  end

  -- T.jacobian(f)(x, …) → for every argument the structure of f's result, holding that of the argument, of tensors
  -- [shape of the result's, shape of the argument's].
  local function jacobian(f, ...)
    local args = pack(...)
    local m, y, shapes = matrices(f, args)
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
  T.jacobian = transform("jacobian", jacobian)

  -- T.hessian(f)(x) → tensor [shape of x, shape of x]; H[i][j] for several arguments.
  T.hessian = transform("hessian", function(f, ...)
    local n = select("#", ...)
    local function gradient(...)
      local _, g = value_and_grad("hessian", f, true, ...)
      g.n = nil
      if n == 1 then return g[1] end
      return g
    end
    if n == 1 then return (jacobian(gradient, ...)) end
    local columns, h = pack(jacobian(gradient, ...)), {}
    for i = 1, n do
      h[i] = {}
      for j = 1, n do h[i][j] = columns[j][i] end
    end
    return h
  end)

  -- ---- checkpoint -----------------------------------------------------------------------------------------------------

  -- Runs f with the generator in the given state and puts it back.
  local function with_random(state, f, ...)
    local was = core.get_rng_state()
    core.set_rng_state(state)
    local out = pack(pcall(f, ...))
    core.set_rng_state(was)
    if not out[1] then error(out[2], 0) end
    return pack(unpack(out, 2, out.n))
  end

  -- T.checkpoint(f, x, …) → what f(x, …) returns. Keeps only the arguments; backward runs f again, with the same
  -- random numbers. Parameters that f uses get their gradients; anything else that needs one must be an argument.
  T.checkpoint = function(f, ...)
    check_function("checkpoint", f)
    local args, inputs = pack(...), {}
    local random, since = core.get_rng_state(), core.record_number()
    local plain = { n = args.n }
    for i = 1, args.n do
      plain[i] = map(args[i], function(t)
        inputs[#inputs + 1] = t
        return t:detach()
      end, true)
    end
    local out = pack(f(unpack(plain, 1, args.n)))
    local made = leaves({ unpack(out, 1, out.n) })
    if #made == 0 then return unpack(out, 1, out.n) end
    local outside, computed = core.captured(made, since)
    if computed then
      fail("checkpoint: the function reads a tensor that was computed outside of it and needs a gradient; pass it as an argument")
    end
    local results = {}
    for i, y in ipairs(made) do results[i] = y:detach() end
    local count = #made
    local rule = core.custom {
      name = "checkpoint",
      forward = function(ctx, ...)
        ctx:save(...)
        return unpack(results)
      end,
      backward = function(ctx, ...)
        local saved, dys = pack(ctx:saved()), pack(...)
        local key <close> = GradKey {}
        local _ <close> = T.enable_grad()
        local xs, where, at = {}, {}, 0
        local again = { n = args.n }
        for i = 1, args.n do
          again[i] = map(args[i], function()
            at = at + 1
            local t = saved[at]
            if not floating(t) then return t end
            t = key:attach(core.alias(t))
            xs[#xs + 1], where[#where + 1] = t, at
            return t
          end, true)
        end
        for _, t in ipairs(outside) do
          at = at + 1
          xs[#xs + 1], where[#where + 1] = key:attach(t), at
        end
        local second = with_random(random, f, unpack(again, 1, args.n))
        local ys = leaves({ unpack(second, 1, second.n) })
        if #ys ~= count then
          fail("checkpoint: the function returned %d tensors, and %d when run again", count, #ys)
        end
        local got, grads = pull(key, ys, dys, xs, count), {}
        for i, g in ipairs(got) do grads[where[i]] = g or nil end
        return unpack(grads, 1, saved.n)
      end,
    }
    local operands = table.move(outside, 1, #outside, #inputs + 1, { unpack(inputs) })
    local tracked = pack(rule(unpack(operands)))
    results = nil -- the rule lives as long as what was computed with it
    local i = 0
    local final = map({ unpack(out, 1, out.n) }, function(t)
      if not floating(t) then return t end
      i = i + 1
      return tracked[i]
    end, true)
    return unpack(final, 1, out.n)
  end

  -- ---- checks -------------------------------------------------------------------------------------------------------------

  local check_options = { "eps", "atol", "rtol" }

  -- Difference quotients: [ny, nx] for every pair, as m[y][x].
  local function quotients(f, args, eps)
    local function values(a)
      local was = core.grad_enabled(false)
      local ok, y = pcall(function()
        local r = pack(f(unpack(a, 1, a.n)))
        return leaves(r.n == 1 and r[1] or { unpack(r, 1, r.n) })
      end)
      core.grad_enabled(was)
      if not ok then error(y, 0) end
      for i, t in ipairs(y) do y[i] = t:detach():clone():reshape(-1) end
      return y
    end
    local xs = {}
    local own = { n = args.n }
    for i = 1, args.n do
      own[i] = map(args[i], function(t)
        if not floating(t) then return t end
        xs[#xs + 1] = t:detach():contiguous():clone()
        return xs[#xs]
      end, true)
    end
    local m = {}
    for j, x in ipairs(xs) do
      local flat = x:view(-1)
      local columns = {}
      for e = 1, x:numel() do
        local v = flat:get(e)
        flat:set(e, v + eps)
        local up = values(own)
        flat:set(e, v - eps)
        local down = values(own)
        flat:set(e, v)
        for i in ipairs(up) do
          columns[i] = columns[i] or {}
          columns[i][e] = (up[i] - down[i]) / (2 * eps)
        end
      end
      for i, list in pairs(columns) do
        m[i] = m[i] or {}
        m[i][j] = T.stack(list, 2)
      end
    end
    return m
  end

  local function gradcheck(who, f, inputs, opts)
    check_function(who, f)
    local o = options.check(who, opts, check_options)
    local args = list_of(who, inputs)
    for _, t in ipairs(leaves({ unpack(args, 1, args.n) })) do
      if t:dtype() ~= "f64" then fail("%s: the inputs must be f64 for difference quotients, got %s", who, t:describe()) end
    end
    local function listed(...)
      local r = pack(f(...))
      return r.n == 1 and r[1] or { unpack(r, 1, r.n) }
    end
    local plain = { n = args.n }
    for i = 1, args.n do plain[i] = map(args[i], function(t) return t:detach():clone() end, true) end
    local analytic, _, _, xs, ys = matrices(listed, plain)
    if #xs == 0 then fail("%s: there is no floating tensor among the inputs", who) end
    local numeric = quotients(f, plain, o.eps or 1e-6)
    for i = 1, #ys do
      for j = 1, #xs do
        local a, b = analytic[i][j]:detach(), numeric[i] and numeric[i][j]
        if b and not a:allclose(b, { rtol = o.rtol or 1e-3, atol = o.atol or 1e-5 }) then
          local apart = (a - b):abs()
          local worst = apart:argmax():item()
          return false, ("%s: result %d, input %d: gradient %.9g, difference quotient %.9g (result element %d, input element %d)"):format(
            who, i, j, a:reshape(-1):get(worst), b:reshape(-1):get(worst), (worst - 1) // a:size(2) + 1, (worst - 1) % a:size(2) + 1)
        end
      end
    end
    return true
  end

  -- T.gradcheck(f, {x, …}, {eps=1e-6, atol=1e-5, rtol=1e-3}) → true, or false and what differs. Inputs in f64.
  T.gradcheck = function(f, inputs, opts) return gradcheck("gradcheck", f, inputs, opts) end

  -- The same for the gradient of f, against random directions.
  T.gradgradcheck = function(f, inputs, opts)
    check_function("gradgradcheck", f)
    local args = list_of("gradgradcheck", inputs)
    local directions
    do
      local _ <close> = T.no_grad()
      directions = map(pack(f(unpack(args, 1, args.n))), function(t)
        return floating(t) and T.randn(t:shape(), { dtype = t:dtype() }) or nil
      end)
      directions.n = nil
    end
    local all = { unpack(args, 1, args.n) }
    all[args.n + 1] = directions
    local function gradient(...)
      local a = pack(...)
      local dys = a[args.n + 1]
      local key <close> = GradKey {}
      local xs, wrapped = attach(key, pack(unpack(a, 1, args.n)))
      local ys = leaves(pack(f(unpack(wrapped, 1, args.n))))
      local grads = {}
      for _, g in ipairs(core.pull(key, ys, leaves(dys), xs)) do
        if g then grads[#grads + 1] = g end
      end
      return grads
    end
    return gradcheck("gradgradcheck", gradient, all, opts)
  end

  -- ---- anomalies ------------------------------------------------------------------------------------------------------------

  local scope = { __close = function(self)
    if self.was ~= nil then core.anomaly(self.was) end
    self.was = nil
  end }

  -- T.anomaly(true): backward stops at the op whose gradient first holds NaN or Inf and names the line that recorded it; errors about
  -- overwritten tensors name both lines. Slow. Returns a scope object that restores; T.anomaly() → is it on?
  T.anomaly = function(on)
    if on == nil then return core.anomaly() end
    if type(on) ~= "boolean" then fail("anomaly: true or false expected, got %s", type(on)) end
    return setmetatable({ was = core.anomaly(on) }, scope)
  end
end
