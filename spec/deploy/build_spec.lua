-- SPDX-License-Identifier: MIT
-- perilune build: programs and libraries of one model, with the bits of T.jit, called from C, Python and LuaJIT.

local T = require "perilune"
local term = require "spec.support.terminal"
local nn = T.nn
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= ""
local q = term.quote

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

describe("perilune build", function()
  local missing = sanitized and "a sanitizer's archives need its runtime" or term.missing("perilune", "cc")
  if missing or not term.there() then
    return it("makes programs", function() pending(missing or "there is no command") end)
  end
  local dir, remove = term.folder()
  teardown(function() remove() end)
  local function shell(...) return term.shell(("cd %s && "):format(q(dir)) .. string.format(...)) end
  local function build(...) return shell("%s build %s", q(term.command), string.format(...)) end

  -- Convolutions in three ways of computing them, pools, a residue, norms, softmax; integers go in, too.
  write(dir .. "/net.lua", [[
local T = require "perilune"
local nn = T.nn
T.manual_seed(5)
local pictures = nn.Sequential(nn.Conv2d(3, 16, 7, { stride = 2, padding = 3 }), nn.BatchNorm2d(16), nn.ReLU(),
  nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 32, 3, { padding = 1 }), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()):eval()
local words, norm, last = nn.Embedding(11, 32), nn.LayerNorm(32), nn.Linear(32, 300)
local f = T.jit(function(x, i)
  local h = norm(pictures(x) + words(i):mean(2))
  return last(h):softmax(2), h
end)
local n, list = 2 * 3 * 64 * 64, {}
for k = 0, n - 1 do list[k + 1] = (7 * k % 33 - 16) / 16 end
local x, i = T.tensor(list):view(2, 3, 64, 64), T.tensor({ { 1, 5, 11 }, { 2, 2, 7 } }, { dtype = "i64" })
local y, h = T.no_grad(function() return f(x, i) end)
assert(T.save_graph("net.graph", f:graph()))
local function out(path, ...)
  local o = io.open(path, "wb")
  for _, t in ipairs { ... } do o:write(t:to_string()) end
  o:close()
end
out("x", x)
out("i", i)
-- The ops of ResNet-18.
local down = nn.Conv2d(8, 8, 1, { stride = 2, bias = false })
local small = nn.Sequential(nn.Conv2d(3, 8, 7, { stride = 2, padding = 3, bias = false }), nn.BatchNorm2d(8), nn.ReLU(),
  nn.MaxPool2d(3, 2, 1)):eval()
local block = nn.Sequential(nn.Conv2d(8, 8, 3, { stride = 2, padding = 1, bias = false }), nn.BatchNorm2d(8), nn.ReLU(),
  nn.Conv2d(8, 8, 3, { padding = 1, bias = false }), nn.BatchNorm2d(8)):eval()
local head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)):eval()
local g = T.jit(function(v)
  local z = small(v)
  local last = (block(z) + down(z)):relu()
  -- GlobalAveragePool is a mean
  return head(last), last:mean { 3, 4 }, z:sum(1), z:transpose(2, 4):mean(2), z:mean { 2, 4 }, z:mean { 1, 3 }
end)
out(arg[1] .. "2", T.no_grad(function() return g(x) end))
assert(T.save_graph("resnet.graph", g:graph()))
out(arg[1], y, h)
]])

  setup(function()
    assert.same({ "", 0 }, { shell("%s run net.lua want", q(term.command)) })
    assert.same({ "", 0 }, { shell("PERILUNE_LIBRARIES=none %s run net.lua own", q(term.command)) })
  end)

  it("makes a program with the bits of T.jit", function()
    local text, status = build "net.graph -o app"
    assert.equal(0, status, text)
    assert.truthy(text:find "^app: [%d.]+ MB, of which [%d.]+ MB are weights")
    assert.same({ [[
input x1 f32[2,3,64,64] 98304 bytes
input x2 i64[2,3] 48 bytes
output 1 f32[2,300] 2400 bytes
output 2 f32[2,32] 256 bytes
]], 0 }, { shell "./app --info" })
    assert.same({ "", 0 }, { shell "./app x i > got && cmp got want" })
    assert.same({ "", 0 }, { shell "./app --threads 2 - i < x > got && cmp got want" })
    assert.same({ "", 0 }, { shell "./app --time 3 x i 2> took > got && cmp got want" }) -- weights are kept
    text, status = shell "./app x"
    assert.equal(2, status)
    assert.truthy(text:find("usage: ./app", 1, true))
    text, status = shell "./app i i"
    assert.equal(1, status)
    assert.truthy(text:find("i is no file of 98304 bytes", 1, true))
  end)

  it("makes a static one, which uses no other library", function()
    local text, status = build "net.graph -o static --static"
    if text:find "no static libraries of C" then return pending "the system has no static libraries" end
    assert.equal(0, status, text)
    assert.same({ "", 0 }, { shell "./static x i > got && cmp got own" })
    assert.equal(0, select(2, build "resnet.graph -o resnet --static"))
    assert.same({ "", 0 }, { shell "./resnet x > got && cmp got own2" })
    assert.is_true(#read(dir .. "/resnet") < 3.4e6, ("%d bytes"):format(#read(dir .. "/resnet")))
    if term.missing("plain", "readelf") == nil then
      assert.equal("", (shell "readelf -d static | grep NEEDED"))
    end
  end)

  local main = [[
#include <stdio.h>
#include <string.h>
#include "NAME.h"
int main(void) {
  static float x[NET_IN_X1_COUNT], y[NET_OUT_1_COUNT], h[NET_OUT_2_COUNT];
  static int64_t i[NET_IN_X2_COUNT];
  FILE *f = fopen("x", "rb"), *g = fopen("i", "rb");
  if (!f || !g || fread(x, sizeof x, 1, f) != 1 || fread(i, sizeof i, 1, g) != 1) return 2;
  NAME_session *s = NAME_open();
  if (!s || NAME_run(s, x, i, y, h)) return fprintf(stderr, "%s\n", NAME_message()), 1;
  NAME_threads(s, 2);
  if (NAME_run(s, x, i, y, h)) return 1;
  fwrite(y, sizeof y, 1, stdout);
  fwrite(h, sizeof h, 1, stdout);
  if (NAME_run(s, x, i, y, y) == 0) return 3;
  fprintf(stderr, "%s\n", NAME_message());
  NAME_close(s);
  NAME_close(NULL);
  NAME_threads(NULL, 2);
  if (NAME_run(NULL, x, i, y, h) == 0 || !strstr(NAME_message(), "the session is NULL")) return 4;
  return 0;
}
]]

  it("makes libraries for C, which export five functions", function()
    for _, case in ipairs { { "libnet.so", "net", "want", "" },
      { "libnet2.a", "net2", "want", "-fopenmp -ldl -lm -lpthread" },
      { "libnet3.a", "net3", "own", "-lm -lpthread", "--static" } } do
      local file, name, want, libraries, static = table.unpack(case)
      local text, status = build("net.graph -o %s %s", file, static or "")
      assert.equal(0, status, text)
      assert.truthy(text:find("; " .. name .. ".h", 1, true))
      write(("%s/%s.c"):format(dir, name), (main:gsub("NAME", name):gsub("NET", name:upper())))
      text, status = shell("cc -std=c11 -Wall -Wextra -Werror %s.c -o %s %s %s -Wl,-rpath,. && ./%s > got", name,
        name, file, libraries, name)
      assert.equal("output 1 (2) shares memory with output 0 (1)\n", text)
      assert.equal(0, status)
      assert.same({ "", 0 }, { shell("cmp got %s", want) })
      local names = {}
      for line in shell("nm -g --defined-only %s %s", file:find "so$" and "-D" or "", file):gmatch "[^\n]+" do
        names[#names + 1] = line:match "^%x+ T ([%w_]+)$"
      end
      table.sort(names)
      for k, f in ipairs { "close", "message", "open", "run", "threads" } do
        assert.equal(name .. "_" .. f, names[k])
      end
      assert.equal(5, #names)
    end
  end)

  it("makes a library for Python and LuaJIT", function()
    assert.equal(0, select(2, build "net.graph -o libnet.so"))
    if not term.missing("plain", "python3") then
      write(dir .. "/use.py", [[
import ctypes as c, sys
L = c.CDLL("./libnet.so")
L.net_open.restype = c.c_void_p
s = c.c_void_p(L.net_open())
x, i = open("x", "rb").read(), open("i", "rb").read()
y, h = c.create_string_buffer(2400), c.create_string_buffer(256)
assert L.net_run(s, x, i, y, h) == 0
sys.stdout.buffer.write(y.raw + h.raw)
L.net_close(s)
]])
      assert.same({ "", 0 }, { shell "python3 use.py > got && cmp got want" })
    end
    if not term.missing("plain", "luajit") then
      write(dir .. "/use.lua", [[
local ffi = require "ffi"
local header = io.open "net.h":read "*a"
header = header:gsub("/%*.-%*/", ""):gsub("#ifdef __cplusplus.-#endif", ""):gsub("#[^\n]*", "")
ffi.cdef(header)
local L = ffi.load "./libnet.so"
local s = ffi.gc(L.net_open(), L.net_close)
local x, i = ffi.new "float[24576]", ffi.new "int64_t[6]"
ffi.copy(x, io.open("x", "rb"):read "*a", 98304)
ffi.copy(i, io.open("i", "rb"):read "*a", 48)
local y, h = ffi.new "float[600]", ffi.new "float[64]"
assert(L.net_run(s, x, i, y, h) == 0)
io.write(ffi.string(y, 2400), ffi.string(h, 256))
]])
      assert.same({ "", 0 }, { shell "luajit use.lua > got && cmp got want" })
    end
  end)

  it("takes ONNX files", function()
    local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert(T.onnx.save(dir .. "/mlp.onnx", net, T.rand(2, 4), { dynamic = { x = { "n" } } }))
    local text, status = build "mlp.onnx -o mlp"
    assert.equal(1, status)
    assert.truthy(text:find("sizes that the file leaves free: give --size n=N", 1, true))
    text, status = build "mlp.onnx -o mlp --size n=3"
    assert.equal(0, status, text)
    assert.equal("input x f32[3,4] 48 bytes\noutput y f32[3,2] 24 bytes\n", (shell "./mlp --info"))
  end)

  it("overwrites no header that it did not make", function()
    write(dir .. "/mine.h", "#define MINE 1\n")
    local text, status = build "net.graph -o mine.so"
    assert.equal(1, status)
    assert.truthy(text:find("mine.h is there, and was not made by perilune build: move it", 1, true), text)
    assert.equal("#define MINE 1\n", read(dir .. "/mine.h"))
    assert.is_nil(io.open(dir .. "/mine.so"))
    assert.equal(0, select(2, build "net.graph -o mine.so --name other"))
    assert.equal(0, select(2, build "net.graph -o mine.so --name other")) -- its own header it writes anew
    assert.equal("#define MINE 1\n", read(dir .. "/mine.h"))
  end)

  it("takes any name that leads to a program, and says what is wrong with the others", function()
    for _, name in ipairs { "pl", "plk", "PL", "perilune", "_x", "__x", "7" } do
      local text, status = build("net.graph -o libno.so --name %s", name)
      assert.equal(2, status, text)
      assert.truthy(text:find("^perilune build: '[%w_]+': ") or text:find "^perilune build: '7' is no name in C", text)
    end
    for name, why in pairs { sem = "there is a function sem_open in", mq = "there is a function mq_",
      string = "the system has a header string.h" } do
      local text, status = build("net.graph -o libno.so --name %s", name)
      assert.equal(1, status, text)
      assert.truthy(text:find(("the name '%s' is taken: %s"):format(name, why), 1, true), text)
    end
    for _, name in ipairs { "int", "own", "program", "string" } do
      local file = name == "string" and "string" or ("lib%s.so"):format(name)
      local text, status = build("net.graph -o %s", file)
      assert.equal(0, status, text)
    end
    assert.is_nil(io.open(dir .. "/libno.so"))
    -- Inputs whose names differ in what C drops, or in case alone, which macros drop.
    local g, outputs = T.graph(), {}
    for i, input in ipairs { "a.b", "A b", "a_b_3", "a b" } do
      outputs["y" .. i] = g:input(input, { i }, { dtype = "f32" }) + 1
    end
    g:outputs(outputs)
    assert(T.save_graph(dir .. "/ports.graph", g))
    assert.equal(0, select(2, build "ports.graph -o libports.so"))
    write(dir .. "/ports.c", '#include "ports.h"\nint main(void) { return 0; }\n')
    assert.same({ "", 0 }, { shell "cc -Wall -Wextra -Werror ports.c -o ports" })
    local counts = {}
    for n in read(dir .. "/ports.h"):gmatch "#define PORTS_IN_[%w_]+_COUNT (%d)" do counts[#counts + 1] = n end
    assert.equal("1 2 3 4", table.concat(counts, " "))
  end)

  it("says what is missing", function()
    local text, status = shell("CC=/no/such/cc %s build net.graph -o no", q(term.command))
    assert.equal(1, status)
    assert.truthy(text:find("there is no C compiler '/no/such/cc': install gcc, or name one in CC", 1, true))
    text, status = build "nothing.graph -o no"
    assert.equal(1, status)
    assert.truthy(text:find("nothing.graph: cannot open", 1, true))
    local drop = nn.Dropout(0.5)
    local f = T.jit(function(x) return drop(x) end)
    f(T.ones(3))
    assert(T.save_graph(dir .. "/drop.graph", f:graph()))
    text, status = build "drop.graph -o no"
    assert.equal(1, status)
    assert.truthy(text:find("draws random numbers; put the net into evaluation mode", 1, true))
    for _, out in ipairs { "net.graph", "./net.graph", "net.graph.safetensors" } do -- neither is lost
      local before = read(dir .. "/" .. out)
      text, status = build("net.graph -o %s --name n", out)
      assert.equal(1, status)
      assert.truthy(text:find("is the model itself", 1, true), text)
      assert.equal(before, read(dir .. "/" .. out))
    end
    for _, usage in ipairs { "net.graph", "-o a", "net.graph -o 7 --loud", "net.graph -o 7",
      "net.graph -o libno.so.1", "net.graph -o no.dylib" } do
      text, status = build(usage)
      assert.equal(2, status, text)
    end
    assert.is_nil(io.open(dir .. "/no"))
  end)
end)
