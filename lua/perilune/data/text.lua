-- SPDX-License-Identifier: MIT
--- Text as windows of tokens, for language models.
-- @module perilune.data.text
local T = require "perilune"
local classes = require "perilune.classes"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

-- ---- characters as tokens ---------------------------------------------------------------------------------------

--- A vocabulary of characters: `encode(text)` → ids from 1, i64 [n], as of T.data.tokenizer; `decode(ids)` → text, a
-- tensor or a list; `#vocabulary`.
local Characters = classes.new("characters", "tokenizer")
Characters.__len = function(self) return #self.list end

-- UTF-8 characters; bytes of text that is none.
local function characters(text)
  local list = {}
  local pattern = utf8.len(text) and utf8.charpattern or "."
  for ch in text:gmatch(pattern) do list[#list + 1] = ch end
  return list
end

local function build(text)
  local seen, list = {}, {}
  for _, ch in ipairs(characters(text)) do
    if not seen[ch] then
      seen[ch] = true
      list[#list + 1] = ch
    end
  end
  table.sort(list)
  local ids = {}
  for i, ch in ipairs(list) do ids[ch] = i end
  return setmetatable({ list = list, ids = ids }, Characters)
end

function Characters:encode(text)
  local out = characters(text)
  for i, ch in ipairs(out) do
    local id = self.ids[ch]
    if not id then fail("encode: %q is not in the vocabulary of %d characters", ch, #self) end
    out[i] = id
  end
  return T.tensor(out, { dtype = "i64", device = "cpu" })
end

function Characters:decode(ids)
  if type(ids) == "userdata" then ids = ids:numel() > 0 and ids:flatten():totable() or {} end
  local out = {}
  for i, id in ipairs(ids) do
    out[i] = self.list[id] or fail("decode: id %s is not in 1..%d", tostring(id), #self)
  end
  return table.concat(out)
end

-- ---- windows ----------------------------------------------------------------------------------------------------

local Windows = classes.new("TextDataset", "set", dataset.Dataset)
Windows.__index = function(self, key)
  local i = options.integer(key)
  if not i then return Windows[key] end
  local n = #self
  if i < 0 then i = n + 1 + i end
  if i < 1 or i > n then fail("data.text: window %s is not in 1..%d", tostring(key), n) end
  return { self:window(i) }
end
Windows.__len = function(self) return rawget(self, "n") end
Windows.__tostring = function(self) return ("TextDataset of %d windows of %d tokens"):format(#self, self.length) end

-- x and y of window i, views: y is x one token later.
function Windows:window(i)
  local at = (i - 1) * self.stride + 1
  return self.tokens:narrow(1, at, self.length), self.tokens:narrow(1, at + 1, self.length)
end

--- Windows idx (i64 [B]) as x and y, i64 [B, length].
function Windows:get_batch(idx)
  local xs, ys = {}, {}
  for k, i in ipairs(idx:totable()) do xs[k], ys[k] = self:window(i) end
  return T.stack(xs, 1), T.stack(ys, 1)
end

local spec = options.spec("data.text", { { "path", "string", optional = true }, { "length", "count", 64 },
  { "stride", "count", optional = true }, { "tokenizer", "any", optional = true },
  { "text", "string", optional = true }, { "transform", "callable", optional = true } })

-- `data.text{path, length=64, stride=length, tokenizer=}` or `{text = "…"}`: sample i is {x, y}, i64 [length] each, y
-- one token after x. Without a tokenizer (anything with `encode(text)` → ids from 1) tokens are the characters of the
-- text; `ds.tokenizer` decodes. Fields `tokens vocab_size tokenizer`.
-- @treturn dataset; or nil, message, code
--- T.data.text{path, length=64, stride=length, tokenizer=, transform=} → dataset of {x, y}, or nil, message, code
-- Windows of tokens, y one token after x. Tokens are characters, or what tokenizer:encode(text) gives. text= instead of
-- a path. Fields tokens, vocab_size, tokenizer (with decode).
--   local ds = assert(T.data.text { text = "to be or not", length = 3 })
--   print(#ds, ds.tokenizer:decode(ds[1][2]))  --> 3	o b
local function text(...)
  local a = options.read(spec, ...)
  if (a.path == nil) == (a.text == nil) then fail("data.text: either a path or text is wanted") end
  local content, where = a.text, "the text"
  if a.path then
    where = a.path
    local f, message = io.open(a.path, "rb")
    if not f then return nil, message, "io" end
    content, message = f:read("a")
    f:close()
    if not content then return nil, ("%s: %s"):format(a.path, message or "cannot read"), "io" end
  end
  local tokenizer = a.tokenizer or build(content)
  local kind = type(tokenizer)
  if kind ~= "table" and kind ~= "userdata" then
    fail("data.text: tokenizer must have encode(text), got %s", describe(tokenizer))
  end
  local ids = tokenizer:encode(content)
  local tokens = type(ids) == "userdata" and ids or T.tensor(ids, { dtype = "i64", device = "cpu" })
  local length, stride = a.length, a.stride or a.length
  local n = tokens:numel() > length and (tokens:numel() - length - 1) // stride + 1 or 0
  if n == 0 then
    return nil, ("%s: %d tokens are too few for a window of %d and its next token"):format(where, tokens:numel(),
      length), "format"
  end
  local windows = setmetatable({ tokens = tokens, tokenizer = tokenizer, vocab_size = #tokenizer, length = length,
    stride = stride, n = n }, Windows)
  return dataset.transformed(windows, a.transform)
end

return { text = text, Characters = Characters, Windows = Windows }
