-- SPDX-License-Identifier: MIT
-- Ctrl-C at random instants of a training (spec/lanes/interrupt_training.lua): no optimizer has half of a step
-- behind it, in its weights or in its counts, and the training goes on with the same bits. PERILUNE_LANES=long: 200 of
-- each. And behind every instruction of what makes a trace (interrupt_trace.lua): none stays open.

local term = require "spec.support.terminal"
local root = os.getenv "PERILUNE_ROOT" or "."
local long = os.getenv "PERILUNE_LANES" == "long"

local missing = not term.there() and term.missing "perilune" or not io.open "/proc/self/stat" and "no /proc here"

-- What the prompt prints of `count` lines of try() and one of finish(), which `file` makes of these arguments.
local function prompt(file, arguments, count)
  local lines = { ("try, finish = dofile '%s/spec/lanes/%s' (%s)"):format(root, file, arguments) }
  for _ = 1, count do lines[#lines + 1] = "try()" end
  lines[#lines + 1] = "finish()\n"
  local script = os.tmpname()
  local f = assert(io.open(script, "w"))
  f:write(table.concat(lines, "\n"))
  f:close()
  -- a process group of its own: the shell makes what runs in the background deaf to SIGINT
  local pipe = assert(io.popen(("bash -mc \"'%s' < '%s' & wait\" 2>&1"):format(term.command, script)))
  local text = pipe:read "a"
  pipe:close()
  os.remove(script)
  return text
end

describe("Ctrl-C at any instant of a training leaves whole steps:", function()
  for k, name in ipairs { "SGD", "Adam", "jit-Adam", "RMSprop", "Adagrad", "jit-SGD" } do
    if long or k <= 3 then
      it(name, function()
        if missing then return pending(missing) end
        local count = long and 200 or 12
        local text = prompt("interrupt_training.lua", ("'%s', 60, %d"):format(name, k), count)
        local n, through, finds = text:match "(%d+) interruptions, (%d+) of them with a step done, (%d+) finds"
        assert.truthy(n, text:sub(-2000))
        io.stderr:write(("%s: %s interruptions, %s of them with a step done, %s finds\n"):format(name, n, through,
          finds))
        assert.equal("0", finds, text)
        assert.equal(count, tonumber(n))
      end)
    end
  end
end)

describe("Ctrl-C behind any instruction of what makes a trace", function()
  it("leaves none open, and the numbers of a training that was not interrupted", function()
    if missing then return pending(missing) end
    local text = prompt("interrupt_trace.lua", "1", 600)
    local n, finds = text:match "(%d+) interruptions, (%d+) finds\n"
    assert.truthy(n, text:sub(-2000))
    io.stderr:write(("traces: %s interruptions, %s finds\n"):format(n, finds))
    assert.equal("0", finds, text)
    assert.is_true(tonumber(n) > 100)
  end)
end)

describe("Ctrl-C behind any instruction of what opens a scope or closes one", function()
  it("leaves recording, mixed precision, batches, keys and parameters as they were", function()
    if missing then return pending(missing) end
    local text = prompt("interrupt_scopes.lua", long and "3" or "41", long and 4000 or 300)
    local n, finds = text:match "(%d+) interruptions, (%d+) finds"
    assert.truthy(n, text:sub(-2000))
    io.stderr:write(("scopes: %s interruptions, %s finds\n"):format(n, finds))
    assert.equal("0", finds, text)
    assert.is_true(tonumber(n) > 100)
  end)
end)
