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

--- M.code(tool, object, names) → {name = {instructions=, loads={[bits]=n}, stores=, spilled=, text=}}
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
      local op = line:match "/%*%x+%*/%s+(.-)%s*;"
      if op then
        now.instructions = now.instructions + 1
        now.text[#now.text + 1] = op
        local kind = op:match "LDG[%w.]*" or op:match "STG[%w.]*"
        if kind then
          local into = kind:sub(1, 3) == "LDG" and now.loads or now.stores
          local bits = tonumber(kind:match "%.(%d+)$" or kind:match "%.(%d+)%.") or
            (kind:find "[US]8" and 8 or kind:find "[US]16" and 16 or 32)
          into[bits] = (into[bits] or 0) + 1
        end
        if op:find "LDL" or op:find "STL" then now.spilled = now.spilled + 1 end
      end
    end
  end
  return all
end

return M
