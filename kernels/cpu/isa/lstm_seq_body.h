/* SPDX-License-Identifier: MIT
 * Template of the LSTM loops: LS_T scalar, LS_N lanes of a vector, LS_NAME(x) names, LS_FMA(a, x, c) = c + a x. Included
 * by isa/lstm_seq.c once per scalar. No include guard. */

typedef LS_T LS_NAME(V) __attribute__((vector_size(LS_N * sizeof(LS_T)), aligned(sizeof(LS_T)), may_alias));

/* `m` rows by one panel; m is a constant after inlining. */
static inline __attribute__((always_inline)) void LS_NAME(rows)(const int m, const LS_T *a, int64_t lda, const LS_T *b, int64_t K, LS_T *c,
                                                                int64_t ldc, bool add) {
  LS_NAME(V) acc[MOST_ROWS][2];
  for (int r = 0; r < m; r++) acc[r][0] = acc[r][1] = (LS_NAME(V)){0};
  for (int r = 0; add && r < m; r++) {
    acc[r][0] = *(const LS_NAME(V) *)(c + r * ldc);
    acc[r][1] = *(const LS_NAME(V) *)(c + r * ldc + LS_N);
  }
  for (int64_t k = 0; k < K; k++) {
    const LS_NAME(V) b0 = *(const LS_NAME(V) *)(b + k * 2 * LS_N), b1 = *(const LS_NAME(V) *)(b + k * 2 * LS_N + LS_N);
    for (int r = 0; r < m; r++) {
      const LS_T x = a[r * lda + k];
      acc[r][0] = LS_FMA(x, b0, acc[r][0]);
      acc[r][1] = LS_FMA(x, b1, acc[r][1]);
    }
  }
  for (int r = 0; r < m; r++) {
    *(LS_NAME(V) *)(c + r * ldc) = acc[r][0];
    *(LS_NAME(V) *)(c + r * ldc + LS_N) = acc[r][1];
  }
}

static void LS_NAME(block)(int m, const LS_T *a, int64_t lda, const LS_T *b, int64_t K, LS_T *c, int64_t ldc, bool add) {
#define LS_CASE(M)                                                                        \
  case M:                                                                                 \
    if (M <= MOST_ROWS) LS_NAME(rows)(M <= MOST_ROWS ? M : 1, a, lda, b, K, c, ldc, add); \
    break;
  /* clang-format off */
  switch (m) {
    LS_CASE(1) LS_CASE(2) LS_CASE(3) LS_CASE(4) LS_CASE(5) LS_CASE(6) LS_CASE(7)
    LS_CASE(8) LS_CASE(9) LS_CASE(10) LS_CASE(11) LS_CASE(12) LS_CASE(13) LS_CASE(14)
  default: break;
  }
/* clang-format on */
#undef LS_CASE
}

/* Rows in groups of about equal height, each panel by all of them while it is in cache. */
static void LS_NAME(product)(const LS_T *a, int64_t lda, const LS_T *panels, int64_t K, LS_T *c, int64_t ldc, int64_t rows, int64_t cols,
                             bool add) {
  const int64_t groups = (rows + MOST_ROWS - 1) / MOST_ROWS;
  for (int64_t j = 0; j < cols; j += 2 * LS_N)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t from = g * rows / groups, to = (g + 1) * rows / groups;
      LS_NAME(block)((int)(to - from), a + from * lda, lda, panels + j * K, K, c + from * ldc + j, ldc, add);
    }
}

/* i = s(ai), f = s(af), g = tanh(ag), o = s(ao):  c2 = f c + i g,  h = o tanh(c2) */
static void LS_NAME(step)(const LS_T *x, const LS_T *a, const LS_T *c, LS_T *act, LS_T *c2, LS_T *h, int64_t H) {
  PLK_IVDEP for (int64_t j = 0; j < H; j++) {
    const LS_T i = LS_NAME(vm_logistic)(x[j] + a[j]), f = LS_NAME(vm_logistic)(x[H + j] + a[H + j]);
    const LS_T g = LS_NAME(vm_tanh)(x[2 * H + j] + a[2 * H + j]);
    const LS_T o = LS_NAME(vm_logistic)(x[3 * H + j] + a[3 * H + j]);
    const LS_T cell = f * c[j] + i * g;
    act[j] = i, act[H + j] = f, act[2 * H + j] = g, act[3 * H + j] = o;
    c2[j] = cell;
    h[j] = o * LS_NAME(vm_tanh)(cell);
  }
}

/* t = tanh(c2), d = dh + more, do = d t, q = dc + d o (1 - t²), di = q g, df = q c, dg = q i, each with dact on top:
 * dai = di i (1 - i), daf = df f (1 - f), dag = dg (1 - g²), dao = do o (1 - o);  dc <- q f */
#define LS_BACK(PLUS)                                                                             \
  PLK_IVDEP for (int64_t j = 0; j < H; j++) {                                                     \
    const LS_T i = act[j], f = act[H + j], g = act[2 * H + j], o = act[3 * H + j];                \
    const LS_T t = LS_NAME(vm_tanh)(c2[j]), d = dh[j] + more[j], q = dc[j] + d * o * (1 - t * t); \
    da[j] = (q * g PLUS(0)) * i * (1 - i);                                                        \
    da[H + j] = (q * c[j] PLUS(1)) * f * (1 - f);                                                 \
    da[2 * H + j] = (q * i PLUS(2)) * (1 - g * g);                                                \
    da[3 * H + j] = (d * t PLUS(3)) * o * (1 - o);                                                \
    dc[j] = q * f;                                                                                \
  }
#define LS_NOTHING(k)
#define LS_DACT(k) +dact[(k)*H + j]
static void LS_NAME(back)(const LS_T *act, const LS_T *c, const LS_T *c2, const LS_T *dh, const LS_T *more, const LS_T *dact, LS_T *dc,
                          LS_T *da, int64_t H) {
  if (dact) LS_BACK(LS_DACT)
  else LS_BACK(LS_NOTHING)
}
#undef LS_BACK
#undef LS_NOTHING
#undef LS_DACT

#undef LS_T
#undef LS_N
#undef LS_NAME
#undef LS_FMA
