-- SPDX-License-Identifier: MIT
-- Texts of saved graphs to damage: a perceptron with gradients and recomputation, convolutions, recurrent nets,
-- attention, indexing, writes in place and an optimizer's step. `try` loads a damaged one, plans it and runs it.

local T = require "perilune"
local io_ = require "perilune.graph.file"
local mutate = require "spec.support.mutate"
local nn = T.nn

local M = {}

local function perceptron(g)
  local net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Dropout(0.25), nn.Linear(4, 2))
  local x, y = g:input("x", { 5, 3 }), g:input("y", { 5 }, { dtype = "i64" })
  local loss = g:trace(function() return nn.F.cross_entropy(net(x) * 1.5, y) end)
  local grads = g:gradient(loss, net:parameters(), { mirror = "mincut", seeded = true })
  g:outputs { loss = loss, table.unpack(grads) }
end

local function pictures(g)
  local net = nn.Sequential(nn.Conv2d(1, 2, 3, { padding = 1 }), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2),
    nn.ConvTranspose2d(2, 1, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten())
  local x = g:input("x", { 2, 1, 4, 4 })
  local y = g:trace(function() return net(x):square():mean() end)
  g:outputs { y, table.unpack(g:gradient(y, net:parameters())) }
end

local function places(g)
  local x, m = g:input("x", { 4, 5 }), g:input("m", { 4, 5 }, { dtype = "bool" })
  local i, table_ = g:input("i", { 3 }, { dtype = "i64" }), T.rand(6, 3)
  local y = g:trace(function()
    local e = nn.F.embedding(i, table_)
    local s = x:index_select(1, i):sort(2):cumsum(2):softmax(2)
    local w = x:masked_fill(m, 0):unfold(2, 3, 1):sum():add(x:diagonal():prod())
    return e:sum() * s:amax() + w + x:pad { 1, 1 }:flip(2):narrow(2, 2, 3):std() + x:topk(2, 2):sum()
      + x:as_strided({ 2, 2 }, { 5, 1 }):logsumexp() + x:tile { 1, 2 }:sum() + x:gather(1, i:unsqueeze(1)):mean()
  end)
  g:outputs { y, g:gradient({ y }, { x })[1] }
end

local function sequences(g)
  local x = g:input("x", { 3, 2, 4 })
  local rnn, gru, lstm = nn.RNN(4, 3), nn.GRU(3, 3), nn.LSTM(3, 2)
  local y = g:trace(function()
    local h = lstm((gru((rnn(x)))))
    return nn.F.scaled_dot_product_attention(h, h, h, { is_causal = true }):sum()
  end)
  g:outputs { y, g:gradient({ y }, { x })[1] }
end

local function writes()
  local net = nn.Linear(3, 2)
  local opt = T.optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
  local step = T.jit(function(x)
    opt:zero_grad()
    local buffer = T.zeros(2, 3)
    buffer:narrow(1, 1, 1):copy_(x:narrow(1, 1, 1))
    local loss = (net(x) * buffer:sum()):square():mean()
    loss:backward()
    opt:step()
    return loss
  end)
  step(T.rand(4, 3))
  step(T.rand(4, 3))
  return step:graph()
end

-- Sizes that the text leaves free: in shapes, types, attributes and numbers, products and sums of them, and of sizes
-- that rules give.
local function free(path)
  local net = nn.Sequential(nn.Conv2d(1, 2, 3, { stride = 2 }), nn.ReLU())
  return T.save_graph(path, function(x, y)
    local h = net(x):flatten(3):transpose(2, 3)
    local n, k = y:size(1), h:size(1) * h:size(2)
    return h:reshape(k, 2):sum() * n + T.arange(n):sum() + y:repeat_interleave(2, 1):narrow(1, n, n + 1):sum(), h
  end, { T.rand(2, 1, 7, 5), T.rand(4) }, { dynamic = { x1 = { "batch", [3] = "height" }, x2 = { "n" } },
    sizes = { batch = { 1, 9 }, height = { 5, 40 }, n = { 1, 30 } } })
end

local function saved(path, g)
  os.remove(path) -- a save that replaces a text keeps that one's checksum
  if type(g) == "function" then assert(g(path)) else assert(T.save_graph(path, g)) end
  local text = mutate.read(path)
  local tensors, meta = T.load(path .. ".safetensors")
  return text, tensors, meta["perilune.graph"], mutate.read(path .. ".safetensors")
end

--- → a list of texts, and by text {tensors=, pair=}. Each comes twice: as it is saved, and without the types of
-- results, so that more of its damages reach what comes later.
function M.make()
  T.manual_seed(3)
  local texts, by_text, path = {}, {}, os.tmpname()
  local makers = { perceptron, pictures, places, sequences }
  for k = 1, #makers + 2 do
    local g = makers[k] and T.graph() or k == #makers + 1 and writes() or free
    if makers[k] then makers[k](g) end
    local text, tensors, pair, file = saved(path, g)
    local good = "perilune graph 1\npair " .. pair .. "\n"
    assert(text:sub(1, #good) == good)
    texts[2 * k - 1] = text
    texts[2 * k] = text:gsub(":%w+%[[%dx$@*+.?-]*%]", ""):gsub(":none", "")
    by_text[2 * k - 1] = { tensors = tensors, pair = pair, file = file }
    by_text[2 * k] = by_text[2 * k - 1]
  end
  os.remove(path)
  os.remove(path .. ".safetensors")
  return texts, by_text
end

local function feed_of(g)
  local feed = {}
  for _, leaf in ipairs(T.core.graph_leaves(g.ir)) do
    if leaf.kind == "input" then
      local t = leaf.dtype:match "^b?f" and T.rand(leaf.shape):to(leaf.dtype) or T.ones(leaf.shape):to(leaf.dtype)
      feed[leaf.name] = t
    end
  end
  return feed
end

--- Loads a text with the tensors of one that was good; a graph that comes of it is planned and run → was it a graph?,
-- else what is wrong.
function M.try(text, with)
  local g, problem = io_.build(text, with.tensors, text:match("\npair (%x+)\n") or with.pair)
  if not g then return false, problem end
  pcall(function()
    local feed = feed_of(g)
    g:run(feed)
    g:plan():run(feed)
  end)
  return true
end

--- Does the reader of Lua take it?
function M.taken(text, with)
  local g, problem = io_.build(text, with.tensors, with.pair)
  return g ~= nil, problem
end

return M
