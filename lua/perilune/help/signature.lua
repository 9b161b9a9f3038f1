-- SPDX-License-Identifier: MIT
--- Signatures for help and reference, written from the arguments that functions and constructors declare: what
-- the text says is what options.read takes.
-- @module perilune.help.signature
local options = require "perilune.options"

local function shown(v)
  if type(v) == "string" then return ("%q"):format(v) end
  if math.type(v) == "float" then return v == math.floor(v) and ("%g"):format(v) or tostring(v) end
  if type(v) == "table" then
    local parts = {}
    for i, x in ipairs(v) do parts[i] = tostring(x) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  return tostring(v)
end

-- Words for what an argument may be, and why it is refused.
local kinds = {
  tensor = "tensor", operand = "tensor or number", tensors = "list of tensors",
  int = "integer", ints = "integer or list",
  count = "positive integer", size = "integer >= 0", number = "number", nonnegative = "number >= 0",
  nonnegative_or_inf = "number >= 0", probability = "number from 0 to 1",
  inner_probability = "number between 0 and 1, neither of them", bool = "boolean", string = "string",
  momentum = "number from 0 to 1, or false",
  window = "integer or list", numbers = "number or list", lengths = "integer, list or tensor",
  positive = "number > 0", sequence = "tensor or packed sequence", state = "{h, c}", func = "function", callable =
  "function", any = "value", padding = 'integer, list, "same" or "valid"',
}
local function kind_text(kind)
  if type(kind) ~= "table" then return kinds[kind] or kind end
  local words = {}
  for i, w in ipairs(kind) do words[i] = ("%q"):format(w) end
  return table.concat(words, ", ")
end

local M = {}

--- "name(x, dim=-1, weight?)" of the declaration under `who`.
function M.call(who, shown_as)
  local spec = assert(options.specs[who], who)
  local parts = {}
  for i, arg in ipairs(spec.args) do
    parts[i] = arg[1] .. (arg[3] ~= nil and "=" .. shown(arg[3]) or arg.optional and "?" or "")
  end
  return ("%s(%s)"):format(shown_as or who, table.concat(parts, ", "))
end

M.shown = shown

--- One line an argument: name, what it may be, default.
function M.arguments(who)
  local out = {}
  for i, arg in ipairs(assert(options.specs[who], who).args) do
    out[i] = ("%s: %s%s"):format(arg[1], kind_text(arg[2]),
      arg[3] ~= nil and ", default " .. shown(arg[3]) or arg.optional and ", optional" or "")
  end
  return out
end

--- Of an optimizer: "optim.SGD(params, {lr=0.001, momentum=0})".
function M.settings(name)
  local parts = {}
  for i, s in ipairs(require("perilune.optim")[name:match("[^.]+$")].settings) do
    parts[i] = s[1] .. "=" .. (s[2] ~= nil and shown(s[2]) or "")
  end
  return ("%s(params, {%s})"):format(name, table.concat(parts, ", "))
end

--- Of a schedule: "optim.lr_scheduler.StepLR(opt, step_size, gamma=0.1)".
function M.schedule(name)
  return (M.call(name:gsub("^optim%.", ""), name):gsub("%(", "(opt, ", 1))
end

return M
