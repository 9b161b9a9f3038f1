-- SPDX-License-Identifier: MIT
-- A long training with everything on (spec/support/soak.lua): memory of the process, open files and blocks of the
-- engine stay where they are; and threads that come and go leave no memory. PERILUNE_LANES=long: 100,000 steps.

local child = require "spec.support.child"
local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."
local long = os.getenv "PERILUNE_LANES" == "long"
local sanitized = (os.getenv "PERILUNE_SANITIZE" or "") ~= "" -- its quarantine grows
local steps = long and 100000 or 2000

describe("a long training", function()
  it("needs no more with time", function()
    local p = assert(io.popen(("cd '%s' && OMP_NUM_THREADS=2 '%s/bin/perilune' run spec/support/soak.lua -- %d 2>&1")
      :format(root, build, steps)))
    local text, rows = p:read "a", {}
    assert(p:close(), text)
    for rss, files, blocks, live, lua in text:gmatch "rss (%d+) files (%d+) blocks (%d+) live (%d+) lua (%d+)" do
      rows[#rows + 1] = { rss = tonumber(rss), files = tonumber(files), blocks = tonumber(blocks),
        live = tonumber(live), lua = tonumber(lua) }
    end
    assert.equal(10, #rows, text)
    assert.truthy(text:find "loss true hooks true", text)
    local first, last = rows[4], rows[10]
    for _, row in ipairs(rows) do
      assert.is_true(row.files <= first.files + 2, text)
      -- instants differ in what is alive: a gradient more, a traced call's results
      assert.is_true(row.blocks < first.blocks + 200 and row.live < first.live + 100000, text)
    end
    assert.is_true(last.lua < first.lua + 300, text)
    assert.is_true(sanitized or last.rss < first.rss + (long and 8192 or 4096), text)
    io.stderr:write(("%d steps: %d to %d KiB, %d files, %d blocks\n"):format(steps, first.rss, last.rss, last.files,
      last.blocks))
  end)

  it("has loaders whose threads leave nothing", function()
    local text = child("OMP_NUM_THREADS=2", ([[
      local ds = T.data.TensorDataset(T.randn(16, 4), T.randn(16, 2))
      local function rss()
        collectgarbage() collectgarbage()
        return tonumber(io.open("/proc/self/status"):read("a"):match "VmRSS:%%s+(%%d+)")
      end
      local before
      for i = 1, %d do
        -- closed, for its threads live until it is collected: how many do at once would be the collector's pace
        local loader = T.data.DataLoader(ds, { batch_size = 8, workers = 1 })
        for _ in loader do end
        loader:close()
        if i == 60 then before = rss() end
      end
      print("grown by", rss() - before)]]):format(long and 2000 or 160))
    local grown = assert(tonumber(text:match "grown by%s+(-?%d+)"), text)
    -- 38 KiB each where every thread took a slab of its own
    assert.is_true(sanitized or grown < (long and 6144 or 2048), text)
  end)
end)
