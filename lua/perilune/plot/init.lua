-- SPDX-License-Identifier: MIT
--- Pictures: `print(T.plot(losses))` draws in the terminal; the figure's :svg(path) and :png(path) write files.
-- T.plot.scatter, T.plot.hist, T.plot.matrix, T.plot.image make other kinds; x:imshow() and x:spark() are methods.
-- @module perilune.plot
local T = require "perilune"
local classes = require "perilune.classes"
local color = require "perilune.plot.color"
local options = require "perilune.options"
local image = require "perilune.plot.image"
local Figure = require "perilune.plot.figure"

local fail, describe = options.fail, options.describe
local plot = {}

local common = { "title", "xlabel", "ylabel", "width", "height" }
local function names(...)
  local out = { ... }
  for _, name in ipairs(common) do out[#out + 1] = name end
  return out
end

local function figure(kind, opts, fields, width, height)
  local f = { kind = kind }
  for _, name in ipairs(common) do f[name] = opts[name] end
  f.width, f.height = opts.width or width, opts.height or height
  for key, v in pairs(fields) do f[key] = v end
  return setmetatable(f, Figure)
end

-- ---- series ----------------------------------------------------------------------------------------------------

-- A list of numbers from a list or a tensor of one dimension.
local function numbers(who, v)
  if T.is_tensor(v) then
    if v:dim() ~= 1 then fail("%s: a tensor of one dimension is wanted, got %s", who, v:describe()) end
    if v:dtype() == "bool" then v = v:long() end
    return v:detach():totable()
  end
  if type(v) ~= "table" then fail("%s: a list of numbers or a tensor is wanted, got %s", who, describe(v)) end
  options.list(who, "what is drawn", v, "numbers")
  local out = {}
  for i = 1, #v do
    local x = v[i]
    if T.is_tensor(x) and x:numel() == 1 then x = x:item() end
    if type(x) ~= "number" then fail("%s: value %d is %s, not a number", who, i, describe(x)) end
    out[i] = x
  end
  return out
end

local styles = { "line", "points", "both", "bars" }

local function one_series(who, s, k, style)
  local y = numbers(who, s.y or s[1])
  local x = s.x and numbers(who, s.x) or {}
  if not s.x then for i = 1, #y do x[i] = i end end
  if #x ~= #y then fail("%s: series %d has %d positions and %d values", who, k, #x, #y) end
  style = s.style or style or "line"
  local known = false
  for _, word in ipairs(styles) do known = known or word == style end
  if not known then fail("%s: %s", who, options.unknown("style", style, styles)) end
  local c = s.color or color.series[(k - 1) % #color.series + 1]
  if math.type(c) ~= "integer" then fail("%s: a colour is an integer, 0xRRGGBB, got %s", who, describe(c)) end
  return { x = x, y = y, label = s.label and tostring(s.label), style = style, color = c, step = s.step,
    radius = s.radius }
end

local series_keys = { "x", "y", "label", "style", "color", "radius" }

-- (y), (x, y), ({series, …}) or a matrix whose rows are series.
local function read_series(who, a, b, style)
  if b ~= nil then return { one_series(who, { x = a, y = b }, 1, style) } end
  local out = {}
  if T.is_tensor(a) and a:dim() == 2 then
    for i = 1, a:size(1) do out[i] = one_series(who, { y = a[i], label = "row " .. i }, i, style) end
  elseif type(a) == "table" and (type(a[1]) == "table" or (T.is_tensor(a[1]) and a[1]:dim() > 0)) then
    for i, s in ipairs(a) do
      if type(s) == "table" and s.y ~= nil then options.check(who .. ": series", s, series_keys) else s = { y = s } end
      out[i] = one_series(who, s, i, style)
    end
  else
    out[1] = one_series(who, { y = a }, 1, style)
  end
  return out
end

local function limits(who, opts)
  for _, key in ipairs { "xlim", "ylim" } do
    local v = opts[key]
    if v ~= nil and not (type(v) == "table" and type(v[1]) == "number" and type(v[2]) == "number" and v[1] < v[2]) then
      fail("%s: %s must be {low, high}", who, key)
    end
  end
  for _, key in ipairs { "xscale", "yscale" } do
    local v = opts[key]
    if v ~= nil and v ~= "linear" and v ~= "log" then
      fail("%s: %s", who, options.unknown(key, v, { "linear", "log" }))
    end
  end
  local aspect = opts.aspect
  if aspect ~= nil and aspect ~= "equal" and aspect ~= "auto" then
    fail("%s: %s", who, options.unknown("aspect", aspect, { "equal", "auto" }))
  end
  if aspect == "equal" and (opts.xscale == "log" or opts.yscale == "log") then
    fail("%s: aspect = \"equal\" is for linear axes", who)
  end
end

local line_keys = names("xlim", "ylim", "xscale", "yscale", "labels", "style", "legend", "aspect")

local function is_options(v)
  return type(v) == "table" and getmetatable(v) == nil and v[1] == nil and next(v) ~= nil
end

local function lines(who, style, a, b, opts)
  if opts == nil and is_options(b) then b, opts = nil, b end
  opts = options.check(who, opts, line_keys)
  limits(who, opts)
  local series = read_series(who, a, b, opts.style or style)
  for i, label in ipairs(opts.labels or {}) do if series[i] then series[i].label = tostring(label) end end
  return figure("lines", opts, { series = series, xlim = opts.xlim, ylim = opts.ylim, xscale = opts.xscale,
    yscale = opts.yscale, legend = opts.legend, aspect = opts.aspect }, 640, 400)
end

--- T.plot.scatter(x, y, options) → figure
-- Points; options as for T.plot.
--   print(#T.plot.scatter({ 1, 2 }, { 3, 4 }).series)  --> 1
function plot.scatter(x, y, opts) return lines("plot.scatter", "points", x, y, opts) end

--- T.plot.hist(x, {bins=30, xlim=, …}) → figure
-- How often the elements of a tensor or list fall into each of `bins` intervals.
--   print(T.plot.hist({ 1, 1, 2, 9 }, { bins = 2 }).series[1].y[1])  --> 3.0
function plot.hist(x, opts)
  opts = options.check("plot.hist", opts, names("bins", "xlim"))
  limits("plot.hist", opts)
  local bins = opts.bins or 30
  if math.type(bins) ~= "integer" or bins < 1 then fail("plot.hist: bins must be a positive integer") end
  local v = T.is_tensor(x) and x:detach():to("cpu"):reshape(-1):double() or
    T.tensor(numbers("plot.hist", x), { dtype = "f64", device = "cpu" })
  local _ <close> = T.no_grad()
  v = v[v:isfinite()]
  local lo, hi = 0, 1
  if opts.xlim then
    lo, hi = opts.xlim[1], opts.xlim[2]
    v = v[v:ge(lo):logical_and(v:le(hi))]
  elseif v:numel() > 0 then
    lo, hi = v:min():item(), v:max():item()
  end
  if hi <= lo then lo, hi = lo - 0.5, hi + 0.5 end
  local step = (hi - lo) / bins
  local counts, middles = {}, {}
  local at = ((v - lo) / step):floor():clamp(0, bins - 1):long() + 1
  local n = T.zeros({ bins }, { dtype = "f64", device = "cpu" })
  if v:numel() > 0 then n = n:scatter_add_(1, at, T.ones_like(v)) end
  for i = 1, bins do counts[i], middles[i] = n:get(i), lo + (i - 0.5) * step end
  local bars = { x = middles, y = counts, style = "bars", color = color.series[1], step = step, close = true }
  return figure("lines", opts, { xlim = { lo, hi }, series = { bars } }, 640, 400)
end

-- ---- matrices and images ----------------------------------------------------------------------------------------

local function list_of_names(given, n)
  local out = {}
  for i = 1, n do out[i] = tostring(given and given[i] or i) end
  return out
end

--- T.plot.matrix(m, {names=, rows=, cols=, map="blues", values=true, lo=, hi=, …}) → figure
-- Coloured squares with the values in them; names at both sides, or rows= and cols=. map: "blues", "grey", "viridis",
-- "diverging".
--   print(T.plot.matrix({ { 5, 1 }, { 0, 6 } }, { names = { "cat", "dog" } }):text { color = false })
--   -->     cat dog
--   --> cat   5   1
--   --> dog   0   6
function plot.matrix(m, opts)
  opts = options.check("plot.matrix", opts, names("names", "rows", "cols", "map", "values", "lo", "hi"))
  if type(m) == "table" then m = T.tensor(m) end
  if not T.is_tensor(m) or m:dim() ~= 2 or m:numel() == 0 then
    fail("plot.matrix: a matrix is wanted, got %s", T.is_tensor(m) and m:describe() or describe(m))
  end
  local whole = not m:is_floating_point()
  local list = (m:dtype() == "bool" and m:long() or m):detach():reshape(-1):totable()
  local lo, hi = math.huge, -math.huge
  for _, v in ipairs(list) do
    if v - v == 0 then lo, hi = math.min(lo, v), math.max(hi, v) end
  end
  lo, hi = opts.lo or (whole and math.min(lo, 0) or lo), opts.hi or hi
  local texts, shares = {}, {}
  for i, v in ipairs(list) do
    texts[i] = whole and tostring(v) or ("%.2g"):format(v)
    shares[i] = hi > lo and (v - lo) / (hi - lo) or 0.5
  end
  local rows, cols = m:size(1), m:size(2)
  return figure("matrix", opts, { rows = rows, cols = cols, texts = texts, shares = shares,
    shade = color.map("plot.matrix", opts.map or "blues"), show_values = opts.values ~= false,
    row_names = list_of_names(opts.rows or opts.names, rows),
    col_names = list_of_names(opts.cols or opts.names, cols) }, 540, 540)
end

-- A picture's own way to files: pixels stay pixels.
local Image = classes.new("image", "image", Figure)
Image.__tostring = Figure.__tostring

local function enlarged(pixels, k)
  if k == 1 then return pixels end
  return pixels:repeat_interleave(k, 1):repeat_interleave(k, 2)
end

local TITLE = 30 -- pixels above the picture

-- The pixels below their title, centred, on white; a long title makes the picture wider.
local function titled(title, pixels)
  local w = pixels:size(2)
  local wide = math.max(w, math.ceil(require("perilune.plot.shapes").text_width(title, 14)) + 16)
  local head = require "perilune.plot.raster"({ width = wide, height = TITLE,
    { kind = "text", x = wide / 2, y = 20, text = title, size = 14, anchor = "middle", color = 0x333333 } }, 1)
  local left = (wide - w) // 2
  if wide > w then
    local page = T.full({ pixels:size(1), wide, 3 }, 255, { dtype = "u8", device = "cpu" })
    page[{ {}, { left + 1, left + w }, {} }] = pixels
    pixels = page
  end
  return T.cat({ head, pixels }, 1)
end

--- PNG bytes or file; `scale` pixels a pixel (as many as make about 256).
function Image:png(path, opts)
  if type(path) == "table" then path, opts = nil, path end
  opts = options.check("image:png", opts, { "scale" })
  local k = opts.scale or self.scale
  if math.type(k) ~= "integer" or k < 1 then
    fail("image:png: scale must be a positive integer, got %s", describe(k))
  end
  local pixels = enlarged(self.pixels, k)
  if self.title then pixels = titled(self.title, pixels) end
  local bytes = T.core.png(pixels:contiguous())
  if path == nil then return bytes end
  if type(path) ~= "string" then fail("image:png: the path must be a string, got %s", describe(path)) end
  return T.core.write_file(path, bytes)
end

function Image:__mime() return { ["image/png"] = self:png() } end

-- At most `width` pixels wide, for a terminal: means of neighbours.
function Image:fitted(width)
  local h, w = self.pixels:size(1), self.pixels:size(2)
  if w <= width then return self.pixels end
  local x = self.pixels:permute(3, 1, 2):to("f32"):unsqueeze(1)
  local y = T.nn.F.adaptive_avg_pool2d(x, { math.max(1, math.floor(h * width / w + 0.5)), width })
  return y[1]:permute(2, 3, 1):round():clamp(0, 255):to("u8"):contiguous()
end

-- Images side by side, `cols` a row, with a pixel between them.
local function grid(x, cols)
  local n, h, w = x:size(1), x:size(2), x:size(3)
  cols = math.min(cols or math.ceil(n ^ 0.5), n)
  local rows = (n + cols - 1) // cols
  local out = T.zeros({ rows * (h + 1) - 1, cols * (w + 1) - 1, 3 }, { dtype = "u8", device = "cpu" })
  for i = 1, n do
    local r, c = (i - 1) // cols * (h + 1), (i - 1) % cols * (w + 1)
    out[{ { r + 1, r + h }, { c + 1, c + w }, {} }] = x[i]
  end
  return out
end

-- From where to where finite values go: 0 to 1 where they are there; nil of none.
local function extent(x)
  local v = x:detach():to("f32")
  v = v[v:isfinite()]
  if v:numel() == 0 then return nil, nil end
  local lo, hi = v:min():item(), v:max():item()
  if lo >= 0 and hi <= 1 then return 0, 1 end
  return lo, hi
end

-- Values as three channels of u8: grey through the map, colours as they are.
local function colored(who, x, opts)
  local lo, hi = opts.lo, opts.hi
  if x:dtype() ~= "u8" and x:dtype() ~= "bool" and lo == nil and hi == nil and x:numel() > 0 then
    lo, hi = extent(x)
  end
  local pixels = image.pixels(who, x, lo, hi)
  if pixels:dim() == 3 then return pixels:narrow(3, 1, 3):contiguous() end
  local shade, table_ = color.map(who, opts.map or "grey"), {}
  for i = 0, 255 do table_[i + 1] = { color.split(shade(i / 255)) } end
  local rows = T.tensor(table_, { dtype = "u8", device = "cpu" })
  local s = pixels:shape()
  return rows:index_select(pixels:long():reshape(-1) + 1, 1):view(s[1], s[2], 3)
end

-- A tensor as a picture: [H,W], [C,H,W], [H,W,C], or several as [N,C,H,W]. u8 as it is; other numbers from 0 to 1 if
-- they are there, else from their least to their greatest, or `lo` to `hi`. One channel goes through `map`.
--- T.plot.image(x, {…}) → figure
-- What x:imshow{…} does.
--   print(T.plot.image(T.zeros(4, 6)).kind)  --> image
function plot.image(x, opts)
  opts = options.check("imshow", opts, { "lo", "hi", "map", "cols", "title", "scale", "file" })
  if not T.is_tensor(x) then fail("imshow: a tensor is wanted, got %s", describe(x)) end
  x = x:detach():to("cpu")
  local pixels
  if x:dim() == 4 and x:size(1) > 0 then
    local list, o = {}, { lo = opts.lo, hi = opts.hi, map = opts.map }
    if x:dtype() ~= "u8" and x:dtype() ~= "bool" and o.lo == nil and o.hi == nil then -- all on one scale
      o.lo, o.hi = extent(x)
    end
    for i = 1, x:size(1) do list[i] = colored("imshow", x[i], o) end
    pixels = grid(T.stack(list, 1), opts.cols)
  else
    pixels = colored("imshow", x, opts)
  end
  local h, w = pixels:size(1), pixels:size(2)
  local k = opts.scale or math.max(1, 256 // math.max(h, w))
  local f = setmetatable({ kind = "image", pixels = pixels, title = opts.title, scale = k, width = w * k,
    height = h * k }, Image)
  if opts.file then
    local ok, message, code = f:save(opts.file)
    if not ok then return nil, message, code end
  end
  return f
end

-- The values of a list, of a vector, or of each row of a matrix as a line of blocks, ▁ the least, █ the greatest;
-- more than `width` (60) values are averaged. Not finite: a blank.
--- T.plot(y), T.plot(x, y), T.plot{{x=, y=, label=, style=, color=}, …}, each with options → figure
-- print(figure) draws in the terminal. figure:svg(path), figure:png(path, {scale=2}) write files (without a path: the
-- text, the bytes), figure:save(path) by the name's end, figure:text{width=, height=16, color=}. Options: title,
-- xlabel, ylabel, xlim={lo, hi}, ylim, xscale="log", yscale, labels={…}, style="line"|"points"|"both"|"bars" (bars of
-- several series at one place stand side by side), legend=false (it stands where it hides nothing), aspect="equal" (a
-- unit is as long on both axes), width, height in pixels. Lists or tensors; the rows of a matrix are series.
--   local f = T.plot({ 3, 1, 2, 5 }, { title = "loss" })
--   print(f:text { width = 16, height = 5 })
--   -->        loss
--   -->  │            ⡔
--   --> 4┤          ⢀⠎
--   -->  │⠤⡀       ⢠⠊
--   --> 2┤ ⠈⠢⡀   ⣀⠴⠁
--   -->  │   ⠑⠤⠒⠉
--   -->  └─────────────
--   -->       2       4
--   print(f:svg():sub(1, 4))  --> <svg

--- T.plot.spark(x, {…}) → string
-- What x:spark{…} does; x may be a list.
--   print(T.plot.spark { 1, 2, 3, 2 })  --> ▁▅█▅
function plot.spark(x, opts)
  opts = options.check("spark", opts, { "width", "lo", "hi" })
  if T.is_tensor(x) and x:dim() == 0 then x = x:view(1) end
  if T.is_tensor(x) and x:dim() == 2 then
    local out = {}
    for i = 1, x:size(1) do out[i] = plot.spark(x[i], opts) end
    return table.concat(out, "\n")
  end
  local list, width = numbers("spark", x), opts.width or 60
  if math.type(width) ~= "integer" or width < 1 then fail("spark: width must be a positive integer") end
  if #list > width then
    local means = {}
    for i = 1, width do
      local first, last, sum = (i - 1) * #list // width + 1, i * #list // width, 0.0
      for k = first, last do sum = sum + list[k] end
      means[i] = sum / (last - first + 1)
    end
    list = means
  end
  local lo, hi = require("perilune.plot.ticks").range { list }
  lo, hi = opts.lo or lo, opts.hi or hi
  local out = {}
  for i, v in ipairs(list) do
    if v - v ~= 0 then
      out[i] = " "
    else
      local t = hi > lo and math.max(0, math.min(1, (v - lo) / (hi - lo))) or 0.5
      out[i] = utf8.char(0x2581 + math.min(7, math.floor(t * 8)))
    end
  end
  return table.concat(out)
end

-- What a page shows of an image: the image itself.
require("perilune.plot.shapes").image = function(f, width, height)
  local top = f.title and TITLE or 0
  local page = { width = width, height = height + top,
    { kind = "image", x = 0, y = top, w = width, h = height, pixels = f.pixels } }
  if f.title then
    page[2] = { kind = "text", x = width / 2, y = 20, text = f.title, size = 14, anchor = "middle", color = 0x333333 }
  end
  return page
end

return setmetatable(plot, { __call = function(_, ...) return lines("plot", "line", ...) end })
