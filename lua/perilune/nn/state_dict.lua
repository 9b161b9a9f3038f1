-- SPDX-License-Identifier: MIT
--- state_dict and load_state_dict: a module's parameters and persistent buffers by name.
-- Adds methods to the class Module, and `ordered_dict` to the table that it is given.
local T = require "perilune"
local options = require "perilune.options"
local class_name = require("perilune.surface").class_name

local fail, rawget, rawset, type = options.fail, rawget, rawset, type

return function(base)
  local Module, collect = base.Module, base.collect

  -- Tables that pairs() walks in a fixed order.
  local ordered = {}
  function ordered.__pairs(t)
    local names, i = getmetatable(t).names, 0
    local seen, rest = {}, nil
    return function()
      while i < #names do
        i = i + 1
        local name = names[i]
        seen[name] = true
        if rawget(t, name) ~= nil then return name, rawget(t, name) end
      end
      local value -- what was added later
      repeat rest, value = next(t, rest) until rest == nil or not seen[rest]
      if rest ~= nil then return rest, value end
    end
  end

  -- print(net:state_dict()): a line for each entry.
  function ordered.__tostring(t)
    local lines, n = {}, 0
    for name, v in pairs(t) do
      n = n + 1
      lines[n] = ("  %s: %s"):format(tostring(name), type(v) == "userdata" and base.shape_text(v)
        or (tostring(v):gsub("\n", "\n  ")))
    end
    return ("StateDict of %d (\n%s\n)"):format(n, table.concat(lines, "\n"))
  end

  local function ordered_dict(names)
    return setmetatable({}, { __pairs = ordered.__pairs, __tostring = ordered.__tostring, names = names,
      __name = "StateDict" })
  end

  --- All parameters and persistent buffers by name, detached, sharing their storage; pairs() keeps the order.
  -- `index_base=0` names the children of Sequential as PyTorch does.
  function Module:state_dict(opts)
    options.check("state_dict", opts, { "index_base" })
    local list, names = collect(self, "state", opts and opts.index_base), {}
    for i, item in ipairs(list) do names[i] = item[1] end
    local dict = ordered_dict(names)
    for _, item in ipairs(list) do rawset(dict, item[1], item[2]:detach()) end
    return dict
  end

  local function same_shape(a, b)
    local p, q = a:shape(), b:shape()
    if #p ~= #q then return false end
    for i = 1, #p do if p[i] ~= q[i] then return false end end
    return true
  end

  -- Whether a buffer becomes what the state has, though that is of another shape: its module says so by a method
  -- takes_shape(key, tensor, of), of(key) being what the state has for another buffer of that module.
  local function takes(item, new, sd)
    local m, key = item[3], item[4]
    if not m._buffers[key] or not m.takes_shape then return false end
    local prefix = item[1]:sub(1, -#tostring(key) - 1)
    return m:takes_shape(key, new, function(other)
      local t = sd[prefix .. other]
      return T.is_tensor(t) and t or nil
    end)
  end

  -- A name among those that nobody expects which this module has where its layers count from 0, or nil.
  local function counted_from_0(self, unexpected)
    if #unexpected == 0 then return nil end
    local there = {}
    for _, item in ipairs(collect(self, "state", 0)) do there[item[1]] = true end
    for _, name in ipairs(unexpected) do if there[name] then return name end end
  end

  --- Copies values by name into parameters and buffers. Nothing changes unless everything fits.
  -- @tparam table sd name → tensor
  -- @tparam[opt] table opts `strict=true`: missing and unexpected names are errors; `index_base=0`: the names
  -- count children from 0, as PyTorch's do
  -- @treturn {string,…} missing names
  -- @treturn {string,…} unexpected names
  function Module:load_state_dict(sd, opts)
    if options.comes_with(opts, sd) then opts = nil end -- a file's metadata
    options.check("load_state_dict", opts, { "strict", "index_base" })
    if type(sd) ~= "table" then
      fail("load_state_dict: a table of tensors is wanted, got %s", options.describe(sd))
    end
    for name, m in base.named_modules(self, opts and opts.index_base) do -- layers that never were called
      if rawget(m, "_lazy") then m:materialize(sd, name == "" and "" or name .. ".") end
    end
    local list = collect(self, "state", opts and opts.index_base)
    local missing, unexpected, wrong, known = {}, {}, {}, {}
    for _, item in ipairs(list) do
      local name, new = item[1], sd[item[1]]
      known[name] = true
      if new == nil then
        missing[#missing + 1] = name
      elseif type(new) ~= "userdata" then
        wrong[#wrong + 1] = ("'%s' is %s, not a tensor"):format(name, options.describe(new))
      elseif not same_shape(item[2], new) and not takes(item, new, sd) then
        wrong[#wrong + 1] = ("'%s' is %s in the state and %s here"):format(name, base.shape_text(new),
          base.shape_text(item[2]))
      end
    end
    for name in pairs(sd) do if not known[name] then unexpected[#unexpected + 1] = tostring(name) end end
    table.sort(unexpected)
    local zero = not (opts and opts.index_base == 0) and counted_from_0(self, unexpected)
    if zero then -- also with strict = false: each layer would get what is the next one's
      wrong[#wrong + 1] = ("'%s' counts layers from 0, as PyTorch does, and here they count from 1: say "
        .. "{index_base = 0}"):format(zero)
    elseif not opts or opts.strict ~= false then
      if #missing > 0 then wrong[#wrong + 1] = "missing: " .. table.concat(missing, ", ") end
      if #unexpected > 0 then wrong[#wrong + 1] = "unexpected: " .. table.concat(unexpected, ", ") end
    end
    if #wrong > 0 then fail("load_state_dict of %s: %s", class_name(self), table.concat(wrong, "; ")) end
    local _ <close> = T.no_grad()
    for _, item in ipairs(list) do
      local new, old = sd[item[1]], item[2]
      if new ~= nil then
        if same_shape(old, new) then
          old:copy_(new)
        else
          rawset(item[3], item[4], new:detach():clone():to { dtype = old:dtype(), device = old:device() })
        end
      end
    end
    return missing, unexpected
  end

  base.ordered_dict = ordered_dict
end
