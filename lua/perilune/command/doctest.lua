-- SPDX-License-Identifier: MIT
-- Runs the Lua blocks of Markdown files and compares what they print with what stands behind `-->`. An HTML comment on
-- the line above a block is its mark:
--   raises          each piece of the block up to a line of `-->` raises that error
--   not run: WHY    skipped
-- Other marks are the caller's. A block that does not load perilune itself gets T, nn and optim.
local M = {}

-- List of {lang=, code=, line=, mark=}: line is that of the first code line; or nil, message.
function M.blocks(path)
  local f, message = io.open(path)
  if not f then return nil, message end
  local list, open, mark, number = {}, nil, nil, 0
  for line in function() return f:read "l" end do
    number = number + 1
    local fence = line:match "^```(%w*)"
    if open and fence then
      open.code = table.concat(open, "\n") .. "\n"
      list[#list + 1] = open
      open, mark = nil, nil
    elseif open then
      open[#open + 1] = line
    elseif fence then
      open = { lang = fence, line = number + 1, mark = mark }
    elseif line:match "%S" then
      mark = line:match "^<!%-%- (.-) %-%->$"
    end
  end
  f:close()
  if open then return nil, ("%s:%d: a code block is not closed"):format(path, open.line - 1) end
  return list
end

-- What a block says it prints: the text behind each `-->`, a line each.
function M.expected(code)
  local out = {}
  for line in code:gmatch "[^\n]*" do
    local text = line:match "%-%->%s?(.*)$"
    if text then out[#out + 1] = text:match "^(.-)%s*$" end
  end
  return out
end

-- Compiles code as part of a file, from a line of it on, with globals of its own. lib: what require "perilune" gives.
local function load_block(file, line, code, lib)
  local env = setmetatable({
    require = function(name) return name == "perilune" and lib or require(name) end,
  }, { __index = _G })
  if not code:find('require "perilune"', 1, true) then env.T, env.nn, env.optim = lib, lib.nn, lib.optim end
  return load(("\n"):rep(line - 1) .. code, "@" .. file, "t", env), env
end

-- Calls f with print going into a list, wherever it is called. → ok, message, text
local function printed_by(f)
  local out, old = {}, print
  rawset(_G, "print", function(...)
    local words = table.pack(...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    out[#out + 1] = table.concat(words, "\t")
  end)
  local ok, message = xpcall(f, debug.traceback)
  rawset(_G, "print", old)
  return ok, message, (table.concat(out, "\n"):gsub("\n+$", ""))
end

-- The first line in which two texts differ, for the message.
local function difference(expected, got)
  local want, have = {}, {}
  for line in (expected .. "\n"):gmatch "([^\n]*)\n" do want[#want + 1] = line end
  for line in (got .. "\n"):gmatch "([^\n]*)\n" do have[#have + 1] = line end
  for i = 1, math.max(#want, #have) do
    if want[i] ~= have[i] then
      return ("line %d of the output\n  expected: %s\n  printed:  %s"):format(i, want[i] or "(nothing more)",
        have[i] or "(nothing more)")
    end
  end
end

-- → true; or nil, message
function M.run(file, block, lib)
  local f = load_block(file, block.line, block.code, lib)
  local message = not f and select(2, load(("\n"):rep(block.line - 1) .. block.code, "@" .. file))
  if not f then return nil, message end
  local ok, fault, out = printed_by(f)
  if not ok then return nil, fault end
  local expected = M.expected(block.code)
  local wanted = table.concat(expected, "\n"):gsub("\n+$", "")
  local clean = out:gsub("[ \t]+\n", "\n"):gsub("[ \t]+$", "")
  if #expected == 0 or clean == wanted then return true end
  return nil, ("%s:%d: %s"):format(file, block.line, difference(wanted, clean))
end

-- Statements up to a line of `-->` are one piece; it raises that text at the line above. → true; or nil, message
function M.run_raising(file, block, lib)
  local piece, from, line, count = {}, block.line, block.line, 0
  for text in block.code:gmatch "([^\n]*)\n" do
    local wanted = text:match "^%-%->%s(.*)$"
    if wanted then
      local f = load_block(file, from, table.concat(piece, "\n"), lib)
      if not f then return nil, ("%s:%d: does not compile"):format(file, from) end
      local ok, err = pcall(f)
      if ok then return nil, ("%s:%d raises nothing"):format(file, line - 1) end
      local whole = ("%s:%d: %s"):format(file, line - 1, wanted)
      if err ~= whole then
        return nil, ("%s:%d: the error differs\n  expected: %s\n  raised:   %s"):format(file, line, whole,
        tostring(err))
      end
      piece, from, count = {}, line + 1, count + 1
    else
      piece[#piece + 1] = text
    end
    line = line + 1
  end
  if count == 0 or #piece > 0 then
    return nil, ("%s:%d: a block marked raises ends with the text of its error"):format(file, block.line)
  end
  return true
end

-- perilune doctest FILE...: → exit status
function M.main(paths, verbose)
  local T = require "perilune"
  local run, failed, skipped, files = 0, 0, 0, 0
  for _, path in ipairs(paths) do
    local blocks, message = M.blocks(path)
    if not blocks then
      io.stderr:write("perilune doctest: ", message, "\n")
      return 2
    end
    files = files + 1
    for _, block in ipairs(blocks) do
      local mark = block.mark or ""
      if block.lang == "lua" and mark:find "^not run: " then
        skipped = skipped + 1
        if verbose then print(("%s:%d: %s"):format(path, block.line, mark)) end
      elseif block.lang == "lua" then
        run = run + 1
        local ok, fault = (mark == "raises" and M.run_raising or M.run)(path, block, T)
        if not ok then
          failed = failed + 1
          io.stderr:write(fault, "\n")
        elseif verbose then
          print(("%s:%d: ok"):format(path, block.line))
        end
      end
    end
  end
  print(("%d block%s of %d file%s run, %d failed%s"):format(run, run == 1 and "" or "s", files,
    files == 1 and "" or "s", failed, skipped > 0 and (", %d skipped"):format(skipped) or ""))
  return failed > 0 and 1 or 0
end

return M
