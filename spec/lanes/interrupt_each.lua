-- SPDX-License-Identifier: MIT
-- Sends Ctrl-C behind instruction n of some of the library's code, for one n after the other. For the prompt, which
-- takes one Ctrl-C a line: what interrupt_trace.lua and interrupt_scopes.lua give it.
local pid = assert(tonumber(io.open("/proc/self/stat"):read "a":match "^%d+"))

-- every: instructions from one to the next; where: a part of the names of the files whose instructions count; build(),
-- if any, before each run(); look() → what is wrong afterwards, or nil. → try and finish: each try() runs up to one
-- interruption and prints what was wrong behind the last; finish() prints how many there were.
return function(every, where, build, run, look)
  local at, tried, finds, over, place = 1, 0, 0, false, "?"
  -- Is what the hook stopped among those? It is asked before each instruction, so each function's source is read once.
  local ours, getinfo = {}, debug.getinfo
  local function is_ours()
    local info = getinfo(3, "f")
    local f = info and info.func
    if f and ours[f] == nil then ours[f] = getinfo(f, "S").source:find(where, 1, true) ~= nil end
    return f and ours[f]
  end

  local function check()
    local ok, wrong = pcall(look)
    if not ok and tostring(wrong):find "interrupted!" or wrong == nil then return end -- it came late
    finds = finds + 1
    print(("instruction %d, %s: %s"):format(at, place, wrong))
  end

  local function try()
    if over then return end
    if tried > 0 then check() end
    at = tried * every + 1
    tried = tried + 1
    if build then build() end
    local n = 0
    debug.sethook(function()
      if not is_ours() then return end
      n = n + 1
      if n == at then
        local info = getinfo(2, "Sl")
        place = info.source:match "[^/]*$" .. ":" .. info.currentline
        io.popen(("kill -INT %d"):format(pid)):close()
      end
    end, "", 1)
    run()
    debug.sethook()
    over = true
  end

  local function finish()
    print(("%d interruptions, %d finds%s"):format(tried - 1, finds, over and "" or ", not over"))
  end
  return try, finish
end
