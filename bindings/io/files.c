/* SPDX-License-Identifier: MIT
 * Files and the terminal for perilune.io, perilune.data and perilune.bar. Environment
 * failures come back as nil, message, code, errno; wrong arguments, Ctrl-C and lack of
 * memory are raised. */
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "bindings/core/lib.h"
#include "engine/io/io.h"
#include "engine/tensor/file_map.h"

int l_io_failure(lua_State *L, PlStatus s) {
  if (s != PL_ERR_IO && s != PL_ERR_FORMAT && s != PL_ERR_UNSUPPORTED) return l_fail(L, s);
  int code = pl_io_code();
  l_failure(L, s);
  lua_pushinteger(L, code);
  return 4;
}

const char *l_check_path(lua_State *L, int i, const char *fn) {
  size_t n = 0;
  const char *s = lua_type(L, i) == LUA_TSTRING ? lua_tolstring(L, i, &n) : NULL;
  if (!s)
    l_error(L, "%s: the path must be a string, got %s%s", fn, l_typename(L, i),
            lua_type(L, i + 1) == LUA_TSTRING ? "; the path comes first" : "");
  if (strlen(s) != n) l_error(L, "%s: the path contains a zero byte", fn);
  return s;
}

/* ---- safetensors --------------------------------------------------------------------------------------- */

static int file_gc(lua_State *L) {
  PlSafetensors **box = lua_touserdata(L, 1);
  pl_safetensors_release(*box);
  *box = NULL;
  return 0;
}

/* The box first, with its finalizer: whatever raises later, the file is closed. */
static PlSafetensors **new_file_box(lua_State *L) {
  PlSafetensors **box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = NULL;
  if (luaL_newmetatable(L, "perilune.safetensors")) {
    lua_pushcfunction(L, file_gc);
    lua_setfield(L, -2, "__gc");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
  }
  lua_setmetatable(L, -2);
  return box;
}

/* load_safetensors(path [, map]) -> {name = tensor}, {name, …} in file order, {key = text} */
static int load_safetensors(lua_State *L) {
  const char *path = l_check_path(L, 1, "load");
  const bool map = lua_toboolean(L, 2);
  lua_settop(L, 1);
  l_collect(L);
  PlSafetensors **box = new_file_box(L); /* 2 */
  PlStatus s = pl_safetensors_open(box, path);
  if (s != PL_OK) return l_io_failure(L, s);
  PlSafetensors *f = *box;
  if (map) pl_safetensors_map(f);
  int64_t n = pl_safetensors_count(f);
  int hint = n < 1 << 20 ? (int)n : 1 << 20;
  lua_createtable(L, 0, hint); /* 3 */
  lua_createtable(L, hint, 0); /* 4 */
  lua_newtable(L);             /* 5 */
  for (int64_t i = 0; i < n; i++) {
    size_t len;
    const char *name = pl_safetensors_name(f, i, &len);
    lua_pushlstring(L, name, len);
    lua_pushvalue(L, -1);
    lua_rawseti(L, 4, i + 1);
    Box *b = l_new_box(L);
    s = pl_safetensors_read(f, i, &b->t);
    if (s != PL_OK) return l_io_failure(L, s);
    lua_rawset(L, 3);
  }
  const char *key, *value;
  size_t nkey, nvalue;
  while (pl_safetensors_next_meta(f, &key, &nkey, &value, &nvalue)) {
    lua_pushlstring(L, key, nkey);
    lua_pushlstring(L, value, nvalue);
    lua_rawset(L, 5);
  }
  pl_safetensors_release(f);
  *box = NULL;
  return 3;
}

/* The text at the top of the stack, which stays anchored in the table it came from. */
static PlText text_at(lua_State *L, int table, int64_t i, const char *what) {
  if (lua_rawgeti(L, table, i) != LUA_TSTRING) l_error(L, "save: %s must be strings", what);
  PlText t;
  t.s = lua_tolstring(L, -1, &t.n);
  lua_pop(L, 1);
  return t;
}

/* save_safetensors(path, {name, …}, {tensor, …}, {key, value, …} [, other path, bytes]) -> true. The other file is
 * replaced together with it. */
static int save_safetensors(lua_State *L) {
  const char *path = l_check_path(L, 1, "save");
  for (int i = 2; i <= 4; i++)
    if (lua_type(L, i) != LUA_TTABLE) return l_error(L, "save: argument #%d must be a table, got %s", i, l_typename(L, i));
  lua_settop(L, 6);
  PlBeside beside = {.path = lua_isnil(L, 5) ? NULL : l_check_path(L, 5, "save")};
  if (beside.path) beside.bytes.s = luaL_checklstring(L, 6, &beside.bytes.n);
  int64_t n = (int64_t)lua_rawlen(L, 2), nmeta = (int64_t)lua_rawlen(L, 4) / 2;
  if (n != (int64_t)lua_rawlen(L, 3)) return l_error(L, "save: as many names as tensors are wanted");
  PlText *names = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *names, 0);
  PlText *meta = lua_newuserdatauv(L, (size_t)(2 * nmeta + 1) * sizeof *meta, 0);
  PlTensor **tensors = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof(PlTensor *), 0);
  lua_newtable(L);
  const int copies = lua_gettop(L);
  for (int64_t i = 0; i < n; i++) {
    names[i] = text_at(L, 2, i + 1, "names");
    lua_rawgeti(L, 3, i + 1);
    tensors[i] = l_to_tensor(L, -1);
    if (tensors[i]) (void)l_concrete(L, tensors[i], "save");
    if (!tensors[i]) return l_error(L, "save: '%s' is %s, not a tensor", names[i].s, l_typename(L, -1));
    if (tensors[i]->a.device != PL_CPU) { /* the copy here takes its place in a list of our own */
      tensors[i] = l_on_host(L, tensors[i]);
      lua_rawseti(L, copies, i + 1);
    }
    lua_pop(L, 1);
  }
  for (int64_t i = 0; i < 2 * nmeta; i++) meta[i] = text_at(L, 4, i + 1, "metadata");
  PlStatus s = pl_safetensors_save(path, n, names, tensors, nmeta, meta, beside.path ? &beside : NULL);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, 1);
  return 1;
}

/* mapped_bytes() -> bytes of tensors that are parts of files */
static int mapped_bytes(lua_State *L) {
  lua_pushinteger(L, pl_file_mapped_bytes());
  return 1;
}

/* ---- IDX ----------------------------------------------------------------------------------------------- */

/* load_idx(path [, max_bytes]) -> tensor */
static int load_idx(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_idx");
  int64_t max_bytes = lua_isnoneornil(L, 2) ? -1 : l_check_int(L, 2, "load_idx", "max_bytes");
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_idx_load(&b->t, path, max_bytes);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* ---- terminal and clock -------------------------------------------------------------------------------- */

/* isatty([fd = 2]) */
static int is_terminal(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_optinteger(L, 1, 2)));
  return 1;
}

/* terminal_width([fd = 2]) -> columns, 80 where nobody knows */
static int terminal_width(lua_State *L) {
  struct winsize w;
  int fd = (int)luaL_optinteger(L, 1, 2);
  bool known = ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0;
  lua_pushinteger(L, known ? w.ws_col : 80);
  return 1;
}

/* clock() -> seconds of a monotonic clock */
static int monotonic(lua_State *L) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  lua_pushnumber(L, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
  return 1;
}

void l_io_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"load_safetensors", load_safetensors},
                                  {"save_safetensors", save_safetensors},
                                  {"mapped_bytes", mapped_bytes},
                                  {"load_idx", load_idx},
                                  {"isatty", is_terminal},
                                  {"terminal_width", terminal_width},
                                  {"clock", monotonic},
                                  {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
