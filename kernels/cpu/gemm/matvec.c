/* SPDX-License-Identifier: MIT
 * A matrix times a vector: cut by shape alone into blocks of rows and of terms; where sums are cut, their parts are kept
 * in double and added as a tree. */
#include "kernels/cpu/gemm/matvec.h"

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/shape/strided_copy.h"

PLK_ISA_DECLARE(const PlkMatvecLoops, plk_matvec_table);

enum { TERMS = 1 << 14, FEW = 512 };

/* y[n] = sum over k of x[k] times a, whose rows run along k (dots) or along y. */
typedef struct Product {
  const PlkGemm *g;
  const void *a, *x;
  bool dots;
  int64_t n, k, lda, nblock, kblock, ncut, kcut; /* sizes and numbers of blocks */
  double *part;                                  /* [kcut][n] */
} Product;

static int64_t batches(const PlkGemm *g) {
  int64_t n = 1;
  for (int i = 0; i < g->nbatch; i++) n *= g->batch[i];
  return n;
}

/* A batch of single rows may also come as one product of all of them: so it is none of ours either way. */
bool plk_matvec_fits(const PlkGemm *g) {
  if (g->alpha != 1 || g->beta != 0 || (g->dtype != PL_F32 && g->dtype != PL_F64) || g->K < 1) return false;
  if (g->N == 1) return g->M > 0 && g->ldc == 1;
  return g->M == 1 && g->N > 0 && batches(g) == 1;
}

static const void *advance(const Product *p, const void *v, int64_t elements) {
  return (const char *)v + elements * (int64_t)pl_dtype_size(p->g->dtype);
}

static PlStatus body(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const PlkMatvecLoops *l = &PLK_ISA_PICK(plk_matvec_table);
  const bool f64 = p->g->dtype == PL_F64;
  for (int64_t i = begin; i < end; i++) {
    const int64_t n0 = i % p->ncut * p->nblock, k0 = i / p->ncut * p->kblock;
    const int64_t n = plk_min64(p->nblock, p->n - n0), k = plk_min64(p->kblock, p->k - k0);
    const void *a = advance(p, p->a, p->dots ? n0 * p->lda + k0 : k0 * p->lda + n0), *x = advance(p, p->x, k0);
    double *y = p->part + i / p->ncut * p->n + n0;
    if (p->dots && f64) l->dots_f64(a, p->lda, x, n, k, y);
    else if (p->dots) l->dots_f32(a, p->lda, x, n, k, y);
    else if (f64) l->weigh_f64(a, p->lda, x, k, n, y);
    else l->weigh_f32(a, p->lda, x, k, n, y);
  }
  return PL_OK;
}

static double tree(const double *part, int64_t step, int64_t n) {
  if (n == 1) return *part;
  return tree(part, step, n / 2) + tree(part + n / 2 * step, step, n - n / 2);
}

/* C = relu(sum + bias) */
static void finish(const Product *p) {
  const PlkGemm *g = p->g;
  for (int64_t i = 0; i < p->n; i++) {
    const int64_t b = g->N == 1 ? 0 : i;
    const double sum = p->kcut == 1 ? p->part[i] : tree(p->part + i, p->n, p->kcut);
    if (g->dtype == PL_F64) {
      double v = g->bias ? sum + ((const double *)g->bias)[b] : sum;
      ((double *)g->C)[i] = g->relu && v < 0 ? 0 : v; /* keeps NaN */
    } else {
      float v = g->bias ? (float)sum + ((const float *)g->bias)[b] : (float)sum;
      ((float *)g->C)[i] = g->relu && v < 0 ? 0 : v;
    }
  }
}

/* The vector in one piece. */
static PlStatus dense(Product *p, int64_t step, void **vector) {
  const size_t size = pl_dtype_size(p->g->dtype);
  PlkNd walk = {.n = 0};
  plk_nd_dim(&walk, p->k, 1, step);
  PL_TRY(plk_scratch((size_t)p->k * size, vector));
  PlStatus s = plk_nd_copy(*vector, p->x, &walk, size);
  if (s != PL_OK) plk_scratch_free(*vector);
  p->x = *vector;
  return s;
}

static PlStatus run(const PlkGemm *g) {
  Product p = {.g = g, .k = g->K};
  if (g->N == 1) p.a = g->A, p.x = g->B, p.lda = g->lda, p.n = g->M, p.dots = !g->ta;
  else p.a = g->B, p.x = g->A, p.lda = g->ldb, p.n = g->N, p.dots = g->tb;
  p.kblock = TERMS;
  p.kcut = (p.k + p.kblock - 1) / p.kblock;
  const int64_t k = plk_min64(p.k, p.kblock);
  p.nblock = p.dots ? 2 * PLK_GRAIN / k + 1 : PLK_MATVEC_COLS;
  p.ncut = (p.n + p.nblock - 1) / p.nblock;
  double few[FEW];
  void *heap = NULL, *vector = NULL;
  const int64_t step = g->N == 1 ? (g->tb ? 1 : g->ldb) : g->ta ? g->lda : 1;
  if (step != 1) PL_TRY(dense(&p, step, &vector));
  PlStatus s = p.n > FEW / p.kcut ? plk_scratch((size_t)(p.n * p.kcut) * sizeof(double), &heap) : PL_OK;
  p.part = heap ? heap : few;
  const int64_t blocks = p.ncut * p.kcut;
  const int64_t each = 2 * PLK_GRAIN / (k * plk_min64(p.n, p.nblock)) + 1; /* blocks of one job */
  if (s == PL_OK) s = blocks <= each ? body(&p, 0, blocks) : plk_parallel(blocks, each, body, &p);
  if (s == PL_OK) finish(&p);
  plk_scratch_free(heap);
  plk_scratch_free(vector);
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
