-- The layers hold: lua -> bindings -> engine -> kernels, never back. Reads every #include line, the
-- undefined symbols of both archives, and their writable globals (spec/globals.allow).
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
  local names = "-name '*.[ch]' -o -name '*.inc' -o -name '*.def' -o -name '*.cu'"
  return lines_of(("find '%s/%s' -type f \\( %s \\)"):format(root, layer, names))
end

-- Which system headers belong to one place only: pattern of the header -> pattern of files that may.
local private = {
  { "^lua%.h$", "^bindings/" }, { "^lauxlib%.h$", "^bindings/" }, { "^lualib%.h$", "^bindings/" },
  { "cblas", "^kernels/cpu/" }, { "lapacke", "^kernels/cpu/" }, { "dnnl", "^kernels/cpu/" },
  { "cuda", "^kernels/cuda/" }, { "cublas", "^kernels/cuda/" }, { "cudnn", "^kernels/cuda/" },
  { "nvrtc", "^kernels/cuda/" }, { "nccl", "^kernels/cuda/" }, { "^mpi%.h$", "^kernels/mpi/" },
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

-- Branches on which op it is, outside the descriptors and the passes, whose subject single ops are: facts of ops
-- belong into PlOp (engine/ops/op.h). The count only falls: lower it with every branch that goes.
local branches_allowed = 3

-- How often a line asks which op it has, by pointer or by number.
local function branches(line)
  local n = 0
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

  it("sees the faults that it is there for", function()
    assert.truthy(include_fault("engine/a.c", '#include <lua.h>'))
    assert.truthy(include_fault("engine/a.c", '#include "kernels/cpu/gemm/gemm.h"'))
    assert.truthy(include_fault("engine/a.c", '#include "bindings/box.h"'))
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

  it("leaves facts of ops to their descriptors", function()
    local found, n = {}, 0
    for layer in pairs(allowed) do
      for _, path in ipairs(sources(layer)) do
        local file, number = path:sub(#root + 2), 0
        local exempt = file:find("^engine/ops/") or file:find("^engine/graph/passes/")
        for line in io.lines(path) do
          number = number + 1
          local here = exempt and 0 or branches(line)
          n = n + here
          if here > 0 then found[#found + 1] = ("%s:%d: %s"):format(file, number, line:match("^%s*(.-)%s*$")) end
        end
      end
    end
    assert.is_true(n <= branches_allowed, "a field or flag of PlOp instead of:\n" .. sorted(found))
    assert.equal(branches_allowed, n, "branches_allowed can be lowered")
  end)

  it("sees branches on ops", function()
    assert.equal(1, branches("if (op == &pl_op_add) {"))
    assert.equal(2, branches("return n->op != &pl_op_add && n->op !=&pl_op_sub;"))
    assert.equal(1, branches("if (&pl_op_add == op)"))
    assert.equal(1, branches("if (pl_op_id(op) == PL_OP_add)"))
    assert.equal(1, branches("  case PL_OP_add: return 1;"))
    assert.equal(0, branches("*out = pl_g2(g, &pl_op_add, a, b);"))
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
end)
