/* SPDX-License-Identifier: MIT
 * Searching and counting by value: searchsorted, bucketize, bincount, isin, unique. Values of every dtype
 * become 64-bit keys whose unsigned order is theirs (NaN last, -0 equal to 0), so one search and one radix
 * sort do for all. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/index/rowmove.h"

static size_t esize_of(const PlArray *a) { return pl_dtype_size((PlDtype)a->dtype); }

enum { KEY_BLOCK = 512 };
#define KEY_NAN UINT64_MAX

static uint64_t key_of_f64(double x) {
  uint64_t u;
  if (isnan(x)) return KEY_NAN;
  x += 0.0; /* -0 becomes 0 */
  memcpy(&u, &x, sizeof u);
  return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}
static uint64_t key_of_i64(int64_t x) { return (uint64_t)x ^ (uint64_t)1 << 63; }

static uint64_t key_at(const void *data, PlDtype t, int64_t i) {
  const char *p = plk_cat(data, i, pl_dtype_size(t));
  if (pl_is_float(t)) {
    double d;
    plk_nd_load_f64(&d, p, t, 1, 1);
    return key_of_f64(d);
  }
  int64_t v;
  plk_nd_load_i64(&v, p, t, 1, 1);
  return key_of_i64(v);
}

static void keys_of(uint64_t *key, const void *data, PlDtype t, int64_t n) {
  double d[KEY_BLOCK];
  int64_t v[KEY_BLOCK];
  for (int64_t at = 0; at < n; at += KEY_BLOCK) {
    int64_t m = plk_min64(KEY_BLOCK, n - at);
    const char *p = plk_cat(data, at, pl_dtype_size(t));
    if (pl_is_float(t)) {
      plk_nd_load_f64(d, p, t, m, 1);
      for (int64_t i = 0; i < m; i++) key[at + i] = key_of_f64(d[i]);
    } else {
      plk_nd_load_i64(v, p, t, m, 1);
      for (int64_t i = 0; i < m; i++) key[at + i] = key_of_i64(v[i]);
    }
  }
}

/* ---- sorting ------------------------------------------------------------------------------------------ */

/* Stable radix sort of keys with their positions, NULL if nobody asks where they were; bytes that are equal everywhere cost nothing. */
static PlStatus sort_keys(uint64_t *key, int64_t *pos, int64_t n) {
  uint64_t differ = 0;
  for (int64_t i = 1; i < n; i++) differ |= key[i] ^ key[0];
  if (!differ) return PL_OK;
  void *mem;
  PL_TRY(plk_scratch((size_t)(n + 1) * (pos ? 16 : 8), &mem));
  uint64_t *k[2] = {key, mem};
  int64_t *p[2] = {pos, (int64_t *)mem + n};
  int from = 0;
  for (int shift = 0; shift < 64; shift += 8) {
    if (!(differ >> shift & 255)) continue;
    int64_t count[256] = {0}, at = 0;
    for (int64_t i = 0; i < n; i++) count[k[from][i] >> shift & 255]++;
    for (int b = 0; b < 256; b++) {
      int64_t c = count[b];
      count[b] = at;
      at += c;
    }
    for (int64_t i = 0; i < n; i++) {
      int64_t to = count[k[from][i] >> shift & 255]++;
      k[1 - from][to] = k[from][i];
      if (pos) p[1 - from][to] = p[from][i];
    }
    from = 1 - from;
    PlStatus st = plk_poll();
    if (st != PL_OK) {
      plk_scratch_free(mem);
      return st;
    }
  }
  if (from) {
    memcpy(key, k[1], (size_t)n * sizeof *key);
    if (pos) memcpy(pos, p[1], (size_t)n * sizeof *pos);
  }
  plk_scratch_free(mem);
  return PL_OK;
}

/* Lexicographic order of rows of m keys. */
static int compare_rows(const uint64_t *key, int64_t m, int64_t a, int64_t b) {
  const uint64_t *x = key + a * m, *y = key + b * m;
  for (int64_t i = 0; i < m; i++)
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}

/* Stable bottom-up merge sort of row numbers; tmp holds n. */
static void sort_rows(const uint64_t *key, int64_t m, int64_t *pos, int64_t *tmp, int64_t n) {
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t lo = 0; lo < n; lo += 2 * width) {
      int64_t mid = plk_min64(lo + width, n), hi = plk_min64(lo + 2 * width, n), a = lo, b = mid;
      for (int64_t i = lo; i < hi; i++) tmp[i] = a < mid && (b >= hi || compare_rows(key, m, pos[a], pos[b]) <= 0) ? pos[a++] : pos[b++];
    }
    memcpy(pos, tmp, (size_t)n * sizeof *pos);
  }
}

/* ---- searchsorted, bucketize ------------------------------------------------------------------------------ */

typedef struct Search {
  const void *sorted, *values;
  PlDtype st, vt;
  const uint64_t *key;   /* of all sorted items, or NULL: computed as the search meets them */
  const int64_t *sorter; /* positions counted from sbase, or NULL */
  int64_t sbase, n, m, base;
  bool right, shared; /* shared: one sorted row for all values */
  const double *edge; /* of all sorted items, if they are floats, finite and about equally far apart, else NULL */
  double per;         /* items from one number to the next */
  PlArray *out;
} Search;

/* Items before the value: those < it, or ≤ it when right. */
static int64_t search_one(const Search *s, int64_t row, uint64_t value) {
  int64_t lo = 0, hi = s->n, at = s->shared ? 0 : row * s->n;
  if (s->key && !s->sorter) {
    const uint64_t *key = s->key + at;
    const uint64_t bound = value + s->right; /* k <= v is k < v + 1; only NaN's key cannot grow */
    if (s->right && value == KEY_NAN) return s->n;
    int64_t n = hi; /* the first n items from lo are undecided */
    for (int64_t half; (half = n / 2) > 0; n -= half) lo += half & -(int64_t)(key[lo + half - 1] < bound); /* no branch to guess */
    return n ? lo + (key[lo] < bound) : lo;
  }
  while (lo < hi) {
    int64_t mid = lo + (hi - lo) / 2, i = s->sorter ? s->sorter[at + mid] - s->sbase : mid;
    uint64_t k = s->key ? s->key[at + i] : key_at(s->sorted, s->st, at + i);
    if (s->right ? k <= value : k < value) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

/* The same where items are about equally far apart: where the value would be if they were so exactly, then a step or two. */
static inline int64_t search_even(const Search *s, double x, bool right) {
  const double *edge = s->edge, first = edge[0], last = edge[s->n - 1];
  if (!(right ? x < last : x <= last)) return s->n; /* also NaN */
  if (right ? x < first : x <= first) return 0;
  int64_t k = plk_min64((int64_t)((x - first) * s->per) + 1, s->n - 1);
  while (right ? x < edge[k - 1] : x <= edge[k - 1]) k--;
  while (right ? x >= edge[k] : x > edge[k]) k++;
  return k;
}

static PlStatus search_body(void *ctx, int64_t begin, int64_t end) {
  const Search *s = ctx;
  double x[KEY_BLOCK];
  uint64_t key[KEY_BLOCK];
  for (int64_t i = begin; i < end; i += KEY_BLOCK) {
    const int64_t n = plk_min64(KEY_BLOCK, end - i);
    const void *values = plk_cat(s->values, i, pl_dtype_size(s->vt));
    if (s->edge) plk_nd_load_f64(x, values, s->vt, n, 1);
    else keys_of(key, values, s->vt, n);
    for (int64_t j = 0; j < n; j++) {
      const int64_t at = (!s->edge   ? search_one(s, s->m ? (i + j) / s->m : 0, key[j])
                          : s->right ? search_even(s, x[j], true)
                                     : search_even(s, x[j], false)) +
                         s->base;
      if (s->out->dtype == PL_I32) ((int32_t *)s->out->data)[i + j] = (int32_t)at;
      else ((int64_t *)s->out->data)[i + j] = at;
    }
  }
  return PL_OK;
}

static Search search_of(const PlkCall *call, const PlArray *sorted, const PlArray *values) {
  Search s = {.sorted = sorted->data,
              .values = values->data,
              .st = (PlDtype)sorted->dtype,
              .vt = (PlDtype)values->dtype,
              .n = sorted->shape[sorted->ndim - 1],
              .m = values->ndim ? values->shape[values->ndim - 1] : 1,
              .base = pl_attr_i(call->attrs, 1),
              .right = pl_attr_i(call->attrs, 0) != 0,
              .shared = sorted->ndim == 1,
              .out = call->out[0]};
  return s;
}

/* Whether no item of one row is further than half a step from where it would be if all were equally far apart. */
static bool look_even(Search *s, double *edge) {
  const int64_t n = s->n;
  if (!s->shared || s->sorter || n < 8 || !pl_is_float(s->st) || !pl_is_float(s->vt)) return false;
  plk_nd_load_f64(edge, s->sorted, s->st, n, 1);
  const double first = edge[0], step = (edge[n - 1] - first) / (double)(n - 1);
  s->per = 1 / step;
  if (!(step > 0 && isfinite(step) && isfinite(s->per))) return false;
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(edge[i] - first - (double)i * step) <= step / 2)) return false;
  s->edge = edge;
  return true;
}

/* With more than a few values, every item's key is worth computing once. */
static PlStatus search_run(Search *s, const PlArray *sorted, int64_t nvalue) {
  void *mem = NULL;
  if (nvalue > sorted->numel / 8) {
    PL_TRY(plk_scratch((size_t)(sorted->numel + 1) * sizeof(uint64_t), &mem));
  }
  if (mem && !look_even(s, mem)) {
    keys_of(mem, sorted->data, s->st, sorted->numel);
    s->key = mem;
  }
  PlStatus st = plk_parallel(nvalue, 4096, search_body, s);
  plk_scratch_free(mem);
  return st;
}

PlStatus plk_cpu_searchsorted(const PlkCall *call) {
  Search s = search_of(call, call->in[0], call->in[1]);
  PlkIndex sorter = {0};
  if (pl_attr_has(call->attrs, 3)) s.right = pl_attr_i(call->attrs, 3) == 1;
  if (call->nin > 2 && call->in[2]) {
    PL_TRY(plk_index_load(call->name, call->in[2], s.n, s.base, false, &sorter));
    s.sorter = sorter.v;
    s.sbase = sorter.base;
  }
  PlStatus st = search_run(&s, call->in[0], call->out[0]->numel);
  plk_index_free(&sorter);
  return st;
}

PlStatus plk_cpu_bucketize(const PlkCall *call) {
  Search s = search_of(call, call->in[1], call->in[0]);
  return search_run(&s, call->in[1], call->out[0]->numel);
}

/* ---- bincount, isin --------------------------------------------------------------------------------------- */

/* y[v[i] - base]++, in four tables in turn where they are small: equal neighbours wait for each other's counts. */
static PlStatus count_bins(int64_t *y, int64_t bins, const int64_t *v, int64_t base, int64_t n) {
  int64_t i = 0;
  if (n / 16 >= bins) {
    void *mem;
    const size_t table = (size_t)bins * sizeof *y;
    PL_TRY(plk_scratch(3 * table + 1, &mem));
    memset(mem, 0, 3 * table);
    int64_t *a = mem, *b = a + bins, *c = b + bins;
    for (; i + 4 <= n; i += 4) y[v[i] - base]++, a[v[i + 1] - base]++, b[v[i + 2] - base]++, c[v[i + 3] - base]++;
    for (int64_t k = 0; k < bins; k++) y[k] += a[k] + b[k] + c[k];
    plk_scratch_free(mem);
  }
  for (; i < n; i++) y[v[i] - base]++;
  return PL_OK;
}

PlStatus plk_cpu_bincount(const PlkCall *call) {
  const PlArray *x = call->in[0], *weights = call->nin > 1 ? call->in[1] : NULL;
  PlArray *y = call->out[0];
  PlkIndex iv;
  PL_TRY(plk_index_load(call->name, x, y->numel, pl_attr_i(call->attrs, 1), false, &iv));
  PlStatus st = plk_nd_zero(y->data, (size_t)y->numel * esize_of(y));
  if (!weights && st == PL_OK) st = count_bins(y->data, y->numel, iv.v, iv.base, iv.n);
  for (int64_t i = 0; i < iv.n && weights && st == PL_OK; i++) {
    int64_t bin = iv.v[i] - iv.base;
    double w;
    plk_nd_load_f64(&w, plk_cat(weights->data, i, esize_of(weights)), (PlDtype)weights->dtype, 1, 1);
    if (y->dtype == PL_F32) ((float *)y->data)[bin] += (float)w;
    else ((double *)y->data)[bin] += w;
  }
  plk_index_free(&iv);
  return st;
}

PlStatus plk_cpu_isin(const PlkCall *call) {
  const PlArray *x = call->in[0], *test = call->in[1];
  const uint8_t flip = pl_attr_i(call->attrs, 0) != 0;
  uint8_t *y = call->out[0]->data;
  const int64_t n = test->numel;
  void *mem;
  PL_TRY(plk_scratch((size_t)(n + 1) * 8, &mem));
  uint64_t *key = mem;
  keys_of(key, test->data, (PlDtype)test->dtype, n);
  PlStatus st = sort_keys(key, NULL, n);
  for (int64_t i = 0; i < x->numel && st == PL_OK; i++) {
    uint64_t k = key_at(x->data, (PlDtype)x->dtype, i);
    int64_t lo = 0; /* halves without a branch: which one is anybody's guess */
    for (int64_t left = n; left > 1; left -= left / 2) lo += key[lo + left / 2 - 1] < k ? left / 2 : 0;
    bool nan = k == KEY_NAN && pl_is_float((PlDtype)x->dtype);
    y[i] = (uint8_t)(((lo < n && key[lo] == k) || (lo + 1 < n && key[lo + 1] == k)) & !nan) ^ flip;
  }
  plk_scratch_free(mem);
  return st;
}

/* ---- unique ----------------------------------------------------------------------------------------------- */

/* Rows of m keys along dim (m = 1 and all elements where dim < 0), sorted: pos[0 … n-1]. Integers that lie close together are
 * looked up, not sorted: place[key - low], of `span` keys, is 1 + where one of that key is, 0 where there is none. */
typedef struct Unique {
  int64_t n, m, span;
  uint64_t *key, low;
  int64_t *pos, *place;
  void *mem, *dense;
  bool floats;
} Unique;

static void unique_free(Unique *u) {
  plk_scratch_free(u->mem);
  plk_scratch_free(u->dense);
}

/* Puts dim first, so that rows are contiguous. */
static PlStatus rows_first(const PlArray *x, int dim, void **scratch, const void **data) {
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  PlArray v = *x;
  int n = 0;
  if (dim < 0) return plk_nd_dense(x, (PlDtype)x->dtype, x->ndim, x->shape, scratch, data);
  for (int d = -1; d < x->ndim; d++) {
    if (d == dim) continue;
    shape[n] = x->shape[d < 0 ? dim : d];
    strides[n++] = x->strides[d < 0 ? dim : d];
  }
  v.shape = shape;
  v.strides = strides;
  v.contiguous = x->contiguous && dim == 0;
  return plk_nd_dense(&v, (PlDtype)x->dtype, x->ndim, shape, scratch, data);
}

/* Runs of at most KEY_BLOCK keys of n elements: `at` their first, `many` of them in `block`. */
#define EACH_RUN(data, t, n)                                                                                                             \
  for (int64_t at = 0, many = plk_min64(KEY_BLOCK, n); at < (n) && (keys_of(block, plk_cat(data, at, pl_dtype_size(t)), t, many), true); \
       at += many, many = plk_min64(KEY_BLOCK, (n)-at))

/* Fills u->place, if there are about as many keys between the least and the greatest as elements. */
static PlStatus look_up(const void *data, PlDtype t, Unique *u) {
  uint64_t block[KEY_BLOCK], least = UINT64_MAX, most = 0;
  EACH_RUN(data, t, u->n) {
    for (int64_t i = 0; i < many; i++) {
      least = block[i] < least ? block[i] : least;
      most = block[i] > most ? block[i] : most;
    }
    if (most - least > (uint64_t)u->n + 256) return PL_OK;
    if (at % (KEY_BLOCK * 4096) == 0) PL_TRY(plk_poll());
  }
  if (u->n == 0) return PL_OK;
  u->low = least, u->span = (int64_t)(most - least) + 1;
  PL_TRY(plk_scratch((size_t)u->span * sizeof *u->place, &u->mem));
  u->place = u->mem;
  PL_TRY(plk_nd_zero(u->place, (size_t)u->span * sizeof *u->place));
  EACH_RUN(data, t, u->n) {
    for (int64_t i = 0; i < many; i++) u->place[block[i] - least] = at + i + 1;
    if (at % (KEY_BLOCK * 4096) == 0) PL_TRY(plk_poll());
  }
  return PL_OK;
}

static PlStatus unique_sort(const PlArray *x, int dim, bool places, Unique *u) {
  const void *data;
  *u = (Unique){.n = dim < 0 ? x->numel : x->shape[dim], .floats = pl_is_float((PlDtype)x->dtype)};
  u->m = dim < 0 ? 1 : u->n ? x->numel / u->n : 0;
  PL_TRY(rows_first(x, dim, &u->dense, &data));
  PlStatus st = dim < 0 && !u->floats ? look_up(data, (PlDtype)x->dtype, u) : PL_OK;
  if (st == PL_OK && !u->place) st = plk_scratch((size_t)(x->numel + 2 * u->n + 1) * 8, &u->mem);
  if (st == PL_OK && !u->place) {
    u->key = u->mem;
    u->pos = places || dim >= 0 ? (int64_t *)u->mem + x->numel : NULL;
    keys_of(u->key, data, (PlDtype)x->dtype, x->numel);
    for (int64_t i = 0; u->pos && i < u->n; i++) u->pos[i] = i;
    if (dim < 0) st = sort_keys(u->key, u->pos, u->n);
    else sort_rows(u->key, u->m, u->pos, u->pos + u->n, u->n);
  }
  if (st != PL_OK) unique_free(u);
  return st;
}

/* Does sorted item i begin a new group? Flat keys are sorted themselves; each NaN is its own. */
static bool begins(const Unique *u, int dim, int64_t i) {
  if (i == 0) return true;
  if (dim < 0) return u->key[i] != u->key[i - 1] || (u->floats && u->key[i] == KEY_NAN);
  return compare_rows(u->key, u->m, u->pos[i], u->pos[i - 1]) != 0;
}

PlStatus plk_cpu_unique_count(const PlArray *x, int dim, int64_t *count) {
  Unique u;
  int64_t n = 0;
  PL_TRY(unique_sort(x, dim, false, &u));
  for (int64_t k = 0; k < u.span; k++) n += u.place[k] != 0;
  for (int64_t i = 0; !u.place && i < u.n; i++) n += begins(&u, dim, i);
  unique_free(&u);
  *count = n;
  return PL_OK;
}

static PlStatus put_group(const PlArray *x, PlArray *y, int dim, int64_t group, int64_t from) {
  const size_t esize = esize_of(x);
  if (dim < 0) {
    memcpy(plk_at(y->data, group, esize), plk_cat(x->data, from, esize), esize);
    return PL_OK;
  }
  PlkNd w = {0};
  for (int d = 0; d < x->ndim; d++)
    if (d != dim) plk_nd_dim(&w, x->shape[d], y->strides[d], x->strides[d]);
  return plk_nd_copy(plk_at(y->data, group * y->strides[dim], esize), plk_cat(x->data, from * x->strides[dim], esize), &w, esize);
}

/* The groups of integers that were looked up: each key's place becomes its group's number. */
static PlStatus groups_of(const PlkCall *call, Unique *u, int64_t base, int64_t *inverse, int64_t *counts) {
  const PlArray *x = call->in[0];
  const PlDtype t = (PlDtype)x->dtype;
  uint64_t block[KEY_BLOCK];
  int64_t groups = 0;
  for (int64_t k = 0; k < u->span; k++) {
    if (!u->place[k]) continue;
    PL_TRY(put_group(x, call->out[0], -1, groups, u->place[k] - 1));
    if (counts) counts[groups] = 0;
    u->place[k] = groups++;
  }
  if (!inverse && !counts) return PL_OK;
  EACH_RUN(x->data, t, u->n) {
    for (int64_t i = 0; i < many; i++) {
      const int64_t group = u->place[block[i] - u->low];
      if (inverse) inverse[at + i] = group + base;
      if (counts) counts[group]++;
    }
    if (at % (KEY_BLOCK * 4096) == 0) PL_TRY(plk_poll());
  }
  return PL_OK;
}

PlStatus plk_cpu_unique(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const int dim = pl_attr_has(call->attrs, 3) && x->ndim ? (int)pl_attr_i(call->attrs, 3) : -1;
  const int64_t base = pl_attr_i(call->attrs, 4);
  const PlArray *first = call->out[1], *second = call->out[2];
  const bool want_inverse = pl_attr_i(call->attrs, 1) != 0;
  if (!want_inverse) second = first, first = NULL;
  int64_t *inverse = first ? first->data : NULL, *counts = second ? second->data : NULL, groups = -1;
  Unique u;
  PL_TRY(unique_sort(x, dim, true, &u));
  PlStatus st = u.place ? groups_of(call, &u, base, inverse, counts) : PL_OK;
  for (int64_t i = 0; !u.place && i < u.n && st == PL_OK; i++) {
    if (begins(&u, dim, i)) {
      st = put_group(x, call->out[0], dim, ++groups, u.pos[i]);
      if (counts) counts[groups] = 0;
    }
    if (inverse) inverse[u.pos[i]] = groups + base;
    if (counts) counts[groups]++;
  }
  unique_free(&u);
  return st;
}
