-- SPDX-License-Identifier: MIT
-- No argument is dropped. Of every public callable the calls that its example makes are taken (spec/support/calls.lua),
-- and spoilt: an unknown option in the option table, a table of options behind the last argument and behind nils, a
-- table in the place of each argument. Each such call is an error at the caller's line.

local T = require "perilune"
local surface = require "perilune.surface"
local calls = require "spec.support.calls"

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

-- What takes any value, or hands its arguments to the script's function.
local ANY = {}
for path in ([[T.is_tensor T.help T.help_text T.save T.snapshot T.restore T.cli T.bar T.plot T.autocast T.no_grad
  T.enable_grad T.inference_mode T.checkpoint T.grad T.value_and_grad T.vjp T.hessian T.jacobian T.gradgradcheck
  T.linearize T.saved_tensors T.gradcheck T.jvp T.hvp T.vmap T.jit T.compile T.custom T.timer T.profile T.fit
  T.nn.is_module
  T.nn.utils.rnn.is_packed T.nn.Identity T.nn.Identity:forward T.data.default_collate T.data.Dataset
  T.data.IterableDataset T.get_autocast_dtype
  T.set_printoptions T.metrics T.log x:describe x:imshow x:spark T.imshow T.spark T.register_hook]]):gmatch "%S+" do
  ANY[path] = true
end
-- A list of empty lists is a dataset of two samples, or a tensor without elements.
local LISTS = {}
for path in ([[T.tensor T.as_tensor T.asarray x:new_tensor T.data.DataLoader T.data.SequentialSampler
  T.data.RandomSampler T.data.BatchSampler T.data.DistributedSampler T.data.ConcatDataset T.data.random_split
  T.data.Subset T.data.MapDataset T.nn.utils.functional_call]]):gmatch
  "%S+" do
  LISTS[path] = true
end
-- A list of samples may have fields besides them.
local DATASETS = { ["T.data.DataLoader"] = true, ["T.data.ConcatDataset"] = true, ["T.data.StackDataset"] = true,
  ["T.data.SequentialSampler"] = true, ["T.data.RandomSampler"] = true }
-- They change what the rest of the suite runs with, or speak to other processes.
local LEFT = {}
for path in ([[T.cuda T.distributed T.set_default_device T.set_memory_budget T.debug T.core]]):gmatch "%S+" do
  LEFT[path] = true
end

local function is_plain(v) return type(v) == "table" and getmetatable(v) == nil end

-- Tensors of their own for each call: some write.
local function fresh(v)
  if not T.is_tensor(v) then return v end
  local ok, t = pcall(function()
    local c = v:detach():clone()
    return v.requires_grad and c:requires_grad_() or c
  end)
  return ok and t or T.ones(2, 2) -- it was freed, or belonged to a vmap
end

-- {what, arguments} made of one right call.
local function spoilt(entry, args)
  local list = {}
  local function add(what, n, change)
    local a = { n = n }
    for i = 1, args.n do a[i] = entry.kind == "forward" and i == 1 and args[i] or fresh(args[i]) end
    change(a)
    list[#list + 1] = { what, a }
  end
  local last = args.n > 0 and args[args.n]
  if is_plain(last) and not (DATASETS[entry.path] and last[1] ~= nil) then
    add("an unknown key in the last table", args.n, function(a)
      a[args.n] = { no_such_option = 1 }
      for k, v in pairs(last) do a[args.n][k] = v end
    end)
  end
  if not (is_plain(last) and next(last) ~= nil and last[1] == nil) then
    for nils = 0, 2 do
      add(("options behind %d nils"):format(nils), args.n + nils + 1, function(a) a[a.n] = { no_such_option = 1 } end)
    end
  end
  for i = entry.kind == "forward" and 2 or 1, args.n do
    add("options in place of argument " .. i, args.n, function(a) a[i] = { no_such_option = 1 } end)
    if not LISTS[entry.path] then
      add("a table in place of argument " .. i, args.n, function(a) a[i] = { {} } end)
    end
  end
  return list
end

local function run(entry, a)
  return pcall(function()
    if entry.kind == "forward" then
      local m = a[1]
      local y = m(table.unpack(a, 2, a.n))
      return y
    end
    local y = entry.f(table.unpack(a, 1, a.n))
    return y
  end)
end

describe("no argument is dropped by", function()
  local inventory = calls.recorded()
  teardown(function()
    for _, entry in ipairs(inventory) do entry.calls = nil end
    for _ = 1, 3 do collectgarbage() end
  end)

  it("any of them: there are calls of most", function()
    local with = 0
    for _, entry in ipairs(inventory) do if #entry.calls > 0 then with = with + 1 end end
    assert.is_true(#inventory > 1500 and with > 900, ("%d of %d"):format(with, #inventory))
  end)

  for _, kind in ipairs { "function", "method", "class", "forward" } do
    it("a " .. kind, function()
      local problems, tried = {}, 0
      for _, entry in ipairs(inventory) do
        if entry.kind == kind and not ANY[entry.path] and not LEFT[entry.path:match "^T%.[%w_]+"] then
          for _, args in ipairs(entry.calls) do
            for _, c in ipairs(spoilt(entry, args)) do
              tried = tried + 1
              local ok, err = run(entry, c[2])
              if ok then
                problems[#problems + 1] = ("%s, %d arguments, %s: accepted"):format(entry.path, args.n, c[1])
              elseif type(err) ~= "string" or not err:find("^" .. HERE .. ":%d+: ") then
                problems[#problems + 1] = ("%s, %s: %s"):format(entry.path, c[1], tostring(err))
              end
            end
          end
        end
      end
      collectgarbage()
      assert.equal("", table.concat(problems, "\n"))
      assert.is_true(tried > 50, tried .. " calls")
    end)
  end

  it("functions of Lua that have no example: their parameters are counted", function()
    local open = {}
    for _, entry in ipairs(inventory) do
      if entry.kind ~= "forward" and type(entry.f) == "function" then
        local names, any = surface.parameters(entry.f)
        -- what is sealed takes any number, and counts
        if names and not any then open[#open + 1] = entry.path end
      end
    end
    assert.same({}, open)
  end)
end)
