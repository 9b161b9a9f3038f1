-- SPDX-License-Identifier: MIT
--- `perilune serve MODEL`: a model behind OpenAI's API: completions and chat completions, whole and as streams of
-- events, embeddings, models, health. docs/design/serve.md tells the decisions.
-- @module perilune.serve
local T = require "perilune"
local core = require "perilune.core"
local asked = require "perilune.serve.asked"
local base64 = require "perilune.io.base64"
local batch = require "perilune.models.batch"
local http = require "perilune.http"
local jobs = require "perilune.serve.jobs"
local json = require "perilune.io.json"
local text = require "perilune.models.text"

local M = {}

local PORT, STREAMS, QUEUE, SECONDS, LONGEST = 8712, 16, 64, 600, 4096
local BODY, BODIES = 4 << 20, 64 << 20
local COMPLETION = 16 -- tokens of a completion that does not say how many, as the API has it

-- ---- answers -----------------------------------------------------------------------------------------------

local function fault(status, message, param, code)
  return { error = { message = message, type = status >= 500 and "server_error" or "invalid_request_error",
    param = param or json.null, code = code or json.null } }
end

local function refuse(request, status, message, param, code)
  return http.json(request, status, fault(status, message, param, code), status == 503 and { ["Retry-After"] = "1" }
    or nil)
end

-- Where a job cannot come to its end.
local function fail(job, status, message)
  if not job.begun then return refuse(job.request, status, message) end
  job:say(http.event(fault(status, message)))
  job.request:finish(job:flush() ~= true)
end

local function usage(prompt, completion)
  return { prompt_tokens = prompt, completion_tokens = completion, total_tokens = prompt + completion }
end

-- ---- replies -----------------------------------------------------------------------------------------------

-- The two kinds of replies: names and what a choice looks like, whole and as a piece of a stream.
local chat = { prefix = "chatcmpl-", whole = "chat.completion", piece = "chat.completion.chunk",
  choice = function(said) return { message = { role = "assistant", content = said, refusal = json.null } } end,
  delta = function(said) return { delta = { content = said } } end,
  first = { delta = { role = "assistant", content = "" } }, last = { delta = {} } }
local completion = { prefix = "cmpl-", whole = "text_completion", piece = "text_completion",
  choice = function(said) return { text = said } end, delta = function(said) return { text = said } end,
  last = { text = "" } }

local function answer_of(kind, model, id, created, object)
  return function(choice, reason)
    local out = { id = id, object = object, created = created, model = model.served, choices = json.array {} }
    if choice then
      local c = { index = 0, logprobs = json.null, finish_reason = reason or json.null }
      for key, v in pairs(choice) do c[key] = v end
      out.choices[1] = c
    end
    return out
  end
end

-- The work of a request for a reply, as Jobs takes it.
local function reply(kind, model, o, ids, settings)
  local id, created = kind.prefix .. http.token(12), os.time()
  local answer = answer_of(kind, model, id, created, o.stream and kind.piece or kind.whole)
  local function whole(job)
    local said = {}
    local reason, n = text.reply(model, ids, settings, o.stop, function(piece)
      said[#said + 1] = piece
      job:turn()
    end)
    local out = answer(kind.choice(table.concat(said)), reason)
    out.usage = usage(#ids, n)
    http.json(job.request, 200, out)
  end
  local function stream(job)
    local more = o.stream_options and o.stream_options.include_usage
    local function say(choice, reason)
      local out = answer(choice, reason)
      if more then out.usage = json.null end
      job:say(http.event(out))
    end
    job.begun = http.events(job.request)
    if not job.begun then return end
    if kind.first then say(kind.first) end
    local reason, n = text.reply(model, ids, settings, o.stop, function(piece)
      if piece ~= "" then say(kind.delta(piece)) end
      job:turn()
    end)
    say(kind.last, reason)
    if more then
      local out = answer()
      out.usage = usage(#ids, n)
      job:say(http.event(out))
    end
    job:say(http.event "[DONE]")
  end
  return o.stream and stream or whole
end

-- ---- embeddings --------------------------------------------------------------------------------------------

-- The network whose results are the hidden states of a text, or nil.
local function inner_of(net)
  if net._d and net._d.names then return net[net._d.names.root] or net end -- a decoder with a head, or alone
  local kind = net._model.architecture.model_type
  if kind == "bert" or kind == "roberta" or kind == "distilbert" then return net[kind] or net end
end

local function embed(model, o, lists)
  local inner = inner_of(model.net)
  return function(job)
    local data, tokens = json.array {}, 0
    for i, ids in ipairs(lists) do
      local states = T.no_grad(inner, T.tensor({ ids }, { dtype = "i64", device = model.device }))
      local mean = states:float():mean(2):squeeze(1):cpu():totable()
      local v = o.encoding_format == "base64" and base64(("<" .. ("f"):rep(#mean)):pack(table.unpack(mean)))
        or json.array(mean)
      data[i] = { object = "embedding", index = i - 1, embedding = v }
      tokens = tokens + #ids
      job:turn()
    end
    http.json(job.request, 200, { object = "list", data = data, model = model.served,
      usage = { prompt_tokens = tokens, total_tokens = tokens } })
  end
end

-- ---- the server --------------------------------------------------------------------------------------------

-- A handler that answers what f refuses, and those without the key.
local function guarded(key, f)
  return function(request)
    if key and request:header "authorization" ~= "Bearer " .. key then
      return refuse(request, 401, "the API key is missing or wrong", nil, "invalid_api_key")
    end
    local ok, failure = pcall(f, request)
    if ok then return end
    if type(failure) ~= "table" or not failure.asked then error(failure, 0) end
    return refuse(request, failure.status, failure.message, failure.param, failure.code)
  end
end

local function routes(model, all, key, created)
  local function add(request, work)
    if not all:add(request, work, fail) then refuse(request, 503, "too many requests wait") end
  end
  local function writes(kind, name, ids_of)
    return function(request)
      local o = asked.read(request, name, model)
      local why = text.mute(model)
      if why then asked.refuse(why, "model") end
      local ids = ids_of(o, model)
      local most = asked.length(o, ids, model, name == "chat" and LONGEST or COMPLETION)
      add(request, reply(kind, model, o, ids, asked.settings(o, model, most)))
    end
  end
  local about = { id = model.served, object = "model", created = created, owned_by = "perilune" }
  local out = {
    ["POST /v1/completions"] = writes(completion, "completions", asked.prompt),
    ["POST /v1/chat/completions"] = writes(chat, "chat", asked.messages),
    ["POST /v1/embeddings"] = function(request)
      local o = asked.read(request, "embeddings", model)
      if not inner_of(model.net) then
        asked.refuse(("%s is a %s, of which this server has no embeddings of texts"):format(model.served,
          model.net:type()), "model")
      end
      add(request, embed(model, o, asked.inputs(o, model)))
    end,
    ["GET /v1/models"] = function(request)
      http.json(request, 200, { object = "list", data = json.array { about } })
    end,
    ["GET /v1/models/" .. model.served] = function(request) http.json(request, 200, about) end,
  }
  for path, f in pairs(out) do out[path] = guarded(key, f) end
  out["GET /health"] = function(request)
    http.json(request, 200, { status = "ok", model = model.served, running = #all.running, waiting = #all.waiting })
  end
  return http.router(out)
end

local Server = {}
Server.__index = Server

--- M.open(path, o) → server; or nil, message
-- o: as text.open, and host, port, name, max_new_tokens, max_streams, max_queue, timeout (seconds), key.
function M.open(path, o)
  local model, why = text.open(path, o)
  if not model then return nil, why end
  local fine, failure = core.attempt(text.sampling, {}, model.net.generation_config)
  if not fine then return nil, text.plain(failure) end
  model.served, model.longest = (o.name or model.name):gsub("%s", "_"), o.max_new_tokens
  model.device = model.net:parameters()[1] and model.net:parameters()[1]:device() or "cpu"
  local limits = { host = o.host or "127.0.0.1", port = o.port or PORT, queue = o.max_queue or QUEUE, body = BODY,
    bodies = BODIES }
  local listener, message, code = http.listen(limits)
  if code == "io" and not o.port then -- somebody has that port: any other one
    limits.port = 0
    listener, message = http.listen(limits)
  end
  if not listener then return nil, message end
  local streams = o.max_streams or STREAMS
  model.batch = not text.mute(model) and batch.new(model.net, streams) or nil
  local all = jobs.new({ streams = streams, queue = o.max_queue or QUEUE, seconds = o.timeout or SECONDS }, model.batch)
  return setmetatable({ listener = listener, jobs = all, model = model, handle = routes(model, all, o.key, os.time()),
    address = http.url(listener) .. "v1" }, Server)
end

--- Takes what has come, for `seconds` where there is nothing else to do, and lets each job have a turn.
function Server:turn(seconds)
  local wait = self.jobs:busy() and (self.went == false and 0.01 or 0) or seconds
  for _ = 1, QUEUE do -- who is served is not kept waiting by those who knock
    local request = self.listener:next(wait)
    if not request then break end
    self.handle(request)
    wait = 0
  end
  self.went = self.jobs:round()
end

function Server:close(seconds) self.listener:close(seconds or 0) end
Server.__close = function(self) self:close() end

--- Serves until Ctrl-C. → exit status
function M.main(path, o)
  o.key = os.getenv "PERILUNE_API_KEY"
  if o.key == "" then o.key = nil end
  local server, why = M.open(path, o)
  if not server then
    io.stderr:write("perilune serve: ", why, "\n")
    return 1
  end
  local _ <close> = server
  print(("serving %s\n  %s\nCtrl-C ends"):format(server.model.served, server.address))
  io.stdout:flush()
  core.raised(false)
  local _, failure = pcall(function() while true do server:turn(1) end end)
  if core.raised() == "interrupt" then return 130 end
  error(failure, 0)
end

return M
