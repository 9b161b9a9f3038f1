-- SPDX-License-Identifier: MIT
-- perilune.io.json: what JSON allows is read, what it does not allow is refused with its line, and values come back.

local json = require "perilune.io.json"

describe("io.json", function()
  it("reads values", function()
    local v = json.decode [[
      {"a": [1, -2.5, 1e3, true, false, null], "b": {}, "c": [], "d": "x\n\u00e9\ud83d\ude00\\\/\"",
        "e": 9007199254740993}]]
    assert.same({ 1, -2.5, 1000.0, true, false, json.null }, { table.unpack(v.a) })
    assert.equal("integer", math.type(v.a[1]))
    assert.equal("float", math.type(v.a[3]))
    assert.is_false(json.is_array(v.b))
    assert.is_true(json.is_array(v.c))
    assert.equal("x\n\u{e9}\u{1F600}\\/\"", v.d)
    assert.equal(9007199254740993, v.e)
    for _, zero in ipairs { "-0.0", "-0e3", "[-0.0]" } do
      local got = json.decode(zero)
      assert.equal(-math.huge, 1 / (type(got) == "table" and got[1] or got))
    end
    assert.equal("x", json.decode '"x"')
    assert.equal("\u{FFFD}", json.decode [["\ud800"]])
  end)

  it("refuses what is no JSON, with its line", function()
    for text, what in pairs { [""] = "line 1", ["{"] = "name in quotes", ["[1,]"] = "value", ["{\"a\" 1}"] = "':'",
      ["[1 2]"] = "',' or ']'", ["01"] = "value", ["1."] = "value", ["+1"] = "value", [".5"] = "value",
        ["1e"] = "value",
      ["\"a"] = "does not end", ["\"\1\""] = "control", ["\"\\x\""] = "escape", ["1 2"] = "behind", ["nul"] = "value",
      ["{\n\n'a': 1}"] = "line 3", ["--1"] = "value", ["1-2"] = "value",
      ["[\n\"\xff\"]"] = "line 2: not UTF-8", ["{\"\xed\xa0\x80\": 1}"] = "not UTF-8" } do
      local v, why = json.decode(text)
      assert.is_nil(v, text)
      assert.is_truthy(why:find(what, 1, true), text .. ": " .. why)
    end
    assert.is_nil(json.decode(("["):rep(100000)))
    assert.is_truthy(select(2, json.decode(("["):rep(300))):find "nested deeper than 200")
    assert.same({ "io" }, { select(3, json.read "/nowhere/config.json") })
  end)

  it("writes what it reads back", function()
    local v = { a = json.array { 1, 2.0, 0.1, -1e300, json.null }, b = {}, c = json.array {}, ["d\n\""] = "\1\u{e9}",
      e = { x = true, y = math.mininteger } }
    local back = assert(json.decode(json.encode(v)))
    assert.same(v.a, back.a)
    assert.equal("float", math.type(back.a[2]))
    assert.is_true(json.is_array(back.c) and not json.is_array(back.b))
    assert.equal("\1\u{e9}", back["d\n\""])
    assert.same(v.e, back.e)
    assert.equal(json.encode(v), json.encode(back))
  end)
end)
