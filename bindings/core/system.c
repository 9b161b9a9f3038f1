/* SPDX-License-Identifier: MIT
 * Memory, threads, random state, facts about the build. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/grad/gradient_graph.h"
#include "engine/graph/ir/graph.h"
#include "engine/tensor/alloc.h"

/* T.memory([device]) → {live, peak, reserved, blocks, budget} in bytes; budget nil: none */
static int s_memory(lua_State *L) {
  PlMemory m;
  l_kept_settle(L, 0);
  pl_memory(&m);
  lua_createtable(L, 0, 6);
  lua_pushinteger(L, (lua_Integer)m.live);
  lua_setfield(L, -2, "live");
  lua_pushinteger(L, (lua_Integer)m.peak);
  lua_setfield(L, -2, "peak");
  lua_pushinteger(L, (lua_Integer)m.reserved);
  lua_setfield(L, -2, "reserved");
  lua_pushinteger(L, (lua_Integer)m.blocks);
  lua_setfield(L, -2, "blocks");
  lua_pushinteger(L, (lua_Integer)m.allocations);
  lua_setfield(L, -2, "allocations");
  if (m.budget >= 0) {
    lua_pushinteger(L, (lua_Integer)m.budget);
    lua_setfield(L, -2, "budget");
  }
  return 1;
}

static int s_reset_peak(lua_State *L) {
  (void)L;
  pl_memory_reset_peak();
  return 0;
}

/* T.set_memory_budget(bytes|nil) */
static int s_budget(lua_State *L) {
  int64_t bytes = lua_isnoneornil(L, 1) ? -1 : l_check_int(L, 1, "set_memory_budget", "bytes");
  if (bytes < -1) return l_error(L, "set_memory_budget: bytes must not be negative");
  pl_memory_budget(bytes);
  return 0;
}

static int s_trim(lua_State *L) {
  lua_gc(L, LUA_GCCOLLECT);
  pl_memory_trim();
  return 0;
}

/* core.fail_at(n[, count]): for tests. The allocation after the next n fails, and count − 1 more. */
static int s_fail_at(lua_State *L) {
  pl_memory_fail_at(l_check_int(L, 1, "fail_at", "n"), lua_isnoneornil(L, 2) ? 1 : l_check_int(L, 2, "fail_at", "count"));
  return 0;
}

static int s_collect(lua_State *L) {
  l_collect_full(L);
  return 0;
}

static int s_set_threads(lua_State *L) {
  int64_t n = l_check_int(L, 1, "set_num_threads", "n");
  if (n < 1 || n > 1024) return l_error(L, "set_num_threads: n must be 1 to 1024, got %d", (int)n);
  plk_set_threads((int)n);
  return 0;
}

static int s_threads(lua_State *L) {
  lua_pushinteger(L, plk_threads());
  return 1;
}

static int s_isa(lua_State *L) {
  lua_pushstring(L, plk_isa());
  return 1;
}

/* environment() -> {NAME = value} of all that begin with PERILUNE_, at the process's first call; later nil */
static int s_environment(lua_State *L) {
  static const char prefix[] = "PERILUNE_";
  static atomic_flag told = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&told)) return 0;
  lua_newtable(L);
  for (char **e = environ; e && *e; e++) {
    const char *is = strchr(*e, '=');
    if (!is || strncmp(*e, prefix, sizeof prefix - 1) != 0) continue;
    lua_pushlstring(L, *e, (size_t)(is - *e));
    lua_pushstring(L, is + 1);
    lua_rawset(L, -3);
  }
  return 1;
}

/* libraries() -> {name, …}, {whether it is on this machine, …}; opens them */
static int s_libraries(lua_State *L) {
  bool found;
  const char *name;
  lua_newtable(L);
  lua_newtable(L);
  for (int i = 0; (name = plk_library(i, &found)) != NULL; i++) {
    lua_pushstring(L, name);
    lua_rawseti(L, -3, i + 1);
    lua_pushboolean(L, found);
    lua_rawseti(L, -2, i + 1);
  }
  return 2;
}

/* program() -> the file of the perilune command that runs this; nil where another program does */
static int s_program(lua_State *L) {
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.command.file");
  return 1;
}

/* system() -> "Linux 6.1.0 x86_64", "GNU 12.2.0" */
static int s_system(lua_State *L) {
  struct utsname u;
  if (uname(&u) == 0) lua_pushfstring(L, "%s %s %s", u.sysname, u.release, u.machine);
  else lua_pushliteral(L, "an unknown system");
#ifdef __clang__
  lua_pushliteral(L, __VERSION__);
#else
  lua_pushliteral(L, "GNU " __VERSION__);
#endif
  return 2;
}

static int s_seed(lua_State *L) {
  if (pl_state.trace)
    return l_error_as(L, PL_ERR_TRACE,
                      "manual_seed: a traced function cannot seed: its graph draws on from the seed of the call; seed outside");
  pl_manual_seed((uint64_t)l_check_int(L, 1, "manual_seed", "seed"));
  return 0;
}

/* T.get_rng_state() → a string that set_rng_state takes back */
static int s_get_rng(lua_State *L) {
  pl_rng_take(0);
  uint64_t v[3] = {pl_state.seed, pl_state.stream, pl_state.offset};
  lua_pushlstring(L, (const char *)v, sizeof v);
  return 1;
}

static int s_set_rng(lua_State *L) {
  size_t n;
  uint64_t v[3];
  if (pl_state.trace)
    return l_error_as(L, PL_ERR_TRACE, "set_rng_state: not in a traced function: its graph draws on from the state of the call");
  const char *s = lua_type(L, 1) == LUA_TSTRING ? lua_tolstring(L, 1, &n) : NULL;
  if (!s || n != sizeof v) return l_error(L, "set_rng_state: the string that get_rng_state returned is expected");
  memcpy(v, s, sizeof v);
  pl_manual_seed(v[0]);
  pl_state.stream = v[1];
  pl_state.offset = v[2];
  return 0;
}

static int s_ambient_level(lua_State *L) {
  lua_pushinteger(L, pl_key_top_level());
  return 1;
}

/* hold_interrupts() → a value to be closed: until then Ctrl-C waits, so that what several writes make is made whole:
 *   local _ <close> = core.hold_interrupts() */
static const char held_key = 0;
static int s_held_close(lua_State *L) {
  (void)L;
  plk_interrupt_hold(-1);
  if (pl_state.trace) pl_graph_hold(pl_state.trace, -1);
  return 0;
}
static int s_hold(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &held_key);
  plk_interrupt_hold(1);
  if (pl_state.trace) pl_graph_hold(pl_state.trace, 1);
  return 1;
}

/* interruptible(f, …) → what pcall(f, …) returns; while f runs, a hold around it does not hold */
static int s_interruptible(lua_State *L) {
  luaL_checkany(L, 1);
  plk_interrupt_hold(-1);
  const int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  plk_interrupt_hold(1);
  lua_pushboolean(L, status == LUA_OK);
  lua_insert(L, 1);
  return lua_gettop(L);
}

/* Of what stands at the bottom of the stack, state and finish, and f's results above them. */
static int around_ends(lua_State *L, int status, lua_KContext context) {
  (void)context;
  const bool room = lua_checkstack(L, 4);
  plk_interrupt_hold(1);
  int left = LUA_OK;
  if (room) {
    lua_pushvalue(L, 2);
    lua_pushvalue(L, 1);
    left = lua_pcall(L, 1, 0, 0);
  }
  plk_interrupt_hold(-1);
  if (!room) return luaL_error(L, "too many results");
  if (left != LUA_OK || (status != LUA_OK && status != LUA_YIELD)) return lua_error(L);
  return lua_gettop(L) - 2;
}

/* around(begin, value, finish, f, …) → what f(…) returns: after begin(value), and before finish(what begin returned), however f
 * ends. Ctrl-C stops f alone, never what puts back. */
static int s_around(lua_State *L) {
  luaL_checkany(L, 4);
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  plk_interrupt_hold(1);
  const int status = lua_pcall(L, 1, 1, 0);
  plk_interrupt_hold(-1);
  if (status != LUA_OK) return lua_error(L);
  lua_replace(L, 2);
  lua_remove(L, 1);
  return around_ends(L, lua_pcallk(L, lua_gettop(L) - 3, LUA_MULTRET, 0, 0, around_ends), 0);
}

static int call_held(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  plk_interrupt_hold(1);
  const int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  plk_interrupt_hold(-1);
  l_interrupt_spare();
  return status == LUA_OK ? lua_gettop(L) : lua_error(L);
}

/* open(s, begin, value) → s, with begin(value) as s.was: a scope, which gets to its <close> whatever Ctrl-C does */
static int s_open(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 3);
  plk_interrupt_hold(1);
  const int status = lua_pcall(L, 1, 1, 0);
  if (status == LUA_OK) lua_setfield(L, 1, "was");
  plk_interrupt_hold(-1);
  l_interrupt_spare();
  return status == LUA_OK ? 1 : lua_error(L);
}

/* held(f) → f, while which Ctrl-C waits: what closes a scope. */
static int s_held(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_pushcclosure(L, call_held, 1);
  return 1;
}

static void set_host(void) {
  static const PlkHost host = {pl_scratch_alloc, pl_scratch_free};
  plk_set_host(&host);
}

void l_system_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"memory", s_memory},
                                       {"reset_peak_memory", s_reset_peak},
                                       {"set_memory_budget", s_budget},
                                       {"empty_cache", s_trim},
                                       {"fail_at", s_fail_at},
                                       {"collect", s_collect},
                                       {"set_num_threads", s_set_threads},
                                       {"get_num_threads", s_threads},
                                       {"isa", s_isa},
                                       {"environment", s_environment},
                                       {"libraries", s_libraries},
                                       {"program", s_program},
                                       {"system", s_system},
                                       {"manual_seed", s_seed},
                                       {"get_rng_state", s_get_rng},
                                       {"set_rng_state", s_set_rng},
                                       {"top_level", s_ambient_level},
                                       {"hold_interrupts", s_hold},
                                       {"interruptible", s_interruptible},
                                       {"around", s_around},
                                       {"open", s_open},
                                       {"held", s_held},
                                       {NULL, NULL}};
  static pthread_once_t once = PTHREAD_ONCE_INIT; /* states in several threads may load the module at once */
  pthread_once(&once, set_host);
  luaL_setfuncs(L, functions, 0);
  lua_newuserdatauv(L, 0, 0);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, s_held_close);
  lua_setfield(L, -2, "__close");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &held_key);
  lua_pushstring(L, pl_version());
  lua_setfield(L, -2, "version");
}
