/* SPDX-License-Identifier: MIT
 * The loops of isa/softmax.c for one type: T, SFX (f32 or f64), EXPF, EXPNEG and LOG are given. Included twice, no guard. */
/* The largest number; NaN is passed over, -inf if there is none: exp(NaN - max) brings NaN back. */
static T FN(row_max)(const T *x, int64_t n) {
  enum { N = PLK_PARTS };
  P a[2 * N];
  int64_t i = 0;
  for (int k = 0; k < 2 * N; k++) a[k] = (P){0} - (T)INFINITY;
  for (; i + 2 * L <= n; i += 2 * L)
    for (int k = 0; k < 2 * N; k++) a[k] = PMAX(a[k], AT(x, k));
  for (; i + L <= n; i += L)
    for (int k = 0; k < N; k++) a[k] = PMAX(a[k], AT(x, k));
  if (i < n) {
    const V rest = TAIL(x + i, n - i, -(T)INFINITY);
    for (int k = 0; k < N; k++) a[N + k] = PMAX(a[N + k], PART(rest, k));
  }
  for (int k = 0; k < N; k++) a[k] = PMAX(a[k], a[N + k]);
  T best = a[0][0];
  for (int j = 1; j < L; j++) best = a[j / PW][j % PW] > best ? a[j / PW][j % PW] : best;
  return best;
}

ROWSUM(row_sum, (const T *p, const T *q, int64_t n), u, 0, 0)
ROWSUM(row_dot, (const T *p, const T *q, int64_t n), u *w, 0, 0)
ROWSUM(row_dotdiff, (const T *p, const T *q, T c, int64_t n), u *(w - c), 0, c)
static double FN(sum)(const T *x, int64_t n) { return FN(row_sum)(x, x, n); }

static void FN(exp)(const T *x, T m, T a, T *y, int64_t n) {
  if (a == 1)
    for (int64_t i = 0; i < n; i++) y[i] = EXPF(x[i] - m);
  else
    for (int64_t i = 0; i < n; i++) y[i] = a * EXPF(x[i] - m);
}

/* sum exp(x - m), and sum (v - c) exp(x - m) if there is a v; the end of the row is padded with -inf to a whole vector. */
static inline __attribute__((always_inline)) double FN(sum_exps)(const T *x, const T *v, T c, T m, int64_t n, double *dot) {
  T buf[256];
  double s = 0;
  for (int64_t at = 0; at < n; at += 256) {
    int64_t k = n - at < 256 ? n - at : 256, i = 0;
    for (; i + L <= k; i += L)
      for (int64_t j = i; j < i + L; j++) buf[j] = EXPNEG(x[at + j] - m);
    if (i < k) {
      *(V *)(buf + i) = TAIL(x + at + i, k - i, -(T)INFINITY);
      for (int64_t j = i; j < i + L; j++) buf[j] = EXPNEG(buf[j] - m);
      i += L;
    }
    s += FN(row_sum)(buf, buf, i);
    if (v) *dot += FN(row_dotdiff)(buf, v + at, c, k);
  }
  return s;
}

static double FN(sum_exp)(const T *x, T m, int64_t n) { return FN(sum_exps)(x, NULL, 0, m, n, NULL); }

static void FN(lse)(const T *x, int64_t n, T *max, double *sum) {
  T m = FN(row_max)(x, n);
  *max = m;
  if (m == (T)INFINITY || m == -(T)INFINITY) { /* the sum is inf, 0 or NaN */
    *max = 0, *sum = 0;
    for (int64_t i = 0; i < n; i++) *sum += (double)EXPF(x[i]);
  } else {
    *sum = FN(sum_exp)(x, m, n);
  }
}

static void FN(lse_dual)(const T *x, const T *v, T c, int64_t n, T *max, double *sum, double *dot) {
  T m = FN(row_max)(x, n);
  *max = m, *dot = 0;
  if (m == (T)INFINITY || m == -(T)INFINITY) {
    *max = 0, *sum = 0;
    for (int64_t i = 0; i < n; i++) *sum += (double)EXPF(x[i]), *dot += (double)EXPF(x[i]) * ((double)v[i] - (double)c);
  } else {
    *sum = FN(sum_exps)(x, v, c, m, n, dot);
  }
}

/* y = exp(x - max) / sum. A row of -inf alone gives NaN, as 0/0 does. */
static void FN(softmax)(const T *x, T *y, int64_t n) {
  T m = FN(row_max)(x, n);
  for (int64_t i = 0; i < n; i++) y[i] = EXPNEG(x[i] - m);
  T r = (T)(1 / FN(row_sum)(y, y, n));
  for (int64_t i = 0; i < n; i++) y[i] *= r;
}

/* y = x - max - log(sum exp(x - max)) */
static void FN(log_softmax)(const T *x, T *y, int64_t n) {
  T m = FN(row_max)(x, n);
  T c = (T)LOG(FN(sum_exp)(x, m, n));
  for (int64_t i = 0; i < n; i++) y[i] = x[i] - m - c;
}

/* dx = y (dy - sum y dy). Where one y is next to 1 its dy is nearly all of the sum: dy is taken from that on. */
static void FN(softmax_bwd)(const T *dy, const T *y, T *dx, int64_t n) {
  if (FN(row_max)(y, n) > (T)0.5) {
    int64_t t = 0;
    while (!(y[t] > (T)0.5)) t++;
    const T own = dy[t], s = (T)FN(row_dotdiff)(y, dy, own, n);
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - own - s);
    return;
  }
  T s = (T)FN(row_dot)(dy, y, n);
  for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - s);
}

/* dx = dy - exp(y) s, s = sum dy. Where exp(y) is next to 1 and dy has s to itself that would be rounding alone: 1 - exp(y) is taken
 * as the sum of the others, which forward's y, one rounded difference, does not tell as well. */
#define LIKELY_LOG ((T)-0.6875) /* more than half; one element of a row at most */
static void FN(log_softmax_bwd_likely)(const T *dy, const T *y, T *dx, int64_t n, T s) {
  T buf[256];
  int64_t t = 0;
  double rest = 0;
  while (!(y[t] > LIKELY_LOG)) t++;
  const T own = dy[t] - s;
  for (int64_t at = 0; at < n; at += 256) {
    const int64_t k = n - at < 256 ? n - at : 256;
    for (int64_t j = 0; j < k; j++) buf[j] = EXPNEG(y[at + j]);
    if (t >= at && t < at + k) buf[t - at] = 0;
    rest += FN(row_sum)(buf, buf, k);
    for (int64_t j = 0; j < k; j++) dx[at + j] = dy[at + j] - buf[j] * s;
  }
  dx[t] = own + (T)rest * s;
}
static void FN(log_softmax_bwd)(const T *dy, const T *y, T *dx, int64_t n) {
  T s = (T)FN(row_sum)(dy, dy, n);
  if (FN(row_max)(y, n) > LIKELY_LOG) FN(log_softmax_bwd_likely)(dy, y, dx, n, s);
  else
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - EXPNEG(y[i]) * s;
}

/* ---- rows that are short, L at once (isa/short_rows.h) ---- */
#if PLK_SHORT_ROWS
#define TURN  CAT1(plk_turn, SFX)
#define BACK  CAT1(plk_turn_back, SFX)
#define JOIN  CAT1(plk_join, SFX)
#define SHORT PLK_SHORT

/* v = exp(v - max), of rows without an infinite max; what is returned is the max. */
PLK_LANE V FN(short_exp)(V *v, int64_t n) {
  V m = (V){0} - (T)INFINITY;
  for (int64_t k = 0; k < n; k++) m = VMAX(m, v[k]);
  for (int64_t k = 0; k < n; k++) {
    T *const e = (T *)(v + k);
    for (int j = 0; j < L; j++) e[j] = EXPNEG(e[j] - m[j]);
  }
  return m;
}
/* Sums as of ROWSUM: of v, of v w if there is a w; elements from `paired` on are in its last loop. */
PLK_LANE void FN(short_sum)(const V *v, const V *w, int64_t n, int64_t paired, double *sum) {
  _Alignas(64) V a[L], b[L];
  for (int k = 0; k < L; k++) a[k] = b[k] = (V){0};
  for (int64_t k = 0; k < n; k++) {
    V *const to = k < paired && k / L % 2 ? b : a;
    if (w) to[k % L] += v[k] * w[k];
    else to[k % L] += v[k];
  }
  for (int k = 0; k < L; k++) a[k] += b[k];
  JOIN(a, n < L ? n : L, sum);
}
#define PAIRED(n) ((n) / (2 * L) * (2 * L))
/* sum_exps fills a row up to whole vectors. */
#define FILLED(n) PAIRED(((n) + L - 1) / L * L)

static void FN(softmax_short)(const T *x, T *y, int64_t n) {
  _Alignas(64) V v[SHORT], r;
  double sum[L];
  TURN(x, n, n, L, v);
  FN(short_exp)(v, n);
  FN(short_sum)(v, NULL, n, PAIRED(n), sum);
  for (int j = 0; j < L; j++) r[j] = (T)(1 / sum[j]);
  for (int64_t k = 0; k < n; k++) v[k] *= r;
  BACK(v, y, n, n);
}
static void FN(log_softmax_short)(const T *x, T *y, int64_t n) {
  _Alignas(64) V v[SHORT], e[SHORT], c;
  double sum[L];
  TURN(x, n, n, L, v);
  for (int64_t k = 0; k < n; k++) e[k] = v[k];
  const V m = FN(short_exp)(e, n);
  FN(short_sum)(e, NULL, n, FILLED(n), sum);
  for (int j = 0; j < L; j++) c[j] = (T)LOG(sum[j]);
  for (int64_t k = 0; k < n; k++) v[k] = v[k] - m - c;
  BACK(v, y, n, n);
}
static void FN(softmax_bwd_short)(const T *dy, const T *y, T *dx, int64_t n) {
  _Alignas(64) V u[SHORT], v[SHORT], s;
  T own[L];
  double sum[L];
  TURN(dy, n, n, L, u);
  TURN(y, n, n, L, v);
  for (int j = 0; j < L; j++) own[j] = 0;
  for (int64_t k = 0; k < n; k++) {
    const T *const d = (const T *)(u + k), *const p = (const T *)(v + k);
    for (int j = 0; j < L; j++) own[j] = p[j] > (T)0.5 ? d[j] : own[j];
  }
  for (int64_t k = 0; k < n; k++) {
    T *const d = (T *)(u + k);
    for (int j = 0; j < L; j++) d[j] -= own[j];
  }
  FN(short_sum)(u, v, n, PAIRED(n), sum);
  for (int j = 0; j < L; j++) s[j] = (T)sum[j];
  for (int64_t k = 0; k < n; k++) v[k] = v[k] * (u[k] - s);
  BACK(v, dx, n, n);
}
static void FN(log_softmax_bwd_short)(const T *dy, const T *y, T *dx, int64_t n) {
  _Alignas(64) V u[SHORT], v[SHORT];
  T s[L], own[L];
  int32_t likely[L];
  double sum[L], rest[L];
  TURN(dy, n, n, L, u);
  TURN(y, n, n, L, v);
  FN(short_sum)(u, NULL, n, PAIRED(n), sum);
  for (int j = 0; j < L; j++) s[j] = (T)sum[j], own[j] = 0, likely[j] = -1;
  for (int64_t k = 0; k < n; k++) {
    T *const e = (T *)(v + k), *const d = (T *)(u + k);
    for (int j = 0; j < L; j++) {
      const T p = EXPNEG(e[j]);
      const bool most = e[j] > LIKELY_LOG;
      own[j] = most ? d[j] - s[j] : own[j];
      likely[j] = most ? (int32_t)k : likely[j];
      e[j] = most ? 0 : p;
    }
  }
  FN(short_sum)(v, NULL, n, PAIRED(n), rest);
  for (int64_t k = 0; k < n; k++) {
    T *const e = (T *)(v + k), *const d = (T *)(u + k);
    for (int j = 0; j < L; j++) e[j] = d[j] - e[j] * s[j];
  }
  for (int j = 0; j < L; j++)
    if (likely[j] >= 0) ((T *)(v + likely[j]))[j] = own[j] + (T)rest[j] * s[j];
  BACK(v, dx, n, n);
}
/* False where a max is infinite: such rows go alone. */
static bool FN(lse_short)(const T *x, int64_t n, T *max, double *sum) {
  _Alignas(64) V v[SHORT];
  TURN(x, n, n, L, v);
  *(V *)max = FN(short_exp)(v, n);
  for (int j = 0; j < L; j++)
    if (isinf(max[j])) return false;
  FN(short_sum)(v, NULL, n, FILLED(n), sum);
  return true;
}
#undef TURN
#undef BACK
#undef JOIN
#undef SHORT
#undef PAIRED
#undef FILLED
#define IF_SHORT(call) \
  if (n <= PLK_SHORT)  \
    for (; r + L <= rows; r += L) call;
#else
#define IF_SHORT(call)
#endif

static void FN(softmax_rows)(const T *x, T *y, int64_t n, int64_t rows) {
  int64_t r = 0;
  IF_SHORT(FN(softmax_short)(x + r * n, y + r * n, n))
  for (; r < rows; r++) FN(softmax)(x + r * n, y + r * n, n);
}
static void FN(log_softmax_rows)(const T *x, T *y, int64_t n, int64_t rows) {
  int64_t r = 0;
  IF_SHORT(FN(log_softmax_short)(x + r * n, y + r * n, n))
  for (; r < rows; r++) FN(log_softmax)(x + r * n, y + r * n, n);
}
static void FN(softmax_bwd_rows)(const T *dy, const T *y, T *dx, int64_t n, int64_t rows) {
  int64_t r = 0;
  IF_SHORT(FN(softmax_bwd_short)(dy + r * n, y + r * n, dx + r * n, n))
  for (; r < rows; r++) FN(softmax_bwd)(dy + r * n, y + r * n, dx + r * n, n);
}
static void FN(log_softmax_bwd_rows)(const T *dy, const T *y, T *dx, int64_t n, int64_t rows) {
  int64_t r = 0;
  IF_SHORT(FN(log_softmax_bwd_short)(dy + r * n, y + r * n, dx + r * n, n))
  for (; r < rows; r++) FN(log_softmax_bwd)(dy + r * n, y + r * n, dx + r * n, n);
}
static void FN(lse_rows)(const T *x, int64_t n, int64_t rows, T *max, double *sum) {
  int64_t r = 0;
  IF_SHORT({
    if (FN(lse_short)(x + r * n, n, max + r, sum + r)) continue;
    for (int64_t k = r; k < r + L; k++) FN(lse)(x + k * n, n, max + k, sum + k);
  })
  for (; r < rows; r++) FN(lse)(x + r * n, n, max + r, sum + r);
}
#undef IF_SHORT

/* With tangents: t = v - sum(v e) / sum(e), and y (v - sum(v y)). */
static void FN(log_softmax_dual)(const T *x, const T *v, T *y, T *t, int64_t n) {
  T m = FN(row_max)(x, n);
  double dot = 0, sum = FN(sum_exps)(x, v, 0, m, n, &dot);
  T c = (T)LOG(sum), own = 0;
  if (sum < 2) { /* one element has more than half: as softmax_bwd */
    int64_t top = 0;
    while (x[top] != m) top++;
    own = v[top], dot = 0;
    FN(sum_exps)(x, v, own, m, n, &dot);
  }
  const T s = (T)(dot / sum);
  for (int64_t i = 0; i < n; i++) {
    y[i] = x[i] - m - c;
    t[i] = v[i] - own - s;
  }
}

static void FN(softmax_dual)(const T *x, const T *v, T *y, T *t, int64_t n) {
  FN(softmax)(x, y, n);
  FN(softmax_bwd)(v, y, t, n);
}
#undef LIKELY_LOG
