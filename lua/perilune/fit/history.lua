-- SPDX-License-Identifier: MIT
--- What T.fit returns: a list of rows, one an epoch, each a table of numbers by name.
-- @module perilune.fit.history
local classes = require "perilune.classes"
local options = require "perilune.options"
local html = require "perilune.tools.html"

local fail = options.fail
local History = classes.new("history", "history")

local first = { step = 0, epoch = 1, loss = 2, valid_loss = 3 }
local last = { lr = 1, seconds = 2 }

-- Names of the rows' numbers: epoch, losses, metrics by name, learning rate, time.
function History:names()
  local seen, names = {}, {}
  for _, row in ipairs(self) do
    for name in pairs(row) do
      if not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
  end
  table.sort(names, function(a, b)
    local p, q = first[a] or last[a] and 100 + last[a] or 50, first[b] or last[b] and 100 + last[b] or 50
    if p ~= q then return p < q end
    return a < b
  end)
  return names
end

--- The numbers of one name, epoch by epoch.
function History:column(name)
  local out, any = {}, false
  for i, row in ipairs(self) do
    out[i] = row[name] ~= nil and row[name] or 0 / 0
    any = any or row[name] ~= nil
  end
  if not any and #self > 0 then fail("history: %s", options.unknown("column", name, self:names())) end
  return out
end

--- The row where `name` is lowest (mode "min", the default for losses and errors) or highest ("max", that of accuracies
-- and scores).
function History:best(name, mode)
  local column, at = self:column(name), nil
  local down = History.mode("history:best", name, mode) == "min"
  for i, v in ipairs(column) do
    if v == v and (not at or (down and v < column[at]) or (not down and v > column[at])) then at = i end
  end
  return self[at]
end

local function set_of(words)
  local set = {}
  for word in words:gmatch "%S+" do set[word] = true end
  return set
end
-- Words of names, and what may be part of one.
local less = set_of [[mse mae rmse mape nll ce bce kl wer cer fid ppl bpc bpb entropy perplexity divergence distance
  seconds]]
local more = set_of [[acc top precision recall f1 auc auroc ap map r2 score iou dice bleu rouge psnr ssim reward kappa
  mcc correct similarity]]
local function has(name, set, ...)
  for _, part in ipairs { ... } do if name:find(part, 1, true) then return true end end
  for word in name:gmatch "[^_%s%./%-]+" do if set[word] or set[word:gsub("%d+$", "")] then return true end end
  return false
end

--- Which way is better: `mode`, or what the name says. A name that says nothing is an error: the wrong way would keep
-- the worst.
function History.mode(who, name, mode)
  if mode == "min" or mode == "max" then return mode end
  if mode ~= nil then fail("%s: %s", who, options.unknown("mode", mode, { "min", "max" })) end
  local lower = name:lower()
  if has(lower, less, "loss", "error") then return "min" end
  if has(lower, more, "accuracy") then return "max" end
  return fail('%s: is more of \'%s\' better, or less? Say so: mode = "max" or "min"', who, name)
end

--- A figure of some columns over epochs; without names, of all losses.
function History:plot(names, opts)
  local T = require "perilune"
  if type(names) == "table" and names[1] == nil then names, opts = nil, names end
  if type(names) == "string" then names = { names } end
  if not names then
    names = {}
    for _, name in ipairs(self:names()) do if name:find("loss", 1, true) then names[#names + 1] = name end end
  end
  local along = self[1] and self[1].step and "step" or "epoch" -- rows of T.fit{eval_every =} have steps
  local series, places = {}, self:column(along)
  for i, name in ipairs(names) do series[i] = { x = places, y = self:column(name), label = name } end
  local o = { xlabel = along }
  for key, v in pairs(opts or {}) do o[key] = v end
  return T.plot(series, o)
end

local function cell(v)
  if math.type(v) == "float" then
    return (math.abs(v) >= 1e-3 or v == 0) and ("%.4f"):format(v) or ("%.3g"):format(v)
  end
  return v == nil and "" or tostring(v)
end

-- The names, then the numbers of the last `most` rows (all), as text.
function History:cells(most)
  local names = self:names()
  local cells = { names }
  for i = most and math.max(1, #self - most + 1) or 1, #self do
    local out = {}
    for k, name in ipairs(names) do out[k] = cell(self[i][name]) end
    cells[#cells + 1] = out
  end
  return cells
end

function History:__mime() return { ["text/html"] = html.table(self:cells(), { left = 0 }) } end

function History:__tostring()
  local width, lines = {}, {}
  local cells = self:cells()
  for _, row in ipairs(cells) do
    for k, text in ipairs(row) do width[k] = math.max(width[k] or 0, #text) end
  end
  for i, row in ipairs(cells) do
    local out = {}
    for k, text in ipairs(row) do out[k] = (" "):rep(width[k] - #text) .. text end
    lines[i] = table.concat(out, "  ")
  end
  return table.concat(lines, "\n")
end

--- Takes rows over from a checkpoint.
function History.new(rows)
  local self = setmetatable({}, History)
  for i, row in ipairs(rows or {}) do
    self[i] = {}
    for name, v in pairs(row) do self[i][name] = v end
  end
  return self
end

return History
