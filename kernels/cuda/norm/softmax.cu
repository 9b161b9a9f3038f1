/* SPDX-License-Identifier: MIT
 * softmax and log_softmax along one dim, forward and backward. Dense rows are one block's work, with the row in
 * registers up to 4096 elements; rows across an inner dim are a thread's each, neighbours reading neighbours. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/norm/channels.h"
extern "C" {
#include "kernels/softmax.h"
}

enum { KEEP = 16 };

template <typename T> PLC_DEV T lowest() { return (T)-INFINITY; }

template <typename T, bool CACHED> __global__ void soft_rows(int64_t rows, int64_t n, bool logarithm, const T *x, T *y) {
  typedef typename plc_type<T>::math M;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *in = x + r * n;
    T *out = y + r * n;
    M v[KEEP], top = lowest<M>(), sum = 0;
    for (int k = 0; CACHED && k < KEEP; k++) {
      int64_t i = (int64_t)k * blockDim.x + threadIdx.x;
      v[k] = i < n ? plc_type<T>::load(in[i]) : lowest<M>();
      top = plc_max()(v[k], top);
    }
    for (int64_t i = threadIdx.x; !CACHED && i < n; i += blockDim.x) top = plc_max()(plc_type<T>::load(in[i]), top);
    top = plc_block_all(top, plc_max(), lowest<M>(), room);
    for (int k = 0; CACHED && k < KEEP; k++)
      if ((int64_t)k * blockDim.x + threadIdx.x < n) sum += exp(v[k] - top);
    for (int64_t i = threadIdx.x; !CACHED && i < n; i += blockDim.x) sum += exp(plc_type<T>::load(in[i]) - top);
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    M by = logarithm ? top + log(sum) : (M)1 / sum;
    for (int k = 0; CACHED && k < KEEP; k++) {
      int64_t i = (int64_t)k * blockDim.x + threadIdx.x;
      if (i < n) out[i] = plc_type<T>::store(logarithm ? v[k] - by : exp(v[k] - top) * by);
    }
    for (int64_t i = threadIdx.x; !CACHED && i < n; i += blockDim.x) {
      M a = plc_type<T>::load(in[i]);
      out[i] = plc_type<T>::store(logarithm ? a - by : exp(a - top) * by);
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
    M by = logarithm ? top + log(sum) : (M)1 / sum;
    for (int64_t i = 0; i < n; i++) {
      M a = plc_type<T>::load(x[base + i * inner]);
      y[base + i * inner] = plc_type<T>::store(logarithm ? a - by : exp(a - top) * by);
    }
  }
}

/* dx = y (dy - Σ y dy); of the logarithm: dy - e^y Σ dy. */
template <typename T> __global__ void soft_rows_bwd(int64_t rows, int64_t n, bool logarithm, const T *dy, const T *y, T *dx) {
  typedef typename plc_type<T>::math M;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    M sum = 0;
    for (int64_t i = r * n + threadIdx.x; i < (r + 1) * n; i += blockDim.x) {
      M g = plc_type<T>::load(dy[i]);
      sum += logarithm ? g : g * plc_type<T>::load(y[i]);
    }
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    for (int64_t i = r * n + threadIdx.x; i < (r + 1) * n; i += blockDim.x) {
      M g = plc_type<T>::load(dy[i]), v = plc_type<T>::load(y[i]);
      dx[i] = plc_type<T>::store(logarithm ? g - exp(v) * sum : v * (g - sum));
    }
  }
}
template <typename T>
__global__ void soft_columns_bwd(int64_t rows, int64_t n, int64_t inner, bool logarithm, const T *dy, const T *y, T *dx) {
  typedef typename plc_type<T>::math M;
  for (PLC_EACH(r, rows)) {
    int64_t base = r / inner * n * inner + r % inner;
    M sum = 0;
    for (int64_t i = base; i < base + n * inner; i += inner) {
      M g = plc_type<T>::load(dy[i]);
      sum += logarithm ? g : g * plc_type<T>::load(y[i]);
    }
    for (int64_t i = base; i < base + n * inner; i += inner) {
      M g = plc_type<T>::load(dy[i]), v = plc_type<T>::load(y[i]);
      dx[i] = plc_type<T>::store(logarithm ? g - exp(v) * sum : v * (g - sum));
    }
  }
}

static PlStatus run(const PlkCall *c, const void *in, const void *y, bool backward) {
  const PlArray *x = c->in[0];
  int64_t dim = pl_attr_i(c->attrs, 0), outer = 1, n = x->ndim ? x->shape[dim] : 1, inner = 1;
  bool logarithm = c->code == 1;
  for (int d = 0; d < x->ndim; d++)
    if (d != dim) *(d < dim ? &outer : &inner) *= x->shape[d];
  int64_t rows = outer * inner;
  if (x->numel == 0) return PL_OK;
  const unsigned blocks = (unsigned)(rows < 1 << 20 ? rows : 1 << 20), threads = plc_row_threads(n);
  void *out = c->out[0]->data;
  PLC_FLOATS(c->out[0]->dtype, T, c->name, {
    if (inner > 1 && backward)
      PLC_LAUNCH(soft_columns_bwd<T>, plc_grid(rows, 1), PLC_BLOCK, 0, rows, n, inner, logarithm, (const T *)in, (const T *)y, (T *)out);
    else if (inner > 1) PLC_LAUNCH(soft_columns<T>, plc_grid(rows, 1), PLC_BLOCK, 0, rows, n, inner, logarithm, (const T *)in, (T *)out);
    else if (backward) PLC_LAUNCH(soft_rows_bwd<T>, blocks, threads, 0, rows, n, logarithm, (const T *)in, (const T *)y, (T *)out);
    else if (n <= (int64_t)KEEP * threads && n > 128)
      PLC_LAUNCH((soft_rows<T, true>), blocks, threads, 0, rows, n, logarithm, (const T *)in, (T *)out);
    else PLC_LAUNCH((soft_rows<T, false>), blocks, threads, 0, rows, n, logarithm, (const T *)in, (T *)out);
  });
  return PL_OK;
}
static PlStatus softmax(const PlkCall *c) { return run(c, c->in[0]->data, NULL, false); }
/* dy and y may have different dtypes, as under autocast: the kernels take both in that of the result. */
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
