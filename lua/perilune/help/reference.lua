-- SPDX-License-Identifier: MIT
--- What there is to say of every op, function, module, optimizer and schedule: for T.help, and for the pages of
-- the reference, which docs/make/run.lua writes. Ops speak through their descriptors, the rest through
-- pages.lua; signatures come from what the code declares.
-- @module perilune.help.reference
local T = require "perilune"
local core = require "perilune.core"
local signature = require "perilune.help.signature"

local M = {}

-- ---- ops ---------------------------------------------------------------------------------------------------

--- The default of an attribute as one writes it, or nil.
function M.default(a)
  if a.default == nil then return nil end
  if a.choices then
    local list = {}
    for word in a.choices:gmatch("[^|]+") do list[#list + 1] = word end
    return list[a.default + 1] or "?"
  end
  if math.type(a.default) == "float" and a.default == math.floor(a.default) then return ("%g"):format(a.default) end
  return tostring(a.default)
end

local function default_text(a)
  local text = M.default(a)
  return text and "=" .. text or a.optional and "?" or ""
end

--- "softmax(x, dim=-1, dtype?)"
function M.op_signature(op)
  local parts = {}
  for i, arg in ipairs(op.args) do
    local name = op.nin < 0 and "{" .. arg .. ", …}" or arg
    parts[#parts + 1] = name .. (op.nin > 0 and i > op.nin - op.nopt and "?" or "")
  end
  for _, a in ipairs(op.attrs) do parts[#parts + 1] = a.name .. default_text(a) end
  return ("%s(%s)"):format(op.name, table.concat(parts, ", "))
end

--- One line an attribute: "dim: dim, default -1".
function M.op_arguments(op)
  local out = {}
  for i, a in ipairs(op.attrs) do
    out[i] = ("%s: %s%s"):format(a.name, a.type == "enum" and a.choices or a.type,
      a.default ~= nil and ", default " .. default_text(a):sub(2) or a.optional and ", optional" or ", required")
  end
  return out
end

--- "differentiable, in place: relu_"
function M.op_notes(op)
  return (op.differentiable and "differentiable" or "no gradient")
    .. (op.flags.inplace and ", in place: " .. op.name .. "_" or "")
end

-- ---- everything by pages -------------------------------------------------------------------------------------

-- Pages of ops: file, title, the first op on the page in the registry's order.
local op_pages = {
  { "arithmetic", "Arithmetic and functions of numbers", "add" },
  { "activations", "Activations", "relu" },
  { "reductions", "Reductions, order, running sums", "sum" },
  { "normalization", "Softmax and normalization", "softmax" },
  { "losses", "Losses", "cross_entropy" },
  { "sequences", "Sequences and attention", "lstm_gates" },
  { "products", "Products", "matmul" },
  { "convolution", "Convolution and pooling", "conv1d" },
  { "shapes", "Shapes and views", "view" },
  { "indexing", "Joining and indexing", "cat" },
  { "creation", "New tensors and random numbers", "zeros" },
  { "steps", "Steps of optimizers", "sgd_step" },
  { "linalg-ops", "Factorizations", "linalg.inv" },
}
-- Pages of what is no op: file, title, the files that it is about: the first pattern that fits decides.
local symbol_pages = {
  { "gradients", "Gradients and memory", "^autograd/" },
  { "tensors", "Tensors", "^tensor/" },
  { "bindings", "Tensors and gradients: functions written in C", "^help/bindings" },
  { "math", "Statistics, special functions, distances, sums of products", "^math/" },
  { "linalg", "T.linalg", "^linalg/" },
  { "graph", "Graphs and T.jit", "^graph/", "^jit/" },
  { "data", "Data", "^data/" },
  { "files", "Files", "^io/" },
  { "models", "T.models", "^models/" },
  { "onnx", "T.onnx", "^onnx/" },
  { "distributed", "T.distributed", "^distributed/", "^nn/parallel" },
  { "distributions", "T.distributions", "^distributions/" },
  { "nn-functional", "nn.F", "^nn/functional/" },
  { "nn-utils", "nn.init and nn.utils", "^nn/initializers", "^nn/utils", "^nn/packed_sequence", "^nn/reparametrize" },
  { "nn-losses", "nn: losses", "^nn/loss", "^nn/adaptive_softmax" },
  { "nn-spatial", "nn: convolutions, pooling, padding, normalization, images", "^nn/conv", "^nn/pool", "^nn/padding",
    "^nn/norm", "^nn/image", "^nn/lazy" },
  { "nn-quant", "T.quantize and nn.quant", "^nn/quant" },
  { "nn", "nn: layers and containers", "^nn/" },
  { "schedules", "optim.lr_scheduler", "^optim/lr_scheduler" },
  { "optim", "optim", "^optim/" },
  { "tools", "Tools", "" },
}

local function page_of(file)
  for _, page in ipairs(symbol_pages) do
    for k = 3, #page do if file:find(page[k]) then return page end end
  end
end

local function op_entry(op)
  return { name = "T." .. op.name, signature = "T." .. M.op_signature(op), text = op.doc, formula = op.formula,
    arguments = M.op_arguments(op), notes = M.op_notes(op), example = op.example, op = op }
end

local function symbol_entry(name, e)
  local path = name:match("^nn%.") and name or name:match("^optim%.") and name or "T." .. name
  local settings = name:match("^optim%.(%u%w+)$")
  local arguments = { table.unpack(e.arguments) }
  if settings and T.optim[settings] and T.optim[settings].settings then
    for i, s in ipairs(T.optim[settings].settings) do
      arguments[i] = s[2] == nil and s[1] .. ": required" or ("%s: default %s"):format(s[1], signature.shown(s[2]))
    end
  end
  return { name = path, signature = e.signature, text = e.text, shapes = e.shapes, arguments = arguments,
    example = e.example, same = e.same, who = e.who }
end

--- List of { file, title, entries = { {name, signature, text, formula, shapes, arguments, notes, example} … } }.
function M.pages()
  local pages, starts = {}, {}
  for i, p in ipairs(op_pages) do
    pages[i] = { file = p[1], title = p[2], entries = {} }
    starts[p[3]] = pages[i]
  end
  local page
  local symbols, groups = require("perilune.help.pages").all(), {}
  for _, op in ipairs(core.ops()) do
    page = starts[op.name] or page
    if not op.flags.internal and not symbols[op.name] then page.entries[#page.entries + 1] = op_entry(op) end
  end
  for _, p in ipairs(symbol_pages) do
    groups[p] = { file = p[1], title = p[2], entries = {} }
    pages[#pages + 1] = groups[p]
  end
  local names = {}
  for name in pairs(symbols) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local list = groups[page_of(symbols[name].file)].entries
    list[#list + 1] = symbol_entry(name, symbols[name])
  end
  return pages
end

-- ---- by topic ---------------------------------------------------------------------------------------------------

--- The list of topics: file and title of each page.
function M.topics()
  local lines = { "Topics; T.help(\"topic\") lists the names of one, T.help(\"name\") says what a name is:" }
  for _, p in ipairs(M.pages()) do
    if #p.entries > 0 then lines[#lines + 1] = ("  %-14s %3d  %s"):format(p.file, #p.entries, p.title) end
  end
  return table.concat(lines, "\n")
end

local WIDTH = 116

--- The first sentence of a text, cut where it is longer than `room` characters.
function M.sentence(text, room)
  text = text:gsub("%s+", " ")
  local first = text
  for stop in text:gmatch "()[.;:] " do
    local said = text:sub(1, stop)
    if select(2, said:gsub("%(", "")) <= select(2, said:gsub("%)", "")) then -- "(left=false: X A = B)" is one
      first = said
      break
    end
  end
  if (utf8.len(first) or #first) <= room then return first end
  return first:sub(1, utf8.offset(first, room) - 1) .. "…"
end

local function is_topic(file)
  for _, list in ipairs { op_pages, symbol_pages } do
    for _, p in ipairs(list) do if p[1] == file then return true end end
  end
  return false
end

local function listed(title, entries)
  local lines, widest = { title }, 0
  for _, e in ipairs(entries) do widest = math.max(widest, #e.name) end
  for _, e in ipairs(entries) do
    lines[#lines + 1] = ("  %-" .. widest .. "s  %s"):format(e.name, M.sentence(e.text, math.max(30, WIDTH - widest)))
  end
  return table.concat(lines, "\n")
end

-- The entries of a table of functions by its path, "T.metrics", "nn.F", "data.transforms", and that path as pages have
-- it; none where there is no such table, and of a class.
local function members(path)
  local plain = path:gsub("^T%.", "")
  local full = M.resolve(plain) and plain or "T." .. plain
  local value, by_name, found, entries = M.resolve(full), {}, {}, {}
  if type(value) ~= "table" or core.is_tensor(value) or rawget(value, "__index") then return entries, full end
  for _, p in ipairs(M.pages()) do
    for _, e in ipairs(p.entries) do
      by_name[e.name:gsub("^T%.", "")] = e
      local key = e.name:sub(1, #full + 1) == full .. "." and e.name:match("^[^.]+$", #full + 2)
      if key then found[key] = e end -- also what is loaded at first use
    end
  end
  for key in pairs(value) do -- nn.F.conv2d is the op
    if type(key) == "string" then found[key] = found[key] or by_name[key] or by_name[key:match "^(.*)_$"] end
  end
  for key, e in pairs(found) do entries[#entries + 1] = { name = full .. "." .. key, text = e.text } end
  table.sort(entries, function(a, b) return a.name < b.name end)
  return entries, full
end

--- The names of a table of functions, each with its first sentence; nil where the path is none.
function M.namespace(path)
  local entries, full = members(path)
  return #entries > 0 and listed(full, entries) or nil
end

--- The names of a topic, each with its first sentence, and the rest of the table of that name, if there is one; nil
-- where the word is no topic.
function M.topic(word)
  local file = word:lower()
  for _, p in ipairs(is_topic(file) and M.pages() or {}) do -- pages of everything are not made for any word
    if p.file == file and #p.entries > 0 then
      local entries, seen = { table.unpack(p.entries) }, {}
      for _, e in ipairs(entries) do seen[e.name] = true end
      for _, e in ipairs(members(file)) do
        if not seen[e.name] then entries[#entries + 1] = e end
      end
      table.sort(entries, function(a, b) return a.name < b.name end)
      return listed(p.title, entries)
    end
  end
  return nil
end

-- ---- errors ------------------------------------------------------------------------------------------------------

-- The value at a path such as "T.linalg.lu" or "nn.Linear".
function M.resolve(name)
  local v = { T = T, nn = T.nn, optim = T.optim }
  for key in name:gmatch("[^.]+") do
    if type(v) ~= "table" then return nil end
    v = v[key]
  end
  return v
end

--- A wrong call and what it says: '("x")', 'softmax: argument x (#1) must be a tensor, got string'. Nil where a call
-- with a text takes it.
function M.wrong(entry)
  local op = entry.op
  local f = op and op.flags.mutates and core.op[op.name] or M.resolve(entry.name)
  local called = type(f) == "function" or (type(f) == "table" and getmetatable(f) and getmetatable(f).__call)
  if not called or not (op or entry.who or entry.name:match("^optim%.%u%w+$")) then return nil end
  local ok, message
  if op and op.nin == 0 then
    ok, message = pcall(function()
      local x = f()
      return x
    end)
  else
    ok, message = pcall(function()
      local x = f("x")
      return x
    end)
  end
  if ok or type(message) ~= "string" then return nil end
  return op and op.nin == 0 and "()" or '("x")', (message:gsub("^.-:%d+: ", "", 1))
end

-- ---- Markdown -------------------------------------------------------------------------------------------

local function entry_text(e, out)
  local function add(line) out[#out + 1] = line end
  add(("## %s\n"):format(e.name))
  add(("`%s`\n"):format(e.signature:gsub("\n%s*", " ")))
  add(e.text:gsub("\n", " ") .. "\n")
  if e.shapes then add(("Shapes: `%s`\n"):format(e.shapes)) end
  if e.formula then add(("Formula: `%s`\n"):format(e.formula)) end
  if #e.arguments > 0 then
    for _, line in ipairs(e.arguments) do add("- `" .. line .. "`") end
    add ""
  end
  if e.notes then add(e.notes .. "\n") end
  local call, message = M.wrong(e)
  if call then add(("Error: `%s%s` → `%s`\n"):format(e.name, call, message:gsub("`", "'"))) end
  add("```lua\n" .. e.example:gsub("^\n", "") .. "\n```\n")
end

--- The text of a page.
function M.markdown(page)
  local out = { ("# %s\n"):format(page.title) }
  local names = {}
  for i, e in ipairs(page.entries) do names[i] = e.name end
  out[#out + 1] = table.concat(names, " · ") .. "\n"
  for _, e in ipairs(page.entries) do entry_text(e, out) end
  return (table.concat(out, "\n"):gsub("\n\n\n+", "\n\n"))
end

--- The text of the list of pages.
function M.index(pages)
  local out = { "# Reference\n",
    "Every op, function, module, optimizer and schedule, from what the code declares. `T.help(\"name\")` says the same "
      .. "at the prompt. The examples run in the tests. `name?` is optional, `name=value` has that default; "
      .. "options go into one table at the end.\n" }
  for _, p in ipairs(pages) do
    out[#out + 1] = ("- [%s](%s.md), %d entries"):format(p.title, p.file, #p.entries)
  end
  return table.concat(out, "\n") .. "\n"
end

return M
