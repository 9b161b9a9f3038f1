/* SPDX-License-Identifier: MIT
 * What lua/perilune/autograd/functional.lua and grad_manager.lua need of the engine: pulling gradients through a key that stays
 * usable, aliases with history, .grad of any tensor. Not public. */
#include <string.h>

#include "bindings/autograd/backward.h"
#include "engine/call/thread_state.h"

/* Tensors of the list at `at`. */
static int list(lua_State *L, int at, const char *fn, int n, PlTensor ***out) {
  luaL_checktype(L, at, LUA_TTABLE);
  if (n < 0) n = (int)lua_rawlen(L, at);
  PlTensor **v = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *v, 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, at, i + 1);
    v[i] = l_to_tensor(L, -1);
    if (!v[i]) return l_error(L, "%s: entry %d must be a tensor, got %s", fn, i + 1, l_typename(L, -1));
    lua_pop(L, 1);
  }
  *out = v;
  return n;
}

static PlKey *to_key(lua_State *L, int at) {
  PlKey **k = luaL_testudata(L, at, "perilune.GradKey");
  if (!k || !*k) l_error(L, "a live GradKey expected, got %s", l_typename(L, at));
  return *k;
}

/* core.key_gradients(key, ys, dys|nil, xs) → list of gradients, false where there is no path */
static int t_key_gradients(lua_State *L) {
  lua_settop(L, 4);
  PlKey *k = to_key(L, 1);
  PlTensor **ys, **xs, **dys = NULL;
  int ny = list(L, 2, "key_gradients", -1, &ys);
  if (!lua_isnil(L, 3)) list(L, 3, "key_gradients", ny, &dys);
  int nx = list(L, 4, "key_gradients", -1, &xs);
  PlTensor **out = lua_newuserdatauv(L, (size_t)(nx + 1) * sizeof *out, 0);
  lua_createtable(L, nx, 0);
  int res = lua_gettop(L);
  for (int i = 0; i < nx; i++) {
    l_new_box(L);
    lua_rawseti(L, res, i + 1);
  }
  l_collect(L);
  lua_State *was = l_running;
  l_running = L;
  PlStatus s;
  WORK(L, s, pl_key_pull(k, ys, dys, ny, xs, nx, out));
  l_running = was;
  CALL(L, s);
  for (int i = 0; i < nx; i++) {
    lua_rawgeti(L, res, i + 1);
    if (out[i]) {
      l_box(L, -1)->t = out[i];
    } else {
      lua_pushboolean(L, 0);
      lua_rawseti(L, res, i + 1);
    }
    lua_pop(L, 1);
  }
  lua_settop(L, res);
  return 1;
}

/* core.alias(x[, key]) → the same memory and history under a fresh handle, without what `key` recorded */
static int t_alias(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  PlKey *except = lua_isnoneornil(L, 2) ? NULL : to_key(L, 2);
  CALL(L, pl_history_refresh(t));
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_alias(&b->t, t));
  CALL(L, pl_entries_copy(b->t, t, except));
  return 1;
}

/* core.floats(v) → is it a floating tensor? */
static int t_floats(lua_State *L) {
  const Box *b = l_box(L, 1);
  lua_pushboolean(L, b && b->t && pl_is_float((PlDtype)b->t->a.dtype));
  return 1;
}

/* core.alike(a, b) → have both tensors the same shape and dtype for sure? Sizes of traced ones are for the trace to compare. */
static int t_alike(lua_State *L) {
  const PlTensor *a = l_check_tensor(L, 1), *b = l_check_tensor(L, 2);
  lua_pushboolean(L, !a->a.symbolic && !b->a.symbolic && a->a.dtype == b->a.dtype && pl_shape_equal(&a->a, &b->a));
  return 1;
}

/* core.grad_add(x, g): x.grad += g; any floating tensor may hold a .grad */
static int t_grad_add(lua_State *L) {
  PlTensor *x = l_check_tensor(L, 1);
  CALL(L, pl_grad_add(x, l_check_tensor(L, 2)));
  return 0;
}

/* core.adopt_grad(x, g): x.grad := g itself, which the caller made for it and hands to nobody else */
static int t_adopt_grad(lua_State *L) {
  PlTensor *x = l_check_tensor(L, 1);
  CALL(L, pl_set_grad(x, l_check_tensor(L, 2)));
  l_remember_box(L, 2);
  return 0;
}

/* core.torn(list) → the position of the first tensor in it whose .grad a backward that failed has added to, or nil */
static int t_torn(lua_State *L) {
  if (PL_LIKELY(!pl_state.torn && !pl_state.trace)) return 0;
  luaL_checktype(L, 1, LUA_TTABLE);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    const Box *b = l_box(L, -1);
    if (b && b->t && pl_grad_torn(b->t)) return lua_pushinteger(L, i), 1;
    lua_pop(L, 1);
  }
  return 0;
}

/* core.tear(x): x.grad, which another tensor took the place of, is torn as that one was */
static int t_tear(lua_State *L) {
  pl_grad_tear(l_check_tensor(L, 1));
  return 0;
}

void l_pull_register(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"key_gradients", t_key_gradients}, {"alias", t_alias}, {"floats", t_floats}, {"alike", t_alike}, {"grad_add", t_grad_add},
      {"adopt_grad", t_adopt_grad},       {"torn", t_torn},   {"tear", t_tear},     {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  l_batch_register(L);
  l_checkpoint_register(L);
  l_forward_register(L);
}
