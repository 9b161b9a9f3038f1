/* SPDX-License-Identifier: MIT
 * Convolution as matrix products: the input's windows become columns col[c·k, t], then,
 * per image and group, y = w col      dcol = wᵀ dy, added back into dx      dw = sum of
 * dy colᵀ Columns are made for a run of output rows at a time, so that they stay in
 * cache. */
#include <string.h>

#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/sizes.h"

enum { COLUMN_ELEMENTS = 1 << 17, PARTS = 8, PART_ELEMENTS = 1 << 24 };

typedef struct Cols {
  const PlkConv *v;
  size_t esize;
  int64_t ck;            /* rows of col */
  int64_t nrow, step;    /* output rows of an image, and how many are taken at a time */
  bool direct;           /* 1×1 kernel: x is its own columns */
  int64_t chunk, nchunk; /* weight gradient: images of one partial sum, and partial sums */
  char *parts;
  PlStatus (*multiply)(const PlkGemm *g); /* on this thread, or on all */
} Cols;

bool plk_conv_pointwise(const PlkConv *v) {
  bool yes = v->ksize == 1;
  for (int i = 0; i < 3; i++) yes = yes && v->stride[i] == 1 && v->pad[i] == 0 && v->in[i] == v->out[i];
  return yes;
}

static Cols cols_of(const PlkConv *v) {
  Cols q = {.v = v, .esize = pl_dtype_size(v->dtype), .ck = v->c * v->ksize, .multiply = plk_gemm_alone};
  q.nrow = v->out[0] * v->out[1];
  q.step = plk_min64(q.nrow, plk_max64(1, COLUMN_ELEMENTS / (q.ck * v->out[2])));
  q.direct = plk_conv_pointwise(v);
  return q;
}

/* Walks the windows of output rows [r0, r1): out-of-range parts are zeroed (gather) or
 * skipped (scatter). T only moves or adds, so gather and scatter share the index
 * arithmetic. */
#define WALK(name, T, SCATTER)                                                         \
  static void name(const PlkConv *v, T *x, T *col, int64_t r0, int64_t r1) {           \
    const int64_t W = v->out[2], width = (r1 - r0) * W, sw = v->stride[2];             \
    for (int64_t row = 0; row < v->c * v->ksize; row++) {                              \
      const int64_t kx = row % v->k[2], ky = row / v->k[2] % v->k[1];                  \
      const int64_t kz = row / (v->k[2] * v->k[1]) % v->k[0];                          \
      T *plane = x + row / v->ksize * v->insize, *d = col + row * width;               \
      const int64_t off = kx * v->dil[2] - v->pad[2];                                  \
      /* t with 0 <= t sw + off < in */                                                \
      const int64_t lo = off >= 0 ? 0 : plk_min64(W, (-off + sw - 1) / sw);            \
      const int64_t end = off >= v->in[2] ? lo : (v->in[2] - off - 1) / sw + 1;        \
      const int64_t hi = plk_max64(lo, plk_min64(W, end));                             \
      for (int64_t r = r0; r < r1; r++, d += W) {                                      \
        const int64_t z = r / v->out[1] * v->stride[0] - v->pad[0] + kz * v->dil[0];   \
        const int64_t y = r % v->out[1] * v->stride[1] - v->pad[1] + ky * v->dil[1];   \
        const bool inside = z >= 0 && z < v->in[0] && y >= 0 && y < v->in[1];          \
        if (!inside) {                                                                 \
          if (!SCATTER) memset(d, 0, (size_t)W * sizeof *d);                           \
          continue;                                                                    \
        }                                                                              \
        T *s = plane + (z * v->in[1] + y) * v->in[2] + off;                            \
        if (SCATTER) {                                                                 \
          for (int64_t t = lo; t < hi; t++) s[t * sw] += d[t];                         \
          continue;                                                                    \
        }                                                                              \
        for (int64_t t = 0; t < lo; t++) d[t] = 0;                                     \
        if (sw == 1 && hi > lo) memcpy(d + lo, s + lo, (size_t)(hi - lo) * sizeof *d); \
        else                                                                           \
          for (int64_t t = lo; t < hi; t++) d[t] = s[t * sw];                          \
        for (int64_t t = hi; t < W; t++) d[t] = 0;                                     \
      }                                                                                \
    }                                                                                  \
  }
WALK(gather_f32, float, 0)
WALK(gather_f64, double, 0)
WALK(scatter_f32, float, 1)
WALK(scatter_f64, double, 1)

static void gather(const PlkConv *v, void *x, void *col, int64_t r0, int64_t r1) {
  if (v->dtype == PL_F64) gather_f64(v, x, col, r0, r1);
  else gather_f32(v, x, col, r0, r1);
}

static void scatter(const PlkConv *v, void *x, void *col, int64_t r0, int64_t r1) {
  if (v->dtype == PL_F64) scatter_f64(v, x, col, r0, r1);
  else scatter_f32(v, x, col, r0, r1);
}

/* The arrays of image `n`, group `g`. */
typedef struct Slice {
  char *x, *w, *y;
} Slice;

static Slice slice(const Cols *q, int64_t n, int64_t g) {
  const PlkConv *v = q->v;
  const int64_t at = n * v->g + g;
  return (Slice){(char *)v->x + (size_t)(at * v->c * v->insize) * q->esize, (char *)v->w + (size_t)(g * v->o * q->ck) * q->esize,
                 (char *)v->y + (size_t)(at * v->o * v->outsize) * q->esize};
}

static PlkGemm product(const Cols *q) { return (PlkGemm){.dtype = q->v->dtype, .alpha = 1, .beta = 0}; }

static void add_bias(const PlkConv *v, char *y, int64_t g, int64_t width) {
#define BIAS(T)                                      \
  for (int64_t o = 0; o < v->o; o++) {               \
    const T b = ((const T *)v->bias)[g * v->o + o];  \
    T *row = (T *)y + o * v->outsize;                \
    for (int64_t i = 0; i < width; i++) row[i] += b; \
  }
  if (v->dtype == PL_F64) {
    BIAS(double)
  } else {
    BIAS(float)
  }
#undef BIAS
}

static PlStatus forward_rows(const Cols *q, const Slice *s, int64_t g, int64_t r0, void *col) {
  const PlkConv *v = q->v;
  const int64_t r1 = plk_min64(q->nrow, r0 + q->step), width = (r1 - r0) * v->out[2];
  const size_t at = (size_t)(r0 * v->out[2]) * q->esize;
  PlkGemm m = product(q);
  m.M = v->o, m.K = q->ck, m.N = width;
  m.A = s->w, m.lda = q->ck;
  m.B = q->direct ? s->x + at : col, m.ldb = q->direct ? v->outsize : width;
  m.C = s->y + at, m.ldc = v->outsize;
  if (!q->direct) gather(v, s->x, col, r0, r1);
  PL_TRY(q->multiply(&m));
  if (v->bias) add_bias(v, m.C, g, width);
  return plk_poll();
}

static PlStatus back_rows(const Cols *q, const Slice *s, int64_t r0, void *col) {
  const PlkConv *v = q->v;
  const int64_t r1 = plk_min64(q->nrow, r0 + q->step), width = (r1 - r0) * v->out[2];
  const size_t at = (size_t)(r0 * v->out[2]) * q->esize;
  PlkGemm m = product(q);
  m.M = q->ck, m.K = v->o, m.N = width;
  m.ta = true, m.A = s->w, m.lda = q->ck;
  m.B = s->y + at, m.ldb = v->outsize;
  m.C = q->direct ? s->x + at : col, m.ldc = q->direct ? v->outsize : width;
  PL_TRY(q->multiply(&m));
  if (!q->direct) scatter(v, s->x, col, r0, r1);
  return plk_poll();
}

static PlStatus weight_rows(const Cols *q, const Slice *s, int64_t r0, void *col, void *dw, bool first) {
  const PlkConv *v = q->v;
  const int64_t r1 = plk_min64(q->nrow, r0 + q->step), width = (r1 - r0) * v->out[2];
  const size_t at = (size_t)(r0 * v->out[2]) * q->esize;
  PlkGemm m = product(q);
  m.M = v->o, m.K = width, m.N = q->ck;
  m.A = s->y + at, m.lda = v->outsize;
  m.tb = true, m.B = q->direct ? s->x + at : col, m.ldb = q->direct ? v->outsize : width;
  m.C = dw, m.ldc = q->ck, m.beta = first ? 0 : 1;
  if (!q->direct) gather(v, s->x, col, r0, r1);
  PL_TRY(q->multiply(&m));
  return plk_poll();
}

static PlStatus columns(const Cols *q, void **col) {
  *col = NULL;
  if (q->direct) return PL_OK;
  return plk_scratch((size_t)(q->ck * q->step * q->v->out[2]) * q->esize, col);
}

/* Unit: a run of rows of one image and group. */
static PlStatus forward_body(void *ctx, int64_t begin, int64_t end) {
  const Cols *q = ctx;
  const int64_t runs = (q->nrow + q->step - 1) / q->step;
  void *col;
  PL_TRY(columns(q, &col));
  PlStatus s = PL_OK;
  for (int64_t u = begin; u < end && s == PL_OK; u++) {
    const int64_t g = u / runs % q->v->g;
    const Slice sl = slice(q, u / runs / q->v->g, g);
    s = forward_rows(q, &sl, g, u % runs * q->step, col);
  }
  plk_scratch_free(col);
  return s;
}

/* Unit: one image and group. */
static PlStatus back_body(void *ctx, int64_t begin, int64_t end) {
  const Cols *q = ctx;
  void *col;
  PL_TRY(columns(q, &col));
  PlStatus s = PL_OK;
  for (int64_t u = begin; u < end && s == PL_OK; u++) {
    const Slice sl = slice(q, u / q->v->g, u % q->v->g);
    if (!q->direct) memset(sl.x, 0, (size_t)(q->v->c * q->v->insize) * q->esize);
    for (int64_t r = 0; r < q->nrow && s == PL_OK; r += q->step) s = back_rows(q, &sl, r, col);
  }
  plk_scratch_free(col);
  return s;
}

/* Unit: one partial sum and group. */
static PlStatus weight_body(void *ctx, int64_t begin, int64_t end) {
  const Cols *q = ctx;
  const PlkConv *v = q->v;
  void *col;
  PL_TRY(columns(q, &col));
  PlStatus s = PL_OK;
  for (int64_t u = begin; u < end && s == PL_OK; u++) {
    const int64_t part = u / v->g, g = u % v->g, last = plk_min64(v->n, (part + 1) * q->chunk);
    char *dw = q->parts + (size_t)((part * v->g + g) * v->o * q->ck) * q->esize;
    for (int64_t n = part * q->chunk; n < last && s == PL_OK; n++) {
      const Slice sl = slice(q, n, g);
      for (int64_t r = 0; r < q->nrow && s == PL_OK; r += q->step) s = weight_rows(q, &sl, r, col, dw, n == part * q->chunk && r == 0);
    }
  }
  plk_scratch_free(col);
  return s;
}

static PlStatus weight(Cols *q) {
  const PlkConv *v = q->v;
  const int64_t size = plk_conv_numel(v, PLK_CONV_W);
  const bool alone = q->multiply == plk_gemm_alone;
  const int64_t parts = alone ? plk_max64(1, plk_min64(plk_min64(PARTS, v->n), PART_ELEMENTS / size)) : 1;
  q->chunk = (v->n + parts - 1) / parts;
  q->nchunk = (v->n + q->chunk - 1) / q->chunk;
  void *mem = NULL;
  q->parts = v->w;
  if (q->nchunk > 1) {
    PL_TRY(plk_scratch((size_t)(q->nchunk * size) * q->esize, &mem));
    q->parts = mem;
  }
  PlStatus s = alone ? plk_parallel(q->nchunk * v->g, 1, weight_body, q) : weight_body(q, 0, q->nchunk * v->g);
  if (s == PL_OK && mem) s = plk_conv_join(v->dtype, v->w, mem, q->nchunk, size);
  plk_scratch_free(mem);
  return s;
}

PlStatus plk_conv_gemm(const PlkConv *v) {
  Cols q = cols_of(v);
  const int64_t units = v->n * v->g;
  const bool few = q.direct && units < PARTS; /* one product after the other, each on all threads */
  if (few) q.multiply = plk_gemm_run, q.step = q.nrow;
  if (v->kind == PLK_CONV_BWD_WEIGHT) return weight(&q);
  if (few) return v->kind == PLK_CONV_BWD_INPUT ? back_body(&q, 0, units) : forward_body(&q, 0, units);
  /* several small units a block, so that tiny convolutions stay on one thread */
  const double macs = plk_conv_macs(v) / (double)v->g;
  const int64_t block = macs >= 1 << 17 ? 1 : (int64_t)((1 << 17) / (macs + 64));
  if (v->kind == PLK_CONV_BWD_INPUT) return plk_parallel(units, block, back_body, &q);
  return plk_parallel(units * ((q.nrow + q.step - 1) / q.step), block, forward_body, &q);
}

/* ---- partial sums -------------------------------------------------------------------------------------- */

typedef struct Join {
  PlDtype dtype;
  void *out, *parts;
  int64_t n, size;
} Join;

/* Neighbours at distance 1, then 2, then 4, in place. */
static PlStatus join_body(void *ctx, int64_t begin, int64_t end) {
  const Join *q = ctx;
#define JOIN(T)                                                                \
  {                                                                            \
    T *p = q->parts;                                                           \
    for (int64_t d = 1; d < q->n; d *= 2)                                      \
      for (int64_t j = 0; j + d < q->n; j += 2 * d) {                          \
        T *a = p + j * q->size, *b = a + d * q->size;                          \
        for (int64_t i = begin; i < end; i++) a[i] += b[i];                    \
      }                                                                        \
    memcpy((T *)q->out + begin, p + begin, (size_t)(end - begin) * sizeof(T)); \
  }
  if (q->dtype == PL_F64) JOIN(double)
  else JOIN(float)
#undef JOIN
  return PL_OK;
}

PlStatus plk_conv_join(PlDtype dtype, void *out, void *parts, int64_t n, int64_t size) {
  Join q = {dtype, out, parts, n, size};
  return plk_parallel(size, PLK_GRAIN / 4, join_body, &q);
}
