-- SPDX-License-Identifier: MIT
-- perilune convert A B: tensors from one kind of file into another, by what A is and by B's ending.
local T = require "perilune"
local core = require "perilune.core"
local base = require "perilune.nn.module"
local files = require "perilune.command.files"
local json = require "perilune.io.json"
local recognize = require "perilune.io.recognize"
local show = require "perilune.repl.show"

local M = {}

--- Endings of B.
M.endings = { ".safetensors", ".gguf", ".npz", ".graph" }

-- Raises where a number becomes an infinity: a network with one of these says NaN to everything.
local function cast(t, dtype, name)
  t = t:detach()
  if not dtype or not t:is_floating_point() or t:dtype() == dtype then return t end
  local out = t:to(dtype)
  local lost = out:isfinite():logical_not():logical_and(t:isfinite())
  if lost:any():item() then
    local most = t:masked_fill(lost:logical_not(), 0):abs():max():item()
    error(("'%s' has numbers up to %.4g, which %s does not hold%s"):format(name, most, dtype,
      dtype == "f16" and "; bf16 has their range" or ""), 0)
  end
  return out
end

-- A nested value with its tensors cast.
local function cast_all(v, dtype, name)
  if core.is_tensor(v) then return cast(v, dtype, name) end
  if type(v) ~= "table" then return v end
  local out = {}
  for key, x in pairs(v) do out[key] = cast_all(x, dtype, (name and name .. "." or "") .. tostring(key)) end
  return out
end

-- name → tensor, in the order of an opened file.
local function read_all(file, dtype)
  local out = base.ordered_dict(file.names)
  for _, name in ipairs(file.names) do
    local t, message = file.read(name)
    if not t then return nil, message end
    rawset(out, name, cast(t, dtype, name))
  end
  if file.close then file.close() end
  return out
end

-- Metadata as safetensors has it: texts.
local function texts(meta)
  local out = {}
  for key, v in pairs(meta or {}) do
    if type(v) == "table" then v = json.encode(v) end
    if math.type(v) == "float" and v - v == 0 then -- with all its digits
      v = tonumber(("%.15g"):format(v)) == v and ("%.15g"):format(v) or ("%.17g"):format(v)
    end
    out[tostring(key)] = tostring(v)
  end
  return out
end

local writers = {}

writers[".safetensors"] = function(from, kind, to, options)
  if kind == "pt" or kind == "folder" or kind == "json" then -- nested values keep their form
    local v, meta, code = T.load(from)
    if v == nil then return nil, meta, code end
    if core.is_tensor(v) then v = { tensor = v } end
    if type(v) ~= "table" then return nil, from .. ": no table of tensors" end
    return T.save(to, cast_all(v, options.dtype), { metadata = texts(kind ~= "pt" and meta or nil) })
  end
  local file, message = files.open(from, true)
  if not file then return nil, message end
  local tensors
  tensors, message = read_all(file, options.dtype)
  if not tensors then return nil, message end
  local meta = texts(file.meta)
  local tree = meta["perilune.tree"]
  if tree then -- a nested file of T.save
    local v
    v, meta = T.load(from)
    if v == nil then return nil, meta end
    return T.save(to, cast_all(v, options.dtype), { metadata = meta })
  end
  return T.save(to, tensors, { metadata = meta })
end

writers[".npz"] = function(from, _, to, options)
  local file, message = files.open(from, true)
  if not file then return nil, message end
  local tensors
  tensors, message = read_all(file, options.dtype)
  if not tensors then return nil, message end
  return T.save_npz(to, tensors)
end

writers[".gguf"] = function(from, kind, to, options)
  if kind == "gguf" and not options.dtype then return require("perilune.io.gguf").rewrite(from, to, options.type) end
  local file, message = files.open(from, true)
  if not file then return nil, message end
  local tensors
  tensors, message = read_all(file, options.dtype)
  if not tensors then return nil, message end
  for name, t in pairs(tensors) do -- GGUF has no tensors without dimensions
    if t:dim() == 0 then rawset(tensors, name, t:reshape(1)) end
  end
  if kind == "gguf" then -- one file, whatever parts it was in
    local meta, kinds = {}, {}
    for key, v in pairs(file.meta) do
      if not key:find "^split%." then meta[key], kinds[key] = v, file.kinds[key] end
    end
    local stored = meta["general.file_type"] and require("perilune.io.gguf").file_type(options.type, options.dtype)
    if stored then meta["general.file_type"] = stored end
    return T.save_gguf(to, tensors, { metadata = meta, kinds = kinds, type = options.type })
  end
  local meta = texts(file.kind == "PyTorch" and {} or file.meta)
  meta["perilune.tree"] = nil
  return T.save_gguf(to, tensors, { metadata = meta, type = options.type })
end

-- Sizes by name, of --size NAME=N or NAME=A..B: {least, most}; nil, message.
local function sizes_of(list)
  local out = {}
  for _, text in ipairs(list or {}) do
    local name, least, most = text:match "^(.+)=(%d+)%.%.(%d+)$"
    if not name then name, least = text:match "^(.+)=(%d+)$" end
    if not name then return nil, ("--size is NAME=N or NAME=LEAST..MOST, got '%s'"):format(text) end
    least = math.tointeger(tonumber(least))
    most = most and math.tointeger(tonumber(most)) or not most and least
    if not least or not most then return nil, ("--size %s is too large"):format(text) end
    out[name] = { least, most }
  end
  return out
end

-- Inputs of an ONNX file: names, shapes of an example, and what is free in them (as T.save_graph's dynamic and sizes),
-- where --size says no number.
local function inputs_of(from, net, sizes)
  local names, shapes, dynamic, bounds, program = {}, {}, {}, {}, net._program()
  for i, input in ipairs(net.inputs) do
    if not input.optional then
      local about, shape = program.input_types[i], {}
      if not about.shape then
        return nil, ("%s: input '%s' has no number of dimensions in the file"):format(from, input.name)
      end
      if not input.dtype then return nil, ("%s: input '%s' is no tensor of a dtype here"):format(from, input.name) end
      for d, n in ipairs(about.shape) do
        local param = not n and about.param[d].param or nil
        local name = param ~= nil and param ~= "" and param or ("%s:%d"):format(input.name, d)
        local range = not n and sizes[name] or nil
        if not n and not (range and range[1] == range[2]) then
          dynamic[input.name] = dynamic[input.name] or {}
          dynamic[input.name][d] = name
          bounds[name] = range
          -- an example that is neither 1 nor another's size tells more
          n = math.min(range and range[2] or 5, math.max(range and range[1] or 1, 5))
        end
        shape[d] = n or range[1]
      end
      names[#names + 1], shapes[#shapes + 1] = input, shape
    end
  end
  return names, shapes, dynamic, bounds
end

-- A model as a graph that runs without Lua: with the file's names of inputs and outputs.
writers[".graph"] = function(from, kind, to, options)
  if kind ~= "onnx" then
    return nil, from .. ": only ONNX files become graphs here; T.save_graph(path, f:graph()) writes that of a jitted "
      .. "function"
  end
  local sizes, message = sizes_of(options.size)
  if not sizes then return nil, message end
  local net
  net, message = T.onnx.load(from, { inference = true })
  if not net then return nil, message end
  net:eval()
  local inputs, shapes, dynamic, bounds = inputs_of(from, net, sizes)
  if not inputs then return nil, shapes end
  local names = {}
  for i, input in ipairs(inputs) do names[i] = input.name end
  local free = require("perilune.graph.sizes").read("convert", names, shapes, dynamic, bounds)
  if options.fixed and #free > 0 then
    local list = {}
    for i, s in ipairs(free) do list[i] = s.name end
    return nil, ("%s: sizes that the file leaves free: give --size %s=N"):format(from, table.concat(list, "=N --size "))
  end
  local nodes
  local function graph_at(moved)
    local g, given, outputs = T.graph(), {}, {}
    for i, input in ipairs(inputs) do
      given[input.name] = g:input(input.name, moved[i], { dtype = input.dtype })
    end
    local results = table.pack(g:trace(function() return net(given) end))
    for i, output in ipairs(net.outputs) do
      if not core.is_tensor(results[i]) then error(("%s: output '%s' is no tensor"):format(from, output.name), 0) end
      outputs[output.name] = results[i]
    end
    g:outputs(outputs)
    if not nodes then nodes = select(2, tostring(g):gsub("\n", "")) end
    return g
  end
  local ok, why, code = T.no_grad(function()
    return require("perilune.graph.file").save_free("convert", to, shapes, free, graph_at)
  end)
  if not ok then return nil, why, code end
  local ranges = {}
  for i, s in ipairs(free) do ranges[i] = ("%s %d to %d"):format(s.name, s.least, s.most) end
  return ("%s: a graph of %d lines, %d input%s, %d output%s%s; tensors in %s.safetensors"):format(show.printable(to),
    nodes, #net.inputs, #net.inputs == 1 and "" or "s", #net.outputs, #net.outputs == 1 and "" or "s",
    #free > 0 and ", free sizes: " .. show.printable(table.concat(ranges, ", ")) or "", show.printable(to))
end

--- An ONNX file as a saved graph. → a text; or nil, message
function M.graph(from, to, options)
  local kind, message = recognize.kind(from)
  if not kind then return nil, message end
  local ok, result, why = core.attempt(writers[".graph"], from, kind, to, options)
  if not ok then return nil, (tostring(result):gsub("^[^:]*:%d+: ", "")) end
  return result, why
end

--- What is wrong with the name of B and the options; nil if nothing is.
function M.problem(to, options)
  local ending = to:match "%.%w+$"
  if not ending or not writers[ending] then
    return ("B must end in %s"):format(table.concat(M.endings, ", "))
  end
  if options.type and ending ~= ".gguf" then return "--type is for .gguf" end
  if ending == ".graph" and options.dtype then return "--dtype is for files of tensors" end
  if options.size and ending ~= ".graph" then return "--size is for .graph" end
  if options.type then
    local known = require("perilune.io.gguf").types()
    if not known[options.type] then return "unknown type " .. options.type end
  end
  if options.dtype and not ({ f32 = true, f64 = true, f16 = true, bf16 = true })[options.dtype] then
    return "--dtype is f32, f64, f16 or bf16"
  end
end

-- options: {type=, dtype=}. → exit status
function M.run(from, to, options)
  local write = writers[to:match "%.%w+$"]
  local function failed(message)
    io.stderr:write("perilune convert: ", show.printable(message), "\n")
    return 1
  end
  local kind, message = recognize.kind(from)
  if not kind then return failed(message) end
  local ok, result, why = core.attempt(write, from, kind, to, options)
  if not ok then return failed((tostring(result):gsub("^[^:]*:%d+: ", ""))) end
  if not result then return failed(why) end
  if type(result) == "string" then
    print(result)
    return 0
  end
  local file
  file, message = files.open(to)
  if not file then return failed(message) end
  print(("%s: %s, %d tensor%s"):format(show.printable(to), file.kind, #file.names, #file.names == 1 and "" or "s"))
  if file.close then file.close() end
  T.empty_cache()
  return 0
end

return M
