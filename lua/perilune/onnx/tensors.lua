-- SPDX-License-Identifier: MIT
--- Tensors of ONNX files: in the file itself, in typed fields or as bytes, or in a file beside it.
-- u16, u32 and u64 have no dtype here: they are i32, i64 and i64, and values past 2^63 are refused. 4-bit integers
-- are i8 and u8. `tensors.label` remembers what such a tensor was: quantization saturates at its limits.
-- @module perilune.onnx.tensors
local T = require "perilune"
local schema = require "perilune.onnx.schema"
local wire = require "perilune.onnx.wire"

local core, stop, types = T.core, wire.stop, schema.types
local tensors = {}

--- Tensor → the name of its ONNX type, where its dtype does not say it.
tensors.label = setmetatable({}, { __mode = "k" })

local MAX_ELEMENTS = 1 << 40
local NEAR = 4096 -- bytes that are read together with what is around them

-- The type with that number, which must be one that tensors can have here.
function tensors.type(number, who)
  local t = types[number or 0]
  if not t then stop("%s: element type %s, which ONNX does not have", who, tostring(number)) end
  if not t[2] then stop("%s: elements of type %s are not supported", who, t[1]) end
  return t
end

local function element_count(dims, who)
  local n = 1
  for _, d in ipairs(dims) do
    if d < 0 then stop("%s: a size of %d", who, d) end
    if d > 0 and n > MAX_ELEMENTS // d then stop("%s: more than 2^40 elements", who) end
    n = n * d
  end
  return n
end

-- ---- bytes of other files ------------------------------------------------------------------------------------------

-- The path of a file that a model names, inside of the model's folder: no link leads out of a name without "..", and a
-- link in the folder was put there by its owner.
local function beside(folder, location, who)
  if location == "" or location:find("^[/\\]") or location:find("^%a:") or location:find "%z" then
    stop("%s: external data in '%s', which is no path inside of the model's folder", who, location)
  end
  for part in location:gmatch "[^/\\]+" do
    if part == ".." then stop("%s: external data in '%s', which leaves the model's folder", who, location) end
  end
  return folder .. location
end

local function whole(text, name, who)
  local n = text and math.tointeger(tonumber(text))
  if text and (not n or n < 0 or not text:find "^%d+$") then stop("%s: external data with %s '%s'", who, name, text) end
  return n
end

local function external(t, want, folder, who)
  local about = {}
  for _, e in ipairs(t.external_data) do about[e.key or ""] = e.value or "" end
  if not about.location then stop("%s: external data without a location", who) end
  local path = beside(folder, about.location, who)
  local offset, length = whole(about.offset, "offset", who) or 0, whole(about.length, "length", who)
  if length and length ~= want then stop("%s: %d bytes of external data, %d are wanted", who, length, want) end
  local f, message = io.open(path, "rb")
  if not f then stop("%s: external data: %s", who, message) end
  local size = f:seek "end"
  if not size or offset + want > size then
    f:close()
    stop("%s: bytes %d to %d of '%s', which has %s", who, offset, offset + want, about.location, tostring(size))
  end
  f:close()
  return { path = path, from = offset, n = want }
end

-- The elements of a file from some byte on, read into the tensor itself.
local function in_file(path, from, dtype, shape, who)
  local t, message = core.tensor_of_bytes(path, from, dtype, shape)
  if not t then stop("%s: %s", who, message) end
  return t
end

local function read_piece(piece, who)
  if piece.read then return piece:read() end
  return in_file(piece.path, piece.from, "u8", { piece.n }, who):to_string()
end

-- ---- elements ------------------------------------------------------------------------------------------------------

local formats = { [1] = "B", [2] = "<I2", [4] = "<I4" }

-- Elements of a type that we have no dtype for, from bytes.
local function widened(bytes, t, n)
  local list, name, size = {}, t[1], t[3]
  if size == 0.5 then
    for i = 1, n do
      local b = bytes:byte((i + 1) // 2)
      local v = i % 2 == 1 and b & 15 or b >> 4
      list[i] = name == "int4" and v >= 8 and v - 16 or v
    end
  elseif size == 8 then
    for i = 1, n do
      list[i] = ("<i8"):unpack(bytes, 8 * i - 7)
      if list[i] < 0 then stop("an uint64 of 2^63 or more, which i64 cannot hold") end
    end
  else
    local format = formats[size]
    for i = 1, n do list[i] = format:unpack(bytes, size * (i - 1) + 1) end
  end
  return list
end

local of_integers = { f16 = true, bf16 = true, i8 = true, u8 = true, i16 = true, i32 = true, bool = true, i64 = true }

-- Elements that stand in the field for their type.
local function typed(t, kind, n, who)
  local name, dtype = kind[1], kind[2]
  if name == "float" or name == "double" then
    local bytes = table.concat(name == "float" and t.float_data or t.double_data)
    if #bytes ~= n * kind[3] then stop("%s: %d bytes of %ss for %d elements", who, #bytes, name, n) end
    return T.from_string(bytes, dtype, t.dims)
  end
  if not of_integers[dtype] then stop("%s: no elements", who) end
  local list = name == "int64" and t.int64_data or (name == "uint32" or name == "uint64") and t.uint64_data
    or t.int32_data
  if kind[3] == 0.5 then -- two in each
    local bytes = {}
    for i, v in ipairs(list) do bytes[i] = string.char(v & 255) end
    if #list ~= (n + 1) // 2 then stop("%s: %d numbers for %d elements of 4 bits", who, #list, n) end
    return T.tensor(widened(table.concat(bytes), kind, n), { dtype = dtype }):view(t.dims)
  end
  if #list ~= n then stop("%s: %d numbers for %d elements", who, #list, n) end
  if dtype == "f16" or dtype == "bf16" then -- their bits
    local bytes = {}
    for i, v in ipairs(list) do bytes[i] = ("<I2"):pack(v & 0xffff) end
    return T.from_string(table.concat(bytes), dtype, t.dims)
  end
  local low, high = math.mininteger, math.maxinteger
  if dtype ~= "i64" and dtype ~= "bool" then
    local bits = dtype == "i8" and 7 or dtype == "i16" and 15 or dtype == "u8" and 8 or 31
    low, high = dtype == "u8" and 0 or -(1 << bits), (1 << bits) - 1
  elseif name:find "^u" then
    low = 0
  end
  for i, v in ipairs(list) do
    if v < low or v > high then stop("%s: element %d is %d, which %s cannot hold", who, i, v, name) end
    if dtype == "bool" then list[i] = v ~= 0 end
  end
  if n == 0 then return T.zeros(t.dims, { dtype = dtype }) end
  return T.tensor(list, { dtype = dtype }):view(t.dims)
end

--- The tensor of a message. folder: where external data is; who: for messages.
function tensors.read(t, folder, who)
  who = ("tensor '%s'"):format(t.name or who or "")
  local kind = tensors.type(t.data_type, who)
  if #t.dims > 16 then stop("%s: %d dimensions, at most 16 are supported", who, #t.dims) end
  local n = element_count(t.dims, who)
  local want = kind[3] == 0.5 and (n + 1) // 2 or n * kind[3]
  local bytes, out = t.raw_data
  if t.data_location == 1 then bytes = external(t, want, folder, who) end
  if bytes then
    local piece = type(bytes) == "table" and bytes or nil
    local count = piece and piece.n or #bytes
    if count ~= want then
      stop("%s: %d bytes for %s[%s], which has %d", who, count, kind[1], table.concat(t.dims, ","), want)
    end
    local wider = kind[1]:find "^u?int4$" or kind[1]:find "^uint%d%d$"
    if piece and (wider or want <= NEAR) then bytes, piece = read_piece(piece, who), nil end
    if n == 0 then
      out = T.zeros(t.dims, { dtype = kind[2] })
    elseif piece then
      out = in_file(piece.path, piece.from, kind[2], t.dims, who)
    elseif wider then
      out = T.tensor(widened(bytes, kind, n), { dtype = kind[2] }):view(t.dims)
    else
      out = T.from_string(kind[2] == "bool" and bytes:gsub("[^%z]", "\1") or bytes, kind[2], t.dims)
    end
  else
    out = typed(t, kind, n, who)
  end
  if kind[1]:find "^u?int4$" or kind[1]:find "^uint%d%d$" then tensors.label[out] = kind[1] end
  return out
end

--- The dense tensor of a sparse one.
function tensors.dense(s, folder, who)
  if not s.values or not s.indices then stop("a sparse tensor without values or indices") end
  local values, at = tensors.read(s.values, folder, who), tensors.read(s.indices, folder, who)
  local n, rank = element_count(s.dims, "a sparse tensor"), #s.dims
  if n > 1 << 28 then stop("a sparse tensor of more than 2^28 elements") end
  local flat, list = T.zeros({ n }, { dtype = values:dtype() }), at:totable()
  local count = values:numel()
  if values:dim() ~= 1 or at:dim() > 2 or at:numel() ~= count * (at:dim() == 2 and rank or 1) then
    stop("a sparse tensor whose indices do not fit its values")
  end
  for i = 1, count do
    local place = 0
    if at:dim() == 1 then
      place = list[i]
    else
      for d = 1, rank do
        if list[i][d] < 0 or list[i][d] >= s.dims[d] then stop("a sparse tensor with an index beyond its sizes") end
        place = place * s.dims[d] + list[i][d]
      end
    end
    if place < 0 or place >= n then stop("a sparse tensor with an index beyond its sizes") end
    flat:narrow(1, place + 1, 1):copy_(values:narrow(1, i, 1))
  end
  return flat:view(s.dims)
end

return tensors
