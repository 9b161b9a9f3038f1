-- SPDX-License-Identifier: MIT
-- What the loops of reductions and rows are compiled to below AVX-512: gcc splits arithmetic of vectors that are wider
-- than the machine's registers into parts, but their comparisons into numbers, which makes a loop thirty times as slow
-- (isa/reduce/parts.h).

local build = os.getenv "PERILUNE_BUILD" or "build"
local MOST = 64 -- comparisons of single numbers in a function: the ends of loops

local function lines_of(command)
  local p = assert(io.popen(command .. " 2>/dev/null"))
  local text = p:read "a"
  p:close()
  return text:gmatch "[^\n]+"
end

local function comparisons(object)
  local count, name = {}, nil
  for line in lines_of(("objdump -d --no-show-raw-insn '%s'"):format(object)) do
    name = line:match "^%x+ <([%w_.]+)>:" or name
    local op = line:match "^%s+%x+:%s+(%w+)"
    if name and op then
      count[name] = (count[name] or 0) + ((op:find "u?comis[sd]$" or op:find "cmp%w*s[sd]$") and 1 or 0)
    end
  end
  return count
end

if (os.getenv "PERILUNE_SANITIZE" or "") ~= "" then return end -- compiled in another way

describe("machine code of reductions and rows at lower levels", function()
  for _, level in ipairs { "v2", "v3" } do
    it("compares vectors, " .. level, function()
      for _, file in ipairs {
        "attention", "reduce/reduce", "reduce/reduce_map", "reduce/reduce_tangent", "norm/norm", "norm/softmax",
      } do
        local object = ("%s/CMakeFiles/perilune_isa_%s.dir/kernels/cpu/isa/%s.c.o"):format(build, level, file)
        for name, n in pairs(comparisons(object)) do
          assert(n <= MOST, ("%s of %s compares single numbers at %d places"):format(name, object, n))
        end
      end
    end)
  end
end)
