-- SPDX-License-Identifier: MIT
-- Random nodes, and random graphs of If, Loop, Scan and sequences inside each other, against onnxruntime's results. The
-- cases are those of spec/fixtures/onnx/nodes.py and control.py, or of the file in PERILUNE_ONNX_CASES, which they also
-- write.

local T = require "perilune"
local json = require "perilune.io.json"

local folder = (os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/onnx/"
local given = os.getenv "PERILUNE_ONNX_CASES"

local function plain(list) return { table.unpack(list) } end

local function tensor(kept)
  local dtype, shape, values = kept[1], plain(kept[2]), plain(kept[3])
  if dtype == "bool" then for i, v in ipairs(values) do values[i] = v ~= 0 end end
  return (#values == 0 and T.zeros({ 0 }, { dtype = dtype }) or T.tensor(values, { dtype = dtype })):reshape(shape)
end

local function load(case, file)
  local f = assert(io.open(file, "wb"))
  f:write((case.model:gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end)))
  f:close()
  return assert(T.onnx.load(file))
end

-- What is wrong with a result, or nil.
local function wrong(got, want)
  if not T.is_tensor(got) then return "no tensor" end
  if got:dtype() ~= want:dtype() or table.concat(got:shape(), ",") ~= table.concat(want:shape(), ",") then
    return ("is %s, %s is wanted"):format(got:describe(), want:describe())
  end
  local a, b = got:double(), want:double()
  local off = got:numel() > 0 and ((a - b):abs() / (b:abs() + 1)):max():item() or 0
  if off > 1e-4 or off ~= off then return ("is off by %g"):format(off) end
end

local function compare(path)
  local file, models, results, failed = os.tmpname(), 0, 0, {}
  for line in io.lines(path) do
    local case = assert(json.decode(line))
    local inputs, name = {}, ("%s, seed %d, opset %d"):format(case.op or "a graph", case.seed, case.opset)
    for i, kept in ipairs(case.inputs) do inputs[i] = tensor(kept) end
    local ok, out = pcall(function() return table.pack(load(case, file)(table.unpack(inputs))) end)
    models = models + 1
    if not ok then failed[#failed + 1] = name .. ": " .. tostring(out) end
    for k, kept in ipairs(ok and case.outputs or {}) do
      local why = wrong(out[k], tensor(kept))
      results = results + 1
      if why then failed[#failed + 1] = ("%s, result %d: %s"):format(name, k, why) end
    end
  end
  os.remove(file)
  assert.equal("", table.concat(failed, "\n"))
  assert.is_true(models > 0 and results >= models)
  if given then print(("%d models, %d results"):format(models, results)) end
end

describe("ONNX files give what onnxruntime gives", function()
  if given then
    it("for the cases of PERILUNE_ONNX_CASES", function() compare(given) end)
    return
  end
  it("for single nodes", function() compare(folder .. "nodes.jsonl") end)
  it("for control flow", function() compare(folder .. "control.jsonl") end)
end)
