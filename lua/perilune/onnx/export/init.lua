-- SPDX-License-Identifier: MIT
--- T.onnx.save: functions and modules as ONNX files. The function is traced as a graph (T.graph); each of its nodes
-- becomes nodes of ONNX. Free sizes are found by tracing again with other sizes and comparing: what differs follows the
-- free size, or is an error.
-- @module perilune.onnx.export
local T = require "perilune"
local loaded = require "perilune.loaded"
local options = require "perilune.options"
local sizes = require "perilune.onnx.export.sizes"
local types = require "perilune.onnx.export.types"
local writer = require "perilune.onnx.writer"

local core, fail, describe, is_free = T.core, options.fail, options.describe, sizes.is_free

local OPSET, IR_VERSION = 18, 8

local Export = {}
Export.__index = Export

--- Name of one of our ops → f(e, node, inputs…) → names of its outputs. Inputs are values: { name, dtype, shape }.
Export.ops = {}
Export.is_free = is_free

-- ---- tracing -------------------------------------------------------------------------------------------------------

-- f(…) with nets computed by ops of ours: a library's whole recurrent net is one node, which ONNX has nothing for.
local function without_library(f, ...)
  if not T.zeros(1):is_cuda() and not (core.is_tensor((...)) and (...):is_cuda()) then return f(...) end
  local was = T.cuda.cudnn(false)
  local got = table.pack(pcall(f, ...))
  T.cuda.cudnn(was)
  if not got[1] then error(got[2], 0) end
  return table.unpack(got, 2, got.n)
end

-- f's graph for inputs of these shapes: nodes, leaves by value, outputs.
local function traced(who, f, inputs, shapes, names)
  local g, xs = T.graph(), {}
  for i, x in ipairs(inputs) do xs[i] = g:input(names[i], shapes[i], { dtype = x:dtype() }) end
  local got = table.pack(g:trace(function(...) return T.no_grad(without_library, f, ...) end, table.unpack(xs)))
  local out = {}
  local function put(v, i) -- results may be lists of tensors; what is nil is none
    if core.is_tensor(v) then
      out[#out + 1] = v
    elseif type(v) == "table" and getmetatable(v) == nil then
      for k = 1, #v do put(v[k], i) end
    elseif v ~= nil then
      fail("%s: result %d is %s; tensors are wanted", who, i, describe(v))
    end
  end
  for i = 1, got.n do put(got[i], i) end
  if #out == 0 then fail("%s: the function returns no tensor", who) end
  g:outputs(out)
  local leaves = {}
  for _, leaf in ipairs(core.graph_leaves(g.ir)) do leaves[leaf.value] = leaf end
  return { graph = g, nodes = g:nodes(), leaves = leaves, outputs = core.graph_output_values(g.ir) }
end

-- ---- nodes of ONNX -------------------------------------------------------------------------------------------------

function Export:fail(node, fmt, ...)
  fail("%s: %s (node %s): %s", self.who, node.op, node.name, select("#", ...) > 0 and fmt:format(...) or fmt)
end

function Export:unique(name)
  local out, k = name, 1
  while self.taken[out] do
    k = k + 1
    out = name .. "_" .. k
  end
  self.taken[out] = true
  return out
end

-- The inputs of an operator that lacks their type, cast to a wider one; and from it back.
function Export:widened(op, inputs, own, wide)
  local ins = {}
  for i, name in ipairs(inputs) do
    ins[i] = name and self.types[name] == own and self:emit("Cast", { name }, { to = writer.kinds[wide] }) or name
  end
  return ins, function(name)
    return self.types[name] == wide and self:emit("Cast", { name }, { to = writer.kinds[own] }) or name
  end
end

--- Adds a node; inputs are names (false: left out) → the names of its n outputs (1).
function Export:emit(op, inputs, attributes, n)
  local outs, ins = {}, {}
  local own = self.types[inputs[1]]
  local wide = own and types.computes_in(op, own)
  if own and not wide then fail("%s: ONNX's %s takes no %s; cast before it", self.who, op, own) end
  local back
  if wide ~= own then inputs, back = self:widened(op, inputs, own, wide) end
  for key, v in pairs(attributes or {}) do
    for _, k in ipairs(type(v) == "table" and not is_free(v) and v or { v }) do
      if is_free(k) then fail("%s: %s of %s depends on the size '%s'", self.who, key, op, k.symbol.said) end
    end
  end
  for i, name in ipairs(inputs) do ins[i] = name or "" end
  while ins[#ins] == "" do ins[#ins] = nil end
  local name = self:unique(op)
  for i = 1, n or 1 do
    outs[i] = self:unique(i == 1 and name .. "_y" or ("%s_y%d"):format(name, i))
    self.types[outs[i]] = types.result(op, inputs, attributes or {}, function(x) return self.types[x] end,
      writer.kinds, i)
  end
  self.nodes[#self.nodes + 1] = writer.node(name, op, ins, outs, attributes or {})
  for i, out in ipairs(back and outs or {}) do outs[i] = back(out) end
  return table.unpack(outs)
end

--- The name of a constant tensor.
function Export:constant(t, name)
  local own = self:unique(name or "constant")
  self.initializers[#self.initializers + 1] = writer.tensor(own, t)
  self.types[own] = t:dtype()
  return own
end

--- The name of a number, which may be a free size.
function Export:number(v, dtype)
  if is_free(v) then
    return self:emit("Cast", { self:reshape(self:integers { v }, {}) }, { to = writer.kinds[dtype] })
  end
  local key = dtype .. tostring(v)
  if not self.numbers[key] then self.numbers[key] = self:constant(T.full({}, v, { dtype = dtype }), "number") end
  return self.numbers[key]
end

--- A list of integers, some of them free sizes, as a tensor i64 [n].
function Export:integers(list)
  local free = false
  for _, v in ipairs(list) do free = free or is_free(v) end
  if not free then
    local key = "i64[" .. table.concat(list, ",") .. "]"
    if not self.numbers[key] then
      local t = #list > 0 and T.tensor(list, { dtype = "i64" }) or T.zeros({ 0 }, { dtype = "i64" })
      self.numbers[key] = self:constant(t, "sizes")
    end
    return self.numbers[key]
  end
  local parts = {}
  for i, v in ipairs(list) do parts[i] = is_free(v) and sizes.emit(self, v) or self:integers { v } end
  if #parts == 1 then return parts[1] end
  return self:emit("Concat", parts, { axis = 0 })
end

--- A value in another dtype.
function Export:cast(v, dtype)
  if v.number ~= nil then return self:number(v.number, dtype) end
  if v.dtype == dtype then return v.name end
  return self:emit("Cast", { v.name }, { to = writer.kinds[dtype] })
end

--- Whole numbers of an attribute that ONNX has as an attribute: they may not be free.
function Export:fixed(node, list, what)
  for i, v in ipairs(type(list) == "table" and not is_free(list) and list or { list }) do
    if is_free(v) then self:fail(node, "%s %d depends on the size '%s'", what, i, v.symbol.said) end
  end
  return list
end

--- Sizes as Reshape takes them: one free size may be left to it, which no other place need know then.
function Export:reshape(x, shape)
  local holes, unknown, out = 0, 0, {}
  for i, n in ipairs(shape) do
    if is_free(n) or n == -1 then holes = holes + 1 end
    if n == -1 or not sizes.is_known(self, n) then unknown = unknown + 1 end
    out[i] = n
  end
  for i, n in ipairs(out) do
    if is_free(n) and (holes == 1 or unknown == 1 and not sizes.is_known(self, n)) then out[i] = -1 end
  end
  local empty, left = false, false
  for _, n in ipairs(out) do empty, left = empty or n == 0, left or n == -1 end
  if empty and left then fail("%s: a size of 0 beside one that is free is not supported", self.who) end
  return self:emit("Reshape", { x, self:integers(out) }, #out > 0 and { allowzero = empty and 1 or 0 } or {})
end

for _, part in ipairs { "elementwise", "special", "shape", "diagonal", "reduce", "order", "network",
  "loss" } do
  require("perilune.onnx.export." .. part)(Export)
end

-- ---- halves ---------------------------------------------------------------------------------------------------------

-- Makes ops of ours that compute in f32 and round once do so where several operators of ONNX stand for them: the
-- squares of a norm are infinite in f16 where the norm is not.
local function in_f32(names, halves)
  for name in names:gmatch "%S+" do
    local plain = Export.ops[name]
    Export.ops[name] = function(e, node, ...)
      local d = node.dtypes[1]
      if not halves[d] then return plain(e, node, ...) end
      local ins, dtypes = { ... }, {}
      for i, v in ipairs(ins) do
        if v and v.name and v.dtype == d then ins[i] = { name = e:cast(v, "f32"), dtype = "f32", shape = v.shape } end
      end
      for k, own in ipairs(node.dtypes) do dtypes[k] = own == d and "f32" or own end
      local outs = table.pack(plain(e, setmetatable({ dtypes = dtypes }, { __index = node }), table.unpack(ins)))
      for k = 1, outs.n do
        if outs[k] and node.dtypes[k] == d then outs[k] = e:emit("Cast", { outs[k] }, { to = writer.kinds[d] }) end
      end
      return table.unpack(outs, 1, outs.n)
    end
  end
end
in_f32("rms_norm group_norm norm var std floor_divide remainder mse_loss huber_loss smooth_l1_loss softplus log1p "
  .. "expm1 binary_cross_entropy binary_cross_entropy_with_logits kl_div "
  .. "cross_entropy_prob "
  .. "atan2 hypot xlogy sinc logit logaddexp logcumsumexp nansum trace", { f16 = true, bf16 = true })
in_f32("attention", { bf16 = true })

-- ---- 0-d tensors ---------------------------------------------------------------------------------------------------

-- Makes ops of ours that take a dimension take the one of a tensor without any, where ONNX has none.
local function without_dimensions(names)
  for name in names:gmatch "%S+" do
    local plain = Export.ops[name]
    Export.ops[name] = function(e, node, x, ...)
      if #x.shape > 0 then return plain(e, node, x, ...) end
      local ins, shapes = { x, ... }, {}
      for i, v in ipairs(ins) do
        if v and v.name and #v.shape == 0 then
          ins[i] = { name = e:emit("Reshape", { v.name, e:integers { 1 } }), dtype = v.dtype, shape = { 1 } }
        end
      end
      for k, shape in ipairs(node.shapes) do shapes[k] = #shape == 0 and { 1 } or shape end
      local outs = table.pack(plain(e, setmetatable({ shapes = shapes }, { __index = node }), table.unpack(ins)))
      for k = 1, outs.n do
        if outs[k] then outs[k] = e:emit("Reshape", { outs[k], e:integers(node.shapes[k]) }) end
      end
      return table.unpack(outs, 1, outs.n)
    end
  end
end
without_dimensions("argmax argmin argsort cummax cummin cumprod cumsum gather index_add index_copy index_fill "
  .. "index_select kthvalue logcumsumexp max_dim median min_dim scatter scatter_add scatter_reduce sort take_along_dim "
  .. "topk unfold")

-- ---- the whole -----------------------------------------------------------------------------------------------------

local function value_of(e, first, k)
  local known = e.values[k]
  if known then return known end
  local leaf = first.leaves[k]
  if leaf.kind == "number" then
    known = { number = leaf.number, dtype = leaf.dtype, weak = leaf.weak, shape = {} }
  else
    local name = e.names[leaf.tensor]
    local modes = loaded["perilune.optim.modes"] -- no optimizer, no modes
    if modes then modes.check_saved(e.who, leaf.tensor, false) end
    known = { name = e:constant(leaf.tensor, name or "captured"), dtype = leaf.tensor:dtype(),
      shape = leaf.tensor:shape() }
  end
  e.values[k] = known
  return known
end

-- Which nodes matter for the outputs.
local function live_nodes(first)
  local wanted, live = {}, {}
  for _, v in ipairs(first.outputs) do wanted[v] = true end
  for i = #first.nodes, 1, -1 do
    local node = first.nodes[i]
    for _, v in ipairs(node.outputs) do live[i] = live[i] or wanted[v] end
    if live[i] then for _, v in ipairs(node.inputs) do if v then wanted[v] = true end end end
  end
  return live, wanted
end

local function symbols_of(e, inputs, names, dynamic)
  local list, by_name = {}, {}
  if dynamic ~= nil and (type(dynamic) ~= "table" or getmetatable(dynamic) ~= nil) then
    fail("%s: dynamic must be a table such as { x = { \"n\" } }, got %s", e.who, describe(dynamic))
  end
  for key, axes in pairs(dynamic or {}) do
    local at
    for i, name in ipairs(names) do if name == key then at = i end end
    if not at then fail("%s: dynamic: %s", e.who, options.unknown("input", key, names)) end
    if type(axes) ~= "table" then
      fail("%s: dynamic: sizes of '%s' must be a table, got %s", e.who, key, describe(axes))
    end
    for d, name in pairs(axes) do
      if math.type(d) ~= "integer" or d < 1 or d > inputs[at]:dim() then
        fail("%s: dynamic: '%s' has no dimension %s", e.who, key, tostring(d))
      end
      if type(name) ~= "string" then
        fail("%s: dynamic: the name of a size must be text, got %s", e.who, describe(name))
      end
      local s = by_name[name]
      if not s then
        s = { name = name, said = name, size = inputs[at]:size(d), vector = {}, places = { { input = key, dim = d } },
          places_in = {} }
        by_name[name], list[#list + 1] = s, s
      elseif s.size ~= inputs[at]:size(d) then
        fail("%s: dynamic: '%s' is %d here and %d there", e.who, name, s.size, inputs[at]:size(d))
      end
      if s.size < 2 then fail("%s: dynamic: '%s' is %d in the example; give one of 2 or more", e.who, name, s.size) end
      s.places_in[#s.places_in + 1] = { at, d }
    end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

-- Attributes that an exporter need not read: the results' shapes and dtypes, which it has, say the same, or results
-- that nobody wants, or gradients, are all that they change. Of all ops (true), or of those that begin so.
local implied = { dtype = true, shape = true, size = true, sizes = true, length = true, start_dim = { "flatten" },
  end_dim = { "flatten" }, dim = { "unsqueeze", "squeeze", "unflatten" }, dims = { "flip", "squeeze" },
  return_indices = { "max_pool", "adaptive_max_pool" }, stable = { "sort", "argsort" }, value = { "pad" },
  index_base = { "max_pool", "adaptive_max_pool", "max_dim", "min_dim", "sort", "topk", "median",
    "kthvalue", "cummax", "cummin" },
  sorted = { "topk" }, dim0 = { "transpose" }, dim1 = { "transpose" }, source = { "movedim" },
  destination = { "movedim" }, scale_grad_by_freq = { "embedding" }, padding_idx = { "embedding" } }
local function is_implied(op, key)
  local of = implied[key]
  if type(of) ~= "table" then return of end
  for _, name in ipairs(of) do if op:sub(1, #name) == name then return true end end
end

-- The node as its exporter gets it. An attribute that the exporter does not read would be missing in the file without a
-- word: whoever calls the second result afterwards is told.
local function watched(e, node)
  local read = {}
  local attrs = setmetatable({}, { __index = function(_, key)
    read[key] = true
    return node.attrs[key]
  end })
  return setmetatable({ attrs = attrs }, { __index = node }), function()
    for key, v in pairs(node.attrs) do
      if not read[key] and not is_implied(node.op, key) then
        e:fail(node, "its option %s = %s is not exported", key, tostring(v))
      end
    end
  end
end

-- The bytes of the model.
local function model_of(who, f, inputs, opts)
  local is_module = T.nn.is_module(f)
  local e = setmetatable({ who = who, opset = OPSET, nodes = {}, initializers = {}, numbers = {}, taken = {},
    values = {}, names = {}, types = {} }, Export)
  if is_module then
    for name, p in f:named_parameters() do e.names[p] = e.names[p] or name end
    for name, b in f:named_buffers() do e.names[b] = e.names[b] or name end
  end
  local names = options.names(who, "input_names", opts.input_names, #inputs, "x")
  local symbols, shapes = symbols_of(e, inputs, names, opts.dynamic), {}
  for i, x in ipairs(inputs) do shapes[i] = x:shape() end
  local function traced_at(at)
    local moved = {}
    for i, shape in ipairs(shapes) do moved[i] = table.move(shape, 1, #shape, 1, {}) end
    for _, s in ipairs(symbols) do
      for _, place in ipairs(s.places_in) do moved[place[1]][place[2]] = at[s] or s.size end
    end
    local t = traced(who, f, inputs, moved, names)
    t.old = t.graph:nodes()
    for _, s in ipairs(symbols) do s.vector[#s.vector + 1] = at[s] or s.size end
    return t
  end
  local first = traced_at {}
  local traces, changed = { first }, { "" }
  for k, s in ipairs(symbols) do
    for i, size in ipairs { s.size + 2 * k + 1, 5 * s.size + 3, 67 * s.size + 1 } do
      -- the function itself may end before, as a table of places does
      local ok, t = core.attempt(traced_at, { [s] = size })
      if not ok and i == 1 then error(t, 0) end
      if ok then traces[#traces + 1], changed[#changed + 1] = t, s.name end
    end
  end
  sizes.find(who, symbols, traces, changed)
  for _, name in ipairs(names) do e:unique(name) end
  local heads = {}
  for value, leaf in pairs(first.leaves) do
    if leaf.kind == "input" then
      for i, name in ipairs(names) do
        if leaf.name == name then
          local shape, declared = table.move(shapes[i], 1, #shapes[i], 1, {}), {}
          for _, s in ipairs(symbols) do
            for _, at in ipairs(s.places_in) do
              if at[1] == i then shape[at[2]] = sizes.free(s, 1, 0, s.size) end
            end
          end
          for d, n in ipairs(shape) do declared[d] = is_free(n) and n.symbol.name or n end
          e.values[value] = { name = name, dtype = inputs[i]:dtype(), shape = shape }
          e.types[name] = inputs[i]:dtype()
          heads[i] = writer.value(name, inputs[i]:dtype(), declared)
        end
      end
    end
  end
  for i, name in ipairs(names) do -- inputs that the function does not read
    heads[i] = heads[i] or writer.value(name, inputs[i]:dtype(), inputs[i]:shape())
  end
  local live, wanted = live_nodes(first)
  e.wanted = wanted
  for i, node in ipairs(first.nodes) do
    if live[i] then
      local make = Export.ops[node.op]
      if not make then
        e:fail(node, "ONNX has nothing for it, or it is not supported yet; leave it out of what is exported")
      end
      local ins = {}
      for k, v in ipairs(node.inputs) do ins[k] = v and value_of(e, first, v) or false end
      local seen, all_read = watched(e, node)
      local outs = table.pack(make(e, seen, table.unpack(ins)))
      all_read()
      for k, v in ipairs(node.outputs) do
        if outs[k] then e.values[v] = type(outs[k]) == "table" and outs[k]
          or { name = outs[k], dtype = node.dtypes[k], shape = node.shapes[k] } end
        if wanted[v] and not outs[k] and not e.values[v] then e:fail(node, "its result %d cannot be exported", k) end
      end
    end
  end
  local out_names, tails = options.names(who, "output_names", opts.output_names, #first.outputs, "y"), {}
  for i, v in ipairs(first.outputs) do
    local value = value_of(e, first, v)
    local name, declared = e:unique(out_names[i]), {}
    if name ~= out_names[i] then fail("%s: output_names: '%s' is taken", who, out_names[i]) end
    e.nodes[#e.nodes + 1] = writer.node(e:unique "Identity", "Identity", { value.name or e:number(value.number,
      value.dtype) }, { name }, {})
    for d, n in ipairs(value.shape) do
      declared[d] = not is_free(n) and n or (n.factor == 1 and n.offset == 0) and n.symbol.name
        or ("%d*%s%+d"):format(n.factor, n.symbol.name, n.offset)
    end
    tails[i] = writer.value(name, value.dtype, declared)
  end
  return writer.model { nodes = e.nodes, initializers = e.initializers, inputs = heads, outputs = tails,
    name = "perilune", version = T.version, opset = e.opset, ir_version = IR_VERSION }
end

local function save(path, f, inputs, opts)
  local who = "onnx.save"
  opts = options.check(who, opts, { "input_names", "output_names", "dynamic" })
  if type(path) ~= "string" then fail("%s: the path must be a string and comes first, got %s", who, describe(path)) end
  if core.is_tensor(inputs) then inputs = { inputs } end
  options.tensors(who, "inputs", inputs, 1)
  if type(f) ~= "function" and not (type(f) == "table" and getmetatable(f) and getmetatable(f).__call) then
    fail("%s: a module or function is wanted, got %s", who, describe(f))
  end
  local bytes = T.no_grad(function() return model_of(who, f, inputs, opts) end)
  local temporary = ("%s.%d.tmp"):format(path, os.time())
  local out, message, code = io.open(temporary, "wb")
  if not out then return nil, ("%s: %s"):format(who, message), "io", code end
  local ok, why = out:write(bytes)
  local closed, late = out:close()
  if not (ok and closed) then
    os.remove(temporary)
    return nil, ("%s: %s: %s"):format(who, path, why or late), "io"
  end
  ok, message, code = os.rename(temporary, path)
  if not ok then
    os.remove(temporary)
    return nil, ("%s: %s"):format(who, message), "io", code
  end
  return true
end

return { save = save }
