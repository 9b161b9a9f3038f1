/* SPDX-License-Identifier: MIT
 * Template: attention a few rows of scores at a time, in scalar T with the inner loops LOOPS; NAME(x) makes names.
 * Keys and values are copied once a task, transposed where the product wants it, and padded with zeros to whole
 * vectors. Included by attention_f32.c and attention_f64.c. No include guard. */

enum { R = PLK_AT_ROWS, GROUP = 16 };

static int64_t padded(int64_t n) { return (n + PLK_AT_LANES - 1) / PLK_AT_LANES * PLK_AT_LANES; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static PlStatus zeroed(int64_t n, T **out) {
  void *p;
  PL_TRY(plk_scratch((size_t)(n + 1) * sizeof(T), &p));
  memset(p, 0, (size_t)(n + 1) * sizeof(T));
  *out = p;
  return PL_OK;
}

/* dst[n][ld] <- rows from i on; dst[c][ld] <- the same transposed, row by row through `row`. The rest of dst is zero
 * already. */
static void rows(T *dst, int64_t ld, const PlkAtMat *m, int64_t at, int64_t i, int64_t n) {
  for (int64_t r = 0; r < n; r++) NAME(plk_at_row)(m, at, i + r, m->c, dst + r * ld);
}
/* Whether the elements of a row are adjacent, as T. */
static bool plain(const PlkAtMat *m) { return m->dtype == (sizeof(T) == sizeof(double) ? PL_F64 : PL_F32) && (m->cs == 1 || m->c == 1); }
static void transposed(T *dst, int64_t ld, const PlkAtMat *m, int64_t at, int64_t n, T *row) {
  if (plain(m)) {
    plk_transpose(sizeof(T))(dst, ld, (const T *)m->data + at, m->rs, n, m->c);
    return;
  }
  for (int64_t r = 0; r < n; r++) {
    NAME(plk_at_row)(m, at, r, m->c, row);
    for (int64_t j = 0; j < m->c; j++) dst[j * ld + r] = row[j];
  }
}

/* What is added to the scores of row i, or NULL. */
static const T *mask_row(const PlkAtCall *c, int64_t at, int64_t i, int64_t n, T *room) {
  if (!c->mask.data) return NULL;
  NAME(plk_at_row)(&c->mask, at, i, n, room);
  return room;
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */

typedef struct Forward {
  T *kt, *s, *q, *o, *add, *row; /* [E][Sp], [R][Sp], [R][E], [R][Dp], [Sp], [max(E, D)] */
  const T *v;                    /* [keys][vs], in place if its rows are whole vectors */
  int64_t vs;
  uint32_t *word; /* [S + 3] */
} Forward;

/* Queries i … i + m of batch b; m is at most R. */
static void forward_rows(const PlkAtCall *c, const Forward *t, int64_t b, int64_t i, int64_t m) {
  const int64_t E = c->E, D = c->D, Sp = padded(c->S), Dp = padded(D), n = plk_at_seen(c, i + m - 1), w = padded(n);
  memset(t->q, 0, (size_t)(R * E) * sizeof(T));
  rows(t->q, E, &c->q, plk_at_offset(&c->q, b), i, m);
  for (int64_t r = 0; r < R; r++) memset(t->s + r * Sp, 0, (size_t)w * sizeof(T));
  memset(t->o, 0, (size_t)(R * Dp) * sizeof(T));
  c->loops->LOOPS.mm4(t->q, E, 1, t->kt, Sp, E, t->s, Sp, w);
  const int64_t mask_at = plk_at_offset(&c->mask, b);
  T sum[R] = {0};
  for (int64_t r = 0; r < m; r++) {
    const int64_t own = plk_at_seen(c, i + r);
    const T *add = mask_row(c, mask_at, i + r, own, t->add);
    const T top = c->loops->LOOPS.softmax(t->s + r * Sp, add, own, w, (T)c->scale, &sum[r]);
    T *kept = c->sums ? (T *)c->sums + 2 * (b * c->L + i + r) : NULL;
    if (kept) kept[0] = top, kept[1] = sum[r];
    if (!c->cut) continue;
    plk_at_words(c, b, i + r, own, t->word);
    c->loops->LOOPS.drop(t->s + r * Sp, t->word, own, c->cut, (T)c->keep);
  }
  c->loops->LOOPS.mm4(t->s, Sp, 1, t->v, t->vs, n, t->o, Dp, Dp);
  for (int64_t r = 0; r < m && c->y; r++) {
    for (int64_t d = 0; d < D; d++) t->o[r * Dp + d] /= sum[r];
    NAME(plk_at_put)(c->y, c->dtype, (b * c->L + i + r) * D, t->o + r * Dp, D);
  }
}

/* Keys or values i … i + n, in place if that is how loops want them (*ld apart), else copied to `room`. */
static const T *block(const PlkAtMat *m, int64_t at, bool as_is, int64_t i, int64_t n, T *room, int64_t width, int64_t *ld) {
  *ld = as_is ? m->rs : width;
  if (as_is) return (const T *)m->data + at + i * m->rs;
  rows(room, width, m, at, i, n);
  return room;
}

/* Fewer queries than a small product has rows: one after the other, and nothing is transposed. */
static PlStatus forward_few(const PlkAtCall *c, int64_t b, int64_t from, int64_t to) {
  const int64_t E = c->E, D = c->D, Sp = padded(c->S), Dp = padded(D), wide = E > Dp ? E : Dp;
  const int64_t k_at = plk_at_offset(&c->k, b), v_at = plk_at_offset(&c->v, b);
  const bool v_as_is = plain(&c->v) && D == Dp;
  T *room;
  PL_TRY(zeroed(2 * Sp + E + Dp + GROUP * wide + c->S + 4, &room));
  T *s = room, *add = s + Sp, *q = add + Sp, *o = q + E, *part = o + Dp;
  uint32_t *word = (uint32_t *)(void *)(part + GROUP * wide);
  for (int64_t i = from; i < to; i++) {
    const int64_t n = plk_at_seen(c, i), w = padded(n);
    int64_t ld;
    rows(q, E, &c->q, plk_at_offset(&c->q, b), i, 1);
    for (int64_t j = 0; j < n; j += GROUP) {
      const int64_t m = smaller(GROUP, n - j);
      const T *k = block(&c->k, k_at, plain(&c->k), j, m, part, E, &ld);
      c->loops->LOOPS.dots(q, k, ld, E, m, s + j);
    }
    T sum;
    const T top = c->loops->LOOPS.softmax(s, mask_row(c, plk_at_offset(&c->mask, b), i, n, add), n, w, (T)c->scale, &sum);
    T *kept = c->sums ? (T *)c->sums + 2 * (b * c->L + i) : NULL;
    if (kept) kept[0] = top, kept[1] = sum;
    if (c->cut) {
      plk_at_words(c, b, i, n, word);
      c->loops->LOOPS.drop(s, word, n, c->cut, (T)c->keep);
    }
    memset(part, 0, (size_t)(GROUP * wide) * sizeof(T)); /* what pads rows */
    memset(o, 0, (size_t)Dp * sizeof(T));
    for (int64_t j = 0; j < n; j += v_as_is ? n : GROUP) {
      const int64_t m = v_as_is ? n : smaller(GROUP, n - j);
      const T *v = block(&c->v, v_at, v_as_is, j, m, part, Dp, &ld);
      c->loops->LOOPS.mm1(s + j, v, ld, m, o, Dp);
    }
    for (int64_t d = 0; d < D; d++) o[d] /= sum;
    if (c->y) NAME(plk_at_put)(c->y, c->dtype, (b * c->L + i) * D, o, D);
  }
  plk_scratch_free(room);
  return plk_poll();
}

PlStatus NAME(plk_at_forward)(const PlkAtCall *c, int64_t b, int64_t from, int64_t to) {
  if (c->L < R) return forward_few(c, b, from, to);
  const int64_t E = c->E, D = c->D, Sp = padded(c->S), Dp = padded(D), most = plk_at_seen(c, to - 1);
  const bool as_is = plain(&c->v) && D == Dp;
  const int64_t nv = as_is ? 0 : most * Dp;
  T *room;
  PL_TRY(zeroed((E + R + 1) * Sp + nv + R * (E + Dp) + E + D + c->S + 4, &room));
  Forward t = {.kt = room};
  t.s = t.kt + E * Sp;
  T *v = t.s + R * Sp;
  t.q = v + nv;
  t.o = t.q + R * E;
  t.add = t.o + R * Dp;
  t.row = t.add + Sp;
  t.word = (uint32_t *)(void *)(t.row + E + D);
  transposed(t.kt, Sp, &c->k, plk_at_offset(&c->k, b), most, t.row);
  t.v = as_is ? (const T *)c->v.data + plk_at_offset(&c->v, b) : v;
  t.vs = as_is ? c->v.rs : Dp;
  if (!as_is) rows(v, Dp, &c->v, plk_at_offset(&c->v, b), 0, most);
  PlStatus status = PL_OK;
  for (int64_t i = from; i < to && status == PL_OK; i += R) {
    forward_rows(c, &t, b, i, smaller(R, to - i));
    status = plk_poll();
  }
  plk_scratch_free(room);
  return status;
}

/* ---- backward ----------------------------------------------------------------------------------------------------- */

/* Scratch of one sequence; widths are padded. */
typedef struct Backward {
  T *kt, *vt, *k; /* [E][Sp], [D][Sp], [S][Ep] */
  T *dk, *dv;     /* [Sp][Ep], [Sp][Dp] */
  T *p, *ds;      /* [GROUP][Sp] */
  T *q, *dy, *dq; /* [GROUP][Ep], [GROUP][Dp], [GROUP][Ep] */
  T *add, *row;   /* [Sp], [E + D] */
  uint32_t *word; /* [S + 3] */
} Backward;

/* p d and ds of GROUP queries from i on, the last of which are zero where there are fewer. */
static void group_scores(const PlkAtCall *c, const Backward *t, int64_t b, int64_t i, int64_t m, int64_t w) {
  const int64_t E = c->E, D = c->D, Sp = padded(c->S), Ep = padded(E), Dp = padded(D);
  memset(t->q, 0, (size_t)(GROUP * (2 * Ep + Dp)) * sizeof(T)); /* q, dy and dq are adjacent */
  rows(t->q, Ep, &c->q, plk_at_offset(&c->q, b), i, m);
  rows(t->dy, Dp, &c->dy, plk_at_offset(&c->dy, b), i, m);
  for (int64_t r = 0; r < GROUP; r++) {
    memset(t->p + r * Sp, 0, (size_t)w * sizeof(T));
    memset(t->ds + r * Sp, 0, (size_t)w * sizeof(T));
  }
  for (int64_t r = 0; r < m && c->L < R; r++) /* the very sums of forward_few: p is exp(score - top of those) */
    c->loops->LOOPS.dots(t->q + r * Ep, t->k, Ep, E, plk_at_seen(c, i + m - 1), t->p + r * Sp);
  for (int64_t r = 0; r < m; r += R) {
    if (c->L >= R) c->loops->LOOPS.mm4(t->q + r * Ep, Ep, 1, t->kt, Sp, E, t->p + r * Sp, Sp, w);
    c->loops->LOOPS.mm4(t->dy + r * Dp, Dp, 1, t->vt, Sp, D, t->ds + r * Sp, Sp, w);
  }
  const int64_t mask_at = plk_at_offset(&c->mask, b);
  for (int64_t r = 0; r < GROUP; r++) {
    const int64_t own = r < m ? plk_at_seen(c, i + r) : 0;
    T kept[2];
    NAME(plk_at_row)(&c->sums_in, plk_at_offset(&c->sums_in, b), i + (r < m ? r : 0), 2, kept);
    const T *add = own ? mask_row(c, mask_at, i + r, own, t->add) : NULL;
    T *p = t->p + r * Sp, *ds = t->ds + r * Sp;
    c->loops->LOOPS.again(p, add, own, w, (T)c->scale, kept[0], kept[1]);
    if (c->cut && own) {
      plk_at_words(c, b, i + r, own, t->word);
      c->loops->LOOPS.drop(ds, t->word, own, c->cut, (T)c->keep);
    }
    c->loops->LOOPS.slope(p, ds, w, (T)c->scale);
    if (c->cut && own) c->loops->LOOPS.drop(p, t->word, own, c->cut, (T)c->keep);
  }
}

static PlStatus backward_queries(const PlkAtCall *c, const Backward *t, int64_t b, int64_t from, int64_t to) {
  const int64_t E = c->E, Sp = padded(c->S), Ep = padded(E), Dp = padded(c->D);
  for (int64_t i = from; i < to; i += GROUP) {
    const int64_t m = smaller(GROUP, to - i), n = plk_at_seen(c, i + m - 1), w = padded(n);
    group_scores(c, t, b, i, m, w);
    for (int64_t r = 0; r < m; r += R) c->loops->LOOPS.mm4(t->ds + r * Sp, Sp, 1, t->k, Ep, n, t->dq + r * Ep, Ep, Ep);
    for (int64_t s = 0; s < n; s += R) { /* Sp is a multiple of R, and columns beyond n are zero */
      c->loops->LOOPS.mm4(t->ds + s, 1, Sp, t->q, Ep, GROUP, t->dk + s * Ep, Ep, Ep);
      c->loops->LOOPS.mm4(t->p + s, 1, Sp, t->dy, Dp, GROUP, t->dv + s * Dp, Dp, Dp);
    }
    for (int64_t r = 0; r < m && c->dq; r++) NAME(plk_at_put)(c->dq, c->dtype, (b * c->L + i + r) * E, t->dq + r * Ep, E);
    PL_TRY(plk_poll());
  }
  return PL_OK;
}

/* dk and dv to where they belong. */
static void give(const PlkAtCall *c, const Backward *t, int64_t b, int64_t part) {
  const int64_t E = c->E, D = c->D, S = c->S, Ep = padded(E), Dp = padded(D);
  T *partial = c->parts > 1 ? (T *)c->partial + (b * c->parts + part) * S * (E + D) : NULL;
  for (int64_t s = 0; s < S; s++) {
    if (partial) {
      memcpy(partial + s * E, t->dk + s * Ep, (size_t)E * sizeof(T));
      memcpy(partial + S * E + s * D, t->dv + s * Dp, (size_t)D * sizeof(T));
      continue;
    }
    if (c->dk) NAME(plk_at_put)(c->dk, c->dtype, (b * S + s) * E, t->dk + s * Ep, E);
    if (c->dv) NAME(plk_at_put)(c->dv, c->dtype, (b * S + s) * D, t->dv + s * Dp, D);
  }
}

PlStatus NAME(plk_at_backward)(const PlkAtCall *c, int64_t b, int64_t part) {
  const int64_t E = c->E, D = c->D, S = c->S, Sp = padded(S), Ep = padded(E), Dp = padded(D);
  T *room;
  PL_TRY(zeroed((E + D + 2 * Ep + Dp + 2 * GROUP + 1) * Sp + GROUP * (2 * Ep + Dp) + E + D + S + 4, &room));
  Backward t = {.kt = room};
  t.vt = t.kt + E * Sp;
  t.k = t.vt + D * Sp;
  t.dk = t.k + Sp * Ep;
  t.dv = t.dk + Sp * Ep;
  t.p = t.dv + Sp * Dp;
  t.ds = t.p + GROUP * Sp;
  t.q = t.ds + GROUP * Sp;
  t.dy = t.q + GROUP * Ep;
  t.dq = t.dy + GROUP * Dp;
  t.add = t.dq + GROUP * Ep;
  t.row = t.add + Sp;
  t.word = (uint32_t *)(void *)(t.row + E + D);
  transposed(t.kt, Sp, &c->k, plk_at_offset(&c->k, b), S, t.row);
  transposed(t.vt, Sp, &c->v, plk_at_offset(&c->v, b), S, t.row);
  rows(t.k, Ep, &c->k, plk_at_offset(&c->k, b), 0, S);
  PlStatus s = backward_queries(c, &t, b, part * c->part, smaller((part + 1) * c->part, c->L));
  if (s == PL_OK) give(c, &t, b, part);
  plk_scratch_free(room);
  return s;
}

#undef T
#undef LOOPS
#undef NAME
