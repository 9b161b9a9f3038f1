/* SPDX-License-Identifier: MIT
 * Searching and counting by value: searchsorted, bucketize, bincount, isin, unique, by the keys of any_dtype.h: one search and one
 * radix sort do for every dtype. */
#include "kernels/cuda/index/index.h"
#include "kernels/cuda/sort/sort.h"
#include "kernels/reduce.h"

namespace {

/* ---- searchsorted, bucketize ------------------------------------------------------------------------------------------- */

struct Search {
  int64_t n, m, base, sbase; /* items of a row; values of a row */
  int st, vt, ot, it;        /* dtypes of sorted, values, result, sorter */
  bool right, shared;
};
__global__ void find_place(Search s, int64_t count, const void *sorted, const void *values, const void *sorter, int64_t order, void *out,
                           PlcFlag *flag, const char *name) {
  for (PLC_EACH(i, order)) { /* every position of sorter is checked, also those that no search meets */
    const int64_t v = plc_get_i(sorter, s.it, i);
    if (v < s.sbase || v - s.sbase >= s.n) plc_fault(flag, PLC_FAULT_INDEX, name, v, s.n, (int)s.sbase);
  }
  for (PLC_EACH(i, count)) {
    const uint64_t v = plc_key(values, s.vt, i);
    const int64_t at = s.shared || s.m == 0 ? 0 : i / s.m * s.n;
    int64_t lo = 0, hi = s.n;
    while (lo < hi) { /* items before lo are before the value */
      const int64_t mid = lo + (hi - lo) / 2;
      int64_t k = mid;
      if (sorter) {
        k = plc_get_i(sorter, s.it, at + mid) - s.sbase;
        if (k < 0 || k >= s.n) break;
      }
      const uint64_t key = plc_key(sorted, s.st, at + k);
      if (s.right ? key <= v : key < v) lo = mid + 1;
      else hi = mid;
    }
    plc_put_i(out, s.ot, i, lo + s.base);
  }
}
PlStatus search(const PlkCall *call, const PlArray *sorted, const PlArray *values, const PlArray *sorter, bool right) {
  const PlArray *y = call->out[0];
  Search s = {sorted->shape[sorted->ndim - 1],
              values->ndim ? values->shape[values->ndim - 1] : 1,
              pl_attr_i(call->attrs, 1),
              pl_attr_i(call->attrs, 1),
              (int)sorted->dtype,
              (int)values->dtype,
              (int)y->dtype,
              sorter ? (int)sorter->dtype : 0,
              right,
              sorted->ndim == 1};
  if (y->numel == 0) return PL_OK;
  PLC_LAUNCH(find_place, plc_grid(y->numel, 1), PLC_BLOCK, 0, s, y->numel, sorted->data, values->data, sorter ? sorter->data : NULL,
             sorter ? sorter->numel : 0, y->data, plc_flag(), (const char *)call->name);
  return PL_OK;
}
PlStatus searchsorted(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  const bool right = pl_attr_has(a, 3) ? pl_attr_i(a, 3) == 1 : pl_attr_i(a, 0) != 0;
  return search(call, call->in[0], call->in[1], call->nin > 2 ? call->in[2] : NULL, right);
}
PlStatus bucketize(const PlkCall *call) { return search(call, call->in[1], call->in[0], NULL, pl_attr_i(call->attrs, 0) != 0); }

/* ---- bincount ----------------------------------------------------------------------------------------------------------- */

/* Whole numbers may be added in any order. key, at: pairs for weights, or NULL. */
__global__ void bins(int64_t n, int type, const void *x, int64_t base, int64_t m, unsigned long long *y, uint32_t *key, uint32_t *at,
                     PlcFlag *flag, const char *name) {
  for (PLC_EACH(i, n)) {
    int64_t bin = plc_get_i(x, type, i) - base;
    if (bin < 0 || bin >= m) {
      plc_fault(flag, PLC_FAULT_INDEX, name, bin + base, m, (int)base);
      bin = m; /* sorts behind all bins */
    } else if (y) atomicAdd(&y[bin], 1ull);
    if (key) key[i] = (uint32_t)bin, at[i] = (uint32_t)i;
  }
}
PlStatus bincount(const PlkCall *call) {
  const PlArray *x = call->in[0], *w = call->nin > 1 ? call->in[1] : NULL;
  PlArray *y = call->out[0];
  const int64_t base = pl_attr_i(call->attrs, 1), m = y->numel;
  if (m > 0 && (!w || x->numel == 0)) PLC_TRY(cudaMemsetAsync(y->data, 0, (size_t)m * pl_dtype_size((PlDtype)y->dtype), plc_stream()));
  if (x->numel == 0) return PL_OK;
  if (!w) {
    PLC_LAUNCH(bins, plc_grid(x->numel, 1), PLC_BLOCK, 0, x->numel, (int)x->dtype, x->data, base, m, (unsigned long long *)y->data,
               (uint32_t *)NULL, (uint32_t *)NULL, plc_flag(), (const char *)call->name);
    return PL_OK;
  }
  if (m >= INT32_MAX) PL_FAIL(PL_ERR_UNSUPPORTED, "bincount: %lld bins are more than the device's kernel takes", (long long)m);
  plc_pairs<uint32_t> p;
  void *mem;
  PL_TRY(plc_pairs_room(&p, x->numel, &mem));
  PLC_LAUNCH(bins, plc_grid(x->numel, 1), PLC_BLOCK, 0, x->numel, (int)x->dtype, x->data, base, m, (unsigned long long *)NULL, p.key, p.at,
             plc_flag(), (const char *)call->name);
  int bits = 8;
  while (bits < 32 && m >> bits) bits += 8;
  PlStatus s = plc_sort_pairs(&p, 1, x->numel, bits);
  if (s == PL_OK) s = plc_sum_sorted(&p, x->numel, w->dtype, w->data, m, y->dtype, y->data);
  plc_scratch_free(mem);
  return s;
}

/* ---- isin ---------------------------------------------------------------------------------------------------------------- */

/* key[i] of row at[i], or i where `first`; m keys a row, at column `col`. */
__global__ void keys_of(int64_t n, int64_t outer_step, int64_t inner_step, int64_t inner, int64_t col, bool first, int type, const void *x,
                        uint64_t *key, uint32_t *at) {
  for (PLC_EACH(i, n)) {
    const int64_t row = first ? i : at[i];
    key[i] = plc_key(x, type, col / inner * outer_step + row * inner_step + col % inner);
    if (first) at[i] = (uint32_t)i;
  }
}
__global__ void is_in(int64_t count, int type, const void *x, int64_t n, const uint64_t *key, bool flip, uint8_t *y) {
  for (PLC_EACH(i, count)) {
    const uint64_t k = plc_key(x, type, i);
    int64_t lo = 0, hi = n;
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (key[mid] < k) lo = mid + 1;
      else hi = mid;
    }
    const bool nan = type <= PL_BF16 && k == plc_key_nan(type);
    y[i] = (uint8_t)((lo < n && key[lo] == k && !nan) != flip);
  }
}
PlStatus isin(const PlkCall *call) {
  const PlArray *x = call->in[0], *test = call->in[1];
  const int64_t n = test->numel;
  plc_pairs<uint64_t> p;
  void *mem;
  if (x->numel == 0) return PL_OK;
  PL_TRY(plc_pairs_room(&p, n + 1, &mem));
  PlStatus s = PL_OK;
  if (n > 0) {
    PLC_LAUNCH(keys_of, plc_grid(n, 1), PLC_BLOCK, 0, n, (int64_t)0, (int64_t)1, (int64_t)1, (int64_t)0, true, (int)test->dtype, test->data,
               p.key, p.at);
    s = plc_sort_pairs(&p, 1, n, plc_key_bits(test->dtype));
  }
  if (s == PL_OK)
    PLC_LAUNCH(is_in, plc_grid(x->numel, 1), PLC_BLOCK, 0, x->numel, (int)x->dtype, x->data, n, p.key, pl_attr_i(call->attrs, 0) != 0,
               (uint8_t *)call->out[0]->data);
  plc_scratch_free(mem);
  return s;
}

/* ---- unique ------------------------------------------------------------------------------------------------------------------ */

/* x as rows along dim: n of them, each m numbers; number c of row r is at c / inner outer_step + r inner + c % inner. */
struct Slices {
  int64_t n, m, inner, outer_step;
  int type;
  bool flat;
};
/* group[i] = 1 where sorted row i begins a new group. Flat: each NaN is its own. */
__global__ void begins(Slices s, const void *x, const uint32_t *at, int64_t *group) {
  for (PLC_EACH(i, s.n)) {
    bool other = i == 0;
    for (int64_t c = 0; c < s.m && !other; c++) {
      const int64_t col = c / s.inner * s.outer_step + c % s.inner;
      const uint64_t k = plc_key(x, s.type, col + at[i] * s.inner);
      other = k != plc_key(x, s.type, col + at[i - 1] * s.inner) || (s.flat && s.type <= PL_BF16 && k == plc_key_nan(s.type));
    }
    group[i] = other;
  }
}
/* group: counted up from 1 by now. start[g]: the first sorted row of group g. */
__global__ void spread(Slices s, int64_t groups, const uint32_t *at, const int64_t *group, int64_t base, int64_t *start, int64_t *inverse) {
  for (PLC_EACH(i, s.n)) {
    const int64_t g = group[i] - 1;
    if (i == 0 || group[i - 1] != group[i]) start[g] = i;
    if (i == s.n - 1) start[groups] = s.n;
    if (inverse) inverse[at[i]] = g + base;
  }
}
__global__ void take(Slices s, int64_t groups, const void *x, const uint32_t *at, const int64_t *start, void *y) {
  for (PLC_EACH(e, groups * s.m)) {
    const int64_t g = e / s.m, c = e - g * s.m;
    plc_move(y, c / s.inner * groups * s.inner + g * s.inner + c % s.inner, x,
             c / s.inner * s.outer_step + at[start[g]] * s.inner + c % s.inner, plc_size(s.type));
  }
}
__global__ void sizes(int64_t groups, const int64_t *start, int64_t *counts) {
  for (PLC_EACH(g, groups)) counts[g] = start[g + 1] - start[g];
}
__global__ void in_order(int64_t n, uint32_t *at) {
  for (PLC_EACH(i, n)) at[i] = (uint32_t)i;
}

PlStatus unique_run(const PlkCall *call, const Slices *s, int64_t groups, plc_pairs<uint64_t> *p, int64_t *group, int64_t *start) {
  const PlArray *x = call->in[0];
  const bool want = pl_attr_i(call->attrs, 1) != 0;
  PlArray *inverse = want ? call->out[1] : NULL, *counts = call->out[want ? 2 : 1];
  if (s->m == 0) PLC_LAUNCH(in_order, plc_grid(s->n, 1), PLC_BLOCK, 0, s->n, p->at); /* slices of nothing are all equal */
  for (int64_t c = s->m; c-- > 0;) { /* by the last column first: stable passes make the first one count most */
    PLC_LAUNCH(keys_of, plc_grid(s->n, 1), PLC_BLOCK, 0, s->n, s->outer_step, s->inner, s->inner, c, c == s->m - 1, s->type, x->data,
               p->key, p->at);
    PL_TRY(plc_sort_pairs(p, 1, s->n, plc_key_bits(s->type)));
  }
  PLC_LAUNCH(begins, plc_grid(s->n, 1), PLC_BLOCK, 0, *s, x->data, p->at, group);
  PL_TRY(plc_running_sum(group, s->n));
  PLC_LAUNCH(spread, plc_grid(s->n, 1), PLC_BLOCK, 0, *s, groups, p->at, group, pl_attr_i(call->attrs, 4), start,
             (int64_t *)(inverse ? inverse->data : NULL));
  if (s->m > 0) PLC_LAUNCH(take, plc_grid(groups * s->m, 1), PLC_BLOCK, 0, *s, groups, x->data, p->at, start, call->out[0]->data);
  if (counts) PLC_LAUNCH(sizes, plc_grid(groups, 1), PLC_BLOCK, 0, groups, start, (int64_t *)counts->data);
  return PL_OK;
}

PlStatus unique(const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->out[0];
  const int dim = pl_attr_has(call->attrs, 3) && x->ndim ? (int)pl_attr_i(call->attrs, 3) : -1;
  const plc_rows r = plc_rows_of(x, dim);
  const Slices s = {r.n, r.outer * r.inner, r.inner, r.n * r.inner, (int)x->dtype, dim < 0};
  const int64_t groups = dim < 0 ? y->numel : y->shape[dim];
  plc_pairs<uint64_t> p;
  void *mem, *more;
  if (s.n == 0) return PL_OK;
  PL_TRY(plc_pairs_room(&p, s.n, &mem));
  PlStatus st = plc_scratch((size_t)(s.n + groups + 1) * sizeof(int64_t), &more);
  if (st == PL_OK) {
    st = unique_run(call, &s, groups, &p, (int64_t *)more, (int64_t *)more + s.n);
    plc_scratch_free(more);
  }
  plc_scratch_free(mem);
  return st;
}

} // namespace

PLC_KERNEL(searchsorted, searchsorted)
PLC_KERNEL(bucketize, bucketize)
PLC_KERNEL(bincount, bincount)
PLC_KERNEL(isin, isin)
PLC_KERNEL(unique, unique)
