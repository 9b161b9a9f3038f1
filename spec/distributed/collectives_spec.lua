-- SPDX-License-Identifier: MIT
-- T.distributed in several processes, started by perilune launch: every operation in every dtype against plain Lua,
-- layouts, groups, values, works; and what goes wrong: wrong calls, ranks that fail, end, hang, or disagree.

local T = require "perilune"
local D = T.distributed
local processes = require "spec.support.processes"

local missing = processes.missing()
local function several(name, f)
  it(name, function()
    if missing then return pending(missing) end
    f()
  end)
end

describe("one process", function()
  after_each(function() if D.is_initialized() then D.destroy_process_group() end end)

  it("is a group of its own", function()
    assert.is_false(D.is_initialized())
    D.init_process_group()
    assert.is_true(D.is_initialized())
    assert.same({ 0, 1, "mpi" }, { D.get_rank(), D.get_world_size(), D.get_backend() })
    local x = T.tensor { 1, 2 }
    assert.same({ 1, 2 }, D.all_reduce(x):totable())
    assert.same({ 1, 2 }, D.all_reduce(x, { op = "avg" }):totable())
    local out = { T.zeros(2) }
    D.all_gather(out, x)
    assert.same({ 1, 2 }, out[1]:totable())
    assert.same({ 1, 2 }, D.reduce_scatter(T.zeros(2), { x }):totable())
    assert.same({ 1, 2 }, D.all_to_all_single(T.zeros(2), x):totable())
    assert.same({ { a = 1 } }, D.all_gather_object({}, { a = 1 }))
    local work = D.all_reduce(x, { async_op = true })
    assert.is_true(work:wait())
    assert.is_true(work:is_completed())
    D.barrier()
    assert.equal("process group {0}", tostring(D.new_group { 0 }))
    D.destroy_process_group()
    assert.is_false(D.is_initialized())
    D.init_process_group { backend = "mpi", timeout = 5 }
  end)

  local function raises(text, f, ...)
    local ok, message = pcall(f, ...)
    assert.is_false(ok)
    assert.truthy(message:find(text, 1, true), message)
    assert.truthy(message:find("^[^:]*collectives_spec%.lua:%d+: "), message)
  end

  -- Operations on x, of two or four elements.
  local operations = {
    all_reduce = function(x) D.all_reduce(x) end, reduce = function(x) D.reduce(x, 0) end,
    broadcast = function(x) D.broadcast(x, 0) end, all_gather = function(x) D.all_gather({ x:clone() }, x) end,
    all_gather_into_tensor = function(x) D.all_gather_into_tensor(x, x:clone()) end,
    gather = function(x) D.gather(x, { x:clone() }, 0) end, scatter = function(x) D.scatter(x, { x:clone() }, 0) end,
    reduce_scatter = function(x) D.reduce_scatter(x, { x:clone() }) end,
    reduce_scatter_tensor = function(x) D.reduce_scatter_tensor(x, x:clone()) end,
    all_to_all = function(x) D.all_to_all({ x:clone() }, { x }) end,
    all_to_all_single = function(x) D.all_to_all_single(x, x:clone()) end,
    barrier = function() D.barrier() end, all_gather_object = function() D.all_gather_object({}, 1) end,
    gather_object = function() D.gather_object(1, {}, 0) end,
    broadcast_object_list = function() D.broadcast_object_list({ 1 }, 0) end,
    scatter_object_list = function() D.scatter_object_list({}, { 1 }, 0) end,
  }
  -- Those that write what others computed into x.
  local write = { "all_reduce", "reduce", "all_gather_into_tensor", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all_single" }

  it("does not run its operations while a function is traced", function()
    D.init_process_group()
    for name in pairs(D) do
      for _, part in ipairs { "^all_", "gather", "scatter", "reduce", "broadcast", "barrier" } do
        assert.truthy(operations[name] or not name:find(part), name)
      end
    end
    local outside = T.ones(2)
    for name, f in pairs(operations) do
      local ok, message = pcall(T.jit(function(x)
        f(outside)
        return x * 2
      end), T.ones(2))
      assert.is_false(ok, name)
      assert.truthy(message:find("a function that T.jit traces would do this once", 1, true), message)
    end
  end)

  it("does not take what it writes for what was computed", function()
    D.init_process_group()
    for _, name in ipairs(write) do
      local x = T.ones(4):requires_grad_()
      for _, view in ipairs { false, true } do
        local y = x * 2
        local part = view and y:view(2, 2):t()[1] or y
        operations[name](part)
        assert.equal(8, y:sum():item())
        local ok, message = pcall(function() y:sum():backward() end)
        assert.is_false(ok, name)
        assert.truthy(message:find("backward of " .. name .. ": it has no gradient", 1, true), message)
        -- a leaf, and what nobody goes back through, is what it was
        operations[name](x)
        T.no_grad(function() operations[name](x * 2) end)
      end
    end
  end)

  it("says how before there is a group", function()
    for name, args in pairs { all_reduce = { T.ones(1) }, get_rank = {}, barrier = {}, new_group = { { 0 } },
      broadcast = { T.ones(1), 0 }, send = { T.ones(1), 1 }, all_gather_object = { {}, 1 } } do
      raises(name .. ": there is no process group yet; call T.distributed.init_process_group() first",
        function() D[name](table.unpack(args)) end)
    end
  end)

  it("names what is wrong with a call", function()
    raises("unknown backend 'gloo' (allowed: mpi, nccl)", function() D.init_process_group "gloo" end)
    raises("timeout must be a number of seconds > 0, got 0", function() D.init_process_group { timeout = 0 } end)
    raises("unknown option 'timeuot'", function() D.init_process_group { timeuot = 3 } end)
    D.init_process_group()
    local x = T.ones(2)
    raises("there is a process group already", function() D.init_process_group() end)
    raises("all_reduce: the tensor must be a tensor, got 3", function() D.all_reduce(3) end)
    raises('op "avg" needs floating numbers, i64[2] are none', function() D.all_reduce(x:long(), { op = "avg" }) end)
    raises('op "band" combines bits of integers', function() D.all_reduce(x, { op = "band" }) end)
    raises("unknown op 'summ'", function() D.all_reduce(x, { op = "summ" }) end)
    raises("unknown option 'asynch'", function() D.all_reduce(x, { asynch = true }) end)
    raises("src must be a rank of the group, 0 to 0, got 1", function() D.broadcast(x, 1) end)
    raises("dst must be a rank of the group, 0 to 0, got 1.5", function() D.reduce(x, 1.5) end)
    raises("the list must have 1 tensors, one for each rank, got 2", function() D.all_gather({ x, x }, x) end)
    raises("the list[1] is f32[3], which does not fit f32[2]", function() D.all_gather({ T.ones(3) }, x) end)
    raises("the result f32[3] must be 1 times", function() D.all_gather_into_tensor(T.ones(3), x) end)
    raises("output_split_sizes add up to 3", function()
      D.all_to_all_single(x, x, { output_split_sizes = { 3 }, input_split_sizes = { 2 } })
    end)
    raises("group must be what T.distributed.new_group returned, got 3", function() D.all_reduce(x, { group = 3 }) end)
    raises("rank 0 is there twice", function() D.new_group { 0, 0 } end)
    raises("ranks[1] must be a rank of the group", function() D.new_group { 1 } end)
    raises("cannot send to itself", function() D.send(x, 0) end)
    raises("tag must be from 0 to 32767", function() D.recv(x, nil, { tag = -1 }) end)
    raises("is a function; tensors, tables, strings", function() D.all_gather_object({}, print) end)
    raises("the value is nil", function() D.all_gather_object({}, nil) end)
    local g = D.new_group { 0 }
    D.destroy_process_group(g)
    raises("this group was destroyed", function() D.barrier { group = g } end)
  end)
end)

describe("several processes", function()
  several("know who they are, as under torchrun", function()
    local text = processes.good(3, [[
      init()
      assert(tonumber(os.getenv "RANK") == rank and tonumber(os.getenv "WORLD_SIZE") == 3)
      assert(tonumber(os.getenv "LOCAL_RANK") == rank and tonumber(os.getenv "LOCAL_WORLD_SIZE") == 3)
      assert(os.getenv "MASTER_ADDR" and os.getenv "MASTER_PORT")
      assert(D.get_node_local_rank() == rank and arg[1] == "a" and arg[2] == "b")
      print("rank " .. rank .. " of " .. world .. " with " .. T.get_num_threads())
    ]], nil, "--threads 1")
    for r = 0, 2 do assert.truthy(text:find(("rank %d of 3 with 1\n"):format(r), 1, true), text) end
  end)

  several("compute every operation in every dtype", function()
    processes.good(3, [[
      init()
      local function fill(r, n, from) -- small integers: exact in every dtype
        local v = {}
        for i = 1, n do v[i] = (r * 3 + i + (from or 0)) % 4 + 1 end
        return v
      end
      local fold = {
        sum = function(a, b) return a + b end, prod = function(a, b) return a * b end,
        min = math.min, max = math.max, band = function(a, b) return a & b end,
        bor = function(a, b) return a | b end, bxor = function(a, b) return a ~ b end }
      local function reduced(op, n, from)
        local v = fill(0, n, from)
        for r = 1, world - 1 do
          local w = fill(r, n, from)
          for i = 1, n do v[i] = fold[op](v[i], w[i]) end
        end
        return v
      end
      local n = 6
      for _, dtype in ipairs { "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8" } do
        local float = dtype:find "f" ~= nil
        local function make(v) return T.tensor(v, { dtype = dtype }) end
        local function mine() return make(fill(rank, n)) end
        for _, op in ipairs { "sum", "prod", "min", "max", "band", "bor", "bxor" } do -- pairs: no order
          if not (float and op:find "^b") then
            local what = dtype .. " " .. op
            equal(make(reduced(op, n)), D.all_reduce(mine(), { op = op }), "all_reduce " .. what)
            local x = D.reduce(mine(), 1, { op = op })
            if rank == 1 then equal(make(reduced(op, n)), x, "reduce " .. what) end
            local list = {}
            for r = 0, world - 1 do list[r + 1] = make(fill(rank, n, r)) end
            equal(make(reduced(op, n, rank)), D.reduce_scatter(make(fill(0, n)), list, { op = op }), "rs " .. what)
            equal(make(reduced(op, n, rank)), D.reduce_scatter_tensor(make(fill(0, n)), T.cat(list), { op = op }))
          end
        end
        if float then
          local want = reduced("sum", 3)
          for i = 1, 3 do want[i] = want[i] / world end
          local got = D.all_reduce(make(fill(rank, 3)), { op = "avg" }):totable()
          for i = 1, 3 do assert(math.abs(got[i] - want[i]) < 0.02, dtype) end
        end
        for src = 0, world - 1 do equal(make(fill(src, n)), D.broadcast(mine(), src), "broadcast " .. dtype) end
        local list, want, all = {}, {}, {}
        for r = 0, world - 1 do
          list[r + 1], want[r + 1] = make(fill(0, n)), make(fill(r, n)):totable()
          table.move(fill(r, n), 1, n, #all + 1, all)
        end
        D.all_gather(list, mine())
        for r = 1, world do equal(want[r], list[r], "all_gather " .. dtype) end
        equal(make(all), D.all_gather_into_tensor(make(all) * 0, mine()), "all_gather_into_tensor " .. dtype)
        for r = 1, world do list[r] = list[r] * 0 end
        D.gather(mine(), rank == 2 and list or nil, 2)
        if rank == 2 then for r = 1, world do equal(want[r], list[r], "gather " .. dtype) end end
        for r = 1, world do list[r] = make(fill(r - 1, n)) end
        equal(want[rank + 1], D.scatter(mine() * 0, rank == 1 and list or nil, 1), "scatter " .. dtype)
        local out = {}
        for r = 1, world do list[r], out[r] = make(fill(rank + r, n)), make(fill(0, n)) end
        D.all_to_all(out, list)
        for r = 1, world do equal(make(fill(r - 1 + rank + 1, n)), out[r], "all_to_all " .. dtype) end
        equal(T.cat(out), D.all_to_all_single(T.cat(out) * 0, T.cat(list)), "all_to_all_single " .. dtype)
        if rank == 0 then D.send(mine(), 2, { tag = 7 }) end
        if rank == 2 then
          local x = mine() * 0
          assert(D.recv(x, 0, { tag = 7 }) == 0)
          equal(make(fill(0, n)), x, "recv " .. dtype)
        end
      end
      local flags = { { true, false, false }, { true, true, false }, { true, true, false } }
      local b = function() return T.tensor(flags[rank + 1]) end
      equal({ true, true, false }, D.all_reduce(b()), "bool sum")
      equal({ true, true, false }, D.all_reduce(b(), { op = "max" }), "bool max")
      equal({ true, false, false }, D.all_reduce(b(), { op = "min" }), "bool min")
      equal({ true, false, false }, D.all_reduce(b(), { op = "prod" }), "bool prod")
      equal({ true, true, false }, D.all_reduce(b(), { op = "bor" }), "bool bor")
      equal({ true, false, false }, D.all_reduce(b(), { op = "bxor" }), "bool bxor") -- 1^1^1, 0^1^1
    ]])
  end)

  several("take any layout, empty tensors, leaves, unequal pieces, and work in the background", function()
    processes.good(3, [[
      init()
      local x = T.arange(6):view(2, 3):t():float() * (rank + 1) -- not contiguous
      local same = x
      assert(rawequal(D.all_reduce(x), x))
      equal({ { 6, 24 }, { 12, 30 }, { 18, 36 } }, same, "transposed")
      local base = T.zeros(4, 4)
      D.broadcast(base:narrow(2, 2, 2):fill_(rank), 2)
      equal({ 0, 2, 2, 0 }, base[1], "a window")
      assert(D.all_reduce(T.zeros(0, 3)):numel() == 0 and D.all_gather_into_tensor(T.zeros(0), T.zeros(0)):numel() == 0)
      equal(3, D.all_reduce(T.tensor(1)):item(), "0-d")
      local w = T.ones(2):requires_grad_()
      D.all_reduce(w)
      equal({ 3, 3 }, w:detach(), "a leaf")
      -- what backward saved is overwritten, and backward says so
      local v = T.ones(2):requires_grad_() * 2
      local y = v * v
      D.all_reduce(v:detach())
      raises("", function() y:sum():backward() end)
      -- rank r sends r + 1 rows to each
      local rows, out = T.full({ 3 * (rank + 1), 2 }, rank), T.zeros({ 6, 2 }, { dtype = "i64" })
      local n = rank + 1
      D.all_to_all_single(out, rows, { output_split_sizes = { 1, 2, 3 }, input_split_sizes = { n, n, n } })
      equal({ 0, 1, 1, 2, 2, 2 }, out:select(2, 1), "unequal")
      -- several works at once, waited for in another order
      local works, tensors = {}, {}
      for i = 1, 20 do
        tensors[i] = T.full({ 1000 * i }, i * (rank + 1)):float()
        works[i] = D.all_reduce(tensors[i], { async_op = true })
      end
      for i = 20, 1, -1 do assert(works[i]:wait() and works[i]:is_completed() and works[i]:wait()) end
      for i = 1, 20 do assert(tensors[i]:eq(6 * i):all():item()) end
      local t = T.arange(6):view(2, 3):t():float()
      local work = D.all_reduce(t, { async_op = true, op = "avg" })
      work:wait()
      equal({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, t, "asynchronous, not contiguous")
      -- messages: a ring, from anybody, several at once
      local got = T.zeros(1000)
      local s, r = D.isend(T.full({ 1000 }, rank + 0.5), (rank + 1) % 3), D.irecv(got, (rank + 2) % 3)
      s:wait() r:wait()
      equal((rank + 2) % 3 + 0.5, got[1]:item(), "ring")
      if rank == 0 then
        local sum = 0
        for _ = 1, 2 do sum = sum + D.recv(got, { tag = 5 }) end
        equal(3, sum, "from anybody")
      else
        D.send(T.ones(1000), 0, { tag = 5 })
      end
      local a, b = T.tensor { rank }, T.zeros(1)
      for _, one in ipairs(D.batch_isend_irecv { { D.isend, a, (rank + 1) % 3 }, { D.irecv, b, (rank + 2) % 3 } }) do
        one:wait()
      end
      equal((rank + 2) % 3, b:item(), "batch")
      -- left to itself: the end waits for it
      D.all_reduce(T.ones(100000), { async_op = true })
    ]])
  end)

  several("make groups", function()
    processes.good(3, [[
      init()
      local ends, first = D.new_group { 2, 0 }, D.new_group { 0 }
      assert(D.get_rank(ends) == (rank == 0 and 0 or rank == 2 and 1 or -1) and D.get_world_size(ends) == 2)
      equal({ 0, 2 }, D.get_process_group_ranks(ends), "ranks")
      if rank == 1 then
        raises("all_reduce: rank 1 is not in this group, which has {0, 2}", D.all_reduce, T.ones(1), { group = ends })
      else
        equal({ 2 }, D.all_reduce(T.tensor { rank }, { group = ends }), "of two")
        equal({ 2 }, D.broadcast(T.tensor { rank }, 2, { group = ends }), "by global rank")
        raises("src must be a rank of the group, one of 0, 2, got 1", D.broadcast, T.ones(1), 1, { group = ends })
        assert(D.get_global_rank(ends, 1) == 2 and D.get_group_rank(ends, 2) == 1)
        local list = D.all_gather_object({}, rank, { group = ends })
        equal({ 0, 2 }, list, "values")
      end
      if rank == 0 then equal({ 5 }, D.all_reduce(T.tensor { 5 }, { group = first }), "alone") end
      D.barrier()
      if rank ~= 1 then D.destroy_process_group(ends) end
      D.destroy_process_group()
      raises("there is no process group", D.get_rank)
      init() -- again
      equal({ 3 }, D.all_reduce(T.tensor { 1 }), "again")
    ]])
  end)

  several("pass values on as data", function()
    processes.good(2, [[
      init()
      local list = D.all_gather_object({}, { rank = rank, name = ("x"):rep(rank * 1000), none = T.zeros(0, 2),
        t = T.full({ 2, 2 }, rank + 0.5), half = T.ones(3):to "bf16", flags = T.tensor { true, false },
        [1] = { 1.5, -2, true } })
      for r = 0, 1 do
        local v = list[r + 1]
        assert(v.rank == r and #v.name == r * 1000 and v[1][3] == true and v.half:dtype() == "bf16")
        equal({ { r + 0.5, r + 0.5 }, { r + 0.5, r + 0.5 } }, v.t, "a tensor")
        equal({ true, false }, v.flags, "booleans")
        assert(v.none:size(1) == 0 and v.none:size(2) == 2)
      end
      local b = rank == 0 and { 1, "two", { 3 } } or { 0, 0, 0 }
      D.broadcast_object_list(b, 0)
      assert(b[1] == 1 and b[2] == "two" and b[3][1] == 3)
      local got = D.gather_object("r" .. rank, rank == 1 and {} or nil, 1)
      assert(rank == 0 or got[1] == "r0" and got[2] == "r1")
      local mine = D.scatter_object_list({}, rank == 0 and { "a", { b = 1 } } or nil, 0)
      assert(rank == 0 and mine[1] == "a" or mine[1].b == 1)
      -- what arrives broken is an error, not code
      local sent = T.from_string(("\27Lua"):rep(10), "u8")
      if rank == 0 then
        D.all_gather({ T.zeros(1):long(), T.zeros(1):long() }, T.tensor { 40 }:long())
        D.all_gather_into_tensor(T.zeros({ 80 }, { dtype = "u8" }), sent)
      else
        raises("what arrived is damaged", D.all_gather_object, {}, ("x"):rep(20))
      end
    ]])
  end)
end)

describe("when something goes wrong,", function()
  local at = processes.head

  several("a rank that fails ends all, with its message and status", function()
    local text, status = processes.run(3, [[
      init()
      if rank == 1 then error "this rank fails" end
      D.all_reduce(T.ones(3))
      print "not reached"
    ]])
    assert.equal(1, status)
    assert.truthy(text:find(("perilune: rank 1: script.lua:%d: this rank fails"):format(at + 2), 1, true), text)
    assert.is_nil(text:find("not reached", 1, true), text)
    text, status = processes.run(2, "init() if rank == 1 then os.exit(7) end D.barrier()")
    assert.equal(7, status, text)
    text, status = processes.run(2, "init() if rank == 1 then os.execute 'kill -9 $PPID' end D.barrier()")
    assert.equal(137, status, text)
    assert.truthy(text:find("rank 1 was ended by signal 9", 1, true), text)
  end)

  several("who waits for a rank that has ended, or never comes, is told", function()
    local text, status = processes.run(3, "init() if rank ~= 2 then D.barrier() end")
    assert.equal(1, status)
    assert.truthy(text:find("barrier: rank 2 has ended (its script is over, or failed) without taking part", 1, true),
      text)
    text, status = processes.run(2, [[
      init(1)
      if rank == 0 then D.recv(T.ones(2), 1) else os.execute "sleep 30" end]]) -- launch ends it before
    assert.equal(1, status)
    assert.truthy(text:find(("rank 0: script.lua:%d: recv: no end after 1 s"):format(at + 2), 1, true), text)
    text, status = processes.run(2, [[
      init()
      local w = rank == 0 and D.all_reduce(T.ones(2), { async_op = true })
      if w then raises("no end after 0.2 s", w.wait, w, 0.2) raises("no end after 0.2 s", w.wait, w) end
      if w then io.open("waited", "w"):close() end
      if rank == 1 then
        while not io.open "waited" do os.execute "sleep 0.05" end
        D.all_reduce(T.ones(2))
      end]])
    assert.equal(0, status, text)
  end)

  several("ranks that disagree are told, at once with PERILUNE_DISTRIBUTED_DEBUG=1", function()
    local text, status = processes.run(2, "init() D.all_reduce(T.ones(2 + rank))", "PERILUNE_DISTRIBUTED_DEBUG=1")
    assert.equal(1, status)
    assert.truthy(text:find("all_reduce: the ranks do not agree: rank 0: all_reduce f32[2] op=sum; "
      .. "rank 1: all_reduce f32[3] op=sum", 1, true), text)
    text = processes.run(2, [[
      init()
      if rank == 0 then D.broadcast(T.ones(2), 0) else D.all_reduce(T.ones(2)) end]], "PERILUNE_DISTRIBUTED_DEBUG=1")
    assert.truthy(text:find("rank 0: broadcast f32[2] src=0; rank 1: all_reduce f32[2] op=sum", 1, true), text)
    text, status = processes.run(2, "init() D.all_reduce(T.ones(2 + rank))")
    assert.equal(1, status)
    assert.truthy(text:find("if the ranks' tensors differ, PERILUNE_DISTRIBUTED_DEBUG=1 says how", 1, true), text)
    text, status = processes.run(2, [[
      init()
      if rank == 0 then D.send(T.ones(3), 1) else D.recv(T.ones(4), 0) end]])
    assert.equal(1, status)
    assert.truthy(text:find("recv: 4 elements are wanted, rank 0 of the group sent 3", 1, true), text)
    text = processes.run(2, "init() if rank == 0 then D.send(T.ones(1), 1) else D.recv(T.ones(1):double(), 0) end")
    assert.truthy(text:find("recv: what rank 0 of the group sent has another dtype", 1, true), text)
  end)

  several("launch says what is missing", function()
    local term = require "spec.support.terminal"
    local text, status = term.shell(term.command .. " launch -n 2 /nowhere.lua")
    assert.equal(1, status)
    assert.truthy(text:find("/nowhere.lua", 1, true), text)
    for _, wrong in ipairs { "launch", "launch -n", "launch -n 0 x.lua", "launch --nope x.lua", "launch -n 2" } do
      text, status = term.shell(term.command .. " " .. wrong)
      assert.equal(2, status, text)
    end
    local launch = "sh -c 'PATH= %s launch -n 2 spec/distributed/collectives_spec.lua'"
    text, status = term.shell(launch:format(term.command))
    assert.equal(1, status, text)
    assert.truthy(text:find("install Open MPI (Debian: apt-get install openmpi-bin)", 1, true), text)
    text, status = processes.run(2, "init()", "PERILUNE_MPI_PLUGIN=/nowhere.so")
    assert.equal(1, status)
    assert.truthy(text:find("init_process_group: MPI does not load", 1, true), text)
    assert.truthy(text:find("Debian: openmpi-bin", 1, true), text)
    text, status = term.shell(("WORLD_SIZE=3 %s -e 'require \"perilune\".distributed.init_process_group()'")
      :format(term.command))
    assert.equal(1, status)
    assert.truthy(text:find("WORLD_SIZE is 3, but MPI knows this process alone; start the script with perilune launch",
      1, true), text)
    text = processes.good(2, "print(rank)", nil, "--show --hosts a:1,b:1 --master-port 77")
    assert.truthy(text:find("--host a:1,b:1", 1, true) and text:find("MASTER_ADDR=a", 1, true), text)
    assert.truthy(text:find("-n 2", 1, true) and text:find("MASTER_PORT=77", 1, true), text)
  end)
end)
