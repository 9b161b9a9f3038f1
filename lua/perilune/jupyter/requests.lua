-- SPDX-License-Identifier: MIT
--- What front ends ask besides running cells: completion, inspection, whether an input is whole, history, comms.
-- Positions in the protocol count characters, here bytes.
-- @module perilune.jupyter.requests
local json = require "perilune.io.json"
local about = require "perilune.repl.about"
local input = require "perilune.repl.input"
local lex = require "perilune.repl.lex"
local Completer = require "perilune.repl.complete"

local M = {}

-- The byte behind which a cursor stands.
local function bytes_before(code, cursor)
  local n = math.tointeger(cursor) or utf8.len(code) or #code
  if n <= 0 then return 0 end
  local at = utf8.offset(code, n + 1)
  return at and math.min(at - 1, #code) or #code
end

local function code_of(content) return type(content.code) == "string" and content.code or "" end

function M.complete_request(cells, content)
  local code = code_of(content)
  local before = code:sub(1, bytes_before(code, content.cursor_pos))
  local partial, list = Completer.new(cells.session.env):at(before)
  local stop = utf8.len(before) or #before
  return { status = "ok", matches = json.array(list), metadata = {}, cursor_end = stop,
    cursor_start = stop - (utf8.len(partial) or #partial) }
end

function M.inspect_request(cells, content)
  local code = code_of(content)
  local name = Completer.new(cells.session.env):name_at(code, bytes_before(code, content.cursor_pos))
  local text, known
  if name then text, known = about.name(name, cells.session.env, cells.session.style.width) end
  local found = text ~= nil and known ~= false
  return { status = "ok", found = found, data = found and { ["text/plain"] = text } or {}, metadata = {} }
end

function M.is_complete_request(cells, content)
  local code = code_of(content)
  if not input.is_code(code) or not code:find "%S" then return { status = "complete" } end
  local f, _, more = cells.session:compile(code, "=input")
  if f then return { status = "complete" } end
  return more and { status = "incomplete", indent = (" "):rep(lex.indent(code)) } or { status = "invalid" }
end

-- ---- history ----------------------------------------------------------------------------------------------------

-- A pattern of the shell, * ? and [sets], as one of Lua's.
local function as_pattern(glob)
  local out = glob:gsub("[%^%$%(%)%%%.%+%-]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".")
  return "^" .. out .. "$"
end

local select = {}

function select.tail(all, content)
  local n = math.tointeger(content.n) or 0
  return table.move(all, math.max(1, #all - n + 1), #all, 1, {})
end

function select.range(all, content, session)
  local wanted = math.tointeger(content.session) or 0
  if wanted <= 0 then wanted = session + wanted end
  local out = {}
  for _, e in ipairs(all) do
    local from, stop = tonumber(content.start) or 0, tonumber(content.stop) or math.huge
    if e.session == wanted and e.line >= from and e.line < stop then out[#out + 1] = e end
  end
  return out
end

function select.search(all, content)
  local pattern = as_pattern(type(content.pattern) == "string" and content.pattern or "*")
  local out, seen = {}, {}
  for i = #all, 1, -1 do
    local e = all[i]
    local ok, hit = pcall(string.find, e.code, pattern)
    if ok and hit and not (content.unique == true and seen[e.code]) then
      seen[e.code] = true
      table.insert(out, 1, e)
      if #out == math.tointeger(content.n) then break end
    end
  end
  return out
end

function M.history_request(cells, content)
  local all = cells:remembered()
  local chosen = (select[content.hist_access_type] or select.tail)(all, content, cells.number)
  local out = json.array {}
  for i, e in ipairs(chosen) do
    out[i] = json.array { e.session, e.line,
      content.output == true and json.array { e.code, e.result or json.null } or e.code }
  end
  return { status = "ok", history = out }
end

-- ---- comms: there are none --------------------------------------------------------------------------------------

function M.comm_info_request() return { status = "ok", comms = {} } end

function M.comm_open(cells, content)
  if type(content.comm_id) == "string" then
    cells.send("comm_close", { comm_id = content.comm_id, data = {} })
  end
end

function M.comm_msg() end
function M.comm_close() end

return M
