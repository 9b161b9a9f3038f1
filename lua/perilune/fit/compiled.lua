-- SPDX-License-Identifier: MIT
--- Compiled training for T.fit: with jit = true a batch's forward pass, backward and update are one graph, validation
-- is another. The bits are those of the loop that is not compiled.
-- @module perilune.fit.compiled
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

-- What a step may know of the run, and what callbacks may exchange in it. The rest would be frozen.
local SHARED = { "net", "optimizer", "loss_function" }
local function brought(known, run)
  for _, key in ipairs(SHARED) do known[key] = run[key] end
  known.options.clip = run.options.clip
end
local function fixed_part(run)
  return setmetatable({ net = run.net, optimizer = run.optimizer, loss_function = run.loss_function,
    options = { accumulate = run.options.accumulate, clip = run.options.clip, scaler = run.options.scaler } },
    { __jit = "known", __index = function(_, key) -- it is a guard: callbacks may change the network or the loss
      fail("fit: with jit the step can read run.net, run.optimizer and run.loss_function; run.%s is known outside of "
        .. "the graph alone", tostring(key))
    end })
end

local function detached(loss, ...)
  local out = table.pack(loss, ...)
  for i = 1, out.n do
    if T.is_tensor(out[i]) then out[i] = out[i]:detach() end
  end
  return out
end

--- jit: true, or options of T.jit. backward(run, loss) takes the gradients, move(run, measure) updates the weights and
-- returns the norm of the gradients, if it is to measure it. A graph measures it at each step as soon as a log of steps
-- wants it at some: one pass over the gradients, where a second graph would want memory of its own.
return function(run, jit, backward, move)
  if jit ~= true and type(jit) ~= "table" then
    fail("fit: jit must be true, or a table of T.jit's options, got %s", describe(jit))
  end
  local opts = { max_traces = 32, name = "fit's step" }
  for k, v in pairs(jit ~= true and jit or {}) do opts[k] = v end
  local known, step = fixed_part(run), run.do_step
  local metrics, at_once = #run.metric_names > 0, run.options.accumulate == 1
  run.moves_weights = at_once
  local both = T.jit(function(measure, ...)
    local out = table.pack(step(known, ...))
    if not T.is_tensor(out[1]) then
      fail("fit: the step must return a loss of one element, got %s", describe(out[1]))
    end
    backward(known, out[1])
    local norm = at_once and move(known, measure) or nil
    out = detached(table.unpack(out, 1, metrics and out.n or 1))
    return norm, table.unpack(out, 1, out.n)
  end, opts)
  local function take(norm, ...)
    run.step_norm = norm
    return ...
  end
  run.train_step = setmetatable({}, { __index = both, __call = function(_, ...)
    brought(known, run)
    return take(both(#run.norm_every > 0, ...))
  end })
  local of_valid = { name = "fit's validation" } -- without what is of backward alone
  for _, k in ipairs { "max_traces", "check", "fallback", "unsafe_math" } do of_valid[k] = opts[k] end
  local check = T.jit(function(...)
    local out = table.pack(step(known, ...))
    return table.unpack(out, 1, metrics and out.n or 1)
  end, of_valid)
  run.valid_step = setmetatable({}, { __index = check, __call = function(_, ...)
    brought(known, run)
    return check(...)
  end })
end
