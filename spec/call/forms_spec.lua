-- SPDX-License-Identifier: MIT
-- Forms of calls as PyTorch has them, dimensions that count from 1 everywhere, and which results share memory.

local T = require "perilune"
local nn = T.nn

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

local function refused(words, f, ...)
  local args = table.pack(...)
  local ok, err = pcall(function()
    local r = f(table.unpack(args, 1, args.n))
    return r
  end)
  assert.is_false(ok, "accepted: " .. words)
  assert.is_truthy(tostring(err):find("^" .. HERE .. ":%d+: "), err)
  assert.is_truthy(err:find(words, 1, true), err)
end

describe("index and index_put", function()
  local i64 = { dtype = "i64" }
  it("count dims from 1", function()
    local x = T.arange(12):view(3, 4)
    local rows, cols = T.tensor({ 3, 1 }, i64), T.tensor({ 2, 4 }, i64)
    assert.is_true(T.index({ x, rows }, { dims = { 1 } }):equal(x:index_select(1, rows)))
    assert.is_true(T.index({ x, cols }, { dims = { 2 } }):equal(x:index_select(2, cols)))
    assert.is_true(T.index({ x, cols }, { dims = { -1 } }):equal(x:index_select(2, cols)))
    assert.is_true(T.index({ x, rows, cols }, { dims = { 1, 2 } }):equal(x[{ rows, cols }]))
    assert.same({ { 1, 0, 3, 0 }, { 5, 0, 7, 0 }, { 9, 0, 11, 0 } }, T.index_put({ x, T.tensor(0, i64), cols },
      { dims = { 2 } }):totable())
    refused("dims is 0; dimensions start at 1", T.index, { x, rows }, { dims = { 0 } })
    refused("dims is 0; dimensions start at 1", T.index_put, { x, T.tensor(0, i64), rows }, { dims = { 0 } })
    refused("out of range", T.index, { x, rows }, { dims = { 3 } })
    refused("twice", T.index, { x, rows, rows }, { dims = { 1, -2 } })
  end)
  it("have the same gradients, in batches, too", function()
    local x, cols = T.randn(3, 4, { dtype = "f64" }):requires_grad_(), T.tensor({ 2, 4 }, i64)
    local f = function(a) return T.index({ a, cols }, { dims = { 2 } }) * 2 end
    assert.is_true(T.gradcheck(f, { x }))
    local many = T.randn(5, 3, 4)
    assert.is_true(T.vmap(f)(many):equal(many:index_select(3, cols) * 2))
  end)
  it("a number under a mask", function()
    local x = T.tensor(3.0)
    assert.same({ 3 }, x[x:gt(2)]:totable())
    assert.same({}, x[x:gt(5)]:totable())
    x[x:gt(2)] = 7
    assert.equal(7, x:item())
    x[x:gt(9)] = 1
    assert.equal(7, x:item())
  end)
end)

describe("PyTorch's forms of", function()
  it("div", function()
    local x, y = T.tensor { 7, -7, 7.5 }, T.tensor { 2, 2, -2 }
    assert.same({ 3, -4, -4 }, x:div(y, { rounding_mode = "floor" }):totable())
    assert.same({ 3, -3, -3 }, T.div(x, y, { rounding_mode = "trunc" }):totable())
    assert.same({ 3.5, -3.5, -3.75 }, x:div(y):totable())
    assert.same({ -4 }, T.tensor({ -7 }, { dtype = "i64" }):div(2, { rounding_mode = "floor" }):totable())
    local out = T.zeros(3)
    assert.is_true(rawequal(out, x:div(y, { rounding_mode = "floor", out = out })))
    assert.same({ 3, -4, -4 }, out:totable())
    x:div_(y, { rounding_mode = "trunc" })
    assert.same({ 3, -3, -3 }, x:totable())
    refused("did you mean 'floor'", x.div, x, y, { rounding_mode = "flor" })
  end)
  it("meshgrid", function()
    local a, b = T.arange(2), T.arange(3)
    local one, two = T.meshgrid { a, b }, T.meshgrid(a, b)
    for k = 1, 2 do assert.is_true(one[k]:equal(two[k])) end
    assert.same({ 3, 2 }, T.meshgrid(a, b, { indexing = "xy" })[1]:shape())
    assert.same({ 1, 3 }, T.meshgrid(T.tensor(5.0), b)[1]:shape())
  end)
  it("normal, with tensors", function()
    T.manual_seed(3)
    local mean, std = T.tensor { 0, 10, -5 }:expand(4000, 3), T.tensor { 1, 0, 2 }
    local x = T.normal(mean, std)
    assert.same({ 4000, 3 }, x:shape())
    local m, s = x:mean(1):totable(), x:std(1):totable()
    for k, want in ipairs { { 0, 1 }, { 10, 0 }, { -5, 2 } } do
      assert.is_true(math.abs(m[k] - want[1]) < 0.12 and math.abs(s[k] - want[2]) < 0.12, "column " .. k)
    end
    assert.same({ 3 }, T.normal(1.0, std):shape())
    assert.is_true(T.normal(std, 0.0):equal(std))
    refused("std must be >= 0", T.normal, mean, T.tensor { 1, -1, 1 })
    refused("must be a number or a floating tensor", T.normal, mean, "x")
    refused("unknown option 'dtype'", T.normal, mean, std, { dtype = "f64" })
  end)
  it("Embedding with max_norm", function()
    local e = nn.Embedding(4, 3, { max_norm = 1.0 })
    T.no_grad(function() e.weight:copy_(T.tensor { { 3, 0, 4 }, { 0.3, 0, 0.4 }, { 0, 2, 0 }, { 5, 0, 0 } }) end)
    local y = e(T.tensor({ 1, 2, 1 }, { dtype = "i64" }))
    assert.is_true(T.allclose(y, T.tensor { { 0.6, 0, 0.8 }, { 0.3, 0, 0.4 }, { 0.6, 0, 0.8 } }))
    assert.is_true(T.allclose(e.weight:detach(),
      T.tensor { { 0.6, 0, 0.8 }, { 0.3, 0, 0.4 }, { 0, 2, 0 }, { 5, 0, 0 } }))
    y:sum():backward()
    assert.same({ { 2, 2, 2 }, { 1, 1, 1 }, { 0, 0, 0 }, { 0, 0, 0 } }, e.weight.grad:totable())
    local w = T.tensor { { 3, 4 }, { 6, 8 } }
    local z = nn.F.embedding(T.tensor({ 0 }, { dtype = "i64" }), w, { max_norm = 3.5, norm_type = 1, index_base = 0 })
    assert.is_true(T.allclose(z, T.tensor { { 1.5, 2 } }))
    assert.same({ 6, 8 }, w[2]:totable())
    refused("max_norm", nn.Embedding, 3, 3, { max_norm = 0 })
  end)
  it("zero_grad of modules, and a field named type", function()
    local net = nn.Linear(2, 1)
    net(T.ones(1, 2)):sum():backward()
    local g = net.weight.grad
    net:zero_grad { set_to_none = false }
    assert.is_true(rawequal(g, net.weight.grad))
    assert.same({ { 0, 0 } }, g:totable())
    net:zero_grad()
    assert.is_nil(net.weight.grad)
    refused("unknown option", net.zero_grad, net, { set_to_non = true })

    local Typed = nn.class "Typed"
    function Typed:init()
      self.type = nn.Linear(2, 2)
    end
    function Typed:forward(x) return self.type(x) end
    local m = Typed()
    assert.same({ 1, 2 }, m(T.ones(1, 2)):shape())
    assert.truthy(tostring(m):find("Typed", 1, true))
    assert.equal(2, #m:parameters())
    m:load_state_dict(m:state_dict())
    assert.is_table(m:clone())
    assert.truthy(m:double():summary(T.ones({ 1, 2 }, { dtype = "f64" })))
  end)
  it("what is made of sizes with a trailing nil", function()
    for _, f in ipairs { T.zeros, T.ones, T.rand, T.randn, T.empty } do
      assert.same({ 2, 3 }, f(2, 3, nil):shape())
      assert.same({ 2, 3 }, f({ 2, 3 }, nil):shape())
    end
    assert.same({ 2 }, T.randint(1, 5, { 2 }, nil):shape())
    assert.same({ 2 }, T.uniform(0, 1, { 2 }, nil):shape())
    assert.same({ 2 }, T.normal(0, 1, { 2 }, nil):shape())
    refused("size 1 must be an integer, got nil", T.zeros, nil)
  end)
  it("chunks that nobody can hold", function()
    refused("too many", T.zeros(0, 3).chunk, T.zeros(0, 3), 1 << 40)
    assert.equal(3, #T.zeros(3):chunk(1 << 40))
    assert.equal(3, #T.zeros(3):chunk(math.maxinteger))
  end)
  it("errors name what makes the tensor", function()
    refused("randn: ", T.randn, { 1 << 62, 1 << 62 })
    refused("rand: ", T.rand, { -1 })
    refused("ones: ", T.ones, { 1 << 62, 1 << 62 })
  end)
end)

-- What computes, rearranges or resizes gives memory of its own, also where there is nothing to do; what is named a view
-- is one.
describe("results share memory", function()
  local function of(f, x)
    local y = f(x)
    y = type(y) == "table" and y[1] or y
    return y:shares_storage(x)
  end
  it("only where they are named views", function()
    local m, p, v = T.rand(4, 4), T.rand(1, 4, 4, 4), T.rand(4)
    local copies = {
      diag = { T.diag, m }, pixel_shuffle = { function(x) return x:pixel_shuffle(1) end, p },
      pixel_unshuffle = { function(x) return x:pixel_unshuffle(1) end, p },
      channel_shuffle = { function(x) return x:channel_shuffle(1) end, p },
      diff = { function(x) return x:diff { n = 0 } end, m }, einsum = { function(x) return T.einsum("i->i", x) end, v },
      einsum_diagonal = { function(x) return T.einsum("ii->i", x) end, m },
      einsum_transposed = { function(x) return T.einsum("ij->ji", x) end, m },
      unfold = { function(x) return nn.F.unfold(x, 1) end, p }, tile = { function(x) return x:tile { 1, 1 } end, m },
      repeat_interleave = { function(x) return x:repeat_interleave(1, 1) end, m },
      roll = { function(x) return x:roll(0, 1) end, m }, flip = { function(x) return x:flip { 1 } end, m },
      rot90 = { function(x) return x:rot90(0) end, m }, pad = { function(x) return x:pad { 0, 0 } end, m },
      cat = { function(x) return T.cat { x } end, m }, hstack = { function(x) return T.hstack { x } end, m },
      matrix_power = { function(x) return T.linalg.matrix_power(x, 1) end, m },
      tril = { function(x) return x:tril(9) end, m }, clamp = { function(x) return x:clamp(-9, 9) end, m },
      clone = { function(x) return x:clone() end, m }, block_diag = { function(x) return T.block_diag { x } end, m },
      floor = { function(x) return x:floor() end, T.arange(3) },
      round = { function(x) return x:round() end, T.arange(3) },
      nan_to_num = { function(x) return x:nan_to_num() end, T.arange(3) },
    }
    for _, mode in ipairs { "nearest", "bilinear", "bicubic", "area" } do
      copies["interpolate " .. mode] = { function(x)
        return nn.F.interpolate(x, { size = { 4, 4 }, mode = mode })
      end, p }
    end
    for name, case in pairs(copies) do assert.is_false(of(case[1], case[2]), name) end
    local views = {
      view = function(x) return x:view(16) end, reshape = function(x) return x:reshape(16) end,
      diagonal = function(x) return x:diagonal() end, transpose = function(x) return x:t() end,
      narrow = function(x) return x:narrow(1, 1, 2) end, select = function(x) return x:select(1, 1) end,
      chunk = function(x) return x:chunk(2) end, split = function(x) return x:split(2) end,
      expand = function(x) return x:unsqueeze(1):expand(3, 4, 4) end, movedim = function(x) return x:movedim(1, 2) end,
      unbind = function(x) return x:unbind() end, contiguous = function(x) return x:contiguous() end,
      to = function(x) return x:to("f32") end, detach = function(x) return x:detach() end,
    }
    for name, f in pairs(views) do assert.is_true(of(f, m), name) end
  end)
  it("and their gradients are right", function()
    local x = T.randn(1, 4, 2, 2, { dtype = "f64" }):requires_grad_()
    assert.is_true(T.gradcheck(function(a) return a:pixel_shuffle(1) * 2 end, { x }))
    assert.is_true(T.gradcheck(function(a) return T.diag(a:view(4, 4)) end, { x }))
    assert.is_true(T.gradcheck(function(a) return T.einsum("nchw->whcn", a) end, { x }))
  end)
end)
