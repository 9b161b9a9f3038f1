-- SPDX-License-Identifier: MIT
-- Adapters that PEFT wrote against what it gives for them: logits, what is trained, gradients; what is merged, and what
-- is written and read again. The cases are those of spec/fixtures/peft/make.py, or of the file in PERILUNE_PEFT_CASES,
-- which it also writes; with PERILUNE_PEFT_OUT the written adapters stay in that folder, for its --read.

local T = require "perilune"
local formula = require "spec.support.formula_networks"
local json = require "perilune.io.json"
local module = require "perilune.nn.module"
local nn = T.nn
local numbers, off, plain, shaped = formula.numbers, formula.off, formula.plain, formula.shaped

local path = os.getenv "PERILUNE_PEFT_CASES"
  or (os.getenv "PERILUNE_ROOT" or ".") .. "/spec/fixtures/peft/cases.jsonl"
local keep = os.getenv "PERILUNE_PEFT_OUT"

-- The network's own name for a tensor of a file.
local function plain_name(name)
  return (name:gsub("^base_model%.model%.", ""):gsub("%.base_layer", ""):gsub("%.original_module", ""))
end

local function write_adapter(case, dir)
  assert(os.execute(('mkdir "%s"'):format(dir)))
  local base, tensors = assert(T.load((dir:gsub("/[^/]*$", "")) .. "/model.safetensors")), {}
  for name, how in pairs(case.adapter_tensors) do
    local shape, n = plain(how[1]), 1
    for _, s in ipairs(shape) do n = n * s end
    local own = plain_name(name)
    tensors[name] = how[2] == "base" and (base[own] or base[case.tied and case.tied[own] or ""])
      or how[2] ~= "base" and shaped(numbers(n, how[4]) * how[3] + how[2], shape):float() or nil
    if not tensors[name] then -- the other name of a tensor that the file has once
      for _, t in pairs(base) do if json.encode(t:shape()) == json.encode(shape) then tensors[name] = t end end
    end
    tensors[name] = tensors[name]:clone()
  end
  assert(T.save(dir .. "/adapter_model.safetensors", tensors, { metadata = { format = "pt" } }))
  assert(json.write(dir .. "/adapter_config.json", case.adapter))
end

local function parameters(net)
  local out = {}
  for _, item in ipairs(module.collect(net, "parameter", 0)) do out[item[1]] = item[2] end
  return out
end

local function check(case, dir, say)
  local function fresh() return assert(T.models.load(dir, { dtype = "f64" })) end
  local ids = T.tensor(plain(case.ids), { dtype = "i64" })
  write_adapter(case, dir .. "/adapter")
  local net = fresh()
  local ok, why = nn.load_lora(net, dir .. "/adapter")
  if not ok then return say(why) end
  net:eval()
  local y = net(ids)
  local function logits(of, what)
    local d = off(T.no_grad(of, ids), case.logits, 1e-6)
    if d >= 1e-5 or d ~= d then say(("%s: logits off by %.3g"):format(what, d)) end
  end
  logits(net, "read");
  (y * shaped(numbers(y:numel(), 700), y:shape())):sum():backward()
  local own, most, trained = parameters(net), 0, {}
  for _, want in pairs(case.grads) do most = math.max(most, want[1]) end
  for name, want in pairs(case.grads) do
    local key = name:gsub("%.lora_([AB])%.weight$", ".lora_%1"):gsub("(lora_magnitude_vector)%.weight$", "%1")
      :gsub("%.lora_B%.bias$", ".lora_bias"):gsub("%.token_adapter%.", ".")
    local p = own[key]
    if not p or not p.grad then say("no gradient of " .. key)
    else
      trained[p] = true
      local d = off(p.grad, want, most * 1e-3)
      if d >= 1e-4 or d ~= d then say(("the gradient of %s is off by %.3g"):format(key, d)) end
    end
  end
  for name, p in pairs(own) do
    if p.requires_grad and p.grad and not trained[p] and p.grad:ne(0):any():item() then say("also trains " .. name) end
  end
  local back = dir .. "/back"
  assert(os.execute(('mkdir "%s"'):format(back)))
  assert(nn.save_lora(net, back))
  logits(assert(nn.load_lora(fresh(), back)):eval(), "written and read")
  local merged, message = pcall(nn.merge_lora, net)
  if merged then logits(net, "merged") elseif not tostring(message):find "as well"
    and not tostring(message):find "has a bias, for which" and not tostring(message):find "shares and has not" then
    say(message)
  end
end

describe("adapters of PEFT", function()
  after_each(formula.forget)
  it("compute, train, are merged and written as there", function()
    local failed, count = {}, 0
    for line in io.lines(path) do
      local case = assert(json.decode(line))
      count = count + 1
      formula.folder(case, function(dir)
        local function say(what)
          if #failed > 20 then return end
          failed[#failed + 1] = ("%s %d %s: %s"):format(case.family, case.seed, json.line(case.settings), what)
        end
        local ok, why = pcall(check, case, dir, say)
        if not ok then say(tostring(why)) end
        if keep then
          assert(json.write(dir .. "/case.json", case))
          os.execute(('cp -r "%s" "%s/%d"'):format(dir, keep, case.seed))
        end
        for _, part in ipairs { "adapter", "back" } do
          for _, file in ipairs { "adapter_model.safetensors", "adapter_config.json" } do
            os.remove(dir .. "/" .. part .. "/" .. file)
          end
          os.remove(dir .. "/" .. part)
        end
        os.remove(dir .. "/case.json")
      end)
    end
    assert.equal("", table.concat(failed, "\n"))
    assert.is_true(count > 0)
    if os.getenv "PERILUNE_PEFT_CASES" then print(count .. " adapters") end
  end)
end)
