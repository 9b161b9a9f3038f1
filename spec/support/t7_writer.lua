-- SPDX-License-Identifier: MIT
-- A writer of torch7's files, binary and ascii, as torch7's File.lua writes them.

local letters = { Byte = "B", Char = "b", Short = "<i2", Int = "<i4", Long = "<i8", Float = "<f", Double = "<d" }

local function writer(ascii)
  local w = { out = {}, seen = {}, n = 0 }
  local function put(s) w.out[#w.out + 1] = s end
  local function array(format, list, decimal)
    if not ascii or format == "B" or format == "b" then
      for _, v in ipairs(list) do put(format:pack(v)) end
    else
      local words = {}
      for i, v in ipairs(list) do words[i] = decimal:format(v) end
      put(table.concat(words, " "))
    end
    if ascii and #list > 0 then put("\n") end
  end
  function w.int(v) array("<i4", { v }, "%d") end
  function w.longs(list) array("<i8", list, "%d") end
  function w.double(v) array("<d", { v }, "%.17g") end
  function w.text(s)
    w.int(#s)
    put(s)
    if ascii and #s > 0 then put("\n") end
  end
  -- An index, and whether its object is still to be written.
  function w.object(kind, key)
    w.int(kind)
    if w.seen[key] then return w.int(w.seen[key]), false end
    w.n = w.n + 1
    w.seen[key] = w.n
    return w.int(w.n), true
  end
  function w.class(name)
    w.text("V 1")
    w.text(name)
  end
  function w.storage(kind, list)
    local _, fresh = w.object(4, list)
    if not fresh then return end
    w.class("torch." .. kind .. "Storage")
    w.longs { #list }
    array(letters[kind], list, (kind == "Float" or kind == "Double") and "%.17g" or "%d")
  end
  function w.tensor(kind, size, stride, offset, list)
    local _, fresh = w.object(4, {})
    if not fresh then return end
    w.class("torch." .. kind .. "Tensor")
    w.int(#size)
    w.longs(size)
    w.longs(stride)
    w.longs { offset }
    if list then w.storage(kind, list) else w.int(0) end
  end
  function w.value(v)
    if v == nil then
      w.int(0)
    elseif type(v) == "number" then
      w.int(1)
      w.double(v)
    elseif type(v) == "string" then
      w.int(2)
      w.text(v)
    elseif type(v) == "boolean" then
      w.int(5)
      w.int(v and 1 or 0)
    elseif type(v) == "function" then
      v(w)
    else
      local _, fresh = w.object(3, v)
      if not fresh then return end
      local keys = {}
      for k in pairs(v) do keys[#keys + 1] = k end
      table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
      w.int(#keys)
      for _, k in ipairs(keys) do
        w.value(k)
        w.value(v[k])
      end
    end
  end
  function w.bytes() return table.concat(w.out) end
  return w
end

--- The bytes of a file that holds v; a function in it is called with the writer.
local function bytes_of(ascii, v)
  local w = writer(ascii)
  w.value(v)
  return w.bytes()
end

return { writer = writer, bytes_of = bytes_of }
