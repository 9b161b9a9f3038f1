/* SPDX-License-Identifier: MIT
 * exp of square matrices by scaling and squaring: exp(A) = T(A / 2^s)^(2^s), with T the Taylor polynomial of
 * degree 16 in three blocks of A⁴ (Paterson, Stockmeyer 1973). With |A/2^s|₁ ≤ 0.75 its rest is below
 * 0.75^17 / 17! ≈ 2e-17. All in f64. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/linalg/linalg.h"
#include "kernels/linalg.h"

enum { DEGREE = 16 };

static PlStatus mul(int64_t n, const double *a, const double *b, double *c) {
  PL_TRY(plk_poll());
  return plk_gemm_f64(false, false, n, n, n, 1, a, n, b, n, 0, c, n);
}

/* c[0] I + c[1] A + c[2] A² + c[3] A³, added to y. */
static void add_block(int64_t n, double *y, double *const *pw, const double *c) {
  for (int64_t i = 0; i < n * n; i++) y[i] += c[1] * pw[1][i] + c[2] * pw[2][i] + c[3] * pw[3][i];
  for (int64_t i = 0; i < n; i++) y[i * n + i] += c[0];
}

/* pw[1] holds A; pw[2 … 4] are room for powers, y and t for the result. The result is left in *y. */
static PlStatus taylor(int64_t n, double *const *pw, double **y, double **t) {
  double c[DEGREE + 1] = {1};
  for (int i = 1; i <= DEGREE; i++) c[i] = c[i - 1] / i;
  PL_TRY(mul(n, pw[1], pw[1], pw[2]));
  PL_TRY(mul(n, pw[2], pw[1], pw[3]));
  PL_TRY(mul(n, pw[2], pw[2], pw[4]));
  for (int64_t i = 0; i < n * n; i++) (*y)[i] = c[16] * pw[4][i];
  add_block(n, *y, pw, c + 12);
  for (int block = 8; block >= 0; block -= 4) {
    PL_TRY(mul(n, *y, pw[4], *t));
    double *swap = *y;
    *y = *t, *t = swap;
    add_block(n, *y, pw, c + block);
  }
  return PL_OK;
}

static PlStatus exp_one(const PlkCall *call, int64_t b, double *mem) {
  const PlArray *x = call->in[0];
  const int64_t n = plk_la_cols(x), rs = x->strides[x->ndim - 2], cs = x->strides[x->ndim - 1];
  const void *src = plk_la_at(x, b, 2);
  double *pw[5] = {NULL, mem, mem + n * n, mem + 2 * n * n, mem + 3 * n * n};
  double *y = mem + 4 * n * n, *t = mem + 5 * n * n, norm = 0;
  for (int64_t j = 0; j < n; j++) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
      const double v = la_get(src, (PlDtype)x->dtype, i * rs + j * cs);
      pw[1][i * n + j] = v;
      sum += fabs(v);
    }
    if (!(sum <= norm)) norm = sum; /* NaN stays */
  }
  if (!(norm < (double)INFINITY)) {
    plk_la_fill(call->out[0], b, (double)NAN, (double)NAN);
    return PL_OK;
  }
  int s = 0;
  if (norm > 0.75) {
    (void)frexp(norm / 0.75, &s);
    for (int64_t i = 0; i < n * n; i++) pw[1][i] = ldexp(pw[1][i], -s);
  }
  PL_TRY(taylor(n, pw, &y, &t));
  for (; s > 0; s--) {
    PL_TRY(mul(n, y, y, t));
    double *swap = y;
    y = t, t = swap;
  }
  PlArray *out = call->out[0];
  void *dst = plk_la_at(out, b, 2);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      la_set(dst, (PlDtype)out->dtype, i * out->strides[out->ndim - 2] + j * out->strides[out->ndim - 1], y[i * n + j]);
  return PL_OK;
}

PlStatus plk_cpu_matrix_exp(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const int64_t n = plk_la_cols(x);
  void *mem;
  size_t bytes;
  if (x->numel == 0) return PL_OK;
  if (__builtin_mul_overflow((size_t)n * (size_t)n, 6 * sizeof(double), &bytes))
    PL_FAIL(PL_ERR_OOM, "%s: the matrix is too large", call->name);
  PL_TRY(plk_scratch(bytes, &mem));
  PlStatus s = PL_OK;
  for (int64_t b = 0; b < x->numel / (n * n) && s == PL_OK; b++) s = exp_one(call, b, mem);
  plk_scratch_free(mem);
  return s;
}
