-- SPDX-License-Identifier: MIT
--- How modules print: tostring as a tree, and summary as a table. Adds methods to the class Module.
local T = require "perilune"

return function(base)
  local Module, is_module, is_parameter, member_names = base.Module, base.is_module, base.is_parameter,
    base.member_names

  local function shape_text(t) return ("%s[%s]"):format(t:dtype(), table.concat(t:shape(), ",")) end
  base.shape_text = shape_text

  --- What tostring shows between the brackets; override it.
  function Module:extra_repr() return "" end

  local function indent(text) return (text:gsub("\n", "\n  ")) end

  function Module:__tostring()
    local extra, lines = self:extra_repr(), {}
    for _, key in ipairs(member_names(self)) do
      local child = rawget(self, key)
      if is_module(child) then lines[#lines + 1] = ("  (%s): %s"):format(key, indent(tostring(child))) end
    end
    if #lines == 0 then return self:type() .. "(" .. extra .. ")" end
    return self:type() .. "(" .. extra .. "\n" .. table.concat(lines, "\n") .. "\n)"
  end

  local function with_commas(n)
    local s = tostring(n)
    return (s:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
  end

  --- A table of all modules with their parameters as text; with an input also the shapes they return.
  function Module:summary(...)
    local rows, shapes, handles = {}, {}, {}
    if select("#", ...) > 0 then
      for _, m in ipairs(self:modules()) do
        handles[#handles + 1] = m:register_forward_hook(function(_, _, out)
          if type(out) == "userdata" then shapes[m] = shape_text(out) end
        end)
      end
      local modes = {}
      for _, m in ipairs(self:modules()) do modes[m] = m.training end
      local ok, err = pcall(function(...)
        local _ <close> = T.no_grad()
        self:eval()
        self(...)
      end, ...)
      for m, was in pairs(modes) do rawset(m, "training", was) end
      for _, handle in ipairs(handles) do handle:remove() end
      if not ok then error(err, 0) end
    end
    for name, m in self:named_modules() do
      local own = 0
      for _, key in ipairs(member_names(m)) do
        local p = base.member(m, key)
        if is_parameter[p] then own = own + p:numel() end
      end
      rows[#rows + 1] = { (name == "" and m:type() or ("%s (%s)"):format(name, m:type())), shapes[m] or "",
        with_commas(own) }
    end
    local w1, w2, w3 = 6, 6, 10
    for _, r in ipairs(rows) do w1, w2, w3 = math.max(w1, #r[1]), math.max(w2, #r[2]), math.max(w3, #r[3]) end
    local format = ("%%-%ds  %%-%ds  %%%ds"):format(w1, w2, w3)
    local out = { format:format("module", "output", "parameters"), ("-"):rep(w1 + w2 + w3 + 4) }
    for _, r in ipairs(rows) do out[#out + 1] = format:format(r[1], r[2], r[3]) end
    out[#out + 1] = ("-"):rep(w1 + w2 + w3 + 4)
    local total, trainable = self:num_parameters(), self:num_parameters { trainable = true }
    out[#out + 1] = ("%s parameters, %s trainable"):format(with_commas(total), with_commas(trainable))
    return table.concat(out, "\n")
  end
end
