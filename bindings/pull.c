/* SPDX-License-Identifier: MIT
 * What lua/perilune/functional.lua and manager.lua need of the engine: pulling gradients through a key that stays
 * usable, aliases with history, .grad of any tensor. Not public. */
#include <string.h>

#include "bindings/walk.h"
#include "engine/state.h"

static const char sums_key = 0; /* weak keys: box → box of its .grad */

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

/* What the boxes of the lists at 2 and 3 keep alive, for results recorded by other keys. Pushes it, or nil. */
static void push_anchors(lua_State *L) {
  lua_Integer n = 0;
  lua_newtable(L);
  for (int at = 2; at <= 3; at++) {
    int count = lua_type(L, at) == LUA_TTABLE ? (int)lua_rawlen(L, at) : 0;
    for (int i = 1; i <= count; i++) {
      lua_rawgeti(L, at, i);
      if (l_box(L, -1)) {
        if (lua_getiuservalue(L, -1, 1) != LUA_TNIL)
          lua_rawseti(L, -3, ++n);
        else
          lua_pop(L, 1);
      }
      lua_pop(L, 1);
    }
  }
  if (n) return;
  lua_pop(L, 1);
  lua_pushnil(L);
}

/* core.pull(key, ys, dys|nil, xs) → list of gradients, false where there is no path */
static int t_pull(lua_State *L) {
  lua_settop(L, 4);
  PlKey *k = to_key(L, 1);
  PlTensor **ys, **xs, **dys = NULL;
  int ny = list(L, 2, "pull", -1, &ys);
  if (!lua_isnil(L, 3)) list(L, 3, "pull", ny, &dys);
  int nx = list(L, 4, "pull", -1, &xs);
  PlTensor **out = lua_newuserdatauv(L, (size_t)(nx + 1) * sizeof *out, 0);
  lua_createtable(L, nx, 0);
  int res = lua_gettop(L);
  for (int i = 0; i < nx; i++) {
    l_new_box(L);
    lua_rawseti(L, res, i + 1);
  }
  push_anchors(L);
  int anchors = lua_gettop(L);
  lua_pushvalue(L, anchors);
  l_collect(L);
  l_swap_anchor(L, anchors + 1); /* there now: what rules of an outer walk were given */
  lua_State *was = l_running;
  l_running = L;
  PlStatus s = pl_key_pull(k, ys, dys, ny, xs, nx, out);
  l_running = was;
  l_swap_anchor(L, anchors + 1);
  CALL(L, s);
  for (int i = 0; i < nx; i++) {
    lua_rawgeti(L, res, i + 1);
    if (out[i]) {
      l_box(L, -1)->t = out[i];
      lua_pushvalue(L, anchors);
      lua_setiuservalue(L, -2, 1);
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
  lua_getiuservalue(L, 1, 1);
  lua_setiuservalue(L, -2, 1);
  return 1;
}

/* core.grad_add(x, g): x.grad += g; any floating tensor may hold a .grad */
static int t_grad_add(lua_State *L) {
  PlTensor *x = l_check_tensor(L, 1);
  CALL(L, pl_grad_add(x, l_check_tensor(L, 2)));
  lua_settop(L, 2);
  PlTensor *sum = pl_grad(x);
  if (!sum || !sum->node || !sum->node->has_lua) return 0;
  /* recorded by rules written in Lua: x's box keeps the sum's box (an ephemeron), which keeps the rules */
  l_push_weak_table(L, &sums_key, "k");
  lua_createtable(L, 2, 0); /* what earlier terms and this one keep */
  lua_pushvalue(L, 1);
  if (lua_rawget(L, 3) != LUA_TNIL) {
    lua_getiuservalue(L, -1, 1);
    lua_rawseti(L, 4, 1);
  }
  lua_getiuservalue(L, 2, 1);
  lua_rawseti(L, 4, 2);
  lua_pushvalue(L, 1);
  l_push_shared(L, sum);
  lua_pushvalue(L, 4);
  lua_setiuservalue(L, -2, 1);
  lua_rawset(L, 3);
  return 0;
}

/* Notes a node as seen (table at `at`) and to be looked at (list at `at` + 1). */
static void note_node(lua_State *L, int at, PlNode *n) {
  if (n && lua_rawgetp(L, at, n) == LUA_TNIL) {
    lua_pushboolean(L, 1);
    lua_rawsetp(L, at, n);
    lua_pushlightuserdata(L, n);
    lua_rawseti(L, at + 1, (lua_Integer)lua_rawlen(L, at + 1) + 1);
  }
  lua_settop(L, at + 1);
}

/* The box of a leaf keeps that of its .grad (an ephemeron), which keeps the rules of its history. */
static void anchor_leaf(lua_State *L, PlNode *n) {
  PlTensor *g = n->grad;
  if (n->kind != PL_NODE_LEAF || !n->u.target || !g || !g->node || !g->node->has_lua) return;
  l_push_weak_table(L, &sums_key, "k");
  l_push_shared(L, n->u.target);
  l_push_shared(L, g);
  lua_createtable(L, 2, 0);
  lua_getiuservalue(L, -2, 1);
  lua_rawseti(L, -2, 1);
  l_push_default_anchor(L);
  lua_rawseti(L, -2, 2);
  lua_setiuservalue(L, -2, 1);
  lua_rawset(L, -3);
}

void l_anchor_leaves(lua_State *L, const PlTensor *y) {
  PlNode *root;
  uint32_t slot;
  if (!y->node || !pl_entry_get(y, pl_key_ambient(), &root, &slot) || !root->has_lua) return;
  int top = lua_gettop(L), at = top + 1;
  luaL_checkstack(L, 12, NULL);
  lua_newtable(L);
  lua_newtable(L);
  note_node(L, at, root);
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, at + 1); i++) {
    lua_rawgeti(L, at + 1, i);
    PlNode *n = lua_touserdata(L, -1);
    lua_settop(L, at + 1);
    for (uint32_t d = 0; d < n->nin; d++) note_node(L, at, n->dests[d].node);
    anchor_leaf(L, n);
    lua_settop(L, at + 1);
  }
  lua_settop(L, top);
}

void l_pull_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"pull", t_pull},
                                       {"alias", t_alias},
                                       {"grad_add", t_grad_add},
                                       {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  l_batch_register(L);
  l_checkpoint_register(L);
  l_forward_register(L);
}
