/* SPDX-License-Identifier: MIT
 * See zip.h. PKWARE APPNOTE 6.3 with the 64-bit extension. */
#include "engine/io/zip.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernel.h"

enum { EOCD = 22, EOCD64 = 56, LOCATOR = 20, CENTRAL = 46, LOCAL = 30, MAX_COMMENT = 65535 };

static uint64_t le(const unsigned char *p, int n) {
  uint64_t v = 0;
  for (int i = n - 1; i >= 0; i--) v = v << 8 | p[i];
  return v;
}

/* ---- the end record ----------------------------------------------------------------------------------------------- */

/* end_at: where the directory must end, in front of its end records. */
static PlStatus read_end64(PlZip *z, int64_t *end_at, uint64_t *n, uint64_t *size, uint64_t *at) {
  unsigned char b[EOCD64];
  if (*end_at < LOCATOR) return pl_file_bad(z->path, "malformed zip: no 64-bit locator");
  PL_TRY(pl_file_read_at(z->fd, z->path, b, LOCATOR, *end_at - LOCATOR));
  uint64_t where = le(b + 8, 8);
  if (le(b, 4) != 0x07064b50 || where > (uint64_t)(*end_at - LOCATOR) || (uint64_t)*end_at - LOCATOR - where < EOCD64)
    return pl_file_bad(z->path, "malformed zip: no 64-bit locator");
  PL_TRY(pl_file_read_at(z->fd, z->path, b, EOCD64, (int64_t)where));
  if (le(b, 4) != 0x06064b50) return pl_file_bad(z->path, "malformed zip: no 64-bit end record");
  *n = le(b + 32, 8);
  *size = le(b + 40, 8);
  *at = le(b + 48, 8);
  *end_at = (int64_t)where;
  return PL_OK;
}

/* Behind the directory are its end records, nothing else; that of 64 bits may be there without need. */
static PlStatus end64_follows(const PlZip *z, int64_t at) {
  unsigned char b[4];
  PL_TRY(pl_file_read_at(z->fd, z->path, b, 4, at));
  return le(b, 4) == 0x06064b50 ? PL_OK : pl_file_bad(z->path, "malformed zip: the directory does not end before its end record");
}

/* Finds the end record behind at most 64 KiB of comment, and the directory through it. */
static PlStatus read_end(PlZip *z) {
  int64_t room = z->size < EOCD + MAX_COMMENT ? z->size : EOCD + MAX_COMMENT, i;
  void *mem;
  if (z->size < EOCD) return pl_file_bad(z->path, "not a zip archive");
  PL_TRY(pl_file_code(plk_scratch((size_t)room, &mem)));
  unsigned char *b = mem;
  PlStatus st = pl_file_read_at(z->fd, z->path, b, (size_t)room, z->size - room);
  for (i = room - EOCD; st == PL_OK && i >= 0; i--)
    if (le(b + i, 4) == 0x06054b50 && i + EOCD + (int64_t)le(b + i + 20, 2) == room) break;
  if (st == PL_OK && i < 0) st = pl_file_bad(z->path, "not a zip archive, or its end is missing");
  uint64_t n = 0, size = 0, at = 0, here = 0;
  int64_t end_at = z->size - room + i;
  if (st == PL_OK) {
    here = le(b + i + 8, 2);
    n = le(b + i + 10, 2);
    if (here != n) st = pl_file_bad(z->path, "malformed zip: %d of %d members are in this file", (int)here, (int)n);
    size = le(b + i + 12, 4);
    at = le(b + i + 16, 4);
    if (st == PL_OK && (n == 0xffff || size == 0xffffffff || at == 0xffffffff)) st = read_end64(z, &end_at, &n, &size, &at);
  }
  plk_scratch_free(mem);
  PL_TRY(st);
  if (at > (uint64_t)end_at || size > (uint64_t)end_at - at || n > size / CENTRAL)
    return pl_file_bad(z->path, "malformed zip: the directory does not fit the file");
  if (size != (uint64_t)end_at - at) PL_TRY(end64_follows(z, (int64_t)(at + size)));
  z->n = (int64_t)n;
  z->dir_at = (int64_t)at;
  z->dir_size = (int64_t)size;
  return PL_OK;
}

/* ---- the directory -------------------------------------------------------------------------------------------------- */

/* Sizes that do not fit 32 bits are in an extra field with the mark 1, in this order. */
static PlStatus read_extra(const PlZip *z, const unsigned char *p, size_t n, uint64_t *field[3]) {
  while (n >= 4) {
    size_t mark = le(p, 2), len = le(p + 2, 2);
    if (len > n - 4) break;
    if (mark == 1) {
      const unsigned char *q = p + 4;
      for (int i = 0; i < 3; i++) {
        if (!field[i]) continue;
        if (len < 8) return pl_file_bad(z->path, "malformed zip: a 64-bit size is missing");
        *field[i] = le(q, 8);
        q += 8;
        len -= 8;
      }
      return PL_OK;
    }
    p += 4 + len;
    n -= 4 + len;
  }
  for (int i = 0; i < 3; i++)
    if (field[i]) return pl_file_bad(z->path, "malformed zip: a 64-bit size is missing");
  return PL_OK;
}

static PlStatus read_member(PlZip *z, const unsigned char **at, size_t *left, PlZipMember *m) {
  const unsigned char *p = *at;
  if (*left < CENTRAL || le(p, 4) != 0x02014b50) return pl_file_bad(z->path, "malformed zip: a directory entry");
  size_t name = le(p + 28, 2), extra = le(p + 30, 2), comment = le(p + 32, 2), whole = CENTRAL + name + extra + comment;
  if (whole > *left) return pl_file_bad(z->path, "malformed zip: the directory ends early");
  uint64_t packed = le(p + 20, 4), size = le(p + 24, 4), where = le(p + 42, 4);
  uint64_t *field[3] = {size == 0xffffffff ? &size : NULL, packed == 0xffffffff ? &packed : NULL, where == 0xffffffff ? &where : NULL};
  if (field[0] || field[1] || field[2]) PL_TRY(read_extra(z, p + CENTRAL + name, extra, field));
  m->name = (const char *)p + CENTRAL;
  m->len = name;
  m->method = (int)le(p + 10, 2);
  m->crc = (uint32_t)le(p + 16, 4);
  if (le(p + 8, 2) & 1) return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: encrypted members", z->path));
  if (m->method != PL_ZIP_STORED && m->method != PL_ZIP_DEFLATED)
    return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: zip method %d; stored and deflated members are read", z->path, m->method));
  if (where > (uint64_t)z->dir_at || packed > (uint64_t)z->dir_at - where || size > INT64_MAX ||
      (m->method == PL_ZIP_STORED && packed != size))
    return pl_file_bad(z->path, "malformed zip: member '%.*s' does not fit the file", (int)(name < 80 ? name : 80), m->name);
  m->packed = (int64_t)packed;
  m->size = (int64_t)size;
  m->at = (int64_t)where;
  *at += whole;
  *left -= whole;
  return PL_OK;
}

static int by_place(const void *a, const void *b) {
  const PlZipMember *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

static int by_name(const void *a, const void *b) {
  const PlZipMember *x = a, *y = b;
  int d = memcmp(x->name, y->name, x->len < y->len ? x->len : y->len);
  return d ? d : x->len < y->len ? -1 : x->len > y->len;
}

/* Overlapping members would unpack the same bytes again and again; equal names would hide one another. */
static PlStatus check_members(const PlZip *z, PlZipMember *m) {
  int64_t total = 0;
  qsort(m, (size_t)z->n, sizeof *m, by_name);
  for (int64_t i = 0; i < z->n; i++) {
    if (__builtin_add_overflow(total, m[i].size, &total) || total > z->max_bytes)
      return pl_file_bad(z->path, "the members declare more than max_bytes = %lld bytes", (long long)z->max_bytes);
    if (i > 0 && by_name(&m[i - 1], &m[i]) == 0) return pl_file_bad(z->path, "two members have one name");
  }
  qsort(m, (size_t)z->n, sizeof *m, by_place);
  for (int64_t i = 1; i < z->n; i++)
    if (m[i].at - m[i - 1].at < m[i - 1].packed + LOCAL) return pl_file_bad(z->path, "malformed zip: members overlap");
  return PL_OK;
}

static int pointer_by_name(const void *a, const void *b) { return by_name(*(void *const *)a, *(void *const *)b); }

const PlZipMember *pl_zip_find(const PlZip *z, const char *name, size_t n) {
  const PlZipMember wanted = {.name = name, .len = n}, *p = &wanted;
  const PlZipMember **found = z->n > 0 ? bsearch(&p, (const void *)z->by_name, (size_t)z->n, sizeof p, pointer_by_name) : NULL;
  return found ? *found : NULL;
}

static PlStatus same_name(const PlZip *z, const PlZipMember *m) {
  void *mem;
  if (m->len == 0) return PL_OK;
  PL_TRY(pl_file_code(plk_scratch(m->len, &mem)));
  PlStatus st = pl_file_read_at(z->fd, z->path, mem, m->len, m->at + LOCAL);
  const bool same = st == PL_OK && memcmp(mem, m->name, m->len) == 0;
  plk_scratch_free(mem);
  PL_TRY(st);
  return same ? PL_OK
              : pl_file_bad(z->path, "malformed zip: '%.*s' has another name where its bytes are", (int)(m->len < 80 ? m->len : 80),
                            m->name);
}

/* The local header repeats name, method and sizes. A reader that goes by it would find another file where they differ; sizes
 * may be missing there. Sets where the member's bytes begin. */
static PlStatus read_local(const PlZip *z, PlZipMember *m) {
  unsigned char b[LOCAL];
  PL_TRY(pl_file_read_at(z->fd, z->path, b, LOCAL, m->at));
  m->data_at = m->at + LOCAL + (int64_t)le(b + 26, 2) + (int64_t)le(b + 28, 2);
  if (le(b, 4) != 0x04034b50 || m->data_at > z->dir_at - m->packed || le(b + 8, 2) != (uint64_t)m->method || le(b + 26, 2) != m->len)
    return pl_file_bad(z->path, "malformed zip: no member where the directory says");
  return same_name(z, m);
}

static PlStatus read_directory(PlZip *z) {
  void *mem;
  PL_TRY(read_end(z));
  PL_TRY(pl_file_code(plk_scratch((size_t)z->dir_size + 1, &mem)));
  z->dir = mem;
  PL_TRY(pl_file_read_at(z->fd, z->path, z->dir, (size_t)z->dir_size, z->dir_at));
  PL_TRY(pl_file_code(plk_scratch((size_t)(z->n + 1) * (sizeof *z->member + sizeof *z->by_name), &mem)));
  z->member = mem;
  z->by_name = (const PlZipMember **)(void *)(z->member + z->n + 1);
  const unsigned char *at = z->dir;
  size_t left = (size_t)z->dir_size;
  for (int64_t i = 0; i < z->n; i++) PL_TRY(read_member(z, &at, &left, &z->member[i]));
  if (left) return pl_file_bad(z->path, "malformed zip: its end record says %lld members, the directory has more", (long long)z->n);
  if (z->n > 0) PL_TRY(check_members(z, z->member));
  for (int64_t i = 0; i < z->n; i++) PL_TRY(read_local(z, &z->member[i]));
  for (int64_t i = 0; i < z->n; i++) z->by_name[i] = &z->member[i];
  if (z->n > 0) qsort((void *)z->by_name, (size_t)z->n, sizeof *z->by_name, pointer_by_name);
  return PL_OK;
}

/* ---- the interface ---------------------------------------------------------------------------------------------------- */

PlStatus pl_zip_open(PlZip **out, const char *path, int64_t max_bytes) {
  int fd;
  int64_t size;
  PL_TRY(pl_file_open(path, &fd, &size));
  PlZip *z = calloc(1, sizeof *z);
  char *copy = strdup(path);
  if (!z || !copy) {
    free(z);
    free(copy);
    close(fd);
    return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  }
  *z = (PlZip){.path = copy, .fd = fd, .size = size, .max_bytes = max_bytes};
  PlStatus st = read_directory(z);
  if (st != PL_OK) {
    pl_zip_release(z);
    return st;
  }
  *out = z;
  return PL_OK;
}

void pl_zip_release(PlZip *z) {
  if (!z) return;
  close(z->fd);
  plk_scratch_free(z->dir);
  plk_scratch_free(z->member);
  free(z->path);
  free(z);
}
