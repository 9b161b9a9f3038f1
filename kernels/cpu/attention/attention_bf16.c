/* SPDX-License-Identifier: MIT
 * Attention of bf16 in blocks of queries, all products by oneDNN on the calling thread: scores and sums in f32,
 * shares and their gradients rounded to bf16 as factors of the next product. Formulas in attention.c. */
#include <string.h>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/onednn/onednn_matmul.h"

/* Multiply-adds of one block from which a call of the library pays. */
enum { ENOUGH = 1 << 19, STEP = 64 };

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static bool rows_dense(const PlkAtMat *m) { return !m->data || (m->cs == 1 && m->rs >= m->c); }

bool plk_at_bf16(const PlkAtCall *c) {
  if (c->dtype != PL_BF16 || c->L < 2 || c->S < 2 || c->E < 2 || c->D < 2 || c->S > 1 << 20) return false;
  if (smaller(c->L, PLK_AT_CHUNK) * c->S < ENOUGH / smaller(c->E, c->D)) return false;
  return rows_dense(&c->q) && rows_dense(&c->k) && rows_dense(&c->v) && rows_dense(&c->dy) && plk_onednn_bf16();
}

/* A matrix in memory: its rows are ld apart; `t`: its transpose is meant. */
typedef struct Factor {
  const uint16_t *x;
  int64_t ld;
  bool t;
} Factor;

/* c[m,n] f32 = a b, rows of c are ldc apart. */
static PlStatus product(int64_t m, int64_t n, int64_t k, Factor a, Factor b, float *c, int64_t ldc) {
  const PlkBf16Key key = {.m = m, .n = n, .k = k, .lda = a.ld, .ldb = b.ld, .ldc = ldc, .ta = a.t, .tb = b.t, .c_f32 = 1};
  PlkBf16Plan *plan;
  PL_TRY(plk_onednn_bf16_get(&key, &plan));
  if (!plan) PL_FAIL(PL_ERR_UNSUPPORTED, "oneDNN has no product of bf16 matrices for attention");
  PlStatus s = plk_onednn_bf16_run(plan, a.x, b.x, NULL, c);
  plk_onednn_bf16_put(plan);
  return s;
}

/* Batch b of a matrix from row i on. */
static Factor from_row(const PlkAtMat *m, int64_t b, int64_t i, bool t) {
  return (Factor){(const uint16_t *)(const void *)m->data + plk_at_offset(m, b) + i * m->rs, m->rs, t};
}
static int64_t padded(int64_t n) { return (n + PLK_AT_LANES - 1) / PLK_AT_LANES * PLK_AT_LANES; }

/* Keys that a block up to query `last` multiplies: what it sees, up to the next multiple, so that few shapes occur. */
static int64_t width(const PlkAtCall *c, int64_t last) { return smaller((plk_at_seen(c, last) + STEP - 1) / STEP * STEP, c->S); }

typedef struct Block {
  int64_t ld;             /* width of rows of scores, whole vectors */
  float *s, *t, *o, *add; /* [CHUNK][ld] scores, [CHUNK][ld] more of them, results, a row of the mask */
  uint16_t *p, *ds;       /* [CHUNK][ld] */
  uint32_t *word;
} Block;

/* For m queries and n keys; `out`: floats for results; twice the scores, if backward. */
static PlStatus block_new(int64_t m, int64_t n, bool backward, int64_t out, Block *t) {
  const int64_t size = m * padded(n), twice = backward ? 2 : 1;
  void *room;
  PL_TRY(plk_scratch((size_t)(twice * (size + size / 2) + padded(out) + 2 * padded(n) + 64) * sizeof(float), &room));
  t->ld = padded(n);
  t->s = room;
  t->t = t->s + size;
  t->o = t->s + twice * size;
  t->add = t->o + padded(out);
  t->word = (uint32_t *)(void *)(t->add + t->ld);
  t->p = (uint16_t *)(void *)(t->word + t->ld + PLK_AT_LANES);
  t->ds = t->p + size;
  return PL_OK;
}

static const float *mask_row(const PlkAtCall *c, int64_t b, int64_t i, int64_t n, float *room) {
  if (!c->mask.data) return NULL;
  plk_at_row_f32(&c->mask, plk_at_offset(&c->mask, b), i, n, room);
  return room;
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */

PlStatus plk_at_forward_bf16(const PlkAtCall *c, int64_t b, int64_t from, int64_t to) {
  const int64_t m = to - from, n = width(c, to - 1), D = c->D;
  const PlkConvert *cv = plk_isa_tables()->convert;
  Block t;
  PL_TRY(block_new(m, n, false, m * D + m, &t));
  float *sum = t.o + m * D;
  PlStatus s = product(m, n, c->E, from_row(&c->q, b, from, false), from_row(&c->k, b, 0, true), t.s, t.ld);
  for (int64_t r = 0; r < m && s == PL_OK; r++) {
    const int64_t own = plk_at_seen(c, from + r);
    float *row = t.s + r * t.ld;
    const float top = c->loops->f32.softmax(row, mask_row(c, b, from + r, own, t.add), own, t.ld, (float)c->scale, &sum[r]);
    float *kept = c->sums ? (float *)c->sums + 2 * (b * c->L + from + r) : NULL;
    if (kept) kept[0] = top, kept[1] = sum[r];
    if (c->cut) {
      plk_at_words(c, b, from + r, own, t.word);
      c->loops->f32.drop(row, t.word, own, c->cut, (float)c->keep);
    }
    cv->bf16_store(row, t.p + r * t.ld, t.ld);
  }
  if (s == PL_OK) s = product(m, D, n, (Factor){t.p, t.ld, false}, from_row(&c->v, b, 0, false), t.o, D);
  for (int64_t r = 0; r < m && s == PL_OK && c->y; r++) {
    for (int64_t d = 0; d < D; d++) t.o[r * D + d] /= sum[r];
    plk_at_put_f32(c->y, c->dtype, (b * c->L + from + r) * D, t.o + r * D, D);
  }
  plk_scratch_free(t.s);
  return s == PL_OK ? plk_poll() : s;
}

/* ---- backward ----------------------------------------------------------------------------------------------------- */

/* p d and ds of m queries from … in bf16; the scores and dp are ready in t->s and t->t. */
static void block_scores(const PlkAtCall *c, const Block *t, int64_t b, int64_t from, int64_t m) {
  const PlkConvert *cv = plk_isa_tables()->convert;
  for (int64_t r = 0; r < m; r++) {
    const int64_t own = plk_at_seen(c, from + r);
    const float *add = mask_row(c, b, from + r, own, t->add);
    float kept[2];
    plk_at_row_f32(&c->sums_in, plk_at_offset(&c->sums_in, b), from + r, 2, kept);
    float *p = t->s + r * t->ld, *ds = t->t + r * t->ld;
    c->loops->f32.again(p, add, own, t->ld, (float)c->scale, kept[0], kept[1]);
    for (int64_t j = own; j < t->ld; j++) ds[j] = 0;
    if (c->cut) {
      plk_at_words(c, b, from + r, own, t->word);
      c->loops->f32.drop(ds, t->word, own, c->cut, (float)c->keep);
    }
    c->loops->f32.slope(p, ds, t->ld, (float)c->scale);
    if (c->cut) c->loops->f32.drop(p, t->word, own, c->cut, (float)c->keep);
    cv->bf16_store(p, t->p + r * t->ld, t->ld);
    cv->bf16_store(ds, t->ds + r * t->ld, t->ld);
  }
}

/* sum[0..n) += x */
static void add_to(float *sum, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

static PlStatus backward_block(const PlkAtCall *c, const Block *t, int64_t b, int64_t from, int64_t to, float *dk, float *dv) {
  const int64_t m = to - from, n = width(c, to - 1), E = c->E, D = c->D;
  const Factor q = from_row(&c->q, b, from, false), dy = from_row(&c->dy, b, from, false);
  const Factor k = from_row(&c->k, b, 0, false);
  PL_TRY(product(m, n, E, q, from_row(&c->k, b, 0, true), t->s, t->ld));
  PL_TRY(product(m, n, D, dy, from_row(&c->v, b, 0, true), t->t, t->ld));
  block_scores(c, t, b, from, m);
  if (c->dq) {
    PL_TRY(product(m, E, n, (Factor){t->ds, t->ld, false}, k, t->o, E));
    plk_at_put_f32(c->dq, c->dtype, (b * c->L + from) * E, t->o, m * E);
  }
  if (dk) {
    PL_TRY(product(n, E, m, (Factor){t->ds, t->ld, true}, q, t->o, E));
    add_to(dk, t->o, n * E);
  }
  if (dv) {
    PL_TRY(product(n, D, m, (Factor){t->p, t->ld, true}, dy, t->o, D));
    add_to(dv, t->o, n * D);
  }
  return plk_poll();
}

PlStatus plk_at_backward_bf16(const PlkAtCall *c, int64_t b, int64_t part) {
  const int64_t S = c->S, E = c->E, D = c->D, wide = E > D ? E : D, rows = smaller(PLK_AT_CHUNK, c->L);
  const int64_t to = smaller((part + 1) * c->part, c->L);
  void *own = NULL;
  float *sum = c->partial ? (float *)c->partial + (b * c->parts + part) * S * (E + D) : NULL;
  if (!sum) {
    PL_TRY(plk_scratch((size_t)(S * (E + D) + 1) * sizeof(float), &own));
    sum = own;
  }
  memset(sum, 0, (size_t)(S * (E + D)) * sizeof(float));
  Block t = {.s = NULL};
  PlStatus s = block_new(rows, S, true, (rows > S ? rows : S) * wide, &t);
  for (int64_t i = part * c->part; i < to && s == PL_OK; i += PLK_AT_CHUNK)
    s = backward_block(c, &t, b, i, smaller(i + PLK_AT_CHUNK, to), c->dk ? sum : NULL, c->dv ? sum + S * E : NULL);
  if (s == PL_OK && own) {
    if (c->dk) plk_at_put_f32(c->dk, c->dtype, b * S * E, sum, S * E);
    if (c->dv) plk_at_put_f32(c->dv, c->dtype, b * S * D, sum + S * E, S * D);
  }
  plk_scratch_free(t.s);
  plk_scratch_free(own);
  return s;
}
