/* SPDX-License-Identifier: MIT
 * The loops of isa/softmax_columns.c for one type: T, SFX (f32 or f64) and EXPF are given. Included twice, no guard.
 * Sums run in T over 32 rows, then in double. */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
enum { FN(FLUSH) = 32 };

/* sum[c] = sum over rows of TERM(c, at), `at` being the element's place. */
#define COLUMN_SUM(TERM)                                          \
  for (int64_t c = 0; c < cols; c++) sum[c] = 0;                  \
  for (int64_t r0 = 0; r0 < n; r0 += FN(FLUSH)) {                 \
    T part[PLK_SOFT_COLS];                                        \
    const int64_t r1 = n - r0 < FN(FLUSH) ? n : r0 + FN(FLUSH);   \
    for (int64_t c = 0; c < cols; c++) part[c] = 0;               \
    for (int64_t r = r0; r < r1; r++)                             \
      for (int64_t c = 0; c < cols; c++) {                        \
        const int64_t at = r * ld + c;                            \
        part[c] += (TERM);                                        \
      }                                                           \
    for (int64_t c = 0; c < cols; c++) sum[c] += (double)part[c]; \
  }

/* The largest number of each column; NaN is passed over, it comes back with exp(NaN - max). */
static void FN(largest)(const T *x, int64_t ld, int64_t n, int64_t cols, T *PL_RESTRICT max) {
  for (int64_t c = 0; c < cols; c++) max[c] = -(T)INFINITY;
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c++) max[c] = x[r * ld + c] > max[c] ? x[r * ld + c] : max[c];
}

/* max x, and sum exp(x - max); the max of columns with infinite ones counts as 0. */
static void FN(lse)(const T *x, int64_t ld, int64_t n, int64_t cols, T *PL_RESTRICT max, double *PL_RESTRICT sum) {
  FN(largest)(x, ld, n, cols, max);
  for (int64_t c = 0; c < cols; c++) max[c] = max[c] - max[c] == 0 ? max[c] : 0;
  COLUMN_SUM(EXPF(x[at] - max[c]))
}

static void FN(join)(const T *PL_RESTRICT max, const double *PL_RESTRICT sum, int64_t cols, double *PL_RESTRICT lse) {
  for (int64_t c = 0; c < cols; c++) lse[c] = (double)max[c] + vm_log_f64(sum[c]);
}

/* y = exp(x - max) / sum, or x - max - log(sum). Columns of -inf alone give NaN, as 0/0 does. */
static void FN(forward)(const T *x, T *PL_RESTRICT y, int64_t ld, int64_t n, int64_t cols, bool log_too) {
  T max[PLK_SOFT_COLS], by[PLK_SOFT_COLS];
  double sum[PLK_SOFT_COLS];
  FN(largest)(x, ld, n, cols, max);
  if (log_too) {
    COLUMN_SUM(EXPF(x[at] - max[c]))
    for (int64_t c = 0; c < cols; c++) by[c] = (T)vm_log_f64(sum[c]);
    for (int64_t r = 0; r < n; r++)
      for (int64_t c = 0; c < cols; c++) y[r * ld + c] = x[r * ld + c] - max[c] - by[c];
    return;
  }
  COLUMN_SUM(y[at] = EXPF(x[at] - max[c]))
  for (int64_t c = 0; c < cols; c++) by[c] = (T)(1 / sum[c]);
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c++) y[r * ld + c] *= by[c];
}

/* dx = y (dy - sum(y dy)), or dy - exp(y) sum(dy). */
static void FN(backward)(const T *dy, const T *y, T *PL_RESTRICT dx, int64_t ld, int64_t n, int64_t cols, bool log_too) {
  T s[PLK_SOFT_COLS], own[PLK_SOFT_COLS];
  double sum[PLK_SOFT_COLS];
  if (log_too) {
    COLUMN_SUM(dy[at])
  } else { /* as softmax_bwd of rows */
    for (int64_t c = 0; c < cols; c++) own[c] = 0;
    for (int64_t r = 0; r < n; r++)
      for (int64_t c = 0; c < cols; c++) own[c] = y[r * ld + c] > (T)0.5 ? dy[r * ld + c] : own[c];
    COLUMN_SUM((dy[at] - own[c]) * y[at])
  }
  for (int64_t c = 0; c < cols; c++) s[c] = (T)sum[c];
  if (log_too) { /* as log_softmax_bwd of rows */
    T rest[PLK_SOFT_COLS], likely[PLK_SOFT_COLS];
    for (int64_t c = 0; c < cols; c++) rest[c] = own[c] = 0, likely[c] = -1;
    for (int64_t r = 0; r < n; r++)
      for (int64_t c = 0; c < cols; c++) {
        const T l = y[r * ld + c], d = dy[r * ld + c], e = EXPF(l);
        rest[c] += l > (T)-0.6875 ? 0 : e;
        own[c] = l > (T)-0.6875 ? d - s[c] : own[c];
        likely[c] = l > (T)-0.6875 ? (T)r : likely[c];
        dx[r * ld + c] = d - e * s[c];
      }
    for (int64_t c = 0; n < 1 << 24 && c < cols; c++)
      if (likely[c] >= 0) dx[(int64_t)likely[c] * ld + c] = own[c] + rest[c] * s[c];
  } else
    for (int64_t r = 0; r < n; r++)
      for (int64_t c = 0; c < cols; c++) dx[r * ld + c] = y[r * ld + c] * (dy[r * ld + c] - own[c] - s[c]);
}

/* forward with the tangent t = v - sum(v e) / sum(e), or y (v - sum(v y)). */
static void FN(dual)(const T *x, const T *v, T *PL_RESTRICT y, T *PL_RESTRICT t, int64_t ld, int64_t n, int64_t cols, bool log_too) {
  T max[PLK_SOFT_COLS], by[PLK_SOFT_COLS], mean[PLK_SOFT_COLS], own[PLK_SOFT_COLS];
  double sum[PLK_SOFT_COLS], dot[PLK_SOFT_COLS];
  if (!log_too) {
    FN(forward)(x, y, ld, n, cols, false);
    FN(backward)(v, y, t, ld, n, cols, false);
    return;
  }
  FN(largest)(x, ld, n, cols, max);
  for (int64_t c = 0; c < cols; c++) sum[c] = dot[c] = 0;
  for (int64_t r0 = 0; r0 < n; r0 += FN(FLUSH)) {
    T part[PLK_SOFT_COLS], with[PLK_SOFT_COLS];
    const int64_t r1 = n - r0 < FN(FLUSH) ? n : r0 + FN(FLUSH);
    for (int64_t c = 0; c < cols; c++) part[c] = with[c] = 0;
    for (int64_t r = r0; r < r1; r++)
      for (int64_t c = 0; c < cols; c++) {
        const T e = EXPF(x[r * ld + c] - max[c]);
        part[c] += e;
        with[c] += e * v[r * ld + c];
      }
    for (int64_t c = 0; c < cols; c++) sum[c] += (double)part[c], dot[c] += (double)with[c];
  }
  for (int64_t c = 0; c < cols; c++) {
    by[c] = (T)vm_log_f64(sum[c]), mean[c] = (T)(dot[c] / sum[c]), own[c] = 0;
    if (!(sum[c] < 2)) continue;
    int64_t top = 0; /* as log_softmax_dual of rows */
    while (x[top * ld + c] != max[c]) top++;
    own[c] = v[top * ld + c], dot[c] = 0;
    for (int64_t r = 0; r < n; r++) dot[c] += (double)(EXPF(x[r * ld + c] - max[c]) * (v[r * ld + c] - own[c]));
    mean[c] = (T)(dot[c] / sum[c]);
  }
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c++) {
      y[r * ld + c] = x[r * ld + c] - max[c] - by[c];
      t[r * ld + c] = v[r * ld + c] - own[c] - mean[c];
    }
}

static void FN(exp)(const T *x, T *PL_RESTRICT y, int64_t ld, int64_t n, int64_t cols, const T *PL_RESTRICT m, const T *PL_RESTRICT a,
                    T *PL_RESTRICT small) {
  for (int64_t c = 0; c < cols; c++) small[c] = 0;
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c++) {
      const T e = EXPF(x[r * ld + c] - m[c]);
      small[c] += e > (T)0.5 ? 0 : e;
      y[r * ld + c] = a[c] * e;
    }
}

#undef COLUMN_SUM
#undef FN
#undef CAT1
#undef CAT2
