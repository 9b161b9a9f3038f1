-- SPDX-License-Identifier: MIT
-- What writes and reads files, for lanes that let it fail or end it: function(size) → list of { name, file,
-- function(path, k) that writes version 1 or 2, function(path) → whether it is one of them whole, or nil, message,
-- code, from= folder of the fixture, if another program wrote it }.

local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data

return function(size)
  local x, y = T.arange(size):to("f32"), T.arange(size):to("f32") * 2
  local picture = T.arange(3 * 16 * 16):view(3, 16, 16):to("u8")

  local function fitted(path, which)
    T.manual_seed(which)
    local net = nn.Linear(4, 2)
    local samples = data.TensorDataset(T.ones(8, 4), T.ones({ 8 }, { dtype = "i64" }))
    local loader = data.DataLoader(samples, { batch_size = 4 })
    local h, why, code = T.fit(net, { train = loader, optimizer = optim.SGD(net:parameters(), { lr = 0.1 }), epochs = 1,
      quiet = true, checkpoint = path })
    return h and true or nil, why, code
  end

  -- A graph for each version: another op, another captured tensor.
  local graphs = {}
  for k = 1, 2 do
    graphs[k] = T.graph()
    local a = graphs[k]:input("a", { 2, 2 })
    graphs[k]:outputs { b = (k == 1 and T.relu or T.tanh)(a + T.full({ 2, 2 }, 1.0 * k)) }
  end
  local function result(g) return g:run { a = T.ones(2, 2) }.b end
  local results = { result(graphs[1]), result(graphs[2]) }

  -- Each writes version 1 or 2 of its file; reads and compares it.
  return {
    { "safetensors", "x.st", function(p, k) return T.save(p, { x = k == 1 and x or y, n = { k } }) end,
      function(p)
        local t, why, code = T.load(p)
        if not t then return nil, why, code end
        return t.n[1] == 1 and t.x:equal(x) or t.n[1] == 2 and t.x:equal(y)
      end },
    { "GGUF", "x.gguf", function(p, k)
      return T.save_gguf(p, { x = k == 1 and x or y, z = T.ones(2, 32) * k },
        { metadata = { k = k }, type = { z = "Q8_0" } })
    end, function(p)
      local t, why, code = T.load_gguf(p)
      if not t then return nil, why, code end
      return t.x:equal(x) or t.x:equal(y)
    end },
    { "npy", "x.npy", function(p, k) return T.save_npy(p, k == 1 and x or y) end, function(p)
      local t, why, code = T.load_npy(p)
      if not t then return nil, why, code end
      return t:equal(x) or t:equal(y)
    end },
    { "png", "x.png", function(p, k) return T.save_image(p, k == 1 and picture or picture:flip { 1 }) end, function(p)
      local t, why, code = T.load_image(p)
      if not t then return nil, why, code end
      return t:equal(picture) or t:equal(picture:flip { 1 })
    end },
    { "jpeg", "x.jpg", function(p, k) return T.save_image(p, k == 1 and picture or picture:flip { 1 }) end, function(p)
      local t, why, code = T.load_image(p)
      if not t then return nil, why, code end
      return t:size(1) == 3
    end },
    { "plain bytes", "x.txt", function(p, k) return T.core.write_file(p, ("%d"):format(k):rep(size)) end },
    { "graph", "x.graph", function(p, k) return T.save_graph(p, graphs[k]) end, function(p)
      local g, why, code = T.load_graph(p)
      if not g then return nil, why, code end
      return result(g):equal(results[1]) or result(g):equal(results[2])
    end },
    -- goes on where a checkpoint cannot be written, and says so; its bytes hold times
    { "checkpoint of T.fit", "x.fit", fitted, function(p)
      local t, why, code = T.load(p)
      return t and true, why, code
    end, loose = true },
    { "npz, written", "x.npz", function(p, k) return T.save_npz(p, { x = k == 1 and x or y, z = T.ones(2, 3) }) end,
      function(p)
        local t, why, code = T.load_npz(p)
        if not t then return nil, why, code end
        return t.x:equal(x) or t.x:equal(y)
      end },
    { "npz", "arrays.npz", nil, function(p)
      local t, why, code = T.load_npz(p)
      return t and true, why, code
    end },
    { "pt", "zip.pt", nil, function(p)
      local t, why, code = T.load(p)
      return t and t.base:sum():item() == 276, why, code
    end, from = "pt/" },
    { "pt, the old format", "before_zip.pt", nil, function(p)
      local t, why, code = T.load(p)
      return t and t.base:sum():item() == 276, why, code
    end, from = "pt/" },
    { "tokenizer", "gpt2.json", nil, function(p)
      local t, why, code = data.tokenizer(p)
      return t and #t:encode("the king"):totable() > 0, why, code
    end },
    { "csv", "x.csv", nil, function(p)
      local t, why, code = data.csv(p)
      return t and t:tensor { "a", "b" }:sum():item() == 10, why, code
    end },
  }
end
