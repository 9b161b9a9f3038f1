-- SPDX-License-Identifier: MIT
-- The pages that docs/make/run.lua writes from the running module have every op and function, every entry has its
-- parts, and the examples of ops print what they say; those of other functions run in help_spec.lua.

local T = require "perilune"
local doctest = require "perilune.command.doctest"
local reference = require "perilune.help.reference"

describe("the reference", function()
  local pages = reference.pages()

  it("has every op once, and every entry has signature, text and example", function()
    local seen, count = {}, 0
    for _, page in ipairs(pages) do
      for _, e in ipairs(page.entries) do
        count = count + 1
        assert.is_nil(seen[e.name], e.name .. " is there twice")
        seen[e.name] = true
        for _, part in ipairs { "signature", "text", "example" } do
          assert(type(e[part]) == "string" and #e[part] > 3, e.name .. " has no " .. part)
        end
        if not e.same then assert(#e.text >= 4, e.name) end
      end
    end
    for _, op in ipairs(T.core.ops()) do
      if not op.flags.internal then assert(seen["T." .. op.name], op.name .. " is missing") end
    end
    assert.is_true(count > 900, count .. " entries")
  end)

  it("says what wrong calls say", function()
    local told = 0
    for _, page in ipairs(pages) do
      for _, e in ipairs(page.entries) do
        local call, message = reference.wrong(e)
        if call then
          told = told + 1
          local own = e.name:gsub("^T%.", "")
          assert(message:find((own:match("[%w_]+$")), 1, true), e.name .. call .. " says " .. message)
        end
      end
    end
    assert.is_true(told > 400, told .. " errors")
  end)

  for _, page in ipairs(pages) do
    for _, e in ipairs(page.entries) do
      if e.op then
        it("has an example of " .. e.name .. " that runs and prints what it says", function()
          assert(doctest.run(e.name, { code = e.example:gsub("^\n", ""), line = 1 }, T))
        end)
      end
    end
  end
end)
