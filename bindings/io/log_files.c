/* SPDX-License-Identifier: MIT
 * What logs and pictures need of C: folders, names of this process and machine, checksums, PNG. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bindings/core/lib.h"
#include "engine/io/png_write.h"
#include "engine/tensor/presence.h"

/* core.mkdirs(path) → true, or nil, message, code, errno: makes the folder and those above it; one that is there is fine */
static int mkdirs(lua_State *L) {
  size_t n;
  const char *given = luaL_checklstring(L, 1, &n);
  if (n == 0 || strlen(given) != n) return l_error(L, "mkdirs: not a path");
  char *path = lua_newuserdatauv(L, n + 1, 0);
  memcpy(path, given, n + 1);
  for (size_t i = 1; i <= n; i++) {
    if (path[i] != '/' && i != n) continue;
    char c = path[i];
    path[i] = 0;
    struct stat st;
    if (mkdir(path, 0777) != 0 && !(errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))) {
      int code = errno;
      lua_pushnil(L);
      lua_pushfstring(L, "%s: cannot make the folder: %s", path, strerror(code));
      lua_pushliteral(L, "io");
      lua_pushinteger(L, code);
      return 4;
    }
    path[i] = c;
  }
  lua_pushboolean(L, 1);
  return 1;
}

/* core.process() → process number, host name */
static int process(lua_State *L) {
  char host[256];
  if (gethostname(host, sizeof host) != 0) strcpy(host, "localhost");
  host[sizeof host - 1] = 0;
  lua_pushinteger(L, (lua_Integer)getpid());
  lua_pushstring(L, host);
  return 2;
}

/* core.crc32c(bytes) → integer */
static int crc32c(lua_State *L) {
  size_t n;
  const char *s = luaL_checklstring(L, 1, &n);
  lua_pushinteger(L, (lua_Integer)pl_crc32(0x82F63B78u, 0, s, n));
  return 1;
}

/* core.png(u8[H,W] or u8[H,W,C]) → bytes */
static int png(lua_State *L) {
  PlTensor *t = l_on_host(L, l_check_tensor(L, 1));
  if (t->a.dtype != PL_U8 || !t->a.contiguous || t->a.ndim < 2 || t->a.ndim > 3)
    return l_error(L, "png: contiguous u8[H,W] or u8[H,W,C] is wanted, got %s", l_typename(L, 1));
  int64_t channels = t->a.ndim == 3 ? t->a.shape[2] : 1;
  if (channels < 1 || channels > 4) return l_error(L, "png: 1 to 4 channels are possible, got %s", l_typename(L, 1));
  size_t room, n;
  CALL(L, pl_png_bound(&room, t->a.shape[1], t->a.shape[0], (int)channels));
  uint8_t *to = lua_newuserdatauv(L, room, 0);
  CALL(L, pl_writes(t->storage)); /* its address is used while others are allocated */
  CALL(L, pl_png_encode(to, &n, t->a.data, t->a.shape[1], t->a.shape[0], (int)channels));
  lua_pushlstring(L, (const char *)to, n);
  return 1;
}

void l_tools_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"mkdirs", mkdirs}, {"process", process}, {"crc32c", crc32c}, {"png", png}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
