-- SPDX-License-Identifier: MIT
-- Jupyter's own tests of kernels, where a Python has them: python3, or what PERILUNE_JUPYTER_PYTHON names.
local kernels = require "spec.command.kernel_client"
local term = require "spec.support.terminal"

local root = os.getenv "PERILUNE_ROOT" or "."

describe("the Jupyter kernel", function()
  local lacking = kernels.missing()
  if lacking then return it("is built", function() pending(lacking) end) end

  it("passes Jupyter's tests of kernels", function()
    local python = os.getenv "PERILUNE_JUPYTER_PYTHON" or "python3"
    local dir, remove = term.folder()
    assert.equal(0, (select(2, term.shell(("%s kernel install --prefix %s"):format(term.quote(term.command), dir)))))
    local line = "env JUPYTER_PATH=%s/share/jupyter XDG_STATE_HOME=%s %s %s/spec/command/jupyter_kernel_test.py"
    local text, status = term.shell(line:format(dir, dir, term.quote(python), term.quote(root)))
    remove()
    if status == 77 or status == 127 then return pending(text:match "^[^\n]*") end
    assert.equal(0, status, text)
    assert.truthy(text:find "\nRan %d%d tests")
    assert.is_nil(text:find "skipped", text)
  end)
end)
