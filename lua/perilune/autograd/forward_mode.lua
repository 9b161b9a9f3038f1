-- J v and H v: jvp, linearize, hvp. For jvp a key of tangents (engine/grad/forward_mode.c) computes J v beside f.
local options = require "perilune.options"
local tree = require "perilune.tree"

return function(T, core)
  local S = require "perilune.autograd.function_arguments" (T)
  local call, strip, unpack, fail = S.call, S.strip, table.unpack, options.fail
  local floating, map = tree.floating, tree.map
  local is_tensor = core.is_tensor

  -- f(args) where the i-th floating tensor among the arguments has the tangent vs[i]; take(key, y) while that holds.
  local function with_tangents(who, f, args, vs, take)
    local key <close> = core.forward_key()
    local wrapped = S.wrap(args, function(t, i)
      if vs[i] then core.forward_attach(key, t, core.grad_mode() and vs[i] or vs[i]:detach()) end
      return t
    end)
    return take(key, S.one(who, call(f, unpack(wrapped, 1, args.n))))
  end

  -- The tangents of the tensors in y, zeros where there is none; in memory that none of vs has.
  local function tangents(key, y, vs)
    return map(y, function(t)
      if not floating(t) then return nil end
      local v = core.tangent(key, t, vs)
      if not v then return T.zeros_like(t:detach()) end
      v = v:contiguous()
      return core.grad_mode() and v or v:detach()
    end)
  end

  --- T.jvp(f, x, v) → y, J v
  -- Lists of arguments and of tangents for several: T.jvp(f, {x1, x2}, {v1, v2}); no tangent means zero. Forward mode:
  -- f runs once, each op computes its tangent beside its result, and nothing is kept for backward. Nests with T.grad,
  -- T.vmap, T.jit and itself.
  --   local _, jv = T.jvp(function(x) return x * x:sum() end, T.tensor { 1, 2 }, T.tensor { 1, 0 })
  --   print(jv)  --> {4., 2.}  -- f32[2] cpu
  T.jvp = core.jvp_function(function(f, primals, given)
    tree.check_function("jvp", f)
    local args = tree.arguments("jvp", primals)
    local vs = S.directions("jvp", "the tangent", args, given)
    return with_tangents("jvp", f, args, vs, function(key, y)
      local jv = tangents(key, y, vs)
      return strip(y, key), jv
    end)
  end, function(key, y, given)
    local v = tangents(key, y, { given })
    return strip(y, key), v
  end)

  --- T.linearize(f, x, …) → y, push
  -- push(v, …) → J v at x, with one tangent for each argument (none means zero), as often as wanted: f runs once, and
  -- only what depends on v is computed again.
  --   local y, push = T.linearize(function(x) return x * x end, T.tensor { 1, 2 })
  --   print(y, push(T.tensor { 1, 10 }))  --> {1., 4.}  -- f32[2] cpu	{ 2., 40.}  -- f32[2] cpu
  T.linearize = function(f, ...)
    tree.check_function("linearize", f)
    local args = table.pack(...)
    local outer, inner = core.GradKey {}, core.GradKey {}
    local y, us, gs = S.linear("linearize", f, args, outer, inner)
    local like = map(y, function(t) return t:detach() end, true)
    local zero = map(args, function(t) return t:detach() end)
    return strip(strip(y, inner), outer), function(...)
      local given = table.pack(...)
      if given.n > args.n then fail("linearize: %d tangents for %d arguments", given.n, args.n) end
      local vs, n = tree.beside("linearize", "the tangent", { unpack(zero, 1, args.n) }, { unpack(given, 1, given.n) })
      local jv, i = S.gradients(outer, gs, vs, us, n), 0
      return map(like, function(t)
        if not floating(t) then return nil end
        i = i + 1
        return jv[i] and jv[i]:contiguous() or T.zeros_like(t)
      end)
    end
  end

  -- T.hvp(f, x, v) → y, H v of a scalar function; lists for several arguments, as for jvp. The gradient of
  -- ⟨gradient, v⟩: that takes less time than the tangent of the gradient (bench/forward.lua), and checkpoints save
  -- memory in it.
  --- T.hvp(f, x, v) → y, H v
  -- The second derivative of a scalar function times a vector; lists as for T.jvp.
  --   local _, hv = T.hvp(function(x) return (x ^ 3):sum() end, T.tensor { 1, 2 }, T.tensor { 1, 1 })
  --   print(hv)  --> { 6., 12.}  -- f32[2] cpu
  T.hvp = function(f, primals, given)
    tree.check_function("hvp", f)
    local args = tree.arguments("hvp", primals)
    local vs, n = S.directions("hvp", "the vector", args, given)
    local outer <close> = core.GradKey {}
    local xs, wrapped = S.attach(outer, args)
    local y, gs
    do
      local inner <close> = core.GradKey {}
      local own, again = call(S.attach, inner, wrapped)
      y = S.scalar("hvp", call(f, unpack(again, 1, args.n)))
      gs = call(core.key_gradients, inner, { y }, nil, own)
    end
    local hv = S.unflatten(args, S.gradients(outer, gs, vs, xs, n), true)
    y = strip(y, outer)
    if is_tensor(primals) then return y, hv[1] end
    hv.n = nil
    return y, hv
  end
end
