-- SPDX-License-Identifier: MIT
-- What T.help says of functions that are written in C (bindings/) or made in init.lua; see pages.lua. Nothing to run.

--- T.GradKey{name=, level=, ambient=true} → key
-- One tape. key:attach(t, fn) → t watches a tensor; key:backward(ys, dys, {strict=}) walks the tape once, calls fn(t,
-- gradient) as soon as a gradient is final, and closes the key; key:close() gives up; key:is_attached_to(t),
-- key:attached(), key.active. Works with <close>. level: by default one above the highest active key; keys of lower
-- levels record the backward of higher ones. ambient=false: requires_grad_ records nothing meanwhile.
--   local key, x = T.GradKey {}, T.tensor { 1, 2 }
--   key:attach(x, function(t, g) print(g) end)
--   key:backward((x * x):sum())
--   --> {2., 4.}  -- f32[2] cpu

--- T.custom{name=, forward=f(ctx, …), backward=f(ctx, g…), jvp=f(ctx, t…), always=false, state=} → function
-- An op with a gradient of your own. forward's tensors are constants to it; ctx:save(…) and ctx:saved() keep tensors
-- and notice if they are overwritten; other values may be fields of ctx. backward gets a gradient or nil for each
-- result and returns one or nil for each tensor argument. ctx.needs_input_grad[i]; ctx:mark_non_differentiable(t);
-- ctx:mark_dirty(t) for an input edited in place. jvp, which is optional, gets a tangent or nil for each tensor
-- argument and returns one or nil for each result (forward mode: T.jvp); without it backward is differentiated for
-- that. always: backward also runs without gradients. state: one table or object for all calls, ctx.state.
--   local square = T.custom {
--     name = "square",
--     state = { calls = 0 },
--     forward = function(ctx, x)
--       ctx:save(x)
--       ctx.state.calls = ctx.state.calls + 1
--       return x * x
--     end,
--     backward = function(ctx, g) return 2 * g * ctx:saved() end,
--   }
--   print(T.grad(function(x) return square(x):sum() end)(T.tensor { 3 }))  --> {6.}  -- f32[1] cpu

--- T.default_dtype() → dtype, T.default_dtype(dtype)
-- The dtype of tensors made from floats.
--   print(T.default_dtype())  --> f32

--- T.deterministic(on) → what holds from now on
-- The same bits in every run. The CPU's kernels give them at any number of threads, always; false lets a GPU's
-- libraries take faster algorithms that do not.
--   print(T.deterministic(true))  --> true

--- T.empty_cache()
-- Collects garbage and gives free memory back to the system.
--   T.empty_cache()

--- T.from_string(bytes, dtype, shape) → tensor
-- Little-endian, row-major elements; without a shape, as many as there are. x:to_string() is the inverse.
--   print(T.from_string(T.arange(2):to_string(), "i64"))  --> {1, 2}  -- i64[2] cpu

--- T.get_num_threads() → n
-- How many threads kernels use.
--   print(T.get_num_threads() >= 1)  --> true

--- T.get_rng_state() → string
-- Where the generator stands; for T.set_rng_state.
--   local state = T.get_rng_state()
--   local a = T.rand(3)
--   T.set_rng_state(state)
--   print(T.rand(3):equal(a))  --> true

--- T.grad_keys() → list
-- The keys that are alive: explicit ones and the ambient one.
--   local key = T.GradKey { name = "mine" }
--   local found = false
--   for _, k in ipairs(T.grad_keys()) do found = found or tostring(k):find("mine", 1, true) ~= nil end
--   print(found)  --> true
--   key:close()

--- x:imshow{map="grey", lo=, hi=, cols=, scale=, title=, file=} → figure
-- A picture of [H,W], [C,H,W], [H,W,C], or a grid of [N,C,H,W] with cols in a row. print(figure) shows it in the
-- terminal: half blocks with colours, characters without. u8 as it is; other numbers from 0 to 1, or from their least
-- to their greatest, or lo to hi. file= or figure:png(path), figure:svg(path) write it.
--   print(T.eye(3):imshow():text { color = false })
--   --> @@
--   -->   @@
--   -->     @@

--- T.is_tensor(value) → boolean
-- Whether it is a tensor.
--   print(T.is_tensor(1))  --> false

--- T.manual_seed(seed) → T
-- Starts the random numbers over: the same seed, the same numbers.
--   local a = T.manual_seed(1).rand(3)
--   print(T.manual_seed(1).rand(3):equal(a))  --> true

--- T.memory() → {live, peak, reserved, blocks, allocations, budget}
-- Bytes of tensors: held now, at most so far, taken from the system; the number of blocks; the limit, if any.
--   local before = T.memory().live
--   local x = T.zeros(1024)
--   print(T.memory().live - before >= 4096)  --> true

--- T.promote_types(a, b) → dtype
-- What an op of both computes in.
--   print(T.promote_types("i64", "f16"))  --> f16

--- T.reset_peak_memory()
-- T.memory().peak starts again from what is live.
--   T.reset_peak_memory()
--   print(T.memory().peak == T.memory().live)  --> true

--- T.set_memory_budget(bytes or nil)
-- Tensors beyond this many bytes are an out-of-memory error; nil: no limit. Garbage is collected before it
-- comes, and what is kept for later tensors counts: a budget a little above what is needed at once is what a program
-- takes.
--   T.set_memory_budget(T.memory().live + (1 << 20))
--   print((pcall(T.zeros, 1 << 30)))  --> false
--   T.set_memory_budget(nil)

--- T.set_num_threads(n)
-- How many threads kernels use, 1 to 1024. Results do not depend on it.
--   local n = T.get_num_threads()
--   T.set_num_threads(1)
--   print(T.get_num_threads())  --> 1
--   T.set_num_threads(n)

--- T.set_rng_state(string)
-- Puts the generator where it stood at T.get_rng_state.
--   local state = T.get_rng_state()
--   local a = T.rand(3)
--   T.set_rng_state(state)
--   print(T.rand(3):equal(a))  --> true

--- x:spark{width=60, lo=, hi=} → string
-- The values of a vector, or of each row of a matrix, as a line of blocks; more than width are averaged.
--   print(T.tensor({ 1, 5, 3 }):spark())  --> ▁█▅

--- T.tensor(number or nested list, {dtype=, device=, requires_grad=false}) → tensor
-- Copies the values. Numbers become f32 (T.default_dtype), booleans bool, unless dtype says otherwise.
--   print(T.tensor { { 1.5, 2 }, { 3, 4 } }:size(1))  --> 2

--- x:backward(dy, {gradient=, inputs=, retain_graph=false, create_graph=false}), T.backward({x, …}, {dy, …}, {…})
-- Adds the gradients of x to the .grad of the leaves that it was computed from. x is 0-d or has one element, or dy has
-- its shape and dtype. inputs: only these leaves, each of which must require a gradient. What the history saved is
-- freed unless retain_graph is true; create_graph: the gradients are differentiable, which keeps the history, too.
-- T.backward goes back from all of a list in one walk; its gradients are a list as long, with false for ones. Each of
-- the list must depend on a leaf that requires a gradient.
-- T.grad_of returns gradients instead.
--   local x = T.tensor({ 1, 2 }):requires_grad_();
--   (x * x):sum():backward()
--   print(x.grad)  --> {2., 4.}  -- f32[2] cpu
--   T.backward({ x * 2, x:sum() }, { T.tensor { 1, 10 }, false })
--   print(x.grad)  --> { 5., 25.}  -- f32[2] cpu

--- x:cuda(index) → tensor
-- x in a GPU's memory, the current one's without a number (from 0); x itself if it is there. An error where the build
-- or the machine has none: T.cuda.is_available() asks.
--   if T.cuda.is_available() then print(T.ones(1):cuda():device()) end

--- x:describe() → string
-- Dtype and shape, as messages name a tensor.
--   print(T.zeros(2, 3):describe())  --> f32[2,3]

--- x:detach_() → x
-- Cuts x off from its history, in place: no gradient flows through it any more.
--   print((T.ones(1):requires_grad_() * 2):detach_().requires_grad)  --> false

--- x:device() → string
-- Where the elements are: "cpu", "cuda:0", ….
--   print(T.ones(1):device())  --> cpu

--- x:dim(), x:ndimension() → number
-- How many dimensions x has: #x:shape().
--   print(T.ones(2, 3):dim())  --> 2

--- x:dtype() → string
-- "f32", "f64", "f16", "bf16", "i8" … "i64", "u8", "bool".
--   print(T.arange(3):dtype())  --> i64

--- x:element_size() → number
-- Bytes of an element.
--   print(T.ones(3):element_size())  --> 4

--- x:free()
-- Releases x now instead of when the collector finds it; its memory goes once no view and no history needs it. Every
-- later use of x is an error. T.scope does it at the end of a block.
--   local x = T.ones(1000)
--   x:free()
--   print(x:is_freed())  --> true

--- x:get(i, …) → number or boolean
-- One element, by one index for each dimension: from 1, negative ones from the end. Integers stay integers.
--   print(T.tensor({ { 1, 2 }, { 3, 4 } }):get(2, -1))  --> 4.0

--- x:is_contiguous() → boolean
-- Do the elements lie in row-major order without gaps?
--   print(T.ones(2, 3):t():is_contiguous())  --> false

--- x:is_cuda() → boolean
-- Are the elements in a GPU's memory?
--   print(T.ones(1):is_cuda())  --> false

--- x:is_freed() → boolean
-- Was x:free() called?
--   print(T.ones(1):is_freed())  --> false

--- x:item() → number or boolean
-- The value of a tensor with one element, of any shape. Integers stay integers.
--   print(T.tensor({ 1.5, 2 }):sum():item())  --> 3.5

--- x:register_hook(f(g)) → handle
-- backward calls f with the gradient of x once it is final; a tensor that f returns takes its place. handle:remove()
-- ends that.
--   local x = T.ones(2):requires_grad_()
--   local handle = x:register_hook(function(g) return g * 10 end)
--   x:sum():backward()
--   print(x.grad)  --> {10., 10.}  -- f32[2] cpu
--   handle:remove()

--- x:register_post_accumulate_grad_hook(f(x)) → handle
-- For a leaf: f runs each time when a backward has added to x.grad, for example to take a step and drop the gradient.
-- handle:remove() ends that.
--   local x = T.ones(2):requires_grad_()
--   x:register_post_accumulate_grad_hook(function(leaf) print(leaf.grad) end)
--   x:sum():backward()
--   --> {1., 1.}  -- f32[2] cpu

--- x:requires_grad_(on?) → x
-- Makes x, of a floating dtype, a leaf: what is computed from it is recorded, and backward leaves its gradient in
-- x.grad; with false it is none any more. x.requires_grad and x.is_leaf say what holds.
--   print(T.ones(1):requires_grad_().requires_grad)  --> true

--- x:retain_grad() → x
-- backward leaves the gradient of a computed tensor in its .grad, too.
--   local x = T.ones(2):requires_grad_()
--   local h = (x * 2):retain_grad();
--   (h * 3):sum():backward()
--   print(h.grad)  --> {3., 3.}  -- f32[2] cpu

--- x:set(i, …, value) → x
-- Writes one element, by one index for each dimension: from 1, negative ones from the end.
--   print(T.zeros(2, 2):set(1, 2, 5):tolist()[1][2])  --> 5.0

--- x:shape() → list of numbers
-- The sizes, one for each dimension; {} for a 0-d tensor.
--   print(table.concat(T.ones(2, 3):shape(), "x"))  --> 2x3

--- x:shares_storage(y) → boolean
-- Are x and y in the same memory, as views of one tensor are?
--   local x = T.ones(2, 3)
--   print(x:shares_storage(x:t()), x:shares_storage(x:clone()))  --> true	false

--- x:size() → list of numbers, x:size(dim) → number
-- The shape, or how long one dimension is: from 1, negative ones from the end.
--   print(T.ones(2, 3):size(-1))  --> 3

--- x:storage_offset() → number
-- How many elements of its memory lie before the first of x.
--   print(T.ones(2, 3)[2]:storage_offset())  --> 3

--- x:stride() → list of numbers, x:stride(dim) → number
-- How many elements it is in memory to the next index, for each dimension or for one.
--   print(T.ones(2, 3):stride(1))  --> 3

--- x:to_string() → string
-- The elements as bytes: little-endian, row-major. T.from_string is the inverse.
--   print(#T.ones(2, 3):to_string())  --> 24

--- x:tolist(), x:totable() → nested list or number
-- The values as Lua tables, one level for each dimension; a number for a 0-d tensor.
--   print(T.tensor({ { 1, 2 }, { 3, 4 } }):tolist()[2][1])  --> 3.0

--- x:version() → number
-- How often the memory of x was written in place: what backward compares to notice that a saved value is gone.
--   local x = T.ones(1)
--   x:add_(1)
--   print(x:version())  --> 1
