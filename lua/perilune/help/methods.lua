-- SPDX-License-Identifier: MIT
--- Methods of perilune's classes: which class has one, and what the comment above it says. "nn.Module:parameters",
-- "Module.parameters", "optim.Adam.step", "Tokenizer:encode", net.parameters.
-- @module perilune.help.methods
local source = require "perilune.help.source"

local M = {}

local SPACES = { "nn", "optim", "optim.lr_scheduler", "data", "distributions", "nn.parallel", "nn.quant",
  "optim.compat", "optim.swa_utils" }
local BASES = { "nn.Module", "optim.Optimizer", "optim.lr_scheduler.LRScheduler", "distributions.Distribution" }

-- What a method is wherever a class has one of that name and says nothing itself: it does for its class (@) what all
-- do.
-- A text that ends in ":" goes on with what the class's page says first.
local SHARED = {
  forward = "What @ computes when it is called:",
  float = "All floating parameters and buffers of @ to f32, in place; the module itself.",
  double = "All floating parameters and buffers of @ to f64, in place; the module itself.",
  half = "All floating parameters and buffers of @ to f16, in place; the module itself.",
  bfloat16 = "All floating parameters and buffers of @ to bf16, in place; the module itself.",
  cpu = "Parameters and buffers into the host's memory; the module itself.",
  cuda = "Parameters and buffers into a GPU's memory, the current one's without a number (from 0); the module itself.",
  register_module = "As self[name] = m.", add_module = "register_module under its other name: as self[name] = m.",
  register_parameter = "As self[name] = p.",
  weights = "The parameters of one layer and direction of @, in the order of the recurrent op.",
  update = "One update of a group's parameters from their gradients by the rule of @; called by step():",
  step = "The next step of @: sets the learning rates.",
  lr_at = "The learning rate that @ gives a group at step t, from 0:",
  add_param_group = "One group of parameters more for @, a table {params = …, lr = …}.",
  state_dict = "What @ needs to go on later, as plain values and tensors: for T.save.",
  load_state_dict = "Takes what state_dict() of @ gave.",
  update_parameters = "Takes the parameters of the network that @ averages into the averages.",
  sample = "Draws of @, a tensor of shape sample_shape .. batch_shape .. event_shape, without gradients:",
  rsample = "Draws of @ with gradients for its parameters:",
  log_prob = "The log of the probability, or density, that @ gives to value:",
  cdf = "The probability that a draw of @ is at most x:",
  icdf = "The value below which draws of @ are with probability p:",
  entropy = "The entropy of @ in nats, of shape batch_shape:", expand = "@ with another batch_shape.",
  parameters = "The tensors that @ was made from, by name.",
  get = "The entry of @ at a number (of a dictionary: of a name):", set = "Puts an entry of @ in its place.",
  append = "One entry more, at the end.",
  get_batch = "The samples of a list of numbers, as a batch.",
  len = "How many entries @ has; also #x:", indices = "The numbers of samples in the order of a pass of @:",
  batches = "The numbers of samples of a pass of @, batch by batch.",
  qparams = "Scale and zero point of @, from what was seen:",
  calculate_qparams = "Scale and zero point of @, from what was seen, as qparams():",
  takes_shape = "Does a buffer of @ take a tensor of another shape, when a state is loaded?",
  enable_fake_quant = "Round in forward, or not.", enable_observer = "Look at what comes in forward, or not.",
}

-- reset_parameters: what a class draws.
local UNIFORM = "weight and bias uniform in ±1/√n, n "
local DRAWN = { Linear = UNIFORM .. "in_features", Conv = UNIFORM .. "in_channels / groups times the kernel's elements",
  ConvTranspose = UNIFORM .. "out_channels / groups times the kernel's elements",
  Embedding = "the weight from the standard normal distribution, with zeros at padding_idx", GRU =
  "all parameters uniform in ±1/√hidden_size", AdaptiveLogSoftmaxWithLoss = "its linear layers as nn.Linear does" }
DRAWN.EmbeddingBag, DRAWN.LSTM, DRAWN.RNN = DRAWN.Embedding, DRAWN.GRU, DRAWN.GRU

-- The first sentence of a class's page.
local function said_first(path)
  local text = require("perilune").help_text(path)
  local line = text and not text:find "^no op" and text:match "^[^\n]*\n(.*)$"
  return line and require("perilune.help.reference").sentence(line, 200) or nil
end

-- What all methods of a name do, for one class.
local function shared_text(path, name)
  local kind = path:match "[^.]+$"
  if name == "reset_parameters" then
    local drawn = DRAWN[kind] or DRAWN[kind:gsub("Cell$", ""):gsub("%dd$", "")]
    return ("Draws the parameters of %s anew, as when it was made%s."):format(path, drawn and ": " .. drawn or "")
  end
  local text = SHARED[name]
  if not text then return nil end
  local first = text:sub(-1) == ":" and said_first(path)
  if text:sub(-1) == ":" then text = text:sub(1, -2) .. (first and ": " .. first:gsub("[:;]$", ".") or ".") end
  return (text:gsub("@", path))
end

-- What makes a value, and what print shows of one: their classes have pages.
local MAKERS = { init = true, new = true, extra_repr = true }

-- classes: path → class; order: paths, bases first; short: last name in small letters → path
local classes, order, short

local function shown(path) return (path:find "^nn%." or path:find "^optim%.") and path or "T." .. path end

local function add(path, class)
  if classes[path] then return end
  classes[path], order[#order + 1] = class, path
  local last = path:match("[^.]+$"):lower()
  short[last] = short[last] or path
end

local function follow(T, path)
  local v = T
  for key in path:gmatch "[^.]+" do v = type(v) == "table" and v[key] or nil end
  return v
end

local function load()
  if classes then return end
  classes, order, short = {}, {}, {}
  local T = require "perilune"
  for _, path in ipairs(BASES) do add(path, follow(T, path)) end
  for _, space in ipairs(SPACES) do
    local names = {}
    for name, v in pairs(follow(T, space) or {}) do
      local meta = type(v) == "table" and getmetatable(v)
      local class = type(meta) == "table" and rawget(meta, "__call") and rawget(v, "__index") ~= nil
      if type(name) == "string" and class then
        names[#names + 1] = name
      end
    end
    table.sort(names)
    for _, name in ipairs(names) do add(space .. "." .. name, T and follow(T, space)[name]) end
  end
  add("Tokenizer", require("perilune.data.tokenizer").Tokenizer)
end

local function parent(class)
  local meta = getmetatable(class)
  local index = type(meta) == "table" and rawget(meta, "__index")
  return type(index) == "table" and index or nil
end

local function public(name, f) return type(name) == "string" and type(f) == "function" and not name:find "^_" end

-- The method of a class or of what it inherits from, and the path of the class that defines it.
local function method_of(path, name)
  local class, at = classes[path], path
  while class do
    local f = rawget(class, name)
    if public(name, f) or name == "__call" and type(f) == "function" then return f, at end
    class = parent(class)
    for _, p in ipairs(class and order or {}) do
      if classes[p] == class then at = p break end
    end
  end
end

-- The comment above a method, else what all such do, for its class; else what is above the method that it overrides.
local function text_of(path, name, f)
  local text, class = source.of_function(f), parent(classes[path])
  if text and text:find "^%b()$" then -- only how it is called: what it does is said of all
    local what = shared_text(path, name)
    text = what and text .. "\n" .. what or text
  end
  text = text or shared_text(path, name)
  while not text and class do
    local from = rawget(class, name)
    text, class = public(name, from) and source.of_function(from) or nil, parent(class)
  end
  return text
end

local function page(path, name, f)
  local title = path == "Tokenizer" and path or shown(path)
  local names = source.parameters(f)
  local mark = names[1] == "self" and ":" or "."
  if names[1] == "self" then table.remove(names, 1) end
  local head, text = ("%s%s%s(%s)"):format(title, mark, name, table.concat(names, ", ")), text_of(path, name, f)
  return text and head .. "\n" .. text or head
end

-- The names of a class's methods, inherited ones, too.
local function names_of(path)
  local names, seen, class = {}, {}, classes[path]
  while class do
    for name, f in next, class do
      if public(name, f) and not seen[name] and name ~= "init" then
        seen[name], names[#names + 1] = true, name
      end
    end
    class = parent(class)
  end
  table.sort(names)
  return names
end

--- The page of a method by its name, with its class: "nn.Module:parameters", "Module.parameters"; or by its name alone,
-- where one of the base classes has it. Of a class that has no such method nil, and what to say. nil for others.
function M.named(text)
  load()
  text = text:gsub("^T%.", "")
  local space, name = text:match "^([%a_][%w_.]*)[.:]([%a_][%w_]*)$"
  if not space then
    for _, path in ipairs(text:find "^[%a_][%w_]*$" and BASES or {}) do
      local f = rawget(classes[path], text)
      if public(text, f) and source.of_function(f) then return page(path, text, f) end
    end
    return nil
  end
  local path = classes[space] and space or short[space:lower()]
  if not path or (space:find(".", 1, true) and path ~= space) then return nil end
  local f, at = method_of(path, name)
  if f then return page(at, name, f) end
  local names = names_of(path)
  local near = require("perilune.help.elsewhere").nearest(name, names)
  return nil, ("no op named '%s': %s has no method %s%s"):format(text, shown(path), name,
    near and ("; did you mean %s?"):format(near) or #names > 0 and "; it has " .. table.concat(names, ", ") or "")
end

-- function → {path, name}: those of public classes, then of bases that have no name of their own.
local by_function
local function index()
  by_function = {}
  local function note(path, class)
    local names = {}
    for name, f in next, class do
      if public(name, f) and not by_function[f] then names[#names + 1] = name end
    end
    table.sort(names)
    for _, name in ipairs(names) do by_function[class[name]] = by_function[class[name]] or { path, name } end
  end
  for _, path in ipairs(order) do note(path, classes[path]) end
  for _, path in ipairs(order) do
    local class = parent(classes[path])
    while class do
      note(path, class)
      class = parent(class)
    end
  end
end

--- The page of a method by its function; nil for others.
function M.of(f)
  load()
  if not by_function then index() end
  local known = by_function[f]
  return known and source.is_own(f) and page(known[1], known[2], f) or nil
end

--- All of them, for who wants to look at each: list of {path of the class, name, function, text=}.
function M.all()
  load()
  local list = {}
  for _, path in ipairs(order) do
    for name, f in next, classes[path] do
      if public(name, f) and source.is_own(f) and not MAKERS[name] then
        list[#list + 1] = { path, name, f, text = text_of(path, name, f) }
      end
    end
  end
  return list
end

return M
