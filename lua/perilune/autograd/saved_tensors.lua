-- SPDX-License-Identifier: MIT
-- What backward keeps passes through functions: T.saved_tensors. In the engine: engine/grad/saved_tensors_hooks.h.
local options = require "perilune.options"

return function(T, core)
  local fail, describe = options.fail, options.describe
  local keys = { "pack", "unpack", "offload", "folder", "min_bytes" }

  local scope = { __close = core.held(function(self)
    if self.was then core.saved_close(self.was) self.was = nil end
  end) }

  local function callable(f) return type(f) == "function" or (getmetatable(f) or {}).__call ~= nil end

  -- A function is what the engine keeps; objects that can be called become one.
  local function need_function(opts, name)
    local f = opts[name]
    if not callable(f) then fail("saved_tensors: %s must be a function, got %s", name, describe(f)) end
    return type(f) == "function" and f or function(...) return f(...) end
  end

  local function open(opts)
    if type(opts) ~= "table" then
      fail("saved_tensors: a table {pack=, unpack=} or {offload=} expected, got %s", describe(opts))
    end
    options.check("saved_tensors", opts, keys)
    if opts.offload == nil then
      for _, key in ipairs { "folder", "min_bytes" } do
        if opts[key] ~= nil then fail("saved_tensors: %s goes with offload=", key) end
      end
      return core.saved_open(need_function(opts, "pack"), need_function(opts, "unpack"))
    end
    if opts.pack or opts.unpack then fail("saved_tensors: either offload= or pack= and unpack=, not both") end
    if opts.offload ~= "host" and opts.offload ~= "disk" then
      fail("saved_tensors: offload must be \"host\" or \"disk\", got %s", describe(opts.offload))
    end
    if opts.folder ~= nil and (type(opts.folder) ~= "string" or opts.offload ~= "disk") then
      fail("saved_tensors: folder is the path of a folder, for offload=\"disk\"")
    end
    local least = opts.min_bytes == nil and 1 << 20 or math.tointeger(opts.min_bytes)
    if not least or least < 0 then
      fail("saved_tensors: min_bytes must be a whole number of bytes, 0 or more, got %s", describe(opts.min_bytes))
    end
    return core.saved_offload(opts.offload == "disk", opts.folder, least)
  end

  --- T.saved_tensors :: local _ <close> = T.saved_tensors{pack=, unpack=}, or T.saved_tensors({…}, f, …) → what f
  --   returns
  -- What ops recorded inside keep for backward, also with ctx:save, passes through pack(t), which returns anything but
  -- nil; backward gets unpack(of that), a tensor of the same shape, dtype and device. Neither is recorded; the
  -- innermost pair counts; what T.jit and T.checkpoint keep does not pass. Or offload="host": tensors of a GPU go to
  -- the CPU's memory; offload="disk": tensors go to a file without a name in folder= (TMPDIR, else /tmp).
  -- min_bytes=1048576: smaller ones stay, and so do parameters.
  --   local x = T.ones(3):requires_grad_()
  --   local half = { pack = function(t) return t:to("bf16") end, unpack = function(t) return t:to("f32") end }
  --   T.saved_tensors(half, function() return (x * x):sum() end):backward()
  --   print(x.grad)  --> {2., 2., 2.}  -- f32[3] cpu
  T.saved_tensors = function(opts, f, ...)
    if f == nil and select("#", ...) > 0 then fail("saved_tensors: the function is nil") end
    if f ~= nil and not callable(f) then fail("saved_tensors: a function or nothing expected, got %s", describe(f)) end
    if f == nil then return core.open(setmetatable({}, scope), open, opts) end
    return core.around(open, opts, core.saved_close, f, ...)
  end
end
