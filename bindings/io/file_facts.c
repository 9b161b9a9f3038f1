/* SPDX-License-Identifier: MIT
 * What a training and the one who watches it need to know of files and processes: whose a file is, whether it is still the
 * same one, whether a process lives (lua/perilune/fit/control.lua, lua/perilune/watch). */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bindings/core/lib.h"

/* core.file_facts(path) → "file", "folder", "link" or "other"; bytes, time of the last change, a text that tells it from any
 * other file; or nil, message, code. Links are not followed. */
static int file_facts(lua_State *L) {
  const char *path = l_check_path(L, 1, "file_facts");
  struct stat st;
  if (lstat(path, &st) != 0) return luaL_fileresult(L, 0, path);
  lua_pushstring(L, S_ISREG(st.st_mode) ? "file" : S_ISDIR(st.st_mode) ? "folder" : S_ISLNK(st.st_mode) ? "link" : "other");
  lua_pushinteger(L, (lua_Integer)st.st_size);
  lua_pushnumber(L, (lua_Number)st.st_mtim.tv_sec + (lua_Number)st.st_mtim.tv_nsec * 1e-9);
  lua_pushfstring(L, "%I:%I", (LUAI_UACINT)st.st_dev, (LUAI_UACINT)st.st_ino);
  return 4;
}

/* core.read_own(path, most) → what is in a file of at most `most` bytes that belongs to this process's user, that nobody else
 * can write and that is no link; nil for anything else, also where there is none. */
static int read_own(lua_State *L) {
  const char *path = l_check_path(L, 1, "read_own");
  const int64_t most = l_check_int(L, 2, "read_own", "most");
  char room[4096];
  struct stat st;
  ssize_t n = -1;
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return 0;
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)) && st.st_size <= most &&
      st.st_size <= (off_t)sizeof room)
    n = read(fd, room, sizeof room);
  close(fd);
  if (n < 0) return 0;
  lua_pushlstring(L, room, (size_t)n);
  return 1;
}

/* core.read_range(path, id, from, n) → at most n bytes behind the first `from` of the file that file_facts called id; nil where
 * it is another one by now, or none. */
static int read_range(lua_State *L) {
  const char *path = l_check_path(L, 1, "read_range"), *id = luaL_checkstring(L, 2);
  const int64_t from = l_check_int(L, 3, "read_range", "from"), n = l_check_int(L, 4, "read_range", "n");
  struct stat st;
  luaL_Buffer b;
  if (from < 0 || n < 1 || n > 1 << 28) return l_error(L, "read_range: from must be 0 or more, n 1 to 2^28");
  char *to = luaL_buffinitsize(L, &b, (size_t)n);
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = -1;
  char now[64];
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
    snprintf(now, sizeof now, "%lld:%lld", (long long)st.st_dev, (long long)st.st_ino);
    if (strcmp(now, id) == 0) got = pread(fd, to, (size_t)n, (off_t)from);
  }
  close(fd);
  if (got < 0) return 0;
  luaL_pushresultsize(&b, (size_t)got);
  return 1;
}

/* core.write_own(path, bytes) → true, or nil, message, errno: the file is whole or as it was, and this user's alone to write.
 * What stands there is replaced, also a link; nothing is followed. */
static int write_own(lua_State *L) {
  const char *path = l_check_path(L, 1, "write_own");
  size_t n;
  const char *bytes = luaL_checklstring(L, 2, &n);
  lua_pushfstring(L, "%s.%d.part", path, (int)getpid());
  const char *part = lua_tostring(L, -1);
  unlink(part);
  int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  bool fine = fd >= 0 && write(fd, bytes, n) == (ssize_t)n;
  if (fd >= 0) fine = close(fd) == 0 && fine;
  fine = fine && rename(part, path) == 0;
  if (!fine) {
    const int code = errno;
    if (fd >= 0) unlink(part);
    errno = code;
  }
  return luaL_fileresult(L, fine, path);
}

/* core.real_path(path) → the path without links and dots; or nil, message, errno */
static int real_path(lua_State *L) {
  const char *path = l_check_path(L, 1, "real_path");
  char *real = realpath(path, NULL);
  if (!real) return luaL_fileresult(L, 0, path);
  lua_pushstring(L, real);
  free(real);
  return 1;
}

/* core.is_running(process number) */
static int is_running(lua_State *L) {
  const int64_t pid = l_check_int(L, 1, "is_running", "pid");
  lua_pushboolean(L, pid > 0 && pid <= INT32_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM));
  return 1;
}

/* core.sleep(seconds): or less, when a signal comes (Ctrl-C) */
static int sleep_(lua_State *L) {
  const double seconds = luaL_checknumber(L, 1);
  if (!(seconds >= 0 && seconds <= 1e6)) return l_error(L, "sleep: seconds must be 0 to 1e6");
  const double whole = floor(seconds);
  const struct timespec t = {.tv_sec = (time_t)whole, .tv_nsec = (long)((seconds - whole) * 1e9)};
  nanosleep(&t, NULL);
  return 0;
}

void l_facts_register(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"file_facts", file_facts}, {"read_own", read_own},     {"read_range", read_range}, {"write_own", write_own},
      {"real_path", real_path},   {"is_running", is_running}, {"sleep", sleep_},          {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
