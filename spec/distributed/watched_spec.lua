-- SPDX-License-Identifier: MIT
-- T.fit in several processes that is told something from outside (perilune watch): all do it after the same step, or
-- none offers it.

local processes = require "spec.support.processes"
local term = require "spec.support.terminal"

local missing = processes.missing()
local function several(name, f)
  it(name, function()
    if missing then return pending(missing) end
    local dir, remove = term.folder()
    local ok, failure = pcall(f, dir)
    remove()
    assert(ok, failure)
  end)
end

-- fit{…} trains a network; ranks see what rank 0 writes into LOG.control at step 5. → steps taken, run
local training = [[
  init()
  local json = require "perilune.io.json"
  local DIR, said = %q, nil
  local function read(path)
    local f = io.open(path)
    local text = f and f:read "a"
    if f then f:close() end
    return text
  end
  local function fit(o, words)
    T.manual_seed(1)
    local net = nn.Linear(3, 3)
    if not o.plain then net = nn.parallel.DistributedDataParallel(net) end
    o.plain = nil
    local x = T.randn(96, 3)
    local at_step = { on_batch = function(_, run)
      T.core.sleep(0.002)
      if run.step ~= 5 or rank ~= 0 then return end
      local text = read(DIR .. "/a.jsonl.run")
      said = text and json.decode(text)
      if not said or not words then return end
      for i, w in ipairs(words) do
        local form = "(sleep %%g; umask 022; printf '%%s %%s\n' > '%%s.%%d'; mv '%%s.%%d' '%%s') &"
        local path = DIR .. "/a.jsonl.control"
        os.execute(form:format((i - 1) * 2.5, w, said.token, path, i, path, i, path))
      end
    end }
    local given = { train = T.data.DataLoader(T.data.TensorDataset(x, x:argmax(-1)), { batch_size = 8 }),
      optimizer = optim.SGD(net:parameters(), { lr = 0.1 }), epochs = 100, quiet = true,
      callbacks = { rank == 0 and T.log.jsonl(DIR .. "/a.jsonl") or at_step, at_step } }
    for k, v in pairs(o) do given[k] = v end
    local from, _, run = T.core.clock(), T.fit(net, given)
    return run.step, run, T.core.clock() - from
  end
  local function all(v) return D.all_gather_object({}, v) end
]]

describe("T.fit in several processes, watched,", function()
  several("pauses and stops all after the same step", function(dir)
    processes.good(2, training:format(dir) .. [[
      local step, run = fit({ checkpoint = DIR .. "/c.ckpt" }, { "stop" })
      local steps = all(step)
      assert(steps[1] == steps[2], steps[1] .. " and " .. steps[2])
      assert(step >= 5 and step < 1200 and run.halted and run.stop == "by perilune watch", step)
      if rank == 0 then
        assert(said.controls == true and said.state == "running")
        assert(not read(DIR .. "/a.jsonl.run") and not read(DIR .. "/a.jsonl.control") and read(DIR .. "/c.ckpt"))
      end
      D.barrier()
      -- what goes on from there is at the same step everywhere, and hears again
      local again, second = fit({ checkpoint = DIR .. "/c.ckpt", resume = true, epochs = 100 }, nil)
      assert(again == 1200 and not second.stop)
    ]])
  end)

  several("goes on after a pause, which is no waiting in a collective call", function(dir)
    -- the group's timeout is shorter than the pause
    processes.good(3, (training:gsub("init%(%)", "init(1)", 1)):format(dir) .. [[
      local step, run, seconds = fit({ epochs = 20 }, { "pause", "resume" })
      assert(step == 240 and not run.stop, tostring(step))
      assert(run.idle > 1.2, tostring(run.idle))
      for _, idle in ipairs(all(run.idle)) do assert(idle > 1.2 and idle < seconds) end
      step, run = fit({ epochs = 100 }, { "pause", "stop" })
      for _, other in ipairs(all(step)) do assert(step == other and run.halted) end
    ]])
  end)

  several("offers nothing where processes need not go step by step, or one does not want it", function(dir)
    processes.good(2, training:format(dir) .. [[
      -- each process trains a network of its own, for another number of steps
      local step = fit({ plain = true, epochs = 2 + rank }, { "stop" })
      assert(step == (2 + rank) * 12 and (rank > 0 or said.controls == false))
      D.barrier()
      os.remove(DIR .. "/a.jsonl.control")
      step = fit({ epochs = 2, control = rank == 0 }, { "stop" })
      assert(step == 24 and (rank > 0 or said.controls == false))
      D.barrier()
      os.remove(DIR .. "/a.jsonl.control")
      said = nil
      step = fit({ epochs = 2, control = false }, { "stop" })
      assert(step == 24 and said == nil)
      -- alone in a group
      local mine = { D.new_group { 0 }, D.new_group { 1 } }
      local solo = nn.parallel.DistributedDataParallel(nn.Linear(1, 1), { process_group = mine[rank + 1] })
      local x = T.ones(4, 1)
      T.fit(solo, { train = { { x, x } }, loss = nn.F.mse_loss, optimizer = "SGD", epochs = 3 + rank, quiet = true })
    ]])
  end)
end)
