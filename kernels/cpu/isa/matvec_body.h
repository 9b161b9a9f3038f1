/* SPDX-License-Identifier: MIT
 * The loops of isa/matvec.c for one type, included once a type, no guard. Given are S, what the matrix is stored as, T, what
 * is computed in, SFX and TSFX, the names of both, SUMS(s, rows, y), which adds the sum of vector
 * s[r] to y[r], and what reads the elements at p, or the first m of them and zeros, as a vector of T as wide as the machine's registers: MLOAD(p) and
 * MPART(p, m). */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkV, TSFX)
#define L          CAT1(PLK_N, TSFX)
#define LSUM       CAT1(plk_lanes_sum, TSFX)
#define M          CAT1(Matvec, TSFX) /* as wide as the machine's registers: W lanes */
#define W          ((int)(sizeof(M) / sizeof(T)))
#define MTAIL      CAT1(matvec_tail, TSFX)
#define MAT(p)     (*(const M *)(p))

/* ---- one vector ------------------------------------------------------------------------------------------- */

/* A few rows at a time; a row's bits do not depend on its place among them. Term i goes to lane i of 2 L. */
PLK_LANE void FN(rows)(const S *a, int64_t lda, const T *x, int64_t n, const int rows, int64_t ahead, double *y) {
  enum { PARTS = 128 / MATVEC_BYTES };
  for (int r = 0; r < rows; r++) y[r] = 0;
  for (int64_t from = 0; from < n; from += 4096) {
    const int64_t end = n - from < 4096 ? n : from + 4096;
    M s[MATVEC_DOTS][PARTS];
    MATVEC_UNROLL for (int r = 0; r < rows; r++) { MATVEC_UNROLL for (int p = 0; p < PARTS; p++) s[r][p] = (M){0}; }
    int64_t i = from;
    for (; i + 2 * L <= end; i += 2 * L) {
      MATVEC_UNROLL for (int r = 0; r < rows; r++) {
        if (sizeof(S) == 2) __builtin_prefetch(a + ahead + rows * i + r * 2 * L); /* the next rows, line by line */
        MATVEC_UNROLL for (int p = 0; p < PARTS; p++) s[r][p] += MAT(x + i + p * W) * MLOAD(a + r * lda + i + p * W);
      }
    }
    MATVEC_UNROLL for (int p = 0; p < PARTS; p++, i += W) {
      const int64_t m = end - i;
      if (m <= 0) break;
      const M u = m >= W ? MAT(x + i) : MTAIL(x + i, m, 0);
      for (int r = 0; r < rows; r++) s[r][p] += u * (m >= W ? MLOAD(a + r * lda + i) : MPART(a + r * lda + i, m));
    }
    for (int r = 0; r < rows; r++) {
      V v[2];
      memcpy(v, s[r], sizeof v);
      y[r] += LSUM(v[0] + v[1]);
    }
  }
}

static void FN(dots)(const void *av, int64_t lda, const void *x, int64_t rows, int64_t n, double *y) {
  const S *a = av;
  int64_t r = 0;
  for (; r + MATVEC_DOTS <= rows; r += MATVEC_DOTS, a += MATVEC_DOTS * lda)
    FN(rows)(a, lda, x, n, MATVEC_DOTS, r + 2 * MATVEC_DOTS <= rows ? MATVEC_DOTS * lda : 0, y + r);
  for (; r < rows; r++, a += lda) FN(rows)(a, lda, x, n, 1, 0, y + r);
}

/* acc[f][c] += sum over `terms` rows r of x[f * ldx + r * xs] a[r * lda + c] for c of two vectors, in the order of the rows. */
PLK_LANE void FN(add_two)(const S *a, int64_t lda, const T *x, int64_t xs, int64_t ldx, const int terms, int few, T *acc, int64_t ldacc) {
  M w[MATVEC_TERMS][2];
  MATVEC_UNROLL for (int r = 0; r < terms; r++) w[r][0] = MLOAD(a + r * lda), w[r][1] = MLOAD(a + r * lda + W);
  for (int f = 0; f < few; f++, acc += ldacc, x += ldx) {
    M s = MAT(acc), t = MAT(acc + W);
    MATVEC_UNROLL for (int r = 0; r < terms; r++) {
      const M u = x[r * xs] - (M){0}; /* in all lanes */
      s += w[r][0] * u;
      t += w[r][1] * u;
    }
    *(M *)acc = s;
    *(M *)(acc + W) = t;
  }
}
/* The rows `ahead` of these, if not 0, are asked for: of each no more than a block's columns are read, too little to foresee. */
PLK_LANE void FN(add_rows)(const S *a, int64_t lda, const T *x, int64_t xs, int64_t ldx, const int terms, int few, int64_t cols, T *acc,
                           int64_t ldacc, const int64_t ahead) {
  enum { LINE = 64 / sizeof(S) };
  int64_t c = 0;
  for (; c + 2 * W <= cols; c += 2 * W) {
    if (ahead) {
      MATVEC_UNROLL for (int r = 0; r < terms; r++) {
        for (int i = 0; i < 2 * W; i += LINE) __builtin_prefetch(a + r * lda + c + i + ahead);
      }
    }
    FN(add_two)(a + c, lda, x, xs, ldx, terms, few, acc + c, ldacc);
  }
  for (; c < cols; c += W) {
    M w[MATVEC_TERMS];
    MATVEC_UNROLL for (int r = 0; r < terms; r++) w[r] = cols - c >= W ? MLOAD(a + r * lda + c) : MPART(a + r * lda + c, cols - c);
    for (int f = 0; f < few; f++) {
      M *at = (M *)(acc + f * ldacc + c), s = *at;
      MATVEC_UNROLL for (int r = 0; r < terms; r++) s += w[r] * x[f * ldx + r * xs];
      *at = s;
    }
  }
}

/* The same additions as above for every column: term i of 4096 goes to lane i of 2 L, lanes are added as a tree. Rows that
 * go to one lane are taken together. */
static void FN(weigh)(const void *av, int64_t lda, const void *xv, int64_t rows, int64_t cols, double *PL_RESTRICT y) {
  enum { LANES = 2 * L, LD = PLK_MATVEC_COLS };
  const S *a = av;
  const T *x = xv;
  _Alignas(64) T lane[LANES][LD];
  const int64_t ceil = (cols + W - 1) / W * W, far = rows * lda * (int64_t)sizeof(S) > 1 << 19 ? lda : 0; /* else it may be in the cache */
  for (int64_t c = 0; c < cols; c++) y[c] = 0;
  for (int64_t r0 = 0; r0 < rows; r0 += 4096, a += 4096 * lda, x += 4096) {
    const int64_t m = rows - r0 < 4096 ? rows - r0 : 4096;
    for (int l = 0; l < LANES; l++) memset(lane[l], 0, (size_t)ceil * sizeof(T));
    int64_t r = 0;
    for (; r + LANES * MATVEC_TERMS <= m; r += LANES * MATVEC_TERMS)
      for (int l = 0; l < LANES; l++)
        FN(add_rows)(a + (r + l) * lda, LANES * lda, x + r + l, LANES, 0, MATVEC_TERMS, 1, cols, lane[l], LD, far);
    for (; r < m; r++) FN(add_rows)(a + r * lda, 0, x + r, 0, 0, 1, 1, cols, lane[r % LANES], LD, 0);
    for (int l = 0; l < L; l++)
      for (int64_t c = 0; c < cols; c++) lane[l][c] += lane[l + L][c];
    for (int64_t c = 0; c < cols; c++) {
      double s[8];
      for (int l = 0; l < 8; l++) s[l] = L == 16 ? (double)lane[l][c] + (double)lane[l + L / 2][c] : (double)lane[l][c];
      y[c] += ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
  }
}

/* ---- up to PLK_MATVEC_FEW vectors, large matrices ------------------------------------------------------------ */

/* Adds rows a[0 …] times vectors x, x + ldx … to y: a register for each sum, so each row is read and widened once for several
 * vectors. An element's sum has the same order whatever `rows` and `few`, which are constants after inlining. */
PLK_LANE void FN(tile)(const S *a, int64_t lda, const T *x, int64_t ldx, int64_t n, const int rows, const int few, double *y, int64_t ldy) {
  M s[MATVEC_TILE][MATVEC_ROWS];
  MATVEC_UNROLL for (int f = 0; f < few; f++) { MATVEC_UNROLL for (int r = 0; r < rows; r++) s[f][r] = (M){0}; }
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    M w[MATVEC_ROWS];
    MATVEC_UNROLL for (int r = 0; r < rows; r++) w[r] = MLOAD(a + r * lda + i);
    MATVEC_UNROLL for (int f = 0; f < few; f++) {
      const M u = MAT(x + f * ldx + i);
      MATVEC_UNROLL for (int r = 0; r < rows; r++) s[f][r] += u * w[r];
    }
  }
  if (i < n) MATVEC_UNROLL for (int r = 0; r < rows; r++) {
      const M w = MPART(a + r * lda + i, n - i);
      MATVEC_UNROLL for (int f = 0; f < few; f++) s[f][r] += MTAIL(x + f * ldx + i, n - i, 0) * w;
    }
  MATVEC_UNROLL for (int f = 0; f < few; f++) SUMS(s[f], rows, y + f * ldy);
}

/* Terms are taken in pieces, so that the vectors stay in the first cache while rows pass. */
static void FN(dots_few)(const void *av, int64_t lda, const void *xv, int64_t ldx, int few, int64_t rows, int64_t n, double *y,
                         int64_t ldy) {
  const int64_t step = few > MATVEC_TILE ? 512 : 2048;
  for (int f = 0; f < few; f++)
    for (int64_t r = 0; r < rows; r++) y[f * ldy + r] = 0;
  for (int64_t from = 0; from < n; from += step) {
    const S *a = (const S *)av + from;
    const T *x = (const T *)xv + from;
    const int64_t m = n - from < step ? n - from : step;
#define TILE(R, C) \
  case C: FN(tile)(a + r * lda, lda, x + f * ldx, ldx, m, R, C, y + f * ldy + r, ldy); break
    for (int64_t r = 0; r < rows;) {
      const bool all = r + MATVEC_ROWS <= rows;
      for (int f = 0; f < few;) {
        const int left = few - f, c = (left + (left - 1) / MATVEC_TILE) / ((left - 1) / MATVEC_TILE + 1); /* alike */
        if (all) {
          switch (c) {
            TILE(MATVEC_ROWS, 1);
            TILE(MATVEC_ROWS, 2);
            MATVEC_WIDE(TILE(MATVEC_ROWS, 3); TILE(MATVEC_ROWS, 4); TILE(MATVEC_ROWS, 5); TILE(MATVEC_ROWS, 6);)
          }
        } else {
          switch (c) {
            TILE(1, 1);
            TILE(1, 2);
            MATVEC_WIDE(TILE(1, 3); TILE(1, 4); TILE(1, 5); TILE(1, 6);)
          }
        }
        f += c;
      }
      r += all ? MATVEC_ROWS : 1;
    }
#undef TILE
  }
}

static void FN(weigh_few)(const void *av, int64_t lda, const void *xv, int64_t ldx, int few, int64_t rows, int64_t cols, double *y,
                          int64_t ldy) {
  const S *a = av;
  const T *x = xv;
  const int64_t ldacc = (cols + W - 1) / W * W;
  _Alignas(64) T acc[PLK_MATVEC_ROOM + PLK_MATVEC_FEW * W];
  for (int f = 0; f < few; f++)
    for (int64_t c = 0; c < cols; c++) y[f * ldy + c] = 0;
  for (int64_t r0 = 0; r0 < rows; r0 += 1024) {
    const int64_t end = rows - r0 < 1024 ? rows : r0 + 1024;
    memset(acc, 0, (size_t)(few * ldacc) * sizeof *acc);
    int64_t r = r0;
    for (; r + MATVEC_TERMS <= end; r += MATVEC_TERMS)
      FN(add_rows)(a + r * lda, lda, x + r, 1, ldx, MATVEC_TERMS, few, cols, acc, ldacc, 0);
    for (; r < end; r++) FN(add_rows)(a + r * lda, lda, x + r, 1, ldx, 1, few, cols, acc, ldacc, 0);
    for (int f = 0; f < few; f++)
      for (int64_t c = 0; c < cols; c++) y[f * ldy + c] += (double)acc[f * ldacc + c];
  }
}

#undef M
#undef W
#undef MTAIL
#undef MAT
#undef MLOAD
#undef MPART
#undef LSUM
#undef L
#undef V
#undef FN
#undef CAT1
#undef CAT2
#undef T
#undef S
#undef SFX
#undef TSFX
#undef SUMS
