/* SPDX-License-Identifier: MIT
 * What is known of characters, for lua/perilune/jinja/characters.lua, and expressions, for lua/perilune/nn/lora_files.lua. */
#include "engine/text/characters.h"
#include "bindings/core/lib.h"
#include "engine/text/pattern.h"

/* character(code) -> category, code of its lower case, of its upper case, of its title case */
static int character(lua_State *L) {
  PlCharFacts f = pl_char_facts((int32_t)luaL_checkinteger(L, 1));
  lua_pushstring(L, f.category);
  lua_pushinteger(L, f.lower);
  lua_pushinteger(L, f.upper);
  lua_pushinteger(L, f.title);
  return 4;
}

static PlStatus note_match(void *any, const char *s, size_t n, bool match) {
  (void)s, (void)n;
  *(bool *)any = *(bool *)any || match;
  return PL_OK;
}

/* expression_found(who, expression, text) -> is it anywhere in the text? Or nil, a message, the kind of error: what is no expression,
 * or takes too long. */
static int expression_found(lua_State *L) {
  size_t nregex, n;
  const char *who = luaL_checkstring(L, 1), *regex = luaL_checklstring(L, 2, &nregex), *text = luaL_checklstring(L, 3, &n);
  PlPattern *p = NULL;
  PlMatcher *m = NULL;
  bool found = false;
  PlStatus s = pl_pattern_new(&p, who, regex, nregex);
  if (s == PL_OK) s = pl_matcher_new(&m);
  if (s == PL_OK) s = pl_pattern_each(p, m, text, n, false, note_match, &found);
  pl_matcher_release(m);
  pl_pattern_release(p);
  if (s == PL_ERR_FORMAT || s == PL_ERR_UNSUPPORTED) return l_failure(L, s);
  CALL(L, s);
  lua_pushboolean(L, found);
  return 1;
}

void l_characters_register(lua_State *L) {
  lua_pushcfunction(L, character);
  lua_setfield(L, -2, "character");
  lua_pushcfunction(L, expression_found);
  lua_setfield(L, -2, "expression_found");
}
