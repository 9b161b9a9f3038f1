-- SPDX-License-Identifier: MIT
-- What a script does to a network and its optimizer between two steps that are compiled: parameters are frozen, thrown
-- out and put in, learning rates, settings and states change, gradients are missing. Each step is that of the script as
-- written. PERILUNE_FUZZ_BETWEEN sets how many trainings, PERILUNE_FUZZ_SEED where to begin.

local T = require "perilune"
local random = require "spec.support.random"
local nn, optim, F = T.nn, T.optim, T.nn.F

local COUNT = tonumber(os.getenv "PERILUNE_FUZZ_BETWEEN") or 40
local FIRST = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 1

local OPTIMIZERS = { "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Lion", "Adamax", "LAMB", "ASGD" }

local function draw(seed)
  local g = random.new(seed)
  local function yes(of) return g:int(1, of) == 1 end
  return g, { name = OPTIMIZERS[g:int(1, #OPTIMIZERS)], batch = yes(2), dropout = yes(3), batches = g:int(1, 3),
    clip = yes(3), half = yes(2), joined = yes(2), late = yes(3) }
end

-- What may happen between two steps, by name: f(w), w the training.
local EVENTS = {
  rate = function(w) w.opt.param_groups[1].lr = w.opt.param_groups[1].lr * 0.5 end,
  freeze = function(w)
    local p = w.some()
    p:requires_grad_(not p.requires_grad)
    if not p.requires_grad then p.grad = nil end
  end,
  group = function(w)
    if w.late then w.opt:add_param_group { params = w.net[5]:parameters(), lr = 0.01 } end
    w.late = false
  end,
  load = function(w)
    local state = {}
    for name, t in pairs(w.net:state_dict()) do state[name] = t:is_floating_point() and t * 0.9 or t end
    w.net:load_state_dict(state)
  end,
  ["load the optimizer"] = function(w) w.opt:load_state_dict(w.opt:state_dict()) end,
  factor = function(w) w.factor = w.factor * 0.7 end,
  decay = function(w) w.opt.param_groups[1].weight_decay = w.opt.param_groups[1].weight_decay and 0.01 end,
  write = function(w) T.no_grad(function() w.some():mul_(1.1) end) end,
  mode = function(w) w.net:train(not w.net.training) end,
  double = function(w) w.net:double() end,
  float = function(w) w.net:float() end,
  replace = function(w) w.net[1].weight = nn.Parameter(w.net[1].weight:detach():clone()) end,
  missing = function(w) w.missing = true end,
  nothing = function() end,
}
local names = {}
for name in pairs(EVENTS) do names[#names + 1] = name end
table.sort(names)

local function train(seed, compiled)
  local g, c = draw(seed)
  T.manual_seed(seed)
  local net = nn.Sequential(nn.Linear(4, 6), c.batch and nn.BatchNorm1d(6) or nn.LayerNorm(6), nn.ReLU(),
    c.dropout and nn.Dropout(0.3) or nn.Identity(), nn.Linear(6, 3))
  local opt = optim[c.name](c.late and net[1]:parameters() or net:parameters(), { lr = 0.02 })
  local w = { net = net, opt = opt, factor = 1.0, late = c.late }
  function w.some()
    local all = net:parameters()
    return all[g:int(1, #all)]
  end
  local function take(x, y)
    local loss = F.cross_entropy(net(x), y) * w.factor / c.batches
    loss:backward()
    return loss:detach()
  end
  local function move()
    if c.clip then nn.utils.clip_grad_norm_(net:parameters(), 0.5) end
    opt:step()
    opt:zero_grad()
  end
  local joined = c.joined and c.batches == 1
  local both
  if compiled and joined then
    both = T.jit(function(x, y)
      local loss = take(x, y)
      move()
      return loss
    end, { max_traces = 64 })
  elseif compiled then
    take = T.jit(take, { max_traces = 64 })
    if not c.half then move = T.jit(move, { max_traces = 64 }) end
  end
  local log = {}
  for t = 1, 12 do
    local event = names[g:int(1, #names)]
    EVENTS[event](w)
    local what = ("%s, step %d, after %s"):format(c.name, t, event)
    for k = 1, c.batches do
      local n = ({ 4, 4, 4, 2, 7 })[g:int(1, 5)]
      local x = T.tensor(g:list(n * 4, -1, 1), { dtype = "f64" }):reshape(n, 4):to(net[1].weight:dtype())
      local y = T.tensor(g:ints(n, 1, 3), { dtype = "i64" })
      T.manual_seed(seed * 100 + t * 10 + k)
      log[#log + 1] = { what .. ": loss", (both or take)(x, y):double() }
    end
    if w.missing and not joined then w.some().grad = nil end
    w.missing = false
    if not both and not (joined and compiled) then move() end
    for name, p in pairs(net:state_dict()) do log[#log + 1] = { what .. ": " .. name, p:double():clone() } end
  end
  return log
end

describe("training that is changed between compiled steps", function()
  it("is that of the script as written", function()
    for seed = FIRST, FIRST + COUNT - 1 do
      local want, got = train(seed, false), train(seed, true)
      for i, entry in ipairs(want) do
        local off = ((entry[2] - got[i][2]):abs():max() / (1 + entry[2]:abs():max())):item()
        if entry[1] ~= got[i][1] or off > 1e-5 or off ~= off then
          error(("seed %d: %s is off by %g"):format(seed, entry[1], off), 0)
        end
      end
    end
  end)

  it("steps parameters by their own counts, also where one of the group never has a gradient again", function()
    local function run(compiled, name)
      local p = {}
      for i = 1, 3 do p[i] = nn.Parameter(T.tensor { 1, -2, 0.5 } * i) end
      local opt = optim[name](p, { lr = 0.1 })
      local step = function() opt:step() end
      if compiled then step = T.jit(step) end
      for t = 1, 12 do
        p[1].grad = t == 1 and T.ones(3) or nil
        p[2].grad = (t < 4 or t > 7) and T.tensor { 0.3, -1, t / 5 } or nil
        p[3].grad = T.tensor { 1, t / 3, -0.2 }
        step()
      end
      return T.cat(p):detach()
    end
    for _, name in ipairs { "Adam", "AdamW", "RAdam", "NAdam", "Adamax", "LAMB", "SGD", "RMSprop" } do
      local off = (run(true, name) - run(false, name)):abs():max():item()
      assert.is_true(off < 1e-6, name .. " is off by " .. off)
    end
  end)
end)
