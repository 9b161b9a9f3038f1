-- SPDX-License-Identifier: MIT
-- Where results are written: out= and forms in place, into parts of a larger memory with strides of every kind. They
-- hold the bits of the plain call, and nothing beside them changes.

local T = require "perilune"
local support = require "spec.ops.support"
local near = require "spec.support.near"
local random = require "spec.support.random"

local function copy(list) return table.move(list, 1, #list, 1, {}) end

-- Strides of a window of `shape` in a larger memory, and the elements between its first and its last, or nil.
local function strides(shape, kind)
  local n, order, out, step, span = #shape, {}, {}, kind == "step" and 2 or 1, 1
  if n == 0 and kind ~= "plain" or n < 2 and kind == "transposed" then return nil end
  for d = 1, n do order[d] = n + 1 - d end -- innermost first
  if kind == "transposed" then order[1], order[n] = order[n], order[1] end
  for i, d in ipairs(order) do
    out[d] = step
    step = step * math.max(shape[d], 1) + (kind == "rows" and i == 1 and 3 or 0)
    span = span + math.max(shape[d] - 1, 0) * out[d]
  end
  return out, span
end
local KINDS = { "plain", "rows", "transposed", "step" }

-- Memory that is full of one value, with two elements before the window and after it, and a function that takes the
-- window of such a memory.
local function memory(shape, dtype, kind)
  local stride, span = strides(shape, kind)
  if not stride then return nil end
  local size = random.numel(shape) == 0 and 4 or span + 4
  local function window(flat) return T.as_strided(flat, { size = shape, stride = stride, offset = 2 }) end
  return T.full({ size }, dtype == "bool" and 1 or 7, { dtype = dtype }), window
end

-- write(window) is to leave `want` there, which starts as `start`, if given.
local function check(want, start, write)
  for _, kind in ipairs(KINDS) do
    local flat, window = memory(want:shape(), (start or want):dtype(), kind)
    if flat then
      local expected = flat:clone()
      window(expected):copy_(want)
      if start then window(flat):copy_(start) end
      local ok, why = pcall(write, window(flat))
      assert(ok, kind .. ": " .. tostring(why))
      ok, why = pcall(near.same_bits, flat, expected)
      assert(ok, ("%s: %s; memory %s\nshould be %s"):format(kind, tostring(why), tostring(flat), tostring(expected)))
    end
  end
end

-- args with `more` in its last table, or in a new one.
local function with(args, more)
  local out = copy(args)
  out.n = args.n
  local last = out[out.n]
  local options = {}
  if type(last) == "table" and #last == 0 then
    for k, v in pairs(last) do options[k] = v end
  else
    out.n = out.n + 1
  end
  for k, v in pairs(more) do options[k] = v end
  out[out.n] = options
  return out
end

local function takes_out(info, row)
  local flags = info.flags
  return row and not row.call and info.nout == 1 and info.nin ~= 0 and not flags.mutates and not flags.seeded
end

describe("out= of", function()
  for _, info in ipairs(support.public()) do
    if takes_out(info, support.cases[info.name]) then
      it(info.name, function()
        local f = support.func(info.name)
        for _, args in ipairs(support.arguments(info.name)) do
          local want = support.results(f, args)[1]
          local function write(window)
            local now = with(args, { out = window })
            f(table.unpack(now, 1, now.n))
          end
          local taken, why = pcall(write, want:clone())
          if taken or not why:find "unknown option 'out'" then check(want, nil, write) end
        end
      end)
    end
  end
end)

describe("in place, in a part of a larger memory:", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and (info.flags.inplace or info.flags.mutates) and not info.flags.seeded and info.nin > 0 then
      it(info.name .. "_", function()
        for _, args in ipairs(support.arguments(info.name)) do
          local x = args[1]
          if support.is_tensor(x) and x[info.name .. "_"] then
            local function write(t)
              local now = copy(args)
              now[1] = t
              t[info.name .. "_"](table.unpack(now, 1, args.n))
              return t
            end
            local ok, want = pcall(write, x:clone())
            if ok then check(want, x, write) end
          end
        end
      end)
    end
  end
end)
