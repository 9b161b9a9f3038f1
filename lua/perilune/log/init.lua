-- SPDX-License-Identifier: MIT
--- Where figures of a run go: `T.log.csv(path)`, `T.log.jsonl(path)`, `T.log.tensorboard(dir)`. Each is an object with
-- `log:write{step=, …}` and `log:close()`, and can stand among the callbacks of T.fit.
-- @module perilune.log
local log = {}

for name, part in pairs { csv = "table", jsonl = "table", tensorboard = "tensorboard" } do
  log[name] = function(...)
    local made = require("perilune.log." .. part)
    return (type(made) == "table" and made[name] or made)(...)
  end
end

return log
