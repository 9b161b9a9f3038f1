/* SPDX-License-Identifier: MIT
 * Running sums, products, log-sum-exps and extremes along a dim, and their gradients. Floats accumulate in double, as on
 * the CPU. Where there are many rows side by side a thread walks each; else a row is cut into chunks of a fixed size:
 * their totals, what comes before each chunk, then the chunks themselves, each by one block. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/norm/channels.h"
#include "kernels/reduce.h"

namespace {

enum { CHUNK = 4096, MANY_ROWS = 8192, EACH = 4 };

struct Shape {
  int64_t outer, n, inner, chunks;
  int dtype; /* of x and y */
  bool reverse;
  int64_t base; /* of positions */
};
/* Element i of a row. */
PLC_DEV int64_t place(const Shape &s, int64_t row, int64_t i) {
  if (s.inner == 1) return row * s.n + (s.reverse ? s.n - 1 - i : i);
  return (row / s.inner * s.n + (s.reverse ? s.n - 1 - i : i)) * s.inner + row % s.inner;
}

/* Each: State, zero, load, join (associative, a before b), store. */
struct SumF {
  typedef double State;
  static __device__ __forceinline__ double zero() { return 0; }
  static __device__ __forceinline__ double load(const Shape &s, const void *x, int64_t at, int64_t) { return plc_get_f(x, s.dtype, at); }
  static __device__ __forceinline__ double join(double a, double b) { return a + b; }
  static __device__ __forceinline__ void store(const Shape &s, const void *, void *y, int64_t *, int64_t, int64_t at, double v) {
    plc_put_f(y, s.dtype, at, v);
  }
};
struct ProdF : SumF {
  static __device__ __forceinline__ double zero() { return 1; }
  static __device__ __forceinline__ double join(double a, double b) { return a * b; }
};
struct LseF : SumF {
  static __device__ __forceinline__ double zero() { return -(double)INFINITY; }
  /* log(e^a + e^b) = max + log1p(e^(min - max)); infinities and NaN pass through the sum */
  static __device__ __forceinline__ double join(double a, double b) {
    if (a != a || b != b) return a + b;
    const double hi = a > b ? a : b, lo = a > b ? b : a;
    return isinf(hi) ? hi : hi + log1p(exp(lo - hi));
  }
};
struct SumI {
  typedef uint64_t State; /* wraps */
  static __device__ __forceinline__ uint64_t zero() { return 0; }
  static __device__ __forceinline__ uint64_t load(const Shape &s, const void *x, int64_t at, int64_t) {
    return (uint64_t)plc_get_i(x, s.dtype, at);
  }
  static __device__ __forceinline__ uint64_t join(uint64_t a, uint64_t b) { return a + b; }
  static __device__ __forceinline__ void store(const Shape &s, const void *, void *y, int64_t *, int64_t, int64_t at, uint64_t v) {
    plc_put_i(y, s.dtype, at, (int64_t)v);
  }
};
struct ProdI : SumI {
  static __device__ __forceinline__ uint64_t zero() { return 1; }
  static __device__ __forceinline__ uint64_t join(uint64_t a, uint64_t b) { return a * b; }
};
/* The last position among equals; NaN, once met, stays, and the last one wins. at < 0: nothing yet. */
struct Best {
  uint64_t key;
  int64_t at;
};
struct MaxAt {
  typedef Best State;
  static __device__ __forceinline__ Best zero() { return Best{0, -1}; }
  static __device__ __forceinline__ Best load(const Shape &s, const void *x, int64_t at, int64_t i) {
    return Best{plc_key(x, s.dtype, at), i};
  }
  static __device__ __forceinline__ Best join(Best a, Best b) { return b.at < 0 || (a.at >= 0 && a.key > b.key) ? a : b; }
  static __device__ __forceinline__ void store(const Shape &s, const void *x, void *y, int64_t *index, int64_t row, int64_t at, Best v) {
    if (y) plc_move(y, at, x, place(s, row, v.at), plc_size(s.dtype));
    if (index) index[at] = v.at + s.base;
  }
};
struct MinAt : MaxAt {
  static __device__ __forceinline__ Best load(const Shape &s, const void *x, int64_t at, int64_t i) {
    return Best{plc_key_down(x, s.dtype, at), i};
  }
};

template <typename Op> __global__ void walk_rows(Shape s, const void *x, void *y, int64_t *index) {
  for (PLC_EACH(row, s.outer * s.inner)) {
    typename Op::State a = Op::zero();
    for (int64_t i = 0; i < s.n; i++) {
      const int64_t at = place(s, row, i);
      a = Op::join(a, Op::load(s, x, at, i));
      Op::store(s, x, y, index, row, at, a);
    }
  }
}

template <typename S> PLC_DEV S shuffled_up(S v, int d) { return __shfl_up_sync(0xffffffffu, v, d); }
PLC_DEV Best shuffled_up(Best v, int d) { return Best{__shfl_up_sync(0xffffffffu, v.key, d), __shfl_up_sync(0xffffffffu, v.at, d)}; }
/* Inclusive over the block, 256 threads; room: 8. *all gets the total. */
template <typename Op> PLC_DEV typename Op::State block_scan(typename Op::State v, typename Op::State *room, typename Op::State *all) {
  typedef typename Op::State S;
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  for (int d = 1; d < 32; d <<= 1) {
    const S o = shuffled_up(v, d);
    if (lane >= d) v = Op::join(o, v);
  }
  __syncthreads();
  if (lane == 31) room[warp] = v;
  __syncthreads();
  S before = Op::zero(), sum = Op::zero();
  for (int k = 0; k < 8; k++) {
    if (k == warp) before = sum;
    sum = Op::join(sum, room[k]);
  }
  *all = sum;
  return Op::join(before, v);
}

/* totals NULL: scans the chunk and stores; before: what is before each chunk, NULL: nothing. Else its total alone. */
template <typename Op>
__global__ void scan_chunks(Shape s, const void *x, const typename Op::State *before, typename Op::State *totals, void *y, int64_t *index) {
  typedef typename Op::State S;
  __shared__ S room[8];
  const int64_t row = (int64_t)blockIdx.x / s.chunks, chunk = (int64_t)blockIdx.x % s.chunks;
  const int64_t end = (chunk + 1) * CHUNK < s.n ? (chunk + 1) * CHUNK : s.n;
  S carry = before ? before[blockIdx.x] : Op::zero();
  for (int64_t i0 = chunk * CHUNK; i0 < end; i0 += (int64_t)PLC_BLOCK * EACH) {
    S v[EACH], sum = Op::zero(), all;
    for (int k = 0; k < EACH; k++) {
      const int64_t i = i0 + (int64_t)threadIdx.x * EACH + k;
      if (i < end) sum = Op::join(sum, Op::load(s, x, place(s, row, i), i));
      v[k] = sum;
    }
    const S upto = block_scan<Op>(sum, room, &all);
    if (!totals) {
      S left = shuffled_up(upto, 1); /* what is before this thread's items */
      if (((int)threadIdx.x & 31) == 0) {
        left = Op::zero();
        for (int k = 0; k < (int)threadIdx.x >> 5; k++) left = Op::join(left, room[k]);
      }
      left = Op::join(carry, left);
      for (int k = 0; k < EACH; k++) {
        const int64_t i = i0 + (int64_t)threadIdx.x * EACH + k;
        if (i < end) Op::store(s, x, y, index, row, place(s, row, i), Op::join(left, v[k]));
      }
    }
    carry = Op::join(carry, all);
  }
  if (totals && threadIdx.x == 0) totals[blockIdx.x] = carry;
}
/* A block a row: its chunks' totals become what is before each. */
template <typename Op> __global__ void before_chunks(int64_t chunks, typename Op::State *t) {
  typedef typename Op::State S;
  __shared__ S room[8];
  S carry = Op::zero();
  t += (int64_t)blockIdx.x * chunks;
  for (int64_t i0 = 0; i0 < chunks; i0 += PLC_BLOCK) {
    const int64_t i = i0 + threadIdx.x;
    S all;
    const S upto = block_scan<Op>(i < chunks ? t[i] : Op::zero(), room, &all);
    S left = shuffled_up(upto, 1);
    if (((int)threadIdx.x & 31) == 0) {
      left = Op::zero();
      for (int k = 0; k < (int)threadIdx.x >> 5; k++) left = Op::join(left, room[k]);
    }
    if (i < chunks) t[i] = Op::join(carry, left);
    carry = Op::join(carry, all);
  }
}

template <typename Op> PlStatus run(Shape s, const void *x, void *y, int64_t *index) {
  typedef typename Op::State S;
  const int64_t rows = s.outer * s.inner;
  if (rows == 0 || s.n == 0) return PL_OK;
  s.chunks = (s.n + CHUNK - 1) / CHUNK;
  if (s.n < 32 || (s.inner > 1 && rows >= MANY_ROWS)) {
    PLC_LAUNCH(walk_rows<Op>, plc_grid(rows, 1), PLC_BLOCK, 0, s, x, y, index);
    return PL_OK;
  }
  void *mem = NULL;
  if (rows * s.chunks > INT32_MAX) PL_FAIL(PL_ERR_UNSUPPORTED, "a scan of %lld rows is too large", (long long)rows);
  if (s.chunks > 1) {
    PL_TRY(plc_scratch((size_t)(rows * s.chunks) * sizeof(S), &mem));
    PLC_LAUNCH(scan_chunks<Op>, (unsigned)(rows * s.chunks), PLC_BLOCK, 0, s, x, (const S *)NULL, (S *)mem, y, index);
    PLC_LAUNCH(before_chunks<Op>, (unsigned)rows, PLC_BLOCK, 0, s.chunks, (S *)mem);
  }
  PLC_LAUNCH(scan_chunks<Op>, (unsigned)(rows * s.chunks), PLC_BLOCK, 0, s, x, (const S *)mem, (S *)NULL, y, index);
  plc_scratch_free(mem);
  return PL_OK;
}

Shape shape_of(const PlkCall *call, const PlArray *x, int dtype) {
  const plc_rows r = plc_rows_of(x, pl_attr_i(call->attrs, 0));
  Shape s = {r.outer, r.n, r.inner, 1, dtype, false, 0};
  return s;
}

PlStatus scan(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  void *copy;
  const void *data;
  Shape s = shape_of(call, x, y->dtype);
  s.reverse = call->code == PLK_S_CUMSUM_REV;
  const bool floats = pl_is_float((PlDtype)y->dtype), sum = call->code == PLK_S_CUMSUM || s.reverse;
  PL_TRY(plc_as(x, y->dtype, &copy, &data));
  PlStatus st;
  if (sum) st = floats ? run<SumF>(s, data, y->data, NULL) : run<SumI>(s, data, y->data, NULL);
  else if (call->code == PLK_S_CUMPROD) st = floats ? run<ProdF>(s, data, y->data, NULL) : run<ProdI>(s, data, y->data, NULL);
  else st = run<LseF>(s, data, y->data, NULL);
  plc_scratch_free(copy);
  return st;
}

PlStatus cumextreme(const PlkCall *call) {
  const PlArray *x = call->in[0];
  void *y = call->out[0] ? call->out[0]->data : NULL;
  int64_t *index = call->out[1] ? (int64_t *)call->out[1]->data : NULL;
  Shape s = shape_of(call, x, x->dtype);
  s.base = pl_attr_i(call->attrs, 1);
  return call->code == PLK_S_CUMMAX ? run<MaxAt>(s, x->data, y, index) : run<MinAt>(s, x->data, y, index);
}

/* ---- gradients: the recurrences of kernels/cpu/reduce/scan.c, a thread a row ---------------------------------------------------- */

struct In { /* read in double, whatever the dtype */
  const void *p;
  int dtype;
};
In in_of(const PlArray *a) { return In{a->data, (int)a->dtype}; }
plc_numbers out_of(const PlArray *a) { return plc_numbers_of(a); }
PLC_DEV double at(const In &a, int64_t i) { return plc_get_f(a.p, a.dtype, i); }

/* dx_j = L_j S_j with L_j the product of x before j and S_j = dy_j + x_(j+1) S_(j+1). temp: a row of doubles each, strided
 * like x. With infinities or NaN: Σ over i >= j of dy_i y_i / x_j up to the first zero, nothing beyond it. */
__global__ void cumprod_backward(Shape s, In dy, In x, plc_numbers dx, double *temp) {
  for (PLC_EACH(row, s.outer * s.inner)) {
    int64_t z = s.n;
    bool finite = true;
    double l = 1, sum = 0;
    for (int64_t j = 0; j < s.n; j++) {
      const int64_t e = place(s, row, j);
      const double v = at(x, e);
      if (v == 0 && z == s.n) z = j;
      finite = finite && (s.n == 1 || isfinite(v)); /* of one element the gradient is dy */
      temp[e] = l;
      l *= v;
    }
    for (int64_t j = s.n; finite && j-- > 0;) {
      const int64_t e = place(s, row, j);
      sum = at(dy, e) + (j + 1 < s.n ? at(x, place(s, row, j + 1)) * sum : 0);
      plc_number_put(dx, e, temp[e] * sum);
    }
    if (finite) continue;
    for (int64_t j = z; j-- > 0;) {
      const int64_t e = place(s, row, j);
      sum += at(dy, e) * (temp[e] * at(x, e));
      plc_number_put(dx, e, sum / at(x, e));
    }
    if (z == s.n) continue;
    sum = 0;
    for (int64_t i = s.n; i-- > z;) {
      const int64_t e = place(s, row, i);
      sum = at(dy, e) + (i + 1 < s.n ? at(x, place(s, row, i + 1)) * sum : 0);
      plc_number_put(dx, e, 0);
    }
    plc_number_put(dx, place(s, row, z), temp[place(s, row, z)] * sum);
  }
}

/* T_i = x_i T_(i-1) + v_i L_i;  aT_i = dy_i + x_(i+1) aT_(i+1),  aL_i = v_i aT_i + x_i aL_(i+1),
 * dx_i = T_(i-1) aT_i + L_i aL_(i+1). */
__global__ void cumprod_backward2(Shape s, In dy, In x, In v, plc_numbers ddy, plc_numbers dx, double *t, double *l) {
  for (PLC_EACH(row, s.outer * s.inner)) {
    double a = 1, b = 0, up = 0, al = 0;
    for (int64_t i = 0; i < s.n; i++) {
      const int64_t e = place(s, row, i);
      const double xi = at(x, e);
      l[e] = a;
      t[e] = b = xi * b + at(v, e) * a;
      plc_number_put(ddy, e, b);
      a *= xi;
    }
    for (int64_t i = s.n; dx.p && i-- > 0;) {
      const int64_t e = place(s, row, i);
      up = at(dy, e) + (i + 1 < s.n ? at(x, place(s, row, i + 1)) * up : 0);
      plc_number_put(dx, e, (i > 0 ? t[place(s, row, i - 1)] * up : 0) + l[e] * al);
      al = at(v, e) * up + at(x, e) * al;
    }
  }
}

/* e^y, y the running log-sum-exp, is c e^m with m the greatest element so far: y itself, rounded to its dtype, would show in every
 * quotient where it is far from 0. Infinite m: c counts. */
struct Running {
  double m, c;
};
PLC_DEV Running running(Running r, double x, bool first) {
  if (first) return {x, 1};
  if (x != x || r.m != r.m) return {(double)NAN, (double)NAN};
  if (x == r.m) return {x, r.c + 1};
  if (x > r.m) return {x, r.c * exp(r.m - x) + 1};
  return {r.m, r.c + exp(x - r.m)};
}
/* e^(x - y), NaN where both are the same infinity, and e^(y - y') of a later y', 1 there. */
PLC_DEV double part(double x, Running y) { return exp(x - y.m) / y.c; }
PLC_DEV double rise(Running y, Running later) {
  if (y.m != later.m) return exp(y.m - later.m) * (y.c / later.c);
  return isfinite(y.m) ? y.c / later.c : 1;
}

/* dx_j = e^(x_j - y_j) A_j, A_j = dy_j + e^(y_j - y_(j+1)) A_(j+1); temp: y, strided like x */
__global__ void lse_backward(Shape s, In dy, In x, plc_numbers dx, Running *y) {
  for (PLC_EACH(row, s.outer * s.inner)) {
    double a = 0;
    Running r = {0, 0};
    for (int64_t j = 0; j < s.n; j++) {
      const int64_t e = place(s, row, j);
      y[e] = r = running(r, at(x, e), j == 0);
    }
    for (int64_t j = s.n; j-- > 0;) {
      const int64_t e = place(s, row, j);
      const double f = j + 1 < s.n ? rise(y[e], r) : 0;
      r = y[e];
      a = at(dy, e) + (f == 0 ? 0 : f * a);
      plc_number_put(dx, e, part(at(x, e), r) * a);
    }
  }
}

/* t_i = v_i e^(x_i - y_i) + e^(y_(i-1) - y_i) t_(i-1) */
__global__ void lse_tangent(Shape s, In v, In x, plc_numbers t) {
  for (PLC_EACH(row, s.outer * s.inner)) {
    double a = 0;
    Running y = {0, 0};
    for (int64_t i = 0; i < s.n; i++) {
      const int64_t e = place(s, row, i);
      const Running before = y;
      y = running(before, at(x, e), i == 0);
      const double f = i > 0 ? rise(before, y) : 0;
      a = at(v, e) * part(at(x, e), y) + (f == 0 ? 0 : f * a);
      plc_number_put(t, e, a);
    }
  }
}

PlStatus cumprod_bwd(const PlkCall *call) {
  const Shape s = shape_of(call, call->in[1], PL_F64);
  void *temp;
  if (call->in[1]->numel == 0) return PL_OK;
  PL_TRY(plc_scratch((size_t)call->in[1]->numel * sizeof(double), &temp));
  PLC_LAUNCH(cumprod_backward, plc_grid(s.outer * s.inner, 1), PLC_BLOCK, 0, s, in_of(call->in[0]), in_of(call->in[1]),
             out_of(call->out[0]), (double *)temp);
  plc_scratch_free(temp);
  return PL_OK;
}
PlStatus cumprod_bwd2(const PlkCall *call) {
  const Shape s = shape_of(call, call->in[1], PL_F64);
  const int64_t n = call->in[1]->numel;
  void *temp;
  if (n == 0) return PL_OK;
  PL_TRY(plc_scratch((size_t)n * 2 * sizeof(double), &temp));
  PLC_LAUNCH(cumprod_backward2, plc_grid(s.outer * s.inner, 1), PLC_BLOCK, 0, s, in_of(call->in[0]), in_of(call->in[1]), in_of(call->in[2]),
             out_of(call->out[0]), out_of(call->out[1]), (double *)temp, (double *)temp + n);
  plc_scratch_free(temp);
  return PL_OK;
}
PlStatus logcumsumexp_bwd(const PlkCall *call) {
  const Shape s = shape_of(call, call->in[1], PL_F64);
  if (call->in[1]->numel == 0) return PL_OK;
  const unsigned blocks = plc_grid(s.outer * s.inner, 1);
  if (pl_attr_i(call->attrs, 1)) {
    PLC_LAUNCH(lse_tangent, blocks, PLC_BLOCK, 0, s, in_of(call->in[0]), in_of(call->in[1]), out_of(call->out[0]));
    return PL_OK;
  }
  void *temp;
  PL_TRY(plc_scratch((size_t)call->in[1]->numel * sizeof(Running), &temp));
  PLC_LAUNCH(lse_backward, blocks, PLC_BLOCK, 0, s, in_of(call->in[0]), in_of(call->in[1]), out_of(call->out[0]), (Running *)temp);
  plc_scratch_free(temp);
  return PL_OK;
}

} // namespace

PLC_KERNEL(scan, scan)
PLC_KERNEL(cumextreme, cumextreme)
PLC_KERNEL(cumprod_bwd, cumprod_bwd)
PLC_KERNEL(cumprod_bwd2, cumprod_bwd2)
PLC_KERNEL(logcumsumexp_bwd, logcumsumexp_bwd)
