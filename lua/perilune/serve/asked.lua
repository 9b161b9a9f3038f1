-- SPDX-License-Identifier: MIT
--- What requests of OpenAI's API ask for, checked: a field that is wrong, or that this server would not heed, is an
-- error that names it. @module perilune.serve.asked
local T = require "perilune"
local json = require "perilune.io.json"
local options = require "perilune.options"
local text = require "perilune.models.text"

local M = {}

--- Raises what a client is told: {status=, message=, param=, code=}.
function M.refuse(message, param, code, status)
  error({ asked = true, status = status or 400, message = message, param = param, code = code }, 0)
end
local refuse = M.refuse

local function shown(v)
  if v == nil or v == json.null then return "null" end
  local s = json.line(v)
  return #s > 60 and s:sub(1, 57):gsub("[\128-\255]+$", "") .. "..." or s
end

-- ---- fields ------------------------------------------------------------------------------------------------

local function number(v, name, least, most, open)
  if type(v) ~= "number" or not (v >= least and v <= most) or open and v == least then
    refuse(("%s must be a number %s %g%s, got %s"):format(name, open and "more than" or "of at least", least,
      most < math.huge and (" and at most %g"):format(most) or "", shown(v)), name)
  end
  return v
end

local function integer(v, name, least, most)
  local i = type(v) == "number" and math.tointeger(v)
  if not i or i < least or i > most then
    refuse(("%s must be an integer from %d to %d, got %s"):format(name, least, most, shown(v)), name)
  end
  return i
end

local function bool(v, name)
  if type(v) ~= "boolean" then refuse(("%s must be true or false, got %s"):format(name, shown(v)), name) end
  return v
end

local MOST_STOPS = 16

local function stops(v, name)
  local list = type(v) == "string" and { v } or v
  if type(list) ~= "table" or type(v) == "table" and not json.is_array(v) or #list > MOST_STOPS then
    refuse(("%s must be a text, or a list of at most %d, got %s"):format(name, MOST_STOPS, shown(v)), name)
  end
  for _, s in ipairs(list) do
    if type(s) ~= "string" or s == "" or not utf8.len(s) then
      refuse(("%s must be texts that are not empty, got %s"):format(name, shown(s)), name)
    end
  end
  return list
end

local function only(...)
  local allowed = { ... }
  return function(v, name)
    for _, a in ipairs(allowed) do if v == a then return nil end end
    refuse(("%s = %s is not supported here; leave it out"):format(name, shown(v)), name)
  end
end
local function empty(v, name)
  if type(v) ~= "table" or next(v) ~= nil then
    refuse(("%s = %s is not supported here; leave it out"):format(name, shown(v)), name)
  end
end
local function any() end
local function keep(v) return v end

local MAX_INT = math.maxinteger
local common = {
  model = function(v, name)
    if type(v) ~= "string" then refuse(("%s must be a text, got %s"):format(name, shown(v)), name) end
    return v
  end,
  user = any, metadata = any, store = only(false), service_tier = any, prompt_cache_key = any, safety_identifier = any,
}
local of_replies = {
  max_tokens = function(v, name) return integer(v, name, 1, MAX_INT) end,
  temperature = function(v, name) return number(v, name, 0, 100) end,
  top_p = function(v, name) return number(v, name, 0, 1, true) end,
  top_k = function(v, name) return integer(v, name, 0, MAX_INT) end,
  min_p = function(v, name) return number(v, name, 0, 1) end,
  repetition_penalty = function(v, name) return number(v, name, 0, 100, true) end,
  seed = function(v, name) return integer(v, name, math.mininteger, MAX_INT) end,
  stop = stops, stream = bool, n = only(1), presence_penalty = only(0), frequency_penalty = only(0),
  logit_bias = empty,
  stream_options = function(v, name)
    if type(v) ~= "table" then refuse(("%s must be an object, got %s"):format(name, shown(v)), name) end
    for key, value in pairs(v) do
      if key == "include_usage" then bool(value, "stream_options.include_usage")
      elseif key ~= "include_obfuscation" then refuse(("stream_options has no field %s"):format(shown(key)), name) end
    end
    return v
  end,
}

local function fields(...)
  local all = {}
  for _, list in ipairs { common, ... } do for name, check in pairs(list) do all[name] = check end end
  return all
end

local kinds = {
  completions = fields(of_replies, { prompt = keep, best_of = only(1), echo = only(false), logprobs = only(),
    suffix = only("") }),
  chat = fields(of_replies, { messages = keep, max_completion_tokens = of_replies.max_tokens, logprobs = only(false),
    top_logprobs = only(0), tools = empty, tool_choice = only("none", "auto"), parallel_tool_calls = any,
    functions = empty, reasoning_effort = any, verbosity = any,
    response_format = function(v, name)
      if type(v) ~= "table" or v.type ~= "text" then
        refuse(("%s = %s is not supported here, {\"type\":\"text\"} is"):format(name, shown(v)), name)
      end
    end }),
  embeddings = fields { input = keep, dimensions = only(),
    encoding_format = function(v, name)
      if v ~= "float" and v ~= "base64" then
        refuse(('%s must be "float" or "base64", got %s'):format(name, shown(v)), name)
      end
      return v
    end },
}

-- A field that is there twice: of two values one would not be heeded.
local once = { null = json.null, depth = 200, list = json.array, object = function() return {} end,
  set = function(o, name, v)
    if o[name] ~= nil then error({ json = ("the field '%s' is there twice"):format(name:sub(1, 60)) }, 0) end
    o[name] = v
  end }

--- The fields of a request's body, each checked; kind: "completions", "chat", "embeddings".
function M.read(request, kind, model)
  local type_ = (request:header "content-type" or ""):lower()
  if not type_:find "^application/json%f[^%w]" then -- no form of another site's page can send it
    refuse("the Content-Type must be application/json", nil, nil, 415)
  end
  local given, why = json.decode(request:body(), once)
  if type(given) ~= "table" or json.is_array(given) or given == json.null then
    refuse("the body must be a JSON object" .. (given == nil and why and ": " .. tostring(why) or ""))
  end
  local known, out = kinds[kind], {}
  for name, v in pairs(given) do
    local check = known[name]
    if not check then
      local names = {}
      for field in pairs(known) do names[#names + 1] = field end
      table.sort(names)
      local near = options.nearest(name, names)
      refuse(("there is no field '%s' here%s"):format(name:sub(1, 60), near and (", did you mean %s?"):format(near)
        or ""), name:sub(1, 60))
    end
    if v ~= json.null then out[name] = check(v, name) end
  end
  if out.model ~= nil and out.model ~= model.served then
    refuse(("The model '%s' does not exist; this server has '%s'"):format(out.model, model.served), "model",
      "model_not_found", 404)
  end
  if out.max_tokens and out.max_completion_tokens and out.max_tokens ~= out.max_completion_tokens then
    refuse("max_tokens is the older name of max_completion_tokens, and they differ; give one", "max_tokens")
  end
  if out.stream_options and next(out.stream_options) ~= nil and not out.stream then
    refuse("stream_options is for streams; leave it out, or say stream = true", "stream_options")
  end
  return out
end

-- ---- prompts -----------------------------------------------------------------------------------------------

local function ids_in(v, name, vocab)
  for _, id in ipairs(v) do
    if math.type(id) ~= "integer" or id < 0 or id >= vocab then
      refuse(("%s has the token %s, and this model those from 0 to %d"):format(name, shown(id), vocab - 1), name)
    end
  end
  return v
end

-- One text, or one list of tokens → ids
local function ids_of(v, name, model)
  if type(v) == "table" and json.is_array(v) and math.type(v[1]) == "integer" then
    return ids_in(table.move(v, 1, #v, 1, {}), name, model.net.config.vocab_size)
  end
  if type(v) ~= "string" then refuse(("%s must be a text or a list of tokens, got %s"):format(name, shown(v)), name) end
  local ids, why = text.ids(model, v)
  if not ids then refuse(name .. ": " .. why, name) end
  return ids
end

local function is_list_of_prompts(v)
  return type(v) == "table" and json.is_array(v) and (type(v[1]) == "string" or type(v[1]) == "table")
end

--- The ids that a completion goes on with.
function M.prompt(o, model)
  local v = o.prompt
  if v == nil then refuse("prompt is missing", "prompt") end
  if is_list_of_prompts(v) then
    if #v ~= 1 then refuse(("one prompt a request is taken, got %d"):format(#v), "prompt") end
    v = v[1]
  end
  return ids_of(v, "prompt", model)
end

--- The lists of ids that are embedded.
function M.inputs(o, model)
  local v, out = o.input, {}
  if v == nil then refuse("input is missing", "input") end
  local list = is_list_of_prompts(v) and v or { v }
  if #list > 2048 then refuse(("input has %d texts, more than 2048"):format(#list), "input") end
  for i, one in ipairs(list) do
    out[i] = ids_of(one, "input", model)
    if model.context and #out[i] > model.context then
      refuse(("input has %d tokens, and the model's context is %d"):format(#out[i], model.context), "input",
        "context_length_exceeded")
    end
  end
  return out
end

-- What a message may have beside role and content: texts that templates read; what the API puts into a message that it
-- made, empty; the rest would not be heeded.
local read_by_templates = { name = true, tool_call_id = true }
local sent_back = { refusal = true, audio = true, annotations = true, function_call = true, tool_calls = true }

local function message_of(m, at)
  if type(m) ~= "table" or type(m.role) ~= "string" then refuse(at .. " must have a role and content", at) end
  local out = { role = m.role }
  for key, v in pairs(m) do
    local place = at .. "." .. key
    if v == json.null or read_by_templates[key] then
      if v ~= json.null and type(v) ~= "string" then
        refuse(("%s must be a text, got %s"):format(place, shown(v)), place)
      end
      out[key] = v ~= json.null and v or nil
    elseif sent_back[key] then
      if type(v) ~= "table" or next(v) ~= nil then refuse(place .. " is not supported here", place) end
    elseif key ~= "role" and key ~= "content" then -- the content is read by itself
      refuse(("%s has no field %s"):format(at, shown(key)), at)
    end
  end
  return out
end

-- A message's content as one text.
local function content_of(v, role, at)
  if v == nil or v == json.null then
    if role == "assistant" then return "" end
    refuse(at .. ".content is missing", at .. ".content")
  end
  if type(v) == "string" then return v end
  local parts = {}
  if type(v) ~= "table" or not json.is_array(v) then
    refuse(at .. ".content must be a text or a list of parts", at .. ".content")
  end
  for i, part in ipairs(v) do
    if type(part) ~= "table" or part.type ~= "text" or type(part.text) ~= "string" then
      refuse(("%s.content: only parts of text are supported here, got %s"):format(at, shown(part)), at .. ".content")
    end
    for key in pairs(part) do
      if key ~= "type" and key ~= "text" then
        refuse(("%s.content[%d] has no field %s"):format(at, i - 1, shown(key)), at .. ".content")
      end
    end
    parts[i] = part.text
  end
  return table.concat(parts)
end

--- The ids that a reply to messages goes on with.
function M.messages(o, model)
  local v, list = o.messages, {}
  if type(v) ~= "table" or not json.is_array(v) or #v == 0 then
    refuse("messages must be a list of messages", "messages")
  end
  for i, m in ipairs(v) do
    local at = ("messages[%d]"):format(i - 1)
    list[i] = message_of(m, at)
    list[i].content = content_of(m.content, m.role, at)
  end
  local ids, why = text.chat_ids(model, list)
  if not ids then refuse(why, "messages") end
  return ids
end

--- How many new tokens a reply may have: what is asked for, else `default`, within the model's context and the
-- server's limit.
function M.length(o, ids, model, default)
  local name = o.max_completion_tokens and "max_completion_tokens" or "max_tokens"
  local wanted, limit = o.max_completion_tokens or o.max_tokens, model.longest
  if model.context then
    local room = model.context - #ids
    if room < 1 or wanted and wanted > room then
      refuse(("the model's context is %d tokens; the prompt has %d%s"):format(model.context, #ids,
        wanted and (" and %s asks for %d more"):format(name, wanted) or ""), o.messages and "messages" or "prompt",
        "context_length_exceeded")
    end
    default = math.min(default, room)
  end
  if limit and wanted and wanted > limit then
    refuse(("%s = %d is more than this server makes, %d"):format(name, wanted, limit), name)
  end
  return wanted or math.min(default, limit or default)
end

--- The options of T.models.generate of a request.
function M.settings(o, model, most)
  local given = {}
  for name, v in pairs(o) do given[name] = v end
  local own = model.net.generation_config
  if given.temperature == nil and not (own and own.do_sample == true and type(own.temperature) == "number") then
    given.temperature = 1.0 -- the API's
  end
  if given.temperature and given.temperature < 1e-5 then given.temperature = 0 end
  local settings = text.sampling(given, own)
  settings.max_new_tokens, settings.generator = most, T.Generator(o.seed or text.seed())
  return settings
end

return M
