/* SPDX-License-Identifier: MIT
 * Writing npz: npy files stored in a zip archive, with sizes of 64 bits where 32 do not hold them. */
#include <stdlib.h>
#include <string.h>

#include "engine/io/npy.h"
#include "engine/tensor/tensor.h"
#include "kernels/kernel.h"

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, END64 = 0x06064b50, LOCATOR64 = 0x07064b50 };
enum { MAX_NAME = 60000, VERSION = 45 /* 64-bit sizes */, UTF8 = 1 << 11, DATE = 33 /* 1980-01-01 */ };

typedef struct Out {
  PlFileTemp *f;
  int64_t at;
} Out;

static PlStatus put(Out *o, const void *bytes, size_t n) {
  o->at += (int64_t)n;
  return pl_file_write(o->f->fd, o->f->target, bytes, n);
}

/* Little-endian fields one behind another. */
typedef struct Record {
  unsigned char b[128];
  size_t n;
} Record;

static void add(Record *r, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; i++) r->b[r->n++] = (unsigned char)(v >> (8 * i));
}

typedef struct Member {
  PlText name;
  PlTensor *t;  /* contiguous, in memory of the CPU */
  bool copied;  /* ours */
  uint32_t crc; /* of header and elements */
  int64_t size, at;
} Member;

static int64_t nbytes(const PlTensor *t) { return pl_tensor_numel(t) * (int64_t)pl_dtype_size(pl_tensor_dtype(t)); }

/* Local and central headers have the same fields in the middle. */
static void add_fields(Record *r, const Member *m) {
  add(r, UTF8, 2);
  add(r, 0, 2); /* stored */
  add(r, 0, 2);
  add(r, DATE, 2);
  add(r, m->crc, 4);
  add(r, 0xffffffff, 4);
  add(r, 0xffffffff, 4);
  add(r, m->name.n + 4, 2);
}

static PlStatus put_name(Out *o, const Member *m) {
  PL_TRY(put(o, m->name.s, m->name.n));
  return put(o, ".npy", 4);
}

static PlStatus put_member(Out *o, Member *m) {
  char header[PL_NPY_HEADER];
  size_t n;
  PL_TRY(pl_npy_header(m->t, "save_npz", header, sizeof header, &n));
  PL_TRY(pl_file_code(pl_tensor_hold(m->t)));
  const int64_t data = nbytes(m->t);
  m->at = o->at;
  m->size = (int64_t)n + data;
  m->crc = pl_stream_crc(pl_stream_crc(0, header, n), pl_tensor_data(m->t), (size_t)data);
  Record r = {.n = 0};
  add(&r, LOCAL, 4);
  add(&r, VERSION, 2);
  add_fields(&r, m);
  add(&r, 20, 2);
  PL_TRY(put(o, r.b, r.n));
  PL_TRY(put_name(o, m));
  r.n = 0;
  add(&r, 1, 2); /* the 64-bit sizes */
  add(&r, 16, 2);
  add(&r, (uint64_t)m->size, 8);
  add(&r, (uint64_t)m->size, 8);
  PL_TRY(put(o, r.b, r.n));
  PL_TRY(put(o, header, n));
  return put(o, pl_tensor_data(m->t), (size_t)data);
}

static PlStatus put_directory(Out *o, const Member *m, int64_t n) {
  const int64_t from = o->at;
  Record r;
  for (int64_t i = 0; i < n; i++) {
    r.n = 0;
    add(&r, CENTRAL, 4);
    add(&r, VERSION, 2);
    add(&r, VERSION, 2);
    add_fields(&r, &m[i]);
    add(&r, 28, 2);
    for (int k = 0; k < 5; k++) add(&r, 0, 2); /* comment, disk, attributes */
    add(&r, 0xffffffff, 4);
    PL_TRY(put(o, r.b, r.n));
    PL_TRY(put_name(o, &m[i]));
    r.n = 0;
    add(&r, 1, 2);
    add(&r, 24, 2);
    add(&r, (uint64_t)m[i].size, 8);
    add(&r, (uint64_t)m[i].size, 8);
    add(&r, (uint64_t)m[i].at, 8);
    PL_TRY(put(o, r.b, r.n));
  }
  const int64_t end = o->at;
  r.n = 0;
  add(&r, END64, 4);
  add(&r, 44, 8);
  add(&r, VERSION, 2);
  add(&r, VERSION, 2);
  add(&r, 0, 8); /* disks */
  add(&r, (uint64_t)n, 8);
  add(&r, (uint64_t)n, 8);
  add(&r, (uint64_t)(end - from), 8);
  add(&r, (uint64_t)from, 8);
  add(&r, LOCATOR64, 4);
  add(&r, 0, 4);
  add(&r, (uint64_t)end, 8);
  add(&r, 1, 4);
  add(&r, END, 4);
  add(&r, 0, 4);
  add(&r, 0xffff, 2);
  add(&r, 0xffff, 2);
  add(&r, 0xffffffff, 4);
  add(&r, 0xffffffff, 4);
  add(&r, 0, 2);
  return put(o, r.b, r.n);
}

static PlStatus write_members(PlFileTemp *f, int64_t n, Member *m) {
  Out o = {.f = f};
  for (int64_t i = 0; i < n; i++) {
    if (!m[i].t->a.contiguous) {
      PlTensor *copy;
      PL_TRY(pl_file_code(pl_tensor_copy(&copy, m[i].t)));
      m[i].t = copy;
      m[i].copied = true;
    }
    PL_TRY(put_member(&o, &m[i]));
    if (m[i].copied) pl_tensor_release(m[i].t);
    m[i].copied = false;
  }
  return put_directory(&o, m, n);
}

PlStatus pl_npz_save(const char *path, int64_t n, const PlText *names, PlTensor *const *tensors) {
  void *mem;
  PL_TRY(pl_file_code(plk_scratch((size_t)(n + 1) * sizeof(Member), &mem)));
  Member *m = mem;
  PlStatus st = PL_OK;
  PlFileTemp f;
  for (int64_t i = 0; i < n; i++) {
    m[i] = (Member){.name = names[i], .t = tensors[i]};
    if (names[i].n == 0 || names[i].n > MAX_NAME || memchr(names[i].s, 0, names[i].n))
      st = pl_file_code(pl_fail(PL_ERR_ARG, "save_npz: a name that is empty, too long, or has a zero byte"));
  }
  if (st == PL_OK) st = pl_file_temp_open(&f, path);
  if (st == PL_OK) {
    st = write_members(&f, n, m);
    if (st == PL_OK) st = pl_file_temp_commit(&f);
    else pl_file_temp_abort(&f);
  }
  for (int64_t i = 0; i < n; i++)
    if (m[i].copied) pl_tensor_release(m[i].t);
  plk_scratch_free(mem);
  return st;
}
