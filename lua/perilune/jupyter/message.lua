-- SPDX-License-Identifier: MIT
--- Messages of the Jupyter protocol on the wire: parts, signatures, JSON
-- (jupyter-client.readthedocs.io/en/stable/messaging.html, "The Wire Protocol").
-- @module perilune.jupyter.message
local zeromq = require "perilune.zeromq"
local json = require "perilune.io.json"

local M = {}

M.VERSION = "5.4" -- of the protocol
local DELIMITER = "<IDS|MSG>"
local REMEMBERED = 65536 -- signatures, so that no message is taken twice

-- ---- text -------------------------------------------------------------------------------------------------------

--- Bytes as UTF-8: what is none becomes U+FFFD.
function M.utf8(s)
  if utf8.len(s) then return s end
  local out, at = {}, 1
  while at <= #s do
    local _, bad = utf8.len(s, at)
    if not bad then
      out[#out + 1] = s:sub(at)
      break
    end
    out[#out + 1], out[#out + 2] = s:sub(at, bad - 1), "\u{FFFD}"
    at = bad + 1
  end
  return table.concat(out)
end

--- How many bytes at the end of s are the beginning of a character whose rest has not come yet: 0 to 3.
function M.unfinished(s)
  for n = 1, math.min(3, #s) do
    local byte = s:byte(-n)
    if byte >= 0xC0 then
      local wants = byte >= 0xF0 and 4 or byte >= 0xE0 and 3 or 2
      return n < wants and n or 0
    end
    if byte < 0x80 then return 0 end
  end
  return 0
end

--- A value as JSON without line breaks of its own, in UTF-8 whatever its strings are.
function M.json(v)
  return M.utf8((json.encode(v):gsub("\n *", "")))
end

local function uuid()
  local hex = zeromq.random(16)
  return ("%s-%s-4%s-%x%s-%s"):format(hex:sub(1, 8), hex:sub(9, 12), hex:sub(14, 16),
    8 + tonumber(hex:sub(17, 17), 16) % 4, hex:sub(18, 20), hex:sub(21, 32))
end
M.uuid = uuid

-- ---- a side of the conversation -----------------------------------------------------------------------------------

local Side = {}
Side.__index = Side

--- key: what messages are signed with, "" for none. session: the name of this side, made up if it is not given.
function M.side(key, session)
  return setmetatable({ key = key, session = session or uuid(), seen = {}, ring = {}, at = 0 }, Side)
end

function Side:_sign(parts)
  if self.key == "" then return "" end
  return zeromq.hmac(self.key, parts[1], parts[2], parts[3], parts[4])
end

function Side:header(kind)
  local seconds, micro = zeromq.time()
  return M.json { msg_id = uuid(), session = self.session, username = "perilune", msg_type = kind, version = M.VERSION,
    date = ("%s.%06dZ"):format(os.date("!%Y-%m-%dT%H:%M:%S", seconds), micro) }
end

--- The frames of a message. identities: a list, or the topic of a message that is published; parent, metadata, content:
-- tables, or JSON text.
function Side:encode(identities, kind, parent, content, metadata)
  local function text(v) return type(v) == "string" and v or M.json(v or {}) end
  local parts = { self:header(kind), text(parent), text(metadata), text(content) }
  local frames = table.move(identities, 1, #identities, 1, {})
  frames[#frames + 1], frames[#frames + 2] = DELIMITER, self:_sign(parts)
  return table.move(parts, 1, 4, #frames + 1, frames)
end

-- Was there a message with this signature already? Remembers it.
function Side:_repeated(signature)
  if self.seen[signature] then return true end
  self.at = self.at % REMEMBERED + 1
  if self.ring[self.at] then self.seen[self.ring[self.at]] = nil end
  self.ring[self.at], self.seen[signature] = signature, true
  return false
end

-- The object in a part; nil, what is wrong
local function object(text, name)
  local v, why = json.decode(text)
  if type(v) ~= "table" or v == json.null or json.is_array(v) then
    return nil, ("%s is no JSON object%s"):format(name, why and ": " .. why or "")
  end
  return v
end

--- A message from its frames: {identities=, kind=, header=, parent=, metadata=, content=, buffers=, raw = the four
-- parts}; nil and what is wrong with it. Nothing is read before the signature is known to be right.
function Side:decode(frames)
  local at
  for i, frame in ipairs(frames) do
    if frame == DELIMITER then at = i break end
  end
  if not at then return nil, "no delimiter" end
  if #frames < at + 5 then return nil, ("%d parts where five are wanted"):format(#frames - at) end
  local signature = frames[at + 1]
  local raw = table.move(frames, at + 2, at + 5, 1, {})
  if self.key ~= "" then
    if not zeromq.same(signature, self:_sign(raw)) then return nil, "the signature is wrong" end
    if self:_repeated(signature) then return nil, "a message that has come before" end
  end
  local m = { identities = table.move(frames, 1, at - 1, 1, {}), raw = raw,
    buffers = table.move(frames, at + 6, #frames, 1, {}) }
  local why
  for i, name in ipairs { "header", "parent", "metadata", "content" } do
    m[name], why = object(raw[i], name)
    if not m[name] then return nil, why end
  end
  m.kind = m.header.msg_type
  if type(m.kind) ~= "string" then return nil, "the header has no msg_type" end
  return m
end

return M
