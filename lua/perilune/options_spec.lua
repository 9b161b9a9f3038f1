-- SPDX-License-Identifier: MIT
--- The part of perilune.options that `require "perilune"` does not need: unknown names with the nearest known one, and
-- arguments that are described by a list of names and kinds. It defines fields of perilune.options, which loads it.
-- @module perilune.options_spec
local options = require "perilune.options"
local core = require "perilune.core"

local fail, describe, integer, stray = options.fail, options.describe, options.integer, options.stray

-- Edits (insert, delete, replace, swap neighbours) between two short words (Damerau 1964), or `most` + 1 where there
-- are more: cells of the table further than that from its diagonal are never on a way that short, and a row without a
-- short way ends it. T.help compares a word with two thousand names.
local function distance(a, b, most)
  local far, n = most + 1, #b
  local bytes = { b:byte(1, n) }
  local before, last, row = {}, {}, {} -- rows i - 2, i - 1 and i
  for j = 0, math.min(n, far) do last[j] = j end
  local shortest, was = 0, nil -- of the last row; its letter
  for i = 1, #a do
    local from, till, now = math.max(1, i - most), math.min(n, i + most), a:byte(i)
    local left = from == 1 and i or far
    row[from - 1] = left
    local least = left
    for j = from, till do
      local to = bytes[j]
      local best = last[j - 1] + (now == to and 0 or 1)
      if left + 1 < best then best = left + 1 end
      local above = last[j]
      if above and above + 1 < best then best = above + 1 end
      local swapped = i > 1 and j > 1 and was == to and now == bytes[j - 1] and before[j - 2] + 1
      if swapped and swapped < best then best = swapped end
      if best > far then best = far end
      row[j], left = best, best
      if best < least then least = best end
    end
    row[till + 1] = far
    if least > most and shortest > most then return far end
    shortest, was = least, now
    before, last, row = last, row, before
  end
  return last[n]
end

-- What options are called elsewhere.
local elsewhere = { learning_rate = "lr", n_epochs = "epochs", num_epochs = "epochs", validation = "valid",
  val = "valid", axis = "dim", keepdims = "keepdim", batchsize = "batch_size", bs = "batch_size",
  resume = "append", verbose = "quiet", pad = "padding", unbiased = "correction", kernel = "kernel_size", wd =
    "weight_decay", decay = "weight_decay", filters = "out_channels", hidden_dim = "hidden_size", input_dim =
    "input_size",
  -- of transformers, peft and torch.onnx
  max_tokens = "max_new_tokens", max_length = "max_new_tokens", streamer = "on_token", eos_token_id = "stop",
  stop_strings = "stop", assistant_model = "assistant", past_key_values = "cache", r = "rank", lora_alpha = "alpha",
  lora_dropout = "dropout", target_modules = "target", use_dora = "dora", use_rslora = "rslora",
  dynamic_axes = "dynamic", dynamic_shapes = "dynamic", torch_dtype = "dtype", skip_special_tokens = "skip_special",
  add_special_tokens = "add_special" }

-- Capitals and underscores do not count.
local function plain(name) return (name:lower():gsub("_", "")) end

--- The entry of `names` that is meant by `word`, which is none of them, or nil: the same but for capitals and
-- underscores; what another library calls so; the only one that begins so (acc, accuracy); the nearest one by edits;
-- the longest one that it contains (num_workers, workers).
function options.nearest(word, names)
  if type(word) ~= "string" or #word > 40 then return nil end
  local best, least, inside, same, longer
  local low, bare = word:lower(), plain(word)
  for _, name in ipairs(names) do
    if name ~= word then
      local known = name:lower()
      if plain(name) == bare then same = same or name end
      if elsewhere[low] == name then return name end
      if #word >= 3 and known:sub(1, #low) == low then longer = longer == nil and name or false end
      local most = math.min(math.max(1, math.min(#name, #word) // 3), #word - 1, (least or 99) - 1)
      if most >= 1 and math.abs(#known - #low) <= most then
        local d = distance(low, known, most)
        if d <= most then best, least = name, d end
      end
      if #known > 3 and low:find(known, 1, true) and #known > #(inside or "") then inside = name end
    end
  end
  return same or longer or best or inside
end

-- Options that are asked for where they are not: whose they are.
local owners = { batch_size = "T.data.DataLoader", shuffle = "T.data.DataLoader", drop_last = "T.data.DataLoader",
  workers = "T.data.DataLoader", num_workers = "T.data.DataLoader, workers there", lr = "the optimizer",
  learning_rate = "the optimizer, lr there", momentum = "the optimizer", weight_decay = "the optimizer",
  device = 'tensors and networks: net:to("cuda")', patience = "T.early_stop" }

--- Text for an unknown name: "unknown <what> 'x' (allowed: a, b); did you mean 'a'?"
function options.unknown(what, word, names)
  local near = type(word) == "string" and options.nearest(word, names)
  local owner = not near and what == "option" and owners[word]
  return ("unknown %s '%s' (allowed: %s)%s"):format(what, tostring(word), table.concat(names, ", "),
    near and ("; did you mean '%s'?"):format(near) or owner and ("; it is an option of %s"):format(owner) or "")
end

local kinds = {}

function kinds.any(v) return v end
function kinds.int(v) return integer(v), "an integer" end
function kinds.size(v)
  local n = integer(v)
  return n and n >= 0 and n or nil, "a non-negative integer"
end
function kinds.count(v)
  local n = integer(v)
  return n and n >= 1 and n or nil, "a positive integer"
end
function kinds.number(v) return type(v) == "number" and v or nil, "a number" end
function kinds.probability(v)
  return type(v) == "number" and v >= 0 and v <= 1 and v or nil, "a number from 0 to 1"
end
function kinds.inner_probability(v)
  return type(v) == "number" and v > 0 and v < 1 and v or nil, "a number between 0 and 1, neither of them"
end
function kinds.nonnegative(v)
  return type(v) == "number" and v >= 0 and v < math.huge and v or nil, "a finite number >= 0"
end
function kinds.positive(v)
  return type(v) == "number" and v > 0 and v < math.huge and v or nil, "a finite number > 0"
end
function kinds.nonnegative_or_inf(v) return type(v) == "number" and v >= 0 and v or nil, "a number >= 0" end
-- The share of a new batch in a running average; false: of all batches the same.
function kinds.momentum(v)
  local wanted = "a number from 0 to 1, or false for a plain average"
  if v == false then return v, wanted end
  return kinds.probability(v), wanted
end
function kinds.bool(v)
  if type(v) == "boolean" then return v end
  return nil, "true or false"
end
function kinds.string(v) return type(v) == "string" and v or nil, "a string" end
function kinds.func(v) return type(v) == "function" and v or nil, "a function" end
function kinds.callable(v)
  local meta = getmetatable(v)
  local can = type(v) == "function" or type(meta) == "table" and meta.__call ~= nil
  return can and v or nil, "a function, or something that is called like one"
end
function kinds.tensor(v)
  if not core.is_tensor(v) then return nil, "a tensor" end
  return pcall(v.dim, v) and v or nil, "a tensor that was not freed"
end
-- A tensor, or a number that stands for one.
function kinds.operand(v)
  if type(v) == "number" then return v end
  return kinds.tensor(v), "a tensor or a number"
end
-- A list of at least one tensor.
function kinds.tensors(v)
  local wanted = "a list of tensors"
  if type(v) ~= "table" or #v == 0 or stray(v) ~= nil then return nil, wanted end
  for _, x in ipairs(v) do
    if not kinds.tensor(x) then return nil, wanted end
  end
  return v, wanted
end
-- An integer or a list of integers.
function kinds.ints(v)
  if type(v) ~= "table" then return integer(v), "an integer or a list of integers" end
  if stray(v) ~= nil then return nil, "an integer or a list of integers" end
  local out = {}
  for i, x in ipairs(v) do
    out[i] = integer(x)
    if not out[i] then return nil, "an integer or a list of integers" end
  end
  return out
end

-- Sizes of windows and the like, which have no empty list.
function kinds.window(v)
  local out = kinds.ints(v)
  if type(out) == "table" and #out == 0 then return nil, "an integer or a list of at least one" end
  return out, "an integer or a list of integers"
end
-- A number or a list of numbers.
function kinds.numbers(v)
  local wanted = "a number or a list of numbers"
  if type(v) ~= "table" then return type(v) == "number" and v or nil, wanted end
  if #v == 0 or stray(v) ~= nil then return nil, wanted end
  for _, n in ipairs(v) do if type(n) ~= "number" then return nil, wanted end end
  return v
end
-- Lengths of sequences.
function kinds.lengths(v)
  if core.is_tensor(v) then return kinds.tensor(v), "integers" end
  return kinds.ints(v), "an integer, a list of integers or a tensor of them"
end
-- What recurrent layers read: a tensor, or a packed sequence.
function kinds.sequence(v)
  if type(v) == "table" and getmetatable(v) ~= nil then return v end
  return kinds.tensor(v), "a tensor or a packed sequence"
end
-- {h, c} of an LSTM.
function kinds.state(v)
  local wanted = "{h, c}, a list of two tensors"
  if type(v) ~= "table" or #v > 2 or stray(v) ~= nil then return nil, wanted end
  for _, t in ipairs(v) do if not kinds.tensor(t) then return nil, wanted end end
  return v
end

-- Sizes, or the words of convolutions.
function kinds.padding(v)
  if v == "same" or v == "valid" then return v end
  local got = kinds.ints(v)
  return got, "an integer, a list of integers, 'same' or 'valid'"
end

local function convert(spec, arg, v)
  local name, kind = arg[1], arg[2]
  if type(kind) == "table" then -- a list of allowed words
    for _, word in ipairs(kind) do if v == word then return v end end
    fail("%s: %s", spec.who, options.unknown(name, v, kind))
  end
  local got, wanted = kinds[kind](v)
  if got == nil then fail("%s: %s must be %s, got %s", spec.who, name, wanted, describe(v)) end
  return got
end

--- Raises unless v, argument `name` of `who`, is of a kind that options.spec knows; → v as that.
function options.kind(who, name, kind, v)
  local got, wanted = kinds[kind](v)
  if got == nil then fail("%s: %s must be %s, got %s", who, name, wanted, describe(v)) end
  return got
end

--- n names for tensors: those given, each another one; where none are, default1, default2, … or, of one, default.
function options.names(who, what, given, n, default)
  if given == nil then
    local out = {}
    for i = 1, n do out[i] = n == 1 and default or default .. i end
    return out
  end
  options.list(who, what, given, "names")
  if #given ~= n then fail("%s: %d %s for %d tensors", who, #given, what, n) end
  for i, name in ipairs(given) do
    if type(name) ~= "string" or name == "" then fail("%s: %s: entry %d is no name", who, what, i) end
    for k = 1, i - 1 do if given[k] == name then fail("%s: %s: '%s' twice", who, what, name) end end
  end
  return given
end

--- An integer as a list of n equal ones; a list is checked to have n entries, none below `least`.
function options.per_dim(who, name, v, n, least)
  local list = v
  if type(v) ~= "table" then
    list = {}
    for i = 1, n do list[i] = v end
  end
  if #list ~= n then fail("%s: %s needs %d entries, got %d", who, name, n, #list) end
  for i = 1, n do
    if list[i] < least then fail("%s: %s must be at least %d, got %d", who, name, least, list[i]) end
  end
  return list
end

--- A list of numbers as one writes it.
function options.list_text(list)
  return type(list) == "table" and "{" .. table.concat(list, ", ") .. "}" or tostring(list)
end

-- Kinds whose values may be written as a list of numbers. Where the first argument is of such a kind, a table of
-- numbers that is the whole call is that list, as in f({3, 2}): it never spreads over the arguments that follow.
local lists = { window = true, ints = true, numbers = true, lengths = true, padding = true }

--- Describes the arguments of `who`: a list of {name, kind[, default]}, in positional order. A missing
-- argument without default is an error, unless `optional` is set in its entry.
function options.spec(who, args, settings)
  local spec = { who = who, key = who, args = args, names = {}, by_name = {}, list_first = settings and
    settings.list_first }
  if spec.list_first == nil then spec.list_first = args[1] ~= nil and lists[args[1][2]] or false end
  for i, arg in ipairs(args) do
    spec.names[i] = arg[1]
    spec.by_name[arg[1]] = arg
  end
  options.specs[who] = spec
  return spec
end

local function is_plain(v) return type(v) == "table" and getmetatable(v) == nil end

local function has_names(t)
  for key in pairs(t) do if type(key) == "string" then return true end end
  return false
end

-- Positional values and the table of named ones, from what the user passed.
local function split(spec, n, ...)
  local values = { ... }
  if n == 1 and is_plain(values[1]) then
    local mixed = values[1]
    if spec.list_first and type(mixed[1]) ~= "table" and mixed[1] ~= nil then
      local list, named = {}, {}
      for key, v in pairs(mixed) do
        if type(key) == "string" then named[key] = v else list[key] = v end
      end
      if #list == 1 and lists[spec.args[1][2]] then list = list[1] end
      return { list }, 1, named
    end
    local named, top = {}, 0
    values = {}
    for key, v in pairs(mixed) do
      local i = integer(key)
      if i then
        values[i], top = v, math.max(top, i)
      else
        named[key] = v
      end
    end
    return values, top, named
  end
  local function no_options() -- an empty table is: or the empty list that must stand there
    local arg = spec.args[n]
    local wanted = arg and arg[3] == nil and not arg.optional and lists[arg[2]]
    return next(values[n]) == nil and n > 1 and not wanted
  end
  if n > 0 and is_plain(values[n]) and (has_names(values[n]) or no_options()) then
    return values, n - 1, values[n]
  end
  return values, n, {}
end

--- Reads arguments by a spec and returns a table of checked values by name.
function options.read(spec, ...)
  local values, n, named = split(spec, select("#", ...), ...)
  if n > #spec.args then
    fail("%s: at most %d positional arguments (%s), got %d", spec.who, #spec.args,
      table.concat(spec.names, ", "), n)
  end
  local out = {}
  for key, v in pairs(named) do
    local arg = spec.by_name[key]
    if not arg then fail("%s: %s", spec.who, options.unknown("option", key, spec.names)) end
    out[key] = convert(spec, arg, v)
  end
  for i = 1, n do
    local arg, v = spec.args[i], values[i]
    if v ~= nil then
      if out[arg[1]] ~= nil then fail("%s: %s is given twice", spec.who, arg[1]) end
      out[arg[1]] = convert(spec, arg, v)
    end
  end
  for _, arg in ipairs(spec.args) do
    if out[arg[1]] == nil then
      if arg[3] == nil and not arg.optional then fail("%s: %s is missing", spec.who, arg[1]) end
      out[arg[1]] = arg[3]
    end
  end
  return out
end

return options
