-- SPDX-License-Identifier: MIT
-- Hostile calls (spec/support/hostile.lua): nothing that a script or a saved graph says reaches a kernel unchecked.
-- Each run is a process of its own in an empty folder; the sanitizer build is where it counts. PERILUNE_HOSTILE sets
-- how many ops (a long run is 400000; programs are a tenth of it), PERILUNE_HOSTILE_SEED where to begin.

local T = require "perilune"
local hostile = require "spec.support.hostile"
local child = require "spec.support.child"

local COUNT = tonumber(os.getenv "PERILUNE_HOSTILE") or 15000
local FIRST = tonumber(os.getenv "PERILUNE_HOSTILE_SEED") or 1

-- The run's closing line, or all that it said last.
local function run(what, count)
  local root, build = os.getenv "PERILUNE_ROOT" or ".", os.getenv "PERILUNE_BUILD" or "build"
  local dir = os.tmpname()
  os.remove(dir)
  assert(os.execute(("mkdir '%s'"):format(dir)))
  local tell = dir .. ".call"
  local command = "cd '%s' && PERILUNE_HOSTILE_TELL='%s' '%s/bin/perilune' run '%s/spec/support/hostile_run.lua'"
    .. " -- %s %d %d 2>&1 >/dev/null </dev/null | tail -n 60"
  local p = assert(io.popen(command:format(dir, tell, build, root, what, FIRST, count)))
  local said = p:read("a")
  p:close()
  local f = io.open(tell)
  local last = f and f:read("l") or "nothing"
  if f then f:close() end
  os.execute(("rm -rf '%s' '%s'"):format(dir, tell))
  local closing = said:match("(hostile: [^\n]*)\n*$")
  return closing, "after " .. last .. "\n" .. said
end

-- {op, inputs as "f32[2,3]" or "-", attributes}: each read or wrote outside of its memory once.
local FOUND = {
  { "rms_norm_bwd", { "f64[]", "f64[3,4]", "f64[3,1]", "f64[4]" }, { normalized_shape = { 4 }, wanted = 3 } },
  { "rms_norm_bwd", { "f64[3,4]", "f64[3,4]", "i16[3,1]", "f64[4]" }, { normalized_shape = { 4 }, wanted = 3 } },
  { "layer_norm_bwd", { "f64[]", "f64[2,3,4]", "f64[2,3,1]", "f64[2,3,1]", "-" },
    { normalized_shape = { 4 }, wanted = 1 } },
  { "group_norm_bwd", { "f64[]", "f64[2,4,3]", "f64[2,2]", "f64[2,2]", "f64[4]" }, { num_groups = 2, wanted = 7 } },
  { "batch_norm_bwd", { "f64[3,2,2]", "f64[]", "f64[2]", "f64[2]", "f64[2]" },
    { eps = 1e-5, training = true, wanted = 7 } },
  { "diagonal_bwd", { "f64[2,3]" }, { shape = { 2, 3, 1 }, offset = 0, dim1 = 1, dim2 = 2 } },
  { "unfold_bwd", { "f64[17]" }, { shape = { 3, 5 }, dim = 1, size = 3, step = 1 } },
  { "as_strided_bwd", { "f64[2]" }, { shape = { 3 }, size = { 2 }, stride = { 7 }, offset = 0 } },
  { "softmax_bwd", { "f64[2,4]", "f64[3,4]" }, { dim = 1 } },
  { "softmax_bwd", { "f64[3,4]", "f64[3,4]" }, { dim = 256 } },
  { "log_softmax_bwd", { "f64[3,4,2]", "f64[3,4,2]" }, { dim = 3 } },
  { "cumprod_bwd", { "f64[]", "f64[3,2,2]" }, { dim = 0 } },
  { "cumprod_bwd2", { "f64[3,4]", "f64[3,4]", "f64[3,4]" }, { dim = 2 } },
  { "logcumsumexp_bwd", { "f64[3,4]", "f64[1]", "f64[3,4]" }, { dim = 1 << 40 } },
  { "cumsum_rev", { "f32[3,2,2]" }, { dim = math.mininteger + 1 } },
  { "prod_bwd", { "f64[3,4]", "f64[]" }, { dim = -(1 << 31) } },
  { "prod_bwd2", { "f64[3,4]", "f64[]", "f64[4,4]" }, { dim = 7 } },
  { "dim_put", { "f64[3]", "i64[3]" }, { base = 1, dim = 1 << 32, shape = { 3, 4 } } },
  { "dim_put", { "f64[3]", "i64[3]" }, { base = math.maxinteger, dim = 0, shape = { 3, 4 } } },
  { "dim_pick", { "f64[3,4]", "i64[3]" }, { base = 0, dim = 1, shape = (function()
    local l = {}
    for i = 1, 24 do l[i] = 1 end
    return l -- more sizes than a tensor has dims
  end)() } },
  { "cross_entropy_bwd", { "f64[]", "f64[3,5]", "i64[3]", "f64[]", "-" }, { index_base = 1 } },
  { "cross_entropy_bwd2", { "f64[]", "f64[3,5]", "i64[3]", "f64[3]", "f64[5]", "-" }, { index_base = 1 } },
  { "nll_loss_bwd", { "f64[]", "i64[3]", "-" }, { shape = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8 } } },
  { "gather_bwd", { "f64[3,2]", "i64[3,2]" }, { dim = 16, index_base = 1, shape = { 3, 4 } } },
  { "index_select_bwd", { "f64[4,2]", "i32[4]" }, { dim = 1, index_base = 1, shape = { 3, 4 } } },
  { "take_bwd", { "f64[2]", "i64[5]" }, { shape = { 3, 4 } } },
  { "embedding_bwd", { "f64[2,3]", "i64[7]" }, { rows = 4 } },
  { "embedding_bwd", { "f64[2,3]", "i64[2]" }, { rows = 4, padding_idx = 900 } },
  { "masked_select_bwd", { "f64[0]", "bool[3,4]" }, { shape = { 3, 400 } } },
  { "index_bwd", { "f64[2,4]", "bool[2]" }, { index_base = 1, shape = { 2, 400 } } },
  { "index_bwd", { "f64[2,4]", "bool[900]" }, { index_base = 1, shape = { 2, 4 } } },
  { "index_bwd", { "f64[2]", "bool[2,2,2]" }, { index_base = 1, shape = { 2 } } },
  { "index_bwd", { "f64[2,4]", "bool[2]" }, { dims = { 1 << 20 }, index_base = 1, shape = { 2, 4 } } },
  { "index_bwd", { "f64[900]", "bool[2]", "i64[900]" }, { index_base = 1, shape = { 2, 4 } } },
  { "tile_bwd", { "f64[2]" }, { dims = { 3 }, shape = { 4 } } },
  { "repeat_interleave_bwd", { "f64[2]" }, { repeats = 3, shape = { 4 } } },
  { "repeat_each_bwd", { "f64[2]", "i64[5]" }, { shape = { 4 } } },
  { "pad_bwd", { "f64[2]" }, { pad = { 1, 1 }, mode = "reflect", shape = { 40 } } },
  { "slices_bwd", { "f64[2,3]", "f64[0]" }, { dim = 1 } },
  { "max_pool_bwd", { "f64[1,2,2]", "i64[1,2,2]" },
    { kernel_size = { 2, 2 }, stride = {}, padding = { 0 }, sizes = { 1, 4, 4 } } },
  { "dropout_bwd", { "f64[3,4]", "bool[2]" }, { p = 0.5 } },
  { "dropout_bwd", { "f64[3,4]", "f64[3,4]" }, { p = 0.5 } },
  { "attention_keep", { "i64[2,5,3]", "f64[2,4,3]", "i64[3]" }, { p = 0.5 } },
  { "to_device", { "f32[2]" }, { device = 99 } },
  { "kron", { "i32[]", "-" }, {} },
  { "bilinear", { "f32[2,3]", "-", "f32[2,3,3]", "f32[2]" }, {} },
  { "shape_of", {}, {} },
}

describe("hostile calls", function()
  it("that once reached a kernel are errors", function()
    local taken = {}
    for i, call in ipairs(FOUND) do
      local inputs = {}
      for k, text in ipairs(call[2]) do inputs[k] = hostile.input(text) end
      local ok, err = hostile.apply(call[1], inputs, call[3])
      if ok then taken[#taken + 1] = ("%d: %s was taken"):format(i, call[1]) end
      if not ok and not tostring(err):find((call[1]:gsub("_bwd2?$", "")), 1, true) then
        taken[#taken + 1] = ("%d: %s"):format(i, tostring(err))
      end
    end
    assert.equal("", table.concat(taken, "\n"))
  end)

  it("of functions that the library keeps for itself are errors", function()
    local core = T.core
    assert.has_error(function() core.autocast_leave(255) end)
    assert.has_error(function() core.autocast_enter("i64") end)
    assert.has_error(function() core.neg_(7) end)
    assert.has_error(function() core.fill_(7, 3) end)
    local f = T.jit(function(x) return x * 2 end, { name = "f" })
    f(T.ones(3))
    local program, ir = f.last.program, f.last.ir
    assert.has_error(function() core.jit_run(program, { T.ones(2, 2) }) end)
    assert.has_error(function() core.jit_run(program, { T.ones(3):to("f64") }) end)
    assert.has_error(function() core.jit_reads_after(ir, -5, T.ones(1)) end)
    assert.has_error(function() core.jit_views(ir, T.ones(3), { 1 }, false) end)
    assert.has_error(function() core.jit_joint(program, { 99 }, "f", 1) end)
    assert.has_error(function() core.graph_region(T.graph().ir, { policy = 0 / 0, ys = {} }) end)
  end)

  it("leave no trace behind whose graph nobody holds", function()
    local core = T.core
    core.jit_enter(core.graph_new(), nil)
    core.jit_abort(core.graph_new()) -- another one
    assert.is_true(core.jit_tracing())
    collectgarbage()
    collectgarbage()
    assert.is_false(core.jit_tracing())
    assert.equal(4, (T.ones(2) * 2):sum():item())
  end)

  it("name no group that is none", function() -- in a process of its own: MPI stays open, and keeps memory
    local text = child("ASAN_OPTIONS=detect_leaks=0", [[
      local group = T.core.group
      local ok, open = pcall(group.open)
      if ok and open then
        for _, g in ipairs { T.GradKey(), T.ones(2), "x", 1, io.stdout } do
          assert(not pcall(group.start, "barrier", "barrier", g, nil, nil, {}))
        end
      end
      print "ended"]])
    assert.matches("ended", text)
  end)

  it("of every op end in results or errors", function()
    local closing, text = run("ops", COUNT)
    assert(closing, text)
    print(closing)
  end)

  it("of every function and method end in results or errors", function()
    local closing, text = run("programs", math.max(COUNT // 10, 100))
    assert(closing, text)
    print(closing)
  end)
end)
