-- SPDX-License-Identifier: MIT
--- The runs below a folder: which logs there are, what they hold, how their trainings stand, and what they are told.
-- Everything is known by numbers that this module gives; nothing that comes from outside becomes part of a path.
-- @module perilune.watch.runs
local core = require "perilune.core"
local control = require "perilune.fit.control"
local json = require "perilune.io.json"
local Series = require "perilune.watch.series"
local tail = require "perilune.watch.tail"

local M = {}

local DEPTH, FILES, RUNS, SERIES, TAGS, SHOTS, PICTURES = 8, 20000, 100, 200, 50, 64, 60
local AGAIN, STATE, NAME = 2.0, 4096, 200 -- seconds between two looks at the folder; bytes of a state; of a name

local Runs = {}
Runs.__index = Runs

function M.open(folder)
  return setmetatable({ folder = folder, list = {}, by_place = {}, pictures = {}, looked = -math.huge, made = 0 }, Runs)
end

local function short(name)
  name = tostring(name)
  return #name > NAME and name:sub(1, NAME) .. "…" or name
end

-- ---- what a log brings ----------------------------------------------------------------------------------------------

local function series_of(run, name, along)
  local of = run.series[along]
  if not of then
    of = {}
    run.series[along] = of
  end
  local s = of[name]
  if not s and run.nseries < SERIES then
    run.nseries = run.nseries + 1
    s = Series.new(short(name), along)
    s.id = run.nseries
    of[name], run.order[run.nseries] = s, s
  end
  return s
end

local along_names = { step = true, epoch = true, batch = true }

local function take_row(run, row)
  local along = row.step and "step" or row.epoch and "epoch" or "row"
  run.rows = run.rows + 1
  local x = along == "row" and run.rows or row[along]
  if type(x) ~= "number" then return end
  for name, v in pairs(row) do
    if type(v) == "number" and type(name) == "string" and not along_names[name] then
      local s = series_of(run, name, along)
      if s then s:add(x, v) end
    end
  end
end

-- Every tag's pictures, thinned where there are many: the first and the last stay.
local function take_picture(run, file, tag, step, from, whole, index)
  local shots = run.shots[tag]
  if not shots then
    if run.nshots >= TAGS then return end
    run.nshots = run.nshots + 1
    shots = { tag = short(tag) }
    run.shots[tag], run.shown[run.nshots] = shots, shots
  end
  if #shots == SHOTS then
    for i = 2, SHOTS // 2 do shots[i] = shots[2 * i - 1] end
    for i = SHOTS // 2 + 1, SHOTS do shots[i] = nil end
  end
  run.taken = run.taken + 1
  shots[#shots + 1] = { step = step, id = run.taken, path = file.path, file = file.tail.id, from = from, whole = whole,
    index = index }
end

local function clear(run)
  run.series, run.order, run.nseries, run.rows = {}, {}, 0, 0
  run.shots, run.shown, run.nshots = {}, {}, 0
end

-- A run of several files is read anew as a whole when one of them is.
local function add_file(run, path)
  local file = { path = path }
  file.tail = tail.open(path, run.kind, {
    row = function(row) take_row(run, row) end,
    scalar = function(tag, step, v)
      local s = not along_names[tag] and series_of(run, tag, "step")
      if not s then return end
      if s.from ~= file then -- the next file of events
        s:rewind(step)
        s.from = file
      end
      s:add(step, v)
    end,
    picture = function(tag, step, ...) take_picture(run, file, tag, step, ...) end,
    restart = function() run.anew = true end,
  })
  run.files[#run.files + 1] = file
  run.has[path] = true
end

local function add_run(self, place, kind, name)
  self.made = self.made + 1
  local run = { id = self.made, name = short(name), kind = kind, place = place, files = {}, has = {}, taken = 0 }
  clear(run)
  self.list[#self.list + 1], self.by_place[place] = run, run
  return run
end

-- ---- the folder -----------------------------------------------------------------------------------------------------

-- Is a table of text a log? One of its columns is the step or the epoch.
local function is_log(path, id)
  if core.file_facts((control.paths(path))) == "file" then return true end -- its run has just begun
  local head = (core.read_range(path, id, 0, 4096) or ""):match "^[^\r\n]*"
  for word in (head .. ","):gmatch "([^,]*)," do
    word = word:gsub('^"(.*)"$', "%1")
    if word == "step" or word == "epoch" then return true end
  end
  return false
end

local function found(self, path, relative, folder, inside, id, time)
  local small = relative:lower()
  if small:find("tfevents", 1, true) then
    if small:find "%.part$" then return end
    local place = folder .. "/perilune"
    local run = self.by_place[place] or #self.list < RUNS and add_run(self, place, "events", inside ~= "" and inside
      or "events")
    if run and not run.has[path] then add_file(run, path) end
  elseif small:find "%.jsonl$" or small:find "%.csv$" then
    if self.by_place[path] or #self.list >= RUNS then return end
    local kind = small:match "%.(%w+)$"
    if kind == "csv" and not is_log(path, id) then return end
    add_file(add_run(self, path, kind, relative), path)
  elseif small:find "%.png$" or small:find "%.jpe?g$" then
    self.found_pictures[#self.found_pictures + 1] = { path = path, file = id, time = time, name = short(relative) }
  end
end

local function walk(self, folder, inside, depth)
  local names = core.list_folder(folder)
  table.sort(names or {})
  for _, entry in ipairs(names or {}) do
    local name = entry:sub(2)
    self.seen = self.seen + 1
    if self.seen > FILES then return end
    if name:sub(1, 1) ~= "." then
      local path, relative = folder .. "/" .. name, inside == "" and name or inside .. "/" .. name
      local kind, _, time, id = core.file_facts(path) -- of the entry itself: links lead elsewhere
      if kind == "folder" and depth < DEPTH then
        walk(self, path, relative, depth + 1)
      elseif kind == "file" then
        found(self, path, relative, folder, inside, id, time)
      end
    end
  end
end

-- Picture files keep their numbers as long as they are the same.
local function keep_pictures(self)
  local list, before = self.found_pictures, self.pictures
  table.sort(list, function(a, b)
    if a.time ~= b.time then return a.time > b.time end
    return a.path < b.path
  end)
  self.pictures = {}
  for i = 1, math.min(#list, PICTURES) do
    local p = list[i]
    for _, old in ipairs(before) do
      if old.path == p.path and old.file == p.file and old.time == p.time then p.id = old.id end
    end
    if not p.id then
      self.made = self.made + 1
      p.id = self.made
    end
    self.pictures[i] = p
  end
end

--- Looks for logs and pictures, if the last look is some time ago.
function Runs:look()
  local now = core.clock()
  if now - self.looked < AGAIN then return end
  self.looked, self.seen, self.found_pictures = now, 0, {}
  walk(self, self.folder, "", 1)
  keep_pictures(self)
  for i = #self.list, 1, -1 do -- logs that were removed
    local run = self.list[i]
    local any = false
    for _, file in ipairs(run.files) do any = any or core.file_facts(file.path) == "file" end
    if not any then
      table.remove(self.list, i)
      self.by_place[run.place] = nil
    end
  end
end

--- Reads what is new in the logs, for about so many seconds. → whether there is more
function Runs:read(seconds)
  local until_ = core.clock() + seconds
  repeat
    local more = false
    for _, run in ipairs(self.list) do
      for _, file in ipairs(run.files) do
        more = file.tail:more() or more
        if run.anew then break end
      end
      if run.anew then
        run.anew = nil
        clear(run)
        local files = run.files
        run.files, run.has = {}, {}
        for _, file in ipairs(files) do add_file(run, file.path) end
        more = true
      end
      if core.clock() >= until_ then return true end
    end
  until not more
  return false
end

-- ---- how a training stands ------------------------------------------------------------------------------------------

local kept = { "state", "controls", "epoch", "epochs", "step", "steps", "batch", "batches", "loss", "lr", "started",
  "time" }
local states = { running = true, paused = true, stopping = true }

--- What a run says of itself, if it is this user's and goes on; with its token.
function Runs.state(run)
  local text = core.read_own((control.paths(run.place)), STATE)
  local said = text and json.decode(text)
  if type(said) ~= "table" or said.format ~= control.FORMAT or not states[said.state] then return nil end
  if type(said.token) ~= "string" or not said.token:find "^%x+$" then return nil end
  local out = { token = said.token }
  for _, name in ipairs(kept) do
    local v = said[name]
    if type(v) == "number" or name == "state" or name == "controls" then out[name] = v end
  end
  local _, host = core.process()
  local pid = math.tointeger(said.pid)
  if said.host == host and not (pid and core.is_running(pid)) then out.state, out.controls = "killed", false end
  out.silent = out.time and math.max(0, os.time() - out.time) or nil
  return out
end

local words = { pause = true, resume = true, stop = true }

--- Tells a run what to do. true; or nil, why not
function Runs:tell(id, word)
  if not words[word] then return nil, "a run is told pause, resume or stop" end
  for _, run in ipairs(self.list) do
    if run.id == id then
      local state = Runs.state(run)
      if not state then return nil, "this run has ended, or belongs to another user" end
      if not state.controls then return nil, "this run cannot be told anything: it was killed, or is one of several" end
      local _, path = control.paths(run.place)
      local ok, message = core.write_own(path, ("%s %s\n"):format(word, state.token))
      if not ok then return nil, message end
      return true
    end
  end
  return nil, "there is no such run"
end

--- The bytes of a picture and its content type; nil where there is none.
function Runs:picture(run_id, id)
  local bytes
  for _, p in ipairs(self.pictures) do
    if run_id == 0 and p.id == id then bytes = core.read_range(p.path, p.file, 0, 16 << 20) end
  end
  for _, run in ipairs(self.list) do
    for _, shots in ipairs(run.id == run_id and run.shown or {}) do
      for _, shot in ipairs(shots) do
        if shot.id == id then bytes = tail.picture(shot.path, shot.file, shot.from, shot.whole, shot.index) end
      end
    end
  end
  if not bytes then return nil end
  if bytes:sub(1, 8) == "\137PNG\r\n\26\n" then return bytes, "image/png" end
  if bytes:sub(1, 3) == "\255\216\255" then return bytes, "image/jpeg" end
  return nil
end

-- ---- all that is known, as JSON -------------------------------------------------------------------------------------

-- have: what the page has read: {["run.series"] = {generation, points, total}}
local function run_json(run, have, out)
  local state = Runs.state(run) or { state = "ended" }
  state.token = nil
  local faults, series, shots = {}, {}, {}
  for _, file in ipairs(run.files) do faults[#faults + 1] = file.tail.fault end
  local names = json.array {}
  for i, s in ipairs(run.order) do
    names[i] = { id = s.id, name = s.name, along = s.along, last = s.last, broken = s.broken > 0 and s.broken or nil,
      per = s.per }
    local has = have[("%d.%d"):format(run.id, s.id)]
    if type(has) ~= "table" then has = {} end
    local news = s:news(math.tointeger(has[1]), math.tointeger(has[2]) or 0, has[3])
    if news then series[#series + 1] = ('{"id":%d,%s}'):format(s.id, news) end
  end
  for i, list in ipairs(run.shown) do
    local of = json.array {}
    for k, shot in ipairs(list) do of[k] = { step = shot.step, id = shot.id } end
    shots[i] = { tag = list.tag, shots = of }
  end
  out[#out + 1] = ('{"id":%d,"about":%s,"points":[%s]}'):format(run.id, json.line { name = run.name, state = state,
    series = names, pictures = json.array(shots), fault = faults[1] }, table.concat(series, ","))
end

--- What a page does not have yet. more: whether logs are still being read.
function Runs:json(have, more)
  local out, pictures = {}, json.array {}
  for _, run in ipairs(self.list) do run_json(run, have, out) end
  for i, p in ipairs(self.pictures) do pictures[i] = { id = p.id, name = p.name } end
  return ('{"folder":%s,"time":%d,"more":%s,"runs":[%s],"pictures":%s}'):format(json.line(self.folder), os.time(),
    tostring(more), table.concat(out, ","), json.line(pictures))
end

return M
