-- SPDX-License-Identifier: MIT
-- Makes what is written from the symbol table and the command's pages: perilune run docs/make/run.lua [-- OPTION].
--   (nothing)     the files of docs/ that are kept in the repository
--   --check       writes nothing; status 1 if one of these is out of date
--   --into DIR    the reference as HTML and Markdown, and the definitions for editors, into DIR/html, DIR/reference and
--                 DIR/luals
local here = arg[0]:match "^(.*)docs/make/run%.lua$" or "./"

local FILES = {
  { "docs/man/perilune.1", "man" },
  { "docs/completion/perilune.bash", "complete", "bash" },
  { "docs/completion/_perilune", "complete", "zsh" },
  { "docs/completion/perilune.fish", "complete", "fish" },
}

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  assert(f:write(text))
  assert(f:close())
end

if arg[1] == "--into" then
  local dir = assert(arg[2], "--into wants a folder")
  local make_dirs = require("perilune.terminal").make_dirs
  local inventory = dofile(here .. "docs/make/inventory.lua")
  for _, name in ipairs { "html", "luals", "reference" } do assert(make_dirs(dir .. "/" .. name, 511)) end
  for name, text in pairs(dofile(here .. "docs/make/html.lua")(inventory)) do write(dir .. "/html/" .. name, text) end
  write(dir .. "/luals/perilune.lua", dofile(here .. "docs/make/meta.lua")(inventory))
  local reference = require "perilune.help.reference"
  local pages = reference.pages()
  for _, page in ipairs(pages) do write(("%s/reference/%s.md"):format(dir, page.file), reference.markdown(page)) end
  write(dir .. "/reference/README.md", reference.index(pages))
  return
end

local check, stale = arg[1] == "--check", 0
for _, entry in ipairs(FILES) do
  local path, text = here .. entry[1], dofile(here .. "docs/make/" .. entry[2] .. ".lua")(entry[3])
  local f = io.open(path, "rb")
  local old = f and f:read "a"
  if f then f:close() end
  if old ~= text and check then
    io.stderr:write(entry[1], " is out of date: run build/bin/perilune run docs/make/run.lua\n")
    stale = stale + 1
  elseif old ~= text then
    write(path, text)
    print("wrote " .. entry[1])
  end
end
if stale > 0 then os.exit(1) end
