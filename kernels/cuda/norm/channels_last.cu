/* SPDX-License-Identifier: MIT
 * What channels.h does, for x[R,C] whose channels are innermost (images that are channels last): a thread keeps to 16 bytes
 * of channels and walks down the rows, a block takes 32 such packs or fewer side by side. Statistics of the threads below
 * each other are joined in shared memory, in one order. */
#include "kernels/cuda/norm/channels.h"

enum { THREADS = 256, WIDE = 32, AT_ONCE = 4, ROWS_LEAST = 64, BLOCKS = 792 };
/* BLOCKS: two rounds of three a multiprocessor of Hopper; a fixed number, since it is the order of sums. */

bool plc_columns_fit(int64_t C, int dtype, const void *x, const void *y, const void *z) {
  const int64_t pack = 16 / (int64_t)pl_dtype_size((PlDtype)dtype);
  return C > 0 && C % pack == 0 && ((uintptr_t)x | (uintptr_t)y | (uintptr_t)z) % 16 == 0;
}

/* Packs side by side in a block: a power of 2. */
static int width_of(int64_t packs) {
  int w = 1;
  while (w < packs && w < WIDE) w *= 2;
  return w;
}
static int64_t across(int64_t packs) { return (packs + width_of(packs) - 1) / width_of(packs); }

PlcChannels plc_columns(int64_t rows, int64_t C, int dtype) {
  const int64_t pack = 16 / (int64_t)pl_dtype_size((PlDtype)dtype);
  PlcChannels k = {rows, C, 1, 1};
  if (C == 0 || C % pack != 0) return plc_channels(rows, C, 1);
  const int64_t most = rows / ROWS_LEAST, want = BLOCKS / across(C / pack);
  k.parts = want < most ? want : most;
  if (k.parts < 1) k.parts = 1;
  return k;
}

namespace {

struct Columns {
  int64_t rows, C, packs, parts, chunk;
  int width;
};

/* AT_ONCE rows join a thread's moments, or what is left of them one by one. */
template <typename T, int V> struct MomentsOf {
  typedef typename plc_type<T>::math A;
  enum { ROOM = 3 };
  A n, mean[V], m2[V];
  __device__ __forceinline__ MomentsOf(const double *, int64_t) : n(0) {
    PLC_UNROLL
    for (int i = 0; i < V; i++) mean[i] = m2[i] = 0;
  }
  template <int M> __device__ __forceinline__ void add(const plc_pack<T, V> *, const plc_pack<T, V> *x) {
    const A all = n + (A)M, f = (A)M / all, g = n * f;
    PLC_UNROLL
    for (int i = 0; i < V; i++) {
      A s = 0, q = 0, v[M];
      PLC_UNROLL
      for (int k = 0; k < M; k++) s += v[k] = plc_type<T>::load(x[k].v[i]);
      s *= (A)1 / (A)M;
      PLC_UNROLL
      for (int k = 0; k < M; k++) q += (v[k] - s) * (v[k] - s);
      const A d = s - mean[i];
      m2[i] += q + d * d * g;
      mean[i] += d * f;
    }
    n = all;
  }
  __device__ __forceinline__ A first(int i) const { return mean[i]; }
  __device__ __forceinline__ A second(int i) const { return m2[i]; }
  static __device__ __forceinline__ PlcMoments value(double n, A a, A b) { return PlcMoments{n, (double)a, (double)b}; }
  static __device__ __forceinline__ PlcMoments join(PlcMoments a, PlcMoments b) { return plc_join(a, b); }
  static __device__ __forceinline__ void put(double *part, const PlcMoments &m) { part[0] = m.n, part[1] = m.mean, part[2] = m.m2; }
};
template <typename T, int V> struct DotsOf {
  typedef typename plc_type<T>::math A;
  enum { ROOM = 2 };
  A s1[V], s2[V], mean[V];
  __device__ __forceinline__ DotsOf(const double *m, int64_t c) {
    PLC_UNROLL
    for (int i = 0; i < V; i++) s1[i] = s2[i] = 0, mean[i] = (A)m[c + i];
  }
  template <int M> __device__ __forceinline__ void add(const plc_pack<T, V> *dy, const plc_pack<T, V> *x) {
    PLC_UNROLL
    for (int k = 0; k < M; k++) PLC_UNROLL
    for (int i = 0; i < V; i++) {
      const A d = plc_type<T>::load(dy[k].v[i]);
      s1[i] += d;
      s2[i] += d * (plc_type<T>::load(x[k].v[i]) - mean[i]);
    }
  }
  __device__ __forceinline__ A first(int i) const { return s1[i]; }
  __device__ __forceinline__ A second(int i) const { return s2[i]; }
  static __device__ __forceinline__ PlcMoments value(double, A a, A b) { return PlcMoments{(double)a, (double)b, 0}; }
  static __device__ __forceinline__ PlcMoments join(PlcMoments a, PlcMoments b) { return PlcMoments{a.n + b.n, a.mean + b.mean, 0}; }
  static __device__ __forceinline__ void put(double *part, const PlcMoments &m) { part[0] = m.n, part[1] = m.mean; }
};

/* Rows that thread row `y` of `ty` takes of [begin, end). */
PLC_DEV int64_t rows_of(int64_t begin, int64_t end, int y, int ty) { return begin + y < end ? (end - begin - y + ty - 1) / ty : 0; }

template <typename T, int V, typename Sum>
__global__ void __launch_bounds__(THREADS, 3)
    down(Columns w, const T *__restrict__ dy, const T *__restrict__ x, const double *mean, double *part) {
  typedef typename plc_type<T>::math A;
  typedef plc_pack<T, V> Pack;
  __shared__ A room[2][THREADS * V];
  const int tx = (int)threadIdx.x % w.width, y = (int)threadIdx.x / w.width, ty = THREADS / w.width;
  const int64_t block = (int64_t)blockIdx.x, p = block % w.parts, pack = block / w.parts * w.width + tx;
  const int64_t begin = p * w.chunk, end = begin + w.chunk < w.rows ? begin + w.chunk : w.rows;
  const bool mine = pack < w.packs;
  Sum s(mean, mine ? pack * V : 0);
  if (mine) {
    const T *px = x + pack * V, *pd = dy ? dy + pack * V : NULL;
    int64_t r = begin + y;
    Pack v[AT_ONCE], g[AT_ONCE];
    for (; r + (int64_t)(AT_ONCE - 1) * ty < end; r += (int64_t)AT_ONCE * ty) {
      PLC_UNROLL
      for (int k = 0; k < AT_ONCE; k++) {
        v[k] = *(const Pack *)(px + (r + (int64_t)k * ty) * w.C);
        if (Sum::ROOM == 2) g[k] = *(const Pack *)(pd + (r + (int64_t)k * ty) * w.C);
      }
      s.template add<AT_ONCE>(g, v);
    }
    for (; r < end; r += ty) {
      v[0] = *(const Pack *)(px + r * w.C);
      if (Sum::ROOM == 2) g[0] = *(const Pack *)(pd + r * w.C);
      s.template add<1>(g, v);
    }
  }
  PLC_UNROLL
  for (int i = 0; i < V; i++) {
    room[0][(y * w.width + tx) * V + i] = s.first(i);
    room[1][(y * w.width + tx) * V + i] = s.second(i);
  }
  __syncthreads();
  const int64_t c = block / w.parts * w.width * V + threadIdx.x;
  if ((int)threadIdx.x >= w.width * V || c >= w.C) return;
  PlcMoments m = {0, 0, 0};
  for (int k = 0; k < ty; k++) {
    const int at = k * w.width * V + (int)threadIdx.x;
    m = Sum::join(m, Sum::value((double)rows_of(begin, end, k, ty), room[0][at], room[1][at]));
  }
  Sum::put(part + (c * w.parts + p) * Sum::ROOM, m);
}

Columns columns_of(const PlcChannels *k, int pack) {
  Columns w = {k->N, k->C, k->C / pack, k->parts, (k->N + k->parts - 1) / k->parts, width_of(k->C / pack)};
  return w;
}

template <typename T, template <typename, int> class Sum>
PlStatus sums(const PlcChannels *k, const void *dy, const void *x, const double *mean, double *part) {
  const int V = 16 / (int)sizeof(T);
  const Columns w = columns_of(k, V);
  PLC_LAUNCH((down<T, V, Sum<T, V>>), (unsigned)(across(w.packs) * w.parts), THREADS, 0, w, (const T *)dy, (const T *)x, mean, part);
  return PL_OK;
}

enum { AFFINE, RELU, SUM_RELU, GRADIENT };
/* MODE GRADIENT: dx = a dy + b (x - mean) + e; else y = (x - mean) a + b, then relu, or the sum with dy and relu. What a block's channels need comes once through shared
 * memory; a thread has the packs of ROWS rows under way. */
template <typename T, int MODE>
__global__ void __launch_bounds__(THREADS, MODE == AFFINE || MODE == RELU ? 4 : 3)
    apply(Columns w, const T *__restrict__ dy, const T *__restrict__ x, const double *__restrict__ coef, T *__restrict__ out) {
  typedef typename plc_type<T>::math A;
  const int V = 16 / (int)sizeof(T), ROWS = MODE == AFFINE || MODE == RELU ? 4 : 2;
  const bool BOTH = MODE == GRADIENT || MODE == SUM_RELU;
  typedef plc_pack<T, V> Pack;
  __shared__ A room[4][WIDE * V];
  const int tx = (int)threadIdx.x % w.width, ty = THREADS / w.width;
  const int64_t block = (int64_t)blockIdx.x, p = block % w.parts, begin = block / w.parts * w.width, pack = begin + tx;
  for (int k = (int)threadIdx.x; k < w.width * V * 4; k += THREADS)
    if (begin * V + k / 4 < w.C) room[k % 4][k / 4] = (A)coef[begin * V * 4 + k];
  __syncthreads();
  if (pack >= w.packs) return;
  A mean[V], a[V], b[V], e[V];
  PLC_UNROLL
  for (int i = 0; i < V; i++) {
    mean[i] = room[0][tx * V + i], a[i] = room[1][tx * V + i], b[i] = room[2][tx * V + i];
    e[i] = MODE == GRADIENT ? room[3][tx * V + i] : (A)0;
  }
  const int64_t rows = w.parts * ty, step = rows * w.C;
  int64_t r = p * ty + (int)threadIdx.x / w.width, at = r * w.C + pack * V;
  for (; r < w.rows; r += ROWS * rows, at += ROWS * step) {
    Pack px[ROWS], pd[ROWS];
    PLC_UNROLL
    for (int k = 0; k < ROWS; k++) {
      if (r + k * rows >= w.rows) continue;
      px[k] = *(const Pack *)(x + at + k * step);
      if (BOTH) pd[k] = *(const Pack *)(dy + at + k * step);
    }
    PLC_UNROLL
    for (int k = 0; k < ROWS; k++) {
      if (r + k * rows >= w.rows) continue;
      Pack py;
      PLC_UNROLL
      for (int i = 0; i < V; i++) {
        const A v = plc_type<T>::load(px[k].v[i]) - mean[i];
        if (MODE == GRADIENT) py.v[i] = plc_type<T>::store(a[i] * plc_type<T>::load(pd[k].v[i]) + v * b[i] * fabs(b[i]) + e[i]);
        else {
          T y = plc_type<T>::store(v * a[i] + b[i]);
          if (MODE == SUM_RELU) y = plc_type<T>::store(plc_type<T>::load(y) + plc_type<T>::load(pd[k].v[i]));
          if (MODE != AFFINE) y = plc_type<T>::store(plc_type<T>::load(y) < 0 ? (A)0 : plc_type<T>::load(y));
          py.v[i] = y;
        }
      }
      *(Pack *)(out + at + k * step) = py;
    }
  }
}

template <typename T, int MODE> PlStatus applied(const PlcChannels *k, const void *dy, const void *x, const double *coef, void *y) {
  const int V = 16 / (int)sizeof(T);
  Columns w = columns_of(k, V);
  const int64_t beside = across(w.packs), ty = THREADS / w.width;
  const int64_t most = (w.rows + ty * 4 - 1) / (ty * 4),
                want = (int64_t)plc_processors() * (MODE == AFFINE || MODE == RELU ? 8 : 6) / beside;
  if (w.rows == 0) return PL_OK;
  w.parts = want < 1 ? 1 : want < most ? want : most;
  PLC_LAUNCH((apply<T, MODE>), (unsigned)(beside * w.parts), THREADS, 0, w, (const T *)dy, (const T *)x, coef, (T *)y);
  return PL_OK;
}

} // namespace

PlStatus plc_column_moments(const PlcChannels *k, int dtype, const void *x, double *part) {
  PLC_FLOATS(dtype, T, "normalization", return (sums<T, MomentsOf>(k, NULL, x, NULL, part)));
}
PlStatus plc_column_dots(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *mean, double *part) {
  PLC_FLOATS(dtype, T, "normalization", return (sums<T, DotsOf>(k, dy, x, mean, part)));
}
PlStatus plc_column_affine(const PlcChannels *k, int dtype, const void *x, const double *coef, void *y) {
  PLC_FLOATS(dtype, T, "normalization", return (applied<T, AFFINE>(k, NULL, x, coef, y)));
}
PlStatus plc_column_affine_relu(const PlcChannels *k, int dtype, const void *x, const double *coef, const void *r, void *y) {
  if (r) PLC_FLOATS(dtype, T, "normalization", return (applied<T, SUM_RELU>(k, r, x, coef, y)));
  PLC_FLOATS(dtype, T, "normalization", return (applied<T, RELU>(k, NULL, x, coef, y)));
}
PlStatus plc_column_affine2(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *coef, void *dx) {
  PLC_FLOATS(dtype, T, "normalization", return (applied<T, GRADIENT>(k, dy, x, coef, dx)));
}
