-- SPDX-License-Identifier: MIT
--- Parameters computed from others before every call: nn.utils.weight_norm and spectral_norm, and their removal;
-- functional_call, and folding BatchNorm into the layer before it.
-- @module perilune.nn.utils
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local class_name = require("perilune.surface").class_name
local norms = require "perilune.nn.utils.norms"

local fail, describe = options.fail, options.describe

return function(utils)
  local function parameter(who, m, name)
    if not base.is_module(m) then fail("%s: a module is wanted, got %s", who, describe(m)) end
    local p = type(name) == "string" and m._parameters[name]
    if not base.is_parameter[p] then fail("%s: %s has no parameter '%s'", who, class_name(m), tostring(name)) end
    return p
  end

  -- compute(m, rule) gives the tensor that stands at `name` in each call.
  local function install(who, m, name, rule, compute)
    local rules = rawget(m, "_computed")
    if not rules then
      rules = {}
      rawset(m, "_computed", rules)
    end
    if rules[name] then fail("%s: '%s' of %s is computed already", who, name, class_name(m)) end
    rule.kind, rule.compute, rules[name] = who, compute, rule
    rule.handle = m:register_forward_pre_hook(function(self) rawset(self, name, compute(self, rule)) end)
    rawset(m, name, T.no_grad(compute, m, rule))
    return m
  end
  local function removed(who, kind, m, name)
    if not base.is_module(m) then fail("%s: a module is wanted, got %s", who, describe(m)) end
    local rule = rawget(m, "_computed") and m._computed[name]
    if not rule or rule.kind ~= kind then fail("%s: '%s' of %s has no %s", who, tostring(name), class_name(m), kind) end
    rule.last = true
    local value = T.no_grad(rule.compute, m, rule):detach():clone()
    rule.handle:remove()
    m._computed[name] = nil
    rawset(m, name, nil)
    return value
  end

  -- ---- weight normalization (Salimans & Kingma 2016) ---------------------------------------------------

  local weight_spec = options.spec("weight_norm", { { "module", "any" }, { "name", "string", "weight" },
    { "dim", "any", 1 } })

  --- nn.utils.weight_norm(…) → module
  -- The parameter becomes g v / ‖v‖ with parameters name_g and name_v (Salimans & Kingma 2016); dim=false: one norm for
  -- all.
  --   local l = nn.utils.weight_norm(nn.Linear(3, 2))
  --   for name in l:named_parameters() do print(name) end
  --   --> bias
  --   --> weight_g
  --   --> weight_v
  function utils.weight_norm(...)
    local a = options.read(weight_spec, ...)
    local m, name, dim = a.module, a.name, a.dim
    local p = parameter("weight_norm", m, name)
    if dim then
      dim = options.integer(dim)
      if dim and dim < 0 then dim = dim + p:dim() + 1 end
      if not dim or dim < 1 or dim > p:dim() then
        fail("weight_norm: dim %s of %s does not exist; dims are numbered from 1", tostring(a.dim), describe(p))
      end
    end
    local v = p:detach()
    base.forget(m, name)
    m:register_parameter(name .. "_g", base.Parameter(T.no_grad(norms.but, v, dim):clone()))
    m:register_parameter(name .. "_v", base.Parameter(v:clone()))
    return install("weight_norm", m, name, {}, function(self)
      local w = base.member(self, name .. "_v")
      return w * (base.member(self, name .. "_g") / norms.but(w, dim))
    end)
  end

  --- nn.utils.remove_weight_norm(module, name="weight") → module
  -- Back to a plain parameter of the same values.
  --   local l = nn.utils.remove_weight_norm(nn.utils.weight_norm(nn.Linear(3, 2)))
  --   print(#l:parameters())  --> 2
  function utils.remove_weight_norm(m, name)
    name = name or "weight"
    local value = removed("remove_weight_norm", "weight_norm", m, name)
    base.forget(m, name .. "_g")
    base.forget(m, name .. "_v")
    m:register_parameter(name, base.Parameter(value))
    return m
  end

  -- ---- spectral normalization (Miyato et al. 2018) -------------------------------------------------------

  local spectral_spec = options.spec("spectral_norm", { { "module", "any" }, { "name", "string", "weight" },
    { "n_power_iterations", "count", 1 }, { "eps", "nonnegative", 1e-12 }, { "dim", "int", optional = true } })
  -- The parameter becomes name_orig / σ, σ its largest singular value as a matrix with the rows of dimension `dim`
  -- (1; 2 for transposed convolutions), by n_power_iterations steps in each call in training. Buffers name_u, name_v.
  --- nn.utils.spectral_norm(…) → module
  -- The parameter becomes name_orig over its largest singular value (Miyato et al. 2018).
  --   local l = nn.utils.spectral_norm(nn.Linear(3, 2), { n_power_iterations = 30 })
  --   l(T.ones(1, 3))
  --   print(T.linalg.svdvals(l.weight:detach()):get(1) < 1.001)  --> true
  function utils.spectral_norm(...)
    local a = options.read(spectral_spec, ...)
    local m, name, eps = a.module, a.name, a.eps
    local p = parameter("spectral_norm", m, name)
    local dim = a.dim or (class_name(m):match("^ConvTranspose") and 2 or 1)
    if p:dim() < 2 then fail("spectral_norm: '%s' must have at least 2 dims, got %s", name, describe(p)) end
    base.forget(m, name)
    local w = norms.matrix(p:detach(), dim)
    m:register_parameter(name .. "_orig", p)
    m:register_buffer(name .. "_u", norms.random(w:size(1), p, eps))
    m:register_buffer(name .. "_v", norms.random(w:size(2), p, eps))
    return install("spectral_norm", m, name, {}, function(self, rule)
      local weight = base.member(self, name .. "_orig")
      local W, u, v = norms.matrix(weight, dim), self[name .. "_u"], self[name .. "_v"]
      if self.training and not rule.last then
        T.no_grad(function()
          for _ = 1, a.n_power_iterations do
            v:copy_(norms.unit(W:t():mv(u), eps))
            u:copy_(norms.unit(W:mv(v), eps))
          end
        end)
        u, v = u:clone(), v:clone() -- the next call overwrites them
      end
      return weight / u:dot(W:mv(v))
    end)
  end

  --- nn.utils.remove_spectral_norm(module, name="weight") → module
  -- Back to a plain parameter, divided by its largest singular value.
  --   local l = nn.utils.remove_spectral_norm(nn.utils.spectral_norm(nn.Linear(3, 2)))
  --   print(#l:parameters())  --> 2
  function utils.remove_spectral_norm(m, name)
    name = name or "weight"
    local value = removed("remove_spectral_norm", "spectral_norm", m, name)
    base.forget(m, name .. "_orig")
    for _, part in ipairs { "_u", "_v" } do
      base.forget(m, name .. part)
      m._buffers[name .. part] = nil
      rawset(m, name .. part, nil)
    end
    m:register_parameter(name, base.Parameter(value))
    return m
  end

  -- ---- other tensors in place of a module's own -------------------------------------------------------------

  -- One table of several: parameters and buffers apart.
  local function merged(list)
    options.list("functional_call", "the tables of tensors", list)
    local all = {}
    for i, part in ipairs(list) do
      if type(part) ~= "table" then
        fail("functional_call: entry %d must be a table of tensors, got %s", i, describe(part))
      end
      for name, t in pairs(part) do
        if all[name] ~= nil then fail("functional_call: '%s' is given twice", tostring(name)) end
        all[name] = t
      end
    end
    return all
  end

  --- nn.utils.functional_call(module, {name = tensor, …}, …) → what the module returns
  -- Calls the module with tensors in place of its parameters and buffers; gradients go to those. Several such tables
  -- come as a list of them. What stands at several places (tied weights) is replaced at all of them.
  --   local l = nn.Linear(1, 1)
  --   print(nn.utils.functional_call(l, { weight = T.ones(1, 1) * 3, bias = T.zeros(1) }, T.ones(1)))
  --   --> {3.}  -- f32[1] cpu
  function utils.functional_call(m, tensors, ...)
    if not base.is_module(m) then fail("functional_call: a module is wanted, got %s", describe(m)) end
    if type(tensors) ~= "table" then
      fail("functional_call: a table of tensors is wanted, got %s", describe(tensors))
    end
    if type(tensors[1]) == "table" then tensors = merged(tensors) end
    local places, swapped, tied, given = {}, {}, {}, {}
    for _, item in ipairs(base.collect(m, "state")) do
      places[item[1]] = item
      tied[item[2]] = tied[item[2]] or {}
      table.insert(tied[item[2]], item)
    end
    for name, t in pairs(tensors) do
      local item = places[name]
      if not item then fail("functional_call: %s has no '%s'", class_name(m), tostring(name)) end
      if not T.is_tensor(t) then fail("functional_call: '%s' must be a tensor, got %s", name, describe(t)) end
      local other = given[item[2]]
      if other and not rawequal(tensors[other], t) then
        local first, second = other < name and other or name, other < name and name or other
        fail("functional_call: '%s' and '%s' are one tensor of %s and cannot be two; give one of them", first, second,
          class_name(m))
      end
      if not other then
        given[item[2]] = name
        for _, place in ipairs(tied[item[2]]) do
          local owner, key = place[3], place[4]
          swapped[#swapped + 1] = { rawget(owner, key) == nil and owner._parameters or owner, key, place[2], t }
        end
      end
    end
    local function put(which)
      for _, s in ipairs(swapped) do rawset(s[1], s[2], s[which]) end
      return 3
    end
    return T.core.around(put, 4, put, m, ...)
  end

  -- What all modules have under the names that the first has, stacked: names(m) iterates over name, tensor.
  local function stacked(modules, names)
    local lists, out, count = {}, {}, 0
    for name, t in names(modules[1]) do
      lists[name] = { t }
      count = count + 1
    end
    for i = 2, #modules do
      local left = count
      for name, t in names(modules[i]) do
        if not lists[name] then fail("stack_module_state: entry 1 has no '%s', entry %d has", name, i) end
        local first = lists[name][1]
        if first:dtype() ~= t:dtype() or table.concat(first:shape(), ",") ~= table.concat(t:shape(), ",") then
          fail("stack_module_state: '%s' is %s[%s] in entry 1 and %s[%s] in entry %d", name, first:dtype(),
            table.concat(first:shape(), ","), t:dtype(), table.concat(t:shape(), ","), i)
        end
        if first.requires_grad ~= t.requires_grad then
          fail("stack_module_state: '%s' of entries 1 and %d differ in requires_grad", name, i)
        end
        lists[name][i] = t
        left = left - 1
      end
      for name, list in pairs(left > 0 and lists or {}) do
        if not list[i] then fail("stack_module_state: entry %d has no '%s', entry 1 has", i, name) end
      end
    end
    for name, list in pairs(lists) do
      out[name] = T.stack(list):detach()
      if list[1].requires_grad then out[name]:requires_grad_() end
    end
    return out
  end

  --- nn.utils.stack_module_state(modules) → parameters, buffers
  -- What a list of networks of one kind has, along a new first dimension, as two tables name → tensor: an ensemble that
  -- T.vmap computes at once, by nn.utils.functional_call. The tensors are new leaves; the networks stay as they are.
  --   local nets = { nn.Linear(3, 2), nn.Linear(3, 2) }
  --   local params, buffers = nn.utils.stack_module_state(nets)
  --   local all = T.vmap(function(p, b, x) return nn.utils.functional_call(nets[1], { p, b }, x) end,
  --     { in_dims = { 1, 1, false } })
  --   local y = all(params, buffers, T.ones(5, 3))
  --   print(table.concat(y:shape(), " "), y[2]:equal(nets[2](T.ones(5, 3))))  --> 2 5 2	true
  function utils.stack_module_state(modules)
    options.list("stack_module_state", "the modules", modules, "modules")
    if #modules == 0 then fail("stack_module_state: the list of modules is empty") end
    for i, m in ipairs(modules) do
      if not base.is_module(m) then fail("stack_module_state: entry %d must be a module, got %s", i, describe(m)) end
      if class_name(m) ~= class_name(modules[1]) then
        fail("stack_module_state: entry 1 is %s, entry %d %s", class_name(modules[1]), i, class_name(m))
      end
      if m.training ~= modules[1].training then
        fail("stack_module_state: entries 1 and %d differ in being in training", i)
      end
    end
    return stacked(modules, function(m) return m:named_parameters() end),
      stacked(modules, function(m) return m:named_buffers() end)
  end

  -- ---- folding -------------------------------------------------------------------------------------------------

  -- A copy of `layer` that computes norm(layer(x)) with the statistics that norm has learnt. transposed: its weight is
  -- [in, out / groups, *].
  local function fused(who, layer, norm, transposed)
    if not base.is_module(layer) or not base.is_module(norm) or not norm.running_mean then
      fail("%s: a layer and a BatchNorm with running statistics are wanted", who)
    end
    if layer.training or norm.training then fail("%s: both must be in evaluation mode; call :eval() first", who) end
    local w = layer._parameters.weight
    if not w or rawget(layer, "_lora") then
      fail("%s: the weight of %s is not its own parameter: remove weight_norm, pruning or adapters before", who,
        class_name(layer))
    end
    local new = layer:clone()
    return T.no_grad(function()
      local scale = (norm.running_var + norm.eps):rsqrt()
      if norm.weight then scale = scale * norm.weight end
      local bias = (layer.bias and layer.bias - norm.running_mean or -norm.running_mean) * scale
      if norm.bias then bias = bias + norm.bias end
      local groups = transposed and layer.groups or 1
      local shape = transposed and { groups, w:size(1) // groups, w:size(2), -1 } or { 1, 1, w:size(1), -1 }
      local parts, rows = w:reshape(shape), { groups, 1, shape[3], 1 }
      local trained = { requires_grad = w.requires_grad }
      new.weight = base.Parameter((parts * scale:reshape(rows)):view(w:shape()):to(w:dtype()), trained)
      new.bias = base.Parameter(bias:to(w:dtype()), trained)
      return new
    end)
  end

  --- nn.utils.fuse_conv_bn_eval(conv, bn, {transpose=}) → conv
  -- One convolution that computes bn(conv(x)); both in evaluation mode. transpose, whether it is a transposed one, need
  -- be said of classes that are not perilune's only.
  --   local conv, bn = nn.Conv1d(1, 1, 1):eval(), nn.BatchNorm1d(1):eval()
  --   print(nn.utils.fuse_conv_bn_eval(conv, bn):type())  --> Conv1d
  function utils.fuse_conv_bn_eval(conv, bn, opts)
    local transposed = options.check("fuse_conv_bn_eval", opts, { "transpose" }).transpose
    local name = base.is_module(conv) and class_name(conv) or ""
    local known = name:find "^ConvTranspose%dd$" ~= nil
    if known or name:find "^Conv%dd$" then
      if transposed ~= nil and transposed ~= known then
        fail("fuse_conv_bn_eval: transpose = %s, and the layer is a %s", tostring(transposed), name)
      end
      transposed = known
    end
    return fused("fuse_conv_bn_eval", conv, bn, transposed or false)
  end

  --- nn.utils.fuse_linear_bn_eval(linear, bn) → linear
  -- One Linear that computes bn(linear(x)); both in evaluation mode.
  --   print(nn.utils.fuse_linear_bn_eval(nn.Linear(2, 1):eval(), nn.BatchNorm1d(1):eval()):type())  --> Linear
  function utils.fuse_linear_bn_eval(linear, bn) return fused("fuse_linear_bn_eval", linear, bn, false) end

  -- ---- gradients and sequences -------------------------------------------------------------------------------------

  --- nn.utils.get_total_norm(tensors, {norm_type=2}) → 0-d tensor
  -- The joint norm of tensors; of halves in f32.
  --   print(nn.utils.get_total_norm { T.tensor { 3 }, T.tensor { 4 } })  --> 5.  -- f32[] cpu
  function utils.get_total_norm(tensors, opts)
    local o = options.check("get_total_norm", opts, { "norm_type" })
    tensors = options.tensors("get_total_norm", "tensors", tensors)
    for i, t in ipairs(tensors) do
      if not t:is_floating_point() then fail("get_total_norm: entry %d must be floating, got %s", i, describe(t)) end
    end
    if o.norm_type ~= nil and type(o.norm_type) ~= "number" then
      fail("get_total_norm: norm_type must be a number, got %s", describe(o.norm_type))
    end
    if #tensors == 0 then return T.tensor(0.0) end
    return T.no_grad(function()
      local parts, home = {}, tensors[1]:device()
      local p = o.norm_type or 2.0
      for i, t in ipairs(tensors) do parts[i] = T.core.op.foreach_norm({ t }, { p = p }):to(home) end
      return T.core.op.foreach_norm(parts, { p = p })
    end)
  end

  --- nn.utils.clip_grads_with_norm_(params, max_norm, total_norm)
  -- Scales gradients by max_norm / total_norm, at most 1.
  --   local p = nn.Parameter(T.tensor { 3, 4 })
  --   local loss = (p * p / 2):sum()
  --   loss:backward()
  --   nn.utils.clip_grads_with_norm_({ p }, 1, T.tensor(10.0))
  --   print(p.grad)  --> {0.3000, 0.4000}  -- f32[2] cpu
  function utils.clip_grads_with_norm_(params, max_norm, total_norm)
    params = options.tensors("clip_grads_with_norm_", "params", params)
    if type(max_norm) ~= "number" or max_norm ~= max_norm or max_norm < 0 then
      fail("clip_grads_with_norm_: max_norm must be a number >= 0, got %s", describe(max_norm))
    end
    if not T.is_tensor(total_norm) then
      fail("clip_grads_with_norm_: total_norm must be a tensor, got %s", describe(total_norm))
    end
    T.no_grad(function()
      local scale = (max_norm / (total_norm + 1e-6)):clamp { max = 1.0 }
      for _, p in ipairs(params) do if p.grad then p.grad:mul_(scale:to(p.grad:device())) end end
    end)
  end

  return parameter, install
end
