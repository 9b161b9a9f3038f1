-- SPDX-License-Identifier: MIT
--- T.fit in a notebook: one display that changes while it trains, with the batches of this epoch, the rows of the
-- history and, from the second on, the curves of the losses.
-- @module perilune.jupyter.fit_view
local T = require "perilune"
local html = require "perilune.tools.html"

local EVERY = 0.25 -- seconds between two changes
local ROWS = 12 -- of the history, the last ones

local View = { __name = "fit" }
View.__index = View

local function curves(history)
  if #history < 2 then return "" end
  local ok, figure = pcall(history.plot, history, { width = 480, height = 260 })
  return ok and figure:svg() or ""
end

local function bar(progress)
  if not progress then return "" end
  local share = progress.total and progress.total > 0
    and ('<progress value="%d" max="%d" style="width:16em"></progress> '):format(progress.n, progress.total) or ""
  return ("<p>%s%s</p>"):format(share, html.escape(progress:words()))
end

function View:__mime()
  local rows = self.history:cells(ROWS)
  local parts = { bar(self.progress), #rows > 1 and html.table(rows, { left = 0 }) or "", curves(self.history) }
  return { ["text/html"] = table.concat(parts, "\n") }
end

function View:__tostring()
  local lines = { #self.history > 0 and tostring(self.history) or nil }
  if self.progress then lines[#lines + 1] = self.progress.title .. " " .. self.progress:words() end
  return table.concat(lines, "\n")
end

-- Shows the state of things, not too often unless it must be.
function View:_draw(must)
  local now = T.core.clock()
  if not must and now - self.drawn < EVERY then return end
  self.drawn = now
  if self.handle then self.handle:update(self) else self.handle = self.display(self) end
end

--- An epoch begins; progress: the bar, which counts and draws nothing itself.
function View:begin(progress)
  self.progress = progress
  progress.on_step = function() self:_draw() end
end

--- There is a new row, or training has ended. The bar stays while its epoch goes on.
function View:ended()
  if self.progress and self.progress.finished then self.progress = nil end
  self:_draw(true)
end

return function(history, display)
  return setmetatable({ history = history, display = display, drawn = 0 }, View)
end
