-- SPDX-License-Identifier: MIT
-- What help says of arguments is what calls take, and the other way round. Of every public function and constructor the
-- calls that its example makes are taken (spec/support/calls.lua) and made again: with each documented option, and with
-- each documented default written out, by name and by position, which must change nothing; and what a refusal lists as
-- allowed must be documented.

local T = require "perilune"
local calls = require "spec.support.calls"

local inventory = calls.recorded()

local function is_plain(v) return type(v) == "table" and getmetatable(v) == nil end

local function help_of(entry) return T.help_text((entry.path:gsub("^x:", ""):gsub("^T%.", ""))) or "" end

-- The parts of text between commas that are not in brackets or quotes.
local function parts_of(text)
  local parts, depth, from, quoted = {}, 0, 1, false
  for i = 1, #text do
    local c = text:sub(i, i)
    if c == '"' then quoted = not quoted end
    if not quoted then
      if c:find "[{(%[]" then depth = depth + 1 elseif c:find "[})%]]" then depth = depth - 1 end
      if c == "," and depth == 0 then
        parts[#parts + 1] = text:sub(from, i - 1):match "^%s*(.-)%s*$"
        from = i + 1
      end
    end
  end
  parts[#parts + 1] = text:sub(from):match "^%s*(.-)%s*$"
  return parts
end

-- A default as it is written → whether it is a value, the value. Words of ops stand without quotes.
local function value_of(text, words)
  local f = load("return " .. text, "=default", "t", {})
  local ok, v = pcall(f or error)
  if ok and v ~= nil then return true, v end
  if words and text:find "^[%a_]+$" then return true, text end
  return false
end

-- Of "name(x, dim=-1, {keepdim=false, dtype=})": the list of positional arguments, {name, default text or nil}, and the
-- options by name → default text or "".
local function signature_of(entry)
  local line = help_of(entry):match "^[^\n]*"
  local name = entry.name:gsub("%p", "%%%0")
  local brackets, braces = line:match(name .. "(%b())"), line:match(name .. "(%b{})")
  local positional, named = { line:find "^x:" and { "x" } or nil }, {}
  local function options(text)
    for _, part in ipairs(parts_of(text)) do
      local key, default = part:match "^([%a_][%w_]*)%s*=%s*(.*)$"
      if key and not (key == "name" and default:find "^[%a]") then named[key] = default end -- {name = tensor} is a map
    end
  end
  if braces and not brackets then options(braces:sub(2, -2)) end
  for _, part in ipairs(brackets and parts_of(brackets:sub(2, -2)) or {}) do
    local key, default = part:match "^([%a_][%w_]*)%s*=%s*(.+)$"
    if key then
      named[key] = default
      positional[#positional + 1] = { key, default }
    elseif part:find "^{.*=" then
      options(part:match "^{(.*)}" or "")
      positional.closed = true
    elseif part:find "^[%a_][%w_]*%??$" and not positional.closed then
      positional[#positional + 1] = { part:match "[%w_]+", part:find "?" and "nil" or nil }
    else
      positional.closed = true
    end
  end
  return positional, named, line
end

local function fresh(v)
  if T.nn.is_module(v) then return v:clone() end
  if not T.is_tensor(v) then return v end
  local ok, t = pcall(function()
    local c = v:detach():clone()
    return v.requires_grad and c:requires_grad_() or c
  end)
  return ok and t or v
end

-- The call with the option key, or with it set to another value.
local function with(args, key, value)
  local a, last = { n = args.n }, args.n > 0 and args[args.n]
  for i = 1, args.n do a[i] = fresh(args[i]) end
  local options = {}
  if is_plain(last) and last[1] == nil then
    for k, v in pairs(last) do options[k] = fresh(v) end
  elseif is_plain(last) and args.n == 1 and not T.is_tensor(last[1]) then -- one mixed table
    for k, v in pairs(last) do options[k] = fresh(v) end
  else
    a.n = a.n + 1
  end
  options[key] = value
  a[a.n] = options
  return a
end

local function run(entry, a)
  T.manual_seed(7)
  return pcall(function() return table.pack(entry.f(table.unpack(a, 1, a.n))) end)
end

local function same(a, b, depth)
  depth = depth or 0
  if T.is_tensor(a) then
    if not T.is_tensor(b) or a:dtype() ~= b:dtype() or a:brief():gsub("%s.*", "") ~= b:brief():gsub("%s.*", "") then
      return false
    end
    return a:equal(b) or T.allclose(a, b, { rtol = 0, atol = 0, equal_nan = true })
  end
  if type(a) ~= type(b) then return false end
  if type(a) == "table" and depth < 4 then
    if T.nn.is_module(a) then
      local ok, state = pcall(a.state_dict, a) -- a lazy one has none yet
      return tostring(a) == tostring(b) and (not ok or same(state, b:state_dict(), depth + 1))
    end
    for k, v in next, a do
      if type(k) == "string" or type(k) == "number" then
        if not same(v, rawget(b, k), depth + 1) then return false end
      end
    end
    return true
  end
  if type(a) == "number" then return a == b or a ~= a and b ~= b end
  return type(a) ~= "string" and type(a) ~= "boolean" or a == b
end

-- They change what the rest runs with, speak to the system, or read no options of their own.
local LEFT = {}
for path in ([[T.cuda T.distributed T.set_default_device T.set_memory_budget T.debug T.core T.help T.help_text
  T.set_printoptions T.bar T.plot T.imshow T.spark x:imshow x:spark T.fit T.data.Dataset
  T.data.IterableDataset T.no_grad T.enable_grad T.inference_mode T.set_grad_enabled T.autocast T.cli
  T.GradKey T.nn.utils.remove_weight_norm T.nn.utils.remove_spectral_norm]]):gmatch "%S+" do
  LEFT[path] = true
end

local function each(f)
  for _, entry in ipairs(inventory) do
    if entry.kind ~= "forward" and not LEFT[entry.path] and not LEFT[entry.path:match "^T%.[%w_]+" or ""] then
      for i = 1, math.min(2, #entry.calls) do f(entry, entry.calls[i]) end
    end
  end
  for _ = 1, 3 do collectgarbage() end
end

local function report(problems, tried, least)
  local list = {}
  for text in pairs(problems) do list[#list + 1] = text end
  table.sort(list)
  assert.equal("", table.concat(list, "\n"))
  assert.is_true(tried > least, tried)
end

describe("help", function()
  teardown(function()
    for _, entry in ipairs(inventory) do entry.calls = nil end
    for _ = 1, 3 do collectgarbage() end
  end)

  it("knows of every function what it refuses: no option is passed over", function()
    local problems, tried = {}, 0
    each(function(entry, args)
      local positional, _, line = signature_of(entry)
      if line:find("…", 1, true) or entry.path == "T.save" then return end -- its table is what is saved
      if args.n == 1 and is_plain(args[1]) and positional[1] then return end -- a value may be any table
      tried = tried + 1
      if run(entry, with(args, "no_such_option", 1)) then problems[("%s: %s"):format(entry.path, line)] = true end
    end)
    report(problems, tried, 400)
  end)

  it("mentions every option that is taken", function()
    local problems, tried = {}, 0
    each(function(entry, args)
      local ok, err = run(entry, with(args, "no_such_option", 1))
      local allowed = not ok and type(err) == "string" and err:match "allowed: ([^%);]+)"
      if not allowed then return end
      local text = help_of(entry)
      if text:find "as T%.[%w_.]+$" or text:find "The same as T%." then return end
      tried = tried + 1
      for word in allowed:gmatch "[%w_]+" do
        if word ~= "out" and not text:find("%f[%w_]" .. word .. "%f[^%w_]") then
          problems[("%s: %s"):format(entry.path, word)] = true
        end
      end
    end)
    report(problems, tried, 400)
  end)

  -- Calls of modules name their options in refusals alone.
  it("takes nothing else for what a module's call may be given", function()
    local problems, tried = {}, 0
    local strange = coroutine.create(print)
    for _, entry in ipairs(inventory) do
      for i = 1, entry.kind == "forward" and math.min(2, #entry.calls) or 0 do
        local args = entry.calls[i]
        local ok, err = run(entry, with(args, "no_such_option", 1))
        local allowed = not ok and type(err) == "string" and err:match "allowed: ([^%);]+)"
        for word in (allowed or ""):gmatch "[%w_]+" do
          tried = tried + 1
          if run(entry, with(args, word, strange)) then
            problems[("%s: %s may be a coroutine"):format(entry.path, word)] = true
          end
        end
      end
    end
    report(problems, tried, 20)
  end)

  it("mentions no option that is refused, and none that takes anything", function()
    local problems, tried = {}, 0
    local strange = coroutine.create(print)
    -- objects and values of the script's own; for a file that is not there it is not said what fits it
    local any = {}
    for path in ("T.snapshot T.restore T.load T.load_pt"):gmatch "%S+" do any[path] = true end
    each(function(entry, args)
      local positional, named, line = signature_of(entry)
      for i = 1, args.n do -- what has a place already is no option
        if positional[i] and not is_plain(args[i]) then named[positional[i][1]] = nil end
      end
      for key in pairs(named) do
        tried = tried + 1
        local ok, err = run(entry, with(args, key, strange))
        if not ok and (type(err) ~= "string" or err:find "unknown option" or err:find "takes at most"
          or err:find "too many" or err:find "it has the key") then
          problems[("%s: %s: %s"):format(line, key, tostring(err))] = true
        elseif ok and not any[entry.path] then
          problems[("%s: %s may be a coroutine"):format(line, key)] = true
        end
      end
    end)
    report(problems, tried, 400)
  end)

  it("tells the defaults, by name", function()
    local problems, tried = {}, 0
    each(function(entry, args)
      local _, named, line = signature_of(entry)
      local plain
      for key, text in pairs(named) do
        local is, value = value_of(text, not line:find("→", 1, true))
        local last = args.n > 0 and args[args.n]
        local set = is_plain(last) and last[key] ~= nil
        if is and not set then
          if not plain then
            run(entry, with(args, key, nil)) -- a second clipping changes nothing
            plain = table.pack(run(entry, with(args, key, nil)))
          end
          if plain and plain[1] then
            tried = tried + 1
            local ok, results = run(entry, with(args, key, value))
            if not ok and not tostring(results):find "is given twice" and not tostring(results):find "given both" then
              problems[("%s: %s: %s"):format(line, key, tostring(results))] = true
            elseif ok and not same(plain[2], results) then
              problems[("%s: %s = %s is not the default"):format(line, key, text)] = true
            end
          end
        end
      end
    end)
    report(problems, tried, 300)
  end)

  it("tells the defaults, by position", function()
    local problems, tried = {}, 0
    each(function(entry, args)
      local positional, _, line = signature_of(entry)
      if is_plain(args[args.n]) and next(args[args.n]) ~= nil and args[args.n][1] == nil then return end
      if args.n == 1 and is_plain(args[1]) then return end
      local a = { n = args.n }
      for i = 1, args.n do a[i] = fresh(args[i]) end
      local ok, plain = run(entry, a)
      if not ok then return end
      for i = args.n + 1, #positional do
        local is, value = false, nil
        if positional[i][2] ~= "nil" then is, value = value_of(positional[i][2] or "", not line:find("→", 1, true)) end
        if positional[i][2] ~= "nil" and not is then return end
        a = { n = i, table.unpack(a, 1, i - 1) }
        for k = 1, args.n do a[k] = fresh(args[k]) end
        a[i] = value
        tried = tried + 1
        local fine, results = run(entry, a)
        if not fine then
          problems[("%s: %d arguments: %s"):format(line, i, tostring(results))] = true
        elseif not same(plain, results) then
          problems[("%s: %s as argument %d is not the default"):format(line, positional[i][2], i)] = true
        end
      end
    end)
    report(problems, tried, 200)
  end)

  it("names no argument that can be given twice, at its place and by name", function()
    local problems, tried = {}, 0
    local function twice(entry, line, a, i, name)
      local again = with(a, name, a[i])
      if again[again.n] == a[i] or again.n == a.n then return end -- its options have no place of their own
      if not run(entry, a) then return end
      tried = tried + 1
      if run(entry, again) then problems[("%s: %s"):format(line, name)] = true end
    end
    each(function(entry, args)
      local positional, named, line = signature_of(entry)
      for i = 1, line:find("…", 1, true) and 0 or #positional do -- where any number goes, a table is one more
        local name = positional[i][1]
        local a = { n = math.max(i, args.n), table.unpack(args, 1, args.n) }
        if type(name) == "string" and i > args.n then -- left out: the default, or the first number that goes
          local is, value = value_of(positional[i][2] or named[name] or "", not line:find("→", 1, true))
          for _, guess in ipairs { 1, 2, 0 } do
            a[i] = guess
            if is and guess == 1 then a[i] = value end
            if a[i] ~= nil and run(entry, a) then break end
          end
        end
        if type(name) == "string" and a[i] ~= nil and not is_plain(a[i]) then twice(entry, line, a, i, name) end
      end
    end)
    report(problems, tried, 400)
  end)
end)
