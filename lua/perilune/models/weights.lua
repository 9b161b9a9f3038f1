-- SPDX-License-Identifier: MIT
--- Weights of a folder: which files hold them, under which names, and how they become parameters. Everything is checked
-- before anything is made. @module perilune.models.weights
local T = require "perilune"
local module = require "perilune.nn.module"
local options = require "perilune.options"
local shards = require "perilune.io.shards"

local weights = {}

local function fault(code, fmt, ...) error({ message = fmt:format(...), code = code }, 0) end

-- ---- files -------------------------------------------------------------------------------------------------

local function load_file(path, map)
  local t, why, code = T.load(path, map == false and path:find "%.safetensors$" and { mmap = false } or nil)
  if not t then fault(code or "io", "%s", tostring(why):find(path, 1, true) and why
    or path .. ": " .. tostring(why)) end
  for name, v in pairs(t) do
    if type(v) ~= "userdata" then fault("format", "%s: '%s' is %s, not a tensor", path, tostring(name),
      options.describe(v)) end
  end
  return t
end

--- All tensors of a folder by name, and the file of each. map: as in T.load.
function weights.read(dir, map)
  local list, why, code = shards.find(dir)
  if not list then fault(code, "%s", why) end
  if list.kind == "gguf" then
    fault("unsupported", "%s: GGUF has names of its own; safetensors or PyTorch's files are wanted", list.files[1])
  end
  local out, from = {}, {}
  for _, path in ipairs(list.files) do
    local names = {}
    for name, t in pairs(load_file(path, map)) do
      if out[name] then fault("format", "%s: tensor '%s' is in %s, too", path, name, from[name]) end
      out[name], from[name], names[#names + 1] = t, path, name
    end
    local wrong = shards.check(list, path, names)
    if wrong then fault("format", "%s", wrong) end
  end
  return out, from
end

-- ---- names -------------------------------------------------------------------------------------------------

-- name by all of the rules {pattern, replacement} that fit, in turn.
local function renamed(name, rules)
  for _, rule in ipairs(rules or {}) do
    local new, n = name:gsub(rule[1], rule[2])
    if n > 0 then name = new end
  end
  return name
end

-- What a tensor that files keep in parts is made of: the function that names the parts of its entry e, from 0, and its
-- prefix. stacks: list of {pattern of its name, f(prefix, e) → names of what is joined along dim 1 for entry e}.
local function stacked(name, stacks)
  for _, s in ipairs(stacks or {}) do
    local prefix = name:match(s[1])
    if prefix then return s[2], prefix end
  end
end

local function dims(t) return "[" .. table.concat(t:shape(), ", ") .. "]" end

local function same(a, b)
  if #a ~= #b then return false end
  for i, n in ipairs(a) do if n ~= b[i] then return false end end
  return true
end

-- Several of a list in words.
local function some(list)
  table.sort(list)
  local n = #list
  local text = table.concat(list, ", ", 1, math.min(n, 5))
  return n > 5 and ("%s and %d more"):format(text, n - 5) or text
end

-- Whether a tensor of the file is of a part that the class has not, by the patterns of a.ignore: name by name, or, from
-- the beginning on ("^decoder%."), a whole part, which the network has nothing of.
local function ignores(own, a)
  local has = {}
  local function has_part(text)
    if has[text] == nil then
      has[text] = false
      for name in pairs(own) do if name:sub(1, #text) == text then has[text] = true end end
    end
    return has[text]
  end
  return function(name)
    for _, pattern in ipairs(a.ignore or {}) do
      local from, to = name:find(pattern)
      if from and not (pattern:sub(1, 1) == "^" and has_part(name:sub(from, to))) then return true end
    end
    return false
  end
end

-- Names in files, each as the network has it: old names, and the prefix of the model below a head put on or taken off.
local function by_own_name(tensors, from, own, a)
  local out, files, ignored = {}, {}, ignores(own, a)
  local prefixes = type(a.prefix) == "string" and { a.prefix } or a.prefix or {}
  for name, t in pairs(tensors) do
    local new = renamed(name, a.old)
    for _, prefix in ipairs(prefixes) do
      prefix = prefix .. "."
      if own[new] ~= nil then break end
      if own[prefix .. new] ~= nil then new = prefix .. new
      elseif new:sub(1, #prefix) == prefix and own[new:sub(#prefix + 1)] ~= nil then new = new:sub(#prefix + 1) end
    end
    if own[new] ~= nil or not ignored(name) then out[new], files[new] = t, from[name] end
  end
  return out, files
end

-- Makes one tensor of those that it is kept in; nil and the names that are missing, or nil, nil and what is wrong.
local function joined(parts, prefix, have, shape)
  local rows, missing = {}, {}
  local want = { table.unpack(shape, 2) }
  for e = 0, shape[1] - 1 do
    local piece, names = {}, parts(prefix, e)
    for _, name in ipairs(names) do
      if have[name] then piece[#piece + 1] = have[name] else missing[#missing + 1] = name end
    end
    if #missing == 0 then
      local each = { table.unpack(want) }
      each[1] = want[1] // #names
      for k, t in ipairs(piece) do
        if not same(t:shape(), each) then
          return nil, nil, ("tensor '%s' is %s, expected [%s]"):format(names[k], dims(t), table.concat(each, ", "))
        elseif t:dtype() ~= have[parts(prefix, 0)[1]]:dtype() then
          return nil, nil, ("tensor '%s' is %s, and others of its kind are not"):format(names[k], t:dtype())
        end
      end
      rows[e + 1] = #piece > 1 and T.cat(piece, 1) or piece[1]
    end
  end
  if #missing > 0 then return nil, missing end
  return T.stack(rows, 1)
end

--- Puts the tensors of `dir` in place of the parameters and buffers of net, whose names they have by the rules of the
-- architecture a: old (renames), ignore (patterns), stacks, prefix. dtype: of floating parameters; nil: as in the file.
-- fresh: parameters that are not there may stay as they are. → their names.
function weights.fill(net, dir, tensors, from, a, dtype, fresh)
  local list, own = module.collect(net, "state", 0), {}
  for _, item in ipairs(list) do own[item[1]] = item end
  local stack_names = {}
  for name, item in pairs(own) do
    local parts, prefix = stacked(name, a.stacks)
    if parts then stack_names[name] = { parts, prefix, item[2]:shape() } end
  end
  for _, s in pairs(stack_names) do -- so that their prefixes are put on
    for e = 0, s[3][1] - 1 do for _, name in ipairs(s[1](s[2], e)) do if own[name] == nil then
      own[name] = false end end end
  end
  local have, files = by_own_name(tensors, from, own, a)
  local found, first_name, missing, wrong, used = {}, {}, {}, {}, {}
  for _, item in ipairs(list) do
    local name, value = item[1], item[2]
    local s, t, why = stack_names[name], have[name], nil
    used[name] = true
    if s and not t then
      local gone
      t, gone, why = joined(s[1], s[2], have, s[3])
      for e = 0, s[3][1] - 1 do for _, part in ipairs(s[1](s[2], e)) do used[part] = true end end
      for _, part in ipairs(gone or {}) do missing[#missing + 1] = part end
    elseif t and not same(t:shape(), value:shape()) then
      why = ("tensor '%s' is %s, expected %s"):format(name, dims(t), dims(value))
      t = nil
    elseif t and t:is_floating_point() ~= value:is_floating_point() then
      why = ("tensor '%s' is %s, expected %s"):format(name, t:dtype(), value:dtype())
      t = nil
    end
    if why then wrong[#wrong + 1] = (files[name] or dir) .. ": " .. why end
    if t and found[value] and not (found[value]:dtype() == t:dtype() and found[value]:equal(t)) then
      wrong[#wrong + 1] = ("%s: tensor '%s' is the same as '%s' in this model (tie_word_embeddings), and differs here")
        :format(files[name] or dir, name, first_name[value])
    elseif t then found[value], first_name[value] = found[value] or t, first_name[value] or name
    elseif not why and not s and not item[1]:find "num_batches_tracked$" then missing[#missing + 1] = name end
  end
  local new = {}
  for i = #missing, 1, -1 do
    local item = own[missing[i]]
    if item and found[item[2]] then table.remove(missing, i) -- tied to one that is there
    elseif item and fresh and fresh(missing[i]) then new[#new + 1] = table.remove(missing, i) end
  end
  local extra = {}
  for name in pairs(have) do if not used[name] and not own[name] then extra[#extra + 1] = name end end
  if #wrong > 0 then fault("format", "%s", table.concat(wrong, "; ", 1, math.min(#wrong, 3))) end
  if #missing > 0 then
    fault("format", "%s: %d tensor%s missing: %s%s", dir, #missing, #missing == 1 and " is" or "s are", some(missing),
      #extra > 0 and (" (there, but not of this model: %s)"):format(some(extra)) or "")
  end
  if #extra > 0 and not fresh then
    fault("format", "%s: %d tensor%s not of this model: %s", dir, #extra, #extra == 1 and " is" or "s are", some(extra))
  end
  local made = {}
  for _, item in ipairs(list) do
    local value, m, key = item[2], item[3], item[4]
    local t = found[value]
    if t then
      if not made[value] then
        if t:is_floating_point() and dtype then t = t:to(dtype) end
        made[value] = module.is_parameter[value] and module.Parameter(t, { requires_grad = value.requires_grad }) or t
      end
      m[key] = made[value]
    end
  end
  table.sort(new)
  return new
end

-- ---- writing -----------------------------------------------------------------------------------------------

--- name → tensor as transformers writes them: tied ones once, stacks apart, under the names in files.
-- keep(layer, blocks): what blocks become; nil: numbers.
function weights.to_save(net, a, dtype, keep)
  local out, seen = {}, {}
  local _ <close> = T.no_grad()
  for _, item in ipairs(module.collect(net, "state", 0)) do
    local name, value = item[1], item[2]
    local own = rawget(item[3], "_key")
    if not seen[value] and not (own and item[4] == "input_scale") then -- which is in the layer's numbers
      seen[value] = true
      local t = value:detach()
      if own == item[4] then -- blocks
        t, name = (keep or item[3].numbers)(item[3], dtype), name:gsub("[^.]+$", "weight")
        if item[3].transposed and T.is_tensor(t) then t = t:t() end
      elseif t:is_floating_point() and dtype then t = t:to(dtype) end
      local parts, prefix = stacked(name, a.stacks)
      if parts then
        for e = 1, t:size(1) do
          local names = parts(prefix, e - 1)
          local each = t:select(1, e)
          local n = each:size(1) // #names
          for i, part in ipairs(names) do
            out[renamed(part, a.new)] = each:narrow(1, (i - 1) * n + 1, n):contiguous()
          end
        end
      else
        out[renamed(name, a.new)] = T.is_tensor(t) and t:contiguous() or t
      end
    end
  end
  return out
end

return weights
