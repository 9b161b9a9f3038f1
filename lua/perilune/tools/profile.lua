-- SPDX-License-Identifier: MIT
--- Where the time goes: `print(T.profile(function() … end))`. Each op that runs meanwhile, also in backward, is
-- measured: its time, the bytes it allocates, the floating-point operations of its kernels, the line that called it; on
-- a GPU also the time of its kernels there. A trace for chrome://tracing or ui.perfetto.dev goes to a file.
-- @module perilune.tools.profile
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"
local html = require "perilune.tools.html"

local fail = options.fail
local Profile = classes.new("profile", "profile")

local function time_text(s)
  if s >= 1 then return ("%.3f s"):format(s) end
  if s >= 1e-3 then return ("%.3f ms"):format(s * 1e3) end
  return ("%.3f us"):format(s * 1e6)
end

local function bytes_text(n)
  local a = math.abs(n)
  for _, unit in ipairs { { 1 << 30, "GiB" }, { 1 << 20, "MiB" }, { 1 << 10, "KiB" } } do
    if a >= unit[1] then return ("%.2f %s"):format(n / unit[1], unit[2]) end
  end
  return ("%d B"):format(n)
end

local function label(e)
  local name = e.count > 1 and ("%s and %d more, fused"):format(e.name, e.count - 1) or e.name
  return e.backward and name .. " (backward)" or name
end

local keys = {
  op = label,
  line = function(e) return e.line or "?" end,
  both = function(e) return ("%s  %s"):format(e.line or "?", label(e)) end,
}

--- Sums by op ("op"), by line ("line") or by both ("both"): a list of {key, calls, time, self, bytes, self_bytes,
-- flops, gpu}, most self time first, on a GPU most time there. `time` is with the ops that an op is made of, `self`,
-- `flops` and `gpu` (seconds of its kernels on a GPU, by events of the stream) without.
function Profile:rows(by)
  by = by or "op"
  local key = keys[by]
  if not key then fail("profile: %s", options.unknown("grouping", by, { "op", "line", "both" })) end
  local rows, at = {}, {}
  for _, e in ipairs(self.events) do
    local k = key(e)
    local row = at[k]
    if not row then
      row = { key = k, calls = 0, time = 0, self = 0, bytes = 0, self_bytes = 0, flops = 0, gpu = 0 }
      rows[#rows + 1], at[k] = row, row
    end
    row.calls = row.calls + 1
    for _, field in ipairs { "time", "self", "bytes", "self_bytes", "flops", "gpu" } do
      row[field] = row[field] + e[field]
    end
  end
  table.sort(rows, function(a, b)
    if a.gpu ~= b.gpu then return a.gpu > b.gpu end
    if a.self ~= b.self then return a.self > b.self end
    return a.key < b.key
  end)
  return rows
end

-- The rows of the table, and the line below it. Where kernels ran on a GPU there is a column for them.
local function cells_of(self, opts)
  local all = self:rows(opts.by)
  local inside, gpu = 0, 0
  for _, row in ipairs(all) do inside, gpu = inside + row.self, gpu + row.gpu end
  local function share(v) return ("%.1f%%"):format(self.time > 0 and 100 * v / self.time or 0) end
  local function cells_with(name, there, ...)
    if gpu > 0 then return { name, there, ... } end
    return { name, ... }
  end
  local cells = { cells_with("Name", "GPU", "Self %", "Self", "Total %", "Total", "Avg", "Calls", "Self mem",
    "GFLOP/s") }
  for i = 1, math.min(#all, opts.limit or 20) do
    local r = all[i]
    local seconds = r.gpu > 0 and r.gpu or r.self
    cells[#cells + 1] = cells_with(r.key, time_text(r.gpu), share(r.self), time_text(r.self), share(r.time),
      time_text(r.time), time_text(r.time / r.calls), tostring(r.calls), bytes_text(r.self_bytes),
      ("%.3g"):format(seconds > 0 and r.flops / seconds / 1e9 or 0))
  end
  local more = #all - #cells + 1
  if more > 0 then cells[#cells + 1] = cells_with(("… %d more"):format(more), "", "", "", "", "", "", "", "", "") end
  local rest = self.time - inside
  cells[#cells + 1] = cells_with("(outside of ops)", "", share(rest), time_text(rest), "", "", "", "", "", "")
  return cells, ("%s in all%s, %d op calls%s"):format(time_text(self.time),
    gpu > 0 and (", %s of kernels on the GPU"):format(time_text(gpu)) or "", #self.events,
    self.lost > 0 and (", %d more lost for lack of memory"):format(self.lost) or "")
end

--- The sums as a table of text; `by` as for rows, `limit` rows (20).
function Profile:table(opts)
  local cells, foot = cells_of(self, options.check("profile:table", opts, { "by", "limit" }))
  local width = {}
  for _, row in ipairs(cells) do
    for i, c in ipairs(row) do width[i] = math.max(width[i] or 0, utf8.len(c) or #c) end
  end
  local out = {}
  for _, row in ipairs(cells) do
    local line = {}
    for i, c in ipairs(row) do
      local gap = (" "):rep(width[i] - (utf8.len(c) or #c))
      line[i] = i == 1 and c .. gap or gap .. c
    end
    out[#out + 1] = (table.concat(line, "  "):gsub("%s+$", ""))
  end
  local rule = ("-"):rep(#out[1])
  table.insert(out, 2, rule)
  out[#out + 1] = rule
  out[#out + 1] = foot
  return table.concat(out, "\n")
end
Profile.__tostring = function(self) return self:table() end
Profile.__mime = function(self)
  local cells, foot = cells_of(self, {})
  return { ["text/html"] = html.table(cells, { foot = foot }) }
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\" }
local function quoted(s)
  return '"' .. s:gsub('[%c"\\]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

--- Writes the events in the Trace Event Format. Returns true, or nil, message, code.
function Profile:trace(path)
  if type(path) ~= "string" then fail("profile:trace: a path is wanted, got %s", options.describe(path)) end
  local function event(name, category, begin, time, args)
    return ('{"name":%s,"cat":%s,"ph":"X","pid":1,"tid":1,"ts":%.3f,"dur":%.3f,"args":{%s}}'):format(quoted(name),
      quoted(category), (begin - self.from) * 1e6, time * 1e6, args)
  end
  local out = { event("profile", "lua", self.from, self.time, "") }
  for _, r in ipairs(self.regions) do out[#out + 1] = event(r.name, "region", r.begin, r.time, "") end
  for _, e in ipairs(self.events) do
    local args = ('"bytes":%d,"flops":%.17g,"line":%s'):format(e.bytes, e.flops, quoted(e.line or "?"))
    if e.gpu > 0 then args = args .. (',"gpu_us":%.3f'):format(e.gpu * 1e6) end
    out[#out + 1] = event(label(e), e.backward and "backward" or "op", e.begin, e.time, args)
  end
  return core.write_file(path, '{"displayTimeUnit":"ms","traceEvents":[\n' .. table.concat(out, ",\n") .. "\n]}\n")
end

-- What f gets: region("forward") names the time until the end of the block it is closed in.
local function region_maker(self)
  return function(name)
    local r = { name = tostring(name), begin = core.clock(), time = 0 }
    self.regions[#self.regions + 1] = r
    return setmetatable({}, { __close = function() r.time = core.clock() - r.begin end })
  end
end

--- T.profile(f, "trace.json"?) → profile, what f returns
-- Measures every op while f runs: time, bytes allocated, floating-point operations of its kernels, the script's line,
-- in backward and in functions of T.jit too; on a GPU the time of its kernels there. print(p) shows the sums by op;
-- p:table{by="line"|"both", limit=20}; p:rows(by) as a list; p:trace(path) for chrome://tracing or ui.perfetto.dev. f
-- gets a function: local _ <close> = region("name") marks a stretch in the trace.
--   local p, y = T.profile(function() return T.ones(100) * 2 end)
--   print(p:rows()[1].calls, y:numel())  --> 1	100
--   for _, row in ipairs(p:rows("op")) do if row.key == "mul" then print(row.bytes >= 400) end end  --> true
return function(f, path)
  local meta = getmetatable(f)
  if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("profile: a function is wanted, got %s", options.describe(f))
  end
  if path ~= nil and type(path) ~= "string" then
    fail("profile: the path of the trace must be a string, got %s", options.describe(path))
  end
  local self = setmetatable({ regions = {}, from = core.clock() }, Profile)
  local got = table.pack(core.profile(f, region_maker(self)))
  self.time = core.clock() - self.from
  self.events, self.lost = got[1], got[2]
  if not got[3] then error(got[4], 0) end
  if path then
    local ok, message, code = self:trace(path)
    if not ok then return nil, message, code end
  end
  return self, table.unpack(got, 4, got.n)
end
