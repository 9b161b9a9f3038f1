-- SPDX-License-Identifier: MIT
-- What a method of a class gives, as a type of the definitions for editors: of one that has no `return` with a value
-- nothing, of one whose every `return` is `return self` an object of its class, both read from its code; the rest is
-- listed here. spec/docs/types_spec.lua calls the methods without arguments and compares.
-- @module methods

-- By "class name", or by the name where all classes that have it agree.
local GIVEN = {}
local function given(kind, names) for name in names:gmatch "[^;]+" do GIVEN[name:match "^%s*(.-)%s*$"] = kind end end
given("integer", "len; num_parameters; T.Generator initial_seed")
given("number", "get_scale; get_growth_factor; get_backoff_factor; lr_at")
given("integer", "get_growth_interval")
given("boolean", "is_enabled; is_training; materialize; takes_shape")
given("string", "T.Generator get_state; summary")
given("string[]", "nn.ModuleDict keys; nn.ParameterDict keys")
given("table<integer, number>", "get_last_lr")
given("table<integer, integer[]>", "T.data.BatchSampler batches")
given("perilune.Tensor|integer[]", "indices")
given("perilune.Tensor|table", "T.GradScaler scale")
given("perilune.Argument", "T.GradScaler step; optim.Optimizer step; optim.LBFGS step") -- what the closure gave
given("perilune.Tensor, perilune.Tensor", "qparams; calculate_qparams")
given("perilune.Tensor", "averaged; checked; predict; log_prob; rotate; numbers; inverse; "
  .. "optim.swa_utils.AveragedModel forward")
given("perilune.Tensor?", "get_buffer; nn.ParameterDict get")
given("nn.Module?", "get_submodule; nn.ModuleDict get")
given("nn.Module", "pop; nn.QuantizedLinear dequantize; nn.QuantizedEmbedding dequantize")
given("fun(): string, nn.Module", "named_children")
given("perilune.Handle", "register_forward_hook; register_forward_pre_hook; register_full_backward_hook; "
  .. "register_full_backward_pre_hook")
given("table<integer, perilune.Tensor>", "weights")
given("table", "T.distributions.Independent parameters; T.distributions.MixtureSameFamily parameters; "
  .. "T.distributions.TransformedDistribution parameters")
for _, class in ipairs { "Independent", "MixtureSameFamily", "TransformedDistribution" } do
  given("T.distributions." .. class, "T.distributions." .. class .. " expand")
end
given("", "optim update; optim.lr_scheduler.LRScheduler step; optim.lr_scheduler.ReduceLROnPlateau step")
for name in ("cpu cuda enable_fake_quant enable_observer eval train"):gmatch "%S+" do GIVEN[name] = "self" end
GIVEN["nn.quant.FakeQuantize update"] = "self"
-- What a sample holds, and what a function of the caller's returns, is open.
given("any", "T.data.ConcatDataset get; T.data.MapDataset get; T.data.StackDataset get; T.data.Subset get; "
  .. "T.data.TensorDataset get; T.data.Subset get_batch; T.data.TensorDataset get_batch; "
  .. "T.data.TensorDataset get_range; T.Generator run; no_sync")
given("function", "T.data.DataLoader iter")

-- Arguments that mean something else, by class or method, than by their name alone.
local ARGUMENTS = { ["optim group"] = "table", opts = "table", idx = "perilune.Tensor", first = "perilune.int",
  last = "perilune.int", epoch = "perilune.int", new_scale = "number|perilune.Tensor", z = "perilune.Tensor",
  length = "perilune.int", ["lr_at t"] = "number", ["lr_at base"] = "number", ["cuda index"] = "perilune.int",
  ["T.GradScaler v"] = "number" }

local original = require("perilune.surface").original

local M = {}

local files = {}
local function lines_of(path)
  if not files[path] then
    files[path] = {}
    for line in io.lines(path) do table.insert(files[path], line) end
  end
  return files[path]
end

-- The values that a function's code returns, as text; those of functions inside of it are among them.
local function returned(f)
  local info = debug.getinfo(original[f] or f, "S")
  local path = info.source:match "^@(.*%.lua)$"
  local list = {}
  if not path then return nil end
  for i = info.linedefined, info.lastlinedefined do
    local line = lines_of(path)[i]
    if not line then return nil end
    line = line:gsub("%-%-.*$", "")
    for value in line:gmatch "%f[%w_]return%f[^%w_]%s*([^;]*)" do list[#list + 1] = value end
  end
  return list
end

--- The type that f, the method of a class, gives: "" for nothing; nil where the code does not tell.
-- @tparam string kind the class
-- @tparam string name
-- @tparam function f
function M.gives(kind, name, f)
  local known = GIVEN[kind .. " " .. name] or GIVEN[kind:match "^[^.]+" .. " " .. name] or GIVEN[name]
  if known then return known == "self" and kind or known end
  local list = f and returned(f)
  if not list then return nil end
  local own, nothing = #list > 0, true
  for _, v in ipairs(list) do
    v = v:gsub("%s+end.*$", ""):gsub("^end.*$", ""):gsub("%s+$", "")
    own = own and v == "self"
    nothing = nothing and v == ""
  end
  return own and kind or nothing and "" or nil
end

--- The type of an argument of a method; nil where its name alone tells.
function M.takes(kind, name, arg)
  return ARGUMENTS[kind .. " " .. arg] or ARGUMENTS[kind:match "^[^.]+" .. " " .. arg] or ARGUMENTS[name .. " " .. arg]
    or ARGUMENTS[arg]
end

return M
