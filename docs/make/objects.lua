-- SPDX-License-Identifier: MIT
-- For the definitions for editors: the classes of objects that functions return and that no entry of the reference
-- makes, and what objects hold besides their methods.
-- luacheck: no max line length
local M = {}

-- Of tensors, and of what behaves like one: what a language server knows of operators is not handed down to subclasses.
local OPERATORS = [[
---@operator add(perilune.Tensor|number): perilune.Tensor
---@operator sub(perilune.Tensor|number): perilune.Tensor
---@operator mul(perilune.Tensor|number): perilune.Tensor
---@operator div(perilune.Tensor|number): perilune.Tensor
---@operator idiv(perilune.Tensor|number): perilune.Tensor
---@operator mod(perilune.Tensor|number): perilune.Tensor
---@operator pow(perilune.Tensor|number): perilune.Tensor
---@operator band(perilune.Tensor): perilune.Tensor
---@operator bor(perilune.Tensor): perilune.Tensor
---@operator bxor(perilune.Tensor): perilune.Tensor
---@operator shl(integer): perilune.Tensor
---@operator shr(integer): perilune.Tensor
---@operator unm: perilune.Tensor
---@operator bnot: perilune.Tensor
---@operator len: integer]]

--- What the definitions begin with. An index of a tensor is no string there ("2, 1:3"): else every misspelt method would
--- be one.
M.HEAD = ([[
---@meta perilune
-- Definitions of perilune for language servers of Lua; made from its symbol table. Add the folder of this file to
-- Lua.workspace.library.

---@alias perilune.dtype "f32"|"f64"|"f16"|"bf16"|"i8"|"i16"|"i32"|"i64"|"u8"|"bool"|string
-- A whole number. What is computed of values without types is a number to language servers, so they take any.
---@alias perilune.int integer|number
-- What comes by position, in a table whose named fields are options.
---@alias perilune.list any[]

-- What item() gives; of bool tensors a boolean.
---@alias perilune.value number
-- What totable() gives; of a tensor without dimensions its number.
---@alias perilune.nested table

---@class perilune.Tensor
---@field grad_fn string? the op that made it, when that is recorded
---@field [integer|perilune.Tensor|table] perilune.Element|perilune.Tensor an index: t[1], t[mask], t[{ {}, 2 }]
OPERATORS
local Tensor = {}

-- Assigned, and no fields of the class: a table where a tensor may be would lack them, says a language server.
---What backward added; nil before that.
---@type perilune.Tensor
Tensor.grad = nil
---@type boolean
Tensor.requires_grad = false
---@type boolean
Tensor.is_leaf = true
---The last two dims exchanged, a view.
---@type perilune.Tensor
Tensor.mT = nil

-- Part of a tensor, which is a tensor; numbers may be written to it.
---@class perilune.Element: perilune.Tensor, number, integer, boolean
OPERATORS

-- An argument of a function that is traced or differentiated: a tensor, or a table of them, or a plain value.
---@class perilune.Argument: perilune.Tensor, table, number, integer, boolean, string
OPERATORS

---@class perilune.Handle
---@field remove fun(self: perilune.Handle)

-- Something that holds until it is closed: local _ <close> = …
---@class perilune.Scope
---@field close fun(self: perilune.Scope)
---@field add fun(self: perilune.Scope, x: perilune.Tensor): perilune.Tensor

---@class perilune.GradKey
---@field active boolean
---@field attach fun(self: perilune.GradKey, x: perilune.Tensor, f?: fun(x: perilune.Tensor, gradient: perilune.Tensor)): perilune.Tensor
---@field backward fun(self: perilune.GradKey, ys: perilune.Tensor|table<integer, perilune.Tensor>, dys?: any, options?: table)
---@field is_attached_to fun(self: perilune.GradKey, x: perilune.Tensor): boolean
---@field attached fun(self: perilune.GradKey): perilune.Tensor[]
---@field close fun(self: perilune.GradKey)

-- The first argument of rules in Lua.
---@class perilune.Context
---@field needs_input_grad table<integer, boolean>
---@field save fun(self: perilune.Context, ...: perilune.Tensor)
---@field saved fun(self: perilune.Context): perilune.Tensor, perilune.Tensor, perilune.Tensor, perilune.Tensor
---@field mark_non_differentiable fun(self: perilune.Context, ...: perilune.Tensor)
---@field [string] any

-- What T.jit gives.
---@class perilune.Jit
---@field ntraces integer
---@field graph fun(self: perilune.Jit): perilune.Graph
---@field plan fun(self: perilune.Jit): table
---@field source fun(self: perilune.Jit): string
---@field explain fun(self: perilune.Jit): table<integer, table>
---@field reset fun(self: perilune.Jit)
---@field [string] any
---@overload fun(...: any): any, any

---@class perilune.Graph
---@field input fun(self: perilune.Graph, name: string, shape: table, options?: table): perilune.Tensor
---@field trace fun(self: perilune.Graph, f: function, ...: any): any
---@field name fun(self: perilune.Graph, t: perilune.Tensor, name: string): perilune.Tensor
---@field after fun(self: perilune.Graph, t: perilune.Tensor, ...: perilune.Tensor): perilune.Tensor
---@field outputs fun(self: perilune.Graph, list: table): perilune.Graph
---@field gradient fun(self: perilune.Graph, ys: perilune.Tensor|table<integer, perilune.Tensor>, xs: perilune.Tensor|table<integer, perilune.Tensor>, options?: table): perilune.Tensor|table<integer, perilune.Tensor>
---@field plan fun(self: perilune.Graph): table
---@field run fun(self: perilune.Graph, feed?: table, options?: table): table<string|integer, perilune.Tensor>
---@field load_state fun(self: perilune.Graph, path: string): boolean?, string?, string?
---@field text fun(self: perilune.Graph): string
---@field dot fun(self: perilune.Graph): string
---@field nodes fun(self: perilune.Graph): table<integer, table>
---@field verify fun(self: perilune.Graph): boolean, string?
---@field [string] any

---@class perilune.TokenStream
---@field finish fun(self: perilune.TokenStream): string
---@overload fun(id: perilune.int): string

---@class perilune.Csv
---@field names table<integer, string>
---@field rows integer
---@field columns table<string, any>
---@field missing table<string, perilune.Tensor>
---@field tensor fun(self: perilune.Csv, names?: string[]): perilune.Tensor
---@field categories fun(self: perilune.Csv, name: string): perilune.Tensor, table<integer, string>
---@field [integer] any

---@class perilune.Event
---@field record fun(self: perilune.Event, stream?: perilune.Stream)
---@field synchronize fun(self: perilune.Event)
---@field elapsed fun(self: perilune.Event, other: perilune.Event): number
---@field [string] any

---@class perilune.Stream
---@field synchronize fun(self: perilune.Stream)
---@field [string] any

---@class perilune.PackedSequence
---@field data perilune.Tensor
---@field batch_sizes perilune.Tensor
---@field [string] any

---@class perilune.Template
---@field render fun(self: perilune.Template, values?: table): string
---@field [string] any

-- What nn.class gives: called, it makes a module.
---@class nn.Class: nn.Module
---@overload fun(...: any): nn.Module

---@class perilune.Work
---@field wait fun(self: perilune.Work, timeout?: number): boolean
---@field is_completed fun(self: perilune.Work): boolean

---@class T.distributed.Group
---@field [string] any

---@class perilune.Log
---@field path string
---@field write fun(self: perilune.Log, row: table<string, any>): boolean?, string?, string?
---@field close fun(self: perilune.Log): boolean?, string?, string?

---@class perilune.TensorBoard: perilune.Log
---@field dir string
---@field scalar fun(self: perilune.TensorBoard, tag: string, value: number|perilune.Tensor, step: perilune.int)
---@field scalars fun(self: perilune.TensorBoard, tag: string, values: table<string, number>, step: perilune.int)
---@field histogram fun(self: perilune.TensorBoard, tag: string, x: perilune.Tensor|number[], step: perilune.int, options?: table)
---@field image fun(self: perilune.TensorBoard, tag: string, x: perilune.Tensor|perilune.Figure, step: perilune.int)
---@field text fun(self: perilune.TensorBoard, tag: string, text: string, step: perilune.int)
---@field flush fun(self: perilune.TensorBoard): boolean?, string?, string?

---@class perilune.Meter
---@field update fun(self: perilune.Meter, ...: any)
---@field value fun(self: perilune.Meter): number
---@field reset fun(self: perilune.Meter)

---@class perilune.Confusion
---@field update fun(self: perilune.Confusion, pred: perilune.Tensor, target: perilune.Tensor)
---@field value fun(self: perilune.Confusion): perilune.Tensor
---@field reset fun(self: perilune.Confusion)
---@field plot fun(self: perilune.Confusion, options?: table): perilune.Figure

---@class perilune.Figure
---@field series table<integer, table>
---@field kind string
---@field save fun(self: perilune.Figure, path: string, options?: table): boolean?, string?, string?
---@field text fun(self: perilune.Figure, options?: table): string
local Figure = {}

---@param path string
---@param options? table
---@return boolean?, string?, string?
---@overload fun(self: perilune.Figure): string
function Figure:svg(path, options) end

---@param path string
---@param options? table
---@return boolean?, string?, string?
---@overload fun(self: perilune.Figure): string
function Figure:png(path, options) end

---@class perilune.Stop
---@overload fun(loss: number|perilune.Tensor): boolean
---@field [string] any

---@class perilune.Stopwatch
---@field lap fun(self: perilune.Stopwatch): number
---@field [string] any
---@overload fun(): number

---@class perilune.ImageProcessor
---@field [string] any
---@overload fun(image: perilune.Tensor|table<integer, perilune.Tensor>, ...: any): perilune.Tensor

---@class perilune.History
---@field column fun(self: perilune.History, name: string): table<integer, number>
---@field best fun(self: perilune.History, name: string, mode?: "min"|"max"): table<string, number>
---@field plot fun(self: perilune.History, names?: string|string[]|table, options?: table): perilune.Figure
---@field names fun(self: perilune.History): string[]
---@field [integer] table<string, number>
---@operator len: integer

---@class perilune.Run
---@field epoch integer
---@field step integer
---@field batch integer
---@field stop boolean
---@field row table<string, number>
---@field history perilune.History
---@field net nn.Module
---@field optimizer optim.Optimizer
---@field save fun(self: perilune.Run, path: string): boolean?, string?, string?
---@field [string] any

---@class perilune.Tokenizer
---@field encode fun(self: perilune.Tokenizer, text: string, options?: table): perilune.Tensor
---@field decode fun(self: perilune.Tokenizer, ids: perilune.Tensor|integer[]|integer, options?: table): string
---@field stream fun(self: perilune.Tokenizer, options?: table): perilune.TokenStream
---@field token fun(self: perilune.Tokenizer, id: perilune.int, options?: table): string
---@field id fun(self: perilune.Tokenizer, token: string, options?: table): integer
---@field apply_chat_template fun(self: perilune.Tokenizer, messages: table, options?: table): string
---@field save fun(self: perilune.Tokenizer, path: string): boolean?, string?, string?
---@field [string] any
---@operator len: integer
---@overload fun(text: string|string[], options?: table): table

---@class perilune
---@field version string
---@field core table the engine's own functions, which change without notice
---@field debug table looks into the engine
local T = {}
]]):gsub("OPERATORS", function() return OPERATORS end)


local function lines(text)
  local out = {}
  for line in text:gmatch "[^\n]+" do out[#out + 1] = line end
  return out
end

local TENSOR_FIELDS = {}
for name in ("mean variance stddev mode median support_low support_high"):gmatch "%S+" do
  TENSOR_FIELDS[#TENSOR_FIELDS + 1] = ("---@field %s perilune.Tensor"):format(name)
end

-- Lines for the class of a name: the first pattern that it is like.
local HOLDS = {
  { "^T%.distributions%.%u%a*Transform$", lines [[
---@field inv fun(self: any, y: perilune.Tensor|number): perilune.Tensor
---@field log_abs_det_jacobian fun(self: any, x: perilune.Tensor|number, y: perilune.Tensor|number): perilune.Tensor
---@overload fun(x: perilune.Tensor|number): perilune.Tensor]] },
  { "^T%.data%.Standardizer$", lines [[
---@field mean perilune.Tensor
---@field std perilune.Tensor
---@overload fun(x: perilune.Tensor|number): perilune.Tensor]] },
  { "^T%.data%.%a*Dataset$", lines "---@field [integer] any\n---@field [string] any\n---@operator len: integer" },
  { "^T%.data%.Subset$", lines "---@field [integer] any\n---@field [string] any\n---@operator len: integer" },
  { "^T%.data%.DataLoader$", lines "---@operator len: integer\n---@overload fun(...: any): any" },
  { "^T%.data%.%u%a*Sampler$", lines "---@operator len: integer\n---@overload fun(...: any): any" },
  { "^T%.GradManager$", lines [[
---@field attach fun(self: T.GradManager, tensors: perilune.Tensor|table<integer, perilune.Tensor>, f?: function): T.GradManager
---@field record fun(self: T.GradManager, f?: function, ...: any): any
---@field backward fun(self: T.GradManager, y?: perilune.Tensor|table<integer, perilune.Tensor>, dy?: any)
---@field release fun(self: T.GradManager)
---@field attached fun(self: T.GradManager): perilune.Tensor[] ]] },
  { "^nn%.utils%.parametrize%.", {} },
  { "^nn%.Module$", lines [[
---@field generate fun(self: any, ids: perilune.Tensor|perilune.list|nil, options?: table): perilune.Tensor|table
---@field training boolean
---@field forward fun(self: any, x: perilune.Argument|perilune.Tensor, ...: perilune.Argument|perilune.Tensor): any, any?, any?, any?
---@field [integer] any
---@operator len: integer]] },
  { "^nn%.%u%a*$", lines "---@field [integer] any\n---@operator len: integer" },
  { "^optim%.swa_utils%.AveragedModel$", lines [[
---@overload fun(...: any): perilune.Tensor
---@field n_averaged perilune.Tensor
---@field module nn.Module]] },
  { "^optim%.Optimizer$", lines [[
---@field param_groups table<integer, table<string, any>>
---@field state table
---@field step fun(self: any, closure?: function): any
---@field zero_grad fun(self: any, ...: any)
---@field state_dict fun(self: any): table
---@field load_state_dict fun(self: any, state: table)
---@field add_param_group fun(self: any, group: table)]] },
  { "^optim%.lr_scheduler%.LRScheduler$", lines [[
---@field last_epoch integer
---@field base_lrs table<integer, number>
---@field optimizer optim.Optimizer
---@field step fun(self: any, ...: any)
---@field get_last_lr fun(self: any): table<integer, number>
---@field state_dict fun(self: any): table
---@field load_state_dict fun(self: any, state: table)]] },
}

function M.holds(name)
  for _, h in ipairs(HOLDS) do if name:find(h[1]) then return h[2] end end
  return {}
end

--- The base of all distributions, whose own classes have no fields of these.
M.DISTRIBUTION = ("---@class T.distributions.Distribution\n%s\n---@field [string] any\n"):format(
  table.concat(TENSOR_FIELDS, "\n"))

return M
