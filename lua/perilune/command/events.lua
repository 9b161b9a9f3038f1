-- SPDX-License-Identifier: MIT
-- Reads TensorBoard event files: records of a length, its checksum, an Event message, its checksum. Only what a
-- summary needs: steps, times, tags, scalars (simple_value, or a tensor of one float).
-- Formats: tensorflow's record_writer and event.proto, protobuf.dev/programming-guides/encoding.
local core = require "perilune.core"

local M = {}
local MAX_RECORD, MAX_PIECE = 1 << 28, 1 << 16

local function masked(s)
  local crc = core.crc32c(s)
  return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
end

-- Do these first 12 bytes or more begin a record?
function M.is_record(head) return #head >= 12 and ("<I4"):unpack(head, 9) == masked(head:sub(1, 8)) end

-- n bytes, or as many as there are, a piece at a time: Lua makes room for all that is asked for before it reads.
local function read_bytes(f, n)
  local pieces = {}
  while n > 0 do
    local s = f:read(math.min(n, MAX_PIECE))
    if not s then break end
    pieces[#pieces + 1], n = s, n - #s
  end
  return table.concat(pieces)
end

M.RECORD_HEAD, M.RECORD_TAIL, M.MAX_RECORD = 12, 4, MAX_RECORD

--- How many bytes the record that begins with these 12 holds besides its head and tail; nil: damaged.
function M.record_size(head)
  local n, crc = ("<I8I4"):unpack(head)
  return crc == masked(head:sub(1, 8)) and n >= 0 and n <= MAX_RECORD and n or nil
end

--- Is that the record's content, by its tail of 4 bytes?
function M.record_fits(data, tail) return ("<I4"):unpack(tail) == masked(data) end

-- The records of a file, one a call; nil at the end, nil and a message where the file is broken.
local function records(f)
  return function()
    local head = f:read(12)
    if not head then return nil end
    if #head < 12 then return nil, "ends in the middle of a record" end
    local n = M.record_size(head)
    if not n then return nil, "a record's length is damaged" end
    local data = read_bytes(f, n)
    local tail = f:read(4)
    if #data < n or not tail or #tail < 4 then return nil, "ends in the middle of a record" end
    if not M.record_fits(data, tail) then return nil, "a record's content is damaged" end
    return data
  end
end

local function varint(s, at)
  local v, shift = 0, 0
  repeat
    local byte = s:byte(at)
    if not byte or shift > 63 then error("varint", 0) end
    v, shift, at = v | (byte & 127) << shift, shift + 7, at + 1
  until byte < 128
  return v, at
end

-- Calls f(field, kind, value) for each field of a message; strings for kinds 1, 2 and 5.
local function fields(s, f)
  local at = 1
  while at <= #s do
    local tag, value
    tag, at = varint(s, at)
    local kind = tag & 7
    if kind == 0 then
      value, at = varint(s, at)
    else
      local n = kind == 1 and 8 or kind == 5 and 4
      if kind == 2 then n, at = varint(s, at) end
      if not n or n < 0 or at + n - 1 > #s then error("field", 0) end
      value, at = s:sub(at, at + n - 1), at + n
    end
    f(tag >> 3, kind, value)
  end
end

-- TensorProto: float_val is field 5, tensor_content field 4 (little-endian), dtype field 1 (1: float).
local function tensor_scalar(s)
  local v, content, dtype
  fields(s, function(field, kind, value)
    if field == 5 and #value >= 4 then v = ("<f"):unpack(value) end
    if field == 4 and kind == 2 then content = value end
    if field == 1 and kind == 0 then dtype = value end
  end)
  if v == nil and dtype == 1 and content and #content == 4 then v = ("<f"):unpack(content) end
  return v
end

local function summary_value(s)
  local out = { kind = "other" }
  fields(s, function(field, _, value)
    if field == 1 then out.tag = value end
    if field == 2 and #value == 4 then out.scalar, out.kind = ("<f"):unpack(value), "scalar" end
    if field == 4 then out.kind, out.image = "image", value end
    if field == 5 then out.kind = "histogram" end
    if field == 8 then
      out.scalar = tensor_scalar(value)
      out.kind = out.scalar and "scalar" or "tensor"
    end
  end)
  return out
end

local function event(s)
  local out = { step = 0, values = {} }
  fields(s, function(field, kind, value)
    if field == 1 and kind == 1 then out.time = ("<d"):unpack(value) end
    if field == 2 and kind == 0 then out.step = value end
    if field == 5 and kind == 2 then
      fields(value, function(inner, inner_kind, v)
        if inner == 1 and inner_kind == 2 then out.values[#out.values + 1] = summary_value(v) end
      end)
    end
  end)
  return out
end

--- The event in a record: {step=, time=, values = list of {tag=, kind=, scalar=, image=}}; nil: it cannot be decoded.
function M.decode(data)
  local ok, e = pcall(event, data)
  return ok and e or nil
end

--- What is in a value's image: width, height, the bytes of its file (PNG); nil: it cannot be decoded.
function M.image(message)
  local width, height, bytes
  local ok = pcall(fields, message, function(field, kind, value)
    if field == 1 and kind == 0 then height = value end
    if field == 2 and kind == 0 then width = value end
    if field == 4 and kind == 2 then bytes = value end
  end)
  if ok and bytes then return width, height, bytes end
end

-- → {events=, first=, last= (times), tags = list of {tag=, kind=, n=, first_step=, last_step=, min=, max=, last=},
-- fault = what stopped the reading or nil}; or nil, message, code
function M.summary(path)
  local f, message = io.open(path, "rb")
  if not f then return nil, message, "io" end
  local out, by_tag = { events = 0, tags = {} }, {}
  local next_record = records(f)
  while true do
    local data, fault = next_record()
    if not data then out.fault = fault break end
    local e = M.decode(data)
    if not e then out.fault = "an event cannot be decoded" break end
    out.events = out.events + 1
    out.first, out.last = out.first or e.time, e.time or out.last
    for _, v in ipairs(e.values) do
      local tag = v.tag or ""
      local entry = by_tag[tag]
      if not entry then
        entry = { tag = tag, kind = v.kind, n = 0, first_step = e.step, min = math.huge, max = -math.huge }
        by_tag[tag], out.tags[#out.tags + 1] = entry, entry
      end
      entry.n, entry.last_step = entry.n + 1, e.step
      if v.scalar then
        entry.min, entry.max, entry.last = math.min(entry.min, v.scalar), math.max(entry.max, v.scalar), v.scalar
      end
    end
  end
  f:close()
  if out.events == 0 and out.fault then return nil, path .. ": " .. out.fault, "format" end
  return out
end

return M
