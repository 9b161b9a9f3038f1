-- Making tensors: zeros, ones, full, empty, arange, rand … and their _like forms. Shapes are given as numbers or
-- as a list; the last argument may be a table of options {dtype=, requires_grad=, device=}.
local options = require "perilune.options"

return function(T, core)
  local op = core.op
  local too_many = require("perilune.surface").too_many
  local plain, random = "dtype requires_grad device", "dtype requires_grad device generator"
  local drawn = { rand = true, randn = true, uniform = true, normal = true, randint = true }

  -- (fn, ...) → shape list, options table, further positional values before the shape taken off by the caller
  local function shape_and_options(fn, ...)
    local n = select("#", ...)
    local last
    if n > 0 then last = (select(n, ...)) end
    while last == nil and n > 1 do -- no options, written out
      n = n - 1
      last = (select(n, ...))
    end
    local opts = {}
    if type(last) == "table" and (n > 1 or #last == 0 and next(last) ~= nil) then
      opts, n = last, n - 1
      local allowed = drawn[fn] and random or plain
      for key, v in pairs(opts) do
        options.switch(fn, key, v)
        if not (" " .. allowed .. " "):find(" " .. tostring(key) .. " ", 1, true) then
          options.fail("%s: unknown option '%s'%s; allowed: %s", fn, tostring(key),
            core.did_you_mean(tostring(key), allowed), allowed)
        end
      end
    end
    local first = ...
    local shape
    if n == 1 and type(first) == "table" then
      shape = first
      local key = options.stray(shape)
      if key ~= nil then
        options.fail("%s: the sizes are a list; it has the key %s (options stand in a table behind it)", fn,
          options.describe(key))
      end
    else
      shape = table.pack(...)
      for i = n + 1, shape.n do shape[i] = nil end
      shape.n = nil
    end
    for i = 1, math.max(#shape, n == 1 and type(first) == "table" and 0 or n) do
      local d = shape[i]
      if math.type(d) ~= "integer" and not (type(d) == "number" and d == math.floor(d) and d - d == 0) then
        options.fail("%s: size %d must be an integer, got %s%s", fn, i,
          type(d) == "number" and tostring(d) or core.is_tensor(d) and "a tensor" or type(d),
          type(d) == "string" and ("; dtype and device go into a table at the end: T.%s(…, { %s = %q })"):format(fn,
            (d:find "^cpu" or d:find "^cuda") and "device" or "dtype", d) or "")
      end
    end
    return shape, opts
  end

  -- f(…), made on the device and drawn from the generator that the options name
  local on
  function on(opts, f, ...)
    if opts.generator ~= nil then
      local g = opts.generator
      if getmetatable(g) ~= T.Generator then
        options.fail("generator must be made by T.Generator, got %s", options.describe(g))
      end
      return g:run(on, { device = opts.device }, f, ...)
    end
    if opts.device == nil then return f(...) end
    return core.device.with(opts.device, f, ...)
  end

  -- Ops that make tensors: options that are the op's go to it, the others are read here.
  local function placed(name, ...)
    local raw, own = T[name], {}
    for _, key in ipairs { ... } do own[key] = true end
    T[name] = function(...)
      local n = select("#", ...)
      local last = n > 0 and (select(n, ...)) or nil
      local ours = false
      if type(last) == "table" then for key in pairs(own) do ours = ours or last[key] ~= nil end end
      if not ours then return raw(...) end
      local args, rest = table.pack(...), {}
      for key, v in pairs(last) do if not own[key] then rest[key] = v end end
      args[n] = rest
      if next(rest) == nil then n = n - 1 end
      options.switch(name, "requires_grad", last.requires_grad)
      local t = on(last, raw, table.unpack(args, 1, n))
      if last.requires_grad then t:requires_grad_() end
      return t
    end
    if core.metatable().methods[name] then core.metatable().methods[name] = T[name] end
  end
  for _, name in ipairs { "eye", "linspace", "logspace" } do placed(name, "device", "requires_grad") end
  placed("randperm", "device", "generator")
  placed("bernoulli", "generator")
  placed("multinomial", "generator")

  -- What the op inside refuses, memory above all, is said in the name that was called.
  local function as(name, ...) return options.renamed(name, pcall(on, ...)) end

  local function finish(t, opts)
    if opts.requires_grad then t:requires_grad_() end
    return t
  end

  --- T.ones(2, 3) or T.ones({2, 3}, {dtype=, device=, requires_grad=false}) → tensor
  -- Ones, of the default float unless dtype is given.
  --   print(T.ones(2))  --> {1., 1.}  -- f32[2] cpu

  --- T.zeros(2, 3) or T.zeros({2, 3}, {dtype=, device=, requires_grad=false}) → tensor
  -- Zeros, of the default float unless dtype is given.
  --   print(T.zeros(2, 2))
  --   --> {{0., 0.},
  --   -->  {0., 0.}}  -- f32[2,2] cpu
  for name, raw in pairs { zeros = op.zeros, ones = op.ones } do
    T[name] = function(...)
      local shape, opts = shape_and_options(name, ...)
      return finish(on(opts, raw, shape, { dtype = opts.dtype }), opts)
    end
  end

  --- T.empty(2, 3) or T.empty({2, 3}, {dtype=, device=, requires_grad=false}) → tensor
  -- Memory that was not set; here it holds zeros, so nothing leaks through it.
  --   print(T.empty(2, 3):numel())  --> 6
  T.empty = function(...)
    local shape, opts = shape_and_options("empty", ...)
    return finish(as("empty", opts, op.zeros, shape, { dtype = opts.dtype }), opts)
  end

  --- T.full(shape, value, {dtype=, device=, requires_grad=false}) → tensor
  -- value everywhere. dtype follows it where none is given: integer → i64, boolean → bool, float → the default float.
  --   print(T.full({ 2 }, 7))  --> {7, 7}  -- i64[2] cpu
  T.full = function(shape, value, opts, ...)
    if select("#", ...) > 0 or (opts ~= nil and type(opts) ~= "table") then
      options.fail("full: too many arguments%s", type(shape) == "number"
        and "; the sizes are one table: T.full({ 2, 3 }, value)" or "")
    end
    if shape == nil then options.fail("full: argument shape is missing") end
    local list, o = shape_and_options("full", type(shape) == "table" and shape or { shape }, opts or {})
    if type(value) ~= "number" and type(value) ~= "boolean" then
      options.fail("full: the value must be a number or a boolean, got %s", type(value))
    end
    local dtype = o.dtype or (math.type(value) == "integer" and "i64") or (type(value) == "boolean" and "bool") or nil
    if dtype then core.check_fits("full", value, dtype) end
    return finish(on(o, op.full, list, value, { dtype = dtype }), o)
  end

  -- How many steps from a do not go beyond b, at most 2^40; -1: none, not even of length 0. b - a may be beyond i64.
  local function steps_within(a, b, step)
    if step < 0 and b > a or step > 0 and b < a then return -1 end
    local far = step > 0 and b - a or a - b -- read without a sign
    if step == math.mininteger then return far < 0 and 1 or 0 end
    step = math.abs(step)
    if far >= 0 then return far // step end
    local half = (far >> 1) // step << 1
    local rest = far - half * step
    return math.ult(rest, step) and half or half + 1
  end

  -- T.arange(n) = 1 … n; T.arange(a, b, step): inclusive. i64 if all are integers, else the default float.
  --- T.arange(n), T.arange(a, b, step, {dtype=, device=, requires_grad=false}) → tensor
  -- 1 … n, or a … b, both included. i64 if all are integers.
  --   print(T.arange(2, 8, 3))  --> {2, 5, 8}  -- i64[3] cpu
  T.arange = function(a, b, step, opts)
    if type(b) == "table" then b, opts = nil, b elseif type(step) == "table" then step, opts = nil, step end
    if b == nil then a, b = 1, a end
    step = step or 1
    for i, v in ipairs { a or false, b or false, step } do
      if type(v) ~= "number" or v ~= v or v - v ~= 0 then
        options.fail("arange: argument #%d must be a finite number, got %s", i, tostring(v or nil))
      end
    end
    if step == 0 then options.fail("arange: step is 0") end
    local _, o = shape_and_options("arange", {}, opts or {})
    local integral = math.type(a) == "integer" and math.type(b) == "integer" and math.type(step) == "integer"
    local n = (b + 0.0 - a) / step + 1
    -- of integers the steps are counted exactly, of others one that rounding has made a little too large counts
    if n <= 2 ^ 40 then n = integral and steps_within(a, b, step) + 1 or math.floor(n + 1e-9) end
    n = math.max(0, n)
    if n > 2 ^ 40 then options.fail("arange: %s elements are too many", tostring(n)) end
    n = math.tointeger(n)
    local dtype = o.dtype or (integral and "i64") or T.default_dtype()
    core.check_fits("arange", a, dtype, true) -- PyTorch cuts off the fractions of both first: another line of numbers
    core.check_fits("arange", step, dtype, true)
    return finish(as("arange", o, op.linear_fill, n, a, step, { dtype = dtype }), o)
  end

  --- T.rand(2, 3) or T.rand({2, 3}, {dtype=, device=, requires_grad=false, generator=}) → tensor
  -- Uniform in [0, 1).
  --   print(T.rand(4):ge(0):all():item())  --> true
  T.rand = function(...)
    local shape, opts = shape_and_options("rand", ...)
    return finish(as("rand", opts, op.uniform, 0, 1, shape, { dtype = opts.dtype }), opts)
  end

  --- T.randn(2, 3) or T.randn({2, 3}, {dtype=, device=, requires_grad=false, generator=}) → tensor
  -- Standard normal.
  --   print(T.randn(4, { dtype = "f64" }):dtype())  --> f64
  T.randn = function(...)
    local shape, opts = shape_and_options("randn", ...)
    return finish(as("randn", opts, op.normal, 0, 1, shape, { dtype = opts.dtype }), opts)
  end
  --- T.uniform(low, high, shape, {dtype=, device=, requires_grad=false, generator=}) → tensor
  -- Uniform in [low, high).
  --   print(T.uniform(2, 3, { 9 }):ge(2):all():item())  --> true
  T.uniform = function(lo, hi, ...)
    local shape, opts = shape_and_options("uniform", ...)
    return finish(on(opts, op.uniform, lo, hi, shape, { dtype = opts.dtype }), opts)
  end

  --- T.normal(mean, std, shape, {dtype=, device=, requires_grad=false, generator=}) → tensor
  -- Normally distributed numbers. Of tensors mean or std, T.normal(mean, std, {generator=}): one for each pair of them.
  --   print(T.normal(5, 0, { 2 }))  --> {5., 5.}  -- f32[2] cpu
  T.normal = function(mean, std, ...)
    if core.is_tensor(mean) or core.is_tensor(std) then -- one draw for each pair of them
      local o = options.check("normal", (...), { "generator" })
      if select("#", ...) > 1 then too_many("normal", { "mean", "std", "options" }, mean, std, ...) end
      for what, v in pairs { mean = mean, std = std } do
        if not (core.is_tensor(v) and v:is_floating_point()) and type(v) ~= "number" then
          options.fail("normal: %s must be a number or a floating tensor, got %s", what, options.describe(v))
        end
      end
      if mean == nil or std == nil then options.fail("normal: mean and std are wanted") end
      local function negative(t) return t:lt(0) end
      if core.is_tensor(std) and require "perilune.values".some(std, negative)
        or type(std) == "number" and not (std >= 0) then -- luacheck: ignore 581
        options.fail("normal: std must be >= 0")
      end
      local both = T.no_grad(function() return mean + std end)
      return mean + std * on(o, op.normal, 0, 1, both:shape(), { dtype = both:dtype() }):to(both:device())
    end
    local shape, opts = shape_and_options("normal", ...)
    return finish(on(opts, op.normal, mean, std, shape, { dtype = opts.dtype }), opts)
  end

  --- T.randint(low, high, shape, {dtype=, device=, requires_grad=false, generator=}) → tensor
  -- Integers low … high, both included; T.randint(high, shape) starts at 1. i64 unless dtype is given.
  --   local x = T.randint(1, 6, { 100 })
  --   print(x:min():item() >= 1, x:max():item() <= 6, x:dtype())  --> true	true	i64
  T.randint = function(a, b, ...)
    if type(b) == "table" or b == nil then return T.randint(1, a, b or {}, ...) end
    if math.type(a) ~= "integer" or math.type(b) ~= "integer" or a > b then
      options.fail("randint: bounds must be integers a <= b, got %s and %s", tostring(a), tostring(b))
    end
    local shape, opts = shape_and_options("randint", ...)
    if opts.dtype ~= nil then
      core.check_fits("randint", a, opts.dtype)
      core.check_fits("randint", b, opts.dtype)
    end
    return finish(on(opts, op.randint, a, b, shape, { dtype = opts.dtype }), opts)
  end

  -- x:zeros_like(), ones_like, full_like(v), empty_like, rand_like, randn_like: same shape; dtype, device and memory
  -- format, too, unless given.
  local like_options = { "dtype", "requires_grad", "device", "memory_format" }

  --- T.empty_like(x, {dtype=, device=, memory_format=, requires_grad=false}) → tensor
  -- As T.empty, of x's shape and dtype.
  --   print(T.empty_like(T.ones(2, 3)):numel())  --> 6

  --- T.full_like(x, value, {dtype=, device=, memory_format=, requires_grad=false}) → tensor
  -- value everywhere, of x's shape and dtype.
  --   print(T.full_like(T.ones(2), 7))  --> {7., 7.}  -- f32[2] cpu

  --- T.ones_like(x, {dtype=, device=, memory_format=, requires_grad=false}) → tensor
  -- Ones of x's shape and dtype.
  --   print(T.ones_like(T.zeros(2)))  --> {1., 1.}  -- f32[2] cpu

  --- T.rand_like(x, {dtype=, device=, memory_format=, requires_grad=false, generator=}) → tensor
  -- Uniform in [0, 1), of x's shape and dtype.
  --   print(T.rand_like(T.ones(2)):lt(1):all():item())  --> true

  --- T.randn_like(x, {dtype=, device=, memory_format=, requires_grad=false, generator=}) → tensor
  -- Standard normal, of x's shape and dtype.
  --   print(T.randn_like(T.ones(2)):dtype())  --> f32

  --- T.zeros_like(x, {dtype=, device=, memory_format=, requires_grad=false}) → tensor
  -- Zeros of x's shape and dtype.
  --   print(T.zeros_like(T.ones(2)))  --> {0., 0.}  -- f32[2] cpu
  local function like(name, make, valued)
    local names = valued and { "x", "value", "options" } or { "x", "options" }
    local allowed = { table.unpack(like_options) }
    if name:find "^rand" then allowed[#allowed + 1] = "generator" end
    T[name] = function(x, ...)
      if not core.is_tensor(x) then options.fail("%s: a tensor expected, got %s", name, options.describe(x)) end
      if select("#", ...) >= #names then too_many(name, names, x, ...) end
      local v, opts = ...
      if not valued then v, opts = nil, v end
      if valued and type(v) ~= "number" and type(v) ~= "boolean" then
        options.fail("%s: the value must be a number or a boolean, got %s", name, options.describe(v))
      end
      opts = options.check(name, opts, allowed)
      if valued then core.check_fits(name, v, opts.dtype or x:dtype(), not opts.dtype) end
      local device = opts.device or x:device()
      if device == core.device.default() then device = nil end
      local format = opts.memory_format
      local preserve = format == nil or format == "preserve"
      if preserve then format = (device or x:device()) ~= "cpu" and core.layout_of(x) or nil end
      local after = opts.requires_grad -- a leaf is what comes out in the end
      local t = options.renamed(name, pcall(make, x, { dtype = opts.dtype or x:dtype(), device = device,
        generator = opts.generator }, v))
      if format then
        t = core.to_layout(t, format, true)
      elseif preserve then
        t = core.lie_as(t, x, not name:find "^rand")
      end
      if after then t:requires_grad_() end
      return core.is_batched(x) and core.batch_like(x, t) or t -- inside vmap: one for each element
    end
    core.metatable().methods[name] = T[name]
  end
  like("zeros_like", function(x, o) return T.zeros(x:shape(), o) end)
  like("ones_like", function(x, o) return T.ones(x:shape(), o) end)
  like("empty_like", function(x, o) return T.empty(x:shape(), o) end)
  like("full_like", function(x, o, v) return T.full(x:shape(), v, o) end, true)
  like("rand_like", function(x, o) return T.rand(x:shape(), o) end)
  like("randn_like", function(x, o) return T.randn(x:shape(), o) end)
end
