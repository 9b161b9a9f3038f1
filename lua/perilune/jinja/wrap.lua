-- SPDX-License-Identifier: MIT
--- Lines of a width for the filter wordwrap, as Python's textwrap makes them: blanks are kept but where a line begins
-- or ends between two; words may be cut behind hyphens; what is longer than a line is cut anywhere.
-- @module perilune.jinja.wrap
local values = require "perilune.jinja.values"

local function is_blank(c) return c:find "^[\t\n\v\f\r ]$" ~= nil end
local function is_word(c) return c ~= nil and (#c > 1 or c:find "^[%w_]$" ~= nil) end
local function is_letter(c) return c ~= nil and (#c > 1 or c:find "^[%a_]$" ~= nil) end
local function is_inner(c) return is_word(c) or c ~= nil and c:find "^[!\"'&.,?]$" ~= nil end

-- May a word be cut behind the hyphen c[i]? Two letters, or letter-letter, before it and a letter behind, or "x-".
local function cut_behind(c, i, from)
  local before = i - 2 >= from and is_letter(c[i - 1])
    and (is_letter(c[i - 2]) or c[i - 2] == "-" and i - 3 >= from and is_letter(c[i - 3]))
  return before and is_letter(c[i + 1]) and (is_letter(c[i + 2]) or c[i + 2] == "-" and is_letter(c[i + 3]))
end

-- Does a dash of two hyphens or more, between a word and a word, begin at c[i]? Then where it ends.
local function dash(c, i)
  if c[i] ~= "-" or c[i + 1] ~= "-" or not is_inner(c[i - 1]) then return nil end
  local to = i + 1
  while c[to + 1] == "-" do to = to + 1 end
  return is_word(c[to + 1]) and to or nil
end

-- What is never cut: {from, to} of characters, blanks and words in turn.
local function chunks(c, n, hyphens)
  local list, at = {}, 1
  while at <= n do
    local to = at
    if is_blank(c[at]) then
      while to < n and is_blank(c[to + 1]) do to = to + 1 end
    elseif hyphens and dash(c, at) then
      to = dash(c, at)
    else
      while to < n and not is_blank(c[to + 1]) do
        if hyphens and (dash(c, to + 1) or c[to] == "-" and cut_behind(c, to, 1)) then break end
        to = to + 1
      end
    end
    list[#list + 1] = { at, to }
    at = to + 1
  end
  return list
end

-- Where a chunk that is too long is cut for `room` characters: behind its last hyphen there, if more is before that.
local function cut(c, from, to, room, hyphens)
  local stop = from + room - 1
  if hyphens and to > stop then
    for i = stop, from + 1, -1 do
      if c[i] == "-" then
        for k = from, i - 1 do if c[k] ~= "-" then return i end end
        break
      end
    end
  end
  return stop
end

return function(run, line, width, long, hyphens)
  local c, n = values.characters(line)
  local list, k, out = chunks(c, n, hyphens), 1, {}
  run.spend(n)
  local function text(chunk) return table.concat(c, "", chunk[1], chunk[2]) end
  local function size(chunk) return chunk[2] - chunk[1] + 1 end
  while list[k] do
    local parts, have = {}, 0
    if #out > 0 and is_blank(c[list[k][1]]) then k = k + 1 end
    while list[k] and have + size(list[k]) <= width do
      parts[#parts + 1], have, k = list[k], have + size(list[k]), k + 1
    end
    if list[k] and size(list[k]) > width then
      if long then -- in a line that is full nothing, which keeps the blanks before it
        local from, to = list[k][1], list[k][2]
        local stop = have < width and cut(c, from, to, width - have, hyphens) or from - 1
        parts[#parts + 1] = { from, stop }
        list[k] = { stop + 1, to }
      elseif #parts == 0 then
        parts[1], k = list[k], k + 1
      end
    end
    local last = parts[#parts]
    if last and (size(last) == 0 or is_blank(c[last[1]])) then parts[#parts] = nil end
    if parts[1] then
      for i, part in ipairs(parts) do parts[i] = text(part) end
      out[#out + 1] = table.concat(parts)
    end
  end
  return out
end
