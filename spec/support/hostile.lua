-- SPDX-License-Identifier: MIT
-- Hostile calls. `op` applies ops of the registry, internal ones too, inside of a graph, which is how a saved graph
-- names them: real calls, taken from graphs of the rows of spec/ops/cases with their gradients of two orders, and
-- then changed here and there. `program` calls functions below the module, and methods, with anything. Nothing may
-- reach a kernel that the op's rule did not check: sanitizers and the operating system judge.

local T = require "perilune"
local random = require "spec.support.random"
local support = require "spec.ops.support"
local cases = require "spec.ops.cases"

local M = {}
local core = T.core

local DTYPES = { "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool" }
local NAN, HUGE = 0 / 0, math.huge
local INTS = { 0, 1, 2, 3, 5, 7, 8, 16, 17, 63, 255, 256, 4097, -1, -2, -3, -100, 1 << 15, 1 << 31, (1 << 31) - 1,
  1 << 32, 1 << 40, -(1 << 31), -(1 << 33),
  1 << 62, math.maxinteger, math.maxinteger - 1, math.mininteger, math.mininteger + 1 }
local FLOATS = { 0.0, -0.0, 0.5, -1.5, 2.0, NAN, HUGE, -HUGE, 1e300, -1e300, 1e-300, 3.5, 2.0 ^ 63, -2.0 ^ 63 }
M.INTS, M.FLOATS, M.DTYPES = INTS, FLOATS, DTYPES

local function pick(g, list) return list[g:int(1, #list)] end
local function chance(g, p) return g:number(0, 1) < p end
M.pick, M.chance = pick, chance

-- ---- tensors ------------------------------------------------------------------------------------------------

local SIZES = { 0, 1, 1, 2, 3, 4, 5, 7, 8, 17 }

local function random_shape(g)
  local s = {}
  for d = 1, g:int(0, chance(g, 0.05) and 16 or 4) do s[d] = chance(g, 0.05) and #s > 4 and 1 or pick(g, SIZES) end
  if #s > 6 then for d = 1, #s do s[d] = 1 + (d % 7 == 0 and 1 or 0) end end
  return s
end

-- Values that are not all alike; integers small enough to be positions now and then, else anything.
local device = os.getenv "PERILUNE_HOSTILE_DEVICE"
local function fill(g, shape, dtype)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  local list, small, top = {}, chance(g, 0.7), g:int(1, 6)
  for i = 1, n do
    if dtype == "bool" then
      list[i] = chance(g, 0.1) and pick(g, { 2, 3, 255 }) or g:int(0, 1)
    elseif dtype:match "^[iu]" then
      list[i] = small and g:int(chance(g, 0.05) and -1 or 0, top) or pick(g, INTS)
    else
      list[i] = chance(g, 0.03) and pick(g, FLOATS) or g:number(-2, 2)
    end
  end
  local wide = (dtype == "f16" or dtype == "bf16") and "f32" or dtype
  if wide:match "^[iu]" then
    local bits = tonumber(wide:match "%d+")
    if bits < 64 then
      for i = 1, n do
        list[i] = list[i] & ((1 << bits) - 1)
        if wide:sub(1, 1) == "i" and list[i] >> (bits - 1) == 1 then list[i] = list[i] - (1 << bits) end
      end
    end
  end
  local t = random.tensor(T, list, shape, wide)
  if wide ~= dtype then t = t:to(dtype) end
  return device and t:to(device) or t
end

local function laid_out(g, t)
  local k = pick(g, random.LAYOUTS)
  local ok, other = pcall(random.layout, T, t, k)
  return ok and other or t
end

function M.tensor(g, shape, dtype)
  local t = fill(g, shape or random_shape(g), dtype or pick(g, DTYPES))
  return chance(g, 0.5) and laid_out(g, t) or t
end

-- ---- templates: real calls ------------------------------------------------------------------------------------

-- The nodes of a row's graph: {op=, attrs=, inputs={{shape=, dtype=} or false}}.
local function nodes_of(name, args, into)
  local graph = T.graph()
  local n, leaves = 0, {}
  local made = support.map(args, function(t)
    if not T.is_tensor(t) or t:dim() > 12 then return t end
    n = n + 1
    local x = graph:input("x" .. n, t:shape(), { dtype = t:dtype() })
    if t:is_floating_point() then leaves[#leaves + 1] = x end
    return x
  end)
  local ys = {}
  graph:trace(function()
    local got = table.pack(support.raw(name)(table.unpack(made, 1, made.n)))
    for i = 1, got.n do
      if T.is_tensor(got[i]) then ys[#ys + 1] = got[i] end
    end
  end)
  if #ys == 0 and T.is_tensor(made[1]) then ys[1] = made[1] end
  if #ys > 0 and #leaves > 0 then
    local floats = {}
    for _, y in ipairs(ys) do if y:is_floating_point() then floats[#floats + 1] = y end end
    local ok, first = pcall(graph.gradient, graph, floats, leaves, { allow_unused = true })
    if ok then
      local again = {}
      for _, d in pairs(first) do if d then again[#again + 1] = d * d end end
      for _, d in ipairs(again) do pcall(graph.gradient, graph, { d }, leaves, { allow_unused = true }) end
    end
  end
  local values = {}
  for _, leaf in ipairs(core.graph_leaves(graph.ir)) do
    values[leaf.value] = { shape = leaf.shape, dtype = leaf.dtype }
  end
  for _, node in ipairs(graph:nodes()) do
    for i, v in ipairs(node.outputs) do
      if node.shapes[i] then values[v] = { shape = node.shapes[i], dtype = node.dtypes[i] } end
    end
    local inputs = {}
    for i, v in ipairs(node.inputs) do inputs[i] = v and values[v] or false end
    into(node.op, { op = node.op, attrs = node.attrs, inputs = inputs })
  end
end

-- Ops that no graph of the rows names, or only there where shapes are open: {inputs, attributes}.
local WRITTEN = {
  attention_bwd = { { "f16[2,5,2]", "f16[2,5,3]", "f16[2,4,3]", "f16[2,4,2]", "f32[2,5,2]", "-", "-", "f16[2,5,2]" },
    { dropout_p = 0.0, is_causal = false, scale = 0.5 } },
  dim_pick = { { "f64[3,4]", "i64[3]" }, { base = 0, dim = 1, shape = { 3 } } },
  gather_wrapping = { { "f64[3,4]", "i64[2,4]" }, { dim = 1, index_base = 1 } },
  conv_tail = { { "f32[2,4,5,5]", "f32[3,4,2,2]", "f32[3]", "f32[2,3,4,4]" }, { relu = true } },
  masked_select_bwd = { { "f64[5]", "bool[3,4]" }, { shape = { 3, 4 } } },
  recurrent_bwd = { { "f64[4,2,5]", "f64[6]", "f64[30]", "f64[4,2,3]", "u8[9]", "f64[4,2,3]", "f64[6]", "i64[2]" },
    { mode = "relu", hidden = 3 } },
  repeat_each_bwd = { { "f64[5,4]", "i64[2]" }, { dim = 0, shape = { 2, 4 } } },
  shape_of = { { "f64[3,4]" }, {} },
  slices_bwd = { { "f64[2,3]", "f64[2,1]" }, { dim = 1 } },
  stop_grad = { { "f64[3,4]" }, {} },
  strided_put = { { "f64[4,5]", "f64[2,3]" }, { size = { 2, 3 }, stride = { 5, 1 }, offset = 1 } },
  to_layout = { { "f64[2,3,4,5]" }, { memory_format = "channels_last" } },
}

--- "f32[2,3]" → {dtype=, shape=}, "-" → false
function M.input(text)
  local dtype, sizes = text:match "^(%w+)%[(.*)%]$"
  local shape = {}
  for n in (sizes or ""):gmatch "%d+" do shape[#shape + 1] = math.tointeger(n) end
  return dtype and { dtype = dtype, shape = shape } or false
end

--- The calls of ops in the graphs of all rows: {op → up to `most` of {op=, attrs=, inputs=}}; with `gradients` also of
--- the rows for gradients.
function M.real_calls(most, gradients)
  local by_op, seen = {}, {}
  local function into(op, t)
    local key = { op }
    for _, x in ipairs(t.inputs) do key[#key + 1] = x and x.dtype .. table.concat(x.shape, ",") or "-" end
    for k, v in pairs(t.attrs) do key[#key + 1] = k .. (type(v) == "table" and table.concat(v, ",") or tostring(v)) end
    key = table.concat(key, " ")
    by_op[op] = by_op[op] or {}
    if seen[key] or #by_op[op] >= most then return end
    seen[key] = true
    table.insert(by_op[op], t)
  end
  for _, info in ipairs(support.public()) do
    if cases[info.name] then
      for _, args in ipairs(support.arguments(info.name, gradients)) do pcall(nodes_of, info.name, args, into) end
    end
  end
  for op, call in pairs(WRITTEN) do
    local inputs = {}
    for i, text in ipairs(call[1]) do inputs[i] = M.input(text) end
    by_op[op] = by_op[op] or {}
    table.insert(by_op[op], 1, { op = op, attrs = call[2], inputs = inputs })
  end
  return by_op
end

local templates

local function collect_templates()
  local by_op = M.real_calls(12)
  templates = {}
  for _, info in ipairs(core.ops()) do templates[#templates + 1] = { info = info, calls = by_op[info.name] or {} } end
  return templates
end

--- Ops without a real call to begin with, for the spec to look at.
function M.without_template()
  local list = {}
  for _, t in ipairs(templates or collect_templates()) do
    if #t.calls == 0 then list[#list + 1] = t.info.name end
  end
  return list
end

-- ---- changes ------------------------------------------------------------------------------------------------------

local function number_near(g, v)
  local k = g:int(1, 6)
  if k <= 3 and math.type(v) == "integer" then return v + g:int(-2, 2) end
  if k == 4 then return pick(g, FLOATS) end
  return pick(g, INTS)
end

local function any_list(g)
  local l = {}
  for i = 1, g:int(0, chance(g, 0.2) and 26 or 5) do l[i] = chance(g, 0.7) and g:int(-1, 5) or pick(g, INTS) end
  return l
end

local function change_attr(g, v)
  if type(v) == "table" then
    local l = { table.unpack(v) }
    local k = g:int(1, 5)
    if k == 1 then return any_list(g) end
    if k == 2 then
      table.insert(l, g:int(1, #l + 1), pick(g, { 0, 1, 2, 3, -1 }))
    elseif k == 3 and #l > 0 then
      table.remove(l, g:int(1, #l))
    elseif #l > 0 then
      local i = g:int(1, #l)
      l[i] = number_near(g, l[i])
    end
    return l
  end
  if type(v) == "number" then return number_near(g, v) end
  if type(v) == "boolean" then return chance(g, 0.8) and not v or 2 end
  if type(v) == "string" then
    local k = g:int(1, 3)
    if k == 1 then return pick(g, DTYPES) end
    return k == 2 and pick(g, { "none", "mean", "sum", "add", "reflect", "tanh", "left" }) or v .. "x"
  end
  return pick(g, INTS)
end

local function change_shape(g, shape)
  local s = { table.unpack(shape) }
  local k = g:int(1, 7)
  if k == 1 then return random_shape(g) end
  if k == 2 then table.insert(s, g:int(1, #s + 1), pick(g, { 1, 2 }))
  elseif k == 3 and #s > 0 then table.remove(s, g:int(1, #s))
  elseif k == 4 then return {}
  elseif #s > 0 then
    local i = g:int(1, #s)
    s[i] = math.max(0, s[i] + pick(g, { -2, -1, -1, 1, 1, 2, 7 }))
  end
  return s
end

local function changed(g, call, info)
  local attrs, inputs = {}, {}
  for k, v in pairs(call.attrs) do attrs[k] = v end
  for i, x in ipairs(call.inputs) do inputs[i] = x and { shape = x.shape, dtype = x.dtype } or false end
  for _ = 1, pick(g, { 0, 1, 1, 1, 2, 3 }) do
    local k = g:int(1, 10)
    if k <= 4 and #info.attrs > 0 then
      local a = pick(g, info.attrs)
      attrs[a.name] = change_attr(g, attrs[a.name])
    elseif k <= 7 and #inputs > 0 then
      local i = g:int(1, #inputs)
      if inputs[i] then inputs[i] = { shape = change_shape(g, inputs[i].shape), dtype = inputs[i].dtype } end
    elseif k == 8 and #inputs > 0 then
      local i = g:int(1, #inputs)
      if inputs[i] then inputs[i] = { shape = inputs[i].shape, dtype = pick(g, DTYPES) } end
    elseif k == 9 and #inputs > 0 then
      local i = g:int(1, #inputs)
      local what = g:int(1, 4)
      if what == 1 then inputs[i] = false
      elseif what == 2 then table.remove(inputs, i)
      elseif what == 3 then table.insert(inputs, i, { shape = random_shape(g), dtype = pick(g, DTYPES) })
      else inputs[i] = inputs[g:int(1, #inputs)] end -- the same tensor twice
    elseif k == 10 and #info.attrs > 0 then
      attrs[pick(g, info.attrs).name] = nil
    end
  end
  return attrs, inputs
end

-- ---- one hostile op ----------------------------------------------------------------------------------------------

local function text(v)
  if type(v) ~= "table" then return math.type(v) == "float" and ("%.17g"):format(v) or tostring(v) end
  local parts, keys = {}, {}
  for k in pairs(v) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, k in ipairs(keys) do
    local name = type(k) == "number" and "" or tostring(k) .. "="
    parts[#parts + 1] = name .. (T.is_tensor(v[k]) and "tensor" or text(v[k]))
  end
  return "{" .. table.concat(parts, ",") .. "}"
end
M.text = text

-- Applies op in a graph of its own and runs that, node by node and planned. → whether it got as far as the kernel; what
-- the graph says of it is for the caller.
local function apply(g, op, attrs, inputs)
  local graph = T.graph()
  local list, feed, made = {}, {}, {}
  for i, x in ipairs(inputs) do
    if not x then
      list[i] = false
    elseif made[x] then
      list[i] = made[x]
    else
      local t = M.tensor(g, x.shape, x.dtype)
      if chance(g, 0.6) then
        made[x] = graph:input("x" .. i, t:shape(), { dtype = t:dtype(), device = device })
        feed["x" .. i] = t
      else
        made[x] = t
      end
      list[i] = made[x]
    end
  end
  local got = core.graph_apply(graph.ir, op, list, attrs, 0, "node", 0)
  local outs = {}
  for _, y in ipairs(got) do
    if T.is_tensor(y) and T.core.is_symbolic(y) then outs[#outs + 1] = y end
  end
  if #outs == 0 then return false end
  graph:outputs(outs)
  local ok, err = pcall(graph.run, graph, feed)
  pcall(function() graph:plan():run(feed) end)
  if device then pcall(T.cuda.synchronize) end -- a bad index, noticed
  if not ok then error(err, 0) end
  return true
end

--- One hostile op by its seed → did a kernel run?, the error. tell(line), if given, hears of it before it happens.
function M.op(seed, tell)
  local g = random.new(seed)
  local all = templates or collect_templates()
  local entry = pick(g, all)
  local call = #entry.calls > 0 and pick(g, entry.calls) or { attrs = {}, inputs = {} }
  if #entry.calls == 0 then
    for i = 1, math.max(entry.info.nin, 1) do call.inputs[i] = { shape = random_shape(g), dtype = pick(g, DTYPES) } end
  end
  local attrs, inputs = changed(g, call, entry.info)
  if tell then
    local shapes = {}
    for i, x in ipairs(inputs) do shapes[i] = x and x.dtype .. "[" .. table.concat(x.shape, ",") .. "]" or "-" end
    tell(("%d %s(%s) %s"):format(seed, entry.info.name, table.concat(shapes, " "), text(attrs)))
  end
  return pcall(apply, g, entry.info.name, attrs, inputs)
end

-- ---- any function, any values -------------------------------------------------------------------------------------

-- Not called: they end or replace the process, read the terminal, wait for others, or switch the fault injection on.
local LEFT_OUT = { execute = true, process = true, repl = true, fail_at = true, exit = true, init_process_group = true,
  launch = true, set_home = true, isatty = true, terminal_width = true, set_memory_budget = true, main = true,
  workers = true, jit_pause = false, system = true, set_num_threads = true, libraries = true, spawn = true,
  write_file = true, barrier = true, monitored_barrier = true, prompt = true, cuda = true, top_level = true,
  set_deterministic = true, default_dtype = true, set_default_dtype = true, set_default_device = true,
  set_memory_limit = true, memory_limit = true, group = true }

local function inventory()
  local list, seen = {}, {}
  local function walk(t, path, depth)
    if seen[t] or depth > 3 then return end
    seen[t] = true
    local keys = {}
    for k in pairs(t) do
      if type(k) == "string" then keys[#keys + 1] = k end
    end
    for k in pairs(rawget(t, "lazy") and {} or t == T and core.lazy() or {}) do keys[#keys + 1] = k end
    table.sort(keys)
    for _, k in ipairs(keys) do
      local ok, v = pcall(function() return t[k] end)
      if ok and type(v) == "function" and not LEFT_OUT[k] and not seen[v] then
        seen[v] = true
        list[#list + 1] = { name = path .. "." .. k, f = v }
      elseif ok and type(v) == "table" and not LEFT_OUT[k] and k ~= "lazy" then
        local meta = getmetatable(v)
        if meta and type(rawget(meta, "__call")) == "function" then
          list[#list + 1] = { name = path .. "." .. k, f = v }
        end
        walk(v, path .. "." .. k, depth + 1)
      end
    end
  end
  walk(T, "T", 0)
  local meta = core.metatable()
  for k, f in pairs(meta.methods) do list[#list + 1] = { name = "tensor:" .. k, f = f, method = true } end
  for k, f in pairs(meta) do
    if type(f) == "function" and k ~= "__gc" then list[#list + 1] = { name = "tensor." .. k, f = f, method = true } end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

local STRINGS = { "f32", "i64", "bool", "sum", "mean", "none", "", "x", "a.bin", "no/such/path", "\0",
  ("y"):rep(5000), "1", "nan", "same", "reflect", "i,j->ij", "ij,jk", "...", "1:2, :", "%s%s%n", "cpu", "cuda:0",
  "cuda:99", "linear", "relu", "\255\254", "dim", "tanh", "channels_last", "node", "mirror", "auto", "gelu" }

local KEYS = { "dim", "dtype", "keepdim", "size", "out", "shape", "lr", "reduction", "padding", "stride", "bias",
  "requires_grad", "index_base", "n", "k", "p", "eps", "weight", "create_graph", "values", "device", "name", "forward",
  "backward" }

local value

local function any_table(g, env, depth)
  local t = {}
  local k = g:int(1, 6)
  if k <= 2 then
    for i = 1, g:int(0, 4) do t[i] = value(g, env, depth + 1) end
  elseif k == 3 then
    for i = 1, g:int(1, 4) do t[i] = M.tensor(g) end
  elseif k == 4 then
    for i = 1, g:int(0, 20) do t[i] = chance(g, 0.8) and g:int(-1, 4) or pick(g, INTS) end
  else
    for _ = 1, g:int(1, 3) do
      t[pick(g, KEYS)] = value(g, env, depth + 1)
    end
  end
  return t
end

function value(g, env, depth)
  local k = g:int(1, 24)
  if k <= 7 then
    if chance(g, 0.5) and #env.tensors > 0 then return pick(g, env.tensors) end
    local t = M.tensor(g)
    if #env.tensors < 12 then env.tensors[#env.tensors + 1] = t else env.tensors[g:int(1, 12)] = t end
    if chance(g, 0.2) and t:is_floating_point() then t = t:detach():requires_grad_() end
    return t
  end
  if k <= 10 then return g:int(-2, 8) end
  if k == 11 then return pick(g, INTS) end
  if k == 12 then return pick(g, FLOATS) end
  if k == 13 or k == 14 then return pick(g, STRINGS) end
  if k == 15 then return chance(g, 0.5) end
  if k <= 18 and depth < 3 then return any_table(g, env, depth) end
  if k == 19 then return pick(g, env.functions) end
  if k == 20 then return env.freed end
  if k <= 23 and #env.objects > 0 then return pick(g, env.objects) end
  return nil
end

-- Tensors, functions and objects that later calls of the same program are given.
local function new_env()
  local env = { tensors = {}, objects = { coroutine.create(function() end), core.jit_nothing } }
  env.freed = T.ones(3)
  env.freed:free()
  env.functions = { function() end, function(...) return ... end, function() error "hostile" end, tostring,
    function(x) return T.is_tensor(x) and x * 2 or x end, function() return T.ones(2, 3) end, T.ones, T.sin }
  local graph = T.graph()
  env.objects[#env.objects + 1] = graph.ir
  env.tensors[1] = graph:input("x", { 2, 3 })
  return env
end

local function keep(g, env, ...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if T.is_tensor(v) then
      if #env.tensors < 12 then env.tensors[#env.tensors + 1] = v else env.tensors[g:int(1, 12)] = v end
    elseif type(v) == "userdata" or type(v) == "table" then
      if #env.objects < 16 then env.objects[#env.objects + 1] = v else env.objects[g:int(1, 16)] = v end
    elseif type(v) == "function" and #env.functions < 16 then
      env.functions[#env.functions + 1] = v
    end
  end
end

-- A method of an object that an earlier call gave, or nil.
local function method_of(g, env)
  local object = #env.objects > 0 and pick(g, env.objects)
  local class = object and (debug.getmetatable(object) or {}).__index
  if type(class) ~= "table" then return nil end
  local names = {}
  for k, f in pairs(class) do
    if type(k) == "string" and type(f) == "function" and not LEFT_OUT[k] then names[#names + 1] = k end
  end
  if #names == 0 then return nil end
  table.sort(names)
  local k = pick(g, names)
  return { name = "object:" .. k, f = class[k] }, object
end

local all
M.STEPS = 12 -- calls of a program

local function limited(f, ...)
  debug.sethook(function() error("hostile: too long", 0) end, "", 3000000)
  return (function(...)
    debug.sethook()
    return ...
  end)(pcall(f, ...))
end

local function program(seed, tell)
  all = all or inventory()
  local g, env, ok, bad = random.new(seed), new_env(), 0, 0
  for step = 1, M.STEPS do
    local entry, self = pick(g, all), nil
    if chance(g, 0.25) then
      local method, object = method_of(g, env)
      if method then entry, self = method, object end
    end
    local args, n = {}, g:int(0, 5)
    if self ~= nil and chance(g, 0.9) then
      args[1], n = self, math.max(n, 1)
    elseif entry.method and chance(g, 0.9) then
      args[1], n = chance(g, 0.7) and #env.tensors > 0 and pick(g, env.tensors) or M.tensor(g), math.max(n, 1)
    end
    for i = args[1] ~= nil and 2 or 1, n do args[i] = value(g, env, 0) end
    if tell then
      local told = {}
      for i = 1, n do
        local v = args[i]
        local fine, s = pcall(function()
          return T.is_tensor(v) and v:dtype() .. "[" .. table.concat(v:shape(), ",") .. "]"
            or type(v) == "string" and ("%q"):format(v:sub(1, 40)) or type(v) == "number" and tostring(v)
        end)
        told[i] = fine and s or type(v)
      end
      tell(("%d.%d %s(%s)"):format(seed, step, entry.name, table.concat(told, ", ")))
    end
    local got = table.pack(limited(entry.f, table.unpack(args, 1, n)))
    if got[1] then
      ok = ok + 1
      keep(g, env, table.unpack(got, 2, got.n))
    else
      bad = bad + 1
    end
  end
  return ok, bad
end

--- A program of hostile calls by its seed → how many calls returned, how many raised; nil where the harness itself ran
-- out of what an earlier call had taken, such as memory.
function M.program(seed, tell)
  local fine, ok, bad = pcall(program, seed, tell)
  debug.sethook()
  T.core.debug_collect "off" -- it may have forced collections at every point, for all that follow
  if fine then return ok, bad end
end

--- op with these inputs, {{shape=, dtype=} or false, …}, and attributes, run node by node and planned → whether it was
-- taken, the error.
function M.apply(op, inputs, attrs)
  return pcall(apply, random.new(1), op, attrs, inputs)
end

--- How many functions and methods `program` chooses from.
function M.functions()
  all = all or inventory()
  return #all
end

return M
