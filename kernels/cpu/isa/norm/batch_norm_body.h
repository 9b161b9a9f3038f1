/* SPDX-License-Identifier: MIT
 * The loops of isa/batch_norm.c for one type: T and SFX (f32 or f64) are given. Included twice, no guard. Sums run
 * in four vectors of lanes across the runs and go to double after every 4096 numbers or more. */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkV, SFX)
#define L          CAT1(PLK_N, SFX)
#define LSUM       CAT1(plk_lanes_sum, SFX)
#define TAIL       CAT1(plk_tail, SFX)
#define AT(p, i)   (*(const V *)((p) + (i)))
enum { FN(CHUNK) = 4096 };

/* For each chunk of each run of x and y: WHOLE(j, u, v) takes vector u of x and v of y into accumulator j; lanes
 * beyond the end hold PX and PY. FLUSH moves the accumulators to the totals. */
#define OVER_RUNS(x, y, PX, PY, WHOLE, FLUSH)                         \
  for (int64_t r = 0, since = 0; r < runs; r++, x += step, y += step) \
    for (int64_t from = 0; from < n; from += FN(CHUNK)) {             \
      const int64_t m = n - from < FN(CHUNK) ? n : from + FN(CHUNK);  \
      int64_t i = from;                                               \
      for (; i + 4 * L <= m; i += 4 * L) {                            \
        WHOLE(0, AT(x, i), AT(y, i))                                  \
        WHOLE(1, AT(x, i + L), AT(y, i + L))                          \
        WHOLE(2, AT(x, i + 2 * L), AT(y, i + 2 * L))                  \
        WHOLE(3, AT(x, i + 3 * L), AT(y, i + 3 * L))                  \
      }                                                               \
      for (; i + L <= m; i += L) {                                    \
        WHOLE(0, AT(x, i), AT(y, i))                                  \
      }                                                               \
      if (i < m) {                                                    \
        WHOLE(1, TAIL(x + i, m - i, PX), TAIL(y + i, m - i, PY))      \
      }                                                               \
      since += m - from;                                              \
      if (since >= FN(CHUNK) || (r == runs - 1 && m == n)) {          \
        FLUSH                                                         \
        since = 0;                                                    \
      }                                                               \
    }

static double FN(sum)(const T *x, int64_t runs, int64_t step, int64_t n) {
  double total = 0;
  const T *y = x;
  V a[4] = {{0}};
#define WHOLE(j, u, v) a[j] += (u);
#define FLUSH                                   \
  total += LSUM((a[0] + a[1]) + (a[2] + a[3])); \
  a[0] = a[1] = a[2] = a[3] = (V){0};
  OVER_RUNS(x, y, 0, 0, WHOLE, FLUSH)
#undef WHOLE
  return total;
}

static double FN(sqdiff)(const T *x, T c, int64_t runs, int64_t step, int64_t n) {
  double total = 0;
  const T *y = x;
  V a[4] = {{0}};
#define WHOLE(j, u, v) \
  {                    \
    const V d = (u)-c; \
    a[j] += d * d;     \
  }
  OVER_RUNS(x, y, c, c, WHOLE, FLUSH)
#undef WHOLE
#undef FLUSH
  return total;
}

static void FN(dots)(const T *dy, const T *x, T mean, int64_t runs, int64_t step, int64_t n, double *s1, double *s2) {
  V a[4] = {{0}}, b[4] = {{0}};
  *s1 = *s2 = 0;
#define WHOLE(j, u, v)      \
  {                         \
    const V g = (u);        \
    a[j] += g;              \
    b[j] += g * ((v)-mean); \
  }
#define FLUSH                                                                             \
  *s1 += LSUM((a[0] + a[1]) + (a[2] + a[3])), *s2 += LSUM((b[0] + b[1]) + (b[2] + b[3])); \
  a[0] = a[1] = a[2] = a[3] = b[0] = b[1] = b[2] = b[3] = (V){0};
  OVER_RUNS(dy, x, 0, mean, WHOLE, FLUSH)
#undef WHOLE
#undef FLUSH
}

static void FN(affine)(const T *x, T mean, T a, T c, T *y, int64_t runs, int64_t step, int64_t n) {
  for (int64_t r = 0; r < runs; r++, x += step, y += step) {
    int64_t i = 0;
    for (; i + L <= n; i += L) *(V *)(y + i) = a * (AT(x, i) - mean) + c;
    for (; i < n; i++) y[i] = a * (x[i] - mean) + c;
  }
}

static void FN(affine2)(const T *dy, const T *x, T mean, T a, T b, T c, T *dx, int64_t runs, int64_t step, int64_t n) {
  for (int64_t r = 0; r < runs; r++, dy += step, x += step, dx += step) {
    int64_t i = 0;
    for (; i + L <= n; i += L) *(V *)(dx + i) = a * AT(dy, i) + b * (AT(x, i) - mean) + c;
    for (; i < n; i++) dx[i] = a * dy[i] + b * (x[i] - mean) + c;
  }
}

#undef OVER_RUNS
#undef AT
#undef TAIL
#undef LSUM
#undef L
#undef V
#undef FN
#undef CAT1
#undef CAT2
