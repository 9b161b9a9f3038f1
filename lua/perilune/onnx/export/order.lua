-- SPDX-License-Identifier: MIT
--- Export of what looks at the order of numbers: medians, k-th ones, extremes so far.
-- @module perilune.onnx.export.order
return function(Export)
  local ops, float = Export.ops, Export.float

  local function axis_of(node, x)
    local dim = node.attrs.dim
    return dim < 0 and dim + #x.shape or dim - 1
  end
  local function base_of(e, node, at)
    local base = node.attrs.index_base or 1
    return base == 0 and at or e:emit("Add", { at, e:number(base, "i64") })
  end
  local function elements(e, name, at, axis) return e:emit("GatherElements", { name, at }, { axis = axis }) end

  -- Places in growing order, equal ones as they are, NaN last: TopK, which knows no order of NaN, is stable.
  local function order(e, name, d, axis, n)
    local function places(key)
      local _, at = e:emit("TopK", { key, e:integers { n } }, { axis = axis, largest = 0, sorted = 1 }, 2)
      return at
    end
    if not float[d] then return places(name) end
    local nan = e:emit("IsNaN", { name })
    local first = places(e:emit("Cast", { nan }, { to = Export.kind "i32" })) -- numbers, then those that are none
    local key = elements(e, e:emit("Where", { nan, e:number(math.huge, d), name }), first, axis)
    return elements(e, first, places(key), axis)
  end

  -- The k-th along an axis of n, and where it is.
  local function kth(e, node, x, axis, n, k)
    local d = x.dtype
    local at = order(e, x.name, d, axis, n)
    at = e:emit("Slice", { at, e:integers { k - 1 }, e:integers { k }, e:integers { axis } })
    local v = elements(e, x.name, at, axis)
    if node.attrs.keepdim then return v, at end
    return e:emit("Squeeze", { v, e:integers { axis } }), e:emit("Squeeze", { at, e:integers { axis } })
  end
  function ops.kthvalue(e, node, x)
    local axis = axis_of(node, x)
    local n, k = e:fixed(node, { x.shape[axis + 1] }, "the length")[1], e:fixed(node, { node.attrs.k }, "k")[1]
    local v, at = kth(e, node, x, axis, n, k)
    return v, e.wanted[node.outputs[2]] and base_of(e, node, at)
  end
  -- The lower one of two in the middle; NaN where there is one, the first of them.
  function ops.median(e, node, x)
    local d, axis, all = x.dtype, 0, node.attrs.dim == nil
    if all then
      local n = 1
      for _, m in ipairs(e:fixed(node, x.shape, "size")) do n = n * m end
      if node.attrs.keepdim then e:fail(node, "keepdim without dim is not supported") end
      x = { name = e:emit("Reshape", { x.name, e:integers { -1 } }), dtype = d, shape = { n } }
    else
      axis = axis_of(node, x)
    end
    local n = e:fixed(node, { x.shape[axis + 1] }, "the length")[1]
    if n == 0 then e:fail(node, "of nothing is not supported") end
    local v, at = kth(e, node, x, axis, n, (n + 1) // 2)
    if float[d] then
      local nan = e:emit("Cast", { e:emit("IsNaN", { x.name }) }, { to = Export.kind "i32" })
      local kept = node.attrs.keepdim and 1 or 0
      local some = e:emit("ReduceMax", { nan, e:integers { axis } }, { keepdims = kept })
      some = e:emit("Cast", { some }, { to = Export.kind "bool" })
      v = e:emit("Where", { some, e:number(0 / 0, d), v })
      at = e:emit("Where", { some, e:emit("ArgMax", { nan }, { axis = axis, keepdims = kept }), at })
    end
    return v, e.wanted[node.outputs[2]] and base_of(e, node, at)
  end

  -- What f makes of all pieces so far: each doubling of the distance joins those of a piece before.
  local function so_far(e, values, axis, n, f)
    local at = 1
    local function piece(name, from, to)
      return e:emit("Slice", { name, e:integers { from }, e:integers { to }, e:integers { axis } })
    end
    while at < n do
      local before, here = {}, {}
      for i, name in ipairs(values) do before[i], here[i] = piece(name, 0, n - at), piece(name, at, n) end
      local made = table.pack(f(before, here))
      for i, name in ipairs(values) do
        values[i] = e:emit("Concat", { piece(name, 0, at), made[i] }, { axis = axis })
      end
      at = 2 * at
    end
    return values
  end
  -- The latest of equal ones; from a NaN on it is NaN, the latest of them.
  for ours, beats in pairs { cummax = "Greater", cummin = "Less" } do
    ops[ours] = function(e, node, x)
      local axis, d, wanted = axis_of(node, x), x.dtype, e.wanted[node.outputs[2]]
      local n = e:fixed(node, { x.shape[axis + 1] }, "the length")[1]
      local values = { e:cast(x, node.dtypes[1]) }
      if wanted then
        local row = {}
        for k = 1, #x.shape do row[k] = k == axis + 1 and n or 1 end
        local places = {}
        for k = 1, n do places[k] = k - 1 end
        values[2] = e:emit("Expand", { e:reshape(e:integers(places), row), e:integers(x.shape) })
      end
      so_far(e, values, axis, n, function(before, here)
        local better = e:emit(beats, { before[1], here[1] })
        if float[d] then
          local lost = e:emit("And", { e:emit("IsNaN", { before[1] }),
            e:emit("Not", { e:emit("IsNaN", { here[1] }) }) })
          better = e:emit("Or", { better, lost })
        end
        local function choose(i) return before[i] and e:emit("Where", { better, before[i], here[i] }) end
        return choose(1), choose(2)
      end)
      return values[1], wanted and base_of(e, node, values[2])
    end
  end
  function ops.logcumsumexp(e, node, x)
    local axis, d = axis_of(node, x), node.dtypes[1]
    local n = e:fixed(node, { x.shape[axis + 1] }, "the length")[1]
    return so_far(e, { e:cast(x, d) }, axis, n, function(before, here)
      return Export.log_sum(e, before[1], here[1], d)
    end)[1]
  end
end
