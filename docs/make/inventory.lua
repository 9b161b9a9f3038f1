-- SPDX-License-Identifier: MIT
-- Every public symbol with what is known of it, for the reference in HTML, the definitions for editors, and whatever
-- else is written from one table: descriptors of ops, declared arguments, comments above functions
-- and classes.
local T = require "perilune"
local symbols = require("perilune.help.pages").all()
local reference = require "perilune.help.reference"
local source = require "perilune.help.source"

local M = {}

local function callable(v)
  local meta = type(v) == "table" and getmetatable(v)
  return type(v) == "function" or (meta and rawget(meta, "__call") ~= nil)
end

local function op_entry(op)
  local params = {}
  for i, name in ipairs(op.args) do
    local list, optional = op.nin < 0, op.nin > 0 and i > op.nin - op.nopt
    params[#params + 1] = { name = name, type = list and "tensors" or "tensor", optional = optional }
  end
  for _, a in ipairs(op.attrs) do
    local default = reference.default(a)
    params[#params + 1] = { name = a.name, type = a.choices or a.type, default = default,
      optional = a.optional or default ~= nil }
  end
  return { name = "T." .. op.name, signature = "T." .. reference.op_signature(op), text = op.doc,
    formula = op.formula, params = params, notes = { reference.op_notes(op) },
    method = not op.flags.nomethod and op.nin >= 1 and op.name or nil, results = op.nout, op = op,
    inplace = op.flags.inplace, example = op.example }
end

local function written_entry(name, entry)
  local path = (name:find "^nn%." or name:find "^optim%.") and name or "T." .. name
  local value = { T = T, nn = T.nn, optim = T.optim }
  for key in path:gmatch "[^.]+" do value = type(value) == "table" and value[key] or nil end
  local written = value ~= nil and source.entry(path, value) or {}
  return { name = path, signature = entry.signature, text = entry.text, example = entry.example,
    params = {},
    notes = entry.shapes and { "shapes: " .. entry.shapes } or {}, same = entry.same,
    arguments = #entry.arguments > 0 and entry.arguments or written.arguments,
    class = written.class, methods = written.class and source.methods(written.class) or nil }
end

-- The op behind a function of nn.F or T.linalg: by the function, else by its name.
local function op_behind(value, key)
  for _, op in ipairs(T.core.ops()) do
    if T.core.op[op.name] == value or rawget(T, op.name) == value then return op end
  end
  for _, op in ipairs(T.core.ops()) do
    if op.name == key or op.name == "linalg_" .. key or op.name == "linalg." .. key then return op end
  end
  return nil
end

-- Where an entry says nothing of its own, what the op says that it calls.
local function completed(entry, value)
  if entry.text and entry.example then return entry end
  local op = type(value) == "function" and op_behind(value, entry.name:match "[%w_]+$")
  if not op then return entry end
  local of_op = op_entry(op)
  if not entry.text then
    entry.text, entry.formula, entry.params, entry.notes = of_op.text, of_op.formula, of_op.params, of_op.notes
    entry.signature = entry.name .. (of_op.signature:match "%(.*$" or "(…)")
  end
  entry.example = entry.example or of_op.example
  return entry
end

-- Adds what a table of the library holds, under a prefix, for names that have no entry yet.
local function add_space(list, known, prefix, space, seen)
  if seen[space] then return end
  seen[space] = true
  local names = {}
  for key in pairs(space) do if type(key) == "string" and not key:find "^_" then names[#names + 1] = key end end
  table.sort(names)
  for _, key in ipairs(names) do
    local name, value = prefix .. "." .. key, space[key]
    if not known[name] then
      local entry = source.entry(name, value)
      if entry then
        known[name] = true
        list[#list + 1] = completed({ name = name, signature = entry.signature, text = entry.text,
          params = {}, notes = {}, arguments = entry.arguments, class = entry.class,
          methods = entry.class and source.methods(entry.class) or {} }, value)
      elseif callable(value) then
        known[name] = true
        list[#list + 1] = completed({ name = name, signature = name .. "(…)", params = {},
          notes = {} }, value)
      elseif type(value) == "table" and rawget(value, "__index") == nil then
        add_space(list, known, name, value, seen)
      end
    end
  end
end

-- Sections are the pages of the reference in Markdown, and T.help()'s: title, file and entries of each.
local function sections(list)
  local order, by_name, by_file = {}, {}, {}
  for i, page in ipairs(reference.pages()) do
    order[i] = { title = page.title, file = page.file, entries = {} }
    by_file[page.file] = order[i]
    for _, e in ipairs(page.entries) do by_name[e.name] = order[i] end
  end
  for _, entry in ipairs(list) do -- a form in place is where its op is
    local s = by_name[entry.name] or by_name[entry.name:match "^(.*)_$" or ""]
      or by_file[entry.name:find "^nn%.F%." and "nn-functional" or entry.op and "creation" or "tools"]
    s.entries[#s.entries + 1] = entry
  end
  return order
end

-- All entries, sorted by section and name; and the sections in order.
function M.all()
  local list, known = {}, {}
  local function add(entry)
    if known[entry.name] then return end
    known[entry.name] = true
    list[#list + 1] = entry
  end
  for name, entry in pairs(symbols) do add(written_entry(name, entry)) end
  for _, op in ipairs(T.core.ops()) do
    if not op.flags.internal and rawget(T, op.name) then
      add(op_entry(op))
    elseif rawget(T, op.name .. "_") then -- there is the form in place alone
      local entry = op_entry(op)
      local name = op.name .. "_"
      entry.name, entry.signature, entry.inplace = "T." .. name, entry.signature:gsub("^T%.[%w_]+", "T." .. name), nil
      entry.notes, entry.method = { "in place" }, entry.method and name
      add(entry)
    end
  end
  local seen = {}
  add_space(list, known, "nn", T.nn, seen)
  add_space(list, known, "optim", T.optim, seen)
  add_space(list, known, "T.data", T.data, seen)
  for _, name in ipairs { "linalg", "metrics" } do
    local space = T[name]
    if type(space) == "table" then add_space(list, known, "T." .. name, space, seen) end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list, sections(list)
end

return M
