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
S.save_image = { "T.save_image(path, x, {quality=90}) → true, or nil, message, code",
  "Writes u8 [C, H, W] or [H, W], or floats from 0 to 1, as PNG or JPEG by the ending of the name.", [[
print((T.save_image("/nowhere/picture.png", T.zeros(3, 8, 8))))  --> nil]] }

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
S["data.random_split"] = { "T.data.random_split(dataset, {lengths or shares}, {seed=}) → list of datasets",
  "Cuts a dataset at random into parts.", [[
local parts = T.data.random_split({ 1, 2, 3, 4, 5 }, { 0.8, 0.2 }, { seed = 1 })
print(#parts[1], #parts[2])  --> 4	1]] }
for name, what in pairs { fashion_mnist = "Fashion-MNIST: clothes", mnist = "MNIST: digits" } do
  S["data." .. name] = { ('T.data.%s{split="train", root=, dtype="f32"} → dataset, or nil, message, code'):format(name),
    what .. [[ in 28 x 28 pixels, from local IDX files. Images [N, 1, 28, 28] in 0 … 1 (or u8), labels 1 … 10; fields
images, labels, classes.]], ('print((T.data.%s { root = "/nowhere" }))  --> nil'):format(name) }
end

-- ---- loading -------------------------------------------------------------------------------------------------

S["data.DataLoader"] = {
  "T.data.DataLoader(dataset, {batch_size=1, shuffle=, drop_last=, seed=, collate=, sampler=, workers=0, …}) → loader",
  [[Batches for a generic for; #loader counts them. Samples are joined by collate (data.default_collate). Also
batch_sampler=, prefetch=, worker_init=.
Random numbers drawn for sample i depend on the seed, the pass and i alone.
workers=n: threads, each with a Lua state of its own, which gets a copy of the dataset at the first pass: tables,
functions with their upvalues, tensors without a copy (read only from then on); modules are required anew. prefetch=2:
batches made ahead per worker. worker_init=function(k, dataset): runs first in worker k; may return a dataset in place,
with open files for example. An error in a worker is raised at the loop. loader:close() ends the threads.
loader:iter() is one pass.]],
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
