-- SPDX-License-Identifier: MIT
-- Makes the files of docs/ that are generated: perilune run docs/make/run.lua [-- --check]. With --check, writes
-- nothing and ends with status 1 if a file is not what it would write.
local here = arg[0]:match "^(.*)docs/make/run%.lua$" or "./"

local FILES = {
  { "docs/man/perilune.1", "man" },
}

local check, stale = arg[1] == "--check", 0
for _, entry in ipairs(FILES) do
  local path, text = here .. entry[1], dofile(here .. "docs/make/" .. entry[2] .. ".lua")()
  local f = io.open(path, "rb")
  local old = f and f:read "a"
  if f then f:close() end
  if old ~= text and check then
    io.stderr:write(entry[1], " is out of date: run build/bin/perilune run docs/make/run.lua\n")
    stale = stale + 1
  elseif old ~= text then
    f = assert(io.open(path, "wb"))
    assert(f:write(text))
    assert(f:close())
    print("wrote " .. entry[1])
  end
end
if stale > 0 then os.exit(1) end
