-- SPDX-License-Identifier: MIT
-- pcall for specs with tensors on a device (spec/support/device.lua): what specs and assertions call, waits at its end.
-- xpcall stands for the plain one: upvalues of functions that travel to workers must be found by name.

local xpcall, getinfo, find = xpcall, debug.getinfo, string.find

return function(T)
  local function plain(...) return ... end
  local function settled(fine, ...)
    if not fine then return false, ... end
    local quiet, why = xpcall(T.cuda.synchronize, plain)
    if not quiet then return false, why end
    return true, ...
  end
  return function(f, ...)
    local info = getinfo(2, "S")
    local source = info and info.source or ""
    local waits = find(source, "spec/", 1, true) or find(source, "luassert", 1, true)
    if waits then return settled(xpcall(f, plain, ...)) end
    return xpcall(f, plain, ...)
  end
end
