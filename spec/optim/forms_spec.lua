-- SPDX-License-Identifier: MIT
-- Every optimizer that there is, with options drawn at random, in every form that trains: as the script is written,
-- under T.jit, as a saved graph that goes on without the script, and as the script that takes on what such a graph came
-- to; one step or three in a function. An optimizer that a form lacks is on the list
-- below and is refused by name; one that is not listed must have the bits of the script.

local T = require "perilune"
local fails = require("spec.support.near").fails
local nn, optim = T.nn, T.optim

-- Their steps do not fit a graph: what they do depends on the step (SOAP refreshes its bases in some), or on values.
local BEHIND = { SOAP = true }
local CLOSURE = { LBFGS = true }

-- The optimizers: what optim holds that makes objects with a step.
local function inventory()
  local names = {}
  for name, class in pairs(optim) do
    if type(class) == "table" and rawget(class, "settings") and not CLOSURE[name] then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local SHAPES = { { 6, 5 }, { 5 }, { 3, 2, 4 }, {}, { 0, 3 }, { 70, 64 } }

local function wave(shape, k)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 0, n - 1 do list[i + 1] = ((i * 37 + k * 61 + 11) % 97 - 48) / 32 end
  if n == 0 then return T.zeros(shape) end
  return T.tensor(list):view(shape)
end

-- A value for each setting, unless its default is kept.
local function draw(class, random)
  local given = {}
  local values = {
    lr = function() return ({ 0.5, 0.1, 0.01 })[random(3)] end,
    betas = function() return { 0.5 + random(4) / 10, 0.8 + random(19) / 100 } end,
    weight_decay = function() return random(3) / 20 end,
    momentum = function() return 0.4 + random(5) / 10 end,
    eps = function(v) return type(v) == "number" and 1e-3 or { random(2) == 1 and 1e-6, 1e-2 } end,
    state_dtype = function() return ({ "f32", "bf16", "i8" })[random(3)] end,
    warmup_steps = function() return random(6) end,
    momentum_decay = function() return random(9) / 50 end,
    precondition_frequency = function() return 2 end,
    d0 = function() return 1e-3 end,
    growth_rate = function() return 1.5 end,
  }
  local booleans = { "maximize", "amsgrad", "centered", "nesterov", "decoupled_weight_decay", "bias_correction" }
  for _, key in ipairs(booleans) do values[key] = function() return random(2) == 1 end end
  for _, s in ipairs(class.settings) do
    if values[s[1]] and (random(2) == 1 or s[1] == "lr") then given[s[1]] = values[s[1]](s[2]) end
    if given[s[1]] ~= nil and s[3](given[s[1]]) ~= true then given[s[1]] = nil end
  end
  if given.nesterov and not given.momentum then given.nesterov = nil end
  if given.centered and given.state_dtype then given.state_dtype = nil end
  return given
end

local function bits_of(list)
  local out = {}
  for i, t in ipairs(list) do out[i] = t:detach():contiguous():to_string() end
  return table.concat(out, "\n")
end

-- n steps from the same start: losses, and the parameters in the end. form: "written", "jit", "graph" (the script under
-- T.jit for some steps, then the graph of the last one, saved and loaded), "back" (the same, and the script again from
-- back_at on, compiled or, with how.plain, not). inner: steps in one call. away: steps in which a parameter has no
-- gradient. saved: the step behind which its state goes into new objects.
local function train(name, opts, form, how)
  local params, path = {}, os.tmpname()
  for j, shape in ipairs(SHAPES) do
    if name ~= "Muon" or #shape == 2 and j > 0 and shape[1] > 0 then
      params[#params + 1] = wave(shape, j):requires_grad_()
    end
  end
  local opt
  local scaler = how.scaled and T.GradScaler { init_scale = 4, growth_interval = 3 }
  local function make()
    local last = { params = { params[#params] }, lr = how.second_lr }
    local first = table.move(params, 1, #params - 1, 1, {})
    opt = optim[name]({ { params = first }, last }, opts)
  end
  make()
  local function once(x, all)
    opt:zero_grad()
    local loss = 0
    for j, p in ipairs(params) do
      if all or j ~= 2 then loss = loss + ((p - 0.1 * j) ^ 2 * x):sum() + (p:sin() * x):sum() end
    end
    if scaler then scaler:scale(loss):backward() else loss:backward() end
    if how.clip then nn.utils.clip_grad_norm_(params, 2) end
    if scaler then scaler:step(opt) else opt:step() end
    if scaler then scaler:update() end
    return loss:detach()
  end
  local function script(x, all)
    for _ = 2, how.inner or 1 do once(x, all) end
    return once(x, all)
  end
  local step = form == "written" and script or T.jit(script, { max_traces = 32, check = how.check })
  local out, graph = {}, nil
  for t = 1, how.steps do
    local x = T.tensor(t == how.inf_at and math.huge or ((t * 7) % 5 + 1) / 4)
    if t == how.rate_at then
      for _, group in ipairs(opt.param_groups) do
        group.lr = group.lr * 0.5
        for key, v in pairs(how.change or {}) do group[key] = v end
      end
    end
    if graph and t == how.back_at then
      assert(T.save_graph(path, graph))
      assert(step:graph():load_state(path))
      if how.plain then step = script end
      graph = nil
    end
    if (form == "graph" or form == "back") and t == how.graph_at then
      assert(T.save_graph(path, step:graph()))
      graph = assert(T.load_graph(path))
    end
    if graph then
      out[#out + 1] = graph:run { x1 = x }[1]
    elseif how.own and how.own[t] and form == "jit" then
      out[#out + 1] = step:graph():run { x1 = x }[1]
    else
      out[#out + 1] = step(x, not how.away[t])
    end
    if t == how.saved then
      local state = opt:state_dict()
      for j, p in ipairs(params) do params[j] = p:detach():clone():requires_grad_() end
      make()
      opt:load_state_dict(state)
      step = form == "written" and script or T.jit(script, { max_traces = 32 })
    end
  end
  os.remove(path)
  os.remove(path .. ".safetensors")
  if not graph then
    if opt.eval then opt:eval() end
    for _, p in ipairs(params) do out[#out + 1] = p end
  end
  for _, p in ipairs(params) do p.grad = nil end
  return out
end

local function read(path)
  local f <close> = assert(io.open(path, "rb"))
  return f:read "a"
end

describe("optimizers in every form:", function()
  -- Weight decay that a saved graph was made without counts as if the script had set it.
  it("a setting of a saved graph's steps is read by all that have it", function()
    local n = 0
    for _, name in ipairs(inventory()) do
      local has = false
      for _, s in ipairs(optim[name].settings) do has = has or s[1] == "weight_decay" end
      if has and not BEHIND[name] then
        local p, path = wave({ 4, 3 }, 1):requires_grad_(), os.tmpname()
        local opt = optim[name]({ p }, { lr = 0.1, weight_decay = 0 })
        local step = T.jit(function(x)
          opt:zero_grad()
          local loss = (p ^ 2 * x):sum()
          loss:backward()
          opt:step()
          return loss
        end)
        local x, want, got = T.tensor(0.5), {}, {}
        step(x)
        assert(T.save_graph(path, step:graph()))
        local text, changed = read(path):gsub("weight_decay=0%.0", "weight_decay=0.5")
        assert.is_true(changed > 0, name)
        local f = assert(io.open(path, "wb"))
        f:write(text)
        f:close()
        local graph = assert(T.load_graph(path))
        opt.param_groups[1].weight_decay = 0.5
        for t = 1, 3 do want[t], got[t] = step(x), graph:run { x1 = x }[1] end
        assert.equal(bits_of(want), bits_of(got), name)
        os.remove(path)
        os.remove(path .. ".safetensors")
        n = n + 1
      end
    end
    assert.is_true(n >= 15)
  end)

  it("opt.state[p] is what state_dict has, as it is now", function()
    for _, name in ipairs(inventory()) do
      local p, other = wave({ 4, 3 }, 1):requires_grad_(), wave({ 4, 3 }, 2):requires_grad_()
      local opt = optim[name]({ { params = { other } }, { params = { p } } }, { lr = 0.1 })
      local s = opt.state[p]
      assert.is_nil(s.step)
      for k = 1, 3 do
        opt:zero_grad();
        (p ^ 2):sum():backward()
        opt:step()
        local want, n = opt:state_dict().state[2], 0
        for key, v in pairs(s) do
          n = n + 1
          assert.is_true(rawequal(want[key], v), name .. " " .. key)
        end
        for _ in pairs(want) do n = n - 1 end
        assert.same({ 0, k }, { n, s.step }, name)
      end
      assert.is_nil(opt.state[other].step)
      fails("a state is written in place", function() s.step = 1 end)
      fails("a state is written in place", function() opt.state[p] = {} end)
      fails("a parameter of optim." .. name .. " is wanted", function() return opt.state[T.ones(1)] end)
      fails("for _, p in ipairs", function() return pairs(opt.state) end)
    end
    local p = wave({ 2 }, 1):requires_grad_()
    fails("one state for all parameters", function() return optim.LBFGS({ p }).state[p] end)
  end)

  it("the inventory knows them all", function()
    local names = inventory()
    assert.is_true(#names >= 20, table.concat(names, " "))
    for name in pairs(BEHIND) do assert.truthy(optim[name]) end
  end)

  for _, name in ipairs(inventory()) do
    it(name, function()
      local seed = 7
      local function random(n)
        seed = (seed * 1103515245 + 12345) % 2147483648
        return seed // 65536 % n + 1
      end
      for round = 1, 3 do
        local opts = draw(optim[name], random)
        local text = { name, "round " .. round }
        for k, v in pairs(opts) do text[#text + 1] = k .. "=" .. (type(v) == "table" and table.concat({ tostring(v[1]),
          tostring(v[2]) }, ",") or tostring(v)) end
        text = table.concat(text, " ")
        local how = { steps = 9, away = round % 2 == 0 and { [3] = true, [4] = true } or {}, rate_at = 5,
          saved = round == 3 and 4 or nil, clip = round == 1 }
        assert.equal(bits_of(train(name, opts, "written", how)), bits_of(train(name, opts, "jit", how)), text)
        -- Behind a scaler, with settings that change, one step left out; what T.jit compares is right, too.
        how.scaled, how.inf_at, how.check, how.change = true, 7, true, draw(optim[name], random)
        for _, key in ipairs { "lr", "state_dtype", "d0", "nesterov", "centered" } do how.change[key] = nil end
        if round == 2 then
          assert.equal(bits_of(train(name, opts, "written", how)), bits_of(train(name, opts, "jit", how)), text)
        end
        how.scaled, how.inf_at, how.check, how.change = nil, nil, nil, nil
        how.away, how.graph_at, how.rate_at = {}, 6, 4
        if round == 3 then how.saved = nil end
        local want = train(name, opts, "written", how)
        how.own = { [3] = true, [6] = true } -- the function's graph is run in place of it
        if not BEHIND[name] then assert.equal(bits_of(want), bits_of(train(name, opts, "jit", how)), text) end
        if BEHIND[name] then
          assert.error_matches(function() train(name, opts, "graph", how) end, "optim." .. name)
        else
          assert.equal(bits_of(table.move(want, 1, 9, 1, {})), bits_of(train(name, opts, "graph", how)), text)
          how.back_at, how.plain, how.inner = 8, round == 2, round == 1 and 3 or 1
          assert.equal(bits_of(train(name, opts, "written", how)), bits_of(train(name, opts, "back", how)), text)
        end
      end
    end)
  end
end)
