/* SPDX-License-Identifier: MIT
 * Layer norm and RMS norm, a block a row: statistics in f32 (f64 of f64), two passes so that large means lose no digits.
 * Rows of up to KEEP elements a thread are read once, all loads under way together, and stay in registers; longer ones are
 * read again for each pass. The order of sums is the same either way, and that of generated kernels.
 * backward: dx with two sums a row; dw and db are added up over stretches of rows, then over stretches, in one order. Where there
 * are many rows, a block makes both for its stretch from what it read once.
 * T is x's type, W that of weight and bias: T, or under autocast the type of the statistics. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/norm/channels.h"
extern "C" {
#include "kernels/norm.h"
}

PLC_DEV void put_stat(void *p, int dtype, int64_t i, double v) {
  if (dtype == PL_F32) ((float *)p)[i] = (float)v;
  else ((double *)p)[i] = v;
}
PLC_DEV double stat(const void *p, int dtype, int64_t i) {
  return dtype == PL_F32 ? (double)((const float *)p)[i] : ((const double *)p)[i];
}

template <typename T, typename W> struct Norm {
  int64_t rows, n;
  bool center;
  double eps;
  const T *x;
  const W *w, *b;
  T *y;
  void *mean, *rstd;
  int stat_dtype;
};

/* Moments of a row whose squares, or sum, are beyond floats, in double; beyond that, too, a deviation is NaN, no zeros by 1/inf. All
 * threads of the block come, and sums are in `room`. Generated kernels do the same. */
template <typename T> PLC_DEV void far_moments(const T *x, int64_t n, bool center, double *mean, double *m2) {
  __shared__ double room[32];
  double mu = 0, s = 0;
  if (center) {
    PLC_ROLLED for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mu += (double)plc_type<T>::load(x[i]);
    mu = plc_block_all(mu, plc_sum(), 0.0, room) / (double)n;
  }
  PLC_ROLLED for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const double d = (double)plc_type<T>::load(x[i]) - mu;
    s += d * d;
  }
  s = plc_block_all(s, plc_sum(), 0.0, room);
  *mean = mu;
  *m2 = center && isinf(s) ? (double)NAN : s;
}

/* Element i of a row of n, this thread's k-th. The number of threads is a constant, so that all of a thread's addresses are one
 * register and offsets. */
#define ROW_EACH(k, i, n) PLC_UNROLL for (int k = 0; k < KEEP; k++) if (const int i = k * THREADS + (int)threadIdx.x; i < (n))
template <typename T, typename W, int THREADS, int KEEP> __global__ void __launch_bounds__(THREADS) kept_forward(Norm<T, W> p) {
  typedef typename plc_type<T>::math M;
  typedef plc_type<T> E;
  typedef plc_type<W> V;
  __shared__ M room[32];
  const int n = (int)p.n;
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    const T *x = p.x + r * p.n;
    T *y = p.y + r * p.n;
    T raw[KEEP];
    M mean = 0, sum = 0;
    ROW_EACH(k, i, n) raw[k] = x[i];
    if (p.center) {
      ROW_EACH(k, i, n) sum += E::load(raw[k]);
      mean = plc_block_all(sum, plc_sum(), (M)0, room) / (M)p.n;
      sum = 0;
    }
    ROW_EACH(k, i, n) {
      M d = E::load(raw[k]) - mean;
      sum += d * d;
    }
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    double m2 = (double)sum;
    if (isinf(sum)) {
      double far;
      far_moments(x, p.n, p.center, &far, &m2);
      mean = (M)far;
    }
    M rstd = (M)(1.0 / sqrt(m2 / (double)p.n + p.eps));
    ROW_EACH(k, i, n) {
      M v = (E::load(raw[k]) - mean) * rstd;
      if (p.w) v *= V::load(p.w[i]);
      if (p.b) v += V::load(p.b[i]);
      y[i] = E::store(v);
    }
    if (threadIdx.x == 0) {
      if (p.mean) put_stat(p.mean, p.stat_dtype, r, (double)mean);
      if (p.rstd) put_stat(p.rstd, p.stat_dtype, r, (double)rstd);
    }
  }
}

template <typename T, typename W> __global__ void forward_rows(Norm<T, W> p) {
  typedef typename plc_type<T>::math M;
  typedef plc_type<T> E;
  typedef plc_type<W> V;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    const T *x = p.x + r * p.n;
    M mean = 0, sum = 0;
    if (p.center) {
      for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) sum += E::load(x[i]);
      mean = plc_block_all(sum, plc_sum(), (M)0, room) / (M)p.n;
      sum = 0;
    }
    for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
      M d = E::load(x[i]) - mean;
      sum += d * d;
    }
    sum = plc_block_all(sum, plc_sum(), (M)0, room);
    double m2 = (double)sum;
    if (isinf(sum)) {
      double far;
      far_moments(x, p.n, p.center, &far, &m2);
      mean = (M)far;
    }
    M rstd = (M)(1.0 / sqrt(m2 / (double)p.n + p.eps));
    for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
      M v = (E::load(x[i]) - mean) * rstd;
      if (p.w) v *= V::load(p.w[i]);
      if (p.b) v += V::load(p.b[i]);
      p.y[r * p.n + i] = E::store(v);
    }
    if (threadIdx.x == 0) {
      if (p.mean) put_stat(p.mean, p.stat_dtype, r, (double)mean);
      if (p.rstd) put_stat(p.rstd, p.stat_dtype, r, (double)rstd);
    }
  }
}

/* g = dy w, h = (x - mean) rstd: dx = rstd (g - [mean of g] - h mean of g h), the bracket for layer norm only. */
template <typename T, typename W> struct Bwd {
  int64_t rows, n;
  bool center;
  const T *dy, *x;
  const W *w;
  const void *mean, *rstd;
  int stat_dtype;
  T *dx;
  int64_t stretch, stretches; /* of rows, for dw and db */
};
template <typename T, typename W> __global__ void backward_rows(Bwd<T, W> p) {
  typedef typename plc_type<T>::math M;
  typedef plc_type<T> E;
  typedef plc_type<W> V;
  __shared__ M room[32];
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    const T *x = p.x + r * p.n, *dy = p.dy + r * p.n;
    M mean = p.center ? (M)stat(p.mean, p.stat_dtype, r) : (M)0, rstd = (M)stat(p.rstd, p.stat_dtype, r), a = 0, b = 0;
    for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
      M g = E::load(dy[i]) * (p.w ? V::load(p.w[i]) : (M)1);
      a += g;
      b += g * (E::load(x[i]) - mean) * rstd;
    }
    a = p.center ? plc_block_all(a, plc_sum(), (M)0, room) / (M)p.n : (M)0;
    b = plc_block_all(b, plc_sum(), (M)0, room) / (M)p.n;
    for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
      M g = E::load(dy[i]) * (p.w ? V::load(p.w[i]) : (M)1), h = (E::load(x[i]) - mean) * rstd;
      p.dx[r * p.n + i] = E::store(rstd * (g - a - h * b));
    }
  }
}

/* part NULL: a block takes rows one by one. Else it takes stretches and leaves part[stretch][2][n], as weight_parts would. */
template <typename T, typename W, int THREADS, int KEEP, bool SUMS>
__global__ void __launch_bounds__(THREADS) kept_backward(Bwd<T, W> p, typename plc_type<T>::math *part) {
  typedef typename plc_type<T>::math M;
  typedef plc_type<T> E;
  typedef plc_type<W> V;
  __shared__ M room[32];
  const int n = (int)p.n;
  const int64_t step = SUMS ? p.stretch : 1;
  for (int64_t s = blockIdx.x; s * step < p.rows; s += gridDim.x) {
    const int64_t end = (s + 1) * step < p.rows ? (s + 1) * step : p.rows;
    M dw[SUMS ? KEEP : 1], db[SUMS ? KEEP : 1];
    if (SUMS) PLC_UNROLL for (int k = 0; k < KEEP; k++) dw[k] = db[k] = 0;
    for (int64_t r = s * step; r < end; r++) {
      const T *x = p.x + r * p.n, *dy = p.dy + r * p.n;
      T *dx = p.dx + r * p.n;
      T rx[KEEP], rdy[KEEP];
      M mean = p.center ? (M)stat(p.mean, p.stat_dtype, r) : (M)0, rstd = (M)stat(p.rstd, p.stat_dtype, r), a = 0, b = 0;
      ROW_EACH(k, i, n) rx[k] = x[i], rdy[k] = dy[i];
      ROW_EACH(k, i, n) {
        M g = E::load(rdy[k]) * (p.w ? V::load(p.w[i]) : (M)1);
        a += g;
        b += g * (E::load(rx[k]) - mean) * rstd;
        if (SUMS) dw[k] += E::load(rdy[k]) * (E::load(rx[k]) - mean) * rstd, db[k] += E::load(rdy[k]);
      }
      a = p.center ? plc_block_all(a, plc_sum(), (M)0, room) / (M)p.n : (M)0;
      b = plc_block_all(b, plc_sum(), (M)0, room) / (M)p.n;
      ROW_EACH(k, i, n) {
        M g = E::load(rdy[k]) * (p.w ? V::load(p.w[i]) : (M)1), h = (E::load(rx[k]) - mean) * rstd;
        dx[i] = E::store(rstd * (g - a - h * b));
      }
    }
    if (SUMS) ROW_EACH(k, i, n) part[s * 2 * p.n + i] = dw[k], part[(s * 2 + 1) * p.n + i] = db[k];
  }
}
/* Rows that a thread block keeps, and enough of them that whole stretches keep the device busy. */
enum { KEPT_LEAST = 128, KEPT_MOST = 4096, SUMMED_ROWS = 4096 };
template <typename T> static bool kept(int64_t n) { return sizeof(T) <= 4 && n > KEPT_LEAST && n <= KEPT_MOST; }

/* part NULL: dx alone. */
template <typename T, typename W, typename M> static PlStatus run_backward(const Bwd<T, W> &p, M *part) {
  const unsigned blocks = (unsigned)(p.rows < 1 << 20 ? p.rows : 1 << 20);
  if constexpr (sizeof(T) <= 4) {
    if (kept<T>(p.n)) { /* threads: plc_row_threads */
      if (part && p.n <= 1024) PLC_LAUNCH((kept_backward<T, W, 128, 8, true>), (unsigned)p.stretches, 128, 0, p, part);
      else if (part) PLC_LAUNCH((kept_backward<T, W, 256, 16, true>), (unsigned)p.stretches, 256, 0, p, part);
      else if (p.n <= 1024) PLC_LAUNCH((kept_backward<T, W, 128, 8, false>), blocks, 128, 0, p, part);
      else PLC_LAUNCH((kept_backward<T, W, 256, 16, false>), blocks, 256, 0, p, part);
      return PL_OK;
    }
  }
  PLC_LAUNCH((backward_rows<T, W>), blocks, plc_row_threads(p.n), 0, p);
  return PL_OK;
}
template <typename T, typename W> static PlStatus run_forward(const Norm<T, W> &p, unsigned blocks) {
  if constexpr (sizeof(T) <= 4) {
    if (kept<T>(p.n)) { /* threads: plc_row_threads */
      if (p.n <= 1024) PLC_LAUNCH((kept_forward<T, W, 128, 8>), blocks, 128, 0, p);
      else PLC_LAUNCH((kept_forward<T, W, 256, 16>), blocks, 256, 0, p);
      return PL_OK;
    }
  }
  PLC_LAUNCH((forward_rows<T, W>), blocks, plc_row_threads(p.n), 0, p);
  return PL_OK;
}

/* part[stretch][2][n]: Σ dy h and Σ dy over the stretch's rows; neighbours take neighbouring columns. dy may be in halves that
 * nobody has widened. */
template <typename T, typename W, typename M, typename D> __global__ void weight_parts(Bwd<T, W> p, const D *from, M *part) {
  typedef plc_type<T> E;
  typedef plc_type<D> G;
  const int64_t stretch = p.stretch, stretches = p.stretches;
  for (PLC_EACH(t, stretches * p.n)) {
    int64_t s = t / p.n, i = t % p.n, end = (s + 1) * stretch < p.rows ? (s + 1) * stretch : p.rows;
    M dw = 0, db = 0;
    int64_t r = s * stretch;
    for (; r + 4 <= end; r += 4) { /* eight loads under way, and the order of one row after the other */
      D dy[4];
      T x[4];
      PLC_UNROLL for (int u = 0; u < 4; u++) dy[u] = from[(r + u) * p.n + i], x[u] = p.x[(r + u) * p.n + i];
      PLC_UNROLL for (int u = 0; u < 4; u++) {
        M g = G::load(dy[u]), mean = p.center ? (M)stat(p.mean, p.stat_dtype, r + u) : (M)0;
        dw += g * (E::load(x[u]) - mean) * (M)stat(p.rstd, p.stat_dtype, r + u);
        db += g;
      }
    }
    for (; r < end; r++) {
      M g = G::load(from[r * p.n + i]), mean = p.center ? (M)stat(p.mean, p.stat_dtype, r) : (M)0;
      dw += g * (E::load(p.x[r * p.n + i]) - mean) * (M)stat(p.rstd, p.stat_dtype, r);
      db += g;
    }
    part[s * 2 * p.n + i] = dw;
    part[(s * 2 + 1) * p.n + i] = db;
  }
}
/* COLUMNS columns a block; thread (c, k) adds stretches k, k + SIDES, …, then the sides are joined in their order. */
enum { COLUMNS = 32, SIDES = 16 };
template <typename M> __global__ void weight_sums(int64_t n, int64_t stretches, const M *part, M *dw, M *db) {
  __shared__ double room[2][SIDES][COLUMNS];
  const int c = (int)threadIdx.x % COLUMNS, k = (int)threadIdx.x / COLUMNS;
  const int64_t i = (int64_t)blockIdx.x * COLUMNS + c;
  double a = 0, b = 0;
  if (i < n) {
    PLC_UNROLL
    for (int64_t s = k; s < stretches; s += SIDES) a += (double)part[s * 2 * n + i], b += (double)part[(s * 2 + 1) * n + i];
  }
  room[0][k][c] = a, room[1][k][c] = b;
  __syncthreads();
  if (k > 1 || i >= n) return;
  a = 0;
  for (int s = 0; s < SIDES; s++) a += room[k][s][c];
  if (k == 0 && dw) dw[i] = (M)a;
  if (k == 1 && db) db[i] = (M)a;
}

__global__ void nan_stats(void *p, int dtype, int64_t n) {
  for (PLC_EACH(i, n)) put_stat(p, dtype, i, (double)NAN);
}

template <typename T, typename W, typename M> static PlStatus run_parts(const Bwd<T, W> &p, const void *dy, int dtype, M *part) {
  const unsigned grid = plc_grid(p.stretches * p.n, 1);
  if constexpr (sizeof(T) == 4) {
    if (dtype == PL_BF16) {
      PLC_LAUNCH((weight_parts<T, W, M, plc_bf16>), grid, PLC_BLOCK, 0, p, (const plc_bf16 *)dy, part);
      return PL_OK;
    }
    if (dtype == PL_F16) {
      PLC_LAUNCH((weight_parts<T, W, M, plc_f16>), grid, PLC_BLOCK, 0, p, (const plc_f16 *)dy, part);
      return PL_OK;
    }
  }
  PLC_LAUNCH((weight_parts<T, W, M, T>), grid, PLC_BLOCK, 0, p, (const T *)dy, part);
  return PL_OK;
}

static int64_t row_length(const PlkCall *c) {
  int64_t n = 1;
  for (int i = 0; i < pl_attr_n(c->attrs, 0); i++) n *= pl_attr_list(c->attrs, 0)[i];
  return n;
}
static double eps_of(const PlkCall *c, int dtype) {
  return pl_attr_has(c->attrs, 1) ? pl_attr_f(c->attrs, 1) : plk_norm_default_eps(dtype);
}
static unsigned row_blocks(int64_t rows) { return (unsigned)(rows < 1 << 20 ? rows : 1 << 20); }

/* w and b as arrays of W: themselves, or copies in `room`. */
template <typename W> static PlStatus params(const PlArray *w, const PlArray *b, int dtype, void **room, const W **pw, const W **pb) {
  const void *data[2] = {NULL, NULL};
  if (w) PL_TRY(plc_as(w, dtype, &room[0], &data[0]));
  if (b) PL_TRY(plc_as(b, dtype, &room[1], &data[1]));
  *pw = (const W *)data[0];
  *pb = (const W *)data[1];
  return PL_OK;
}
/* Whether weight and bias are read in x's own dtype. */
static bool own(const PlArray *x, const PlArray *w, const PlArray *b) {
  return (!w || w->dtype == x->dtype) && (!b || b->dtype == x->dtype);
}
static int math_dtype(const PlArray *x) { return x->dtype == PL_F64 ? PL_F64 : PL_F32; }

template <typename T, typename W> static PlStatus forward(const PlkCall *c, int dtype) {
  const PlArray *x = c->in[0], *w = c->in[1], *b = c->code == 0 ? c->in[2] : NULL;
  PlArray *mean = c->code == 0 ? c->out[1] : NULL, *rstd = c->out[c->code == 0 ? 2 : 1];
  Norm<T, W> p = {0,
                  row_length(c),
                  c->code == 0,
                  eps_of(c, x->dtype),
                  (const T *)x->data,
                  NULL,
                  NULL,
                  (T *)c->out[0]->data,
                  mean ? mean->data : NULL,
                  rstd ? rstd->data : NULL,
                  (int)(rstd ? rstd->dtype : (uint8_t)PL_F32)};
  if (x->numel == 0) {
    for (int i = 1; i < c->nout; i++)
      if (c->out[i] && c->out[i]->numel)
        PLC_LAUNCH(nan_stats, plc_grid(c->out[i]->numel, 1), PLC_BLOCK, 0, c->out[i]->data, (int)c->out[i]->dtype, c->out[i]->numel);
    return PL_OK;
  }
  void *room[2] = {NULL, NULL};
  PL_TRY(params<W>(w, b, dtype, room, &p.w, &p.b));
  p.rows = x->numel / p.n;
  PL_TRY(run_forward(p, row_blocks(p.rows)));
  plc_scratch_free(room[0]);
  plc_scratch_free(room[1]);
  return PL_OK;
}

template <typename T, typename W> static PlStatus backward(const PlkCall *c, int dtype) {
  typedef typename plc_type<T>::math M;
  bool layer = c->code == 0;
  const PlArray *x = c->in[1], *w = c->in[layer ? 4 : 3], *mean = layer ? c->in[2] : NULL, *rstd = c->in[layer ? 3 : 2];
  PlArray *dw = c->out[1], *db = layer ? c->out[2] : NULL;
  void *room[3] = {NULL, NULL, NULL};
  const void *dy = NULL;
  const W *none = NULL;
  Bwd<T, W> p = {0,
                 row_length(c),
                 layer,
                 NULL,
                 (const T *)x->data,
                 NULL,
                 mean ? mean->data : NULL,
                 rstd->data,
                 rstd->dtype,
                 (T *)(c->out[0] ? c->out[0]->data : NULL),
                 0,
                 0};
  p.rows = p.n ? x->numel / p.n : 0;
  const int given = c->in[0]->dtype;
  const bool narrow = x->dtype == PL_F32 && !p.dx && (given == PL_BF16 || given == PL_F16); /* by generated kernels: for the sums alone */
  if (narrow) dy = c->in[0]->data;
  else PL_TRY(plc_as(c->in[0], x->dtype, &room[2], &dy));
  PL_TRY(params<W>(w, NULL, dtype, room, &p.w, &none));
  p.dy = (const T *)dy;
  p.stretch = (p.rows + 511) / 512 < 16 ? 16 : (p.rows + 511) / 512, p.stretches = (p.rows + p.stretch - 1) / p.stretch;
  void *part = NULL;
  if ((dw || db) && p.n) PL_TRY(plc_scratch((size_t)(p.stretches ? p.stretches : 1) * 2 * (size_t)p.n * sizeof(M), &part));
  const bool together = part && p.dx && p.rows >= SUMMED_ROWS && kept<T>(p.n);
  if (p.dx && p.rows) PL_TRY(run_backward(p, together ? (M *)part : (M *)NULL));
  if (part) {
    if (p.stretches && !together) PL_TRY(run_parts(p, dy, narrow ? given : (int)x->dtype, (M *)part));
    PLC_LAUNCH(weight_sums<M>, (unsigned)((p.n + COLUMNS - 1) / COLUMNS), COLUMNS * SIDES, 0, p.n, p.stretches, (const M *)part,
               (M *)(dw ? dw->data : NULL), (M *)(db ? db->data : NULL));
  }
  plc_scratch_free(part);
  for (int i = 0; i < 3; i++) plc_scratch_free(room[i]);
  return PL_OK;
}

static PlStatus layer_norm(const PlkCall *c) {
  const PlArray *x = c->in[0];
  PLC_FLOATS(x->dtype, T, c->name, {
    if (own(x, c->in[1], c->code == 0 ? c->in[2] : NULL)) return forward<T, T>(c, x->dtype);
    return forward<T, typename plc_type<T>::math>(c, math_dtype(x));
  });
  return PL_OK;
}
static PlStatus layer_norm_bwd(const PlkCall *c) {
  const PlArray *x = c->in[1];
  PLC_FLOATS(x->dtype, T, c->name, {
    if (own(x, c->in[c->code == 0 ? 4 : 3], NULL)) return backward<T, T>(c, x->dtype);
    return backward<T, typename plc_type<T>::math>(c, math_dtype(x));
  });
  return PL_OK;
}
PLC_KERNEL(layer_norm, layer_norm)
PLC_KERNEL(layer_norm_bwd, layer_norm_bwd)
