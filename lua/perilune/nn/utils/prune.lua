-- SPDX-License-Identifier: MIT
--- nn.utils.prune: weights that are held at 0 by a mask. The parameter becomes name_orig times the buffer name_mask, as
-- in PyTorch, whose states load. Pruning again counts and chooses among what is left.
-- @module perilune.nn.utils.prune
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local class_name = require("perilune.surface").class_name

local fail, describe, read = options.fail, options.describe, options.read

-- parameter, install: of reparametrize.lua.
return function(parameter, install)
  local prune = {}

  local function rule_of(m, name)
    local rule = base.is_module(m) and rawget(m, "_computed") and m._computed[name]
    return rule and rule.kind == "prune" and rule or nil
  end

  -- The values as they are used now, and the mask, nil where nothing is pruned yet.
  local function current(who, m, name)
    if not rule_of(m, name) then return parameter(who, m, name):detach() end
    return T.no_grad(rule_of(m, name).compute, m):detach(), m[name .. "_mask"]
  end

  local function apply(who, m, name, mask)
    if rule_of(m, name) then
      local _ <close> = T.no_grad()
      m[name .. "_mask"]:mul_(mask)
      rawset(m, name, rule_of(m, name).compute(m))
      return m
    end
    local p = parameter(who, m, name)
    base.forget(m, name)
    m:register_parameter(name .. "_orig", p)
    m:register_buffer(name .. "_mask", mask:detach():to { dtype = p:dtype(), device = p:device(), copy = true })
    return install("prune", m, name, {}, function(self)
      return base.member(self, name .. "_orig") * self[name .. "_mask"]
    end)
  end

  -- How many of n: a share of them, halves to the even number, or that many.
  local function count(who, amount, n)
    local k = math.type(amount) == "integer" and amount or nil
    if k and (k < 0 or k > n) then fail("%s: amount is %d, and there are %d to choose from", who, k, n) end
    if k then return k end
    if not (amount >= 0 and amount <= 1) then
      fail("%s: amount must be a share from 0.0 to 1.0 or a number of them, got %s", who, tostring(amount))
    end
    local x = amount * n
    local low = x // 1
    return math.tointeger((x - low > 0.5 or x - low == 0.5 and low % 2 == 1) and low + 1 or low)
  end

  -- A mask like x, 0 at the k smallest scores of those where `left` is not 0.
  local function without_smallest(x, scores, left, k)
    local mask = T.ones_like(x)
    if k == 0 then return mask end
    scores = scores:flatten()
    if left then scores = scores:masked_fill(left:flatten():eq(0), math.huge) end
    local _, at = scores:topk(k, { largest = false })
    return mask:flatten():index_fill(1, at, 0):view_as(x)
  end

  local function unstructured(who, a, scores)
    local x, left = current(who, a.module, a.name)
    local n = left and left:ne(0):sum():item() or x:numel()
    return apply(who, a.module, a.name, without_smallest(x, scores(x), left, count(who, a.amount, n)))
  end

  local function structured(who, a, scores)
    local x, left = current(who, a.module, a.name)
    local dim = a.dim < 0 and a.dim + x:dim() + 1 or a.dim
    if dim < 1 or dim > x:dim() or x:dim() < 2 then
      fail("%s: dim %d of %s is none; it must have two dims or more, numbered from 1", who, a.dim, describe(x))
    end
    local function rows(t) return t:movedim(dim, 1):flatten(2) end
    left = left and rows(left):ne(0):any(2):to(x:dtype())
    local n = left and left:sum():item() // 1 or x:size(dim)
    local of = scores(rows(x))
    local kept = without_smallest(of, of, left, count(who, a.amount, math.tointeger(n)))
    local shape = {}
    for d = 1, x:dim() do shape[d] = d == dim and x:size(dim) or 1 end
    return apply(who, a.module, a.name, kept:view(shape):expand_as(x))
  end

  local function spec(name, ...)
    local args = { { "module", "any" }, { "name", "string" } }
    for _, arg in ipairs { ... } do args[#args + 1] = arg end
    return options.spec("prune." .. name, args)
  end

  --- nn.utils.prune.custom_from_mask(module, name, mask) → module
  -- The parameter is held at 0 where mask, a tensor of its shape, is 0. It is name_orig from now on, the same object,
  -- so that optimizers go on; name_mask is a buffer.
  --   local l = nn.utils.prune.custom_from_mask(nn.Linear(2, 1), "weight", T.tensor { { 1, 0 } })
  --   print(l.weight:get(1, 2), l.weight_mask)  --> 0.0	{{1., 0.}}  -- f32[1,2] cpu
  local custom = spec("custom_from_mask", { "mask", "tensor" })
  function prune.custom_from_mask(...)
    local a = read(custom, ...)
    local x = current("prune.custom_from_mask", a.module, a.name)
    local same = x:dim() == a.mask:dim()
    for d = 1, same and x:dim() or 0 do same = same and x:size(d) == a.mask:size(d) end
    if not same then fail("prune.custom_from_mask: a mask %s for %s", describe(a.mask), describe(x)) end
    return apply("prune.custom_from_mask", a.module, a.name, a.mask:ne(0):to(x:dtype()))
  end

  --- nn.utils.prune.identity(module, name) → module
  -- A mask of ones: nothing is pruned yet.
  --   print(nn.utils.prune.identity(nn.Linear(1, 1), "bias").bias_mask)  --> {1.}  -- f32[1] cpu
  local nothing = spec "identity"
  function prune.identity(...)
    local a = read(nothing, ...)
    return apply("prune.identity", a.module, a.name, T.ones_like(current("prune.identity", a.module, a.name)))
  end

  --- nn.utils.prune.l1_unstructured(module, name, amount) → module
  -- Prunes the elements of smallest size: a share of them (0.0 … 1.0), or so many (an integer).
  --   local l = nn.utils.prune.l1_unstructured(nn.Linear(10, 10), "weight", 0.3)
  --   print(l.weight:eq(0):sum():item())  --> 30
  local l1 = spec("l1_unstructured", { "amount", "number" })
  function prune.l1_unstructured(...)
    return unstructured("prune.l1_unstructured", read(l1, ...), function(x) return x:abs() end)
  end

  --- nn.utils.prune.random_unstructured(module, name, amount) → module
  -- Prunes elements at random, as many as l1_unstructured would.
  --   local l = nn.utils.prune.random_unstructured(nn.Linear(10, 10), "weight", 30)
  --   print(l.weight:eq(0):sum():item())  --> 30
  local random = spec("random_unstructured", { "amount", "number" })
  function prune.random_unstructured(...)
    return unstructured("prune.random_unstructured", read(random, ...), T.rand_like)
  end

  --- nn.utils.prune.ln_structured(module, name, amount, n=2, dim=1) → module
  -- Prunes whole slices along dim, those of the smallest n-norm.
  --   local l = nn.utils.prune.ln_structured(nn.Linear(3, 4), "weight", 0.5)
  --   print(l.weight:eq(0):all(2):sum():item())  --> 2
  local ln = spec("ln_structured", { "amount", "number" }, { "n", "number", 2 }, { "dim", "int", 1 })
  function prune.ln_structured(...)
    local a = read(ln, ...)
    return structured("prune.ln_structured", a, function(rows) return rows:norm { p = a.n, dim = 2 } end)
  end

  --- nn.utils.prune.random_structured(module, name, amount, dim=1) → module
  -- Prunes whole slices along dim at random.
  --   local l = nn.utils.prune.random_structured(nn.Linear(3, 4), "weight", 1)
  --   print(l.weight:eq(0):all(2):sum():item())  --> 1
  local slices = spec("random_structured", { "amount", "number" }, { "dim", "int", 1 })
  function prune.random_structured(...)
    local a = read(slices, ...)
    return structured("prune.random_structured", a, function(rows) return T.rand_like(rows:select(2, 1)) end)
  end

  --- nn.utils.prune.global_unstructured({{module, name}, …}, amount, method="l1_unstructured") → list
  -- Prunes elements of several parameters by one measure; method "random_unstructured" at random.
  --   local a, b = nn.Linear(4, 4), nn.Linear(4, 1)
  --   nn.utils.prune.global_unstructured({ { a, "weight" }, { b, "weight" } }, 0.5)
  --   print((a.weight:eq(0):sum() + b.weight:eq(0):sum()):item())  --> 10
  local all = options.spec("prune.global_unstructured", { { "parameters", "any" }, { "amount", "number" },
    { "method", { "l1_unstructured", "random_unstructured" }, "l1_unstructured" } })
  function prune.global_unstructured(...)
    local who, a = "prune.global_unstructured", read(all, ...)
    options.list(who, "the parameters", a.parameters, "pairs { module, name }")
    local values, masks, shapes = {}, {}, {}
    for i, pair in ipairs(a.parameters) do
      if type(pair) ~= "table" or not base.is_module(pair[1]) then
        fail("%s: entry %d must be { module, name }, got %s", who, i, describe(pair))
      end
      local x, left = current(who, pair[1], pair[2])
      shapes[i], values[i], masks[i] = x, x:flatten(), (left or T.ones_like(x)):flatten()
    end
    if #values == 0 then fail("%s: the list of parameters is empty", who) end
    local x, left = T.cat(values), T.cat(masks)
    local scores = a.method == "l1_unstructured" and x:abs() or T.rand_like(x)
    local mask, at = without_smallest(x, scores, left, count(who, a.amount, left:ne(0):sum():item())), 1
    for i, pair in ipairs(a.parameters) do
      local n = values[i]:numel()
      apply(who, pair[1], pair[2], mask:narrow(1, at, n):view_as(shapes[i]))
      at = at + n
    end
    return a.parameters
  end

  --- nn.utils.prune.remove(module, name) → module
  -- The mask goes into the values for good: a plain parameter again, the same object.
  --   local l = nn.utils.prune.l1_unstructured(nn.Linear(2, 2), "weight", 0.5)
  --   nn.utils.prune.remove(l, "weight")
  --   print(l.weight_mask, l.weight:eq(0):sum():item())  --> nil	2
  local removal = spec "remove"
  function prune.remove(...)
    local a = read(removal, ...)
    local m, name, rule = a.module, a.name, rule_of(a.module, a.name)
    if not rule then fail("prune.remove: '%s' of %s is not pruned", name, class_name(m)) end
    local p, mask = base.member(m, name .. "_orig"), m[name .. "_mask"]
    T.no_grad(function() p:mul_(mask) end)
    rule.handle:remove()
    m._computed[name] = nil
    rawset(m, name, nil)
    base.forget(m, name .. "_orig")
    base.forget(m, name .. "_mask")
    m._buffers[name .. "_mask"] = nil
    rawset(m, name .. "_mask", nil)
    m:register_parameter(name, p)
    return m
  end

  --- nn.utils.prune.is_pruned(module) → boolean
  -- Whether it, or a module inside, has a mask.
  --   print(nn.utils.prune.is_pruned(nn.Linear(1, 1)))  --> false
  function prune.is_pruned(m)
    if not base.is_module(m) then fail("prune.is_pruned: a module is wanted, got %s", describe(m)) end
    for _, part in ipairs(m:modules()) do
      for name in next, rawget(part, "_computed") or {} do
        if rule_of(part, name) then return true end
      end
    end
    return false
  end

  return prune
end
