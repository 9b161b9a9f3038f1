/* SPDX-License-Identifier: MIT
 * The reduction engine. x is seen as [O][R][I]: O kept, R reduced, I kept (other orders are copied into
 * [kept][reduced] first). Rows are reduced one by one, columns move together; arrays that lie transposed are read as they lie,
 * in the order of additions that they would have row-major. R is cut into blocks whose
 * size depends on the shape alone; block results are combined in order as a tree. */
#include "kernels/cpu/reduce/reduce_run.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/cpu/shape/transpose.h"

enum { TILE = PLK_REDUCE_TILE, ROW_BLOCK = 1 << 16, CACHED = 1 << 15 /* elements that stay in the cache */ };

typedef union Acc {
  double f;
  int64_t i;
} Acc;

/* What reads the elements: tiles of the job's type, or loops that map and join the elements in place. */
typedef enum How { TILES, MAP, COUNT, WHOLE } How;

typedef struct Run {
  const PlkReduceJob *job;
  const PlkReduceLoops *loops;
  const void *x;
  int dtype;
  How how;
  const PlkMapLoop *map;
  const PlkIntLoop *whole; /* COUNT, WHOLE */
  PlkReduceShape s;
  PlkReduceLoop loop; /* that does it all, of `ld`; else across tiles are transposed first */
  size_t item;
  int64_t rblock, nblock, ctile, nctile; /* reduced elements in a block; columns in a tile */
  bool direct, turn;                     /* tiles can be read in place; are transposed */
  bool floats;                           /* results are floats before their end */
  Acc *part;                             /* [nblock][O I], with more than one block */
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

/* n elements of output o at x, in one pass. */
static Acc row_mapped(const Run *r, int64_t o, const void *x, int64_t n) {
  if (r->how == WHOLE) return (Acc){.i = r->whole->row(x, n)};
  if (r->how == COUNT) return (Acc){.i = counted(r, r->whole->row(x, n), n)};
  Acc a;
  r->map->row[r->dtype](x, 0, n, 1, r->job->aux ? r->job->aux + o : NULL, &a.f);
  return a;
}

static Acc row_at(const Run *r, int64_t o, const void *x, int64_t rows) {
  if (r->how != TILES) return row_mapped(r, o, x, rows);
  _Alignas(64) double buf[TILE];
  const double *aux = r->job->aux ? r->job->aux + o : NULL;
  int64_t step = r->direct ? rows : TILE;
  Acc a = start_of(r->job);
  for (int64_t at = 0; at < rows; at += step) {
    int64_t n = rows - at < step ? rows - at : step;
    Acc b = row_tile(r, plk_reduce_tile(r->job, x, r->dtype, r->direct, buf, at, n, aux, 0), n);
    a = at == 0 ? b : combine(r->job, a, b);
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

static void col_mapped(const Run *r, const void *x, int64_t ld, int64_t rows, int64_t n, const double *aux, Acc *acc) {
  int64_t *i = &acc->i; /* a union of two types of one size */
  if (r->how == WHOLE) r->whole->col(x, ld, rows, n, i);
  else if (r->how == MAP) r->map->col[r->dtype](x, ld, rows, n, aux, &acc->f);
  else {
    for (int64_t c = 0; c < n; c++) i[c] = 0;
    r->whole->col(x, ld, rows, n, i);
    for (int64_t c = 0; c < n; c++) i[c] = counted(r, i[c], rows);
  }
}

/* `rows` rows at x, ld apart, of n columns from output `at` on, into acc. */
static void cols_at(const Run *r, const void *x, int64_t ld, int64_t rows, int64_t n, int64_t at, Acc *acc) {
  const PlkReduceJob *j = r->job;
  _Alignas(64) double buf[TILE];
  const double *aux = j->aux ? j->aux + at : NULL;
  if (r->how != TILES) {
    col_mapped(r, x, ld, rows, n, aux, acc);
    return;
  }
  for (int64_t k = 0; k < rows; k++) col_row(j, plk_reduce_tile(j, x, r->dtype, r->direct, buf, k * ld, n, aux, 1), n, acc);
}

/* Elements from a row of a transposed tile to the next: an odd number of lines of the cache, which go to all of its sets. */
static int64_t apart(size_t item, int64_t n) {
  const int64_t line = 64 / (int64_t)item;
  return ((n + line - 1) / line | 1) * line;
}

/* Elements r0 … r1 of outputs c0 … c0 + n of outer index o, into acc; turned: room for a tile. */
static void col_block(const Run *r, int64_t o, int64_t r0, int64_t r1, int64_t c0, int64_t n, void *turned, Acc *acc) {
  const PlkReduceShape *s = &r->s;
  const int64_t rows = r1 - r0, at = o * s->I + c0;
  const char *x = (const char *)r->x + (size_t)(o * s->so + r0 * s->sr + c0 * s->si) * r->item;
  r->loops->fill(&acc->f, start_of(r->job).f, n); /* Acc is as large as a double */
  if (r->loop && !r->turn) r->loop(x, s->across && !s->rows ? s->si : s->sr, rows, n, &acc->f);
  else if (!r->turn && s->across) r->map->across[r->dtype](x, s->si, rows, n, r->job->aux ? r->job->aux + at : NULL, &acc->f);
  else if (!r->turn) cols_at(r, x, s->sr, rows, n, at, acc);
  else if (s->rows) {
    const int64_t ld = apart(r->item, rows);
    plk_transpose(r->item)(turned, ld, x, s->sr, rows, n);
    if (r->loop) r->loop(turned, ld, rows, n, &acc->f);
    else if (r->how == MAP) r->map->row[r->dtype](turned, ld, rows, n, r->job->aux ? r->job->aux + at : NULL, &acc->f);
    else
      for (int64_t c = 0; c < n; c++) acc[c] = row_at(r, at + c, (const char *)turned + (size_t)(c * ld) * r->item, rows);
  } else {
    const int64_t ld = apart(r->item, n);
    plk_transpose(r->item)(turned, ld, x, s->si, n, rows);
    if (r->loop) r->loop(turned, ld, rows, n, &acc->f);
    else cols_at(r, turned, ld, rows, n, at, acc);
  }
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void post(const Run *r, double *v, int64_t at, int64_t n) {
  const PlkReduceJob *j = r->job;
  const PlkReduceLoops *l = r->loops;
  const double free = (double)r->s.R - j->p;
  switch (j->post) {
  case PLK_POST_MEAN: (r->floats ? l->divide_floats : l->divide)(v, (double)(j->count ? j->count : r->s.R), n); break;
  case PLK_POST_ROOT:
    for (int64_t i = 0; i < n; i++) v[i] = pow(v[i], 1 / j->p);
    break;
  case PLK_POST_VAR:
  case PLK_POST_STD: l->divide(v, free > 0 ? free : 0, n);
  default: break;
  }
  if (j->post == PLK_POST_SQRT || j->post == PLK_POST_STD) l->root(v, n);
  if (j->post != PLK_POST_LOG) return;
  if (j->comp == PLK_CF32) j->parts->exps()->log(v, n);
  for (int64_t i = 0; i < n; i++) v[i] = (j->comp == PLK_CF32 ? v[i] : log(v[i])) + j->aux[at + i];
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
  post(r, &acc->f, at, n);
  if (j->out && j->out->dtype == PL_F32) r->loops->to_f32(&acc->f, (float *)j->out->data + at, n);
  else if (j->out) plk_store(PLK_CF64, acc, n, j->out->data, j->out->dtype, at, 1, n, 1);
  else memcpy(j->to + at, acc, (size_t)n * sizeof *acc);
}

/* Pairwise over blocks b0 .. b0 + blocks of n <= TREE outputs from `at` on. */
enum { TREE = 64 };
static void tree(const Run *r, int64_t at, int64_t n, int64_t b0, int64_t blocks, Acc *to) {
  const PlkReduceJob *j = r->job;
  const int64_t kept = r->s.O * r->s.I;
  const Acc *left = r->part + b0 * kept + at, *right = left + kept;
  Acc a[TREE], b[TREE];
  if (blocks == 1) {
    memcpy(to, left, (size_t)n * sizeof *to);
    return;
  }
  if (blocks > 2) {
    tree(r, at, n, b0, blocks / 2, a);
    tree(r, at, n, b0 + blocks / 2, blocks - blocks / 2, b);
    left = a, right = b;
  }
  if (j->comp != PLK_CI64 && j->core == PLK_CORE_SUM)
    for (int64_t i = 0; i < n; i++) to[i].f = left[i].f + right[i].f;
  else
    for (int64_t i = 0; i < n; i++) to[i] = combine(j, left[i], right[i]);
}

static PlStatus finish_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  Acc acc[TREE];
  for (int64_t at = begin; at < end; at += TREE) {
    const int64_t n = end - at < TREE ? end - at : TREE;
    tree(r, at, n, 0, r->nblock, acc);
    finish(r, acc, at, n);
  }
  return PL_OK;
}

/* Rows that one loop does, with their results. */
static PlStatus short_rows_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  Acc acc[TILE];
  for (int64_t o = begin; o < end; o += TILE) {
    const int64_t n = end - o < TILE ? end - o : TILE;
    const char *x = (const char *)r->x + (size_t)(o * r->s.so) * r->item;
    if (r->loop) r->loop(x, r->s.so, r->s.R, n, &acc->f);
    else r->map->row[r->dtype](x, r->s.so, r->s.R, n, r->job->aux ? r->job->aux + o : NULL, &acc->f);
    finish(r, acc, o, n);
  }
  return PL_OK;
}

/* Items are (outer, block) for rows; consecutive outputs are written together. */
static PlStatus row_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  Acc acc[64];
  int64_t first = begin, n = 0, most = 64;
  if (r->job->piece && r->s.R > CACHED / most) most = r->s.R < CACHED ? CACHED / r->s.R : 1;
  for (int64_t it = begin; it < end; it++) {
    const int64_t o = it / r->nblock, r0 = it % r->nblock * r->rblock, rows = r->s.R - r0 < r->rblock ? r->s.R - r0 : r->rblock;
    const char *x = (const char *)r->x + (size_t)(o * r->s.so + r0) * r->item;
    const PlkReducePiece p = {.at = o * r->s.so + r0, .out = o, .block = it % r->nblock, .rows = rows, .cols = 1};
    Acc a = {0};
    if (r->job->instead) r->job->piece(r->job, &p, &a.f);
    else if (r->loop) r->loop(x, 0, rows, 1, &a.f);
    else a = row_at(r, o, x, rows);
    if (r->nblock > 1 && r->job->piece && !r->job->instead) r->job->piece(r->job, &p, &a.f);
    if (r->nblock > 1) {
      r->part[it % r->nblock * r->s.O + o] = a;
      continue;
    }
    acc[n++] = a;
    if (n == most || it + 1 == end) {
      const PlkReducePiece group = {.at = first * r->s.so, .out = first, .rows = r->s.R, .cols = n, .ld = r->s.so};
      if (r->job->piece && !r->job->instead) r->job->piece(r->job, &group, &acc->f);
      finish(r, acc, first, n);
      first = it + 1, n = 0;
    }
  }
  return PL_OK;
}

static PlStatus col_body(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  const int64_t I = r->s.I, R = r->s.R;
  Acc acc[PLK_COLS];
  void *turned = NULL;
  const int64_t most = R < r->rblock ? R : r->rblock;
  const int64_t room = r->s.rows ? r->ctile * apart(r->item, most) : most * apart(r->item, r->ctile);
  if (r->turn) PL_TRY(plk_scratch((size_t)room * r->item, &turned));
  for (int64_t it = begin; it < end; it++) {
    int64_t t = it % r->nctile, b = it / r->nctile % r->nblock, o = it / r->nctile / r->nblock;
    int64_t c0 = t * r->ctile, n = I - c0 < r->ctile ? I - c0 : r->ctile;
    int64_t r0 = b * r->rblock, r1 = r0 + r->rblock < R ? r0 + r->rblock : R;
    Acc *to = r->nblock > 1 ? r->part + b * r->s.O * I + o * I + c0 : acc;
    const PlkReducePiece p = {
        .at = o * r->s.so + r0 * r->s.sr + c0, .out = o * I + c0, .block = b, .rows = r1 - r0, .cols = n, .ld = r->s.sr};
    if (!r->job->instead) col_block(r, o, r0, r1, c0, n, turned, to);
    else
      for (int64_t c = 0; c < n; c++) to[c] = start_of(r->job);
    if (r->job->piece) r->job->piece(r->job, &p, &to->f);
    if (r->nblock == 1) finish(r, acc, o * I + c0, n);
  }
  plk_scratch_free(turned);
  return PL_OK;
}

/* ---- geometry ------------------------------------------------------------------------------------------ */

int64_t plk_reduce_block(int64_t cols) {
  if (cols == 1) return ROW_BLOCK;
  int64_t tile = cols < PLK_COLS ? cols : PLK_COLS;
  return ROW_BLOCK / tile < PLK_COLSUM_ROWS ? PLK_COLSUM_ROWS : ROW_BLOCK / tile;
}

/* The loop that does it all, and how many columns go together. Few elements are not worth all the lanes of sums across. */
static void choose(Run *r) {
  enum { LANES = 128, TURNED = 1 << 15, WIDEST = 64 };
  const PlkReduceJob *j = r->job;
  const PlkReduceShape *s = &r->s;
  const int64_t rows = s->R < r->rblock ? s->R : r->rblock;
  const bool plain = j->pre == PLK_PRE_NONE && j->core != PLK_CORE_PROD && r->dtype <= PL_BF16 && plk_comp(r->dtype) == j->comp;
  const PlkForm form = s->rows ? PLK_ROWS : PLK_COLUMNS, across = s->rows ? PLK_ROWS_ACROSS : PLK_COLUMNS_ACROSS;
  r->loop = plain ? r->loops->plain[r->dtype][j->core][form] : NULL;
  r->turn = s->across;
  if (s->across && plain && (!s->rows || j->core != PLK_CORE_SUM || rows >= LANES) && r->loops->plain[r->dtype][j->core][across])
    r->loop = r->loops->plain[r->dtype][j->core][across], r->turn = false;
  if (s->across && !s->rows && r->how == MAP && r->map->across[r->dtype]) r->turn = false;
  r->ctile = s->I < PLK_COLS ? s->I : PLK_COLS;
  if (!r->turn) return;
  int64_t most = TURNED / rows & ~(int64_t)7;
  if (most < 8) most = 8;
  if (most > WIDEST) most = WIDEST;
  if (r->ctile > most) r->ctile = most;
}

static PlStatus run(Run *r) {
  const PlkReduceShape *s = &r->s;
  const int64_t kept = s->O * s->I;
  const bool rows = s->rows && !s->across;
  r->rblock = plk_reduce_block(s->rows ? 1 : s->I);
  r->nblock = s->R <= r->rblock ? 1 : (s->R + r->rblock - 1) / r->rblock;
  choose(r);
  r->floats = r->loop && !s->rows && s->R <= PLK_COLSUM_ROWS && r->job->comp == PLK_CF32 && r->job->core == PLK_CORE_SUM &&
              !r->job->count && r->job->out && r->job->out->dtype != PL_F64;
  r->nctile = (s->I + r->ctile - 1) / r->ctile;
  void *part = NULL;
  if (r->nblock > 1) PL_TRY(plk_scratch((size_t)(r->nblock * kept) * sizeof(Acc), &part));
  r->part = part;
  int64_t items = s->O * r->nblock * r->nctile, work = (s->R < r->rblock ? s->R : r->rblock) * r->ctile;
  int64_t block = work >= PLK_GRAIN ? 1 : PLK_GRAIN / (work ? work : 1);
  PlkBody body = rows && r->nblock == 1 && !r->job->piece && (r->loop || r->how == MAP) ? short_rows_body : rows ? row_body : col_body;
  PlStatus status = items <= block ? body(r, 0, items) : plk_parallel(items, block, body, r);
  if (status == PL_OK && r->nblock > 1) {
    const int64_t n = PLK_GRAIN / r->nblock + 1;
    status = kept <= n ? finish_body(r, 0, kept) : plk_parallel(kept, n, finish_body, r);
  }
  plk_scratch_free(part);
  return status;
}

/* Nothing to reduce over: the start value everywhere. */
static PlStatus run_empty(Run *r, int64_t numel) {
  Acc acc[64];
  r->s.R = 0;
  for (int64_t at = 0; at < numel; at += 64) {
    int64_t n = numel - at < 64 ? numel - at : 64;
    for (int64_t i = 0; i < n; i++) acc[i] = start_of(r->job);
    finish(r, acc, at, n);
  }
  return PL_OK;
}

/* Whether one pass does the job; exponentials of long rows go faster through tiles. */
static How how(Run *r, const PlkReduceJob *j, bool rows) {
  if (!j->parts->maps) return TILES;
  const PlkMapLoops *l = j->parts->maps();
  const PlkMapLoop **map = &r->map;
  const int dtype = r->dtype;
  const bool sum = j->core == PLK_CORE_SUM;
  if (j->comp == PLK_CI64) {
    const bool nonzero = j->pre == PLK_PRE_NONZERO || (sum && dtype == PL_BOOL);
    if (j->core == PLK_CORE_PROD || (!nonzero && j->pre != PLK_PRE_NONE)) return TILES;
    r->whole = &j->parts->integers()->of[dtype][nonzero                   ? PLK_INT_COUNT
                                                : sum                     ? PLK_INT_SUM
                                                : j->core == PLK_CORE_MAX ? PLK_INT_MAX
                                                                          : PLK_INT_MIN];
    return !r->whole->row ? TILES : nonzero ? COUNT : WHOLE;
  }
  *map = j->core == PLK_CORE_PROD && j->pre == PLK_PRE_NONE                       ? &l->prod
         : sum && j->pre == PLK_PRE_SQUARE                                        ? &l->square
         : sum && j->pre == PLK_PRE_DIFF                                          ? &l->diff
         : sum && j->pre == PLK_PRE_SQDIFF                                        ? &l->sqdiff
         : sum && j->pre == PLK_PRE_ABS                                           ? &l->abs
         : sum && j->pre == PLK_PRE_EXPDIFF && (!rows || r->s.R < PLK_SHORT_EXPS) ? &l->exp
                                                                                  : NULL;
  return *map && dtype <= PL_BF16 && (rows ? (*map)->row[dtype] != NULL : (*map)->col[dtype] != NULL) ? MAP : TILES;
}

/* The same job of a row-major copy. */
static PlStatus run_dense(const PlkReduceJob *job) {
  int64_t strides[PL_MAX_DIM];
  PlArray x = *job->x;
  void *copy;
  PlkNd walk;
  x.strides = strides, x.contiguous = 1;
  plk_nd_strides(x.ndim, x.shape, strides);
  plk_nd_walk(&walk, &x, job->x);
  const size_t size = pl_dtype_size((PlDtype)x.dtype);
  PL_TRY(plk_scratch((size_t)x.numel * size, &copy));
  PlkReduceJob dense = *job;
  dense.x = &x;
  x.data = copy;
  PlStatus s = plk_nd_copy(copy, job->x->data, &walk, size);
  if (s == PL_OK) s = plk_reduce_run_parts(&dense);
  plk_scratch_free(copy);
  return s;
}

PlStatus plk_reduce_run_parts(const PlkReduceJob *job) {
  const PlArray *x = job->x;
  if (!job->parts->maps && (x->dtype > PL_F64 || plk_comp(x->dtype) != job->comp || job->core != PLK_CORE_SUM || job->pre != PLK_PRE_NONE ||
                            job->post > PLK_POST_MEAN))
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s", "a sum of floats without the loops of other reductions");
  Run r = {.job = job, .loops = job->parts->loops(), .x = x->data, .dtype = x->dtype, .item = pl_dtype_size((PlDtype)x->dtype)};
  void *copy = NULL;
  r.direct = job->pre == PLK_PRE_NONE && plk_comp_direct(x->dtype, job->comp);
  if (x->numel == 0) {
    int64_t kept = 1;
    for (int d = 0; d < x->ndim; d++)
      if (!(job->mask >> d & 1)) kept *= x->shape[d];
    return run_empty(&r, kept);
  }
  if (!plk_reduce_shape(x, job->mask, &r.s)) {
    int64_t around[3];
    if (!x->contiguous) return run_dense(job);
    if (job->core == PLK_CORE_SUM && job->comp != PLK_CI64 && !job->aux && plk_reduce_around(x, job->mask, around))
      return plk_reduce_twice(job, around);
    PL_TRY(plk_reduce_permute(x, job->mask, &r.s, &copy));
    r.x = copy;
  }
  r.how = how(&r, job, r.s.rows);
  PlStatus s = run(&r);
  plk_scratch_free(copy);
  return s;
}
