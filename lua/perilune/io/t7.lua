-- SPDX-License-Identifier: MIT
--- Files of torch7 (torch.save), binary or ascii: data only. Functions in them are refused, or left out; objects of
-- other classes than tensors and storages, such as networks, come as tables of their fields with the class's name in
-- `torch_class`.
-- @module perilune.io.t7
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

-- torch7's type numbers (File.lua)
local NIL, NUMBER, STRING, TABLE, TORCH, BOOLEAN = 0, 1, 2, 3, 4, 5
local FUNCTION, FUNCTIONS = 6, { [6] = true, [7] = true, [8] = true } -- those above 6 are numbered as objects are
local SKIPPED = {} -- stands for a function that is left out
local MAX_DEPTH = 1000

local dtypes = { Byte = "u8", Char = "i8", Short = "i16", Int = "i32", Long = "i64", Float = "f32", Double = "f64",
  Half = "f16", Cuda = "f32", CudaByte = "u8", CudaChar = "i8", CudaShort = "i16", CudaInt = "i32", CudaLong = "i64",
  CudaDouble = "f64", CudaHalf = "f16" }

-- Failures travel as a table through error(), caught in load_t7.
local function stop(message, code) error({ message = message, code = code }, 0) end
local function take(value, message, code)
  if value == nil then stop(message, code) end
  return value
end
local function bad(r, why)
  local _, message, code = r.file:bad(why)
  stop(message, code)
end

local read

local function read_tensor(r, depth)
  local n = take(r.file:int())
  if n < 0 or n > 16 then bad(r, "a tensor of more than 16 dimensions") end
  local size, stride = take(r.file:longs(n)), take(r.file:longs(n))
  local offset = take(r.file:longs(1))[1]
  local storage = read(r, depth + 1)
  if storage ~= nil and not core.is_tensor(storage) then bad(r, "a tensor without storage") end
  if storage == nil then -- an empty tensor has none
    storage, offset = core.zeros(0), 1
    for _, s in ipairs(size) do if s > 0 then bad(r, "a tensor without storage") end end
  end
  if n == 0 then return storage:narrow(1, 1, 0) end -- torch7's tensor without dimensions is empty
  return take(r.file:view(storage, size, stride, offset - 1))
end

local function read_table(r, t, depth)
  for _ = 1, take(r.file:int()) do
    local key = read(r, depth + 1)
    local value = read(r, depth + 1)
    if key == nil or key ~= key then bad(r, "a table with a key that is nil or not a number") end
    if key ~= SKIPPED and value ~= SKIPPED then t[key] = value end
  end
end

local function read_torch(r, index, depth)
  local class = take(r.file:string())
  if class:find("^V %d+$") then class = take(r.file:string()) end -- old files have no version before it
  local kind, what = class:match("^torch%.(%w-)(Tensor)$")
  if not kind then kind, what = class:match("^torch%.(%w-)(Storage)$") end
  if kind and dtypes[kind] then
    local x
    if what == "Storage" then x = take(r.file:storage(dtypes[kind])) else x = read_tensor(r, depth) end
    r.objects[index] = x
    return x
  end
  local object = { torch_class = class }
  r.objects[index] = object
  local fields = read(r, depth + 1)
  if type(fields) ~= "table" then
    bad(r, ("an object of class %s, whose fields are no table"):format(class:sub(1, 60)))
  end
  for key, value in pairs(fields) do object[key] = value end
  return object
end

-- Its code is not looked at; what it refers to is read and dropped, as objects behind it may refer to that.
local function read_function(r, kind, depth)
  if not r.skip then
    local _, message = r.file:bad("a function; only data is loaded from torch7's files; functions = \"skip\" leaves "
      .. "them out")
    stop(message, "unsupported")
  end
  if kind ~= FUNCTION then
    local index = take(r.file:int())
    if r.objects[index] ~= nil then return r.objects[index] end
    r.objects[index] = SKIPPED
  end
  take(r.file:string())
  read(r, depth + 1)
  return SKIPPED
end

function read(r, depth)
  if depth > MAX_DEPTH then bad(r, "nested deeper than " .. MAX_DEPTH .. " values") end
  local kind = take(r.file:int())
  if kind == NIL then return nil end
  if kind == NUMBER then return take(r.file:double()) end
  if kind == STRING then return take(r.file:string()) end
  if kind == BOOLEAN then return take(r.file:int()) ~= 0 end
  if FUNCTIONS[kind] then return read_function(r, kind, depth) end
  if kind ~= TABLE and kind ~= TORCH then bad(r, ("type %d, which torch7 does not have"):format(kind)) end
  local index = take(r.file:int())
  if r.objects[index] ~= nil then return r.objects[index] end
  if kind == TORCH then return read_torch(r, index, depth) end
  local t = {}
  r.objects[index] = t -- before its contents: they may refer to it
  read_table(r, t, depth)
  return t
end

-- Reads a file that torch7 wrote: tensors (views of one storage share their memory), tables, strings, numbers and
-- booleans, with cycles. Integer-valued keys of tables become integers, as Lua has it.
-- @tparam[opt] table opts `functions="error"`, or "skip": entries that are functions are left out, no code is run
-- @treturn value; or nil, message, code ("io", "format", "unsupported" when there is code in it)
--- T.load_t7(path, {functions="error"}) → value, or nil, message, code
-- Reads what torch7 saved, binary or ascii: tensors, tables, strings, numbers, booleans, with cycles. Functions are
-- refused, or left out with functions="skip"; objects of other classes become tables of their fields with the class's
-- name in torch_class.
--   print((T.load_t7("/nowhere/model.t7")))  --> nil
local function load_t7(path, opts)
  opts = options.check("load_t7", opts, { "functions" })
  local functions = opts.functions or "error"
  if functions ~= "error" and functions ~= "skip" then
    fail("load_t7: %s", options.unknown("functions", functions, { "error", "skip" }))
  end
  if type(path) ~= "string" then fail("load_t7: the path must be a string, got %s", describe(path)) end
  local file, message, code = core.open_t7(path)
  if not file then return nil, message, code end
  local r = { file = file, objects = {}, skip = functions == "skip" }
  local ok, value = pcall(function()
    local v = read(r, 1)
    if not take(file:over()) then bad(r, "more data behind the object") end
    if v == SKIPPED then stop(path .. ": a function and nothing else", "unsupported") end
    return v
  end)
  file:close()
  if ok then return value end
  if type(value) == "table" and value.message then return nil, value.message, value.code end
  error(value, 0)
end

return { load_t7 = load_t7 }
