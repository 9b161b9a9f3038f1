-- SPDX-License-Identifier: MIT
--- Text and tables as HTML, for notebooks.
-- @module perilune.tools.html
local M = {}

local escapes = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }

--- Text as it stands in HTML.
function M.escape(text) return (tostring(text):gsub('[&<>"]', escapes)) end

--- Rows of cells as a table. options: left = how many columns are words, which stand left (1), head = rows that name
-- the columns (1), foot = a line below.
function M.table(rows, options)
  local left, head, foot = options.left or 1, options.head or 1, options.foot
  local out = { "<table>" }
  for i, row in ipairs(rows) do
    local cells = {}
    for k, cell in ipairs(row) do
      local text = M.escape(cell):gsub("^ +", function(blanks) return ("&nbsp;"):rep(#blanks) end)
      local kind = i <= head and "h" or "d"
      cells[k] = ('<t%s style="text-align:%s">%s</t%s>'):format(kind, k <= left and "left" or "right", text, kind)
    end
    if i == 1 and head > 0 then out[#out + 1] = "<thead>" end
    if i == head + 1 then out[#out + 1] = "<tbody>" end
    out[#out + 1] = "<tr>" .. table.concat(cells) .. "</tr>"
    if i == head then out[#out + 1] = "</thead>" end
  end
  if #rows > head then out[#out + 1] = "</tbody>" end
  out[#out + 1] = "</table>"
  if foot then out[#out + 1] = "<p>" .. M.escape(foot) .. "</p>" end
  return table.concat(out, "\n")
end

return M
