/* SPDX-License-Identifier: MIT
 * The loops of isa/norm.c for one type: T and SFX (f32 or f64) are given. Included twice, no guard. */
ROWSUM(row_sum, (const T *p, const T *q, int64_t n), u, 0, 0)
ROWSUM(row_sqdiff, (const T *p, const T *q, T c, int64_t n), (u - c) * (w - c), c, c)
ROWSUM(row_dotdiff, (const T *p, const T *q, T c, int64_t n), u *(w - c), 0, c)

/* The same in double one by one, where lanes of T went beyond its range; what goes beyond that of double, too, is NaN, never 0 by 1/inf. */
static void FN(moments_far)(const T *x, int64_t n, bool center, double *mean, double *m2) {
  double mu = 0, s = 0;
  for (int64_t i = 0; center && i < n; i++) mu += (double)x[i];
  mu /= (double)n;
  for (int64_t i = 0; i < n; i++) s += ((double)x[i] - mu) * ((double)x[i] - mu);
  *mean = mu;
  *m2 = center && isinf(s) ? (double)NAN : s;
}

static void FN(moments)(const T *x, int64_t n, bool center, double *mean, double *m2) {
  double mu = center ? FN(row_sum)(x, x, n) / (double)n : 0;
  T c = (T)mu;
  double s = FN(row_sqdiff)(x, x, c, n), d = mu - (double)c;
  if (!isfinite(s)) {
    FN(moments_far)(x, n, center, mean, m2);
    return;
  }
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
      enum { N = PLK_PARTS };
      P a[2 * N], b[2 * N];
      int64_t i = 0;
      s1 = s2 = 0;
      for (int k = 0; k < 2 * N; k++) a[k] = b[k] = (P){0};
#define FLUSH                                                       \
  {                                                                 \
    for (int k = 0; k < N; k++) a[k] += a[N + k], b[k] += b[N + k]; \
    s1 += LSUM(a), s2 += LSUM(b);                                   \
  }
      for (; i + 2 * L <= n; i += 2 * L) {
        for (int k = 0; k < 2 * N; k++) {
          const P g = AT(dy, k) * AT(w, k);
          a[k] += g;
          b[k] += g * (AT(x, k) - mean);
        }
        if ((i & 4095) == 4096 - 2 * L) { /* bounds the additions behind one lane */
          FLUSH
          for (int k = 0; k < 2 * N; k++) a[k] = b[k] = (P){0};
        }
      }
      for (; i + L <= n; i += L)
        for (int k = 0; k < N; k++) {
          const P g = AT(dy, k) * AT(w, k);
          a[k] += g;
          b[k] += g * (AT(x, k) - mean);
        }
      if (i < n) {
        const V vy = TAIL(dy + i, n - i, 0), vw = TAIL(w + i, n - i, 0), vx = TAIL(x + i, n - i, mean);
        for (int k = 0; k < N; k++) {
          const P g = PART(vy, k) * PART(vw, k);
          a[k] += g;
          b[k] += g * (PART(vx, k) - mean);
        }
      }
      FLUSH
#undef FLUSH
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
