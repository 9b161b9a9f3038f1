-- SPDX-License-Identifier: MIT
--- Rows of figures as text: CSV (RFC 4180) and JSON Lines. Every row is written at once and flushed, so what a killed
-- run leaves behind can be read.
-- @module perilune.log.table
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"
local steps = require "perilune.log.steps"

local fail, describe = options.fail, options.describe
local M = {}

local function plain(who, key, v)
  if type(v) == "userdata" and v.numel and v:numel() == 1 then v = v:item() end
  local kind = type(v)
  if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
    fail("%s: '%s' must be a number, a string, a boolean or a tensor of one element, got %s", who, tostring(key),
      describe(v))
  end
  return v
end

-- Names in a fixed order: step, epoch, batch, then the others sorted.
local first = { step = 1, epoch = 2, batch = 3 }
local function sorted(row)
  local keys = {}
  for key in pairs(row) do
    if type(key) ~= "string" then fail("log: a row's keys must be strings, got %s", describe(key)) end
    keys[#keys + 1] = key
  end
  table.sort(keys, function(a, b)
    local p, q = first[a] or 9, first[b] or 9
    if p ~= q then return p < q end
    return a < b
  end)
  return keys
end

local function number_text(v)
  if math.type(v) == "integer" then return tostring(v) end
  local s = ("%.9g"):format(v)
  return tonumber(s) == v and s or ("%.17g"):format(v)
end

-- ---- the file -----------------------------------------------------------------------------------------------

local Log = {}

-- The file is opened at once, so that a wrong path is told where it was written; what it holds from an earlier run goes
-- when the first row is written: by then T.fit has said whether it goes on with that run.
local function open(who, path, opts)
  opts = options.check(who, opts, { "append", "every" })
  local every = steps.option(who, opts.every)
  if type(path) ~= "string" then fail("%s: the path must be a string, got %s", who, describe(path)) end
  local f, message, code = io.open(path, "a+")
  if not f then return nil, message, "io", code end
  f:setvbuf("full")
  return { file = f, path = path, who = who, fresh = not opts.append, every = every }
end

-- Without the rows of an earlier run. → true; or nil, message, "io", code
local function begin(self)
  if not self.fresh then return true end
  self.fresh = false
  self.file:close()
  local message, code
  self.file, message, code = io.open(self.path, "w")
  if not self.file then return nil, message, "io", code end
  self.file:setvbuf("full")
  return true
end

local function put(self, text)
  if not self.file then fail("%s: %s is closed", self.who, self.path) end
  local ok, message, code = begin(self)
  if not ok then return nil, message, "io", code end
  ok, message, code = self.file:write(text)
  if ok then ok, message, code = self.file:flush() end
  if not ok then return nil, ("%s: %s"):format(self.path, message), "io", code end
  return true
end

function Log:close()
  if not self.file then return true end
  local ok, message, code = begin(self)
  if not ok then return nil, message, "io", code end
  ok, message, code = self.file:close()
  self.file = nil
  if not ok then return nil, ("%s: %s"):format(self.path, message), "io", code end
  return true
end

-- A log that nobody has any more: what another one has written to the file since stays.
local function forget(self)
  if self.file then self.file:close() end
  self.file = nil
end

-- As a callback of T.fit: a row an epoch, or with every = n those of log/steps.lua.
local function sure(self, row)
  local ok, message = self:write(row)
  if not ok then error(message, 0) end
end
local function on_epoch(self, run) sure(self, self.every and steps.measured(run, self.known) or run.row) end
local function on_batch(self, run)
  local row = self.every and steps.row(self, run)
  if row then sure(self, row) end
end

-- Where T.fit says how it stands, and looks for what it shall do: beside a log that is a file.
local function beside(self) return core.file_facts(self.path) == "file" and self.path or nil end

-- A run that goes on: rows of its own that are there already stay, those behind the epoch (with every: the step) in
-- which it goes on are written anew. A file of another kind is an error, not overwritten.
local function keep_rows(self, run)
  local name, most = "epoch", run.resumed_from - 1
  if self.every or run.options.eval_every then name, most = "step", run.step end
  self.file:seek("set", 0)
  local kept, number_of = {}, nil
  for line in self.file:lines "L" do
    number_of = number_of or self:numbers(line, name)
    local number = number_of(line)
    if not number or number <= most then kept[#kept + 1] = line end
  end
  local text = table.concat(kept)
  self.fresh, self.columns = true, self.header and self.header(text)
  local ok, message = put(self, text:sub(-1) == "\n" and text or text ~= "" and text .. "\n" or "")
  if not ok then error(message, 0) end
end

local function on_start(self, run)
  if run.resumed_from then keep_rows(self, run) end
  if not self.every then return end
  steps.begin(self, run)
  if self.header and not self.columns then self.to_come = steps.names(run) end
  if self.header then
    self.known = {}
    for _, key in ipairs(self.columns or self.to_come) do self.known[key] = true end
  end
end

local function class(name, methods)
  local C = { __name = name, close = Log.close, on_epoch = on_epoch, on_batch = on_batch,
    on_start = on_start, beside = beside }
  for key, f in pairs(methods) do C[key] = f end
  C.__index, C.__close, C.__gc = C, Log.close, forget
  return classes.class(C, "log")
end

-- ---- CSV ------------------------------------------------------------------------------------------------------

local function cell(v)
  if type(v) == "number" then return v ~= v and "nan" or number_text(v) end
  local s = tostring(v)
  if s:find('[,"\r\n]') then s = '"' .. s:gsub('"', '""') .. '"' end
  return s
end

local function cells(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = cell(v) end
  return table.concat(out, ",") .. "\n"
end

local function words_of(line)
  local out = {}
  for word in (line:gsub("[\r\n]+$", "") .. ","):gmatch('([^,]*),') do out[#out + 1] = word:match('^"(.*)"$')
    or word end
  return out
end

local Csv = class("log.csv", {
  -- A line → the epoch or step of its row: its number in the column of that name.
  numbers = function(_, header, name)
    local at
    for i, word in ipairs(words_of(header)) do if word == name then at = i end end
    return function(line) return at and math.tointeger(tonumber(words_of(line)[at])) end
  end,
  header = function(text) return text ~= "" and words_of(text:match "^[^\n]*") or nil end,

  --- Adds a row. The first one names the columns; later ones may lack some of them, but not bring new ones.
  write = function(self, row)
    if type(row) ~= "table" then fail("log.csv: a table of values is wanted, got %s", describe(row)) end
    local text, columns = "", self.columns
    if not columns then
      columns = self.to_come or sorted(row)
      text = cells(columns)
    end
    local known, out = {}, {}
    for i, key in ipairs(columns) do
      known[key] = true
      out[i] = row[key] ~= nil and plain("log.csv", key, row[key]) or (row[key] == false and "false" or "")
    end
    for key in pairs(row) do
      if not known[key] then fail("log.csv: %s", options.unknown("column", key, columns)) end
    end
    self.columns = columns -- of a row that is refused nothing stays
    return put(self, text .. cells(out))
  end,
})

--- @treturn log, or nil, message, code where the file cannot be opened
function M.csv(path, opts)
  local self, message, code = open("log.csv", path, opts)
  if not self then return nil, message, code end
  if not self.fresh then -- the columns of a file that is continued
    self.file:seek("set", 0)
    self.columns = Csv.header(self.file:read "L" or "")
    self.file:seek("end", 0)
  end
  if self.every then steps.keep(self) end
  return setmetatable(self, Csv)
end

-- ---- JSON Lines -----------------------------------------------------------------------------------------------

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }
local function quoted(s)
  if not utf8.len(s) then s = s:gsub("[\128-\255]", function(c) return utf8.char(c:byte()) end) end
  return '"' .. s:gsub('[%c"\\]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

local function json(v)
  if type(v) == "string" then return quoted(v) end
  if type(v) == "boolean" then return tostring(v) end
  if v ~= v or v - v ~= 0 then return "null" end -- JSON has neither NaN nor infinity
  return number_text(v)
end

local Jsonl = class("log.jsonl", {
  numbers = function(_, _, name)
    local pattern = ('"%s":(%%d+)'):format(name)
    return function(line) return math.tointeger(tonumber(line:match(pattern))) end
  end,
  --- Adds a row, an object a line.
  write = function(self, row)
    if type(row) ~= "table" then fail("log.jsonl: a table of values is wanted, got %s", describe(row)) end
    local out = {}
    for i, key in ipairs(sorted(row)) do out[i] = quoted(key) .. ":" .. json(plain("log.jsonl", key, row[key])) end
    return put(self, "{" .. table.concat(out, ",") .. "}\n")
  end,
})

--- @treturn log, or nil, message, code where the file cannot be opened
function M.jsonl(path, opts)
  local self, message, code = open("log.jsonl", path, opts)
  if not self then return nil, message, code end
  if self.every then steps.keep(self) end
  return setmetatable(self, Jsonl)
end

return M
