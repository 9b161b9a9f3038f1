-- SPDX-License-Identifier: MIT
-- Recomputation against brute force: small random graphs are planned once for every set of nodes that may be
-- computed again; mirror="auto" must come within 5 % of the best, and its numbers must be those of the plain graph.
-- PERILUNE_FUZZ_PLAN=n tries n more graphs, from seed PERILUNE_FUZZ_FIRST on, of up to PERILUNE_FUZZ_NODES (14) nodes.

local T = require "perilune"

-- A generator of its own: graphs must not depend on what else draws.
local function generator(seed)
  local state = seed * 2654435761 % 4294967296 + 1
  return function(n)
    state = (state * 1664525 + 1013904223) % 4294967296
    return (state >> 8) % n + 1
  end
end

local UNARY = { "tanh", "sigmoid", "relu", "exp", "gelu", "square", "sin", "softmax", "neg" }

-- Builds the graph of a seed → graph, its ys, its xs.
local function build(seed, most)
  local pick = generator(seed)
  local g, xs, ws = T.graph(), {}, {}
  local rows = 64 << pick(3)
  local x = g:input("x", { rows, 16 }, { leaf = pick(2) == 1 })
  xs[1] = x
  local values = { x }
  local n = 6 + pick(most - 6)
  local function any() -- newer values are likelier
    local a, b = pick(#values), pick(#values)
    return values[math.max(a, b)]
  end
  local function like(v)
    for _ = 1, 8 do
      local w = any()
      if w:size(2) == v:size(2) and (w:size(1) == v:size(1) or w:size(1) == 1) then return w end
    end
    return v
  end
  for _ = 1, n do
    local kind, v = pick(12), any()
    local y
    if kind <= 3 then
      local width = ({ 8, 16, 32, 64 })[pick(4)]
      local w = g:input("w" .. #ws + 1, { width, v:size(2) }, { leaf = true })
      ws[#ws + 1] = w
      y = T.linear(v, w)
    elseif kind <= 7 then
      local op = UNARY[pick(#UNARY)]
      y = op == "softmax" and T.softmax(v, -1) or T[op](v)
    elseif kind <= 9 then
      y = v + (pick(2) == 1 and like(v) or T.relu(v)) -- sums that share what they read
    elseif kind == 10 then
      y = v * like(v)
    elseif kind == 11 then
      y = v:size(1) > 1 and v:mean(1, { keepdim = true }) or v * 2
    else
      y = T.tanh(v:t():contiguous():t() * 0.5) -- views and a layout in between
    end
    values[#values + 1] = y
  end
  local ys = { values[#values] }
  if pick(3) == 1 then ys[2] = values[#values - 2] end
  for i = 1, #ys do ys[i] = pick(4) == 1 and ys[i] or ys[i]:sum() end
  for _, w in ipairs(ws) do xs[#xs + 1] = w end
  return g, ys, xs
end

-- Names of nodes that a decision may be about.
local HEAVY = { linear = true, matmul = true }
local function repeatable(g)
  local names = {}
  for _, node in ipairs(g:nodes()) do
    if not node.view and not HEAVY[node.op] then names[#names + 1] = node.name end
  end
  return names
end

local function plan(seed, most, options)
  local g, ys, xs = build(seed, most)
  if type(options) == "function" then options = options(g) end
  options.allow_unused = true
  local grads = g:gradient(ys, xs, options)
  local outputs = {}
  for _, y in ipairs(ys) do outputs[#outputs + 1] = y end
  for i = 1, #xs do outputs[#outputs + 1] = grads[i] end
  g:outputs(outputs)
  return g:plan(), g, xs
end

-- The lowest peak over all sets of nodes.
local function brute(seed, most, names)
  local best, set = math.huge, nil
  for bits = 0, (1 << #names) - 1 do
    local force, pin = {}, {}
    for k, name in ipairs(names) do
      if bits >> (k - 1) & 1 == 1 then force[#force + 1] = name else pin[#pin + 1] = name end
    end
    local peak = plan(seed, most, { mirror = "mincut", force = force, pin = pin }).peak_bytes
    if peak < best then best, set = peak, force end
  end
  return best, set
end

local function run(g, xs)
  T.manual_seed(7)
  local feed = {}
  for _, node in ipairs(xs) do feed[#feed + 1] = T.randn(node:size()) * 0.3 end
  local names = { x = feed[1] }
  for i = 2, #feed do names["w" .. i - 1] = feed[i] end
  return g:run(names)
end

-- Checks one graph; its nodes are counted first, since 2^n plans are made. Returns auto's peak over the best.
local function check(seed, most, at_most)
  local g = build(seed, most)
  local names = repeatable(g)
  if #names > at_most then return nil end
  local best, set = brute(seed, most, names)
  local auto, h, xs = plan(seed, most, { mirror = "auto" })
  local none, plain = plan(seed, most, { mirror = "none" })
  assert.is_true(auto:verify())
  assert.is_true(auto.peak_bytes <= none.peak_bytes)
  local text = "seed %d of %d nodes: auto %d by %s, the best %d by {%s}, none %d"
  assert.is_true(auto.peak_bytes <= 1.05 * best, text:format(seed, most, auto.peak_bytes, auto.policy, best,
    table.concat(set or {}, " "), none.peak_bytes))
  local want, got = run(plain, xs), run(h, xs)
  for i = 1, #want do assert.is_true(want[i]:equal(got[i]), ("seed %d: output %d"):format(seed, i)) end
  return auto.peak_bytes / best, best < 0.97 * none.peak_bytes
end

describe("auto comes within 5 % of brute force on", function()
  it("random graphs of up to 10 nodes", function()
    local done, gains = 0, 0
    for seed = 1, 80 do
      local ratio, gain = check(seed, 10, 8)
      done, gains = done + (ratio and 1 or 0), gains + (gain and 1 or 0)
    end
    assert.is_true(done > 20 and gains >= 5, ("%d graphs, %d where something is gained"):format(done, gains))
  end)

  it("random graphs of up to 14 nodes", function()
    local done = 0
    for seed = 1001, 1012 do done = done + (check(seed, 14, 10) and 1 or 0) end
    assert.is_true(done >= 6, done)
  end)

  it("as many as PERILUNE_FUZZ_PLAN says", function()
    local n = tonumber(os.getenv "PERILUNE_FUZZ_PLAN" or "0")
    local first = tonumber(os.getenv "PERILUNE_FUZZ_FIRST" or "100000")
    local nodes = tonumber(os.getenv "PERILUNE_FUZZ_NODES" or "14")
    local done, gains, worst = 0, 0, 0
    for seed = first, first + n - 1 do
      local ratio, gain = check(seed, nodes, nodes)
      if ratio then done, gains, worst = done + 1, gains + (gain and 1 or 0), math.max(worst, ratio) end
    end
    if n > 0 then
      print(("%d graphs, in %d something is gained; the worst %.3f of the best"):format(done, gains, worst))
    end
  end)
end)
