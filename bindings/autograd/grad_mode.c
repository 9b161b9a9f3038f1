/* SPDX-License-Identifier: MIT
 * Whether ops record belongs to the coroutine. A scope (local _ <close> = T.no_grad()) that a coroutine opened holds
 * while that coroutine runs: not for who resumed it, when it yields or is abandoned inside. Other coroutines have the
 * switch of the innermost one that resumed them.
 *
 * The engine knows one switch. A table of the registry keeps, for every coroutine with open scopes and for the main
 * thread, the switch, the number of scopes and when it last ran; what enters an op looks whether another coroutine than
 * the last one runs (l_modes_follow, one comparison), and then sets the switch. Nothing of this costs anything until a
 * coroutine opens a scope. */
#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"

static const char modes_key = 0;

/* A record is an integer: when it last ran << 32 | scopes << 1 | recording. */
static lua_Integer record(uint64_t when, lua_Integer scopes, bool on) { return (lua_Integer)(when << 32) | (scopes << 1) | on; }
static bool is_on(lua_Integer r) { return (r & 1) != 0; }
static lua_Integer scopes_of(lua_Integer r) { return (lua_Integer)(((uint64_t)r & 0xffffffff) >> 1); }
static uint64_t when_of(lua_Integer r) { return (uint64_t)r >> 32; }

/* Is co running, or waiting for one that it resumed? Not where it yielded, ended or has not begun. */
static bool in_chain(lua_State *co) {
  lua_Debug ar;
  return lua_status(co) == LUA_OK && lua_getstack(co, 0, &ar);
}

/* L's own record, or 0. The table is at `at`. */
static lua_Integer own(lua_State *L, int at) {
  lua_pushthread(L);
  lua_rawget(L, at);
  lua_Integer r = lua_tointeger(L, -1);
  lua_pop(L, 1);
  return r;
}

static void keep(lua_State *L, int at, lua_Integer r) {
  lua_pushthread(L);
  lua_pushinteger(L, r);
  lua_rawset(L, at);
}

/* The record of the innermost coroutine of those that resumed L. */
static lua_Integer inherited(lua_State *L, int at) {
  lua_Integer best = 1; /* recording */
  for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
    lua_State *co = lua_tothread(L, -2);
    lua_Integer r = lua_tointeger(L, -1);
    if (co != L && in_chain(co) && when_of(r) >= when_of(best)) best = r;
  }
  return best;
}

void l_modes_switch(lua_State *L) {
  luaL_checkstack(L, 8, NULL);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modes_key) != LUA_TTABLE) { /* another state of the same thread */
    lua_pop(L, 1);
    return;
  }
  int at = lua_gettop(L);
  lua_Integer r = own(L, at);
  if (r) keep(L, at, record(++pl_state.mode_turn, scopes_of(r), is_on(r)));
  else r = inherited(L, at);
  pl_state.mode_owner = L;
  pl_state.grad_off = !is_on(r);
  lua_pop(L, 1);
}

/* The table, made at the first scope that a coroutine opens; pushed. False: none is needed yet. */
static bool push_modes(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modes_key) == LUA_TTABLE) return true;
  lua_pop(L, 1);
  bool main = lua_pushthread(L);
  lua_pop(L, 1);
  if (main) return false;
  lua_createtable(L, 0, 2);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &modes_key);
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD); /* has the switch as it stands, for good */
  lua_pushinteger(L, record(++pl_state.mode_turn, 1, !pl_state.grad_off));
  lua_rawset(L, -3);
  pl_state.mode_owner = L;
  return true;
}

/* core.grad_enter(on) → what it was: a scope begins. core.grad_leave(was): it ends. core.grad_mode() → recording? */
static int set_mode(lua_State *L, lua_Integer step) {
  bool on = lua_toboolean(L, 1);
  luaL_checkstack(L, 8, NULL);
  l_modes_follow(L);
  bool was = !pl_state.grad_off;
  if (push_modes(L)) {
    int at = lua_gettop(L);
    lua_Integer scopes = scopes_of(own(L, at)) + step;
    bool main = lua_pushthread(L);
    lua_pop(L, 1);
    if (main && scopes < 1) scopes = 1;
    if (scopes > 0) keep(L, at, record(++pl_state.mode_turn, scopes, on));
    else { /* none is open: it goes with who resumes it */ lua_pushthread(L);
      lua_pushnil(L);
      lua_rawset(L, at);
    }
    lua_pop(L, 1);
  }
  pl_grad_enable(on);
  lua_pushboolean(L, was);
  return 1;
}

static int grad_enter(lua_State *L) { return set_mode(L, 1); }
static int grad_leave(lua_State *L) { return set_mode(L, -1); }

static int grad_mode(lua_State *L) {
  l_modes_follow(L);
  lua_pushboolean(L, !pl_state.grad_off);
  return 1;
}

/* core.key_rest(key): it records no more, and can still be walked: what only waits for its walks is in nobody's way. */
static int key_rest(lua_State *L) {
  PlKey **k = luaL_checkudata(L, 1, "perilune.GradKey"); /* the first field of grad_key.c's box */
  if (*k) (*k)->recording = false;
  return 0;
}

void l_modes_register(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"grad_enter", grad_enter}, {"grad_leave", grad_leave}, {"grad_mode", grad_mode}, {"key_rest", key_rest}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
