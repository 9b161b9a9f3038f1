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
  int code, dtype;
  PlkComp comp;
  bool descending;
} Job;

/* ---- keys ---------------------------------------------------------------------------------------- */

static inline uint64_t key_f64(double v) {
  uint64_t u;
  const double plain = v + 0.0; /* -0 becomes 0 */
  memcpy(&u, &plain, sizeof u);
  return v != v ? UINT64_MAX : u ^ (-(u >> 63) | (uint64_t)1 << 63);
}
static inline uint64_t key_f32(float v) {
  uint32_t u;
  const float plain = v + 0.0f; /* -0 becomes 0 */
  memcpy(&u, &plain, sizeof u);
  return v != v ? UINT32_MAX : u ^ (-(u >> 31) | (uint32_t)1 << 31);
}
static inline float float_of(uint64_t key) { /* back from key_f32 */
  if (key == UINT32_MAX) return NAN;
  const uint32_t u = key >> 31 & 1 ? (uint32_t)key ^ (uint32_t)1 << 31 : ~(uint32_t)key;
  float v;
  memcpy(&v, &u, sizeof v);
  return v;
}
static inline uint64_t key_i64(int64_t v) { return (uint64_t)v ^ (uint64_t)1 << 63; }

enum { POLL = 1 << 18 }; /* elements between two looks at Ctrl-C; some loops wait for memory at each */

/* Keys of elements at … at + n - 1 of a stored row, n <= PLK_PIECE. */
static void keys_of(const Job *j, const void *row, int64_t at, int64_t n, uint64_t *key) {
  _Alignas(64) char buf[PLK_PIECE_BYTES];
  const void *x = plk_piece(j->comp, row, j->dtype, at, n, buf);
  if (j->comp == PLK_CF32)
    for (int64_t i = 0; i < n; i++) key[i] = key_f32(((const float *)x)[i]);
  else if (j->comp == PLK_CF64)
    for (int64_t i = 0; i < n; i++) key[i] = key_f64(((const double *)x)[i]);
  else
    for (int64_t i = 0; i < n; i++) key[i] = key_i64(((const int64_t *)x)[i]);
  if (j->descending)
    for (int64_t i = 0; i < n; i++) key[i] = ~key[i];
}

static PlStatus make_pairs(const Job *j, const void *row, Pair *p) {
  _Alignas(64) char buf[PLK_PIECE_BYTES];
  for (int64_t at = 0; at < j->n; at += PLK_PIECE) {
    const int64_t n = plk_piece_size(at, j->n);
    const void *x = plk_piece(j->comp, row, j->dtype, at, n, buf);
    Pair *q = p + at;
    if (j->comp == PLK_CF32)
      for (int64_t i = 0; i < n; i++) q[i] = (Pair){key_f32(((const float *)x)[i]), at + i};
    else if (j->comp == PLK_CF64)
      for (int64_t i = 0; i < n; i++) q[i] = (Pair){key_f64(((const double *)x)[i]), at + i};
    else
      for (int64_t i = 0; i < n; i++) q[i] = (Pair){key_i64(((const int64_t *)x)[i]), at + i};
    if (j->descending)
      for (int64_t i = 0; i < n; i++) q[i].key = ~q[i].key;
    if (j->n < POLL) continue;
    /* Touch the pages of the other half here, bit by bit: the first radix pass would meet them all at once. */
    for (int64_t i = at; i < at + n; i += 256) p[j->n + i].key = 0;
    if ((at & (POLL - 1)) == POLL - PLK_PIECE) PL_TRY(plk_poll());
  }
  return PL_OK;
}

/* y[i] = x[p[i].at], for n results. */
#define PICK(T) \
  for (int64_t i = 0; i < n; i++) ((T *)y)[i] = ((const T *)x)[p[i].at]
static void pick_values(const Job *j, void *y, const void *x, const Pair *p, int64_t n) {
  switch (pl_dtype_size((PlDtype)j->dtype)) {
  case 1: PICK(uint8_t); break;
  case 2: PICK(uint16_t); break;
  case 4: PICK(uint32_t); break;
  default: PICK(uint64_t);
  }
}

/* ---- sorting ---------------------------------------------------------------------------------------- */

enum { SHORT = 48 }; /* so many are sorted by insertion */

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
  if (n <= SHORT) {
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
static bool few(int64_t n, int64_t k) { return k < n / 8 && n > SHORT; }

/* Sorts a heap of k. Equal keys must come out in order of position, so that comes first. */
static PlStatus sort_heap(Pair *p, Pair *t, int64_t k) {
  if (k <= SHORT) {
    for (int64_t i = 1; i < k; i++) {
      const Pair v = p[i];
      int64_t h = i;
      for (; h > 0 && after(p[h - 1], v); h--) p[h] = p[h - 1];
      p[h] = v;
    }
    return PL_OK;
  }
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

/* The first k of the order, sorted, in p[0 … k): a heap of the k best so far, its worst on top. t holds 2 k. */
static PlStatus select_few(const Job *j, const void *x, Pair *p, Pair *t) {
  uint64_t key[PLK_PIECE];
  const int64_t k = j->k;
  int64_t filled = 0;
  for (int64_t at = 0; at < j->n; at += PLK_PIECE) {
    const int64_t n = plk_piece_size(at, j->n);
    int64_t i = 0;
    keys_of(j, x, at, n, key);
    for (; filled < k && i < n; i++) p[filled++] = (Pair){key[i], at + i};
    if (filled == k && i > 0)
      for (int64_t h = k / 2; h-- > 0;) sift(p, k, h);
    for (; i < n; i++) offer(p, k, (Pair){key[i], at + i});
    if ((at & (POLL - 1)) == POLL - PLK_PIECE) PL_TRY(plk_poll());
  }
  return sort_heap(p, t, k);
}

/* The same of floats, most of which are passed over by comparing them, many at a time, with the worst in the heap. */
static PlStatus select_floats(const Job *j, const void *row, Pair *p, Pair *t) {
  enum { AT_ONCE = 16 };
  _Alignas(64) char buf[PLK_PIECE_BYTES];
  const int64_t k = j->k;
  const uint64_t turn = j->descending ? UINT64_MAX : 0;
  int64_t filled = 0;
  float worst = 0;
  for (int64_t at = 0; at < j->n; at += PLK_PIECE) {
    const int64_t n = plk_piece_size(at, j->n);
    const float *x = plk_piece(j->comp, row, j->dtype, at, n, buf);
    int64_t i = 0;
    for (; filled < k && i < n; i++) p[filled++] = (Pair){key_f32(x[i]) ^ turn, at + i};
    if (filled < k) continue;
    if (i > 0) {
      for (int64_t h = k / 2; h-- > 0;) sift(p, k, h);
      worst = float_of(p[0].key ^ turn);
    }
    for (int64_t end; i < n; i = end) {
      const float *v = x + i;
      unsigned better = n - i < AT_ONCE;
      end = better ? n : i + AT_ONCE;
      if (better) {
      } else if (j->descending)
        for (int q = 0; q < AT_ONCE; q++) better |= (unsigned)((v[q] > worst) | (v[q] != v[q])); /* NaN comes first */
      else
        for (int q = 0; q < AT_ONCE; q++) better |= (unsigned)!(v[q] >= worst);
      if (!better) continue;
      for (int64_t q = i; q < end; q++) {
        if (j->descending ? !((x[q] > worst) | (x[q] != x[q])) : x[q] >= worst) continue;
        offer(p, k, (Pair){key_f32(x[q]) ^ turn, at + q});
        worst = float_of(p[0].key ^ turn);
      }
    }
    if ((at & (POLL - 1)) == POLL - PLK_PIECE) PL_TRY(plk_poll());
  }
  return sort_heap(p, t, k);
}

/* The first k of a short row: a sorted list of the best so far. */
static void select_short(const Job *j, const void *x, Pair *p) {
  uint64_t key[SHORT];
  int64_t filled = 0;
  keys_of(j, x, 0, j->n, key);
  for (int64_t i = 0; i < j->n; i++) {
    if (filled == j->k && key[i] >= p[filled - 1].key) continue; /* of equals the first comes first */
    int64_t h = filled < j->k ? filled++ : filled - 1;
    for (; h > 0 && p[h - 1].key > key[i]; h--) p[h] = p[h - 1];
    p[h] = (Pair){key[i], i};
  }
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

/* Whether a long row's k-th element is looked for digit by digit, without sorting. Integers, of which few digits differ, are sorted sooner. */
enum { DIGITS_FROM = 256, INTEGERS_FROM = 1024 };
static bool by_digits(const Job *j) {
  return (j->code == PLK_O_KTH || j->code == PLK_O_MEDIAN) && j->n >= (j->comp == PLK_CI64 ? INTEGERS_FROM : DIGITS_FROM);
}
static uint64_t nan_key(PlkComp c) { return c == PLK_CF32 ? UINT32_MAX : UINT64_MAX; }

enum { DIGIT = 12, BINS = 1 << DIGIT }; /* bits */

/* The k-th of the m elements whose keys are `known` where `mask` has bits; they are equal if that is everywhere. */
static PlStatus kth_of_few(const Job *j, const void *x, uint64_t known, uint64_t mask, int64_t k, int64_t m, bool equal, int64_t *where) {
  uint64_t key[PLK_PIECE];
  int64_t filled = 0;
  void *mem = NULL;
  if (!equal) PL_TRY(plk_scratch((size_t)m * 2 * sizeof(Pair), &mem));
  Pair *const p = mem;
  PlStatus s = PL_OK;
  for (int64_t at = 0; at < j->n && s == PL_OK; at += PLK_PIECE) {
    const int64_t n = plk_piece_size(at, j->n);
    keys_of(j, x, at, n, key);
    for (int64_t i = 0; i < n; i++) {
      if ((key[i] & mask) != known) continue;
      if (p) p[filled++] = (Pair){key[i], at + i};
      else if (k-- == 0) {
        *where = at + i;
        return PL_OK;
      }
    }
    if ((at & (POLL - 1)) == POLL - PLK_PIECE) s = plk_poll();
  }
  if (s == PL_OK && p) s = sort_pairs(p, p + m, m);
  if (s == PL_OK && p) *where = p[k].at;
  plk_scratch_free(mem);
  return s;
}

/* Of the elements whose keys are `known` where `mask` has bits: how many of their lowest bits differ. */
static PlStatus lower_bits(const Job *j, const void *x, uint64_t known, uint64_t mask, int *bits) {
  uint64_t key[PLK_PIECE], any = 0, all = UINT64_MAX;
  for (int64_t at = 0; at < j->n; at += PLK_PIECE) {
    const int64_t n = plk_piece_size(at, j->n);
    keys_of(j, x, at, n, key);
    if (mask == 0)
      for (int64_t i = 0; i < n; i++) any |= key[i], all &= key[i];
    else
      for (int64_t i = 0; i < n; i++)
        if ((key[i] & mask) == known) any |= key[i], all &= key[i];
    if ((at & (POLL - 1)) == POLL - PLK_PIECE) PL_TRY(plk_poll());
  }
  for (*bits = 0; *bits < 64 && (any ^ all) >> *bits;) ++*bits;
  return PL_OK;
}

/* Where the k-th of the sorted row is: a digit of its key from the highest downwards, each by counting, until few elements share
 * them, which are sorted, or they are equal; those of one key are in order of position. */
static PlStatus kth_by_digits(const Job *j, const void *x, int64_t *where) {
  const bool integers = j->comp == PLK_CI64, nan_wins = j->code == PLK_O_MEDIAN && !integers;
  uint64_t key[PLK_PIECE], known = 0, mask = 0;
  int64_t k = j->k;
  int bits = j->comp == PLK_CF32 ? 32 : 64; /* the lowest ones, which are not known */
  if (integers) PL_TRY(lower_bits(j, x, known, mask, &bits));
  for (;;) {
    const int shift = bits > DIGIT ? bits - DIGIT : 0;
    int64_t count[BINS] = {0}, b = 0;
    for (int64_t at = 0; at < j->n; at += PLK_PIECE) {
      const int64_t n = plk_piece_size(at, j->n);
      keys_of(j, x, at, n, key);
      if (mask == 0)
        for (int64_t i = 0; i < n; i++) count[key[i] >> shift & (BINS - 1)]++;
      else
        for (int64_t i = 0; i < n; i++) count[key[i] >> shift & (BINS - 1)] += (key[i] & mask) == known;
      for (int64_t i = 0; mask == 0 && nan_wins && count[BINS - 1] && i < n; i++) /* NaN has such a digit */
        if (key[i] == nan_key(j->comp)) {
          *where = at + i;
          return PL_OK;
        }
      if ((at & (POLL - 1)) == POLL - PLK_PIECE) PL_TRY(plk_poll());
    }
    for (; k >= count[b]; b++) k -= count[b];
    known |= (uint64_t)b << shift, mask |= (uint64_t)(BINS - 1) << shift;
    bits = shift;
    if (shift > 0 && count[b] > j->n / 4) PL_TRY(lower_bits(j, x, known, mask, &bits)); /* perhaps one value, or neighbours */
    if (bits == 0 || count[b] <= j->n / 8) return kth_of_few(j, x, known, mask, k, count[b], bits == 0, where);
  }
}

static bool by_heap(const Job *j) { return j->code == PLK_O_TOPK && few(j->n, j->k); }

/* The one element of a row that kthvalue, median and mode are. */
static PlStatus one_of(const Job *j, const void *x, Pair *p, int64_t *where) {
  if (by_digits(j)) return kth_by_digits(j, x, where);
  PL_TRY(make_pairs(j, x, p));
  PL_TRY(sort_pairs(p, p + j->n, j->n));
  Pair m = p[j->k];
  if (j->code == PLK_O_MODE) m = mode_of(p, j->n);
  else if (j->code == PLK_O_MEDIAN && j->comp != PLK_CI64 && j->n > 0 && p[j->n - 1].key == nan_key(j->comp)) {
    int64_t i = j->n - 1; /* NaN takes everything: the first one in the row */
    while (i > 0 && p[i - 1].key == p[i].key) i--;
    m = p[i];
  }
  *where = m.at;
  return PL_OK;
}

static PlStatus sort_row(void *ctx, int64_t row, void *const *ptr) {
  (void)row;
  const Job *j = ctx;
  const void *x = ptr[0];
  void *y = ptr[1];
  int64_t *at = ptr[2], n = j->n, k = j->k;
  Pair *p = ptr[3];
  if (j->code != PLK_O_SORT && j->code != PLK_O_ARGSORT && j->code != PLK_O_TOPK) {
    Pair one = {0, 0};
    PL_TRY(one_of(j, x, p, &one.at));
    if (y) pick_values(j, y, x, &one, 1);
    if (at) at[0] = one.at + j->base;
    return PL_OK;
  }
  if (k == 0) return PL_OK;
  if (j->code == PLK_O_TOPK && n <= SHORT) select_short(j, x, p);
  else if (by_heap(j)) PL_TRY(j->comp == PLK_CF32 ? select_floats(j, x, p, p + k) : select_few(j, x, p, p + k));
  else {
    PL_TRY(make_pairs(j, x, p));
    PL_TRY(sort_pairs(p, p + n, n));
  }
  const size_t size = pl_dtype_size((PlDtype)j->dtype);
  for (int64_t from = 0; from < k; from += POLL) {
    const int64_t m = k - from < POLL ? k - from : POLL;
    if (y) pick_values(j, (char *)y + (size_t)from * size, x, p + from, m);
    for (int64_t i = from; at && i < from + m; i++) at[i] = p[i].at + j->base;
    if (m == POLL) PL_TRY(plk_poll());
  }
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
  Job j = {.n = n, .k = n, .code = c->code, .dtype = x->dtype, .comp = plk_comp(x->dtype), .base = pl_attr_i(c->attrs, kbase)};
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
               .temp = (size_t)(by_digits(&j) ? 0
                                : by_heap(&j) ? 3 * j.k
                                              : 2 * n) *
                       sizeof(Pair),
               .cost = 8};
  bool only_at = c->code == PLK_O_ARGSORT;
  int64_t len = single ? 1 : j.k;
  r.arg[r.narg++] = plk_row_arg(x, n, PLK_CRAW, false);
  r.arg[r.narg++] = plk_row_arg(only_at ? NULL : c->out[0], len, PLK_CRAW, true);
  r.arg[r.narg++] = plk_row_arg(c->out[only_at ? 0 : 1], len, PLK_CI64, true);
  return plk_rows(&r);
}
