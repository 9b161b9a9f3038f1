-- SPDX-License-Identifier: MIT
--- Log files that grow, read once: each reader goes on where it stopped. What is only half there at the end waits for
-- its other half. A file that is another one by now, is shorter than what was read, or holds something else before the
-- place where the reader stands, is read from its beginning again.
-- @module perilune.watch.tail
local core = require "perilune.core"
local events = require "perilune.command.events"
local json = require "perilune.io.json"

local M = {}

local PIECE, MAX_LINE, MARK = 1 << 16, 1 << 20, 64
local MAX_PICTURE = 32 << 20

local Tail = {}
Tail.__index = Tail

--- take: what is called with what is read: take.row(row), numbers and names by column; take.scalar(tag, step, v);
-- take.picture(tag, step, from, n); take.restart() when the file is read anew.
function M.open(path, kind, take)
  return setmetatable({ path = path, kind = kind, take = take, at = 0, mark = "" }, Tail)
end

local function restart(self, id)
  if self.id then self.take.restart() end
  self.id, self.at, self.mark, self.columns, self.fault, self.skipping = id, 0, "", nil, nil, nil
end

-- n bytes from where the reader stands.
local function piece(self, n) return core.read_range(self.path, self.id, self.at, n) end

-- The reader stands behind these bytes now.
local function advance(self, bytes)
  self.at = self.at + #bytes
  self.mark = (self.mark .. bytes):sub(-MARK)
end

-- ---- lines: CSV, JSON ---------------------------------------------------------------------------------------------

local function cells(line)
  local out, at = {}, 1
  if not line:find('"', 1, true) then
    for word in (line .. ","):gmatch "([^,]*)," do
      out[at] = word
      at = at + 1
    end
    return out
  end
  while true do
    if line:sub(at, at) == '"' then
      local parts, from = {}, at + 1
      while true do
        local quote = line:find('"', from, true)
        if not quote then return out end
        parts[#parts + 1] = line:sub(from, quote - 1)
        from = quote + 1
        if line:sub(from, from) ~= '"' then break end
        parts[#parts + 1], from = '"', from + 1
      end
      out[#out + 1], at = table.concat(parts), from
    else
      local stop = line:find(",", at, true) or #line + 1
      out[#out + 1], at = line:sub(at, stop - 1), stop
    end
    if line:sub(at, at) ~= "," then return out end
    at = at + 1
  end
end

local words = { nan = 0 / 0, ["-nan"] = 0 / 0, inf = math.huge, ["-inf"] = -math.huge } -- as T.log.csv writes them
local rows = {}

function rows.csv(self, line)
  local values = cells(line)
  if not self.columns then
    self.columns = values
    return
  end
  local row = {}
  for i, name in ipairs(self.columns) do
    local word = values[i]
    if word and word ~= "" then row[name] = tonumber(word) or words[word] end
  end
  self.take.row(row)
end

function rows.jsonl(self, line)
  local row = json.decode(line)
  if type(row) == "table" and not json.is_array(row) then self.take.row(row) end
end

-- The lines that are whole. → whether there may be more
local function lines(self)
  local bytes = piece(self, PIECE)
  if not bytes or bytes == "" then return false end
  local last = bytes:match "^.*()\n"
  while not last and #bytes < MAX_LINE do -- a long line, or one that is being written
    local before = #bytes
    bytes = piece(self, before * 4)
    if not bytes or #bytes == before then return false end
    last = bytes:match "^.*()\n"
  end
  if not last then -- no line of a log
    self.skipping = true
    advance(self, bytes)
    return true
  end
  bytes = bytes:sub(1, last)
  advance(self, bytes)
  for line in bytes:gmatch "([^\n]*)\n" do
    line = line:gsub("\r$", "")
    if not self.skipping and line ~= "" then rows[self.kind](self, line) end
    self.skipping = nil
  end
  return true
end

-- ---- events of TensorBoard ------------------------------------------------------------------------------------------

-- The records that are whole, some of them at a time. → whether there may be more
local function records(self)
  for _ = 1, 200 do
    local head = piece(self, events.RECORD_HEAD)
    if not head or #head < events.RECORD_HEAD then return false end
    local n = events.record_size(head)
    if not n then
      self.fault = "a record's length is damaged"
      return false
    end
    local whole = events.RECORD_HEAD + n + events.RECORD_TAIL
    local bytes = piece(self, whole)
    if not bytes or #bytes < whole then return false end -- half of it
    local data, tail = bytes:sub(events.RECORD_HEAD + 1, -1 - events.RECORD_TAIL), bytes:sub(-events.RECORD_TAIL)
    local e = events.record_fits(data, tail) and events.decode(data)
    if not e then
      self.fault = "a record is damaged"
      return false
    end
    for i, v in ipairs(e.values) do
      if v.scalar then self.take.scalar(v.tag or "", e.step, v.scalar) end
      if v.image and n <= MAX_PICTURE then self.take.picture(v.tag or "", e.step, self.at, whole, i) end
    end
    advance(self, bytes)
  end
  return true
end

--- The bytes of a picture that take.picture told of; nil where they are gone.
function M.picture(path, id, from, whole, index)
  local bytes = core.read_range(path, id, from, whole)
  local e = bytes and #bytes == whole and events.decode(bytes:sub(events.RECORD_HEAD + 1, -1 - events.RECORD_TAIL))
  local v = e and e.values[index]
  local _, _, picture = events.image(v and v.image or "")
  return picture
end

-- ---- any ------------------------------------------------------------------------------------------------------------

--- Reads a piece of what is new. → whether there may be more
function Tail:more()
  local kind, size, time, id = core.file_facts(self.path)
  if kind ~= "file" then return false end
  local changed = id ~= self.id or size ~= self.size or time ~= self.time
  if not changed and not self.left then return false end
  if changed then -- does it still hold what was read?
    local same = id == self.id and size >= self.at
      and (self.at == 0 or core.read_range(self.path, id, self.at - #self.mark, #self.mark) == self.mark)
    if not same then restart(self, id) end
    self.size, self.time = size, time
  end
  if self.fault then return false end
  self.left = (self.kind == "events" and records or lines)(self)
  return self.left
end

return M
