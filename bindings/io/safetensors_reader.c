/* SPDX-License-Identifier: MIT
 * core.open_safetensors(path): a safetensors file whose tensors are read one at a time, or in parts, for T.open. */
#include "bindings/core/lib.h"
#include "engine/io/io.h"

static const HandleType reader_type; /* below the methods */
static PlSafetensors *check(lua_State *L) { return l_check_handle(L, 1, &reader_type); }

static int64_t check_entry(lua_State *L, const PlSafetensors *f) {
  int64_t i = l_check_int(L, 2, "reader", "i");
  if (i < 1 || i > pl_safetensors_count(f)) return l_error(L, "reader: there is no tensor %lld", (long long)i);
  return i - 1;
}

/* reader:names() → list in file order */
static int reader_names(lua_State *L) {
  PlSafetensors *f = check(L);
  int64_t n = pl_safetensors_count(f);
  lua_createtable(L, n < 1 << 20 ? (int)n : 1 << 20, 0);
  for (int64_t i = 0; i < n; i++) {
    size_t len;
    const char *name = pl_safetensors_name(f, i, &len);
    lua_pushlstring(L, name, len);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* reader:metadata() → {key = text}; the first call has them all, later ones none */
static int reader_metadata(lua_State *L) {
  PlSafetensors *f = check(L);
  const char *key, *value;
  size_t nkey, nvalue;
  lua_newtable(L);
  while (pl_safetensors_next_meta(f, &key, &nkey, &value, &nvalue)) {
    lua_pushlstring(L, key, nkey);
    lua_pushlstring(L, value, nvalue);
    lua_rawset(L, -3);
  }
  return 1;
}

/* reader:describe(i) → dtype (the format's own name where perilune has none), shape, the format's name of the dtype, bytes */
static int reader_describe(lua_State *L) {
  PlSafetensors *f = check(L);
  int64_t i = check_entry(L, f), shape[PL_MAX_DIM], bytes;
  PlDtype dtype;
  int ndim;
  pl_safetensors_describe(f, i, &dtype, &ndim, shape);
  const char *stored = pl_safetensors_stored(f, i, &bytes);
  lua_pushstring(L, dtype == PL_NDTYPE ? stored : pl_dtype_name(dtype));
  lua_createtable(L, ndim, 0);
  for (int d = 0; d < ndim; d++) {
    lua_pushinteger(L, shape[d]);
    lua_rawseti(L, -2, d + 1);
  }
  lua_pushstring(L, stored);
  lua_pushinteger(L, bytes);
  return 4;
}

/* reader:part(i, {start}, {count}) → tensor of so many elements from start (0-based) on along each dimension */
static int reader_part(lua_State *L) {
  PlSafetensors *f = check(L);
  int64_t i = check_entry(L, f), start[PL_MAX_DIM], count[PL_MAX_DIM], shape[PL_MAX_DIM];
  PlDtype dtype;
  int ndim;
  pl_safetensors_describe(f, i, &dtype, &ndim, shape);
  if (l_check_shape(L, 3, "slice", start) != ndim || l_check_shape(L, 4, "slice", count) != ndim)
    return l_error(L, "slice: the tensor has %d dimensions", ndim);
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_safetensors_part(f, i, start, count, &b->t);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

static void release(void *p) { pl_safetensors_release(p); }
static const luaL_Reg methods[] = {
    {"names", reader_names}, {"metadata", reader_metadata}, {"describe", reader_describe}, {"part", reader_part}, {NULL, NULL}};
static const HandleType reader_type = {"perilune.safetensors.reader", "reader", release, methods, 0};

/* core.open_safetensors(path [, map]) → reader; or nil, message, code, errno */
static int open_safetensors(lua_State *L) {
  const char *path = l_check_path(L, 1, "open_safetensors");
  Handle *h = l_new_handle(L, &reader_type);
  PlSafetensors *file = NULL;
  PlStatus s = pl_safetensors_open(&file, path);
  h->p = file;
  if (s == PL_OK && lua_toboolean(L, 2)) pl_safetensors_map(file);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

void l_reader_register(lua_State *L) {
  lua_pushcfunction(L, open_safetensors);
  lua_setfield(L, -2, "open_safetensors");
}
