/* SPDX-License-Identifier: MIT
 * Ready-made packing: saved tensors of a device go to the host, or saved tensors go to a file. The file has no name once
 * it is open, so it is deleted with the process however that ends; places of freed tensors are used again. */
#include "engine/grad/saved_tensors_hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/device/device.h"
#include "engine/io/file.h"

enum { PAGE = 4096, TRIES = 100, PATH_ROOM = 1024 };

typedef struct Extent {
  int64_t at, size;
} Extent;

typedef struct Offload {
  size_t least;
  bool disk;
  int fd;       /* -1: not opened yet */
  pid_t owner;  /* a forked child must not write into its parent's file */
  int64_t end;  /* of the used part of the file */
  Extent *free; /* sorted, never adjacent */
  int nfree, room;
  char folder[PATH_ROOM];
} Offload;

typedef struct Kept {
  PlTensor *host; /* NULL: in the file */
  Extent place;
} Kept;

/* ---- the file ----------------------------------------------------------------------------------------------- */

static PlStatus open_file(Offload *o) {
  static const char digits[] = "abcdefghijklmnopqrstuvwxyz012345";
  char path[PATH_ROOM + 64];
  if (o->fd >= 0 && o->owner != getpid())
    PL_FAIL(PL_ERR_STATE, "saved_tensors: this scope's file belongs to the process that forked this one; open a scope here");
  if (o->fd >= 0) return PL_OK;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t r = (uint64_t)now.tv_nsec * 2654435761u + (uint64_t)now.tv_sec * 40503u + (uint64_t)(uintptr_t)o;
  for (int i = 0; i < TRIES; i++) {
    char name[14];
    r = r * 6364136223846793005u + 1442695040888963407u;
    for (int k = 0; k < 13; k++) name[k] = digits[(r >> (5 * k % 59)) & 31];
    name[13] = 0;
    snprintf(path, sizeof path, "%s/perilune-%ld-%s", o->folder, (long)getpid(), name);
    o->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (o->fd >= 0) {
      o->owner = getpid();
      if (unlink(path) == 0) return PL_OK;
      const int code = errno;
      close(o->fd);
      o->fd = -1;
      return pl_file_fail("remove", path, code);
    }
    if (errno != EEXIST) break;
  }
  return pl_file_fail("create a file for saved tensors", o->folder, errno);
}

static int64_t round_up(size_t n) { return ((int64_t)n + PAGE - 1) / PAGE * PAGE; }

/* First fit, else at the end. */
static Extent take(Offload *o, size_t n) {
  Extent e = {.at = o->end, .size = round_up(n)};
  for (int i = 0; i < o->nfree; i++) {
    Extent *f = &o->free[i];
    if (f->size < e.size) continue;
    e.at = f->at;
    f->at += e.size;
    f->size -= e.size;
    if (f->size == 0) memmove(f, f + 1, (size_t)(--o->nfree - i) * sizeof *f);
    return e;
  }
  o->end += e.size;
  return e;
}

/* Without memory to note it, the place stays unused until the file goes. */
static void give(Offload *o, Extent e) {
  int i = 0;
  while (i < o->nfree && o->free[i].at < e.at) i++;
  const bool before = i > 0 && o->free[i - 1].at + o->free[i - 1].size == e.at;
  const bool after = i < o->nfree && e.at + e.size == o->free[i].at;
  if (before && after) {
    o->free[i - 1].size += e.size + o->free[i].size;
    memmove(&o->free[i], &o->free[i + 1], (size_t)(--o->nfree - i) * sizeof e);
    i--;
  } else if (before) o->free[--i].size += e.size;
  else if (after) o->free[i] = (Extent){.at = e.at, .size = e.size + o->free[i].size};
  else {
    if (o->nfree == o->room) {
      const int room = o->room ? 2 * o->room : 16;
      Extent *list = realloc(o->free, (size_t)room * sizeof *list);
      if (!list) return;
      o->free = list;
      o->room = room;
    }
    memmove(&o->free[i + 1], &o->free[i], (size_t)(o->nfree++ - i) * sizeof e);
    o->free[i] = e;
  }
  if (o->free[i].at + o->free[i].size != o->end) return;
  o->end = o->free[i].at;
  o->nfree--;
  if (o->owner == getpid() && ftruncate(o->fd, o->end) != 0) return; /* only disk space would be lost */
}

static PlStatus write_all(const Offload *o, const char *p, size_t n, int64_t at) {
  while (n > 0) {
    const ssize_t k = pwrite(o->fd, p, n, at);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return pl_file_fail("write saved tensors", o->folder, k < 0 ? errno : EIO);
    p += k;
    n -= (size_t)k;
    at += k;
  }
  return PL_OK;
}

/* ---- packing ------------------------------------------------------------------------------------------------ */

static size_t bytes_of(const PlTensor *t) { return (size_t)t->a.numel * pl_dtype_size((PlDtype)t->a.dtype); }

/* Leaves that require gradients live anyway. */
static bool is_leaf(const PlTensor *t) { return (t->flags & PL_T_LEAF) || (t->base && (t->base->flags & PL_T_LEAF)); }

static PlStatus copy_to(PlTensor **out, int device, PlTensor *t) {
  PL_TRY(pl_tensor_empty_on(out, device, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  PlStatus s = pl_copy_data(*out, t);
  if (s != PL_OK) pl_tensor_release(*out);
  return s;
}

static PlStatus to_file(Offload *o, PlTensor *t, Extent *place) {
  PlTensor *flat = t;
  PL_TRY(open_file(o));
  if (t->a.device != PL_CPU) PL_TRY(copy_to(&flat, PL_CPU, t));
  else if (!t->a.contiguous) PL_TRY(pl_tensor_copy(&flat, t));
  const Extent e = take(o, bytes_of(t));
  PlStatus s = write_all(o, pl_tensor_data(flat), bytes_of(t), e.at);
  if (flat != t) pl_tensor_release(flat);
  if (s != PL_OK) give(o, e);
  else *place = e;
  return s;
}

static PlStatus pack(void *ud, PlTensor *t, void **packed) {
  Offload *o = ud;
  if (bytes_of(t) < o->least || t->storage->nbytes < o->least || bytes_of(t) == 0 || is_leaf(t)) return PL_OK;
  if (!o->disk && t->a.device == PL_CPU) return PL_OK;
  Kept *k = calloc(1, sizeof *k);
  if (!k) PL_FAIL(PL_ERR_OOM, "saved_tensors: out of memory");
  PlStatus s = o->disk ? to_file(o, t, &k->place) : copy_to(&k->host, PL_CPU, t);
  if (s != PL_OK) free(k);
  else *packed = k;
  return s;
}

static PlStatus unpack(void *ud, void *packed, const PlTensor *like, PlTensor **out) {
  const Offload *o = ud;
  const Kept *k = packed;
  if (k->host) return copy_to(out, like->a.device, k->host);
  if (o->owner != getpid()) PL_FAIL(PL_ERR_STATE, "saved_tensors: the file of saved tensors belongs to the process that forked this one");
  PlTensor *t;
  PL_TRY(pl_tensor_empty(&t, (PlDtype)like->a.dtype, like->a.ndim, like->a.shape));
  PlStatus s = pl_file_read_at(o->fd, o->folder, pl_tensor_data(t), bytes_of(t), k->place.at);
  if (s == PL_OK && like->a.device != PL_CPU) {
    PlTensor *host = t;
    s = copy_to(&t, like->a.device, host);
    pl_tensor_release(host);
    PL_TRY(s);
  }
  if (s != PL_OK) pl_tensor_release(t);
  else *out = t;
  return s;
}

static void discard(void *ud, void *packed) {
  Kept *k = packed;
  if (k->host) pl_tensor_release(k->host);
  else give(ud, k->place);
  free(k);
}

static void drop(void *ud) {
  Offload *o = ud;
  if (o->fd >= 0) close(o->fd);
  free(o->free);
  free(o);
}

PlStatus pl_offload_new(PlPacking **out, bool disk, const char *folder, size_t least) {
  const char *temp = getenv("TMPDIR");
  if (!folder) folder = temp && *temp ? temp : "/tmp";
  if (strlen(folder) >= PATH_ROOM) PL_FAIL(PL_ERR_ARG, "saved_tensors: the folder's name is too long");
  Offload *o = calloc(1, sizeof *o);
  PlPacking *p = calloc(1, sizeof *p);
  if (!o || !p) {
    free(o);
    free(p);
    PL_FAIL(PL_ERR_OOM, "saved_tensors: out of memory");
  }
  o->least = least;
  o->disk = disk;
  o->fd = -1;
  memcpy(o->folder, folder, strlen(folder) + 1);
  PlStatus s = disk ? open_file(o) : PL_OK; /* a folder that cannot be used is refused at once */
  if (s != PL_OK) {
    free(o);
    free(p);
    return s;
  }
  *p = (PlPacking){.pack = pack, .unpack = unpack, .discard = discard, .drop = drop, .ud = o};
  *out = p;
  return PL_OK;
}
