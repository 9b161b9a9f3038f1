-- SPDX-License-Identifier: MIT
-- A call that is refused for a value has changed nothing: neither what was to take the result ({ out = }, name_) nor an
-- argument. Every op that has a row gets each of its tensors with a last element that is out of all bounds.

local T = require "perilune"
local support = require "spec.ops.support"
local F = T.nn.F

local function text(x) return x:dtype() .. x:to_string() end
local function whole(x) return not x:is_floating_point() and x:dtype() ~= "bool" end
local WHOLE, FLOATS = { 1000000, -1000000, 0 }, { 0 / 0, 1 / 0, -7, 7 }

-- The arguments with value as the last element of tensor number `at`, and all tensors among them.
local function arguments(args, at, value)
  local list = {}
  local given = support.map(args, function(x)
    local c = x:clone()
    list[#list + 1] = c
    if #list == at then c:view(-1)[c:numel()] = value end
    return c
  end)
  return given, list
end

local function with_out(given, target)
  local last = given[given.n]
  local named = type(last) == "table" and type((next(last))) == "string"
  local more = named and last or {}
  more.out = target
  if not named then given.n = given.n + 1 end
  given[given.n] = more
  return given
end

describe("a refused call", function()
  local refused = 0
  local function unchanged(what, list, call)
    local before = {}
    for k, x in ipairs(list) do before[k] = text(x) end
    local fine, why = pcall(call)
    if fine then return end
    refused = refused + 1
    if tostring(why):find("noticed on the device", 1, true) then return end -- undefined since then
    for k, x in ipairs(list) do
      assert(text(x) == before[k], ("%s changed tensor %d: %s"):format(what, k, tostring(why)))
    end
  end

  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row then
      it("of " .. info.name .. " has changed nothing", function()
        local f = support.raw(info.name)
        for number, args in ipairs(support.arguments(info.name)) do
          local tensors = {}
          support.map(args, function(x) tensors[#tensors + 1] = x end)
          local fine, y = pcall(f, table.unpack(arguments(args, 0), 1, args.n))
          for at, t in ipairs(tensors) do
            local wide = t:dtype() == "i64" or t:dtype() == "i32"
            local bad = t:is_floating_point() and FLOATS or wide and WHOLE or whole(t) and { 0 } or {}
            for _, value in ipairs(t:numel() > 0 and bad or {}) do
              local what = ("%s, case %d, tensor %d with %s"):format(info.name, number, at, value)
              if fine and support.is_tensor(y) and not info.flags.mutates then
                local given, list = arguments(args, at, value)
                local target = y:detach():clone()
                target:fill_(1)
                list[#list + 1] = target
                with_out(given, target)
                unchanged(what .. ", out", list, function() return f(table.unpack(given, 1, given.n)) end)
              end
              local place = info.flags.mutates and f or not info.name:find(".", 1, true) and T[info.name .. "_"]
              if place then
                local given, list = arguments(args, at, value)
                unchanged(what .. ", in place", list, function() return place(table.unpack(given, 1, given.n)) end)
              end
            end
          end
        end
      end)
    end
  end

  local function I(t) return T.tensor(t, { dtype = "i64" }) end
  local function rows() return T.arange(12, { dtype = "f32" }):view(3, 4) end
  local function singular() return T.stack { T.eye(3), T.zeros(3, 3) } end
  local WRITES = {
    index_put_ = function(x) x:index_put_({ I { 1, 2, 9 } }, T.zeros(3, 4)) end,
    assigned = function(x) x[I { 1, 9 }] = 0 end,
    ["assigned by two"] = function(x) x[{ I { 1, 9 }, I { 1, 1 } }] = T.zeros(2) end,
    index_add_ = function(x) x:index_add_(1, I { 1, 9 }, T.ones(2, 4)) end,
    index_copy_ = function(x) x:index_copy_(1, I { 1, 9 }, T.ones(2, 4)) end,
    index_fill_ = function(x) x:index_fill_(1, I { 1, 9 }, 5) end,
    index_reduce_ = function(x) x:index_reduce_(1, I { 1, 9 }, T.ones(2, 4), "amax") end,
    scatter_reduce_ = function(x) x:scatter_reduce_(1, I { { 1, 1, 1, 9 } }, T.ones(1, 4), "sum") end,
    put_ = function(x) x:put_(I { 1, 99 }, T.ones(2)) end,
    masked_scatter_ = function(x) x:masked_scatter_(x:ge(0), T.ones(2)) end,
    embedding = function(x) F.embedding(I { 1, 2, 3, 99 }, x, { max_norm = 0.1 }) end,
    embedding_bag = function(x) F.embedding_bag(I { { 1, 2, 3, 99 } }, x, { max_norm = 0.1 }) end,
    bernoulli_ = function(x) x:bernoulli_(T.cat { T.full({ 11 }, 0.5), T.tensor { 7 } }:view(3, 4)) end,
  }
  for name, f in pairs(WRITES) do
    it("of " .. name .. " has left the tensor as it was", function()
      local x = rows()
      unchanged(name, { x }, function()
        f(x)
      end)
    end)
  end
  local RESULTS = {
    take = { { 2 }, function(o) T.take(rows(), I { 1, 99 }, { out = o }) end },
    take_along_dim = { { 1, 4 }, function(o) T.take_along_dim(rows(), I { { 1, 1, 1, 9 } }, 1, { out = o }) end },
    inv = { { 2, 3, 3 }, function(o) T.linalg.inv(singular(), { out = o }) end },
    cholesky = { { 2, 3, 3 }, function(o) T.linalg.cholesky(singular(), { out = o }) end },
    solve = { { 2, 3, 3 }, function(o) T.linalg.solve(singular(), T.ones(2, 3, 3), { out = o }) end },
    multinomial = { { 2, 3 }, function(o)
      T.multinomial(T.tensor { { 1, 1, 1 }, { -1, 1, 1 } }, 3, { out = o })
    end, "i64" },
    wide = { { 40000 }, function(o) -- several threads
      T.gather(T.ones(5), 1, T.cat { T.ones({ 39999 }, { dtype = "i64" }), I { 9 } }, { out = o })
    end },
  }
  for name, row in pairs(RESULTS) do
    it("of " .. name .. " has written nothing of its result", function()
      local out = T.full(row[1], 3, { dtype = row[3] or "f32" })
      unchanged(name, { out }, function()
        row[2](out)
      end)
    end)
  end
  it("is met often enough", function() assert.is_true(refused > 400, refused .. " refusals") end)
end)
