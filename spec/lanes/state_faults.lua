-- SPDX-License-Identifier: MIT
-- A process in which trainings are met by Ctrl-C, or by memory that is out, at each of their allocations (faults.c),
-- and go on: what belongs together, weights with their optimizer's states and counts, the statistics of a norm, is as
-- before the step or as behind it, and a sum of gradients that is neither is refused. Arguments: INT or MALLOC, how
-- many places are left out between two, and whether all optimizers are met. Prints what went wrong and, last, counts.

local T = require "perilune"
local nn, optim, F = T.nn, T.optim, T.nn.F
local kind, stride, all = arg[1], tonumber(arg[2]), arg[3] == "all"

local runs, failed, finds = 0, 0, 0
local function find(fmt, ...)
  finds = finds + 1
  print(fmt:format(...))
end

-- All numbers in v but zeros, as which a state begins.
local function bits(v)
  if T.is_tensor(v) then return (v:detach():abs():sum():item() == 0 and "" or v:detach():contiguous():to_string()) end
  if type(v) ~= "table" then return v == 0 and "" or tostring(v) end
  local keys, out = {}, {}
  for k in pairs(v) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, k in ipairs(keys) do
    local text = bits(v[k])
    if text ~= "" then out[#out + 1] = tostring(k) .. "=" .. text end
  end
  return table.concat(out, ",")
end

-- The graph of a training in a file that step wrote, loaded again.
local function loaded(path)
  local g, tensors = assert(T.load_graph(path))
  local stepped, list = {}, {}
  for _, node in ipairs(g:nodes()) do
    if node.op:find "_step$" then
      for _, v in ipairs(node.inputs) do stepped[tostring(v)] = true end
    end
  end
  local function numbers(of_optimizer)
    for key, t in pairs(tensors) do list[key] = (stepped[key] ~= nil) == of_optimizer and t or false end
    return bits(list)
  end
  local function counts()
    local steps = {}
    for _, node in ipairs(g:nodes()) do steps[#steps + 1] = node.op:find "_step$" and node.attrs.step or nil end
    return table.concat(steps, " ")
  end
  return function() g:run {} end, {
    statistics = function() return numbers(false) end,
    weights = function() return numbers(true) .. counts() end,
  }
end

-- → step(), what belongs together by name, and, of a training that adds up, gradients and who would use them.
local function training(name, options, how)
  T.manual_seed(3)
  local net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, { momentum = false }), nn.Tanh(), nn.Linear(6, 3))
  local x, y = T.randn(5, 4), T.randint(1, 3, { 5 })
  local groups = { { params = {} }, { params = {} } }
  for i, p in ipairs(net:parameters()) do
    if name ~= "Muon" or p:dim() == 2 then table.insert(groups[i <= 4 and 1 or 2].params, p) end
  end
  local opt = optim[name](groups, options)
  local function backward() F.cross_entropy(how == "checkpoint" and T.checkpoint(net, x) or net(x), y):backward() end
  local function step()
    if how ~= "adds" and how ~= "checkpoint" then opt:zero_grad() end
    backward()
    if how ~= "adds" and how ~= "checkpoint" then opt:step() end
    return net[1].bias:detach():sum()
  end
  if how == "loaded" then
    local path, jitted = os.tmpname(), T.jit(step)
    jitted()
    assert(T.save_graph(path, jitted:graph()))
    local run, parts = loaded(path)
    os.remove(path)
    os.remove(path .. ".safetensors")
    return run, parts
  end
  local parts = {
    statistics = function() return bits(net:buffers()) end,
    weights = function() return bits(net:parameters()) .. bits(opt:state_dict()) end,
  }
  local function grads()
    local list = {}
    for i, p in ipairs(net:parameters()) do list[i] = p.grad or false end
    return bits(list)
  end
  return how == "jit" and T.jit(step) or step, parts, how:find "^[ac]" and grads or nil, opt
end

local function look(text, parts, before, after)
  for part, f in pairs(parts) do
    local now = f()
    if now ~= after[part]() and now ~= before[part] then find("%s: %s are torn", text, part) end
  end
end

local function meet(name, options, how)
  for warm = 0, 2, 2 do
    for n = warm // 2, 1 << 30, stride do
      local step, parts, grads, opt = training(name, options, how)
      local other, after, other_grads = training(name, options, how)
      for _ = 1, warm do
        step()
        other()
      end
      other()
      local before, sums = {}, grads and grads()
      for part, f in pairs(parts) do before[part] = f() end
      os.getenv(("faults %s %d %d"):format(kind, n, kind == "INT" and 1 or 0))
      local ok, err = pcall(step)
      local fell = tonumber(os.getenv("faults ?"):match " (%d+)")
      os.getenv "faults OFF"
      runs = runs + 1
      if fell == 0 then break end
      local text = ("%s, %s, after %d steps, place %d: %s"):format(name, how, warm, n, ok and "fine" or err)
      if not ok then failed = failed + 1 end
      look(text, parts, ok and {} or before, after)
      if grads and grads() ~= other_grads() and (ok or grads() ~= sums and pcall(opt.step, opt)) then
        find("%s: a part of a sum is taken", text)
      elseif not grads and not ok then
        local same = parts.weights() == before.weights
        step()
        if same and parts.weights() ~= after.weights() then find("%s: the next step is another one", text) end
      end
    end
  end
end

for _, how in ipairs { "jit", "eager", "adds", "checkpoint", "loaded" } do
  meet("SGD", { lr = 0.1, momentum = 0.9 }, how)
  for _, name in ipairs(all and how ~= "adds" and how ~= "checkpoint" and { "Adam", "RMSprop", "NAdam", "LAMB",
    "Adafactor", "Muon" } or {}) do
    meet(name, {}, how)
  end
end
print(("%d runs, %d failed, %d finds"):format(runs, failed, finds))
