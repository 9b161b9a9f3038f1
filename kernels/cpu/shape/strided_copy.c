/* SPDX-License-Identifier: MIT
 * Strided copy and add. A copy drops and merges dimensions, walks the destination in its memory order and
 * ends in one of two inner loops: a window of rows, or a blocked 2-D transpose. */
#include "kernels/cpu/shape/strided_copy.h"

#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/shape/copy.h"
#include "kernels/cpu/shape/transpose.h"

enum { RUN = 65536 }; /* longest run one job takes */

void plk_nd_strides(int ndim, const int64_t *shape, int64_t *strides) {
  int64_t s = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = s;
    s *= plk_max64(shape[d], 1);
  }
}

void plk_nd_walk(PlkNd *w, const PlArray *dst, const PlArray *src) {
  int lead = dst->ndim - src->ndim;
  w->n = 0;
  for (int d = 0; d < dst->ndim; d++) {
    int64_t s = d < lead || (src->shape[d - lead] == 1 && dst->shape[d] != 1) ? 0 : src->strides[d - lead];
    plk_nd_dim(w, dst->shape[d], dst->strides[d], s);
  }
}

/* Drops sizes of 1 and merges neighbours that are one run in both windows. False: nothing to do. */
static bool simplify(PlkNd *w) {
  int n = 0;
  for (int d = 0; d < w->n; d++) {
    if (w->shape[d] <= 0) return false;
    if (w->shape[d] == 1) continue;
    if (n && w->dst[n - 1] == w->dst[d] * w->shape[d] && w->src[n - 1] == w->src[d] * w->shape[d]) {
      w->shape[n - 1] *= w->shape[d];
    } else {
      w->shape[n] = w->shape[d];
      n++;
    }
    w->dst[n - 1] = w->dst[d];
    w->src[n - 1] = w->src[d];
  }
  w->n = n;
  return true;
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

static void swap_dims(PlkNd *w, int a, int b) {
  int64_t t[3] = {w->shape[a], w->dst[a], w->src[a]};
  w->shape[a] = w->shape[b], w->dst[a] = w->dst[b], w->src[a] = w->src[b];
  w->shape[b] = t[0], w->dst[b] = t[1], w->src[b] = t[2];
}

/* Largest destination stride first, so that writes are as sequential as they can be. */
static void sort_dims(PlkNd *w) {
  for (int i = 1; i < w->n; i++)
    for (int k = i; k > 0 && magnitude(w->dst[k]) > magnitude(w->dst[k - 1]); k--) swap_dims(w, k, k - 1);
}

/* ---- inner loops ------------------------------------------------------------------------------ */

PLK_ISA_DECLARE(const PlkCopyLoops, plk_copy_table);
const PlkCopyLoops *plk_copy_loops(void) { return &PLK_ISA_PICK(plk_copy_table); }

static void transpose_bytes(void *to, int64_t ld, const void *from, int64_t stride, int64_t n, int64_t k) {
  uint8_t *d = to;
  const uint8_t *s = from;
  for (int64_t j = 0; j < k; j++)
    for (int64_t r = 0; r < n; r++) d[j * ld + r] = s[r * stride + j];
}

PLK_ISA_DECLARE(const PlkTransposeLoops, plk_transpose_table);
PlkTranspose plk_transpose(size_t size) {
  const PlkTransposeLoops *l = &PLK_ISA_PICK(plk_transpose_table);
  return size == 2 ? l->two : size == 4 ? l->four : size == 8 ? l->eight : transpose_bytes;
}

/* ---- copy --------------------------------------------------------------------------------------- */

typedef struct Copy {
  char *dst;
  const char *src;
  PlkNd w; /* outer dims; the last is the inner run */
  size_t esize;
  int64_t run, nrun;         /* the inner run is cut into nrun pieces of `run` */
  int64_t jstride, nj, tile; /* transposes: the source's unit dimension, its size, tile edge */
} Copy;

/* Items are pieces of inner runs. Whole runs go together as far as the last of the outer dimensions reaches. */
static PlStatus copy_body(void *ctx, int64_t begin, int64_t end) {
  const Copy *c = ctx;
  const PlkNd *w = &c->w;
  const PlkCopyLoops *l = plk_copy_loops();
  const int last = w->n - 1, row = last - 1;
  const int64_t size = (int64_t)c->esize;
  int64_t at[PLK_ND], piece = begin % c->nrun, d = 0, s = 0;
  plk_nd_unravel(begin / c->nrun, last, w->shape, at);
  for (int k = 0; k < last; k++) d += at[k] * w->dst[k], s += at[k] * w->src[k];
  for (int64_t job = begin; job < end;) {
    const int64_t from = piece * c->run, n = plk_min64(c->run, w->shape[last] - from);
    const int64_t rows = last > 0 && c->nrun == 1 ? plk_min64(end - job, w->shape[row] - at[row]) : 1;
    l->window(c->dst + (d + from * w->dst[last]) * size, last > 0 ? w->dst[row] * size : 0, w->dst[last],
              c->src + (s + from * w->src[last]) * size, last > 0 ? w->src[row] * size : 0, w->src[last], rows, n, c->esize);
    job += rows;
    if (++piece < c->nrun) continue;
    piece = 0;
    for (int k = row; k >= 0; k--) {
      const int64_t step = k == row ? rows : 1;
      d += step * w->dst[k], s += step * w->src[k];
      if ((at[k] += step) < w->shape[k]) break;
      d -= at[k] * w->dst[k], s -= at[k] * w->src[k];
      at[k] = 0;
    }
  }
  return PL_OK;
}

/* One tile by way of a buffer: rows of two bytes an element that are a multiple of a kilobyte apart share few sets of a cache,
 * and lines written bit by bit would drop out before they are whole. */
enum { STAGE = 128 /* values of l */ };
static void transpose_staged(PlkTranspose move, uint16_t *to, int64_t ld, const uint16_t *from, int64_t stride, int64_t m, int64_t nj) {
  _Alignas(64) uint16_t stage[32 * STAGE];
  move(stage, STAGE, from, stride, m, nj);
  for (int64_t j = 0; j < nj; j++) memcpy(to + j * ld, stage + j * STAGE, (size_t)m * sizeof *to);
}

/* Jobs are (outer position, strip of `tile` values of j); each walks the whole l dimension. */
static PlStatus transpose_body(void *ctx, int64_t begin, int64_t end) {
  const Copy *c = ctx;
  const PlkNd *w = &c->w;
  const PlkTranspose move = plk_transpose(c->esize);
  int last = w->n - 1;
  for (int64_t job = begin; job < end; job++) {
    int64_t at[PLK_ND], strip = job % c->nrun, j0 = strip * c->tile;
    plk_nd_unravel(job / c->nrun, last, w->shape, at);
    int64_t d = j0 * c->jstride, s = j0;
    for (int k = 0; k < last; k++) d += at[k] * w->dst[k], s += at[k] * w->src[k];
    int64_t nj = plk_min64(c->tile, c->nj - j0), nl = w->shape[last], sl = w->src[last];
    const bool staged = c->esize == 2 && c->jstride % 512 == 0;
    const int64_t step = staged ? STAGE : c->tile;
    for (int64_t l = 0; l < nl; l += step) {
      int64_t m = plk_min64(step, nl - l);
      void *to = c->dst + (d + l) * (int64_t)c->esize;
      const void *from = c->src + (s + l * sl) * (int64_t)c->esize;
      if (staged) transpose_staged(move, to, c->jstride, from, sl, m, nj);
      else move(to, c->jstride, from, sl, m, nj);
    }
  }
  return PL_OK;
}

/* The dimension other than the last along which the source is dense, if transposing in tiles pays. */
static int transposed_dim(const PlkNd *w) {
  int last = w->n - 1;
  if (last < 1 || w->dst[last] != 1 || w->src[last] == 1 || w->src[last] == 0 || w->shape[last] < 8) return -1;
  for (int d = last - 1; d >= 0; d--)
    if (w->src[d] == 1 && w->shape[d] >= 8) return d;
  return -1;
}

static PlStatus copy_transposed(Copy *c, int j) {
  PlkNd *w = &c->w;
  c->jstride = w->dst[j];
  c->nj = w->shape[j];
  c->tile = (int64_t)(64 / c->esize);
  for (int d = j; d + 1 < w->n; d++) swap_dims(w, d, d + 1);
  w->n--;
  c->nrun = (c->nj + c->tile - 1) / c->tile;
  int64_t jobs = c->nrun;
  for (int d = 0; d + 1 < w->n; d++) jobs *= w->shape[d];
  return plk_parallel(jobs, plk_max64(1, PLK_MOVE_GRAIN / (c->tile * w->shape[w->n - 1])), transpose_body, c);
}

PlStatus plk_nd_copy(void *dst, const void *src, const PlkNd *walk, size_t esize) {
  Copy c = {.dst = dst, .src = src, .w = *walk, .esize = esize};
  PlkNd *w = &c.w;
  if (!simplify(w)) return PL_OK;
  if (w->n == 0) {
    memcpy(dst, src, esize);
    return PL_OK;
  }
  sort_dims(w);
  simplify(w);
  int last = w->n - 1, j = transposed_dim(w);
  if (j >= 0) return copy_transposed(&c, j);
  c.run = plk_min64(w->shape[last], RUN);
  c.nrun = (w->shape[last] + c.run - 1) / c.run;
  int64_t jobs = c.nrun;
  for (int d = 0; d < last; d++) jobs *= w->shape[d];
  return plk_parallel(jobs, plk_max64(1, PLK_MOVE_GRAIN / c.run), copy_body, &c);
}

/* ---- add ---------------------------------------------------------------------------------------- */

#define ADD_LOOP(T, SUM)                                                     \
  {                                                                          \
    T *d = dst;                                                              \
    const T *s = src;                                                        \
    if (ds == 1 && ss == 1) {                                                \
      for (int64_t i = 0; i < n; i++) d[i] = SUM(d[i], s[i]);                \
    } else {                                                                 \
      for (int64_t i = 0; i < n; i++) d[i * ds] = SUM(d[i * ds], s[i * ss]); \
    }                                                                        \
  }
#define SUM_F(a, b)  ((a) + (b))
#define SUM_8(a, b)  ((uint8_t)((a) + (b)))
#define SUM_16(a, b) ((uint16_t)((a) + (b)))
#define SUM_OR(a, b) ((uint8_t)((a) | (b)))
#define SUM_H(a, b)  plk_f32_to_f16(plk_f16_to_f32(a) + plk_f16_to_f32(b))
#define SUM_B(a, b)  plk_f32_to_bf16(plk_bf16_to_f32(a) + plk_bf16_to_f32(b))

static void add_run(void *dst, int64_t ds, const void *src, int64_t ss, int64_t n, PlDtype t) {
  switch (t) {
  case PL_F32: ADD_LOOP(float, SUM_F) break;
  case PL_F64: ADD_LOOP(double, SUM_F) break;
  case PL_F16: ADD_LOOP(uint16_t, SUM_H) break;
  case PL_BF16: ADD_LOOP(uint16_t, SUM_B) break;
  case PL_I8:
  case PL_U8: ADD_LOOP(uint8_t, SUM_8) break;
  case PL_I16: ADD_LOOP(uint16_t, SUM_16) break;
  case PL_I32: ADD_LOOP(uint32_t, SUM_F) break;
  case PL_I64: ADD_LOOP(uint64_t, SUM_F) break;
  default: ADD_LOOP(uint8_t, SUM_OR) break;
  }
}

typedef struct Add {
  char *dst;
  const char *src;
  PlkNd w;
  PlDtype dtype;
} Add;

static void add_walk(char *dst, const char *src, const PlkNd *w, PlDtype dtype) {
  const int64_t esize = (int64_t)pl_dtype_size(dtype);
  int last = w->n - 1;
  int64_t at[PLK_ND] = {0}, d = 0, s = 0;
  for (;;) {
    add_run(dst + d * esize, w->dst[last], src + s * esize, w->src[last], w->shape[last], dtype);
    int k = last - 1;
    for (; k >= 0; k--) {
      d += w->dst[k], s += w->src[k];
      if (++at[k] < w->shape[k]) break;
      d -= at[k] * w->dst[k], s -= at[k] * w->src[k];
      at[k] = 0;
    }
    if (k < 0) return;
  }
}

static PlStatus add_body(void *ctx, int64_t begin, int64_t end) {
  const Add *a = ctx;
  const size_t esize = pl_dtype_size(a->dtype);
  PlkNd w = a->w;
  w.shape[0] = end - begin;
  add_walk(plk_at(a->dst, begin * w.dst[0], esize), plk_cat(a->src, begin * w.src[0], esize), &w, a->dtype);
  return PL_OK;
}

/* A dimension along which destinations are disjoint: its stride exceeds the span of all others. */
static int disjoint_dim(const PlkNd *w) {
  int best = 0;
  for (int d = 1; d < w->n; d++)
    if (magnitude(w->dst[d]) > magnitude(w->dst[best])) best = d;
  int64_t span = 0;
  for (int d = 0; d < w->n; d++)
    if (d != best) span += (w->shape[d] - 1) * magnitude(w->dst[d]);
  return magnitude(w->dst[best]) > span ? best : -1;
}

PlStatus plk_nd_add(void *dst, const void *src, const PlkNd *walk, PlDtype dtype) {
  Add a = {.dst = dst, .src = src, .w = *walk, .dtype = dtype};
  PlkNd *w = &a.w;
  if (!simplify(w)) return PL_OK;
  if (w->n == 0) plk_nd_dim(w, 1, 1, 1);
  int64_t total = 1;
  for (int d = 0; d < w->n; d++) total *= w->shape[d];
  int p = disjoint_dim(w);
  if (p < 0 || total <= PLK_GRAIN) {
    add_walk(a.dst, a.src, w, dtype);
    return plk_poll();
  }
  for (int d = p; d > 0; d--) swap_dims(w, d, d - 1);
  return plk_parallel(w->shape[0], plk_max64(1, PLK_GRAIN / (total / w->shape[0])), add_body, &a);
}

static PlStatus add_through_f32(void *dst, int64_t numel, const void *src, const PlkNd *walk, PlDtype dtype) {
  PlkNd in = *walk, add = *walk, flat = {0};
  int64_t n = 1;
  for (int d = walk->n - 1; d >= 0; d--) {
    in.dst[d] = add.src[d] = n;
    n *= walk->shape[d];
  }
  void *wide = NULL;
  PL_TRY(plk_scratch((size_t)(numel + n + 1) * sizeof(float), &wide));
  float *sum = wide, *terms = sum + numel;
  plk_nd_dim(&flat, numel, 1, 1);
  PlStatus st = plk_nd_zero(sum, (size_t)numel * sizeof(float));
  if (st == PL_OK) st = plk_nd_cast(terms, PL_F32, src, dtype, &in);
  if (st == PL_OK) st = plk_nd_add(sum, terms, &add, PL_F32);
  if (st == PL_OK) st = plk_nd_cast(dst, dtype, sum, PL_F32, &flat);
  plk_scratch_free(wide);
  return st;
}

PlStatus plk_nd_zero_add(void *dst, int64_t numel, const void *src, const PlkNd *walk, PlDtype dtype) {
  if (dtype == PL_F16 || dtype == PL_BF16) return add_through_f32(dst, numel, src, walk, dtype);
  PL_TRY(plk_nd_zero(dst, (size_t)numel * pl_dtype_size(dtype)));
  return plk_nd_add(dst, src, walk, dtype);
}
