-- SPDX-License-Identifier: MIT
--- What runs in a loader's worker thread: unpacks the dataset once, then answers jobs with batches.
-- @module perilune.data.worker
local T = require "perilune"
local collate = require "perilune.data.collate"
local pack = require "perilune.data.pack"

-- Adds what a user needs to know to a message: which sample, and why a name may be missing here.
local function explain(message, job)
  local text = tostring(message)
  if job.at then text = ("sample %d: %s"):format(job.at, text) end
  if text:find("a nil value (global '", 1, true) then
    text = text .. "\n(globals of the script are not there in a worker: use locals, or set them in worker_init)"
  end
  return text
end

-- A worker is a thread: this would end the training, too, without a word.
os.exit = function() -- luacheck: ignore 122
  error("os.exit in a worker would end the whole program; call error, which ends the loop over the loader", 2)
end

return function(index, text, tensors)
  T.set_grad_enabled(false)
  local setup = pack.unpack(text, tensors)
  T.default_dtype(setup.dtype) -- a state of its own has its own; what is made here is what the script would make
  local job = { dataset = setup.dataset, collate = setup.collate, worker = index }
  if setup.worker_init then
    local replaced = setup.worker_init(index, setup.dataset)
    if replaced ~= nil then job.dataset = replaced end
  end
  local function handler(message)
    return debug.traceback(explain(message, job), 2)
  end
  return function(job_text, job_tensors)
    local order = pack.unpack(job_text, job_tensors)
    job.base = order.base
    T.default_dtype(order.dtype)
    local values = table.pack(xpcall(collate.batch, handler, job, order.indices))
    if not values[1] then
      job.at = nil
      error(values[2], 0)
    end
    local batch = table.move(values, 2, values.n, 1, { n = values.n - 1 })
    return pack.pack(batch, "data.DataLoader", true)
  end
end
