/* SPDX-License-Identifier: MIT
 * coroutine.resume and coroutine.wrap for the perilune command: as Lua's own, but they note which coroutine runs, so
 * that Ctrl-C reaches a loop inside one. See coroutines.h and guard.c. */
#include "bindings/command/coroutines.h"

#include <lauxlib.h>

static RunningCoroutine running;

/* A hook that was set on a coroutine which then stopped by itself goes to who resumed it. */
static void hand_over(lua_State *to, lua_State *from) {
  lua_sethook(from, NULL, 0, 0);
  lua_sethook(to, running.hook, INTERRUPT_MASK, 1);
}

/* Moves nargs values to co and runs it. The results are on L's stack: their number, or -1 and the error. */
static int run(lua_State *L, lua_State *co, int nargs) {
  if (!lua_checkstack(co, nargs)) {
    lua_pushliteral(L, "too many arguments to resume");
    return -1;
  }
  lua_xmove(L, co, nargs);
  lua_State *outer = running.at;
  int n = 0;
  running.at = co;
  int status = lua_resume(co, L, nargs, &n);
  running.at = outer;
  if (running.pending) hand_over(L, co);
  if (status != LUA_OK && status != LUA_YIELD) {
    lua_xmove(co, L, 1);
    return -1;
  }
  if (!lua_checkstack(L, n + 1)) {
    lua_pop(co, n);
    lua_pushliteral(L, "too many results to resume");
    return -1;
  }
  running.raised = 0; /* caught inside */
  lua_xmove(co, L, n);
  return n;
}

static int co_resume(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  if (!co) return luaL_typeerror(L, 1, "coroutine");
  int n = run(L, co, lua_gettop(L) - 1);
  if (n < 0 && running.raised) return lua_error(L); /* Ctrl-C is for the script, not for who resumed this coroutine */
  lua_pushboolean(L, n >= 0);
  if (n < 0) n = 1;
  lua_insert(L, -(n + 1));
  return n + 1;
}

/* Closes what a failed coroutine left open; the error, which may be a new one, is on its stack. */
static int close_failed(lua_State *co, lua_State *from) {
#if LUA_VERSION_RELEASE_NUM >= 50406
  return lua_closethread(co, from);
#else
  (void)from;
  return lua_resetthread(co);
#endif
}

static int wrapped(lua_State *L) {
  lua_State *co = lua_tothread(L, lua_upvalueindex(1));
  int n = run(L, co, lua_gettop(L));
  if (n >= 0) return n;
  int status = lua_status(co);
  if (status != LUA_OK && status != LUA_YIELD) {
    status = close_failed(co, L);
    lua_xmove(co, L, 1);
  }
  if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) { /* where it was called */
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

static int co_wrap(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_State *co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  lua_pushcclosure(L, wrapped, 1);
  return 1;
}

void coroutines_track(lua_State *L) {
  static const luaL_Reg functions[] = {{"resume", co_resume}, {"wrap", co_wrap}, {NULL, NULL}};
  lua_pushlightuserdata(L, &running);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.coroutine");
  lua_getglobal(L, "coroutine");
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
