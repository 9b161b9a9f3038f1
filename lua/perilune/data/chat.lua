-- SPDX-License-Identifier: MIT
--- Chat templates of tokenizers: messages to the text that a model was trained on.
-- @module perilune.data.chat
local classes = require "perilune.classes"
local core = require "perilune.core"
local jinja = require "perilune.jinja"
local options = require "perilune.options"
local values = require "perilune.jinja.values"

local fail, describe = options.fail, options.describe
local M = {}

local Template = classes.new("chat template", "template")

-- Variables of a call: a table by name, or JSON text.
local function variables_of(who, v, into)
  if v == nil then return into end
  if type(v) == "string" then
    local d, message = jinja.from_json(v)
    if not d then fail("%s: %s", who, message) end
    if not values.is_dict(d) then fail("%s: the JSON text of variables must be an object", who) end
    for _, k in ipairs(d.keys) do into[k] = values.dict_get(d, k) end
    return into
  end
  if type(v) ~= "table" then fail("%s: variables must be a table or JSON text, got %s", who, describe(v)) end
  for k, x in pairs(v) do into[k] = x end
  return into
end

--- template:render(variables, more) → text, or nil, message, code. Each a table by name or the text of a JSON object,
-- which keeps the order of keys; of tables the usual keys of chats come first, then the alphabet.
function Template:render(variables, more)
  local all = variables_of("render", variables, {})
  return self.template:render(variables_of("render", more, all))
end

--- T.data.chat_template(source, {name="chat_template", max_steps=1000000, max_bytes=16777216}) → template
-- Compiles a chat template in Jinja, as transformers renders them; t:render(variables) → text, or nil, message, code.
-- Variables are a table or JSON text. It can reach nothing else; steps and size of a rendering are bounded. nil,
-- message, code for what is no template; messages name its line. See Tokenizer:apply_chat_template.
--   local t = T.data.chat_template "{% for m in messages %}{{ m.role | upper }}: {{ m.content }};{% endfor %}"
--   print(t:render { messages = { { role = "user", content = "Hi" } } })  --> USER: Hi;
function M.chat_template(source, opts)
  opts = options.check("data.chat_template", opts, { "name", "max_steps", "max_bytes" })
  if type(source) ~= "string" then fail("data.chat_template: the source must be a string, got %s", describe(source)) end
  for _, key in ipairs { "max_steps", "max_bytes" } do
    local n = opts[key]
    if n ~= nil and (not options.integer(n) or n < 1) then
      fail("data.chat_template: %s must be a whole number from 1, got %s", key, describe(n))
    end
  end
  if opts.name ~= nil then options.kind("data.chat_template", "name", "string", opts.name) end
  local t, message, code = jinja.compile(source, opts.name or "chat_template", { steps = opts.max_steps,
    bytes = opts.max_bytes })
  if not t then return nil, message, code end
  return setmetatable({ template = t, source = source }, Template)
end

-- ---- what stands beside a tokenizer.json ---------------------------------------------------------------------------

local function read(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local text = f:read "a"
  f:close()
  return text
end

local roles = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" }

-- What tokenizer_config.json says of tokens beside the tokenizer's own file: a list of { content, id, settings, role },
-- id nil where it says none, role as "bos_token", in the order in which transformers gives ids to those. older: text
-- of added_tokens.json, which has ids where the other one has none.
local function tokens_of(config, older)
  local list, named = {}, {}
  local function add(v, id, role)
    local content, settings = v, {}
    if values.is_dict(v) then
      content = values.dict_get(v, "content")
      for _, key in ipairs { "lstrip", "rstrip", "single_word", "normalized", "special" } do
        settings[key] = values.dict_get(v, key)
      end
    else
      settings.special = true
    end
    if role then settings.special = true end
    if type(content) == "string" and content ~= "" then list[#list + 1] = { content, id, settings, role } end
  end
  local function by_role(dict, key)
    if type(key) == "string" and not named[key] then
      named[key] = true
      add(values.dict_get(dict, key), nil, key)
    end
  end
  for _, key in ipairs(roles) do by_role(config, key) end
  for _, key in ipairs(config.keys) do
    if type(key) == "string" and key:find "_token$" then by_role(config, key) end
  end
  local extra = values.dict_get(config, "extra_special_tokens")
  for _, key in ipairs(values.is_dict(extra) and extra.keys or {}) do by_role(extra, key) end
  if not (values.is_sequence(extra) and extra.n > 0) then
    extra = values.dict_get(config, "additional_special_tokens")
  end
  for i = 1, values.is_sequence(extra) and extra.n or 0 do add(extra[i]) end

  local special, rest = {}, list
  for _, t in ipairs(rest) do special[t[1]] = true end
  list = {}
  local by_id = values.dict_get(config, "added_tokens_decoder")
  if values.is_dict(by_id) then
    local ids = {}
    for _, key in ipairs(by_id.keys) do ids[#ids + 1] = math.tointeger(tonumber(key)) end
    table.sort(ids)
    for _, id in ipairs(ids) do add(values.dict_get(by_id, tostring(id)), id) end
  elseif older then
    local by_content = jinja.from_json(older)
    for _, content in ipairs(values.is_dict(by_content) and by_content.keys or {}) do
      local id = math.tointeger(values.dict_get(by_content, content))
      if id then list[#list + 1] = { content, id, { special = special[content] or false } } end
    end
    table.sort(list, function(a, b) return a[2] < b[2] end)
  end
  return table.move(rest, 1, #rest, #list + 1, list)
end

-- Classes of transformers for byte-level BPE that set add_prefix_space, whatever tokenizer.json has, with what it is
-- where the config has none. Others leave the file as it is.
local prefix_space = { BlenderbotTokenizer = "yes" }
for _, name in ipairs { "GPT2", "Roberta", "Bart", "Longformer", "LED", "Whisper", "CodeGen", "GPTNeoX", "Qwen2",
  "Qwen3_5", "Deberta", "Cohere" } do prefix_space[name .. "Tokenizer"] = "no" end

--- The chat templates by name and the special tokens of a folder: tokenizer_config.json, chat_template.jinja; what the
-- first says of calls and of tokens. nil where there are none; nil, message, code for a file that is malformed.
function M.beside(dir)
  local found = { templates = {}, special = {} }
  local path = dir .. "tokenizer_config.json"
  local text = read(path)
  if text then
    local config, message = jinja.from_json(text)
    if not config or not values.is_dict(config) then
      return nil, ("%s: %s"):format(path, message or "an object is wanted"), "format"
    end
    for _, key in ipairs(config.keys) do
      local v = values.dict_get(config, key)
      if values.is_dict(v) then v = values.dict_get(v, "content") end
      if type(key) == "string" and key:find "_token$" and type(v) == "string" then found.special[key] = v end
    end
    found.do_lower_case = values.dict_get(config, "do_lower_case")
    for _, key in ipairs { "padding_side", "truncation_side" } do
      local side = values.dict_get(config, key)
      if side == "left" or side == "right" then found[key] = side end
    end
    local class = values.dict_get(config, "tokenizer_class")
    local prefix = type(class) == "string" and prefix_space[class:gsub("Fast$", "")] or nil
    if prefix then
      local given = values.dict_get(config, "add_prefix_space")
      found.add_prefix_space = prefix == "yes"
      if type(given) == "boolean" then found.add_prefix_space = given end
    end
    found.split_special_tokens = values.dict_get(config, "split_special_tokens") == true or nil
    found.tokens = tokens_of(config, read(dir .. "added_tokens.json"))
    local t = values.dict_get(config, "chat_template")
    if type(t) == "string" then found.templates.default = t end
    for i = 1, values.is_sequence(t) and t.n or 0 do
      local name = values.is_dict(t[i]) and values.dict_get(t[i], "name")
      local source = values.is_dict(t[i]) and values.dict_get(t[i], "template")
      if type(name) ~= "string" or type(source) ~= "string" then
        return nil, path .. ": chat_template must be a text, or a list of names and templates", "format"
      end
      found.templates[name] = source
    end
  end
  local jinja_text = read(dir .. "chat_template.jinja")
  if jinja_text then found.templates.default = jinja_text end
  return (text or jinja_text) and found or nil
end

-- ---- messages ------------------------------------------------------------------------------------------------------

local function value_of(who, v)
  if type(v) == "string" then
    local d, message = jinja.from_json(v)
    if d == nil then fail("apply_chat_template: %s: %s", who, message) end
    return d
  end
  if type(v) ~= "table" then fail("apply_chat_template: %s must be a list or JSON text, got %s", who, describe(v)) end
  local ok, d = core.attempt(values.from_lua, v)
  if not ok then fail("apply_chat_template: %s: %s", who, type(d) == "table" and d.jinja or tostring(d)) end
  return d
end

-- As transformers: keys whose value is none are not there; what was thought has its usual names.
local function message_of(m, i)
  if not values.is_dict(m) then fail("apply_chat_template: message %d must be a table with role and content", i) end
  local out, thought = values.dict(), nil
  for _, name in ipairs { "reasoning_content", "thinking", "reasoning" } do
    local v = values.dict_get(m, name)
    if thought == nil and v ~= nil and v ~= values.NONE then thought = v end
  end
  if thought ~= nil then values.dict_set(out, "thinking", thought) end
  for _, k in ipairs(m.keys) do
    local v = values.dict_get(m, k)
    if v ~= values.NONE and not (k == "content" and v == false) then values.dict_set(out, k, v) end
  end
  if thought ~= nil then values.dict_set(out, "reasoning_content", thought) end
  return out
end

local known = { "add_generation_prompt", "tools", "documents", "chat_template", "tokenize", "continue_final_message",
  "index_base" }
local is_known = {}
for _, k in ipairs(known) do is_known[k] = true end

-- Other names are variables of the template; one that it does not know and that is nearly an option is a typing error.
local function check_names(opts, source)
  for k in pairs(opts) do
    if type(k) ~= "string" then fail("apply_chat_template: options have names, got %s", describe(k)) end
    local near = not is_known[k] and options.nearest(k, known)
    if near and not source:find(k, 1, true) then
      fail("apply_chat_template: the template has no variable '%s'; did you mean %s?", k, near)
    end
  end
end

local function source_of(self, opts)
  if opts.chat_template ~= nil then
    if type(opts.chat_template) ~= "string" then
      fail("apply_chat_template: chat_template must be a string, got %s", describe(opts.chat_template))
    end
    return opts.chat_template
  end
  local all = self.chat and self.chat.templates or {}
  return opts.tools and all.tool_use or all.default
    or fail("apply_chat_template: %s has no chat template; give chat_template=", self.name)
end

local mark = "\1end of the last message\1"

--- Tokenizer:apply_chat_template; see tokenizer.lua.
function M.apply(self, messages, opts)
  opts = opts or {}
  if type(opts) ~= "table" then fail("apply_chat_template: options must be a table, got %s", describe(opts)) end
  for _, name in ipairs { "tokenize", "add_generation_prompt", "continue_final_message" } do
    if opts[name] ~= nil then options.kind("apply_chat_template", name, "bool", opts[name]) end
  end
  local source = source_of(self, opts)
  check_names(opts, source)
  local list = value_of("messages", messages)
  if not values.is_sequence(list) then fail "apply_chat_template: messages must be a list" end
  local chat = {}
  for i = 1, list.n do chat[i] = message_of(list[i], i) end
  local template, why, code = self.compiled and self.compiled[source]
  if not template then
    template, why, code = jinja.compile(source, self.name .. ": chat_template")
    if not template then return nil, why, code end
    self.compiled = { [source] = template }
  end
  local last = chat[#chat]
  local continued = opts.continue_final_message and (last and values.dict_get(last, "content"))
  if opts.continue_final_message then
    if type(continued) ~= "string" then
      fail "apply_chat_template: continue_final_message needs a last message whose content is a text"
    end
    if opts.add_generation_prompt then
      fail "apply_chat_template: continue_final_message and add_generation_prompt exclude each other"
    end
    values.dict_set(last, "content", continued .. mark)
  end
  local vars = {}
  for k, v in pairs(self.chat and self.chat.special or {}) do vars[k] = v end
  for k, v in pairs(opts) do if not is_known[k] then vars[k] = v end end
  vars.messages = values.list(chat)
  vars.tools = opts.tools and value_of("tools", opts.tools) or values.NONE
  vars.documents = opts.documents and value_of("documents", opts.documents) or values.NONE
  vars.add_generation_prompt = opts.add_generation_prompt and true or false
  local text
  text, why, code = template:render(vars)
  if not text then return nil, why, code end
  if continued then
    local at = text:find(mark, 1, true)
    if not at then return nil, self.name .. ": the chat template does not show the last message as it is", "format" end
    text = text:sub(1, at - 1)
  end
  if opts.tokenize == false then return text end
  return self:encode(text, { add_special = false, index_base = opts.index_base })
end

return M
