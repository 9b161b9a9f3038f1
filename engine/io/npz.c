/* SPDX-License-Identifier: MIT
 * npz: a zip archive of npy files. */
#include <stdio.h>
#include <string.h>

#include "engine/io/npy.h"
#include "engine/io/zip.h"

PlStatus pl_npz_open(PlNpz **out, const char *path, int64_t max_bytes) {
  return pl_zip_open(out, path, max_bytes < 0 ? (int64_t)1 << 32 : max_bytes);
}

void pl_npz_release(PlNpz *z) { pl_zip_release(z); }

int64_t pl_npz_count(const PlNpz *z) { return z->n; }

bool pl_npz_is_array(const PlNpz *z, int64_t i) {
  const PlZipMember *m = &z->member[i];
  return m->len > 4 && memcmp(m->name + m->len - 4, ".npy", 4) == 0;
}

const char *pl_npz_name(const PlNpz *z, int64_t i, size_t *len) {
  *len = z->member[i].len - (pl_npz_is_array(z, i) ? 4 : 0);
  return z->member[i].name;
}

PlStatus pl_npz_read(PlNpz *z, int64_t i, PlTensor **out) {
  const PlZipMember *m = &z->member[i];
  PlTensor *t = NULL;
  PlStream s;
  PL_TRY(pl_stream_begin(&s, z->path, z->fd, m->data_at, m->data_at + m->packed, m->method == PL_ZIP_STORED ? PL_PLAIN : PL_DEFLATE));
  s.want_crc = true;
  PlStatus st = pl_npy_read(&s, &t, m->size);
  if (st == PL_ERR_FORMAT) { /* which of them it is */
    char text[400];
    snprintf(text, sizeof text, "%s", pl_message());
    st = pl_fail(PL_ERR_FORMAT, "%s; it is member '%.*s'", text, (int)(m->len < 80 ? m->len : 80), m->name);
  }
  if (st == PL_OK && s.crc != m->crc) {
    pl_tensor_release(t);
    st = pl_file_bad(z->path, "member '%.*s' has a wrong checksum", (int)(m->len < 80 ? m->len : 80), m->name);
  }
  pl_stream_end(&s);
  if (st == PL_OK) *out = t;
  return st;
}
