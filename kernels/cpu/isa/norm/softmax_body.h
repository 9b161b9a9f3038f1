/* SPDX-License-Identifier: MIT
 * The loops of isa/softmax.c for one type: T, SFX (f32 or f64), EXPF and EXPNEG are given. Included twice, no guard. */
/* The largest number; NaN is passed over, -inf if there is none: exp(NaN - max) brings NaN back. */
static T FN(row_max)(const T *x, int64_t n) {
  V a = TAIL(x, 0, -(T)INFINITY), b = a;
  int64_t i = 0;
  for (; i + 2 * L <= n; i += 2 * L) {
    a = VMAX(a, AT(x));
    b = VMAX(b, AT(x + L));
  }
  for (; i + L <= n; i += L) a = VMAX(a, AT(x));
  if (i < n) b = VMAX(b, TAIL(x + i, n - i, -(T)INFINITY));
  a = VMAX(a, b);
  T best = a[0];
  for (int j = 1; j < L; j++) best = a[j] > best ? a[j] : best;
  return best;
}

ROWSUM(row_sum, (const T *p, const T *q, int64_t n), u, 0, 0)
ROWSUM(row_dot, (const T *p, const T *q, int64_t n), u *w, 0, 0)

static void FN(exp)(const T *x, T m, T a, T *y, int64_t n) {
  if (a == 1)
    for (int64_t i = 0; i < n; i++) y[i] = EXPF(x[i] - m);
  else
    for (int64_t i = 0; i < n; i++) y[i] = a * EXPF(x[i] - m);
}

/* sum exp(x - m), and sum v exp(x - m) if there is a v; the end of the row is padded with -inf to a whole vector. */
static inline __attribute__((always_inline)) double FN(sum_exps)(const T *x, const T *v, T m, int64_t n, double *dot) {
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
    if (v) *dot += FN(row_dot)(buf, v + at, k);
  }
  return s;
}

static double FN(sum_exp)(const T *x, T m, int64_t n) { return FN(sum_exps)(x, NULL, m, n, NULL); }

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

static void FN(lse_dual)(const T *x, const T *v, int64_t n, T *max, double *sum, double *dot) {
  T m = FN(row_max)(x, n);
  *max = m, *dot = 0;
  if (m == (T)INFINITY || m == -(T)INFINITY) {
    *max = 0, *sum = 0;
    for (int64_t i = 0; i < n; i++) *sum += (double)EXPF(x[i]), *dot += (double)EXPF(x[i]) * (double)v[i];
  } else {
    *sum = FN(sum_exps)(x, v, m, n, dot);
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
  T c = (T)log(FN(sum_exp)(x, m, n));
  for (int64_t i = 0; i < n; i++) y[i] = x[i] - m - c;
}

static void FN(softmax_bwd)(const T *dy, const T *y, T *dx, int64_t n) {
  T s = (T)FN(row_dot)(dy, y, n);
  for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - s);
}

static void FN(log_softmax_bwd)(const T *dy, const T *y, T *dx, int64_t n) {
  T s = (T)FN(row_sum)(dy, dy, n);
  for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - EXPNEG(y[i]) * s;
}

/* With tangents: t = v - sum(v e) / sum(e), and y (v - sum(v y)). */
static void FN(log_softmax_dual)(const T *x, const T *v, T *y, T *t, int64_t n) {
  T m = FN(row_max)(x, n);
  double dot = 0, sum = FN(sum_exps)(x, v, m, n, &dot);
  T c = (T)log(sum), s = (T)(dot / sum);
  for (int64_t i = 0; i < n; i++) {
    y[i] = x[i] - m - c;
    t[i] = v[i] - s;
  }
}

static void FN(softmax_dual)(const T *x, const T *v, T *y, T *t, int64_t n) {
  FN(softmax)(x, y, n);
  FN(softmax_bwd)(v, y, t, n);
}
