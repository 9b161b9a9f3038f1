/* SPDX-License-Identifier: MIT
 * The backward of a rule of T.custom: its context is looked up, the Lua function called under lua_pcall, and what it
 * returns is checked against the inputs it belongs to. custom.c makes the rules. */
#include "bindings/autograd/custom_context.h"
#include "bindings/ops/call.h"
#include "engine/call/thread_state.h"
#include "engine/grad/backward_walk.h"

static bool fits(const PlTensor *g, const int64_t *sizes) {
  if (g->a.ndim != sizes[0]) return false;
  for (int d = 0; d < g->a.ndim; d++)
    if (g->a.shape[d] != sizes[2 + d]) return false;
  return g->a.dtype == sizes[1];
}

static PlStatus take_gradient(lua_State *L, int at, const char *name, int i, const int64_t *sizes, PlTensor **out) {
  PlTensor *g = l_to_tensor(L, at);
  if (!g && lua_isnil(L, at)) return PL_OK;
  if (!g) PL_FAIL(PL_ERR_ARG, "custom grad rule returned non-tensor: %s for input %d of %s", l_typename(L, at), i + 1, name);
  if (!fits(g, sizes)) {
    PlArray want = {.shape = sizes + 2, .ndim = (uint8_t)sizes[0], .dtype = (uint8_t)sizes[1]};
    PL_FAIL(PL_ERR_SHAPE, "custom grad rule of %s returned %s for input %d, which is %s", name, pl_desc_text(&g->a), i + 1,
            pl_desc_text(&want));
  }
  *out = pl_retain(g);
  return PL_OK;
}

/* Results above `top` on the stack → dx. */
static PlStatus read_results(lua_State *L, int top, PlNode *n, const int64_t *sizes, const bool *want, PlTensor **dx) {
  int got = lua_gettop(L) - top;
  if (got != (int)n->nin) {
    if (got == 0 || (got == 1 && lua_isnil(L, top + 1))) return PL_OK;
    PL_FAIL(PL_ERR_ARG,
            "custom grad rule returned wrong number of grads: %s has %u tensor inputs, its backward returned %d; it returns "
            "one for each tensor that forward got, and none for numbers and tables",
            n->name, n->nin, got);
  }
  for (uint32_t i = 0; i < n->nin; i++) {
    PlTensor *g = NULL;
    PL_TRY(take_gradient(L, top + 1 + (int)i, n->name, (int)i, sizes, &g));
    sizes += 2 + sizes[0];
    if (g && !want[i]) {
      pl_tensor_release(g);
      g = NULL;
    }
    dx[i] = g;
  }
  return PL_OK;
}

typedef struct RuleRun {
  PlNode *n;
  RuleData *r;
  PlTensor *const *dy;
  const bool *want;
  PlTensor **dx;
  Running *running;
  PlStatus status;
} RuleRun;

static PlStatus run_backward(lua_State *L, const RuleRun *run) {
  PlNode *n = run->n;
  const RuleData *r = run->r;
  if (lua_rawgeti(L, lua_upvalueindex(RUNNER_KEPT), r->rule.kept) != LUA_TTABLE)
    PL_FAIL(PL_ERR_STATE, "backward of %s: its Lua rule was collected as garbage; please report this", n->name);
  const int ctx = 2; /* 1 is the argument */
  if (!lua_getmetatable(L, ctx) || lua_rawgeti(L, -1, META_BACKWARD) == LUA_TNIL)
    PL_FAIL(PL_ERR_STATE, "backward of %s: it has no backward function", n->name);
  int top = ctx + 1;
  run->running->ctx = lua_topointer(L, ctx);
  lua_pushvalue(L, ctx);
  for (uint32_t o = 0; o < n->nout; o++) {
    if (!run->dy[o]) {
      lua_pushnil(L);
      continue;
    }
    Box *b = l_new_result(L, lua_upvalueindex(RUNNER_BOXES));
    b->t = pl_retain(run->dy[o]);
  }
  lua_call(L, 1 + (int)n->nout, LUA_MULTRET);
  return read_results(L, top, n, r->sizes, run->want, run->dx);
}

int l_rule_runner_ref(lua_State *L, Kept *k) {
  if (k->runner) return k->runner;
  l_kept_push_table(L, k);
  l_result_metatable(L);
  lua_pushcclosure(L, l_rule_runner, 2);
  return k->runner = luaL_ref(L, LUA_REGISTRYINDEX);
}

int l_rule_runner(lua_State *L) {
  RuleRun *run = lua_touserdata(L, 1);
  if (run->n->nout + run->n->nin > 4) luaL_checkstack(L, 24 + (int)run->n->nout + (int)run->n->nin, NULL);
  run->status = run_backward(L, run);
  return 0;
}

/* All of it under lua_pcall: nothing of Lua's may jump through the walk. */
PlStatus l_rule_backward(void *ud, PlNode *n, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  lua_State *L = l_running;
  RuleData *r = ud;
  if (!L || !lua_checkstack(L, 4)) PL_FAIL(PL_ERR_STATE, "backward of %s: no room on the Lua stack", n->name);
  if (!l_kept_here(L, r->kept)) PL_FAIL(PL_ERR_STATE, "backward of %s: its Lua rule belongs to another Lua state", n->name);
  uint64_t needs = 0;
  for (uint32_t i = 0; i < n->nin; i++) needs |= (uint64_t)want[i] << i;
  Running now = {.needs = needs, .nin = r->nin, .node = n, .nils = r->nils}, *outer = l_rule_running;
  RuleRun run = {n, r, dy, want, dx, &now, PL_OK};
  lua_rawgeti(L, LUA_REGISTRYINDEX, r->kept->runner);
  l_rule_running = &now;
  PlStatus s = l_call_in_modes(L, &run) == LUA_OK ? run.status : l_keep_error(L);
  l_rule_running = outer;
  if (s != PL_OK)
    for (uint32_t i = 0; i < n->nin; i++) {
      pl_tensor_release(dx[i]);
      dx[i] = NULL;
    }
  return s;
}
