-- SPDX-License-Identifier: MIT
-- Random graphs with writes in place, views, several outputs, buffers and random draws: what a plan computes, under
-- every policy and budget, is to the bit what is computed of the graph as it is, node by node
-- (engine/graph/run/reference.c).
-- PERILUNE_FUZZ_POLICY=n tries n more graphs, from seed PERILUNE_FUZZ_FIRST on.

local T = require "perilune"
local core = require "perilune.core"

local function generator(seed)
  local state = seed * 2654435761 % 4294967296 + 1
  return function(n)
    state = (state * 1664525 + 1013904223) % 4294967296
    return (state >> 8) % n + 1
  end
end

local ROWS, COLS = 6, 4

-- Appends to values what a random step makes of them. All have ROWS x COLS elements.
local steps = {
  function(v) return T.tanh(v()) end,
  function(v) return T.sigmoid(v() * 2) end,
  function(v) return v() + T.relu(v()) end,
  function(v) return v() * v() end,
  function(v) return T.softmax(v(), -1) end,
  function(v) return T.layer_norm(v(), { COLS }) end,
  function(v, s) return T.linear(v(), s.weight()) end,
  function(v, s) return T.linear(v(), s.weight()) + v() end,
  function(v) -- in place
    local y = v() * 1.5
    y:add_(T.sin(v()))
    y:tanh_()
    return y
  end,
  function(v, s) -- a part in place
    local y = v():clone()
    y:narrow(1, s.pick(ROWS), 1):mul_(0.5)
    return y
  end,
  function(v) return v():t():contiguous():t() * 0.9 end,
  function(v) return v():reshape(COLS, ROWS):t():reshape(ROWS, COLS) end,
  function(v) -- several outputs
    local parts = v():split(2, 2)
    return T.cat({ parts[2]:exp() * 0.3, parts[1] }, 2)
  end,
  function(v)
    local most, at = v():max(2, { keepdim = true })
    return v() * most + at:float() * 0.1
  end,
  function(v, s) return T.nn.F.dropout(v(), 0.1 * s.pick(5)) end,
  function(v, s) return v() + T.nn.F.dropout(T.tanh(v()), 0.3 + 0 * s.pick(2)) end,
  function(v, s) -- a buffer: read, updated, and read again
    local b = s.buffer()
    local y = v() + b
    b:mul_(0.5)
    b:add_(y:detach() * 0.1)
    return T.tanh(y) * (s.pick(2) == 1 and b or 1)
  end,
  function(v, s) return v() * s.buffer() end,
  function(v, s) -- behind something else
    local y = T.tanh(v() * 0.7)
    local first = s.any()
    if s.g and core.graph_maker(s.g.ir, first) and core.graph_maker(s.g.ir, y) then s.g:after(y, first) end
    return y
  end,
  function(v) return v():mean(1, { keepdim = true }) + v() end,
}

-- The graph of a seed under options → what to run, its buffers.
local function build(seed, options)
  local pick = generator(seed)
  local g = T.graph()
  local xs, values, buffers = {}, {}, {}
  local s = { g = g, pick = pick }
  T.manual_seed(seed)
  local feed, shapes = {}, {}
  local function input(name, shape, leaf)
    local t = g:input(name, shape, { leaf = leaf })
    shapes[#shapes + 1] = { name, shape }
    xs[#xs + 1] = t
    return t
  end
  for i = 1, pick(2) do values[i] = input("x" .. i, { ROWS, COLS }, pick(2) == 1) end
  for i = 1, 2 do buffers[i] = T.randn(ROWS, COLS) * 0.5 end
  function s.weight() return input("w" .. #xs, { COLS, COLS }, true) end
  function s.buffer() return buffers[pick(2)] end
  function s.any() return values[math.max(pick(#values), pick(#values))] end
  g:trace(function()
    for _ = 1, 4 + pick(10) do values[#values + 1] = steps[pick(#steps)](s.any, s) end
  end)
  for _, one in ipairs(shapes) do feed[one[1]] = T.randn(one[2]) * 0.5 end -- not while it is traced
  local y = values[#values]
  local ys = { pick(2) == 1 and y:sum() or y }
  if pick(3) == 1 and #values > 3 then ys[2] = values[#values - 2]:square():mean() end
  local ok, grads = pcall(g.gradient, g, ys, xs, options)
  if not ok then return nil, grads end
  local outputs = {}
  if pick(3) == 1 and grads[1] then -- and gradients of gradients
    local fine, second = pcall(g.gradient, g, grads[1]:square():sum(), xs, options)
    if not fine then return nil, second end
    for i = 1, #xs do outputs[#outputs + 1] = second[i] end
  end
  for _, t in ipairs(ys) do outputs[#outputs + 1] = t end
  for i = 1, #xs do outputs[#outputs + 1] = grads[i] end
  if pick(3) == 1 then -- a step: the buffer moves by a gradient
    g:trace(function() buffers[1]:sub_(T.full({ ROWS, COLS }, 0.01) * ys[1]:sum()) end)
  end
  g:outputs(outputs)
  return g, feed, buffers
end

local OPTIONS = {
  { mirror = "none" }, { mirror = "mirror" }, { mirror = "mincut" }, { mirror = "auto" },
  { mirror = "mirror", heavy = true }, { mirror = "mincut", heavy = true, seeded = true },
  { mirror = "auto", heavy = true },
  { budget = { fraction = 0 } }, { budget = { fraction = 0.5 }, heavy = true }, { mirror = function() return true end },
}

-- Three runs of the seed's graph: what they gave, and what the buffers became.
local function run(seed, options, plain)
  local given = { allow_unused = true }
  for k, v in pairs(options) do given[k] = v end
  local g, feed, buffers = build(seed, given)
  if not g then return nil, feed end
  local ins = {}
  for name, slot in pairs(g.names) do ins[slot] = feed[name] end
  local out = {}
  T.manual_seed(seed + 1)
  for _ = 1, 3 do
    local res = plain and core.graph_run(g.ir, ins) or g:run(feed)
    for _, t in ipairs(res) do out[#out + 1] = t:clone() end
  end
  for _, b in ipairs(buffers) do out[#out + 1] = b end
  out[#out + 1] = T.rand(2) -- the generator stands where it stood
  if not plain then assert.is_true(g:plan():verify()) end
  return out, g
end

local function check(seed)
  local want, why = run(seed, { mirror = "none" }, true)
  if not want then
    assert.is_truthy(why:find("overwritten after it", 1, true), why) -- a gradient that reads what was written since
    return false
  end
  local recomputed = 0
  for k, options in ipairs(OPTIONS) do
    local got, g = run(seed, options)
    assert.is_truthy(got, g)
    recomputed = recomputed + g:plan().recomputed
    assert.equal(#want, #got)
    for i = 1, #want do
      assert.is_true(want[i]:equal(got[i]), ("seed %d, options %d: %d of %d differs"):format(seed, k, i, #want))
    end
  end
  return true, recomputed > 0
end

local function check_from(first, n)
  local done, again = 0, 0
  for seed = first, first + n - 1 do
    local ok, some = check(seed)
    done, again = done + (ok and 1 or 0), again + (some and 1 or 0)
  end
  return done, again
end

describe("plans under every policy compute what the graph says", function()
  it("on random graphs", function()
    local done, again = check_from(1, 60)
    assert.is_true(done > 30 and again > 15, ("%d graphs, %d of them with copies"):format(done, again))
  end)

  it("on as many as PERILUNE_FUZZ_POLICY says", function()
    local n = tonumber(os.getenv "PERILUNE_FUZZ_POLICY" or "0")
    local done, again = check_from(tonumber(os.getenv "PERILUNE_FUZZ_FIRST" or "10000"), n)
    if n > 0 then print(("%d graphs, %d of them with copies"):format(done, again)) end
  end)
end)
