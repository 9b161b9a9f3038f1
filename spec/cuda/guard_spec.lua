-- SPDX-License-Identifier: MIT
-- The emulation watches kernels (PERILUNE_EMULATE=guard, twice): it finds planted mistakes, nothing in networks that
-- are trained. All kernels that way: PERILUNE_EMULATE=twice with spec/cuda/ops_spec.lua.

local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"
local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."

-- What a script prints under this emulation, and whether it went well.
local function run(emulate, code)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write("local T = require 'perilune'\n", code)
  f:close()
  local p = assert(io.popen(("cd '%s' && env PERILUNE_EMULATE=%s PERILUNE_CUDA_QUIET=1 '%s/bin/perilune' run %s 2>&1")
    :format(root, emulate, build, path)))
  local text = p:read("a")
  local fine = p:close()
  os.remove(path)
  return text, fine
end

local function plant(emulate, name)
  local code = "T.ones(2):cuda()\npackage.loadlib(%q, 'plce_plant_%s')()\nprint('done')\n"
  return run(emulate, code:format(plugin, name))
end

describe("the emulation's guard", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end

  local behind = ": memory access at 0x%x+, 0 bytes behind the end of a block of 400 bytes"
  for name, says in pairs {
    write_behind = "fill, block 3 0 0, thread 3 0 0" .. behind,
    read_behind = "take, block 3 0 0, thread 4 0 0" .. behind,
    write_before = "fill wrote 4 bytes before a block of 400 bytes",
    write_slack = "fill wrote 0 bytes behind the end of a block of 396 bytes",
    shared_behind = "shared_behind, block 0 0 0, thread 60 0 0: access 0 bytes behind the end of shared memory",
    use_freed = "add, block 0 0 0, thread 0 0 0: memory access at 0x%x+, where no block is %(any more%)",
  } do
    it("finds " .. name, function()
      local text, fine = plant("guard", name)
      assert.is_nil(fine)
      assert.truthy(text:find(says), text)
      assert.is_nil(text:find("done", 1, true))
    end)
  end

  it("finds packs at addresses that are none of theirs, in every mode", function()
    for _, mode in ipairs { "open", "guard" } do
      local text, fine = plant(mode, "not_aligned")
      assert.is_nil(fine)
      local says = "packs, block 0 0 0, thread 0 0 0: an access to memory that is not aligned"
      assert.truthy(text:find(says, 1, true), text)
    end
  end)

  it("finds what depends on the order of threads", function()
    for _, name in ipairs { "last_wins", "no_barrier" } do
      assert.truthy(plant("guard", name):find("done", 1, true))
      local text, fine = plant("twice", name)
      assert.is_nil(fine)
      assert.truthy(text:find("leaves other bits when its threads run in the opposite order: at %d in a block"), text)
    end
  end)

  it("lets right kernels pass", function()
    for _, mode in ipairs { "guard", "twice", "reverse", "guard,reverse" } do
      local text, fine = plant(mode, "fine")
      assert.is_true(fine, text)
      assert.equal("done\n", text)
    end
  end)

  it("finds nothing in networks that are trained", function()
    local text, fine = run("twice", [[
local nn, F = T.nn, T.nn.F
T.manual_seed(1)
T.set_default_device("cuda")
local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
  nn.Dropout(0.1), nn.Linear(4 * 5 * 5, 7), nn.LayerNorm(7))
local lstm, head, table_ = nn.LSTM(6, 5), nn.Linear(5, 3), nn.Embedding(11, 6)
local attention = nn.MultiheadAttention(8, 2)
local params = {}
for _, m in ipairs { net, lstm, head, table_, attention } do
  for _, p in ipairs(m:parameters()) do params[#params + 1] = p end
end
local optimizer = T.optim.AdamW(params, { lr = 1e-2 })
local x, y = T.randn(3, 1, 12, 12), T.randint(1, 8, { 3 })
local ids, s = T.randint(1, 12, { 4, 3 }), T.randn(5, 2, 8)
for _ = 1, 2 do
  optimizer:zero_grad()
  local words = head((lstm(table_(ids)))):logsumexp(3):mean()
  local loss = F.cross_entropy(net(x), y) + words + (attention(s, s, s)):abs():sum()
  loss:backward()
  nn.utils.clip_grad_norm_(params, 1)
  optimizer:step()
  assert(loss:item() == loss:item())
end
local v = T.randn(7, 300)
print(v:sort(2):sum():item() == v:sort(2):sum():item(), (v:topk(5, 2):sum()):item() > 0)
print(v:cumsum(2):isfinite():all():item())
]])
    assert.is_true(fine, text)
    assert.equal("true\ttrue\ntrue\n", text)
  end)
end)
