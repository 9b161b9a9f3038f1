-- SPDX-License-Identifier: MIT
-- Saving and loading graphs: the loaded one prints, plans and computes the same; damaged files are refused.

local T = require "perilune"
local nn = T.nn

local function with_file(f)
  local path = os.tmpname()
  local ok, err = pcall(f, path)
  os.remove(path)
  os.remove(path .. ".safetensors")
  if not ok then error(err, 0) end
end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("a")
  f:close()
  return text
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

local function training()
  T.manual_seed(6)
  local net = nn.Sequential(nn.Conv2d(1, 3, 3, { padding = 1 }), nn.BatchNorm2d(3), nn.GELU(), nn.Dropout(0.25),
    nn.Flatten(), nn.Linear(48, 5))
  local g = T.graph()
  local x, y = g:input("x", { 2, 1, 4, 4 }), g:input("y", { 2 }, { dtype = "i64" })
  local loss = g:trace(function()
    return nn.F.cross_entropy(net(x) * 1.5, y) + T.full({}, 0.1) * net:parameters()[1]:square():sum()
  end)
  g:name(loss, "the loss, named")
  g:outputs { loss = loss, table.unpack(g:gradient(loss, net:parameters(), { mirror = "mincut", seeded = true })) }
  return g, net
end

describe("a saved graph", function()
  it("loads as the same program", function()
    with_file(function(path)
      local g = training()
      assert.is_true(T.save_graph(path, g))
      local h, tensors = T.load_graph(path)
      assert.is_table(h, tensors)
      assert.is_table(tensors)
      assert.is_true(h:verify())
      local function ops(graph)
        local list = {}
        for i, node in ipairs(graph:nodes()) do list[i] = node.name .. " " .. node.op .. " " .. node.stage end
        return list
      end
      assert.same(ops(g), ops(h))
      local p, q = g:plan(), h:plan()
      assert.same({ p.stash_bytes, p.recomputed, p.peak_bytes }, { q.stash_bytes, q.recomputed, q.peak_bytes })
      assert.is_true(p.recomputed > 0)
      for _ = 1, 2 do
        local feed = { x = T.randn(2, 1, 4, 4), y = T.tensor({ 1, 5 }, { dtype = "i64" }) }
        T.manual_seed(8)
        local a = g:run(feed)
        T.manual_seed(8)
        local b = h:run(feed)
        assert.is_true(a.loss:equal(b.loss))
        for i = 1, #a do assert.is_true(a[i]:equal(b[i]), "gradient " .. i) end
      end
    end)
  end)

  it("keeps odd numbers, names and attributes", function()
    with_file(function(path)
      local g = T.graph()
      local x = g:input("x y%\n", { 2, 3 })
      local y = x:masked_fill(x:gt(0.1), -math.huge):clamp(-1e300, 0.1)
      g:outputs { y:sum(1, { keepdim = true }), y[{ {}, { 1, 2 } }], T.where(x:gt(0), x, 0 / 0) }
      assert.is_true(T.save_graph(path, g))
      local h = assert(T.load_graph(path))
      local feed = { ["x y%\n"] = T.tensor { { 1, -2, 0 }, { 0.05, 3, -1 } } }
      local a, b = g:run(feed), h:run(feed)
      for i = 1, 2 do assert.is_true(a[i]:equal(b[i])) end
      assert.equal(a[3]:to_string(), b[3]:to_string())
    end)
  end)

  it("is refused when damaged, line by line, without a crash", function()
    with_file(function(path)
      assert.is_true(T.save_graph(path, (training())))
      local text = read(path)
      local lines = {}
      for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
      local function refused(changed, words)
        write(path, changed)
        local g, message, code = T.load_graph(path)
        if not words then return end
        assert.is_nil(g)
        assert.equal("format", code)
        assert.is_truthy(message:find(words, 1, true), message)
      end
      refused("hello\n", "no saved graph")
      refused(text:sub(1, #text // 2), "")
      refused(text:gsub("conv2d", "conv9d"), "there is no op conv9d")
      refused(text:gsub("\nend", "\nfoo\nend"), "an unknown line")
      refused(text:gsub("2,1,4,4", "2,1,4,5"), "")
      math.randomseed(1)
      for k = 2, #lines do -- one byte of each line changed, and each line dropped
        local at = math.random(#lines[k])
        local copy = { table.unpack(lines) }
        copy[k] = lines[k]:sub(1, at - 1) .. string.char(math.random(33, 126)) .. lines[k]:sub(at + 1)
        refused(table.concat(copy, "\n") .. "\n")
        table.remove(copy, k)
        refused(table.concat(copy, "\n") .. "\n")
      end
      os.remove(path .. ".safetensors")
      write(path, text)
      local g, message = T.load_graph(path)
      assert.is_nil(g)
      assert.is_string(message)
    end)
  end)

  it("says what each node gives, and is refused where that is another thing", function()
    with_file(function(path)
      local g = T.graph()
      local x = g:input("x", { 2, 3 })
      g:outputs { x:softmax(2):sum(1), (x:max(2)) }
      assert(T.save_graph(path, g))
      local text = read(path)
      local function refused(from, to, why)
        local changed, n = text:gsub(from, to)
        assert.equal(1, n, from)
        write(path, changed)
        local h, message, code = T.load_graph(path)
        assert.is_nil(h)
        assert.equal("format", code)
        assert.matches(why, message)
      end
      refused("f32%[2x3%]", "f32[3x2]", "softmax gives f32%[2x3%], the line says f32%[3x2%]")
      refused("f32%[2x3%]", "f64[2x3]", "softmax gives f32%[2x3%], the line says f64%[2x3%]")
      refused(" dim=2\n", " dim=1 dim=2\n", "attributes")
      refused(" dim=2\n", " dim=2 color=3\n", "softmax has no attribute 'color'")
      refused(" dim=2\n", " dim=2 }\n", "attributes")
      refused(" dim=2\n", " dim=7\n", "out of range")
      refused("(node softmax_1 softmax %d %d )0", "%10,0", "takes 1 to 1 tensors")
      refused("(node softmax_1 softmax )0", "%1999", "stage")
      refused("(node softmax_1 softmax 0 )0", "%15", "origin")
      refused("softmax_1 softmax", "softmax_1 softmaxx", "there is no op")
      refused("%-> 1:", "-> 0:", "made twice")
      refused(":f32%[2x3%]", ":f32[2x3],77:f32[1]", "has 1 outputs, the line names 2")
      refused("#2", "#3", "does not follow")
      refused("#2", "#1", "does not follow")
      refused("end\n", "end\nnode\n", "more behind the end")
      refused("2,3", "2,-3", "sizes")
      refused("2,3", ("1,"):rep(20) .. "3", "dimensions")
      refused("2,3", "9223372036854775807,9223372036854775807", "line 3")
    end)
  end)

  it("is replaced with its tensors as one, or not at all", function()
    with_file(function(path)
      local g, net = training()
      assert.is_true(T.save_graph(path, g))
      local text, tensors = read(path), read(path .. ".safetensors")
      local other = T.graph()
      other:outputs { other:input("x", { 3 }) * net:parameters()[2]:detach() }
      os.remove(path)
      assert.is_true(os.execute(("mkdir '%s'"):format(path)))
      local ok, message, code = T.save_graph(path, other) -- the text cannot be written
      assert.is_nil(ok)
      assert.equal("io", code)
      assert.is_truthy(message:find(path, 1, true))
      assert.equal(tensors, read(path .. ".safetensors"))
      assert.is_true(os.remove(path))
      for entry in io.popen(("ls '%s'*"):format(path)):lines() do
        assert.equal(path .. ".safetensors", entry) -- no temporary file is left
      end
      -- a crash between the two: the text of one save, the tensors of another
      assert.is_true(T.save_graph(path, other))
      write(path, text)
      local none
      none, message, code = T.load_graph(path)
      assert.is_nil(none)
      assert.equal("format", code)
      assert.is_truthy(message:find("come from another save", 1, true), message)
      write(path .. ".safetensors", tensors)
      assert.is_table(T.load_graph(path))
      assert.is_true(T.save(path .. ".safetensors", {})) -- tensors of no graph at all
      none, message = T.load_graph(path)
      assert.is_nil(none)
      assert.is_truthy(message:find("come from another save", 1, true), message)
      -- values change, the program does not: each text goes with the newer tensors
      assert.is_true(T.save_graph(path, g))
      T.no_grad(function() net:parameters()[1]:add_(1) end)
      text = read(path)
      assert.is_true(T.save_graph(path, g))
      assert.equal(text, read(path))
    end)
  end)

  it("may be a traced function's, which runs without it", function()
    with_file(function(path)
      local net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
      local f, x = T.jit(net), T.randn(5, 3)
      local want = f(x)
      assert.is_true(want:equal(f:graph():run { x1 = x }[1]))
      assert.is_true(T.save_graph(path, f:graph()))
      assert.is_true(want:equal(T.load_graph(path):run { x1 = x }[1]))
      local p, q = T.ones(3):requires_grad_(), T.ones(3):requires_grad_()
      local g = T.jit(function(t)
        ((p + q) * t):sum():backward()
        return p.grad * 2 + q.grad
      end)
      for _ = 1, 2 do g(T.ones(3)) end -- reads both gradients now
      assert.is_true(T.save_graph(path, g:graph()))
      local feed = { x1 = T.ones(3), grad = T.ones(3) * 10, grad_2 = T.ones(3) * 100 }
      local sum = T.load_graph(path):run(feed)[1]
      assert.is_true(sum:equal(T.ones(3) * (2 * 11 + 101)) or sum:equal(T.ones(3) * (2 * 101 + 11)))
    end)
  end)

  it("goes on with a training where the jitted function is, whatever its optimizer", function()
    with_file(function(path)
      local gone_on, lost = {}, {}
      for name, class in pairs(T.optim) do
        if type(class) == "table" and class.settings and name ~= "LBFGS" then
          local p = nn.Parameter(T.tensor { { 0.1, -0.2 }, { 0.3, 0.5 } })
          local opt = class({ p }, { lr = 0.1 })
          local step = T.jit(function(x)
            opt:zero_grad()
            local loss = (p - x):pow(4):sum()
            loss:backward()
            opt:step()
            return loss
          end)
          local x = T.tensor { { 1, 2 }, { -1, 0 } }
          step(x)
          local ok, err = pcall(T.save_graph, path, step:graph())
          if ok then
            gone_on[#gone_on + 1] = name
            local g, want, got = assert(T.load_graph(path)), {}, {}
            for k = 1, 6 do
              want[k], got[k] = step(x):item(), g:run { x1 = x }[1]:item()
              if k == 3 then
                assert.is_true(T.save_graph(path, g))
                g = assert(T.load_graph(path))
              end
            end
            assert.same(want, got, name)
            assert.is_true(want[6] ~= want[5], name)
          else
            lost[#lost + 1] = name
            assert.truthy(err:find("optim." .. name .. " steps with numbers of Lua beside the graph", 1, true), err)
          end
        end
      end
      table.sort(gone_on)
      assert.is_true(#gone_on >= 19, table.concat(gone_on, " "))
      assert.is_true(#lost <= 2, table.concat(lost, " ")) -- spec/optim/forms_spec.lua has their names
      local p = nn.Parameter(T.ones(1))
      local opt = T.optim.SGD({ p }, { lr = 0.1 })
      local schedule = T.optim.lr_scheduler.StepLR(opt, { step_size = 1 })
      local step = T.jit(function(x)
        opt:zero_grad()
        local loss = (p * x):sum()
        loss:backward()
        opt:step()
        schedule:step()
        return loss
      end)
      step(T.ones(1))
      local ok, err = pcall(T.save_graph, path, step:graph())
      assert.is_false(ok)
      assert.truthy(err:find("StepLR steps with numbers of Lua beside the graph", 1, true), err)
    end)
  end)

  it("goes on with steps that do more: several, of several optimizers, with averages of the weights", function()
    local function several(n) return function(once) return function(x)
      local loss
      for _ = 1, n do loss = once(x) end
      return loss
    end end end
    local function averaged(before, detached)
      return function(once, p)
        local mean = p:detach():clone()
        local function move()
          if detached then mean:mul_(0.9):add_(p:detach() * 0.1) else T.no_grad(function() mean:lerp_(p, 0.1) end) end
        end
        return function(x)
          if before then move() end
          local loss = once(x)
          if not before then move() end
          return loss, mean:sum()
        end
      end
    end
    local forms = { ["twice"] = several(2), ["3 times"] = several(3), ["averaged"] = averaged(false, true),
      ["averaged before"] = averaged(true, true), ["averaged by lerp_"] = averaged(false, false),
      ["twice, averaged"] = function(once, p) return averaged(false, true)(several(2)(once), p) end,
      ["another's step between"] = function(once, p)
        local other = T.optim.Adam({ p }, { lr = 0.02 })
        return function(x)
          local loss = once(x)
          other:step()
          return loss
        end
      end }
    for form, make in pairs(forms) do
      for _, c in ipairs { { "SGD" }, { "SGD", momentum = 0.9 }, { "Adam" }, { "RMSprop" }, { "Rprop" }, { "RAdam" },
        { "Adadelta" }, { "NAdam" }, { "Prodigy" }, { "Adafactor" }, { "SGDScheduleFree" } } do
        local function fresh()
          local p = nn.Parameter(T.tensor { { 0.1, -0.2 }, { 0.3, 0.5 } })
          local opt = T.optim[c[1]]({ p }, { lr = 0.05, momentum = c.momentum })
          return make(function(x)
            opt:zero_grad()
            local loss = (p - x):pow(4):sum()
            loss:backward()
            opt:step()
            return loss:detach()
          end, p)
        end
        local what = c[1] .. ", " .. form
        with_file(function(path)
          local plain, step, x = fresh(), T.jit(fresh()), T.tensor { { 1, 2 }, { -1, 0 } }
          local function same(...)
            local want = table.pack(plain(x))
            for i, got in ipairs { ... } do
              local b = want[i]:item()
              assert.is_true(math.abs(got:item() - b) <= 1e-5 * math.abs(b) + 1e-6, what)
            end
          end
          for _ = 1, 2 do same(step(x)) end
          assert(T.save_graph(path, step:graph()))
          for _ = 1, 2 do
            local g = assert(T.load_graph(path))
            for _ = 1, 3 do same(table.unpack(g:run { x1 = x })) end
            assert.is_true(T.save_graph(path, g))
          end
        end)
      end
    end
  end)

  it("is taken on by the function that it is of, or says why not, and nothing has changed", function()
    with_file(function(path)
      local function fresh(opts, power)
        local p = nn.Parameter(T.tensor { 0.5, -0.25 })
        local opt = T.optim.Adam({ p }, opts or { lr = 0.1 })
        local step = T.jit(function(x)
          opt:zero_grad()
          local loss = (p - x):pow(power or 4):sum()
          loss:backward()
          opt:step()
          return loss
        end)
        return step, opt, p
      end
      local x = T.tensor { 1, 2 }
      local step = fresh()
      for _ = 1, 3 do step(x) end
      assert(T.save_graph(path, step:graph()))
      local text
      do
        local f <close> = assert(io.open(path, "rb"))
        text = f:read "a"
      end
      local function refused(what, saved, other, opt, p)
        local f = assert(io.open(path, "wb"))
        f:write(saved)
        f:close()
        other(x)
        local before = p:detach():clone()
        local ok, err, code = other:graph():load_state(path)
        assert.is_nil(ok, what)
        assert.truthy(err:find(what, 1, true), err)
        assert.equal("format", code)
        assert.is_true(p:equal(before))
        assert.equal(1, opt:state_dict().state[1].step)
        other(x) -- as if nothing had been asked
      end
      refused("eps is 1e-08, is 0.001 of the function's", text, fresh { lr = 0.1, eps = 1e-3 })
      refused("flags is 0, is 2 of the function's", text, fresh { lr = 0.1, maximize = true })
      refused("the function has another program there (", text, fresh(nil, 3))
      refused("step is 0", text:gsub("step=3", "step=0.0"), fresh())
      refused("step", text:gsub("step=3", "step=0"), fresh())
      refused("lr is nil", text:gsub(" lr=%S+", ""), fresh())
      refused("no whole saved graph", text:sub(1, -6), fresh())
      refused("come from another save", text:gsub("pair %x%x", "pair 00", 1), fresh())
      refused("the function has no such line", text:gsub("\nend\n", "\noutput 1 #2\nend\n"), fresh())
      local other, opt = fresh()
      other(x)
      assert.is_nil((other:graph():load_state "/no/such/graph"))
      assert.error_matches(function() T.graph():load_state(path) end, "no jitted function's graph")
      assert.error_matches(function() other:graph():load_state(1) end, "path must be a string")
      local f = assert(io.open(path, "wb"))
      f:write(text)
      f:close()
      assert(other:graph():load_state(path))
      assert.equal(3, opt:state_dict().state[1].step)
      assert.equal(step(x):item(), other(x):item())
    end)
  end)

  it("names what is wrong with the call", function()
    assert.has_error(function() T.save_graph(1, T.graph()) end)
    local ok, err = pcall(T.save_graph, "x", {})
    assert.is_false(ok)
    assert.is_truthy(err:find("a graph expected", 1, true))
    local done, message, code = T.save_graph("/no/such/place/g", (training()))
    assert.is_nil(done)
    assert.is_string(message)
    assert.is_truthy(code)
  end)
end)
