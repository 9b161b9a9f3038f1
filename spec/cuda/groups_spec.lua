-- SPDX-License-Identifier: MIT
-- bench/gpu.sh, whose groups are what runs in the first minutes on a GPU: each of them here on the emulated device,
-- small, so that the script is known to work; what it says when it is cut, when something fails, and when parts of a
-- pack lack.

local plugin = os.getenv "PERILUNE_CUDA_PLUGIN"
local build = os.getenv "PERILUNE_BUILD" or "build"
local root = os.getenv "PERILUNE_ROOT" or "."

local function shell(command)
  local p = assert(io.popen(("cd '%s' && %s 2>&1; echo status $?"):format(root, command)))
  local text = p:read("a")
  p:close()
  return text, tonumber(text:match "status (%d+)\n$")
end

local out = os.tmpname()
os.remove(out)
local function group(name, options, settings)
  local form = "%s bench/gpu.sh --build '%s' --device emulated --tiny --out '%s' --jobs 2 %s %s"
  return shell(form:format(settings or "", build, out, options or "", name))
end
local function closing(text, name)
  local ok, failed, skipped, left = text:match("== " .. name ..
    ": (%d+) ok, (%d+) failed, (%d+) skipped, (%d+) not done")
  assert.truthy(ok, text)
  return tonumber(ok), tonumber(failed), tonumber(skipped), tonumber(left)
end

describe("bench/gpu.sh", function()
  if not plugin or not plugin:find("emulated", 1, true) then
    pending("PERILUNE_CUDA_PLUGIN names no emulated device")
    return
  end
  teardown(function() os.execute(("rm -rf '%s'"):format(out)) end)

  it("smoke: the device, its libraries, kernels of every kind, guarded", function()
    local text, status = group "smoke"
    assert.equal(0, status, text)
    local ok, failed, _, left = closing(text, "smoke")
    assert.same({ 5, 0, 0 }, { ok, failed, left }, text)
    assert.truthy(text:find("memory pools: ok", 1, true), text)
    text, status = group("smoke", "", "PERILUNE_EMULATE=open,no-pools")
    assert.equal(0, status, text)
    assert.truthy(text:find("memory pools: skipped", 1, true), text)
  end)

  it("smoke says what is wrong: no driver, a device that faults", function()
    local text, status = group("smoke", "", "PERILUNE_EMULATE=no-driver")
    assert.equal(2, status, text)
    local _, failed = closing(text, "smoke")
    assert.equal(1, failed, text)
    assert.truthy(text:find("no NVIDIA driver", 1, true), text)
    text, status = group("smoke", "", "PERILUNE_EMULATE=open,fault=40")
    assert.equal(1, status, text)
    local _, faulted = closing(text, "smoke")
    assert.is_true(faulted >= 1, text)
  end)

  it("values: workloads in their modes beside the CPU's numbers", function()
    local text, status = group("values", "--budget 100 --only 'sum_64m mlp_step_b64'")
    assert.equal(0, status, text)
    local ok, failed = closing(text, "values")
    assert.same({ 7, 0 }, { ok, failed }, text)
  end)

  it("specs: counts a file, names of what failed", function()
    local text, status = group("specs:tensor/channels_last", "--budget 100")
    assert.equal(0, status, text)
    local ok, failed = closing(text, "specs:tensor/channels_last")
    assert.same({ 1, 0 }, { ok, failed }, text)
    assert.truthy(text:find "specs tensor/channels_last: ok: %d+ successes / 0 failures", text)
    text, status = group("specs:tensor/channels_last", "--budget 100", "PERILUNE_EMULATE=open,fault=60")
    assert.equal(1, status, text)
    local _, faulted = closing(text, "specs:tensor/channels_last")
    assert.equal(1, faulted, text)
    local f = assert(io.open(out .. "/failing.txt"))
    local names = f:read("a")
    f:close()
    assert.truthy(names:find("tensor/channels_last: ", 1, true), names)
    assert.truthy(text:find "failing cases: %d+\nspecs tensor/channels_last: ", text)
  end)

  it("specs leaves out what has no tensors; golden takes a part of PyTorch's cases, if they are there", function()
    local text, status = group("specs:command/ golden:7/200", "--budget 100")
    assert.equal(0, status, text)
    assert.same({ 0, 0, 0, 0 }, { closing(text, "specs:command/") }, text)
    local ok, failed, skipped, left = closing(text, "golden:7/200")
    assert.same({ 0, 0 }, { failed, left }, text)
    assert.is_true(ok == 2 or skipped == 1, text) -- a part each of two jobs
  end)

  it("bandwidth, cores and train: a line of figures each, whether it was captured", function()
    for name, only in pairs { bandwidth = "copy_1g sum_64m", cores = "gemm_bf16_1024", train = "mlp_step_b64" } do
      local text, status = group(name, ("--budget 300 --only '%s'"):format(only))
      assert.equal(0, status, text)
      local ok, failed, _, left = closing(text, name)
      assert.is_true(ok >= 1, text)
      assert.same({ 0, 0 }, { failed, left }, text)
    end
    local f = assert(io.open(out .. "/perilune.jsonl"))
    local lines = f:read("a")
    f:close()
    assert.truthy(lines:find '"mode": "graph", [^\n]*"deterministic": "yes", "captured": "yes"', lines)
    assert.truthy(lines:find '"mode": "graph", [^\n]*"deterministic": "no", "captured": "yes"', lines)
  end)

  it("closes with its line when time is up, and when it is told to stop", function()
    local text, status = group("values", "--budget 1")
    local _, _, _, left = closing(text, "values")
    assert.is_true(left > 0 and status < 2, text)
    local form = "timeout -s TERM 4 bench/gpu.sh --build '%s' --device emulated --tiny --out '%s' specs"
    text, status = shell(form:format(build, out))
    assert.equal(124, status, text)
    assert.truthy(text:find "== specs: .*%(cut%)", text)
  end)

  it("pack fails where a part is missing, and names it", function()
    local form = "PACK_AS_BUILT=1 PATH='%s' bench/gpu.sh --build '%s' --out '%s' pack"
    local text, status = shell(form:format("/usr/bin:/bin", build, out))
    if status ~= 0 then -- here: what this machine lacks, by name
      assert.truthy(text:find "pack: [^\n]*: failed: ", text)
    else
      assert.truthy(text:find("pack: a spec: ok", 1, true), text)
    end
    assert.falsy(text:find("pack: size: failed", 1, true), text)
    local path = out .. "/path" -- all commands but busted
    os.execute(("mkdir -p '%s' && ln -sf /usr/bin/* /bin/* '%s/' && rm -f '%s/busted'"):format(path, path, path))
    text, status = shell(form:format(path, build, out))
    assert.equal(1, status, text)
    assert.truthy(text:find("pack: busted: failed: not on the PATH", 1, true), text)
  end)
end)
