-- SPDX-License-Identifier: MIT
-- Strangers' first inputs (spec/fixtures/strangers.lua), each answer judged: right ones show their value, wrong
-- ones say what to write, and no hint names what does not exist.

local term = require "spec.support.terminal"
local strangers = require "spec.fixtures.strangers"

-- What each input printed, at a prompt that reads a pipe.
local function answers(inputs)
  local path, lines = os.tmpname(), {}
  for i, input in ipairs(inputs) do
    lines[#lines + 1] = input[1]
    lines[#lines + 1] = ("print('@@%d')"):format(i)
  end
  term.write(path, table.concat(lines, "\n") .. "\n")
  local out = term.shell(("%s < %s"):format(term.quote(term.command), path))
  os.remove(path)
  local list, at = {}, 1
  for i = 1, #inputs do
    local from, to = out:find(("@@%d\n"):format(i), at, true)
    assert(from, out)
    list[i] = out:sub(at, from - 1):gsub("\n$", ""):gsub("^perilune: ", "")
    at = to + 1
  end
  return list
end

describe("a stranger at the prompt", function()
  if not term.there() then return it("is answered", function() pending(term.missing "perilune") end) end

  local count, wrong = 0, 0
  for _, inputs in ipairs(strangers) do
    for _, input in ipairs(inputs) do
      count, wrong = count + 1, wrong + (input.wrong and 1 or 0)
    end
    it("from " .. inputs.who .. " is answered", function()
      local list = answers(inputs)
      for i, input in ipairs(inputs) do
        local text = list[i]
        assert.equal(input.wrong or false, text:find("error: ", 1, true) ~= nil, input[1] .. ": " .. text)
        if type(input[2]) == "string" then assert.equal(input[2], text, input[1]) end
        for _, part in ipairs(type(input[2]) == "table" and input[2] or {}) do
          assert.truthy(text:find(part, 1, true), input[1] .. ": " .. text)
        end
      end
    end)
  end

  it("makes 60 inputs, a third of them wrong", function()
    assert.is_true(#strangers >= 10 and count >= 60 and wrong >= 20, count .. " inputs, " .. wrong .. " wrong")
  end)
end)
