/* SPDX-License-Identifier: MIT
 * Opening, reading and safely replacing files. A replacement is written to a temporary
 * file in the same folder and renamed once it is on disk, so a crash at any moment leaves
 * the old file or the new one. */
#include "engine/io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/tensor/tensor.h"
#include "kernels/kernel.h"

/* Written by the failing function, read by the binding right after: per thread, like the
 * message. */
static _Thread_local int last_code;

int pl_io_code(void) { return last_code; }

PlStatus pl_file_fail(const char *what, const char *path, int code) {
  last_code = code;
  PL_FAIL(PL_ERR_IO, "%s: cannot %s: %s", path, what, strerror(code));
}

PlStatus pl_file_bad(const char *path, const char *why, ...) {
  char text[256];
  va_list ap;
  va_start(ap, why);
  vsnprintf(text, sizeof text, why, ap);
  va_end(ap);
  last_code = EBADMSG;
  PL_FAIL(PL_ERR_FORMAT, "%s: %s", path, text);
}

PlStatus pl_file_code(PlStatus s) {
  if (s == PL_ERR_OOM) last_code = ENOMEM;
  else if (s == PL_ERR_INTERRUPT) last_code = EINTR;
  else if (s == PL_ERR_UNSUPPORTED) last_code = ENOTSUP;
  else if (s == PL_ERR_ARG) last_code = EINVAL;
  return s;
}

/* A signal may interrupt any of these calls on file systems that wait for a network. */
#define AGAIN(rc, call) \
  do rc = (call);       \
  while (rc < 0 && errno == EINTR)

/* O_NONBLOCK: opening a FIFO must not wait for a writer; regular files do not care. */
PlStatus pl_file_open(const char *path, int *fd, int64_t *size) {
  int f, rc;
  AGAIN(f, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (f < 0) return pl_file_fail("open", path, errno);
  struct stat st;
  AGAIN(rc, fstat(f, &st));
  if (rc != 0) {
    int code = errno;
    close(f);
    return pl_file_fail("inspect", path, code);
  }
  if (!S_ISREG(st.st_mode)) {
    close(f);
    return pl_file_fail("read (not a regular file)", path, S_ISDIR(st.st_mode) ? EISDIR : EINVAL);
  }
  *fd = f;
  *size = (int64_t)st.st_size;
  return PL_OK;
}

enum { CHUNK = 8 << 20 }; /* bytes between two looks at Ctrl-C */

PlStatus pl_file_read_at(int fd, const char *path, void *buf, size_t n, int64_t at) {
  char *p = buf;
  while (n > 0) {
    ssize_t got = pread(fd, p, n < CHUNK ? n : CHUNK, (off_t)at);
    if (got < 0) {
      if (errno == EINTR) continue;
      return pl_file_fail("read", path, errno);
    }
    if (got == 0) return pl_file_bad(path, "the file ends early");
    p += got;
    at += got;
    n -= (size_t)got;
    PL_TRY(pl_file_code(plk_poll()));
  }
  return PL_OK;
}

PlStatus pl_file_bytes(const char *path, int64_t max_bytes, char **data, size_t *size) {
  int fd;
  int64_t n;
  PL_TRY(pl_file_open(path, &fd, &n));
  void *mem = NULL;
  PlStatus s = PL_OK;
  if (n > max_bytes) s = pl_file_bad(path, "%lld bytes, more than max_bytes = %lld", (long long)n, (long long)max_bytes);
  if (s == PL_OK) s = pl_file_code(plk_scratch((size_t)n + 1, &mem));
  if (s == PL_OK) s = pl_file_read_at(fd, path, mem, (size_t)n, 0);
  close(fd);
  if (s != PL_OK) {
    plk_scratch_free(mem);
    return s;
  }
  *data = mem;
  (*data)[n] = '\0';
  *size = (size_t)n;
  return PL_OK;
}

PlStatus pl_file_shape(const char *path, PlDtype dtype, int ndim, const int64_t *shape, int64_t *bytes) {
  int64_t numel;
  size_t n;
  if (pl_count(ndim, shape, dtype, &numel, &n) != PL_OK) return pl_file_bad(path, "the declared sizes overflow");
  *bytes = (int64_t)n;
  return PL_OK;
}

PlStatus pl_file_write(int fd, const char *path, const void *buf, size_t n) {
  const char *p = buf;
  while (n > 0) {
    ssize_t put = write(fd, p, n < CHUNK ? n : CHUNK);
    if (put < 0) {
      if (errno == EINTR) continue;
      return pl_file_fail("write", path, errno);
    }
    if (put == 0) return pl_file_fail("write", path, ENOSPC);
    p += put;
    n -= (size_t)put;
    PL_TRY(pl_file_code(plk_poll()));
  }
  return PL_OK;
}

/* ---- replacing a file ---------------------------------------------------------------------------------- */

static void temp_free(PlFileTemp *f) {
  free(f->target);
  free(f->temp);
  f->target = f->temp = NULL;
  f->fd = -1;
}

/* O_EXCL with 0666 rather than mkstemp: the new file gets the permissions that the user's
 * umask asks for. Names are tried in a row, so two processes saving at once do not share
 * a temporary file. */
PlStatus pl_file_temp_open(PlFileTemp *f, const char *path) {
  f->fd = -1;
  f->temp = NULL;
  if (path[0] == 0) {
    f->target = NULL;
    return pl_file_fail("write", path, ENOENT);
  }
  f->target = realpath(path, NULL); /* through symbolic links, so that the link survives */
  if (!f->target) f->target = strdup(path);
  size_t room = f->target ? strlen(f->target) + 40 : 0;
  if (f->target) f->temp = malloc(room);
  if (!f->temp) {
    temp_free(f);
    last_code = ENOMEM;
    PL_FAIL(PL_ERR_OOM, "%s: out of memory for the file name", path);
  }
  struct stat st;
  bool exists = stat(f->target, &st) == 0;
  if (exists && !S_ISREG(st.st_mode)) {
    int code = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    temp_free(f);
    return pl_file_fail("replace (not a regular file)", path, code);
  }
  for (int k = 0; k < 1000 && f->fd < 0; k++) {
    snprintf(f->temp, room, "%s.tmp-%ld-%d", f->target, (long)getpid(), k);
    AGAIN(f->fd, open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (f->fd < 0 && errno != EEXIST) break;
  }
  if (f->fd < 0) {
    int code = errno;
    temp_free(f);
    return pl_file_fail("write", path, code);
  }
  int rc = 0;
  if (exists) AGAIN(rc, fchmod(f->fd, st.st_mode & 07777));
  if (rc != 0) {
    int code = errno;
    pl_file_temp_abort(f);
    return pl_file_fail("write", path, code);
  }
  return PL_OK;
}

void pl_file_temp_abort(PlFileTemp *f) {
  if (f->fd >= 0) close(f->fd);
  if (f->temp) unlink(f->temp);
  temp_free(f);
}

/* The rename is durable only once the folder is on disk. Some file systems cannot sync
 * folders (EINVAL). */
static int sync_folder(const char *target) {
  const char *slash = strrchr(target, '/');
  char *dir = slash ? strndup(target, slash == target ? 1 : (size_t)(slash - target)) : strdup(".");
  if (!dir) return ENOMEM;
  int fd, rc;
  AGAIN(fd, open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  free(dir);
  if (fd < 0) return errno == EACCES ? 0 : errno; /* a folder we may write but not list */
  AGAIN(rc, fsync(fd));
  int code = rc == 0 || errno == EINVAL || errno == EROFS ? 0 : errno;
  close(fd);
  return code;
}

PlStatus pl_file_temp_flush(PlFileTemp *f) {
  if (f->fd < 0) return PL_OK;
  int fd = f->fd, rc;
  AGAIN(rc, fsync(fd));
  if (rc != 0 && errno != EINVAL) return pl_file_fail("flush", f->target, errno);
  f->fd = -1;
  return close(fd) == 0 || errno == EINTR ? PL_OK : pl_file_fail("close", f->target, errno);
}

static PlStatus rename_temp(PlFileTemp *f) {
  PL_TRY(pl_file_temp_flush(f));
  int rc;
  AGAIN(rc, rename(f->temp, f->target));
  if (rc != 0) return pl_file_fail("rename onto", f->target, errno);
  free(f->temp);
  f->temp = NULL;
  int code = sync_folder(f->target);
  return code ? pl_file_fail("flush the folder of", f->target, code) : PL_OK;
}

PlStatus pl_file_temp_commit(PlFileTemp *f) {
  PlStatus s = rename_temp(f);
  pl_file_temp_abort(f);
  return s;
}

void pl_file_swap(void *data, int64_t n, size_t size) {
  unsigned char *p = data;
  if (size < 2) return;
  for (int64_t i = 0; i < n; i++, p += size)
    for (size_t a = 0, b = size - 1; a < b; a++, b--) {
      unsigned char t = p[a];
      p[a] = p[b];
      p[b] = t;
    }
}

/* ---- any bytes ------------------------------------------------------------------------------------------------------- */

static PlStatus write_through(const char *path, const void *data, size_t n) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return pl_file_fail("open", path, errno);
  PlStatus st = pl_file_write(fd, path, data, n);
  if (close(fd) != 0 && st == PL_OK && errno != EINTR) st = pl_file_fail("close", path, errno);
  return st;
}

PlStatus pl_bytes_head(const char *path, void *to, size_t n, size_t *got) {
  int fd;
  int64_t size;
  PL_TRY(pl_file_open(path, &fd, &size));
  *got = size < (int64_t)n ? (size_t)size : n;
  PlStatus st = pl_file_read_at(fd, path, to, *got, 0);
  close(fd);
  return st;
}

PlStatus pl_bytes_save(const char *path, const void *data, size_t n) {
  struct stat at;
  if (stat(path, &at) == 0 && !S_ISREG(at.st_mode) && !S_ISDIR(at.st_mode)) return write_through(path, data, n);
  PlFileTemp f;
  PL_TRY(pl_file_temp_open(&f, path));
  PlStatus st = pl_file_write(f.fd, path, data, n);
  if (st == PL_OK) return pl_file_temp_commit(&f);
  pl_file_temp_abort(&f);
  return st;
}
