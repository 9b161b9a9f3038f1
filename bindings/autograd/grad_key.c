/* SPDX-License-Identifier: MIT
 * Explicit gradient keys from Lua: T.GradKey with attach, backward, close. The nodes of attached tensors keep their callbacks. */
#include <string.h>

#include "bindings/autograd/backward.h"
#include "engine/call/thread_state.h"

static const char keys_key = 0; /* weak values: key → its box */

/* ---- keys ------------------------------------------------------------------------------------------------------------ */

typedef struct KeyBox {
  PlKey *k;
} KeyBox;

/* The key of a method that takes at most n arguments, with the key: `names`. */
static PlKey *check_key(lua_State *L, const char *fn, int n, const char *names) {
  l_check_count(L, fn, n, names);
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
  KeyBox *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->k = NULL;
  luaL_setmetatable(L, "perilune.GradKey");
  l_note_late(L);
  CALL(L, pl_key_new(&b->k, name, (int)level, !l_opt_bool(L, 1, "ambient", true)));
  l_push_weak_table(L, &keys_key, "v");
  lua_pushvalue(L, -2);
  lua_rawsetp(L, -2, b->k);
  lua_pop(L, 1);
  l_interrupt_spare();
  return 1;
}

/* key:attach(t, fn) → t. fn(tensor, grad) runs once, when the gradient of t is final; grad is its own. */
static int key_attach(lua_State *L) {
  PlKey *k = check_key(L, "attach", 3, "key, tensor, fn");
  PlTensor *t = l_check_tensor(L, 2);
  lua_settop(L, 3);
  if (!lua_isnil(L, 3) && !l_callable(L, 3)) return l_error(L, "attach: the callback must be a function, got %s", l_typename(L, 3));
  if (lua_isnil(L, 3)) {
    CALL(L, pl_key_attach(k, t, NULL));
    l_remember_box(L, 2);
    lua_settop(L, 2);
    return 1;
  }
  lua_createtable(L, 2, 0); /* the tensor, too: the callback gets the same object */
  lua_pushvalue(L, 3);
  lua_rawseti(L, -2, 1);
  lua_pushvalue(L, 2);
  lua_rawseti(L, -2, 2);
  PlHook *hook = l_hook_new(L, PL_HOOK_CALLBACK, "attach");
  PlStatus s = l_hook_keep(L, hook);
  if (s == PL_OK) s = pl_key_attach(k, t, hook);
  if (s != PL_OK) {
    l_hook_free(hook);
    return l_fail(L, s);
  }
  l_remember_box(L, 2);
  lua_settop(L, 2);
  return 1;
}

/* key:backward(ys, dys, {strict=}) */
static int key_backward(lua_State *L) {
  PlKey *k = check_key(L, "backward", 4, "key, ys, dys, options");
  lua_settop(L, 4);
  int opt = 4;
  if (lua_type(L, 3) == LUA_TTABLE && lua_rawlen(L, 3) == 0 && lua_isnil(L, 4)) {
    lua_getfield(L, 3, "strict");
    if (!lua_isnil(L, -1)) opt = 3;
    lua_pop(L, 1);
  }
  l_check_options(L, opt, "backward", "strict");
  PlTensor **ys, **dys = NULL;
  int n = l_tensor_list(L, 2, "backward", "ys", -1, false, &ys);
  if (!lua_isnil(L, 3) && opt != 3) {
    int m = l_gradient_list(L, 3, "backward", "dys", n, true, &dys);
    if (m != n) return l_error(L, "tensor and grad size mismatch: %d tensors, %d gradients", n, m);
  }
  bool strict = l_opt_bool(L, opt, "strict", false);
  l_collect(L);
  lua_State *was = l_enter_walk(L);
  l_backward_begins();
  PlStatus s;
  WORK(L, s, pl_key_backward(k, ys, dys, n, strict));
  l_running = was;
  l_backward_ends(L, s == PL_OK);
  CALL(L, s);
  return 0;
}

static int key_is_attached_to(lua_State *L) {
  PlKey *k = check_key(L, "is_attached_to", 2, "key, tensor");
  PlNode *n;
  uint32_t slot;
  PlTensor *t = l_check_tensor(L, 2);
  CALL(L, pl_history_current(&t, 1));
  lua_pushboolean(L, k->active && pl_entry_get(t, k, &n, &slot));
  return 1;
}

/* key:attached() → list of the attached tensors that are still alive, in order of attachment */
static int key_attached(lua_State *L) {
  PlKey *k = check_key(L, "attached", 1, "key");
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

/* Argument 1 of a metamethod whose upvalue is the metatable; NULL: it is something else. */
static KeyBox *own_box(lua_State *L) {
  KeyBox *b = lua_touserdata(L, 1);
  if (!b || !lua_getmetatable(L, 1)) return NULL;
  if (!lua_rawequal(L, -1, lua_upvalueindex(1))) b = NULL;
  lua_pop(L, 1);
  return b;
}

static int key_ends(lua_State *L) { /* __close */
  KeyBox *b = own_box(L);
  if (b && b->k) {
    pl_key_close(b->k);
    l_kept_sweep(L, l_kept(L));
  }
  return 0;
}

static int key_close(lua_State *L) {
  l_check_count(L, "close", 1, "key");
  KeyBox *b = luaL_testudata(L, 1, "perilune.GradKey");
  if (b && b->k) {
    pl_key_close(b->k);
    l_kept_sweep(L, l_kept(L));
  }
  return 0;
}

static int key_gc(lua_State *L) {
  KeyBox *b = own_box(L);
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

/* key.name = "…": no other field can be set. */
static int key_newindex(lua_State *L) {
  PlKey *k = check_key(L, "GradKey", 3, "key, name, value");
  const char *s = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : l_typename(L, 2);
  if (strcmp(s, "name") != 0) return l_error(L, "GradKey: its field '%s' cannot be set; only name can", s);
  if (lua_type(L, 3) != LUA_TSTRING) return l_error(L, "GradKey: name must be a string, got %s", l_typename(L, 3));
  CALL(L, pl_key_rename(k, lua_tostring(L, 3)));
  return 0;
}

static int key_tostring(lua_State *L) {
  PlKey *k = check_key(L, "GradKey", 3, "key, name, value");
  lua_pushfstring(L, "GradKey(%s, level %d%s)", k->name, k->level, k->active ? "" : ", finalized");
  return 1;
}

/* T.grad_keys() → the explicit keys that are not finalized, newest first */
static int t_grad_keys(lua_State *L) {
  if (pl_state.trace) return l_error_as(L, PL_ERR_TRACE, "grad_keys: inside of a traced function, which would not ask again; ask outside");
  int count = 0;
  for (PlKey *k = pl_state.keys; k; k = k->next) count++;
  lua_createtable(L, count, 0); /* all room at once: an allocation in the loop could finalize keys */
  lua_Integer i = 0;
  l_push_weak_table(L, &keys_key, "v");
  for (PlKey *k = pl_state.keys; k && i < count; k = k->next)
    if (k->active && lua_rawgetp(L, -1, k) == LUA_TUSERDATA) lua_rawseti(L, -3, ++i);
    else if (k->active) lua_pop(L, 1);
  lua_pop(L, 1);
  return 1;
}

void l_key_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"GradKey", t_grad_key}, {"grad_keys", t_grad_keys}, {NULL, NULL}};
  static const luaL_Reg key_methods[] = {{"attach", key_attach},     {"backward", key_backward}, {"is_attached_to", key_is_attached_to},
                                         {"attached", key_attached}, {"close", key_close},       {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  luaL_newmetatable(L, "perilune.GradKey");
  lua_newtable(L);
  luaL_setfuncs(L, key_methods, 0);
  lua_pushcclosure(L, key_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, key_newindex);
  lua_setfield(L, -2, "__newindex");
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, key_gc, 1);
  lua_setfield(L, -2, "__gc");
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, key_ends, 1);
  lua_setfield(L, -2, "__close");
  lua_pushcfunction(L, key_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}
