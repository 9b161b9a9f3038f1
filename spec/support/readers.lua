-- SPDX-License-Identifier: MIT
-- Every reader of files with good files to damage, for mutate.fuzz. What a build cannot read (no library for it) is not
-- in the list. Files are made here, or are in spec/fixtures; `kept` are files that were once read wrongly, or that
-- declare more than they have.

local T = require "perilune"
local mutate = require "spec.support.mutate"
local numpy = require "spec.support.numpy_writer"
local pt = require "spec.support.pt_writer"
local t7 = require "spec.support.t7_writer"
local graphs = require "spec.support.graph_texts"
local events = require "perilune.command.events"
local files = require "perilune.command.files"
local nn, data = T.nn, T.data

local fixtures = (os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/"
local function fixture(name) return mutate.read(fixtures .. name) end

-- The bytes of a file that f(path) writes.
local function bytes_of(f)
  local path = os.tmpname()
  assert(f(path))
  local s = mutate.read(path)
  os.remove(path)
  return s
end

local function write(path, bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end

-- Can it be read here?
local function readable(bytes, load)
  local path = os.tmpname()
  write(path, bytes)
  local ok = load(path) and true or false
  os.remove(path)
  return ok
end

local list = {}
local function reader(r) list[#list + 1] = r end

-- Compressed files: what they may declare is what max_bytes allows.
local MOST = 1 << 18
local function within(load)
  return function(path) return load(path, { max_bytes = MOST }) end
end

-- ---- safetensors ------------------------------------------------------------------------------------------

local function framed(header, body) return string.pack("<s8", header) .. (body or "") end
local flat = bytes_of(function(p)
  return T.save(p, { w = T.rand(3, 4), b = T.arange(5), ok = T.ones(2):gt(0), e = T.zeros(0, 3) })
end)
local nested = bytes_of(function(p)
  return T.save(p, { net = { w = T.rand(2) }, epoch = 3, name = "x\0y", list = { 1, { 2.5, true } } })
end)
local unsigned = framed('{"a":{"dtype":"U16","shape":[3],"data_offsets":[0,6]},"b":{"dtype":"U32","shape":[1,2],'
  .. '"data_offsets":[6,14]},"c":{"dtype":"U64","shape":[2],"data_offsets":[14,30]}}', ("abcdefgh"):rep(4):sub(1, 28)
  .. "\0\0")
local single = framed('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "abcd")

reader { name = "safetensors", good = { flat, nested, unsigned, single }, load = T.load, kept = {
  string.pack("<I8", 1 << 62) .. "{}", string.pack("<I8", (1 << 64) - 1) .. "{}",
  framed '{"x":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
  framed '{"x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}',
  framed '{"x":{"dtype":"U16","shape":[4611686018427387904],"data_offsets":[0,8]}}',
  framed '{"x":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}',
  framed('{"x":' .. ("["):rep(5000) .. "}"),
  "{\0\0\0\0\0\0\0\0A:" .. ("x"):rep(200), -- its length begins as JSON does, its header does not
} }
reader { name = "safetensors, tensor by tensor", good = { flat, nested, unsigned, single }, kept = {
  "{\0\0\0\0\0\0\0\0A:" .. ("x"):rep(200),
}, load = function(path)
  local file, message, code = files.open(path)
  if not file then return nil, message, code end
  for _, name in ipairs(file.names) do
    file.describe(name)
    local t
    t, message, code = file.read(name)
    if not t then return nil, message, code end
  end
  return true
end }
do -- only the header is damaged, and its length is right: what reaches the parser behind it
  local function body(s) return (s:sub(select(2, string.unpack("<s8", s)))) end
  local headers, tails = {}, {}
  for i, s in ipairs { flat, nested, unsigned } do headers[i], tails[i] = string.unpack("<s8", s), body(s) end
  reader { name = "safetensors, in parts", good = { flat, unsigned, single }, load = function(path)
    local f, message, code = T.open(path)
    if not f then return nil, message, code end
    for _, name in ipairs(f.names) do
      local key = {}
      for d, n in ipairs(f:shape(name)) do key[d] = n > 1 and { 2, n } or {} end
      local t
      t, message, code = f:slice(name, key)
      if not t then return nil, message, code end
    end
    f:close()
    return true
  end }
  reader { name = "safetensors headers", good = headers, load = T.load,
    damage = function(seed, k) return framed(mutate.damage(headers[k], seed, headers), tails[k]) end,
    wrap = function(h)
      for k, header in ipairs(headers) do if header == h then return framed(h, tails[k]) end end
    end }
end

do -- the index of a model in shards, which lie beside it
  local own = os.tmpname()
  os.remove(own)
  own = own:match "[^/]*$"
  local one, two = "shard-1-" .. own .. ".safetensors", "shard-2-" .. own .. ".safetensors"
  local index = ('{"metadata": {"total_size": 12}, "weight_map": {"a": "%s", "b": "%s"}}'):format(one, two)
  local a, b = framed('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "abcd"),
    framed('{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "abcdefgh")
  local made
  reader { name = "index of shards", good = { index }, room = 1 << 16, load = function(p)
    local folder = p:match "^(.*/)"
    if made ~= folder then
      write(folder .. one, a)
      write(folder .. two, b)
      made = folder
    end
    assert(os.rename(p, p .. ".safetensors.index.json"))
    local f = T.open(p .. ".safetensors.index.json")
    if f then f:close() end
    return T.load(p .. ".safetensors.index.json")
  end, after = function(p)
    os.remove(p .. ".safetensors.index.json")
    os.remove(made .. one)
    os.remove(made .. two)
  end }
end

-- ---- ONNX -------------------------------------------------------------------------------------------------

do
  local onnx = require "spec.onnx.writer"
  local body = { nodes = { { "Add", { "v", "w" }, { "u" } }, { "Identity", { "go" }, { "more" } } },
    inputs = { { "i", "i64", {} }, { "go", "bool", {} }, { "v", "f32", { 2 } } },
    outputs = { { "more", "bool", {} }, { "u", "f32", { 2 } } } }
  local models = {
    onnx.model { nodes = { { "Conv", { "x", "k" }, { "a" }, { pads = { 1, 1, 1, 1 }, strides = { 2, 2 } } },
      { "Flatten", { "a" }, { "b" } }, { "Gemm", { "b", "m" }, { "c" }, { transB = 1, alpha = 0.5 } },
      { "Slice", { "c", "from", "to" }, { "d" } }, { "Softmax", { "d" }, { "y" }, { axis = -1 } } },
      inputs = { { "x", "f32", { "n", 1, 4, 4 } } }, outputs = { { "y", "f32" } },
      initializers = { k = T.ones(2, 1, 3, 3), m = T.ones(3, 8), from = T.tensor({ 0 }, { dtype = "i64" }),
        to = T.tensor({ -1 }, { dtype = "i64" }) } },
    onnx.model { nodes = { { "Loop", { "n", "", "x" }, { "y" }, { body = body } } },
      inputs = { { "x", "f32", { 2 } } }, outputs = { { "y", "f32" } },
      initializers = { w = T.ones(2), n = T.tensor(3, { dtype = "i64" }) } },
  }
  local inputs = { T.ones(1, 1, 4, 4), T.ones(2) }
  reader { name = "ONNX", good = models, load = T.onnx.load }
  reader { name = "ONNX, run", good = models, slow = true, load = function(path)
    local m, message, code = T.onnx.load(path)
    if not m then return nil, message, code end
    local budget = T.memory().budget
    T.set_memory_budget(T.memory().live + (1 << 26))
    for _, x in ipairs(inputs) do
      debug.sethook(function() error "long enough" end, "", 3000000) -- a loop may be told to go on for ever
      local ok, why = pcall(T.no_grad, m, x)
      debug.sethook()
      if not ok then assert(type(why) == "string" and not why:find "attempt to", why) end
    end
    T.set_memory_budget(budget)
    return true
  end }
end

-- ---- checkpoints of T.fit -----------------------------------------------------------------------------------

-- A training that was stopped in the middle of an epoch; `resume` goes on with it.
local function training(path, resume)
  T.manual_seed(2)
  local net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
  local opt = T.optim.Adam(net:parameters(), { lr = 0.1 })
  local samples = data.TensorDataset(T.ones(4, 2), T.ones({ 4 }, { dtype = "i64" }))
  local stop = 0
  return T.fit(net, { train = data.DataLoader(samples, { batch_size = 2 }), optimizer = opt, epochs = 2, quiet = true,
    scheduler = T.optim.lr_scheduler.StepLR(opt, { step_size = 1 }), metrics = "accuracy", resume = resume,
    checkpoint = { path = path, every = 1 }, callbacks = { { on_batch = function(_, run)
      stop = stop + 1
      if resume or stop == 3 then run.stop = "here" end
    end } } })
end
do
  local checkpoint = bytes_of(function(p) return training(p) end)
  local header, at = string.unpack("<s8", checkpoint)
  local rest = checkpoint:sub(at)
  local function without(what, with)
    local from, to = header:find(what)
    return framed(header:sub(1, from - 1) .. with .. header:sub(to + 1), rest)
  end
  reader { name = "checkpoints of T.fit", good = { checkpoint }, slow = true, room = 1 << 22,
    kept = { without("s5:batchi%d+;", "s5:batchb1"), without("s5:epochi%d+;", ""), without("s5:total", "s5:tatol"),
      without("s4:stepi", "s4:stepi-") },
    damage = function(seed)
      if seed % 4 == 0 then return mutate.damage(checkpoint, seed) end
      return framed(mutate.damage(header, seed), rest)
    end,
    load = function(path)
      local ok, h, why, code = pcall(training, path, true)
      os.remove(path .. ".best")
      if ok then return h, why, code end
      -- a state that fits no object is refused by that object, in its own words
      if tostring(h):find("attempt to", 1, true) or tostring(h):find("lua/perilune/", 1, true) then error(h, 0) end
      return nil, h, "format"
    end }
end

-- ---- npy, npz ---------------------------------------------------------------------------------------------

local head = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
local arrays = { numpy.npy(head, ("abcd"):rep(6)), numpy.npy(head:gsub("False", "True"), ("abcd"):rep(6), 2) }
for i, descr in ipairs { "<u2", "<u4", "<u8", ">i4", "|b1", "<f2", ">f8" } do
  local size = tonumber(descr:sub(3))
  arrays[2 + i] = numpy.npy(head:gsub("<f4", descr), ("\1\0\0\0\0\0\0\0"):rep(6):sub(1, 6 * size):sub(-6 * size),
    i % 3 + 1)
end
reader { name = "npy", good = arrays, load = T.load_npy, kept = {
  numpy.npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"),
  numpy.npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
  "\x93NUMPY\2\0" .. string.pack("<I4", 0xffffffff) .. "{",
} }

local zipped = { numpy.zip { { "a.npy", arrays[1] }, { "b.npy", arrays[4] } } }
if readable(fixture "arrays.npz", T.load_npz) then zipped[2] = fixture "arrays.npz" end
reader { name = "npz", good = zipped, load = within(T.load_npz), room = 2 * MOST, kept = {
  numpy.zip { { "a.npy", arrays[1], { size = 0xffffffff, packed = 0xffffffff } } },
  numpy.zip { { "a.npy", arrays[1], { size = 0x7fffffff, method = 8 } } },
} }
reader { name = "npz members", good = arrays, load = within(T.load_npz), room = 2 * MOST, all_may_pass = true,
  wrap = function(bytes) return numpy.zip { { "a.npy", bytes } } end }

-- ---- IDX --------------------------------------------------------------------------------------------------

local idx = { "\0\0\8\2" .. string.pack(">I4I4", 3, 4) .. "abcdefghijkl", "\0\0\13\1" .. string.pack(">I4ff", 2, 1, 2) }
reader { name = "IDX", good = idx, load = within(T.load_idx), room = MOST, kept = {
  "\0\0\8\3" .. string.pack(">I4I4I4", 0xffffffff, 0xffffffff, 0xffffffff),
  "\0\0\8\1" .. string.pack(">I4", 0x7fffffff),
} }
local gzipped = bytes_of(function(p)
  write(p, "\0\0\8\2" .. string.pack(">I4I4", 100, 40) .. ("abcd"):rep(1000))
  return os.execute(("gzip -nc '%s' > '%s.gz' && mv '%s.gz' '%s'"):format(p, p, p, p))
end)
if readable(gzipped, T.load_idx) then
  reader { name = "IDX, gzipped", good = { gzipped }, load = within(T.load_idx), room = 2 * MOST }
end

-- ---- pictures ---------------------------------------------------------------------------------------------

local pictures = { fixture "pixels.png", fixture "palette.png", fixture "gray16.png" }
if readable(pictures[1], T.load_image) then
  local load = within(T.load_image)
  local huge = pictures[1]:sub(1, 16) .. string.pack(">I4I4", 0x7fffffff, 0x7fffffff) .. pictures[1]:sub(25)
  -- chunks with the right checksum, whatever is in them
  local function summed(bytes)
    local out, at = { bytes:sub(1, 8) }, 9
    while at + 11 <= #bytes do
      local n = string.unpack(">I4", bytes, at)
      if at + 11 + n > #bytes then break end
      local chunk = bytes:sub(at + 4, at + 7 + n)
      out[#out + 1] = bytes:sub(at, at + 3) .. chunk .. string.pack(">I4", numpy.crc32(chunk))
      at = at + 12 + n
    end
    return table.concat(out) .. bytes:sub(at)
  end
  reader { name = "PNG", good = pictures, load = load, room = 8 * MOST, kept = { huge, summed(huge) } }
  reader { name = "PNG, checksums right", good = pictures, load = load, room = 8 * MOST, wrap = summed }
end
local photo = fixture "photo.jpg"
if readable(photo, T.load_image) then
  reader { name = "JPEG", good = { photo }, load = within(T.load_image), room = 8 * MOST }
end

-- ---- tables and texts -------------------------------------------------------------------------------------

local tables = { 'a,b,c,d\n1,2.5,true,"x ""y"""\n3,,false,"multi\nline"\n-4,1e3,true,\n',
  "x;y\n1;2\n" .. ("3;4\n"):rep(50) }
reader { name = "CSV", good = tables, room = 1 << 16, load = data.csv }
local types = { a = "u8", b = "f16", c = "bool" }
reader { name = "CSV with types", good = { "a,b,c\n1,2.5,true\n3,4,false\n" }, room = 1 << 16,
  load = function(path)
    local c, why, code = data.csv(path)
    if not c then return c, why, code end
    for name in pairs(types) do if not c.columns[name] then return c end end
    return data.csv(path, { types = types, columns = { "a", "b", "c" } })
  end }
reader { name = "texts", good = { ("some text "):rep(20) }, all_may_pass = true, room = 1 << 16,
  load = function(path) return data.text { path, length = 120 } end }

-- What a tokenizer's file is asked for.
local function load_tokenizer(path, opts)
  local t, why, kind = data.tokenizer(path, opts)
  if not t then return nil, why, kind end
  local ids
  ids, why, kind = t:encode("The king's 12 <mask> <|endoftext|>\n\n\240\159\152\128 \255")
  if not ids then return nil, why, kind end
  t:decode(ids)
  local e
  e, why, kind = t({ "The king's  12 \xFF\u{4F60}e\u{301}", "" },
    { pair = { "a", "b<mask>" }, full = true, padding = true, truncation = false })
  if not e then return nil, why, kind end
  t:decode(e.input_ids, { skip_special = false })
  local stream = t:stream {}
  for _, id in ipairs(ids:numel() > 0 and ids:totable() or {}) do stream(id) end
  return t
end

local tokenizers = {}
for _, name in ipairs { "gpt2.json", "split.json", "llama.json", "metaspace.json" } do
  local json = fixture(name)
  if readable(json, data.tokenizer) then tokenizers[#tokenizers + 1] = json end
end
for _, kind in ipairs(require("spec.fixtures.text.tokenizer_kinds").kinds) do
  if #kind.pairs > 0 and kind.json:find '"vocab":' then tokenizers[#tokenizers + 1] = kind.json end
end
local forms = fixture("gpt2.json"):gsub('"normalizer":null', (([["normalizer":{"type":"Sequence","normalizers":[
  {"type":"NFKD"},{"type":"StripAccents"},{"type":"Lowercase"},{"type":"Strip","strip_left":true,"strip_right":true},
  {"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}]}]]):gsub("%%", "%%%%")), 1)
if readable(forms, data.tokenizer) then tokenizers[#tokenizers + 1] = forms end
if #tokenizers > 0 then
  -- the vocabulary is most of a file: what is around it is damaged as often
  local function parts(json)
    local from, to = json:match '"vocab": ?()[%[{].-[%]}]()[,}]'
    local merges_from, merges_to = json:match('"merges": ?()%b[]()', to)
    if not merges_from then merges_from, merges_to = to, to end
    return { json:sub(1, from - 1), json:sub(from, to - 1), json:sub(to, merges_from - 1),
      json:sub(merges_from, merges_to - 1), json:sub(merges_to) }
  end
  local pieces = {}
  for k, json in ipairs(tokenizers) do pieces[k] = parts(json) end
  reader { name = "tokenizer.json", good = tokenizers, slow = true, room = 1 << 22,
    damage = function(seed, k)
      if seed % 4 == 0 then return mutate.damage(tokenizers[k], seed, tokenizers) end
      local p = { table.unpack(pieces[k]) }
      local which = seed // 4 % 6 + 1
      if which == 6 then which = 1 end
      p[which] = mutate.damage(p[which], seed)
      return table.concat(p)
    end,
    load = load_tokenizer }
end

do
  local function field(n, bytes) return string.char(n << 3 | 2) .. string.pack("s1", bytes) end
  local function model(kind, normalizer)
    local out = {}
    for i, p in ipairs { "<unk>", "<s>", "</s>", "<0x0A>", "▁", "k", "i", "ki", "▁ki", "12" } do
      out[i] = field(1, field(1, p) .. "\x15" .. string.pack("<f", -i) .. "\x18"
        .. string.char(({ 2, 3, 3, 6 })[i] or 1))
    end
    return table.concat(out) .. field(2, "\x18" .. string.char(kind) .. "\x98\x02\1") .. field(3, normalizer)
  end
  reader { name = "tokenizer of sentencepiece", load = load_tokenizer, room = 1 << 20,
    good = { model(1, ""), model(2, "\x18\0\x20\0") } }
  local rows = {}
  local digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
  for b = 0, 255 do
    local hi, lo = b >> 2, (b & 3) << 4
    rows[b + 1] = digits:sub(hi + 1, hi + 1) .. digits:sub(lo + 1, lo + 1) .. "== " .. b
  end
  reader { name = "tokenizer of tiktoken", room = 1 << 20, good = { table.concat(rows, "\n") .. "\naW4= 256\n" },
    load = function(path) return load_tokenizer(path, { encoding = "cl100k_base", special = {} }) end }
end

-- ---- TensorBoard's events ---------------------------------------------------------------------------------

do
  local dir = os.tmpname()
  os.remove(dir)
  local log = T.log.tensorboard(dir)
  for step = 1, 3 do log:scalar("loss", 1 / step, step) end
  log:close()
  local pipe = assert(io.popen(("cat '%s'/events*; rm -r '%s'"):format(dir, dir)))
  local file = pipe:read "a"
  pipe:close()
  local function masked(x)
    local crc = T.core.crc32c(x)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
  end
  local function record(s, length)
    local n = string.pack("<I8", length or #s)
    return n .. string.pack("<I4", masked(n)) .. s .. string.pack("<I4", masked(s))
  end
  local at, records = 1, {}
  while at < #file do
    local n = string.unpack("<I8", file, at)
    records[#records + 1] = file:sub(at + 12, at + 11 + n)
    at = at + 16 + n
  end
  -- lengths with the right checksum, and nothing behind them
  local kept = { record("x", (1 << 28) - 1), record("x", 1 << 28), record("x", 1 << 62) }
  reader { name = "TensorBoard", good = { file }, load = events.summary, kept = kept }
  reader { name = "TensorBoard events", good = records, load = events.summary, all_may_pass = true, wrap = record }
end

-- ---- torch7 -----------------------------------------------------------------------------------------------

do
  local good = {}
  for _, ascii in ipairs { false, true } do
    local values, t = { 1, 2, 3, 4 }, { "text", 1.5, true, { key = "value" } }
    t.self = t
    t.x = function(w) w.tensor("Float", { 2, 2 }, { 2, 1 }, 1, values) end
    t.y = function(w) w.tensor("Float", { 2 }, { 2 }, 2, values) end
    t.z = function(w) w.tensor("Byte", { 4 }, { 1 }, 1, values) end
    good[#good + 1] = t7.bytes_of(ascii, t)
    for _, kind in ipairs { "Char", "Short", "Int", "Long", "Double" } do
      local function tensor(w) w.tensor(kind, { 2, 2 }, { 2, 1 }, 1, { 1, 2, 3, 4 }) end
      good[#good + 1] = t7.bytes_of(ascii, { tensor, "s" })
    end
  end
  reader { name = "t7", good = good, load = function(p)
    local v, message, code = T.load_t7(p)
    return v == nil and message == nil or v, message, code -- a damaged file may hold nil
  end, kept = {
    string.pack("<i4i4i4", 3, 1, 0x7fffffff), string.pack("<i4i4", 2, 0x7fffffff),
    t7.bytes_of(false, { function(w) w.tensor("Float", { 1 << 40 }, { 1 }, 1, { 1 }) end }),
  } }
end

-- ---- GGUF -------------------------------------------------------------------------------------------------

do
  local good = { fixture "gguf/metadata.gguf", fixture "gguf/quantized.gguf", fixture "gguf/blocks.gguf",
    bytes_of(function(p)
    return T.save_gguf(p, { a = T.rand(2, 32), b = T.arange(3) }, { metadata = { k = "v", n = 3 }, type = "Q4_0" })
  end) }
  local kept = { "GGUF" .. string.pack("<I4I8I8", 3, 1 << 60, 0), "GGUF" .. string.pack("<I4I8I8", 3, 0, 1 << 59),
    "GGUF" .. string.pack("<I4I8I8s8I4I4I8", 3, 0, 1, "k", 9, 8, 1 << 60),
    "GGUF" .. string.pack("<I4I8I8s8I4i8I4I8", 3, 1, 0, "w", 1, 1 << 40, 0, 0),
    "GGUF" .. string.pack("<I4I8I8s8I4i8i8I4I8", 3, 1, 0, "w", 2, 256, 1 << 55, 12, 0) }
  -- a block may be some 20 times as long as a number
  reader { name = "GGUF", good = good, load = T.load_gguf, kept = kept, room = 1 << 17 }
  reader { name = "GGUF, tensor by tensor", good = good, room = 1 << 17, load = function(path)
    local f, message, code = T.open(path)
    if not f then return nil, message, code end
    for _, name in ipairs(f.names) do
      local shape, key = f:shape(name), {}
      for d, n in ipairs(shape) do key[d] = n > 1 and { 2, n } or {} end
      local t
      t, message, code = f:slice(name, key)
      if not t then return nil, message, code end
    end
    f:close()
    return true
  end }

  local function tokenizer(metadata)
    return bytes_of(function(p)
      local all = {}
      for k, v in pairs(metadata) do all["tokenizer.ggml." .. k] = v end
      all["tokenizer.chat_template"] = "{{ messages[0].content }}"
      return T.save_gguf(p, {}, { metadata = all })
    end)
  end
  local special = { "<unk>", "<s>", "</s>" }
  local function tokens(...) return { special[1], special[2], special[3], ... } end
  reader { name = "tokenizer in GGUF", load = load_tokenizer, room = 1 << 20, good = {
    tokenizer { model = "llama", tokens = tokens("▁", "k", "i", "ki", "▁ki", "<0x0A>", "<ud>"), bos_token_id = 1,
      token_type = { 2, 3, 3, 1, 1, 1, 1, 1, 6, 4 },
      scores = { 0.0, 0.0, 0.0, -4.0, -5.0, -6.0, -1.0, -2.0, 0.0, 0.0 } },
    tokenizer { model = "gpt2", pre = "llama-bpe", tokens = tokens("Ġ", "k", "i", "ki", "Ġki"), bos_token_id = 1,
      token_type = { 2, 3, 3, 1, 1, 1, 1, 1 }, merges = { "k i", "Ġ ki" }, add_eos_token = true, eos_token_id = 2 },
    tokenizer { model = "t5", tokens = tokens("▁", "k", "i", "ki", "▁ki"), token_type = { 2, 3, 3, 1, 1, 1, 1, 1 },
      unknown_token_id = 0, eos_token_id = 2, scores = { 0.0, 0.0, 0.0, -4.0, -5.0, -6.0, -1.0, -2.0 },
      remove_extra_whitespaces = true },
    tokenizer { model = "bert", tokens = tokens("▁k", "i", "▁,"), token_type = { 2, 3, 3, 1, 1, 1 }, bos_token_id = 1,
      unknown_token_id = 0, seperator_token_id = 2 } } }
end

-- ---- PyTorch's files --------------------------------------------------------------------------------------

do
  local function load(p)
    local v, message, code = T.load_pt(p, { none = 0 })
    if v == nil then v, message, code = T.load_pt(p, { none = 0, unsupported = "skip" }) end
    return v == false or v, message, code -- a damaged file may hold false
  end
  local real = { fixture "pt/zip.pt", fixture "pt/before_zip.pt", fixture "pt/protocol4.pt" }
  local floats = string.pack("<ffff", 1, 2, 3, 4)
  local function storage(kind, key, n, more) return pt.storage(kind, key, n, more) end
  local small = pt.dict(pt.text "a", pt.tensor(storage("Float", "0", 4), 0, { 2, 2 }, { 2, 1 }, true), pt.text "b",
    pt.list(pt.tensor(storage("Float", "0", 4), 1, { 3 }, { 1 }), pt.int(5), "N", pt.text "x"), pt.text "n",
    pt.call("numpy.core.multiarray", "_reconstruct", pt.global("numpy", "ndarray"), pt.ints { 0 }, pt.text "b")
    .. pt.tuple(pt.int(1), pt.ints { 2, 3 }, pt.call("numpy", "dtype", pt.text "i2", "\x89", "\x88")
    .. pt.tuple(pt.int(3), pt.text "<", "N", "N", "N", pt.int(-1), pt.int(-1), pt.int(0)) .. "b", "\x88",
    pt.text "abcdefghijkl") .. "b")
  local by_hand, old = pt.zip(small, { ["0"] = floats }), pt.old(small, { { "0", 4, floats } })
  local kept = {
    pt.zip(pt.tensor(storage("Float", "0", 4), 0, { 1 << 30 }, { 1 }), { ["0"] = floats }),
    pt.zip(pt.tensor(storage("Float", "0", 0x7fffffff), 0, { 4 }, { 1 }), { ["0"] = floats }),
    pt.old(pt.tensor(storage("Float", "0", 0x7fffffff), 0, { 4 }, { 1 }), { { "0", 0x7fffffff, floats } }),
    pt.zip(("]"):rep(5000) .. ("a"):rep(4999)), pt.zip "X\xff\xff\xff\x7f",
    pt.zip "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
  }
  reader { name = "pt", good = { by_hand, old }, load = load, kept = kept }
  reader { name = "pt of torch.save", good = real, load = load, slow = true }
  -- only the pickle is damaged: what reaches the machine
  local pickles = { small }
  for _, s in ipairs(real) do
    local from = s:find("data.pkl", 1, true)
    if from and s:sub(1, 2) == "PK" then
      local n = string.unpack("<I4", s, from - 30 + 22)
      if n > 0 then pickles[#pickles + 1] = s:sub(from + 8 + string.unpack("<I2", s, from - 12)) end
    end
  end
  reader { name = "pickles", good = { small }, load = load, damage = function(seed)
    return pt.zip(mutate.damage(small, seed, pickles), { ["0"] = floats })
  end, wrap = function(pickle) return pt.zip(pickle, { ["0"] = floats }) end }
end

-- ---- graphs -----------------------------------------------------------------------------------------------

do
  local texts, by_text = graphs.make()
  -- a text is at home in the file of its tensors: named by its last line, which is no part of the text
  local function named(text, k) return text .. "\n#" .. k end
  local good = {}
  for k, text in ipairs(texts) do good[k] = named(text, k) end
  reader { name = "graphs", good = good, room = 1 << 24, slow = true,
    damage = function(seed, k)
      local lines = { texts[k], texts[k], texts[seed // 7 % #texts + 1] }
      return named(mutate.damage_text(lines, seed), k)
    end,
    load = function(path)
      local text, k = mutate.read(path):match "^(.*)\n#(%d+)$"
      local is_graph, problem = graphs.try(text, by_text[tonumber(k)])
      return is_graph, problem, "format"
    end }

  -- The reader of libperilune, in C: what it takes Lua's takes, and the other way round. Then it is planned.
  local folder
  reader { name = "graphs, in C", good = good, room = 1 << 24, slow = true,
    damage = function(seed, k)
      local lines = { texts[k], texts[k], texts[seed // 7 % #texts + 1] }
      return named(mutate.damage_text(lines, seed), k)
    end,
    load = function(path)
      local text, k = mutate.read(path):match "^(.*)\n#(%d+)$"
      if not folder then
        folder = path .. "-c"
        for i, with in ipairs(by_text) do write(("%s%d.safetensors"):format(folder, i), with.file) end
      end
      local own = folder .. k
      write(own, text)
      -- a graph with free sizes is built for others than the example's, too
      local sizes = text:find("\nsize ", 1, true) and { batch = 2, height = 9, n = 3 } or {}
      local program, message, code = T.core.deploy_program(own, nil, nil, nil, sizes)
      os.remove(own)
      local read = program ~= nil or code == "unsupported"
      local taken, problem = graphs.taken(text, by_text[tonumber(k)])
      if read ~= taken then
        error(("one takes it, one does not: C's %s, Lua's %s"):format(read and "reader" or message,
          problem or "reader"), 0)
      end
      return read or nil, message, code
    end,
    after = function()
      for i in ipairs(by_text) do os.remove(("%s%d.safetensors"):format(folder, i)) end
    end }
  local path = os.tmpname()
  local g = T.graph()
  g:outputs { g:input("x", { 2, 3 }) * T.rand(2, 3) + T.rand(3) }
  assert(T.save_graph(path, g))
  local text, bytes = mutate.read(path), mutate.read(path .. ".safetensors")
  os.remove(path)
  os.remove(path .. ".safetensors")
  reader { name = "graphs' tensors", good = { bytes }, load = function(p) -- the damaged file is that of the tensors
    local to = p .. ".graph"
    write(to, text)
    assert(os.rename(p, to .. ".safetensors"))
    return T.load_graph(to)
  end, after = function(p)
    os.remove(p .. ".graph")
    os.remove(p .. ".graph.safetensors")
  end }
end

return list
