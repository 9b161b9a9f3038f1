-- SPDX-License-Identifier: MIT
--- Files of torch.save (.pt, .pth, .bin): data only. A pickle is a program for a small machine that may call any
-- function of Python; the machine here knows a list of names (`known` below) that stand for data, and makes that data
-- itself. It has nothing else that could be called: any other name ends the reading, and the message says which.
-- docs/design/files-of-others.md has the decisions.
-- @module perilune.io.pt
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"
local base = require "perilune.nn.module"

local fail, describe = options.fail, options.describe

local MAX_DEPTH, MAX_DIM = 1000, 16

-- What elements of a storage are in the file (engine/io/wire.c); false: nothing that perilune has.
local storages = { DoubleStorage = "F64", FloatStorage = "F32", HalfStorage = "F16", BFloat16Storage = "BF16",
  LongStorage = "I64", IntStorage = "I32", ShortStorage = "I16", CharStorage = "I8", ByteStorage = "U8",
  BoolStorage = "BOOL", ComplexFloatStorage = false, ComplexDoubleStorage = false, QInt8Storage = false,
  QInt32Storage = false, QUInt8Storage = false, QUInt4x2Storage = false, QUInt2x4Storage = false }
local dtypes = { float64 = "F64", float32 = "F32", float16 = "F16", bfloat16 = "BF16", int64 = "I64", int32 = "I32",
  int16 = "I16", int8 = "I8", uint8 = "U8", bool = "BOOL", uint16 = "U16", uint32 = "U32", uint64 = "U64",
  float8_e4m3fn = "F8_E4M3", float8_e5m2 = "F8_E5M2", float8_e4m3fnuz = "F8_E4M3FNUZ",
  float8_e5m2fnuz = "F8_E5M2FNUZ", float8_e8m0fnu = "F8_E8M0", complex32 = false, complex64 = false,
  complex128 = false, qint8 = false, qint32 = false, quint8 = false, quint4x2 = false, quint2x4 = false,
  float4_e2m1fn_x2 = false }
local SIZES = { F64 = 8, I64 = 8, U64 = 8, F32 = 4, I32 = 4, U32 = 4, F16 = 2, BF16 = 2, I16 = 2, U16 = 2 }

-- ---- failures: a table through error(), caught in load_pt -------------------------------------------------------

local function stop(message, code) error({ message = message, code = code }, 0) end
local function take(value, ...)
  if value == nil then stop(...) end
  return value, ...
end
local function bad(r, why, unsupported)
  local _, message, code = r.file:bad(why, unsupported)
  stop(message, code)
end

-- ---- values of the machine that are no data -----------------------------------------------------------------------

local Name, Storage, Mark, Lost, Array = {}, {}, {}, {}, {}
-- Array {tensor=}: one of NumPy, whose elements come after the object; the tensor takes its place when all is read.
-- Name {path=, call=, dtype=, form=}: of the list of known ones. Storage {key=, form=, n=, tensor=, offset=}.
-- Lost {why=}: a tensor that perilune cannot have, or, with unsupported = "skip", a name that is no data and what is
-- made with it; where it lies is known when all is read.

local function is(v, class) return type(v) == "table" and getmetatable(v) == class end
local function lost(why) return setmetatable({ why = why }, Lost) end

local function dict() return base.ordered_dict {} end
local function is_dict(v)
  local meta = type(v) == "table" and getmetatable(v)
  return meta and meta.__name == "StateDict"
end
local function is_list(v) return type(v) == "table" and getmetatable(v) == nil end

local KEYS = { string = true, number = true, boolean = true }
local function set(r, t, key, value)
  if not KEYS[type(key)] or key ~= key then
    bad(r, "a key of a dictionary that is neither text nor a number")
  end
  if rawget(t, key) == nil then
    local names = getmetatable(t).names
    names[#names + 1] = key
  end
  rawset(t, key, value)
end

-- Sizes or strides: a list of integers.
local function integers(r, v, what)
  if not is_list(v) or #v > MAX_DIM then bad(r, what .. " that are no list of at most 16 integers") end
  for _, n in ipairs(v) do
    if math.type(n) ~= "integer" or n < 0 then bad(r, ("%s with %s among them"):format(what, describe(n))) end
  end
  return v
end

-- ---- storages and tensors -----------------------------------------------------------------------------------------

-- The elements of a storage, read once. In the first pass over an old file storages are only listed.
local function elements(r, storage, form)
  local root = storage.root or storage
  if root.form and root.form ~= form then
    bad(r, ("storage '%s' is used as %s and as %s"):format(root.key:sub(1, 60), root.form, form), true)
  end
  root.form = form
  if r.listing then return nil end
  if not root.tensor then
    if not r.zip then bad(r, ("storage '%s' is not in the file"):format(root.key:sub(1, 60))) end
    local unit = root.bytes and SIZES[form] or 1 -- an untyped one counts bytes
    root.tensor = take(r.file:storage(root.key, form, root.n // unit))
    if r.where then root.tensor = root.tensor:to(r.where) end
  end
  return root.tensor
end

-- A tensor's window. form: its elements where the storage does not say what it holds.
local function tensor(r, storage, offset, size, stride, requires_grad, form)
  if not is(storage, Storage) then bad(r, "a tensor without a storage") end
  if form == nil then form = storage.type end
  if form == nil then bad(r, "a tensor whose dtype is not known") end
  if not form then return lost(("has the dtype of torch's %s, which perilune does not have"):format(storage.name)) end
  integers(r, size, "sizes")
  integers(r, stride, "strides")
  if #size ~= #stride or math.type(offset) ~= "integer" or offset < 0 then
    bad(r, "a tensor whose sizes, strides and offset do not belong together")
  end
  local whole = elements(r, storage, form)
  if not whole then return 0 end
  local t = take(r.file:view(whole, size, stride, offset + storage.offset))
  if requires_grad == true and t:is_floating_point() then t:requires_grad_() end
  return t
end

-- ('storage', class, key, place, number of elements [, (key of the view, offset, size)])
local function persistent(r, id)
  if not is_list(id) or id[1] ~= "storage" or not is(id[2], Name) or id[2].storage == nil or type(id[3]) ~= "string"
    or math.type(id[5]) ~= "integer" or id[5] < 0 then
    bad(r, "a persistent id that is not that of a storage")
  end
  local key, n, view = id[3], id[5], id[6]
  local root = r.storages[key]
  if not root then
    root = setmetatable({ key = key, n = n, type = id[2].form, name = id[2].path, offset = 0,
      bytes = id[2].untyped }, Storage)
    r.storages[key], r.order[#r.order + 1] = root, root
  end
  if root.n ~= n or root.name ~= id[2].path then
    bad(r, ("storage '%s' is described in two ways"):format(key:sub(1, 60)))
  end
  if view == nil or view == r.none then return root end
  if not is_list(view) then bad(r, "a storage that is a view of no place in another") end
  if math.type(view[2]) ~= "integer" or view[2] < 0 then bad(r, "a storage that is a view of no place in another") end
  return setmetatable({ root = root, key = key, n = n, type = root.type, name = root.name, offset = view[2] }, Storage)
end

-- ---- the names that data is made of ---------------------------------------------------------------------------------

local known = {}
local function name(path, row)
  row.path = path
  known[path] = setmetatable(row, Name)
end

local function pairs_into(r, t, list)
  if list == nil then return t end
  if is_dict(list) then
    for key, value in pairs(list) do set(r, t, key, value) end
    return t
  end
  if not is_list(list) then bad(r, "a dictionary made of something that is no list of pairs") end
  for _, pair in ipairs(list) do
    if not is_list(pair) or #pair ~= 2 then bad(r, "a dictionary made of something that is no list of pairs") end
    set(r, t, pair[1], pair[2])
  end
  return t
end

local function members(r, list)
  local t = {}
  if list == nil then return t end
  if not is_list(list) then bad(r, "a set made of something that is no list") end
  for _, v in ipairs(list) do
    if not KEYS[type(v)] or v ~= v then bad(r, "a member of a set that is neither text nor a number") end
    t[v] = true
  end
  return t
end

name("collections.OrderedDict", { call = function(r, args) return pairs_into(r, dict(), args[1]) end })
name("collections.Counter", { call = function(r, args) return pairs_into(r, dict(), args[1]) end })
name("collections.defaultdict", { call = function(r, args) -- what it makes for missing keys is code
  if not is(args[1], Name) and not is(args[1], Lost) and args[1] ~= r.none then
    bad(r, "a defaultdict of something that is no class")
  end
  return pairs_into(r, dict(), args[2])
end })
for _, module in ipairs { "builtins.", "__builtin__." } do
  name(module .. "list", { call = function(r, args)
    if args[1] ~= nil and not is_list(args[1]) then bad(r, "a list made of something that is no list") end
    return args[1] and table.move(args[1], 1, #args[1], 1, {}) or {}
  end })
  name(module .. "dict", { call = function(r, args) return pairs_into(r, dict(), args[1]) end })
  name(module .. "set", { call = function(r, args) return members(r, args[1]) end })
  name(module .. "frozenset", { call = function(r, args) return members(r, args[1]) end })
  for _, kind in ipairs { "int", "float", "str", "bool" } do name(module .. kind, {}) end -- of a defaultdict
end
-- bytes, as protocol 2 has them: text whose characters are the bytes
for _, module in ipairs { "builtins.", "__builtin__." } do -- no bytes
  name(module .. "bytes", { call = function(r, args)
    if #args > 0 then bad(r, "bytes made of something") end
    return ""
  end })
end
name("_codecs.encode", { call = function(r, args)
  if type(args[1]) ~= "string" or args[2] ~= "latin1" then bad(r, "bytes in an encoding that is not latin1") end
  local ok, text = pcall(function()
    return (args[1]:gsub(utf8.charpattern, function(c) return string.char(utf8.codepoint(c)) end))
  end)
  if not ok then bad(r, "bytes that are not latin1") end
  return text
end })

name("torch.Size", { call = function(r, args)
  return args[1] == nil and {} or table.move(integers(r, args[1], "sizes"), 1, #args[1], 1, {})
end })
name("torch.device", { call = function(r, args)
  if type(args[1]) ~= "string" then bad(r, "a device that is no text") end
  return math.type(args[2]) == "integer" and args[1] .. ":" .. args[2] or args[1]
end })
name("torch.serialization._get_layout", { call = function(r, args)
  if type(args[1]) ~= "string" then bad(r, "a layout that is no text") end
  return args[1]
end })
for kind, form in pairs(storages) do
  for _, module in ipairs { "torch.", "torch.cuda.", "torch.storage." } do
    name(module .. kind, { storage = true, form = form })
  end
end
for _, module in ipairs { "torch.storage.", "torch." } do
  name(module .. "UntypedStorage", { storage = true, form = nil, untyped = true })
end
for kind, form in pairs(dtypes) do name("torch." .. kind, { value = "torch." .. kind, dtype = form }) end
for _, layout in ipairs { "strided", "sparse_coo", "sparse_csr", "contiguous_format", "channels_last",
  "channels_last_3d", "preserve_format" } do
  name("torch." .. layout, { value = "torch." .. layout })
end

name("torch._utils._rebuild_tensor", { call = function(r, args)
  return tensor(r, args[1], args[2], args[3], args[4])
end })
-- A tensor is what the storage has, negated or conjugated, where its last argument says so: the imaginary part of a
-- conjugate is such a view. It gets memory of its own here.
local function with_bits(r, t, metadata)
  if metadata == nil or metadata == r.none or not core.is_tensor(t) then return t end
  if type(metadata) ~= "table" then bad(r, "facts of a tensor that are no dictionary") end
  if rawget(metadata, "neg") ~= true then return t end
  local negated = T.no_grad(function() return -t end)
  return t.requires_grad and negated:requires_grad_() or negated
end

name("torch._utils._rebuild_tensor_v2", { call = function(r, args)
  return with_bits(r, tensor(r, args[1], args[2], args[3], args[4], args[5]), args[7])
end })
name("torch._utils._rebuild_tensor_v3", { call = function(r, args)
  local kind = type(args[7]) == "string" and args[7]:match "^torch%.(.*)$"
  local form = dtypes[kind or ""]
  if form == nil then bad(r, "a tensor of a dtype that is not known") end
  if not form then return lost(("has the dtype %s, which perilune does not have"):format(args[7])) end
  return with_bits(r, tensor(r, args[1], args[2], args[3], args[4], args[5], form), args[8])
end })
local function parameter(r, args)
  local t = args[1]
  if not core.is_tensor(t) and not is(t, Lost) and not r.listing then bad(r, "a parameter that is no tensor") end
  if args[2] == true and core.is_tensor(t) and t:is_floating_point() then t:requires_grad_() end
  return t
end
name("torch._utils._rebuild_parameter", { call = parameter })
name("torch._utils._rebuild_parameter_with_state", { call = parameter }) -- Python attributes of it are left out
for _, class in ipairs { "torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer" } do
  name(class, { is_tensor = true })
end
name("torch._tensor._rebuild_from_type_v2", { call = function(r, args)
  local f, class = args[1], args[2]
  if is(f, Lost) or is(class, Lost) then return is(f, Lost) and f or class end
  if not is(f, Name) or not f.call or not is(class, Name) or not class.is_tensor or not is_list(args[3]) then
    bad(r, "a tensor of a class that is not known", true)
  end
  return f.call(r, args[3])
end })
for kind, why in pairs { sparse_tensor = "is sparse", sparse_csr_tensor = "is sparse", qtensor = "is quantized",
  nested_tensor = "is nested", meta_tensor_no_storage = "has no values (the device meta)",
  device_tensor_from_numpy = "is kept as an array of NumPy", wrapper_subclass = "is of a class of its own" } do
  name("torch._utils._rebuild_" .. kind, { call = function()
    return lost(why .. ", which perilune does not have")
  end })
end
-- Numbers of NumPy: scalar(dtype, bytes), and the dtype's own state ('<' or '>', …), set by build.
local NUMPY = { f8 = "d", f4 = "f", i8 = "i8", i4 = "i4", i2 = "i2", i1 = "i1", u8 = "I8", u4 = "I4", u2 = "I2",
  u1 = "I1", b1 = "I1" }
local ARRAYS = { f8 = "f64", f4 = "f32", f2 = "f16", i8 = "i64", i4 = "i32", i2 = "i16", i1 = "i8", u1 = "u8",
  b1 = "u8" }
local NumpyType = {}
name("numpy.dtype", { call = function(r, args)
  if not NUMPY[args[1]] and not ARRAYS[args[1]] then
    bad(r, ("a dtype of NumPy, %s, that is not known"):format(describe(args[1])), true)
  end
  return setmetatable({ kind = args[1], order = "<" }, NumpyType)
end })
for _, module in ipairs { "numpy.core.multiarray.", "numpy._core.multiarray." } do
  name(module .. "scalar", { call = function(r, args)
    local form = is(args[1], NumpyType) and NUMPY[args[1].kind]
    local n = form and string.packsize("<" .. form)
    if not form or type(args[2]) ~= "string" or #args[2] ~= n then bad(r, "a number of NumPy without its bytes") end
    local v = string.unpack(args[1].order .. form, args[2])
    if args[1].kind == "b1" then return v ~= 0 end
    if args[1].kind == "u8" and v < 0 then return lost "is an integer of more than 63 bits" end
    return v
  end })
  -- an array without elements, which build gives it
  name(module .. "_reconstruct", { call = function(r, args)
    if not is(args[1], Name) or not args[1].is_array then bad(r, "an array of a class that is not known", true) end
    return setmetatable({}, Array)
  end })
end
name("numpy.ndarray", { is_array = true })

-- state: version, shape, dtype, whether the order is Fortran's, bytes.
local function fill_array(r, array, state)
  local shape, kind, fortran, bytes = state[2], state[3], state[4], state[5]
  if array.tensor or not is(kind, NumpyType) or type(fortran) ~= "boolean" or type(bytes) ~= "string" then
    bad(r, "an array of NumPy without its elements")
  end
  local dtype, n = ARRAYS[kind.kind], 1
  for _, size in ipairs(integers(r, shape, "sizes")) do
    n = size > 0 and n > #bytes // size and math.maxinteger // size or n * size
  end
  if not dtype or kind.order ~= "<" then
    array.why = "is an array of NumPy of a dtype that perilune does not have"
    return
  end
  if #bytes ~= n * tonumber(kind.kind:sub(2)) then
    bad(r, ("an array of NumPy with %d bytes for %d elements"):format(#bytes, n))
  end
  local sizes = {}
  for d = 1, #shape do sizes[d] = fortran and shape[#shape + 1 - d] or shape[d] end
  local t = core.from_string(bytes, dtype, sizes)
  if kind.kind == "b1" then t = t:ne(0) end
  if fortran and #shape > 1 then
    local turn = {}
    for d = 1, #shape do turn[d] = #shape + 1 - d end
    t = t:permute(turn)
  end
  array.tensor = r.where and t:to(r.where) or t
end

-- ---- the machine ----------------------------------------------------------------------------------------------------

local function push(r, v)
  r.top = r.top + 1
  r.stack[r.top] = v
end
local function pop(r)
  local v = r.stack[r.top]
  if v == nil or v == Mark then bad(r, "nothing is on the stack where a value was due") end
  r.stack[r.top] = nil
  r.top = r.top - 1
  return v
end
local function peek(r)
  local v = r.stack[r.top]
  if v == nil or v == Mark then bad(r, "nothing is on the stack where a value was due") end
  return v
end
-- The values above the topmost mark, which goes, as a list.
local function since_mark(r)
  local at = r.top
  while at > 0 and r.stack[at] ~= Mark do at = at - 1 end
  if at == 0 then bad(r, "no mark is on the stack where one was due") end
  local list = table.move(r.stack, at + 1, r.top, 1, {})
  for i = at, r.top do r.stack[i] = nil end
  r.top = at - 1
  return list
end

local function find_name(r, module, what)
  local path = module .. "." .. what
  local row = known[path]
  if row then return row.value or row end
  if r.skip then return lost(("is of %s, which is no data"):format(path:sub(1, 120))) end
  local hint = path:find "^torch%.nn%." or path:find "^__main__%."
  bad(r, ("it names %s; only data is read, and nothing of a file is ever run. %s"):format(path:sub(1, 120),
    hint and "A whole module? Save its state_dict() instead"
    or 'unsupported = "skip" leaves out what it stands for'), true)
end

local function call(r, f, args)
  if is(f, Lost) then return lost(f.why) end
  if not is(f, Name) or not f.call then
    bad(r, ("a call of %s"):format(is(f, Name) and f.path or "something that is no function"), true)
  end
  if not is_list(args) then bad(r, "a call without a list of arguments") end
  return f.call(r, args)
end

local function append(r, list, v)
  if is(list, Lost) then return end
  if not is_list(list) then bad(r, "something is added to a list that is none") end
  list[#list + 1] = v
end
local function set_all(r, t, list)
  if is(t, Lost) then return end
  if not is_dict(t) or #list % 2 ~= 0 then bad(r, "entries of a dictionary that is none, or a key without a value") end
  for i = 1, #list, 2 do set(r, t, list[i], list[i + 1]) end
end

local ops = {}
function ops.mark(r) push(r, Mark) end
function ops.pop(r)
  if r.top == 0 then bad(r, "nothing is on the stack where a value was due") end
  r.stack[r.top] = nil
  r.top = r.top - 1
end
function ops.pop_mark(r) since_mark(r) end
function ops.dup(r) push(r, peek(r)) end
function ops.none(r) push(r, r.none) end
function ops.yes(r) push(r, true) end
function ops.no(r) push(r, false) end
ops.integer, ops.number, ops.text = push, push, push
function ops.big(r, bytes) push(r, bytes == r.magic and bytes or lost "is an integer of more than 64 bits") end
function ops.empty_list(r) push(r, {}) end
ops.empty_tuple = ops.empty_list
function ops.empty_set(r) push(r, {}) end
function ops.empty_dict(r) push(r, dict()) end
function ops.list(r) push(r, since_mark(r)) end
ops.tuple = ops.list
function ops.tuple_of(r, n)
  local list = {}
  for i = n, 1, -1 do list[i] = pop(r) end
  push(r, list)
end
function ops.dict(r)
  local list, t = since_mark(r), dict()
  set_all(r, t, list)
  push(r, t)
end
function ops.append(r)
  local v = pop(r)
  append(r, peek(r), v)
end
function ops.appends(r)
  local values = since_mark(r)
  local list = peek(r)
  if is(list, Lost) then return end
  if not is_list(list) then bad(r, "something is added to a list that is none") end
  table.move(values, 1, #values, #list + 1, list)
end
function ops.setitem(r)
  local v, key = pop(r), pop(r)
  set_all(r, peek(r), { key, v })
end
function ops.setitems(r)
  local values = since_mark(r)
  set_all(r, peek(r), values)
end
function ops.additems(r)
  local values = since_mark(r)
  local t = peek(r)
  if not is_list(t) then bad(r, "something is added to a set that is none") end
  for v in pairs(members(r, values)) do t[v] = true end
end
function ops.frozenset(r) push(r, members(r, since_mark(r))) end
function ops.global(r, module, what) push(r, find_name(r, module, what)) end
function ops.stack_global(r)
  local what, module = pop(r), pop(r)
  if type(what) ~= "string" or type(module) ~= "string" then bad(r, "a name that is no text") end
  push(r, find_name(r, module, what))
end
function ops.reduce(r)
  local args, f = pop(r), pop(r)
  push(r, call(r, f, args))
end
ops.newobj = ops.reduce
-- Attributes of what is on the stack. A state_dict's are notes on versions of modules.
function ops.build(r)
  local state, v = pop(r), peek(r)
  if is(v, Lost) then return end
  if is(v, NumpyType) then
    local order = is_list(state) and state[2]
    if order == "|" then return end
    if order ~= ">" and order ~= "<" then bad(r, "a dtype without its order") end
    v.order = order
    return
  end
  if is(v, Array) then
    if not is_list(state) then bad(r, "an array of NumPy without its elements") end
    return fill_array(r, v, state)
  end
  if not is_dict(v) or not is_dict(state) then bad(r, "attributes of something that has none", true) end
  for key in pairs(state) do
    if key ~= "_metadata" then bad(r, ("the attribute '%s' of a dictionary"):format(tostring(key):sub(1, 60)), true) end
  end
end
function ops.get(r, i)
  local v = r.memo[i]
  if v == nil then bad(r, ("entry %d of the memo was never put there"):format(i)) end
  push(r, v)
end
function ops.put(r, i)
  if r.memo[i] == nil then r.memos = r.memos + 1 end
  r.memo[i] = peek(r)
end
function ops.memoize(r)
  r.memo[r.memos] = peek(r)
  r.memos = r.memos + 1
end
function ops.persid(r)
  local id = pop(r)
  push(r, persistent(r, id))
end

-- Runs one pickle of the file to its end. → its value
local function run(r, at)
  r.stack, r.top, r.memo, r.memos = {}, 0, {}, 0
  take(r.file:begin(at))
  local file = r.file
  while true do
    local op, a, b = take(file:next())
    if op == "stop" then break end
    ops[op](r, a, b)
  end
  local v = pop(r)
  if r.top ~= 0 then bad(r, "more than one value is left at its end") end
  return v
end

-- ---- what was read -----------------------------------------------------------------------------------------------

-- Walks through all tables, each once, looking for what is no data and for depth. With `skip`, takes out what is lost.
local function check(r, v)
  local seen, queue, last = {}, {}, 0
  local function look(x, at, depth, owner, key)
    local why = is(x, Lost) and x.why or is(x, Storage) and "is a storage without a tensor, which is no data"
      or is(x, Name) and ("is %s, which is no data"):format(x.path) or is(x, NumpyType) and "is a dtype of NumPy"
    if is(x, Array) and x.tensor then
      if owner then rawset(owner, key, x.tensor) end
      return
    end
    if is(x, Array) then why = x.why or "is an array of NumPy without elements" end
    if why and not (r.skip and owner) then
      stop(("%s: %s %s%s"):format(r.path, owner and "'" .. at .. "'" or "the object in it", why,
        owner and '; unsupported = "skip" leaves it out' or ""), "unsupported")
    elseif why then
      local gone = nil
      if is_list(owner) then gone = r.none end
      rawset(owner, key, gone)
      r.left_out[#r.left_out + 1] = ("'%s' %s"):format(at, why)
    elseif type(x) == "table" and x ~= r.none and not seen[x] then
      if depth > MAX_DEPTH then
        stop(("%s: nested deeper than %d tables"):format(r.path, MAX_DEPTH), "format")
      end
      seen[x] = true
      last = last + 1
      queue[last] = { x, at, depth }
    end
  end
  look(v, "", 1)
  local first = 1
  while first <= last do
    local t, at, depth = table.unpack(queue[first])
    queue[first] = nil
    first = first + 1
    local list = {} -- look changes t
    for key, x in pairs(t) do if type(x) == "table" then list[#list + 1] = { key, x } end end
    for _, entry in ipairs(list) do
      look(entry[2], (at == "" and "" or at .. ".") .. tostring(entry[1]), depth + 1, t, entry[1])
    end
  end
  if is(v, Array) then return v.tensor end
  return v
end

-- The format before the zip: magic number, version, facts about the machine, the object, the keys of the storages,
-- each storage. The object is read twice: for its storages, and with them.
local MAGIC = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
local function read_old(r)
  r.magic = MAGIC
  if run(r, 0) ~= MAGIC then bad(r, "the magic number of torch.save is missing") end
  if run(r, r.file:place()) ~= 1001 then bad(r, "a version of torch.save that is not known") end
  local facts = run(r, r.file:place())
  if not is_dict(facts) or facts.little_endian ~= true then bad(r, "storages of a big-endian machine", true) end
  local at = r.file:place()
  r.listing = true
  run(r, at)
  local keys = run(r, r.file:place())
  local place, used = r.file:place(), r.storages
  r.listing = nil
  if not is_list(keys) then bad(r, "the keys of the storages are no list") end
  for _, key in ipairs(keys) do
    local s = used[key]
    if not s then bad(r, ("storage %s is listed, and no tensor has it"):format(describe(key):sub(1, 60))) end
    local form = s.form or s.type
    if not form then
      if not r.skip then stop(r.path .. ": a storage of a dtype that perilune does not have", "unsupported") end
      bad(r, "a storage of a dtype that perilune does not have, whose length is not known", true)
    end
    if s.tensor then bad(r, ("storage '%s' is listed twice"):format(key:sub(1, 60))) end
    s.tensor, place = take(r.file:storage(key, form, s.n, place))
    if r.where then s.tensor = s.tensor:to(r.where) end
  end
  local v = run(r, at)
  return v
end

local function read(r)
  local v
  if r.zip then v = run(r) else v = read_old(r) end
  return check(r, v)
end

-- Reads a file of torch.save. Views of one storage share their memory, and what was one object is one.
-- @tparam string path
-- @tparam[opt] table opts `map_location=`: the device on which tensors shall be; `none=false`: what stands for None;
-- `unsupported="error"`, or "skip": tensors that perilune cannot have (complex, sparse, quantized) and objects of
-- classes that are no data are left out; nothing of them is run
-- @treturn value; or nil, message, code ("io", "format", "unsupported": there is more than data in it)
--- T.load_pt(path, {map_location=, none=false, unsupported="error"}) → value, {text, …}; or nil, message, code
-- Reads what torch.save wrote, as a zip archive or in the format before: tensors of every dtype and layout, with
-- storages shared as they were; dictionaries in their order, lists and tuples (from 1), numbers, texts, booleans,
-- arrays of NumPy as tensors. Nothing in the file is run, and a name that is no data is an error that says which. None
-- becomes none; u16, u32, u64 and 8-bit floats become i32, i64, i64 and f16. Parameters require gradients where they
-- did. unsupported: "error", or "skip" to leave out what perilune does not have: complex, sparse and quantized
-- tensors, objects of other classes (a Namespace of options); a second result, {text, …}, then says which. T.load reads
-- the same files.
--   print((T.load_pt("/nowhere/model.pt")))  --> nil
local function load_pt(path, opts)
  opts = options.check("load_pt", opts, { "map_location", "none", "unsupported" })
  local unsupported, none = opts.unsupported or "error", opts.none
  if unsupported ~= "error" and unsupported ~= "skip" then
    fail("load_pt: %s", options.unknown("unsupported", unsupported, { "error", "skip" }))
  end
  if type(path) ~= "string" then fail("load_pt: the path must be a string, got %s", describe(path)) end
  if opts.map_location ~= nil then core.device.with(opts.map_location, function() end) end
  if none == nil then none = false end
  local file, message, code = core.open_pt(path)
  if not file then return nil, message, code end
  local r = { file = file, path = path, zip = file:is_zip(), none = none, skip = unsupported == "skip", storages = {},
    left_out = {}, order = {}, where = opts.map_location }
  local ok, value = pcall(read, r)
  file:close()
  if ok and r.skip then return value, r.left_out end
  if ok then return value end
  if type(value) == "table" and value.message then return nil, value.message, value.code end
  error(value, 0)
end

return { load_pt = load_pt }
