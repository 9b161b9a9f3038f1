-- SPDX-License-Identifier: MIT
--- Members of modules by path: get_submodule, get_parameter, get_buffer, set_submodule.
local options = require "perilune.options"
local class_name = require("perilune.surface").class_name

local fail, rawget, type = options.fail, rawget, type

return function(base)
  local Module, is_module, is_parameter = base.Module, base.is_module, base.is_parameter

  local function child(m, key)
    local n = key:match("^%d+$") and math.tointeger(tonumber(key))
    return rawget(m, key) or n and rawget(m, n) or nil
  end
  local function walk(who, self, path)
    if type(path) ~= "string" then fail("%s: a path is a string, got %s", who, options.describe(path)) end
    local m = self
    for key in path:gmatch("[^.]+") do
      local at = child(m, key)
      if not is_module(at) then fail("%s: '%s' has no module '%s'", who, class_name(m), key) end
      m = at
    end
    return m
  end
  local function member(who, self, path, wanted)
    local owner, key = path:match("^(.*)%.([^.]+)$")
    local m = walk(who, self, owner or "")
    key = key or path
    local n = key:match("^%d+$") and math.tointeger(tonumber(key))
    local v = base.member(m, key) or n and base.member(m, n)
    if not v or not wanted(m, key, v) then fail("%s: '%s' has no '%s'", who, class_name(m), key) end
    return v
  end

  --- The module at "encoder.layers.1"; "" is this one.
  function Module:get_submodule(path) return walk("get_submodule", self, path) end
  --- The parameter at "layers.1.weight".
  function Module:get_parameter(path)
    return member("get_parameter", self, path, function(_, _, v) return is_parameter[v] end)
  end
  --- The buffer at "norm.running_mean".
  function Module:get_buffer(path)
    return member("get_buffer", self, path, function(m, key) return m._buffers[key] end)
  end
  --- Puts a module at a path whose owner exists.
  function Module:set_submodule(path, m)
    if type(path) ~= "string" or path == "" then
      fail("set_submodule: a path is wanted, got %s", options.describe(path))
    end
    if not is_module(m) then fail("set_submodule: a module is wanted, got %s", options.describe(m)) end
    local owner, key = path:match("^(.*)%.([^.]+)$")
    local at = walk("set_submodule", self, owner or "")
    key = key or path
    at:register_module(key:match("^%d+$") and math.tointeger(tonumber(key)) or key, m)
  end
end
