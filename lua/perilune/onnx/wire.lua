-- SPDX-License-Identifier: MIT
--- Reads protobuf's wire format (protobuf.dev/programming-guides/encoding) by a table of fields. Everything is checked
-- against the bytes that are there; what a field says beyond them is an error, never a read. The bytes are a string, or
-- a file, which is read piece by piece: fields that the table marks as far stay in it, as wire.Piece.
-- @module perilune.onnx.wire
local wire = {}

local MAX_DEPTH = 64 -- messages within messages: graphs in the attributes of graphs

local unpack = string.unpack

-- Failures are tables: the caller says which file it was.
local function stop(fmt, ...) error({ malformed = fmt:format(...) }, 0) end
wire.stop = stop

-- One varint of s from `at`, before `stop_at` → value, next position. 64 bits, as a signed integer.
local function varint(s, at, last)
  local value, shift = 0, 0
  while true do
    if at > last then stop("a number is cut short at byte %d", at) end
    local b = s:byte(at)
    at = at + 1
    if shift < 64 then value = value | (b & 127) << shift end
    if b < 128 then return value, at end
    shift = shift + 7
    if shift > 63 then stop("a number of more than 64 bits at byte %d", at) end
  end
end

local decode

-- How the value of a field of that kind is read from s[at .. last], in the wire type that the file has for it.
-- Numbers that are packed, and those that are not, end up in one list; floats and doubles stay bytes, one string a
-- piece.
local function read(s, field, kind, at, last, depth)
  local name, what = field[1], field[2]
  if kind == 0 then
    if what ~= "int" then stop("field %s has the wire type of an integer", name) end
    return varint(s, at, last)
  elseif kind == 1 or kind == 5 then
    local size = kind == 1 and 8 or 4
    if at + size - 1 > last then stop("field %s is cut short at byte %d", name, at) end
    local wanted = kind == 1 and "double" or "float"
    if what ~= wanted then stop("field %s has the wire type of a %s", name, wanted) end
    if field.list then return s:sub(at, at + size - 1), at + size end
    return (unpack(kind == 1 and "<d" or "<f", s:sub(at, at + size - 1))), at + size
  elseif kind == 2 then
    local size
    size, at = varint(s, at, last)
    if size < 0 or size > last - at + 1 then
      stop("field %s of %d bytes at byte %d, where %d are left", name, size, at, last - at + 1)
    end
    local stop_at = at + size
    if what == "bytes" then
      if field.far and s.piece then return s:piece(at, size), stop_at end
      return s:sub(at, stop_at - 1), stop_at
    end
    if type(what) == "table" then return decode(s, what, at, stop_at - 1, depth + 1), stop_at end
    if not field.list then stop("field %s has the wire type of bytes", name) end
    if what ~= "int" then
      if size % (what == "double" and 8 or 4) ~= 0 then stop("field %s: %d bytes of %ss", name, size, what) end
      return s:sub(at, stop_at - 1), stop_at
    end
    local list = {}
    while at < stop_at do list[#list + 1], at = varint(s, at, stop_at - 1) end
    return list, stop_at, true
  end
  return stop("field %s has the unknown wire type %d", name, kind)
end

-- Steps over a field that the schema does not know.
local function skip(s, kind, at, last)
  if kind == 0 then
    local _
    _, at = varint(s, at, last)
  elseif kind == 1 then
    at = at + 8
  elseif kind == 5 then
    at = at + 4
  elseif kind == 2 then
    local size
    size, at = varint(s, at, last)
    if size < 0 or size > last - at + 1 then stop("a field of %d bytes at byte %d", size, at) end
    at = at + size
  else
    stop("the unknown wire type %d at byte %d", kind, at)
  end
  if at > last + 1 then stop("a field is cut short at byte %d", at) end
  return at
end

function decode(s, schema, at, last, depth)
  if depth > MAX_DEPTH then stop("messages within messages, more than %d deep", MAX_DEPTH) end
  local out = {}
  for _, field in pairs(schema) do if field.list then out[field[1]] = {} end end
  while at <= last do
    local key
    key, at = varint(s, at, last)
    local field, kind = schema[key >> 3], key & 7
    if key >> 3 == 0 then stop("field 0 at byte %d", at) end
    if not field then
      at = skip(s, kind, at, last)
    else
      local value, many
      value, at, many = read(s, field, kind, at, last, depth)
      if not field.list then
        out[field[1]] = value
      elseif many then
        local list = out[field[1]]
        table.move(value, 1, #value, #list + 1, list)
      else
        local list = out[field[1]]
        list[#list + 1] = value
      end
    end
  end
  return out
end

-- ---- files as strings --------------------------------------------------------------------------------------------

local WINDOW = 1 << 16 -- bytes that are held at once

local File = {}
File.__index = File

function File:__len() return self.size end

local function bytes_at(self, at, n)
  if not self.f:seek("set", at - 1) then stop("byte %d of the file cannot be reached", at) end
  local text = n == 0 and "" or self.f:read(n)
  if not text or #text ~= n then stop("the file ends early, at byte %d", at) end
  return text
end

function File:byte(at)
  local b = self.text:byte(at - self.from)
  if b then return b end
  self.from, self.text = at - 1, bytes_at(self, at, math.min(WINDOW, self.size - at + 1))
  return self.text:byte(1)
end

function File:sub(from, to)
  local i, j = from - self.from, to - self.from
  if i >= 1 and j <= #self.text then return self.text:sub(i, j) end
  return bytes_at(self, from, to - from + 1)
end

--- Bytes that are in a file: #piece of them behind the first `from` of the file at `path`.
wire.Piece = {}
wire.Piece.__index = wire.Piece
function wire.Piece:__len() return self.n end
function wire.Piece:read() return bytes_at(self.file, self.from + 1, self.n) end
function File:piece(at, n) return setmetatable({ file = self, path = self.path, from = at - 1, n = n }, wire.Piece) end

--- An open file as wire.decode takes it; nil where it cannot be read out of order.
function wire.file(f, path)
  local size = f:seek "end"
  if not size or size == math.maxinteger or not f:seek("set", 0) then return nil end
  return setmetatable({ f = f, path = path, size = size, from = 0, text = "" }, File)
end

--- A message as a table of its fields by name; repeated ones are lists, in floats and doubles of strings of bytes.
-- schema: field number → { name, "int" | "float" | "double" | "bytes" | schema, list = true, far = true }
function wire.decode(s, schema) return decode(s, schema, 1, #s, 1) end

return wire
