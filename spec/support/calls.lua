-- SPDX-License-Identifier: MIT
-- Every public callable with right calls of it: functions of T and its libraries, methods of tensors, constructors and
-- forward methods of modules, optimizers. The calls are those that the examples of help make: every symbol has one.
local T = require "perilune"
local M = {}

local SPACES = { "nn", "nn.F", "nn.init", "nn.utils", "nn.utils.rnn", "nn.quant", "optim",
  "optim.lr_scheduler", "optim.swa_utils",
  "data", "data.transforms", "linalg", "special", "distributions", "metrics" }

local function space_of(path)
  local t = T
  for key in path:gmatch "[^.]+" do t = t[key] end
  return t
end

--- {path=, name=, kind="function"|"method"|"class"|"forward", owner=, key=, f=} by path, in order.
function M.inventory()
  T.core.load_parts()
  local list, seen = {}, {}
  local function add(entry)
    entry.name = entry.path:match "[^.:]+$"
    list[#list + 1] = entry
  end
  local function look(path, t)
    if type(t) ~= "table" or seen[t] then return end
    seen[t] = true
    local keys = {}
    for key in pairs(t) do if type(key) == "string" and key:sub(1, 1) ~= "_" then keys[#keys + 1] = key end end
    table.sort(keys)
    for _, key in ipairs(keys) do
      local v = t[key]
      local meta = type(v) == "table" and getmetatable(v)
      if type(v) == "function" then
        add { path = path .. "." .. key, kind = "function", owner = t, key = key, f = v }
      elseif type(meta) == "table" and meta.__call then
        add { path = path .. "." .. key, kind = "class", owner = meta, key = "__call", f = v }
        if rawget(v, "__perilune_module") and rawget(v, "forward") then
          add { path = path .. "." .. key .. ":forward", kind = "forward", owner = v, key = "forward", f = v.forward }
        end
      end
    end
  end
  local spaces = {}
  for _, path in ipairs(SPACES) do
    spaces[path] = space_of(path)
    if type(spaces[path]) ~= "table" then error("no T." .. path) end
  end
  look("T", T)
  for _, path in ipairs(SPACES) do look("T." .. path, spaces[path]) end
  local methods, keys = T.core.metatable().methods, {}
  for key in pairs(methods) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    if key:sub(1, 1) ~= "_" then
      add { path = "x:" .. key, kind = "method", owner = methods, key = key, f = methods[key] }
    end
  end
  return list
end

--- The inventory; entry.calls lists the arguments (table.pack) of the calls that examples make of it.
function M.recorded()
  local list, depth, undo = M.inventory(), 0, {}
  local function after(...)
    depth = depth - 1
    return ...
  end
  for _, entry in ipairs(list) do
    entry.calls = {}
    local old, from = entry.owner[entry.key], entry.kind == "class" and 2 or 1
    undo[#undo + 1] = function() rawset(entry.owner, entry.key, old) end
    rawset(entry.owner, entry.key, function(...)
      if depth == 0 and #entry.calls < 4 then
        entry.calls[#entry.calls + 1] = table.pack(select(from, ...))
      end
      depth = depth + 1
      local results = table.pack(pcall(old, ...))
      after()
      if not results[1] then error(results[2], 0) end
      return table.unpack(results, 2, results.n)
    end)
  end
  local state = T.get_rng_state()
  local function run(name, code)
    depth = 0
    if name == "help" or name == "help_text" then return end -- they print
    local env = setmetatable({ T = T, nn = T.nn, optim = T.optim, print = function() end }, { __index = _G })
    local chunk = load(code, "=" .. name, "t", env)
    if chunk then pcall(chunk) end
  end
  for _, op in ipairs(T.core.ops()) do
    if op.example then run(op.name, op.example) end
  end
  for name, entry in pairs(require("perilune.help.pages").all()) do
    if not name:find "^distributed" and not name:find "^cuda" then run(name, entry.example) end
  end
  for k = #undo, 1, -1 do undo[k]() end
  T.set_rng_state(state)
  return list
end

return M
