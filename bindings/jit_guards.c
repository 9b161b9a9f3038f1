/* SPDX-License-Identifier: MIT
 * The common answer of T.jit's guards (lua/perilune/jit/guards.lua), which every call asks for: all is as it was. Tables are
 * walked in the order in which they were noted; whatever is not where it was, also if only that order is another, is for Lua
 * to look at. */
#include <string.h>

#include "bindings/lib.h"

enum { UPVALUES, FIELDS, GLOBALS };

/* Is the value on top what entry i of the list says? Pops it. A value that was not there is noted as a NULL pointer. */
static bool same_value(lua_State *L, lua_Integer i) {
  lua_rawgeti(L, 1, i);
  bool same = lua_isnil(L, -2) ? lua_islightuserdata(L, -1) && !lua_touserdata(L, -1) : lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

/* Field `name` (on top) of the table at 2, through __index where that is a table. Replaces the name. */
static void field_of(lua_State *L) {
  lua_pushvalue(L, 2);
  for (int depth = 0; depth < 8; depth++) { /* name, table */
    lua_pushvalue(L, -2);
    lua_rawget(L, -2);
    if (!lua_isnil(L, -1) || !lua_getmetatable(L, -2)) break;
    lua_pushliteral(L, "__index");
    lua_rawget(L, -2);
    lua_copy(L, -1, -4); /* the next table */
    bool more = lua_istable(L, -1);
    lua_settop(L, -4);
    if (!more) {
      lua_pushnil(L);
      break;
    }
    if (depth == 7) lua_pushnil(L);
  }
  lua_replace(L, -3);
  lua_pop(L, 1);
}

static bool same_fields(lua_State *L, lua_Integer at, lua_Integer n) {
  lua_Integer k = 0;
  lua_pushnil(L);
  while (lua_next(L, 2)) {
    lua_rawgeti(L, 1, at + 2 * k);
    bool here = k < n && lua_rawequal(L, -1, -3);
    lua_pop(L, 1);
    if (!here) {
      if (lua_type(L, -2) != LUA_TSTRING || strcmp(lua_tostring(L, -2), "_opts") != 0) return false;
      lua_pop(L, 1); /* a module's scratch table */
      continue;
    }
    if (!same_value(L, at + 2 * k + 1)) return false;
    k++;
  }
  return k == n;
}

static bool same(lua_State *L, lua_Integer at, lua_Integer kind, lua_Integer n) {
  if (kind == FIELDS) return same_fields(L, at, n);
  for (lua_Integer k = 0; k < n; k++, at += 2) {
    lua_rawgeti(L, 1, at);
    if (kind == UPVALUES) {
      int i = (int)lua_tointeger(L, -1);
      lua_pop(L, 1);
      if (!lua_getupvalue(L, 2, i)) return false;
    } else
      field_of(L);
    if (!same_value(L, at + 1)) return false;
  }
  return true;
}

/* jit_unchanged({object, kind, n, n times name and value, …}) → is all as it was? kind 0: a function's upvalues, names are
 * their numbers; 1: all fields of a table; 2: fields of a table or of those behind it by __index */
static int jit_unchanged(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_Integer len = (lua_Integer)lua_rawlen(L, 1), n;
  for (lua_Integer i = 1; i <= len; i += 3 + 2 * n) {
    lua_settop(L, 1);
    lua_rawgeti(L, 1, i + 1);
    lua_rawgeti(L, 1, i + 2);
    lua_Integer kind = lua_tointeger(L, 2);
    n = lua_tointeger(L, 3);
    lua_settop(L, 1);
    lua_rawgeti(L, 1, i);
    if (!same(L, i + 3, kind, n)) {
      lua_pushboolean(L, 0);
      return 1;
    }
  }
  lua_pushboolean(L, 1);
  return 1;
}

void l_jit_guards_register(lua_State *L) {
  lua_pushcfunction(L, jit_unchanged);
  lua_setfield(L, -2, "jit_unchanged");
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "jit_nothing");
}
