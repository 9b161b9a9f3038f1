-- SPDX-License-Identifier: MIT
-- Running out of memory in readers, tables and transforms, one allocation further each time: an error that says so,
-- nothing left behind, everything works afterwards.

local T = require "perilune"
local live = require "spec.support.live"

local fixtures = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/"
local data = T.data

-- Whether this build reads the file at all.
local function reads(f, ...)
  local v, _, code = f(...)
  return v ~= nil or code ~= "unsupported"
end

local picture = function() return T.arange(3 * 30 * 20):view(3, 30, 20):to("u8") end
local tr = data.transforms
local prepare = tr.compose { tr.random_resized_crop(8), tr.random_horizontal_flip(1),
  tr.color_jitter { hue = 0.1, contrast = 0.2 }, tr.to_tensor(), tr.normalize(0.5, 0.5), tr.random_erasing { p = 1 } }

local SCRIPTS = {
  { "npy", function(path)
    assert(T.save_npy(path, T.ones(40, 5):t()))
    return assert(T.load_npy(path)):sum():item()
  end },
  { "safetensors", function(path)
    assert(T.save(path, { a = T.ones(50), b = { c = T.zeros(30), d = 3 } }))
    return assert(T.load(path)).a:sum():item()
  end },
  { "GGUF", function(path)
    assert(T.save_gguf(path, { a = T.ones(4, 64), b = T.arange(3) }, { metadata = { k = { 1, 2 } }, type = "Q5_1" }))
    return assert(T.load(path)).a:sum():item()
  end },
  { "parts of files", function(path)
    assert(T.save(path, { a = T.ones(40, 50) }))
    local f <close> = assert(T.open(path))
    return f:slice("a", { {}, { 2, 5 } }):sum():item()
  end },
  { "npz", function() return assert(T.load_npz(fixtures .. "arrays.npz")).zeros:numel() end, T.load_npz, "arrays.npz" },
  { "pt", function() return assert(T.load_pt(fixtures .. "pt/zip.pt")).base:sum():item() end },
  { "pt, the old format", function() return assert(T.load(fixtures .. "pt/before_zip.pt")).base:sum():item() end },
  { "writing npz", function(path)
    assert(T.save_npz(path, { a = T.ones(4, 5):t(), b = T.arange(3) }))
    return assert(T.load_npz(path)).a:sum():item()
  end },
  { "PNG", function() return assert(T.load_image(fixtures .. "pixels.png", { mode = "gray" })):numel() end,
    T.load_image, "pixels.png" },
  { "JPEG", function() return assert(T.load_image(fixtures .. "photo.jpg")):numel() end, T.load_image, "photo.jpg" },
  { "writing PNG", function(path)
    assert(T.save_image(path .. ".png", picture()))
    os.remove(path .. ".png")
    return true
  end },
  { "csv", function()
    local c = assert(data.csv { text = "a,b,c\n1,2.5,x\n" .. ("3,4,y\n"):rep(40) })
    return c:tensor { "a", "b" }:sum():item()
  end },
  { "text", function() return #assert(data.text { text = ("hello world "):rep(20), length = 8 })[1][1] end },
  { "a tokenizer", function()
    return assert(data.tokenizer(fixtures .. "gpt2.json")):encode("the king"):numel()
  end, data.tokenizer, "gpt2.json" },
  { "transforms", function() return prepare(picture()):numel() end },
  { "a loader", function()
    local n = 0
    for x in data.DataLoader(data.TensorDataset(T.ones(60, 30)), { batch_size = 20, shuffle = true, seed = 1 }) do
      n = n + x:sum():item()
    end
    return n
  end },
}

describe("a failing allocation in", function()
  for _, row in ipairs(SCRIPTS) do
    it(row[1], function()
      local script, reader, file = row[2], row[3], row[4]
      if reader and not reads(reader, fixtures .. file) then return pending("this build cannot read " .. file) end
      local path = os.tmpname()
      local function run(n)
        T.core.fail_at(n, 1 << 40)
        local ok, err = pcall(script, path)
        T.core.fail_at(-1)
        return ok, err
      end
      script(path)
      script(path)
      local blocks = live.blocks(T)
      local last
      for n = 0, 3000 do
        local ok, err = run(n)
        if ok then
          last = n
          break
        end
        assert.truthy(tostring(err):find("memory", 1, true), tostring(err))
        if n % 8 == 1 then
          assert.equal(blocks, (live.blocks(T)), "blocks left after failure " .. n)
          assert.truthy(script(path))
        end
      end
      assert.is_true(last ~= nil and last > 0)
      assert.equal(blocks, (live.blocks(T)))
      os.remove(path)
    end)
  end
end)
