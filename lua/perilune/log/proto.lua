-- SPDX-License-Identifier: MIT
--- The few kinds of protobuf fields that TensorBoard's events are made of (protobuf.dev/programming-guides/encoding).
-- @module perilune.log.proto
local proto = {}

local char = string.char

local function varint(v)
  local out = {}
  repeat
    local low = v & 127
    v = v >> 7
    out[#out + 1] = char(v ~= 0 and low | 128 or low)
  until v == 0
  return table.concat(out)
end

--- An integer: int64, enum, bool.
function proto.int(field, v) return varint(field << 3) .. varint(v) end
function proto.double(field, v) return varint(field << 3 | 1) .. ("<d"):pack(v) end
function proto.float(field, v) return varint(field << 3 | 5) .. ("<f"):pack(v) end
--- Text, bytes, or a message made of fields.
function proto.bytes(field, s) return varint(field << 3 | 2) .. varint(#s) .. s end
--- repeated double, packed
function proto.doubles(field, list)
  local out = {}
  for i, v in ipairs(list) do out[i] = ("<d"):pack(v) end
  return proto.bytes(field, table.concat(out))
end

return proto
