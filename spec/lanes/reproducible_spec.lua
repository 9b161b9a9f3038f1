-- SPDX-License-Identifier: MIT
-- The same sources give the same bytes, whatever the build folder is called and whenever it is built: built twice, from
-- nothing, without a compiler cache. Minutes, so with PERILUNE_LANES=long alone.

local root = os.getenv "PERILUNE_ROOT" or "."
local long = os.getenv "PERILUNE_LANES" == "long"

local function run(command)
  local p = assert(io.popen(command .. " 2>&1"))
  local text = p:read "a"
  return p:close() and true or false, text
end

describe("two builds", function()
  if not long then
    pending "./setup lanes builds twice"
    return
  end

  it("have the same bytes", function()
    local base = os.tmpname()
    os.remove(base)
    local folders = { base .. "-one", base .. "-of-a-longer-name" }
    local compared = 0
    local ok, err = pcall(function()
      for _, folder in ipairs(folders) do
        local fine, text = run(("export CCACHE_DISABLE=1; cmake -S '%s' -B '%s' -G Ninja -DCMAKE_BUILD_TYPE=Release "
          .. "-DPERILUNE_CUDA=OFF -DPL_TESTS=OFF && cmake --build '%s' -j2"):format(root, folder, folder))
        assert.is_true(fine, text:sub(-2000))
      end
      local _, names = run(("cd '%s' && ls bin/perilune lib/perilune/*.so"):format(folders[1]))
      for name in names:gmatch "[^\n]+" do
        local same, text = run(("cmp '%s/%s' '%s/%s'"):format(folders[1], name, folders[2], name))
        assert.is_true(same, text)
        compared = compared + 1
      end
    end)
    for _, folder in ipairs(folders) do os.execute(("rm -rf '%s'"):format(folder)) end
    if not ok then error(err, 0) end
    io.stderr:write(("%d files built twice\n"):format(compared))
    assert.is_true(compared >= 4)
  end)
end)
