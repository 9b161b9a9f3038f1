/* SPDX-License-Identifier: MIT
 * Permutations and draws from a discrete distribution, with the words and the order of kernels/cpu/create/random_choice.c, so that
 * both devices choose alike.
 *
 * A permutation is Fisher-Yates: for i rising, p[i] and p[j_i] change places, j_i >= i drawn. Which of these swaps can be done
 * at once shows in reservations: every swap that waits writes the lowest number into its two places; who finds its own number
 * in both of them may go. O(log n) rounds are enough almost surely (Shun, Gu, Blelloch, Fineman, Gibbons, "Sequential random
 * permutation, list contraction and tree contraction are highly parallel", SODA 2015), what is left goes one by one. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/create/random.h"
extern "C" {
#include "kernels/random.h"
#include "kernels/sort.h"
}

enum { ALONE = 4096 }; /* up to here one block does all rounds */

struct Swaps {
  int64_t n, base;
  uint32_t *with;    /* j_i; n: swap i is done */
  uint32_t *reserve; /* per place: the lowest swap that waits for it */
  uint32_t *waiting; /* after each round: are there any? */
  int64_t *p;
};

PLC_DEV void begin_swap(const Swaps &s, const PlkRng &r, int64_t i) {
  const int64_t j = i + (int64_t)__umul64hi(plc_word64(r, i), (uint64_t)(s.n - i));
  s.with[i] = (uint32_t)(j == i ? s.n : j); /* a place with itself: nothing to do */
  s.reserve[i] = UINT32_MAX;
  s.p[i] = i + s.base;
}
PLC_DEV void reserve(const Swaps &s, int64_t i) {
  const uint32_t j = s.with[i];
  if (j == s.n) return;
  atomicMin(&s.reserve[i], (uint32_t)i);
  atomicMin(&s.reserve[j], (uint32_t)i);
}
/* False: it waits on. */
PLC_DEV bool swap(const Swaps &s, int64_t i) {
  const uint32_t j = s.with[i];
  if (j == s.n) return true;
  if (s.reserve[i] != i || s.reserve[j] != i) return false;
  const int64_t v = s.p[i];
  s.p[i] = s.p[j], s.p[j] = v;
  s.reserve[i] = s.reserve[j] = UINT32_MAX; /* whoever reads this meanwhile waits on, as before */
  s.with[i] = (uint32_t)s.n;
  return true;
}

__global__ void begin_swaps(Swaps s, PlcRng from) {
  const PlkRng r = plc_now(from);
  for (PLC_EACH(i, s.n)) begin_swap(s, r, i);
}
__global__ void reserve_all(Swaps s, int round) {
  if (s.waiting[round])
    for (PLC_EACH(i, s.n)) reserve(s, i);
}
__global__ void swap_all(Swaps s, int round) {
  if (!s.waiting[round]) return;
  bool waits = false;
  for (PLC_EACH(i, s.n)) waits |= !swap(s, i);
  if (waits) s.waiting[round + 1] = 1; /* all write the same */
}
__global__ void swap_rest(Swaps s, int round) {
  if (!s.waiting[round] || threadIdx.x != 0) return;
  for (int64_t i = 0; i < s.n; i++) {
    const uint32_t j = s.with[i];
    if (j == s.n) continue;
    const int64_t v = s.p[i];
    s.p[i] = s.p[j], s.p[j] = v;
  }
}
__global__ void swap_alone(Swaps s, PlcRng from) {
  __shared__ int waits;
  const PlkRng r = plc_now(from);
  for (int64_t i = threadIdx.x; i < s.n; i += blockDim.x) begin_swap(s, r, i);
  __syncthreads();
  for (;;) {
    if (threadIdx.x == 0) waits = 0;
    for (int64_t i = threadIdx.x; i < s.n; i += blockDim.x) reserve(s, i);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < s.n; i += blockDim.x)
      if (!swap(s, i)) waits = 1;
    __syncthreads();
    if (!waits) return;
    __syncthreads(); /* waits is read before it is cleared */
  }
}

static PlStatus permute(Swaps s, PlcRng rng, int rounds) {
  if (s.n <= ALONE) {
    PLC_LAUNCH(swap_alone, 1, PLC_BLOCK, 0, s, rng);
    return PL_OK;
  }
  const unsigned grid = plc_grid(s.n, 1);
  PLC_TRY(cudaMemsetAsync(s.waiting, 0, (size_t)(rounds + 1) * sizeof *s.waiting, plc_stream()));
  PLC_TRY(cudaMemsetAsync(s.waiting, 1, sizeof *s.waiting, plc_stream()));
  PLC_LAUNCH(begin_swaps, grid, PLC_BLOCK, 0, s, rng);
  for (int k = 0; k < rounds; k++) {
    PLC_LAUNCH(reserve_all, grid, PLC_BLOCK, 0, s, k);
    PLC_LAUNCH(swap_all, grid, PLC_BLOCK, 0, s, k);
  }
  PLC_LAUNCH(swap_rest, 1, 32, 0, s, rounds);
  return PL_OK;
}

static PlStatus randperm(const PlkCall *c) {
  Swaps s = {c->out[0]->numel, pl_attr_i(c->attrs, 1), NULL, NULL, NULL, (int64_t *)c->out[0]->data};
  void *room;
  int rounds = 8;
  if (s.n == 0) return PL_OK;
  if (s.n > INT32_MAX)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: %lld elements are more than the device's kernel takes; make it on the CPU", c->name, (long long)s.n);
  for (int64_t m = s.n; m > 1; m >>= 1) rounds += 4;
  PL_TRY(plc_scratch((size_t)(2 * s.n + rounds + 1) * sizeof(uint32_t), &room));
  s.with = (uint32_t *)room;
  s.reserve = s.with + s.n;
  s.waiting = s.reserve + s.n;
  PlStatus st = permute(s, plc_rng(&c->rng), rounds);
  plc_scratch_free(room);
  return st;
}
PLC_KERNEL(randperm_based, randperm)

/* ---- multinomial ------------------------------------------------------------------------------------------------------- */

struct Choice {
  const void *x; /* weights [rows,k] */
  int dtype;
  int64_t k, n, base;
  bool again;   /* with replacement */
  double *w;    /* [rows,k]: running sums, or what is sorted by */
  int64_t *out; /* [rows,n] */
  PlcFlag *flag;
  uint64_t name;
};

PLC_DEV double open01(const PlkRng &r, int64_t k) { return ((double)(int64_t)(plc_word64(r, k) >> 11) + 0.5) * 0x1p-53; }

PLC_DEV void bad_weights(const Choice &c, PlcFault what, int64_t value, int64_t size) {
  plc_fault(c.flag, what, (const char *)(uintptr_t)c.name, value, size, 0);
}

/* A warp a row. Weights are checked and, with replacement, added up in the CPU's order; without, w = E / weight, E standard
 * exponential. */
__global__ void weigh(Choice c, PlcRng from) {
  const PlkRng r = plc_now(from);
  const int64_t row = blockIdx.x;
  const int lane = (int)threadIdx.x;
  double sum = 0, mine = 0;
  int64_t positive = 0;
  bool bad = false;
  for (int64_t i0 = 0; i0 < c.k; i0 += 32) {
    const int64_t i = i0 + lane;
    const double w = i < c.k ? plc_get_f(c.x, c.dtype, row * c.k + i) : 0;
    bad |= !(w >= 0 && w <= 1.7976931348623157e308);
    positive += w > 0;
    if (!c.again) {
      if (i < c.k) c.w[row * c.k + i] = -log(open01(r, row * c.k + i)) / w; /* weight 0: infinite, last */
      continue;
    }
    for (int l = 0; l < 32; l++) {
      sum += __shfl_sync(0xffffffffu, w, l);
      if (l == lane) mine = sum;
    }
    if (i < c.k) c.w[row * c.k + i] = mine;
  }
  positive = plc_warp_all(positive, plc_sum());
  if (bad) bad_weights(c, PLC_FAULT_WEIGHT, 0, 0);
  else if (lane == 0 && positive == 0) bad_weights(c, PLC_FAULT_NO_WEIGHT, 0, 0);
  else if (lane == 0 && !c.again && positive < c.n) bad_weights(c, PLC_FAULT_FEW_WEIGHTS, positive, c.n);
}

/* Inverse of the running sum, by bisection; never a category of weight 0: the first whose sum is above u. */
__global__ void choose(Choice c, PlcRng from, int64_t all) {
  const PlkRng r = plc_now(from);
  for (PLC_EACH(e, all)) {
    const double *w = c.w + e / c.n * c.k;
    const double u = open01(r, e) * w[c.k - 1];
    int64_t lo = 0, hi = c.k - 1;
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (w[mid] > u) hi = mid;
      else lo = mid + 1;
    }
    while (lo > 0 && w[lo - 1] == w[lo]) lo--; /* u rounded up to all of the sum: the last that has a weight */
    c.out[e] = lo + c.base;
  }
}

/* Without replacement: the n smallest of E / weight, in order (Efraimidis & Spirakis 2006). */
static PlStatus smallest(const PlkCall *call, const Choice &c, int64_t rows) {
  int64_t shape[2] = {rows, c.k}, strides[2] = {c.k, 1}, to_shape[2] = {rows, c.n}, to_strides[2] = {c.n, 1};
  PlArray w, y;
  PlAttrs attrs;
  memset(&w, 0, sizeof w);
  memset(&attrs, 0, sizeof attrs);
  w.data = c.w, w.numel = rows * c.k, w.shape = shape, w.strides = strides, w.ndim = 2, w.contiguous = 1;
  w.dtype = PL_F64, w.device = PL_CUDA;
  y = w;
  y.data = c.out, y.numel = rows * c.n, y.shape = to_shape, y.strides = to_strides, y.dtype = PL_I64;
  attrs.v[0].i = c.n, attrs.v[1].i = 1, attrs.v[3].i = 1, attrs.v[4].i = c.base;
  attrs.set = attrs.isint = 31, attrs.nval = 5;
  const PlArray *in[1] = {&w};
  PlArray *out[2] = {NULL, &y};
  PlkCall sort = *call;
  sort.code = PLK_O_TOPK, sort.nin = 1, sort.nout = 2, sort.in = in, sort.out = out, sort.attrs = &attrs;
  return plc_run(&plc_kernel_sort, &sort);
}

static PlStatus draw(const PlkCall *call, const Choice &c, int64_t rows) {
  PLC_LAUNCH(weigh, (unsigned)rows, 32, 0, c, plc_rng(&call->rng));
  if (!c.again) return smallest(call, c, rows);
  PLC_LAUNCH(choose, plc_grid(rows * c.n, 1), PLC_BLOCK, 0, c, plc_rng(&call->rng), rows * c.n);
  return PL_OK;
}

static PlStatus multinomial(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const int64_t rows = x->ndim == 2 ? x->shape[0] : 1;
  const bool again = pl_attr_has(call->attrs, 1) && pl_attr_i(call->attrs, 1) != 0;
  Choice c = {x->data,
              (int)x->dtype,
              x->shape[x->ndim - 1],
              pl_attr_i(call->attrs, 0),
              pl_attr_i(call->attrs, 2),
              again,
              NULL,
              (int64_t *)call->out[0]->data,
              plc_flag(),
              (uint64_t)(uintptr_t)call->name};
  void *room;
  if (rows == 0 || c.n == 0) return PL_OK;
  if (c.k == 0) PL_FAIL(PL_ERR_ARG, "%s: no categories", call->name);
  if (rows > INT32_MAX) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: %lld rows are more than the device's kernel takes", call->name, (long long)rows);
  PL_TRY(plc_scratch((size_t)rows * (size_t)c.k * sizeof(double), &room));
  c.w = (double *)room;
  PlStatus s = draw(call, c, rows);
  plc_scratch_free(room);
  return s;
}
PLC_KERNEL(multinomial_based, multinomial)
