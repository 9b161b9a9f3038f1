-- SPDX-License-Identifier: MIT
-- Search of pictures by words: a small CLIP learns which caption belongs to which picture, then finds pictures by names
-- that never stood alone.
--   perilune run examples/clip_search.lua -- [--images fashion|digits|shapes] [--root FOLDER] [--query "…"] [--quick]
-- Pictures are those of Fashion-MNIST or MNIST where they are found (in --root, too), else shapes that are drawn here.
-- Ends with "ok" when, on average, 80 % of the ten nearest pictures are what was asked for (--quick: 60 %).
local T = require "perilune"
local optim = T.optim

local options = T.cli {
  about = "Learns to find pictures by words.",
  { "images", type = "string", help = "fashion, digits or shapes (what is there)" },
  { "root", type = "string", help = "where the pictures' files are" },
  { "query", type = "string", help = "print the pictures that are nearest to this" },
  { "steps", type = "integer", min = 10, help = "training steps (2000; 350 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a short run with a lower goal" },
}
local steps = options.steps or (options.quick and 350 or 2000)
T.manual_seed(options.seed)

-- ---- pictures [N, 1, 28, 28] and classes from 1 --------------------------------------------------------------
local function drawn(n)
  local y, x = T.arange(1, 28):float():view(1, 28, 1), T.arange(1, 28):float():view(1, 1, 28)
  local function place() return (T.rand(n) * 8 + 10.5):view(n, 1, 1) end
  local cx, cy, r = place(), place(), (T.rand(n) * 4 + 4):view(n, 1, 1)
  local dx, dy = (x - cx):abs(), (y - cy):abs()
  local square = T.maximum(dx, dy):le(r)
  local circle = (dx:square() + dy:square()):le(r:square())
  local diamond = (dx + dy):le(r)
  local cross = square:logical_and(T.minimum(dx, dy):le(1.5))
  local ring = circle:logical_and((dx:square() + dy:square()):gt((r - 2.5):square()))
  local kinds = T.stack({ square, circle, diamond, cross, ring }, 2):float()
  local class = T.randint(1, 5, { n })
  local images = kinds:gather(2, class:view(n, 1, 1, 1):expand(n, 1, 28, 28))
  return (images + 0.15 * T.randn(n, 1, 28, 28)):clamp(0, 1), class
end

local sets = {
  fashion = { "fashion_mnist", { "shirt", "trousers", "pullover", "dress", "coat", "sandal", "blouse", "sneaker", "bag",
    "boot" } },
  digits = { "mnist", { "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine" } },
  shapes = { false, { "filled square", "filled circle", "diamond", "thin cross", "hollow ring" } },
}
-- How captions speak of them; searched is for the bare name.
local templates = { "a photo of a %s", "a small %s", "this is a %s", "some %s of many" }

local function read(kind)
  local name = sets[kind][1]
  if not name then return drawn(4000) end
  local set = T.data[name] { split = "test", root = options.root }
  if set then return set.images, set.labels end
end
local kind, images, class = options.images, nil, nil
if kind then
  assert(sets[kind], "--images: fashion, digits or shapes")
  images, class = read(kind)
  assert(images, "the pictures are not there; say --root, or --images shapes")
else
  for _, name in ipairs { "fashion", "digits", "shapes" } do
    if not images then kind, images, class = name, read(name) end
  end
end
local names = sets[kind][2]
print(("%d pictures of %s"):format(images:size(1), kind))

-- ---- texts: a token for each word, [START] … [END] ----------------------------------------------------------------
local known, count = {}, 2 -- 0 fills up, 1 begins, the last one ends
for _, list in ipairs { templates, names } do
  for _, text in ipairs(list) do
    for word in text:gsub("%%s", ""):gmatch "%a+" do
      if not known[word] then known[word], count = count, count + 1 end
    end
  end
end
local END, LENGTH = count, 8
local function tokens(text)
  local list = { 1 }
  for word in text:gmatch "%a+" do
    list[#list + 1] = assert(known[word], "the word '" .. word .. "' is in no caption")
  end
  list[#list + 1] = END
  assert(#list <= LENGTH, "too many words")
  while #list < LENGTH do list[#list + 1] = 0 end
  return list
end

local net = T.models.CLIP { projection_dim = 32,
  text_config = { vocab_size = count + 1, hidden_size = 48, intermediate_size = 96, num_hidden_layers = 1,
    num_attention_heads = 4, max_position_embeddings = LENGTH, eos_token_id = END },
  vision_config = { hidden_size = 64, intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4,
    image_size = 28, patch_size = 7, num_channels = 1 } }
print(("%d parameters"):format(net:num_parameters()))

-- ---- training: of captions and pictures, which belong together? -----------------------------------------------
local all = {} -- [templates * names, LENGTH]
for _, template in ipairs(templates) do
  for _, name in ipairs(names) do all[#all + 1] = tokens(template:format(name)) end
end
all = T.tensor(all, { dtype = "i64" })
local held = images:size(1) // 5
local train = images:size(1) - held
-- The rows of each class, so that a batch has one picture a class and no two captions that are the same.
local rows = {}
for k = 1, #names do rows[k] = class:narrow(1, 1, train):eq(k):nonzero():flatten() end
local opt = optim.AdamW(net:train():parameters(), { lr = 2e-3, weight_decay = 0.01 })
local schedule = optim.lr_scheduler.OneCycleLR(opt, { max_lr = 2e-3, total_steps = steps })
local each = 10 -- batches in one, for the picture's side
for step = 1, steps do
  local loss = 0
  local picked = {}
  for k = 1, #names do picked[k] = rows[k]:index_select(1, T.randint(1, rows[k]:size(1), { each })) end
  local at = T.stack(picked, 1) -- [classes, each]
  local pixels = images:index_select(1, at:flatten())
  local which = T.randint(0, #templates - 1, { #names }) * #names + T.arange(1, #names) -- a template each
  local all_pairs = net(all:index_select(1, which), { pixel_values = pixels }):view(#names, each, #names)
  local own = T.arange(1, #names)
  for e = 1, each do
    local logits = all_pairs:select(2, e) -- pictures by texts
    loss = loss + (T.nn.F.cross_entropy(logits, own) + T.nn.F.cross_entropy(logits:t(), own)) / (2 * each)
  end
  opt:zero_grad()
  loss:backward()
  opt:step()
  schedule:step()
  if step % (steps // 5) == 0 then print(("step %4d: loss %.3f"):format(step, loss:item())) end
end

-- ---- search ----------------------------------------------------------------------------------------------
net:eval()
local _ <close> = T.no_grad()
local queries, index = {}, {}
for k, name in ipairs(names) do queries[k] = tokens(name) end
queries[#queries + 1] = options.query and tokens(options.query) or nil
local asked = T.tensor(queries, { dtype = "i64" })
local texts
for i = 1, held, 200 do
  local pixels = images:narrow(1, train + i, math.min(200, held - i + 1))
  local _, out = net(asked, { pixel_values = pixels })
  index[#index + 1], texts = out.image_embeds, out.text_embeds -- of length 1
end
index = T.cat(index, 1)
local function nearest(query, k)
  local _, at = index:matmul(texts[query]):topk(k)
  return at
end

local sum = 0
for k, query in ipairs(names) do
  local found = class:narrow(1, train + 1, held):index_select(1, nearest(k, 10))
  local right = found:eq(k):float():mean():item()
  sum = sum + right
  print(("%-14s %3.0f %% of the ten nearest"):format(query, 100 * right))
end
if options.query then
  local at = nearest(#names + 1, 3):totable()
  for _, i in ipairs(at) do
    print(("picture %d, %s"):format(train + i, names[class:get(train + i)]))
    T.imshow(images[train + i][1])
  end
end
assert(sum / #names >= (options.quick and 0.6 or 0.8), "the goal was missed")
print("ok")
