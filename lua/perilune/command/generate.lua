-- SPDX-License-Identifier: MIT
-- perilune generate: a model goes on with a text, on standard output as it comes.
local T = require "perilune"
local core = require "perilune.core"
local text = require "perilune.models.text"

local OK, FAILED, INTERRUPTED = 0, 1, 130

local function complain(message)
  io.stderr:write("perilune generate: ", message, "\n")
  return FAILED
end

-- o: what text.open and T.models.generate take, stop (texts), seed. → exit status
return function(path, prompt, o)
  local model, why = text.open(path, o)
  why = why or text.mute(model)
  if why then return complain(why) end
  if prompt == "-" then prompt = io.read "a" end
  local ids
  ids, why = text.ids(model, prompt)
  if not ids then return complain(why) end
  local settings = text.sampling(o)
  settings.max_new_tokens, settings.generator = o.max_new_tokens, T.Generator(o.seed or text.seed())
  local broken
  core.raised(false)
  local ok, failure = pcall(text.reply, model, ids, settings, o.stop, function(piece)
    broken = broken or not io.stdout:write(piece) or not io.stdout:flush()
    return not broken
  end)
  io.stdout:write "\n"
  if ok then return broken and complain "the output could not be written" or OK end
  if core.raised() == "interrupt" then return INTERRUPTED end
  return complain(text.plain(failure))
end
