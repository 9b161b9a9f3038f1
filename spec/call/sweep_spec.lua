-- SPDX-License-Identifier: MIT
-- Every public callable with every kind of wrong value in its first places: nothing, numbers, text, booleans, tables, a
-- function, tensors of other ranks and dtypes. Each call gives a value, or an error at the caller's line that
-- names what
-- was called; never one of a line inside of perilune.

local T = require "perilune"
local options = require "perilune.options"
local calls = require "spec.support.calls"

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

-- They change what the rest of the suite runs with, print, or run what they are given.
local LEFT = {}
for path in ([[T.cuda T.distributed T.core T.debug T.cli T.help T.help_text T.set_memory_budget T.set_num_threads
  T.set_default_device T.set_default_dtype T.default_dtype T.set_printoptions T.set_grad_enabled T.enable_grad T.no_grad
  T.inference_mode T.autocast T.manual_seed T.set_rng_state T.seed T.fit T.profile T.timer T.bar T.info T.save
  T.save_npy T.save_npz
  T.save_image T.save_graph T.load T.load_npy T.load_npz T.load_idx T.load_t7 T.load_pt T.load_gguf
  T.save_gguf T.open T.load_image T.load_graph T.checkpoint
  T.memory_limit T.saved_tensors T.override_gradient T.deterministic T.register_kl T.optim.Optimizer
  T.set_float32_matmul_precision T.imshow x:imshow T.spark x:spark]]):gmatch "%S+" do LEFT[path] = true end

local function values()
  return {
    { "nothing", nil }, { "3", 3 }, { "1.5", 1.5 }, { "'x'", "x" }, { "true", true }, { "{}", {} }, { "{1}", { 1 } },
    { "{'x'}", { "x" } }, { "{no_such=1}", { no_such = 1 } }, { "a function", function() end },
    { "f32[]", T.tensor(1.5) }, { "f32[2]", T.ones(2) }, { "f32[2,2,2,2,2]", T.ones(2, 2, 2, 2, 2) },
    { "bool[3,3]", T.ones({ 3, 3 }, { dtype = "bool" }) }, { "i64[3]", T.ones({ 3 }, { dtype = "i64" }) },
  }
end

describe("wrong values in the first places of", function()
  local inventory = calls.inventory()
  local names_of = {} -- of a function, all of them: clip is clamp
  for _, entry in ipairs(inventory) do
    names_of[entry.f] = names_of[entry.f] or {}
    names_of[entry.f][entry.name] = true
    local stands_for = options.aliases[entry.name] or options.aliases[entry.name:gsub("_$", "")]
    if stands_for then names_of[entry.f][stands_for:match "[^.]+$"] = true end
  end

  local function named(entry, err)
    for name in pairs(names_of[entry.f]) do
      if err:find(name, 1, true) or err:find((name:gsub("_$", "")), 1, true) then return true end
    end
    return err:find(entry.path:match "[^.:]+$", 1, true) ~= nil
  end

  local groups = {}
  for _, entry in ipairs(inventory) do
    local group = entry.path:match "^(T%.[%w_]+)%." or entry.path:match "^[Tx]"
    if not LEFT[entry.path] and not LEFT[group] and entry.kind ~= "forward"
      and not entry.path:find("^T%.optim%.Optimizer") then
      groups[group] = groups[group] or {}
      table.insert(groups[group], entry)
    end
  end
  local order = {}
  for group in pairs(groups) do order[#order + 1] = group end
  table.sort(order)

  for _, group in ipairs(order) do
    it(group, function()
      local problems, tried = {}, 0
      local state = T.get_rng_state()
      local old = { print = print }
      rawset(_G, "print", function() end)
      for _, entry in ipairs(groups[group]) do
        local function try(what, ...)
          tried = tried + 1
          local args = table.pack(...)
          local ok, err = pcall(function()
            local r = entry.f(table.unpack(args, 1, args.n))
            return r
          end)
          if ok then return end
          if type(err) ~= "string" or not err:find("^" .. HERE .. ":%d+: ") then
            problems[#problems + 1] = ("%s(%s) says %s"):format(entry.path, what, tostring(err))
          elseif not named(entry, err) then
            problems[#problems + 1] = ("%s(%s) does not name itself: %s"):format(entry.path, what, err)
          end
        end
        try("")
        for i, v in ipairs(values()) do
          if i > 1 then try(v[1], v[2]) end
          try("f32[3,3], " .. v[1], T.ones(3, 3), values()[i][2])
          try("f32[3,3], f32[3,3], " .. v[1], T.ones(3, 3), T.ones(3, 3), values()[i][2])
          try("f32[3,3], 1, " .. v[1], T.ones(3, 3), 1, values()[i][2])
        end
      end
      rawset(_G, "print", old.print)
      T.set_rng_state(state)
      assert.is_true(T.is_grad_enabled())
      assert.equal("", table.concat(problems, "\n"))
      assert.is_true(tried >= 60 * #groups[group] // 1 - 60)
    end)
  end
end)
