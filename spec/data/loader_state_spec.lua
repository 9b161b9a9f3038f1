-- SPDX-License-Identifier: MIT
-- DataLoader:state_dict: another loader gives the batches that would have followed, and the passes behind them,
-- whatever makes the order, behind any batch.

local T = require "perilune"
local D = T.data

local function text(x) return table.concat(x:flatten():totable(), ",") end
local weights = {}
for i = 1, 20 do weights[i] = i % 7 + 0.5 end

-- A sampler of a script's own, whose orders nobody can make again.
local turn = 0
local function own(n, method, make)
  local s = setmetatable({}, { __len = function() return n end })
  s[method] = function()
    turn = turn + 1
    return make(turn)
  end
  return s
end

local kinds = {
  plain = function() return { batch_size = 3 } end,
  shuffle = function() return { batch_size = 3, shuffle = true } end,
  seed = function() return { batch_size = 3, shuffle = true, seed = 5, drop_last = true } end,
  generator = function() return { batch_size = 3, shuffle = true, generator = T.Generator(4) } end,
  random = function() return { batch_size = 3, sampler = D.RandomSampler(20) } end,
  ["random, a seed"] = function() return { batch_size = 3, sampler = D.RandomSampler(20, { seed = 2 }) } end,
  replacement = function()
    return { batch_size = 3, sampler = D.RandomSampler(20, { seed = 2, replacement = true, num_samples = 25 }) }
  end,
  weighted = function() return { batch_size = 4, sampler = D.WeightedRandomSampler(weights, 17) } end,
  ["weighted, a seed"] = function()
    return { batch_size = 4, sampler = D.WeightedSampler(weights, 17, { seed = 1 }) }
  end,
  distributed = function()
    return { batch_size = 2, sampler = D.DistributedSampler(20, { num_replicas = 2, rank = 1 }) }
  end,
  list = function() return { batch_size = 4, sampler = { 5, 4, 3, 2, 1, 9, 8 } } end,
  batches = function() return { batch_sampler = D.BatchSampler(D.RandomSampler(20, { seed = 3 }), 3) } end,
  ["batches, no seed"] = function() return { batch_sampler = D.BatchSampler(D.RandomSampler(20), 3, true) } end,
  ["one's own"] = function()
    return { batch_size = 2, sampler = own(9, "indices", function(k)
      local order = {}
      for i = 1, 9 do order[i] = (i * k * 7) % 20 + 1 end
      return order
    end) }
  end,
  ["one's own batches"] = function()
    return { batch_sampler = own(5, "batches", function(k)
      local out = {}
      for i = 1, 5 do
        out[i] = {}
        for j = 1, i % 3 + 1 do out[i][j] = (i * 3 + j * k) % 20 + 1 end
      end
      return out
    end) }
  end,
  stream = function() return { batch_size = 3 } end,
}

local datasets = {
  tensors = function() return D.TensorDataset(T.arange(20)) end,
  ["samples that draw"] = function()
    return D.MapDataset(D.TensorDataset(T.arange(20):float()), function(x) return x + T.rand(1) end)
  end,
}

describe("the state of a DataLoader", function()
  local path = os.tmpname()
  os.remove(path)
  path = path .. ".safetensors"
  teardown(function() os.remove(path) end)

  for name, options in pairs(kinds) do
    it("says where a pass stands: " .. name, function()
      for what, dataset in pairs(datasets) do
        if name == "stream" then
          dataset = function()
            return D.IterableDataset { iter = function()
              local i = 0
              return function()
                i = i + 1
                return i <= 20 and T.tensor(i) or nil
              end
            end }
          end
        end
        for stop = 0, 7 do
          T.manual_seed(7)
          local loader, k, state, rng, want = D.DataLoader(dataset(), options()), 0, nil, nil, {}
          for _ in loader do k = k + 1 end -- a pass before
          if stop == 0 then state, rng = loader:state_dict(), T.get_rng_state() end
          if stop > 0 and stop <= k then
            k = 0
            for x in loader do
              k = k + 1
              if state then want[#want + 1] = text(x) end
              if k == stop then state, rng = loader:state_dict(), T.get_rng_state() end
            end
          end
          if state then
            assert(T.save(path, state))
            state = T.load(path)
            local later = not name:find "own"
            if later then for x in loader do want[#want + 1] = text(x) end end
            local opts = options()
            if stop == 4 and name ~= "stream" and what == "tensors" then opts.workers = 2 end
            local other, got = D.DataLoader(dataset(), opts):load_state_dict(state), {}
            assert.same(state.batch, other:state_dict().batch)
            T.set_rng_state(rng)
            if stop > 0 then for x in other do got[#got + 1] = text(x) end end
            if later then for x in other do got[#got + 1] = text(x) end end
            assert.same(want, got, what .. ", behind batch " .. stop)
            other:close()
          end
        end
      end
    end)
  end

  it("is refused where the loader is another one", function()
    local loader = D.DataLoader(T.arange(6), { batch_size = 2, shuffle = true })
    local state
    for _ in loader do state = state or loader:state_dict() end
    local function refused(what, data, opts, change)
      local s = {}
      for key, v in pairs(state) do s[key] = v end
      for key, v in pairs(change or {}) do s[key] = v end
      assert.error_matches(function() D.DataLoader(data, opts):load_state_dict(s) end, what)
    end
    local same = { batch_size = 2, shuffle = true }
    refused("of 6 samples in batches of 2; this loader has 7 in batches of 2", T.arange(7), same)
    refused("in batches of 3", T.arange(6), { batch_size = 3 })
    refused("behind batch 9; a pass has 3", T.arange(6), same, { batch = 9 })
    refused("without a generator", T.arange(6), { batch_size = 2, shuffle = true, generator = T.Generator(1) })
    refused("batch must be", T.arange(6), same, { batch = "1" })
    refused("state", T.arange(6), same, { rng = "x" })
    assert.error_matches(function() D.DataLoader(T.arange(6)):load_state_dict {} end, "must be")
    -- Whatever makes the order: no two of these take the other's state.
    local function batches(sampler, size) return { batch_sampler = D.BatchSampler(sampler, size) } end
    local orders = { {}, { shuffle = true }, { shuffle = true, seed = 1 }, { shuffle = true, seed = 2 }, { seed = 1 },
      { sampler = D.SequentialSampler(6) }, { sampler = { 6, 5, 4, 3, 2, 1 } }, { sampler = D.RandomSampler(6) },
      { sampler = D.RandomSampler(6, { seed = 1 }) }, { sampler = D.RandomSampler(6, { replacement = true }) },
      { sampler = D.RandomSampler(6, { num_samples = 5 }) }, { sampler = D.WeightedSampler(T.ones(6), 6) },
      { sampler = D.WeightedSampler(T.ones(6), 6, { replacement = false }) }, batches(D.RandomSampler(6), 2),
      batches(D.RandomSampler(6), 3), batches(D.SequentialSampler(6), 2),
      { sampler = D.DistributedSampler(6, { num_replicas = 2, rank = 0 }) },
      { sampler = D.DistributedSampler(6, { num_replicas = 2, rank = 0, shuffle = false }) },
      { sampler = own(6, "indices", function() return { 1, 2, 3, 4, 5, 6 } end) } }
    for i, first in ipairs(orders) do
      local one = D.DataLoader(T.arange(6), first)
      one:iter()()
      local s = one:state_dict()
      for j, second in ipairs(orders) do
        local other = D.DataLoader(T.arange(6), second)
        local ok, err = pcall(other.load_state_dict, other, s)
        assert.equal(i == j, ok, ("%d in %d: %s"):format(i, j, tostring(err)))
      end
    end
    local rank = D.DataLoader(T.arange(6), { sampler = D.DistributedSampler(6, { num_replicas = 2, rank = 1 }) })
    local zero = D.DataLoader(T.arange(6), { sampler = D.DistributedSampler(6, { num_replicas = 2, rank = 0 }) })
    zero:iter()()
    rank:load_state_dict(zero:state_dict())
    assert.error_matches(function() D.DataLoader(T.arange(6), { generator = 1 }) end, "must be a T.Generator")
    assert.error_matches(function() D.DataLoader(T.arange(6), { generator = T.Generator(1), seed = 1 }) end, "not both")
  end)

  local function of(ds, opts) return D.DataLoader(ds, opts or { batch_size = 3 }) end
  local function rest(loader, k)
    local out = {}
    for x in loader do out[#out + 1] = text(x) end
    return table.move(out, (k or 0) + 1, #out, 1, {})
  end

  it("is that of a pass which has begun and given nothing", function()
    for _, make in ipairs { kinds.shuffle, kinds.generator, kinds.random, kinds.batches } do
      T.manual_seed(3)
      local loader, want = of(T.arange(20), make()), {}
      local step = loader:iter()
      local state, rng = loader:state_dict(), T.get_rng_state()
      for x in step do want[#want + 1] = text(x) end
      T.set_rng_state(rng)
      assert.same(want, rest(of(T.arange(20), make()):load_state_dict(state)))
    end
  end)

  it("stays where the pass that it resumes cannot be made", function()
    local function drawn(sampler) return { batch_size = 3, sampler = sampler } end
    local broken = false
    local function careless()
      local s = D.RandomSampler(20, { seed = 1 })
      local indices = s.indices
      function s:indices()
        if broken then error("a file is gone", 0) end
        return indices(self)
      end
      return s
    end
    local loader, state = of(T.arange(20), drawn(careless())), nil
    local want = rest(loader, 3)
    local again = of(T.arange(20), drawn(careless()))
    for _ in again do
      state = again:state_dict()
      if state.batch == 3 then break end
    end
    local other = of(T.arange(20), drawn(careless())):load_state_dict(state)
    broken = true
    assert.error_matches(function() other:iter()() end, "a file is gone")
    assert.equal(3, other:state_dict().batch)
    broken = false
    assert.same(want, rest(other))
  end)

  it("of a stream that draws is of what was drawn, and leaves the global generator alone", function()
    local function stream(n)
      return D.IterableDataset { iter = function()
        local i = 0
        return function()
          i = i + 1
          return i <= n and T.rand(1) + i or nil
        end
      end }
    end
    T.manual_seed(5)
    local loader, state, rng, want = of(stream(20)), nil, nil, {}
    for x in loader do
      if state then want[#want + 1] = text(x) end
      if not state then state, rng = loader:state_dict(), T.get_rng_state() end
    end
    T.set_rng_state(rng)
    assert.same(want, rest(of(stream(20)):load_state_dict(state)))
    assert.error_matches(function() rest(of(stream(0)):load_state_dict(state)) end, "the dataset has 0 now")
  end)

  it("is not moved by a sampler that hands out the table it counts in", function()
    local function counting()
      local s = own(9, "indices", function() end)
      s.now = { pass = 0 }
      function s:state_dict() return self.now end
      function s:load_state_dict(state) self.now = { pass = state.pass } end
      function s:indices()
        self.now.pass = self.now.pass + 1
        local order = {}
        for i = 1, 9 do order[i] = (i * 7 * self.now.pass) % 20 + 1 end
        return order
      end
      return { batch_size = 2, sampler = s }
    end
    local loader, state = of(T.arange(20), counting()), nil
    local want = rest(of(T.arange(20), counting()), 2)
    for _ in loader do
      state = loader:state_dict()
      if state.batch == 2 then break end
    end
    assert.same(want, rest(of(T.arange(20), counting()):load_state_dict(state)))
  end)

  it("has a generator of its own, which leaves the global one where it is", function()
    local function orders(loader)
      local out = {}
      for _ = 1, 2 do for x in loader do out[#out + 1] = text(x) end end
      return out
    end
    T.manual_seed(1)
    local before = T.get_rng_state()
    local first = orders(D.DataLoader(T.arange(9), { shuffle = true, generator = T.Generator(3) }))
    assert.equal(before, T.get_rng_state())
    assert.same(first, orders(D.DataLoader(T.arange(9), { sampler = D.RandomSampler(9), generator = T.Generator(3) })))
    assert.not_same(first, orders(D.DataLoader(T.arange(9), { shuffle = true, generator = T.Generator(4) })))
  end)
end)
