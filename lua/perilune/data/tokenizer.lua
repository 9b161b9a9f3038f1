-- SPDX-License-Identifier: MIT
--- Byte-level BPE tokenizers in the format of tokenizer.json files.
-- @classmod Tokenizer
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

local Tokenizer = { __name = "tokenizer" }
Tokenizer.__index = Tokenizer
Tokenizer.__len = function(self) return self.handle:size() end
Tokenizer.__tostring = function(self) return ("tokenizer of %d tokens"):format(#self) end

local M = { Tokenizer = Tokenizer }

--- A tokenizer from the text of a tokenizer.json file; `name` is for messages.
-- @treturn Tokenizer or nil, message, code
function M.from_json(json, name)
  local handle, message, code = core.tokenizer(json, name)
  if not handle then return nil, message, code end
  return setmetatable({ handle = handle, json = json, name = name }, Tokenizer)
end

-- How it travels to a loader's worker: from_json(json, name) there. See data.pack.
Tokenizer.__pack = function(self) return M.from_json, { self.json, self.name } end

--- Reads a tokenizer.json file: byte-level BPE, as of GPT-2 and its successors. Other kinds are refused by name.
-- @treturn Tokenizer or nil, message, code
function M.tokenizer(path)
  if type(path) ~= "string" then fail("data.tokenizer: the path must be a string, got %s", describe(path)) end
  local f, message = io.open(path, "rb")
  if not f then return nil, message, "io" end
  local json
  json, message = f:read("a")
  f:close()
  if not json then return nil, ("%s: %s"):format(path, message or "cannot read"), "io" end
  return M.from_json(json, path)
end

local function base_of(who, opts)
  local base = opts.index_base == nil and 1 or opts.index_base
  if base ~= 0 and base ~= 1 then fail("%s: index_base must be 0 or 1, got %s", who, describe(base)) end
  return base
end

--- The ids of a text, i64 [n]. `add_special=true`: with what the file's template puts around a text;
-- `split_special=true`: special tokens written out in the text count as such, otherwise they are plain text;
-- `index_base=1`: 0 gives the file's own ids. Takes any bytes.
-- @treturn Tensor or nil, message, code when the file's pattern takes too long
function Tokenizer:encode(text, opts)
  opts = options.check("encode", opts, { "add_special", "split_special", "index_base" })
  if type(text) ~= "string" then fail("encode: a string is wanted, got %s", describe(text)) end
  return self.handle:encode(text, base_of("encode", opts), opts.add_special ~= false, opts.split_special ~= false)
end

--- The text of ids, a tensor or a list; `skip_special=true` leaves special tokens out. Bytes that are no whole
-- characters stay as they are.
function Tokenizer:decode(ids, opts)
  opts = options.check("decode", opts, { "skip_special", "index_base" })
  if core.is_tensor(ids) then
    ids = ids:numel() == 0 and {} or ids:dim() == 0 and { ids:item() } or ids:flatten():totable()
  end
  if type(ids) ~= "table" then fail("decode: a tensor or a list of ids is wanted, got %s", describe(ids)) end
  return self.handle:decode(ids, opts.skip_special ~= false, base_of("decode", opts))
end

--- The token of an id as the file writes it, and whether it is special; nil for an id that there is not.
function Tokenizer:token(id, opts)
  opts = options.check("token", opts, { "index_base" })
  local i = options.integer(id)
  if not i then fail("token: an integer is wanted, got %s", describe(id)) end
  return self.handle:token(i, base_of("token", opts))
end

--- The id of a token as the file writes it (" the" is "Ġthe"), or nil.
function Tokenizer:id(token, opts)
  opts = options.check("id", opts, { "index_base" })
  if type(token) ~= "string" then fail("id: a string is wanted, got %s", describe(token)) end
  return self.handle:id(token, base_of("id", opts))
end

--- Writes the tokenizer.json file.
-- @treturn boolean true; or nil, message, code
function Tokenizer:save(path)
  local f, message = io.open(path, "wb")
  if not f then return nil, message, "io" end
  local ok
  ok, message = f:write(self.json)
  if ok then ok, message = f:close() else f:close() end
  if not ok then return nil, ("%s: %s"):format(path, message), "io" end
  return true
end

return M
