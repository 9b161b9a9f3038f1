-- SPDX-License-Identifier: MIT
--- A training loop with what one usually adds to it: progress, validation, metrics, callbacks, checkpoints that go on
-- bit for bit. It is the loop of the tutorial and nothing else; copy it where it does not fit.
--   local history = T.fit(net, { train = loader, valid = test_loader, epochs = 3, optimizer = opt })
-- @module perilune.fit
local T = require "perilune"
local core = require "perilune.core"
local classes = require "perilune.classes"
local options = require "perilune.options"
local History = require "perilune.fit.history"
local base = require "perilune.nn.module"
local batches = require "perilune.fit.batches"
local checkpoint = require "perilune.fit.checkpoint"
local compiled = require "perilune.fit.compiled"
local control = require "perilune.fit.control"

local fail, describe = options.fail, options.describe
local clock = T.core.clock

local Run = classes.new("run", "run")

function Run:__tostring()
  return ("run: epoch %d, step %d%s"):format(self.epoch, self.step, self.stop and ", stopped" or "")
end

local spec = options.spec("fit", {
  { "train", "any" }, { "valid", "any", optional = true }, { "epochs", "size", optional = true },
  { "steps", "size", optional = true }, { "optimizer", "any" },
  { "loss", "any", optional = true }, { "step", "func", optional = true }, { "metrics", "any", optional = true },
  { "scheduler", "any", optional = true }, { "schedule", { "epoch", "batch" }, "epoch" },
  { "clip", "nonnegative", optional = true }, { "accumulate", "count", 1 }, { "callbacks", "any", optional = true },
  { "checkpoint", "any", optional = true }, { "resume", "bool", false }, { "state", "any", optional = true },
  { "autocast", { "bf16", "f16" }, optional = true }, { "scaler", "any", optional = true },
  { "bar", "bool", optional = true }, { "quiet", "bool", optional = true }, { "jit", "any", false },
  { "control", "bool", true }, { "eval_every", "count", optional = true },
})

local function callable(v)
  local meta = getmetatable(v)
  return type(v) == "function" or (type(meta) == "table" and meta.__call ~= nil)
end

-- ---- arguments -----------------------------------------------------------------------------------------------

-- Metrics by name: a list of names and meters, or a table of meters by name.
local function read_metrics(given)
  local out, names = {}, {}
  if given == nil then return out, names end
  if type(given) == "string" or (type(given) == "table" and type(given.update) == "function") then given = { given } end
  if type(given) ~= "table" then fail("fit: metrics must be a list of names or meters, got %s", describe(given)) end
  for key, v in pairs(given) do
    local name = type(key) == "string" and key or nil
    if type(v) == "string" then
      local make = T.metrics[v]
      if not make then
        local known = {}
        for k in pairs(T.metrics) do known[#known + 1] = k end
        table.sort(known)
        fail("fit: %s", options.unknown("metric", v, known))
      end
      name, v = name or v, make()
    end
    if type(v) ~= "table" or type(v.update) ~= "function" or type(v.value) ~= "function" then
      fail("fit: a metric is a name or has update and value; %s is %s", tostring(key), describe(v))
    end
    name = name or v.name or "metric" .. tostring(key)
    local ok, first = T.core.attempt(v.value, v) -- one of one's own may have none yet, or an empty one
    if ok and (type(first) == "table" and next(first) ~= nil
      or T.is_tensor(first) and (first:numel() > 1 or first:dim() > 1)) then
      fail("fit: the metric '%s' is no number, which a row of the history would need; update a meter of it after "
        .. "training", name)
    end
    if out[name] then fail("fit: the metric '%s' is there twice", name) end
    out[name], names[#names + 1] = v, name
  end
  table.sort(names)
  return out, names
end

local events = { "on_start", "on_epoch_start", "on_batch", "on_epoch", "on_end" }
local is_event = {}
for _, name in ipairs(events) do is_event[name] = true end

local function has_event(t)
  local any = false
  for key in next, t do
    if type(key) == "string" and key:find "^on_" then
      if is_event[key] then
        any = true
      elseif callable(t[key]) then -- else a field of the callback's own, on_device = "cuda"
        fail("fit: callbacks: %s", options.unknown("event", key, events))
      end
    end
  end
  if any and t[1] ~= nil then fail("fit: callbacks: a table with events is one callback; a list of them has none") end
  return any
end

local function read_callbacks(given)
  if given == nil then return {} end
  if type(given) == "function" then given = { given } end
  if type(given) ~= "table" then fail("fit: callbacks must be a list, got %s", describe(given)) end
  if getmetatable(given) ~= nil or has_event(given) then given = { given } end
  options.list("fit", "callbacks", given, "tables and functions")
  local out = {}
  for i = 1, #given do
    local c = given[i]
    if type(c) == "function" then c = { on_epoch = function(_, run) return given[i](run) end } end
    if type(c) ~= "table" then
      fail("fit: callback %d must be a table with on_epoch, on_batch …, or a function; got %s", i, describe(c))
    end
    if getmetatable(c) == nil then has_event(c) end
    out[i] = c
  end
  return out
end

local function default_step(run, x, ...)
  local y = run.net(x)
  return run.loss_function(y, ...), y, ...
end

-- Without loss = targets are classes. Of numbers to come near to cross_entropy would make class probabilities, and
-- of one class the loss is 0 whatever the network says.
local function default_loss(y, target, ...)
  if T.is_tensor(y) and T.is_tensor(target) then
    if target:dtype():find "^b?f" then
      fail(
        "fit: the targets are %s: without loss = they are classes, integers; give loss = T.nn.F.mse_loss for numbers "
        .. "to come near to, loss = T.nn.F.cross_entropy for probabilities of classes", target:describe())
    end
    if y:dim() == 2 and y:size(2) == 1 then
      fail(
        "fit: the network returns %s, one class, of which cross_entropy is always 0; give loss = T.nn.F.mse_loss for "
        .. "numbers, loss = T.nn.F.binary_cross_entropy_with_logits for yes or no", y:describe())
    end
  end
  return T.nn.F.cross_entropy(y, target, ...)
end

-- ---- the loop -------------------------------------------------------------------------------------------------

function Run:call(event)
  for _, c in ipairs(self.callbacks) do
    local f = c[event]
    if f then f(c, self) end
  end
end

local function number_of(loss, run)
  local v = T.is_tensor(loss) and loss:numel() == 1 and loss:item() or loss
  if type(v) ~= "number" then fail("fit: the step must return a loss of one element, got %s", describe(loss)) end
  if v ~= v then
    fail("fit: the loss is NaN in epoch %d, batch %d; T.anomaly(true) finds where a gradient went wrong", run.epoch,
      run.batch)
  end
  return v
end

-- For how many samples a batch's loss stands: as many as its first tensor has rows, the input or, where that is a table
-- or an object, the target; else as many as the fields of the table have, where they agree.
local function rows(v) return T.is_tensor(v) and v:dim() > 0 and v:size(1) or nil end
local function samples(x, y)
  local n = rows(x) or rows(y)
  if n or type(x) ~= "table" or getmetatable(x) ~= nil then return n or 1 end
  for _, v in next, x do
    local k = rows(v)
    if k and n and k ~= n then return 1 end
    n = k or n
  end
  return n or 1
end

local function update_metrics(run, output, ...)
  if #run.metric_names == 0 or output == nil then return end
  output = T.is_tensor(output) and output:detach() or output
  for _, name in ipairs(run.metric_names) do run.metrics[name]:update(output, ...) end
end

local function read_metric_values(run, prefix)
  for _, name in ipairs(run.metric_names) do
    local v = run.metrics[name]:value()
    if T.is_tensor(v) and v:numel() == 1 then v = v:item() end
    if type(v) ~= "number" then
      fail("fit: the metric '%s' must give a number, got %s", name, describe(v))
    end
    run.row[prefix .. name] = v
    run.metrics[name]:reset()
  end
end

local function note(run, n, loss, ...)
  local value = number_of(loss, run)
  run.loss, run.total, run.count = value, run.total + value * n, run.count + n
  for _, w in ipairs(run.windows) do w.total, w.count, w.timed = w.total + value * n, w.count + n, w.timed + n end
  if not run.options.valid then update_metrics(run, ...) end
  return loss
end

-- run: the run, or what a compiled step knows of it.
local function backward(run, loss)
  local a = run.options
  if a.accumulate > 1 then loss = loss / a.accumulate end
  if a.scaler then loss = a.scaler:scale(loss) end
  loss:backward()
end

-- What the optimizer moves. Gradients of the network's other parameters are nobody's: zero_grad leaves them to grow.
local function moved(opt)
  local list = {}
  for _, group in ipairs(opt.param_groups) do
    for _, p in ipairs(group.params) do list[#list + 1] = p end
  end
  return list
end

-- The joint norm of the gradients as they are, a 0-d tensor.
local function norm_of_gradients(params)
  local grads = {}
  for _, p in ipairs(params) do grads[#grads + 1] = p.grad end
  return #grads > 0 and T.nn.utils.get_total_norm(grads) or nil
end

-- run: the run, or what a compiled step knows of it. With `measure` the norm of the gradients before they are clipped.
local function move_weights(run, measure)
  local a, opt = run.options, run.optimizer
  if a.scaler and (a.clip or measure) then a.scaler:unscale_(opt) end
  local params = (a.clip or measure) and moved(opt)
  local norm = measure and norm_of_gradients(params) or nil
  if a.clip then T.nn.utils.clip_grad_norm_(params, a.clip) end
  if a.scaler then
    a.scaler:step(opt)
    a.scaler:update()
  else
    opt:step()
  end
  opt:zero_grad()
  return norm
end

local begin_row, end_row -- of the history, below

-- Does a log want the norm of the gradients of the step that is taken now?
local function norm_is_due(run)
  for _, n in ipairs(run.norm_every) do
    if (run.step + 1) % n == 0 then return true end
  end
  return false
end

local function update_weights(run)
  local a = run.options
  local norm
  if not run.moves_weights then
    norm = move_weights(run, norm_is_due(run))
  elseif norm_is_due(run) then
    norm = run.step_norm
  end
  run.grad_norm = norm and norm:item() or run.grad_norm
  run.step = run.step + 1
  if a.scheduler and a.schedule == "batch" then a.scheduler:step() end
  if run.progress then run.progress:set { loss = run.total / run.count } end
  run:call("on_batch")
  if a.eval_every and run.step % a.eval_every == 0 then end_row(run) end
  local every = run.checkpoint and run.checkpoint.every
  if every and run.step % every == 0 then run:save(run.checkpoint.path) end
  control.look(run)
end

-- One batch; false at the end of the pass.
local function train_batch(run, ...)
  if (...) == nil then return false end
  if not run.row_open then begin_row(run) end
  run.batch = run.batch + 1
  if run.train_step then
    note(run, samples(...), run.train_step(...))
  else
    backward(run, note(run, samples(...), run.do_step(run, ...)))
  end
  if run.batch % run.options.accumulate == 0 then update_weights(run) end
  if run.progress then run.progress:step() end
  return true
end

-- Has training taken the steps that it was to take?
local function reached(run) return run.options.steps and run.step >= run.options.steps end

local function train_epoch(run)
  local next_batch = run.resumed or batches.pass(run, "train")
  run.resumed = nil
  while not run.stop and not reached(run) and train_batch(run, next_batch()) do end -- luacheck: ignore 542
  local rest = run.batch % run.options.accumulate
  if rest == 0 then return end
  for _, p in ipairs(moved(run.optimizer)) do -- the last group is smaller: its mean, too, is that of its batches
    if p.grad then p.grad:mul_(run.options.accumulate / rest) end
  end
  update_weights(run)
end

-- Training or evaluation mode of the net; first that of an optimizer that has modes (schedule-free).
local function switch(run, training)
  local opt = run.optimizer
  if opt.is_training then
    if training then opt:train() else opt:eval() end
  end
  run.net:train(training)
end

--- Loss and metrics over the validation batches, in evaluation mode; goes into run.row as valid_….
function Run:validate()
  local _ <close> = T.no_grad()
  switch(self, false)
  local total, count = 0.0, 0
  local function one(n, loss, ...)
    total, count = total + number_of(loss, self) * n, count + n
    update_metrics(self, ...)
  end
  local next_batch = batches.pass(self, "valid")
  local batch = table.pack(next_batch())
  while batch[1] ~= nil do
    if self.valid_step then
      one(samples(batch[1], batch[2]), self.valid_step(table.unpack(batch, 1, batch.n)))
    else
      one(samples(batch[1], batch[2]), self:do_step(table.unpack(batch, 1, batch.n)))
    end
    batch = table.pack(next_batch())
  end
  switch(self, true)
  self.row.valid_loss = count > 0 and total / count or 0 / 0
end

-- Of several processes rank 0 speaks for all.
local function silent(a)
  if a.quiet == nil then return (T.core.rank or 0) > 0 end
  return a.quiet
end

local function report(run)
  if silent(run.options) then return end
  if run.view then return run.view:ended() end
  local words = {}
  for _, name in ipairs(setmetatable({ run.row }, History):names()) do
    local v = run.row[name]
    if name ~= "epoch" and name ~= "seconds" and name ~= "lr" and name ~= "step" then
      words[#words + 1] = ("%s %s"):format(name, math.type(v) == "float" and ("%.4f"):format(v) or tostring(v))
    end
  end
  local a = run.options
  local of = a.epochs and ("/%d"):format(a.epochs) or ""
  if a.steps then of = of .. (", step %d/%d"):format(run.step, a.steps)
  elseif a.eval_every then of = of .. (", step %d"):format(run.step) end
  print(("epoch %d%s: %s (%.1f s)"):format(run.epoch, of, table.concat(words, ", "), run.row.seconds))
end

-- A row of the history begins: with an epoch, or behind every eval_every steps.
function begin_row(run)
  run.row = { epoch = run.epoch, lr = run.optimizer.param_groups[1].lr }
  run.total, run.count, run.row_open = 0.0, 0, true
  run.row_from = clock()
  for _, name in ipairs(run.metric_names) do run.metrics[name]:reset() end
  run:call("on_epoch_start")
end

local function step_scheduler(run)
  if run.options.scheduler.needs_metric then
    run.options.scheduler:step(run.row.valid_loss or run.row.loss)
  else
    run.options.scheduler:step()
  end
end

-- It is complete: what there is to measure is measured, and everybody hears of it.
function end_row(run)
  local a, row = run.options, run.row
  row.loss = run.count > 0 and run.total / run.count or 0 / 0
  row.epoch = run.epoch
  if not a.valid then read_metric_values(run, "") end
  if a.valid then
    local began = clock()
    run:validate()
    run.idle = run.idle + clock() - began
    read_metric_values(run, "valid_")
  end
  if a.eval_every then row.step = run.step end
  row.seconds = clock() - run.row_from
  run.history[#run.history + 1] = row
  if a.scheduler and a.schedule == "epoch" and (not a.eval_every or a.scheduler.needs_metric) then
    step_scheduler(run)
  end
  report(run)
  run:call("on_epoch")
  run.row_open = false
  checkpoint.keep_best(run)
  if a.eval_every and run.checkpoint then run:save(run.checkpoint.path) end
end

-- A DistributedSampler, of a loader or of its batch sampler, has another order each epoch when it is told.
local function tell_epoch(of, epoch)
  for _, key in ipairs { "sampler", "batch_sampler" } do
    local order = type(of) == "table" and rawget(of, key)
    if type(order) == "table" then
      if order.set_epoch then order:set_epoch(epoch) end
      tell_epoch(order, epoch)
    end
  end
end

local function one_epoch(run)
  local a = run.options
  tell_epoch(a.train, run.epoch)
  switch(run, true)
  run.row_from = run.row_from or clock()
  if not run.row_open and not a.eval_every then begin_row(run) end
  local bar = a.bar
  if bar == nil then bar = not silent(a) and (run.view ~= nil or T.core.isatty(2)) end
  if bar then
    run.progress = T.bar(0, { title = ("epoch %d"):format(run.epoch), total = batches.count(a.train),
      quiet = run.view ~= nil or nil })
    run.progress.n = run.batch
    if run.view then run.view:begin(run.progress) end
  end
  train_epoch(run)
  if run.progress then run.progress:finish() end
  run.progress = nil
  if run.halted then -- in the middle: there is no row of this epoch, and a resumed run goes on here
    if run.checkpoint then run:save(run.checkpoint.path) end
    return
  end
  if not a.eval_every then end_row(run) end
  if a.eval_every and a.scheduler and a.schedule == "epoch" and not a.scheduler.needs_metric then
    step_scheduler(run)
  end
  run.batch = 0
  if run.checkpoint then run:save(run.checkpoint.path) end
end

-- All epochs. At the prompt Ctrl-C ends training as run.stop does, so that the history so far is returned; in a
-- script it is an error as anywhere, and ends the script.
local function train(run)
  local function epochs()
    local most = run.options.epochs or math.huge
    while not run.stop and not reached(run) and (run.epoch < most or run.batch > 0) do
      if run.batch == 0 then run.epoch = run.epoch + 1 end
      local before = run.step
      one_epoch(run)
      if not run.options.epochs and run.step == before and not run.stop then
        fail("fit: train gave no batch in epoch %d, so its %d steps cannot be reached", run.epoch, run.options.steps)
      end
    end
    if run.options.eval_every and run.row_open and not run.halted then end_row(run) end -- of the last few steps
  end
  if not T.core.prompt then return epochs() end
  T.core.raised(false)
  local ok, failure = xpcall(epochs, T.core.prompt)
  if ok then return end
  if T.core.raised() ~= "interrupt" then error(failure, 0) end
  if run.progress then run.progress:finish() end
  run.progress = nil
  if run.view then run.view:ended() end
  switch(run, true)
  print(("\ninterrupted in epoch %d after batch %d; the history has %d epochs"):format(run.epoch, run.batch,
    #run.history))
  run.stop = true
end

-- "AdamW" or { "AdamW", lr = 1e-3, … }: an optimizer of all parameters.
local function named_optimizer(net, given)
  if type(given) == "string" then given = { given } end
  if type(given) ~= "table" or given.param_groups or type(given[1]) ~= "string" then return given end
  local class = T.optim[given[1]]
  if type(class) ~= "table" or not class.settings then
    local known = {}
    for name, v in pairs(T.optim) do if type(v) == "table" and v.settings then known[#known + 1] = name end end
    table.sort(known)
    fail("fit: %s", options.unknown("optimizer", given[1], known))
  end
  local opts = {}
  for key, v in pairs(given) do if key ~= 1 then opts[key] = v end end
  return class(net:parameters(), opts)
end

-- Does the optimizer change anything of the network? One without parameters is left alone.
local function owns_some(opt, net)
  local ok, list = core.attempt(net.parameters, net)
  if not ok or #list == 0 then return true end -- they come with the first call
  local of = {}
  for _, p in ipairs(list) do of[p] = true end
  for _, group in ipairs(opt.param_groups) do
    for _, p in ipairs(group.params or {}) do
      if of[p] then return true end
    end
  end
  return false
end

local function new_run(net, ...)
  if not (base.is_module(net)) then fail("fit: the network must be a module, got %s", describe(net)) end
  if (...) ~= nil and type((...)) ~= "table" or select("#", ...) > 1 then
    fail("fit: takes the network and a table, T.fit(net, { train = …, optimizer = … }), got %s", describe((...)))
  end
  local a = options.read(spec, ...)
  if not a.epochs and not a.steps then a.epochs = 1 end
  a.optimizer = named_optimizer(net, a.optimizer)
  if type(a.optimizer) ~= "table" or type(a.optimizer.param_groups) ~= "table" then
    fail("fit: optimizer must be one of optim.* or its name, got %s", describe(a.optimizer))
  end
  if not owns_some(a.optimizer, net) then
    fail("fit: the optimizer has none of the network's parameters, which would stay as they are; make it with "
      .. "net:parameters() of this network")
  end
  if a.loss ~= nil and not callable(a.loss) then
    local named = type(a.loss) == "string" and T.nn.F[a.loss]
    fail("fit: loss must be a function or a module, got %s%s", describe(a.loss),
      named and "; say T.nn.F." .. a.loss or "")
  end
  if a.scheduler ~= nil and (type(a.scheduler) ~= "table" or not a.scheduler.step) then
    fail("fit: scheduler must be one of optim.lr_scheduler.*, got %s", describe(a.scheduler))
  end
  local of = a.scheduler and a.scheduler.optimizer
  if type(of) == "table" and of ~= a.optimizer then
    fail("fit: scheduler is made with another optimizer, whose rates it would move; make it with the one that trains")
  end
  local most = a.scheduler and a.schedule == "epoch" and a.epochs and a.scheduler.total_steps
  if type(most) == "number" and most > a.epochs then
    fail("fit: the scheduler has %d steps, but with one an epoch it takes %d and never comes down; give schedule = "
      .. "\"batch\"", most, a.epochs)
  end
  if a.scaler == nil and a.autocast == "f16" then
    fail("fit: with autocast = \"f16\" gradients below 6e-8 become 0; give scaler = T.GradScaler(), or scaler = false "
      .. "to do without")
  end
  if a.scaler and (type(a.scaler) ~= "table" or not a.scaler.unscale_) or a.scaler == true then
    fail("fit: scaler must be a T.GradScaler, got %s", describe(a.scaler))
  end
  if a.state ~= nil and type(a.state) ~= "table" then fail("fit: state must be a table of objects by name") end
  local run = setmetatable({ net = net, optimizer = a.optimizer, scheduler = a.scheduler, options = a, epoch = 0,
    batch = 0, step = 0, history = History.new(), stop = false, row = {}, total = 0.0, count = 0,
    idle = 0.0, windows = {}, norm_every = {} }, Run)
  run.silent = silent(a)
  run.loss_function = a.loss or default_loss
  run.do_step = a.step or default_step
  if a.autocast then
    local step = run.do_step
    run.do_step = function(...) return T.autocast(a.autocast, step, ...) end
  end
  run.metrics, run.metric_names = read_metrics(a.metrics)
  run.callbacks = read_callbacks(a.callbacks)
  run.checkpoint = checkpoint.settings(a.checkpoint)
  if a.jit then compiled(run, a.jit, backward, move_weights) end
  return run
end

--- Writes the whole state of the run; T.fit{…, resume = true} goes on from it. True, or nil, message, code.
function Run:save(path) return checkpoint.save(self, path) end

--- T.fit(net, {train=, optimizer=, epochs=1, steps=, …}) → history, run; or nil, message, code
-- A training loop. It ends after `epochs` passes over train, or after `steps` steps of the optimizer, whichever comes
-- first (steps alone: as many passes as they take, of which the last may be cut short; train may be endless). With
-- eval_every = n validation, and a row of the history, come after every n steps and not after each epoch; on_epoch,
-- early_stop, logs and the best checkpoint follow these rows. optimizer: one of T.optim, or a name, or a table
-- {"AdamW", lr = 1e-3} for all parameters of net. train,
-- valid: DataLoaders, lists of batches, or functions that return an iterator. loss: a function
-- of output and targets (nn.F.cross_entropy); or step = function(run, x, y) … return loss, output, target end. metrics:
-- names or meters, measured on valid, else on train. scheduler, schedule = "epoch"|"batch", clip (norm of the
-- gradients that the optimizer takes), accumulate (batches a step, which takes the mean of their gradients),
-- autocast = "bf16", scaler = T.GradScaler{…}, bar, quiet, jit = true (each step compiled by T.jit, same bits; or a
-- table of its options). callbacks: tables with on_start, on_epoch_start, on_batch, on_epoch, on_end (callback, run),
-- or functions of run after each epoch; T.early_stop and T.log.* fit. A log with every = n gets a row every n steps;
-- beside its logs a run says how far it is, and perilune watch pauses and stops it (control = false: not).
-- run.stop = true ends. checkpoint: a path, or {path=, every=steps, best="valid_loss", mode="min"}; with resume = true
-- a killed run goes on with the same bits; state= names further objects with state_dict. The history is a list of rows:
-- print(h), h:column(name), h:best(name), h:plot().
--   T.manual_seed(1)
--   local nn = T.nn
--   local x = T.randn(64, 4)
--   local train = T.data.DataLoader(T.data.TensorDataset(x, x:argmax(-1)), { batch_size = 16, shuffle = true })
--   local net = nn.Linear(4, 4)
--   local history = T.fit(net, { train = train, epochs = 5, quiet = true, metrics = "accuracy",
--     optimizer = T.optim.Adam(net:parameters(), { lr = 0.1 }) })
--   print(#history, history[5].accuracy > history[1].accuracy)  --> 5	true
local function fit(net, ...)
  local run = new_run(net, ...)
  batches.check(run.options)
  if run.options.resume then
    local ok, message, code = checkpoint.resume(run)
    if not ok then return nil, message, code end
    if not silent(run.options) then
      local path = run.checkpoint.path
      print(not run.resumed_from and ("no checkpoint at %s yet: training begins"):format(path)
        or run.batch > 0 and ("resumed in epoch %d after batch %d (step %d) from %s"):format(run.epoch, run.batch,
          run.step, path)
        or ("resumed after epoch %d (step %d) from %s"):format(run.epoch, run.step, path))
    end
  end
  run.optimizer:zero_grad()
  if T.core.notebook and not silent(run.options) then run.view = T.core.notebook.fit(run.history) end
  run:call("on_start")
  local _ <close> = control.begin(run)
  train(run)
  if run.view then run.view:ended() end
  if run.optimizer.is_training then switch(run, false) end -- averages are left in the net
  run:call("on_end")
  if run.halted and not silent(run.options) then
    print(("stopped in epoch %d after batch %d (step %d) %s%s"):format(run.epoch, run.batch, run.step, run.stop,
      run.checkpoint and "; resume = true goes on from " .. run.checkpoint.path or ""))
  elseif type(run.stop) == "string" and not silent(run.options) then
    print(("stopped after epoch %d: %s"):format(run.epoch, run.stop))
  end
  return run.history, run
end

return fit
