/* SPDX-License-Identifier: MIT
 * Userdata that owns one object of the engine: see Handle in lib.h. Made empty, then filled, so that an error between
 * the two leaks nothing. */
#include "bindings/core/lib.h"

static int handle_close(lua_State *L) {
  const HandleType *type = lua_touserdata(L, lua_upvalueindex(1));
  Handle *h = luaL_checkudata(L, 1, type->name);
  void *p = h->p;
  h->p = NULL;
  if (p) type->release(p);
  return 0;
}

Handle *l_new_handle(lua_State *L, const HandleType *type) {
  Handle *h = lua_newuserdatauv(L, sizeof *h, type->nkept);
  h->p = NULL;
  if (luaL_newmetatable(L, type->name)) {
    lua_newtable(L);
    luaL_setfuncs(L, type->methods, 0);
    lua_pushlightuserdata(L, (void *)(uintptr_t)type);
    lua_pushcclosure(L, handle_close, 1);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "close");
    lua_setfield(L, -3, "__gc");
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
  }
  lua_setmetatable(L, -2);
  l_note_late(L);
  return h;
}

void *l_check_handle(lua_State *L, int i, const HandleType *type) {
  Handle *h = luaL_checkudata(L, i, type->name);
  if (!h->p) l_error(L, "%s: closed", type->what);
  return h->p;
}
