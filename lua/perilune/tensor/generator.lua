-- SPDX-License-Identifier: MIT
--- T.Generator: random numbers with a state of their own, for `generator =` in T.rand, randn, randint, randperm,
-- uniform, normal, bernoulli and multinomial, and for any function through `g:run(f, …)`.
-- @module perilune.tensor.generator
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"
local rerun = require "perilune.autograd.checkpoint_state"

local Generator = classes.new("Generator", "generator")

local FIRST = 67280421310721 -- PyTorch's, too

-- f(…) while the global generator stands where this one does.
local function run(self, f, ...)
  if core.jit_tracing() then
    options.untraceable("generator: its state would stay where the trace left it, so a traced function cannot draw "
      .. "from it; draw outside and pass the tensor, or use the default generator")
  end
  local was = core.get_rng_state()
  core.set_rng_state(self.state)
  local got = table.pack(pcall(f, ...))
  self.state = core.get_rng_state()
  core.set_rng_state(was)
  if not got[1] then error(got[2], 0) end
  return table.unpack(got, 2, got.n)
end

local function own(self, method)
  if getmetatable(self) ~= Generator then options.colon("generator:" .. method) end
  if rerun.running then rerun.generator(self) end
  return self
end

-- Runs f(…) with this generator in place of the global one; returns what f does.
--- T.Generator(seed?) → generator
-- Random numbers with a state of their own: generator= in T.rand, randn, randint, randperm, uniform, normal, bernoulli
-- and multinomial; g:run(f, …) for anything else. g:manual_seed(n), g:initial_seed(), g:get_state(), g:set_state(s).
--   local g = T.Generator(1)
--   local a = T.rand(2, { generator = g })
--   print(a:equal(T.rand(2, { generator = g:manual_seed(1) })))  --> true
--   print(a:equal(T.rand(2, { generator = g })))                 --> false
function Generator:run(f, ...)
  own(self, "run(f)")
  if type(f) ~= "function" then options.fail("Generator: run: a function is wanted, got %s", options.describe(f)) end
  return run(self, f, ...)
end

--- Begins anew from a seed; returns the generator.
function Generator:manual_seed(seed)
  own(self, "manual_seed(seed)")
  local n = options.integer(seed)
  if not n then options.fail("Generator: manual_seed: an integer is wanted, got %s", options.describe(seed)) end
  self.first = n
  run(self, core.manual_seed, n)
  return self
end

--- The seed it began from.
function Generator:initial_seed() return own(self, "initial_seed()").first end

--- Where it stands, as a string that set_state and T.set_rng_state take.
function Generator:get_state() return own(self, "get_state()").state end

function Generator:set_state(state)
  own(self, "set_state(state)")
  local was = self.state
  self.state = state
  local ok, why = pcall(run, self, function() end) -- an error where it is no state
  if not ok then
    self.state = was
    error(why, 0)
  end
  return self
end

function Generator:__tostring() return ("Generator(seed %d)"):format(self.first) end

return setmetatable(Generator, { __call = function(_, seed, ...)
  if select("#", ...) > 0 then require("perilune.surface").too_many("Generator", { "seed" }, seed, ...) end
  local self = setmetatable({ state = core.get_rng_state() }, Generator)
  return self:manual_seed(seed == nil and FIRST or seed)
end })
