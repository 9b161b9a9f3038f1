-- SPDX-License-Identifier: MIT
-- What the comments above perilune's own functions and classes say: help for what has no entry of its own (pages.lua).
-- The text is read from the Lua files when somebody asks.
local comments = require "perilune.help.comments"
local options = require "perilune.options"
local signature = require "perilune.help.signature"
local original = require("perilune.surface").original

local M = {}

local home = comments.home

-- Where a function of perilune's own is written: path, line; nil for others.
local function place(f)
  f = original[f] or f
  local info = debug.getinfo(f, "S")
  local path = info.source:match "^@(.*)$"
  if info.what == "C" or not path or path:sub(1, #home) ~= home then return nil end
  return path, info.linedefined
end

-- Is a function perilune's own, of Lua?
function M.is_own(f) return place(f) ~= nil end

-- The comment above a function.
function M.of_function(f)
  local path, line = place(f)
  for _, block in ipairs(path and comments.blocks(path) or {}) do
    if block.at == line then return comments.text(block) end
  end
end

local function own_functions(class)
  local list = {}
  for key, f in next, class do
    if type(key) == "string" and type(f) == "function" and not key:find "^_" then list[#list + 1] = { key, f } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

-- The comment above the line that makes a class: `local Name = class "Name"`, or `Name = …` in a list of classes.
function M.of_class(class, name)
  for _, entry in ipairs(own_functions(class)) do
    local path = place(entry[2])
    for _, block in ipairs(path and comments.blocks(path) or {}) do
      if block.code:find("class[%s(]*[\"']" .. name .. "[\"']") or block.code:find("^%s+" .. name .. " = ") then
        return comments.text(block)
      end
    end
  end
  return nil
end

local function parameters(f)
  f = original[f] or f
  local info, names = debug.getinfo(f, "u"), {}
  for i = 1, info.nparams do names[i] = debug.getlocal(f, i) end
  if info.isvararg then names[#names + 1] = "…" end
  return names
end

M.parameters = parameters

-- Arguments of an optimizer from its settings: {name, default, check}.
local function settings_text(class, name)
  local words = {}
  for _, s in ipairs(class.settings) do
    local v, parts = s[2], {}
    for i, x in ipairs(type(v) == "table" and v or {}) do parts[i] = tostring(x) end
    words[#words + 1] = s[1] .. "=" .. (type(v) == "table" and "{" .. table.concat(parts, ", ") .. "}"
      or v == nil and "" or tostring(v))
  end
  return ("optim.%s(parameters, {%s})"):format(name, table.concat(words, ", "))
end

-- name as in "nn.Linear", value a class or a function of perilune. → {signature=, text=, arguments=}; or nil
function M.entry(name, value)
  local key = name:match "[%w_]+$"
  local spec = options.specs[name] or options.specs["T." .. name]
    or (name:find "^nn%.F%." and options.specs[key]) or nil
  if type(value) == "function" then
    local text = M.of_function(value)
    if not spec and not (text and place(value)) then return nil end
    return { signature = spec and signature.call(spec.key, name)
      or ("%s(%s)"):format(name, table.concat(parameters(value), ", ")),
      text = text, arguments = spec and signature.arguments(spec.key) or {} }
  end
  if type(value) ~= "table" then return nil end
  local meta = getmetatable(value)
  if not (meta and rawget(meta, "__call")) then return nil end
  if type(rawget(value, "settings")) == "table" then
    return { signature = settings_text(value, key), text = M.of_class(value, key), arguments = {}, class = value }
  end
  local init = rawget(value, "init") or rawget(value, "new")
  local names = type(init) == "function" and parameters(init) or {}
  if names[1] == "self" then table.remove(names, 1) end
  return { signature = spec and signature.call(spec.who, name) or ("%s(%s)"):format(name, table.concat(names, ", ")),
    text = M.of_class(value, key), arguments = spec and signature.arguments(spec.who) or {}, class = value }
end

-- The public methods of a class that it does not inherit: list of {name=, signature=, text=}.
function M.methods(class)
  local list = {}
  for _, entry in ipairs(own_functions(class)) do
    local names = parameters(entry[2])
    local is_method = names[1] == "self"
    if is_method then table.remove(names, 1) end
    if entry[1] ~= "init" and entry[1] ~= "extra_repr" and is_method then
      list[#list + 1] = { name = entry[1], signature = (":%s(%s)"):format(entry[1], table.concat(names, ", ")),
        text = M.of_function(entry[2]) }
    end
  end
  return list
end

-- An entry as the text that help prints.
function M.page(name, value)
  local entry = M.entry(name, value)
  if not entry then return nil end
  local lines = { entry.signature, entry.text }
  for _, line in ipairs(entry.arguments) do lines[#lines + 1] = "  " .. line end
  return table.concat(lines, "\n")
end

return M
