-- SPDX-License-Identifier: MIT
-- T.distributed with tensors on the emulated device: through an emulated NCCL, and without it through the host.

local T = require "perilune"
local processes = require "spec.support.processes"

local missing = processes.missing() or (not T.cuda.is_available() and "no emulated device") or nil
local function several(name, f)
  it(name, function()
    if missing then return pending(missing) end
    f()
  end)
end

-- Every operation.
local all_operations = [[
  init()
  T.set_default_device "cuda"
  local function numbers(r, n)
    local v = {}
    for i = 1, n do v[i] = (r * 3 + i) % 4 + 1 end
    return v
  end
  for _, dtype in ipairs { "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8" } do
    local function make(r) return T.tensor(numbers(r, 6), { dtype = dtype }) end
    local a, b = numbers(0, 6), numbers(1, 6)
    local sum, most, product = {}, {}, {}
    for i = 1, 6 do sum[i], most[i], product[i] = a[i] + b[i], math.max(a[i], b[i]), a[i] * b[i] end
    local function want(v, got, what)
      assert(got:device():find "^cuda", what)
      equal(T.tensor(v, { dtype = dtype }):totable(), got, what .. " " .. dtype)
    end
    want(sum, D.all_reduce(make(rank)), "sum")
    want(most, D.all_reduce(make(rank), { op = "max" }), "max")
    want(product, D.all_reduce(make(rank), { op = "prod" }), "prod")
    local x = D.reduce(make(rank), 1)
    if rank == 1 then want(sum, x, "reduce") end
    want(b, D.broadcast(make(rank), 1), "broadcast")
    local list = { make(7), make(7) }
    D.all_gather(list, make(rank))
    want(a, list[1], "all_gather") want(b, list[2], "all_gather")
    want(a, D.all_gather_into_tensor(T.cat(list) * 0, make(rank)):narrow(1, 1, 6), "into_tensor")
    list = rank == 0 and { make(7), make(7) } or nil
    D.gather(make(rank), list, 0)
    if rank == 0 then want(a, list[1], "gather") want(b, list[2], "gather") end
    want(rank == 0 and a or b, D.scatter(make(7), rank == 1 and { make(0), make(1) } or nil, 1), "scatter")
    want(sum, D.reduce_scatter(make(7), { make(rank), make(rank) }), "reduce_scatter")
    want(sum, D.reduce_scatter_tensor(make(7), T.cat { make(rank), make(rank) }), "reduce_scatter_tensor")
    local out = { make(7), make(7) }
    D.all_to_all(out, { make(rank), make(rank + 1) })
    want(numbers(rank, 6), out[1], "all_to_all") want(numbers(1 + rank, 6), out[2], "all_to_all")
    local n = rank + 1 -- one row for rank 0, two for rank 1
    local back = D.all_to_all_single(T.zeros({ 2 * n }, { dtype = dtype }), T.ones({ 3 }, { dtype = dtype }),
      { input_split_sizes = { 1, 2 }, output_split_sizes = { n, n } })
    assert(back:eq(1):all():item(), "unequal pieces " .. dtype)
    if rank == 0 then D.send(make(0), 1) else
      local got = make(7)
      D.recv(got, 0)
      want(a, got, "recv")
    end
  end
  local flags = D.all_reduce(T.tensor { rank == 0, false }, { op = "sum" })
  equal({ true, false }, flags, "bool")
  equal({ 3 }, D.all_reduce(T.tensor({ rank + 1 }, { dtype = "i64" }), { op = "bor" }), "bits go through the host")
  -- layouts, large ones, works
  local t = T.arange(6):view(2, 3):t():float()
  D.all_reduce(t, { op = "avg" })
  equal({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, t, "not contiguous")
  local big = T.full({ 100003 }, rank + 1.0)
  local work = D.all_reduce(big, { async_op = true })
  work:wait()
  assert(big:eq(3):all():item() and work:is_completed())
  D.barrier()
  print("done " .. rank, require "perilune.distributed.state".world.nccl and "nccl" or "host")
]]

describe("several processes with tensors on a device", function()
  several("exchange them through NCCL", function()
    local text = processes.good(2, all_operations)
    assert.truthy(text:find("done 0\tnccl", 1, true) and text:find("done 1\tnccl", 1, true), text)
    -- what NCCL does not do (i16, bits) goes through the host in silence
    assert.is_nil(text:find("host's memory", 1, true), text)
  end)

  several("exchange them through the host without it, and say so once", function()
    local text = processes.good(2, all_operations, "PERILUNE_EMULATE=no-nccl")
    assert.truthy(text:find("done 0\thost", 1, true) and text:find("done 1\thost", 1, true), text)
    local said = "tensors of the GPU go through the host's memory and MPI: NCCL was not found"
    assert.equal(1, select(2, text:gsub(said, "")), text)
  end)

  several("train, each on a GPU of its own", function()
    processes.good(2, [[
      D.init_process_group "nccl"
      rank = D.get_rank()
      T.manual_seed(rank + 1)
      local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)):to "cuda"
      local ddp = nn.parallel.DistributedDataParallel(net, { bucket_cap_mb = 0.0001 })
      T.manual_seed(9)
      local X = T.randn(8, 4)
      local alone = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
      alone:load_state_dict(net:state_dict())
      alone(X):square():mean():backward()
      ddp(X:narrow(1, rank * 4 + 1, 4):to "cuda"):square():mean():backward()
      for i, p in ipairs(alone:parameters()) do
        assert((p.grad - net:parameters()[i].grad:to "cpu"):abs():max():item() < 1e-6, i)
      end
      assert(D.get_backend() == "nccl")
      raises("NCCL, which carries tensors of GPUs, knows no tags", D.recv, T.ones(1, { device = "cuda" }))
      D.destroy_process_group()
    ]])
  end)

  several("are told what is missing", function()
    local text, status = processes.run(2, 'D.init_process_group "nccl"', "PERILUNE_EMULATE=no-nccl")
    assert.equal(1, status)
    assert.truthy(text:find('init_process_group: backend "nccl": NCCL was not found', 1, true), text)
    text, status = processes.run(2, 'D.init_process_group "nccl"', "PERILUNE_EMULATE=no-device")
    assert.equal(1, status)
    assert.truthy(text:find('backend "nccl" needs a GPU', 1, true), text)
  end)
end)
