/* SPDX-License-Identifier: MIT
 * Hooks and callbacks: Lua functions that run inside a walk. The nodes they are registered on keep them (collector/kept.h). */
#include <stdlib.h>

#include "bindings/autograd/backward.h"
#include "bindings/jit/program.h"
#include "engine/call/thread_state.h"
#include "engine/graph/ir/graph.h"
#include "engine/vmap/vmap.h"

/* What a handle in Lua and the hook share: the handle may outlive the hook, and the other way round. */
typedef struct HookRef {
  uint32_t refs;
  PlHook *hook; /* NULL: gone */
} HookRef;

typedef struct HookData {
  Kept *kept;
  int place; /* of the function; of {function, tensor} for callbacks; 0: removed */
  HookRef *ref;
  bool traced; /* registered by a traced function: all that the hook sees, that function does, or made itself */
} HookData;

static void ref_release(HookRef *r) {
  if (r && --r->refs == 0) free(r);
}

static void hook_drop(void *ud) {
  HookData *h = ud;
  l_kept_leave(h->kept, h->place);
  l_kept_release(h->kept);
  if (h->ref) h->ref->hook = NULL;
  ref_release(h->ref);
  free(h);
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

/* One function's run. Bodies run under lua_pcall as a whole: nothing of Lua's may jump through the walk. */
typedef struct HookRun {
  const HookData *h;
  PlTensor *grad, *replaced;
  PlStatus status;
} HookRun;

static PlStatus run_body(lua_CFunction body, HookRun *r) {
  lua_State *L = l_running;
  if (!L || !lua_checkstack(L, 4)) PL_FAIL(PL_ERR_STATE, "backward: no room on the Lua stack for a hook");
  if (!l_kept_here(L, r->h->kept)) PL_FAIL(PL_ERR_STATE, "backward: a hook belongs to another Lua state");
  lua_pushcfunction(L, body);
  return l_call_in_modes(L, r) == LUA_OK ? r->status : l_keep_error(L);
}

/* What was kept is there: tracing removes it only where nobody can run a backward any more. */
static bool push_kept(lua_State *L, HookRun *r) {
  l_kept_push(L, r->h->kept, r->h->place);
  if (lua_toboolean(L, -1)) {
    if (PL_UNLIKELY(pl_state.trace != NULL) && !r->h->traced) l_jit_hook_runs(L);
    return true;
  }
  r->status = pl_fail(PL_ERR_STATE, "backward: a hook was collected as garbage; please report this");
  return false;
}

static int callback_body(lua_State *L) {
  HookRun *r = lua_touserdata(L, 1);
  if (!push_kept(L, r)) return 0;
  lua_rawgeti(L, -1, 1);
  lua_rawgeti(L, -2, 2);
  Box *b = l_new_box(L);
  b->t = pl_retain(r->grad);
  lua_call(L, 2, 0);
  return 0;
}

static PlStatus callback_call(void *ud, PlTensor *grad, PlTensor **replaced) {
  HookRun r = {.h = ud, .grad = grad};
  (void)replaced;
  return run_body(callback_body, &r);
}

static int hook_body(lua_State *L) {
  HookRun *r = lua_touserdata(L, 1);
  const PlTensor *grad = r->grad;
  if (!push_kept(L, r)) return 0;
  l_push_shared(L, r->grad);
  lua_call(L, 1, 1);
  PlTensor *t = l_to_tensor(L, -1);
  if (!t && !lua_isnil(L, -1)) r->status = pl_fail(PL_ERR_ARG, "a hook must return a tensor or nil, got %s", l_typename(L, -1));
  else if (t && (!pl_shape_equal(&t->a, &grad->a) || t->a.dtype != grad->a.dtype))
    r->status = pl_fail(PL_ERR_SHAPE, "a hook returned %s for a gradient %s", pl_desc_text(&t->a), pl_desc_text(&grad->a));
  else if (t && t != grad) r->replaced = pl_retain(t);
  return 0;
}

static PlStatus hook_call(void *ud, PlTensor *grad, PlTensor **replaced) {
  HookRun r = {.h = ud, .grad = grad};
  PL_TRY(run_body(hook_body, &r));
  *replaced = r.replaced;
  return PL_OK;
}

static int accumulated_body(lua_State *L) {
  HookRun *r = lua_touserdata(L, 1);
  if (!push_kept(L, r)) return 0;
  l_push_shared(L, r->grad);
  lua_call(L, 1, 0);
  return 0;
}

static PlStatus accumulated_call(void *ud, PlTensor *leaf, PlTensor **replaced) {
  HookRun r = {.h = ud, .grad = leaf};
  (void)replaced;
  return run_body(accumulated_body, &r);
}

/* ---- making -------------------------------------------------------------------------------------------------------- */

PlHook *l_hook_new(lua_State *L, PlHookKind kind, const char *fn) {
  static PlStatus (*const calls[])(void *ud, PlTensor *grad, PlTensor **replaced) = {hook_call, callback_call, accumulated_call};
  Kept *k = l_kept(L);
  HookData *h = calloc(1, sizeof *h);
  PlHook *hook = calloc(1, sizeof *hook);
  if (!h || !hook) {
    free(h);
    free(hook);
    l_error(L, "%s: out of memory", fn);
    return NULL;
  }
  *hook = (PlHook){.call = calls[kind], .drop = hook_drop, .ud = h, .kind = (uint8_t)kind};
  *h = (HookData){.kept = k, .traced = pl_state.trace != NULL};
  k->refs++;
  return hook;
}

void l_hook_free(PlHook *hook) {
  hook->drop(hook->ud);
  free(hook);
}

static int keep_body(lua_State *L) {
  PlHook *hook = lua_touserdata(L, 2);
  HookData *h = hook->ud;
  lua_settop(L, 1);
  h->place = hook->kept = l_kept_put(L, h->kept);
  return 0;
}

PlStatus l_hook_keep(lua_State *L, PlHook *hook) {
  hook->who = ((uint64_t)(uintptr_t)lua_topointer(L, -1) << 2) + hook->kind + 1;
  lua_pushcfunction(L, keep_body);
  lua_insert(L, -2);
  lua_pushlightuserdata(L, hook);
  if (lua_pcall(L, 2, 0, 0) == LUA_OK) return PL_OK;
  lua_pop(L, 1);
  PL_FAIL(PL_ERR_OOM, "out of memory for a hook");
}

bool l_callable(lua_State *L, int at) {
  if (lua_type(L, at) == LUA_TFUNCTION) return true;
  if (l_box(L, at) || luaL_getmetafield(L, at, "__call") == LUA_TNIL) return false;
  lua_pop(L, 1);
  return true;
}

/* ---- handles of hooks ------------------------------------------------------------------------------------------------- */

static const char handle_type[] = "perilune.HookHandle";

/* handle:remove(): the hook does not run any more. Twice is no error, and it may remove itself while it runs. */
static int handle_remove(lua_State *L) {
  l_check_count(L, "remove", 1, "handle");
  HookRef **box = luaL_testudata(L, 1, handle_type);
  if (!box) return l_error(L, "remove: the handle of a hook expected, got %s; call it as handle:remove()", l_typename(L, 1));
  PlHook *hook = *box ? (*box)->hook : NULL;
  if (!hook || hook->removed) return 0;
  HookData *h = hook->ud;
  hook->removed = true;
  l_kept_leave(h->kept, h->place);
  h->place = hook->kept = 0;
  l_kept_sweep(L, h->kept);
  return 0;
}

static int handle_close(lua_State *L) {
  lua_settop(L, 1); /* behind it is the error */
  return handle_remove(L);
}

static int handle_gc(lua_State *L) {
  HookRef **box = lua_touserdata(L, 1);
  ref_release(*box);
  *box = NULL;
  return 0;
}

static int handle_tostring(lua_State *L) {
  HookRef **box = luaL_checkudata(L, 1, handle_type);
  const bool here = *box && (*box)->hook && !(*box)->hook->removed;
  lua_pushstring(L, here ? "HookHandle" : "HookHandle(removed)");
  return 1;
}

static HookRef **new_handle(lua_State *L) {
  HookRef **box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = NULL;
  if (luaL_newmetatable(L, handle_type)) {
    static const luaL_Reg methods[] = {{"remove", handle_remove}, {NULL, NULL}};
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, handle_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushcfunction(L, handle_close);
    lua_setfield(L, -2, "__close");
    lua_pushcfunction(L, handle_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
  }
  lua_setmetatable(L, -2);
  l_note_late(L);
  return box;
}

/* Would a hook of t be there after the traced function has returned? */
static bool is_from_outside(const PlGraph *f, const PlTensor *t) {
  return !t->a.symbolic || (pl_sym_graph(t) == f && f->vals[pl_sym_value(t)].kind != PL_FV_NODE);
}

static int add_hook(lua_State *L, PlHookKind kind, const char *fn, bool follows) {
  PlTensor *t = l_self(L, fn);
  l_check_count(L, fn, 2, "x, f");
  if (!l_callable(L, 2)) return l_error(L, "%s: a function expected, got %s", fn, l_typename(L, 2));
  if (pl_state.trace && is_from_outside(pl_state.trace, pl_behind(t)))
    return l_error_as(L, PL_ERR_TRACE,
                      "%s: the tensor comes from outside of the traced function, and a graph would not hook it; do it there", fn);
  lua_settop(L, 2);
  HookRef **box = new_handle(L);
  HookRef *ref = calloc(1, sizeof *ref);
  if (!ref) return l_error(L, "%s: out of memory", fn);
  ref->refs = 1;
  *box = ref;
  PlHook *hook = l_hook_new(L, kind, fn);
  if (follows) hook->follows = t;
  lua_pushvalue(L, 2);
  PlStatus s = l_hook_keep(L, hook);
  ((HookData *)hook->ud)->ref = ref;
  ref->hook = hook;
  ref->refs++;
  if (s == PL_OK) s = pl_add_hook(t, hook); /* it may drop the hook: the function of a checkpoint runs again */
  if (s != PL_OK) {
    l_hook_free(hook);
    return l_fail(L, s);
  }
  if (pl_behind(t)->a.symbolic && pl_state.trace) pl_state.trace->opaque = "a hook of register_hook";
  if (kind == PL_HOOK_ACCUMULATED) l_remember_box(L, 1); /* the hook gets the same Lua object */
  return 1;
}

/* x:register_hook(function(grad) … end) → handle. The function may return another gradient. */
int l_register_hook(lua_State *L) { return add_hook(L, PL_HOOK_REPLACE, "register_hook", false); }

/* core.register_retained_hook(x, f): the same, and it stays with x when x is written in place: f gets the gradient of what x is then. */
int l_register_retained_hook(lua_State *L) { return add_hook(L, PL_HOOK_REPLACE, "retain_grad", true); }

/* x:register_post_accumulate_grad_hook(function(x) … end) → handle. Runs when a backward has added to x.grad. */
int l_register_accumulated_hook(lua_State *L) { return add_hook(L, PL_HOOK_ACCUMULATED, "register_post_accumulate_grad_hook", false); }
