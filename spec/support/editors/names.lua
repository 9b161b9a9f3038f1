-- SPDX-License-Identifier: MIT
-- What the definitions for editors say of a script: names of the library that there are not, options and methods that
-- nothing has. A language server infers more; this judges without one what no server looks at, options' names.
local lex = require "perilune.repl.lex"
local annotations = require "spec.support.editors.annotations"

local M = {}

-- Methods of Lua's own strings and files.
local LUA = {}
for name in ([[byte char find format gmatch gsub len lower match rep reverse sub upper pack unpack packsize close flush
  lines read seek setvbuf write]]):gmatch "%S+" do LUA[name] = true end

--- Definitions as text → what is looked up in them: {known=, paths= set, functions= by name, methods= set}
function M.definitions(text)
  local known = annotations.read(text)
  local d = { known = known, paths = { T = true, nn = true, optim = true }, functions = {}, methods = {} }
  for _, f in ipairs(known.functions) do
    d.functions[f.name] = f
    local method = f.name:match ":([%w_]+)$"
    if method then d.methods[method] = true end
    local path = f.name:match "^[%w_.]+$"
    while path do
      d.paths[path] = true
      path = path:match "^(.*)%.[^.]+$"
    end
  end
  for name, class in pairs(known.classes) do
    if not name:find "Options$" then
      for field, f in pairs(class.fields) do
        if name == "perilune" then d.paths["T." .. field] = true end
        if f[1][1] == "fun" then d.methods[field] = true end
      end
    end
  end
  for name in text:gmatch "\n([%w_.]+) = {}" do d.paths[name] = true end -- T.log and its like
  return d
end

-- What a path stands for: names of the library have T before nn and optim, and nn.F has whatever T has.
local function canonical(d, path)
  path = path:gsub("^T%.nn%f[%W]", "nn"):gsub("^T%.optim%f[%W]", "optim")
  if d.paths[path] or d.functions[path] then return path end
  local same = path:match "^nn%.F(%..*)$"
  if same and d.functions["T" .. same] then return "T" .. same end
  return path
end

-- The names behind `local` and what is assigned, where that is a path each: local nn, F = T.nn, T.nn.F
local function aliases(d, tokens)
  local map = {}
  local i = 1
  while i <= #tokens do
    if tokens[i].text == "local" and tokens[i + 1] and tokens[i + 1].kind == "name" then
      local names, paths, j = {}, {}, i + 1
      while tokens[j] and tokens[j].kind == "name" do
        names[#names + 1] = tokens[j].text
        j = j + (tokens[j + 1] and tokens[j + 1].text == "," and 2 or 1)
      end
      if tokens[j] and tokens[j].text == "=" then
        j = j + 1
        while tokens[j] and tokens[j].kind == "name" do
          local path = tokens[j].text
          j = j + 1
          while tokens[j] and tokens[j].text == "." do
            path, j = path .. "." .. (tokens[j + 1] and tokens[j + 1].text or ""), j + 2
          end
          paths[#paths + 1] = path
          if not (tokens[j] and tokens[j].text == ",") then break end
          j = j + 1
        end
        if #paths == #names and not (tokens[j] and tokens[j].text:find "^[%[({:]") then
          for k, name in ipairs(names) do
            local root = paths[k]:match "^[^.]+"
            local path = canonical(d, (map[root] or root) .. paths[k]:sub(#root + 1))
            if path ~= name and path:find "^%l*T?%." and d.paths[path] then map[name] = path end
          end
        end
      end
    end
    i = i + 1
  end
  return map
end

-- The named fields of a table that opens at i: list of {name, token}; where it ends.
local function fields(tokens, i)
  local depth, list, j = 0, {}, i
  repeat
    local t = tokens[j].text
    if lex.opens[t] and tokens[j].kind ~= "string" then depth = depth + 1 end
    if lex.closes[t] == 1 and tokens[j].kind ~= "string" and t ~= "elseif" then depth = depth - 1 end
    local before = tokens[j - 1].text
    if depth == 1 and tokens[j].kind == "name" and tokens[j + 1] and tokens[j + 1].text == "="
        and (before == "{" or before == "," or before == ";") then
      list[#list + 1] = tokens[j]
    end
    j = j + 1
  until depth == 0 or not tokens[j]
  return list, j
end

-- Is key an option that a function takes in the table that is its argument at a position? Where a plain table or
-- anything may come, any is.
local function takes(d, f, key, position)
  local open, some = false, false
  local function look(t)
    if t[1] == "union" then
      for i = 2, #t do look(t[i]) end
    elseif t[1] == "name" then
      local class = d.known.classes[t[2]]
      if t[2]:find "Options$" then
        some = true
        if class.fields[key] then open = true end
        for _, index in ipairs(class.index or {}) do if index[1][2] == "string" then open = true end end
      elseif t[2] == "any" or t[2] == "table" or not t[2]:find "^[%l.]+$" and t[2] ~= "perilune.Tensor" then
        open = true
      end
    elseif t[1] == "table" then
      open = true
    end
  end
  local p = f.params[math.min(position, #f.params)]
  if p then look(p[2]) end
  return open or not some
end

--- A script → list of what is wrong in it: "line 3: …"
function M.check(d, source)
  local tokens = lex.code(source)
  local faults, own, map = {}, {}, aliases(d, tokens)
  local function line(t) return select(2, source:sub(1, t.from):gsub("\n", "")) + 1 end
  local function note(t, ...) faults[#faults + 1] = ("line %d: "):format(line(t)) .. string.format(...) end
  for i, t in ipairs(tokens) do -- methods and fields of the script's own
    local before, after = tokens[i - 1] and tokens[i - 1].text, tokens[i + 1] and tokens[i + 1].text
    if t.kind == "name" and (after == "=" or (before == ":" or before == ".") and tokens[i - 3]
      and tokens[i - 3].text == "function") then own[t.text] = true end
  end
  for i, t in ipairs(tokens) do
    local before = tokens[i - 1] and tokens[i - 1].text
    if t.kind == "name" and (t.text == "T" or t.text == "nn" or t.text == "optim" or map[t.text]) and before ~= "."
        and before ~= ":" and not (tokens[i + 1] and tokens[i + 1].text == "=") then
      local path, j = map[t.text] or t.text, i + 1
      while tokens[j] and tokens[j].text == "." and tokens[j + 1].kind == "name" do
        local parent = path
        path, j = canonical(d, path .. "." .. tokens[j + 1].text), j + 2
        if not d.paths[path] then
          if not (parent:find "^T%.core" or parent:find "^T%.debug") and not d.functions[parent]
              and tokens[j] and tokens[j].text ~= "=" then
            note(t, "there is no %s", path)
          end
          break
        end
      end
      local f = d.functions[path]
      if f and tokens[j] and (tokens[j].text == "{" or tokens[j].text == "(") then
        -- tables that are arguments themselves
        local k, depth, position = j, 0, 1
        repeat
          local text = tokens[k].text
          if text == "," and depth == 1 then position = position + 1 end
          if text == "{" and depth <= 1 and tokens[k].kind == "symbol" then
            local before_it = tokens[k - 1].text
            local list, stop = fields(tokens, k)
            if before_it == "(" or before_it == "," or k == j then
              for _, key in ipairs(list) do
                if not takes(d, f, key.text, position) then note(key, "%s takes no %s", path, key.text) end
              end
            end
            if k == j then break end
            k = stop
          else
            if tokens[k].kind ~= "string" then
              if text == "(" then depth = depth + 1 elseif lex.opens[text] then depth = depth + 1 end
              if lex.closes[text] == 1 and text ~= "elseif" then depth = depth - 1 end
            end
            k = k + 1
          end
        until depth == 0 or not tokens[k]
      end
    end
    if t.kind == "name" and before == ":" and tokens[i + 1] and (tokens[i + 1].text:find "^[({]"
      or tokens[i + 1].kind == "string") and not d.methods[t.text] and not LUA[t.text] and not own[t.text] then
      note(t, "nothing has a method %s", t.text)
    end
    if t.kind == "name" and before == ":" and d.functions["Tensor:" .. t.text] and tokens[i + 1]
        and (tokens[i + 1].text == "{" or tokens[i + 1].text == "(" and tokens[i + 2].text == "{")
        and not own[t.text] then
      for _, key in ipairs((fields(tokens, tokens[i + 1].text == "{" and i + 1 or i + 2))) do
        local some = takes(d, d.functions["Tensor:" .. t.text], key.text, 1)
        for _, class in pairs(d.known.classes) do some = some or class.fields[t.text] ~= nil end -- of other objects
        if not some then note(key, "Tensor:%s takes no %s", t.text, key.text) end
      end
    end
  end
  return faults
end

return M
