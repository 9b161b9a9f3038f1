-- SPDX-License-Identifier: MIT
-- Writes the pages of this folder from the running module: perilune run docs/reference/make.lua [-- FOLDER]
local reference = require "perilune.help.reference"

local folder = arg[1] or arg[0]:match("^(.*)/[^/]*$") or "."
local function write(name, text)
  local f = assert(io.open(folder .. "/" .. name, "w"))
  f:write(text)
  f:close()
end

local pages, count = reference.pages(), 0
for _, page in ipairs(pages) do
  write(page.file .. ".md", reference.markdown(page))
  count = count + #page.entries
end
write("README.md", reference.index(pages))
print(("%d entries on %d pages"):format(count, #pages))
