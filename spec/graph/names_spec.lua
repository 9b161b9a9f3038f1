-- SPDX-License-Identifier: MIT
-- Names of the nodes that passes make, what predicates are asked, accumulation over runs, gradients that are zero,
-- gradients by entry, and who reads what was recomputed.
local T = require "perilune"
local models = require "spec.support.models"

local function names(list)
  local out = {}
  for i, node in ipairs(list) do out[i] = node.name end
  return table.concat(out, " ")
end

describe("nodes that are made", function()
  it("are called after the node that they belong to", function()
    local g = T.graph()
    local x = g:input("x", { 4 })
    local y = g:name(x:tanh(), "act")
    local z = y * y + y:exp()
    g:outputs { z, g:gradient({ z }, x, { mirror = "mincut", force = { y } }) }
    assert.equal("act mul_1 exp_1 add_1 ones exp_1_backward mul_1_backward mul_1_backward_2 grad_sum grad_sum "
      .. "act_backward", names(g:nodes()))
    assert.matches("act mul_1 exp_1 add_1 act_mirror exp_1_mirror", names(g:plan():list()))
    local h = T.graph()
    local a, b = h:input("a", { 4 }), h:input("b", { 4 })
    h:outputs(h:gradient({ a + b }, { a, b }, { copy = true }))
    assert.equal("add_1 ones ones_1_copy", names(h:nodes()))
  end)

  it("a predicate is asked once per node, never for leaves or views", function()
    local g = T.graph()
    local x, w = g:input("x", { 4, 4 }), g:input("w", { 4, 4 }, { leaf = true })
    local y = x
    for _ = 1, 3 do y = (y * w):t():tanh() end
    local asked, n = {}, 0
    g:outputs { y, g:gradient({ y }, x, { mirror = function(node)
      for _, field in ipairs { "name", "op", "attrs", "shapes", "dtypes", "bytes", "flops", "inputs", "stage" } do
        assert(node[field] ~= nil, field)
      end
      asked[node.name] = (asked[node.name] or 0) + 1
      n = n + 1
      return true
    end }) }
    g:plan()
    g:plan()
    assert.equal(6, n)
    for i = 1, 3 do assert.same({ 1, 1 }, { asked["mul_" .. i], asked["tanh_" .. i] }) end
  end)
end)

describe("M15: gradients that are added up", function()
  it("from a graph: 1, then 2; from a tape that is kept: the same; a freed tape is an error", function()
    local g = T.graph()
    local s = g:input("x", { 1 })
    g:outputs { g:gradient({ s * 1 }, s) }
    local out = T.zeros(1)
    for i = 1, 2 do
      g:run({ x = T.ones(1) }, { out = { out }, add = true })
      assert.equal(i, out:item())
    end
    local larger = T.zeros(3)
    assert.is_false((pcall(g.run, g, { x = T.ones(1) }, { out = { larger } })))
    assert.same({ 0, 0, 0 }, larger:totable())
    local p = T.nn.Parameter(T.ones(2))
    local opt = T.optim.SGD({ p }, { lr = 0.5 })
    local step = T.jit(function()
      p:sum():backward()
      opt:step()
      return p:sum()
    end)
    step()
    local made = p:totable()
    assert.is_false((pcall(step:graph().run, step:graph(), {}, { out = { larger } })))
    assert.same(made, p:totable()) -- nothing has run
    local x = T.ones(1):requires_grad_()
    local y = x * 1
    y:backward { retain_graph = true }
    y:backward()
    assert.equal(2, x.grad:item())
    local ok, err = pcall(y.backward, y)
    assert.is_false(ok)
    assert.matches("was freed by an earlier backward.*retain_graph=true", err)
  end)
end)

describe("a gradient that is zero everywhere", function()
  it("is zeros, alone or in a sum", function()
    local g = T.graph()
    local x = g:input("x", { 3, 3 })
    g:outputs { g:gradient(x:floor() * 2, x), (g:gradient((x:floor() + x * 3):sum(), x)) }
    local out = g:run { x = T.ones(3, 3) }
    assert.is_true(out[1]:eq(0):all():item())
    assert.is_true(out[2]:eq(3):all():item())
  end)
end)

describe("reachability", function()
  it("is that of an entry, not of its node", function()
    local g = T.graph()
    local x = g:input("x", { 4, 3 })
    local y, mean = T.batch_norm(x, nil, nil, nil, nil, { training = true })
    local ok, err = pcall(g.gradient, g, { y * 2 }, mean)
    assert.is_false(ok)
    assert.matches("cannot differentiate with respect to input batch_norm_1: not reachable from the outputs", err)
    assert.is_nil(g:gradient({ y * 2 }, mean, { allow_unused = true }))
  end)
end)

describe("whatever a gradient maker emits", function()
  it("reads the copy of a tensor that is recomputed, never the original", function()
    local gpt, feed = models.gpt(2, 2, 32, 16, 40, 2)
    local resnet, images = models.resnet({ 1, 1, 1, 1 }, true, 2, 32, false, 16)
    local copies = 0
    for _, case in ipairs { { gpt, feed }, { resnet, images } } do
      for _, options in ipairs { { mirror = "mirror" }, { mirror = "mincut" }, { mirror = "mincut", heavy = true } } do
        local list, repeated, of = models.graph(case[1], case[2], options):plan():list(), {}, {}
        for _, node in ipairs(list) do
          if node.mirror then
            repeated[node.name:gsub("_mirror$", "")] = true
            copies = copies + 1
          end
        end
        for _, node in ipairs(list) do -- a view stands for what it looks at
          local root = node.view and of[node.inputs[1]] or node
          for _, v in ipairs(node.outputs) do of[v] = root end
          for _, v in ipairs(node.stage > 0 and not node.view and node.inputs or {}) do
            local made = v and of[v]
            assert.is_false(made and made.stage == 0 and not made.mirror and repeated[made.name] or false,
              node.name .. " reads " .. (made and made.name or ""))
          end
        end
      end
    end
    assert.is_true(copies > 50)
  end)
end)
