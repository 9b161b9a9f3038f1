/* SPDX-License-Identifier: MIT
 * The reduction engine. x is seen as [O][R][I]: O kept, R reduced, I kept (other orders are copied into
 * [kept][reduced] first). I = 1 reduces rows, else whole columns move together. R is cut into blocks whose
 * size depends on the shape alone; block results are combined in order as a tree. */
#include "kernels/cpu/reduce/reduce_run.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"

PLK_ISA_DECLARE(const PlkReduceLoops, plk_reduce_table);
const PlkReduceLoops *plk_reduce_loops(void) { return &PLK_ISA_PICK(plk_reduce_table); }
PLK_ISA_DECLARE(const PlkMapLoops, plk_map_table);
const PlkMapLoops *plk_map_loops(void) { return &PLK_ISA_PICK(plk_map_table); }

enum { TILE = PLK_REDUCE_TILE, ROW_BLOCK = 1 << 16 };

typedef union Acc {
  double f;
  int64_t i;
} Acc;

/* What reads the elements: tiles of the job's type, or loops that map and join the elements in place. */
typedef enum How { TILES, MAP, COUNT, SUM_I64 } How;

typedef struct Run {
  const PlkReduceJob *job;
  const PlkReduceLoops *loops;
  const void *x;
  int dtype;
  How how;
  const PlkMapLoop *map;
  int64_t O, R, I;
  int64_t rblock, nblock, ctile, nctile; /* reduced elements in a block; columns in a tile */
  bool direct;                           /* tiles can be read in place */
  Acc *part;                             /* [nblock][O * I], with more than one block */
} Run;

/* ---- pieces -------------------------------------------------------------------------------------- */

static Acc start_of(const PlkReduceJob *j) {
  Acc a;
  if (j->comp == PLK_CI64)
    a.i = j->boolean                 ? j->core == PLK_CORE_MIN
          : j->core == PLK_CORE_PROD ? 1
          : j->core == PLK_CORE_MAX  ? INT64_MIN
          : j->core == PLK_CORE_MIN  ? INT64_MAX
                                     : 0;
  else
    a.f = j->core == PLK_CORE_PROD  ? 1
          : j->core == PLK_CORE_MAX ? (j->zero_empty ? 0 : -(double)INFINITY)
          : j->core == PLK_CORE_MIN ? (double)INFINITY
                                    : 0;
  return a;
}

static inline int64_t wrap_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static inline int64_t wrap_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

static inline Acc combine(const PlkReduceJob *j, Acc a, Acc b) {
  if (j->comp == PLK_CI64) switch (j->core) {
    case PLK_CORE_SUM: a.i = wrap_add(a.i, b.i); break;
    case PLK_CORE_PROD: a.i = wrap_mul(a.i, b.i); break;
    case PLK_CORE_MAX: a.i = b.i > a.i ? b.i : a.i; break;
    case PLK_CORE_MIN: a.i = b.i < a.i ? b.i : a.i; break;
    }
  else switch (j->core) {
    case PLK_CORE_SUM: a.f += b.f; break;
    case PLK_CORE_PROD: a.f *= b.f; break;
    case PLK_CORE_MAX: a.f = b.f > a.f || b.f != b.f ? b.f : a.f; break;
    case PLK_CORE_MIN: a.f = b.f < a.f || b.f != b.f ? b.f : a.f; break;
    }
  return a;
}

/* ---- rows ------------------------------------------------------------------------------------------ */

static Acc row_tile(const Run *r, const void *v, int64_t n) {
  const PlkReduceJob *j = r->job;
  Acc a = start_of(j);
  if (j->comp == PLK_CF32) {
    a.f =
        j->core == PLK_CORE_SUM ? r->loops->sum_f32(v, n) : (double)(j->core == PLK_CORE_MAX ? r->loops->max_f32 : r->loops->min_f32)(v, n);
  } else if (j->comp == PLK_CF64) {
    const double *x = v;
    if (j->core == PLK_CORE_SUM) a.f = r->loops->sum_f64(x, n);
    else if (j->core == PLK_CORE_PROD)
      for (int64_t i = 0; i < n; i++) a.f *= x[i];
    else a.f = (j->core == PLK_CORE_MAX ? r->loops->max_f64 : r->loops->min_f64)(x, n);
  } else {
    const int64_t *x = v;
    switch (j->core) {
    case PLK_CORE_SUM:
      for (int64_t i = 0; i < n; i++) a.i = wrap_add(a.i, x[i]);
      break;
    case PLK_CORE_PROD:
      for (int64_t i = 0; i < n; i++) a.i = wrap_mul(a.i, x[i]);
      break;
    case PLK_CORE_MAX:
      for (int64_t i = 0; i < n; i++) a.i = x[i] > a.i ? x[i] : a.i;
      break;
    case PLK_CORE_MIN:
      for (int64_t i = 0; i < n; i++) a.i = x[i] < a.i ? x[i] : a.i;
      break;
    }
  }
  return a;
}

/* ANY and ALL from how many of n are not 0. */
static int64_t counted(const Run *r, int64_t count, int64_t n) {
  return r->job->core == PLK_CORE_SUM ? count : r->job->core == PLK_CORE_MAX ? count > 0 : count == n;
}

/* n elements of output o, from offset `at`, in one pass. */
static Acc row_mapped(const Run *r, int64_t o, int64_t at, int64_t n) {
  const void *x = (const char *)r->x + (size_t)at * pl_dtype_size((PlDtype)r->dtype);
  const PlkMapLoops *l = plk_map_loops();
  if (r->how == SUM_I64) return (Acc){.i = l->sum_i64(x, n)};
  if (r->how == COUNT)
    return (Acc){.i = counted(r, r->dtype == PL_F32 ? l->count_f32(x, n) : r->dtype == PL_I64 ? l->count_i64(x, n) : l->count_u8(x, n), n)};
  const double c = r->job->aux ? r->job->aux[o] : 0;
  return (Acc){.f = r->dtype == PL_F32 ? r->map->row_f32(x, n, c) : r->map->row_f64(x, n, c)};
}

static Acc row_block(const Run *r, int64_t o, int64_t r0, int64_t r1) {
  if (r->how != TILES) return row_mapped(r, o, o * r->R + r0, r1 - r0);
  _Alignas(64) double buf[TILE];
  const double *aux = r->job->aux ? r->job->aux + o : NULL;
  int64_t step = r->direct ? r1 - r0 : TILE;
  Acc a = start_of(r->job);
  for (int64_t at = r0; at < r1; at += step) {
    int64_t n = r1 - at < step ? r1 - at : step;
    Acc b = row_tile(r, plk_reduce_tile(r->job, r->x, r->dtype, r->direct, buf, o * r->R + at, n, aux, 0), n);
    a = at == r0 ? b : combine(r->job, a, b);
  }
  return a;
}

/* ---- columns ---------------------------------------------------------------------------------------- */

static void col_row(const PlkReduceJob *j, const void *v, int64_t n, Acc *acc) {
  if (j->comp == PLK_CI64) {
    const int64_t *x = v;
    for (int64_t c = 0; c < n; c++) acc[c] = combine(j, acc[c], (Acc){.i = x[c]});
  } else if (j->comp == PLK_CF64) {
    const double *x = v;
    if (j->core == PLK_CORE_SUM)
      for (int64_t c = 0; c < n; c++) acc[c].f += x[c];
    else
      for (int64_t c = 0; c < n; c++) acc[c] = combine(j, acc[c], (Acc){.f = x[c]});
  } else {
    const float *x = v;
    if (j->core == PLK_CORE_SUM)
      for (int64_t c = 0; c < n; c++) acc[c].f += (double)x[c];
    else
      for (int64_t c = 0; c < n; c++) acc[c] = combine(j, acc[c], (Acc){.f = (double)x[c]});
  }
}

static void col_mapped(const Run *r, int64_t base, int64_t rows, int64_t n, const double *aux, Acc *acc) {
  const void *x = (const char *)r->x + (size_t)base * pl_dtype_size((PlDtype)r->dtype);
  const PlkMapLoops *l = plk_map_loops();
  int64_t *i = &acc->i; /* a union of two types of one size */
  if (r->how == SUM_I64) l->colsum_i64(x, r->I, rows, n, i);
  else if (r->how == MAP && r->dtype == PL_F32) r->map->col_f32(x, r->I, rows, n, aux, &acc->f);
  else if (r->how == MAP) r->map->col_f64(x, r->I, rows, n, aux, &acc->f);
  else {
    for (int64_t c = 0; c < n; c++) i[c] = 0;
    if (r->dtype == PL_F32) l->colcount_f32(x, r->I, rows, n, i);
    else if (r->dtype == PL_I64) l->colcount_i64(x, r->I, rows, n, i);
    else l->colcount_u8(x, r->I, rows, n, i);
    for (int64_t c = 0; c < n; c++) i[c] = counted(r, i[c], rows);
  }
}

/* Rows r0 … r1 of columns c0 … c0 + n of outer index o, into acc. */
static void col_block(const Run *r, int64_t o, int64_t r0, int64_t r1, int64_t c0, int64_t n, Acc *acc) {
  const PlkReduceJob *j = r->job;
  _Alignas(64) double buf[TILE];
  for (int64_t c = 0; c < n; c++) acc[c] = start_of(j);
  int64_t base = (o * r->R + r0) * r->I + c0, rows = r1 - r0;
  double *d = &acc->f; /* Acc is as large as a double */
  const double *aux = j->aux ? j->aux + o * r->I + c0 : NULL;
  if (r->how != TILES) {
    col_mapped(r, base, rows, n, aux, acc);
    return;
  }
  if (r->direct && j->comp == PLK_CF32 && j->core != PLK_CORE_PROD) {
    (j->core == PLK_CORE_SUM   ? r->loops->colsum_f32
     : j->core == PLK_CORE_MAX ? r->loops->colmax_f32
                               : r->loops->colmin_f32)((const float *)r->x + base, r->I, rows, n, d);
    return;
  }
  if (r->direct && j->comp == PLK_CF64 && j->core == PLK_CORE_SUM) {
    r->loops->colsum_f64((const double *)r->x + base, r->I, rows, n, d);
    return;
  }
  for (int64_t k = 0; k < rows; k++, base += r->I) col_row(j, plk_reduce_tile(j, r->x, r->dtype, r->direct, buf, base, n, aux, 1), n, acc);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static double post(const Run *r, double v, int64_t at) {
  const PlkReduceJob *j = r->job;
  double n = (double)r->R - j->p;
  switch (j->post) {
  case PLK_POST_MEAN: return v / (double)(j->count ? j->count : r->R);
  case PLK_POST_SQRT: return sqrt(v);
  case PLK_POST_ROOT: return pow(v, 1 / j->p);
  case PLK_POST_VAR: return v / (n > 0 ? n : 0);
  case PLK_POST_STD: return sqrt(v / (n > 0 ? n : 0));
  case PLK_POST_LOG: return log(v) + j->aux[at];
  default: return v;
  }
}

/* Writes n finished values from output element `at` on. */
static void finish(const Run *r, Acc *acc, int64_t at, int64_t n) {
  const PlkReduceJob *j = r->job;
  if (j->comp == PLK_CI64) {
    if (j->out) plk_store(PLK_CI64, acc, n, j->out->data, j->out->dtype, at, 1, n, 1);
    else
      for (int64_t i = 0; i < n; i++) j->to[at + i] = (double)acc[i].i;
    return;
  }
  if (j->post != PLK_POST_NONE)
    for (int64_t i = 0; i < n; i++) acc[i].f = post(r, acc[i].f, at + i);
  if (j->out) plk_store(PLK_CF64, acc, n, j->out->data, j->out->dtype, at, 1, n, 1);
  else memcpy(j->to + at, acc, (size_t)n * sizeof *acc);
}

/* Pairwise over the blocks of one output element. */
static Acc tree(const Run *r, int64_t at, int64_t b0, int64_t n) {
  if (n == 1) return r->part[b0 * r->O * r->I + at];
  int64_t h = n / 2;
  return combine(r->job, tree(r, at, b0, h), tree(r, at, b0 + h, n - h));
}

static PlStatus finish_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  Acc acc[TILE];
  for (int64_t at = begin; at < end; at += TILE) {
    int64_t n = end - at < TILE ? end - at : TILE;
    for (int64_t i = 0; i < n; i++) acc[i] = tree(r, at + i, 0, r->nblock);
    finish(r, acc, at, n);
  }
  return PL_OK;
}

/* Rows of floats one after the other, with their results. */
static PlStatus short_rows_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  Acc acc[TILE];
  double *d = &acc->f;
  for (int64_t o = begin; o < end; o += TILE) {
    const int64_t n = end - o < TILE ? end - o : TILE;
    const PlkCore core = r->job->core;
    (core == PLK_CORE_SUM   ? r->loops->sums_f32
     : core == PLK_CORE_MAX ? r->loops->maxs_f32
                            : r->loops->mins_f32)((const float *)r->x + o * r->R, r->R, n, d);
    finish(r, acc, o, n);
  }
  return PL_OK;
}

/* Items are (outer, block) for rows; consecutive outputs are written together. */
static PlStatus row_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  Acc acc[64];
  int64_t first = begin, n = 0;
  for (int64_t it = begin; it < end; it++) {
    int64_t o = it / r->nblock, r0 = it % r->nblock * r->rblock;
    int64_t r1 = r0 + r->rblock < r->R ? r0 + r->rblock : r->R;
    Acc a = row_block(r, o, r0, r1);
    if (r->nblock > 1) {
      r->part[it % r->nblock * r->O + o] = a;
      continue;
    }
    acc[n++] = a;
    if (n == 64 || it + 1 == end) {
      finish(r, acc, first, n);
      first = it + 1, n = 0;
    }
  }
  return PL_OK;
}

static PlStatus col_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  Acc acc[PLK_COLS];
  for (int64_t it = begin; it < end; it++) {
    int64_t t = it % r->nctile, b = it / r->nctile % r->nblock, o = it / r->nctile / r->nblock;
    int64_t c0 = t * r->ctile, n = r->I - c0 < r->ctile ? r->I - c0 : r->ctile;
    int64_t r0 = b * r->rblock, r1 = r0 + r->rblock < r->R ? r0 + r->rblock : r->R;
    Acc *to = r->nblock > 1 ? r->part + b * r->O * r->I + o * r->I + c0 : acc;
    col_block(r, o, r0, r1, c0, n, to);
    if (r->nblock == 1) finish(r, acc, o * r->I + c0, n);
  }
  return PL_OK;
}

/* ---- geometry ------------------------------------------------------------------------------------------ */

int64_t plk_reduce_block(int64_t cols) {
  if (cols == 1) return ROW_BLOCK;
  int64_t tile = cols < PLK_COLS ? cols : PLK_COLS;
  return ROW_BLOCK / tile < 64 ? 64 : ROW_BLOCK / tile;
}

static PlStatus run(Run *r) {
  int64_t kept = r->O * r->I, n;
  bool rows = r->I == 1;
  r->ctile = rows ? 1 : r->I < PLK_COLS ? r->I : PLK_COLS;
  r->nctile = rows ? 1 : (r->I + r->ctile - 1) / r->ctile;
  r->rblock = plk_reduce_block(rows ? 1 : r->I);
  r->nblock = r->R <= r->rblock ? 1 : (r->R + r->rblock - 1) / r->rblock;
  void *part = NULL;
  if (r->nblock > 1) PL_TRY(plk_scratch((size_t)(r->nblock * kept) * sizeof(Acc), &part));
  r->part = part;
  int64_t items = r->O * r->nblock * r->nctile, work = (r->R < r->rblock ? r->R : r->rblock) * r->ctile;
  int64_t block = work >= PLK_GRAIN ? 1 : PLK_GRAIN / (work ? work : 1);
  const bool floats = rows && r->nblock == 1 && r->direct && r->job->comp == PLK_CF32 && r->how == TILES;
  PlkBody body = floats ? short_rows_body : rows ? row_body : col_body;
  PlStatus s = items <= block ? body(r, 0, items) : plk_parallel(items, block, body, r);
  if (s == PL_OK && r->nblock > 1) {
    n = PLK_GRAIN / r->nblock + 1;
    s = kept <= n ? finish_body(r, 0, kept) : plk_parallel(kept, n, finish_body, r);
  }
  plk_scratch_free(part);
  return s;
}

/* Nothing to reduce over: the start value everywhere. */
static PlStatus run_empty(Run *r, int64_t numel) {
  Acc acc[64];
  r->R = 0;
  for (int64_t at = 0; at < numel; at += 64) {
    int64_t n = numel - at < 64 ? numel - at : 64;
    for (int64_t i = 0; i < n; i++) acc[i] = start_of(r->job);
    finish(r, acc, at, n);
  }
  return PL_OK;
}

/* Whether one pass does the job; exponentials of rows go faster through tiles. */
static How how(const PlkReduceJob *j, int dtype, bool rows, const PlkMapLoop **map) {
  const PlkMapLoops *l = plk_map_loops();
  const bool plain = dtype == PL_F32 || dtype == PL_F64, sum = j->core == PLK_CORE_SUM;
  if (j->comp == PLK_CI64) {
    if (j->pre == PLK_PRE_NONZERO && (dtype == PL_F32 || dtype == PL_I64 || dtype == PL_U8 || dtype == PL_BOOL)) return COUNT;
    if (sum && j->pre == PLK_PRE_NONE && dtype == PL_BOOL) return COUNT;
    return sum && j->pre == PLK_PRE_NONE && dtype == PL_I64 ? SUM_I64 : TILES;
  }
  *map = j->core == PLK_CORE_PROD && j->pre == PLK_PRE_NONE ? &l->prod
         : sum && j->pre == PLK_PRE_SQUARE                  ? &l->square
         : sum && j->pre == PLK_PRE_DIFF                    ? &l->diff
         : sum && j->pre == PLK_PRE_SQDIFF                  ? &l->sqdiff
         : sum && j->pre == PLK_PRE_ABS                     ? &l->abs
         : sum && j->pre == PLK_PRE_EXPDIFF && !rows        ? &l->exp
                                                            : NULL;
  return plain && *map ? MAP : TILES;
}

PlStatus plk_reduce_run(const PlkReduceJob *job) {
  const PlArray *x = job->x;
  Run r = {.job = job, .loops = plk_reduce_loops(), .x = x->data, .dtype = x->dtype};
  PlkReduceShape shape;
  void *copy = NULL;
  r.direct = job->pre == PLK_PRE_NONE && plk_comp_direct(x->dtype, job->comp);
  const bool plain = plk_reduce_shape(x, job->mask, &shape);
  if (x->numel == 0) {
    int64_t kept = 1;
    for (int d = 0; d < x->ndim; d++)
      if (!(job->mask >> d & 1)) kept *= x->shape[d];
    return run_empty(&r, kept);
  }
  int64_t around[3];
  if (!plain && job->core == PLK_CORE_SUM && job->comp != PLK_CI64 && !job->aux && plk_reduce_around(x, job->mask, around))
    return plk_reduce_twice(job, around);
  if (!plain) {
    PL_TRY(plk_reduce_permute(x, job->mask, &shape, &copy));
    r.x = copy;
  }
  r.O = shape.O, r.R = shape.R, r.I = shape.I;
  r.how = how(job, x->dtype, r.I == 1, &r.map);
  PlStatus s = run(&r);
  plk_scratch_free(copy);
  return s;
}
