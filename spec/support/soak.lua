-- SPDX-License-Identifier: MIT
-- A long training with everything on: jit, hooks, dropout, autocast, checkpointed layers, a loader with workers,
-- schedules, clipping, vmap, coroutines, errors, files. Argument: how many steps. Prints memory of the process in KiB,
-- open files, blocks and bytes of the engine and of Lua, at ten instants, and whether the loss is a number.

local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data
local F = nn.F
local steps = tonumber(arg[1])
local path = os.tmpname()

T.manual_seed(1)
local net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5))
local inner = nn.checkpointed(nn.Sequential(nn.Linear(16, 16), nn.Tanh()))
local params = net:parameters()
for _, p in ipairs(inner:parameters()) do params[#params + 1] = p end
local opt = optim.AdamW(params, { lr = 1e-3 })
local schedule = optim.lr_scheduler.CosineAnnealingLR(opt, 50)
local traced = T.jit(function(x, y)
  opt:zero_grad()
  local loss = F.cross_entropy(net(x), y)
  loss:backward()
  opt:step()
  return loss
end)
local seen = 0
inner:register_forward_hook(function() seen = seen + 1 end)
local x = T.randn(64, 16)
local ds = data.TensorDataset(x, T.randint(1, 5, { 64 }))

local function eager(a, y)
  opt:zero_grad()
  local h = a:clone()
  local handle = params[1]:register_hook(function(g) return g * 1 end)
  local loss = T.autocast({ dtype = "bf16" }, function() return F.cross_entropy(net(inner(h)):float(), y) end)
  loss:backward()
  handle:remove()
  nn.utils.clip_grad_norm_(params, 1.0)
  opt:step()
  return loss
end

local function others(step, a)
  if step % 7 == 0 then T.vmap(function(v) return (v * v):sum() end)(a) end
  if step % 11 == 0 then
    local c = coroutine.wrap(function()
      local _ <close> = T.no_grad()
      coroutine.yield(a:sum())
    end)
    c() -- and is left
  end
  if step % 13 == 0 then assert(not pcall(T.matmul, a, T.ones(3))) end
  if step % 17 == 0 then T.hessian(function(v) return (v * v * v):sum() end, T.ones(3)) end
  if step % 101 == 0 then
    assert(T.save(path, { net = net:state_dict(), opt = opt:state_dict() }))
    net:load_state_dict(assert(T.load(path)).net)
  end
  if step % 103 == 0 then assert(not T.load(path .. ".none")) end
end

local function measured(step)
  collectgarbage()
  collectgarbage()
  local f = assert(io.open "/proc/self/status")
  local rss = f:read("a"):match "VmRSS:%s+(%d+)"
  f:close()
  local m = T.memory()
  print(("%d rss %s files %d blocks %d live %d lua %d"):format(step, rss, #T.core.list_folder "/proc/self/fd", m.blocks,
    m.live, collectgarbage "count" // 1 | 0))
end

local step, loss = 0, nil
while step < steps do
  for a, y in data.DataLoader(ds, { batch_size = 16, shuffle = true, workers = step % 100 < 4 and 1 or 0 }) do
    step = step + 1
    loss = step % 3 == 0 and eager(a, y) or traced(a, y)
    others(step, a)
    if step % (steps // 10) == 0 then measured(step) end
  end
  schedule:step()
end
os.remove(path)
print("loss " .. tostring(loss:item() == loss:item()) .. " hooks " .. tostring(seen > 0))
