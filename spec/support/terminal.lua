-- SPDX-License-Identifier: MIT
-- Plays keys to the perilune command on a terminal of its own (spec/support/programs/pty.c).
local M = {}

local root = os.getenv "PERILUNE_ROOT" or "."
local build = os.getenv "PERILUNE_BUILD" or root .. "/build"
M.command = build .. "/bin/perilune"
local pty = build .. "/spec/pty"

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end
function M.there() return exists(M.command) end

-- What is wanted and not here, in words, or nil: names of programs, "perilune" (the command of this build), "plain" (a
-- build that lua5.4 can load: a sanitizer's runtime must come first in the process, and lua5.4 is not linked with it).
function M.missing(...)
  for _, what in ipairs { ... } do
    if what == "perilune" then
      if not M.there() then return M.command .. " is not built" end
    elseif what == "plain" then
      if (os.getenv "PERILUNE_SANITIZE" or "") ~= "" then return "a build with sanitizers" end
    elseif not os.execute("command -v " .. what .. " >/dev/null 2>&1") then
      return what .. " is not installed"
    end
  end
end

function M.quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

function M.read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end

function M.write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

-- A new folder, and a function that removes it.
function M.folder()
  local path = os.tmpname()
  os.remove(path)
  assert(os.execute("mkdir -m 700 " .. M.quote(path)))
  return path, function() os.execute("rm -rf " .. M.quote(path)) end
end

-- Runs a shell command; its output (both streams), and its status.
function M.shell(command)
  local out = os.tmpname()
  local _, how, code = os.execute(("{ %s\n} > %s 2>&1 < /dev/null"):format(command, M.quote(out)))
  local text = M.read(out)
  os.remove(out)
  return text, how == "signal" and 128 + code or code
end

-- Runs a shell command and, when its output has `pattern` (of grep), sends it SIGINT: no machine is too busy for that.
-- Its output, and its status; 124 where it did not end within five minutes.
function M.interrupted(command, pattern)
  local out = os.tmpname()
  -- a process group of its own: the shell makes what runs in the background deaf to SIGINT
  local script = ([[
    (exec %s) > %s 2>&1 < /dev/null & p=$!; n=0
    while kill -0 $p 2> /dev/null && ! grep -q %s %s; do sleep 0.05; done
    kill -INT $p 2> /dev/null
    while kill -0 $p 2> /dev/null && [ $n -lt 3000 ]; do sleep 0.1; n=$((n+1)); done
    if kill -0 $p 2> /dev/null; then kill -9 $p; exit 124; fi
    wait $p]]):format(command, M.quote(out), M.quote(pattern), M.quote(out))
  local _, how, code = os.execute(("bash -mc %s 2> /dev/null"):format(M.quote(script)))
  local text = M.read(out)
  os.remove(out)
  return text, how == "signal" and 128 + code or code
end

-- A step's text with the escapes of pty.c.
local ESCAPES = { ["\\"] = "\\\\", ["\n"] = "\\n", ["\t"] = "\\t", ["\27"] = "\\e" }
function M.escape(text) return (text:gsub("[\\\n\t\27]", ESCAPES)) end

-- Plays steps ({"send", text}, {"expect", text}, {"running"}, {"pause", ms}, {"size", columns}). env: settings before
-- the command. cooked: it reads lines, so that no line editor is waited for.
-- → {screen= what was printed, without colours, raw=, status=, times= of the expects in ms, missing= text or nil}
function M.play(steps, env, command, cooked)
  assert(exists(pty), pty .. " is missing: cmake --build with --target tests")
  local lines = {}
  for i, step in ipairs(steps) do
    -- keys that come between the prompt and the terminal's raw mode would be treated by the kernel
    local before = steps[i - 1] or {}
    if step[1] == "send" then
      lines[#lines + 1] = not cooked and before[1] == "expect" and before[2]:find "> ?$" and "ready" or "pause 15"
    end
    lines[#lines + 1] = step[1] .. " " .. (type(step[2]) == "string" and M.escape(step[2]) or tostring(step[2] or ""))
  end
  local path, times_path, out_path = os.tmpname(), os.tmpname(), os.tmpname()
  M.write(path, table.concat(lines, "\n") .. "\n")
  os.execute(("env TERM=xterm %s %s %s %s > %s 2> %s"):format(env or "", M.quote(pty), M.quote(path),
    command or M.quote(M.command), M.quote(out_path), M.quote(times_path)))
  local raw, times = M.read(out_path), {}
  for ms in M.read(times_path):gmatch "== %d+ ([%d.]+)\n" do times[#times + 1] = tonumber(ms) end
  for _, name in ipairs { path, times_path, out_path } do os.remove(name) end
  local status = tonumber(raw:match "\n== status (%d+)\n$")
  local missing = raw:match "\n== missing ([^\n]*)\n"
  local screen = raw:gsub("\n\n== .*$", ""):gsub("\27%[[%d;?]*%a", ""):gsub("\r", "")
  return { screen = screen, raw = raw, status = status, times = times, missing = missing }
end

return M
