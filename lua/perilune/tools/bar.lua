-- SPDX-License-Identifier: MIT
--- A progress bar around a loop: `for x, y in T.bar(loader) do … end`.
-- On a terminal one line that is redrawn at most ten times a second; elsewhere a plain line at every tenth
-- of the
-- way, or every five seconds where the end is not known.
-- @module perilune.tools.bar
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"

local fail = options.fail
local clock = core.clock

local Bar = classes.new("bar", "bar")

local option_names = { "title", "total", "file", "width", "every", "quiet" }
local FRAME, PLAIN_EVERY = 0.1, 5.0

local function duration(s)
  if s ~= s or s == math.huge then return "--:--" end
  s = math.floor(s + 0.5)
  if s >= 3600 then return ("%d:%02d:%02d"):format(s // 3600, s // 60 % 60, s % 60) end
  return ("%02d:%02d"):format(s // 60, s % 60)
end

local function speed(v)
  if v ~= v or v == math.huge then return "-- it/s" end
  if v > 0 and v < 1 then return ("%.2f s/it"):format(1 / v) end
  return (v >= 100 and "%.0f it/s" or "%.1f it/s"):format(v)
end

local function value_text(v)
  if type(v) == "userdata" and v.numel and v:numel() == 1 then v = v:item() end
  if math.type(v) == "float" then return ("%.4g"):format(v) end
  return tostring(v)
end

-- What is known about the state of the loop, in words.
function Bar:words(now)
  now = now or clock()
  self.started = self.started or now
  local elapsed = now - self.started
  local rate = elapsed > 0 and self.n / elapsed or 0 / 0
  local words = {}
  if self.total then
    words[1] = ("%d/%d"):format(self.n, self.total)
    local left = self.n > 0 and (self.total - self.n) / rate or 0 / 0
    words[2] = speed(rate)
    words[3] = self.finished and duration(elapsed) or ("%s<%s"):format(duration(elapsed),
      duration(math.max(left, 0)))
  else
    words[1], words[2], words[3] = ("%d"):format(self.n), speed(rate), duration(elapsed)
  end
  for _, key in ipairs(self.keys) do words[#words + 1] = key .. " " .. value_text(self.values[key]) end
  return table.concat(words, "  ")
end

local function cells(s) return utf8.len(s) or #s end

function Bar:_draw(now)
  self.drawn = now
  local words = self:words(now)
  local title = self.title and self.title .. " " or ""
  if not self.terminal then
    local share = self.total and ("%3d%%  "):format(self.total > 0 and 100 * self.n // self.total or 100) or
      ""
    self.file:write(title, share, words, "\n")
    self.file:flush()
    return
  end
  local width = self.width or core.terminal_width(self.fd)
  local line
  if self.total then
    local part = self.total > 0 and math.min(self.n / self.total, 1) or 1
    local room = math.min(40, width - 1 - cells(title) - cells(words) - 9)
    local gauge = ""
    if room >= 5 then
      local full = math.floor(part * room)
      if self.color then
        gauge = " \27[36m" .. ("━"):rep(full) .. "\27[90m" .. ("━"):rep(room - full) .. "\27[0m"
      else
        gauge = " [" .. ("#"):rep(full) .. ("-"):rep(room - full) .. "]"
      end
    end
    line = ("%s%3d%%%s  %s"):format(title, math.floor(100 * part), gauge, words)
  else
    line = title .. words
  end
  if not line:find("\27", 1, true) and cells(line) > width - 1 then
    line = line:sub(1, (utf8.offset(line, width) or #line + 1) - 1)
  end
  if core.notebook then -- a front end has no code that clears the line
    local full = cells((line:gsub("\27%[%d*m", "")))
    line, self.full = line .. (" "):rep((self.full or 0) - full), full
  end
  self.file:write(core.notebook and "\r" or "\r\27[K", line)
  self.file:flush()
end

-- Plain output: at every tenth, or when time has passed.
function Bar:_due(now)
  if self.terminal then return now - self.drawn >= FRAME end
  if self.every then return self.n % self.every == 0 end
  if self.total and self.total > 0 then
    local tenth = 10 * self.n // self.total
    if tenth > self.tenth then
      self.tenth = tenth
      return self.n < self.total -- the end is said once, by finish
    end
    return false
  end
  return now - self.drawn >= PLAIN_EVERY
end

--- Values to be shown behind the bar: `bar:set{loss = 0.3}`. Numbers and 1-element tensors.
function Bar:set(values)
  if type(values) ~= "table" then fail("bar:set: a table of values is wanted, got %s", type(values)) end
  local new = {}
  for key in pairs(values) do if self.values[key] == nil then new[#new + 1] = tostring(key) end end
  table.sort(new)
  for _, key in ipairs(new) do self.keys[#self.keys + 1] = key end
  for key, v in pairs(values) do self.values[tostring(key)] = v end
  return self
end

--- Counts k more (1), for loops that the bar does not drive itself.
function Bar:step(k)
  self.started = self.started or clock()
  self.n = self.n + (k or 1)
  if self.on_step then self.on_step() end
  if self.quiet then return self end
  local now = clock()
  if self:_due(now) then self:_draw(now) end
  return self
end

--- Ends the bar: draws its last state and a line break. The loop's end does this by itself.
function Bar:finish()
  if self.finished then return end
  self.finished = true
  if self.quiet or not self.started then return end
  self:_draw(clock())
  if self.terminal then self.file:write("\n") end
  self.file:flush()
end

Bar.__close = function(self) self:finish() end

function Bar:_pass(first, ...)
  if first == nil then
    if self.n > 0 or not self.began then self:finish() end
    return nil
  end
  self.began = true
  return first, ...
end

-- One turn of the generic for. The count moves when the body of the turn before is done.
function Bar:__call(_, control)
  if control == nil then
    self.n, self.began, self.finished, self.tenth = 0, false, false, 0
    self.started = clock()
    self.drawn = self.terminal and 0 or self.started
  else
    self:step(1)
  end
  return self:_pass(self.f(self.s, control == nil and self.c or control))
end

-- A function that walks a list as ipairs does.
local function list_next(list, i)
  i = (i or 0) + 1
  local v = list[i]
  if v ~= nil then return i, v end
end

-- iterator triple and total of what the user passed
local function source(what)
  if type(what) == "number" then
    local n = options.integer(what)
    if not n or n < 0 then fail("bar: a count must be a non-negative integer, got %s", tostring(what)) end
    return function(_, i) if i < n then return i + 1 end end, nil, 0, n
  end
  local meta = getmetatable(what)
  local callable = type(what) == "function" or (type(meta) == "table" and meta.__call)
  local ok, n = core.attempt(function() return #what end)
  n = ok and options.integer(n) or nil
  if callable then return what, nil, nil, n end
  if type(what) == "table" or type(what) == "userdata" then return list_next, what, 0, n end
  fail("bar: an iterator, a list, a loader or a number is wanted, got %s", options.describe(what))
end

-- @param what a DataLoader, a list (gives i, value), a number n (gives 1 … n), or an iterator as pairs
-- returns it
-- (then the options come fourth)
-- @tparam[opt] table opts `title= total= file=io.stderr width= every=` (plain lines every so many turns)
-- `quiet=false`
-- @return for a generic for; the first value is the bar, with `bar:set{loss = v}`
--- T.bar(loop, {title=, total=, every=, quiet=, file=, width=}) → the loop with a progress bar
-- For a generic for: over a DataLoader, an iterator, a list, or 1 … n. On a terminal one line that is redrawn;
-- elsewhere a line at each tenth. bar:set{loss = 0.3} shows figures behind it.
--   local sum = 0
--   for i in T.bar(4, { quiet = true }) do sum = sum + i end
--   print(sum)  --> 10
local function new(what, opts, control, more)
  local s, c, total
  if type(what) == "function" and (more ~= nil or control ~= nil or getmetatable(opts) ~= nil) then
    s, c, opts = opts, control, more
  elseif type(what) == "function" and type(opts) == "table" and next(opts) ~= nil then
    for key in pairs(opts) do
      -- the state of an iterator, as ipairs(t) gives it
      if not options.nearest(tostring(key), option_names) then
        s, opts = opts, nil
        break
      end
    end
  end
  opts = options.check("bar", opts, option_names)
  if s == nil then what, s, c, total = source(what) end
  local quiet = opts.quiet
  if quiet == nil then quiet = (core.rank or 0) > 0 end -- of several processes rank 0 speaks for all
  local notebook = core.notebook ~= nil -- where standard error looks like an error
  local file = opts.file or notebook and io.stdout or io.stderr
  local fd = file == io.stdout and 1 or file == io.stderr and 2 or nil
  local terminal = fd ~= nil and (notebook or core.isatty(fd) and os.getenv("TERM") ~= "dumb")
  local no_color = os.getenv("NO_COLOR")
  local self = setmetatable({
    f = what, s = s, c = c, total = opts.total or total, title = opts.title, file = file, fd = fd,
    width = opts.width, every = opts.every, quiet = quiet or false, terminal = terminal,
    color = terminal and (no_color == nil or no_color == ""), n = 0, values = {}, keys = {}, drawn = 0,
      tenth = 0,
    finished = false, began = false,
  }, Bar)
  return self, nil, nil, self
end

return new
