/* SPDX-License-Identifier: MIT
 * Gradients from Lua: requires_grad_, backward, grad_of, detach, hooks, and explicit keys with callbacks.
 * Closures live in user values of keys and boxes, never in the registry, so cycles through them are
 * collected. */
#include <stdlib.h>
#include <string.h>

#include "bindings/lib.h"
#include "engine/state.h"

_Thread_local lua_State *l_running;

static const char keys_key = 0, last_anchor_key = 0;

/* ---- entering the engine's walk --------------------------------------------------------------------------- */

/* Rules and callbacks need a state to run in; nested walks put the outer one back. The anchor on top of the
 * stack keeps closures of the history alive for results made during a recording backward. */
static lua_State *enter(lua_State *L) {
  lua_State *was = l_running;
  l_running = L;
  return was;
}

void l_default_anchor(lua_State *L, int box) {
  box = lua_absindex(L, box);
  Box *b = l_box(L, box);
  if (!b || !b->t || !b->t->node || !b->t->node->has_lua) return;
  if (lua_getiuservalue(L, box, 1) == LUA_TNIL) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &last_anchor_key);
    lua_setiuservalue(L, box, 1);
  }
  lua_pop(L, 1);
}

void l_swap_anchor(lua_State *L, int at) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &last_anchor_key);
  lua_pushvalue(L, at);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &last_anchor_key);
  lua_replace(L, at);
}

/* Remembers what the histories of the tensors at from … to keep alive, for gradients recorded by this walk. */
static void set_last_anchor(lua_State *L, int list, int one) {
  bool any = false;
  lua_newtable(L);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &last_anchor_key);
  lua_rawseti(L, -2, 1);
  int n = list ? (int)lua_rawlen(L, list) : 1;
  for (int i = 1; i <= n; i++) {
    if (list)
      lua_rawgeti(L, list, i);
    else
      lua_pushvalue(L, one);
    if (l_box(L, -1) && lua_getiuservalue(L, -1, 1) != LUA_TNIL) {
      lua_rawseti(L, -3, i + 1);
      any = true;
    } else if (l_box(L, -1))
      lua_pop(L, 1);
    lua_pop(L, 1);
  }
  if (any) {
    lua_pushnil(L); /* one generation back is enough: no chain of anchors */
    lua_rawseti(L, -2, 1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &last_anchor_key);
  } else
    lua_pop(L, 1);
}

/* Pushes what l_default_anchor gives, to be put back after a walk. */
static int keep_anchor(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &last_anchor_key);
  return lua_gettop(L);
}

static void restore_anchor(lua_State *L, int kept) {
  lua_pushvalue(L, kept);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &last_anchor_key);
}

/* ---- leaves ---------------------------------------------------------------------------------------------------- */

static PlTensor *self(lua_State *L, const char *fn) {
  Box *b = l_box(L, 1);
  if (!b) l_error(L, "%s: argument #1 must be a tensor, got %s", fn, l_typename(L, 1));
  if (b && !b->t) l_error(L, "%s: this tensor was freed", fn);
  return b ? b->t : NULL;
}

static int m_requires_grad_(lua_State *L) {
  PlTensor *t = self(L, "requires_grad_");
  bool on = lua_isnoneornil(L, 2) || lua_toboolean(L, 2);
  CALL(L, pl_requires_grad(t, on));
  l_remember_box(L, 1);
  lua_settop(L, 1);
  return 1;
}

/* x:backward(dy, {retain_graph=, create_graph=}) */
static int m_backward(lua_State *L) {
  PlTensor *y = self(L, "backward"), *dy = NULL;
  int opt = 3;
  if (lua_type(L, 2) == LUA_TTABLE)
    opt = 2;
  else if (!lua_isnoneornil(L, 2) && !(dy = l_to_tensor(L, 2)))
    return l_error(L, "backward: the gradient must be a tensor, got %s", l_typename(L, 2));
  if (lua_type(L, opt) == LUA_TTABLE && lua_getfield(L, opt, "inputs") != LUA_TNIL) {
    /* only into these leaves: made of grad_of, in lua/perilune/gradient.lua */
    lua_settop(L, opt);
    if (opt == 2) {
      lua_pushnil(L);
      lua_insert(L, 2);
    }
    lua_getfield(L, 1, "backward_into");
    lua_insert(L, 1);
    lua_call(L, 3, 0);
    return 0;
  }
  lua_settop(L, 3);
  l_check_options(L, opt, "backward", "gradient inputs retain_graph create_graph");
  if (lua_type(L, opt) == LUA_TTABLE && !dy) {
    lua_getfield(L, opt, "gradient");
    dy = l_to_tensor(L, -1);
    if (!dy && !lua_isnil(L, -1))
      return l_error(L, "backward: the gradient must be a tensor, got %s", l_typename(L, -1));
    lua_pop(L, 1);
  }
  bool create = l_opt_bool(L, opt, "create_graph", false);
  bool retain = l_opt_bool(L, opt, "retain_graph", create);
  if (create) set_last_anchor(L, 0, 1);
  l_collect(L);
  lua_State *was = enter(L);
  PlStatus s = pl_backward(&y, &dy, 1, retain, create);
  l_running = was;
  CALL(L, s);
  return 0;
}

/* Tensors of a list (or one tensor) at `at` into `out`; nil entries allowed if `holes`. Returns the count. */
static int tensor_list(lua_State *L, int at, const char *fn, const char *arg, int n_want, bool holes, PlTensor ***out) {
  if (l_box(L, at)) {
    PlTensor **v = lua_newuserdatauv(L, sizeof *v, 0);
    v[0] = l_check_tensor(L, at);
    *out = v;
    return 1;
  }
  if (lua_type(L, at) != LUA_TTABLE) return l_error(L, "%s: %s must be a tensor or a list of tensors, got %s", fn, arg, l_typename(L, at));
  int n = n_want >= 0 ? n_want : (int)lua_rawlen(L, at);
  PlTensor **v = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *v, 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, at, i + 1);
    v[i] = l_to_tensor(L, -1);
    if (!v[i] && !(holes && (lua_isnil(L, -1) || lua_isboolean(L, -1))))
      return l_error(L, "%s: entry %d of %s must be a tensor, got %s", fn, i + 1, arg, l_typename(L, -1));
    lua_pop(L, 1);
  }
  *out = v;
  return n;
}

/* T.grad_of(ys, xs, {grad_outputs=, retain_graph=, create_graph=, allow_unused=}) → list of gradients (one tensor for
 * one tensor); accumulates nothing. */
static int t_grad_of(lua_State *L) {
  lua_settop(L, 3);
  l_check_options(L, 3, "grad_of", "grad_outputs retain_graph create_graph allow_unused");
  PlTensor **ys, **xs, **dys = NULL;
  bool one = l_box(L, 2) != NULL;
  int ny = tensor_list(L, 1, "grad_of", "ys", -1, false, &ys);
  int nx = tensor_list(L, 2, "grad_of", "xs", -1, false, &xs);
  if (lua_type(L, 3) == LUA_TTABLE) {
    lua_getfield(L, 3, "grad_outputs");
    if (!lua_isnil(L, -1) && tensor_list(L, lua_gettop(L), "grad_of", "grad_outputs", ny, true, &dys) != ny)
      return l_error(L, "grad_of: %d outputs but a different number of grad_outputs", ny);
  }
  bool create = l_opt_bool(L, 3, "create_graph", false);
  bool retain = l_opt_bool(L, 3, "retain_graph", create);
  int kept = keep_anchor(L);
  if (create) set_last_anchor(L, lua_type(L, 1) == LUA_TTABLE ? 1 : 0, 1);
  PlTensor **out = lua_newuserdatauv(L, (size_t)(nx + 1) * sizeof *out, 0);
  lua_createtable(L, nx, 0);
  int res = lua_gettop(L);
  for (int i = 0; i < nx; i++) {
    l_new_box(L);
    lua_rawseti(L, res, i + 1);
  }
  l_collect(L);
  lua_State *was = enter(L);
  PlStatus s = pl_grad_of(ys, dys, ny, xs, nx, retain, create, l_opt_bool(L, 3, "allow_unused", false), out);
  l_running = was;
  if (s != PL_OK) restore_anchor(L, kept);
  CALL(L, s);
  for (int i = 0; i < nx; i++) {
    lua_rawgeti(L, res, i + 1);
    if (out[i]) {
      l_box(L, -1)->t = out[i];
      l_default_anchor(L, -1);
      lua_pop(L, 1);
    } else {
      lua_pop(L, 1);
      lua_pushnil(L);
      lua_rawseti(L, res, i + 1);
    }
  }
  restore_anchor(L, kept);
  lua_settop(L, res);
  if (one) lua_rawgeti(L, res, 1);
  return 1;
}

static int m_detach(lua_State *L) {
  PlTensor *t = self(L, "detach");
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_alias(&b->t, t));
  b->t->flags |= PL_T_DETACHED;
  return 1;
}

static int m_detach_(lua_State *L) {
  pl_entries_drop(self(L, "detach_"));
  lua_settop(L, 1);
  return 1;
}

/* core.grad_enabled([on]) → previous state */
static int t_grad_enabled(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_pushboolean(L, !pl_state.grad_off);
    return 1;
  }
  lua_pushboolean(L, pl_grad_enable(lua_toboolean(L, 1)));
  return 1;
}

/* ---- hooks and callbacks ------------------------------------------------------------------------------------------ */

/* A hook finds its function in the user value of the box it was registered on, a callback in that of its key. */
typedef struct HookData {
  PlKey *key;       /* callbacks: whose */
  PlTensor *tensor; /* hooks: on which handle (weak) */
  lua_Integer index;
} HookData;

static void hook_drop(void *ud) { free(ud); }

static void push_weak_table(lua_State *L, const void *key) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, key) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

void l_push_weak_table(lua_State *L, const void *key) { push_weak_table(L, key); }

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
  push_weak_table(L, &keys_key);
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

static PlStatus callback_call(void *ud, PlTensor *grad, PlTensor **replaced) {
  HookRun r = {.h = ud, .grad = grad};
  (void)replaced;
  return run_body(callback_body, &r);
}

static int hook_body(lua_State *L) {
  HookRun *r = lua_touserdata(L, 1);
  const PlTensor *grad = r->grad;
  push_weak_table(L, &l_hooks_key);
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
static int m_register_hook(lua_State *L) {
  PlTensor *t = self(L, "register_hook");
  if (lua_type(L, 2) != LUA_TFUNCTION) return l_error(L, "register_hook: a function expected, got %s", l_typename(L, 2));
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
  push_weak_table(L, &l_hooks_key);
  lua_pushvalue(L, -2);
  lua_rawsetp(L, -2, h);
  lua_pop(L, 1);
  lua_setiuservalue(L, 1, 1);
  t->node->has_lua = true;
  l_remember_box(L, 1);
  lua_settop(L, 1);
  return 1;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------ */

typedef struct KeyBox {
  PlKey *k;
} KeyBox;

static PlKey *check_key(lua_State *L) {
  KeyBox *b = luaL_testudata(L, 1, "perilune.GradKey");
  if (!b || !b->k) {
    l_error(L, "GradKey: argument #1 must be a live GradKey, got %s", l_typename(L, 1));
    return NULL;
  }
  return b->k;
}

/* T.GradKey{name=, level=, ambient=}: level defaults to one above the highest active key. ambient=false: the
 * ambient key does not record while this one lives. */
static int t_grad_key(lua_State *L) {
  l_check_options(L, 1, "GradKey", "name level ambient");
  const char *name = NULL;
  int64_t level = pl_key_top_level() + 1;
  if (lua_type(L, 1) == LUA_TTABLE) {
    lua_getfield(L, 1, "name");
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING) return l_error(L, "GradKey: name must be a string");
    name = lua_tostring(L, -1);
    lua_getfield(L, 1, "level");
    if (!lua_isnil(L, -1)) level = l_check_int(L, lua_gettop(L), "GradKey", "level");
  }
  if (level > 1 << 20 || level < -(1 << 20)) return l_error(L, "GradKey: level %lld is out of range", (long long)level);
  KeyBox *b = lua_newuserdatauv(L, sizeof *b, 1);
  b->k = NULL;
  luaL_setmetatable(L, "perilune.GradKey");
  l_note_late(L);
  CALL(L, pl_key_new(&b->k, name, (int)level, !l_opt_bool(L, 1, "ambient", true)));
  lua_newtable(L);
  lua_setiuservalue(L, -2, 1);
  push_weak_table(L, &keys_key);
  lua_pushvalue(L, -2);
  lua_rawsetp(L, -2, b->k);
  lua_pop(L, 1);
  return 1;
}

/* key:attach(t, fn) → t. fn(tensor, grad) runs once, when the gradient of t is final. */
static int key_attach(lua_State *L) {
  PlKey *k = check_key(L);
  PlTensor *t = l_check_tensor(L, 2);
  lua_settop(L, 3);
  if (!lua_isnil(L, 3) && lua_type(L, 3) != LUA_TFUNCTION)
    return l_error(L, "attach: the callback must be a function, got %s", l_typename(L, 3));
  if (lua_isnil(L, 3)) {
    CALL(L, pl_key_attach(k, t, NULL));
    l_remember_box(L, 2);
    lua_settop(L, 2);
    return 1;
  }
  HookData *h = calloc(1, sizeof *h);
  PlHook *hook = calloc(1, sizeof *hook);
  if (!h || !hook) {
    free(h);
    free(hook);
    return l_error(L, "attach: out of memory");
  }
  lua_getiuservalue(L, 1, 1);
  *h = (HookData){.key = k, .index = (lua_Integer)lua_rawlen(L, -1) + 1};
  *hook = (PlHook){.call = callback_call, .drop = hook_drop, .ud = h, .callback = true};
  PlStatus s = pl_key_attach(k, t, hook);
  if (s != PL_OK) {
    free(h);
    free(hook);
    return l_fail(L, s);
  }
  lua_createtable(L, 2, 0);
  lua_pushvalue(L, 3);
  lua_rawseti(L, -2, 1);
  lua_pushvalue(L, 2);
  lua_rawseti(L, -2, 2);
  lua_rawseti(L, -2, h->index);
  l_remember_box(L, 2);
  lua_settop(L, 2);
  return 1;
}

static int clear_callbacks(lua_State *L) {
  lua_newtable(L);
  lua_setiuservalue(L, 1, 1);
  return 0;
}

/* key:backward(ys, dys, {strict=}) */
static int key_backward(lua_State *L) {
  PlKey *k = check_key(L);
  lua_settop(L, 4);
  int opt = 4;
  if (lua_type(L, 3) == LUA_TTABLE && lua_rawlen(L, 3) == 0 && lua_isnil(L, 4)) {
    lua_getfield(L, 3, "strict");
    if (!lua_isnil(L, -1)) opt = 3;
    lua_pop(L, 1);
  }
  l_check_options(L, opt, "backward", "strict");
  PlTensor **ys, **dys = NULL;
  int n = tensor_list(L, 2, "backward", "ys", -1, false, &ys);
  if (!lua_isnil(L, 3) && opt != 3) {
    int m = tensor_list(L, 3, "backward", "dys", -1, false, &dys);
    if (m != n) return l_error(L, "tensor and grad size mismatch: %d tensors, %d gradients", n, m);
  }
  bool strict = l_opt_bool(L, opt, "strict", false);
  int kept = keep_anchor(L);
  set_last_anchor(L, lua_type(L, 2) == LUA_TTABLE ? 2 : 0, 2);
  l_collect(L);
  lua_State *was = enter(L);
  PlStatus s = pl_key_backward(k, ys, dys, n, strict);
  l_running = was;
  restore_anchor(L, kept);
  if (!k->active) clear_callbacks(L);
  CALL(L, s);
  return 0;
}

static int key_is_attached_to(lua_State *L) {
  PlKey *k = check_key(L);
  PlNode *n;
  uint32_t slot;
  lua_pushboolean(L, k->active && pl_entry_get(l_check_tensor(L, 2), k, &n, &slot));
  return 1;
}

/* key:attached() → list of the attached tensors that are still alive, in order of attachment */
static int key_attached(lua_State *L) {
  PlKey *k = check_key(L);
  int count = 0, i = 0;
  for (PlNode *n = k->tape.next; n != &k->tape; n = n->next) count += n->kind <= PL_NODE_IDENTITY;
  /* Boxes first, then tensors: making a Lua object may collect tensors, and so nodes. */
  lua_createtable(L, count, 0);
  int list = lua_gettop(L);
  for (; i < count; i++) {
    l_new_box(L);
    lua_rawseti(L, list, i + 1);
  }
  i = 0;
  for (PlNode *n = k->tape.next; n != &k->tape && i < count; n = n->next) {
    if (n->kind > PL_NODE_IDENTITY || !n->u.target) continue;
    lua_rawgeti(L, list, ++i);
    l_box(L, -1)->t = pl_retain(n->u.target);
    lua_pop(L, 1);
  }
  for (int j = 1; j <= count; j++) {
    lua_rawgeti(L, list, j);
    l_push_shared(L, l_to_tensor(L, -1));
    lua_rawseti(L, list, j);
    lua_settop(L, list);
  }
  return 1;
}

static int key_close(lua_State *L) {
  KeyBox *b = luaL_testudata(L, 1, "perilune.GradKey");
  if (b && b->k) {
    pl_key_close(b->k);
    clear_callbacks(L);
  }
  return 0;
}

static int key_gc(lua_State *L) {
  KeyBox *b = luaL_testudata(L, 1, "perilune.GradKey");
  if (b && b->k) {
    PlKey *k = b->k;
    b->k = NULL;
    pl_key_close(k); /* before the release: a running walk may hold it */
    pl_key_release(k);
  }
  return 0;
}

static int key_index(lua_State *L) {
  KeyBox *b = luaL_testudata(L, 1, "perilune.GradKey");
  const char *s = lua_tostring(L, 2);
  if (b && b->k && s) {
    if (strcmp(s, "name") == 0) return lua_pushstring(L, b->k->name), 1;
    if (strcmp(s, "level") == 0) return lua_pushinteger(L, b->k->level), 1;
    if (strcmp(s, "active") == 0) return lua_pushboolean(L, b->k->active), 1;
  }
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  return 1;
}

static int key_tostring(lua_State *L) {
  PlKey *k = check_key(L);
  lua_pushfstring(L, "GradKey(%s, level %d%s)", k->name, k->level, k->active ? "" : ", finalized");
  return 1;
}

/* T.grad_keys() → names of the live explicit keys, newest first */
static int t_grad_keys(lua_State *L) {
  int count = 0;
  for (PlKey *k = pl_state.keys; k; k = k->next) count++;
  lua_createtable(L, count, 0); /* all room at once: an allocation in the loop could finalize keys */
  lua_Integer i = 0;
  push_weak_table(L, &keys_key);
  for (PlKey *k = pl_state.keys; k && i < count; k = k->next)
    if (lua_rawgetp(L, -1, k) == LUA_TUSERDATA)
      lua_rawseti(L, -3, ++i);
    else
      lua_pop(L, 1);
  lua_pop(L, 1);
  return 1;
}

void l_grad_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"grad_of", t_grad_of},
                                       {"grad_enabled", t_grad_enabled},
                                       {"GradKey", t_grad_key},
                                       {"grad_keys", t_grad_keys},
                                       {NULL, NULL}};
  static const luaL_Reg methods[] = {{"requires_grad_", m_requires_grad_},
                                     {"backward", m_backward},
                                     {"detach", m_detach},
                                     {"detach_", m_detach_},
                                     {"register_hook", m_register_hook},
                                     {NULL, NULL}};
  static const luaL_Reg key_methods[] = {{"attach", key_attach},
                                         {"backward", key_backward},
                                         {"is_attached_to", key_is_attached_to},
                                         {"attached", key_attached},
                                         {"close", key_close},
                                         {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  l_add_methods(L, methods);
  l_pull_register(L);
  l_anomaly_register(L);
  luaL_newmetatable(L, "perilune.GradKey");
  lua_newtable(L);
  luaL_setfuncs(L, key_methods, 0);
  lua_pushcclosure(L, key_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, key_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushcfunction(L, key_close);
  lua_setfield(L, -2, "__close");
  lua_pushcfunction(L, key_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}
