-- SPDX-License-Identifier: MIT
-- Folders that the packages of GPTQ and AWQ write, made here bit by bit as their formats are described: weights drawn
-- at random are the same numbers after reading, whatever bits, groups, zeros and order; what does not fit is told.

local T = require "perilune"
local json = require "perilune.io.json"
local folder = require "spec.support.folder"

local function signed(word) return word >= 1 << 31 and word - (1 << 32) or word end

-- Rows of numbers as streams of bits in words, along the rows.
local function streams(rows, bits)
  local out = {}
  for r, row in ipairs(rows) do
    local words = {}
    for k, v in ipairs(row) do
      for b = 0, bits - 1 do
        local at = (k - 1) * bits + b
        local w = at // 32 + 1
        words[w] = (words[w] or 0) | (v >> b & 1) << at % 32
      end
    end
    for w, v in ipairs(words) do words[w] = signed(v) end
    out[r] = words
  end
  return T.tensor(out, { dtype = "i32" })
end

local PLACES = { 0, 2, 4, 6, 1, 3, 5, 7 } -- the column in nibble 1, 2, … of a word of AWQ
local function pairs_of_awq(rows)
  local out = {}
  for r, row in ipairs(rows) do
    out[r] = {}
    for w = 1, #row // 8 do
      local word = 0
      for n, place in ipairs(PLACES) do word = word | row[8 * (w - 1) + place + 1] << 4 * (n - 1) end
      out[r][w] = signed(word)
    end
  end
  return T.tensor(out, { dtype = "i32" })
end

local function grid(n, m, f)
  local out = {}
  for i = 1, n do
    out[i] = {}
    for j = 1, m do out[i][j] = f(i, j) end
  end
  return out
end
local function turned(rows) return grid(#rows[1], #rows, function(i, j) return rows[j][i] end) end

-- A weight [from, to] drawn for the settings o → its four tensors, its numbers [from, to].
local function packed(o, from, to)
  local size = o.group_size == -1 and from or o.group_size
  local groups, most = from // size, (1 << o.bits) - 1
  local q = grid(from, to, function() return math.random(0, most) end)
  local z = grid(groups, to, function() return o.sym and (most + 1) // 2 or math.random(0, most) end)
  local s = T.tensor(grid(groups, to, function() return math.random(1, 2000) / 2 ^ 16 end)):to "f16"
  local order = {}
  for i = 1, from do order[i] = (i - 1) // size end
  if o.shuffled then
    for i = from, 2, -1 do
      local j = math.random(i)
      order[i], order[j] = order[j], order[i]
    end
  end
  local scale = s:to("f64"):totable()
  local w = T.tensor(grid(from, to, function(i, j)
    local g = order[i] + 1
    return (q[i][j] - z[g][j]) * scale[g][j]
  end), { dtype = "f64" })
  if o.awq then return { qweight = pairs_of_awq(q), qzeros = pairs_of_awq(z), scales = s }, w end
  local stored = grid(groups, to, function(g, j) return o.v2 and z[g][j] or (z[g][j] - 1) & most end)
  return { qweight = streams(turned(q), o.bits):t():contiguous(), qzeros = streams(stored, o.bits), scales = s,
    g_idx = (o.shuffled or o.g_idx) and T.tensor(order, { dtype = "i32" }) or nil }, w
end

local tiny = {
  Llama = { vocab_size = 16, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 1, num_attention_heads = 2,
    max_position_embeddings = 16 },
  Mixtral = { vocab_size = 16, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 1, num_attention_heads = 2,
    num_key_value_heads = 1, num_local_experts = 2, max_position_embeddings = 16 },
  GPT2 = { vocab_size = 16, n_embd = 64, n_layer = 1, n_head = 2, n_positions = 16 },
}

-- A folder of such a network → its tensors, the network with the numbers.
local function write(dir, kind, o)
  local net = T.models[kind](tiny[kind])
  assert(T.models.save(net, dir))
  local tensors, new, numbers = assert(T.load(dir .. "/model.safetensors")), {}, {}
  for name, t in pairs(tensors) do
    local short = name:match "^(.*)%.weight$"
    if short and t:dim() == 2 and not name:find "embed" and not name:find "wt?p?e%." and not name:find "lm_head"
      and not name:find "gate%.weight" then
      local from, to = t:size(2), t:size(1)
      if kind == "GPT2" then from, to = to, from end
      local part, w = packed(o, from, to)
      for key, v in pairs(part) do new[short .. "." .. key] = v end
      numbers[name] = kind == "GPT2" and w or w:t():contiguous()
    else
      new[name], numbers[name] = t:clone(), t:to "f64"
    end
  end
  assert(T.save(dir .. "/model.safetensors", numbers))
  local plain = assert(T.models.load(dir, { dtype = "f64" }))
  assert(T.save(dir .. "/model.safetensors", new))
  local c = assert(json.read(dir .. "/config.json"))
  c.quantization_config = o.awq and { quant_method = "awq", bits = 4, group_size = o.group_size, version = "GEMM",
    zero_point = true } or { quant_method = "gptq", bits = o.bits, group_size = o.group_size, sym = o.sym,
    desc_act = o.shuffled, checkpoint_format = o.v2 and "gptq_v2" or nil }
  assert(json.write(dir .. "/config.json", c))
  return new, plain
end

local function weights(net)
  local out = {}
  for name, m in net:named_modules() do
    local w = rawget(m, "format") and m:numbers "f64" or m._parameters.weight
    if w then out[name] = (rawget(m, "format") and m.transposed and w:t() or w):detach():to "f64" end
  end
  return out
end

describe("folders of GPTQ and AWQ", function()
  it("give the numbers that they say", function()
    math.randomseed(7)
    for seed = 1, 14 do
      local awq = seed % 3 == 0
      local o = { awq = awq, bits = awq and 4 or ({ 2, 3, 4, 8, 4 })[1 + seed % 5], v2 = seed % 2 == 0,
        sym = seed % 4 < 2, group_size = ({ 32, 64, -1, 16 })[1 + seed % 4], shuffled = not awq and seed % 5 == 1,
        g_idx = seed % 3 == 1 }
      local kind = ({ "Llama", "GPT2", "Mixtral" })[1 + seed % 3]
      if o.group_size == 64 then o.group_size = 32 end -- 96 is no multiple
      folder(function(dir)
        local _, plain = write(dir, kind, o)
        local want, ids = weights(plain), T.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = "i64" })
        local y = T.no_grad(plain, ids)
        for _, dequantize in ipairs { false, true } do
          local net = assert(T.models.load(dir, { dtype = "f64", dequantize = dequantize }))
          local got, blocks = weights(net), 0
          for name, w in pairs(want) do
            assert.is_true(got[name]:equal(w), ("%s of %s, %s"):format(name, kind, json.encode(o)))
          end
          for _, m in ipairs(net:modules()) do if rawget(m, "format") then blocks = blocks + 1 end end
          local whole = o.group_size ~= 16 and not o.shuffled and not (o.bits == 8 and not o.sym)
          if kind ~= "Mixtral" then assert.equal(whole and not dequantize, blocks > 0, json.encode(o)) end
          assert.is_true((T.no_grad(net, ids) - y):abs():max():item() < 1e-5 * (1 + y:abs():max():item()))
          os.execute(("mkdir -p '%s/again'"):format(dir))
          assert(T.models.save(net, dir .. "/again", { dtype = "f32" }))
          assert.is_nil(json.read(dir .. "/again/config.json").quantization_config)
          local again = weights(assert(T.models.load(dir .. "/again", { dtype = "f64" })))
          for name, w in pairs(want) do
            assert.is_true((again[name] - w):abs():max():item() <= 1e-6 * (1 + w:abs():max():item()), name)
          end
        end
      end)
    end
  end)

  it("say on stderr which weights take more memory than in the file", function()
    local said, stderr = {}, io.stderr
    for _, o in ipairs { { bits = 4, sym = true, group_size = 32 }, { bits = 4, sym = true, group_size = 16 } } do
      folder(function(dir)
        write(dir, "Llama", o)
        rawset(io, "stderr", { write = function(_, text) said[#said + 1] = text end })
        local ok, net = pcall(T.models.load, dir)
        rawset(io, "stderr", stderr)
        assert(ok and net)
      end)
    end
    assert.equal(1, #said)
    assert.truthy(said[1]:find("packed weights have no blocks here and are numbers", 1, true))
  end)
  it("say what does not fit", function()
    math.randomseed(8)
    local Q = "model.layers.0.self_attn.q_proj"
    local function refused(change, part)
      folder(function(dir)
        local tensors = write(dir, "Llama", { bits = 4, group_size = 32, g_idx = true, sym = true })
        local c = assert(json.read(dir .. "/config.json"))
        change(tensors, c.quantization_config, c)
        assert(T.save(dir .. "/model.safetensors", tensors))
        assert(json.write(dir .. "/config.json", c))
        local net, why, code = T.models.load(dir)
        assert.is_nil(net)
        assert.is_string(code)
        assert.truthy(why:find(part, 1, true), why)
      end)
    end
    refused(function(t) t[Q .. ".scales"] = nil end, "'" .. Q .. ".scales' is missing, expected floating [2, 64]")
    refused(function(t) t[Q .. ".qzeros"] = nil end, ".qzeros' is missing, expected i32 [2, 8]")
    refused(function(t) t[Q .. ".qzeros"] = T.ones({ 2, 7 }, { dtype = "i32" }) end, ".qzeros' is i32 [2, 7], expected")
    refused(function(t) t[Q .. ".qweight"] = T.ones(8, 64) end, ".qweight' is f32 [8, 64], expected i32")
    refused(function(t) t[Q .. ".qweight"] = T.ones({ 4, 64 }, { dtype = "i32" }) end, "floating [1, 64]")
    refused(function(t) t[Q .. ".g_idx"] = T.ones({ 64 }, { dtype = "i32" }) * 2 end, "numbers from 2 to 2, and there")
    refused(function(t) t[Q .. ".g_idx"] = T.ones({ 63 }, { dtype = "i32" }) end, ".g_idx' is i32 [63], expected i32")
    refused(function(t) t[Q .. ".weight"] = T.ones(64, 64) end, "is there beside")
    refused(function(t)
      for _, key in ipairs { "qweight", "qzeros", "scales", "g_idx" } do t[Q .. "." .. key] = nil end
    end, "missing: " .. Q .. ".weight")
    refused(function(_, c) c.group_size = 64 end,
      ".scales' is f16 [3, 64], expected floating [2, 64], for groups of 64 of 96")
    refused(function(_, c) c.group_size = 0 end, "group_size must be positive or -1")
    refused(function(_, c) c.bits = 5 end, "bits = 5 is not supported")
    refused(function(_, c) c.bits = "4" end, "bits must be integer")
    refused(function(_, c) c.bits = 8 end, "expected")
    refused(function(_, c) c.quant_method = "bitsandbytes" end, "quant_method = bitsandbytes is not supported; gptq")
    refused(function(_, c) c.checkpoint_format = "marlin" end, "checkpoint_format = marlin is not supported")
    refused(function(_, c) c.quant_method, c.version = "awq", "gemv" end, "version = gemv is not supported; gemm is")
    refused(function(_, c) c.quant_method = "awq" end, "expected")
    refused(function(_, _, c) c.quantization_config = "gptq" end, "must be an object")
  end)
end)
