/* SPDX-License-Identifier: MIT
 * Hooks and callbacks: Lua functions that run inside a walk. They live in user values of boxes and keys, never in the
 * registry, so cycles through them are collected. */
#include <stdlib.h>

#include "bindings/walk.h"
#include "engine/batch/batch.h"
#include "engine/graph/graph.h"
#include "engine/state.h"

const char l_keys_key = 0;

static void hook_drop(void *ud) { free(ud); }

/* One function's run. Bodies run under lua_pcall as a whole: nothing of Lua's may jump through the walk. */
typedef struct HookRun {
  HookData *h;
  PlTensor *grad, *replaced;
  PlStatus status;
} HookRun;

static PlStatus run_body(lua_CFunction body, HookRun *r) {
  lua_State *L = l_running;
  if (!L || !lua_checkstack(L, 4)) PL_FAIL(PL_ERR_STATE, "backward: no room on the Lua stack for a hook");
  lua_pushcfunction(L, body);
  lua_pushlightuserdata(L, r);
  return lua_pcall(L, 1, 0, 0) == LUA_OK ? r->status : l_keep_error(L);
}

static int callback_body(lua_State *L) {
  HookRun *r = lua_touserdata(L, 1);
  l_push_weak_table(L, &l_keys_key, "v");
  if (lua_rawgetp(L, -1, r->h->key) != LUA_TUSERDATA || lua_getiuservalue(L, -1, 1) != LUA_TTABLE ||
      lua_rawgeti(L, -1, r->h->index) != LUA_TTABLE)
    return 0;
  lua_rawgeti(L, -1, 1);
  lua_rawgeti(L, -2, 2);
  l_push_shared(L, r->grad);
  l_default_anchor(L, -1);
  lua_call(L, 2, 0);
  return 0;
}

PlStatus l_callback_call(void *ud, PlTensor *grad, PlTensor **replaced) {
  HookRun r = {.h = ud, .grad = grad};
  (void)replaced;
  return run_body(callback_body, &r);
}

static int hook_body(lua_State *L) {
  HookRun *r = lua_touserdata(L, 1);
  const PlTensor *grad = r->grad;
  l_push_weak_table(L, &l_hooks_key, "v");
  if (lua_rawgetp(L, -1, r->h) != LUA_TTABLE) return 0;
  lua_rawgeti(L, -1, 1);
  l_push_shared(L, r->grad);
  l_default_anchor(L, -1);
  lua_call(L, 1, 1);
  PlTensor *t = l_to_tensor(L, -1);
  if (!t && !lua_isnil(L, -1))
    r->status = pl_fail(PL_ERR_ARG, "a hook must return a tensor or nil, got %s", l_typename(L, -1));
  else if (t && (!pl_shape_equal(&t->a, &grad->a) || t->a.dtype != grad->a.dtype))
    r->status = pl_fail(PL_ERR_SHAPE, "a hook returned %s for a gradient %s", pl_desc_text(&t->a), pl_desc_text(&grad->a));
  else if (t && t != grad)
    r->replaced = pl_retain(t);
  return 0;
}

static PlStatus hook_call(void *ud, PlTensor *grad, PlTensor **replaced) {
  HookRun r = {.h = ud, .grad = grad};
  PL_TRY(run_body(hook_body, &r));
  *replaced = r.replaced;
  return PL_OK;
}

const char l_hooks_key = 0;

/* x:register_hook(function(grad) … end) → x. The function may return another gradient. */
int l_register_hook(lua_State *L) {
  PlTensor *t = l_self(L, "register_hook");
  if (lua_type(L, 2) != LUA_TFUNCTION) return l_error(L, "register_hook: a function expected, got %s", l_typename(L, 2));
  if (pl_behind(t)->a.symbolic && pl_state.trace) pl_state.trace->opaque = "a hook of register_hook";
  HookData *h = calloc(1, sizeof *h);
  PlHook *hook = calloc(1, sizeof *hook);
  if (!h || !hook) {
    free(h);
    free(hook);
    return l_error(L, "register_hook: out of memory");
  }
  *hook = (PlHook){.call = hook_call, .drop = hook_drop, .ud = h};
  PlStatus s = pl_add_hook(t, hook);
  if (s != PL_OK) {
    free(h);
    free(hook);
    return l_fail(L, s);
  }
  /* {fn, what was kept before}: reachable from the box, found again through a weak table */
  lua_createtable(L, 2, 0);
  lua_pushvalue(L, 2);
  lua_rawseti(L, -2, 1);
  lua_getiuservalue(L, 1, 1);
  lua_rawseti(L, -2, 2);
  l_push_weak_table(L, &l_hooks_key, "v");
  lua_pushvalue(L, -2);
  lua_rawsetp(L, -2, h);
  lua_pop(L, 1);
  lua_setiuservalue(L, 1, 1);
  t->node->has_lua = true;
  l_remember_box(L, 1);
  lua_settop(L, 1);
  return 1;
}

