-- SPDX-License-Identifier: MIT
-- What T.help knows of functions that are no ops, continued from symbols.lua: tensors, dtypes, shapes, composites.
local S = {}

-- ---- making tensors --------------------------------------------------------------------------------------------

S.tensor = { "T.tensor(number or nested list, {dtype=, requires_grad=}) → tensor",
  "Copies the values. Numbers become f32 (T.default_dtype), booleans bool, unless dtype says otherwise.", [[
print(T.tensor { { 1.5, 2 }, { 3, 4 } }:size(1))  --> 2]] }

S.from_string = { "T.from_string(bytes, dtype, shape) → tensor",
  "Little-endian, row-major elements; without a shape, as many as there are. x:to_string() is the other way.", [[
print(T.from_string(T.arange(2):to_string(), "i64"))  --> {1, 2}  -- i64[2] cpu]] }

S.is_tensor = { "T.is_tensor(value) → boolean", "Whether it is a tensor.", "print(T.is_tensor(1))  --> false" }

S.zeros_like = { "T.zeros_like(x, {dtype=, requires_grad=}) → tensor", "Zeros of x's shape and dtype.", [[
print(T.zeros_like(T.ones(2)))  --> {0., 0.}  -- f32[2] cpu]] }
S.ones_like = { "T.ones_like(x, {dtype=, requires_grad=}) → tensor", "Ones of x's shape and dtype.", [[
print(T.ones_like(T.zeros(2)))  --> {1., 1.}  -- f32[2] cpu]] }
S.empty_like = { "T.empty_like(x, {dtype=, requires_grad=}) → tensor", "As T.empty, of x's shape and dtype.", [[
print(T.empty_like(T.ones(2, 3)):numel())  --> 6]] }
S.full_like = { "T.full_like(x, value, {dtype=, requires_grad=}) → tensor",
  "value everywhere, of x's shape and dtype.", [[
print(T.full_like(T.ones(2), 7))  --> {7., 7.}  -- f32[2] cpu]] }
S.rand_like = { "T.rand_like(x, {dtype=, requires_grad=}) → tensor", "Uniform in [0, 1), of x's shape and dtype.", [[
print(T.rand_like(T.ones(2)):lt(1):all():item())  --> true]] }
S.randn_like = { "T.randn_like(x, {dtype=, requires_grad=}) → tensor", "Standard normal, of x's shape and dtype.", [[
print(T.randn_like(T.ones(2)):dtype())  --> f32]] }

S.empty = { "T.empty(2, 3) or T.empty({2, 3}, {dtype=, requires_grad=}) → tensor",
  "Memory that was not set; here it holds zeros, so nothing leaks through it.", [[
print(T.empty(2, 3):numel())  --> 6]] }
S.arange = { "T.arange(n), T.arange(a, b, step, {dtype=}) → tensor",
  "1 … n, or a … b, both included. i64 if all are integers.", "print(T.arange(2, 8, 3))  --> {2, 5, 8}  -- i64[3] cpu" }
S.rand = { "T.rand(2, 3) or T.rand({2, 3}, {dtype=}) → tensor", "Uniform in [0, 1).", [[
print(T.rand(4):ge(0):all():item())  --> true]] }
S.randn = { "T.randn(2, 3) or T.randn({2, 3}, {dtype=}) → tensor", "Standard normal.", [[
print(T.randn(4, { dtype = "f64" }):dtype())  --> f64]] }
S.random_ = { "x:random_(lo, hi) → x", "Fills with integers lo … hi, both included.", [[
print(T.zeros(3):random_(5, 5))  --> {5., 5., 5.}  -- f32[3] cpu]] }
S.exponential_ = { "x:exponential_(rate = 1) → x", "Fills with exponentially distributed numbers.", [[
print(T.zeros(3):exponential_(2):gt(0):all():item())  --> true]] }
S.meshgrid = { 'T.meshgrid({x, y, …}, {indexing="ij" or "xy"}) → list',
  "Coordinates of a grid, as expanded views.", [[
print(T.meshgrid({ T.arange(2), T.arange(3) })[2])
--> {{1, 2, 3},
-->  {1, 2, 3}}  -- i64[2,3] cpu]] }
for _, side in ipairs { { "tril_indices", "lower", "{{1, 2, 2},\n-->  {1, 1, 2}}" },
  { "triu_indices", "upper", "{{1, 1, 2},\n-->  {1, 2, 2}}" } } do
  S[side[1]] = { ("T.%s(rows, cols, {offset=0, dtype=, index_base=1}) → i64 [2, n]"):format(side[1]),
    ("The places of the %s triangle: their rows, then their columns."):format(side[2]),
    ("print(T.%s(2, 2))\n--> %s  -- i64[2,3] cpu"):format(side[1], side[3]) }
end

-- ---- dtypes --------------------------------------------------------------------------------------------------------

for name, dtype in pairs { float = "f32", double = "f64", half = "f16", bfloat16 = "bf16", char = "i8", short = "i16",
  int = "i32", long = "i64", byte = "u8", bool = "bool" } do
  S[name] = { ("x:%s() → tensor"):format(name), ("x as %s; x itself if it is."):format(dtype),
    ("print(T.ones(1):%s():dtype())  --> %s"):format(name, dtype) }
end
S.to = { 'x:to("f64"), x:to("cpu"), x:to(y), x:to{dtype=, device=, copy=, memory_format=, non_blocking=} → tensor',
  [[Another dtype or device (or y's), another memory format ("channels_last", "channels_last_3d", "contiguous"); the
same object if nothing changes. non_blocking: a copy from pinned memory to a GPU runs beside its work; one to
the CPU is right once the GPU has been waited for (T.cuda.synchronize).]],
  'print(T.ones(1):to("f64"):dtype())  --> f64' }
S.pin_memory = { "x:pin_memory() → tensor", "A copy in memory that GPUs copy from and to by themselves; x itself if it "
  .. "is there. For x:to(\"cuda\", {non_blocking = true}).", [[
if T.cuda.is_available() then
  print(T.ones(2):pin_memory():is_pinned())
end]] }
S.is_pinned = { "x:is_pinned() → boolean", "Whether x is in pinned memory: see x:pin_memory().",
  "print(T.ones(2):is_pinned())  --> false" }
S.cpu = { "x:cpu() → x", "On the processor; x itself if it is there.",
  "print(T.ones(1):cpu())  --> {1.}  -- f32[1] cpu" }
S.type_as = { "x:type_as(y) → tensor", "x as y's dtype.", "print(T.ones(1):type_as(T.arange(1)):dtype())  --> i64" }
S.default_dtype = { "T.default_dtype() → dtype, T.default_dtype(dtype)", "The dtype of tensors made from floats.", [[
print(T.default_dtype())  --> f32]] }
S.promote_types = { "T.promote_types(a, b) → dtype", "What an op of both computes in.", [[
print(T.promote_types("i64", "f16"))  --> f16]] }
S.can_cast = { "T.can_cast(from, to) → boolean",
  "Whether no kind is lost: not from floats to integers, nor to bool.", [[
print(T.can_cast("f32", "i64"), T.can_cast("i64", "f16"))  --> false	true]] }

-- ---- taking apart and joining -------------------------------------------------------------------------------------

S.split = { "x:split(size or {sizes}, dim = 1) → list of views", "Pieces of a size, the last may be smaller.", [[
print(#T.arange(5):split(2), T.arange(5):split({ 1, 4 })[1])  --> 3	{1}  -- i64[1] cpu]] }
S.chunk = { "x:chunk(n, dim = 1) → list of views", "At most n pieces of equal size, the last may be smaller.", [[
print(T.arange(5):chunk(2)[2])  --> {4, 5}  -- i64[2] cpu]] }
S.unbind = { "x:unbind(dim = 1) → list of views", "x[1], x[2], … along a dimension.", [[
print(T.eye(2):unbind()[2])  --> {0., 1.}  -- f32[2] cpu]] }
S.rows = { "for i, row in x:rows() do … end", "The slices of the first dimension, with their numbers.", [[
for i, row in T.eye(2):rows() do print(i, row:sum():item()) end
--> 1	1.0
--> 2	1.0]] }
S.concat = { "T.concat({x, …}, dim = 1) → tensor", "Another name of T.cat.", [[
print(T.concat { T.ones(1), T.zeros(1) })  --> {1., 0.}  -- f32[2] cpu]], same = "cat" }
S.hstack = { "T.hstack{x, …} → tensor", "Joined along columns (dimension 2; vectors along 1).", [[
print(T.hstack { T.ones(1), T.zeros(1) })  --> {1., 0.}  -- f32[2] cpu]] }
S.vstack = { "T.vstack{x, …} → tensor", "Joined along rows; vectors become rows.", [[
print(T.vstack { T.ones(2), T.zeros(2) }:size(1))  --> 2]] }
S.view_as = { "x:view_as(y) → view", "x with y's shape, sharing memory.", [[
print(T.arange(4):view_as(T.eye(2)):size(2))  --> 2]] }
S.reshape_as = { "x:reshape_as(y) → tensor", "x with y's shape, a copy only where a view is not possible.", [[
print(T.arange(4):reshape_as(T.eye(2)):size(2))  --> 2]] }
S.rot90 = { "x:rot90(k = 1, dims = {1, 2}) → tensor", "k quarter turns in the plane of two dimensions.", [[
print(T.tensor { { 1, 2 } }:rot90())
--> {{2.},
-->  {1.}}  -- f32[2,1] cpu]] }
S.pixel_shuffle = { "x:pixel_shuffle(r) → tensor", "[…, C r², H, W] → […, C, H r, W r].", [[
print(T.rand(1, 4, 2, 2):pixel_shuffle(2):size(3))  --> 4]] }
S.pixel_unshuffle = { "x:pixel_unshuffle(r) → tensor", "[…, C, H r, W r] → […, C r², H, W].", [[
print(T.rand(1, 1, 4, 4):pixel_unshuffle(2):size(2))  --> 4]] }
S.channel_shuffle = { "x:channel_shuffle(groups) → tensor",
  "[N, C, …] with the channels of its groups interleaved.", [[
print(T.arange(4):reshape(1, 4, 1):channel_shuffle(2):flatten())  --> {1, 3, 2, 4}  -- i64[4] cpu]] }

-- ---- composites -----------------------------------------------------------------------------------------------------

for name, word in pairs { max = "largest", min = "smallest" } do
  S[name] = { ("x:%s() → 0-d; x:%s(dim, {keepdim=, index_base=}) → values, indices; x:%s(y) → tensor")
      :format(name, name, name),
    ("The %s value of all or along a dimension, or of two tensors elementwise."):format(word),
    ("print(T.tensor({ 3, 3 }):%s():item(), (T.tensor({ { 1, 1 } }):%s(2)))  --> 3.0\t{1.}  -- f32[1] cpu")
      :format(name, name) }
end
S.aminmax = { "x:aminmax({dims=, keepdim=}) → smallest, largest", "Both extremes.", [[
local lo, hi = T.arange(5):aminmax()
print(lo:item(), hi:item())  --> 1	5]] }
for name, word in pairs { std_mean = "standard deviation", var_mean = "variance" } do
  S[name] = { ("x:%s(dim, {correction=1, keepdim=}) → tensor, tensor"):format(name),
    ("The %s and the mean."):format(word),
    ("local s, mean = T.tensor({ 1, 2, 3 }):%s()\nprint(s:item(), mean:item())  --> 1.0\t2.0"):format(name) }
end
S.isclose = { "x:isclose(y, {rtol=1e-5, atol=1e-8, equal_nan=false}) → bool tensor", "|x - y| <= atol + rtol |y|.", [[
print(T.tensor({ 1.0, 2 }):isclose(T.tensor { 1.0, 3 }))  --> { true, false}  -- bool[2] cpu]] }
S.allclose = { "x:allclose(y, {rtol=1e-5, atol=1e-8, equal_nan=false}) → boolean",
  "Whether all elements are close.", [[
print(T.ones(2):allclose(T.ones(2) + 1e-9))  --> true]] }
S.rsub = { "T.rsub(x, y) → y - x", "Subtraction the other way round.", [[
print(T.rsub(T.ones(1), 3))  --> {2.}  -- f32[1] cpu]] }
S.diff = { "x:diff{n=1, dim=-1, prepend=, append=} → tensor", "Differences of neighbours, n times.", [[
print(T.tensor({ 1, 4, 9 }):diff())  --> {3., 5.}  -- f32[2] cpu]] }
S.cdist = { "T.cdist(x1 […, P, M], x2 […, R, M], {p=2, compute_mode=}) → […, P, R]",
  "Distances of all pairs of rows.", [[
print(T.cdist(T.zeros(1, 2), T.tensor { { 3.0, 4 } }):item())  --> 5.0]] }
S.pairwise_distance = { "T.pairwise_distance(x1, x2, {p=2, eps=1e-6, keepdim=false}) → tensor",
  "The norm of x1 - x2 + eps over the last dimension.", [[
print(T.pairwise_distance(T.zeros(1, 2), T.tensor { { 3.0, 4 } }, { eps = 0 }):item())  --> 5.0]] }
S.einsum = { 'T.einsum("ij,jk->ik", x, y) → tensor',
  "Sums of products by index letters; … for the other dimensions.", [[
print(T.einsum("i,i->", T.arange(3), T.arange(3)):item())  --> 14]] }
S.tensordot = { "T.tensordot(x, y, dims) → tensor",
  "Sums over the last dims dimensions of x and the first of y, or lists.", [[
print(T.tensordot(T.ones(2, 3), T.ones(3, 4), 1):size(2))  --> 4]] }

S.graph = { "T.graph() → graph",
  [[A program as data. g:input(name, shape) makes tensors without values: every op on them adds a node.
g:gradient(ys, xs), g:outputs{…}, g:run{name = tensor}; print(g) shows it. Options of gradient: out_grads={…} one for
each of ys (all left out: ones), allow_unused, aggregate, copy, copy_op="clone", zero_ops={"zeros"}, and what may be
computed again: mirror="auto" | "mincut" | "mirror" | function(node), budget={bytes=} or {fraction=}, pin, force,
seeded, heavy. g:after(t, first): t's node runs after that of first, though it reads nothing of it.]], [[
local g = T.graph()
local x = g:input("x", { 3 })
local z = x:sin()
local y = g:after((x * x):sum(), z)
g:outputs { g:gradient({ y }, x, { out_grads = { g:input("dy", {}) }, mirror = "auto" }) }
print(g:run({ x = T.tensor { 1, 2, 3 }, dy = T.tensor(1.0) })[1])  --> {2., 4., 6.}  -- f32[3] cpu]] }

local jit = { "T.jit(f, {check=, fallback=, max_traces=, name=, mirror=, budget=, …}) → what is called like f",
  [[f, a function or a module, becomes a graph at its first call: planned memory, fused pointwise ops, no Lua between.
Whole training steps work. What changes around it is traced again; what cannot be known while tracing is an error, or
with fallback=true runs eagerly. check=true compares every call with the script. mirror="auto" | "mincut" | "mirror"
computes cheap tensors again in backward, in less memory; mirror=function(node), pin= and force={names} choose by node,
heavy=true, seeded=true, budget={bytes=} or {fraction=} as in g:gradient. unsafe_math=true allows what holds for real
numbers only, so sums are rounded otherwise. j:source() j:graph() j:plan(), j:explain(): ops, bytes and seconds per
line of the script; j:reset(). Inside of T.vmap, T.vjp and their like f runs as it is written.]], [[
local f = T.jit(function(x, y) return (x * y + x):tanh() end)
print(f(T.zeros(2), T.ones(2)))  --> {0., 0.}  -- f32[2] cpu]] }
S.jit = jit
S.compile = { "T.compile(f, options) → what is called like f", "The same as T.jit.",
  (jit[3]:gsub("T%.jit", "T.compile")) }

-- ---- mixed precision ------------------------------------------------------------------------------------------------

S.autocast = { 'local _ <close> = T.autocast("bf16", {enabled=true, cache_enabled=true}), or T.autocast("bf16", f, …)',
  "Inside, products, convolutions and attention take bf16 (or f16), losses f32; f64 is left alone.", [[
local x = T.ones(2, 2)
print(T.autocast("bf16", function() return x:matmul(x):dtype() end), x:matmul(x):dtype())  --> bf16	f32]] }
S.is_autocast_enabled = { "T.is_autocast_enabled() → boolean", "Whether a region of T.autocast is open.", [[
print(T.is_autocast_enabled())  --> false]] }
S.get_autocast_dtype = { 'T.get_autocast_dtype() → "bf16", "f16" or nil', "What the open region casts to.", [[
print(T.autocast("f16", T.get_autocast_dtype))  --> f16]] }
S.set_float32_matmul_precision = { 'T.set_float32_matmul_precision("highest", "high" or "medium")',
  "How exact large products of f32 are: medium may round their factors to bf16 where that is faster.", [[
T.set_float32_matmul_precision("medium")
print(T.get_float32_matmul_precision())  --> medium
T.set_float32_matmul_precision("highest")]] }
S.get_float32_matmul_precision = { 'T.get_float32_matmul_precision() → "highest", "high" or "medium"',
  "What T.set_float32_matmul_precision set.", "print(T.get_float32_matmul_precision())  --> highest" }
S.GradScaler = {
  "T.GradScaler{init_scale=65536, growth_factor=2, backoff_factor=0.5, growth_interval=2000, enabled=true}",
  "s:scale(loss):backward(), s:unscale_(opt), s:step(opt), s:update(): gradients in f16 that do not vanish.", [[
local p = T.tensor({ 1.0, 2 }):requires_grad_()
local opt = T.optim.SGD({ p }, { lr = 0.1 })
local s = T.GradScaler { init_scale = 8 }
s:scale((p * 3):sum()):backward()
s:step(opt)
s:update()
print(p:get(1), s:get_scale())  --> 0.69999998807907	8.0]] }

S.save_graph = { "T.save_graph(path, graph) → true, or nil, message, code",
  "Writes a text (path) and the captured tensors (path .. \".safetensors\"); both are replaced, or neither.", [[
local g = T.graph()
g:outputs { g:input("x", { 2 }) * 2 }
local path = os.tmpname()
print(T.save_graph(path, g))  --> true
os.remove(path .. ".safetensors")]] }
S.load_graph = { "T.load_graph(path) → graph, captured tensors; or nil, message, code",
  "Builds a saved graph again, gradient passes and their recomputation included.", [[
print(T.load_graph("/no/such/graph") == nil)  --> true]] }

return S
