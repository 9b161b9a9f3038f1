-- SPDX-License-Identifier: MIT
--- T.save and T.load: tensors in safetensors files, which other programs read too.
--
-- A flat table of tensors is written as it is. Nested tables and plain values (numbers, strings, booleans) are kept as
-- well: tensors under their path ("model.1.weight"), the rest as data in the file's metadata. Loading runs no code.
-- @module perilune.io
local core = require "perilune.core"
local options = require "perilune.options"
local base = require "perilune.nn.module"
local classes = require "perilune.classes"
local surface = require "perilune.surface"
local recognize = require "perilune.io.recognize"

local fail, describe = options.fail, options.describe
local io_ = {}

local TREE = "perilune.tree" -- the metadata key of the plain data
local MAX_DEPTH = 100

-- ---- plain data as text ------------------------------------------------------------------------------
-- One letter and a value: i<integer>; f<float, exact>; s<length>:<bytes> b1 b0 T<length>:<tensor's name>
-- t<pairs of key and value>e. Bytes outside printable ASCII are written \xx, as the file must be UTF-8.

local function escape(s)
  return (s:gsub("[%c\\\127-\255]", function(c) return ("\\%02x"):format(c:byte()) end))
end

local function unescape(s)
  return (s:gsub("\\(%x%x)", function(h) return string.char(tonumber(h, 16)) end))
end

local function put_text(out, letter, s)
  s = escape(s)
  out[#out + 1] = letter .. #s .. ":" .. s
end

local function put_number(out, v)
  if math.type(v) == "integer" then
    out[#out + 1] = "i" .. v .. ";"
  else
    out[#out + 1] = "f" .. (v ~= v and "nan" or v == math.huge and "inf" or v == -math.huge and "-inf" or
      ("%a"):format(v)) .. ";"
  end
end

-- Keys in a fixed order, so that equal tables give equal files: the sequence, then numbers, then names.
local function sorted_keys(t)
  local keys = {}
  for key in next, t do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    local na, nb = type(a) == "number", type(b) == "number"
    if na ~= nb then return na end
    if type(a) == type(b) and type(a) ~= "boolean" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

-- Modules, optimizers and the like are objects: their fields would be saved, and be no object when loaded.
local function refuse_object(v, at, who)
  local meta = getmetatable(v)
  local module = base.is_module(v)
  if not module and not (meta and classes.all[meta]) then return end
  local short = at:match "[^.]+$"
  local state = type(v.state_dict) == "function"
    and ("; save %s:state_dict(), and load it by %s:load_state_dict(…)"):format(short, short) or ""
  fail(who .. ": '%s' is %s %s, of which a file would get the fields%s", at, module and "the module" or "an object,",
    surface.class_name(v), state)
end

-- Appends v to `out` and its tensors to `names`, `tensors`. `at` is the path so far.
-- `who` names the caller in messages.
local function encode(v, at, state, depth)
  local kind = type(v)
  local out = state.out
  if kind == "userdata" then
    local name, n = at, 1
    while state.taken[name] do -- {["a.b"] = x, a = {b = y}}
      n = n + 1
      name = at .. "#" .. n
    end
    state.taken[name] = true
    state.names[#state.names + 1] = name
    state.tensors[#state.tensors + 1] = v
    put_text(out, "T", name)
  elseif kind == "number" then
    put_number(out, v)
  elseif kind == "string" then
    put_text(out, "s", v)
  elseif kind == "boolean" then
    out[#out + 1] = v and "b1" or "b0"
  elseif kind == "table" then
    if depth > MAX_DEPTH then
      fail(state.who .. ": '%s' is nested deeper than %d tables (or contains itself)", at, MAX_DEPTH)
    end
    refuse_object(v, at, state.who)
    out[#out + 1] = "t"
    for _, key in ipairs(sorted_keys(v)) do
      if type(key) ~= "string" and type(key) ~= "number" and type(key) ~= "boolean" then
        fail(state.who .. ": a key in '%s' is %s; only strings, numbers and booleans can be saved", at, describe(key))
      end
      encode(key, at, state, depth)
      encode(v[key], at == "" and tostring(key) or at .. "." .. tostring(key), state, depth + 1)
    end
    out[#out + 1] = "e"
  else
    fail(state.who .. ": '%s' is %s; tensors, tables, strings, numbers and booleans can be saved", at, describe(v))
  end
end

local function is_flat(t)
  for key, v in next, t do
    if type(key) ~= "string" or type(v) ~= "userdata" then return false end
  end
  return true
end

-- The value at s[at], and the position behind it; nil when the text is broken.
local function decode(s, at, tensors, depth)
  local letter = s:sub(at, at)
  if letter == "i" or letter == "f" then
    local text, stop = s:match("^([^;]*);()", at + 1)
    if not text then return nil end
    if letter == "i" then return math.tointeger(tonumber(text)), stop end
    local special = { inf = math.huge, ["-inf"] = -math.huge, nan = 0 / 0 }
    local v = special[text] or tonumber(text)
    return v, stop
  elseif letter == "s" or letter == "T" then
    local n, start = s:match("^(%d%d?%d?%d?%d?%d?%d?%d?%d?):()", at + 1)
    n = tonumber(n)
    if not n or start + n - 1 > #s then return nil end
    local text = unescape(s:sub(start, start + n - 1))
    if letter == "T" then text = tensors[text] end
    return text, start + n
  elseif letter == "b" then
    local v = s:sub(at + 1, at + 1)
    if v ~= "0" and v ~= "1" then return nil end
    return v == "1", at + 2
  elseif letter == "t" and depth <= MAX_DEPTH + 1 then
    local t = {}
    at = at + 1
    while s:sub(at, at) ~= "e" do
      local key, value
      key, at = decode(s, at, tensors, MAX_DEPTH + 2)
      if key == nil or key ~= key then return nil end
      value, at = decode(s, at, tensors, depth + 1)
      if value == nil then return nil end
      t[key] = value
    end
    return t, at + 1
  end
  return nil
end

--- A value as text and a list of the tensors in it with their names; io_.from_text is the inverse, and runs no code.
function io_.to_text(who, v)
  local state = { who = who, out = {}, names = {}, tensors = {}, taken = {} }
  encode(v, "", state, 1)
  return table.concat(state.out), state.names, state.tensors
end

--- text, name → tensor → the value; nil when the text is broken.
function io_.from_text(text, tensors)
  local ok, v, stop = core.attempt(decode, text, 1, tensors, 1)
  if ok and v ~= nil and stop == #text + 1 then return v end
  return nil
end

-- ---- the two functions -------------------------------------------------------------------------------

-- Who writes files of these endings, which would be safetensors under a wrong name.
local TORCH = "PyTorch (which reads .safetensors, too: safetensors.torch.load_file)"
local WRITERS = { pt = TORCH, pth = TORCH, gguf = "T.save_gguf", onnx = "T.onnx.save", npz = "T.save_npz",
  npy = "T.save_npy", png = "T.save_image", jpg = "T.save_image", jpeg = "T.save_image" }

-- Writes a table of tensors (nested, with plain values among them, if you like) to a safetensors file:
-- into a temporary file beside it, flushed to disk, then renamed, so the old file stays good until then.
-- @tparam string path
-- @tparam table t for example `net:state_dict()`, or `{net = …, optimizer = opt:state_dict(), epoch = 3}`
-- @tparam[opt] table opts `metadata={key = "text"}`: kept in the file's header
-- @treturn boolean true; or nil, message, code ("io") when the file cannot be written
--- T.save(path, tables of tensors, {metadata=}) → true, or nil and a message
-- Writes a safetensors file; T.load reads it. A path that ends as files of another format do is refused:
-- T.save_gguf, T.save_npz and others write those. See docs/design/safetensors-header.md.
--   local path = os.tmpname()
--   assert(T.save(path, { w = T.ones(2) }))
--   print(T.load(path).w)  --> {1., 1.}  -- f32[2] cpu
--   os.remove(path)
function io_.save(path, t, opts)
  opts = options.check("save", opts, { "metadata" })
  if type(path) ~= "string" then
    fail("save: the path must be a string, got %s%s", describe(path),
      type(t) == "string" and "; the path comes first: T.save(path, t)" or "")
  end
  local other = WRITERS[(path:match "%.(%w+)$" or ""):lower()]
  if other then fail("save: %q: T.save writes safetensors; %s writes such files", path, other) end
  if type(t) == "table" and base.is_module(t) then
    fail("save: save net:state_dict(), not the module itself")
  end
  if type(t) ~= "table" then
    fail("save: a table of tensors is wanted, got %s%s", describe(t),
      core.is_tensor(t) and "; T.save(path, { x = x }), or T.save_npy(path, x)" or "")
  end
  local state, meta = { who = "save", out = {}, names = {}, tensors = {}, taken = {} }, {}
  if is_flat(t) then
    for name, v in pairs(t) do
      state.names[#state.names + 1], state.tensors[#state.tensors + 1] = name, v
    end
  else
    encode(t, "", state, 1)
    meta[1], meta[2] = TREE, table.concat(state.out)
  end
  if opts.metadata ~= nil then
    if type(opts.metadata) ~= "table" then fail("save: metadata must be a table of strings") end
    for _, key in ipairs(sorted_keys(opts.metadata)) do
      local v = opts.metadata[key]
      if type(key) ~= "string" or type(v) ~= "string" then
        fail("save: metadata must be strings by name; '%s' is %s", tostring(key), describe(v))
      end
      if key == TREE then fail("save: the metadata key '%s' is taken", TREE) end
      meta[#meta + 1], meta[#meta + 2] = key, v
    end
  end
  return core.save_safetensors(path, state.names, state.tensors, meta)
end

local function load_safetensors(path, opts)
  local where = opts.map_location
  local tensors, names, meta, errno = core.load_safetensors(path, opts.mmap ~= false)
  if not tensors then return nil, names, meta, errno end
  if where then
    for name, t in pairs(tensors) do tensors[name] = t:to(where) end
  end
  local tree = meta[TREE]
  if not tree then
    local out = base.ordered_dict(names)
    for name, v in pairs(tensors) do out[name] = v end
    return out, meta
  end
  meta[TREE] = nil
  local ok, t, stop = core.attempt(decode, tree, 1, tensors, 1)
  if not ok or type(t) ~= "table" or stop ~= #tree + 1 then
    return nil, path .. ": the plain data in the header is malformed", "format"
  end
  return t, meta
end

local load_file

-- A folder or an index: all shards, one after another; nothing if one of them fails.
local function load_shards(path, opts)
  local shards = require "perilune.io.shards"
  local list, message, code = shards.find(path)
  if not list then return nil, message, code end
  if not list.wanted then return load_file(list.files[1], opts, true) end
  local order, all = {}, {}
  for _, file in ipairs(list.files) do
    local part, why, kind, errno = load_file(file, opts, true)
    if part == nil then return nil, why, kind, errno end
    if type(part) ~= "table" then return nil, file .. ": a shard that is no table of tensors", "format" end
    local names = {}
    for name, t in pairs(part) do
      if type(name) ~= "string" or not core.is_tensor(t) then
        return nil, ("%s: a shard with '%s', which is no tensor"):format(file, tostring(name)), "format"
      end
      names[#names + 1], order[#order + 1], all[name] = name, name, t
    end
    message = shards.check(list, file, names)
    if message then return nil, message, "format" end
  end
  local out = base.ordered_dict(order)
  for name, t in pairs(all) do rawset(out, name, t) end
  return out, list.metadata
end

-- Kind of file → function(path, opts) and the options that it takes. What is no kind of these is given to the reader of
-- safetensors, whose message says what it is.
local loaders = {
  safetensors = { load_safetensors, { map_location = true, mmap = true } },
  gguf = { function(path, opts) return require("perilune.io.gguf").load_gguf(path, opts) end,
    { map_location = true, dtype = true, mmap = true } },
  pt = { function(path, opts) return require("perilune.io.pt").load_pt(path, opts) end,
    { map_location = true, none = true, unsupported = true } },
}
-- which options fit is said by the shards
loaders.folder = { load_shards, { map_location = true, none = true, unsupported = true, dtype = true, mmap = true } }
loaders.json = loaders.folder

-- T.load of a path whose options are known to be such.
-- one: a file is wanted, neither an index nor a folder.
function load_file(path, opts, one)
  local kind, message, code, errno = recognize.kind(path)
  if not kind then return nil, message, code, errno end
  if one and (kind == "json" or kind == "folder") then
    return nil, path .. ": a shard that is itself an index or a folder", "format"
  end
  if kind == "onnx" then
    return nil, path .. ": an ONNX file, a module and no table of tensors; T.onnx.load reads it", "unsupported"
  end
  local row = loaders[kind] or loaders.safetensors
  for key in pairs(opts) do
    if not row[2][key] then fail("load: %s= is not for such a file (%s)", key, kind) end
  end
  return row[1](path, opts)
end

-- Reads a file of tensors, whose kind its first bytes tell: the table that was saved, or name → tensor for a file from
-- elsewhere; pairs() of a flat one goes in file order. Tensors are on the CPU, wherever they were when they were saved.
-- @tparam string path
-- @tparam[opt] table opts `map_location=`: the device on which they shall be; `none=`, `unsupported=` of PyTorch's
-- files;
-- `dtype=` of GGUF files; `mmap=` of safetensors and GGUF
-- @treturn table; or nil, message, code ("io", "format", "unsupported") for a missing or malformed file
-- @treturn table the metadata of safetensors and GGUF, key → value
--- T.load(path, {map_location=, none=, unsupported=, dtype=, mmap=true}) → tables of tensors, or nil and a message
-- Reads safetensors, what torch.save wrote (.pt, .pth, .bin; none= and unsupported= as in T.load_pt), or GGUF (dtype=
-- as in T.load_gguf), by what the file is, not by its name; a model in shards by its index
-- (model.safetensors.index.json), or by its folder. Its tensors are on the CPU, or on the device map_location. Large
-- ones of safetensors and GGUF are mapped: their pages are read when they are first used, and copied when they are
-- written, so that the file stays as it is; and before another program changes the file, they become copies. Where the
-- system does not promise to tell of changes (files of other users, network file systems), and with mmap = false, the
-- file is read.
--   local path = os.tmpname()
--   assert(T.save(path, { w = T.ones(2) }))
--   print(T.load(path).w)  --> {1., 1.}  -- f32[2] cpu
--   os.remove(path)
function io_.load(path, opts)
  if type(path) ~= "string" then fail("load: the path must be a string, got %s", describe(path)) end
  opts = options.check("load", opts, { "map_location", "none", "unsupported", "dtype", "mmap" })
  if opts.mmap ~= nil then options.kind("load", "mmap", "bool", opts.mmap) end
  if opts.map_location ~= nil then core.device.with(opts.map_location, function() end) end -- is there such a one?
  return options.with_companions(load_file(path, opts))
end

-- Reads an IDX file, gzipped or not, into a tensor of its dtype; `max_bytes` bounds the memory (4 GiB).
-- @treturn Tensor or nil, message, code
--- T.load_idx(path, {max_bytes=}) → tensor, or nil and a message
-- Reads an IDX file, as MNIST's, also gzipped; max_bytes: what it may unpack to.
--   print((T.load_idx("/nowhere/images-idx3-ubyte")))  --> nil
function io_.load_idx(path, opts)
  opts = options.check("load_idx", opts, { "max_bytes" })
  if type(path) ~= "string" then fail("load_idx: the path must be a string, got %s", describe(path)) end
  return core.load_idx(path, opts.max_bytes)
end

return io_
