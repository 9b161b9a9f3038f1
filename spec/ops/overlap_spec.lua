-- SPDX-License-Identifier: MIT
-- Results that are written into memory that the arguments are read from: out= in a window that meets an argument's, and
-- ops that change their first argument with others that share its memory. Whatever is written first, the values are
-- those of arguments apart, which lie at the same addresses: a library may choose another way by their alignment.

local T = require "perilune"
local support = require "spec.ops.support"
local near = require "spec.support.near"

-- Row-major windows of the shapes of a and b on one memory, the second `shift` elements behind the first; the second
-- holds b, and the first is free or, given `both`, what remains of a.
local function windows(a, b, shift, both)
  local n, m, least = a:numel(), b:numel(), math.min(shift, 0)
  local memory = T.zeros({ math.max(n, shift + m) - least + 1 }, { dtype = b:dtype() })
  local first = memory:narrow(1, 1 - least, n):view(a:shape())
  local second = memory:narrow(1, 1 - least + shift, m):view(b:shape())
  if both then first:copy_(a) end
  second:copy_(b)
  return first, second
end
local SHIFTS = { -7, -2, -1, 0, 1, 2, 5 }

-- The places of tensors among args.
local function tensors(args)
  local places = {}
  for i = 1, args.n do if support.is_tensor(args[i]) then places[#places + 1] = i end end
  return places
end

local function with(args, place, t, options)
  local out = table.move(args, 1, args.n, 1, {})
  out.n = args.n
  if place then out[place] = t end
  if options then
    local last, all = out[out.n], {}
    local given = type(last) == "table" and #last == 0
    for k, v in pairs(given and last or {}) do all[k] = v end
    for k, v in pairs(options) do all[k] = v end
    if not given then out.n = out.n + 1 end
    out[out.n] = all
  end
  return table.unpack(out, 1, out.n)
end

describe("out= on memory of an argument:", function()
  for _, info in ipairs(support.public()) do
    local row, flags = support.cases[info.name], info.flags
    if row and not row.call and info.nout == 1 and info.nin ~= 0 and not flags.mutates and not flags.seeded then
      it(info.name, function()
        local f = support.func(info.name)
        for _, args in ipairs(support.arguments(info.name)) do
          local want = support.results(f, args)[1]
          for _, place in ipairs(tensors(args)) do
            for _, shift in ipairs(args[place]:dtype() == want:dtype() and SHIFTS or {}) do
              local out, x = windows(want, args[place], shift)
              local apart = support.results(f, table.pack(with(args, place, x)))[1]:clone()
              local taken, why = pcall(f, with(args, place, x, { out = out }))
              if taken then
                local same, how = pcall(near.same_bits, out:contiguous(), apart:contiguous())
                assert(same, ("argument %d, %d elements behind: %s"):format(place, shift, tostring(how)))
              else
                assert(tostring(why):find "out", why)
              end
            end
          end
        end
      end)
    end
  end
end)

describe("arguments on memory that is changed:", function()
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and (info.flags.mutates or info.flags.inplace) and not info.flags.seeded and info.nin > 1 then
      it(info.name .. "_", function()
        local f = T[info.name .. "_"]
        for _, args in ipairs(f and support.arguments(info.name) or {}) do
          local x = args[1]
          for _, place in ipairs(support.is_tensor(x) and tensors(args) or {}) do
            for _, shift in ipairs(place > 1 and args[place]:dtype() == x:dtype() and SHIFTS or {}) do
              local target, other = windows(x, args[place], shift, true)
              local apart = target:clone()
              local taken = pcall(f, apart, select(2, with(args, place, other:clone())))
              if taken then
                f(target, select(2, with(args, place, other)))
                local same, how = pcall(near.same_bits, target:contiguous(), apart:contiguous())
                assert(same, ("argument %d, %d elements behind: %s"):format(place, shift, tostring(how)))
              end
            end
          end
        end
      end)
    end
  end
end)
