-- T.vmap: a function of one sample becomes a function of many, computed at once; and backward passes for many
-- gradients at once. The engine does the work (engine/vmap): inside, a tensor may stand for many of its shape.
local options = require "perilune.options"
local tree = require "perilune.tree"
local rerun = require "perilune.autograd.checkpoint_state"

return function(T, core)
  local is_tensor, pack, unpack = core.is_tensor, table.pack, table.unpack
  local fail, is_tree, map = options.fail, tree.is_tree, tree.map

  -- Dimension d of t (1-based, negative from the end) as a position, or an error.
  local function position(who, t, d)
    if math.type(d) == "float" and d == math.floor(d) then d = math.tointeger(d) end
    local n = t:dim()
    if math.type(d) ~= "integer" or d == 0 or d > n or d < -n then
      fail("vmap: %s is %s; %s has dimensions 1 to %d", who, options.describe(d), t:describe(), n)
    end
    return d > 0 and d or d + n + 1
  end

  -- Calls f(tensor, dim) for every tensor of v that dims maps; dims is a number, false, or a table like v.
  local function each(v, dims, f)
    if is_tensor(v) then
      if dims == false then return v end
      if type(dims) == "table" then
        fail("vmap: in_dims has a table where the argument is the tensor %s", v:describe())
      end
      return f(v, position("in_dims", v, dims))
    end
    if not is_tree(v) then
      if type(dims) == "number" and v ~= nil and dims ~= 1 then
        fail("vmap: in_dims maps a %s; only tensors are mapped", type(v))
      end
      return v
    end
    for k, d in pairs(type(dims) == "table" and dims or {}) do
      if v[k] == nil and d ~= false then
        fail("vmap: in_dims has an entry '%s' where the argument has none", tostring(k))
      end
    end
    local out = {}
    for k, x in pairs(v) do
      local d = dims
      if type(dims) == "table" then d = dims[k] end
      if d == nil then d = false end
      out[k] = each(x, d, f)
    end
    return out
  end

  local function spec_of(in_dims, i)
    if type(in_dims) ~= "table" then return in_dims end
    local d = in_dims[i]
    if d == nil then return false end
    return d
  end

  local function mapped(in_dims, args, f)
    local out = { n = args.n }
    for i, d in pairs(type(in_dims) == "table" and in_dims or {}) do
      if d ~= false and (math.type(i) ~= "integer" or i < 1 or i > args.n) then
        fail("vmap: in_dims has an entry '%s', and there are %d arguments", tostring(i), args.n)
      end
    end
    for i = 1, args.n do out[i] = each(args[i], spec_of(in_dims, i), f) end
    return out
  end

  local function size_of(in_dims, args)
    local n, first
    mapped(in_dims, args, function(t, d)
      if n and t:size(d) ~= n then
        fail("vmap: %s has %d elements along dimension %d, but %s has %d along its own; all must agree", t:describe(),
          t:size(d), d, first:describe(), n)
      end
      if not n then n, first = t:size(d), t end
      return t
    end)
    if not n then fail("vmap: no tensor is mapped; in_dims names at least one dimension") end
    return n
  end

  local function out_dim(out_dims, i)
    if type(out_dims) == "table" then
      return out_dims[i] or fail("vmap: out_dims has no entry for result %d", i)
    end
    return out_dims
  end

  local function run(f, o, n, args)
    local level <close> = core.batch_open(n, o.randomness)
    local wrapped = mapped(o.in_dims, args, function(t, d)
      return core.batch_wrap(level, d == 1 and t or t:movedim(d, 1))
    end)
    local got = pack(f(unpack(wrapped, 1, args.n)))
    for i = 1, got.n do
      got[i] = map(got[i], function(t)
        local full = core.batch_unwrap(level, t)
        local d = position("out_dims", full, out_dim(o.out_dims, i))
        return d == 1 and full or full:movedim(1, d)
      end, true)
    end
    return got
  end

  -- The same in pieces of at most `size`, put together along out_dims.
  local function chunked(f, o, n, args, size)
    local parts, state, drawn = {}, nil, nil
    for from = 1, n, size do
      local len = math.min(size, n - from + 1)
      local piece = mapped(o.in_dims, args, function(t, d) return t:narrow(d, from, len) end)
      if o.randomness ~= "same" then parts[#parts + 1] = run(f, o, len, piece)
      elseif not state then -- what all elements draw alike, those of other pieces draw, too
        state = core.get_rng_state()
        parts[1], drawn = rerun.recorded(run, f, o, len, piece)
        parts[1] = parts[1][1]
      else
        core.set_rng_state(state)
        rerun.rewind(drawn)
        parts[#parts + 1] = run(f, o, len, piece)
      end
    end
    local function join(i, path)
      local list = {}
      for k, p in ipairs(parts) do
        local v = p[i]
        for _, key in ipairs(path) do v = v[key] end
        list[k] = v
      end
      if is_tensor(list[1]) then return T.cat(list, position("out_dims", list[1], out_dim(o.out_dims, i))) end
      if not is_tree(list[1]) then return list[1] end
      local out = {}
      for key in pairs(list[1]) do
        path[#path + 1] = key
        out[key] = join(i, path)
        path[#path] = nil
      end
      return out
    end
    local out = { n = parts[1].n }
    for i = 1, out.n do out[i] = join(i, {}) end
    return out
  end

  local modes = { error = true, same = true, different = true }

  --- T.vmap(f, {in_dims=1, out_dims=1, randomness="error", chunk_size=}) → function
  -- What f does to one sample, done to many at once: tensors come with a dimension more, which in_dims names (a number,
  -- or a list with a number, a table, or false for "the same for all" for each argument), and results get it back where
  -- out_dims says. Gradients inside f are one for each sample. randomness: "error", "same" or "different" numbers for
  -- all.
  --   local w, x = T.tensor { 1, 2 }, T.tensor { { 1, 1 }, { 2, 0 } }
  --   local each = T.vmap(T.grad(function(p, v) return p:dot(v) ^ 2 end), { in_dims = { false, 1 } })
  --   print((each(w, x)))
  --   --> {{6., 6.},
  --   -->  {8., 0.}}  -- f32[2,2] cpu
  T.vmap = function(f, opts)
    local meta = getmetatable(f)
    if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
      fail("vmap: a function expected, got %s", options.describe(f))
    end
    local o = options.check("vmap", opts, { "in_dims", "out_dims", "randomness", "chunk_size" })
    local given = { in_dims = o.in_dims == nil and 1 or o.in_dims, out_dims = o.out_dims == nil and 1 or o.out_dims,
      randomness = o.randomness or "error" }
    for _, k in ipairs { "in_dims", "out_dims" } do
      local v = given[k]
      if type(v) ~= "number" and type(v) ~= "table" and not (k == "in_dims" and v == false) then
        fail("vmap: %s must be a dimension or a list of them, got %s", k, options.describe(v))
      end
    end
    if not modes[given.randomness] then
      fail('vmap: randomness must be "error", "same" or "different", got %s', options.describe(given.randomness))
    end
    local chunk = o.chunk_size
    if chunk ~= nil and (type(chunk) ~= "number" or chunk < 1 or chunk ~= math.floor(chunk)) then
      fail("vmap: chunk_size must be a whole number from 1 on, got %s", options.describe(chunk))
    end
    local function over_all(...)
      local args = pack(...)
      local n = size_of(given.in_dims, args)
      local got
      local again = given.randomness == "same" and core.jit_tracing() -- a graph cannot draw a number twice
      if chunk and n > chunk and not again then
        got = chunked(f, given, n, args, math.tointeger(chunk))
      else
        got = run(f, given, n, args)
      end
      return unpack(got, 1, got.n)
    end
    local mode = options.mode
    return function(...)
      if mode.method then return mode.method(over_all, ...) end
      return over_all(...)
    end
  end

  -- t, which is the same for all, as tensors of their own for every element that x stands for: what *_like gives.
  function core.batch_like(x, t)
    if core.is_batched(t) then return t end
    local born, size = core.batch_innermost(x)
    local level <close> = core.batch_reopen(born, size)
    local full, of = core.batch_unwrap(level, t):contiguous(), core.batch_full(born, x)
    if core.is_batched(of) then full = core.batch_like(of, full) end
    return core.batch_wrap(level, full)
  end

  -- A custom rule on batched tensors that keys outside of the vmap track: those keys record one rule on the tensors of
  -- all elements, whose backward, or jvp, opens the batch again. `forward` has run once then; its context serves both.
  core.on_custom_batched(function(forward, backward, name, always, jvp, ctx, ...)
    local args = pack(...)
    local born, size = core.batch_innermost(...)
    local inputs, shared = {}, {}
    for i = 1, args.n do
      if is_tensor(args[i]) then
        local full = core.batch_full(born, args[i])
        inputs[#inputs + 1] = full or args[i]
        shared[#inputs] = not full
      end
    end
    local rule = core.custom { name = name, always = always,
      forward = function(outer)
        local level <close> = core.batch_reopen(born, size)
        local got = pack(forward(ctx, unpack(args, 1, args.n)))
        args = nil
        for i = 1, got.n do
          if not is_tensor(got[i]) then
            fail("%s: forward must return tensors, result %d is %s", name, i, options.describe(got[i]))
          end
          local fixed = core.rule_marked(ctx, got[i])
          got[i] = core.batch_unwrap(level, got[i])
          if fixed then outer:mark_non_differentiable(got[i]) end
        end
        return unpack(got, 1, got.n)
      end,
      backward = function(_, ...)
        local level <close> = core.batch_reopen(born, size)
        local dys = pack(...)
        for i = 1, dys.n do dys[i] = dys[i] and core.batch_wrap(level, dys[i]) end
        local got = pack(backward(ctx, unpack(dys, 1, dys.n)))
        for i = 1, got.n do
          if is_tensor(got[i]) then
            local full = core.batch_unwrap(level, got[i])
            got[i] = shared[i] and full:sum(1) or full
          end
        end
        return unpack(got, 1, got.n)
      end,
      jvp = jvp and function(_, ...)
        local level <close> = core.batch_reopen(born, size)
        local vs = pack(...)
        for i = 1, vs.n do vs[i] = vs[i] and (shared[i] and vs[i] or core.batch_wrap(level, vs[i])) end
        local got = pack(jvp(ctx, unpack(vs, 1, vs.n)))
        for i = 1, got.n do got[i] = is_tensor(got[i]) and core.batch_unwrap(level, got[i]) or got[i] end
        return unpack(got, 1, got.n)
      end }
    local _ <close> = T.enable_grad()
    local got = pack(rule(unpack(inputs)))
    local level <close> = core.batch_reopen(born, size)
    for i = 1, got.n do got[i] = core.batch_wrap(level, got[i]) end
    return unpack(got, 1, got.n)
  end)

  -- core.key_gradients for many gradients at once: dys[i] has a dimension of n in front, and so have the results.
  function core.pull_batch(key, n, ys, dys, xs)
    local level <close> = core.batch_open(n, "same")
    local wrapped = {}
    for i, dy in ipairs(dys) do wrapped[i] = core.batch_wrap(level, dy) end
    local got = core.key_gradients(key, ys, wrapped, xs)
    for i = 1, #xs do got[i] = got[i] and core.batch_unwrap(level, got[i]) end
    return got
  end

  -- T.grad_of(ys, xs, {…, is_grads_batched = true}): grad_outputs have a leading dimension, and so have the results.
  local grad_of = core.grad_of

  --- T.grad_of(ys, xs, {grad_outputs=, retain_graph=, create_graph=, allow_unused=, …}) → gradients
  -- Gradients of ys for xs, a tensor or a list each; adds to no .grad. create_graph: the gradients have gradients.
  -- allow_unused: nil instead of an error where there is no path. is_grads_batched: many at once, grad_outputs and
  -- results have a dimension more in front.
  --   local x = T.tensor { 2 }:requires_grad_()
  --   local g = T.grad_of(x ^ 3, x, { create_graph = true })
  --   print(T.grad_of(g, x))  --> {12.}  -- f32[1] cpu
  T.grad_of = function(ys, xs, opts)
    if type(ys) == "table" then options.list("grad_of", "ys", ys, "tensors") end
    if type(xs) == "table" then options.list("grad_of", "xs", xs, "tensors") end
    if type(opts) ~= "table" or not opts.is_grads_batched then return grad_of(ys, xs, opts) end
    local plain = {}
    for k, v in pairs(opts) do if k ~= "is_grads_batched" then plain[k] = v end end
    local dys = opts.grad_outputs
    if dys == nil then
      fail("grad_of: is_grads_batched=true needs grad_outputs, with a dimension in front for the batch")
    end
    local list = is_tensor(dys) and { dys } or dys
    local n
    for i = 1, #list do
      if not is_tensor(list[i]) or list[i]:dim() == 0 then
        fail("grad_of: grad_outputs[%d] must be a tensor with a dimension in front for the batch, got %s", i,
          options.describe(list[i]))
      end
      n = n or list[i]:size(1)
    end
    if not n then fail("grad_of: is_grads_batched=true needs grad_outputs") end
    local level <close> = core.batch_open(n, "same")
    local wrapped = {}
    for i = 1, #list do wrapped[i] = core.batch_wrap(level, list[i]) end
    plain.grad_outputs = is_tensor(dys) and wrapped[1] or wrapped
    local got = grad_of(ys, xs, plain)
    if got == nil then return nil end
    if is_tensor(got) then return core.batch_unwrap(level, got) end
    local out = {}
    for i = 1, #xs do out[i] = got[i] and core.batch_unwrap(level, got[i]) end
    return out
  end
end
