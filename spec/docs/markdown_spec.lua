-- SPDX-License-Identifier: MIT
-- The documents tell the truth: every Lua block of the READMEs, CONTRIBUTING.md and docs/ runs and prints what
-- it says behind `-->`, the errors they quote are the product's, the files and functions they name exist, and
-- what the README calls missing is missing. A block may carry a mark, an HTML comment above it:
--   long            data sets are cut to their first 640 samples; files it writes go to a temporary place
--   raises          each statement raises the error quoted below it
--   not run: WHY    skipped, with that reason
--   edit:, with the new op    run by spec/docs/contributing_spec.lua
-- A block that does not load perilune itself gets T, nn and optim.

local T = require "perilune"
local doctest = require "perilune.command.doctest"
local docs = require "spec.support.docs"

local root = os.getenv("PERILUNE_ROOT") or "."

local function lines_of(command)
  local pipe = assert(io.popen(command))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  pipe:close()
  return lines
end

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("a")
  f:close()
  return text
end

local files = { "README.md", "CONTRIBUTING.md", "bench/README.md" }
for _, path in ipairs(lines_of(("cd '%s' && find docs -name '*.md' | sort"):format(root))) do
  files[#files + 1] = path
end

-- ---- running blocks -------------------------------------------------------------------------------

-- T with small data sets and without output of its own: what a long block gets.
local function short_T(written)
  local function cut(make)
    return function(...)
      local set, message, code = make(...)
      if not set then return set, message, code end
      return T.data.Subset(set, T.arange(math.min(640, #set)))
    end
  end
  local data = setmetatable({ fashion_mnist = cut(T.data.fashion_mnist), mnist = cut(T.data.mnist) },
    { __index = T.data })
  return setmetatable({
    data = data,
    bar = function(loop) return T.bar(loop, { quiet = true }) end,
    save = function(_, what)
      written[#written + 1] = os.tmpname()
      return T.save(written[#written], what)
    end,
  }, { __index = T })
end

local function run(file, block)
  local written = {}
  local lib = block.mark == "long" and short_T(written) or T
  local ok, message
  if block.mark == "long" then -- its output is that of the whole data
    ok, message = doctest.run(file, { code = block.code:gsub("%-%->", "-- "), line = block.line }, lib)
  else
    ok, message = doctest.run(file, block, lib)
  end
  for _, path in ipairs(written) do os.remove(path) end
  assert(ok, message)
end

local fashion = "/usr/share/datasets/fashion-mnist"
local runs = 0
describe("Lua blocks of", function()
  for _, file in ipairs(files) do
    for _, block in ipairs(docs.blocks(root .. "/" .. file)) do
      local mark = block.mark or ""
      if block.lang == "lua" and mark ~= "with the new op" and not mark:find("^edit:") then
        it(("%s, line %d"):format(file, block.line), function()
          local why = mark:match("^not run: (.+)$")
          if mark == "long" and not exists(fashion .. "/train-images-idx3-ubyte.gz") then
            why = "the Debian package dataset-fashion-mnist is not installed"
          end
          if why then
            print("skipped: " .. why)
            return pending(why)
          end
          runs = runs + 1
          if mark == "raises" then return assert(doctest.run_raising(file, block, T)) end
          assert(mark == "" or mark == "long", "unknown mark: " .. mark)
          run(file, block)
        end)
      end
    end
  end

  it("the README are there at all", function()
    assert.is_true(runs >= 8, runs .. " blocks were run")
  end)
end)

-- ---- what the text says -----------------------------------------------------------------------------

-- The text outside code blocks, each paragraph on one line.
local function prose(path)
  local text = ("\n" .. read(path) .. "\n"):gsub("\n```.-\n```", "\n")
  return (text:gsub("([^\n])\n *([^\n ])", "%1 %2"))
end

describe("names in", function()
  local known

  -- Identifiers of the C sources, and the descriptors that a macro makes from ops.def.
  local function identifiers()
    local set = {}
    local find = "cd '%s' && grep -rhoE '(plk?|l)_[A-Za-z0-9_]+' engine kernels bindings | sort -u"
    for _, name in ipairs(lines_of(find:format(root))) do set[name] = true end
    local ops = read(root .. "/engine/ops/ops.def")
    for name in ops:gmatch("OP%(([%w_]+)%)") do set["pl_op_" .. name] = true end
    return set
  end

  for _, file in ipairs(files) do
    it(file .. " exist", function()
      known = known or identifiers()
      local text, missing = prose(root .. "/" .. file), {}
      for word in text:gmatch("`([^`\n]+)`") do
        local top = word:match("^(%l+)/[%w_./-]*$")
        if top and top ~= "build" and exists(root .. "/" .. top) and not exists(root .. "/" .. word) then
          missing[#missing + 1] = word
        end
        local name = word:match("^(plk?_[%w_]+)$") or word:match("^(l_[%w_]+)$")
        if name and not known[name] then missing[#missing + 1] = name end
      end
      local folder = file:match("^(.*/)") or ""
      for target in text:gmatch("%]%(([^)#]+)%)") do
        if not target:find("^%a+:") and not exists(root .. "/" .. folder .. target) then
          missing[#missing + 1] = target
        end
      end
      assert.same({}, missing)
    end)
  end
end)

-- Words of our own for what the field has a term for, and the term.
local house_words = { ["way back"] = "backward", ["%f[%w]lies?%f[%W]"] = "is at, is in, aliases", ["put by"] = "saved",
  ["made away"] = "freed", ["turn[se]?d? over"] = "transpose, convert" }

describe("terms in", function()
  for _, file in ipairs(files) do
    it(file .. " are the field's", function()
      local text, found = prose(root .. "/" .. file):lower(), {}
      for word, term in pairs(house_words) do
        local from, till = text:find(word)
        if from then
          found[#found + 1] = ("'%s': say %s"):format(text:sub(math.max(1, from - 40), till + 3):match "[^\n]*$", term)
        end
      end
      assert.same({}, found)
    end)
  end
end)

it("docs/design/README.md lists all pages beside it", function()
  local text, missing = read(root .. "/docs/design/README.md"), {}
  for _, file in ipairs(files) do
    local page = file:match "^docs/design/([%w_-]+%.md)$"
    local listed = not page or page == "README.md" or text:find("](" .. page .. ")", 1, true)
    if not listed then missing[#missing + 1] = page end
  end
  assert.same({}, missing)
end)

describe("the README", function()
  it("calls missing only what is missing", function()
    local text = prose(root .. "/README.md"):match("## What is not there yet(.-)\n## ")
    local spaces = { T = T, nn = T.nn, optim = T.optim, data = T.data }
    local wrong, count = {}, 0
    for word in text:gmatch("`([%w_.]+)`") do
      local value = spaces[word:match("^(%w+)%.") or ""]
      if value then
        count = count + 1
        for key in word:match("%.(.*)$"):gmatch("[^.]+") do value = value and value[key] end
        if value ~= nil then wrong[#wrong + 1] = word end
      end
    end
    assert.same({}, wrong)
    assert.is_true(count >= 1, count .. " names found")
  end)

  it("counts the tutorial's chapters, as the tutorial does", function()
    local tutorial = read(root .. "/docs/tutorial/README.md")
    local list = lines_of(("ls '%s'/docs/tutorial/*.md | grep -v README"):format(root))
    local word = ({ "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen" })[#list - 10]
    local told = select(2, tutorial:gsub("\n%d+%. %[", ""))
    assert.equal(#list, told)
    assert.truthy(tutorial:lower():find("\n" .. word .. " chapters", 1, true), word)
    assert.truthy(read(root .. "/README.md"):find("has " .. word .. " chapters", 1, true), word)
  end)

  it("shows a few rows of the benchmark table, as they are there", function()
    local table_ = read(root .. "/bench/README.md"):match "<!%-%- benchmark table %-%->(.-)\n## "
    local rows = 0
    for row in read(root .. "/README.md"):match("\n## Benchmarks\n(.-)\n## "):gmatch "\n(| `[^\n]+)" do
      rows = rows + 1
      assert.truthy(table_:find(row, 1, true), row)
    end
    assert.is_true(rows >= 5 and rows <= 12, rows .. " rows")
  end)
end)
