-- SPDX-License-Identifier: MIT
-- Every op on the device against the same op on the CPU: the rows of spec/ops/cases in four floating dtypes and several
-- layouts, values and gradients. The device is the one there is: a GPU, or with PERILUNE_CUDA_PLUGIN the emulation
-- (build/spec/cuda_emulated.so). PERILUNE_SPEC_ONLY=name,… runs some ops alone.

local T = require "perilune"
local support = require "spec.ops.support"
local random = require "spec.support.random"
local oracle = require "spec.support.oracle"
local host = require "spec.cuda.through_host"

local ok, why = T.core.device.available()
local only = os.getenv "PERILUNE_SPEC_ONLY"

local tolerance = { f64 = 1e-9, f32 = 3e-5, f16 = 4e-3, bf16 = 3e-2 }

local function to_cuda(t) return t:cuda() end

-- Every floating f64 tensor in this dtype.
local function in_dtype(args, dtype)
  if dtype == "f64" then return args end
  return support.map(args, function(t) return t:dtype() == "f64" and t:to(dtype) or t end)
end

-- The first floating tensor in one dtype, the others in another, as under T.autocast; nil where there is only one.
local function mixed(args, first, others)
  local n = 0
  local out = support.map(args, function(t)
    if t:dtype() ~= "f64" then return t end
    n = n + 1
    return t:to(n == 1 and first or others)
  end)
  return n > 1 and out or nil
end

local function close(got, want, tol, what)
  assert.equal(want:dtype(), got:dtype(), what .. ": dtype")
  assert.same(want:shape(), got:shape(), what .. ": shape")
  local exact = not want:is_floating_point()
  tol = math.max(tol, tolerance[want:dtype()] or 0) -- results may be narrower than the arguments
  local a, b = oracle.from(got:cpu()).data, oracle.from(want).data
  local scale = 1
  for i = 1, #b do
    if b[i] == b[i] and math.abs(b[i]) < math.huge then scale = math.max(scale, math.abs(b[i])) end
  end
  for i = 1, #b do
    local x, y = a[i], b[i]
    local same = x == y or (x ~= x and y ~= y) or
      (not exact and math.abs(x - y) <= tol * math.max(scale * 0.05, 1, math.abs(y)))
    if not same then error(("%s: element %d is %.9g, the CPU says %.9g"):format(what, i, x, y), 0) end
  end
end

-- f(args) on both devices: the same values, or both refuse.
local function compare(name, f, args, tol, what)
  T.manual_seed(5)
  local fine, want = pcall(support.results, f, args)
  local there = support.map(args, to_cuda)
  T.manual_seed(5)
  local fine_there, got = pcall(function()
    local r = T.core.device.with("cuda", support.results, f, there) -- ops of no tensor: by the default device
    T.cuda.synchronize()
    return r
  end)
  if not fine then
    assert.is_false(fine_there, what .. ": the CPU refuses: " .. tostring(want))
    return
  end
  if not fine_there then error(what .. ": " .. tostring(got), 0) end
  for i = 1, #want do
    if support.is_tensor(want[i]) then
      if name ~= "shape_of" and want[i]:numel() > 0 then
        assert.equal("cuda", support.is_tensor(got[i]) and got[i]:device() or type(got[i]), what)
      end
      close(got[i], want[i], tol, what .. (" result %d"):format(i))
    end
  end
end

-- The gradients of a weighted sum of all floating results.
local function gradients(f, args, device)
  local leaves = {}
  local mine = support.map(args, function(t)
    local x = device and t:cuda() or t:clone()
    if x:is_floating_point() then
      x = x:detach():requires_grad_()
      leaves[#leaves + 1] = x
    end
    return x
  end)
  T.manual_seed(5)
  local loss
  for _, r in ipairs(T.core.device.with(device and "cuda" or "cpu", support.results, f, mine)) do
    if support.is_tensor(r) and r:is_floating_point() and r.requires_grad then
      local w = T.linspace(0.5, 1.5, r:numel()):to(r:dtype()):view(r:shape())
      local part = (r * (device and w:cuda() or w)):sum()
      loss = loss and loss + part or part
    end
  end
  if not loss then return {} end
  loss:backward()
  local out = {}
  for i, x in ipairs(leaves) do out[i] = x.grad or false end
  return out
end

-- Has it a dtype= to compute in?
local function takes_dtype(info)
  for _, a in ipairs(info.nin > 0 and info.attrs or {}) do
    if a.name == "dtype" and a.optional then return true end
  end
end
-- The arguments with dtype= among the options; nil where the last is a list or another table.
local function with_dtype(args, dtype)
  local out = table.pack(table.unpack(args, 1, args.n))
  local last = out[out.n]
  if type(last) ~= "table" then
    out.n = out.n + 1
    out[out.n] = { dtype = dtype }
    return out
  end
  local options = { dtype = dtype }
  for k, v in pairs(last) do
    if type(k) ~= "string" then return nil end
    options[k] = v
  end
  out[out.n] = options
  return out
end

local function wanted(name) return not only or ("," .. only .. ","):find("," .. name .. ",", 1, true) end

describe("on the device", function()
  if not ok then
    pending("no device: " .. tostring(why))
    return
  end
  for _, info in ipairs(support.public()) do
    local row = support.cases[info.name]
    if row and wanted(info.name) and not host.skip[info.name] then
      it(info.name .. " gives the CPU's values", function()
        local f = support.func(info.name)
        for i, args in ipairs(support.arguments(info.name)) do
          for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
            local now = in_dtype(args, dtype)
            compare(info.name, f, now, tolerance[dtype], ("variant %d, %s"):format(i, dtype))
            if dtype == "f32" and not row.one_layout then
              for _, kind in ipairs(random.LAYOUTS) do
                if not (row.regular and kind == "expand") then
                  local laid = support.map(now, function(t) return random.layout(T, t, kind) end)
                  compare(info.name, f, laid, tolerance[dtype], ("variant %d, %s, %s"):format(i, dtype, kind))
                end
              end
            end
          end
        end
      end)
      if takes_dtype(info) then
        it(info.name .. " gives the CPU's values in a dtype that is not its argument's", function()
          local f = support.func(info.name)
          for i, args in ipairs(support.arguments(info.name)) do
            for _, from in ipairs { "f64", "f32", "f16", "bf16" } do
              for _, to in ipairs { "f64", "f32", "f16", "bf16" } do
                local now = to ~= from and with_dtype(in_dtype(args, from), to)
                if now and (pcall(f, table.unpack(now, 1, now.n))) then
                  local tol = math.max(tolerance[from], tolerance[to])
                  compare(info.name, f, now, tol, ("variant %d, %s to %s"):format(i, from, to))
                end
              end
            end
          end
        end)
      end
      it(info.name .. " gives the CPU's values and gradients in mixed precision", function()
        local f = support.func(info.name)
        for i, args in ipairs(support.arguments(info.name)) do
          for _, kind in ipairs { { "bf16", "f32" }, { "f32", "bf16" } } do
            local now = mixed(args, kind[1], kind[2])
            local what = ("variant %d, %s and %s"):format(i, kind[1], kind[2])
            if now and pcall(support.results, f, now) then compare(info.name, f, now, tolerance.bf16, what) end
            local list = now and { now } or { in_dtype(args, "bf16") }
            if i == 1 and now then list[2] = in_dtype(args, "bf16") end
            for _, a in ipairs(info.differentiable and not row.skip_grad and list or {}) do
              local fine, want = pcall(gradients, f, a, false)
              local got = fine and gradients(f, a, true)
              for k, g in ipairs(fine and want or {}) do
                if g then close(got[k], g, tolerance.bf16 * 2, ("%s, gradient %d"):format(what, k)) end
              end
            end
          end
        end
      end)
      if info.differentiable and not row.skip_grad then
        it(info.name .. " gives the CPU's gradients", function()
          local f = support.func(info.name)
          for i, args in ipairs(support.arguments(info.name)) do
            for _, dtype in ipairs { "f64", "f32" } do
              local now = in_dtype(args, dtype)
              local fine, want = pcall(gradients, f, now, false)
              if fine then
                local got = gradients(f, now, true)
                for k, g in ipairs(want) do
                  local what = ("variant %d, %s, gradient %d"):format(i, dtype, k)
                  if g then close(got[k], g, tolerance[dtype] * 10, what) end
                end
              end
            end
          end
        end)
      end
    end
  end

  it("every op has a kernel, an expansion, or a place in the list of those that go through the host", function()
    local missing, count = {}, { kernel = 0, expand = 0, view = 0, host = 0 }
    for _, info in ipairs(T.core.ops()) do
      local how = T.core.device.has(info.name)
      count[how] = count[how] + 1
      if how == "host" and not host.list[info.name] then missing[#missing + 1] = info.name end
    end
    print(("\n  ops with a CUDA kernel %d, views %d, made of others %d, through the host %d"):format(count.kernel,
      count.view, count.expand, count.host))
    assert.equal("", table.concat(missing, " "))
  end)
end)
