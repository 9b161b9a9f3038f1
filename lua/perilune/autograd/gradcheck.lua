-- gradcheck and gradgradcheck: gradients against difference quotients; anomaly: where NaN comes from.
local options = require "perilune.options"
local tree = require "perilune.tree"

return function(T, core)
  -- T.vjp with its key, which would else keep jitted functions from their graphs until it is collected.
  local function vjp(...)
    local _ = T.vjp -- comes with the same file
    return core.vjp(...)
  end

  local pack, unpack, fail = table.pack, table.unpack, options.fail
  local floating, map, leaves = tree.floating, tree.map, tree.leaves
  local list_of, check_function = tree.arguments, tree.check_function

  local check_options = { "eps", "atol", "rtol", "nondet_tol" }

  -- Difference quotients: [ny, nx] for every pair, as m[y][x].
  local function quotients(f, args, eps)
    local function values(a)
      local r = pack(f(unpack(a, 1, a.n)))
      local y = leaves({ unpack(r, 1, r.n) })
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

  -- Gradients: [ny, nx] for every pair, a backward for every element of the results.
  local function gradients(f, args)
    local y, vjp_fn, key = vjp(function(...)
      local r = pack(f(...))
      return leaves({ unpack(r, 1, r.n) })
    end, unpack(args, 1, args.n))
    local _ <close> = key
    local m = {}
    for i, t in ipairs(y) do
      local rows = {}
      for e = 1, t:numel() do
        local dy = T.zeros({ t:numel() }, { dtype = t:dtype(), device = t:device() })
        dy:set(e, 1)
        for j, g in ipairs(leaves({ vjp_fn({ [i] = dy:view(t:shape()) }) })) do
          rows[j] = rows[j] or {}
          rows[j][e] = g:detach():reshape(-1)
        end
      end
      m[i] = {}
      for j, list in ipairs(rows) do m[i][j] = T.stack(list, 1) end
    end
    return m
  end

  local message = "%s: result %d, input %d: gradient %.9g, difference quotient %.9g (element %d by element %d)"

  local again_message = "%s: the gradient of input %d by result %d is another one the second time: the function or "
    .. "a rule draws numbers or keeps a state; nondet_tol allows a difference"

  local function gradcheck(who, f, inputs, opts)
    local o = options.check(who, opts, check_options)
    local args = list_of(who, inputs)
    local plain, count = { n = args.n }, 0
    for i = 1, args.n do
      plain[i] = map(args[i], function(t)
        if not floating(t) then return t end
        if t:dtype() ~= "f64" then
          fail("%s: the inputs must be f64 for difference quotients, got %s", who, t:describe())
        end
        count = count + 1
        return t:detach():clone()
      end, true)
    end
    if count == 0 then fail("%s: there is no floating tensor among the inputs", who) end
    local analytic, numeric = gradients(f, plain), quotients(f, plain, o.eps or 1e-6)
    if #analytic == 0 then fail("%s: the function returned no floating tensor", who) end
    for i, row in ipairs(gradients(f, plain)) do -- a rule that draws numbers, or that edits what forward saved
      for j, again in ipairs(row) do
        if not analytic[i][j]:allclose(again, { rtol = 0, atol = o.nondet_tol or 0, equal_nan = true }) then
          return false, again_message:format(who, j, i)
        end
      end
    end
    for i, row in ipairs(analytic) do
      for j, a in ipairs(row) do
        local b = numeric[i][j]
        if not a:allclose(b, { rtol = o.rtol or 1e-3, atol = o.atol or 1e-5 }) then
          local worst = (a - b):abs():reshape(-1):argmax():item()
          return false, message:format(who, i, j, a:reshape(-1):get(worst), b:reshape(-1):get(worst),
            (worst - 1) // a:size(2) + 1, (worst - 1) % a:size(2) + 1)
        end
      end
    end
    return true
  end

  --- T.gradcheck(f, {x, …}, {eps=1e-6, atol=1e-5, rtol=1e-3, nondet_tol=0}) → true, or false and what differs
  -- Compares f's gradients with difference quotients, and with themselves, computed again. The inputs are f64.
  --   print(T.gradcheck(T.tanh, { T.randn({ 3 }, { dtype = "f64" }) }))  --> true
  T.gradcheck = function(f, inputs, opts)
    check_function("gradcheck", f)
    return gradcheck("gradcheck", f, inputs, opts)
  end

  --- T.gradgradcheck(f, {x, …}, {eps=1e-6, atol=1e-5, rtol=1e-3, nondet_tol=0}) → true, or false and what differs
  -- As T.gradcheck, for the gradient of f along random directions.
  --   print(T.gradgradcheck(T.tanh, { T.randn({ 3 }, { dtype = "f64" }) }))  --> true
  T.gradgradcheck = function(f, inputs, opts)
    check_function("gradgradcheck", f)
    local args = list_of("gradgradcheck", inputs)
    local directions
    do
      local _ <close> = T.no_grad()
      directions = map(pack(f(unpack(args, 1, args.n))), function(t)
        return floating(t) and T.randn(t:shape(), { dtype = t:dtype(), device = t:device() }) or nil
      end)
      directions.n = nil
    end
    local all = { unpack(args, 1, args.n) }
    all[args.n + 1] = directions
    local function gradient(...)
      local a = pack(...)
      local dys = a[args.n + 1]
      local y, vjp_fn, key = vjp(function(...) return leaves(pack(f(...))) end, unpack(a, 1, args.n))
      local _ <close> = key
      if #y == 0 then fail("gradgradcheck: the function returned no floating tensor") end
      return leaves({ vjp_fn(leaves(dys)) })
    end
    return gradcheck("gradgradcheck", gradient, all, opts)
  end

  local scope = { __close = function(self)
    if self.was ~= nil then core.anomaly(self.was) end
    self.was = nil
  end }

  --- T.anomaly(on) → scope, T.anomaly() → is it on?
  -- While on, backward stops at the op whose gradient first holds NaN or Inf and names the line that recorded it;
  -- errors about overwritten tensors name both lines. Slow. The scope restores what was.
  --   do
  --     local _ <close> = T.anomaly(true)
  --     print(T.anomaly())  --> true
  --   end
  --   print(T.anomaly())    --> false
  T.anomaly = function(on)
    if on == nil then return core.anomaly() end
    if type(on) ~= "boolean" then fail("anomaly: true or false expected, got %s", type(on)) end
    return setmetatable({ was = core.anomaly(on) }, scope)
  end
end
