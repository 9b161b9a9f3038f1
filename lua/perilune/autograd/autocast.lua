-- SPDX-License-Identifier: MIT
-- Mixed precision: T.autocast opens a region in which products and convolutions take narrow floats and losses take
-- f32 (the lists are the engine's, by op). Functions made of ops say here what they take. See
-- docs/design/mixed-precision.md.
local options = require "perilune.options"

return function(T, core)
  local fail, describe = options.fail, options.describe
  local enter, leave, region = core.autocast_enter, core.autocast_leave, core.autocast_dtype
  local narrow = { bf16 = "bf16", bfloat16 = "bf16", f16 = "f16", float16 = "f16", half = "f16" }

  -- Puts back what was before, however the block is left.
  local scope = { __close = core.held(function(self) if self.was then leave(self.was) self.was = nil end end) }

  local function open(to) return enter(to[1], to[2]) end
  local none = { nil, false }

  local function callable(f) return type(f) == "function" or (getmetatable(f) or {}).__call ~= nil end

  -- local _ <close> = T.autocast("bf16")   or   T.autocast("bf16", f, …); options {enabled=true, cache_enabled=true}
  -- come after the dtype, or with it in one table.
  --- T.autocast :: local _ <close> = T.autocast("bf16", {enabled=true, cache_enabled=true}), or T.autocast("bf16", f,
  --   …)
  -- Inside, products, convolutions and attention take bf16 (or f16), losses f32; f64 is left alone.
  --   local x = T.ones(2, 2)
  --   print(T.autocast("bf16", function() return x:matmul(x):dtype() end), x:matmul(x):dtype())  --> bf16	f32
  T.autocast = function(dtype, ...)
    local args, opts, at = table.pack(...), nil, 1
    if type(dtype) == "table" then
      dtype, opts = dtype.dtype or dtype[1], dtype
    elseif type(args[1]) == "table" and not callable(args[1]) then
      opts, at = args[1], 2
    end
    if at == 2 then options.check("autocast", opts, { "enabled", "cache_enabled" }) end
    for key, v in pairs(opts or {}) do
      if key ~= 1 then options.check("autocast", { [key] = true }, { "dtype", "enabled", "cache_enabled" }) end
      if key ~= 1 and key ~= "dtype" and type(v) ~= "boolean" then
        fail("autocast: %s must be true or false, got %s", key, describe(v))
      end
    end
    local to = narrow[dtype == nil and "bf16" or dtype]
    if not to then fail("autocast: the dtype must be \"bf16\" or \"f16\", got %s", describe(dtype)) end
    local f = args[at]
    if f == nil and args.n > at then fail("autocast: the function is nil") end
    if f ~= nil and not callable(f) then fail("autocast: a function or nothing expected, got %s", describe(f)) end
    local off = opts and opts.enabled == false
    local wanted = { not off and to or nil, not opts or opts.cache_enabled ~= false }
    if f == nil then return core.open(setmetatable({}, scope), open, wanted) end
    return core.around(open, wanted, leave, f, table.unpack(args, at + 1, args.n))
  end

  --- T.get_autocast_dtype() → "bf16", "f16" or nil
  -- What the open region casts to.
  --   print(T.autocast("f16", T.get_autocast_dtype))  --> f16
  T.get_autocast_dtype = function() return region() end

  --- T.is_autocast_enabled() → boolean
  -- Whether a region of T.autocast is open.
  --   print(T.is_autocast_enabled())  --> false
  T.is_autocast_enabled = function() return region() ~= nil end

  -- "highest" (the default): products of f32 are f32 throughout. "high" and "medium": a GPU may round their factors
  -- to TF32; medium: on a CPU large ones to bf16, where it has instructions for that. Of this thread.
  local precisions = { "highest", "high", "medium" }

  --- T.set_float32_matmul_precision("highest", "high" or "medium")
  -- How exact products of f32 are: high and medium may round their factors to TF32 on a GPU (T.cuda.allow_tf32), medium
  -- those of large ones to bf16 on a CPU, where that is faster. Of the calling thread: a loader's worker has its own.
  --   T.set_float32_matmul_precision("medium")
  --   print(T.get_float32_matmul_precision())  --> medium
  --   T.set_float32_matmul_precision("highest")
  T.set_float32_matmul_precision = function(name)
    for _, p in ipairs(precisions) do
      if p == name then core.matmul_precision(name) return end
    end
    fail("set_float32_matmul_precision: %s", options.unknown("precision", name, precisions))
  end

  --- T.get_float32_matmul_precision() → "highest", "high" or "medium"
  -- What T.set_float32_matmul_precision set.
  --   print(T.get_float32_matmul_precision())  --> highest
  T.get_float32_matmul_precision = function() return core.matmul_precision() end

  local cast, is_tensor = core.autocast_cast, core.is_tensor
  local function as_f32(f, args)
    for i = 1, args.n do
      local a = args[i]
      if type(a) == "table" and not getmetatable(a) then
        args[i] = {}
        for k, v in pairs(a) do args[i][k] = cast(v, "f32") end
      else args[i] = cast(a, "f32") end
    end
    return core.around(open, none, leave, f, table.unpack(args, 1, args.n))
  end

  -- f16 or bf16, if all floating tensors among the arguments and their options are that; else nil.
  local function halves(args)
    local found
    local function look(t)
      if not is_tensor(t) then return true end
      local alive, floats = pcall(t.is_floating_point, t) -- f's own words are for a tensor that was freed
      if not alive or not floats then return true end
      local d = t:dtype()
      if d ~= "f16" and d ~= "bf16" or found and found ~= d then return false end
      found = d
      return true
    end
    for i = 1, args.n do
      local a = args[i]
      if type(a) == "table" and not getmetatable(a) then
        for _, v in pairs(a) do if not look(v) then return nil end end
      elseif not look(a) then return nil end
    end
    return found
  end

  local function rounded(dtype, ...)
    local out = table.pack(...)
    for i = 1, out.n do
      if is_tensor(out[i]) and out[i]:dtype() == "f32" then out[i] = out[i]:to(dtype) end
    end
    return table.unpack(out, 1, out.n)
  end

  -- Of halves f computes in f32, and its results are rounded once: steps in between would be rounded each.
  local function once(f, ...)
    local args = table.pack(...)
    local dtype = halves(args)
    if not dtype then return f(...) end
    return rounded(dtype, as_f32(f, args))
  end

  --- For functions made of products whose result is f32 in a region: f as it is without one.
  core.without_autocast = function(f)
    return function(...)
      if not region() then return f(...) end
      return core.around(open, none, leave, f, ...)
    end
  end

  --- For functions made of several ops, whose halves are to be rounded once.
  core.rounded_once = function(group, names)
    for _, name in ipairs(names) do
      local f = group[name] and require("perilune.surface").one(name, group[name])
      if f then group[name] = function(...) return once(f, ...) end end
    end
  end

  -- Functions of `group` that take f32 inside a region; PyTorch lists them, too. Outside they round once.
  local function full(group, names)
    for _, name in ipairs(names) do
      local f = group[name] and require("perilune.surface").one(name, group[name])
      if f then
        group[name] = function(...)
          if not region() then return once(f, ...) end
          return as_f32(f, table.pack(...))
        end
      end
    end
  end
  core.full_precision = full
end
