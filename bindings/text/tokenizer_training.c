/* SPDX-License-Identifier: MIT
 * Training of tokenizers for lua/perilune/data/tokenizer.lua. */
#include "bindings/core/lib.h"
#include "engine/text/bpe_train.h"
#include "engine/text/normalize.h"

static const HandleType trainer_type; /* below the methods */
static PlTrainer *check_trainer(lua_State *L) { return l_check_handle(L, 1, &trainer_type); }

/* bpe_trainer() -> trainer, or nil, message, code */
static int trainer_new(lua_State *L) {
  Handle *h = l_new_handle(L, &trainer_type);
  PlTrainer *t = NULL;
  PlStatus s = pl_trainer_new(&t);
  h->p = t;
  if (s == PL_ERR_UNSUPPORTED) return l_failure(L, s);
  CALL(L, s);
  return 1;
}

/* trainer:feed(text) */
static int trainer_feed(lua_State *L) {
  size_t n;
  const char *s = luaL_checklstring(L, 2, &n);
  CALL(L, pl_trainer_feed(check_trainer(L), s, n));
  return 0;
}

/* trainer:run(symbols, min_count) -> {text of byte symbol 1, … 256}, {{left, right, result}, …} with symbols from 1 */
static int trainer_run(lua_State *L) {
  PlTrainer *t = check_trainer(L);
  CALL(L, pl_trainer_run(t, luaL_checkinteger(L, 2), luaL_checkinteger(L, 3)));
  lua_createtable(L, 256, 0);
  uint8_t byte[256];
  pl_trainer_alphabet(byte);
  for (int k = 0; k < 256; k++) {
    char s[2];
    lua_pushlstring(L, s, (size_t)pl_byte_char(byte[k], s));
    lua_rawseti(L, -2, k + 1);
  }
  int64_t n = pl_trainer_merges(t);
  lua_createtable(L, (int)n, 0);
  for (int64_t k = 0; k < n; k++) {
    int32_t v[3];
    pl_trainer_merge(t, k, &v[0], &v[1], &v[2]);
    lua_createtable(L, 3, 0);
    for (int i = 0; i < 3; i++) {
      lua_pushinteger(L, v[i] + 1);
      lua_rawseti(L, -2, i + 1);
    }
    lua_rawseti(L, -2, k + 1);
  }
  return 2;
}

static void release(void *p) { pl_trainer_release(p); }
static const luaL_Reg methods[] = {{"feed", trainer_feed}, {"run", trainer_run}, {NULL, NULL}};
static const HandleType trainer_type = {"perilune.trainer", "train_bpe", release, methods, 0};

void l_trainer_register(lua_State *L) {
  lua_pushcfunction(L, trainer_new);
  lua_setfield(L, -2, "bpe_trainer");
}
