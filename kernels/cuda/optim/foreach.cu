/* SPDX-License-Identifier: MIT
 * Lists of tensors: zeros, a factor, the norm of all elements. Many dense tensors a launch: their addresses travel as the kernel's
 * argument, a block takes PLC_CHUNK elements of one of them, 16 bytes at a time where it takes all; others have a launch of
 * their own. The order of a norm's sums depends on sizes alone. */
#include "kernels/cuda/optim/lists.h"

namespace {

enum { PIECES = 96, BLOCKS = 2048 /* at most, of a launch that adds up: each leaves a part */ };

struct Piece {
  void *x;
  int64_t numel;
  int dtype;
};
struct Pieces {
  int n;
  int64_t first[PIECES + 1]; /* chunks before each */
  Piece p[PIECES];
};

/* A norm whose sum of |x|^p may leave the range of doubles, or lose digits at its end: where the first pass says so, a second one finds
 * the largest magnitude (the smallest for p < 0), a third adds up quotients by it. Else their blocks return at once. */
struct Far {
  int pass;      /* 0, 1, 2 */
  double p;      /* the norm's, while a pass has ±inf */
  double *found; /* [2]: the first pass's norm, the magnitude; NULL: cannot leave */
};
PLC_DEV bool left(const Far &f) {
  const double v = f.found[0];
  return v == 0 || isinf(v) || fabs(f.p * log2(v)) > 960; /* false of NaN */
}
PLC_DEV bool idle(const Far &f) { return f.pass > 0 && (!left(f) || (f.pass == 2 && (f.found[1] == 0 || !isfinite(f.found[1])))); }
PLC_DEV double divisor(const Far &f) { return f.pass == 2 ? f.found[1] : 1; }

/* What becomes of the elements. */
enum What { ZERO, SCALE, NORM };
struct Work {
  What what;
  double factor;     /* SCALE, unless */
  const void *scale; /* it is on the device */
  int scale_dtype;
  double p, start; /* NORM */
  double *part;    /* the next launch's: one number a block */
  Far far;
};

/* ---- elements ------------------------------------------------------------------------------------------------------------- */

PLC_DEV double joined(double p, double a, double b) {
  if (!isinf(p)) return a + b;
  if (a != a || b != b) return (double)NAN;
  return p > 0 ? (a > b ? a : b) : (a < b ? a : b);
}
struct Join {
  double p;
  __device__ __forceinline__ double operator()(double a, double b) const { return joined(p, a, b); }
};
PLC_DEV double powered(double p, double v) {
  v = fabs(v);
  return isinf(p) || p == 1 ? v : p == 0 ? (double)(v != 0) : p == 2 ? v * v : pow(v, p);
}

PLC_DEV float times(float v, double f) { return v * (float)f; }
PLC_DEV double times(double v, double f) { return v * f; }
template <typename T> PLC_DEV T times(T v, double f) { return plc_type<T>::store((float)((double)plc_type<T>::load(v) * f)); }

PLC_DEV void scale_one(void *x, int dtype, int64_t i, double f) {
  switch (dtype) {
  case PL_F32: ((float *)x)[i] = times(((float *)x)[i], f); break;
  case PL_F64: ((double *)x)[i] = times(((double *)x)[i], f); break;
  case PL_F16: ((plc_f16 *)x)[i] = times(((plc_f16 *)x)[i], f); break;
  default: ((plc_bf16 *)x)[i] = times(((plc_bf16 *)x)[i], f); break;
  }
}

/* A thread's part of a whole chunk, all of its loads before the first is used; the same elements in the same order where the
 * address does not allow packs. */
template <typename T> struct Part {
  static const int N = 16 / (int)sizeof(T), EACH = PLC_CHUNK / PLC_BLOCK / N;
  plc_pack<T, N> v[EACH];
};
template <typename T> PLC_DEV void load_part(const T *at, Part<T> &p) {
  if ((uintptr_t)at % 16 == 0) {
    PLC_UNROLL for (int k = 0; k < p.EACH; k++) p.v[k] = ((const plc_pack<T, Part<T>::N> *)at)[k * PLC_BLOCK + threadIdx.x];
    return;
  }
  PLC_UNROLL for (int k = 0; k < p.EACH; k++) PLC_UNROLL for (int e = 0; e < p.N; e++) p.v[k].v[e] =
      at[(k * PLC_BLOCK + threadIdx.x) * p.N + e];
}
template <typename T> PLC_DEV void scale_chunk(void *x, int64_t begin, double f) {
  T *at = (T *)x + begin;
  Part<T> p;
  load_part(at, p);
  const bool packs = (uintptr_t)at % 16 == 0;
  PLC_UNROLL for (int k = 0; k < p.EACH; k++) {
    PLC_UNROLL for (int e = 0; e < p.N; e++) p.v[k].v[e] = times(p.v[k].v[e], f);
    if (packs) ((plc_pack<T, Part<T>::N> *)at)[k * PLC_BLOCK + threadIdx.x] = p.v[k];
    else PLC_UNROLL for (int e = 0; e < p.N; e++) at[(k * PLC_BLOCK + threadIdx.x) * p.N + e] = p.v[k].v[e];
  }
}
template <typename T> PLC_DEV double squares_of_chunk(const void *x, int64_t begin, double s) {
  Part<T> p;
  load_part((const T *)x + begin, p);
  PLC_UNROLL for (int k = 0; k < p.EACH; k++) PLC_UNROLL for (int e = 0; e < p.N; e++) {
    const double a = (double)plc_type<T>::load(p.v[k].v[e]);
    s += a * a;
  }
  return s;
}

/* ---- lists ------------------------------------------------------------------------------------------------------------------ */

__global__ void zero_pieces(const __grid_constant__ Pieces s) {
  for (int64_t b = blockIdx.x; b < s.first[s.n]; b += gridDim.x) {
    const int lo = plc_list_of(s.first, s.n, b);
    const Piece &g = s.p[lo];
    const int64_t begin = (b - s.first[lo]) * PLC_CHUNK, end = begin + PLC_CHUNK < g.numel ? begin + PLC_CHUNK : g.numel;
    for (int64_t i = begin + threadIdx.x; i < end; i += PLC_BLOCK) plc_put_any(g.x, g.dtype, i, true, 0, 0);
  }
}

__global__ void scale_pieces(const __grid_constant__ Pieces s, Work w) {
  const double f = w.scale ? plc_get_f(w.scale, w.scale_dtype, 0) : w.factor;
  for (int64_t b = blockIdx.x; b < s.first[s.n]; b += gridDim.x) {
    const int lo = plc_list_of(s.first, s.n, b);
    const Piece &g = s.p[lo];
    const int64_t begin = (b - s.first[lo]) * PLC_CHUNK, end = begin + PLC_CHUNK < g.numel ? begin + PLC_CHUNK : g.numel;
    if (end - begin == PLC_CHUNK) {
      if (g.dtype == PL_F32) scale_chunk<float>(g.x, begin, f);
      else if (g.dtype == PL_F64) scale_chunk<double>(g.x, begin, f);
      else if (g.dtype == PL_F16) scale_chunk<plc_f16>(g.x, begin, f);
      else scale_chunk<plc_bf16>(g.x, begin, f);
    } else
      for (int64_t i = begin + threadIdx.x; i < end; i += PLC_BLOCK) scale_one(g.x, g.dtype, i, f);
  }
}

__global__ void norm_pieces(const __grid_constant__ Pieces s, Work w) {
  __shared__ double room[32];
  if (idle(w.far)) return;
  double sum = w.start;
  const double by = divisor(w.far);
  for (int64_t b = blockIdx.x; b < s.first[s.n]; b += gridDim.x) {
    const int lo = plc_list_of(s.first, s.n, b);
    const Piece &g = s.p[lo];
    const int64_t begin = (b - s.first[lo]) * PLC_CHUNK, end = begin + PLC_CHUNK < g.numel ? begin + PLC_CHUNK : g.numel;
    if (w.p == 2 && w.far.pass == 0 && end - begin == PLC_CHUNK) {
      if (g.dtype == PL_F32) sum = squares_of_chunk<float>(g.x, begin, sum);
      else if (g.dtype == PL_F64) sum = squares_of_chunk<double>(g.x, begin, sum);
      else if (g.dtype == PL_F16) sum = squares_of_chunk<plc_f16>(g.x, begin, sum);
      else sum = squares_of_chunk<plc_bf16>(g.x, begin, sum);
    } else
      for (int64_t i = begin + threadIdx.x; i < end; i += PLC_BLOCK) sum = joined(w.p, sum, powered(w.p, plc_get_f(g.x, g.dtype, i) / by));
  }
  sum = plc_block_all(sum, Join{w.p}, w.start, room);
  if (threadIdx.x == 0) w.part[blockIdx.x] = sum;
}

/* One tensor that is not dense. */
__global__ void strided_piece(plc_layout<1> l, Piece g, Work w) {
  __shared__ double room[32];
  if (w.what == NORM && idle(w.far)) return;
  const double by = w.what == NORM ? divisor(w.far) : 1;
  const double f = w.scale ? plc_get_f(w.scale, w.scale_dtype, 0) : w.factor;
  double sum = w.start;
  for (PLC_EACH(i, l.numel)) {
    int64_t at[1];
    plc_offsets<1>(l, i, at);
    if (w.what == ZERO) plc_put_any(g.x, g.dtype, at[0], true, 0, 0);
    else if (w.what == SCALE) scale_one(g.x, g.dtype, at[0], f);
    else sum = joined(w.p, sum, powered(w.p, plc_get_f(g.x, g.dtype, at[0]) / by));
  }
  if (w.what != NORM) return;
  sum = plc_block_all(sum, Join{w.p}, w.start, room);
  if (threadIdx.x == 0) w.part[blockIdx.x] = sum;
}

__global__ void norm_join(int64_t n, const double *part, Work w, bool empty, void *y, int dtype) { /* one block */
  __shared__ double room[32];
  if (idle(w.far)) return;
  const double p = w.p;
  double s = w.start;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) s = joined(p, s, part[i]);
  s = plc_block_all(s, Join{p}, w.start, room);
  if (threadIdx.x != 0) return;
  const double norm = empty ? 0 : isinf(p) || p == 0 || p == 1 ? s : p == 2 ? sqrt(s) : pow(s, 1 / p);
  if (w.far.found && w.far.pass < 2) w.far.found[w.far.pass] = norm;
  if (w.far.pass != 1) plc_put_any(y, dtype, 0, false, norm * divisor(w.far), 0);
}

unsigned blocks_of(int64_t chunks, What what) {
  const int64_t most = what == NORM ? (int64_t)BLOCKS : plc_most_blocks();
  return (unsigned)(chunks < most ? chunks : most);
}

PlStatus flush(Pieces *s, Work *w) {
  const unsigned blocks = blocks_of(s->first[s->n], w->what);
  if (s->n && w->what == ZERO) PLC_LAUNCH(zero_pieces, blocks, PLC_BLOCK, 0, *s);
  else if (s->n && w->what == SCALE) PLC_LAUNCH(scale_pieces, blocks, PLC_BLOCK, 0, *s, *w);
  else if (s->n) {
    PLC_LAUNCH(norm_pieces, blocks, PLC_BLOCK, 0, *s, *w);
    w->part += blocks;
  }
  s->n = 0;
  return PL_OK;
}

PlStatus strided(const PlArray *x, Work *w) {
  PlArray once = *x;
  int64_t shape[PL_MAX_DIM];
  for (int d = 0; d < x->ndim && w->what != NORM; d++) { /* work in place touches a repeated element once */
    shape[d] = x->strides[d] == 0 ? 1 : x->shape[d];
    once.numel = d ? once.numel * shape[d] : shape[d];
  }
  if (w->what != NORM) once.shape = shape;
  const PlArray *arr[1] = {&once};
  plc_layout<1> l;
  plc_layout_of<1>(&l, arr);
  const unsigned blocks = blocks_of((l.numel + PLC_CHUNK - 1) / PLC_CHUNK, w->what);
  const Piece g = {x->data, x->numel, (int)x->dtype};
  PLC_LAUNCH(strided_piece, blocks, PLC_BLOCK, 0, l, g, *w);
  if (w->what == NORM) w->part += blocks;
  return PL_OK;
}

/* n tensors. What is written where one of those is written that wait for their launch comes in a launch behind it. */
PlStatus run(const PlkCall *c, int n, Work *w) {
  Pieces s;
  PlkExtent waiting[PIECES];
  memset(&s, 0, sizeof s);
  for (int t = 0; t < n; t++) {
    const PlArray *x = c->in[t];
    const PlkExtent e = plk_extent(x);
    bool meets = s.n == PIECES;
    if (x->numel == 0) continue;
    for (int k = 0; k < s.n && !meets && w->what == SCALE; k++) meets = plk_extents_meet(waiting[k], e);
    const bool dense = plc_in_one_order(x, x);
    if (meets || (!dense && w->what != ZERO)) PL_TRY(flush(&s, w));
    if (!dense) {
      PL_TRY(strided(x, w));
      continue;
    }
    s.p[s.n] = Piece{x->data, x->numel, (int)x->dtype};
    waiting[s.n] = e;
    s.first[s.n + 1] = s.first[s.n] + (x->numel + PLC_CHUNK - 1) / PLC_CHUNK;
    s.n++;
  }
  return flush(&s, w);
}

Work blank(What what) {
  Work w;
  memset(&w, 0, sizeof w);
  w.what = what;
  return w;
}

/* ---- families --------------------------------------------------------------------------------------------------------------- */

PlStatus foreach_zero(const PlkCall *c) {
  Work w = blank(ZERO);
  return run(c, c->nin, &w);
}
PlStatus foreach_scale(const PlkCall *c) {
  Work w = blank(SCALE);
  const PlArray *f = c->in[c->nin - 1];
  if (plc_on_host(f)) w.factor = plc_number_f(f);
  else w.scale = f->data, w.scale_dtype = f->dtype;
  return run(c, c->nin - 1, &w);
}

/* A part for each block of each launch, then one block over all parts. */
PlStatus norm_pass(const PlkCall *c, Work w, int pass, double *part, bool empty) {
  w.far.pass = pass;
  if (pass == 1) w.p = w.far.p > 0 ? (double)INFINITY : -(double)INFINITY;
  w.start = isinf(w.p) && w.p < 0 ? (double)INFINITY : 0;
  w.part = part;
  PL_TRY(run(c, c->nin, &w));
  const int64_t parts = w.part - part;
  PLC_LAUNCH(norm_join, 1, parts > 4 * PLC_BLOCK ? 1024 : PLC_BLOCK, 0, parts, (const double *)part, w, empty, c->out[0]->data,
             (int)c->out[0]->dtype);
  return PL_OK;
}

PlStatus foreach_norm(const PlkCall *c) {
  Work w = blank(NORM);
  int64_t total = 0, parts = 0;
  int bits = 149; /* 2^±bits is what an element may be */
  w.p = w.far.p = pl_attr_f(c->attrs, 0);
  for (int i = 0; i < c->nin; i++) {
    total += c->in[i]->numel, parts += blocks_of((c->in[i]->numel + PLC_CHUNK - 1) / PLC_CHUNK, NORM);
    if (c->in[i]->dtype == PL_F64) bits = 1074;
  }
  const bool far = total > 0 && w.p != 0 && w.p != 1 && !isinf(w.p) && fabs(w.p) * bits > 960;
  void *room;
  PL_TRY(plc_scratch((size_t)(parts + 3) * sizeof(double), &room));
  if (far) w.far.found = (double *)room;
  PlStatus s = PL_OK;
  for (int pass = 0; pass < (far ? 3 : 1) && s == PL_OK; pass++) s = norm_pass(c, w, pass, (double *)room + 2, total == 0);
  plc_scratch_free(room);
  return s;
}

} // namespace

PLC_KERNEL(foreach_zero_, foreach_zero)
PLC_KERNEL(foreach_scale_, foreach_scale)
PLC_KERNEL(foreach_norm, foreach_norm)
