/* SPDX-License-Identifier: MIT
 * Template: some rows of a batch through all steps of a GRU, in scalar T with the loops LOOPS; NAME(x) makes names.
 * Included by gru_seq.c once per scalar. No include guard. */

/* gx is [S][N][3H], acts [S][N][4H], hs [S + 1][N][H]. */
static PlStatus NAME(forward_rows)(const Seq *q, int64_t from, int64_t to) {
  const int64_t N = q->N, H = q->H, wide = plk_panels(3 * H, sizeof(T)), rows = to - from;
  void *room;
  PL_TRY(plk_scratch((size_t)(rows * wide) * sizeof(T), &room));
  T *a = room, *hs = q->hs_out;
  PlStatus s = PL_OK;
  for (int64_t k = 0; k < q->S && s == PL_OK; k++) {
    const int64_t x = place(q, k) * N, old = state(q, k) * N, new = state(q, k + 1) * N;
    q->products->LOOPS.product(hs + (old + from) * H, H, q->panels, H, a, wide, rows, wide, false);
    for (int64_t r = from; r < to; r++)
      q->loops->LOOPS.step((const T *)q->gx + (x + r) * 3 * H, a + (r - from) * wide, q->bias, hs + (old + r) * H,
                           (T *)q->acts_out + (x + r) * 4 * H, hs + (new + r) * H, H);
    s = plk_poll();
  }
  plk_scratch_free(room);
  return s;
}

static PlStatus NAME(backward_rows)(const Seq *q, int64_t from, int64_t to) {
  const int64_t N = q->N, H = q->H, wide = plk_panels(H, sizeof(T)), rows = to - from;
  const T *hs = q->hs, *dhs = q->dhs, *dacts = q->dacts;
  void *room;
  PL_TRY(plk_scratch((size_t)(rows * (wide + H)) * sizeof(T), &room));
  T *p = room, *dh = p + rows * wide; /* a product; what comes from the step after */
  memset(dh, 0, (size_t)(rows * H) * sizeof(T));
  PlStatus s = PL_OK;
  for (int64_t k = q->S - 1; k >= 0 && s == PL_OK; k--) {
    const int64_t x = place(q, k) * N, old = state(q, k) * N, new = state(q, k + 1) * N;
    for (int64_t r = from; r < to; r++)
      q->loops->LOOPS.back((const T *)q->acts + (x + r) * 4 * H, hs + (old + r) * H, dhs + (new + r) * H, dh + (r - from) * H,
                           dacts ? dacts + (x + r) * 4 * H : NULL, (T *)q->dgx + (x + r) * 3 * H, (T *)q->da + (x + r) * 3 * H, H);
    q->products->LOOPS.product((const T *)q->da + (x + from) * 3 * H, 3 * H, q->panels, 3 * H, p, wide, rows, wide, false);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < H; j++) dh[r * H + j] += p[r * wide + j];
    s = plk_poll();
  }
  for (int64_t r = from; r < to && s == PL_OK; r++)
    for (int64_t j = 0; j < H; j++) ((T *)q->dh0)[r * H + j] = dh[(r - from) * H + j] + dhs[(state(q, 0) * N + r) * H + j];
  plk_scratch_free(room);
  return s;
}

/* db[H]: the sums of the last thirds of da[rows][3H]. */
static void NAME(bias_gradient)(const Seq *q, void *db) {
  T *sum = db;
  memset(db, 0, (size_t)q->H * sizeof(T));
  for (int64_t r = 0; r < q->S * q->N; r++)
    for (int64_t j = 0; j < q->H; j++) sum[j] += ((const T *)q->da)[r * 3 * q->H + 2 * q->H + j];
}

#undef T
#undef NAME
#undef LOOPS
