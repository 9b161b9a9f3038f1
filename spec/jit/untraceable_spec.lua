-- SPDX-License-Identifier: MIT
-- What a graph cannot stand for is an error with the status PL_ERR_TRACE, whatever its words are: T.jit asks for the
-- status, and with fallback runs the function as it is written.

local T = require "perilune"
local root = os.getenv("PERILUNE_ROOT") or "."

local function files(folder, pattern)
  local pipe = assert(io.popen(("find '%s/%s' -type f -name '%s'"):format(root, folder, pattern)))
  local list = {}
  for path in pipe:lines() do list[#list + 1] = path end
  pipe:close()
  table.sort(list)
  return list
end

-- How messages speak of a trace.
local WORDS = { "is symbolic", "traced function", "is traced", "jit traces", "has no values", "no values yet",
  "graph does not know", "graph would", "in a graph", "which no graph",
  "graph has run", "into the graph", "inside of the graph" }
-- Those that are no fault of what is traced: it cannot run either, or has not been called in a trace.
local OTHERS = { "out of memory", "trace is over", "trace the function with T.jit" }

local function about_a_trace(call)
  local text = call:gsub('"%s*%.?%.?%s*"', "") -- literals that follow each other
  for _, other in ipairs(OTHERS) do
    if text:find(other) then return false end
  end
  for _, words in ipairs(WORDS) do
    if text:find(words, 1, true) then return true end
  end
  return false
end

-- Every call of one of these functions in a file, with its arguments.
local function calls(text, names, visit)
  for name, at in text:gmatch "([%a_][%w_.]*)()%(" do
    if names[name] then visit(name, text:match("^%b()", at) or text:match("^[^;]*", at)) end
  end
end

local raising = { PL_FAIL = true, pl_fail = true, l_error = true, l_error_as = true }
local failing = { fail = true, error = true, untraceable = true, ["options.fail"] = true,
  ["options.untraceable"] = true }

local function faults(text, lua)
  local list, right = {}, 0
  calls(text, lua and failing or raising, function(name, call)
    if not about_a_trace(call) then return end
    local marked = lua and name:find "untraceable$" or call:find "^%(L?,?%s*PL_ERR_TRACE,"
    if marked then right = right + 1 else list[#list + 1] = name .. call end
  end)
  return list, right
end

describe("what cannot be traced", function()
  it("has one status wherever it is raised", function()
    local found, right = {}, 0
    for _, layer in ipairs { { "engine", "*.[ch]" }, { "bindings", "*.[ch]" }, { "lua", "*.lua", true } } do
      for _, path in ipairs(files(layer[1], layer[2])) do
        local f = assert(io.open(path))
        local list, n = faults(f:read "a", layer[3])
        f:close()
        right = right + n
        for _, call in ipairs(list) do found[#found + 1] = path:sub(#root + 2) .. ": " .. call end
      end
    end
    assert.equal("", table.concat(found, "\n"))
    assert.is_true(right >= 20, "only " .. right .. " were found")
  end)

  local held = {}
  before_each(function() held = { weights = T.ones(2):requires_grad_(), state = T.get_rng_state() } end)
  after_each(function() held = nil end)
  local thread = coroutine.create(function()
    while true do coroutine.yield(2) end
  end)
  local functions = {
    ["a value is read"] = function(x) return x * (x:sum():item() > 0 and 2 or 3) end,
    ["a captured value is read"] = function(x) return x * held.weights[1]:item() end,
    ["a shape depends on values"] = function(x) return x[x:gt(0)] end,
    ["values are copied out"] = function(x) return x * x:tolist()[1] end,
    ["a random number of Lua"] = function(x) return x + #tostring(math.random()) * 0 end,
    ["a seed"] = function(x)
      T.manual_seed(5)
      return x + T.rand(2)
    end,
    ["a state of random numbers"] = function(x)
      T.set_rng_state(held.state)
      return x + T.rand(2)
    end,
    ["a coroutine from outside"] = function(x)
      local _, two = coroutine.resume(thread)
      return x * two
    end,
    ["a field that changes"] = function(x)
      held.n = (held.n or 0) + 1
      return x * 2
    end,
    ["detach_ of an argument"] = function(x) return x:detach_() * 2 end,
    ["a network that is converted"] = function(x)
      local net = T.nn.Linear(2, 2)
      net:to "f64"
      return x * #net:parameters()
    end,
    ["a loader's pass"] = function(x)
      local sum = 0
      for batch in T.data.DataLoader(T.data.TensorDataset(T.ones(4, 2)), { batch_size = 2 }) do
        sum = sum + batch[1]:sum()
      end
      return x * sum
    end,
  }
  for name, f in pairs(functions) do
    it("runs as it is written with fallback: " .. name, function()
      T.manual_seed(1)
      local want = f(T.ones(2)):tolist()
      local ok, err = pcall(T.jit(f), T.ones(2))
      assert.is_false(ok, "it can be traced")
      assert.is_string(err)
      local g = T.jit(f, { fallback = true })
      T.manual_seed(1)
      assert.same(want, g(T.ones(2)):tolist())
      assert.is_true(g.eager)
    end)
  end

  it("is recognized in another message, too, and when it is caught", function()
    local function f(x)
      local ok = pcall(x.item, x)
      if not ok then error "a word of its own" end
      return x * 2
    end
    local g = T.jit(f, { fallback = true })
    assert.equal(2, g(T.ones(1)):item())
    assert.is_true(g.eager)
  end)

  it("is not what any error of the function is", function()
    local g = T.jit(function(x) error(x:shape()[1] .. ": in a traced function, which a graph does not know") end,
      { fallback = true })
    local ok, err = pcall(g, T.ones(1))
    assert.is_false(ok)
    assert.truthy(err:find "which a graph does not know")
    assert.is_false(g.eager)
  end)
end)
