/* SPDX-License-Identifier: MIT
 * Formats of others for perilune.io and perilune.data: npy, npz, PNG, JPEG, plain bytes, folders. Errors as in files.c. */
#include <stdlib.h>
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/io/io.h"

static int64_t opt_max_bytes(lua_State *L, int i, const char *fn) {
  return lua_isnoneornil(L, i) ? -1 : l_check_int(L, i, fn, "max_bytes");
}

/* load_npy(path [, max_bytes]) -> tensor */
static int load_npy(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_npy");
  int64_t max_bytes = opt_max_bytes(L, 2, "load_npy");
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_npy_load(&b->t, path, max_bytes);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* tensor_of_bytes(path, from, dtype, shape) -> tensor of the elements, little-endian and row-major, that begin `from` bytes behind the
 * beginning of a file; on the default device. Bytes of bool that are neither 0 nor 1 are 1. */
static int tensor_of_bytes(lua_State *L) {
  const char *path = l_check_path(L, 1, "tensor_of_bytes");
  const int64_t from = l_check_int(L, 2, "tensor_of_bytes", "from");
  const PlDtype d = l_check_dtype(L, 3, "tensor_of_bytes");
  int64_t shape[PL_MAX_DIM];
  if (from < 0) return l_error(L, "tensor_of_bytes: from must be 0 or more");
  const int ndim = l_check_shape(L, 4, "tensor_of_bytes", shape);
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_tensor_of_bytes(&b->t, path, from, d, ndim, shape);
  if (s != PL_OK) return l_io_failure(L, s);
  l_put_on(L, pl_state.device);
  return 1;
}

/* save_npy(path, tensor) -> true */
static int save_npy(lua_State *L) {
  const char *path = l_check_path(L, 1, "save_npy");
  PlTensor *t = l_on_host(L, l_check_tensor(L, 2));
  PlStatus s = pl_npy_save(path, t);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, 1);
  return 1;
}

static int npz_gc(lua_State *L) {
  PlNpz **box = lua_touserdata(L, 1);
  pl_npz_release(*box);
  *box = NULL;
  return 0;
}

/* load_npz(path [, max_bytes]) -> {name = tensor}, {name, …} in file order */
static int load_npz(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_npz");
  int64_t max_bytes = opt_max_bytes(L, 2, "load_npz");
  lua_settop(L, 1);
  l_collect(L);
  PlNpz **box = lua_newuserdatauv(L, sizeof *box, 0); /* 2 */
  *box = NULL;
  if (luaL_newmetatable(L, "perilune.npz")) {
    lua_pushcfunction(L, npz_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
  }
  lua_setmetatable(L, -2);
  PlStatus s = pl_npz_open(box, path, max_bytes);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_newtable(L); /* 3 */
  lua_newtable(L); /* 4 */
  for (int64_t i = 0, n = 0; i < pl_npz_count(*box); i++) {
    if (!pl_npz_is_array(*box, i)) continue; /* a text beside the arrays, or a folder */
    size_t len;
    const char *name = pl_npz_name(*box, i, &len);
    lua_pushlstring(L, name, len);
    lua_pushvalue(L, -1);
    lua_rawseti(L, 4, ++n);
    Box *b = l_new_box(L);
    s = pl_npz_read(*box, i, &b->t);
    if (s != PL_OK) return l_io_failure(L, s);
    lua_rawset(L, 3);
  }
  pl_npz_release(*box);
  *box = NULL;
  return 2;
}

/* save_npz(path, {name, …}, {tensor, …}) -> true */
static int save_npz(lua_State *L) {
  const char *path = l_check_path(L, 1, "save_npz");
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  const int64_t n = (int64_t)lua_rawlen(L, 2);
  PlText *names = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *names, 0);
  PlTensor **tensors = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof(PlTensor *), 0);
  lua_newtable(L);
  const int copies = lua_gettop(L);
  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    names[i].s = luaL_checklstring(L, -1, &names[i].n);
    lua_rawgeti(L, 3, i + 1);
    tensors[i] = l_on_host(L, l_concrete(L, l_check_tensor(L, lua_gettop(L)), "save_npz"));
    if (lua_gettop(L) > copies + 2) lua_rawseti(L, copies, i + 1); /* a copy from a device lives in a list of our own */
    lua_settop(L, copies);
  }
  PlStatus s = pl_npz_save(path, n, names, tensors);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, 1);
  return 1;
}

/* load_bytes(path [, max_bytes]) -> u8 [n] */
static int load_bytes(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_bytes");
  int64_t max_bytes = opt_max_bytes(L, 2, "load_bytes");
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_bytes_load(&b->t, path, max_bytes);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* file_head(path) -> its first bytes, at most 512 */
static int file_head(lua_State *L) {
  char head[512];
  size_t n = 0;
  PlStatus s = pl_bytes_head(l_check_path(L, 1, "load"), head, sizeof head, &n);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushlstring(L, head, n);
  return 1;
}

/* write_file(path, bytes) -> true; what was there stays where that fails */
static int write_file(lua_State *L) {
  const char *path = l_check_path(L, 1, "write_file");
  size_t n;
  const char *bytes = luaL_checklstring(L, 2, &n);
  PlStatus s = pl_bytes_save(path, bytes, n);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, 1);
  return 1;
}

/* load_image(path, channels [, max_bytes]) -> u8 [C, H, W]; channels 0: the file's */
static int load_image(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_image");
  int64_t c = l_check_int(L, 2, "load_image", "channels"), max_bytes = opt_max_bytes(L, 3, "load_image");
  if (c != 0 && c != 1 && c != 3 && c != 4) return l_error(L, "load_image: 1, 3 or 4 channels, got %d", (int)c);
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_image_load(&b->t, path, (int)c, max_bytes);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* save_image(path, u8 tensor, quality) -> true */
static int save_image(lua_State *L) {
  const char *path = l_check_path(L, 1, "save_image");
  PlTensor *t = l_on_host(L, l_check_tensor(L, 2));
  int64_t quality = l_check_int(L, 3, "save_image", "quality");
  if (quality < 1 || quality > 100) return l_error(L, "save_image: quality must be 1 to 100, got %d", (int)quality);
  PlStatus s = pl_image_save(path, t, (int)quality);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, 1);
  return 1;
}

/* list_folder(path) -> {{kind, name}, …} in no order, as {"dname", "fname", …} */
static int push_names(lua_State *L) {
  const char *s = lua_touserdata(L, 1);
  size_t n = (size_t)lua_tointeger(L, 2);
  lua_newtable(L);
  lua_Integer k = 0;
  for (size_t at = 0; at < n; at += strlen(s + at) + 1) {
    lua_pushstring(L, s + at);
    lua_rawseti(L, -2, ++k);
  }
  return 1;
}

static int list_folder(lua_State *L) {
  const char *path = l_check_path(L, 1, "list_folder");
  char *names = NULL;
  size_t n = 0;
  PlStatus s = pl_folder_list(path, &names, &n);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushcfunction(L, push_names); /* what it raises must not pass by free() */
  lua_pushlightuserdata(L, names);
  lua_pushinteger(L, (lua_Integer)n);
  int rc = lua_pcall(L, 2, 1, 0);
  free(names);
  return rc == LUA_OK ? 1 : lua_error(L);
}

void l_files_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"tensor_of_bytes", tensor_of_bytes},
                                  {"load_npy", load_npy},
                                  {"write_file", write_file},
                                  {"save_npy", save_npy},
                                  {"load_npz", load_npz},
                                  {"save_npz", save_npz},
                                  {"file_head", file_head},
                                  {"load_bytes", load_bytes},
                                  {"load_image", load_image},
                                  {"save_image", save_image},
                                  {"list_folder", list_folder},
                                  {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
