-- SPDX-License-Identifier: MIT
-- Definitions for the Lua language server (github.com/LuaLS, "annotations"): editors complete and check perilune's
-- names with them. Made from the same inventory as the reference.
local T = require "perilune"
local source = require "perilune.help.source"
local here = debug.getinfo(1, "S").source:match "^@(.*)meta%.lua$"
local objects, method_types = dofile(here .. "objects.lua"), dofile(here .. "methods.lua")
local NAMED, MEANT = dofile(here .. "kinds.lua")
local core = T.core

local TYPES = { dim = "integer", index = "integer|perilune.Tensor", newdim = "integer",
  dims = "integer|integer[]", int = "integer", ints = "integer|integer[]", shape = "integer|integer[]",
  float = "number", scalar = "number", bool = "boolean",
  dtype = "perilune.dtype", index_base = "0|1", tensor = "perilune.Tensor|number",
  tensors = "perilune.Tensor[]|table<integer, perilune.Tensor>" }

local KEYWORDS = require("perilune.repl.lex").keywords

-- A type as it is asked for: whole numbers are taken as any numbers are, and lists by "any[]" where options may be.
local function asked(kind) return (kind:gsub("%f[%w._]integer%f[^%w._]", "perilune.int")) end

local function type_of(t)
  if TYPES[t] then return TYPES[t] end
  if t:find "|" or t:find "^[%w_]+$" then
    local words = {}
    for word in t:gmatch "[^|]+" do words[#words + 1] = ('"%s"'):format(word) end
    return table.concat(words, "|")
  end
  return "any"
end

local function comment(out, text)
  for line in ((text or "") .. "\n"):gmatch "([^\n]*)\n" do
    if line ~= "" then out[#out + 1] = "--- " .. line end
  end
end

local function doc_of(out, entry)
  comment(out, entry.signature)
  comment(out, entry.text)
  comment(out, entry.formula)
  if entry.example then
    out[#out + 1] = "---```lua"
    for line in (entry.example .. "\n"):gmatch "([^\n]*)\n" do out[#out + 1] = "---" .. line end
    out[#out + 1] = "---```"
  end
end

-- Kinds as the reference writes them, of declared arguments.
local KINDS = { boolean = "boolean", string = "string", ["function"] = "function", value = "any", integer = "integer",
  tensor = "perilune.Tensor", ["list of tensors"] = "perilune.Tensor[]", ["{h, c}"] = "perilune.Tensor[]",
  ["tensor or number"] = "perilune.Tensor|number",
  ["tensor or packed sequence"] = "perilune.Tensor|table", ["number or list"] = "number|number[]",
  ["integer or list"] = "integer|integer[]", ["integer, list or tensor"] = "integer|integer[]|perilune.Tensor" }

-- A default as it is written: what kind of value it is.
local function of_default(text)
  if not text then return "any" end
  if text:find "^[-%d.]" and tonumber(text) then
    return "number"
  end
  if text == "true" or text == "false" then return "boolean" end
  if text:find '^"' then return "string" end
  if text:find "^{[%d., -]+}$" then return "number[]" end
  return "any"
end

-- "integer >= 0, optional" → type, whether it may be left out
local function of_kind(text)
  local default = text:match "default (.*)$"
  local optional = default ~= nil or text:find ", optional$" ~= nil
  local kind = text:gsub(", optional$", ""):gsub(",? ?default .*$", "")
  if KINDS[kind] then return KINDS[kind], optional end
  if kind:find "^integer" or kind == "positive integer" then
    local words = {}
    for word in kind:gmatch '"[^"]+"' do words[#words + 1] = word end
    return kind:find "list" and "integer|integer[]" .. (#words > 0 and "|" .. table.concat(words, "|") or "")
      or "integer", optional
  end
  if kind:find "^number" then return "number", optional end
  if kind:find '^"' then return (kind:gsub('", "', '"|"')), optional end
  return of_default(default), optional
end

-- name → {type, optional} of an entry: by its declared arguments, else by the options in its signature; and the names
-- in order.
local function typed(entry)
  local types, order = {}, {}
  local function add(name, kind, optional)
    if types[name] or not name:find "^[%a_][%w_]*$" then return end
    types[name] = { kind, optional }
    order[#order + 1] = name
  end
  for _, line in ipairs(entry.arguments or {}) do
    local name, rest = line:match "^([%w_]+): (.*)$"
    if name then add(name, of_kind(rest)) end
  end
  for braces in entry.signature:gsub("→.*$", ""):gmatch "%b{}" do
    local inner = braces:find "^{%a+ = " and "" or braces:sub(2, -2) -- {name = x} is no table of options
    local depth, part = 0, ""
    for c in (inner .. ","):gmatch "." do
      depth = depth + (c:find "[{(]" and 1 or 0) - (c:find "[)}]" and 1 or 0)
      if c == "," and depth == 0 then
        local name, default = part:match "^%s*([%a_][%w_]*)%s*=?%s*(.-)%s*$"
        if name and part:find "=" then add(name, of_default(default ~= "" and default or nil), true) end
        part = ""
      else
        part = part .. c
      end
    end
  end
  return types, order
end

-- The names of the parameters in a signature; {…} is a table of options.
local function parameters(signature)
  local inner = signature:match "%b()"
  inner = inner and inner:sub(2, -2) or "..."
  inner = inner:gsub('"[^"]*"', '"text"'):gsub("%b{}", function(t) -- a comma in a text parts nothing
    return t:find "^{%a+ = " and "map" or t:find "=" and "options" or t:match "%a[%w_]*" or "options"
  end)
    :gsub("%b[]", ""):gsub("%b()", "")
  local names, seen = {}, {}
  for part in (inner .. ","):gmatch "([^,]*)," do
    local name = part:match "^%s*([%a_][%w_]*)"
    if part:find '^%s*"' then name = "word" end -- one, as in T.autocast("bf16", …)
    if part:find("…", 1, true) or part:find("...", 1, true) then name = "..." end
    if name and KEYWORDS[name] then name = name .. "_" end
    if name and not seen[name] and not seen["..."] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  return names
end

-- Options behind the "…" of a signature that no declared arguments complete.
local FURTHER = { ["T.jit"] = { "seeded? boolean", "heavy? boolean", "pin? string[]|function",
  "force? string[]|function", "unsafe_math? boolean" } }

-- Writes the class of an entry's table of options; its name, or nil.
local function options_class(out, entry, names)
  local types, order = typed(entry)
  if #order == 0 then return nil, types end
  for _, name in ipairs(names) do -- what comes by position may come by name
    if not types[name] and name ~= "options" and name ~= "..." then
      order[#order + 1], types[name] = name, { "any" }
    end
  end
  local name = entry.name .. ".Options"
  out[#out + 1] = "---@class " .. name
  for _, key in ipairs(order) do
    local kind = types[key][1]
    if MEANT[entry.name] and MEANT[entry.name][key] then kind = MEANT[entry.name][key] end
    if kind == "any" then kind = NAMED[key] or "any" end
    if not KEYWORDS[key] then out[#out + 1] = ("---@field %s? %s"):format(key, asked(kind)) end
  end
  if entry.signature:find "%(2, 3" then -- as all that make tensors
    for line in ("requires_grad boolean,device string,generator T.Generator,out perilune.Tensor"):gmatch "[^,]+" do
      local key = line:match "%S+"
      if not types[key] then out[#out + 1] = "---@field " .. line:gsub(" ", "? ", 1) end
    end
  end
  for _, line in ipairs(FURTHER[entry.name] or {}) do out[#out + 1] = "---@field " .. line end
  local complete = #(entry.arguments or {}) > 0 or FURTHER[entry.name]
  if entry.signature:find "{[^}]*…" and not complete then out[#out + 1] = "---@field [string] any" end
  out[#out + 1] = "---@field [integer] any\n"
  return name, types
end

-- Parameter lines: kinds where they are known, and the table of options wherever it may come.
local function param_lines(out, names, class, types, of, sizes, needed)
  local sized = false
  for _, name in ipairs(names) do
    sized = sized or name == "sizes"
    local t = types[name] or types[name:gsub("_$", "")]
    local meant = MEANT[of] and MEANT[of][name]
    local kind = meant or name == "options" and class or t and t[1] or "any"
    if kind == "any" and name ~= "..." then kind = NAMED[name] or "any" end
    kind = asked(kind)
    if class and kind ~= "table" then kind = kind:gsub("|table$", "") end -- which is that of its options
    if kind == class and sized then kind = kind .. "|perilune.int" end -- sizes may come one by one
    local last = class and not kind:find(class, 1, true) and kind ~= "any"
    if last then kind = kind .. "|" .. class end
    if class and kind:find(class, 1, true) then kind = kind .. "|perilune.list" end
    if name == "..." and class then -- sizes one by one, or as a list: T.randn(2, 3), T.randn({2, 3}, {dtype=})
      kind = #names == 1 and sizes and "perilune.int|perilune.list|" .. class or "any"
    end
    if needed and needed[name] then kind = "perilune.Tensor|number" end
    local left_out = name ~= "..." and not (needed and needed[name])
    out[#out + 1] = ("---@param %s %s"):format(left_out and name .. "?" or name, kind)
  end
end

-- What stands behind the arrow of a signature, piece by piece: patterns of it.
local RETURN_KINDS = { { "^true$", "boolean?" }, { "^message$", "string?" }, { "^code$", "string?" },
  { "^tensor", "perilune.Tensor" }, { "^x$", "perilune.Tensor" }, { "^T$", "table" }, { "^%u%l?$", "perilune.Tensor" },
  { "^sign$", "perilune.Tensor" }, { "^logabsdet$", "perilune.Tensor" }, { "^what holds from now on$", "boolean" },
  { "^%[", "perilune.Tensor" }, { "^%l+%d+ ?%[", "perilune.Tensor" }, { "^bool tensor$", "perilune.Tensor" },
  { "^0%-d", "perilune.Tensor" }, { "^values?$", "perilune.Tensor" }, { "^indices$", "perilune.Tensor" },
  { "^mantissa$", "perilune.Tensor" }, { "^exponent$", "perilune.Tensor" }, { "^smallest$", "perilune.Tensor" },
  { "^largest$", "perilune.Tensor" }, { "^counts$", "perilune.Tensor" },
  { "^edges$", "perilune.Tensor|perilune.Tensor[]" },
  { "^vector$", "perilune.Tensor" }, { "^view$", "perilune.Tensor" }, { "^t$", "perilune.Tensor" },
  { "^real parts$", "perilune.Tensor" }, { "^imaginary parts$", "perilune.Tensor" },
  { "^booleans?$", "boolean" }, { "^number or boolean$", "number|boolean" }, { "^numbers?$", "number" },
  { "^integer", "integer" }, { "^rank", "integer" }, { "^string$", "string" }, { "^name$", "string" },
  { "^text$", "string" }, { "^dtype$", "perilune.dtype" }, { "^list of numbers$", "number[]" },
  { "^list of integers$", "integer[]" }, { "^list of tensors$", "table<integer, perilune.Tensor>" },
  { "^list of views$", "table<integer, perilune.Tensor>" }, { "^list of strings$", "string[]" }, { "^list", "table" },
  { "^nested list or number$", "perilune.nested" }, { "^function$", "function" }, { "^transform$", "function" },
  { "^state$", "table" }, { "^the rest of the state$", "table" }, { "^{[^}]*=.*}$", "table" },
  { "^module$", "nn.Module" }, { "^optimizer$", "optim.Optimizer" }, { "^table$", "table" },
  { "^figure$", "perilune.Figure" }, { "^handle$", "perilune.Handle" }, { "^log$", "perilune.Log" },
  { "^meter$", "perilune.Meter" }, { "^dataset$", "table" }, { "^tokenizer$", "perilune.Tokenizer" },
  { "^or a meter$", "perilune.Meter" }, { "^history$", "perilune.History" }, { "^run$", "perilune.Run" },
  { "^distribution$", "T.distributions.Distribution" },
  { "^key$", "perilune.GradKey" }, { "^scope", "perilune.Scope" }, { "^packed$", "perilune.PackedSequence" },
  { "^class$", "nn.Class" }, { "^what is called like f$", "perilune.Jit" }, { "^norm$", "perilune.Tensor" },
  { "^i64 tensor$", "perilune.Tensor" }, { "^logits$", "perilune.Tensor" }, { "^features$", "perilune.Tensor" },
  { "^net$", "nn.Module" }, { "^names", "table" }, { "^free$", "integer" }, { "^total$", "integer" },
  { "^n$", "integer" },
  { "^bytes$", "integer" }, { "^matrix$", "perilune.Tensor" },
  { "^linear$", "nn.Module" }, { "^gradients$", "perilune.Tensor|table" },
  { "^y %- x$", "perilune.Tensor" },
  { "^y$", "perilune.Tensor" },
  { "^J v$", "perilune.Tensor|table" }, { "^H v$", "perilune.Tensor|table" },
  { "^lengths$", "perilune.Tensor" }, { "^template$", "perilune.Template" },
  { "^dataset of", "table" }, { "^true and ", "boolean" }, { "^what differs$", "string?" },
  { "^true or false$", "boolean" }, { "^{name = tensor}$", "table<string, perilune.Tensor>" } }

-- That text as types; any, with the text, where one piece is not known. Of several forms the first; with "; or" both.
local function returned(text)
  local held = text:match "^true, or false and (.*)$"
  if held then return "boolean, string? # " .. held end
  local list, first = {}, text:match "^([^;]*)"
  local fails = text:find(" or nil", 1, true)
  first = first:gsub(",? or nil.*$", ""):gsub(",? or a copy.*$", "")
  local depth, part = 0, ""
  for c in (first:gsub(",$", "") .. ","):gmatch "." do
    depth = depth + (c:find "[{(%[]" and 1 or 0) - (c:find "[%])}]" and 1 or 0)
    if c == "," and depth == 0 then
      local kind
      part = part:match "^%s*(.-)%s*$"
      for _, r in ipairs(RETURN_KINDS) do kind = kind or part:find(r[1]) and r[2] end
      if not kind then return "any" .. (text ~= "" and " # " .. text or "") end
      list[#list + 1], part = kind, ""
    else
      part = part .. c
    end
  end
  if #list == 0 then return "any" end
  if fails then
    list[1] = list[1]:find "%?$" and list[1] or list[1] .. "?"
    if text:find "code$" then list[4] = "integer?" end -- the number of the system's error
    for i = 2, 3 do list[i] = list[i] and list[i]:gsub("%?$", "") .. "|string?" or "string?" end -- message, code
  end
  return table.concat(list, ", ")
end

-- What calling a module gives, and its methods.
local CALLED = { LSTM = "perilune.Tensor, perilune.Tensor[]", GRU = "perilune.Tensor, perilune.Tensor",
  RNN = "perilune.Tensor, perilune.Tensor", LSTMCell = "perilune.Tensor, perilune.Tensor",
  MultiheadAttention = "perilune.Tensor, perilune.Tensor?", Module = "perilune.Tensor, any" }
for name in ("AdaptiveLogSoftmaxWithLoss MixtureOfExperts RotaryEmbedding MaxPool1d MaxPool2d MaxPool3d")
  :gmatch "%S+" do
  CALLED[name] = "perilune.Tensor, perilune.Tensor" -- of pools the second with return_indices
end
local METHODS = { parameters = "table<integer, perilune.Tensor>", buffers = "table<integer, perilune.Tensor>",
  modules = "table<integer, nn.Module>", children = "table<integer, nn.Module>",
  named_parameters = "fun(): string, perilune.Tensor", named_buffers =
  "fun(): string, perilune.Tensor", named_modules = "fun(): string, nn.Module", type = "string",
  state_dict = "table<string, perilune.Tensor>", get_parameter = "perilune.Tensor" }
local DRAWN, STATES = {}, { state_dict = "table", load_state_dict = "nil" }
for name in ("sample rsample log_prob entropy cdf icdf enumerate_support perplexity"):gmatch "%S+" do
  DRAWN[name] = "perilune.Tensor"
end
local SELF = { train = true, eval = true, to = true, half = true, float = true, double = true, bfloat16 = true,
  freeze = true, apply = true, clone = true }

local RESULT = { [0] = nil, "perilune.Tensor" }
-- Sizes may also come one by one: T.zeros(2, 3).
local SIZED = { ["T.zeros"] = true, ["T.ones"] = true, ["T.empty"] = true, ["T.rand"] = true, ["T.randn"] = true,
  ["T.uniform"] = true, ["T.normal"] = true, ["T.randint"] = true }
-- What methods return that are neither ops nor functions of T.
local RETURNS = { shape = "integer[]", size = "integer|integer[]", stride = "integer[]|integer", dim = "integer",
  numel = "integer", item = "number|boolean", get = "number|boolean", totable = "perilune.nested", dtype = "string",
  device = "string", brief = "string", describe = "string", tostring = "string", is_contiguous = "boolean",
  is_floating_point = "boolean", requires_grad_ = "perilune.Tensor", detach = "perilune.Tensor",
  set = "perilune.Tensor", retain_grad = "perilune.Tensor", cuda = "perilune.Tensor",
  cross_entropy = "perilune.Tensor", index_put = "perilune.Tensor", index_put_ = "perilune.Tensor",
  where = "perilune.Tensor", cache_write_ = "perilune.Tensor", running_update_ = "perilune.Tensor" }

-- The class of an op's table of named arguments, made once for function, method and form in place; its name.
local made
local function op_options(out, entry)
  local name = "T." .. entry.op.name .. ".Options"
  if made[name] then return name end
  made[name] = true
  out[#out + 1] = "---@class " .. name
  local has = {}
  for _, p in ipairs(entry.params) do
    local key = p.name:match "^[%w_]*"
    has[key] = true
    if not KEYWORDS[key] then
      local list = p.type == "tensor" and "|perilune.list" or "" -- nested tables are tensors
      out[#out + 1] = ("---@field %s? %s%s"):format(key, asked(type_of(p.type)), list)
    end
  end
  for key, kind in pairs { out = "perilune.Tensor|perilune.Tensor[]", dtype = "perilune.dtype", device = "string",
    requires_grad = "boolean", generator = "T.Generator", pin_memory = "boolean" } do
    if not has[key] then has[#has + 1] = ("---@field %s? %s"):format(key, kind) end
  end
  table.sort(has)
  out[#out + 1] = table.concat(has, "\n")
  out[#out + 1] = "---@field [integer] any\n"
  return name
end

local function op_function(out, entry, path, first)
  local class, names = op_options(out, entry), {}
  doc_of(out, entry)
  for i = first, #entry.params do
    local p = entry.params[i]
    local name = p.name:match "^[%w_]*"
    name = KEYWORDS[name] and name .. "_" or name
    names[#names + 1] = name
    -- tensors may come behind the dimension: x:gather(dim, index); in place of any argument but the first the table of
    -- named ones may come, so that only tensors must be there
    local kind = asked(type_of(p.type))
    if p.type == "dim" and #entry.op.args > 1 then kind = kind .. "|perilune.Tensor" end
    if p.optional or i > 1 then kind = kind .. "|" .. class .. "|perilune.list" end
    local left_out = p.optional or i > #entry.op.args
    out[#out + 1] = ("---@param %s%s %s"):format(name, left_out and "?" or "", kind)
  end
  names[#names + 1] = "..."
  out[#out + 1] = ("---@param ... %s a table of named arguments, out= among them"):format(
    SIZED[path] and "perilune.int|" .. class or "any")
  for _ = 1, math.max(1, entry.results) do out[#out + 1] = "---@return " .. RESULT[1] end
  if SIZED[path] then
    out[#out + 1] = ("---@overload fun(...: perilune.int|perilune.int[]|%s): perilune.Tensor"):format(class)
  end
  out[#out + 1] = ("function %s(%s) end"):format(path, table.concat(names, ", "))
  out[#out + 1] = ""
end

-- Functions of matrices that say nothing of their results and have one.
local SINGLE = {}
for key in ("cholesky det eigvalsh inv inverse pinv pinverse solve solve_triangular svdvals"):gmatch "%S+" do
  SINGLE[key] = true
end

-- Results that signatures do not name, or that scripts need not look at for failures: with resume= alone.
local RESULTS = { ["Tensor:item"] = "perilune.value", ["T.item"] = "perilune.value",
  ["T.memory_limit"] = "perilune.Scope|integer|nil",
  svd = "perilune.Tensor, perilune.Tensor, perilune.Tensor", qr = "perilune.Tensor, perilune.Tensor",
  eigh = "perilune.Tensor, perilune.Tensor",
  geqrf = "perilune.Tensor, perilune.Tensor", slogdet = "perilune.Tensor, perilune.Tensor",
  lu_factor = "perilune.Tensor, perilune.Tensor", nanmedian = "perilune.Tensor, perilune.Tensor?",
  get_rank = "integer", get_world_size = "integer", get_node_local_rank = "integer",
  rows = "(fun(...: any): perilune.Tensor), perilune.Tensor, integer",
  cross_entropy = "perilune.Tensor", vector_to_parameters = "perilune.Tensor",
  ["T.autocast"] = "perilune.Scope|perilune.dtype|nil", no_grad = "any", enable_grad = "any",
  pivoted_cholesky = "perilune.Tensor, perilune.Tensor, perilune.Tensor", ["T.scope"] = "perilune.Scope",
  ["T.early_stop"] = "perilune.Stop",
  ["T.open"] = "table?, string?, string?", ["T.timer"] = "perilune.Stopwatch",
  ["T.load_gguf"] = "table?, table|string|nil, table|string|nil, integer?",
  ["T.load_idx"] = "perilune.Tensor?, string?, string?, integer?",
  ["T.load_pt"] = "table|perilune.Tensor|string|number|boolean|nil, table|string|nil, string?, integer?",
  ["T.default_dtype"] = "perilune.dtype|perilune.Scope", ["T.memory"] = "table<string, integer>",
  ["T.cuda.memory_stats"] = "table<string, integer>", ["T.cuda.get_device_capability"] = "integer, integer",
  ["T.get_autocast_dtype"] = "perilune.dtype", ["T.get_float32_matmul_precision"] = "string",
  ["T.graph"] = "perilune.Graph",
  ["T.data.csv"] = "perilune.Csv?, string?, string?",
  ["T.models.image_processor"] = "perilune.ImageProcessor?, string?", ["nn.KVCache"] = "table",
  ["nn.utils.stack_module_state"] = "table<string, perilune.Tensor>, table<string, perilune.Tensor>",
  ["optim.swa_utils.update_bn"] = "nil", ["T.norm"] = "perilune.Tensor",
  ["T.fit"] = "perilune.History, perilune.Run, string? # nil, message, code where resume= fails",
  ["T.load_graph"] = "perilune.Graph?, table|string|nil, string?",
  ["T.cuda.Event"] = "perilune.Event", ["T.cuda.Stream"] = "perilune.Stream",
  ["T.log.tensorboard"] = "perilune.TensorBoard?, string?, string?",
  ["T.anomaly"] = "perilune.Scope|boolean", ["T.size"] = "integer|integer[]", ["T.stride"] = "integer|integer[]",
  ["T.linalg.lstsq"] = "perilune.Tensor, perilune.Tensor, perilune.Tensor, perilune.Tensor?",
  ["T.linearize"] = "perilune.Tensor, function", ["T.vjp"] = "perilune.Tensor, function",
  ["T.load"] = "table|perilune.Tensor|nil, table|string|nil, table|string|nil",
  ["T.models.generate"] = "perilune.Tensor|perilune.Tensor[]|table",
  ["T.quantize"] = "nn.Module, table, table?", ["T.profile"] = "table, any", ["T.cli"] = "table, string?, string?",
  eig = "perilune.Tensor, perilune.Tensor, perilune.Tensor, perilune.Tensor", max = "perilune.Tensor, perilune.Tensor",
  min = "perilune.Tensor, perilune.Tensor", unique_consecutive = "perilune.Tensor, perilune.Tensor, perilune.Tensor",
  ["T.bar"] = "any, any, any, any", ["T.hessian"] = "perilune.Argument",
  ["T.jacobian"] = "perilune.Argument",
  ["T.override_gradient"] = "function|boolean|nil",
  ["nn.utils.fuse_conv_bn_eval"] = "nn.Module", ["T.distributed.scatter_object_list"] = "table" }
for name in ("allow_tf32 benchmark cudnn deterministic"):gmatch "%S+" do RESULTS["T.cuda." .. name] = "boolean" end
for name in ("all_gather_into_tensor all_reduce all_to_all all_to_all_single broadcast reduce reduce_scatter "
  .. "reduce_scatter_tensor scatter gather all_gather"):gmatch "%S+" do
  RESULTS["T.distributed." .. name] = "perilune.Tensor|table|perilune.Work"
end
RESULTS["T.distributed.isend"], RESULTS["T.distributed.irecv"] = "perilune.Work", "perilune.Work"
RESULTS["T.distributed.new_group"] = "T.distributed.Group"
for name in ("adadelta adagrad adam adamax asgd cg cmaes lbfgs nag rmsprop rprop sgd"):gmatch "%S+" do
  RESULTS["optim.compat." .. name] = "perilune.Tensor, table, integer|perilune.Tensor|nil"
end

local function written_function(out, entry, path)
  local class, types = options_class(out, setmetatable({ name = path:gsub(":", ".") }, { __index = entry }),
    parameters(entry.signature))
  doc_of(out, entry)
  local names = path == "T.custom" and { "options" } or parameters(entry.signature)
  if entry.signature:find "^x:" and path:find "^T%." then
    if type(T[path:match "^T%.([%w_]+)$"]) ~= "function" then return end -- T.version is a text
    table.insert(names, 1, "x")
  end
  if names[#names] ~= "..." then names[#names + 1] = "..." end -- other forms of the call: all by name, several tensors
  if path == "Tensor:size" or path == "Tensor:stride" then -- of one dimension a number
    out[#out + 1] = ("---@param dim perilune.int\n---@return integer\n"
      .. "---@overload fun(self: perilune.Tensor): table<integer, integer>\nfunction %s(dim) end\n"):format(path)
    return
  end
  local returns = entry.signature:match "→%s*(.*)$" or ""
  -- Without tensors what would compute makes a meter: only what must be there tells the two apart.
  param_lines(out, names, class, types, path, entry.signature:find "%(2, 3",
    (returns:find "meter$" or returns:find "meter;" ) and { x = true, pred = true, target = true })
  -- T.grad(f) → function, T.grad(f, x, …) → gradients: with f and options alone what gives the second form's results
  local second = returns:match "^function, T%.[%w_.]+%b() → (.*)$"
  if second then
    returns = second
    out[#out + 1] = ("---@overload fun(f: function|nn.Module%s): function"):format(
      class and ", options?: " .. class or "")
  end
  local key = path:match "[%w_]+$"
  local one = path:find "^T%.special%." or (key:find "[%w]_$" and core.metatable().methods[key]) or SINGLE[key]
  if returns == "" and (path:find "^nn%.F%." or one) and not path:find "^nn%.utils%." then
    out[#out + 1] = "---@return perilune.Tensor"
  elseif RESULTS[path] or RESULTS[key] or returns ~= "" then
    out[#out + 1] = "---@return " .. (RESULTS[path] or RESULTS[key] or returned(returns))
  end
  if returns:find "meter$" then -- without values to measure
    out[#out + 1] = ("---@overload fun(options?: %s): %s"):format(class or "table",
      key == "confusion_matrix" and "perilune.Confusion" or "perilune.Meter")
  end
  out[#out + 1] = ("function %s(%s) end"):format(path, table.concat(names, ", "))
  out[#out + 1] = ""
end

-- Classes whose objects are made by those derived from them.
local BASES = { ["optim.Optimizer"] = T.optim.Optimizer,
  ["optim.lr_scheduler.LRScheduler"] = T.optim.lr_scheduler.LRScheduler }

-- What a class is derived from, and what calling an object of it gives.
local function base_of(kind)
  if kind:find "^nn%." and kind ~= "nn.Module" then return ": nn.Module" end
  if kind:find "^optim%.%w+$" and kind ~= "optim.Optimizer" then return ": optim.Optimizer" end
  if kind:find "^optim%.lr_scheduler%." and not kind:find "LRScheduler$" then
    return ": optim.lr_scheduler.LRScheduler"
  end
  if kind == "optim.swa_utils.AveragedModel" then return ": nn.Module" end
  if kind:find "^T%.distributions%." and not kind:find "Transform$" then return ": T.distributions.Distribution" end
  return ""
end

-- The class is a type alone; its name is the function that makes an object.
local function class_definition(out, entry)
  local kind = entry.name
  local options, types = options_class(out, entry, parameters(entry.signature))
  local result = kind:find "^nn%." and (CALLED[kind:match "[^.]+$"] or "perilune.Tensor")
  out[#out + 1] = ("---@class %s%s"):format(kind, base_of(kind))
  if result then
    if kind == "nn.LSTM" or kind == "nn.GRU" or kind == "nn.RNN" then
      out[#out + 1] = "---@overload fun(x: perilune.PackedSequence, ...: any): perilune.PackedSequence, any"
    end
    out[#out + 1] = ("---@overload fun(...: any): %s\n---@field [string] any"):format(result)
  end
  local has, class = {}, entry.class or BASES[kind]
  for _, m in ipairs(entry.methods or source.methods(BASES[kind])) do
    local name, args = m.signature:match "^:([%w_]+)(%b())"
    if kind == "nn.Module" and name == "forward" then goto continue end -- a subclass returns what it likes
    has[name] = true
    local list = { "self: " .. kind }
    for _, arg in ipairs(parameters(args)) do
      local tensor = name == "forward" and (arg == "x" or arg == "input" or arg == "target") and result
      list[#list + 1] = arg == "..." and "...: any" or arg .. "?: " .. (tensor and "perilune.Tensor"
        or asked(method_types.takes(kind, name, arg) or NAMED[arg] or "any"))
    end
    local gives = name == "forward" and result or result and (METHODS[name] or SELF[name] and kind)
      or kind:find "^T%.distributions%." and DRAWN[name] or STATES[name]
      or method_types.gives(kind, name, class and class[name]) or "any"
    if gives == "nil" then gives = "" end
    out[#out + 1] = ("---@field %s fun(%s)%s%s"):format(name, table.concat(list, ", "),
      gives ~= "" and ": " .. gives or "",
      m.text and m.text ~= "" and " # " .. m.text:gsub("%s+", " ") or "")
    ::continue::
  end
  for _, line in ipairs(objects.holds(kind)) do
    if not has[line:match "^%-%-%-@field ([%w_]+)"] then out[#out + 1] = line end
  end
  out[#out + 1] = ""
  doc_of(out, entry)
  local names = parameters(entry.signature)
  param_lines(out, names, options, types, kind)
  out[#out + 1] = "---@return " .. kind
  out[#out + 1] = ("function %s(%s) end"):format(kind, table.concat(names, ", "))
  out[#out + 1] = ""
end

-- inventory: docs/make/inventory.lua
return function(inventory)
  made = {}
  local list = inventory.all()
  local out, spaces, methods, parents = { objects.HEAD, objects.DISTRIBUTION }, {}, {}, {}
  for _, entry in ipairs(list) do parents[entry.name:match "^(.*)%.[^.]+$" or ""] = true end
  local function open_space(path)
    if spaces[path] then return end
    spaces[path] = true
    local parent = path:match "^(.*)%.[^.]+$"
    if parent and parent ~= "T" then open_space(parent) end
    local base = path == "nn.F" and ": perilune" or "" -- which has whatever T has
    out[#out + 1] = ("---@class perilune.%s%s\n%s%s = {}\n"):format((path:gsub("^T%.", "")), base,
      parent and "" or "local ", path)
  end
  local by_name = {}
  for _, entry in ipairs(list) do by_name[entry.name] = entry end
  for _, entry in ipairs(list) do
    local path = entry.name
    local parent = path:match "^(.*)%.[^.]+$"
    if parent and parent ~= "T" then open_space(parent) end
    local op = path:match "^nn%.F%.([%w_]+)$"
    if op and by_name["T." .. op] and by_name["T." .. op].op and T.nn.F[op] == T[op] then -- the op itself
      entry = setmetatable({ name = path, method = false, inplace = false }, { __index = by_name["T." .. op] })
    end
    local first = entry.same and by_name["T." .. entry.same:gsub("^T%.", "")]
    if first and path:find "^T%.[%w_]+$" then -- another name: the arguments are those of the first
      entry = setmetatable({ name = path, text = entry.text, method = first.op and path:match "[%w_]+$" or nil,
        signature = first.signature:gsub("^[%w_.]+", path, 1), same = false }, { __index = first })
    end
    local holder = parents[path] and path:find "^T%." -- T.log and T.plot are functions and hold others
    if holder then
      doc_of(out, entry)
      out[#out + 1] = ("---@class perilune.%s\n---@overload fun(x: any, ...: any): %s\n%s = {}\n"):format(
        path:match "[^.]*$", entry.op and "perilune.Tensor"
          or returned(entry.signature:match "→%s*(.*)$" or ""), path)
      spaces[path] = true
    end
    if holder and not entry.op then -- luacheck: ignore 542
    elseif entry.class or BASES[path] then
      class_definition(out, entry)
    elseif entry.op then
      if not holder then op_function(out, entry, path, 1) end
      if entry.method then
        methods[entry.method] = true
        op_function(out, entry, "Tensor:" .. entry.method, 2)
        if entry.inplace then op_function(out, entry, "Tensor:" .. entry.method .. "_", 2) end
      end
    else
      written_function(out, entry, path)
      local key = path:match "^T%.([%w_]+)$"
      if key and core.metatable().methods[key] and not methods[key] then
        methods[key] = true
        written_function(out, { signature = entry.signature:gsub("^T%.[%w_]+%([^,)]*,?%s*", key .. "("),
          text = entry.text, example = entry.example, arguments = entry.arguments }, "Tensor:" .. key)
      end
    end
  end
  local rest = {}
  for key, f in pairs(core.metatable().methods) do
    if type(f) == "function" and not methods[key] and not key:find "^_" and not methods[key:match "^(.*)_$" or ""] then
      rest[#rest + 1] = key
    end
  end
  table.sort(rest)
  for _, key in ipairs(rest) do
    out[#out + 1] = ("---@return %s\nfunction Tensor:%s(...) end\n"):format(RETURNS[key] or "any", key)
  end
  for _, name in ipairs { "nn", "optim" } do
    if spaces[name] then out[#out + 1] = ("T.%s = %s"):format(name, name) end
  end
  out[#out + 1] = "return T"
  return table.concat(out, "\n") .. "\n"
end
