-- SPDX-License-Identifier: MIT
-- The whole folder with tensors on the device, from one source. PERILUNE_TEST_DEVICE says how:
--   cuda    the device is the default one: whatever a spec or the library makes is there
--   moved   what a spec makes is moved there, networks too; what the library makes beside it, stays where it puts it
-- Without it, or with "cpu", nothing changes. What makes no sense there stands in spec/cuda/cpu_only.lua with its
-- reason, and is counted as pending. The specs of spec/cuda place tensors themselves and stay as they are.
-- A device notices bad indexes, divisions by zero and their like when somebody waits: the pcall of a spec, an assertion
-- that calls a function, and each case wait at their end, so an error is found where it is expected, and never later.

local M = {}

local MAKERS = { "tensor", "from_string", "zeros", "ones", "full", "empty", "arange", "linspace", "logspace", "eye",
  "rand", "randn", "randint", "randperm", "uniform", "normal", "tril_indices", "triu_indices" }

local mode = os.getenv "PERILUNE_TEST_DEVICE"
if mode == "" or mode == "cpu" then mode = nil end
M.mode = mode

-- Is the function `level` levels above the caller one of a spec? Tail calls leave no trace: then it counts as one.
local function from_spec(level)
  local info = debug.getinfo(level + 1, "S")
  return info ~= nil and info.source:find("spec/", 1, true) ~= nil
end

-- What pcall gave: results, or the error, at the line that called the mover instead of one of this file.
local function at_caller(fine, ...)
  if fine then return ... end
  local err, level = ..., 2 -- a tail call: the mover is gone
  local info = debug.getinfo(level, "Sl")
  while info and (info.currentline < 0 or info.short_src:find("waiting%.lua$")) do -- C, and the pcall that waits
    level = level + 1
    info = debug.getinfo(level, "Sl")
  end
  if type(err) == "string" and info then
    local here = ("%s:%d: "):format(info.short_src, info.currentline)
    err = err:gsub("^[^\n:]*support/device%.lua:%d+: ", function() return here end)
  end
  error(err, 0)
end

-- perilune as the files of specs have it, whose makers make on the device. What the library itself requires is
-- unchanged, so what it makes beside tensors of the device stays where it puts it, tail calls or not.
local set_by_spec -- the default device
local function move_what_specs_make(T)
  local with, makers, made = T.core.device.with, {}, {}
  local function mover(make)
    if not made[make] then
      made[make] = function(...) return at_caller(pcall(with, "cuda", make, ...)) end
    end
    return made[make]
  end
  -- real, but for what `change` makes of some values
  local function beside(real, change)
    return setmetatable({}, {
      __index = function(_, key)
        local v = real[key]
        local other = v ~= nil and change(key, v)
        return other or v
      end,
      __newindex = function(_, key, v)
        makers[key] = nil
        real[key] = v
      end,
      __pairs = function() return pairs(real) end,
      __call = function(_, ...) return real(...) end,
    })
  end
  for _, name in ipairs(MAKERS) do makers[name] = true end
  makers.load_graph = true
  local function networks(name, v)
    return type(v) == "function" and (name == "load" or name:find "^%u") and mover(v) or nil
  end
  local rooms = { models = networks, onnx = networks }
  local mine = {
    get_default_device = function()
      local name = T.get_default_device()
      return name == "cpu" and not set_by_spec and "cuda" or name
    end,
    set_default_device = function(...)
      set_by_spec = true
      return T.set_default_device(...)
    end,
  }
  local seen
  function mine.manual_seed(seed)
    T.manual_seed(seed)
    return seen
  end
  seen = beside(T, function(key, v)
    if rooms[key] then mine[key], rooms[key] = beside(v, rooms[key]), nil end
    return mine[key] or makers[key] and mover(v)
  end)
  local require = require
  function _G.require(name, ...)
    if name == "perilune" and from_spec(2) then return seen end
    return require(name, ...)
  end
  local graph = getmetatable(T.graph())
  graph.input = mover(graph.input)
  for _, room in ipairs { T.nn, T.nn.quant } do
    local classes = {}
    for name, class in pairs(room) do classes[#classes + 1] = { name, class } end
    for _, entry in ipairs(classes) do
      local class = entry[2]
      local meta = type(class) == "table" and rawget(class, "__perilune_module") and getmetatable(class)
      if meta and meta.__call and not meta.moved then
        local construct = meta.__call
        meta.moved = true
        meta.__call = function(...)
          if from_spec(2) then return at_caller(pcall(with, "cuda", construct, ...)) end
          return at_caller(pcall(construct, ...))
        end
      end
    end
  end
end

-- pcall, as called by specs and by the library of assertions, waits (spec/cuda/waiting.lua). Its code counts as
-- perilune's own: a search for the place of an error passes over it, as over C.
local function wait_where_errors_are_expected(T)
  local home = debug.getinfo(require "perilune.options".fail, "S").source:match "^(.*)options%.lua$"
  local f = assert(io.open(assert(package.searchpath("spec.cuda.waiting", package.path))))
  local text = f:read "a"
  f:close()
  _G.pcall = assert(load(text, home .. "waiting.lua", "t"))()(T)
end

-- The text of an entry in the list for this test: its own, its file's, or its folder's.
local function reason(list, file, name)
  local entry = list[file] or list[file:match "^[^/]*/"]
  if type(entry) ~= "table" then return entry end
  for part, why in pairs(entry) do
    if name:find(part, 1, true) then
      list.used[file .. ": " .. part] = true
      return why
    end
  end
end

-- Called by the helper before any file.
function M.install(busted, T)
  if not mode then return end
  if mode ~= "cuda" and mode ~= "moved" then error("PERILUNE_TEST_DEVICE: cpu, cuda or moved, got " .. mode, 0) end
  local there, why = T.core.device.available()
  if not there then error("PERILUNE_TEST_DEVICE=" .. mode .. ": " .. tostring(why), 0) end
  local list = require "spec.cuda.cpu_only"[mode]
  list.used = {}
  if mode == "moved" then move_what_specs_make(T) end
  wait_where_errors_are_expected(T)
  local file, own

  local function place()
    set_by_spec = false
    if mode == "cuda" then T.set_default_device(own and "cpu" or "cuda") end
  end
  busted.subscribe({ "file", "start" }, function(element)
    file = element.name:gsub("^%./", ""):match("spec/(.*)_spec%.lua$") or element.name
    own = file:find("^cuda/") ~= nil
    place()
    return nil, true
  end, { priority = 1 })
  local blocks = {} -- a test's name counts behind those of the blocks it is in
  busted.subscribe({ "describe", "start" }, function(element)
    blocks[#blocks + 1] = element.name
    return nil, true
  end)
  busted.subscribe({ "describe", "end" }, function()
    blocks[#blocks] = nil
    return nil, true
  end)
  busted.subscribe({ "test", "start" }, function(element)
    place() -- a spec that failed may have left another
    if own then return nil, true end
    pcall(T.cuda.synchronize) -- or an error that nobody has read
    local text, run = reason(list, file, table.concat(blocks, " ") .. " " .. element.name), element.run
    element.run = text and function() element.env.pending(text) end or function(...)
      run(...)
      T.cuda.synchronize()
    end
    return nil, true
  end)
  busted.subscribe({ "file", "end" }, function()
    if type(list[file]) == "table" then
      for part in pairs(list[file]) do
        if not list.used[file .. ": " .. part] then
          error(("spec/cuda/cpu_only.lua lists '%s' of %s, which has no such case"):format(part, file), 0)
        end
      end
    end
    T.set_default_device("cpu")
    return nil, true
  end, { priority = 1 })
end

return M
