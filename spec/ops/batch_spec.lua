-- SPDX-License-Identifier: MIT
-- Batches of every op: T.vmap of the op, of its gradient, and many gradients through one backward graph, against the
-- same one after the other.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"

local SCALES = { 1, 0.95, 0.9 } -- elements of a batch: inside the op's domain, positive stays positive
local N = #SCALES

local function is_floating(t) return type(t) == "userdata" and t:is_floating_point() end

local function close(a, b)
  if a:numel() == 0 then return true end
  if a:dtype() == "bool" then return a:equal(b) end
  a, b = a:double(), b:double()
  local nan = a:ne(a):logical_and(b:ne(b))
  local far = (a - b):abs():gt(b:abs() * 1e-9 + 1e-9):logical_and(a:ne(b)):logical_and(nan:logical_not())
  return not far:any():item()
end

local function check(what, got, want)
  if T.core.is_batched(got) then error(what .. ": a batched tensor got out") end
  assert.same(want:shape(), got:shape(), what)
  assert.equal(want:dtype(), got:dtype(), what)
  assert.is_true(close(got, want), what .. ": values differ")
end

-- The op of a row as a function of tensors alone, and those tensors.
local function calls(info)
  local list = {}
  for _, args in ipairs(support.arguments(info.name)) do
    local g, flat = support.spread(support.func(info.name), args)
    list[#list + 1] = { f = g, flat = flat }
  end
  return list
end

local function results(...)
  local got = table.pack(...)
  if type(got[1]) == "table" then got = got[1] end
  local list = {}
  for i = 1, got.n or #got do if type(got[i]) == "userdata" then list[#list + 1] = got[i] end end
  return list
end

-- flat with those for which `which` says so as batches: in_dims and batched arguments, and each element's arguments.
local function batches(flat, which)
  local args, dims, single = {}, {}, {}
  for b = 1, N do single[b] = {} end
  for i, t in ipairs(flat) do
    local elements = {}
    for b = 1, N do
      elements[b] = which(i, t) and is_floating(t) and t * SCALES[b] or t
      single[b][i] = elements[b]
    end
    dims[i] = which(i, t) and 1 or false
    args[i] = dims[i] and T.stack(elements, 1) or t
  end
  return args, dims, single
end

local function first_floating(flat)
  for i, t in ipairs(flat) do if is_floating(t) then return i end end
end
local function last_floating(flat)
  for i = #flat, 1, -1 do if is_floating(flat[i]) then return i end end
end

local ways = {
  { "all floating inputs", function(flat) return function(_, t) return is_floating(t) end end },
  { "the first", function(flat) local k = first_floating(flat) return function(i) return i == k end end },
  { "the last", function(flat) local k = last_floating(flat) return function(i) return i == k end end },
  { "all inputs", function() return function() return true end end },
}

-- The op's results for each element, or nil where the op has no one shape for all (vmap then says so).
local function one_by_one(f, single)
  local lists = {}
  for b = 1, N do lists[b] = results(f(table.unpack(single[b]))) end
  local want = {}
  for o = 1, #lists[1] do
    local column = {}
    for b = 1, N do
      column[b] = lists[b][o]
      if table.concat(column[b]:shape(), ",") ~= table.concat(column[1]:shape(), ",") then return nil end
    end
    want[o] = T.stack(column, 1)
  end
  return want
end

describe("a batch of", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and not info.flags.seeded then
      it(info.name, function()
        for v, call in ipairs(calls(info)) do
          if first_floating(call.flat) then
            for _, way in ipairs(ways) do
              local what = ("%s, variant %d, %s"):format(info.name, v, way[1])
              local args, dims, single = batches(call.flat, way[2](call.flat))
              local want = one_by_one(call.f, single)
              local mapped = T.vmap(function(...) return results(call.f(...)) end, { in_dims = dims })
              if want then
                local ok, got = pcall(mapped, table.unpack(args))
                if not ok and info.flags.mutates and tostring(got):find "inside vmap" then return end -- refused
                if not ok then error(what .. ": " .. tostring(got), 0) end
                assert.equal(#want, #got, what)
                for o, y in ipairs(got) do check(what, y, want[o]) end
              else
                local ok, err = pcall(mapped, table.unpack(args))
                assert.is_false(ok)
                assert.is_truthy(tostring(err):find("one shape", 1, true), tostring(err))
              end
            end
          end
        end
      end)
    end
  end
end)

-- Leaves for the floating tensors, f's floating tracked results.
local function track(call)
  local args, xs = {}, {}
  for i, t in ipairs(call.flat) do
    args[i] = t
    if is_floating(t) then
      xs[#xs + 1] = t:detach():clone():requires_grad_()
      args[i] = xs[#xs]
    end
  end
  local ys = {}
  for _, y in ipairs(results(call.f(table.unpack(args)))) do
    if is_floating(y) and y.requires_grad then ys[#ys + 1] = y end
  end
  return xs, ys
end

local function directions(g, ys)
  local dys = {}
  for i, y in ipairs(ys) do
    local shape = { N, table.unpack(y:shape()) }
    dys[i] = random.tensor(T, g:list(random.numel(shape), -1, 1), shape, y:dtype())
  end
  return dys
end

-- Gradients of ys for xs, for all dys at once and for one after the other.
local function compare(what, ys, xs, dys)
  local opts = { grad_outputs = dys, is_grads_batched = true, allow_unused = true, retain_graph = true }
  local got = T.grad_of(ys, xs, opts)
  for j in ipairs(xs) do
    local list = {}
    for b = 1, N do
      local one = {}
      for i, dy in ipairs(dys) do one[i] = dy[b] end
      list[b] = T.grad_of(ys, xs, { grad_outputs = one, allow_unused = true, retain_graph = true })[j] or nil
    end
    assert.equal(list[1] ~= nil, (got[j] or nil) ~= nil, what)
    if list[1] then check(what, got[j], T.stack(list, 1)) end
  end
end

local ONCE = { ctc_nll = true } -- backward is known once only

describe("many gradients at once of", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded then
      it(info.name, function()
        local g = random.new(5)
        for v, call in ipairs(calls(info)) do
          local xs, ys = track(call)
          if #ys > 0 and #xs > 0 then
            compare(("%s, variant %d"):format(info.name, v), ys, xs, directions(g, ys))
            local first = not ONCE[info.name] and T.grad_of(ys, xs, { create_graph = true, allow_unused = true,
              grad_outputs = (function()
                local list = {}
                for i, y in ipairs(ys) do list[i] = (T.ones_like(y) * 0.7):requires_grad_() end
                return list
              end)() }) or {}
            local tracked = {}
            for _, t in pairs(first) do if t and t.requires_grad then tracked[#tracked + 1] = t end end
            if #tracked > 0 then
              compare(("%s, variant %d, second order"):format(info.name, v), tracked, xs, directions(g, tracked))
            end
          end
        end
      end)
    end
  end
end)

describe("gradients for each element of a batch of", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and info.differentiable and not info.flags.seeded and not info.flags.mutates then
      it(info.name, function()
        for v, call in ipairs(calls(info)) do
          local _, ys = track(call)
          if #ys > 0 then
            for _, way in ipairs { ways[1], ways[2] } do
              local what = ("%s, variant %d, %s"):format(info.name, v, way[1])
              local args, dims, single = batches(call.flat, way[2](call.flat))
              local function loss(...)
                local sum
                for _, y in ipairs(results(call.f(...))) do
                  if is_floating(y) then
                    local s = (y * y):sum() + y:sum()
                    sum = sum and sum + s or s
                  end
                end
                return sum
              end
              local function gradients(...)
                local got = table.pack(T.grad(loss, ...))
                local list = {}
                for i = 1, select("#", ...) do list[i] = got[i] or false end
                return list
              end
              local want = {}
              for b = 1, N do want[b] = gradients(table.unpack(single[b])) end
              local ok, got = pcall(T.vmap(gradients, { in_dims = dims }), table.unpack(args))
              if not ok then error(what .. ": " .. tostring(got), 0) end
              for i in ipairs(call.flat) do
                assert.equal(want[1][i] and true, got[i] and true, what)
                if want[1][i] then
                  local list = {}
                  for b = 1, N do list[b] = want[b][i] end
                  check(what .. ", input " .. i, got[i], T.stack(list, 1))
                end
              end
            end
          end
        end
      end)
    end
  end
end)
