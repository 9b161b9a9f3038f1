-- SPDX-License-Identifier: MIT
--- Feed-forward layers of decoders: gated ones, and mixtures of experts. @module perilune.nn.gated_mlp
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local options = require "perilune.options"

local Linear = require("perilune.nn.linear").Linear
local fail, describe = options.fail, options.describe
local class, Parameter = base.class, base.Parameter

local out = {}

local named = { silu = F.silu, gelu = F.gelu, relu = F.relu, sigmoid = F.sigmoid, tanh = F.tanh,
  gelu_tanh = function(x) return F.gelu(x, { approximate = "tanh" }) end }
local known = {}
for name in pairs(named) do known[#known + 1] = name end
table.sort(known)

-- A function from its name, or itself.
local function activation(who, v)
  local f = named[v]
  if f then return f end
  if type(v) == "string" then fail("%s: %s", who, options.unknown("activation", v, known)) end
  return options.kind(who, "activation", "callable", v)
end

--- nn.GatedMLP(…) → module
-- down(act(gate(x)) · up(x)) (Shazeer 2020): SwiGLU with silu, GeGLU with gelu. Children gate_proj, up_proj,
-- down_proj; fused: gate_up_proj in place of the first two. activation: silu, gelu, gelu_tanh, relu, sigmoid, tanh or
-- a function.
-- Shapes: [*, embed_dim] → the same
--   local mlp = nn.GatedMLP(4, 8)
--   print(mlp.down_proj)  --> Linear(in_features=8, out_features=4, bias=false)
--   print(table.concat(mlp(T.ones(2, 4)):shape(), " "))  --> 2 4
local Gated = class "GatedMLP"
local gated_spec = options.spec("nn.GatedMLP", { { "embed_dim", "count" }, { "hidden_dim", "count" },
  { "activation", "any", "silu" }, { "bias", "bool", false }, { "fused", "bool", false } })

function Gated:init(...)
  local a = options.read(gated_spec, ...)
  self.embed_dim, self.hidden_dim, self.fused = a.embed_dim, a.hidden_dim, a.fused
  self.activation = activation("nn.GatedMLP", a.activation) -- a module is a child, with parameters and a mode
  if a.fused then
    self.gate_up_proj = Linear(a.embed_dim, 2 * a.hidden_dim, { bias = a.bias })
  else
    self.gate_proj = Linear(a.embed_dim, a.hidden_dim, { bias = a.bias })
    self.up_proj = Linear(a.embed_dim, a.hidden_dim, { bias = a.bias })
  end
  self.down_proj = Linear(a.hidden_dim, a.embed_dim, { bias = a.bias })
end

function Gated:forward(x)
  local act = activation("nn.GatedMLP", self.activation)
  if not self.fused then return self.down_proj(act(self.gate_proj(x)) * self.up_proj(x)) end
  local all, n = self.gate_up_proj(x), self.hidden_dim
  return self.down_proj(act(all:narrow(-1, 1, n)) * all:narrow(-1, n + 1, n))
end

function Gated:extra_repr() return ("%d, %d"):format(self.embed_dim, self.hidden_dim) end
out.GatedMLP = Gated

-- ---- mixtures ----------------------------------------------------------------------------------------------

-- gate.weight [experts, width]: which experts a place goes to.
local Router = class "Router"
function Router:init(width, experts)
  self.weight = Parameter(T.empty { experts, width })
  init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
end
function Router:forward(x) return F.linear(x, self.weight) end

-- The weights of all experts, one tensor each of both layers.
local Experts = class "Experts"
function Experts:init(experts, width, hidden)
  self.gate_up_proj = Parameter(T.empty { experts, 2 * hidden, width })
  self.down_proj = Parameter(T.empty { experts, width, hidden })
  init.uniform_(self.gate_up_proj, -1 / math.sqrt(width), 1 / math.sqrt(width))
  init.uniform_(self.down_proj, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
end

--- nn.MixtureOfExperts(…) → module
-- Each place goes through top_k of num_experts gated MLPs, whose results are weighed by the router's softmax over all
-- experts (Shazeer et al. 2017); normalize: by the shares of the chosen ones among themselves. Children gate
-- [num_experts, embed_dim], experts.gate_up_proj [num_experts, 2 hidden_dim, embed_dim], experts.down_proj. Only the
-- chosen experts are computed; in T.jit all are, as their number is not known. Second result: the router's logits.
-- Shapes: [*, embed_dim] → the same, logits [places, num_experts]
--   local moe = nn.MixtureOfExperts(4, 8, { num_experts = 3, top_k = 2 })
--   print(table.concat((moe(T.ones(2, 5, 4))):shape(), " "))  --> 2 5 4
local Mixture = class "MixtureOfExperts"
local mixture_spec = options.spec("nn.MixtureOfExperts", { { "embed_dim", "count" }, { "hidden_dim", "count" },
  { "num_experts", "count" }, { "top_k", "count", 2 }, { "normalize", "bool", true }, { "activation", "any", "silu" } })

function Mixture:init(...)
  local a = options.read(mixture_spec, ...)
  if a.top_k > a.num_experts then
    fail("nn.MixtureOfExperts: top_k %d must not exceed num_experts %d", a.top_k, a.num_experts)
  end
  self.embed_dim, self.hidden_dim, self.num_experts = a.embed_dim, a.hidden_dim, a.num_experts
  self.top_k, self.normalize = a.top_k, a.normalize
  self.activation = activation("nn.MixtureOfExperts", a.activation)
  self.gate = Router(a.embed_dim, a.num_experts)
  self.experts = Experts(a.num_experts, a.embed_dim, a.hidden_dim)
end

function Mixture:forward(x)
  if not T.is_tensor(x) or x:size(-1) ~= self.embed_dim then
    fail("MixtureOfExperts: the last size of the input must be %d, got %s", self.embed_dim, describe(x))
  end
  local shape, n = x:shape(), self.hidden_dim
  local rows = x:reshape(-1, self.embed_dim)
  local logits = self.gate(rows)
  local share, chosen = logits:float():softmax(-1):topk(self.top_k, -1)
  if self.normalize then share = share / share:sum(-1, { keepdim = true }) end
  share = share:to(x:dtype())
  local y, w, act = T.zeros_like(rows), self.experts, activation("nn.MixtureOfExperts", self.activation)
  if T.core.jit_tracing() then -- how many places an expert gets is not known then: all of them, weighed with 0
    for e = 1, self.num_experts do
      local all = F.linear(rows, w.gate_up_proj:select(1, e))
      local z = act(all:narrow(2, 1, n)) * all:narrow(2, n + 1, n)
      local weight = share:masked_fill(chosen:ne(e), 0):sum(-1, { keepdim = true })
      y = y + F.linear(z, w.down_proj:select(1, e)) * weight
    end
    return y:view(shape), logits
  end
  for e = 1, self.num_experts do
    local at = T.no_grad(function() return chosen:eq(e):nonzero() end) -- [m, 2]: row, which of its top_k
    if at:size(1) > 0 then
      local row = at:select(2, 1)
      local part = rows:index_select(1, row)
      local all = F.linear(part, w.gate_up_proj:select(1, e))
      local z = act(all:narrow(2, 1, n)) * all:narrow(2, n + 1, n)
      local weight = share:flatten():index_select(1, (row - 1) * self.top_k + at:select(2, 2))
      y = y:index_add(1, row, F.linear(z, w.down_proj:select(1, e)) * weight:unsqueeze(2))
    end
  end
  return y:view(shape), logits
end

function Mixture:extra_repr()
  return ("%d, %d, experts=%d, top_k=%d"):format(self.embed_dim, self.hidden_dim, self.num_experts, self.top_k)
end
out.MixtureOfExperts = Mixture

return out
