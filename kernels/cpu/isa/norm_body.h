/* SPDX-License-Identifier: MIT
 * The loops of isa/norm.c for one type: T, SFX (f32 or f64) and EXPF are given. Included twice, no guard.
 * Row sums run in two vectors of lanes over chunks of 4096 elements, then in double. */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkV, SFX)
#define L          CAT1(PLK_N, SFX)
#define LSUM       CAT1(plk_lanes_sum, SFX)
#define TAIL       CAT1(plk_tail, SFX)
#define VMAX       CAT1(plk_max, SFX)

#define AT(p) (*(const V *)((p) + i))

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

/* Dot-like sums: TERM of a vector u of row p and w of row q (which may be p), over chunks of 4096 elements.
 * Lanes beyond the end hold PU and PW, which make TERM 0. */
#define ROWSUM(name, PARAMS, TERM, PU, PW)               \
  static double FN(name) PARAMS {                        \
    double total = 0;                                    \
    for (int64_t at = 0; at < n; at += 4096) {           \
      int64_t m = n - at < 4096 ? n : at + 4096, i = at; \
      V a = {0}, b = {0};                                \
      for (; i + 2 * L <= m; i += 2 * L) {               \
        V u = AT(p), w = AT(q);                          \
        (void)w;                                         \
        a += TERM;                                       \
        u = AT(p + L), w = AT(q + L);                    \
        b += TERM;                                       \
      }                                                  \
      for (; i < m; i += L) {                            \
        bool whole = i + L <= m;                         \
        V u = whole ? AT(p) : TAIL(p + i, m - i, PU);    \
        V w = whole ? AT(q) : TAIL(q + i, m - i, PW);    \
        (void)w;                                         \
        a += TERM;                                       \
      }                                                  \
      total += LSUM(a + b);                              \
    }                                                    \
    return total;                                        \
  }
ROWSUM(row_sum, (const T *p, const T *q, int64_t n), u, 0, 0)
ROWSUM(row_dot, (const T *p, const T *q, int64_t n), u *w, 0, 0)
ROWSUM(row_sqdiff, (const T *p, const T *q, T c, int64_t n), (u - c) * (w - c), c, c)
ROWSUM(row_dotdiff, (const T *p, const T *q, T c, int64_t n), u *(w - c), 0, c)

static void FN(exp)(const T *x, T m, T a, T *y, int64_t n) {
  if (a == 1)
    for (int64_t i = 0; i < n; i++) y[i] = EXPF(x[i] - m);
  else
    for (int64_t i = 0; i < n; i++) y[i] = a * EXPF(x[i] - m);
}

/* sum exp(x - m); the end of the row is padded with -inf to a whole vector. */
static double FN(sum_exp)(const T *x, T m, int64_t n) {
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
  }
  return s;
}

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

static void FN(moments)(const T *x, int64_t n, bool center, double *mean, double *m2) {
  double mu = center ? FN(row_sum)(x, x, n) / (double)n : 0;
  T c = (T)mu;
  double s = FN(row_sqdiff)(x, x, c, n), d = mu - (double)c;
  s -= d * d * (double)n; /* the mean was rounded */
  *mean = mu;
  *m2 = s < 0 ? 0 : s;
}

static void FN(norm)(const T *x, const T *w, const T *b, T *PL_RESTRICT y, int64_t n, T mean, T rstd) {
  if (w && b)
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i] + b[i];
  else if (w)
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i];
  else if (b)
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd + b[i];
  else
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd;
}

/* g = w dy, h = (x - mean) rstd:  dx = rstd (g - mean g - h mean(g h));  dw += dy h;  db += dy. */
static void FN(norm_bwd)(const T *dy, const T *x, const T *w, T mean, T rstd, bool center, T *PL_RESTRICT dx, T *PL_RESTRICT dw,
                         T *PL_RESTRICT db, int64_t n) {
  if (dx) {
    double s1, s2;
    if (w) {
      V a = {0}, a2 = {0}, b = {0}, b2 = {0};
      int64_t i = 0;
      s1 = s2 = 0;
      for (; i + 2 * L <= n; i += 2 * L) {
        V g = AT(dy) * AT(w), g2 = AT(dy + L) * AT(w + L);
        a += g, a2 += g2;
        b += g * (AT(x) - mean), b2 += g2 * (AT(x + L) - mean);
        if ((i & 4095) == 4096 - 2 * L) { /* bounds the additions behind one lane */
          s1 += LSUM(a + a2), s2 += LSUM(b + b2);
          a = a2 = b = b2 = (V){0};
        }
      }
      for (; i < n; i += L) {
        bool whole = i + L <= n;
        V g = whole ? AT(dy) * AT(w) : TAIL(dy + i, n - i, 0) * TAIL(w + i, n - i, 0);
        a += g;
        b += g * ((whole ? AT(x) : TAIL(x + i, n - i, mean)) - mean);
      }
      s1 += LSUM(a + a2), s2 += LSUM(b + b2);
    } else {
      s1 = center ? FN(row_sum)(dy, dy, n) : 0;
      s2 = FN(row_dotdiff)(dy, x, mean, n);
    }
    T c1 = center ? (T)(s1 / (double)n) : 0, c2 = (T)(s2 * (double)rstd * (double)rstd / (double)n);
    if (w)
      for (int64_t i = 0; i < n; i++) dx[i] = rstd * (dy[i] * w[i] - c1 - (x[i] - mean) * c2);
    else
      for (int64_t i = 0; i < n; i++) dx[i] = rstd * (dy[i] - c1 - (x[i] - mean) * c2);
  }
  if (dw && db)
    for (int64_t i = 0; i < n; i++) dw[i] += dy[i] * ((x[i] - mean) * rstd), db[i] += dy[i];
  else if (dw)
    for (int64_t i = 0; i < n; i++) dw[i] += dy[i] * ((x[i] - mean) * rstd);
  else if (db)
    for (int64_t i = 0; i < n; i++) db[i] += dy[i];
}

static void FN(dots)(const T *dy, const T *x, T mean, int64_t n, double *s1, double *s2) {
  *s1 = FN(row_sum)(dy, dy, n);
  *s2 = FN(row_dotdiff)(dy, x, mean, n);
}

static void FN(affine)(const T *x, T mean, T a, T c, T *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = a * (x[i] - mean) + c;
}

static void FN(affine2)(const T *dy, const T *x, T mean, T a, T b, T c, T *dx, int64_t n) {
  for (int64_t i = 0; i < n; i++) dx[i] = a * dy[i] + b * (x[i] - mean) + c;
}

#undef AT
#undef ROWSUM
#undef CAT2
#undef CAT1
#undef FN
#undef V
#undef L
#undef LSUM
#undef TAIL
#undef VMAX
