-- SPDX-License-Identifier: MIT
-- Tokenizers against the Hugging Face tokenizers library (PyPI) on one thread: 10 MB of text in documents of 4 kB.
--   perilune run bench/tokenizers.lua -- TEXT [--peer PYTHON] [--rounds 5] [--mb 10] TOKENIZER.json …
-- Each round encodes everything here, then there (tokenizers_peer.py, encode_batch_fast): both meet the same machine.
-- Prints processor time in MB/s, medians, and their ratio; a tokenizer of 8,000 tokens is learned from the text first.
-- Ids must be equal.
local T = require "perilune"

local files, text_path, peer, rounds, size = {}, nil, "python3", 5, 10
local i = 1
while arg[i] do
  if arg[i] == "--peer" then
    peer, i = arg[i + 1], i + 1
  elseif arg[i] == "--rounds" then
    rounds, i = math.tointeger(arg[i + 1]), i + 1
  elseif arg[i] == "--mb" then
    size, i = tonumber(arg[i + 1]), i + 1
  elseif not text_path then
    text_path = arg[i]
  else
    files[#files + 1] = arg[i]
  end
  i = i + 1
end
assert(text_path, "usage: bench/tokenizers.lua -- TEXT [--peer PYTHON] [--rounds 5] [--mb 10] TOKENIZER.json …")

local function read(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read "a"
  f:close()
  return s
end

-- Documents of at least 4 kB that end with a line; each copy of the text has its number in its lines, so that no
-- document comes twice.
local book, docs, bytes, copy = read(text_path), {}, 0, 0
while bytes < size * 1e6 do
  copy = copy + 1
  local now, n = {}, 0
  for line in book:gmatch "[^\n]*\n" do
    if copy > 1 and #line > 40 then line = line:sub(1, 20) .. copy .. line:sub(21) end
    now[#now + 1], n = line, n + #line
    if n >= 4096 then
      docs[#docs + 1], bytes = table.concat(now), bytes + n
      now, n = {}, 0
      if bytes >= size * 1e6 then break end
    end
  end
end

local scratch = os.tmpname()
local out = assert(io.open(scratch, "wb"))
out:write(table.concat(docs, "\0"))
out:close()
local learned = os.tmpname()
assert(assert(T.data.train_bpe { 8000, text = book }):save(learned))
table.insert(files, 1, learned)

local function median(list)
  table.sort(list)
  return list[#list // 2 + 1]
end

T.set_num_threads(1)
local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
print(("%d documents, %.1f MB"):format(#docs, bytes / 1e6))
print(("%-20s %10s %10s %7s"):format("tokenizer", "MB/s", "peer MB/s", "ratio"))
for _, path in ipairs(files) do
  local t = assert(T.data.tokenizer(path))
  local ours, theirs, ids, checksum, peer_checksum = {}, {}, 0, 0, nil
  for _ = 1, rounds do
    local begin = os.clock()
    local all = t(docs, { truncation = false, padding = false })
    ours[#ours + 1] = os.clock() - begin
    ids, checksum = 0, 0
    for _, e in ipairs(all) do
      ids = ids + e.input_ids:numel()
      checksum = checksum + e.input_ids:sum():item() - e.input_ids:numel()
    end
    local command = "TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 '%s' '%stokenizers_peer.py' '%s' '%s'"
    local pipe = assert(io.popen(command:format(peer, here, path, scratch)))
    local line = pipe:read "a"
    pipe:close()
    local seconds, count, sum = line:match "^(%S+) (%d+) (%d+)"
    if not seconds then break end
    theirs[#theirs + 1] = tonumber(seconds)
    peer_checksum = count .. " " .. sum
  end
  local a = bytes / 1e6 / median(ours)
  local b = #theirs > 0 and bytes / 1e6 / median(theirs) or 0
  local name = path == learned and "BPE 8000" or path:match "([^/]*)/[^/]*$" or path
  local differ = peer_checksum and peer_checksum ~= ids .. " " .. checksum and "  IDS DIFFER" or ""
  print(("%-20s %10.1f %10.1f %7.2f%s"):format(name, a, b, b > 0 and a / b or 0, differ))
end
os.remove(scratch)
os.remove(learned)
