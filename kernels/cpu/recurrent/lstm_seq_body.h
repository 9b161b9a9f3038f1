/* SPDX-License-Identifier: MIT
 * Template: some rows of a batch through all steps of an LSTM, in scalar T with the loops LOOPS; NAME(x) makes names.
 * Included by lstm_seq.c once per scalar. No include guard. */

typedef T NAME(Four) __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));

/* Panel `at` of B, columns beyond the end zero: see plk_pack_panels. A transpose goes in squares of 4 × 4. */
static void NAME(pack)(const Pack *p, int64_t at) {
  enum { P = PLK_LSTM_PANEL / (int)sizeof(T) };
  const int64_t K = p->K, n = p->n, j = at * P;
  const T *w = p->w;
  T *dst = (T *)p->panels + j * K;
  int64_t e = 0;
  for (; p->transpose && e + 4 <= P && j + e + 4 <= n; e += 4) {
    const T *s = w + (j + e) * K;
    int64_t k = 0;
    for (; k + 4 <= K; k += 4) {
      const NAME(Four) a = *(const NAME(Four) *)(s + k), b = *(const NAME(Four) *)(s + K + k);
      const NAME(Four) c = *(const NAME(Four) *)(s + 2 * K + k), d = *(const NAME(Four) *)(s + 3 * K + k);
      const NAME(Four) x = __builtin_shufflevector(a, c, 0, 4, 1, 5), y = __builtin_shufflevector(b, d, 0, 4, 1, 5);
      const NAME(Four) z = __builtin_shufflevector(a, c, 2, 6, 3, 7), v = __builtin_shufflevector(b, d, 2, 6, 3, 7);
      *(NAME(Four) *)(dst + k * P + e) = __builtin_shufflevector(x, y, 0, 4, 1, 5);
      *(NAME(Four) *)(dst + (k + 1) * P + e) = __builtin_shufflevector(x, y, 2, 6, 3, 7);
      *(NAME(Four) *)(dst + (k + 2) * P + e) = __builtin_shufflevector(z, v, 0, 4, 1, 5);
      *(NAME(Four) *)(dst + (k + 3) * P + e) = __builtin_shufflevector(z, v, 2, 6, 3, 7);
    }
    for (; k < K; k++)
      for (int64_t i = 0; i < 4; i++) dst[k * P + e + i] = s[i * K + k];
  }
  for (; e < P; e++)
    for (int64_t k = 0; k < K; k++) dst[k * P + e] = j + e >= n ? 0 : p->transpose ? w[(j + e) * K + k] : w[k * n + j + e];
}

/* gx and gates are [S][N][4H], hs and cs [S + 1][N][H], x [S][N][I]. */
static PlStatus NAME(forward_rows)(const Seq *q, int64_t from, int64_t to) {
  const int64_t N = q->N, H = q->H, G = 4 * H, wide = plk_panels(G, sizeof(T)), rows = to - from;
  void *room;
  PL_TRY(plk_scratch((size_t)(rows * wide) * sizeof(T), &room));
  T *a = room, *hs = q->hs_out, *cs = q->cs_out;
  PlStatus s = PL_OK;
  for (int64_t k = 0; k < q->S && s == PL_OK; k++) {
    const int64_t x = place(q, k) * N, old = state(q, k) * N, new = state(q, k + 1) * N;
    if (q->x) q->loops->LOOPS.product((const T *)q->x + (x + from) * q->I, q->I, q->x_panels, q->I, a, wide, rows, wide, false);
    q->loops->LOOPS.product(hs + (old + from) * H, H, q->panels, H, a, wide, rows, wide, q->x != NULL);
    for (int64_t r = from; r < to; r++) {
      const T *more = q->x ? (const T *)q->bias : (const T *)q->gx + (x + r) * G;
      q->loops->LOOPS.step(more, a + (r - from) * wide, cs + (old + r) * H, (T *)q->gates_out + (x + r) * G, cs + (new + r) * H,
                           hs + (new + r) * H, H);
    }
    s = plk_poll();
  }
  plk_scratch_free(room);
  return s;
}

static void NAME(plus)(T *y, const T *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static PlStatus NAME(backward_rows)(const Seq *q, int64_t from, int64_t to) {
  const int64_t N = q->N, H = q->H, G = 4 * H, wide = plk_panels(H, sizeof(T)), rows = to - from;
  const T *cs = q->cs, *dhs = q->dhs, *dcs = q->dcs, *dgates = q->dgates;
  void *room;
  PL_TRY(plk_scratch((size_t)(rows * (wide + H)) * sizeof(T), &room));
  T *dh = room, *dc = dh + rows * wide; /* what comes from the step after */
  memset(room, 0, (size_t)(rows * (wide + H)) * sizeof(T));
  PlStatus s = PL_OK;
  for (int64_t k = q->S - 1; k >= 0 && s == PL_OK; k--) {
    const int64_t x = place(q, k) * N, old = state(q, k) * N, new = state(q, k + 1) * N;
    for (int64_t r = from; r < to; r++) {
      T *mine = dc + (r - from) * H;
      if (dcs) NAME(plus)(mine, dcs + (new + r) * H, H);
      q->loops->LOOPS.back((const T *)q->gates + (x + r) * G, cs + (old + r) * H, cs + (new + r) * H, dhs + (new + r) * H,
                           dh + (r - from) * wide, dgates ? dgates + (x + r) * G : NULL, mine, (T *)q->dgx + (x + r) * G, H);
    }
    q->loops->LOOPS.product((const T *)q->dgx + (x + from) * G, G, q->panels, G, dh, wide, rows, wide, false);
    s = plk_poll();
  }
  for (int64_t r = from; r < to && s == PL_OK; r++) {
    const int64_t first = (state(q, 0) * N + r) * H;
    NAME(plus)(dh + (r - from) * wide, dhs + first, H);
    if (dcs) NAME(plus)(dc + (r - from) * H, dcs + first, H);
    memcpy((T *)q->dh0 + r * H, dh + (r - from) * wide, (size_t)H * sizeof(T));
    memcpy((T *)q->dc0 + r * H, dc + (r - from) * H, (size_t)H * sizeof(T));
  }
  plk_scratch_free(room);
  return s;
}

#undef T
#undef NAME
#undef LOOPS
