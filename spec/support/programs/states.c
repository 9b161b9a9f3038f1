/* SPDX-License-Identifier: MIT
 * Further Lua states on one thread, as a program that embeds Lua may have them: states = luaopen_states();
 * s = states.new(); states.run(s, code) → what the code returns, as text; states.close(s). */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

static lua_State *state(lua_State *L) {
  lua_State *s = lua_touserdata(L, 1);
  luaL_argcheck(L, s != NULL, 1, "a state expected");
  return s;
}

/* The other one looks for modules where this one does. */
static void same_path(lua_State *L, lua_State *s, const char *field) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, field);
  lua_getglobal(s, "package");
  lua_pushstring(s, lua_tostring(L, -1));
  lua_setfield(s, -2, field);
  lua_pop(s, 1);
  lua_pop(L, 2);
}

static int new_state(lua_State *L) {
  lua_State *s = luaL_newstate();
  if (!s) return luaL_error(L, "out of memory");
  luaL_openlibs(s);
  same_path(L, s, "path");
  same_path(L, s, "cpath");
  lua_pushlightuserdata(L, s);
  return 1;
}

static int run(lua_State *L) {
  lua_State *s = state(L);
  const char *code = luaL_checkstring(L, 2);
  lua_settop(s, 0);
  const int failed = luaL_loadstring(s, code) || lua_pcall(s, 0, 1, 0);
  lua_pushstring(L, luaL_tolstring(s, -1, NULL));
  lua_settop(s, 0);
  return failed ? lua_error(L) : 1;
}

static int close_state(lua_State *L) {
  lua_close(state(L));
  return 0;
}

__attribute__((visibility("default"))) int luaopen_states(lua_State *L);
int luaopen_states(lua_State *L) {
  static const luaL_Reg functions[] = {{"new", new_state}, {"run", run}, {"close", close_state}, {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
