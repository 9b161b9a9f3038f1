-- Gradient managers: which tensors get gradients, apart from what is computed with them.
--   local gm = T.GradManager():attach(net:parameters())
--   for x, y in loader do
--     local _ <close> = gm:record()
--     gm:backward(loss(net(x), y))     -- adds to .grad
--   end
-- While a manager records, the ambient key does not (nothing is recorded twice) unless the manager was made with
-- {ambient = true}. Inner managers do not see the backward of outer ones, outer ones see that of inner ones;
-- members of a group do not see each other's.
local classes = require "perilune.classes"
local options = require "perilune.options"

return function(T, core)
  local is_tensor, fail = core.is_tensor, options.fail

  local Manager = classes.new("GradManager", "gm")

  local function check(who, gm)
    if type(gm) ~= "table" or getmetatable(gm) ~= Manager then
      fail("GradManager: %s is a method of a manager; write gm:%s(…)", who, who)
    end
    return gm
  end

  -- One entry of the key for a tensor: its callbacks, in order of attachment, then .grad.
  local function watch(gm, t, spec)
    gm.key:attach(t, function(x, g)
      for _, fn in ipairs(spec.fns) do fn(x, g) end
      core.grad_add(x, g)
    end)
  end

  local function attach_one(gm, t, fn)
    if not is_tensor(t) then fail("attach: a tensor or a list of tensors expected, got %s", options.describe(t)) end
    if not t:is_floating_point() then
      fail("attach: only floating tensors have gradients, not %s; convert first, e.g. x:float()", t:describe())
    end
    local spec = gm.specs[t]
    if not spec then
      gm.count = gm.count + 1
      spec = { number = gm.count, fns = {} }
      gm.specs[t], gm.tensors[gm.count] = spec, t
      if gm.key then watch(gm, t, spec) end
    end
    for _, f in ipairs(type(fn) == "table" and fn or { fn }) do
      if type(f) ~= "function" then fail("attach: a callback must be a function, got %s", type(f)) end
      spec.fns[#spec.fns + 1] = f
    end
  end

  --- gm:attach(tensor or list, fn or list of fns) → gm. The gradient is added to .grad; fn(tensor, grad) is called with
  -- it just before. The manager does not keep the tensors alive.
  function Manager:attach(tensors, fn)
    check("attach", self)
    if fn ~= nil and type(fn) ~= "function" and type(fn) ~= "table" then
      fail("attach: the callback must be a function, got %s", type(fn))
    end
    if is_tensor(tensors) then
      attach_one(self, tensors, fn)
    elseif type(tensors) == "table" then
      local k = options.stray(tensors)
      if k ~= nil then
        fail("attach: a list of tensors expected, got a table with an entry '%s'; of a module: net:parameters()",
          tostring(k))
      end
      for i = 1, #tensors do attach_one(self, tensors[i], fn) end
    else
      fail("attach: a tensor or a list of tensors expected, got %s", options.describe(tensors))
    end
    return self
  end

  --- The attached tensors that are alive, in order of attachment.
  function Manager:attached()
    local list = {}
    for _, t in pairs(check("attached", self).tensors) do list[#list + 1] = t end
    table.sort(list, function(a, b) return self.specs[a].number < self.specs[b].number end)
    return list
  end

  local scope = { __close = core.held(function(self)
    if self.gm.key == self.key then self.gm:release() end
  end) }

  local begin = core.held(function(self)
    local group = self.group
    self.key = core.GradKey { level = group and group.level, ambient = self.ambient }
    core.key_begins(self.key) -- of this coroutine
    if group then
      group.level, group.running = self.key.level, group.running + 1
    end
    for _, t in ipairs(self:attached()) do watch(self, t, self.specs[t]) end
    return setmetatable({ gm = self, key = self.key }, scope)
  end)

  --- local _ <close> = gm:record(): what is computed from the attached tensors is recorded, until backward, release
  -- or the end of the block. gm:record(f, …) runs f inside such a block and returns its results.
  function Manager:record(f, ...)
    check("record", self)
    if f ~= nil then
      if type(f) ~= "function" then fail("record: a function expected, got %s", options.describe(f)) end
      local _ <close> = self:record()
      return f(...)
    end
    if self.key then fail("GradManager: it records already; call backward() or release() first") end
    return begin(self)
  end

  --- Ends the recording without gradients; nothing if there is none.
  function Manager:release()
    local key, group = check("release", self).key, self.group
    if not key then return self end
    self.key = nil
    if group then
      group.running = group.running - 1
      if group.running == 0 then group.level = nil end
    end
    core.key_ends(key)
    key:close()
    return self
  end

  --- gm:backward(y, dy): y and dy may be lists, dy defaults to ones, y to nothing. Ends the recording.
  function Manager:backward(ys, dys)
    local key = check("backward", self).key
    if not key then fail("GradManager: nothing is recorded; compute inside gm:record() and call backward once") end
    if ys == nil and dys == nil then ys, dys = {}, {} end
    local ok, err = pcall(key.backward, key, ys, dys)
    if not key.active and self.key == key then self:release() end
    if not ok then error(err, 0) end
    return self
  end

  function Manager:recording() return check("recording", self).key ~= nil end

  function Manager:__tostring()
    return ("GradManager(%d tensors%s)"):format(#self:attached(), self.key and ", recording" or "")
  end

  local function new(_, opts, ...)
    if select("#", ...) > 0 then require("perilune.surface").too_many("GradManager", { "options" }, opts, ...) end
    local o = options.check("GradManager", opts, { "ambient" })
    if o.ambient ~= nil and type(o.ambient) ~= "boolean" then
      fail("GradManager: ambient must be true or false, got %s", options.describe(o.ambient))
    end
    -- Weak keys would still have what is about to be finalized; weak values never do.
    local specs, tensors = setmetatable({}, { __mode = "k" }), setmetatable({}, { __mode = "v" })
    return setmetatable({ specs = specs, tensors = tensors, count = 0, ambient = o.ambient or false }, Manager)
  end

  -- T.GradManager.group{gm1, gm2, …} → the list. They record on one level: none sees another's backward.
  local function group(list)
    if type(list) ~= "table" or getmetatable(list) == Manager then
      fail("GradManager.group: a list of managers expected, got %s", options.describe(list))
    end
    options.list("GradManager.group", "the managers", list, "managers")
    for i, gm in ipairs(list) do
      if type(gm) ~= "table" or getmetatable(gm) ~= Manager then
        fail("GradManager.group: entry %d must be a manager, got %s", i, options.describe(gm))
      end
      if gm.key then fail("GradManager.group: manager %d records; release it first", i) end
    end
    local shared = { running = 0 }
    for _, gm in ipairs(list) do gm.group = shared end
    return list
  end

  --- T.GradManager{ambient=false} → manager
  -- Knows which tensors have gradients. gm:attach(tensor or list, fn) → gm; local _ <close> = gm:record();
  -- gm:backward(y, dy) adds to .grad after calling fn(tensor, gradient); gm:release() ends a recording without
  -- gradients; gm:attached(). While it records, requires_grad_ does not, unless ambient=true. T.GradManager.group{gm1,
  -- gm2}: none sees another's backward.
  --   local w = T.tensor { 2 }
  --   local gm = T.GradManager():attach(w)
  --   do
  --     local _ <close> = gm:record()
  --     gm:backward(w * 3)
  --   end
  --   print(w.grad)  --> {3.}  -- f32[1] cpu
  T.GradManager = setmetatable({ group = group }, { __call = new })
end
