-- What the transforms of functions share (functional.lua, forward_mode.lua): arguments attached to a key, its backward,
-- results without what it recorded.
local core = require "perilune.core"
local options = require "perilune.options"
local tree = require "perilune.tree"

local is_tensor, fail = core.is_tensor, options.fail
local floating, map, beside, unpack = tree.floating, tree.map, tree.beside, table.unpack

return function(T)
  local S = {}

  -- Inside no_grad a function is still differentiated, but nothing else sees it.
  function S.call(f, ...)
    if core.grad_mode() then return f(...) end
    return T.enable_grad(f, ...)
  end

  -- The one result of a function: a further tensor would be left out of what is differentiated.
  function S.one(who, y, more)
    if floating(more) then
      fail("%s: the function returned several tensors, of which only the first would be differentiated; return a list "
        .. "of them, { y1, y2 }, or only the first", who)
    end
    return y
  end

  -- The arguments with fresh handles for their floating tensors, each passed to take(handle, its number).
  function S.wrap(args, take)
    local wrapped, n = { n = args.n }, 0
    for i = 1, args.n do
      wrapped[i] = map(args[i], function(t)
        if not floating(t) then return t end
        n = n + 1
        return take(core.grad_mode() and core.alias(t) or t:detach(), n)
      end, true)
    end
    return wrapped
  end

  -- Arguments as aliases attached to the key, and the list of those aliases.
  function S.attach(key, args)
    local xs = {}
    local wrapped = S.wrap(args, function(t, i)
      xs[i] = key:attach(t)
      return xs[i]
    end)
    return xs, wrapped
  end

  -- Gradients of the ys[i] that have a dys[i] (all: dys nil), a list beside xs with false for none.
  function S.gradients(key, ys, dys, xs, n)
    local some, given = {}, dys and {}
    for i = 1, n or #ys do
      if ys[i] and (not dys or dys[i]) then
        some[#some + 1] = ys[i]
        if dys then given[#given + 1] = dys[i] end
      end
    end
    return core.key_gradients(key, some, given, xs)
  end

  -- A list beside the floating leaves of args, in their structure: one value for each argument.
  function S.unflatten(args, list, like_zero)
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
  function S.strip(y, key)
    return map(y, function(t) return core.grad_mode() and core.alias(t, key) or t:detach() end, true)
  end

  function S.scalar(who, y)
    if not floating(y) or y:numel() ~= 1 then
      fail("%s: the function must return a scalar tensor, got %s", who, is_tensor(y) and y:describe() or type(y))
    end
    return y
  end

  -- What multiplies the derivative: given like the arguments, and never left out.
  function S.directions(who, what, args, given)
    if given == nil then fail("%s: %s is missing; it is given like the arguments", who, what) end
    local x = args[1]
    if args.n == 1 and floating(x) and is_tensor(given) and core.alike(x, given) then return { given }, 1 end
    return beside(who, what, { unpack(args, 1, args.n) }, is_tensor(given) and { given } or given)
  end

  -- The results of f and their derivative as a linear function of u, recorded by `outer`: double vjp.
  function S.linear(who, f, args, outer, inner)
    local xs, wrapped = S.attach(inner, args)
    local y = S.one(who, S.call(f, unpack(wrapped, 1, args.n)))
    local ys, us = tree.leaves(y), {}
    for i, t in ipairs(ys) do us[i] = outer:attach(T.zeros_like(t:detach())) end
    return y, us, S.call(core.key_gradients, inner, ys, us, xs)
  end

  return S
end
