-- SPDX-License-Identifier: MIT
-- Errors name what the caller wrote: the form in place, the function rather than the op inside it, and a way out.

local T = require "perilune"
local nn = T.nn
local fails = require("spec.support.near").fails

describe("a name looked for in the wrong place", function()
  local hints = require "perilune.help.hints"

  it("is found by T.help and named where nil is called", function()
    local function told(kind, name)
      local message = ("x.lua:1: attempt to call a nil value (%s '%s')"):format(kind, name)
      return hints.told(message):sub(#message + 1)
    end
    assert.equal("; is T.nn.utils.functional_call meant?", told("field", "functional_call"))
    assert.equal("; is T.data.transforms.random_horizontal_flip meant?", told("field", "RandomHorizontalFlip"))
    assert.equal("; is T.nn.F.cosine_similarity meant?", told("field", "cosine_similarity"))
    assert.equal("; is x:totable() meant?", told("method", "numpy"))
    assert.equal("; is T.relu meant?", told("global", "relu"))
    assert.equal("", told("local", "relu"))
    assert.equal("", told("field", "no_such_thing"))
    assert.equal("something else", hints.told "something else")
    assert.equal("There is no transforms.Resize; this is T.data.transforms.resize.\n"
      .. T.help_text "data.transforms.resize", T.help_text "transforms.Resize")
    assert.truthy(T.help_text "functional_call":find(T.help_text "nn.utils.functional_call", 1, true))
  end)
end)

describe("functions of nn.F made of ops", function()
  it("speak in their own name", function()
    local F = nn.F
    local x, wide = T.rand(4, 3), T.rand(7, 9)
    fails(": cosine_similarity: argument dim is 0", F.cosine_similarity, x, x, { dim = 0 })
    fails(": poisson_nll_loss: f32[4,3] does not broadcast", F.poisson_nll_loss, x, wide)
    fails(": soft_margin_loss: y must be a tensor", F.soft_margin_loss, x, "a")
    fails(": gumbel_softmax: dim 9", F.gumbel_softmax, x, { dim = 9 })
    for name, argument in pairs { normalize = "x", prelu = "x", glu = "x", dropout2d = "x", embedding_bag = "ids" } do
      fails((": %s: %s must be a tensor, got \"a\""):format(name, argument), F[name], "a")
    end
    local net = nn.Sequential(nn.Flatten(), nn.Softmin(9))
    fails(": softmin: dim 9 is out of range", net, x)
  end)
end)

describe("a loss of tensors of different shapes", function()
  it("is told of once, with the place", function()
    local said, old = {}, io.stderr
    local F = dofile(package.searchpath("perilune.nn.functional", package.path)) -- anew: once for each
    rawset(io, "stderr", { write = function(_, text) said[#said + 1] = text end })
    local ok, why = pcall(function()
      for _ = 1, 2 do F.mse_loss(T.ones(4, 1), T.ones(4)) end
      F.l1_loss(T.ones(4), T.ones(4))
      F.l1_loss(T.ones(4), T.tensor(1))
      F.huber_loss(T.ones(2, 3), T.ones(3))
    end)
    rawset(io, "stderr", old)
    assert.is_true(ok, why)
    assert.equal(2, #said)
    local place = "messages_spec.lua:%d+: mse_loss: f32%[4,1%] and the target f32%[4%] are compared as %[4,4%]"
    assert.truthy(said[1]:find(place), said[1])
    assert.truthy(said[2]:find("huber_loss: f32[2,3] and the target f32[3] are compared as [2,3]", 1, true), said[2])
  end)
end)

describe("messages name", function()
  it("forms in place with their underscore", function()
    local x = T.ones(2)
    fails(": add_: the result is f32[3,2], it cannot be written into f32[2]", function() x:add_(T.ones(3, 2)) end)
    fails(": mul_: f32[3] does not broadcast", function() x:mul_(T.ones(3)) end)
    fails(": sub_: argument y", function() x:sub_("x") end)
    fails(": exp_: the result f32[2] cannot be stored in i64[2]", function() T.arange(2):exp_() end)
    fails(": sqrt_: f32[2] is a leaf that requires a gradient", function() T.ones(2):requires_grad_():sqrt_() end)
    fails(": add: argument y", function() x:add("x") end)
    fails(": uniform_: ", function() x:uniform_("x") end)
  end)

  it("max and min whatever form was meant", function()
    local x = T.ones(2, 2)
    for _, name in ipairs { "max", "min" } do
      fails(": " .. name .. ": argument dim must be an integer", function() x[name](x, "x") end)
      fails(": " .. name .. ": dim 3 is out of range", function() x[name](x, 3) end)
      fails(": " .. name .. ": argument keepdim must be true or false", function() x[name](x, 1, { keepdim = 3 }) end)
      fails(": " .. name .. ": ", function() return T[name](T.zeros(0)) end)
    end
  end)

  it("T.stack where a table holds tensors", function()
    fails("got f32[2]; T.stack joins tensors", function() return T.tensor { T.ones(2), T.ones(2) } end)
    assert.same({ 1, 2 }, T.tensor({ T.tensor(1), T.tensor(2) }):totable()) -- numbers of one element still do
  end)

  it("functions made of others", function()
    fails(": trapezoid: dim", function() return T.ones(3):trapezoid { dim = 4 } end)
    fails(": cov: x is missing", function() return T.cov() end)
    fails(": quantile: unknown option 'keepdims'", function() return T.ones(3):quantile(0.5, { keepdims = true }) end)
    fails(": linalg.lu: A must be f32 or f64", function() return T.linalg.lu(T.ones(2, 2, { dtype = "i64" })) end)
    local gone = T.ones(3)
    gone:free()
    fails(": cov: x must be a tensor that was not freed, got a freed tensor", function() return T.cov(gone) end)
  end)
end)

describe("a parameter", function()
  it("is replaced by nn.Parameter or nil alone", function()
    local l = nn.Linear(2, 3)
    fails("Linear: 'weight' is a parameter; assign nn.Parameter(t) or nil, got a tensor [3,2]",
      function() l.weight = T.ones(3, 2) end)
    fails("'bias' is a parameter", function() l.bias = 7 end)
    fails("'weight' is a parameter", function() l:register_buffer("weight", T.ones(1)) end)
    assert.equal(2, #l:parameters())
    l.weight = nn.Parameter(T.ones(3, 2))
    l.bias = nil
    assert.equal(1, #l:parameters())
    assert.same({ 2, 2, 2 }, l(T.ones(2)):totable())
    fails("'bias' is a parameter", function() l.bias = T.ones(3) end)
    l.bias = nn.Parameter(T.ones(3))
    assert.equal(2, #l:parameters())
    assert.same({ 3, 3, 3 }, l(T.ones(2)):totable())
  end)
end)

it("cross_entropy and optimizers name the usual slips", function()
  fails("class numbers are integers", nn.F.cross_entropy, T.ones(2, 3), T.ones(2))
  fails("pass net:parameters()", T.optim.SGD, nn.Linear(2, 2), { lr = 1 })
end)

describe("rules and hooks of one's own", function()
  local x
  before_each(function() x = T.ones(2):requires_grad_() end)
  after_each(function() x = nil end)
  local function rule(forward, name)
    return T.custom { name = name, forward = forward, backward = function(_, d) return d end }
  end
  it("are told what forward may return, save and be called", function()
    fails("forward must return 1 to 56 tensors, got 300 values", function()
      rule(function(_, a)
        local list = {}
        for i = 1, 300 do list[i] = a * 1 end
        return table.unpack(list)
      end)(x)
    end)
    fails("forward must return 1 to 56 tensors, got 0 values", function() rule(function() end)(x) end)
    fails("forward must return tensors, result 2 is an integer", function()
      rule(function(_, a) return a * 1, 3 end)(x)
    end)
    fails("name must be a string, got an integer", rule, function(_, a) return a * 1 end, 3)
    fails("ctx:save: argument #2 must be a tensor or nil, got string", function()
      rule(function(ctx, a)
        ctx:save(a, "x")
        return a * 1
      end)(x)
    end)
    local context
    rule(function(ctx, a)
      context = ctx
      ctx:save(a)
      return a * 1
    end)(x)
    fails("what forward saved is there while backward of this call runs", function() context:saved() end)
  end)
  it("are told which gradient a hook must return", function()
    x:register_hook(function() return T.ones(3) end)
    fails("a hook returned f32[3] for a gradient f32[2]", function() (x * 2):sum():backward() end)
  end)
end)

describe("dtypes by PyTorch's names", function()
  it("are those of the short ones", function()
    for long, short in pairs { float = "f32", float32 = "f32", double = "f64", float64 = "f64", half = "f16",
      float16 = "f16", bfloat16 = "bf16", long = "i64", int64 = "i64", int = "i32", int32 = "i32", short = "i16",
      int16 = "i16", char = "i8", int8 = "i8", byte = "u8", uint8 = "u8", boolean = "bool", bool = "bool" } do
      assert.equal(short, T.zeros(1, { dtype = long }):dtype(), long)
      assert.equal(short, T.ones(1):to(long):dtype(), long)
    end
    fails("dtype", T.zeros, 1, { dtype = "float31" })
  end)
end)
