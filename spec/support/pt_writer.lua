-- SPDX-License-Identifier: MIT
-- Bytes of pickles (protocol 2) and of PyTorch's files around them, written by hand: also such as torch.save never
-- writes.

local numpy = require "spec.support.numpy_writer"

local P = {}

function P.text(s) return "X" .. string.pack("<s4", s) end
function P.int(n) return "J" .. string.pack("<i4", n) end
function P.global(module, name) return "c" .. module .. "\n" .. name .. "\n" end
function P.tuple(...) return "(" .. table.concat { ... } .. "t" end
function P.list(...) return "](" .. table.concat { ... } .. "e" end
-- dict(key, value, …), all of them pickled
function P.dict(...) return "}(" .. table.concat { ... } .. "u" end
function P.call(module, name, ...) return P.global(module, name) .. P.tuple(...) .. "R" end
local function ints(list)
  local out = {}
  for i, n in ipairs(list) do out[i] = P.int(n) end
  return P.tuple(table.unpack(out))
end
P.ints = ints

-- more: what is behind the count of elements, in the format before the zip
function P.storage(kind, key, n, more)
  return P.tuple(P.text "storage", P.global("torch", kind .. "Storage"), P.text(key), P.text "cpu",
    P.int(n), more or "")
    .. "Q"
end
function P.tensor(storage, offset, size, stride, requires_grad)
  return P.call("torch._utils", "_rebuild_tensor_v2", storage, P.int(offset), ints(size), ints(stride),
    requires_grad and "\x88" or "\x89", P.global("collections", "OrderedDict") .. ")R")
end

-- A zip archive: the pickle without its frame, storages {key = bytes}, changes of its other members {name = bytes or
-- false}.
function P.zip(pickle, storages, changes)
  local members = { { "a/data.pkl", "\x80\2" .. pickle .. "." }, { "a/byteorder", "little" } }
  local keys = {}
  for key in pairs(storages or {}) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do members[#members + 1] = { "a/data/" .. key, storages[key] } end
  members[#members + 1] = { "a/version", "3\n" }
  local out = {}
  for _, m in ipairs(members) do
    local change = (changes or {})[m[1]]
    if change ~= false then out[#out + 1] = { m[1], change or m[2], m[3] } end
  end
  for name, bytes in pairs(changes or {}) do
    if bytes and not ("a/data.pkl a/byteorder a/version"):find(name, 1, true) then out[#out + 1] = { name, bytes } end
  end
  return numpy.zip(out)
end

-- The format before the zip: storages is a list of {key, count, bytes}.
function P.old(pickle, storages, little)
  local keys, tail = {}, {}
  for i, s in ipairs(storages) do
    keys[i] = P.text(s[1])
    tail[i] = string.pack("<i8", s[2]) .. s[3]
  end
  local function whole(s) return "\x80\2" .. s .. "." end
  return whole "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" .. whole "M\xe9\x03"
    .. whole(P.dict(P.text "little_endian", little == false and "\x89" or "\x88")) .. whole(pickle)
    .. whole(P.list(table.unpack(keys))) .. table.concat(tail)
end

return P
