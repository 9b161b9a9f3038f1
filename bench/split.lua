-- SPDX-License-Identifier: MIT
-- What the split of backward graphs saves: bytes kept between forward and backward of one training step, with the
-- split and without, for networks of bench/workloads and one whose gradient only compares.
--   perilune run bench/split.lua -- [--json FILE]
-- One JSON object a line, then a table. `kept` counts what the step holds beyond its parameters and data.

local here = debug.getinfo(1, "S").source:match("^@(.*)split%.lua$") or "./"
local T = require "perilune"
local nn, F = T.nn, T.nn.F

local json
do
  local i = 1
  while arg[i] do
    if arg[i] == "--json" and arg[i + 1] then
      json, i = assert(io.open(arg[i + 1], "a")), i + 1
    elseif arg[i] ~= "--" then
      error("unknown option " .. arg[i] .. "; allowed: --json FILE", 0)
    end
    i = i + 1
  end
end

-- ---- the steps: each is built once and returns forward(), which returns the loss ----------------------------

-- A workload's forward pass: its trainer is replaced by one that only computes the loss.
local function workload(name)
  local W, tools = {}, {}
  for _, file in ipairs { "train", "models" } do dofile(here .. "workloads/" .. file .. ".lua")(T, W, tools) end
  function tools.trainer(model)
    return function(x, y)
      local out = model(x)
      if out:dim() > 2 then out, y = out:flatten(1, -2), y:flatten() end
      return F.cross_entropy(out, y)
    end
  end
  return W[name]()
end

-- The larger of two linear maps: its gradient compares them and reads neither.
local function maxout()
  local left, right, head = nn.Linear(256, 512), nn.Linear(256, 512), nn.Linear(512, 10)
  local x, y = T.randn(256, 256), T.randint(1, 10, { 256 })
  return function() return F.cross_entropy(head(T.maximum(left(x), right(x))), y) end
end

local steps = {
  { "mlp_step_b64" }, { "lenet_step_b64" }, { "gpt_nano_step" }, { "lstm_char_step" }, { "maxout_b256", maxout },
}

-- ---- measuring -----------------------------------------------------------------------------------------------

local function live()
  for _ = 1, 3 do collectgarbage() end
  return T.memory().live
end

-- Bytes that one recorded forward pass keeps, and the value of its loss.
local function kept(forward, split)
  local was = T.debug.split(split)
  forward() -- makes the graphs, whose constants are not what is measured
  local before = live()
  local loss = forward()
  local bytes = live() - before
  T.debug.split(was)
  return bytes, loss:item()
end

local rows = {}
for _, step in ipairs(steps) do
  local name, make = step[1], step[2]
  T.manual_seed(1)
  local forward = make and make() or workload(name)
  if type(forward) == "string" then
    io.stderr:write("skip ", name, ": ", forward, "\n")
  else
    T.manual_seed(2)
    local with, loss = kept(forward, true)
    T.manual_seed(2)
    local without, again = kept(forward, false)
    assert(loss == again, name .. ": the split changes the loss")
    local row = { workload = name, kept = with, kept_unsplit = without, saved = without - with,
      saved_percent = 100 * (without - with) / without }
    rows[#rows + 1] = row
    local line = ('{"workload": "%s", "impl": "perilune", "kept": %d, "kept_unsplit": %d, "saved": %d, '
      .. '"saved_percent": %.2f}'):format(name, with, without, row.saved, row.saved_percent)
    print(line)
    if json then json:write(line, "\n") end
  end
end
if json then json:close() end

print(("\n%-18s %14s %14s %14s %8s"):format("forward pass of", "kept, bytes", "unsplit", "saved", "saved"))
for _, r in ipairs(rows) do
  print(("%-18s %14d %14d %14d %7.1f%%"):format(r.workload, r.kept, r.kept_unsplit, r.saved, r.saved_percent))
end
