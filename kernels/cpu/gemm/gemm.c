/* SPDX-License-Identifier: MIT
 * Cuts a matrix product into tiles by its shape alone, runs the tiles in parallel, each
 * by one library call on one thread, and finishes each tile (bias, relu) while it is in
 * cache. Where the output is one tile and K is long, K is cut into fixed parts that are
 * added in a fixed tree. */
#include "kernels/cpu/gemm/gemm.h"

#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/gemm/gemm_panels.h"
#include "kernels/cpu/onednn/onednn.h"
#include "kernels/cpu/onednn/onednn_matmul.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/cpu/sizes.h"

/* Multiply-adds below which one thread does all; a tile's upper limit between two polls
 * (about 20 ms); up to which our own kernel is as quick, so that no library need be
 * opened (oneDNN's first product costs 25 ms and 12 MB). */
enum { ALONE_MACS = 1 << 19, POLL_MACS = 1 << 30, PLAIN_MACS = 1 << 18 };

/* Rows from which on B is turned over once for all (2 N of them at least), measured with oneDNN: 0.76 to 0.98 of the time. */
enum { TURN_ROWS = 512 };

/* M * N * K, clamped: only compared with small limits. */
static int64_t macs(int64_t M, int64_t N, int64_t K) {
  int64_t r;
  if (__builtin_mul_overflow(M, N, &r) || __builtin_mul_overflow(r, K, &r)) return INT64_MAX;
  return r;
}

/* Bytes of an element of C. */
static int64_t c_size(const PlkGemm *g) { return g->c_f32 ? 4 : (int64_t)pl_dtype_size(g->dtype); }

/* C *= beta, for products without terms. */
static void scale(const PlkGemm *g) {
  for (int64_t i = 0; i < g->M; i++)
    for (int64_t j = 0; j < g->N; j++) {
      const int64_t at = i * g->ldc + j;
      if (g->dtype == PL_F64) ((double *)g->C)[at] = g->beta == 0 ? 0 : g->beta * ((double *)g->C)[at];
      else ((float *)g->C)[at] = g->beta == 0 ? 0 : (float)g->beta * ((float *)g->C)[at];
    }
}

/* C = relu(C + bias) in place; of bf16 the library adds the bias before it rounds. */
void plk_gemm_finish(const PlkGemm *g) {
  if (!g->bias && !g->relu) return;
  if (g->dtype == PL_BF16) {
    for (int64_t i = 0; i < g->M && g->relu; i++)
      for (int64_t j = 0; j < g->N; j++) {
        const int64_t at = i * g->ldc + j;
        if (g->c_f32) {
          float *c = (float *)g->C + at;
          *c = *c < 0 ? 0 : *c;
        } else if (plk_bf16_to_f32(((uint16_t *)g->C)[at]) < 0) ((uint16_t *)g->C)[at] = 0;
      }
    return;
  }
#define FINISH(T)                                                                    \
  for (int64_t i = 0; i < g->M; i++) {                                               \
    T *c = (T *)g->C + i * g->ldc;                                                   \
    const T *b = g->bias;                                                            \
    if (b)                                                                           \
      for (int64_t j = 0; j < g->N; j++) c[j] += b[j];                               \
    if (g->relu)                                                                     \
      for (int64_t j = 0; j < g->N; j++) c[j] = c[j] < 0 ? 0 : c[j]; /* keeps NaN */ \
  }
  if (g->dtype == PL_F64) {
    FINISH(double)
  } else {
    FINISH(float)
  }
#undef FINISH
}

/* Longer sums than this would keep Ctrl-C waiting, as the library does not poll. */
enum { BF16_MAX_K = 1 << 17 };

/* From how many multiply-adds on products of bf16 are worth the library: one by one, and many in one call. */
enum { BF16_MACS = 1 << 17, BF16_MACS_OF_MANY = 1 << 12 };

bool plk_gemm_bf16(int64_t M, int64_t N, int64_t K, int64_t batch, int64_t row) {
  const int64_t each = macs(M, N, K);
  if (K > BF16_MAX_K || M < 2 || N < 2 || each < (row >= 8 ? BF16_MACS_OF_MANY : BF16_MACS)) return false;
  return macs(each, batch, 1) > PLAIN_MACS && plk_onednn_bf16();
}

static const void *advance(const PlkGemm *g, const void *p, int64_t elements) {
  return (const char *)p + elements * (int64_t)pl_dtype_size(g->dtype);
}

/* n products, whose steps are those of g's last batch dim; one by one where the library takes them so alone. */
static PlStatus multiply_bf16(const PlkGemm *g, int64_t n) {
  const int last = g->nbatch - 1;
  const PlkBf16Key key = {.batch = n,
                          .sa = n > 1 ? g->astep[last] : 0,
                          .sb = n > 1 ? g->bstep[last] : 0,
                          .sc = n > 1 ? g->cstep : 0,
                          .m = g->M,
                          .n = g->N,
                          .k = g->K,
                          .lda = g->lda,
                          .ldb = g->ldb,
                          .ldc = g->ldc,
                          .ta = g->ta,
                          .tb = g->tb,
                          .c_f32 = g->c_f32,
                          .bias = !g->bias      ? PLK_BIAS_NONE
                                  : g->bias_f32 ? PLK_BIAS_F32
                                                : PLK_BIAS_BF16};
  PlkBf16Plan *plan;
  PL_TRY(plk_onednn_bf16_get(&key, &plan));
  if (!plan && n > 1) {
    PlkGemm one = *g;
    for (int64_t i = 0; i < n; i++) {
      PL_TRY(multiply_bf16(&one, 1));
      one.A = advance(g, one.A, g->astep[last]), one.B = advance(g, one.B, g->bstep[last]);
      one.C = (char *)one.C + g->cstep * c_size(g);
    }
    return PL_OK;
  }
  if (!plan)
    PL_FAIL(PL_ERR_UNSUPPORTED, "oneDNN has no product of bf16 matrices %lldx%lldx%lld", (long long)g->M, (long long)g->N, (long long)g->K);
  PlStatus s = plk_onednn_bf16_run(plan, g->A, g->B, g->bias, g->C);
  plk_onednn_bf16_put(plan);
  return s;
}

/* Which code multiplies: by shape alone. */
static PlStatus multiply(const PlkGemm *g) {
  if (macs(g->M, g->N, g->K) <= PLAIN_MACS) return plk_gemm_plain(g);
#ifdef PLK_HAVE_ONEDNN
  if (g->dtype == PL_F32 && plk_onednn_ready())
    return plk_onednn_sgemm(g->ta, g->tb, g->M, g->N, g->K, (float)g->alpha, g->A, g->lda, g->B, g->ldb, (float)g->beta, g->C, g->ldc);
#endif
  /* ahead of it only where we have no AVX2 or AVX-512 code */
  if (plk_isa()[1] != '4' && plk_isa()[1] != '3' && plk_openblas_ready()) return plk_openblas_gemm(g);
  return plk_gemm_plain(g);
}

PlStatus plk_gemm_alone(const PlkGemm *g) {
  if (g->M == 0 || g->N == 0) return PL_OK;
  if (g->widen) return plk_gemm_widened(g);
  if (g->K == 0) {
    scale(g);
  } else if (g->dtype == PL_BF16) {
    PL_TRY(multiply_bf16(g, 1));
  } else {
    /* One call as a rule; the long ones in pieces of K, so that Ctrl-C is heard. */
    const int64_t step =
        macs(g->M, g->N, g->K) <= POLL_MACS ? g->K : plk_min64(g->K, POLL_MACS / plk_min64(POLL_MACS / 64, macs(g->M, g->N, 1)));
    if (step == g->K) {
      PL_TRY(multiply(g));
      plk_gemm_finish(g);
      return PL_OK;
    }
    PlkGemm part = *g;
    for (int64_t k = 0; k < g->K; k += step) {
      part.K = plk_min64(step, g->K - k);
      part.A = advance(g, g->A, g->ta ? k * g->lda : k);
      part.B = advance(g, g->B, g->tb ? k : k * g->ldb);
      if (k > 0) {
        part.beta = 1;
        PL_TRY(plk_poll());
      }
      PL_TRY(multiply(&part));
    }
  }
  plk_gemm_finish(g);
  return PL_OK;
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

typedef struct Tiles {
  const PlkGemm *g;
  int64_t tm, tn, nm, nn; /* tile sizes and counts of one matrix */
  int64_t units;          /* of all matrices */
  int64_t row;            /* matrices in a row that go in one call: the last batch dim; 1: each by itself */
  bool down;              /* units go down the rows first */
} Tiles;

static int64_t batches(const PlkGemm *g) {
  int64_t n = 1;
  for (int i = 0; i < g->nbatch; i++) n *= g->batch[i];
  return n;
}

/* Tiles of about `most`: an eighth more rather than a sliver beside them. */
static int64_t tiles_along(int64_t n, int64_t most) { return plk_max64(1, n / most + (n % most > most / 8)); }

/* Large tiles pack less, small ones keep more cores busy; measured with oneDNN, 64×128 is
 * the smallest that loses little. The last row: two tiles are better than one idle core.
 */
static void cut(Tiles *t, const PlkGemm *g) {
  static const struct { int64_t tm, tn, enough; } size[] = {{256, 256, 16}, {128, 256, 8}, {128, 128, 8}, {64, 128, 2}, {64, 64, 1}};
  const int64_t nb = batches(g);
  t->g = g;
  t->tm = g->M, t->tn = g->N;
  /* a whole batch of small matrices is cut between them only */
  const bool whole = macs(g->M, g->N, g->K) < ALONE_MACS || (nb >= 8 && g->M <= 256 && g->N <= 256);
  for (size_t i = 0; !whole && i < sizeof size / sizeof *size; i++) {
    t->nm = tiles_along(g->M, size[i].tm), t->nn = tiles_along(g->N, size[i].tn);
    t->tm = plk_min64(g->M, plk_ceil_div(plk_ceil_div(g->M, t->nm), 8) * 8);
    t->tn = plk_min64(g->N, plk_ceil_div(plk_ceil_div(g->N, t->nn), 16) * 16);
    if (nb * t->nm * t->nn >= size[i].enough) break;
  }
  t->nm = plk_ceil_div(g->M, t->tm), t->nn = plk_ceil_div(g->N, t->tn);
  t->units = nb * t->nm * t->nn;
  /* Threads own runs of units: the smaller tiles of the last row, or column, are spread over all of them. */
  t->down = (t->nm * t->tm - g->M) * t->tn > (t->nn * t->tn - g->N) * t->tm;
  const int last = g->nbatch - 1;
  const bool many =
      g->dtype == PL_BF16 && !g->widen && g->K > 0 && t->nm * t->nn == 1 && last >= 0 && g->astep[last] > 0 && g->bstep[last] > 0;
  t->row = many ? g->batch[last] : 1;
}

static void batch_offsets(const PlkGemm *g, int64_t b, int64_t *a_at, int64_t *b_at) {
  *a_at = *b_at = 0;
  for (int i = g->nbatch - 1; i >= 0; i--) {
    const int64_t at = i ? b % g->batch[i] : b; /* divisions cost as much as the smallest products */
    if (i) b /= g->batch[i];
    *a_at += at * g->astep[i];
    *b_at += at * g->bstep[i];
  }
}

static PlStatus tile_body(void *ctx, int64_t begin, int64_t end) {
  const Tiles *t = ctx;
  const PlkGemm *g = t->g;
  const bool whole = t->nm * t->nn == 1;
  PlkGemm one = *g;
  for (int64_t u = begin; u < end; u++) {
    const int64_t b = whole ? u : u / (t->nm * t->nn), at = whole ? 0 : u - b * t->nm * t->nn;
    const int64_t i = (t->down ? at % t->nm : at / t->nn) * t->tm, j = (t->down ? at / t->nm : at % t->nn) * t->tn;
    int64_t a_at, b_at;
    batch_offsets(g, b, &a_at, &b_at);
    one.M = plk_min64(t->tm, g->M - i);
    one.N = plk_min64(t->tn, g->N - j);
    one.A = advance(g, g->A, a_at + (g->ta ? i : i * g->lda));
    one.B = advance(g, g->B, b_at + (g->tb ? j * g->ldb : j));
    one.C = (char *)g->C + (b * g->cstep + i * g->ldc + j) * c_size(g);
    if (g->bias) one.bias = (const char *)g->bias + j * (g->bias_f32 ? 4 : (int64_t)pl_dtype_size(g->dtype));
    if (t->row > 1 && !g->relu) {
      const int64_t n = plk_min64(end - u, t->row - u % t->row);
      PL_TRY(multiply_bf16(&one, n));
      u += n - 1;
      continue;
    }
    PL_TRY(plk_gemm_alone(&one));
  }
  return PL_OK;
}

/* ---- long K -------------------------------------------------------------------------------------------- */

typedef struct Parts {
  const PlkGemm *g;
  int64_t step, n;
  char *sum; /* n matrices M×N */
} Parts;

static PlStatus part_body(void *ctx, int64_t begin, int64_t end) {
  const Parts *p = ctx;
  const PlkGemm *g = p->g;
  for (int64_t u = begin; u < end; u++) {
    const int64_t k = u * p->step;
    PlkGemm one = *g;
    one.nbatch = 0;
    one.K = plk_min64(p->step, g->K - k);
    one.A = advance(g, g->A, g->ta ? k * g->lda : k);
    one.B = advance(g, g->B, g->tb ? k : k * g->ldb);
    one.c_f32 = g->dtype != PL_F64;
    one.C = p->sum + u * g->M * g->N * (g->dtype == PL_F64 ? 8 : 4);
    one.ldc = g->N;
    one.beta = 0;
    one.bias = NULL, one.relu = false;
    PL_TRY(plk_gemm_alone(&one));
  }
  return PL_OK;
}

static float half_to_f32(PlDtype d, uint16_t x) { return d == PL_F16 ? plk_f16_to_f32(x) : plk_bf16_to_f32(x); }

/* The same for products of halves, rounded once. */
static void parts_join_halves(const Parts *p) {
  const PlkGemm *g = p->g;
  const int64_t size = g->M * g->N;
  float *s = (float *)(void *)p->sum;
  for (int64_t d = 1; d < p->n; d *= 2)
    for (int64_t u = 0; u + d < p->n; u += 2 * d)
      for (int64_t i = 0; i < size; i++) s[u * size + i] += s[(u + d) * size + i];
  for (int64_t i = 0; i < g->M; i++)
    for (int64_t j = 0; j < g->N; j++) {
      float x = s[i * g->N + j];
      if (g->bias) x += g->bias_f32 ? ((const float *)g->bias)[j] : half_to_f32(g->dtype, ((const uint16_t *)g->bias)[j]);
      if (g->relu) x = x < 0 ? 0 : x;
      const int64_t at = i * g->ldc + j;
      if (g->c_f32) ((float *)g->C)[at] = x;
      else ((uint16_t *)g->C)[at] = g->dtype == PL_F16 ? plk_f32_to_f16(x) : plk_f32_to_bf16(x);
    }
}

/* Adds the parts pairwise at distance 1, 2, 4 …, then into C. */
static void parts_join(const Parts *p) {
  const PlkGemm *g = p->g;
  const int64_t size = g->M * g->N;
#define JOIN(T)                                                                      \
  {                                                                                  \
    T *s = (T *)p->sum, *c = g->C;                                                   \
    for (int64_t d = 1; d < p->n; d *= 2)                                            \
      for (int64_t u = 0; u + d < p->n; u += 2 * d)                                  \
        for (int64_t i = 0; i < size; i++) s[u * size + i] += s[(u + d) * size + i]; \
    const T beta = (T)g->beta;                                                       \
    for (int64_t i = 0; i < g->M; i++)                                               \
      for (int64_t j = 0; j < g->N; j++) {                                           \
        T *at = c + i * g->ldc + j, x = s[i * g->N + j];                             \
        *at = beta == 0 ? x : beta * *at + x;                                        \
      }                                                                              \
  }
  if (g->dtype == PL_F64) JOIN(double)
  else if (g->dtype == PL_F32) JOIN(float)
  else {
    parts_join_halves(p);
    return;
  }
#undef JOIN
  plk_gemm_finish(g);
}

static PlStatus run_parts(const PlkGemm *g, int64_t n) {
  Parts p = {g, plk_ceil_div(plk_ceil_div(g->K, n), 64) * 64, 0, NULL};
  p.n = plk_ceil_div(g->K, p.step);
  void *mem;
  PL_TRY(plk_scratch((size_t)(p.n * g->M * g->N) * (g->dtype == PL_F64 ? 8 : 4), &mem));
  p.sum = mem;
  PlStatus s = plk_parallel(p.n, 1, part_body, &p);
  if (s == PL_OK) parts_join(&p);
  plk_scratch_free(mem);
  return s;
}

/* B as [K][N], where many tiles would each turn their part of a Bᵀ over: the weight of a layer that few outputs leave. */
static PlStatus turn(PlkGemm *g, void **room) {
  const int64_t rows = g->M * batches(g);
  bool shared = g->tb && (g->dtype != PL_BF16 || g->widen) && rows >= 2 * g->N && rows >= TURN_ROWS && macs(rows, g->N, g->K) > PLAIN_MACS;
  for (int i = 0; i < g->nbatch; i++) shared = shared && (g->bstep[i] == 0 || g->batch[i] == 1);
  *room = NULL;
  if (!shared) return PL_OK;
  const size_t size = pl_dtype_size(g->dtype);
  PlkNd walk = {.n = 0};
  PL_TRY(plk_scratch((size_t)(g->K * g->N) * size, room));
  plk_nd_dim(&walk, g->K, g->N, 1);
  plk_nd_dim(&walk, g->N, 1, g->ldb);
  const PlStatus s = plk_nd_copy(*room, g->B, &walk, size);
  if (s != PL_OK) {
    plk_scratch_free(*room);
    return s;
  }
  g->B = *room, g->tb = false, g->ldb = g->N;
  return PL_OK;
}

static PlStatus run(const PlkGemm *g) {
  if (plk_gemm_panels_fits(g)) return plk_gemm_panels(g);
  Tiles t;
  cut(&t, g);
  const int64_t work = macs(g->M, g->N, g->K);
  if (t.units <= 2 && work >= 4 * ALONE_MACS && g->K >= 2048 && g->nbatch == 0) return run_parts(g, plk_min64(8, g->K / 512));
  if (t.units == 1) return tile_body(&t, 0, 1);
  const int64_t each = macs(t.tm, t.tn, g->K);
  enum { MANY_MACS = 1 << 22 }; /* calls of many products cost the more each, the fewer they are */
  const int64_t part = t.row > 1 ? MANY_MACS : ALONE_MACS, block = each >= part ? 1 : part / (each + 64);
  return plk_parallel(t.units, block, tile_body, &t);
}

PlStatus plk_gemm_run(const PlkGemm *g) {
  /* any other would be read as floats, past its end */
  if (g->dtype != PL_F32 && g->dtype != PL_F64 && g->dtype != PL_BF16 && !(g->dtype == PL_F16 && g->widen))
    PL_FAIL(PL_ERR_UNSUPPORTED, "matrix products of dtype %d are converted before they come here: a bug of perilune", (int)g->dtype);
  if (g->M == 0 || g->N == 0 || batches(g) == 0) return PL_OK;
  PlkGemm turned = *g;
  void *room;
  PL_TRY(turn(&turned, &room));
  const PlStatus s = run(&turned);
  plk_scratch_free(room);
  return s;
}

PlStatus plk_gemm_f64(bool ta, bool tb, int64_t M, int64_t N, int64_t K, double alpha, const double *A, int64_t lda, const double *B,
                      int64_t ldb, double beta, double *C, int64_t ldc) {
  const PlkGemm g = {.dtype = PL_F64,
                     .ta = ta,
                     .tb = tb,
                     .M = M,
                     .N = N,
                     .K = K,
                     .lda = lda,
                     .ldb = ldb,
                     .ldc = ldc,
                     .alpha = alpha,
                     .beta = beta,
                     .A = A,
                     .B = B,
                     .C = C};
  return plk_gemm_run(&g);
}
