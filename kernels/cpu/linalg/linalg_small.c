/* SPDX-License-Identifier: MIT
 * Factors of matrices of up to PLK_LA_SMALL rows in double, where LAPACK's calls take longer than its arithmetic. The
 * algorithms, layouts and status numbers are LAPACK's (getrf, getri, getrs, potrf: columns one after the other, pivots
 * from 1); larger matrices go there. */
#include <math.h>

#include "kernels/cpu/linalg/linalg.h"

enum { PLK_LA_SMALL = 8 };

static bool is_small(const LaJob *job, LaInt n) { return n <= PLK_LA_SMALL && job->dtype == PL_F64; }

static void swap_rows(double *a, LaInt n, LaInt cols, LaInt i, LaInt p) {
  for (LaInt j = 0; j < cols; j++) {
    const double t = a[i + j * n];
    a[i + j * n] = a[p + j * n];
    a[p + j * n] = t;
  }
}

void plk_la_lu(const LaJob *job, LaInt n, void *lu, LaInt *pivots, LaInt *info) {
  double *a = lu;
  *info = 0;
  if (!is_small(job, n)) {
    job->lp->getrf(&n, &n, lu, &n, pivots, info);
    return;
  }
  for (LaInt j = 0; j < n; j++) {
    LaInt p = j;
    for (LaInt i = j + 1; i < n; i++)
      if (fabs(a[i + j * n]) > fabs(a[p + j * n])) p = i;
    pivots[j] = p + 1;
    if (a[p + j * n] == 0) {
      if (*info == 0) *info = j + 1;
      continue;
    }
    if (p != j) swap_rows(a, n, n, j, p);
    const double r = 1 / a[j + j * n];
    for (LaInt i = j + 1; i < n; i++) a[i + j * n] = isfinite(r) ? a[i + j * n] * r : a[i + j * n] / a[j + j * n];
    for (LaInt k = j + 1; k < n; k++)
      for (LaInt i = j + 1; i < n; i++) a[i + k * n] -= a[i + j * n] * a[j + k * n];
  }
}

/* a x = b by L (U x) = P b, one column of b after the other. */
static void solve_straight(const double *a, const LaInt *pivots, LaInt n, LaInt k, double *b) {
  for (LaInt i = 0; i < n; i++)
    if (pivots[i] != i + 1) swap_rows(b, n, k, i, pivots[i] - 1);
  for (LaInt c = 0; c < k; c++, b += n) {
    for (LaInt j = 0; j < n; j++)
      for (LaInt i = j + 1; i < n; i++) b[i] -= a[i + j * n] * b[j];
    for (LaInt j = n - 1; j >= 0; j--) {
      b[j] /= a[j + j * n];
      for (LaInt i = 0; i < j; i++) b[i] -= a[i + j * n] * b[j];
    }
  }
}

/* aᵀ x = b by Uᵀ (Lᵀ (P x)) = b */
static void solve_transposed(const double *a, const LaInt *pivots, LaInt n, LaInt k, double *first) {
  double *b = first;
  for (LaInt c = 0; c < k; c++, b += n) {
    for (LaInt j = 0; j < n; j++) {
      for (LaInt i = 0; i < j; i++) b[j] -= a[i + j * n] * b[i];
      b[j] /= a[j + j * n];
    }
    for (LaInt j = n - 1; j >= 0; j--)
      for (LaInt i = j + 1; i < n; i++) b[j] -= a[i + j * n] * b[i];
  }
  for (LaInt i = n - 1; i >= 0; i--)
    if (pivots[i] != i + 1) swap_rows(first, n, k, i, pivots[i] - 1);
}

void plk_la_lu_solve(const LaJob *job, bool transposed, LaInt n, LaInt k, const void *lu, const LaInt *pivots, void *b) {
  LaInt info = 0;
  if (!is_small(job, n)) job->lp->getrs(transposed ? "T" : "N", &n, &k, lu, &n, pivots, b, &n, &info, 1);
  else (transposed ? solve_transposed : solve_straight)(lu, pivots, n, k, b);
}

static inline void subtract(double *PL_RESTRICT to, double f, const double *PL_RESTRICT row, LaInt n) {
  for (LaInt c = 0; c < n; c++) to[c] -= f * row[c];
}

void plk_la_lu_inverse(const LaJob *job, LaInt n, void *lu, const LaInt *pivots, void *work, LaInt lwork, LaInt *info) {
  *info = 0;
  if (!is_small(job, n)) {
    job->lp->getri(&n, lu, &n, pivots, work, &lwork, info);
    return;
  }
  double x[PLK_LA_SMALL][PLK_LA_SMALL] = {{0}}, *a = lu; /* rows of L (U x) = P */
  LaInt from[PLK_LA_SMALL];
  for (LaInt i = 0; i < n; i++) from[i] = i;
  for (LaInt i = 0; i < n; i++) {
    const LaInt p = pivots[i] - 1, t = from[i];
    from[i] = from[p], from[p] = t;
  }
  for (LaInt i = 0; i < n; i++) x[i][from[i]] = 1;
  for (LaInt j = 0; j < n; j++)
    for (LaInt i = j + 1; i < n; i++) subtract(x[i], a[i + j * n], x[j], n);
  for (LaInt j = n - 1; j >= 0; j--) {
    const double r = 1 / a[j + j * n];
    for (LaInt c = 0; c < n; c++) x[j][c] *= r;
    for (LaInt i = 0; i < j; i++) subtract(x[i], a[i + j * n], x[j], n);
  }
  for (LaInt i = 0; i < n; i++)
    for (LaInt c = 0; c < n; c++) a[i + c * n] = x[i][c];
}

/* lower: L Lᵀ, else Uᵀ U; the other triangle stays. */
void plk_la_cholesky(const LaJob *job, bool lower, LaInt n, void *matrix, LaInt *info) {
  double *a = matrix;
  *info = 0;
  if (!is_small(job, n)) {
    job->lp->potrf(lower ? "L" : "U", &n, matrix, &n, info, 1);
    return;
  }
  const LaInt row = lower ? n : 1, col = lower ? 1 : n; /* of the upper factor */
  for (LaInt j = 0; j < n; j++) {
    double d = a[j * row + j * col];
    for (LaInt i = 0; i < j; i++) {
      double s = a[i * row + j * col];
      for (LaInt k = 0; k < i; k++) s -= a[k * row + i * col] * a[k * row + j * col];
      s /= a[i * row + i * col];
      a[i * row + j * col] = s;
      d -= s * s;
    }
    if (!(d > 0)) {
      *info = j + 1;
      return;
    }
    a[j * row + j * col] = sqrt(d);
  }
}
