/* SPDX-License-Identifier: MIT
 * Sums and extremes of rows and columns for one stored type (reduce.c; no include guard). S is what x holds, SFX its name, C
 * and CSFX what is computed in: f32 for f32, bf16 and f16, f64 for f64. Every loop is
 *   f(x, ld, n, m, out): n elements are reduced to each of m outputs,
 * and comes in four forms by where element k of output r is: ROWS x[r * ld + k], COLS x[k * ld + r], and the same sums of
 * arrays that lie transposed, with the same bits: ROWS_ACROSS x[k * ld + r], COLS_ACROSS x[r * ld + k]. Rows are written,
 * columns (at most PLK_COLS) are added to `out`. */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkV, CSFX)
#define L          CAT1(PLK_N, CSFX)
#define IN         FN(plk_in)
#define PART       FN(plk_part)
#define ONE        FN(plk_one)
#define PART_C     CAT1(plk_part, CSFX)
#ifdef PLK_PUT
#define PUT CAT1(plk_put, CSFX)
#endif
#define LSUM           CAT1(plk_parts_sum, CSFX)
#define P              CAT1(PlkP, CSFX)
#define PW             CAT1(PLK_W, CSFX)
#define LOAD           FN(plk_load)
#define SEEN           CAT1(PlkMissing, CSFX)
#define LARGER         CAT1(plk_part_max, CSFX)
#define SMALLER        CAT1(plk_part_min, CSFX)
#define ISNAN          CAT1(plk_part_nans, CSFX)
#define ANYSEEN        CAT1(plk_part_any, CSFX)
#define LATER(which)   CAT1(later_##which, CSFX)
#define OFLANES(which) CAT1(lanes_##which, CSFX)
#define TURN           FN(plk_turn)
#define JOIN           CAT1(plk_join, CSFX)

/* ---- sums ------------------------------------------------------------------------------------------------- */

PLK_LANE double FN(sum_of)(const S *x, int64_t n) {
  enum { STEP = 4 * L, N = PLK_PARTS };
  double total = 0;
  for (int64_t at = 0; at < n; at += CHUNK) {
    const S *p = x + at;
    int64_t m = n - at < CHUNK ? n - at : CHUNK, i = 0;
    P a[4 * N];
    for (int k = 0; k < 4 * N; k++) a[k] = (P){0};
    for (; i + STEP <= m; i += STEP)
      for (int k = 0; k < 4 * N; k++) a[k] += LOAD(p + i + PW * k);
    for (; i + L <= m; i += L)
      for (int k = 0; k < N; k++) a[k] += LOAD(p + i + PW * k);
    if (i < m) {
      const V rest = PART(p + i, m - i, 0);
      for (int k = 0; k < N; k++) a[N + k] += ((const P *)&rest)[k];
    }
    for (int k = 0; k < N; k++) a[k] = (a[k] + a[N + k]) + (a[2 * N + k] + a[3 * N + k]);
    total += LSUM(a);
  }
  return total;
}

#if PLK_SHORT_ROWS
/* L rows of n < 2 L. */
static void FN(sum_short)(const S *x, int64_t ld, int64_t n, double *out) {
  _Alignas(64) V v[2 * L], lane[L];
  TURN(x, ld, n, L, v);
  for (int k = 0; k < L; k++) lane[k] = (V){0};
  for (int64_t k = 0; k < n; k++) lane[k % L] += v[k]; /* a, and then b */
  JOIN(lane, n < L ? n : L, out);
}
#endif

static void FN(sum_rows)(const void *xv, int64_t ld, int64_t n, int64_t m, double *out) {
  const S *x = xv;
  int64_t r = 0;
#if PLK_SHORT_ROWS
  if (n < 2 * L && (PLK_PARTS == 1 || n != L)) /* parts of one vector join faster than rows turn */
    for (; r + L <= m; r += L) FN(sum_short)(x + r * ld, ld, n, out + r);
#endif
  for (; r < m; r++) out[r] = FN(sum_of)(x + r * ld, n);
}

/* The lane of STEP that element i < n of a chunk of n goes to. */
#ifndef PLK_LANE_OF
#define PLK_LANE_OF
PLK_LANE int64_t lane_of(int64_t i, int64_t n, int64_t lanes) {
  const int64_t step = 4 * lanes, whole = n / step * step;
  return i < whole ? i % step : i < n / lanes * lanes ? i % lanes : lanes + i % lanes;
}
#endif

/* w <= ACROSS rows at once: their lanes are kept side by side. */
enum { FN(ACROSS) = 64 };
PLK_LANE void FN(sums_across)(const S *x, int64_t ld, int64_t n, const int64_t w, double *PL_RESTRICT out) {
  enum { STEP = 4 * L, W = FN(ACROSS) };
  _Alignas(64) C lane[STEP][W];
  for (int64_t r = 0; r < w; r++) out[r] = 0;
  for (int64_t at = 0; at < n; at += CHUNK, x += CHUNK * ld) {
    const int64_t m = n - at < CHUNK ? n - at : CHUNK;
    memset(lane, 0, sizeof lane);
    int64_t i = 0;
    for (; i + 4 * STEP <= m; i += 4 * STEP)
      for (int64_t k = 0; k < STEP; k++) {
        const S *p = x + (i + k) * ld, *q = p + STEP * ld, *s = q + STEP * ld, *t = s + STEP * ld;
        int64_t r = 0;
        for (; r + PW <= w; r += PW) {
          P *to = (P *)(lane[k] + r);
          *to = (((*to + LOAD(p + r)) + LOAD(q + r)) + LOAD(s + r)) + LOAD(t + r);
        }
        for (; r < w; r++) lane[k][r] = (((lane[k][r] + ONE(p[r])) + ONE(q[r])) + ONE(s[r])) + ONE(t[r]);
      }
    for (; i < m; i++) {
      C *to = lane[lane_of(i, m, L)];
      const S *p = x + i * ld;
      int64_t r = 0;
      for (; r + PW <= w; r += PW) *(P *)(to + r) += LOAD(p + r);
      for (; r < w; r++) to[r] += ONE(p[r]);
    }
    /* as LSUM((a + b) + (c + d)) */
    double d[L][W];
    for (int k = 0; k < L; k++)
      for (int64_t r = 0; r < w; r++) d[k][r] = (double)((lane[k][r] + lane[k + L][r]) + (lane[k + 2 * L][r] + lane[k + 3 * L][r]));
    for (int h = L / 2; h >= 4; h /= 2)
      for (int k = 0; k < h; k++)
        for (int64_t r = 0; r < w; r++) d[k][r] += d[k + h][r];
    for (int64_t r = 0; r < w; r++) out[r] += (d[0][r] + d[2][r]) + (d[1][r] + d[3][r]);
  }
}

static void FN(sum_rows_across)(const void *xv, int64_t ld, int64_t n, int64_t m, double *out) {
  const S *x = xv;
  int64_t r = 0;
  for (; r + FN(ACROSS) <= m; r += FN(ACROSS)) FN(sums_across)(x + r, ld, n, FN(ACROSS), out + r);
  if (r < m) FN(sums_across)(x + r, ld, n, m - r, out + r);
}

/* Columns: eight elements at a time as a tree, up to 256 in C, then in double. */
#define TREE_OF(AT) (((AT(0) + AT(1)) + (AT(2) + AT(3))) + ((AT(4) + AT(5)) + (AT(6) + AT(7))))
PLK_LANE void FN(colpart)(const S *x, int64_t ld, int64_t rows, int64_t cols, C *PL_RESTRICT part) {
  const S *p = x;
  int64_t r = 0, c;
#ifdef PUT
  const int64_t left = cols % L;
  for (; r + 8 <= rows; r += 8, p += 8 * ld) {
#define ROW(k) IN(p + c + (k)*ld)
    for (c = 0; c + L <= cols; c += L) *(V *)(part + c) += TREE_OF(ROW);
#undef ROW
#define ROW(k) PART(p + c + (k)*ld, left, 0)
    if (left) PUT(part + c, PART_C(part + c, left, 0) + TREE_OF(ROW), left);
#undef ROW
  }
  if (r == rows) return;
  for (c = 0; c + L <= cols; c += L) {
    V all = *(V *)(part + c);
    for (int64_t k = 0; k < rows - r; k++) all += IN(p + c + k * ld);
    *(V *)(part + c) = all;
  }
  if (left == 0) return;
  V all = PART_C(part + c, left, 0);
  for (int64_t k = 0; k < rows - r; k++) all += PART(p + c + k * ld, left, 0);
  PUT(part + c, all, left);
#else
  for (; r + 8 <= rows; r += 8, p += 8 * ld) {
#define ROW(k) LOAD(p + c + (k)*ld)
    for (c = 0; c + PW <= cols; c += PW) *(P *)(part + c) += TREE_OF(ROW);
#undef ROW
    for (; c < cols; c++) {
#define ROW(k) v[k]
      C v[8];
      for (int k = 0; k < 8; k++) v[k] = ONE(p[c + k * ld]);
      part[c] += TREE_OF(ROW);
#undef ROW
    }
  }
  if (r == rows) return;
  for (c = 0; c + PW <= cols; c += PW) {
    P all = *(P *)(part + c);
    for (int64_t k = 0; k < rows - r; k++) all += LOAD(p + c + k * ld);
    *(P *)(part + c) = all;
  }
  for (; c < cols; c++)
    for (int64_t k = 0; k < rows - r; k++) part[c] += ONE(p[c + k * ld]);
#endif
}
#undef TREE_OF

static void FN(sum_cols)(const void *xv, int64_t ld, int64_t n, int64_t m, double *PL_RESTRICT out) {
  const S *x = xv;
  _Alignas(64) C part[PLK_COLS];
  for (int64_t at = 0; at < n; at += PLK_COLSUM_ROWS) {
    for (int64_t c = 0; c < m; c++) part[c] = 0;
    FN(colpart)(x + at * ld, ld, n - at < PLK_COLSUM_ROWS ? n - at : PLK_COLSUM_ROWS, m, part);
    for (int64_t c = 0; c < m; c++) out[c] += (double)part[c];
  }
}

#ifdef TREES
/* n elements of L columns at once; `even`: column c is c % 4 times ld behind p[c - c % 4], so that few addresses need registers. TREES
 * makes the trees of eight of 2 L elements (f32), or of L (f64), of each: g[0], and then g[1]. */
PLK_LANE V FN(part_across)(const S *const *p, int64_t ld, int64_t n, const bool even) {
  enum { GROUPS = L / 8 };
#define COLUMN(c) ((even ? p[(c) / 4 * 4] + (c) % 4 * ld : p[c]) + i)
  V part = {0}, g[2], v[L];
  int64_t i = 0;
  for (; i + L <= n; i += L) {
    for (int c = 0; c < L; c++) v[c] = IN(COLUMN(c));
    TREES(v, g);
    for (int k = 0; k < GROUPS; k++) part += g[k];
  }
  if (GROUPS > 1 && i + 8 <= n) {
    for (int c = 0; c < L; c++) v[c] = PART(COLUMN(c), 8, 0);
    TREES(v, g);
    part += g[0];
    i += 8;
  }
  for (; i < n; i++) {
    V one = {0};
    for (int c = 0; c < L; c++) one[c] = ONE(*COLUMN(c));
    part += one;
  }
  return part;
#undef COLUMN
}
#elif defined(EIGHTS)
/* The same of PW columns, with EIGHTS, whose v[PW h + c] are the elements of column c from PW h on. */
PLK_LANE P FN(part_across)(const S *const *p, int64_t ld, int64_t n, const bool even) {
#define COLUMN(c) ((even ? p[(c) / 4 * 4] + (c) % 4 * ld : p[c]) + i)
  P part = {0}, v[8];
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int h = 0; h < 8 / PW; h++)
      for (int c = 0; c < PW; c++) v[PW * h + c] = LOAD(COLUMN(c) + PW * h);
    part += EIGHTS(v);
  }
  for (; i < n; i++) {
    P one = {0};
    for (int c = 0; c < PW; c++) one[c] = ONE(*COLUMN(c));
    part += one;
  }
  return part;
#undef COLUMN
}
#endif
#if defined(TREES) || defined(EIGHTS)
static void FN(sum_cols_across)(const void *xv, int64_t ld, int64_t n, int64_t m, double *out) {
  for (int64_t c0 = 0; c0 < m; c0 += PW)
    for (int64_t at = 0; at < n; at += PLK_COLSUM_ROWS) {
      const int64_t rows = n - at < PLK_COLSUM_ROWS ? n - at : PLK_COLSUM_ROWS, kept = m - c0 < PW ? m - c0 : PW;
      const S *p[PW];
      for (int c = 0; c < PW; c++) p[c] = (const S *)xv + at + (c0 + (c < kept ? c : kept - 1)) * ld; /* the last once more: not kept */
      const P part = kept == PW ? FN(part_across)(p, ld, rows, true) : FN(part_across)(p, ld, rows, false);
      for (int c = 0; c < kept; c++) out[c0 + c] += (double)part[c];
    }
}
#endif

/* ---- extremes ------------------------------------------------------------------------------------------------ */

/* Of rows: NaN is looked for beside the comparisons, which pass it over; the first one is the result. Of columns a later NaN
 * wins. Which of two zeros is kept depends on the order, so across such results are found again in it. */
#define TAKE(BEST, a, b, p, q)        \
  do {                                \
    const P v_ = (p), w_ = (q);       \
    a = BEST(a, v_), b = BEST(b, w_); \
    nan = nan | (SEEN)ISNAN(v_, w_);  \
  } while (0)
#define EXTREME(name, BEST, CMP, START, WHICH)                                                                         \
  PLK_LANE C FN(name##_of)(const S *x, int64_t n) {                                                                    \
    enum { STEP = 4 * L, N = PLK_PARTS };                                                                              \
    P a[4 * N], none;                                                                                                  \
    for (int k = 0; k < 4 * N; k++) a[k] = (P){0} + (START);                                                           \
    none = a[0]; /* changes nothing */                                                                                 \
    SEEN nan = {0};                                                                                                    \
    int64_t i = 0;                                                                                                     \
    for (; i + STEP <= n; i += STEP)                                                                                   \
      for (int k = 0; k < 4 * N; k += 2) TAKE(BEST, a[k], a[k + 1], LOAD(x + i + PW * k), LOAD(x + i + PW * (k + 1))); \
    for (; i + L <= n; i += L)                                                                                         \
      for (int k = 0; k < N; k++) TAKE(BEST, a[k], none, LOAD(x + i + PW * k), none);                                  \
    if (i < n) {                                                                                                       \
      const V rest = PART(x + i, n - i, START);                                                                        \
      for (int k = 0; k < N; k++) TAKE(BEST, a[N + k], none, ((const P *)&rest)[k], none);                             \
    }                                                                                                                  \
    if (PL_UNLIKELY(ANYSEEN(nan))) {                                                                                   \
      for (i = 0; i < n - 1 && ONE(x[i]) == ONE(x[i]);) i++;                                                           \
      return ONE(x[i]);                                                                                                \
    }                                                                                                                  \
    for (int k = 0; k < N; k++) a[k] = BEST(BEST(a[k], a[N + k]), BEST(a[2 * N + k], a[3 * N + k]));                   \
    return OFLANES(WHICH)(a);                                                                                          \
  }                                                                                                                    \
  static void FN(name##_rows)(const void *xv, int64_t ld, int64_t n, int64_t m, double *out) {                         \
    const S *x = xv;                                                                                                   \
    for (int64_t r = 0; r < m; r++) out[r] = (double)FN(name##_of)(x + r * ld, n);                                     \
  }                                                                                                                    \
  /* four rows at a time, one after the other; columns with a NaN once more, as the comparisons pass it over */        \
  static void FN(name##_cols)(const void *xv, int64_t ld, int64_t n, int64_t m, double *PL_RESTRICT out) {             \
    _Alignas(64) C best[PLK_COLS];                                                                                     \
    const S *p = xv;                                                                                                   \
    SEEN nan = {0};                                                                                                    \
    int64_t r = 0, whole = m / L * L;                                                                                  \
    for (int64_t c = 0; c < m; c++) best[c] = (C)out[c];                                                               \
    for (; r + 4 <= n; r += 4, p += 4 * ld)                                                                            \
      for (int64_t c = 0; c < whole; c += PW) {                                                                        \
        P b = *(P *)(best + c);                                                                                        \
        TAKE(BEST, b, b, LOAD(p + c), LOAD(p + c + ld));                                                               \
        TAKE(BEST, b, b, LOAD(p + c + 2 * ld), LOAD(p + c + 3 * ld));                                                  \
        *(P *)(best + c) = b;                                                                                          \
      }                                                                                                                \
    for (int64_t c = 0; r < n && c < whole; c += PW) {                                                                 \
      P b = *(P *)(best + c);                                                                                          \
      for (int64_t k = 0; k < n - r; k++) {                                                                            \
        const P v = LOAD(p + c + k * ld);                                                                              \
        b = BEST(b, v), nan = nan | (SEEN)ISNAN(v, v);                                                                 \
      }                                                                                                                \
      *(P *)(best + c) = b;                                                                                            \
    }                                                                                                                  \
    const bool again = ANYSEEN(nan);                                                                                   \
    p = xv;                                                                                                            \
    if (PL_UNLIKELY(again)) whole = 0;                                                                                 \
    for (int64_t c = 0; c < m; c++) best[c] = again ? (C)out[c] : best[c];                                             \
    for (int64_t k = 0; k < n; k++, p += ld)                                                                           \
      for (int64_t c = whole; c < m; c++) best[c] = LATER(WHICH)(best[c], ONE(p[c]));                                  \
    for (int64_t c = 0; c < m; c++) out[c] = (double)best[c];                                                          \
  }                                                                                                                    \
  static void FN(name##_cols_across)(const void *xv, int64_t ld, int64_t n, int64_t m, double *out) {                  \
    for (int64_t c = 0; c < m; c++) {                                                                                  \
      const S *x = (const S *)xv + c * ld;                                                                             \
      C v = FN(name##_of)(x, n), b = (C)out[c];                                                                        \
      if (PL_UNLIKELY(v != v || v == 0))                                                                               \
        for (int64_t k = 0; k < n; k++) b = LATER(WHICH)(b, ONE(x[k]));                                                \
      else b = LATER(WHICH)(b, v);                                                                                     \
      out[c] = (double)b;                                                                                              \
    }                                                                                                                  \
  }                                                                                                                    \
  /* `of` element by element */                                                                                        \
  static C FN(name##_walk)(const S *x, int64_t ld, int64_t n) {                                                        \
    enum { STEP = 4 * L };                                                                                             \
    C lane[STEP];                                                                                                      \
    for (int k = 0; k < STEP; k++) lane[k] = START;                                                                    \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      const C v = ONE(x[i * ld]);                                                                                      \
      C *to = lane + lane_of(i, n, L);                                                                                 \
      if (v != v) return v;                                                                                            \
      *to = v CMP * to ? v : *to;                                                                                      \
    }                                                                                                                  \
    for (int d = 1; d <= 2; d++) /* a and b, c and d; then these */                                                    \
      for (int k = 0; k < STEP; k += 2 * d * L)                                                                        \
        for (int j = k; j < k + L; j++) lane[j] = lane[j + d * L] CMP lane[j] ? lane[j + d * L] : lane[j];             \
    for (int w = L / 2; w; w /= 2)                                                                                     \
      for (int j = 0; j < w; j++) lane[j] = lane[j + w] CMP lane[j] ? lane[j + w] : lane[j];                           \
    return lane[0];                                                                                                    \
  }                                                                                                                    \
  PLK_LANE void FN(name##s_across)(const S *x, int64_t ld, int64_t n, int64_t w, C *PL_RESTRICT b) {                   \
    for (int64_t r = 0; r < w; r++) b[r] = START;                                                                      \
    for (int64_t k = 0; k < n; k++, x += ld)                                                                           \
      for (int64_t r = 0; r < w; r++) b[r] = LATER(WHICH)(b[r], ONE(x[r]));                                            \
  }                                                                                                                    \
  static void FN(name##_rows_across)(const void *xv, int64_t ld, int64_t n, int64_t m, double *out) {                  \
    for (int64_t r = 0; r < m; r += FN(ACROSS)) {                                                                      \
      const int64_t w = m - r < FN(ACROSS) ? m - r : FN(ACROSS);                                                       \
      const S *x = (const S *)xv + r;                                                                                  \
      _Alignas(64) C b[FN(ACROSS)];                                                                                    \
      if (w == FN(ACROSS)) FN(name##s_across)(x, ld, n, FN(ACROSS), b);                                                \
      else FN(name##s_across)(x, ld, n, w, b);                                                                         \
      for (int64_t k = 0; k < w; k++) {                                                                                \
        const bool again = b[k] != b[k] || b[k] == 0;                                                                  \
        out[r + k] = (double)(PL_UNLIKELY(again) ? FN(name##_walk)(x + k, ld, n) : b[k]);                              \
      }                                                                                                                \
    }                                                                                                                  \
  }
EXTREME(max, LARGER, >, (C)-INFINITY, max)
EXTREME(min, SMALLER, <, (C)INFINITY, min)

#undef CAT2
#undef CAT1
#undef FN
#undef V
#undef L
#undef IN
#undef PART
#undef ONE
#undef PART_C
#undef P
#undef PW
#undef LOAD
#undef PUT
#undef LSUM
#undef SEEN
#undef LARGER
#undef SMALLER
#undef ISNAN
#undef ANYSEEN
#undef LATER
#undef OFLANES
#undef TURN
#undef JOIN
#undef TAKE
#undef EXTREME
#undef TREES
#undef EIGHTS
#undef S
#undef SFX
#undef C
#undef CSFX
