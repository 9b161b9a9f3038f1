/* SPDX-License-Identifier: MIT
 * The loops of isa/batch_norm_columns.c for one type: T and SFX (f32 or f64) are given. Included twice, no guard. */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)

/* sum[c] = sum over rows of TERM, `at` being the element's place. */
#define COLUMN_SUM(sum, TERM)                                       \
  for (int64_t c = 0; c < cols; c++) (sum)[c] = 0;                  \
  for (int64_t r0 = 0; r0 < n; r0 += 32) {                          \
    T part[PLK_SOFT_COLS];                                          \
    const int64_t r1 = n - r0 < 32 ? n : r0 + 32;                   \
    for (int64_t c = 0; c < cols; c++) part[c] = 0;                 \
    for (int64_t r = r0; r < r1; r++)                               \
      for (int64_t c = 0; c < cols; c++) {                          \
        const int64_t at = r * ld + c;                              \
        part[c] += (TERM);                                          \
      }                                                             \
    for (int64_t c = 0; c < cols; c++) (sum)[c] += (double)part[c]; \
  }

static void FN(sum)(const T *x, int64_t ld, int64_t n, int64_t cols, double *PL_RESTRICT sum) { COLUMN_SUM(sum, x[at]) }

static void FN(sqdiff)(const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, double *PL_RESTRICT sum) {
  COLUMN_SUM(sum, (x[at] - m[c]) * (x[at] - m[c]))
}

/* s1 = sum dy, s2 = sum dy (x - m) */
static void FN(dots)(const T *dy, const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, double *PL_RESTRICT s1,
                     double *PL_RESTRICT s2) {
  COLUMN_SUM(s1, dy[at])
  COLUMN_SUM(s2, dy[at] * (x[at] - m[c]))
}

/* y = a (x - m) + c */
static void FN(affine)(const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, const T *a, const T *add, T *PL_RESTRICT y) {
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c++) y[r * ld + c] = a[c] * (x[r * ld + c] - m[c]) + add[c];
}

/* dx = a dy + b (x - m) + c */
static void FN(affine2)(const T *dy, const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, const T *a, const T *b, const T *add,
                        T *PL_RESTRICT dx) {
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c++) {
      const int64_t at = r * ld + c;
      dx[at] = a[c] * dy[at] + b[c] * (x[at] - m[c]) + add[c];
    }
}

#undef COLUMN_SUM
#undef FN
#undef CAT1
#undef CAT2
