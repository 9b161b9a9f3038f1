-- SPDX-License-Identifier: MIT
-- Folders of networks whose weights are a formula's, as spec/fixtures/transformers_models.py writes them.

local T = require "perilune"
local json = require "perilune.io.json"

local M = {}

-- n numbers of mean 0 and deviation 1 of the formula in the fixture's script.
local prime = 1000003
local made = {}
function M.forget() made = {} end
function M.numbers(n, seed)
  local key = n << 16 | seed
  if made[key] then return made[key] end
  local i = T.arange(0, n - 1, { dtype = "i64" }) % prime
  local v = (((i * 5 + 3) * (i + (7 + seed * 31))) % prime * (i + 11) + i * 7919 + seed * 104729) % prime
  v = ((v * 40503 + 77) % prime * (v + 5)) % prime
  made[key] = (v:double() / prime - 0.5) * math.sqrt(12)
  return made[key]
end

function M.shaped(t, shape) return #shape == 0 and t:reshape {} or t:reshape(shape) end

-- The folder of a case.
function M.folder(case, f)
  local dir = os.tmpname()
  os.remove(dir)
  assert(T.core.make_folder and T.core.make_folder(dir) or os.execute('mkdir "' .. dir .. '"'))
  local tensors = {}
  for name, how in pairs(case.tensors) do
    local shape, mean, scale, seed = table.unpack(how)
    local n = 1
    for _, s in ipairs(shape) do n = n * s end
    tensors[name] = seed < 0 and T.zeros(shape, { dtype = "i64" })
      or M.shaped(M.numbers(n, seed) * scale + mean, { table.unpack(shape) }):float()
  end
  assert(T.save(dir .. "/model.safetensors", tensors, { metadata = { format = "pt" } }))
  assert(json.write(dir .. "/config.json", case.config))
  local ok, why = pcall(f, dir)
  os.remove(dir .. "/model.safetensors")
  os.remove(dir .. "/config.json")
  os.remove(dir)
  if not ok then error(why, 0) end
end

--- |got - want| of a sketch in shares of the tensor's length; `floor` at least.
function M.off(t, want, floor)
  t = t:detach():double():flatten()
  local got = { t:square():sum():sqrt():item() }
  for k = 0, 1 do got[k + 2] = (t * M.numbers(t:numel(), 900 + k)):sum():item() end
  local most = 0
  for k, v in ipairs(want) do
    local d = math.abs(got[k] - v) / math.max(want[1], floor)
    if d > most or d ~= d then most = d end
  end
  return most
end

function M.plain(v)
  if type(v) ~= "table" then return v end
  local out = {}
  for i, x in ipairs(v) do out[i] = M.plain(x) end
  return out
end

return M
