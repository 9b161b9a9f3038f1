-- SPDX-License-Identifier: MIT
-- perilune diff A B: compares the tensors of two files. Exit status 0: equal within the tolerances; 1: different;
-- 2: a file cannot be read.
local T = require "perilune"
local show = require "perilune.repl.show"

local function shape_text(dtype, shape) return ("%s[%s]"):format(dtype, table.concat(shape, ",")) end

-- How two tensors of one shape differ: count of elements beyond the tolerances, largest absolute and relative
-- difference. NaN equals NaN; no tolerance reaches infinity. Large integers may differ that are one number in f64.
local function compare(a, b, atol, rtol)
  local whole = not a:is_floating_point() and not b:is_floating_point()
  local x, y = a:to("f64"), b:to("f64")
  local both_nan = x:isnan():logical_and(y:isnan())
  local equal = (whole and a:eq(b) or x:eq(y)):logical_or(both_nan)
  local difference = (x - y):abs()
  if whole then difference = difference:clamp { min = 1 } end
  difference = difference:masked_fill(equal, 0)
  local bound = y:abs() * rtol + atol
  local close = difference:le(bound):logical_and(difference:isfinite())
  local bad = equal:logical_not():logical_and(close:logical_not())
  local n = bad:sum():item()
  if n == 0 then return 0 end
  local scale = x:abs():maximum(y:abs())
  local relative = (difference / scale):masked_fill(equal, 0)
  return n, difference:max():item(), relative:max():item()
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do set[name] = true end
  return set
end

local function say(name, format, ...) print(("  %s: %s"):format(show.printable(name), format:format(...))) end

-- One tensor of both files: whether it is equal; nil and a message when it cannot be read.
local function compare_entry(name, a, b, options)
  local da, sa = a.describe(name)
  local db, sb = b.describe(name)
  local ta, tb = shape_text(da, sa), shape_text(db, sb)
  if table.concat(sa, ",") ~= table.concat(sb, ",") then
    say(name, "%s and %s", ta, tb)
    return false
  end
  local x, message = a.read(name)
  if not x then return nil, message end
  local y
  y, message = b.read(name)
  if not y then return nil, message end
  local n, largest, relative = compare(x, y, options.atol, options.rtol)
  if da ~= db then say(name, "%s and %s%s", ta, tb, n == 0 and ", equal values" or "") end
  if n > 0 then
    say(name, "%s, %d of %d elements differ, at most by %.4g (relative %.4g)", ta, n, x:numel(), largest, relative)
  end
  return n == 0 and (da == db or options.any_dtype == true)
end

local function same_value(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  if #a ~= #b then return false end
  for i, v in ipairs(a) do if not same_value(v, b[i]) then return false end end
  return true
end

local function compare_meta(a, b)
  local keys, same = {}, true
  for key in pairs(a.meta) do keys[#keys + 1] = key end
  for key in pairs(b.meta) do if a.meta[key] == nil then keys[#keys + 1] = key end end
  table.sort(keys)
  for _, key in ipairs(keys) do
    if not same_value(a.meta[key], b.meta[key]) then
      print(("  metadata %s: %s"):format(show.printable(key), a.meta[key] == nil and "only in the second"
        or b.meta[key] == nil and "only in the first" or "differs"))
      same = false
    end
  end
  return same
end

-- options: {atol=, rtol=, any_dtype=}. → exit status
return function(path_a, path_b, options)
  local open = require("perilune.command.files").open
  local files = {}
  for i, path in ipairs { path_a, path_b } do
    local file, message = open(path)
    if file and file.kind == "events" then file, message = nil, path .. ": event files are not compared" end
    if not file then
      io.stderr:write("perilune diff: ", show.printable(message), "\n")
      return 2
    end
    files[i] = file
  end
  local a, b = files[1], files[2]
  local in_a, in_b, different, common = set_of(a.names), set_of(b.names), 0, 0
  local function missing(name, where)
    say(name, "only in %s", where)
    different = different + 1
  end
  for _, name in ipairs(a.names) do
    if not in_b[name] then
      missing(name, path_a)
    else
      common = common + 1
      local equal, message = compare_entry(name, a, b, options)
      if equal == nil then
        io.stderr:write("perilune diff: ", show.printable(message), "\n")
        return 2
      end
      if not equal then different = different + 1 end
    end
  end
  for _, name in ipairs(b.names) do if not in_a[name] then missing(name, path_b) end end
  local meta_same, unknown = compare_meta(a, b), 0
  for i, file in ipairs(files) do
    for _, what in ipairs(file.left_out or {}) do
      io.stderr:write(("perilune diff: %s: %s; it is not compared\n"):format(show.printable(select(i, path_a, path_b)),
        show.printable(what)))
      unknown = unknown + 1
    end
  end
  T.empty_cache()
  if different == 0 and meta_same and unknown > 0 then return 2 end
  if different == 0 and meta_same then
    print(("equal: %d tensor%s"):format(common, common == 1 and "" or "s"))
    return 0
  end
  print(("%d of %d tensors differ"):format(different, #a.names + #b.names - common))
  return 1
end
