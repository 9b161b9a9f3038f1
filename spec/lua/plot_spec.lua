-- SPDX-License-Identifier: MIT
-- T.plot and its relatives, x:imshow, x:spark: what they draw, in characters, as SVG, as PNG (read back with
-- T.load_image).

local T = require "perilune"
local ticks = require "perilune.plot.ticks"

-- The tags of XML text; raises where they do not nest.
local function tags_of(text)
  local open, list = {}, {}
  local rest = text:gsub("<(/?)(%w+)([^<>]-)(/?)>", function(close, name, attrs, empty)
    if close == "/" then
      assert(table.remove(open) == name, "a tag closes what is not open: " .. name)
    else
      list[#list + 1] = { name = name, attrs = attrs }
      if empty == "" then open[#open + 1] = name end
    end
    return ""
  end)
  assert(#open == 0 and not rest:find("[<>]"), "not well formed")
  return list
end

local function attr(tag, name) return tag.attrs:match(" " .. name .. '="([^"]*)"') end

-- Polylines with the colour of a series, each as a list of x, y.
local function polylines(text, color)
  local out = {}
  for _, tag in ipairs(tags_of(text)) do
    if tag.name == "polyline" and attr(tag, "stroke") == color then
      local points = {}
      for x, y in attr(tag, "points"):gmatch("([%d.-]+),([%d.-]+)") do
        points[#points + 1] = { tonumber(x), tonumber(y) }
      end
      out[#out + 1] = points
    end
  end
  return out
end

local function texts(svg)
  local out = {}
  for text in svg:gmatch("<text[^>]*>([^<]*)</text>") do out[text] = true end
  return out
end

local function read_png(bytes)
  local path = os.tmpname() .. ".png"
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
  local image, message, code = T.load_image(path)
  os.remove(path)
  os.remove((path:gsub("%.png$", "")))
  return image, message, code
end

describe("ticks", function()
  it("are round, increasing, inside, and neither few nor many", function()
    T.manual_seed(1)
    for i = 1, 300 do
      local lo = T.randn(1):item() * 10.0 ^ (i % 9 - 4)
      local hi = lo + T.rand(1):item() * 10.0 ^ (i % 7 - 3) + 1e-6
      local axis = ticks.axis(lo, hi)
      local list, last = axis.ticks(6), -math.huge
      assert.is_true(#list >= 2 and #list <= 12, #list)
      local step = list[2].at - list[1].at
      local first = step / 10.0 ^ math.floor(math.log(step, 10) + 1e-4)
      local fine = 1e-12 * math.max(math.abs(lo), math.abs(hi)) / step + 1e-9
      assert.is_true(math.min(math.abs(first - 1), math.abs(first - 2), math.abs(first - 5)) < 100 * fine, first)
      for k, t in ipairs(list) do
        assert.is_true(t.at > last and t.at >= axis.lo - 1e-9 and t.at <= axis.hi + 1e-9)
        assert.is_true(math.abs(t.at - list[1].at - (k - 1) * step) <= 100 * fine * step, t.text)
        last = t.at
      end
    end
  end)

  it("of a logarithmic axis are powers of ten", function()
    local got = {}
    for i, t in ipairs(ticks.axis(0.5, 2e6, true).ticks(9)) do got[i] = t.text end
    assert.same({ "1", "10", "100", "1000", "10000", "1e5", "1e6" }, got)
    assert.is_nil(ticks.axis(1, 10, true).place(-1))
  end)
end)

describe("T.plot", function()
  it("draws with characters", function()
    local text = T.plot({ 1, 2 }, { title = "up", xlabel = "x" }):text { width = 14, height = 2, color = false }
    assert.equal("       up\n2┤     ⢀⣀⠤⠤⠒⠊\n1┤⡠⠤⠒⠒⠉⠁\n └───────────\n  1         2\n  x", text)
    local colored = T.plot({ 1, 2 }):text { width = 12, height = 2, color = true }
    assert.truthy(colored:find("\27%[38;5;%d+m"))
    assert.is_nil(tostring(T.plot({ 1, 2 })):find("\27")) -- not a terminal here
    assert.truthy(T.plot({ 0 / 0, 1 / 0 }):text { width = 20 }) -- nothing to show is no error
    assert.truthy(tostring(T.plot({})))
    assert.truthy(T.plot({ 5, 5, 5 }):svg())
  end)

  it("puts every value where it belongs", function()
    local f = T.plot({ { x = { 0, 1, 2, 4 }, y = { 0, 10, 5, 10 }, label = "a" }, { y = { 1, 0 / 0, 2, 3 } } },
      { title = 'a < b & "c"', xlabel = "time", xlim = { 0, 4 }, ylim = { 0, 10 }, width = 400, height = 300 })
    local svg = f:svg()
    local p = polylines(svg, "#0072b2")[1]
    assert.equal(4, #p)
    local x0, x4, y0, y10 = p[1][1], p[4][1], p[1][2], p[2][2]
    assert.is_true(x4 > x0 and y10 < y0)
    assert.equal(y10, p[4][2])
    assert.is_true(math.abs(p[3][1] - (x0 + x4) / 2) < 0.02 and math.abs(p[3][2] - (y0 + y10) / 2) < 0.02)
    local second = polylines(svg, "#d55e00") -- broken at the NaN: a dot, then a line
    assert.same({ 1, 2 }, { #second, #second[1] })
    assert.truthy(svg:find("<circle", 1, true))
    local words = texts(svg)
    for _, word in ipairs { "a &lt; b &amp; &quot;c&quot;", "time", "a", "10", "4" } do
      assert.is_true(words[word], word)
    end
    assert.is_nil(texts(T.plot({ { y = { 1, 2 }, label = "hidden" } }, { legend = false }):svg()).hidden)
  end)

  it("takes lists, tensors, pairs, matrices and several series", function()
    assert.same({ 1, 2, 3 }, T.plot(T.tensor { 4, 5, 6 }).series[1].x)
    assert.same({ 4.0, 5.0 }, T.plot(T.tensor { 1, 2 }, T.tensor { 4, 5 }).series[1].y)
    assert.equal(3, #T.plot(T.rand(3, 5)).series)
    local f = T.plot({ { 1, 2 }, { 3, 4 } }, { labels = { "p", "q" } })
    assert.same({ "p", "q" }, { f.series[1].label, f.series[2].label })
    assert.same({ 7, 8.5 }, T.plot({ 7, T.tensor(8.5) }).series[1].y)
    assert.equal("points", T.plot.scatter({ 1, 2 }, { 3, 4 }).series[1].style)
  end)

  it("counts for histograms", function()
    local f = T.plot.hist(T.tensor { 0, 0.1, 0.9, 1, 0 / 0 }, { bins = 4 })
    assert.same({ 2, 0, 0, 2 }, f.series[1].y)
    assert.same({ 1, 1 }, T.plot.hist({ 0.1, 5, 0.9 }, { bins = 2, xlim = { 0, 1 } }).series[1].y)
    assert.truthy(f:svg():find("<rect", 1, true))
    assert.truthy(tostring(T.plot.hist({})))
    assert.truthy(tostring(T.plot.hist({ 3, 3 })))
  end)

  it("draws a history and a confusion matrix", function()
    local net = T.nn.Linear(2, 2)
    local batch = { T.ones(2, 2), T.tensor({ 1, 2 }, { dtype = "i64" }) }
    local h = T.fit(net, { train = { batch }, epochs = 3, quiet = true,
      optimizer = T.optim.SGD(net:parameters(), { lr = 0.1 }) })
    local f = h:plot()
    assert.equal("loss", f.series[1].label)
    assert.same(h:column("loss"), f.series[1].y)
    assert.equal("lr", h:plot("lr").series[1].label)
    local m = T.metrics.confusion_matrix { classes = 2 }
    m:update(T.tensor({ 1, 2, 2 }, { dtype = "i64" }), T.tensor({ 1, 2, 1 }, { dtype = "i64" }))
    local words = texts(m:plot({ names = { "cat", "dog" } }):svg())
    for _, word in ipairs { "cat", "dog", "predicted", "true", "confusion matrix" } do
      assert.is_true(words[word], word)
    end
    assert.equal("    cat dog\ncat   1   1\ndog   0   1",
      T.plot.matrix(m:value(), { names = { "cat", "dog" } }):text { color = false, width = 40 })
  end)

  it("makes PNG files that others read", function()
    local f = T.plot({ 1, 3, 2 }, { width = 200, height = 120, title = "Äq" })
    local image, _, code = read_png(f:png(nil, { scale = 1 }))
    if code == "unsupported" then return pending("built without libspng") end
    assert.same({ 3, 120, 200 }, image:shape())
    assert.same({ 255, 255, 255 }, { image:get(1, 1, 1), image:get(2, 1, 1), image:get(3, 1, 1) })
    local blue = image[1]:eq(0):logical_and(image[2]:eq(0x72)):logical_and(image[3]:eq(0xb2)):sum():item()
    assert.is_true(blue > 100 and blue < 2000, blue)
    assert.same({ 3, 240, 400 }, read_png(f:png()):shape())
  end)

  it("keeps every pixel of images through PNG", function()
    T.manual_seed(2)
    local sizes = { { 1, 1, 3 }, { 5, 7, 3 }, { 33, 1, 3 }, { 1, 40, 3 }, { 64, 65, 3 } }
    for _, size in ipairs(sizes) do
      local x = T.randint(0, 255, size, { dtype = "u8" })
      local back, _, code = read_png(T.core.png(x))
      if code == "unsupported" then return pending("built without libspng") end
      assert.is_true(back:permute(2, 3, 1):equal(x:cpu()), table.concat(size, "x"))
    end
    local grey = T.randint(0, 255, { 9, 4 }, { dtype = "u8" })
    assert.is_true(read_png(T.core.png(grey)):select(1, 1):equal(grey:cpu()))
    assert.error(function() T.core.png(T.zeros(2, 2)) end)
    assert.error(function() T.core.png(T.zeros({ 0, 2 }, { dtype = "u8" })) end)
  end)

  it("writes files and says why it cannot", function()
    local path = os.tmpname()
    for _, kind in ipairs { "svg", "png", "txt" } do
      assert.is_true(T.plot({ 1, 2 }):save(path .. "." .. kind))
      local f = assert(io.open(path .. "." .. kind))
      assert.is_true(#f:read("a") > 50)
      f:close()
      os.remove(path .. "." .. kind)
    end
    os.remove(path)
    local ok, message, code = T.plot({ 1, 2 }):svg("/nowhere/x.svg")
    assert.same({ nil, "/nowhere/x.svg: cannot write: No such file or directory", "io" }, { ok, message, code })
    local image
    image, message = T.eye(3):imshow { file = "/nowhere/x.png" }
    assert.is_nil(image)
    assert.truthy(message:find("/nowhere/x.png", 1, true))
  end)

  it("refuses what it cannot draw, at the caller's line", function()
    for part, f in pairs {
      ["a list of numbers or a tensor is wanted, got 5"] = function() T.plot(5) end,
      ["value 2 is \"x\", not a number"] = function() T.plot { 1, "x" } end,
      ["series 1 has 2 positions and 3 values"] = function() T.plot({ 1, 2 }, { 1, 2, 3 }) end,
      ["did you mean 'title'?"] = function() T.plot({ 1 }, { titel = "x" }) end,
      ["unknown style 'dots'"] = function() T.plot({ 1 }, { style = "dots" }) end,
      ["ylim must be {low, high}"] = function() T.plot({ 1 }, { ylim = { 2, 1 } }) end,
      ["unknown yscale 'ln'"] = function() T.plot({ 1 }, { yscale = "ln" }) end,
      ["a tensor of one dimension is wanted, got f32[2,2,2]"] = function() T.plot(T.zeros(2, 2, 2)) end,
      ["a matrix is wanted, got f32[3]"] = function() T.plot.matrix(T.zeros(3)) end,
      ["unknown map 'jet'"] = function() T.plot.matrix(T.zeros(3, 3), { map = "jet" }) end,
      ["bins must be a positive integer"] = function() T.plot.hist({ 1 }, { bins = 0 }) end,
      ["an image is [H,W], [C,H,W] or [H,W,C]"] = function() T.zeros(5):imshow() end,
      ["has no pixels"] = function() T.zeros(0, 3):imshow() end,
      ["the name must end in .svg, .png or .txt"] = function() T.plot({ 1 }):save("x.gif") end,
      ["width must be a positive number"] = function() T.plot({ 1 }):svg { width = -1 } end,
      ["spark: a tensor of one dimension"] = function() T.zeros(2, 2, 2):spark() end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok, part)
      assert.truthy(message:find(part, 1, true), message)
      assert.truthy(message:find("plot_spec.lua:", 1, true), message)
    end
  end)
end)

describe("x:imshow", function()
  it("shows brightness as characters", function()
    assert.equal("@@\n  @@\n    @@", T.eye(3):imshow():text { color = false })
    assert.equal("    ++@@", T.tensor { { -1, -1, 1, 3 } }:imshow():text { color = false })
    local wide = T.rand(10, 200):imshow():text { color = false, width = 60 }
    for line in wide:gmatch("[^\n]+") do assert.is_true(#line <= 60) end
    local colored = T.rand(4, 6):imshow():text { color = true, width = 60 }
    assert.equal(12, select(2, colored:gsub("▀", "")))
    assert.equal(1, select(2, colored:gsub("\n", "")))
  end)

  it("makes the pixels that were meant", function()
    local f = T.tensor { { 0, 2 }, { 1, 0 / 0 } }:imshow { lo = 0, hi = 2, scale = 1 }
    assert.same({ { 0, 255 }, { 128, 0 } }, f.pixels:select(3, 1):totable())
    local rgb = T.tensor({ 10, 20, 30 }, { dtype = "u8" }):view(3, 1, 1):imshow { scale = 2 }
    assert.same({ 10, 20, 30 }, rgb.pixels:view(-1):totable())
    local image, _, code = read_png(rgb:png())
    if code == "unsupported" then return pending("built without libspng") end
    assert.same({ 3, 2, 2 }, image:shape())
    assert.same({ 68, 1, 84 }, T.zeros(1, 1):imshow { map = "viridis" }.pixels:view(-1):totable())
    local grid = T.ones(5, 1, 2, 3):imshow { cols = 3 }
    assert.same({ 5, 11, 3 }, grid.pixels:shape())
    assert.equal(5 * 6 * 3 * 255, grid.pixels:long():sum():item())
    assert.truthy(grid:svg():find("data:image/png;base64,iVBORw0KGgo", 1, true))
  end)
end)

describe("x:spark", function()
  it("draws blocks", function()
    assert.equal("▁▂▃▄▅▆▇█", T.arange(8):spark())
    assert.equal("▁ █", T.plot.spark { 1, 0 / 0, 3 })
    assert.equal("▅▅", T.ones(2):spark())
    assert.equal("▁█\n█▁", T.tensor { { 1, 2 }, { 4, 3 } }:spark())
    assert.equal(60, utf8.len(T.rand(1000):spark()))
    assert.equal(10, utf8.len(T.rand(1000):spark { width = 10 }))
    assert.equal("", T.plot.spark {})
    assert.equal("▃", T.tensor(0.3):spark { lo = 0, hi = 1 })
  end)
end)

-- What a reader of a chart relies on.
describe("a picture", function()
  local function tag_list(svg, name, fill)
    local out = {}
    for _, tag in ipairs(tags_of(svg)) do
      if tag.name == name and (not fill or attr(tag, "fill") == fill) then out[#out + 1] = tag end
    end
    return out
  end

  -- The box of the axes: the dark polyline of three points.
  local function axes_box(svg)
    local p = polylines(svg, "#333333")[1]
    return p[1][1], p[1][2], p[3][1], p[2][2] -- left, top, right, bottom
  end

  it("has bars that stand on 0 and are whole, inside the axes", function()
    for _, case in ipairs { { 31, 52, 44 }, { -3, 2, -1, 4 }, { -5, -6 }, { 7 }, { 0, 0 } } do
      local svg = T.plot(case, { style = "bars" }):svg()
      local left, top, right, bottom = axes_box(svg)
      local bars, width, zero = tag_list(svg, "rect", "#0072b2"), nil, nil
      assert.equal(#case, #bars)
      for i, bar in ipairs(bars) do
        local x, y, w, h = tonumber(attr(bar, "x")), tonumber(attr(bar, "y")), tonumber(attr(bar, "width")),
          tonumber(attr(bar, "height"))
        assert.is_true(x >= left and x + w <= right + 0.01 and y >= top and y + h <= bottom + 0.01)
        width, zero = width or w, zero or (case[i] > 0 and y + h or y)
        assert.is_true(math.abs(w - width) < 0.02, "bars are equally wide")
        assert.is_true(math.abs((case[i] > 0 and y + h or y) - zero) < 0.02, "bars have one ground")
      end
      if math.min(table.unpack(case)) >= 0 then assert.is_true(math.abs(zero - bottom) < 0.02) end
    end
    assert.same({ 0.5, 3.5 }, { T.plot({ 1, 2, 3 }, { style = "bars" }):axes().lo, T.plot({ 1, 2, 3 },
      { style = "bars" }):axes().hi })
  end)

  it("has ticks on logarithmic axes of less than a decade", function()
    for _, case in ipairs { { 2.1, 4.8 }, { 0.3, 3.2 }, { 1.1, 1.2 }, { 20, 90 }, { 0.011, 0.05 } } do
      local list = ticks.axis(case[1], case[2], true).ticks(6)
      assert.is_true(#list >= 2, case[1] .. " to " .. case[2])
      for i = 2, #list do assert.is_true(list[i].at > list[i - 1].at and list[i].text ~= list[i - 1].text) end
    end
  end)

  it("has a legend that hides nothing", function()
    local falling, rising, noise = {}, {}, {}
    for i = 1, 50 do
      falling[i], rising[i] = 50 - i, i
    end
    for i = 1, 400 do noise[i] = (i * 7919) % 53 end
    local places = {}
    for k, y in ipairs { falling, rising, noise } do
      local svg = T.plot({ { y = y, label = "a label" } }):svg()
      local box = tag_list(svg, "rect", "#ffffff")[2]
      local x, top = tonumber(attr(box, "x")), tonumber(attr(box, "y"))
      local w, h = tonumber(attr(box, "width")), tonumber(attr(box, "height"))
      for _, line in ipairs(polylines(svg, "#0072b2")) do
        for _, p in ipairs(line) do
          assert.is_false(p[1] > x and p[1] < x + w and p[2] > top and p[2] < top + h)
        end
      end
      local _, _, right = axes_box(svg)
      places[k] = x > right and "outside" or "inside"
      assert.is_true(x + w <= 640)
    end
    assert.same({ "inside", "inside", "outside" }, places)
  end)

  it("hides no bar behind another's", function()
    local colors = { "#0072b2", "#d55e00", "#009e73" }
    for _, places in ipairs { { { 1, 2, 3 }, { 1, 2, 3 } }, { { 1, 2, 3 }, { 3, 2, 1 }, { 1, 2.5, 7 } },
      { { 1, 3 }, { 2, 4 } }, { { 1, 10 }, { 2, 9 }, { 5, 5.5 } }, { { 0, -0.5 }, { 0.0, 0.25 } } } do
      local list, bars = {}, {}
      for i, x in ipairs(places) do
        local y = {}
        for k = 1, #x do y[k] = (i * 3 + k) % 5 + 1 end
        list[i] = { x = x, y = y, style = "bars", label = "series " .. i,
          color = tonumber(colors[i]:sub(2), 16) }
      end
      local figure = T.plot(list)
      local left, _, right, bottom = axes_box(figure:svg())
      for i, x in ipairs(places) do
        local n = 0
        for _, bar in ipairs(tag_list(figure:svg(), "rect", colors[i])) do
          local at, w, y, h = tonumber(attr(bar, "x")), tonumber(attr(bar, "width")), tonumber(attr(bar, "y")),
            tonumber(attr(bar, "height"))
          if math.abs(y + h - bottom) < 0.02 then -- others are the legend's
            n = n + 1
            assert.is_true(at >= left - 0.01 and at + w <= right + 0.01)
            bars[#bars + 1] = { at, at + w }
          end
        end
        assert.equal(#x, n)
      end
      table.sort(bars, function(a, b) return a[1] < b[1] end)
      for k = 2, #bars do assert.is_true(bars[k][1] >= bars[k - 1][2] - 0.02, "bars overlap") end
      assert.truthy(figure:text { width = 60, color = false })
    end
    local function text(series)
      return T.plot(series, { legend = false }):text { width = 44, height = 4, color = false }
    end
    local one, other = { x = { 1, 2 }, y = { 2, 1 }, style = "bars" }, { x = { 1, 2 }, y = { 1, 1 }, style = "bars" }
    assert.is_not.equal(text { one }, text { one, other }) -- the lower one is seen
  end)

  it("has units as long on both axes in a terminal, too, where dots are as far apart both ways", function()
    local t = T.linspace(0, 2 * math.pi, 200)
    for _, size in ipairs { { 80, 12 }, { 40, 30 }, { 60, 24 } } do
      local columns, rows = {}, 0
      local text = T.plot(t:cos(), t:sin(), { aspect = "equal" }):text { width = size[1], height = size[2],
        color = false }
      for line in text:gmatch "[^\n]+" do
        local at, drawn = 0, false
        for _, code in utf8.codes(line) do
          at = at + 1
          if code > 0x2800 and code < 0x2900 then columns[at], drawn = true, true end
        end
        rows = rows + (drawn and 1 or 0)
      end
      local lo, hi = math.huge, 0
      for at in pairs(columns) do lo, hi = math.min(lo, at), math.max(hi, at) end
      assert.is_true(math.abs((hi - lo + 1) - 2 * rows) <= 4, ("%d columns, %d rows"):format(hi - lo + 1, rows))
    end
  end)

  it("has units as long on both axes where that is asked for", function()
    local t = T.linspace(0, 2 * math.pi, 50)
    local p = polylines(T.plot(t:cos() * 3, t:sin() * 3, { aspect = "equal" }):svg(), "#0072b2")[1]
    local lo, hi = { math.huge, math.huge }, { -math.huge, -math.huge }
    for _, point in ipairs(p) do
      for d = 1, 2 do lo[d], hi[d] = math.min(lo[d], point[d]), math.max(hi[d], point[d]) end
    end
    assert.is_true(math.abs((hi[1] - lo[1]) / (hi[2] - lo[2]) - 1) < 0.01)
    assert.has_error(function() T.plot({ 1 }, { aspect = "square" }) end)
    assert.has_error(function() T.plot({ 1 }, { aspect = "equal", yscale = "log" }) end)
  end)

  it("of a tensor has its title", function()
    local image = T.zeros(8, 8):imshow { title = "µ = 0" }
    local pixels = read_png(image:png())
    assert.same({ 8 * 32 + 30, 8 * 32 }, { pixels:size(-2), pixels:size(-1) })
    local head = pixels:narrow(-2, 1, 30)
    assert.is_true(head:eq(255):sum():item() > 0.8 * head:numel() and head:lt(128):sum():item() > 30)
    assert.is_true(texts(image:svg())["µ = 0"])
    assert.same({ 64, 64 }, { read_png(T.zeros(8, 8):imshow { title = "wide", scale = 8 }:png()):size(-2) - 30, 64 })
  end)

  it("draws Latin-1, Greek and signs with letters of their own, smoothly", function()
    local font = require "perilune.plot.font"
    local box, seen, count = font.strokes "\u{4e00}", {}, 0
    local letters = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ¡¢£¥§°±²³µ¶·¹«»¿"
      .. "αβγδεζηθικλμνξοπρσςτυφχψωΓΔΘΛΞΠΣΦΨΩάέήίύώ€∞≤≥≈≠√∂∇→←–"
    local function text_of(strokes)
      local out = {}
      for i, s in ipairs(strokes) do out[i] = table.concat(s, ",") end
      return table.concat(out, " ")
    end
    for _, code in utf8.codes(letters) do
      local char = utf8.char(code)
      local text = text_of(font.strokes(char))
      assert.is_true(text ~= text_of(box) and #text > 0, char)
      assert.is_true(seen[text] == nil or char == "μ" or char == "µ" or seen[text] == "Σ", char)
      seen[text], count = char, count + 1
    end
    assert.is_true(count > 120)
    local head = read_png(T.plot({ 1, 2 }, { title = "größe σ" }):png()):narrow(-2, 1, 50)
    local grey = head:gt(60):logical_and(head:lt(220)):sum():item()
    assert.is_true(grey > 100, "edges have shades: " .. grey)
  end)
end)
