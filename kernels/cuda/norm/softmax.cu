/* SPDX-License-Identifier: MIT
 * softmax and log_softmax along one dim, forward and backward. Dense rows are one block's work, with the row in
 * registers up to 4096 elements, then in shared memory up to 96 KiB; rows across an inner dim are a thread's each, neighbours reading neighbours. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/norm/channels.h"
extern "C" {
#include "kernels/softmax.h"
}

template <typename T> PLC_DEV T lowest() { return (T)-INFINITY; }

/* Element i of a row, this thread's k-th: registers, and all loads of a row under way together. */
#define ROW_EACH(k, i, n) PLC_UNROLL for (int k = 0; k < KEEP; k++) if (const int i = k * THREADS + (int)threadIdx.x; i < (n))

template <typename T, int THREADS, int KEEP>
__global__ void __launch_bounds__(THREADS) kept_rows(int64_t rows, int n, bool logarithm, const T *x, T *y) {
  typedef typename plc_type<T>::math M;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *in = x + r * n;
    T *out = y + r * n;
    M v[KEEP], top = lowest<M>(), sum = 0;
    ROW_EACH(k, i, n) v[k] = plc_type<T>::load(in[i]);
    ROW_EACH(k, i, n) top = plc_max()(v[k], top);
    top = plc_block_all(top, plc_max(), lowest<M>(), room);
    ROW_EACH(k, i, n) {
      if (!logarithm) v[k] = exp(v[k] - top);
      sum += logarithm ? exp(v[k] - top) : v[k];
    }
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    M by = logarithm ? log(sum) : (M)1 / sum;
    ROW_EACH(k, i, n) out[i] = plc_type<T>::store(logarithm ? v[k] - top - by : v[k] * by); /* top + log(sum) may be top */
  }
}

/* Long rows wait in shared memory: read once, 16 bytes at a time; what adds up does so in the order of all kernels of rows. */
template <typename T> __global__ void staged_rows(int64_t rows, int n, bool logarithm, const T *x, T *y) {
  typedef typename plc_type<T>::math M;
  enum { V = 16 / (int)sizeof(T), FOUR = 4 }; /* loads under way together */
  PLC_SHARED(T, row);
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *in = x + r * n;
    T *out = y + r * n;
    M top = lowest<M>(), sum = 0;
    const int step = (int)blockDim.x * V;
    for (int i = (int)threadIdx.x * V; i < n; i += FOUR * step) {
      plc_pack<T, V> p[FOUR];
      PLC_UNROLL for (int u = 0; u < FOUR; u++) if (i + u * step < n) p[u] = *(const plc_pack<T, V> *)(in + i + u * step);
      PLC_UNROLL for (int u = 0; u < FOUR; u++) if (i + u * step < n) * (plc_pack<T, V> *)(row + i + u * step) = p[u];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) top = plc_max()(plc_type<T>::load(row[i]), top);
    top = plc_block_all(top, plc_max(), lowest<M>(), room);
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) sum += exp(plc_type<T>::load(row[i]) - top);
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    M by = logarithm ? log(sum) : (M)1 / sum;
    for (int i = (int)threadIdx.x * V; i < n; i += (int)blockDim.x * V) {
      plc_pack<T, V> p = *(const plc_pack<T, V> *)(row + i);
      PLC_UNROLL for (int j = 0; j < V; j++) {
        const M a = plc_type<T>::load(p.v[j]);
        p.v[j] = plc_type<T>::store(logarithm ? a - top - by : exp(a - top) * by);
      }
      *(plc_pack<T, V> *)(out + i) = p;
    }
    __syncthreads(); /* the next row takes its place */
  }
}

template <typename T> __global__ void soft_rows(int64_t rows, int64_t n, bool logarithm, const T *x, T *y) {
  typedef typename plc_type<T>::math M;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *in = x + r * n;
    T *out = y + r * n;
    M top = lowest<M>(), sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) top = plc_max()(plc_type<T>::load(in[i]), top);
    top = plc_block_all(top, plc_max(), lowest<M>(), room);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += exp(plc_type<T>::load(in[i]) - top);
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    M by = logarithm ? log(sum) : (M)1 / sum;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      M a = plc_type<T>::load(in[i]);
      out[i] = plc_type<T>::store(logarithm ? a - top - by : exp(a - top) * by);
    }
  }
}

template <typename T> __global__ void soft_columns(int64_t rows, int64_t n, int64_t inner, bool logarithm, const T *x, T *y) {
  typedef typename plc_type<T>::math M;
  for (PLC_EACH(r, rows)) {
    int64_t base = r / inner * n * inner + r % inner;
    M top = lowest<M>(), sum = 0;
    for (int64_t i = 0; i < n; i++) top = plc_max()(plc_type<T>::load(x[base + i * inner]), top);
    for (int64_t i = 0; i < n; i++) sum += exp(plc_type<T>::load(x[base + i * inner]) - top);
    M by = logarithm ? log(sum) : (M)1 / sum;
    for (int64_t i = 0; i < n; i++) {
      M a = plc_type<T>::load(x[base + i * inner]);
      y[base + i * inner] = plc_type<T>::store(logarithm ? a - top - by : exp(a - top) * by);
    }
  }
}

/* dx = y (dy - Σ y dy); of the logarithm: dy - e^y Σ dy. One element of a row may be more than half. Of the logarithm what this is less
 * than 1 is taken as the sum of the others; else dy counts from that element's on (kernels/cpu/isa/norm/softmax_body.h). `look` at all
 * elements, `join`, then `add` all. Fused kernels have the same as text (kernels/cuda/libs/fused_rows.c). */
template <typename M> struct SoftBack {
  M own = 0, sum = 0, rest = 0; /* dy of that element; the sums; of the logarithm: of the others' e^y */
  __device__ __forceinline__ static bool likely(bool logarithm, M v) { return v > (logarithm ? (M)-0.6875 : (M)0.5); }
  __device__ __forceinline__ void look(bool logarithm, M g, M v) {
    if (logarithm) sum += g;
    if (logarithm && !likely(true, v)) rest += exp(v);
    if (!logarithm && likely(false, v)) own += g;
  }
  __device__ __forceinline__ void add(M g, M v) { sum += (g - own) * v; }
  __device__ __forceinline__ void join(bool logarithm, M *room) {
    if (!logarithm) {
      own = plc_block_all(own, plc_sum(), (M)0, room);
      return;
    }
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    rest = plc_block_all(rest, plc_sum(), (M)0, room);
  }
  __device__ __forceinline__ M value(bool logarithm, M g, M v) const {
    if (!logarithm) return v * (g - own - sum);
    return likely(true, v) ? (g - sum) + rest * sum : g - exp(v) * sum;
  }
};
template <typename T> __global__ void soft_rows_bwd(int64_t rows, int64_t n, bool logarithm, const T *dy, const T *y, T *dx) {
  typedef typename plc_type<T>::math M;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    SoftBack<M> b;
    for (int64_t i = r * n + threadIdx.x; i < (r + 1) * n; i += blockDim.x)
      b.look(logarithm, plc_type<T>::load(dy[i]), plc_type<T>::load(y[i]));
    b.join(logarithm, room);
    if (!logarithm) {
      for (int64_t i = r * n + threadIdx.x; i < (r + 1) * n; i += blockDim.x) b.add(plc_type<T>::load(dy[i]), plc_type<T>::load(y[i]));
      b.sum = plc_block_all(b.sum, plc_sum(), (M)0, room);
    }
    for (int64_t i = r * n + threadIdx.x; i < (r + 1) * n; i += blockDim.x)
      dx[i] = plc_type<T>::store(b.value(logarithm, plc_type<T>::load(dy[i]), plc_type<T>::load(y[i])));
  }
}
template <typename T, int THREADS, int KEEP>
__global__ void __launch_bounds__(THREADS) kept_rows_bwd(int64_t rows, int n, bool logarithm, const T *dy, const T *y, T *dx) {
  typedef typename plc_type<T>::math M;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *from = dy + r * n, *soft = y + r * n;
    T *to = dx + r * n, g[KEEP], v[KEEP];
    SoftBack<M> b;
    ROW_EACH(k, i, n) g[k] = from[i], v[k] = soft[i];
    ROW_EACH(k, i, n) b.look(logarithm, plc_type<T>::load(g[k]), plc_type<T>::load(v[k]));
    b.join(logarithm, room);
    if (!logarithm) {
      ROW_EACH(k, i, n) b.add(plc_type<T>::load(g[k]), plc_type<T>::load(v[k]));
      b.sum = plc_block_all(b.sum, plc_sum(), (M)0, room);
    }
    ROW_EACH(k, i, n) to[i] = plc_type<T>::store(b.value(logarithm, plc_type<T>::load(g[k]), plc_type<T>::load(v[k])));
  }
}
/* Long rows: dy and y wait in shared memory. */
template <typename T> __global__ void staged_rows_bwd(int64_t rows, int n, bool logarithm, const T *dy, const T *y, T *dx) {
  typedef typename plc_type<T>::math M;
  enum { V = 16 / (int)sizeof(T), FOUR = 4 };
  PLC_SHARED(T, kept);
  __shared__ M room[32];
  T *g = kept, *v = kept + n;
  const int step = (int)blockDim.x * V;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *from = dy + r * n, *soft = y + r * n;
    T *to = dx + r * n;
    SoftBack<M> b;
    for (int i = (int)threadIdx.x * V; i < n; i += FOUR * step) {
      plc_pack<T, V> p[FOUR], q[FOUR];
      PLC_UNROLL for (int u = 0; u < FOUR; u++) if (i + u * step < n) {
        p[u] = *(const plc_pack<T, V> *)(from + i + u * step);
        q[u] = *(const plc_pack<T, V> *)(soft + i + u * step);
      }
      PLC_UNROLL for (int u = 0; u < FOUR; u++) if (i + u * step < n) {
        *(plc_pack<T, V> *)(g + i + u * step) = p[u];
        *(plc_pack<T, V> *)(v + i + u * step) = q[u];
      }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) b.look(logarithm, plc_type<T>::load(g[i]), plc_type<T>::load(v[i]));
    b.join(logarithm, room);
    if (!logarithm) {
      for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) b.add(plc_type<T>::load(g[i]), plc_type<T>::load(v[i]));
      b.sum = plc_block_all(b.sum, plc_sum(), (M)0, room);
    }
    for (int i = (int)threadIdx.x * V; i < n; i += step) {
      plc_pack<T, V> p = *(const plc_pack<T, V> *)(g + i), q = *(const plc_pack<T, V> *)(v + i);
      PLC_UNROLL for (int j = 0; j < V; j++) p.v[j] =
          plc_type<T>::store(b.value(logarithm, plc_type<T>::load(p.v[j]), plc_type<T>::load(q.v[j])));
      *(plc_pack<T, V> *)(to + i) = p;
    }
    __syncthreads(); /* the next row takes their place */
  }
}
template <typename T>
__global__ void soft_columns_bwd(int64_t rows, int64_t n, int64_t inner, bool logarithm, const T *dy, const T *y, T *dx) {
  typedef typename plc_type<T>::math M;
  for (PLC_EACH(r, rows)) {
    int64_t base = r / inner * n * inner + r % inner;
    SoftBack<M> b;
    for (int64_t i = base; i < base + n * inner; i += inner) b.look(logarithm, plc_type<T>::load(dy[i]), plc_type<T>::load(y[i]));
    for (int64_t i = base; i < base + n * inner && !logarithm; i += inner) b.add(plc_type<T>::load(dy[i]), plc_type<T>::load(y[i]));
    for (int64_t i = base; i < base + n * inner; i += inner)
      dx[i] = plc_type<T>::store(b.value(logarithm, plc_type<T>::load(dy[i]), plc_type<T>::load(y[i])));
  }
}

/* Rows of one dim that lie one after the other. */
enum { STAGED_BYTES = 96 << 10, STAGED_BWD_BYTES = 128 << 10 }; /* two blocks a multiprocessor of Hopper, one */
template <typename T> static PlStatus forward_rows(int64_t rows, int64_t n, bool logarithm, const T *x, T *y) {
  const unsigned blocks = (unsigned)(rows < 1 << 20 ? rows : 1 << 20), threads = plc_row_threads(n);
  const int64_t bytes = n * (int64_t)sizeof(T);
  if (n > 128 && n <= 1024) PLC_LAUNCH((kept_rows<T, 128, 8>), blocks, 128, 0, rows, (int)n, logarithm, x, y);
  else if (n > 1024 && n <= 4096) PLC_LAUNCH((kept_rows<T, 256, 16>), blocks, 256, 0, rows, (int)n, logarithm, x, y);
  else if (n > 4096 && bytes <= STAGED_BYTES && bytes % 16 == 0 && ((uintptr_t)x | (uintptr_t)y) % 16 == 0 &&
           plc_shared_fits((const void *)staged_rows<T>, (size_t)bytes)) {
    PLC_LAUNCH(staged_rows<T>, blocks, threads, (size_t)bytes, rows, (int)n, logarithm, x, y);
  } else PLC_LAUNCH(soft_rows<T>, blocks, threads, 0, rows, n, logarithm, x, y);
  return PL_OK;
}
template <typename T> static PlStatus backward_rows(int64_t rows, int64_t n, bool logarithm, const T *dy, const T *y, T *dx) {
  const unsigned blocks = (unsigned)(rows < 1 << 20 ? rows : 1 << 20);
  const int64_t bytes = n * (int64_t)sizeof(T);
  if (n > 128 && n <= 1024) PLC_LAUNCH((kept_rows_bwd<T, 128, 8>), blocks, 128, 0, rows, (int)n, logarithm, dy, y, dx);
  else if (sizeof(T) <= 4 && n > 1024 && n <= 4096)
    PLC_LAUNCH((kept_rows_bwd<T, 256, 16>), blocks, 256, 0, rows, (int)n, logarithm, dy, y, dx);
  else if (n > 4096 && 2 * bytes <= STAGED_BWD_BYTES && bytes % 16 == 0 && ((uintptr_t)dy | (uintptr_t)y | (uintptr_t)dx) % 16 == 0 &&
           plc_shared_fits((const void *)staged_rows_bwd<T>, (size_t)(2 * bytes))) {
    PLC_LAUNCH(staged_rows_bwd<T>, blocks, plc_row_threads(n), (size_t)(2 * bytes), rows, (int)n, logarithm, dy, y, dx);
  } else PLC_LAUNCH(soft_rows_bwd<T>, blocks, plc_row_threads(n), 0, rows, n, logarithm, dy, y, dx);
  return PL_OK;
}

static PlStatus run(const PlkCall *c, const void *in, const void *y, bool backward) {
  const PlArray *x = c->in[0];
  int64_t dim = pl_attr_i(c->attrs, 0), outer = 1, n = x->ndim ? x->shape[dim] : 1, inner = 1;
  bool logarithm = c->code == 1;
  for (int d = 0; d < x->ndim; d++)
    if (d != dim) *(d < dim ? &outer : &inner) *= x->shape[d];
  int64_t rows = outer * inner;
  if (x->numel == 0) return PL_OK;
  void *out = c->out[0]->data;
  PLC_FLOATS(c->out[0]->dtype, T, c->name, {
    if (inner > 1 && backward)
      PLC_LAUNCH(soft_columns_bwd<T>, plc_grid(rows, 1), PLC_BLOCK, 0, rows, n, inner, logarithm, (const T *)in, (const T *)y, (T *)out);
    else if (inner > 1) PLC_LAUNCH(soft_columns<T>, plc_grid(rows, 1), PLC_BLOCK, 0, rows, n, inner, logarithm, (const T *)in, (T *)out);
    else if (backward) return backward_rows<T>(rows, n, logarithm, (const T *)in, (const T *)y, (T *)out);
    else return forward_rows<T>(rows, n, logarithm, (const T *)in, (T *)out);
  });
  return PL_OK;
}
/* The kernels take all in the dtype of the result: dtype= converts first; dy and y may differ, as under autocast. */
static PlStatus softmax(const PlkCall *c) {
  void *room = NULL;
  const void *x = NULL;
  PlStatus s = plc_as(c->in[0], c->out[0]->dtype, &room, &x);
  if (s == PL_OK) s = run(c, x, NULL, false);
  plc_scratch_free(room);
  return s;
}
static PlStatus softmax_bwd(const PlkCall *c) {
  void *room[2] = {NULL, NULL};
  const void *dy = NULL, *y = NULL;
  PlStatus s = plc_as(c->in[0], c->out[0]->dtype, &room[0], &dy);
  if (s == PL_OK) s = plc_as(c->in[1], c->out[0]->dtype, &room[1], &y);
  if (s == PL_OK) s = run(c, dy, y, true);
  plc_scratch_free(room[0]);
  plc_scratch_free(room[1]);
  return s;
}
PLC_KERNEL(softmax, softmax)
PLC_KERNEL(softmax_bwd, softmax_bwd)
