/* SPDX-License-Identifier: MIT
 * Positions along a dim: argmax, max with indices, sort, topk, kthvalue, median, mode. Values are compared
 * as unsigned keys that order like the values, with NaN above everything and -0 equal to 0; sorting is
 * stable: insertion for short rows, else byte-wise radix passes that skip bytes all keys share. */
#include "kernels/sort.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/rows.h"

typedef struct Pair {
  uint64_t key;
  int64_t at;
} Pair;

typedef struct Job {
  int64_t n, k, base;
  int code;
  PlkComp comp;
  bool descending;
} Job;

/* ---- keys ---------------------------------------------------------------------------------------- */

static inline uint64_t key_f64(double v) {
  if (v != v) return UINT64_MAX;
  uint64_t u;
  v = v == 0 ? 0 : v;
  memcpy(&u, &v, sizeof u);
  return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}
static inline uint64_t key_f32(float v) {
  if (v != v) return UINT32_MAX;
  uint32_t u;
  v = v == 0 ? 0 : v;
  memcpy(&u, &v, sizeof u);
  return u >> 31 ? ~u : u | (uint32_t)1 << 31;
}
static inline uint64_t key_i64(int64_t v) { return (uint64_t)v ^ (uint64_t)1 << 63; }

enum { POLL = 1 << 18 }; /* elements between two looks at Ctrl-C; some loops wait for memory at each */

static PlStatus make_pairs(const Job *j, const void *x, Pair *p) {
  for (int64_t at = 0; at < j->n; at += POLL) {
    int64_t end = j->n - at < POLL ? j->n : at + POLL;
    if (j->comp == PLK_CF32)
      for (int64_t i = at; i < end; i++) p[i] = (Pair){key_f32(((const float *)x)[i]), i};
    else if (j->comp == PLK_CF64)
      for (int64_t i = at; i < end; i++) p[i] = (Pair){key_f64(((const double *)x)[i]), i};
    else
      for (int64_t i = at; i < end; i++) p[i] = (Pair){key_i64(((const int64_t *)x)[i]), i};
    if (j->descending)
      for (int64_t i = at; i < end; i++) p[i].key = ~p[i].key;
    if (end - at < POLL) break;
    /* Touch the pages of the other half here, bit by bit: the first radix pass would meet them all at once. */
    for (int64_t i = at; i < end; i += 256) p[j->n + i].key = 0;
    PL_TRY(plk_poll());
  }
  return PL_OK;
}

static void value_copy(const Job *j, void *y, int64_t to, const void *x, int64_t from) {
  if (j->comp == PLK_CF32) ((float *)y)[to] = ((const float *)x)[from];
  else ((int64_t *)y)[to] = ((const int64_t *)x)[from]; /* doubles move as bits */
}

/* ---- sorting ---------------------------------------------------------------------------------------- */

static void sort_short(Pair *p, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    Pair v = p[i];
    int64_t k = i;
    for (; k > 0 && p[k - 1].key > v.key; k--) p[k] = p[k - 1];
    p[k] = v;
  }
}

/* Sorts p by key, keeping the order of equals; t is as long as p. */
static PlStatus sort_pairs(Pair *p, Pair *t, int64_t n) {
  if (n <= 48) {
    sort_short(p, n);
    return PL_OK;
  }
  uint64_t differ = 0;
  for (int64_t i = 1; i < n; i++) differ |= p[i].key ^ p[0].key;
  Pair *from = p, *to = t;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    if (!(differ >> shift & 255)) continue;
    int64_t count[256] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++) count[from[i].key >> shift & 255]++;
    for (int b = 0; b < 256; b++) {
      int64_t c = count[b];
      count[b] = sum, sum += c;
    }
    for (int64_t at = 0; at < n; at += POLL) {
      int64_t end = n - at < POLL ? n : at + POLL;
      for (int64_t i = at; i < end; i++) to[count[from[i].key >> shift & 255]++] = from[i];
      if (n > POLL) PL_TRY(plk_poll());
    }
    Pair *swap = from;
    from = to, to = swap;
  }
  if (from != p) memcpy(p, from, (size_t)n * sizeof *p);
  return PL_OK;
}

static inline bool after(Pair a, Pair b) { return a.key > b.key || (a.key == b.key && a.at > b.at); }

static void sift(Pair *h, int64_t k, int64_t i) {
  Pair v = h[i];
  for (int64_t c; (c = 2 * i + 1) < k; i = c) {
    if (c + 1 < k && after(h[c + 1], h[c])) c++;
    if (!after(h[c], v)) break;
    h[i] = h[c];
  }
  h[i] = v;
}

/* Whether k of n are so few that a heap beats sorting. */
static bool few(int64_t n, int64_t k) { return k < n / 8 && n > 48; }

/* Sorts a heap of k. Equal keys must come out in order of position, so that comes first. */
static PlStatus sort_heap(Pair *p, Pair *t, int64_t k) {
  for (int64_t i = 0; i < k; i++) t[i] = (Pair){(uint64_t)p[i].at, (int64_t)i};
  Pair *u = t + k;
  PL_TRY(sort_pairs(t, u, k));
  for (int64_t i = 0; i < k; i++) u[i] = p[t[i].at];
  memcpy(p, u, (size_t)k * sizeof *p);
  return sort_pairs(p, t, k);
}

static inline void offer(Pair *p, int64_t k, Pair v) {
  if (!after(p[0], v)) return;
  p[0] = v;
  sift(p, k, 0);
}

/* Moves the first k of the order to p[0 … k), sorted: a heap of the k best so far, its worst on top. */
static PlStatus select_first(Pair *p, Pair *t, int64_t n, int64_t k) {
  if (k == 0) return PL_OK;
  if (!few(n, k)) return sort_pairs(p, t, n);
  for (int64_t i = k / 2; i-- > 0;) sift(p, k, i);
  for (int64_t i = k; i < n; i++) offer(p, k, p[i]);
  return sort_heap(p, t, k);
}

/* The same of floats, most of which are passed over by comparing them, many at a time, with the worst in the heap. */
static PlStatus select_floats(const Job *j, const float *x, Pair *p, Pair *t) {
  enum { AT_ONCE = 16 };
  const int64_t n = j->n, k = j->k;
  const uint64_t turn = j->descending ? UINT64_MAX : 0;
  for (int64_t i = 0; i < k; i++) p[i] = (Pair){key_f32(x[i]) ^ turn, i};
  for (int64_t i = k / 2; i-- > 0;) sift(p, k, i);
  for (int64_t at = k; at < n; at += AT_ONCE) {
    const int64_t end = at + AT_ONCE < n ? at + AT_ONCE : n;
    const float worst = x[p[0].at], *v = x + at;
    unsigned better = end - at < AT_ONCE;
    if (better) {
    } else if (j->descending)
      for (int i = 0; i < AT_ONCE; i++) better |= (unsigned)((v[i] > worst) | (v[i] != v[i])); /* NaN comes first */
    else
      for (int i = 0; i < AT_ONCE; i++) better |= (unsigned)!(v[i] >= worst);
    if (!better) continue;
    for (int64_t i = at; i < end; i++) offer(p, k, (Pair){key_f32(x[i]) ^ turn, i});
    if ((at & (POLL - 1)) < AT_ONCE) PL_TRY(plk_poll());
  }
  return sort_heap(p, t, k);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

/* Of a sorted row: the value met most often, the least among equals; its last position. */
static Pair mode_of(const Pair *p, int64_t n) {
  int64_t best = 0, run = 0;
  Pair m = p[0];
  for (int64_t i = 0; i < n; i++) {
    run = i > 0 && p[i].key == p[i - 1].key ? run + 1 : 1;
    if (run > best || (run == best && p[i].key == m.key)) best = run, m = p[i];
  }
  return m;
}

static PlStatus sort_row(void *ctx, int64_t row, void *const *ptr) {
  (void)row;
  const Job *j = ctx;
  const void *x = ptr[0];
  void *y = ptr[1];
  int64_t *at = ptr[2], n = j->n, k = j->k;
  Pair *p = ptr[3], *t = p + n;
  const bool floats = j->code == PLK_O_TOPK && j->comp == PLK_CF32 && k > 0 && few(n, k);
  PL_TRY(floats ? select_floats(j, x, p, t) : make_pairs(j, x, p));
  if (j->code == PLK_O_SORT || j->code == PLK_O_ARGSORT || j->code == PLK_O_TOPK) {
    if (!floats) PL_TRY(j->code == PLK_O_TOPK ? select_first(p, t, n, k) : sort_pairs(p, t, n));
    for (int64_t i = 0; i < k; i++) {
      if (y) value_copy(j, y, i, x, p[i].at);
      if (at) at[i] = p[i].at + j->base;
      if ((i & (POLL - 1)) == POLL - 1) PL_TRY(plk_poll());
    }
    return PL_OK;
  }
  PL_TRY(sort_pairs(p, t, n));
  Pair m = p[k];
  if (j->code == PLK_O_MODE) m = mode_of(p, n);
  else if (j->code == PLK_O_MEDIAN && j->comp != PLK_CI64 && n > 0) {
    /* NaN takes everything: the first one in the row */
    uint64_t nan = j->comp == PLK_CF32 ? UINT32_MAX : UINT64_MAX;
    if (p[n - 1].key == nan) {
      int64_t i = n - 1;
      while (i > 0 && p[i - 1].key == nan) i--;
      m = p[i];
    }
  }
  if (y) value_copy(j, y, 0, x, m.at);
  if (at) at[0] = m.at + j->base;
  return PL_OK;
}

/* The median of nothing is NaN (floats only; the shape rule refuses other cases). */
static PlStatus median_empty(const PlkCall *c) {
  double nan = (double)NAN;
  if (c->out[0]) plk_store(PLK_CF64, &nan, 1, c->out[0]->data, c->out[0]->dtype, 0, 1, c->out[0]->numel, 1);
  if (c->out[1]) *(int64_t *)c->out[1]->data = pl_attr_i(c->attrs, 2);
  return PL_OK;
}

PlStatus plk_cpu_sort(const PlkCall *c) {
  const PlArray *x = c->in[0];
  bool has_k = c->code == PLK_O_TOPK || c->code == PLK_O_KTH;
  int kdim = has_k ? 1 : 0, kbase = c->code == PLK_O_TOPK ? 4 : c->code <= PLK_O_ARGSORT || has_k ? 3 : 2;
  bool flat = !pl_attr_has(c->attrs, kdim);
  int64_t dim = flat ? 0 : pl_attr_i(c->attrs, kdim), n = flat ? x->numel : plk_dim_size(x, dim);
  if (c->code == PLK_O_MEDIAN && n == 0 && flat) return median_empty(c);
  Job j = {.n = n, .k = n, .code = c->code, .comp = plk_comp(x->dtype), .base = pl_attr_i(c->attrs, kbase)};
  bool single = false;
  switch (c->code) {
  case PLK_O_SORT:
  case PLK_O_ARGSORT: j.descending = pl_attr_i(c->attrs, 1) != 0; break;
  case PLK_O_TOPK:
    j.k = pl_attr_i(c->attrs, 0);
    j.descending = pl_attr_i(c->attrs, 2) != 0;
    break;
  default: single = true; j.k = c->code == PLK_O_KTH ? pl_attr_i(c->attrs, 0) - 1 : c->code == PLK_O_MEDIAN ? (n - 1) / 2 : 0;
  }
  PlkRows r = {.outer = flat ? 1 : plk_outer(x, dim),
               .inner = flat ? 1 : plk_inner(x, dim),
               .body = sort_row,
               .ctx = &j,
               .temp = 2 * (size_t)n * sizeof(Pair),
               .cost = 8};
  bool only_at = c->code == PLK_O_ARGSORT;
  int64_t len = single ? 1 : j.k;
  r.arg[r.narg++] = plk_row_arg(x, n, j.comp, false);
  r.arg[r.narg++] = plk_row_arg(only_at ? NULL : c->out[0], len, j.comp, true);
  r.arg[r.narg++] = plk_row_arg(c->out[only_at ? 0 : 1], len, PLK_CI64, true);
  return plk_rows(&r);
}
