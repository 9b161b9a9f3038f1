-- SPDX-License-Identifier: MIT
-- Networks of every family with options drawn at random against transformers: results and the gradients of all
-- parameters in calls with padding on either side, masks of 2 and 4 dimensions, places and labels. The cases are those
-- of spec/fixtures/transformers_models.py, or of the file in PERILUNE_TRANSFORMERS_CASES, which it also writes (with
-- --keys: any key of a config changed).

local T = require "perilune"
local json = require "perilune.io.json"
local module = require "perilune.nn.module"

local path = os.getenv "PERILUNE_TRANSFORMERS_CASES"
  or (os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/transformers_models.jsonl"

local formula = require "spec.support.formula_networks"
local numbers, off, shaped = formula.numbers, formula.off, formula.shaped
local folder, plain = formula.folder, formula.plain

local function depth(v) return type(v) == "table" and 1 + depth(v[1]) or 0 end
local function first(v) return type(v) == "table" and first(v[1]) or v end

local function tensor(name, v, added)
  if type(v) ~= "table" then return v end
  if v[1] == "numbers" then
    local n = 1
    for _, s in ipairs(v[2]) do n = n * s end
    return numbers(n, v[3]):reshape { table.unpack(v[2]) }:float()
  end
  local t = T.tensor(plain(v), { dtype = math.type(first(v)) == "integer" and "i64" or "f32" })
  if name ~= "attention_mask" or depth(v) ~= 4 then return t end
  t = t:ne(0) -- bools, or numbers that are added
  return added and T.zeros(t:shape()):masked_fill(t:logical_not(), -1e9) or t
end

local order = { "loss", "logits", "last_hidden_state", "pooler_output", "start_logits", "end_logits",
  "logits_per_image", "text_embeds", "image_embeds" }

local function kept(name, t, mask)
  if type(mask) ~= "table" or t:dim() < 2 or #mask ~= t:size(1) or #mask[1] ~= t:size(2) then return t end
  if not (name == "logits" or name == "last_hidden_state" or name == "start_logits" or name == "end_logits") then
    return t
  end
  local m = T.tensor(plain(mask)):to(t:dtype())
  for _ = 3, t:dim() do m = m:unsqueeze(-1) end
  return t * m
end

local function check_call(net, case, call, failed, stats)
  local o, main = {}, nil
  for name, v in pairs(call.inputs) do
    local t = tensor(name, v, case.seed % 2 == 0)
    if name == "input_ids" or name == "input_features" then main = t
    elseif name == "return_loss" then o.loss = t
    else o[name] = t end
  end
  if main == nil then main, o.pixel_values = o.pixel_values, nil end
  for _, p in ipairs(net:parameters()) do p.grad = nil end
  local y, out = net(main, o)
  local total = 0
  local function say(what, d, tol)
    stats.most = math.max(stats.most, d)
    stats.count = stats.count + 1
    if d > tol or d ~= d then
      failed[#failed + 1] = ("%s %d %s, %s%s: %s is off by %.3g"):format(case.family, case.seed, case.class, call.way,
        case.key and (", %s = %s"):format(case.key[1], json.encode(case.key[2])) or "", what, d)
    end
  end
  for k, name in ipairs(order) do
    local want = call.results[name]
    if want then
      local got = out[name] or (name == "last_hidden_state" or name == "logits") and y or nil
      if got == nil then
        failed[#failed + 1] = ("%s %d %s: %s is not among the results"):format(case.family, case.seed, case.class, name)
        return
      end
      got = kept(name, got, call.mask)
      say(name, off(got, want, 1e-6), 1e-4)
      if name == "loss" then total = total + got:double()
      else
        total = total + (got:double() * shaped(numbers(got:numel(), 699 + k), got:shape())):sum() * 0.1
      end
    end
  end
  total:backward()
  local own, most = {}, 0
  for _, item in ipairs(module.collect(net, "parameter", 0)) do own[item[1]] = item[2] end
  for i in ipairs(case.names) do most = math.max(most, call.grads[i][1]) end
  for i, name in ipairs(case.names) do
    local p
    for each in name:gmatch "%S+" do -- transformers' own name, and that in files
      p = p or own[each] or own["text_model." .. each] or own["vision_model." .. each]
    end
    local g = p and (p.grad or T.zeros_like(p))
    if not g then failed[#failed + 1] = ("%s %d %s: no parameter %s"):format(case.family, case.seed, case.class, name)
    else say("the gradient of " .. name, off(g, call.grads[i], most * 5e-3), 1e-4) end
  end
end

describe("networks of T.models and of transformers", function()
  after_each(formula.forget)
  local by_family, families = {}, {}
  local file = assert(io.open(path))
  for line in file:lines() do
    local case = assert(json.decode(line))
    if not by_family[case.family] then
      by_family[case.family] = {}
      families[#families + 1] = case.family
    end
    table.insert(by_family[case.family], case)
  end
  file:close()
  for _, family in ipairs(families) do
    it("agree in results and gradients: " .. family, function()
      local failed, stats = {}, { most = 0, count = 0 }
      for _, case in ipairs(by_family[family]) do
        folder(case, function(dir)
          local net, why = T.models.load(dir)
          if not net and case.key then return end -- another value of any key: refused is as good
          if not net then
            failed[#failed + 1] = ("%s %d %s: %s"):format(case.family, case.seed, case.class, why)
            return
          end
          for _, call in ipairs(case.calls) do
            local ok, wrong = pcall(check_call, net, case, call, failed, stats)
            if not ok then
              failed[#failed + 1] = ("%s %d %s, %s: %s"):format(case.family, case.seed, case.class, call.way,
                tostring(wrong))
            end
          end
        end)
      end
      assert.equal("", table.concat(failed, "\n"))
      assert.is_true(stats.count > 0)
      if os.getenv "PERILUNE_TRANSFORMERS_CASES" then
        print(("%s: %d networks, %d sketches, at most %.2g off"):format(family, #by_family[family], stats.count,
          stats.most))
      end
    end)
  end
end)
