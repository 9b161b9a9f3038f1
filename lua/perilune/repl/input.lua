-- SPDX-License-Identifier: MIT
-- What an input is, a command, a question, a line for the shell or code, and who runs it.
local M = {}

--- Not a command or a question.
function M.is_code(text) return not text:find "^%s*[?:!]" and not text:find "^%s*[%w_.:]+%s*%?%s*$" end

--- Runs a whole input in a session; false when it raised or did not compile. first: the number of its first line.
function M.run(session, text, first)
  if not text:find "%S" then return true end
  if text:find "^%s*:" and not text:find "^%s*::" then return require("perilune.repl.commands").run(session, text) end
  local shell = text:match "^%s*!(.*)$"
  if shell then
    session.out:flush()
    return (os.execute(shell)) == true
  end
  local word = text:match "^%s*(%a+)%s*$"
  if word == "help" and rawget(session.env, "help") == session.own_help then
    session:page(require("perilune.repl.about").INTRODUCTION)
    return true
  end
  if (word == "quit" or word == "exit") and rawget(session.env, word) == nil then
    session:complain(("%s: %s"):format(word, session.end_hint))
    return true
  end
  local asked = text:match "^%s*%?(.*)$" or text:match "^%s*([%w_.:]+)%s*%?%s*$"
  if asked then
    session:guarded(function()
      require("perilune.repl.commands").run(session, ":doc " .. asked)
    end)
    return true
  end
  return session:run(text, first)
end

return M
