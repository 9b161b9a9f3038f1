-- tostring(x): PyTorch's number formatting with {} so that the text of finite, unabridged tensors is valid Lua, then
-- a comment with dtype, shape, device and gradient. x:brief() is one line with statistics.
local options = require "perilune.options"

return function(T, core)
  local settings = { precision = 4, threshold = 1000, edgeitems = 3, linewidth = 80 }

  --- T.set_printoptions{precision=4, threshold=1000, edgeitems=3, linewidth=80}
  -- How tensors print: digits, elements before abridging, items kept at each end, columns. No table: as at first.
  --   T.set_printoptions { precision = 2 }
  --   print(T.tensor { 0.123456 })  --> {0.12}  -- f32[1] cpu
  --   T.set_printoptions()
  T.set_printoptions = function(opts)
    local defaults = { precision = 4, threshold = 1000, edgeitems = 3, linewidth = 80 }
    if opts == nil then settings = defaults return end
    options.check("set_printoptions", opts, { "precision", "threshold", "edgeitems", "linewidth" })
    for k, v in pairs(opts) do
      if math.type(v) ~= "integer" or v < 0 or v > 10000 then
        options.fail("set_printoptions: %s must be an integer from 0 to 10000, got %s", k, tostring(v))
      end
    end
    for k, v in pairs(opts) do settings[k] = v end
  end

  -- the values that will be shown
  local function shown(x, d, abridged, out)
    local nd = x:dim()
    if nd == 0 then out[#out + 1] = x:item() return out end
    local n = x:size(1)
    local e = settings.edgeitems
    for i = 1, n do
      if not abridged or n <= 2 * e or i <= e or i > n - e then
        if nd == 1 then out[#out + 1] = x:get(i) else shown(x[i], d + 1, abridged, out) end
      end
    end
    return out
  end

  local function special(v)
    if v ~= v then return "nan" end
    return v > 0 and "inf" or "-inf"
  end

  -- one format for all values: integers as "1.", fixed point, or scientific when the range asks for it
  local function formatter(values, floating)
    local format
    if not floating then
      format = tostring
    else
      local lo, hi, whole = math.huge, 0, true
      for _, v in ipairs(values) do
        if v == v and v ~= math.huge and v ~= -math.huge and v ~= 0 then
          local a = math.abs(v)
          if a < lo then lo = a end
          if a > hi then hi = a end
          if v ~= math.floor(v) then whole = false end
        end
      end
      local scientific = hi > 0 and (hi / lo > 1000 or hi > 1e8 or (not whole and lo < 1e-4))
      local fmt = scientific and ("%%.%de"):format(settings.precision)
        or whole and "%.0f." or ("%%.%df"):format(settings.precision)
      format = function(v)
        if v ~= v or v == math.huge or v == -math.huge then return special(v) end
        return fmt:format(v)
      end
    end
    local width = 0
    for _, v in ipairs(values) do -- PyTorch aligns on the finite values alone
      local n = (not floating or v - v == 0) and #format(v) or 0
      if n > width then width = n end
    end
    return function(v)
      local s = format(v)
      return (" "):rep(width - #s) .. s
    end, width
  end

  local function body(x, indent, abridged, fmt, width)
    local nd = x:dim()
    if nd == 0 then return fmt(x:item()) end
    local n, e = x:size(1), settings.edgeitems
    local cut = abridged and n > 2 * e
    local items = {}
    for i = 1, n do
      if cut and i == e + 1 then items[#items + 1] = nd == 1 and " ..." or "..." end
      if not cut or i <= e or i > n - e then
        items[#items + 1] = nd == 1 and fmt(x:get(i)) or body(x[i], indent + 1, abridged, fmt, width)
      end
    end
    if nd > 1 then
      return "{" .. table.concat(items, "," .. ("\n"):rep(nd - 1) .. (" "):rep(indent + 1)) .. "}"
    end
    local per_line = math.max(1, (settings.linewidth - indent) // (width + 2))
    local lines = {}
    for i = 1, #items, per_line do
      lines[#lines + 1] = table.concat(items, ", ", i, math.min(i + per_line - 1, #items))
    end
    return "{" .. table.concat(lines, ",\n" .. (" "):rep(indent + 1)) .. "}"
  end

  local function summary(x)
    local parts = { x:describe(), x:device() }
    if x.grad_fn then
      parts[#parts + 1] = "grad=" .. x.grad_fn
    elseif x.requires_grad then
      parts[#parts + 1] = "requires_grad"
    end
    return "-- " .. table.concat(parts, " ")
  end

  local function text(x)
    if not core.is_tensor(x) then return "tensor" end
    if core.is_freed(x) then return "tensor (freed)" end
    if core.is_symbolic(x) then return ("%%%d : %s symbolic"):format(core.graph_value(x), x:describe()) end
    if core.is_batched(x) then return "-- " .. x:describe() .. " for each of " .. core.batch_size(x) end
    local _ <close> = T.no_grad()
    if x:numel() == 0 then return "{}  " .. summary(x) end
    local abridged = x:numel() > settings.threshold
    local fmt, width = formatter(shown(x, 1, abridged, {}), x:is_floating_point())
    return body(x, 0, abridged, fmt, width) .. "  " .. summary(x)
  end
  core.text = text
  --- x:tostring() → text
  -- What print shows of a tensor.
  --   print(T.ones(2):tostring())  --> {1., 1.}  -- f32[2] cpu
  core.metatable().methods.tostring = function(x)
    if not core.is_tensor(x) then core.fail("tostring: argument #1 must be a tensor, got " .. type(x)) end
    return text(x)
  end

  local function short(v)
    if v ~= v or v == math.huge or v == -math.huge then return special(v) end
    return (("%.3g"):format(v):gsub("^(-?)0%.", "%1."))
  end

  --- x:brief() → text
  -- One line with dtype, sizes, range, mean, deviation and how many NaN there are.
  --   print(T.ones(2):brief())  --> f32[2] x∈[1,1] μ=1 σ=0 NaN:0
  core.metatable().methods.brief = function(x)
    if not core.is_tensor(x) then core.fail("brief: argument #1 must be a tensor, got " .. type(x)) end
    local _ <close> = T.no_grad()
    if x:numel() == 0 then return x:describe() .. " empty" end
    local v = x:dtype() == "f64" and x or x:to("f32")
    local ok = v:isnan():logical_not()
    local bad = x:numel() - ok:sum():item()
    if bad == x:numel() then return ("%s NaN:%d"):format(x:describe(), bad) end
    local clean = bad > 0 and v[ok] or v
    local sigma = clean:numel() > 1 and clean:std():item() or 0
    return ("%s x∈[%s,%s] μ=%s σ=%s NaN:%d"):format(x:describe(), short(clean:min():item()), short(clean:max():item()),
      short(clean:mean():item()), short(sigma), bad)
  end
end
