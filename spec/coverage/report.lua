-- SPDX-License-Identifier: MIT
-- What ran of engine and bindings in a build of the preset `coverage`, by gcov: lines and branches of each folder, the
-- functions that nothing called. ./setup coverage runs the specs and then this.
--   lua5.4 spec/coverage/report.lua ROOT BUILD [--lines PATTERN]  with the lines that did not run of files that match
local root, build = arg[1], arg[2]
local pattern = arg[3] == "--lines" and assert(arg[4], "--lines wants a pattern") or nil
assert(root and build and (pattern or not arg[3]), "report.lua ROOT BUILD [--lines PATTERN]")

local function lines_of(command)
  local p = assert(io.popen(command))
  local list = {}
  for line in p:lines() do list[#list + 1] = line end
  assert(p:close(), command)
  return list
end

-- file → {lines = {number → count}, branches = {"line:k" → count}, functions = {name → {line=, count=}}}. A file that
-- is compiled several times, and a header, is covered where one of them ran.
local files = {}
local function most(t, k, v) t[k] = math.max(t[k] or 0, v) end

local function read(data)
  local text = table.concat(lines_of(("cd /tmp && gcov -t -b -j '%s' 2>/dev/null"):format(data)), "\n")
  local at = 1
  while true do
    local from, to, name = text:find('"file": "([^"]*)"', at)
    if not from then break end
    local part = text:sub(at, from)
    at = to + 1
    if name:sub(1, #root + 1) == root .. "/" then name = name:sub(#root + 2) end
    if name:find "^engine/" or name:find "^bindings/" then
      local f = files[name] or { lines = {}, branches = {}, functions = {} }
      files[name] = f
      for entry, count, line in part:gmatch '{"branches": (%b[]), "count": (%d+), "line_number": (%d+)' do
        line = tonumber(line)
        most(f.lines, line, tonumber(count))
        local k = 0
        for taken in entry:gmatch '"count": (%d+)' do
          k = k + 1
          most(f.branches, line .. ":" .. k, tonumber(taken))
        end
      end
      for entry in part:gmatch '{[^{}]*"execution_count"[^{}]*}' do
        local called, start = entry:match '"execution_count": (%d+)', entry:match '"start_line": (%d+)'
        local fname = entry:match '"demangled_name": "([^"]*)"'
        local was = f.functions[fname]
        f.functions[fname] = { line = tonumber(start), count = math.max(was and was.count or 0, tonumber(called)) }
      end
    end
  end
end

for _, data in ipairs(lines_of(("find '%s' -name '*.gcno'"):format(build))) do
  if data:find "/engine/" or data:find "/bindings/" then
    read(data) -- gcov finds the counts beside it; none: nothing ran
  end
end

local folders, names = {}, {}
for name in pairs(files) do names[#names + 1] = name end
table.sort(names)
local function count(t)
  local ran, all = 0, 0
  for _, v in pairs(t) do
    all = all + 1
    if v > 0 then ran = ran + 1 end
  end
  return ran, all
end
for _, name in ipairs(names) do
  local f = files[name]
  for _, folder in ipairs { name:match "(.*)/", name:match "^%w+", "all" } do
    local sum = folders[folder] or { 0, 0, 0, 0 }
    folders[folder] = sum
    local a, b = count(f.lines)
    local c, d = count(f.branches)
    sum[1], sum[2], sum[3], sum[4] = sum[1] + a, sum[2] + b, sum[3] + c, sum[4] + d
  end
end
local order = {}
for folder in pairs(folders) do order[#order + 1] = folder end
table.sort(order)
print(("%-26s %14s %7s %14s %7s"):format("folder", "lines", "", "branches", ""))
for _, folder in ipairs(order) do
  local s = folders[folder]
  print(("%-26s %6d /%6d %5.1f %% %6d /%6d %5.1f %%"):format(folder, s[1], s[2], 100 * s[1] / math.max(1, s[2]), s[3],
    s[4], 100 * s[3] / math.max(1, s[4])))
end
print "\nnot called:"
for _, name in ipairs(names) do
  local list = {}
  for fname, f in pairs(files[name].functions) do
    if f.count == 0 then list[#list + 1] = ("%s:%d %s"):format(name, f.line, fname) end
  end
  table.sort(list)
  for _, line in ipairs(list) do print("  " .. line) end
end
if pattern then
  print "\nlines that did not run:"
  for _, name in ipairs(names) do
    if name:find(pattern) then
      local k = 0
      for line in io.lines(root .. "/" .. name) do
        k = k + 1
        if files[name].lines[k] == 0 then print(("  %s:%d %s"):format(name, k, line)) end
      end
    end
  end
  -- Of a check of a status or of memory one way is hardly ever taken: these are left out.
  print "\nbranches never taken, besides those of status checks, by line (how many of how many):"
  for _, name in ipairs(names) do
    if name:find(pattern) then
      local k, never, all = 0, {}, {}
      for at, taken in pairs(files[name].branches) do
        local line = tonumber(at:match "^%d+")
        all[line] = (all[line] or 0) + 1
        if taken == 0 then never[line] = (never[line] or 0) + 1 end
      end
      for line in io.lines(root .. "/" .. name) do
        k = k + 1
        local status = line:find "PL_TRY" or line:find "[=!]= PL_OK" or line:find "PL_ERR_OOM"
        if never[k] and not status and (files[name].lines[k] or 0) > 0 then
          print(("  %s:%d (%d of %d) %s"):format(name, k, never[k], all[k], line))
        end
      end
    end
  end
end
