-- SPDX-License-Identifier: MIT
-- The subcommands of perilune: what they print, their exit status, and what they say of files that are wrong.

local T = require "perilune"
local term = require "spec.support.terminal"

local q = term.quote
local dir, remove_dir

-- Output and status of `perilune ARGS`, in the folder of the test.
local function perilune(args)
  local command = term.command:find "^/" and term.command or "$OLDPWD/" .. term.command
  return term.shell(("cd %s && %s %s"):format(q(dir), command, args))
end

local function at(name) return dir .. "/" .. name end

describe("perilune", function()
  if not term.there() then return it("is built", function() pending(term.missing "perilune") end) end
  before_each(function() dir, remove_dir = term.folder() end)
  after_each(function() remove_dir() end)

  it("tells what it can, and refuses wrong usage with status 2", function()
    local text, status = perilune "--help"
    assert.equal(0, status)
    for _, word in ipairs { "repl", "run", "bench", "info", "peek", "help", "doctest", "new", "diff", "convert",
      "build",
      "generate", "chat", "serve", "watch", "launch", "kernel" } do
      assert.truthy(text:find("perilune [^\n]*" .. word), word)
      local page, code = perilune(word .. " --help")
      assert.equal(0, code, word)
      assert.truthy(page:find("usage: perilune [^\n]*" .. word), page)
    end
    for _, wrong in ipairs { "--nope", "run", "-e", "repl x", "info x", "peek", "peek --nope f", "diff a", "diff a b c",
      "diff --atol x a b", "diff --atol -1 a b", "new", "new a b", "doctest", "launch", "bench --nope", "watch",
      "kernel",
      "generate", "generate m", "generate m p q", "generate --top-p 2 m p", "generate --seed x m p", "chat", "chat a b",
      "generate --dtype f8 m p", "generate --max-new-tokens 0 m p", "chat --top-k 1.5 m", "serve",
      "serve --port 70000 m", "serve --max-queue 0 m",
      "nosuchcommand" } do
      text, status = perilune(wrong)
      assert.equal(2, status, wrong .. ": " .. text)
      assert.truthy(#text > 10, wrong)
    end
    for typed, meant in pairs { hepl = "help", bech = "bench", docktest = "doctest", lauch = "launch",
      kernl = "kernel" } do
      text = perilune(typed)
      local said = ("no command and no file %s, did you mean perilune %s?"):format(typed, meant)
      assert.truthy(text:find(said, 1, true), text)
    end
    assert.truthy(perilune("nosuchcommand"):find("no command and no file nosuchcommand; see", 1, true))
    assert.truthy(perilune("help"):find("\n  losses +%d+  Losses"))
    assert.truthy(perilune("help optim"):find("optim\n.*\n  optim.Adam +Adam %(Kingma"))
    assert.truthy(perilune("help kernel"):find("usage: perilune kernel install", 1, true))
    assert.truthy(perilune("help diff"):find("Differences of neighbours", 1, true)) -- an op comes before a command
    assert.truthy(perilune("help --names"):find("\nnn.Linear\n", 1, true))
    text, status = perilune "nowhere.lua"
    assert.equal(1, status)
    assert.truthy(text:find("nowhere.lua", 1, true))
    assert.truthy(perilune("--version"):find(T.version, 1, true))
    assert.truthy(perilune("info"):find("kernels: ", 1, true))
  end)

  it("run begins an error's traceback at the script's line", function()
    term.write(at "wrong.lua", "local T = require 'perilune'\nlocal function load(ds)\n"
      .. "  local _ = T.data.DataLoader(ds)\nend\nload(nil)\n")
    local text, status = perilune "wrong.lua"
    assert.equal(1, status)
    assert.truthy(text:find("perilune: wrong.lua:3: data.DataLoader: a dataset is wanted", 1, true), text)
    assert.truthy(text:find("stack traceback:\n\twrong.lua:3: in", 1, true), text)
    assert.truthy(text:find("wrong.lua:5: in main chunk", 1, true), text)
    term.write(at "wrong.lua", "local function f() error 'mine' end\nrequire 'perilune'.no_grad(f)\n")
    text = perilune "wrong.lua"
    assert.truthy(text:find("perilune: wrong.lua:1: mine", 1, true), text)
    assert.truthy(text:find("wrong.lua:2: in main chunk", 1, true), text)
  end)

  it("help shows pages, and status 1 for a name that there is not", function()
    local text, status = perilune "help T.softmax jvp nn.Linear"
    assert.equal(0, status, text)
    assert.truthy(text:find("T.softmax(x, dim=-1", 1, true) and text:find("T.jvp(f, x, v)", 1, true))
    text, status = perilune "help sotfmax"
    assert.equal(1, status)
    assert.truthy(text:find("did you mean softmax?", 1, true), text)
  end)

  it("peek shows what is in files of every kind", function()
    assert(T.save(at "a.safetensors", { w = T.ones(2, 3), ["na\27me"] = T.zeros(0) }, { metadata = { by = "me" } }))
    assert(T.save_npy(at "a.npy", T.arange(4)))
    assert(T.save_image(at "a.png", T.zeros({ 3, 4, 5 }, { dtype = "u8" })))
    term.write(at "a.idx", "\0\0\8\1\0\0\0\3\1\2\3")
    local log = assert(T.log.tensorboard(at "runs"))
    for i = 1, 4 do log:scalar("loss", 1 / i, i) end
    log:close()
    local text, status = perilune "peek a.safetensors a.npy a.png a.idx runs/*"
    assert.equal(0, status, text)
    for _, part in ipairs { "safetensors, 2 tensors, 6 elements, 24 B",
      "w         f32[2,3] x∈[1,1] μ=1 σ=0 NaN:0",
      "na\\x1bme  f32[0] empty", "metadata by: me", "array  i64[4] x∈[1,4]", "pixels  u8[3,4,5]",
      "array  u8[3] x∈[1,3]",
      "loss: scalar, 4 values, steps 1 to 4, 0.25 … 1, last 0.25" } do
      assert.truthy(text:find(part, 1, true), part .. " is not in " .. text)
    end
    assert(T.onnx.save(at "a.onnx", T.nn.Linear(2, 3), T.ones(4, 2), { dynamic = { x = { "n" } } }))
    text, status = perilune "peek --header a.onnx"
    assert.equal(0, status, text)
    for _, part in ipairs { "ONNX, 2 tensors, 9 elements, 36 B", "weight  f32[3,2]", "bias    f32[3]",
      "metadata input x: f32[", ",2]" } do
      assert.truthy(text:find(part, 1, true), part .. " is not in " .. text)
    end
    local none, message, code = T.load(at "a.onnx")
    assert.is_nil(none)
    assert.equal("unsupported", code)
    assert.truthy(message:find("T.onnx.load reads it", 1, true), message)
    none, message = T.open(at "a.onnx")
    assert.is_nil(none)
    assert.truthy(message:find("T.onnx.load reads the whole", 1, true), message)
    none, message = T.models.load(at "a.onnx")
    assert.is_nil(none)
    assert.truthy(message:find("T.onnx.load reads this file", 1, true), message)
    text = perilune "help load"
    assert.truthy(text:find("^T%.load%(path"), text)
    text = perilune "peek --header a.safetensors"
    assert.truthy(text:find("w         f32[2,3]\n", 1, true), text)
  end)

  it("peek says what is wrong with broken files, and never crashes on their pieces", function()
    assert(T.save(at "whole.safetensors", { w = T.ones(20) }))
    assert(T.save_npy(at "whole.npy", T.ones(20)))
    local log = assert(T.log.tensorboard(at "runs"))
    for i = 1, 4 do log:scalar("loss", 1 / i, i) end
    log:close()
    os.execute(("cp %s/runs/* %s"):format(q(dir), q(at "whole.tfevents")))
    for _, kind in ipairs { "safetensors", "npy", "tfevents" } do
      local whole = term.read(at("whole." .. kind))
      local names = {}
      for i = 0, 15 do
        names[#names + 1] = ("cut%d.%s"):format(i, kind)
        term.write(at(names[#names]), whole:sub(1, i * (#whole - 1) // 16))
        names[#names + 1] = ("flip%d.%s"):format(i, kind)
        local k = 1 + i * (#whole - 1) // 16
        term.write(at(names[#names]), whole:sub(1, k - 1) .. string.char(whole:byte(k) ~ 0x55) .. whole:sub(k + 1))
      end
      local text, status = perilune("peek " .. table.concat(names, " "))
      assert.equal(1, status, text)
      assert.is_nil(text:find("stack traceback", 1, true), text)
    end
    local text, status = perilune "peek . nowhere $(printf 'a\\377b')"
    assert.equal(1, status)
    assert.truthy(text:find("nowhere: No such file or directory", 1, true), text)
    assert.truthy(text:find("a\\xffb: No such file", 1, true), text)
    term.write(at "text", "hello, this is no tensor")
    text, status = perilune "peek text"
    assert.equal(1, status)
    assert.truthy(text:find("unknown format", 1, true), text)
  end)

  it("convert writes safetensors, GGUF and npz", function()
    local x = T.arange(0, 127):view(2, 64):to("f32")
    assert(T.save(at "a.safetensors", { x = x, b = T.ones(3), i = T.arange(2), s = T.tensor(2.5) },
      { metadata = { by = "me" } }))
    local text, status = perilune "convert a.safetensors b.gguf --type Q8_0"
    assert.same({ "b.gguf: GGUF, 4 tensors\n", 0 }, { text, status })
    text = perilune "peek --header b.gguf"
    for _, part in ipairs { "Q8_0[2,64]", "f32[3]", "i64[2]", "f32[1]", "metadata by: me" } do
      assert.truthy(text:find(part, 1, true), part .. " is not in " .. text)
    end
    assert.equal(0, select(2, perilune "convert b.gguf c.gguf")) -- keeps the blocks
    assert.equal(term.read(at "b.gguf"), term.read(at "c.gguf"))
    assert.equal(0, select(2, perilune "convert b.gguf --dtype f16 d.safetensors"))
    local t, meta = T.load(at "d.safetensors")
    assert.same({ "f16", "me" }, { t.x:dtype(), meta.by })
    assert.is_true(t.x:equal(assert(T.load(at "b.gguf")).x:to("f16")))
    assert.equal(0, select(2, perilune "convert b.gguf --type F16 e.gguf"))
    assert.equal("F16", select(2, assert(T.open(at "e.gguf")):dtype "x"))
    assert.equal(0, select(2, perilune "convert a.safetensors f.npz"))
    assert.equal(0, select(2, perilune "convert f.npz g.safetensors"))
    text, status = perilune "diff a.safetensors g.safetensors"
    assert.equal(1, status) -- npz has no metadata
    assert.truthy(text:find("only in the first\n0 of 4 tensors differ", 1, true), text)
    assert(T.save(at "n.safetensors", { net = { w = x }, epoch = 3 })) -- nested values stay nested
    assert.equal(0, select(2, perilune "convert n.safetensors m.safetensors --dtype bf16"))
    t = assert(T.load(at "m.safetensors"))
    assert.same({ 3, "bf16" }, { t.epoch, t.net.w:dtype() })
    assert(T.save(at "far.safetensors", { deep = { w = T.tensor { { 1, -65520, 1 / 0 } } }, n = 3 }))
    assert(T.save(at "flat.safetensors", { w = T.tensor { 1, 65519, 1 / 0, 0 / 0 } }))
    assert.equal(0, select(2, perilune "convert far.safetensors far16.safetensors --dtype bf16"))
    assert.equal(0, select(2, perilune "convert flat.safetensors flat16.safetensors --dtype f16"))
    for _, row in ipairs {
      { "convert far.safetensors x.safetensors --dtype f16", 1, "'deep.w' has numbers up to 6.552e+04" },
      { "convert far.safetensors x.npz --dtype f16", 1, "which f16 does not hold; bf16 has their range" },
      { "convert far.safetensors x.gguf --type F16", 1, "numbers that are too large for its type" },
      { "convert a.safetensors x.txt", 2, "must end in" }, { "convert a b c", 2, "two files" },
      { "convert --type Q9 a.safetensors x.gguf", 2, "unknown type Q9" }, { "convert --type", 2, "needs a value" },
      { "convert --type F16 a.safetensors x.npz", 2, "--type is for .gguf" },
      { "convert --dtype i8 a.safetensors x.npz", 2, "--dtype is" }, { "convert none x.npz", 1, "No such file" },
      { "convert m.safetensors x.npz", 1, "no dtype bf16" } } do
      text, status = perilune(row[1])
      assert.equal(row[2], status, row[1] .. text)
      assert.truthy(text:find(row[3], 1, true), row[3] .. " is not in " .. text)
      assert.is_nil(io.open(at "x.npz"))
    end
  end)

  it("no tensor is lost or taken for another without a word", function()
    local files = (os.getenv "PERILUNE_ROOT" or "$OLDPWD") .. "/spec/fixtures/pt/"
    for _, to in ipairs { "x.npz", "x.gguf", "x.safetensors" } do -- a path that two tensors have; keys 1 and "1"
      local text, status = perilune(("convert %spaths.pt %s"):format(files, to))
      assert.same({ 0, true }, { status, text:find("4 tensors", 1, true) ~= nil }, text)
      text = perilune("peek --header " .. to)
      local sizes = {}
      for n in text:gmatch "f32%[(%d)%]" do sizes[#sizes + 1] = n end
      table.sort(sizes)
      assert.equal("2345", table.concat(sizes), text)
      text, status = perilune(("convert %swide.pt %s"):format(files, to)) -- complex, sparse
      assert.same({ 1, true }, { status, text:find("complex", 1, true) ~= nil }, text)
    end
    local text, status = perilune(("diff %swide.pt %swide.pt"):format(files, files))
    assert.same({ 2, true }, { status, text:find("'sparse' is sparse", 1, true) ~= nil }, text)
    assert.truthy(perilune(("peek %swide.pt"):format(files)):find("not read: 'complex'", 1, true))
  end)

  it("convert keeps the kinds of a GGUF file's metadata whatever becomes of its tensors", function()
    local meta = { ["general.architecture"] = "x", ["general.file_type"] = 0, ["x.block_count"] = 2, ["x.eps"] = 0.1,
      ["x.long"] = 1 << 40, ["x.flag"] = true, ["x.tokens"] = { "a", "b" }, ["x.types"] = { 1, 2 } }
    assert(T.save_gguf(at "a.gguf", { w = T.ones(2, 32) }, { metadata = meta, kinds = { ["x.eps"] = "f64" } }))
    for _, how in ipairs { "", "--type Q8_0", "--dtype f16", "--dtype f16 --type Q8_0" } do
      assert.equal(0, select(2, perilune(("convert %s a.gguf b.gguf"):format(how))))
      local _, got, kinds = assert(T.load_gguf(at "b.gguf"))
      local _, _, was = assert(T.load_gguf(at "a.gguf"))
      meta["general.file_type"] = how:find "Q8" and 7 or how:find "f16" and 1 or 0
      assert.same(meta, got, how)
      assert.same(was, kinds, how)
    end
  end)

  it("diff compares: 0 equal, 1 different, 2 unreadable", function()
    assert(T.save(at "a", { w = T.tensor { 1, 2, 0 / 0 }, only = T.ones(1), s = T.ones(2), d = T.ones(2) }))
    assert(T.save(at "b", { w = T.tensor { 1, 2.5, 0 / 0 }, s = T.ones(3), d = T.ones(2):double() }))
    local text, status = perilune "diff a a"
    assert.same({ "equal: 4 tensors\n", 0 }, { text, status })
    text, status = perilune "diff a b"
    assert.equal(1, status)
    for _, part in ipairs { "w: f32[3], 1 of 3 elements differ, at most by 0.5 (relative 0.2)", "only: only in a",
      "s: f32[2] and f32[3]", "d: f32[2] and f64[2], equal values", "4 of 4 tensors differ" } do
      assert.truthy(text:find(part, 1, true), part .. " is not in " .. text)
    end
    assert(T.save(at "c", { w = T.tensor { 1, 2 } }))
    assert(T.save(at "d", { w = T.tensor { 1, 2.5 }:double() }))
    assert.equal(1, select(2, perilune "diff --atol 0.6 c d"))
    assert.equal(0, select(2, perilune "diff --atol=0.6 --any-dtype c d"))
    assert.equal(0, select(2, perilune "diff --rtol 0.25 --any-dtype c d"))
    assert.equal(1, select(2, perilune "diff --rtol 0.1 --any-dtype c d"))
    assert.equal(2, select(2, perilune "diff c nowhere"))
  end)

  it("diff tells neighbours apart in every dtype, and infinity from all else", function()
    local one, other, n = {}, {}, 0
    for dtype, bits in pairs { i8 = 7, i16 = 15, i32 = 31, i64 = 63, u8 = 8, bool = 1 } do
      for k = 0, bits - 1 do
        local name = dtype .. k
        one[name] = T.tensor({ dtype == "bool" and 0 or (1 << k) - 1, 1 }, { dtype = dtype })
        other[name] = T.tensor({ 1 << k, 1 }, { dtype = dtype })
        n = n + 1
      end
    end
    for dtype, step in pairs { f64 = 2.0 ^ -52, f32 = 2.0 ^ -23, f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 } do
      one[dtype], other[dtype] = T.tensor({ 1, 1 }, { dtype = dtype }), T.tensor({ 1 + step, 1 }, { dtype = dtype })
      n = n + 1
    end
    assert(T.save(at "one", one))
    assert(T.save(at "other", other))
    local text, status = perilune "diff one other"
    assert.equal(1, status)
    assert.truthy(text:find(("%d of %d tensors differ"):format(n, n), 1, true), text)
    assert.equal(0, select(2, perilune "diff one one"))
    assert.equal(0, select(2, perilune "diff --atol 1 one other"))
    local far = { 1, 1 / 0, -1 / 0, 0 / 0 }
    one, other = {}, {}
    for i, v in ipairs(far) do
      for j, w in ipairs(far) do one[i .. j], other[i .. j] = T.tensor { v }, T.tensor { w } end
    end
    assert(T.save(at "one", one))
    assert(T.save(at "other", other))
    text = perilune "diff --rtol 2 --atol 1 one other"
    for i = 1, #far do assert.is_nil(text:find(("  %d%d: "):format(i, i), 1, true), text) end
    assert.truthy(text:find("12 of 16 tensors differ", 1, true), text)
  end)

  it("new makes a project that trains and passes its own check", function()
    local text, status = perilune "new my-net"
    assert.equal(0, status, text)
    local command = term.command:find "^/" and term.command or "$OLDPWD/" .. term.command
    text, status = term.shell(([[R=$PWD; cd %s/my-net && OLDPWD=$R && %s train.lua --epochs 20 &&
      %s check.lua && %s peek my-net.safetensors]]):format(q(dir), command, command, command))
    assert.equal(0, status, text)
    assert.is_true(tonumber(text:match "test accuracy ([%d.]+)") > 90, text)
    assert.truthy(text:find("\nok\n", 1, true) and text:find("first.weight", 1, true), text)
    text, status = perilune "new my-net"
    assert.equal(1, status)
    assert.truthy(text:find("exists already", 1, true), text)
    assert.equal(1, select(2, perilune "new 'a b'"))
    assert.equal(1, select(2, perilune "new /proc/nope"))
  end)

  it("doctest runs Markdown files and says which line is wrong", function()
    term.write(at "good.md", [[
# Title
```lua
print(T.ones(2))  --> {1., 1.}  -- f32[2] cpu
```
<!-- raises -->
```lua
T.zeros(-1)
--> zeros: size -1 of dim 1 is negative
```
<!-- not run: it needs a printer -->
```lua
print_on_paper()
```
```sh
false
```
]])
    local text, status = perilune "doctest good.md"
    assert.same({ "2 blocks of 1 file run, 0 failed, 1 skipped\n", 0 }, { text, status })
    term.write(at "bad.md",
      "```lua\nprint(1)\nprint(2)\n--> 1\n--> 3\n```\n```lua\nerror 'x'\n```\n```lua\n= 1\n```\n")
    text, status = perilune "doctest bad.md"
    assert.equal(1, status)
    for _, part in ipairs { "bad.md:2: line 2 of the output\n  expected: 3\n  printed:  2", "bad.md:8: x",
      "bad.md:11: ",
      "3 blocks of 1 file run, 3 failed" } do
      assert.truthy(text:find(part, 1, true), part .. " is not in " .. text)
    end
    term.write(at "open.md", "```lua\nprint(1)\n")
    assert.equal(2, select(2, perilune "doctest open.md"))
    assert.equal(2, select(2, perilune "doctest nowhere.md"))
  end)

  it("bench measures where there is no checkout, and runs the workloads in one", function()
    local text, status = perilune "bench"
    assert.equal(0, status, text)
    assert.truthy(text:find("matmul, 1024 x 1024 +[%d.]+ ms +[%d.]+ GFLOP/s"), text)
    local root = os.getenv "PERILUNE_ROOT" or "."
    text, status = term.shell(("P=$(realpath %s); cd %s && $P bench --list"):format(q(term.command), q(root)))
    assert.equal(0, status, text)
    assert.truthy(text:find("matmul_64", 1, true), text)
  end)

  it("says where a name is that a script looked for elsewhere", function()
    local text, status = perilune [[-e 'local T = require "perilune" T.functional_call()' 2>&1]]
    assert.equal(1, status)
    local want = "nil value (field 'functional_call'); is T.nn.utils.functional_call meant?\n"
    assert.truthy(text:find(want, 1, true), text)
    text = perilune "-e 'functional_call()' 2>&1" -- perilune was not loaded
    assert.is_nil(text:find("meant", 1, true), text)
  end)

  it("ends quietly where its reader goes away", function()
    local text, status = perilune "-e 'for i = 1, 100000 do print(i) end' | head -1"
    assert.same({ "1\n", 0 }, { text, status })
  end)
end)

describe("plain lua5.4", function()
  local root = os.getenv "PERILUNE_ROOT" or "."
  local paths = ("LUA_PATH='%s/lua/?.lua;%s/lua/?/init.lua;;' LUA_CPATH='%s/lib/?.so;;'"):format(root, root,
    os.getenv "PERILUNE_BUILD" or root .. "/build")

  it("completes with readline, from lua5.4 -i -l perilune", function()
    local missing = term.missing("plain", "perilune", "lua5.4")
    if not missing and not term.shell "ldd $(command -v lua5.4)":find("readline", 1, true) then
      missing = "lua5.4 is not linked with readline"
    end
    if missing then return pending(missing) end
    local got = term.play({ { "expect", "> " }, { "send", "T = perilune\n" }, { "expect", "> " },
      { "send", "T.softm\t(T.ones(2)):nume\t()\n" }, { "expect", "\r2\r\n" }, { "expect", "> " },
      { "send", "T.ones(2):sum{keepd\ttrue}:nume\t()\n" }, { "expect", "\r1\r\n" }, { "expect", "> " },
      { "send", "h = setmetatable({alpha = 41}, {__index = function() error 'it ran' end})\n" }, { "expect", "> " },
      { "send", "h.al\t + 1\n" }, { "expect", "\r42\r\n" }, { "expect", "> " },
      { "send", "\4" } }, paths, "lua5.4 -i -l perilune")
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
  end)

  it("runs the prompt: require 'perilune.repl' ()", function()
    local missing = term.missing("plain", "perilune", "lua5.4")
    if missing then return pending(missing) end
    local home, remove = term.folder()
    local got = term.play({ { "expect", "]> " }, { "send", "T.ones(6000, 6000):matmul(T.ones(6000, 6000))\n" },
      { "running" }, { "pause", 150 }, { "send", "\3" }, { "expect", "interrupted" }, { "expect", "]> " },
      { "send", "1 + 1\n" },
      { "expect", "2" }, { "expect", "]> " }, { "send", "\4" } },
      paths .. " NO_COLOR=1 XDG_STATE_HOME=" .. home, "lua5.4 -e 'require [[perilune.repl]] ()'")
    remove()
    assert.is_nil(got.missing, got.screen)
    assert.equal(0, got.status)
  end)
end)
