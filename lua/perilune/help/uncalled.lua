-- SPDX-License-Identifier: MIT
-- Methods that a line names and does not call, x.shape for x:shape(): they are values, functions, and what is done with
-- them fails far from the reason, or does not fail at all. For hints, for notes at the prompt, for print.
-- @module perilune.help.uncalled
local core = require "perilune.core"
local lex = require "perilune.repl.lex"
local walk = require "perilune.repl.walk"

local M = {}

local by_function, indexed -- tensors' methods → their names, "shape or size"; how many
local function count()
  local n = 0
  for _ in next, core.metatable().methods do n = n + 1 end
  return n
end
local function index()
  local lists = {}
  indexed = count()
  for name, f in pairs(core.metatable().methods) do
    if type(f) == "function" then
      lists[f] = lists[f] or {}
      table.insert(lists[f], name)
    end
  end
  by_function = {}
  for f, names in pairs(lists) do
    table.sort(names)
    by_function[f] = table.concat(names, " or ")
  end
end

--- The name of the tensors' method that a value is; or nil.
function M.method(f)
  if type(f) ~= "function" then return nil end
  if not by_function then index() end
  if not by_function[f] and count() ~= indexed then index() end -- a part has been loaded since
  return by_function[f]
end

-- How a method is called, by its names.
function M.call(names) return ("x:%s()"):format(names:match "^%S+") end

-- Is f, found under this name in holder, a method of it that is perilune's own?
local function is_method(holder, name, f)
  local meta = debug.getmetatable(holder)
  if type(f) ~= "function" or type(meta) ~= "table" then return false end
  if type(holder) == "userdata" then return rawget(meta, "methods") ~= nil and rawget(meta.methods, name) == f end
  if type(holder) ~= "table" or rawget(holder, name) ~= nil or rawget(meta, "__lazy") then return false end
  return require("perilune.help.methods").of(f) ~= nil
end

--- The methods that code names and does not call: list of {name= as written, call= what calls it, before=, after= the
-- words around it, first, last= the places of these words}. Variables that hold one are there, too (held), and those of
-- results, which are guessed.
-- vars: name → {value}, over env.
function M.list(code, vars, env)
  local tokens, list = lex.code(code), {}
  local i = 1
  while i <= #tokens do
    local t, before = tokens[i], tokens[i - 1]
    local mark = before and before.text
    local object = mark == "." and i > 2 and tokens[i - 2].text
    local ends = tokens[i + 1] and tokens[i + 1].text or ""
    if t.kind == "name" and (object == ")" or object == "]") and not ends:find "^[({:.\"'%[]" then
      -- of a result, whatever it is
      if core.metatable().methods[t.text] or require("perilune.help.methods").named(t.text) then
        list[#list + 1] = { name = "(…)." .. t.text, call = ("(…):%s()"):format(t.text), guessed = true }
      end
    elseif t.kind == "name" and mark ~= "." and mark ~= ":" and mark ~= "function" and mark ~= "goto" then
      local first, path, holder = i, t.text, nil
      local slot = vars and vars[path]
      local found, value = walk.get(slot and { [path] = slot[1] } or env, path)
      while found and tokens[i + 1] and tokens[i + 1].text == "." and tokens[i + 2] and tokens[i + 2].kind == "name" do
        local name = tokens[i + 2].text
        holder, path, i = value, path .. "." .. name, i + 2
        found, value = walk.get(holder, name)
      end
      local after = tokens[i + 1]
      local mark_after = after and after.text or ""
      local called = mark_after == "(" or mark_after == "{" or mark_after == ":" or mark_after == "."
        or after and after.kind == "string" or mark_after == "=" and first > 1 and (mark == "{" or mark == ",")
      local name = path:match "[^.]+$"
      local entry = { name = path, before = mark or "", after = mark_after, first = first, last = i, count = #tokens }
      if found and not called and holder ~= nil and is_method(holder, name, value) then
        entry.call = ("%s:%s()"):format(path:match "^(.*)%.", name)
        list[#list + 1] = entry
      elseif found and not called and holder == nil and mark_after ~= "=" and M.method(value) then
        entry.held, entry.call = M.method(value), M.call(M.method(value))
        list[#list + 1] = entry
      end
    end
    i = i + 1
  end
  return list
end

-- What is said of one.
local function said(entry)
  if entry.held then return ("%s is the method %s, not called: %s"):format(entry.name, entry.held, entry.call) end
  return ("%s is a method, not called: %s"):format(entry.name, entry.call)
end

--- What to add to an error whose message names a function where a value is wanted: "; x.shape is a method …"; or "".
function M.hint(line, vars, env)
  local entry = line and M.list(line, vars, env)[1]
  return entry and "; " .. said(entry) or ""
end

-- Where a method that is not called passes without an error and is hardly meant: it is compared, or asked whether it
-- is true, or what an assignment takes. Arguments of functions are left alone, pcall(x.view, x, 3) is fine.
local COMPARED = { ["=="] = true, ["~="] = true, ["and"] = true, ["or"] = true, ["then"] = true }
local ASKED = { ["=="] = true, ["~="] = true, ["not"] = true }

-- x:shape() == { 2, 3 }: a table that is made there equals no other.
local function compared_tables(code, list)
  local tokens = lex.code(code)
  for i, t in ipairs(tokens) do
    local after = tokens[i + 1]
    if (t.text == "==" or t.text == "~=") and after and after.text == "{" then
      list[#list + 1] = "two tables are never equal: sizes are compared one by one, x:size(1) == 2"
    end
  end
end

-- T.nn.Linaer: nothing is there, and nothing was said.
local function missing_path(code, values, env)
  local path = code:match "^%s*=?%s*([%a_][%w_]*%.[%w_.]+)%s*$"
  local root = path and path:match "^[%a_][%w_]*"
  if not root or values == nil or values.n ~= 1 or values[1] ~= nil then return nil end
  local T = require "perilune"
  local v = rawget(env, root)
  if v ~= T and v ~= T.nn and v ~= T.optim then return nil end
  local full = v == T and path:match "%.(.*)$" or path
  local meant = require("perilune.help.elsewhere").meant(full)
  return ("there is no %s%s"):format(path, meant and meant ~= path and ("; is %s meant?"):format(meant) or "")
end

-- What lint finds that is told here, too; the rest has notes of its own.
local NOTED = { truth = true, equal = true, nothing = true, beyond = true, address = true }

--- Notes on an input at the prompt that went well: a list of texts. values: what an expression gave, {n=, …}.
function M.notes(code, env, values)
  local list = {}
  compared_tables(code, list)
  list[#list + 1] = missing_path(code, values, env)
  for _, found in ipairs(require("perilune.help.lint").check(code, env)) do
    if NOTED[found.kind] then list[#list + 1] = found.text end
  end
  if not code:find("[%w_]%s*%.%s*[%a_]") then return list end
  for _, entry in ipairs(M.list(code, nil, env)) do
    local assigned = entry.before == "=" and (entry.last == entry.count or entry.after == "," or entry.after == ";")
    local whole = entry.first == 1 and (entry.last == entry.count or entry.after == ";")
    local sure = not entry.held and not entry.guessed and not whole
    if sure and (assigned or COMPARED[entry.after] or ASKED[entry.before]) then
      list[#list + 1] = said(entry)
    end
  end
  return list
end

--- What tostring says of a function in the perilune program.
function M.text(f)
  local name = M.method(f)
  return name and ("function: the method %s of tensors, not called: %s"):format(name, M.call(name)) or nil
end

return M
