-- SPDX-License-Identifier: MIT
-- Plans of whole models: what the arena needs compared with what is alive at once, what recomputation saves, budgets.
-- Parameters are real, inputs are only described: nothing runs here but the smallest.

local T = require "perilune"
local models = require "spec.support.models"

-- Plans one model under several options without making it again.
local function plans(make, list)
  local net, feed = make()
  local out = {}
  for i, options in ipairs(list) do
    out[i] = models.graph(net, feed, options):plan()
    assert.is_true(out[i]:verify())
  end
  return table.unpack(out)
end

describe("the memory planner", function()
  for _, name in ipairs { "mlp", "lenet", "resnet18", "resnet50", "resnet152", "gpt_nano", "gpt_medium", "lstm" } do
    it("needs at most 1.05 x what is alive at once; auto is never worse than none: " .. name, function()
      local none, auto = plans(models[name], { { mirror = "none" }, { mirror = true } })
      for _, plan in ipairs { none, auto } do
        assert.is_true(plan.arena_bytes <= 1.05 * plan.lower_bound_bytes,
          ("arena %d, bound %d"):format(plan.arena_bytes, plan.lower_bound_bytes))
        assert.equal(plan.arena_bytes + plan.leaf_bytes + plan.output_bytes, plan.peak_bytes)
        if name ~= "lstm" then assert.is_true(plan.inplace > 0) end -- one op for all steps
      end
      assert.is_true(auto.peak_bytes <= none.peak_bytes)
    end)
  end

  it("ResNet-152, 32 images: a quarter of the memory with convolutions unlocked, at a third more work", function()
    local none, cheap, heavy = plans(models.resnet152, { { mirror = "none" }, { mirror = true },
      { mirror = true, heavy = true } })
    assert.is_true(cheap.peak_bytes <= 0.72 * none.peak_bytes, cheap.peak_bytes / none.peak_bytes)
    assert.is_true(heavy.peak_bytes <= 0.30 * none.peak_bytes, heavy.peak_bytes / none.peak_bytes)
    assert.is_true(heavy.flops <= 1.35 * none.flops, heavy.flops / none.flops)
    assert.is_true(cheap.stash_bytes <= 0.53 * none.stash_bytes)
  end)

  it("GPT, 8 layers of 512: stash 0.68 with cheap ops, 0.30 unlocked at 1.35 x the work", function()
    local none, cheap, heavy = plans(models.gpt_medium, { { mirror = "none" }, { mirror = "mincut" },
      { budget = { fraction = 0.3 } } })
    assert.is_true(cheap.stash_bytes <= 0.68 * none.stash_bytes, cheap.stash_bytes / none.stash_bytes)
    assert.is_true(heavy.stash_bytes <= 0.30 * none.stash_bytes, heavy.stash_bytes / none.stash_bytes)
    assert.is_true(heavy.flops <= 1.35 * none.flops, heavy.flops / none.flops)
  end)
end)

describe("budgets", function()
  local net, feed
  setup(function() net, feed = models.gpt(2, 2, 32, 16, 40, 2) end)
  teardown(function() net, feed = nil, nil end)

  local function run(options)
    local g, numbers = models.graph(net, feed, options)
    T.manual_seed(4)
    return g:plan(), g:run(numbers())
  end

  it("as a fraction are met with the same bits; 1 is none, 0 the lowest there is", function()
    local none, want = run { mirror = "none" }
    local before = 2
    for _, fraction in ipairs { 1, 0.8, 0.5, 0.25, 0 } do
      local plan, out = run { budget = { fraction = fraction } }
      local got = plan.stash_bytes / none.stash_bytes
      assert.is_true(got <= fraction or fraction == 0, ("%g for %g"):format(got, fraction))
      assert.is_true(got <= before)
      before = got
      for i = 1, #want do assert.is_true(want[i]:equal(out[i]), "output " .. i) end
    end
    assert.equal(0, (run { budget = { fraction = 1 } }).recomputed)
  end)

  it("in bytes are met, or refused with the lowest peak", function()
    local none, want = run { mirror = "none" }
    local low = run { mirror = true, heavy = true }
    assert.is_true(low.peak_bytes < none.peak_bytes)
    local plan, out = run { budget = { bytes = (none.peak_bytes + low.peak_bytes) // 2 } }
    assert.is_true(plan.peak_bytes <= (none.peak_bytes + low.peak_bytes) // 2)
    for i = 1, #want do assert.is_true(want[i]:equal(out[i]), "output " .. i) end
    local g = models.graph(net, feed, { budget = { bytes = 1000 } })
    local ok, err = pcall(g.plan, g)
    assert.is_false(ok)
    local lowest = tonumber(err:match("the lowest planned peak is (%d+) bytes"))
    assert.is_true(lowest <= low.peak_bytes, err)
    assert.is_true(run({ budget = { bytes = lowest } }).peak_bytes == lowest)
  end)

  it("are checked", function()
    for _, case in ipairs { { { budget = 3 }, "options must be a table" },
      { { budget = { fraction = 2 } }, "from 0 to 1" }, { { budget = {} }, "either bytes or fraction" },
      { { mirror = "mirrored" }, 'got "mirrored"' },
      { { pin = { "nobody" } }, "is no node of the graph" }, { { force = 3 }, "list of tensors and names" } } do
      local g = T.graph()
      local x = g:input("x", { 2 })
      local ok, err = pcall(g.gradient, g, { T.tanh(x) }, x, case[1])
      assert.is_false(ok)
      assert.is_truthy(err:find(case[2], 1, true), err)
    end
  end)
end)

describe("planning", function()
  it("takes less than a second for 10,000 nodes with gradients and a budget, in proportion to nodes", function()
    local function seconds(n)
      local g = T.graph()
      local x = g:input("x", { 8, 8 })
      local w = g:input("w", { 8, 8 }, { leaf = true })
      local y = x
      for k = 1, n // 4 do
        y = T.relu(y + (k % 5 == 0 and x or y)) * 0.5
        if k % 3 == 0 then y = y:matmul(w) end
      end
      local from = os.clock()
      g:outputs { y, table.unpack(g:gradient({ y }, { x, w }, { budget = { fraction = 0.5 } })) }
      local plan = g:plan()
      assert.is_true(plan.nodes > n)
      return os.clock() - from
    end
    local half, whole = math.huge, math.huge
    for _ = 1, 2 do half, whole = math.min(half, seconds(5000)), math.min(whole, seconds(10000)) end
    assert.is_true(whole < 1, ("%.2f s"):format(whole))
    assert.is_true(whole < 2.3 * half + 0.02, ("%.3f s, half of it %.3f s"):format(whole, half))
  end)
end)
