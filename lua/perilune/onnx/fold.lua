-- SPDX-License-Identifier: MIT
--- What a model that is only run does not need: batch norms, whose statistics are fixed then, become part of the
-- convolutions before them. w' = w s and b' = (b - mean) s + beta, of each output channel, with s = gamma / sqrt(var +
-- eps), in f64 and rounded once.
-- @module perilune.onnx.fold
local fold = {}

local SINCE = 9 -- before, whether a batch norm trained was said otherwise

local function is_standard(step) return (step.node.domain or "") == "" or step.node.domain == "ai.onnx" end

-- How often a name is read, by steps, by graphs within them, and as an output.
local function count_reads(program)
  local reads = {}
  local function walk(p)
    for _, step in ipairs(p.steps) do
      for _, name in ipairs(step.node.input) do reads[name] = (reads[name] or 0) + 1 end
      for _, v in pairs(step.c.a) do if type(v) == "table" and v.steps then walk(v) end end
    end
    for _, name in ipairs(p.outputs) do reads[name] = (reads[name] or 0) + 1 end
  end
  walk(program)
  return reads
end

-- The initializer of input i that nothing but this step reads and no call replaces; nil if there is no such one.
local function own_weight(program, reads, step, i)
  local name = step.node.input[i]
  if name and name ~= "" and step.c.fixed[i] and reads[name] == 1 then return program.weights[name] end
end

local function fixed_weights(program, step, from, to)
  local list = {}
  for i = from, to do
    local t = step.c.fixed[i] and program.weights[step.node.input[i] or ""]
    if not t then return nil end
    list[#list + 1] = t:to "f64"
  end
  return list
end

local function replace(program, weights, name, t)
  local entry = weights[program.weights[name]]
  weights[program.weights[name]] = nil
  entry.tensor, program.weights[name], weights[t] = t, t, entry
end

-- The batch norm into the convolution; true if it could be.
local function merge(program, weights, reads, conv, norm)
  local w = own_weight(program, reads, conv, 2)
  local given = fixed_weights(program, norm, 2, 5)
  local named = (conv.node.input[3] or "") ~= ""
  local bias = named and own_weight(program, reads, conv, 3)
  if not w or not given or (named and not bias) or not w:is_floating_point() then return false end
  local gamma, beta, mean, var = table.unpack(given)
  for _, t in ipairs(given) do if t:dim() ~= 1 or t:numel() ~= w:size(1) then return false end end
  local s = gamma / (var + (norm.c.a.epsilon or 1e-5)):sqrt()
  local shape = { w:size(1) }
  for d = 2, w:dim() do shape[d] = 1 end
  local shift = ((named and bias:to "f64" or 0) - mean) * s + beta
  w:copy_(w:to "f64" * s:view(shape)) -- nobody else reads it; a copy would double the memory that loading takes
  if named then
    replace(program, weights, conv.node.input[3], shift:to(bias:dtype()))
  else -- the norm's shift becomes the bias, under its name
    local name = norm.node.input[3]
    if reads[name] ~= 1 then
      name = conv.node.input[2] .. ".bias"
      while program.weights[name] ~= nil or reads[name] do name = name .. "_" end
      program.weights[name] = shift
      local entry = { name = name, tensor = shift, program = program, uses = {} }
      weights[#weights + 1], weights[shift], reads[name] = entry, entry, 1
    end
    replace(program, weights, name, shift:to(w:dtype()))
    weights[program.weights[name]].uses = { { op = "Conv", at = 3 } }
    conv.node.input[3], conv.c.fixed[3] = name, true
  end
  conv.node.output = { norm.node.output[1] }
  return true
end

local function is_inference(step)
  if step.node.op_type ~= "BatchNormalization" or not is_standard(step) then return false end
  for i = 2, #step.node.output do if step.node.output[i] ~= "" then return false end end
  return step.c.a.training_mode ~= 1
end

-- Steps read initializers by their own names: exporters share equal ones by Identity.
local function unalias(program)
  local source, kept = {}, {}
  for _, step in ipairs(program.steps) do
    local node = step.node
    for i, name in ipairs(node.input) do
      if source[name] then node.input[i], step.c.fixed[i] = source[name], true end
    end
    if node.op_type == "Identity" and is_standard(step) and step.c.fixed[1] and program.weights[node.input[1]] then
      source[node.output[1]] = node.input[1]
    end
  end
  local reads = count_reads(program)
  for _, step in ipairs(program.steps) do
    if not source[step.node.output[1]] or reads[step.node.output[1]] then kept[#kept + 1] = step end
  end
  program.steps = kept
end

--- Changes the program and the list of weights.
function fold.batch_norms(program, weights, opset)
  if opset < SINCE then return end
  unalias(program)
  local reads, maker, kept = count_reads(program), {}, {}
  for _, step in ipairs(program.steps) do
    local node = step.node
    local before = is_inference(step) and maker[node.input[1]]
    if before and reads[node.input[1]] == 1 and merge(program, weights, reads, before, step) then
      for i = 1, 5 do reads[node.input[i]] = reads[node.input[i]] - 1 end
      if before.node.input[3] == node.input[3] then reads[node.input[3]] = 1 end
    else
      kept[#kept + 1] = step
      if node.op_type == "Conv" and is_standard(step) then
        maker[node.output[1]] = step
      end
    end
  end
  program.steps = kept
  local used = count_reads(program)
  for i = #weights, 1, -1 do -- what only batch norms read
    local entry = weights[i]
    if entry.program == program and not used[entry.name] and #entry.uses > 0 then
      local norms = true
      for _, use in ipairs(entry.uses) do norms = norms and use.op == "BatchNormalization" end
      if norms then
        table.remove(weights, i)
        weights[entry.tensor], program.weights[entry.name] = nil, nil
      end
    end
  end
end

return fold
