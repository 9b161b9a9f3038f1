-- SPDX-License-Identifier: MIT
-- What is given counts, or is refused: options that another form does not know, names beside the entries of a list,
-- what a branch would pass over; and integers keep their digits.

local T = require "perilune"

local i64 = { dtype = "i64" }
local function long(list) return T.tensor(list, i64) end

-- words of the message, and the call
local refused = {
  { "a range with the entry 'step'", function() return T.ones(9)[{ { 1, 9, step = 2 } }] end },
  { "it has the entry 'dim'", function() return T.ones(2, 2)[{ 1, dim = 2 }] end },
  { "it has the entry 'dim'", function() T.ones(2, 2)[{ 1, dim = 2 }] = 0 end },
  { "mul_: it writes its first argument", function() T.ones(2):mul_(3, { out = T.ones(2) }) end },
  { "add_: unknown option 'out'", function() T.ones(2):add_(3, { alpha = 2, out = T.ones(2) }) end },
  { "div_: unknown option 'out'", function() T.ones(2):div_(3, { rounding_mode = "floor", out = T.ones(2) }) end },
  { "300 does not fit into u8", function() T.tensor({ long(300) }, { dtype = "u8" }) end },
  { "behind a table of options", function() T.tril_indices({ row = 2, col = 2 }, 2, { offset = 1 }) end },
  { "offset must be an integer", function() T.triu_indices(0, 2, { offset = "1" }) end },
  { "max: keepdim goes with dim", function() T.ones(2):max { keepdim = true } end },
  { "behind a table of options", function() T.ones(2):to({ dtype = "f32" }, { copy = true }) end },
  { "index_reduce: src must have the shape of x with 1", function()
    T.zeros(3):index_reduce(1, long { 2 }, T.ones(3), "amax")
  end },
  { "index_reduce: src must have the shape of x", function()
    T.zeros(2, 3):index_reduce(1, long { 2 }, T.ones(1, 2), "amax")
  end },
  { "outside the shape", function() T.unravel_index(T.tensor({ 0 }, { dtype = "u8" }), { 16, 16 }) end },
  { "two different dimensions", function() T.eye(2):rot90(1, { 1, -2 }) end },
  { "bins are edges here", function() T.histogram(T.ones(3), T.tensor { 0, 1, 2 }, { range = { 0, 1 } }) end },
  { "range must be {low, high}", function() T.histogram(T.ones(3), 2, { range = { 0, 1, 2 } }) end },
  { "positions x or a step dx", function() T.trapezoid(T.ones(3), T.arange(3), 2) end },
  { "hann_window: dtype must be floating", function() T.hann_window(4, i64) end },
  { "cauchy_: x must be floating", function() T.zeros({ 2 }, i64):cauchy_() end },
  { "log_normal_: x must be floating", function() T.zeros({ 2 }, i64):log_normal_() end },
  { "unknown option 'dtype'", function() T.autocast("bf16", { dtype = "f16" }, T.get_autocast_dtype) end },
  { "autocast: the function is nil", function() T.autocast("bf16", nil, T.get_autocast_dtype) end },
  { "saved_tensors: the function is nil", function() T.saved_tensors({ offload = "host" }, nil, 1) end },
  { "an entry '0'", function() T.GradManager():attach { [0] = T.ones(1) } end },
  { "it has the key \"loss\"", function() T.GradScaler():scale { loss = T.ones(1) } end },
  { "in_dims has an entry 'z'", function()
    T.vmap(function(a) return a.x end, { in_dims = { { x = 1, z = 1 } } }) { x = T.ones(2) }
  end },
  { "in_dims has an entry '2', and there are 1", function() T.vmap(T.sin, { in_dims = { 1, 1 } })(T.ones(2)) end },
  { "out_dims must be a dimension", function() T.vmap(T.sin, { out_dims = false }) end },
  { "field \"id\", which a loop would not get", function()
    T.data.DataLoader({ { 1, 2, id = 3 } }):iter()()
  end },
  { "gave 3 batches where its # says 2", function()
    local own = { batches = function() return { { 1 }, { 2 }, { 3 } } end }
    setmetatable(own, { __len = function() return 2 end })
    T.data.DataLoader({ 1, 2, 3 }, { batch_sampler = own }):iter()()
  end },
  { "columns must be a list", function() T.data.csv { text = "a,b\n1,2\n", columns = { "a", b = true } } end },
  { "an image [C, H, W] is wanted", function() T.data.transforms.gray()(T.ones(8, 3, 2, 2)) end },
  { "an image [C, H, W] is wanted", function() T.data.transforms.gray()(T.ones(8, 6)) end },
  { "special must be a list", function() T.data.train_bpe { 260, text = "low", special = { eos = "<|end|>" } } end },
  { "files must be a list", function() T.data.train_bpe { 260, files = { a = "/nowhere" } } end },
  { "pattern= is for tiktoken's files of ranks", function()
    assert(T.data.tokenizer("spec/fixtures/gpt2.json", { pattern = "." }))
  end },
  { "is no f32", function() T.save_gguf("/nowhere/a.gguf", { a = T.ones(1) }, { metadata = { x = 1e300 } }) end },
  { "behind a table of options", function()
    T.distributed.init_process_group()
    local group <close> = setmetatable({}, { __close = function() T.distributed.destroy_process_group() end })
    T.distributed.broadcast(T.ones(1), { src = 0 }, { group = group })
  end },
  { "src is given twice", function()
    T.distributed.init_process_group()
    local _ <close> = setmetatable({}, { __close = function() T.distributed.destroy_process_group() end })
    T.distributed.broadcast(T.ones(1), 0, { src = 5 })
  end },
  { "default is given twice", function() T.cli({ { "epochs", 3, default = 5 } }, {}) end },
  { "it has the key \"loss\"", function() T.plot { loss = { 1, 2 } } end },
}

describe("what is given", function()
  for i, row in ipairs(refused) do
    it("is refused where it would not count: " .. i .. ", " .. row[1], function()
      local ok, err = pcall(row[2])
      assert.is_false(ok, "accepted")
      assert.is_truthy(tostring(err):find(row[1], 1, true), err)
    end)
  end

  it("is refused by T.fit's callbacks and metrics, which know all of their events", function()
    local function run(more)
      local o = { train = { { T.ones(2, 2), long { 1, 2 } } }, optimizer = "SGD", quiet = true }
      for key, v in pairs(more) do o[key] = v end
      return T.fit(T.nn.Linear(2, 2), o)
    end
    for _, event in ipairs { "on_start", "on_epoch_start", "on_batch", "on_epoch", "on_end" } do
      local calls = 0
      run { callbacks = { [event] = function() calls = calls + 1 end } }
      assert.equal(1, calls, event)
    end
    assert.has_error(function() run { callbacks = { { on_epoch_end = print } } } end)
    assert.has_error(function() run { callbacks = { nil, { on_end = print } } } end)
    local told = 0 -- options of jit count in validation, too
    run { valid = { { T.ones(2, 2), long { 1, 2 } } }, jit = { fallback = true }, loss = function(y, t)
      told = told + 0 * y:sum():item()
      return T.nn.F.cross_entropy(y, t)
    end }
    local ok, err = pcall(run, { metrics = "confusion_matrix" })
    assert.is_truthy(not ok and err:find("the metric 'confusion_matrix' is no number", 1, true), err)
  end)

  it("is a list of the caller's, which is read once", function()
    local named, list = { a = { 1, 2 } }, { { 1, 2 }, { 3 } }
    local stacked, joined = T.data.StackDataset(named), T.data.ConcatDataset(list)
    named.b, list[1] = { 5, 6 }, { 9, 9 }
    assert.same({ a = 1 }, stacked[1])
    assert.equal(1, joined[1])
    assert.same({ { a = 1 } }, { T.data.MapDataset(stacked, function(s) return s end)[1] })
  end)

  it("may be memory that is used again", function()
    local m = T.metrics.auc()
    local scores, yes = T.tensor({ 0.1, 0.9 }, { dtype = "f64" }), T.tensor { false, true }
    m:update(scores, yes)
    scores:fill_(0.5)
    yes:fill_(true)
    assert.equal(1.0, m:value())
    local c = T.metrics.confusion_matrix { classes = 2 }
    c:update(long { 1 }, long { 1 })
    local was = c:value()
    c:update(long { 1 }, long { 1 })
    assert.equal(1, was:sum():item())
    local p = T.metrics.precision()
    p:update(T.tensor { 0.9, 0.1 }, T.tensor { true, false })
    p:reset()
    p:update(long { 1, 2, 1 }, long { 1, 2, 2 })
    assert.equal(0.75, p:value()) -- of two classes, not of yes
  end)

  it("is all or nothing: what is refused leaves nothing behind", function()
    assert.has_error(function() T.set_printoptions { precision = 1, edgeitems = 1, linewidth = 9, threshold = "x" } end)
    assert.is_truthy(tostring(T.tensor { 0.12345 }):find("0.1235", 1, true))
    local path = os.tmpname()
    local log = assert(T.log.csv(path))
    assert.has_error(function() log:write { a = T.ones(2) } end)
    log:write { a = 1 }
    log:close()
    local f <close> = io.open(path)
    assert.equal("a\n1\n", f:read "a")
    os.remove(path)
  end)
end)

describe("integers", function()
  it("keep their digits in comparisons and ranges", function()
    local big = 1 << 53
    assert.is_true(T.tensor(big + 1, i64) > big and big < T.tensor(big + 1, i64))
    assert.is_false(T.tensor(big + 1, i64) <= T.tensor(big, i64))
    assert.is_true(T.tensor(true) > 0 and T.tensor(0.5) < T.tensor(1, i64))
    assert.same({ false, true }, long({ big + 1, big }):isclose(big, { rtol = 0, atol = 0 }):totable())
    assert.same({ false }, T.tensor({ 16777217 }, i64):isclose(16777216.0, { rtol = 0, atol = 0 }):totable())
    assert.same({ 0 }, T.arange(0, 4999999999, 5000000000):totable())
    assert.same({ 5, 5 - big, 5 - 2 * big }, T.arange(5, 5 - 2 * big, -big):totable())
    local all = T.arange(math.mininteger, math.maxinteger, 1 << 62)
    assert.same({ math.mininteger, -1 << 62, 0, 1 << 62 }, all:totable())
    assert.equal(0, T.arange(2, 1):numel() + T.arange(1, 2, -1):numel())
    assert.equal(11, T.arange(0, 1, 0.1):numel())
    assert.same({ { 400, 20, 1 } }, T.vander(T.tensor({ 20 }, { dtype = "u8" }), 3):totable())
    assert.equal("bool", T.tensor({ T.tensor(true), false }):dtype())
  end)

  it("and the rest count as PyTorch counts", function()
    assert.equal(1, #T.broadcast_tensors(T.ones(2, 1)))
    local mean = (T.ones(70000) * 0.5):half():nanmean() -- more elements than f16 counts
    assert.equal(0.5, mean:item())
    local y, x = T.arange(8):float():reshape(2, 2, 2), T.tensor { { 1, 2 }, { 4, 8 } }
    assert.same({ { 6, 18 }, { 18, 42 } }, T.trapezoid(y, x, { dim = 2 }):totable()) -- x as [1, 2, 2]
    local a = T.tensor { { 0.1, 0.1 }, { 0.1, 0.1 } }
    assert.equal(1, T.linalg.matrix_rank(a, { atol = T.tensor(0.0) }):item())
    assert.same({ { 1, 4 }, { 5, 8 } }, T.linalg.diagonal(T.arange(8):reshape(2, 2, 2)):totable())
    local t = T.data.train_bpe { 256, text = "low" }
    if t then
      assert.equal(6, t("low", { truncation = false, max_length = 6, padding = "max_length" }).input_ids:size(1))
      assert.has_error(function() t("low", { padding = "longest", pad_to = 8 }) end)
      assert.has_error(function() t { text = "low" } end)
    end
    local two = T.rand(2, 1, 2, 2)
    two[{ 1, 1, 1, 1 }] = 0 / 0
    assert.is_true(T.plot.image(two).pixels:max() > 0)
  end)
end)
