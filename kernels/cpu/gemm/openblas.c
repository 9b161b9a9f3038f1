/* SPDX-License-Identifier: MIT
 * OpenBLAS behind dlsym, opened on first use like oneDNN. It always runs on the calling
 * thread: its own teams would make the bits depend on their size. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/library.h"

#ifndef PLK_HAVE_OPENBLAS

const char *plk_openblas_version(void) { return NULL; }
bool plk_openblas_ready(void) { return false; }
PlStatus plk_openblas_gemm(const PlkGemm *g) { return plk_gemm_plain(g); }

#else

#include <cblas.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Written once under `once`, read-only afterwards. */
static struct {
  __typeof__(&cblas_sgemm) sgemm;
  __typeof__(&cblas_dgemm) dgemm;
  bool ready;
} blas;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
  static const char *const names[] = {
#ifdef PLK_OPENBLAS_PATH
      PLK_OPENBLAS_PATH, /* the flavour that the configure step found */
#endif
      "libopenblas.so.0", NULL};
  void *h = NULL;
  for (int i = 0; names[i] && !h; i++) h = plk_openblas_open(names[i]);
  if (!h) return;
  *(void **)&blas.sgemm = dlsym(h, "cblas_sgemm");
  *(void **)&blas.dgemm = dlsym(h, "cblas_dgemm");
  int (*flavour)(void) = NULL;
  void (*threads)(int) = NULL;
  *(void **)&flavour = dlsym(h, "openblas_get_parallel");
  *(void **)&threads = dlsym(h, "openblas_set_num_threads");
  if (flavour && threads && flavour() == 1) threads(1); /* pthreads: a team of its own */
  blas.ready = blas.sgemm && blas.dgemm;
}

const char *plk_openblas_version(void) { return "OpenBLAS"; }

bool plk_openblas_ready(void) {
  pthread_once(&once, open_library);
  return blas.ready;
}

static void call(const PlkGemm *g) {
  const CBLAS_TRANSPOSE ta = g->ta ? CblasTrans : CblasNoTrans;
  const CBLAS_TRANSPOSE tb = g->tb ? CblasTrans : CblasNoTrans;
  const blasint M = (blasint)g->M, N = (blasint)g->N, K = (blasint)g->K;
  const blasint lda = (blasint)g->lda, ldb = (blasint)g->ldb, ldc = (blasint)g->ldc;
  if (g->dtype == PL_F64) blas.dgemm(CblasRowMajor, ta, tb, M, N, K, g->alpha, g->A, lda, g->B, ldb, g->beta, g->C, ldc);
  else blas.sgemm(CblasRowMajor, ta, tb, M, N, K, (float)g->alpha, g->A, lda, g->B, ldb, (float)g->beta, g->C, ldc);
}

PlStatus plk_openblas_gemm(const PlkGemm *g) {
  if (sizeof(blasint) == 4 &&
      (g->lda > INT_MAX || g->ldb > INT_MAX || g->ldc > INT_MAX || g->M > INT_MAX || g->N > INT_MAX || g->K > INT_MAX))
    return plk_gemm_plain(g);
#ifdef _OPENMP
  int n = omp_in_parallel() ? 0 : omp_get_max_threads();
  if (n > 1) omp_set_num_threads(1);
  call(g);
  if (n > 1) omp_set_num_threads(n);
#else
  call(g);
#endif
  return PL_OK;
}

#endif
