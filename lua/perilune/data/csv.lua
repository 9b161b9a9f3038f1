-- SPDX-License-Identifier: MIT
--- Tables of text. `data.csv(path, opts)` reads a file into columns: tensors for numbers and booleans, lists of strings
-- for text.
-- @module perilune.data.csv
local T = require "perilune"
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

local Csv = classes.new("csv", "csv")
Csv.__index = function(self, key)
  local i = options.integer(key)
  if i then return self:row(i) end
  local value, columns = Csv[key], rawget(self, "columns")
  if value == nil and type(columns) == "table" and columns[key] ~= nil then
    fail("data.csv: %s is a column: csv.columns.%s", key, key)
  end
  return value
end
Csv.__len = function(self) return rawget(self, "rows") end
Csv.__tostring = function(self) return ("csv of %d rows, %d columns"):format(#self, #self.names) end

local MISSING = { "NA", "N/A", "nan", "NaN", "null", "NULL", "None" }
local allowed = { "header", "delimiter", "quote", "comment", "missing", "types", "columns", "max_bytes", "text" }

-- The dtype that a column of this kind gets, or "text".
local function natural(kind)
  if kind == "int" then return "i64" end
  if kind == "bool" then return "bool" end
  if kind == "double" then return "f64" end
  return kind == "text" and "text" or T.default_dtype()
end

local function numbered(names)
  local by_name = {}
  for k, name in ipairs(names) do
    if name == "" then name = "column" .. k end
    local n, unique = 1, name
    while by_name[unique] do
      n = n + 1
      unique = name .. "_" .. n
    end
    names[k], by_name[unique] = unique, k
  end
  return by_name
end

local function position(who, by_name, names, key)
  local k = by_name[key] or (options.integer(key) and names[key] and key)
  if not k then fail("%s: %s", who, options.unknown("column", key, names)) end
  return k
end

-- Column number → dtype or "text", for the columns that are wanted.
local function choose(names, by_name, kinds, o)
  local chosen = {}
  if o.columns then
    options.list("data.csv", "columns", o.columns, "names or numbers")
    for _, key in ipairs(o.columns) do
      local k = position("data.csv", by_name, names, key)
      chosen[k] = natural(kinds[k])
    end
  else
    for k, kind in ipairs(kinds) do chosen[k] = natural(kind) end
  end
  if o.types ~= nil and type(o.types) ~= "table" then fail("data.csv: types must be a table of dtypes by column") end
  for key, dtype in pairs(o.types or {}) do
    local k = position("data.csv", by_name, names, key)
    if chosen[k] then chosen[k] = dtype end
  end
  return chosen
end

local function open(path, o)
  if o.header ~= nil and type(o.header) ~= "boolean" then fail("data.csv: header must be true or false") end
  if o.max_bytes ~= nil and not options.integer(o.max_bytes) then fail("data.csv: max_bytes must be an integer") end
  if o.missing ~= nil and type(o.missing) ~= "table" then fail("data.csv: missing must be a list of strings") end
  local quote = o.quote == nil and '"' or o.quote or nil
  return core.open_csv(path or o.text, path ~= nil, o.header ~= false, o.delimiter or ",", quote, o.comment,
    o.missing or MISSING, o.max_bytes)
end

-- Reads a table of text.
-- @tparam ?string path or nil with `text=`
-- @tparam[opt] table opts `header=true`: the first line names the columns; `delimiter=","`; `quote='"'` or false;
-- `comment=`: lines that begin with it are skipped; `missing={"NA", "nan", …}`: words for no value, as is the empty
-- field; `types={name = dtype or "text"}`: by default i64, the default float, bool or text, by what the values are
-- (integers, some missing: a float that holds them all, or text);
-- `columns={name, …}`: those alone; `max_bytes=`; `text=` instead of a path
-- @treturn csv with fields `names`, `rows`, `columns` (name → tensor [rows] or list of strings, false for a missing
-- one) and `missing` (name → how many); `csv[i]` is row i by name. Or nil, message, code for a missing or malformed
-- file; the message names line and column.
--- T.data.csv(path, {header=true, delimiter=",", types=, columns=, missing=, comment=, quote=, text=, max_bytes=})
--   → table
-- Columns of text files as tensors (i64, f32 or bool by what they hold, or types={name=dtype}) or lists of strings
-- ("text"). Integers of which some are missing are f32 or f64, by what holds them all, or text; so are those beyond 64
-- bits. Fields names, rows, columns, missing; csv[i] is a row; csv:tensor{"a", "b"} → [rows, 2]; csv:categories("c") →
-- classes, words. Missing numbers are NaN. text= instead of a path. Or nil, message, code.
--   local c = assert(T.data.csv { text = "a,b,kind\n1,2.5,x\n3,,y\n" })
--   print(c.columns.a, c.columns.kind[2], c.missing.b)  --> {1, 3}  -- i64[2] cpu	y	1
--   print(c:tensor { "a" }:size(1))  --> 2
local function csv(path, opts)
  local o = options.check("data.csv", opts, allowed)
  if type(path) == "table" and opts == nil then
    o = options.check("data.csv", path, allowed)
    path = nil
  end
  if path ~= nil and type(path) ~= "string" then fail("data.csv: the path must be a string, got %s", describe(path)) end
  if (path == nil) == (o.text == nil) then fail("data.csv: either a path or text is wanted") end
  local file, message, code = open(path, o)
  if not file then return nil, message, code end
  local rows, names, kinds, missing = file:info()
  local by_name = numbered(names)
  local chosen = choose(names, by_name, kinds, o)
  local dtypes, texts = {}, {}
  for k = 1, #names do
    dtypes[k] = chosen[k] and chosen[k] ~= "text" and chosen[k] or false
    texts[k] = chosen[k] == "text"
  end
  local filled
  filled, message, code = file:fill(dtypes)
  if not filled then return nil, message, code end
  local lists = file:texts(texts)
  file:close()
  local self = { names = {}, rows = rows, columns = {}, missing = {} }
  for k, name in ipairs(names) do
    if chosen[k] then
      self.names[#self.names + 1] = name
      self.columns[name] = filled[k] or lists[k]
      self.missing[name] = missing[k]
    end
  end
  return setmetatable(self, Csv)
end

--- Row i as a table by column name; a missing value of text is false.
function Csv:row(i)
  if i < 1 or i > #self then fail("csv: row %d is not in 1..%d", i, #self) end
  local out = {}
  for name, column in pairs(self.columns) do
    if type(column) == "table" then out[name] = column[i] else out[name] = column:get(i) end
  end
  return out
end

--- Columns side by side as [rows, k] of one dtype (the default float): all that are no text, or those named.
function Csv:tensor(names, opts)
  opts = options.check("csv:tensor", opts, { "dtype" })
  local list, by_name = {}, {}
  for k, name in ipairs(self.names) do by_name[name] = k end
  if names == nil then
    names = {}
    for _, name in ipairs(self.names) do
      if type(self.columns[name]) ~= "table" then names[#names + 1] = name end
    end
  end
  if type(names) ~= "table" or #names == 0 then fail("csv:tensor: a list of columns is wanted") end
  for i, key in ipairs(names) do
    local name = self.names[position("csv:tensor", by_name, self.names, key)]
    local column = self.columns[name]
    if type(column) == "table" then
      fail("csv:tensor: column '%s' is text; csv:categories(\"%s\") numbers its words", name, name)
    end
    list[i] = column:to(opts.dtype or T.default_dtype())
  end
  return T.stack(list, 2)
end

--- A column of text as classes: i64 [rows] from 1, and the sorted list of words. A missing value is an error.
function Csv:categories(name)
  local column = self.columns[name]
  if type(column) ~= "table" then
    fail("csv:categories: '%s' is %s", tostring(name), column and "no column of text" or "no column of this table")
  end
  local words, ids = {}, {}
  for i, w in ipairs(column) do
    if not w then fail("csv:categories: '%s' has no value in row %d", name, i) end
    if not ids[w] then
      ids[w] = true
      words[#words + 1] = w
    end
  end
  table.sort(words)
  for k, w in ipairs(words) do ids[w] = k end
  local out = {}
  for i, w in ipairs(column) do out[i] = ids[w] end
  if #out == 0 then return T.empty({ 0 }, { dtype = "i64", device = "cpu" }), words end
  return T.tensor(out, { dtype = "i64", device = "cpu" }), words
end

return { csv = csv, Csv = Csv }
