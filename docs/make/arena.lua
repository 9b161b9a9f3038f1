-- SPDX-License-Identifier: MIT
-- Makes the pictures of arenas in the tutorial from the plans of its own code: perilune run docs/make/arena.lua
local T = require "perilune"
local nn, optim = T.nn, T.optim
local out = (arg[0]:match("^(.*)/make/[^/]*$") or "docs") .. "/img/"

local function write(name, text)
  local f = assert(io.open(out .. name, "w"))
  assert(f:write(text))
  assert(f:close())
end

-- docs/tutorial/half-the-memory.md
do
  local net = nn.Sequential(
    nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Flatten(), nn.Linear(16 * 32 * 32, 10))
  local function plan(options)
    local g = T.graph()
    local x = g:input("x", { 8, 3, 32, 32 })
    local y = g:input("y", { 8 }, { dtype = "i64" })
    local loss = nn.F.cross_entropy(net(x), y)
    g:outputs { loss = loss, table.unpack(g:gradient(loss, net:parameters(), options)) }
    return g:plan()
  end
  local plain, less = plan(), plan { mirror = true }
  local scale = { width = 720, height = 200, bytes = plain.arena_bytes }
  write("arena-all.svg", plain:svg(scale))
  write("arena-less.svg", less:svg(scale))
end

-- docs/tutorial/compiled.md
do
  local layers = {}
  for i = 1, 6 do
    layers[#layers + 1] = nn.Conv2d(i == 1 and 3 or 16, 16, 3, { padding = 1 })
    layers[#layers + 1] = nn.BatchNorm2d(16)
    layers[#layers + 1] = nn.ReLU()
  end
  layers[#layers + 1] = nn.Flatten()
  layers[#layers + 1] = nn.Linear(16 * 256, 10)
  local net = nn.Sequential(layers)
  local opt = optim.SGD(net:parameters(), { lr = 1e-2 })
  local step = T.jit(function(x, y)
    opt:zero_grad()
    local loss = nn.F.cross_entropy(net(x), y)
    loss:backward()
    opt:step()
    return loss
  end, { mirror = "mincut" })
  step(T.randn(16, 3, 16, 16), T.randint(1, 10, { 16 }))
  write("arena.svg", step:plan():svg { width = 720, height = 280 })
end
