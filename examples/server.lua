-- SPDX-License-Identifier: MIT
-- An inference server as a coroutine: requests of many clients that wait at the same time go through the network as one
-- batch. Here the clients are coroutines too; with --stdin requests are lines of four numbers, answered by lines.
--   perilune run examples/server.lua -- [--clients 64] [--requests 50] [--batch 32] [--seed 1] [--quick] [--stdin]
-- Ends with "ok" when every answer is what the network says to that request alone.
local T = require "perilune"
local nn = T.nn

local options = T.cli {
  about = "Serves a network to many clients, a batch at a time.",
  { "clients", 64, "that ask at the same time", min = 1 },
  { "requests", 50, "of each client", min = 1 },
  { "batch", 32, "requests that are answered together", min = 1 },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "fewer requests" },
  { "stdin", false, "answer lines of standard input" },
}
if options.quick then options.requests = 10 end
T.manual_seed(options.seed)

local net = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)):eval()

-- ---- the server ----------------------------------------------------------------------------------------
local Server = {}
Server.__index = Server

function Server.new(model, largest)
  local self = setmetatable({ queue = {}, first = 1, batches = 0, answered = 0 }, Server)
  self.loop = coroutine.create(function()
    while true do
      local waiting = math.min(#self.queue - self.first + 1, largest)
      if waiting == 0 then
        coroutine.yield()
      else
        self:answer(model, table.move(self.queue, self.first, self.first + waiting - 1, 1, {}))
        for i = self.first, self.first + waiting - 1 do self.queue[i] = false end
        self.first = self.first + waiting
        coroutine.yield()
      end
    end
  end)
  return self
end

-- A network's error belongs to the request that caused it, not to the server: alone again, each gets its own.
function Server:answer(model, tickets)
  local inputs = {}
  for i, ticket in ipairs(tickets) do inputs[i] = ticket.input end
  local ok, result = pcall(function()
    local _ <close> = T.no_grad()
    return model(T.stack(inputs, 1)):softmax(-1)
  end)
  if not ok and #tickets > 1 then
    for _, ticket in ipairs(tickets) do self:answer(model, { ticket }) end
    return
  end
  self.batches, self.answered = self.batches + 1, self.answered + #tickets
  for i, ticket in ipairs(tickets) do
    ticket.done = true
    if ok then ticket.output = result[i] else ticket.error = result end
  end
end

-- Puts a request into the queue; the ticket's `done`, `output` and `error` tell the rest.
function Server:ask(input)
  local ticket = { input = input }
  self.queue[#self.queue + 1] = ticket
  return ticket
end

function Server:work()
  local ok, message = coroutine.resume(self.loop)
  if not ok then error(message, 0) end
end

local server = Server.new(net, options.batch)

-- ---- lines of text ----------------------------------------------------------------------------------------
if options.stdin then
  for line in io.lines() do
    local values = {}
    for word in line:gmatch("%S+") do values[#values + 1] = tonumber(word) end
    local ticket = server:ask(T.tensor(values))
    while not ticket.done do server:work() end
    print(ticket.output and table.concat(ticket.output:totable(), " ") or "error: " .. tostring(ticket.error))
  end
  return
end

-- ---- many clients -------------------------------------------------------------------------------------------
local worst, wrong = 0.0, 0
local function client(number)
  return coroutine.create(function()
    for k = 1, options.requests do
      local broken = number == 1 and k == 1 -- one request that the network refuses
      local input = T.randn(broken and 5 or 4)
      local ticket = server:ask(input)
      repeat coroutine.yield() until ticket.done
      if broken then
        assert(ticket.error and ticket.error:find("f32[1,5]", 1, true), "the wrong request got no error")
      else
        local alone = T.no_grad(function() return net(input:unsqueeze(1)):softmax(-1)[1] end)
        worst = math.max(worst, (alone - ticket.output):abs():max():item())
        if alone:argmax():item() ~= ticket.output:argmax():item() then wrong = wrong + 1 end
      end
    end
  end)
end

local clients, timer = {}, T.timer()
for i = 1, options.clients do clients[i] = client(i) end
local left = #clients
while left > 0 do
  for i, c in ipairs(clients) do
    if c and coroutine.status(c) ~= "dead" then
      local ok, message = coroutine.resume(c)
      if not ok then error(message, 0) end
      if coroutine.status(c) == "dead" then left, clients[i] = left - 1, false end
    end
  end
  server:work()
end

local asked = options.clients * options.requests
print(("%d requests in %d batches, %s with the checks"):format(server.answered, server.batches, timer))
print(("largest difference to an answer alone: %.1e, %d other classes"):format(worst, wrong))
assert(server.answered == asked and worst < 1e-5 and wrong == 0, "an answer is wrong")
assert(asked < 100 or server.batches < asked, "nothing was answered together")
print("ok")
