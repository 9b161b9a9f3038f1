/* SPDX-License-Identifier: MIT
 * Tables of text for lua/perilune/data/csv.lua, which decides dtypes between the two steps. */
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/io/csv.h"

static const HandleType csv_type; /* below the methods */
static PlCsv *check_csv(lua_State *L) { return l_check_handle(L, 1, &csv_type); }

static char one_char(lua_State *L, int i, const char *what) {
  if (lua_isnoneornil(L, i)) return '\0';
  size_t n = 0;
  const char *s = lua_type(L, i) == LUA_TSTRING ? lua_tolstring(L, i, &n) : NULL;
  if (n != 1 || *s == '\n' || *s == '\r' || *s == '\0')
    l_error(L, "data.csv: %s must be one character, got %s", what, s ? s : l_typename(L, i));
  return s ? *s : '\0';
}

/* open_csv(path or text, is_path, header, delimiter, quote, comment, {missing words}, max_bytes) -> csv */
static int open_csv(lua_State *L) {
  luaL_checkstring(L, 1);
  luaL_checktype(L, 7, LUA_TTABLE);
  lua_settop(L, 8);
  PlCsvOptions o = {.header = lua_toboolean(L, 3), .max_bytes = lua_isnil(L, 8) ? -1 : luaL_checkinteger(L, 8)};
  o.delimiter = one_char(L, 4, "the delimiter");
  o.quote = one_char(L, 5, "the quote");
  o.comment = one_char(L, 6, "the comment mark");
  if (!o.delimiter || o.delimiter == o.quote || o.delimiter == o.comment)
    return l_error(L, "data.csv: delimiter, quote and comment mark must differ");
  o.nmissing = (int)lua_rawlen(L, 7);
  PlText *words = lua_newuserdatauv(L, (size_t)(o.nmissing + 1) * sizeof *words, 0); /* 9 */
  for (int i = 0; i < o.nmissing; i++) {
    if (lua_rawgeti(L, 7, i + 1) != LUA_TSTRING) return l_error(L, "data.csv: missing must be a list of strings");
    words[i].s = lua_tolstring(L, -1, &words[i].n);
    lua_pop(L, 1);
  }
  o.missing = words;
  Handle *h = l_new_handle(L, &csv_type); /* 10 */
  const int kept[3] = {1, 7, 9};          /* what it points into */
  for (int i = 0; i < 3; i++) {
    lua_pushvalue(L, kept[i]);
    lua_setiuservalue(L, 10, i + 1);
  }
  size_t n;
  const char *s = lua_tolstring(L, 1, &n);
  if (lua_toboolean(L, 2)) s = l_check_path(L, 1, "data.csv");
  PlCsv *csv = NULL;
  PlStatus st = lua_toboolean(L, 2) ? pl_csv_open(&csv, s, &o) : pl_csv_open_text(&csv, "text", s, n, &o);
  h->p = csv;
  return st == PL_OK ? 1 : l_io_failure(L, st);
}

/* csv:info() -> rows, {name, …}, {kind, …} ("int" "float" "double" "bool" "text"), {missing values, …} */
static int csv_info(lua_State *L) {
  static const char *const kinds[] = {"int", "float", "double", "bool", "text"};
  const PlCsv *c = check_csv(L);
  int64_t n = pl_csv_columns(c);
  lua_pushinteger(L, pl_csv_rows(c));
  for (int t = 0; t < 3; t++) lua_createtable(L, (int)n, 0);
  for (int64_t k = 0; k < n; k++) {
    PlText name = pl_csv_name(c, k);
    lua_pushlstring(L, name.s, name.n);
    lua_rawseti(L, -4, k + 1);
    lua_pushstring(L, kinds[pl_csv_kind(c, k)]);
    lua_rawseti(L, -3, k + 1);
    lua_pushinteger(L, pl_csv_missing(c, k));
    lua_rawseti(L, -2, k + 1);
  }
  return 4;
}

/* csv:fill({dtype or false, …}) -> {tensor [rows] or false, …} */
static int csv_fill(lua_State *L) {
  PlCsv *c = check_csv(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  int64_t n = pl_csv_columns(c), rows = pl_csv_rows(c);
  PlDtype *dtype = lua_newuserdatauv(L, (size_t)n * sizeof *dtype, 0);
  PlTensor **out = lua_newuserdatauv(L, (size_t)n * sizeof(PlTensor *), 0);
  lua_createtable(L, (int)n, 0); /* 5 */
  l_collect(L);
  for (int64_t k = 0; k < n; k++) {
    dtype[k] = PL_NDTYPE;
    out[k] = NULL;
    if (lua_rawgeti(L, 2, k + 1) == LUA_TSTRING) {
      dtype[k] = l_check_dtype(L, lua_gettop(L), "data.csv");
      Box *b = l_new_box(L);
      CALL(L, pl_tensor_empty(&b->t, dtype[k], 1, &rows));
      out[k] = b->t;
    } else {
      lua_pushboolean(L, 0);
    }
    lua_rawseti(L, 5, k + 1);
    lua_pop(L, 1);
  }
  PlStatus st = pl_csv_fill(c, dtype, out);
  return st == PL_OK ? 1 : l_io_failure(L, st);
}

/* csv:texts({true or false, …}) -> {list of text or false, …}; a missing value is false */
static int csv_texts(lua_State *L) {
  PlCsv *c = check_csv(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  int64_t n = pl_csv_columns(c);
  bool *wanted = lua_newuserdatauv(L, (size_t)n * sizeof *wanted, 0);
  lua_Integer *row = lua_newuserdatauv(L, (size_t)n * sizeof *row, 0);
  lua_createtable(L, (int)n, 0); /* 5 */
  for (int64_t k = 0; k < n; k++) {
    lua_rawgeti(L, 2, k + 1);
    wanted[k] = lua_toboolean(L, -1);
    row[k] = 0;
    if (wanted[k]) lua_createtable(L, (int)(pl_csv_rows(c) < 1 << 24 ? pl_csv_rows(c) : 1 << 24), 0);
    else lua_pushboolean(L, 0);
    lua_rawseti(L, 5, k + 1);
    lua_pop(L, 1);
  }
  int64_t k;
  PlText text;
  while (pl_csv_next_text(c, wanted, &k, &text)) {
    lua_rawgeti(L, 5, k + 1);
    if (text.s) lua_pushlstring(L, text.s, text.n);
    else lua_pushboolean(L, 0);
    lua_rawseti(L, -2, ++row[k]);
    lua_pop(L, 1);
  }
  return 1;
}

static void release(void *p) { pl_csv_release(p); }
static const luaL_Reg methods[] = {{"info", csv_info}, {"fill", csv_fill}, {"texts", csv_texts}, {NULL, NULL}};
static const HandleType csv_type = {"perilune.csv", "csv", release, methods, 3};

void l_csv_register(lua_State *L) {
  lua_pushcfunction(L, open_csv);
  lua_setfield(L, -2, "open_csv");
}
