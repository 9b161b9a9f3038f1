-- SPDX-License-Identifier: MIT
-- Statements of random programs about gradients: rules, hooks, backward, keys.
local ref = require "spec.support.whole.reference"

return function(K)
  local common = K.common
  local var, vars, get, tensor, set, same, invalid = common.var, common.vars, common.get, common.tensor, common.set,
    common.same, ref.invalid

  -- ---- rules written in Lua
  -- ---------------------------------------------------------------------------------------------

  K.custom = {
    text = function(s) return ("%s = C.%s(%s)"):format(vars(s.o), s.f, vars(s.a)) end,
    run = function(r, s)
      local a, b = tensor(r, s.a[1]), s.a[2] and tensor(r, s.a[2])
      local x, y = r:read(a), b and r:read(b)
      if s.f == "cube" then
        local x3 = {}
        for i, v in ipairs(x.v) do x3[i] = v * v * v end
        local z = r:record("cube", { x }, { x3 }, function(g) return { r:scale(r:mul(r:mul(g[1], x), x), 3) } end,
          r:saved(a))
        set(r, s.o[1], r:tensor(z, a.shape, a.plain))
      elseif s.f == "half" then -- the rule is not the derivative
        local v = {}
        for i, c in ipairs(x.v) do v[i] = math.sin(c) end
        local z = r:record("half", { x }, { v }, function(g) return { r:scale(g[1], 0.5) } end)
        set(r, s.o[1], r:tensor(z, a.shape, a.plain))
      elseif s.f == "pair" then
        if not same(a.shape, b.shape) then invalid "shapes do not fit" end
        local p, q = {}, {}
        for i = 1, #x.v do p[i], q[i] = x.v[i] * y.v[i], x.v[i] + y.v[i] end
        local z, w = r:record("pair", { x, y }, { p, q }, function(g)
          local dx, dy
          if g[1] then dx, dy = r:mul(g[1], y), r:mul(g[1], x) end
          if g[2] then dx, dy = dx and r:add(dx, g[2]) or g[2], dy and r:add(dy, g[2]) or g[2] end
          return { dx, dy }
        end, r:saved(a, b))
        set(r, s.o[1], r:tensor(z, a.shape, false))
        set(r, s.o[2], r:tensor(w, a.shape, false))
      elseif s.f == "turn" then -- a view of what was made inside: nobody may write there
        if #a.shape < 2 then invalid "1-d" end
        local there, shape = K.views.transpose.pick(nil, a.shape)
        local v, back = {}, {}
        for i, j in ipairs(there) do
          v[i] = 2 * x.v[j]
          back[i] = { j, i, 2 }
        end
        local z = r:record("turn", { x }, { v }, function(g) return { r:linear(g[1], #v, back) } end)
        local t = set(r, s.o[1], r:tensor(z, shape, false))
        t.history.foreign = next(z.e) ~= nil
      else -- first: a gradient for the first argument alone
        if not same(a.shape, b.shape) then invalid "shapes do not fit" end
        local v = {}
        for i = 1, #x.v do v[i] = x.v[i] - y.v[i] end
        local z = r:record("first", { x, y }, { v }, function(g) return { r:scale(g[1], 2) } end)
        set(r, s.o[1], r:tensor(z, a.shape, false))
      end
    end,
  }

  -- ---- gradients
  -- -----------------------------------------------------------------------------------------------------------

  local function log(r, id, vec) r.log[#r.log + 1] = { at = r.at, id = id, v = { table.unpack(vec.v) } } end

  local replace = {
    look = { text = "", f = function() end },
    scale = { text = " return g * 3", f = function(r, g) return r:scale(g, 3) end },
    shift = { text = " return g + 0.5", f = function(r, g) return r:add(g, ref.fill(#g.v, 0.5)) end },
    sin = { text = " return g:sin()", f = function(r, g) return r:unary("sin", g) end },
    zero = { text = " return T.zeros_like(g)", f = function(_, g) return ref.fill(#g.v, 0.0) end },
  }
  K.replace = replace
  K.hook = {
    text = function(s) return ("%s:register_hook(function(g) L(%d, g)%s end)"):format(var(s.a[1]), s.id,
      replace[s.f].text) end,
    run = function(r, s)
      r:hook(tensor(r, s.a[1]), function(g)
        log(r, s.id, g)
        return replace[s.f].f(r, g)
      end)
    end,
  }

  local function options(s)
    local l = {}
    if s.retain then l[#l + 1] = "retain_graph = true" end
    if s.create then l[#l + 1] = "create_graph = true" end
    if s.unused then l[#l + 1] = "allow_unused = true" end
    if s.into then l[#l + 1] = "inputs = { " .. vars(s.into) .. " }" end
    return #l > 0 and "{ " .. table.concat(l, ", ") .. " }" or ""
  end

  -- The loss: the sum of a tensor's elements.
  local function loss(r, id)
    local t = tensor(r, id)
    if #t.shape == 0 then return t, var(id) end
    local terms = {}
    for i = 1, #t.map do terms[i] = { 1, i, 1 } end
    return r:tensor(r:linear(r:read(t), 1, terms), {})
  end

  K.backward = {
    text = function(s)
      local y = s.scalar and var(s.a[1]) or var(s.a[1]) .. ":sum()"
      local o = options(s)
      return o == "" and y .. ":backward()" or ("%s:backward(%s)"):format(y, o)
    end,
    run = function(r, s)
      local t = tensor(r, s.a[1])
      if (#t.shape == 0) ~= (s.scalar or false) then invalid "not a scalar" end
      local y = loss(r, s.a[1])
      if s.into then
        local xs = {}
        for i, id in ipairs(s.into) do
          xs[i] = tensor(r, id)
          if not xs[i].leaf then invalid "not a leaf" end
        end
        for i, g in ipairs(r:grad_of({ y }, xs, s)) do
          if g then
            local n = xs[i].leaf
            n.grad = n.grad and r:add(n.grad, g) or g
          end
        end
      else
        r:backward(y, nil, s)
      end
    end,
  }

  K.gradof = {
    text = function(s)
      local y = s.scalar and var(s.a[1]) or var(s.a[1]) .. ":sum()"
      return ("%s = table.unpack(T.grad_of({ %s }, { %s }, %s), 1, %d)"):format(vars(s.o), y, vars(s.xs), options(s),
        #s.o)
    end,
    run = function(r, s)
      local t = tensor(r, s.a[1])
      if (#t.shape == 0) ~= (s.scalar or false) then invalid "not a scalar" end
      local xs = {}
      for i, id in ipairs(s.xs) do xs[i] = tensor(r, id) end
      local y = loss(r, s.a[1])
      local got = r:grad_of({ y }, xs, s)
      for i, id in ipairs(s.o) do
        r.vars[id] = nil
        local zeros = got[i] ~= false
        for _, c in ipairs(got[i] and got[i].v or {}) do zeros = zeros and c == 0 end
        if zeros and r.loose then -- as good as none, and a graph may know that it is none
          got[i] = false
        elseif got[i] then
          set(r, id, r:tensor(r:scale(got[i], 1), xs[i].shape, false)).frozen = true
        elseif not s.unused then
          ref.raise "unused"
        end
      end
    end,
  }

  K.cleargrad = {
    text = function(s) return var(s.a[1]) .. ".grad = nil" end,
    run = function(r, s)
      local t = tensor(r, s.a[1])
      if not t.leaf then invalid "not a leaf" end
      t.leaf.grad = nil
    end,
  }
  K.readgrad = {
    text = function(s) return ("%s = %s.grad:clone()"):format(var(s.o[1]), var(s.a[1])) end,
    run = function(r, s)
      local t = tensor(r, s.a[1])
      if not t.leaf or not t.leaf.grad then invalid "no gradient" end
      local zeros = r.loose
      for _, x in ipairs(t.leaf.grad.v) do zeros = zeros and x == 0 end
      if zeros then invalid "a gradient that may be none" end
      set(r, s.o[1], r:tensor(r:scale(t.leaf.grad, 1), t.shape, false))
    end,
  }

  -- ---- keys
  -- -----------------------------------------------------------------------------------------------------------------

  local function key(r, id)
    local k = get(r, id)
    if not k.level then invalid "not a key" end
    return k
  end
  K.key = {
    text = function(s) return var(s.o[1]) .. " = T.GradKey {}" end,
    run = function(r, s) r.vars[s.o[1]] = r:key() end,
  }
  K.attach = {
    text = function(s) return ("%s:attach(%s, function(_, g) L(%d, g) end)"):format(var(s.a[1]), var(s.a[2]), s.id) end,
    run = function(r, s)
      local k, t = key(r, s.a[1]), tensor(r, s.a[2])
      if t ~= t.history.root then invalid "a view" end
      r:attach(k, t, function(g) log(r, s.id, g) end)
    end,
  }
  K.keyback = {
    text = function(s) return ("%s:backward({ %s })"):format(var(s.a[1]), var(s.a[2])) end,
    run = function(r, s) r:key_backward(key(r, s.a[1]), { tensor(r, s.a[2]) }) end,
  }
end
