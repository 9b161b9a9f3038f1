/* SPDX-License-Identifier: MIT
 * Writing GGUF, version 3: header, padding, each tensor and padding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/io/gguf/gguf_types.h"
#include "engine/tensor/tensor.h"
#include "kernels/kernel.h"

enum { ROOM = 1 << 16, MAX_NAME = 63 /* of ggml */, MAX_DIMS = 4 };

/* What is written goes through a buffer. */
typedef struct Sink {
  PlFileTemp *f;
  char *buffer;
  size_t used;
  int64_t written;
} Sink;

static PlStatus flush(Sink *s) {
  const size_t n = s->used;
  s->used = 0;
  return n ? pl_file_write(s->f->fd, s->f->target, s->buffer, n) : PL_OK;
}

static PlStatus put(Sink *s, const void *bytes, size_t n) {
  s->written += (int64_t)n;
  if (n > ROOM - s->used) PL_TRY(flush(s));
  if (n > ROOM) return pl_file_write(s->f->fd, s->f->target, bytes, n);
  memcpy(s->buffer + s->used, bytes, n);
  s->used += n;
  return PL_OK;
}

static PlStatus put_int(Sink *s, uint64_t v, int bytes) {
  char b[8];
  for (int i = 0; i < bytes; i++) b[i] = (char)(v >> (8 * i));
  return put(s, b, (size_t)bytes);
}

static PlStatus pad(Sink *s, int64_t alignment) {
  for (; s->written % alignment; s->used++, s->written++) {
    if (s->used == ROOM) PL_TRY(flush(s));
    s->buffer[s->used] = 0;
  }
  return PL_OK;
}

/* ---- what a tensor becomes ------------------------------------------------------------------------------------------------ */

typedef struct Plan {
  PlGgufType type;
  int ndim;
  int64_t shape[MAX_DIMS]; /* slowest first */
  int64_t bytes;
} Plan;

static PlStatus bad(const PlGgufTensor *t, const char *why) {
  return pl_file_code(pl_fail(PL_ERR_ARG, "save_gguf: tensor '%.*s' %s", (int)(t->name.n < 80 ? t->name.n : 80), t->name.s, why));
}

static PlStatus plan_one(const PlGgufTensor *t, Plan *p) {
  char why[128];
  const PlDtype dtype = pl_tensor_dtype(t->t);
  if (!pl_gguf_type_named(t->type, &p->type)) {
    snprintf(why, sizeof why, "shall be %.20s, which is no type of ggml", t->type);
    return bad(t, why);
  }
  if (t->name.n == 0 || t->name.n > MAX_NAME) return bad(t, "has a name that is empty or longer than ggml's 63 bytes");
  if (!pl_utf8_valid(t->name.s, t->name.n)) return bad(t, "has a name that is not UTF-8");
  p->ndim = pl_tensor_ndim(t->t);
  if (p->ndim < 1 || p->ndim > MAX_DIMS) return bad(t, "has other than 1 to 4 dimensions: reshape it");
  memcpy(p->shape, pl_tensor_shape(t->t), (size_t)p->ndim * sizeof *p->shape);
  int64_t *row = &p->shape[p->ndim - 1];
  if (t->raw) {
    if (dtype != PL_U8 || *row % p->type.bytes != 0) {
      snprintf(why, sizeof why, "holds no whole blocks of %s, of %d bytes each", p->type.name, p->type.bytes);
      return bad(t, why);
    }
    p->bytes = pl_tensor_numel(t->t);
    *row = *row / p->type.bytes * p->type.elements;
    return PL_OK;
  }
  if (p->type.blocks && !p->type.blocks->quantize) {
    snprintf(why, sizeof why, "shall be %s, which perilune does not make; Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 it does", p->type.name);
    return bad(t, why);
  }
  if (*row % p->type.elements != 0) {
    snprintf(why, sizeof why, "has rows of %lld, which are no whole blocks of %d", (long long)*row, p->type.elements);
    return bad(t, why);
  }
  const bool to_float = p->type.blocks || pl_is_float(p->type.dtype);
  if (to_float ? !pl_is_float(dtype) : dtype != p->type.dtype) {
    snprintf(why, sizeof why, "is %s and shall be %s: convert it first", pl_dtype_name(dtype), p->type.name);
    return bad(t, why);
  }
  p->bytes = pl_tensor_numel(t->t) / p->type.elements * p->type.bytes;
  return PL_OK;
}

static int by_name(const void *a, const void *b) {
  const PlText *x = a, *y = b;
  const size_t n = x->n < y->n ? x->n : y->n;
  const int d = n ? memcmp(x->s, y->s, n) : 0;
  return d ? d : x->n < y->n ? -1 : x->n > y->n;
}

static PlStatus plan_all(int64_t n, const PlGgufTensor *tensors, Plan *plans) {
  void *mem;
  PL_TRY(pl_file_code(plk_scratch((size_t)(n + 1) * sizeof(PlText), &mem)));
  PlText *names = mem;
  PlStatus st = PL_OK;
  for (int64_t i = 0; i < n; i++) names[i] = tensors[i].name;
  if (n > 0) qsort(names, (size_t)n, sizeof *names, by_name);
  for (int64_t i = 1; i < n && st == PL_OK; i++)
    if (by_name(&names[i - 1], &names[i]) == 0)
      st = pl_file_code(
          pl_fail(PL_ERR_ARG, "save_gguf: two tensors are called '%.*s'", (int)(names[i].n < 80 ? names[i].n : 80), names[i].s));
  for (int64_t i = 0; i < n && st == PL_OK; i++) st = plan_one(&tensors[i], &plans[i]);
  plk_scratch_free(mem);
  return st;
}

/* ---- tensors' bytes ---------------------------------------------------------------------------------------------------------- */

/* Numbers i … of contiguous data as f32. */
static void load(const PlTensor *t, int64_t i, int64_t n, float *x) {
  const PlDtype dtype = pl_tensor_dtype(t);
  const char *p = (const char *)pl_tensor_data(t) + (size_t)i * pl_dtype_size(dtype);
  if (dtype == PL_F32) memcpy(x, p, (size_t)n * sizeof *x);
  else
    for (int64_t k = 0; k < n; k++) x[k] = (float)pl_read_f(&t->a, (int64_t)((size_t)(i + k) * pl_dtype_size(dtype)));
}

static PlStatus put_numbers(Sink *s, const PlGgufTensor *g, const PlTensor *t, const Plan *p) {
  enum { SOME = 1024 }; /* numbers at a time: whole blocks of every format */
  float x[SOME];
  uint8_t out[SOME * 8];
  const int64_t numel = pl_tensor_numel(t);
  for (int64_t i = 0; i < numel; i += SOME) {
    const int64_t n = numel - i < SOME ? numel - i : SOME;
    const int64_t blocks = n / p->type.elements;
    if (p->type.blocks) {
      load(t, i, n, x);
      if (!p->type.blocks->quantize(x, out, blocks))
        return bad(g, "holds numbers that are not finite, or too large for the scales of its type");
    } else {
      const PlArray written = {.data = out, .dtype = p->type.dtype};
      for (int64_t k = 0; k < n; k++) {
        const double v = pl_read_f(&t->a, (int64_t)((size_t)(i + k) * pl_dtype_size(pl_tensor_dtype(t))));
        pl_write_f(p->type.dtype, out + k * p->type.bytes, v);
        if (isfinite(v) && !isfinite(pl_read_f(&written, k * p->type.bytes)))
          return bad(g, "holds numbers that are too large for its type");
      }
      if (PL_BIG_ENDIAN) pl_file_swap(out, n, (size_t)p->type.bytes);
    }
    PL_TRY(put(s, out, (size_t)(blocks * p->type.bytes)));
  }
  return PL_OK;
}

static PlStatus put_tensor(Sink *s, const PlGgufTensor *g, const Plan *p) {
  PlTensor *t = g->t;
  if (!t->a.contiguous) PL_TRY(pl_file_code(pl_tensor_copy(&t, g->t)));
  PlStatus st = pl_file_code(pl_tensor_hold(t));
  const bool same = g->raw || (pl_tensor_dtype(t) == p->type.dtype && !p->type.blocks && !PL_BIG_ENDIAN);
  if (st == PL_OK) st = same ? put(s, pl_tensor_data(t), (size_t)p->bytes) : put_numbers(s, g, t, p);
  if (t != g->t) pl_tensor_release(t);
  return st;
}

static PlStatus put_all(Sink *s, int64_t n, const PlGgufTensor *tensors, const Plan *plans, int64_t nkeys, PlText keys, int64_t alignment) {
  int64_t at = 0;
  PL_TRY(put(s, "GGUF", 4));
  PL_TRY(put_int(s, 3, 4));
  PL_TRY(put_int(s, (uint64_t)n, 8));
  PL_TRY(put_int(s, (uint64_t)nkeys, 8));
  PL_TRY(put(s, keys.s, keys.n));
  for (int64_t i = 0; i < n; i++) {
    const Plan *p = &plans[i];
    PL_TRY(put_int(s, tensors[i].name.n, 8));
    PL_TRY(put(s, tensors[i].name.s, tensors[i].name.n));
    PL_TRY(put_int(s, (uint64_t)p->ndim, 4));
    for (int d = p->ndim - 1; d >= 0; d--) PL_TRY(put_int(s, (uint64_t)p->shape[d], 8));
    PL_TRY(put_int(s, (uint64_t)p->type.id, 4));
    PL_TRY(put_int(s, (uint64_t)at, 8));
    at += (p->bytes + alignment - 1) / alignment * alignment;
  }
  PL_TRY(pad(s, alignment));
  for (int64_t i = 0; i < n; i++) {
    PL_TRY(put_tensor(s, &tensors[i], &plans[i]));
    PL_TRY(pad(s, alignment));
  }
  return flush(s);
}

PlStatus pl_gguf_save(const char *path, int64_t n, const PlGgufTensor *tensors, int64_t nkeys, PlText keys, int64_t alignment) {
  void *mem;
  PL_TRY(pl_file_code(plk_scratch((size_t)(n + 1) * sizeof(Plan) + ROOM, &mem)));
  Plan *plans = mem;
  PlFileTemp f;
  PlStatus st = plan_all(n, tensors, plans);
  if (st == PL_OK) st = pl_file_temp_open(&f, path);
  if (st == PL_OK) {
    Sink s = {.f = &f, .buffer = (char *)(plans + n + 1)};
    st = put_all(&s, n, tensors, plans, nkeys, keys, alignment);
    if (st == PL_OK) st = pl_file_temp_commit(&f);
    else pl_file_temp_abort(&f);
  }
  plk_scratch_free(mem);
  return st;
}
