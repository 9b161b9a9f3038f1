/* SPDX-License-Identifier: MIT
 * T.saved_tensors: pack and unpack written in Lua, and the ready-made ones of engine/grad/saved_tensors_offload.c.
 * The functions and the packed values are kept objects (collector/kept.h). */
#include "bindings/autograd/backward.h"
#include "bindings/collector/kept.h"

#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/saved_tensors_hooks.h"

/* ---- functions written in Lua ------------------------------------------------------------------------------------ */

typedef struct LuaPair {
  Kept *kept;
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
  l_kept_push(L, r->pair->kept, r->pair->pack);
  l_push_shared(L, r->t);
  lua_call(L, 1, 1);
  if (lua_isnil(L, -1)) {
    r->status = pl_fail(PL_ERR_ARG, "saved_tensors: pack returned nil; it must return what unpack shall get");
    return 0;
  }
  PlTensor *t = l_to_tensor(L, -1);
  if ((r->value->is_tensor = t != NULL)) r->value->version = t->storage->version;
  r->value->slot = l_kept_put(L, r->pair->kept);
  return 0;
}

static int unpack_body(lua_State *L) {
  Run *r = lua_touserdata(L, 1);
  const LuaValue *v = r->value;
  r->t = NULL;
  l_kept_push(L, r->pair->kept, r->pair->unpack);
  l_kept_push(L, r->pair->kept, v->slot);
  const PlTensor *packed = v->is_tensor ? l_to_tensor(L, -1) : NULL;
  if (v->is_tensor && (!packed || packed->storage->version != v->version)) {
    r->status = packed ? pl_fail(PL_ERR_STATE,
                                 "backward: %s, which pack returned for a saved tensor, was modified in place "
                                 "afterwards (version %u, packed at %u); pack a clone",
                                 pl_desc_text(&packed->a), packed->storage->version, v->version)
                       : pl_fail(PL_ERR_STATE, "backward: a tensor that pack returned was freed");
    return 0;
  }
  lua_call(L, 1, 1);
  PlTensor *t = l_to_tensor(L, -1);
  if (t) r->t = pl_retain(t);
  else r->status = pl_fail(PL_ERR_ARG, "backward: unpack must return a tensor, got %s", l_typename(L, -1));
  return 0;
}

/* Inside a walk the state that entered it is at hand; recording may run in any coroutine, for which the main thread
 * stands. All of it under lua_pcall: nothing of Lua's may jump through the engine. */
static PlStatus run(lua_CFunction body, Run *r) {
  const Kept *k = r->pair->kept;
  if (!k->main) PL_FAIL(PL_ERR_STATE, "saved_tensors: the Lua state of these functions is closed");
  lua_State *L = pl_state.in_backward > 0 && l_running ? l_running : k->main;
  if (!lua_checkstack(L, 4)) PL_FAIL(PL_ERR_STATE, "saved_tensors: no room on the Lua stack");
  if (!l_kept_here(L, k)) PL_FAIL(PL_ERR_STATE, "saved_tensors: these functions belong to another Lua state");
  lua_pushcfunction(L, body);
  return l_call_in_modes(L, r) == LUA_OK ? r->status : l_keep_error(L);
}

static PlStatus lua_pack(void *ud, PlTensor *t, void **packed) {
  LuaValue *v = calloc(1, sizeof *v);
  if (!v) PL_FAIL(PL_ERR_OOM, "saved_tensors: out of memory");
  Run r = {.pair = ud, .value = v, .t = t, .status = PL_OK};
  PlStatus s = run(pack_body, &r);
  if (s != PL_OK) free(v);
  else *packed = v;
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
  l_kept_leave(pair->kept, v->slot);
  free(v);
}

static void lua_drop(void *ud) {
  LuaPair *pair = ud;
  if (pair->pack) l_kept_leave(pair->kept, pair->pack);
  if (pair->unpack) l_kept_leave(pair->kept, pair->unpack);
  l_kept_release(pair->kept);
  free(pair);
}

/* ---- scopes -------------------------------------------------------------------------------------------------------- */

static void scope_end(void *p) { pl_packing_close(p); }
static const luaL_Reg no_methods[] = {{NULL, NULL}};
static const HandleType scope_type = {
    .name = "perilune.saved_tensors", .what = "saved_tensors", .release = scope_end, .methods = no_methods};
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

/* A scope is the coroutine's (grad_mode.c). */
static void open_scope(lua_State *L, Handle *h, PlPacking *p) {
  l_modes_follow(L);
  (void)l_modes_kept(L);
  pl_packing_open(h->p = p);
  l_modes_set(L, 1, !pl_state.grad_off, pl_autocast_now());
}

/* core.saved_close(scope) */
static int t_close(lua_State *L) {
  Handle *h = luaL_checkudata(L, 1, scope_type.name);
  void *p = h->p;
  h->p = NULL;
  if (p) {
    l_modes_follow(L);
    scope_end(p);
    l_modes_set(L, -1, !pl_state.grad_off, pl_autocast_now());
  }
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
  Kept *k = l_kept(L);
  Handle *h = new_scope(L);
  lua_pushvalue(L, 1);
  const int pack = l_kept_put(L, k);
  lua_pushvalue(L, 2);
  const int unpack = l_kept_put(L, k);
  LuaPair *pair = calloc(1, sizeof *pair);
  PlPacking *p = calloc(1, sizeof *p);
  if (!pair || !p) {
    free(pair);
    free(p);
    l_kept_leave(k, pack);
    l_kept_leave(k, unpack);
    return l_error(L, "saved_tensors: out of memory");
  }
  *p = (PlPacking){.pack = lua_pack, .unpack = lua_unpack, .discard = lua_discard, .drop = lua_drop, .ud = pair};
  *pair = (LuaPair){.kept = k, .pack = pack, .unpack = unpack};
  k->refs++;
  open_scope(L, h, p);
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
  open_scope(L, h, p);
  return 1;
}

void l_saved_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"saved_open", t_open}, {"saved_offload", t_offload}, {"saved_close", t_close}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
