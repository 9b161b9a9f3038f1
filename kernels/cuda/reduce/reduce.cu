/* SPDX-License-Identifier: MIT
 * Reductions over any set of dims: y = post(combine(pre(x))), the jobs of kernels/cpu/reduce/reduce.c. The order of a sum depends on
 * sizes alone: each output's elements are cut into chunks, a chunk is summed by one block (or, where outputs are side by
 * side, by one thread), and chunks are added one after the other. Where an output's elements have one stride (STEPS), a thread
 * has eight loads under way and adds them in the order of before. */
#include "kernels/cuda/any_dtype.h"
extern "C" {
#include "kernels/reduce.h"
}
#include <float.h>

enum Core { SUM, PROD, MAX, MIN };
enum Pre { PLAIN, NONZERO, NAN0, ABS, SQUARE, POW, DIFF, SQDIFF, EXPDIFF };
enum Post { NOTHING, MEAN, MEAN_ABOUT, SQRT, ROOT, VAR, STD, LOG };

struct Job {
  const void *x;
  int dtype;
  Core core;
  Pre pre;
  Post post;
  double p;
  bool boolean, zero_empty;
  const double *aux;
  void *out;
  int out_dtype; /* PL_F64 and `out` plain doubles for what a second pass reads */
  int64_t n, chunk, chunks, outs;
  int64_t step;             /* between elements of an output; 0: they have no one stride */
  plc_layout<1> kept, gone; /* offsets of an output's first element; of an element within */
};

template <typename A> PLC_DEV A lowest();
template <> __device__ __forceinline__ float lowest<float>() { return -INFINITY; }
template <> __device__ __forceinline__ double lowest<double>() { return -(double)INFINITY; }
template <> __device__ __forceinline__ int64_t lowest<int64_t>() { return INT64_MIN; }
template <typename A> PLC_DEV A highest();
template <> __device__ __forceinline__ float highest<float>() { return INFINITY; }
template <> __device__ __forceinline__ double highest<double>() { return (double)INFINITY; }
template <> __device__ __forceinline__ int64_t highest<int64_t>() { return INT64_MAX; }

template <typename A> PLC_DEV A start(const Job &j) {
  if (j.boolean) return (A)(j.core == MIN);
  return j.core == SUM ? (A)0 : j.core == PROD ? (A)1 : j.core == MAX ? lowest<A>() : highest<A>();
}
template <typename A> PLC_DEV A combine(Core core, A a, A b) {
  switch (core) {
  case SUM: return a + b;
  case PROD: return a * b;
  case MAX: return a > b || a != a ? a : b;
  default: return a < b || a != a ? a : b;
  }
}
struct Combine {
  Core core;
  template <typename A> __device__ __forceinline__ A operator()(A a, A b) const { return combine(core, a, b); }
};

template <typename A> PLC_DEV A prepared(const Job &j, A v, A aux) {
  switch (j.pre) {
  case NONZERO: return (A)(v != 0);
  case NAN0: return v != v ? (A)0 : v;
  case ABS: return v < 0 ? -v : v;
  case SQUARE: return v * v;
  case POW: return (A)pow(fabs((double)v), j.p);
  case DIFF: return v - aux;
  case SQDIFF: return (v - aux) * (v - aux);
  case EXPDIFF: return (A)exp(v - aux);
  default: return v;
  }
}
template <> __device__ __forceinline__ int64_t prepared<int64_t>(const Job &j, int64_t v, int64_t) { return j.pre == NONZERO ? v != 0 : v; }

struct Any {
  uint8_t unused;
}; /* the dtype is looked up for each element */
template <typename T, typename A> struct Load {
  static __device__ __forceinline__ A at(const Job &j, int64_t i) { return (A)plc_type<T>::load(((const T *)j.x)[i]); }
};
template <typename A> struct Load<Any, A> {
  static __device__ __forceinline__ A at(const Job &j, int64_t i) {
    double f = 0;
    int64_t v = 0;
    bool whole;
    plc_get_any(j.x, j.dtype, i, &f, &v, &whole);
    return whole ? (A)v : (A)f;
  }
};
template <> struct Load<Any, int64_t> { /* floats are compared with 0, or become integers one by one */
  static __device__ __forceinline__ int64_t at(const Job &j, int64_t i) {
    double f = 0;
    int64_t v = 0;
    bool whole;
    plc_get_any(j.x, j.dtype, i, &f, &v, &whole);
    return whole ? v : j.pre == NONZERO ? f != 0 : plc_saturated(f, INT64_MIN, INT64_MAX);
  }
};

template <typename A> PLC_DEV void finish(const Job &j, int64_t o, A acc) {
  double n = (double)j.n;
  if (j.n == 0 && j.zero_empty) acc = 0;
  if (sizeof(A) == 8 && (A)0.5 == (A)0) {
    plc_put_any(j.out, j.out_dtype, o, true, 0.0, (int64_t)acc);
    return;
  }
  double v = (double)acc;
  switch (j.post) {
  case MEAN: v = v / n; break;
  case MEAN_ABOUT: v = isfinite(j.aux[o]) ? j.aux[o] + v / n : j.aux[o]; break;
  case SQRT: v = sqrt(v); break;
  case ROOT: v = pow(v, 1.0 / j.p); break;
  case VAR: v = v / (n - j.p > 0 ? n - j.p : 0); break;
  case STD: v = sqrt(v / (n - j.p > 0 ? n - j.p : 0)); break;
  case LOG: v = log(v) + j.aux[o]; break;
  default: break;
  }
  plc_put_any(j.out, j.out_dtype, o, false, v, 0);
}

enum { EIGHT = 8 };

/* acc with elements first, first + by, … before end of the output at `base`. */
template <typename T, typename A> PLC_DEV A one_stride(const Job &j, int64_t base, int64_t first, int64_t end, int64_t by, A aux, A acc) {
  int64_t i = first;
  const int64_t at = base + first * j.step, step = by * j.step;
  int64_t k = 0;
  if (j.core == SUM && j.pre == PLAIN) { /* sums and means: one addition an element */
    for (; i + (EIGHT - 1) * by < end; i += EIGHT * by, k += EIGHT) {
      A v[EIGHT];
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) v[u] = Load<T, A>::at(j, at + (k + u) * step);
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) acc += v[u];
    }
    for (; i < end; i += by, k++) acc += Load<T, A>::at(j, at + k * step);
    return acc;
  }
  for (; i + (EIGHT - 1) * by < end; i += EIGHT * by, k += EIGHT) {
    A v[EIGHT];
    PLC_UNROLL for (int u = 0; u < EIGHT; u++) v[u] = Load<T, A>::at(j, at + (k + u) * step);
    PLC_UNROLL for (int u = 0; u < EIGHT; u++) acc = combine(j.core, acc, prepared<A>(j, v[u], aux));
  }
  for (; i < end; i += by, k++) acc = combine(j.core, acc, prepared<A>(j, Load<T, A>::at(j, at + k * step), aux));
  return acc;
}

/* The same where they have several. */
template <typename T, typename A> PLC_DEV A strides(const Job &j, int64_t base, int64_t first, int64_t end, int64_t by, A aux, A acc) {
  int64_t at[1];
  for (int64_t i = first; i < end; i += by) {
    plc_offsets<1>(j.gone, i, at);
    acc = combine(j.core, acc, prepared<A>(j, Load<T, A>::at(j, base + at[0]), aux));
  }
  return acc;
}

/* A block for each chunk of each output. */
template <typename T, typename A, bool STEPS> __global__ void by_block(Job j, A *part) {
  __shared__ A room[32];
  for (int64_t b = blockIdx.x; b < j.outs * j.chunks; b += gridDim.x) {
    int64_t o = b / j.chunks, c = b % j.chunks, base[1];
    plc_offsets<1>(j.kept, o, base);
    int64_t end = (c + 1) * j.chunk < j.n ? (c + 1) * j.chunk : j.n, first = c * j.chunk + threadIdx.x;
    A aux = j.aux ? (A)j.aux[o] : (A)0, acc = start<A>(j);
    acc = STEPS ? one_stride<T, A>(j, base[0], first, end, blockDim.x, aux, acc)
                : strides<T, A>(j, base[0], first, end, blockDim.x, aux, acc);
    acc = plc_block_all(acc, Combine{j.core}, start<A>(j), room);
    if (threadIdx.x == 0) {
      if (part) part[o * j.chunks + c] = acc;
      else finish<A>(j, o, acc);
    }
  }
}

/* A thread for each chunk of each output: neighbours read neighbours. */
template <typename T, typename A, bool STEPS> __global__ void by_thread(Job j, A *part) {
  for (PLC_EACH(t, j.outs * j.chunks)) {
    int64_t o = t % j.outs, c = t / j.outs, base[1];
    plc_offsets<1>(j.kept, o, base);
    int64_t end = (c + 1) * j.chunk < j.n ? (c + 1) * j.chunk : j.n;
    A aux = j.aux ? (A)j.aux[o] : (A)0, acc = start<A>(j);
    acc = STEPS ? one_stride<T, A>(j, base[0], c * j.chunk, end, 1, aux, acc) : strides<T, A>(j, base[0], c * j.chunk, end, 1, aux, acc);
    if (part) part[o * j.chunks + c] = acc;
    else finish<A>(j, o, acc);
  }
}

/* The same for sums of neighbours that are 16 bytes: a thread has them all, each added in the order of by_thread. */
template <typename T, typename A> __global__ void by_pack(Job j, A *part) {
  const int N = 16 / (int)sizeof(T);
  const int64_t packs = j.outs / N;
  for (PLC_EACH(t, packs * j.chunks)) {
    int64_t o = t % packs * N, c = t / packs, base[1];
    plc_offsets<1>(j.kept, o, base);
    int64_t i = c * j.chunk, end = (c + 1) * j.chunk < j.n ? (c + 1) * j.chunk : j.n;
    const T *x = (const T *)j.x + base[0] + i * j.step;
    A acc[N];
    PLC_UNROLL for (int e = 0; e < N; e++) acc[e] = 0;
    for (; i + EIGHT <= end; i += EIGHT, x += EIGHT * j.step) {
      plc_pack<T, N> v[EIGHT];
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) v[u] = *(const plc_pack<T, N> *)(x + u * j.step);
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) PLC_UNROLL for (int e = 0; e < N; e++) acc[e] += (A)plc_type<T>::load(v[u].v[e]);
    }
    for (; i < end; i++, x += j.step) {
      const plc_pack<T, N> v = *(const plc_pack<T, N> *)x;
      PLC_UNROLL for (int e = 0; e < N; e++) acc[e] += (A)plc_type<T>::load(v.v[e]);
    }
    PLC_UNROLL for (int e = 0; e < N; e++) {
      if (part) part[(o + e) * j.chunks + c] = acc[e];
      else finish<A>(j, o + e, acc[e]);
    }
  }
}
template <typename T> static bool in_packs(const Job &j) {
  const int64_t N = 16 / (int64_t)sizeof(T);
  bool even = j.core == SUM && j.pre == PLAIN && j.step && j.step % N == 0 && (uintptr_t)j.x % 16 == 0 && j.kept.ndim > 0 &&
              j.kept.stride[0][0] == 1 && j.kept.size[0] % N == 0;
  for (int d = 1; d < j.kept.ndim; d++) even = even && j.kept.stride[0][d] % N == 0;
  return even;
}

/* A warp an output: lane k adds parts k, k + 32, …, eight loads under way, then the lanes are joined. */
template <typename A> __global__ void join_chunks(Job j, const A *part) {
  const int lane = (int)threadIdx.x & 31;
  for (int64_t o = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> 5; o < j.outs; o += (int64_t)gridDim.x * blockDim.x >> 5) {
    A acc = start<A>(j);
    const A *from = part + o * j.chunks;
    int64_t c = lane;
    for (; c + (EIGHT - 1) * 32 < j.chunks; c += EIGHT * 32) {
      A v[EIGHT];
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) v[u] = from[c + u * 32];
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) acc = combine(j.core, acc, v[u]);
    }
    for (; c < j.chunks; c += 32) acc = combine(j.core, acc, from[c]);
    acc = plc_warp_all(acc, Combine{j.core});
    if (lane == 0) finish<A>(j, o, acc);
  }
}

template <typename T, typename A> static PlStatus launch(Job *j, bool side_by_side) {
  /* about a thousand blocks, or eight loads each for 4 MiB of elements, keep a device busy; chunks are not made shorter than
   * 4096 elements, or 64 rows */
  const int64_t small = (int64_t)(sizeof(T) > 1 && sizeof(T) < 4 ? sizeof(T) : 4);
  int64_t busy = side_by_side ? ((int64_t)1 << 19) / small : 1024, least = side_by_side ? 64 : 4096;
  j->chunks = j->outs ? (busy + j->outs - 1) / j->outs : 1;
  int64_t most = (j->n + least - 1) / least;
  if (j->chunks > most) j->chunks = most;
  if (j->chunks < 1) j->chunks = 1;
  j->chunk = (j->n + j->chunks - 1) / j->chunks;
  void *part = NULL;
  if (j->chunks > 1) PL_TRY(plc_scratch((size_t)(j->outs * j->chunks) * sizeof(A), &part));
  int64_t tasks = j->outs * j->chunks;
  const unsigned blocks = (unsigned)(tasks < 1 << 20 ? tasks : 1 << 20);
  if constexpr (sizeof(T) > 1) {
    if (side_by_side && in_packs<T>(*j)) {
      const int64_t packs = j->outs / (16 / (int64_t)sizeof(T)) * j->chunks;
      PLC_LAUNCH((by_pack<T, A>), plc_grid(packs, 1), PLC_BLOCK, 0, *j, (A *)part);
      if (part) PLC_LAUNCH(join_chunks<A>, plc_grid(j->outs * 32, 1), PLC_BLOCK, 0, *j, (const A *)part);
      plc_scratch_free(part);
      return PL_OK;
    }
  }
  if (side_by_side && j->step) PLC_LAUNCH((by_thread<T, A, true>), plc_grid(tasks, 1), PLC_BLOCK, 0, *j, (A *)part);
  else if (side_by_side) PLC_LAUNCH((by_thread<T, A, false>), plc_grid(tasks, 1), PLC_BLOCK, 0, *j, (A *)part);
  else if (j->step) PLC_LAUNCH((by_block<T, A, true>), blocks, plc_row_threads(j->chunk), 0, *j, (A *)part);
  else PLC_LAUNCH((by_block<T, A, false>), blocks, plc_row_threads(j->chunk), 0, *j, (A *)part);
  if (part) PLC_LAUNCH(join_chunks<A>, plc_grid(j->outs * 32, 1), PLC_BLOCK, 0, *j, (const A *)part);
  plc_scratch_free(part);
  return PL_OK;
}

/* comp: PL_F32, PL_F64 or PL_I64. Fills the layouts and runs. */
static PlStatus run(Job *j, const PlArray *x, uint32_t mask, int64_t outs, int comp) {
  int64_t ks[PL_MAX_DIM], kt[PL_MAX_DIM], gs[PL_MAX_DIM], gt[PL_MAX_DIM], n = 1;
  PlArray kept = *x, gone = *x;
  kept.ndim = gone.ndim = 0;
  for (int d = 0; d < x->ndim; d++) {
    PlArray *to = (mask >> d) & 1 ? &gone : &kept;
    int64_t *shape = (mask >> d) & 1 ? gs : ks, *strides = (mask >> d) & 1 ? gt : kt;
    shape[to->ndim] = x->shape[d];
    strides[to->ndim++] = x->strides[d];
    if ((mask >> d) & 1) n *= x->shape[d];
  }
  for (int d = 1; d < gone.ndim && !x->contiguous; d++) /* neighbours in memory come after each other, whatever the layout */
    for (int k = d; k > 0 && gt[k] > gt[k - 1]; k--) {
      const int64_t size = gs[k], stride = gt[k];
      gs[k] = gs[k - 1], gt[k] = gt[k - 1];
      gs[k - 1] = size, gt[k - 1] = stride;
    }
  kept.shape = ks, kept.strides = kt, kept.numel = outs;
  gone.shape = gs, gone.strides = gt, gone.numel = n;
  const PlArray *k = &kept, *g = &gone;
  plc_layout_of<1>(&j->kept, &k);
  plc_layout_of<1>(&j->gone, &g);
  j->step = j->gone.ndim == 0 ? 1 : j->gone.ndim == 1 ? j->gone.stride[0][0] : 0; /* expanded ones have no step either */
  j->x = x->data;
  j->dtype = x->dtype;
  j->n = n;
  j->outs = outs;
  if (outs == 0) return PL_OK;
  bool side = j->kept.ndim > 0 && j->kept.stride[0][0] == 1 && j->kept.size[0] >= 32 && !(j->gone.ndim > 0 && j->gone.stride[0][0] == 1);
  if (comp == PL_I64) return launch<Any, int64_t>(j, side);
  bool wide = comp == PL_F64;
  switch (x->dtype) {
  case PL_F32: return wide ? launch<float, double>(j, side) : launch<float, float>(j, side);
  case PL_F16: return wide ? launch<plc_f16, double>(j, side) : launch<plc_f16, float>(j, side);
  case PL_BF16: return wide ? launch<plc_bf16, double>(j, side) : launch<plc_bf16, float>(j, side);
  case PL_F64: return launch<double, double>(j, side);
  default: return launch<Any, double>(j, side);
  }
}

static int computed_in(int dtype) { return dtype == PL_F64 ? PL_F64 : pl_is_float((PlDtype)dtype) ? PL_F32 : PL_I64; }

static uint32_t dims_mask(const PlkCall *c, int k) {
  if (!pl_attr_has(c->attrs, k)) return ~0u;
  int n = pl_attr_n(c->attrs, k);
  const int64_t *d = pl_attr_list(c->attrs, k);
  uint32_t mask = n == 0 ? ~0u : 0;
  for (int i = 0; i < n; i++) mask |= 1u << d[i];
  return mask;
}

static Job job_of(const PlkCall *c, Core core, Pre pre, Post post) {
  Job j;
  memset(&j, 0, sizeof j);
  j.core = core, j.pre = pre, j.post = post;
  j.out = c->out[0]->data;
  j.out_dtype = c->out[0]->dtype;
  return j;
}

__global__ void finite_only(double *m, int64_t n) {
  for (PLC_EACH(i, n))
    if (isinf(m[i])) m[i] = 0;
}

static PlStatus logsumexp(const PlkCall *c, uint32_t mask) {
  int64_t outs = c->out[0]->numel;
  void *max;
  PL_TRY(plc_scratch((size_t)(outs ? outs : 1) * sizeof(double), &max));
  Job j = job_of(c, MAX, PLAIN, NOTHING);
  j.out = max;
  j.out_dtype = PL_F64;
  PlStatus s = run(&j, c->in[0], mask, outs, PL_F64);
  if (s == PL_OK && outs) {
    PLC_LAUNCH(finite_only, plc_grid(outs, 1), PLC_BLOCK, 0, (double *)max, outs);
    j = job_of(c, SUM, EXPDIFF, LOG);
    j.aux = (const double *)max;
    s = run(&j, c->in[0], mask, outs, computed_in(c->in[0]->dtype) == PL_F32 ? PL_F32 : PL_F64);
  }
  plc_scratch_free(max);
  return s;
}

static PlStatus reduce(const PlkCall *c) {
  uint32_t mask = dims_mask(c, 0);
  int comp = computed_in(c->out[0]->dtype);
  Job j = job_of(c, SUM, PLAIN, NOTHING);
  switch (c->code) {
  case PLK_R_MEAN: j.post = MEAN; break;
  case PLK_R_PROD:
    j.core = PROD;
    if (comp == PL_F32) comp = PL_F64;
    break;
  case PLK_R_AMAX: j.core = MAX; break;
  case PLK_R_AMIN: j.core = MIN; break;
  case PLK_R_ANY:
  case PLK_R_ALL:
  case PLK_R_COUNT:
    comp = PL_I64;
    j.pre = NONZERO;
    j.core = c->code == PLK_R_ANY ? MAX : c->code == PLK_R_ALL ? MIN : SUM;
    j.boolean = c->code != PLK_R_COUNT;
    break;
  case PLK_R_NANSUM:
    if (comp != PL_I64) comp = PL_F64, j.pre = NAN0;
    break;
  case PLK_R_LOGSUMEXP: return logsumexp(c, mask);
  default: break;
  }
  return run(&j, c->in[0], mask, c->out[0]->numel, comp);
}
PLC_KERNEL(reduce, reduce)

static PlStatus sum_to(const PlkCall *c) {
  const PlArray *x = c->in[0], *y = c->out[0];
  uint32_t mask = 0;
  int lead = x->ndim - y->ndim;
  for (int d = 0; d < x->ndim; d++)
    if (d < lead || (y->shape[d - lead] == 1 && x->shape[d] != 1)) mask |= 1u << d;
  Job j = job_of(c, SUM, PLAIN, NOTHING);
  return run(&j, x, mask, y->numel, computed_in(y->dtype));
}
PLC_KERNEL(sum_to, sum_to)

/* Norms outside of least … most again, of x / m, times m, the largest magnitude (the smallest for p < 0): elsewhere sums of |x|^p left
 * the range of doubles, or lost digits at its end, or were 0. A block for each output; nearly all return at once. */
__global__ void norms_again(Job j, double least, double most) {
  __shared__ double room[32];
  for (int64_t o = blockIdx.x; o < j.outs; o += gridDim.x) {
    const double y = plc_get_f(j.out, j.out_dtype, o);
    if (!(y < least || y > most)) continue; /* NaN stays */
    const Core core = j.p > 0 ? MAX : MIN;
    const double none = j.p > 0 ? 0.0 : (double)INFINITY;
    int64_t base[1], at[1];
    plc_offsets<1>(j.kept, o, base);
    double m = none, sum = 0;
    for (int64_t i = threadIdx.x; i < j.n; i += blockDim.x) {
      plc_offsets<1>(j.gone, i, at);
      m = combine(core, m, fabs(plc_get_f(j.x, j.dtype, base[0] + at[0])));
    }
    m = plc_block_all(m, Combine{core}, none, room);
    if (m == 0 || !isfinite(m)) continue;
    for (int64_t i = threadIdx.x; i < j.n; i += blockDim.x) {
      plc_offsets<1>(j.gone, i, at);
      sum += pow(fabs(plc_get_f(j.x, j.dtype, base[0] + at[0])) / m, j.p);
    }
    sum = plc_block_all(sum, plc_sum(), 0.0, room);
    if (threadIdx.x == 0) plc_put_f(j.out, j.out_dtype, o, pow(sum, 1.0 / j.p) * m);
  }
}
static PlStatus again(const Job &j, double p) {
  const int bits = j.dtype == PL_F64 ? 1074 : j.dtype == PL_F16 ? 24 : 149; /* 2^±bits is what an x may be */
  if (p == 0 || p == 1 || isinf(p) || fabs(p) * bits <= 960 || j.outs == 0 || j.n == 0) return PL_OK;
  const double most = exp2(960 / fabs(p)); /* infinite for small p */
  PLC_LAUNCH(norms_again, (unsigned)(j.outs < 1 << 20 ? j.outs : 1 << 20), plc_row_threads(j.n), 0, j, fmax(1 / most, DBL_TRUE_MIN),
             fmin(most, DBL_MAX));
  return PL_OK;
}

static PlStatus norm(const PlkCall *c) {
  double p = pl_attr_f(c->attrs, 0);
  Job j = job_of(c, SUM, POW, NOTHING);
  j.p = p;
  if (p == 2) j.pre = SQUARE, j.post = SQRT;
  else if (p == 1) j.pre = ABS;
  else if (p == 0) j.pre = NONZERO;
  else if (isinf(p)) j.pre = ABS, j.core = p > 0 ? MAX : MIN, j.zero_empty = p > 0;
  else j.post = ROOT;
  PL_TRY(run(&j, c->in[0], dims_mask(c, 1), c->out[0]->numel, PL_F64));
  return again(j, p);
}
PLC_KERNEL(norm, norm)

/* The mean is that of x - c, plus c: c = 0 where doubles hold sums of x exactly, else the mean as it comes. So elements that are
 * all equal have a variance of 0. */
static PlStatus means(const PlkCall *c, uint32_t mask, int64_t outs, double *mean, double *about) {
  Job j = job_of(c, SUM, PLAIN, MEAN);
  const bool twice = c->in[0]->dtype == PL_F64;
  j.out = twice ? about : mean;
  j.out_dtype = PL_F64;
  PL_TRY(run(&j, c->in[0], mask, outs, PL_F64));
  if (!twice) return PL_OK;
  j.pre = DIFF, j.post = MEAN_ABOUT, j.aux = about, j.out = mean;
  return run(&j, c->in[0], mask, outs, PL_F64);
}

static PlStatus var(const PlkCall *c) {
  uint32_t mask = dims_mask(c, 0);
  int64_t outs = c->out[0]->numel;
  void *room;
  PL_TRY(plc_scratch((size_t)(outs ? outs : 1) * 2 * sizeof(double), &room));
  double *mean = (double *)room;
  PlStatus s = means(c, mask, outs, mean, mean + outs);
  Job j = job_of(c, SUM, SQDIFF, c->code ? STD : VAR);
  j.aux = mean;
  j.p = pl_attr_f(c->attrs, 1);
  if (s == PL_OK) s = run(&j, c->in[0], mask, outs, PL_F64);
  plc_scratch_free(room);
  return s;
}
PLC_KERNEL(var, var)
