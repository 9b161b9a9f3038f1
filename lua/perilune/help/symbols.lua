-- SPDX-License-Identifier: MIT
-- What T.help knows of functions that are no ops: name → {signature, text, example, example=, group=,
-- arguments=, shapes=}; names are paths without T., as nn.Linear. The examples run in
-- spec/docs/help_spec.lua and print what stands behind `-->`. symbols_more.lua and symbols_composites.lua hold
-- those of tensors.
require "perilune.core".load_parts() -- all functions are there, with their arguments and other names
local S = {}

-- ---- gradients ---------------------------------------------------------------------------------------------

S.GradKey = { "T.GradKey{name=, level=, ambient=true} → key",
  [[One tape. key:attach(t, fn) → t watches a tensor; key:backward(ys, dys, {strict=}) walks the tape once, calls
fn(t, gradient) as soon as a gradient is final, and closes the key; key:close() gives up; key:is_attached_to(t),
key:attached(), key.active. Works with <close>. level: by default one above the highest active key; keys of lower
levels record the backward of higher ones. ambient=false: requires_grad_ records nothing meanwhile.]],
  [[
local key, x = T.GradKey {}, T.tensor { 1, 2 }
key:attach(x, function(t, g) print(g) end)
key:backward((x * x):sum())
--> {2., 4.}  -- f32[2] cpu]] }

S.GradManager = { "T.GradManager{ambient=false} → manager",
  [[Knows which tensors have gradients. gm:attach(tensor or list, fn) → gm; local _ <close> = gm:record();
gm:backward(y, dy) adds to .grad after calling fn(tensor, gradient); gm:release() ends a recording without gradients;
gm:attached().
While it records, requires_grad_ does not, unless ambient=true. T.GradManager.group{gm1, gm2}: none sees another's
backward.]],
  [[
local w = T.tensor { 2 }
local gm = T.GradManager():attach(w)
do
  local _ <close> = gm:record()
  gm:backward(w * 3)
end
print(w.grad)  --> {3.}  -- f32[1] cpu]] }

S.grad_keys = { "T.grad_keys() → list", "The keys that are alive: explicit ones and the ambient one.", [[
local key = T.GradKey { name = "mine" }
local found = false
for _, k in ipairs(T.grad_keys()) do found = found or tostring(k):find("mine", 1, true) ~= nil end
print(found)  --> true
key:close()]] }

S.grad_of = { "T.grad_of(ys, xs, {grad_outputs=, retain_graph=, create_graph=, allow_unused=, …}) → gradients",
  [[Gradients of ys for xs, a tensor or a list each; adds to no .grad. create_graph: the gradients have gradients.
allow_unused: nil instead of an error where there is no path. is_grads_batched: many at once, grad_outputs and results
have a dimension more in front.]],
  [[
local x = T.tensor { 2 }:requires_grad_()
local g = T.grad_of(x ^ 3, x, { create_graph = true })
print(T.grad_of(g, x))  --> {12.}  -- f32[1] cpu]] }

S.custom = {
  "T.custom{name=, forward=f(ctx, …), backward=f(ctx, g…), jvp=f(ctx, t…), always=false, state=} → function",
  [[An op with a gradient of your own. forward's tensors are constants to it; ctx:save(…) and ctx:saved() keep tensors
and notice if they are overwritten; other values may be fields of ctx. backward gets a gradient or nil for each result
and returns one or nil for each tensor argument. ctx.needs_input_grad[i]; ctx:mark_non_differentiable(t);
ctx:mark_dirty(t) for an input edited in place. jvp, which is optional, gets a tangent or nil for each tensor argument
and returns one or nil for each result (forward mode: T.jvp); without it backward is differentiated for that. always:
backward also runs without gradients. state: one table or object for all calls, ctx.state.]],
  [[
local square = T.custom {
  name = "square",
  state = { calls = 0 },
  forward = function(ctx, x)
    ctx:save(x)
    ctx.state.calls = ctx.state.calls + 1
    return x * x
  end,
  backward = function(ctx, g) return 2 * g * ctx:saved() end,
}
print(T.grad(function(x) return square(x):sum() end)(T.tensor { 3 }))  --> {6.}  -- f32[1] cpu]] }

S.override_gradient = { 'T.override_gradient("op", function(ctx, g…) … end or nil) → the rule replaced, or nil',
  [[Replaces the gradient of a built-in op; ctx.inputs and ctx.outputs list the call's tensors. nil restores.]],
  [[
T.override_gradient("relu", function(ctx, g) return g * 5 end)
print(T.grad(function(x) return x:relu():sum() end)(T.tensor { 1, -1 }))  --> {5., 5.}  -- f32[2] cpu
T.override_gradient("relu", nil)]] }

S.grad = { "T.grad(f) → function, T.grad(f, x, …) → gradients",
  [[The gradient of a function that returns a scalar, for every argument, in the argument's structure (tensors, tables
of them); nil where it does not depend on it. Nests to any depth.]],
  [[
print(T.grad(T.grad(function(x) return x ^ 3 end))(T.tensor(2.0)))  --> 12.  -- f32[] cpu]] }

S.value_and_grad = { "T.value_and_grad(f) → function, T.value_and_grad(f, x, …) → value, gradients",
  "As T.grad, with the function's value in front.", [[
local value, g = T.value_and_grad(function(x) return (x * x):sum() end)(T.tensor { 1, 2 })
print(value:item(), g)  --> 5.0	{2., 4.}  -- f32[2] cpu]] }

S.vjp = { "T.vjp(f, x, …) → y, vjp_fn",
  "vjp_fn(dy) → dyᵀ J for every argument, as often as wanted; dy has y's structure, nil counts as zero.", [[
local y, vjp_fn = T.vjp(function(x) return x * x end, T.tensor { 1, 2 })
print(vjp_fn(T.tensor { 1, 10 }))  --> { 2., 40.}  -- f32[2] cpu]] }

S.jvp = { "T.jvp(f, x, v) → y, J v",
  [[Lists of arguments and of tangents for several: T.jvp(f, {x1, x2}, {v1, v2}); no tangent means zero. Forward mode: f
runs once, each op computes its tangent beside its result, and nothing is kept for backward. Nests with T.grad, T.vmap,
T.jit and itself.]], [[
local _, jv = T.jvp(function(x) return x * x:sum() end, T.tensor { 1, 2 }, T.tensor { 1, 0 })
print(jv)  --> {4., 2.}  -- f32[2] cpu]] }

S.linearize = { "T.linearize(f, x, …) → y, push",
  [[push(v, …) → J v at x, with one tangent for each argument (none means zero), as often as wanted: f runs once, and
only what depends on v is computed again.]], [[
local y, push = T.linearize(function(x) return x * x end, T.tensor { 1, 2 })
print(y, push(T.tensor { 1, 10 }))  --> {1., 4.}  -- f32[2] cpu	{ 2., 40.}  -- f32[2] cpu]] }

S.hvp = { "T.hvp(f, x, v) → y, H v",
  "The second derivative of a scalar function times a vector; lists as for T.jvp.", [[
local _, hv = T.hvp(function(x) return (x ^ 3):sum() end, T.tensor { 1, 2 }, T.tensor { 1, 1 })
print(hv)  --> { 6., 12.}  -- f32[2] cpu]] }

S.jacobian = { 'T.jacobian(f, {mode=}?) → function, T.jacobian(f, x, …, {mode=}?) → tensors',
  [[For every argument a tensor [shape of the result, shape of the argument], in their structures. mode="reverse": a
backward pass for each element of the result; "forward": a tangent for each element of the arguments, which keeps
nothing; many at once either way. Left out: whatever side is the smaller, by backward passes.]], [[
print(T.jacobian(function(x) return x * x end)(T.tensor { 1, 2 }))
--> {{2., 0.},
-->  {0., 4.}}  -- f32[2,2] cpu]] }

S.hessian = {
  'T.hessian(f, {mode=}?) → function, T.hessian(f, x, …, {mode=}?) → tensor, or H[i][j] for several arguments',
  'Second derivatives of a scalar function. mode="forward": tangents of the gradient; else backward passes of it.', [[
print(T.hessian(function(x) return (x * x):sum() end)(T.tensor { 1, 2 }))
--> {{2., 0.},
-->  {0., 2.}}  -- f32[2,2] cpu]] }

S.vmap = { 'T.vmap(f, {in_dims=1, out_dims=1, randomness="error", chunk_size=}) → function',
  [[What f does to one sample, done to many at once: tensors come with a dimension more, which in_dims names (a
number, or a list with a number, a table, or false for "the same for all" for each argument), and results get it back
where out_dims says. Gradients inside f are one for each sample. randomness: "error", "same" or "different" numbers
for all.]],
  [[
local w, x = T.tensor { 1, 2 }, T.tensor { { 1, 1 }, { 2, 0 } }
local each = T.vmap(T.grad(function(p, v) return p:dot(v) ^ 2 end), { in_dims = { false, 1 } })
print((each(w, x)))
--> {{6., 6.},
-->  {8., 0.}}  -- f32[2,2] cpu]] }

S.checkpoint = { "T.checkpoint(f, x, …), or T.checkpoint({f, save=, names=, policy=}, x, …) → what f(x, …) returns",
  [[The values that f computes on its way are dropped; backward runs f again where it needs them, with the same random
numbers and modes. Gradients have the bits of f(x, …) alone. What f changes in place is changed once. Where f would not
do the same again, because a tensor it reads was changed or for any other reason, backward says so. Inside of T.vmap f
runs as it is and keeps all. With f in a table, results of some ops are kept and not computed again: save lists names
of ops ("heavy": all products, convolutions, attention), names those of T.checkpoint_name, policy(op, info) returns
"save" or "recompute"; info has shapes, dtypes, bytes, flops, heavy.]],
  [[
local x = T.tensor { 2 }:requires_grad_()
T.checkpoint(function(a) return (a * a):relu() end, x):backward()
print(x.grad)  --> {4.}  -- f32[1] cpu
local layer = T.nn.Linear(8, 8)
T.checkpoint({ function(a) return layer(a):tanh() end, save = { "linear" } }, T.ones(2, 8)):sum():backward()]] }

S.checkpoint_name = { "T.checkpoint_name(x, name) → x",
  [[Names a value that a function under T.checkpoint or nn.checkpointed computes. It is kept if that was given names
with this one among them, and then not computed again in backward. x must be what an op has returned, or a view of that;
anything else, and a name that nobody wants, changes nothing.]],
  [[
local w = T.ones(4, 4):requires_grad_()
local function f(x) return T.checkpoint_name(x:mm(w), "product"):tanh():exp() end
T.checkpoint({ f, names = { "product" } }, T.ones(2, 4)):sum():backward()
print(w.grad:shape()[1])  --> 4]] }

S.gradcheck = { "T.gradcheck(f, {x, …}, {eps=1e-6, atol=1e-5, rtol=1e-3}) → true, or false and what differs",
  "Compares f's gradients with difference quotients. The inputs are f64.", [[
print(T.gradcheck(T.tanh, { T.randn({ 3 }, { dtype = "f64" }) }))  --> true]] }

S.gradgradcheck = { "T.gradgradcheck(f, {x, …}, {eps=1e-6, atol=1e-5, rtol=1e-3}) → true, or false and what differs",
  "As T.gradcheck, for the gradient of f along random directions.", [[
print(T.gradgradcheck(T.tanh, { T.randn({ 3 }, { dtype = "f64" }) }))  --> true]] }

S.anomaly = { "T.anomaly(on) → scope, T.anomaly() → is it on?",
  [[While on, backward stops at the op whose gradient first holds NaN or Inf and names the line that recorded it; errors
about overwritten tensors name both lines. Slow. The scope restores what was.]],
  [[
do
  local _ <close> = T.anomaly(true)
  print(T.anomaly())  --> true
end
print(T.anomaly())    --> false]] }

S.no_grad = { "local _ <close> = T.no_grad(), or T.no_grad(f, …) → what f returns",
  "Nothing is recorded until the end of the block, or inside f.", [[
local w = T.ones(2):requires_grad_()
print(T.no_grad(function() return (w * 2).requires_grad end))  --> false]] }

S.inference_mode = { "T.inference_mode(…)", "Another name of T.no_grad.", [[
local _ <close> = T.inference_mode()
print(T.is_grad_enabled())  --> false]], same = "no_grad" }

S.enable_grad = { "local _ <close> = T.enable_grad(), or T.enable_grad(f, …)", "Records also inside T.no_grad.", [[
local _ <close> = T.no_grad()
print(T.enable_grad(T.is_grad_enabled))  --> true]] }

S.set_grad_enabled = { "T.set_grad_enabled(on) → scope", "Turns recording on or off; the scope restores what was.", [[
do
  local _ <close> = T.set_grad_enabled(false)
  print(T.is_grad_enabled())  --> false
end
print(T.is_grad_enabled())    --> true]] }

S.is_grad_enabled = { "T.is_grad_enabled() → boolean", "Whether ops are recorded.",
  "print(T.is_grad_enabled())  --> true" }

S.saved_tensors = { "local _ <close> = T.saved_tensors{pack=, unpack=}, or T.saved_tensors({…}, f, …) → what f returns",
  [[What ops recorded inside keep for backward, also with ctx:save, passes through pack(t), which returns anything but
nil; backward gets unpack(of that), a tensor of the same shape, dtype and device. Neither is recorded; the innermost
pair counts; what T.jit and T.checkpoint keep does not pass. Or offload="host": tensors of a GPU go to the CPU's memory;
offload="disk": tensors go to a file without a name in folder= (TMPDIR, else /tmp). min_bytes=1048576: smaller ones
stay, and so do parameters.]], [[
local x = T.ones(3):requires_grad_()
local half = { pack = function(t) return t:to("bf16") end, unpack = function(t) return t:to("f32") end }
T.saved_tensors(half, function() return (x * x):sum() end):backward()
print(x.grad)  --> {2., 2., 2.}  -- f32[3] cpu]] }

S.scope = { "local s <close> = T.scope()", "s:add(t) → t: frees the tensor's memory at the end of the block.", [[
local t
do
  local s <close> = T.scope()
  t = s:add(T.zeros(1000))
end
print(t:is_freed())  --> true]] }

-- ---- memory, threads, randomness --------------------------------------------------------------------------------

S.memory = { "T.memory() → {live, peak, reserved, blocks, allocations, budget}",
  "Bytes of tensors: held now, at most so far, taken from the system; the number of blocks; the limit, if any.", [[
local before = T.memory().live
local x = T.zeros(1024)
print(T.memory().live - before >= 4096)  --> true]] }

S.reset_peak_memory = { "T.reset_peak_memory()", "T.memory().peak starts again from what is live.", [[
T.reset_peak_memory()
print(T.memory().peak == T.memory().live)  --> true]] }

S.set_memory_budget = { "T.set_memory_budget(bytes or nil)",
  "Tensors beyond this many bytes are an out-of-memory error; nil: no limit.", [[
T.set_memory_budget(T.memory().live + (1 << 20))
print((pcall(T.zeros, 1 << 20)))  --> false
T.set_memory_budget(nil)]] }

S.memory_limit = { 'T.memory_limit("2 GB" or bytes or nil) → scope; T.memory_limit() → bytes or nil',
  [[While it holds, eager programs stay below so many bytes of the CPU's memory: results that can be computed again give
their memory up, and are computed again when they are read, to the same bits. Units: kB, MB, GB, KiB, MiB, GiB. nil: no
limit; everything is computed. Where too much cannot be computed again: an out-of-memory error that names the op. The
scope restores what was. Of this thread; see docs/design/rematerialization.md.]], [[
do
  local _ <close> = T.memory_limit "1 GB"
  print(T.memory_limit())  --> 1000000000
  local x = T.ones(1000):requires_grad_()
  local y = x
  for _ = 1, 10 do y = (y * 1.1):sin() end
  y:sum():backward()
end
print(T.memory_limit())    --> nil]] }

S.empty_cache = { "T.empty_cache()", "Collects garbage and gives free memory back to the system.", "T.empty_cache()" }

S.set_num_threads = { "T.set_num_threads(n)",
  "How many threads kernels use, 1 to 1024. Results do not depend on it.", [[
local n = T.get_num_threads()
T.set_num_threads(1)
print(T.get_num_threads())  --> 1
T.set_num_threads(n)]] }

S.get_num_threads = { "T.get_num_threads() → n", "How many threads kernels use.",
  "print(T.get_num_threads() >= 1)  --> true" }

S.deterministic = { "T.deterministic(on) → what holds from now on",
  [[The same bits in every run. The CPU's kernels give them at any number of threads, always; false lets a GPU's
libraries take faster algorithms that do not.]],
  "print(T.deterministic(true))  --> true" }

S.manual_seed = { "T.manual_seed(seed) → T", "Starts the random numbers over: the same seed, the same numbers.", [[
local a = T.manual_seed(1).rand(3)
print(T.manual_seed(1).rand(3):equal(a))  --> true]] }

S.Generator = { "T.Generator(seed?) → generator",
  [[Random numbers with a state of their own: generator= in T.rand, randn, randint, randperm, uniform, normal, bernoulli
and multinomial; g:run(f, …) for anything else. g:manual_seed(n), g:initial_seed(), g:get_state(), g:set_state(s).]], [[
local g = T.Generator(1)
local a = T.rand(2, { generator = g })
print(a:equal(T.rand(2, { generator = g:manual_seed(1) })))  --> true
print(a:equal(T.rand(2, { generator = g })))                 --> false]] }
S.finfo = { "T.finfo(dtype or tensor?) → {eps=, tiny=, max=, min=, bits=, …}", "The limits of a floating dtype.", [[
print(T.finfo("bf16").eps, T.finfo("f16").max)  --> 0.0078125	65504.0]] }
S.iinfo = { "T.iinfo(dtype or tensor) → {max=, min=, bits=, dtype=}", "The limits of an integer dtype.", [[
print(T.iinfo("i16").max)  --> 32767]] }

S.get_rng_state = { "T.get_rng_state() → string", "Where the generator stands; for T.set_rng_state.", [[
local state = T.get_rng_state()
local a = T.rand(3)
T.set_rng_state(state)
print(T.rand(3):equal(a))  --> true]] }

S.set_rng_state = { "T.set_rng_state(string)", "Puts the generator where it stood at T.get_rng_state.",
  S.get_rng_state[3] }

-- ---- help, files, printing ----------------------------------------------------------------------------------------

S.help = { "T.help(what)", "Prints what an op or a function is: by name or by value. T.help() lists the names.",
  'T.help("help_text")' }

S.help_text = { "T.help_text(what) → string", "What T.help prints.", [[
print(T.help_text(T.relu):match("^[^\n]+"))  --> T.relu(x)]] }

S.info = { "T.info() → string", "Version, libraries, threads, memory: the block for a bug report.", [[
print(T.info():match("^%a+"))  --> perilune]] }

S.set_printoptions = { "T.set_printoptions{precision=4, threshold=1000, edgeitems=3, linewidth=80}",
  "How tensors print: digits, elements before abridging, items kept at each end, columns. No table: as at first.",
  [[
T.set_printoptions { precision = 2 }
print(T.tensor { 0.123456 })  --> {0.12}  -- f32[1] cpu
T.set_printoptions()]] }

S.save = { "T.save(path, tables of tensors, {…}) → true, or nil and a message",
  "Writes a safetensors file; T.load reads it. See docs/design/safetensors-header.md.", [[
local path = os.tmpname()
assert(T.save(path, { w = T.ones(2) }))
print(T.load(path).w)  --> {1., 1.}  -- f32[2] cpu
os.remove(path)]] }

S.load = { "T.load(path, {map_location=}) → tables of tensors, or nil and a message",
  "Reads a safetensors file. Its tensors are on the CPU, or on the device map_location.", S.save[3] }

S.load_idx = { "T.load_idx(path) → tensor, or nil and a message", "Reads an IDX file, as MNIST's, also gzipped.", [[
print((T.load_idx("/nowhere/images-idx3-ubyte")))  --> nil]] }

-- Groups, one a file of this folder, and a page of the reference.
for _, entry in pairs(S) do entry.group = "core" end
for _, file in ipairs { "more", "composites", "math", "tools", "data", "linalg", "spatial", "layers", "losses",
  "functional", "utils", "optim", "schedules", "distributions", "distributed" } do
  for name, entry in pairs(require("perilune.help.symbols_" .. file)) do
    entry.group = entry.group or file
    S[name] = entry
  end
end
local specs, signature = require("perilune.options").specs, require "perilune.help.signature"
for name, entry in pairs(S) do
  entry.example = entry[3]
  local who = name:gsub("^optim%.lr_scheduler", "lr_scheduler"):gsub("^nn%.utils%.", "")
  who = specs[name] and name or specs[who] and who
  entry.arguments = who and signature.arguments(who) or {}
end
return S
