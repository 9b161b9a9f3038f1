-- SPDX-License-Identifier: MIT
-- The layers hold: lua -> bindings -> engine -> kernels, never back, and no folders include each other in a ring. Reads
-- every #include line, the undefined symbols of both archives, their writable globals (spec/globals.allow), file names.
local root = os.getenv("PERILUNE_ROOT") or "."
local build = os.getenv("PERILUNE_BUILD") or root .. "/build"
local sanitized = (os.getenv("PERILUNE_SANITIZE") or "") ~= ""
local archives = {
  engine = build .. "/lib/libperilune_engine.a",
  kernels = build .. "/lib/libperilune_kernels.a",
}

local function lines_of(command)
  local pipe = assert(io.popen(command .. " 2>/dev/null"))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  assert(pipe:close(), command .. " failed")
  return lines
end

local function sources(layer)
  local names = "-name '*.[ch]' -o -name '*.inc' -o -name '*.def' -o -name '*.cu' -o -name '*.cpp'"
  return lines_of(("find '%s/%s' -type f \\( %s \\)"):format(root, layer, names))
end

-- Which system headers belong to one place only: pattern of the header -> pattern of files that may.
local private = {
  { "^lua%.h$", "^bindings/" }, { "^lauxlib%.h$", "^bindings/" }, { "^lualib%.h$", "^bindings/" },
  { "cblas", "^kernels/cpu/" }, { "lapacke", "^kernels/cpu/" }, { "dnnl", "^kernels/cpu/" },
  { "cuda", "^kernels/cuda/" }, { "cublas", "^kernels/cuda/" }, { "cudnn", "^kernels/cuda/" },
  { "nvrtc", "^kernels/cuda/" }, { "nccl", "^kernels/cuda/" }, { "^mpi%.h$", "^kernels/mpi/" },
  { "^zmq%.h$", "^bindings/zeromq/" }, { "^sodium%.h$", "^bindings/zeromq/" },
}

-- Which of our headers each layer may name.
local allowed = {
  kernels = { "^kernels/" },
  engine = { "^engine/", "^kernels/[^/]+$" }, -- the contract, never a device's folder
  bindings = { "^bindings/", "^engine/", "^kernels/[^/]+$" },
}

local function matches(text, patterns)
  for _, pattern in ipairs(patterns) do
    if text:find(pattern) then return true end
  end
  return false
end

-- What is wrong with one #include line of a file (path from the root), or nil.
local function include_fault(file, line)
  local quote, header = line:match('^%s*#%s*include%s*([<"])([^>"]+)[>"]')
  if not header then return nil end
  for _, rule in ipairs(private) do
    if header:lower():find(rule[1]) and not file:find(rule[2]) then
      return ("%s includes <%s>, which belongs to %s"):format(file, header, rule[2])
    end
  end
  if quote == '"' and not matches(header, allowed[file:match("^[^/]+")]) then
    return ("%s includes \"%s\""):format(file, header)
  end
  return nil
end

-- The rooms of the engine, each above those before it: a file includes headers of its own room and of lower ones. What
-- a lower room needs done by a higher one it declares itself (tensor/hooks.h). Folders of graph/ but ir/ are one room.
local order = { "tensor", "device", "io", "text", "graph/ir", "grad", "vmap", "remat", "call", "graph", "ops",
  "distributed", "deploy" }
-- What all rooms speak of: the descriptor of an op, one call of it, the thread's state, the device's contract. These
-- headers include nothing but each other and tensor/.
local common = { ["engine/perilune.h"] = true, ["engine/ops/op.h"] = true, ["engine/ops/names.h"] = true,
  ["engine/ops/ops.def"] = true,
  ["engine/call/call.h"] = true, ["engine/call/thread_state.h"] = true, ["engine/device/device.h"] = true }

local height = {}
for i, room in ipairs(order) do height[room] = i end

local function room_of(file)
  return file:find "^engine/graph/ir/" and "graph/ir" or file:match "^engine/([^/]+)/"
end

-- What is wrong with an engine file's include of a header, by the order of rooms, or nil.
local function order_fault(file, header)
  local from, to = room_of(file), room_of(header)
  if not from or not to or common[header] then return nil end
  if not height[from] or not height[to] then
    return ("%s: room %s has no place in the order"):format(file, height[from] and to or from)
  end
  local limit = common[file] and 1 or height[from]
  return height[to] > limit and ("%s, in %s, includes \"%s\" of a higher room"):format(file, from, header) or nil
end

-- Folders whose headers include each other in a ring, as text, or nil. reads: folder → set of folders. A .c file takes
-- any header of its layer; headers that need each other cannot be read one after the other.
local function ring(reads)
  local state, path = {}, {}
  local function visit(folder)
    state[folder] = "open"
    path[#path + 1] = folder
    local names = {}
    for other in pairs(reads[folder] or {}) do names[#names + 1] = other end
    table.sort(names)
    for _, other in ipairs(names) do
      if state[other] == "open" then
        local from = 1
        while path[from] ~= other do from = from + 1 end
        return table.concat(path, " -> ", from) .. " -> " .. other
      end
      local found = not state[other] and visit(other)
      if found then return found end
    end
    path[#path] = nil
    state[folder] = "done"
  end
  local folders = {}
  for folder in pairs(reads) do folders[#folders + 1] = folder end
  table.sort(folders)
  for _, folder in ipairs(folders) do
    local found = not state[folder] and visit(folder)
    if found then return found end
  end
end

-- What is wrong with a file's name, or nil: it says what the file is about, not when or why it was split off.
local function name_fault(file)
  local name = file:match("([^/]+)$"):gsub("%..*", ""):gsub("_spec$", "")
  for age in ("more extra second rare inside again misc new old rest other"):gmatch "%l+" do
    if name:find("_" .. age .. "$") then
      return ("%s is named by its age (_%s): name its subject"):format(file, age)
    end
  end
end

-- Symbols that an archive takes from elsewhere: name -> true.
local function undefined(archive)
  local set = {}
  for _, line in ipairs(lines_of("nm -u '" .. archive .. "'")) do
    local name = line:match("^%s+[Uuw]%s+(%S+)")
    if name then set[name:gsub("@.*", "")] = true end
  end
  return set
end

-- Writable data with a size: name -> section. Compilers number static locals (count.0): cut that off.
local function writable(archive)
  local found = {}
  for _, line in ipairs(lines_of("objdump -t '" .. archive .. "'")) do
    local section, size, name = line:match("^%x+%s.-%s(%S+)\t(%x+)%s+(.+)$")
    if section and tonumber(size, 16) > 0 then
      name = name:gsub("^%.hidden%s+", "")
      local head = section:match("^(%.[^.]+)") or section
      local data = head == ".bss" or head == ".data" or head == ".tbss" or head == ".tdata"
        or (section == "*COM*" and not name:find("^%.gomp_critical_user_")) -- the lock of an omp critical
      local constant = section:find("^%.data%.rel%.ro") or name == section
      if data and not constant then found[name:gsub("%.%d+$", "")] = section end
    end
  end
  return found
end

local function globals_allowed()
  local set = {}
  for line in io.lines(root .. "/spec/globals.allow") do
    local name, reason = line:match("^%s*([%w_]+)%s*#%s*(%S.*)$")
    if name then
      set[name] = reason
    else
      assert(line:match("^%s*$") or line:match("^%s*#"), "globals.allow: no reason in: " .. line)
    end
  end
  return set
end

-- How often a line asks which op it has, by pointer, number, family or name.
local function branches(line)
  local n = select(2, line:gsub("strcmp%(family", "")) + select(2, line:gsub("strcmp%([%w_>.-]*op%->name", ""))
  for _, name in ipairs { "&pl_op_[%w_]+", "PL_OP_[%w_]+" } do
    for _, pattern in ipairs { "[=!]=%s*" .. name, name .. "%s*[=!]=", "case%s+" .. name } do
      n = n + select(2, line:gsub(pattern, ""))
    end
  end
  return n
end

local function sorted(list)
  table.sort(list)
  return table.concat(list, "\n")
end

-- Functions that headers declare and nothing uses: files (path -> text) -> list of faults. A prototype needs a
-- definition and a caller, an inline function a caller. Names that macros paste together (kernels, batching rules)
-- are not seen.
local function unused_functions(files)
  local times, faults = {}, {}
  for path, text in pairs(files) do
    files[path] = text:gsub("/%*.-%*/", " ")
    for word in files[path]:gmatch "[%a_][%w_]*" do times[word] = (times[word] or 0) + 1 end
  end
  for path, text in pairs(files) do
    if path:find "%.h$" and not path:find "^spec/" and path ~= "engine/perilune.h" then
      for head, name, tail in ("\n" .. text):gmatch "\n([%a_][%w_ %*]-[ %*])([plrs]%w*_[%w_]+)%b()([^\n]*)" do
        local pasted = name:find "^plk_" or name:find "^pl_batch_" or head:find "define" or head:find "return"
        local least = tail:find "^;" and 3 or 2
        if not pasted and times[name] < least then faults[#faults + 1] = ("%s: nothing uses %s"):format(path, name) end
      end
    end
  end
  return faults
end

describe("layering", function()
  for layer in pairs(allowed) do
    it("holds in the #include lines of " .. layer, function()
      local faults, files = {}, sources(layer)
      assert.is_true(#files > 0, "no sources in " .. layer)
      for _, path in ipairs(files) do
        local file = path:sub(#root + 2)
        for line in io.lines(path) do faults[#faults + 1] = include_fault(file, line) end
      end
      assert.equal("", sorted(faults))
    end)
  end

  it("holds between folders: no ring of headers that include each other", function()
    local reads = {}
    for layer in pairs(allowed) do
      for _, path in ipairs(sources(layer)) do
        local file = path:sub(#root + 2)
        local folder = file:match("^(.*)/")
        for line in io.lines(path) do
          local other = file:find("%.h$") and line:match('^%s*#%s*include%s*"([^"]+)/[^"/]+"')
          if other and other ~= folder then
            reads[folder] = reads[folder] or {}
            reads[folder][other] = true
          end
        end
      end
    end
    assert.is_true(next(reads) ~= nil)
    assert.is_nil(ring(reads))
    assert.equal("a -> b -> c -> a", ring { a = { b = true }, b = { c = true, d = true }, c = { a = true } })
    assert.is_nil(ring { a = { b = true, c = true }, b = { c = true } })
  end)

  it("holds between the rooms of the engine: nobody includes a header of a higher one", function()
    local faults, seen = {}, {}
    for _, path in ipairs(sources("engine")) do
      local file = path:sub(#root + 2)
      for line in io.lines(path) do
        local header = line:match('^%s*#%s*include%s*"(engine/[^"]+)"')
        if header then
          faults[#faults + 1] = order_fault(file, header)
          seen[room_of(file) or ""] = true
        end
      end
    end
    assert.equal("", sorted(faults))
    for _, room in ipairs(order) do assert.is_true(seen[room] or false, room .. " is no room of the engine") end
    assert.truthy(order_fault("engine/tensor/tensor.c", "engine/vmap/vmap.h"))
    assert.truthy(order_fault("engine/grad/record.c", "engine/graph/trace/symbolic.h"))
    assert.truthy(order_fault("engine/call/call.h", "engine/grad/node.h"))
    assert.truthy(order_fault("engine/attic/a.c", "engine/tensor/tensor.h"))
    assert.is_nil(order_fault("engine/grad/record.c", "engine/graph/ir/graph.h"))
    assert.is_nil(order_fault("engine/tensor/tensor.c", "engine/ops/op.h"))
  end)

  it("keeps folders small, and names files by their subject", function()
    local count, faults = {}, {}
    local where = "cd '%s' && find engine kernels bindings lua spec examples bench docs/design cmake -type f"
    for _, file in ipairs(lines_of(where:format(root))) do
      local folder = file:match("^(.*)/")
      count[folder] = (count[folder] or 0) + 1
      faults[#faults + 1] = name_fault(file)
    end
    for folder, n in pairs(count) do
      if n > 40 then faults[#faults + 1] = ("%s has %d files: give its subjects folders"):format(folder, n) end
    end
    assert.equal("", sorted(faults))
    for _, file in ipairs { "a/linalg_more.lua", "a/choose_second.c", "a/put_rare.h", "spec/nn_more_spec.lua" } do
      assert.truthy(name_fault(file), file)
    end
    assert.is_nil(name_fault("engine/more/second_order.c"))
  end)

  it("sees the faults that it is there for", function()
    assert.truthy(include_fault("engine/a.c", '#include <lua.h>'))
    assert.truthy(include_fault("engine/a.c", '#include "kernels/cpu/gemm/gemm.h"'))
    assert.truthy(include_fault("engine/a.c", '#include "bindings/box.h"'))
    assert.truthy(include_fault("engine/graph/fuse/a.c", '#include "bindings/core/lib.h"'))
    assert.truthy(include_fault("engine/graph/fuse/a.c", '#include "kernels/cpu/conv/conv.h"'))
    assert.truthy(include_fault("kernels/cpu/conv/a.c", '#include "engine/tensor/tensor.h"'))
    assert.truthy(include_fault("engine/a.c", '  # include <cblas.h>'))
    assert.truthy(include_fault("kernels/cpu/a.c", '#include "engine/tensor/tensor.h"'))
    assert.truthy(include_fault("kernels/cpu/a.c", '#include <cuda_runtime.h>'))
    assert.truthy(include_fault("kernels/cpu/a.c", '#include "gemm.h"'))
    assert.truthy(include_fault("kernels/a.c", '#include <oneapi/dnnl/dnnl.h>'))
    assert.truthy(include_fault("engine/distributed/process_group.c", '#include <mpi.h>'))
    assert.is_nil(include_fault("kernels/cpu/a.c", '#include <cblas.h>'))
    assert.is_nil(include_fault("engine/a.c", '#include "kernels/kernel.h"'))
    assert.is_nil(include_fault("bindings/a.c", '#include "engine/perilune.h"'))
  end)

  -- Outside the descriptors and the passes, whose subject single ops are, nobody asks which op it has: facts of ops are
  -- fields and flags of PlOp (engine/ops/op.h).
  it("leaves facts of ops to their descriptors", function()
    local found = {}
    for layer in pairs(allowed) do
      for _, path in ipairs(sources(layer)) do
        local file, number = path:sub(#root + 2), 0
        local exempt = file:find("^engine/ops/") or file:find("^engine/graph/passes/")
        for line in io.lines(path) do
          number = number + 1
          if not exempt and branches(line) > 0 then
            found[#found + 1] = ("%s:%d: %s"):format(file, number, line:match("^%s*(.-)%s*$"))
          end
        end
      end
    end
    assert.equal("", sorted(found))
  end)

  -- PlState.modes has a bit for each of these fields; only pl_set_NAME keeps both.
  it("has modes set by their functions alone", function()
    local header, modes = assert(io.open(root .. "/engine/call/thread_state.h")):read "a", {}
    for name in header:gmatch "\nPL_MODE%([^\n]-, ([%w_]+), PL_MODE_" do modes[name] = true end
    assert.is_true(modes.trace and modes.batch_busy and modes.checkpoint)
    local function writes(line)
      local name, behind = line:match "pl_state%.([%w_]+)%s*([^%s]?[^%s]?)"
      local address = line:match "&%s*pl_state%.([%w_]+)%f[^%w_][^.]"
      local changes = behind and (behind:find "^=[^=]" or behind == "=" or behind:find "^[-+|&]=" or behind == "++"
        or behind == "--")
      local whole = line:find "&%s*pl_state%f[^%w_][^.]" -- through a pointer nobody sees which field is set
      return modes[name] and changes or (modes[address or ""] or whole) and not line:find "&& *pl_state" or false
    end
    assert.truthy(writes "  pl_state.trace = f;")
    assert.truthy(writes "pl_state.batch_busy++;")
    assert.truthy(writes "PlCheckpoint **at = &pl_state.checkpoint;")
    assert.truthy(writes "PlState *s = &pl_state;")
    assert.falsy(writes "if (pl_state.trace == f && pl_state.batch_busy) return;")
    assert.falsy(writes "if (n && pl_state.trace) return;")
    local found = {}
    for _, layer in ipairs { "engine", "bindings" } do
      for _, path in ipairs(sources(layer)) do
        local number = 0
        for line in io.lines(path) do
          number = number + 1
          if writes(line) then found[#found + 1] = ("%s:%d: %s"):format(path:sub(#root + 2), number, line) end
        end
      end
    end
    found = sorted(found)
    assert.equal("", found:gsub("engine/call/thread_state.h:%d+: +pl_state.NAME = now;[^\n]*", ""))
  end)

  -- A copy of modes that leaves one out is wrong without a word: all are PlScope or PlModes.
  it("has modes put back in one place", function()
    local may, found = { ["engine/call/thread_state.h"] = true, ["engine/grad/record.c"] = true,
      ["engine/grad/forward_mode.c"] = true, ["bindings/autograd/grad_mode.c"] = true }, {}
    for _, layer in ipairs { "engine", "bindings" } do
      for _, path in ipairs(sources(layer)) do
        local file = path:sub(#root + 2)
        for line in io.lines(path) do
          if not may[file] and line:find "pl_state%.grad_off = " then found[#found + 1] = file .. ": " .. line end
        end
      end
    end
    assert.equal("", sorted(found))
  end)

  it("sees branches on ops", function()
    assert.equal(1, branches("if (op == &pl_op_add) {"))
    assert.equal(2, branches("return n->op != &pl_op_add && n->op !=&pl_op_sub;"))
    assert.equal(1, branches("if (&pl_op_add == op)"))
    assert.equal(1, branches("if (pl_op_id(op) == PL_OP_add)"))
    assert.equal(1, branches("  case PL_OP_add: return 1;"))
    assert.equal(1, branches('if (strcmp(family, "copy") == 0) return PLK_EW_CAST;'))
    assert.equal(0, branches("*out = pl_g2(g, &pl_op_add, a, b);"))
  end)

  it("declares no function that nothing defines or calls", function()
    local files = {}
    for _, layer in ipairs { "engine", "kernels", "bindings", "spec", "examples" } do
      for _, path in ipairs(sources(layer)) do files[path:sub(#root + 2)] = assert(io.open(path)):read "a" end
    end
    assert.equal("", sorted(unused_functions(files)))
    assert.same({ "a.h: nothing uses pl_a", "a.h: nothing uses pl_c" }, unused_functions {
      ["a.h"] = "int pl_a(void);\nint pl_b(int x);\nstatic inline int pl_c(void) { return pl_b(1); } /* pl_a */\n",
      ["b.c"] = "int pl_b(int x) { return x; }\n",
    })
  end)

  it("holds in the engine archive's undefined symbols", function()
    local faults = {}
    local foreign = { "^luaL?_", "^cuda", "^cu%u", "^cublas", "^cudnn", "^nccl", "^nvrtc", "^cblas_",
      "^openblas_", "^dnnl_", "^MPI_", "_$" }
    for name in pairs(undefined(archives.engine)) do
      local ours = name:find("^_") or name:find("^plk?_") or name == "inflateInit2_" -- zlib's one
      if matches(name, foreign) and not ours then faults[#faults + 1] = name end
    end
    assert.equal("", sorted(faults))
  end)

  it("keeps Lua out of the kernels", function()
    for name in pairs(undefined(archives.kernels)) do
      assert.is_nil(name:match("^luaL?_.*") or name:match("^pl_tensor_.*"))
    end
  end)

  it("finds no way to end the process from engine or kernels", function()
    local ends = { abort = true, exit = true, _exit = true, _Exit = true, quick_exit = true,
      longjmp = true, _longjmp = true, siglongjmp = true, __longjmp_chk = true }
    for _, archive in pairs(archives) do
      for name in pairs(undefined(archive)) do
        assert.is_nil(ends[name] and archive .. " calls " .. name)
      end
    end
  end)

  it("allows writable globals by name and reason only", function()
    if sanitized then return pending("a sanitizer adds globals of its own") end
    local allow, seen, faults = globals_allowed(), {}, {}
    for layer, archive in pairs(archives) do
      for name, section in pairs(writable(archive)) do
        seen[name] = true
        if not allow[name] then
          faults[#faults + 1] = ("%s: %s in %s is not allowed"):format(layer, name, section)
        end
      end
    end
    for name in pairs(allow) do
      if not seen[name] then faults[#faults + 1] = name .. " is allowed but does not exist" end
    end
    assert.equal("", sorted(faults))
  end)

  -- engine.so is opened by a program that runs already, for which the C library keeps some 1,500 bytes for all
  -- libraries together (OpenMP's is one of them); beyond that require "perilune" fails in a plain lua5.4, and nothing
  -- else says so.
  it("leaves room for the thread-local variables of others", function()
    if sanitized then return pending("a sanitizer adds globals of its own") end
    local text = table.concat(lines_of("readelf -lW '" .. build .. "/lib/perilune/engine.so'"), "\n")
    local size = tonumber(text:match "\n%s*TLS%s+%S+%s+%S+%s+%S+%s+%S+%s+(%S+)") -- offset, two addresses, in the file
    assert.is_true(size ~= nil and size <= 1344, ("%s bytes; put behind a pointer what calls do not read"):format(size))
  end)
end)
