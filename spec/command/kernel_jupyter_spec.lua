-- SPDX-License-Identifier: MIT
-- Jupyter's own tests of kernels, where a Python has them: python3, or what PERILUNE_JUPYTER_PYTHON names.
local kernels = require "spec.command.kernel_client"
local term = require "spec.support.terminal"

local root = os.getenv "PERILUNE_ROOT" or "."

describe("the Jupyter kernel", function()
  local lacking = kernels.missing()
  if lacking then return it("is built", function() pending(lacking) end) end

  -- A script of Python beside an installed kernel: its text, or nothing where a part is missing.
  local function play(script)
    local python = os.getenv "PERILUNE_JUPYTER_PYTHON" or "python3"
    local dir, remove = term.folder()
    assert.equal(0, (select(2, term.shell(("%s kernel install --prefix %s"):format(term.quote(term.command), dir)))))
    local line = "env JUPYTER_PATH=%s/share/jupyter XDG_STATE_HOME=%s %s %s/spec/command/" .. script
    local text, status = term.shell(line:format(dir, dir, term.quote(python), term.quote(root)))
    remove()
    if status == 77 or status == 127 then return nil, pending(text:match "^[^\n]*") end
    assert.equal(0, status, text)
    return text
  end

  it("passes Jupyter's tests of kernels", function()
    local text = play "jupyter_kernel_test.py"
    if not text then return end
    assert.truthy(text:find "\nRan %d%d tests")
    assert.is_nil(text:find "skipped", text)
  end)

  it("is used by hand in a browser", function()
    local text = play "jupyter_browser_test.py"
    if text then assert.truthy(text:find "\n1%d checks\n$", text) end
  end)
end)
