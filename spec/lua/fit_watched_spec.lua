-- SPDX-License-Identifier: MIT
-- T.fit while it is watched: rows of steps in logs, what it says of itself beside them, and what it can be told there.
-- Over HTTP, and from process to process: spec/http/watch_spec.lua.

local T = require "perilune"
local json = require "perilune.io.json"
local term = require "spec.support.terminal"
local nn, optim = T.nn, T.optim

describe("T.fit, watched,", function()
  local dir, remove
  before_each(function() dir, remove = term.folder() end)
  after_each(function() remove() end)

  local function exists(name)
    local f = io.open(dir .. "/" .. name)
    if f then f:close() end
    return f ~= nil
  end

  local function fit(o)
    T.manual_seed(3)
    local x = T.randn(60, 3)
    local net = nn.Linear(3, 3)
    local ds = T.data.TensorDataset(x, x:argmax(-1))
    local loader = T.data.DataLoader(ds, { batch_size = 5, shuffle = true, seed = 2 })
    local given = { train = loader, optimizer = optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 }), quiet = true,
      epochs = 2 }
    for k, v in pairs(o) do given[k] = v end
    local history, run = T.fit(net, given)
    return T.nn.utils.parameters_to_vector(net:parameters()), history, run
  end

  local function rows_of(name)
    local out = {}
    for line in io.lines(dir .. "/" .. name) do out[#out + 1] = assert(json.decode(line)) end
    return out
  end

  it("writes rows of steps: means since the last one, norms of the gradients, and what epochs measured", function()
    local losses = {}
    local a = fit { callbacks = { assert(T.log.jsonl(dir .. "/a.jsonl", { every = 4 })),
      assert(T.log.csv(dir .. "/b.csv", { every = 5 })), assert(T.log.tensorboard(dir .. "/tb", { every = 4 })),
      { on_batch = function(_, run) losses[run.step] = run.loss end } }, metrics = "accuracy" }
    local b = fit {}
    assert.is_true(a:equal(b)) -- to look changes nothing
    local steps, epochs = {}, {}
    for _, row in ipairs(rows_of "a.jsonl") do (row.lr and steps or epochs)[#(row.lr and steps or epochs) + 1] = row end
    assert.equal(6, #steps)
    for i, row in ipairs(steps) do
      assert.equal(4 * i, row.step)
      local mean = (losses[4 * i - 3] + losses[4 * i - 2] + losses[4 * i - 1] + losses[4 * i]) / 4
      assert.is_true(math.abs(mean - row.loss) < 1e-12)
      assert.is_true(row.samples_per_second > 0 and row.memory > 0 and row.grad_norm > 0)
    end
    assert.same({ 12, 24 }, { epochs[1].step, epochs[2].step })
    assert.truthy(epochs[1].accuracy and epochs[1].epoch_loss and epochs[1].epoch_seconds)
    local text = term.read(dir .. "/b.csv")
    assert.equal("step,epoch,loss,lr,samples_per_second,memory,grad_norm,epoch_loss,epoch_seconds,accuracy",
      text:match "^[^\n]*")
    assert.equal(1 + 4 + 2, select(2, text:gsub("\n", "")))
    local name = T.core.list_folder(dir .. "/tb")[1]:sub(2)
    local tags, events = {}, require "perilune.command.events"
    for _, tag in ipairs(events.summary(dir .. "/tb/" .. name).tags) do tags[tag.tag] = tag end
    assert.same({ 6, 24, 2 }, { tags.grad_norm.n, tags.loss.last_step, tags.epoch_loss.n })
  end)

  it("measures the gradients' norm as clip_grad_norm_ does, before it clips, with a scaler and over several batches",
    function()
      local function norm(o, seen)
        o.callbacks = { assert(T.log.jsonl(dir .. "/n.jsonl", { every = 3 })) }
        o.epochs = 1
        local original = nn.utils.clip_grad_norm_
        nn.utils.clip_grad_norm_ = function(...)
          local v = original(...)
          if not o.jit then seen[#seen + 1] = v:item() end
          return v
        end
        local ok, weights = pcall(fit, o)
        nn.utils.clip_grad_norm_ = original
        assert(ok, weights)
        o.callbacks = nil
        assert.is_true(weights:equal((fit(o))))
        local out = {}
        for _, row in ipairs(rows_of "n.jsonl") do out[#out + 1] = row.lr and row.grad_norm end
        return out
      end
      for _, o in ipairs { { clip = 0.3 }, { clip = 0.3, accumulate = 2 } } do
        local seen = {}
        for i, v in ipairs(norm(o, seen)) do assert.is_true(math.abs(v - seen[3 * i]) < 1e-5 * v, i) end
        assert.is_true(#seen > 3)
      end
      local plain = norm({}, {})
      for i, v in ipairs(norm({ scaler = T.GradScaler { init_scale = 64 } }, {})) do
        assert.is_true(math.abs(v - plain[i]) < 1e-4 * v)
      end
      -- a compiled step measures it in its graph: before it clips, with a scaler, several batches a step
      for _, o in ipairs { {}, { clip = 0.3 }, { scaler = true }, { accumulate = 2 } } do
        local function both(jit)
          local out = {}
          for k, v in pairs(o) do out[k] = v end
          out.jit, out.scaler = jit, o.scaler and T.GradScaler { init_scale = 64 } or nil
          return norm(out, {})
        end
        assert.same(both(false), both(true))
      end
    end)

  it("has the same rows of steps when it was interrupted between two of them", function()
    local function run(name, o)
      o.callbacks = { assert(T.log.jsonl(dir .. "/" .. name .. ".jsonl", { every = 4 })),
        assert(T.log.csv(dir .. "/" .. name .. ".csv", { every = 5 })), o.also }
      o.also = nil
      o.checkpoint = { path = dir .. "/" .. name .. ".ckpt", every = 7 }
      local weights = fit(o)
      for i = 1, 2 do o.callbacks[i]:close() end
      return weights
    end
    local whole = run("whole", {})
    -- killed after step 9: the checkpoint is of step 7, the rows of step 8 are in the logs
    local ok = pcall(run, "cut", { also = { on_batch = function(_, r) if r.step == 9 then error "killed" end end } })
    assert.is_false(ok)
    assert.is_true(whole:equal(run("cut", { resume = true })))
    local function timeless(name)
      local out = {}
      for i, row in ipairs(rows_of(name .. ".jsonl")) do
        row.samples_per_second, row.memory, row.epoch_seconds = nil, nil, nil
        out[i] = row
      end
      return out
    end
    assert.same(timeless "whole", timeless "cut")
    local function columns(name)
      local out = {}
      for line in io.lines(dir .. "/" .. name .. ".csv") do
        out[#out + 1] = line:match "^[^,]*,[^,]*,[^,]*,[^,]*"
      end
      return out
    end
    assert.same(columns "whole", columns "cut")
  end)

  it("says how far it is while it runs, and nothing afterwards, however it ends", function()
    local log = assert(T.log.jsonl(dir .. "/a.jsonl"))
    local said
    fit { callbacks = { log, { on_batch = function(_, run)
      if run.step == 2 then said = json.decode(term.read(dir .. "/a.jsonl.run")) end
    end } } }
    assert.same({ "perilune.run 1", "running", 2, 12, (T.core.process()) },
      { said.format, said.state, said.epochs, said.batches, said.pid })
    assert.truthy(said.token:find "^%x+$" and #said.token == 32)
    assert.is_false(exists "a.jsonl.run")
    assert.is_false(pcall(fit, { callbacks = { log, { on_batch = function() error "x" end } } }))
    assert.is_false(exists "a.jsonl.run")
    fit { callbacks = { log, { on_batch = function() assert.is_false(exists "a.jsonl.run") end } }, control = false }
    local f = assert(T.log.csv "/dev/null") -- what is no file has nothing beside it
    assert.is_nil(f:beside())
    fit { callbacks = { f } }
    assert.is_nil(io.open "/dev/null.run")
  end)

  it("does what its own user tells it with its token, at the next step, and nothing else", function()
    local log, place = assert(T.log.jsonl(dir .. "/a.jsonl")), dir .. "/a.jsonl.control"
    local function steps_when_told(tell, mode)
      local steps = 0
      local _, _, run = fit { callbacks = { log, { on_batch = function(_, r)
        steps = r.step
        if r.step == 5 then
          local token = json.decode(term.read(dir .. "/a.jsonl.run")).token
          os.execute(tell(token))
          if mode then os.execute(("chmod %s '%s'"):format(mode, place)) end
        end
      end } } }
      os.execute(("rm -rf '%s'"):format(place))
      return steps, run.stop
    end
    local function text(form)
      return function(token) return ("umask 022; printf '%s' > '%s'"):format(form:gsub("TOKEN", token), place) end
    end
    assert.same({ 5, "by perilune watch" }, { steps_when_told(text "stop TOKEN\\n") })
    for _, form in ipairs { "stop", "stop TOKEN", "stop " .. ("0"):rep(32) .. "\\n", "explode TOKEN\\n",
      "TOKEN stop\\n", "", "stop TOKEN\\nstop TOKEN\\n", "stop TOKEN\\n" .. (" "):rep(200) } do
      assert.same({ 24, false }, { steps_when_told(text(form)) }, form)
    end
    assert.same({ 24, false }, { steps_when_told(text "stop TOKEN\\n", "666") }) -- others could write it
    assert.same({ 24, false }, { steps_when_told(text "stop TOKEN\\n", "620") })
    assert.same({ 24, false }, { steps_when_told(function(token)
      return ("printf 'stop %s\\n' > '%s/other'; ln -s '%s/other' '%s'"):format(token, dir, dir, place)
    end) })
    assert.same({ 24, false }, { steps_when_told(function() return ("mkdir '%s'"):format(place) end) })
    -- a pause lasts until the next word
    local function later(word, seconds)
      return function(token)
        -- whole at once, as perilune watch writes it: a file that is empty yet would be taken for no word, and away
        local form = "printf 'pause %s\\n' > '%s'; (sleep %g; printf '%s %s\\n' > '%s.part'; mv '%s.part' '%s') &"
        return form:format(token, place, seconds, word, token, place, place, place)
      end
    end
    local from = T.core.clock()
    assert.same({ 24, false }, { steps_when_told(later("resume", 0.5)) })
    assert.is_true(T.core.clock() - from > 0.4)
    assert.same({ 5, "by perilune watch" }, { steps_when_told(later("stop", 0.3)) })
  end)

  it("refuses an every that is none", function()
    for _, make in ipairs { function(o) return T.log.csv(dir .. "/a", o) end,
      function(o) return T.log.jsonl(dir .. "/a", o) end, function(o) return T.log.tensorboard(dir .. "/t", o) end } do
      for _, every in ipairs { 0, -1, 1.5, "2" } do
        local ok, message = pcall(make, { every = every })
        assert.is_false(ok)
        assert.truthy(message:find("every must be a positive integer, the steps between two rows", 1, true), message)
      end
    end
  end)
end)
