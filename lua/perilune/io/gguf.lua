-- SPDX-License-Identifier: MIT
--- GGUF files: what llama.cpp and others keep quantized models in. Tensors are numbers or blocks of ggml's formats
-- (kernels/blocks.h); keys have values of stated kinds.
-- @module perilune.io.gguf
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"
local base = require "perilune.nn.module"

local fail, describe = options.fail, options.describe

local DTYPES = { f32 = true, f16 = true, bf16 = true }

local function check_path(who, path)
  if type(path) ~= "string" then fail("%s: the path must be a string, got %s", who, describe(path)) end
end

-- ---- models in several files -------------------------------------------------------------------------------------

-- NAME-00001-of-00003.gguf and so on, as llama.cpp splits them: the paths of all, in order, {path} for a file that is
-- whole; nil, message, code where others cannot be found by this one's name.
local function split_files(path, meta)
  local count = meta["split.count"]
  if math.type(count) ~= "integer" or count <= 1 then return { path } end
  local name, no, of = path:match "^(.*)%-(%d%d%d%d%d)%-of%-(%d%d%d%d%d)%.gguf$"
  local this = math.type(meta["split.no"]) == "integer" and meta["split.no"] + 1
  if not name or tonumber(of) ~= count or tonumber(no) ~= this then
    local text = "%s: part %s of %d of a model; the others are found by names as NAME-00001-of-%05d.gguf"
    return nil, text:format(path, this or "?", count, count), "format"
  end
  local list = {}
  for i = 1, count do list[i] = ("%s-%05d-of-%05d.gguf"):format(name, i, count) end
  return list
end

-- What is wrong with part i of count; nil if nothing is.
local function wrong_part(path, meta, i, count)
  if count > 1 and (meta["split.count"] ~= count or meta["split.no"] ~= i - 1) then
    return ("%s: is not part %d of %d, as its name says"):format(path, i, count)
  end
end

-- ---- reading -----------------------------------------------------------------------------------------------------

-- A tensor that stays in blocks: format, blocks [rows, bytes of a row], and its sizes as numbers.
local Blocks = classes.new("Blocks", "blocks")
function Blocks:shape() return table.move(self.sizes, 1, #self.sizes, 1, {}) end
function Blocks:size(d) return self.sizes[d] end
function Blocks:numel()
  local n = 1
  for _, size in ipairs(self.sizes) do n = n * size end
  return n
end
function Blocks:numbers()
  return core.dequantize_blocks(self.blocks, { format = self.format }):view(self.sizes)
end
local function is_blocks(v) return getmetatable(v) == Blocks end

local function take(file, i, shape, stored, formats, o)
  local format = formats[stored]
  if o.blocks and format and format.reads then
    local t, message, code, errno = file:bytes(i)
    if not t then return nil, message, code, errno end
    return setmetatable({ format = stored, blocks = t, sizes = shape }, Blocks)
  end
  local start = {}
  for d = 1, #shape do start[d] = 0 end
  return file:part(i, start, shape, format and o.dtype or nil)
end

-- The tensors of one file into `out`, their names to the end of `order`. → metadata, kinds; or nil, message, code
local function read_into(out, order, file, formats, o)
  for i, name in ipairs(file:names()) do
    local _, shape, stored = file:describe(i)
    local t, message, code, errno = take(file, i, shape, stored, formats, o)
    if not t then return nil, message, code, errno end
    if out[name] ~= nil then return nil, ("tensor '%s' is in two parts"):format(name), "format" end
    order[#order + 1], out[name] = name, o.where and t:to(o.where) or t
  end
  return file:metadata()
end

-- A whole file; o: dtype, where, blocks (quantized tensors stay Blocks). → tensors in order, metadata, kinds; or nil,
-- message, code
local function read(path, o)
  local formats, all, order = {}, {}, {}
  for _, f in ipairs(core.block_formats()) do formats[f.name] = f end
  local file, message, code, errno = core.open_gguf(path, o.map)
  if not file then return nil, message, code, errno end
  local meta, kinds, parts
  local opened = path
  parts, message, code = split_files(path, (file:metadata()))
  if not parts then
    file:close()
    return nil, message, code
  end
  for i, part in ipairs(parts) do
    if part ~= opened then
      file:close()
      opened = part
      file, message, code, errno = core.open_gguf(part, o.map)
      if not file then return nil, message, code, errno end
    end
    local m, k, why, number = read_into(all, order, file, formats, o)
    if not m then
      file:close()
      return nil, k, why, number
    end
    message = wrong_part(part, m, i, #parts)
    if message then
      file:close()
      return nil, message, "format"
    end
    if i == 1 then meta, kinds = m, k end
  end
  file:close()
  local out = base.ordered_dict(order)
  for name, t in pairs(all) do rawset(out, name, t) end
  return out, meta, kinds
end

-- Reads a whole GGUF file.
-- @tparam[opt] table opts `dtype="f32"`, "f16" or "bf16": what quantized tensors become; `map_location=`; `mmap=true`
-- @treturn table name → tensor, in the file's order; the metadata; the kinds of its values; or nil, message, code
--- T.load_gguf(path, {dtype="f32", map_location=, mmap=true}) → {name = tensor}, metadata, kinds; or nil, message, code
-- Reads a GGUF file, version 2 or 3. Quantized tensors become numbers of dtype (f32, f16 or bf16), others keep theirs;
-- shapes are as PyTorch has them, the fastest dimension last. metadata: key → value; integers that Lua does not have
-- (u64 from 2^63) are texts of their digits. kinds: key → "u32", "f32", "text", "[i32]" …, for T.save_gguf. mmap: as
-- in T.load. T.open reads single tensors.
--   print((T.load_gguf("/nowhere/model.gguf")))  --> nil
local function load_gguf(path, opts)
  opts = options.check("load_gguf", opts, { "dtype", "map_location", "mmap" })
  check_path("load_gguf", path)
  local dtype, where = opts.dtype, opts.map_location
  if dtype ~= nil and not DTYPES[dtype] then
    fail("load_gguf: %s", options.unknown("dtype", dtype, { "f32", "f16", "bf16" }))
  end
  if where ~= nil then core.device.with(where, function() end) end
  local map = opts.mmap == nil or options.kind("load_gguf", "mmap", "bool", opts.mmap)
  return options.with_companions(read(path, { dtype = dtype, where = where, map = map }))
end

-- ---- values as bytes ---------------------------------------------------------------------------------------------

local KINDS = { u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, bool = 7, text = 8, list = 9, u64 = 10,
  i64 = 11, f64 = 12 }
local FORMS = { u8 = "<B", i8 = "<b", u16 = "<I2", i16 = "<i2", u32 = "<I4", i32 = "<i4", f32 = "<f", u64 = "<i8",
  i64 = "<i8", f64 = "<d" }
local RANGES = { u8 = { 0, 255 }, i8 = { -128, 127 }, u16 = { 0, 65535 }, i16 = { -32768, 32767 },
  u32 = { 0, 0xffffffff }, i32 = { -2147483648, 2147483647 }, u64 = { 0, math.maxinteger },
  i64 = { math.mininteger, math.maxinteger } }
local U64_MAX = "18446744073709551615"

-- Digits as the 64 bits of an unsigned integer; nil if they are none.
local function unsigned(text)
  if not text:find "^%d+$" or #text > 20 or (#text == 20 and text > U64_MAX) then return nil end
  local v = 0
  for digit in text:gmatch "%d" do v = v * 10 + tonumber(digit) end
  return v
end

-- What a value is written as where nobody says: an integer as u32 or i32 if it fits, a float as f32, as GGUF's readers
-- expect them; the elements of lists are of one kind.
local function kind_of(key, v)
  local kind = type(v)
  if kind == "string" then return "text" end
  if kind == "boolean" then return "bool" end
  if math.type(v) == "integer" then
    if v >= 0 then return v <= 0xffffffff and "u32" or "u64" end
    return v >= -2147483648 and "i32" or "i64"
  end
  if kind == "number" then return "f32" end
  if kind ~= "table" then
    fail("save_gguf: the value of '%s' is %s; texts, numbers, booleans and lists of them can be saved", key,
      describe(v))
  end
  options.list("save_gguf", ("the value of '%s'"):format(key), v)
  if #v == 0 then fail("save_gguf: '%s' is an empty list; kinds = { [%q] = \"[text]\" } says of what", key, key) end
  local all, long = nil, false
  for _, x in ipairs(v) do
    local one = kind_of(key, x)
    if one == "u32" or one == "i32" or one == "u64" or one == "i64" then
      long = long or x < -2147483648 or x > 2147483647
      one = "i32"
    end
    if all == nil or (all == "i32" and one == "f32") then all = one end
    if one ~= all and not (all == "f32" and one == "i32") then
      fail("save_gguf: the list '%s' has values of different kinds, %s and %s", key, all, one)
    end
  end
  return "[" .. (all == "i32" and long and "i64" or all) .. "]"
end

local encode

local function encode_list(out, key, v, kind)
  options.list("save_gguf", ("the value of '%s'"):format(key), v)
  local inner = kind:sub(2, -2)
  local number = KINDS[inner:sub(1, 1) == "[" and "list" or inner]
  if not number then fail("save_gguf: '%s' is no kind of value of GGUF ('%s')", kind, key) end
  out[#out + 1] = string.pack("<I4I8", number, #v)
  for _, x in ipairs(v) do encode(out, key, x, inner) end
end

function encode(out, key, v, kind)
  local function wrong() fail("save_gguf: the value of '%s', %s, is no %s", key, describe(v), kind) end
  if kind:find "^%[.*%]$" then
    encode_list(out, key, v, kind)
  elseif kind == "text" then
    if type(v) ~= "string" then wrong() end
    if not utf8.len(v) then fail("save_gguf: the value of '%s' is not UTF-8", key) end
    out[#out + 1] = string.pack("<s8", v)
  elseif kind == "bool" then
    if type(v) ~= "boolean" then wrong() end
    out[#out + 1] = v and "\1" or "\0"
  elseif kind == "f32" or kind == "f64" then
    if type(v) ~= "number" or kind == "f32" and v - v == 0 and math.abs(v) >= 0x1.ffffffp127 then wrong() end
    out[#out + 1] = string.pack(FORMS[kind], v)
  elseif RANGES[kind] then
    local n = kind == "u64" and type(v) == "string" and unsigned(v) or options.integer(v)
    if not n or (type(v) ~= "string" and (n < RANGES[kind][1] or n > RANGES[kind][2])) then wrong() end
    out[#out + 1] = string.pack(FORMS[kind], n)
  else
    fail("save_gguf: '%s' is no kind of value of GGUF ('%s')", tostring(kind), key)
  end
end

-- In a given order, or general.architecture first, as others write it, then by name: equal tables give equal files.
local function encode_all(meta, kinds, order)
  local keys, out = {}, {}
  for key in pairs(meta) do
    if type(key) ~= "string" or key == "" or #key > 65535 or not utf8.len(key) then
      fail("save_gguf: keys of the metadata are texts in UTF-8, got %s", describe(key))
    end
    keys[#keys + 1] = key
  end
  local function first(a, b)
    local x, y = a == "general.architecture", b == "general.architecture"
    if x ~= y then return x end
    return a < b
  end
  if order then keys = order else table.sort(keys, first) end
  for _, key in ipairs(keys) do
    local kind = kinds[key] or kind_of(key, meta[key])
    if type(kind) ~= "string" then fail("save_gguf: the kind of '%s' must be text, got %s", key, describe(kind)) end
    out[#out + 1] = string.pack("<s8I4", key, KINDS[kind:sub(1, 1) == "[" and "list" or kind] or 0)
    encode(out, key, meta[key], kind)
  end
  for key in pairs(kinds) do
    if meta[key] == nil then fail("save_gguf: kinds has '%s', which metadata has not", tostring(key)) end
  end
  return #keys, table.concat(out)
end

-- ---- writing -----------------------------------------------------------------------------------------------------

local PLAIN = { f32 = "F32", f16 = "F16", bf16 = "BF16", f64 = "F64", i8 = "I8", i16 = "I16", i32 = "I32",
  i64 = "I64" }

local function plain_type(name, t)
  return PLAIN[t:dtype()] or fail("save_gguf: '%s' is %s, which GGUF does not have; convert it first", name, t:dtype())
end

-- The types that can be written: name → elements of a block, and the list of names.
local function writable()
  local set, known = {}, {}
  for _, f in ipairs(core.block_formats()) do if f.writes then set[f.name] = f.elements end end
  for _, name in pairs(PLAIN) do set[name] = 1 end
  for name in pairs(set) do known[#known + 1] = name end
  table.sort(known)
  return set, known
end

-- Is type = kind for such a tensor?
local function fits(set, kind, t)
  local n = t:dim()
  return t:is_floating_point() and n >= 2 and t:size(n) % set[kind] == 0
end

-- type → function(name, tensor) → ggml's name of the type
local function typer(kind)
  local set, known = writable()
  local function checked(name)
    if not set[name] then fail("save_gguf: %s", options.unknown("type", name, known)) end
    return name
  end
  if kind == nil then return plain_type end
  if type(kind) == "string" then
    checked(kind)
    return function(name, t) return fits(set, kind, t) and kind or plain_type(name, t) end
  end
  if type(kind) == "table" then
    return function(name, t) return kind[name] ~= nil and checked(kind[name]) or plain_type(name, t) end
  end
  if type(kind) ~= "function" then
    fail("save_gguf: type must be a name, a table or a function, got %s", describe(kind))
  end
  return function(name, t)
    local v = kind(name, t)
    if v == nil then return plain_type(name, t) end
    return checked(v)
  end
end

-- Writes a GGUF file of version 3.
-- @tparam table tensors name → tensor
-- @tparam[opt] table opts `metadata={key = value}`, `kinds={key = kind}`; `type=`: a name for all that it fits,
-- {name = type}, or function(name, tensor) → type or nil; `alignment=32`
--- T.save_gguf(path, {name = tensor}, {metadata=, kinds=, type=, alignment=32}) → true, or nil, message, code
-- Writes a GGUF file, version 3, as safely as T.save. type: what tensors become, "Q8_0", "Q5_1", "Q5_0", "Q4_1",
-- "Q4_0", "Q6_K", "Q5_K", "Q4_K", "F16", "BF16", "F32"; one for all tensors of floats with two dimensions or more and
-- rows of whole blocks, {name = type}, or a function of name and tensor; without it their dtype. The bytes are those of
-- ggml's reference; of the types with _K they are other ones that lose as little. metadata: integers become u32 or i32
-- if they fit, else u64 or i64, floats f32, lists of integers i32 or i64; kinds = {key = "f64"} says otherwise.
--   local path = os.tmpname()
--   assert(T.save_gguf(path, { w = T.ones(2, 32) * 127 }, { metadata = { ["a.name"] = "x" }, type = "Q8_0" }))
--   local t, meta = T.load(path)
--   print(t.w[1][1]:item(), meta["a.name"])  --> 127.0	x
--   os.remove(path)
local function save_gguf(path, tensors, opts)
  opts = options.check("save_gguf", opts, { "metadata", "kinds", "type", "alignment" })
  check_path("save_gguf", path)
  if type(tensors) ~= "table" then fail("save_gguf: a table of tensors is wanted, got %s", describe(tensors)) end
  for _, name in ipairs { "metadata", "kinds" } do
    if opts[name] ~= nil and type(opts[name]) ~= "table" then
      fail("save_gguf: %s must be a table, got %s", name, describe(opts[name]))
    end
  end
  local meta, kinds = {}, {}
  for key, v in pairs(opts.metadata or {}) do meta[key] = v end
  for key, v in pairs(opts.kinds or {}) do kinds[key] = v end
  local alignment = opts.alignment or meta["general.alignment"] or 32
  if not options.integer(alignment) or alignment < 1 or alignment & (alignment - 1) ~= 0 or alignment > 1 << 16 then
    fail("save_gguf: alignment must be a power of two up to 65536, got %s", describe(alignment))
  end
  if alignment ~= 32 or meta["general.alignment"] then
    meta["general.alignment"], kinds["general.alignment"] = options.integer(alignment), "u32"
  end
  local of = typer(opts.type)
  local names, list, types, raw = {}, {}, {}, {}
  for name, t in pairs(tensors) do
    if type(name) ~= "string" or not core.is_tensor(t) then
      fail("save_gguf: a table of tensors by name is wanted; it has %s under %s", describe(t), describe(name))
    end
    local n = #names + 1
    names[n], list[n], types[n], raw[n] = name, t, of(name, t), false
  end
  if getmetatable(tensors) == nil then -- no order of its own
    local at = {}
    for i, name in ipairs(names) do at[name] = i end
    table.sort(names)
    local l, ty = {}, {}
    for i, name in ipairs(names) do l[i], ty[i] = list[at[name]], types[at[name]] end
    list, types = l, ty
  end
  if type(opts.type) == "table" then
    for name in pairs(opts.type) do
      if tensors[name] == nil then fail("save_gguf: type has '%s', which is no tensor", tostring(name)) end
    end
  end
  local nkeys, bytes = encode_all(meta, kinds)
  return core.save_gguf(path, names, list, types, raw, nkeys, bytes, alignment)
end

local FILE_TYPES = { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 7, Q5_0 = 8, Q5_1 = 9, Q4_K = 14, Q5_K = 16,
  Q6_K = 18, BF16 = 32 } -- of llama.cpp

-- llama.cpp's number of what most of a model is: a type, else a dtype; nil where it has none.
local function file_type(kind, dtype) return FILE_TYPES[kind or dtype and dtype:upper()] end

--- Tensors in an order, {{name, tensor}} or {{name, blocks, format}} as they are, to a file. kind: what other tensors
-- that it fits become; nil: what they are; kinds: of values of meta that are not the usual ones. → true, or nil,
-- message, code
local function save_rows(path, rows, meta, kind, kinds)
  local of, count = typer(kind), {}
  local names, list, types, raw = {}, {}, {}, {}
  for i, row in ipairs(rows) do
    names[i], list[i], raw[i] = row[1], row[2], row[3] ~= nil
    types[i] = row[3] or (row.plain and plain_type or of)(row[1], row[2])
    if row[2]:dim() > 1 then count[types[i]] = (count[types[i]] or 0) + row[2]:numel() end
  end
  local most
  for name, n in pairs(count) do
    if not most or n > count[most] or n == count[most] and name < most then most = name end
  end
  meta["general.file_type"] = FILE_TYPES[most]
  local nkeys, bytes = encode_all(meta, kinds or {})
  return core.save_gguf(path, names, list, types, raw, nkeys, bytes, 32)
end

--- Another GGUF file with the tensors and metadata of one. kind: what tensors become that it fits; all others, and
-- without it all, keep their bytes. → true, or nil, message, code
local function rewrite(from, to, kind)
  local set = writable()
  local file, message, code, errno = core.open_gguf(from)
  if not file then return nil, message, code, errno end
  if ((file:metadata())["split.count"] or 1) ~= 1 then
    file:close()
    return nil, from .. ": a part of a model; T.load reads all parts, T.save_gguf writes them as one", "unsupported"
  end
  local names, list, types, raw = file:names(), {}, {}, {}
  local blocks = {}
  for _, f in ipairs(core.block_formats()) do blocks[f.name] = f.elements end
  for i in ipairs(names) do
    local _, shape, stored = file:describe(i)
    local start = {}
    local t
    for d = 1, #shape do start[d] = 0 end
    types[i] = stored
    if kind and kind ~= stored and #shape >= 2 and shape[#shape] % set[kind] == 0
      and (blocks[stored] or stored:find "^B?F%d+$") then
      types[i] = kind
      t, message, code, errno = file:part(i, start, shape)
      raw[i] = false
    else
      t, message, code, errno = file:bytes(i)
      raw[i] = true
      if t and #shape ~= 2 then -- the rows as they were
        local dims = table.move(shape, 1, #shape, 1, {})
        dims[#dims] = t:size(2)
        t = t:view(dims)
      end
    end
    if not t then
      file:close()
      return nil, message, code, errno
    end
    list[i] = t
  end
  local meta, kinds, order = file:metadata()
  if kind and meta["general.file_type"] then -- what most of it is
    meta["general.file_type"] = FILE_TYPES[kind] or meta["general.file_type"]
  end
  local nkeys, bytes = encode_all(meta, kinds, order)
  local ok
  ok, message, code, errno = core.save_gguf(to, names, list, types, raw, nkeys, bytes, file:alignment())
  file:close()
  return ok, message, code, errno
end

local function blocks(t, format, shape)
  return setmetatable({ format = format, blocks = t, sizes = shape }, Blocks)
end

return { load_gguf = load_gguf, read = read, is_blocks = is_blocks, blocks = blocks, save_gguf = save_gguf,
  rewrite = rewrite, save_rows = save_rows, types = writable, file_type = file_type,
  split_files = split_files, wrong_part = wrong_part }
