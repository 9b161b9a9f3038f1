-- SPDX-License-Identifier: MIT
-- Graphs in files: a text that lists inputs, nodes and outputs, and beside it a safetensors file with the tensors that
-- the graph captured. Both are replaced together, and both carry a checksum of the text as it was saved: what a crash
-- between the two left is told from a pair.
--
-- A text is not trusted. Each line is read whole, by its form; values are made once and before they are used; loading
-- builds the graph again through the same ops that made it, whose rules check inputs and attributes, and what they
-- say of the results must be what the line says.
local T = require "perilune"
local options = require "perilune.options"
local free = require "perilune.graph.sizes"
local loaded = require "perilune.loaded"

local core, fail, describe = T.core, options.fail, options.describe
local M = {}

local HEADER = "perilune graph 1"
local PAIR = "perilune.graph" -- the metadata key of the tensors' file that holds its text's checksum
-- Two files cannot get their names at once. The tensors come first, with the new text and the checksum of the one that
-- it replaces: where a save was cut in between, the old text is told by that and the new one taken.
local REPLACES, TEXT = "perilune.graph.replaces", "perilune.graph.text"

-- ---- values as text --------------------------------------------------------------------------------------------

local function number_text(v)
  if math.type(v) == "integer" then return tostring(v) end
  if v ~= v then return "nan" end
  if v == math.huge then return "inf" end
  if v == -math.huge then return "-inf" end
  local s = ("%.17g"):format(v)
  return s:find("[%.e]") and s or s .. ".0"
end

-- Lines are lists of pieces, texts and integers as {v}, so that those of traces at other sizes can be compared
-- (sizes.lua).
local function integer(v, what) return { v, what = what } end

local function put(line, ...)
  for _, piece in ipairs { ... } do line[#line + 1] = piece end
  return line
end

local function put_number(line, v, what)
  if math.type(v) == "integer" then return put(line, integer(v, what)) end
  if v == math.floor(v) and math.abs(v) < 1 << 53 then
    return put(line, { math.tointeger(v), text = number_text(v), what = what })
  end
  return put(line, number_text(v))
end

local function put_attr(line, v, what)
  if type(v) == "table" then
    put(line, "{")
    for i, x in ipairs(v) do put_number(put(line, i > 1 and "," or ""), x, what) end
    return put(line, "}")
  end
  if type(v) == "number" then return put_number(line, v, what) end
  if type(v) == "string" then return put(line, '"' .. v .. '"') end
  return put(line, tostring(v))
end

-- "3:f32[2x4]": an output of a node, with its type.
local function put_output(line, v, dtype, shape)
  if dtype == "none" then return put(line, v .. ":none") end
  put(line, ("%d:%s["):format(v, dtype))
  for d, n in ipairs(shape) do put(line, d > 1 and "x" or "", { n, of = v, dim = d }) end
  return put(line, "]")
end

local function put_sizes(line, list)
  if #list == 0 then return put(line, "-") end
  for d, n in ipairs(list) do put(line, d > 1 and "," or "", integer(n, "a size")) end
  return line
end

local function read_number(s)
  if s == "nan" then return 0 / 0 end
  if s == "inf" then return math.huge end
  if s == "-inf" then return -math.huge end
  if not s:match("^%-?%d[%d%.eE+-]*$") then return nil end
  return tonumber(s)
end

-- A whole number that is written like one; lo and hi are its bounds.
local function read_integer(s, lo, hi)
  local v = s:match("^%-?%d+$") and math.tointeger(tonumber(s))
  if v and tostring(v) == s and v >= (lo or v) and v <= (hi or v) then return v end
end

local function read_attr(s)
  local list = s:match("^{(.*)}$")
  if list then
    local out = {}
    for x in (list == "" and "" or list .. ","):gmatch("([^,]*),") do
      local v = read_number(x)
      if v == nil then return nil end
      out[#out + 1] = v
    end
    return out
  end
  if s == "true" then return true end
  if s == "false" then return false end
  return s:match('^"(.*)"$') or read_number(s)
end

-- Names may hold anything; blanks and control characters are written as %XX.
local function escape(s) return (s:gsub("[%%%s%c]", function(c) return ("%%%02X"):format(c:byte()) end)) end
local function unescape(s) return (s:gsub("%%(%x%x)", function(h) return string.char(tonumber(h, 16)) end)) end
-- A name without zero bytes, which the engine's names cannot have; else an error.
local function read_name(s)
  local name = unescape(s)
  if name:find "\0" then error("its name has a zero byte", 0) end
  return name
end

local function sizes(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = tostring(v) end
  return #out == 0 and "-" or table.concat(out, ",")
end

-- ---- saving --------------------------------------------------------------------------------------------------------

local function node_line(node)
  local keys, inputs = {}, {}
  for key in pairs(node.attrs) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, v in ipairs(node.inputs) do inputs[i] = v and tostring(v) or "-" end
  local line = { ("node %s %s %d %d %s -> "):format(escape(node.name), node.op, node.stage, node.origin or 0,
    #inputs == 0 and "-" or table.concat(inputs, ",")) }
  if #node.outputs == 0 then put(line, "-") end
  for i, v in ipairs(node.outputs) do
    if i > 1 then put(line, ",") end
    put_output(line, v, node.dtypes[i], node.shapes[i])
  end
  put(line, " ")
  for i, key in ipairs(keys) do
    put(line, i > 1 and " " or "", key, "=")
    put_attr(line, node.attrs[key], key)
  end
  return line
end

local function pair_of(text) return text:match("^[^\n]*\npair (%x+)\n") end

-- What a graph's schedule-free optimizers step: the numbers of these values.
local function stepped_by_modes(g)
  local out = {}
  for _, node in ipairs(g:nodes()) do
    if node.op == "optimizer_step" and node.attrs.rule:find "^schedule_free" then
      for at = 1, #node.inputs, node.attrs.k do out[node.inputs[at]] = true end
    end
  end
  return out
end

-- A graph's lines, and its tensors by the numbers of their values. state: to compare, not to save.
local function lines_of(g, state)
  local modes = not state and loaded["perilune.optim.modes"] -- no optimizer, no modes
  local lines, tensors, named, stepped = {}, {}, {}, stepped_by_modes(g)
  local function add(text) lines[#lines + 1] = { text } end
  for _, leaf in ipairs(core.graph_leaves(g.ir)) do
    if leaf.kind == "input" then
      local own, k = leaf.name, 1
      while named[own] do own, k = ("%s_%d"):format(leaf.name, k + 1), k + 1 end -- as graph.lua calls them
      named[own] = true
      add(("input %d %s %s "):format(leaf.value, escape(own), leaf.dtype))
      put(put_sizes(lines[#lines], leaf.shape), leaf.leaf and " leaf" or " fed")
    elseif leaf.kind == "same" then
      add(("same %d %d"):format(leaf.value, leaf.of))
    elseif leaf.kind == "number" then
      add(("number %d %s %s "):format(leaf.value, leaf.dtype, leaf.weak and "weak" or "tensor"))
      put_number(lines[#lines], leaf.number, "a number")
    else
      add(("%s %d"):format(leaf.kind, leaf.value))
      tensors[tostring(leaf.value)] = leaf.tensor
      if modes then modes.check_saved("save_graph", leaf.tensor, stepped[leaf.value] or false) end
    end
  end
  local pieces, npieces = {}, 0
  for _, node in ipairs(g:nodes()) do
    lines[#lines + 1] = node_line(node)
    if node.after then add("after " .. sizes(node.after)) end
    if node.whole then
      if not pieces[node.whole] then pieces[node.whole], npieces = npieces + 1, npieces + 1 end
      add("whole " .. pieces[node.whole])
    end
  end
  for i, v in ipairs(g.given or core.graph_output_values(g.ir)) do
    local key = g.given and i or g.keys[i]
    add(("output %d %s"):format(v, type(key) == "number" and "#" .. key or "=" .. escape(key)))
  end
  for _, region in ipairs(core.graph_regions(g.ir)) do
    local ys, chosen = {}, {}
    for i, v in ipairs(region.ys) do ys[i] = tostring(v) end
    for k, c in pairs(region.choice) do chosen[#chosen + 1] = ("%d:%d"):format(k, c) end
    table.sort(chosen)
    add(("region %d %s %d %s %s %s %s %s"):format(region.policy, number_text(region.fraction),
      region.bytes, region.seeded, region.heavy, region.listed, sizes(ys), #chosen == 0 and "-" or
      table.concat(chosen, ",")))
  end
  return lines, tensors
end

local function texts_of(lines)
  local out = {}
  for i, line in ipairs(lines) do
    local texts = {}
    for j, piece in ipairs(line) do texts[j] = type(piece) == "string" and piece or piece.text or tostring(piece[1]) end
    out[i] = table.concat(texts)
  end
  return out
end

--- A graph's lines as a file has them between pair and end, its tensors by the numbers of their values, and its
-- constants among these.
function M.lines(g)
  local lines, tensors = lines_of(g, true)
  local constants = {}
  for _, leaf in ipairs(core.graph_leaves(g.ir)) do
    if leaf.kind == "const" then constants[tostring(leaf.value)] = true end
  end
  return texts_of(lines), tensors, constants
end

--- A line of a node, but for its attributes; these, by name.
function M.node_parts(line)
  local head, rest = line:match("^(node %S+ %S+ %d+ %d+ %S+ %-> %S+) (.*)$")
  if not head then return nil end
  local attrs = {}
  for key, value in rest:gmatch("(%S+)=(%S*)") do attrs[key] = read_attr(value) end
  return head, attrs
end

local function write_files(path, lines, tensors)
  table.insert(lines, 1, HEADER)
  lines[#lines + 1] = "end\n"
  local names, list = {}, {}
  for name, t in pairs(tensors) do names[#names + 1], list[#list + 1] = name, t end
  local sum = ("%08x"):format(core.crc32c(table.concat(lines, "\n")))
  table.insert(lines, 2, "pair " .. sum)
  local text, metadata = table.concat(lines, "\n"), { PAIR, sum }
  local old = io.open(path, "rb")
  local replaced = old and pair_of(old:read(256) or "")
  if old then old:close() end
  if replaced and replaced ~= sum then
    local utf8 = text:gsub("[%%\128-\255]", function(c) return ("%%%02X"):format(c:byte()) end)
    metadata = { PAIR, sum, REPLACES, replaced, TEXT, utf8 }
  end
  return core.save_safetensors(path .. ".safetensors", names, list, metadata, path, text)
end

--- Saves graphs of one function whose inputs have these names and, in the example, shapes; free: what sizes.read gave.
-- graph_at(shapes) → the graph for other ones.
function M.save_free(who, path, shapes, sizes_free, graph_at)
  local lines, tensors = free.lines(who, sizes_free, shapes, function(moved) return lines_of(graph_at(moved)) end)
  for k = #sizes_free, 1, -1 do
    local s = sizes_free[k]
    table.insert(lines, 1, ("size %s %d %d %d"):format(escape(s.name), s.size, s.least, s.most))
  end
  return write_files(path, lines, tensors)
end

local function put_results(who, v, i, out)
  if core.is_tensor(v) then
    out[#out + 1] = v
  elseif type(v) == "table" and getmetatable(v) == nil then
    for k = 1, #v do put_results(who, v[k], i, out) end
  elseif v ~= nil then
    fail("%s: result %d is %s; tensors are wanted", who, i, describe(v))
  end
end

local function save_function(path, f, inputs, opts)
  local who = "save_graph"
  opts = options.check(who, opts, { "dynamic", "sizes", "input_names", "output_names" })
  if core.is_tensor(inputs) then inputs = { inputs } end
  options.tensors(who, "inputs", inputs, 1)
  local names, shapes = options.names(who, "input_names", opts.input_names, #inputs, "x"), {}
  for i, x in ipairs(inputs) do shapes[i] = x:shape() end
  local free_sizes = free.read(who, names, shapes, opts.dynamic or {}, opts.sizes)
  local function graph_at(moved)
    local g, xs, out = T.graph(), {}, {}
    for i, x in ipairs(inputs) do xs[i] = g:input(names[i], moved[i], { dtype = x:dtype() }) end
    local got = table.pack(g:trace(function(...) return f(...) end, table.unpack(xs)))
    for i = 1, got.n do put_results(who, got[i], i, out) end
    if #out == 0 then fail("%s: the function returns no tensor", who) end
    if opts.output_names then
      local keyed = {}
      for i, name in ipairs(options.names(who, "output_names", opts.output_names, #out)) do keyed[name] = out[i] end
      out = keyed
    end
    return g:outputs(out)
  end
  return T.no_grad(function() return M.save_free(who, path, shapes, free_sizes, graph_at) end)
end

-- A jitted function's graph with free sizes: the calls that its trace noted are made again for others, as T.jit does
-- (docs/design/symbolic-sizes.md), and the optimizers' nodes have the numbers of this one.
local function save_traced(path, g, opts)
  local who = "save_graph"
  opts = options.check(who, opts, { "dynamic", "sizes" })
  local names, shapes, dtypes, devices = {}, {}, {}, {}
  for _, leaf in ipairs(core.graph_leaves(g.ir)) do
    if leaf.kind == "input" and #names < g.arguments then
      local i = #names + 1
      names[i], shapes[i], dtypes[i], devices[i] = leaf.name, leaf.shape, leaf.dtype, leaf.device
    end
  end
  local free_sizes = free.read(who, names, shapes, opts.dynamic or {}, opts.sizes)
  local function graph_at(moved)
    local xs = {}
    for i, shape in ipairs(moved) do xs[i] = T.empty(shape, { dtype = dtypes[i], device = devices[i] }) end
    local at, why = g.at_sizes(xs)
    if not at then fail("%s: the function is another one for other sizes: %s", who, why) end
    return at
  end
  return M.save_free(who, path, shapes, free_sizes, graph_at)
end

--- T.save_graph(path, graph_or_function, inputs, {dynamic=, sizes=, input_names=, output_names=}) → true, or nil, error
-- Writes a text (path) and the captured tensors (path .. ".safetensors"); both are replaced, or neither. Of a function
-- or module: its graph for the example inputs (a tensor or a list) without gradients. dynamic: {x = {[1] = "batch"}}:
-- the first size of x is free and called batch; equal names are equal sizes. sizes: {batch = {1, 64}}: its least and
-- largest value (1 and 4096 where none are given). The function is traced at some dozen sets of sizes between these;
-- what does not follow the sizes by one formula is an error. Names are x (x1, x2, …).
-- T.save_graph(path, step:graph(), {dynamic=, sizes=}): so, too, of a jitted function, one that trains included, which
-- was called with the example: {x1 = {"batch"}, x2 = {"batch"}} are its arguments.
--   local g = T.graph()
--   g:outputs { g:input("x", { 2 }) * 2 }
--   local path = os.tmpname()
--   print(T.save_graph(path, g))  --> true
--   print(T.save_graph(path, nn.Linear(2, 3), T.ones(4, 2), { dynamic = { x = { "n" } } }))  --> true
--   print(assert(T.load_graph(path, { sizes = { n = 7 } })):run { x = T.ones(7, 2) }[1]:size(1))  --> 7
--   os.remove(path .. ".safetensors")
function M.save(path, g, ...)
  if type(path) ~= "string" then fail("save_graph: the path must be a string, got %s", describe(path)) end
  local callable = type(g) == "function" or type(g) == "table" and getmetatable(g) and getmetatable(g).__call
  if callable then return save_function(path, g, ...) end
  if type(g) ~= "table" or not g.ir then fail("save_graph: a graph expected, got %s", describe(g)) end
  if select("#", ...) > 0 and not (g.at_sizes and select("#", ...) == 1 and type((...)) == "table") then
    fail("save_graph: a graph has its inputs already; nothing may follow it but, for a jitted function's graph, "
      .. "{dynamic=, sizes=}")
  end
  if g.given and g.given.strange then
    fail("save_graph: the function returns a tensor that it did not compute, which is no value of the graph; "
      .. "return a copy, such as t:clone()")
  end
  if g.beside then
    fail("save_graph: %s %s with numbers of Lua beside the graph, which a file would lack; leave that out of the "
      .. "function, and do it where the graph runs (perilune_model_set sets lr)", table.concat(g.beside, ", "),
      #g.beside == 1 and "steps" or "step")
  end
  if g.traced then require("perilune.jit.optimizers").settle_saved(g) end
  if ... then return save_traced(path, g, ...) end
  local lines, tensors = lines_of(g)
  return write_files(path, texts_of(lines), tensors)
end

-- ---- loading -------------------------------------------------------------------------------------------------------

local readers = {}
local MOST = 1 << 28 -- value numbers

local function list_of(s)
  local out = {}
  if s == "-" then return out end
  for x in (s .. ","):gmatch("([^,]*),") do out[#out + 1] = x end
  return out
end

-- The number of a value that no line before has made.
local function new_value(state, s)
  local v = read_integer(s, 0, MOST)
  if not v then return nil, "value number " .. s end
  if state.made[v] then return nil, ("value %d is made twice"):format(v) end
  state.made[v] = true
  return v
end

local function read_shape(s, separator)
  local shape = {}
  if s == "" then return shape end
  for x in (s .. separator):gmatch("([^" .. separator .. "]*)" .. separator) do
    local n = read_integer(x, 0)
    if not n or #shape == 64 then return nil end
    shape[#shape + 1] = n
  end
  return shape
end

local function size_of(state)
  return function(v, d)
    local t = state.values[v]
    return core.is_tensor(t) and d <= t:dim() and t:size(d) or nil
  end
end

-- A field in which expressions of free sizes are their values; nil: one has none.
local function settle(state, s, separator)
  if not free.is_free(s) then return s end
  local list = s:match "^{(.*)}$"
  local out = {}
  for x in ((list or s) .. separator):gmatch("([^" .. separator .. "]*)" .. separator) do
    local v = free.is_free(x) and free.value(x, state.sizes, size_of(state)) or not free.is_free(x) and x
    if not v then return nil end
    out[#out + 1] = tostring(v)
  end
  local text = table.concat(out, separator)
  return list and "{" .. text .. "}" or text
end

function readers.size(state, line)
  local name, example, least, most = line:match "^size (%S+) (%S+) (%S+) (%S+)$"
  least = name and read_integer(least, 1, 0x7fffffff)
  most = least and read_integer(most, least, 0x7fffffff)
  example = most and read_integer(example, least, most)
  if not example then return "a size line" end
  if #state.sizes == free.most then return ("more than %d free sizes"):format(free.most) end
  name = read_name(name)
  for _, s in ipairs(state.free) do
    if s.name == name then return "there is a size named '" .. name .. "' already" end
  end
  local v = state.wanted[name] or example
  if math.type(v) ~= "integer" or v < least or v > most then
    state.problem = ("the size '%s' must be an integer from %d to %d, got %s"):format(name, least, most, describe(v))
    return state.problem
  end
  state.free[#state.free + 1] = { name = name, size = example, least = least, most = most }
  state.sizes[#state.sizes + 1] = v
end

function readers.input(state, line)
  local s, name, dtype, shape, kind = line:match("^input (%d+) (%S+) (%S+) (%S+) (%S+)$")
  if not s or kind ~= "leaf" and kind ~= "fed" then return "an input line" end
  local v, problem = new_value(state, s)
  if not v then return problem end
  local settled = settle(state, shape, ",")
  local list = settled and read_shape(settled == "-" and "" or settled, ",")
  if not list then return "the sizes " .. shape end
  state.values[v] = state.graph:input(read_name(name), list, { dtype = dtype, leaf = kind == "leaf" })
end

function readers.number(state, line)
  local s, dtype, kind, text = line:match("^number (%d+) (%S+) (%S+) (%S+)$")
  text = text and settle(state, text, ",")
  local number = text and read_number(text)
  if number == nil or kind ~= "weak" and kind ~= "tensor" then return "a number line" end
  local v, problem = new_value(state, s)
  if not v then return problem end
  state.values[v] = core.graph_number(state.graph.ir, number, dtype, kind == "weak")
end

local function stored(state, line)
  local s = line:match("^%a+ (%d+)$")
  if not s then return "a line of a stored tensor" end
  local v, problem = new_value(state, s)
  if not v then return problem end
  local t = state.tensors[s]
  if not core.is_tensor(t) then return "a tensor that the safetensors file lacks" end
  state.values[v], state.stored[v] = t, true
end
readers.capture, readers.constant = stored, stored

-- Another value of a captured tensor: p:detach() beside p.
function readers.same(state, line)
  local s, of = line:match "^same (%d+) (%d+)$"
  of = of and read_integer(of, 0, MOST)
  if not of then return "a line of a captured tensor that is there twice" end
  local v, problem = new_value(state, s)
  if not v then return problem end
  if not state.stored[of] then return "a captured tensor that is not there" end
  state.values[v] = state.values[of]
end

-- key=value behind each other → {key = value}; nil where anything else is there.
local function read_attrs(state, text)
  local attrs, at = {}, 1
  while at <= #text do
    local key, value, behind = text:match("^([%w_]+)=(%b{})()", at)
    if not key then key, value, behind = text:match("^([%w_]+)=([^%s{}]+)()", at) end
    if not key or attrs[key] ~= nil then return nil end
    if not value:find '^"' then value = settle(state, value, ",") end
    attrs[key] = value and read_attr(value)
    if attrs[key] == nil then return nil end
    at = text:match("^ ()", behind) or behind
    if at == behind and at <= #text then return nil end
  end
  return attrs
end

-- Is what the op made what the line says? Files that say nothing of types were saved before types were noted.
local function result_problem(state, x, said, name)
  if said == "" then return nil end
  if said == "none" then
    if x then return ("%s gives an output more than the line says"):format(name) end
    return nil
  end
  local dtype, size_text = said:match("^(%w+)%[([%dx$@*+.?-]*)%]$")
  local real, d = x and core.is_tensor(x) and x:shape() or {}, 0
  if dtype then -- "?" is what the rule gives
    size_text = (size_text .. "x"):gsub("([^x]*)x", function(one)
      d = d + 1
      return (one == "?" and tostring(real[d] or 0) or one) .. "x"
    end):sub(1, -2)
    size_text = settle(state, size_text, "x")
  end
  local shape = size_text and read_shape(size_text, "x")
  if not shape then return "the type " .. said end
  local got = x and core.is_tensor(x) and x:dtype() .. "[" .. table.concat(x:shape(), "x") .. "]" or "nothing"
  local want = dtype .. "[" .. table.concat(shape, "x") .. "]"
  if got ~= want then return ("%s gives %s, the line says %s"):format(name, got, want) end
end

function readers.node(state, line)
  local name, op, stage, origin, ins, outs, rest = line:match("^node (%S+) (%S+) (%d+) (%d+) (%S+) %-> (%S+) ?(.*)$")
  if not name then return "a node line" end
  local inputs, said, numbers = list_of(ins), {}, {}
  for i, s in ipairs(inputs) do
    local v = read_integer(s, 0, MOST)
    inputs[i] = s ~= "-" and state.values[v or -1]
    if inputs[i] == nil then return "value " .. s .. " used before it is made" end
  end
  local attrs = read_attrs(state, rest)
  if not attrs then return "its attributes" end
  local level, from = read_integer(stage, 0, 255), read_integer(origin, 0, #state.nodes)
  if not level then return "stage " .. stage end
  if not from then return "origin " .. origin .. " is no node before it" end
  for i, s in ipairs(list_of(outs)) do
    local number, type_ = s:match("^(%d+):(.+)$")
    if not number then number, type_ = s:match("^%d+$"), "" end
    if not number or #numbers >= 65536 then return "its outputs" end
    local v, problem = new_value(state, number)
    if not v then return problem end
    numbers[i], said[i] = v, type_
  end
  local made, node = core.graph_apply(state.graph.ir, op, inputs, attrs, level, read_name(name),
    state.nodes[from] or 0)
  if #made ~= #numbers then return ("%s has %d outputs, the line names %d"):format(op, #made, #numbers) end
  state.nodes[#state.nodes + 1] = node
  for i, v in ipairs(numbers) do
    local problem = result_problem(state, made[i], said[i], op)
    if problem then return problem end
    state.values[v] = made[i] or nil
  end
end

-- The node before runs after these.
function readers.after(state, line)
  local list = line:match("^after ([%d,]+)$")
  if not list or #state.nodes == 0 then return "a line of nodes that come first" end
  for _, s in ipairs(list_of(list)) do
    local k = read_integer(s, 1, #state.nodes - 1)
    if not k then return "a node that comes first but is not there" end
    core.graph_after(state.graph.ir, state.nodes[#state.nodes], state.nodes[k])
  end
end

-- The node before is of a piece that Ctrl-C does not part.
function readers.whole(state, line)
  local piece = #state.nodes > 0 and read_integer(line:match "^whole (%d+)$" or "", 1, #state.nodes)
  if not piece then return "a line of nodes that are one piece" end
  core.graph_whole(state.graph.ir, state.nodes[#state.nodes], piece)
end

local TRUTH = { ["true"] = true, ["false"] = false }

function readers.region(state, line)
  local policy, fraction, bytes, seeded, heavy, listed, ys, chosen =
    line:match("^region (%d) (%S+) (%-?%d+) (%a+) (%a+) (%a+) (%S+) (%S+)$")
  if not policy then return "a region line" end
  local region = { policy = read_integer(policy, 0, 3), fraction = read_number(fraction),
    bytes = read_integer(bytes, -1), ys = {}, seeded = TRUTH[seeded], heavy = TRUTH[heavy], listed = TRUTH[listed] }
  if not (region.policy and region.fraction and region.bytes and region.fraction <= 1)
    or region.seeded == nil or region.heavy == nil or region.listed == nil then
    return "a region line"
  end
  for i, s in ipairs(list_of(ys)) do
    region.ys[i] = state.values[read_integer(s, 0, MOST) or -1]
    if not region.ys[i] then return "an unknown value of a region" end
  end
  if chosen ~= "-" or region.listed then
    region.choice = {}
    for i = 1, state.nodes[#state.nodes] or 0 do region.choice[i] = 0 end
    for _, pair in ipairs(list_of(chosen)) do
      local k, c = pair:match("^(%d+):(%-?%d)$")
      local node = k and state.nodes[read_integer(k, 1) or 0]
      local choice = node and read_integer(c, -1, 2)
      if not choice then return "an unknown node of a region, or an unknown choice" end
      region.choice[node] = choice
    end
  end
  core.graph_region(state.graph.ir, region)
end

function readers.output(state, line)
  local s, kind, key = line:match("^output (%d+) ([#=])(%S*)$")
  local t = s and state.values[read_integer(s, 0, MOST) or -1]
  if not t then return "an output line" end
  local name
  if kind == "#" then
    name = read_integer(key, 1)
    if name ~= #state.outputs + 1 then return ("output #%s does not follow #%d"):format(key, #state.outputs) end
  else
    name = read_name(key)
  end
  if state.output_names[tostring(name)] then return "output " .. key .. " is named twice" end
  state.outputs[name], state.output_names[tostring(name)] = t, true
end

-- The checksum is that of the text when it was saved: a text edited since still goes with its tensors.
function readers.pair(state, line)
  if state.paired then return "a second pair line" end
  if line ~= "pair " .. tostring(state.pair) then
    return "its tensors (the .safetensors file beside it) come from another save; save the graph again"
  end
  state.paired = true
end

--- The graph of a text, or nil and what is wrong with it. tensors: by the number of their value; pair: the checksum
-- that came with them; wanted: free sizes by name, else they are the example's.
function M.build(text, tensors, pair, wanted)
  local state = { wanted = wanted or {}, sizes = {}, free = {}, pair = pair, graph = T.graph(), tensors = tensors,
    stored = {}, values = {}, made = {}, outputs = {}, output_names = {}, nodes = {} }
  local number, done = 0, false
  for line, at in text:gmatch("([^\n]*)\n()") do
    number = number + 1
    if number == 1 then
      if line ~= HEADER then return nil, "this is no saved graph" end
    elseif line == "end" then
      if at <= #text then return nil, ("line %d: there is more behind the end"):format(number + 1) end
      done = true
      break
    else
      local reader = readers[line:match("^%a+")]
      local ok, problem = true, "an unknown line"
      if reader then ok, problem = core.attempt(reader, state, line) end
      if not ok then problem = tostring(problem):gsub("^[^:]*:%d+: ", "") end
      if problem then return nil, ("line %d: %s"):format(number, problem) end
    end
  end
  if not done then return nil, "the file is cut off" end
  if not state.paired then return nil, "it does not say which tensors go with it" end
  if next(state.outputs) == nil then return nil, "it names no outputs" end
  for name in pairs(state.wanted) do
    local known = false
    for _, one in ipairs(state.free) do known = known or one.name == name end
    if not known then return nil, ("it leaves no size '%s' free"):format(tostring(name)) end
  end
  local ok, problem = core.attempt(state.graph.outputs, state.graph, state.outputs)
  if not ok then return nil, tostring(problem) end
  ok, problem = core.attempt(core.graph_verify, state.graph.ir)
  if not ok then return nil, tostring(problem) end
  state.graph.trains = true -- if it does: attributes of optimizers are those of their newest step
  return state.graph
end

--- The two files of a saved graph → its text, tensors by the numbers of their values, and the checksum that came with
-- these; or nil, message, code.
function M.read(path)
  local f, why = io.open(path, "rb")
  if not f then return nil, why, "io" end
  local text = f:read("a")
  f:close()
  if not text then return nil, path .. ": cannot be read", "io" end
  local tensors, metadata, code = T.load(path .. ".safetensors")
  if not tensors then return nil, metadata, code end
  local sum = pair_of(text)
  if sum and sum ~= metadata[PAIR] and sum == metadata[REPLACES] and metadata[TEXT] then
    text = unescape(metadata[TEXT])
  end
  return text, tensors, metadata[PAIR]
end

--- T.load_graph(path, {sizes=}) → graph, captured tensors; or nil, message, code
-- Builds a saved graph again, gradient passes and their recomputation included. sizes: {batch = 8}, where it was saved
-- with free sizes; those that are not given are the example's.
--   print(T.load_graph("/no/such/graph") == nil)  --> true
function M.load(path, opts)
  opts = options.check("load_graph", opts, { "sizes" })
  if opts.sizes ~= nil and type(opts.sizes) ~= "table" then
    fail("load_graph: sizes must be a table such as { batch = 8 }, got %s", describe(opts.sizes))
  end
  if type(path) ~= "string" then fail("load_graph: the path must be a string, got %s", describe(path)) end
  local text, tensors, pair = M.read(path)
  if not text then return nil, tensors, pair end
  for name, t in pairs(tensors) do tensors[name] = t:to(T.get_default_device()) end
  local g, problem = M.build(text, tensors, pair, opts.sizes)
  if not g then return nil, ("%s: %s"):format(path, problem), "format" end
  return g, tensors
end

return M
