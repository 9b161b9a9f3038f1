-- SPDX-License-Identifier: MIT
-- Golden cases run in another way: what the plain call gives is known to be right (cases.lua), and each mode must give
-- the same. M.run(T, plan, case, mode) → "pass", "fail" or "skip", and a text.
--   jit      T.jit(f): results bit for bit, gradients taken inside bit for bit, outside nearly
--   vmap     T.vmap(f) over a new first dim of all tensors, and of each alone, is the calls one by one
--   layout   tensors that lie transposed, with steps, with an offset, expanded where they repeat: the same bits
--   inplace  name_ of a clone is name, in the first input's dtype; and leaves the other inputs alone
--   default  T.set_default_dtype changes neither results nor gradients of what has a floating input
--   out      { out = y } with y dense, with steps, and of any contents
--   half     f16 and bf16 give what f64 gives for the same numbers, but for their rounding
--   onnx     T.onnx.save and T.onnx.load: near. PERILUNE_ONNX_KEEP=DIR keeps files, inputs and results for another
--            runtime: DIR/N.onnx, DIR/N.npz with x1 …, y1 …
--   jvp      T.jvp leaves values' bits alone; <w, J v> = <Jᵀ w, v>; its tangents are the same of strided arguments,
--            in T.jit, T.vmap, T.no_grad, T.checkpoint, a limit of memory; second derivatives agree in all mixtures

local cases = require "spec.golden.cases"

local M = {}

local function same(a, b)
  return a:dtype() == b:dtype() and table.concat(a:shape(), ",") == table.concat(b:shape(), ",")
    and a:to_string() == b:to_string()
end

local FLOATS = { f64 = true, f32 = true, f16 = true, bf16 = true }
local function floats(x) return FLOATS[x:dtype()] or false end

-- Nearly the same: products may sum in another order for a batch.
local function near(a, b)
  if same(a, b) then return true end
  if a:dtype() ~= b:dtype() or table.concat(a:shape(), ",") ~= table.concat(b:shape(), ",") then return false end
  if not floats(a) then return false end
  local tol = a:dtype() == "f64" and 1e-9 or a:dtype() == "f32" and 1e-4 or 1e-2
  return a:to("f64"):allclose(b:to("f64"), { rtol = tol, atol = tol, equal_nan = true })
end

local function describe(x) return x:describe() end

local function first_difference(got, want, judge, what)
  if #got ~= #want then return ("%s: %d results, should be %d"):format(what, #got, #want) end
  for i = 1, #want do
    if not judge(got[i], want[i]) then
      return ("%s: result %d is %s %s, should be %s %s"):format(what, i, describe(got[i]),
        tostring(got[i]:detach()):sub(1, 120):gsub("%s+", " "), describe(want[i]),
        tostring(want[i]:detach()):sub(1, 120):gsub("%s+", " "))
    end
  end
end

local function list_of(T, results)
  local out = {}
  for i, r in ipairs(results) do
    if not T.is_tensor(r) then return nil end
    out[i] = r
  end
  return out
end

local function copies(xs)
  local out = {}
  for i, x in ipairs(xs) do
    out[i] = x:detach():clone()
    if x.requires_grad then out[i]:requires_grad_() end
  end
  return out
end

local function tracked(xs)
  local out = {}
  for _, x in ipairs(xs) do
    if x.requires_grad then out[#out + 1] = x end
  end
  return out
end

-- Gradients of all results that have one, for fixed dys.
local function gradients(T, ys, xs)
  local told, dys = {}, {}
  for _, y in ipairs(ys) do
    if y.requires_grad then
      told[#told + 1] = y
      dys[#dys + 1] = T.arange(1, y:numel(), { dtype = "f64" }):sin():view(y:shape()):to(y:dtype())
    end
  end
  local ps = tracked(xs)
  if #told == 0 or #ps == 0 then return {} end
  local g = table.pack(T.grad_of(told, ps, { grad_outputs = dys, allow_unused = true }))
  if type(g[1]) == "table" and not T.is_tensor(g[1]) then g = g[1] end
  local out = {}
  for i, p in ipairs(ps) do out[i] = g[i] or T.zeros_like(p) end
  return out
end

local modes = {}

-- A trace cannot know values: functions that ask for one are refused, which is no failure.
local function refused(text)
  return text:find("does not know", 1, true) or text:find("has no values", 1, true) or text:find("symbolic", 1, true)
    or text:find("depends on", 1, true) or text:find("traced function", 1, true) or text:find("graph", 1, true)
end

function modes.jit(T, make, call, plan)
  local xs = make()
  local want = list_of(T, call(xs))
  if not want then return "skip", "no tensors come out" end
  local function f(...) return table.unpack(call { ... }) end
  for _, inside in ipairs { false, true } do
    local function g(...)
      local mine = { ... }
      local ys = call(mine)
      if not inside then return table.unpack(ys) end
      local list = table.move(gradients(T, ys, mine), 1, 99, 1, {})
      for _, y in ipairs(ys) do list[#list + 1] = y:detach() end
      return table.unpack(list)
    end
    local compiled = T.jit(inside and g or f)
    for pass = 1, 3 do
      local a, b = make(), make()
      T.manual_seed(5)
      local ok, got = pcall(function() return { compiled(table.unpack(a)) } end)
      if not ok then
        if refused(tostring(got)) then return "skip", "refused in a trace" end
        return "fail", "jit: " .. tostring(got)
      end
      local expected = { (inside and g or f)(table.unpack(b)) }
      local what = ("jit, call %d%s"):format(pass, inside and ", gradients inside" or "")
      local why = first_difference(got, expected, same, what)
      if why then return "fail", why end
      for i = 1, #a do
        if not same(a[i], b[i]) then return "fail", what .. ": argument " .. i .. " is changed" end
      end
      if not inside then
        why = first_difference(gradients(T, got, a), gradients(T, expected, b), near, what .. ", gradient")
        if why then return "fail", why end
      end
    end
  end
  return "pass"
end

-- Another tensor of the same kind for the second of a batch.
local function other(x)
  if not floats(x) or x:numel() == 0 then return x:clone() end
  return (x * 0.75):to(x:dtype())
end

function modes.vmap(T, make, call, plan)
  local xs = make()
  for i, x in ipairs(xs) do xs[i] = x:detach() end
  local ones = list_of(T, call(copies(xs)))
  if not ones then return "skip", "no tensors come out" end
  local ways = { {} }
  for i = 1, #xs do ways[1][i] = true end
  if #xs > 1 then
    for i = 1, #xs do ways[#ways + 1] = { [i] = true } end
  end
  for w, batched in ipairs(ways) do
    local first, second, dims, args = copies(xs), copies(xs), {}, {}
    for i = 1, #xs do
      dims[i] = batched[i] and 1 or false
      if batched[i] then second[i] = other(second[i]) end
      args[i] = batched[i] and T.stack { first[i], second[i] } or first[i]
    end
    local ok, want = pcall(function() return { call(copies(first)), call(copies(second)) } end)
    if ok then
      local fine, got = pcall(function()
        return { T.vmap(function(...) return table.unpack(call { ... }) end, { in_dims = dims })(table.unpack(args)) }
      end)
      local what = "vmap " .. (w == 1 and "of all" or "of input " .. w - 1)
      if not fine then
        local text = tostring(got):gsub("^[^ ]*: ", ""):gsub("[%d]+", "N")
        return "skip", "vmap refuses: " .. text:sub(1, 100)
      end
      for e = 1, 2 do
        local mine = {}
        for i, y in ipairs(got) do
          if y:dim() < 1 or y:size(1) ~= 2 then return "fail", what .. ": result " .. i .. " is " .. describe(y) end
          mine[i] = y[e]
        end
        local why = first_difference(mine, want[e], near, what .. ", element " .. e)
        if why then return "fail", why end
      end
    end
  end
  return "pass"
end

local LAYOUTS = {
  transposed = function(T, x)
    if x:dim() < 2 then return nil end
    local order = {}
    for d = 1, x:dim() do order[d] = x:dim() + 1 - d end
    return x:permute(table.unpack(order)):clone():permute(table.unpack(order))
  end,
  steps = function(T, x)
    if x:dim() < 1 or x:numel() == 0 then return nil end
    local shape = x:shape()
    shape[#shape] = 2 * shape[#shape] + 1
    local wide = T.full(shape, 1, { dtype = x:dtype() })
    local view = wide:slice(x:dim(), 2, x:size(-1), 2)
    view:copy_(x)
    return view
  end,
  offset = function(T, x)
    local wide = T.full({ x:numel() + 3 }, 1, { dtype = x:dtype() })
    local view = wide:narrow(1, 4, x:numel()):view(x:shape())
    view:copy_(x)
    return view
  end,
  rows = function(T, x)
    if x:dim() < 1 then return nil end
    local shape = x:shape()
    shape[1] = shape[1] + 2
    local wide = T.full(shape, 1, { dtype = x:dtype() })
    local view = wide:narrow(1, 2, x:size(1))
    view:copy_(x)
    return view
  end,
  broadcast = function(_, x) -- not the same values: judged against a clone of itself
    if x:dim() < 1 or x:size(1) < 1 then return nil end
    return x:narrow(1, 1, 1):expand(x:shape()), true
  end,
  channels_last = function(_, x)
    if x:dim() ~= 4 or x:numel() == 0 then return nil end
    return x:contiguous "channels_last"
  end,
}

function modes.layout(T, make, call, plan)
  local n = 0
  for name, how in pairs(LAYOUTS) do
    for at = 0, #make() do
      local a, b, any = make(), make(), false
      for i = 1, #a do
        if at == 0 or at == i then
          local base = a[i]:detach()
          local y = how(T, base)
          if y and y ~= nil then
            local grad = a[i].requires_grad
            any = true
            b[i] = y:clone():contiguous()
            a[i] = y
            if grad then
              b[i]:requires_grad_()
              a[i] = y:detach():requires_grad_()
            end
          end
        end
      end
      if any then
        n = n + 1
        local ok, want = pcall(call, b)
        if ok and list_of(T, want) then
          local fine, got = pcall(call, a)
          local what = ("%s, %s"):format(name, at == 0 and "all" or "input " .. at)
          local text = tostring(got)
          if not fine then -- views and writes say what they cannot take
            local rightly = text:find("needs a copy", 1, true) or text:find("share memory", 1, true)
              or text:find("is not contiguous", 1, true)
            return rightly and "skip" or "fail", rightly and "refuses that layout" or what .. ": " .. text
          end
          local why = first_difference(got, want, same, what)
            or first_difference(gradients(T, got, a), gradients(T, want, b), same, what .. ", gradient")
          if why then return "fail", why end
        end
      end
    end
  end
  return n > 0 and "pass" or "skip", "nothing to lay out"
end

function modes.inplace(T, make, call, plan)
  local name = (plan.row.name or plan.file.op) .. "_"
  local fn = T.core.metatable().methods[name]
  if not fn or plan.file.family == "nn" then return "skip", "no form in place" end
  local xs = make()
  for i, x in ipairs(xs) do xs[i] = x:detach() end
  if #xs == 0 then return "skip", "no input" end
  local want = list_of(T, call(copies(xs)))
  if not want or #want ~= 1 then return "skip", "not one result" end
  local a, called = copies(xs), false
  local ok, got = pcall(call, a, function(...)
    called = true
    return fn(...)
  end)
  if not called then return "skip", "called in another way" end
  local fits = table.concat(want[1]:shape(), ",") == table.concat(xs[1]:shape(), ",")
  if not ok then
    if not fits or want[1]:dtype() ~= xs[1]:dtype() then return "skip", "rightly refused in place" end
    local text = tostring(got)
    if text:find("must be a number", 1, true) or text:find("write x:", 1, true) then
      return "skip", "called in another way"
    end
    return "fail", "in place: " .. text
  end
  if not fits then return "fail", "in place: not refused, the shape is another" end
  local exp = want[1]:to(xs[1]:dtype())
  if not same(got[1], exp) then return "fail", first_difference({ got[1] }, { exp }, same, "in place") end
  if not same(a[1], exp) then return "fail", "in place: the first input is not the result" end
  for i = 2, #xs do
    if not same(a[i], xs[i]) then return "fail", "in place: changes input " .. i end
  end
  return "pass"
end

function modes.default(T, make, call)
  local xs = make()
  local any = false
  for _, x in ipairs(xs) do any = any or floats(x) end
  if not any then return "skip", "no floating input" end
  T.manual_seed(5)
  local want = list_of(T, call(xs))
  if not want then return "skip", "no tensors come out" end
  local slopes = gradients(T, want, xs)
  for _, dtype in ipairs { "f64", "bf16" } do
    local a, old = make(), T.default_dtype()
    T.manual_seed(5)
    T.set_default_dtype(dtype)
    local ok, got, mine = pcall(function()
      local ys = call(a)
      return ys, gradients(T, ys, a)
    end)
    T.set_default_dtype(old)
    if not ok then return "fail", "by default " .. dtype .. ": " .. tostring(got) end
    local why = first_difference(got, want, same, "by default " .. dtype)
      or first_difference(mine, slopes, same, "by default " .. dtype .. ", gradient")
    if why then return "fail", why end
  end
  return "pass"
end

function modes.out(T, make, call, plan)
  local xs = make()
  for i, x in ipairs(xs) do xs[i] = x:detach() end
  local want = list_of(T, call(copies(xs)))
  if not want or #want ~= 1 then return "skip", "not one result" end
  for name, target in pairs {
    dense = function() return T.full(want[1]:shape(), 7, { dtype = want[1]:dtype() }) end,
    steps = function()
      local shape = want[1]:shape()
      shape[#shape + 1] = 2
      return T.full(shape, 7, { dtype = want[1]:dtype() }):select(-1, 1)
    end,
  } do
    local y, a, called = target(), copies(xs), false
    local ok, got = pcall(call, a, function(...)
      called = true
      return plan.fn(...)
    end, { out = y })
    local text = tostring(got)
    if not called or not ok and (text:find("out", 1, true) or text:find("too many", 1, true)) then
      return "skip", "takes no out"
    end
    -- the adapter reshapes, or gives its options in another place
    if not ok and (text:find("cannot be written into", 1, true) or text:find("got table", 1, true)) then
      return "skip", "called in another way"
    end
    if not ok then return "fail", name .. ": " .. text end
    if not same(y, want[1]) then return "fail", first_difference({ y }, want, same, "out, " .. name) end
    for i = 1, #xs do
      if not same(a[i], xs[i]) then return "fail", "out: changes input " .. i end
    end
  end
  return "pass"
end

-- In f16 and bf16: what f64 gives for the same numbers, rounded, but for a few units in the last place of the largest.
function modes.half(T, make, call, plan)
  local n = 0
  for dtype, eps in pairs { f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 } do
    local xs, wide, narrow = make(), {}, {}
    local all = #xs > 0
    for i, x in ipairs(xs) do
      local f = floats(x)
      if f then narrow[i] = x:detach():to(dtype) else narrow[i] = x end
      wide[i] = f and narrow[i]:to("f64") or x
      all = all and (f or i > 1)
    end
    local ok, want = pcall(call, wide)
    local fine, got = pcall(call, narrow)
    if all and ok and fine and list_of(T, want) and list_of(T, got) and #got == #want then
      for i, y in ipairs(want) do
        local z = got[i]
        if floats(y) and (z:dtype() == dtype) and y:numel() > 0 then
          local w = y:to(dtype):to("f64")
          local d = (z:to("f64") - w):abs()
          local finite = w:isfinite()
          local worst = T.where(finite, d, 0):max():item()
          local scale = T.where(finite, w:abs(), 0):max():item()
          n = n + 1
          if worst > 3 * eps * scale + 1e-7 or worst ~= worst then
            local units = worst / scale / eps
            return "fail", ("%s: result %d is off by %.3g, %.3g units of %g"):format(dtype, i, worst, units, scale)
          end
        end
      end
    end
  end
  return n > 0 and "pass" or "skip", "not in halves"
end

local kept = 0
local function keep(T, folder, path, xs, ys, id)
  kept = kept + 1
  local arrays = {}
  for i, x in ipairs(xs) do arrays["x" .. i] = x:contiguous() end
  for i, y in ipairs(ys) do arrays["y" .. i] = y:detach():contiguous() end
  local base = ("%s/%d"):format(folder, kept)
  assert(T.save_npz(base .. ".npz", arrays))
  os.execute(("mv '%s' '%s.onnx'"):format(path, base))
  local list = assert(io.open(folder .. "/list", "a"))
  list:write(kept, " ", id, "\n")
  list:close()
end

function modes.onnx(T, make, call, plan, case)
  local xs = make()
  for i, x in ipairs(xs) do xs[i] = x:detach() end
  if #xs == 0 then return "skip", "no input" end
  local want = list_of(T, call(copies(xs)))
  if not want then return "skip", "no tensors come out" end
  local path, names = os.tmpname(), {}
  for i = 1, #xs do names[i] = "x" .. i end
  local ok, why = pcall(T.onnx.save, path, function(...) return table.unpack(call { ... }) end, copies(xs),
    { input_names = names })
  local got = ok and { pcall(function() return { assert(T.onnx.load(path))(table.unpack(copies(xs))) } end) }
  local folder = os.getenv "PERILUNE_ONNX_KEEP"
  if ok and folder then keep(T, folder, path, xs, want, case.id) end
  os.remove(path)
  if not ok then return "skip", "no file: " .. tostring(why):gsub("^[^ ]*: ", ""):gsub("[%d]+", "N"):sub(1, 80) end
  if not got[1] then return "fail", "read again: " .. tostring(got[2]) end
  local function judge(a, b) -- attributes such as epsilon are f32
    return near(a, b) or a:dtype() == "f64" and b:dtype() == "f64" and near(a:float(), b:float())
  end
  why = first_difference(got[2], want, judge, "from the file")
  return why and "fail" or "pass", why
end

-- ---- forward mode ----------------------------------------------------------------------------------------------

local function wave(T, x, k)
  return (T.arange(1, x:numel(), { dtype = "f64" }) * k):sin():view(x:shape()):to(x:dtype())
end

local function finite(list)
  for _, x in ipairs(list) do
    if x:numel() > 0 and not x:isfinite():all():item() then return false end
  end
  return true
end

local function dot(a, b)
  local s, size = 0, 0
  for i = 1, #a do
    if a[i]:numel() > 0 then
      local p = a[i]:detach():to("f64") * b[i]:detach():to("f64")
      s, size = s + p:sum():item(), size + p:abs():sum():item()
    end
  end
  return s, size
end

local function stacked(T, list, by)
  local out = {}
  for i, x in ipairs(list) do out[i] = T.stack { x, by and other(x) or x } end
  return out
end

-- f for T.jit, which compares all that a function can reach at each call: here all of the golden files.
local registry = debug.getregistry
local function out_of_reach(f)
  registry().golden_function = f
  return function(...) return registry().golden_function(...) end
end

-- Ways to tangents that must be those of the plain call.
local WAYS = {
  strided = function(T, jvp, xs, vs)
    local function strided(x) return LAYOUTS.transposed(T, x) or x end
    local a, b = {}, {}
    for i = 1, #xs do a[i], b[i] = strided(xs[i]), strided(vs[i]) end
    return jvp(a, b)
  end,
  ["strided tangents"] = function(T, jvp, xs, vs)
    local b = {}
    for i = 1, #vs do b[i] = LAYOUTS.steps(T, vs[i]) or vs[i] end
    return jvp(xs, b)
  end,
  jit = function(T, jvp, xs, vs)
    local n = #xs
    return { T.jit(out_of_reach(function(...)
      local all = { ... }
      return table.unpack(jvp({ table.unpack(all, 1, n) }, { table.unpack(all, n + 1) }))
    end))(table.unpack(table.move(vs, 1, n, n + 1, table.move(xs, 1, n, 1, {})))) }
  end,
  ["jvp of jit"] = function(T, _, xs, vs, f)
    local compiled = T.jit(out_of_reach(function(...) return table.unpack(f(...)) end))
    return (select(2, T.jvp(function(...) return { compiled(...) } end, xs, vs)))
  end,
  no_grad = function(T, jvp, xs, vs) return T.no_grad(jvp, xs, vs) end,
  ["a limit of memory"] = function(T, jvp, xs, vs)
    local _ <close> = T.memory_limit "1 GB"
    return jvp(xs, vs)
  end,
  checkpoint = function(T, _, xs, vs, f)
    return (select(2, T.jvp(function(...)
      return { T.checkpoint(function(...) return table.unpack(f(...)) end, ...) }
    end, xs, vs)))
  end,
}

local function batches(T, jvp, xs, vs)
  local n = #xs
  local function of(all) return table.unpack(jvp({ table.unpack(all, 1, n) }, { table.unpack(all, n + 1) })) end
  for _, way in ipairs { "points", "tangents", "both" } do
    local points, tangents = way ~= "tangents", way ~= "points"
    local args, dims = {}, {}
    for i, x in ipairs(points and stacked(T, xs, true) or xs) do args[i], dims[i] = x, points and 1 end
    for i, v in ipairs(tangents and stacked(T, vs, true) or vs) do args[n + i], dims[n + i] = v, tangents and 1 end
    local second, third = {}, {}
    for i = 1, n do
      second[i], third[i] = points and other(xs[i]) or xs[i], tangents and other(vs[i]) or vs[i]
    end
    local ok, want = pcall(function() return { jvp(xs, vs), jvp(second, third) } end)
    local fine, got = pcall(function()
      return { T.vmap(function(...) return of { ... } end, { in_dims = dims })(table.unpack(args)) }
    end)
    if ok and fine then
      for e = 1, 2 do
        local mine = {}
        for i, y in ipairs(got) do mine[i] = y[e] end
        local why = first_difference(mine, want[e], near, ("tangents in vmap over %s, element %d"):format(way, e))
        if why then return why end
      end
    elseif ok and not tostring(got):find("vmap", 1, true) then
      return ("tangents in vmap over %s: %s"):format(way, tostring(got))
    end
  end
end

function modes.jvp(T, make, call, _, case)
  local all, at, xs, vs, some = make(), {}, {}, {}, false
  for i, x in ipairs(all) do
    all[i] = x:detach()
    if floats(x) and (x.requires_grad or case.jvp and case.jvp.v[i]) then
      at[#at + 1], xs[#xs + 1], some = i, all[i], some or x:numel() > 0
    end
  end
  if #xs == 0 then return "skip", "no differentiable input" end
  for k, x in ipairs(xs) do vs[k] = wave(T, x, 0.7 * k + 1) end
  local function f(...)
    local now = table.move(all, 1, #all, 1, {})
    for k, x in ipairs { ... } do now[at[k]] = x end
    local got = {}
    for _, y in ipairs(call(now)) do
      if T.is_tensor(y) and floats(y) then got[#got + 1] = y end
    end
    return got
  end
  local plain = list_of(T, f(table.unpack(xs)))
  if not plain or #plain == 0 then return "skip", "no floating result" end
  local function jvp(a, b) return (select(2, T.jvp(f, a, b))) end
  local ok, ys, tangents = pcall(T.jvp, f, xs, vs)
  if not ok then
    local known = tostring(ys):find("has no derivative", 1, true)
    return known and "skip" or "fail", known and "no derivative" or "jvp: " .. tostring(ys)
  end
  local why = first_difference(ys, plain, same, "value")
  if why then return "fail", why end
  -- beside reverse mode
  local leaves, told, ws, mine = copies(xs), {}, {}, {}
  for _, x in ipairs(leaves) do x:requires_grad_() end
  for i, y in ipairs(f(table.unpack(leaves))) do
    if y.requires_grad then
      told[#told + 1], ws[#ws + 1], mine[#mine + 1] = y, wave(T, y, 1.3), tangents[i]
    elseif tangents[i]:numel() > 0 and tangents[i]:abs():max():item() ~= 0 then
      return "fail", ("tangent %d of a constant is not zero"):format(i)
    end
  end
  if #told == 0 then return "skip", "no derivative" end
  local fine, g = pcall(function()
    local g = table.pack(T.grad_of(told, leaves, { grad_outputs = ws, allow_unused = true }))
    return type(g[1]) == "table" and not T.is_tensor(g[1]) and g[1] or g
  end)
  if not fine then return "skip", "no gradient" end
  local grads = {}
  for k, x in ipairs(xs) do grads[k] = g[k] or T.zeros_like(x) end
  local eps = ({ f64 = 1e-9, f32 = 1e-4, f16 = 2e-2, bf16 = 0.1 })[told[1]:dtype()]
  for _, x in ipairs(xs) do eps = math.max(eps, ({ f64 = 1e-9, f32 = 1e-4, f16 = 2e-2, bf16 = 0.1 })[x:dtype()]) end
  if finite(mine) and finite(grads) then
    local a, size = dot(mine, ws)
    local b, more = dot(grads, vs)
    if math.abs(a - b) > eps * (1 + size + more) then
      return "fail", ("<w, J v> is %.9g, <Jᵀ w, v> %.9g"):format(a, b)
    end
  elseif finite(mine) ~= finite(grads) and finite(xs) and some then
    return "fail", "one mode's derivative is finite, the other's is not"
  end
  if not finite(mine) and some then return "pass" end -- where NaN is depends on the order
  for name, way in pairs(WAYS) do
    local good, got = pcall(way, T, jvp, xs, vs, f)
    local text = tostring(got)
    local layout = text:find("needs a copy", 1, true) or text:find("share memory", 1, true)
      or text:find("is not contiguous", 1, true)
    if not good and not (name:find "jit" and refused(text)) and not (name == "strided" and layout) then
      return "fail", ("tangents by %s: %s"):format(name, text)
    end
    why = good and first_difference(got, tangents, near, "tangents by " .. name)
    if why then return "fail", why end
  end
  why = batches(T, jvp, xs, vs)
  if why then return "fail", why end
  -- second order
  if eps > 1e-9 then return "pass" end
  local function scalar(...)
    local s = T.zeros({}, { dtype = "f64" })
    for i, y in ipairs(f(...)) do
      if y:dtype() == "f64" then s = s + (y * wave(T, plain[i], 1.3)):sum() end
    end
    return s
  end
  local us = {}
  for k, x in ipairs(xs) do us[k] = wave(T, x, 0.9 * k + 2) end
  local function first(...) return (select(2, T.jvp(scalar, { ... }, vs))) end
  local function reverse(of)
    return function(...)
      local got = table.pack(T.grad(of, ...))
      if type(got[1]) == "table" then got = got[1] end
      local s = T.zeros({}, { dtype = "f64" })
      for k in ipairs(xs) do if got[k] then s = s + (got[k]:to("f64") * (of == first and us or vs)[k]):sum() end end
      return s
    end
  end
  local values = {}
  for name, by in pairs {
    ["forward over forward"] = function() return (select(2, T.jvp(first, xs, us))) end,
    ["reverse over forward"] = function() return reverse(first)(table.unpack(xs)) end,
    ["forward over reverse"] = function()
      return (select(2, T.jvp(reverse(scalar), xs, us)))
    end,
  } do
    local good, got = pcall(by)
    if good then
      values[#values + 1] = { name, got:item() }
    elseif not tostring(got):find("derivative", 1, true) and not tostring(got):find("once", 1, true) then
      return "fail", name .. ": " .. tostring(got)
    end
  end
  for _, v in ipairs(values) do
    local want = values[1][2]
    local off = math.abs(v[2] - want)
    if off > 1e-7 * (1 + math.abs(want)) then -- NaN: there is none, as of roots of 0
      return "fail", ("%s is %.9g, %s %.9g"):format(v[1], v[2], values[1][1], want)
    end
  end
  return "pass"
end

function M.run(T, plan, case, mode)
  if case.error then return "skip", "an error" end
  local function make() return cases.inputs(T, plan.file, case, true) end
  local function call(tensors, fn, more)
    local traced = false
    for _, x in ipairs(tensors) do traced = traced or T.core.is_symbolic(x) end
    if not traced then T.manual_seed(5) end -- of dropout
    return cases.call(T, plan, case, tensors, fn, more)
  end
  local ok = pcall(call, make())
  if not ok then return "skip", "fails as it is" end
  local fine, verdict, text = pcall(modes[mode], T, make, call, plan, case)
  if not fine then return "fail", "raised: " .. tostring(verdict) end
  return verdict, text
end

M.modes = modes

return M
