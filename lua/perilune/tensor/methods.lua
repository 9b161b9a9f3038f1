-- Functions with several forms (max of all, along a dim, of two tensors), and what is made of other ops. Each is
-- both T.name(x, …) and x:name(…).
local options = require "perilune.options"

return function(T, core)
  local op, is_tensor = core.op, core.is_tensor
  local methods = core.metatable().methods
  local too_many = require("perilune.surface").too_many
  local fail = options.fail

  local define = require "perilune.define"(T, core)

  local function check(fn, x, i)
    if not is_tensor(x) then fail("%s: argument #%d must be a tensor, got %s", fn, i or 1, options.describe(x)) end
    return x
  end
  core.check_tensor = check
  -- trailing options: returns dim and the option table
  local function dim_of(fn, dim, opts, allowed)
    if type(dim) == "table" and not is_tensor(dim) then
      if opts == nil and #dim == 0 then opts, dim = dim, nil end
    end
    if opts ~= nil then
      opts = options.check(fn, opts, allowed)
      dim = options.once(fn, "dim", dim, opts)
    end
    return dim, opts or {}
  end
  core.dim_of = dim_of

  -- ---- max, min -----------------------------------------------------------------------------------------

  --- x:max() → 0-d; x:max(dim, {keepdim=, index_base=}) → values, indices; x:max(y) → tensor
  -- The largest value of all or along a dimension, or of two tensors elementwise.
  --   print(T.tensor({ 3, 3 }):max():item(), (T.tensor({ { 1, 1 } }):max(2)))  --> 3.0	{1.}  -- f32[1] cpu

  --- x:min() → 0-d; x:min(dim, {keepdim=, index_base=}) → values, indices; x:min(y) → tensor
  -- The smallest value of all or along a dimension, or of two tensors elementwise.
  --   print(T.tensor({ 3, 3 }):min():item(), (T.tensor({ { 1, 1 } }):min(2)))  --> 3.0	{1.}  -- f32[1] cpu
  local function extreme(name, all, along, pair)
    define(name, options.named(name, function(x, dim, opts, more)
      check(name, x)
      if more ~= nil then fail("%s: too many arguments", name) end
      if is_tensor(dim) then return pair(x, dim, opts) end
      if type(opts) == "boolean" then opts = { keepdim = opts } end
      local d, o = dim_of(name, dim, opts, { "dim", "keepdim", "index_base" })
      if d == nil then
        if o.keepdim then
          fail("%s: keepdim goes with dim; of all elements it is x:a%s { keepdim = true }", name, name)
        end
        return all(x)
      end
      return along(x, d, { keepdim = o.keepdim, index_base = o.index_base })
    end))
  end
  extreme("max", op.max_all, op.max_dim, op.maximum)
  extreme("min", op.min_all, op.min_dim, op.minimum)

  -- x:median() → value; x:median(dim, {keepdim=}) → values, indices
  local median = op.median
  define("median", function(x, dim, ...)
    if dim == nil or (type(dim) == "table" and dim.dim == nil) then return (median(x, dim, ...)) end
    return median(x, dim, ...)
  end)

  -- x:repeat_interleave(repeats, dim?): so often each, a number; or as often as the counts of a tensor say
  local repeat_interleave = op.repeat_interleave
  define("repeat_interleave", function(x, repeats, ...)
    if type(repeats) == "table" and is_tensor(repeats.repeats) then
      local o = options.check("repeat_interleave", repeats, { "repeats", "dim" })
      return op.repeat_each(x, o.repeats, { dim = o.dim })
    end
    if is_tensor(repeats) then return op.repeat_each(x, repeats, ...) end
    return repeat_interleave(x, repeats, ...)
  end)

  -- ---- copies -----------------------------------------------------------------------------------------------------

  -- y, but never x's memory. Only what is named a view is one: T.view, reshape, permute, narrow, select, split,
  -- diagonal, expand and the like, contiguous and to where nothing changes. What computes, rearranges or resizes gives
  -- memory of its own, also where there is nothing to do.
  local function own(y, x)
    return y:shares_storage(x) and y:clone() or y
  end
  core.own = own

  local diag = op.diag
  define("diag", function(x, ...)
    local y = diag(x, ...)
    return own(y, x)
  end)

  -- ---- dtypes and devices -----------------------------------------------------------------------------------

  local dtypes = {
    float = "f32", double = "f64", half = "f16", bfloat16 = "bf16", char = "i8", short = "i16", int = "i32",
    long = "i64", byte = "u8", bool = "bool",
  }
  local cast, move = op.cast, core.device.move

  --- x:bfloat16() → tensor
  -- x as bf16; x itself if it is.
  --   print(T.ones(1):bfloat16():dtype())  --> bf16

  --- x:bool() → tensor
  -- x as bool; x itself if it is.
  --   print(T.ones(1):bool():dtype())  --> bool

  --- x:byte() → tensor
  -- x as u8; x itself if it is.
  --   print(T.ones(1):byte():dtype())  --> u8

  --- x:char() → tensor
  -- x as i8; x itself if it is.
  --   print(T.ones(1):char():dtype())  --> i8

  --- x:double() → tensor
  -- x as f64; x itself if it is.
  --   print(T.ones(1):double():dtype())  --> f64

  --- x:float() → tensor
  -- x as f32; x itself if it is.
  --   print(T.ones(1):float():dtype())  --> f32

  --- x:half() → tensor
  -- x as f16; x itself if it is.
  --   print(T.ones(1):half():dtype())  --> f16

  --- x:int() → tensor
  -- x as i32; x itself if it is.
  --   print(T.ones(1):int():dtype())  --> i32

  --- x:long() → tensor
  -- x as i64; x itself if it is.
  --   print(T.ones(1):long():dtype())  --> i64

  --- x:short() → tensor
  -- x as i16; x itself if it is.
  --   print(T.ones(1):short():dtype())  --> i16
  for name, dtype in pairs(dtypes) do
    define(name, function(x)
      check(name, x)
      if x:dtype() == dtype then return x end
      return cast(x, dtype)
    end)
  end

  --- x:contiguous(memory_format="contiguous") → x, or a copy
  -- x itself if it is contiguous (row-major, without gaps), else a contiguous copy; with "channels_last", of 5 dims
  -- "channels_last_3d", the same with the channels, dim 2, innermost.
  --   print(T.ones(2, 3):t():contiguous():is_contiguous())  --> true
  --   local x = T.zeros(2, 3, 4, 5):contiguous("channels_last")
  --   print(x:is_contiguous("channels_last"), x:stride(2))  --> true	1
  local to_layout, row_major = core.to_layout, op.contiguous
  define("contiguous", function(x, format)
    if format == nil then return row_major(x) end
    if type(format) == "table" then
      format = options.check("contiguous", format, { "memory_format" }).memory_format or "contiguous"
    end
    return to_layout(check("contiguous", x), format)
  end)

  --- x:to("f64"), x:to("cpu"), x:to(y), x:to{dtype=, device=, copy=, memory_format=, non_blocking=} → tensor
  -- Another dtype or device (or y's), another memory format ("channels_last", "channels_last_3d", "contiguous"); the
  -- same object if nothing changes. non_blocking: a copy from pinned memory to a GPU runs beside its work; one to the
  -- CPU is right once the GPU has been waited for (T.cuda.synchronize).
  --   print(T.ones(1):to("f64"):dtype())  --> f64
  define("to", function(x, what, opts)
    check("to", x)
    local dtype, copy, device, format
    if is_tensor(what) then
      dtype, device = what:dtype(), what:device()
    elseif type(what) == "table" then
      if opts ~= nil then fail("to: too many arguments behind a table of options") end
      opts = options.check("to", what, { "dtype", "device", "copy", "memory_format", "non_blocking" })
      dtype, copy, device, format = opts.dtype, opts.copy, opts.device, opts.memory_format
    elseif type(what) == "string" and (what == "cpu" or what:match("^cuda")) then
      device = what
    elseif type(what) == "string" then
      dtype = what
    else
      fail("to: a dtype, a device or a tensor expected, got %s", type(what))
    end
    if opts and opts ~= what then
      opts = options.check("to", opts, { "copy", "memory_format", "non_blocking" })
      copy, format = opts.copy, opts.memory_format
    end
    local y = x
    if dtype ~= nil and cast ~= nil then
      y = cast(x, dtype)
      if y:dtype() == x:dtype() then y = x end -- the cast made an alias
    end
    if device ~= nil then y = move(y, device, opts and opts.non_blocking) end
    if format ~= nil and format ~= "preserve" then y = to_layout(y, format, true) end
    return copy and rawequal(y, x) and x:clone() or y
  end)
  -- T.can_cast(from, to): whether values of one dtype may go into another without a change of kind: not from floats
  -- to integers, nor from numbers to bool
  local rank = { bool = 0, i8 = 1, i16 = 1, i32 = 1, i64 = 1, u8 = 1, f16 = 2, bf16 = 2, f32 = 2, f64 = 2 }

  --- T.can_cast(from, to) → boolean
  -- Whether no kind is lost: not from floats to integers, nor to bool.
  --   print(T.can_cast("f32", "i64"), T.can_cast("i64", "f16"))  --> false	true
  T.can_cast = function(from, to)
    for _, d in ipairs { from or false, to or false } do
      if not rank[dtypes[d] or d] then fail("can_cast: a dtype is wanted, got %s", options.describe(d)) end
    end
    return rank[dtypes[from] or from] <= rank[dtypes[to] or to]
  end

  --- x:type_as(y) → tensor
  -- x as y's dtype.
  --   print(T.ones(1):type_as(T.arange(1)):dtype())  --> i64
  define("type_as", function(x, y) return check("type_as", x):to(check("type_as", y, 2)) end)

  --- x:cpu() → x
  -- On the processor; x itself if it is there.
  --   print(T.ones(1):cpu())  --> {1.}  -- f32[1] cpu
  define("cpu", function(x)
    check("cpu", x):device() -- refuses a freed one
    return move(x, "cpu")
  end)
  -- x:cuda(index, {non_blocking=})
  function methods.cuda(x, index, opts)
    check("cuda", x)
    if type(index) == "table" then index, opts = nil, index end
    local later = opts ~= nil and options.check("cuda", opts, { "non_blocking" }).non_blocking
    return move(x, index and "cuda:" .. tostring(index) or "cuda", later)
  end

  --- x:pin_memory() → tensor
  -- A copy in memory that GPUs copy from and to by themselves; x itself if it is there. For x:to("cuda", {non_blocking
  -- = true}).
  --   if T.cuda.is_available() then
  --     print(T.ones(2):pin_memory():is_pinned())
  --   end
  define("pin_memory", function(x) return core.device.pin(check("pin_memory", x)) end)

  --- x:is_pinned() → boolean
  -- Whether x is in pinned memory: see x:pin_memory().
  --   print(T.ones(2):is_pinned())  --> false
  define("is_pinned", function(x) return core.device.is_pinned(check("is_pinned", x)) end)

  -- ---- splitting ------------------------------------------------------------------------------------------------

  --- x:split(size or {sizes}, dim = 1) → list of views
  -- Pieces of a size, the last may be smaller.
  --   print(#T.arange(5):split(2), T.arange(5):split({ 1, 4 })[1])  --> 3	{1}  -- i64[1] cpu
  define("split", function(x, sizes, dim)
    check("split", x)
    if type(dim) == "table" then dim = options.check("split", dim, { "dim" }).dim end
    dim = dim or 1
    local n, out, at = x:size(dim), {}, 1
    if type(sizes) == "table" then
      options.list("split", "sizes", sizes, "integers")
      local total = 0
      for i, s in ipairs(sizes) do
        if type(s) ~= "number" then fail("split: size %d must be an integer >= 0, got %s", i, tostring(s)) end
        total = total + s
      end
      if total ~= n then
        fail("split: sizes add up to %s, dimension %d of %s has %d", tostring(total), dim, x:describe(), n)
      end
      for i, s in ipairs(sizes) do
        if math.type(s) ~= "integer" or s < 0 then
          fail("split: size %d must be an integer >= 0, got %s", i, tostring(s))
        end
        out[i] = op.slice(x, dim, at <= n and at or 1, s)
        at = at + s
      end
      return out
    end
    local size = sizes
    if math.type(size) ~= "integer" or size < 0 or (size == 0 and n > 0) then
      fail("split: size must be a positive integer or a list of integers, got %s", tostring(sizes))
    end
    if n == 0 then return { op.slice(x, dim, 1, 0) } end
    while at <= n do
      out[#out + 1] = op.slice(x, dim, at, math.min(size, n - at + 1))
      at = at + size
    end
    return out
  end)

  --- x:chunk(n, dim = 1) → list of views
  -- At most n pieces of equal size, the last may be smaller.
  --   print(T.arange(5):chunk(2)[2])  --> {4, 5}  -- i64[2] cpu
  define("chunk", function(x, n, dim)
    check("chunk", x)
    if type(dim) == "table" then dim = options.check("chunk", dim, { "dim" }).dim end
    dim = dim or 1
    if math.type(n) ~= "integer" or n < 1 then
      fail("chunk: the number of chunks must be a positive integer, got %s", tostring(n))
    end
    local size = x:size(dim)
    local each = size == 0 and 0 or (size - 1) // n + 1
    if each == 0 then
      if n > 1000000 then fail("chunk: %d empty chunks of %s are too many", n, x:describe()) end
      local out = {}
      for i = 1, n do out[i] = op.slice(x, dim, 1, 0) end
      return out
    end
    return x:split(each, dim)
  end)

  --- x:unbind(dim = 1) → list of views
  -- x[1], x[2], … along a dimension.
  --   print(T.eye(2):unbind()[2])  --> {0., 1.}  -- f32[2] cpu
  define("unbind", function(x, dim)
    check("unbind", x)
    if type(dim) == "table" then dim = options.check("unbind", dim, { "dim" }).dim end
    dim = dim or 1
    local out = {}
    for i = 1, x:size(dim) do out[i] = op.select(x, dim, i) end
    return out
  end)

  -- ---- shapes -----------------------------------------------------------------------------------------------------

  --- x:view_as(y) → view
  -- x with y's shape, sharing memory.
  --   print(T.arange(4):view_as(T.eye(2)):size(2))  --> 2
  define("view_as", function(x, y) return op.view(check("view_as", x), check("view_as", y, 2):shape()) end)

  --- x:reshape_as(y) → tensor
  -- x with y's shape, a copy only where a view is not possible.
  --   print(T.arange(4):reshape_as(T.eye(2)):size(2))  --> 2
  define("reshape_as", function(x, y) return op.reshape(check("reshape_as", x), check("reshape_as", y, 2):shape()) end)

  --- T.concat({x, …}, dim = 1) → tensor
  -- Another name of T.cat.
  --   print(T.concat { T.ones(1), T.zeros(1) })  --> {1., 0.}  -- f32[2] cpu
  T.concat = T.cat

  -- ---- composites --------------------------------------------------------------------------------------------------

  -- x:add(y, {alpha = a}) = x + a·y
  for _, name in ipairs { "add", "sub" } do
    local plain, inplace = op[name], core[name .. "_"]
    local sign = name == "add" and 1 or -1
    local function form(who, raw, scaled, ...)
      local names = { "alpha", ... }
      return function(x, y, opts, ...)
        if select("#", ...) > 0 then too_many(name, { "x", "other", "options" }, x, y, opts, ...) end
        if opts == nil then return raw(x, y) end
        local o = options.check(who, type(opts) == "number" and { alpha = opts } or opts, names)
        if o.alpha ~= nil and type(o.alpha) ~= "number" then
          fail("%s: alpha must be a number, got %s", name, options.describe(o.alpha))
        end
        if math.type(o.alpha) == "float" and is_tensor(x) and not x:is_floating_point()
          and not (is_tensor(y) and y:is_floating_point()) then
          fail("%s: alpha is %s, but the operands are integers; give an integer", name, tostring(o.alpha))
        end
        if type(o.alpha) == "number" and is_tensor(x) and is_tensor(y) and x:is_floating_point()
          and x:dtype() == y:dtype() then -- in one pass
          return scaled(x, y, { alpha = sign * o.alpha, out = o.out })
        end
        if type(o.alpha) == "number" and type(x) == "number" and is_tensor(y) and y:is_floating_point() then
          return scaled(x, y, { alpha = sign * o.alpha, out = o.out }) -- rounded once
        end
        if o.alpha ~= nil then -- a number stays one: a tensor of it would have a dtype, with fewer digits
          y = (type(y) == "number" or is_tensor(y)) and y * o.alpha or T.tensor(y, { device = "cpu" }) * o.alpha
        end
        return raw(x, y, { out = o.out })
      end
    end
    -- the plain forms stay the engine's closures, as do the operators: they count what stands behind a nil themselves
    local with_alpha = form(name, plain, op.add_scaled, "out")
    define(name, function(x, y, opts, ...)
      if opts == nil and (...) == nil then return plain(x, y, ...) end
      return with_alpha(x, y, opts, ...)
    end)
    local with_alpha_ = form(name .. "_", inplace, core.add_scaled_)
    define(name .. "_", function(x, y, opts, ...)
      if opts == nil and (...) == nil then return inplace(x, y, ...) end
      return with_alpha_(x, y, opts, ...)
    end)
  end

  -- x:div(y, {rounding_mode = "floor" | "trunc"})
  for _, name in ipairs { "div", "div_" } do
    local plain, floor, trunc = core[name], core[(name:gsub("div", "floor_divide"))],
      core[(name:gsub("div", "trunc_divide"))]
    define(name, function(x, y, opts, ...)
      if opts == nil and (...) == nil then return plain(x, y, ...) end
      if type(opts) ~= "table" or opts.rounding_mode == nil then return plain(x, y, opts, ...) end
      if select("#", ...) > 0 then too_many(name, { "x", "other", "options" }, x, y, opts, ...) end
      local o = options.check(name, opts, { "rounding_mode", name == "div" and "out" or nil })
      local how = o.rounding_mode == "floor" and floor or o.rounding_mode == "trunc" and trunc
      if not how then
        fail("%s: %s", name, options.unknown("rounding_mode", o.rounding_mode, { "floor", "trunc" }))
      end
      if o.out ~= nil then return how(x, y, { out = o.out }) end
      return how(x, y)
    end)
  end

  if op.clamp_tensor then
    local plain = T.clamp
    define("clamp", function(x, lo, hi, opts, ...)
      if select("#", ...) > 0 or (opts ~= nil and type(opts) ~= "table") then fail("clamp: too many arguments") end
      if type(lo) == "table" and not is_tensor(lo) then
        if hi ~= nil then fail("clamp: too many arguments after the options") end
        local o = options.check("clamp", lo, { "min", "max", "out" })
        lo, hi, opts = o.min, o.max, o.out and { out = o.out }
      end
      if is_tensor(lo) or is_tensor(hi) then return op.clamp_tensor(x, lo, hi, opts) end
      return plain(x, lo, hi, opts)
    end)
  end

  -- cross_entropy(logits, target, {weight=, ignore_index=, reduction=, label_smoothing=}): class targets (integers) or
  -- class probabilities (floating, same shape as the logits)
  if op.cross_entropy_prob then
    local by_index, by_prob = op.cross_entropy, op.cross_entropy_prob
    define("cross_entropy", function(x, target, ...)
      -- floating numbers, one a row, are classes of the wrong dtype, not probabilities
      local floating = is_tensor(target) and not core.is_freed(target) and target:is_floating_point()
      if floating and not (is_tensor(x) and not core.is_freed(x) and target:dim() == x:dim() - 1) then
        local n = select("#", ...)
        local o = n > 0 and select(n, ...) or nil
        if type(o) ~= "table" or o.index_base == nil then return by_prob(x, target, ...) end
        local args, rest = table.pack(...), {} -- a probability has no number to count from
        for k, v in pairs(o) do if k ~= "index_base" then rest[k] = v end end
        args[n] = rest
        return by_prob(x, target, table.unpack(args, 1, n))
      end
      return by_index(x, target, ...)
    end)
  end

  -- `..` joins text
  core.metatable().__concat = function(a, b) return tostring(a) .. tostring(b) end
end
