-- SPDX-License-Identifier: MIT
-- Tables of text: kinds of columns, quotes, missing values, malformed files.

local T = require "perilune"
local near = require "spec.support.near"
local data = T.data
local eq, fails = near.near, near.fails

local function csv(text, opts)
  opts = opts or {}
  opts.text = text
  return data.csv(opts)
end

describe("data.csv", function()
  it("finds out what columns hold", function()
    local c = assert(csv('id,size,ok,name,late\n1,2.5,true,"a ""b"", c",9\r\n-3,,FALSE,"two\nlines",\n'
      .. '+4,1e-3,True,x y,7\n'))
    assert.equal(3, #c)
    assert.same({ "id", "size", "ok", "name", "late" }, c.names)
    assert.equal("i64", c.columns.id:dtype())
    assert.same({ 1, -3, 4 }, c.columns.id:totable())
    assert.equal("f32", c.columns.size:dtype())
    assert.is_true(c.columns.size:isnan():get(2))
    eq(c.columns.size[{ { 3, 3 } }], { 1e-3 })
    assert.same({ true, false, true }, c.columns.ok:totable())
    assert.same({ 'a "b", c', "two\nlines", "x y" }, c.columns.name)
    assert.equal("f32", c.columns.late:dtype()) -- integers with a missing one
    assert.same({ id = 0, size = 1, ok = 0, name = 0, late = 1 }, c.missing)
    assert.same({ id = 4, size = c[3].size, ok = true, name = "x y", late = 7.0 }, c[3])
    fails("row 4 is not in 1..3", function() return c[4] end)
  end)

  it("reads numbers to the last bit", function()
    local words = { "0.1", "1e22", "1e23", "123456789012345678", "9007199254740993", "2.2250738585072011e-308",
      "1e-400", "-1e400", "3.14159265358979323846264338327950288", ".5", "5.", "inf", "-Infinity", "+7",
      "179769313486231570000000000000000000000000000000000", "0.000000000000000000000000000000000000001",
      "9223372036854775807", "9223372036854775808", "00012" }
    local c = assert(csv("v\n" .. table.concat(words, "\n") .. "\n", { types = { v = "f64" } }))
    local got = c.columns.v:totable()
    for i, w in ipairs(words) do
      local want = tonumber(w)
      want = want or (w:find("^-") and -math.huge) or math.huge
      assert.equal(want + 0.0, got[i], w)
    end
    T.manual_seed(3)
    local x = (T.randn(500, { dtype = "f64" }) * 1e5):totable()
    for i, v in ipairs(x) do x[i] = ("%.17g"):format(v) end
    local again = assert(csv("v\n" .. table.concat(x, "\n"), { types = { v = "f64" } })).columns.v:totable()
    for i, v in ipairs(x) do assert.equal(tonumber(v), again[i]) end
    assert.equal("i64", csv("9223372036854775807\n", { header = false }).columns.column1:dtype())
    assert.same({ "9223372036854775808" }, csv("9223372036854775808\n", { header = false }).columns.column1)
  end)

  -- Keys and accounts are integers, and two of them must not become one because a third is missing.
  it("keeps integers apart, whatever else is in their column", function()
    local kinds = { { 0, 24, "f32" }, { 25, 53, "f64" }, { 54, 62, "text" } }
    T.manual_seed(5)
    for bits = 1, 62 do
      local high = T.randint(0, (1 << bits) - 1, { 6 }):totable()
      high[1], high[2] = (1 << bits) - 1, -((1 << bits) - 1) -- all bits set
      local whole = assert(csv("k\n" .. table.concat(high, "\n"))).columns.k
      assert.equal("i64", whole:dtype())
      assert.same(high, whole:totable())
      local words = {}
      for i, v in ipairs(high) do words[i] = tostring(v) end
      local some = assert(csv('k,x\n' .. table.concat(words, ",1\n") .. ",1\n,1\n")).columns.k
      for _, kind in ipairs(kinds) do
        if kind[1] <= bits and bits <= kind[2] then
          assert.equal(kind[3], type(some) == "table" and "text" or some:dtype(), bits)
        end
      end
      for i, v in ipairs(high) do
        assert.equal(v, math.tointeger(tonumber(type(some) == "table" and some[i] or some:get(i))))
      end
      assert.equal("f32", csv("k\n0.5\n" .. table.concat(words, "\n")).columns.k:dtype()) -- decimals
    end
    assert.same({ "12345678901234567890", "12345678901234567891" },
      csv("k\n12345678901234567890\n12345678901234567891\n").columns.k) -- beyond 64 bits
    local long = ("1234567890"):rep(4)
    assert.same({ long }, csv("k\n" .. long .. "\n").columns.k)
  end)

  it("takes delimiters, comments, names of its own, chosen columns and types", function()
    local c = assert(csv("# made by hand\na;b;a;\n1;x;?;'q;q'\n\n# more\n2;y;4;z\n", { delimiter = ";", comment = "#",
      missing = { "?" }, quote = "'" }))
    assert.same({ "a", "b", "a_2", "column4" }, c.names)
    assert.same({ "q;q", "z" }, c.columns.column4)
    assert.equal(1, c.missing.a_2)
    c = assert(csv("a\tb\tc\n1\t2\t3\n", { delimiter = "\t", columns = { "c", "a" }, types = { a = "f64", c = "u8" } }))
    assert.same({ "a", "c" }, c.names)
    assert.equal("f64", c.columns.a:dtype())
    assert.equal("u8", c.columns.c:dtype())
    c = assert(csv("1,2\n3,4\n", { header = false, types = { [2] = "text" } }))
    assert.same({ "column1", "column2" }, c.names)
    assert.same({ "2", "4" }, c.columns.column2)
    assert.same({ "x" }, csv("\239\187\191x\n1\n").names)
    assert.equal(0, #csv("a,b\n"))
    assert.same({ "NA" }, csv('a\n"NA"\n').columns.a) -- quoted: text, not missing
    fails("unknown column 'd' (allowed: a, b)", csv, "a,b\n1,2\n", { columns = { "d" } })
    fails("must be one character", csv, "a\n", { delimiter = "ab" })
    fails("must differ", csv, "a\n", { delimiter = '"' })
    fails("either a path or text", data.csv, {})
    fails("did you mean 'delimiter'", csv, "a\n", { delimeter = ";" })
  end)

  it("makes tensors and classes", function()
    local c = assert(csv("a,b,kind\n1,2,red\n3,4,blue\n5,6,red\n"))
    eq(c:tensor(), { { 1, 2 }, { 3, 4 }, { 5, 6 } })
    assert.equal("f64", c:tensor({ "b" }, { dtype = "f64" }):dtype())
    eq(c:tensor { "b", "a" }, { { 2, 1 }, { 4, 3 }, { 6, 5 } })
    local ids, words = c:categories("kind")
    assert.same({ 2, 1, 2 }, ids:totable())
    assert.same({ "blue", "red" }, words)
    fails("column 'kind' is text", c.tensor, c, { "kind" })
    fails("'a' is no column of text", c.categories, c, "a")
    local got = {}
    for x, y in data.DataLoader(data.TensorDataset(c:tensor { "a" }, ids), { batch_size = 2 }) do
      got[#got + 1] = x:size(1) * 10 + y:size(1)
    end
    assert.same({ 22, 11 }, got)
  end)

  it("refuses malformed tables, naming the line", function()
    local function refused(text, message, opts)
      local c, why, code = csv(text, opts)
      assert.is_nil(c)
      assert.truthy(why:find(message, 1, true), why)
      assert.equal("format", code)
    end
    refused("a,b\n1,2\n3\n", "line 3: 1 fields where the first line has 2")
    refused('a,b\n1,"x\ny"\n3,4,5\n', "line 4: 3 fields")
    refused('a,b\n1,"2\n', "line 2: a quoted field does not end")
    refused('a,b\n1,"2"x\n', "line 2: a quoted field does not end, or text follows it")
    refused("", "no lines of values")
    refused("# only\n# comments", "no lines of values", { comment = "#" })
    refused(("a,"):rep(1 << 20), "line 1: more than 1048576 columns")
    refused('a\n"1""2"\n', "'1\"\"2' is no i64", { types = { a = "i64" } })
    refused("1\nx\n", "line 2, column 1: 'x' is no i64", { header = false, types = { column1 = "i64" } })
    refused(("n"):rep(99) .. "\n" .. ("x"):rep(99) .. "\n", "line 2, column 1 (" .. ("n"):rep(60) .. "): '"
      .. ("x"):rep(60) .. "' is no i64", { types = { [("n"):rep(99)] = "i64" } })
    refused("\n\n", "no lines of values")
    refused("a,b\n1,300\n", "line 2, column 2 (b): '300' is no u8", { types = { b = "u8" } })
    for dtype, limits in pairs { i8 = { -128, 127 }, u8 = { 0, 255 }, i16 = { -32768, 32767 },
      i32 = { -(1 << 31), (1 << 31) - 1 }, bool = { 0, 1 } } do
      local types = { a = dtype }
      local c = assert(csv(("a\n%d\n%d\n"):format(limits[1], limits[2]), { types = types }))
      if dtype ~= "bool" then assert.same(limits, c.columns.a:totable()) end
      refused(("a\n%d\n"):format(limits[1] - 1), "is no " .. dtype, { types = types })
      refused(("a\n%d\n"):format(limits[2] + 1), "is no " .. dtype, { types = types })
    end
    refused("a\n1\nx\n", "line 3, column 1 (a): 'x' is no f32", { types = { a = "f32" } })
    refused("a\n1.5\n", "'1.5' is no i64", { types = { a = "i64" } })
    refused("a\n1\n\"\"\n", "is no i32", { types = { a = "i32" } })
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write("a\n1\n")
    f:close()
    assert.same({ 1 }, assert(data.csv(path)).columns.a:totable())
    local c, why = data.csv(path, { max_bytes = 2 })
    assert.is_nil(c)
    assert.truthy(why:find("max_bytes = 2", 1, true))
    os.remove(path)
    local _
    c, _, why = data.csv(path)
    assert.is_nil(c)
    assert.equal("io", why)
  end)
end)
