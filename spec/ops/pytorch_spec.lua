-- SPDX-License-Identifier: MIT
-- Functions made of other ops against PyTorch, ONNX Runtime, SciPy and torchvision: values and gradients of
-- spec/fixtures/functions.py and operators.py.

local T = require "perilune"

local root = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/"

-- The file as { key = { in = {…}, out = {…}, grad = {…} } }.
local function fixtures(name)
  local cases = {}
  for key, t in pairs(assert(T.load(root .. name .. ".safetensors"))) do
    local case, kind, k = key:match("^(.+)/(%a+)/(%d+)$")
    local c = cases[case] or { ["in"] = {}, out = {}, grad = {} }
    cases[case] = c
    c[kind][math.tointeger(tonumber(k))] = t:to(T.get_default_device())
  end
  return cases
end

local function flat(list, out)
  for _, v in ipairs(list) do
    if type(v) == "table" then flat(v, out) else out[#out + 1] = v end
  end
  return out
end

local function compare(what, got, want, tol)
  assert(table.concat(got:shape(), ",") == table.concat(want:shape(), ","),
    ("%s is %s, should be %s"):format(what, got:describe(), want:describe()))
  assert(got:dtype() == want:dtype(), ("%s is %s, should be %s"):format(what, got:dtype(), want:dtype()))
  if want:numel() == 0 then return end
  local a, b = got:detach():to("f64"):reshape(-1):totable(), want:to("f64"):reshape(-1):totable()
  local scale = 1
  for i, v in ipairs(b) do
    local near = a[i] == v or (a[i] ~= a[i] and v ~= v) or math.abs(a[i] - v) <= tol * math.max(scale, math.abs(v))
    assert(near, ("%s: element %d is %.17g, should be %.17g"):format(what, i, a[i], v))
  end
end

local function run(call, case)
  local names, values = {}, {}
  local device = T.zeros(1):device() -- not that of what was loaded, under PERILUNE_TEST_DEVICE=moved
  for i, x in ipairs(case["in"]) do
    names[i] = "x" .. i
    x = x:to(device)
    values[i] = case.grad[i] and x:clone():requires_grad_() or x
  end
  local env = setmetatable({ T = T }, { __index = _G })
  local code = ("local %s = ...\nreturn %s"):format(#names > 0 and table.concat(names, ", ") or "_", call)
  local results = flat({ assert(load(code, "=spec/" .. call, "t", env))(table.unpack(values)) }, {})
  assert(#results == #case.out, ("%d results, should be %d"):format(#results, #case.out))
  for k, want in ipairs(case.out) do compare("result " .. k, results[k], want, 1e-9) end
  if next(case.grad) == nil then return end
  local loss
  for k, y in ipairs(results) do
    if y.requires_grad then
      local part = (y * (T.arange(1, y:numel()):to("f64") * 0.3 + k):sin():reshape(y:shape())):sum()
      loss = loss and loss + part or part
    end
  end
  loss:backward()
  for i, want in pairs(case.grad) do compare("gradient " .. i, values[i].grad, want, 1e-7) end
end

for name, who in pairs { functions = "PyTorch", operators = "ONNX Runtime, SciPy, torchvision" } do
  describe("as " .. who .. ":", function()
    local cases
    for _, item in ipairs(dofile(root .. name .. ".lua")) do
      it(item[1] .. " " .. item[2], function()
        cases = cases or fixtures(name)
        run(item[2], assert(cases[item[1]], "not in the file"))
      end)
    end

    teardown(function() cases = nil end)
  end)
end
