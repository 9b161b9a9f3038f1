/* SPDX-License-Identifier: MIT
 * perilune/core.so: the thin module that `require "perilune.core"` loads. libgomp fixes its wait policy
 * when it is loaded, so this file links no libgomp, sets the policy, then opens engine.so beside it. */
#include <dlfcn.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

/* How long an idle team spins before it sleeps. Measured with 2 threads on 2 cores, parallel loops 5 to
 * 50 us apart: from 3000 turns on (about 50 us) a fork and join costs about what it costs with libgomp's
 * 300000, a fourth of sleeping at once; when a neighbour takes a core, 30000 turns cost five times as
 * much as 3000. */
#define SPIN_TURNS "4000"

/* Exported; no header, as only Lua's loader calls it. */
int luaopen_perilune_core(lua_State *L) __attribute__((visibility("default")));

/* Pushes the folder of this module with its last slash. */
static const char *push_own_folder(lua_State *L) {
  Dl_info info;
  const char *slash = NULL;
  /* ISO C has no cast from function to object pointer; POSIX promises that the bytes agree. */
  lua_CFunction self = luaopen_perilune_core;
  void *address;
  memcpy(&address, &self, sizeof address);
  if (dladdr(address, &info) && info.dli_fname) slash = strrchr(info.dli_fname, '/');
  if (!slash) return lua_pushliteral(L, "./");
  return lua_pushlstring(L, info.dli_fname, (size_t)(slash - info.dli_fname) + 1);
}

/* Never closed again (NODELETE): the engine's threads outlive any Lua state. The variable is taken back
 * after libgomp has read it, so child processes do not inherit it. */
static void *open_engine(const char *path) {
  bool ours = !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT");
  if (ours) setenv("GOMP_SPINCOUNT", SPIN_TURNS, 1);
  void *engine = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (ours) unsetenv("GOMP_SPINCOUNT");
  return engine;
}

/* The perilune command leaves the address of a function pointer in the registry. Filled here, it takes
 * the command's signal handler into long-running kernels. Guards made later (bindings/command/guard.c) find the function
 * itself there. */
static void connect_interrupt(lua_State *L, void *engine) {
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.interrupt.slot");
  void *slot = lua_touserdata(L, -1);
  void *address = dlsym(engine, "perilune_interrupt");
  if (slot && address) memcpy(slot, &address, sizeof address);
  lua_pop(L, 1);
  lua_pushlightuserdata(L, address);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.interrupt");
}

/* The processors this process may use, before libgomp binds this thread to one of them (OMP_PROC_BIND): what
 * bindings/data/workers.c gives to its threads. */
static void note_affinity(lua_State *L) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return;
  lua_pushlstring(L, (const char *)&set, sizeof set);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.affinity");
}

int luaopen_perilune_core(lua_State *L) {
  lua_settop(L, 0);
  note_affinity(L);
  lua_pushfstring(L, "%sengine.so", push_own_folder(L));
  const char *path = lua_tostring(L, -1);
  void *engine = open_engine(path);
  if (!engine) return luaL_error(L, "perilune: cannot load the engine: %s", dlerror());
  void *address = dlsym(engine, "luaopen_perilune_engine");
  if (!address) return luaL_error(L, "perilune: %s is not perilune's engine: %s", path, dlerror());
  lua_CFunction open;
  memcpy(&open, &address, sizeof open);
  lua_pushcfunction(L, open);
  lua_pushliteral(L, "perilune.core");
  lua_pushvalue(L, 2);
  lua_call(L, 2, 1);
  connect_interrupt(L, engine);
  return 1;
}
