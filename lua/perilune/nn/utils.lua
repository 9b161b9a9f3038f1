-- SPDX-License-Identifier: MIT
--- nn.utils: work on all gradients or parameters at once.
-- @module perilune.nn.utils
local T = require "perilune"
local options = require "perilune.options"
local surface = require "perilune.surface"

local fail = options.fail
local foreach_norm, foreach_scale = T.core.op.foreach_norm, T.core.op.foreach_scale_
local groups_of = T.core.device.groups
local utils = {}

-- Whether several elements share memory.
local function overlaps(t)
  local shape = t:shape()
  for d, step in ipairs(t:stride()) do
    if step == 0 and shape[d] > 1 then return true end
  end
  return false
end

local function grads_of(who, params)
  params = options.tensors(who, "params", params)
  T.core.check_whole(who, params)
  local grads, n = {}, 0
  for i = 1, #params do
    local g = params[i].grad
    if g and not g:is_contiguous() and overlaps(g) then -- an expanded tensor that somebody assigned
      g = g:contiguous()
      T.core.adopt_grad(params[i], g)
    end
    if g then
      n = n + 1
      grads[n] = g
    end
  end
  return grads, n
end

-- The joint p-norm of tensors on several devices, on the first one's: a norm of norms.
local function norm_over(lists, p)
  local norms, home = {}, lists[1][1]:device()
  for i, list in ipairs(lists) do norms[i] = foreach_norm(list, { p = p }):to(home) end
  return foreach_norm(norms, { p = p })
end

-- Scales all gradients so that their joint p-norm is at most max_norm. Returns the norm before, 0-d.
-- @tparam {Tensor,…} params
-- @tparam number max_norm
-- @tparam[opt] table opts `norm_type=2` (math.huge: largest magnitude), `error_if_nonfinite=false`
--- nn.utils.clip_grad_norm_(params, max_norm, {norm_type=2, error_if_nonfinite=false}) → norm
-- Scales all gradients so that their joint norm is at most max_norm; returns the norm before, of halves in f32.
--   local p = nn.Parameter(T.tensor { 3, 4 })
--   local loss = (p * p / 2):sum()
--   loss:backward()
--   print(nn.utils.clip_grad_norm_({ p }, 1):item(), p.grad)  --> 5.0	{0.6000, 0.8000}  -- f32[2] cpu
function utils.clip_grad_norm_(params, max_norm, opts)
  if type(opts) == "number" then opts = { norm_type = opts } end
  opts = options.check("clip_grad_norm_", opts, { "norm_type", "error_if_nonfinite" })
  if type(max_norm) ~= "number" or max_norm ~= max_norm or max_norm < 0 then
    fail("clip_grad_norm_: max_norm must be a number >= 0, got %s", options.describe(max_norm))
  end
  if opts.norm_type ~= nil and (type(opts.norm_type) ~= "number" or opts.norm_type ~= opts.norm_type) then
    fail("clip_grad_norm_: norm_type must be a number, got %s", options.describe(opts.norm_type))
  end
  local grads, n = grads_of("clip_grad_norm_", params)
  if n == 0 then return T.tensor(0.0) end
  local _ <close> = T.no_grad()
  local p = opts.norm_type or 2.0
  local apart = groups_of(grads)
  local norm = apart and norm_over(apart, p) or foreach_norm(grads, { p = p })
  if opts.error_if_nonfinite then
    local v = norm:item()
    if v ~= v or v == math.huge then
      fail("clip_grad_norm_: the norm of the gradients is %s; they are left as they are", tostring(v))
    end
  end
  -- Always scaled, by at most 1: no value has to be looked at. 1e-6 as in PyTorch.
  local scale = (max_norm / (norm + 1e-6)):clamp_ { max = 1.0 }
  local _ <close> = T.core.hold_interrupts() -- all are scaled, or none
  for _, list in ipairs(apart or { grads }) do
    list[#list + 1] = scale:to(list[1]:device())
    foreach_scale(list)
  end
  return norm
end

--- nn.utils.clip_grad_value_(params, value)
-- Limits every element of the gradients to ±value.
--   local p = nn.Parameter(T.tensor { 3, -4 })
--   local loss = (p * p / 2):sum()
--   loss:backward()
--   nn.utils.clip_grad_value_({ p }, 2)
--   print(p.grad)  --> { 2., -2.}  -- f32[2] cpu
function utils.clip_grad_value_(params, clip_value)
  if type(clip_value) ~= "number" or clip_value ~= clip_value or clip_value < 0 then
    fail("clip_grad_value_: clip_value must be a number >= 0, got %s", options.describe(clip_value))
  end
  local _ <close> = T.no_grad()
  local _ <close> = T.core.hold_interrupts()
  for _, g in ipairs((grads_of("clip_grad_value_", params))) do
    g:clamp_ { min = -clip_value, max = clip_value }
  end
end

--- nn.utils.parameters_to_vector(params) → vector
-- All parameters end to end.
--   print(nn.utils.parameters_to_vector { T.ones(2), T.zeros(1, 1) })  --> {1., 1., 0.}  -- f32[3] cpu
function utils.parameters_to_vector(params)
  local flat = {}
  for i, p in ipairs(options.tensors("parameters_to_vector", "params", params, 1)) do flat[i] = p:reshape(-1) end
  return T.cat(flat)
end

--- nn.utils.vector_to_parameters(vector, params)
-- Copies slices of a vector into parameters.
--   local a, b = T.zeros(2), T.zeros(1)
--   nn.utils.vector_to_parameters(T.tensor { 1, 2, 3 }, { a, b })
--   print(a, b)  --> {1., 2.}  -- f32[2] cpu	{3.}  -- f32[1] cpu
function utils.vector_to_parameters(vector, params)
  if not T.is_tensor(vector) then
    fail("vector_to_parameters: vector must be a tensor, got %s", options.describe(vector))
  end
  local total = 0
  params = options.tensors("vector_to_parameters", "params", params)
  for _, p in ipairs(params) do total = total + p:numel() end
  if vector:dim() ~= 1 or vector:numel() ~= total then
    fail("vector_to_parameters: a vector of %d elements is wanted, got %s", total, options.describe(vector))
  end
  local _ <close> = T.no_grad()
  local _ <close> = T.core.hold_interrupts() -- all parameters are the vector's, or none
  local at = 1
  for _, p in ipairs(params) do
    local n = p:numel()
    if n > 0 then p:copy_(vector:narrow(1, at, n):view(p:shape())) end
    at = at + n
  end
end

utils.rnn = surface.seal((require "perilune.nn.packed_sequence"))
utils.pad_sequence, utils.unpad_sequence = utils.rnn.pad_sequence, utils.rnn.unpad_sequence
utils.parametrize = surface.seal(require "perilune.nn.utils.parametrize")
utils.parametrizations = surface.seal(require "perilune.nn.utils.parametrizations")
utils.prune = surface.seal(require "perilune.nn.utils.prune"(require "perilune.nn.reparametrize"(utils)))
return utils
