-- SPDX-License-Identifier: MIT
--- How modules print: tostring as a tree, and summary as a table. Adds methods to the class Module.
local T = require "perilune"
local class_name = require("perilune.surface").class_name

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
    if #lines == 0 then return class_name(self) .. "(" .. extra .. ")" end
    return class_name(self) .. "(" .. extra .. "\n" .. table.concat(lines, "\n") .. "\n)"
  end

  local function with_commas(n)
    local s = tostring(n)
    return (s:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
  end

  local function bytes_text(n)
    if n >= 1 << 30 then return ("%.2f GiB"):format(n / (1 << 30)) end
    if n >= 1 << 20 then return ("%.2f MiB"):format(n / (1 << 20)) end
    return n >= 1024 and ("%.2f KiB"):format(n / 1024) or n .. " B"
  end

  local function bytes_of(t) return t:numel() * t:element_size() end

  -- The shapes of what a module returns: of a tensor, of several, of tables of them.
  local function output_text(v, depth)
    if type(v) == "userdata" then return shape_text(v), bytes_of(v) end
    if type(v) ~= "table" or depth > 3 then return type(v), 0 end
    local out, bytes = {}, 0
    for i = 1, v.n or #v do
      local text, n = output_text(v[i], depth + 1)
      out[i], bytes = text, bytes + n
    end
    return table.concat(out, ", "), bytes
  end

  -- Runs the module once, as in evaluation and without gradients: module → {text, bytes} of its last call.
  local function run_once(self, ...)
    local outputs = {}
    local function begin(modules)
      local modes, handles = {}, {}
      for _, m in ipairs(modules) do
        modes[m] = m.training
        handles[#handles + 1] = m:register_forward_hook(function(_, _, out)
          local text, bytes = output_text(out, 1)
          outputs[m] = { text, bytes }
        end)
      end
      self:eval()
      return { modes = modes, handles = handles }
    end
    local function finish(state)
      for m, was in pairs(state.modes) do rawset(m, "training", was) end
      for _, handle in ipairs(state.handles) do handle:remove() end
    end
    local ok, err = pcall(T.core.around, begin, self:modules(), finish, T.no_grad, self, ...)
    return outputs, not ok and err or nil
  end

  -- Elements and bytes of what belongs to the module itself, not to its children; buffers count as bytes alone.
  local function own_size(m)
    local count, bytes = 0, 0
    for _, key in ipairs(member_names(m)) do
      local t = base.member(m, key)
      if is_parameter[t] then count = count + t:numel() end
      if type(t) == "userdata" then bytes = bytes + bytes_of(t) end
    end
    return count, bytes
  end

  local function aligned(rows)
    local width, out = {}, {}
    for _, row in ipairs(rows) do
      for i, text in ipairs(row) do width[i] = math.max(width[i] or 0, utf8.len(text) or #text) end
    end
    for k, row in ipairs(rows) do
      local line = {}
      for i, text in ipairs(row) do
        local gap = (" "):rep(width[i] - (utf8.len(text) or #text))
        line[i] = i <= #row - 2 and text .. gap or gap .. text
      end
      out[k] = table.concat(line, "  ")
    end
    return out
  end

  -- The sizes of an input, {1, 3, 32, 32}, stand for zeros.
  local function is_shape(v)
    if type(v) ~= "table" or #v == 0 or getmetatable(v) ~= nil then return false end
    for _, n in ipairs(v) do if math.type(n) ~= "integer" or n < 0 then return false end end
    return true
  end

  --- All modules with their parameters and bytes as text; with an input, `net:summary(x)`, or its sizes,
  -- `net:summary({1, 3, 32, 32})`, also what each returns and how much memory those results take. Nothing of the
  -- network changes.
  function Module:summary(...)
    if select("#", ...) == 1 and is_shape(...) then
      local p = self:parameters()[1]
      return self:summary(T.zeros(..., { device = p and p:device(), dtype = p and p:dtype() }))
    end
    local outputs, failed
    if select("#", ...) > 0 then outputs, failed = run_once(self, ...) end
    local rows = { outputs and { "module", "output", "parameters", "bytes" } or { "module", "parameters", "bytes" } }
    local activations = 0
    for name, m in self:named_modules() do
      local _, depth = name:gsub("%.", "")
      local count, bytes = own_size(m)
      local label = name == "" and class_name(m) or
        ("%s%s (%s)"):format(("  "):rep(depth + 1), name:match("[^.]*$"), class_name(m))
      local row = { label, with_commas(count), bytes_text(bytes) }
      if outputs then
        local o = outputs[m] or { "-", 0 }
        table.insert(row, 2, o[1])
        if #m:children() == 0 then activations = activations + o[2] end
      end
      rows[#rows + 1] = row
    end
    local lines = aligned(rows)
    local rule = ("-"):rep(utf8.len(lines[1]))
    table.insert(lines, 2, rule)
    local total, trainable, bytes = self:num_parameters(), self:num_parameters { trainable = true }, 0
    for _, list in ipairs { self:parameters(), self:buffers() } do
      for _, t in ipairs(list) do bytes = bytes + bytes_of(t) end
    end
    lines[#lines + 1] = rule
    lines[#lines + 1] = ("%s parameters, %s trainable; %s of weights%s"):format(with_commas(total),
      with_commas(trainable), bytes_text(bytes), outputs and (", %s of results"):format(bytes_text(activations)) or "")
    local text = table.concat(lines, "\n")
    if T.core.notebook then
      T.core.notebook.note(text, require("perilune.tools.html").table(rows, { left = outputs and 2 or 1,
        foot = lines[#lines] }))
    end
    if failed then error(("%s\nuntil then:\n%s"):format(tostring(failed), text), 0) end
    return text
  end
end
