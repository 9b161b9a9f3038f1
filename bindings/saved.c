/* SPDX-License-Identifier: MIT
 * T.saved_tensors: pack and unpack written in Lua, and the ready-made ones of engine/grad/offload.c.
 *
 * The functions and the packed values lie in one strong table of the state. Nodes die inside finalizers and inside Lua's
 * allocator, where no table may be touched: their places are noted and emptied at the next chance, at the latest by a
 * finalizer that runs in every collection. */
#include "bindings/saved.h"

#include <stdlib.h>
#include <string.h>

#include "engine/grad/packing.h"
#include "engine/state.h"

/* ---- places in the strong table -------------------------------------------------------------------------------- */

/* One a state. References: the state's userdata, and every pair of functions. */
typedef struct Keeper {
  size_t refs;
  lua_State *main; /* NULL: the state is closed */
  int table;       /* reference in the registry */
  int next, nfree, nleft, room;
  int *list; /* free places from the front, those to be emptied from the back */
} Keeper;

static const char keeper_key = 0;

static void keeper_release(Keeper *k) {
  if (--k->refs) return;
  free(k->list);
  free(k);
}

/* From destructors. A place for which there is no memory stays taken. */
static void leave(Keeper *k, int slot) {
  if (!k->main) return;
  if (k->nfree + k->nleft == k->room) {
    const int room = k->room ? 2 * k->room : 32;
    int *list = realloc(k->list, (size_t)room * sizeof *list);
    if (!list) return;
    memmove(list + room - k->nleft, list + k->room - k->nleft, (size_t)k->nleft * sizeof *list);
    k->list = list;
    k->room = room;
  }
  k->list[k->room - ++k->nleft] = slot;
}

/* Empties what was left. Assigning nil to a key that is there allocates nothing. */
static void sweep(lua_State *L, Keeper *k) {
  if (!k->nleft || !lua_checkstack(L, 3)) return;
  lua_rawgeti(L, LUA_REGISTRYINDEX, k->table);
  while (k->nleft) {
    const int slot = k->list[k->room - k->nleft--];
    lua_pushnil(L);
    lua_rawseti(L, -2, slot);
    k->list[k->nfree++] = slot;
  }
  lua_pop(L, 1);
}

/* The value on top, popped, gets a place. */
static int keep(lua_State *L, Keeper *k) {
  sweep(L, k);
  const int slot = k->nfree ? k->list[k->nfree - 1] : k->next + 1;
  lua_rawgeti(L, LUA_REGISTRYINDEX, k->table);
  lua_insert(L, -2);
  lua_rawseti(L, -2, slot); /* may raise: the place counts as taken only afterwards */
  lua_pop(L, 1);
  if (k->nfree)
    k->nfree--;
  else
    k->next++;
  return slot;
}

static void push_kept(lua_State *L, const Keeper *k, int slot) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, k->table);
  lua_rawgeti(L, -1, slot);
  lua_remove(L, -2);
}

static int keeper_close(lua_State *L) {
  Keeper **box = lua_touserdata(L, 1), *k = *box;
  *box = NULL;
  if (k) {
    k->main = NULL;
    keeper_release(k);
  }
  return 0;
}

/* Marks itself for the next collection. */
static int pulse_gc(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &keeper_key) == LUA_TUSERDATA) {
    Keeper **box = lua_touserdata(L, -1);
    if (*box) sweep(L, *box);
  }
  if (lua_getmetatable(L, 1)) lua_setmetatable(L, 1);
  return 0;
}

static void push_object(lua_State *L, size_t size, lua_CFunction gc) {
  memset(lua_newuserdatauv(L, size, 0), 0, size);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
}

static Keeper *keeper_of(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &keeper_key) == LUA_TUSERDATA) {
    Keeper **box = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (!*box) l_error(L, "saved_tensors: the Lua state is closing");
    return *box;
  }
  lua_pop(L, 1);
  push_object(L, sizeof(Keeper *), keeper_close);
  Keeper **box = lua_touserdata(L, -1), *k = *box = calloc(1, sizeof *k);
  if (!k) {
    l_error(L, "saved_tensors: out of memory");
    return NULL;
  }
  k->refs = 1;
  lua_newtable(L);
  k->table = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  k->main = lua_tothread(L, -1);
  lua_pop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &keeper_key);
  push_object(L, 1, pulse_gc);
  lua_pop(L, 1);
  return k;
}

/* ---- functions written in Lua ------------------------------------------------------------------------------------ */

typedef struct LuaPair {
  Keeper *keeper;
  int pack, unpack; /* places; 0: none yet */
} LuaPair;

typedef struct LuaValue {
  int slot;
  bool is_tensor;
  uint32_t version; /* of that tensor */
} LuaValue;

typedef struct Run {
  const LuaPair *pair;
  LuaValue *value;
  PlTensor *t; /* pack: what to pack. unpack: the result, owned */
  PlStatus status;
} Run;

static int pack_body(lua_State *L) {
  Run *r = lua_touserdata(L, 1);
  push_kept(L, r->pair->keeper, r->pair->pack);
  l_push_shared(L, r->t);
  lua_call(L, 1, 1);
  if (lua_isnil(L, -1)) {
    r->status = pl_fail(PL_ERR_ARG, "saved_tensors: pack returned nil; it must return what unpack shall get");
    return 0;
  }
  PlTensor *t = l_to_tensor(L, -1);
  if ((r->value->is_tensor = t != NULL)) r->value->version = t->storage->version;
  r->value->slot = keep(L, r->pair->keeper);
  return 0;
}

static int unpack_body(lua_State *L) {
  Run *r = lua_touserdata(L, 1);
  const LuaValue *v = r->value;
  r->t = NULL;
  push_kept(L, r->pair->keeper, r->pair->unpack);
  push_kept(L, r->pair->keeper, v->slot);
  const PlTensor *packed = v->is_tensor ? l_to_tensor(L, -1) : NULL;
  if (v->is_tensor && (!packed || packed->storage->version != v->version)) {
    r->status = packed ? pl_fail(PL_ERR_STATE, "backward: %s, which pack returned for a saved tensor, was modified in place "
                                               "afterwards (version %u, packed at %u); pack a clone", pl_desc_text(&packed->a),
                                 packed->storage->version, v->version)
                       : pl_fail(PL_ERR_STATE, "backward: a tensor that pack returned was freed");
    return 0;
  }
  lua_call(L, 1, 1);
  PlTensor *t = l_to_tensor(L, -1);
  if (t)
    r->t = pl_retain(t);
  else
    r->status = pl_fail(PL_ERR_ARG, "backward: unpack must return a tensor, got %s", l_typename(L, -1));
  return 0;
}

/* Inside a walk the state that entered it is at hand; recording may run in any coroutine, for which the main thread
 * stands. All of it under lua_pcall: nothing of Lua's may jump through the engine. */
static PlStatus run(lua_CFunction body, Run *r) {
  const Keeper *k = r->pair->keeper;
  if (!k->main) PL_FAIL(PL_ERR_STATE, "saved_tensors: the Lua state of these functions is closed");
  lua_State *L = pl_state.in_backward > 0 && l_running ? l_running : k->main;
  if (!lua_checkstack(L, 4)) PL_FAIL(PL_ERR_STATE, "saved_tensors: no room on the Lua stack");
  if (lua_topointer(L, LUA_REGISTRYINDEX) != lua_topointer(k->main, LUA_REGISTRYINDEX))
    PL_FAIL(PL_ERR_STATE, "saved_tensors: these functions belong to another Lua state");
  lua_pushcfunction(L, body);
  lua_pushlightuserdata(L, r);
  return lua_pcall(L, 1, 0, 0) == LUA_OK ? r->status : l_keep_error(L);
}

static PlStatus lua_pack(void *ud, PlTensor *t, void **packed) {
  LuaValue *v = calloc(1, sizeof *v);
  if (!v) PL_FAIL(PL_ERR_OOM, "saved_tensors: out of memory");
  Run r = {.pair = ud, .value = v, .t = t, .status = PL_OK};
  PlStatus s = run(pack_body, &r);
  if (s != PL_OK)
    free(v);
  else
    *packed = v;
  return s;
}

static PlStatus lua_unpack(void *ud, void *packed, const PlTensor *like, PlTensor **out) {
  Run r = {.pair = ud, .value = packed, .status = PL_OK};
  (void)like;
  PL_TRY(run(unpack_body, &r));
  *out = r.t;
  return PL_OK;
}

static void lua_discard(void *ud, void *packed) {
  const LuaPair *pair = ud;
  LuaValue *v = packed;
  leave(pair->keeper, v->slot);
  free(v);
}

static void lua_drop(void *ud) {
  LuaPair *pair = ud;
  if (pair->pack) leave(pair->keeper, pair->pack);
  if (pair->unpack) leave(pair->keeper, pair->unpack);
  keeper_release(pair->keeper);
  free(pair);
}

/* ---- scopes -------------------------------------------------------------------------------------------------------- */

static void scope_end(void *p) { pl_packing_close(p); }
static const luaL_Reg no_methods[] = {{NULL, NULL}};
static const HandleType scope_type = {.name = "perilune.saved_tensors", .what = "saved_tensors", .release = scope_end, .methods = no_methods};
static const char scopes_key = 0;

/* An open scope lives in the registry until it is closed: forgetting it does not end it. */
static Handle *new_scope(lua_State *L) {
  Handle *h = l_new_handle(L, &scope_type);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &scopes_key) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &scopes_key);
  }
  lua_pushvalue(L, -2);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  return h;
}

/* core.saved_close(scope) */
static int t_close(lua_State *L) {
  Handle *h = luaL_checkudata(L, 1, scope_type.name);
  void *p = h->p;
  h->p = NULL;
  if (p) scope_end(p);
  lua_settop(L, 1);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &scopes_key) == LUA_TTABLE) {
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    lua_rawset(L, -3);
  }
  return 0;
}

/* core.saved_open(pack, unpack) → scope */
static int t_open(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  Keeper *k = keeper_of(L);
  Handle *h = new_scope(L);
  lua_pushvalue(L, 1);
  const int pack = keep(L, k);
  lua_pushvalue(L, 2);
  const int unpack = keep(L, k);
  LuaPair *pair = calloc(1, sizeof *pair);
  PlPacking *p = calloc(1, sizeof *p);
  if (!pair || !p) {
    free(pair);
    free(p);
    leave(k, pack);
    leave(k, unpack);
    return l_error(L, "saved_tensors: out of memory");
  }
  *p = (PlPacking){.pack = lua_pack, .unpack = lua_unpack, .discard = lua_discard, .drop = lua_drop, .ud = pair};
  *pair = (LuaPair){.keeper = k, .pack = pack, .unpack = unpack};
  k->refs++;
  pl_packing_open(h->p = p);
  return 1;
}

/* core.saved_offload(disk, folder or nil, bytes) → scope */
static int t_offload(lua_State *L) {
  const bool disk = lua_toboolean(L, 1);
  const char *folder = lua_isnoneornil(L, 2) ? NULL : l_check_path(L, 2, "saved_tensors");
  const int64_t least = l_check_int(L, 3, "saved_tensors", "min_bytes");
  lua_settop(L, 3);
  Handle *h = new_scope(L);
  PlPacking *p;
  PlStatus s = pl_offload_new(&p, disk, folder, (size_t)least);
  if (s != PL_OK) return l_fail(L, s);
  pl_packing_open(h->p = p);
  return 1;
}

/* ---- ctx:save ---------------------------------------------------------------------------------------------------------- */

static void packed_end(void *p) { pl_packed_free(p); }
static const HandleType packed_type = {.name = "perilune.packed_tensor", .what = "saved tensor", .release = packed_end, .methods = no_methods};

int l_saved_pack(lua_State *L, int at) {
  PlPacked *p;
  Handle *h = l_new_handle(L, &packed_type);
  CALL(L, pl_packed_make(&p, l_to_tensor(L, at), NULL));
  h->p = p;
  if (p)
    lua_replace(L, at);
  else
    lua_pop(L, 1);
  return 0;
}

bool l_is_packed(lua_State *L, int at) { return luaL_testudata(L, at, packed_type.name) != NULL; }

int l_saved_unpack(lua_State *L, int at) {
  at = lua_absindex(L, at);
  const PlPacked *p = l_check_handle(L, at, &packed_type);
  Box *b = l_new_box(L);
  CALL(L, pl_packed_get(p, "a custom rule", &b->t));
  lua_replace(L, at);
  return 0;
}

void l_saved_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"saved_open", t_open}, {"saved_offload", t_offload}, {"saved_close", t_close}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
