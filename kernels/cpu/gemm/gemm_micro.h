/* SPDX-License-Identifier: MIT
 * Template: a matrix product of one scalar type at one ISA level, included by
 * gemm_packed.c after it set GM_T scalar, GM_VL lanes, GM_N(x) names, GM_TARGET attribute,
 * GM_SET1(s), GM_FMA(a, b, c), GM_MR rows of the register tile, GM_M2, GM_M3, GM_M4 the
 * heights used for what remains; GM_MASK, GM_LOAD and GM_STORE where lanes can be masked. A goes into panels [k][h], B into panels [k][2 * GM_VL],
 * zero-padded; an element's sum runs over k in one order whatever the panel, so its bits
 * do not depend on where a tile was cut. No include guard. */

typedef GM_T GM_N(vec) __attribute__((vector_size(GM_VL * sizeof(GM_T)), aligned(sizeof(GM_T)), may_alias));
typedef GM_T GM_N(quad) __attribute__((vector_size(4 * sizeof(GM_T)), aligned(sizeof(GM_T)), may_alias));

/* c[h × nv·VL] = beta c + alpha a·b, rows of b bp apart; h, nv and packed are constants after inlining. A lies packed, [k][h], or its
 * element (r, p) at r * ai + p * ap. far: both are packed and in the second cache, of which b is fetched ahead, and k elements each of the
 * GM_SOON rows at `soon`, which are packed next, are fetched from further away. */
static inline __attribute__((always_inline)) GM_TARGET void GM_N(micro)(const int h, const int nv, const bool packed, const bool far,
                                                                        int64_t k, const GM_T *pa, int64_t ai, int64_t ap, const GM_T *pb,
                                                                        int64_t bp, GM_T *c, int64_t ldc, GM_T alpha, GM_T beta,
                                                                        uintptr_t soon, int64_t soon_row) {
  GM_N(vec) acc[GM_MR][2];
  const char
      *four[(GM_MR + 3) / 4]; /* every fourth row: the others are within reach of one address. Steps in bytes that gcc knows nothing of:
                                     * else it makes a loop for 1, and copies all sums in both */
  int64_t row = ai * (int64_t)sizeof(GM_T), step = ap * (int64_t)sizeof(GM_T), b_step = bp * (int64_t)sizeof(GM_T);
  __asm__("" : "+r"(row), "+r"(step), "+r"(b_step));
  GM_UNROLL
  for (int i = 0; i < (GM_MR + 3) / 4; i++) four[i] = (const char *)pa + (4 * i < h ? 4 * i * row : 0);
  GM_UNROLL
  for (int r = 0; r < GM_MR; r++) acc[r][0] = acc[r][1] = (GM_N(vec)){0};
  for (int64_t p = 0; p < k; p++) {
    GM_N(vec) b0 = *(const GM_N(vec) *)pb, b1 = b0;
    if (far) {
      __builtin_prefetch(pb + 16 * 2 * GM_VL); /* rows of b are 2 GM_VL apart */
      if (sizeof b0 == 64) __builtin_prefetch(pb + 16 * 2 * GM_VL + GM_VL);
      GM_UNROLL
      for (int r = 0; r < GM_SOON; r++) __builtin_prefetch((const void *)(soon + (uintptr_t)(r * soon_row)), 0, 2);
      soon += sizeof(GM_T);
    }
    if (nv > 1) b1 = *(const GM_N(vec) *)(pb + GM_VL);
    GM_UNROLL
    for (int r = 0; r < h; r++) {
      GM_N(vec) a = packed ? GM_SET1(pa[r]) : GM_SET1(*(const GM_T *)(const void *)(four[r / 4] + r % 4 * row));
      acc[r][0] = GM_FMA(a, b0, acc[r][0]);
      if (nv > 1) acc[r][1] = GM_FMA(a, b1, acc[r][1]);
    }
    pa += packed ? h : 0;
    GM_UNROLL
    for (int i = 0; i < (GM_MR + 3) / 4; i++) four[i] += packed || 4 * i >= h ? 0 : step;
    pb = (const GM_T *)(const void *)((const char *)pb + b_step);
  }
  GM_N(vec) va = GM_SET1(alpha), vb = GM_SET1(beta);
  GM_UNROLL
  for (int r = 0; r < h; r++) {
    for (int v = 0; v < nv; v++) {
      GM_N(vec) *at = (GM_N(vec) *)(c + r * ldc + v * GM_VL);
      GM_N(vec) x = va * acc[r][v];
      if (beta != 0) x = vb * *at + x;
      *at = x;
    }
  }
}

/* Fewer rows than GM_MR are never packed. */
static GM_TARGET void GM_N(panel)(int h, int nv, int64_t k, const GM_T *pa, int64_t ai, int64_t ap, const GM_T *pb, int64_t bp, GM_T *c,
                                  int64_t ldc, GM_T alpha, GM_T beta) {
#define GM_CASE(H, PACKED)                                                                           \
  {                                                                                                  \
    if (nv == 2) GM_N(micro)(H, 2, PACKED, false, k, pa, ai, ap, pb, bp, c, ldc, alpha, beta, 0, 0); \
    else GM_N(micro)(H, 1, PACKED, false, k, pa, ai, ap, pb, bp, c, ldc, alpha, beta, 0, 0);         \
    return;                                                                                          \
  }
  if (h == GM_MR && ai == 1 && ap == GM_MR) GM_CASE(GM_MR, true)
  if (h == GM_MR) GM_CASE(GM_MR, false)
  if (h == GM_M2) GM_CASE(GM_M2, false)
  if (h == GM_M3) GM_CASE(GM_M3, false)
  if (h == GM_M4) GM_CASE(GM_M4, false)
  GM_CASE(1, false)
#undef GM_CASE
}

/* The last columns: into a full-width buffer, then only what exists. */
static GM_TARGET void GM_N(edge)(int h, int nc, int64_t k, const GM_T *pa, int64_t ai, int64_t ap, const GM_T *pb, GM_T *c, int64_t ldc,
                                 GM_T alpha, GM_T beta) {
  GM_T full[GM_MR * 2 * GM_VL];
  GM_N(panel)(h, nc > GM_VL ? 2 : 1, k, pa, ai, ap, pb, 2 * GM_VL, full, 2 * GM_VL, alpha, 0);
  for (int r = 0; r < h; r++) {
    const GM_T *x = full + r * 2 * GM_VL;
    GM_T *to = c + r * ldc;
    int j = 0;
    for (; beta == 0 && j + 4 <= nc; j += 4) *(GM_N(quad) *)(to + j) = *(const GM_N(quad) *)(x + j);
    for (; j < nc; j++) to[j] = beta == 0 ? x[j] : beta * to[j] + x[j];
  }
}

/* dst[p][w] for p < k from src(p, j) = src[p * sp + j * sj], j < n ≤ w; the rest zero, but for vectors that none asks for. Quads that
 * end at the last element take what whole quads leave over. */
static GM_TARGET void GM_N(pack)(int64_t k, int n, int w, const GM_T *src, int64_t sp, int64_t sj, GM_T *dst) {
  const int used = n > GM_VL ? w : w < GM_VL ? w : GM_VL;
  int j = 0;
  if (sj == 1 && n == 2 * GM_VL) {
    for (int64_t p = 0; p < k; p++, dst += w, src += sp) {
      *(GM_N(vec) *)dst = *(const GM_N(vec) *)src;
      *(GM_N(vec) *)(dst + GM_VL) = *(const GM_N(vec) *)(src + GM_VL);
    }
    return;
  }
  if (sj == 1) { /* rows of less than a panel */
    for (int64_t p = 0; p < k; p++, dst += w, src += sp) {
      for (j = 0; j + 4 <= n; j += 4) *(GM_N(quad) *)(dst + j) = *(const GM_N(quad) *)(src + j);
      if (n >= 4 && j < n) *(GM_N(quad) *)(dst + n - 4) = *(const GM_N(quad) *)(src + n - 4), j = n;
      for (; j < n; j++) dst[j] = src[j];
      for (; j < used; j++) dst[j] = 0;
    }
    return;
  }
  for (j = 0; j < n && n >= 4; j = j + 4 < n && j + 8 > n ? n - 4 : j + 4) {
    const GM_T *s0 = src + j * sj, *s1 = s0 + sj, *s2 = s1 + sj, *s3 = s2 + sj;
    GM_T *d = dst + j;
    int64_t p = 0;
    if (sp == 1) /* a transpose: in blocks of 4 × 4 */
      for (; p + 4 <= k; p += 4, d += 4 * w) {
        const GM_N(quad) a = *(const GM_N(quad) *)(s0 + p), b = *(const GM_N(quad) *)(s1 + p);
        const GM_N(quad) c = *(const GM_N(quad) *)(s2 + p), e = *(const GM_N(quad) *)(s3 + p);
        const GM_N(quad) ac0 = __builtin_shufflevector(a, c, 0, 4, 1, 5);
        const GM_N(quad) ac1 = __builtin_shufflevector(a, c, 2, 6, 3, 7);
        const GM_N(quad) be0 = __builtin_shufflevector(b, e, 0, 4, 1, 5);
        const GM_N(quad) be1 = __builtin_shufflevector(b, e, 2, 6, 3, 7);
        *(GM_N(quad) *)d = __builtin_shufflevector(ac0, be0, 0, 4, 1, 5);
        *(GM_N(quad) *)(d + w) = __builtin_shufflevector(ac0, be0, 2, 6, 3, 7);
        *(GM_N(quad) *)(d + 2 * w) = __builtin_shufflevector(ac1, be1, 0, 4, 1, 5);
        *(GM_N(quad) *)(d + 3 * w) = __builtin_shufflevector(ac1, be1, 2, 6, 3, 7);
      }
    for (; p < k; p++, d += w) {
      d[0] = s0[p * sp];
      d[1] = s1[p * sp];
      d[2] = s2[p * sp];
      d[3] = s3[p * sp];
    }
  }
  for (; j < used; j++)
    for (int64_t p = 0; p < k; p++) dst[p * w + j] = j < n ? src[p * sp + j * sj] : 0;
}

/* Whether n rows, `step` elements apart, fit the first cache: those that are a multiple of 4 KiB apart share a few of its lines. */
static bool GM_N(near)(int64_t n, int64_t step) {
  const int64_t bytes = step * (int64_t)sizeof(GM_T), apart = (bytes | 4096) & -(bytes | 4096);
  return n * apart <= 8 * 4096;
}

/* The whole product; work holds GM_KC * (GM_NC + GM_MR) scalars, fewer when K and N are less. What is read a few times only, and lies well,
 * is not packed. */
static GM_TARGET void GM_N(gemm)(const PlkGemm *g, void *work) {
  enum { FEW_ROWS = 5 * GM_MR };
  const int w = 2 * GM_VL;
  const GM_T *A = g->A, *B = g->B;
  GM_T *C = g->C;
  const int64_t ai = g->ta ? 1 : g->lda, ap = g->ta ? g->lda : 1;
  const int64_t bp = g->tb ? 1 : g->ldb, bj = g->tb ? g->ldb : 1;
  const bool b_lies = !g->tb && g->M <= FEW_ROWS && GM_N(near)(g->K < GM_KC ? g->K : GM_KC, bp);
  const bool a_lies = g->ta ? GM_N(near)(g->K < GM_KC ? g->K : GM_KC, ap) : GM_N(near)(GM_MR, ai);
  for (int64_t p0 = 0; p0 < g->K; p0 += GM_KC) {
    const int64_t kc = g->K - p0 < GM_KC ? g->K - p0 : GM_KC;
    const GM_T beta = p0 == 0 ? (GM_T)g->beta : 1;
    for (int64_t j0 = 0; j0 < g->N; j0 += GM_NC) {
      const int64_t nc = g->N - j0 < GM_NC ? g->N - j0 : GM_NC;
      GM_T *pb = work, *pa = pb + kc * ((nc + w - 1) / w * w);
      for (int64_t j = b_lies ? nc / w * w : 0; j < nc; j += w) GM_N(pack)
      (kc, (int)(nc - j < w ? nc - j : w), w, B + p0 * bp + (j0 + j) * bj, bp, bj, pb + j * kc);
      int h;
      for (int64_t i = 0; i < g->M; i += h) {
        const int64_t left = g->M - i;
        h = left >= GM_MR ? GM_MR : left >= GM_M2 ? GM_M2 : left >= GM_M3 ? GM_M3 : left >= GM_M4 ? GM_M4 : 1;
        const GM_T *a = A + i * ai + p0 * ap;
        int64_t as = ai, at = ap;
        if (h == GM_MR && !a_lies) {
          GM_N(pack)(kc, h, h, a, ap, ai, pa);
          a = pa, as = 1, at = h;
        }
        for (int64_t j = 0; j < nc; j += w) {
          GM_T *c = C + i * g->ldc + j0 + j;
          const GM_T *b = b_lies && nc - j >= w ? B + p0 * bp + j0 + j : pb + j * kc;
          const int64_t rows = b_lies && nc - j >= w ? bp : w;
          if (nc - j >= w) GM_N(panel)(h, 2, kc, a, as, at, b, rows, c, g->ldc, (GM_T)g->alpha, beta);
          else if (nc - j == GM_VL) GM_N(panel)(h, 1, kc, a, as, at, b, rows, c, g->ldc, (GM_T)g->alpha, beta);
          else GM_N(edge)
          (h, (int)(nc - j), kc, a, as, at, b, c, g->ldc, (GM_T)g->alpha, beta);
        }
      }
    }
  }
}

/* One unit of gemm_panels.c: g's rows, whose whole panels lie packed at `rows`, times nc columns, packed at `columns`, kc terms from p0 on, added
 * to what the terms before gave. What is packed next is fetched meanwhile: the columns at `soon`, soon_row bytes apart; 0: none. */
static GM_TARGET void GM_N(strip_of)(const PlkGemm *g, int64_t p0, int64_t kc, const void *rows, const void *columns, int64_t nc, void *to,
                                     uintptr_t soon, int64_t soon_row) {
  const int w = 2 * GM_VL;
  const int64_t ai = g->ta ? 1 : g->lda, ap = g->ta ? g->lda : 1;
  const GM_T alpha = (GM_T)g->alpha, beta = p0 == 0 ? (GM_T)g->beta : 1;
  for (int64_t j = 0; j < nc; j += w) {
    const GM_T *pb = (const GM_T *)columns + j * kc, *a = rows;
    GM_T *c = (GM_T *)to + j;
    int h;
    for (int64_t i = 0; i < g->M; i += h, c += h * g->ldc) {
      const int64_t left = g->M - i;
      h = left >= GM_MR ? GM_MR : left >= GM_M2 ? GM_M2 : left >= GM_M3 ? GM_M3 : left >= GM_M4 ? GM_M4 : 1;
      const bool packed = h == GM_MR;
      const GM_T *x = packed ? a : (const GM_T *)g->A + i * ai + p0 * ap;
      const int64_t xi = packed ? 1 : ai, xp = packed ? GM_MR : ap;
      if (packed) a += GM_MR * kc;
      const uintptr_t at = soon + (uintptr_t)(i / GM_MR * GM_SOON * soon_row);
      if (packed && nc - j >= w && soon && i / GM_MR * GM_SOON < w)
        GM_N(micro)(GM_MR, 2, true, true, kc, x, 1, GM_MR, pb, w, c, g->ldc, alpha, beta, at, soon_row);
      else if (nc - j >= w) GM_N(panel)(h, 2, kc, x, xi, xp, pb, w, c, g->ldc, alpha, beta);
      else if (nc - j == GM_VL) GM_N(panel)(h, 1, kc, x, xi, xp, pb, w, c, g->ldc, alpha, beta);
      else GM_N(edge)(h, (int)(nc - j), kc, x, xi, xp, pb, c, g->ldc, alpha, beta);
    }
  }
}

/* n rows or columns as panels of w, one behind the other: element (p, j) of src at p * sp + j * sj. */
static GM_TARGET void GM_N(panels_of)(int64_t k, int64_t n, int w, const void *from, int64_t sp, int64_t sj, void *to) {
  enum { AHEAD = 16 };
  const GM_T *src = from;
  GM_T *dst = to;
  int64_t j = 0;
  if (sj == 1 && w == 2 * GM_VL) { /* rows of all panels at once, as they are far apart */
    const int64_t whole = n / w * w;
    for (int64_t p = 0; p < k; p++)
      for (j = 0; j < whole; j += w) {
        const GM_T *at = src + p * sp + j;
        for (int64_t b = 0; b < w; b += 64 / (int64_t)sizeof(GM_T)) __builtin_prefetch(at + AHEAD * sp + b);
        *(GM_N(vec) *)(dst + j * k + p * w) = *(const GM_N(vec) *)at;
        *(GM_N(vec) *)(dst + j * k + p * w + GM_VL) = *(const GM_N(vec) *)(at + GM_VL);
      }
    j = whole;
  }
  for (; j < n; j += w) {
    const int some = (int)(n - j < w ? n - j : w);
    int64_t p = 0;
#ifdef GM_TURN
    if (sp == 1 && some == 2 * GM_VL && w == some) p = k / 4 * 4, GM_TURN(p, src + j * sj, sj, dst + j * k);
#endif
    if (p < k) GM_N(pack)(k - p, some, w, src + j * sj + p * sp, sp, sj, dst + j * k + p * w);
  }
}

static const PlkGemmCode GM_N(code) = {GM_MR, 2 * GM_VL, GM_N(panels_of), GM_N(strip_of)};
#undef GM_TURN

#ifdef GM_MASK
/* B not transposed, N <= GM_VL, K <= GM_KC: an element's sum runs as in micro(), but A and B are read where they lie. */
static inline __attribute__((always_inline)) GM_TARGET void GM_N(strip)(const int h, const PlkGemm *g, const GM_T *a, int64_t ai,
                                                                        int64_t ap, const GM_T *b, int64_t bp, GM_T *c) {
  const GM_MASK m = (GM_MASK)((1u << g->N) - 1);
  const GM_N(vec) va = GM_SET1((GM_T)g->alpha), vb = GM_SET1((GM_T)g->beta);
  GM_N(vec) acc[GM_MR];
  GM_UNROLL
  for (int r = 0; r < h; r++) acc[r] = (GM_N(vec)){0};
  for (int64_t p = 0; p < g->K; p++) {
    const GM_N(vec) row = GM_LOAD(m, b + p * bp);
    GM_UNROLL
    for (int r = 0; r < h; r++) acc[r] = GM_FMA(GM_SET1(a[r * ai + p * ap]), row, acc[r]);
  }
  GM_UNROLL
  for (int r = 0; r < h; r++) {
    GM_N(vec) x = va * acc[r];
    if (g->beta != 0) x = vb * GM_LOAD(m, c + r * g->ldc) + x;
    GM_STORE(c + r * g->ldc, m, x);
  }
}

static GM_TARGET void GM_N(narrow)(const PlkGemm *g, void *work) {
  const GM_T *A = g->A, *B = g->B;
  const int64_t ai = g->ta ? 1 : g->lda, ap = g->ta ? g->lda : 1;
  int64_t left = g->M;
  (void)work;
#define GM_STRIP(H) \
  for (; left >= H; left -= H) GM_N(strip)(H, g, A + (g->M - left) * ai, ai, ap, B, g->ldb, (GM_T *)g->C + (g->M - left) * g->ldc);
  GM_STRIP(GM_M2)
  GM_STRIP(GM_M3)
  GM_STRIP(1)
#undef GM_STRIP
}
#undef GM_MASK
#undef GM_LOAD
#undef GM_STORE
#endif

#undef GM_T
#undef GM_VL
#undef GM_N
#undef GM_TARGET
#undef GM_SET1
#undef GM_FMA
#undef GM_MR
#undef GM_M2
#undef GM_M3
#undef GM_M4
