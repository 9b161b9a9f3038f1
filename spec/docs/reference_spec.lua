-- SPDX-License-Identifier: MIT
-- The pages of docs/reference are what docs/reference/make.lua writes from the running module, and every entry has
-- its parts. The examples run as blocks of those pages (spec/docs/markdown_spec.lua).

local T = require "perilune"
local reference = require "perilune.help.reference"

local folder = (os.getenv("PERILUNE_ROOT") or ".") .. "/docs/reference/"

local function read(name)
  local f = io.open(folder .. name)
  if not f then return nil end
  local text = f:read("a")
  f:close()
  return text
end

-- The first line in which two texts differ, for the message.
local function difference(a, b)
  local x, y = a:gmatch("[^\n]*"), b:gmatch("[^\n]*")
  for line in x do
    local other = y()
    if line ~= other then return ("'%s' here, '%s' made"):format(line, tostring(other)) end
  end
  return "one is longer"
end

describe("docs/reference", function()
  local pages = reference.pages()
  local advice = "; run: perilune run docs/reference/make.lua"

  for _, page in ipairs(pages) do
    it(page.file .. ".md is what make.lua writes", function()
      local have, want = read(page.file .. ".md"), reference.markdown(page)
      assert(have, "missing" .. advice)
      assert(have == want, have ~= want and difference(have, want) .. advice)
    end)
  end

  it("has a list of its pages, and no others", function()
    assert(read("README.md") == reference.index(pages), "README.md is old" .. advice)
    local known, strays = { ["README.md"] = true, ["make.lua"] = true }, {}
    for _, page in ipairs(pages) do known[page.file .. ".md"] = true end
    local pipe = assert(io.popen("ls '" .. folder .. "'"))
    for name in pipe:lines() do if not known[name] then strays[#strays + 1] = name end end
    pipe:close()
    assert.same({}, strays)
  end)

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
    for name in pairs(require "perilune.help.examples") do
      assert(seen["T." .. name], "an example of no op: " .. name)
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
end)
