-- SPDX-License-Identifier: MIT
-- nn.utils.parametrize and nn.utils.parametrizations: values and gradients against PyTorch's, states, optimizers,
-- clones, T.jit, caches, removal.
local T = require "perilune"
local nn, optim = T.nn, T.optim
local P, Z = nn.utils.parametrizations, nn.utils.parametrize

-- The numbers that spec's values of PyTorch were made with.
local function fill(shape, scale)
  local n, list = 1, {}
  for _, s in ipairs(shape) do n = n * s end
  for i = 0, n - 1 do list[i + 1] = (((i * 7919 + 13) % 101) / 50 - 1) * (scale or 0.7) end
  return T.tensor(list, { dtype = "f64" }):view(shape)
end

local function refused(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function near(want, got, what)
  if T.is_tensor(got) then got = got:detach():flatten():totable() end
  assert.equal(#want, #got)
  for i, v in ipairs(want) do
    assert.is_true(math.abs(v - got[i]) <= 1e-10 * math.max(1, math.abs(v)), ("%s: entry %d is %.15g, not %.15g")
      :format(what, i, got[i], v))
  end
end

local function layer(from, to, w)
  local l = nn.Linear(from, to, { bias = false }):double()
  T.no_grad(function() l.weight:copy_(w or fill { to, from }) end)
  return l
end

-- A product of rotations by 0.6, 0.8.
local function turned(n)
  local B = T.eye(n, { dtype = "f64" })
  for k = 1, n - 1 do
    local G = T.eye(n, { dtype = "f64" })
    G[{ { k, k + 1 }, { k, k + 1 } }] = T.tensor({ { 0.6, -0.8 }, { 0.8, 0.6 } }, { dtype = "f64" })
    B = B:matmul(G)
  end
  return B
end

local function names(m)
  local list = {}
  for name in pairs(m:state_dict { index_base = 0 }) do list[#list + 1] = name end
  return table.concat(list, " ")
end

local Symmetric = nn.class "Symmetric"
function Symmetric:forward(x) return x:triu() + x:triu(1):t() end -- luacheck: no self
function Symmetric:right_inverse(y) return y:triu() end -- luacheck: no self

local Scaled = nn.class "Scaled"
function Scaled:init(by) self.by = nn.Parameter(T.tensor(by, { dtype = "f64" })) end
function Scaled:forward(x) return x * self.by end

describe("nn.utils.parametrizations", function()
  -- Sums of w c and of the gradient with a third matrix, for 3x3, 4x2 and 2x4, without and with trivialization.
  local want = {
    matrix_exp = { 2.134140472401, 0.003371124956103, 0.6374807019993, 0.3024123696043, -0.2747045923058,
      0.7452166760838, -0.5449721301784, 0.3945891908652, 0.251604272271, -0.9616306506813, 1.341717142838,
      0.1283791021093 },
    cayley = { 2.133402536752, 0.05911655757939, 0.6309319793096, 0.2826887847666, -0.299655336518,
      0.6114846811861, -0.5780232892199, 0.1708027211864, 0.2800666129069, -0.8055023909776, 1.342160890563,
      0.1739802968372 },
    householder = { -0.9122146591696, -0.2174613847169, 0.1149148601692, 0.2240287774506, -0.76042245505,
      1.940312324404, -1.649634021163, 1.510999024874, -0.1418382027879, 0.9331787214352, -0.885853919142,
      -3.482009670673 },
  }
  for map, list in pairs(want) do
    it("orthogonal by " .. map .. " computes what PyTorch does", function()
      local at = 0
      for _, shape in ipairs { { 3, 3 }, { 4, 2 }, { 2, 4 } } do
        for _, trivial in ipairs { false, true } do
          local l = P.orthogonal(layer(shape[2], shape[1]), { orthogonal_map = map, use_trivialization = trivial })
          local x, n = fill(shape), math.max(shape[1], shape[2])
          if map == "householder" then
            x:diagonal():copy_(T.tensor({ 1, -1, 1 }, { dtype = "f64" }):narrow(1, 1, math.min(shape[1], shape[2])))
          end
          l:load_state_dict({ ["parametrizations.weight.original"] = x,
            ["parametrizations.weight.0.base"] = trivial and turned(n) or nil }, { index_base = 0 })
          local w = l.weight
          local loss = (w * fill(shape, 1.1):flip(1)):sum()
          loss:backward()
          local g = (l.parametrizations.weight.original.grad * fill(shape, 1.3)):sum()
          near({ list[at + 1], list[at + 2] }, { loss:item(), g:item() }, map)
          at = at + 2
          local small = shape[1] < shape[2] and w:matmul(w:t()) or w:t():matmul(w)
          assert.is_true((small - T.eye(#small, { dtype = "f64" })):abs():max():item() < 1e-12)
        end
      end
    end)
  end

  it("orthogonal keeps a matrix that is orthogonal, and takes another one's factor", function()
    for _, shape in ipairs { { 3, 3 }, { 4, 2 }, { 2, 4 } } do
      local wide = shape[1] < shape[2]
      local a = fill(shape)
      local q = wide and T.linalg.qr(a:t()):t() or (T.linalg.qr(a))
      for _, o in ipairs { {}, { orthogonal_map = "householder", use_trivialization = false }, { orthogonal_map =
        "cayley" } } do
        local l = P.orthogonal(layer(shape[2], shape[1], q), o)
        near(q:flatten():totable(), l.weight, "orthogonal")
        l.weight = -q
        near((-q):flatten():totable(), l.weight, "assigned")
      end
    end
    local l = P.orthogonal(layer(3, 3), { orthogonal_map = "cayley", use_trivialization = false })
    refused("Orthogonal has no right_inverse", function() l.weight = T.eye(3, { dtype = "f64" }) end)
    refused("did you mean", P.orthogonal, layer(3, 3), { orthogonal_map = "housholder" })
    refused("must be a matrix", P.orthogonal, nn.Linear(2, 2), "bias")
  end)

  it("weight_norm and spectral_norm compute what PyTorch's do, under its names", function()
    local l = P.weight_norm(layer(3, 2))
    assert.equal("parametrizations.weight.original0 parametrizations.weight.original1", names(l))
    near(fill({ 2, 3 }):flatten():totable(), l.weight, "start")
    local g, v = l.parametrizations.weight.original0, l.parametrizations.weight.original1
    T.no_grad(function() g:mul_(1.5) end)
    local c = fill({ 2, 3 }, 1.1):flip(1);
    (l.weight * c):sum():backward()
    near({ -0.777, 0.084, 0.945, -0.315, 0.546, -0.714 }, l.weight, "weight_norm")
    near({ -0.328143379362368, -0.422497058813292 }, g.grad, "g")
    near({ -0.806874193548387, 0.891716129032258, -0.742693548387097, -1.43059893048128, 0.495304812834225,
      1.00990909090909 }, v.grad, "v")
    near({ 5 }, { P.weight_norm(layer(3, 2), { dim = false }).parametrizations.weight.original0:div(fill({ 2, 3 })
      :norm() / 5):item() }, "one norm")

    l = P.spectral_norm(layer(3, 2))
    assert.equal("parametrizations.weight.original parametrizations.weight.0._u parametrizations.weight.0._v", names(l))
    l:load_state_dict({ ["parametrizations.weight.0._u"] = T.tensor({ 0.6, 0.8 }, { dtype = "f64" }),
      ["parametrizations.weight.0._v"] = T.tensor({ 2, 1, 2 }, { dtype = "f64" }) / 3 },
      { index_base = 0, strict = false })
    local w = l.weight;
    (w * c):sum():backward()
    near({ -0.725191073680089, 0.0783990349924421, 0.881989143664973, -0.293996381221658, 0.509593727450873,
      -0.666391797435757 }, w, "spectral_norm")
    near({ -0.436895194444559, 0.668503022326679, -0.800034609992102, -1.22994280097939, 0.59943211847702,
      0.496233939094241 }, l.parametrizations.weight.original.grad, "its gradient")
    local by = l.parametrizations.weight[1]
    near({ 0.267643863786095, -0.963517909629941 }, by._u, "u")
    near({ 0.0891778377305334, -0.470019662391517, 0.878139413887722 }, by._v, "v")
    l:eval()
    assert.is_true(l.weight:equal(l.weight) and not l:train().weight:equal(w))
    assert.is_true(math.abs(P.spectral_norm(nn.Linear(2, 3), "bias").bias:norm():item() - 1) < 1e-6)
  end)
end)

describe("nn.utils.parametrize", function()
  it("keeps the parameter, its value, its place in states, in any number of turns", function()
    local l = layer(2, 2, T.tensor({ { 1, 2 }, { 2, 3 } }, { dtype = "f64" }))
    local p = l.weight
    Z.register_parametrization(l, "weight", Symmetric())
    assert.is_true(rawequal(p, l.parametrizations.weight.original) and Z.is_parametrized(l, "weight"))
    near({ 1, 2, 0, 3 }, p, "original")
    near({ 1, 2, 2, 3 }, l.weight, "value")
    Z.register_parametrization(l, "weight", Scaled(2))
    near({ 2, 4, 4, 6 }, l.weight, "two turns")
    assert.equal("parametrizations.weight.original parametrizations.weight.1.by", names(l));
    (l.weight * T.tensor({ { 1, 10 }, { 100, 1000 } }, { dtype = "f64" })):sum():backward()
    near({ 2, 220, 0, 2000 }, p.grad, "gradient")
    near({ 1 + 220 + 0 + 3000 }, { l.parametrizations.weight[2].by.grad:item() }, "gradient of the second")
    assert.is_nil(rawget(l._parameters, "weight"))
    local copy = l:clone()
    T.no_grad(function() p:mul_(3) end)
    near({ 6, 12, 12, 18 }, l.weight, "changed")
    near({ 2, 4, 4, 6 }, copy.weight, "the copy stays")
    copy:load_state_dict(l:state_dict())
    assert.is_true(copy.weight:equal(l.weight))
    assert.is_true(nn.utils.functional_call(l, { ["parametrizations.weight.original"] = T.eye(2, { dtype = "f64" }) },
      T.ones({ 1, 2 }, { dtype = "f64" })):equal(T.full({ 1, 2 }, 2, { dtype = "f64" })))
    refused("Scaled has no right_inverse", function() l.weight = p end)
    l:to "f32"
    assert.equal("f32", l.weight:dtype())
    Z.remove_parametrizations(l, "weight")
    assert.is_true(rawequal(p, l.weight) and not Z.is_parametrized(l) and l.parametrizations == nil)
    near({ 6, 12, 12, 18 }, p, "what is left")
    assert.equal("weight", names(l))
    l.weight = nn.Parameter(T.zeros(2, 2)) -- a plain one again
    near({ 0, 0, 0, 0 }, l.weight, "assigned")
  end)

  it("takes buffers, several tensors, and back to the original", function()
    local m = nn.BatchNorm1d(2):double()
    Z.register_parametrization(m, "running_var", Scaled(3))
    near({ 3, 3 }, m.running_var, "buffer")
    assert.is_true(m.parametrizations.running_var._buffers.original == "persistent")
    Z.remove_parametrizations(m, "running_var", { leave_parametrized = false })
    near({ 1, 1 }, m.running_var, "original")
    assert.equal("persistent", m._buffers.running_var)
    local l = P.weight_norm(layer(2, 2))
    local w = l.weight:detach()
    refused("computed of 2 tensors", Z.remove_parametrizations, l, "weight", false)
    l.weight = w * 2
    near((w * 2):flatten():totable(), l.weight, "assigned")
    Z.remove_parametrizations(l, "weight")
    assert.is_true(l.weight.requires_grad and l.weight.is_leaf)
    near((w * 2):flatten():totable(), l.weight, "removed")
  end)

  it("trains as PyTorch does, as written, compiled, and with the value kept during a call", function()
    local seen = {}
    for i, wrap in ipairs { function(f) return f end, T.jit, function(f)
      return function(...) return Z.cached(f, ...) end
    end } do
      local l = Z.register_parametrization(P.weight_norm(layer(2, 2)), "weight", Symmetric())
      local opt = optim.SGD(l:parameters(), { lr = 0.1, momentum = 0.9 })
      local step = wrap(function(x)
        opt:zero_grad()
        local loss = (l(x):tanh():matmul(l.weight)):square():mean()
        loss:backward()
        opt:step()
        return loss
      end)
      local last
      for k = 1, 4 do last = step(fill({ 3, 2 }, k)) end
      seen[i] = T.cat { l.weight:detach():flatten(), last:detach():view(1) }
    end
    near(seen[1]:totable(), seen[2], "compiled")
    near(seen[1]:totable(), seen[3], "kept")
  end)

  it("a compiled function sees parametrizations that come and go", function()
    local l, x = layer(2, 2), fill { 1, 2 }
    local f = T.jit(function(v) return l(v) end)
    for _ = 1, 2 do f(x) end
    Z.register_parametrization(l, "weight", Scaled(2))
    for _ = 1, 3 do assert.is_true(f(x):equal(l(x))) end
    Z.remove_parametrizations(l, "weight", false)
    for _ = 1, 3 do assert.is_true(f(x):equal(l(x))) end
  end)

  it("what is kept is computed again once a tensor or a mode changed", function()
    local l = Z.register_parametrization(layer(2, 2), "weight", Scaled(2))
    do
      local _ <close> = Z.cached()
      local a = l.weight
      assert.is_true(rawequal(a, l.weight))
      Z.cached(function() assert.is_true(rawequal(a, l.weight)) end)
      T.no_grad(function() assert.is_false(l.weight.requires_grad) end)
      T.no_grad(function() l.parametrizations.weight.original:zero_() end)
      near({ 0, 0, 0, 0 }, l.weight, "after the change")
      T.no_grad(function() l.parametrizations.weight.original:fill_(1) end)
      local f = T.jit(function() return l.weight * 1 end)
      for _ = 1, 3 do near({ 2, 2, 2, 2 }, f(), "a trace inside") end
    end
    assert.is_false(rawequal(l.weight, l.weight))
    refused("mark", Z.cached, function() error "mark" end)
    assert.is_false(rawequal(l.weight, l.weight))
  end)

  it("what is kept goes with buffers, requires_grad, writes into it, coroutines and checkpoints, too", function()
    local Times = nn.class "Times"
    function Times:init() self:register_buffer("by", T.tensor(2, { dtype = "f64" })) end
    function Times:forward(x) return x * self.by end
    local l = Z.register_parametrization(layer(2, 2), "weight", Times())
    local norm = Z.register_parametrization(nn.BatchNorm1d(2):double(), "running_var", Scaled(3))
    Z.cached(function()
      T.no_grad(function() l.parametrizations.weight.original:fill_(1) end)
      near({ 2, 2, 2, 2 }, l.weight, "before")
      near({ 3, 3 }, norm.running_var, "before")
      l.parametrizations.weight[1].by:fill_(5)
      norm.parametrizations.running_var.original:fill_(2)
      near({ 5, 5, 5, 5 }, l.weight, "a buffer of the module")
      near({ 6, 6 }, norm.running_var, "a buffer that is computed")
      T.no_grad(function() l.weight:zero_() end)
      near({ 5, 5, 5, 5 }, l.weight, "written into")
      l:freeze()
      assert.is_false(l.weight.requires_grad)
    end)
    local left = coroutine.wrap(function()
      local _ <close> = Z.cached()
      assert.is_true(rawequal(l.weight, l.weight))
      coroutine.yield()
    end)
    left()
    assert.is_false(rawequal(l.weight, l.weight))
    local x, seen = fill { 3, 2 }, {}
    for k, run in ipairs { function(f, v) return f(v) end, T.checkpoint } do
      T.manual_seed(1)
      local net = P.spectral_norm(P.weight_norm(layer(2, 2), "weight"))
      Z.cached(function()
        local y = run(function(v) return net(net(v)) end, x)
        net(y):sum():backward()
      end)
      seen[k] = net.parametrizations.weight.original1.grad
    end
    near(seen[1]:flatten():totable(), seen[2], "a checkpoint")
  end)

  it("says what does not fit, and changes nothing then", function()
    local Cut = nn.class "Cut"
    function Cut:forward(x) return x:narrow(1, 1, 1) end -- luacheck: no self
    local l = layer(2, 2)
    refused("Cut gives f64%[1,2%].* for f64%[2,2%].*unsafe", Z.register_parametrization, l, "weight", Cut())
    assert.is_true(#l:parameters() == 1 and l.weight.is_leaf and not Z.is_parametrized(l))
    refused("no parameter or buffer 'wait'", Z.register_parametrization, l, "wait", Symmetric())
    refused("must be a module", Z.register_parametrization, l, "weight", T.relu)
    refused("'weight' of Linear is not parametrized", Z.remove_parametrizations, l, "weight")
    Z.register_parametrization(l, "weight", Cut(), { unsafe = true })
    assert.same({ 1, 2 }, l.weight:shape())
    refused("'weight' is parametrized", function() l.weight = nil end)
    refused("weight is computed", T.quantize, Z.register_parametrization(nn.Linear(32, 2), "weight", Symmetric(),
      { unsafe = true }))
    local gpt = T.models.GPT2 { vocab_size = 4, n_positions = 4, n_embd = 4, n_layer = 1, n_head = 1 }
    P.weight_norm(gpt.transformer.wte)
    refused("wte has a weight that is computed", T.models.save, gpt, "no such folder")
    refused("has no parameter 'weight'", nn.utils.weight_norm, l)
    refused("has no parameter 'weight'", nn.utils.prune.identity, l, "weight")
    refused("no parameter or buffer 'weight'", Z.register_parametrization, nn.utils.weight_norm(layer(2, 2)), "weight",
      Symmetric())
    refused("not its own parameter", nn.utils.fuse_linear_bn_eval, l:eval(), nn.BatchNorm1d(2):eval())
  end)
end)
