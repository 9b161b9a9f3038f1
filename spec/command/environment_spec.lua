-- SPDX-License-Identifier: MIT
-- What a script cannot help: full disks, pipes whose other end is closed, no terminal, names that are no UTF-8, workers
-- that end the process. A clear message or nil, message, code; nothing that was there is lost, nothing hangs.

local term = require "spec.support.terminal"
local q = term.quote

local dir, remove
local function at(name) return dir .. "/" .. name end

-- Runs Lua code in the command, in the folder of the test; `around`: shell text with %s for the command. → text, status
local function run(code, around)
  term.write(at "script.lua", 'local T = require "perilune"\nlocal nn, optim, data = T.nn, T.optim, T.data\n' .. code)
  local command = term.command:find "^/" and term.command or "$OLDPWD/" .. term.command
  return term.shell(("cd %s && %s"):format(q(dir), (around or "%s"):format(command .. " run script.lua")))
end

describe("where the environment fails,", function()
  if not term.there() then return it("nothing", function() pending(term.missing "perilune") end) end
  before_each(function() dir, remove = term.folder() end)
  after_each(function() remove() end)

  -- every file that perilune writes, with a value that needs more than 8 KiB
  local writers = {
    ["T.save"] = "return T.save('f', { x = T.rand(100, 100) })",
    ["T.save_npy"] = "return T.save_npy('f', T.rand(100, 100))",
    ["T.save_image, PNG"] = "return T.save_image('f.png', T.randint(0, 255, { 3, 99, 99 }, { dtype = 'u8' }))",
    ["T.save_image, JPEG"] = "return T.save_image('f.jpg', T.randint(0, 255, { 3, 200, 200 }, { dtype = 'u8' }))",
    ["a figure as SVG"] = "return T.plot(T.rand(3000)):svg('f.svg')",
    ["a figure as PNG"] = "return T.rand(200, 200):imshow():png('f.png')",
    ["T.log.csv"] = [[
      local log = assert(T.log.csv 'f')
      for i = 1, 9999 do
        local r = table.pack(log:write { i = i, text = ("x"):rep(100) })
        if not r[1] then return table.unpack(r, 1, r.n) end
      end]],
    ["T.log.jsonl"] = [[
      local log = assert(T.log.jsonl 'f')
      for i = 1, 9999 do
        local r = table.pack(log:write { i = i, text = ("x"):rep(100) })
        if not r[1] then return table.unpack(r, 1, r.n) end
      end]],
    ["T.log.tensorboard"] = [[
      local log = assert(T.log.tensorboard 'f')
      for i = 1, 9999 do
        local r = table.pack(log:scalar("tag", i, i))
        if r[1] == nil and r[2] then return table.unpack(r, 1, r.n) end
      end
      return log:close()]],
    ["a profile's trace"] = "return T.profile(function() for _ = 1, 300 do T.ones(2) end end, 'f')",
    ["a tokenizer"] = [[
      local words = {}
      for i = 1, 4000 do words[i] = ("%x "):format(i * 7919 % 65521):rep(2) end
      return assert(data.train_bpe { 700, text = table.concat(words) }):save "f"]],
    ["a graph"] = [[
      local g = T.graph()
      g:outputs { g:input("x", { 2, 100 }):matmul(T.rand(100, 100)) }
      return T.save_graph("f", g)]],
  }
  for name, code in pairs(writers) do
    it(name .. " says that the disk is full", function()
      local text, status = run(("local r = table.pack((function() %s end)())\nprint(r[1], r[3], r[2])"):format(code),
        "ulimit -f 8; %s")
      if text:find("no PCRE2", 1, true) or text:find("no Jansson", 1, true) then return pending(text) end
      assert.equal(0, status, text)
      assert.truthy(text:find "^nil\tio\t[^\n]*File too large", text)
    end)
  end

  it("a file that cannot be replaced stays as it was", function()
    local code = [[
      local n = tonumber(os.getenv "N")
      print(T.save("a.safetensors", { x = T.ones(n) }))
      print(T.save_npy("a.npy", T.ones(n)))
      print(T.save_image("a.png", T.randint(0, 255, { 1, n // 9, 9 }, { dtype = "u8" })))
      print(T.plot(T.rand(n)):svg "a.svg")
      print(T.rand(n // 9, 9):imshow { scale = 8 }:png "b.png")
      print((T.profile(function() for _ = 1, n // 9 do T.ones(2) end end, "trace")) and true)]]
    local text = run(code, "N=18 %s")
    assert.equal(("true\n"):rep(6), text)
    local files = { "a.safetensors", "a.npy", "a.png", "a.svg", "b.png", "trace" }
    local before = {}
    for i, name in ipairs(files) do before[i] = term.read(at(name)) end
    text = run(code, "ulimit -f 4; N=9000 %s")
    assert.equal(6, select(2, text:gsub("\n?nil", "")), text)
    for i, name in ipairs(files) do assert.equal(before[i], term.read(at(name)), name) end
    local left = term.shell(("ls -A %s | wc -l"):format(q(dir)))
    assert.equal(#files + 1, tonumber(left)) -- nothing half written
  end)

  it("a checkpoint that cannot be written does not end the training", function()
    local text, status = run([[
      local net = nn.Linear(100, 100)
      local batch = { T.rand(2, 100), T.rand(2, 100) }
      local history = T.fit(net, { train = { batch }, loss = nn.F.mse_loss, optimizer = optim.Adam(net:parameters()),
        checkpoint = "c.safetensors", quiet = true, epochs = 3 })
      print(#history)]], "ulimit -f 8; %s")
    assert.equal(0, status, text)
    assert.truthy(text:find("no checkpoint could be written, training goes on: c.safetensors", 1, true), text)
    assert.truthy(text:find "3\n$", text)
  end)

  it("output that nobody takes ends a command", function()
    local command = term.command:find "^/" and term.command or "$PWD/" .. term.command
    for _, args in ipairs { "info", "help relu", "--help", "help", "peek spec/fixtures/arrays.npz",
      "diff spec/fixtures/modules.safetensors spec/fixtures/functions.safetensors", "-e 'print(1)'" } do
      local root = os.getenv "PERILUNE_ROOT" or "."
      local text, status = term.shell(("cd %s && %s %s > /dev/full"):format(q(root), command, args))
      assert.equal(1, status, args)
      assert.equal("perilune: cannot write standard output: No space left on device\n", text, args)
      text = term.shell(("cd %s && { timeout 20 %s %s; echo $? >&2; } | true"):format(q(root), command, args))
      assert.is_nil(text:find("traceback", 1, true), text)
      assert.is_nil(text:find("124\n", 1, true), args)
    end
  end)

  it("no terminal, no standard streams: scripts and the prompt end in order", function()
    local bar = "for _ in T.bar(data.DataLoader({ 1, 2, 3 })) do end print 'done'"
    for _, around in ipairs { "%s 2>&-", "%s <&-", "setsid %s", "env -u TERM %s", "TERM=dumb %s", "TERM=no-such %s" } do
      local text, status = run(bar, around)
      assert.equal(0, status, around .. ": " .. text)
      assert.truthy(text:find("done\n", 1, true), around .. ": " .. text)
    end
    for _, settings in ipairs { "TERM=dumb", "TERM=no-such", "-u TERM" } do
      local got = term.play({ { "expect", "[1]> " }, { "send", "1 + 1\n" }, { "expect", "2" }, { "expect", "[2]> " },
        { "send", "\4" } }, ("XDG_STATE_HOME=%s NO_COLOR=1"):format(q(dir)), ("env %s %s"):format(settings,
        q(term.command)), true)
      assert.is_nil(got.missing, settings .. ": " .. got.screen)
      assert.equal(0, got.status, settings)
    end
  end)

  it("names that are no UTF-8 are names", function()
    local text, status = run([[
      local name = "x\xff\xfe \n"
      assert(T.save(name .. ".safetensors", { x = T.ones(2) }))
      assert(T.load(name .. ".safetensors").x:equal(T.ones(2)))
      assert(T.save_npy(name, T.ones(3)) and T.load_npy(name):numel() == 3)
      assert(os.execute "mkdir -p \"$(printf 'p/c\\377')\"")
      if T.save_image("p/c\xff/\xfe.png", T.zeros(1, 2, 2):byte()) then
        local set = assert(data.image_folder "p")
        assert(#set == 1 and set.classes[1] == "c\xff")
        for x, y in data.DataLoader(set, { workers = 1 }) do assert(x:numel() == 12 and y:item() == 1) end
      end
      local log = assert(T.log.csv(name .. ".csv"))
      assert(log:write { a = 1 } and log:close())
      assert(assert(data.csv(name .. ".csv")).rows == 1)
      print(select("#", T.load "\xffnot there"), (select(3, T.load "\xffnot there")))]])
    assert.equal(0, status, text)
    assert.equal("4\tio\n", text)
  end)

  it("a worker that would end the process ends the loop over its loader, at once and with its name", function()
    local text, status = run([[
      local set = data.Dataset { len = 8, get = function(_, i) if i == 3 then os.exit(7) end return i end }
      for _ in data.DataLoader(set, { batch_size = 2, workers = 2 }) do end]], "timeout 30 %s")
    assert.equal(1, status, text)
    assert.truthy(text:find "in a worker: sample 3: script.lua:%d+: os.exit in a worker", text)
  end)

  it("a worker that is killed from outside takes no orphans along", function()
    local text = run([[
      local set = data.Dataset { len = 1e6, get = function() return T.rand(9, 9):matmul(T.rand(9, 9)) end }
      for _ in data.DataLoader(set, { batch_size = 99, workers = 2 }) do print "going" io.stdout:flush() end]],
      "{ %s & } | { read first; kill -9 $!; sleep 0.2; echo $first; }")
    assert.truthy(text:find "going" or text == "\n", text)
    local left = term.shell(("ps -eo args | grep -F %s | grep -v grep | wc -l"):format(q(dir .. "/script.lua")))
    assert.equal(0, tonumber(left))
  end)
end)

-- One script with a part of everything that asks the system for something, in one broken environment after the other.
-- Each part gives what it gives in a whole one, or, where the row says so, an error that names the cause; nothing
-- crashes or hangs, and a file has what was written to it alone.
local PARTS = [[
local out = assert(io.open(os.getenv "RESULT", "w"))
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data
local function part(name, f)
  local r = table.pack(pcall(f))
  for i = 1, r.n do r[i] = tostring(r[i]) end
  out:write(name, " ", (table.concat(r, " "):gsub("\n", " ")), "\n")
end
part("ops", function() return T.ones(300, 300):matmul(T.ones(300, 300)):sum():item() end)
part("threads", function() return T.get_num_threads() > 0 and T.core.isa() end)
part("memory", function() return next(T.memory()) ~= nil end)
part("jit", function() return T.jit(function(x) return (x * 2):exp() end)(T.zeros(3)):sum():item() end)
part("load", function()
  local sum = 0
  for x in data.DataLoader(T.arange(0, 8), { batch_size = 2, workers = 2 }) do sum = sum + x:sum():item() end
  return sum
end)
part("save", function()
  local ok, message = T.save("x.safetensors", { x = T.ones(3) })
  if not ok then error(message, 0) end
  return assert(T.load "x.safetensors").x:sum():item()
end)
part("log", function()
  local log = assert(T.log.csv "log.csv")
  assert(log:write { a = 1 })
  print "printed"
  io.stdout:flush()
  io.stderr:write "told\n"
  assert(log:write { a = 2 })
  assert(log:close())
  local f = assert(io.open "log.csv")
  local text = f:read "a"
  f:close()
  return (text:gsub("\n", ";"))
end)
part("disk", function()
  local x = T.ones(300, 300):requires_grad_()
  local _ <close> = T.saved_tensors { offload = "disk" }
  local y = (x:exp() * x:sin()):sum()
  y:backward()
  return x.grad:isfinite():all():item()
end)
part("bar", function() for _ in T.bar(data.DataLoader({ 1, 2, 3 })) do end end)
]]

-- { how the command %s is run, part → what its error may say, its exit status where that is not 0 }
local memory = "memory"
local BROKEN = {
  ["no HOME"] = { "env -u HOME -u XDG_STATE_HOME %s" },
  ["HOME is nowhere"] = { "HOME=/nowhere XDG_STATE_HOME=/nowhere %s" },
  ["TMPDIR is nowhere"] = { "TMPDIR=/nowhere %s", { disk = "/nowhere: cannot create a file" } },
  ["no variables at all"] = { "env -i RESULT=$RESULT %s" },
  ["a locale that nobody has"] = { "LC_ALL=xx_YY.KOI8-R LANG=xx %s" },
  ["a Turkish locale"] = { "LC_ALL=tr_TR.UTF-8 %s" },
  ["no standard input"] = { "%s <&-" },
  ["no standard output"] = { "%s >&-", {}, 1 },
  ["no standard error"] = { "%s 2>&-" },
  ["no standard streams"] = { "%s <&- >&- 2>&-", {}, 1 },
  ["a full disk behind the output"] = { "%s > /dev/full", {}, 1 },
  ["a full disk behind the errors"] = { "%s 2> /dev/full" },
  ["eight open files"] = { "ulimit -n 8; %s" },
  ["little memory"] = { "ulimit -v 150000; %s", { load = "memory|worker", disk = memory, ops = memory, jit = memory } },
  ["files that nobody may read"] = { "umask 0777; %s",
    { save = "Permission denied", log = "Permission denied" } },
  ["a folder that is gone"] = { "mkdir gone && cd gone && rmdir ../gone && %s",
    { save = "No such file or directory", log = "No such file or directory" } },
  ["no /proc"] = { "unshare -rm sh -c 'mount -t tmpfs none /proc && exec \"$@\"' - %s" },
  ["no /dev"] = { "unshare -rm sh -c 'mount -t tmpfs none /dev && exec \"$@\" <&- >&- 2>&-' - %s", {}, 1 },
}

describe("in a broken environment", function()
  if not term.there() then return it("nothing", function() pending(term.missing "perilune") end) end
  local command = term.command:find "^/" and term.command or "$OLDPWD/" .. term.command
  local whole
  -- → the parts' outcomes by name, text, status
  local function parts(around)
    term.write(at "script.lua", PARTS)
    term.write(at "result", "")
    local text, status = term.shell(("cd %s && export RESULT=$PWD/result; %s"):format(q(dir),
      (around:gsub("%%s", function() return ("timeout 60 %s run %s/script.lua"):format(command, q(dir)) end))))
    local outcomes = {}
    local f = io.open(at "result")
    for name, outcome in (f and f:read "a" or ""):gmatch "(%w+) ([^\n]*)\n" do outcomes[name] = outcome end
    if f then f:close() end
    return outcomes, text, status
  end
  setup(function()
    dir, remove = term.folder()
    whole = parts "%s"
    remove()
  end)
  before_each(function() dir, remove = term.folder() end)
  after_each(function() remove() end)

  for name, row in pairs(BROKEN) do
    it(name .. ": all parts give the same, or say why not", function()
      if row[1]:find "unshare" and not os.execute "unshare -rm true 2>/dev/null" then return pending "no namespaces" end
      for part, outcome in pairs(whole) do assert.truthy(outcome:find "^true", part .. " " .. outcome) end
      local got, text, status = parts(row[1])
      assert.equal(row[3] or 0, status, text)
      assert.is_nil(text:find("traceback", 1, true), text)
      for part, outcome in pairs(whole) do
        local may, said = row[2] and row[2][part], false
        for word in (may or ""):gmatch "[^|]+" do
          said = said or (got[part] or ""):find "^false " ~= nil and got[part]:find(word) ~= nil
        end
        if not said then assert.equal(outcome, got[part], part) end
      end
    end)
  end

  it("without /proc the command finds its modules by any of its names", function()
    if not os.execute "unshare -rm true 2>/dev/null" then return pending "no namespaces" end
    term.write(at "names.sh", [[
      mount -t tmpfs none /proc
      printf '#!%s\nprint(require("perilune").ones(1):item())\n' "$1" > s.lua && chmod +x s.lua && ./s.lua
      for p in "$1" ./link link "../..$1" perilune; do "$p" -e 'print(require("perilune").ones(1):item())'; done]])
    local text = term.shell(("cd %s && p=$(realpath %s) && ln -s $p link && PATH=.:$(dirname $p):$PATH "
      .. "unshare -rm sh names.sh $p"):format(q(dir), command))
    assert.equal(("1.0\n"):rep(6), text)
  end)

  it("what needs a folder for a while says that there is none, and takes TMPDIR's", function()
    term.write(at "model.graph", "")
    for _, line in ipairs { "echo :edit | EDITOR=true %s", "%s build model.graph -o out" } do
      local text = term.shell(("cd %s && export TMPDIR=/nowhere && %s"):format(q(dir), line:format(command)))
      assert.truthy(text:find("/nowhere: no folder can be made there; TMPDIR may name another place", 1, true), text)
      assert.is_nil(text:find("traceback", 1, true), text)
    end
  end)
end)
