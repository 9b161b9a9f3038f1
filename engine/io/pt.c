/* SPDX-License-Identifier: MIT
 * See pt.h. Checksums of members are not looked at: torch.serialization.set_crc32_options(False) writes files without. */
#include "engine/io/pt.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/io/zip.h"

struct PlPt {
  char *path;
  int fd; /* the archive's, or of an old file */
  int64_t size;
  PlZip *zip; /* NULL: the old format */
  const PlZipMember *pickle;
  size_t prefix; /* bytes of "NAME/" */
  bool swap;     /* big-endian storages */
  PlPickle *open;
};

static bool ends_with(const PlZipMember *m, const char *text) {
  const size_t n = strlen(text);
  return m->len >= n && memcmp(m->name + m->len - n, text, n) == 0;
}

/* The member NAME/rest. */
static const PlZipMember *find(const PlPt *t, const char *rest, size_t n) {
  char name[512];
  if (n > sizeof name || t->prefix > sizeof name - n) return NULL;
  memcpy(name, t->pickle->name, t->prefix);
  memcpy(name + t->prefix, rest, n);
  return pl_zip_find(t->zip, name, t->prefix + n);
}

static PlStatus check_archive(PlPt *t) {
  for (int64_t i = 0; i < t->zip->n; i++) {
    const PlZipMember *m = &t->zip->member[i];
    /* one folder deep; a deeper data.pkl is somebody else's */
    if (ends_with(m, "/data.pkl") && memchr(m->name, '/', m->len) == m->name + m->len - 9) t->pickle = m;
  }
  if (!t->pickle) return pl_file_bad(t->path, "a zip archive without data.pkl: not a file of torch.save, or a damaged one");
  t->prefix = t->pickle->len - 8;
  if (find(t, "constants.pkl", 13))
    return pl_file_code(
        pl_fail(PL_ERR_UNSUPPORTED, "%s: a TorchScript archive, which is a program; save its state_dict() with torch.save", t->path));
  for (int64_t i = 0; i < t->zip->n; i++)
    if (t->zip->member[i].method != PL_ZIP_STORED)
      return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED,
                                  "%s: compressed members, which torch.save never writes; unpack the archive and pack it "
                                  "without compression (zip -0)",
                                  t->path));
  const PlZipMember *order = find(t, "byteorder", 9);
  char text[8] = {0};
  if (!order) return PL_OK;
  if (order->size < (int64_t)sizeof text) PL_TRY(pl_file_read_at(t->fd, t->path, text, (size_t)order->size, order->data_at));
  if (strcmp(text, "big") != 0 && strcmp(text, "little") != 0) return pl_file_bad(t->path, "byteorder is neither little nor big");
  t->swap = (strcmp(text, "big") == 0) != PL_BIG_ENDIAN;
  return PL_OK;
}

static PlStatus check_old(const PlPt *t) {
  static const char magic[] = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."; /* 0x1950a86a20f9469cfc6c */
  char b[264] = {0};
  const size_t n = t->size < (int64_t)sizeof b ? (size_t)t->size : sizeof b;
  PL_TRY(pl_file_read_at(t->fd, t->path, b, n, 0));
  if (n >= 15 && b[0] == '\x80' && memcmp(b + 2, magic, 13) == 0) return PL_OK;
  if (memcmp(b + 257, "ustar", 5) == 0)
    return pl_file_code(
        pl_fail(PL_ERR_UNSUPPORTED, "%s: the tar format of torch before 0.1.10; load and save it with a later one", t->path));
  if (n >= 2 && b[0] == '\x80' && b[1] >= 2 && b[1] <= 5)
    return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: a pickle that torch.save did not write", t->path));
  return pl_file_bad(t->path, "not a file of torch.save, or a damaged one");
}

PlStatus pl_pt_open(PlPt **out, const char *path) {
  PlPt *t = calloc(1, sizeof *t);
  char *copy = strdup(path);
  char head[4] = {0};
  if (!t || !copy) {
    free(t);
    free(copy);
    return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  }
  t->path = copy;
  t->fd = -1;
  PlStatus st = pl_file_open(path, &t->fd, &t->size);
  if (st == PL_OK && t->size >= 4) st = pl_file_read_at(t->fd, path, head, 4, 0);
  if (st == PL_OK && memcmp(head, "PK\3\4", 4) == 0) {
    st = pl_zip_open(&t->zip, path, t->size > INT64_MAX / 1100 ? INT64_MAX : t->size * 1100); /* compressed ones get their own message */
    if (st == PL_OK) st = check_archive(t);
  } else if (st == PL_OK) {
    st = check_old(t);
  }
  if (st != PL_OK) {
    pl_pt_release(t);
    return st;
  }
  *out = t;
  return PL_OK;
}

void pl_pt_release(PlPt *t) {
  if (!t) return;
  pl_pickle_release(t->open);
  pl_zip_release(t->zip);
  if (t->fd >= 0) close(t->fd);
  free(t->path);
  free(t);
}

bool pl_pt_is_zip(const PlPt *t) { return t->zip != NULL; }

PlStatus pl_pt_begin(PlPt *t, int64_t at, PlPickle **pickle) {
  int64_t end = t->size;
  if (t->zip) {
    at = t->pickle->data_at;
    end = at + t->pickle->size;
  }
  pl_pickle_release(t->open);
  t->open = NULL;
  PL_TRY(pl_pickle_open(&t->open, t->path, t->fd, at, end));
  *pickle = t->open;
  return PL_OK;
}

/* ---- storages ------------------------------------------------------------------------------------------------------ */

static PlStatus find_storage(const PlPt *t, const char *key, size_t nkey, int64_t bytes, int64_t *at) {
  char name[128] = "data/";
  const int show = (int)(nkey < 60 ? nkey : 60);
  if (nkey > sizeof name - 6) return pl_file_bad(t->path, "no storage '%.*s…' is in the archive", show, key);
  memcpy(name + 5, key, nkey);
  const PlZipMember *m = find(t, name, 5 + nkey);
  if (!m) return pl_file_bad(t->path, "no storage '%.*s' is in the archive", show, key);
  if (m->size != bytes)
    return pl_file_bad(t->path, "storage '%.*s' has %lld bytes where its tensors need %lld", show, key, (long long)m->size,
                       (long long)bytes);
  *at = m->data_at;
  return PL_OK;
}

/* In the old format the count of elements is in front of them. */
static PlStatus find_old_storage(const PlPt *t, const char *key, size_t nkey, int64_t n, int64_t bytes, int64_t *at) {
  unsigned char b[8];
  uint64_t count = 0;
  const int show = (int)(nkey < 60 ? nkey : 60);
  if (*at < 0 || *at > t->size - 8 || bytes > t->size - 8 - *at)
    return pl_file_bad(t->path, "the file ends within storage '%.*s', which needs %lld bytes", show, key, (long long)bytes);
  PL_TRY(pl_file_read_at(t->fd, t->path, b, 8, *at));
  for (int i = 7; i >= 0; i--) count = count << 8 | b[i];
  if (count != (uint64_t)n)
    return pl_file_bad(t->path, "storage '%.*s' has %llu elements where its tensors need %lld", show, key, (unsigned long long)count,
                       (long long)n);
  *at += 8;
  return PL_OK;
}

PlStatus pl_pt_storage(PlPt *t, const char *key, size_t nkey, const PlWire *wire, int64_t n, int64_t *at, PlTensor **out) {
  int64_t bytes, wide;
  if (n < 0 || __builtin_mul_overflow(n, wire->bits / 8, &bytes) || pl_file_shape(t->path, (PlDtype)wire->dtype, 1, &n, &wide) != PL_OK)
    return pl_file_bad(t->path, "storage '%.*s' cannot have %lld elements", (int)(nkey < 60 ? nkey : 60), key, (long long)n);
  if (t->zip) PL_TRY(find_storage(t, key, nkey, bytes, at));
  else PL_TRY(find_old_storage(t, key, nkey, n, bytes, at));
  PlTensor *x;
  PL_TRY(pl_file_code(pl_tensor_empty(&x, (PlDtype)wire->dtype, 1, &n)));
  PlStatus st = pl_wire_read(wire, t->fd, t->path, *at, t->swap, x, 0, n);
  if (st != PL_OK) {
    pl_tensor_release(x);
    return st;
  }
  *at += bytes;
  *out = x;
  return PL_OK;
}
