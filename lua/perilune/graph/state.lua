-- SPDX-License-Identifier: MIT
--- g:load_state: what a saved graph came to, taken on by the function that it was traced from. The file has to hold the
-- same program, line by line, but for the numbers of its optimizers; then its tensors are those of the same values, and
-- each optimizer's count is what its nodes say.
-- @module perilune.graph.state
local T = require "perilune"
local file = require "perilune.graph.file"
local free = require "perilune.graph.sizes"
local options = require "perilune.options"

local core, fail, describe = T.core, options.fail, options.describe
local M = {}

-- What moves from step to step, or may be set between steps; all else is what the optimizer was made with.
local MOVES = { lr = true, weight_decay = true, step = true }
local AVERAGED = 8 -- in flags: the parameters are the averages of a schedule-free optimizer (kernels/optim.h)

local function shown(v)
  if type(v) ~= "table" then return tostring(v) end
  local texts = {}
  for i, x in ipairs(v) do texts[i] = tostring(x) end
  return "{" .. table.concat(texts, ", ") .. "}"
end

-- Is what the optimizer would have in its next step what the file had, as far as it does not move? → nil, or what is
-- there and what is here.
local function setting_problem(l, saved, own)
  for key, v in next, own do
    local there = saved[key]
    if type(there) ~= type(v) or type(v) == "table" and #there ~= #v
      or (key == "step" or key == "flags") and math.type(there) ~= "integer" then
      return ("%s is %s"):format(key, shown(there)), shown(v)
    end
    if key == "flags" and l.saved and own.rule and own.rule:find "^schedule_free" then there = there & ~AVERAGED end
    if type(v) == "table" then
      local n = l.saved and l.saved.fixed or math.max(#v, #there)
      for i = 1, n do
        if v[i] ~= there[i] then return ("%s is %s"):format(key, shown(there)), shown(v) end
      end
    elseif not MOVES[key] and v ~= there then
      return ("%s is %s"):format(key, shown(there)), shown(v)
    end
  end
end

-- Lines of a file that leaves sizes free, at those of the function's own: reader(line, own) → the line with numbers in
-- the place of what depends on sizes, as far as these are known.
local function at_own_sizes(lines)
  local values, shapes, nsizes = {}, {}, 0
  while lines[nsizes + 1] and lines[nsizes + 1]:find "^size " do nsizes = nsizes + 1 end
  local function size_of(v, d) return shapes[v] and shapes[v][d] end
  local function note(number, sizes)
    local shape = {}
    for n in sizes:gmatch "%d+" do shape[#shape + 1] = math.tointeger(n) end
    shapes[math.tointeger(number)] = shape
  end
  local function settle(line, own)
    local input = "^input (%d+) %S+ %S+ (%S+) "
    local number, sizes = own:match(input)
    if number then
      note(number, sizes)
      local free_ones = select(2, line:match(input)) or ""
      local shape, d = shapes[math.tointeger(number)], 0
      for one in (free_ones .. ","):gmatch "([^,]*)," do
        d = d + 1
        local k = tonumber(one:match "^%$(%d+)$")
        if k and not values[k] then values[k] = shape[d] end
      end
    end
    for v, of in own:gmatch "(%d+):%w+%[([%dx]*)%]" do note(v, of) end
    if line == own or not line:find "[$@?]" then return line end
    line = line:gsub("[%-%d%*%.%+%$@]+", function(text)
      local v = free.is_free(text) and free.value(text, values, size_of)
      return v and ("%d"):format(v) or nil
    end)
    local function whole(text) return (text:gsub("(%d)%.0%f[^%de]", "%1")) end -- an expression has no point
    if whole(line) == whole(own) then return own end
    if line:find("?", 1, true) then -- of what rules alone give
      local pattern = "^" .. line:gsub("%p", "%%%0"):gsub("%%%?", "%%d+") .. "$"
      if own:find(pattern) then return own end
    end
    return line
  end
  return table.move(lines, nsizes + 1, #lines, 1, {}), nsizes, settle
end

-- The steps that the file made: {l =, attrs =} of each node whose settings an optimizer gives; or nil, what is wrong.
local function steps_in(lines, own, live)
  local by_node, steps, node = {}, {}, 0
  for _, l in ipairs(live) do by_node[l.node or 0] = l end
  local before, settle
  lines, before, settle = at_own_sizes(lines)
  before = before + 2
  for i, line in ipairs(lines) do
    local mine = own[i]
    if mine == nil then return nil, ("line %d: the function has no such line"):format(i + before) end
    line = settle(line, mine)
    if mine:find "^node " then node = node + 1 end
    local l = mine:find "^node " and by_node[node]
    local head, attrs = file.node_parts(line)
    local own_head = file.node_parts(mine)
    if l and head and head == own_head then
      steps[#steps + 1] = { l = l, attrs = attrs, at = i + before }
    elseif line ~= mine then
      return nil, ("line %d: the function has another program there (%s)"):format(i + before, mine)
    end
  end
  local more = own[#lines + 1]
  if more then return nil, ("line %d: the function goes on (%s)"):format(#lines + before + 1, more) end
  for _, s in ipairs(steps) do
    local there, here = setting_problem(s.l, s.attrs, s.l.options())
    if there then
      return nil, ("line %d: a setting of the optimizer there, %s, is %s of the function's; make them alike"):format(
        s.at, there, here)
    end
  end
  return steps
end

-- Which tensors change: {to, from, …}; or nil, what is wrong.
local function tensors_in(saved, own, constants)
  local copies = {}
  for name, t in next, own do
    local from = saved[name]
    if not from then return nil, "the tensor of value " .. name .. " is missing" end
    if t:dtype() ~= from:dtype() or table.concat(t:shape(), "x") ~= table.concat(from:shape(), "x") then
      return nil, ("value %s is %s, and %s of the function's"):format(name, describe(from), describe(t))
    end
    local same = t:detach():cpu():equal(from)
    if not same and constants[name] then
      return nil, ("value %s, a constant of the function's, is another there"):format(name)
    end
    if not same then copies[#copies + 1] = { t, from } end
  end
  return copies
end

-- The nodes have the file's attributes → nil; or what is wrong with these, and all is as it was.
local function put_attrs(g, t, steps)
  local nodes = g:nodes()
  for i, s in ipairs(steps) do
    local ok, problem = core.attempt(core.jit_attrs, t.program, s.l.node, s.attrs)
    if not ok then
      for k = 1, i - 1 do core.jit_attrs(t.program, steps[k].l.node, nodes[steps[k].l.node].attrs) end
      return ("line %d: %s"):format(s.at, problem)
    end
  end
end

--- See Graph:load_state.
function M.load(g, path)
  if type(path) ~= "string" then fail("load_state: the path must be a string, got %s", describe(path)) end
  if not g.given then
    fail("load_state: this is no jitted function's graph, step:graph(); T.load_graph(path) reads a graph that needs "
      .. "none")
  end
  if g.beside then
    fail("load_state: %s %s with numbers of Lua beside the graph, which no file has", table.concat(g.beside, ", "),
      #g.beside == 1 and "steps" or "step")
  end
  local text, saved, pair = file.read(path)
  if not text then return nil, saved, pair end
  local function refused(problem) return nil, ("%s: %s"):format(path, problem), "format" end
  local lines = {}
  for line in text:gmatch "([^\n]*)\n" do lines[#lines + 1] = line end
  if lines[1] ~= "perilune graph 1" or lines[#lines] ~= "end" then return refused "this is no whole saved graph" end
  if lines[2] ~= "pair " .. tostring(pair) then return refused "its tensors come from another save" end
  lines = table.move(lines, 3, #lines - 1, 1, {})
  local own, tensors, constants = file.lines(g)
  local t = g.traced or { live = {} }
  local steps, problem = steps_in(lines, own, t.live)
  if not steps then return refused(problem) end
  local copies
  copies, problem = tensors_in(saved, tensors, constants)
  if not copies then return refused(problem) end
  local _ <close> = core.hold_interrupts() -- all of it, or nothing
  problem = put_attrs(g, t, steps)
  if problem then return refused(problem) end
  T.no_grad(function()
    for _, pair_ in ipairs(copies) do pair_[1]:copy_(pair_[2]) end
  end)
  for _, s in ipairs(steps) do -- the last step of an optimizer is the one that counts
    if s.l.saved then s.l.saved.load(s.attrs) end
  end
  return true
end

return M
