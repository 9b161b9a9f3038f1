-- SPDX-License-Identifier: MIT
--- Graphs of ONNX files as programs: read, checked, and run node by node with perilune's ops, so that gradients,
-- T.jit and devices work as for any function.
-- @module perilune.onnx.model
local T = require "perilune"
local options = require "perilune.options"
local arity = require "perilune.onnx.operators.arity"
local fold = require "perilune.onnx.fold"
local narrow = require "perilune.onnx.narrow"
local registry = require "perilune.onnx.operators.registry"
local schema = require "perilune.onnx.schema"
local tensors = require "perilune.onnx.tensors"
local wire = require "perilune.onnx.wire"
local sizes = require "perilune.graph.sizes"

for _, part in ipairs { "elementwise", "reduce", "shape", "index", "conv", "nn", "resize", "recurrent", "quantize",
  "control", "signal", "runtime" } do require("perilune.onnx.operators." .. part) end

local core, stop, label = T.core, wire.stop, narrow.label
local model = {}

local OLDEST, NEWEST = 1, 28
local MAX_CALLS = 32 -- functions within functions

local function domain_of(name) return (name == nil or name == "ai.onnx") and "" or name end

local function called(node)
  return ("%s '%s'"):format(node.op_type or "?", node.name ~= nil and node.name ~= "" and node.name
    or (node.output or {})[1] or "")
end

-- ---- attributes ----------------------------------------------------------------------------------------------------

local compile -- of graphs

local function floats(list)
  local out = {}
  for _, bytes in ipairs(list) do
    for at = 1, #bytes, 4 do out[#out + 1] = (("<f"):unpack(bytes, at)) end
  end
  return out
end

local readers = {
  float = function(a) return a.f or 0.0 end, int = function(a) return a.i or 0 end,
  string = function(a) return a.s or "" end, floats = function(a) return floats(a.floats) end,
  ints = function(a) return a.ints end, strings = function(a) return a.strings end,
  tensor = function(a, scope) return tensors.read(a.t or stop("a tensor is missing"), scope.folder, "attribute") end,
  graph = function(a, scope) return compile(a.g or stop("a graph is missing"), scope) end,
  type = function() return true end,
}
local fields = { float = "f", int = "i", string = "s", tensor = "t", graph = "g", type = "tp",
  ["sparse tensor"] = "sparse_tensor" }

-- The kind that an attribute says it has; files of the first versions do not say it.
local function kind_of(a)
  local kind = schema.attribute_kinds[a.type or 0]
  if a.type == 13 then kind = "type" end
  if kind then return kind end
  for name, field in pairs(fields) do if a[field] ~= nil then return name end end
  for _, name in ipairs { "floats", "ints", "strings" } do if #a[name] > 0 then return name end end
  return "ints" -- an empty list
end

local function attributes(node, known, scope, function_values)
  local out = {}
  for _, a in ipairs(node.attribute) do
    local name = a.name or ""
    local wanted = known and known[name]
    if known and not wanted then
      stop("%s has the attribute '%s', which %s of opset %d does not have", called(node), name, node.op_type,
        scope.opset)
    end
    if out[name] ~= nil then stop("%s has the attribute '%s' twice", called(node), name) end
    if a.ref_attr_name and a.ref_attr_name ~= "" then
      if not function_values then stop("%s: '%s' refers to an attribute outside of a function", called(node), name) end
      out[name] = function_values[a.ref_attr_name]
    else
      local kind = kind_of(a)
      if kind == "sparse tensor" and wanted == "tensor" then
        out[name] = tensors.dense(a.sparse_tensor or stop("a tensor is missing"), scope.folder, name)
      elseif wanted and kind ~= wanted and not (a.type == nil and kind == "ints") then
        stop("%s: the attribute '%s' is %s, it must be %s", called(node), name, kind, wanted)
      else
        local read = readers[wanted or kind]
        if not read then stop("%s: attributes of kind %s are not supported", called(node), kind) end
        out[name] = read(a, scope)
      end
    end
  end
  return out
end

-- ---- reading graphs

local Context = {}
Context.__index = Context
function Context:fail(fmt, ...)
  options.fail("onnx: %s: %s", called(self.node), select("#", ...) > 0 and fmt:format(...) or fmt)
end

local function type_of(value)
  local t = value.type and value.type.tensor_type
  if not t then return { optional = value.type and value.type.optional_type ~= nil } end
  local kind, shape = schema.types[t.elem_type or 0], nil
  if t.shape then
    shape = {}
    for d, dim in ipairs(t.shape.dim) do shape[d] = dim.value or false end
  end
  return { tensor = true, dtype = kind and kind[2], onnx = kind and kind[1], shape = shape,
    param = t.shape and t.shape.dim }
end

-- What a name means in a graph or around it.
local function defined(scope, name)
  while scope do
    if scope.names[name] then return true end
    scope = scope.outer
  end
  return false
end

local function define(scope, name, who)
  if scope.names[name] then stop("'%s' is made twice, by %s and before", name, who) end
  scope.names[name] = true
end

-- A step that runs a function which the model defines.
local function function_step(node, f, scope)
  if scope.depth >= MAX_CALLS then
    stop("functions within functions, more than %d deep (%s)", MAX_CALLS, called(node))
  end
  local given, known = {}, {}
  for _, name in ipairs(f.attribute) do known[name] = true end
  for _, a in ipairs(f.attribute_proto) do known[a.name or ""] = true end
  for _, a in ipairs(node.attribute) do
    if not known[a.name or ""] then
      stop("%s has the attribute '%s', which its function lacks", called(node), a.name or "")
    end
  end
  for name, v in pairs(attributes({ attribute = f.attribute_proto, op_type = node.op_type, output = node.output },
    nil, scope, scope.values)) do given[name] = v end
  for name, v in pairs(attributes(node, nil, scope, scope.values)) do given[name] = v end
  if #node.input > #f.input or #node.output > #f.output then stop("%s has too many inputs or outputs", called(node)) end
  local inner = { folder = scope.folder, functions = scope.functions, weights = scope.weights, depth = scope.depth + 1,
    versions = {}, values = given }
  for _, o in ipairs(f.opset_import) do inner.versions[domain_of(o.domain)] = o.version or 1 end
  local values = {}
  for i, name in ipairs(f.input) do values[i] = { name = name } end
  local outs = {}
  for i, name in ipairs(f.output) do outs[i] = { name = name } end
  local program = compile({ node = f.node, initializer = {}, sparse_initializer = {}, input = values, output = outs },
    inner, true)
  return function(c, ...) return c.run(program, ...) end, {}
end

local function missing(node, domain, scope)
  local version = scope.versions[domain]
  local what
  if domain ~= "" then
    what = ("only operators of ONNX itself, %sfunctions in the file are known; export the model without it, or with "
      .. "its function"):format(registry.domains[domain] and "its quantized ones and " or "and ")
  elseif arity[node.op_type] then
    what = "ONNX has it, perilune does not support it; replace it in the model, or export it decomposed"
  else
    what = "ONNX has no such operator up to opset " .. NEWEST
  end
  stop("operator %s of domain '%s', opset %s, at node '%s': %s", node.op_type or "?",
    domain == "" and "ai.onnx" or domain, version and tostring(version) or "not imported",
    node.name or node.output[1] or "", what)
end

local function step_of(node, scope)
  local domain = domain_of(node.domain)
  local f = scope.functions[domain .. "\0" .. (node.op_type or "")]
  local step = { node = node, outputs = #node.output }
  local c = setmetatable({ node = node, outputs = #node.output, opset = scope.versions[""] or NEWEST, run = model.run,
    fixed = {} }, Context)
  if f then
    step.f, c.a = function_step(node, f, scope)
  else
    local entry = (registry.domains[domain] or {})[node.op_type or ""]
    if not entry then missing(node, domain, scope) end
    if not scope.versions[""] then stop("%s: the model imports no opset of ai.onnx", called(node)) end
    scope.opset = c.opset
    local takes = entry.arity or arity[node.op_type]
    local n = #node.input
    while n > 0 and node.input[n] == "" do n = n - 1 end
    if takes and (#node.input < takes[1] or n > takes[2]) then
      stop("%s has %d inputs, which %s does not take", called(node), n, node.op_type)
    end
    for i = 1, takes and takes[3] or 0 do
      if node.input[i] == "" then stop("%s: input %d is missing", called(node), i) end
    end
    c.a = attributes(node, entry.attributes, scope, scope.values)
    step.f, step.random, step.constants = entry.f, entry.random, entry.constants
  end
  step.c = c
  return step
end

-- A graph's message → its program: inputs and outputs by name, weights, steps.
-- scope: folder, versions of opsets, functions, names around it; alone: what is around it is not seen.
function compile(g, around, alone)
  local scope = setmetatable({ names = {}, outer = not alone and around or nil }, { __index = around })
  local program = { inputs = {}, outputs = {}, output_types = {}, input_types = {}, weights = {}, members = {},
    labels = {}, steps = {}, own = scope.names, alone = alone }
  scope.program = program
  local function weight(name, t)
    if program.weights[name] then stop("the initializer '%s' is there twice", name) end
    program.weights[name] = t
    scope.names[name] = true
    scope.weights[#scope.weights + 1] = { name = name, tensor = t, program = program, uses = {} }
    scope.weights[t] = scope.weights[#scope.weights]
  end
  for _, t in ipairs(g.initializer) do
    if (t.name or "") == "" then stop "an initializer without a name" end
    weight(t.name, tensors.read(t, scope.folder))
  end
  for _, s in ipairs(g.sparse_initializer) do
    weight(s.values and s.values.name or "", tensors.dense(s, scope.folder, "a sparse initializer"))
  end
  for _, v in ipairs(g.input) do
    local name = v.name or ""
    if not program.weights[name] then define(scope, name, "the inputs") end
    program.inputs[#program.inputs + 1] = name
    program.input_types[#program.inputs] = type_of(v)
  end
  local fed, fixed = {}, {} -- names that a call may give, that Constant made
  for _, name in ipairs(program.inputs) do fed[name] = true end
  local made = {} -- the names that some node makes
  for _, node in ipairs(g.node) do for _, name in ipairs(node.output) do made[name] = true end end
  for _, node in ipairs(g.node) do
    for i, name in ipairs(node.input) do
      if name ~= "" and not defined(scope, name) then
        stop("%s reads '%s', which %s", called(node), name, made[name]
          and "is made behind it: the nodes are not in order, or form a cycle" or "nothing makes")
      end
    end
    local step = step_of(node, scope)
    for i, name in ipairs(node.input) do
      local s = scope
      while name ~= "" and s and not s.names[name] do s = s.outer end
      local t = s and s.program and s.program.weights[name]
      if t then step.c.fixed[i] = not (s.program == program and fed[name])
      else step.c.fixed[i] = s == scope and fixed[name] end
      local about = t and scope.weights[t]
      if about then
        about.uses[#about.uses + 1] = { op = node.op_type, at = i, constant = step.constants and step.constants[i] }
      end
    end
    for _, name in ipairs(node.output) do
      if name ~= "" then define(scope, name, called(node)) end
      fixed[name] = node.op_type == "Constant"
    end
    program.steps[#program.steps + 1] = step
  end
  for i, v in ipairs(g.output) do
    if not defined(scope, v.name or "") then stop("the output '%s' is made by no node", v.name or "") end
    program.outputs[i], program.output_types[i] = v.name, type_of(v)
  end
  return program
end

-- ---- running -------------------------------------------------------------------------------------------------------

local environment, module -- of the graph that runs

-- While a function is traced: is v known, whatever the inputs hold? Members of the module are not: they may change.
local is_member = {}
local function known(v)
  if type(v) == "table" then
    for i = 1, v.n do if not known(v[i]) then return false end end
    return true
  end
  return v == nil or not (core.is_symbolic(v) or is_member[v])
end

local function finish(step, ok, ...)
  if ok then return ... end
  local message = ...
  if type(message) == "string" and not message:find("onnx: " .. called(step.node), 1, true) then
    message = ("%s (in the ONNX node %s)"):format(message, called(step.node))
  end
  error(message, 0)
end

-- ---- types that are kept in wider ones -----------------------------------------------------------------------------

-- Outputs of these are no numbers of their inputs.
local apart = {}
for name in ("Shape Size ArgMax ArgMin NonZero Cast CastLike QuantizeLinear DequantizeLinear MatMulInteger ConvInteger "
  .. "BitShift"):gmatch "%w+" do apart[name] = true end
local below = { Sub = true, BitwiseNot = true } -- what goes below 0 where it wraps
-- What was computed of an uint16 is one again: it wraps at 2^16, though an i32 holds it.
local function narrowed(step, args, n, out)
  if apart[step.node.op_type] then return end
  local name
  for i = 1, n do name = name or (args[i] ~= nil and label[args[i]]) end
  local kind = name and narrow.kinds[name]
  for i = 1, kind and out.n or 0 do
    local y = out[i]
    if type(y) == "userdata" and y:dtype() == kind.dtype and not label[y] then
      if kind.bits == 16 or kind.bits == 32 then -- of smaller ones ONNX computes nothing, it moves them
        y = narrow.wrap(y, name)
      elseif kind.bits == 64 and core.is_symbolic(y) then
        if below[step.node.op_type] then
          options.untraceable("onnx: %s: an uint64 is kept as i64, whose sign a trace does not see", called(step.node))
        end
      elseif kind.bits == 64 and y:numel() > 0 and y:amin():item() < 0 then
        step.c:fail "an uint64 of 2^63 or more, which i64 cannot hold"
      end
      out[i] = narrow.mark(y, name, { n = n, table.unpack(args, 1, n) })
    end
  end
end

-- While a graph with free sizes is traced (perilune.graph.sizes), numbers that come of sizes stay numbers, but tensors
-- of so many elements are made in the graph: they have another shape for other sizes.
local of_sizes = setmetatable({}, { __mode = "k" }) -- constants that depend on sizes of the inputs, by value
local makes = { Range = true, ConstantOfShape = true, Expand = true, Tile = true, EyeLike = true, OneHot = true }
local tells = { Shape = true, Size = true }

local function depends(args, n)
  for i = 1, n do if type(args[i]) == "userdata" and of_sizes[args[i]] then return true end end
  return false
end

local function note_sizes(step, args, n, out)
  local op = step.node.op_type
  if tells[op] then
    if not core.is_symbolic(args[1]) then return end -- of fixed sizes
  elseif not depends(args, n) then
    return
  end
  for i = 1, out.n do
    if type(out[i]) == "userdata" and not core.is_symbolic(out[i]) then of_sizes[out[i]] = true end
  end
end

local function run_step(step, env)
  local node, args, n = step.node, {}, #step.node.input
  for i = 1, n do
    local name = node.input[i]
    if name ~= "" then args[i] = env[name] end
  end
  local f, out = step.f -- luacheck: ignore 311
  local outer = environment
  environment = env
  local fixed = not step.random and core.jit_tracing()
  for i = 1, fixed and n or 0 do fixed = fixed and known(args[i]) end
  if fixed and sizes.tracing and makes[node.op_type] and depends(args, n) then fixed = false end
  if fixed and not step.c.a.body and not step.c.a.then_branch and n > 0 then
    out = table.pack(finish(step, pcall(core.jit_untraced, f, step.c, table.unpack(args, 1, n))))
  else
    out = table.pack(finish(step, pcall(f, step.c, table.unpack(args, 1, n))))
  end
  environment = outer
  if sizes.tracing then note_sizes(step, args, n, out) end
  if next(label) then narrowed(step, args, n, out) end
  if out.n < step.outputs then
    for i = out.n + 1, step.outputs do
      if node.output[i] ~= "" then step.c:fail("output %d is not supported", i) end
    end
  end
  for i, name in ipairs(node.output) do if name ~= "" then env[name] = out[i] end end
end

-- A name that no step has made: a member of the module or a constant of the graph, else one of the graph around it.
local function outside(program, outer)
  return { __index = function(_, name)
    local member = program.members[name]
    if member then
      local t, kind = module[member], program.labels[name]
      if kind and not label[t] then narrow.mark(t, kind) end -- of a copy of the module
      return t
    end
    local w = program.weights[name]
    if w ~= nil or program.own[name] or program.alone then return w end
    return outer and outer[name]
  end }
end

local function outputs(program, env)
  local out = {}
  for i, name in ipairs(program.outputs) do out[i] = env[name] end
  return table.unpack(out, 1, #program.outputs)
end

--- Runs a graph within the one that runs: its own names, and those around it.
function model.run(program, ...)
  local env = setmetatable({}, outside(program, environment))
  if select("#", ...) > #program.inputs then
    options.fail("onnx: a graph of %d inputs was given %d", #program.inputs, select("#", ...))
  end
  for i, name in ipairs(program.inputs) do env[name] = (select(i, ...)) end
  for _, step in ipairs(program.steps) do run_step(step, env) end
  return outputs(program, env)
end

local function steps(program, env)
  for _, step in ipairs(program.steps) do
    run_step(step, env)
    for _, name in ipairs(step.last) do env[name] = nil end
  end
  return outputs(program, env)
end

--- Runs the main graph with these inputs by name; owner: the module that has its members.
function model.main(program, values, owner)
  local outer, around, members = environment, module, is_member
  environment, module, is_member = nil, owner, {}
  if core.jit_tracing() then
    for _, p in ipairs(owner:parameters()) do is_member[p] = true end
    for _, b in ipairs(owner:buffers()) do is_member[b] = true end
  end
  -- what nodes make of nothing is where the inputs are
  local out = table.pack(core.device.follow(steps, program, setmetatable(values, outside(program))))
  environment, module, is_member = outer, around, members
  if not out[1] then error(out[2], 0) end
  return table.unpack(out, 2, out.n)
end

-- ---- files

-- Names that a step reads, those of its graphs included.
local function reads(step, into)
  for _, name in ipairs(step.node.input) do into[name] = true end
  for _, v in pairs(step.c.a) do
    if type(v) == "table" and v.steps then
      for _, inner in ipairs(v.steps) do reads(inner, into) end
      for _, name in ipairs(v.outputs) do into[name] = true end
    end
  end
  return into
end

-- Values are dropped after the last step that reads them.
local function lifetimes(program)
  local needed = {}
  for _, name in ipairs(program.outputs) do needed[name] = true end
  for _, name in ipairs(program.inputs) do needed[name] = true end
  for i = #program.steps, 1, -1 do
    local step = program.steps[i]
    local last, all = {}, reads(step, {})
    for _, name in ipairs(step.node.output) do all[name] = true end
    for name in pairs(all) do
      if name ~= "" and not needed[name] then last[#last + 1] = name end
      needed[name] = true
    end
    step.last = last
  end
end

--- The bytes of an ONNX file (a string, or of wire.file) → its program and the list of its weights. inference: what
-- only training needs is folded away. Raises { malformed = message }.
function model.read(bytes, folder, inference)
  local m = wire.decode(bytes, schema.model)
  if not m.graph then stop "no graph" end
  if #m.opset_import == 0 and (m.ir_version or 0) >= 3 then stop "no opset is imported" end
  local versions, functions = {}, {}
  for _, o in ipairs(m.opset_import) do versions[domain_of(o.domain)] = o.version or 1 end
  if not versions[""] and (m.ir_version or 0) < 3 then versions[""] = 1 end
  local version = versions[""]
  if version and (version < OLDEST or version > NEWEST) then
    stop("opset %d of ai.onnx; %d to %d are known", version, OLDEST, NEWEST)
  end
  for _, f in ipairs(m.functions) do functions[domain_of(f.domain) .. "\0" .. (f.name or "")] = f end
  local weights = {}
  local program = compile(m.graph, { folder = folder, versions = versions, functions = functions, weights = weights,
    depth = 0, names = {} })
  if inference then fold.batch_norms(program, weights, version or NEWEST) end
  lifetimes(program)
  return program, weights, { opset = version, producer = m.producer_name, ir_version = m.ir_version }
end

return model
