-- SPDX-License-Identifier: MIT
--- Where figures of a run go: `T.log.csv(path)`, `T.log.jsonl(path)`, `T.log.tensorboard(dir)`. Each is an object with
-- `log:write{step=, …}` and `log:close()`, and can stand among the callbacks of T.fit.
-- @module perilune.log
local log = {}

--- T.log.csv(path, {append=false, every=}) → log, or nil and a message
-- log:write{…} adds a row; the first names the columns. log:close(). Also a callback of T.fit: a row an epoch, or with
-- every = n one every n steps (loss, lr, norm of the gradients, samples a second, memory) and one with what is measured
-- at an epoch's end; perilune watch shows it while it grows.
--   local path = os.tmpname()
--   local log = assert(T.log.csv(path))
--   log:write { step = 1, loss = 0.5 }
--   log:close()
--   for line in io.lines(path) do print(line) end
--   --> step,loss
--   --> 1,0.5
--   os.remove(path)

--- T.log.jsonl(path, {append=false, every=}) → log, or nil and a message
-- log:write{…} adds a line that is a JSON object. log:close(). Also a callback of T.fit: a row an epoch, or with
-- every = n one every n steps, as T.log.csv says.
--   local path = os.tmpname()
--   local log = assert(T.log.jsonl(path))
--   log:write { step = 1, loss = 0.5 }
--   log:close()
--   for line in io.lines(path) do print(line) end  --> {"step":1,"loss":0.5}
--   os.remove(path)

--- T.log.tensorboard(dir, {flush=10, every=}) → log, or nil and a message
-- An event file in dir for TensorBoard. log:scalar(tag, v, step), log:scalars(tag, {name = v}, step),
-- log:histogram(tag, x, step, {bins=30}), log:image(tag, x, step), log:text(tag, s, step), log:write(row), log:flush(),
-- log:close(). Also a callback of T.fit: scalars of an epoch, or with every = n of steps, too, as T.log.csv says.
--   local dir = os.tmpname()
--   os.remove(dir)
--   local log = assert(T.log.tensorboard(dir))
--   log:scalar("loss", 0.5, 1)
--   log:histogram("weights", T.randn(100), 1)
--   log:close()
--   print(log.path:find("events.out.tfevents.", 1, true) ~= nil)  --> true
--   os.remove(log.path)
--   os.remove(dir)
for name, part in pairs { csv = "table", jsonl = "table", tensorboard = "tensorboard" } do
  log[name] = function(...)
    local made = require("perilune.log." .. part)
    return (type(made) == "table" and made[name] or made)(...)
  end
end

return log
