-- SPDX-License-Identifier: MIT
-- What can be asked of a plan: its nodes, a table that says what it did, and a picture of the arena.
local PALETTE = { "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f" }

local BOX = '<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s" stroke="white" stroke-width="0.3">'
  .. "<title>%s, %s</title></rect>"

local function size(bytes)
  local units, u = { "B", "KB", "MB", "GB" }, 1
  while bytes >= 1000 and u < #units do bytes, u = bytes / 1000, u + 1 end
  return (u == 1 and "%d %s" or "%.2f %s"):format(bytes, units[u])
end

return function(Plan, core)
  --- plan:list() → the nodes that run, in order, as g:nodes() gives them.
  function Plan:list() return core.plan_nodes(self.handle) end

  --- Raises if the plan's graph breaks a rule: a bug of perilune.
  function Plan:verify() return core.plan_verify(self.handle) end

  --- plan:buffers() → list of {place="leaf", "output" or "arena", at=, bytes=, birth=, death=, name=}.
  function Plan:buffers() return core.plan_buffers(self.handle) end

  --- What the plan did, in one table.
  function Plan:__tostring()
    local removed = {}
    for name, pass in pairs(self.passes) do
      if pass.removed > 0 then removed[#removed + 1] = ("%s %d"):format(name, pass.removed) end
    end
    table.sort(removed)
    local fused = 0
    for _, group in ipairs(self.groups) do fused = fused + #group end
    local arena = size(self.arena_bytes)
    local rows = {
      { "nodes", ("%d"):format(self.nodes) },
      { "runs fused", #self.groups == 0 and "none" or ("%d nodes in %d groups"):format(fused, #self.groups) },
      { "removed by passes", #removed == 0 and "none" or table.concat(removed, ", ") },
      { "kept for backward", size(self.stash_bytes) },
      { "recomputed", ("%d nodes, policy %s, %.1f %% more operations"):format(self.recomputed, self.policy,
        100 * self.extra_flops / math.max(1, self.flops - self.extra_flops)) },
      { "arena", ("%s; alive at once %s; %d buffers in place of another"):format(arena, size(self.lower_bound_bytes),
        self.inplace) },
      { "leaves", size(self.leaf_bytes) },
      { "outputs", size(self.output_bytes) },
      { "peak", size(self.peak_bytes) },
    }
    if self.measured_bytes then
      rows[#rows + 1] = { "measured in a run", ("%s, of it %s workspace of kernels"):format(size(self.measured_bytes),
        size(self.workspace_bytes)) }
    end
    local d = self.device
    if d then
      rows[#rows + 1] = { "on the device", ("%d operations in %d kernels made for them; %s"):format(d.operations,
        d.groups, d.capture) }
    end
    local lines = {}
    for i, row in ipairs(rows) do lines[i] = ("%-18s %s"):format(row[1], row[2]) end
    return table.concat(lines, "\n")
  end

  --- plan:svg({width=, height=, bytes=}) → a drawing: time from left to right, the arena from bottom to top, a box a
  -- buffer. bytes: what the height stands for (the arena's), to compare two drawings.
  function Plan:svg(opts)
    opts = opts or {}
    local width, height = opts.width or 960, opts.height or 480
    local x = width / math.max(1, self.nodes)
    local y = height / math.max(1, opts.bytes or self.arena_bytes)
    local out = { ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif">')
      :format(width, height + 24) }
    for i, b in ipairs(self:buffers()) do
      if b.place == "arena" then
        local until_node = math.min(b.death, self.nodes)
        local name = b.name:gsub("[<>&\"]", { ["<"] = "&lt;", [">"] = "&gt;", ["&"] = "&amp;", ['"'] = "&quot;" })
        out[#out + 1] = (BOX):format((b.birth - 1) * x, height - (b.at + b.bytes) * y, (until_node - b.birth + 1) * x,
          b.bytes * y, PALETTE[i % #PALETTE + 1], name, size(b.bytes))
      end
    end
    out[#out + 1] = ('<text x="4" y="%d" font-size="12">%d nodes, arena %s, alive at once %s</text>')
      :format(height + 16, self.nodes, size(self.arena_bytes), size(self.lower_bound_bytes))
    out[#out + 1] = "</svg>\n"
    return table.concat(out, "\n")
  end
end
