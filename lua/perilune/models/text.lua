-- SPDX-License-Identifier: MIT
--- A network with its tokenizer, and replies as text while they are made: what `perilune generate`, `chat` and `serve`
-- share. @module perilune.models.text
local T = require "perilune"
local core = require "perilune.core"
local generation_config = require "perilune.models.generation_config"
local options = require "perilune.options"

local M = {}

-- ---- opening -----------------------------------------------------------------------------------------------

-- Ids that end a reply: those of generation_config.json, and the tokenizer's own, which chat templates write.
local function ends_of(net, tokenizer)
  local list, have = {}, {}
  local function add(id)
    if math.type(id) == "integer" and id >= 0 and not have[id] then
      list[#list + 1], have[id] = id, true
    end
  end
  local given = (net.generation_config or {}).eos_token_id
  for _, id in ipairs(type(given) == "table" and given or { given }) do add(id) end
  local token = tokenizer.chat and tokenizer.chat.special.eos_token
  if token then add(tokenizer:id(token)) end
  return list, have
end

--- M.open(path, {tokenizer=, template=, dtype=, device=}) → model; or nil, message
-- A folder of transformers or a GGUF file. tokenizer: a folder or file that has it, where the model's own has none.
-- template: a file with a chat template. model: net, tokenizer, template, name, ends (ids), context (places, or nil),
-- writes (whether it makes text).
function M.open(path, o)
  core.raised(false)
  local ok, net, why = pcall(T.models.load, path, { dtype = o.dtype, device = o.device })
  if not ok then -- as a device that is not there
    if core.raised() == "interrupt" then error(net, 0) end
    return nil, M.plain(net)
  end
  if not net then return nil, why end
  local tokenizer
  tokenizer, why = T.models.tokenizer(o.tokenizer or path)
  if not tokenizer then return nil, why .. (o.tokenizer and "" or " (--tokenizer PATH gives one)") end
  local template = tokenizer.chat and tokenizer.chat.templates.default
  if o.template then
    local f
    f, why = io.open(o.template, "rb")
    template = f and f:read "a"
    if f then f:close() end
    if not template then return nil, why or o.template .. ": cannot be read" end
  end
  local context = net.config.max_position_embeddings or net.config.n_positions
  if net._model.architecture.model_type == "roberta" then -- its places begin behind that of padding
    context = context - (net.config.pad_token_id or 1) - 1
  end
  local model = { net = net, tokenizer = tokenizer, template = template,
    name = path:gsub("/+$", ""):match "[^/]+$" or path,
    context = context,
    writes = net.begin ~= nil and net.first_ids == nil }
  model.ends, model.is_end = ends_of(net, tokenizer)
  return model
end

--- Why a model makes no text, or nil.
function M.mute(model)
  if model.writes then return nil end
  return ("%s is a %s: %s"):format(model.name, model.net:type(), model.net.first_ids
    and "its encoder reads what it is given, see T.models.generate's inputs=" or "it makes no text")
end

--- Options of T.models.generate that choose tokens, from a table that may have more. own: a generation_config.json's
-- table, which counts where the request says nothing; what it says of drawing, where tokens are drawn by it. A
-- temperature of 0 is the best token each time, top_k = 0 all of them.
function M.sampling(given, own)
  local o = {}
  for _, name in ipairs { "temperature", "top_k", "top_p", "min_p", "repetition_penalty" } do o[name] = given[name] end
  if o.temperature == 0 then o = { do_sample = false, repetition_penalty = o.repetition_penalty } end
  if own then
    generation_config.merge("generate", o, own, 0, true)
    o.max_new_tokens = nil -- which the request's settings say
    if (o.num_beams or 1) ~= 1 then
      options.fail("generation_config.json asks for num_beams = %s, whose texts are known at the end; replies are "
        .. "written token by token", o.num_beams)
    end
  end
  if o.top_k == 0 then o.top_k = nil end
  return o
end

--- A seed that nobody knows.
function M.seed()
  local f = io.open("/dev/urandom", "rb")
  local bytes = f and f:read(7)
  if f then f:close() end
  return bytes and #bytes == 7 and ("<I7"):unpack(bytes) or os.time()
end

--- The ids of a prompt; or nil, message.
function M.ids(model, text)
  local ids, why = model.tokenizer:encode(text)
  if not ids then return nil, why end
  if ids:numel() == 0 then
    local bos = model.tokenizer.chat and model.tokenizer.chat.special.bos_token
    local id = bos and model.tokenizer:id(bos)
    if not id then return nil, "the prompt is empty" end
    return { id }
  end
  return ids:totable()
end

--- The ids of messages by the model's chat template, up to where the reply begins; or nil, message.
function M.chat_ids(model, messages)
  if not model.template then
    return nil, model.name .. " has no chat template (--template FILE gives one)"
  end
  local ok, ids, why = pcall(model.tokenizer.apply_chat_template, model.tokenizer, messages,
    { add_generation_prompt = true, chat_template = model.template })
  if not ok then return nil, M.plain(ids) end
  if not ids then return nil, why end
  if ids:numel() == 0 then return nil, "the chat template makes an empty prompt of these messages" end
  return ids:totable()
end

--- An error's message without the place in perilune's own files that it comes from, or a traceback.
function M.plain(failure)
  local text = tostring(type(failure) == "table" and failure.message or failure)
  return (text:gsub("\nstack traceback:.*$", ""):gsub("^[^\n:]+:%d+: ", ""))
end

-- ---- writing -----------------------------------------------------------------------------------------------

local Writer = {}
Writer.__index = Writer

--- What turns ids into text as they come. stops: texts that end the reply and are not part of it. What may be the
-- beginning of one is held back until more is known.
function M.writer(model, stops)
  return setmetatable({ stream = model.tokenizer:stream(), is_end = model.is_end, stops = stops or {}, held = "" },
    Writer)
end

-- How many bytes at the end of text begin one of the stops.
local function begun(text, stops)
  local most = 0
  for _, stop in ipairs(stops) do
    for n = math.min(#stop - 1, #text), most + 1, -1 do
      if text:sub(-n) == stop:sub(1, n) then
        most = n
        break
      end
    end
  end
  return most
end

-- What is before the first of the stops, or nil where there is none.
local function before_stop(text, stops)
  local first
  for _, stop in ipairs(stops) do
    local at = text:find(stop, 1, true)
    if at and (not first or at < first) then first = at end
  end
  return first and text:sub(1, first - 1)
end

--- The next id → the text that is certain now, and whether the reply ends with it.
function Writer:add(id)
  if self.is_end[id] then return (self:finish()), true end
  local text = self.held .. self.stream(id)
  local before = before_stop(text, self.stops)
  if before then
    self.held = ""
    return before, true
  end
  local n = begun(text, self.stops)
  self.held = n > 0 and text:sub(-n) or ""
  return text:sub(1, #text - n), false
end

--- What is left where nothing more comes, and whether one of the stops ends it: half a character, which may be the end
-- of one, is known to be no whole one only now.
function Writer:finish()
  local text = self.held .. self.stream:finish()
  self.held = ""
  local before = before_stop(text, self.stops)
  return before or text, before ~= nil
end

--- M.reply(model, ids, o, stops, emit) → "stop" or "length" or "cut", number of new tokens
-- Makes a reply to a prompt of ids, with options of T.models.generate. stops: texts that end it beside those of
-- generation_config.json. emit(piece) is called for every token, also
-- where it adds no text yet, and at the end for what was held back; false cuts the reply off.
function M.reply(model, ids, o, stops, emit)
  local all = generation_config.stops(model.net.generation_config or {})
  for _, text in ipairs(stops or {}) do all[#all + 1] = text end
  local writer, n, reason = M.writer(model, all), 0, "length"
  local opts = {}
  for key, v in pairs(o) do opts[key] = v end
  opts.batch = model.batch
  opts.stop = #model.ends > 0 and model.ends or false
  opts.on_token = function(id)
    n = n + 1
    local piece, over = writer:add(id)
    local wanted = emit(piece)
    reason = over and "stop" or wanted == false and "cut" or "length"
    return reason == "length"
  end
  model.net:generate(ids, opts)
  if reason == "length" then
    local rest, stopped = writer:finish()
    if stopped then reason = "stop" end
    if rest ~= "" and emit(rest) == false then reason = "cut" end
  end
  return reason, n
end

return M
