-- SPDX-License-Identifier: MIT
--- What is probably meant where Lua's own message names a fault and no way out: "attempt to call a nil value (field
-- 'Relu')", "')' expected near '='". For the prompt, for scripts that the command runs, and for T.help. A hint names
-- something that is there and is not what was asked for, or nothing.
-- @module perilune.help.hints
local core = require "perilune.core"
local M = {}

local home = debug.getinfo(1, "S").source:gsub("help/hints%.lua$", "")

--- Is a chunk's source one of perilune's own files?
function M.own(source) return source:sub(1, #home) == home end

-- ---- what a line sees ---------------------------------------------------------------------------------------

--- The variables that a frame sees, name → {value}: locals over upvalues.
function M.variables(level, f)
  local vars = {}
  for i = 1, 250 do
    local name, value = debug.getupvalue(f, i)
    if not name then break end
    vars[name] = { value }
  end
  for i = 1, 250 do
    local name, value = debug.getlocal(level + 1, i)
    if not name then break end
    if name:find "^[%a_]" then vars[name] = { value } end
  end
  return vars
end

--- Line n of a text, or of a file.
function M.line_of(text, n)
  local at = 0
  for line in (text .. "\n"):gmatch "([^\n]*)\n" do
    at = at + 1
    if at == n then return line end
  end
  return nil
end

function M.file_line(path, n)
  local f = n > 0 and io.open(path)
  if not f then return nil end
  local line
  for _ = 1, n do line = f:read "l" end
  f:close()
  return line
end

--- Does a line give the variable a value: local y = …, y, z = …?
function M.assigns(line, name)
  local at = line and (line:find("^%s*local%s+" .. name .. "%s*[,=]") or line:find("^%s*" .. name .. "%s*[,=]"))
  return at ~= nil
end

-- The value of a path such as nn.F, of locals first.
local function at_path(path, vars, env)
  local walk = require "perilune.repl.walk"
  local first, rest = path:match "^([%a_][%w_]*)(.*)$"
  local slot = first and vars and vars[first]
  if slot then
    local found, value = walk.resolve("slot" .. rest, { slot = slot[1] })
    return found and value or nil
  end
  local found, value = walk.resolve(path, env)
  return found and value or nil
end

local function is_tensor(v)
  local meta = type(v) == "userdata" and debug.getmetatable(v)
  return type(meta) == "table" and rawget(meta, "__name") == "tensor"
end

-- Names of other languages and of other prompts.
local GLOBALS = { exit = "Ctrl-D or :quit ends the prompt, os.exit() a script", True = "Lua writes true",
  False = "Lua writes false", None = "Lua writes nil", null = "Lua writes nil", len = "the length of t is #t",
  range = "for i = 1, n do … end counts; T.arange(n) is a tensor", torch = "perilune's functions are in T",
  np = "perilune's functions are in T", F = "it is nn.F", str = "Lua has tostring", int = "x:long() of a tensor, "
  .. "math.tointeger(v) of a number", float = "x:float() of a tensor, tonumber(v) of a text",
    dir = "a name and Tab shows "
  .. "what is in it", enumerate = "for i, v in ipairs(list) do … end", cls = nil, isinstance = "T.is_tensor(v), "
  .. "nn.is_module(v), type(v)" }
GLOBALS.quit = GLOBALS.exit
GLOBALS.iter = "for x, y in loader do … end goes over a loader, ipairs(list) over a list"
GLOBALS.zip = "for i, a in ipairs(list) do local b = other[i] … end"
GLOBALS.sum, GLOBALS.max, GLOBALS.min = "x:sum()", "x:max(), or math.max(a, b)", "x:min(), or math.min(a, b)"
GLOBALS.abs, GLOBALS.round = "x:abs(), or math.abs(v)", 'x:round(), or ("%.2f"):format(v)'
GLOBALS.open, GLOBALS.input = "io.open(path)", "io.read()"
GLOBALS.list, GLOBALS.dict, GLOBALS.tuple = "a list is { 1, 2, 3 }", "a dictionary is { name = value }",
  "a list is { 1, 2, 3 }"
GLOBALS.map, GLOBALS.sorted = "for i, v in ipairs(list) do list[i] = f(v) end", "table.sort(list)"
GLOBALS.pd, GLOBALS.plt = "T.data.csv(path) reads tables", "T.plot(x, y) draws"
GLOBALS.T = 'local T = require "perilune"'
GLOBALS.nn, GLOBALS.optim, GLOBALS.data = "local nn = T.nn", "local optim = T.optim", "local data = T.data"
GLOBALS.self = "self is there inside of a method: function Net:forward(x) … end"
GLOBALS.super = "a constructor is function Net:init(…) … end, and calls nothing of its parent's"

-- The space that a path of a script stands for, by its last part: "T.nn" is nn.
local SPACES = { nn = "nn.", F = "nn.F.", optim = "optim.", data = "data.", T = "", init = "nn.init.",
  linalg = "linalg.",
  lr_scheduler = "optim.lr_scheduler.", metrics = "metrics.", utils = "nn.utils.", transforms = "data.transforms.",
  models = "models.", onnx = "onnx.", swa_utils = "optim.swa_utils.", cuda = "cuda.", parallel = "nn.parallel.",
  quant = "nn.quant.", rnn = "nn.utils.rnn.", prune = "nn.utils.prune.",
  parametrize = "nn.utils.parametrize.", parametrizations = "nn.utils.parametrizations.",
  plot = "plot.", log = "log.", special = "special.", distributions = "distributions.", distributed = "distributed." }

-- What a method of another language's texts and lists is in Lua.
local LISTS = { append = "t[#t + 1] = v, or table.insert(t, v), appends", push = "t[#t + 1] = v appends",
  insert = "table.insert(t, [at,] v)", remove = "table.remove(t, at)", pop = "table.remove(t)", sort = "table.sort(t)",
  join = "table.concat(t, sep)", concat = "table.concat(t, sep)", len = "the length of t is #t",
  size = "the length of t is #t", items = "for k, v in pairs(t) do … end", keys = "for k in pairs(t) do … end",
  values = "for _, v in pairs(t) do … end", extend = "table.move(other, 1, #other, #t + 1, t)",
  copy = "table.move(t, 1, #t, 1, {})" }
local TEXTS = { split = "for word in s:gmatch('[^,]+') do … end", strip = "s:match('^%s*(.-)%s*$')",
  replace = "s:gsub('from', 'to')", startswith = "s:sub(1, n) == start", endswith = "s:sub(-n) == ending",
  join = "table.concat(list, sep)", length = "#s" }
-- What tensors of others have.
local TENSORS = { type = "x:to(dtype) converts, x:dtype() tells", T = "x:t()",
  data = "x:detach()", ndim = "x:dim()", show = "print(x), or x:imshow()", plot = "T.plot(x)", append =
  "T.cat({x, y}, 1)", resize = "x:reshape(…)", len = "#x, the size of dim 1", length = "#x, the size of dim 1" }
-- What networks of others have.
local MODULES = { fit = "T.fit(net, { train = loader, optimizer = opt }) trains",
  predict = "T.no_grad(function() return net(x) end)",
  compile = "loss and optimizer go to T.fit; T.compile(net) compiles",
  evaluate = "T.fit measures on valid =; net:eval() switches to evaluation", cuda = 'net:to("cuda")',
  save_pretrained = "T.models.save(net, folder); adapters: nn.save_lora(net, folder)",
  extend = 'local Net = nn.class("Net")', subclass = 'local Net = nn.class("Net")', new = "Net(…) makes one",
  print_trainable_parameters = "net:num_parameters { trainable = true }", merge_and_unload = "nn.merge_lora(net)",
  set_adapter = "nn.set_adapter(net, name)", add_adapter = "nn.lora(net, { name = … })",
  load_adapter = "nn.load_lora(net, folder, { name = … })", disable_adapter = "nn.set_adapter(net, false)",
  gradient_checkpointing_enable = "nn.checkpointed(net)" }
-- What tokenizers of others have.
local TOKENIZERS = { batch_decode = "t:decode(row) of each row", batch_encode_plus = "t(texts, { padding = true })",
  encode_plus = "t(text)", convert_tokens_to_ids = "t:id(token)", convert_ids_to_tokens = "t:token(id)",
  tokenize = "t(text, { full = true }).tokens", save_pretrained = "t:save(path)", get_vocab_size = "#t",
  from_pretrained = "T.data.tokenizer(folder)", from_file = "T.data.tokenizer(path)" }
-- What T, nn and optim of others have.
local FUNCTIONS = { device = 'devices are texts: device = "cpu" or "cuda"', dtype = 'dtypes are texts: dtype = "f64"',
  Variable = "a tensor is enough: x:requires_grad_()", array = "T.tensor { … }", Dense = "nn.Linear(in, out)",
  asarray = "T.tensor { … }", compile = "T.jit(f)", Input = "nn.Linear(in, out) is given its sizes", fit = "T.fit",
  Tensor = "T.tensor(values), or T.empty(2, 3) of sizes", FloatTensor = "T.tensor(values), or T.empty(2, 3) of sizes",
  LongTensor = 'T.tensor(values, { dtype = "i64" })' }

-- What matplotlib's functions are.
local PLOTS = { bar = 'T.plot(y, { style = "bars" })', barh = 'T.plot(y, { style = "bars" })', line = "T.plot(x, y)",
  plot = "T.plot(x, y)",
  show = "print(figure) draws in the terminal", savefig = "figure:png(path), or figure:svg(path)",
  title = "an option: T.plot(x, y, { title = … })", xlabel = "an option: T.plot(x, y, { xlabel = … })",
  ylabel = "an option: T.plot(x, y, { ylabel = … })", legend = "an option: T.plot(ys, { labels = { … } })",
  figure = "T.plot gives one", subplots = "each T.plot is a figure of its own", imshow = "T.imshow(x)" }

-- The table of perilune's that a space is: "nn.F." → T.nn.F.
local function space_itself(space)
  local v = space and require "perilune"
  for key in (space or ""):gmatch "[^.]+" do v = type(v) == "table" and v[key] or nil end
  return v
end

-- y = net(x), of a network whose forward returns nothing; t = T.load(path) of a file that is not there: why a variable
-- is nil, by the line where it got that.
local function why_nil(name, line, vars, env)
  local call = line and line:match("%f[%w_]" .. name .. "%f[^%w_][^=]*=%s*([%a_][%w_.]*)%s*[({\"']")
  local value = call and at_path(call, vars, env)
  if call and value == nil then value = call:find "^T%." and space_itself(call:sub(3)) end
  if require("perilune.nn.module").is_module(value) then
    return ("; %s = %s(…) gave nothing: does its forward return the result?"):format(name, call)
  end
  local path = type(value) == "function" and call:match "^T%.(.*)$"
  local page = path and require("perilune.help.pages").all()[path]
  if page and page.signature and page.signature:find("or nil", 1, true) then
    return ("; %s gave nil, and says why in its second result: assert(%s(…)) raises that"):format(call, call)
  end
end

local function told_path(path) return ("; is %s meant?"):format(path) end

local function called_nil(kind, name, line, vars, env)
  local walk = require "perilune.repl.walk"
  local elsewhere = require "perilune.help.elsewhere"
  local near
  if kind == "global" then
    local self = vars and vars.self and vars.self[1]
    if type(self) == "table" and require("perilune.nn.module").is_module(self) and self[name] ~= nil then
      return ("; it is self.%s"):format(name)
    end
    if GLOBALS[name] then return "; " .. GLOBALS[name] end
    if name == "f" and line and line:find "%f[%w_]f[\"']" then
      return '; texts are made by ("%d of %s"):format(n, name)'
    end
    near = #name > 2 and elsewhere.nearest(name, walk.members(env))
    if near then return ("; did you mean '%s'?"):format(near) end
    return #name > 2 and elsewhere.find(name) and told_path(elsewhere.find(name)) or ""
  end
  local mark = kind == "method" and ":" or "%."
  local holder, value
  for path in (line or ""):gmatch("([%a_][%w_.]*)%s*" .. mark .. "%s*" .. name .. "%f[^%w_]") do
    holder, value = path, at_path(path, vars, env)
    if not (is_tensor(value) and core.metatable().methods[name]) then break end -- out:shape(), h:shape(): h has none
  end
  local meta = value ~= nil and type(value) == "table" and debug.getmetatable(value)
  local spaced = holder and SPACES[holder:match "[^.]+$"]
  -- a variable that is only called as a part of perilune is: log, data
  if meta and not rawget(meta, "__lazy") and value ~= space_itself(spaced) then spaced = nil end
  local list = type(value) == "table" and (debug.getmetatable(value) == nil or rawget(meta, "__name") == "StateDict")
  local other = type(value) == "string" and TEXTS or is_tensor(value) and TENSORS
    or (require("perilune.nn.module").is_module(value) or value == require("perilune").nn.Module) and MODULES
    or meta and rawget(meta, "__name") == "tokenizer" and TOKENIZERS or spaced and FUNCTIONS or list and LISTS
  if spaced and list then other = FUNCTIONS end
  if spaced == "plot." then other = PLOTS end
  if other and rawget(other, name) then return "; " .. other[name] end
  if (spaced or is_tensor(value)) and elsewhere.other(name) then return told_path(elsewhere.other(name)) end
  if spaced == "" and require("perilune.help.methods").named(name) then -- T.state_dict(net)
    return "; it is a method: " .. require("perilune.help.methods").named(name):match "^[^\n]*"
  end
  local methods = core.metatable().methods
  if list and kind == "method" and methods[name] then -- local out, h = lstm(x); h:shape()
    return ("; %s is a table%s, not a tensor"):format(holder, #value > 0 and (" of %d values"):format(#value) or "")
  end
  if value ~= nil then
    near = elsewhere.nearest(name, walk.members(value, kind == "method"), #name <= 2)
    if near then return ("; did you mean '%s'?"):format(near) end
  end
  local space = spaced
  -- a table or text of the script's has nothing to do with the functions of T
  if value ~= nil and not is_tensor(value) and not space then return "" end
  if value == nil and kind == "method" and not spaced then
    if methods[name] then -- net:parameters():size()
      local hint = LISTS[name] and "; of a list: " .. LISTS[name] or ""
      return ("; what %s is called on is no tensor%s"):format(name, hint)
    end
    if elsewhere.other(name) then return told_path(elsewhere.other(name)) end
    if TENSORS[name] then return "; " .. TENSORS[name] end
    near = elsewhere.method(name) -- T.randn(2):permutee(1), of a result, whatever it is
    return near and near ~= name .. "_" and ("; did you mean '%s'?"):format(near) or ""
  end
  local path = #name > 2 and elsewhere.find(name, is_tensor(value) and "x" or space)
  return path and path ~= (holder or "") .. "." .. name and told_path(path) or ""
end

-- `local w = f()` and below it `(w * w):sum()`: Lua goes on over the end of the line, and w is not there yet.
local function goes_on(message, line, before)
  local name = message:match "attempt to [%a ]+ a nil value %(global '([%a_][%w_]*)'%)$"
  if name and line and line:find "^%s*%(" and before and before:find("%f[%w_]" .. name .. "%f[^%w_].*%)%s*$") then
    return "; a line that begins with ( goes on with the call above it: put a ; before the ("
  end
end

-- M.runtime: a hint for a message of Lua at run time: text to add behind it, or "". line: the script's line, if known;
-- vars: what it sees (M.variables), env: its globals; before, after: the lines around; assigned(name): the line above,
-- where a variable got its value.
local function runtime(message, line, vars, env, before, after, assigned)
  if after and after:find "^%s*%(" and line and line:find "%)%s*$" and message:find "attempt to call a %a+ value$" then
    return "; the next line begins with ( and so goes on with this one: put a ; before the ("
  end
  if line and line:find "^%s*[%a_][%w_.]*%s*<%-%s" and message:find("compare", 1, true) then
    return "; an assignment is written x = …"
  end
  if line and message:find ": argument x is missing$" then -- x.sum()
    local method = message:match "([%a_][%w_]*): argument x is missing$"
    local holder = line:match("([%a_][%w_.]*)%." .. method .. "%s*%(")
    if holder and is_tensor(at_path(holder:match "^[^.]+", vars, env)) then
      return ("; a method is called with a colon: %s:%s()"):format(holder, method)
    end
    if line:find("[%)%]]%s*%." .. method .. "%s*%(") then -- T.randn(2).sum(): of a result, whatever it is
      return ("; a method is called with a colon: (…):%s()"):format(method)
    end
  end
  local plain = line and message:match "call it as x:([%a_][%w_]*)%(%)$" -- x:max().item(): not of x
  if plain and line:find("[%)%]]%s*%." .. plain .. "%s*%(") then return (", here (…):%s()"):format(plain) end
  local object = plain and "x"
  if line and not plain then object, plain = message:match ": call it with a colon, ([%a_][%w_]*):([%a_][%w_]*)%(" end
  local own = plain and line:match("%f[%w_]([%a_][%w_.]*)%." .. plain .. "%s*%(") -- optimizer.step(): its own name
  local given = own and not line:find(plain .. "%s*%(%s*%)")
  if own and (own ~= object or given) then
    return (", here %s:%s(%s)"):format(own, plain, given and "…" or "")
  end
  local called = line and message:match "^([%a_][%w_]*): argument [%w_]*%s*%(?#1%)? must be a tensor, got "
  if called and not message:find("call it as", 1, true) then -- x.reshape(3, 2)
    local holder = line:match("([%a_][%w_.]*)%." .. called .. "%s*%(")
    if holder and is_tensor(at_path(holder:match "^[^.]+", vars, env)) then
      return ("; a method is called with a colon: %s:%s(…)"):format(holder, called)
    end
    if line:find("[%)%]]%s*%." .. called .. "%s*%(") then
      return ("; a method is called with a colon: (…):%s(…)"):format(called)
    end
  end
  if line and line:find "[=~]=" and message:find "attempt to %a+[%a ]* a boolean value" then
    return "; a == b asks whether both are the same object; elementwise it is a:eq(b), T.equal(a, b) compares all"
  end
  local remark = line and (line:find "^%s*#+%s+%S" or line:find "^%s*#%S+%s+%S")
  if remark and message:find("attempt to get length of a nil value", 1, true) then
    return "; comments begin with --"
  end
  if line and message:find("^tensor: entries must be numbers or booleans, got string") and line:find("[[", 1, true) then
    return "; [[…]] is a text, and nested lists are written { { 1, 2 }, { 3, 4 } }"
  end
  if message:find "attempt to mod a 'string' with" then return '; texts are made by ("%d of %s"):format(n, name)' end
  if message:find "attempt to add a '%l+' with a '%l+'$" and message:find("'string'", 1, true) then
    return "; texts are joined by a .. b"
  end
  if message:find("arithmetic on a table value", 1, true) and line and line:find("+", 1, true) then
    return "; lists are joined by table.move(b, 1, #b, #a + 1, a); an optimizer takes groups, { { params = a }, "
      .. "{ params = b } }"
  end
  if message:find("number expected, got table", 1, true) then
    return "; of a list, #t is the length and t[1] the first entry; of a tensor, x:size(1)"
  end
  if message:find("nil value (field 'grad')", 1, true) and not message:find("index", 1, true) then
    local holder = line and line:match "([%a_][%w_.]*)%s*%.%s*grad%f[^%w_]"
    local x = holder and at_path(holder, vars, env)
    if is_tensor(x) and not x.is_leaf then
      return ("; %s is a result of ops, which keep no gradient; parameters are changed in place, inside of "
        .. "T.no_grad(): %s:sub_(…)"):format(holder, holder)
    end
    return holder and ("; %s.grad is nil until a backward has reached it: %s:requires_grad_() before, "
      .. "y:backward() after"):format(holder, holder) or ""
  end
  if message:find("attempt to concatenate a table value", 1, true) then
    return '; table.concat(list, ", ") joins the entries of a list'
  end
  if message:find("number expected, got tensor", 1, true) then return "; the number of a tensor is x:item()" end
  if message:find "^where: argument x is missing$" then return "; the places are condition:nonzero()" end
  local indexed = message:match "attempt to call a tensor value %(%a+ '([%a_][%w_]*)'%)$"
  if indexed then
    local inner = line and line:match("%f[%w_]" .. indexed .. "%(([%d, :-]+)%)")
    return inner and ('; an element or a part is %s["%s"]'):format(indexed, inner)
      or "; a tensor is no function: it has elements, x[1], and methods, x:sum()"
  end
  local field = message:match "attempt to call a %a+ value %(method '([%a_][%w_]*)'%)$"
  if field and not message:find("a nil value", 1, true) then return ("; %s is a field: x.%s"):format(field, field) end
  if line and message:find("'for iterator' (table expected, got function)", 1, true) then
    return "; pairs and ipairs take tables: an iterator stands alone, for name, v in iterator do … end"
  end
  local dotted, method, what = (line or ""):match "%f[%w_]([%a_][%w_.]*)%.([%a_][%w_]*)%s*(%b())"
  if dotted and not SPACES[dotted] and not message:find("colon", 1, true) then -- net.forward(x)
    local net = at_path(dotted, vars, env)
    if require("perilune.nn.module").is_module(net) and rawget(net, method) == nil
      and type(at_path(dotted .. "." .. method, vars, env)) == "function" then
      return ("; a method is called with a colon: %s:%s%s"):format(dotted, method, what)
    end
  end
  local on = goes_on(message, line, before)
  if on then return on end
  local entry = message:find("nil value (field '?')", 1, true) or message:find("(field 'integer index')", 1, true)
  if line and entry then -- of a list: list[0].lr
    local list, at = line:match "([%a_][%w_.]*)%s*%[%s*(%-?%d+)%s*%]"
    local of = list and at_path(list, vars, env)
    local result = not list and line:match "[%)%]]%s*%[%s*(%-?%d+)%s*%]"
    local n = tonumber(at or result)
    if n == 0 then return ("; lists count from 1%s"):format(list and (": %s[1]"):format(list) or "") end
    if n and n < 0 then return ("; the last entry of a list is t[#t]%s"):format(list and (", %s[#%s]"):format(list,
      list) or "") end
    if n and type(of) == "table" and n > #of then return ("; %s has %d entries"):format(list, #of) end
  end
  local kind, name = message:match "attempt to call a nil value %((%a+) '([%a_][%w_]*)'%)$"
  if kind == "field" or kind == "method" or kind == "global" then return called_nil(kind, name, line, vars, env) end
  name = message:match "a function value %(field '([%a_][%w_]*)'%)"
  local owner = name and line and line:match("%f[%w_]([%a_][%w_]*)%s*%.%s*" .. name .. "%f[^%w_]")
  if owner and SPACES[owner] then return ("; %s.%s is a function: %s.%s(…)"):format(owner, name, owner, name) end
  if message:find("%f[%w_]function%f[^%w_]") and not message:find("global 'function'", 1, true) then
    return require("perilune.help.uncalled").hint(line, vars, env)
  end
  kind, name = message:match "attempt to index a nil value %((%a+) '([%a_][%w_]*)'%)$"
  if kind and kind ~= "field" and assigned then
    local why = why_nil(name, assigned(name), vars, env)
    if why then return why end
  end
  if kind == "field" then
    local holder = line and line:match("([%a_][%w_.]*)%s*%.%s*" .. name .. "%f[^%w_]")
    local value
    if holder then value = at_path(holder, vars, env) end
    if is_tensor(value) and TENSORS[name] then return "; " .. TENSORS[name] end
    if is_tensor(value) and name == "grad" and not value.is_leaf then
      return ("; %s is a result of ops, which keep no gradient: %s:retain_grad() before the backward"):format(holder,
        holder)
    end
    if is_tensor(value) and name == "grad" then
      return (
        "; %s.grad is nil until a backward has reached it: %s:requires_grad_() before, y:backward() after"):format(
        holder, holder)
    end
    if value == nil then return "" end
    local elsewhere = require "perilune.help.elsewhere"
    local space = SPACES[holder:match "[^.]+$"]
    local rest = space and line:match(name .. "%.([%w_.]+)") -- T.utils.data.DataLoader: by its last name
    local whole = rest and elsewhere.other(name .. "." .. rest)
    for part in (name .. "." .. (rest or "")):gmatch "[%w_]+" do whole = whole or rest and elsewhere.other(part) end
    local last = rest and rest:match "[%a_][%w_]*$"
    whole = whole or last and #last > 2 and elsewhere.find(last)
    if whole then return told_path(whole) end
    if space and elsewhere.other(name) then return told_path(elsewhere.other(name)) end
    local near = elsewhere.nearest(name, require("perilune.repl.walk").members(value))
    if near then return ("; did you mean '%s'?"):format(near) end
    local path = space and #name > 2 and elsewhere.find(name, space)
    return path and path ~= holder .. "." .. name and told_path(path) or ""
  end
  if message:find("attempt to call a tensor value %(for iterator") then
    return "; for i, row in ipairs(x) do … end goes over a tensor's rows"
  end
  if message:find "attempt to call a tensor value$" then
    return "; a tensor is no function: it has elements, x[1], and methods, x:sum()"
  end
  if message:find("attempt to call a StateDict value (for", 1, true) then
    return "; for name, t in pairs(state) do … end"
  end
  if message:find("attempt to call a StateDict value", 1, true) then
    return "; a file holds parameters, not the network: net:load_state_dict(T.load(path)), then net(x)"
  end
  if message:find("attempt to call a table value %(for iterator") then
    return "; for i, v in ipairs(list) do … end goes over a list, pairs(t) over any table"
  end
  if kind == "global" then
    if GLOBALS[name] then return "; " .. GLOBALS[name] end
    local near = #name > 2 and require("perilune.help.elsewhere").nearest(name, require("perilune.repl.walk").members(
      env))
    return near and ("; did you mean '%s'?"):format(near) or ""
  end
  return ""
end

-- x.mul_(2), (a + b).eq(0): a method of a tensor that was called without it, whatever the op then missed.
local function dotted_method(message, line, vars, env)
  if not line or not message:find "^[%a_][%w_.]*: " or message:find "with a colon" or message:find "call it as" then
    return nil
  end
  local methods = core.metatable().methods
  for holder, method, given in line:gmatch "%f[%w_]([%a_][%w_.]*)%.([%a_][%w_]*)%s*(%b())" do
    if methods[method] and is_tensor(at_path(holder, vars, env)) then
      return ("; a method is called with a colon: %s:%s(%s)"):format(holder, method, given:find "%S.*%S" and #given > 2
        and "…" or "")
    end
  end
  local method = line:match "[%)%]]%s*%.([%a_][%w_]*)%s*%("
  local first = method and message:match "^[%a_][%w_]*"
  local same = method and (first == method or methods[first] == methods[method])
  local amiss = message:find "tensor" or message:find " is missing" -- linalg.svd: argument A is missing
  if method and methods[method] and (same or amiss) then
    return ("; a method is called with a colon: (…):%s(…)"):format(method)
  end
end

M.runtime = function(message, line, vars, env, ...)
  local hint = runtime(message, line, vars, env, ...)
  return hint == "" and dotted_method(message, line, vars, env) or hint
end

-- ---- syntax -------------------------------------------------------------------------------------------------

local KEYWORDS = {
  import = 'local T = require "perilune"', from = 'local T = require "perilune"',
  def = "function f(x) … end", class = 'local Net = nn.class("Net")', elif = "elseif … then",
  with = "do local _ <close> = T.no_grad() … end, or T.no_grad(function() … end)", lambda = "function(x) return … end",
  print = "print(…), with brackets", try = "pcall(f)", except = "local ok, message = pcall(f)",
    raise = "error(message)",
  assert = "assert(condition, message), with brackets", del = "x = nil", help = 'T.help("name"); at the prompt ?name',
  pass = "nothing: a block may be empty", var = "local", let = "local", const = "local", switch = "if … elseif … end",
}

-- What values of Python are here, and names of its options.
local VALUES = { True = "true", False = "false", None = "nil" }
local OPTIONS = { axis = "dim", keepdims = "keepdim" }

-- The pieces of a list of arguments between commas.
local function pieces(inner)
  local list, depth, part = {}, 0, ""
  for c in (inner .. ","):gmatch "." do
    depth = depth + (c:find "[{%[]" and 1 or 0) - (c:find "[}%]]" and 1 or 0)
    if c == "," and depth == 0 then
      list[#list + 1], part = part:match "^%s*(.-)%s*$", ""
    else
      part = part .. c
    end
  end
  return list
end

-- f(x, a=1, b=False): what is named goes into one table.
local function named(code)
  local at, _, name, inner = code:find "([%a_][%w_.:]*)%(([^()]*)"
  while at do
    local plain, options = {}, {}
    for _, piece in ipairs(pieces(inner)) do
      local key, value = piece:match "^([%a_][%w_]*)%s*=%s*([^=].*)$"
      if key then
        value = VALUES[value] or value:gsub("^torch%.([%w_]+)$", '"%1"'):gsub("^np%.([%w_]+)$", '"%1"')
        options[#options + 1] = ("%s = %s"):format(OPTIONS[key] or key, value)
      else
        plain[#plain + 1] = piece
      end
    end
    if #options > 0 then
      local object, method = name:match "^(%l[%w_]*)%.([%a_][%w_]*)$" -- x.sum(dim=1): a method of a tensor
      if object and not SPACES[object] and core.metatable().methods[method] then name = object .. ":" .. method end
      if code:sub(1, at - 1):find "[%)%]]%s*[.:]$" then name = "(…):" .. name end
      plain[#plain + 1] = "{" .. table.concat(options, ", ") .. "}"
      return ("named arguments go into a table at the end: %s(%s)"):format(name, table.concat(plain, ", "))
    end
    at, _, name, inner = code:find("([%a_][%w_.:]*)%(([^()]*)", at + #name) -- a call among its arguments
  end
end

-- x[:, 1] and its like: as a table and as a text. A 0 says that it counts from 0, as Python does.
local function key_of(name, inner)
  local parts, new = pieces(inner), nil
  local from_zero = false
  for i, part in ipairs(parts) do
    if part == "None" or part:find "newaxis$" then new = new or i end
    from_zero = from_zero or part == "0" or part:find "^0:" ~= nil
  end
  if new then return ("a new dimension of size 1 is %s:unsqueeze(%d)"):format(name, new) end
  local function shifted(n) -- a position of Python's, from 0, as one from 1
    return from_zero and n:find "^%d+$" and ("%d"):format(tonumber(n) + 1) or n
  end
  local list, texts, plain = {}, {}, name:find "^[%a_]" ~= nil
  for i, part in ipairs(parts) do
    local from, to = part:match "^(%-?%w*):(%-?%w*)$"
    if from then
      from = shifted(from)
      if from_zero and to:find "^%-%d+$" then to = ("%d"):format(tonumber(to) - 1) end -- there the end is left out
      list[i] = from == "" and to == "" and "{}"
        or ("{%s, %s}"):format(from == "" and "1" or from, to == "" and "-1" or to)
      texts[i] = from .. ":" .. to
    else
      list[i] = shifted(part)
      texts[i] = list[i]
    end
    plain = plain and part ~= "..." -- which would be arguments
  end
  local text = ('%s["%s"]'):format(name, table.concat(texts, ", "))
  return ("an index of several dimensions is one %s%s; ranges count from 1 and include both ends"):format(
    plain and ("table or one text: %s[{%s}] or "):format(name, table.concat(list, ", ")) or "text: ", text)
end

-- {what the line contains, hint; or function of the captures that makes one}
local PATTERNS = {
  { "([%a_][%w_.]*%[.*%])%s*([-+*/])=%f[^=]", function(name, sign)
    if name:find "[\"']" then name = "t[i]" end -- a text, which is not in here
    return ("Lua has no %s=: %s = %s %s …"):format(sign, name, name, sign)
  end },
  { "([%a_][%w_.]*)%s*(%S)=%f[^=]", function(name, sign)
    local op = ({ ["+"] = "add", ["-"] = "sub", ["*"] = "mul", ["/"] = "div" })[sign]
    if op then
      return ("Lua has no %s=: %s = %s %s …, or in place %s:%s_(…)"):format(sign, name, name, sign, name, op)
    end
    if sign == "!" then return "Lua writes ~= for 'not equal'; elementwise it is x:ne(y)" end
  end },
  { "[.:]%s*repeat%s*%(", function() return "repeat is a word of Lua's: x:tile(…)" end, "repeat" },
  { "%(%s*[%a_][%w_]*%s*,[%a_%w%s,]*%)%s*=%f[^=]", function() return "several values are a plain list: o, h, c = …" end,
    "%(" },
  { "^%s*[%a_][%w_]*%s*,%s*%(%s*[%a_][%w_]*%s*,[%a_%w%s,]*%)%s*=%f[^=]", function()
    return "several values are a plain list: o, h, c = …"
  end, "," },
  { "([%a_][%w_.]*)%s*%+%+%s*$", function(name) return ("Lua has no ++: %s = %s + 1"):format(name, name) end },
  { "%[.*%f[%w_]for%f[^%w_].*%f[%w_]in%f[^%w_].*%]", function()
    return "a list is made in a loop: for i, v in ipairs(list) do made[i] = f(v) end"
  end, "%[" },
  { "[=(,]%s*%[", function() return "a list is written { 1, 2, 3 }" end, "%[" },
  { "^%s*%[", function() return "a list is written { 1, 2, 3 }" end, "%[" },
  { "%f[%w_]return%s*%[", function() return "a list is written { 1, 2, 3 }" end, "%[" },
  { "^%s*if%f[%A].*:", function() return "if … then … else … end, without a colon" end, ":" },
  { "function%s*[%w_.:]*%s*%b()%s*:", function() return "function f(x) … end, without a colon" end, ":" },
  { "^%s*while%f[%A].*:", function() return "while … do … end, without a colon" end, ":" },
  { "@", function() return "the matrix product is a:matmul(b)" end, "@" },
  { "%%%*%%", function() return "the matrix product is a:matmul(b)" end, "%%" },
  { "=>", function() return "a function is written function(x) return … end" end, "=" },
  { "%*%*", function() return "the power is x ^ y" end, "%*" },
  { "&&", function() return "Lua writes and; elementwise it is x:logical_and(y)" end, "&" },
  { "||", function() return "Lua writes or; elementwise it is x:logical_or(y)" end, "|" },
  { "!%s*[%a_(]", function() return "Lua writes not" end, "!" },
  { "^%s*#", function() return "comments begin with --" end },
  { "^%s*//", function() return "comments begin with --" end, "//" },
  { "%d%.%.%d", function() return "for i = 1, n do … end counts; texts are joined by a .. b, with spaces" end, "%." },
  { "^%s*%a*if%f[%A][^=~<>]*[^=~<>]=%f[^=]", function() return "equality is a == b" end, "=" },
  { "^%s*while%f[%A][^=~<>]*[^=~<>]=%f[^=]", function() return "equality is a == b" end, "=" },
  { "=.*%f[%w_]if%f[^%w_].*%f[%w_]else%f[^%w_]", function() return "one of two values is condition and a or b" end,
    "'else'" },
  { "([%a_][%w_.]*)%s*%[([^%[%]{}\"']*[:,][^%[%]{}\"']*)%]", function(name, inner) return key_of(name, inner) end },
  { "%)%s*%[([^%[%]{}\"']*[:,][^%[%]{}\"']*)%]", function(inner) return key_of("(…)", inner) end },
  { "for%s+[%a_][%w_]*%s+in%s+range", function() return "for i = 1, n do … end counts" end },
  { "for%s+.*%s+in%s+enumerate", function() return "for i, v in ipairs(list) do … end" end },
  { "^%s*for%f[%A].*%f[%w]in%f[%W]", function() return "for i, v in ipairs(list) do … end goes over a list" end,
    "'do' expected" },
  { "^%s*while%f[%A].*:%s", function() return "while … do … end, without a colon" end, "function arguments" },
  { "^%s*if%f[%A].*:%s", function() return "if … then … else … end, without a colon" end, "function arguments" },
  { "^%s*while%f[%A].*:%s*$", function() return "while … do … end, without a colon" end, "<name> expected" },
  { "^%s*if%f[%A].*:%s*$", function() return "if … then … else … end, without a colon" end, "<name> expected" },
  { "{%s*[\"']*[%w_]*%s*:", function() return "entries with names are written { name = value }" end, ":" },
  { "==%s*%(%s*%-?%w+%s*,", function() return "sizes are compared one by one: x:size(1) == 2" end, "," },
  { "^%s*for%f[%A]", function() return "for i = 1, n do … end" end, "'do' expected" },
  { "%(%(%s*%-?%d+%s*,", function() return "sizes and indices are numbers, T.randn(2, 3), or a table" end, "," },
  { "%(%(%s*([%a_][^,()]*)%s*,%s*([^,()]*)%)", function(a, b) return ("a list is written { %s, %s }"):format(a, b) end,
    "," },
  { "%(%s*(%-?[%w_.]+)%s*,%s*%)", function(a) return ("a list is written { %s }"):format(a) end, "," },
  { "%f[%w_]is%f[^%w_]", function() return "equality is a == b, and ~= says unequal; nothing is nil" end, "'is'" },
  { "^%s*print%s*%(.*%f[%w_]end%s*=", function() return "io.write(…) writes without a new line" end, "'end'" },
  { "%s%?%s", function() return "one of two values is condition and a or b" end, "%?" },
  { "^%s*[%a_][%w_.]*%s*=%s*[%a_][%w_.]*%s*=%f[^=]", function() return "an assignment has one =: a, b = 1, 1" end,
    "=" },
  { "^[^\"']*([\"'])%1%s*[.:]%s*([%a_][%w_]*)", function(_, method)
    return ('a text with a method stands in brackets: ("…"):%s(…)'):format(method)
  end, "%p" },
  { "^[^\"']*([\"'])%1%s*%[", function() return 'a part of a text is ("…"):sub(from, to)' end, "%p" },
  { "^%s*%%%a", function() return "commands of the prompt begin with a colon, :help lists them" end, "%%" },
  { "^(.*)$", function(code) return named(code) end, "=" },
}

--- A hint for a message of Lua's compiler, which is about this line; or "".
function M.syntax(message, line)
  if not line then return "" end
  local near = message:match "near (.*)$" or ""
  local first = line:match "^%s*([%a_][%w_]*)%s+[%a_\"']" or line:match "^%s*([%a_][%w_]*)%s*:"
  if first and KEYWORDS[first] and not (first == "print" and line:find "^%s*print%s*%(") then
    return ("; in Lua: %s"):format(KEYWORDS[first])
  end
  local code = line:gsub("%-%-.*$", ""):gsub('"[^"]*"', '""'):gsub("'[^']*'", "''")
  local broken = line:match "^%s*([%a_][%w_.]*)'%s*$"
  if broken and message:find("unfinished string", 1, true) then return "; the transpose is " .. broken .. ":t()" end
  if message:find("function arguments expected", 1, true) then
    for name, method, after in code:gmatch "([%a_][%w_.]*):([%a_][%w_]*)%s*()" do
      if not code:find("^[({\"'%[]", after) then return ("; a method is called: %s:%s()"):format(name, method) end
    end
  end
  for _, p in ipairs(PATTERNS) do
    local wanted = p[3]
    local fits = not wanted or (#wanted > 2 and message:find(wanted, 1, true) or #wanted <= 2 and near:find(wanted))
    if fits then
      local text = code:find(p[1]) and p[2](code:match(p[1]))
      if not text then -- calls among the arguments aside: f(g(x), k=1)
        local aside = {}
        local flat = code:gsub("%b()", function(outer)
          return "(" .. outer:sub(2, -2):gsub("%b()", function(inner)
            aside[#aside + 1] = inner
            return ("\1%d\2"):format(#aside)
          end) .. ")"
        end)
        text = #aside > 0 and flat:find(p[1]) and p[2](flat:match(p[1]))
        text = text and text:gsub("\1(%d+)\2", function(i) return aside[tonumber(i)] end)
      end
      if text then -- texts, which code has emptied, as they were
        text = text:gsub("([%a_][%w_]*) = ([\"'])%2", function(key, quote)
          return line:match(("%s%%s*=%%s*%s[^%s]*%s"):format(key, quote, quote, quote)):gsub("%s*=%s*", " = ", 1)
        end)
        return "; " .. text
      end
    end
  end
  return ""
end

-- ---- scripts ------------------------------------------------------------------------------------------------

--- A message with its hint. Called by what handles the error, while the script's frames are there; a compiler's
-- message has none.
function M.told(message)
  if type(message) ~= "string" then return message end
  local path, number, rest = message:match "^(.-):(%d+): (.*)$"
  if rest and rest:find(" near ", 1, true) then
    local typed = path == "(command line)" and debug.getregistry()["perilune.code"] -- of perilune -e
    local line
    if typed then line = M.line_of(typed, tonumber(number)) else line = M.file_line(path, tonumber(number)) end
    if line and M.syntax(rest, line) ~= "" then return message .. M.syntax(rest, line) end
  end
  for level = 2, 60 do
    local info = debug.getinfo(level, "Slf")
    if not info then break end
    if info.what ~= "C" and not M.own(info.source) then
      local file = info.source:match "^@(.*)$"
      local function at(n)
        local typed = info.source == "=(command line)" and debug.getregistry()["perilune.code"] -- of perilune -e
        if typed then return M.line_of(typed, n) end
        return file and M.file_line(file, n) or info.source:sub(1, 1) ~= "@" and M.line_of(info.source, n) or nil
      end
      local place = ("%s:%d: "):format(info.short_src, info.currentline)
      local here = message:sub(1, #place) == place
      if not here and not rest and info.currentline > 0 and message:find "^attempt to " then -- raised inside of ipairs
        message, here = place .. message, true
      end
      -- what an op says of a call is about the script's line; anything else may be about another one
      if not here and not (rest or message):find "^attempt to " then return message end
      return message .. M.runtime(here and message:sub(#place + 1) or message, at(info.currentline), M.variables(level,
        info.func), _G, at(info.currentline - 1), at(info.currentline + 1), function(name)
        for k = info.currentline - 1, math.max(1, info.currentline - 100), -1 do
          if M.assigns(at(k), name) then return at(k) end
        end
      end)
    end
  end
  return message
end

return M
