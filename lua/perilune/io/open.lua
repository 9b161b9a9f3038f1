-- SPDX-License-Identifier: MIT
--- T.open: files of tensors that are looked at, and read tensor by tensor or in parts: safetensors, in one file or in
-- shards, and GGUF.
-- @module perilune.io.open
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"
local recognize = require "perilune.io.recognize"

local fail, describe = options.fail, options.describe

local File = classes.new("File", "file")

-- ---- the two formats: { names=, describe(i) → dtype, shape, stored; part(i, start, count, dtype); close() } ------

local function safetensors(path, map)
  local file, message, code, errno = core.open_safetensors(path, map)
  if not file then return nil, message, code, errno end
  return { names = file:names(), meta = file:metadata(), describe = function(i) return file:describe(i) end,
    part = function(i, start, count) return file:part(i, start, count) end, close = function() file:close() end }
end

local function gguf(path, map)
  local file, message, code, errno = core.open_gguf(path, map)
  if not file then return nil, message, code, errno end
  local meta, kinds = file:metadata()
  return { names = file:names(), meta = meta, kinds = kinds, describe = function(i) return file:describe(i) end,
    part = function(i, start, count, dtype) return file:part(i, start, count, dtype) end,
    close = function() file:close() end }
end

-- ---- the object --------------------------------------------------------------------------------------------------

local function entry(self, who, name)
  if rawget(self, "closed") then fail("%s: the file is closed", who) end
  if type(name) ~= "string" then fail("%s: the name of a tensor is wanted, got %s", who, describe(name)) end
  local at = self.at[name]
  if at then return at[1], at[2] end
  fail("%s: %s has no tensor '%s'%s", who, self.path, name, options.nearest(name, self.names) or "")
end

--- file:has(name): whether the file has such a tensor.
function File:has(name) return self.at[name] ~= nil end

--- file:shape(name) → list of sizes.
function File:shape(name)
  local part, i = entry(self, "shape", name)
  return (select(2, part.describe(i)))
end

--- file:dtype(name) → the dtype that it is read as, and the name of its type in the file: "f16", "F8_E4M3".
function File:dtype(name)
  local part, i = entry(self, "dtype", name)
  local dtype, _, stored = part.describe(i)
  return dtype, stored
end

--- file:bytes(name) → how many bytes it has in the file.
function File:bytes(name)
  local part, i = entry(self, "bytes", name)
  return (select(4, part.describe(i)))
end

local BLOCKS
local function is_blocks(stored)
  if not BLOCKS then
    BLOCKS = {}
    for _, f in ipairs(core.block_formats()) do BLOCKS[f.name] = true end
  end
  return BLOCKS[stored]
end

-- A part, and where it is wanted.
local function read(self, who, part, i, start, count, opts)
  opts = options.check(who, opts, { "dtype", "map_location" })
  local dtype, where = opts.dtype, opts.map_location
  if dtype ~= nil and type(dtype) ~= "string" then fail("%s: dtype must be a name, got %s", who, describe(dtype)) end
  local _, _, stored = part.describe(i)
  local direct = is_blocks(stored) and (dtype == "f16" or dtype == "bf16") and dtype or nil
  local t, message, code, errno = part.part(i, start, count, direct)
  if not t then return nil, message, code, errno end
  if dtype and t:dtype() ~= dtype then t = t:to(dtype) end
  return where and t:to(where) or t
end

--- file:read(name, {dtype=, map_location=}) → tensor, or nil, message, code.
function File:read(name, opts)
  local part, i = entry(self, "read", name)
  local _, shape = part.describe(i)
  local start = {}
  for d = 1, #shape do start[d] = 0 end
  return read(self, "read", part, i, start, shape, opts)
end

-- One entry of a slice → first element (from 0), how many, and what picks from these.
local function item(key, n, d)
  if key == nil then return 0, n, {} end
  if options.integer(key) then
    key = options.integer(key)
    local at = key < 0 and key + n or key - 1
    if key == 0 or at < 0 or at >= n then fail("slice: %d is out of range for dimension %d of %d", key, d, n) end
    return at, 1, 1
  end
  if type(key) ~= "table" or #key == 1 or #key > 3 or options.stray(key) ~= nil then
    fail("slice: an entry is a position, {} for all, {from, to} or {from, to, step}, got %s", describe(key))
  end
  if #key == 0 then return 0, n, {} end
  local from, to, step = options.integer(key[1]), options.integer(key[2]), options.integer(key[3] or 1)
  if not from or not to or not step or step < 1 then fail "slice: a range has integers, and a step from 1" end
  if from < 0 then from = from + n + 1 end
  if to < 0 then to = to + n + 1 end
  if from < 1 or to > n or to < from - 1 then
    fail("slice: the range %d to %d is out of range for dimension %d of %d", key[1], key[2], d, n)
  end
  return from - 1, to - from + 1, to >= from and { 1, to - from + 1, step } or {}
end

--- file:slice(name, {entry, …}, {dtype=, map_location=}) → x[{entry, …}] of the tensor x, or nil, message, code: only
-- what is asked for is read. Entries as in indexing: a position, {} for all, {from, to}, {from, to, step}.
function File:slice(name, key, opts)
  local part, i = entry(self, "slice", name)
  if type(key) ~= "table" then fail("slice: a list of positions and ranges is wanted, got %s", describe(key)) end
  local _, shape = part.describe(i)
  if #key > #shape or options.stray(key) ~= nil then
    fail("slice: %d entries for the %d dimensions of '%s'", #key, #shape, name)
  end
  local start, count, pick, plain = {}, {}, {}, true
  for d, n in ipairs(shape) do
    start[d], count[d], pick[d] = item(key[d], n, d)
    plain = plain and type(pick[d]) == "table" and (pick[d][3] or 1) == 1
  end
  local t, message, code, errno = read(self, "slice", part, i, start, count, opts)
  if not t then return nil, message, code, errno end
  if plain then return t end
  return t[pick]:clone() -- without the elements between the steps
end

--- file:close(): the file is closed. It is, too, when the object is collected, or leaves a `local f <close>`.
function File:close()
  for _, part in ipairs(self.parts) do part.close() end
  self.closed = true
end
File.__close = File.close

function File:__tostring()
  return ("File(%s, %s, %d tensors)"):format(self.path, self.kind, #self.names)
end
function File:__len() return #self.names end

local function make(kind, path, parts, meta, kinds)
  local self = setmetatable({ kind = kind, path = path, parts = parts, names = {}, at = {}, metadata = meta,
    kinds = kinds }, File)
  for _, part in ipairs(parts) do
    for i, name in ipairs(part.names) do
      if self.at[name] then
        self:close()
        return nil, ("%s: tensor '%s' is in two parts"):format(path, name), "format"
      end
      self.names[#self.names + 1] = name
      self.at[name] = { part, i }
    end
  end
  return self
end

local function open_sharded(path, map)
  local shards = require "perilune.io.shards"
  local list, message, code = shards.find(path)
  if not list then return nil, message, code end
  if list.kind ~= "safetensors" then
    return nil, path .. ": T.open reads safetensors and GGUF; T.load reads this whole", "unsupported"
  end
  local parts = {}
  local function give_up(...)
    for _, part in ipairs(parts) do part.close() end
    return nil, ...
  end
  for _, file in ipairs(list.files) do
    local part, errno
    part, message, code, errno = safetensors(file, map)
    if not part then return give_up(message, code, errno) end
    parts[#parts + 1] = part
    message = shards.check(list, file, part.names)
    if message then return give_up(message, "format") end
  end
  return make("safetensors", path, parts, #parts == 1 and parts[1].meta or list.metadata)
end

local function open_gguf(path, map)
  local file, message, code, errno = gguf(path, map)
  if not file then return nil, message, code, errno end
  local helpers = require "perilune.io.gguf"
  local parts, list = { file }
  list, message, code = helpers.split_files(path, file.meta)
  local function give_up(...)
    for _, part in ipairs(parts) do part.close() end
    return nil, ...
  end
  if not list then return give_up(message, code) end
  if #list == 1 then return make("GGUF", path, parts, file.meta, file.kinds) end
  file.close()
  parts = {}
  for i, name in ipairs(list) do
    file, message, code, errno = gguf(name, map)
    if not file then return give_up(message, code, errno) end
    parts[i] = file
    message = helpers.wrong_part(name, file.meta, i, #list)
    if message then return give_up(message, "format") end
  end
  return make("GGUF", path, parts, parts[1].meta, parts[1].kinds)
end

-- Opens a file of tensors without reading them.
-- @tparam string path a file, an index of shards, or a folder with one of them
-- @tparam[opt] table opts `mmap=`: whether tensors may be parts of the file, true by default
-- @treturn File; or nil, message, code
--- T.open(path, {mmap=true}) → file, or nil, message, code
-- Opens safetensors (a file, an index of shards, or the folder of a model) or GGUF, reading only what it says of its
-- tensors: file.names in their order, file.metadata, file:shape(name), file:bytes(name), file:dtype(name) (and how the
-- file stores it: "F8_E4M3", "Q4_K"), file:has(name), #file. file:read(name, {dtype=, map_location=}) reads one tensor;
-- file:slice(name, {1, {2, 5}}) reads only that part, indexed as a tensor is. file.kinds: of a GGUF's metadata. A file
-- that is cut or changed while it is open gives an error, never a crash. mmap: see T.load. Close it with file:close();
-- tensors that were read stay.
--   local path = os.tmpname()
--   assert(T.save(path, { w = T.arange(12):view(3, 4) }))
--   local file = assert(T.open(path))
--   print((file:dtype "w"), table.concat(file:shape "w", ","))  --> i64	3,4
--   print(file:slice("w", { 2, { 1, 2 } }))  --> {5, 6}  -- i64[2] cpu
--   file:close()
--   os.remove(path)
local function open(path, opts)
  if type(path) ~= "string" then fail("open: the path must be a string, got %s", describe(path)) end
  local map = options.check("open", opts, { "mmap" }).mmap
  map = map == nil or options.kind("open", "mmap", "bool", map)
  local kind, message, code, errno = recognize.kind(path)
  if not kind then return nil, message, code, errno end
  if kind == "folder" or kind == "json" then return open_sharded(path, map) end
  if kind ~= "safetensors" and kind ~= "gguf" and kind ~= "unknown" then
    local text = "%s: T.open reads safetensors and GGUF, not %s files; %s reads the whole"
    return nil, text:format(path, kind, kind == "onnx" and "T.onnx.load" or "T.load or T.load_" .. kind), "unsupported"
  end
  if kind == "gguf" then return open_gguf(path, map) end
  local part
  part, message, code, errno = safetensors(path, map)
  if not part then return nil, message, code, errno end
  return make("safetensors", path, { part }, part.meta)
end

return { open = open }
