-- SPDX-License-Identifier: MIT
--- T.onnx: models of other frameworks, as ONNX files. A loaded model is a module: it runs, trains, compiles and moves
-- like any other.
-- @module perilune.onnx
local T = require "perilune"
local options = require "perilune.options"
local model = require "perilune.onnx.model"
local narrow = require "perilune.onnx.narrow"
local wire = require "perilune.onnx.wire"

local fail, describe = options.fail, options.describe
local nn = T.nn
local onnx = {}

local SMALL = 64 -- integers of at most so many elements are sizes, axes and the like: they stay on the CPU

local Model = nn.class("OnnxModel")

-- What an initializer is: its positions as inputs of operators say it (help of T.onnx.load).
local function role(entry)
  local t = entry.tensor
  local kind = narrow.kinds[narrow.label[t]]
  if kind and kind.powers then return "constant" end -- f16 would not hold them
  if kind or not t:is_floating_point() then return t:numel() <= SMALL and "constant" or "buffer" end
  local constants, statistics = #entry.uses > 0, false
  for _, use in ipairs(entry.uses) do
    if use.op == "BatchNormalization" and use.at >= 4 then statistics = true end
    if not use.constant then constants = false end
  end
  if statistics then return "buffer" end
  if constants then return "constant" end
  return t:dim() > 0 and "parameter" or "buffer"
end

-- The name of a member: that of the tensor, unless modules have a method or field of that name.
local function member_name(self, name)
  if name == "" then name = "unnamed" end
  while nn.Module[name] ~= nil or rawget(self, name) ~= nil or self._parameters[name] ~= nil or name:find "^_" do
    name = "w" .. name
  end
  return name
end

function Model:init(program, weights, about)
  -- A function, which a clone shares and which T.jit need not look into: nothing changes a program.
  self._program = function() return program end
  self.opset, self.producer = about.opset, about.producer
  self.inputs, self.outputs = {}, {}
  for i, name in ipairs(program.inputs) do
    local t = program.input_types[i]
    self.inputs[i] = { name = name, dtype = t.dtype, shape = t.shape,
      optional = program.weights[name] ~= nil or t.optional == true }
  end
  for i, name in ipairs(program.outputs) do
    local t = program.output_types[i]
    self.outputs[i] = { name = name, dtype = t.dtype, shape = t.shape }
  end
  for _, entry in ipairs(weights) do
    local kind, t = role(entry), entry.tensor
    if kind ~= "constant" then
      local name = member_name(self, entry.name)
      if kind == "parameter" then
        self:register_parameter(name, nn.Parameter(t))
      else
        self:register_buffer(name, t)
      end
      entry.program.members[entry.name], entry.program.weights[entry.name] = name, nil
      entry.program.labels[entry.name] = narrow.label[t]
    end
  end
end

local MOST_LINES = 400

--- The nodes, one a line: Relu(d) → y.
function Model:extra_repr()
  local lines, program = {}, self._program()
  for i, step in ipairs(program.steps) do
    if i > MOST_LINES then
      lines[#lines + 1] = ("  … %d more"):format(#program.steps - MOST_LINES)
      break
    end
    local node, settings = step.node, {}
    for name, v in pairs(step.c.a) do
      if type(v) == "table" and not v.steps then
        v = "{" .. table.concat(v, ",") .. "}"
      elseif type(v) == "userdata" then
        v = v:brief()
      elseif type(v) == "table" then
        v = "graph"
      end
      settings[#settings + 1] = name .. "=" .. tostring(v)
    end
    table.sort(settings)
    lines[#lines + 1] = ("  %s(%s)%s → %s"):format(node.op_type, table.concat(node.input, ", "),
      #settings > 0 and " {" .. table.concat(settings, ", ") .. "}" or "", table.concat(node.output, ", "))
  end
  return #lines > 0 and "\n" .. table.concat(lines, "\n") .. "\n" or ""
end

-- Shapes as the file declares them; false and names stand for any size, equal names for equal sizes.
local function check_input(self, i, x, sizes)
  local program = self._program()
  local name, t = program.inputs[i], program.input_types[i]
  if type(x) == "table" and not t.tensor then return x end -- a sequence
  if not T.is_tensor(x) then fail("onnx: input '%s' must be a tensor, got %s", name, describe(x)) end
  if t.dtype and x:dtype() ~= t.dtype then
    local floats = x:is_floating_point() and (t.dtype == "f32" or t.dtype == "f64" or t.dtype == "f16"
      or t.dtype == "bf16")
    if not floats then
      fail("onnx: input '%s' must be %s (%s in the file), got %s", name, t.dtype, t.onnx, x:dtype())
    end
  end
  local scalar = t.shape and #t.shape == 0 and x:numel() == 1 -- files of tensors may have no 0-d ones
  if scalar then x = x:reshape {} end
  local kind = narrow.kinds[t.onnx]
  if kind then
    if T.core.is_symbolic(x) then
      options.untraceable("onnx: input '%s' is %s, which has no dtype here", name, t.onnx)
    end
    x = x:detach()
    local y = kind.low and x:clamp({ min = kind.low, max = kind.high })
      or narrow.round(x, t.onnx, false, "up", fail):to(x:dtype())
    if T.logical_and(x:ne(y), x:eq(x)):any():item() then
      fail("onnx: input '%s' is %s in the file, which does not have all of these values", name, t.onnx)
    end
    narrow.mark(x, t.onnx)
  end
  if not t.shape or scalar then return x end
  if x:dim() ~= #t.shape then
    fail("onnx: input '%s' must have %d dimensions, got [%s]", name, #t.shape, table.concat(x:shape(), ","))
  end
  for d, size in ipairs(t.shape) do
    local param = t.param[d].param
    if not size and param and param ~= "" then
      size = sizes[param]
      sizes[param] = x:size(d)
    end
    if size and x:size(d) ~= size then
      fail("onnx: input '%s' has %d elements in dimension %d, %s", name, x:size(d), d,
        param and ("where another has %d (both are %s)"):format(size, param) or ("it must have %d"):format(size))
    end
  end
  return x
end

function Model:forward(...)
  local program, values, n = self._program(), {}, select("#", ...)
  local first = ...
  local named = n == 1 and type(first) == "table" and getmetatable(first) == nil and #first == 0 and next(first) ~= nil
  if named then
    for name in pairs(first) do
      local known = false
      for _, k in ipairs(program.inputs) do known = known or k == name end
      if not known then fail("onnx: %s", options.unknown("input", name, program.inputs)) end
    end
  elseif n > #program.inputs then
    fail("onnx: %d inputs were given; the model has %d: %s", n, #program.inputs, table.concat(program.inputs, ", "))
  end
  local sizes = {}
  for i, name in ipairs(program.inputs) do
    local x
    if named then x = first[name] elseif i <= n then x = select(i, ...) end
    if x ~= nil then
      if type(x) == "table" then x.n = x.n or #x end
      values[name] = check_input(self, i, x, sizes)
    elseif not (program.weights[name] or program.members[name] or program.input_types[i].optional) then
      fail("onnx: input '%s' is missing; the model's inputs are %s", name, table.concat(program.inputs, ", "))
    end
  end
  return model.main(program, values, self)
end

--- T.onnx.load(path, {inference=false}) → module, or nil, message, code
-- Reads an ONNX file (opsets 1 to 28 of ai.onnx; functions, subgraphs and data in files beside it included) and checks
-- all of it. The module is called with the model's inputs in order, or with a table of tensors by name, and returns its
-- outputs in order; `inputs` and `outputs` list names, dtypes and shapes. Floating initializers with a dimension are
-- parameters under their names; running statistics and numbers are buffers; what operators read as settings (limits,
-- scales of Resize, quantization) stays constant. Sequences are lists; uint16, uint32, uint64 are i32, i64, i64,
-- integers of 2 and 4 bits i8 and u8, floats of 4 and 8 bits f32, rounded and limited as theirs are. inference = true:
-- for a model that is run and not trained: batch norms become part of the convolutions before them, so that weights are
-- not those of the file. A broken or unsupported file is nil, a message that names node and operator, and "format".
--   print((T.onnx.load("/nowhere/model.onnx")))  --> nil
function onnx.load(path, opts, ...)
  opts = options.check("onnx.load", opts, { "inference" })
  if select("#", ...) > 0 then
    fail("onnx.load: takes the path and options, got %s as well; model:to(…) moves and converts", describe((...)))
  end
  if type(path) ~= "string" then fail("onnx.load: the path must be a string, got %s", describe(path)) end
  local f, message, code = io.open(path, "rb")
  if not f then return nil, "onnx.load: " .. message, "io", code end
  local bytes = wire.file(f, path) or f:read "a"
  if not bytes then
    f:close()
    return nil, ("onnx.load: %s cannot be read"):format(path), "io"
  end
  local ok, program, weights, about = pcall(model.read, bytes, path:match "^(.*/)" or "./", opts.inference)
  f:close()
  if not ok then
    if type(program) ~= "table" or not program.malformed then error(program, 0) end
    return nil, ("onnx.load: %s: %s"):format(path, program.malformed), "format"
  end
  local net = Model(program, weights, about)
  if opts.inference then -- what folding made on the way is as large as the weights
    collectgarbage()
    T.empty_cache()
  end
  return net
end

--- T.onnx.save(path, f, inputs, {input_names=, output_names=, dynamic=}) → true, or nil, message, code
-- Writes a module or function as an ONNX file of opset 18, from its graph for the example inputs (a tensor or a list);
-- parameters keep their names. dynamic: {x = {[1] = "batch"}}: the first size of x is free and called batch; equal
-- names are equal sizes. What the function does may depend on free sizes only in ways that ONNX can follow; else, and
-- where an op has nothing to stand for it, the error names it. Call eval() before: dropout and batch statistics have
-- no place in a file. Names are x (x1, x2, …) and y where none are given.
--   local path = os.tmpname()
--   print(T.onnx.save(path, nn.Linear(2, 3), T.ones(4, 2), { dynamic = { x = { "n" } } }))  --> true
--   print(assert(T.onnx.load(path))(T.ones(7, 2)):size(1))  --> 7
--   os.remove(path)
function onnx.save(...) return require("perilune.onnx.export").save(...) end

return onnx
