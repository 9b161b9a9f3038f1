-- SPDX-License-Identifier: MIT
-- docs/man/perilune.1 from the pages of the command (lua/perilune/command/pages.lua).
local pages = require "perilune.command.pages"

local function escape(text)
  return (text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("'", "\\(aq"):gsub("%f[^\n\0]%.", "\\&."))
end

local function paragraph(out, text)
  if text ~= "" then out[#out + 1] = escape(text) end
end

-- "run FILE [--] ARGS..." with capitals in italics, the rest bold.
local function synopsis(text)
  local words = {}
  for word in text:gmatch "%S+" do
    words[#words + 1] = (word:find "%u%u" or word:find "^%u$") and "\\fI" .. escape(word) .. "\\fR"
      or "\\fB" .. escape(word) .. "\\fR"
  end
  return table.concat(words, " ")
end

return function()
  local T = require "perilune"
  local out = {
    '.\\" Made by docs/make/run.lua from lua/perilune/command/pages.lua; do not edit.',
    ('.TH PERILUNE 1 "" "perilune %s" "User Commands"'):format(T.version),
    ".SH NAME", "perilune \\- deep learning in Lua: interpreter, prompt and tools",
    ".SH SYNOPSIS", "\\fBperilune\\fR [\\fICOMMAND\\fR | \\fIFILE.lua\\fR \\fIARGS\\fR...]",
    ".SH DESCRIPTION",
    escape [[A Lua 5.4 interpreter that finds the perilune modules beside itself. Without a command it is a prompt;
with the name of a file it runs that script, with its arguments in arg[1]... and in `...`.]],
    ".SH COMMANDS",
  }
  for _, page in ipairs(pages) do
    out[#out + 1] = ".TP"
    out[#out + 1] = synopsis(page[2])
    paragraph(out, page[3]:sub(1, 1):upper() .. page[3]:sub(2) .. ".")
    paragraph(out, page[4])
  end
  local variables, names = {}, {}
  local known = require("perilune.environment").variables
  for name, row in pairs(known) do names[#names + 1] = row[2] and name end
  table.sort(names)
  for _, name in ipairs(names) do
    table.move({ ".TP", "\\fB" .. name .. "\\fR", escape(known[name][2]) }, 1, 3, #variables + 1, variables)
  end
  for _, more in ipairs {
    { ".TP", "\\fB\\-\\-help\\fR, \\fB\\-\\-version\\fR", "Tell the commands, or the version. "
      .. "\\fBperilune\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR tells about one command." },
    { ".SH EXIT STATUS", escape(require("perilune.command.pages").exits) },
    { ".SH ENVIRONMENT", ".TP", "\\fBNO_COLOR\\fR", "No colours at the prompt.",
      ".TP", "\\fBXDG_STATE_HOME\\fR", "Where the prompt's history lies, in perilune/history; default ~/.local/state.",
      ".TP", "\\fBVISUAL\\fR, \\fBEDITOR\\fR", "What :edit at the prompt starts.",
      ".TP", "\\fBOMP_NUM_THREADS\\fR", "How many threads the kernels use.",
      ".TP", "\\fBLUA_PATH\\fR, \\fBLUA_CPATH\\fR", "As in the standard interpreter." },
    { ".SH FILES", ".TP", "\\fI~/.local/state/perilune/history\\fR", "Inputs at the prompt, shared by all of them.",
      ".TP", "\\fI~/.editrc\\fR", "Keys of the line editor, see \\fBeditrc\\fR(5)." },
    { ".SH SEE ALSO", "\\fBlua5.4\\fR(1), \\fBeditrc\\fR(5)" },
  } do
    if more[1] == ".SH FILES" then table.move(variables, 1, #variables, #out + 1, out) end
    table.move(more, 1, #more, #out + 1, out)
  end
  return table.concat(out, "\n") .. "\n"
end
