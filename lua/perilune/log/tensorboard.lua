-- SPDX-License-Identifier: MIT
--- Event files that TensorBoard reads: scalars, histograms, images, text.
--   local log = assert(T.log.tensorboard("runs/first"))
--   log:scalar("loss", 0.3, step)
-- The format is TensorFlow's: tensorflow/core/util/event.proto and core/framework/summary.proto in records of
-- core/lib/io/record_writer (length, its checksum, data, its checksum).
-- @module perilune.log.tensorboard
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"
local proto = require "perilune.log.proto"
local steps = require "perilune.log.steps"

local fail, describe = options.fail, options.describe
local TensorBoard = classes.new("log.tensorboard", "log")

-- CRC-32C, rotated right by 15 bits plus a constant: a checksum of data that holds checksums must not look like one.
local function masked(s)
  local crc = core.crc32c(s)
  return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
end

local function put(self, event)
  if not self.file then fail("log.tensorboard: %s is closed", self.path) end
  local length = ("<I8"):pack(#event)
  local ok, message, code = self.file:write(length, ("<I4"):pack(masked(length)), event, ("<I4"):pack(masked(event)))
  if not ok then return nil, ("%s: %s"):format(self.path, message), "io", code end
  local now = core.clock()
  if now - self.flushed >= self.flush_every then return self:flush() end
  return true
end

-- An Event: wall_time = 1, step = 2, and one of file_version = 3, summary = 5.
local function event(self, step, field, content)
  local wall = self.epoch + core.clock()
  return put(self, proto.double(1, wall) .. (step and step ~= 0 and proto.int(2, step) or "") ..
    proto.bytes(field, content))
end

-- Checks tag and step; a step that is not given is one more than the last of the tag.
local function place(self, who, tag, step)
  if type(tag) ~= "string" or tag == "" or not utf8.len(tag) then
    fail("log:%s: the tag must be text, got %s", who, describe(tag))
  end
  if step == nil then step = (self.steps[tag] or -1) + 1 end
  local n = options.integer(step)
  if not n then fail("log:%s: the step must be an integer, got %s", who, describe(step)) end
  self.steps[tag] = n
  return n
end

-- Summary { value = 1: Value { tag = 1, … } }
local function summary(self, tag, step, fields)
  return event(self, step, 5, proto.bytes(1, proto.bytes(1, tag) .. fields))
end

--- A number (or a tensor of one element) at a step.
function TensorBoard:scalar(tag, v, step)
  if type(v) == "userdata" and v.numel and v:numel() == 1 then v = v:item() end
  if type(v) ~= "number" then fail("log:scalar: '%s' must be a number, got %s", tostring(tag), describe(v)) end
  step = place(self, "scalar", tag, step)
  return summary(self, tag, step, proto.float(2, v))
end

--- Several scalars under one name: `log:scalars("loss", {train = 0.3, valid = 0.4}, step)` writes loss/train and
-- loss/valid.
function TensorBoard:scalars(tag, values, step)
  if type(values) ~= "table" then fail("log:scalars: a table of numbers is wanted, got %s", describe(values)) end
  local names = {}
  for name in pairs(values) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    local ok, message, code = self:scalar(tag .. "/" .. name, values[name], step)
    if not ok then return nil, message, code end
  end
  return true
end

--- The distribution of a tensor's elements in `bins` (30) buckets of equal width. NaN and infinities are left out.
function TensorBoard:histogram(tag, x, step, opts)
  opts = options.check("log:histogram", opts, { "bins" })
  local T = require "perilune"
  if not T.is_tensor(x) then fail("log:histogram: '%s' must be a tensor, got %s", tag, describe(x)) end
  local bins = opts.bins or 30
  if math.type(bins) ~= "integer" or bins < 1 then fail("log:histogram: bins must be a positive integer") end
  step = place(self, "histogram", tag, step)
  local _ <close> = T.no_grad()
  local v = x:detach():reshape(-1):double()
  v = v[v:isfinite()]
  if v:numel() == 0 then return true end
  local lo, hi = v:min():item(), v:max():item()
  local width = hi > lo and (hi - lo) / bins or 1 / bins
  local at = hi > lo and ((v - lo) / width):floor():clamp(0, bins - 1):long() + 1 or T.ones_like(v):long()
  local counts = T.zeros({ bins }, { dtype = "f64", device = v:device() })
  counts = counts:scatter_add_(1, at, T.ones_like(v)):totable()
  local limits = {}
  for i = 1, bins do limits[i] = i == bins and hi > lo and hi or lo + i * width end
  -- HistogramProto: min max num sum sum_squares bucket_limit bucket
  return summary(self, tag, step, proto.bytes(5, proto.double(1, lo) .. proto.double(2, hi) ..
    proto.double(3, v:numel()) .. proto.double(4, v:sum():item()) .. proto.double(5, (v * v):sum():item()) ..
    proto.doubles(6, limits) .. proto.doubles(7, counts)))
end

--- An image: [H,W], [H,W,C] or [C,H,W] with 1, 3 or 4 channels; u8, or floating from 0 to 1.
function TensorBoard:image(tag, x, step)
  step = place(self, "image", tag, step)
  local pixels = require("perilune.plot.image").pixels("log:image", x)
  local size = pixels:shape()
  local channels = size[3] or 1
  return summary(self, tag, step, proto.bytes(4, proto.int(1, size[1]) .. proto.int(2, size[2]) ..
    proto.int(3, channels) .. proto.bytes(4, core.png(pixels))))
end

--- Text, shown as Markdown.
function TensorBoard:text(tag, s, step)
  step = place(self, "text", tag, step)
  if type(s) ~= "string" or not utf8.len(s) then fail("log:text: '%s' must be UTF-8 text, got %s", tag, describe(s)) end
  -- TensorProto { dtype = 1: DT_STRING 7, tensor_shape = 2 { dim = 2 { size = 1: 1 } }, string_val = 8 } and
  -- SummaryMetadata { plugin_data = 1 { plugin_name = 1 } }
  local tensor = proto.int(1, 7) .. proto.bytes(2, proto.bytes(2, proto.int(1, 1))) .. proto.bytes(8, s)
  return summary(self, tag, step, proto.bytes(8, tensor) .. proto.bytes(9, proto.bytes(1, proto.bytes(1, "text"))))
end

--- What there is of numbers in a row; `step`, else `epoch`, is the step.
function TensorBoard:write(row)
  if type(row) ~= "table" then fail("log:write: a table of values is wanted, got %s", describe(row)) end
  local step, names = row.step or row.epoch, {}
  for name, v in pairs(row) do
    if name ~= "step" and (type(v) == "number" or type(v) == "userdata") then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local ok, message, code = self:scalar(name, row[name], step)
    if not ok then return nil, message, code end
  end
  return true
end

function TensorBoard:on_epoch(run)
  local ok, message = self:write(self.every and steps.measured(run) or run.row)
  if ok then ok, message = self:flush() end
  if not ok then error(message, 0) end
end

function TensorBoard:on_start(run)
  if self.every then steps.begin(self, run) end
end

function TensorBoard:on_batch(run)
  local row = self.every and steps.row(self, run)
  if not row then return end
  local ok, message = self:write(row)
  if not ok then error(message, 0) end
end

-- Where T.fit says how it stands, and looks for what it shall do.
function TensorBoard:beside() return self.dir .. "/perilune" end

--- Hands what is written to the system; happens by itself every `flush` seconds (10).
function TensorBoard:flush()
  self.flushed = core.clock()
  if not self.file then return true end
  local ok, message, code = self.file:flush()
  if not ok then return nil, ("%s: %s"):format(self.path, message), "io", code end
  return true
end

function TensorBoard:close()
  if not self.file then return true end
  local ok, message, code = self.file:close()
  self.file = nil
  if not ok then return nil, ("%s: %s"):format(self.path, message), "io", code end
  return true
end
TensorBoard.__close, TensorBoard.__gc = TensorBoard.close, TensorBoard.close

local made = 0 -- files of this process: two in one second need different names

--- @tparam string dir the folder, made where it is missing; each call starts a file in it
-- @treturn log, or nil, message, code
return function(dir, opts)
  opts = options.check("log.tensorboard", opts, { "flush", "every" })
  if type(dir) ~= "string" or dir == "" then fail("log.tensorboard: a folder is wanted, got %s", describe(dir)) end
  local ok, message, code = core.mkdirs(dir)
  if not ok then return nil, message, code end
  local pid, host = core.process()
  made = made + 1
  local path = ("%s/events.out.tfevents.%010d.%s.%d.%d"):format(dir, os.time(), (host:gsub("[^%w%.-]", "_")), pid, made)
  local f, why, errno = io.open(path, "wb")
  if not f then return nil, why, "io", errno end
  local self = setmetatable({ file = f, path = path, dir = dir, steps = {},
    every = steps.option("log.tensorboard", opts.every), flush_every = opts.flush or 10, flushed = core.clock(),
    epoch = os.time() - core.clock() }, TensorBoard)
  ok, message, code = event(self, nil, 3, "brain.Event:2")
  if ok then ok, message, code = self:flush() end
  if not ok then return nil, message, code end
  if self.every then steps.keep(self) end
  return self
end
