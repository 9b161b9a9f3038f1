/* SPDX-License-Identifier: MIT
 * What is known of characters, for lua/perilune/jinja/characters.lua. */
#include "engine/text/characters.h"
#include "bindings/core/lib.h"

/* character(code) -> category, code of its lower case, of its upper case, of its title case */
static int character(lua_State *L) {
  PlCharFacts f = pl_char_facts((int32_t)luaL_checkinteger(L, 1));
  lua_pushstring(L, f.category);
  lua_pushinteger(L, f.lower);
  lua_pushinteger(L, f.upper);
  lua_pushinteger(L, f.title);
  return 4;
}

void l_characters_register(lua_State *L) {
  lua_pushcfunction(L, character);
  lua_setfield(L, -2, "character");
}
