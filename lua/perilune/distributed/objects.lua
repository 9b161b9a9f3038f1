-- SPDX-License-Identifier: MIT
--- Plain values between processes: tables, numbers, strings, booleans and tensors. They travel as data and no code runs
-- when they arrive, so functions, metatables and other objects do not travel.
-- @module perilune.distributed.objects
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"
local io_ = require "perilune.io"
local state = require "perilune.distributed.state"
local tensors = require "perilune.distributed.tensors"

local fail, describe = options.fail, options.describe
local M = {}

-- ---- a value as bytes -------------------------------------------------------------------------------------

local function check_plain(who, v, seen)
  if type(v) == "userdata" and not core.is_tensor(v) then
    fail("%s: a value is %s; tensors, tables, strings, numbers and booleans travel", who, describe(v))
  end
  if type(v) ~= "table" or seen[v] then return end
  seen[v] = true
  for _, x in next, v do check_plain(who, x, seen) end
end

-- text, then of each tensor: name, dtype, shape, elements
local function to_bytes(who, v)
  if v == nil then fail("%s: the value is nil", who) end
  check_plain(who, v, {})
  local text, names, list = io_.to_text(who, v)
  local out = { string.pack("<s8I4", text, #names) }
  for i, t in ipairs(list) do
    local shape = t:shape()
    out[#out + 1] = string.pack("<s4s1B", names[i], t:dtype(), #shape)
    for _, n in ipairs(shape) do out[#out + 1] = string.pack("<i8", n) end
    out[#out + 1] = string.pack("<s8", t:detach():to_string())
  end
  return table.concat(out)
end

local function read_bytes(bytes)
  local text, n, at = string.unpack("<s8I4", bytes)
  local list = {}
  for _ = 1, n do
    local name, dtype, ndim, elements
    name, dtype, ndim, at = string.unpack("<s4s1B", bytes, at)
    local shape = {}
    for d = 1, ndim do shape[d], at = string.unpack("<i8", bytes, at) end
    elements, at = string.unpack("<s8", bytes, at)
    list[name] = T.from_string(elements, dtype, shape):to("cpu")
  end
  return io_.from_text(text, list)
end

local function from_bytes(who, bytes)
  local ok, v = core.attempt(read_bytes, bytes)
  if not ok or v == nil then fail("%s: what arrived is damaged, or from another version of perilune", who) end
  return v
end

local function bytes_tensor(s) return T.from_string(s, "u8", { #s }):to("cpu") end
local function room(...) return T.empty({ ... }, { dtype = "u8", device = "cpu" }) end

-- The lengths of all ranks' bytes, and the longest.
local function lengths(who, g, n)
  local mine = T.tensor({ n }, { dtype = "i64", device = "cpu" })
  local all = T.empty({ g.n }, { dtype = "i64", device = "cpu" })
  state.start(who, "all_gather", g, mine, all, {}, false)
  return all:totable(), all:max():item()
end

local function padded(bytes, n) return bytes_tensor(bytes .. ("\0"):rep(n - #bytes)) end

local function read_group(who, opts, ...)
  local o = options.check(who, opts, { "group", ... })
  return o, state.group(who, o.group)
end

local function check_target(who, list, g)
  if type(list) ~= "table" then fail("%s: a table for %d values is wanted, got %s", who, g.n, describe(list)) end
end

-- ---- operations -------------------------------------------------------------------------------------------

--- T.distributed.all_gather_object(list, value, {group=}) → list
-- list[1 + r] := rank r's value. Tables, numbers, strings, booleans and tensors; no code runs when they arrive.
--   T.distributed.init_process_group()
--   print(T.distributed.all_gather_object({}, { name = "a" })[1].name)  --> a
--   T.distributed.destroy_process_group()
function M.all_gather_object(list, value, opts)
  local who = "all_gather_object"
  local _, g = read_group(who, opts)
  check_target(who, list, g)
  tensors.agree(g, who, "")
  local bytes = to_bytes(who, value)
  local each, longest = lengths(who, g, #bytes)
  local all = room(g.n, longest)
  state.start(who, "all_gather", g, padded(bytes, longest), all, {}, false)
  for i = 1, g.n do list[i] = from_bytes(who, all[i]:narrow(1, 1, each[i]):to_string()) end
  return list
end

--- T.distributed.gather_object(value, list, dst=0, {group=}) → list
-- The same on rank dst alone; the others give nil. Tables, numbers, strings, booleans and tensors; no code runs when
-- they arrive.
--   T.distributed.init_process_group()
--   print(T.distributed.gather_object("a", {})[1])  --> a
--   T.distributed.destroy_process_group()
function M.gather_object(value, list, dst, opts)
  local who = "gather_object"
  if type(dst) == "table" and opts == nil then dst, opts = nil, dst end
  local o, g = read_group(who, opts, "dst")
  dst = options.once(who, "dst", dst, o) or 0
  local peer = state.member(who, "dst", g, dst)
  if peer == g.mine then check_target(who, list, g) end
  tensors.agree(g, who, "dst=%d", dst)
  local bytes = to_bytes(who, value)
  local each, longest = lengths(who, g, #bytes)
  local all = peer == g.mine and room(g.n, longest) or nil
  state.start(who, "gather", g, padded(bytes, longest), all, { peer = peer }, false)
  for i = 1, all and g.n or 0 do list[i] = from_bytes(who, all[i]:narrow(1, 1, each[i]):to_string()) end
  return list
end

--- T.distributed.broadcast_object_list(list, src=0, {group=}) → list
-- The entries of the list become those of rank src's. Tables, numbers, strings, booleans and tensors; no code runs when
-- they arrive.
--   T.distributed.init_process_group()
--   print(T.distributed.broadcast_object_list({ 3 })[1])  --> 3
--   T.distributed.destroy_process_group()
function M.broadcast_object_list(list, src, opts)
  local who = "broadcast_object_list"
  if type(src) == "table" and opts == nil then src, opts = nil, src end
  local o, g = read_group(who, opts, "src")
  src = options.once(who, "src", src, o) or 0
  local peer = state.member(who, "src", g, src)
  check_target(who, list, g)
  tensors.agree(g, who, "src=%d", src)
  local bytes = peer == g.mine and to_bytes(who, list) or ""
  local n = T.tensor({ #bytes }, { dtype = "i64", device = "cpu" })
  state.start(who, "broadcast", g, nil, n, { peer = peer }, false)
  local data = peer == g.mine and bytes_tensor(bytes) or room(n:item())
  state.start(who, "broadcast", g, nil, data, { peer = peer }, false)
  if peer ~= g.mine then for key, v in pairs(from_bytes(who, data:to_string())) do list[key] = v end end
  return list
end

--- T.distributed.scatter_object_list(out, list, src=0, {group=}) → out
-- out[1] := entry 1 + rank of rank src's list; the others give nil. Tables, numbers, strings, booleans and tensors; no
-- code runs when they arrive.
--   T.distributed.init_process_group()
--   print(T.distributed.scatter_object_list({}, { 3 })[1])  --> 3
--   T.distributed.destroy_process_group()
function M.scatter_object_list(out, list, src, opts)
  local who = "scatter_object_list"
  if type(src) == "table" and opts == nil then src, opts = nil, src end
  local o, g = read_group(who, opts, "src")
  src = options.once(who, "src", src, o) or 0
  local peer = state.member(who, "src", g, src)
  check_target(who, out, g)
  if peer == g.mine and (type(list) ~= "table" or #list ~= g.n) then
    fail("%s: rank %d, the source, must give a list of %d values", who, src, g.n)
  end
  local pieces = peer == g.mine and {} or nil
  for i = 1, pieces and g.n or 0 do pieces[i] = to_bytes(who, list[i]) end
  local each = M.broadcast_object_list(pieces and (function()
    local sizes = {}
    for i, p in ipairs(pieces) do sizes[i] = #p end
    return sizes
  end)() or {}, src, { group = o.group })
  local longest = math.max(table.unpack(each))
  local all
  if pieces then
    all = room(g.n, longest)
    for i, p in ipairs(pieces) do all[i]:copy_(padded(p, longest)) end
  end
  local mine = room(longest)
  state.start(who, "scatter", g, all, mine, { peer = peer }, false)
  out[1] = from_bytes(who, mine:narrow(1, 1, each[g.mine + 1]):to_string())
  return out
end

return M
