/* SPDX-License-Identifier: MIT
 * Tokenizers for lua/perilune/data/tokenizer.lua. Ids here are the file's, from 0; Lua's count from index_base. */
#include <stdlib.h>

#include "bindings/core/lib.h"
#include "engine/text/tokenizer.h"

static const HandleType tokenizer_type; /* below the methods */
static PlTokenizer *check_tokenizer(lua_State *L) { return l_check_handle(L, 1, &tokenizer_type); }

static int failure(lua_State *L, PlStatus s) {
  if (s != PL_ERR_FORMAT && s != PL_ERR_UNSUPPORTED) return l_fail(L, s);
  return l_failure(L, s);
}

/* tokenizer(json, name) -> tokenizer, or nil, message, code */
static int tokenizer_new(lua_State *L) {
  size_t n;
  const char *json = luaL_checklstring(L, 1, &n), *name = luaL_checkstring(L, 2);
  Handle *h = l_new_handle(L, &tokenizer_type);
  PlTokenizer *t = NULL;
  PlStatus s = pl_tokenizer_parse(&t, name, json, n);
  h->p = t;
  return s == PL_OK ? 1 : failure(L, s);
}

/* tokenizer:encode(text, index_base, add special tokens around, recognize special tokens inside) -> i64 [n], or nil, message, code */
static int tokenizer_encode(lua_State *L) {
  PlTokenizer *t = check_tokenizer(L);
  size_t n, count = 0;
  const char *text = luaL_checklstring(L, 2, &n);
  int64_t base = luaL_checkinteger(L, 3);
  int32_t *ids = NULL;
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_tokenizer_encode(t, text, n, lua_toboolean(L, 4), lua_toboolean(L, 5), &ids, &count);
  if (s != PL_OK) return failure(L, s);
  int64_t shape = (int64_t)count;
  s = pl_tensor_empty(&b->t, PL_I64, 1, &shape);
  for (size_t i = 0; s == PL_OK && i < count; i++) ((int64_t *)b->t->a.data)[i] = ids[i] + base;
  free(ids);
  CALL(L, s);
  return 1;
}

/* tokenizer:decode({id, …}, skip_special, index_base) -> bytes */
static int tokenizer_decode(lua_State *L) {
  const PlTokenizer *t = check_tokenizer(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  bool skip = lua_toboolean(L, 3), first = true;
  int64_t base = luaL_checkinteger(L, 4);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  luaL_Buffer out;
  lua_settop(L, 2);
  luaL_buffinit(L, &out);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 2, i);
    int64_t id = 0;
    size_t len;
    bool special, ok = l_to_int(L, lua_gettop(L), &id);
    lua_pop(L, 1);
    const char *s = ok ? pl_tokenizer_bytes(t, id - base, &len, &special) : NULL;
    if (!s && !ok) return l_error(L, "decode: id %d of the list is no integer", (int)i);
    if (!s)
      return l_error(L, "decode: there is no token with id %lld; ids are %lld to %lld", (long long)id, (long long)base,
                     (long long)(pl_tokenizer_size(t) - 1 + base));
    if (special && skip) continue;
    bool drop = first && pl_tokenizer_drops(t);
    first = false;
    for (size_t k = 0; drop && k < len; k++)
      if (s[k] != ' ') luaL_addchar(&out, s[k]);
    if (!drop) luaL_addlstring(&out, s, len);
  }
  luaL_pushresult(&out);
  size_t len, from, to;
  const char *s = lua_tolstring(L, -1, &len);
  pl_tokenizer_trim(t, s, len, &from, &to);
  if (from > 0 || to < len) lua_pushlstring(L, s + from, to - from);
  return 1;
}

/* tokenizer:token(id, index_base) -> text or nil, whether it is special */
static int tokenizer_token(lua_State *L) {
  const PlTokenizer *t = check_tokenizer(L);
  int64_t id = luaL_checkinteger(L, 2) - luaL_checkinteger(L, 3);
  size_t n, len;
  bool special = false;
  const char *s = pl_tokenizer_text(t, id, &n);
  if (!s) return 0;
  (void)pl_tokenizer_bytes(t, id, &len, &special);
  lua_pushlstring(L, s, n);
  lua_pushboolean(L, special);
  return 2;
}

/* tokenizer:id(text, index_base) -> id or nil */
static int tokenizer_id(lua_State *L) {
  size_t n;
  const char *s = luaL_checklstring(L, 2, &n);
  int64_t id = pl_tokenizer_id(check_tokenizer(L), s, n);
  if (id < 0) return 0;
  lua_pushinteger(L, id + luaL_checkinteger(L, 3));
  return 1;
}

static int tokenizer_size(lua_State *L) {
  lua_pushinteger(L, pl_tokenizer_size(check_tokenizer(L)));
  return 1;
}

static void release(void *p) { pl_tokenizer_release(p); }
static const luaL_Reg methods[] = {{"encode", tokenizer_encode}, {"decode", tokenizer_decode}, {"token", tokenizer_token},
                                   {"id", tokenizer_id},         {"size", tokenizer_size},     {NULL, NULL}};
static const HandleType tokenizer_type = {"perilune.tokenizer", "tokenizer", release, methods, 0};

void l_tokenizer_register(lua_State *L) {
  lua_pushcfunction(L, tokenizer_new);
  lua_setfield(L, -2, "tokenizer");
}
