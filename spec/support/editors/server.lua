-- SPDX-License-Identifier: MIT
-- Language servers, asked for their findings about files: one by the protocol's JSON over its standard streams, through
-- two named pipes, as a script has no pipe that goes both ways; the other by its command line.
local json = require "perilune.io.json"

local M = {}

local function send(self, message)
  message.jsonrpc = "2.0"
  local text = json.line(message):gsub("\n$", "")
  self.to:write(("Content-Length: %d\r\n\r\n%s"):format(#text, text))
  self.to:flush()
end

local function receive(self)
  local n
  while true do
    local line = self.from:read "L"
    if not line then error("the language server went away", 0) end
    line = line:gsub("[\r\n]+$", "")
    if line == "" then break end
    n = tonumber(line:match "^[Cc]ontent%-[Ll]ength: *(%d+)") or n
  end
  return assert(json.decode(self.from:read(n)))
end

--- A request; what the server asks meanwhile is answered with nothing. → its result
local function request(self, method, params)
  self.id = self.id + 1
  send(self, { id = self.id, method = method, params = params })
  while true do
    local m = receive(self)
    if m.method and m.id then
      local items, list = m.method == "workspace/configuration" and m.params.items or {}, {}
      for i = 1, #items do list[i] = {} end
      send(self, { id = m.id, result = list })
    elseif m.id == self.id then
      return m.result
    elseif m.method == "$/progress" and m.params.value and m.params.value.kind == "end" then
      self.loaded = true
    end
  end
end

--- Starts a server in a folder that holds the definitions.
function M.open(command, dir)
  local self = { id = 0, dir = dir }
  assert(os.execute(("mkfifo '%s/to' '%s/from'"):format(dir, dir)))
  assert(os.execute(("%s < '%s/to' > '%s/from' 2> /dev/null &"):format(command, dir, dir)))
  self.to = assert(io.open(dir .. "/to", "w"))
  self.from = assert(io.open(dir .. "/from", "r"))
  local uri = "file://" .. dir
  request(self, "initialize", { rootUri = uri, workspaceFolders = { { uri = uri, name = "w" } }, capabilities = {
    textDocument = { diagnostic = { dynamicRegistration = false } },
    workspace = { configuration = true, workspaceFolders = true }, window = { workDoneProgress = true } } })
  send(self, { method = "initialized", params = { dummy = 1 } })
  return self
end

--- Findings about a file of that folder: list of {line=, code=, message=}
function M.findings(self, name, text)
  local uri = ("file://%s/%s"):format(self.dir, name)
  send(self, { method = "textDocument/didOpen", params = { textDocument = { uri = uri, languageId = "lua", version = 1,
    text = text } } })
  local result = request(self, "textDocument/diagnostic", { textDocument = { uri = uri } })
  local list = {}
  for _, d in ipairs(type(result) == "table" and result.items or {}) do
    list[#list + 1] = { line = d.range.start.line + 1, column = d.range.start.character, code = tostring(d.code),
      message = d.message }
  end
  return list
end

function M.close(self)
  request(self, "shutdown", { dummy = 1 })
  send(self, { method = "exit", params = { dummy = 1 } })
  self.to:close()
  self.from:close()
end

--- Findings of lua-language-server, which checks a folder and writes them to a file → name of a file → list of {line=,
--- code=, message=}
function M.check(command, dir)
  local path = dir .. "/findings.json"
  os.execute(("%s --check '%s' --checklevel=Warning --check_format=json --check_out_path='%s' > /dev/null 2>&1")
    :format(command, dir, path))
  local f = io.open(path)
  local all = f and assert(json.decode(f:read "a")) or {}
  if f then f:close() end
  local out = {}
  for uri, list in pairs(all) do
    local found = {}
    for _, d in ipairs(list) do
      found[#found + 1] = { line = d.range.start.line + 1, code = tostring(d.code), message = d.message }
    end
    out[uri:match "[^/]+$"] = found
  end
  return out
end

return M
