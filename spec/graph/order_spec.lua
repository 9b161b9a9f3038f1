-- SPDX-License-Identifier: MIT
-- Ordering edges: g:after says that a node runs after another one though it reads nothing of it. Passes, copies, files
-- and executors keep them. And the ops that a gradient pass makes zeros and copies with.

local T = require "perilune"
local core = require "perilune.core"

local function refused(text, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, text)
  assert.is_truthy(tostring(err):find(text, 1, true), err)
end

-- The first node of a plan that is called so.
local function find(plan, name)
  for _, node in ipairs(plan:list()) do
    if node.name == name then return node end
  end
end

-- The names of what a node waits for.
local function waits(plan, name)
  local list, names = plan:list(), {}
  for i, k in ipairs(find(plan, name).after or {}) do names[i] = list[k].name end
  return names
end

local function graph()
  local g = T.graph()
  return g, g:input("x", { 8 }), g:input("y", { 8 })
end

describe("g:after", function()
  it("has what comes first run, and says so in texts and nodes", function()
    local g, x, y = graph()
    local first = x:sin()
    local then_ = y:exp()
    assert.equal(then_, g:after(then_, first))
    g:after(then_, first) -- twice is once
    g:outputs { then_ }
    assert.is_truthy(g:text():find("exp_1, stage 0, after sin_1\n", 1, true), g:text())
    assert.is_truthy(g:dot():find("n0 -> n1 [style=dashed]", 1, true))
    assert.same({ 1 }, g:nodes()[2].after)
    local plan = g:plan()
    assert.is_true(plan:verify())
    assert.same({ "sin_1" }, waits(plan, "exp_1"))
    assert.is_truthy(plan.text:find("after sin_1", 1, true))
    assert.equal(2, plan.nodes)
    local X, Y = T.randn(8), T.randn(8)
    assert.is_true(Y:exp():equal(g:run({ x = X, y = Y })[1]))
    assert.is_true(Y:exp():equal(core.graph_run(g.ir, { X, Y })[1]))
  end)

  it("plans anew when an edge comes", function()
    local g, x, y = graph()
    local first, then_ = x:sin(), y:exp()
    g:outputs { then_ }
    assert.equal(1, g:plan().nodes)
    g:after(then_, first)
    assert.equal(2, g:plan().nodes)
  end)

  it("takes names, several at once, and looks through views", function()
    local g, x, y = graph()
    g:name(x:sin(), "a")
    local b = x:cos()
    local c = y:exp()
    g:after(c:view(2, 4), "a", b:view(4, 2):t())
    g:outputs { c }
    assert.same({ "a", "cos_1" }, waits(g:plan(), "exp_1"))
  end)

  it("keeps nodes apart that would be fused", function()
    local g, x, y = graph()
    local a = (x:sin() * 2):tanh()
    local b = (y:exp() * 3):tanh()
    g:outputs { a, b }
    local function together()
      for _, group in ipairs(g:plan().groups) do
        local s = " " .. table.concat(group, " ") .. " "
        if s:find(" tanh_1 ", 1, true) and s:find(" exp_1 ", 1, true) then return true end
      end
      return false
    end
    assert.is_true(together())
    g:after("exp_1", a)
    assert.is_false(together())
    local X, Y = T.randn(8), T.randn(8)
    local out = g:run { x = X, y = Y }
    assert.is_true((X:sin() * 2):tanh():equal(out[1]) and (Y:exp() * 3):tanh():equal(out[2]))
  end)

  it("waits for what stands for a node that passes take away", function()
    local g, x, y = graph()
    local kept, twin = x:sin(), x:sin()      -- merged
    local one = (x:cos()) * 1                 -- cos itself
    local three = g:trace(function() return T.full({}, 1.5) * 2 end) -- a constant
    local z = y:exp()
    g:after(z, twin, one)
    if core.is_symbolic(three) then g:after(z, three) end
    g:outputs { z, kept }
    local plan = g:plan()
    assert.is_true(plan:verify())
    assert.same({ "sin_1", "cos_1" }, waits(plan, "exp_1"))
  end)

  it("is not merged away, nor simplified, itself", function()
    local g, x, y = graph()
    local first = x:sin()
    local plain, late, same = y:exp(), y:exp(), y * 1
    g:after(late, first)
    g:after(same, first)
    g:outputs { plain, late, same }
    local plan = g:plan()
    assert.same({ "sin_1" }, waits(plan, "exp_2"))
    assert.same({ "sin_1" }, waits(plan, "mul_1"))
  end)

  it("holds for copies that backward computes again; of what is copied, too, the copy comes first", function()
    for _, both in ipairs { false, true } do
      for _, policy in ipairs { "mirror", "mincut", "auto" } do
        local g, x, y = graph()
        local first = T.sigmoid(x * 2)
        local h = T.tanh(y * 3)
        g:after(h, first)
        local loss = (T.tanh(h) * T.tanh(first)):sum()
        local grads = g:gradient(loss, { x, y }, { mirror = policy, force = both and { h, first } or { h },
          pin = not both and { first } or nil })
        g:outputs { loss, grads[1], grads[2] }
        local plan = g:plan()
        assert.is_true(plan:verify())
        assert.equal(1, plan.stage[h])
        local before = waits(plan, "tanh_1_mirror")
        if plan.policy == "peak" then before[1] = before[1]:gsub("_mirror$", "") end -- copies come and go there
        assert.same({ both and plan.policy ~= "peak" and "sigmoid_1_mirror" or "sigmoid_1" }, before)
        assert.same({ "sigmoid_1" }, waits(plan, "tanh_1"))
        local X, Y = T.randn(8), T.randn(8)
        local out, want = g:run { x = X, y = Y }, core.graph_run(g.ir, { X, Y })
        for i = 1, 3 do assert.is_true(want[i]:equal(out[i])) end
      end
    end
  end)

  it("comes back from files", function()
    local g, x, y = graph()
    local first = T.sigmoid(x)
    local z = y:t():tanh()
    g:after(z, first)
    g:outputs { z, (g:gradient(z, y, { mirror = "mincut" })) }
    local path = os.tmpname()
    assert(T.save_graph(path, g))
    local back = assert(T.load_graph(path))
    assert.equal(g:text(), back:text())
    assert.same({ "sigmoid_1" }, waits(back:plan(), "tanh_1"))
    local f = assert(io.open(path))
    local text = f:read "a"
    f:close()
    for _, bad in ipairs { "after 9", "after 0", "after 3", "after x", "after 1,,2" } do
      f = assert(io.open(path, "w"))
      f:write((text:gsub("after [%d,]+", bad)))
      f:close()
      local none, err, code = T.load_graph(path)
      if bad ~= "after 1,,2" then
        assert.is_nil(none, bad)
        assert.equal("format", code)
        assert.is_truthy(err:find("come", 1, true), err)
      end
    end
    os.remove(path)
    os.remove(path .. ".safetensors")
  end)

  it("refuses what cannot be", function()
    local g, x, y = graph()
    local a, b = x:sin(), y:exp()
    local h = T.graph()
    local other = h:input("x", { 8 }):sin()
    refused("after: sin_1 cannot run after itself", g.after, g, a, a)
    refused("after: exp_1 was made after sin_1; nodes run in the order in which they were made", g.after, g, a, b)
    refused("after: argument 2 is an input or a view of one; nothing computes it", g.after, g, b, x)
    refused("after: argument 3 is an input", g.after, g, b, a, y:view(2, 4))
    refused("after: the first argument is an input", g.after, g, x, a)
    refused("after: argument 2: there is no node 'nobody'", g.after, g, b, "nobody")
    refused("is no tensor of this graph", g.after, g, b, other)
    refused("after: argument 2 must be a tensor of the graph or the name of a node, got a tensor [2]", g.after, g, b,
      T.ones(2))
    refused("after: what must run first?", g.after, g, b)
    refused("after is a method of a graph", g.after, b, a)
    assert.is_nil(g:text():find("after", 1, true))
  end)
end)

describe("g:gradient's zero_ops and copy_op", function()
  it("make zeros for nodes without a gradient, of their input, and count as zeros", function()
    local function ask(options)
      local g, x = graph()
      local y = x:sin()
      options.allow_unused = true
      options.out_grads = { g:trace(function() return T.zeros(8) end) }
      local dx = g:gradient(y, x, options)
      g:outputs { dx }
      return g:text(), g:run({ x = T.randn(8), y = T.randn(8) })[1]
    end
    local text, dx = ask {}
    assert.is_truthy(text:find("zeros(", 1, true) and text:find("sin_1_backward", 1, true), text)
    assert.is_true(dx:equal(T.zeros(8)))
    text, dx = ask { zero_ops = { "sign", "zeros" } } -- who reads what the first op gave is the script's affair
    assert.is_truthy(text:find("= sign(%0) : f32[8]  # sin_1_backward", 1, true), text)
    assert.is_false(dx:equal(T.zeros(8)))
    text = ask { zero_ops = {} } -- nothing counts as zeros: the gradient is computed
    assert.is_truthy(text:find("cos", 1, true), text)
  end)

  it("make the copy of a gradient that two share", function()
    local g, x = graph()
    local list = g:gradient(x * x, { x, x }, { copy_op = "neg" })
    g:outputs(list)
    assert.is_truthy(g:text():find("= neg%(%%%d+%) : f32%[8%]  # grad_sum_1_copy"), g:text())
    local out = g:run { x = T.ones(8), y = T.ones(8) }
    assert.is_true(out[1]:equal(-out[2]))
    g, x = graph()
    list = g:gradient(x * x, { x, x }, { copy = true })
    g:outputs(list)
    assert.is_truthy(g:text():find("= clone(", 1, true))
  end)

  it("refuse what is no such op", function()
    local g, x = graph()
    local y = x * 2
    local function ask(options) return function() return g:gradient(y, { x, x }, options) end end
    refused("copy_op: there is no op colne", ask { copy_op = "colne" })
    refused("copy_op: add is no op of one tensor that gives another", ask { copy_op = "add" })
    refused("copy_op: zeros is no op of one tensor", ask { copy_op = "zeros" })
    refused("copy_op: the name of an op expected, got table", ask { copy_op = {} })
    refused("copy_op: sum gives f32[] of f32[8]; the same shape and dtype are wanted", ask { copy_op = "sum" })
    refused("copy_op says what makes copies, copy=false that none are made", ask { copy_op = "clone", copy = false })
    refused("zero_ops: there is no op nothing", ask { zero_ops = { "nothing" } })
    refused("zero_ops must be a list of names of ops, got", ask { zero_ops = "zeros" })
    refused("zero_ops: there is no entry a", ask { zero_ops = { a = "zeros" } })
    local before = g:text()
    pcall(ask { copy_op = "sum" })
    assert.equal(before, g:text())
  end)
end)
