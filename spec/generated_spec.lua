-- SPDX-License-Identifier: MIT
-- The generated files of docs/ are what docs/make/run.lua would write now.
local term = require "spec.support.terminal"
local root = os.getenv "PERILUNE_ROOT" or "."

describe("generated files", function()
  it("are up to date", function()
    if not term.there() then return pending "no perilune command" end
    local text, status = term.shell(("%s run %s/docs/make/run.lua -- --check"):format(term.quote(term.command),
      term.quote(root)))
    assert.same({ "", 0 }, { text, status })
  end)

  it("are read by man without a complaint", function()
    local text, status = term.shell "command -v groff"
    if status ~= 0 then return pending("no groff" .. text) end
    text, status = term.shell(("groff -man -ww -Tutf8 %s/docs/man/perilune.1 >/dev/null"):format(term.quote(root)))
    assert.same({ "", 0 }, { text, status })
  end)
end)
