/* SPDX-License-Identifier: MIT
 * Contexts of custom rules: ctx:save, ctx:saved, marks, and the weak table through which nodes find them.
 *
 * Layout of a context: [1 … n] saved tensors. Their count and versions are kept with the rule, where no field of the
 * user's can touch them; only a context that saves outside its forward has them in the table, [0] = n and
 * [-1 … -n] the versions. Under private keys: the marks, and what the inputs' histories keep alive. */
#include "bindings/context.h"
#include "bindings/saved.h"

#include <stdlib.h>
#include <string.h>

_Thread_local Running *l_rule_running;
const char l_non_diff_key = 0, l_dirty_key = 0, l_upstream_key = 0;

static const char slots_key = 0; /* registry: the state's Slots */

/* ---- slots -------------------------------------------------------------------------------------------------- */

void l_slots_release(Slots *s) {
  if (!s || --s->refs) return;
  free(s->free);
  free(s);
}

static int slots_gc(lua_State *L) {
  Slots **s = lua_touserdata(L, 1);
  l_slots_release(*s);
  *s = NULL;
  return 0;
}

void l_push_slots(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &slots_key) == LUA_TUSERDATA) return;
  lua_pop(L, 1);
  Slots **box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, slots_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  Slots *s = *box = calloc(1, sizeof *s);
  if (!s) l_error(L, "custom: out of memory");
  s->refs = 1;
  s->registry = lua_topointer(L, LUA_REGISTRYINDEX);
  lua_createtable(L, 64, 0);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  s->table = luaL_ref(L, LUA_REGISTRYINDEX);
  l_result_metatable(L);
  lua_pushcclosure(L, l_rule_runner, 2);
  s->runner = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &slots_key);
}

int l_slot_take_in(lua_State *L, Slots *s, int table, int ctx) {
  int slot = s->nfree ? s->free[s->nfree - 1] : s->next + 1;
  lua_pushvalue(L, ctx);
  lua_rawseti(L, table, slot); /* may raise: the place counts as taken only afterwards */
  if (s->nfree)
    s->nfree--;
  else
    s->next++;
  return slot;
}

int l_slot_take(lua_State *L, Slots *s, int ctx) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, s->table);
  int slot = l_slot_take_in(L, s, lua_gettop(L), ctx);
  lua_pop(L, 1);
  return slot;
}

/* Called from destructors, which must not fail: a place that cannot be noted is never used again. */
void l_slot_give(Slots *s, int slot) {
  if (s->nfree == s->cap) {
    int cap = s->cap ? 2 * s->cap : 16;
    int *list = realloc(s->free, (size_t)cap * sizeof *list);
    if (!list) return;
    s->free = list;
    s->cap = cap;
  }
  s->free[s->nfree++] = slot;
}

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

static int ctx_save(lua_State *L) {
  check_context(L, "save");
  int n = lua_gettop(L) - 1;
  Running *r = running(L);
  bool noted = r && r->forward && n <= MAX_CUSTOM;
  for (int i = n; i > 0; i--) { /* from the top: each value is popped into its place */
    PlTensor *t = l_to_tensor(L, i + 1);
    if (!t && !lua_isnil(L, i + 1))
      return l_error(L, "ctx:save: argument #%d must be a tensor or nil, got %s; keep other values as fields of ctx",
                     i, l_typename(L, i + 1));
    if (noted) r->versions[i - 1] = t ? t->storage->version : 0;
    if (PL_UNLIKELY(pl_state.packing != NULL) && t && noted && r->needs) l_saved_pack(L, i + 1);
  }
  if (!noted) save_in_table(L, n);
  for (int i = n; i > 0; i--) lua_rawseti(L, 1, i);
  if (noted) r->nsaved = n;
  return 0;
}

static int stale(lua_State *L, int i, const PlTensor *t, uint32_t version) {
  char by[160] = "";
  if (pl_state.watch) pl_state.watch->writer(t->storage, by, sizeof by);
  return l_error(L, "ctx:saved: saved tensor %d, %s, was modified in place afterwards%s (version %u, saved at %u); "
                    "save a clone", i, pl_desc_text(&t->a), by, t->storage->version, version);
}

/* How many tensors the context at 1 saved; *known are their versions, NULL: they are in the table. */
static int count_saved(lua_State *L, const uint32_t **known) {
  Running *r = running(L);
  *known = NULL;
  bool in_table = lua_rawgeti(L, 1, 0) == LUA_TNUMBER;
  lua_Integer n = in_table ? lua_tointeger(L, -1) : 0;
  if (n < 0 || n > 1 << 16) return l_error(L, "ctx:saved: ctx[0] was overwritten; it belongs to ctx:save");
  if (!in_table && r) {
    *known = r->versions;
    n = r->nsaved;
  } else if (!in_table)
    n = (lua_Integer)lua_rawlen(L, 1); /* between forward and backward: what is there, unchecked */
  lua_settop(L, 1);
  return (int)n;
}

static int ctx_saved(lua_State *L) {
  check_context(L, "saved");
  const uint32_t *versions;
  int n = count_saved(L, &versions);
  if (n > 8) luaL_checkstack(L, n + 4, NULL);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    PlTensor *t = l_to_tensor(L, -1);
    if (!t) {
      if (l_is_packed(L, -1)) l_saved_unpack(L, -1);
      if (l_box(L, -1) && !l_to_tensor(L, -1)) return l_error(L, "ctx:saved: saved tensor %d was freed", i);
      continue;
    }
    uint32_t version = t->storage->version;
    if (versions)
      version = versions[i - 1];
    else {
      if (lua_rawgeti(L, 1, -i) == LUA_TNUMBER) version = (uint32_t)lua_tointeger(L, -1);
      lua_pop(L, 1);
    }
    if (PL_UNLIKELY(version != t->storage->version)) return stale(L, i, t, version);
  }
  return n;
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
  static const luaL_Reg methods[] = {{"save", ctx_save},
                                     {"saved", ctx_saved},
                                     {"mark_non_differentiable", ctx_non_diff},
                                     {"mark_dirty", ctx_dirty},
                                     {NULL, NULL}};
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, ctx_other);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}
