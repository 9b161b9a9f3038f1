/* SPDX-License-Identifier: MIT
 * T.memory_limit; lua/perilune/autograd/memory_limit.lua makes scope objects of it. */
#include "bindings/core/lib.h"
#include "engine/remat/remat.h"

static const char sentinel_key = 0;

/* A state that closes takes its limit with it. */
static int sentinel_gc(lua_State *L) {
  (void)L;
  if (pl_remat_limit(-1) != PL_OK) return 0; /* then evicted tensors stay noted until they go */
  return 0;
}

/* core.memory_limit() → bytes or nil; core.memory_limit(bytes or nil) sets it */
static int s_limit(lua_State *L) {
  if (lua_gettop(L) > 0) {
    const int64_t bytes = lua_isnil(L, 1) ? -1 : l_check_int(L, 1, "memory_limit", "bytes");
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &sentinel_key) == LUA_TNIL) {
      lua_newuserdatauv(L, 1, 0);
      lua_createtable(L, 0, 1);
      lua_pushcfunction(L, sentinel_gc);
      lua_setfield(L, -2, "__gc");
      lua_setmetatable(L, -2);
      lua_rawsetp(L, LUA_REGISTRYINDEX, &sentinel_key);
    }
    l_collect_full(L); /* garbage need neither be counted nor computed again */
    CALL(L, pl_remat_limit(bytes));
    return 0;
  }
  const int64_t now = pl_remat_limit_get();
  if (now < 0) return 0;
  lua_pushinteger(L, (lua_Integer)now);
  return 1;
}

/* debug.rematerialization(evict) → {values, evicted, evicted_bytes, evictions, recomputed, dead}; evict: all that can be,
 * first; "always": and before every op from now on */
static int d_stats(lua_State *L) {
  if (lua_toboolean(L, 1)) pl_remat_evict_all(lua_type(L, 1) == LUA_TSTRING);
  PlRematStats s;
  pl_remat_stats(&s);
  const struct {
    const char *name;
    int64_t n;
  } rows[] = {{"values", s.values},       {"evicted", s.evicted},       {"evicted_bytes", s.evicted_bytes},
              {"evictions", s.evictions}, {"recomputed", s.recomputed}, {"dead", s.dead}};
  lua_createtable(L, 0, 6);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    lua_pushinteger(L, (lua_Integer)rows[i].n);
    lua_setfield(L, -2, rows[i].name);
  }
  return 1;
}

void l_remat_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"memory_limit", s_limit}, {"rematerialization", d_stats}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
