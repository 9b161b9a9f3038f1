-- SPDX-License-Identifier: MIT
-- Random tables through T.save and T.load: what was written is what is read, or is refused by name. Keys and texts are
-- those that a format of text could take for its own; tensors are of all dtypes, views, one of them at several places;
-- somewhere an object, which a file cannot hold. PERILUNE_FUZZ_FILES sets how many.

local T = require "perilune"

local random = math.random
local function pick(list) return list[random(#list)] end

local DTYPES = { "f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool" }
local TEXTS = { "a", "a.b", "b", "", "1", "é", "x\0y", "#2", "a#2", "t", "b1", "e", "\n", '"', "%s", "tensor" }
local NUMBERS = { 0, -1, math.maxinteger, math.mininteger, (1 << 53) + 1, 0.0, -0.0, 1 / 0, -1 / 0, 0 / 0, 5e-324,
  0.1, 1.0, 1e15, 1e16, -3.0 }
local OBJECTS = {
  Linear = function() return T.nn.Linear(2, 2) end, SGD = function() return T.optim.SGD({ T.ones(1) }, { lr = 1 }) end,
  GradScaler = function() return T.GradScaler() end, Generator = function() return T.Generator() end,
  TensorDataset = function() return T.data.TensorDataset(T.ones(2)) end,
  Normal = function() return T.distributions.Normal(0, 1) end,
  jit = function() return T.jit(function(x) return x end) end,
  ParameterList = function() return T.nn.ParameterList { T.ones(1) } end,
}
local KINDS = {}
for name in pairs(OBJECTS) do KINDS[#KINDS + 1] = name end
table.sort(KINDS)

local function tensor()
  local shape = {}
  for d = 1, random(0, 3) do shape[d] = random(0, 4) end
  local t = (T.randn(shape) * 10):abs():to(pick(DTYPES))
  local view = random(4)
  if #shape >= 2 and view == 1 then return t:transpose(1, 2) end
  if #shape >= 1 and t:size(1) > 1 and view == 2 then return t:narrow(1, 2, t:size(1) - 1) end
  return t
end

local function key()
  local kind = random(7)
  if kind <= 4 then return pick(TEXTS) end
  return kind == 5 and random(-2, 5) or kind == 6 and random(2) == 1 or random(4) + 0.5
end

local function value(state, depth)
  local kind = random(12)
  if kind <= 3 and depth < 5 then
    local t = {}
    for _ = 1, random(0, 5) do t[key()] = value(state, depth + 1) end
    for i = 1, random(0, 3) do t[i] = value(state, depth + 1) end
    state.tables[#state.tables + 1] = t
    return t
  elseif kind <= 7 then
    if #state.tensors == 0 or random(4) > 1 then state.tensors[#state.tensors + 1] = tensor() end
    return pick(state.tensors)
  end
  return kind <= 9 and pick(NUMBERS) or kind == 10 and random(2) == 1 or random(9) == 1 and "\xff\0" or pick(TEXTS)
end

local function same(a, b, at)
  assert(type(a) == type(b), at)
  if type(a) == "table" then
    for k, v in pairs(a) do same(v, b[k], at .. "/" .. tostring(k)) end
    for k in pairs(b) do assert(a[k] ~= nil, at .. ": more is there") end
  elseif type(a) == "userdata" then
    assert(a:dtype() == b:dtype(), at)
    assert.same(a:shape(), b:shape())
    assert(T.equal(a, b), at)
  elseif type(a) == "number" then
    assert(math.type(a) == math.type(b) and (a ~= a and b ~= b or a == b and 1 / a == 1 / b), at)
  else
    assert(a == b, at)
  end
end

describe("random tables", function()
  it("are read as they were written, and refused with an object anywhere", function()
    local seed = tonumber(os.getenv "PERILUNE_FUZZ_SEED") or 5
    math.randomseed(seed)
    T.manual_seed(seed)
    local path = os.tmpname()
    for case = 1, tonumber(os.getenv "PERILUNE_FUZZ_FILES") or 50 do
      local state, t = { tensors = {}, tables = {} }, {}
      for _ = 1, random(0, 6) do t[key()] = value(state, 1) end
      assert(T.save(path, t))
      same(t, assert(T.load(path)), ("seed %d, case %d"):format(seed, case))
      local kind = pick(KINDS)
      local holder = #state.tables > 0 and pick(state.tables) or t
      local reached = false
      local function look(at)
        reached = reached or at == holder
        for _, v in pairs(at) do if type(v) == "table" then look(v) end end
      end
      look(t)
      if reached then
        holder.object = OBJECTS[kind]()
        local fine, said = pcall(T.save, path, t)
        assert(not fine, kind .. " was saved")
        assert(said:find("object' is", 1, true) and said:find(kind, 1, true), said)
      end
    end
    os.remove(path)
  end)
end)
