-- SPDX-License-Identifier: MIT
-- Settings that a script changes between steps, every one of every optimizer: what is missing, or of another kind, is
-- refused by the next step, also in a jitted function, and not one group has moved then.

local T = require "perilune"
local nn, optim = T.nn, T.optim

local function bits(v)
  if T.is_tensor(v) then return v:detach():to_string() end
  if type(v) ~= "table" then return tostring(v) end
  local keys, out = {}, {}
  for k in pairs(v) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for i, k in ipairs(keys) do out[i] = tostring(k) .. "=" .. bits(v[k]) end
  return table.concat(out, ",")
end

local classes = {}
for name, C in pairs(optim) do
  if type(C) == "table" and rawget(C, "settings") and name ~= "LBFGS" then classes[#classes + 1] = name end
end
table.sort(classes)

describe("a setting that was changed to what it cannot be", function()
  for _, name in ipairs(classes) do
    it("is refused before anything moves: " .. name, function()
      T.manual_seed(1)
      local a, b = nn.Parameter(T.randn(2, 3)), nn.Parameter(T.randn(2, 3))
      local opt = optim[name]({ { params = { a } }, { params = { b } } }, {})
      local compiled = T.jit(function() opt:step() end)
      local function ready()
        a.grad, b.grad = T.ones(2, 3), T.full({ 2, 3 }, 0.5)
        return bits { a, b } .. bits(opt:state_dict())
      end
      for _ = 1, 3 do
        ready()
        compiled()
      end
      local group, count = opt.param_groups[2], 0
      local before = ready()
      for k, s in ipairs(optim[name].settings) do
        local key = s[1]
        local was = group[key]
        for i, wrong in ipairs { "nil", "yes", 0, false } do
          if wrong == "nil" then wrong = nil end
          if s[3](wrong) ~= true and not (type(wrong) == "number" and (type(s[2]) == "number" or s[3](1) == true)) then
            group[key] = wrong
            local step = (k + i) % 2 == 0 and compiled or function() opt:step() end
            local text = ("%s = %s"):format(key, tostring(wrong))
            local ok, why = pcall(step)
            assert.is_false(ok, text)
            assert.truthy(why:find(("optim.%s:step: %s of a group must be"):format(name, key), 1, true), text .. why)
            group[key] = was
            count = count + 1
          end
        end
      end
      assert.equal(before, bits { a, b } .. bits(opt:state_dict()))
      assert.is_true(count > 4)
      compiled()
      assert.not_equal(before, bits { a, b } .. bits(opt:state_dict()))
    end)
  end

  it("is found in a list that was changed, too", function()
    local p = nn.Parameter(T.ones(2))
    local opt = optim.Adam({ p }, {})
    for _ = 1, 2 do
      p.grad = T.ones(2)
      opt:step()
    end
    opt.param_groups[1].betas[2] = nil
    assert.is_false((pcall(opt.step, opt)))
    opt.param_groups[1].betas = { 1.0, 0.5 } -- numbers may be any, as in PyTorch
    opt.param_groups[1].lr = -0.1
    opt:step()
  end)

  it("of a parameter that Muon cannot step, is known when it is made", function()
    local groups = { { params = { nn.Parameter(T.ones(2, 2)) } }, { params = { nn.Parameter(T.ones(2)) } } }
    local ok, why = pcall(optim.Muon, groups)
    assert.is_false(ok)
    assert.truthy(why:find("only matrices", 1, true), why)
  end)
end)

describe("two optimizers in one jitted function", function()
  it("move nothing where a setting of the second is refused", function()
    local p, q = nn.Parameter(T.ones(2)), nn.Parameter(T.ones(2))
    local first, second = optim.Adam({ p }, { lr = 0.1 }), optim.SGD({ q }, { lr = 0.1 })
    local f = T.jit(function()
      first:step()
      second:step()
    end)
    for _ = 1, 3 do
      p.grad, q.grad = T.ones(2), T.ones(2)
      f()
    end
    local weights = bits { p, q }
    second.param_groups[1].lr = "0.1"
    assert.is_false((pcall(f)))
    assert.equal(weights, bits { p, q })
    assert.equal(3, first.state[p].step)
  end)

  it("keep the count of a step that was made, where what comes behind it fails", function()
    local seen = {}
    for _, jitted in ipairs { false, true } do
      local p, q = nn.Parameter(T.ones(3)), nn.Parameter(T.ones(3))
      local first, second = optim.Adam({ p }, { lr = 0.1 }), optim.Adam({ q }, { lr = 0.1 })
      local function both(places)
        first:step()
        q.grad = (p:detach() * 2):index_select(1, places)
        second:step()
        return q:detach():sum()
      end
      local f = jitted and T.jit(both) or both
      local function run(places)
        p.grad = T.ones(3)
        return pcall(f, T.tensor(places, { dtype = "i64" }))
      end
      for _ = 1, 2 do assert.is_true((run { 1, 2, 3 })) end
      assert.is_false((run { 1, 2, 99 }))
      assert.equal(3, first.state[p].step)
      assert.equal(2, second.state[q].step)
      run { 1, 2, 3 }
      seen[#seen + 1] = bits { p, q }
    end
    assert.equal(seen[1], seen[2])
  end)
end)
