-- SPDX-License-Identifier: MIT
-- Every op in a graph: on each variant of its row a graph gives the bits of the eager call, and the gradient pass those
-- of backward. Ops whose shape depends on values are refused.

local T = require "perilune"
local support = require "spec.ops.support"

local BY_VALUE = {}
for name in ("masked_select nonzero unique bincount repeat_each one_hot index index_put"):gmatch("%S+") do
  BY_VALUE[name] = true -- some variants: without a number of classes, with masks
end

-- Tensors among the results, in order, floating or not.
local function tensors(...)
  local list = {}
  support.map(table.pack(...), function(t)
    list[#list + 1] = t
    return t
  end)
  return list
end

-- The op as a graph over the tensors of args; nil, message if it is refused. feed: the tensors by input name.
local function graph_of(f, args)
  local g, feed, inputs = T.graph(), {}, {}
  local symbolic = support.map(args, function(t)
    local name = "x" .. (#inputs + 1)
    inputs[#inputs + 1] = g:input(name, t:shape(), { dtype = t:dtype() })
    feed[name] = t
    return inputs[#inputs]
  end)
  local made = table.pack(pcall(g.trace, g, function(...) return f(...) end, table.unpack(symbolic, 1, args.n)))
  if not made[1] then return nil, made[2] end
  return g, feed, inputs, tensors(table.unpack(made, 2, made.n))
end

local function bits_equal(a, b, what)
  assert.same(a:shape(), b:shape())
  assert.equal(a:dtype(), b:dtype())
  assert.is_true(a:to_string() == b:to_string(), what)
end

-- Eager results on fresh leaves, those that have gradients, and the leaves.
local function eager(info, f, args)
  local leaves = {}
  local fresh = support.map(args, function(t)
    if not t:is_floating_point() or not info.differentiable then return t end
    leaves[#leaves + 1] = t:clone():requires_grad_()
    return leaves[#leaves]
  end)
  return tensors(f(table.unpack(fresh, 1, args.n))), leaves
end

local function check(info, f, i, args)
  local g, feed, inputs, results = graph_of(f, args)
  if not g then
    assert.is_truthy(BY_VALUE[info.name], tostring(feed))
    assert.is_truthy(feed:find("depends on the values", 1, true), feed)
    return
  end
  T.manual_seed(3)
  local want, leaves = eager(info, f, args)
  assert.equal(#want, #results)
  local outputs, ys, eager_ys, xs = { table.unpack(results) }, {}, {}, {}
  for k, y in ipairs(results) do
    if want[k].grad_fn then ys[#ys + 1], eager_ys[#eager_ys + 1] = y, want[k] end
  end
  for _, x in ipairs(inputs) do if x:is_floating_point() then xs[#xs + 1] = x end end
  local grads = {}
  if #ys > 0 and not info.flags.mutates then
    grads = g:gradient(ys, xs, { allow_unused = true })
    for k = 1, #xs do if grads[k] then outputs[#outputs + 1] = grads[k] end end
  end
  if #outputs == 0 then return end
  g:outputs(outputs)
  assert.is_true(g:verify())
  T.manual_seed(3)
  local out = g:run(feed)
  for k, y in ipairs(want) do bits_equal(y:detach(), out[k], ("variant %d, result %d"):format(i, k)) end
  if next(grads) == nil then return end
  local seeds, at = {}, #results
  for k, y in ipairs(eager_ys) do seeds[k] = T.ones_like(y:detach()) end
  local given = T.grad_of(eager_ys, leaves, { grad_outputs = seeds, allow_unused = true })
  for k = 1, #xs do
    if grads[k] then
      at = at + 1
      local d = given[k] or T.zeros_like(out[at])
      assert.same(d:shape(), out[at]:shape())
      assert.is_true(d:allclose(out[at], { rtol = 1e-12, atol = 1e-12, equal_nan = true }),
        ("variant %d, gradient %d"):format(i, k))
    end
  end
end

-- Of several results one alone is differentiated: the gradients of the others are missing.
local function check_one_by_one(info, f, i, args)
  if not info.differentiable or info.flags.mutates then return 0 end
  local count = 0
  for k = 1, info.nout do
    T.manual_seed(3)
    local want, leaves = eager(info, f, args)
    if #want < 2 or #leaves == 0 then return 0 end
    if want[k] and want[k].grad_fn then
      local g, feed, inputs, results = graph_of(f, args)
      if not g then return count end
      local xs = {}
      for _, x in ipairs(inputs) do if x:is_floating_point() then xs[#xs + 1] = x end end
      local grads, outputs = g:gradient({ results[k] }, xs, { allow_unused = true }), {}
      for n = 1, #xs do if grads[n] then outputs[#outputs + 1] = grads[n] end end
      local given = T.grad_of({ want[k] }, leaves,
        { grad_outputs = { T.ones_like(want[k]:detach()) }, allow_unused = true })
      if #outputs > 0 then
        g:outputs(outputs)
        T.manual_seed(3)
        local out, at = g:run(feed), 0
        for n = 1, #xs do
          if grads[n] then
            at = at + 1
            local d = given[n] or T.zeros_like(out[at])
            assert.is_true(d:allclose(out[at], { rtol = 1e-12, atol = 1e-12, equal_nan = true }),
              ("variant %d, gradient %d of result %d alone"):format(i, n, k))
          end
        end
        count = count + 1
      end
    end
  end
  return count
end

describe("in a graph", function()
  local done, alone = 0, 0
  for _, info in ipairs(support.public()) do
    if support.cases[info.name] then
      it(info.name, function()
        for i, args in ipairs(support.arguments(info.name)) do
          check(info, support.func(info.name), i, args)
          alone = alone + check_one_by_one(info, support.func(info.name), i, args)
        end
        done = done + 1
      end)
    end
  end
  it("are nearly all ops", function()
    assert.is_true(done > 290, "only " .. done)
    assert.is_true(alone > 20, "only " .. alone .. " results were differentiated alone")
  end)
end)
