-- SPDX-License-Identifier: MIT
-- T.fit by steps: validation every n steps, rows of the history between them, and what follows the rows; and loaders
-- without end.

local T = require "perilune"
local term = require "spec.support.terminal"
local nn, optim = T.nn, T.optim

describe("T.fit with eval_every", function()
  local dir, remove
  before_each(function() dir, remove = term.folder() end)
  after_each(function() remove() end)

  local function setup()
    T.manual_seed(4)
    local x = T.randn(50, 3)
    local ds = T.data.TensorDataset(x, x:argmax(-1))
    local net = nn.Linear(3, 3)
    return net, { train = T.data.DataLoader(ds, { batch_size = 5, shuffle = true, seed = 2 }), -- 10 batches a pass
      valid = T.data.DataLoader(ds, { batch_size = 25 }), metrics = "accuracy", quiet = true,
      optimizer = optim.Adam(net:parameters(), { lr = 0.05 }) }
  end

  local function fit(o)
    local net, given = setup()
    for k, v in pairs(o or {}) do given[k] = v end
    local history, run = T.fit(net, given)
    return nn.utils.parameters_to_vector(net:parameters()), history, run
  end

  local function column(history, name)
    local out = {}
    for i, row in ipairs(history) do out[i] = row[name] end
    return out
  end

  it("has a row every n steps and one for the last few, whose figures are those of a loop by hand", function()
    local weights, history = fit { steps = 25, eval_every = 7 }
    assert.same({ 7, 14, 21, 25 }, column(history, "step"))
    assert.same({ 1, 2, 3, 3 }, column(history, "epoch"))
    local net, given = setup()
    local step, total, rows = 0, 0, {}
    local function measure()
      net:eval()
      local sum, hits, n = 0, 0, 0
      for x, y in given.valid do
        local out = net(x)
        sum = sum + nn.F.cross_entropy(out, y):item() * 25
        hits, n = hits + out:argmax(-1):eq(y):sum():item(), n + 25
      end
      net:train()
      rows[#rows + 1] = { total / ((step - 1) % 7 + 1), sum / n, hits / n }
      total = 0
    end
    while step < 25 do
      for x, y in given.train do
        local loss = nn.F.cross_entropy(net(x), y)
        given.optimizer:zero_grad()
        loss:backward()
        given.optimizer:step()
        step, total = step + 1, total + loss:item()
        if step % 7 == 0 or step == 25 then measure() end
        if step == 25 then break end
      end
    end
    assert.is_true(weights:equal(nn.utils.parameters_to_vector(net:parameters())))
    for i, row in ipairs(rows) do
      for k, name in ipairs { "loss", "valid_loss", "valid_accuracy" } do
        assert.is_true(math.abs(row[k] - history[i][name]) < 1e-9, ("row %d, %s"):format(i, name))
      end
    end
    local plain, by_epoch = fit { steps = 25 }
    assert.is_true(plain:equal(weights)) -- to measure changes nothing
    assert.same({ 1, 2, 3 }, column(by_epoch, "epoch"))
    assert.same({}, column(by_epoch, "step"))
    assert.is_true(tostring(history:plot()):find "step" ~= nil)
  end)

  it("has rows across the ends of epochs, and ends with the epochs", function()
    local _, history = fit { epochs = 2, eval_every = 15 }
    assert.same({ 15, 20 }, column(history, "step"))
    _, history = fit { epochs = 2, eval_every = 100 }
    assert.same({ 20 }, column(history, "step"))
    _, history = fit { epochs = 2, eval_every = 10, accumulate = 3 } -- 4 steps an epoch
    assert.same({ 8 }, column(history, "step"))
    local valid = fit { epochs = 3, eval_every = 4, valid = false or nil }
    assert.truthy(valid)
    local net, given = setup()
    given.valid, given.epochs, given.eval_every = nil, 1, 4
    history = T.fit(net, given)
    assert.same({ 4, 8, 10 }, column(history, "step"))
    assert.is_nil(history[1].valid_loss)
    assert.truthy(history[1].accuracy)
  end)

  it("is followed by early_stop, logs, the best checkpoint and schedules", function()
    local seen, lrs = {}, {}
    local net, given = setup()
    given.scheduler = optim.lr_scheduler.StepLR(given.optimizer, { step_size = 1, gamma = 0.5 })
    given.epochs, given.eval_every = 3, 4
    given.callbacks = { assert(T.log.csv(dir .. "/a.csv")), { on_epoch = function(_, run)
      seen[#seen + 1] = run.row.step
      lrs[#lrs + 1] = run.row.lr
    end } }
    T.fit(net, given)
    assert.same({ 4, 8, 12, 16, 20, 24, 28, 30 }, seen)
    assert.same({ 0.05, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125, 0.0125 }, lrs) -- of the row's first step
    local n = 0
    for line in io.lines(dir .. "/a.csv") do
      n = n + 1
      if n == 2 then assert.truthy(line:find "^4,1,") end
    end
    assert.equal(9, n)
    local _, history, run = fit { steps = 1000, eval_every = 2,
      checkpoint = { path = dir .. "/c", best = "valid_loss" },
      callbacks = { T.early_stop { patience = 2, min_delta = 0.02 } } }
    assert.truthy(run.stop:find "has not got better for 2 evaluations")
    assert.is_true(run.step < 1000 and run.step == history[#history].step)
    local best = T.load(dir .. "/c.best")
    local other = setup()
    other:load_state_dict(best)
    other:eval()
    local sum = 0
    for x, y in given.valid do sum = sum + nn.F.cross_entropy(other(x), y):item() / 2 end
    assert.is_true(math.abs(sum - history:best("valid_loss").valid_loss) < 1e-9)
  end)

  it("goes on from any step with the same bits, rows and logs", function()
    local function run(name, o)
      o.callbacks = { assert(T.log.jsonl(dir .. "/" .. name .. ".jsonl")), o.also }
      o.also, o.eval_every, o.steps = nil, 4, 33
      o.checkpoint = { path = dir .. "/" .. name .. ".ckpt", every = 3 }
      local weights, history = fit(o)
      o.callbacks[1]:close()
      for _, row in ipairs(history) do row.seconds = nil end
      return weights, history
    end
    local whole, rows = run("whole", {})
    local function rows_of(name)
      local text = term.read(dir .. "/" .. name .. ".jsonl")
      return (text:gsub('"seconds":[^,}]*', ""))
    end
    for at = 1, 32 do
      os.execute(("rm -f '%s'/cut*"):format(dir))
      local kill = { on_batch = function(_, r) if r.step == at then error "killed" end end }
      assert.is_false(pcall(run, "cut", { also = kill }))
      local weights, history = run("cut", { resume = true })
      assert.is_true(whole:equal(weights), at)
      assert.same(rows, history, at)
      assert.equal(rows_of "whole", rows_of "cut", at)
    end
  end)
end)

describe("an endless DataLoader", function()
  it("goes on with pass after pass, each in an order of its own", function()
    local function take(n, o)
      o.endless = true
      local out = {}
      for x in T.data.DataLoader(T.arange(6), o) do
        out[#out + 1] = x:totable()
        if #out == n then break end
      end
      return out
    end
    assert.same({ { 1, 2, 3, 4 }, { 5, 6 }, { 1, 2, 3, 4 }, { 5, 6 }, { 1, 2, 3, 4 } }, take(5, { batch_size = 4 }))
    assert.same({ { 1, 2, 3, 4 }, { 1, 2, 3, 4 } }, take(2, { batch_size = 4, drop_last = true }))
    local plain, once = {}, T.data.DataLoader(T.arange(6), { batch_size = 2, shuffle = true, seed = 7 })
    for _ = 1, 3 do for x in once do plain[#plain + 1] = x:totable() end end
    for workers = 0, 2 do
      assert.same(plain, take(9, { batch_size = 2, shuffle = true, seed = 7, workers = workers }))
    end
  end)

  it("is as long as a pass for who counts, and for T.fit", function()
    local loader = T.data.DataLoader(T.arange(6), { batch_size = 2, endless = true })
    assert.equal(3, #loader)
    local n = 0
    for _ in loader:iter() do n = n + 1 end
    assert.equal(3, n)
    local net = nn.Linear(1, 1)
    local x = T.randn(8, 1)
    local history, run = T.fit(net, { train = T.data.DataLoader(T.data.TensorDataset(x, x), { batch_size = 2,
      endless = true }), loss = nn.F.mse_loss, steps = 10, quiet = true, optimizer = optim.SGD(net:parameters()) })
    assert.same({ 3, 10 }, { #history, run.step })
    n = 0
    for _ in T.data.DataLoader(T.arange(0), { endless = true }) do n = n + 1 end -- nothing has no end to wait for
    assert.equal(0, n)
  end)
end)
