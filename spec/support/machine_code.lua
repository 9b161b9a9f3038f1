-- SPDX-License-Identifier: MIT
-- What the machine code of compiled CUDA kernels says without a GPU, as cuobjdump prints it: registers, stack, and the
-- loads and stores by width. For spec/cuda/machine_code_spec.lua and for bench/gpu_table.lua.

local M = {}

local function lines_of(command)
  local p = assert(io.popen(command .. " 2>/dev/null"))
  local text = p:read("a")
  p:close()
  return text:gmatch("[^\n]+")
end
local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

--- M.tool() → path, or nil
-- cuobjdump of the toolkit: as PERILUNE_CUOBJDUMP says, else of the PATH.
function M.tool()
  local named = os.getenv "PERILUNE_CUOBJDUMP"
  for _, path in ipairs { named or "", "cuobjdump" } do
    if path ~= "" and os.execute(quote(path) .. " --version >/dev/null 2>&1") then return path end
  end
end

--- M.resources(tool, object) → {mangled name = {registers=, stack=}}
function M.resources(tool, object)
  local all, name = {}, nil
  for line in lines_of(("%s -res-usage %s"):format(quote(tool), quote(object))) do
    name = line:match "Function ([%w_$]+):" or name
    local registers, stack = line:match "REG:(%d+)", line:match "STACK:(%d+)"
    if registers and name then all[name] = { registers = tonumber(registers), stack = tonumber(stack) } end
  end
  return all
end

--- M.code(tool, object, names) → {name = {instructions=, loads={[bits]=n}, stores=, spilled=, text={{at=, op=}, …}}}
-- Accesses to global memory by width; spilled counts those to local memory; text is the list of instructions. Of the
-- kernels of those mangled names: all take minutes.
function M.code(tool, object, names)
  local all, now = {}, nil
  local command = ("%s -sass -fun %s %s"):format(quote(tool), quote(table.concat(names, ",")), quote(object))
  for line in lines_of(command) do
    local name = line:match "Function : ([%w_$]+)"
    if name then
      now = { instructions = 0, loads = {}, stores = {}, spilled = 0, text = {} }
      all[name] = now
    elseif now then
      local at, op = line:match "/%*(%x+)%*/%s+(.-)%s*;"
      if op then
        now.instructions = now.instructions + 1
        now.text[#now.text + 1] = { at = tonumber(at, 16), op = op }
        for kind, into in pairs { LDG = now.loads, STG = now.stores } do
          local bits = M.width(op, kind)
          if bits then into[bits] = (into[bits] or 0) + 1 end
        end
        if op:find "LDL" or op:find "STL" then now.spilled = now.spilled + 1 end
      end
    end
  end
  return all
end

-- Bits of a load or store, nil of anything else.
function M.width(op, kind)
  local access = op:match(kind .. "[%w.]*")
  return access and (tonumber(access:match "%.(%d+)$" or access:match "%.(%d+)%.") or
    (access:find "[US]8" and 8 or access:find "[US]16" and 16 or 32))
end

--- M.loop(code) → {instructions=, loads=, bytes=}, or nil
-- The loop that does a kernel's work: of those that load most bytes the shortest. From what M.code says of one kernel.
function M.loop(code)
  local best
  for i, branch in ipairs(code.text) do
    local to = tonumber(branch.op:match "BRA[%w.]*%s+.*0x(%x+)" or "", 16)
    if to and to < branch.at then
      local loop = { instructions = 0, loads = 0, bytes = 0 }
      for k = i, 1, -1 do
        local line = code.text[k]
        if line.at < to then break end
        local bits = M.width(line.op, "LDG")
        loop.instructions = loop.instructions + 1
        loop.loads = loop.loads + (bits and 1 or 0)
        loop.bytes = loop.bytes + (bits or 0) // 8
      end
      if loop.loads > 0 and (not best or loop.bytes > best.bytes or
        loop.bytes == best.bytes and loop.instructions < best.instructions) then
        best = loop
      end
    end
  end
  return best
end

return M
