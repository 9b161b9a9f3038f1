/* SPDX-License-Identifier: MIT
 * A matrix times one or a few vectors: cut by shape alone into blocks of rows and of terms; where sums are cut, their parts are
 * kept in double and added as a tree. The matrix is read where it lies, the vectors are first made dense, and of halves f32. */
#include "kernels/cpu/gemm/matvec.h"

#include "kernels/convert.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/shape/strided_copy.h"

PLK_ISA_DECLARE(const PlkMatvecTable, plk_matvec_table);

/* Terms of a block; elements of a matrix and its terms from which on several vectors are taken together. */
enum { TERMS = 1 << 14, LARGE = 1 << 16, FEW_TERMS = 64 };

/* y[n] of each of `few` vectors = sum over k of x[k] times a, whose rows run along k (dots) or along y. */
typedef struct Product {
  const PlkGemm *g;
  const PlkMatvecLoops *loops;
  const char *a, *x;
  bool by_b; /* the vectors are columns of B, not rows of A */
  bool dots;
  int few;                                            /* vectors, ldx apart */
  int64_t along, across;                              /* steps in C along y and from vector to vector */
  int64_t n, k, lda, ldx, nblock, kblock, ncut, kcut; /* sizes and numbers of blocks */
  size_t size, xsize;                                 /* bytes of an element of a, of x */
  double *part;                                       /* [kcut][few][n]; NULL: sums are not cut, blocks finish their own */
} Product;

static int64_t batches(const PlkGemm *g) {
  int64_t n = 1;
  for (int i = 0; i < g->nbatch; i++) n *= g->batch[i];
  return n;
}

/* Vectors at most: more are slower than a tiled product, measured with oneDNN, which multiplies bf16 itself where the
 * processor does, and to which f16 must be widened first. */
static int64_t few_vectors(const PlkGemm *g) {
  const bool half = g->dtype == PL_F16 || g->dtype == PL_BF16, dots = g->N < g->M ? !g->ta : g->tb;
  if (g->dtype == PL_BF16 && plk_gemm_bf16(g->M, g->N, g->K, 1, 1)) return 12;
  if (plk_isa()[1] == '4') return dots ? 32 : half ? 24 : 6;
  return dots && !half ? 8 : 4;
}

/* A batch of single rows may also come as one product of all of them: so it is none of ours either way. */
bool plk_matvec_fits(const PlkGemm *g) {
  if (g->alpha != 1 || g->beta != 0 || g->K < 1 || g->M < 1 || g->N < 1 || g->c_f32) return false;
  if (g->N == 1) return true;
  if (batches(g) != 1) return false;
  if (g->M == 1) return true;
  return plk_min64(g->M, g->N) <= few_vectors(g) && g->K >= FEW_TERMS && plk_max64(g->M, g->N) >= LARGE / g->K;
}

/* y = relu(sum + bias) for n results of vector f from i0 on. */
static void finish(const Product *p, const double *sum, int f, int64_t i0, int64_t n) {
  const PlkGemm *g = p->g;
  const int64_t c0 = i0 * p->along + f * p->across;
#define FINISH(T, E, READ, MAKE)                                           \
  {                                                                        \
    E *c = (E *)g->C + c0;                                                 \
    const E *b = g->bias ? (const E *)g->bias + (p->by_b ? f : i0) : NULL; \
    for (int64_t i = 0; i < n; i++) {                                      \
      T v = (T)sum[i];                                                     \
      if (b) v += READ(b[p->by_b ? 0 : i]);                                \
      c[i * p->along] = MAKE(g->relu && v < 0 ? 0 : v); /* keeps NaN */    \
    }                                                                      \
    break;                                                                 \
  }
  switch (g->dtype) {
  case PL_F64: FINISH(double, double, , )
  case PL_F16: FINISH(float, uint16_t, plk_f16_to_f32, plk_f32_to_f16)
  case PL_BF16: FINISH(float, uint16_t, plk_bf16_to_f32, plk_f32_to_bf16)
  default: FINISH(float, float, , )
  }
#undef FINISH
}

static PlStatus body(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const PlkMatvecLoops *l = p->loops;
  double own[PLK_MATVEC_ROOM];
  for (int64_t i = begin; i < end; i++) {
    const int64_t n0 = i % p->ncut * p->nblock, k0 = i / p->ncut * p->kblock;
    const int64_t n = plk_min64(p->nblock, p->n - n0), k = plk_min64(p->kblock, p->k - k0);
    const void *a = p->a + (p->dots ? n0 * p->lda + k0 : k0 * p->lda + n0) * (int64_t)p->size, *x = p->x + k0 * (int64_t)p->xsize;
    double *y = p->part ? p->part + i / p->ncut * p->few * p->n + n0 : own;
    const int64_t ldy = p->part ? p->n : n;
    if (p->dots && p->few == 1) l->dots(a, p->lda, x, n, k, y);
    else if (p->dots) l->dots_few(a, p->lda, x, p->ldx, p->few, n, k, y, ldy);
    else if (p->few == 1) l->weigh(a, p->lda, x, k, n, y);
    else l->weigh_few(a, p->lda, x, p->ldx, p->few, k, n, y, ldy);
    for (int f = 0; f < p->few && !p->part; f++) finish(p, own + f * n, f, n0, n);
    PL_TRY(plk_poll());
  }
  return PL_OK;
}

static double tree(const double *part, int64_t step, int64_t n) {
  if (n == 1) return *part;
  return tree(part, step, n / 2) + tree(part + n / 2 * step, step, n - n / 2);
}

static void join(const Product *p) {
  const int64_t step = p->few * p->n;
  for (int f = 0; f < p->few; f++)
    for (int64_t i = 0; i < p->n; i++) {
      const double sum = tree(p->part + f * p->n + i, step, p->kcut);
      finish(p, &sum, f, i, 1);
    }
}

/* The vectors one after the other, in the dtype that is computed in. */
static PlStatus dense(Product *p, int64_t term, int64_t vector, void **room) {
  const PlDtype from = p->g->dtype, to = from == PL_F64 ? PL_F64 : PL_F32;
  p->ldx = vector;
  if (term == 1 && from == to) return PL_OK;
  PlkNd walk = {.n = 0};
  plk_nd_dim(&walk, p->few, p->k, vector);
  plk_nd_dim(&walk, p->k, 1, term);
  PL_TRY(plk_scratch((size_t)(p->few * p->k) * p->xsize, room));
  PlStatus s = plk_nd_cast(*room, to, p->x, from, &walk);
  p->x = *room, p->ldx = p->k;
  return s;
}

/* Blocks of rows that a call's room holds and that are worth a job; of columns so that there are some for several threads. */
static void cut(Product *p) {
  const int64_t room = PLK_MATVEC_ROOM / p->few;
  p->kblock = TERMS;
  p->kcut = (p->k + p->kblock - 1) / p->kblock;
  const int64_t k = plk_min64(p->k, p->kblock);
  if (p->dots) p->nblock = plk_min64(room, 2 * PLK_GRAIN / k / 4 * 4 + 4);
  else p->nblock = plk_min64(plk_min64(room, PLK_MATVEC_COLS), plk_max64(256, p->n / 8 / 64 * 64));
  p->ncut = (p->n + p->nblock - 1) / p->nblock;
}

static PlStatus run(const PlkGemm *g) {
  Product p = {.g = g, .k = g->K, .size = pl_dtype_size(g->dtype), .xsize = g->dtype == PL_F64 ? 8 : 4};
  p.loops = &PLK_ISA_PICK(plk_matvec_table).of[g->dtype];
  p.by_b = g->N == 1 || (g->M > 1 && g->N < g->M);
  int64_t term, vector;
  if (p.by_b) {
    p.a = g->A, p.x = g->B, p.lda = g->lda, p.n = g->M, p.dots = !g->ta, p.few = (int)g->N;
    p.along = g->ldc, p.across = 1;
    term = g->tb ? 1 : g->ldb, vector = g->tb ? g->ldb : 1;
  } else {
    p.a = g->B, p.x = g->A, p.lda = g->ldb, p.n = g->N, p.dots = g->tb, p.few = (int)g->M;
    p.along = 1, p.across = g->ldc;
    term = g->ta ? g->lda : 1, vector = g->ta ? 1 : g->lda;
  }
  cut(&p);
  void *parts = NULL, *vectors = NULL;
  PlStatus s = dense(&p, term, vector, &vectors);
  if (s == PL_OK && p.kcut > 1) s = plk_scratch((size_t)(p.few * p.n * p.kcut) * sizeof(double), &parts);
  p.part = parts;
  const int64_t blocks = p.ncut * p.kcut, k = plk_min64(p.k, p.kblock);
  const int64_t each = 2 * PLK_GRAIN / (k * p.few * plk_min64(p.n, p.nblock)) + 1; /* blocks of one job */
  if (s == PL_OK) s = blocks <= each ? body(&p, 0, blocks) : plk_parallel(blocks, each, body, &p);
  if (s == PL_OK && p.part) join(&p);
  plk_scratch_free(parts);
  plk_scratch_free(vectors);
  return s;
}

static PlStatus batch_body(void *ctx, int64_t begin, int64_t end) {
  const PlkGemm *g = ctx;
  const int64_t size = (int64_t)pl_dtype_size(g->dtype);
  for (int64_t i = begin; i < end; i++) {
    PlkGemm one = *g;
    int64_t a = 0, b = 0, rest = i;
    for (int d = g->nbatch - 1; d >= 0; d--) {
      a += rest % g->batch[d] * g->astep[d], b += rest % g->batch[d] * g->bstep[d];
      rest /= g->batch[d];
    }
    one.nbatch = 0;
    one.A = (const char *)g->A + a * size, one.B = (const char *)g->B + b * size, one.C = (char *)g->C + i * g->cstep * size;
    PL_TRY(run(&one));
  }
  return PL_OK;
}

PlStatus plk_matvec_run(const PlkGemm *g) {
  const int64_t n = batches(g);
  if (n <= 1) return n == 1 ? run(g) : PL_OK;
  PlkGemm all = *g;
  return plk_parallel(n, PLK_GRAIN / (g->M * g->K) + 1, batch_body, &all);
}
