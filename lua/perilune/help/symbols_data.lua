-- SPDX-License-Identifier: MIT
-- What T.help knows of T.data and of files of other programs, continued from symbols.lua.
local S = {}

-- ---- files ---------------------------------------------------------------------------------------------------------

S.save_npy = { "T.save_npy(path, x) → true, or nil, message, code",
  "Writes NumPy's npy, as safely as T.save. Every dtype but bf16.", [[
local path = os.tmpname()
assert(T.save_npy(path, T.arange(3)))
print(T.load_npy(path))  --> {1, 2, 3}  -- i64[3] cpu
os.remove(path)]] }
S.load_npy = { "T.load_npy(path, {max_bytes=}) → tensor, or nil, message, code",
  [[Reads NumPy's npy. Fortran order gives a view with strides of its own; u16 and u32 become i32 and i64. Objects,
structures and complex numbers are refused.]], S.save_npy[3] }
S.load_npz = { "T.load_npz(path, {max_bytes=4 GiB}) → {name = tensor}, names; or nil, message, code",
  "Reads all arrays of an npz archive, stored or deflated; names are in the file's order.", [[
print((T.load_npz("/nowhere/arrays.npz")))  --> nil]] }
S.load_image = {
  'T.load_image(path, {mode="unchanged", max_bytes=512 MiB}) → u8 [C, H, W], or nil, message, code',
  [[Reads a PNG or JPEG file, whatever its name. mode: unchanged, gray, rgb or rgba. Needs libspng or libturbojpeg when
perilune is built; the message says so.]], [[
print((T.load_image("/nowhere/picture.png")))  --> nil]] }
S.save_image = { "T.save_image(path, x, {quality=90, cols=8, padding=2}) → true, or nil, message, code",
  [[Writes u8 [C, H, W] or [H, W], or floats from 0 to 1, as PNG or JPEG by the ending of the name. A batch,
[N, C, H, W], becomes one sheet with cols pictures in a row and padding black pixels around each.]], [[
print((T.save_image("/nowhere/picture.png", T.zeros(3, 8, 8))))  --> nil]] }

S.load_t7 = { "T.load_t7(path, {functions=\"error\"}) → value, or nil, message, code",
  [[Reads what torch7 saved, binary or ascii: tensors, tables, strings, numbers, booleans, with cycles. Functions are
refused, or left out with functions="skip"; objects of other classes become tables of their fields with the class's
name in torch_class.]], [[
print((T.load_t7("/nowhere/model.t7")))  --> nil]] }

-- ---- datasets ------------------------------------------------------------------------------------------------

S["data.Dataset"] = { "T.data.Dataset{len=n or function, get=function(self, i) … end, …} → dataset",
  "Made of two functions; get returns the values of sample i. Other fields are kept.", [[
local ds = T.data.Dataset { len = 3, get = function(self, i) return i * i end }
print(#ds, ds[3])  --> 3	9]] }
S["data.TensorDataset"] = { "T.data.TensorDataset(x, y, …) → dataset",
  "Tensors of equal first size side by side: ds[i] is {x[i], y[i], …}, of one tensor x[i].", [[
local ds = T.data.TensorDataset(T.eye(2), T.arange(2))
print(#ds, ds[2][2]:item())  --> 2	2]] }
S["data.Subset"] = { "T.data.Subset(dataset, indices) → dataset", "Some samples of a dataset, by number.", [[
print(T.data.Subset({ "a", "b", "c" }, { 3, 1 })[1])  --> c]] }
S["data.ConcatDataset"] = { "T.data.ConcatDataset(a, b, …) → dataset", "Datasets one after the other.", [[
print(T.data.ConcatDataset({ 1, 2 }, { 3 })[3])  --> 3]] }
S["data.StackDataset"] = { "T.data.StackDataset(a, b, …) → dataset",
  "Samples of several datasets side by side; of a table with names, by name.", [[
print(T.data.StackDataset({ "a", "b" }, { 3, 4 })[2][2])  --> 4]] }
S["data.IterableDataset"] = { "T.data.IterableDataset{iter=function(self) return next_sample end, …} → dataset",
  [[A stream: iter begins a pass and returns a function that gives a sample a call, nil at the end. A DataLoader makes
batches of it, in its order, without workers.]], [[
local set = T.data.IterableDataset { iter = function()
  local i = 0
  return function() i = i + 1 if i <= 3 then return i end end
end }
for x in T.data.DataLoader(set, { batch_size = 2 }) do print(x) end
--> {1, 2}  -- i64[2] cpu
--> {3}  -- i64[1] cpu]] }
S["data.random_split"] = { "T.data.random_split(dataset, {lengths or shares}, {seed=}) → list of datasets",
  "Cuts a dataset at random into parts.", [[
local parts = T.data.random_split({ 1, 2, 3, 4, 5 }, { 0.8, 0.2 }, { seed = 1 })
print(#parts[1], #parts[2])  --> 4	1]] }
for name, what in pairs { fashion_mnist = "Fashion-MNIST: clothes", mnist = "MNIST: digits" } do
  S["data." .. name] = { ('T.data.%s{split="train", root=, dtype="f32"} → dataset, or nil, message, code'):format(name),
    what .. [[ in 28 x 28 pixels, from local IDX files. Images [N, 1, 28, 28] in 0 … 1 (or u8), labels 1 … 10; fields
images, labels, classes.]], ('print((T.data.%s { root = "/nowhere" }))  --> nil'):format(name) }
end

S["data.cifar10"] = { 'T.data.cifar10{split="train", root=, dtype="f32"} → dataset, or nil, message, code',
  [[CIFAR-10 from local files in the binary format. Images [N, 3, 32, 32] in 0 … 1 (or u8), labels 1 … 10; fields
images, labels, classes.]], [[
print((T.data.cifar10 { root = "/nowhere" }))  --> nil]] }
S["data.image_folder"] = {
  'T.data.image_folder{root, transform=, mode="rgb"} → dataset of {image, class}, or nil, message, code',
  [[PNG and JPEG files in folders, one folder a class; fields paths, labels, classes. transform gets u8 [C, H, W]; see
data.transforms.compose.]], [[
print((T.data.image_folder("/nowhere")))  --> nil]] }
S["data.csv"] = {
  [[T.data.csv(path, {header=true, delimiter=",", types=, columns=, missing=, comment=, quote=}) → table]],
  [[Columns of text files as tensors (i64, f32 or bool by what they hold, or types={name=dtype}) or lists of strings
("text"). Fields names, rows, columns, missing; csv[i] is a row; csv:tensor{"a", "b"} → [rows, 2];
csv:categories("c") → classes, words. Missing numbers are NaN. text= instead of a path. Or nil, message, code.]], [[
local c = T.data.csv { text = "a,b,kind\n1,2.5,x\n3,,y\n" }
print(c.columns.a, c.columns.kind[2], c.missing.b)  --> {1, 3}  -- i64[2] cpu	y	1
print(c:tensor { "a" }:size(1))  --> 2]] }
S["data.text"] = { "T.data.text{path, length=64, stride=length, tokenizer=} → dataset of {x, y}, or nil, message, code",
  [[Windows of tokens, y one token after x. Tokens are characters, or what tokenizer:encode(text) gives. text= instead
of a path. Fields tokens, vocab_size, tokenizer (with decode).]], [[
local ds = T.data.text { text = "to be or not", length = 3 }
print(#ds, ds.tokenizer:decode(ds[1][2]))  --> 3	o b]] }

S["data.tokenizer"] = { "T.data.tokenizer(path) → tokenizer, or nil, message, code",
  [[BPE from a tokenizer.json file: of bytes, as of GPT-2 and its successors, or of characters, as of Llama, with
normal forms, lower case, Metaspace and byte_fallback. t:encode(text, {add_special=true,
split_special=true, index_base=1}) → i64 [n]; t:decode(ids, {skip_special=true, index_base=1}) → text; t:token(id),
t:id(token), #t, t:save(path). Ids count from 1 unless index_base=0. Needs Jansson and PCRE2 when perilune is
built, utf8proc for normal forms and lower case.]],
  [[
print((T.data.tokenizer("/nowhere/tokenizer.json")))  --> nil]] }

S["data.train_bpe"] = {
  "T.data.train_bpe{vocab_size, text=, files={path, …}, special=, min_count=2} → tokenizer, or nil, message, code",
  "Learns byte-level BPE from text; t:save(path) writes a tokenizer.json. See data.tokenizer.", [[
local t = T.data.train_bpe { 260, text = ("low lower lowest "):rep(9), special = { "<|end|>" } }
print(#t, t:decode(t:encode("lowest low")))  --> 260	lowest low]] }

-- ---- transforms ------------------------------------------------------------------------------------------------

local head = "local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to(\"u8\")\n"
for _, t in ipairs {
  { "compose", "{f, g, …}", "Transforms or functions one after the other.", "{ T.data.transforms.resize(4) }", "5" },
  { "resize", '(n or {h, w}, {mode="bilinear", antialias=true})',
    "Resampling; a number is for the shorter side. Modes nearest, bilinear, bicubic.", "(3)", "4" },
  { "crop", "(top, left, h, w)", "Those pixels, a view; places count from 1.", "(1, 1, 2, 3)", "2" },
  { "center_crop", "(n or {h, w})", "The middle.", "(4)", "4" },
  { "random_crop", "(n or {h, w}, {padding=0, fill=0})", "A random place.", "(5)", "5" },
  { "random_resized_crop", "(n or {h, w}, {scale={0.08, 1}, ratio={3/4, 4/3}, mode=, antialias=})",
    "A random part of random size and shape, resampled.", "(5)", "5" },
  { "random_horizontal_flip", "(p=0.5)", "Left and right exchanged with probability p.", "(1)", "8" },
  { "random_vertical_flip", "(p=0.5)", "Top and bottom exchanged with probability p.", "(1)", "8" },
  { "pad", "(n or {x, y} or {left, top, right, bottom}, value=0)", "More pixels at the sides.", "(1)", "10" },
  { "color_jitter", "{brightness=, contrast=, saturation=, hue=}",
    "Random changes of colour, in random order; v means factors of 1 - v … 1 + v, for hue a turn of -v … v.",
    "{ hue = 0.1 }", "8" },
  { "gray", "(channels=1)", "One gray channel, or three equal ones.", "()", "8" },
  { "to_tensor", "()", "u8 in 0 … 255 becomes f32 in 0 … 1.", "()", "8" },
  { "random_erasing", '{p=0.5, scale={0.02, 0.33}, ratio={0.3, 3.3}, value=0 or "random"}',
    "A random rectangle set to a value with probability p.", "()", "8" },
} do
  S["data.transforms." .. t[1]] = { ("T.data.transforms.%s%s → transform"):format(t[1], t[2]),
    t[3] .. " Called with an image [C, H, W], u8 or f32.",
    ("%sprint(T.data.transforms.%s%s(picture):size(2))  --> %s"):format(head, t[1], t[4], t[5]) }
end
S["data.transforms.normalize"] = { "T.data.transforms.normalize(mean, std) → transform",
  "(x - mean) / std of floats, by channel; numbers or lists. Right behind to_tensor() both are one pass.", [[
print(T.data.transforms.normalize(0.5, 0.5)(T.ones(1, 1, 1)):item())  --> 1.0]] }
S["data.transforms.Transform"] = { "T.data.transforms.Transform: the class of transforms",
  "A transform is called with an image; tostring tells its arguments. Any function may stand in its place.", [[
print(getmetatable(T.data.transforms.gray()) == T.data.transforms.Transform)  --> true]] }

-- ---- loading -------------------------------------------------------------------------------------------------

S["data.DataLoader"] = {
  "T.data.DataLoader(dataset, {batch_size=1, shuffle=, drop_last=, seed=, collate=, sampler=, workers=0, …}) → loader",
  [[Batches for a generic for; #loader counts them. Samples are joined by collate (data.default_collate). Also
batch_sampler=, prefetch=, worker_init=, pin_memory=, device=.
Random numbers drawn for sample i depend on the seed, the pass and i alone.
workers=n: threads, each with a Lua state of its own, which gets a copy of the dataset at the first pass: tables,
functions with their upvalues, tensors without a copy (read only from then on); modules are required anew. prefetch=2:
batches made ahead per worker. worker_init=function(k, dataset): runs first in worker k; may return a dataset in place,
with open files for example. An error in a worker is raised at the loop. loader:close() ends the threads.
loader:iter() is one pass.
device="cuda": batches are there; the next one is copied, from pinned memory, while the loop works on this one.
pin_memory: batches are in pinned memory.]],
  [[
for x in T.data.DataLoader(T.arange(5), { batch_size = 2, workers = 2 }) do print(x) end
--> {1, 2}  -- i64[2] cpu
--> {3, 4}  -- i64[2] cpu
--> {5}  -- i64[1] cpu
print(#T.data.DataLoader(T.arange(5), { batch_size = 2 }))  --> 3]] }
S["data.default_collate"] = { "T.data.default_collate{sample, …} → batch",
  "Tensors are stacked, numbers become a tensor, tables are joined field by field, anything else stays a list.", [[
print(T.data.default_collate { 1, 2 })  --> {1, 2}  -- i64[2] cpu]] }
S["data.SequentialSampler"] = { "T.data.SequentialSampler(dataset or n) → sampler", "1, 2, … n.", [[
print(T.data.SequentialSampler(3):indices())  --> {1, 2, 3}  -- i64[3] cpu]] }
S["data.RandomSampler"] = { "T.data.RandomSampler(dataset or n, {replacement=false, num_samples=n, seed=}) → sampler",
  "A random order, another one each pass.", [[
print(#T.data.RandomSampler(10, { num_samples = 4 }))  --> 4]] }
S["data.WeightedSampler"] = { "T.data.WeightedSampler(weights, n, {replacement=true, seed=}) → sampler",
  "n samples drawn by weight.", [[
print(T.data.WeightedSampler({ 0, 1 }, 3):indices())  --> {2, 2, 2}  -- i64[3] cpu]] }
S["data.BatchSampler"] = { "T.data.BatchSampler(sampler, batch_size, drop_last=false) → batch sampler",
  "Lists of sample numbers; an own one is anything with #s and s:batches().", [[
print(#T.data.BatchSampler(T.data.SequentialSampler(5), 2))  --> 3]] }

return S
