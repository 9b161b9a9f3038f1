-- SPDX-License-Identifier: MIT
-- Functions that check their arguments by values work in traced and batched functions, too: a graph has no values, so
-- nothing is checked there; inside T.vmap all of the batch is.

local T = require "perilune"
local near = require "spec.support.near"

-- Tensors that are made when they are needed.
local function d(list) return function() return T.tensor(list, { dtype = "f64" }) end end
local function i(list) return function() return T.tensor(list, { dtype = "i64" }) end end
local F = T.nn.F

-- Name, function, good arguments, the argument that is spoiled, and how.
local CASES = {
  { "cov", function(x, w) return T.cov(x, { aweights = w }) end, { d { 1, 4, 2 }, d { 1, 2, 3 } }, 2, d { 1, -2, 3 } },
  { "quantile", function(x, q) return x:quantile(q) end, { d { 1, 4, 2 }, d { 0.5, 0.1 } }, 2, d { 0.5, 1.5 } },
  { "nanquantile", function(x, q) return x:nanquantile(q) end, { d { 1, 4, 2 }, d { 0.5 } }, 2, d { -0.5 } },
  { "mvlgamma", function(x) return T.mvlgamma(x, 3) end, { d { 2.5, 7 } }, 1, d { 2.5, 0.5 } },
  { "gaussian_nll_loss", F.gaussian_nll_loss, { d { 1, 2 }, d { 1, 3 }, d { 1, 2 } }, 3, d { 1, -2 } },
  { "unravel_index", function(x) return table.unpack(T.unravel_index(x, { 2, 3 })) end, { i { 1, 6 } }, 1, i { 1, 7 } },
  { "lu_solve", T.linalg.lu_solve, { d { { 4, 1 }, { 0.5, 3 } }, i { 2, 2 }, d { { 1 }, { 2 } } }, 2, i { 3, 2 } },
  { "lu_unpack", T.lu_unpack, { d { { 4, 1, 2 }, { 0.5, 3, 5 } }, i { 2, 2 } }, 2, i { 0, 2 } },
  { "embedding_bag", function(ids, table_, from) return F.embedding_bag(ids, table_, from, { mode = "sum" }) end,
    { i { 1, 2, 1 }, d { { 1, 2 }, { 3, 4 } }, i { 1, 3 } }, 3, i { 1, 5 } },
  { "Normal", function(x, s) return T.distributions.Normal(0, s):log_prob(x) end,
    { d { 1, 2 }, d { 1, 2 } }, 2, d { 1, -2 } },
  { "Dirichlet", function(x, c) return T.distributions.Dirichlet(c):log_prob(x) end,
    { d { 0.25, 0.75 }, d { 1, 2 } }, 1, d { 0.25, 0.5 } },
}

describe("checks by values:", function()
  for _, case in ipairs(CASES) do
    local name, f, makers, which, bad = table.unpack(case)
    local function made()
      local args, spoiled = {}, {}
      for k, make in ipairs(makers) do
        args[k] = make()
        spoiled[k] = k == which and bad() or args[k]
      end
      return args, spoiled
    end

    it(name .. " refuses, and is traced", function()
      local args, spoiled = made()
      local want = { f(table.unpack(args)) }
      local got = { T.jit(f)(table.unpack(args)) }
      for k, t in ipairs(want) do near.near(got[k], t, 1e-12) end
      assert(not pcall(f, table.unpack(spoiled)))
    end)

    it(name .. " is batched, and refuses what is bad for one of the batch", function()
      local args, spoiled = made()
      local want = { f(table.unpack(args)) }
      local both, mixed = {}, {}
      for k, x in ipairs(args) do
        both[k] = T.stack({ x, x }, 1)
        mixed[k] = T.stack({ x, spoiled[k] }, 1)
      end
      local batched = T.vmap(f)
      for k, t in ipairs { batched(table.unpack(both)) } do
        for at = 1, 2 do near.near(t[at], want[k], 1e-12) end
      end
      assert(not pcall(batched, table.unpack(mixed)))
    end)
  end

  it("lstsq gives residuals of a batch, NaN where one alone has none", function()
    local A, B = d { { { 1, 1 }, { 1, 2 }, { 1, 4 } }, { { 1, 1 }, { 1, 1 }, { 1, 1 } } }(), d { { 1 }, { 2 }, { 2 } }()
    local function f(a) return select(2, T.linalg.lstsq(a, B)) end
    local alone = f(A[1])
    local many = T.vmap(f)(A)
    near.near(many[1], alone, 1e-12)
    assert.is_true(many[2]:isnan():all():item())
    assert.equal(0, f(A[2]):numel())
    near.near(T.jit(f)(A[1]), alone, 1e-12)
  end)

  -- New checks are to go through perilune.values; these read numbers because their results depend on them.
  it("are made by one function", function()
    local root = os.getenv("PERILUNE_ROOT") or "."
    local own = { ["math/special.lua"] = 3, ["linalg/decompositions.lua"] = 0 }
    for _, folder in ipairs { "math", "tensor", "linalg", "nn/functional" } do
      local list = assert(io.popen(("ls %s/lua/perilune/%s/*.lua"):format(root, folder)))
      for path in list:lines() do
        local n = 0
        for line in io.lines(path) do
          if not line:find "^%s*%-%-" and (line:find ":any%(%):item" or line:find ":all%(%):item") then n = n + 1 end
        end
        local short = path:match "lua/perilune/(.+)$"
        assert(n == (own[short] or 0), ("%s reads values %d times; see perilune.values"):format(short, n))
      end
      list:close()
    end
  end)
end)
