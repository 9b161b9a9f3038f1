-- SPDX-License-Identifier: MIT
--- Checkpoints that the packages of GPTQ and AWQ wrote: qweight, qzeros, scales and g_idx in the place of each weight.
-- @module perilune.io.packed_weights
local T = require "perilune"
local core = require "perilune.core"
local gguf = require "perilune.io.gguf"
local json = require "perilune.io.json"

local M = {}

local function fault(fmt, ...) error({ message = fmt:format(...), code = "format" }, 0) end
local function unsupported(fmt, ...) error({ message = fmt:format(...), code = "unsupported" }, 0) end

local function dims(t) return ("%s [%s]"):format(t:dtype(), table.concat(t:shape(), ", ")) end

-- A field of quantization_config; nil where it says nothing.
local function field(path, q, name, kind)
  local v = q[name]
  if v == nil or v == json.null then return nil end
  if kind == "integer" and math.type(v) == "float" then v = math.tointeger(v) or v end
  if (math.type(v) == "integer" and "integer" or type(v)) ~= kind then
    fault("%s: quantization_config: %s must be %s, got %s", path, name, kind, tostring(v))
  end
  return v
end

local function one_of(path, name, v, list)
  for _, known in ipairs(list) do
    if v == known then return v end
  end
  unsupported("%s: quantization_config: %s = %s is not supported; %s %s", path, name, tostring(v),
    table.concat(list, ", "), #list == 1 and "is" or "are")
end

-- What quantization_config says → { method, bits, group_size, awq, less_one }
local function read(path, q)
  if type(q) ~= "table" or json.is_array(q) then fault("%s: quantization_config must be an object", path) end
  local method = one_of(path, "quant_method", field(path, q, "quant_method", "string"), { "gptq", "awq" })
  local awq = method == "awq"
  local bits = field(path, q, "bits", "integer") or field(path, q, "w_bit", "integer")
  one_of(path, "bits", bits, awq and { 4 } or { 2, 3, 4, 8 })
  local size = field(path, q, "group_size", "integer") or field(path, q, "q_group_size", "integer") or 128
  if size < 1 and size ~= -1 then
    fault("%s: quantization_config: group_size must be positive or -1, got %d", path, size)
  end
  if awq then
    one_of(path, "version", (field(path, q, "version", "string") or "gemm"):lower(), { "gemm" })
    return { bits = bits, size = size, awq = true }
  end
  local format = one_of(path, "checkpoint_format", field(path, q, "checkpoint_format", "string") or "gptq",
    { "gptq", "gptq_v2" })
  if field(path, q, "is_marlin_format", "boolean") then
    unsupported("%s: quantization_config: is_marlin_format is not supported", path)
  end
  return { bits = bits, size = size, less_one = format == "gptq" }
end

local function plain(t) return t:to("cpu"):contiguous() end

-- One weight: its blocks, or numbers.
local function weight(set, file, name, part, numbers)
  local function wrong(key, t, wanted)
    fault("%s: '%s.%s' is %s, expected %s", file, name, key, t and dims(t) or "missing", wanted)
  end
  local function has(key, dtype, shape)
    local t = part[key]
    local wanted = ("%s [%s]"):format(dtype, table.concat(shape, ", "))
    if not t then wrong(key, nil, wanted) end
    if t:dtype() ~= dtype or t:dim() ~= #shape then wrong(key, t, wanted) end
    for d, n in ipairs(shape) do if math.type(n) == "integer" and t:size(d) ~= n then wrong(key, t, wanted) end end
    return t
  end
  local bits, q, s = set.bits, part.qweight, part.scales
  has("qweight", "i32", { "rows", "columns" })
  local from = set.awq and q:size(1) or q:size(1) * 32 // bits
  local to = set.awq and q:size(2) * 8 or q:size(2)
  if from * bits % 32 ~= 0 or to * bits % 32 ~= 0 or from == 0 or to == 0 then
    wrong("qweight", q, ("whole words of %d-bit numbers"):format(bits))
  end
  local size = set.size == -1 and from or set.size
  local groups = (from + size - 1) // size
  if not s or not s:is_floating_point() or s:dim() ~= 2 or s:size(1) ~= groups or s:size(2) ~= to then
    wrong("scales", s, ("floating [%d, %d], for groups of %d of %d inputs"):format(groups, to, size, from))
  end
  has("qzeros", "i32", { groups, to * bits // 32 })
  if part.g_idx then has("g_idx", "i32", { from }) end
  local idx = part.g_idx
  if idx and (idx:min():item() < 0 or idx:max():item() >= groups) then
    fault("%s: '%s.g_idx' has numbers from %d to %d, and there are %d groups", file, name,
      idx:min():item(), idx:max():item(), groups)
  end
  local out, format = core.packed_weights(plain(q), plain(part.qzeros), plain(s:to "f32"), idx and plain(idx),
    { bits, from, to, size, set.awq and 1 or 0, set.less_one and 1 or 0, numbers and 1 or 0 })
  return format and gguf.blocks(out, format, { to, from }) or out
end

local KEYS = { "qweight", "qzeros", "scales", "g_idx" }

--- Exchanges the packed weights among the tensors of a folder for blocks of ggml's formats, which hold the same
-- numbers, or for numbers where none does or with numbers = true. path: the config's. → names of the weights, which are
-- [out, in] whatever the layer has. Weights that become numbers without being asked to are told on stderr, as they take
-- up to eight times the memory.
function M.unpack(path, quantization, tensors, from, numbers)
  local set, list, names = read(path, quantization), {}, {}
  local wide, packed, elements = 0, 0, 0
  for name in pairs(tensors) do
    local short = name:match "^(.*)%.qweight$"
    if short then list[#list + 1] = short end
  end
  if #list == 0 then fault("%s: quantization_config, but no tensor is called … .qweight", path) end
  table.sort(list)
  T.no_grad(function()
    for _, short in ipairs(list) do
      local part, file = {}, from[short .. ".qweight"]
      local bytes = 0
      for _, key in ipairs(KEYS) do
        local name = short .. "." .. key
        local t = tensors[name]
        if t then bytes = bytes + t:numel() * t:element_size() end
        part[key], tensors[name], from[name] = tensors[name], nil, nil
      end
      local name = short .. ".weight"
      if tensors[name] then fault("%s: '%s' is there beside '%s.qweight'", file, name, short) end
      local w = weight(set, file, short, part, numbers)
      tensors[name], from[name] = w, file
      names[name] = true
      if not numbers and T.is_tensor(w) and w:is_floating_point() then
        wide, packed, elements = wide + 1, packed + bytes, elements + w:numel()
      end
    end
  end)
  if wide > 0 then
    io.stderr:write(("warning: %s: %d of %d packed weights have no blocks here and are numbers, of f32 %.1f MB in "
      .. "place of %.1f MB: inputs in another order (desc_act), groups that are no multiple of 32 inputs, or 8 bits "
      .. "with a zero other than 128; quantize without these, or T.quantize the network once it is loaded\n"):format(
      path, wide, #list, elements * 4e-6, packed * 1e-6))
  end
  return names
end

return M
