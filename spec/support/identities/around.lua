-- SPDX-License-Identifier: MIT
-- What may be put around a function without changing what it computes; see programs.lua.

local T = require "perilune"
local nn = T.nn
local stats = T.core.rematerialization

-- ---- what is put around a function --------------------------------------------------------------------------

local function bytes_of(t) return { t:contiguous():to_string(), t:dtype(), t:shape() } end
local function of_bytes(p) return T.from_string(p[1], p[2], p[3]) end

local AROUND = {}
local function module(f)
  local object = nn.Sequential()
  object.forward = function(_, ...) return f(...) end
  return object
end

function AROUND.checkpoint(f) return function(...) return T.checkpoint(f, ...) end end
function AROUND.checkpoint_heavy(f) return function(...) return T.checkpoint({ f, save = { "heavy" } }, ...) end end
function AROUND.checkpoint_policy(f)
  local function policy(op) return #op % 2 == 0 and "save" or "recompute" end
  return function(...) return T.checkpoint({ f, policy = policy }, ...) end
end
function AROUND.checkpointed(f)
  local object = nn.checkpointed(module(f))
  return function(...) return object(...) end
end
function AROUND.jit(f) return T.jit(f) end
function AROUND.jit_mirror(f) return T.jit(f, { mirror = "mirror" }) end
function AROUND.jit_mincut(f) return T.jit(f, { mirror = "mincut" }) end
function AROUND.jit_module(f) return T.jit(module(f)) end
function AROUND.limit(f)
  return function(...)
    local _ <close> = T.memory_limit(T.memory().live + (1 << 20))
    stats "always"
    return f(...)
  end
end
function AROUND.no_limit(f)
  return function(...)
    local _ <close> = T.memory_limit(nil)
    return f(...)
  end
end
function AROUND.budget(f)
  return function(...)
    T.set_memory_budget(T.memory().live + (1 << 16))
    local r = table.pack(pcall(f, ...))
    T.set_memory_budget(nil)
    if not r[1] then error(r[2], 0) end
    return table.unpack(r, 2, r.n)
  end
end
function AROUND.saved(f)
  return function(...) return T.saved_tensors({ pack = bytes_of, unpack = of_bytes }, f, ...) end
end
function AROUND.offload(f)
  return function(...) return T.saved_tensors({ offload = "disk", min_bytes = 0 }, f, ...) end
end
function AROUND.coroutine(f)
  return function(...)
    local co = coroutine.wrap(function(...)
      coroutine.yield()
      return f(...)
    end)
    co(...)
    return co()
  end
end
-- A coroutine that is left for good inside modes, while another goes on.
function AROUND.left(f)
  return function(...)
    local other = coroutine.wrap(function()
      local _ <close> = T.set_grad_enabled(false)
      local _ <close> = T.autocast { dtype = "bf16" }
      coroutine.yield()
    end)
    other()
    return f(...)
  end
end
function AROUND.enable_grad(f)
  return function(...)
    if T.is_grad_enabled() then return T.enable_grad(f, ...) end
    return f(...)
  end
end
function AROUND.autocast(f) return function(...) return T.autocast({ dtype = "bf16" }, f, ...) end end
function AROUND.autocast_twice(f)
  return function(...)
    return T.autocast({ dtype = "f16" }, T.autocast, { dtype = "bf16", enabled = false }, f, ...)
  end
end
function AROUND.threads(f)
  return function(...)
    local n = T.get_num_threads()
    T.set_num_threads(3 - n > 0 and 3 - n or 1)
    local r = table.pack(pcall(f, ...))
    T.set_num_threads(n)
    if not r[1] then error(r[2], 0) end
    return table.unpack(r, 2, r.n)
  end
end
function AROUND.collect(f)
  return function(...)
    collectgarbage()
    local r = table.pack(f(...))
    collectgarbage()
    return table.unpack(r, 1, r.n)
  end
end
function AROUND.pcall(f)
  return function(...)
    local r = table.pack(pcall(f, ...))
    if not r[1] then error(r[2], 0) end
    return table.unpack(r, 2, r.n)
  end
end

-- For functions that read nothing but their arguments.
local PURE = {}
for name in ("checkpoint jit limit saved coroutine autocast checkpointed jit_module"):gmatch "%S+" do
  PURE[name] = AROUND[name]
end
-- The function as a rule, whose gradient is that of the function called once more.
function PURE.rule(f)
  return T.custom {
    name = "rule",
    forward = function(ctx, ...)
      ctx:save(...)
      return f(...)
    end,
    backward = function(ctx, g)
      local _, pull = T.vjp(f, ctx:saved())
      return pull(g)
    end,
  }
end
function PURE.rule_grad_of(f)
  return T.custom {
    name = "rule_grad_of",
    forward = function(ctx, ...)
      ctx:save(...)
      return f(...)
    end,
    backward = function(ctx, g)
      local xs, again = { ctx:saved() }, T.is_grad_enabled()
      return table.unpack(T.enable_grad(function()
        for i, x in ipairs(xs) do xs[i] = x * 1 + T.zeros_like(x):requires_grad_() end
        local options = { grad_outputs = { g }, create_graph = again, allow_unused = true }
        return T.grad_of({ f(table.unpack(xs)) }, xs, options)
      end), 1, 3)
    end,
  }
end
function PURE.rule_jvp(f)
  return T.custom {
    name = "rule_jvp",
    forward = function(ctx, ...)
      ctx:save(...)
      return f(...)
    end,
    backward = function(ctx, g)
      local _, pull = T.vjp(f, ctx:saved())
      return pull(g)
    end,
    jvp = function(ctx, p, q, r)
      local xs = { ctx:saved() }
      local _, t = T.jvp(f, xs, { p or T.zeros_like(xs[1]), q or T.zeros_like(xs[2]), r or T.zeros_like(xs[3]) })
      return t
    end,
  }
end

-- Two ways to the same: the plain one is the second.
local PAIRS = {}
local function row(f) return function(r, p, q) return f(r:unsqueeze(1), p, q):squeeze(1) end end
PAIRS.vmap = {
  function(f) return T.vmap(row(f), { in_dims = { 1, false, false } }) end,
  function(f)
    return function(y, p, q)
      local rows = {}
      for i = 1, y:size(1) do rows[i] = row(f)(y[i], p, q) end
      return T.stack(rows, 1)
    end
  end,
}
PAIRS.vmap_last = {
  function(f)
    local g = T.vmap(row(f), { in_dims = { 2, false, false }, out_dims = 2, chunk_size = 3 })
    return function(y, p, q) return g(y:t(), p, q):t() end
  end,
  PAIRS.vmap[2],
}
PAIRS.vmap_one = {
  function(f)
    local g = T.vmap(f, { in_dims = { 1, 1, false } })
    return function(y, p, q) return g(y:unsqueeze(1), p:unsqueeze(1), q):squeeze(1) end
  end,
  function(f) return f end,
}
local function by_grad_of(f)
  return function(y, p, q)
    return T.enable_grad(function()
      local v = y * 1 + T.zeros_like(y):requires_grad_()
      local out = f(v, p, q)
      return out + T.grad_of((out * out):sum(), v, { create_graph = true }) * 0.1
    end)
  end
end
PAIRS.grad = {
  function(f)
    return function(y, p, q)
      return f(y, p, q) + T.grad(function(v) local out = f(v, p, q) return (out * out):sum() end)(y) * 0.1
    end
  end,
  by_grad_of,
}
PAIRS.vjp = {
  function(f)
    return function(y, p, q)
      local out, pull = T.vjp(function(v) local o = f(v, p, q) return (o * o):sum() end, y)
      return f(y, p, q) + pull(T.ones_like(out)) * 0.1
    end
  end,
  by_grad_of,
}
PAIRS.vmap_grad = {
  function(f)
    local each = T.vmap(function(r, p, q)
      local g = row(f)
      return g(r, p, q) + T.grad(function(v) local o = g(v, p, q) return (o * o):sum() end)(r) * 0.1
    end, { in_dims = { 1, false, false } })
    return each
  end,
  by_grad_of,
}
PAIRS.grad_vmap = {
  function(f)
    local each = T.vmap(row(f), { in_dims = { 1, false, false } })
    return function(y, p, q)
      return each(y, p, q) + T.grad(function(v) local o = each(v, p, q) return (o * o):sum() end)(y) * 0.1
    end
  end,
  by_grad_of,
}
local function by_double(f)
  return function(y, p, q)
    return T.enable_grad(function()
      local v = y * 1 + T.zeros_like(y):requires_grad_()
      local out = f(v, p, q)
      local dummy = T.zeros_like(out):requires_grad_()
      local g = T.grad_of(out, v, { grad_outputs = dummy, create_graph = true })
      return out + T.grad_of(g, dummy, { grad_outputs = v:cos(), create_graph = true }) * 0.1
    end)
  end
end
PAIRS.jvp = {
  function(f)
    return function(y, p, q)
      local out, t = T.jvp(function(v) return f(v, p, q) end, y, y:cos())
      return out + t * 0.1
    end
  end,
  by_double,
}
PAIRS.jvp_jit = {
  function(f)
    local j = T.jit(f)
    return function(y, p, q)
      local out, t = T.jvp(function(v) return j(v, p, q) end, y, y:cos())
      return out + t * 0.1
    end
  end,
  by_double,
}
PAIRS.jit_jvp = {
  function(f)
    return T.jit(function(y, p, q)
      local out, t = T.jvp(function(v) return f(v, p, q) end, y, y:cos())
      return out + t * 0.1
    end)
  end,
  by_double,
}
PAIRS.linearize = {
  function(f)
    return function(y, p, q)
      local out, push = T.linearize(function(v) return f(v, p, q) end, y)
      return out + push(y:cos()) * 0.1
    end
  end,
  by_double,
}
PAIRS.vmap_jvp = {
  function(f)
    return T.vmap(function(r, p, q)
      local out, t = T.jvp(function(v) return row(f)(v, p, q) end, r, r:cos())
      return out + t * 0.1
    end, { in_dims = { 1, false, false } })
  end,
  by_double,
}
PAIRS.jvp_vmap = {
  function(f)
    local each = T.vmap(row(f), { in_dims = { 1, false, false } })
    return function(y, p, q)
      local out, t = T.jvp(function(v) return each(v, p, q) end, y, y:cos())
      return out + t * 0.1
    end
  end,
  by_double,
}

local function names(t)
  local list = {}
  for name in pairs(t) do list[#list + 1] = name end
  table.sort(list)
  return list
end

return {
  around = AROUND, -- for any function
  pure = PURE, -- for functions of y, p, q that read nothing else
  pairs = PAIRS, -- for those, too: { a way, the plain way to the same }
  around_names = names(AROUND),
  pure_names = names(PURE),
  pair_names = names(PAIRS),
}
