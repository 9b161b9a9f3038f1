-- SPDX-License-Identifier: MIT
--- Which fields of the tables in its upvalues a Lua function can read, from its code: cfg.scale and list[1].w, read by
-- constant keys and used as what they are, need no guard on the rest of cfg and list. Where a table goes anywhere else
-- (into a call, a result, another table, an operator, a closure, an index that is computed) all of it may be read.
--
-- The code is that of string.dump, Lua 5.4's; what is not as expected is no answer (nil), and then everything counts.
-- Registers are followed through the code, with unions where ways meet. A path is {upvalue = i, key, …}. And which
-- texts may be keys of what it reads.
-- @module perilune.jit.reach
local core = require "perilune.core"

local unpack, byte = string.unpack, string.byte

local reach = {}

local LONGEST = 8 -- keys of a path; a loop over t = t.next has no end
local MOST = 2000 -- paths of a function

-- ---- reading a dumped function -----------------------------------------------------------------------------------

local HEADER = "\27Lua\x54\0\x19\x93\r\n\x1a\n\4\8\8" .. string.pack("<jn", 0x5678, 370.5)

local function reader(code)
  local at = 1
  local r = {}
  function r.byte()
    local b = byte(code, at)
    at = at + 1
    return assert(b)
  end
  function r.int()
    local v = 0
    while true do
      local b = r.byte()
      v = v << 7 | b & 0x7f
      if b & 0x80 ~= 0 then return v end
    end
  end
  function r.bytes(n)
    local s = code:sub(at, at + n - 1)
    assert(#s == n)
    at = at + n
    return s
  end
  function r.string()
    local n = r.int()
    return n > 0 and r.bytes(n - 1) or nil
  end
  return r
end

local function read_constant(r)
  local kind = r.byte()
  if kind == 0x04 or kind == 0x14 then return r.string() end
  if kind == 0x03 then return (unpack("<j", r.bytes(8))) end
  if kind == 0x13 then return (unpack("<n", r.bytes(8))) end
  assert(kind == 0x00 or kind == 0x01 or kind == 0x11)
  return kind == 0x11
end

local function read_function(r)
  local f = { code = {}, constants = {}, upvalues = {}, children = {} }
  r.string()
  r.int()
  r.int()
  f.parameters, f.vararg, f.registers = r.byte(), r.byte(), r.byte()
  local n = r.int()
  local code = r.bytes(4 * n)
  for i = 1, n do f.code[i] = unpack("<I4", code, 4 * i - 3) end
  for i = 1, r.int() do f.constants[i - 1] = read_constant(r) end
  for i = 1, r.int() do
    f.upvalues[i] = { in_stack = r.byte() == 1, index = r.byte() }
    r.byte()
  end
  for i = 1, r.int() do f.children[i - 1] = read_function(r) end
  r.bytes(r.int())
  for _ = 1, 2 * r.int() do r.int() end
  for _ = 1, r.int() do
    r.string()
    r.int()
    r.int()
  end
  for _ = 1, r.int() do r.string() end
  return f
end

-- ---- what instructions do ------------------------------------------------------------------------------------------

local function path_of(base, key)
  if #base >= LONGEST then return nil end
  local p = { upvalue = base.upvalue, table.unpack(base) }
  p[#p + 1] = key
  p.text = ("%s|%s:%s"):format(base.text, math.type(key) or type(key), tostring(key))
  return p
end

-- CLOSE, JMP, TEST, RETURN0, VARARGPREP, EXTRAARG
local NO_EFFECT = { [54] = true, [56] = true, [66] = true, [71] = true, [81] = true, [82] = true }

-- analyse(function) → list of paths that are read, set of texts of those all of which may be read.
local function analyse(f)
  local paths, escaped, captured, count = {}, {}, {}, 0
  for i = 0, #f.upvalues - 1 do
    local p = { upvalue = i + 1, text = tostring(i + 1) }
    paths[p.text] = p
  end
  local function root(i) return { [tostring(i + 1)] = true } end
  local function escape(set)
    for text in pairs(set or {}) do escaped[text] = true end
  end
  local function field(set, key)
    local out = {}
    for text in pairs(set or {}) do
      local p = path_of(paths[text], key)
      if p then
        if not paths[p.text] then
          paths[p.text] = p
          count = count + 1
          assert(count < MOST)
        end
        out[p.text] = true
      else
        escaped[text] = true
      end
    end
    return out
  end
  local function children(g)
    for _, child in pairs(g.children) do
      for _, u in ipairs(child.upvalues) do
        if u.in_stack then captured[u.index] = true else escape(root(u.index)) end
      end
    end
  end
  children(f)

  local last = f.registers
  local function step(pc, s) -- s: register → set of paths, changed in place → the instructions that may follow
    local i = f.code[pc]
    local op, a, k, b, c = i & 0x7f, i >> 7 & 0xff, i >> 15 & 1, i >> 16 & 0xff, i >> 24 & 0xff
    local bx = i >> 15
    local function set(r, v)
      if captured[r] then escape(v) end
      s[r] = v and next(v) and v or nil
    end
    local function read(from, to)
      for r = from, to or from do escape(s[r]) end
    end
    local function clear(from, to)
      for r = from, to do s[r] = nil end
    end
    if op == 0 then set(a, s[b])
    elseif op >= 1 and op <= 7 then set(a, nil)
    elseif op == 8 then clear(a, a + b)
    elseif op == 9 then set(a, root(b))
    elseif op == 10 then read(a)
    elseif op == 11 then set(a, field(root(b), f.constants[c]))
    elseif op == 12 then
      read(b)
      read(c)
      set(a, nil)
    elseif op == 13 then set(a, field(s[b], c))
    elseif op == 14 then set(a, field(s[b], f.constants[c]))
    elseif op == 15 then
      escape(root(a))
      if k == 0 then read(c) end
    elseif op >= 16 and op <= 18 then
      read(a)
      if op == 16 then read(b) end
      if k == 0 then read(c) end
    elseif op == 19 then set(a, nil)
    elseif op == 20 then
      read(b)
      clear(a, a + 1)
    elseif op >= 21 and op <= 45 then
      read(b)
      if op >= 34 then read(c) end
      set(a, nil)
    elseif op >= 46 and op <= 48 then
      read(a)
      if op == 46 then read(b) end
    elseif op == 49 or op == 50 or op == 52 then
      read(b)
      set(a, nil)
    elseif op == 51 then set(a, nil)
    elseif op == 53 then
      read(a, a + b - 1)
      set(a, nil)
    elseif op == 55 then read(a)
    elseif op >= 57 and op <= 59 then
      read(a)
      read(b)
    elseif op >= 60 and op <= 65 then read(a)
    elseif op == 67 then
      local both = {}
      for text in pairs(s[a] or {}) do both[text] = true end
      for text in pairs(s[b] or {}) do both[text] = true end
      set(a, both)
    elseif op == 68 or op == 69 then
      read(a, b > 0 and a + b - 1 or last)
      clear(a, last)
    elseif op == 70 then read(a, b > 0 and a + b - 2 or last)
    elseif op == 78 then read(a, last)
    elseif op == 72 then read(a)
    elseif op == 73 or op == 74 then
      read(a, a + 2)
      clear(a, a + 3)
    elseif op == 75 then read(a, a + 3)
    elseif op == 76 then
      read(a, a + 3)
      clear(a + 4, last)
    elseif op == 77 then
      read(a, a + 4)
      set(a + 2, nil)
    elseif op == 79 then set(a, nil)
    elseif op == 80 then clear(a, last)
    else
      assert(NO_EFFECT[op], "an instruction of another Lua")
    end

    if op == 56 then return pc + 1 + (i >> 7) - 0xffffff end
    if op >= 57 and op <= 67 then return pc + 1, pc + 2 end
    if op == 6 then return pc + 2 end
    if op == 73 or op == 77 then return pc + 1, pc + 1 - bx end
    if op == 74 then return pc + 1, pc + 2 + bx end
    if op == 75 then return pc + 1 + bx end
    if op >= 70 and op <= 72 then return nil end
    return pc + 1
  end

  -- Does more come into `into`?
  local function join(into, s)
    local more = false
    for r, set in pairs(s) do -- sets are shared between states, so they are made anew
      local both, have = {}, into[r] or {}
      for text in pairs(have) do both[text] = true end
      for text in pairs(set) do
        more = more or not have[text]
        both[text] = true
      end
      into[r] = both
    end
    return more
  end
  local entry, work, budget = { [1] = {} }, { 1 }, 200 * #f.code + 1000
  while #work > 0 do
    local pc = table.remove(work)
    budget = budget - 1
    assert(budget > 0 and f.code[pc])
    local s = {}
    for r, set in pairs(entry[pc]) do s[r] = set end
    local function follow(to)
      if not to then return end
      local new = not entry[to]
      entry[to] = entry[to] or {}
      if join(entry[to], s) or new then work[#work + 1] = to end
    end
    local one, two = step(pc, s)
    follow(one)
    follow(two)
  end
  return paths, escaped
end

local known = setmetatable({}, { __mode = "k" })

--- reach.of(f) → a list of paths {upvalue = i, key, …} that f reads, each with `all` where everything below may be
-- read; nil: not known.
function reach.of(f)
  local list = known[f]
  if list ~= nil then return list or nil end
  known[f] = false
  local code = string.dump(f, true)
  if code:sub(1, #HEADER) ~= HEADER then return nil end
  local r = reader(code)
  r.bytes(#HEADER + 1)
  local ok, paths, escaped = core.attempt(function() return analyse(read_function(r)) end)
  if not ok then return nil end
  list = {}
  for text, p in pairs(paths) do
    p.all = escaped[text]
    list[#list + 1] = p
  end
  table.sort(list, function(p, q) return p.text < q.text end)
  known[f] = list
  return list
end

local function joins(f)
  for _, i in ipairs(f.code) do
    if i & 0x7f == 53 then return true end
  end
  for _, child in pairs(f.children) do
    if joins(child) then return true end
  end
  return false
end

-- Does f, or a function written inside of it, join texts (..)? true where the code is not as expected.
local function joins_texts(f)
  local code = string.dump(f, true)
  if code:sub(1, #HEADER) ~= HEADER then return true end
  local r = reader(code)
  r.bytes(#HEADER + 1)
  local ok, found = core.attempt(function() return joins(read_function(r)) end)
  return not ok or found
end

-- Who calls one of these, by any name, goes over all keys or makes texts that may be keys.
local MAKERS, MAKES = {}, {}
for _, lib in ipairs { _G, string, table, io, os, utf8 } do
  local makers = "pairs next char find format gmatch gsub lower match rep reverse sub upper concat read lines getenv"
  for name in makers:gmatch "%a+" do
    if lib[name] then MAKERS[#MAKERS + 1], MAKES[lib[name]] = name, true end
  end
end

--- Texts that may be keys of an optimizer's group go into list.names: those in the code of what is called, whose
-- functions list.code has, in what it sees and among its arguments. list.any_key: it may make any.
function reach.note_texts(list, args, n)
  for _, g in ipairs(list) do
    for _, v in next, g[3] do
      if type(v) == "string" then list.names[v] = true end
      if MAKES[v] then list.any_key = true end
    end
  end
  for _, name in ipairs(MAKERS) do list.any_key = list.any_key or list.names[name] end
  for _, f in ipairs(list.code) do list.any_key = list.any_key or joins_texts(f) end
  for i = 1, n do
    if type(args[i]) == "string" then list.names[args[i]] = true end
  end
end

return reach
