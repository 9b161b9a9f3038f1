-- SPDX-License-Identifier: MIT
-- Every op has a row that judges its values, its gradient and its wrong calls.

local T = require "perilune"
local support = require "spec.ops.support"
local cases = support.cases

local golden_dir = (os.getenv("PERILUNE_ROOT") or ".") .. "/../shared/golden"

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

describe("every op", function()
  for _, info in ipairs(support.public()) do
    it(info.name .. " has a row with a value check", function()
      local row = cases[info.name]
      assert.is_table(row, "add a row to spec/ops/cases.lua")
      assert.is_truthy(row.ref or row.golden or row.why, "the row needs ref, golden or why")
      if row.golden and exists(golden_dir .. "/index.lua") then
        local name = row.golden == true and info.name or row.golden
        assert.is_true(exists(golden_dir .. "/" .. name .. ".lua"), "no golden file " .. name)
      end
    end)

    it(info.name .. " is differentiable or says why not", function()
      assert.is_boolean(info.differentiable)
      local row = cases[info.name]
      if row and info.differentiable then
        local floating = false
        support.map(support.arguments(info.name)[1], function(t)
          floating = floating or t:is_floating_point()
          return t
        end)
        assert.is_true(floating, "the row has no floating tensor to check the gradient with")
      end
    end)

    it(info.name .. " has a gradient, or none by nature, or its row says why it refuses", function()
      if info.differentiable then return end
      local made_of_nothing = info.nin == 0 or info.flags.mutates
      local row = cases[info.name]
      assert.is_true(info.flags.no_gradient or made_of_nothing or row ~= nil and row.skip_grad ~= nil,
        "give it a gradient maker, or mark it PL_F_NOGRAD_OK: backward would end here")
    end)

    it(info.name .. ": what the gradient check leaves out has a reason", function()
      local row = cases[info.name]
      if not row then return end
      assert.is_true(row.skip_grad == nil or (type(row.skip_grad) == "string" and #row.skip_grad > 20))
    end)

    it(info.name .. " broadcasts in one of its variants, if it is elementwise", function()
      local row = cases[info.name]
      if not row or not info.differentiable or info.class ~= "pointwise" then return end
      local most, differ = 0, false
      for _, args in ipairs(support.arguments(info.name)) do
        local shapes = {}
        support.map(args, function(t)
          if t:is_floating_point() then shapes[#shapes + 1] = table.concat(t:shape(), ",") end
          return t
        end)
        most = math.max(most, #shapes)
        for i = 2, #shapes do differ = differ or shapes[i] ~= shapes[1] end
      end
      assert.is_true(most < 2 or differ, "add a variant whose inputs have different shapes")
    end)

    it(info.name .. " has a text", function()
      assert.is_string(info.doc)
      assert.is_true(#info.doc > 10)
    end)
  end

  it("no row is left over", function()
    local known = {}
    for _, info in ipairs(T.core.ops()) do known[info.name] = true end
    local strays = {}
    for name in pairs(cases) do
      if not known[name] and not (T[name] or T.nn.F[name]) then strays[#strays + 1] = name end
    end
    table.sort(strays)
    assert.same({}, strays)
  end)
end)
