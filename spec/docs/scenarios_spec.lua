-- SPDX-License-Identifier: MIT
-- The scenarios of docs/design/test-scenarios.md are tests: each name in its tables is one of the file above the table.

local root = os.getenv "PERILUNE_ROOT" or "."

local function names_of(path)
  local names = {}
  for line in io.lines(root .. "/" .. path) do
    local name = line:match '^%s*it%("(.-)", function'
    if name then names[name] = (names[name] or 0) + 1 end
  end
  return names
end

describe("docs/design/test-scenarios.md", function()
  it("names tests that there are", function()
    local file, names
    local n, faults = 0, {}
    for line in io.lines(root .. "/docs/design/test-scenarios.md") do
      local path = line:match "^`(spec/[%w_/]+_spec%.lua)`$"
      if path then file, names = path, names_of(path) end
      local name = line:match "^| (.-) | .* |$"
      if name and name ~= "What must hold" then
        n = n + 1
        if (names or {})[name] ~= 1 then faults[#faults + 1] = ("%s: %s"):format(file, name) end
      end
    end
    assert.equal("", table.concat(faults, "\n"))
    assert.is_true(n > 50, n .. " scenarios")
  end)
end)
