/* SPDX-License-Identifier: MIT
 * Folders: listing them, making them. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "bindings/terminal/terminal.h"

enum { MAX_ENTRIES = 100000 };

int terminal_failure(lua_State *L, const char *path) {
  int code = errno;
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", path, strerror(code));
  lua_pushliteral(L, "io");
  return 3;
}

static bool is_folder(lua_State *L, const char *folder, const struct dirent *entry) {
  struct stat info;
  if (entry->d_type == DT_DIR) return true;
  if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) return false;
  lua_pushfstring(L, "%s/%s", folder, entry->d_name);
  bool yes = stat(lua_tostring(L, -1), &info) == 0 && S_ISDIR(info.st_mode);
  lua_pop(L, 1);
  return yes;
}

/* The folder's stream is in a userdata with a finalizer, so running out of memory leaks no descriptor. */
static int close_folder(lua_State *L) {
  DIR **dir = lua_touserdata(L, 1);
  if (*dir) closedir(*dir);
  *dir = NULL;
  return 0;
}

/* terminal.list(folder) → the names in it, folders with a slash behind; or nil, message, code */
int terminal_list(lua_State *L) {
  const char *folder = luaL_checkstring(L, 1);
  DIR **dir = lua_newuserdatauv(L, sizeof *dir, 0);
  *dir = NULL;
  if (luaL_newmetatable(L, "perilune.terminal.folder")) {
    lua_pushcfunction(L, close_folder);
    lua_setfield(L, -2, "__gc");
  }
  lua_setmetatable(L, -2);
  *dir = opendir(folder);
  if (!*dir) return terminal_failure(L, folder);
  lua_newtable(L);
  const struct dirent *entry;
  for (lua_Integer n = 0; n < MAX_ENTRIES && (entry = readdir(*dir));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    bool slash = is_folder(L, folder, entry);
    lua_pushfstring(L, slash ? "%s/" : "%s", entry->d_name);
    lua_rawseti(L, -2, ++n);
  }
  closedir(*dir);
  *dir = NULL;
  return 1;
}

/* terminal.make_dirs(path, mode = 0700) → true: makes the folder and those above it; or nil, message, code */
int terminal_make_dirs(lua_State *L) {
  size_t n;
  const char *path = luaL_checklstring(L, 1, &n);
  mode_t mode = (mode_t)luaL_optinteger(L, 2, 0700);
  char *copy = lua_newuserdatauv(L, n + 1, 0);
  memcpy(copy, path, n + 1);
  for (size_t i = 1; i <= n; i++) {
    if (copy[i] != '/' && copy[i] != '\0') continue;
    char end = copy[i];
    copy[i] = '\0';
    if (mkdir(copy, mode) != 0 && errno != EEXIST) return terminal_failure(L, copy);
    copy[i] = end;
  }
  lua_pushboolean(L, 1);
  return 1;
}
