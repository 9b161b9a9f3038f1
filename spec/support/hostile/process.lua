-- SPDX-License-Identifier: MIT
-- run(what, first, count, variables or nil): spec/support/hostile/run.lua in a process of its own and an empty folder →
-- its closing line or nil, and all that it said last, behind the call that it was at.
return function(what, first, count, variables)
  local root, build = os.getenv "PERILUNE_ROOT" or ".", os.getenv "PERILUNE_BUILD" or "build"
  local dir = os.tmpname()
  os.remove(dir)
  assert(os.execute(("mkdir '%s'"):format(dir)))
  local tell = dir .. ".call"
  local command = "cd '%s' && env %s PERILUNE_HOSTILE_TELL='%s' '%s/bin/perilune' run '%s/spec/support/hostile/run.lua'"
    .. " -- %s %d %d 2>&1 >/dev/null </dev/null | tail -n 60"
  local p = assert(io.popen(command:format(dir, variables or "", tell, build, root, what, first, count)))
  local said = p:read("a")
  p:close()
  local f = io.open(tell)
  local last = f and f:read("l") or "nothing"
  if f then f:close() end
  os.execute(("rm -rf '%s' '%s'"):format(dir, tell))
  local closing = said:match("(hostile: [^\n]*)\n*$")
  return closing, "after " .. last .. "\n" .. said
end
