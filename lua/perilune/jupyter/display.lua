-- SPDX-License-Identifier: MIT
--- What front ends can show of a value: by media type, text always. A metatable's __mime(value) → contents by media
-- type, and what is to be known of them, says it for values of any kind; bytes of pictures are given as they are.
-- @module perilune.jupyter.display
local T = require "perilune"
local classes = require "perilune.classes"
local zeromq = require "perilune.zeromq"
local message = require "perilune.jupyter.message"
local show = require "perilune.repl.show"
local html = require "perilune.tools.html"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local M = {}

M.WIDTH = 100 -- columns of text
local PLAIN = { colour = false, width = M.WIDTH }
local LEAST, MOST = 8, 4096 -- pixels of a side of what is taken for a picture
local KEPT = 20 -- notes

-- ---- notes: HTML for texts --------------------------------------------------------------------------------------

local notes, order = {}, {}

--- A text that will be shown as text has this HTML, too: net:summary() is a string.
function M.note(text, as)
  if notes[text] == nil then
    order[#order + 1] = text
    if #order > KEPT then notes[table.remove(order, 1)] = nil end
  end
  notes[text] = as
end

-- ---- what a value says of itself --------------------------------------------------------------------------------

local function mime_of(v)
  local meta = debug.getmetatable(v)
  if type(meta) ~= "table" then return nil end
  local f = rawget(meta, "__mime")
  local class = f == nil and rawget(meta, "__index")
  return f or (type(class) == "table" and class ~= meta and rawget(class, "__mime")) or nil
end

-- u8[H,W,3], u8[3,H,W] and the like are pictures; numbers of other types, and matrices, are numbers.
local function picture(v)
  if not show.is_tensor(v) or v:is_freed() or v:dtype() ~= "u8" or v:dim() ~= 3 then return nil end
  local s = v:shape()
  local function channels(n) return n == 1 or n == 3 or n == 4 end
  local function side(n) return n >= LEAST and n <= MOST end
  local last, first = channels(s[3]) and side(s[1]) and side(s[2]), channels(s[1]) and side(s[2]) and side(s[3])
  if not last and not first then return nil end
  return T.plot.image(v):png() -- small ones larger
end

local function is_bytes(kind) return kind:find "^image/" and not kind:find "svg" or kind:find "^application/pdf" end

-- A kind of content and the content, as they are sent.
local function checked(kind, content)
  if type(kind) ~= "string" or not kind:find "^[%w.+-]+/[%w.+-]+$" then
    fail("__mime: a media type such as text/html is wanted, got %s", describe(kind))
  end
  if kind:find "json$" then return content end
  if type(content) ~= "string" then fail("__mime: %s is a string, got %s", kind, describe(content)) end
  return is_bytes(kind) and zeromq.base64(content) or message.utf8(content)
end

--- A value → contents by media type, what is to be known of them
function M.bundle(v)
  local data, metadata = { ["text/plain"] = show.value(v, PLAIN) }, {}
  local f = mime_of(v)
  if f then
    if type(f) ~= "function" then fail("__mime must be a function, got %s", describe(f)) end
    local own, about = f(v)
    if own ~= nil and type(own) ~= "table" then
      fail("__mime must return contents by media type, got %s", describe(own))
    end
    for kind, content in pairs(own or {}) do data[kind] = checked(kind, content) end
    if type(about) == "table" then metadata = about end
  elseif type(v) == "string" then
    data["text/html"] = notes[v]
  else
    local png = picture(v)
    data["image/png"] = png and zeromq.base64(png)
  end
  return data, metadata
end

-- One of several values as HTML.
local function as_html(data)
  if data["text/html"] then return data["text/html"] end
  if data["image/png"] then return ('<img src="data:image/png;base64,%s">'):format(data["image/png"]) end
  return ("<pre>%s</pre>"):format(html.escape(data["text/plain"]))
end

--- Several values: one as it is; more as text, and one below the other where one is more than that.
function M.bundle_of(values)
  if values.n == 1 then return M.bundle(values[1]) end
  local parts, rich = {}, false
  for i = 1, values.n do
    local data = M.bundle(values[i])
    parts[i] = as_html(data)
    rich = rich or data["text/html"] or data["image/png"]
  end
  return { ["text/plain"] = show.values(values, values.n, PLAIN),
    ["text/html"] = rich and table.concat(parts, "\n") or nil }, {}
end

-- ---- showing things while a cell runs ---------------------------------------------------------------------------

local Handle = classes.new("display", "handle")

--- Shows another value in the place of what the handle shows; it may be contents by media type.
function Handle:update(v)
  local data, metadata = M.bundle(v)
  zeromq.flush()
  self.send("update_display_data", { data = data, metadata = metadata, transient = { display_id = self.id } })
  return self
end

function Handle:__tostring() return "display " .. self.id end

function M.is_handle(v) return debug.getmetatable(v) == Handle end

--- Shows values now. → a handle for the first: handle:update(other)
function M.shower(send)
  return function(...)
    local first
    zeromq.flush()
    for i = 1, select("#", ...) do
      local data, metadata = M.bundle((select(i, ...)))
      local handle = setmetatable({ id = message.uuid(), send = send }, Handle)
      send("display_data", { data = data, metadata = metadata, transient = { display_id = handle.id } })
      first = first or handle
    end
    return first
  end
end

return M
