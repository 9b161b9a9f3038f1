-- SPDX-License-Identifier: MIT
-- Conveniences made of other ops (lua/perilune/tensor/conveniences.lua), small layers (nn/extra.lua), ConcatDataset,
-- SequentialLR, gumbel_softmax. Expected values by hand, or as PyTorch gives them.

local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data
local near = require "spec.support.near"
local eq, fails = near.near, near.fails

local function matrix() return T.tensor { { 1, 2 }, { 3, 4 } } end

describe("forms in place of functions", function()
  it("write the result into x", function()
    local a, b = T.tensor { { 1, 2 }, { 3, 4 } }, T.tensor { { 0, 1 }, { 1, 0 } }
    local x = T.ones(2, 2)
    local same = x
    assert.equal(same, x:addmm_(a, b))
    eq(x, { { 3, 2 }, { 5, 4 } })
    eq(T.ones(2):addmv_(a, T.ones(2)), { 4, 8 })
    eq(T.ones(2):cumsum_(1), { 1, 2 })
    eq(T.tensor { 2, 3 }:cumprod_(1), { 2, 6 })
    eq(T.tensor { 1, 3 }:gt_(2), { 0, 1 })
    eq(T.tensor { 1, 3 }:greater_equal_(1), { 1, 1 })
    eq(T.tensor { true, false }:logical_or_(T.tensor { false, false }):long(), { 1, 0 })
    local leaf = T.ones(2):requires_grad_()
    eq(T.grad_of((leaf * 2):cumsum_(1):sum(), leaf), { 4, 2 })
    fails("addmm_: f32[2,2] does not broadcast to f32[2]", function() T.ones(2):addmm_(a, b) end)
  end)

  it("index_put takes the positions in a list", function()
    local i, j = T.tensor({ 1, 1 }, { dtype = "i64" }), T.tensor({ 1, 2 }, { dtype = "i64" })
    local x = T.zeros(2, 2)
    eq(x:index_put({ i, j }, T.tensor { 5, 6 }), { { 5, 6 }, { 0, 0 } })
    eq(x, 0)
    assert.equal(x, x:index_put_({ i }, 2, { accumulate = true }))
    eq(x, { { 4, 4 }, { 0, 0 } })
    fails("index_put_: write x:index_put_({ indices }, value", function() x:index_put_(i, 2) end)
  end)

  it("T.finfo and T.iinfo tell a dtype's limits", function()
    for _, d in ipairs { "f64", "f32", "bf16", "f16" } do
      local f = T.finfo(d)
      local one = T.ones({ 1 }, { dtype = d })
      assert.is_true((one + f.eps):gt(1):item() and not (one + f.eps / 2):gt(1):item(), d)
      local max = T.tensor({ f.max, f.min }, { dtype = d })
      assert.same({ f.max, f.min }, max:to("f64"):totable())
      assert.is_false((max * 2):isfinite():any():item())
      assert.equal(f.tiny, T.tensor({ f.tiny }, { dtype = d }):to("f64"):item())
    end
    assert.equal(-2147483648, T.iinfo("i32").min)
    assert.equal(255, T.iinfo(T.zeros({ 1 }, { dtype = "u8" })).max)
    assert.equal("f32", T.finfo().dtype)
    fails("finfo: i64 is no floating dtype", T.finfo, "i64")
    fails("iinfo: f32 is no integer dtype", T.iinfo, "f32")
    fails("unknown dtype", T.finfo, "f99")
  end)

  it("eye, linspace and logspace take a device and requires_grad", function()
    assert.is_true(T.eye(2, { requires_grad = true, device = "cpu", dtype = "f64" }).requires_grad)
    assert.is_true(T.linspace(0, 1, 3, { requires_grad = true }).requires_grad)
    eq(T.logspace(0, 2, 3, { device = "cpu" }), { 1, 10, 100 })
    eq(T.eye(2, { device = "cpu" }), { { 1, 0 }, { 0, 1 } })
    assert.equal(6, T.randperm(3, { device = "cpu" }):sum():item())
    fails("eye: unknown option 'devize'", T.eye, 2, { devize = "cpu" })
  end)
end)

describe("composites:", function()
  it("limits and angles", function()
    local x = matrix()
    eq(x:clip(2, 3), { 2, 2, 3, 3 })
    local y = x:clone()
    y:clip_(2, 3)
    eq(y, { 2, 2, 3, 3 })
    eq(x:clamp_min(2), { 2, 2, 3, 4 })
    eq(x:clamp_max(2), { 1, 2, 2, 2 })
    eq(x:clamp_min(T.tensor { 2, 5 }), { 2, 5, 3, 5 })
    eq(x:clamp_max(T.tensor { 2, 1 }), { 1, 1, 2, 1 })
    eq(T.tensor { 180, 90 }:deg2rad(), { math.pi, math.pi / 2 }, 1e-6)
    eq(T.tensor { math.pi }:rad2deg(), { 180 }, 1e-4)
  end)

  it("shapes", function()
    local x = matrix()
    assert.same({ 4 }, x:ravel():shape())
    eq(x:fliplr(), { 2, 1, 4, 3 })
    eq(x:flipud(), { 3, 4, 1, 2 })
    eq(x:swapaxes(1, 2), { 1, 3, 2, 4 })
    assert.same({ 3, 2, 1 }, T.zeros(1, 3, 2):moveaxis(1, -1):shape())
    assert.same({ 1 }, T.tensor(3):atleast_1d():shape())
    assert.same({ 1, 1 }, T.tensor(3):atleast_2d():shape())
    assert.same({ 1, 2 }, T.ones(2):atleast_2d():shape())
    eq(T.column_stack { T.tensor { 8, 9 }, x }, { 8, 1, 2, 9, 3, 4 })
    local list = T.broadcast_tensors { T.ones(2, 1), T.ones(3) }
    assert.same({ 2, 3 }, list[1]:shape())
    assert.same({ 2, 3 }, list[2]:shape())
    fails("sizes 2 and 3 differ", T.broadcast_tensors, { T.ones(2), T.ones(3) })
    eq(T.block_diag { x, T.tensor { 5 } }, { 1, 2, 0, 3, 4, 0, 0, 0, 5 })
    fails("fliplr: at least 2 dimensions", T.fliplr, T.ones(2))
  end)

  it("reductions", function()
    local x = matrix()
    local nan = T.tensor { { 1, 0 / 0 }, { 3, 4 } }
    eq(nan:nanmean(), { 8 / 3 }, 1e-6)
    eq(nan:nanmean { dim = 1 }, { 2, 4 })
    assert.same({ 2, 1 }, nan:nanmean(2, { keepdim = true }):shape())
    eq(x:quantile(0.5), { 2.5 })
    eq(x:quantile(0.25, 1), { 1.5, 2.5 })
    assert.same({ 1, 1 }, x:quantile(0.5, { keepdim = true }):shape())
    local q = nan:quantile(0, 2)
    assert.is_true(q:isnan()[1]:item() and q:get(2) == 3)
    fails("q must be a number from 0 to 1", x.quantile, x, 2)
    eq(x:dist(x * 2), { math.sqrt(30) }, 1e-5)
    eq(x:trapezoid(), { 1.5, 3.5 })
    eq(x:trapezoid { dx = 2, dim = 1 }, { 4, 6 })
    assert.same({ { 1, 2 }, { 2, 1 } }, T.tensor { { 0, 1 }, { 1, 0 } }:argwhere():totable())
  end)

  it("makers and the diagonal", function()
    local x = matrix()
    local i = T.tensor({ 1 }, { dtype = "i32" })
    for _, made in ipairs { i:new_zeros(2, 1), i:new_ones { 2, 1 }, i:new_full({ 2, 1 }, 7),
      i:new_tensor { { 1 }, { 2 } }, i:new_empty(2, 1) } do
      assert.equal("i32", made:dtype())
      assert.same({ 2, 1 }, made:shape())
    end
    eq(x:clone():fill_diagonal_(9), { 9, 2, 3, 9 })
  end)

  it("by a Lua function", function()
    local x = matrix()
    assert.equal(x, x:apply_(function(v, i) if i > 1 then return v * i end end))
    eq(x, { 1, 4, 9, 16 })
    eq(x:map_(T.tensor { 10, 20 }, function(a, b) return a + b end), { 11, 24, 19, 36 })
    fails("apply_: the function must return numbers", x.apply_, x, function() return "a" end)
    fails("apply_: f must be a function", x.apply_, x, 3)
    fails("boom", x.apply_, x, function() error("boom", 0) end)
    eq(x, { 11, 24, 19, 36 })
  end)

  it("a few singular values", function()
    T.manual_seed(2)
    local A = T.randn({ 30, 5 }, { dtype = "f64" }):matmul(T.randn({ 5, 20 }, { dtype = "f64" }))
    local U, S, V = T.svd_lowrank(A, 5)
    eq(U:matmul(S:diag()):matmul(V:t()), A:reshape(-1):totable(), 1e-9)
    eq(S, T.linalg.svdvals(A):narrow(1, 1, 5):totable(), 1e-9)
    local centred = A - A:mean(1, { keepdim = true })
    eq((select(2, T.pca_lowrank(A, { q = 5, niter = 4 }))), T.linalg.svdvals(centred):narrow(1, 1, 5):totable(), 1e-8)
    fails("q is 9, but", T.svd_lowrank, T.ones(3, 4), 9)
  end)

  it("dtypes and limits", function()
    assert.equal("f32", T.result_type(T.arange(2), 1.5))
    assert.equal("f16", T.result_type(T.ones(2, { dtype = "f16" }), T.tensor(1.0, { dtype = "f64" })))
    assert.equal("bool", T.result_type(T.ones(1, { dtype = "bool" }), T.ones(1, { dtype = "bool" })))
    fails("argument #2 must be a tensor or a number", T.result_type, T.ones(1))
    assert.is_true(T.is_signed(T.arange(1)))
    assert.is_false(T.is_nonzero(T.zeros(1)))
    fails("one element is wanted", T.is_nonzero, T.ones(2))
    eq(T.tensor { -1, 5 }:clamp_min_(0):clamp_max_(3), { 0, 3 })
    fails("clamp_min_", function() T.arange(2):clamp_min_("x") end)
  end)

  it("are differentiable", function()
    local w = T.randn({ 3, 3 }, { dtype = "f64" }):requires_grad_()
    assert.is_true(T.gradcheck(function(a)
      return a:quantile(0.3, 2), a:dist(a * a), a:trapezoid(), a:fliplr(), a:nanmean(1), T.block_diag { a, a },
        a:clamp_max(0.5)
    end, { w }))
  end)
end)

describe("small layers:", function()
  it("padding", function()
    eq(nn.ConstantPad1d({ 1, 2 }, 5)(T.ones(1, 2)), { 5, 1, 1, 5, 5 })
    assert.same({ 1, 1, 3, 3 }, nn.ZeroPad2d { 1, 0, 0, 1 }(T.ones(1, 1, 2, 2)):shape())
    eq(nn.ReflectionPad1d(1)(T.tensor { { 1, 2, 3 } }), { 2, 1, 2, 3, 2 })
    eq(nn.ReplicationPad1d(1)(T.tensor { { 1, 2, 3 } }), { 1, 1, 2, 3, 3 })
    eq(nn.CircularPad1d(1)(T.tensor { { 1, 2, 3 } }), { 3, 1, 2, 3, 1 })
    assert.equal("ZeroPad2d(padding={2, 2, 2, 2})", tostring(nn.ZeroPad2d(2)))
    fails("padding must be one number or 4", nn.ZeroPad2d, { 1, 2 })
  end)

  it("AdaptiveMaxPool and Softmax2d", function()
    local image = T.arange(16):float():view(1, 1, 4, 4)
    local y, where = nn.AdaptiveMaxPool2d(2, { return_indices = true })(image)
    eq(y, { 6, 8, 14, 16 })
    assert.same({ 6, 8, 14, 16 }, where:flatten():totable())
    assert.same({ 1, 1, 1, 2 }, nn.AdaptiveMaxPool2d { 1, 2 }(image):shape())
    eq(nn.Softmax2d()(T.zeros(2, 1, 1)), { 0.5, 0.5 })
    fails("[N, C, H, W]", nn.Softmax2d(), T.zeros(2))
  end)

  it("ParameterList registers and saves", function()
    local m = nn.class("M")()
    m.list = nn.ParameterList { T.ones(2), nn.Parameter(T.zeros(3)) }
    assert.equal(2, #m.list)
    m.list:append(T.ones(4))
    assert.equal(3, #m:parameters())
    local state = m:state_dict()
    assert.is_truthy(state["list.1"] and state["list.3"])
    assert.is_true(m.list[3].requires_grad)
    fails("a tensor is wanted", m.list.append, m.list, 1)
  end)

  it("gumbel_softmax draws with the probabilities of softmax", function()
    T.manual_seed(1)
    local logits = T.tensor { 0, 1, 2 }:expand(4000, 3):contiguous():requires_grad_()
    local y = nn.F.gumbel_softmax(logits, { hard = true })
    eq(y:sum(-1):detach(), T.ones(4000):totable(), 1e-5)
    eq(y:mean(1):detach(), T.tensor { 0, 1, 2 }:softmax():totable(), 0.03)
    y:square():sum():backward()
    assert.is_true(logits.grad:abs():sum():item() > 0)
    fails("tau must be a finite number > 0", nn.F.gumbel_softmax, logits, { tau = 0 })
  end)
end)

it("ConcatDataset joins datasets", function()
  local both = data.ConcatDataset(data.TensorDataset(T.arange(3)), data.TensorDataset(T.arange(4) * 10))
  assert.equal(7, #both)
  assert.same({ 3, 10, 40 }, { both[3]:item(), both[4]:item(), both[7]:item() })
  local seen = {}
  for batch in data.DataLoader(both, { batch_size = 5 }) do seen[#seen + 1] = batch:totable() end
  assert.same({ { 1, 2, 3, 10, 20 }, { 30, 40 } }, seen)
  fails("entry 2 must be a dataset", data.ConcatDataset, both, 1)
end)

describe("SequentialLR", function()
  local S = optim.lr_scheduler
  local function make()
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0 })
    return opt, S.SequentialLR(opt, { milestones = { 4 },
      schedulers = { S.LinearLR(opt, { start_factor = 0.1, total_iters = 4 }), S.CosineAnnealingLR(opt, 6) } })
  end

  it("gives PyTorch's rates, and goes on from a saved state", function()
    local opt, s = make()
    local expected = { 0.1, 0.325, 0.55, 0.775, 1, 0.93301, 0.75, 0.5, 0.25, 0.06699 }
    local again, t
    for i, lr in ipairs(expected) do
      assert.is_true(math.abs(opt.param_groups[1].lr - lr) < 1e-5, "step " .. i)
      if again then assert.equal(opt.param_groups[1].lr, again.param_groups[1].lr) end
      if i == 6 then
        again, t = make()
        t:load_state_dict(s:state_dict())
        assert.equal(opt.param_groups[1].lr, again.param_groups[1].lr)
      end
      s:step()
      if again then t:step() end
    end
  end)

  it("refuses lists that do not fit", function()
    local opt = make()
    fails("a list of 2 schedulers", S.SequentialLR, opt, { schedulers = {}, milestones = { 3 } })
    fails("of the same optimizer", S.SequentialLR, opt,
      { schedulers = { S.CosineAnnealingLR((make()), 3), S.CosineAnnealingLR(opt, 3) }, milestones = { 3 } })
  end)
end)

it("cross_entropy and optimizers name the usual slips", function()
  fails("class numbers are integers", nn.F.cross_entropy, T.ones(2, 3), T.ones(2))
  fails("pass net:parameters()", optim.SGD, nn.Linear(2, 2), { lr = 1 })
end)
