/* SPDX-License-Identifier: MIT
 * See channels.h. Three ways to walk a channel, whose numbers are in N runs of S: a block a part; a warp a channel where
 * channels are short; a lane a channel where S is so small that neighbours in memory are other channels. */
#include "kernels/cuda/norm/channels.h"
#include "kernels/elementwise_codes.h"

enum { SHORT = 4, WARP_ITEMS = 1024, BLOCKS = 2048, PART_ITEMS = 8192 };

PlcChannels plc_channels(int64_t N, int64_t C, int64_t S) {
  PlcChannels k = {N, C, S, 1};
  const int64_t m = N * S, groups = S < SHORT ? (C + 31) / 32 : C;
  const int64_t most = m / (S < SHORT ? 256 : PART_ITEMS), want = groups > 0 ? BLOCKS / groups : 1;
  k.parts = want < most ? want : most;
  if (k.parts < 1) k.parts = 1;
  return k;
}

namespace {

struct Walk {
  PlcChannels k;
  int64_t items; /* of a channel, in packs */
  int64_t run;   /* packs of a run */
  int64_t chunk; /* items of a part */
  plc_div by;    /* run */
  bool wide;
  int width; /* threads of a channel: 256 or 32 */
};

/* What one thread of a channel has summed, and how it goes on. Far: the same in double, where `beyond` says that A was too narrow. */
template <typename T, int V, typename A = typename plc_type<T>::math> struct MomentsOf {
  typedef MomentsOf<T, V, double> Far;
  enum { ROOM = 3 };
  A n, mean, m2;
  __device__ __forceinline__ bool beyond() const { return sizeof(A) < sizeof(double) && !isfinite(m2); }
  __device__ __forceinline__ MomentsOf(const double *, int64_t, int64_t) : n(0), mean(0), m2(0) {}
  __device__ __forceinline__ void add(const T *, const T *x, int64_t at) {
    plc_pack<T, V> p = *(const plc_pack<T, V> *)(x + at);
    A v[V], s = 0, q = 0;
    for (int i = 0; i < V; i++) s += v[i] = (A)plc_type<T>::load(p.v[i]);
    s *= (A)1 / (A)V;
    for (int i = 0; i < V; i++) q += (v[i] - s) * (v[i] - s);
    const A all = n + (A)V, d = s - mean, f = (A)V / all;
    m2 += q + d * d * n * f;
    mean += d * f;
    n = all;
  }
  __device__ __forceinline__ PlcMoments value() const { return PlcMoments{(double)n, (double)mean, (double)m2}; }
  static __device__ __forceinline__ PlcMoments join(PlcMoments a, PlcMoments b) { return plc_join(a, b); }
};
template <typename T, int V> struct DotsOf {
  typedef typename plc_type<T>::math A;
  typedef DotsOf<T, V> Far;
  enum { ROOM = 2 };
  A s1, s2, mean;
  __device__ __forceinline__ bool beyond() const { return false; }
  __device__ __forceinline__ DotsOf(const double *m, int64_t c, int64_t each) : s1(0), s2(0), mean((A)m[c / each]) {}
  __device__ __forceinline__ void add(const T *dy, const T *x, int64_t at) {
    plc_pack<T, V> p = *(const plc_pack<T, V> *)(x + at), g = *(const plc_pack<T, V> *)(dy + at);
    for (int i = 0; i < V; i++) {
      A d = plc_type<T>::load(g.v[i]);
      s1 += d;
      s2 += d * (plc_type<T>::load(p.v[i]) - mean);
    }
  }
  __device__ __forceinline__ PlcMoments value() const { return PlcMoments{(double)s1, (double)s2, 0}; }
  static __device__ __forceinline__ PlcMoments join(PlcMoments a, PlcMoments b) { return PlcMoments{a.n + b.n, a.mean + b.mean, 0}; }
};

template <typename Sum> PLC_DEV void put_part(double *part, const PlcMoments &m) {
  part[0] = m.n;
  part[1] = m.mean;
  if (Sum::ROOM == 3) part[2] = m.m2;
}
PLC_DEV PlcMoments shuffled(PlcMoments m, int d) {
  return PlcMoments{__shfl_down_sync(0xffffffffu, m.n, d), __shfl_down_sync(0xffffffffu, m.mean, d),
                    __shfl_down_sync(0xffffffffu, m.m2, d)};
}

/* Channel c's items from i on; a thread's own, so that one whose sums are beyond floats may come again alone. */
template <typename T, int V, typename Sum>
PLC_DEV void walk(const Walk &w, Sum &s, const T *dy, const T *x, int64_t c, int64_t i, int64_t end) {
  for (; i < end; i += w.width) {
    int64_t n = w.wide ? i / w.run : (int64_t)plc_quotient((uint32_t)i, w.by);
    s.add(dy, x, (n * w.k.C + c) * w.k.S + (i - n * w.run) * V);
  }
}

template <typename T, int V, typename Sum>
__global__ void along(Walk w, const T *dy, const T *x, const double *mean, int64_t each, double *part) {
  __shared__ double room[8][3];
  const int width = w.width, lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  const int64_t block = (int64_t)blockIdx.x;
  const int64_t c = width == 32 ? block * 8 + warp : block / w.k.parts, p = width == 32 ? 0 : block % w.k.parts;
  const bool mine = c < w.k.C;
  const int64_t cc = mine ? c : 0, end = !mine ? 0 : (p + 1) * w.chunk < w.items ? (p + 1) * w.chunk : w.items;
  const int64_t first = p * w.chunk + (width == 32 ? lane : (int)threadIdx.x);
  Sum s(mean, cc, each);
  walk<T, V>(w, s, dy, x, cc, first, end);
  PlcMoments m = s.value();
  if (s.beyond()) {
    typename Sum::Far far(mean, cc, each);
    walk<T, V>(w, far, dy, x, cc, first, end);
    m = far.value();
  }
  for (int d = 16; d > 0; d >>= 1) m = Sum::join(m, shuffled(m, d));
  if (width == 32) {
    if (lane == 0 && mine) put_part<Sum>(part + c * Sum::ROOM, m);
    return;
  }
  if (lane == 0) {
    room[warp][0] = m.n;
    room[warp][1] = m.mean;
    room[warp][2] = m.m2;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int k = 1; k < 8; k++) m = Sum::join(m, PlcMoments{room[k][0], room[k][1], room[k][2]});
  put_part<Sum>(part + (c * w.k.parts + p) * Sum::ROOM, m);
}

/* 32 channels a block, 8 warps taking turns at n. */
template <typename T, typename Sum>
__global__ void across(PlcChannels k, int64_t chunk, const T *dy, const T *x, const double *mean, int64_t each, double *part) {
  __shared__ double room[8][32][3];
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  const int64_t block = (int64_t)blockIdx.x, p = block % k.parts, c = block / k.parts * 32 + lane;
  const int64_t end = c >= k.C ? 0 : (p + 1) * chunk < k.N ? (p + 1) * chunk : k.N;
  Sum s(mean, c < k.C ? c : 0, each);
  for (int64_t n = p * chunk + warp; n < end; n += 8)
    for (int64_t i = 0; i < k.S; i++) s.add(dy, x, (n * k.C + c) * k.S + i);
  PlcMoments m = s.value();
  if (s.beyond()) {
    typename Sum::Far far(mean, c < k.C ? c : 0, each);
    for (int64_t n = p * chunk + warp; n < end; n += 8)
      for (int64_t i = 0; i < k.S; i++) far.add(dy, x, (n * k.C + c) * k.S + i);
    m = far.value();
  }
  room[warp][lane][0] = m.n;
  room[warp][lane][1] = m.mean;
  room[warp][lane][2] = m.m2;
  __syncthreads();
  if (warp != 0 || c >= k.C) return;
  for (int j = 1; j < 8; j++) m = Sum::join(m, PlcMoments{room[j][lane][0], room[j][lane][1], room[j][lane][2]});
  put_part<Sum>(part + (c * k.parts + p) * Sum::ROOM, m);
}

static bool even(const void *p) { return (uintptr_t)p % 16 == 0; }

template <typename T, int V, template <typename, int> class Sum>
static PlStatus sum_along(const PlcChannels *k, const T *dy, const T *x, const double *mean, int64_t each, double *part) {
  Walk w;
  w.k = *k;
  w.run = k->S / V;
  w.items = k->N * w.run;
  w.chunk = (w.items + k->parts - 1) / k->parts;
  w.wide = w.items > INT32_MAX;
  w.by = plc_div_by(w.wide || w.run < 1 ? 1u : (uint32_t)w.run);
  w.width = k->parts == 1 && w.items <= WARP_ITEMS ? 32 : 256;
  const int64_t blocks = w.width == 32 ? (k->C + 7) / 8 : k->C * k->parts;
  PLC_LAUNCH((along<T, V, Sum<T, V>>), (unsigned)blocks, 256, 0, w, dy, x, mean, each, part);
  return PL_OK;
}

template <typename T, template <typename, int> class Sum>
static PlStatus sums(const PlcChannels *k, const void *dyp, const void *xp, const double *mean, int64_t each, double *part) {
  const T *dy = (const T *)dyp, *x = (const T *)xp;
  if (k->C == 0) return PL_OK;
  if (k->S > 0 && k->S < SHORT) {
    const int64_t chunk = (k->N + k->parts - 1) / k->parts;
    PLC_LAUNCH((across<T, Sum<T, 1>>), (unsigned)((k->C + 31) / 32 * k->parts), 256, 0, *k, chunk, dy, x, mean, each, part);
    return PL_OK;
  }
  const int V = 16 / (int)sizeof(T);
  if (k->S % V == 0 && even(x) && even(dy)) return sum_along<T, V, Sum>(k, dy, x, mean, each, part);
  return sum_along<T, 1, Sum>(k, dy, x, mean, each, part);
}

} // namespace

PlStatus plc_channel_moments(const PlcChannels *k, int dtype, const void *x, double *part) {
  PLC_FLOATS(dtype, T, "normalization", return (sums<T, MomentsOf>(k, NULL, x, NULL, 1, part)));
}
PlStatus plc_channel_dots(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *mean, int64_t each, double *part) {
  PLC_FLOATS(dtype, T, "normalization", return (sums<T, DotsOf>(k, dy, x, mean, each, part)));
}

namespace {

/* ---- what is done with the statistics ----------------------------------------------------------------------------------- */

/* Packs over everything, whatever S: a pack may reach into the next runs. With x alone y = (x - m) a + c. */
template <typename T, bool BOTH>
__global__ void apply(int64_t numel, int64_t C, int64_t S, plc_div by_s, plc_div by_c, bool wide, const T *dy, const T *x,
                      const double *coef, T *y) {
  typedef typename plc_type<T>::math A;
  const int V = 16 / (int)sizeof(T);
  for (PLC_EACH(i, (numel + V - 1) / V)) {
    const int64_t at = i * V;
    const int many = numel - at < V ? (int)(numel - at) : V;
    int64_t row = wide ? at / S : (int64_t)plc_quotient((uint32_t)at, by_s), s = at - row * S;
    int64_t c = wide ? row % C : row - (int64_t)plc_quotient((uint32_t)row, by_c) * C;
    plc_pack<T, V> px, pd, py;
    if (many == V) {
      px = *(const plc_pack<T, V> *)(x + at);
      if (BOTH) pd = *(const plc_pack<T, V> *)(dy + at);
    } else PLC_UNROLL
    for (int k = 0; k < V; k++) { /* unrolled, like those below: packs are in registers */
      px.v[k] = x[at + (k < many ? k : 0)];
      if (BOTH) pd.v[k] = dy[at + (k < many ? k : 0)];
    }
    const double *q = coef + c * 4;
    A mean = (A)q[0], a = (A)q[1], b = (A)q[2], e = BOTH ? (A)q[3] : (A)0;
    PLC_UNROLL
    for (int k = 0; k < V; k++) {
      const A v = plc_type<T>::load(px.v[k]) - mean;
      py.v[k] = plc_type<T>::store(BOTH ? a * plc_type<T>::load(pd.v[k]) + v * b * fabs(b) + e : v * a + b);
      if (++s == S && k + 1 < many) {
        s = 0;
        c = c + 1 == C ? 0 : c + 1;
        q = coef + c * 4;
        mean = (A)q[0], a = (A)q[1], b = (A)q[2], e = BOTH ? (A)q[3] : (A)0;
      }
    }
    if (many == V) *(plc_pack<T, V> *)(y + at) = py;
    else PLC_UNROLL
    for (int k = 0; k < V; k++)
      if (k < many) y[at + k] = py.v[k];
  }
}

static PlStatus copied(void *to, const void *from, size_t bytes) {
  PLC_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, plc_stream()));
  return PL_OK;
}

template <typename T, bool BOTH> static PlStatus applied(const PlcChannels *k, const void *dy, const void *x, const double *coef, void *y) {
  const int64_t numel = k->N * k->C * k->S;
  if (numel == 0) return PL_OK;
  if (!even(x) || !even(y) || !even(dy)) { /* a view that begins between packs: in pieces from scratch */
    const size_t bytes = (size_t)numel * sizeof(T);
    void *room;
    PL_TRY(plc_scratch((bytes + 15) / 16 * 16 * 3, &room));
    char *p[3] = {(char *)room, (char *)room + (bytes + 15) / 16 * 16, (char *)room + (bytes + 15) / 16 * 32};
    PlStatus s = copied(p[0], x, bytes);
    if (s == PL_OK && BOTH) s = copied(p[1], dy, bytes);
    if (s == PL_OK) s = applied<T, BOTH>(k, BOTH ? p[1] : NULL, p[0], coef, p[2]);
    if (s == PL_OK) s = copied(y, p[2], bytes);
    plc_scratch_free(room);
    return s;
  }
  const bool wide = numel > INT32_MAX;
  const plc_div by_s = plc_div_by(wide ? 1u : (uint32_t)k->S), by_c = plc_div_by(wide ? 1u : (uint32_t)k->C);
  PLC_LAUNCH((apply<T, BOTH>), plc_grid(numel, 16 / (int)sizeof(T)), PLC_BLOCK, 0, numel, k->C, k->S, by_s, by_c, wide, (const T *)dy,
             (const T *)x, coef, (T *)y);
  return PL_OK;
}

} // namespace

PlStatus plc_channel_affine(const PlcChannels *k, int dtype, const void *x, const double *coef, void *y) {
  PLC_FLOATS(dtype, T, "normalization", return (applied<T, false>(k, NULL, x, coef, y)));
}
PlStatus plc_channel_affine2(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *coef, void *dx) {
  PLC_FLOATS(dtype, T, "normalization", return (applied<T, true>(k, dy, x, coef, dx)));
}

PlStatus plc_as(const PlArray *x, int dtype, void **scratch, const void **data) {
  *scratch = NULL;
  *data = x->data;
  if (x->dtype == dtype && x->contiguous) return PL_OK;
  PL_TRY(plc_scratch((size_t)(x->numel + 1) * pl_dtype_size((PlDtype)dtype), scratch));
  int64_t strides[PL_MAX_DIM], step = 1;
  for (int d = x->ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= x->shape[d];
  }
  PlArray y = *x;
  y.data = *scratch, y.dtype = (uint8_t)dtype, y.strides = strides, y.contiguous = 1;
  static const PlAttrs none = {};
  const PlArray *in[1] = {x};
  PlArray *out[1] = {&y};
  PlkCall k;
  memset(&k, 0, sizeof k);
  k.name = "cast", k.code = PLK_EW_CAST, k.nin = 1, k.nout = 1, k.in = in, k.out = out, k.attrs = &none;
  *data = *scratch;
  return plc_run(&plc_kernel_elementwise, &k);
}
