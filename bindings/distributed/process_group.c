/* SPDX-License-Identifier: MIT
 * Process groups from Lua: the raw functions below core.group that lua/perilune/distributed wraps. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "bindings/distributed/process_group.h"

enum { MAX_RANKS = 1 << 16 };

static const char *const kinds[] = {"barrier", "all_reduce",     "reduce",     "broadcast", "all_gather", "gather",
                                    "scatter", "reduce_scatter", "all_to_all", "send",      "receive",    NULL};
static const char *const ops[] = {"sum", "prod", "min", "max", "band", "bor", "bxor", NULL};

/* ---- the end of the process ------------------------------------------------------------------------------------------- */

/* Runs when the state closes. Main says in the registry whether the script failed. */
static int closer_gc(lua_State *L) {
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.failed");
  if (pl_group_open()) pl_group_open()->close(lua_toboolean(L, -1));
  return 0;
}

/* The state that has opened the plug-in, and closes it; other states of the process (threads) stay out. */
static _Atomic(lua_State *) owner;

/* group.open() → {rank, size, local_rank, local_size, library}, or nil, why, code */
static int g_open(lua_State *L) {
  const PlGroupTable *t;
  PlGroupInfo info;
  lua_State *none = NULL;
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  lua_State *me = lua_tothread(L, -1);
  if (!atomic_compare_exchange_strong(&owner, &none, me) && none != me)
    return l_error(L, "init_process_group: another thread of this process is in the group already");
  PlStatus s = pl_group(&t, &info);
  if (s == PL_ERR_UNSUPPORTED) return l_failure(L, s);
  CALL(L, s);
  if (lua_getfield(L, LUA_REGISTRYINDEX, "perilune.group") == LUA_TNIL) {
    lua_newuserdatauv(L, 1, 0);
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, closer_gc);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, "perilune.group");
  }
  lua_createtable(L, 0, 5);
  const struct {
    const char *name;
    int v;
  } n[] = {{"rank", info.rank}, {"size", info.size}, {"local_rank", info.local_rank}, {"local_size", info.local_size}};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
    lua_pushinteger(L, n[i].v);
    lua_setfield(L, -2, n[i].name);
  }
  lua_pushstring(L, info.library);
  lua_setfield(L, -2, "library");
  return 1;
}

/* ---- groups ----------------------------------------------------------------------------------------------------------- */

/* group.new(ranks, seconds) → a group, nil in processes that are not in it. Groups live as long as the process. */
static int g_new(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const PlGroupTable *t = pl_group_open();
  if (!t) return l_error(L, "new_group: call init_process_group first");
  int n = (int)lua_rawlen(L, 1);
  if (n < 1 || n > MAX_RANKS) return l_error(L, "new_group: a group has 1 to %d ranks, got %d", MAX_RANKS, n);
  int *ranks = lua_newuserdatauv(L, (size_t)n * sizeof *ranks, 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    const int64_t rank = l_check_int(L, lua_gettop(L), "new_group", "rank");
    if (rank < 0 || rank >= MAX_RANKS) return l_error(L, "new_group: there is no rank %lld", (long long)rank);
    ranks[i] = (int)rank;
    lua_pop(L, 1);
  }
  void *g;
  CALL(L, t->group_new(ranks, n, luaL_checknumber(L, 2), &g));
  if (!g) return lua_pushnil(L), 1;
  luaL_getsubtable(L, LUA_REGISTRYINDEX, "perilune.groups"); /* which ones there are: see group_at */
  lua_pushboolean(L, 1);
  lua_rawsetp(L, -2, g);
  lua_pushlightuserdata(L, g);
  return 1;
}

/* The group at `at`, NULL for all processes. */
static void *group_at(lua_State *L, int at) {
  void *g = NULL;
  if (lua_isnil(L, at)) return NULL;
  if (lua_islightuserdata(L, at)) {
    luaL_getsubtable(L, LUA_REGISTRYINDEX, "perilune.groups");
    g = lua_touserdata(L, at);
    if (lua_rawgetp(L, -1, g) == LUA_TNIL) g = NULL;
    lua_pop(L, 2);
  }
  if (!g) l_error(L, "start: a group expected, got %s", l_typename(L, at));
  return g;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

static void work_release(void *p) { pl_group_work_release(p); }

/* work:wait(seconds) → the sender of a receive. */
static int w_wait(lua_State *L);
static int w_test(lua_State *L);

static const luaL_Reg work_methods[] = {{"wait", w_wait}, {"test", w_test}, {NULL, NULL}};
static const HandleType work_type = {
    .name = "perilune.group.work", .what = "work", .release = work_release, .methods = work_methods, .nkept = 1};

static int w_wait(lua_State *L) {
  PlGroupWork *w = l_check_handle(L, 1, &work_type);
  int source = -1;
  CALL(L, pl_group_wait(w, luaL_checknumber(L, 2), &source));
  lua_pushinteger(L, source);
  return 1;
}

static int w_test(lua_State *L) {
  PlGroupWork *w = l_check_handle(L, 1, &work_type);
  bool done = false;
  CALL(L, pl_group_test(w, &done));
  lua_pushboolean(L, done);
  return 1;
}

PlGroupKind l_group_kind(lua_State *L, int at) { return (PlGroupKind)luaL_checkoption(L, at, NULL, kinds); }
PlGroupOp l_group_op(lua_State *L, int at) { return (PlGroupOp)luaL_checkoption(L, at, "sum", ops); }

/* The list of n numbers at field `key` of the options at 6. */
static const int64_t *numbers(lua_State *L, const char *key, int n) {
  if (lua_getfield(L, 6, key) != LUA_TTABLE) return NULL;
  int list = lua_gettop(L);
  if ((int)lua_rawlen(L, list) != n) l_error(L, "all_to_all_single: %d sizes are wanted, one a rank, got %d", n, (int)lua_rawlen(L, list));
  int64_t *v = lua_newuserdatauv(L, (size_t)n * sizeof *v, 0); /* stays on the stack */
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, list, i + 1);
    v[i] = l_check_int(L, lua_gettop(L), "all_to_all_single", "a size");
    lua_pop(L, 1);
  }
  return v;
}

static int option_int(lua_State *L, const char *key, const char *name, int def) {
  int64_t v = def;
  if (lua_getfield(L, 6, key) != LUA_TNIL) v = l_check_int(L, lua_gettop(L), name, key);
  lua_pop(L, 1);
  if (v < -1 || v > INT32_MAX) l_error(L, "%s: %s = %lld is out of range", name, key, (long long)v);
  return (int)v;
}

void l_group_call(lua_State *L, PlGroupCall *c, int n, PlTensor **src, PlTensor **dst) {
  luaL_checktype(L, 6, LUA_TTABLE);
  c->name = l_intern(L, luaL_checkstring(L, 1));
  c->kind = l_group_kind(L, 2);
  *src = lua_isnil(L, 4) ? NULL : l_concrete(L, l_check_tensor(L, 4), c->name);
  *dst = lua_isnil(L, 5) ? NULL : l_concrete(L, l_check_tensor(L, 5), c->name);
  lua_getfield(L, 6, "op");
  c->op = l_group_op(L, -1);
  c->peer = option_int(L, "peer", c->name, -1);
  c->tag = option_int(L, "tag", c->name, 0);
  c->background = l_opt_bool(L, 6, "background", false);
  c->send = numbers(L, "send", n);
  c->receive = numbers(L, "receive", n);
  if (!c->send != !c->receive) l_error(L, "%s: sizes of both sides are wanted", c->name);
}

/* group.start(name, kind, group or nil, src, dst, {op, peer, tag, background, send, receive}) → work */
static int g_start(lua_State *L) {
  lua_settop(L, 6);
  const PlGroupTable *t = pl_group_open();
  PlTensor *src, *dst;
  int rank, n;
  if (!t) return l_error(L, "%s: call init_process_group first", luaL_checkstring(L, 1));
  PlGroupCall c = {.group = group_at(L, 3)};
  t->group_info(c.group, &rank, &n);
  l_group_call(L, &c, n, &src, &dst);
  Handle *h = l_new_handle(L, &work_type);
  PlGroupWork *w;
  CALL(L, pl_group_start(&w, &c, src, dst));
  h->p = w;
  return 1;
}

/* group.execute{program, argument…}: this process becomes that program. Returns nil and why if it cannot. */
static int g_execute(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  int n = (int)lua_rawlen(L, 1);
  if (n < 1 || n > MAX_RANKS) return l_error(L, "execute: a list of words is wanted");
  luaL_checkstack(L, n + 4, "too many arguments");
  const char **argv = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *argv, 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    argv[i] = luaL_checkstring(L, -1);
  }
  argv[n] = NULL;
  fflush(NULL);
  execvp(argv[0], (char *const *)(uintptr_t)argv);
  return luaL_fileresult(L, 0, argv[0]);
}

void l_group_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", g_open}, {"new", g_new}, {"start", g_start}, {"execute", g_execute}, {NULL, NULL}};
  luaL_newlib(L, functions);
  l_group_device_register(L);
  lua_setfield(L, -2, "group");
}
