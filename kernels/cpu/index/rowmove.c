/* SPDX-License-Identifier: MIT
 * Checking index values, and moving rows between a table and a list. Writes that may collide are cut by table
 * position, never by list position, so every table element sees its rows in list order. */
#include "kernels/cpu/index/rowmove.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/shape/copy.h"

/* ---- index values -------------------------------------------------------------------------------------- */

typedef struct Check {
  const int64_t *v;
  int64_t limit, base;
  atomic_bool bad;
} Check;

static PlStatus check_body(void *ctx, int64_t begin, int64_t end) {
  Check *c = ctx;
  if (!plk_index_within(c->v + begin, 1, end - begin, c->limit, c->base)) atomic_store(&c->bad, true);
  return PL_OK;
}

static PlStatus index_fail(const char *op, const PlArray *index, int64_t at, int64_t value, int64_t limit, int64_t base, bool wrap) {
  char where[PL_MAX_DIM * 22 + 4] = "", ends[64] = "";
  int64_t coord[PL_MAX_DIM];
  size_t n = 0;
  if (index->ndim) {
    plk_nd_unravel(at, index->ndim, index->shape, coord);
    for (int d = 0; d < index->ndim; d++) n += (size_t)snprintf(where + n, sizeof where - n, d ? ",%lld" : "%lld", (long long)coord[d] + 1);
  }
  if (limit == 0) PL_FAIL(PL_ERR_INDEX, "%s: index value %lld at position [%s]: the indexed dim has size 0", op, (long long)value, where);
  if (wrap) snprintf(ends, sizeof ends, " (or -%lld..-1 from the end)", (long long)limit);
  PL_FAIL(PL_ERR_INDEX, "%s: index value %lld at position [%s] is out of range %lld..%lld%s%s", op, (long long)value, where,
          (long long)base, (long long)(limit - 1 + base), ends,
          value == 0 && base == 1 ? "; values count from 1, or pass index_base=0" : "");
}

/* Slow path after a failed check: negative values are resolved into scratch, others are the error. */
static PlStatus resolve(const char *op, const PlArray *index, int64_t limit, bool wrap, PlkIndex *out) {
  void *mem = out->scratch;
  for (int64_t i = 0; i < out->n; i++) {
    int64_t v = out->v[i];
    bool ok = v >= out->base && (uint64_t)v - (uint64_t)out->base < (uint64_t)limit;
    if (!ok && !(wrap && v < 0 && v >= -limit)) {
      PlStatus st = index_fail(op, index, i, v, limit, out->base, wrap);
      plk_scratch_free(mem);
      return st;
    }
  }
  if (!mem) PL_TRY(plk_scratch((size_t)out->n * sizeof(int64_t), &mem));
  int64_t *w = mem;
  for (int64_t i = 0; i < out->n; i++) w[i] = out->v[i] < 0 ? out->v[i] + limit + out->base : out->v[i];
  out->v = w;
  out->scratch = mem;
  return PL_OK;
}

static PlStatus base_check(const char *op, int64_t base) {
  if (base < 0) PL_FAIL(PL_ERR_ARG, "%s: index_base %lld; it must be 0 or 1", op, (long long)base);
  return PL_OK;
}

PlStatus plk_index_load(const char *op, const PlArray *index, int64_t limit, int64_t base, bool wrap, PlkIndex *out) {
  const void *data;
  PL_TRY(base_check(op, base));
  PlkIndex r = {.n = index->numel, .base = base};
  PL_TRY(plk_nd_dense(index, PL_I64, index->ndim, index->shape, &r.scratch, &data));
  r.v = data;
  Check c = {.v = data, .limit = limit, .base = base};
  PlStatus st = plk_parallel(r.n, PLK_MOVE_GRAIN, check_body, &c);
  if (st != PL_OK) {
    plk_scratch_free(r.scratch);
    return st;
  }
  if (atomic_load(&c.bad)) PL_TRY(resolve(op, index, limit, wrap, &r));
  *out = r;
  return PL_OK;
}

/* The values of an index without repetitions. */
typedef struct Spread {
  PlArray a;
  int64_t shape[PL_MAX_DIM], dense[PL_MAX_DIM];
} Spread;

static void spread_out(const PlArray *index, Spread *s, int64_t *strides) {
  PlArray *a = &s->a;
  *a = *index;
  a->numel = 1;
  for (int d = 0; d < a->ndim; d++) {
    s->shape[d] = index->shape[d] > 1 && index->strides[d] == 0 ? 1 : index->shape[d];
    a->numel *= s->shape[d];
  }
  plk_nd_strides(a->ndim, s->shape, s->dense);
  for (int d = 0; d < a->ndim; d++) strides[d] = s->shape[d] == 1 ? 0 : s->dense[d];
  a->shape = s->shape, a->strides = s->dense, a->contiguous = 1;
}

PlStatus plk_index_spread(const char *op, const PlArray *index, int64_t limit, int64_t base, bool wrap, PlkIndex *out, int64_t *strides) {
  Spread s;
  spread_out(index, &s, strides);
  return plk_index_load(op, &s.a, limit, base, wrap, out);
}

PlStatus plk_index_unchecked(const char *op, const PlArray *index, int64_t base, PlkIndex *out, int64_t *strides) {
  Spread s;
  const void *data;
  PL_TRY(base_check(op, base));
  spread_out(index, &s, strides);
  *out = (PlkIndex){.n = s.a.numel, .base = base};
  PL_TRY(plk_nd_dense(&s.a, PL_I64, s.a.ndim, s.shape, &out->scratch, &data));
  out->v = data;
  return PL_OK;
}

PlStatus plk_rows_offsets(const PlkIndex *index, int64_t stride, int64_t **offs) {
  void *mem;
  PL_TRY(plk_scratch((size_t)(index->n + 1) * sizeof(int64_t), &mem));
  int64_t *o = mem;
  for (int64_t i = 0; i < index->n; i++) o[i] = (index->v[i] - index->base) * stride;
  *offs = o;
  return PL_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

void plk_rows_around(PlkRows *r, const PlArray *table, int dim, int64_t np) {
  int64_t row = 1;
  r->np = np;
  r->na = dim;
  r->nb = 0;
  for (int d = table->ndim - 1; d > dim; d--) r->nb++;
  for (int d = table->ndim - 1; d >= 0; d--) {
    if (d == dim) {
      r->prow = row;
      row *= np;
      continue;
    }
    int k = d > dim ? d - dim - 1 : d;
    *(d > dim ? &r->bshape[k] : &r->ashape[k]) = table->shape[d];
    *(d > dim ? &r->btable[k] : &r->atable[k]) = table->strides[d];
    *(d > dim ? &r->brow[k] : &r->arow[k]) = row;
    row *= table->shape[d];
  }
  if (table->ndim == 0) { /* counts as one dim of size 1, which is the indexed one */
    r->na = r->nb = 0;
    r->prow = 1;
  }
  r->span = table->ndim ? plk_max64(1, table->shape[dim] * table->strides[dim]) : 1;
}

/* Merges the trailing dims into as few runs as both sides allow. Returns their number of elements. */
static int64_t merge(PlkRows *r) {
  int n = 0;
  int64_t total = 1;
  for (int d = 0; d < r->nb; d++) {
    total *= r->bshape[d];
    if (r->bshape[d] == 1) continue;
    if (n && r->btable[n - 1] == r->btable[d] * r->bshape[d] && r->brow[n - 1] == r->brow[d] * r->bshape[d])
      r->bshape[n - 1] *= r->bshape[d];
    else r->bshape[n++] = r->bshape[d];
    r->btable[n - 1] = r->btable[d];
    r->brow[n - 1] = r->brow[d];
  }
  r->nb = n;
  return total;
}

typedef void (*Run)(const PlkRows *r, char *table, char *rows, int64_t st, int64_t sr, int64_t n);

static void run_get(const PlkRows *r, char *table, char *rows, int64_t st, int64_t sr, int64_t n) {
  const size_t esize = pl_dtype_size(r->dtype);
  if (st == 1 && sr == 1) {
    memcpy(rows, table, (size_t)n * esize);
    return;
  }
#define EACH(T)                                                                                           \
  for (int64_t i = 0; i < n; i++) ((T *)(void *)rows)[i * sr] = ((const T *)(const void *)table)[i * st]; \
  break;
  switch (esize) {
  case 1: EACH(uint8_t)
  case 2: EACH(uint16_t)
  case 4: EACH(uint32_t)
  default: EACH(uint64_t)
  }
#undef EACH
}

static void run_set(const PlkRows *r, char *table, char *rows, int64_t st, int64_t sr, int64_t n) { run_get(r, rows, table, sr, st, n); }

#define AXPY(T, EXPR)                           \
  {                                             \
    T *t = (T *)(void *)table;                  \
    const T *s = (const T *)(const void *)rows; \
    if (st == 1 && sr == 1) {                   \
      for (int64_t i = 0; i < n; i++) {         \
        T a = t[i], b = s[i];                   \
        t[i] = EXPR;                            \
      }                                         \
    } else {                                    \
      for (int64_t i = 0; i < n; i++) {         \
        T a = t[i * st], b = s[i * sr];         \
        t[i * st] = EXPR;                       \
      }                                         \
    }                                           \
  }                                             \
  break;
#define AXPY_INT(T) AXPY(T, (T)((uint64_t)a + (uint64_t)r->ialpha * (uint64_t)b))

static void run_add(const PlkRows *r, char *table, char *rows, int64_t st, int64_t sr, int64_t n) {
  const float f = (float)r->alpha;
  if (r->dtype == PL_F32 && st == 1 && sr == 1) {
    plk_copy_loops()->add_f32((float *)(void *)table, (const float *)(const void *)rows, f, n);
    return;
  }
  switch (r->dtype) {
  case PL_F32: AXPY(float, a + f * b)
  case PL_F64: AXPY(double, a + r->alpha * b)
  case PL_F16: AXPY(uint16_t, plk_f32_to_f16(plk_f16_to_f32(a) + f * plk_f16_to_f32(b)))
  case PL_BF16: AXPY(uint16_t, plk_f32_to_bf16(plk_bf16_to_f32(a) + f * plk_bf16_to_f32(b)))
  case PL_I8: AXPY_INT(int8_t)
  case PL_I16: AXPY_INT(int16_t)
  case PL_I32: AXPY_INT(int32_t)
  case PL_I64: AXPY_INT(int64_t)
  case PL_U8: AXPY_INT(uint8_t)
  default: AXPY(uint8_t, (uint8_t)(a | (b && r->ialpha)))
  }
}

typedef struct Job {
  PlkRows *r;
  Run run;
  int64_t nblock, width; /* colliding writes: blocks of table offsets */
  bool single;           /* adds of single elements, one block */
} Job;

static void one_row(const PlkRows *r, Run run, int64_t table, int64_t row) {
  const size_t esize = pl_dtype_size(r->dtype);
  if (r->nb <= 1) {
    run(r, plk_at(r->table, table, esize), plk_at(r->rows, row, esize), r->nb ? r->btable[0] : 1, r->nb ? r->brow[0] : 1,
        r->nb ? r->bshape[0] : 1);
    return;
  }
  int last = r->nb - 1;
  int64_t at[PL_MAX_DIM] = {0};
  for (;;) {
    run(r, plk_at(r->table, table, esize), plk_at(r->rows, row, esize), r->btable[last], r->brow[last], r->bshape[last]);
    int k = last - 1;
    for (; k >= 0; k--) {
      table += r->btable[k], row += r->brow[k];
      if (++at[k] < r->bshape[k]) break;
      table -= at[k] * r->btable[k], row -= at[k] * r->brow[k];
      at[k] = 0;
    }
    if (k < 0) return;
  }
}

static void place(const PlkRows *r, int64_t a, int64_t *table, int64_t *row) {
  int64_t at[PL_MAX_DIM];
  plk_nd_unravel(a, r->na, r->ashape, at);
  *table = *row = 0;
  for (int d = 0; d < r->na; d++) *table += at[d] * r->atable[d], *row += at[d] * r->arow[d];
}

static PlStatus get_body(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  const PlkRows *r = j->r;
  const int64_t size = (int64_t)pl_dtype_size(r->dtype);
  const size_t bytes = (size_t)((r->nb ? r->bshape[0] : 1) * size);
  const bool flat = r->nb == 0 || (r->nb == 1 && r->btable[0] == 1 && r->brow[0] == 1);
  int64_t a = begin / r->np, p = begin % r->np, table, row;
  place(r, a, &table, &row);
  for (int64_t i = begin; i < end;) {
    const int64_t n = flat ? plk_min64(end - i, r->np - p) : 1;
    if (flat)
      plk_copy_loops()->rows_at(r->rows + (row + p * r->prow) * size, r->prow * size, r->table + table * size, r->offs + p, size, n, bytes);
    else one_row(r, j->run, table + r->offs[p], row + p * r->prow);
    i += n;
    if ((p += n) < r->np) continue;
    p = 0;
    if (i < end) place(r, ++a, &table, &row);
  }
  return PL_OK;
}

/* What r holds is in locals: for all the compiler knows the elements that are written are parts of it. */
#define PICK(T)                                                           \
  {                                                                       \
    const T *t = (const T *)(const void *)r->table;                       \
    T *out = (T *)(void *)r->rows + begin * step;                         \
    for (int64_t i = begin; i < end; i++, out += step) *out = t[offs[i]]; \
  }                                                                       \
  break;

/* Single elements: no free dims at all. */
static PlStatus pick_body(void *ctx, int64_t begin, int64_t end) {
  const PlkRows *r = ((const Job *)ctx)->r;
  const int64_t *const offs = r->offs, step = r->prow;
  switch (pl_dtype_size(r->dtype)) {
  case 1: PICK(uint8_t)
  case 2: PICK(uint16_t)
  case 4: PICK(uint32_t)
  default: PICK(uint64_t)
  }
  return PL_OK;
}

#define LINES(T)                                                  \
  for (int64_t a = begin; a < end; a++) {                         \
    place(r, a, &table, &row);                                    \
    const T *t = (const T *)(const void *)r->table + table;       \
    T *out = (T *)(void *)r->rows + row;                          \
    int64_t i = 0;                                                \
    for (; step == 1 && i + 4 <= np; i += 4) {                    \
      const T v = t[offs[i]], w = t[offs[i + 1]];                 \
      const T y = t[offs[i + 2]], z = t[offs[i + 3]];             \
      out[i] = v, out[i + 1] = w, out[i + 2] = y, out[i + 3] = z; \
    }                                                             \
    for (; i < np; i++) out[i * step] = t[offs[i]];               \
  }                                                               \
  break;

/* Single elements along the last dim: unit a line of it. */
static PlStatus line_body(void *ctx, int64_t begin, int64_t end) {
  const PlkRows *r = ((const Job *)ctx)->r;
  const int64_t *const offs = r->offs, np = r->np, step = r->prow;
  int64_t table, row;
  switch (pl_dtype_size(r->dtype)) {
  case 1: LINES(uint8_t)
  case 2: LINES(uint16_t)
  case 4: LINES(uint32_t)
  default: LINES(uint64_t)
  }
  return PL_OK;
}

static int64_t outer_of(const PlkRows *r) {
  int64_t n = 1;
  for (int d = 0; d < r->na; d++) n *= r->ashape[d];
  return n;
}

PlStatus plk_rows_get(PlkRows *r) {
  Job j = {.r = r, .run = run_get};
  int64_t inner = merge(r), outer = outer_of(r);
  if (inner == 0 || outer == 0 || r->np == 0) return PL_OK;
  if (inner == 1 && outer == 1) return plk_parallel(r->np, PLK_GRAIN / 4, pick_body, &j);
  if (inner == 1) return plk_parallel(outer, plk_max64(1, PLK_MOVE_GRAIN / r->np), line_body, &j);
  return plk_parallel(outer * r->np, plk_max64(1, PLK_MOVE_GRAIN / inner), get_body, &j);
}

#define ADD_LINE(T, factor)                                               \
  {                                                                       \
    const T f = (T)(factor), *s = (const T *)(const void *)r->rows + row; \
    T *t = (T *)(void *)r->table + table;                                 \
    const int64_t *const offs = r->offs, np = r->np, step = r->prow;      \
    for (int64_t p = 0; p < np; p++, s += step) t[offs[p]] += f * *s;     \
  }

static PlStatus put_body(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  const PlkRows *r = j->r;
  for (int64_t i = begin; i < end; i++) {
    int64_t table, row, lo = i % j->nblock * j->width, hi = lo + j->width;
    place(r, i / j->nblock, &table, &row);
    if (j->single && r->dtype == PL_F32) {
      ADD_LINE(float, r->alpha)
      continue;
    }
    for (int64_t p = 0; p < r->np; p++)
      if (r->offs[p] >= lo && r->offs[p] < hi) one_row(r, j->run, table + r->offs[p], row + p * r->prow);
  }
  return PL_OK;
}

enum { BLOCKS = 8 };

static PlStatus put(PlkRows *r, Run run) {
  Job j = {.r = r, .run = run, .nblock = 1};
  int64_t inner = merge(r), outer = outer_of(r);
  if (inner == 0 || outer == 0 || r->np == 0) return PL_OK;
  bool large = outer * inner * r->np > PLK_GRAIN;
  /* Each block scans all offsets: rows must be worth it. How many there are changes nothing: each element sees list order. */
  if (large && outer < BLOCKS && inner >= 8 && plk_threads() > 1) j.nblock = BLOCKS;
  j.width = r->span / j.nblock + 1;
  j.single = run == run_add && inner == 1 && j.nblock == 1;
  return plk_parallel(outer * j.nblock, large ? plk_max64(1, outer * j.nblock / 64) : outer * j.nblock, put_body, &j);
}

PlStatus plk_rows_set(PlkRows *r) { return put(r, run_set); }
PlStatus plk_rows_add(PlkRows *r) { return put(r, run_add); }

/* ---- outputs ---------------------------------------------------------------------------------------------- */

PlStatus plk_start_from(const PlArray *x, PlArray *out) {
  if (x->data == out->data) return PL_OK;
  PlkNd w;
  plk_nd_walk(&w, out, x);
  return plk_nd_copy(out->data, x->data, &w, pl_dtype_size((PlDtype)x->dtype));
}

enum { WIDE = PL_MAX_DIM + 2 }; /* inputs: two, and an index for each dim */
PlStatus plk_wide_sums(const PlkCall *call, PlStatus (*fn)(const PlkCall *call)) {
  PlArray *y = call->out[0];
  const PlDtype half = (PlDtype)y->dtype;
  if ((half != PL_F16 && half != PL_BF16) || call->nin > WIDE) return fn(call);
  void *scratch[WIDE + 1] = {NULL};
  PlArray wide[WIDE + 1];
  int64_t strides[WIDE + 1][PL_MAX_DIM];
  const PlArray *in[WIDE];
  PlStatus st = PL_OK;
  for (int k = 0; k < call->nin; k++) {
    const void *data;
    in[k] = call->in[k];
    if (st != PL_OK || !in[k] || in[k]->dtype != half) continue;
    st = plk_nd_dense(in[k], PL_F32, in[k]->ndim, in[k]->shape, &scratch[k], &data);
    wide[k] = *in[k];
    wide[k].data = (void *)(uintptr_t)data;
    in[k] = &wide[k];
  }
  if (st == PL_OK) st = plk_scratch((size_t)(y->numel + 1) * sizeof(float), &scratch[call->nin]);
  wide[call->nin] = *y;
  wide[call->nin].data = scratch[call->nin];
  for (int k = 0; k <= call->nin; k++) {
    if (k < call->nin && in[k] != &wide[k]) continue;
    int64_t step = 1;
    wide[k].dtype = PL_F32;
    wide[k].contiguous = 1;
    wide[k].strides = strides[k];
    for (int d = wide[k].ndim - 1; d >= 0; d--) {
      strides[k][d] = step;
      step *= wide[k].shape[d] ? wide[k].shape[d] : 1;
    }
  }
  PlArray *out[1] = {&wide[call->nin]};
  PlkCall own = *call;
  own.in = in;
  own.out = out;
  if (st == PL_OK) st = fn(&own);
  if (st == PL_OK) {
    PlkNd w;
    plk_nd_walk(&w, y, out[0]);
    st = plk_nd_cast(y->data, half, out[0]->data, PL_F32, &w);
  }
  for (int k = 0; k <= call->nin; k++) plk_scratch_free(scratch[k]);
  return st;
}

PlStatus plk_dense_out(const PlkCall *call, PlStatus (*fn)(const PlkCall *call)) {
  PlArray *y = call->out[0];
  if (y->contiguous) return fn(call);
  int64_t strides[PL_MAX_DIM];
  PlArray tmp = *y;
  PlArray *outs[1] = {&tmp};
  PlkCall inner = *call;
  PL_TRY(plk_scratch((size_t)plk_max64(y->numel, 1) * pl_dtype_size((PlDtype)y->dtype), &tmp.data));
  plk_nd_strides(y->ndim, y->shape, strides);
  tmp.strides = strides;
  tmp.contiguous = 1;
  inner.out = outs;
  PlStatus st = fn(&inner);
  if (st == PL_OK) {
    PlkNd w;
    plk_nd_walk(&w, y, &tmp);
    st = plk_nd_copy(y->data, tmp.data, &w, pl_dtype_size((PlDtype)y->dtype));
  }
  plk_scratch_free(tmp.data);
  return st;
}
