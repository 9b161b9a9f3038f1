/* SPDX-License-Identifier: MIT
 * Contexts of custom rules: ctx:save, ctx:saved and marks.
 *
 * What forward saves is at [1 … n] of the context until the call is recorded, or among the call's arguments, which need no other
 * place; then the nodes hold it, as they hold what built-in ops save: it is freed with them, passes through T.saved_tensors, and
 * an output makes no cycle. Only a context
 * that saves outside of its forward keeps the tensors itself, [0] = n and [-1 … -n] their versions. Marks are under private
 * keys. */
#include "bindings/autograd/custom_context.h"

#include <string.h>

#include "engine/grad/backward_walk.h"

_Thread_local Running *l_rule_running;
const char l_non_diff_key = 0, l_dirty_key = 0;

/* ---- methods ------------------------------------------------------------------------------------------------ */

static Running *running(lua_State *L) {
  Running *r = l_rule_running;
  return r && r->ctx == lua_topointer(L, 1) ? r : NULL;
}

static int check_context(lua_State *L, const char *fn) {
  if (lua_type(L, 1) == LUA_TTABLE) return 0;
  return l_error(L, "ctx:%s: called without its context; write ctx:%s(...)", fn, fn);
}

/* Versions and count go into the table. */
static void save_in_table(lua_State *L, int n) {
  for (int i = 1; i <= n; i++) {
    PlTensor *t = l_to_tensor(L, i + 1);
    lua_pushinteger(L, t ? (lua_Integer)t->storage->version : 0);
    lua_rawseti(L, 1, -i);
  }
  lua_pushinteger(L, n);
  lua_rawseti(L, 1, 0);
}

static bool is_argument(const Running *r, const Box *b) {
  for (uint32_t k = 0; k < r->nin; k++)
    if (r->args[k] == b) return true;
  return false;
}

static int ctx_save(lua_State *L) {
  check_context(L, "save");
  int n = lua_gettop(L) - 1;
  Running *r = running(L);
  bool noted = r && r->forward && n <= MAX_CUSTOM;
  for (int i = 1; r && PL_UNLIKELY(i <= r->nsaved); i++) { /* what it replaces */
    lua_pushnil(L);
    lua_rawseti(L, 1, i);
  }
  for (int i = n; i > 0; i--) {
    Box *b = l_box(L, i + 1);
    if (PL_UNLIKELY(!b || !b->t) && !lua_isnil(L, i + 1))
      return l_error(L, "ctx:save: argument #%d must be a tensor or nil, got %s; keep other values as fields of ctx", i,
                     l_typename(L, i + 1));
    if (!noted) continue;
    r->versions[i - 1] = b ? b->t->storage->version : 0;
    r->saved[i - 1] = b && is_argument(r, b) ? b : NULL;
  }
  if (!noted) save_in_table(L, n);
  if (r) r->nsaved = noted ? n : 0;
  for (int i = n; i > 0; i--) {
    if (noted && r->saved[i - 1]) continue;
    lua_pushvalue(L, i + 1);
    lua_rawseti(L, 1, i);
  }
  return 0;
}

static int stale(lua_State *L, int i, const PlTensor *t, uint32_t version) {
  char by[160] = "";
  if (pl_state.watch) pl_state.watch->writer(t->storage, by, sizeof by);
  return l_error(L,
                 "ctx:saved: saved tensor %d, %s, was modified in place afterwards%s (version %u, saved at %u); "
                 "save a clone",
                 i, pl_desc_text(&t->a), by, t->storage->version, version);
}

/* What the running node holds. */
static int push_of_node(lua_State *L, PlNode *node, uint64_t nils) {
  const int n = (int)node->nsaved + (PL_UNLIKELY(nils != 0) ? __builtin_popcountll(nils) : 0);
  if (n + 4 > LUA_MINSTACK) luaL_checkstack(L, n + 4, NULL);
  for (int k = 0, i = 0; k < n; k++) {
    const PlSaved *s = &node->saved[i];
    if (nils >> k & 1) {
      lua_pushnil(L);
      continue;
    }
    i++;
    if (s->t && PL_UNLIKELY(s->t->storage->version != s->version)) return stale(L, k + 1, s->t, s->version);
    if (s->t && (s->t->flags & PL_T_BOXED) && (s->relink < 0 || pl_state.grad_off)) { /* a leaf, most often: the same Lua object */
      if (!l_push_known(L, lua_upvalueindex(1), s->t)) l_push_shared(L, s->t);
      continue;
    }
    Box *b = l_new_box(L);
    CALL(L, pl_saved_get(node, (uint32_t)i - 1, &b->t));
  }
  return n;
}

/* Of the forward that runs, or, NULL, of a context that saved outside of it: the versions are in the table. */
static int push_of_table(lua_State *L, int n, const Running *r) {
  luaL_checkstack(L, n + 4, NULL);
  for (int i = 1; i <= n; i++) {
    if (r && r->saved[i - 1] && r->saved[i - 1]->t) l_push_shared(L, r->saved[i - 1]->t);
    else if (r && r->saved[i - 1]) return l_error(L, "ctx:saved: saved tensor %d was freed", i);
    else lua_rawgeti(L, 1, i);
    const PlTensor *t = l_to_tensor(L, -1);
    if (!t && l_box(L, -1)) return l_error(L, "ctx:saved: saved tensor %d was freed", i);
    if (!t) continue;
    uint32_t version = t->storage->version;
    if (r) version = r->versions[i - 1];
    else {
      if (lua_rawgeti(L, 1, -i) == LUA_TNUMBER) version = (uint32_t)lua_tointeger(L, -1);
      lua_pop(L, 1);
    }
    if (PL_UNLIKELY(version != t->storage->version)) return stale(L, i, t, version);
  }
  return n;
}

static int ctx_saved(lua_State *L) {
  l_check_count(L, "ctx:saved", 1, "ctx");
  check_context(L, "saved");
  Running *r = running(L);
  if (r && r->node && (r->node->nsaved || r->nils)) return push_of_node(L, r->node, r->nils);
  const bool in_table = lua_rawgeti(L, 1, 0) == LUA_TNUMBER;
  const lua_Integer n = in_table ? lua_tointeger(L, -1) : 0;
  lua_settop(L, 1);
  if (n < 0 || n > 1 << 16) return l_error(L, "ctx:saved: ctx[0] was overwritten; it belongs to ctx:save");
  if (in_table) return push_of_table(L, (int)n, NULL);
  if (r) return r->forward ? push_of_table(L, r->nsaved, r) : 0;
  return l_error(L, "ctx:saved: what forward saved is there while backward of this call runs, not before or after");
}

static int mark(lua_State *L, const void *key, const char *fn) {
  check_context(L, fn);
  int n = lua_gettop(L);
  if (l_rule_running) l_rule_running->marks = true;
  if (lua_rawgetp(L, 1, key) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, 1, key);
  }
  for (int i = 2; i <= n; i++) {
    if (!l_box(L, i)) return l_error(L, "ctx:%s: argument #%d must be a tensor", fn, i - 1);
    lua_pushvalue(L, i);
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
  }
  return 0;
}
static int ctx_non_diff(lua_State *L) { return mark(L, &l_non_diff_key, "mark_non_differentiable"); }
/* core.rule_marked(context, tensor) → was it marked as not differentiable? */
int l_rule_marked(lua_State *L) {
  lua_settop(L, 2);
  bool yes = false;
  if (lua_istable(L, 1) && lua_rawgetp(L, 1, &l_non_diff_key) == LUA_TTABLE) {
    lua_pushvalue(L, 2);
    yes = lua_rawget(L, -2) != LUA_TNIL;
  }
  lua_pushboolean(L, yes);
  return 1;
}
static int ctx_dirty(lua_State *L) { return mark(L, &l_dirty_key, "mark_dirty"); }

/* What the table of methods lacks: needs_input_grad, as a list, while forward or backward runs. */
static int ctx_other(lua_State *L) {
  const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : NULL;
  if (key && strcmp(key, "save_for_backward") == 0) return l_error(L, "custom: tensors are kept with ctx:save(x, …)");
  if (key && strcmp(key, "saved_tensors") == 0) return l_error(L, "custom: ctx:saved() returns what ctx:save kept");
  if (!key || strcmp(key, "needs_input_grad") != 0) return 0;
  const Running *r = l_rule_running;
  int n = r ? (int)r->nin : 0;
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushboolean(L, (r->needs >> i) & 1);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

void l_push_context_methods(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"save", ctx_save}, {"saved", ctx_saved}, {"mark_non_differentiable", ctx_non_diff}, {"mark_dirty", ctx_dirty}, {NULL, NULL}};
  lua_newtable(L);
  l_push_boxes(L);
  luaL_setfuncs(L, methods, 1);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, ctx_other);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}
