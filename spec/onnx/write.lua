-- SPDX-License-Identifier: MIT
-- Writes the models of cases.lua with inputs and results into a folder, for check.py.
package.path = (os.getenv "PERILUNE_ROOT" or ".") .. "/?.lua;" .. package.path
local T = require "perilune"
local cases = require "spec.onnx.cases"
local folder = assert(arg[1], "a folder is wanted")

local function write(name, c, calls)
  local path, data = ("%s/%s.onnx"):format(folder, name:gsub("[^%w]+", "_")), {}
  assert(T.onnx.save(path, c.net:eval(), c.inputs, { dynamic = c.dynamic }))
  for k, inputs in ipairs(calls) do
    for i, x in ipairs(inputs) do data[("%d.x%s"):format(k, #inputs > 1 and i or "")] = x end
    local ys = cases.flat(T.no_grad(c.net, table.unpack(inputs)))
    for i, y in ipairs(ys) do data[("%d.y%s"):format(k, #ys > 1 and i or "")] = y:contiguous() end
  end
  assert(T.save(path .. ".safetensors", data))
end

for _, c in ipairs(cases.layers()) do write(c.name, c, { c.inputs }) end
for _, c in ipairs(cases.free()) do
  local calls = { c.inputs }
  for _, x in ipairs(c.others) do calls[#calls + 1] = { x } end
  write("free " .. c.name, c, calls)
end
