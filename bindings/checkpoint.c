/* SPDX-License-Identifier: MIT
 * core.checkpoint: runs a function under a checkpoint (engine/grad/checkpoint.h). The function that runs it again lies in a
 * table in the registry until the engine needs it no more. That may be while the collector works, so such places are only
 * noted, and emptied when Lua may be called. */
#include <stdlib.h>

#include "bindings/lib.h"
#include "bindings/walk.h"
#include "engine/grad/checkpoint.h"

static const char store_key = 0;

typedef struct Store {
  size_t refs; /* the state's, and one for each checkpoint: a node may die after its state */
  const void *registry;
  int table, next;
  int *free, *dead; /* places to use; to empty first */
  int nfree, ndead, cap;
} Store;

typedef struct Rerun {
  Store *store;
  int place;
} Rerun;

static void store_release(Store *s) {
  if (!s || --s->refs) return;
  free(s->free);
  free(s->dead);
  free(s);
}

static int store_gc(lua_State *L) {
  Store **s = lua_touserdata(L, 1);
  if (*s) (*s)->registry = NULL;
  store_release(*s);
  *s = NULL;
  return 0;
}

static Store *store_of(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &store_key) == LUA_TUSERDATA) {
    Store *s = *(Store **)lua_touserdata(L, -1);
    lua_pop(L, 1);
    return s;
  }
  lua_pop(L, 1);
  Store **box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, store_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  Store *s = *box = calloc(1, sizeof *s);
  if (!s) l_error(L, "checkpoint: out of memory");
  s->refs = 1;
  s->registry = lua_topointer(L, LUA_REGISTRYINDEX);
  lua_newtable(L);
  s->table = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &store_key);
  return s;
}

static void empty_places(lua_State *L, Store *s) {
  if (!s->ndead) return;
  lua_rawgeti(L, LUA_REGISTRYINDEX, s->table);
  while (s->ndead) {
    const int place = s->dead[--s->ndead];
    lua_pushnil(L);
    lua_rawseti(L, -2, place);
    s->free[s->nfree++] = place;
  }
  lua_pop(L, 1);
}

void l_checkpoint_settle(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &store_key) == LUA_TUSERDATA) empty_places(L, *(Store **)lua_touserdata(L, -1));
  lua_pop(L, 1);
}

/* The value at `at` gets a place; there is room to give it back. */
static int take_place(lua_State *L, Store *s, int at) {
  empty_places(L, s);
  if (!s->nfree && s->next == s->cap) {
    const int cap = s->cap ? 2 * s->cap : 32;
    int *f = realloc(s->free, (size_t)cap * sizeof *f);
    if (f) s->free = f;
    int *d = f ? realloc(s->dead, (size_t)cap * sizeof *d) : NULL;
    if (!d) return l_error(L, "checkpoint: out of memory");
    s->dead = d;
    s->cap = cap;
  }
  const int place = s->nfree ? s->free[s->nfree - 1] : s->next + 1;
  lua_rawgeti(L, LUA_REGISTRYINDEX, s->table);
  lua_pushvalue(L, at);
  lua_rawseti(L, -2, place); /* may raise: the place counts as taken only afterwards */
  lua_pop(L, 1);
  if (s->nfree)
    s->nfree--;
  else
    s->next++;
  return place;
}

static void drop(void *ud) {
  Rerun *r = ud;
  r->store->dead[r->store->ndead++] = r->place;
  store_release(r->store);
  free(r);
}

typedef struct Running {
  const Rerun *r;
  PlTensor *const *args;
  int nargs;
} Running;

static int run_body(lua_State *L) {
  const Running *run = lua_touserdata(L, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, run->r->store->table);
  lua_rawgeti(L, -1, run->r->place);
  lua_createtable(L, run->nargs, 0);
  for (int i = 0; i < run->nargs; i++) {
    Box *b = l_new_box(L);
    b->t = pl_retain(run->args[i]);
    if (b->t->node) l_default_anchor(L, -1);
    lua_rawseti(L, -2, i + 1);
  }
  lua_call(L, 1, 0);
  return 0;
}

static PlStatus run(void *ud, PlTensor *const *args, int nargs) {
  Running r = {ud, args, nargs};
  lua_State *L = l_running;
  if (!L || !lua_checkstack(L, 8)) PL_FAIL(PL_ERR_STATE, "checkpoint: no room on the Lua stack to run the function again");
  if (lua_topointer(L, LUA_REGISTRYINDEX) != r.r->store->registry)
    PL_FAIL(PL_ERR_STATE, "checkpoint: its function belongs to another Lua state");
  lua_pushcfunction(L, run_body);
  lua_pushlightuserdata(L, &r);
  if (lua_pcall(L, 1, 0, 0) == LUA_OK) return PL_OK;
  if (!pl_checkpoint_stopped()) return l_keep_error(L);
  lua_pop(L, 1);
  PL_FAIL(PL_ERR_STATE, "checkpoint: ended early");
}

/* core.checkpoint(f, again, tensors, …) → what f(…) returns. again(tensors) runs f anew, on tensors that stand for those;
 * it is kept for as long as a backward may need it. f cannot yield. */
static int t_checkpoint(lua_State *L) {
  PlTensor **args;
  const int given = lua_gettop(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  const int n = l_tensor_list(L, 3, "checkpoint", "arguments", -1, false, &args);
  l_collect(L);
  luaL_checkstack(L, given + 8, NULL);
  Store *s = store_of(L);
  const int place = take_place(L, s, 2);
  Rerun *r = malloc(sizeof *r);
  if (!r) {
    s->dead[s->ndead++] = place;
    return l_error(L, "checkpoint: out of memory");
  }
  *r = (Rerun){.store = s, .place = place};
  s->refs++;
  const PlRerun rerun = {.run = run, .drop = drop, .ud = r};
  PlCheckpoint *c;
  CALL(L, pl_checkpoint_begin(&c, &rerun, args, n));
  const int at = lua_gettop(L);
  lua_pushvalue(L, 1);
  for (int i = 4; i <= given; i++) lua_pushvalue(L, i);
  const int rc = lua_pcall(L, given - 3, LUA_MULTRET, 0);
  pl_checkpoint_end(c);
  if (rc != LUA_OK) return lua_error(L);
  return lua_gettop(L) - at;
}

void l_checkpoint_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"checkpoint", t_checkpoint}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
