-- SPDX-License-Identifier: MIT
-- Texts that end a reply, wherever their borders lie in its tokens and characters: what comes out of a writer is the
-- reply's beginning, holds no stop, and one begins right behind it if there is one at all.
local talker = require "spec.models.talker"
local random = require "spec.support.random"
local text = require "perilune.models.text"

describe("stops", function()
  local tokenizer, remove, dir
  setup(function()
    local _
    dir, remove, _, tokenizer = talker.make()
  end)
  teardown(function() remove() end)

  local function written(ids, stops, ends)
    local writer, out = text.writer({ tokenizer = tokenizer, is_end = ends }, stops), {}
    for _, id in ipairs(ids) do
      local piece, over = writer:add(id)
      out[#out + 1] = piece
      if over then return table.concat(out), true end
    end
    local rest, over = writer:finish()
    return table.concat(out) .. rest, over
  end

  it("of generation_config.json end replies as those of the request do", function()
    local model = assert(text.open(dir, {}))
    local ids = assert(text.ids(model, "the quick brown"))
    local function reply(stops)
      local out, settings = {}, text.sampling({ temperature = 0 }, model.net.generation_config)
      settings.max_new_tokens = 24
      local reason = text.reply(model, ids, settings, stops, function(piece) out[#out + 1] = piece end)
      return table.concat(out), reason
    end
    local whole = reply()
    local one, other = whole:sub(4, 5), whole:sub(9, 10)
    local want, reason = reply { other }
    assert.is_true(#want < #whole and reason == "stop")
    local shorter = reply { one, other }
    for _, given in ipairs { other, { other } } do
      model.net.generation_config.stop_strings = given
      assert.same({ want, "stop" }, { reply() })
      assert.equal(shorter, (reply { one }))
    end
    local ok, why = pcall(model.net.generate, model.net, ids, { generation_config = true })
    assert.is_false(ok) -- who makes ids has no tokenizer
    assert.truthy(tostring(why):find("stop_strings", 1, true), why)
    model.net.generation_config.stop_strings = { "" }
    assert.has_error(function() reply() end)
  end)

  it("end replies of random tokens, half characters among them", function()
    local g, met, last = random.new(7), 0, 0
    for _ = 1, 1500 do
      local ids, stops = {}, {}
      for i = 1, g:int(1, 25) do ids[i] = g:int(0, #tokenizer - 1) end
      local whole = written(ids, {}, {})
      for i = 1, g:int(1, 3) do
        local at = g:int(1, math.max(#whole, 1))
        stops[i] = g:int(1, 5) == 1 and whole:sub(-g:int(1, 4)) or whole:sub(at, at + g:int(0, 5))
        if stops[i] == "" then stops[i] = "never" end
      end
      local ends = g:int(1, 3) == 1 and { [ids[#ids]] = true } or {}
      local full = written(ids, {}, ends)
      local out, over = written(ids, stops, ends)
      local what = ("%q of %q: %q"):format(table.concat(stops, "|"), full, out)
      assert(full:sub(1, #out) == out, what)
      local there, behind = false, false
      for _, stop in ipairs(stops) do
        there = there or full:find(stop, 1, true) ~= nil
        behind = behind or full:sub(#out + 1, #out + #stop) == stop
        assert(not out:find(stop, 1, true), what)
      end
      assert(there == behind and (there or out == full), what)
      assert(over == (there or next(ends) ~= nil), what)
      if there then met = met + 1 end
      if there and #out + 4 >= #full then last = last + 1 end
    end
    assert(met > 500 and last > 100, met .. " met, " .. last .. " at the end")
  end)
end)
