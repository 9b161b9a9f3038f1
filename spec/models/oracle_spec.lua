-- SPDX-License-Identifier: MIT
-- Networks of transformers' folders against what transformers makes of them: logits, hidden states, greedy tokens and
-- beams with the cache, one step of fine-tuning. The folders are in ../shared/models/hf, or where PERILUNE_MODELS
-- says; what is not there is skipped and counted.

local T = require "perilune"
local module = require "perilune.nn.module"

local root = os.getenv "PERILUNE_MODELS" or (os.getenv "PERILUNE_ROOT" or ".") .. "/../shared/models/hf"

local function exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

local names = {}
do
  local list = io.popen('ls "' .. root .. '" 2>/dev/null')
  for name in list:lines() do if exists(root .. "/" .. name .. "/config.json") then names[#names + 1] = name end end
  list:close()
end

-- Raises unless |got - want| <= atol + rtol |want|; NaN in want stands for anything.
local function within(case, key, got, want)
  assert.same(want:shape(), got:shape())
  local tol = case.tol[key]
  local over = (got:detach():double() - want:double()):abs() - want:double():abs() * tol[1]
  local most = T.where(want:isnan(), T.zeros_like(over), over):max():item()
  assert.is_true(most <= tol[2], ("%s is off by %g, %g is allowed"):format(key, most, tol[2]))
end

-- The references of half-precision files were computed after the whole network, the frequencies of its rotary places
-- among it, had been rounded to the file's dtype. transformers itself keeps them in f32, and so does T.models.
local function rounded_frequencies(net, dtype)
  for _, m in ipairs(net:modules()) do
    local w = m.inv_freq
    if w then w:copy_(w:to(dtype):float()) end
  end
end

local function parameters(net)
  local out = {}
  for _, item in ipairs(module.collect(net, "parameter", 0)) do out[item[1]] = item[2] end
  return out
end

-- Inputs of a call by their names in transformers: the first argument, and the others as options.
local mains = { "input_ids", "pixel_values", "input_features" }
local function call(net, inputs, prefix, more)
  local main, o = nil, more or {}
  for key, t in pairs(inputs) do
    local name = key:sub(1, #prefix) == prefix and key:sub(#prefix + 1)
    if name and not name:find(".", 1, true) then
      local is_main = false
      for _, m in ipairs(mains) do is_main = is_main or m == name and main == nil and not (m == "pixel_values"
        and inputs[prefix .. "input_ids"]) end
      if is_main then main = t elseif name ~= "wave" then o[name] = t end
    end
  end
  return net(main, o)
end

local function check_forward(net, case, inputs, expected)
  local tracks = false
  for key in pairs(expected) do tracks = tracks or key:find "hidden_states%.0$" ~= nil end
  local y, out = call(net, inputs, "", tracks and { hidden_states = true } or nil)
  local count = 0
  for key, want in pairs(expected) do
    local name, i = key:match "^([%a_]*hidden_states)%.(%d+)$"
    local got
    if name then got = out[name] and out[name][i + 1] elseif key ~= "mel" and not key:find(".", 1, true) then
      got = out[key] or key == "last_hidden_state" and y
    end
    if name or key ~= "mel" and not key:find(".", 1, true) then
      assert.is_true(got ~= nil and got ~= false, key .. " is not among the results")
      within(case, key, got, want)
      count = count + 1
    end
  end
  assert.is_true(count > 0)
end

local function check_finetune(net, case, inputs, expected)
  local _, out = call(net, inputs, "finetune.")
  within(case, "finetune.loss", out.loss, expected["finetune.loss"])
  out.loss:backward()
  local own = parameters(net)
  for _, name in ipairs(case.finetune.parameters) do
    assert.is_truthy(own[name], name)
    within(case, "finetune.grad." .. name, own[name].grad, expected["finetune.grad." .. name])
  end
  local f = case.finetune
  local step = T.optim.AdamW(net:parameters(), { lr = f.lr, betas = f.betas, eps = f.eps,
    weight_decay = f.weight_decay })
  step:step()
  for _, name in ipairs(f.parameters) do
    within(case, "finetune.after." .. name, own[name], expected["finetune.after." .. name])
  end
  local _, again = T.no_grad(call, net, inputs, "finetune.")
  within(case, "finetune.loss_after", again.loss, expected["finetune.loss_after"])
end

-- The adapters in the folders are what the step of their oracle made of them (it was taken in place, before they were
-- written), so that step is checked from where it began: one step of Adam is lr g / (|g| + eps).
local function check_lora(dir, case, inputs, expected)
  local net, targets = T.nn.load_lora(assert(T.models.load(dir)), dir .. "/adapter")
  assert(net, targets)
  local want = { table.unpack(case.lora.targets) }
  table.sort(want)
  assert.same(want, targets)
  local ids, own, trained = inputs["lora.input_ids"], parameters(net), {}
  for _, name in ipairs(targets) do
    for _, key in ipairs { ".lora_A", ".lora_B" } do trained[#trained + 1] = name .. key end
  end
  local _, out = T.no_grad(net, ids, { labels = ids })
  within(case, "lora.loss_after", out.loss, expected["lora.loss_after"])
  T.no_grad(function()
    for _, name in ipairs(trained) do
      within(case, "lora.after." .. name, own[name], expected["lora.after." .. name])
      local g = expected["lora.grad." .. name]:double()
      own[name]:copy_(own[name]:double() + g / (g:abs() + 1e-8) * case.lora.lr)
    end
  end)
  local logits
  logits, out = net(ids, { labels = ids })
  within(case, "lora.logits", logits, expected["lora.logits"])
  within(case, "lora.loss", out.loss, expected["lora.loss"])
  out.loss:backward()
  for _, name in ipairs(trained) do within(case, "lora.grad." .. name, own[name].grad,
    expected["lora.grad." .. name]) end
  T.optim.AdamW(net:parameters(), { lr = case.lora.lr, weight_decay = 0 }):step()
  for _, name in ipairs(trained) do within(case, "lora.after." .. name, own[name], expected["lora.after." .. name]) end
  for name, p in pairs(own) do assert.is_true(p.requires_grad == (name:find "%.lora_[AB]$" ~= nil), name) end
  local before = T.no_grad(net, ids)
  local merged = T.no_grad(T.nn.merge_lora(net), ids)
  assert.is_true((before - merged):abs():max():item() <= 1e-4 * before:abs():max():item())
end

local function check_generate(net, case, inputs, expected)
  local prompt, want = inputs["generate.prompt"], expected["generate.tokens"]
  local extra = inputs["generate.input_ids"] or inputs["generate.input_features"]
  local o = { inputs = extra, max_new_tokens = want:size(1), stop = false, scores = true }
  local got, scores = net:generate(prompt, o)
  assert.same(want:totable(), got:totable())
  within(case, "generate.logits", scores, expected["generate.logits"])
  local beam = expected["beam.tokens"]
  if beam then
    got = net:generate(prompt, { inputs = extra, max_new_tokens = beam:size(1), stop = false, num_beams = 3 })
    assert.same(beam:totable(), got:totable())
  end
end

local function check_padded(net, case, inputs, expected)
  local mask, want = inputs["padded.attention_mask"], expected["padded.logits"]
  for _, places in ipairs { inputs["padded.position_ids"], false } do -- they follow from the mask, too
    local y = net(inputs["padded.input_ids"], { attention_mask = mask, position_ids = places or nil })
    within(case, "padded.logits", y * mask:unsqueeze(3), want)
  end
end

describe("T.models on transformers' folders", function()
  if #names == 0 then
    return it("agrees with transformers", function() pending("no folders in " .. root) end)
  end

  for _, name in ipairs(names) do
    local dir = root .. "/" .. name
    it("agrees on " .. name, function()
      local case = dofile(dir .. "/case.lua")
      local net = assert(T.models.load(dir))
      local inputs, expected = assert(T.load(dir .. "/inputs.safetensors")),
        assert(T.load(dir .. "/expected.safetensors"))
      if case.dtype ~= "f32" then rounded_frequencies(net, case.dtype) end
      T.no_grad(check_forward, net, case, inputs, expected)
      if inputs["long.input_ids"] then
        within(case, "long.logits", (T.no_grad(net, inputs["long.input_ids"])), expected["long.logits"])
      end
      if inputs["padded.input_ids"] then T.no_grad(check_padded, net, case, inputs, expected) end
      if inputs["generate.prompt"] then check_generate(net, case, inputs, expected) end
      if expected.mel then
        local fe = assert(require("perilune.io.json").read(dir .. "/preprocessor_config.json"))
        local mel = T.models.log_mel(inputs.wave, { bins = fe.feature_size, seconds = fe.chunk_length,
          rate = fe.sampling_rate, n_fft = fe.n_fft, hop = fe.hop_length })
        within(case, "mel", mel:view(expected.mel:shape()), expected.mel)
      end
      if case.finetune then check_finetune(net, case, inputs, expected) end
      if case.lora then check_lora(dir, case, inputs, expected) end
    end)

    it("writes what it read of " .. name, function()
      local net = assert(T.models.load(dir, { dtype = "file" }))
      local out = os.tmpname()
      os.remove(out)
      assert(os.execute('mkdir "' .. out .. '"'))
      assert(T.models.save(net, out))
      local weights = require "perilune.models.weights"
      local was, is = weights.read(dir), weights.read(out)
      os.execute('rm -r "' .. out .. '"')
      for key, t in pairs(was) do
        assert.is_truthy(is[key], key)
        assert.is_true(t:dtype() == is[key]:dtype() and t:equal(is[key]), key)
      end
      for key in pairs(is) do assert.is_truthy(was[key], key) end
    end)
  end
end)

describe("T.models.process", function()
  local dir = root .. "/sampling"
  local chosen = { ["temperature_0.7"] = { temperature = 0.7 }, top_k_5 = { top_k = 5 }, ["top_p_0.9"] = {
    top_p = 0.9 },
    ["top_p_0.3"] = { top_p = 0.3 }, ["min_p_0.05"] = { min_p = 0.05 }, ["typical_0.9"] = { typical_p = 0.9 },
    ["epsilon_0.002"] = { epsilon_cutoff = 0.002 }, ["eta_0.002"] = { eta_cutoff = 0.002 },
    ["repetition_1.3"] = { repetition_penalty = 1.3 }, no_repeat_ngram_3 = { no_repeat_ngram_size = 3 },
    ["min_length_20_eos_2"] = { min_length = 20, eos = 2 },
    chain = { repetition_penalty = 1.3, temperature = 0.7, top_k = 5, top_p = 0.9 } }

  it("does to logits what transformers does", function()
    if not exists(dir .. "/case.lua") then return pending("no folder " .. dir) end
    local case, t = dofile(dir .. "/case.lua"), assert(T.load(dir .. "/sampling.safetensors"))
    chosen.bad_words = { bad_words = case.bad_words }
    for _, name in ipairs(case.processors) do assert.is_truthy(chosen[name], name) end
    for name, o in pairs(chosen) do
      local got, want = T.models.process(t.logits, t.input_ids, o), t["out." .. name]
      assert.is_true(got:isinf():equal(want:isinf()), name)
      local off = (got:nan_to_num { neginf = 0 } - want:nan_to_num { neginf = 0 }):abs()
      assert.is_true(off:le(want:nan_to_num { neginf = 0 }:abs() * 1e-5 + 1e-6):all():item(), name)
    end
  end)
end)

describe("T.models.image_processor", function()
  local dir = root .. "/preprocess"
  it("makes of pictures what transformers makes of them", function()
    if not exists(dir .. "/case.lua") then return pending("no folder " .. dir) end
    local case, t = dofile(dir .. "/case.lua"), assert(T.load(dir .. "/preprocess.safetensors"))
    for _, name in ipairs(case.processors) do
      local look = assert(T.models.image_processor(dir .. "/" .. name))
      for i = 1, #case.sizes do
        local got, want = look(t["image." .. i]):select(1, 1), t[("%s.%d"):format(name, i)]
        assert.same(want:shape(), got:shape())
        local off = (got - want):abs():max():item()
        assert.is_true(off <= 1e-5, ("%s, picture %d: off by %g"):format(name, i, off))
      end
    end
  end)
end)

describe("T.models on GGUF files", function()
  local dir = root .. "/../gguf"
  local index = exists(dir .. "/index.lua") and dofile(dir .. "/index.lua")
  if not index then return it("agrees with transformers", function() pending("no folder " .. dir) end) end
  local list = io.popen('ls "' .. dir .. '" 2>/dev/null')
  for file in list:lines() do
    local name = file:match "^(%a+3?_.*)%.gguf$"
    if name and exists(("%s/%s.safetensors"):format(dir, name)) and not name:find "^blocks" then
      it("agrees on " .. name, function()
        local net = assert(T.models.load(("%s/%s.gguf"):format(dir, name)))
        local t = assert(T.load(("%s/%s.safetensors"):format(dir, name)))
        local logits = T.no_grad(net, t.input_ids)
        local case
        for _, m in ipairs(index.models) do if m.name == name then case = m end end
        within(case, "logits", logits:select(1, 1), t.logits)
        local prompt, want = t.input_ids:narrow(1, 1, 8), t["generate.tokens"]
        local got = net:generate(prompt, { max_new_tokens = want:size(1), stop = false })
        assert.same(want:totable(), got:totable())
        -- one place at a time: products of few rows round what they multiply with to 16 bits
        local cache, rows = T.nn.KVCache(), {}
        T.no_grad(function()
          for i = 1, t.input_ids:size(1) do
            rows[i] = net(t.input_ids:narrow(1, i, 1), { cache = cache }):select(1, 1)
          end
        end)
        local off = (T.cat(rows, 1) - t.logits):abs():max():item()
        assert.is_true(off < 2e-3, "off by " .. off)
      end)
    end
  end
  list:close()

  it("have the numbers of their blocks when these are kept, dequantized and saved", function()
    local path = dir .. "/llama_mixed.gguf"
    local kept, numbers = assert(T.models.load(path)), assert(T.models.load(path, { dequantize = true }))
    assert.equal(0, kept:num_parameters() - 768) -- norms alone
    local out = os.tmpname()
    os.remove(out)
    assert(os.execute('mkdir "' .. out .. '"'))
    assert(T.models.save(kept, out))
    local again = assert(T.models.load(out))
    os.execute('rm -r "' .. out .. '"')
    local want = numbers:state_dict()
    for name, t in pairs(again:state_dict()) do assert.is_true(t:equal(want[name]), name) end
    local ids = T.tensor({ { 3, 4, 5 } }, { dtype = "i64" })
    assert.is_true(kept(ids):allclose((again(ids)), { rtol = 0, atol = 2e-3 }))
  end)

  it("are written as folders, too", function()
    local net = assert(T.models.load(dir .. "/llama3_rope_q8_0.gguf", { dequantize = true }))
    local out = os.tmpname()
    os.remove(out)
    assert(os.execute('mkdir "' .. out .. '"'))
    assert(T.models.save(net, out))
    local again = assert(T.models.load(out))
    os.execute('rm -r "' .. out .. '"')
    local ids = T.tensor({ { 3, 4, 5 } }, { dtype = "i64" })
    assert.is_true(net(ids):equal((again(ids))))
  end)
end)
