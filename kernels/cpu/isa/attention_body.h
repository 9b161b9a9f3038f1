/* SPDX-License-Identifier: MIT
 * Template of attention's loops: AT_T scalar, AT_N lanes, AT_NAME(x) names, AT_EXP, AT_FMA(a, x, c) = c + a x,
 * AT_TAIL of lanes.h, AT_MAX of parts.h.
 * Included by isa/attention.c once per scalar. No include guard. */

typedef AT_T AT_NAME(V) __attribute__((vector_size(AT_N * sizeof(AT_T)), aligned(sizeof(AT_T)), may_alias));

/* As wide as the machine's (parts.h); columns are added up by themselves, so the bits are those of any width. */
typedef AT_T AT_NAME(W) __attribute__((vector_size(PLK_PART), aligned(sizeof(AT_T)), may_alias));
enum { AT_NAME(WIDE) = PLK_PART / sizeof(AT_T) };

/* Four rows by `m` vectors. */
static inline __attribute__((always_inline)) void AT_NAME(panel)(const AT_T *a, int64_t ar, int64_t ak, const AT_T *b, int64_t ldb,
                                                                 int64_t K, AT_T *c, int64_t ldc, const int m) {
  enum { N = AT_NAME(WIDE) };
  AT_NAME(W) acc[PLK_AT_ROWS][4];
  for (int r = 0; r < PLK_AT_ROWS; r++)
    for (int j = 0; j < m; j++) acc[r][j] = *(const AT_NAME(W) *)(c + r * ldc + j * N);
  for (int64_t k = 0; k < K; k++)
    for (int j = 0; j < m; j++) {
      const AT_NAME(W) x = *(const AT_NAME(W) *)(b + k * ldb + j * N);
      for (int r = 0; r < PLK_AT_ROWS; r++) acc[r][j] = AT_FMA(a[r * ar + k * ak], x, acc[r][j]);
    }
  for (int r = 0; r < PLK_AT_ROWS; r++)
    for (int j = 0; j < m; j++) *(AT_NAME(W) *)(c + r * ldc + j * N) = acc[r][j];
}

/* As many columns at once as there are registers for. */
static void AT_NAME(mm4)(const AT_T *a, int64_t ar, int64_t ak, const AT_T *b, int64_t ldb, int64_t K, AT_T *c, int64_t ldc, int64_t w) {
  enum { N = AT_NAME(WIDE) };
  int64_t j = 0;
  for (; PLK_PART == 64 && j + 4 * N <= w; j += 4 * N) AT_NAME(panel)(a, ar, ak, b + j, ldb, K, c + j, ldc, 4);
  for (; j + 2 * N <= w; j += 2 * N) AT_NAME(panel)(a, ar, ak, b + j, ldb, K, c + j, ldc, 2);
  for (; j < w; j += N) AT_NAME(panel)(a, ar, ak, b + j, ldb, K, c + j, ldc, 1);
}

/* One row of the same: the same additions in the same order. */
static void AT_NAME(mm1)(const AT_T *a, const AT_T *b, int64_t ldb, int64_t K, AT_T *c, int64_t w) {
  enum { N = AT_NAME(WIDE) };
  int64_t j = 0;
  for (; j + 4 * N <= w; j += 4 * N) {
    AT_NAME(W) acc[4];
    for (int v = 0; v < 4; v++) acc[v] = *(const AT_NAME(W) *)(c + j + v * N);
    for (int64_t k = 0; k < K; k++)
      for (int v = 0; v < 4; v++) acc[v] = AT_FMA(a[k], *(const AT_NAME(W) *)(b + k * ldb + j + v * N), acc[v]);
    for (int v = 0; v < 4; v++) *(AT_NAME(W) *)(c + j + v * N) = acc[v];
  }
  for (; j < w; j += N) {
    AT_NAME(W) acc = *(const AT_NAME(W) *)(c + j);
    for (int64_t k = 0; k < K; k++) acc = AT_FMA(a[k], *(const AT_NAME(W) *)(b + k * ldb + j), acc);
    *(AT_NAME(W) *)(c + j) = acc;
  }
}

/* Lanes fold in halves. */
static void AT_NAME(dots)(const AT_T *q, const AT_T *k, int64_t ks, int64_t E, int64_t n, AT_T *s) {
  enum { N = AT_NAME(WIDE) };
  for (int64_t i = 0; i < n; i++, k += ks) {
    AT_NAME(W) acc[PLK_PARTS];
    AT_T fold[AT_N];
    for (int v = 0; v < PLK_PARTS; v++) acc[v] = (AT_NAME(W)){0};
    int64_t e = 0;
    for (; e + AT_N <= E; e += AT_N)
      for (int v = 0; v < PLK_PARTS; v++) acc[v] += *(const AT_NAME(W) *)(q + e + v * N) * *(const AT_NAME(W) *)(k + e + v * N);
    if (e < E) {
      const AT_NAME(V) x = (AT_NAME(V))AT_TAIL(q + e, E - e, 0), y = (AT_NAME(V))AT_TAIL(k + e, E - e, 0);
      for (int v = 0; v < PLK_PARTS; v++) acc[v] += ((const AT_NAME(W) *)&x)[v] * ((const AT_NAME(W) *)&y)[v];
    }
    for (int v = 0; v < PLK_PARTS; v++) *(AT_NAME(W) *)(fold + v * N) = acc[v];
    for (int h = AT_N / 2; h; h /= 2)
      for (int j = 0; j < h; j++) fold[j] += fold[j + h];
    s[i] = fold[0];
  }
}

static AT_T AT_NAME(lanes_sum)(const AT_NAME(V) * from) { /* by address: passing vectors differs between levels */
  AT_NAME(V) v = *from;
  for (int w = AT_N / 2; w; w /= 2)
    for (int j = 0; j < w; j++) v[j] += v[j + w];
  return v[0];
}
/* w is a multiple of the lanes, and what is beyond the end is zero. */
static AT_T AT_NAME(row_sum)(const AT_T *s, int64_t w) {
  AT_NAME(V) acc = {0};
  for (int64_t j = 0; j < w; j += AT_N) acc += *(const AT_NAME(V) *)(s + j);
  return AT_NAME(lanes_sum)(&acc);
}

static void AT_NAME(exps)(AT_T *s, int64_t n, int64_t w, AT_T scale, AT_T shift) {
  PLK_IVDEP for (int64_t j = 0; j < n; j++) s[j] = AT_EXP(scale * s[j] - shift);
  for (int64_t j = n; j < w; j++) s[j] = 0;
}

static AT_T AT_NAME(added)(AT_T *s, const AT_T *add, int64_t n, AT_T scale) {
  if (!add) return scale;
  PLK_IVDEP for (int64_t j = 0; j < n; j++) s[j] = scale * s[j] + add[j];
  return 1;
}

/* The largest of scale s, which passes NaN over; -inf if there is none. */
static AT_T AT_NAME(top)(const AT_T *s, int64_t n, AT_T scale) {
  enum { N = AT_NAME(WIDE) };
  AT_NAME(W) most[PLK_PARTS];
  AT_T best = -(AT_T)INFINITY;
  int64_t j = 0;
  for (int v = 0; v < PLK_PARTS; v++) most[v] = (AT_NAME(W)){0} + best;
  for (; j + AT_N <= n; j += AT_N)
    for (int v = 0; v < PLK_PARTS; v++) most[v] = AT_MAX(most[v], scale * *(const AT_NAME(W) *)(s + j + v * N));
  for (; j < n; j++) best = scale * s[j] > best ? scale * s[j] : best;
  for (int i = 0; i < AT_N; i++) best = most[i / N][i % N] > best ? most[i / N][i % N] : best;
  return best;
}

static AT_T AT_NAME(softmax)(AT_T *s, const AT_T *add, int64_t n, int64_t w, AT_T scale, AT_T *sum) {
  scale = AT_NAME(added)(s, add, n, scale);
  const AT_T top = AT_NAME(top)(s, n, scale);
  if (top == -(AT_T)INFINITY) {
    bool nan = false; /* comparisons do not see it */
    for (int64_t j = 0; j < n; j++) nan |= s[j] != s[j];
    if (!nan) {
      for (int64_t j = 0; j < w; j++) s[j] = 0;
      *sum = 1;
      return top;
    }
  }
  AT_NAME(exps)(s, n, w, scale, top);
  *sum = AT_NAME(row_sum)(s, w);
  return top;
}

static void AT_NAME(again)(AT_T *s, const AT_T *add, int64_t n, int64_t w, AT_T scale, AT_T top, AT_T sum) {
  if (top == -(AT_T)INFINITY && sum == 1) n = 0; /* hidden throughout */
  const AT_T share = 1 / sum;
  scale = AT_NAME(added)(s, add, n, scale);
  AT_NAME(exps)(s, n, w, scale, top);
  for (int64_t j = 0; j < n; j++) s[j] *= share;
}

static void AT_NAME(slope)(const AT_T *p, AT_T *dp, int64_t w, AT_T scale) {
  AT_NAME(V) acc = {0};
  for (int64_t j = 0; j < w; j += AT_N) acc += *(const AT_NAME(V) *)(p + j) * *(const AT_NAME(V) *)(dp + j);
  const AT_T d = AT_NAME(lanes_sum)(&acc);
  for (int64_t j = 0; j < w; j += AT_N) {
    AT_NAME(V) *x = (AT_NAME(V) *)(dp + j);
    *x = *(const AT_NAME(V) *)(p + j) * (*x - d) * scale;
  }
}

static void AT_NAME(drop)(AT_T *x, const uint32_t *word, int64_t n, uint64_t cut, AT_T keep) {
  if (cut > UINT32_MAX) { /* p = 1 */
    for (int64_t j = 0; j < n; j++) x[j] = 0;
    return;
  }
  const uint32_t c = (uint32_t)cut;
  for (int64_t j = 0; j < n; j++) x[j] = word[j] < c ? 0 : x[j] * keep;
}

#undef AT_T
#undef AT_N
#undef AT_NAME
#undef AT_EXP
#undef AT_TAIL
#undef AT_MAX
#undef AT_FMA
