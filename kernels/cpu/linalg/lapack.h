/* SPDX-License-Identifier: MIT
 * LAPACK's Fortran routines behind dlsym, opened on first use. Matrices are column-major. The pointers of both
 * precisions have one type: data is void *. Character arguments are followed, at the end, by their lengths, as
 * gfortran passes them. */
#ifndef PL_KERNELS_CPU_LINALG_LAPACK_H
#define PL_KERNELS_CPU_LINALG_LAPACK_H

#include "kernels/kernel.h"

typedef int32_t LaInt; /* Debian's LAPACK counts in 32 bits */

typedef struct PlkLapack {
  void (*getrf)(const LaInt *m, const LaInt *n, void *a, const LaInt *lda, LaInt *ipiv, LaInt *info);
  void (*getri)(const LaInt *n, void *a, const LaInt *lda, const LaInt *ipiv, void *work, const LaInt *lwork, LaInt *info);
  void (*getrs)(const char *trans, const LaInt *n, const LaInt *nrhs, const void *a, const LaInt *lda, const LaInt *ipiv, void *b,
                const LaInt *ldb, LaInt *info, size_t);
  void (*trsm)(const char *side, const char *uplo, const char *trans, const char *diag, const LaInt *m, const LaInt *n, const void *alpha,
               const void *a, const LaInt *lda, void *b, const LaInt *ldb, size_t, size_t, size_t, size_t);
  void (*potrf)(const char *uplo, const LaInt *n, void *a, const LaInt *lda, LaInt *info, size_t);
  void (*pstrf)(const char *uplo, const LaInt *n, void *a, const LaInt *lda, LaInt *piv, LaInt *rank, const void *tol, void *work,
                LaInt *info, size_t);
  void (*gelqf)(const LaInt *m, const LaInt *n, void *a, const LaInt *lda, void *tau, void *work, const LaInt *lwork, LaInt *info);
  void (*orglq)(const LaInt *m, const LaInt *n, const LaInt *k, void *a, const LaInt *lda, const void *tau, void *work, const LaInt *lwork,
                LaInt *info);
  void (*gesdd)(const char *jobz, const LaInt *m, const LaInt *n, void *a, const LaInt *lda, void *s, void *u, const LaInt *ldu, void *vt,
                const LaInt *ldvt, void *work, const LaInt *lwork, LaInt *iwork, LaInt *info, size_t);
  void (*syevd)(const char *jobz, const char *uplo, const LaInt *n, void *a, const LaInt *lda, void *w, void *work, const LaInt *lwork,
                LaInt *iwork, const LaInt *liwork, LaInt *info, size_t, size_t);
  void (*geev)(const char *jobvl, const char *jobvr, const LaInt *n, void *a, const LaInt *lda, void *wr, void *wi, void *vl,
               const LaInt *ldvl, void *vr, const LaInt *ldvr, void *work, const LaInt *lwork, LaInt *info, size_t, size_t);
} PlkLapack;

/* The routines for dtype (f32 or f64), or one failure that names `op` and the package to install. */
PlStatus plk_lapack_get(const char *op, PlDtype dtype, const PlkLapack **out);
/* Around calls: the library runs on the calling thread alone, so that bits do not depend on teams. */
int plk_lapack_enter(void);
void plk_lapack_leave(int state);

#endif
