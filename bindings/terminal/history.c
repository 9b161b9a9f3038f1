/* SPDX-License-Identifier: MIT
 * The history file, shared by all sessions: one entry a line, backslash and newline escaped. A session appends each
 * entry in one write under a lock; when the file has grown past twice what is kept, the loader replaces it by its tail.
 * After taking the lock, a writer looks whether the path still names the file that it opened. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bindings/terminal/terminal.h"

enum { MAX_FILE = 16 << 20, TRIES = 20 };

static bool still_there(int fd, const char *path) {
  struct stat opened, named;
  return fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

/* Opens and locks; -1 with errno. A named pipe or device is refused rather than waited for. */
static int open_locked(const char *path, int flags) {
  for (int i = 0; i < TRIES; i++) {
    struct stat info;
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0) return -1;
    if (fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
      close(fd);
      errno = EINVAL;
      return -1;
    }
    for (int wait = 0; flock(fd, LOCK_EX | LOCK_NB) != 0 && wait < TRIES; wait++) usleep(5000);
    if (still_there(fd, path)) return fd;
    close(fd);
  }
  errno = EAGAIN;
  return -1;
}

static bool write_all(int fd, const char *data, size_t n) {
  while (n > 0) {
    ssize_t put = write(fd, data, n);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    data += put;
    n -= (size_t)put;
  }
  return true;
}

/* terminal.history_append(path, entry) → true; or nil, message, code */
int terminal_history_append(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  luaL_checkstring(L, 2);
  luaL_Buffer b;
  size_t n;
  const char *entry = lua_tolstring(L, 2, &n);
  luaL_buffinit(L, &b);
  for (size_t i = 0; i < n; i++) {
    if (entry[i] == '\n') luaL_addstring(&b, "\\n");
    else if (entry[i] == '\\') luaL_addstring(&b, "\\\\");
    else luaL_addchar(&b, entry[i]);
  }
  luaL_addchar(&b, '\n');
  luaL_pushresult(&b);
  const char *line = lua_tolstring(L, -1, &n);
  int fd = open_locked(path, O_WRONLY | O_APPEND | O_CREAT);
  bool ok = fd >= 0 && write_all(fd, line, n);
  int code = errno;
  if (fd >= 0) close(fd);
  errno = code;
  if (!ok) return terminal_failure(L, path);
  lua_pushboolean(L, 1);
  return 1;
}

static void push_entry(lua_State *L, const char *text, size_t n) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (size_t i = 0; i < n; i++) {
    char c = text[i];
    if (c == '\\' && i + 1 < n) {
      c = text[++i];
      if (c == 'n') c = '\n';
    }
    luaL_addchar(&b, c == '\0' ? ' ' : c);
  }
  luaL_pushresult(&b);
}

/* Replaces the file by `text`, through a file beside it. A failure leaves the old one, which is only longer. */
static void shorten(lua_State *L, const char *path, const char *text, size_t n) {
  lua_pushfstring(L, "%s.%d", path, (int)getpid());
  const char *beside = lua_tostring(L, -1);
  int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) {
    bool ok = write_all(fd, text, n);
    if (close(fd) != 0 || !ok || rename(beside, path) != 0) unlink(beside);
  }
  lua_pop(L, 1);
}

/* Reads at most the last MAX_FILE bytes into a new userdata on top; the count, or -1 with errno. */
static ssize_t read_tail(lua_State *L, int fd, char **out) {
  struct stat info;
  if (fstat(fd, &info) != 0) return -1;
  off_t from = info.st_size > MAX_FILE ? info.st_size - MAX_FILE : 0;
  size_t n = (size_t)(info.st_size - from), have = 0;
  *out = lua_newuserdatauv(L, n + 1, 0);
  while (have < n) {
    ssize_t got = pread(fd, *out + have, n - have, from + (off_t)have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    have += (size_t)got;
  }
  return (ssize_t)have;
}

static void push_entries(lua_State *L, const char *text, const char *end) {
  lua_newtable(L);
  for (lua_Integer i = 1; text < end;) {
    const char *stop = memchr(text, '\n', (size_t)(end - text));
    if (!stop) break;
    if (stop > text) {
      push_entry(L, text, (size_t)(stop - text));
      lua_rawseti(L, -2, i++);
    }
    text = stop + 1;
  }
}

/* terminal.history_load(path, count) → list of the last entries, oldest first; or nil, message, code */
int terminal_history_load(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  lua_Integer keep = luaL_checkinteger(L, 2), lines = 0;
  char *text = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return lua_newtable(L), 1;
  if (fd < 0) return terminal_failure(L, path);
  close(fd); /* readable at all; what follows needs the lock, and where that fails only reads */
  fd = open_locked(path, O_RDWR);
  bool locked = fd >= 0;
  if (!locked) fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ssize_t n = fd < 0 ? -1 : read_tail(L, fd, &text);
  if (n < 0) {
    int code = errno;
    if (fd >= 0) close(fd);
    errno = code;
    return terminal_failure(L, path);
  }
  const char *start = text + n;
  while (start > text && lines <= keep) {
    const char *stop = start - 1;
    while (stop > text && stop[-1] != '\n') stop--;
    if (++lines <= keep) start = stop;
  }
  lua_Integer total = 0;
  for (ssize_t i = 0; i < n; i++) total += text[i] == '\n';
  if (locked && total > 2 * keep) shorten(L, path, start, (size_t)(text + n - start));
  close(fd);
  push_entries(L, start, text + n);
  return 1;
}
