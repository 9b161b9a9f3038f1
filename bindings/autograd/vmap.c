/* SPDX-License-Identifier: MIT
 * What lua/perilune/autograd/vmap.lua needs of the engine: batches, and handles that stand for many tensors. Not public. */
#include "engine/vmap/vmap.h"
#include "bindings/core/lib.h"

#define LEVEL "perilune.Batch"

typedef struct LevelBox {
  PlBatch *b;
} LevelBox;

bool l_outer_tracked(PlTensor *t, uint64_t born) {
  if (pl_state.grad_off) return false;
  const uint64_t floor = pl_state.key_floor, ceiling = pl_state.key_ceiling;
  bool yes = false;
  pl_state.key_floor = 0;
  pl_state.key_ceiling = ~born;
  for (PlTensor *at = t; at && !yes; at = pl_is_batched(at) ? pl_batched(at)->full : NULL)
    yes = !(pl_is_batched(at) && pl_batched(at)->born == born) && (at->node || at->more) && pl_tracked(at);
  pl_state.key_floor = floor;
  pl_state.key_ceiling = ceiling;
  return yes;
}

static PlBatch *to_level(lua_State *L) {
  LevelBox *l = luaL_testudata(L, 1, LEVEL);
  if (!l || !l->b) l_error(L, "vmap: a running batch expected, got %s", l_typename(L, 1));
  return l->b;
}

/* core.batch_open(n, "error"|"same"|"different") → a batch, to be closed */
static int t_open(lua_State *L) {
  static const char *const modes[] = {"error", "same", "different", NULL};
  int64_t n = l_check_int(L, 1, "vmap", "size");
  PlRandomness random = (PlRandomness)luaL_checkoption(L, 2, NULL, modes);
  LevelBox *l = lua_newuserdatauv(L, sizeof *l, 0);
  l->b = NULL;
  luaL_setmetatable(L, LEVEL);
  l_note_late(L);
  const uint64_t owner = l_owner_begins(L);
  CALL(L, pl_batch_open(&l->b, n, random));
  l->b->owner = owner;
  l_interrupt_spare();
  return 1;
}

static int level_close(lua_State *L) {
  LevelBox *l = luaL_testudata(L, 1, LEVEL);
  if (!l || !l->b) return 0;
  const uint64_t owner = l->b->owner;
  pl_batch_close(l->b);
  l->b = NULL;
  l_owner_ends(L, owner);
  return 0;
}

/* core.batch_wrap(batch, t[n, …]) → a handle for its n elements */
static int t_wrap(lua_State *L) {
  const PlBatch *b = to_level(L);
  PlTensor *t = l_check_tensor(L, 2);
  Box *box = l_new_box(L);
  CALL(L, pl_batch_wrap(&box->t, b, t));
  return 1;
}

/* core.batch_unwrap(batch, t) → t[n, …] */
static int t_unwrap(lua_State *L) {
  const PlBatch *b = to_level(L);
  PlTensor *t = l_check_tensor(L, 2);
  Box *box = l_new_box(L);
  CALL(L, pl_batch_unwrap(&box->t, b, t));
  return 1;
}

static int t_is_batched(lua_State *L) {
  PlTensor *t = l_to_tensor(L, 1);
  lua_pushboolean(L, t && pl_is_batched(t));
  return 1;
}

/* core.batch_innermost(…) → number and size of the innermost batch among the tensors given */
static int t_innermost(lua_State *L) {
  uint64_t born = 0;
  int64_t size = 0;
  for (int i = lua_gettop(L); i > 0; i--) {
    PlTensor *t = l_to_tensor(L, i);
    if (!t || !pl_is_batched(t) || pl_batched(t)->born <= born) continue;
    born = pl_batched(t)->born;
    size = pl_batched(t)->full->a.shape[0];
  }
  lua_pushinteger(L, (lua_Integer)born);
  lua_pushinteger(L, (lua_Integer)size);
  return 2;
}

/* core.batch_reopen(number, size) → that batch again, for backward: what it made may be used until it is closed */
static int t_reopen(lua_State *L) {
  lua_Integer born = luaL_checkinteger(L, 1), n = luaL_checkinteger(L, 2);
  LevelBox *l = lua_newuserdatauv(L, sizeof *l, 0);
  l->b = NULL;
  luaL_setmetatable(L, LEVEL);
  l_note_late(L);
  const uint64_t owner = l_owner_begins(L);
  CALL(L, pl_batch_open(&l->b, n, PL_RANDOM_SAME));
  l->b->owner = owner;
  l->b->born = (uint64_t)born;
  l_interrupt_spare();
  return 1;
}

/* core.batch_full(number, t) → what t stands for in that batch, or nil if it is the same for all */
static int t_full(lua_State *L) {
  lua_Integer born = luaL_checkinteger(L, 1);
  PlTensor *t = l_check_tensor(L, 2);
  if (!pl_is_batched(t) || pl_batched(t)->born != (uint64_t)born) return 0;
  Box *box = l_new_box(L);
  box->t = pl_retain(pl_batched(t)->full);
  return 1;
}

/* core.on_custom_batched(f): f runs custom rules inside a vmap that is differentiated from outside */
static int t_on_custom(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.custom_batched");
  return 0;
}

static int t_size(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  lua_pushinteger(L, pl_is_batched(t) ? (lua_Integer)pl_batched(t)->full->a.shape[0] : 1);
  return 1;
}

/* core.batch_loops() → how many ops were computed element by element so far */
static int t_loops(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pl_state.batch_loops);
  return 1;
}

void l_batch_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"batch_open", t_open},
                                       {"batch_wrap", t_wrap},
                                       {"batch_unwrap", t_unwrap},
                                       {"is_batched", t_is_batched},
                                       {"batch_loops", t_loops},
                                       {"batch_innermost", t_innermost},
                                       {"batch_reopen", t_reopen},
                                       {"batch_full", t_full},
                                       {"batch_size", t_size},
                                       {"on_custom_batched", t_on_custom},
                                       {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__close", level_close}, {"__gc", level_close}, {"close", level_close}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  luaL_newmetatable(L, LEVEL);
  luaL_setfuncs(L, meta, 0);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}
