/* SPDX-License-Identifier: MIT
 * Making tensors of Lua values: T.tensor, T.from_string; the dtype that floats get. */
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"

typedef struct Scan {
  int ndim;
  int64_t shape[PL_MAX_DIM];
  bool any_number, any_bool;
  bool mixed; /* the outermost table may hold options, too */
} Scan;

/* Sizes come from the first entries; every other entry must agree. */
static int scan(lua_State *L, int at, int depth, Scan *s, bool first) {
  int type = lua_type(L, at);
  if (type == LUA_TTABLE) {
    if (depth >= PL_MAX_DIM) return l_error(L, "tensor: nested deeper than %d dimensions", PL_MAX_DIM);
    luaL_checkstack(L, 4, NULL);
    int64_t n = (int64_t)lua_rawlen(L, at);
    if (!(depth == 0 && s->mixed) && l_push_stray(L, at, n))
      return l_error(L, "tensor: the table has the key '%s'; elements are its entries 1 to n", lua_tostring(L, -1));
    if (first) {
      s->ndim = depth + 1;
      s->shape[depth] = n;
    } else if (depth >= s->ndim || s->shape[depth] != n)
      return l_error(L, "tensor: ragged table: %d entries at depth %d where %d were expected", (int)n, depth + 1,
                     depth < s->ndim ? (int)s->shape[depth] : 0);
    for (int64_t i = 1; i <= n; i++) {
      lua_rawgeti(L, at, i);
      scan(L, lua_gettop(L), depth + 1, s, first && i == 1);
      lua_pop(L, 1);
      if (PL_UNLIKELY(i % L_POLL == 0)) CALL(L, plk_poll());
    }
    return 0;
  }
  if (depth != s->ndim) return l_error(L, "tensor: ragged table: %s at depth %d where a table was expected", l_typename(L, at), depth + 1);
  if (type == LUA_TBOOLEAN) s->any_bool = true;
  else if (type == LUA_TNUMBER) s->any_number = true;
  else if (l_to_tensor(L, at) && l_concrete(L, l_to_tensor(L, at), "tensor")->a.numel == 1) {
    if (l_to_tensor(L, at)->a.dtype == PL_BOOL) s->any_bool = true;
    else s->any_number = true;
  } else
    return l_error(L, "tensor: entries must be numbers or booleans, got %s%s", l_typename(L, at),
                   l_to_tensor(L, at) ? "; T.stack joins tensors" : "");
  return 0;
}

void l_write_value(lua_State *L, int at, PlDtype d, void *to) {
  if (lua_type(L, at) == LUA_TBOOLEAN) pl_write_i(d, to, lua_toboolean(L, at));
  else if (lua_isinteger(L, at)) pl_write_i(d, to, (int64_t)lua_tointeger(L, at));
  else if (lua_type(L, at) == LUA_TNUMBER) pl_write_f(d, to, lua_tonumber(L, at));
}

/* By the scanned sizes: a finalizer may have changed the tables since. */
static char *fill(lua_State *L, int at, int depth, const Scan *s, PlDtype d, char *to) {
  bool table = lua_type(L, at) == LUA_TTABLE;
  if (depth == s->ndim) {
    PlTensor *t = table ? NULL : l_to_tensor(L, at);
    if (t && t->a.numel != 1) t = NULL;
    if (t) { /* as the number that it holds */
      uint64_t room;
      PlArray a = l_element(L, t, 0, &room);
      if (pl_is_float((PlDtype)t->a.dtype)) lua_pushnumber(L, pl_read_f(&a, 0));
      else lua_pushinteger(L, pl_read_i(&a, 0));
      at = lua_gettop(L);
    }
    if (!table) {
      l_check_fits(L, at, d, "tensor");
      l_write_value(L, at, d, to);
    }
    if (t) lua_pop(L, 1);
    return to + pl_dtype_size(d);
  }
  for (int64_t i = 1; i <= s->shape[depth]; i++) {
    if (table) lua_rawgeti(L, at, i);
    else lua_pushnil(L);
    to = fill(L, lua_gettop(L), depth + 1, s, d, to);
    lua_pop(L, 1);
    if (PL_UNLIKELY(i % L_POLL == 0) && plk_poll() != PL_OK) l_fail(L, PL_ERR_INTERRUPT);
  }
  return to;
}

static PlDtype option_dtype(lua_State *L, int at, const char *fn, PlDtype def) {
  if (lua_type(L, at) == LUA_TSTRING) return l_check_dtype(L, at, fn);
  if (lua_type(L, at) != LUA_TTABLE) return def;
  lua_getfield(L, at, "dtype");
  PlDtype d = lua_isnil(L, -1) ? def : l_check_dtype(L, lua_gettop(L), fn);
  lua_pop(L, 1);
  return d;
}

/* The new tensor on top of the stack goes where the options, else `otherwise`, say. */
static void place_new(lua_State *L, int options, int otherwise) {
  int d = otherwise;
  if (lua_type(L, options) == LUA_TTABLE) {
    lua_getfield(L, options, "device");
    if (!lua_isnil(L, -1)) d = l_check_device(L, -1, "tensor");
    lua_pop(L, 1);
  }
  l_put_on(L, d);
}

static int finish_new(lua_State *L, int options) {
  if (l_opt_bool(L, options, "requires_grad", false)) {
    CALL(L, pl_requires_grad(l_to_tensor(L, -1), true));
    l_remember_box(L, -1);
  }
  return 1;
}

/* {1, 2, dtype = "i64"}: every key of the table at 1 is an element's place or an option. */
static int check_mixed(lua_State *L, const char *allowed) {
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
    if (lua_isinteger(L, -2) && lua_tointeger(L, -2) >= 1 && lua_tointeger(L, -2) <= n) continue;
    const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : NULL;
    if (!key) {
      lua_pop(L, 1);
      return l_error(L, "tensor: the table has the key %s; elements are its entries 1 to n", luaL_tolstring(L, -1, NULL));
    }
    if (strcmp(key, "dtype") != 0 && strcmp(key, "requires_grad") != 0 && strcmp(key, "device") != 0)
      return l_error(L, "tensor: unknown option '%s'%s; allowed: %s", key, l_did_you_mean(L, key, allowed), allowed);
  }
  return 0;
}

/* T.tensor(data, {dtype=, requires_grad=, device=}): nested tables of one shape, a number, a boolean, or a
 * tensor (copied). f32 unless dtype says otherwise; bool if every entry is a boolean. */
static int t_tensor(lua_State *L) {
  static const char allowed[] = "dtype requires_grad device";
  if (lua_gettop(L) > 2 && lua_type(L, 1) == LUA_TNUMBER && lua_type(L, 2) == LUA_TNUMBER)
    return l_error(L, "tensor: its values are one table: T.tensor { %s, … }; T.zeros(2, 3) is made by sizes", lua_tostring(L, 1));
  l_at_most(L, 2, "tensor");
  if (lua_type(L, 2) == LUA_TTABLE) l_check_options(L, 2, "tensor", allowed);
  else if (!lua_isnoneornil(L, 2) && lua_type(L, 2) != LUA_TSTRING)
    return l_error(L, "tensor: argument #2 must be a table of options (%s), got %s", allowed, l_typename(L, 2));
  PlTensor *src = l_to_tensor(L, 1);
  l_collect(L);
  if (src) {
    (void)l_concrete(L, src, "tensor");
    PlDtype d = option_dtype(L, 2, "tensor", (PlDtype)src->a.dtype);
    Box *b = l_new_box(L);
    CALL(L, pl_tensor_like(&b->t, src, d));
    CALL(L, pl_copy_data(b->t, src));
    place_new(L, 2, src->a.device);
    return finish_new(L, 2);
  }
  /* T.tensor{1, 2, dtype = "i64"}: options may stand in the same table */
  int options = 2;
  if (lua_type(L, 1) == LUA_TTABLE && lua_isnoneornil(L, 2)) options = 1;
  Scan s = {.mixed = options == 1};
  if (s.mixed) check_mixed(L, allowed);
  scan(L, 1, 0, &s, true);
  PlDtype d = option_dtype(L, options, "tensor", s.any_bool && !s.any_number ? PL_BOOL : pl_default_float());
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_empty(&b->t, d, s.ndim, s.shape));
  if (b->t->a.numel) fill(L, 1, 0, &s, d, b->t->a.data);
  place_new(L, options, pl_state.device);
  return finish_new(L, options);
}

/* T.from_string(bytes, dtype, shape): little-endian, row-major elements; on the default device. */
static int t_from_string(lua_State *L) {
  size_t n;
  if (lua_type(L, 1) != LUA_TSTRING) return l_error(L, "from_string: argument 1 must be a string, got %s", l_typename(L, 1));
  const char *bytes = lua_tolstring(L, 1, &n);
  l_at_most(L, 3, "from_string");
  PlDtype d = l_check_dtype(L, 2, "from_string");
  int64_t shape[PL_MAX_DIM] = {(int64_t)(n / pl_dtype_size(d))}, numel;
  if (!lua_isnoneornil(L, 3) && lua_type(L, 3) != LUA_TTABLE && lua_type(L, 3) != LUA_TNUMBER)
    return l_error(L, "from_string: the shape must be a list of sizes, got %s", l_typename(L, 3));
  int ndim = lua_isnoneornil(L, 3) ? 1 : l_check_shape(L, 3, "from_string", shape);
  size_t want;
  CALL(L, pl_count(ndim, shape, d, &numel, &want));
  if (want != n) return l_error(L, "from_string: the shape needs %zu bytes, the string has %zu", want, n);
  l_collect(L);
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_from(&b->t, d, ndim, shape, bytes));
  if (d == PL_BOOL) /* any other byte would break bool kernels */
    for (size_t i = 0; i < n; i++) ((uint8_t *)b->t->a.data)[i] = bytes[i] != 0;
  l_put_on(L, pl_state.device);
  return 1;
}

static int t_default_dtype(lua_State *L) {
  l_at_most(L, 1, "default_dtype");
  if (!lua_isnoneornil(L, 1)) {
    PlDtype d = l_check_dtype(L, 1, "default_dtype");
    if (!pl_is_float(d)) return l_error(L, "default_dtype: must be a floating dtype, not %s", pl_dtype_name(d));
    pl_set_default_float(d);
  }
  lua_pushstring(L, pl_dtype_name(pl_default_float()));
  return 1;
}

/* T.result_type(x, y, …) over tensors and numbers would need ops; promotion of two dtype names is enough. */
static int t_promote_types(lua_State *L) {
  l_at_most(L, 2, "promote_types");
  PlDtype a = l_check_dtype(L, 1, "promote_types"), b = l_check_dtype(L, 2, "promote_types");
  lua_pushstring(L, pl_dtype_name(pl_promote2(a, b)));
  return 1;
}

/* core.check_fits(name, value, dtype, [unnamed]): raises where the number has no place in that dtype; unnamed: which is that of a tensor */
static int t_check_fits(lua_State *L) {
  return (lua_toboolean(L, 4) ? l_check_stored : l_check_fits)(L, 2, l_check_dtype(L, 3, luaL_checkstring(L, 1)), lua_tostring(L, 1));
}

void l_tensor_new_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"tensor", t_tensor},
                                       {"from_string", t_from_string},
                                       {"default_dtype", t_default_dtype},
                                       {"promote_types", t_promote_types},
                                       {"check_fits", t_check_fits},
                                       {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
