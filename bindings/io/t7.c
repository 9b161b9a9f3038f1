/* SPDX-License-Identifier: MIT
 * The elements of torch7's files for lua/perilune/io/t7.lua. Each method gives its value, or nil, message, code. */
#include "engine/io/t7.h"
#include "bindings/core/lib.h"

static const HandleType t7_type; /* below the methods */
static PlT7 *check_t7(lua_State *L) { return l_check_handle(L, 1, &t7_type); }

/* open_t7(path) -> reader */
static int open_t7(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_t7");
  Handle *h = l_new_handle(L, &t7_type);
  PlT7 *file = NULL;
  PlStatus s = pl_t7_open(&file, path);
  h->p = file;
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

static int t7_int(lua_State *L) {
  int64_t v;
  PlStatus s = pl_t7_int(check_t7(L), &v);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushinteger(L, v);
  return 1;
}

static int t7_double(lua_State *L) {
  double v;
  PlStatus s = pl_t7_double(check_t7(L), &v);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushnumber(L, v);
  return 1;
}

static int t7_string(lua_State *L) {
  const char *text;
  size_t n;
  PlStatus s = pl_t7_string(check_t7(L), &text, &n);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushlstring(L, text, n);
  return 1;
}

/* t7:longs(n) -> {integer, …}; n at most PL_MAX_DIM */
static int t7_longs(lua_State *L) {
  PlT7 *t = check_t7(L);
  int64_t n = luaL_checkinteger(L, 2);
  luaL_argcheck(L, n >= 0 && n <= PL_MAX_DIM, 2, "too many");
  lua_createtable(L, (int)n, 0);
  for (int64_t i = 0; i < n; i++) {
    int64_t v;
    PlStatus s = pl_t7_long(t, &v);
    if (s != PL_OK) return l_io_failure(L, s);
    lua_pushinteger(L, v);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* t7:storage(dtype) -> tensor [n], n standing in front of it */
static int t7_storage(lua_State *L) {
  PlT7 *t = check_t7(L);
  PlDtype dtype = l_check_dtype(L, 2, "load_t7");
  int64_t n;
  PlStatus s = pl_t7_long(t, &n);
  if (s != PL_OK) return l_io_failure(L, s);
  l_collect(L);
  Box *b = l_new_box(L);
  s = pl_t7_storage(t, dtype, n, &b->t);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* t7:view(storage, {size}, {stride}, offset from 0) -> tensor on the same memory */
static int t7_view(lua_State *L) {
  const PlT7 *t = check_t7(L);
  PlTensor *whole = l_check_tensor(L, 2);
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  int ndim = l_check_shape(L, 3, "load_t7", shape), ns = l_check_shape(L, 4, "load_t7", strides);
  int64_t offset = luaL_checkinteger(L, 5);
  Box *b = l_new_box(L);
  PlStatus s = ndim == ns ? pl_tensor_view(&b->t, whole, ndim, shape, strides, offset) : PL_ERR_SHAPE;
  if (s == PL_ERR_SHAPE) s = pl_t7_bad(t, "a tensor that reaches outside its storage");
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* t7:bad(why) -> nil, message, code */
static int t7_bad(lua_State *L) { return l_io_failure(L, pl_t7_bad(check_t7(L), luaL_checkstring(L, 2))); }

/* t7:over() -> whether nothing is left */
static int t7_over(lua_State *L) {
  bool over;
  PlStatus s = pl_t7_end(check_t7(L), &over);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, over);
  return 1;
}

static void release(void *p) { pl_t7_release(p); }
static const luaL_Reg methods[] = {{"int", t7_int},     {"double", t7_double},   {"string", t7_string},
                                   {"longs", t7_longs}, {"storage", t7_storage}, {"view", t7_view},
                                   {"bad", t7_bad},     {"over", t7_over},       {NULL, NULL}};
static const HandleType t7_type = {"perilune.t7", "t7", release, methods, 0};

void l_t7_register(lua_State *L) {
  lua_pushcfunction(L, open_t7);
  lua_setfield(L, -2, "open_t7");
}
