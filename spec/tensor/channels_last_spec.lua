-- SPDX-License-Identifier: MIT
-- Memory formats: what is asked for by name has it on every device; on a device results follow, on the CPU those of
-- pointwise ops do (layouts_spec.lua), others are row-major. Shapes and values never depend on it.
local T = require "perilune"
local nn, F = T.nn, T.nn.functional

local function on_device() return T.zeros(1):device() ~= "cpu" end
local function strides(x) return table.concat(x:stride(), ",") end
local function format_of(x) return x:dim() == 4 and "channels_last" or "channels_last_3d" end

local function last(x) return x:detach():to { memory_format = format_of(x) } end

-- y is channels last on a device, dense on the CPU.
local function follows(y, what)
  what = (what or "") .. " " .. strides(y)
  if on_device() then
    assert.is_true(y:is_contiguous(format_of(y)), what)
    if y:numel() > y:size(1) * y:size(2) and y:size(2) > 1 then assert.is_false(y:is_contiguous(), what) end
  else
    assert.is_true(y:is_contiguous() or y:is_contiguous(format_of(y)), what)
  end
end

local function near(a, b, tol, what)
  assert.same(a:shape(), b:shape(), what)
  assert.equal(a:dtype(), b:dtype(), what)
  local d = a:numel() > 0 and (a:double() - b:double()):abs():max():item() or 0
  assert.is_true(d <= (tol or 0), ("%s: %g apart"):format(what or "", d))
end

-- f of row-major tensors and of the same channels last: results of 4 and 5 dims follow, all are alike, gradients too.
local function both(what, f, xs, tol)
  local rows, cols = {}, {}
  for i, x in ipairs(xs) do
    rows[i] = x:detach():clone()
    cols[i] = x:dim() > 3 and last(x) or x:detach():clone()
    if x:is_floating_point() then
      rows[i]:requires_grad_()
      cols[i]:requires_grad_()
    end
  end
  local a, b = f(table.unpack(rows)), f(table.unpack(cols))
  near(b, a, tol, what)
  if b:dim() > 3 then follows(b, what) end
  if not a.requires_grad then return end
  local dy = T.randn(a:shape()):to(a:dtype())
  a:backward(dy)
  b:backward(dy:dim() > 3 and last(dy) or dy)
  for i, x in ipairs(rows) do
    if x.grad then
      local name = ("%s: gradient %d"):format(what, i)
      near(cols[i].grad, x.grad, tol, name)
      if x:dim() > 3 then follows(cols[i].grad, name) end
    end
  end
end

describe("channels last", function()
  before_each(function() T.manual_seed(1) end)

  describe("by name", function()
    it("has that layout, with the same values", function()
      local x = T.randn(2, 3, 4, 5)
      local y = x:contiguous("channels_last")
      assert.equal("60,1,15,3", strides(y))
      assert.is_true(y:is_contiguous "channels_last")
      assert.is_false(y:is_contiguous())
      assert.is_false(x:is_contiguous "channels_last")
      assert.is_false(y:is_contiguous "channels_last_3d")
      assert.is_true(y:equal(x))
      assert.same(x:totable(), y:totable())
      assert.equal(x:to_string(), y:to_string())
      assert.is_true(rawequal(y:contiguous("channels_last"), y))
      assert.is_true(y:contiguous():is_contiguous())
      assert.is_true(y:contiguous("contiguous"):equal(x))
      assert.is_true(y:contiguous({ memory_format = "contiguous" }):is_contiguous())
      local v = T.randn(2, 3, 2, 2, 2)
      assert.equal("24,1,12,6,3", strides(v:contiguous "channels_last_3d"))
    end)

    it("comes with dtypes and devices", function()
      local x = T.randn(2, 3, 4, 5)
      local y = x:to { memory_format = "channels_last", dtype = "f64" }
      assert.equal("f64", y:dtype())
      assert.equal("60,1,15,3", strides(y))
      assert.equal("60,1,15,3", strides(x:to("f16", { memory_format = "channels_last" })))
      assert.is_true(rawequal(x, x:to { memory_format = "preserve" }))
      assert.is_true(rawequal(y, y:to { memory_format = "channels_last" }))
      assert.is_true(y:to({ memory_format = "contiguous" }):is_contiguous())
      assert.equal("60,1,15,3", strides(y:to(x:device())))
      assert.equal("60,1,15,3", strides(y:to "cpu"))
    end)

    it("is kept by clones and what is made like it", function()
      local y = T.randn(2, 3, 4, 5):contiguous("channels_last")
      for name, z in pairs { clone = y:clone(), detached = y:detach(), zeros = T.zeros_like(y), empty = T.empty_like(y),
        ones = T.ones_like(y, { dtype = "f64" }), leaf = T.zeros_like(y, { requires_grad = true }) } do
        assert.equal("60,1,15,3", strides(z), name)
      end
      local leaf = T.zeros_like(y, { requires_grad = true })
      assert.is_true(leaf.requires_grad)
      leaf:sum():backward()
      assert.is_truthy(leaf.grad)
      assert.is_true(T.zeros_like(y, { memory_format = "contiguous" }):is_contiguous())
      T.manual_seed(7)
      local a = T.rand_like(y)
      T.manual_seed(7)
      near(a, T.rand_like(y:contiguous()))
    end)

    it("may be open where sizes are 1", function()
      local x = T.randn(2, 3, 1, 1)
      assert.is_true(x:is_contiguous "channels_last")
      assert.is_true(rawequal(x, x:contiguous "channels_last"))
      local y = x:to { memory_format = "channels_last" }
      assert.equal("3,1,3,3", strides(y))
      assert.is_true(y:is_contiguous() and y:is_contiguous "channels_last")
      assert.is_true(y:equal(x))
      local one = T.randn(2, 1, 3, 3)
      assert.is_true(one:is_contiguous "channels_last")
      assert.equal("9,1,3,1", strides(one:to { memory_format = "channels_last" }))
      assert.is_true(T.zeros(0, 3, 4, 5):is_contiguous "channels_last")
      assert.same({ 0, 3, 4, 5 }, T.zeros(0, 3, 4, 5):to({ memory_format = "channels_last" }):shape())
    end)

    it("says what is wrong", function()
      assert.has_error(function() T.randn(3):contiguous("channels_last") end)
      for _, f in ipairs {
        function() T.randn(2, 3, 4, 5):contiguous("nhwc") end,
        function() T.randn(2, 3, 4, 5):to { memory_format = 3 } end,
        function() nn.Linear(2, 2):to { memory_format = "nhwc" } end,
        function() T.randn(2, 3, 4, 5):is_contiguous("channels") end,
      } do
        local ok, message = pcall(f)
        assert.is_false(ok)
        assert.matches("memory format is wanted", message)
      end
      local _, message = pcall(function() T.randn(2, 3, 4):contiguous("channels_last") end)
      assert.matches("f32%[2,3,4%] has 3 dims", message)
    end)

    it("passes gradients", function()
      local x = T.randn(2, 3, 4, 5):requires_grad_()
      local dy = T.randn(2, 3, 4, 5)
      local y = x * 2
      y:contiguous("channels_last"):backward(dy)
      near(x.grad, dy * 2)
      x.grad = nil
      x:to({ memory_format = "channels_last", dtype = "f64" }):backward(dy:double())
      near(x.grad, dy)
    end)

    it("converts networks", function()
      local net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
      local before = net[1].weight:clone()
      net:to { memory_format = "channels_last" }
      assert.equal("27,1,9,3", strides(net[1].weight))
      assert.is_true(net[1].weight.requires_grad)
      assert.is_true(net[4].weight:is_contiguous())
      near(net[1].weight:detach(), before:detach())
      net:to { memory_format = "channels_last", dtype = "f64" }
      assert.equal("f64", net[1].weight:dtype())
      assert.equal("27,1,9,3", strides(net[1].weight))
      net:to { memory_format = "contiguous" }
      assert.is_true(net[1].weight:is_contiguous())
      local v = nn.Conv3d(2, 4, 3):to { memory_format = "channels_last_3d" }
      assert.equal("54,1,18,6,2", strides(v.weight))
      assert.is_true(nn.Conv3d(2, 4, 3):to({ memory_format = "channels_last" }).weight:is_contiguous())
    end)
  end)

  describe("results", function()
    it("of pointwise ops", function()
      local x, y = T.randn(2, 3, 4, 5), T.randn(2, 3, 4, 5)
      both("add", function(a, b) return a + b end, { x, y })
      both("relu", function(a) return a:relu() end, { x })
      both("number", function(a) return 2 - a * 3 end, { x })
      both("channels", function(a, s) return a * s end, { x, T.randn(3, 1, 1) }, 1e-5)
      both("rows", function(a, s) return a * s end, { x, T.randn(2, 1, 4, 1) }, 1e-5)
      both("last dim", function(a, s) return a * s end, { x, T.randn(5) }, 1e-5)
      both("cast", function(a) return a:to("f64") end, { x })
      both("half", function(a) return a:to("bf16") end, { x })
      both("compare", function(a, b) return a:gt(b) end, { x, y })
      both("where", function(a, b) return T.where(a:gt(0), a, b) end, { x, y })
      both("clamp", function(a) return a:clamp(-0.5, 0.5) end, { x })
      both("gelu", function(a) return F.gelu(a) end, { x })
      both("fill", function(a) return a:masked_fill(a:gt(0), 3) end, { x })
      both("lerp", function(a, b) return a:lerp(b, 0.3) end, { x, y }, 1e-6)
      both("addcmul", function(a, b) return T.addcmul(a, a, b, { value = 0.5 }) end, { x, y }, 1e-6)
      both("clone", function(a) return (a + 1):clone() end, { x })
      both("5-d", function(a, b) return a * b end, { T.randn(2, 3, 2, 3, 2), T.randn(2, 3, 2, 3, 2) })
      both("large", function(a, b) return (a + b):tanh() end, { T.randn(3, 17, 19, 13), T.randn(3, 17, 19, 13) }, 1e-6)
      both("integers", function(a) return (a * 10):to("i32") end, { x })
      follows(last(x) + T.randn(2, 3, 4, 5), "one of two")
      follows(T.randn(2, 3, 4, 5) + last(x), "the other")
    end)

    it("of pointwise ops in place and into others", function()
      local x, y = T.randn(2, 3, 4, 5), T.randn(2, 3, 4, 5)
      local a = last(x)
      a:add_(y):mul_(last(y)):relu_()
      near(a, ((x + y) * y):relu(), 1e-6)
      assert.equal("60,1,15,3", strides(a))
      local out = T.zeros(2, 3, 4, 5)
      T.add(last(x), last(y), { out = out })
      assert.is_true(out:is_contiguous())
      near(out, x + y)
      local other = T.zeros(2, 3, 4, 5):to { memory_format = "channels_last" }
      T.add(x, y, { out = other })
      assert.equal("60,1,15,3", strides(other))
      near(other, x + y)
      other:copy_(x)
      near(other, x)
      T.zeros(2, 3, 4, 5):copy_(other)
      other:fill_(3)
      assert.equal(3 * 120, other:sum():item())
    end)

    it("of convolutions", function()
      local x, w, b = T.randn(2, 4, 7, 6), T.randn(6, 4, 3, 3), T.randn(6)
      both("conv2d", function(a, k, c) return F.conv2d(a, k, c, { padding = 1 }) end, { x, w, b }, 2e-4)
      both("stride", function(a, k) return F.conv2d(a, k, nil, { stride = 2, dilation = 2, padding = 2 }) end, { x, w },
        2e-4)
      both("groups", function(a, k) return F.conv2d(a, k, nil, { groups = 2 }) end, { x, T.randn(6, 2, 3, 3) }, 2e-4)
      both("depthwise", function(a, k) return F.conv2d(a, k, nil, { groups = 4 }) end, { x, T.randn(4, 1, 3, 3) }, 2e-4)
      both("1x1", function(a, k) return F.conv2d(a, k) end, { x, T.randn(6, 4, 1, 1) }, 2e-4)
      both("one channel", function(a, k) return F.conv2d(a, k) end, { T.randn(2, 1, 7, 6), T.randn(6, 1, 3, 3) }, 2e-4)
      both("transposed", function(a, k, c) return F.conv_transpose2d(a, k, c, { stride = 2 }) end,
        { x, T.randn(4, 6, 3, 3), b }, 2e-4)
      both("conv3d", function(a, k) return F.conv3d(a, k, nil, { padding = 1 }) end,
        { T.randn(2, 3, 4, 5, 4), T.randn(4, 3, 3, 3, 3) }, 2e-4)
      both("f64", function(a, k) return F.conv2d(a, k) end, { x:double(), w:double() }, 1e-12)
      follows(F.conv2d(x, last(w)), "weight alone")
      follows(F.conv2d(last(x), w), "input alone")
      near(F.conv2d(last(x), w), F.conv2d(x, w), 2e-4)
      near(F.conv2d(last(x):select(1, 1), last(w)), F.conv2d(x:select(1, 1), w), 2e-4, "no batch")
      local part = w:narrow(2, 2, 2)
      near(F.conv2d(last(x):narrow(2, 2, 2), part), F.conv2d(x:narrow(2, 2, 2), part), 2e-4, "a part")
    end)

    it("of pooling", function()
      local x, v = T.randn(2, 3, 7, 6), T.randn(2, 3, 5, 4, 6)
      both("max", function(a) return F.max_pool2d(a, 3, { stride = 2, padding = 1 }) end, { x })
      both("dilated", function(a) return F.max_pool2d(a, 2, { dilation = 2 }) end, { x })
      both("max ceil", function(a) return F.max_pool2d(a, 2, { ceil_mode = true }) end, { x })
      both("avg", function(a) return F.avg_pool2d(a, 3, { stride = 2, padding = 1 }) end, { x }, 1e-6)
      both("avg without padding", function(a)
        return F.avg_pool2d(a, 3, { stride = 2, padding = 1, count_include_pad = false })
      end, { x }, 1e-6)
      both("adaptive", function(a) return F.adaptive_avg_pool2d(a, { 3, 2 }) end, { x }, 1e-6)
      both("one", function(a) return F.adaptive_avg_pool2d(a, 1) end, { x }, 1e-6)
      both("adaptive max", function(a) return F.adaptive_max_pool2d(a, { 3, 2 }) end, { x })
      both("3-d max", function(a) return F.max_pool3d(a, 2) end, { v })
      both("3-d avg", function(a) return F.avg_pool3d(a, 2) end, { v }, 1e-6)
      both("3-d adaptive", function(a) return F.adaptive_avg_pool3d(a, 2) end, { v }, 1e-6)
      local a, i = F.max_pool2d(last(x), 2, { return_indices = true })
      local b, j = F.max_pool2d(x, 2, { return_indices = true })
      near(a, b)
      near(i, j)
      near(F.max_pool2d(last(x):select(1, 2), 2), F.max_pool2d(x:select(1, 2), 2), 0, "no batch")
      near(F.max_pool3d(last(x), 2), F.max_pool3d(x, 2), 0, "no batch, 3-d")
    end)

    it("of batch norm", function()
      for _, dtype in ipairs { "f32", "f64", "bf16" } do
        for _, shape in ipairs { { 4, 3, 5, 6 }, { 3, 16, 4, 4 }, { 8, 40, 9, 9 }, { 2, 264, 3, 3 }, { 2, 8, 2, 3, 4 },
          { 5, 4, 1, 1 } } do
          local x, c = T.randn(shape):to(dtype), shape[2]
          local tol = dtype == "f64" and 1e-12 or dtype == "f32" and 2e-5 or 0.1
          local w, b = T.randn(c), T.randn(c)
          local name = ("batch norm %s %s"):format(dtype, table.concat(shape, "x"))
          both(name, function(a, p, q) return F.batch_norm(a, nil, nil, p, q, { training = true }) end,
            { x, w:to(dtype), b:to(dtype) }, tol)
          local mean, var = T.randn(c), T.rand(c) + 0.5
          both(name .. " eval", function(a) return F.batch_norm(a, mean, var) end, { x }, tol)
        end
      end
      local net = nn.BatchNorm2d(3)
      local other = nn.BatchNorm2d(3)
      local x = T.randn(4, 3, 5, 6)
      net(x)
      other(last(x))
      near(other.running_mean, net.running_mean, 1e-6)
      near(other.running_var, net.running_var, 1e-6)
    end)

    it("of cat and dropout, and of others that need not follow", function()
      local x, y = T.randn(2, 3, 4, 5), T.randn(2, 6, 4, 5)
      both("cat", function(a, b) return T.cat({ a, b }, 2) end, { x, y })
      both("cat of samples", function(a, b) return T.cat({ a, b }, 1) end, { x, T.randn(1, 3, 4, 5) })
      both("cat of rows", function(a, b) return T.cat({ a, b }, 3) end, { x, T.randn(2, 3, 1, 5) })
      T.manual_seed(3)
      local a = F.dropout(x, 0.5)
      T.manual_seed(3)
      near(F.dropout(last(x), 0.5), a)
      for name, f in pairs {
        mean = function(a_) return a_:mean({ 3, 4 }) end, sum = function(a_) return a_:sum({ 1, 3, 4 }) end,
        total = function(a_) return a_:sum() end, row = function(a_) return a_:sum(4, { keepdim = true }) end,
        column = function(a_) return a_:mean(2, { keepdim = true }) end, samples = function(a_) return a_:mean(1) end,
        to = function(a_) return (a_ + T.zeros(3, 1, 1, { requires_grad = true })):detach() end,
        flatten = function(a_) return a_:flatten(2) end, softmax = function(a_) return a_:softmax(2) end,
        permute = function(a_) return a_:permute(1, 3, 4, 2) end, group = function(a_) return F.group_norm(a_, 3) end,
        pad = function(a_) return F.pad(a_, { 1, 2, 0, 1 }) end, max = function(a_) return a_:amax(2) end,
        cumsum = function(a_) return a_:cumsum(2) end, layer = function(a_) return F.layer_norm(a_, { 4, 5 }) end,
        upsample = function(a_) return F.interpolate(a_, { scale_factor = 2, mode = "nearest" }) end,
        bilinear = function(a_) return F.interpolate(a_, { scale_factor = 2, mode = "bilinear" }) end,
        shuffle = function(a_) return T.pixel_unshuffle(a_:narrow(4, 1, 4), 2) end,
        select = function(a_) return a_:index_select(2, T.arange(2)) end, flip = function(a_) return a_:flip(4) end,
        sort = function(a_) return (a_:sort(2)) end, roll = function(a_) return a_:roll(2, 3) end,
        tri = function(a_) return a_:tril() end, unfold = function(a_) return F.unfold(a_, 2) end,
      } do
        local b, c = f(x), f(last(x))
        near(c, b, 1e-5, name)
      end
    end)

    it("of nothing", function()
      local x = T.zeros(0, 3, 4, 5):to { memory_format = "channels_last" }
      assert.same({ 0, 3, 4, 5 }, (x + 1):relu():shape())
      assert.same({ 0, 6, 2, 3 }, F.conv2d(x, last(T.randn(6, 3, 3, 3))):shape())
      assert.same({ 0, 3, 2, 2 }, F.max_pool2d(x, 2):shape())
    end)
  end)

  describe("views", function()
    it("of such tensors are what they are of others", function()
      local x = T.randn(4, 6, 5, 7)
      local y = last(x)
      for name, f in pairs {
        narrow = function(a) return a:narrow(2, 2, 3) end, select = function(a) return a:select(3, 2) end,
        slice = function(a) return a:slice(4, 1, 3, 2) end, transpose = function(a) return a:transpose(2, 4) end,
        expand = function(a) return a:narrow(2, 1, 1):expand(4, 3, 5, 7) end,
        reshape = function(a) return a:reshape(4, -1) end,
        diagonal = function(a) return a:diagonal() end,
      } do
        near(f(y) * 2, f(x) * 2, 0, name)
        near(f(y):relu():sum(), f(x):relu():sum(), 1e-4, name)
      end
      local part = y:narrow(1, 2, 2)
      assert.is_true(part:is_contiguous "channels_last")
      assert.is_false(y:narrow(2, 2, 3):is_contiguous "channels_last")
      near(F.conv2d(y:narrow(2, 2, 3), T.ones(2, 3, 3, 3)), F.conv2d(x:narrow(2, 2, 3), T.ones(2, 3, 3, 3)), 1e-4)
    end)

    it("can be written, with gradients", function()
      local x, v = T.randn(2, 3, 4, 5):requires_grad_(), T.randn(2, 4, 5):requires_grad_()
      local function run(a, lay)
        local y = lay(a * 2)
        local z = y:narrow(2, 1, 2)
        y:select(2, 2):copy_(v * 3)
        z:mul_(2)
        y:narrow(4, 2, 2):add_(1)
        return (y * y).sum and (y * y):sum() + z:sum()
      end
      local grads = {}
      for i, lay in ipairs { function(a) return a end, function(a) return a:contiguous("channels_last") end } do
        x.grad, v.grad = nil, nil
        local loss = run(x, lay)
        loss:backward()
        grads[i] = { x.grad:clone(), v.grad:clone(), loss:detach() }
      end
      for i = 1, 3 do near(grads[2][i], grads[1][i], 1e-3) end
    end)

    it("are saved and loaded by value", function()
      local path = os.tmpname()
      local y = last(T.randn(2, 3, 4, 5))
      T.save(path, { y = y, part = y:narrow(2, 2, 2) })
      local back = T.load(path)
      os.remove(path)
      assert.is_true(back.y:is_contiguous())
      near(back.y:to(y:device()), y)
      near(back.part:to(y:device()), y:narrow(2, 2, 2))
      local net = nn.Conv2d(3, 4, 3):to { memory_format = "channels_last" }
      local other = nn.Conv2d(3, 4, 3):to { memory_format = "channels_last" }
      other:load_state_dict(net:state_dict())
      assert.equal("27,1,9,3", strides(other.weight))
      near(other.weight:detach(), net.weight:detach())
    end)
  end)

  describe("training", function()
    local function block()
      T.manual_seed(11)
      local Block = nn.class("Block")
      function Block:init(c)
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, { padding = 1, bias = false }), nn.BatchNorm2d(c), nn.ReLU(),
          nn.Conv2d(c, c, 3, { padding = 1, bias = false }), nn.BatchNorm2d(c))
      end
      function Block:forward(x) return F.relu(self.body(x) + x) end
      local Net = nn.class("Net")
      function Net:init()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(),
          nn.MaxPool2d(3, { stride = 2, padding = 1 }))
        self.block = Block(8)
        self.head = nn.Linear(8, 5)
      end
      function Net:forward(x) return self.head(self.block(self.stem(x)):mean({ 3, 4 })) end
      return Net()
    end

    local function train(format, amp, jit)
      local net = block()
      if format then net:to { memory_format = format } end
      local opt = T.optim.SGD(net:parameters(), { lr = 0.05, momentum = 0.9 })
      T.manual_seed(5)
      local x, y = T.randn(4, 3, 9, 9), T.randint(1, 5, { 4 })
      if format then x = x:to { memory_format = format } end
      local function step(a, b)
        opt:zero_grad()
        local loss
        if amp then
          T.autocast("bf16", function() loss = F.cross_entropy(net(a), b) end)
        else
          loss = F.cross_entropy(net(a), b)
        end
        loss:backward()
        opt:step()
        return loss:detach()
      end
      local run = jit and T.jit(step) or step
      local losses = {}
      for i = 1, 6 do losses[i] = run(x, y):item() end
      return losses, net
    end

    local function compare(amp, jit, tol)
      local a = train(nil, amp, jit)
      local b, net = train("channels_last", amp, jit)
      for i = 1, #a do assert.is_true(math.abs(a[i] - b[i]) < tol, ("step %d: %g and %g"):format(i, a[i], b[i])) end
      assert.is_true(b[#b] < b[1])
      assert.is_true(net.block.body[1].weight:is_contiguous "channels_last")
      if not jit then follows(net.block.body[1].weight.grad, "gradient of a weight") end
    end

    it("goes as it does row-major", function() compare(false, false, 2e-3) end)
    it("under autocast too", function() compare(true, false, 0.08) end)
    it("compiled too", function() compare(false, true, 2e-3) end)
    it("compiled and under autocast", function() compare(true, true, 0.08) end)

    it("has second gradients", function()
      local x, w = T.randn(2, 3, 5, 5):double(), T.randn(4, 3, 3, 3):double()
      local out = {}
      for i, lay in ipairs { function(a) return a:clone() end, last } do
        local a, k = lay(x):requires_grad_(), lay(w):requires_grad_()
        local y = F.avg_pool2d(F.conv2d(a, k, nil, { padding = 1 }):tanh(), 2)
        local g = T.grad_of(y:pow(2):sum(), { a, k }, { create_graph = true })
        local second = T.grad_of((g[1] * g[1]):sum() + (g[2] * g[2]):sum(), { a, k })
        out[i] = { g[1]:detach(), g[2]:detach(), second[1], second[2] }
      end
      for i = 1, 4 do near(out[2][i], out[1][i], 1e-9) end
    end)
  end)

  it("goes through vmap and jit", function()
    local x, w = T.randn(3, 2, 3, 5, 5), T.randn(4, 3, 3, 3)
    local f = T.vmap(function(a) return F.conv2d(a, last(w)):relu() end)
    near(f(x), T.vmap(function(a) return F.conv2d(a, w):relu() end)(x), 1e-4)
    local y = T.randn(2, 3, 5, 5)
    local function g(a) return (F.max_pool2d(F.conv2d(a, w):relu(), 2) + 1):flatten(2) * 2 end
    local j = T.jit(g)
    for _ = 1, 5 do
      near(j(last(y)), g(y), 1e-4)
      near(j(y), g(y), 1e-4)
    end
  end)

  it("goes through what jit joins, views, and writes", function()
    local x, y, w = T.randn(2, 3, 6, 4), T.randn(2, 3, 6, 4), T.randn(4, 3, 3, 3)
    local row, c, scale = T.randn(4), T.randn(3, 1, 1), T.randn(2, 3, 6, 4)
    for name, f in pairs {
      joined = function(a, b) return ((a + b):relu() * 2 - a):tanh() end,
      parameter = function(a) return (a * last(scale)):relu() + 1 end,
      rows = function(a, b) return (a * row + b):relu() end,
      channels = function(a, b) return (a * c + b):relu() * 3 end,
      softmax = function(a) return (a * 2):softmax(4) + a end,
      asked = function(a) return a:contiguous("channels_last") * 2 end,
      asked_back = function(a) return (a * 2):contiguous() + 1 end,
      conv = function(a) return F.conv2d(a, last(w), nil, { padding = 1 }):relu() * 2 + 1 end,
      view = function(a) return F.conv2d(a, last(w)):relu():contiguous():view(2, -1) * 2 end,
      strided = function(a) return (a:relu() * 2):contiguous():as_strided({ 3, 4 }, { 4, 1 }, 2) end,
      permuted = function(a) return (a * 2):permute(1, 3, 4, 2):reshape(-1, 3):relu() end,
      written = function(a)
        local z = a * 2
        z:narrow(2, 2, 1):add_(1)
        z:select(4, 2):zero_()
        return z:relu() + z
      end,
      pooled = function(a) return F.max_pool2d(a:relu(), 2) + F.avg_pool2d(a, 2) end,
      dropped = function(a) return F.dropout(a, 0.5, false) * 2 end,
    } do
      local j = T.jit(f)
      local want = f(x, y)
      for i = 1, 5 do
        near(j(last(x), last(y)), want, 1e-4, name)
        if i > 3 then near(j(x, last(y)), want, 1e-4, name) end
        near(j(x, y), want, 1e-4, name)
      end
      local once = T.jit(f)
      for _ = 1, 5 do near(once(last(x), last(y)), want, 1e-4, name) end
      if ("joined parameter asked conv pooled"):find(name, 1, true) and on_device() then
        follows(once(last(x), last(y)), name)
      end
    end
  end)
end)
