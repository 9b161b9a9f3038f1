-- SPDX-License-Identifier: MIT
-- What T.help knows of the helpers around training, continued from symbols.lua: measures, logs, options, clocks.
local S = {}

-- ---- metrics -----------------------------------------------------------------------------------------------------

S["metrics.accuracy"] = {
  "T.metrics.accuracy(pred, target, {dim=2, ignore_index=, threshold=0.5}) → number; or a meter",
  [[The share of right classes. pred: logits or probabilities with the classes in dimension `dim`, class
numbers, or floating scores of target's shape, where more than `threshold` means yes. Without tensors,
T.metrics.accuracy{…} is a meter: m:update(pred, target), m:value(), m:reset(). That holds for all metrics.]],
  [[
local logits = T.tensor { { 2, 1 }, { 0, 3 }, { 5, 4 } }
print(T.metrics.accuracy(logits, T.tensor({ 1, 2, 2 }, { dtype = "i64" })) * 3)  --> 2.0
local m = T.metrics.accuracy()
m:update(logits, T.tensor({ 1, 2, 1 }, { dtype = "i64" }))
print(m:value(), m)  --> 1.0	accuracy 1.0000]] }

S["metrics.top_k"] = { "T.metrics.top_k(logits, target, {k=5, dim=2, ignore_index=}) → number; or a meter",
  "The share of samples whose class is among the k highest logits.", [[
local logits = T.tensor { { 2, 1, 0 }, { 0, 3, 1 } }
print(T.metrics.top_k(logits, T.tensor({ 2, 1 }, { dtype = "i64" }), { k = 2 }))  --> 0.5]] }

S["metrics.confusion_matrix"] = {
  "T.metrics.confusion_matrix(pred, target, {classes=, dim=2, ignore_index=, threshold=0.5}) → i64[C,C]; or a meter",
  "How often a class (row) was taken for another (column). The meter's :plot{names=} is a heat map.", [[
local pred = T.tensor({ 1, 2, 2 }, { dtype = "i64" })
print(T.metrics.confusion_matrix(pred, T.tensor({ 1, 1, 2 }, { dtype = "i64" })))
--> {{1, 1},
-->  {0, 1}}  -- i64[2,2] cpu]] }

S["metrics.precision"] = {
  'T.metrics.precision(pred, target, {average="macro", classes=, dim=, …}) → number; or a meter',
  [[average: "macro", "micro", "weighted", "none", "binary". Right among predicted. Of two classes given as
scores or booleans: of yes alone ("binary"). "macro" averages over the classes that occur, "none" gives a
tensor. 0 where nothing was predicted.]],
  [[
local yes = T.tensor { true, true, false, true }
print(T.metrics.precision(T.tensor { 0.9, 0.2, 0.7, 0.8 }, yes) * 3)  --> 2.0]] }

S["metrics.recall"] = {
  'T.metrics.recall(pred, target, {average="macro"|…, classes=, …}) → number; or a meter',
  "Right among true; options as for T.metrics.precision.", [[
local yes = T.tensor { true, true, false, true }
print(T.metrics.recall(T.tensor { 0.9, 0.2, 0.7, 0.1 }, yes) * 3)  --> 1.0]] }

S["metrics.f1"] = { 'T.metrics.f1(pred, target, {average="macro"|…, classes=, …}) → number; or a meter',
  "2 PR / (P + R) of precision P and recall R; options as for T.metrics.precision.", [[
print(T.metrics.f1(T.tensor { 0.9, 0.2 }, T.tensor { true, false }))  --> 1.0]] }

S["metrics.mean"] = { "T.metrics.mean(x) → number; T.metrics.mean() → meter",
  "m:update(value, n): a mean that stands for n samples; m:update(tensor): all its elements.", [[
local m = T.metrics.mean()
m:update(2, 10)
m:update(5, 20)
print(m:value())  --> 4.0]] }

S["metrics.perplexity"] = { "T.metrics.perplexity(logits, target, {ignore_index=}) → number; or a meter",
  "exp of the mean cross entropy; logits [N,C,…], target [N,…].", [[
print(T.metrics.perplexity(T.zeros(2, 8), T.tensor({ 1, 8 }, { dtype = "i64" })) - 8 < 1e-5)  --> true]] }

S["metrics.mse"] = { "T.metrics.mse(pred, target) → number; T.metrics.mse() → meter", "Mean squared error.", [[
print(T.metrics.mse(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 2.0]] }
S["metrics.mae"] = { "T.metrics.mae(pred, target) → number; T.metrics.mae() → meter", "Mean absolute error.", [[
print(T.metrics.mae(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 1.0]] }
S["metrics.r2"] = { "T.metrics.r2(pred, target) → number; T.metrics.r2() → meter",
  "1 - Σ(y - p)² / Σ(y - mean y)²: the share of variance that is explained.", [[
print(T.metrics.r2(T.tensor { 1, 2, 4 }, T.tensor { 1, 2, 3 }))  --> 0.5]] }
S["metrics.auc"] = { "T.metrics.auc(scores, target) → number; T.metrics.auc() → meter",
  "Area under the ROC curve of yes/no targets: the chance that a yes scores above a no.", [[
print(T.metrics.auc(T.tensor { 0.1, 0.4, 0.35, 0.8 }, T.tensor { false, false, true, true }))  --> 0.75]] }

-- ---- logs --------------------------------------------------------------------------------------------------------

-- ---- T.cuda --------------------------------------------------------------------------------------------------------

S["cuda.is_available"] = { "T.cuda.is_available() → true, or false and a message",
  "Whether there is a GPU that tensors can live on; the message says what is missing.", [[
local yes, why = T.cuda.is_available()
print(yes or type(why) == "string")  --> true]] }
S["cuda.device_count"] = { "T.cuda.device_count() → integer",
  "The GPUs that this process sees, at most 16; CUDA_VISIBLE_DEVICES says which. Where several are, their names are "
    .. "\"cuda:0\", \"cuda:1\", …, else \"cuda\".", [[
print(T.cuda.device_count() >= 0)  --> true]] }
S["cuda.set_device"] = { "T.cuda.set_device(gpu)",
  "\"cuda\" means this GPU in this thread from now on: a number from 0 on, or a name such as \"cuda:1\".", [[
if T.cuda.device_count() > 1 then
  T.cuda.set_device(1)
end]] }
S["cuda.device"] = { "T.cuda.device(gpu, f, …) → what f returns",
  "f(…) with that GPU as the current one, which is what \"cuda\" means.", [[
if T.cuda.is_available() then
  T.cuda.device(0, function() return T.ones(2, { device = "cuda" }) end)
end]] }
S["cuda.current_device"] = { "T.cuda.current_device() → integer",
  "The number of this thread's current GPU, 0 at first; an error without one.", [[
if T.cuda.is_available() then
  print(T.cuda.current_device())
end]] }
S["cuda.get_device_name"] = { "T.cuda.get_device_name([gpu]) → string",
  "The GPU's name.", [[
if T.cuda.is_available() then
  print(T.cuda.get_device_name())
end]] }
S["cuda.get_device_capability"] = { "T.cuda.get_device_capability([gpu]) → major, minor",
  "The compute capability: 9, 0 for Hopper.", [[
if T.cuda.is_available() then
  print(T.cuda.get_device_capability())
end]] }
S["cuda.get_device_properties"] = { "T.cuda.get_device_properties([gpu]) → table",
  "name, libraries, major, minor, processors, memory, available.", [[
if T.cuda.is_available() then
  print(T.cuda.get_device_properties().processors)
end]] }
S["cuda.synchronize"] = { "T.cuda.synchronize([gpu])",
  "Waits for all queued work; raises what kernels reported meanwhile, such as an index out of range.", [[
T.cuda.synchronize()]] }
S["cuda.memory_allocated"] = { "T.cuda.memory_allocated([gpu]) → bytes",
  "What tensors on the GPU hold.", [[
print(T.cuda.memory_allocated() >= 0)  --> true]] }
S["cuda.max_memory_allocated"] = { "T.cuda.max_memory_allocated([gpu]) → bytes",
  "The most since the start or T.cuda.reset_peak_memory_stats().", [[
print(T.cuda.max_memory_allocated() >= T.cuda.memory_allocated())  --> true]] }
S["cuda.memory_reserved"] = { "T.cuda.memory_reserved([gpu]) → bytes",
  "What was taken from the driver, cached blocks included.", [[
print(T.cuda.memory_reserved() >= 0)  --> true]] }
S["cuda.memory_stats"] = { "T.cuda.memory_stats([gpu]) → {live, peak, reserved, blocks, allocations, retries, limit}",
  "Bytes of tensors, their peak, bytes taken from the driver; counts.", [[
print(T.cuda.memory_stats().blocks >= 0)  --> true]] }
S["cuda.reset_peak_memory_stats"] = { "T.cuda.reset_peak_memory_stats([gpu])",
  "The peak starts again from what is held now.", [[
T.cuda.reset_peak_memory_stats()]] }
S["cuda.empty_cache"] = { "T.cuda.empty_cache()",
  "Gives cached blocks back to the driver.", [[
T.cuda.empty_cache()]] }
S["cuda.set_memory_limit"] = { "T.cuda.set_memory_limit(bytes or nil[, gpu])",
  "At most this many bytes for tensors; more is an error. nil: what the GPU has.", [[
if T.cuda.is_available() then
  T.cuda.set_memory_limit(nil)
end]] }
S["cuda.mem_get_info"] = { "T.cuda.mem_get_info([gpu]) → free, total",
  "Bytes of the GPU's memory.", [[
if T.cuda.is_available() then
  print(T.cuda.mem_get_info())
end]] }
S["cuda.Stream"] = { "T.cuda.Stream{priority=, device=} → stream",
  "A queue of work beside the usual one: synchronize(), query(), wait_event(e), wait_stream(s), record_event().", [[
if T.cuda.is_available() then
  T.cuda.Stream():synchronize()
end]] }
S["cuda.stream"] = { "T.cuda.stream(s, f, …) → what f returns",
  "Runs f with s as the current stream.", [[
if T.cuda.is_available() then
  T.cuda.stream(T.cuda.Stream(), function() return T.ones(2):cuda() end)
end]] }
S["cuda.Event"] = { "T.cuda.Event{enable_timing=} → event",
  "A mark in a stream: record(), wait(), synchronize(), query(), elapsed_time(later) in milliseconds.", [[
if T.cuda.is_available() then
  T.cuda.Event():record()
end]] }
S["cuda.allow_tf32"] = { "T.cuda.allow_tf32(on) → what it was",
  "Products of f32 may round their factors to TF32; off at first.", [[
if T.cuda.is_available() then
  T.cuda.allow_tf32(false)
end]] }
S["cuda.deterministic"] = { "T.cuda.deterministic(on) → what it was",
  "The same bits in every run; on at first.", [[
if T.cuda.is_available() then
  T.cuda.deterministic(true)
end]] }
S["cuda.benchmark"] = { "T.cuda.benchmark(on) → what it was",
  "Libraries may time their algorithms and keep the fastest; off at first.", [[
if T.cuda.is_available() then
  T.cuda.benchmark(false)
end]] }
S["cuda.cudnn"] = { "T.cuda.cudnn(on) → what it was",
  "cuDNN computes convolutions, attention and recurrent nets where it can; on at first. Off: kernels of our own.", [[
if T.cuda.is_available() then
  T.cuda.cudnn(true)
end]] }

S["log.csv"] = { "T.log.csv(path, {append=false}) → log, or nil and a message",
  "log:write{…} adds a row; the first names the columns. log:close(). Also a callback of T.fit: a row an epoch.", [[
local path = os.tmpname()
local log = assert(T.log.csv(path))
log:write { step = 1, loss = 0.5 }
log:close()
for line in io.lines(path) do print(line) end
--> step,loss
--> 1,0.5
os.remove(path)]] }

S["log.jsonl"] = { "T.log.jsonl(path, {append=false}) → log, or nil and a message",
  "log:write{…} adds a line that is a JSON object. log:close(). Also a callback of T.fit: a row an epoch.", [[
local path = os.tmpname()
local log = assert(T.log.jsonl(path))
log:write { step = 1, loss = 0.5 }
log:close()
for line in io.lines(path) do print(line) end  --> {"step":1,"loss":0.5}
os.remove(path)]] }

S["log.tensorboard"] = { "T.log.tensorboard(dir, {flush=10}) → log, or nil and a message",
  [[An event file in dir for TensorBoard. log:scalar(tag, v, step), log:scalars(tag, {name = v}, step),
log:histogram(tag, x, step, {bins=30}), log:image(tag, x, step), log:text(tag, s, step), log:write(row),
log:flush(), log:close(). Also a callback of T.fit.]],
  [[
local dir = os.tmpname()
os.remove(dir)
local log = assert(T.log.tensorboard(dir))
log:scalar("loss", 0.5, 1)
log:histogram("weights", T.randn(100), 1)
log:close()
print(log.path:find("events.out.tfevents.", 1, true) ~= nil)  --> true
os.remove(log.path)
os.remove(dir)]] }

-- ---- training ----------------------------------------------------------------------------------------------------

S.fit = { "T.fit(net, {train=, optimizer=, epochs=1, …}) → history, run; or nil, message, code",
  [[A training loop. train, valid: DataLoaders, lists of batches, or functions that return an iterator. loss:
a function of output and targets (nn.F.cross_entropy); or step = function(run, x, y) … return loss, output,
target end. metrics: names or meters, measured on valid, else on train. scheduler, schedule = "epoch"|"batch",
clip (norm of the gradients), accumulate (batches a step), autocast = "bf16", scaler = T.GradScaler{…}, bar,
quiet, jit = true (each step compiled by T.jit, same bits; or a table of its options). callbacks: tables with
on_start, on_epoch_start, on_batch, on_epoch, on_end (callback, run), or functions of run after each epoch;
T.early_stop and T.log.* fit. run.stop = true ends. checkpoint: a path, or {path=, every=steps,
best="valid_loss"}; with resume = true a killed run goes on with the same bits; state= names further objects
with state_dict. The history is a list of rows: print(h), h:column(name), h:best(name), h:plot().]],
  [[
T.manual_seed(1)
local nn = T.nn
local x = T.randn(64, 4)
local train = T.data.DataLoader(T.data.TensorDataset(x, x:argmax(-1)), { batch_size = 16, shuffle = true })
local net = nn.Linear(4, 4)
local history = T.fit(net, { train = train, epochs = 5, quiet = true, metrics = "accuracy",
  optimizer = T.optim.Adam(net:parameters(), { lr = 0.1 }) })
print(#history, history[5].accuracy > history[1].accuracy)  --> 5	true]] }

S.early_stop = { 'T.early_stop{patience=3, monitor="valid_loss", min_delta=0, mode=, restore=false} → callback',
  [[mode: "min" or "max", by default as the name says. Ends T.fit when `patience` epochs in a row brought
nothing better; restore: the network gets its best weights back. By hand: `if stop(loss) then break end`.]],
  [[
local stop = T.early_stop { patience = 2 }
print(stop(0.5), stop(0.6), stop(0.55))  --> false	false	true]] }

S.snapshot = { "T.snapshot{net = net, optimizer = opt, epoch = 3, …} → table",
  [[state_dict() of whatever has one, everything else as it is, and the state of the random numbers: what
T.save takes and T.restore hands back. Tensors are shared, not copied.]],
  [[
local net = T.nn.Linear(2, 2)
local path = os.tmpname()
assert(T.save(path, T.snapshot { net = net, epoch = 3 }))
print(T.restore({ net = net }, T.load(path)).epoch)  --> 3
os.remove(path)]] }

S.restore = { "T.restore({net = net, optimizer = opt, …}, state) → the rest of the state",
  "Hands every object what T.snapshot took from it, and restores the random numbers.", S.snapshot[3] }

-- ---- pictures ----------------------------------------------------------------------------------------------------

S.plot = { "T.plot(y), T.plot(x, y), T.plot{{x=, y=, label=, style=, color=}, …}, each with options → figure",
  [[print(figure) draws in the terminal. figure:svg(path), figure:png(path, {scale=2}) write files (without a
path: the text, the bytes), figure:save(path) by the name's end, figure:text{width=, height=16, color=}.
Options: title, xlabel, ylabel, xlim={lo, hi}, ylim, xscale="log", yscale, labels={…},
style="line"|"points"|"both"|"bars", legend=false, width, height in pixels. Lists or tensors; the rows of a
matrix are series.]],
  [[
local f = T.plot({ 3, 1, 2, 5 }, { title = "loss" })
print(f:text { width = 16, height = 5 })
-->        loss
-->  │            ⡔
--> 4┤          ⢀⠎
-->  │⠤⡀       ⢠⠊
--> 2┤ ⠈⠢⡀   ⣀⠴⠁
-->  │   ⠑⠤⠒⠉
-->  └─────────────
-->       2       4
print(f:svg():sub(1, 4))  --> <svg]] }

S["plot.scatter"] = { "T.plot.scatter(x, y, options) → figure", "Points; options as for T.plot.", [[
print(#T.plot.scatter({ 1, 2 }, { 3, 4 }).series)  --> 1]] }
S["plot.hist"] = { "T.plot.hist(x, {bins=30, xlim=, …}) → figure",
  "How often the elements of a tensor or list fall into each of `bins` intervals.", [[
print(T.plot.hist({ 1, 1, 2, 9 }, { bins = 2 }).series[1].y[1])  --> 3.0]] }
S["plot.matrix"] = { 'T.plot.matrix(m, {names=, rows=, cols=, map="blues", values=true, lo=, hi=, …}) → figure',
  [[Coloured squares with the values in them; names at both sides, or rows= and cols=. map: "blues", "grey",
"viridis", "diverging".]],
  [[
print(T.plot.matrix({ { 5, 1 }, { 0, 6 } }, { names = { "cat", "dog" } }):text { color = false })
-->     cat dog
--> cat   5   1
--> dog   0   6]] }
S["plot.image"] = { "T.plot.image(x, {…}) → figure", "What x:imshow{…} does.", [[
print(T.plot.image(T.zeros(4, 6)).kind)  --> image]] }
S["plot.spark"] = { "T.plot.spark(x, {…}) → string", "What x:spark{…} does; x may be a list.", [[
print(T.plot.spark { 1, 2, 3, 2 })  --> ▁▅█▅]] }
S.imshow = { 'x:imshow{map="grey", lo=, hi=, cols=, scale=, title=, file=} → figure',
  [[A picture of [H,W], [C,H,W], [H,W,C], or a grid of [N,C,H,W] with cols in a row. print(figure) shows it in
the terminal: half blocks with colours, characters without. u8 as it is; other numbers from 0 to 1, or from
their least to their greatest, or lo to hi. file= or figure:png(path), figure:svg(path) write it.]],
  [[
print(T.eye(3):imshow():text { color = false })
--> @@
-->   @@
-->     @@]] }
S.spark = { "x:spark{width=60, lo=, hi=} → string",
  "The values of a vector, or of each row of a matrix, as a line of blocks; more than width are averaged.", [[
print(T.tensor({ 1, 5, 3 }):spark())  --> ▁█▅]] }

-- ---- clocks and options --------------------------------------------------------------------------------------------

S.bar = { "T.bar(loop, {title=, total=, every=, quiet=, file=, width=}) → the loop with a progress bar",
  [[For a generic for: over a DataLoader, an iterator, a list, or 1 … n. On a terminal one line that is
redrawn; elsewhere a line at each tenth. bar:set{loss = 0.3} shows figures behind it.]],
  [[
local sum = 0
for i in T.bar(4, { quiet = true }) do sum = sum + i end
print(sum)  --> 10]] }

S.timer = { "T.timer() → stopwatch; T.timer(f, {seconds=0.5, runs=7}) → measurement",
  [[A stopwatch: t() or t:elapsed() seconds, t:lap() since the last lap, t:pause(), t:resume(), t:reset(). Of a
function: calls it until figures settle; .median and .min seconds a call, .calls in a run, the runs at 1, 2 ….]],
  [[
local t = T.timer()
print(t() >= 0, t:lap() >= 0)  --> true	true
local m = T.timer(function() return T.ones(2) + 1 end, { seconds = 0.02 })
print(m.median > 0, #m)        --> true	7]] }

S.profile = { 'T.profile(f, "trace.json"?) → profile, what f returns',
  [[Measures every op while f runs: time, bytes allocated, floating-point operations of its kernels, the script's
line, in backward and in functions of T.jit too. print(p) shows the sums by op; p:table{by="line"|"both", limit=20};
p:rows(by) as a list; p:trace(path) for chrome://tracing or ui.perfetto.dev. f gets a function:
local _ <close> = region("name") marks a stretch in the trace.]],
  [[
local p, y = T.profile(function() return T.ones(100) * 2 end)
print(p:rows()[1].calls, y:numel())  --> 1	100
for _, row in ipairs(p:rows("op")) do if row.key == "mul" then print(row.bytes >= 400) end end  --> true]] }

S.cli = { "T.cli({about=, rest=, {name, default, help, …}, …}, args?) → table",
  [[An option may also have type=, choices=, required=, short=, min=, max=, list=. Reads the script's options:
--name value, --name=value, -n value, --flag, --no-flag. The type is the default's, or type= "integer",
"number", "string", "boolean". Wrong ones: a message, exit status 2; --help: a page made from the table, status
0. rest= names further arguments, which come as .rest. With a list of arguments: the table, or nil, message,
code.]],
  [[
local spec = { { "epochs", 3, "passes" }, { "lr", 1e-3 }, { "quick", false } }
local opt = T.cli(spec, { "--epochs", "5", "--quick" })
print(opt.epochs, opt.lr, opt.quick)    --> 5	0.001	true
print(T.cli(spec, { "--epoch", "5" }))  --> nil	unknown option --epoch; did you mean --epochs?	usage]] }

return S
