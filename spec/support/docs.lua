-- SPDX-License-Identifier: MIT
-- Reads the code blocks of a Markdown file. An HTML comment on the line above a block is its mark.

local M = {}

-- List of {lang=, code=, line=, mark=}: line is that of the first code line, mark the comment's text or nil.
function M.blocks(path)
  local list, open, mark = {}, nil, nil
  local number = 0
  for line in io.lines(path) do
    number = number + 1
    local fence = line:match("^```(%w*)")
    if open and fence then
      open.code = table.concat(open, "\n") .. "\n"
      list[#list + 1] = open
      open, mark = nil, nil
    elseif open then
      open[#open + 1] = line
    elseif fence then
      open = { lang = fence, line = number + 1, mark = mark }
    elseif line:match("%S") then
      mark = line:match("^<!%-%- (.-) %-%->$")
    end
  end
  assert(not open, path .. ": a code block is not closed")
  return list
end

-- What a block says it prints: the text behind each `-->`, a line each.
function M.expected(code)
  local out = {}
  for line in code:gmatch("[^\n]*") do
    local text = line:match("%-%->%s?(.*)$")
    if text then out[#out + 1] = text:match("^(.-)%s*$") end
  end
  return out
end

return M
