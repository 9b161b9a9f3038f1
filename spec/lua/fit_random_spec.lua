-- SPDX-License-Identifier: MIT
-- T.fit with options drawn at random, beside the loop that one would write: groups of batches of which the last is
-- smaller, parameters that no optimizer has, clipping, scaled losses, schedules, weights that are given back.

local T = require "perilune"
local random = require "spec.support.random"
local nn, optim, data = T.nn, T.optim, T.data

local OPTIMIZERS = {
  function(p) return optim.SGD(p, { lr = 0.2 }) end,
  function(p) return optim.SGD(p, { lr = 0.1, momentum = 0.9 }) end,
  function(p) return optim.Adam(p, { lr = 0.05 }) end,
  function(p) return optim.SGDScheduleFree(p, { lr = 0.3 }) end,
  function(p) return optim.AdamWScheduleFree(p, { lr = 0.1 }) end,
}

local function draw(g)
  local function one_of(list) return list[g:int(1, #list)] end
  return { samples = g:int(5, 40), size = g:int(1, 9), accumulate = one_of { 1, 1, 2, 3, 5, 7 }, epochs = g:int(1, 4),
    make = one_of(OPTIMIZERS), clip = one_of { false, 0.05, 1 }, scaled = one_of { false, false, true },
    schedule = one_of { false, "epoch", "batch" }, head = one_of { false, true }, jit = one_of { false, true },
    drop = one_of { false, false, true }, restore = one_of { false, true }, seed = g:int(1, 1 << 30) }
end

local function setup(c)
  T.manual_seed(c.seed)
  local x = T.randn(c.samples, 4)
  local y = (x:matmul(T.randn(4, 2)) * 2):tanh()
  local net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
  local opt = c.make(c.head and net[3]:parameters() or net:parameters())
  local sched = c.schedule and optim.lr_scheduler.StepLR(opt, 2, { gamma = 0.7 }) or nil
  local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = c.size, drop_last = c.drop,
    shuffle = c.shuffle })
  local scaler = c.scaled and T.GradScaler { init_scale = 1024.0 } or nil
  return net, opt, sched, loader, scaler
end

local function figure(epoch) return ({ 3, 1, 2, 4 })[epoch] end

-- To the end; or it stops after `stop` steps, goes on with fresh objects, and so on.
local function fitted(c, path, stop)
  local net, opt, sched, loader, scaler = setup(c)
  local callbacks = { function(run) run.row.figure = figure(run.epoch) end }
  if c.restore then
    callbacks[2] = T.early_stop { monitor = "figure", mode = "min", patience = 9, restore = true }
  end
  if path then
    callbacks[#callbacks + 1] = { on_batch = function(_, run)
      if run.step == stop then error("stopped", 0) end
    end }
  end
  local ok, failure = pcall(T.fit, net, { checkpoint = path and { path = path, every = c.every },
    resume = path and true, train = loader, optimizer = opt, scheduler = sched, schedule = c.schedule or nil,
    epochs = c.epochs,
    loss = nn.F.mse_loss, accumulate = c.accumulate, clip = c.clip or nil, scaler = scaler, jit = c.jit,
    eval_every = c.eval_every or nil, callbacks = callbacks, quiet = true })
  if not ok and failure == "stopped" then return fitted(c, path, stop + c.every + 1) end
  assert(ok, failure)
  return net
end

local function compare(n, c, a, b, most)
  b = b:state_dict()
  for name, t in pairs(a:state_dict()) do
    local off = (t - b[name]):abs():max():item()
    if off ~= off or off > most then
      local words = {}
      for key, v in pairs(c) do words[#words + 1] = ("%s = %s"):format(key, tostring(v)) end
      table.sort(words)
      error(("run %d: %s is off by %g: %s"):format(n, name, off, table.concat(words, ", ")), 0)
    end
  end
end

local function by_hand(c)
  local net, opt, sched, loader, scaler = setup(c)
  local params = c.head and net[3]:parameters() or net:parameters()
  local best, kept
  for epoch = 1, c.epochs do
    local list = {}
    for x, y in loader do list[#list + 1] = { x, y } end
    for first = 1, #list, c.accumulate do
      local last = math.min(first + c.accumulate - 1, #list)
      if opt.is_training then opt:train() end
      net:zero_grad()
      local loss = 0
      for i = first, last do loss = loss + nn.F.mse_loss(net(list[i][1]), list[i][2]) / (last - first + 1) end
      if scaler then scaler:scale(loss):backward() else loss:backward() end
      if scaler then scaler:unscale_(opt) end
      if c.clip then nn.utils.clip_grad_norm_(params, c.clip) end
      if scaler then
        scaler:step(opt)
        scaler:update()
      else
        opt:step()
      end
      if c.schedule == "batch" then sched:step() end
    end
    if c.schedule == "epoch" then sched:step() end
    if opt.is_training then opt:eval() end
    if c.restore and (not best or figure(epoch) < best) then
      best, kept = figure(epoch), {}
      for name, t in pairs(net:state_dict()) do kept[name] = t:clone() end
    end
  end
  if kept then net:load_state_dict(kept) end
  return net
end

describe("T.fit with random options", function()
  local COUNT = tonumber(os.getenv("PERILUNE_FUZZ_FIT")) or 60

  it("is the loop that one would write", function()
    local g = random.new(20)
    for n = 1, COUNT do
      local c = draw(g)
      compare(n, c, fitted(c), by_hand(c), 2e-4)
    end
  end)

  it("goes on after errors with the bits of a run without one", function()
    local g, path = random.new(21), os.tmpname()
    for n = 1, COUNT // 3 do
      local c = draw(g)
      c.every, c.shuffle = g:int(1, 3), g:int(0, 1) == 1
      if c.schedule ~= "epoch" and not c.restore and g:int(0, 1) == 1 then c.eval_every = g:int(1, 4) end
      local whole = fitted(c)
      os.remove(path)
      compare(n, c, fitted(c, path, g:int(1, 6)), whole, 0)
    end
    os.remove(path)
  end)
end)
