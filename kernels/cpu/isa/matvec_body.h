/* SPDX-License-Identifier: MIT
 * The loops of isa/matvec.c for one type: T and SFX (f32 or f64) are given. Included twice, no guard. */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkV, SFX)
#define L          CAT1(PLK_N, SFX)
#define LSUM       CAT1(plk_lanes_sum, SFX)
#define TAIL       CAT1(plk_tail, SFX)
#define AT(p)      (*(const V *)(p))

/* Four rows at a time; a row's bits do not depend on its place among them. */
PLK_LANE void FN(four)(const T *const a[4], const T *x, int64_t n, int rows, double *y) {
  for (int r = 0; r < rows; r++) y[r] = 0;
  for (int64_t from = 0; from < n; from += 4096) {
    const int64_t end = n - from < 4096 ? n : from + 4096;
    V s[4][2] = {{{0}}};
    int64_t i = from;
    for (; i + 2 * L <= end; i += 2 * L) {
      const V u = AT(x + i), v = AT(x + i + L);
      for (int r = 0; r < rows; r++) {
        s[r][0] += u * AT(a[r] + i);
        s[r][1] += v * AT(a[r] + i + L);
      }
    }
    for (int h = 0; i < end; h++, i += L) {
      const int64_t m = end - i < L ? end - i : L;
      const V u = m == L ? AT(x + i) : TAIL(x + i, m, 0);
      for (int r = 0; r < rows; r++) s[r][h] += u * (m == L ? AT(a[r] + i) : TAIL(a[r] + i, m, 0));
    }
    for (int r = 0; r < rows; r++) y[r] += LSUM(s[r][0] + s[r][1]);
  }
}

static void FN(dots)(const T *a, int64_t lda, const T *x, int64_t rows, int64_t n, double *y) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, a += 4 * lda) FN(four)((const T *const[4]){a, a + lda, a + 2 * lda, a + 3 * lda}, x, n, 4, y + r);
  for (; r < rows; r++, a += lda) FN(four)((const T *const[4]){a, a, a, a}, x, n, 1, y + r);
}

/* The same additions as above for every column: term i of 4096 goes to lane i of 2 L, lanes are added as a tree. */
static void FN(weigh)(const T *a, int64_t lda, const T *x, int64_t rows, int64_t cols, double *PL_RESTRICT y) {
  enum { LANES = 2 * L };
  T lane[LANES][PLK_MATVEC_COLS];
  for (int64_t c = 0; c < cols; c++) y[c] = 0;
  for (int64_t r0 = 0; r0 < rows; r0 += 4096) {
    const int64_t m = rows - r0 < 4096 ? rows - r0 : 4096;
    for (int l = 0; l < LANES; l++)
      for (int64_t c = 0; c < cols; c++) lane[l][c] = 0;
    for (int64_t r = 0; r < m; r++, a += lda) {
      T *PL_RESTRICT to = lane[r % LANES];
      const T w = x[r0 + r];
      for (int64_t c = 0; c < cols; c++) to[c] += w * a[c];
    }
    for (int l = 0; l < L; l++)
      for (int64_t c = 0; c < cols; c++) lane[l][c] += lane[l + L][c];
    for (int64_t c = 0; c < cols; c++) {
      double s[8];
      for (int l = 0; l < 8; l++) s[l] = L == 16 ? (double)lane[l][c] + (double)lane[l + L / 2][c] : (double)lane[l][c];
      y[c] += ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
  }
}

#undef AT
#undef TAIL
#undef LSUM
#undef L
#undef V
#undef FN
#undef CAT1
#undef CAT2
