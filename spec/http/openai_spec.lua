-- SPDX-License-Identifier: MIT
-- perilune serve, the command, as OpenAI's client for Python sees it: python3, or what PERILUNE_JUPYTER_PYTHON names,
-- where it has the package openai.

local talker = require "spec.models.talker"
local term = require "spec.support.terminal"

local root = os.getenv "PERILUNE_ROOT" or "."
local q = term.quote

describe("OpenAI's client", function()
  it("talks to perilune serve", function()
    if not pcall(require, "perilune.httpd") then return pending "built without libmicrohttpd" end
    local missing = term.missing "perilune"
    if missing then return pending(missing) end
    local python = os.getenv "PERILUNE_JUPYTER_PYTHON" or "python3"
    local _, status = term.shell(("cd / && %s -c 'import openai'"):format(q(python)))
    if status ~= 0 then return pending(python .. " has no package openai") end
    local dir, remove = talker.make()
    local log = os.tmpname()
    local line = "%s serve --port 0 %s > %s 2>&1 & pid=$!; "
      .. "for i in $(seq 100); do grep -q http %s && break; sleep 0.1; done; cd / && timeout 300 %s %s "
      .. "$(grep -o 'http://[^ ]*/v1' %s); status=$?; kill -INT $pid; wait $pid; cat %s; exit $status"
    local here = root:sub(1, 1) == "/" and root or (os.getenv "PWD" .. "/" .. root)
    local text, code = term.shell(line:format(q(term.command), q(dir), q(log), q(log), q(python),
      q(here .. "/spec/http/openai_client.py"), q(log), q(log)))
    remove()
    os.remove(log)
    assert.truthy(text:find("all right", 1, true), text)
    assert.equal(0, code)
    assert.falsy(text:find("traceback", 1, true), text)
  end)
end)
